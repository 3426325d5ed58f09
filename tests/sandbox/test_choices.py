"""What the operator may open in a sandbox: user namespaces, and the back-stop on data."""

from __future__ import annotations

from typing import ClassVar

import pytest

from support import grounds, parts
from support.grounds import Ground

MAKES_A_NAMESPACE = """
attempt(system, number(272, 97), 0x10000000)
attempt(write, "/proc/self/setgroups", b"deny")
attempt(write, "/proc/self/uid_map", b"0 1000 1")
tell(os.getuid())
attempt(os.chroot, bait["tmp"])
"""
WHAT_STAYS_SHUT = """
attempt(system, number(272, 97), 0x10000000)
attempt(system, number(165, 40), b"none", b"/tmp", b"tmpfs", 0, None)
attempt(system, 425, 4, ctypes.create_string_buffer(120))
attempt(write, "/proc/sys/kernel/core_pattern", b"core")
attempt(write, "/proc/sys/vm/drop_caches", b"1")
attempt(os.mkdir, "/planted")
"""
# Reserves terabytes and has a leak, which the sanitizer finds by tracing the process.
SANITIZED = """
write("leak.c", b"#include <stdlib.h>\\nint main(void) { volatile char *p = malloc(9); p = 0; }")
code = os.system("gcc -g -fsanitize=address -o leak leak.c && ./leak 2>&1 | grep -o LeakSanitizer")
"""


@pytest.mark.parametrize("ground", grounds.LOCAL, ids=str)
class TestUserNamespaces:
    ALLOWED: ClassVar = {"allow_userns": True}

    def test_a_job_makes_one_where_it_may(self, ground: Ground) -> None:
        seen = ground.run(MAKES_A_NAMESPACE, options=self.ALLOWED)
        assert seen.words == ["done", "done", "done", "0", "done"]

    def test_all_else_stays_shut(self, ground: Ground) -> None:
        seen = ground.run(WHAT_STAYS_SHUT, options=self.ALLOWED)
        opened, *shut = seen.words
        assert opened == "done"
        assert set(shut) <= {"EPERM", "ENOSYS", "EROFS", "EACCES"}


def test_the_report_says_so() -> None:
    layers = grounds.LOCAL[1].run("", options={"allow_userns": True}, tell_report=True).layers
    assert layers["userns_limit"] is False
    assert layers["seccomp"] is True


def sanitized(ground: Ground, *, back_stop: bool) -> str:
    parts.require("gcc")
    return ground.run(SANITIZED, options={"memory_back_stop": back_stop}, without=["cgroup"]).text


@pytest.mark.parametrize("ground", [grounds.OPEN, *grounds.LOCAL], ids=str)
def test_address_sanitizer_without_the_limit_on_data(ground: Ground) -> None:
    assert "LeakSanitizer" in sanitized(ground, back_stop=False)


@pytest.mark.parametrize("ground", [grounds.OPEN, grounds.LOCAL[0]], ids=str)
def test_the_limit_on_data_stands_unless_it_is_taken_off(ground: Ground) -> None:
    assert "LeakSanitizer" not in sanitized(ground, back_stop=True)
