"""The image that jobs in containers find: the operator's, or one made once for a session.

What the operator names is used as it is, and fetched where the engine lacks it. Else one is made: a
base of the session's Python, with the session's packages laid into it, kept under a name that says
what is in it.

Rules
- Fetching and making happen at the join, never for a job, and tell the operator.
- Packages come as wheels, unpacked here by uv and copied: nothing of theirs runs before a job does.
"""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from airlox import safefs
from airlox.client.filelock import file_lock
from airlox.errors import JobRefused, SandboxError, UsageError
from airlox.protocol.digest import sha256_hex
from airlox.runner.image_python import Found, Wanted, ask
from airlox.runner.notes import Note, Say
from airlox.runner.options import RunnerOptions
from airlox.runner.packages import INSTALL_S, NO_RUNTIME, find_uv, run_step
from airlox.sandbox.base import SandboxOptions
from airlox.sandbox.container import causes
from airlox.sandbox.container.engine import Engine, open_engine
from airlox.sandbox.container.ready import label_of
from airlox.sandbox.docker import DockerSandbox

FETCH_S: Final = 1800.0
COPY_S: Final = 600.0

_KEPT_AS: Final = "airlox-jobs"


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
    python = ask(trial, wanted)
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
        _lay_into(engine, base, image, python.site, archive, label_of(state_dir))


def _install(site: Path, python: Found, options: RunnerOptions, wanted: Wanted) -> None:
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


def _lay_into(
    engine: Engine, base: str, image: str, site: str, archive: IO[bytes], label: str
) -> None:
    """A new image: the base with the archive unpacked in one folder of it. Runs nothing. By its
    label the next start finds the container, should we not live to remove it."""
    options = ("--pull=never", "--network=none", f"--label={label}")
    made = engine.call("create", *options, base, "none", within_s=COPY_S)
    container = made.decode("ascii", "replace").split()[-1]
    try:
        engine.call("cp", "-", f"{container}:{site}", within_s=COPY_S, stdin=archive)
        engine.call("commit", container, image, within_s=COPY_S)
    finally:
        engine.remove((container,))
