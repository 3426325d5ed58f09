"""Doing something as an ordinary user, where the tests run as root."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import airlox

UID = 60123
"""A user id without an account, so that no limit or file of another user is in the way."""
_SOURCES = Path(airlox.__file__).parent
_SYSTEM_PYTHON = "/usr/bin/python3"
_TIMEOUT_S = 100


@contextmanager
def folder_of(uid: int) -> Iterator[Path]:
    """A new folder that belongs to `uid` and that it can reach. Removed by force at the end."""
    path = Path(tempfile.mkdtemp(prefix="airlox-test-"))
    path.chmod(0o755)
    os.chown(path, uid, uid)
    try:
        yield path
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", path], capture_output=True, timeout=_TIMEOUT_S)
        subprocess.run(["rm", "-rf", path], check=True, timeout=_TIMEOUT_S)


def call_as(uid: int, function: Callable[[], None]) -> None:
    """Run `function` in a forked process as the user `uid`; its failure becomes ours."""
    read_fd, write_fd = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside an idle thread
        pid = os.fork()
    if pid == 0:
        _run_and_exit(uid, function, write_fd)
    os.close(write_fd)
    with open(read_fd, "rb") as report:
        ready, _, _ = select.select([report], [], [], _TIMEOUT_S)
        if not ready:
            os.kill(pid, 9)
        text = report.read().decode()
    _, status = os.waitpid(pid, 0)
    assert status == 0, text or f"ended with status {status}"


def run_script(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Python code as an ordinary user with the package importable; also where all is private.

    Uses a copy of the package and the system's Python, as the tests' own may lie in a private home.
    """
    with folder_of(os.geteuid()) as copy:
        shutil.copytree(_SOURCES, copy / "airlox", ignore=shutil.ignore_patterns("__pycache__"))
        start = f"import sys; sys.path.insert(0, {str(copy)!r})\n"
        return subprocess.run(
            [_SYSTEM_PYTHON if os.geteuid() == 0 else sys.executable, "-c", start + script]
            + [str(argument) for argument in arguments],
            user=UID if os.geteuid() == 0 else None,
            group=UID if os.geteuid() == 0 else None,
            extra_groups=[] if os.geteuid() == 0 else None,
            env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            text=True,
            capture_output=True,
            timeout=_TIMEOUT_S,
        )


def _run_and_exit(uid: int, function: Callable[[], None], write_fd: int) -> None:
    status = 1
    try:
        if uid != os.geteuid():
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        function()
        status = 0
    except BaseException:
        os.write(write_fd, traceback.format_exc().encode())
    finally:
        os._exit(status)
