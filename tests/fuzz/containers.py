"""Targets: archives, images, and the forms in which a working tree travels."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from typing import Final

from airlox.client.attachments import _FORMATS, _check_size, sanitize_image
from airlox.errors import ValidationError
from airlox.protocol.archive import ENTRIES, TOTAL_BYTES, inspect_zip, read_entry
from airlox.protocol.names import check_archive_path
from airlox.protocol.policy import image_mime
from airlox.tree.changes import NOTHING, encode_changes, parse_changes
from airlox.tree.chunks import (
    LARGE_BYTES,
    Chunk,
    Recipe,
    encode_recipe,
    encode_recipes,
    parse_recipe,
    parse_recipes,
)
from airlox.tree.index import Entry, Kind, TreeIndex, diff, parse_index
from airlox.tree.lack import encode_lack, encode_lacking_index, parse_lack
from airlox.tree.packs import Record, What, content_record, read_pack, write_packs
from airlox.tree.rules import Excludes
from airlox.tree.stamps import Stamp
from airlox.tree.state import AppliedState, encode_state, parse_state
from support.archives import Member, build_zip, unicode_path_field, zip64_field
from support.trees import changes_between, index_of

from .session import given

_READ_BYTES: Final = 1 << 20
"""Content that is read of one archive: enough to leave its first pieces."""
_PIXELS: Final = 1 << 14


# ── archives and images ──────────────────────────────────────────────────────────────────────


def read_zip(data: bytes) -> None:
    entries = inspect_zip(data)
    assert len(entries) <= ENTRIES
    assert sum(entry.size for entry in entries) <= TOTAL_BYTES
    assert len({entry.path.lower() for entry in entries}) == len(entries)
    left = _READ_BYTES
    for entry in entries:
        check_archive_path(entry.path)
        size = 0
        try:
            for piece in read_entry(data, entry):
                size += len(piece)
                left -= len(piece)
                assert size <= entry.size
                if left < 0:
                    return
        except ValidationError:
            continue


def zip_seeds() -> list[bytes]:
    odd = Member(name="a/b.txt", content=b"hello" * 50, extra=zip64_field(1, 2, 3))
    named = Member(name=b"\x81", extra=unicode_path_field(b"\x81", "ü".encode()))
    made = [
        build_zip(),
        build_zip(Member(name="a"), Member(name="b/", content=b"", method=0)),
        build_zip(odd, named, before=b"junk", comment=b"c"),
        build_zip(Member(name="z"), zip64=True),
    ]
    return made + [data for data in given("data_b64", "inspect_zip") if len(data) < 10_000]


def read_image(data: bytes) -> None:
    """Any claim is read; decoded is what takes little time."""
    mime = image_mime(data)
    if mime is not None:
        claim = _FORMATS[mime][0](data)
        _check_size(claim)
        if claim.width * claim.height > _PIXELS:
            return
    found, new = sanitize_image(data)
    assert image_mime(new) == found == mime


def image_seeds() -> list[bytes]:
    return given("data_b64", "sanitize_image")


# ── trees ────────────────────────────────────────────────────────────────────────────────────


@cache
def _index() -> TreeIndex:
    return index_of({b"a": ("f", b"1"), b"b/c": ("x", b"22"), b"b/d": ("l", b"../a")})


def read_index(data: bytes) -> None:
    index = parse_index(data)
    assert index.encode() == data
    assert TreeIndex(index.entries) == index
    change = diff(_index(), index)
    assert len(change.added) + len(_index().entries) == len(index.entries) + len(change.removed)


def index_seeds() -> list[bytes]:
    return [_index().encode(), index_of({}).encode()]


def read_changes(data: bytes) -> None:
    """What was taken makes the same archive's changes again, and leads nowhere outside a tree."""
    changes = parse_changes(data, most_bytes=_READ_BYTES)
    assert parse_changes(encode_changes(changes), most_bytes=_READ_BYTES) == changes
    for change in changes:
        assert not {b"", b".", b"..", b".git"} & {*change.path.lower().split(b"/")}


def change_seeds() -> list[bytes]:
    new = changes_between({}, {b"n": ("l", b"../a"), b"d/n": ("f", b"new")})
    all_kinds = changes_between({b"a": ("f", b"1"), b"b": ("x", b"")}, {b"a": ("x", b"2")})
    return [encode_changes(changes) for changes in (NOTHING, new, all_kinds)]


def read_packed(data: bytes) -> None:
    """A content has its digest, and a recipe makes a content of its size or is refused."""
    for record in read_pack(data, lambda what, digest, size: True):
        if record.what is What.CONTENT:
            assert sha256(record.data).digest() == record.digest
        else:
            assert parse_recipe(record.data, record.size).size == record.size


def pack_seeds() -> list[bytes]:
    recipe = Record(What.RECIPE, bytes(32), _RECIPE.size, encode_recipe(_RECIPE))
    datas = [b"", b"hello", b"long " * 500]
    contents = [content_record(sha256(data).digest(), data) for data in datas]
    [pack] = write_packs([*contents, recipe])
    return [pack, pack.rstrip(b"\0")[:-1], b"axp1\n"]


def read_recipes(data: bytes) -> None:
    kept = parse_recipes(data)
    assert parse_recipes(encode_recipes(kept)) == kept


def recipe_seeds() -> list[bytes]:
    return [encode_recipes({}), encode_recipes({bytes(32): _RECIPE, bytes([1]) * 32: _RECIPE})]


_RECIPE: Final = Recipe(
    (Chunk(b"a" * 32, LARGE_BYTES // 2), Chunk(b"b" * 32, LARGE_BYTES // 2)) * 2
)


@cache
def _large() -> TreeIndex:
    """A tree with a small and two large contents."""
    sizes = enumerate((5, LARGE_BYTES + 1, 1 << 40))
    return TreeIndex(Entry(b"%d" % n, Kind.FILE, size, bytes([n]) * 32) for n, size in sizes)


def read_lack(data: bytes) -> None:
    lack = parse_lack(data, _large())
    if lack.needs_index:
        assert encode_lacking_index(_large().digest) == data
    elif not lack.chunks:
        assert encode_lack(_large(), lack.digests) == data
    for total, positions in lack.chunks.values():
        assert positions <= set(range(total))


def lack_seeds() -> list[bytes]:
    digests = [entry.digest for entry in _large().entries]
    chunks = {digests[1]: (_RECIPE, {b"a" * 32}), digests[2]: (Recipe(()), set[bytes]())}
    return [
        encode_lacking_index(_large().digest),
        encode_lack(_large(), digests[:1]),
        encode_lack(_large(), digests[:1], chunks),
    ]


def read_state(data: bytes) -> None:
    assert encode_state(parse_state(data)) == data


def state_seeds() -> list[bytes]:
    stamps = tuple(Stamp(n, -n, 1 << 60) for n in range(len(_index().entries)))
    return [
        encode_state(AppliedState(_index(), stamps, b"boot", (b"b/e",))),
        encode_state(AppliedState(TreeIndex(()), (), b"")),
    ]


def read_ignore(data: bytes) -> None:
    """The lines of an `.airloxignore`, which comes with whatever was cloned."""
    excludes = Excludes((), data.decode("utf-8", "surrogateescape").splitlines())
    for path in ("a", "a/", "src/deep/file.py", "x" * 60 + "/y", "\udcff"):
        excludes.reason(path)


def ignore_seeds() -> list[bytes]:
    return [b"*.pyc\n!keep.pyc\n/build/\n**/x/**\n[a-z]?\\ \n# c\n", b"a**b[!x]\n"]
