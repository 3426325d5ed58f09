"""Sending a working tree with a job: only what its runner lacks, and only to that job.

The index of the tree is named in the signed job; content travels in sealed packs bound to the job.
Before the job is posted goes what the last tree that this runner confirmed did not have; a sender
that will not stay sends everything. After that the runner asks, and gets what it asks for: a
question is a bitmap over *this job's* index, so nothing outside that tree can be asked for.

What a runner confirmed is remembered in the cache, per runner and folder: the index of the last
tree that came back in a signed result.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from airlox.client.relay_api import RelayApi
from airlox.errors import StorageError, TreeError, ValidationError
from airlox.protocol.aead import NONCE_BYTES
from airlox.protocol.digest import hash_of, sha256_hex
from airlox.protocol.encoding import ItemId, PublicKey
from airlox.protocol.keys import fingerprint
from airlox.protocol.limits import PACKS
from airlox.protocol.pack import open_lack, seal_pack
from airlox.tree.chunks import Content, write_packs
from airlox.tree.index import INDEX_BYTES, TreeIndex, parse_index
from airlox.tree.lack import parse_lack
from airlox.tree.read import ScanCache, read_contents, read_index
from airlox.tree.scan import root_of, scan

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
        self._scan = scan(place.root, allow=allow, exclude=exclude)
        self._root_id = sha256_hex(os.fsencode(self._scan.root))[:16]
        self._index = read_index(self._scan, self._scan_cache())
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

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What stays here, and why."""
        return self._scan.left_out

    def send_first(self, *, everything: bool) -> None:
        """Store packs on the relay before the job is posted."""
        if everything:
            self._send(self._index.sizes().keys(), self._core.api, with_index=True)
        elif not self._index_known:
            self._send(self._lacking, self._core.api, with_index=True)

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
        lack = parse_lack(plain, self._index)
        self._send(lack.digests, api, with_index=lack.needs_index)

    def acknowledged_by(self, runner: PublicKey) -> None:
        """A signed result named this tree: the runner has it. A failure costs a second upload."""
        try:
            self._core.membership.cache.save_state(self._state_name(runner), self._index.encode())
        except StorageError as error:
            self._core.on_warning(f"the next tree will be sent whole: {error.message}")

    def _send(self, digests: Collection[bytes], api: RelayApi, *, with_index: bool) -> None:
        for plain in write_packs(self._contents(digests, with_index=with_index)):
            self._put(api, plain)

    def _contents(self, digests: Collection[bytes], *, with_index: bool) -> Iterator[Content]:
        if with_index:
            data = self._index.encode()
            yield Content(self._index.digest, len(data), (data,))
        yield from read_contents(self._scan, self._index, digests)

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

    def _state_name(self, runner: PublicKey) -> str:
        return f"tree-{fingerprint(runner)}-{self._root_id}"

    def _scan_cache(self) -> ScanCache:
        cache = self._core.membership.cache
        return ScanCache(cache.state_path(f"scan-{self._root_id}"))
