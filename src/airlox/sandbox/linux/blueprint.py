"""What the launcher is told: one frozen value, and its bytes.

The runner compiles a `Plan` into a `Blueprint`; the launcher only carries it out. The bytes travel
through an anonymous file, never through arguments or environment, because a job can read
`/proc/1/cmdline`. They also carry the launcher's own code, so that the launcher needs no file of
this package: it may lie below a folder that the job's uid cannot enter. Both ends are the same
interpreter, which is what makes `marshal` the right form.

Imported by the launcher: nothing but built-in modules here.
"""

from __future__ import annotations

import marshal

# Steps of the mount plan, in the order in which they are carried out:
#   ("dir", path, mode)  ("file", path, content)  ("link", path, target)
#   ("tmpfs", path, size_bytes, inodes, mode)  ("proc", path)  ("pts", path)
#   ("bind", path, source, kind, own, attributes)   kind "d", "f" or "c"; own: of the job's user
#   ("device", path, major, minor)   made for the job's user; only a launcher started as root can
# Paths are bytes relative to the new root.
Step = tuple[object, ...]


class Blueprint:
    """Everything a launcher needs to know.

    `uid` and `gid` are put on before anything is unshared; -1 keeps the caller's own. Descriptors:
    `info_fd` takes lines from us, `go_fd` gives one byte when the job may start, `control_fd` is
    watched by the keeper, `cgroup_fds` are open `cgroup.procs` files, the door of the job's network
    leaves through `door_fd` (-1: it has none). An empty `argv` is a trial: everything is built,
    nothing is run.
    """

    __slots__ = FIELDS = (
        "argv",
        "cgroup_fds",
        "control_fd",
        "cwd",
        "devices",
        "door_fd",
        "env",
        "filter",
        "gid",
        "go_fd",
        "host_network",
        "info_fd",
        "landlock_abi",
        "nice",
        "no_new_privs",
        "output_fds",
        "parent_pid",
        "rlimits",
        "steps",
        "uid",
        "userns_limit",
        "writable",
    )

    argv: tuple[bytes, ...]
    cgroup_fds: tuple[int, ...]
    control_fd: int
    cwd: bytes
    devices: tuple[str, ...]
    door_fd: int
    env: tuple[tuple[bytes, bytes], ...]
    filter: bytes
    gid: int
    go_fd: int
    host_network: bool
    info_fd: int
    landlock_abi: int
    nice: int
    no_new_privs: bool
    output_fds: tuple[int, int]
    parent_pid: int
    rlimits: tuple[tuple[int, int], ...]
    steps: tuple[Step, ...]
    uid: int
    userns_limit: bool
    writable: tuple[str, ...]

    def __init__(self, **values: object) -> None:
        if set(values) != set(self.FIELDS):
            missing = sorted(set(self.FIELDS) ^ set(values))
            raise TypeError(f"blueprint fields missing or unknown: {missing}")
        for name, value in values.items():
            setattr(self, name, value)


def encode(blueprint: Blueprint) -> bytes:
    """The blueprint as bytes for the same interpreter."""
    return marshal.dumps({name: getattr(blueprint, name) for name in Blueprint.FIELDS})


def decode(data: bytes) -> Blueprint:
    """The blueprint from bytes that `encode` made."""
    return Blueprint(**marshal.loads(data))
