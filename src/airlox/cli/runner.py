"""`airlox runner`: run jobs on this machine, or say who may."""

from __future__ import annotations

import os

from airlox.cli import opening, options
from airlox.cli.output import Voice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from airlox.cli.options import Parser
    from airlox.runner.notes import Note
    from airlox.runner.options import RunnerOptions

_RUNNER_DESCRIPTION = "AIRLOX_RUNNER_DESCRIPTION"
"""What 0.1.0 reads for runners; it wins over AIRLOX_DESCRIPTION, which is a person's."""


def add_arguments(parser: Parser, command: str) -> bool:
    actions = options.Actions(parser)
    _add_join(actions)
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


def _add_join(actions: options.Actions) -> None:
    parser = actions.add(
        "join",
        "Run the jobs of a session on this machine until the session ends",
        details="Takes a runner's link. Ctrl-C ends it: a job that runs is cancelled and reported. "
        "One that has joined before waits for a relay that is away; a new one says so and ends.",
        example="airlox runner join --name gpu-box --labels gpu,a100 --sandbox local",
    )
    parser.add_argument("--name", required=True, help="what senders call it: a-z 0-9 . _ -")
    parser.add_argument(
        "--labels",
        type=options.words,
        action="append",
        metavar="LIST",
        help="further words by which senders choose it",
    )
    parser.add_argument("--description", metavar="TEXT", help="what it is, shown to senders")
    group = parser.add_argument_group("session")
    group.add_argument(
        "--invite",
        metavar="LINK",
        help=f"the runner's link; other users of this machine can see it in ps, so rather set "
        f"{options.INVITE}",
    )
    group.add_argument(
        "--invite-file", metavar="FILE", help="read the link from a file, - is stdin"
    )
    _add_confinement(parser)
    _add_places(parser)


def _add_confinement(parser: Parser) -> None:
    group = parser.add_argument_group("what jobs may do")
    group.add_argument(
        "--sandbox",
        metavar="NAME",
        help="local (namespaces, Landlock, seccomp) or process (none: for senders you trust) "
        "[local]",
    )
    group.add_argument(
        "--unsandboxed", action="store_true", help="another word for --sandbox process"
    )
    group.add_argument(
        "--require-layers",
        type=options.words,
        action="append",
        metavar="LIST",
        help="do not start without these layers of the sandbox",
    )
    group.add_argument("--job-user", metavar="USER", help="run jobs as this user (as root only)")
    group.add_argument(
        "--concurrency", type=options.count, default=1, metavar="N", help="jobs at one time [1]"
    )
    group.add_argument(
        "--no-network", action="store_true", help="no network, even where the session allows it"
    )
    group.add_argument(
        "--memory",
        type=options.memory,
        metavar="MB",
        help="most memory of a job, below the session's",
    )
    group.add_argument("--gpus", default="none", metavar="all|none|N", help="GPUs for jobs [none]")


def _add_places(parser: Parser) -> None:
    group = parser.add_argument_group("programs and folders")
    group.add_argument("--python", metavar="PATH", help="run Python jobs with this interpreter")
    group.add_argument(
        "--toolchain",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder jobs may read, its bin on their PATH; may be repeated",
    )
    group.add_argument(
        "--workspace",
        action="store_true",
        default=True,
        help="keep each sender's tree between jobs (this is the default)",
    )
    group.add_argument(
        "--no-workspace",
        dest="workspace",
        action="store_false",
        help="start from nothing each time",
    )
    group.add_argument(
        "--work-root",
        metavar="DIR",
        help=f"where the folders are made that jobs write to [{options.WORK_ROOT}; the cache]",
    )


def run(args: Namespace, voice: Voice) -> int:
    if args.action == "join":
        return _join(args, voice)
    with opening.open_session(args, voice) as session:
        if args.action == "list":
            _list([*session.runners()], voice)
        elif args.action == "approve":
            _print_one("approved", session.approve_runner(args.runner), voice)
        else:
            _print_one("rejected", session.reject_runner(args.runner, args.reason), voice)
    return 0


# -- join -------------------------------------------------------------------------------------


def _join(args: Namespace, voice: Voice) -> int:
    from airlox.protocol.invite import parse_invite
    from airlox.runner.worker import run_runner

    chosen = runner_options(args)
    invite = parse_invite(options.read_invite(args, os.environ))
    # what jobs start must not find the link in this process's environment
    os.environ.pop(options.INVITE, None)
    return run_runner(chosen, invite, lambda note: _say(note, voice))


def _say(note: Note, voice: Voice) -> None:
    """Pass on what the runner tells; called from any thread."""
    if voice.json:
        voice.json_line({"kind": note.kind, "text": note.text, **note.facts})
    elif note.kind == "warning":
        voice.warn(note.text)
    else:
        voice.note(note.text)


def runner_options(args: Namespace) -> RunnerOptions:
    """The runner's options as the flags and variables say. Raises CommandLineError, UsageError,
    ValidationError."""
    import socket
    from pathlib import Path

    from airlox.runner.options import RunnerOptions

    if args.unsandboxed and args.sandbox not in (None, "process"):
        raise options.CommandLineError("--unsandboxed means --sandbox process; give one of them")
    work_root = args.work_root or os.environ.get(options.WORK_ROOT)
    description = (
        args.description
        or os.environ.get(_RUNNER_DESCRIPTION)
        or os.environ.get(options.DESCRIPTION)
    )
    return RunnerOptions(
        name=args.name,
        cache_root=Path(options.cache_root(args, os.environ)).absolute(),
        host=socket.gethostname()[:128] or "unknown",
        path=os.environ.get("PATH", os.defpath),
        labels=options.flat(args.labels),
        description=description or None,
        sandbox="process" if args.unsandboxed else args.sandbox or "local",
        python=None if args.python is None else Path(args.python).absolute(),
        workspaces=args.workspace,
        work_root=None if not work_root else Path(work_root).absolute(),
        concurrency=args.concurrency,
        no_network=args.no_network,
        memory_mb=args.memory,
        job_user=args.job_user,
        require_layers=options.flat(args.require_layers),
        gpus=args.gpus,
        toolchains=tuple(Path(folder).absolute() for folder in args.toolchain),
    )


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
