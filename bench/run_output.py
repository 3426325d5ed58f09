"""The output of a job on its way to whoever watches: how late a line comes, how much goes through,
and what a gigabyte of it costs each party in memory. Beside `ssh host …` in the same run.

The job writes the clock of the machine on each line; the reader, on the same machine, subtracts.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.box import Box, box
from bench.measure import Row, alternate, compile_first, folder, resident_bytes
from bench.run_true import ssh_server

LINES = 400
EVERY_S = 0.02
"""As a test runner's dots come: a line at a time, each for itself."""
FLOOD_MB = 256
HUGE_MB = 1024
TIMES = 3
MEGABYTE = 1_000_000
CLOCK = (
    "import time\n"
    f"for _ in range({LINES}):\n"
    "    print(time.monotonic_ns(), flush=True)\n"
    f"    time.sleep({EVERY_S})\n"
)


def rows() -> list[Row]:
    compile_first()
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    if not Path(sshd).exists() or shutil.which("ssh") is None:
        raise RuntimeError("sshd is missing: apt-get install openssh-server openssh-client")
    with box() as ours, folder() as keys, ssh_server(sshd, keys) as ssh:
        return [*latency(ours, ssh, keys), throughput(ours, ssh), *memory(ours)]


def latency(ours: Box, ssh: list[str], place: Path) -> list[Row]:
    """How long a line takes from the job's write to the reader's read."""
    script = place / "clock.py"
    script.write_text(CLOCK)
    words = ["python3", "-u", "-c", CLOCK]
    mine = lateness(ours.command("run", "--on", ours.name, "--", *words), ours.environ)
    peer = lateness([*ssh, "python3", "-u", str(script)], {})
    name = "ssh host python3 -u"
    return [
        Row("a line of output, p50", middle(mine, 50), middle(peer, 50), "ms", name, "–"),
        Row("a line of output, p99", middle(mine, 99), middle(peer, 99), "ms", name, "–"),
    ]


def lateness(argv: Sequence[str], environ: dict[str, str]) -> list[float]:
    """For each line of the clock its age in milliseconds, as it is read."""
    late: list[float] = []
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | environ
    ) as reader:
        assert reader.stdout is not None
        for line in iter(reader.stdout.readline, b""):
            if line.strip().isdigit():
                late.append((time.monotonic_ns() - int(line)) / 1e6)
    if len(late) != LINES:
        raise RuntimeError(f"{argv[0]} gave {len(late)} of {LINES} lines")
    return late


def middle(values: list[float], percent: int) -> float:
    """The value that so many percent do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def throughput(ours: Box, ssh: list[str]) -> Row:
    """From the start of the command to its end, so the start counts too."""
    words = ["head", "-c", f"{FLOOD_MB}M", "/dev/zero"]
    mine, peer = alternate(
        quietly(ours.command("run", "--on", ours.name, "--", *words), ours.environ),
        quietly([*ssh, *words], {}),
        times=TIMES,
    )
    size = FLOOD_MB * (1 << 20) / 1000
    what = f"{FLOOD_MB} MiB of output, produced and followed"
    return Row(what, size / mine, size / peer, "MB/s", "ssh host head -c", "–")


def quietly(argv: Sequence[str], environ: dict[str, str]) -> Callable[[], object]:
    """A call that runs a command whose output nobody keeps."""

    def call() -> None:
        subprocess.run(
            argv,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | environ,
            timeout=300,
        )

    return call


def memory(ours: Box) -> list[Row]:
    """The most that each party held during a gigabyte of output, beside what it held before."""
    parties = {"relay": ours.relay_pid, "runner": ours.runner_pid}
    before = {name: resident_bytes(pid) for name, pid in parties.items()}
    for pid in parties.values():
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # begin the peak anew
    words = ["head", "-c", f"{HUGE_MB}M", "/dev/zero"]
    client = peak_of(ours.command("run", "--on", ours.name, "--", *words), ours.environ)
    small = peak_of(ours.command("run", "--on", ours.name, "--", "true"), ours.environ)
    peaks = {name: resident_bytes(pid, peak=True) for name, pid in parties.items()}

    def row(name: str, peak: float, rest: float) -> Row:
        what = f"peak memory of the {name}, 1 GiB of output"
        return Row(what, peak / MEGABYTE, rest / MEGABYTE, "MB", "before", "–")

    found = [row(name, peaks[name], before[name]) for name in parties]
    what = "peak memory of airlox run, 1 GiB of output"
    return [*found, Row(what, client / MEGABYTE, small / MEGABYTE, "MB", "run -- true", "–")]


def peak_of(argv: list[str], environ: dict[str, str]) -> int:
    """The largest resident size of a command, in bytes."""
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        files = [(os.POSIX_SPAWN_DUP2, sink, 1), (os.POSIX_SPAWN_DUP2, sink, 2)]
        pid = os.posix_spawn(argv[0], argv, os.environ | environ, file_actions=files)
    finally:
        os.close(sink)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{argv[0]} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_maxrss * 1024


if __name__ == "__main__":
    from bench.measure import report

    print(report(rows()))
