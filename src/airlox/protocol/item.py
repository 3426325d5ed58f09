"""The envelope of everything posted: seal (author), check (relay), open (reader).

A blob is nonce ‖ AES-256-GCM(payload) ‖ tag under the item's own key, with the canonical header
as associated data; the author signs header ‖ SHA-256(blob). So a relay can check who posted what,
how large and when, without reading it.
Source: docs/protocol.md, "Items".
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from airlox.errors import EncodingError, LimitError, ValidationError
from airlox.protocol import aead, canonical, limits
from airlox.protocol.canonical import U53, Signed, TimeMs, Wire
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import (
    ItemId,
    PublicKey,
    SessionId,
    b64u_encode,
    parse_hash,
    parse_item_id,
)
from airlox.protocol.keys import SigningKey, item_key, parse_public_key
from airlox.protocol.signature import Label, verify


class Kind(StrEnum):
    TEXT = "text"
    FILE = "file"
    JOB = "job"
    RESULT = "result"
    EVENT = "event"
    RUNNER_INFO = "runner_info"
    """Full sessions only: what a runner offers."""


SUBKINDS: Final[dict[Kind, tuple[str | None, ...]]] = {
    Kind.TEXT: (None,),
    Kind.FILE: ("py", "md", "zip", "image"),
    Kind.JOB: ("py", "sh"),
    Kind.RESULT: (None,),
    Kind.EVENT: (None,),
    Kind.RUNNER_INFO: (None,),
}
"""Which subkinds each kind has. `sh` and `runner_info` belong to full sessions (policy.py)."""


class ItemRef(Wire, frozen=True, kw_only=True):
    """Names one item and the exact bytes it has."""

    blob_sha256: str
    id: str

    def __post_init__(self) -> None:
        parse_hash(self.blob_sha256)
        parse_item_id(self.id)


class Header(Wire, frozen=True, kw_only=True):
    """What everybody, the relay included, may know of an item."""

    author: str
    created_at_ms: TimeMs
    epoch: Annotated[int, msgspec.Meta(ge=1, le=limits.EPOCHS)] | UnsetType = UNSET
    id: str
    kind: Kind
    refs: tuple[ItemRef, ...]
    session_id: str
    size: U53
    subkind: str | None
    v: Literal[1]

    def __post_init__(self) -> None:
        parse_public_key(self.author)
        parse_item_id(self.id)
        if len(self.refs) > limits.REFS:
            raise LimitError(f"an item has at most {limits.REFS} references")
        if self.subkind not in SUBKINDS[self.kind]:
            raise ValidationError(f"{self.kind} items have no such subkind")

    @property
    def epoch_number(self) -> int:
        """Of the epoch whose session key sealed the item; 0 before the first."""
        return 0 if self.epoch is UNSET else self.epoch


class _SignedHeader(Signed, frozen=True, kw_only=True):
    header: Header


class Envelope(msgspec.Struct, frozen=True):
    """A well-formed envelope. Its signature is checked together with the blob."""

    document: str
    header: Header
    signature: str
    header_bytes: bytes

    @property
    def id(self) -> ItemId:
        return ItemId(self.header.id)

    @property
    def author(self) -> PublicKey:
        return PublicKey(self.header.author)

    @property
    def blob_size(self) -> int:
        return self.header.size + limits.BLOB_OVERHEAD_BYTES


class SealedItem(msgspec.Struct, frozen=True):
    """An item ready to post."""

    envelope: str
    blob: bytes
    ref: ItemRef

    def frame(self) -> bytes:
        return encode_frame(self.envelope, self.blob)


def seal_item(
    key: SigningKey,
    session_key: bytes,
    *,
    session_id: SessionId,
    item_id: ItemId,
    kind: Kind,
    subkind: str | None,
    created_at_ms: int,
    payload: bytes,
    nonce: bytes,
    refs: tuple[ItemRef, ...] = (),
    epoch: int = 0,
) -> SealedItem:
    """Encrypts and signs `payload`. `nonce` is 12 fresh random bytes, `epoch` the number of the
    epoch that the session key is of."""
    header = Header(
        author=key.public,
        created_at_ms=created_at_ms,
        epoch=epoch or UNSET,
        id=item_id,
        kind=kind,
        refs=refs,
        session_id=session_id,
        size=len(payload),
        subkind=subkind,
        v=1,
    )
    return seal_under_header(key, session_key, header, payload, nonce)


def seal_under_header(
    key: SigningKey, session_key: bytes, header: Header, payload: bytes, nonce: bytes
) -> SealedItem:
    """`seal_item` where the header is there already; its size must be that of the payload."""
    header_bytes = canonical.encode(header)
    item_id = ItemId(header.id)
    secret = item_key(session_key, SessionId(header.session_id), item_id)
    blob = aead.seal(secret, nonce, payload, header_bytes)
    digest = sha256(blob)
    signature = key.sign(Label.ITEM, header_bytes + digest)
    envelope = canonical.encode(_SignedHeader(header=header, sig=signature)).decode()
    return SealedItem(envelope, blob, ItemRef(blob_sha256=b64u_encode(digest), id=item_id))


def parse_envelope(document: str) -> Envelope:
    """A well-formed envelope; the signature is not checked yet. Raises ValidationError."""
    if len(document) > limits.ENVELOPE_BYTES:
        raise LimitError("envelope is too large")
    signed = canonical.decode(document, _SignedHeader, "envelope")
    return Envelope(document, signed.header, signed.sig, canonical.encode(signed.header))


def verify_item(envelope: Envelope, blob: bytes) -> ItemRef:
    """Returns the item's reference when the author signed exactly this blob.

    Raises ValidationError (size) or SignatureError.
    """
    if len(blob) != envelope.blob_size:
        raise ValidationError(f"blob of item {envelope.id} does not have the size it states")
    digest = sha256(blob)
    verify_item_digest(envelope, digest)
    return ItemRef(blob_sha256=b64u_encode(digest), id=envelope.id)


def verify_item_digest(envelope: Envelope, blob_sha256: bytes) -> None:
    """`verify_item` for a blob that was hashed while it was received, its size checked before."""
    message = envelope.header_bytes + blob_sha256
    verify(envelope.author, Label.ITEM, message, envelope.signature)


def open_item(envelope: Envelope, blob: bytes, session_key: bytes) -> bytes:
    """The verified, decrypted payload. Raises ValidationError, SignatureError, DecryptError."""
    verify_item(envelope, blob)
    return decrypt_item(envelope, blob, session_key)


def decrypt_item(envelope: Envelope, blob: bytes, session_key: bytes) -> bytes:
    """The payload in a blob that `verify_item` accepted. Raises ValidationError, DecryptError."""
    key = item_key(session_key, SessionId(envelope.header.session_id), envelope.id)
    return aead.open_sealed(key, blob, envelope.header_bytes, f"item {envelope.id}")


def encode_frame(envelope: str, blob: bytes) -> bytes:
    """Body of a post: 4-byte big-endian length of the envelope ‖ envelope ‖ blob."""
    head = envelope.encode()
    return len(head).to_bytes(4, "big") + head + blob


def parse_frame(body: bytes) -> tuple[str, bytes]:
    """Envelope text and blob of a frame. Raises ValidationError."""
    size = int.from_bytes(body[:4], "big")
    if len(body) < 4 or size > len(body) - 4:
        raise EncodingError("frame ends before its envelope does")
    if size > limits.ENVELOPE_BYTES:
        raise LimitError("envelope is too large")
    try:
        return body[4 : 4 + size].decode(), body[4 + size :]
    except UnicodeDecodeError:
        raise EncodingError("envelope is not UTF-8") from None
