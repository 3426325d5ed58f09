"""What the benchmarks share: repeated timings, processes that are always ended, a table."""

from __future__ import annotations

import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

START_TIMEOUT_S = 20.0
BIN = Path(sys.executable).parent


class Row(NamedTuple):
    """One line of the report: our figure, the peer's, and what the ratio should be."""

    what: str
    ours: float
    peer: float
    unit: str
    peer_name: str
    target: str

    @property
    def ratio(self) -> float:
        return self.ours / self.peer if self.peer else float("nan")


def compile_first() -> None:
    """Bytecode as an installed package has it: a checkout may be without."""
    import compileall

    import airlox

    compileall.compile_dir(str(Path(airlox.__file__).parent), quiet=1)


def alternate(
    ours: Callable[[], object], peer: Callable[[], object], *, times: int
) -> tuple[float, float]:
    """Medians in milliseconds of two calls that take turns, so that load hits both alike."""
    spent = in_turns({"ours": ours, "peer": peer}, times=times)
    return spent["ours"], spent["peer"]


def in_turns(calls: Mapping[str, Callable[[], object]], *, times: int) -> dict[str, float]:
    """Medians in milliseconds of calls that take turns; each is made once before."""
    for call in calls.values():
        call()
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(times):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            spent[name].append((time.perf_counter() - start) * 1000)
    return {name: statistics.median(all_of_it) for name, all_of_it in spent.items()}


def run(argv: Sequence[str], **options: object) -> None:
    """Runs a command to its end, silently; raises when it fails or takes over a minute."""
    environ = os.environ | dict(options.pop("env", {}) or {})  # type: ignore[call-overload]
    options = {"timeout": 60} | options
    done = subprocess.run(argv, capture_output=True, env=environ, **options)  # type: ignore[call-overload]
    if done.returncode:
        told = done.stderr.decode("utf-8", "replace")[-500:]
        raise RuntimeError(f"{argv[0]} ended with {done.returncode}: {told}")


@contextmanager
def process(argv: Sequence[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    """A process of ours, ended when the block ends."""
    environ = os.environ | dict(options.pop("env", {}) or {})  # type: ignore[call-overload]
    started: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]
        argv, text=True, start_new_session=True, env=environ, **options
    )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait(10)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(f"nothing listens on port {port}")


@contextmanager
def relay(*flags: str) -> Iterator[tuple[str, int]]:
    """A relay of ours on a free loopback port: its address and process id."""
    port = free_port()
    argv = [str(BIN / "airlox-server"), "--listen", f"127.0.0.1:{port}", *flags]
    quiet = subprocess.DEVNULL
    with process(argv, stdout=quiet, stderr=quiet) as server:
        wait_for_port(port)
        yield f"http://127.0.0.1:{port}", server.pid


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="airlox-bench-") as path:
        yield Path(path)


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int, *, peak: bool = False) -> int:
    """The memory of a process now, or the most it had."""
    field = "VmHWM:" if peak else "VmRSS:"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def report(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, under a line that names the machine."""
    machine = (
        f"{platform.system()} {platform.release()} {platform.machine()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}"
    )
    lines = [
        machine,
        "",
        "| what | ours | peer | ratio | target |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        ours, peer = f"{row.ours:,.1f} {row.unit}", f"{row.peer:,.1f} {row.unit} ({row.peer_name})"
        lines.append(f"| {row.what} | {ours} | {peer} | {row.ratio:.2f} | {row.target} |")
    return "\n".join(lines)
