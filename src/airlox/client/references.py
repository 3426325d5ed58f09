"""References to items, in the forms callers have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airlox.errors import UsageError
from airlox.protocol.item import ItemRef
from airlox.protocol.view import Item

Refs = Iterable[ItemRef | Item | Mapping[str, str]]


def item_refs(refs: Refs) -> tuple[ItemRef, ...]:
    """References as callers have them: from `send_file`, as items, or as plain mappings."""
    return tuple(_item_ref(ref) for ref in refs)


def _item_ref(ref: ItemRef | Item | Mapping[str, str]) -> ItemRef:
    if isinstance(ref, ItemRef):
        return ref
    if isinstance(ref, Item):
        return ref.ref
    try:
        return ItemRef(blob_sha256=ref["blob_sha256"], id=ref["id"])
    except (KeyError, TypeError):
        raise UsageError(
            "that is no reference to an item", hint="pass what send_file returned"
        ) from None
