"""`airlox` as people run it, in the process of the test: quick, where nothing is to be killed."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from airlox.cli.main import main
from support.commands import Cli, Done


class Here(Cli):
    """A person whose commands run here, one at a time."""

    def __call__(self, *words: str, code: int | None = 0, stdin: str = "", **environ: str) -> Done:
        """Run a command to its end; it must end with `code`, unless that is None."""
        out, err = _stream(), _stream()
        with (
            mock.patch.dict(os.environ, {**self.environ, **environ}),
            mock.patch.multiple(sys, stdin=_stream(stdin), stdout=out, stderr=err),
            _in_folder(self.cwd),
        ):
            ended = Done(main(words), _text(out), _text(err))
        if code is not None:
            assert ended.code == code, f"{words} ended with {ended}"
        return ended


def people_of(relay: str, home: Path, *flags: str) -> dict[str, Here]:
    """A new session: its people by role, each with a cache of their own."""
    words = ("session", "create", "--json", "--as", "olga", *flags)
    links = Here(relay, home / "owner")(*words).document["invites"]
    return {role: Here(relay, home / role, invite=link, cwd=home) for role, link in links.items()}


def someone(like: Here, name: str) -> Here:
    """One more person with the same link, who has joined under a name."""
    person = Here(like.relay, like.home.parent / name, invite=like.invite, cwd=like.cwd)
    person("items", "--as", name)
    return person


def _stream(text: str = "") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode()


@contextmanager
def _in_folder(folder: Path | None) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder or before)
    try:
        yield
    finally:
        os.chdir(before)
