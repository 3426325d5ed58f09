"""The container engine, through its command: `docker`, or `podman`, which answers to the same.

Every call is an argument list, has a time limit, and reads no more than a bounded answer. Failures
are errors with a cause and a remedy (`causes.py`).

Left to others: what answers mean (`told.py`), which arguments a job's container gets
(`arguments.py`), and when it ends.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from typing import IO, TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox.container import causes
from airlox.sandbox.container.told import read_facts, read_image, read_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airlox.sandbox.container.told import Facts, Image, State

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
        return read_facts(self.call("info", "--format", "{{json .}}", within_s=LOOK_S))

    def image(self, name: str) -> Image | None:
        """The image called `name`, or None where the engine has none."""
        try:
            said = self.call("image", "inspect", "--format", "{{json .}}", name, within_s=LOOK_S)
        except SandboxError as error:
            if error.code == "image_missing":
                return None
            raise
        return read_image(said)

    def create(self, arguments: Sequence[str], *, environment: bytes) -> str:
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
        return read_state(said)

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


def _head(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(_ANSWER_BYTES)
