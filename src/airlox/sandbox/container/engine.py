"""The container engine, through its command: `docker`, or `podman`, which answers to the same.

Every call is an argument list, has a time limit, and reads no more than a bounded answer; what the
engine tells of itself, an image and a container becomes a small frozen value. Failures are errors
with a cause and a remedy (`causes.py`).

Left to others: which arguments a job's container gets (`arguments.py`), and when it ends.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from airlox.errors import SandboxError
from airlox.sandbox.container import causes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

COMMANDS = ("docker", "podman")
LOOK_S = 20.0
"""Time for the engine to say what it knows."""
MAKE_S = 60.0
"""Time to make a container from an image that is there."""
REMOVE_S = 30.0

_ANSWER_BYTES = 1 << 20
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
PROXIES = (*_PROXIES, *(name.upper() for name in _PROXIES))
"""Variables that the docker command gives to containers by itself where its settings name them."""


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


def open_engine(path: str | None = None) -> Engine:
    """The engine's command on `path`, else on PATH. Raises SandboxError (`docker_missing`)."""
    for name in COMMANDS:
        command = shutil.which(name, path=path)
        if command is not None:
            return Engine(command)
    raise causes.refusal("docker_missing")


class Engine:
    """One engine. Blocking; safe to share between threads."""

    def __init__(self, command: str) -> None:
        self._command = command

    def argv(self, *words: str) -> tuple[str, ...]:
        """A command of the engine, for a caller that starts it."""
        return (self._command, *words)

    def environ(self) -> dict[str, str]:
        """What its commands get: everything but secrets of ours, and proxies meant for others."""
        return {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("AIRLOX_") and name not in PROXIES
        }

    def facts(self) -> Facts:
        """What the engine is. Raises SandboxError where it does not answer."""
        told = _object(self.call("info", "--format", "{{json .}}", within_s=LOOK_S))
        found = _podman_facts(told) if isinstance(told.get("host"), dict) else _docker_facts(told)
        if found is None:
            errors = told.get("ServerErrors")
            raise causes.explain(
                str(errors[0]) if errors else "Cannot connect to the Docker daemon"
            )
        return found

    def image(self, name: str) -> Image | None:
        """The image called `name`, or None where the engine has none."""
        try:
            said = self.call("image", "inspect", "--format", "{{json .}}", name, within_s=LOOK_S)
        except SandboxError as error:
            if error.code == "image_missing":
                return None
            raise
        return _image(_object(said))

    def create(
        self, arguments: Sequence[str], *, environment: bytes, architecture_hint: str = ""
    ) -> str:
        """Make a container and give its id. `environment` has a line `NAME=value` for each."""
        with tempfile.TemporaryFile() as file:
            # Handed over by descriptor: arguments can be read by every user of the machine.
            file.write(environment)
            file.flush()
            fd = file.fileno()
            words = ("create", "--env-file", f"/dev/fd/{fd}", *arguments)
            said = self.call(*words, within_s=MAKE_S, pass_fds=(fd,))
        found = said.decode("ascii", "replace").split()
        if not found or not _CONTAINER_ID.fullmatch(found[-1]):
            raise causes.refusal(
                "container_refused", causes.last_words(said.decode("utf-8", "replace"))
            )
        return found[-1]

    def state(self, container: str) -> State | None:
        """How a container does, or None where there is none. Raises SandboxError."""
        try:
            said = self.call(
                "container", "inspect", "--format", "{{json .State}}", container, within_s=LOOK_S
            )
        except SandboxError as error:
            if "no such container" in error.message.lower():
                return None
            raise
        return _state(_object(said))

    def signal(self, container: str, name: str) -> None:
        """Send a signal to a container's first process. Raises SandboxError when none runs."""
        self.call("kill", "--signal", name, container, within_s=LOOK_S)

    def containers(self, label: str) -> tuple[str, ...]:
        """Ids of all containers with a label, whatever they do."""
        words = ("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}")
        found = self.call(*words, within_s=LOOK_S).decode("ascii", "replace").split()
        return tuple(name for name in found if _CONTAINER_ID.fullmatch(name))

    def remove(self, containers: Iterable[str]) -> None:
        """End and remove containers, with the volumes made for them. Raises SandboxError."""
        for name in containers:
            try:
                self.call("rm", "--force", "--volumes", name, within_s=REMOVE_S)
            except SandboxError as error:
                if "no such container" not in error.message.lower():
                    raise

    def call(
        self,
        *words: str,
        within_s: float,
        stdin: IO[bytes] | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> bytes:
        """Run one command of the engine to its end; what it printed, cut at a mebibyte.

        Raises SandboxError: it failed, or took longer than `within_s`.
        """
        code, said, errors = self.try_call(
            *words, within_s=within_s, stdin=stdin, pass_fds=pass_fds
        )
        if code != 0:
            raise causes.explain(errors or said.decode("utf-8", "replace"))
        return said

    def try_call(
        self,
        *words: str,
        within_s: float,
        stdin: IO[bytes] | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> tuple[int, bytes, str]:
        """As `call`, but the exit status is the caller's to judge: it, the output, the errors."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                done = subprocess.run(
                    self.argv(*words),
                    stdin=subprocess.DEVNULL if stdin is None else stdin,
                    stdout=out,
                    stderr=err,
                    timeout=within_s,
                    env=self.environ(),
                    pass_fds=pass_fds,
                    start_new_session=True,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise causes.refusal("engine_slow", f"`{words[0]}`") from None
            except OSError as error:
                raise causes.refusal("docker_missing", f"{error.strerror}") from None
            return done.returncode, _head(out), _head(err).decode("utf-8", "replace")


# ── what the engine tells, as values ─────────────────────────────────────────────────────────


def _docker_facts(told: Mapping[str, Any]) -> Facts | None:
    if not told.get("ServerVersion"):
        return None
    options = [str(option) for option in told.get("SecurityOptions") or ()]
    return Facts(
        podman=False,
        linux=told.get("OSType") == "linux",
        architecture=_architecture(str(told.get("Architecture", ""))),
        rootless="name=rootless" in options,
        remaps="name=userns" in options,
        seccomp=any(
            option.startswith("name=seccomp") and "unconfined" not in option for option in options
        ),
        limits_memory=told.get("MemoryLimit") is True,
        limits_processes=told.get("PidsLimit") is True,
        cgroup_version=2 if str(told.get("CgroupVersion")) == "2" else 1,
        cgroup_driver=str(told.get("CgroupDriver", "")),
    )


def _podman_facts(told: Mapping[str, Any]) -> Facts | None:
    host = told["host"]
    security = host.get("security") or {}
    controllers = host.get("cgroupControllers") or ()
    return Facts(
        podman=True,
        linux=host.get("os") == "linux",
        architecture=_architecture(str(host.get("arch", ""))),
        rootless=security.get("rootless") is True,
        remaps=False,
        seccomp=security.get("seccompEnabled") is True,
        limits_memory="memory" in controllers,
        limits_processes="pids" in controllers,
        cgroup_version=2 if host.get("cgroupVersion") == "v2" else 1,
        cgroup_driver=str(host.get("cgroupManager", "")),
    )


def _architecture(name: str) -> str:
    """As images name it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(name, name)


def _image(told: Mapping[str, Any]) -> Image:
    config = told.get("Config") or {}
    digests = told.get("RepoDigests") or ()
    identity = str(told.get("Id", ""))
    identity = identity if identity.startswith("sha256:") else f"sha256:{identity}"
    known = [text.rpartition("@")[2] for text in map(str, digests) if "@sha256:" in text]
    variables = [str(entry).partition("=") for entry in config.get("Env") or ()]
    return Image(
        id=identity,
        digest=known[0] if known else identity,
        architecture=str(told.get("Architecture", "")),
        path=next((value for name, _, value in variables if name == "PATH"), None),
        volumes=tuple(sorted(str(path) for path in config.get("Volumes") or ())),
    )


def _state(told: Mapping[str, Any]) -> State:
    return State(
        status=str(told.get("Status", "")),
        exit_code=_whole(told.get("ExitCode")),
        oom_killed=told.get("OOMKilled") is True,
        error=str(told.get("Error") or ""),
        pid=_whole(told.get("Pid")),
        ran_ms=_between_ms(str(told.get("StartedAt", "")), str(told.get("FinishedAt", ""))),
    )


_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,6})?\d*(Z|[+-]\d\d:\d\d)")


def _between_ms(started: str, finished: str) -> int | None:
    from datetime import datetime

    found = [_TIME.fullmatch(text) for text in (started, finished)]
    if found[0] is None or found[1] is None:
        return None
    begin, end = (
        datetime.fromisoformat(
            match[1] + (match[2] or ".0").ljust(7, "0") + match[3].replace("Z", "+00:00")
        )
        for match in found
        if match is not None
    )
    passed_ms = round((end - begin).total_seconds() * 1000)
    return passed_ms if passed_ms >= 0 else None


def _object(said: bytes) -> Mapping[str, Any]:
    """The JSON object that the engine printed. Raises SandboxError where it is none."""
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise causes.refusal("container_refused", "its answer is not understood")
    return found


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _head(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(_ANSWER_BYTES)
