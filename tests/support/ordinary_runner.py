"""A runner as a program of an ordinary user, where the tests run as root.

The user may not look into the tests' own Python, sources or temporary folders, so it gets a copy of
all it needs. What the interpreter is: the tests' own where the user can reach it, else the system's
if it is of the same version.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import airlox
from support.machines import RunnerProgram
from support.ordinary import UID, folder_of

_NEEDS = ("_cffi_backend", "cryptography", "msgspec", "nacl", "packaging", "pathspec", "zstandard")
_SYSTEM_PYTHON = f"/usr/bin/python3.{sys.version_info[1]}"


class OrdinaryRunner(RunnerProgram):
    """`home` belongs to the user and holds the copies; `options` are fields of RunnerOptions."""

    def __init__(self, invite: str, home: Path, **options: Any) -> None:
        super().__init__(invite, home / "cache", **options)
        self._environment |= {"PYTHONPATH": str(home / "lib"), "HOME": str(home), "TMPDIR": "/tmp"}
        self._argv[:2] = [*as_user(), open_python(), str(home / "runner_main.py")]


@contextmanager
def ordinary_home() -> Iterator[Path]:
    """A home folder of the user with the package and what it imports. Skips where none can be."""
    if open_python() is None:
        pytest.skip(f"needs {_SYSTEM_PYTHON}, for the tests' own Python is in a private folder")
    with folder_of(UID if os.geteuid() == 0 else os.geteuid()) as home:
        lib = home / "lib"
        no_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(airlox.__file__).parent, lib / "airlox", ignore=no_caches)
        for name in _NEEDS:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            origin = Path(spec.origin)
            if spec.submodule_search_locations:
                shutil.copytree(origin.parent, lib / name, ignore=no_caches)
            else:
                shutil.copy(origin, lib)
        shutil.copy(Path(__file__).with_name("runner_main.py"), home)
        yield home


def open_python() -> Any:
    """An interpreter that the user can start; None where there is none."""
    # A virtual environment of copies can be open to all while what it is based on is not.
    if os.geteuid() != 0 or all(map(_is_open_to_all, (sys.executable, os.__file__))):
        return sys.executable
    return _SYSTEM_PYTHON if os.path.exists(_SYSTEM_PYTHON) else None


def _is_open_to_all(program: str) -> bool:
    real = Path(program).resolve()
    return all(path.stat().st_mode & 0o001 for path in (*Path(program).parents, *real.parents))


def as_user() -> list[str]:
    """Words before a command that make it the user's."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--"]
