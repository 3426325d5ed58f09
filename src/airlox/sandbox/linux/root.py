"""The root a job sees: built from the steps of a blueprint, then entered for good.

Runs in pid 1 of the new namespaces, with capabilities in them and the clones that the launcher took
of every mount source. A change of root reaches every process of the mount namespace. When `build`
returns the root is read-only but for the places that the plan makes writable.
"""

from __future__ import annotations

import os

from airlox.sandbox.linux import syscalls
from airlox.sandbox.linux.blueprint import Blueprint
from airlox.sandbox.linux.talk import StepFailed, run_step

_LOCKED_DOWN = syscalls.ATTR_NOSUID | syscalls.ATTR_NODEV
_PROC_FLAGS = _LOCKED_DOWN | syscalls.ATTR_NOEXEC
_STAGING = "/tmp"  # any folder will do: it is covered, then let go of
FROZEN_IN_PROC = (b"sys", b"irq", b"bus", b"driver", b"sysrq-trigger")
COVERED_IN_PROC = (b"kcore", b"keys", b"timer_list", b"kallsyms", b"sched_debug")
"""What of /proc speaks about the whole machine: read-only, and empty."""


def build(blueprint: Blueprint, clones: dict[int, int]) -> None:
    """Build the root and enter it. `clones` are descriptors, by position in the steps."""
    root = _tmpfs(b"4194304", 4096, 0o755)
    run_step("mounts", syscalls.attach, root, -100, os.fsencode(_STAGING))
    os.fchdir(root)
    for position, step in enumerate(blueprint.steps):
        try:
            _STEPS[str(step[0])](step, clones.get(position, -1))
        except OSError as error:
            where = os.fsdecode(step[1])  # type: ignore[arg-type]
            name = "mount_proc" if step[0] == "proc" else "mounts"
            raise StepFailed(name, error.errno or 0, f"{step[0]} /{where}: {error}") from error
    if blueprint.userns_limit:
        run_step("userns_limit", _forbid_user_namespaces)
    run_step("mounts", _freeze_proc)
    read_only = syscalls.ATTR_RDONLY | _LOCKED_DOWN
    run_step("mounts", syscalls.set_mount_attributes, root, read_only, False)
    run_step("pivot", syscalls.pivot_to_current)
    os.close(root)


def _make_parents(path: bytes) -> None:
    at = path.find(b"/")
    while at > 0:
        _make_folder(path[:at], 0o755)
        at = path.find(b"/", at + 1)


def _make_folder(path: bytes, mode: int) -> None:
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return
    os.chmod(path, mode)


def _write(path: bytes, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def _tmpfs(size: bytes, inodes: int, mode: int) -> int:
    options = (
        (b"size", size),
        (b"nr_inodes", b"%d" % inodes),
        (b"mode", b"%o" % mode),
        (b"source", b"tmpfs"),
    )
    return syscalls.new_filesystem(b"tmpfs", options, _LOCKED_DOWN)


def _attach(tree: int, path: bytes) -> None:
    syscalls.attach(tree, -100, path)
    os.close(tree)


# The steps get their tuple as it stands in the blueprint; `mypy` cannot see into it.
def _do_dir(step: tuple, _: int) -> None:  # type: ignore[type-arg]
    _make_parents(step[1])
    _make_folder(step[1], step[2])


def _do_file(step: tuple, _: int) -> None:  # type: ignore[type-arg]
    _make_parents(step[1])
    _write(step[1], step[2])


def _do_link(step: tuple, _: int) -> None:  # type: ignore[type-arg]
    _make_parents(step[1])
    os.symlink(step[2], step[1])


def _do_tmpfs(step: tuple, _: int) -> None:  # type: ignore[type-arg]
    _make_parents(step[1])
    _make_folder(step[1], 0o755)
    _attach(_tmpfs(b"%d" % step[2], step[3], step[4]), step[1])


def _do_proc(step: tuple, _: int) -> None:  # type: ignore[type-arg]
    _make_folder(step[1], 0o755)
    _attach(syscalls.new_filesystem(b"proc", (), _PROC_FLAGS), step[1])


def _do_pts(step: tuple, _: int) -> None:  # type: ignore[type-arg]
    _make_folder(step[1], 0o755)
    options = ((b"ptmxmode", b"0666"), (b"mode", b"620"))
    flags = syscalls.ATTR_NOSUID | syscalls.ATTR_NOEXEC
    _attach(syscalls.new_filesystem(b"devpts", options, flags), step[1])


def _do_bind(step: tuple, clone: int) -> None:  # type: ignore[type-arg]
    _make_parents(step[1])
    if step[3] == "d":
        _make_folder(step[1], 0o755)
    else:
        _write(step[1], b"")
    _attach(clone, step[1])


def _do_device(step: tuple, clone: int) -> None:  # type: ignore[type-arg]
    _make_parents(step[1])
    _write(step[1], b"")
    _attach(clone, step[1])


_STEPS = {
    "dir": _do_dir,
    "file": _do_file,
    "link": _do_link,
    "tmpfs": _do_tmpfs,
    "proc": _do_proc,
    "pts": _do_pts,
    "bind": _do_bind,
    "device": _do_device,
}


def _forbid_user_namespaces() -> None:
    """The limit of *this* user namespace, which nothing inside can raise again."""
    _write(b"proc/sys/user/max_user_namespaces", b"0")


def _freeze_proc() -> None:
    for name in FROZEN_IN_PROC:
        _lay_over(b"proc/" + name, b"proc/" + name, syscalls.ATTR_RDONLY | _PROC_FLAGS)
    for name in COVERED_IN_PROC:
        _lay_over(b"proc/" + name, b"dev/null", syscalls.ATTR_RDONLY)


def _lay_over(path: bytes, source: bytes, attributes: int) -> None:
    if not os.path.lexists(path):
        return
    fd = os.open(source, os.O_PATH | os.O_CLOEXEC)
    tree = syscalls.clone_tree(fd)
    os.close(fd)
    syscalls.set_mount_attributes(tree, attributes)
    _attach(tree, path)
