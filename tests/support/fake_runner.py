"""A runner made of the client and the protocol core, which does what a test says with its jobs."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import msgspec

from airlox.client.core import Core
from airlox.client.deadline import Deadline
from airlox.client.membership import Profile, enter
from airlox.client.stream import Feed
from airlox.errors import AirloxError
from airlox.protocol import job, live, manifest, pack, wire
from airlox.protocol.cert import ClientKind, RunnerInfo, SandboxName
from airlox.protocol.digest import NOTHING_HEX
from airlox.protocol.encoding import ItemId
from airlox.protocol.invite import parse_invite
from airlox.protocol.item import ItemRef, Kind
from airlox.protocol.payload import File
from airlox.protocol.view import Item, input_digest

TIMEOUT_S = 60.0


class Task:
    """One job in the hands of a test's script."""

    def __init__(self, runner: FakeRunner, item: Item) -> None:
        self.runner = runner
        self.item = item
        self.meta: Any = item.meta
        self.cancelled = threading.Event()
        self._writer = live.LiveWriter(
            runner.core.membership.key,
            runner.core.membership.keys.of(0),
            runner.core.manifest.session_id,
            item.ref,
            secrets.token_bytes(16),
        )
        self._totals = [0, 0, 0]

    def print(self, *pieces: tuple[int, bytes]) -> None:
        """Post one segment of live output: (1 stdout or 2 stderr, bytes) pairs."""
        frame = self.skip(*pieces)
        self.runner.core.api.post_output(self.item.id, frame)

    def skip(self, *pieces: tuple[int, bytes]) -> bytes:
        """Make a segment and do not post it."""
        for stream, data in pieces:
            self._totals[stream] += len(data)
        epoch, key = self.runner.core.membership.keys.current()
        writer = msgspec.structs.replace(self._writer, session_key=key, epoch=epoch)
        frame, self._writer = writer.write([live.Piece(*piece) for piece in pieces])
        return frame

    def send_file(self, name: str, body: bytes, subkind: str, mime: str) -> job.OutFile:
        outbox = self.runner.core.outbox
        sealed = outbox.seal(File(mime=mime, name=name), body, subkind=subkind)
        return job.OutFile(item=outbox.post(sealed), name=name, size=len(body))

    def lacks(self, plain: bytes) -> None:
        me = self.runner.core.membership
        epoch, key = me.keys.current()
        sealed = pack.seal_lack(
            key,
            me.manifest.session_id,
            job=ItemId(self.item.id),
            runner=me.key.public,
            plain=plain,
            nonce=secrets.token_bytes(12),
        )
        self.runner.core.api.post_lack(self.item.id, sealed, epoch=epoch)

    def packs(self) -> dict[int, bytes]:
        """The plain packs that are on the relay."""
        api = self.runner.core.api
        return {
            entry.n: self._open(entry.n, api.fetch_pack(self.item.id, entry.n))
            for entry in api.packs(self.item.id)
        }

    def _open(self, number: int, sealed: bytes) -> bytes:
        me, job = self.runner.core.membership, ItemId(self.item.id)
        return pack.open_with_any(
            me.keys.newest_first(),
            lambda key: pack.open_pack(
                key, me.manifest.session_id, job=job, number=number, sealed=sealed
            ),
        )

    def result(self, **changes: Any) -> job.Result:
        """A valid result of the job, with `changes`."""
        files = [self.runner.blob(ref) for ref in self.meta.files]
        values: dict[str, Any] = {
            "code_sha256": job.code_sha256(self.meta),
            "exit_code": 0,
            "input_sha256": input_digest(files),
            "job": self.item.ref,
            "out_files": (),
            "peak_mem_mb": 1,
            "reason": None,
            "status": job.Status.COMPLETED,
            "stderr": "",
            "stderr_truncated": False,
            "stdout": "done\n",
            "stdout_truncated": False,
            "wall_ms": 5,
        }
        if self.runner.core.manifest.is_full:
            values |= self._full_fields()
        return job.Result(**(values | changes))

    def _full_fields(self) -> dict[str, Any]:
        tree = getattr(self.meta, "tree", msgspec.UNSET)
        return {
            "cause": job.Cause(kind=job.CauseKind.EXIT),
            "env": job.Env(airlox="0", layers={}, network="off", platform="test", sandbox="local"),
            "live": job.LiveTotals(
                dropped_bytes=0,
                head=self._writer.head,
                segments=self._writer.n,
                stdout_bytes=self._totals[1],
                stderr_bytes=self._totals[2],
            ),
            "tree": tree if tree is msgspec.UNSET else tree.digest,
        }

    def finish(self, **changes: Any) -> None:
        """Post the result."""
        self.post(self.result(**changes))

    def post(self, result: job.Result) -> None:
        outbox = self.runner.core.outbox
        refs = (self.item.ref, *(out.item for out in result.out_files))
        outbox.post(outbox.seal(result, refs=refs))


class FakeRunner:
    """`with FakeRunner(link, folder, script) as runner:` runs `script(task)` for each job."""

    def __init__(
        self,
        link: str,
        folder: str | os.PathLike[str],
        script: Callable[[Task], None],
        *,
        name: str = "box",
        labels: Iterable[str] = (),
    ) -> None:
        info = RunnerInfo(
            host="box",
            labels=tuple(labels),
            name=name,
            network_unblocked=False,
            sandbox=SandboxName.LOCAL,
        )
        self.warnings: list[str] = []
        self.core = Core(
            enter(
                parse_invite(link),
                Profile(name, ClientKind.RUNNER, runner=info),
                cache_root=os.path.join(folder, f"runner-{name}"),
                on_warning=self.warnings.append,
            ),
            on_warning=self.warnings.append,
        )
        self._script = script
        self._threads: list[threading.Thread] = []
        self._tasks: dict[str, Task] = {}
        self._errors: list[BaseException] = []
        sid = self.core.manifest.session_id
        self._feed = Feed(self.core.api, lambda: wire.runner_stream(sid))
        self._connected = threading.Event()

    @property
    def public(self) -> str:
        return self.core.membership.key.public

    def blob(self, ref: ItemRef) -> bytes:
        self.core.timeline.sync(())
        record = self.core.timeline.read(lambda view: view.records[ItemId(ref.id)])
        assert record.envelope is not None
        held = self.core.timeline.blobs.held(record.envelope)
        return held or self.core.timeline.blobs.fetch(record.envelope, self.core.api)

    def __enter__(self) -> FakeRunner:
        self.core.api.heartbeat(None)
        self._spawn(self._listen)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._feed.close()
        for task in self._tasks.values():
            task.cancelled.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        self.core.disconnect()
        if error is None and self._errors:
            raise self._errors[0]

    def _spawn(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        try:
            while not self._feed.closed:
                event = self._feed.next(Deadline.after(None))
                if event is None:
                    continue
                job_id = msgspec.json.decode(event.data, type=dict[str, Any]).get("job", "")
                if event.event == wire.EventKind.JOB_ASSIGNED:
                    self._spawn(lambda job_id=job_id: self._run(job_id))  # type: ignore[misc]
                elif event.event == wire.EventKind.JOB_CANCEL and job_id in self._tasks:
                    self._tasks[job_id].cancelled.set()
        except AirloxError as error:
            self.warnings.append(error.message)

    def _run(self, job_id: str) -> None:
        try:
            self.core.api.claim(job_id)
            self.core.timeline.sync((Kind.EVENT,))
            item = self.core.timeline.find(job_id)
            assert item is not None
            task = self._tasks[job_id] = Task(self, item)
            self._script(task)
        except BaseException as error:
            self._errors.append(error)


EMPTY = NOTHING_HEX
FULL = {"kinds": [kind.value for kind in manifest.JobKind]}
