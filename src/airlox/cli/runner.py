"""`airlox runner`: run jobs on this machine, or say who may."""

from __future__ import annotations

from airlox.cli import apparmor, doctor, join, opening, options, serve, service, workspaces
from airlox.cli.output import Voice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from airlox.cli.options import Parser

_MODULES = {
    "join": join,
    "serve": serve,
    "install-service": service,
    "install-apparmor": apparmor,
    "doctor": doctor,
    "workspaces": workspaces,
}
"""Actions with a file of their own, in the order of the help."""


def add_arguments(parser: Parser, command: str) -> bool:
    actions = options.Actions(parser)
    for module in _MODULES.values():
        module.add_arguments(actions)
    leaf = actions.add("list", "List the runners of a session", example="airlox runner list")
    options.add_invite_flags(leaf)
    leaf = actions.add(
        "approve",
        "Let exactly this runner take jobs",
        details="Needs the owner's link. Compare the key with the one the runner showed.",
        example="airlox runner approve gpu-box",
    )
    leaf.add_argument("runner", metavar="RUNNER", help="its name or its key")
    options.add_invite_flags(leaf)
    leaf = actions.add(
        "reject",
        "Turn a runner away, for good",
        details="Needs the owner's link.",
        example='airlox runner reject gpu-box --reason "wrong machine"',
    )
    leaf.add_argument("runner", metavar="RUNNER", help="its name or its key")
    leaf.add_argument("--reason", metavar="TEXT", help="what the runner is told")
    options.add_invite_flags(leaf)
    return False


def run(args: Namespace, voice: Voice) -> int:
    if args.action in _MODULES:
        code: int = _MODULES[args.action].run(args, voice)
        return code
    with opening.open_session(args, voice) as session:
        if args.action == "list":
            _list([*session.runners()], voice)
        elif args.action == "approve":
            _print_one("approved", session.approve_runner(args.runner), voice)
        else:
            _print_one("rejected", session.reject_runner(args.runner, args.reason), voice)
    return 0


# -- list, approve, reject --------------------------------------------------------------------


def _list(runners: list[Any], voice: Voice) -> None:
    from airlox.cli import shapes

    found = [shapes.runner(runner) for runner in runners]
    if voice.json:
        voice.document({"runners": found})
        return
    if not found:
        voice.note("no runner has joined")
    voice.table(RUNNER_HEAD, [runner_row(runner) for runner in found])


RUNNER_HEAD = ("NAME", "KEY", "STATE", "SANDBOX", "KINDS", "LABELS", "HOST")


def runner_row(shape: dict[str, Any]) -> list[str]:
    """A runner as a row of a table."""
    sandbox = shape["sandbox"] + (" +network" if shape["network_unblocked"] else "")
    return [
        shape["name"],
        shape["fingerprint"],
        state_text(shape),
        sandbox,
        ",".join(shape["kinds"]),
        ",".join(shape["labels"]),
        shape["host"],
    ]


def state_text(shape: dict[str, Any]) -> str:
    """What a runner is up to, in a word or two."""
    if shape["rejected"]:
        return "rejected"
    if shape["left"]:
        return "left"
    if not shape["online"]:
        return "offline"
    if not shape["approved"]:
        return "waits for approval"
    return "idle" if shape["job"] is None else f"runs {shape['job']}"


def _print_one(verb: str, runner: Any, voice: Voice) -> None:
    from airlox.cli import shapes

    shape = shapes.runner(runner)
    if voice.json:
        voice.document({verb: shape})
    else:
        voice.say(f"{verb} runner {shape['name']} · key {shape['fingerprint']}")
