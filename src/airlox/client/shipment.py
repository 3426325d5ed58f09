"""One tree on its way to one runner: what of it to send unasked, and what when asked.

What a runner confirmed is remembered in the cache, per runner and tree: the digest and the index
of the last one that came back in a signed result, and the recipes of its large files. They say
which chunks of a large file that changed the runner has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from airlox.errors import ValidationError
from airlox.protocol.encoding import PublicKey
from airlox.protocol.keys import chunk_seed, fingerprint
from airlox.tree.chunks import KEPT_BYTES, Cutter, encode_recipes, is_large, parse_recipes
from airlox.tree.index import DIGEST_BYTES, INDEX_BYTES, TreeIndex, parse_index
from airlox.tree.lack import Lack, parse_lack
from airlox.tree.packs import Record
from airlox.tree.source import ALL, Part, TreeSource

if TYPE_CHECKING:
    from airlox.client.membership import Membership

UNASKED_BYTES: Final = 32 << 20
"""More than this is sent only when the runner has said that it lacks it."""


class Load(NamedTuple):
    """Records to send, whose contents have about `size` bytes."""

    records: Iterator[Record]
    size: int


class Shipment(ABC):
    """One tree, to be sent to one runner, or to one not chosen yet (None).

    `kept_as` names the tree in the cache.
    """

    def __init__(self, me: Membership, kept_as: str, runner: PublicKey | None) -> None:
        self._me = me
        self._kept_as = kept_as
        self._runner = runner

    @property
    @abstractmethod
    def digest(self) -> bytes:
        """The digest of its index."""

    @property
    @abstractmethod
    def source(self) -> TreeSource:
        """The files themselves. Raises TreeError, also when they are not what `digest` says."""

    # -- what the runner is known to have ----------------------------------------------------

    @cached_property
    def is_known(self) -> bool:
        """Whether this very tree is the last one that the runner confirmed."""
        if self._runner is None:
            return False
        kept = self._me.cache.load_state(self._name("digest", self._runner), DIGEST_BYTES)
        return kept == self.digest

    @cached_property
    def lacking(self) -> frozenset[bytes]:
        """Contents to send unasked: against a known tree the new ones; to a runner that has seen
        nothing, all; to a runner not chosen yet, none."""
        if self.is_known or self._runner is None:
            return frozenset()
        contents = self.source.index.sizes().keys()
        return frozenset(contents if self._known is None else contents - self._known.sizes().keys())

    def confirm(self, runner: PublicKey) -> None:
        """The runner has this tree. Raises StorageError."""
        if self.is_known and runner == self._runner:
            return
        source, cache = self.source, self._me.cache
        cache.save_state(self._name("tree", runner), source.index.encode())
        if recipes := source.recipes:
            cache.save_state(self._name("recipes", runner), encode_recipes(recipes))
        cache.save_state(self._name("digest", runner), source.index.digest)

    # -- what to send ------------------------------------------------------------------------

    def everything(self) -> Load:
        """The index and all contents."""
        source = self.source
        sizes = source.index.sizes()
        records = chain(source.index_records(), source.records(dict.fromkeys(sizes, ALL)))
        return Load(records, sum(sizes.values()))

    def unasked(self) -> Load | None:
        """What the runner is thought to lack; None where it has all. Where that is much, only the
        index: it may have the rest from a try that was interrupted."""
        if self.is_known:
            return None
        sizes = self.source.index.sizes()
        parts = {digest: self._part(digest, sizes[digest]) for digest in self.lacking}
        index = self.source.index
        records = self.source.index_records(self._part(index.digest, len(index.encode())))
        size = self._bytes_of(parts)
        if size > UNASKED_BYTES:
            return Load(records, 0)
        return Load(chain(records, self.source.records(parts)), size)

    def asked(self, question: bytes) -> Load:
        """What a runner asks for. Raises ProtocolError for a question about another tree."""
        source = self.source
        lack = parse_lack(question, source.index)
        parts = self._asked_parts(lack)
        records = source.records(parts)
        if lack.needs_index:
            records = chain(source.index_records(), records)
        return Load(records, self._bytes_of(parts))

    def _part(self, digest: bytes, size: int) -> Part:
        """Of a large file that took the place of another, the recipe and the chunks that are in
        none of the old ones; all of anything else."""
        had = self._old_chunks
        if had is None or not is_large(size):
            return ALL
        return Part(recipe=True, chunks=self.source.recipe(digest).digests - had)

    def _bytes_of(self, parts: Mapping[bytes, Part]) -> int:
        source = self.source
        sizes = source.index.sizes()
        whole = sum(sizes[digest] for digest, part in parts.items() if part.chunks is None)
        return whole + sum(
            chunk.length
            for digest, part in parts.items()
            if part.chunks
            for chunk in source.recipe(digest).chunks
            if chunk.digest in part.chunks
        )

    def _asked_parts(self, lack: Lack) -> dict[bytes, Part]:
        """Raises ValidationError for chunks that the files of this tree do not have."""
        source = self.source
        parts = dict.fromkeys(lack.digests, ALL)
        for digest, chosen in lack.chunks.items():
            chunks = source.recipe(digest).chunks if chosen.total else ()
            if len(chunks) != chosen.total:
                raise ValidationError("the runner asks for chunks of another file")
            digests = frozenset(chunks[at].digest for at in chosen.positions)
            parts.setdefault(digest, Part(recipe=not chosen.total, chunks=digests))
        return parts

    # -- what is kept ------------------------------------------------------------------------

    @cached_property
    def _known(self) -> TreeIndex | None:
        """The last tree of this name that the runner confirmed."""
        if self._runner is None:
            return None
        data = self._me.cache.load_state(self._name("tree", self._runner), INDEX_BYTES)
        try:
            return None if data is None else parse_index(data)
        except ValidationError:
            return None

    @cached_property
    def _old_chunks(self) -> frozenset[bytes] | None:
        """Chunks of the large contents of the last tree and of its index; None without one."""
        if self._runner is None or self._known is None:
            return None
        data = self._me.cache.load_state(self._name("recipes", self._runner), KEPT_BYTES)
        try:
            kept = {} if data is None else parse_recipes(data)
        except ValidationError:
            kept = {}
        self.source.know(kept)
        index = self._cutter().recipe((self._known.encode(),))
        return index.digests.union(*(recipe.digests for recipe in kept.values()))

    def _cutter(self) -> Cutter:
        _, session_key = self._me.keys.current()
        return Cutter(chunk_seed(session_key, self._me.manifest.session_id))

    def _name(self, what: str, runner: PublicKey) -> str:
        return f"{what}-{fingerprint(runner)}-{self._kept_as}"
