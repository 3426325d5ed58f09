"""Before the first job: what cannot work is refused by name, what is over is cleared away."""

from __future__ import annotations

from pathlib import Path

import pytest

from airlox.client.cache import EXPIRED_KEPT_MS
from airlox.client.membership import now_ms
from airlox.errors import UsageError
from airlox.protocol.invite import owner_invite
from airlox.runner import start
from airlox.runner.options import RunnerOptions
from airlox.sandbox.sweep import lock_state

OPTIONS = RunnerOptions(name="box", cache_root=Path("/nonexistent"), host="lab", path="/bin")


def state(root: Path, session: str, expires_at_ms: int | None) -> Path:
    folder = root / session / "box"
    (folder / "workspaces").mkdir(parents=True)
    if expires_at_ms is not None:
        (folder / "expires").write_text(str(expires_at_ms))
    return folder


def test_an_owners_link_is_no_runners_link() -> None:
    invite = owner_invite("https://relay.example", b"\1" * 32)
    with pytest.raises(UsageError) as error, start.prepared(OPTIONS, invite, print):
        pass
    assert error.value.code == "wrong_role"


def test_state_of_expired_sessions_goes_and_no_other(tmp_path: Path) -> None:
    past, future = now_ms() - EXPIRED_KEPT_MS - 1000, now_ms() - EXPIRED_KEPT_MS + 60_000
    old, new = state(tmp_path, "ax_old", past), state(tmp_path, "ax_new", future)
    unknown, running = state(tmp_path, "ax_unknown", None), state(tmp_path, "ax_running", past)
    damaged = state(tmp_path, "ax_damaged", None)
    (damaged / "expires").write_text("soon")
    other = tmp_path / "runtimes/x"
    other.mkdir(parents=True)
    with lock_state(running):
        start._forget_expired(tmp_path)
    assert not old.parent.exists()
    for kept in (new, unknown, running, damaged, other):
        assert kept.exists()
