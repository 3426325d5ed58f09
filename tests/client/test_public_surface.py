"""The package's public names: listed once, loaded on use, typed, cheap to import."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import airlox
from airlox import errors

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", airlox.__all__)
def test_every_name_loads_and_is_documented(name: str) -> None:
    value = getattr(airlox, name)
    assert value.__name__ == name
    assert value.__doc__


def test_every_error_is_one_of_ours() -> None:
    ours = {name for name in airlox.__all__ if hasattr(errors, name)}
    assert len(ours) >= 14
    assert all(issubclass(getattr(airlox, name), airlox.AirloxError) for name in ours)


def test_unknown_names() -> None:
    with pytest.raises(AttributeError):
        _ = airlox.nothing
    assert set(airlox.__all__) <= set(dir(airlox))


def test_the_version_is_the_distribution_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert airlox.__version__ == project["version"]


def test_the_package_is_typed() -> None:
    assert (Path(airlox.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import airlox, airlox.errors", ["msgspec", "http", "nacl", "cryptography", "json"]),
        ("from airlox import Session", ["asyncio", "requests", "PIL", "zstandard", "pathspec"]),
        ("import airlox.client.machines, airlox.client.cache", ["asyncio", "json", "PIL"]),
        (
            "import airlox.cli.run, airlox.client.machines, airlox.client.session",
            ["asyncio", "dataclasses", "json", "logging", "shutil", "subprocess", "zstandard"],
        ),
    ],
)
def test_imports_stay_lean(statement: str, absent: list[str]) -> None:
    code = f"{statement}\nimport sys\nprint([n for n in {absent!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().strip() == "[]"
