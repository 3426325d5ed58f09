"""`airlox listen`: wait for what concerns you; print it, or start an agent or a command for it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager

from airlox.cli import opening, options
from airlox.cli.options import CommandLineError
from airlox.errors import AirloxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from types import FrameType

    from airlox.agents.commands import CommandFor
    from airlox.agents.inbox import Inbox
    from airlox.agents.keeping import Ended
    from airlox.agents.ledger import Batch, Ledger
    from airlox.agents.senders import Senders
    from airlox.agents.wake import Delivery, Desk
    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.client.session import Session

EXAMPLES = {"listen": "airlox listen --agent codex --fresh --from owner"}
RUN_TIMEOUT_S = 30 * 60
PENDING_TIMEOUT_S = 60
MAX_HOPS = 8
LONGEST_RUN_S = 7 * 86_400
_ENDINGS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def add_arguments(parser: Parser, command: str) -> bool:
    group = parser.add_argument_group("what to do with it (without any of these: print it)")
    group.add_argument("--once", action="store_true", help="print what concerns you, then exit")
    group.add_argument(
        "--timeout", type=options.duration, metavar="TIME", help="with --once: give up, exit 75"
    )
    group.add_argument(
        "--agent", choices=("claude", "codex"), help="start this agent for it, in this folder"
    )
    group.add_argument("--resume", metavar="ID", help="with --agent: go on with this conversation")
    group.add_argument(
        "--fresh", action="store_true", help="with --agent: a new conversation each time"
    )
    group.add_argument(
        "--allow-dir", metavar="DIR", help="with --agent: it may send and save files there"
    )
    group.add_argument(
        "--exec",
        dest="program",
        nargs="*",
        metavar="CMD",
        help="run this command for it; words that begin with - go behind --",
    )
    group.add_argument(
        "--run-timeout",
        type=options.duration,
        default=RUN_TIMEOUT_S,
        metavar="TIME",
        help="longest run of the agent or command [30m]",
    )
    group = parser.add_argument_group("what counts")
    group.add_argument(
        "--from",
        dest="senders",
        action="append",
        default=[],
        metavar="WHO",
        help="only from owner, a key, a name or role:ROLE; may be repeated",
    )
    group.add_argument("--new", action="store_true", help="only what arrives from now on")
    group.add_argument(
        "--max-hops",
        type=options.count,
        default=MAX_HOPS,
        metavar="N",
        help=f"posts of agents in a row, and no person's, that may wake [{MAX_HOPS}]",
    )
    group.add_argument(
        "--pending-timeout",
        type=options.duration,
        default=PENDING_TIMEOUT_S,
        metavar="TIME",
        help="pass over an item that cannot be fetched for so long [60s]",
    )
    options.add_invite_flags(parser)
    return True


def run(args: Namespace, voice: Voice) -> int:
    _check(args)
    senders = _senders(args, voice)
    link = options.read_invite(args, os.environ)
    with _ended_by_signals(), opening.open_session(args, voice, link=link) as session:
        return _Listener(args, voice, session, senders, link).listen()


def _check(args: Namespace) -> None:
    """Whether the flags make sense together. Raises CommandLineError."""
    program = args.program is not None
    if args.command and not program:
        raise CommandLineError("what stands behind -- is for --exec")
    if sum((args.once, args.agent is not None, program)) > 1:
        raise CommandLineError("give one of --once, --agent and --exec")
    if program and not (args.program or args.command):
        raise CommandLineError("--exec needs a command", hint="airlox listen --exec ./handle.sh")
    if args.agent is None and (args.resume or args.fresh or args.allow_dir):
        raise CommandLineError("--resume, --fresh and --allow-dir go with --agent")
    if args.timeout is not None and not args.once:
        raise CommandLineError("--timeout goes with --once")
    if not 0 < args.run_timeout <= LONGEST_RUN_S:
        raise CommandLineError("--run-timeout is a second at least, and 7d at most")
    if args.agent is not None:
        _check_agent(args)


def _check_agent(args: Namespace) -> None:
    if bool(args.resume) == args.fresh:
        raise CommandLineError(
            "--agent needs one of --resume ID and --fresh",
            hint="so that it is never by chance the last conversation of this folder that is woken",
        )
    if not args.senders:
        raise CommandLineError(
            "--agent needs --from",
            hint="an agent does what those ask who wake it; --from owner is the safe choice",
        )


def _senders(args: Namespace, voice: Voice) -> Senders:
    from airlox.agents.senders import parse_senders

    senders = parse_senders(args.senders)
    for warning in senders.warnings:
        voice.warn(warning)
    if args.program is not None and not args.senders:
        voice.warn("anyone in the session can start this command; --from owner lets only the owner")
    return senders


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Being told to end is a reason to end what was started first. What this process was started
    to ignore (`nohup`) stays ignored."""
    heard = [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _leave) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _check_server() -> None:
    """Whether the MCP server is installed, without which an agent could read nothing."""
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise AirloxError(
            "an agent reads and answers through the MCP server, which is not installed",
            code="not_installed",
            hint="pip install 'airlox[mcp]'",
        )


class _Listener:
    """One run of the command."""

    def __init__(
        self, args: Namespace, voice: Voice, session: Session, senders: Senders, link: str
    ) -> None:
        self._args = args
        self._voice = voice
        self._session = session
        self._senders = senders
        self._link = link

    def listen(self) -> int:
        from airlox.agents.wake import Desk, listen
        from airlox.client.cache import SessionCache
        from airlox.client.deadline import Deadline
        from airlox.errors import SessionClosed, WaitTimeout

        args, session = self._args, self._session
        deadline = Deadline.after(args.timeout)
        cache = SessionCache(options.cache_root(args, os.environ), session.session_id)
        desk = Desk.of(cache, session.role)
        deliver = self._deliver(desk)
        with desk.open(self._voice.note) as ledger:
            inbox = self._inbox(ledger)
            inbox.begin(only_new=args.new)
            found = listen(session, inbox, ledger, deliver, once=args.once, deadline=deadline)
        if not args.once:
            self._voice.note(f"the session is over: {session.closed}")
        elif not found and session.closed is not None:
            raise SessionClosed(f"nothing came: {session.closed}")
        elif not found:
            raise WaitTimeout("nothing that concerns you came in time")
        return 0

    def _inbox(self, ledger: Ledger) -> Inbox:
        from airlox.agents.inbox import Inbox

        return Inbox(
            self._session,
            ledger,
            self._senders,
            max_hops=self._args.max_hops,
            pending_timeout_s=self._args.pending_timeout,
            warn=self._voice.warn,
        )

    # -- what is done with a batch ---------------------------------------------------------------

    def _deliver(self, desk: Desk) -> Delivery:
        args = self._args
        if args.agent is None and args.program is None:
            return self._print
        from airlox.agents.wake import Commands

        # JSON is all that goes to standard output then
        stdout = (sys.stderr if self._voice.json else sys.stdout).fileno()
        return Commands(
            desk.places,
            self._agent() if args.agent is not None else self._program(),
            run_timeout_s=args.run_timeout,
            output=(stdout, sys.stderr.fileno()),
            told=self._tell_end,
        )

    def _tell_end(self, batch: Batch, ended: Ended) -> None:
        text = f"batch {batch.id}: the command {ended.text}"
        if ended.is_clean or self._voice.json:
            self._voice.end_status(
                text,
                event="run_ended",
                batch=batch.id,
                items=batch.items,
                how=ended.how,
                code=ended.code,
            )
        else:
            self._voice.warn(text)

    def _program(self) -> CommandFor:
        from airlox.agents.commands import exec_command

        argv = (*self._args.program, *self._args.command)
        return exec_command(argv, self._settings(), self._session.session_id)

    def _agent(self) -> CommandFor:
        """What would end each run at its start is said here, before anything is handed out."""
        from airlox.agents.commands import AGENTS, Wake, check_conversation
        from airlox.agents.configs import Server
        from airlox.mcp.allowed_dirs import AllowedDirs

        args, folder = self._args, self._args.allow_dir
        _check_server()
        resume = None if args.resume is None else check_conversation(args.resume)
        if folder is not None:
            AllowedDirs.of([folder], [options.cache_root(args, os.environ)])
            folder = os.path.realpath(folder)
        server = Server((sys.executable, "-P", "-m", "airlox.cli"), folder)
        wake = Wake(self._settings(), self._session.session_id, server, resume)
        return AGENTS[args.agent](wake)

    def _settings(self) -> dict[str, str]:
        """What makes another program of this user the same participant."""
        args, environ = self._args, os.environ
        given = {
            options.INVITE: self._link,
            options.CACHE_DIR: os.path.abspath(options.cache_root(args, environ)),
            options.NAME: args.display_name or environ.get(options.NAME),
            options.DESCRIPTION: args.description or environ.get(options.DESCRIPTION),
        }
        return {name: value for name, value in given.items() if value}

    def _print(self, batch: Batch, ledger: Ledger) -> None:
        from airlox.cli import shapes
        from airlox.cli.items import is_valid, item_text

        for item_id in batch.items:
            item = self._session.item(item_id)
            if item is None:
                self._voice.warn(f"item {item_id} cannot be had any more")
                continue
            shape = shapes.item(item, valid=is_valid(self._session, item)) | {"batch": batch.id}
            if self._voice.json:
                self._voice.json_line(shape)
            else:
                self._voice.say(item_text(shape))
