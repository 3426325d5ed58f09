"""Jobs through the tools: handles for long ones, live output, cancelling, repeating, files."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox import Session
from airlox.client.machines import Machine, Machines
from airlox.errors import AirloxError, JobRefused, TreeError, UsageError
from airlox.mcp.use import HIDDEN
from support.machines import RelayProgram, RunnerProgram
from support.tools import Bench, RecordingCaller, Shape
from support.trees import git

WAIT_S = 60
LIMITS = {
    "kinds": ["python", "shell"],
    "approve_runners": False,
    "return_out": True,
    "runtime": f"python{sys.version_info[0]}.{sys.version_info[1]}",
}


class Place:
    """A session with a runner, joined by a bench as its sender."""

    def __init__(self, owner: Session, bench: Bench, handle: str) -> None:
        self.owner = owner
        self.bench = bench
        self.handle = handle

    def run(self, script: str, caller: RecordingCaller | None = None, **more: Any) -> Shape:
        given: Shape = {"session": self.handle, "wait_s": WAIT_S, **more}
        return self.bench.call("run", caller, script=script, **given)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("jobs")
    with (
        RelayProgram(folder / "relay") as relay,
        Session.create(
            relay.url, mode="execute", job_limits=LIMITS, cache_dir=folder / "owner"
        ) as owner,
        RunnerProgram(
            owner.invites["runner"], folder / "runner", concurrency=2, python=sys.executable
        ) as runner,
        Bench(folder) as bench,
    ):
        runner.note("ready")
        joined = bench.call("join_session", invite=owner.invites["sender"])
        assert joined["role"] == "sender"
        yield Place(owner, bench, joined["session"])


def test_a_long_job_gives_a_handle_and_get_result_goes_on(place: Place, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"echo begun; while [ ! -e {gate} ]; do sleep 0.05; done; echo ended; exit 3"
    begun = place.run(script, wait_s=0)
    assert begun["status"] in ("sending", "assigned", "running")
    assert "exit_code" not in begun
    assert {"session", "job"} <= set(begun)
    heard = RecordingCaller()
    heard.on_progress = lambda text: gate.touch()
    ended = place.bench.call("get_result", heard, job=begun["job"], wait_s=WAIT_S)
    assert (ended["status"], ended["exit_code"]) == ("completed", 3)
    assert ended["stdout"] == "begun\nended\n"
    assert ended["session"] == place.handle
    assert ended["untrusted"]
    assert ended["env"]["platform"]
    assert place.bench.call("get_result", job=ended["job"])["exit_code"] == 3


def test_what_it_prints_is_told_while_it_runs(place: Place, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    caller = RecordingCaller()
    caller.on_progress = lambda text: gate.touch()
    script = f"printf '10%%\\r90%%\\n'; while [ ! -e {gate} ]; do sleep 0.05; done; echo end"
    ended = place.run(script, caller)
    assert caller.told == ["90%", "end"]
    assert ended["stdout"] == "90%\nend\n"


def test_an_owners_key_is_hidden_in_what_is_told(place: Place, tmp_path: Path) -> None:
    owner = place.owner.invites["owner"]
    with Bench(tmp_path) as bench:
        bench.call("join_session", invite=owner)
        caller = RecordingCaller()
        answer = bench.call("run", caller, command=["echo", owner], wait_s=WAIT_S)
    assert HIDDEN in answer["stdout"]
    assert [HIDDEN in text for text in caller.told] == [True]
    assert not [said for said in (*bench.said, *caller.told) if owner[-40:] in said]


def test_cancelling_the_call_stops_the_job(place: Place) -> None:
    caller = RecordingCaller()
    caller.on_progress = lambda text: caller.cancel()
    answer = place.run("echo begun; sleep 600", caller)
    ended = place.bench.call("get_result", job=answer["job"], wait_s=WAIT_S)
    assert ended["status"] == "cancelled"
    assert ended["signed"]


def test_a_repeated_call_is_one_job(place: Place) -> None:
    known = len(place.owner.jobs())
    jobs: list[str] = []

    def call() -> None:
        jobs.append(place.run("echo once", RecordingCaller(key="k-1"))["job"])

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(jobs) == 3
    assert len(set(jobs)) == 1
    assert len(place.owner.jobs()) == known + 1
    with pytest.raises(UsageError) as refusal:
        place.run("echo another", RecordingCaller(key="k-1"))
    assert refusal.value.code == "key_reused"


def test_python_with_files_and_out_files(place: Place) -> None:
    (place.bench.work / "numbers.md").write_text("1\n2\n")
    sent = place.bench.call("send_file", path="numbers.md", session=place.handle)
    code = (
        "import os, pathlib\n"
        "out = pathlib.Path(os.environ['AIRLOX_OUT'])\n"
        "total = sum(map(int, open('numbers.md').read().split()))\n"
        "(out / 'sum.txt').write_text(f'{total}\\n')\n"
        "(out / 'raw.bin').write_bytes(bytes(4))\n"
        "(out / 'deep').mkdir()\n"
        "(out / 'deep/long.txt').write_text('x' * 100_000)\n"
    )
    given: Shape = {"code": code, "filename": "sum_up.py", "files": [sent["item"]]}
    answer = place.bench.call("run_python", session=place.handle, wait_s=WAIT_S, **given)
    assert answer["exit_code"] == 0, answer
    assert answer["out_text"] == {"sum.txt": "3\n"}
    for _ in range(2):
        got = place.bench.call("get_result", job=answer["job"], save_dir="results")
        below = [Path(path).relative_to(place.bench.work / "results") for path in got["saved"]]
        inner = {path.relative_to(path.parts[0]).as_posix() for path in below[1:]}
        assert inner == {"sum.txt", "raw.bin", "deep/long.txt"}
        assert {path.parts[0] for path in below[1:]} == {below[1].parts[0]}
    zips = sorted(path.name for path in (place.bench.work / "results").glob("*.zip"))
    assert zips == ["out-1.zip", "out.zip"]


def test_a_machine_is_named_and_its_session_is_nobodys_default(place: Place) -> None:
    owner = place.owner
    machine = Machine(
        name="gpu-box",
        session_id=owner.session_id,
        relay=owner.relay,
        owner_invite=owner.invites["owner"],
        sender_invite=owner.invites["sender"],
        created_at_ms=owner.manifest.created_at_ms,
        runner=owner.runners()[0].participant_pub,
    )
    folder = place.bench.work.parent / "elsewhere"
    with Bench(folder) as bench:
        Machines(folder / "cache").add(machine)
        answer = bench.call("run", machine="gpu-box", command=["echo", "a  b"], wait_s=WAIT_S)
        assert answer["stdout"] == "a  b\n"
        assert Machines(folder / "cache").get("gpu-box").last_job == answer["job"]
        assert bench.call("get_result", job=answer["job"])["exit_code"] == 0
        with pytest.raises(UsageError) as refusal:
            bench.call("list_runners")
        assert answer["session"] in str(refusal.value.hint)
        with pytest.raises(JobRefused) as refused:
            bench.call("run", machine="gpu-box/no-such-label", command=["true"])
        assert "list_runners" in str(refused.value.hint)
        with pytest.raises(UsageError) as unknown:
            bench.call("run", machine="nope", command=["true"])
        assert "airlox machine add" in str(unknown.value.hint)


# -- trees ------------------------------------------------------------------------------------


@pytest.fixture
def tree(place: Place, request: pytest.FixtureRequest) -> Path:
    folder: Path = place.bench.work / request.node.name
    folder.mkdir()
    (folder / "a.txt").write_text("a\n")
    (folder / "b.csv").write_text("b\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    return folder


def test_a_tree_goes_along_without_what_is_left_out(place: Place, tree: Path) -> None:
    answer = place.run("ls; touch kept", tree_dir=str(tree), tree_exclude=["*.csv"])
    assert answer["stdout"] == "a.txt\n"
    assert (answer["tree_sent"]["files"], answer["tree_sent"]["bytes"]) == (1, 2)
    assert answer["tree_sent"]["left_out"] == ["b.csv: excluded by tree_exclude"]
    assert place.run("ls", tree_dir=tree.name)["stdout"] == "a.txt\nb.csv\nkept\n"
    assert place.run("ls", tree_dir=tree.name, fresh=True)["stdout"] == "a.txt\nb.csv\n"


def test_no_tree_from_outside_goes(place: Place, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret\n")
    link = place.bench.work / "link"
    link.symlink_to(tmp_path)
    for outside in (str(tmp_path), "link", f"{tree.name}/..", "..", "/", "/proc/self/cwd"):
        with pytest.raises(AirloxError) as refusal:
            place.run("ls", tree_dir=outside)
        assert refusal.value.code in ("path_outside", "not_regular"), outside


def test_a_tree_whose_top_is_outside_is_not_sent(place: Place, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "secret.txt").write_text("secret\n")
    (tmp_path / "in").mkdir()
    with Bench(tmp_path / "desk", allow_dirs=(str(tmp_path / "in"),)) as bench:
        bench.call("join_session", invite=place.owner.invites["sender"])
        with pytest.raises(UsageError, match="the tree's top") as refusal:
            bench.call("run", script="ls", tree_dir=".")
        assert "--allow-dir" in str(refusal.value.hint)


def test_a_folder_that_takes_the_trees_place_is_not_sent(
    place: Place, tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("secret\n")
    known = len(place.owner.jobs())
    dirs = place.bench.desk.files

    def swap(root: str) -> tuple[int, int]:
        found = dirs.check_tree_root(root)
        tree.rename(tree.with_suffix(".aside"))
        tree.symlink_to(tmp_path)
        return found

    options = {"check_root": swap}
    with pytest.raises(TreeError) as refusal:
        place.owner.run_shell("ls", tree=str(tree), tree_options=options)
    assert refusal.value.code == "tree_changed"
    assert len(place.owner.jobs()) == known


def test_credentials_stay_and_the_way_on_is_a_parameter(place: Place, tree: Path) -> None:
    (tree / ".env").write_text("KEY=1\n")
    git(tree, "add", "-f", ".env")
    with pytest.raises(TreeError) as refusal:
        place.run("ls", tree_dir=tree.name)
    assert "tree_exclude" in str(refusal.value.hint)
    assert "--" not in str(refusal.value.hint)


# -- wrong use --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "command"),
        ({"command": ["ls"], "script": "ls"}, "not both"),
        ({"command": ["ls"], "machine": "m"}, "session"),
        ({"command": ["ls"], "tree_exclude": ["*.csv"]}, "tree_dir"),
        ({"command": ["ls"], "files": ["AAAAAAAAAAAAAAAAAAAAAA"]}, "list_items"),
        ({"command": ["ls"], "runner": "nobody"}, "list_runners"),
        ({"command": ["ls"], "runner": "box", "labels": ["gpu"]}, ""),
        ({"command": ["ls"], "timeout_s": 0}, ""),
        ({"command": ["ls"], "timeout_s": 10**9}, ""),
        ({"command": []}, "command"),
        ({"script": ""}, "command"),
        ({"script": "x" * 70_000}, ""),
    ],
)
def test_a_call_that_cannot_be_says_what_to_do(place: Place, given: Shape, says: str) -> None:
    with pytest.raises(AirloxError) as refusal:
        place.bench.call("run", session=place.handle, **given)
    assert says in str(refusal.value.hint)


def test_an_unknown_job(place: Place) -> None:
    for job in ("AAAAAAAAAAAAAAAAAAAAAA", "sending-77", ""):
        with pytest.raises(UsageError) as refusal:
            place.bench.call("get_result", job=job, session=place.handle)
        assert "list_items" in str(refusal.value.hint)


def test_long_output_comes_with_its_beginning_and_its_end(place: Place) -> None:
    answer = place.run("seq 1 20000")
    assert answer["stdout"].startswith("1\n2\n")
    assert answer["stdout"].endswith("\n20000\n")
    assert "characters left out" in answer["stdout"]
    assert len(answer["stdout"]) < 17_000
    assert "save_dir" in answer["cut"]
    (path,) = place.bench.call("get_result", job=answer["job"], save_dir="long")["saved"]
    assert Path(path).read_text() == "".join(f"{number}\n" for number in range(1, 20_001))
