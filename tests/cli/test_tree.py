"""airlox.cli.tree: which tree a command line sends, and what it says of the rest."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airlox.cli import tree
from airlox.cli.options import CommandLineError, Parser
from airlox.tree.scan import LeftOut
from support.trees import git, make_tree

from .test_output import Spoken


def parse(*words: str) -> Namespace:
    parser = Parser(prog="airlox run")
    tree.add_flags(parser)
    return parser.parse_args(words)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(tmp_path, "init", "-q")
    make_tree(
        tmp_path,
        {
            b".gitignore": ("f", b"*.o\n"),
            b"a\x1b[31m": ("f", b"12"),
            b"big.o": ("f", b"1"),
            b"m.o": ("f", b"123"),
        },
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        *[("--cwd", "x"), ("--fresh",), ("--dry-run",), ("--tree-lfs",), ("--git-metadata",)],
        *[(f"--tree-{what}", "x") for what in ("allow", "exclude", "include")],
    ],
)
def test_flags_of_a_tree_need_one(words: tuple[str, ...]) -> None:
    with pytest.raises(CommandLineError, match="go with --tree"):
        tree.check(parse(*words))
    tree.check(parse("--tree", *words))


def test_git_metadata_is_a_choice(here: Path) -> None:
    assert tree.choices(parse("--tree", "--git-metadata"))["tree_options"]["git_metadata"] is True
    assert "git_metadata" not in tree.choices(parse("--tree"))["tree_options"]
    git(here, "add", ".gitignore")
    git(here, "commit", "-q", "-m", "one")
    said = Spoken()
    tree.list_all(parse("--tree", "--git-metadata", "--dry-run"), said.voice)
    assert "goes   .git  commits: 1 (without old files), tags: 0\n" in said.out.text
    said = Spoken(json=True)
    tree.list_all(parse("--tree", "--git-metadata", "--dry-run"), said.voice)
    found = json.loads(said.out.text)["git_metadata"]
    assert found == {"commits": 1, "tags": 0, "is_shallow": False}


def test_no_tree() -> None:
    assert tree.choices(parse()) == {}


class TestDryRun:
    def listed(self, *words: str, as_json: bool = False) -> Spoken:
        said = Spoken(json=as_json)
        args = parse("--tree", "--dry-run", *words)
        assert tree.list_all(args, said.voice) == 0
        return said

    def test_for_people(self, here: Path) -> None:
        said = self.listed("--tree-include", "m.o")
        lines = said.out.text.splitlines()
        assert lines[0].split() == ["goes", ".gitignore", "4", "B"]
        assert lines[1].startswith("goes   a")
        assert "\x1b" not in lines[1]
        assert lines[2].split() == ["goes", "m.o", "3", "B"]
        assert lines[3] == "stays  big.o  ignored by .gitignore:1: *.o"
        assert said.err.text == "3 files, 9 B; nothing was sent\n"

    def test_for_programs(self, here: Path) -> None:
        found: dict[str, Any] = json.loads(
            self.listed("--tree-exclude", "a*", as_json=True).out.text
        )
        assert found["root"] == os.path.realpath(here)
        assert found["goes"] == [{"path": ".gitignore", "pointer": False, "size": 4}]
        assert {entry["path"] for entry in found["stays"]} == {"a\x1b[31m", "big.o", "m.o"}


class TestWarnings:
    def said(
        self,
        pointers: tuple[bytes, ...] = (),
        left_out: tuple[LeftOut, ...] = (),
        *,
        is_shallow: bool = False,
    ) -> str:
        said = Spoken()
        upload: Any = SimpleNamespace(pointers=pointers, left_out=left_out, is_shallow=is_shallow)
        tree.warn(upload, said.voice)
        return said.err.text

    def test_quiet_when_all_goes(self) -> None:
        assert self.said() == ""
        assert self.said(left_out=(LeftOut(b"a", "excluded by .airloxignore"),)) == ""

    def test_a_shallow_clone_is_said(self) -> None:
        assert "this clone is shallow" in self.said(is_shallow=True)

    def test_pointers_and_what_stays_are_named(self) -> None:
        text = self.said((b"a.bin",), (LeftOut(b"sub/", "a nested git repository"),))
        assert text == (
            "airlox: Git LFS: only the pointers go of a.bin (--tree-lfs)\n"
            "airlox: not sent: sub/ (see why: --dry-run)\n"
        )

    def test_not_all_of_many(self) -> None:
        assert "f4 and 7 more" in self.said(tuple(b"f%d" % n for n in range(12)))
