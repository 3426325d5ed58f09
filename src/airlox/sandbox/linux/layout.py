"""From a `Plan` to the steps that build a job's root, and to the rest of a blueprint.

An allow list: a path that no step names does not exist for the job. Looks at the host (which of the
system folders are links, which files of /etc are there) but changes nothing. Toolchains keep their
path; nothing writable is ever placed by a path the job could choose.
"""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox.base import Layout, Network
from airlox.sandbox.linux.syscalls import ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airlox.sandbox.base import Limits, Mount, Plan
    from airlox.sandbox.linux.blueprint import Step

LAYOUT = Layout(work="/work", out="/out", home="/home/job", tmp="/tmp")
ASIDE = Layout(work="/airlox/work", out="/airlox/out", home="/airlox/home", tmp="/tmp")
"""Where the folders go when a toolchain of the machine lies in the usual places."""

_READ_ONLY = ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV
_READ_WRITE = ATTR_NOSUID | ATTR_NODEV
_SYSTEM = ("/usr", "/opt", "/nix/store")
_SYSTEM_LINKS = ("bin", "sbin", "lib*")
_OURS = ("/proc", "/dev", "/etc", "/run/airlox")
_ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ssl/certs",
    "ssl/openssl.cnf",
    "ca-certificates",
    "pki/tls",
    "pki/ca-trust",
    "crypto-policies",
    "localtime",
    "mime.types",
    "protocols",
    "services",
    "terminfo",
    "fonts",
    "java*",
    "python3*",
    "gitconfig",
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)
_PASSWD = (
    "root:x:0:0:root:/:/bin/sh\n"
    "job:x:1000:1000:job:{home}:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/bin/false\n"
)
_GROUP = b"root:x:0:\njob:x:1000:\nnogroup:x:65534:\n"
_HOSTS = b"127.0.0.1 localhost airlox\n::1 localhost ip6-localhost\n"
_RESOLV_CONF_BYTES = 16 * 1024
_SHM_FILES = 10_000
_MEMLOCK_BYTES = 64 * 1024


def choose(toolchain_roots: Iterable[Path]) -> Layout:
    """The usual layout, or the one aside when one of these folders lies in its way."""
    usual = (LAYOUT.work, LAYOUT.out, LAYOUT.home)
    roots = [os.path.abspath(path) for path in toolchain_roots]
    in_the_way = any(_below(path, usual) for path in roots) or any(
        _below(own, roots) for own in usual
    )
    return ASIDE if in_the_way else LAYOUT


def writable(where: Layout) -> tuple[str, ...]:
    """The folders a job may write to."""
    return (where.work, where.home, where.out, where.tmp, "/dev/shm")


def steps(
    plan: Plan, more: Iterable[Step] = (), *, where: Layout = LAYOUT, root: Path = Path("/")
) -> tuple[Step, ...]:
    """The mount plan. `more` is what the sandbox shows beside (GPUs).

    Raises:
        SandboxError: a toolchain is missing, writable, or lies where the sandbox's own folders are.
    """
    limits = plan.limits
    return (
        *_system(root),
        *_etc(root, plan.network, where.home),
        ("dir", b"home", 0o755),
        ("dir", b"var", 0o755),
        ("link", b"var/tmp", b"/tmp"),
        ("tmpfs", b"tmp", limits.tmp_bytes, limits.tmp_files, 0o1777),
        *_devices(limits),
        ("proc", b"proc"),
        *more,
        *_toolchains(plan.toolchains, where),
        _writable(plan.work, where.work),
        _writable(plan.home, where.home),
        _writable(plan.out, where.out),
    )


def tmpfs_files(limits: Limits, where: Layout) -> dict[str, int]:
    """How many files each tmpfs of a job may hold."""
    return {where.tmp: limits.tmp_files, "/dev/shm": _SHM_FILES}


def rlimits(limits: Limits, *, memory_back_stop: bool) -> tuple[tuple[int, int], ...]:
    """Hard limits of the job. The back-stop on data stands in where no cgroup limits memory."""
    wanted = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_MEMLOCK, _MEMLOCK_BYTES),
        # Counted per user namespace, in which the keeper is one more.
        (resource.RLIMIT_NPROC, limits.processes + 1),
    ]
    if memory_back_stop and limits.memory_bytes is not None:
        wanted.append((resource.RLIMIT_DATA, 4 * limits.memory_bytes))
    return tuple(wanted)


def _relative(path: str | Path) -> bytes:
    return os.fsencode(path).lstrip(b"/")


def _bind(source: Path, target: str | Path, attributes: int) -> Step:
    kind = "d" if source.is_dir() else "c" if source.is_char_device() else "f"
    return ("bind", _relative(target), os.fsencode(source), kind, False, attributes)


def _writable(source: Path, target: str) -> Step:
    return ("bind", _relative(target), os.fsencode(source), "d", True, _READ_WRITE)


def _show(source: Path, target: str | Path) -> Step:
    """A link stays the same link; anything else is bound."""
    if source.is_symlink():
        return ("link", _relative(target), os.fsencode(source.readlink()))
    return _bind(source, target, _READ_ONLY)


def _system(root: Path) -> Iterator[Step]:
    for path in _SYSTEM:
        source = root / path[1:]
        if source.is_dir():
            yield _show(source, path)
    for pattern in _SYSTEM_LINKS:
        for source in sorted(root.glob(pattern)):
            if source.is_dir():
                yield _show(source, f"/{source.name}")


def _etc(root: Path, network: Network, home: str) -> Iterator[Step]:
    etc = root / "etc"
    for pattern in _ETC:
        for source in sorted(etc.glob(pattern)):
            if source.is_symlink() or source.is_dir() or source.is_file():
                yield _show(source, f"/etc/{source.relative_to(etc)}")
    yield ("file", b"etc/passwd", _PASSWD.format(home=home).encode())
    yield ("file", b"etc/group", _GROUP)
    yield ("file", b"etc/hosts", _HOSTS)
    yield ("file", b"etc/hostname", b"airlox\n")
    yield ("file", b"etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    yield ("file", b"etc/machine-id", os.urandom(16).hex().encode() + b"\n")
    if network is Network.ON:
        yield ("file", b"etc/resolv.conf", _name_servers(etc / "resolv.conf"))


def _name_servers(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_RESOLV_CONF_BYTES)
    except OSError:
        return b""


def _devices(limits: Limits) -> Iterator[Step]:
    for name in _DEVICES:
        flags = ATTR_NOSUID
        yield ("bind", f"dev/{name}".encode(), f"/dev/{name}".encode(), "c", False, flags)
    yield ("pts", b"dev/pts")
    yield ("tmpfs", b"dev/shm", limits.shm_bytes, _SHM_FILES, 0o1777)
    for name, target in _DEVICE_LINKS:
        yield ("link", f"dev/{name}".encode(), target.encode())


def _toolchains(mounts: Iterable[Mount], where: Layout = LAYOUT) -> Iterator[Step]:
    """Each at its own path, parents before children, none twice."""
    shown = list(_SYSTEM)
    for mount in sorted(mounts, key=lambda mount: mount.target):
        target = _checked(mount, where)
        if _below(target, shown):
            continue
        if mount.source.is_symlink():
            real = os.path.realpath(mount.source)
            yield ("link", _relative(target), os.fsencode(real))
            target = real
            if _below(target, shown):
                continue
        _refuse_misplaced(target, where)
        shown.append(target)
        yield _bind(Path(target), target, _READ_ONLY)


def _checked(mount: Mount, where: Layout) -> str:
    target = os.path.normpath(mount.target)
    if mount.writable or target != str(mount.source):
        raise SandboxError(
            f"toolchain {mount.source} must be read-only at its own path", code="toolchain_path"
        )
    try:
        mode = os.stat(mount.source).st_mode
    except OSError as error:
        raise SandboxError(
            f"toolchain {mount.source} cannot be read: {error.strerror}",
            code="toolchain_unreadable",
        ) from error
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise SandboxError(f"toolchain {mount.source} is no file or folder", code="toolchain_path")
    _refuse_misplaced(target, where)
    return target


def _refuse_misplaced(target: str, where: Layout) -> None:
    """A toolchain may neither hide nor lie in a folder that the sandbox makes itself."""
    ours = (*_OURS, where.work, where.out, where.home)
    if _below(target, ours) or any(_below(own, [target]) for own in (*ours, "/tmp")):
        raise SandboxError(
            f"toolchain {target} lies where the sandbox has folders of its own",
            code="toolchain_path",
            hint=f"keep it outside of {', '.join(ours)}",
        )


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
