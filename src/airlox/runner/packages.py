"""The Python that jobs run on: found or made, with exactly the session's packages.

In this order: the interpreter the operator named (`--python`), one of the session's version that
is on the machine, one that uv knows. A session with packages gets an environment made by uv, on
first need, kept under a name that says what is in it; without packages the interpreter itself
will do.

Rules
- `check` is for the join: it says at once whether Python jobs can be taken, and what to do.
- Packages come as wheels only: building one would run code of strangers outside the sandbox. For
  the same reason an environment's own interpreter is never started outside: what is installed is
  read from its files.
- An environment without its `.ready` marker was not finished and is made anew.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from airlox import safefs
from airlox.client.filelock import file_lock
from airlox.errors import EncodingError, JobRefused, UsageError
from airlox.protocol import canonical
from airlox.protocol.digest import sha256_hex
from airlox.protocol.manifest import JobLimits, parse_package
from airlox.sandbox.base import Mount
from airlox.sandbox.collect import remove_tree

LOOK_S: Final = 20.0
"""Time for an interpreter to say what it is."""
VENV_S: Final = 60.0
INSTALL_S: Final = 900.0
FETCH_S: Final = 300.0
NO_RUNTIME: Final = "no_runtime"

_READY: Final = ".ready"
_SYSTEM_ROOTS: Final = ("/usr", "/opt", "/nix/store")
"""Every sandbox shows these anyway."""
_ASK: Final = """
import json, os, sys, sysconfig
print(json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3],
    "executable": getattr(sys, "_base_executable", None) or sys.executable,
    "prefixes": [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix],
    "site": [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")],
}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python for jobs. `mounts` is what it needs of the machine; `source` says where it is
    from: `--python`, `system` or `uv-runtime`."""

    path: Path
    version: str
    source: str
    mounts: tuple[Mount, ...]
    packages: Mapping[str, str]


class _Found(msgspec.Struct, frozen=True):
    """What an interpreter says of itself."""

    version: str
    executable: str
    prefixes: tuple[str, ...]
    site: tuple[str, ...]


class PythonSupply:
    """Finds or makes the Python of one session. Blocking; safe to share between threads."""

    def __init__(
        self, wanted: JobLimits, *, pins: bool, python: Path | None, runtimes: Path, path: str
    ) -> None:
        """`runtimes` is a private folder for environments, `path` where commands are looked up."""
        self._runtime = wanted.runtime
        self._packages = tuple(parse_package(entry, pins=pins) for entry in wanted.packages)
        self._python = python
        self._runtimes = runtimes
        self._path = path
        self._made: Interpreter | None = None

    def check(self, *, fetch: bool) -> str:
        """The version of Python that jobs will get.

        With `fetch` one that is missing is fetched by uv, which may take minutes. Raises
        UsageError: `no_runtime`, or what the operator's interpreter lacks.
        """
        if self._python is not None:
            return self._named().version
        found = self._on_machine() or (self._fetch() if fetch else None)
        if found is None:
            raise UsageError(
                f"this machine has no {self._runtime}, which the session's Python jobs need",
                code=NO_RUNTIME,
                hint=f"install it (`uv python install {self._number}`), or name one by --python",
            )
        if self._packages and self._uv() is None:
            raise UsageError(
                "the session's packages need uv, which this machine lacks",
                code=NO_RUNTIME,
                hint="install it (`pip install uv`), or name an interpreter that has the packages "
                "by --python",
            )
        return found.version

    def get(self) -> Interpreter:
        """The interpreter, made now if it must be. Raises JobRefused."""
        if self._made is None:
            try:
                self._made = self._named() if self._python is not None else self._make()
            except UsageError as error:
                raise JobRefused(error.message, code=error.code, hint=error.hint) from error
        return self._made

    @property
    def _number(self) -> str:
        return self._runtime.removeprefix("python")

    # ── an interpreter the operator named ───────────────────────────────────────────────────

    def _named(self) -> Interpreter:
        assert self._python is not None
        found = _ask(self._python)
        if found is None:
            raise UsageError(
                "--python does not start as a Python interpreter",
                code=NO_RUNTIME,
                hint="name an executable such as .venv/bin/python",
            )
        if not self._is_wanted(found):
            raise UsageError(
                f"--python is {found.version}, but the session pins {self._runtime}",
                code=NO_RUNTIME,
                hint=f"name an interpreter of version {self._number}",
            )
        installed = _installed(found.site, [name for name, _ in self._packages])
        for name, pin in self._packages:
            check_pin("--python", name, pin, installed.get(name))
        mounts = _mounts(self._python, found.prefixes)
        return Interpreter(self._python.absolute(), found.version, "--python", mounts, installed)

    # ── one that is here, or that uv brings ─────────────────────────────────────────────────

    def _on_machine(self) -> _Found | None:
        candidates = [sys.executable, shutil.which(self._runtime, path=self._path)]
        for candidate in candidates:
            if candidate and (found := self._usable(candidate)):
                return found
        uv = self._uv()
        if uv is None:
            return None
        said = _run((uv, "python", "find", "--no-python-downloads", self._number), LOOK_S)
        return self._usable(said.strip()) if said else None

    def _fetch(self) -> _Found | None:
        uv = self._uv()
        if uv is None or _run((uv, "python", "install", "--quiet", self._number), FETCH_S) is None:
            return None
        return self._on_machine()

    def _usable(self, candidate: str) -> _Found | None:
        found = _ask(Path(candidate))
        return found if found is not None and self._is_wanted(found) else None

    def _is_wanted(self, found: _Found) -> bool:
        return found.version.rpartition(".")[0] == self._number

    def _make(self) -> Interpreter:
        found = self._on_machine()
        if found is None:
            self.check(fetch=False)
            raise AssertionError("check raises where nothing is found")
        base = Path(found.executable)
        mounts = _mounts(base, found.prefixes[1::2])
        if not self._packages:
            return Interpreter(base, found.version, "system", mounts, {})
        folder = self._environment(base)
        installed = _installed(_site_of(folder, self._runtime), [n for n, _ in self._packages])
        mounts = (Mount(folder, str(folder)), *mounts)
        return Interpreter(folder / "bin/python", found.version, "uv-runtime", mounts, installed)

    def _environment(self, base: Path) -> Path:
        """The folder of an environment with the packages, made if it is not ready."""
        wanted = [name + pin for name, pin in self._packages]
        real = os.path.realpath(base)
        key = sha256_hex(json.dumps([self._runtime, real, sorted(wanted)]).encode())[:16]
        safefs.make_private_dir(self._runtimes)
        folder = self._runtimes / key
        with file_lock(os.fspath(self._runtimes / f"{key}.lock"), f"the runtime {key}", INSTALL_S):
            if not (folder / _READY).exists():
                remove_tree(folder)
                self._install(folder, real, wanted)
                safefs.write_private(folder / _READY, b"")
        return folder

    def _install(self, folder: Path, base: str, wanted: list[str]) -> None:
        uv = self._uv()
        if uv is None:
            self.check(fetch=False)
            raise AssertionError("check raises where uv is missing")
        run_step("uv venv", (uv, "venv", "--quiet", "--python", base, str(folder)), VENV_S)
        python = str(folder / "bin/python")
        command = (uv, "pip", "install", "--quiet", "--only-binary", ":all:", "--python", python)
        run_step("uv pip install", (*command, *wanted), INSTALL_S)

    def _uv(self) -> str | None:
        return find_uv(self._path)


def find_uv(path: str) -> str | None:
    """The program uv: on `path`, else beside the interpreter that we run on."""
    beside = os.path.join(sysconfig.get_path("scripts"), "uv")
    return shutil.which("uv", path=path) or (beside if os.path.exists(beside) else None)


def run_step(name: str, command: tuple[str, ...], timeout_s: float) -> None:
    """Run one step of installing packages. Raises JobRefused with uv's last words."""
    try:
        done = _completed(command, timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _not_made(f"{name}: {type(error).__name__}") from None
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _not_made(f"{name}: {' '.join(lines[-3:])[:600]}")


def _ask(python: Path) -> _Found | None:
    """What the interpreter says of itself; None when it is none or does not answer."""
    said = _run((str(python), "-I", "-c", _ASK), LOOK_S)
    try:
        return canonical.decode_loose(said, _Found, "word of an interpreter") if said else None
    except EncodingError:
        return None


def _completed(command: tuple[str, ...], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        env=_environ(),
        check=False,
    )


def _run(command: tuple[str, ...], timeout_s: float) -> str | None:
    """What a command of the operator's machine prints; None when it fails."""
    try:
        done = _completed(command, timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _not_made(why: str) -> JobRefused:
    return JobRefused(
        f"the session's Python packages could not be installed: {why}",
        code="packages_unavailable",
        hint="the operator of the runner can say more; only packages with wheels can be used",
    )


def _environ() -> dict[str, str]:
    """The runner's environment without its own settings, among which is the invite."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AIRLOX_")}


def _installed(site: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """The versions of those of `names` that the folders of packages hold."""
    wanted = set(names)
    found = {}
    for package in metadata.distributions(path=list(dict.fromkeys(site))):
        name = (package.metadata["Name"] or "").lower().replace("_", "-").replace(".", "-")
        if name in wanted:
            found[name] = package.version
    return found


def _site_of(environment: Path, runtime: str) -> tuple[str, ...]:
    return tuple(str(environment / lib / runtime / "site-packages") for lib in ("lib", "lib64"))


def check_pin(where: str, name: str, pin: str, version: str | None) -> None:
    """Raises UsageError where `where` (`--python`, say) has not what the session pins."""
    from packaging.specifiers import SpecifierSet

    if version is None:
        raise UsageError(
            f"{where} lacks the package {name}, which the session allows",
            code="package_missing",
            hint=f"install it there: pip install '{name}{pin}'",
        )
    if pin and not SpecifierSet(pin).contains(version, prereleases=True):
        raise UsageError(
            f"{where} has {name} {version}, but the session pins {name}{pin}",
            code="package_version",
            hint=f"install that version there: pip install '{name}{pin}'",
        )


def _mounts(python: Path, prefixes: Iterable[str]) -> tuple[Mount, ...]:
    """What must be visible for the interpreter to start: its prefixes, by name and for real."""
    roots = dict.fromkeys(prefixes)
    link = python.absolute()
    for _ in range(10):  # every link on the way to the real executable must be there too
        roots.setdefault(str(link.parent.parent))
        if not link.is_symlink():
            break
        link = Path(os.path.normpath(link.parent / link.readlink()))
    roots.update(dict.fromkeys(os.path.realpath(root) for root in tuple(roots)))
    return tuple(Mount(Path(root), root) for root in roots if _is_toolchain(root))


def _is_toolchain(root: str) -> bool:
    """Whether a prefix is a folder of its own: not a system folder, and not one that holds more
    than an interpreter."""
    path = os.path.normpath(root)
    if any(path == system or path.startswith(system + "/") for system in _SYSTEM_ROOTS):
        return False
    home = os.path.realpath(os.path.expanduser("~"))
    broad = path in ("/", "/home", "/root", "/var", "/tmp") or home == path
    return not broad and not home.startswith(path + "/") and os.path.isdir(path)
