"""`airlox machine`: machines to run things on, each a session with a runner under a local name.

Its links are kept, readable by this user alone, below the cache. The command that is printed for
the other machine hands the runner's link over in the environment, where `ps` does not show it.
"""

from __future__ import annotations

import shlex
import time

from airlox.cli import opening, options
from airlox.cli.output import time_text
from airlox.cli.runner import state_text
from airlox.errors import AirloxError, SessionClosed, UsageError, WaitTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from typing import Any

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.client.machines import Machine
    from airlox.client.session import Session
    from airlox.client.shown import Runner

KINDS = ("python", "shell")
FEATURES = ("history", "live", "pull", "queue", "trees")
_JOB_TIMEOUT_S = 1800
_JOB_MEMORY_MB = 4096
_ITEM_MB = 100
_WAIT_S = 1800
_LOOK_S = 5.0
"""How often runners are looked for although none said a word: news can be held back on its way."""


def add_arguments(parser: Parser, command: str) -> bool:
    actions = options.Actions(parser)
    _add_add(actions)
    actions.add("ls", "List machines and what they are up to", example="airlox machine ls")
    leaf = actions.add(
        "invite",
        "Print a link of a machine's session",
        details="A sender's link lets its holder run jobs there and do nothing else.",
        example="airlox machine invite gpu-box",
    )
    leaf.add_argument("name", metavar="NAME")
    leaf.add_argument(
        "role",
        nargs="?",
        choices=("sender", "observer", "runner", "owner"),
        default="sender",
        metavar="ROLE",
        help="sender, observer, runner or owner [sender]",
    )
    leaf = actions.add(
        "approve",
        "Approve a runner that waits at a machine",
        details="A second one makes the machine a pool: `--on NAME` then takes any that is free, "
        "`--on NAME/LABEL` one with that label.",
        example="airlox machine approve gpu-box 6fd0a1c2b3e4f596",
    )
    leaf.add_argument("name", metavar="NAME")
    leaf.add_argument(
        "runner", nargs="?", metavar="RUNNER", help="its name or key, where several wait"
    )
    leaf.add_argument("--yes", action="store_true", help="do not ask")
    leaf = actions.add(
        "rm",
        "End a machine's session and forget it",
        details="Its runner stops.",
        example="airlox machine rm gpu-box",
    )
    leaf.add_argument("name", metavar="NAME")
    leaf.add_argument(
        "--force", action="store_true", help="forget it even when its relay cannot be asked"
    )
    return False


def _add_add(actions: options.Actions) -> None:
    parser = actions.add(
        "add",
        "Add a machine: prints one command to run there, waits for it, approves it",
        example="airlox machine add gpu-box --relay https://relay.example",
    )
    parser.add_argument("name", metavar="NAME", help="what to call it: a-z 0-9 . _ -")
    parser.add_argument("--relay", metavar="URL", help=f"the relay to use [{options.RELAY}]")
    parser.add_argument("--yes", action="store_true", help="approve the runner without asking")
    parser.add_argument(
        "--wait",
        type=options.duration,
        default=_WAIT_S,
        metavar="TIME",
        help="how long to wait for the machine; 0 does not wait [30m]",
    )
    jobs = parser.add_argument_group("jobs")
    jobs.add_argument("--network", action="store_true", help="let jobs reach the network")
    jobs.add_argument(
        "--runtime",
        default=options.DEFAULT_RUNTIME,
        metavar="PYTHON",
        help=f"[{options.DEFAULT_RUNTIME}]",
    )
    jobs.add_argument(
        "--job-timeout",
        type=options.duration,
        default=_JOB_TIMEOUT_S,
        metavar="TIME",
        help="longest job [30m]",
    )
    jobs.add_argument(
        "--job-memory",
        type=options.memory,
        default=_JOB_MEMORY_MB,
        metavar="MB",
        help=f"most memory of a job [{_JOB_MEMORY_MB}]",
    )
    jobs.add_argument(
        "--package",
        type=options.words,
        action="append",
        metavar="NAME[SPEC]",
        help="a package Python jobs may use; may be repeated",
    )
    there = parser.add_argument_group("the command for the machine")
    there.add_argument("--image", metavar="IMAGE", help="run jobs in this container image")
    there.add_argument("--sandbox", metavar="NAME", help="how it confines jobs [local]")
    options.add_profile_flags(parser)


def run(args: Namespace, voice: Voice) -> int:
    actions = {"add": _add, "ls": _ls, "invite": _invite, "approve": _approve, "rm": _rm}
    return actions[args.action](args, voice)


# -- add --------------------------------------------------------------------------------------


def _add(args: Namespace, voice: Voice) -> int:
    check_name_is_free(args, args.name)
    sandbox = _sandbox(args)
    with create(args, voice, runtime=args.runtime) as session:
        machine = keep(args, session)
        command = join_command(session.invites["runner"], args.name, sandbox)
        if not voice.json:
            voice.note("run this on the machine:", "bold")
        if args.wait == 0:
            _print_added(machine, None, command, voice)
            return 0
        voice.show(f"\n  {command}\n")
        runner = _await(args, session, voice)
        _confirm(args, runner, voice)
        approve(args, session, runner)
        _print_added(machine, runner, command, voice)
    return 0


def _sandbox(args: Namespace) -> str:
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
        hint=f"choose another name, or remove it: airlox machine rm {name}",
    )


def create(args: Namespace, voice: Voice, *, runtime: str) -> Session:
    """A session for a machine: shell and Python, live output, trees, until closed if possible."""
    return opening.create_session(
        args,
        voice,
        ttl_s=None,
        max_item_mb=_ITEM_MB,
        may_lower=(opening.TTL, opening.ITEMS),
        mode="execute",
        job_limits={
            "kinds": KINDS,
            "runtime": runtime,
            "timeout_s": getattr(args, "job_timeout", _JOB_TIMEOUT_S),
            "memory_mb": getattr(args, "job_memory", _JOB_MEMORY_MB),
            "network": getattr(args, "network", False),
            "packages": options.flat(getattr(args, "package", None)),
        },
        features=FEATURES,
    )


def keep(args: Namespace, session: Session) -> Machine:
    """Remember a session as the machine `args.name`; a session that cannot be kept is closed."""
    from airlox.client.machines import Machine

    links = session.invites
    machine = Machine(
        name=args.name,
        session_id=session.session_id,
        relay=session.relay,
        owner_invite=links["owner"],
        sender_invite=links["sender"],
        created_at_ms=session.manifest.created_at_ms,
        expires_at_ms=session.expires_at_ms,
    )
    try:
        opening.machines(args).add(machine)
    except AirloxError:
        session.close()
        raise
    return machine


def join_command(link: str, name: str, sandbox: str) -> str:
    """The one command for the other machine. An assignment before a command is not in `ps`."""
    return f"{options.INVITE}={shlex.quote(link)} airlox runner join --name {name} {sandbox}"


def _await(args: Namespace, session: Session, voice: Voice) -> Runner:
    hint = f"when the command has been run: airlox machine approve {args.name}"
    voice.note("waiting for it to join (Ctrl-C leaves; the machine stays added)")
    try:
        return wait_for_runner(session, args.wait)
    except WaitTimeout as error:
        raise WaitTimeout(error.message, code=error.code, hint=hint) from None


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


def _confirm(args: Namespace, runner: Runner, voice: Voice) -> None:
    """Show whom this is about, and ask at a terminal. Raises AirloxError for a no."""
    import sys

    voice.show(
        f"runner {runner.name} on {runner.host} · sandbox {runner.sandbox} · "
        f"key {runner.fingerprint}"
    )
    if args.yes or not sys.stdin.isatty():
        return
    answer = voice.ask("does the machine show the same key? approve it? [y/N]")
    if answer.lower() not in ("y", "yes"):
        raise AirloxError(
            "the runner was not approved",
            code="not_approved",
            hint=f"airlox machine approve {args.name} asks again; "
            f"airlox machine rm {args.name} ends it",
        )


def approve(args: Namespace, session: Session, runner: Runner) -> None:
    """Approve exactly this runner, and remember it; beside another one the machine is a pool."""
    session.approve_runner(runner)
    able = [r for r in session.runners() if r.approved and not r.rejected and not r.left]
    only = able[0].participant_pub if len(able) == 1 else None
    opening.machines(args).update(args.name, runner=only)


def _print_added(machine: Machine, runner: Runner | None, command: str, voice: Voice) -> None:
    from airlox.cli import shapes

    if voice.json:
        shape = {
            "command": command,
            "machine": _shape(machine),
            "runner": None if runner is None else shapes.runner(runner),
        }
        voice.document(shape)
        return
    if runner is None:
        voice.say(command)
        voice.note(f"then, here: airlox machine approve {machine.name}")
        return
    until = "" if machine.expires_at_ms is None else f" until {time_text(machine.expires_at_ms)}"
    voice.say(f"{machine.name} is ready{until}")
    voice.note(f"try it: airlox run --on {machine.name} -- uname -a")


def _shape(machine: Machine) -> dict[str, Any]:
    """A machine without its links."""
    return {
        "created_at_ms": machine.created_at_ms,
        "expires_at_ms": machine.expires_at_ms,
        "last_job": machine.last_job,
        "name": machine.name,
        "relay": machine.relay,
        "session_id": machine.session_id,
    }


# -- ls, invite, approve, rm ------------------------------------------------------------------


def _ls(args: Namespace, voice: Voice) -> int:
    found = [_look(args, machine, voice) for machine in opening.machines(args).all()]
    if voice.json:
        voice.document({"machines": found})
        return 0
    if not found:
        voice.note("no machines; add one: airlox machine add NAME")
    voice.table(
        ("NAME", "RUNNERS", "KINDS", "IMAGE", "LAST JOB", "UNTIL"), [_row(m) for m in found]
    )
    return 0


def _look(args: Namespace, machine: Machine, voice: Voice) -> dict[str, Any]:
    """A machine and its runners; what went wrong in asking is part of the answer."""
    from airlox.cli import shapes

    shape = _shape(machine) | {"error": None, "runners": []}
    try:
        with opening.open_session(args, voice, link=machine.owner_invite) as session:
            shape["runners"] = [shapes.runner(r) for r in session.runners() if not r.left]
            shape["error"] = session.closed
    except AirloxError as error:
        shape["error"] = error.message
    return shape


def _row(shape: dict[str, Any]) -> list[str]:
    runners = [r for r in shape["runners"] if not r["rejected"]]
    infos = [r.get("info", {}) for r in runners]
    state = ", ".join(f"{r['name']} {state_text(r)}" for r in runners)
    expires_at_ms = shape["expires_at_ms"]
    return [
        shape["name"],
        shape["error"] or state or "none yet",
        ",".join(sorted({kind for r in runners for kind in r["kinds"]})),
        ", ".join(sorted({info["image"] for info in infos if "image" in info})),
        shape["last_job"] or "",
        "removed" if expires_at_ms is None else time_text(expires_at_ms),
    ]


def _invite(args: Namespace, voice: Voice) -> int:
    machine = opening.machines(args).get(args.name)
    with opening.open_session(args, voice, link=machine.owner_invite) as session:
        link = session.invites[args.role]
    if voice.json:
        voice.document({"invite": link, "machine": machine.name, "role": args.role})
    else:
        voice.say(link)
    return 0


def _approve(args: Namespace, voice: Voice) -> int:
    from airlox.cli import shapes
    from airlox.client.shown import choose_runner

    machine = opening.machines(args).get(args.name)
    with opening.open_session(args, voice, link=machine.owner_invite) as session:
        if args.runner is not None:
            runner = choose_runner(session.runners(), args.runner)
        else:
            waiting = waiting_runners(session)
            if not waiting:
                raise AirloxError(
                    f"no runner waits at machine {machine.name}",
                    code="no_runner_yet",
                    hint="airlox machine ls shows those that are there",
                )
            runner = the_one(waiting)
        _confirm(args, runner, voice)
        approve(args, session, runner)
    if voice.json:
        voice.document({"approved": shapes.runner(runner) | {"approved": True}})
    else:
        voice.say(f"approved runner {runner.name} · key {runner.fingerprint}")
    return 0


def _rm(args: Namespace, voice: Voice) -> int:
    kept = opening.machines(args)
    machine = kept.get(args.name)
    try:
        with opening.open_session(args, voice, link=machine.owner_invite) as session:
            session.close()
    except AirloxError as error:
        if not args.force and error.code not in ("session_gone", "session_closed"):
            raise
    kept.remove(machine.name)
    if voice.json:
        voice.document({"removed": machine.name})
    else:
        voice.say(f"removed {machine.name}")
    return 0
