"""`airlox audit verify`: what a person reads, what a program reads, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from airlox.cli import audit
from airlox.cli.main import main
from airlox.protocol import limits
from airlox.protocol.audit import verify_audit
from airlox.protocol.keys import Role
from airlox.protocol.payload import Text
from support.trails import BASE_URL, Story, TrailMaker
from support.world import World


@pytest.fixture(scope="module")
def story() -> Story:
    return Story()


@pytest.fixture
def trail(story: Story, tmp_path: Path) -> str:
    path = tmp_path / "trail.jsonl"
    path.write_bytes(b"\n".join(story.lines) + b"\n")
    return str(path)


@pytest.fixture
def link_file(story: Story, tmp_path: Path) -> str:
    path = tmp_path / "link"
    path.write_text(story.world.invite(BASE_URL, Role.OBSERVER).url() + "\n")
    return str(path)


class TestAPerson:
    def test_what_is_proved_and_what_is_claimed(
        self, story: Story, trail: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["audit", "verify", trail]) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        verdict, proved, claimed = shown.out.split("\n\n")
        count = len(story.lines)
        assert verdict == f"VERIFIED: nothing is wrong in the {count} lines of {trail}"
        assert proved.startswith("PROVED by signatures\n")
        assert story.world.manifest.session_id in proved
        assert "compare the id with that in your link" in proved
        assert "box: 1 result" in proved
        assert "agent: 2 texts, 1 file, 2 jobs" in proved
        assert "jobs: 2; 1 with one result" in proved
        assert "cancels: 1 job," in proved
        assert "order: 7 of 10 items" in proved
        assert claimed.startswith("CLAIMED by the relay alone\n")
        assert "when each line was written" in claimed
        assert "the newest items of each author are here, and all revocations" in claimed
        assert "that what those who were cut off posted came before that" in claimed
        assert "what signed decisions and cancels say: it is sealed (3)" in claimed
        assert "jobs it ended for a reason of its own (1)" in claimed

    def test_with_a_link_decisions_are_read(
        self, trail: str, link_file: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["audit", "verify", trail, "--invite-file", link_file]) == 0
        out = capsys.readouterr().out
        assert "it is the one you named" in out
        assert "the owner approved box (line 8)" in out
        assert "the owner rejected spare" in out
        assert "sealed" not in out

    def test_what_is_wrong_has_its_line_and_item(
        self, story: Story, trail: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = Path(trail).read_bytes().splitlines(keepends=True)
        Path(trail).write_bytes(b"".join(line for line in lines if line != lines[8]))
        assert main(["audit", "verify", trail]) == 65
        out = capsys.readouterr().out
        assert out.startswith("NOT VERIFIED: ")
        assert "\nPROVED by signatures, of what is not wrong below\n" in out
        wrong = out.partition("\nWRONG\n")[2]
        assert f"line 10, item {story.hello.ref.id}: the relay does not show" in wrong
        assert wrong.splitlines()[0].endswith("]")

    def test_without_a_manifest_nothing_is_proved(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "x"
        path.write_text("nonsense\n" * 3)
        assert main(["audit", "verify", str(path)]) == 65
        assert "PROVED" not in capsys.readouterr().out
        path.write_text("")
        assert main(["audit", "verify", str(path)]) == 65
        assert "the trail: the trail is empty" in capsys.readouterr().out

    def test_problems_beyond_the_list(self) -> None:
        nonsense = [b"nonsense"] * (limits.TRAIL_PROBLEMS + 2)
        report = verify_audit([Story().lines[0], *nonsense])
        lines = list(audit.report_lines(report, "-"))
        assert lines[0].endswith("1002 problems in the 1003 lines of standard input")
        assert lines[-1] == "  … and 2 more"

    def test_clients_that_do_not_chain(self) -> None:
        trail = TrailMaker(World())
        trail.post(trail.join(Role.OWNER), Text(text="x"), chained=False)
        text = "\n".join(audit.report_lines(verify_audit(trail.lines), "t"))
        assert "order: nothing" in text
        assert "clients that do not chain is missing or moved (here: 1)" in text

    def test_an_extract(
        self, story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        mark = {"at_ms": 1, "event": "extract", "jobs": [story.job.ref.id]}
        path = tmp_path / "extract"
        lines = [story.lines[0], json.dumps(mark).encode(), *story.lines[1:]]
        path.write_bytes(b"\n".join(lines))
        assert main(["audit", "verify", str(path), "--extract"]) == 0
        out = capsys.readouterr().out
        assert out.startswith("VERIFIED as an extract: ")
        assert "all there was to 1 job: the trail is an extract" in out
        assert main(["audit", "verify", str(path)]) == 65
        assert "only where that is asked for [extract]" in capsys.readouterr().out


class TestAProgram:
    def test_json(self, story: Story, trail: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["audit", "verify", trail, "--json"]) == 0
        shape = json.loads(capsys.readouterr().out)
        assert shape["verified"] is True
        assert shape["session_id"] == story.world.manifest.session_id
        assert shape["jobs"][0]["result"] == story.result.ref.id
        assert shape["problems"] == []
        Path(trail).write_bytes(b"x\n")
        assert main(["audit", "verify", trail, "--json"]) == 65
        shape = json.loads(capsys.readouterr().out)
        assert shape["verified"] is False
        assert shape["problems"][0]["line"] == 1

    def test_standard_input(self, trail: str) -> None:
        words = [sys.executable, "-m", "airlox.cli", "audit", "verify", "-", "--json"]
        with open(trail, "rb") as file:
            done = subprocess.run(words, stdin=file, capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")
        assert json.loads(done.stdout)["verified"]


class TestWhichSession:
    def test_by_its_id(self, story: Story, trail: str, capsys: pytest.CaptureFixture[str]) -> None:
        sid = story.world.manifest.session_id
        assert main(["audit", "verify", trail, "--session-id", sid]) == 0
        other = World().manifest.session_id
        assert main(["audit", "verify", trail, "--session-id", other]) == 65
        assert f"not of {other} [other_session]" in capsys.readouterr().out

    def test_by_a_link(self, story: Story, trail: str) -> None:
        link = story.world.invite(BASE_URL, Role.OBSERVER).url()
        assert main(["audit", "verify", trail, "--invite", link]) == 0
        link = World().invite(BASE_URL, Role.OBSERVER).url()
        assert main(["audit", "verify", trail, "--invite", link]) == 65

    def test_the_variable_is_not_meant(self, trail: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may be of another session than the trail at hand."""
        monkeypatch.setenv("AIRLOX_INVITE", World().invite(BASE_URL, Role.OBSERVER).url())
        assert main(["audit", "verify", trail]) == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["verify"], 2),
        (["check", "{trail}"], 2),
        (["verify", "{trail}", "--session-id", "ax_1"], 2),
        (["verify", "{trail}", "--invite", "x", "--invite-file", "y"], 2),
        (["verify", "{trail}", "--invite", "https://x/no-link"], 1),
        (["verify", "{trail}", "--invite-file", "{trail}.gone"], 1),
        (["verify", "{trail}.gone"], 1),
        (["verify", "{folder}"], 1),
    ],
)
def test_wrong_usage(
    words: list[str], code: int, trail: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(Path(trail).parent)
    given = [word.replace("{trail}", trail).replace("{folder}", folder) for word in words]
    assert main(["audit", *given]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("airlox: ")


def test_a_line_without_end_is_not_kept(tmp_path: Path, story: Story) -> None:
    path = tmp_path / "long"
    with path.open("wb") as file:
        file.write(story.lines[0] + b"\n")
        for _ in range(20):
            file.write(b"x" * (1 << 20))
        file.write(b"\n" + story.lines[1] + b"\n")
    with path.open("rb") as file:
        lines = list(audit._lines(file))
    assert [len(line) for line in lines] == [
        len(story.lines[0]) + 1,
        limits.TRAIL_LINE_BYTES + 1,
        len(story.lines[1]) + 1,
    ]
    assert main(["audit", "verify", str(path)]) == 65
