"""Sending a working tree with a job: only what its runner lacks, and only to that job.

The index of the tree is named in the signed job; content travels in sealed packs bound to the job.
Before the job is posted goes what the last tree that this runner confirmed did not have; a sender
that will not stay sends everything. After that the runner asks, and gets what it asks for: a
question is a bitmap over *this job's* index, so nothing outside that tree can be asked for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final

from airlox.client.progress import Parts
from airlox.client.relay_api import RelayApi
from airlox.client.worktree import WorkTree
from airlox.errors import StorageError, TreeError, ValidationError
from airlox.protocol.aead import NONCE_BYTES
from airlox.protocol.encoding import ItemId, PublicKey, b64u_encode
from airlox.protocol.limits import PACKS
from airlox.protocol.pack import open_lack, seal_pack
from airlox.tree.chunks import is_large
from airlox.tree.lack import Lack, parse_lack
from airlox.tree.packs import Record, write_packs
from airlox.tree.scan import EVERYTHING, Choice
from airlox.tree.source import ALL, Part

if TYPE_CHECKING:
    from airlox.client.core import Core
    from airlox.tree.index import TreeIndex
    from airlox.tree.scan import LeftOut

UNASKED_BYTES: Final = 32 << 20
"""More than this is sent only when the runner has said that it lacks it."""
ANSWERS: Final = 16
"""Most questions of a runner answered for one job: an honest one asks up to three times."""


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
        choice: Choice = EVERYTHING,
    ) -> None:
        self.job = job
        self._core = core
        self._tree = WorkTree(core.membership, folder, runner=runner, choice=choice)
        facts = self._tree.facts
        self.sub = self._tree.sub
        self.digest = b64u_encode(facts.digest)
        self.files = facts.files
        self.size = facts.size
        self.left_out: tuple[LeftOut, ...] = facts.left_out
        self.pointers: tuple[bytes, ...] = facts.pointers
        self.changed = len(self._tree.lacking)
        self.sent_bytes = 0
        self.sent: TreeIndex | None = None
        """The files themselves, where they are remembered."""
        self._numbers = iter(range(PACKS))
        self._answering = threading.Lock()
        self._answers = 0
        self._answered = b""

    @property
    def root(self) -> str:
        """The top of the tree."""
        return self._tree.root

    def remember(self) -> None:
        """Keep in mind what the files are now, for what comes back. Raises TreeError."""
        self.sent = self._tree.source.index

    def send_first(self, *, everything: bool) -> None:
        """Store packs on the relay before the job is posted: all there is for a sender that will
        not stay, else what the runner is thought to lack. When that is much, the runner is asked:
        it may have it from a try that was interrupted."""
        if everything:
            source = self._tree.source
            self._send(self._everything(), sum(source.index.sizes().values()), self._core.api)
        elif not self._tree.is_known:
            parts = self._unasked_parts()
            index = self._tree.source.index_records(self._index_part())
            size = self._bytes_of(parts)
            if size > UNASKED_BYTES:
                self._send(index, 0, self._core.api)
            else:
                records = self._tree.source.records(parts)
                self._send(chain(index, records), size, self._core.api)

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
        source = self._tree.source
        lack = parse_lack(plain, source.index)
        parts = self._asked_parts(lack)
        records = source.records(parts)
        if lack.needs_index:
            records = chain(source.index_records(), records)
        self._send(records, self._bytes_of(parts), api)

    def acknowledged_by(self, runner: PublicKey) -> None:
        """A signed result named this tree: the runner has it. A failure costs a second upload."""
        try:
            self._tree.confirm(runner)
        except (StorageError, TreeError) as error:
            self._core.on_warning(f"the next tree will be sent whole: {error.message}")

    def _send(self, records: Iterator[Record], size: int, api: RelayApi) -> None:
        """Send records, whose contents have about `size` bytes."""
        progress = Parts(api.on_progress, "tree", size)
        counted = progress.count(records, lambda record: len(record.data))
        for plain in write_packs(counted):
            self._put(api, plain, progress)

    def _everything(self) -> Iterator[Record]:
        source = self._tree.source
        yield from source.index_records()
        yield from source.records(dict.fromkeys(source.index.sizes(), ALL))

    def _unasked_parts(self) -> dict[bytes, Part]:
        """What the last tree that the runner confirmed did not have; of a large file that took
        the place of another, the recipe and the chunks that are in none of the old ones."""
        sizes = self._tree.source.index.sizes()
        return {digest: self._part(digest, sizes[digest]) for digest in self._tree.lacking}

    def _index_part(self) -> Part:
        index = self._tree.source.index
        return self._part(index.digest, len(index.encode()))

    def _part(self, digest: bytes, size: int) -> Part:
        had = self._tree.old_chunks
        if had is None or not is_large(size):
            return ALL
        return Part(recipe=True, chunks=self._tree.source.recipe(digest).digests - had)

    def _bytes_of(self, parts: Mapping[bytes, Part]) -> int:
        source = self._tree.source
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
        source = self._tree.source
        parts = dict.fromkeys(lack.digests, ALL)
        for digest, chosen in lack.chunks.items():
            chunks = source.recipe(digest).chunks if chosen.total else ()
            if len(chunks) != chosen.total:
                raise ValidationError("the runner asks for chunks of another file")
            digests = frozenset(chunks[at].digest for at in chosen.positions)
            parts.setdefault(digest, Part(recipe=not chosen.total, chunks=digests))
        return parts

    def _put(self, api: RelayApi, plain: bytes, progress: Parts) -> None:
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
        api.put_pack(self.job, number, sealed, moved=progress.body(len(sealed)))
        self.sent_bytes += len(sealed)
