"""Whether containers can be had here, found out by making one: engine, image, walls, folders.

The trial has every wall that a job's container has, on folders of its own, and runs a line of shell
that writes to them. An image without a shell cannot run it; that the container's init says so
proves that all the rest stands.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airlox import safefs
from airlox.errors import SandboxError
from airlox.sandbox.base import Limits, Network, Plan
from airlox.sandbox.container import arguments, causes, gauge
from airlox.sandbox.container.arguments import LAYOUT, Shape
from airlox.sandbox.container.engine import Engine, open_engine
from airlox.sandbox.container.profile import build_profile
from airlox.sandbox.container.told import Facts, Image

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airlox.sandbox.base import SandboxOptions

ASK_S = 60.0
"""Time for a small program in a container to answer."""

_ASK_MEMORY_BYTES = 512 << 20
_SHELL = "/bin/sh"
_WRITE = f"for folder in {LAYOUT.work} {LAYOUT.out} {LAYOUT.home}; do echo > $folder/trial; done"
_NOT_STARTED = (126, 127)
_OTHER_PROCESSOR = "xec format error"
_ETC = "etc"
_GROUPING = ("cgroupfs", "systemd")
"""What makes groups by which the processes of a container are known."""


@dataclass(frozen=True, slots=True)
class Ready:
    """All that a job's container is made from."""

    engine: Engine
    facts: Facts
    image: Image
    shape: Shape
    has_shell: bool


def make_ready(options: SandboxOptions, owner: tuple[int, int] | None) -> Ready:
    """Find the engine and the image, remove what a dead runner left, and try everything once.

    Raises SandboxError.
    """
    engine = open_engine()
    facts = engine.facts()
    _check_engine(facts)
    listed = options.network is Network.ALLOW_LIST
    if listed:
        from airlox.sandbox.container import wayout  # most runners have no use for it

        wayout.check(facts, options.container_runtime)
    label = label_of(options.state_dir)
    engine.remove(engine.containers(label))
    if os.geteuid() == 0:
        gauge.sweep_parents()
    image = _find_image(engine, options.image)
    shape = Shape(
        image=image.id,
        user=_user(facts, owner),
        label=label,
        podman=facts.podman,
        keep_id=facts.podman and facts.rootless,
        runtime=options.container_runtime,
        gpus=options.gpus,
        volumes=image.volumes,
        accounts=_write_accounts(options.state_dir, _user(facts, owner)),
        profile=_write_profile(options.state_dir, facts) if facts.seccomp else None,
    )
    has_shell = _try_out(engine, facts, image, shape, options, owner)
    if listed:
        wayout.try_out(engine, shape, has_shell=has_shell)
    return Ready(engine, facts, image, shape, has_shell)


def ask(
    engine: Engine,
    shape: Shape,
    argv: Sequence[str],
    *,
    state_dir: Path,
    owner: tuple[int, int] | None,
) -> tuple[int, bytes, str]:
    """Run a small program within the walls, on empty folders: exit status, output, errors.

    Blocks. Raises SandboxError where the container cannot be made or started.
    """
    with tempfile.TemporaryDirectory(dir=state_dir, prefix="trial-") as folder:
        work, out, home = (_place(Path(folder, name), owner) for name in ("work", "out", "home"))
        limits = Limits(timeout_s=ASK_S, memory_bytes=_ASK_MEMORY_BYTES)
        env = (("HOME", LAYOUT.home), ("LANG", "C.UTF-8"))
        plan = Plan(tuple(argv), env, LAYOUT.work, work, out, home, limits)
        name = arguments.new_name()
        try:
            words = arguments.create(plan, shape, name=name, cgroup_parent=None)
            engine.create(words, environment=arguments.environment(plan))
            code, said, errors = engine.try_call("start", "--attach", name, within_s=ASK_S)
            state = engine.state(name)
            if state is None or state.waits:
                raise causes.refusal(
                    "container_refused", causes.last_words((state and state.error) or errors)
                )
            return code, said, errors
        finally:
            with contextlib.suppress(SandboxError):  # the next start of a runner finds it
                engine.remove((name,))


def label_of(state_dir: Path) -> str:
    """What the containers of one runner bear, so that its next start finds them."""
    return "airlox.runner=" + hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:32]


def _check_engine(facts: Facts) -> None:
    """Raises SandboxError where containers of this engine could not hold a job."""
    if not facts.linux:
        raise causes.refusal("engine_not_linux")
    if facts.remaps:
        raise causes.refusal("engine_remaps")
    if not facts.limits_memory and facts.cgroup_driver not in _GROUPING:
        raise causes.refusal("memory_unwatched")


def _find_image(engine: Engine, name: str | None) -> Image:
    if name is None:
        raise causes.refusal("no_image")
    image = engine.image(name)
    if image is None:
        raise causes.refusal("image_missing", name[:200])
    return image


def _user(facts: Facts, owner: tuple[int, int] | None) -> tuple[int, int]:
    """Whom a job is in its container, so that outside it is the owner of its folders."""
    if owner is not None:
        return owner
    if facts.rootless and not facts.podman:
        return (0, 0)  # the user of the engine, and nobody more
    return (os.getuid(), os.getgid())


def _try_out(
    engine: Engine,
    facts: Facts,
    image: Image,
    shape: Shape,
    options: SandboxOptions,
    owner: tuple[int, int] | None,
) -> bool:
    """Whether the image has a shell. Raises SandboxError where a container does not work."""
    code, _, errors = ask(
        engine, shape, (_SHELL, "-ec", _WRITE), state_dir=options.state_dir, owner=owner
    )
    if code == 0:
        return True
    if _OTHER_PROCESSOR in errors:
        kinds = f"{image.architecture} on {facts.architecture}"
        raise causes.refusal("image_architecture", kinds)
    if code in _NOT_STARTED:
        return False
    raise causes.refusal("container_folders", causes.last_words(errors))


def _place(path: Path, owner: tuple[int, int] | None) -> Path:
    path.mkdir(0o700)
    if owner is not None:
        os.chown(path, *owner)
    return path


def _write_profile(state_dir: Path, facts: Facts) -> Path:
    """The system calls jobs may make, as a file for the engine's command."""
    safefs.make_private_dir(state_dir / _ETC)
    path = state_dir / _ETC / "seccomp.json"
    safefs.write_private(path, build_profile(counted=facts.limits_memory))
    return path


def _write_accounts(state_dir: Path, user: tuple[int, int]) -> tuple[Path, Path]:
    """Files that give the job's user a name: programs ask for it."""
    uid, gid = user
    folder = state_dir / _ETC
    safefs.make_private_dir(folder)
    root = "" if uid == 0 else "root:x:0:0:root:/:/bin/sh\n"
    wheel = "" if gid == 0 else "root:x:0:\n"
    passwd = f"{root}job:x:{uid}:{gid}:job:{LAYOUT.home}:/bin/sh\n"
    texts = {
        "passwd": f"{passwd}nobody:x:65534:65534:nobody:/:/bin/false\n",
        "group": f"{wheel}job:x:{gid}:\nnogroup:x:65534:\n",
    }
    for name, text in texts.items():
        safefs.write_private(folder / name, text.encode())
        (folder / name).chmod(0o644)  # read in the container by the job
    return folder / "passwd", folder / "group"
