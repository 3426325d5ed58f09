"""airlox.tree.metadata: what a repository is right now."""

from __future__ import annotations

from pathlib import Path

import pytest

from airlox.errors import TreeError
from airlox.tree import metadata
from airlox.tree.metadata import Outline, Staged, look, outline
from support.trees import git


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    top = tmp_path / "repo"
    top.mkdir()
    git(top, "init", "-q")
    return top


def commit(top: Path, name: str = "a", text: str = "a") -> bytes:
    (top / name).write_text(text)
    git(top, "add", name)
    git(top, "commit", "-q", "-m", text)
    return git(top, "rev-parse", "HEAD").strip()


def test_head_branch_tags_and_index(repo: Path) -> None:
    first = commit(repo)
    git(repo, "tag", "one")
    head = commit(repo, "b\nc", "b")
    found = look(str(repo))
    assert (found.head, found.branch, found.object_format) == (head, b"refs/heads/main", "sha1")
    assert found.tags == first + b" refs/tags/one\n"
    assert [entry.path for entry in found.staged] == [b"a", b"b\nc"]
    assert outline(found) == Outline(2, 1, False)


def test_a_detached_head(repo: Path) -> None:
    first = commit(repo)
    commit(repo, text="b")
    git(repo, "checkout", "-q", "--detach", "HEAD~1")
    assert (look(str(repo)).head, look(str(repo)).branch) == (first, None)


def test_other_branches_have_tags_of_their_own(repo: Path) -> None:
    commit(repo)
    git(repo, "checkout", "-q", "-b", "other")
    commit(repo, text="b")
    git(repo, "tag", "beside")
    git(repo, "checkout", "-q", "main")
    assert outline(look(str(repo))) == Outline(1, 0, False)


def test_flags_of_the_index(repo: Path) -> None:
    for name in "abc":
        commit(repo, name)
    git(repo, "update-index", "--skip-worktree", "a")
    git(repo, "update-index", "--assume-unchanged", "b")
    flags = {e.path: (e.unseen, e.trusted) for e in look(str(repo)).staged}
    assert flags == {b"a": (True, False), b"b": (False, True), b"c": (False, False)}


def test_a_shallow_clone_says_so(repo: Path, tmp_path: Path) -> None:
    commit(repo)
    head = commit(repo, text="b")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", "shallow")
    found = look(str(tmp_path / "shallow"))
    assert found.shallow == head + b"\n"
    assert outline(found) == Outline(1, 0, True)


@pytest.mark.parametrize(
    ("name", "given", "word"),
    [
        ("core.autocrlf", "INPUT", "input"),
        ("core.autocrlf", "yes", "true"),
        ("core.eol", "crlf", "crlf"),
        ("core.filemode", "off", "false"),
        ("core.eol", "evil", None),
        ("core.editor", "vi", None),
    ],
)
def test_settings_are_known_words(repo: Path, name: str, given: str, word: str | None) -> None:
    commit(repo)
    git(repo, "config", name, given)
    settings = dict(look(str(repo)).settings)
    assert settings.get(name, "true" if name == "core.filemode" else None) == word
    assert given not in settings.values() or given == word


def test_no_repository_and_no_commit(repo: Path, tmp_path: Path) -> None:
    with pytest.raises(TreeError) as caught:
        look(str(repo))
    assert caught.value.code == "no_commit"
    with pytest.raises(TreeError) as caught:
        look(str(tmp_path))
    assert caught.value.code == "no_repository"


def test_a_history_without_end_is_refused(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        commit(repo, text=str(number))
    monkeypatch.setattr(metadata, "COMMITS", 3)
    assert outline(look(str(repo))).commits == 3
    monkeypatch.setattr(metadata, "COMMITS", 2)
    with pytest.raises(TreeError, match="over 2 commits") as caught:
        outline(look(str(repo)))
    assert caught.value.code == "metadata_too_large"


def test_a_submodule_is_known_as_one() -> None:
    assert Staged(b"lib", b"160000", b"0" * 40, b"0").is_submodule
    assert not Staged(b"lib", b"100644", b"0" * 40, b"0").is_submodule
