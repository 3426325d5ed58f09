"""Runs and their keepers: real processes, ended in every way there is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.agents import keeping
from airlox.agents.keeping import Command, Places, Run
from airlox.errors import AirloxError
from support.relay import until

LONG_S = 60.0


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(str(tmp_path / "listen.run"), str(tmp_path / "listen.ended"))


@pytest.fixture
def nowhere() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_WRONLY)
    yield fd
    os.close(fd)


def prepare(
    places: Places, script: str, nowhere: int, timeout_s: float = LONG_S, **env: str
) -> Run:
    command = Command(("/bin/sh", "-c", script), dict(os.environ) | env, os.getcwd())
    return Run.prepare(command, "b1", places, timeout_s=timeout_s, output=(nowhere, nowhere))


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().endswith("\n"), f"a pid in {path.name}")
    return int(path.read_text())


@pytest.mark.parametrize(
    ("script", "how", "code"),
    [("exit 0", "exited", 0), ("exit 7", "exited", 7), ("kill -KILL $$", "signalled", 9)],
)
def test_how_a_run_ends(places: Places, nowhere: int, script: str, how: str, code: int) -> None:
    with prepare(places, script, nowhere) as run:
        run.go()
        ended = run.wait()
    assert (ended.how, ended.code, ended.batch) == (how, code, "b1")
    assert keeping.read_record(places, "b1") == ended
    assert keeping.read_record(places, "b2") is None
    assert os.stat(places.record).st_mode & 0o777 == 0o600


def test_nothing_is_started_before_it_is_told(places: Places, nowhere: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with prepare(places, f"touch {mark}", nowhere):
        assert keeping.holder(places) is not None
    assert keeping.holder(places) is None
    assert not mark.exists()
    assert keeping.read_record(places, "b1") is None


def test_a_command_that_cannot_be_started(places: Places, nowhere: int, tmp_path: Path) -> None:
    command = Command((str(tmp_path / "none"),), {}, "/")
    with Run.prepare(command, "b1", places, timeout_s=5, output=(nowhere, nowhere)) as run:
        run.go()
        ended = run.wait()
    assert ended.how == "not_started"
    assert "No such file" in (ended.detail or "")


def test_one_run_at_a_time(places: Places, nowhere: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "LOCK_WAIT_S", 0.2)
    with prepare(places, "true", nowhere), pytest.raises(AirloxError, match="cannot lock"):
        prepare(places, "true", nowhere)


def test_a_keeper_that_is_just_leaving_is_waited_for(places: Places, nowhere: int) -> None:
    with prepare(places, "true", nowhere) as leaving:
        ends = threading.Timer(0.3, leaving.close)
        ends.start()
        with prepare(places, "exit 5", nowhere) as run:
            run.go()
            assert run.wait().code == 5
        ends.join()


DEAF = "trap '' TERM; echo $$ > {pid}; while :; do sleep 1; done"


def test_a_time_out_ends_all_of_it_also_what_fled(
    places: Places, nowhere: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "GRACE_S", 0.2)
    fled, deaf = tmp_path / "fled", tmp_path / "deaf"
    # a second session, and a parent that is gone: no member of the group, and not its child
    flight = f"(setsid sh -c 'echo $$ > {fled}; exec sleep 1000' &) &"
    with prepare(places, f"{flight}\n{DEAF.format(pid=deaf)}", nowhere, timeout_s=5) as run:
        run.go()
        pids = [pid_in(fled), pid_in(deaf)]
        ended = run.wait()
    assert ended.how == "timed_out"
    assert [pid for pid in pids if is_alive(pid)] == []


def test_what_a_command_leaves_behind_is_ended(
    places: Places, nowhere: int, tmp_path: Path
) -> None:
    left = tmp_path / "left"
    script = f"setsid sh -c 'echo $$ > {left}; exec sleep 1000' & while ! [ -s {left} ]; do :; done"
    with prepare(places, script, nowhere) as run:
        run.go()
        ended = run.wait()
    assert (ended.how, ended.code) == ("exited", 0)
    assert not is_alive(pid_in(left))


def test_leaving_ends_it_and_leaves_no_record(
    places: Places, nowhere: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "GRACE_S", 0.2)
    deaf = tmp_path / "deaf"
    with prepare(places, DEAF.format(pid=deaf), nowhere) as run:
        run.go()
        pid = pid_in(deaf)
    assert not is_alive(pid)
    assert keeping.read_record(places, "b1") is None
    assert keeping.holder(places) is None


LISTENER = """
import os, signal, sys
from airlox.agents.keeping import Command, Places, Run
places = Places(sys.argv[1], sys.argv[2])
command = Command(("/bin/sh", "-c", sys.argv[3]), dict(os.environ), "/")
run = Run.prepare(command, "b1", places, timeout_s=60, output=(2, 2))
if sys.argv[4] == "go":
    run.go()
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_listener(places: Places, script: str, word: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LISTENER, *places, script, word], timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL


def test_a_run_outlives_its_listener(places: Places, tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    killed_listener(
        places, f"echo $$ > {begun}; while ! [ -e {gate} ]; do sleep 0.02; done; exit 4", "go"
    )
    pid_in(begun)
    found = keeping.holder(places)
    assert found is not None
    assert keeping.read_record(places, "b1") is None
    gate.touch()
    keeping.await_gone(places, found)
    ended = keeping.read_record(places, "b1")
    assert ended is not None
    assert (ended.how, ended.code) == ("exited", 4)


def test_a_listener_that_dies_before_has_started_nothing(places: Places, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    killed_listener(places, f"touch {mark}", "wait")
    found = keeping.holder(places)
    if found is not None:
        keeping.await_gone(places, found)
    assert not mark.exists()
    assert keeping.read_record(places, "b1") is None


def test_who_is_interrupted_while_it_waits_ends_what_it_waits_for(
    places: Places, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    killed_listener(places, f"echo $$ > {begun}; exec sleep 1000", "go")
    pid = pid_in(begun)
    found = keeping.holder(places)
    assert found is not None

    def wait() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        keeping.await_gone(places, found)

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not is_alive(pid)
    assert keeping.holder(places) is None
    assert keeping.read_record(places, "b1") is None


def test_a_keeper_that_is_killed_takes_the_command_along(
    places: Places, nowhere: int, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    with prepare(places, f"echo $$ > {begun}; exec sleep 1000", nowhere) as run:
        run.go()
        pid = pid_in(begun)
        found = keeping.holder(places)
        assert found is not None
        os.kill(found.pid, signal.SIGKILL)
        with pytest.raises(AirloxError) as caught:
            run.wait()
    assert caught.value.code == "keeper_lost"
    until(lambda: not is_alive(pid), "the end of the command")


def test_secrets_show_in_no_arguments_and_not_with_the_keeper(
    places: Places, nowhere: int, tmp_path: Path
) -> None:
    secret, begun = "s3cret-link", tmp_path / "begun"
    script = f"echo $$ > {begun}; exec sleep 1000"
    with prepare(places, script, nowhere, AIRLOX_INVITE=secret) as run:
        run.go()
        pid = pid_in(begun)
        found = keeping.holder(places)
        assert found is not None
        for process, file in ((pid, "cmdline"), (found.pid, "cmdline"), (found.pid, "environ")):
            assert secret not in Path(f"/proc/{process}/{file}").read_text()
        assert secret in Path(f"/proc/{pid}/environ").read_text()
