"""An item that was sealed in an epoch that has ended meanwhile, sealed anew in the one there is.

It keeps its id, its place in the chain, its time and its meaning: to a relay that has the first one
it is the same item, so nothing is doubled. References to other items that were sealed anew with it
follow them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from airlox.client.membership import Membership
from airlox.protocol.aead import NONCE_BYTES
from airlox.protocol.item import (
    ItemRef,
    Kind,
    SealedItem,
    decrypt_item,
    parse_envelope,
    seal_under_header,
)
from airlox.protocol.job import Result
from airlox.protocol.payload import decode_payload, encode_payload

Renewed = Mapping[str, ItemRef]
"""Items that were sealed anew, by their ids: as they are named from then on."""


def reseal(me: Membership, sealed: SealedItem, renewed: Renewed) -> SealedItem:
    """An own item under the session key that there is now. Raises DecryptError for who was cut
    off."""
    envelope = parse_envelope(sealed.envelope)
    header = envelope.header
    epoch, session_key = me.keys.current()
    payload = decrypt_item(envelope, sealed.blob, me.keys.of(header.epoch_number))
    if renewed and header.kind is Kind.RESULT:
        payload = _follow(payload, renewed, full=me.manifest.is_full)
    header = msgspec.structs.replace(
        header,
        epoch=epoch or UNSET,
        refs=tuple(renewed.get(ref.id, ref) for ref in header.refs),
        size=len(payload),
    )
    return seal_under_header(me.key, session_key, header, payload, os.urandom(NONCE_BYTES))


def _follow(payload: bytes, renewed: Renewed, *, full: bool) -> bytes:
    """A result that names its out files as they are now."""
    result, _ = decode_payload(payload, full=full)
    assert isinstance(result, Result)
    out_files = tuple(
        msgspec.structs.replace(out, item=renewed.get(out.item.id, out.item))
        for out in result.out_files
    )
    return encode_payload(msgspec.structs.replace(result, out_files=out_files))
