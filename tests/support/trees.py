"""Working trees for tests: made from a description, and described again from the disk."""

from __future__ import annotations

import mmap
import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from hypothesis import strategies as st

from airlox.tree.changes import Changes
from airlox.tree.index import Entry, Kind, TreeIndex
from airlox.tree.paths import SYNC_PREFIX

Node = tuple[str, bytes]
"""("f" | "x" | "l", content or link target)"""


def make_tree(root: Path, nodes: Mapping[bytes, Node]) -> None:
    """Write `nodes` beneath `root`; folders appear as they are needed."""
    for path, (kind, content) in nodes.items():
        target = os.path.join(os.fsencode(root), path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if kind == "l":
            os.symlink(content, target)
            continue
        with open(target, "wb") as file:
            file.write(content)
        os.chmod(target, 0o755 if kind == "x" else 0o644)


def change_unseen(path: Path, data: bytes) -> None:
    """Write over the beginning of a file through a mapping, after reading it there."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        assert mapped[: len(data)] != data
        mapped[: len(data)] = data


def describe(root: Path) -> dict[bytes, Node]:
    """The files and links beneath `root`; anything else has the kind "?"."""
    top = os.fsencode(root)
    nodes: dict[bytes, Node] = {}
    for folder, folders, files in os.walk(top):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*files, *links):
            path = os.path.join(folder, name)
            nodes[os.path.relpath(path, top)] = _describe(path)
    return nodes


def _describe(path: bytes) -> Node:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return "l", os.readlink(path)
    if not stat.S_ISREG(mode):
        return "?", b""
    with open(path, "rb") as file:
        return {0o644: "f", 0o755: "x"}.get(stat.S_IMODE(mode), oct(mode)), file.read()


def index_of(nodes: Mapping[bytes, Node]) -> TreeIndex:
    return TreeIndex(
        Entry(path, Kind(kind), len(content), sha256(content).digest())
        for path, (kind, content) in nodes.items()
    )


def changes_between(before: Mapping[bytes, Node], after: Mapping[bytes, Node]) -> Changes:
    """What a job is said to have changed: these files were like that, and are like this now."""
    contents = {sha256(content).digest(): content for _, content in after.values()}
    return Changes(index_of(before), index_of(after), contents)


def fetch_from(*trees: Mapping[bytes, Node]) -> Callable[[bytes], Iterator[bytes] | None]:
    """A source of the contents of these trees, in pieces of three bytes."""
    known = {sha256(c).digest(): c for nodes in trees for _, c in nodes.values()}

    def fetch(digest: bytes) -> Iterator[bytes] | None:
        content = known.get(digest)
        if content is None:
            return None
        return (content[at : at + 3] for at in range(0, len(content), 3))

    return fetch


def git(folder: Path, *words: str) -> bytes:
    """Run git in `folder`, untouched by the settings of whoever runs the tests."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@example.org",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@example.org",
    }
    command = ["git", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, check=True, timeout=60
    ).stdout


components = st.binary(min_size=1, max_size=6).filter(
    lambda name: (
        name not in (b".", b"..")
        and not set(name) & {0, 0x2F}
        and name.lower() != b".git"
        and not name.startswith(SYNC_PREFIX)
    )
)
_few = st.sampled_from([b"a", b"b", b"a.", b"a0", b"c", b"\xff", b"\n", b"d d"])
paths = st.lists(st.one_of(_few, components), min_size=1, max_size=4).map(b"/".join)
nodes = st.one_of(
    st.tuples(st.sampled_from("fx"), st.binary(max_size=20)),
    st.tuples(st.just("l"), st.binary(min_size=1, max_size=20).filter(lambda t: 0 not in t)),
)


def _without_clashes(tree: dict[bytes, Node]) -> dict[bytes, Node]:
    """Drop each path that another path has as a folder."""
    folders = {path[:at] for path in tree for at in range(len(path)) if path[at : at + 1] == b"/"}
    return {path: node for path, node in tree.items() if path not in folders}


trees = st.dictionaries(paths, nodes, max_size=8).map(_without_clashes)
"""Valid trees with names that are not UTF-8, hold newlines, and clash between trees."""
