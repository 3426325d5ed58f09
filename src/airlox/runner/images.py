"""The image that jobs in containers find, and the Python in it.

The operator names an image, which is used as it is and fetched where the engine lacks it. Else one
is made, once: a base of the session's Python, with the session's packages laid into it. It is kept
under a name that says what is in it.

Rules
- Fetching and making happen at the join, never for a job, and tell the operator.
- Packages come as wheels, unpacked here by uv and copied: nothing of theirs runs before a job does.
- What the image's Python says of itself it says in a container with every wall.
"""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, Protocol

import msgspec

from airlox import safefs
from airlox.client.filelock import file_lock
from airlox.errors import JobRefused, SandboxError, UsageError
from airlox.protocol.digest import sha256_hex
from airlox.protocol.manifest import JobKind, JobLimits, parse_package
from airlox.runner.notes import Note, Say
from airlox.runner.options import RunnerOptions
from airlox.runner.packages import (
    INSTALL_S,
    NO_RUNTIME,
    Interpreter,
    check_pin,
    find_uv,
    run_step,
)
from airlox.sandbox.base import Sandbox, SandboxOptions
from airlox.sandbox.container import causes
from airlox.sandbox.container.engine import Engine, open_engine
from airlox.sandbox.docker import DockerSandbox

FETCH_S: Final = 1800.0
COPY_S: Final = 600.0

_KEPT_AS: Final = "airlox-jobs"
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


class _Found(msgspec.Struct, frozen=True):
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


def base_of(options: RunnerOptions, runtime: str) -> str:
    """The image that one for a session is made from."""
    return options.image_base or f"python:{runtime.removeprefix('python')}-slim"


def with_image(options: RunnerOptions, state_dir: Path, wanted: Wanted, say: Say) -> RunnerOptions:
    """The options with an image that the engine has: the operator's, or one that is made now.

    Blocks, for minutes where something must be fetched. Raises SandboxError, UsageError.
    """
    engine = open_engine(options.path)
    name = options.image or base_of(options, wanted.runtime)
    _fetch(engine, name, say)
    if options.image is None and wanted.packages:
        name = _made(engine, name, options, state_dir, wanted, say)
    return replace(options, image=name, image_base=None)


class ImageSupply:
    """The Python of an image. Blocking; safe to share between threads."""

    def __init__(self, container: Container, wanted: Wanted) -> None:
        self._container = container
        self._wanted = wanted
        self._interpreter: Interpreter | None = None

    def check(self) -> str:
        """The version of Python that jobs get. Raises UsageError: there is none, or it lacks what
        the session pins."""
        found = _ask(self._container, self._wanted)
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


def _ask(container: Container, wanted: Wanted) -> _Found | None:
    """What the image's Python of the wanted version says; None where there is none."""
    for name in dict.fromkeys((wanted.runtime, "python3", "python")):
        code, said = container.ask(name, "-I", "-c", _ASK, *wanted.names)
        if code != 0 or len(said) > _ANSWER_BYTES:
            continue
        try:
            found = msgspec.json.decode(said, type=_Found)
        except msgspec.MsgspecError:
            continue
        plain = all(text.isprintable() for text in (found.version, found.executable, found.site))
        if plain and f"python{found.version.rpartition('.')[0]}" == wanted.runtime:
            return found
    return None


# ── images that must be fetched or made ──────────────────────────────────────────────────────


def _fetch(engine: Engine, name: str, say: Say) -> None:
    if engine.image(name) is not None:
        return
    say(Note("preparing", f"fetching the image {name}"))
    try:
        engine.call("pull", "--quiet", name, within_s=FETCH_S)
    except SandboxError as error:
        if error.code in ("engine_denied", "engine_unreachable"):
            raise
        raise causes.refusal(
            "image_missing", f"{name} cannot be fetched: {error.message}"
        ) from None


def _made(
    engine: Engine,
    base: str,
    options: RunnerOptions,
    state_dir: Path,
    wanted: Wanted,
    say: Say,
) -> str:
    """The name of the image with the packages, made if the engine does not have it."""
    found = engine.image(base)
    if found is None:
        raise causes.refusal("image_missing", base)
    entries = sorted(name + pin for name, pin in wanted.packages)
    key = sha256_hex(json.dumps([wanted.runtime, found.id, entries]).encode())[:16]
    image = f"{_KEPT_AS}:{key}"
    images = options.cache_root / "runner" / "images"
    safefs.make_private_dir(images)
    with file_lock(os.fspath(images / f"{key}.lock"), f"the image {image}", INSTALL_S):
        if engine.image(image) is None:
            say(Note("preparing", f"making an image with {', '.join(entries)} from {base}"))
            with tempfile.TemporaryDirectory(dir=images, prefix="made-") as folder:
                _make(engine, base, image, options, state_dir, wanted, Path(folder))
    return image


def _make(
    engine: Engine,
    base: str,
    image: str,
    options: RunnerOptions,
    state_dir: Path,
    wanted: Wanted,
    folder: Path,
) -> None:
    trial = DockerSandbox(SandboxOptions(state_dir, job_user=options.job_user, image=base))
    python = _ask(trial, wanted)
    if python is None:
        raise UsageError(
            f"the image {base} has no {wanted.runtime}, which the session's Python jobs need",
            code=NO_RUNTIME,
            hint="name another base by --image-base, or a whole image by --image",
        )
    site = folder / "site"
    _install(site, python, options, wanted)
    with open(folder / "site.tar", "w+b") as archive:
        _pack(site, archive)
        _lay_into(engine, base, image, python.site, archive)


def _install(site: Path, python: _Found, options: RunnerOptions, wanted: Wanted) -> None:
    """Unpack the packages for the image's Python, whatever runs on this machine."""
    uv = find_uv(options.path)
    if uv is None:
        raise UsageError(
            "the session's packages need uv, which this machine lacks",
            code=NO_RUNTIME,
            hint="install it (`pip install uv`), or name an image that has the packages by --image",
        )
    libc = "gnu" if python.libc == "glibc" else "musl"
    number = wanted.runtime.removeprefix("python")
    command = (uv, "pip", "install", "--quiet", "--only-binary", ":all:", "--target", str(site))
    for_image = (
        "--python-version",
        number,
        "--python-platform",
        f"{python.machine}-unknown-linux-{libc}",
    )
    entries = (name + pin for name, pin in wanted.packages)
    try:
        run_step("uv pip install", (*command, *for_image, *entries), INSTALL_S)
    except JobRefused as error:  # nobody's job yet: the runner does not start
        raise UsageError(error.message, code=error.code, hint=error.hint) from None


def _pack(site: Path, archive: IO[bytes]) -> None:
    def readable(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    with tarfile.open(fileobj=archive, mode="w") as packed:
        packed.add(site, arcname=".", filter=readable)
    archive.seek(0)


def _lay_into(engine: Engine, base: str, image: str, site: str, archive: IO[bytes]) -> None:
    """A new image: the base with the archive unpacked in one folder of it. Runs nothing."""
    made = engine.call("create", "--pull=never", "--network=none", base, "none", within_s=COPY_S)
    container = made.decode("ascii", "replace").split()[-1]
    try:
        engine.call("cp", "-", f"{container}:{site}", within_s=COPY_S, stdin=archive)
        engine.call("commit", container, image, within_s=COPY_S)
    finally:
        engine.remove((container,))
