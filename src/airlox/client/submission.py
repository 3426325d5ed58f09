"""Sending a job: from what a caller asks for to a posted, signed job item.

Everything that any reader will check is checked before the first byte leaves, since an invalid
job looks to its sender like one that never ends: the role, the kind of job, the limits, the
packages, the target and its approval, the input files and their names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from airlox.client import shown
from airlox.client.core import Core
from airlox.client.jobs import Job, JobNotTaken
from airlox.client.membership import now_ms
from airlox.client.references import Refs, item_refs, words
from airlox.client.shown import Runner
from airlox.client.timeline import STANDING_KINDS
from airlox.errors import AirloxError, JobRefused, RelayError, UsageError
from airlox.protocol import canonical, limits
from airlox.protocol.chain import Place
from airlox.protocol.encoding import PublicKey
from airlox.protocol.item import ItemRef, Kind
from airlox.protocol.job import (
    AnyRunner,
    LabelledRunner,
    OneRunner,
    PullTerms,
    PythonJob,
    QueueTerms,
    ShellJob,
    Target,
    TreeRef,
    check_target,
)
from airlox.protocol.job import Job as JobMeta
from airlox.protocol.manifest import Feature, JobLimits
from airlox.protocol.payload import File
from airlox.protocol.policy import check_role_may_post

if TYPE_CHECKING:
    from airlox.client.trees import TreeUpload
    from airlox.tree.scan import Choice

NOT_TAKEN: Final = {
    "no_runner_available": (
        "no runner is free, online, approved and fit for this job",
        "see which runners are online and approved: airlox runner list",
        "; --queue waits for one",
    ),
    "runner_busy": (
        "the runner is busy with other jobs",
        "all slots are taken; try again when a job has ended",
        ", or wait for a slot with --queue",
    ),
}
"""The relay's codes for a job that no runner took, in words, with the next step, and with one more
where the session has a queue."""
QUEUE_S: Final = 86_400
"""How long a job waits for a slot when nothing else is said."""
_GIT_METADATA: Final = "git_metadata"
_CHECK_ROOT: Final = "check_root"
_APART: Final = (_CHECK_ROOT, _GIT_METADATA)
"""The tree options that are no choice among its files."""


class JobOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller asks for, whatever the kind of job: the keywords of `Session.run_python`."""

    files: Refs = ()
    runner: Runner | str | None = None
    labels: Iterable[str] | None = None
    timeout: int | None = None
    memory_mb: int | None = None
    tree: Any = None
    tree_options: Mapping[str, Any] | None = None
    cwd: str | None = None
    fresh: bool = False
    progress_file: str | None = None
    pull: Iterable[str] | None = None
    pull_ignored: bool = False
    queue: bool | float | None = None
    require_layers: Iterable[str] = ()
    stay: bool = True


class Submission:
    """One job on its way. `list_runners` asks the relay for runners when a name needs it."""

    def __init__(
        self, core: Core, order: JobOrder, list_runners: Callable[[], list[Runner]]
    ) -> None:
        self._core = core
        self._order = order
        self._list_runners = list_runners

    def python(self, code: str, *, filename: str, requirements: tuple[str, ...]) -> Job:
        session = self._check()
        files = self._files(filename)
        target = self._target()
        place = self._place(files)
        upload = self._tree(target, place)
        meta = PythonJob(
            code=code,
            filename=filename,
            files=files,
            memory_mb=self._order.memory_mb,
            requirements=requirements,
            runtime=session.runtime,
            target=target,
            timeout_s=self._timeout_s(session),
            **self._extras(upload),
        )
        return self._send(meta, "py", place, upload)

    def shell(self, command: str | Sequence[str]) -> Job:
        session = self._check()
        files = self._files(None)
        target = self._target()
        place = self._place(files)
        upload = self._tree(target, place)
        script = command if isinstance(command, str) else UNSET
        meta = ShellJob(
            files=files,
            memory_mb=self._order.memory_mb,
            target=target,
            timeout_s=self._timeout_s(session),
            command=UNSET if isinstance(command, str) else tuple(command),
            script=script,
            **self._extras(upload),
        )
        return self._send(meta, "sh", place, upload)

    # -- what is asked for -------------------------------------------------------------------

    def _check(self) -> JobLimits:
        self._core.check_open()
        manifest = self._core.manifest
        if manifest.job_limits is None:
            raise UsageError(
                "this session takes no jobs",
                code="no_jobs",
                hint="create it with mode execute (airlox session create --execute)",
            )
        check_role_may_post(self._core.membership.role, Kind.JOB)
        self._core.api.connect_ahead()  # beside what is read and looked at before the first call
        return manifest.job_limits

    def _timeout_s(self, session: JobLimits) -> int:
        asked = self._order.timeout
        return session.timeout_s if asked is None else asked

    def _extras(self, upload: TreeUpload | None) -> dict[str, Any]:
        """The fields of full sessions; a floor session gets none."""
        order = self._order
        extras: dict[str, Any] = {
            "cwd": order.cwd or UNSET,
            "fresh": order.fresh or UNSET,
            "progress_file": order.progress_file or UNSET,
            "pull": self._pull_terms(),
            "queue": self._queue_terms(),
            "require_layers": tuple(sorted(set(order.require_layers))) or UNSET,
            "tree": UNSET if upload is None else _tree_ref(upload),
        }
        if upload is not None and order.cwd is None:
            extras["cwd"] = upload.sub or UNSET
        asked = [name for name, value in extras.items() if value is not UNSET]
        if asked and not self._core.manifest.is_full:
            raise UsageError(
                f"a job with {asked[0].replace('_', ' ')} needs a full session",
                code="needs_full_session",
                hint="create the session with --kinds",
            )
        return extras

    def _pull_terms(self) -> PullTerms | UnsetType:
        """Which files come back when the job changes them in its tree."""
        patterns = words(self._order.pull, "patterns of what is pulled")
        if not patterns:
            return UNSET
        if self._order.tree is None:
            raise UsageError("only what a job changes in a tree can be pulled", hint="send a tree")
        if not self._core.manifest.has(Feature.PULL):
            raise UsageError(
                "what jobs change in a tree does not come back in this session",
                code="no_pull",
                hint="make a new one: airlox machine add NAME --renew, or session create "
                "--features pull",
            )
        from airlox.tree.wanted import Wanted

        Wanted(patterns)
        ignored: Literal[True] | UnsetType = True if self._order.pull_ignored else UNSET
        return PullTerms(patterns=patterns, ignored=ignored)

    def _queue_terms(self) -> QueueTerms | UnsetType:
        """When the job starts at the latest, where it may wait for a slot; never after the end of
        the session."""
        wait_s = self._wait_s()
        if not wait_s:
            return UNSET
        manifest = self._core.manifest
        if not manifest.has(Feature.QUEUE):
            raise UsageError(
                "jobs do not wait in this session",
                code="no_queue",
                hint="create the session with --features queue",
            )
        return QueueTerms(start_by_ms=manifest.clamp_time(now_ms() + wait_s * 1000))

    def _wait_s(self) -> int:
        """Seconds the job may wait for a slot; 0 for one that does not."""
        asked = self._order.queue
        if asked is None or asked is False:
            return 0
        if asked is True:
            return QUEUE_S
        if not 1 <= asked <= limits.QUEUE_MS // 1000:
            days = limits.QUEUE_MS // 86_400_000
            raise UsageError(f"a job waits for a slot for at least a second, at most {days} days")
        return int(asked)

    # -- whom it is for ----------------------------------------------------------------------

    def _target(self) -> Target:
        order = self._order
        labels = words(order.labels, "labels")
        if order.runner is not None and labels:
            raise UsageError("a job goes to one runner or to labels, not to both")
        if order.runner is not None:
            return self._one_runner(order.runner)
        target: Target = LabelledRunner(labels=labels) if labels else AnyRunner()
        check_target(target)
        return target

    def _one_runner(self, who: Runner | str) -> OneRunner:
        """The runner meant, with the owner's signed approval as known here or after a sync."""
        chosen = self._known_runner(who)
        if chosen is None:
            chosen = self._present_runner(who)
            if not chosen.approved:
                raise JobRefused(
                    f"runner {chosen.name} is not approved by the owner",
                    code="runner_not_approved",
                    hint=f"the owner approves it: airlox runner approve {chosen.name}",
                )
        return OneRunner(name=chosen.name, participant_pub=chosen.participant_pub)

    def _known_runner(self, who: Runner | str) -> Runner | None:
        """The runner as the cache knows it, when that leaves no question open."""
        self._core.timeline.open_held(STANDING_KINDS)
        runners = self._core.timeline.read(lambda view: shown.runners_of(view, {}))
        present = [runner for runner in runners if not runner.left and not runner.rejected]
        try:
            chosen = shown.choose_runner(present, who)
        except UsageError:
            return None
        return chosen if chosen.approved else None

    def _present_runner(self, who: Runner | str) -> Runner:
        """The runner by the relay's list; of several with one name the one that is online."""
        runners = self._list_runners()
        online = [runner for runner in runners if runner.online and runner.approved]
        if any(who in (runner.participant_pub, runner.fingerprint) for runner in runners):
            online = runners  # a key is a key, also where one that is online has it as its name
        try:
            return shown.choose_runner(online, who)
        except UsageError:
            return shown.choose_runner(runners, who)

    # -- what it gets ------------------------------------------------------------------------

    def _files(self, filename: str | None) -> tuple[ItemRef, ...]:
        """The input files: in this session, files, as referenced, with names that go together."""
        refs = item_refs(self._order.files)
        names = set() if filename is None else {filename.casefold()}
        for ref in refs:
            item = self._core.timeline.find(ref.id)
            if item is None:
                self._core.timeline.sync(())
                item = self._core.timeline.find(ref.id)
            if item is None or item.ref != ref or not isinstance(item.meta, File):
                raise UsageError(
                    f"input {ref.id} is no file of this session",
                    code="bad_input",
                    hint="send it first: session.send_file(...)",
                )
            if item.subkind != "zip" and item.meta.name.casefold() in names:
                raise UsageError(
                    f"two inputs of the job are called {item.meta.name!r}",
                    code="input_names_collide",
                    hint="send one of them under another name",
                )
            names.add(item.meta.name.casefold())
        return refs

    def _place(self, files: tuple[ItemRef, ...]) -> Place:
        """Where the job stands in our chain. Where a relay forgets jobs it sees by the references
        which files go with one."""
        named = files if self._core.manifest.has(Feature.HISTORY) else ()
        return self._core.outbox.place(named)

    def _tree(self, target: Target, place: Place) -> TreeUpload | None:
        order = self._order
        if order.tree is None:
            return None
        if not self._core.manifest.has(Feature.TREES):
            raise UsageError(
                "this session takes no trees",
                code="needs_full_session",
                hint="create the session with --kinds",
            )
        from airlox.client.trees import TreeUpload  # reads files and compresses: loaded on use

        runner = target.participant_pub if isinstance(target, OneRunner) else None
        upload = TreeUpload(
            self._core,
            os.fspath(order.tree),
            job=place.item_id,
            runner=None if runner is None else PublicKey(runner),
            choice=_choice(order.tree_options or {}),
            git_metadata=bool((order.tree_options or {}).get(_GIT_METADATA, False)),
            check_root=(order.tree_options or {}).get(_CHECK_ROOT),
        )
        if order.pull:
            upload.remember()
        return upload

    # -- off it goes -------------------------------------------------------------------------

    def _send(self, meta: JobMeta, subkind: str, place: Place, upload: TreeUpload | None) -> Job:
        core = self._core
        sealed = core.outbox.seal(meta, subkind=subkind, place=place)
        if upload is not None:
            upload.send_first(everything=not self._order.stay)
        target = canonical.encode(meta.target).decode()
        try:
            ref, given = core.outbox.post_job(sealed, target, wait_s=self._wait_s())
        except RelayError as error:
            if error.code not in NOT_TAKEN:
                raise
            words, hint, more = NOT_TAKEN[error.code]
            may_wait = core.manifest.has(Feature.QUEUE) and not self._wait_s()
            hint += more if may_wait else ""
            raise JobNotTaken(words, code=error.code, hint=hint, job=sealed.ref.id) from error
        job = Job(core, ref, meta, runner=given.runner, status=given.status, upload=upload)
        if upload is not None and job.waiting is not None and self._order.stay:
            self._send_all(upload, meta.target)
        return job

    def _send_all(self, upload: TreeUpload, target: Target) -> None:
        """A job that waits has its whole tree on the relay: its sender may be away when its turn
        comes. A runner that was named has been sent what it is thought to lack."""
        if isinstance(target, OneRunner):
            return
        try:
            upload.send_first(everything=True)
        except AirloxError as error:  # the job is posted: it may run all the same
            self._core.on_warning(
                f"the tree is not on the relay; the job needs this sender to be there: {error}"
            )


def _choice(given: Mapping[str, Any]) -> Choice:
    from airlox.tree.scan import Choice

    unknown = sorted(set(given) - {*Choice._fields, *_APART})
    if unknown:
        known = ", ".join((*Choice._fields, *_APART))
        raise UsageError(f"unknown tree option {unknown[0][:40]!r}", hint=f"known: {known}")
    named = {n: value for n, value in given.items() if n not in ("lfs", *_APART)}
    lists = {name: words(value, f"tree_options[{name!r}]") for name, value in named.items()}
    return Choice(**lists, lfs=bool(given.get("lfs", False)))


def _tree_ref(upload: TreeUpload) -> TreeRef:
    return TreeRef(
        digest=upload.digest, files=upload.files, size=upload.size, git=upload.git or UNSET
    )
