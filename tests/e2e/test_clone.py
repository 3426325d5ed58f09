"""A person with a fresh clone: set-up and the main job from one command, as root and as a user."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import ordinary, parts

ROOT = Path(__file__).parents[2]
SETUP_S = 600


@pytest.fixture(params=["root", "user"])
def account(request: pytest.FixtureRequest) -> int | None:
    """The user to be, or None to stay who runs the tests."""
    if request.param == "root":
        return None
    parts.require("root")
    return ordinary.UID


@pytest.fixture
def clone(account: int | None) -> Iterator[Path]:
    parts.require("git")
    with ordinary.folder_of(os.geteuid() if account is None else account) as folder:
        target = folder / "airlox"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(target)], check=True, timeout=60)
        if account is not None:
            subprocess.run(["chown", "-R", f"{account}:{account}", folder], check=True, timeout=60)
        yield target


@pytest.mark.slow
@pytest.mark.timeout(SETUP_S + 60)
def test_make_demo(clone: Path, account: int | None) -> None:
    parts.require("user namespaces")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AIRLOX_")}
    if account is not None:
        # Its own home, and an interpreter that everybody can reach.
        environ |= {"HOME": str(clone.parent), "PATH": "/usr/local/sbin:/usr/bin:/bin"}
    done = subprocess.run(
        ["make", "demo", "DEMO=python -m pytest -q -p no:cacheprovider tests/protocol/test_sse.py"],
        cwd=clone,
        env=environ,
        user=account,
        group=account,
        extra_groups=None if account is None else [],
        capture_output=True,
        text=True,
        timeout=SETUP_S,
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    assert "completed · exit 0" in shown
    assert "sandbox local" in shown
    for name in ("airlox", "airlox-server"):
        assert (clone / ".venv" / "bin" / name).exists()
