"""A relay and runners as processes of their own, to be killed, stopped and started again."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from airlox import Result, Session
from airlox.relay.config import flag_of
from support.ports import free_port

TIMEOUT_S = 60.0
SOURCE = Path(__file__).parents[2] / "src"


class Program:
    """A child process whose lines on standard output can be waited for. A context manager."""

    def __init__(self, argv: list[str], **environment: str) -> None:
        self._argv = argv
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.said: list[str] = []

    def start(self) -> None:
        self._lines = queue.Queue()
        environ = {k: v for k, v in os.environ.items() if not k.startswith("AIRLOX_")}
        environ |= {"PYTHONPATH": str(SOURCE), **self._environment}
        self._process = subprocess.Popen(
            self._argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(
            target=self._read, args=(self._process, self._lines), daemon=True
        )
        self._reader.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait_for(self, wanted: Callable[[str], bool], what: str) -> str:
        """The next line that is `wanted`; those before it are passed over."""
        while True:
            try:
                line = self._lines.get(timeout=TIMEOUT_S)
            except queue.Empty:
                raise AssertionError(f"no {what}; it said {self.said}") from None
            if line is None:
                raise AssertionError(f"ended before {what}; it said {self.said}")
            if wanted(line):
                return line

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        assert self._process is not None
        self._process.kill()
        self._reap()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._reap()

    def wait(self) -> int:
        """The exit code of a program that ends by itself."""
        return self._reap()

    def _reap(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        assert self._reader is not None
        assert process.stdout is not None
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"did not end; it said {self.said}") from None
        self._reader.join(TIMEOUT_S)
        process.stdout.close()
        return code

    def _read(self, process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.said.append(line.strip())
            lines.put(line)
        lines.put(None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill()


class RelayProgram(Program):
    """`airlox-server` on one port, durable, so that it can be killed and come back.

    `way_in` are words before its command.
    """

    def __init__(self, data: Path, *, way_in: Sequence[str] = (), **settings: int) -> None:
        port = free_port()
        flags = [f"{flag_of(name)}={value}" for name, value in settings.items()]
        listen = f"--listen=127.0.0.1:{port}"
        module = [*way_in, sys.executable, "-m", "airlox.relay"]
        super().__init__([*module, f"--data={data}", listen, *flags])
        self.url = f"http://127.0.0.1:{port}"

    def start(self) -> None:
        super().start()
        try:
            self.wait_for(lambda line: line.startswith("listening on "), "relay")
        except AssertionError:
            self.kill()
            raise

    def __enter__(self) -> RelayProgram:
        self.start()
        return self


class RunnerProgram(Program):
    """A runner. `options` are fields of RunnerOptions; `way_in` are words before its command."""

    def __init__(
        self, invite: str, cache: Path, *, way_in: Sequence[str] = (), **options: Any
    ) -> None:
        given = {"name": "box", "cache_root": str(cache), "sandbox": "process", **options}
        main = Path(__file__).with_name("runner_main.py")
        argv = [*way_in, sys.executable, str(main), json.dumps(given)]
        super().__init__(argv, TEST_INVITE=invite)

    def note(self, kind: str) -> dict[str, str]:
        """The next note of this kind."""
        line = self.wait_for(lambda line: json.loads(line)["kind"] == kind, kind)
        found: dict[str, str] = json.loads(line)
        return found

    def notes(self, kind: str) -> list[dict[str, str]]:
        """All notes of this kind so far."""
        return [note for note in map(json.loads, self.said) if note["kind"] == kind]

    def __enter__(self) -> RunnerProgram:
        self.start()
        return self


@contextmanager
def shell_session(folder: Path, sandbox: str, *features: str) -> Iterator[Session]:
    """A session for shell jobs with out files, and a runner that is ready for them."""
    with (
        RelayProgram(folder / "relay") as relay,
        Session.create(
            relay.url,
            mode="execute",
            job_limits={"kinds": ["shell"], "approve_runners": False, "return_out": True},
            features=features,
            cache_dir=folder / "cache",
        ) as session,
        RunnerProgram(session.invites["runner"], folder / "runner", sandbox=sandbox) as runner,
    ):
        runner.note("ready")
        yield session


def overrun(run: Callable[[int], Result], said: str, limit_s: int) -> tuple[Result, int]:
    """The result of a job that its time limit ended after it said something, and the limit: a
    machine that does not get so far in time is given more."""
    for more in (1, 4, 16):
        result = run(limit_s * more)
        if result.stdout == said:
            break
    return result, limit_s * more
