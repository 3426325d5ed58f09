"""One life after another: which ends are followed by another life, how soon, and how it stops."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airlox.errors import AirloxError, SandboxError
from airlox.runner import serve
from airlox.runner.notes import Note
from airlox.runner.serve import End, LifeEnd, Pauses

DONE = LifeEnd(End.DONE)
PASSING = LifeEnd(End.PASSING, "the relay is away", "connection_lost")
FAILED = LifeEnd(End.FAILED, "it broke")


class TestPauses:
    def test_doubles_up_to_a_minute(self) -> None:
        pauses = Pauses()
        waits = [pauses.after(PASSING, 1) for _ in range(100)]
        assert waits[:4] == [1, 2, 4, 8]
        assert set(waits[6:]) == {60}

    def test_failures_in_a_row_are_bounded(self) -> None:
        pauses = Pauses()
        waits = [pauses.after(FAILED, 1) for _ in range(serve.MOST_FAILURES)]
        assert waits[-1] is None
        assert None not in waits[:-1]

    def test_a_healthy_life_forgets_them(self) -> None:
        pauses = Pauses()
        for _ in range(100):
            assert pauses.after(FAILED, serve.HEALTHY_LIFE_S) == 1


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Note]:
    """What is told; the pauses between lives are short."""
    monkeypatch.setattr(serve, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(serve, "LONGEST_PAUSE_S", 0.001)
    return []


class Lives:
    """A life for `serve`: the nth ends as the nth of `ends` says; the count outlives each."""

    def __init__(self, folder: Path, *ends: Callable[[], LifeEnd]) -> None:
        self._log = folder / "lives"
        self._log.touch()
        self._ends = ends

    @property
    def count(self) -> int:
        return len(self._log.read_bytes())

    def __call__(self) -> LifeEnd:
        number = self.count
        with self._log.open("ab") as log:
            log.write(b"x")
        return self._ends[min(number, len(self._ends) - 1)]()


def ends_with(ended: LifeEnd) -> Callable[[], LifeEnd]:
    return lambda: ended


def killed() -> LifeEnd:
    os.kill(os.getpid(), signal.SIGKILL)
    return DONE


def waits() -> LifeEnd:
    """What a life does with TERM: it says that it was told."""
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    Path(os.environ["LIFE_READY"]).touch()
    while not told.wait(0.05):
        pass
    return DONE


@contextmanager
def stopping(when: Path) -> Iterator[None]:
    """Send TERM to this process as soon as a file is there."""

    def send() -> None:
        until = time.monotonic() + 30
        while not when.exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send)
    thread.start()
    yield
    thread.join()


def test_a_session_that_ended_ends_it(tmp_path: Path, said: list[Note]) -> None:
    lives = Lives(tmp_path, ends_with(DONE))
    assert serve.serve(lives, said.append) == 0
    assert lives.count == 1
    assert said == []


def test_what_stays_is_not_tried_again(tmp_path: Path, said: list[Note]) -> None:
    final = LifeEnd(End.FINAL, "no walls", "userns_off", "switch them on", 78)
    lives = Lives(tmp_path, ends_with(final))
    with pytest.raises(SandboxError) as error:
        serve.serve(lives, said.append)
    assert (error.value.code, error.value.hint) == ("userns_off", "switch them on")
    assert lives.count == 1


def test_what_may_pass_is_tried_again_and_told_once(tmp_path: Path, said: list[Note]) -> None:
    many = [ends_with(PASSING)] * (2 * serve.MOST_FAILURES)
    lives = Lives(tmp_path, *many, ends_with(DONE))
    assert serve.serve(lives, said.append) == 0
    assert lives.count == len(many) + 1
    assert [note.kind for note in said] == ["restarting"]


def test_a_crash_is_followed_by_another_life(tmp_path: Path, said: list[Note]) -> None:
    lives = Lives(tmp_path, killed, lambda: os._exit(3), ends_with(DONE))
    assert serve.serve(lives, said.append) == 0
    assert lives.count == 3
    assert "SIGKILL" in said[0].text
    assert "code 3" in said[1].text


def test_a_runner_that_only_crashes_is_given_up(tmp_path: Path, said: list[Note]) -> None:
    lives = Lives(tmp_path, killed)
    with pytest.raises(AirloxError) as error:
        serve.serve(lives, said.append)
    assert error.value.code == "gave_up"
    assert lives.count == serve.MOST_FAILURES
    assert len(said) == 1


def test_term_is_passed_on(
    tmp_path: Path, said: list[Note], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready"
    monkeypatch.setenv("LIFE_READY", str(ready))
    lives = Lives(tmp_path, waits)
    before = signal.getsignal(signal.SIGTERM)
    with stopping(ready):
        assert serve.serve(lives, said.append) == 0
    assert lives.count == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_term_ends_the_wait_for_the_next_life(
    tmp_path: Path, said: list[Note], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "FIRST_PAUSE_S", 600)
    monkeypatch.setattr(serve, "LONGEST_PAUSE_S", 600)
    lives = Lives(tmp_path, ends_with(PASSING))
    told = tmp_path / "told"
    with stopping(told):
        assert serve.serve(lives, lambda note: told.touch()) == 0
    assert lives.count == 1


def test_a_life_that_does_not_stop_is_killed(
    tmp_path: Path, said: list[Note], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "STOP_S", 0.2)
    ready = tmp_path / "ready"

    def deaf() -> LifeEnd:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ready.touch()
        time.sleep(600)
        return DONE

    with stopping(ready):
        assert serve.serve(Lives(tmp_path, deaf), said.append) == 1
