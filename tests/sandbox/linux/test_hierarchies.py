"""Where control groups could be made, from the texts of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.sandbox.linux import hierarchies
from airlox.sandbox.linux.hierarchies import (
    CgroupMount,
    Place,
    parse_membership,
    parse_mountinfo,
    places,
)


class TestMountinfo:
    def test_both_versions(self) -> None:
        text = (
            "23 1 8:1 / / rw - ext4 /dev/sda rw\n"
            "35 31 0:32 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
            "36 31 0:33 /docker/ab /sys/fs/cg\\040x rw - cgroup cgroup rw,cpu,pids\n"
            "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
        )
        assert parse_mountinfo(text) == (
            CgroupMount(1, frozenset({"memory"}), "/", "/sys/fs/cgroup/memory"),
            CgroupMount(1, frozenset({"cpu", "pids"}), "/docker/ab", "/sys/fs/cg x"),
            CgroupMount(2, frozenset(), "/", "/sys/fs/cgroup/unified"),
        )

    @given(st.text())
    def test_any_text_gives_mounts_or_nothing(self, text: str) -> None:
        for mount in parse_mountinfo(text):
            assert mount.version in (1, 2)


class TestMembership:
    def test_all_forms(self) -> None:
        text = "4:memory:/a/b:c\n3:cpu,cpuacct:/\n1:name=systemd:/x\n0::/user.slice\n"
        assert parse_membership(text) == {
            "memory": "/a/b:c",
            "cpu": "/",
            "cpuacct": "/",
            "name=systemd": "/x",
            "": "/user.slice",
        }

    @given(st.text())
    def test_any_text_gives_groups_or_nothing(self, text: str) -> None:
        parse_membership(text)


@pytest.mark.parametrize("group", ["/other", "/../outside", "/own/../../x"])
def test_a_group_outside_of_the_mount_leads_to_its_top(group: str) -> None:
    mount = CgroupMount(2, frozenset(), "/own", "/cg")
    assert hierarchies._own_folder(mount, group) == Path("/cg")


def test_a_mounted_part_is_seen_from_its_root() -> None:
    mount = CgroupMount(2, frozenset(), "/own", "/cg")
    assert hierarchies._own_folder(mount, "/own/a") == Path("/cg/a")
    assert hierarchies._own_folder(mount, "/owner") == Path("/cg")


def test_version_1_with_a_controller_of_processors_elsewhere() -> None:
    mounts = [
        CgroupMount(1, frozenset({"memory", "pids"}), "/", "/m"),
        CgroupMount(1, frozenset({"cpu", "cpuacct"}), "/", "/c"),
    ]
    own, top = Path("/m/a"), Path("/m")
    assert places(mounts, {"memory": "/a", "pids": "/a", "cpu": "/b"}) == (
        Place(1, own, own, Path("/c/b")),
        Place(1, own, own),
        Place(1, top, top, Path("/c")),
        Place(1, top, top),
    )


def test_version_1_without_one_of_processes() -> None:
    assert places([CgroupMount(1, frozenset({"memory", "cpu"}), "/", "/m")], {}) == ()


def test_version_2() -> None:
    mount = CgroupMount(2, frozenset(), "/", "/g")
    own, top = Path("/g/a"), Path("/g")
    assert places([mount], {"": "/a/airlox-runner"}) == (
        Place(2, own, own, own),
        Place(2, own, own),
        Place(2, top, top, top),
        Place(2, top, top),
    )
