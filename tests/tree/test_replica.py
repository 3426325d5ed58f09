"""airlox.tree.replica: a small repository that answers as the person's own does."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airlox.errors import TreeError
from airlox.tree import replica
from airlox.tree import replicate as making
from airlox.tree.metadata import look
from airlox.tree.replica import Replica, replica_of
from airlox.tree.scan import EVERYTHING, Choice, LeftOut, scan
from support.trees import git

ASKED = (
    ("describe", "--tags", "--always", "--dirty", "--long"),
    ("status", "--porcelain", "--branch"),
    ("diff",),
    ("diff", "--cached"),
    ("diff", "HEAD"),
    ("log", "--format=%H %P %T %ad %s %D"),
    ("show", "--format=%ci"),
    ("tag", "--list"),
    ("ls-files", "--stage", "-t"),
)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    top = tmp_path / "repo"
    top.mkdir()
    git(top, "init", "-q")
    for number in range(4):
        (top / "a.py").write_text(f"print({number})\n")
        (top / f"file{number}").write_text(f"{number}\n")
        git(top, "add", ".")
        git(top, "commit", "-q", "-m", f"commit {number}")
        git(top, "tag", "-a", "-m", "tag", f"v{number}")
    return top


def replicate(top: Path, choice: Choice = EVERYTHING) -> Replica:
    found = scan(top, choice)
    return replica_of(
        look(str(top)), choice, found.left_out, top.parent / "kept", rules_version="1"
    )


def carry(top: Path, target: Path, choice: Choice = EVERYTHING) -> Path:
    """What a runner would have of it: the files of the tree, and `.git`."""
    for file in scan(top, choice).files:
        place = os.path.join(os.fsencode(target), file.path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        source = os.path.join(os.fsencode(top), file.path)
        shutil.copy(source, place, follow_symlinks=False)
    shutil.copytree(replicate(top, choice).root, target / ".git")
    return target


def answers(top: Path) -> list[bytes]:
    return [git(top, *words) for words in ASKED]


def objects_of(top: Path) -> set[str]:
    words = ("cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    return set(git(top, *words).decode().split())


# ── random histories ─────────────────────────────────────────────────────────────────────────

NAMES = st.sampled_from(["a", "b", "d/a", "d/e/c", "wéird", "new\nline"])
STEPS = st.one_of(
    st.tuples(st.just("write"), NAMES, st.binary(max_size=12)),
    st.tuples(st.just("stage"), NAMES),
    st.tuples(st.just("stage all")),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("commit")),
    st.tuples(st.just("tag"), st.booleans()),
    st.tuples(st.just("branch")),
    st.tuples(st.just("merge")),
    st.tuples(st.just("detach")),
)


def take(top: Path, step: tuple[object, ...], number: int) -> None:
    what, *rest = step
    if what == "write":
        path = top / str(rest[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rest[1])  # type: ignore[arg-type]
    elif what == "stage" and (top / str(rest[0])).exists():
        git(top, "add", "--", str(rest[0]))
    elif what == "stage all":
        git(top, "add", "-A")
    elif what == "delete":
        (top / str(rest[0])).unlink(missing_ok=True)
    elif what == "commit":
        git(top, "commit", "-q", "--allow-empty", "-m", f"commit {number}")
    elif what == "tag":
        git(top, "tag", *(("-a", "-m", "t") if rest[0] else ()), f"v{number}")
    elif what == "branch":
        git(top, "checkout", "-q", "-b", f"side/{number}")
        git(top, "commit", "-q", "--allow-empty", "-m", f"side {number}")
    elif what == "merge":
        git(top, "merge", "-q", "-s", "ours", "-m", f"merge {number}", "first")
    elif what == "detach":
        git(top, "checkout", "-q", "--detach")


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, max_size=12))
def test_a_random_history_answers_as_it_does_here(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder, "repo")
        top.mkdir()
        git(top, "init", "-q")
        git(top, "commit", "-q", "--allow-empty", "-m", "first")
        git(top, "branch", "first")
        for number, step in enumerate(steps):
            take(top, step, number)
        target = Path(folder, "target")
        target.mkdir()
        carry(top, target)
        expected = [git(top, *words) for words in ASKED if words[0] != "log"]
        assert [git(target, *words) for words in ASKED if words[0] != "log"] == expected
        log = ("log", "--format=%H %P %T %ad %s")
        assert git(target, *log) == git(top, *log)


# ── kinds of repositories ────────────────────────────────────────────────────────────────────


def test_it_answers_as_it_does_here(repo: Path, tmp_path: Path) -> None:
    (repo / "a.py").write_text("changed\n")
    (repo / "file1").unlink()
    (repo / "other").write_text("new\n")
    target = tmp_path / "target"
    target.mkdir()
    assert answers(carry(repo, target)) == answers(repo)
    assert git(target, "fsck") == b""


def test_sha256(tmp_path: Path) -> None:
    top = tmp_path / "repo"
    top.mkdir()
    git(top, "init", "-q", "--object-format=sha256")
    (top / "a").write_text("a\n")
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "one")
    target = tmp_path / "target"
    target.mkdir()
    assert answers(carry(top, target)) == answers(top)
    assert len(git(target, "rev-parse", "HEAD").strip()) == 64


def test_borrowed_objects_and_a_linked_work_tree(repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--shared", str(repo), "borrowing")
    git(tmp_path / "borrowing", "remote", "remove", "origin")
    git(repo, "worktree", "add", "-q", "../linked", "v1")
    for name in ("borrowing", "linked"):
        target = tmp_path / f"target-{name}"
        target.mkdir()
        top = tmp_path / name
        expected = [git(top, *words) for words in ASKED[:5]]
        carried = carry(top, target)
        assert [git(carried, *words) for words in ASKED[:5]] == expected


def test_submodules_and_files_out_of_sight_are_not_deleted(repo: Path, tmp_path: Path) -> None:
    git(repo, "submodule", "add", "-q", str(repo), "lib")
    git(repo, "commit", "-q", "-m", "with a submodule")
    git(repo, "update-index", "--skip-worktree", "file1")
    (repo / "file1").unlink()
    target = tmp_path / "target"
    target.mkdir()
    assert git(repo, "status", "--porcelain") == b""
    assert git(carry(repo, target), "status", "--porcelain") == b""


def test_a_merge_that_is_not_done(repo: Path, tmp_path: Path) -> None:
    git(repo, "checkout", "-q", "-b", "side", "HEAD~1")
    (repo / "a.py").write_text("side\n")
    git(repo, "commit", "-q", "-a", "-m", "side")
    with pytest.raises(Exception, match="non-zero"):
        git(repo, "merge", "main")
    target = tmp_path / "target"
    target.mkdir()
    expected = git(repo, "status", "--porcelain")
    assert b"UU a.py" in expected
    assert git(carry(repo, target), "status", "--porcelain") == expected


def test_line_ends_are_compared_as_here(repo: Path, tmp_path: Path) -> None:
    git(repo, "config", "core.autocrlf", "true")
    (repo / "a.py").unlink()
    git(repo, "checkout", "-q", "a.py")
    assert (repo / "a.py").read_bytes() == b"print(3)\r\n"
    target = tmp_path / "target"
    target.mkdir()
    assert git(repo, "status", "--porcelain") == b""
    assert git(carry(repo, target), "status", "--porcelain") == b""


@pytest.mark.parametrize("missing", ["blob:none", "tree:0"])
def test_a_partial_clone_is_asked_for_nothing_it_lacks(
    repo: Path, tmp_path: Path, missing: str
) -> None:
    git(repo, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", f"--filter={missing}", f"file://{repo}", "partial")
    partial, target = tmp_path / "partial", tmp_path / "target"
    (partial / "a.py").write_text("changed\n")
    before = objects_of(partial)
    target.mkdir()
    assert look(str(partial)).partial
    carry(partial, target)
    assert objects_of(partial) == before
    for words in (("status", "--porcelain"), ("diff",), ("describe", "--tags", "--dirty")):
        assert git(target, *words) == git(partial, *words)


# ── what does not go ─────────────────────────────────────────────────────────────────────────


def test_only_what_it_takes(repo: Path, tmp_path: Path) -> None:
    """[P-TRE-7]"""
    git(repo, "checkout", "-q", "-b", "side")
    (repo / "hidden").write_text("hidden\n")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "hidden")
    git(repo, "tag", "-a", "-m", "hidden", "side-tag")
    git(repo, "checkout", "-q", "main")
    (repo / "a.py").write_text("stashed\n")
    git(repo, "stash", "-q")
    target = tmp_path / "target"
    target.mkdir()
    carried = objects_of(carry(repo, target))
    assert carried < objects_of(repo)
    gone = (
        "side",
        "side-tag",
        "side:hidden",
        "stash",
        "stash:a.py",
        "HEAD~2:a.py",
        "HEAD~2^{tree}",
    )
    for name in gone:
        assert git(repo, "rev-parse", name).decode().strip() not in carried, name
    for name in ("HEAD", "HEAD~3", "v0", "HEAD:a.py", "HEAD^{tree}", "HEAD~1:a.py"):
        assert git(repo, "rev-parse", name).decode().strip() in carried, name
    names = {os.fsdecode(entry.path) for entry in replicate(repo).files.entries}
    packs = {name for name in names if name.startswith("objects/pack/")}
    assert names - packs == {"HEAD", "config", "index", "packed-refs", "refs/.keep"}
    assert len(packs) == 6


def test_no_version_of_what_stays_here(repo: Path) -> None:
    """[P-TRE-7]"""
    for name, text in (("secret.pem", "key"), ("out.bin", "binary"), (".npmrc", "_authToken=x")):
        (repo / name).write_text(text)
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "more")
    kept = {
        name: git(repo, "rev-parse", f"HEAD:{name}").decode().strip()
        for name in ("secret.pem", "out.bin", ".npmrc")
    }
    for name in kept:
        (repo / name).unlink()
    (repo / ".airloxignore").write_text("*.bin\n")
    there = objects_of(Path(replicate(repo).root).parent)
    assert there.isdisjoint(kept.values())
    allowing = replicate(repo, Choice(allow=("secret.pem", ".npmrc")))
    there = objects_of(Path(allowing.root).parent)
    assert there & set(kept.values()) == {kept["secret.pem"], kept[".npmrc"]}


def test_too_much_is_refused_by_name(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "FILES_BYTES", 10)
    with pytest.raises(TreeError, match="over 10 bytes") as caught:
        replicate(repo)
    assert caught.value.code == "metadata_too_large"
    assert os.listdir(repo.parent / "kept") == []


# ── replicas that are kept ───────────────────────────────────────────────────────────────────


def test_an_unchanged_repository_is_not_packed_again(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = replicate(repo)
    monkeypatch.setattr(replica, "_make", None)
    assert replicate(repo) == first


def test_the_same_history_is_packed_once(repo: Path) -> None:
    first = replicate(repo)
    (repo / "a.py").write_text("staged\n")
    git(repo, "add", "a.py")
    second = replicate(repo)
    assert len(packs_of(first) & packs_of(second)) == 1
    assert len(packs_of(second)) == 2


def packs_of(found: Replica) -> set[bytes]:
    return {entry.path for entry in found.files.entries if entry.path.endswith(b".pack")}


def test_of_a_history_that_goes_on_only_the_new_is_packed(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = replicate(repo)
    (repo / "a.py").write_text("more\n")
    git(repo, "commit", "-q", "-a", "-m", "more")
    git(repo, "tag", "-a", "-m", "late", "late", "HEAD~3")
    second = replicate(repo)
    assert len(packs_of(second)) == 3
    assert len(packs_of(first) & packs_of(second)) == 1
    target = tmp_path / "target"
    target.mkdir()
    assert answers(carry(repo, target)) == answers(repo)
    assert git(target, "fsck") == b""
    monkeypatch.setattr(making, "PACKS", 1)
    git(repo, "commit", "-q", "--allow-empty", "-m", "again")
    assert len(packs_of(replicate(repo))) == 2


def test_an_older_replica_that_is_being_removed_serves_no_more(repo: Path, tmp_path: Path) -> None:
    first = replicate(repo)
    for pack in Path(first.root, "objects/pack").glob("*.promisor"):
        pack.unlink()
    git(repo, "commit", "-q", "--allow-empty", "-m", "again")
    assert len(packs_of(replicate(repo))) == 2
    target = tmp_path / "target"
    target.mkdir()
    assert git(carry(repo, target), "fsck") == b""


@pytest.mark.parametrize("how", [("tag", "-d", "v1"), ("reset", "-q", "--hard", "HEAD~1")])
def test_what_is_no_longer_there_does_not_go(repo: Path, how: tuple[str, ...]) -> None:
    """[P-TRE-7] Nothing of a commit or a tag that was taken back."""
    gone = git(repo, "rev-parse", "v1" if how[0] == "tag" else "HEAD").decode().strip()
    assert gone in objects_of(Path(replicate(repo).root).parent)
    git(repo, *how)
    assert gone not in objects_of(Path(replicate(repo).root).parent)


def test_what_is_kept_is_bounded_and_damage_is_made_anew(repo: Path) -> None:
    for number in range(5):
        (repo / "a.py").write_text(str(number))
        git(repo, "add", "a.py")
        last = replicate(repo)
    assert len(os.listdir(repo.parent / "kept")) == replica.KEPT
    Path(last.root).parent.joinpath("index").write_bytes(b"damaged")
    assert replicate(repo) == last


def test_another_choice_is_another_replica(repo: Path) -> None:
    found = look(str(repo))
    kept = repo.parent / "kept"
    roots = {
        replica_of(found, choice, left_out, kept, rules_version=version).root
        for choice, left_out, version in [
            (EVERYTHING, (), "1"),
            (Choice(exclude=("a.py",)), (), "1"),
            (EVERYTHING, (LeftOut(b"a.py", "a FIFO"),), "1"),
            (EVERYTHING, (), "2"),
        ]
    }
    assert len(roots) == 4
