"""`airlox machine add`: make a machine's session, have its runner join, approve exactly that one.

* The command for the other machine has a transfer code of two words, good once, while this one
  waits; when it ends unused another takes its place. Where nobody waits, and with `--link`, the
  command has the runner's link in the environment, where `ps` does not show it.
* A renewal is the same for a machine that is there: its new session has the terms of the old one
  where no flag says otherwise. The machine keeps its old session until the runner has joined the
  new one and was approved; then the old one is closed.
* At a terminal the runner's key is shown and asked about. Elsewhere it is shown, and the runner
  approved: the session is moments old and its runner's link is in the printed command alone, so
  whoever joined has been given that command, and a flag to say so would make nobody look. Where two
  have joined, none is approved. `machine approve` is stricter, for its session may be old
  (`confirm`).
"""

from __future__ import annotations

import shlex
import time
from contextlib import suppress

from airlox.cli import handover, opening, options
from airlox.cli.output import time_text
from airlox.errors import (
    AirloxError,
    SessionClosed,
    TransferError,
    UsageError,
    WaitTimeout,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from typing import Any

    from airlox.cli.output import Voice
    from airlox.client.machines import Machine
    from airlox.client.session import Session
    from airlox.client.shown import Runner

FEATURES = ("epochs", "history", "live", "pull", "queue", "trees")
LIMITS: dict[str, Any] = {
    "kinds": ("python", "shell"),
    "runtime": options.DEFAULT_RUNTIME,
    "timeout_s": 1800,
    "memory_mb": 4096,
    "network": False,
    "packages": (),
}
"""Limits of a machine's jobs, unless flags say otherwise."""
_ITEM_MB = 100
_WAIT_S = 1800
_NO_SUCH_PATH = (404, 405)
_LOOK_S = 5.0
"""How often runners are looked for although none said a word: news can be held back on its way."""


def add_arguments(actions: options.Actions) -> None:
    parser = actions.add(
        "add",
        "Add a machine: prints one command to run there, waits for it, approves it",
        details="Away from a terminal the one runner that joins is approved after its key was "
        "shown. --renew makes a new session for a machine that is there, with the terms of the "
        "old one: its runner joins that with the command that is printed.",
        example="airlox machine add gpu-box --relay https://relay.example",
    )
    parser.add_argument("name", metavar="NAME", help="what to call it: a-z 0-9 . _ -")
    parser.add_argument("--relay", metavar="URL", help=f"the relay to use [{options.RELAY}]")
    options.add_http_host_flag(parser)
    parser.add_argument("--yes", action="store_true", help="approve the runner without asking")
    parser.add_argument(
        "--renew", action="store_true", help="a new session for the machine of this name"
    )
    parser.add_argument(
        "--wait",
        type=options.duration,
        default=_WAIT_S,
        metavar="TIME",
        help="how long to wait for the machine; 0 does not wait [30m]",
    )
    jobs = parser.add_argument_group("jobs")
    jobs.add_argument("--network", action="store_true", help="let jobs reach the network")
    jobs.add_argument("--runtime", metavar="PYTHON", help=f"[{LIMITS['runtime']}]")
    jobs.add_argument(
        "--job-timeout", type=options.duration, metavar="TIME", help="longest job [30m]"
    )
    jobs.add_argument(
        "--job-memory",
        type=options.memory,
        metavar="MB",
        help=f"most memory of a job [{LIMITS['memory_mb']}]",
    )
    jobs.add_argument(
        "--package",
        type=options.words,
        action="append",
        metavar="NAME[SPEC]",
        help="a package Python jobs may use; may be repeated",
    )
    there = parser.add_argument_group("the command for the machine")
    there.add_argument(
        "--link", action="store_true", help="hand the link over in it instead of a one-time code"
    )
    there.add_argument("--image", metavar="IMAGE", help="run jobs in this container image")
    there.add_argument("--sandbox", metavar="NAME", help="how it confines jobs [local]")
    options.add_profile_flags(parser)


def run(args: Namespace, voice: Voice) -> int:
    old = _old(args)
    if old is not None:
        _take_over(args, old)
    sandbox = sandbox_flags(args)
    with create(args, voice, _job_limits(args, old)) as session:
        machine = _describe(args, session)
        told = _Told(args.name, sandbox, session, voice)
        if args.wait == 0:
            _keep_or_replace(args, session, machine, old)
            told.by_link()
            runner = None
        else:
            runner = _fill(args, session, machine, old, told, voice)
    if old is not None:
        _end(args, old, voice)
    _print_added(machine, runner, told.command, old, voice)
    return 0


def _old(args: Namespace) -> Machine | None:
    """The machine to be renewed. Raises UsageError: there is none, or there is one already."""
    if args.renew:
        return opening.machines(args).get(args.name)
    check_name_is_free(args, args.name)
    return None


def _fill(
    args: Namespace,
    session: Session,
    machine: Machine,
    old: Machine | None,
    told: _Told,
    voice: Voice,
) -> Runner:
    """Wait for the runner and approve it. A new machine stays when nobody came; a renewal that
    failed leaves the machine as it was, and no session behind."""
    if old is None:
        keep(args, session, machine)
    try:
        if old is not None:
            voice.note("its old session goes on until the runner has joined the new one")
        runner = _meet(args, session, told, voice)
        confirm(args, runner, voice)
        if old is None:
            approve(args, session, runner)
        else:
            session.approve_runner(runner)
            _replace(args, old, machine, runner=runner.participant_pub)
    except BaseException:
        if old is not None:
            with suppress(AirloxError):
                session.close()
        raise
    return runner


class _Told:
    """The command for the other machine, as it was told last."""

    def __init__(self, name: str, sandbox: str, session: Session, voice: Voice) -> None:
        self.command = ""
        self.name = name
        self._sandbox = sandbox
        self._session = session
        self._voice = voice

    def by_link(self) -> None:
        """Take the command that has the link."""
        link = self._session.invites["runner"]
        self.command = join_command(link, self.name, self._sandbox)

    def by_code(self, code: str) -> None:
        """Take the command that has this code, and show it."""
        taking = handover.take_command(self._session.relay, code, "runner", name=self.name)
        self.command = f"{taking} {self._sandbox}"
        self.show()

    def show(self) -> None:
        if self._voice.json:
            self._voice.status("", event="command", command=self.command)
            return
        self._voice.note("run this on the machine:", "bold")
        self._voice.show(f"\n  {self.command}\n")


def _take_over(args: Namespace, old: Machine) -> None:
    """Put what a machine has where no flag says otherwise; sandbox and image go together."""
    from airlox.protocol.invite import plain_http_host

    if not args.relay:
        args.relay = old.relay
        args.insecure_http_host = args.insecure_http_host or plain_http_host(old.relay)
    if not (args.sandbox or args.image):
        args.sandbox, args.image = old.sandbox, old.image


def sandbox_flags(args: Namespace) -> str:
    """Flags of the sandbox for the printed command. Raises CommandLineError for one that
    is not known here."""
    from airlox.sandbox import NAMES

    name = args.sandbox or ("docker" if args.image else "local")
    if name not in NAMES:
        raise options.CommandLineError(
            f"this version has no {name[:40]} sandbox",
            code="unknown_sandbox",
            hint=f"use --sandbox with one of {', '.join(sorted(NAMES))}, without --image",
        )
    if args.image and name != "docker":
        raise options.CommandLineError("--image goes with --sandbox docker")
    image = f" --image {shlex.quote(args.image)}" if args.image else ""
    return f"--sandbox {name}{image}"


def check_name_is_free(args: Namespace, name: str) -> None:
    """Raises UsageError for a malformed or a taken name, before anything is made."""
    kept = opening.machines(args)
    try:
        kept.get(name)
    except UsageError as error:
        if error.code == "no_machine":
            return
        raise
    raise UsageError(
        f"a machine called {name} exists already",
        code="machine_exists",
        hint=f"choose another name, remove it (airlox machine rm {name}), or make a new session "
        f"for it: airlox machine add {name} --renew",
    )


def _job_limits(args: Namespace, old: Machine | None) -> dict[str, Any]:
    """Limits of the flags, else of the machine that is renewed, else the usual ones."""
    given = {
        "runtime": args.runtime,
        "timeout_s": args.job_timeout,
        "memory_mb": args.job_memory,
        "network": args.network or None,
        "packages": options.flat(args.package) or None,
    }
    before = {} if old is None or old.job_limits is None else old.job_limits
    return LIMITS | before | {name: value for name, value in given.items() if value is not None}


def create(args: Namespace, voice: Voice, job_limits: dict[str, Any]) -> Session:
    """A session for a machine: shell and Python, live output, trees, until closed if possible."""
    return opening.create_session(
        args,
        voice,
        ttl_s=None,
        max_item_mb=_ITEM_MB,
        may_lower=(opening.TTL, opening.ITEMS),
        mode="execute",
        job_limits=job_limits,
        features=FEATURES,
        insecure_http_host=getattr(args, "insecure_http_host", None),
    )


def _describe(args: Namespace, session: Session) -> Machine:
    """The machine `args.name` with this session, as it is kept."""
    import msgspec

    from airlox.client.machines import Machine

    links = session.invites
    return Machine(
        name=args.name,
        session_id=session.session_id,
        relay=session.relay,
        owner_invite=links["owner"],
        sender_invite=links["sender"],
        created_at_ms=session.manifest.created_at_ms,
        expires_at_ms=session.expires_at_ms,
        sandbox=getattr(args, "sandbox", None),
        image=getattr(args, "image", None),
        job_limits=msgspec.to_builtins(session.manifest.job_limits),
    )


def keep(args: Namespace, session: Session, machine: Machine | None = None) -> Machine:
    """Remember a session as the machine `args.name`; a session that cannot be kept is closed."""
    machine = machine or _describe(args, session)
    try:
        opening.machines(args).add(machine)
    except AirloxError:
        session.close()
        raise
    return machine


def _keep_or_replace(
    args: Namespace, session: Session, machine: Machine, old: Machine | None
) -> None:
    """Remember the session without a runner, which is approved later."""
    if old is None:
        keep(args, session, machine)
        return
    try:
        _replace(args, old, machine, runner=None)
    except AirloxError:
        session.close()
        raise


def _replace(args: Namespace, old: Machine, new: Machine, *, runner: str | None) -> None:
    import msgspec

    opening.machines(args).renew(old, msgspec.structs.replace(new, runner=runner))


def _end(args: Namespace, old: Machine, voice: Voice) -> None:
    """Close the session that a renewed machine had, if it is still there."""
    try:
        with opening.open_session(args, voice, link=old.owner_invite) as session:
            session.close()
    except SessionClosed:
        return
    except AirloxError as error:
        if error.code not in ("not_found", "gone"):
            voice.warn(f"the old session of {old.name} could not be closed: {error.message}")


def join_command(link: str, name: str, sandbox: str) -> str:
    """The one command for the other machine. An assignment before a command is not in `ps`."""
    return f"{options.INVITE}={shlex.quote(link)} airlox runner join --name {name} {sandbox}"


def _meet(args: Namespace, session: Session, told: _Told, voice: Voice) -> Runner:
    """Show the command, and wait for the runner that it brings. Raises WaitTimeout."""
    code = None if args.link else _code(session, told, voice)
    if code is None:
        told.by_link()
        told.show()
    stays = "the machine stays as it was" if args.renew else "the machine stays added"
    voice.note(f"waiting for it to join (Ctrl-C leaves; {stays})")
    try:
        if code is None:
            return wait_for_runner(session, args.wait)
        return wait_for_runner(session, args.wait, meanwhile=code.look)
    except (WaitTimeout, TransferError) as error:
        error.hint = f"airlox machine invite {args.name} runner --code makes another command"
        if args.renew:
            error.hint = f"{stays}; start again with that machine at hand"
        raise
    finally:
        if code is not None:
            code.end()


def _code(session: Session, told: _Told, voice: Voice) -> handover.Handover | None:
    """A code for the machine, told; None where the relay knows none."""
    try:
        return handover.Handover(session, told.name, told.by_code, voice)
    except TransferError as error:
        if error.code != "no_codes":
            raise
        voice.note("this relay knows no transfer codes: the command has the link itself")
        return None


def wait_for_runner(
    session: Session,
    timeout_s: float,
    *,
    look_s: float = _LOOK_S,
    meanwhile: Callable[[], None] = lambda: None,
) -> Runner:
    """The first runner that waits for approval. Looked for whenever somebody in the session says
    something, as a runner does that comes in, and at least every `look_s`; `meanwhile` is called
    at each look.

    Raises WaitTimeout, SessionClosed, UsageError when several wait.
    """
    until = time.monotonic() + timeout_s
    while True:
        waiting = waiting_runners(session)
        if waiting:
            return the_one(waiting)
        if session.closed is not None:
            raise SessionClosed(f"the session ended while it waited: {session.closed}")
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise WaitTimeout("no runner has joined", code="no_runner_yet")
        meanwhile()
        with session.stream(min(look_s, left_s)) as news:
            next(news, None)


def waiting_runners(session: Session) -> list[Runner]:
    return [r for r in session.runners() if not (r.approved or r.rejected or r.left)]


def the_one(waiting: list[Runner]) -> Runner:
    if len(waiting) > 1:
        raise UsageError(
            f"{len(waiting)} runners wait for approval",
            code="ambiguous_runner",
            hint="name one by its key: " + ", ".join(r.fingerprint for r in waiting[:8]),
        )
    return waiting[0]


def confirm(args: Namespace, runner: Runner, voice: Voice, *, must_be_named: bool = False) -> None:
    """Show whom this is about, and ask at a terminal. Elsewhere it is a yes, unless the runner
    `must_be_named` by whoever wants it. Raises AirloxError for a no."""
    import sys

    _show_runner(runner, voice)
    if args.yes:
        return
    if sys.stdin.isatty():
        answer = voice.ask("does the machine show the same key? approve it? [y/N]")
        if answer.lower() not in ("y", "yes"):
            raise AirloxError(
                "the runner was not approved",
                code="not_approved",
                hint="the machine stays as it was"
                if getattr(args, "renew", False)
                else f"airlox machine approve {args.name} asks again; "
                f"airlox machine rm {args.name} ends it",
            )
    elif must_be_named:
        raise UsageError(
            "nobody is at a terminal to compare the key of the runner that waits",
            code="not_confirmed",
            hint=f"name it by the key that the machine shows: airlox machine approve {args.name} "
            f"{runner.fingerprint}; --yes approves it unseen",
        )


def _show_runner(runner: Runner, voice: Voice) -> None:
    if voice.json:
        from airlox.cli import shapes

        voice.status("", event="runner", runner=shapes.runner(runner))
        return
    voice.show(
        f"runner {runner.name} on {runner.host} · sandbox {runner.sandbox} · "
        f"key {runner.fingerprint}"
    )


def approve(args: Namespace, session: Session, runner: Runner) -> None:
    """Approve exactly this runner, and remember it; beside another one the machine is a pool."""
    session.approve_runner(runner)
    able = [r for r in session.runners() if r.approved and not r.rejected and not r.left]
    only = able[0].participant_pub if len(able) == 1 else None
    opening.machines(args).update(args.name, runner=only)


def _print_added(
    machine: Machine, runner: Runner | None, command: str, old: Machine | None, voice: Voice
) -> None:
    from airlox.cli import shapes

    if voice.json:
        shape = {
            "command": command,
            "machine": shapes.machine(machine),
            "renewed": None if old is None else old.session_id,
            "runner": None if runner is None else shapes.runner(runner) | {"approved": True},
        }
        voice.document(shape)
        return
    if runner is None:
        voice.note("run this on the machine:", "bold")
        voice.say(command)
        voice.note(f"then, here: airlox machine approve {machine.name}")
        return
    until = "" if machine.expires_at_ms is None else f" until {time_text(machine.expires_at_ms)}"
    voice.say(f"{machine.name} is ready{until}")
    if machine.expires_at_ms is not None:
        voice.note(f"before that: airlox machine add {machine.name} --renew")
    voice.note(f"try it: airlox run --on {machine.name} -- uname -a")
