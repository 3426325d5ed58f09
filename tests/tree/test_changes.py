"""airlox.tree.changes: what a runner may return, and what is refused."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from hashlib import sha256

import pytest
from hypothesis import given

from airlox.errors import LimitError, PolicyError, ProtocolError, ValidationError
from airlox.protocol.archive import inspect_zip
from airlox.tree.changes import (
    NOTHING,
    Changes,
    check_changes,
    encode_changes,
    parse_changes,
    passes_for_git,
)
from airlox.tree.index import MAGIC, Entry, Kind, TreeIndex
from airlox.tree.wanted import Wanted
from support.trees import Node, changes_between, index_of, trees

ROOM = 1 << 20
ALL = Wanted(["**"])
SENT: dict[bytes, Node] = {b"a": ("f", b"one"), b"d/b": ("x", b"two"), b"l": ("l", b"a")}


def refuse(found: Changes, wanted: Wanted = ALL, sent: Mapping[bytes, Node] = SENT) -> str:
    with pytest.raises(ProtocolError) as caught:
        check_changes(found, wanted, index_of(sent))
    return caught.value.message


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def archive(before: bytes, after: bytes, *contents: bytes, **more: bytes) -> bytes:
    named = {sha256(content).hexdigest(): content for content in contents}
    return zipped(before=before, after=after, **named, **more)


def raw_index(*paths: bytes) -> bytes:
    """An index of empty files, whatever their paths."""
    digest = sha256(b"").digest()
    rows = [b"f" + len(p).to_bytes(2, "big") + p + bytes(8) + digest for p in paths]
    return MAGIC + len(rows).to_bytes(4, "big") + b"".join(rows)


EMPTY = TreeIndex(()).encode()


@given(trees, trees)
def test_what_is_packed_is_unpacked(before: dict[bytes, Node], after: dict[bytes, Node]) -> None:
    same = {path for path in before.keys() & after.keys() if before[path] == after[path]}
    found = changes_between(
        {path: node for path, node in before.items() if path not in same},
        {path: node for path, node in after.items() if path not in same},
    )
    data = encode_changes(found)
    assert encode_changes(found) == data
    assert parse_changes(data, most_bytes=ROOM) == found
    inspect_zip(data)  # what every reader of a session looks at


def test_what_shrinks_too_much_is_stored() -> None:
    found = changes_between({}, {b"zeros": ("f", bytes(4 << 20))})
    assert parse_changes(encode_changes(found), most_bytes=8 << 20) == found


@pytest.mark.parametrize(
    "path",
    [
        b"/etc/passwd",
        b"../up",
        b"a/../../up",
        b"./a",
        b"a//b",
        b"a/",
        b"",
        b".git/hooks/pre-commit",
        b"sub/.GIT/config",
        b"nul\0byte",
        b"x" * 256,
        b".airlox-sync-1/x",
    ],
)
def test_paths_that_no_tree_has(path: bytes) -> None:
    """[P-PUL-3]"""
    with pytest.raises(ValidationError):
        parse_changes(archive(EMPTY, raw_index(path), b""), most_bytes=ROOM)
    with pytest.raises(ValidationError):
        parse_changes(archive(raw_index(path), EMPTY), most_bytes=ROOM)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK",
        zipped(),
        zipped(before=EMPTY),
        zipped(after=EMPTY),
        zipped(before=EMPTY, after=b"axt1\n"),
        archive(EMPTY, EMPTY, b"unasked"),
        archive(EMPTY, EMPTY, more=b""),
        archive(EMPTY, raw_index(b"a")),
        archive(EMPTY, raw_index(b"a"), b"", b"more"),
        archive(EMPTY, raw_index(b"b", b"a"), b""),
        archive(EMPTY, raw_index(b"a", b"a"), b""),
        archive(EMPTY, raw_index(b"a", b"a/b"), b""),
        archive(raw_index(b"a"), raw_index(b"a"), b""),
    ],
)
def test_archives_that_say_nothing_that_may_be(data: bytes) -> None:
    with pytest.raises(ValidationError):
        parse_changes(data, most_bytes=ROOM)


def test_a_content_that_is_another() -> None:
    digest = sha256(b"true").hexdigest()
    after = TreeIndex([Entry(b"a", Kind.FILE, 4, bytes.fromhex(digest))]).encode()
    for content in (b"fals", b"false", b""):
        with pytest.raises(ValidationError):
            parse_changes(zipped(before=EMPTY, after=after, **{digest: content}), most_bytes=ROOM)


def test_a_link_to_what_no_link_can_be() -> None:
    found = changes_between({}, {b"l": ("l", b"a\0b")})
    with pytest.raises(ValidationError):
        parse_changes(encode_changes(found), most_bytes=ROOM)


def test_more_than_an_item_of_the_session() -> None:
    data = encode_changes(changes_between({}, {b"a": ("f", bytes(2000))}))
    parse_changes(data, most_bytes=3000)
    with pytest.raises(LimitError):
        parse_changes(data, most_bytes=2000)


def test_changes_of_what_was_sent() -> None:
    check_changes(changes_between(SENT, {}), ALL, index_of(SENT))
    check_changes(changes_between({b"a": SENT[b"a"]}, {b"a/b": ("f", b"")}), ALL, index_of(SENT))
    check_changes(changes_between({}, {b"new": ("f", b"")}), ALL, index_of(SENT))
    check_changes(NOTHING, ALL, index_of(SENT))
    check_changes(
        changes_between({b"other": ("f", b"")}, {}), ALL, None
    )  # the tree is not known any more


def test_a_file_that_was_never_sent_like_that() -> None:
    assert "what it never was" in refuse(changes_between({b"a": ("f", b"other")}, {}))
    assert "what it never was" in refuse(changes_between({b"a": ("x", b"one")}, {}))
    assert "what it never was" in refuse(changes_between({b"new": ("f", b"")}, {}))


def test_a_file_of_the_tree_that_is_called_new() -> None:
    assert "what it never was" in refuse(changes_between({}, {b"a": ("f", b"over it")}))


def test_a_file_that_would_be_a_folder_too() -> None:
    """Half of a change may be all that was asked for: where it does not fit nothing is written."""
    check_changes(changes_between({}, {b"a/b": ("f", b"")}), ALL, index_of(SENT))
    check_changes(changes_between({}, {b"d": ("f", b"")}), ALL, index_of(SENT))


def test_files_that_were_not_asked_for() -> None:
    wanted = Wanted(["*.py"])
    assert "not asked for" in refuse(changes_between({}, {b"x.sh": ("f", b"")}), wanted)
    assert "not asked for" in refuse(changes_between({b"a": SENT[b"a"]}, {}), wanted)


@pytest.mark.parametrize(
    "path",
    [
        b"sub/git~1/config",
        b"GIT~1",
        ".g\u200cit/config".encode(),
        b".git /x",
        b".git./x",
        b".git::$INDEX_ALLOCATION/x",
    ],
)
def test_names_that_can_pass_for_git(path: bytes) -> None:
    assert passes_for_git(path)
    with pytest.raises(PolicyError):
        check_changes(changes_between({}, {path: ("f", b"")}), ALL, None)


@pytest.mark.parametrize(
    "path", [b".github/x", b".gitignore", b"git", b"a.git", b"\xff.git", b"git~2"]
)
def test_names_that_cannot(path: bytes) -> None:
    assert not passes_for_git(path)
