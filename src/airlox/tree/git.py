"""Asking git which files of a folder it would commit or add right now.

git runs with a time-out, a bounded answer, no terminal and an environment without `GIT_*`: a
variable left by a hook would otherwise point it at another repository. The user's own settings
(global ignore file, safe folders) hold. `core.fsmonitor` is off: it names a program to run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from signal import SIGKILL
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from airlox.errors import TreeError
from airlox.tree.paths import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import Popen
    from threading import Event

TIMEOUT_S: Final = 120.0
ANSWER_BYTES: Final = 512 * 1024 * 1024

_GIT: Final = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
_LIST: Final = ("ls-files", "--cached", "--others", "--exclude-standard", "-z")
_OTHERS: Final = ("ls-files", "--others", "--exclude-standard", "-z")
_IGNORED: Final = ("ls-files", "--others", "--ignored", "--exclude-standard", "-z")
_FILTER: Final = ("check-attr", "-z", "--stdin", "filter")
_FLAGS: Final = ("ls-files", "-v", "-s")
_STAT: Final = (
    *("-c", "core.trustctime=true", "-c", "core.checkStat=default", "-c", "core.fileMode=true"),
    *("-c", "core.symlinks=true", "-c", "core.ignoreStat=false"),
)
"""Every sign of a change counts, whatever the settings say."""
_CHANGED: Final = ("diff-files", "--raw", "-z", "--no-renames", "--ignore-submodules=none")
_RAW: Final = (
    *("-c", "core.autocrlf=false", "-c", "core.fileMode=true", "-c", "core.symlinks=true"),
    *("-c", "diff.noPrefix=false", "-c", "diff.mnemonicPrefix=false", "-c", "diff.relative=false"),
)
_DIFF: Final = (
    *("diff", "--no-index", "--no-prefix", "--binary", "--full-index", "--no-renames", "-U3"),
    *("--no-color", "--no-ext-diff", "--no-textconv", "--"),
)
_AS_THEY_ARE: Final = b"* -text !diff !eol -ident -filter -working-tree-encoding\n"
"""Attributes under which bytes are compared as they stand."""
_COMPLAINT_BYTES: Final = 64 * 1024
_POINTER_BYTES: Final = 4096
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_UNREADABLE: Final = re.compile(rb"^warning: could not open directory '(.*)/': ", re.MULTILINE)


_NOT_AS_IT_LOOKS: Final = re.compile(rb"^[a-zS] |^. 160000 ", re.MULTILINE)
"""Lines of `ls-files -v -s`: files that git does not look at, and submodules."""


class Listing(NamedTuple):
    """Paths as git names them (a nested repository ends with `/`); folders it could not read."""

    paths: tuple[bytes, ...]
    unreadable: tuple[bytes, ...]


def is_repository(folder: str) -> bool:
    """Whether `folder` is the top of a git work tree."""
    marker = os.path.join(folder, ".git")
    return os.path.isfile(marker) or os.path.isfile(os.path.join(marker, "HEAD"))


def list_files(folder: str, *, timeout_s: float = TIMEOUT_S) -> Listing:
    """Tracked files and untracked ones that are not ignored, below `folder`, each once."""
    answer, complaint = _ask(folder, _LIST, timeout_s)
    return Listing(_distinct(answer.split(b"\0")), tuple(_UNREADABLE.findall(complaint)))


def list_changed(folder: str) -> tuple[bytes, ...]:
    """Tracked files of a whole work tree that do not look as git's index remembers them.

    Nothing but the look counts: no content is compared, unless the index is no older than the
    file (then the look says nothing).
    """
    answer, _ = _ask(folder, (*_STAT, *_CHANGED), TIMEOUT_S)
    return _distinct(answer.split(b"\0")[1::2])


def list_others(folder: str) -> Listing:
    """Untracked files that are not ignored."""
    answer, complaint = _ask(folder, _OTHERS, TIMEOUT_S)
    return Listing(_distinct(answer.split(b"\0")), tuple(_UNREADABLE.findall(complaint)))


def list_ignored(folder: str, patterns: Sequence[str]) -> tuple[bytes, ...]:
    """Ignored files that match one of the patterns (as git's `glob` pathspecs, from the top)."""
    specs = [f":(top,glob){pattern}" for pattern in patterns]
    answer, _ = _ask(folder, (*_IGNORED, "--", *specs), TIMEOUT_S)
    return _distinct(answer.split(b"\0"))


def list_ignored_folders(folder: str) -> tuple[bytes, ...]:
    """What is ignored, a folder that is ignored as a whole as one path that ends with `/`."""
    answer, _ = _ask(folder, (*_IGNORED, "--directory"), TIMEOUT_S)
    return _distinct(answer.split(b"\0"))


def ignore_rules(folder: str, paths: Sequence[bytes]) -> dict[bytes, str]:
    """For ignored paths the rule that says so, as `file:line: pattern`."""
    words = ("check-ignore", "--verbose", "-z", "--stdin")
    answer, _ = _ask(folder, words, TIMEOUT_S, said=b"\0".join(paths) + b"\0")
    fields = answer.split(b"\0")
    return {
        path: f"{shown(source)}:{shown(line)}: {shown(pattern)}"
        for source, line, pattern, path in zip(*(fields[n::4] for n in range(4)), strict=False)
    }


def in_lfs(folder: str, paths: Iterable[bytes]) -> frozenset[bytes]:
    """Those of the files whose content git would keep in Git LFS."""
    answer, _ = _ask(folder, _FILTER, TIMEOUT_S, said=b"\0".join(paths) + b"\0")
    fields = answer.split(b"\0")
    pairs = zip(fields[0::3], fields[2::3], strict=False)
    return frozenset(path for path, value in pairs if value == b"lfs")


def is_plain(folder: str) -> bool:
    """Whether git looks at every file of the index, and none is a submodule."""
    answer, _ = _ask(folder, _FLAGS, TIMEOUT_S)
    return _NOT_AS_IT_LOOKS.search(answer) is None


def versions_of(folder: str, path: bytes) -> Iterator[bytes]:
    """The contents that git has of a file of a work tree: in its index, then in the last commit."""
    for version in (b":0:", b"HEAD:"):
        try:
            answer, _ = _ask(folder, ("cat-file", "blob", os.fsdecode(version + path)), TIMEOUT_S)
        except TreeError:
            continue  # it has none there
        yield answer


def difference(folder: str, old: str, new: str) -> bytes:
    """A patch that makes what is in one folder beneath `folder` of what is in another; it becomes
    a repository, so that nothing but our own attributes holds. Raises TreeError."""
    try:
        _ask(folder, ("init", "--quiet", "--template="), TIMEOUT_S)
        attributes = attributes_of(folder)
        os.mkdir(os.path.dirname(attributes))
        with open(attributes, "wb") as file:
            file.write(_AS_THEY_ARE)
        answer, _ = _ask(folder, (*_RAW, *_DIFF, old, new), TIMEOUT_S)
    except TreeError as error:
        if error.code != "missing_git":
            raise
        raise TreeError(
            "a patch is made by git, which is not installed",
            code="missing_git",
            hint="install git, or pull the files without a patch",
        ) from None
    return answer


def index_of(folder: str) -> str:
    """Where the index of a work tree is."""
    return os.path.join(_git_folder(folder), "index")


def attributes_of(folder: str) -> str:
    """Where attributes are that are not part of the tree."""
    return os.path.join(_git_folder(folder), "info", "attributes")


def _git_folder(folder: str) -> str:
    marker = os.path.join(folder, ".git")
    if not os.path.isfile(marker):
        return marker
    with open(marker, "rb") as file:
        named = os.fsdecode(file.read(_POINTER_BYTES).removeprefix(b"gitdir:").strip())
    return os.path.join(folder, named)


def ask(
    folder: str, words: Iterable[str], *, said: bytes = b"", places: Mapping[str, str] = _NONE
) -> bytes:
    """What a command of git answers to what it is told; nothing where it found nothing. `places`
    are variables for it. Raises TreeError."""
    return _ask(folder, words, TIMEOUT_S, said=said, places=places)[0]


def _ask(
    folder: str,
    words: Iterable[str],
    timeout_s: float,
    *,
    said: bytes = b"",
    places: Mapping[str, str] = _NONE,
) -> tuple[bytes, bytes]:
    """What git answers to what it is told, and what it complains of. Raises TreeError."""
    from subprocess import PIPE, Popen
    from tempfile import TemporaryFile

    with TemporaryFile() as complaints, TemporaryFile() as told:
        told.write(said)
        told.seek(0)
        try:
            git = Popen(
                (*_GIT, *words),
                cwd=folder,
                env=_environment() | dict(places),
                stdin=told,
                stdout=PIPE,
                stderr=complaints,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise TreeError(
                f"{folder} is a git repository, but git is not installed",
                code="missing_git",
                hint="install git",
            ) from None
        with git, _killed_after(git, timeout_s) as expired:
            answer = _read_answer(git)
            status = git.wait()
        complaints.seek(0)
        complaint = complaints.read(_COMPLAINT_BYTES)
    if expired.is_set():
        raise TreeError(f"git did not list {folder} within {timeout_s:g} s", code="tree_timeout")
    if status != 0 and (status != 1 or complaint):  # 1: nothing of what was asked for
        raise TreeError(f"git cannot list {folder}: {_first_line(complaint)}", code="git_failed")
    return answer, complaint


def _read_answer(git: Popen[bytes]) -> bytes:
    assert git.stdout is not None
    parts: list[bytes] = []
    room = ANSWER_BYTES
    while part := git.stdout.read(min(room, 1 << 20)):
        parts.append(part)
        room -= len(part)
        if not room:
            git.kill()
            raise TreeError("the list of files is too long to be sent", code="tree_too_large")
    return b"".join(parts)


@contextmanager
def _killed_after(process: Popen[bytes], timeout_s: float) -> Iterator[Event]:
    """End the process and its children when it takes too long; the event says that it did."""
    from threading import Event, Timer

    expired = Event()

    def end() -> None:
        expired.set()
        os.killpg(process.pid, SIGKILL)

    timer = Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()
        timer.join()


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


def _distinct(paths: Iterable[bytes]) -> tuple[bytes, ...]:
    """Each path once (git names an unmerged file once per version), sorted."""
    return tuple(sorted(set(paths) - {b""}))


def _first_line(complaint: bytes) -> str:
    return shown(complaint.strip().split(b"\n")[0]) or "it gave no reason"
