"""Jobs: each way to end, on a runner of either software, for an owner and a sender of either."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from airlox import Session
from airlox.errors import JobRefused
from support import old, parts
from support.archives import Member, build_zip
from support.commands import Cli
from support.images import build_png
from support.mixed import EITHER, Room, RoomMaker, Side, mixes, names_of
from support.relay import until

PNG = build_png(2, 2, bytes(2 * (1 + 3 * 2)))
RESULT_KEYS = {
    *("exit_code", "job", "out_files", "peak_mem_mb", "reason", "runner", "saved", "signed"),
    *("status", "stderr", "stderr_truncated", "stdout", "stdout_truncated", "wall_ms"),
}
SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
QUICK = [(Side.THEIRS, Side.OURS, Side.THEIRS), (Side.OURS, Side.THEIRS, Side.OURS)]
MIXES = [pytest.param(mix, id=names_of(mix)) for mix in mixes(3)]
"""Owner, runner, sender."""
QUICK_FIRST = [
    pytest.param(mix, id=names_of(mix), marks=[] if mix in QUICK else [pytest.mark.slow])
    for mix in mixes(3)
]


class Bench(NamedTuple):
    """A session with an approved runner, which several tests share, and its sender."""

    room: Room
    sender: Cli
    runner_side: Side

    def write(self, name: str, content: str | bytes) -> str:
        data = content.encode() if isinstance(content, str) else content
        (self.room.folder / name).write_bytes(data)
        return name

    def run(self, code: str, *words: str, exit_code: int = 0) -> Any:
        """The outcome of a job, as the sender's software prints it."""
        done = self.sender("run", self.write("main.py", code), "--json", *words, code=exit_code)
        return done.document

    def send_off(self, code: str) -> str:
        """The id of a job that runs by now."""
        sent = self.sender("run", self.write("main.py", code), "--json", "--no-wait").document
        job: str = sent["job"]
        until(lambda: self.state(job) == "running", "a claim")
        return job

    def state(self, job: str) -> str:
        status: str = self.sender("result", "--json", "--", job, code=75).document["status"]
        return status

    def result(self, job: str, *, exit_code: int) -> Any:
        """The outcome of a job that was sent off."""
        return self.sender("result", "--wait", "90s", "--json", "--", job, code=exit_code).document


class Workshops:
    """Sessions with an approved runner, one for each mix of owner and runner, made when needed."""

    def __init__(self, relay: str, folder: Path, stack: ExitStack) -> None:
        self._relay = relay
        self._folder = folder
        self._stack = stack
        self._rooms: dict[tuple[Side, Side], Room] = {}

    def bench(self, owner: Side, runner: Side, sender: Side) -> Bench:
        if (owner, runner) not in self._rooms:
            folder = self._folder / f"{owner}-{runner}"
            folder.mkdir()
            flags = ("--execute", "--runtime", old.runtime(), "--job-memory", "256")
            room = self._rooms[owner, runner] = Room(self._relay, folder, owner, *flags)
            self._stack.enter_context(room.runner(runner, "--labels", "grey,small"))
        room = self._rooms[owner, runner]
        return Bench(room, room.person("sender", sender, f"sender-{sender}"), runner)


@pytest.fixture(scope="module")
def workshops(relay: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshops]:
    with ExitStack() as stack:
        yield Workshops(relay, tmp_path_factory.mktemp("workshops"), stack)


@pytest.fixture
def bench(request: pytest.FixtureRequest, workshops: Workshops) -> Bench:
    return workshops.bench(*request.param)


READER = """
import os, sys
from pathlib import Path
print(Path('notes.md').read_text(), Path('in/side.txt').read_text())
print('complaint', file=sys.stderr)
out = Path(os.environ['AIRLOX_OUT'])
(out / 'plot.png').write_bytes(Path('dot.png').read_bytes())
(out / 'sub').mkdir()
(out / 'sub/table.csv').write_text('a,b')
(out / 'note.txt').write_text('n')
sys.exit(3)
"""


@pytest.mark.parametrize("bench", QUICK_FIRST, indirect=True)
def test_files_go_in_and_come_out(bench: Bench) -> None:
    inputs: dict[str, str | bytes] = {
        "notes.md": "from the sender",
        "data.zip": build_zip(Member(name="in/side.txt", content=b"unpacked")),
        "dot.png": PNG,
    }
    flags = [f"--input={bench.write(name, content)}" for name, content in inputs.items()]
    folder = f"out-{bench.sender.home.name}"
    result = bench.run(READER, *flags, f"--out-dir={folder}", exit_code=3)
    assert set(result) >= RESULT_KEYS
    assert result["stdout"] == "from the sender unpacked\n"
    assert (result["status"], result["stderr"]) == ("completed", "complaint\n")
    assert (result["exit_code"], result["signed"], result["reason"]) == (3, True, None)
    assert {file["name"] for file in result["out_files"]} == {"plot.png", "out.zip"}
    saved = contents(bench.room.folder / folder)
    with Image.open(io.BytesIO(saved.pop("plot.png"))) as picture:
        assert picture.size == (2, 2)
    assert saved == {"note.txt": b"n", "sub/table.csv": b"a,b"}
    for reader in (bench.room.owner, bench.sender):
        assert not reader("session", "info", "--json").document.get("alarms")


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder. Ours unpacks `out.zip` there, 0.1.0 saves it as it is."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    if "out.zip" in found:
        with zipfile.ZipFile(io.BytesIO(found.pop("out.zip"))) as archive:
            found |= {name: archive.read(name) for name in archive.namelist()}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("bench", MIXES, indirect=True)
class TestEnds:
    def test_a_time_out(self, bench: Bench) -> None:
        result = bench.run("while True: pass", "--timeout", "1s", exit_code=1)
        assert (result["status"], result["exit_code"], result["signed"]) == (
            "timed_out",
            None,
            True,
        )
        assert "1" in result["reason"]

    def test_too_much_memory(self, bench: Bench) -> None:
        code = "x = bytearray(200 << 20)"
        done = bench.sender(
            *("run", bench.write("main.py", code), "--memory", "64", "--json"), code=None
        )
        assert done.code != 0
        assert done.document["signed"]
        # 0.1.0 bounds the address space, so Python reports it; ours the memory in use.
        expected = {Side.OURS: "failed", Side.THEIRS: "completed"}
        assert done.document["status"] == expected[bench.runner_side]

    def test_a_signal(self, bench: Bench) -> None:
        result = bench.run("import os; os.kill(os.getpid(), 9)", exit_code=1)
        assert (result["status"], result["signed"]) == ("failed", True)
        assert result["reason"]

    def test_cancelled_by_its_sender(self, bench: Bench) -> None:
        job = bench.send_off(SLEEPER)
        assert bench.sender("cancel", "--json", "--", job).document == {"cancelled": job}
        result = bench.result(job, exit_code=1)
        assert (result["status"], result["exit_code"], result["signed"]) == (
            "cancelled",
            None,
            True,
        )

    def test_cancelled_by_the_owner(self, bench: Bench) -> None:
        job = bench.send_off(SLEEPER)
        bench.room.owner("cancel", "--", job)
        assert bench.result(job, exit_code=1)["status"] == "cancelled"
        cancels = [
            item["meta"]["job"]["id"]
            for item in bench.sender("items", "--json").lines
            if item["kind"] == "event" and item["meta"]["event"] == "job_cancel"
        ]
        assert job in cancels


@pytest.mark.slow
@pytest.mark.parametrize("bench", MIXES, indirect=True)
class TestTargets:
    def test_by_name_and_by_label(self, bench: Bench) -> None:
        for words in (("--runner", "box"), ("--label", "grey", "--label", "small")):
            assert bench.run("print('here')", *words)["stdout"] == "here\n"

    def test_no_runner_is_fit(self, bench: Bench) -> None:
        result = bench.run("print(1)", "--label", "violet", exit_code=1)
        assert (result["status"], result["reason"]) == ("failed", "no_runner_available")

    def test_a_busy_runner_takes_no_second_job(self, bench: Bench) -> None:
        job = bench.send_off(SLEEPER)
        refused = bench.run("print(1)", exit_code=1)
        assert refused["reason"] in ("no_runner_available", "runner_busy")
        bench.sender("cancel", "--", job)
        bench.result(job, exit_code=1)


@pytest.mark.slow
@pytest.mark.parametrize("bench", MIXES, indirect=True)
def test_job_and_result_are_read_and_bound_by_all(bench: Bench) -> None:
    everybody = [bench.room.owner, bench.sender]
    everybody += [bench.room.person("observer", side, f"observer-{side}") for side in EITHER]
    for reader in everybody:
        reader("items")  # joins: blobs are kept for those who have
    job = bench.run("print('for all')")["job"]
    for reader in everybody:
        items = {i["id"]: i for i in reader("items", "--json").lines}
        assert items[job]["code"] == "print('for all')"
        (result,) = (i for i in items.values() if i.get("job") == job)
        assert (result["valid"], result["stdout"]) == (True, "for all\n")
        again = reader("result", "--json", "--", job).document
        assert (again["status"], again["stdout"], again["signed"]) == (
            "completed",
            "for all\n",
            True,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "bench", [(owner, Side.OURS, Side.THEIRS) for owner in EITHER], indirect=True
)
class TestWhatOursSendsTheirs:
    """The edges of what 0.1.0 takes from a runner."""

    def test_more_images_than_a_result_can_name(self, bench: Bench) -> None:
        code = (
            "import os, shutil\n"
            "for n in range(70): shutil.copy('dot.png', f\"{os.environ['AIRLOX_OUT']}/{n:02}.png\")"
        )
        flags = ("--input", bench.write("dot.png", PNG), "--out-dir", "many")
        result = bench.run(code, *flags)
        assert len(result["out_files"]) == 62
        assert set(contents(bench.room.folder / "many")) == {f"{n:02}.png" for n in range(70)}

    @pytest.mark.parametrize("printed", [r"\0", "x"])
    def test_a_flood_of_output(self, bench: Bench, printed: str) -> None:
        code = (
            f"import sys\nfor _ in range(32): sys.stdout.write({printed!r} * 65536)\nprint('end')"
        )
        result = bench.run(code)
        assert result["stdout_truncated"] is True
        assert len(result["stdout"].encode()) <= 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("side", EITHER)
def test_a_job_beyond_the_session_s_limits(workshops: Workshops, side: Side) -> None:
    """0.1.0 sends it and waits for a result it cannot accept; ours says so at once."""
    bench = workshops.bench(Side.THEIRS, Side.OURS, side)
    words = ("run", bench.write("main.py", "print(1)"), "--timeout", "999s", "--wait", "3s")
    done = bench.sender(*words, "--json", code={Side.OURS: 1, Side.THEIRS: 75}[side])
    if side is Side.OURS:
        assert done.error["error"]
    assert bench.run("print('the next one runs')")["status"] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("runner_side", EITHER)
def test_a_session_that_gives_no_files_back(execute_room_by: RoomMaker, runner_side: Side) -> None:
    room = execute_room_by(Side.THEIRS, "--no-out-files", "--no-approval")
    with room.runner(runner_side, approved=False):
        bench = Bench(room, room.person("sender", Side.THEIRS), runner_side)
        result = bench.run("import os; open(os.environ['AIRLOX_OUT'] + '/a.txt', 'w')")
        assert (result["status"], result["out_files"]) == ("completed", [])


@pytest.mark.slow
@pytest.mark.parametrize(("runner_side", "sender_side"), mixes(2))
def test_packages(execute_room_by: RoomMaker, runner_side: Side, sender_side: Side) -> None:
    parts.require("a package index for uv")
    room = execute_room_by(Side.OURS, "--package", "six")
    with room.runner(runner_side):
        bench = Bench(room, room.person("sender", sender_side), runner_side)
        result = bench.run("import six; print(six.__name__)", "--requirement", "six")
        assert result["stdout"] == "six\n", result


@pytest.mark.slow
def test_their_runner_in_its_own_sandbox(execute_room_by: RoomMaker) -> None:
    parts.require("user namespaces")
    room = execute_room_by(Side.OURS)
    with room.runner(Side.THEIRS, sandboxed=True):
        bench = Bench(room, room.person("sender", Side.OURS), Side.THEIRS)
        assert bench.run("import os; print(os.getcwd())")["stdout"] == "/work\n"


@pytest.mark.slow
class TestSdk:
    def test_theirs_on_our_runner(self, workshops: Workshops) -> None:
        bench = workshops.bench(Side.THEIRS, Side.OURS, Side.THEIRS)
        link = bench.room.links["sender"]
        seen = old.sdk(
            """
with Session.join(given["link"], cache_dir=given["cache"]) as s:
    notes = s.send_file(b"# n", name="n.md")
    code = (
        "import os; print(open('n.md').read()); "
        "open(os.environ['AIRLOX_OUT'] + '/a.txt', 'w').write('made')"
    )
    done = s.run_python(code, files=[notes], runner="box").wait()
    out = done.out_file("out.zip")
    try:
        s.run_python("pass", labels=["violet"])
    except NoRunnerAvailable as error:
        refused = error.job.id
    endless = s.run_python("while True: pass")
    endless.cancel()
    answer = {
        "done": [done.ok, done.stdout, done.signed, len(out.data) == out.size],
        "cancelled": endless.wait().status,
        "refused": len(refused),
        "idle": [r.idle for r in s.runners()],
    }
""",
            link=link,
            cache=bench.room.folder / "sdk",
        )
        assert seen["done"] == [True, "# n\n", True, True]
        assert (seen["cancelled"], seen["refused"], seen["idle"]) == ("cancelled", 22, [True])

    def test_ours_on_their_runner(self, workshops: Workshops) -> None:
        bench = workshops.bench(Side.THEIRS, Side.THEIRS, Side.OURS)
        cache = bench.room.folder / "sdk"
        with Session.join(bench.room.links["sender"], cache_dir=cache) as session:
            notes = session.send_file(b"# n", name="n.md")
            code = (
                "import os; print(open('n.md').read()); "
                "open(os.environ['AIRLOX_OUT'] + '/a.txt', 'w').write('made')"
            )
            done = session.run_python(code, files=[notes], runner="box").wait(60)
            assert (done.status, done.stdout, done.signed) == ("completed", "# n\n", True)
            assert [out.name for out in done.out_files] == ["out.zip"]
            with pytest.raises(JobRefused):
                session.run_python("pass", labels=["violet"])
            endless = session.run_python("while True: pass")
            endless.cancel()
            assert endless.wait(60).status == "cancelled"
