"""One job: what is refused before it starts, and that there is one answer whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET

from airlox.client.membership import now_ms
from airlox.errors import SandboxError, StorageError
from airlox.protocol.digest import NOTHING_HEX
from airlox.protocol.encoding import ItemId, PublicKey, b64u_encode
from airlox.protocol.item import ItemRef
from airlox.protocol.job import (
    AnyRunner,
    CauseKind,
    Env,
    LabelledRunner,
    OneRunner,
    QueueTerms,
    Result,
    ShellJob,
    code_sha256,
)
from airlox.protocol.keys import Role, SigningKey
from airlox.protocol.manifest import JobKind, JobLimits, Mode, build_manifest, parse_manifest
from airlox.runner import admission
from airlox.runner.execution import execute
from airlox.runner.link import Order, Unverified
from airlox.runner.options import RunnerOptions
from airlox.runner.slots import Running
from airlox.runner.workspace import Workspaces
from airlox.sandbox import base
from airlox.sandbox.base import Layer, Layout, Network, Report
from airlox.sandbox.sweep import StateFolder, lock_state

JOB = ItemId(b64u_encode(b"\4" * 16))
REF = ItemRef(blob_sha256=b64u_encode(b"\3" * 32), id=JOB)
ME = SigningKey.from_seed(b"\5" * 32).public
OTHER = SigningKey.from_seed(b"\6" * 32).public
WITHIN_S = 60
LIMITS = JobLimits(
    approve_runners=True,
    kinds=(JobKind.SHELL,),
    memory_mb=512,
    network=False,
    packages=(),
    return_out=True,
    runtime="python3.12",
    timeout_s=60,
)
FEATURES: Any = ("live",)
MANIFEST = parse_manifest(
    build_manifest(
        b"\1" * 32,
        mode=Mode.EXECUTE,
        created_at_ms=1,
        ttl_ms=None,
        job_limits=LIMITS,
        features=FEATURES,
    )
)
REPORT = Report("local", "own", (Layer("uid", True), Layer("landlock", False)), usable=True)


def shell(**fields: Any) -> ShellJob:
    given: dict[str, Any] = {"command": ("true",), "files": (), "memory_mb": None, "timeout_s": 9}
    return ShellJob(**(given | {"target": AnyRunner()} | fields))


class Link:
    """What a job asks of the runner's end of the session."""

    def __init__(self) -> None:
        self.public = ME
        self.found: Any = None
        self.approved_after = 0
        self.done: set[ItemId] = set()
        self.noted = True
        self.canceller: PublicKey | None = None
        self.outbox = self

    def order(self, job: ItemId) -> Order | None:
        if isinstance(self.found, Exception):
            raise self.found
        found: Order | None = self.found
        return found

    def may_take_jobs(self) -> bool:
        self.approved_after -= 1
        return self.approved_after < 0

    def sync(self) -> None:
        """Nothing is new."""

    def was_run(self, job: ItemId) -> bool:
        return job in self.done

    def note_run(self, job: ItemId) -> None:
        if not self.noted:
            raise StorageError("cannot write /srv/box/cache/done: full", code="disk_full")
        self.done.add(job)

    def note_answered(self, job: ItemId) -> None:
        self.done.add(job)

    def cancelled_by(self, job: ItemId) -> PublicKey | None:
        return self.canceller

    def live_writer(self, job: ItemRef) -> Any:
        return SimpleNamespace(head=None, n=0)

    def with_current_key(self, writer: Any) -> Any:
        return writer

    def seal(self, meta: Any, body: bytes = b"", **options: Any) -> Any:
        return SimpleNamespace(ref=REF, meta=meta)


class Sandbox:
    """Runs nothing, and says what the test wants."""

    def __init__(self) -> None:
        self.ran = 0
        self.says: base.Outcome | Exception = base.Outcome(base.Cause.EXIT, exit_code=0)

    def owner(self) -> None:
        """The runner's own user."""

    def layout(self, work: Path, out: Path, home: Path) -> Layout:
        return Layout("/work", "/out", "/home/job", "/tmp")

    def expect(self) -> None:
        """There is nothing to begin ahead."""

    async def run(self, plan: base.Plan, **_: Any) -> base.Outcome:
        self.ran += 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


class Bench:
    """A bench of fakes around real workspaces. `results` is what would be posted."""

    def __init__(self, state: StateFolder, folder: Path) -> None:
        self.options = RunnerOptions(
            name="box",
            cache_root=folder,
            host="lab",
            path="/bin",
            labels=("gpu",),
            memory_mb=256,
            disk_floor_bytes=0,
        )
        self.link, self.sandbox = Link(), Sandbox()
        self.manifest, self.session, self.report = MANIFEST, LIMITS, REPORT
        self.kinds: tuple[JobKind, ...] = (JobKind.SHELL,)
        self.network = Network.OFF
        self.folder, self.state = folder, state
        self.workspaces = Workspaces(state, folder, None, quota_bytes=1 << 30, days=1)
        self.redactions = (("/srv/box/cache", "$RUNTIME"),)
        self.results: list[Result] = []
        self.begun: list[Any] = []
        self.threads = SimpleNamespace(call=asyncio.to_thread)
        self.spool = SimpleNamespace(
            add=lambda parcel: self.results.append(parcel.result.meta), begin=self.begun.append
        )
        self.env = Env(
            airlox="0",
            layers={"uid": 1, "landlock": 0},
            network="off",
            platform="x",
            sandbox="local",
        )

    def carry_out(
        self,
        job: ShellJob | Exception,
        role: Role = Role.SENDER,
        *,
        cancelled: bool = False,
        old: bool = False,
    ) -> Result:
        """The one answer to a job."""
        author: Any = SimpleNamespace(role=role, public=OTHER)
        self.link.found = Order(REF, author, job, old) if isinstance(job, ShellJob) else job

        async def story() -> None:
            running, again = Running(JOB), self.link.was_run(JOB)
            if cancelled:
                running.cancel("asked")
            bench: Any = self
            await asyncio.wait_for(execute(bench, running, asyncio.Event()), WITHIN_S)
            assert running.answered or again

        asyncio.run(story())
        (result,) = self.results
        return result

    def refusal(self, job: ShellJob | Exception, role: Role = Role.SENDER) -> str:
        """The code of a refusal, before which nothing ran."""
        result = self.carry_out(job, role)
        assert result.cause is not UNSET
        assert result.cause.kind is CauseKind.REFUSED, result
        assert result.cause.code is not UNSET
        assert (self.sandbox.ran, self.begun) == (0, [])
        return result.cause.code


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with lock_state(tmp_path / "state") as state:
        yield Bench(state, tmp_path / "state")


class TestMayRun:
    """[P-JOB-2]"""

    @pytest.mark.parametrize("role", [Role.OBSERVER, Role.RUNNER])
    def test_only_owner_and_senders_give_jobs(self, bench: Bench, role: Role) -> None:
        assert bench.refusal(shell(), role) == "not_allowed"

    @pytest.mark.parametrize("role", [Role.OWNER, Role.SENDER])
    def test_they_do(self, bench: Bench, role: Role) -> None:
        assert bench.carry_out(shell(), role).status == "completed"

    def test_a_job_that_may_have_been_carried_out_is_not_taken(self, bench: Bench) -> None:
        """P-HIS-7"""
        result = bench.carry_out(shell(), old=True)
        assert result.cause is not UNSET
        assert (result.cause.code, bench.sandbox.ran) == ("too_old", 0)

    def test_a_job_that_waited_for_too_long_is_not_taken(self, bench: Bench) -> None:
        """P-QUE-2, with a minute for clocks that differ."""
        late = QueueTerms(start_by_ms=now_ms() - 61_000)
        assert bench.refusal(shell(queue=late)) == "too_late"

    @pytest.mark.parametrize("ago_ms", [30_000, 0, -600_000])
    def test_one_whose_time_is_not_over_is(self, bench: Bench, ago_ms: int) -> None:
        """P-QUE-2"""
        queue = QueueTerms(start_by_ms=now_ms() - ago_ms)
        assert bench.carry_out(shell(queue=queue)).status == "completed"

    def test_what_was_cancelled_before_it_came_does_not_run(self, bench: Bench) -> None:
        """P-QUE-2: by a signed word, whatever the relay makes of it."""
        bench.link.canceller = OTHER
        result = bench.carry_out(shell())
        assert (result.status, bench.sandbox.ran) == ("cancelled", 0)
        assert result.cause is not UNSET
        assert result.cause.by == OTHER

    def test_a_job_for_another_runner_is_not_taken(self, bench: Bench) -> None:
        target = OneRunner(name="box", participant_pub=OTHER)
        assert bench.refusal(shell(target=target)) == "wrong_target"

    def test_a_job_for_this_very_runner_is(self, bench: Bench) -> None:
        target = OneRunner(name="was-called-so", participant_pub=ME)
        assert bench.carry_out(shell(target=target)).status == "completed"

    def test_all_labels_must_be_its_own(self, bench: Bench) -> None:
        target = LabelledRunner(labels=("gpu", "arm"))
        assert bench.refusal(shell(target=target)) == "wrong_target"

    def test_without_the_owners_signed_approval_nothing_runs(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission, "APPROVAL_S", 0.0)
        monkeypatch.setattr(admission, "APPROVAL_POLL_S", 0.0)
        bench.link.approved_after = 1000
        assert bench.refusal(shell()) == "not_approved"

    def test_an_approval_on_its_way_is_waited_for(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission, "APPROVAL_POLL_S", 0.0)
        bench.link.approved_after = 3
        assert bench.carry_out(shell()).status == "completed"

    def test_the_same_job_is_never_run_nor_answered_twice(self, bench: Bench) -> None:
        assert bench.carry_out(shell()).status == "completed"
        assert bench.carry_out(shell()).status == "completed"  # the first and only one
        assert bench.sandbox.ran == 1

    def test_a_job_that_was_refused_is_not_run_when_it_comes_again(self, bench: Bench) -> None:
        """A relay could wait until a refusal is out of date."""
        bench.kinds = ()
        assert bench.refusal(shell()) == "kind_not_offered"
        bench.kinds = (JobKind.SHELL,)
        assert bench.refusal(shell()) == "kind_not_offered"


class TestCanRun:
    def test_more_memory_than_the_operator_gives(self, bench: Bench) -> None:
        assert bench.refusal(shell(memory_mb=257)) == "memory_not_offered"

    def test_layers_that_are_off_or_unknown(self, bench: Bench) -> None:
        assert bench.carry_out(shell(require_layers=("uid",))).status == "completed"
        bench.results.clear()
        bench.link.done.clear()
        bench.sandbox.ran = 0
        bench.begun.clear()
        assert bench.refusal(shell(require_layers=("landlock",))) == "layer_missing"

    def test_an_unverified_job_says_so_and_has_digests_of_nothing(self, bench: Bench) -> None:
        assert bench.refusal(Unverified(REF, "bad signature")) == "not_verified"
        (result,) = bench.results
        assert result.code_sha256 == result.input_sha256 == NOTHING_HEX
        assert "bad signature" in (result.reason or "")


class TestOneAnswer:
    def test_a_sandbox_that_cannot_be_had(self, bench: Bench) -> None:
        bench.sandbox.says = SandboxError("no namespaces", code="userns_off", hint="switch them on")
        result = bench.carry_out(shell())
        assert result.cause is not UNSET
        assert result.status == "refused"
        assert (result.cause.kind, result.cause.code) == ("sandbox_unavailable", "userns_off")
        assert "switch them on" in (result.reason or "")

    def test_a_fault_of_ours_once_it_ran(self, bench: Bench) -> None:
        bench.sandbox.says = ValueError("in /srv/box/cache/x")
        result = bench.carry_out(shell())
        assert result.cause is not UNSET
        assert (result.status, result.cause.kind) == ("failed", "runner_error")
        assert result.reason == "the runner failed: ValueError: in $RUNTIME/x"
        assert result.code_sha256 == code_sha256(shell())

    def test_a_disk_that_is_full_before_it_ran(self, bench: Bench) -> None:
        bench.link.noted = False
        assert bench.refusal(shell()) == "disk_full"
        assert bench.results[0].reason == "cannot write $RUNTIME/done: full"

    def test_a_cancel_before_it_ran(self, bench: Bench) -> None:
        result = bench.carry_out(shell(), cancelled=True)
        assert (result.status, result.reason) == ("cancelled", "asked")
        assert bench.sandbox.ran == 0

    def test_what_was_begun_is_on_the_disk_first(self, bench: Bench) -> None:
        bench.carry_out(shell())
        (started,) = bench.begun
        assert started.job == REF
        assert (started.code_sha256, started.input_sha256) == (code_sha256(shell()), NOTHING_HEX)
        assert JOB in bench.link.done
