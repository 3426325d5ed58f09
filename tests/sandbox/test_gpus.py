"""Devices that stand in for GPUs, in a real sandbox: there with `--gpus`, absent without."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.errors import SandboxError
from airlox.sandbox.base import Limits, Mount, Plan, SandboxOptions
from airlox.sandbox.linux import gpus
from airlox.sandbox.linux.gpus import Found, Gpu
from airlox.sandbox.local import LocalSandbox
from support import parts

ZERO = os.makedev(1, 5)
PYTHON = f"{sys.base_prefix}/bin/python{sysconfig.get_python_version()}"
PROGRAM = """
import errno, fcntl, os, sys
try:
    device = os.open(sys.argv[1], os.O_RDWR)
except OSError as error:
    sys.exit(errno.errorcode[error.errno])
try:
    fcntl.ioctl(device, 0x46c8)
except OSError as error:
    print(os.read(device, 4).hex(), errno.errorcode[error.errno])
"""
WORKS = "00000000 ENOTTY\n"
"""It can be read, and told things: a device of zeros does not know them."""


@pytest.fixture
def device() -> Iterator[Path]:
    """A device in /dev that only root and its group may open, such as render nodes are."""
    parts.require("linux")
    parts.require("root")
    path = Path(f"/dev/airlox-test-{os.getpid()}")
    os.mknod(path, stat.S_IFCHR, ZERO)
    path.chmod(0o660)
    yield path
    path.unlink()


def run(tmp_path: Path, device: Path, wanted: str, builder: str) -> tuple[str, str, int]:
    """What the program prints and complains of, and how many GPUs the sandbox reports."""
    options = SandboxOptions(state_dir=tmp_path, gpus=wanted, builder=builder)
    sandbox = LocalSandbox(options)
    report = sandbox.probe()
    if report.refusal is not None:
        raise report.refusal
    owner = sandbox.owner()
    assert owner is not None
    work, out, home = (tmp_path / name for name in ("work", "out", "home"))
    for place in (work, out, home):
        place.mkdir()
        os.chown(place, *owner)
    tmp_path.chmod(0o711)
    printed = {1: b"", 2: b""}

    def take(stream: int, chunk: bytes) -> None:
        printed[stream] += chunk

    plan = Plan(
        argv=(PYTHON, "-I", "-c", PROGRAM, str(device)),
        env=(),
        cwd=sandbox.layout(work, out, home).work,
        work=work,
        out=out,
        home=home,
        limits=Limits(timeout_s=30, memory_bytes=256 << 20),
        toolchains=(Mount(Path(sys.base_prefix), sys.base_prefix),),
    )
    asyncio.run(sandbox.run(plan, on_output=take, cancel=asyncio.Event()))
    return printed[1].decode(), printed[2].decode(), report.gpus


@pytest.fixture
def offered(device: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = Found((Gpu("test", (str(device),)),))
    monkeypatch.setattr(gpus, "look", lambda: found)
    return device


def test_one_that_only_a_group_may_open(tmp_path: Path, offered: Path) -> None:
    assert run(tmp_path, offered, "all", "own") == (WORKS, "", 1)


def test_one_that_all_may_open(tmp_path: Path, offered: Path) -> None:
    offered.chmod(0o666)
    assert run(tmp_path, offered, "1", "own") == (WORKS, "", 1)


def test_absent_unless_asked_for(tmp_path: Path, offered: Path) -> None:
    offered.chmod(0o666)
    assert run(tmp_path, offered, "none", "own") == ("", "ENOENT\n", 0)


def test_more_than_there_are(tmp_path: Path, offered: Path) -> None:
    with pytest.raises(SandboxError) as refused:
        run(tmp_path, offered, "2", "own")
    assert refused.value.code == "gpus_missing"


def test_bubblewrap_cannot_open_for_another(tmp_path: Path, offered: Path) -> None:
    with pytest.raises(SandboxError) as refused:
        run(tmp_path, offered, "all", "bwrap")
    assert refused.value.code in ("gpus_need_own", "no_bwrap")
