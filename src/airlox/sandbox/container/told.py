"""What a container engine tells of itself, an image or a container, as small frozen values. Pure.

The engine's command prints JSON whose members differ between Docker and Podman and between their
versions. What is missing counts as absent or off; what is no JSON at all is an error.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airlox.sandbox.container import causes

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Facts:
    """What the engine says of itself. `remaps`: user ids in containers are not the machine's."""

    podman: bool
    linux: bool
    architecture: str
    rootless: bool
    remaps: bool
    seccomp: bool
    limits_memory: bool
    limits_processes: bool
    cgroup_version: int
    cgroup_driver: str

    @property
    def name(self) -> str:
        return "podman" if self.podman else "docker"


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the engine has. `id` names exactly it; `digest` is the registry's where one
    is known, else its own. `volumes` are folders the image wants space of its own for."""

    id: str
    digest: str
    architecture: str
    path: str | None
    volumes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class State:
    """A container as the engine sees it. `pid` is that of its first process, 0 when none runs;
    `ran_ms` how long it ran, where the engine tells."""

    status: str
    exit_code: int
    oom_killed: bool
    error: str
    pid: int
    ran_ms: int | None

    @property
    def waits(self) -> bool:
        """Whether it was made and has not started."""
        return self.status in ("created", "configured", "initialized")

    @property
    def runs(self) -> bool:
        return self.status in ("running", "paused", "restarting", "stopping")


def read_facts(said: bytes) -> Facts:
    """What `info` prints. Raises SandboxError where no engine stands behind it."""
    told = _object(said)
    found = _podman_facts(told) if _inner(told, "host") else _docker_facts(told)
    if found is None:
        errors = _texts(told, "ServerErrors")
        raise causes.explain(errors[0]) if errors else causes.refusal("engine_unreachable")
    return found


def read_image(said: bytes) -> Image:
    """What `image inspect` prints. Raises SandboxError."""
    told = _object(said)
    config = _inner(told, "Config")
    identity = _text(told, "Id")
    identity = identity if identity.startswith("sha256:") else f"sha256:{identity}"
    known = [text.rpartition("@")[2] for text in _texts(told, "RepoDigests") if "@sha256:" in text]
    variables = [entry.partition("=") for entry in _texts(config, "Env")]
    return Image(
        id=identity,
        digest=known[0] if known else identity,
        architecture=_text(told, "Architecture"),
        path=next((value for name, _, value in variables if name == "PATH"), None),
        volumes=tuple(sorted(map(str, _inner(config, "Volumes")))),
    )


def read_state(said: bytes) -> State:
    """What `container inspect` prints of a state. Raises SandboxError."""
    told = _object(said)
    return State(
        status=_text(told, "Status"),
        exit_code=_whole(told, "ExitCode"),
        oom_killed=told.get("OOMKilled") is True,
        error=_text(told, "Error"),
        pid=_whole(told, "Pid"),
        ran_ms=_between_ms(_text(told, "StartedAt"), _text(told, "FinishedAt")),
    )


def _docker_facts(told: Mapping[str, Any]) -> Facts | None:
    if not told.get("ServerVersion"):
        return None
    options = _texts(told, "SecurityOptions")
    return Facts(
        podman=False,
        linux=told.get("OSType") == "linux",
        architecture=_architecture(_text(told, "Architecture")),
        rootless="name=rootless" in options,
        remaps="name=userns" in options,
        seccomp=any(
            option.startswith("name=seccomp") and "unconfined" not in option for option in options
        ),
        limits_memory=told.get("MemoryLimit") is True,
        limits_processes=told.get("PidsLimit") is True,
        cgroup_version=2 if str(told.get("CgroupVersion")) == "2" else 1,
        cgroup_driver=_text(told, "CgroupDriver"),
    )


def _podman_facts(told: Mapping[str, Any]) -> Facts:
    host = _inner(told, "host")
    security, controllers = _inner(host, "security"), _texts(host, "cgroupControllers")
    return Facts(
        podman=True,
        linux=host.get("os") == "linux",
        architecture=_architecture(_text(host, "arch")),
        rootless=security.get("rootless") is True,
        remaps=False,
        seccomp=security.get("seccompEnabled") is True,
        limits_memory="memory" in controllers,
        limits_processes="pids" in controllers,
        cgroup_version=2 if host.get("cgroupVersion") == "v2" else 1,
        cgroup_driver=_text(host, "cgroupManager"),
    )


def _architecture(name: str) -> str:
    """As images name it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(name, name)


_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?(Z|[+-]\d\d:\d\d)")


def _between_ms(started: str, finished: str) -> int | None:
    begin, end = _moment(started), _moment(finished)
    if begin is None or end is None or end < begin:
        return None
    return round((end - begin).total_seconds() * 1000)


def _moment(text: str) -> datetime | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    zone = "+00:00" if found[3] == "Z" else found[3]
    try:
        return datetime.fromisoformat(f"{found[1]}.{(found[2] or '').ljust(6, '0')}{zone}")
    except ValueError:  # a day that is in no calendar
        return None


def _object(said: bytes) -> Mapping[str, Any]:
    """The JSON object that the engine printed. Raises SandboxError where it is none."""
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and len(found) == 1:  # Podman tells of one image so
        found = found[0]
    if not isinstance(found, dict):
        raise causes.refusal("container_refused", "its answer is not understood")
    return found


def _inner(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = told.get(name)
    return found if isinstance(found, dict) else {}


def _text(told: Mapping[str, Any], name: str) -> str:
    found = told.get(name)
    return found if isinstance(found, str) else ""


def _texts(told: Mapping[str, Any], name: str) -> list[str]:
    found = told.get(name)
    return [str(entry) for entry in found] if isinstance(found, list) else []


def _whole(told: Mapping[str, Any], name: str) -> int:
    found = told.get(name)
    return found if isinstance(found, int) else 0
