"""What must hold before the first job, in the order in which it is found out.

The role of the link, the session's terms, a state folder of one's own, the sandbox, a Python,
and last of all the join: nothing is said in the session by a runner that could not work in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from airlox import safefs
from airlox.client.cache import EXPIRED_KEPT_MS, SessionCache
from airlox.client.membership import Profile, enter, now_ms, read_terms, rejoin
from airlox.client.relay_api import RelayApi
from airlox.errors import AirloxError, UsageError
from airlox.protocol.cert import ClientKind
from airlox.protocol.invite import Invite
from airlox.protocol.keys import Role, fingerprint
from airlox.protocol.manifest import Feature, JobKind, JobLimits, Manifest
from airlox.runner import facts
from airlox.runner.bench import Bench, Pythons
from airlox.runner.confinement import open_tried, passes_through
from airlox.runner.link import Link
from airlox.runner.notes import Note, Say
from airlox.runner.options import RunnerOptions
from airlox.runner.packages import NO_RUNTIME, PythonSupply
from airlox.runner.patience import patiently
from airlox.runner.spool import Spool
from airlox.runner.threads import Threads
from airlox.runner.workspace import Workspaces
from airlox.sandbox.base import Sandbox
from airlox.sandbox.collect import remove_tree
from airlox.sandbox.sweep import StateFolder, lock_state

_EXPIRES: Final = "expires"
_EXPIRES_BYTES: Final = 32


def state_folder(options: RunnerOptions, session_id: str) -> Path:
    """Where one runner keeps what outlives it: spool, records of jobs, workspaces."""
    return options.jobs_root / session_id / options.name


@contextmanager
def prepared(options: RunnerOptions, invite: Invite, say: Say) -> Iterator[Bench]:
    """Everything jobs are carried out with, by a runner that has joined.

    Raises UsageError, SandboxError, or what the relay says.
    """
    if invite.role is not Role.RUNNER:
        raise UsageError(
            f"this is a {invite.role} invite",
            code="wrong_role",
            hint="start the runner with the session's runner invite",
        )
    manifest = _fetch_manifest(options, invite, say)
    session = _check_session(manifest, options)
    folder = state_folder(options, manifest.session_id)
    with lock_state(folder) as state:
        bench = _prepare(options, invite, say, manifest, session, folder, state)
        try:
            yield bench
        finally:
            bench.link.api.close()
            bench.threads.close()


def forget_session(bench: Bench) -> None:
    """Remove what was kept for a session that has ended. Failures leave it to another day."""
    with suppress(AirloxError):
        remove_tree(bench.folder)


def _prepare(
    options: RunnerOptions,
    invite: Invite,
    say: Say,
    manifest: Manifest,
    session: JobLimits,
    folder: Path,
    state: StateFolder,
) -> Bench:
    _note_expiry(folder, manifest)
    _forget_expired(options.jobs_root)
    network = facts.network_of(options, session.network)
    options = _with_image(options, folder, manifest, session, say)
    sandbox, report = open_tried(options, folder, network, say)
    swept = state.sweep()
    if swept.jobs:
        say(Note("warning", f"ended what an earlier runner left of {len(swept.jobs)} job(s)"))
    owner = sandbox.owner()
    passable = passes_through(options, sandbox)
    workspaces = Workspaces(
        state,
        folder,
        owner,
        passable=passable,
        quota_bytes=options.workspaces_bytes,
        days=options.workspace_days,
        walled=sandbox.name != facts.PROCESS,
    )
    workspaces.remove_runs()
    python, kinds, version = _supply(options, manifest, session, sandbox, say)
    slots = options.concurrency if manifest.is_full else 1
    if slots != options.concurrency:
        say(Note("warning", "this session has the form of 0.1.0: one job at a time"))
    link = _come_in(options, invite, say)
    return Bench(
        options=options,
        manifest=manifest,
        session=session,
        kinds=kinds,
        python_version=version,
        slots=slots,
        folder=folder,
        link=link,
        sandbox=sandbox,
        report=report,
        state=state,
        workspaces=workspaces,
        python=python,
        spool=Spool(folder, link.outbox.post_frame, link.api.pause, link.outbox.renew_frame),
        threads=Threads(slots),
        redactions=_redactions(options),
    )


# ── the session ──────────────────────────────────────────────────────────────────────────────


def _fetch_manifest(options: RunnerOptions, invite: Invite, say: Say) -> Manifest:
    """The session's terms, before anything is done in its name.

    A runner that has joined before waits for a relay that is away: after a power cut it may be
    there first. For one that has not, the link is more likely to be wrong.
    """
    has_joined = _has_joined(options, invite)
    api = RelayApi.connect(
        invite.base_url,
        invite.session_id,
        plain_http=invite.is_plain_http,
        on_warning=lambda text: say(Note("warning", text)),
    )
    try:
        if has_joined:
            terms = patiently(api.fetch_terms, api.pause, on_wait=partial(_say_away, say))
        else:
            terms = api.fetch_terms()
    finally:
        api.close()
    manifest, _ = read_terms(terms, invite, has_joined=has_joined)
    return manifest


def _has_joined(options: RunnerOptions, invite: Invite) -> bool:
    cache = SessionCache(os.fspath(options.cache_root), invite.session_id)
    name = _profile(options).identity_name(invite.role)
    return cache.load_identity(name) is not None


def _say_away(say: Say, error: AirloxError) -> None:
    if error.code in ("tls", "disk_full"):  # somebody must look at it
        raise error
    say(Note("away", f"{error.message}; trying again until it is back"))


def _check_session(manifest: Manifest, options: RunnerOptions) -> JobLimits:
    """Raises UsageError for a session this runner can do nothing in."""
    if manifest.job_limits is None:
        raise UsageError(
            "this session takes no jobs", code="relay_mode", hint="create one with --mode execute"
        )
    if options.sandbox == facts.PROCESS and not manifest.is_full:
        raise UsageError(
            "--sandbox process is known in full sessions only, and this one has the form of 0.1.0",
            code="process_in_floor",
            hint="use --sandbox local, or create the session with --kinds",
        )
    return manifest.job_limits


def _come_in(options: RunnerOptions, invite: Invite, say: Say) -> Link:
    """Join, or go on as before where the cache, the relay and the options still agree."""

    def warn(text: str) -> None:
        say(Note("warning", text))

    profile = _profile(options)
    membership = enter(invite, profile, cache_root=os.fspath(options.cache_root), on_warning=warn)
    link = Link(membership, options.name, on_warning=warn)
    patiently(link.sync, link.api.pause, on_wait=partial(_say_away, say))
    if _must_rejoin(link, profile):
        link = Link(rejoin(membership, profile), options.name, on_warning=warn)
        link.sync()
    key = fingerprint(link.public)
    text = f"joined session {invite.session_id} as {options.name}, key {key}"
    say(Note("joined", text, {"runner": link.public, "fingerprint": key}))
    return link


def _profile(options: RunnerOptions) -> Profile:
    return Profile(
        display_name=options.name,
        kind=ClientKind.RUNNER,
        description=options.description,
        runner=facts.runner_info(options),
    )


def _must_rejoin(link: Link, profile: Profile) -> bool:
    """Whether the token works no more, or what was signed at the join is no longer so.

    Raises SessionClosed when the session has ended or the owner rejected this runner.
    """
    ended = link.timeline.ended
    if ended is not None:
        if ended.code == "cut_off" and link.rejection() is None:
            return True
        raise ended
    me = link.timeline.read(lambda view: view.participants.get(link.public))
    if me is None:
        return False
    return me.join.runner != profile.runner or me.join.description != profile.description


# ── this machine ─────────────────────────────────────────────────────────────────────────────


def _with_image(
    options: RunnerOptions, folder: Path, manifest: Manifest, session: JobLimits, say: Say
) -> RunnerOptions:
    """The options, for containers with an image that is there."""
    if options.sandbox != facts.DOCKER:
        return options
    from airlox.runner import image_python, images

    wanted = image_python.wanted_by(session, pins=manifest.has(Feature.PINS))
    return images.with_image(options, folder, wanted, say)


def _supply(
    options: RunnerOptions, manifest: Manifest, session: JobLimits, sandbox: Sandbox, say: Say
) -> tuple[Pythons, tuple[JobKind, ...], str | None]:
    """The supply of interpreters, the kinds of jobs this runner takes, the Python it has."""
    if options.sandbox == facts.DOCKER:
        from airlox.runner import image_python

        wanted = image_python.wanted_by(session, pins=manifest.has(Feature.PINS))
        return image_python.supply_of(sandbox, wanted, manifest.kinds, say)
    supply = PythonSupply(
        session,
        pins=manifest.has(Feature.PINS),
        python=options.python,
        runtimes=options.cache_root / "runner" / "runtimes",
        path=options.path,
    )
    kinds = manifest.kinds
    if JobKind.PYTHON not in kinds:
        return supply, kinds, None
    shell = JobKind.SHELL in kinds
    try:
        # Fetching one takes minutes; a runner that can start with shell jobs does not wait for it.
        return supply, kinds, supply.check(fetch=not shell)
    except UsageError as error:
        if not shell or error.code != NO_RUNTIME or options.python is not None:
            raise
        say(Note("shell_only", f"taking shell jobs only: {error}"))
        return supply, (JobKind.SHELL,), None


def _redactions(options: RunnerOptions) -> tuple[tuple[str, str], ...]:
    """Paths that no job of this runner may show, whatever it runs in."""
    named = ((options.jobs_root, "$JOB"), (options.cache_root, "$RUNTIME"), (Path.home(), "~"))
    return tuple((str(form), name) for path, name in named for form in (path, path.resolve()))


# ── sessions that are over ───────────────────────────────────────────────────────────────────


def _note_expiry(folder: Path, manifest: Manifest) -> None:
    if manifest.expires_at_ms is not None:
        safefs.write_private(folder / _EXPIRES, b"%d" % manifest.expires_at_ms)


def _forget_expired(root: Path) -> None:
    """Remove the state folders of runners whose session expired long ago and that do not run."""
    for note in root.glob(f"ax_*/*/{_EXPIRES}"):
        with suppress(AirloxError, ValueError, OSError):
            if int(safefs.read_bounded(note, _EXPIRES_BYTES)) + EXPIRED_KEPT_MS < now_ms():
                with lock_state(note.parent):
                    remove_tree(note.parent)
                note.parent.parent.rmdir()
