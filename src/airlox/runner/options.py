"""What the operator chose for one runner. A frozen value; nothing is looked up here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airlox.errors import UsageError
from airlox.protocol import limits
from airlox.protocol.cert import check_runner_name
from airlox.protocol.names import check_display_text
from airlox.sandbox.hosts import parse_rules

MAX_CONCURRENCY: Final = 64
MAX_CPUS: Final = 4096
WORKSPACES_BYTES: Final = 50 * 1024 * limits.MIB
WORKSPACE_DAYS: Final = 30
DISK_FLOOR_BYTES: Final = 256 * limits.MIB
_GPUS: Final = re.compile("all|none|[1-9]|[1-5][0-9]|6[0-4]")

_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}")
_RUNTIME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Options of `airlox runner join`, already parsed.

    `cache_root` holds sessions, runtimes, spool and, unless `work_root` says otherwise, the
    folders of jobs. `python` is an interpreter to use for Python jobs instead of making one.
    `toolchains` are folders jobs may read at the same path, their `bin` usable in `PATH`.
    `memory_mb` caps what a job may have; `no_network` takes the network away even where the
    session allows it, `allow_hosts` all of it but these. `path` is the `PATH` the runner was
    started with. No job starts or runs on with less than `disk_floor_bytes` free: the runner needs
    some for what it must not forget.
    `builder`, `allow_userns` and `memory_back_stop`: see `SandboxOptions`. For containers: `image`
    is what jobs find, `image_base` what one is made from where none is named, `docker_runtime` the
    engine's runtime, `cpus` how many processors a job may keep busy.
    """

    name: str
    cache_root: Path
    host: str
    path: str
    labels: tuple[str, ...] = ()
    description: str | None = None
    sandbox: str = "local"
    builder: str | None = None
    python: Path | None = None
    workspaces: bool = True
    work_root: Path | None = None
    concurrency: int = 1
    no_network: bool = False
    memory_mb: int | None = None
    job_user: str | None = None
    require_layers: tuple[str, ...] = ()
    gpus: str = "none"
    image: str | None = None
    image_base: str | None = None
    docker_runtime: str | None = None
    cpus: float | None = None
    allow_hosts: tuple[str, ...] = ()
    allow_userns: bool = False
    memory_back_stop: bool = True
    toolchains: tuple[Path, ...] = ()
    workspaces_bytes: int = WORKSPACES_BYTES
    workspace_days: int = WORKSPACE_DAYS
    disk_floor_bytes: int = DISK_FLOOR_BYTES

    def __post_init__(self) -> None:
        for label in (self.name, *self.labels):
            check_runner_name(label)
        check_display_text(self.host, "host", limits.HOST)
        if self.description is not None:
            check_display_text(self.description, "description", limits.DESCRIPTION)
        if len(self.labels) > limits.LABELS:
            raise UsageError(f"a runner has at most {limits.LABELS} labels")
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise UsageError(f"--concurrency is a number from 1 to {MAX_CONCURRENCY}")
        low, high = limits.JOB_MEMORY_MB
        if self.memory_mb is not None and not low <= self.memory_mb <= high:
            raise UsageError(f"--memory is a number of MB from {low} to {high}")
        for flag, given in (
            ("--sandbox-builder", self.builder is not None),
            ("--allow-userns", self.allow_userns),
        ):
            if given and self.sandbox != "local":
                raise UsageError(f"{flag} means the sandbox local, not {self.sandbox}")
        if self.cpus is not None and not 0.01 <= self.cpus <= MAX_CPUS:
            raise UsageError(f"--cpus is a number from 0.01 to {MAX_CPUS}")
        if self.cpus is not None and self.sandbox == "process":
            raise UsageError(
                "--sandbox process cannot hold jobs to a share of the processors",
                code="cpus_none",
                hint="use --sandbox local or docker, or leave out --cpus",
            )
        if _GPUS.fullmatch(self.gpus) is None:
            raise UsageError("--gpus is all, none, or a number from 1 to 64")
        if self.sandbox == "process" and self.gpus not in ("all", "none"):
            raise UsageError(
                "--sandbox process cannot keep a job from some of the GPUs",
                code="gpus_not_offered",
                hint="use --gpus all, or --sandbox local",
            )
        if self.sandbox == "process" and self.no_network:
            raise UsageError(
                "--sandbox process cannot keep a job off the network",
                code="network_unblocked",
                hint="use --sandbox local, or leave out --no-network",
            )
        self._check_hosts()
        self._check_container()

    def _check_container(self) -> None:
        given = (
            ("--image", self.image is not None),
            ("--image-base", self.image_base is not None),
            ("--docker-runtime", self.docker_runtime is not None),
        )
        for flag, is_given in given:
            if is_given and self.sandbox != "docker":
                raise UsageError(
                    f"{flag} means the sandbox docker, not {self.sandbox}",
                    hint="add --sandbox docker",
                )
        if self.sandbox == "docker" and self.python is not None:
            raise UsageError(
                "jobs in containers run on the Python of their image",
                hint="leave out --python, and name an image by --image",
            )
        if self.image is not None and self.image_base is not None:
            raise UsageError("--image is used as it is; --image-base is for one that is made")
        for flag, name in (("--image", self.image), ("--image-base", self.image_base)):
            if name is not None and not _IMAGE.fullmatch(name):
                raise UsageError(f"{flag} is the name of an image, such as debian:12")
        if self.docker_runtime is not None and not _RUNTIME.fullmatch(self.docker_runtime):
            raise UsageError("--docker-runtime is the name of a runtime, such as runsc")

    def _check_hosts(self) -> None:
        if not self.hosts:
            return
        if self.no_network:
            raise UsageError(
                "--no-network and --allow-host exclude each other",
                code="network_contradiction",
                hint="leave out one of them",
            )
        if self.sandbox == "process":
            raise UsageError(
                "--sandbox process cannot keep a job to a list of hosts",
                code="network_unblocked",
                hint="use --sandbox local, or leave out --allow-host",
            )

    @property
    def hosts(self) -> tuple[str, ...]:
        """`allow_hosts` as jobs and results name them: with ports, sorted. Raises UsageError."""
        return tuple(str(rule) for rule in parse_rules(self.allow_hosts))

    @property
    def jobs_root(self) -> Path:
        """Where folders that jobs can write to are made."""
        return self.work_root if self.work_root is not None else self.cache_root / "runner"

    @property
    def toolchain_roots(self) -> tuple[Path, ...]:
        """Folders below which interpreters and tools of jobs may lie."""
        searched = tuple(Path(folder) for folder in self.path.split(":") if folder.startswith("/"))
        named = () if self.python is None else (self.python,)
        return (*self.toolchains, *named, self.cache_root, *searched)
