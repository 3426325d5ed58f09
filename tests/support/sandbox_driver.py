"""Runs one snippet in a sandbox and prints what was seen, as a program of its own.

Reads a request as JSON from standard input and writes an answer as one line of JSON to standard
output; before it, if asked to `announce`, a line with the pids as soon as the job printed. A
program, because the same case runs as root and as an ordinary user, and because some cases kill
the runner. Plays the runner: it keeps secrets (an environment variable, a file, another sender's
workspace), listens on sockets, and tells the snippet where they are (`BAIT`).

Needs nothing but the standard library and the sandbox package.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import dataclasses
import json
import os
import pwd
import shutil
import signal
import socket
import struct
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from airlox.errors import SandboxError
from airlox.runner import attacks
from airlox.sandbox import open_sandbox, proctable
from airlox.sandbox.base import Limits, Mount, Network, Plan, Sandbox, SandboxOptions
from airlox.sandbox.collect import CollectCaps, collect_out
from airlox.sandbox.hosts import PROXY_ENV
from airlox.sandbox.linux import syscalls
from airlox.sandbox.local import LocalSandbox

_libc = ctypes.CDLL(None)
_KEY = 0x41520000 | os.getpid() & 0xFFFF
SECRET = "correct-horse-battery-staple"
KEPT_OUTPUT_BYTES = 64 * 1024
PRELUDE = f"""{attacks.PRELUDE}
import struct
def write(path, content=b"x"):
    with open(path, "wb", buffering=0) as file:
        file.write(content)
"""


def queue_name(pid: int) -> str:
    """What the driver with this pid calls its message queue."""
    return f"airlox-{pid}"


def main() -> None:
    request = json.loads(sys.stdin.read())
    folder = Path(tempfile.mkdtemp(prefix="airlox-case-", dir=request.get("folder")))
    folder.chmod(0o711)  # bubblewrap finds a job's folders as the job's user
    try:
        answer = asyncio.run(_answer(request, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    json.dump(answer, sys.stdout)


async def _answer(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    sandbox = open_asked(request, folder)
    try:
        sandbox.prepare()
        sandbox.keep_ready(1)
        if request.get("strike_ready"):
            _strike_children()
        return await _run(sandbox, request, folder)
    except SandboxError as error:
        return {"refused": error.code, "message": str(error)}
    finally:
        sandbox.keep_ready(0)


def _strike_children() -> None:
    """Kill what waits for a job, and see it dead."""
    for process in proctable.all_processes():
        if process.parent == os.getpid():
            os.kill(process.pid, signal.SIGKILL)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def open_asked(request: dict[str, Any], folder: Path) -> Sandbox:
    """The sandbox that a request names; `folder` is the runner's own."""
    options = SandboxOptions(
        state_dir=folder,
        job_user=request.get("job_user"),
        builder=request.get("builder"),
        toolchain_roots=tuple(Path(path) for path in request.get("toolchains", ())),
        network=Network(request.get("network", "off")),
        hosts=tuple(request.get("hosts", ())),
        **request.get("options", {}),
    )
    if "refused_call" in request:
        _refuse_call(request["refused_call"])
    if request["sandbox"] == "local":
        return LocalSandbox(options, without=frozenset(request.get("without", ())))
    return open_sandbox(request["sandbox"], options)


def _refuse_call(number: int) -> None:
    """Take a system call away from this process and all it starts, as a security profile might."""
    program = (
        (0x20, 0, 0, 0),
        (0x15, 0, 1, number),
        (0x06, 0, 0, 0x50001),
        (0x06, 0, 0, 0x7FFF0000),
    )
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.install_filter(b"".join(struct.pack("<HBBI", *line) for line in program))


async def _run(sandbox: Sandbox, request: dict[str, Any], folder: Path) -> dict[str, Any]:
    places = {name: place(sandbox, folder / name) for name in ("work", "out", "home")}
    limits = Limits(**{"timeout_s": 60.0, "memory_bytes": 512 << 20, **request.get("limits", {})})
    kept = {1: bytearray(), 2: bytearray()}
    counts = {1: 0, 2: 0}

    pids = {"runner": os.getpid()}
    cancel = asyncio.Event()

    def on_output(stream: int, chunk: bytes) -> None:
        if request.get("announce") and not any(counts.values()):
            print(json.dumps(pids), flush=True)
        counts[stream] += len(chunk)
        kept[stream] += chunk[: KEPT_OUTPUT_BYTES - len(kept[stream])]
        if "cancel_on" in request and request["cancel_on"].encode() in kept[stream]:
            cancel.set()

    with _Bait(sandbox, folder) as bait:
        layout = sandbox.layout(places["work"], places["out"], places["home"])
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": layout.home,
            "BAIT": json.dumps({**bait, "work": layout.work, "out": layout.out, "tmp": layout.tmp}),
            **(PROXY_ENV if "hosts" in request else {}),
        }
        plan = Plan(
            argv=tuple(
                request.get("argv", (_interpreter(sandbox), "-I", "-c", PRELUDE + request["code"]))
            ),
            env=tuple(environment.items()),
            cwd=layout.work,
            limits=limits,
            toolchains=() if layout.path else _toolchains(request),
            network=Network(request.get("network", "off")),
            hosts=tuple(request.get("hosts", ())),
            work=places["work"],
            out=places["out"],
            home=places["home"],
        )
        if "cancel_after_s" in request:
            asyncio.get_running_loop().call_later(request["cancel_after_s"], cancel.set)
        started = time.monotonic()
        outcome = await sandbox.run(
            plan,
            on_output=on_output,
            cancel=cancel,
            on_started=lambda pid: pids.update(keeper=pid),
        )
        took_s = time.monotonic() - started
    collected = collect_out(places["out"], CollectCaps())
    return {
        "cause": outcome.cause.value,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "wall_ms": outcome.wall_ms,
        "peak_bytes": outcome.peak_bytes,
        "peak_source": outcome.peak_source,
        "oom_kills": outcome.oom_kills,
        "limit": outcome.limit,
        "detail": outcome.detail,
        "took_s": took_s,
        "stdout": base64.b64encode(kept[1]).decode(),
        "stderr": base64.b64encode(kept[2]).decode(),
        "stdout_bytes": counts[1],
        "stderr_bytes": counts[2],
        "runner_rss_bytes": _peak_memory(),
        "out": [file.path for file in collected.files],
        "left_out": {skipped.path: skipped.reason for skipped in collected.skipped},
        "owner": sandbox.owner(),
        "egress": outcome.egress and dataclasses.asdict(outcome.egress),
        **_told_by_probe(sandbox, request),
    }


def _told_by_probe(sandbox: Sandbox, request: dict[str, Any]) -> dict[str, Any]:
    if not request.get("tell_report"):
        return {}
    report = sandbox.probe()
    return {
        "builder": report.builder,
        "layers": {layer.name: layer.on for layer in report.layers},
    }


def _toolchains(request: dict[str, Any]) -> tuple[Mount, ...]:
    """Our own interpreter, and what the request names besides."""
    return tuple(Mount(Path(p), p) for p in (sys.base_prefix, *request.get("toolchains", ())))


def _interpreter(sandbox: Sandbox) -> str:
    """The real file: a toolchain is mounted, the links that lead to it are not."""
    if sandbox.name == "docker":
        return "/usr/bin/python3"  # the image's
    return os.path.join(sys.base_prefix, "bin", f"python{sysconfig.get_python_version()}")


def place(sandbox: Sandbox, path: Path) -> Path:
    """A folder of the job's user."""
    path.mkdir(0o700)
    owner = sandbox.owner()
    if owner is not None:
        os.chown(path, *owner)
    return path


def _accounts() -> list[str]:
    """What people are called on this machine, above all whoever runs this."""
    own = [entry.pw_name for entry in pwd.getpwall() if entry.pw_uid in (os.getuid(), 0)]
    homes = [entry.pw_name for entry in pwd.getpwall() if entry.pw_dir.startswith("/home/")]
    return sorted({*own, *homes} - {"job"})


def _peak_memory() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


class _Bait:
    """What a runner has that a job must not reach."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self._sandbox = sandbox
        self._folder = folder
        self._sockets: list[socket.socket] = []
        self._shm_id = -1

    def __enter__(self) -> dict[str, Any]:
        secret = self._folder / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        other = place(self._sandbox, self._folder / "other-sender")
        (other / "secret").write_text(SECRET)
        name = f"airlox-{os.getpid()}"
        path = str(self._folder / "agent.sock")
        self._listen(socket.AF_UNIX, "\0" + name)
        self._listen(socket.AF_UNIX, path)
        port = self._listen(socket.AF_INET, ("127.0.0.1", 0)).getsockname()[1]
        readable, _ = self._pipe = os.pipe()
        os.set_inheritable(readable, True)
        self._shm_id = _libc.shmget(_KEY, 4096, 0o1666)
        self._semaphores_id = _libc.semget(_KEY, 1, 0o1666)
        self._queue = _libc.mq_open(
            b"/" + queue_name(os.getpid()).encode(), os.O_RDWR | os.O_CREAT, 0o666, None
        )
        return {
            "secret": str(secret),
            "backwards": SECRET[::-1],
            "other": str(other),
            "pid": os.getpid(),
            "port": port,
            "abstract": name,
            "socket": path,
            "fd": readable,
            "key": _KEY,
            "queue": queue_name(os.getpid()),
            "names": [socket.gethostname(), *_accounts()],
        }

    def __exit__(self, *_: object) -> None:
        for listener in self._sockets:
            listener.close()
        for fd in self._pipe:
            os.close(fd)
        _libc.shmctl(self._shm_id, 0, None)
        _libc.semctl(self._semaphores_id, 0, 0)
        os.close(self._queue)
        _libc.mq_unlink(b"/" + queue_name(os.getpid()).encode())

    def _listen(self, family: int, address: Any) -> socket.socket:
        listener = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(listener)
        listener.bind(address)
        listener.listen()
        return listener


if __name__ == "__main__":
    main()
