"""The launcher: a fresh, single-threaded interpreter that builds the walls.

It runs outside the sandbox, holds no thread and no lock, waits for the orders of one job
(`handover.py`) and ends as the one who waits for pid 1 of the new pid namespace. Order matters:

1. Started as root, it takes every mount source as a detached clone first, because the job's uid
   may not reach it (an interpreter below a private home), and then puts that uid on for good.
2. Only then it unshares, so that no process of the sandbox ever has kernel uid 0.
3. It forks pid 1 (`keeper.py`), which starts the job and builds its root (`root.py`).

What happened is told in lines on the info pipe: `pid N`, `error STEP ERRNO TEXT`.
"""

from __future__ import annotations

import os

from airlox.sandbox.linux import handover, keeper, root, syscalls
from airlox.sandbox.linux.blueprint import Blueprint
from airlox.sandbox.linux.talk import StepFailed, failures_told, run_step, tell

_SIGKILL = 9
_NO_FD = 0x7FFFFFFF
_DEVICES = b"/tmp"  # covered in a mount namespace of its own
_KINDS = {"d": 0o040000, "f": 0o100000, "c": 0o020000}


def main(data: bytes) -> None:
    """Wait for a blueprint and carry it out. Never returns."""
    parent_pid, info_fd, way_fd = handover.decode_post(data)
    with failures_told(info_fd):
        die_with(parent_pid)
        run_step("name", keeper.hide_command_line)
        blueprint = handover.take(way_fd)
        if blueprint is not None:
            _launch(blueprint)
    os._exit(0)


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends. Lost when the uid changes."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def _launch(blueprint: Blueprint) -> None:
    clones: dict[int, int] = {}
    if blueprint.uid >= 0:
        clones = take_clones(blueprint)
        _put_on(blueprint.uid, blueprint.gid)
    _unshare(blueprint)
    if blueprint.uid < 0:
        clones = take_clones(blueprint)
    die_with(blueprint.parent_pid)
    pid = os.fork()
    if pid == 0:
        keeper.main(blueprint, lambda: root.build(blueprint, clones))
    _wait(blueprint, pid)


def _wait(blueprint: Blueprint, pid: int) -> None:
    """Hold nothing that the job's end of file depends on, and wait for pid 1."""
    os.closerange(0, blueprint.info_fd)
    os.closerange(blueprint.info_fd + 1, _NO_FD)
    tell(blueprint.info_fd, f"pid {pid}")
    os.waitpid(pid, 0)


def take_clones(blueprint: Blueprint) -> dict[int, int]:
    """A detached, already restricted clone for every bind: position in the plan -> descriptor."""
    clones = {}
    for position, step in enumerate(blueprint.steps):
        if step[0] == "bind":
            _, _, source, kind, own, attributes = step
            # Before the uid is put on it is ours to say; in a user namespace we are that user.
            owner = (blueprint.uid if blueprint.uid >= 0 else os.getuid()) if own else -1
            clones[position] = _clone(source, kind, owner, attributes)  # type: ignore[arg-type]
    if any(step[0] == "device" for step in blueprint.steps):
        clones.update(_make_devices(blueprint))
    return clones


def _make_devices(blueprint: Blueprint) -> dict[int, int]:
    """Clones of device files that belong to the job's user, of devices that only a group may open:
    groups do not reach a job. They lie in a mount namespace that is left behind."""
    run_step("devices", syscalls.unshare, syscalls.CLONE_NEWNS)
    run_step("devices", syscalls.make_mounts_private)
    options = ((b"size", b"0"), (b"mode", b"700"), (b"source", b"tmpfs"))
    place = syscalls.new_filesystem(b"tmpfs", options, syscalls.ATTR_NOSUID)
    run_step("devices", syscalls.attach, place, -100, _DEVICES)
    clones = {}
    for position, step in enumerate(blueprint.steps):
        if step[0] == "device":
            _, _, major, minor = step
            path = b"%b/%d" % (_DEVICES, position)
            number = os.makedev(major, minor)  # type: ignore[arg-type]
            run_step("devices", os.mknod, path, _KINDS["c"] | 0o600, number)
            run_step("devices", os.chown, path, blueprint.uid, blueprint.gid)
            attributes = syscalls.ATTR_NOSUID | syscalls.ATTR_NOEXEC
            clones[position] = _clone(path, "c", blueprint.uid, attributes)
    os.close(place)
    return clones


def _clone(source: bytes, kind: str, owner: int, attributes: int) -> int:
    """From a descriptor that was checked: what changes at the path afterwards changes nothing."""
    name = os.fsdecode(source)
    try:
        fd = os.open(source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise StepFailed("source", error.errno or 0, name) from error
    found = os.fstat(fd)
    if found.st_mode & 0o170000 != _KINDS[kind]:
        raise StepFailed("source_kind", 0, name)
    if owner >= 0 and found.st_uid != owner:
        raise StepFailed("source_owner", 0, name)
    try:
        tree = syscalls.clone_tree(fd)
        syscalls.set_mount_attributes(tree, attributes)
    except OSError as error:
        raise StepFailed("clone", error.errno or 0, name) from error
    os.close(fd)
    return tree


def _put_on(uid: int, gid: int) -> None:
    """Become the job's user, for good and without any group of ours."""
    run_step("uid", os.setgroups, [])
    run_step("uid", os.setresgid, gid, gid, gid)
    run_step("uid", os.setresuid, uid, uid, uid)
    # The change made /proc/self belong to root; the uid map below is written through it.
    run_step("uid", syscalls.prctl, syscalls.PR_SET_DUMPABLE, 1)


def _unshare(blueprint: Blueprint) -> None:
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        raise StepFailed("uid", 0, "the job would run as root")
    run_step("keyring", syscalls.new_session_keyring)
    run_step("userns", syscalls.unshare, syscalls.CLONE_NEWUSER)
    run_step("uid_map", _write, "/proc/self/setgroups", b"deny")
    run_step("uid_map", _write, "/proc/self/uid_map", b"1000 %d 1" % uid)
    run_step("uid_map", _write, "/proc/self/gid_map", b"1000 %d 1" % gid)
    run_step("uid_map", syscalls.prctl, syscalls.PR_SET_DUMPABLE, 0)
    spaces = (
        syscalls.CLONE_NEWNS
        | syscalls.CLONE_NEWIPC
        | syscalls.CLONE_NEWUTS
        | syscalls.CLONE_NEWPID
        | syscalls.CLONE_NEWCGROUP
    )
    run_step("namespaces", syscalls.unshare, spaces)
    run_step("mounts", syscalls.make_mounts_private)
    run_step("host_name", syscalls.set_host_name, b"airlox")
    if not blueprint.host_network:
        run_step("loopback", syscalls.unshare, syscalls.CLONE_NEWNET)
        run_step("loopback", syscalls.raise_loopback)


def _write(path: str, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)
