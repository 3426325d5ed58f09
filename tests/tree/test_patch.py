"""airlox.tree.patch: what git makes of the tree that was sent is the tree after the job."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from airlox.errors import TreeError
from airlox.tree.patch import make_patch, old_contents
from support.trees import Node, changes_between, describe, git, index_of, make_tree, trees

SENT: dict[bytes, Node] = {
    b"a": ("f", b"one\r\ntwo\n"),
    b"bin": ("f", bytes(range(256))),
    b"d/b": ("x", b"#!/bin/sh\n"),
    b"l": ("l", b"a"),
    b".gitattributes": ("f", b"* text=auto eol=crlf\n*.x -diff binary\n*.id ident\n"),
}
AFTER: dict[bytes, Node] = {
    b"a": ("x", b"one\ntwo\r\nthree"),
    b"bin": ("f", bytes(range(255, -1, -1))),
    b"d": ("f", b"a file now\n"),
    b"l": ("f", b"no link now"),
    b"n.x": ("f", b"text\n"),
    b"n.id": ("f", b"$Id: 1 $\n"),
    'ä "q"\t'.encode(): ("f", b""),
}


def both(sent: dict[bytes, Node], after: dict[bytes, Node]) -> bytes:
    """The patch from one tree to the other."""
    same = {path for path in sent.keys() & after.keys() if sent[path] == after[path]}
    found = changes_between(
        {path: node for path, node in sent.items() if path not in same},
        {path: node for path, node in after.items() if path not in same},
    )
    patch = make_patch(found, lambda entry: sent[entry.path][1])
    assert patch.missing == ()
    return patch.data


def applied(folder: Path, sent: dict[bytes, Node], patch: bytes) -> dict[bytes, Node]:
    """What git makes of a folder."""
    where = folder.parent / f"{folder.name}.patch"
    where.write_bytes(patch)
    make_tree(folder, sent)
    git(folder, "init", "-q")
    # The tree's own attributes would act on what git writes, as they do in a checkout.
    (folder / ".git" / "info" / "attributes").write_text("* -text -ident\n")
    git(folder, "apply", "--check", str(where))
    git(folder, "apply", str(where))
    found = describe(folder)
    return {path: node for path, node in found.items() if not path.startswith(b".git/")}


def test_each_kind_of_change(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    assert applied(tmp_path / "x", SENT, both(SENT, AFTER)) == AFTER


@settings(max_examples=20)
@given(trees, trees)
def test_any_change(sent: dict[bytes, Node], after: dict[bytes, Node]) -> None:
    if sent == after:
        return
    with tempfile.TemporaryDirectory() as folder:
        (root := Path(folder, "x")).mkdir()
        assert applied(root, sent, both(sent, after)) == after


def test_the_settings_of_the_person_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = both(SENT, AFTER)
    (tmp_path / ".gitconfig").write_text(
        "[core]\n autocrlf = true\n fileMode = false\n symlinks = false\n"
        "[diff]\n noprefix = true\n mnemonicPrefix = true\n external = false\n relative = true\n"
        "[color]\n ui = always\n[init]\n templateDir = /none\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", "/none")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    assert both(SENT, AFTER) == plain


def test_without_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TreeError) as caught:
        both(SENT, AFTER)
    assert caught.value.code == "missing_git"


def test_old_contents_are_found_here_or_in_git(tmp_path: Path) -> None:
    make_tree(tmp_path, SENT)
    entries = {entry.path: entry for entry in index_of(SENT).entries}
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "core.autocrlf", "false")
    (tmp_path / ".gitattributes").unlink()
    git(tmp_path, "add", "a", "d")
    git(tmp_path, "commit", "-q", "-m", "x")
    (tmp_path / "a").write_bytes(b"edited and staged")
    git(tmp_path, "add", "a")
    (tmp_path / "a").unlink()
    (tmp_path / "bin").unlink()
    os.mkfifo(tmp_path / "bin")
    old = old_contents(tmp_path)
    assert old(entries[b"a"]) == SENT[b"a"][1]
    assert old(entries[b"d/b"]) == SENT[b"d/b"][1]
    assert old(entries[b"l"]) == b"a"
    assert old(entries[b"bin"]) is None


def test_files_whose_old_content_is_nowhere_are_named(tmp_path: Path) -> None:
    found = changes_between(
        {b"a": SENT[b"a"], b"l": SENT[b"l"]}, {b"a": AFTER[b"a"], b"n": ("f", b"")}
    )
    patch = make_patch(found, old_contents(tmp_path))
    assert patch.missing == (b"a", b"l")
    assert b"b/n" in patch.data
    assert b"b/a" not in patch.data
