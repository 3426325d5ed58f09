"""What one person of a campaign runs: sends items, sends jobs, reads, or tells its final view.

Settings as JSON in argv, the link in TEST_INVITE. Everything tried is written to a journal before,
everything acknowledged after, a line each; a killed person goes on with the next number. Errors of
ours are noted and survived; any other ends the program with a traceback, which fails the campaign.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from airlox import Session
from airlox.client.jobs import Job, JobNotTaken
from airlox.errors import AirloxError
from airlox.protocol.payload import Text

WAIT_S = 40.0
STREAM_S = 4.0


class Settings(NamedTuple):
    """`folder` is on the disk that may fill up, the journal is not. `ledger` is seen by jobs of
    the process sandbox."""

    mode: str
    name: str
    folder: str
    journal: str
    stop: str
    ledger: str
    marker: str
    seed: int
    most: int
    pause_s: float


class Journal:
    """Lines that outlive a killed process."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, kind: str, **facts: Any) -> None:
        os.write(self._file, json.dumps({"kind": kind, **facts}).encode() + b"\n")

    def next_number(self) -> int:
        tried = [note["n"] for note in read_journal(self._path) if note["kind"] == "try"]
        return max(tried, default=-1) + 1


def read_journal(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Person:
    def __init__(self, settings: Settings, session: Session, journal: Journal) -> None:
        self._settings = settings
        self._session = session
        self._journal = journal

    def has_stopped(self) -> bool:
        return os.path.exists(self._settings.stop)

    def send(self, what: str) -> None:
        """Items, or jobs, one after another until all are sent or the campaign stops."""
        act = self._send_item if what == "items" else self._send_job
        for n in range(self._journal.next_number(), self._settings.most):
            if self.has_stopped():
                return
            self._journal.note("try", n=n)
            try:
                act(n, random.Random(f"{self._settings.seed} {self._settings.name} {n}"))
            except JobNotTaken as error:
                self._journal.note("not_taken", n=n, id=error.job, code=error.code)
                time.sleep(0.5)
            except AirloxError as error:
                self._journal.note("error", n=n, code=error.code, text=str(error))
                time.sleep(0.2)
            time.sleep(self._settings.pause_s)

    def _send_item(self, n: int, chance: random.Random) -> None:
        text = f"{self._settings.name} {n}"
        padding = chance.choice((0, 0, 0, 300, 3_000, 90_000 if n % 25 == 0 else 0))
        ref = self._session.send_text(f"{text}\n{'x' * padding}")
        self._journal.note("ack", n=n, id=ref.id)

    def _send_job(self, n: int, chance: random.Random) -> None:
        script, limit_s = a_script(self._settings, n, chance)
        job = self._session.run_shell(script, timeout=limit_s)
        self._journal.note("ack", n=n, id=job.id)
        if chance.random() < 0.1:
            time.sleep(chance.random())
            job.cancel()
        if chance.random() < 0.8:
            self._await(job, n)

    def _await(self, job: Job, n: int) -> None:
        result = job.wait(WAIT_S)
        self._journal.note(
            "end", n=n, id=job.id, status=result.status, reason=result.reason, signed=result.signed
        )

    def read(self) -> None:
        """Follow the session, each stream from the beginning; a line for each item."""
        while not self.has_stopped():
            self._journal.note("stream")
            try:
                with self._session.stream(STREAM_S, history=True) as items:
                    for item in items:
                        self._journal.note("seen", seq=item.seq, id=item.id)
                        if self.has_stopped():
                            return
            except AirloxError as error:
                self._journal.note("error", code=error.code, text=str(error))
                time.sleep(0.5)

    def tell(self) -> None:
        """The final view: every announced item in order, with what became of it here."""
        until = time.monotonic() + WAIT_S
        while True:
            self._session.sync()
            records = self._session.records()
            lacking = [r for r in records if r.item is None and r.status.value != "refused"]
            if not lacking or time.monotonic() > until:
                break
            time.sleep(0.5)
        for record in records:
            item = record.item
            meta = None if item is None else item.meta
            self._journal.note(
                "view",
                seq=record.seq,
                id=None if record.envelope is None else record.envelope.id,
                status=record.status.value,
                text=meta.text.split("\n")[0] if isinstance(meta, Text) else None,
            )
        self._journal.note("told")


def a_script(settings: Settings, n: int, chance: random.Random) -> tuple[str, int]:
    """What one job does, and its time limit in seconds. It signs in at the ledger first."""
    name = f"{settings.name}-{n}"
    begin = f"# {name}\necho run >> {settings.ledger}/{name} 2>/dev/null\n"
    kinds = (
        ("echo done", 20),
        ("echo oh >&2; exit 3", 20),
        (f"sleep {chance.random():.2f}; echo slept", 20),
        (f"setsid sleep {settings.marker} & (trap '' TERM; sleep {settings.marker}) & true", 20),
        ("mkdir -p $AIRLOX_OUT/d; head -c 5000 /dev/urandom > $AIRLOX_OUT/d/f", 20),
        ("head -c 200000 /dev/zero | tr '\\0' x", 20),
        ("kill -9 $$", 20),
        (f"sleep {settings.marker}", 1),
    )
    script, limit_s = chance.choice(kinds)
    return begin + script, limit_s


def main() -> int:
    settings = Settings(**json.loads(sys.argv[1]))
    journal = Journal(settings.journal)
    try:
        session = Session.join(
            os.environ.pop("TEST_INVITE"),
            display_name=settings.name,
            cache_dir=settings.folder,
            on_warning=lambda text: journal.note("warning", text=text),
        )
        with session:
            journal.note("joined", key=session.participant_pub)
            person = Person(settings, session, journal)
            if settings.mode == "tell":
                person.tell()
            elif settings.mode == "read":
                person.read()
            else:
                person.send(settings.mode)
    except AirloxError as error:
        journal.note("error", code=error.code, text=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
