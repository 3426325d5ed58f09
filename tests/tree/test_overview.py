"""airlox.tree.overview: what would go, what would not, and by which rule."""

from __future__ import annotations

from pathlib import Path

from airlox.tree.overview import overview
from airlox.tree.scan import Choice
from support.trees import git, make_tree


def test_each_file_goes_or_stays_by_a_rule(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    make_tree(
        tmp_path,
        {
            b".airloxignore": ("f", b"data\n"),
            b".gitignore": ("f", b"# built\nbuild/\n*.o\n"),
            b"a": ("f", b"12"),
            b"build/x": ("f", b"1"),
            b"d/m.o": ("f", b"1"),
            b"d/n.o": ("f", b"1"),
            b"data": ("f", b"1"),
            b"skip": ("f", b"1"),
        },
    )
    git(tmp_path, "init", "-q", "inner")
    choice = Choice(exclude=("skip",), include=("d/n.o",))
    found = overview(tmp_path / "d", choice)
    assert found.root == str(tmp_path)
    assert [file.path for file in found.goes] == [b".airloxignore", b".gitignore", b"a", b"d/n.o"]
    assert found.size == sum(file.size for file in found.goes)
    assert {stays.path: stays.reason for stays in found.stays} == {
        b"build/": "ignored by .gitignore:2: build/",
        b"d/m.o": "ignored by .gitignore:3: *.o",
        b"data": "excluded by .airloxignore",
        b"inner/": "a nested git repository",
        b"skip": "excluded by --tree-exclude",
    }


def test_outside_git(tmp_path: Path) -> None:
    make_tree(tmp_path, {b"a": ("f", b"1"), b"b": ("f", b"1"), b".airloxignore": ("f", b"b\n")})
    (tmp_path / "e" / "mpty").mkdir(parents=True)
    found = overview(tmp_path)
    assert [file.path for file in found.goes] == [b".airloxignore", b"a"]
    assert found.stays == ((b"b", "excluded by .airloxignore"), (b"e/mpty/", "an empty folder"))
