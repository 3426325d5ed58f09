"""The flags of a runner, and the options they make: one table for every command that needs it.

`add_flags` is for commands that run jobs, `add_confinement_flags` for those that only look at the
sandbox. What the flags mean is checked where it is used (`runner/options.py`).
"""

from __future__ import annotations

import os

from airlox.cli import options, receive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.protocol.invite import Invite
    from airlox.runner.options import RunnerOptions

SESSION_FLAGS = frozenset(
    {"help", "invite", "invite_file", "code", "relay", "insecure_http_host", "verify"}
)
"""Flags that say which session, not what kind of runner."""
_RUNNER_DESCRIPTION = "AIRLOX_RUNNER_DESCRIPTION"
"""What 0.1.0 reads for runners; it wins over AIRLOX_DESCRIPTION, which is a person's."""


def add_flags(parser: Parser) -> None:
    """Everything a runner can be told."""
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
    group.add_argument(
        "--code",
        nargs="?",
        const="",
        metavar="CODE",
        help="take the link by this transfer code, such as 417-guitar-orbit; alone it is asked for",
    )
    receive.add_relay_flags(group)
    add_confinement_flags(parser)
    add_place_flags(parser)


def add_confinement_flags(parser: Parser) -> None:
    """What jobs may do: the sandbox, its layers and limits."""
    group = parser.add_argument_group("what jobs may do")
    group.add_argument(
        "--sandbox",
        metavar="NAME",
        help="local (namespaces, Landlock, seccomp), docker (containers) or process (none: for "
        "senders you trust) [local]",
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
    group.add_argument(
        "--sandbox-builder",
        metavar="own|bwrap",
        help="what builds the local sandbox: ourselves, or bubblewrap [the first that works]",
    )
    group.add_argument(
        "--allow-userns",
        action="store_true",
        help="let jobs make user namespaces, as browsers do for their own sandboxes",
    )
    group.add_argument(
        "--no-data-limit",
        action="store_true",
        help="do not limit the data of a process where no cgroup limits memory "
        "(AddressSanitizer reserves terabytes)",
    )
    group.add_argument("--job-user", metavar="USER", help="run jobs as this user (as root only)")
    group.add_argument(
        "--concurrency", type=options.count, default=1, metavar="N", help="jobs at one time [1]"
    )
    group.add_argument(
        "--no-network", action="store_true", help="no network, even where the session allows it"
    )
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME[:PORT]",
        help="where the session allows the network: this host and those named likewise, and "
        "nothing else; *.NAME for one whole label [port 443]",
    )
    group.add_argument(
        "--memory",
        type=options.memory,
        metavar="MB",
        help="most memory of a job, below the session's",
    )
    group.add_argument(
        "--cpus",
        "--docker-cpus",
        type=float,
        metavar="N",
        help="processors that a job may keep busy, such as 1.5 [all]",
    )
    group.add_argument("--gpus", default="none", metavar="all|none|N", help="GPUs for jobs [none]")
    _add_container_flags(parser)


def _add_container_flags(parser: Parser) -> None:
    group = parser.add_argument_group("containers (--sandbox docker)")
    group.add_argument(
        "--image",
        metavar="IMAGE",
        help="run jobs in this image [one made of --image-base and the session's packages]",
    )
    group.add_argument(
        "--image-base",
        metavar="IMAGE",
        help=f"what an image is made from [{options.IMAGE_BASE}; python:VERSION-slim]",
    )
    group.add_argument(
        "--docker-runtime", metavar="NAME", help="the engine's runtime for jobs, such as runsc"
    )


def add_place_flags(parser: Parser) -> None:
    """Programs and folders that jobs find."""
    group = parser.add_argument_group("programs and folders")
    group.add_argument(
        "--python",
        type=os.path.abspath,
        metavar="PATH",
        help="run Python jobs with this interpreter",
    )
    group.add_argument(
        "--toolchain",
        type=os.path.abspath,
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
        type=os.path.abspath,
        metavar="DIR",
        help=f"where the folders are made that jobs write to [{options.WORK_ROOT}; the cache]",
    )


def take_invite(args: Namespace, voice: Voice, chosen: RunnerOptions | None = None) -> Invite:
    """The runner's link, given or fetched by a code; it is gone from this process's environment
    then: what jobs start must not find it there. A code is not spent where `chosen` cannot be had.

    Raises CommandLineError, ValidationError, SandboxError, and whatever `receive.redeem` does.
    """
    from airlox.protocol.invite import parse_invite

    _check_code(args)
    if args.code is not None:
        if chosen is not None:
            from airlox.runner.confinement import check_confinement

            check_confinement(chosen)
        invite = receive.redeem(args, args.code, voice, role="runner")
    else:
        invite = parse_invite(options.read_invite(args, os.environ))
    os.environ.pop(options.INVITE, None)
    return invite


def _check_code(args: Namespace) -> None:
    """Raises CommandLineError for flags of the session that do not go together."""
    if args.code is None and (args.relay or args.verify):
        raise options.CommandLineError(
            "--relay and --verify go with --code: a link names its relay"
        )
    if args.code is not None and (args.invite or args.invite_file):
        raise options.CommandLineError("give a link or a code, not both")


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
        allow_hosts=tuple(args.allow_host),
        memory_mb=args.memory,
        job_user=args.job_user,
        require_layers=options.flat(args.require_layers),
        builder=args.sandbox_builder,
        allow_userns=args.allow_userns,
        memory_back_stop=not args.no_data_limit,
        gpus=args.gpus,
        image=args.image,
        image_base=args.image_base or _image_base(args),
        docker_runtime=args.docker_runtime,
        cpus=args.cpus,
        toolchains=tuple(Path(folder).absolute() for folder in args.toolchain),
    )


def _image_base(args: Namespace) -> str | None:
    """What the variable says, where it matters."""
    matters = args.sandbox == "docker" and args.image is None
    return os.environ.get(options.IMAGE_BASE) or None if matters else None


def as_words(args: Namespace) -> list[str]:
    """The flags that `args` came from, without the session's: for a command line that runs later,
    from another folder."""
    parser = options.Parser()
    add_flags(parser)
    words = []
    for action in parser._actions:  # argparse offers no other way to ask for its flags
        value = getattr(args, action.dest, action.default)
        if action.dest in SESSION_FLAGS or value == action.default:
            continue
        flag = action.option_strings[0]
        if action.nargs == 0:
            words += [flag] if value == action.const else []
            continue
        for each in value if isinstance(value, list) else [value]:
            words.append(f"{flag}={','.join(each) if isinstance(each, list) else each}")
    return words
