"""From a `Plan` to the arguments of a container, and to the file with its environment. Pure.

An allow list, as everywhere: the container sees its image, read-only, and the plan's folders. It
has no capability, no network unless the plan has one, and limits that the kernel keeps. What is in
the environment never stands in an argument, for those can be read by every user of the machine.

Left out on purpose: `--rm`, for how a container ended is asked after its end; the engine's socket.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox.base import Layout, Network
from airlox.sandbox.container.engine import PROXIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airlox.sandbox.base import Limits, Plan

LAYOUT = Layout(work="/work", out="/out", home="/home/job", tmp="/tmp")
HOST_NAME = "airlox"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where an image says nothing of it."""

# Engines switch IPv6 off where they give no network, and with it ::1.
_LOOPBACK = ("--sysctl=net.ipv6.conf.lo.disable_ipv6=0",)
# Half of what others get where processors are short, the runner among them.
_SHARES = 512
_MEMLOCK_BYTES = 64 * 1024
_HOLD_MEMORY_BYTES = 64 * 1024 * 1024
_VOLUME_BYTES = 64 * 1024 * 1024
# The engine's command reads the file line by line, and no longer line than this.
_LINE_BYTES = 60_000


@dataclass(frozen=True, slots=True)
class Shape:
    """What is the same for every container of one runner.

    `label` (`name=value`) finds them again after a crash. `volumes` are folders for which the image
    would get disk space that nobody watches; they are small and in memory instead.
    """

    image: str
    user: tuple[int, int]
    label: str
    podman: bool = False
    keep_id: bool = False
    runtime: str | None = None
    gpus: str = "none"
    volumes: tuple[str, ...] = ()
    accounts: tuple[Path, Path] | None = None
    profile: Path | None = None


def new_name() -> str:
    """A name for a container that no other has."""
    return f"airlox-{os.urandom(8).hex()}"


def create(
    plan: Plan,
    shape: Shape,
    *,
    name: str,
    cgroup_parent: str | None,
    joins: str | None = None,
) -> tuple[str, ...]:
    """What follows `create`: options, the image, and the plan's command.

    `joins` is a network that was made for this container where only named hosts may be reached.
    Raises SandboxError where the plan cannot be put into a container.
    """
    limits = plan.limits
    program, *words = plan.argv
    uid, gid = shape.user
    options = [
        f"--name={name}",
        f"--label={shape.label}",
        *((f"--hostname={HOST_NAME}",) if joins is None else ()),  # else it is its network's
        "--init",
        "--pull=never",
        "--no-healthcheck",
        "--log-driver=none",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        *_profile(shape),
        "--ipc=private",
        "--cgroupns=private",
        f"--network={joins or _network(plan)}",
        *(() if joins else _LOOPBACK),
        f"--user={uid}:{gid}",
        *(("--userns=keep-id", "--http-proxy=false") if shape.podman and shape.keep_id else ()),
        *_limits(limits),
        *_memory_folders(limits, shape),
        *_mounts(plan, shape),
        *_unset(plan),
        *(() if cgroup_parent is None else (f"--cgroup-parent={cgroup_parent}",)),
        *(() if shape.runtime is None else (f"--runtime={shape.runtime}",)),
        *(() if shape.gpus == "none" else (f"--gpus={shape.gpus}",)),
        f"--workdir={plan.cwd}",
        f"--entrypoint={program}",
    ]
    return (*options, shape.image, *words)


def hold(shape: Shape, *, name: str) -> tuple[str, ...]:
    """What follows `create` for a container that holds a network for another and does nothing."""
    uid, gid = shape.user
    return (
        f"--name={name}",
        f"--label={shape.label}",
        f"--hostname={HOST_NAME}",
        "--interactive",  # so that its standard input stays open
        "--pull=never",
        "--no-healthcheck",
        "--log-driver=none",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        *_profile(shape),
        "--network=none",
        *_LOOPBACK,
        f"--user={uid}:{gid}",
        "--pids-limit=4",
        f"--memory={_HOLD_MEMORY_BYTES}",
        *(() if shape.runtime is None else (f"--runtime={shape.runtime}",)),
        "--entrypoint=/bin/sh",
        shape.image,
        "-c",
        "read line",
    )


def environment(plan: Plan) -> bytes:
    """A line for each variable. Raises SandboxError for one that no line can hold."""
    lines = []
    for name, value in plan.env:
        line = f"{name}={value}"
        if not _fits(name, value, line):
            raise SandboxError(
                f"the variable {name[:64]!r} cannot be given to a container",
                code="not_started",
                hint="values of one line, up to 60 kB, can",
            )
        lines.append(line + "\n")
    return "".join(lines).encode()


def _fits(name: str, value: str, line: str) -> bool:
    plain = name != "" and name.isascii() and name.isprintable() and " " not in name
    unclear = name.startswith("#") or "=" in name
    whole = not any(char in value for char in "\n\r\0")
    try:
        return plain and not unclear and whole and len(line.encode()) <= _LINE_BYTES
    except UnicodeEncodeError:
        return False


def _profile(shape: Shape) -> tuple[str, ...]:
    return () if shape.profile is None else (f"--security-opt=seccomp={shape.profile}",)


def _network(plan: Plan) -> str:
    match plan.network:
        case Network.OFF:
            return "none"
        case Network.ON:
            return "bridge"
        case _:
            raise SandboxError(
                "containers cannot be held to a list of hosts", code="allow_hosts_unsupported"
            )


def _limits(limits: Limits) -> Iterator[str]:
    # The engine's own init is one process more.
    yield f"--pids-limit={limits.processes + 1}"
    yield "--ulimit=core=0:0"
    yield f"--ulimit=fsize={limits.file_bytes}:{limits.file_bytes}"
    yield f"--ulimit=nofile={limits.open_files}:{limits.open_files}"
    yield f"--ulimit=memlock={_MEMLOCK_BYTES}:{_MEMLOCK_BYTES}"
    yield f"--cpu-shares={_SHARES}"
    if limits.memory_bytes is not None:
        yield f"--memory={limits.memory_bytes}"
        yield f"--memory-swap={limits.memory_bytes}"
    if limits.cpus is not None:
        yield f"--cpus={limits.cpus:.2f}"


def _memory_folders(limits: Limits, shape: Shape) -> Iterator[str]:
    inodes = "" if shape.podman else f",nr_inodes={limits.tmp_files}"
    yield f"--tmpfs=/tmp:rw,exec,nosuid,nodev,size={limits.tmp_bytes},mode=1777{inodes}"
    yield f"--shm-size={limits.shm_bytes}"
    taken = {"/tmp", "/dev/shm", LAYOUT.work, LAYOUT.out, LAYOUT.home}
    for path in shape.volumes:
        if path not in taken and ":" not in path:
            yield f"--tmpfs={path}:rw,nosuid,nodev,size={_VOLUME_BYTES},mode=1777"


def _mounts(plan: Plan, shape: Shape) -> Iterator[str]:
    for source, target in (
        (plan.work, LAYOUT.work),
        (plan.home, LAYOUT.home),
        (plan.out, LAYOUT.out),
    ):
        yield _mount(source, target, writable=True)
    for mount in plan.toolchains:
        yield _mount(mount.source, mount.target, writable=mount.writable)
    if shape.accounts is not None:
        for source, target in zip(shape.accounts, ("/etc/passwd", "/etc/group"), strict=True):
            yield _mount(source, target, writable=False)


def _mount(source: Path, target: str, *, writable: bool) -> str:
    fields = ["type=bind", f"source={source}", f"target={target}"]
    return "--mount=" + _csv(fields if writable else [*fields, "readonly"])


def _csv(fields: Iterable[str]) -> str:
    """One line of comma-separated values, as the engine's command reads it."""
    return ",".join(
        '"' + field.replace('"', '""') + '"' if any(char in field for char in ',"\r\n') else field
        for field in fields
    )


def _unset(plan: Plan) -> Iterator[str]:
    """A name alone, for a variable the command itself does not have, takes it out."""
    given = dict(plan.env)
    for name in ("HOSTNAME", *PROXIES):
        if name not in given:
            yield f"--env={name}"
