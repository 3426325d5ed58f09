"""A repository goes with its tree: a relay, a runner and git in a job, each a process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox import Session
from airlox.client.result import Result
from support.commands import Cli
from support.machines import shell_session
from support.trees import git

WAIT_S = 60.0
ASKED = (
    ("describe", "--tags", "--dirty", "--long", "--match", "*[0-9]*"),
    ("describe", "--always", "--dirty"),
    ("status", "--porcelain", "--branch"),
    ("diff",),
    ("diff", "--cached"),
    ("diff", "HEAD", "--stat"),
    ("log", "-3", "--format=%H %an %cI %s"),
    ("rev-parse", "--abbrev-ref", "HEAD"),
    ("show", "-s", "--format=%ci", "HEAD"),
    ("show", "--stat"),
    ("diff", "HEAD~1", "--name-only"),
    ("ls-files",),
)
"""What people and version plugins ask for."""
SCRIPT = "\n".join(
    ["export GIT_PAGER=cat", *(f"git {' '.join(map(repr, words))} 2>&1" for words in ASKED)]
)


@pytest.fixture(scope="module", params=["process", "local"])
def session(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Session]:
    with shell_session(tmp_path_factory.mktemp("metadata"), request.param, "pull") as session:
        yield session


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with history, tags and other branches, and work in all states."""
    folder = tmp_path / "tree"
    folder.mkdir()
    git(folder, "init", "-q")
    for number in range(5):
        (folder / f"file{number}.py").write_text(f"print({number})\n")
        (folder / "same.txt").write_text(f"{number}\n" * 50)
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"commit {number}")
        if number == 2:
            git(folder, "tag", "-a", "-m", "the first", "v1.2.3")
    git(folder, "tag", "light")
    git(folder, "rm", "-q", "file0.py")
    (folder / "staged.py").write_text("staged = 1\n")
    git(folder, "add", "staged.py")
    (folder / "staged.py").write_text("staged = 2\n")
    (folder / "file1.py").write_text("print('changed')\n")
    (folder / "file2.py").unlink()
    (folder / "untracked.py").write_text("")
    return folder


def run(session: Session, tree: Path, script: str = SCRIPT, **more: object) -> Result:
    options = {"git_metadata": True, **more}
    job = session.run_shell(script, tree=tree, tree_options=options)
    result = job.wait(WAIT_S)
    assert result.ok, (result.reason, result.stdout, result.stderr)
    return result


def here(tree: Path) -> str:
    return "".join(git(tree, *words).decode() for words in ASKED)


def test_git_says_there_what_it_says_here(session: Session, tree: Path) -> None:
    expected = here(tree)
    assert "v1.2.3-2-g" in expected
    assert "-dirty" in expected
    assert run(session, tree).stdout == expected
    assert run(session, tree).stdout == expected, "although git has written its index meanwhile"


def test_a_clean_tree_is_clean(session: Session, tree: Path) -> None:
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "all")
    git(tree, "tag", "v2")
    result = run(session, tree, "git describe --tags --dirty; git status --porcelain; git diff")
    assert result.stdout == "v2\n"


def test_it_follows_the_repository(session: Session, tree: Path) -> None:
    run(session, tree)
    git(tree, "commit", "-q", "-m", "more")
    git(tree, "tag", "-a", "-m", "next", "v1.3.0")
    assert run(session, tree).stdout == here(tree)
    git(tree, "reset", "-q", "--hard")
    git(tree, "checkout", "-q", "--detach", "HEAD~2")
    (tree / "same.txt").write_text("other")
    assert run(session, tree).stdout == here(tree)


def test_what_a_job_did_to_it_is_mended(session: Session, tree: Path) -> None:
    """Its own commits, hooks, settings and damage are gone before the next job."""
    run(
        session,
        tree,
        """
        git -c user.name=x -c user.email=x@example.org commit -qam mine && git tag v9.9.9
        git branch another && touch .git/index.lock && ln -s /etc .git/hooks && mkdir .git/x
        echo '[core] pager = evil' > .git/config; rm -rf .git/objects; ln -s /tmp .git/objects
        chmod 0 .git/refs
        """,
    )
    expected = here(tree)
    found = run(session, tree, SCRIPT + "\nls -A .git; git branch; git tag")
    assert found.stdout == expected + (
        "HEAD\nconfig\nindex\nobjects\npacked-refs\nrefs\n* main\nlight\nv1.2.3\n"
    )
    run(session, tree, "rm -rf .git; ln -s /etc .git")
    assert run(session, tree).stdout == expected


def test_without_the_option_it_goes(session: Session, tree: Path) -> None:
    run(session, tree)
    result = session.run_shell("ls -d .git* || true", tree=tree).wait(WAIT_S)
    assert result.stdout == ""
    result = session.run_shell("git init -q . && ls -d .git", tree=tree).wait(WAIT_S)
    result = session.run_shell("ls -d .git", tree=tree).wait(WAIT_S)
    assert result.stdout == ".git\n", "what jobs make themselves stays theirs"
    assert run(session, tree).stdout == here(tree)


def test_nothing_else_of_the_repository_is_there(session: Session, tree: Path) -> None:
    """[P-TRE-7]"""
    git(tree, "config", "user.email", "private@example.org")
    git(tree, "remote", "add", "origin", "https://user:token@example.org/private.git")
    git(tree, "stash", "-q")
    git(tree, "checkout", "-q", "-b", "secret-branch")
    (tree / "hidden.txt").write_text("on the other branch\n")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "hidden commit")
    git(tree, "tag", "secret-tag")
    hidden = git(tree, "rev-parse", "HEAD", "HEAD:hidden.txt", "stash", "stash^{tree}").split()
    old = git(tree, "rev-parse", "main~2:same.txt", "main~2^{tree}").split()
    git(tree, "checkout", "-q", "main")
    (tree / ".git/hooks").mkdir(exist_ok=True)
    (tree / ".git/hooks/pre-commit").write_text("#!/bin/sh\necho hook\n")
    look = "find .git -type f; cat .git/config .git/packed-refs; git remote -v; git stash list"
    objects = (
        "for p in .git/objects/pack/*.idx; do git show-index < $p | cut -d' ' -f2; done > $HOME/o"
    )
    result = run(session, tree, f"{look}\n{objects}; sort $HOME/o")
    for word in ("private", "token", "origin", "secret", "hook", "stash", "logs", "evil"):
        assert word not in result.stdout
    for gone in (*hidden, *old):
        assert gone.decode() not in result.stdout
    head = git(tree, "rev-parse", "HEAD", "HEAD:same.txt", "HEAD~2", "v1.2.3").split()
    for there in head:
        assert there.decode() in result.stdout


def test_files_that_stay_here_do_so_in_every_version(session: Session, tree: Path) -> None:
    """[P-TRE-7]"""
    (tree / ".env").write_text("PASSWORD=x\n")
    (tree / "big.bin").write_text("large\n")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "with secrets")
    expected = git(tree, "status", "--porcelain").decode()
    ids = git(tree, "rev-parse", "HEAD:.env", "HEAD:big.bin").decode().split()
    objects = "for p in .git/objects/pack/*.idx; do git show-index < $p; done"
    script = f"git status --porcelain; ls -A; {objects}"
    result = run(session, tree, script, exclude=[".env", "*.bin"])
    assert result.stdout.startswith(expected)
    assert ".env" not in result.stdout
    assert "big.bin" not in result.stdout
    for object_id in ids:
        assert object_id not in result.stdout


def test_a_linked_work_tree_and_a_shallow_clone(
    session: Session, tree: Path, tmp_path: Path
) -> None:
    git(tree, "worktree", "add", "-q", "-b", "linked", "../linked", "HEAD~1")
    linked = tmp_path / "linked"
    (linked / "new.py").write_text("1\n")
    assert run(session, linked).stdout == here(linked)
    git(tree, "clone", "-q", "--depth", "2", f"file://{tree}", "../shallow")
    shallow = tmp_path / "shallow"
    (shallow / "file1.py").write_text("1\n")
    ask = "git status --porcelain; git log --format=%H; git describe --always --dirty --tags"
    expected = subprocess.run(
        ["sh", "-c", ask], cwd=shallow, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert run(session, shallow, ask).stdout == expected


def test_changes_that_come_back_are_none_of_git(session: Session, tree: Path) -> None:
    script = "git add -A; echo x > file3.py"
    options = {"git_metadata": True}
    job = session.run_shell(script, tree=tree, tree_options=options, pull=["**"])
    result = job.wait(WAIT_S)
    assert [change.path for change in result.changes] == ["file3.py"]


def test_by_command(session: Session, tree: Path, tmp_path: Path) -> None:
    invite = session._core.membership.invite
    cli = Cli(invite.url().partition("/s/")[0], tmp_path / "home", invite=invite.url(), cwd=tree)
    dry = cli("run", "--tree", "--git-metadata", "--dry-run", "--", "true")
    assert "goes   .git  commits: 5 (without old files), tags: 2\n" in dry.out
    ran = cli("run", "--tree", "--git-metadata", "--", "git", "describe", "--dirty")
    assert ran.out == git(tree, "describe", "--dirty").decode()
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "a.txt").write_text("a")
    words = ("run", "--tree", "--git-metadata", "--", "true")
    assert "is no git repository" in cli.at(bare)(*words, code=1).err
    git(bare, "init", "-q")
    assert "has no commit yet" in cli.at(bare)(*words, code=1).err
