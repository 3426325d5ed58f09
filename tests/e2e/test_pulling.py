"""What jobs change in the tree comes back: a relay, a runner and commands, each a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox import Session
from airlox.client.pulling import Change, Pulled
from airlox.errors import ProtocolError, TreeError, UsageError
from support.commands import Cli
from support.machines import shell_session
from support.trees import describe, git

WAIT_S = 60.0
FILES = {
    "a.py": b"print(1)\n",
    "docs/b.md": b"# B\r\n",
    "src/data.bin": bytes(range(256)) * 4,
    "src/tool.sh": b"#!/bin/sh\n",
    "src/gone.py": b"x = 1\n",
    ".gitignore": b"*.log\nbuild/\n",
}
WORK = r"""
printf 'print(2)\n' > a.py
printf '\000\001\377' > src/data.bin
chmod +x src/tool.sh
rm src/gone.py
printf 'new\n' > 'new file.py'
ln -s a.py link.py
mkdir build && echo built > build/out.py && echo log > x.log
"""
"""A job that changes each kind of thing."""


@pytest.fixture(scope="module", params=["process", "local"])
def session(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Session]:
    with shell_session(tmp_path_factory.mktemp("pulling"), request.param, "pull") as session:
        yield session


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for path, content in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


@pytest.fixture
def cli(session: Session, tmp_path: Path, tree: Path) -> Cli:
    invite = session._core.membership.invite
    relay = invite.url().partition("/s/")[0]
    return Cli(relay, tmp_path / "home", invite=invite.url(), cwd=tree)


def files(tree: Path) -> dict[str, bytes]:
    """What the checkout holds, without git's own."""
    return {
        os.fsdecode(path): content
        for path, (_, content) in describe(tree).items()
        if not path.startswith(b".git/")
    }


AFTER = FILES | {
    "a.py": b"print(2)\n",
    "src/data.bin": b"\0\1\xff",
    "new file.py": b"new\n",
    "link.py": b"a.py",
}
del AFTER["src/gone.py"]


def test_what_a_job_changed_comes_back(session: Session, tree: Path) -> None:
    """[P-PUL-2]"""
    job = session.run_shell(WORK, fresh=True, tree=tree, pull=["**"])
    result = job.wait(WAIT_S)
    assert result.ok, result
    assert result.out_files == ()
    assert set(result.changes) == {
        Change("a.py", "changed"),
        Change("link.py", "new"),
        Change("new file.py", "new"),
        Change("src/data.bin", "changed"),
        Change("src/gone.py", "deleted"),
        Change("src/tool.sh", "changed"),
    }
    done = {each.path: each.done for each in result.apply_changes()}
    assert done["src/gone.py"] == "deleted"
    assert done["new file.py"] == "new"
    assert files(tree) == AFTER
    assert (tree / "src/tool.sh").stat().st_mode & 0o111 == 0o111
    assert (tree / "link.py").is_symlink()
    assert {each.done for each in result.apply_changes()} == {"same"}


def test_only_what_was_asked_for(session: Session, tree: Path) -> None:
    result = session.run_shell(WORK, fresh=True, tree=tree, pull=["*.py", "!/a.py"]).wait(WAIT_S)
    assert {change.path for change in result.changes} == {"link.py", "new file.py", "src/gone.py"}


def test_ignored_files_come_on_request(session: Session, tree: Path) -> None:
    job = session.run_shell(
        WORK, fresh=True, tree=tree, pull=["build/", "*.log"], pull_ignored=True
    )
    result = job.wait(WAIT_S)
    assert {change.path for change in result.changes} == {"build/out.py", "x.log"}


def test_only_what_this_job_did(session: Session, tree: Path) -> None:
    """What an earlier job left in the workspace is none of this one's changes."""
    session.run_shell("echo old > left.txt", tree=tree).wait(WAIT_S)
    result = session.run_shell("echo > fresh.txt; cat left.txt", tree=tree, pull=["**"]).wait(
        WAIT_S
    )
    assert result.stdout == "old\n"
    assert result.changes == (Change("fresh.txt", "new"),)


def test_a_job_that_changes_nothing(session: Session, tree: Path) -> None:
    result = session.run_shell("touch a.py; cat a.py > b; rm b", tree=tree, pull=["**"]).wait(
        WAIT_S
    )
    assert result.changes == ()
    assert result.apply_changes() == ()
    assert result.patch() == b""


def test_a_later_handle_of_the_job(session: Session, tree: Path) -> None:
    job = session.run_shell(WORK, fresh=True, tree=tree, pull=["**"])
    job.wait(WAIT_S)
    again = session.job(job.id).result()
    assert again is not None
    again.apply_changes(tree / "src")
    assert files(tree) == AFTER


def test_what_changed_meanwhile_stays(session: Session, tree: Path) -> None:
    job = session.run_shell(WORK, fresh=True, tree=tree, pull=["**"])
    result = job.wait(WAIT_S)
    (tree / "a.py").write_bytes(b"mine\n")
    beside = f"a.py.airlox-{job.id[:8]}"
    kept = Pulled("a.py", "kept", "it changed here meanwhile", beside)
    assert kept in result.apply_changes()
    assert (tree / "a.py").read_bytes() == b"mine\n"
    assert (tree / beside).read_bytes() == b"print(2)\n"


def test_hostile_leftovers(session: Session, tree: Path) -> None:
    """What cannot be taken is named, the rest comes back, and no deletion is told."""
    job = session.run_shell(
        "mkfifo pipe; rm docs/b.md; ln a.py hard.py; mkdir -p deep/er; echo x > deep/er/x;"
        "truncate -s 100M huge; mkdir repo repo/.git; echo > repo/x; echo y > y; chmod 0 deep",
        tree=tree,
        pull=["**"],
        fresh=True,
    )
    result = job.wait(WAIT_S)
    assert {change.path for change in result.changes} == {"deep/er/x", "y"}
    reasons = {left.path: left.reason for left in result.left_out}
    assert reasons["pipe"] == "a FIFO"
    assert reasons["a.py"] == reasons["hard.py"] == "a hard link"
    assert "no room" in reasons["huge"]
    assert "deleted" in reasons["docs/b.md"]


def test_patches_apply_to_the_tree_as_it_was_sent(session: Session, tree: Path) -> None:
    result = session.run_shell(WORK, fresh=True, tree=tree, pull=["**"]).wait(WAIT_S)
    patch = tree.parent / "job.patch"
    patch.write_bytes(result.patch())
    (tree / "a.py").write_bytes(b"changed here, after it was committed\n")
    assert result.patch() == patch.read_bytes()  # git still has what was sent
    git(tree, "checkout", "a.py")
    git(tree, "apply", "--check", str(patch))
    git(tree, "apply", str(patch))
    assert files(tree) == AFTER


def test_a_patch_that_cannot_be_whole(session: Session, tree: Path) -> None:
    (tree / "a.py").write_bytes(b"never committed\n")
    result = session.run_shell(WORK, fresh=True, tree=tree, pull=["**"]).wait(WAIT_S)
    (tree / "a.py").write_bytes(b"changed again\n")
    with pytest.raises(TreeError) as caught:
        result.patch()
    assert caught.value.code == "patch_incomplete"
    assert "a.py" in str(caught.value)


def test_a_job_without_pull(session: Session, tree: Path) -> None:
    result = session.run_shell(WORK, fresh=True, tree=tree).wait(WAIT_S)
    with pytest.raises(UsageError):
        result.apply_changes()


@pytest.mark.parametrize("pull", [[""], ["x" * 1025], ["*"] * 33, ["a\nb"]])
def test_patterns_that_no_job_may_have(session: Session, tree: Path, pull: list[str]) -> None:
    """[P-PUL-1]"""
    with pytest.raises(ProtocolError):
        session.run_shell("true", tree=tree, pull=pull)


class TestCommand:
    def test_pull(self, cli: Cli, tree: Path) -> None:
        words = ("--tree", "--fresh", "--pull", "**", "--", "sh", "-c", "cd ..; " + WORK)
        done = cli.at(tree / "src")("run", *words)
        assert "pulled a.py\n" in done.err
        assert "pulled new file.py (new)\n" in done.err
        assert "deleted src/gone.py\n" in done.err
        assert files(tree) == AFTER

    def test_the_command_s_code_stays(self, cli: Cli, tree: Path) -> None:
        cli(
            "run",
            "--tree",
            "--fresh",
            "--pull",
            "*.py",
            "--",
            "sh",
            "-c",
            "echo > a.py; exit 7",
            code=7,
        )
        assert (tree / "a.py").read_bytes() == b"\n"

    @pytest.mark.parametrize(("own", "code"), [(0, 1), (7, 7)])
    def test_a_conflict(self, cli: Cli, tree: Path, own: int, code: int) -> None:
        (tree / "n").write_bytes(b"mine\n")
        exclude = ("--tree-exclude", "n", "--pull", "**", "--json")
        work = f"echo theirs > n; exit {own}"
        done = cli("run", "--tree", "--fresh", *exclude, "--", "sh", "-c", work, code=code)
        [shape] = done.document["pulled"]
        assert (shape["path"], shape["done"]) == ("n", "kept")
        assert (tree / "n").read_bytes() == b"mine\n"
        assert (tree / shape["beside"]).read_bytes() == b"theirs\n"
        assert "kept n: another file of that name is here" in done.err

    def test_patch(self, cli: Cli, tree: Path) -> None:
        before = files(tree)
        where = tree.parent / "out.patch"
        for _ in range(2):
            cli("run", "--tree", "--fresh", "--patch", str(where), "--", "sh", "-c", WORK)
        assert files(tree) == before
        assert (tree.parent / "out-1.patch").read_bytes() == where.read_bytes()
        git(tree, "apply", str(where))
        assert files(tree) == AFTER

    def test_patch_to_standard_output(self, cli: Cli, tree: Path) -> None:
        done = cli(
            "run", "--tree", "--fresh", "--pull", "a.py", "--patch", "-", "--", "sh", "-c", WORK
        )
        assert done.out.startswith("diff --git a/a.py b/a.py\n")
        assert "new file" not in done.out

    def test_later(self, cli: Cli, tree: Path) -> None:
        words = ("--tree", "--fresh", "--no-wait", "--pull", "**", "--", "sh", "-c", WORK)
        job = cli("run", *words).out.strip()
        told = cli("result", "--wait", "1m", "--", job)
        assert "changed 6 files" in told.err
        cli("result", "--pull", "--", job)
        assert files(tree) == AFTER

    def test_a_job_that_was_killed(self, cli: Cli, tree: Path) -> None:
        words = (
            "--tree",
            "--fresh",
            "--pull",
            "**",
            "--",
            "sh",
            "-c",
            "echo half > a.py; kill -9 $$",
        )
        done = cli("run", *words, code=1)
        assert "airlox result --pull" in done.err
        assert files(tree) == FILES

    @pytest.mark.parametrize(
        "words",
        [
            ("--pull", "*"),
            ("--patch", "x"),
            ("--tree", "--pull-ignored"),
            ("--tree", "--fresh", "--patch", "none/x.patch"),
            ("--tree", "--fresh", "--patch", "-", "--json"),
            ("--tree", "--fresh", "--patch", "x", "--no-wait"),
            ("--tree", "--fresh", "--pull", "*", "--on", "a,b"),
        ],
    )
    def test_flags_that_do_not_go_together(self, cli: Cli, words: tuple[str, ...]) -> None:
        cli("run", *words, "--", "true", code=2)
