"""Parts of the system that some tests need and some machines lack.

A test that lacks one is skipped with the part's name and how to get it. Where CI is set it fails
instead: there, `.ci/run` installs what the tests need, and a test that never runs proves nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import pytest

from support import engine, node_packages, old


@dataclass(frozen=True)
class Part:
    """One part of the system: whether it is here, and how to get it."""

    is_here: Callable[[], bool]
    remedy: str


def require(part: str) -> None:
    """Go on only where `part` (a name of `PARTS`) is there: else skip, or fail where CI is set."""
    wanted = PARTS[part]
    if wanted.is_here():
        return
    missing = f"needs {part}: {wanted.remedy}"
    if os.environ.get("CI"):
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


@cache
def _runs(*command: str) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _has_command(name: str) -> Callable[[], bool]:
    # sshd and ip live where an ordinary user's PATH may not look.
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return lambda: shutil.which(name, path=folders) is not None


def _is_root() -> bool:
    return os.geteuid() == 0


def _is_linux() -> bool:
    return sys.platform == "linux"


def _has_user_namespaces() -> bool:
    return _is_linux() and _runs("unshare", "--user", "--map-root-user", "true")


def _has_loop_devices() -> bool:
    tools = all(_has_command(name)() for name in ("e2fsck", "losetup", "mkfs.ext4", "mount"))
    return tools and _is_root() and _runs("losetup", "--find")


PARTS: Mapping[str, Part] = {
    f"airlox {old.VERSION}": Part(
        old.is_here, f"pip must be able to install airlox=={old.VERSION}, and uv must be on PATH"
    ),
    "a package index for uv": Part(
        old.can_fetch_packages, "uv must be able to fetch packages as an ordinary user"
    ),
    "a tmpfs at /dev/shm": Part(
        lambda: _runs("sh", "-c", "test $(stat -f -c %T /dev/shm) = tmpfs && test -w /dev/shm"),
        "mount -t tmpfs tmpfs /dev/shm",
    ),
    "bwrap": Part(_has_command("bwrap"), "apt-get install bubblewrap"),
    "a container engine": Part(
        engine.is_here,
        "as root: apt-get install docker.io debootstrap busybox-static iproute2 util-linux",
    ),
    "apparmor_parser": Part(_has_command("apparmor_parser"), "apt-get install apparmor"),
    "caddy": Part(_has_command("caddy"), "apt-get install caddy"),
    "curl": Part(_has_command("curl"), "apt-get install curl"),
    "fish": Part(_has_command("fish"), "apt-get install fish"),
    "gcc": Part(_has_command("gcc"), "apt-get install gcc"),
    "git": Part(_has_command("git"), "apt-get install git"),
    "ip": Part(_has_command("ip"), "apt-get install iproute2"),
    "linux": Part(_is_linux, "only Linux has what is tested here"),
    "nginx": Part(_has_command("nginx"), "apt-get install nginx"),
    "mandoc": Part(_has_command("mandoc"), "apt-get install mandoc"),
    "loop devices": Part(_has_loop_devices, "modprobe loop; apt-get install e2fsprogs mount"),
    "npm packages": Part(
        node_packages.is_here, "apt-get install npm; npm ci --prefix tests/mcp/node"
    ),
    "nsenter": Part(_has_command("nsenter"), "apt-get install util-linux"),
    "root": Part(_is_root, "run the tests as root"),
    "sshd": Part(_has_command("sshd"), "apt-get install openssh-server"),
    "systemd-analyze": Part(_has_command("systemd-analyze"), "apt-get install systemd"),
    "unshare": Part(_has_command("unshare"), "apt-get install util-linux"),
    "zsh": Part(_has_command("zsh"), "apt-get install zsh"),
    "user namespaces": Part(_has_user_namespaces, "this kernel or container forbids them"),
}
