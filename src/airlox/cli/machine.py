"""`airlox machine`: machines to run things on, each a session with a runner under a local name.

Its links are kept, readable by this user alone, below the cache. How one is added is in
`adding.py`.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from airlox.cli import adding, handover, opening, options
from airlox.cli.output import time_text
from airlox.cli.runner import state_text
from airlox.errors import AirloxError, ConnectionLost, SessionClosed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.client.machines import Machine

_LOOKS_AT_ONCE = 16
_SOON_MS = 3 * 86_400_000
"""How long before its end a machine is said to end."""


def add_arguments(parser: Parser, command: str) -> bool:
    actions = options.Actions(parser)
    adding.add_arguments(actions)
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
    leaf.add_argument(
        "--code", action="store_true", help="hand the link over by a one-time code instead"
    )
    handover.add_flags(leaf)
    leaf = actions.add(
        "approve",
        "Approve a runner that waits at a machine",
        details="A second one makes the machine a pool: `--on NAME` then takes any that is free, "
        "`--on NAME/LABEL` one with that label. Away from a terminal RUNNER or --yes is needed.",
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


def run(args: Namespace, voice: Voice) -> int:
    actions = {"add": adding.run, "ls": _ls, "invite": _invite, "approve": _approve, "rm": _rm}
    return actions[args.action](args, voice)


# -- ls, invite, approve, rm ------------------------------------------------------------------


def _ls(args: Namespace, voice: Voice) -> int:
    found = _look_at_all(args, opening.machines(args).all(), voice)
    if voice.json:
        voice.document({"machines": found})
        return 0
    if not found:
        voice.note("no machines; add one: airlox machine add NAME")
    voice.table(
        ("NAME", "RUNNERS", "KINDS", "LABELS", "IMAGE", "LAST JOB", "UNTIL"),
        [_row(m) for m in found],
    )
    for shape in found:
        _advise(shape, voice)
    return 0


def _look_at_all(args: Namespace, machines: list[Machine], voice: Voice) -> list[dict[str, Any]]:
    """All at once: one whose relay does not answer holds up no other, and nobody's Ctrl-C."""
    found: dict[str, dict[str, Any]] = {}
    failed: list[BaseException] = []
    gate = threading.Semaphore(_LOOKS_AT_ONCE)

    def look(machine: Machine) -> None:
        try:
            with gate:
                found[machine.name] = _look(args, machine, voice)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=look, args=(each,), daemon=True) for each in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return [found[machine.name] for machine in machines]


def _look(args: Namespace, machine: Machine, voice: Voice) -> dict[str, Any]:
    """A machine and its runners; what went wrong in asking is part of the answer."""
    from airlox.cli import shapes

    shape = shapes.machine(machine) | {"ended": False, "error": None, "runners": []}
    try:
        with (
            opening.of_machine(machine),
            opening.open_session(args, voice, link=machine.owner_invite) as session,
        ):
            shape["runners"] = [shapes.runner(r) for r in session.runners() if not r.left]
            opening.check_open(session)
    except AirloxError as error:
        shape |= {"ended": isinstance(error, SessionClosed), "error": error.message}
    return shape


def _row(shape: dict[str, Any]) -> list[str]:
    runners = [r for r in shape["runners"] if not r["rejected"]]
    infos = [r.get("info", {}) for r in runners]
    state = ", ".join(f"{r['name']} {state_text(r)}" for r in runners)
    expires_at_ms = shape["expires_at_ms"]
    return [
        shape["name"],
        "ended" if shape["ended"] else shape["error"] or state or "none yet",
        ",".join(sorted({kind for r in runners for kind in r["kinds"]})),
        ",".join(sorted({label for r in runners for label in r["labels"]})),
        ", ".join(sorted({info["image"] for info in infos if "image" in info})),
        shape["last_job"] or "",
        "removed" if expires_at_ms is None else time_text(expires_at_ms),
    ]


def _advise(shape: dict[str, Any], voice: Voice) -> None:
    """What to do about a machine that has ended, or will soon."""
    name, expires_at_ms = shape["name"], shape["expires_at_ms"]
    renew = f"airlox machine add {name} --renew makes a new session for it"
    if shape["ended"]:
        voice.note(f"{shape['error']}: {renew}")
    elif expires_at_ms is not None and expires_at_ms - time.time() * 1000 < _SOON_MS:
        voice.note(f"{name} ends {time_text(expires_at_ms)}: {renew}")


def _invite(args: Namespace, voice: Voice) -> int:
    machine = opening.machines(args).get(args.name)
    _check_invite_flags(args)
    with (
        opening.of_machine(machine),
        opening.open_session(args, voice, link=machine.owner_invite) as session,
    ):
        if args.code:
            handover.hand_over(args, session, args.role, voice)
            return 0
        with suppress(ConnectionLost):  # a link can be told without the relay
            session.sync()
        opening.check_open(session)
        link = session.invites.get(args.role)
        if link is None:
            raise AirloxError(
                f"the role {args.role} was revoked in the session of machine {machine.name}",
                code="revoked",
                hint=f"airlox machine add {machine.name} --renew makes a new session for it",
            )
    if voice.json:
        voice.document({"invite": link, "machine": machine.name, "role": args.role})
    else:
        voice.say(link)
    return 0


def _check_invite_flags(args: Namespace) -> None:
    """Raises CommandLineError for flags that do not go together."""
    if not args.code and (args.wait or args.verify or args.park):
        raise options.CommandLineError("--wait, --verify and --park go with --code")
    if args.code and args.role not in handover.ROLES:
        raise options.CommandLineError(
            "the owner's link is handed over by no code",
            hint="copy it over a channel that you trust",
        )


def _approve(args: Namespace, voice: Voice) -> int:
    from airlox.cli import shapes
    from airlox.client.shown import choose_runner

    machine = opening.machines(args).get(args.name)
    with (
        opening.of_machine(machine),
        opening.open_session(args, voice, link=machine.owner_invite) as session,
    ):
        if args.runner is not None:
            runner = choose_runner(session.runners(), args.runner)
        else:
            waiting = adding.waiting_runners(session)
            if not waiting:
                opening.check_open(session)
                raise AirloxError(
                    f"no runner waits at machine {machine.name}",
                    code="no_runner_yet",
                    hint="airlox machine ls shows those that are there",
                )
            runner = adding.the_one(waiting)
        adding.confirm(args, runner, voice, must_be_named=args.runner is None)
        adding.approve(args, session, runner)
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
