"""Counts the files of a job's tmpfs from outside, where their builder could not limit them.

The kernel keeps the count, so a look costs nothing that grows with it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox.base import Cause
from airlox.sandbox.supervise import Breach

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class _Place:
    path: str
    fd: int
    limit: int


class TmpfsFiles:
    """A `watch.Meter`; a context manager, for it holds each place open.

    `limits` are paths inside and how many files they may hold; `keeper_pid` is pid 1 in there.
    """

    def __init__(self, keeper_pid: int, limits: Mapping[str, int]) -> None:
        self._places: list[_Place] = []
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            for path, limit in limits.items():
                fd = os.open(f"/proc/{keeper_pid}/root{path}", flags)
                self._places.append(_Place(path, fd, limit))
        except OSError as error:
            self.__exit__()
            raise SandboxError(
                f"the files in {path} cannot be counted: {error.strerror}", code="not_started"
            ) from error

    def look(self) -> Breach | None:
        """The first place that holds too many."""
        for place in self._places:
            found = os.fstatvfs(place.fd)
            count = found.f_files - found.f_ffree
            if count > place.limit:
                return Breach(Cause.DISK, place.limit, count, f"files made in {place.path}")
        return None

    def __enter__(self) -> TmpfsFiles:
        return self

    def __exit__(self, *_: object) -> None:
        while self._places:
            os.close(self._places.pop().fd)
