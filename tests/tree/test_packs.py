"""airlox.tree.packs: packs round trip however they are split, and hostile ones cost nothing."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from hashlib import sha256

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import EncodingError, LimitError, ValidationError
from airlox.protocol.limits import PACK_BYTES
from airlox.tree.chunks import LARGE_BYTES, RECIPE_BYTES
from airlox.tree.packs import (
    PAD_BYTES,
    Record,
    What,
    content_record,
    padded_size,
    read_pack,
    write_packs,
)


def content(data: bytes) -> Record:
    return content_record(sha256(data).digest(), data)


def everything(what: What, digest: bytes, size: int) -> bool:
    return True


def read_all(packs: Iterator[bytes] | list[bytes]) -> list[Record]:
    return [record for pack in packs for record in read_pack(pack, everything)]


def whole(data: bytes, *, digest: bytes | None = None, length: int | None = None) -> bytes:
    """A pack with one record whose stored bytes are `data`."""
    digest = sha256(data).digest() if digest is None else digest
    length = len(data) if length is None else length
    return b"axp1\n" + struct.pack(">B32sII", 1, digest, length, len(data)) + data


def recipe(size: int, length: int) -> bytes:
    """A pack with one recipe of `length` bytes for a content of `size`."""
    stored = zstandard.compress(bytes(length))
    return b"axp1\n" + struct.pack(">B32sQII", 2, bytes(32), size, length, len(stored)) + stored


records = st.one_of(
    st.binary(max_size=3000).map(content),
    st.builds(
        Record,
        st.just(What.RECIPE),
        st.binary(min_size=32, max_size=32),
        st.integers(LARGE_BYTES + 1, (1 << 64) - 1),
        st.binary(max_size=300),
    ),
)


@given(st.lists(records, max_size=12), st.integers(1, 20_000))
def test_round_trip_for_any_split(sent: list[Record], target: int) -> None:
    packs = list(write_packs(sent, target_bytes=target))
    assert read_all(packs) == sent
    assert all(len(pack) % PAD_BYTES == 0 for pack in packs)
    for pack in packs:
        assert len(list(read_pack(pack, everything))) == 1 or len(pack) <= padded_size(target)


def test_what_does_not_compress_is_stored_as_it_is() -> None:
    data = b"".join(sha256(b"%d" % n).digest() for n in range(1000))
    [pack] = write_packs([content(data)])
    assert data in pack


def test_only_what_is_wanted_is_opened() -> None:
    wanted, other = b"wanted" * 100, b"other" * 100
    [pack] = write_packs([content(other), content(wanted), content(other)])
    found = list(read_pack(pack, lambda what, digest, size: digest == sha256(wanted).digest()))
    assert [record.data for record in found] == [wanted]


@given(st.integers(PAD_BYTES, PACK_BYTES))
def test_padding_hides_the_size_for_an_eighth(size: int) -> None:
    padded = padded_size(size)
    assert size <= padded <= PACK_BYTES
    assert padded - size < max(PAD_BYTES, size / 8)
    assert padded_size(padded) == padded


def test_a_content_without_its_digest_is_refused() -> None:
    assert [p.data for p in read_pack(whole(b"good"), everything)] == [b"good"]
    with pytest.raises(ValidationError, match="does not have its digest"):
        list(read_pack(whole(b"evil", digest=sha256(b"good").digest()), everything))


def frame_without_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


@pytest.mark.parametrize(
    "pack",
    [
        b"",
        b"axp2\n",
        b"axp1\n\x00",
        b"axp1\n\xff\x00\x01",
        b"axp1\n\x01",
        whole(b"x")[:-1],
        whole(b"xx", length=1),
        whole(b"not a frame", length=100),
        whole(zstandard.compress(bytes(1000)), length=999),
        whole(zstandard.compress(bytes(1000)), length=1001),
        whole(frame_without_size(bytes(1000)), length=1000),
        whole(zstandard.compress(bytes(1000)) + b"junk", length=1000),
        whole(zstandard.compress(bytes(1000)) * 2, length=2000),
        whole(zstandard.compress(bytes(1000))[:-1], length=1000),
        b"axp1\n\x02",
        recipe(LARGE_BYTES, 36),
        recipe(LARGE_BYTES + 1, 36)[:-1],
    ],
)
def test_malformed(pack: bytes) -> None:
    with pytest.raises(EncodingError):
        list(read_pack(pack, everything))


def test_bounds() -> None:
    with pytest.raises(LimitError):
        list(read_pack(b"axp1\n" + bytes(PACK_BYTES), everything))
    with pytest.raises(LimitError):
        list(read_pack(whole(b"x", length=LARGE_BYTES + 1), everything))
    with pytest.raises(LimitError):
        list(read_pack(recipe(LARGE_BYTES + 1, RECIPE_BYTES + 1), everything))


def test_a_bomb_costs_no_memory() -> None:
    bomb = zstandard.compress(bytes(256 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(EncodingError):
            list(read_pack(whole(bomb, length=1 << 20), everything))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=3), st.data())
def test_a_changed_byte_is_never_a_wrong_content(datas: list[bytes], data: st.DataObject) -> None:
    [pack] = write_packs([content(d) for d in datas])
    bad = bytearray(pack)
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = read_all([bytes(bad)])
    except ValidationError:
        return
    for record in found:
        if record.what is What.CONTENT:
            assert sha256(record.data).digest() == record.digest


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    for candidate in (data, b"axp1\n" + data, b"axp1\n\x01" + data):
        try:
            list(read_pack(candidate, everything))
        except ValidationError:
            pass
