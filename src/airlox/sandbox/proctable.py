"""The processes of this machine as seen from outside: who started whom, since when, how large.

Reads `/proc` where there is one, else asks `ps`. What it returns is a picture of one moment:
processes come and go while it is taken. Used to measure and, without a namespace or a control
group, to end the processes of a job.

Left to others: what is done to the processes found. Imports little, for `keeper.py` uses it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PS = ("ps", "-A", "-o", "pid=,ppid=,rss=,stat=")
_ENDED_STATES = (b"Z", b"X")
_PS_TIMEOUT_S = 5
_ROLLUP_FIELDS = (b"Pss:", b"SwapPss:")


class Process:
    """One process. `start` is in the kernel's ticks since boot, 0 where it cannot be told.

    A `zombie` has ended and only waits for its parent to take notice. Written out because the
    modules that make such classes would double the start of a keeper.
    """

    __slots__ = ("parent", "pid", "rss_bytes", "start", "threads", "zombie")

    def __init__(
        self, pid: int, parent: int, start: int, rss_bytes: int, threads: int, zombie: bool
    ) -> None:
        self.pid = pid
        self.parent = parent
        self.start = start
        self.rss_bytes = rss_bytes
        self.threads = threads
        self.zombie = zombie

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Process) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    def __hash__(self) -> int:
        return hash((self.pid, self.start))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"Process({values})"


def parse_stat(line: bytes) -> Process:
    """One line of `/proc/PID/stat`. The name in it is the job's choice and may hold anything.

    Raises ValueError.
    """
    head, found, tail = line.rpartition(b") ")
    fields = tail.split()
    if not found or len(fields) < 22:
        raise ValueError("not a line of /proc/PID/stat")
    pid = int(head.partition(b" ")[0])
    return Process(
        pid=pid,
        parent=int(fields[1]),
        start=int(fields[19]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        threads=int(fields[17]),
        zombie=fields[0] in _ENDED_STATES,
    )


def parse_ps(text: str) -> tuple[Process, ...]:
    """Lines of `pid ppid rss-in-kilobytes state`; others are passed by."""
    rows = (line.split() for line in text.splitlines())
    return tuple(
        Process(int(row[0]), int(row[1]), 0, int(row[2]) * 1024, 1, row[3].startswith("Z"))
        for row in rows
        if len(row) == 4 and all(map(_is_number, row[:3]))
    )


def _is_number(text: str | bytes) -> bool:
    """Whether `text` is a number as a system writes one. `int` raises for thousands of digits."""
    return text.isascii() and text.isdigit() and len(text) < 20


def find(pid: int) -> Process | None:
    """The process with this pid now, or None. On systems without `/proc`: by `ps`."""
    if not _has_proc():
        return next((process for process in all_processes() if process.pid == pid), None)
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return parse_stat(os.read(fd, 4096))
        finally:
            os.close(fd)
    except (OSError, ValueError):  # gone meanwhile
        return None


def all_processes() -> tuple[Process, ...]:
    """Every process that can be seen, itself included."""
    if not _has_proc():
        import subprocess  # here, for it is slow to import and seldom needed

        listed = subprocess.run(_PS, capture_output=True, timeout=_PS_TIMEOUT_S, check=True)
        return parse_ps(listed.stdout.decode("ascii", "replace"))
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return tuple(process for pid in pids if (process := find(pid)) is not None)


def below(root: int, processes: Iterable[Process]) -> tuple[Process, ...]:
    """Children of `root`, their children and so on; parents before children, `root` left out."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    seen = {root}
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
                waiting.append(child.pid)
    return tuple(found)


def parse_rollup(text: bytes) -> int:
    """Bytes of memory and swap in a `smaps_rollup`, shared pages divided among their users."""
    total = 0
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] in _ROLLUP_FIELDS and _is_number(words[1]):
            total += int(words[1]) * 1024
    return total


def pss_bytes(process: Process) -> int:
    """Proportional memory of a process; its resident memory where that may not be read."""
    try:
        fd = os.open(f"/proc/{process.pid}/smaps_rollup", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # A job can forbid this read (it makes itself undumpable), and then counts in full.
            return parse_rollup(os.read(fd, 8192)) or process.rss_bytes
        finally:
            os.close(fd)
    except OSError:
        return process.rss_bytes


def _has_proc() -> bool:
    return os.path.exists("/proc/self/stat")
