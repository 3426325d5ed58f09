"""Live output of a job: sealed, signed, hash-chained segments.

The runner seals what the job prints, piece by piece. Every segment is signed by the runner and
carries the digest of the one before, so that a reader notices a segment that is missing, repeated
or foreign; the signed result holds the last link. The relay keeps a bounded ring of them.

Key: HKDF over the session key, bound to the job, its blob, the runner, and 16 random bytes in the
first segment (which opens the chain for every reader and so travels again with a later start).
Nonce: the segment's number. Offsets count redacted bytes of both streams together.
Source: docs/protocol.md, "Live output".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from airlox.errors import DecryptError, EncodingError, LimitError, OrderError, ValidationError
from airlox.protocol import aead, canonical, limits
from airlox.protocol.canonical import U32, U53, Signed, Wire
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import (
    KEY_BYTES,
    Hash,
    ItemId,
    PublicKey,
    SessionId,
    b64u_decode,
    b64u_encode,
    parse_hash,
)
from airlox.protocol.item import ItemRef, encode_frame, parse_frame
from airlox.protocol.keys import SigningKey, live_key, parse_public_key
from airlox.protocol.signature import Label, verify

RANDOM_BYTES: Final = 16
STDOUT: Final = 1
STDERR: Final = 2
_PIECE_HEAD: Final = 5
_PLAIN_BYTES: Final = 2 * limits.SEGMENT_BYTES
"""Largest plain form of a segment, the heads of its pieces included."""


class Piece(NamedTuple):
    """Bytes of one stream (1 stdout, 2 stderr), in the order they were printed."""

    stream: int
    data: bytes


class SegmentHeader(Wire, frozen=True, kw_only=True):
    """What the relay may know of a segment. `prev` is null in the first one only."""

    author: str
    epoch: Annotated[int, msgspec.Meta(ge=1, le=limits.EPOCHS)] | UnsetType = UNSET
    job: ItemRef
    n: U32
    offset: U53
    prev: str | None
    random: str
    session_id: str
    size: U32
    v: Literal[1]

    def __post_init__(self) -> None:
        parse_public_key(self.author)
        b64u_decode(self.random, RANDOM_BYTES)
        if (self.prev is None) != (self.n == 0):
            raise ValidationError("only the first segment has none before it")
        if self.prev is not None:
            parse_hash(self.prev)
        if not 1 <= self.size <= limits.SEGMENT_BYTES:
            raise LimitError(f"a segment has 1 to {limits.SEGMENT_BYTES} bytes")

    @property
    def epoch_number(self) -> int:
        """Of the epoch whose session key sealed the segment; 0 before the first."""
        return 0 if self.epoch is UNSET else self.epoch


class _SignedSegment(Signed, frozen=True, kw_only=True):
    segment: SegmentHeader


class Segment(msgspec.Struct, frozen=True):
    """A verified, not yet decrypted segment."""

    header: SegmentHeader
    header_bytes: bytes
    sealed: bytes

    @property
    def link(self) -> Hash:
        """What the next segment carries as `prev`, and the result as the head."""
        return Hash(b64u_encode(sha256(self.header_bytes + sha256(self.sealed))))

    @property
    def end(self) -> int:
        """Offset after the segment's last byte."""
        return self.header.offset + self.header.size


class LiveWriter(msgspec.Struct, frozen=True):
    """Where a runner stands in the live output of one job. `write` gives the next standing."""

    key: SigningKey
    session_key: bytes
    session_id: SessionId
    job: ItemRef
    random: bytes
    n: int = 0
    offset: int = 0
    head: Hash | None = None
    epoch: int = 0
    """That the session key is of."""

    def write(self, pieces: list[Piece]) -> tuple[bytes, LiveWriter]:
        """The frame of a segment that holds `pieces`, and the writer after it.

        Raises LimitError beyond what one segment may hold, EncodingError for an empty piece or
        another stream: a reader would refuse them.
        """
        plain = _encode_pieces(pieces)
        size = sum(len(piece.data) for piece in pieces)
        header = SegmentHeader(
            author=self.key.public,
            epoch=self.epoch or UNSET,
            job=self.job,
            n=self.n,
            offset=self.offset,
            prev=self.head,
            random=b64u_encode(self.random),
            session_id=self.session_id,
            size=size,
            v=1,
        )
        header_bytes = canonical.encode(header)
        key = _key_of(self.session_key, header)
        sealed = aead.seal(key, _nonce(self.n), plain, header_bytes)
        signature = self.key.sign(Label.LIVE, header_bytes + sha256(sealed))
        document = canonical.encode(_SignedSegment(segment=header, sig=signature)).decode()
        link = Segment(header, header_bytes, sealed).link
        after = msgspec.structs.replace(self, n=self.n + 1, offset=self.offset + size, head=link)
        return encode_frame(document, sealed), after


def parse_segment(
    frame: bytes, *, session_id: SessionId, job: ItemRef, runner: PublicKey
) -> Segment:
    """A segment of this job, signed by this runner. The relay's gate and a reader's first half.

    Raises ValidationError or SignatureError.
    """
    document, sealed = parse_frame(frame)
    signed = canonical.decode(document, _SignedSegment, "segment")
    header = signed.segment
    if header.session_id != session_id or header.job != job or header.author != runner:
        raise ValidationError("segment of another job or runner")
    if len(sealed) > _PLAIN_BYTES + limits.BLOB_OVERHEAD_BYTES:
        raise LimitError("segment is too large")
    if sealed[: aead.NONCE_BYTES] != _nonce(header.n):
        raise EncodingError("the nonce of a segment is its number")
    header_bytes = canonical.encode(header)
    verify(runner, Label.LIVE, header_bytes + sha256(sealed), signed.sig)
    return Segment(header, header_bytes, sealed)


def _no_later_key(epoch: int) -> bytes:
    raise DecryptError(f"a segment of epoch {epoch}, of which no key is known here")


class LiveReader(msgspec.Struct, frozen=True):
    """Where a reader stands. The first segment it sees may be a later one (the ring is bounded).

    `gap_bytes` counts what was no longer held before the first segment seen. `session_key` is the
    session's first, `later_key` gives that of an epoch by its number.
    """

    session_key: bytes
    session_id: SessionId
    job: ItemRef
    runner: PublicKey
    last: Segment | None = None
    gap_bytes: int = 0
    later_key: Callable[[int], bytes] = _no_later_key

    def read(self, frame: bytes) -> tuple[list[Piece], LiveReader]:
        """The pieces of the next segment, and the reader after it.

        A segment already seen gives no pieces. Raises ValidationError, SignatureError,
        DecryptError, and OrderError for a gap or a break in the chain.
        """
        segment = parse_segment(frame, session_id=self.session_id, job=self.job, runner=self.runner)
        header, last = segment.header, self.last
        if last is not None:
            if header.n <= last.header.n:
                return [], self
            if header.n != last.header.n + 1 or header.prev != last.link:
                raise OrderError("live output: a segment is missing or foreign")
            if header.offset != last.end or header.random != last.header.random:
                raise OrderError("live output: segments do not join")
        epoch = header.epoch_number
        key = _key_of(self.later_key(epoch) if epoch else self.session_key, header)
        plain = aead.open_sealed(key, segment.sealed, segment.header_bytes, "segment")
        pieces = _decode_pieces(plain, header.size)
        gap = header.offset if last is None else 0
        return pieces, msgspec.structs.replace(self, last=segment, gap_bytes=self.gap_bytes + gap)


def _key_of(session_key: bytes, header: SegmentHeader) -> bytes:
    return live_key(
        session_key,
        SessionId(header.session_id),
        job=ItemId(header.job.id),
        job_blob=b64u_decode(header.job.blob_sha256, KEY_BYTES),
        runner=PublicKey(header.author),
        random=b64u_decode(header.random, RANDOM_BYTES),
    )


def _nonce(number: int) -> bytes:
    return number.to_bytes(aead.NONCE_BYTES, "big")


def _encode_pieces(pieces: list[Piece]) -> bytes:
    if any(stream not in (STDOUT, STDERR) or not data for stream, data in pieces):
        raise EncodingError("a piece is some bytes of stdout or stderr")
    plain = b"".join(
        bytes([stream]) + len(data).to_bytes(4, "big") + data for stream, data in pieces
    )
    if len(plain) > _PLAIN_BYTES:
        raise LimitError("too many pieces for one segment")
    return plain


def _decode_pieces(plain: bytes, size: int) -> list[Piece]:
    pieces, at = [], 0
    while at < len(plain):
        stream, length = plain[at], int.from_bytes(plain[at + 1 : at + _PIECE_HEAD], "big")
        data = plain[at + _PIECE_HEAD : at + _PIECE_HEAD + length]
        at += _PIECE_HEAD + length
        if stream not in (STDOUT, STDERR) or len(data) != length or not length:
            raise EncodingError("malformed pieces in a segment")
        pieces.append(Piece(stream, data))
    if sum(len(piece.data) for piece in pieces) != size:
        raise EncodingError("segment does not hold the bytes it states")
    return pieces
