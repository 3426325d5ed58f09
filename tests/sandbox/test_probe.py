"""A wall that cannot be had is named with its cause, a remedy and a stable code."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from airlox.sandbox import probe
from airlox.sandbox.base import Layer
from airlox.sandbox.probe import Host, refusal, stopped_at

OPEN = Host(apparmor_restricts=False, userns_allowed=True, in_container=False)
UBUNTU = Host(apparmor_restricts=True, userns_allowed=True, in_container=False)
OFF = Host(apparmor_restricts=False, userns_allowed=False, in_container=False)
BOX = Host(apparmor_restricts=False, userns_allowed=True, in_container=True)


@pytest.mark.parametrize(
    ("step", "number", "host", "code"),
    [
        ("userns", errno.EPERM, UBUNTU, "userns_apparmor"),
        ("mounts", errno.EACCES, UBUNTU, "userns_apparmor"),
        ("loopback", errno.EPERM, UBUNTU, "userns_apparmor"),
        ("uid_map", errno.EPERM, UBUNTU, "userns_apparmor"),
        ("userns", errno.EPERM, OFF, "userns_off"),
        ("userns", errno.ENOSPC, OPEN, "userns_off"),
        ("userns", errno.EINVAL, OPEN, "userns_off"),
        ("userns", errno.EPERM, BOX, "userns_container"),
        ("namespaces", errno.EPERM, BOX, "userns_container"),
        ("mounts", errno.EPERM, BOX, "userns_container"),
        ("mount_proc", errno.EPERM, BOX, "mount_proc_masked"),
        ("loopback", errno.EPERM, OPEN, "loopback"),
        ("loopback", errno.ENOSPC, OPEN, "loopback"),
        ("uid", errno.EINVAL, OPEN, "root_no_user"),
        ("uid", errno.EPERM, OPEN, "root_no_user"),
        ("clone", errno.ENOSYS, OPEN, "kernel_too_old"),
        ("mounts", errno.ENOSYS, OPEN, "kernel_too_old"),
        ("source", errno.ENOENT, OPEN, "mount_source"),
        ("source_owner", 0, OPEN, "mount_source_owner"),
        ("seccomp", errno.EINVAL, OPEN, "sandbox_unavailable"),
    ],
)
def test_explain(step: str, number: int, host: Host, code: str) -> None:
    error = probe.explain(step, number, "what failed", host)
    assert error.code == code
    assert error.hint
    assert "what failed" in error.message


def host_with(root: Path, **switches: str) -> Host:
    for name, value in switches.items():
        path = root / "proc/sys" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)
    return probe.look_at_host(root)


def test_a_host_without_switches_is_open(tmp_path: Path) -> None:
    host = probe.look_at_host(tmp_path)
    assert (host.apparmor_restricts, host.userns_allowed, host.in_container) == (False, True, False)


def test_switches_are_read(tmp_path: Path) -> None:
    assert host_with(
        tmp_path, kernel__apparmor_restrict_unprivileged_userns="1\n"
    ).apparmor_restricts
    assert not host_with(tmp_path, user__max_user_namespaces="0\n").userns_allowed
    assert not host_with(
        tmp_path, user__max_user_namespaces="9\n", kernel__unprivileged_userns_clone="0\n"
    ).userns_allowed


def test_a_container_is_known_by_its_mark(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.containerenv").touch()
    assert probe.look_at_host(tmp_path).in_container


LAYERS = (
    Layer("uid", True, "5"),
    Layer("userns", True, "all of them"),
    Layer("landlock", True, "ABI 7"),
    Layer("cgroup", False, "none may be made", "cgroup_none", "systemd-run …"),
)


class TestStoppedAt:
    def test_the_layer_at_fault_is_named(self) -> None:
        uid, userns, landlock, cgroup = stopped_at(refusal("userns_off"), LAYERS)
        assert (userns.on, userns.code) == (False, "userns_off")
        assert userns.remedy
        assert (uid.on, uid.detail) == (False, "not tried, for want of userns")
        assert (landlock, cgroup) == LAYERS[2:]

    def test_what_concerns_all_comes_first(self) -> None:
        found = stopped_at(refusal("kernel_too_old"), LAYERS)
        assert (found[0].name, found[0].code) == ("walls", "kernel_too_old")
        assert [layer.name for layer in found[1:]] == [layer.name for layer in LAYERS]
        assert not any(layer.on for layer in found if layer.name != "landlock")

    def test_every_code_is_one_of_ours(self) -> None:
        codes = {code for codes in probe._AT_FAULT.values() for code in codes}
        ours = {*probe._CAUSES, *(f"mount_{step}" for step in probe._SOURCE_STEPS)}
        assert codes <= ours
