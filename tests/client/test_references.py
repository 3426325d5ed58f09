"""What callers give in several forms."""

from __future__ import annotations

from typing import Any

import pytest

from airlox.client.references import item_refs, words
from airlox.errors import UsageError, ValidationError
from airlox.protocol.item import ItemRef

REF = ItemRef(blob_sha256="A" * 43, id="A" * 22)


def test_references_in_each_form() -> None:
    plain = {"blob_sha256": REF.blob_sha256, "id": REF.id, "more": "ignored"}
    assert item_refs([REF, plain]) == (REF, REF)
    assert item_refs(iter([REF])) == (REF,)
    assert item_refs(()) == ()


@pytest.mark.parametrize("given", [REF, {"id": REF.id}, "AAAA", [5], [None], [{"id": "x"}]])
def test_what_is_no_list_of_references(given: Any) -> None:
    with pytest.raises(UsageError) as caught:
        item_refs(given)
    assert caught.value.hint


def test_a_malformed_reference() -> None:
    with pytest.raises(ValidationError):
        item_refs([{"id": "x", "blob_sha256": "y"}])


def test_words() -> None:
    assert words(["gpu", "cpu"], "labels") == ("gpu", "cpu")
    assert words(None, "labels") == ()
    with pytest.raises(UsageError, match=r"\['gpu'\]"):
        words("gpu", "labels")
