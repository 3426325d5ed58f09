"""The Python that is in an image, for jobs in containers: asked for in a container with every wall.

Left to others: which image that is (`images.py`), and Python where there is none (`packages.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from airlox.errors import JobRefused, UsageError
from airlox.protocol.manifest import JobKind, JobLimits, parse_package
from airlox.runner.notes import Note, Say
from airlox.runner.packages import NO_RUNTIME, Interpreter, check_pin
from airlox.sandbox.base import Sandbox
from airlox.sandbox.docker import DockerSandbox

_SOURCE: Final = "image"
_ANSWER_BYTES: Final = 64 * 1024
_ASK: Final = """
import json, platform, sys, sysconfig
from importlib import metadata
wanted = set(sys.argv[1:])
found = {}
for package in metadata.distributions():
    name = (package.metadata["Name"] or "").lower().replace("_", "-").replace(".", "-")
    if name in wanted:
        found.setdefault(name, package.version)
print(json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3],
    "executable": sys.executable,
    "site": sysconfig.get_path("purelib"),
    "machine": platform.machine(),
    "libc": platform.libc_ver()[0],
    "packages": found,
}))
"""


class Container(Protocol):
    """What is asked of the sandbox."""

    def ask(self, *argv: str) -> tuple[int, bytes]:
        """Run a small program in the image: exit status and output."""


class Found(msgspec.Struct, frozen=True):
    """What an image's Python says of itself."""

    version: str
    executable: str
    site: str
    machine: str
    libc: str
    packages: dict[str, str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The Python and packages of one session: `runtime` such as `python3.12`, name and pin."""

    runtime: str
    packages: tuple[tuple[str, str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.packages)


def wanted_by(session: JobLimits, *, pins: bool) -> Wanted:
    """What a session's Python jobs want."""
    packages = tuple(parse_package(entry, pins=pins) for entry in session.packages)
    return Wanted(session.runtime, packages)


class ImageSupply:
    """The Python of an image. Blocking; safe to share between threads."""

    def __init__(self, container: Container, wanted: Wanted) -> None:
        self._container = container
        self._wanted = wanted
        self._interpreter: Interpreter | None = None

    def check(self) -> str:
        """The version of Python that jobs get. Raises UsageError: there is none, or it lacks what
        the session pins."""
        found = ask(self._container, self._wanted)
        if found is None:
            raise UsageError(
                f"the image has no {self._wanted.runtime}, which the session's Python jobs need",
                code=NO_RUNTIME,
                hint="name an image that has it by --image, or leave --image out",
            )
        for name, pin in self._wanted.packages:
            check_pin("the image", name, pin, found.packages.get(name))
        path = Path(found.executable)
        self._interpreter = Interpreter(path, found.version, _SOURCE, (), found.packages)
        return found.version

    def get(self) -> Interpreter:
        """The interpreter of the image. Raises JobRefused."""
        if self._interpreter is None:
            try:
                self.check()
            except UsageError as error:
                raise JobRefused(error.message, code=error.code, hint=error.hint) from error
        assert self._interpreter is not None
        return self._interpreter


def supply_of(
    sandbox: Sandbox, wanted: Wanted, kinds: tuple[JobKind, ...], say: Say
) -> tuple[ImageSupply, tuple[JobKind, ...], str | None]:
    """The supply of interpreters, the kinds of jobs that the image serves, the Python in it.

    Raises UsageError where it serves none, or lacks what the session pins.
    """
    assert isinstance(sandbox, DockerSandbox)
    supply, version = ImageSupply(sandbox, wanted), None
    if JobKind.SHELL in kinds and not sandbox.has_shell:
        kinds = tuple(kind for kind in kinds if kind is not JobKind.SHELL)
        if not kinds:
            raise UsageError(
                "the image has no /bin/sh, which this session's jobs need",
                code="no_shell",
                hint="name another by --image",
            )
        say(Note("python_only", "taking Python jobs only: the image has no /bin/sh"))
    if JobKind.PYTHON in kinds:
        try:
            version = supply.check()
        except UsageError as error:
            if JobKind.SHELL not in kinds or error.code != NO_RUNTIME:
                raise
            say(Note("shell_only", f"taking shell jobs only: {error}"))
            kinds = (JobKind.SHELL,)
    return supply, kinds, version


def ask(container: Container, wanted: Wanted) -> Found | None:
    """What the image's Python of the wanted version says; None where there is none."""
    for name in dict.fromkeys((wanted.runtime, "python3", "python")):
        code, said = container.ask(name, "-I", "-c", _ASK, *wanted.names)
        if code != 0 or len(said) > _ANSWER_BYTES:
            continue
        try:
            found = msgspec.json.decode(said, type=Found)
        except msgspec.MsgspecError:
            continue
        plain = all(text.isprintable() for text in (found.version, found.executable, found.site))
        if plain and f"python{found.version.rpartition('.')[0]}" == wanted.runtime:
            return found
    return None
