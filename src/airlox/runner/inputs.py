"""Input files of a job, written into the folder it starts in.

Rules
- Nothing is overwritten: a name that is taken is a refusal, the job's own program included.
- ZIP archives are unpacked; what they hold at the top is placed like a file.
- The folder may be one that earlier jobs of the same sender wrote to: it is reached by
  descriptors, without following a link.
- In a kept workspace, what was placed is noted before and removed after the job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from airlox import safefs
from airlox.errors import EncodingError, JobRefused, StorageError
from airlox.protocol import canonical
from airlox.protocol.archive import inspect_zip
from airlox.runner.workspace import Owner, Places, check_room
from airlox.sandbox.base import Limits
from airlox.sandbox.collect import printable, remove_tree
from airlox.tree.beneath import (
    FOLDER_FLAGS,
    NEW_FILE_FLAGS,
    Folders,
    open_regular,
    opened_root,
    remove,
    storage_error,
    workspace_errors,
    write_all,
)
from airlox.tree.unzip import extract_zip

SCRIPT_NAME: Final = ".airlox-script"
INPUT_BYTES: Final = Limits(timeout_s=0, memory_bytes=None).disk_bytes
"""Inputs, unpacked, come to no more than a job may write."""
_NOTE_BYTES: Final = 4 << 20


class Placing:
    """Puts files into the start folder of one job. Blocking."""

    def __init__(self, places: Places, start: str, owner: Owner, floor_bytes: int) -> None:
        """`start` is relative to the work folder; empty for that itself. So many bytes stay free
        on the disk."""
        self._places = places
        self._start = start
        self._owner = owner
        self._floor_bytes = floor_bytes
        self._room_bytes = INPUT_BYTES
        self._names: list[str] = []
        self._note = None if places.tree_state is None else places.tree_state.with_name("placed")

    def clear_leftovers(self) -> None:
        """Remove what a job placed whose runner died before it could tidy up."""
        if self._note is None or not self._note.exists():
            return
        with suppress(StorageError, EncodingError):
            data = safefs.read_bounded(self._note, _NOTE_BYTES)
            start, names = canonical.decode_loose(data, tuple[str, list[str]], "note of inputs")
            self._remove(start, names)
        self._note.unlink()

    def check_start(self) -> None:
        """Raises JobRefused unless the start folder is there."""
        with self._folder():
            pass

    def has(self, name: str, content: bytes) -> bool:
        """Whether the start folder has this very file already."""
        with self._folder() as folder_fd:
            try:
                fd, found = open_regular(folder_fd, os.fsencode(name))
            except OSError:
                return False
            with os.fdopen(fd, "rb") as file:
                return found.st_size == len(content) and file.read(len(content)) == content

    def add_file(self, name: str, content: bytes) -> None:
        """Write a new file. Raises JobRefused when the name is taken."""
        self._take_room(len(content))
        self._announce([name])
        with workspace_errors(), self._folder() as folder_fd:
            try:
                _write(folder_fd, name, content, 0o644, self._owner)
            except FileExistsError:
                raise _taken(name) from None

    def add_archive(self, data: bytes) -> None:
        """Unpack a ZIP archive. Raises JobRefused when a name at its top is taken."""
        self._take_room(sum(entry.size for entry in inspect_zip(data)))
        staging = self._places.job / "unzip"
        remove_tree(staging)
        safefs.make_private_dir(staging)
        extract_zip(data, staging)
        names = sorted(os.listdir(staging))
        with workspace_errors(), self._folder() as folder_fd:
            for name in names:
                if _exists(folder_fd, name):
                    raise _taken(name)
            self._announce(names)
            for name in names:
                _give(staging / name, self._owner)
                os.rename(staging / name, name, dst_dir_fd=folder_fd)
        remove_tree(staging)

    def remove_all(self) -> None:
        """Take out again what was placed in a workspace that stays."""
        if self._note is not None and self._names:
            self._remove(self._start, self._names)
            self._note.unlink(missing_ok=True)

    def _take_room(self, size: int) -> None:
        self._room_bytes -= size
        if self._room_bytes < 0:
            raise _too_much(f"the inputs come to more than {INPUT_BYTES >> 20} MB")
        check_room(self._places.job, self._floor_bytes, size)

    def _announce(self, names: list[str]) -> None:
        self._names += names
        note = msgspec.json.encode((self._start, self._names))
        if len(note) > _NOTE_BYTES:
            raise _too_much("the inputs hold too many names")
        if self._note is not None:
            safefs.write_private(self._note, note)

    def _remove(self, start: str, names: list[str]) -> None:
        pit = self._places.job / "pit"
        safefs.make_private_dir(pit)
        with (
            suppress(OSError, JobRefused),
            opened_root(pit) as pit_fd,
            _opened(self._places.work, start) as folder_fd,
        ):
            for name in names:
                remove(folder_fd, os.fsencode(name), pit_fd)

    @contextmanager
    def _folder(self) -> Iterator[int]:
        with _opened(self._places.work, self._start) as folder_fd:
            yield folder_fd


def place_script(home: Path, script: str, owner: Owner) -> None:
    """Write the script of a shell job into its home folder, over whatever stands there."""
    remove_tree(home / SCRIPT_NAME)
    with workspace_errors(), opened_root(home) as home_fd:
        _write(home_fd, SCRIPT_NAME, script.encode(), 0o755, owner)


@contextmanager
def _opened(work: Path, start: str) -> Iterator[int]:
    """Descriptor of the start folder. Raises JobRefused when it is not a folder there."""
    try:
        root_fd = os.open(work, FOLDER_FLAGS)
    except OSError as e:
        raise storage_error("open the folder of a job", e) from None
    try:
        with Folders(root_fd) as folders:
            try:
                folder_fd = folders.fd(os.fsencode(start))
            except OSError:
                raise JobRefused(
                    f"the start folder {printable(start)} is not in the tree",
                    code="no_start_folder",
                    hint="start in a folder that has files which are sent",
                ) from None
            yield folder_fd
    finally:
        os.close(root_fd)


def _write(folder_fd: int, name: str, content: bytes, mode: int, owner: Owner) -> None:
    fd = os.open(name, NEW_FILE_FLAGS, mode, dir_fd=folder_fd)
    try:
        write_all(fd, content)
        os.fchmod(fd, mode)
        if owner is not None:
            os.fchown(fd, *owner)
    finally:
        os.close(fd)


def _give(path: Path, owner: Owner) -> None:
    """Hand a tree that only we could write to over to the job's user."""
    if owner is None:
        return
    os.lchown(path, *owner)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            os.lchown(os.path.join(folder, name), *owner)


def _exists(folder_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _too_much(what: str) -> JobRefused:
    return JobRefused(what, code="inputs_too_large", hint="send less, or fewer files, with one job")


def _taken(name: str) -> JobRefused:
    return JobRefused(
        f"the name {printable(name)} of an input is taken in the job's folder",
        code="input_collision",
        hint="rename the input, or leave out the other file of that name",
    )
