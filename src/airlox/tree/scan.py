"""Which files of a folder make up its tree: exactly what git would commit or add right now.

Tracked files as they stand in the work tree (deleted ones absent), and untracked ones that are not
ignored, or are included all the same. Outside git: every file. Links are kept as links, the
executable bit is kept, nothing else of the mode. Files of Git LFS go as the pointers that git
would commit, unless their content is asked for. Named in `left_out`, with the reason: submodules
and nested repositories, FIFOs, sockets and devices, what the person excludes, folders that cannot
be read.

A credential-named file stops the scan (`rules.py`). No content is read here but of the few files
whose name is doubtful; `read.py` does that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from airlox import safefs
from airlox.errors import StorageError, TreeError, ValidationError
from airlox.tree import git, rules
from airlox.tree.beneath import Folders, Identity, identity, open_regular, opened_root
from airlox.tree.index import ENTRIES, Kind
from airlox.tree.paths import PATH_BYTES, check_component, check_folder, shown, split
from airlox.tree.stamps import Stamp, stamp_of

if TYPE_CHECKING:
    AnyPath = str | os.PathLike[str]

NAMED: Final = 10
"""Most credential-named files an error names."""

_SPECIAL: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_ATTRIBUTES: Final = b".gitattributes"
_NESTED: Final = "a nested git repository"
_NO_FILES: Final = "an empty folder"
_EMPTY: Final = "a submodule that is not checked out, or an empty folder"


class Place(NamedTuple):
    """The top of the tree a folder belongs to, and the folder's path in it ("" for the top)."""

    root: str
    sub: str


class Found(NamedTuple):
    """A file or link of the tree, as it stood when it was seen. `size` in bytes.

    `as_pointer`: what goes is a pointer to its content in Git LFS.
    """

    path: bytes
    kind: Kind
    size: int
    stamp: Stamp
    as_pointer: bool = False


class LeftOut(NamedTuple):
    """Something that stays here, and why."""

    path: bytes
    reason: str


class Scan(NamedTuple):
    """The files of a tree, sorted by path, and what was left out. `root_is` says which folder the
    root was, where it must still be that one when it is read again."""

    root: str
    files: tuple[Found, ...]
    left_out: tuple[LeftOut, ...]
    root_is: Identity | None = None

    @property
    def pointers(self) -> tuple[bytes, ...]:
        """Files that go as pointers to their content."""
        return tuple(file.path for file in self.files if file.as_pointer)


class Choice(NamedTuple):
    """What the person chose of a tree.

    `allow` lists credential-named files that may go, by name or by path in the tree; `exclude`
    patterns as in `.gitignore`; `include` patterns of ignored files that go all the same (`*` does
    not match `/`, `**` does; a folder stands for all in it); `lfs` sends the content of Git LFS.
    """

    allow: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    lfs: bool = False


EVERYTHING: Final = Choice()
"""Nothing but the rules decides."""


def root_of(path: AnyPath) -> Place:
    """The top of the git work tree that holds the folder `path`; outside git, `path` itself."""
    folder = os.path.realpath(path)
    top = folder
    while not git.is_repository(top):
        parent = os.path.dirname(top)
        if parent == top:
            return Place(folder, "")
        top = parent
    sub = os.path.relpath(folder, top)
    return Place(top, "" if sub == "." else sub)


def scan(root: AnyPath, choice: Choice = EVERYTHING) -> Scan:
    """The tree of the folder `root`.

    Raises TreeError; its code is `tree_credentials` when credential-named files are neither
    allowed nor excluded, `tree_include` when an included pattern matches nothing.
    """
    top = os.path.realpath(root)
    excludes = load_excludes(top, choice)
    in_git = git.is_repository(root_of(top).root)
    with opened_tree(top) as root_fd:
        root_is = identity(root_fd)
        if in_git:
            listing = git.list_files(top)
            left_out = [LeftOut(path, "unreadable") for path in listing.unreadable]
            paths = sorted({*listing.paths, *_included(top, choice.include)})
        else:
            _refuse_home(top)
            left_out = []
            paths = sorted(_walk(root_fd, excludes, left_out))
        files = _Collector(root_fd, excludes, left_out).collect(paths)
        _refuse_credentials(root_fd, files, choice.allow)
    if in_git and not choice.lfs:
        files = _with_pointers(top, files)
    return Scan(top, tuple(files), tuple(sorted(left_out)), root_is)


@contextmanager
def opened_tree(root: str, root_is: Identity | None = None) -> Iterator[int]:
    """Descriptor of the root of a tree that is to be sent, which is `root_is` where that is known:
    another folder may have been put in its place."""
    try:
        with opened_root(root) as root_fd:
            if root_is is not None and identity(root_fd) != root_is:
                raise replaced(root)
            yield root_fd
    except OSError as e:
        raise TreeError(f"cannot read {root}: {e.strerror}", code="tree_unreadable") from None


def replaced(root: str) -> TreeError:
    """Another folder stands where a tree was."""
    return TreeError(
        f"{root} was replaced while it was read",
        code="tree_changed",
        hint="run the command again once nothing writes to it",
    )


def _included(top: str, patterns: Sequence[str]) -> tuple[bytes, ...]:
    """Ignored files that go all the same. A pattern stands also for all that is in a folder."""
    found: set[bytes] = set()
    for pattern in patterns:
        plain = pattern.strip("/")
        matching = git.list_ignored(top, [plain, f"{plain}/**"])
        if not matching:
            raise TreeError(
                f"--tree-include {pattern[:80]!r} matches no ignored file",
                code="tree_include",
                hint="`*` stands for a part of a name, `**` for folders; other files go anyway",
            )
        found.update(matching)
    return tuple(found)


def _with_pointers(top: str, files: list[Found]) -> list[Found]:
    """Files of Git LFS marked; where no attributes are, nobody is asked."""
    told = any(split(file.path)[1] == _ATTRIBUTES for file in files)
    if not told and not os.path.exists(git.attributes_of(top)):
        return files
    kept = git.in_lfs(top, (file.path for file in files if file.kind is not Kind.LINK))
    return [file._replace(as_pointer=file.path in kept) for file in files]


class _Collector:
    """Turns listed paths into what stands there now."""

    def __init__(self, root_fd: int, excludes: rules.Excludes, left_out: list[LeftOut]) -> None:
        self._root_fd = root_fd
        self._excludes = excludes
        self._left_out = left_out
        self._sound_folders: set[bytes] = set()

    def collect(self, paths: Iterable[bytes]) -> list[Found]:
        files: list[Found] = []
        with Folders(self._root_fd) as folders:
            for path in paths:
                folder, name = split(path.rstrip(b"/"))
                try:
                    folder_fd = folders.fd(folder)
                    found = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
                except (FileNotFoundError, NotADirectoryError):
                    continue  # deleted, or its folder is now a file or a link
                except OSError as e:
                    self._left_out.append(LeftOut(path, f"unreadable: {e.strerror}"))
                    continue
                file = self._judge(path, found, folder_fd, name)
                if file is not None:
                    files.append(file)
        if len(files) > ENTRIES:
            raise TreeError(f"the tree has over {ENTRIES} files", code="tree_too_large")
        return files

    def _judge(
        self, path: bytes, found: os.stat_result, folder_fd: int, name: bytes
    ) -> Found | None:
        reason = self._excludes.reason(os.fsdecode(path)) if self._excludes else None
        form = stat.S_IFMT(found.st_mode)
        if reason is None and form == stat.S_IFDIR:
            reason = _folder_reason(folder_fd, name)
        elif reason is None:
            reason = _SPECIAL.get(form) or self._path_reason(path)
        if reason is not None:
            if reason:
                self._left_out.append(LeftOut(path, reason))
            return None
        if form == stat.S_IFLNK:
            kind = Kind.LINK
        else:
            kind = Kind.EXECUTABLE if found.st_mode & stat.S_IXUSR else Kind.FILE
        return Found(path, kind, found.st_size, stamp_of(found))

    def _path_reason(self, path: bytes) -> str | None:
        """Why a tree cannot hold `path`, or None; a folder is looked at once for all its files."""
        folder, name = split(path)
        try:
            if folder in self._sound_folders and len(path) <= PATH_BYTES:
                check_component(name)
            else:
                check_folder(path)
        except ValidationError as e:
            return e.message
        if folder:
            self._sound_folders.add(folder)
        return None


def _folder_reason(folder_fd: int, name: bytes) -> str:
    """Why git named a folder; "" when untracked files took the place of a tracked one."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder_fd)
    except OSError as e:
        return f"unreadable: {e.strerror}"
    try:
        names = os.listdir(fd)
    finally:
        os.close(fd)
    if ".git" in names:
        return _NESTED
    return "" if names else _EMPTY


def _path_reason(path: bytes) -> str | None:
    try:
        check_folder(path)
    except ValidationError as e:
        return e.message
    return None


def _walk(root_fd: int, excludes: rules.Excludes, left_out: list[LeftOut]) -> Iterator[bytes]:
    """Every path below the root that is not a plain folder; for trees outside git."""
    waiting = [b""]
    with Folders(root_fd) as folders:
        while waiting:
            folder = waiting.pop()
            prefix = folder + b"/" if folder else b""
            try:
                entries = os.scandir(folders.fd(folder))
            except OSError as e:
                left_out.append(LeftOut(folder, f"unreadable: {e.strerror}"))
                continue
            empty = bool(folder)
            with entries:
                for entry in entries:
                    empty = False
                    path = prefix + os.fsencode(entry.name)
                    if not entry.is_dir(follow_symlinks=False):
                        yield path
                    elif (reason := _pruned(path, folders.fd(folder), excludes)) is None:
                        waiting.append(path)
                    elif reason:
                        left_out.append(LeftOut(path, reason))
            if empty:
                left_out.append(LeftOut(prefix, _NO_FILES))


def _pruned(path: bytes, folder_fd: int, excludes: rules.Excludes) -> str | None:
    """Why a folder outside git is not entered ("" for `.git` itself), or None."""
    name = split(path)[1]
    if name == b".git":
        return ""
    try:
        os.stat(name + b"/.git", dir_fd=folder_fd, follow_symlinks=False)
    except OSError:
        return _path_reason(path) or excludes.reason(os.fsdecode(path) + "/")
    return _NESTED


def _refuse_home(top: str) -> None:
    if top in ("/", os.path.realpath(os.path.expanduser("~"))):
        raise TreeError(
            f"{top} is not a project: all of it would be sent",
            code="tree_root",
            hint="run this in the folder of a project",
        )


def load_excludes(top: str, choice: Choice) -> rules.Excludes:
    """What the person keeps out of the tree `top`. Raises TreeError."""
    path = os.path.join(top, rules.IGNORE_FILE)
    try:
        lines = safefs.read_bounded(path, rules.IGNORE_BYTES).decode("utf-8", "surrogateescape")
    except StorageError as e:
        if e.code != "not_found":
            raise TreeError(e.message, code="tree_pattern") from None
        lines = ""
    return rules.Excludes(choice.exclude, lines.splitlines(), choice.include)


def _refuse_credentials(root_fd: int, files: Sequence[Found], allow: Sequence[str]) -> None:
    allowed = {os.fsencode(name) for name in allow}
    refused: list[bytes] = []
    with Folders(root_fd) as folders:
        for file in files:
            folder, name = split(file.path)
            if file.kind is Kind.LINK or name in allowed or file.path in allowed:
                continue
            if rules.is_credential_name(folder, name) or (
                rules.is_doubtful_name(name) and _shows_login(folders, folder, name)
            ):
                refused.append(file.path)
    if refused:
        raise _credentials_error(refused)


def _shows_login(folders: Folders, folder: bytes, name: bytes) -> bool:
    try:
        fd, _ = open_regular(folders.fd(folder), name)
    except OSError:
        return True  # it cannot be looked into, so it is asked about
    try:
        return rules.holds_login(name, os.read(fd, rules.LOOK_BYTES))
    finally:
        os.close(fd)


def _credentials_error(refused: Sequence[bytes]) -> TreeError:
    names = ", ".join(shown(path) for path in refused[:NAMED])
    more = f" and {len(refused) - NAMED} more" if len(refused) > NAMED else ""
    return TreeError(
        f"the tree holds files that look like credentials: {names}{more}",
        code="tree_credentials",
        hint="--tree-allow NAME sends one all the same, --tree-exclude NAME leaves it here",
    )
