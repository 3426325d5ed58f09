"""What a model does with the tools from beginning to end, whatever carries its calls.

A session is made and its links are read, a runner comes in and is approved, a tree's tests run on
it, what the job wrote comes back, and the trail of all of it is saved and proves itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from airlox.protocol.audit import verify_audit
from support.machines import RunnerProgram
from support.trees import git

Call = Callable[..., dict[str, Any]]
"""Makes the call of a tool's name with its arguments; gives its structured answer."""

WAIT_S = 60
TESTS = """
printf 'two tests\\n' > "$AIRLOX_OUT/report.txt"
python3 -c 'import roman; assert roman.to_int("IX") == 9' && echo passed
"""
ROMAN = 'def to_int(text):\n    return {"IX": 9}[text]\n'


def make_tree(folder: Path) -> None:
    """A small checkout, with a file that git ignores."""
    folder.mkdir(parents=True)
    (folder / "roman.py").write_text(ROMAN)
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "noise.log").write_text("noise\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")


def journey(call: Call, work: Path, runner_cache: Path) -> str:
    """Go all the way; `work` is an allowed folder. The session's handle; it stays open."""
    created = call("create_session", execute=True, shell=True, description="tests things")
    handle: str = created["session"]
    assert set(created["invites"]) == {"sender", "observer", "runner"}
    invites = call("get_invites", session=handle)["invites"]
    assert invites == created["invites"]

    with RunnerProgram(invites["runner"], runner_cache, name="gpu-box") as runner:
        runner.note("waiting")
        (found,) = call("list_runners", session=handle)["runners"]
        assert (found["name"], found["approved"]) == ("gpu-box", False)
        call("approve_runner", session=handle, runner=found["key"])
        runner.note("ready")

        make_tree(work / "roman")
        ran = call("run", script=TESTS, tree_dir="roman", session=handle, wait_s=WAIT_S)
        assert (ran["status"], ran["exit_code"], ran["stdout"]) == ("completed", 0, "passed\n")
        assert ran["signed"]
        assert ran["runner"] == "gpu-box"
        assert ran["out_text"] == {"report.txt": "two tests\n"}
        got = call("get_result", job=ran["job"], session=handle, save_dir="out")
        contents = {Path(path).name: Path(path).read_bytes() for path in got["saved"]}
        assert contents["report.txt"] == b"two tests\n"

    audit = call("export_audit", dir="audit", session=handle)
    with Path(audit["path"]).open("rb") as trail:
        report = verify_audit(trail, session_id=handle)
    assert report.verified, report.problems
    assert [job.job for job in report.jobs] == [ran["job"]]
    return handle
