"""airlox.tree.survey: what is here, what is here under another name, what must come."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from airlox.errors import TreeError
from airlox.tree import survey as surveying
from airlox.tree.apply import apply
from airlox.tree.stamps import stamp_of
from airlox.tree.state import AppliedState
from airlox.tree.survey import is_untouched, survey, what_is_lacking
from support.trees import Node, change_unseen, fetch_from, index_of, make_tree

OLD: dict[bytes, Node] = {b"a": ("f", b"one"), b"d/b": ("x", b"two"), b"l": ("l", b"a")}


def digests(*contents: bytes) -> set[bytes]:
    return {sha256(content).digest() for content in contents}


@pytest.fixture
def state(tmp_path: Path) -> AppliedState:
    return apply(index_of(OLD), tmp_path, fetch_from(OLD))


def test_an_empty_workspace_lacks_everything(tmp_path: Path) -> None:
    found = survey(index_of(OLD), tmp_path, None)
    assert (found.present, found.local) == ({}, {})
    assert found.lacking == index_of(OLD).sizes().keys()


def test_it_says_where_everything_is(tmp_path: Path, state: AppliedState) -> None:
    (tmp_path / "d/b").unlink()
    new = index_of({b"a": ("f", b"one"), b"z": ("f", b"one"), b"d/b": ("f", b"two")})
    found = survey(new, tmp_path, state)
    assert found.present.keys() == {b"a"}
    assert found.local == {sha256(b"one").digest(): b"a"}
    assert found.lacking == digests(b"two")
    applied = apply(new, tmp_path, fetch_from({b"": ("f", b"two")}), state, looked=found)
    assert what_is_lacking(new, tmp_path, applied) == frozenset()


def test_a_moved_file_is_only_believed_with_its_stamp(tmp_path: Path, state: AppliedState) -> None:
    moved = index_of({b"new": ("f", b"one")})
    assert what_is_lacking(moved, tmp_path, state) == frozenset()
    (tmp_path / "a").write_bytes(b"eno")
    assert what_is_lacking(moved, tmp_path, state) == digests(b"one")


def test_files_in_a_folder_that_is_a_link_do_not_count(tmp_path: Path, state: AppliedState) -> None:
    outside = tmp_path / "outside"
    make_tree(outside, {b"b": ("x", b"two")})
    (tmp_path / "d/b").unlink()
    (tmp_path / "d").rmdir()
    os.symlink(outside, tmp_path / "d")
    assert what_is_lacking(index_of(OLD), tmp_path, state) == digests(b"two")


def test_a_special_file_does_not_count_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    assert what_is_lacking(index_of({b"a": ("f", b"")}), tmp_path) == digests(b"")


class TestUntouched:
    def test_a_folder_that_is_closed_to_its_owner(
        self, tmp_path: Path, state: AppliedState
    ) -> None:
        """Root can look into it all the same; the next job cannot."""
        assert is_untouched(state, tmp_path)
        (tmp_path / "d").chmod(0o300)
        assert not is_untouched(state, tmp_path)
        survey(index_of(OLD), tmp_path, state)
        assert is_untouched(state, tmp_path)

    def test_bytes_that_change_without_a_trace(self, in_memory: Path) -> None:
        state = apply(index_of(OLD), in_memory, fetch_from(OLD))
        change_unseen(in_memory / "a", b"eno")
        assert stamp_of((in_memory / "a").stat()) == state.stamps[0]
        assert not is_untouched(state, in_memory)
        assert what_is_lacking(index_of(OLD), in_memory, state) == digests(b"one")
        assert what_is_lacking(index_of({b"new": ("f", b"one")}), in_memory, state) == digests(
            b"one"
        )


def test_no_boot_id_is_a_boot_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveying, "_BOOT_ID", str(tmp_path / "no"))
    assert surveying.boot_id() == b""


def test_a_root_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TreeError) as caught:
        what_is_lacking(index_of(OLD), tmp_path / "no")
    assert caught.value.code == "tree_blocked"
