"""What every sandbox speaks: the plan of a command, its outcome, and the interface itself.

Frozen data and one `Protocol`; no system call, no clock. A `Plan` is the one truth about what a
command may touch: whatever is not in it does not exist for the command. An `Outcome` is what the
sandbox saw from outside, never what the command says of itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from airlox.errors import SandboxError

MIB = 1024 * 1024
OUTPUT_CHUNK_BYTES = 64 * 1024
STDOUT = 1
STDERR = 2
NICE = 10
"""How far commands stand back behind us where no control group does it for them."""


class Network(StrEnum):
    """How far a command's sockets reach."""

    OFF = "off"
    ALLOW_LIST = "allow_list"
    ON = "on"


class DenialReason(StrEnum):
    """Why a command was not let through to a target."""

    NOT_LISTED = "not_listed"
    IP_LITERAL = "ip_literal"
    NOT_PUBLIC = "not_public"
    PLAIN_HTTP = "plain_http"


class Cause(StrEnum):
    """Why a command ended."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIME_OUT = "time_out"
    OUT_OF_MEMORY = "out_of_memory"
    DISK = "disk"
    PROCESS_LIMIT = "process_limit"
    CANCELLED = "cancelled"
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host, and the path at which the command finds it."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What a command may use. `None` for memory means: measured, not limited.

    `cpus` is a share of the machine's time in processors; None: as much as there is.
    """

    timeout_s: float
    memory_bytes: int | None
    processes: int = 512
    open_files: int = 8192
    file_bytes: int = 1024 * MIB
    tmp_bytes: int = 512 * MIB
    tmp_files: int = 100_000
    shm_bytes: int = 256 * MIB
    disk_bytes: int = 4096 * MIB
    disk_files: int = 500_000
    disk_floor_bytes: int = 256 * MIB
    cpus: float | None = None
    grace_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the command finds its folders, as it sees them.

    `path` is the search path for programs where the sandbox has a system of its own; None where it
    is the machine's.
    """

    work: str
    out: str
    home: str
    tmp: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One command and everything it may touch.

    `argv[0]` is looked up on the `PATH` of `env` unless it holds a slash. `cwd` and `env` use the
    paths of the sandbox's `Layout`. `work`, `out` and `home` are existing host folders that belong
    to the sandbox's `owner()`. Each toolchain appears, read-only, at the same path as outside.
    `hosts` are the only ones it reaches (`name:port`, `*.` for one whole left label), exactly when
    the network is an allow list.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str
    work: Path
    out: Path
    home: Path
    limits: Limits
    toolchains: tuple[Mount, ...] = ()
    network: Network = Network.OFF
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Denial:
    """A target (`name:port`) that a command was not let through to."""

    target: str
    reason: DenialReason


@dataclass(frozen=True, slots=True)
class Egress:
    """What passed between a command and the hosts of its allow list, and what was not let through.

    `sent_bytes` and `received_bytes` are as the command sees them. `denials` counts every attempt
    in vain; `denied` names the first different ones.
    """

    connections: int
    sent_bytes: int
    received_bytes: int
    denials: int = 0
    denied: tuple[Denial, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, as seen from outside.

    `limit` is the limit that was hit (milliseconds, bytes or a count, by `cause`). `peak_bytes` is
    the most memory seen at once, measured as `peak_source` says (`cgroup`, `watcher`: the sum over
    all processes; `rusage`: the largest single process), or None if nothing was measured.
    `egress` is there exactly where an allow list held.
    """

    cause: Cause
    exit_code: int | None = None
    signal: int | None = None
    wall_ms: int = 0
    peak_bytes: int | None = None
    peak_source: str | None = None
    oom_kills: int = 0
    limit: int | None = None
    detail: str | None = None
    egress: Egress | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """One wall: whether it stands on this machine, and if not, why and what would raise it."""

    name: str
    on: bool
    detail: str = ""
    code: str | None = None
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What a sandbox can do on this machine. `refusal` is the error that `run` would raise.

    `image` is the digest of the image a command finds, `gpus` how many devices it can use.
    """

    sandbox: str
    builder: str
    layers: tuple[Layer, ...]
    usable: bool
    refusal: SandboxError | None = None
    image: str | None = None
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """What the operator chose. `state_dir` is private to the runner and outlives it.

    `toolchain_roots` are folders in which toolchains of later plans may lie: the sandbox's own
    folders keep out of their way. `builder` is a builder of `local`, None: the first that works.
    `cpus` is the share of the machine that plans will ask for, where one must be enforced.
    `image` and `container_runtime` are for containers. `allow_userns` lets a command make user
    namespaces (browsers do); `memory_back_stop` limits the data of each process where no cgroup
    limits memory (AddressSanitizer needs it off). `network` and `hosts` are what plans will ask
    for.
    """

    state_dir: Path
    job_user: str | None = None
    require_layers: tuple[str, ...] = ()
    builder: str | None = None
    gpus: str = "none"
    cpus: float | None = None
    toolchain_roots: tuple[Path, ...] = ()
    image: str | None = None
    container_runtime: str | None = None
    allow_userns: bool = False
    memory_back_stop: bool = True
    network: Network = Network.OFF
    hosts: tuple[str, ...] = ()


OutputSink = Callable[[int, bytes], None]


class Sandbox(Protocol):
    """One way of confining a command. `run` may be called for many plans at once."""

    name: str

    def probe(self) -> Report:
        """Say what this machine can do, by trying it."""

    def prepare(self) -> None:
        """Make ready to run.

        Raises:
            SandboxError: a needed layer cannot be had; nothing weaker is put in its place.
        """

    def keep_ready(self, starts: int) -> None:
        """Have so many starts prepared, as far as that goes before a plan is known.

        Each serves one `run`; what can be prepared is the sandbox's affair, and that it could not
        is said by `run`. Called from the main thread, after `prepare`. Asking for fewer than there
        are changes nothing, but 0 lets go of all, and is asked for at the end.
        """

    def expect(self) -> None:
        """A `run` follows within moments: begin what takes the system a while. In any thread,
        for it blocks for some milliseconds; nothing is promised, and nothing is raised."""

    def layout(self, work: Path, out: Path, home: Path) -> Layout:
        """Where a command finds these host folders."""

    def owner(self) -> tuple[int, int] | None:
        """The uid and gid the writable folders must belong to; None: the runner's own."""

    async def run(
        self,
        plan: Plan,
        *,
        on_output: OutputSink,
        cancel: asyncio.Event,
        on_started: Callable[[int], None] | None = None,
    ) -> Outcome:
        """Run the command to its end and leave nothing of it behind.

        Called from the main thread's event loop. `on_output(stream, chunk)` gets `STDOUT` or
        `STDERR` and at most `OUTPUT_CHUNK_BYTES`; it is called in the loop and must not block.
        Setting `cancel` ends the command. `on_started` gets the host pid of the topmost process.

        Raises:
            SandboxError: the sandbox could not be built; the command was not started.
        """
