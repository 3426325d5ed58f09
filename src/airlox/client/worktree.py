"""A working tree and a runner: what the tree is, and what of it the runner is known to have.

What a runner confirmed is remembered in the cache, per runner and folder: the digest and the index
of the last tree that came back in a signed result, and the recipes of its large files. They say
which chunks of a large file that changed the runner has.

A tree that is as it was costs a glance (`tree/glance.py`); its files are looked at when something
of them has to be sent.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from airlox import __version__
from airlox.errors import ValidationError
from airlox.protocol.digest import sha256_hex
from airlox.protocol.encoding import PublicKey
from airlox.protocol.keys import chunk_seed, fingerprint
from airlox.tree.chunks import KEPT_BYTES, Cutter, encode_recipes, parse_recipes
from airlox.tree.glance import Facts, Memory, facts_of, look
from airlox.tree.index import DIGEST_BYTES, INDEX_BYTES, TreeIndex, parse_index
from airlox.tree.read import ScanCache, changed, read_index
from airlox.tree.scan import Choice, root_of, scan
from airlox.tree.source import TreeSource

if TYPE_CHECKING:
    from airlox.client.membership import Membership


class WorkTree:
    """One folder, to be sent to one runner, or to one not chosen yet (None).

    `sub` is the folder within the tree, "" for its top. Raises TreeError when the folder cannot be
    sent.
    """

    def __init__(
        self,
        me: Membership,
        folder: str,
        *,
        runner: PublicKey | None,
        choice: Choice,
    ) -> None:
        self._me = me
        self._runner = runner
        self._choice = choice
        self._root, self.sub = root_of(folder)
        self._root_id = sha256_hex(os.fsencode(self._root))[:16]
        self._facts: Facts | None = None
        self._facts = self._find_out()

    @property
    def root(self) -> str:
        """The top of the tree."""
        return self._root

    @property
    def facts(self) -> Facts:
        assert self._facts is not None
        return self._facts

    @cached_property
    def source(self) -> TreeSource:
        """The files themselves. Raises TreeError, also when they are not what `facts` say."""
        found = scan(self._root, self._choice)
        # With the content of Git LFS it is another tree, file by file.
        index = read_index(found, ScanCache(self._path("scan-lfs" if self._choice.lfs else "scan")))
        if self._facts is not None and index.digest != self._facts.digest:
            raise changed(os.fsencode(self._root))
        return TreeSource(found, index, self._cutter())

    @cached_property
    def is_known(self) -> bool:
        """Whether this very tree is the last one that the runner confirmed."""
        if self._runner is None:
            return False
        kept = self._me.cache.load_state(self._name("digest", self._runner), DIGEST_BYTES)
        return kept == self.facts.digest

    @cached_property
    def lacking(self) -> frozenset[bytes]:
        """Contents to send unasked: against a known tree the new ones; to a runner that has seen
        nothing, all; to a runner not chosen yet, none."""
        if self.is_known or self._runner is None:
            return frozenset()
        contents = self.source.index.sizes().keys()
        return frozenset(contents if self._known is None else contents - self._known.sizes().keys())

    @cached_property
    def old_chunks(self) -> frozenset[bytes] | None:
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

    def confirm(self, runner: PublicKey) -> None:
        """The runner has this tree. Raises StorageError."""
        if self.is_known and runner == self._runner:
            return
        source, cache = self.source, self._me.cache
        cache.save_state(self._name("tree", runner), source.index.encode())
        if recipes := source.recipes:
            cache.save_state(self._name("recipes", runner), encode_recipes(recipes))
        cache.save_state(self._name("digest", runner), source.index.digest)

    def _find_out(self) -> Facts:
        memory = Memory(self._path("glance"))
        glance = look(self._root, self._choice, rules_version=__version__)
        facts = None if glance is None else memory.recall(self._root, glance)
        if facts is not None:
            return facts
        if glance is not None:
            memory.keep(glance, self.source.scan, self.source.index)
        return facts_of(self.source.scan, self.source.index)

    @cached_property
    def _known(self) -> TreeIndex | None:
        """The last tree of this folder that the runner confirmed."""
        if self._runner is None:
            return None
        data = self._me.cache.load_state(self._name("tree", self._runner), INDEX_BYTES)
        try:
            return None if data is None else parse_index(data)
        except ValidationError:
            return None

    def _cutter(self) -> Cutter:
        return Cutter(chunk_seed(self._me.invite.session_key, self._me.manifest.session_id))

    def _name(self, what: str, runner: PublicKey) -> str:
        return f"{what}-{fingerprint(runner)}-{self._root_id}"

    def _path(self, what: str) -> str:
        return self._me.cache.state_path(f"{what}-{self._root_id}")
