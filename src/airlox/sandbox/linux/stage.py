"""The last code of ours inside a sandbox: puts the remaining walls on itself and becomes the job.

Every wall stands before "ready" is said. Nothing of the job runs before the runner answers with a
byte on the go pipe; end of file there means that the runner is gone.
"""

from __future__ import annotations

import os
import resource

from airlox.sandbox.linux import landlock, syscalls
from airlox.sandbox.linux.blueprint import Blueprint
from airlox.sandbox.linux.talk import failures_told, run_step, tell

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_ENOENT = 2
_ENOTDIR = 20


def main(blueprint: Blueprint, built_fd: int) -> None:
    """Become the job, once a byte on `built_fd` says that the root stands. Never returns."""
    with failures_told(blueprint.info_fd):
        _enter_cgroups(blueprint.cgroup_fds)
        _wait_for(built_fd, b"b")
        give_up_power(blueprint)
        os.setsid()
        _open_input()
        run_step("cwd", os.chdir, blueprint.cwd)
        os.umask(0o022)
        for kind, value in blueprint.rlimits:
            _limit(kind, value)
        os.nice(blueprint.nice)
        syscalls.default_signals()
        if blueprint.landlock_abi:
            places = (blueprint.writable, blueprint.devices)
            run_step("landlock", landlock.enforce, blueprint.landlock_abi, *places)
        run_step("descriptors", syscalls.close_on_exec_from, 3)
        if blueprint.filter:
            run_step("seccomp", syscalls.install_filter, blueprint.filter)
        tell(blueprint.info_fd, "ready")
        _wait_for(blueprint.go_fd, b"g")
        if blueprint.argv:
            _become(blueprint)
    os._exit(0)


def give_up_power(blueprint: Blueprint) -> None:
    """No capability now, and none to be gained by whatever is executed."""
    run_step("capabilities", syscalls.drop_bounding_set)
    run_step("capabilities", syscalls.drop_capabilities)
    if blueprint.no_new_privs:
        run_step("no_new_privs", syscalls.prctl, syscalls.PR_SET_NO_NEW_PRIVS, 1)


def _enter_cgroups(fds: tuple[int, ...]) -> None:
    for fd in fds:
        run_step("cgroup", os.write, fd, b"0")


def _open_input() -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _limit(kind: int, value: int) -> None:
    """Lower a limit for good; a ceiling that is already lower stays."""
    _, ceiling = resource.getrlimit(kind)
    if ceiling != resource.RLIM_INFINITY:
        value = min(value, ceiling)
    resource.setrlimit(kind, (value, value))


def _wait_for(fd: int, byte: bytes) -> None:
    """End of file means that whoever should have spoken is gone."""
    if os.read(fd, 1) != byte:
        os._exit(1)


def _become(blueprint: Blueprint) -> None:
    environment = dict(blueprint.env)
    name = blueprint.argv[0]
    error = OSError(_ENOENT, "not found")
    for candidate in _candidates(name, environment.get(b"PATH", b"/usr/bin:/bin")):
        try:
            os.execve(candidate, blueprint.argv, environment)
        except OSError as failure:
            if failure.errno not in (_ENOENT, _ENOTDIR) or candidate == name:
                error = failure
    missing = error.errno in (_ENOENT, _ENOTDIR)
    text = f"{os.fsdecode(name)}: {error.strerror}"
    tell(blueprint.info_fd, f"error exec {error.errno or 0} {text}")
    os._exit(_NOT_FOUND if missing else _NOT_EXECUTABLE)


def _candidates(name: bytes, path: bytes) -> list[bytes]:
    if b"/" in name:
        return [name]
    return [folder + b"/" + name for folder in path.split(b":") if folder]
