"""The system calls of containers are those of the local sandbox."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airlox.sandbox.container import profile
from airlox.sandbox.linux import seccomp
from support import sandbox

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
DEAD = {"afs_syscall", "epoll_ctl_old", "epoll_wait_old", "getpmsg", "putpmsg", "security"} | {
    "tuxcall",
    "vserver",
}


def test_a_call_is_allowed_or_refused_and_never_both() -> None:
    refused = {*seccomp.REFUSED, *seccomp.ABSENT, *seccomp.BY_ARGUMENT}
    assert not refused & set(profile.ALLOWED)
    assert len(profile.ALLOWED) == len(set(profile.ALLOWED))


def test_every_call_of_the_kernel_was_judged() -> None:
    if not HEADER.exists():
        sandbox.lack("the kernel's headers for x86_64: apt-get install linux-libc-dev")
    calls = set(re.findall(r"#define __NR_(\w+)\s+\d+", HEADER.read_text()))
    judged = {*seccomp.REFUSED, *seccomp.ABSENT, *seccomp.BY_ARGUMENT, *profile.ALLOWED}
    assert calls - judged - DEAD == set()


def test_what_stands_in_no_rule_is_refused() -> None:
    told = json.loads(profile.build_profile())
    assert told["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = {
        name
        for rule in told["syscalls"]
        for name in rule["names"]
        if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule
    }
    assert allowed == {*profile.ALLOWED, "ioctl"}


def test_memory_that_no_process_shows_is_for_those_whose_memory_is_counted() -> None:
    for counted in (True, False):
        told = json.loads(profile.build_profile(counted=counted))
        rules = [rule["action"] for rule in told["syscalls"] if "memfd_create" in rule["names"]]
        assert rules == ["SCMP_ACT_ALLOW" if counted else "SCMP_ACT_ERRNO"]
        segments = [rule for rule in told["syscalls"] if "shmget" in rule["names"]]
        assert len(segments) == 1
        assert ("args" in segments[0]) is not counted


@pytest.mark.parametrize("name", ["clone", "unshare"])
def test_namespaces_are_refused(name: str) -> None:
    rules = [r for r in json.loads(profile.build_profile())["syscalls"] if name in r["names"]]
    assert [rule["args"][0]["op"] for rule in rules] == ["SCMP_CMP_MASKED_EQ"]
    assert rules[0]["args"][0]["value"] & seccomp.NAMESPACES == seccomp.NAMESPACES
    assert rules[0]["args"][0]["valueTwo"] == 0
