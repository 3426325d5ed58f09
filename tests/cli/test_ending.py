"""How a job's end reads, and what exit code it stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airlox.cli import ending
from airlox.client.jobs import OutFile, Result
from airlox.protocol.item import ItemRef
from airlox.protocol.job import Cause, CauseKind, Denied, Egress, Env, LeftOut, Peak
from support.archives import Member, build_zip

from .test_output import Spoken

REF = ItemRef(blob_sha256="A" * 43, id="A" * 22)

RESULT_KEYS = {
    *("exit_code", "job", "out_files", "peak_mem_mb", "reason", "runner", "saved", "signed"),
    *("status", "stderr", "stderr_truncated", "stdout", "stdout_truncated", "wall_ms"),
}
"""Of 0.1.0's `run --json`."""


def result(**changes: Any) -> Result:
    values: dict[str, Any] = {
        "job": "7Qk",
        "status": "completed",
        "exit_code": 1,
        "reason": None,
        "wall_ms": 41_200,
        "peak_mem_mb": 318,
        "runner": "key",
        "runner_name": "gpu-box",
    }
    return Result(**(values | changes))


ENV = Env(
    airlox="0.2.0",
    layers={"seccomp": 1, "landlock": 6, "cgroup": 0},
    network="off",
    platform="linux-x86_64",
    sandbox="local",
    python="3.12.1",
    interpreter="uv-runtime",
    packages={"numpy": "2.1"},
)


class TestLastLine:
    def test_as_documented(self) -> None:
        expected = "── completed · exit 1 · 41.2 s · peak 318 MB · signed by runner gpu-box"
        assert ending.last_line(result()) == expected

    def test_the_exact_peak_wins(self) -> None:
        peak = Peak(memory_bytes=5 * 1024 * 1024 + 1, source="cgroup")
        assert "peak 6 MB" in ending.last_line(result(peak=peak))

    def test_a_reason_is_told(self) -> None:
        line = ending.last_line(result(status="timed_out", exit_code=None, reason="after\n60 s"))
        assert line == "── timed out · 41.2 s · peak 318 MB · after 60 s · signed by runner gpu-box"

    def test_a_cause_stands_in_for_a_reason(self) -> None:
        cause = Cause(kind=CauseKind.OUT_OF_MEMORY)
        assert "out of memory" in ending.last_line(result(status="failed", cause=cause))

    def test_the_relay_s_word_is_called_so(self) -> None:
        line = ending.last_line(
            result(status="failed", exit_code=None, reason="runner_lost", signed=False, wall_ms=0)
        )
        assert line.endswith("runner_lost · NOT signed: the relay's word")
        assert "signed by" not in line


class TestExitCode:
    @pytest.mark.parametrize(
        ("status", "code", "expected"),
        [
            ("completed", 0, 0),
            ("completed", 3, 3),
            ("completed", -1, 255),
            ("completed", 256, 0),
            ("failed", 9, 1),
            ("failed", None, 1),
            ("timed_out", None, 1),
            ("cancelled", None, 1),
            ("refused", None, 1),
        ],
    )
    def test_table(self, status: str, code: int | None, expected: int) -> None:
        assert ending.exit_code(result(status=status, exit_code=code)) == expected


class TestTell:
    def test_env_is_one_line_of_what_was_on(self) -> None:
        assert ending.env_text(result(env=ENV)) == (
            "env: sandbox local (landlock seccomp) · network off · linux-x86_64 · "
            "python 3.12.1 (uv-runtime) · numpy 2.1 · airlox 0.2.0"
        )

    def test_the_last_line_is_the_last(self) -> None:
        said = Spoken()
        file = OutFile("a.png", 5, REF, lambda ref: b"")
        left = tuple(LeftOut(path=f"f{n}", reason="a link") for n in range(7))
        ending.tell(
            result(env=ENV, out_files=(file,), left_out=left, others=("x",)), [], said.voice
        )
        lines = said.err.text.splitlines()
        assert lines[0] == "files came back: a.png (5 B); --out-dir DIR saves them"
        assert "not sent back: f0: a link" in lines
        assert "… and 2 more files not sent back" in lines
        assert any("more than one runner" in line for line in lines)
        assert lines[-1].startswith("── completed")
        assert said.out.text == ""

    def test_named_hosts_are_told(self) -> None:
        for count, told in ((1, "h0.org:443"), (5, "h0.org:443 h1.org:443 h2.org:443 and 2 more")):
            hosts = tuple(f"h{n}.org:443" for n in range(count))
            env = msgspec.structs.replace(ENV, network="allow_list", hosts=hosts)
            assert f" · network to {told} only · " in ending.env_text(result(env=env))

    def test_what_was_blocked_is_told_before_all_else(self) -> None:
        said = Spoken()
        denied = (Denied(reason="not_listed", target="example.org:443"),)
        egress = Egress(connections=1, denials=3, denied=denied, received_bytes=2, sent_bytes=1)
        ending.tell(result(env=ENV, egress=egress), [], said.voice)
        assert said.err.text.splitlines()[:2] == [
            "blocked: example.org:443; allow with --allow-host example.org:443 on the runner",
            "… 3 attempts in all",
        ]
        shape = ending.result_shape(result(egress=egress), [])
        assert shape["egress"]["denied"][0]["target"] == "example.org:443"

    def test_a_job_that_was_let_through_is_not_told_of(self) -> None:
        said = Spoken()
        egress = Egress(connections=1, denials=0, received_bytes=2, sent_bytes=1)
        ending.tell(result(egress=egress), [], said.voice)
        assert "blocked" not in said.err.text

    def test_json_has_the_keys_of_0_1_0_and_more(self) -> None:
        said = Spoken(json=True)
        file = OutFile("a.png", 5, REF, lambda ref: b"")
        ending.tell(result(env=ENV, out_files=(file,)), ["d/a.png"], said.voice)
        shape = json.loads(said.out.text)
        assert set(shape) >= RESULT_KEYS
        assert shape["out_files"] == [
            {"name": "a.png", "ref": {"blob_sha256": REF.blob_sha256, "id": REF.id}, "size": 5}
        ]
        assert shape["env"]["layers"] == {"seccomp": 1, "landlock": 6, "cgroup": 0}
        assert said.err.text == ""

    def test_a_floor_result_has_the_keys_of_0_1_0_alone(self) -> None:
        assert set(ending.result_shape(result(), [])) == RESULT_KEYS | {"runner_name"}

    def test_files_are_saved_where_asked(self, tmp_path: Path) -> None:
        file = OutFile("a.png", 3, REF, lambda ref: b"png")
        assert ending.save_files(result(out_files=(file,)), None) == []
        saved = ending.save_files(result(out_files=(file,)), str(tmp_path / "out"))
        assert saved == [str(tmp_path / "out" / "a.png")]
        assert (tmp_path / "out" / "a.png").read_bytes() == b"png"

    def test_what_is_not_saved_is_said(self, tmp_path: Path) -> None:
        archive = build_zip(Member(name="a.txt"), Member(name=".git/config"))
        came = result(out_files=(OutFile("out.zip", len(archive), REF, lambda ref: archive),))
        said = Spoken()
        ending.tell(came, ending.save_files(came, str(tmp_path)), said.voice)
        assert "not saved: .git/config: " in said.err.text

    @pytest.mark.parametrize(("reason", "is_told"), [("runner_lost", True), ("other", False)])
    def test_a_lost_runner_may_come_back(self, reason: str, is_told: bool) -> None:
        said = Spoken()
        lost = result(status="failed", exit_code=None, reason=reason, signed=False)
        ending.tell(lost, [], said.voice)
        assert ("airlox result -- 7Qk" in said.err.text) == is_told

    @pytest.mark.parametrize(
        ("reason", "signed", "told"),
        [
            ("queue_expired", False, "a longer --queue=TIME"),
            ("author_left", False, "before its turn came"),
            ("queue_expired", True, ""),
        ],
    )
    def test_a_job_that_waited_in_vain(self, reason: str, signed: bool, told: str) -> None:
        said = Spoken()
        ending.tell(
            result(status="failed", exit_code=None, reason=reason, signed=signed), [], said.voice
        )
        words = said.err.text.partition("──")[2].partition("\n")[2]
        assert (told in words) if told else words == ""

    def test_truncated_output_is_told(self) -> None:
        said = Spoken()
        ending.print_output(result(stdout="x", stdout_truncated=True), said.voice)
        assert said.out.text == "x"
        assert "longer than a result holds" in said.err.text
