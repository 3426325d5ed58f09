"""What stands around every command of one sandbox: from a `Plan` to a `Blueprint`.

The same for each builder; how the blueprint is carried out is theirs. Looks at the host as far as
`layout.py` does, and changes nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airlox.sandbox import probe as causes
from airlox.sandbox.base import Layer, Network
from airlox.sandbox.linux import gpus, landlock, layout, seccomp, syscalls
from airlox.sandbox.linux.blueprint import Blueprint

if TYPE_CHECKING:
    from airlox.sandbox.base import Layout, Plan, SandboxOptions
    from airlox.sandbox.linux.cgroups import CgroupDriver
    from airlox.sandbox.linux.jobuser import JobUser
    from airlox.sandbox.linux.launched import Ends


@dataclass(frozen=True, slots=True)
class Given:
    """The descriptors a launcher hands on: the job's output, its open `cgroup.procs` files, and
    the end through which the door of its network leaves, -1 for none. `nice` is how far the job
    stands back."""

    stdout_fd: int
    stderr_fd: int
    cgroup_fds: tuple[int, ...] = ()
    door_fd: int = -1
    nice: int = 0

    @property
    def inherited(self) -> tuple[int, ...]:
        """Those that keep their number."""
        return self.cgroup_fds if self.door_fd < 0 else (*self.cgroup_fds, self.door_fd)


@dataclass(frozen=True, slots=True)
class Walls:
    """The walls of one sandbox. `user` is put on, None: ours stays. `offered` are the GPUs a job
    sees. `without` is for tests only."""

    options: SandboxOptions
    layout: Layout
    user: JobUser | None = None
    offered: gpus.Found = gpus.NOTHING
    without: frozenset[str] = frozenset()

    def blueprint(self, plan: Plan, given: Given, ends: Ends) -> Blueprint:
        """The orders for one command.

        Raises:
            SandboxError: a toolchain or the network cannot be had as the plan wants it.
        """
        return Blueprint(
            argv=tuple(os.fsencode(word) for word in plan.argv),
            cgroup_fds=given.cgroup_fds,
            control_fd=ends.control_fd,
            cwd=os.fsencode(plan.cwd),
            devices=self.offered.devices,
            door_fd=given.door_fd,
            env=tuple((os.fsencode(name), os.fsencode(value)) for name, value in plan.env),
            filter=self._filter(plan, given),
            gid=self.user.gid if self.user else -1,
            go_fd=ends.go_fd,
            host_network=self._host_network(plan.network),
            info_fd=ends.info_fd,
            landlock_abi=self.landlock_abi(),
            nice=given.nice,
            no_new_privs=True,
            output_fds=(given.stdout_fd, given.stderr_fd),
            parent_pid=os.getpid(),
            rlimits=layout.rlimits(plan.limits, memory_back_stop=self._back_stop(given)),
            steps=layout.steps(plan, gpus.steps(self.offered, self._owner()), where=self.layout),
            uid=self.user.uid if self.user else -1,
            userns_limit=not (self.options.allow_userns or "userns_limit" in self.without),
            writable=self._writable(),
        )

    def _owner(self) -> tuple[int, int] | None:
        return (self.user.uid, self.user.gid) if self.user else None

    def _filter(self, plan: Plan, given: Given) -> bytes:
        if "seccomp" in self.without:
            return b""
        watched = plan.limits.memory_bytes is not None and not given.cgroup_fds
        return seccomp.compile_filter(
            syscalls.MACHINE,
            user_namespaces=self.options.allow_userns,
            unseen_memory=not watched,
        )

    def _writable(self) -> tuple[str, ...]:
        places = layout.writable(self.layout)
        # The maps of a new user namespace are written in /proc.
        return (*places, "/proc") if self.options.allow_userns else places

    def _back_stop(self, given: Given) -> bool:
        return self.options.memory_back_stop and not given.cgroup_fds

    def landlock_abi(self) -> int:
        """The version that is put on; 0 for none."""
        if "landlock" in self.without:
            return 0
        return min(syscalls.landlock_abi(), landlock.NEWEST_ABI)

    def layers(self, driver: CgroupDriver | None) -> tuple[Layer, ...]:
        """Every layer, on the condition that a trial passed."""
        abi = self.landlock_abi()
        uid = self.user.uid if self.user else os.getuid()
        return (
            Layer("uid", True, f"jobs run as uid {uid}"),
            Layer("userns", True, "user, mount, pid, ipc, uts and cgroup namespaces"),
            self._network_layer(),
            Layer("mounts", True, "read-only system; work, out, home and tmp writable"),
            Layer("capabilities", True, "none; no new privileges"),
            Layer("seccomp", True, f"version {seccomp.VERSION}"),
            _off("userns_limit", "userns_allowed")
            if self.options.allow_userns
            else Layer("userns_limit", True, "no user namespaces of a job's own"),
            Layer("landlock", True, f"ABI {abi}") if abi else _off("landlock", "landlock_off"),
            Layer("rlimits", True, "core, file size, open files, locked memory, processes"),
            Layer("cgroup", True, f"version {driver.version}: {driver.what}")
            if driver
            else _off("cgroup", "cgroup_none"),
            Layer("watcher", True, "time, disk, and memory where no cgroup limits it"),
        )

    def _network_layer(self) -> Layer:
        options = self.options
        if options.network is Network.ON:
            return _off("network", "network_shared")
        listed = options.network is Network.ALLOW_LIST
        way_out = f", and a way out to {', '.join(options.hosts)}" if listed else ""
        return Layer("network", True, f"own network with loopback{way_out}")

    def _host_network(self, network: Network) -> bool:
        if network is not Network.ON:
            return False
        if self.landlock_abi() < landlock.SCOPE_ABI:
            raise causes.refusal("network_host")
        return True


def _off(name: str, code: str) -> Layer:
    cause, remedy = causes.remedy(code)
    return Layer(name, False, cause, code, remedy)
