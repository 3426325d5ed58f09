"""Making a replica: a small repository with what git needs to answer as it does here.

In it: the commits that HEAD reaches and the tags on them, without their files; the folders and
files of HEAD, what its commit changed (git compares the two even where it shows one line), and what
is staged; HEAD and its branch; an index like git's own, and a `config` that is written here. It is
marked as a partial clone without a remote, so that git takes what is not there for missing, not for
damage.

Never in it: other branches, remotes, settings, hooks, stash, reflog; and of files that the person
keeps out of the tree, or whose names mean credentials, no version. The index says of files that do
not go that nobody looks at them, so that `git status` does not call them deleted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import Final, NamedTuple

import msgspec

from airlox import safefs
from airlox.errors import StorageError, TreeError
from airlox.tree import git, rules
from airlox.tree.metadata import ALONE, Repository, count_commits, reached_tags
from airlox.tree.paths import split
from airlox.tree.scan import Choice, load_excludes

FILES_BYTES: Final = 1 << 30
"""Most bytes of files that go."""
PACKS: Final = 16
"""Packs of a history that grows, before it is packed anew."""

_OURS: Final = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
_PACKING: Final = (
    *("-c", "pack.threads=1", "-c", "pack.packSizeLimit=0", "-c", "pack.writeReverseIndex=false"),
    *("pack-objects", "--quiet", "--delta-base-offset", "--window=0"),
)
"""Deltas that exist are used again, none are looked for: quick, and the same bytes each time."""
_HISTORY: Final = (
    *("rev-list", "--objects", "--no-object-names", "--filter=tree:0"),
    *("--missing=allow-promisor", "--stdin"),
)
_SIZES: Final = ("cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)")
_ALL: Final = ("cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objectname)")
_PACKS: Final = "objects/pack"
_NOTE_BYTES: Final = 64 << 20
_PARTS: Final = (".pack", ".idx", ".promisor")


class _History(msgspec.Struct, frozen=True):
    """What is noted beside a replica: the packs of its history, and what is in them. `tags` and
    `shallow` are as in `Repository`, the tags line by line."""

    head: bytes
    tags: frozenset[bytes]
    shallow: bytes
    packs: tuple[str, ...]


_NOTHING: Final = _History(b"", frozenset(), b"", ())


class Staying:
    """What stays here of the tree `top`. `left_out` are files in it that do not go with it."""

    def __init__(self, top: str, choice: Choice, left_out: frozenset[bytes]) -> None:
        self._top = top
        self.left_out = left_out
        self._allowed = {os.fsencode(name) for name in choice.allow}
        self._excludes = load_excludes(top, choice)

    def stays(self, path: bytes, object_id: bytes) -> bool:
        """Whether this version of a file stays here."""
        if path in self.left_out:
            return True
        if self._excludes and self._excludes.reason(os.fsdecode(path)) is not None:
            return True
        folder, name = split(path)
        if name in self._allowed or path in self._allowed:
            return False
        if rules.is_credential_name(folder, name):
            return True
        return rules.is_doubtful_name(name) and self._shows_login(name, object_id)

    def _shows_login(self, name: bytes, object_id: bytes) -> bool:
        try:
            data = git.ask(self._top, ("cat-file", "blob", object_id.decode()), places=ALONE)
        except TreeError:
            return True
        return rules.holds_login(name, data[: rules.LOOK_BYTES])


class Making(NamedTuple):
    """One replica in the making: the folder `new` becomes it, with the repository in its `.git`.
    `older` are others of the same repository, the newest first, whose packs may serve again."""

    repository: Repository
    staying: Staying
    new: str
    older: Sequence[str]

    def path(self, *parts: str) -> str:
        return os.path.join(self.new, ".git", *parts)

    def ask(self, *words: str, said: bytes = b"") -> bytes:
        """Ask git in the repository itself."""
        return git.ask(self.repository.top, words, said=said, places=ALONE)


def write(making: Making) -> None:
    """Write all of it. Raises TreeError: `metadata_too_large` beyond the bounds; StorageError, and
    OSError."""
    repository = making.repository
    os.makedirs(making.path(_PACKS))
    os.mkdir(making.path("refs"))
    _put(making, "refs/.keep", b"")  # trees hold no empty folders, and git wants this one
    count_commits(repository)
    tags = reached_tags(repository)
    _write_history(making, tags)
    _pack(making, _ids_of_files(making))
    branch = repository.branch
    heads = b"" if branch is None else repository.head + b" " + branch + b"\n"
    refs = sorted((heads + tags).splitlines(), key=_ref)
    _put(making, "packed-refs", b"".join(line + b"\n" for line in refs))
    _put(making, "HEAD", (repository.head if branch is None else b"ref: " + branch) + b"\n")
    _put(making, "config", _config(repository))
    if repository.shallow:
        _put(making, "shallow", repository.shallow)
    _write_index(making)


def _ref(line: bytes) -> bytes:
    return line.split(b" ")[1]


def _put(making: Making, name: str, data: bytes) -> None:
    safefs.write_private(making.path(name), data)


def _config(repository: Repository) -> bytes:
    core = {"repositoryformatversion": "1", "bare": "false", "logallrefupdates": "true"}
    core |= {"filemode": "true"} | {name[5:]: word for name, word in repository.settings}
    more = {"partialClone": "airlox"}
    if repository.object_format != "sha1":
        more["objectFormat"] = repository.object_format
    lines = ["[core]", *(f"\t{name} = {word}" for name, word in core.items())]
    lines += ["[extensions]", *(f"\t{name} = {word}" for name, word in more.items()), ""]
    return "\n".join(lines).encode("ascii")


def _write_history(making: Making, tags: bytes) -> None:
    """The commits and tags: the packs of an older replica whose history this one continues, and
    one more for what is new. A tree that a tag names itself does not go."""
    repository = making.repository
    now = _History(repository.head, frozenset(tags.splitlines()), repository.shallow, ())
    known = _link_history(making, now)
    starts = [repository.head, *map(_ref, now.tags - known.tags)]
    if known.head:
        starts.append(b"^" + known.head)
    ids = making.ask(*_HISTORY, said=b"".join(start + b"\n" for start in starts)).split()
    packs = (*known.packs, _pack(making, ids)) if ids else known.packs
    note = msgspec.structs.replace(now, packs=packs)
    safefs.write_private(os.path.join(making.new, "history"), msgspec.msgpack.encode(note))


def _link_history(making: Making, now: _History) -> _History:
    """Take the packs of the newest replica whose history goes on to `now`; what is in them."""
    for place in making.older:
        try:
            data = safefs.read_bounded(os.path.join(place, "history"), _NOTE_BYTES)
            known = msgspec.msgpack.decode(data, type=_History)
            if _goes_on(making, known, now):
                _link_packs(making, known, place)
                return known
        except (StorageError, msgspec.MsgspecError, TreeError):
            continue
        except OSError:  # it is being removed by another process
            shutil.rmtree(making.path(_PACKS))
            os.mkdir(making.path(_PACKS))
    return _NOTHING


def _link_packs(making: Making, known: _History, place: str) -> None:
    for pack, part in product(known.packs, _PARTS):
        name = os.path.join(_PACKS, pack + part)
        os.link(os.path.join(place, ".git", name), making.path(name))


def _goes_on(making: Making, known: _History, now: _History) -> bool:
    """Whether all that is in the older history is in this one as well."""
    if known.shallow != now.shallow or len(known.packs) >= PACKS or not known.tags <= now.tags:
        return False
    words = ("rev-list", "--count", "--max-count=1", known.head.decode())
    return int(making.ask(*words, "^" + now.head.decode())) == 0


def _pack(making: Making, ids: Iterable[bytes]) -> str:
    """Pack the objects and say that there may be others elsewhere; the name of the pack."""
    said = b"".join(object_id + b"\n" for object_id in ids)
    name = making.ask(*_PACKING, making.path(_PACKS, "pack"), said=said).strip().decode("ascii")
    _put(making, f"{_PACKS}/pack-{name}.promisor", b"")
    return f"pack-{name}"


def _ids_of_files(making: Making) -> Iterator[bytes]:
    """The folders and files of HEAD and of the commits before it, and what is staged, but for what
    stays here and what git itself does not have. Raises TreeError for too much."""
    repository = making.repository
    head = repository.head.decode()
    folders, found = _list(making, head)
    for parent in making.ask("rev-parse", f"{head}^@").decode("ascii").split():
        with suppress(TreeError):  # a partial clone need not have it
            more, before = _list(making, parent)
            folders |= more
            found |= before
    found |= {(e.path, e.object_id) for e in repository.staged if not e.is_submodule}
    yield from sorted(folders)
    files = sorted(
        {object_id for path, object_id in found if not making.staying.stays(path, object_id)}
    )
    if repository.partial:  # git gives up at the first that it would have to fetch
        here = set(making.ask(*_ALL).split())
        files = [object_id for object_id in files if object_id in here]
    total = 0
    answer = making.ask(*_SIZES, said=b"".join(object_id + b"\n" for object_id in files))
    for object_id, form, *size in (line.split(b" ") for line in answer.splitlines()):
        if form != b"blob":
            continue
        total += int(size[0])
        if total > FILES_BYTES:
            raise TreeError(
                f"the files of the last commit of {repository.top} are over {FILES_BYTES} bytes: "
                "too many to send as git metadata",
                code="metadata_too_large",
                hint="run it without --git-metadata",
            )
        yield object_id


def _list(making: Making, commit: str) -> tuple[set[bytes], set[tuple[bytes, bytes]]]:
    """The folders of a commit, and its files with their paths."""
    folders = {making.ask("rev-parse", f"{commit}^{{tree}}").strip()}
    files: set[tuple[bytes, bytes]] = set()
    for line in making.ask("ls-tree", "-r", "-t", "-z", commit).split(b"\0")[:-1]:
        described, _, path = line.partition(b"\t")
        _, form, object_id = described.split(b" ")
        if form == b"tree":
            folders.add(object_id)
        elif form == b"blob":
            files.add((path, object_id))
    return folders, files


def _write_index(making: Making) -> None:
    """An index of the same entries that says of no file how it looks: git finds out by itself."""
    staged = making.repository.staged
    lines = (b"%s %s %s\t%s\0" % (e.mode, e.object_id, e.stage, e.path) for e in staged)
    _tell(making, ("-z", "--index-info"), lines)
    merged = [entry for entry in staged if entry.stage == b"0"]
    missing = making.staying.left_out
    unseen = [e.path + b"\0" for e in merged if e.unseen or e.is_submodule or e.path in missing]
    if unseen:
        _tell(making, ("-z", "--skip-worktree", "--stdin"), unseen)
    trusted = [entry.path + b"\0" for entry in merged if entry.trusted]
    if trusted:
        _tell(making, ("-z", "--assume-unchanged", "--stdin"), trusted)


def _tell(making: Making, words: Iterable[str], lines: Iterable[bytes]) -> None:
    git.ask(making.new, ("update-index", *words), said=b"".join(lines), places=_OURS)
