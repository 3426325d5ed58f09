"""A file system on a loop device that becomes read-only under open files, as a failing disk does.

tmpfs will not do here: it refuses to become read-only while anything is open for writing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.parts import require

COMMAND_S = 60.0
_REPAIRED = 1  # e2fsck: there were errors, and they are mended


class FrailDisk:
    """An ext4 of 64 MB, mounted at `mount`."""

    def __init__(self, folder: Path) -> None:
        self.mount = folder / "disk"
        self._image = folder / "image"
        self.mount.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(64 << 20)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._attach()

    def break_down(self) -> None:
        """Nothing can be written from now on, also not to what is open."""
        _run("mount", "-o", "remount,abort", str(self.mount))

    def mend(self) -> None:
        """Make it writable again; nobody may have a file of it open."""
        _run("umount", str(self.mount))
        _run("e2fsck", "-f", "-y", str(self._image), most=_REPAIRED)
        self._attach()

    def close(self) -> None:
        _run("umount", "-l", str(self.mount))

    def _attach(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.mount))


@contextmanager
def frail_disk(folder: Path) -> Iterator[FrailDisk]:
    for part in ("linux", "root", "loop devices"):
        require(part)
    disk = FrailDisk(folder)
    try:
        yield disk
    finally:
        disk.close()


def _run(*words: str, most: int = 0) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S)
    assert done.returncode <= most, f"{' '.join(words)}: {done.stdout}{done.stderr}"
