"""The way out of a container to named hosts: a network made for it, whose door the runner serves.

A job's program runs as soon as its container does, so its network is made before, by a second
container, the *holder*: of the same image, with nothing but a shell that waits for a line which
never comes. The runner enters that network from outside, opens the door (`linux/doorway.py`) and
serves it (`egress.py`); the job's container then joins the network. The holder is removed with the
job's container, and bears the same label, so that the next start finds one that was left.

Needs root, an engine of this machine and an image with a shell. Loaded only where it is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox.container import arguments, causes
from airlox.sandbox.container.engine import MAKE_S
from airlox.sandbox.egress import EgressProxy
from airlox.sandbox.hosts import parse_rules
from airlox.sandbox.linux.outlet import open_from_outside, open_namespace_of
from airlox.sandbox.lookups import system_resolver

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Sequence

    from airlox.sandbox.container.arguments import Shape
    from airlox.sandbox.container.engine import Engine
    from airlox.sandbox.container.ready import Ready
    from airlox.sandbox.container.told import Facts

_UNSUPPORTED = "allow_hosts_unsupported"
_NATIVE_RUNTIMES = (None, "runc", "crun")
"""Those whose containers have a network namespace of this kernel."""


@dataclass(frozen=True, slots=True)
class WayOut:
    """What the job's container joins, and what lets it out of there."""

    network: str
    proxy: EgressProxy


def check(facts: Facts, runtime: str | None) -> None:
    """See what can be seen before a trial. Raises SandboxError."""
    for missing, reason in (
        (os.geteuid() != 0, "that needs a runner that is root"),
        (facts.podman, "podman does not do it"),
        (facts.rootless, "a rootless engine does not do it"),
        (runtime not in _NATIVE_RUNTIMES, f"the runtime {runtime} has a network of its own"),
    ):
        if missing:
            raise causes.refusal(_UNSUPPORTED, reason)


def try_out(engine: Engine, shape: Shape, *, has_shell: bool) -> None:
    """Make a network and open its door once. Blocks. Raises SandboxError."""
    if not has_shell:
        raise causes.refusal(_UNSUPPORTED, "that needs an image with a shell")
    name = arguments.new_name()
    try:
        _open_door(engine, shape, name).close()
    finally:
        _remove(engine, name)


@contextlib.asynccontextmanager
async def way_out(ready: Ready, hosts: Sequence[str]) -> AsyncIterator[WayOut]:
    """The way out of one job, for the length of the block. Raises SandboxError."""
    name = arguments.new_name()
    try:
        door = await _opened(ready, name)
        async with EgressProxy(door, parse_rules(hosts), system_resolver().share()) as proxy:
            yield WayOut(f"container:{name}", proxy)
    finally:
        await asyncio.to_thread(_remove, ready.engine, name)


async def _opened(ready: Ready, name: str) -> socket.socket:
    opening = asyncio.create_task(asyncio.to_thread(_open_door, ready.engine, ready.shape, name))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait((opening,))  # what is made half could not be removed
        if not opening.cancelled() and opening.exception() is None:
            opening.result().close()
        raise


def _open_door(engine: Engine, shape: Shape, name: str) -> socket.socket:
    container = engine.create(arguments.hold(shape, name=name), environment=b"")
    engine.call("start", container, within_s=MAKE_S)
    state = engine.state(container)
    if state is None or not state.runs:
        raise causes.refusal(_UNSUPPORTED, "the container that makes the network ended")
    try:
        namespace = open_namespace_of(state.pid)
        try:
            _check_network(namespace, state.pid, container)
            return open_from_outside(namespace)
        finally:
            os.close(namespace)
    except OSError as error:
        raise causes.refusal(
            _UNSUPPORTED, f"the container's network cannot be entered ({error.strerror})"
        ) from error


def _check_network(namespace: int, pid: int, container: str) -> None:
    """The pid is the engine's word, and the engine may be on another machine: the process must be
    the container's here too, and its network not ours."""
    groups = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    ours = os.stat("/proc/self/ns/net").st_ino
    if container not in groups or os.fstat(namespace).st_ino == ours:
        raise causes.refusal(_UNSUPPORTED, "the engine is not on this machine")


def _remove(engine: Engine, name: str) -> None:
    """What resists is found by its label at the next start."""
    with contextlib.suppress(SandboxError):
        engine.remove((name,))
