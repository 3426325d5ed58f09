"""Sending a working tree with a job: only what its runner lacks, and only to that job.

The index of the tree is named in the signed job; content travels in sealed packs bound to the job.
Before the job is posted goes what the last tree that this runner confirmed did not have; a sender
that will not stay sends everything. After that the runner asks, and gets what it asks for: a
question is a bitmap over an index of *this job* (that of its tree, or of its repository), so
nothing outside these trees can be asked for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final

from airlox.client.progress import Parts
from airlox.client.relay_api import RelayApi
from airlox.client.shipment import Load, Shipment
from airlox.client.worktree import CheckRoot, WorkTree
from airlox.errors import StorageError, TreeError, ValidationError
from airlox.protocol.aead import NONCE_BYTES
from airlox.protocol.encoding import ItemId, PublicKey, b64u_encode
from airlox.protocol.limits import PACKS
from airlox.protocol.pack import open_lack, seal_pack
from airlox.tree.lack import tree_asked_for
from airlox.tree.packs import write_packs
from airlox.tree.scan import EVERYTHING, Choice

if TYPE_CHECKING:
    from airlox.client.core import Core
    from airlox.tree.index import TreeIndex
    from airlox.tree.scan import LeftOut

ANSWERS: Final = 16
"""Most questions of a runner answered for one job: an honest one asks up to three times
for each tree."""


class TreeUpload:
    """One tree on its way to one job.

    `sub` is the folder within the tree that the job starts in, "" for its top; `files` and `size`
    (bytes) are its totals, `changed` how many of its contents the runner is thought to lack. With
    `git_metadata` a small copy of its repository goes too: `git` is its digest, `is_shallow` says
    that older commits are missing here already.
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
        git_metadata: bool = False,
        check_root: CheckRoot | None = None,
    ) -> None:
        self.job = job
        self._core = core
        self._tree = WorkTree(
            core.membership, folder, runner=runner, choice=choice, check_root=check_root
        )
        repository = self._tree.repository() if git_metadata else None
        self._shipments: list[Shipment] = [self._tree]
        if repository is not None:
            self._shipments.insert(0, repository)  # in the order in which the runner wants them
        facts = self._tree.facts
        self.sub = self._tree.sub
        self.digest = b64u_encode(facts.digest)
        self.git = None if repository is None else b64u_encode(repository.digest)
        self.is_shallow = repository is not None and repository.is_shallow
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
            self._send([shipment.everything() for shipment in self._shipments], self._core.api)
        else:
            unasked = [shipment.unasked() for shipment in self._shipments]
            self._send([load for load in unasked if load is not None], self._core.api)

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
        plain = self._core.timeline.open_sealed(
            lambda key: open_lack(
                key, me.manifest.session_id, job=self.job, runner=runner, sealed=sealed
            ),
            api,
        )
        asked_for = tree_asked_for(plain)
        meant = [shipment for shipment in self._shipments if shipment.digest == asked_for]
        self._send([(meant or self._shipments)[0].asked(plain)], api)

    def acknowledged_by(self, runner: PublicKey) -> None:
        """A signed result named this tree: the runner has it. A failure costs a second upload."""
        try:
            for shipment in self._shipments:
                shipment.confirm(runner)
        except (StorageError, TreeError) as error:
            self._core.on_warning(f"the next tree will be sent whole: {error.message}")

    def _send(self, loads: Iterable[Load], api: RelayApi) -> None:
        loads = [*loads]
        progress = Parts(api.on_progress, "tree", sum(load.size for load in loads))
        records = chain.from_iterable(load.records for load in loads)
        counted = progress.count(records, lambda record: len(record.data))
        for plain in write_packs(counted) if loads else ():
            self._put(api, plain, progress)

    def _put(self, api: RelayApi, plain: bytes, progress: Parts) -> None:
        number = next(self._numbers, None)
        if number is None:
            raise TreeError(f"the tree takes more than {PACKS} packs", code="tree_too_large")
        me = self._core.membership

        def put() -> int:
            epoch, key = me.keys.current()
            sealed = seal_pack(
                key,
                me.manifest.session_id,
                job=self.job,
                number=number,
                plain=plain,
                nonce=os.urandom(NONCE_BYTES),
            )
            moved = progress.body(len(sealed))
            api.put_pack(self.job, number, sealed, epoch=epoch, moved=moved)
            return len(sealed)

        self.sent_bytes += self._core.timeline.in_current_epoch(put, api)
