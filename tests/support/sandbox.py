"""One way to run an attack: `run(code, …)` as root or as an ordinary user, and what it saw.

An ordinary user may not be able to read this repository or the interpreter of the tests, so for
that one the sandbox package is copied to a folder open to all and run by an interpreter open to
all. The same holds for bubblewrap under root, which finds what it shows as the job's user. Run by
an ordinary user, the tests are that user, and the cases "as root" are skipped.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

from support import engine, parts, sandbox_driver

USER_UID = 59317  # nobody's
USERS = ("root", "user")
_SOURCE = Path(__file__).resolve().parents[2] / "src" / "airlox"
_DEADLINE_S = 90


@dataclass(frozen=True)
class Seen:
    """The driver's answer."""

    answer: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.answer[name]
        except KeyError:
            raise AttributeError(f"{name}: the answer was {self.answer}") from None

    @property
    def words(self) -> list[str]:
        """The lines that the snippet told."""
        return self.text.split()

    @property
    def text(self) -> str:
        return base64.b64decode(self.stdout).decode("utf-8", "replace")

    @property
    def errors(self) -> str:
        return base64.b64decode(self.stderr).decode("utf-8", "replace")


def run(code: str, *, user: str = "user", sandbox: str = "local", **request: Any) -> Seen:
    """Run a snippet to its end. More of a request: see `sandbox_driver.py`."""
    with started(code, user=user, sandbox=sandbox, **request) as process:
        output, errors = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode == 0, errors.decode()
    seen = Seen(json.loads(output))
    assert "refused" not in seen.answer, seen.answer["message"]
    return seen


@contextmanager
def started(
    code: str,
    *,
    user: str = "user",
    sandbox: str = "local",
    way_in: Sequence[str] = (),
    driver: str = "sandbox_driver",
    **request: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver under way. It is killed when the block is left.

    `way_in` are words of `nsenter` that lead into other namespaces first.
    """
    builder = "bwrap" if "refused_call" in request else request.get("builder")
    need(user, builder)
    environ = {}
    if sandbox == "docker":
        parts.require("a container engine")
        environ["DOCKER_HOST"] = request.pop("docker_host", None) or engine.use().host
        request["options"] = {"image": engine.PYTHON, **request.get("options", {})}
    python, path = _setting(user, builder)
    identity = _identity(user)
    if way_in and identity:
        way_in, identity = (*way_in, f"-S{USER_UID}", f"-G{USER_UID}"), {}
    process = subprocess.Popen(
        [*way_in, python, "-B", str(path / "support" / f"{driver}.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={
            "PYTHONPATH": f"{path / 'src'}:{path}",
            "TMPDIR": str(path / "cases"),
            "PATH": os.defpath,
            "AIRLOX_INVITE": sandbox_driver.SECRET,
            **environ,
        },
        cwd="/",
        **identity,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"code": code, "sandbox": sandbox, **request}).encode())
        process.stdin.close()
        process.stdin = None
        yield process
    finally:
        process.kill()
        process.communicate()
        # of a driver that was killed; there may be few of them on a machine
        ctypes.CDLL(None).mq_unlink(b"/" + sandbox_driver.queue_name(process.pid).encode())


def need(user: str, builder: str | None = None) -> None:
    """Skip, or fail where CI is set, if this case cannot be run as this user."""
    parts.require("linux")
    if builder == "bwrap":
        parts.require("bwrap")
    if user == "root":
        parts.require("root")
    if _needs_open_python(user, builder) and _open_python() is None:
        lack("a Python 3.11 or newer that every user can run: apt-get install python3")


def lack(part: str) -> NoReturn:
    """Skip, or fail where CI is set, because a part of the system is missing."""
    if os.environ.get("CI"):
        pytest.fail(f"needs {part}", pytrace=False)
    pytest.skip(f"needs {part}")


def _identity(user: str) -> dict[str, Any]:
    if user == "root" or os.geteuid() != 0:
        return {}
    return {"user": USER_UID, "group": USER_UID, "extra_groups": []}


def _needs_open_python(user: str, builder: str | None) -> bool:
    return os.geteuid() == 0 and (user != "root" or builder == "bwrap")


def _setting(user: str, builder: str | None) -> tuple[str, Path]:
    if not _needs_open_python(user, builder):
        return sys.executable, _copy()
    python = _open_python()
    assert python is not None
    return python, _copy()


@cache
def _open_python() -> str | None:
    """An interpreter that is new enough and can be run by everybody."""
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    for python in ("/usr/bin/python3", "/usr/local/bin/python3", sys.executable):
        try:
            done = subprocess.run(
                [python, "-I", "-c", check], cwd="/", timeout=60, **_identity("user")
            )
        except OSError:
            continue
        if done.returncode == 0:
            return python
    return None


@cache
def _copy() -> Path:
    """The driver and what it imports of the package, in a folder open to all."""
    folder = Path(tempfile.mkdtemp(prefix="airlox-sandbox-"))
    package = folder / "src" / "airlox"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in ("errors.py", "safefs.py"):
        shutil.copy(_SOURCE / name, package)
    shutil.copytree(_SOURCE / "sandbox", package / "sandbox")
    (package / "runner").mkdir()
    for name in ("__init__.py", "attacks.py"):
        shutil.copy(_SOURCE / "runner" / name, package / "runner")
    (folder / "support").mkdir()
    for name in ("sandbox_driver.py", "sandbox_striker.py"):
        shutil.copy(Path(__file__).with_name(name), folder / "support")
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    (folder / "cases").mkdir()
    (folder / "cases").chmod(0o1777)
    return folder
