"""Runs the doctor's attacks in a real sandbox, and judges from outside what came of each.

Rules
- Every attack is a job of its own, with folders of its own, as a sender's job would be.
- What it reaches for is there: a secret file, another sender's workspace, a process with a secret
  in its environment, servers on sockets. All of it is made for this, and gone afterwards.
- An attack that told nothing was not tried, which is never counted as held.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airlox.errors import SandboxError
from airlox.runner.attacks import ATTACKS, LEFT_BEHIND, PRELUDE, Attack
from airlox.sandbox.base import Limits, Mount, Network, Outcome, Plan, Sandbox
from airlox.sandbox.collect import remove_tree

MEMORY_BYTES: Final = 128 * 1024 * 1024
_TIMEOUT_S: Final = 30.0
_TOLD_BYTES: Final = 4096
_ERRORS_BYTES: Final = 16 * 1024
_BAIT_S: Final = 15.0
_BAIT_PROGRAM: Final = """
import ctypes, sys
kept = ctypes.create_string_buffer(b"airlox!", 8)
print(ctypes.addressof(kept), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter as jobs find it, and what must be mounted for it."""

    path: str
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, slots=True)
class Ground:
    """What attacks are made in: a sandbox, a private, empty folder, the interpreter they run on,
    and the network that jobs have there."""

    sandbox: Sandbox
    folder: Path
    python: Python
    network: Network
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of an attack. `held` is None when it could not be tried; `seen` says what was."""

    attack: Attack
    held: bool | None
    seen: str


async def attack_all(ground: Ground, attacks: Iterable[Attack] = ATTACKS) -> tuple[Trial, ...]:
    """Make every attack, one after another. From the main thread.

    Raises SandboxError when the bait cannot be put out.
    """
    with _bait(ground.sandbox, ground.folder) as bait:
        return tuple([await _try(ground, attack, bait) for attack in attacks])


async def _try(ground: Ground, attack: Attack, bait: dict[str, Any]) -> Trial:
    job = ground.folder / attack.name
    job.mkdir(0o700 if ground.sandbox.owner() is None else 0o711)
    told = {1: bytearray(), 2: bytearray()}

    def take(stream: int, chunk: bytes) -> None:
        told[stream] += chunk[: (_TOLD_BYTES, _ERRORS_BYTES)[stream - 1] - len(told[stream])]

    plan = _plan(ground, job, attack, bait)
    try:
        outcome = await ground.sandbox.run(plan, on_output=take, cancel=asyncio.Event())
        words = told[1].decode("utf-8", "replace").split()
        left = attack.name == LEFT_BEHIND and _is_locked(job / "work" / "left")
        return _judge(attack, outcome, words, bytes(told[2]), left=left)
    except SandboxError as error:
        return Trial(attack, None, error.message)
    finally:
        remove_tree(job)


def _judge(
    attack: Attack, outcome: Outcome, words: list[str], errors: bytes, *, left: bool
) -> Trial:
    if left:
        return Trial(attack, False, "a process of the job still runs")
    amiss = sorted(set(words) - attack.held)
    if amiss:
        return Trial(attack, False, ", ".join(amiss))
    if not words:
        return Trial(attack, None, _last_words(outcome, errors))
    if outcome.cause is not attack.ends or (outcome.exit_code or 0) != 0:
        return Trial(attack, None, f"the job ended otherwise: {outcome.cause}")
    return Trial(attack, True, attack.shown or ", ".join(sorted(set(words))))


def _last_words(outcome: Outcome, errors: bytes) -> str:
    """Why an attack came to nothing: what the interpreter printed, or how it ended."""
    if outcome.detail:
        return outcome.detail
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else f"it ended with {outcome.cause} {outcome.exit_code or ''}"


def _plan(ground: Ground, job: Path, attack: Attack, bait: dict[str, Any]) -> Plan:
    work, out, home = (_place(ground.sandbox, job / name) for name in ("work", "out", "home"))
    layout = ground.sandbox.layout(work, out, home)
    return Plan(
        argv=(ground.python.path, "-I", "-B", "-c", PRELUDE + attack.code),
        env=(("PATH", "/usr/local/bin:/usr/bin:/bin"), ("BAIT", json.dumps(bait))),
        cwd=layout.work,
        work=work,
        out=out,
        home=home,
        limits=Limits(
            timeout_s=_TIMEOUT_S,
            memory_bytes=MEMORY_BYTES,
            processes=64,
            disk_floor_bytes=0,
            grace_s=0.5,
        ),
        toolchains=ground.python.mounts,
        network=ground.network,
        hosts=ground.hosts,
    )


def _place(sandbox: Sandbox, path: Path) -> Path:
    path.mkdir(0o700)
    owner = sandbox.owner()
    if owner is not None:
        os.chown(path, *owner)
    return path


def _is_locked(path: Path) -> bool:
    """Whether a process of the job holds the lock that it took."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


# ── bait ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _bait(sandbox: Sandbox, folder: Path) -> Iterator[dict[str, Any]]:
    """What a runner has that no job must reach; the value says where it is."""
    secret = secrets.token_hex(16)
    with ExitStack() as stack:
        kept = folder / "secret"
        kept.write_text(secret)
        kept.chmod(0o600)
        other = _place(sandbox, folder / "other")
        (other / "secret").write_text(secret)
        pid, address = _start_process(stack, secret)
        name = f"airlox-doctor-{secrets.token_hex(4)}"
        path = _short_path(stack)
        port = _listen(stack, socket.AF_INET, ("127.0.0.1", 0)).getsockname()[1]
        with suppress(OSError):  # only Linux has sockets without a file
            _listen(stack, socket.AF_UNIX, "\0" + name)
        _listen(stack, socket.AF_UNIX, path)
        yield {
            "secret": str(kept),
            # not as it is: the attacker's own environment must not be what it finds
            "backwards": secret[::-1],
            "other": str(other),
            "pid": pid,
            "address": address,
            "port": port,
            "abstract": name,
            "socket": path,
        }


def _short_path(stack: ExitStack) -> str:
    """Where a socket can lie: its path may have some 100 bytes, a work root may have more."""
    short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="airlox-")))
    short.chmod(0o711)
    return str(short / "socket")


def _start_process(stack: ExitStack, secret: str) -> tuple[int, int]:
    """A process with a secret in its environment: its pid, and an address in its memory."""
    python = getattr(sys, "_base_executable", None) or sys.executable
    try:
        process = subprocess.Popen(
            (python, "-I", "-S", "-c", _BAIT_PROGRAM),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"AIRLOX_DOCTOR_SECRET": secret},
            cwd="/",
        )
    except OSError as error:
        raise SandboxError(f"no process can be started: {error.strerror}") from None
    stack.callback(_end, process)
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _BAIT_S)
    told = process.stdout.readline() if ready else b""
    if not told.strip().isdigit():
        raise SandboxError("the process that attacks aim at did not start")
    return process.pid, int(told)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate(timeout=_BAIT_S)


def _listen(stack: ExitStack, family: int, address: Any) -> socket.socket:
    listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    listener.bind(address)
    listener.listen()
    return listener
