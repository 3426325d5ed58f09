"""File systems on which the times of a file do not tell whether its bytes changed.

Those that live in memory take what is written through a mapping without noticing, where the page
was read before: neither time changes. What stands there has to be read to be known.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    AnyPath = str | bytes | os.PathLike[str]

_MOUNTS: Final = "/proc/self/mountinfo"
_MOUNTS_BYTES: Final = 4 << 20
_FORGETFUL: Final = (b"tmpfs", b"ramfs")


def keeps_times(path: AnyPath, *, mounts: str = _MOUNTS) -> bool:
    """Whether a file in the folder `path` gets new times with new bytes. Where the system tells
    nothing of its mounts it is taken to."""
    try:
        device = os.stat(path).st_dev
        with open(mounts, "rb") as file:
            lines = file.read(_MOUNTS_BYTES).splitlines()
    except OSError:
        return True
    number = b"%d:%d" % (os.major(device), os.minor(device))
    return not any(_kind_of(line) in _FORGETFUL for line in lines if line.split()[2:3] == [number])


def _kind_of(line: bytes) -> bytes:
    """The type of the file system in a line of mountinfo."""
    kind, _, _ = line.partition(b" - ")[2].partition(b" ")
    return kind
