"""The published 0.1.0 package in an environment of its own, and thin drivers of its programs.

It bears our package's name, so it is never installed beside ours: it lives in a folder of the
temporary directory, made once and kept. Its command line takes the words and variables that ours
takes and prints the same JSON, so one test may speak to either.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from support.commands import TIMEOUT_S, Cli
from support.ordinary import UID

VERSION = "0.1.0"
_FOLDER = (
    Path(tempfile.gettempdir())
    / f"airlox-tests-{VERSION}-python3.{sys.version_info[1]}-uid{os.geteuid()}"
)
_BIN = _FOLDER / "venv/bin"
_AIRLOX = _BIN / "airlox"
_INSTALL_S = 100
_IS_ROOT = os.geteuid() == 0
OWNER_UID = UID if _IS_ROOT else os.geteuid()
"""Who runs the 0.1.0 runner, which refuses to be root."""
_FORWARDED = ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "https_proxy", "no_proxy")


@cache
def is_here() -> bool:
    """Whether the package is there, installed now where it was not."""
    _FOLDER.mkdir(exist_ok=True)
    if _FOLDER.lstat().st_uid != os.geteuid():
        return False
    _FOLDER.chmod(0o755)  # the runner is an ordinary user
    with open(_FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _works() or (_install() and _works())


def _works() -> bool:
    look = (_BIN / "python", "-c", "import airlox; airlox.Session")
    return _run((_AIRLOX, "--version")) == f"airlox {VERSION}" and _run(look) == ""


def _install() -> bool:
    venv = _FOLDER / "venv"
    shutil.rmtree(venv, ignore_errors=True)
    places = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))
    uv = shutil.which("uv", path=places)
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if (
        uv is None
        or _run((sys.executable, "-m", "venv", venv)) is None
        or _run((_BIN / "python", *pip, f"airlox=={VERSION}")) is None
    ):
        return False
    shutil.copy(uv, _BIN / "uv")  # ours may lie where an ordinary user cannot look
    return True


def _run(command: Sequence[str | Path]) -> str | None:
    """What a command printed, or None where it failed."""
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_INSTALL_S,
            env=environ,
            cwd=_FOLDER,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@cache
def job_python() -> Path:
    """An interpreter that whoever runs the 0.1.0 runner can start."""
    return Path("/usr/bin/python3" if _IS_ROOT else os.path.realpath(sys.executable))


@cache
def runtime() -> str:
    """The runtime of sessions whose jobs `job_python` runs."""
    return f"python3.{_run((job_python(), '-c', 'import sys; print(sys.version_info[1])'))}"


@cache
def can_fetch_packages() -> bool:
    """Whether uv gets at an index with what runners forward to it."""
    look = ("pip", "install", "--dry-run", "--only-binary", ":all:", "--target", _FOLDER / "none")
    return _run((_BIN / "uv", *look, "--python", job_python(), "six")) is not None


class OldCli(Cli):
    """The 0.1.0 command line of one person."""

    def argv(self, *words: str) -> list[str]:
        return [str(_AIRLOX), *words]

    def holding(self, invite: str) -> OldCli:
        return OldCli(self.relay, self.home, invite=invite, cwd=self.cwd)


_PRELUDE = """
import json, sys
from airlox import *
given = json.load(sys.stdin)
answer = None
"""
_CODA = "\nprint(json.dumps(answer))\n"


def sdk(script: str, **given: Any) -> Any:
    """Run a script with the 0.1.0 SDK: `given` are its values, its `answer` comes back."""
    done = subprocess.run(
        [_BIN / "python", "-c", _PRELUDE + script + _CODA],
        input=json.dumps(given, default=str),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        cwd=_FOLDER,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class OldRunner:
    """`airlox runner join` of 0.1.0 by an ordinary user, with its cache in `folder`.

    `folder` must belong to OWNER_UID. A context manager; killed with the block.
    """

    def __init__(
        self, invite: str, folder: Path, *words: str, name: str = "box", sandboxed: bool = False
    ) -> None:
        self.said: list[str] = []
        self._news = threading.Condition()
        flags = ("--name", name, "--sandbox", "local", *(() if sandboxed else ("--unsandboxed",)))
        path = (_BIN, job_python().parent, *os.defpath.split(os.pathsep))
        environ = {name: os.environ[name] for name in _FORWARDED if name in os.environ}
        environ |= {
            "AIRLOX_CACHE_DIR": str(folder / "cache"),
            "AIRLOX_INVITE": invite,
            "HOME": str(folder),
            "PATH": os.pathsep.join(map(str, path)),
            "NO_COLOR": "1",
            "UV_PYTHON_DOWNLOADS": "never",
        }
        self._process = subprocess.Popen(
            [_AIRLOX, "runner", "join", *flags, *words],
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            user=OWNER_UID if _IS_ROOT else None,
            group=OWNER_UID if _IS_ROOT else None,
            extra_groups=[] if _IS_ROOT else None,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.said.append(line.strip())
                self._news.notify_all()
        with self._news:
            self.said.append("(ended)")
            self._news.notify_all()

    def until(self, text: str) -> None:
        """Wait until the runner has said `text`."""

        def is_settled() -> bool:
            return any(text in line for line in self.said) or self.said[-1:] == ["(ended)"]

        with self._news:
            assert self._news.wait_for(is_settled, TIMEOUT_S), f"no {text!r} in {self.said}"
            assert any(text in line for line in self.said), f"no {text!r} in {self.said}"

    def interrupt(self) -> int:
        """Ctrl-C, and the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL, to it and to the jobs."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """The exit code of a runner that ends by itself."""
        try:
            code = self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end: {self.said}") from None
        self._reader.join(TIMEOUT_S)
        return code

    def __enter__(self) -> OldRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()


class OldMcp:
    """`airlox mcp` of 0.1.0 over its pipes. A context manager."""

    def __init__(self, relay: str, folder: Path) -> None:
        flags = ("--relay", relay, "--cache-dir", str(folder / "mcp-cache"))
        self._process = subprocess.Popen(
            [_AIRLOX, "mcp", *flags, "--allow-dir", str(folder)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._number = 0
        me = {"name": "tests", "version": "1"}
        self._ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=me)
        self._tell({"method": "notifications/initialized"})

    def call(self, tool: str, **arguments: Any) -> Any:
        """What a tool answered: its JSON."""
        result = self._ask("tools/call", name=tool, arguments=arguments)
        text = result["content"][0]["text"]
        assert not result.get("isError"), text
        return json.loads(text)

    def refusal(self, tool: str, **arguments: Any) -> str:
        """The error a tool answered with."""
        result = self._ask("tools/call", name=tool, arguments=arguments)
        assert result["isError"], result
        text: str = result["content"][0]["text"]
        return text

    def _ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        self._tell({"id": self._number, "method": method, "params": params})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if message.get("id") == self._number:
                return message["result"]
        raise AssertionError("the MCP server ended")

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> OldMcp:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate(timeout=TIMEOUT_S)
