"""`airlox` as people run it: a process a command, each person with a cache of their own."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

TIMEOUT_S = 60.0
RUNTIME = f"python3.{sys.version_info[1]}"


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """The error of a command with `--json`: the last line of standard error."""
        return json.loads(self.err.splitlines()[-1])


class Cli:
    """The command line of one person. `invite` is what AIRLOX_INVITE holds, `way_in` are words
    before each command."""

    def __init__(
        self,
        relay: str,
        home: Path,
        *,
        invite: str = "",
        cwd: Path | None = None,
        way_in: Sequence[str] = (),
    ) -> None:
        self.relay = relay
        self.home = home
        self.invite = invite
        self.cwd = cwd
        self.way_in = way_in

    def at(self, cwd: Path) -> Cli:
        """The same person in another folder."""
        return Cli(self.relay, self.home, invite=self.invite, cwd=cwd, way_in=self.way_in)

    def holding(self, invite: str) -> Cli:
        """The same person with another link."""
        return Cli(self.relay, self.home, invite=invite, cwd=self.cwd, way_in=self.way_in)

    @property
    def environ(self) -> Mapping[str, str]:
        given = {
            "AIRLOX_CACHE_DIR": str(self.home),
            "AIRLOX_RELAY": self.relay,
            "AIRLOX_INVITE": self.invite,
        }
        return os.environ | given

    def argv(self, *words: str) -> list[str]:
        return [*self.way_in, sys.executable, "-m", "airlox.cli", *words]

    def __call__(self, *words: str, code: int | None = 0, stdin: str = "", **environ: str) -> Done:
        """Run a command to its end; it must end with `code`, unless that is None."""
        done = subprocess.run(
            self.argv(*words),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**self.environ, **environ},
            cwd=self.cwd,
        )
        ended = Done(done.returncode, done.stdout, done.stderr)
        if code is not None:
            assert ended.code == code, f"{words} ended with {ended}"
        return ended

    @contextmanager
    def started(self, *words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on, with its output in pipes; ended with the block."""
        settings: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }
        process = subprocess.Popen(
            self.argv(*words),
            env=self.environ,
            cwd=self.cwd,
            start_new_session=True,
            **(settings | options),
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def on_terminal(person: Cli, *words: str, typed: str = "") -> str:
    """Everything a command writes when its streams are a terminal; `typed` waits there for it."""
    master, slave = pty.openpty()
    os.write(master, typed.encode())
    with person.started(*words, stdin=slave, stdout=slave, stderr=slave) as running:
        os.close(slave)
        shown = b""
        while select.select([master], [], [], TIMEOUT_S)[0]:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not chunk:
                break
            shown += chunk
        running.wait(TIMEOUT_S)
    os.close(master)
    return shown.decode()


def read_note(process: subprocess.Popen[str], kind: str) -> dict[str, str]:
    """The next note of a kind from `runner join --json`."""
    assert process.stdout is not None
    for line in process.stdout:
        note: dict[str, str] = json.loads(line)
        if note["kind"] == kind:
            return note
    raise AssertionError(f"the runner ended without saying {kind}")


def read_event(process: subprocess.Popen[str], kind: str) -> dict[str, Any]:
    """The next event of a kind that a command with `--json` tells while it waits."""
    assert process.stderr is not None
    for line in process.stderr:
        told: dict[str, Any] = json.loads(line)
        if told.get("event") == kind:
            return told
    raise AssertionError(f"the command ended without telling {kind}")


def create(relay: str, home: Path, *flags: str) -> dict[str, Cli]:
    """A new session: its people by role, each with a cache of their own."""
    made = create_document(relay, home, *flags)
    return {role: Cli(relay, home / role, invite=link) for role, link in made["invites"].items()}


def create_document(relay: str, home: Path, *flags: str) -> Any:
    return Cli(relay, home / "owner")("session", "create", "--json", *flags).document


class Room(NamedTuple):
    """An execute session with a runner called `box` that takes jobs."""

    owner: Cli
    sender: Cli
    observer: Cli
    runner: dict[str, Any]


@contextmanager
def open_room(relay: str, home: Path, *flags: str) -> Iterator[Room]:
    """A room with a plain process for a sandbox. `flags` are further ones of `session create`."""
    kinds = ("--execute", "--kinds", "python,shell", "--runtime", RUNTIME, *flags)
    people = create(relay, home, *kinds)
    owner = people["owner"]
    words = ("--name", "box", "--labels", "small,grey", "--sandbox", "process")
    with people["runner"].started(
        "runner", "join", "--json", *words, "--python", sys.executable, stderr=None
    ) as runner:
        read_note(runner, "waiting")
        waiting = owner("runner", "list", "--json").document["runners"]
        assert [r["approved"] for r in waiting] == [False]
        approved = owner("runner", "approve", "box", "--json").document["approved"]
        read_note(runner, "ready")
        yield Room(owner, people["sender"], people["observer"], approved)
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(TIMEOUT_S) == 0
