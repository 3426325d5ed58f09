"""A runner as a program, for tests: options as JSON in argv, notes as JSON lines on stdout."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from airlox.errors import AirloxError
from airlox.protocol.invite import parse_invite
from airlox.runner.notes import Note
from airlox.runner.options import RunnerOptions
from airlox.runner.worker import exit_code_of, run_runner

PATHS = ("cache_root", "python", "work_root")


def say(note: Note) -> None:
    line = json.dumps({"kind": note.kind, "text": note.text, **note.facts}) + "\n"
    os.write(1, line.encode())


def main() -> int:
    given = json.loads(sys.argv[1])
    given |= {name: Path(given[name]) for name in PATHS if given.get(name)}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    options = RunnerOptions(host="test-host", path=os.environ["PATH"], **given)
    try:
        return run_runner(options, parse_invite(os.environ.pop("TEST_INVITE")), say)
    except AirloxError as error:
        say(Note("error", str(error), {"code": error.code}))
        return exit_code_of(error)


if __name__ == "__main__":
    sys.exit(main())
