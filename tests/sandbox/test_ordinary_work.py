"""What a sandbox must not stop: builds, debuggers, terminals, parallel work. Attack list 92.

Walls that stop honest programs would be taken down. A program that this machine lacks is passed
over unless `.ci/run` installs it.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from support import grounds, parts
from support.grounds import Ground

WORKS = """
import shutil, subprocess
def works(name, script, needs=None):
    if shutil.which(needs or name) is None:
        tell(f"{name}:absent")
        return
    done = subprocess.run(("sh", "-euc", script), stdin=-3, capture_output=True, timeout=90)
    tell(f"{name}:{'fine' if done.returncode == 0 else 'broken'}")
    if done.returncode:
        os.write(2, done.stdout + done.stderr)
"""
TOOLS = (
    WORKS
    + """
write("hello.c", b"int square(int n) { return n * n; } int main(void) { return square(3) - 9; }")
write("Makefile", b"all: one two\\none two:\\n\\tsleep 0.1; echo $@ > $@\\n")
git = "git -c user.name=a -c user.email=a@example.com"
works("git", f"git init -q repo; cd repo; echo x > x; git add x; {git} commit -qm x; git status")
works("make", "make -j2; test -s one -a -s two")
works("gcc", "gcc -g -pthread -o hello hello.c; ./hello")
works("gdb", "gdb -nx -batch -ex 'break square' -ex run -ex bt ./hello | grep -q 'square.*n=3'")
works("script", "script -qec 'tty' /dev/null | grep -q /dev/pts/")
works("tar", "tar -cf x.tar hello.c; tar -xf x.tar -C /tmp; cmp hello.c /tmp/hello.c")
works("npm", "npm init -y; npm pkg set scripts.x='node -e 0'; npm run x --offline")
works("perl", "perl -e 'pipe(A, B); fork or exit; wait; exit $?'")
works("java", "java -version")
"""
)
PYTHON = """
import asyncio, concurrent.futures as futures, multiprocessing, subprocess, threading, venv
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        tell(sum(pool.map(abs, [-1, -2, -3])))
    shared = multiprocessing.get_context("fork").Array("i", 8)
    tell(len(shared))
    with futures.ThreadPoolExecutor(4) as pool:
        tell(sum(pool.map(abs, range(-9, 1))))
    async def wake():
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        threading.Timer(0.05, loop.call_soon_threadsafe, (done.set,)).start()
        await done.wait()
        child = await asyncio.create_subprocess_exec("true")
        return await child.wait()
    tell(asyncio.run(wake()))
    venv.create("made", with_pip=False, symlinks=True)
    tell(subprocess.run(["made/bin/python", "-c", "import ssl, sqlite3, ctypes"]).returncode)
    from multiprocessing import shared_memory
    block = shared_memory.SharedMemory(create=True, size=4096)
    block.buf[0] = 7
    tell(block.buf[0])
    block.close()
    block.unlink()
"""


@pytest.mark.parametrize("ground", grounds.EACH, ids=str)
class TestEverywhere:
    def test_tools(self, ground: Ground) -> None:
        for part in ("gcc", "git"):
            parts.require(part)
        seen = ground.run(TOOLS, limits={"timeout_s": 80.0, "memory_bytes": 2048 << 20})
        told = dict(word.split(":") for word in seen.words)
        assert "broken" not in told.values(), (told, seen.errors)
        assert [told[name] for name in ("git", "make", "gcc", "script", "tar")] == ["fine"] * 5

    def test_parallel_python(self, ground: Ground) -> None:
        seen = ground.run(PYTHON)
        assert seen.words == ["6", "8", "45", "0", "0", "7"], seen.errors


class TestToolchainsOfAPerson:
    """Below a private home, which the builder `own` can show all the same."""

    OWN: ClassVar = grounds.LOCAL[0] if os.geteuid() == 0 else grounds.LOCAL[1]

    def test_pytest(self) -> None:
        code = f"""
import subprocess
write("test_it.py", b"def test_it(tmp_path): assert tmp_path.exists()")
command = ({sys.executable!r}, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
done = subprocess.run(command, capture_output=True)
os.write(2, done.stdout + done.stderr)
tell(done.returncode)
"""
        seen = self.OWN.run(code, toolchains=[sys.prefix])
        assert seen.words == ["0"], seen.errors

    @pytest.mark.slow
    def test_cargo(self) -> None:
        toolchain = _rust()
        if toolchain is None:
            pytest.skip("needs cargo: rustup installs it")
        code = (
            WORKS
            + f"""
os.environ["PATH"] += ":{toolchain}/bin"
os.environ["USER"] = "job"
works("cargo", "cargo new --vcs none it; cd it; cargo run --offline")
"""
        )
        limits = {"timeout_s": 80.0, "memory_bytes": 2048 << 20}
        seen = self.OWN.run(code, toolchains=[str(toolchain)], limits=limits)
        assert seen.words == ["cargo:fine"], seen.errors


def _rust() -> Path | None:
    """A toolchain of this machine, as rustup keeps them."""
    found = sorted((Path.home() / ".rustup/toolchains").glob("*/bin/cargo"))
    cargo = found[0] if found and shutil.which("cc") else None
    return cargo.parent.parent.resolve() if cargo else None
