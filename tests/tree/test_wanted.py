"""airlox.tree.wanted: patterns of what is pulled, and what git would ignore."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import TreeError
from airlox.tree.beneath import Folders, opened_root
from airlox.tree.wanted import IGNORE_BYTES, IgnoreRules, Wanted
from support.trees import git, paths


@pytest.mark.parametrize(
    ("patterns", "path", "is_wanted"),
    [
        (["**"], b"a/b/c", True),
        (["*"], b"a/b/c", True),
        (["*.py"], b"a/b.py", True),
        (["**/*.py"], b"b.py", True),
        (["/*.py"], b"a/b.py", False),
        (["docs/"], b"docs/a/b.md", True),
        (["docs/"], b"docs", False),
        (["docs"], b"x/docs/a", True),
        (["**", "!*.log"], b"a.log", False),
        (["**", "!*.log", "kept.log"], b"kept.log", True),
        (["!a"], b"b", False),
        (["a?c"], b"a\nc", True),
        (["**"], b"a\n", True),
        (["*.\\xff"], b"a.\xff", False),
        (["*"], b"\xff\xfe", True),
        (["# a", " "], b"# a", False),
        (["\\#a"], b"#a", True),
    ],
)
def test_patterns(patterns: list[str], path: bytes, is_wanted: bool) -> None:
    assert (path in Wanted(patterns)) is is_wanted


def test_what_is_no_pattern() -> None:
    with pytest.raises(TreeError) as caught:
        Wanted(["ok", "!"])
    assert caught.value.code == "tree_pattern"


def test_a_pattern_that_would_take_hours() -> None:
    assert b"a" * 200 not in Wanted(["*a" * 30 + "b"])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)), paths)
def test_any_text_is_a_pattern_or_refused(patterns: list[str], path: bytes) -> None:
    try:
        wanted = Wanted(patterns)
    except TreeError:
        return
    assert (path in wanted) in (True, False)


def rules_of(root: Path) -> IgnoreRules:
    rules = IgnoreRules()
    with opened_root(root) as root_fd, Folders(root_fd) as folders:
        for folder, _, _ in os.walk(os.fsencode(root)):
            path = os.path.relpath(folder, os.fsencode(root))
            path = b"" if path == b"." else path
            rules.read(path, folders.fd(path))
    return rules


def ignored(rules: IgnoreRules, path: str) -> bool:
    """By the rules for the file and each of its folders, from the top."""
    parts = os.fsencode(path).split(b"/")
    for depth, name in enumerate(parts):
        folder = b"/".join(parts[:depth])
        if rules.ignores(folder, name, is_folder=depth < len(parts) - 1):
            return True
    return False


def test_ignored_is_what_git_ignores(tmp_path: Path) -> None:
    texts = {
        ".gitignore": "*.log\n/build/\n!kept.log\n# c\n\nfoo\ntrailing \n\\ lead\n**/deep/x\n"
        "a/**/z\n",
        "sub/.gitignore": "!*.log\n*.tmp\n/only\nfoo/\n!foo\n",
        "sub/sub/.gitignore": "*\n!.gitignore\n!*.c\n",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    names = ["x.log", "kept.log", "x.tmp", "only", "foo", "y.c", "build", "trailing", " lead", "z"]
    found = [
        prefix + name
        for prefix in ("", "sub/", "sub/sub/", "build/", "deep/", "a/", "a/b/", "sub/deep/")
        for name in [*names, "x"]
    ]
    git(tmp_path, "init", "-q")
    rules = rules_of(tmp_path)
    for path in found:
        target = tmp_path / path
        if target.exists() or any(parent.is_file() for parent in target.parents):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("")
    others = git(tmp_path, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    shown = {os.fsdecode(path) for path in others if path}
    files = {
        str(path.relative_to(tmp_path))
        for path in tmp_path.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(tmp_path).parts
    }
    assert {path for path in files if not ignored(rules, path)} == shown


def test_rules_are_read_once(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("a\n")
    rules = rules_of(tmp_path)
    (tmp_path / ".gitignore").write_text("b\n")
    with opened_root(tmp_path) as root_fd:
        rules.read(b"", root_fd)
    assert rules.ignores(b"", b"a", is_folder=False)
    assert not rules.ignores(b"", b"b", is_folder=False)


@pytest.mark.parametrize("size", [IGNORE_BYTES, IGNORE_BYTES + 1])
def test_a_long_file_of_rules(tmp_path: Path, size: int) -> None:
    (tmp_path / ".gitignore").write_bytes(b"a\n" * (size // 2) + b"#" * (size % 2))
    assert rules_of(tmp_path).ignores(b"", b"a", is_folder=False) is (size <= IGNORE_BYTES)


def test_lines_that_are_no_patterns_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes(b"!\n\xff\xfe\n" + b"x" * 10_000 + b"\na\n")
    assert rules_of(tmp_path).ignores(b"", b"a", is_folder=False)
