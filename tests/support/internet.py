"""A small internet of one test's own: a machine, and behind a line all the others.

The test's thread is the machine: what it opens and starts is in a network namespace with the
public-looking address `OWN`. The line leads to a namespace that has every other address, public
and not, and in which `outside.py` serves. The machine's resolver asks the name server there, for
programs that are started with `way_in`: those also see a resolv.conf of their own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from airlox.sandbox.linux import syscalls
from faults.campaign.processes import die_with_parent
from support.fronts import Files, make_certificate
from support.machines import Program
from support.outside import ECHO
from support.parts import require

OWN = "11.0.0.1"
OWN_6 = "2a0f:1::1"
NAME_SERVER = "11.0.0.53"
HOST = "11.1.0.1"
OTHER_HOST = "11.1.0.2"
HOST_6 = "2a0f:2::1"
PRIVATE = "10.9.9.9"
METADATA = "169.254.169.254"
_ADDRESSES = (NAME_SERVER, HOST, OTHER_HOST, PRIVATE, METADATA, "fd00:ec2::254", HOST_6)
NAME = "example.org"

_COMMAND_S = 60.0
_MARK = f"{NAME_SERVER} {ECHO}"
_HERE = "/proc/thread-self/ns/net"
_STAY = "echo; exec sleep 100000"


@dataclass(frozen=True)
class Internet:
    """What a test needs to know of it. `outside.said` has a line for each connection."""

    outside: Program
    files: Files
    way_in: tuple[str, ...]

    def connections(self) -> list[str]:
        """`ADDRESS PORT` of each connection that arrived so far, in order."""
        with socket.create_connection((NAME_SERVER, ECHO), _COMMAND_S):
            self.outside.wait_for(lambda line: line.strip() == _MARK, "mark")
        return [line for line in self.outside.said if line not in ("up", _MARK)]


@contextmanager
def internet(
    folder: Path, names: Mapping[str, Sequence[Sequence[str]]] | None = None
) -> Iterator[Internet]:
    """Be the machine for the length of the block. `names`: see `outside.py`."""
    for part in ("linux", "root", "ip", "unshare", "nsenter"):
        require(part)
    files = make_certificate(folder, NAME)
    with ExitStack() as stack:
        stack.enter_context(_own_namespace())
        far = stack.enter_context(_holder("unshare", "--net", "sh", "-c", _STAY))
        _lay_line(far)
        settings = {
            "names": {NAME: [[HOST]], **(names or {})},
            "name_server": NAME_SERVER,
            "certificate": str(files.certificate),
            "key": str(files.key),
        }
        program = str(Path(__file__).with_name("outside.py"))
        enter = ("nsenter", f"--net=/proc/{far}/ns/net")
        outside = Program([*enter, sys.executable, program, json.dumps(settings)])
        stack.push(outside.__exit__)
        outside.start()
        outside.wait_for(lambda line: line.strip() == "up", "outside")
        near = stack.enter_context(_holder(*_with_resolver(folder)))
        yield Internet(outside, files, ("nsenter", f"--mount=/proc/{near}/ns/mnt"))


def processes_in(network: str) -> list[str]:
    """Pids of all processes in a network namespace, named as the links in /proc name it."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/ns/net") == network:
                found.append(name)
        except OSError:  # it ended meanwhile
            continue
    return found


@contextmanager
def _own_namespace() -> Iterator[None]:
    before = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        yield
    finally:
        syscalls.enter_namespace(before, syscalls.CLONE_NEWNET)
        os.close(before)


@contextmanager
def _holder(*words: str) -> Iterator[int]:
    """The pid of a process that keeps namespaces alive."""
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, preexec_fn=die_with_parent
    )
    try:
        assert process.stdout is not None
        assert process.stdout.read(1), f"{words} did not work"
        yield process.pid
    finally:
        process.kill()
        process.communicate(timeout=_COMMAND_S)


def _lay_line(far: int) -> None:
    _ip("link", "set", "lo", "up")
    _ip("link", "add", "near", "type", "veth", "peer", "name", "far")
    _ip("link", "set", "far", "netns", str(far))
    inside = ("nsenter", f"--net=/proc/{far}/ns/net")
    for address, peer, device, way in (
        (OWN, OWN_6, "near", ()),
        ("11.0.0.2", "2a0f:1::2", "far", inside),
    ):
        _ip("addr", "add", f"{address}/24", "dev", device, way=way)
        _ip("addr", "add", f"{peer}/64", "dev", device, "nodad", way=way)
        _ip("link", "set", device, "up", way=way)
    _ip("link", "set", "lo", "up", way=inside)
    for address in _ADDRESSES:
        _ip("addr", "add", address, "dev", "lo", way=inside)
    _ip("route", "add", "default", "via", "11.0.0.2")
    _ip("-6", "route", "add", "default", "via", "2a0f:1::2")


def _with_resolver(folder: Path) -> list[str]:
    resolver, order = folder / "resolv.conf", folder / "nsswitch.conf"
    resolver.write_text(f"nameserver {NAME_SERVER}\noptions timeout:1 attempts:1\n")
    order.write_text("passwd: files\ngroup: files\nhosts: dns\n")
    resolver.chmod(0o644)
    order.chmod(0o644)
    lines = [f"mount --bind {resolver} /etc/resolv.conf"]
    if Path("/etc/nsswitch.conf").exists():
        lines.append(f"mount --bind {order} /etc/nsswitch.conf")
    words = " && ".join([*lines, _STAY])
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", words]


def _ip(*words: str, way: Sequence[str] = ()) -> None:
    done = subprocess.run([*way, "ip", *words], capture_output=True, text=True, timeout=_COMMAND_S)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
