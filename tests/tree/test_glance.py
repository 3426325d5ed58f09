"""airlox.tree.glance: the same glance is the same tree; what is in doubt is no glance."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airlox.errors import TreeError
from airlox.tree import glance as glances
from airlox.tree.glance import Facts, Memory, facts_of, look
from airlox.tree.read import ScanCache, read_index
from airlox.tree.scan import EVERYTHING, Choice, scan
from support.trees import change_unseen, git, make_tree

RULES = "7"


@pytest.fixture(autouse=True)
def grown_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of tests are always young."""
    monkeypatch.setattr(glances, "_YOUNG_NS", -1_000_000_000)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    make_tree(
        folder,
        {
            b"a": ("f", b"one"),
            b"d/b": ("x", b"two"),
            b"d/l": ("l", b"../a"),
            b"g/c\nd\xff": ("f", b"odd"),
            b".gitignore": ("f", b"*.log\n"),
        },
    )
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "start")
    make_tree(folder, {b"new": ("f", b"untracked"), b"x.log": ("f", b"ignored")})
    return folder


def scanned(top: Path) -> Facts:
    found = scan(top)
    return facts_of(found, read_index(found))


def remembered(top: Path) -> Memory:
    """A memory of the tree as it is, read from its file."""
    path = top.parent / "memory"
    path.unlink(missing_ok=True)
    glance = look(str(top), EVERYTHING, rules_version=RULES)
    assert glance is not None
    found = scan(top)
    Memory(path).keep(glance, found, read_index(found))
    return Memory(path)


def recalled(
    memory: Memory, top: Path, choice: Choice = EVERYTHING, rules_version: str = RULES
) -> object:
    glance = look(str(top), choice, rules_version=rules_version)
    return None if glance is None else memory.recall(str(top), glance)


def test_a_tree_that_is_as_it_was(top: Path) -> None:
    memory = remembered(top)
    assert recalled(memory, top) == scanned(top)
    (top / "another.log").write_text("ignored too")
    assert recalled(memory, top) == scanned(top)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"!")


def rewrite(path: Path) -> None:
    """Other bytes of the same length under the same modification time."""
    before = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path) -> None:
    """Another file of the same length and time takes its place."""
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def stage(path: Path) -> None:
    append(path)
    git(path.parent, "add", path.name)


def put_in_place(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a tracked file grows": lambda top: append(top / "a"),
    "a tracked file is rewritten": lambda top: rewrite(top / "a"),
    "a tracked file is replaced": lambda top: replace(top / "a"),
    "a tracked file goes": lambda top: (top / "a").unlink(),
    "a folder goes": lambda top: (top / "d").rename(top.parent / "away"),
    "a file may be executed": lambda top: (top / "a").chmod(0o755),
    "a link leads elsewhere": lambda top: put_in_place(
        top / "d/l", lambda path: path.symlink_to("../b")
    ),
    "an untracked file grows": lambda top: append(top / "new"),
    "an untracked file is rewritten": lambda top: rewrite(top / "new"),
    "an untracked file goes": lambda top: (top / "new").unlink(),
    "an untracked file comes": lambda top: (top / "newer").write_text("x"),
    "less is ignored": lambda top: (top / ".gitignore").write_text(""),
    "more is ignored": lambda top: (top / ".gitignore").write_text("*.log\nnew\n"),
    "more stays here": lambda top: (top / ".airloxignore").write_text("a\n"),
    "a change is staged": lambda top: stage(top / "a"),
    "a file is no longer tracked": lambda top: git(top, "rm", "-q", "--cached", "a"),
    "a FIFO takes a place": lambda top: put_in_place(top / "a", os.mkfifo),
    "a folder takes a place": lambda top: put_in_place(top / "a", Path.mkdir),
    "a repository is nested": lambda top: git(top, "init", "-q", "inner"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_tree_that_changed(top: Path, change: Callable[[Path], object]) -> None:
    memory = remembered(top)
    change(top)
    assert recalled(memory, top) is None


@pytest.mark.parametrize(
    "choice",
    [Choice(allow=("a",)), Choice(exclude=("a",)), Choice(lfs=True), Choice(include=("a",))],
)
def test_other_choices_are_another_tree(top: Path, choice: Choice) -> None:
    memory = remembered(top)
    assert recalled(memory, top, choice) is None


def test_other_rules_are_another_tree(top: Path) -> None:
    assert recalled(remembered(top), top, rules_version="8") is None


def test_git_s_own_settings_hide_nothing(top: Path) -> None:
    for name, value in (("fileMode", "false"), ("trustctime", "false"), ("checkStat", "minimal")):
        git(top, "config", f"core.{name}", value)
    memory = remembered(top)
    assert recalled(memory, top) is not None
    (top / "a").chmod(0o755)
    assert recalled(memory, top) is None


def test_files_git_was_told_not_to_look_at(top: Path) -> None:
    for flag in ("--assume-unchanged", "--skip-worktree"):
        git(top, "update-index", flag, "a")
        assert recalled(remembered(top), top) is None
        git(top, "update-index", flag.replace("--", "--no-"), "a")
    assert recalled(remembered(top), top) is not None


def test_a_file_system_that_does_not_notice_every_write(in_memory: Path, top: Path) -> None:
    moved = in_memory / "repo"
    shutil.copytree(top, moved, symlinks=True)
    os.utime(moved / "a", (1e9, 1e9))
    git(moved, "update-index", "--refresh")
    before = scanned(moved)
    cache = ScanCache(in_memory / "cache")
    assert read_index(scan(moved), cache).digest == before.digest
    change_unseen(moved / "a", b"eno")
    assert git(moved, "status", "--porcelain", "a") == b""
    assert look(str(moved), EVERYTHING, rules_version=RULES) is None
    assert read_index(scan(moved), ScanCache(in_memory / "cache")).digest != before.digest


def test_submodules(top: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    git(other, "commit", "-q", "--allow-empty", "-m", "x")
    git(top, "submodule", "add", "-q", str(other), "sub")
    assert recalled(remembered(top), top) is None


def test_line_ends_that_git_takes_for_the_same(top: Path) -> None:
    """A filter may say that nothing changed: bytes count, not what git would store."""
    (top / ".gitattributes").write_text("*.txt text\n")
    (top / "t.txt").write_bytes(b"a\nb\n")
    git(top, "add", ".")
    memory = remembered(top)
    (top / "t.txt").write_bytes(b"a\r\nb\r\n")
    assert git(top, "diff", "t.txt") == b""
    assert recalled(memory, top) is None
    assert recalled(remembered(top), top) == scanned(top)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"x"])
def test_a_damaged_memory_is_an_empty_one(top: Path, damage: Callable[[bytes], bytes]) -> None:
    remembered(top)
    path = top.parent / "memory"
    path.write_bytes(damage(path.read_bytes()))
    assert recalled(Memory(path), top) is None
    assert recalled(Memory(top.parent / "absent"), top) is None


def test_it_is_private(top: Path) -> None:
    remembered(top)
    assert (top.parent / "memory").stat().st_mode & 0o777 == 0o600


def test_what_is_young_is_not_remembered(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glances, "_YOUNG_NS", 3_600_000_000_000)
    assert recalled(remembered(top), top) is None


def test_no_glance_at_what_is_no_repository(tmp_path: Path) -> None:
    assert look(str(tmp_path), EVERYTHING, rules_version=RULES) is None


def test_too_many_files_that_git_names(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glances, "LISTED", 1)
    assert look(str(top), EVERYTHING, rules_version=RULES) is None


def test_a_git_that_fails_says_so(top: Path) -> None:
    (top / ".git" / "index").write_bytes(b"damaged")
    with pytest.raises(TreeError) as caught:
        look(str(top), EVERYTHING, rules_version=RULES)
    assert caught.value.code == "git_failed"


def test_a_linked_work_tree(top: Path) -> None:
    git(top, "worktree", "add", "-q", "../linked")
    linked = top.parent / "linked"
    memory = remembered(linked)
    assert recalled(memory, linked) == scanned(linked)
    append(linked / "a")
    assert recalled(memory, linked) is None


names = st.sampled_from(["a", "d/b", "new", "newer", "e/f"])
steps = st.lists(
    st.tuples(st.sampled_from(["write", "append", "rm", "add", "commit", "touch", "mode"]), names),
    max_size=4,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=steps, after=steps)
def test_what_is_recalled_is_true(
    top: Path, before: list[tuple[str, str]], after: list[tuple[str, str]]
) -> None:
    """Whatever people and git do in between, at any pace."""
    for step in before:
        act(top, *step)
    memory = remembered(top)
    for step in after:
        act(top, *step)
    facts = recalled(memory, top)
    assert facts is None or facts == scanned(top)


def act(top: Path, what: str, name: str) -> None:
    path = top / name
    if what == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(3))
    elif what == "add":
        git(top, "add", "-A")
    elif what == "commit":
        git(top, "commit", "-q", "--allow-empty", "-a", "-m", "x")
    elif path.exists():
        if what == "append":
            append(path)
        elif what == "rm":
            path.unlink()
        elif what == "touch":
            os.utime(path, (time.time() - 100, time.time() - 100))
        else:
            path.chmod(path.stat().st_mode ^ 0o100)
