"""A container engine of the tests' own, started on first need and ended with them.

Debian's `dockerd` as root, with every folder, the pid file and the socket in one temporary folder,
in network and mount namespaces of its own: it reaches nothing, and leaves nothing behind. All
workers of one test session share it; whoever leaves last ends it, and a guard does where the last
one was killed.

No registry can be counted on, so its images are made here: a minimal Debian with Python
(`debootstrap`, a minute; kept in the temporary directory), one with a shell and no Python, one with
neither.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PYTHON = "airlox-test/python"
"""Debian with Python, from debootstrap."""
SHELL = "airlox-test/shell"
"""A shell and no Python."""
BARE = "airlox-test/bare"
"""One program, `/bin/echo`, and no shell."""
COMMANDS = ("debootstrap", "docker", "dockerd", "ip", "setsid", "unshare")
BRIDGE = "10.213.0.1"
"""The engine's own address for containers with a network."""

_OWN_NAMESPACES = ("unshare", "--net", "--mount", "--propagation", "slave")
_SUITE = "bookworm"
_PACKAGES = "python3"
_BUSYBOX = Path("/bin/busybox")
_DATA = "data"
_BOOTSTRAP_S = 400
_START_S = 60.0
_CALL_S = 120.0
_STEP_S = 0.05
_GUARD_S = 1.0
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def is_here() -> bool:
    """Whether an engine can be started on this machine, and images made for it."""
    tools = all(shutil.which(name, path=_PATH) for name in COMMANDS)
    return os.geteuid() == 0 and tools and _is_static(_BUSYBOX)


def _is_static(program: Path) -> bool:
    """Whether it needs no library: a root file system of its own has none."""
    return program.exists() and b"/ld-linux" not in program.read_bytes()


@dataclass(frozen=True)
class Engine:
    """A running engine in its folder."""

    folder: Path

    @property
    def host(self) -> str:
        """What `DOCKER_HOST` is to be."""
        return f"unix://{self.folder}/engine.sock"

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    def docker(self, *words: str, stdin: bytes | None = None) -> str:
        """Run a command on this engine; what it printed."""
        done = subprocess.run(
            [_docker(), *words],
            input=stdin,
            capture_output=True,
            timeout=_CALL_S,
            env={"DOCKER_HOST": self.host, "PATH": _PATH, "HOME": str(self.folder)},
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def containers(self) -> list[str]:
        """Names of all containers, whatever they do."""
        return self.docker("ps", "--all", "--format", "{{.Names}}").split()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o711)
        inner = (
            "ip link set lo up && exec dockerd --iptables=false --ip6tables=false --ip-masq=false "
            f"--bip={BRIDGE}/24 --host={self.host} --data-root={self.folder}/{_DATA} "
            f"--exec-root={self.folder}/exec --pidfile={self.folder}/pid"
        )
        # In a session of its own and nobody's child: it is found again by its pid file.
        with open(self.folder / "log", "ab") as log:
            subprocess.run(
                ["setsid", "--fork", *_OWN_NAMESPACES, "sh", "-c", inner],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": _PATH, "HOME": str(self.folder)},
                cwd=self.folder,
                check=True,
                timeout=_CALL_S,
            )
        deadline = time.monotonic() + _START_S
        while not self._answers():
            assert time.monotonic() < deadline, self._last_words()
            time.sleep(_STEP_S)
        (self.folder / "engine.sock").chmod(0o666)  # some tests run as an ordinary user

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it and wait until it is gone, with whatever it had started."""
        with suppress(OSError, ValueError):
            _end(self.pid, number)
        for pid in _processes_of(self.folder):
            _end(pid, signal.SIGKILL)

    def remove(self) -> None:
        """End it, and take away all that it left."""
        self.stop()
        deadline = time.monotonic() + _START_S
        while self.folder.exists():
            try:
                shutil.rmtree(self.folder)
            except OSError:  # the last of its processes is still at it
                assert time.monotonic() < deadline, f"{self.folder} cannot be removed"
                time.sleep(_STEP_S)
        shared = [Path("/run/docker/plugins"), Path("/run/docker"), Path("/sys/fs/cgroup/docker")]
        for left in (*shared, *Path("/sys/fs/cgroup").glob("*/docker")):
            with suppress(OSError):  # not there, or another engine uses it
                left.rmdir()

    def _answers(self) -> bool:
        try:
            self.docker("version")
        except (AssertionError, subprocess.TimeoutExpired):
            return False
        return True

    def _last_words(self) -> str:
        return (self.folder / "log").read_text()[-4000:]


def prepare() -> None:
    """Make what takes longer than a test may."""
    if is_here():
        _debian()


@contextmanager
def one_more() -> Iterator[Engine]:
    """An engine for one test alone, to be stopped and started."""
    engine = Engine(Path(tempfile.mkdtemp(prefix="airlox-engine-")))  # short, for its sockets
    engine.start()
    try:
        _make_images(engine)
        yield engine
    finally:
        engine.remove()


@cache
def runtime() -> str:
    """The runtime of sessions whose Python jobs the image can run."""
    version = "import sys; print(f'python3.{sys.version_info[1]}')"
    return use().docker("run", "--rm", "--network=none", PYTHON, "python3", "-c", version).strip()


def use() -> Engine:
    """The engine of this test session, with the images; started now if it does not run."""
    return _joined()[0]


def leave() -> None:
    """Be done with it. The last one ends it."""
    if _joined.cache_info().currsize:
        engine, users = _joined()
        _joined.cache_clear()
        os.close(users)
        _end_if_unused(engine)


def guard(folder: str) -> None:
    """End the engine once nobody uses it, also when its last user was killed: a program's life."""
    while not _end_if_unused(Engine(Path(folder))):
        time.sleep(_GUARD_S)


def _end_if_unused(engine: Engine) -> bool:
    """Whether it is gone."""
    with _locked(engine.folder.with_suffix(".lock")):
        if not engine.folder.exists():
            return True
        users = os.open(engine.folder.with_suffix(".users"), os.O_RDONLY)
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(users)
        engine.remove()
        engine.folder.with_suffix(".users").unlink()
        engine.folder.with_suffix(".lock").unlink()
    return True


@cache
def _joined() -> tuple[Engine, int]:
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(tempfile.gettempdir()) / f"airlox-engine-{session[:12]}"
    engine = Engine(folder)
    with _locked(folder.with_suffix(".lock")):
        users = os.open(folder.with_suffix(".users"), os.O_CREAT | os.O_RDONLY, 0o600)
        fcntl.flock(users, fcntl.LOCK_SH)  # given back with this process, however it ends
        if not (folder / "pid").exists():
            engine.start()
            _make_images(engine)
            _start_guard(folder)
    return engine, users


def _start_guard(folder: Path) -> None:
    program = f"from support.engine import guard; guard({str(folder)!r})"
    subprocess.run(
        ["setsid", "--fork", sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": _PATH, "PYTHONPATH": str(Path(__file__).parents[1])},
        cwd="/",
        check=True,
        timeout=_CALL_S,
    )


class _locked:
    """Holds a file's lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._file = open(self._path, "w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _make_images(engine: Engine) -> None:
    engine.docker("import", str(_debian()), PYTHON)
    shell = _archive({"bin/busybox": _BUSYBOX.read_bytes(), "bin/sh": "busybox"})
    engine.docker("import", "-", SHELL, stdin=shell)
    bare = _archive({"bin/echo": _BUSYBOX.read_bytes()})
    engine.docker("import", "-", BARE, stdin=bare)


def _archive(files: dict[str, bytes | str]) -> bytes:
    """A root file system: contents, or where a link leads."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode = 0o755
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _debian() -> Path:
    """The archive of a minimal Debian, made once for what is in it."""
    wanted = json.dumps([_SUITE, _PACKAGES, platform.machine()])
    key = hashlib.sha256(wanted.encode()).hexdigest()[:12]
    kept = Path(tempfile.gettempdir()) / f"airlox-tests-debian-{key}.tar"
    with _locked(kept.with_suffix(".lock")):
        if not kept.exists():
            _bootstrap(kept)
    return kept


def _bootstrap(archive: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="airlox-debian-"))
    try:
        words = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _SUITE]
        done = subprocess.run(
            [*words, str(folder / "root")],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_BOOTSTRAP_S,
            env={"PATH": _PATH, **_proxies()},
        )
        assert done.returncode == 0, done.stdout.decode()[-2000:]
        for name in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
            shutil.rmtree(folder / "root" / name)
        made = folder / "made.tar"
        tar = ["tar", "--numeric-owner", "-C", str(folder / "root"), "-cf", str(made), "."]
        subprocess.run(tar, check=True, timeout=_CALL_S)
        shutil.move(made, archive)
    finally:
        shutil.rmtree(folder)


def _proxies() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name.lower().endswith("_proxy")}


def _docker() -> str:
    """The command that comes with the engine, before others that may be on PATH."""
    return "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else "docker"


def _end(pid: int, number: int) -> None:
    """Signal a process, by force if it does not end, and wait until it is gone."""
    deadline = time.monotonic() + _START_S
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        while _is_alive(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(_STEP_S)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def _processes_of(folder: Path) -> list[int]:
    """What the engine started and left: their command lines name its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and os.fsencode(folder) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]
