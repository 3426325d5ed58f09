"""What surrounds the processes of a campaign: networks that break, disks that fill, wrong clocks.

Networks and disks need root and are made in namespaces of the campaign's own (see `enter`), so
they end with it whatever happens. A network is a veth pair between the relay's side, which is the
campaign's own namespace, and that of a nameless other; it is cut by taking its near end down, so
that packets vanish without a word. The relay's address is 127.0.0.1 for everybody, since links
use plain HTTP to no other; here it belongs to the bridge. A clock is a file (see `clocked.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .processes import die_with_parent

INSIDE = "TEST_CAMPAIGN_INSIDE"
RELAY_ADDRESS = "127.0.0.1"
COMMAND_S = 60.0

_LOOPBACK = (
    "ip link set lo up && echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet && "
    "ip addr del 127.0.0.1/8 dev lo"
)


def enter() -> bool:  # noqa: RET503 - execvp does not come back
    """Go on in namespaces of our own where that is possible. False where it is not."""
    if os.environ.get(INSIDE):
        return True
    words = ["unshare", "--net", "--mount", "--propagation", "private"]
    if not _may_enter(words):
        return False
    os.environ[INSIDE] = "1"
    again = [sys.executable, "-m", "faults.campaign", *sys.argv[1:]]
    os.execvp("unshare", [*words, *again])


def _may_enter(words: Sequence[str]) -> bool:
    tools = all(shutil.which(tool) for tool in ("ip", "unshare", "nsenter", "mount"))
    if sys.platform != "linux" or os.geteuid() != 0 or not tools:
        return False
    tried = subprocess.run([*words, "true"], capture_output=True, timeout=COMMAND_S)
    return tried.returncode == 0


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


class Network:
    """A bridge on the relay's side, and namespaces that are tied to it."""

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []
        _run("sh", "-c", _LOOPBACK)
        _run("ip", "link", "add", "br0", "type", "bridge")
        _run("ip", "addr", "add", f"{RELAY_ADDRESS}/24", "dev", "br0")
        _run("ip", "link", "set", "br0", "up")

    def add(self) -> Line:
        """A new namespace with a line to the relay."""
        number = len(self._holders) + 2
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec sleep 100000"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        holder.stdout.read(1)  # the namespace is there
        holder.stdout.close()
        way_in = ("nsenter", f"--net=/proc/{holder.pid}/ns/net")
        near, far = f"near{number}", f"far{number}"
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        _run("ip", "link", "set", far, "netns", str(holder.pid))
        _run("ip", "link", "set", near, "master", "br0", "up")
        _run(*way_in, "sh", "-c", _LOOPBACK)
        _run(*way_in, "ip", "addr", "add", f"127.0.0.{number}/24", "dev", far)
        _run(*way_in, "ip", "link", "set", far, "up")
        return Line(near, way_in)

    @property
    def pids(self) -> set[int]:
        """The processes that hold the namespaces."""
        return {holder.pid for holder in self._holders}

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait(COMMAND_S)


class Line:
    """The line of one namespace. `way_in` are the words that start a command in there."""

    def __init__(self, near: str, way_in: Sequence[str]) -> None:
        self._near = near
        self.way_in = way_in

    def cut(self) -> None:
        _run("ip", "link", "set", self._near, "down")

    def mend(self) -> None:
        _run("ip", "link", "set", self._near, "up")


class Disk:
    """A small file system in memory."""

    def __init__(self, mount: Path, megabytes: int) -> None:
        self.mount = mount
        mount.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(mount))

    def fill(self) -> None:
        """Leave no byte free."""
        with suppress(OSError), (self.mount / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(bytes(1 << 20)):
                pass

    def empty(self) -> None:
        (self.mount / "ballast").unlink(missing_ok=True)

    def lock(self) -> bool:
        """Make it read-only; False while somebody has a file open for writing."""
        with suppress(RuntimeError):
            _run("mount", "-o", "remount,ro", str(self.mount))
            return True
        return False

    def unlock(self) -> None:
        _run("mount", "-o", "remount,rw", str(self.mount))

    def close(self) -> None:
        _run("umount", "-l", str(self.mount))


class Clock:
    """How far the wall clock of one process is ahead (see `clocked.py`)."""

    OFFSETS_S = (-172_800, -300, 0, 300, 172_800)
    SMALL_S = (-300, 0, 300)

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, offset_s: int) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(str(offset_s))
        fresh.replace(self.path)
