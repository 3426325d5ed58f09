"""What a job came to, as its sender sees it: the signed answer, and the files the job wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET

from airlox.errors import StorageError, UsageError
from airlox.protocol.archive import ZipEntry, inspect_zip, read_entry
from airlox.protocol.item import ItemRef
from airlox.protocol.job import (
    CHANGES_NAME,
    AppliedLimits,
    Cause,
    Egress,
    Env,
    LeftOut,
    LiveTotals,
    Peak,
)
from airlox.protocol.job import Result as ResultMeta
from airlox.protocol.policy import MIME_OF

if TYPE_CHECKING:
    from pathlib import Path

    from airlox.client.pulling import Change, Pulled, Returned
    from airlox.client.saving import Content

CONTAINER: Final = "out.zip"
"""Out files that are no images at the top travel in one archive of this name."""
STATUS_OF_RELAY_REASON: Final = {"cancelled": "cancelled"}


class OutFile(msgspec.Struct, frozen=True):
    """A file that came with a result. `data` is fetched when it is asked for."""

    name: str
    size: int
    ref: ItemRef
    _load: Callable[[ItemRef], bytes | None]

    @property
    def data(self) -> bytes | None:
        """The bytes, or None when they cannot be had (evicted, or not as referenced)."""
        return self._load(self.ref)

    def __repr__(self) -> str:
        return f"OutFile(name={self.name!r}, size={self.size})"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A job's outcome.

    `signed` results are the runner's, bound to the job; an unsigned one is only the relay's word
    on a job that never got a result. Fields from `cause` on are None in floor sessions. Times are
    in milliseconds, sizes in bytes, `peak_mem_mb` in MB.
    """

    job: str
    status: str
    exit_code: int | None
    reason: str | None
    stdout: str = ""
    stderr: str = ""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    wall_ms: int = 0
    peak_mem_mb: int = 0
    out_files: tuple[OutFile, ...] = ()
    code_sha256: str | None = None
    input_sha256: str | None = None
    runner: str | None = None
    runner_name: str | None = None
    signed: bool = True
    others: tuple[str, ...] = ()
    """Further results bound to this job, by item id: the relay gave it to several runners."""
    cause: Cause | None = None
    egress: Egress | None = None
    env: Env | None = None
    left_out: tuple[LeftOut, ...] = ()
    limits: AppliedLimits | None = None
    live: LiveTotals | None = None
    peak: Peak | None = None
    tree: str | None = None
    returned: Returned | None = None
    """What the job changed in its tree, where it was asked to return that."""

    @property
    def changes(self) -> tuple[Change, ...]:
        """Files that the job changed in its tree, of those that were asked for with `pull`.

        Raises UsageError when none were, ProtocolError when the runner returns what it may not,
        StorageError when they can no longer be had.
        """
        return self._returned().changes

    def apply_changes(self, folder: str | os.PathLike[str] | None = None) -> tuple[Pulled, ...]:
        """Bring what the job changed into the tree of `folder`, by default where it was sent from;
        what became of each file.

        A file that changed here meanwhile is left alone, and the job's version saved beside it.
        Raises as `changes`.
        """
        return self._returned().apply(folder)

    def patch(self, folder: str | os.PathLike[str] | None = None) -> bytes:
        """What the job changed, as a patch for `git apply`; it fits the tree as it was sent.

        The old contents come from the tree of `folder`, by default where it was sent from. Raises
        as `changes`, and TreeError when one is not there any more, or git is not installed.
        """
        from airlox.client.pulling import whole

        return whole(self._returned().patch(folder))

    @property
    def ok(self) -> bool:
        """Whether the job ran to its end with exit code 0."""
        return self.status == "completed" and self.exit_code == 0

    def out_file(self, name: str) -> OutFile:
        """The out file as it travelled. Raises UsageError when there is none of that name."""
        for file in self.out_files:
            if file.name == name:
                return file
        raise self._no_such(name)

    def paths(self) -> list[str]:
        """Paths of all files the job wrote, whether they came alone or in the archive."""
        return [path for path, _ in self._contents()]

    def read(self, path: str) -> bytes:
        """The bytes of a file the job wrote, by its path below `$AIRLOX_OUT`.

        Raises UsageError when there is none, StorageError when it can no longer be had.
        """
        for found, load in self._contents():
            if found == path:
                return load()
        raise self._no_such(path)

    def save_to(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write all out files but `unsaved` below `folder`; nothing is overwritten (see
        `safefs.save_new`). Raises StorageError.
        """
        from airlox.client import saving

        kept = (content for content in self._contents() if not _makes_repository(content[0]))
        return saving.save_below(folder, kept)

    def unsaved(self) -> list[str]:
        """Paths that are only to be had by `read`: saved, they would make a folder a git repository
        or change one, and its settings name programs for git to run."""
        return [path for path in self.paths() if _makes_repository(path)]

    def save_at(self, folder_fd: int, unpacked: str) -> list[str]:
        """Write images and archives as they travelled into an open folder, and what `out.zip`
        holds into a new folder called `unpacked` beside them; their paths from the open folder.

        What else a runner sends, under a name of its choice that a tool may look for (`Makefile`),
        goes into `unpacked` too. Nothing is overwritten, no link is followed. What would make a
        folder a git repository (`unsaved`) is left out. Raises StorageError, and ValidationError
        for an archive that is unsafe.
        """
        from airlox.client import saving

        alone: list[Content] = [(f.name, partial(bytes_of, f)) for f in self.out_files]
        travelled = [content for content in alone if _is_plain(content[0])]
        # read whole first: an unsafe archive is refused before anything is there
        packed: list[Content] = [
            (entry.path, load)
            for file in self.out_files
            if file.name == CONTAINER
            for entry, load in _packed(file)
        ]
        packed += [content for content in alone if not _is_plain(content[0])]
        inside = [
            (f"{unpacked}/{path}", load) for path, load in packed if not _makes_repository(path)
        ]
        saved = saving.save_in(folder_fd, travelled)
        if inside:
            saving.make_new_folder(folder_fd, unpacked)
            saved += saving.save_in(folder_fd, inside)
        return saved

    def texts(self, *, file_bytes: int, total_bytes: int) -> dict[str, str]:
        """The small text files in the archive, by path: each of at most `file_bytes`, together at
        most `total_bytes`. Raises StorageError when they can no longer be had."""
        found: dict[str, str] = {}
        room = total_bytes
        for file in self.out_files:
            for entry, load in _packed(file) if file.name == CONTAINER else ():
                text = _text_of(load()) if entry.size <= min(file_bytes, room) else None
                if text is not None:
                    found[entry.path] = text
                    room -= entry.size
        return found

    def _returned(self) -> Returned:
        if self.returned is None:
            from airlox.client.pulling import asked_nothing

            raise asked_nothing()
        return self.returned

    def _contents(self) -> Iterator[Content]:
        for file in self.out_files:
            if file.name == CONTAINER:
                yield from ((entry.path, load) for entry, load in _packed(file))
            else:
                yield file.name, lambda file=file: bytes_of(file)  # type: ignore[misc]

    def _no_such(self, name: str) -> UsageError:
        known = ", ".join(self.paths()[:8])
        return UsageError(
            f"the job wrote no file {name[:80]!r}",
            code="no_such_out_file",
            hint=f"it wrote: {known}" if known else "it wrote nothing to $AIRLOX_OUT",
        )


def signed_result(
    meta: ResultMeta,
    *,
    runner: str,
    runner_name: str,
    others: tuple[str, ...],
    load: Callable[[ItemRef], bytes | None],
    returned: Callable[[OutFile | None], Returned] | None = None,
) -> Result:
    """A result that the view bound to its job, in the caller's form.

    `returned` makes what it has of the file with the tree's changes, for a job that asked for it.
    """
    files = tuple(OutFile(o.name, o.size, o.item, load) for o in meta.out_files)
    changes = None
    if returned is not None:
        changes = next((file for file in files if file.name == CHANGES_NAME), None)
        files = tuple(file for file in files if file is not changes)
    return Result(
        job=meta.job.id,
        status=meta.status.value,
        exit_code=meta.exit_code,
        reason=meta.reason,
        stdout=meta.stdout,
        stderr=meta.stderr,
        stdout_truncated=meta.stdout_truncated,
        stderr_truncated=meta.stderr_truncated,
        wall_ms=meta.wall_ms,
        peak_mem_mb=meta.peak_mem_mb,
        out_files=files,
        code_sha256=meta.code_sha256,
        input_sha256=meta.input_sha256,
        runner=runner,
        runner_name=runner_name,
        others=others,
        cause=None if meta.cause is UNSET else meta.cause,
        egress=None if meta.egress is UNSET else meta.egress,
        env=None if meta.env is UNSET else meta.env,
        left_out=() if meta.left_out is UNSET else meta.left_out,
        limits=None if meta.limits is UNSET else meta.limits,
        live=None if meta.live is UNSET else meta.live,
        peak=None if meta.peak is UNSET else meta.peak,
        tree=None if meta.tree is UNSET else meta.tree,
        returned=None if returned is None else returned(changes),
    )


def unsigned_result(job: str, reason: str, runner: str | None) -> Result:
    """The relay's word that a job ended without a result."""
    status = STATUS_OF_RELAY_REASON.get(reason, "failed")
    return Result(
        job=job, status=status, exit_code=None, reason=reason, runner=runner, signed=False
    )


def bytes_of(file: OutFile) -> bytes:
    """Raises StorageError when they can no longer be had."""
    data = file.data
    if data is None:
        raise StorageError(
            f"out file {file.name!r} can no longer be had",
            code="evicted",
            hint="another participant may still hold it; try again later",
        )
    return data


def _packed(file: OutFile) -> Iterator[tuple[ZipEntry, Callable[[], bytes]]]:
    """The files in the archive among the out files."""
    archive = bytes_of(file)
    for entry in inspect_zip(archive):
        if not entry.is_dir:
            yield entry, lambda e=entry: _unzip(archive, e)  # type: ignore[misc]


def _is_plain(name: str) -> bool:
    """Whether a runner that means well sends a file of this name as it is."""
    return (
        name in (CONTAINER, CHANGES_NAME) or os.path.splitext(name)[1].lower() in MIME_OF["image"]
    )


def _makes_repository(path: str) -> bool:
    """Whether git may take the folder around this file for a repository: one needs no `.git`."""
    parts = path.lower().split("/")
    return ".git" in parts or parts[-1] == "head"


def _unzip(archive: bytes, entry: ZipEntry) -> bytes:
    return b"".join(read_entry(archive, entry))


def _text_of(data: bytes) -> str | None:
    """What a file says, unless it is no text in UTF-8."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
