"""Which layers of confinement a container brings, as a report names them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airlox.sandbox.base import Layer
from airlox.sandbox.container import causes
from airlox.sandbox.linux import seccomp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airlox.errors import SandboxError
    from airlox.sandbox.container.ready import Ready


def standing(ready: Ready, hosts: Sequence[str]) -> tuple[Layer, ...]:
    """What stands once a container was made and worked. `hosts` are all that jobs may reach."""
    facts, shape = ready.facts, ready.shape
    limited = facts.limits_memory and facts.limits_processes
    uid = shape.user[0]
    return (
        Layer(
            "uid", True, "jobs run as the engine's user" if uid == 0 else f"jobs run as uid {uid}"
        ),
        Layer("userns", True, "user ids of its own")
        if facts.rootless
        else _off("userns", "shared_users"),
        Layer("network", True, f"none but loopback, {_way_out(hosts)}"),
        Layer("mounts", True, "read-only image; work, out, home and tmp writable"),
        Layer("capabilities", True, "none; no new privileges"),
        Layer("seccomp", True, f"version {seccomp.VERSION}")
        if facts.seccomp
        else _off("seccomp", "seccomp_off"),
        _off("landlock", "landlock_off"),
        Layer("rlimits", True, "core, file size, open files, locked memory"),
        Layer("cgroup", True, f"version {facts.cgroup_version}: memory and processes")
        if limited
        else _off("cgroup", "cgroup_none"),
        Layer("watcher", True, "time and disk, and memory where no cgroup limits it"),
    )


def none(refused: SandboxError) -> tuple[Layer, ...]:
    """Nothing stands when the trial failed."""
    return (Layer("walls", False, refused.message, refused.code, refused.hint),)


def _way_out(hosts: Sequence[str]) -> str:
    if hosts:
        return f"and a way out to {', '.join(hosts)}"
    return "unless the job may use the network"


def _off(name: str, code: str) -> Layer:
    cause, remedy = causes.remedy(code)
    return Layer(name, False, cause, code, remedy)
