"""Landlock rules cut down to each version of the kernel's interface."""

from __future__ import annotations

import pytest

from airlox.sandbox.linux import landlock as ll

ABIS = range(1, ll.NEWEST_ABI + 1)
WRITABLE = ("/work", "/out")


@pytest.mark.parametrize(
    ("abi", "bits", "size"),
    [
        (1, 13, 8),
        (2, 14, 8),
        (3, 15, 8),
        (4, 15, 16),
        (5, 16, 16),
        (6, 16, 24),
        (7, 16, 24),
        (8, 16, 24),
        (9, 17, 24),
    ],
)
def test_what_each_version_handles(abi: int, bits: int, size: int) -> None:
    assert ll.handled(abi) == (1 << bits) - 1
    assert len(ll.attributes(abi)) == size


@pytest.mark.parametrize("abi", ABIS)
def test_scopes_come_with_version_six(abi: int) -> None:
    both = ll.SCOPE_ABSTRACT_SOCKETS | ll.SCOPE_SIGNALS
    assert ll.scoped(abi) == (both if abi >= 6 else 0)
    if abi >= 6:
        assert int.from_bytes(ll.attributes(abi)[16:24], "little") == both


@pytest.mark.parametrize("abi", ABIS)
def test_network_rights_are_left_unhandled(abi: int) -> None:
    assert not any(ll.attributes(abi)[8:16])


@pytest.mark.parametrize("abi", ABIS)
def test_no_right_is_granted_that_is_not_handled(abi: int) -> None:
    for _, rights in ll.rules(WRITABLE):
        for folder in (True, False):
            assert ll.reduce(rights, abi, folder=folder) & ~ll.handled(abi) == 0


@pytest.mark.parametrize("abi", ABIS)
def test_a_file_gets_no_right_that_only_folders_have(abi: int) -> None:
    of_folders = ll.READ_DIR | ll.REFER | ll.MAKE_CHAR | ll.MAKE_BLOCK | ll.RESOLVE_UNIX
    assert ll.reduce((1 << 17) - 1, abi, folder=False) & of_folders == 0


def test_who_may_do_what() -> None:
    rules = dict(ll.rules(WRITABLE))
    assert rules["/"] == ll.EXECUTE | ll.READ_FILE | ll.READ_DIR
    for path in WRITABLE:
        forbidden = ll.MAKE_CHAR | ll.MAKE_BLOCK | ll.IOCTL_DEV | ll.RESOLVE_UNIX
        assert rules[path] & forbidden == 0
        assert rules[path] & ll.WRITE_FILE
        assert rules[path] & ll.REFER
    with_ioctl = {path for path, rights in rules.items() if rights & ll.IOCTL_DEV}
    assert with_ioctl == {"/dev/tty", "/dev/pts"}
    # From version 9 on no rule lets a job reach a socket made outside.
    assert not any(rights & ll.RESOLVE_UNIX for rights in rules.values())
