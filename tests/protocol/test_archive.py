"""Archives: round trips, hostile ones, and no way to fail but the known ones."""

from __future__ import annotations

import io
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import LimitError, ValidationError
from airlox.protocol.archive import ENTRIES, ZipEntry, inspect_zip, read_entry
from support.archives import END_SIGNATURE, Member, build_zip, field, zip64_field

_words = st.text(st.sampled_from("abcdéß漢🤖. -_"), min_size=1, max_size=8).map(
    lambda word: f"p{word}q"
)
_paths = st.lists(_words, min_size=1, max_size=4).map("/".join)
_files = st.dictionaries(_paths, st.binary(max_size=300) | st.just(b"\0" * 200_000), max_size=5)
_members = st.lists(
    st.builds(
        Member,
        name=_paths | st.binary(max_size=6) | st.text(max_size=6),
        content=st.binary(max_size=30),
        method=st.sampled_from([0, 8, 8, 12]),
        flags=st.none() | st.integers(0, 0xFFFF),
        mode=st.sampled_from([0o100644, 0o120777, 0o040755, 0]),
        extra=st.binary(max_size=12)
        | st.just(zip64_field(1, 2, 3))
        | st.binary(max_size=9).map(lambda body: field(0x7075, body)),
        offset=st.none() | st.integers(0, 0xFFFFFFFF),
    ),
    max_size=3,
)
_archives = st.builds(
    lambda members, before, after, zip64, records: build_zip(
        *members, before=before, after=after, zip64=zip64, records=records
    ),
    _members,
    st.binary(max_size=9),
    st.binary(max_size=9) | st.just(build_zip()),
    st.booleans(),
    st.none() | st.integers(0, 3),
)


def _content(data: bytes, entry: ZipEntry) -> bytes:
    return b"".join(read_entry(data, entry))


def _only(*members: Member) -> tuple[bytes, ZipEntry]:
    data = build_zip(*members)
    (entry,) = inspect_zip(data)
    return data, entry


@given(_files, st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]), st.binary(max_size=40))
def test_what_another_archiver_packs_comes_out(
    files: dict[str, bytes], method: int, before: bytes
) -> None:
    out = io.BytesIO()
    out.write(before)
    with zipfile.ZipFile(out, "a" if before else "w", method) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    data = out.getvalue()
    assert {e.path: _content(data, e) for e in inspect_zip(data)} == files


@given(_archives)
def test_any_archive_is_read_or_refused(data: bytes) -> None:
    try:
        entries = inspect_zip(data)
    except ValidationError:
        return
    for entry in entries:
        try:
            assert len(_content(data, entry)) <= entry.size
        except ValidationError:
            continue


@given(st.data())
def test_any_change_is_read_or_refused(draw: st.DataObject) -> None:
    data = bytearray(draw.draw(_archives))
    for _ in range(draw.draw(st.integers(1, 3))):
        place = draw.draw(st.integers(0, len(data) - 1))
        data[place : place + draw.draw(st.integers(0, 3))] = draw.draw(st.binary(max_size=3))
        if not data:
            return
    try:
        for entry in inspect_zip(bytes(data)):
            _content(bytes(data), entry)
    except ValidationError:
        return


@given(st.binary(min_size=1, max_size=2000), st.integers(0), st.integers(1, 255))
def test_a_changed_byte_of_content_is_seen(content: bytes, place: int, change: int) -> None:
    data, entry = _only(Member(name="a", content=content, method=0))
    changed = bytearray(data)
    changed[entry.data_start + place % len(content)] ^= change
    with pytest.raises(ValidationError):
        _content(bytes(changed), entry)


def test_content_larger_than_declared_stops_where_it_breaks_its_promise() -> None:
    content = b"\0" * 10_000_000
    data, entry = _only(Member(name="a", content=content, size=100_000))
    given_out: list[bytes] = []
    with pytest.raises(ValidationError, match="larger than it declares"):
        given_out.extend(read_entry(data, entry))
    assert 0 < sum(map(len, given_out)) <= 100_000


def test_a_large_entry_comes_in_bounded_pieces() -> None:
    content = zlib.compress(bytes(range(256)) * 400) * 20
    data, entry = _only(Member(name="a", content=content))
    pieces = list(read_entry(data, entry))
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= 64 * 1024


@pytest.mark.parametrize(
    "member",
    [
        Member(name="a", content=b"hello" * 9, packed=b"\xff\xff"),
        Member(name="a", content=b"hello", crc32=1),
        Member(name="a", content=b"hello", method=0, compressed_size=4),
        Member(name="a", content=b"hello", method=0, compressed_size=99_999, size=99_999),
        Member(name="a", content=b"hello" * 9, compressed_size=5),
    ],
    ids=["corrupt", "checksum", "stored cut", "stored beyond", "deflated cut"],
)
def test_damaged_content_is_refused(member: Member) -> None:
    data, entry = _only(member)
    with pytest.raises(ValidationError):
        _content(data, entry)


def test_too_many_entries_are_a_limit_however_many_are_declared() -> None:
    members = [Member(name=f"f{i}", content=b"", method=0) for i in range(ENTRIES + 1)]
    with pytest.raises(LimitError):
        inspect_zip(build_zip(*members))
    # As many of one name would be one entry, but they are still to be read.
    with pytest.raises(LimitError):
        inspect_zip(build_zip(*(Member(name="a", content=b"", method=0) for _ in members)))


@pytest.mark.parametrize(
    "data",
    [
        END_SIGNATURE * 300_000,
        (END_SIGNATURE + b"\xff" * 18) * 50_000,
        b"PK\x06\x06" * 300_000 + build_zip(Member(name="a"), zip64=True, records=9),
        b"PK\x01\x02" * 300_000 + END_SIGNATURE + b"\0\0\0\0\xff\xff\xff\xff" + bytes(10),
    ],
    ids=["end records", "end records with comments", "zip64 records", "directory records"],
)
def test_signatures_without_end_are_given_up(data: bytes) -> None:
    with pytest.raises(ValidationError):
        inspect_zip(data)


def test_the_search_passes_some_stray_end_records_but_not_any_number() -> None:
    archive = build_zip(Member(name="a"))
    assert [entry.path for entry in inspect_zip(archive + END_SIGNATURE * 20)] == ["a"]
    with pytest.raises(ValidationError, match="cut short in its end record"):
        inspect_zip(archive + END_SIGNATURE * 40)


def test_messages_name_the_entry_and_stay_on_one_line() -> None:
    with pytest.raises(ValidationError, match=r"'a\\x1b\[2J'") as refused:
        inspect_zip(build_zip(Member(name="a\x1b[2J")))
    assert refused.value.code == "unsafe_path"
    with pytest.raises(ValidationError, match="'l' is a symbolic link"):
        inspect_zip(build_zip(Member(name="l", mode=0o120777)))
