"""Sending a working tree with a job: only what its runner lacks, and only to that job.

The index of the tree is named in the signed job; content travels in sealed packs bound to the job.
Before the job is posted goes what the last tree that this runner confirmed did not have; a sender
that will not stay sends everything. After that the runner asks, and gets what it asks for: a
question is a bitmap over *this job's* index, so nothing outside that tree can be asked for.

What a runner confirmed is remembered in the cache, per runner and folder: the index of the last
tree that came back in a signed result, and the recipes of its large files. They say which chunks
of a large file that changed the runner has.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from airlox.client.relay_api import RelayApi
from airlox.errors import StorageError, TreeError, ValidationError
from airlox.protocol.aead import NONCE_BYTES
from airlox.protocol.digest import hash_of, sha256_hex
from airlox.protocol.encoding import ItemId, PublicKey
from airlox.protocol.keys import chunk_seed, fingerprint
from airlox.protocol.limits import PACKS
from airlox.protocol.pack import open_lack, seal_pack
from airlox.tree.chunks import (
    KEPT_BYTES,
    Cutter,
    encode_recipes,
    is_large,
    parse_recipes,
)
from airlox.tree.index import INDEX_BYTES, TreeIndex, parse_index
from airlox.tree.lack import Lack, parse_lack
from airlox.tree.packs import Record, write_packs
from airlox.tree.read import ScanCache, read_index
from airlox.tree.scan import root_of, scan
from airlox.tree.source import ALL, Part, TreeSource

if TYPE_CHECKING:
    from airlox.client.core import Core
    from airlox.tree.scan import LeftOut

ANSWERS: Final = 16
"""Most questions of a runner answered for one job: an honest one asks once or twice."""


class TreeUpload:
    """One tree on its way to one job.

    `sub` is the folder within the tree that the job starts in, "" for its top; `files` and `size`
    (bytes) are its totals, `changed` how many of its contents the runner is thought to lack.
    Raises TreeError when the folder cannot be sent.
    """

    def __init__(
        self,
        core: Core,
        folder: str,
        *,
        job: ItemId,
        runner: PublicKey | None,
        allow: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> None:
        self.job = job
        self._core = core
        self._runner = runner
        place = root_of(folder)
        found = scan(place.root, allow=allow, exclude=exclude)
        self.left_out: tuple[LeftOut, ...] = found.left_out
        self._root_id = sha256_hex(os.fsencode(found.root))[:16]
        self._index = read_index(found, self._scan_cache())
        self._source = TreeSource(found, self._index, self._cutter())
        self.sub = place.sub
        self.digest = hash_of(self._index.encode())
        self.files = len(self._index.entries)
        self.size = self._index.total_bytes
        self.sent_bytes = 0
        self._numbers = iter(range(PACKS))
        self._answering = threading.Lock()
        self._answers = 0
        self._answered = b""
        known = self._known()
        self._lacking = self._missing_from(known)
        self.changed = len(self._lacking)
        self._index_known = known is not None and known == self._index
        self._had = self._chunks_of(known)

    def send_first(self, *, everything: bool) -> None:
        """Store packs on the relay before the job is posted."""
        if everything:
            self._send(self._everything(), self._core.api)
        elif not self._index_known:
            self._send(self._unasked(), self._core.api)

    def answer(self, sealed: bytes, runner: PublicKey, api: RelayApi) -> None:
        """Send what the job's runner says it lacks.

        A question that was answered and comes again (a relay keeps the newest, and tells it to
        every new line) gets nothing more: what it asked for is on the relay. Raises ProtocolError
        for a question that is none, or one too many; RelayError, ConnectionLost.
        """
        with self._answering:
            if sealed != self._answered:
                self._answer(sealed, runner, api)
                self._answered = sealed

    def _answer(self, sealed: bytes, runner: PublicKey, api: RelayApi) -> None:
        self._answers += 1
        if self._answers > ANSWERS:
            raise ValidationError("the runner asks for tree content again and again")
        me = self._core.membership
        plain = open_lack(
            me.invite.session_key,
            me.manifest.session_id,
            job=self.job,
            runner=runner,
            sealed=sealed,
        )
        self._send(self._asked(parse_lack(plain, self._index)), api)

    def acknowledged_by(self, runner: PublicKey) -> None:
        """A signed result named this tree: the runner has it. A failure costs a second upload."""
        cache = self._core.membership.cache
        try:
            cache.save_state(self._state_name(runner), self._index.encode())
            if recipes := self._source.recipes:
                cache.save_state(self._recipes_name(runner), encode_recipes(recipes))
        except StorageError as error:
            self._core.on_warning(f"the next tree will be sent whole: {error.message}")

    def _send(self, records: Iterator[Record], api: RelayApi) -> None:
        for plain in write_packs(records):
            self._put(api, plain)

    def _everything(self) -> Iterator[Record]:
        yield from self._source.index_records()
        yield from self._source.records(dict.fromkeys(self._index.sizes(), ALL))

    def _unasked(self) -> Iterator[Record]:
        """What the last tree that the runner confirmed did not have; of a large file that took
        the place of another, the recipe and the chunks that are in none of the old ones."""
        sizes = self._index.sizes()
        yield from self._source.index_records(
            self._part(self._index.digest, len(self._index.encode()))
        )
        yield from self._source.records({d: self._part(d, sizes[d]) for d in self._lacking})

    def _part(self, digest: bytes, size: int) -> Part:
        if self._had is None or not is_large(size):
            return ALL
        return Part(recipe=True, chunks=self._source.recipe(digest).digests - self._had)

    def _asked(self, lack: Lack) -> Iterator[Record]:
        """Raises ValidationError for chunks that the files of this tree do not have."""
        if lack.needs_index:
            yield from self._source.index_records()
        parts = dict.fromkeys(lack.digests, ALL)
        for digest, chosen in lack.chunks.items():
            chunks = self._source.recipe(digest).chunks if chosen.total else ()
            if len(chunks) != chosen.total:
                raise ValidationError("the runner asks for chunks of another file")
            digests = frozenset(chunks[at].digest for at in chosen.positions)
            parts.setdefault(digest, Part(recipe=not chosen.total, chunks=digests))
        yield from self._source.records(parts)

    def _put(self, api: RelayApi, plain: bytes) -> None:
        number = next(self._numbers, None)
        if number is None:
            raise TreeError(f"the tree takes more than {PACKS} packs", code="tree_too_large")
        me = self._core.membership
        sealed = seal_pack(
            me.invite.session_key,
            me.manifest.session_id,
            job=self.job,
            number=number,
            plain=plain,
            nonce=os.urandom(NONCE_BYTES),
        )
        api.put_pack(self.job, number, sealed)
        self.sent_bytes += len(sealed)

    def _known(self) -> TreeIndex | None:
        """The last tree of this folder that the runner confirmed."""
        if self._runner is None:
            return None
        data = self._core.membership.cache.load_state(self._state_name(self._runner), INDEX_BYTES)
        try:
            return None if data is None else parse_index(data)
        except ValidationError:
            return None

    def _missing_from(self, known: TreeIndex | None) -> frozenset[bytes]:
        """Contents to send unasked: against a known tree the new ones; to a runner that has seen
        nothing, all; to a runner not chosen yet, none."""
        contents = self._index.sizes().keys()
        if known is not None:
            return frozenset(contents - known.sizes().keys())
        return frozenset(contents if self._runner is not None else ())

    def _chunks_of(self, known: TreeIndex | None) -> frozenset[bytes] | None:
        """Chunks of the large contents of that tree and of its index; None without a tree."""
        if self._runner is None or known is None:
            return None
        cache = self._core.membership.cache
        data = cache.load_state(self._recipes_name(self._runner), KEPT_BYTES)
        try:
            kept = {} if data is None else parse_recipes(data)
        except ValidationError:
            kept = {}
        self._source.know(kept)
        index = self._cutter().recipe((known.encode(),))
        return index.digests.union(*(recipe.digests for recipe in kept.values()))

    def _cutter(self) -> Cutter:
        me = self._core.membership
        return Cutter(chunk_seed(me.invite.session_key, me.manifest.session_id))

    def _recipes_name(self, runner: PublicKey) -> str:
        return f"recipes-{fingerprint(runner)}-{self._root_id}"

    def _state_name(self, runner: PublicKey) -> str:
        return f"tree-{fingerprint(runner)}-{self._root_id}"

    def _scan_cache(self) -> ScanCache:
        cache = self._core.membership.cache
        return ScanCache(cache.state_path(f"scan-{self._root_id}"))
