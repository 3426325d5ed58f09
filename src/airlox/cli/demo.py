"""`airlox demo`: a job on "another machine", with relay and runner on this one.

A relay that keeps everything in memory, on a free port of the loopback device; a runner in the
best sandbox this machine has; a machine of that name in a cache of its own. The command runs as
any job does, and what each party did is said in a few lines. Then all processes end and all files
go. Nothing of the person's own sessions, settings or caches is touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path

from airlox.cli import adding, ending, opening, options
from airlox.cli.children import Child
from airlox.cli.output import size_text
from airlox.cli.run import first_line, watch
from airlox.errors import AirloxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.client.jobs import Job, Result
    from airlox.client.session import Session
    from airlox.client.shown import Runner

EXAMPLES = {"demo": "airlox demo --tree -- python -m pytest"}
NAME = "demo-box"
SAMPLE = Path(__file__).parent / "sample"
SAMPLE_COMMAND = ("python3", "-m", "unittest", "-v")

_RELAY_PACKAGES = ("uvicorn", "httptools")
_ENDINGS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_START_S = 30.0
_JOIN_S = 60.0
_LEAVE_S = 20.0
_WORD_CHARS = 6
"""Shorter words may stand in a record by chance."""


def add_arguments(parser: Parser, command: str) -> bool:
    parser.usage = "airlox demo [--tree] [options] [-- COMMAND …]"
    parser.description = (
        "See a job run through a relay, all on this machine: starts a relay and a runner, runs "
        "COMMAND (by default the tests of a small sample tree), says what each party did, and "
        "cleans up."
    )
    parser.add_argument(
        "--tree", action="store_true", help="send the tree of this folder as it is now"
    )
    for flag, what in (
        ("--tree-allow", "send this file although its name means credentials"),
        ("--tree-exclude", "leave out, as in .gitignore"),
    ):
        parser.add_argument(flag, action="append", default=[], metavar="NAME", help=what)
    parser.add_argument(
        "--sandbox", choices=("local", "process"), help="the sandbox to use [the best there is]"
    )
    parser.add_argument(
        "--timeout", type=options.duration, metavar="TIME", help="longest run of COMMAND [30m]"
    )
    return True


def run(args: Namespace, voice: Voice) -> int:
    if args.tree and not args.command:
        raise options.CommandLineError(
            "nothing to run in the tree", hint="write a command after --"
        )
    _check_packages()
    before = {number: signal.signal(number, _leave) for number in _ENDINGS}
    try:
        with ExitStack() as cleaning:
            return _Demo(args, voice, cleaning).play()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    """Being told to end is a reason to clean up first."""
    raise SystemExit(128 + number)


def _check_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in _RELAY_PACKAGES if find_spec(name) is None]
    if missing:
        raise AirloxError(
            f"the relay needs {', '.join(missing)}",
            code="missing_package",
            hint="install it: pip install 'airlox[all]'",
        )


class _Demo:
    """The story, from an empty folder to an empty folder. `cleaning` undoes each step."""

    def __init__(self, args: Namespace, voice: Voice, cleaning: ExitStack) -> None:
        self._args = args
        self._voice = voice
        self._cleaning = cleaning
        self._root = Path(tempfile.mkdtemp(prefix="airlox-demo-"))
        cleaning.callback(_remove, self._root)
        # what the commands of a person read from their flags
        self._flags = Namespace(name=NAME, relay=None, cache_dir=os.fspath(self._root / "you"))

    def play(self) -> int:
        self._start_relay()
        session = self._cleaning.enter_context(
            adding.create(self._flags, self._voice, self._job_limits())
        )
        kept = adding.keep(self._flags, session)
        child, sandbox = self._start_runner(session.invites["runner"])
        # before the runner is told to end: it removes what it kept once the session is gone
        self._cleaning.callback(_part, session, child)
        runner = self._meet(session, child, sandbox)
        with opening.open_session(self._flags, self._voice, link=kept.sender_invite) as sender:
            job = self._submit(sender, runner)
            self._voice.note(f"\n{first_line(sender, job, NAME)}", "bold")
            result, code = watch(job, self._voice, wait_s=None)
        return self._tell(session, runner, job, result, code)

    def _job_limits(self) -> dict[str, Any]:
        timeout = {} if self._args.timeout is None else {"timeout_s": self._args.timeout}
        return adding.LIMITS | {"runtime": _runtime()} | timeout

    # -- the parties -------------------------------------------------------------------------

    def _start_relay(self) -> None:
        words = ("airlox.relay", "--ephemeral", "--listen", "127.0.0.1:0")
        relay = Child("relay", words, folder=self._root, environ={})
        self._cleaning.callback(relay.end)
        line = relay.first_line(_START_S)
        self._flags.relay = line.rpartition(" ")[2]
        self._voice.note(f"relay     {self._flags.relay}, keeps everything in memory")

    def _start_runner(self, link: str) -> tuple[Child, str]:
        sandbox = self._args.sandbox or self._best_sandbox()
        environ = {
            options.INVITE: link,
            options.CACHE_DIR: os.fspath(self._root / "runner"),
            "PATH": _search_path(),
        }
        words = ["airlox.cli", "runner", "join", "--name", NAME, "--sandbox", sandbox]
        words += ["--python", sys.executable]
        for folder in _toolchains():
            words += ["--toolchain", folder]
        child = Child("runner", words, folder=self._root, environ=environ)
        self._cleaning.callback(child.end)
        return child, sandbox

    def _best_sandbox(self) -> str:
        """`local` where its walls can be built, else `process`, and the reason is said."""
        state = self._root / "probe"
        state.mkdir()
        why_not = _why_not_local(state)
        if why_not is None:
            return "local"
        self._voice.warn(f"the command runs as a plain process, without walls: {why_not}")
        return "process"

    def _meet(self, session: Session, child: Child, sandbox: str) -> Runner:
        runner = adding.wait_for_runner(session, _JOIN_S, look_s=1.0, meanwhile=child.check)
        self._voice.note(
            f"runner    {runner.name} joined · sandbox {sandbox} · key {runner.fingerprint}"
        )
        adding.approve(self._flags, session, runner)
        self._voice.note("you       approved exactly that key")
        return runner

    def _submit(self, session: Session, runner: Runner) -> Job:
        folder = Path.cwd()
        if not self._args.tree and not self._args.command:
            folder = self._root / "sample"
            shutil.copytree(SAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        has_tree = self._args.tree or not self._args.command
        return session.run_shell(
            self._args.command or SAMPLE_COMMAND,
            runner=runner.participant_pub,
            timeout=self._args.timeout,
            tree=folder if has_tree else None,
            tree_options={"allow": self._args.tree_allow, "exclude": self._args.tree_exclude},
        )

    # -- what happened -----------------------------------------------------------------------

    def _tell(self, session: Session, runner: Runner, job: Job, result: Result, code: int) -> int:
        relay = _look_at_relay(session, job, result)
        checks = _checks(runner, job, result)
        if self._voice.json:
            shape = {
                "checks": checks,
                "relay": relay,
                "result": ending.result_shape(result, []),
                "sandbox": None if result.env is None else result.env.sandbox,
            }
            self._voice.document(shape)
            return code
        ending.tell(result, [], self._voice)
        found = "holds neither the command nor its output"
        if relay["plaintext_found"]:
            found = "HOLDS TEXT OF THE JOB"
        self._voice.note(
            f"\nrelay     passed on {relay['items']} sealed items, {size_text(relay['bytes'])}, "
            f"without a key to any; its record of {relay['entries']} entries {found}"
        )
        self._voice.note("runner    " + _runner_text(result, job))
        passed = [name.replace("_", " ") for name, holds in checks.items() if holds]
        failed = [name.replace("_", " ") for name, holds in checks.items() if not holds]
        self._voice.note(
            "you       checked: "
            + ", ".join(passed)
            + (f" · NOT TRUE: {', '.join(failed)}" if failed else "")
        )
        self._voice.note("all of it ends now: processes stop, files are removed")
        return code


def _look_at_relay(session: Session, job: Job, result: Result) -> dict[str, Any]:
    """What the relay has to show for it, and whether any of the job's text is in there."""
    import msgspec

    session.sync()
    trail = session.audit()
    record = msgspec.json.encode(trail).decode()
    envelopes = [found.envelope for found in session.records() if found.envelope is not None]
    words = {word for word in _texts(job, result) if len(word) >= _WORD_CHARS}
    return {
        "bytes": sum(envelope.blob_size for envelope in envelopes),
        "entries": len(trail),
        "items": len(envelopes),
        "plaintext_found": any(word in record for word in words),
    }


def _texts(job: Job, result: Result) -> set[str]:
    """What nobody but sender and runner should know: the command, and each line of its output."""
    from airlox.cli import shapes

    return {
        shapes.what(job.meta),
        *(line.strip() for text in (result.stdout, result.stderr) for line in text.splitlines()),
    }


def _checks(runner: Runner, job: Job, result: Result) -> dict[str, bool]:
    """What was verified of the result; each is already a condition of its being accepted."""
    checks = {
        "signed_result": result.signed,
        "approved_runner": result.runner == runner.participant_pub,
    }
    if job.upload is not None:
        checks["tree_digest"] = result.tree == job.upload.digest
    return checks


def _runner_text(result: Result, job: Job) -> str:
    if not result.signed:
        return "posted no signed result"
    about = ["this job", "this command"] + ([] if job.upload is None else ["this tree"])
    did = "ran it" if result.status == "completed" else result.status.replace("_", " ")
    return f"{did}, and signed the result for {', '.join(about)}"


# -- this machine -----------------------------------------------------------------------------


def _runtime() -> str:
    return f"python3.{sys.version_info.minor}"


def _why_not_local(state: Path) -> str | None:
    """What keeps the local sandbox from being built here, or None."""
    from airlox.sandbox import open_sandbox
    from airlox.sandbox.base import SandboxOptions

    roots = tuple(Path(folder) for folder in _toolchains())
    report = open_sandbox("local", SandboxOptions(state_dir=state, toolchain_roots=roots)).probe()
    return None if report.refusal is None else report.refusal.message


def _toolchains() -> list[str]:
    """Folders of this interpreter that a sandbox does not show by itself."""
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)))
    return [folder for folder in prefixes if not f"{folder}/".startswith(("/usr/", "/bin/"))]


def _search_path() -> str:
    own = dict.fromkeys((os.path.dirname(sys.executable), os.path.join(sys.base_prefix, "bin")))
    return os.pathsep.join([*own, os.environ.get("PATH", os.defpath)])


def _part(session: Session, child: Child) -> None:
    """End the session, so that the runner cleans up behind itself, and wait until it has."""
    try:
        session.close()
        child.wait(_LEAVE_S)
    except AirloxError:
        pass  # the relay is gone; the runner is ended next


def _remove(root: Path) -> None:
    from airlox.sandbox.collect import remove_tree

    remove_tree(root)
