"""Machines: kept private, one file each, no name taken over, secrets never shown."""

from __future__ import annotations

import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airlox.client.machines import Machine, Machines
from airlox.errors import StorageError, UsageError


def machine(name: str = "box", **changes: object) -> Machine:
    values: dict[str, object] = {
        "name": name,
        "session_id": "ax_" + "a" * 26,
        "relay": "https://relay.example",
        "owner_invite": "https://relay.example/s/ax#ok=SECRET",
        "sender_invite": "https://relay.example/s/ax#k=SECRET",
        "created_at_ms": 1,
    }
    return Machine(**(values | changes))  # type: ignore[arg-type]


def test_a_machine_is_kept_private(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    machines.add(machine(runner="key", expires_at_ms=5))
    path = tmp_path / "machines" / "box.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert Machines(tmp_path).get("box") == machine(runner="key", expires_at_ms=5)


def test_secrets_do_not_show() -> None:
    assert "SECRET" not in repr(machine())


def test_a_name_is_not_taken_over(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    machines.add(machine())
    with pytest.raises(UsageError) as caught:
        machines.add(machine(relay="https://other.example"))
    assert caught.value.code == "machine_exists"
    assert machines.get("box").relay == "https://relay.example"


def test_of_several_that_take_a_name_at_once_one_has_it(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)

    def take(number: int) -> bool:
        barrier.wait(60)
        try:
            Machines(tmp_path).add(machine(created_at_ms=number))
        except UsageError as error:
            return error.code != "machine_exists"
        return True

    with ThreadPoolExecutor(8) as pool:
        took = [*pool.map(take, range(8))]
    assert took.count(True) == 1
    assert Machines(tmp_path).get("box").created_at_ms == took.index(True)


def test_another_session_takes_the_place_of_the_one_that_is_known(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    old, new = machine(last_job="j"), machine(session_id="ax_" + "b" * 26, job_limits={"a": 1})
    machines.add(old)
    machines.renew(old, new)
    assert machines.get("box") == new
    path = tmp_path / "machines" / "box.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(UsageError) as caught:
        machines.renew(old, machine(session_id="ax_" + "c" * 26))
    assert caught.value.code == "machine_changed"
    assert machines.get("box") == new
    machines.remove("box")
    with pytest.raises(UsageError, match="no machine"):
        machines.renew(new, old)


def test_all_of_them_by_name(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    assert machines.all() == []
    for name in ("pool", "box", "a.b-c_d"):
        machines.add(machine(name))
    (tmp_path / "machines" / "README").write_text("x")
    (tmp_path / "machines" / "Upper.json").write_text("x")
    assert [found.name for found in machines.all()] == ["a.b-c_d", "box", "pool"]


def test_update(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    machines.add(machine())
    assert machines.update("box", last_job="j", runner="k").last_job == "j"
    assert machines.get("box") == machine(last_job="j", runner="k")


def test_remove(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    machines.add(machine())
    machines.remove("box")
    with pytest.raises(UsageError) as caught:
        machines.remove("box")
    assert caught.value.code == "no_machine"
    machines.add(machine())


@pytest.mark.parametrize("act", ["get", "remove", "update"])
def test_an_unknown_machine_is_named_with_the_known_ones(tmp_path: Path, act: str) -> None:
    machines = Machines(tmp_path)
    with pytest.raises(UsageError, match="airlox machine add"):
        getattr(machines, act)("other")
    machines.add(machine())
    with pytest.raises(UsageError, match="known: box"):
        getattr(machines, act)("other")


@pytest.mark.parametrize("name", ["", "../x", "a/b", "Box", ".hidden", "a" * 64, "a\nb", "x\0y"])
def test_names_stay_within_the_folder(tmp_path: Path, name: str) -> None:
    machines = Machines(tmp_path)
    for act in (machines.get, machines.remove, machines.update):
        with pytest.raises(UsageError) as caught:
            act(name)
        assert caught.value.code == "bad_name"
    with pytest.raises(UsageError):
        machines.add(machine(name))


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 50_000])
def test_a_damaged_file_is_named_with_its_remedy(tmp_path: Path, content: bytes) -> None:
    machines = Machines(tmp_path)
    machines.add(machine())
    path = tmp_path / "machines" / "box.json"
    path.write_bytes(content)
    with pytest.raises(StorageError) as caught:
        machines.get("box")
    assert caught.value.code == "damaged"
    # it does not hide the others
    machines.add(machine("other"))
    assert [found.name for found in machines.all()] == ["other"]
    assert str(path) in str(caught.value)


def test_a_file_under_another_name_is_no_machine(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    machines.add(machine())
    path = tmp_path / "machines" / "box.json"
    path.rename(path.with_name("other.json"))
    with pytest.raises(UsageError):
        machines.get("other")
