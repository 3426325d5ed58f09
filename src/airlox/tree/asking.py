"""What a runner asks a sender for next, so that nothing is asked for twice and nothing comes that
is here already.

Contents are asked for whole. Of a large one, where older chunks may serve again, the recipe is
asked for first; when all recipes that were asked for have come, the chunks that are missing.
That makes two questions, and a third where the sender had sent something unasked.
"""

from __future__ import annotations

from airlox.tree.chunks import NO_RECIPE, is_large
from airlox.tree.index import TreeIndex
from airlox.tree.lack import encode_lack
from airlox.tree.store import ContentStore


class Asking:
    """The questions about one tree. `reuse`: chunks of older files may serve again."""

    def __init__(self, index: TreeIndex, store: ContentStore, *, reuse: bool) -> None:
        self._index = index
        self._sizes = index.sizes()
        self._store = store
        self._reuse = reuse
        self._whole: set[bytes] = set()
        self._recipes: set[bytes] = set()
        self._chunks: set[bytes] = set()

    def question(self) -> bytes | None:
        """The next question; None while everything that is missing has been asked for."""
        missing = self._store.missing
        if self._recipes & missing:
            return None
        fresh = missing - self._whole
        recipes = {d for d in fresh if self._reuse and is_large(self._sizes[d])}
        chunks = {
            digest: wanted
            for digest, wanted in self._store.missing_chunks.items()
            if digest not in self._whole | self._chunks
        }
        if not fresh and not chunks:
            return None
        self._whole |= fresh - recipes
        self._recipes |= recipes
        self._chunks |= chunks.keys()
        partly = {digest: (NO_RECIPE, frozenset[bytes]()) for digest in recipes} | chunks
        return encode_lack(self._index, fresh - recipes, partly)
