"""Pid 1 of a sandbox: builds the new root, starts the stage, reaps, ends everything.

It runs under the job's uid but cannot be traced, stopped or killed from inside: it is pid 1 and not
dumpable. When the main process ends it says how and ends itself, and the kernel kills whatever is
left. It also ends when the control pipe closes, that is, when the runner is gone; a byte on that
pipe means "send TERM to all".

The stage is forked before the root is built, because entering a cgroup takes the kernel longer than
building the root takes us. A change of root reaches every process of the mount namespace.
"""

from __future__ import annotations

import os
import resource
import select

from airlox.sandbox.linux import stage, syscalls
from airlox.sandbox.linux.blueprint import Blueprint
from airlox.sandbox.linux.talk import StepFailed, failures_told, run_step, tell

_SIGKILL = 9
_SIGTERM = 15
_LOCKED_DOWN = syscalls.ATTR_NOSUID | syscalls.ATTR_NODEV
_PROC_FLAGS = _LOCKED_DOWN | syscalls.ATTR_NOEXEC
_STAGING = "/tmp"  # any folder will do: it is covered, then let go of


def main(blueprint: Blueprint, clones: dict[int, int]) -> None:
    """Be pid 1. Never returns."""
    with failures_told(blueprint.info_fd):
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _SIGKILL)
        signals = syscalls.block_signal(syscalls.SIGCHLD)
        built_fd, tell_built_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(tell_built_fd)
            stage.main(blueprint, built_fd)
        os.close(built_fd)
        _build_root(blueprint, clones)
        stage.give_up_power(blueprint)
        os.write(tell_built_fd, b"b")
        os.close(tell_built_fd)
        _let_go_of_output(blueprint.go_fd)
        _keep(blueprint, signals, pid)


def _build_root(blueprint: Blueprint, clones: dict[int, int]) -> None:
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


_STEPS = {
    "dir": _do_dir,
    "file": _do_file,
    "link": _do_link,
    "tmpfs": _do_tmpfs,
    "proc": _do_proc,
    "pts": _do_pts,
    "bind": _do_bind,
}


def _forbid_user_namespaces() -> None:
    """The limit of *this* user namespace, which nothing inside can raise again."""
    _write(b"proc/sys/user/max_user_namespaces", b"0")


def _freeze_proc() -> None:
    """What of /proc speaks about the whole machine becomes read-only or empty."""
    for name in (b"proc/sys", b"proc/irq", b"proc/bus", b"proc/sysrq-trigger"):
        _lay_over(name, name, syscalls.ATTR_RDONLY | _PROC_FLAGS)
    for name in (b"kcore", b"keys", b"timer_list", b"kallsyms", b"sched_debug"):
        _lay_over(b"proc/" + name, b"dev/null", syscalls.ATTR_RDONLY)


def _lay_over(path: bytes, source: bytes, attributes: int) -> None:
    if not os.path.lexists(path):
        return
    fd = os.open(source, os.O_PATH | os.O_CLOEXEC)
    tree = syscalls.clone_tree(fd)
    os.close(fd)
    syscalls.set_mount_attributes(tree, attributes)
    _attach(tree, path)


def _let_go_of_output(go_fd: int) -> None:
    """Whoever reads the job's output must see its end although we live on."""
    os.close(go_fd)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def _keep(blueprint: Blueprint, signals: int, main_pid: int) -> None:
    poll = select.poll()
    poll.register(signals, select.POLLIN)
    poll.register(blueprint.control_fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == blueprint.control_fd:
                _obey(fd)
            else:
                os.read(signals, 128)
                _reap(blueprint, main_pid)


def _obey(control_fd: int) -> None:
    if not os.read(control_fd, 1):
        os._exit(1)
    try:
        os.kill(-1, _SIGTERM)
    except ProcessLookupError:
        pass


def _reap(blueprint: Blueprint, main_pid: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == main_pid:
            largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            tell(blueprint.info_fd, f"exit {status} {largest}")
            os._exit(0)
