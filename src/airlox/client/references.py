"""What callers give in several forms: references to items, lists of words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airlox.errors import UsageError
from airlox.protocol.item import ItemRef
from airlox.protocol.view import Item

Refs = Iterable[ItemRef | Item | Mapping[str, str]]


def item_refs(refs: Refs) -> tuple[ItemRef, ...]:
    """References as callers have them: from `send_file`, as items, or as plain mappings."""
    if isinstance(refs, ItemRef | Item | Mapping | str):
        raise UsageError("references come as a list", hint="put it into brackets: [ref]")
    return tuple(_item_ref(ref) for ref in refs)


def words(given: Iterable[str] | None, what: str) -> tuple[str, ...]:
    """A list of words; a single string is refused, since it would be taken letter by letter."""
    if isinstance(given, str):
        raise UsageError(f"{what} come as a list", hint=f"put it into brackets: [{given[:40]!r}]")
    return tuple(given or ())


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
