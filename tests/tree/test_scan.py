"""airlox.tree.scan: exactly the files git would commit or add right now."""

from __future__ import annotations

import os
import socket
from hashlib import sha256
from pathlib import Path

import pytest

from airlox.errors import TreeError
from airlox.tree.chunks import Cutter
from airlox.tree.pointer import make_pointer
from airlox.tree.read import read_index
from airlox.tree.scan import Choice, LeftOut, Scan, root_of, scan
from airlox.tree.source import ALL, TreeSource
from support.trees import Node, git, make_tree


@pytest.fixture(autouse=True)
def no_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """git under test sees no settings of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q")
    return folder


def files(found: Scan) -> dict[bytes, str]:
    return {file.path: file.kind.value for file in found.files}


def reasons(found: Scan) -> dict[bytes, str]:
    return {left.path: left.reason for left in found.left_out}


def commit(folder: Path, message: str = "m") -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


def code_of(root: Path, **choices: list[str]) -> str:
    choice = Choice(**{name: tuple(words) for name, words in choices.items()})  # type: ignore[arg-type]
    with pytest.raises(TreeError) as caught:
        scan(root, choice)
    return caught.value.code


class TestInGit:
    def test_tracked_and_untracked_in_ignored_and_deleted_out(self, repo: Path) -> None:
        make_tree(
            repo,
            {
                b"tracked": ("f", b"1"),
                b"run": ("x", b"1"),
                b"link": ("l", b"/nowhere"),
                b"deleted": ("f", b"1"),
                b".gitignore": ("f", b"*.o\nbuild/\n!kept.o\n"),
            },
        )
        commit(repo)
        (repo / "deleted").unlink()
        make_tree(
            repo,
            {
                b"sub/new": ("f", b""),
                b"a.o": ("f", b""),
                b"kept.o": ("f", b""),
                b"build/x": ("f", b""),
                b"empty/.keep": ("f", b""),
            },
        )
        (repo / "empty" / ".keep").unlink()
        assert files(scan(repo)) == {
            b".gitignore": "f",
            b"kept.o": "f",
            b"link": "l",
            b"run": "x",
            b"sub/new": "f",
            b"tracked": "f",
        }
        assert scan(repo).left_out == ()

    def test_a_tracked_file_that_is_ignored_goes(self, repo: Path) -> None:
        make_tree(repo, {b"a.o": ("f", b""), b".gitignore": ("f", b"*.o")})
        git(repo, "add", "-f", "a.o")
        assert files(scan(repo)) == {b".gitignore": "f", b"a.o": "f"}

    def test_names_of_any_bytes(self, repo: Path) -> None:
        names = [b"\xff\xfe", b"new\nline", b'quo"te', b"tab\t", b" space ", b"\xc3\xa9", b"-n"]
        make_tree(repo, dict.fromkeys(names, ("f", b"")))
        git(repo, "add", "-A", "--", 'quo"te')
        assert files(scan(repo)) == dict.fromkeys(sorted(names), "f")

    def test_the_same_set_as_git_add_all(self, repo: Path) -> None:
        make_tree(
            repo,
            {
                b".gitignore": ("f", b"/a/*\n!/a/keep\n**/c\nx?\n[yz]\n"),
                b"a/keep": ("f", b""),
                b"a/drop": ("f", b""),
                b"b/.gitignore": ("f", b"*\n!.gitignore\n!yes\n"),
                b"b/yes": ("f", b""),
                b"b/no": ("f", b""),
                b"d/c/e": ("f", b""),
                b"x1": ("f", b""),
                b"y": ("f", b""),
                b"w": ("l", b"a"),
            },
        )
        (repo / ".git" / "info" / "exclude").write_text("secretly\n")
        make_tree(repo, {b"secretly": ("f", b"")})
        found = set(files(scan(repo)))
        git(repo, "add", "-A")
        assert found == set(git(repo, "ls-files", "-z").split(b"\0")) - {b""}

    def test_a_folder_in_place_of_a_tracked_file_and_the_reverse(self, repo: Path) -> None:
        make_tree(repo, {b"a": ("f", b""), b"b/c": ("f", b""), b"d/e": ("f", b"")})
        commit(repo)
        (repo / "a").unlink()
        make_tree(repo, {b"a/inner": ("f", b"")})
        (repo / "b" / "c").unlink()
        (repo / "b").rmdir()
        make_tree(repo, {b"b": ("f", b"")})
        (repo / "d" / "e").rename(repo / "elsewhere")
        (repo / "d").rmdir()
        (repo / "d").symlink_to("a")
        found = scan(repo)
        assert files(found) == {b"a/inner": "f", b"b": "f", b"d": "l", b"elsewhere": "f"}
        assert found.left_out == ()

    def test_an_unmerged_file_goes_once(self, repo: Path) -> None:
        make_tree(repo, {b"a": ("f", b"base")})
        commit(repo)
        git(repo, "checkout", "-q", "-b", "other")
        (repo / "a").write_bytes(b"theirs")
        commit(repo)
        git(repo, "checkout", "-q", "main")
        (repo / "a").write_bytes(b"ours")
        commit(repo)
        with pytest.raises(Exception, match="merge"):
            git(repo, "merge", "-q", "other")
        assert [file.path for file in scan(repo).files] == [b"a"]

    def test_submodules_and_nested_repositories_are_named(self, repo: Path, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.mkdir()
        git(source, "init", "-q")
        make_tree(source, {b"s": ("f", b"")})
        commit(source)
        git(repo, "submodule", "--quiet", "add", str(source), "sub")
        git(repo, "submodule", "--quiet", "add", str(source), "gone")
        git(repo, "commit", "-q", "-m", "m")
        git(repo, "submodule", "--quiet", "deinit", "gone")
        git(repo, "clone", "-q", str(source), "nested")
        found = scan(repo)
        assert files(found) == {b".gitmodules": "f"}
        assert reasons(found) == {
            b"gone": "a submodule that is not checked out, or an empty folder",
            b"nested/": "a nested git repository",
            b"sub": "a nested git repository",
        }
        assert files(scan(repo / "sub")) == {b"s": "f"}

    def test_a_linked_worktree_is_a_tree_of_its_own(self, repo: Path, tmp_path: Path) -> None:
        make_tree(repo, {b"a": ("f", b"")})
        commit(repo)
        git(repo, "worktree", "add", "-q", str(tmp_path / "linked"))
        make_tree(tmp_path / "linked", {b"new": ("f", b"")})
        assert files(scan(tmp_path / "linked")) == {b"a": "f", b"new": "f"}

    def test_a_special_file_in_place_of_a_tracked_one_is_named(self, repo: Path) -> None:
        make_tree(repo, {b"a": ("f", b"")})
        commit(repo)
        (repo / "a").unlink()
        os.mkfifo(repo / "a")
        assert reasons(scan(repo)) == {b"a": "a FIFO"}

    def test_variables_of_a_hook_do_not_lead_elsewhere(
        self, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_tree(repo, {b"a": ("f", b"")})
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "no"))
        monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "no2"))
        assert files(scan(repo)) == {b"a": "f"}

    def test_no_program_named_by_the_repository_is_run(self, repo: Path, tmp_path: Path) -> None:
        make_tree(repo, {b"a": ("f", b"")})
        hook = tmp_path / "hook"
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        hook.chmod(0o755)
        git(repo, "config", "core.fsmonitor", str(hook))
        scan(repo)
        assert not (tmp_path / "ran").exists()

    def test_a_sub_folder_alone(self, repo: Path) -> None:
        make_tree(repo, {b"a/b": ("f", b""), b"c": ("f", b""), b".gitignore": ("f", b"*.o")})
        make_tree(repo, {b"a/x.o": ("f", b"")})
        assert files(scan(repo / "a")) == {b"b": "f"}

    def test_what_git_refuses_is_an_error(self, repo: Path) -> None:
        (repo / ".git" / "config").write_text("[broken")
        assert code_of(repo) == "git_failed"

    def test_git_is_missing(self, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(repo))
        assert code_of(repo) == "missing_git"

    def test_a_lfs_pointer_goes_as_it_stands(self, repo: Path) -> None:
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
        make_tree(repo, {b".gitattributes": ("f", b"*.bin filter=lfs\n"), b"a.bin": ("f", pointer)})
        [_, file] = scan(repo).files
        assert (file.path, file.size) == (b"a.bin", len(pointer))


class TestOutsideGit:
    def test_every_file(self, tmp_path: Path) -> None:
        make_tree(
            tmp_path,
            {b"a/b/c": ("f", b"12"), b"x": ("x", b""), b"l": ("l", b"a"), b"\xff\n": ("f", b"")},
        )
        found = scan(tmp_path)
        assert files(found) == {b"\xff\n": "f", b"a/b/c": "f", b"l": "l", b"x": "x"}
        assert [file.size for file in found.files if file.path == b"a/b/c"] == [2]

    def test_special_files_and_nested_repositories_are_named(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "socket"))
            (tmp_path / "nested").mkdir()
            git(tmp_path / "nested", "init", "-q")
            found = scan(tmp_path)
        assert files(found) == {}
        assert reasons(found) == {
            b"fifo": "a FIFO",
            b"nested": "a nested git repository",
            b"socket": "a socket",
        }

    def test_a_reserved_name_stays(self, tmp_path: Path) -> None:
        make_tree(tmp_path, {b".airlox-sync-1": ("f", b""), b"a": ("f", b"")})
        found = scan(tmp_path)
        assert files(found) == {b"a": "f"}
        assert reasons(found) == {b".airlox-sync-1": "the name .airlox-sync-1 is reserved"}

    def test_the_home_folder_is_no_project(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        assert code_of(tmp_path) == "tree_root"
        (tmp_path / "project").mkdir()
        assert files(scan(tmp_path / "project")) == {}

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        assert code_of(tmp_path / "no") == "tree_unreadable"


@pytest.mark.parametrize("in_git", [True, False])
class TestExclusions:
    @pytest.fixture
    def root(self, repo: Path, in_git: bool, tmp_path: Path) -> Path:
        return repo if in_git else tmp_path / "plain"

    def test_patterns_and_ignore_file(self, root: Path) -> None:
        make_tree(
            root,
            {
                b".airloxignore": ("f", b"# big\n/data/\n"),
                b"data/x": ("f", b""),
                b"a.bin": ("f", b""),
                b"a.txt": ("f", b""),
            },
        )
        found = scan(root, Choice(exclude=("*.bin",)))
        assert files(found) == {b".airloxignore": "f", b"a.txt": "f"}
        assert LeftOut(b"a.bin", "excluded by --tree-exclude") in found.left_out
        assert "excluded by .airloxignore" in reasons(found).values()

    def test_an_ignore_file_that_is_a_link_is_refused(self, root: Path) -> None:
        make_tree(root, {b".airloxignore": ("l", b"/etc/passwd")})
        assert code_of(root) == "tree_pattern"

    def test_credentials_are_refused_by_name(self, root: Path) -> None:
        make_tree(
            root,
            {
                **{b"d%02d/.env" % n: ("f", b"") for n in range(12)},
                b".env.example": ("f", b""),
                b".npmrc": ("f", b"save-exact=true"),
                b"id_rsa": ("l", b"elsewhere"),
            },
        )
        with pytest.raises(TreeError) as caught:
            scan(root)
        assert caught.value.code == "tree_credentials"
        assert "d00/.env, d01/.env" in caught.value.message
        assert "d09/.env and 2 more" in caught.value.message
        assert "d10" not in caught.value.message
        assert "--tree-allow NAME" in (caught.value.hint or "")

    def test_credentials_allowed_or_excluded(self, root: Path) -> None:
        make_tree(root, {b"a/.env": ("f", b""), b"b/.env": ("f", b""), b"k.pem": ("f", b"")})
        assert code_of(root, allow=[".env"]) == "tree_credentials"
        assert code_of(root, allow=["a/.env", "k.pem"]) == "tree_credentials"
        assert len(scan(root, Choice(allow=(".env", "k.pem"))).files) == 3
        assert set(files(scan(root, Choice(allow=("a/.env",), exclude=("k.pem", "b/"))))) == {
            b"a/.env"
        }

    def test_a_doubtful_name_with_a_login(self, root: Path) -> None:
        make_tree(root, {b".npmrc": ("f", b"//r.example/:_authToken=abc\n")})
        assert code_of(root) == "tree_credentials"
        assert files(scan(root, Choice(allow=(".npmrc",)))) == {b".npmrc": "f"}

    def test_an_odd_name_is_shown_safely(self, root: Path) -> None:
        make_tree(root, {b"\x1b[2J.pem": ("f", b"")})
        with pytest.raises(TreeError) as caught:
            scan(root)
        assert caught.value.message.isprintable()


class TestRootOf:
    def test_the_top_of_the_work_tree_and_the_way_down(self, repo: Path) -> None:
        (repo / "a" / "b").mkdir(parents=True)
        assert root_of(repo / "a" / "b") == (str(repo.resolve()), "a/b")
        assert root_of(repo) == (str(repo.resolve()), "")

    def test_outside_git_the_folder_itself(self, tmp_path: Path) -> None:
        assert root_of(tmp_path) == (str(tmp_path.resolve()), "")

    def test_an_empty_folder_named_dot_git_is_no_repository(self, repo: Path) -> None:
        (repo / "a" / ".git").mkdir(parents=True)
        assert root_of(repo / "a") == (str(repo.resolve()), "a")

    def test_through_a_link(self, repo: Path, tmp_path: Path) -> None:
        (repo / "a").mkdir()
        (tmp_path / "way").symlink_to(repo / "a")
        assert root_of(tmp_path / "way") == (str(repo.resolve()), "a")


class TestAnotherFolderInItsPlace:
    def test_is_not_read_for_the_index_or_for_what_is_sent(self, tmp_path: Path) -> None:
        tree, other = tmp_path / "tree", tmp_path / "other"
        for folder in (tree, other):
            make_tree(folder, {b"a.txt": ("f", b"the same")})
        found = scan(tree)
        source = TreeSource(found, read_index(found), Cutter(1))
        tree.rename(tmp_path / "aside")
        other.rename(tree)
        with pytest.raises(TreeError) as caught:
            read_index(found)
        assert caught.value.code == "tree_changed"
        with pytest.raises(TreeError) as caught:
            list(source.records(dict.fromkeys(source.index.sizes(), ALL)))
        assert caught.value.code == "tree_changed"


class TestInclusions:
    @pytest.fixture
    def built(self, repo: Path) -> Path:
        make_tree(
            repo,
            {
                b"a": ("f", b"1"),
                b".gitignore": ("f", b"build/\n*.o\n"),
                b"build/x/out.bin": ("f", b"1"),
                b"build/log": ("f", b"1"),
                b"sub/m.o": ("f", b"1"),
                b"m.o": ("f", b"1"),
            },
        )
        return repo

    @pytest.mark.parametrize(
        ("patterns", "added"),
        [
            (("build",), {b"build/x/out.bin", b"build/log"}),
            (("build/",), {b"build/x/out.bin", b"build/log"}),
            (("/build/x",), {b"build/x/out.bin"}),
            (("*.o",), {b"m.o"}),
            (("**/*.o",), {b"m.o", b"sub/m.o"}),
            (("build/log", "m.o"), {b"build/log", b"m.o"}),
        ],
    )
    def test_ignored_files_that_go_all_the_same(
        self, built: Path, patterns: tuple[str, ...], added: set[bytes]
    ) -> None:
        found = scan(built, Choice(include=patterns))
        assert files(found).keys() == {b"a", b".gitignore", *added}
        assert [file.path for file in found.files] == sorted(file.path for file in found.files)

    def test_a_pattern_that_matches_nothing_is_named(self, built: Path) -> None:
        assert code_of(built, include=["a"]) == "tree_include"
        assert code_of(built, include=["m.o", "absent"]) == "tree_include"

    def test_credentials_are_asked_about_all_the_same(self, built: Path) -> None:
        make_tree(built, {b"build/.env": ("f", b"KEY=1")})
        assert code_of(built, include=["build"]) == "tree_credentials"

    @pytest.mark.parametrize("in_git", [True, False])
    def test_it_wins_over_the_ignore_file_and_not_over_an_exclusion(
        self, tmp_path: Path, repo: Path, in_git: bool
    ) -> None:
        root = repo if in_git else tmp_path / "plain"
        root.mkdir(exist_ok=True)
        nodes: dict[bytes, Node] = {
            b".airloxignore": ("f", b"data/\n"),
            b"data/a": ("f", b"1"),
            b"data/b": ("f", b"1"),
        }
        make_tree(root, nodes)
        if in_git:
            (root / ".gitignore").write_text("data/\n")
        found = files(scan(root, Choice(include=("data/a",)))).keys()
        assert found - {b".gitignore"} == {b".airloxignore", b"data/a"}
        choice = Choice(include=("data",), exclude=("data/a",))
        assert files(scan(root, choice)).keys() - {b".gitignore"} == {b".airloxignore", b"data/b"}


class TestLargeFileStorage:
    """Git LFS: what git would commit goes, that is a pointer, unless the content is asked for."""

    CONTENT = b"large " * 1000

    @pytest.fixture
    def stored(self, repo: Path) -> Path:
        make_tree(
            repo,
            {
                b".gitattributes": ("f", b"*.bin filter=lfs -text\n"),
                b"a.bin": ("x", self.CONTENT),
                b"d/new.bin": ("f", b"small"),
                b"fetched-not.bin": ("f", make_pointer("ab" * 32, 7)),
                b"link.bin": ("l", b"a.bin"),
                b"plain": ("f", self.CONTENT),
            },
        )
        git(repo, "-c", "filter.lfs.clean=cat", "add", "a.bin", ".gitattributes")
        return repo

    def test_pointers_go(self, stored: Path) -> None:
        found = scan(stored)
        assert found.pointers == (b"a.bin", b"d/new.bin", b"fetched-not.bin")
        source = TreeSource(found, read_index(found), Cutter(1))
        sent = {r.digest: r.data for r in source.records(dict.fromkeys(source.index.sizes(), ALL))}
        contents = {entry.path: sent[entry.digest] for entry in source.index.entries}
        assert contents[b"a.bin"] == make_pointer(sha256(self.CONTENT).hexdigest(), 6000)
        assert contents[b"d/new.bin"] == make_pointer(sha256(b"small").hexdigest(), 5)
        assert contents[b"fetched-not.bin"] == make_pointer("ab" * 32, 7)
        assert (contents[b"link.bin"], contents[b"plain"]) == (b"a.bin", self.CONTENT)
        assert files(found)[b"a.bin"] == "x"

    def test_their_content_goes_when_asked_for(self, stored: Path) -> None:
        found = scan(stored, Choice(lfs=True))
        assert found.pointers == ()
        sizes = {entry.path: entry.size for entry in read_index(found).entries}
        assert sizes[b"a.bin"] == 6000

    def test_one_that_changed_is_not_sent(self, stored: Path) -> None:
        found = scan(stored)
        source = TreeSource(found, read_index(found), Cutter(1))
        (stored / "a.bin").write_bytes(self.CONTENT[::-1])
        [digest] = [e.digest for e in source.index.entries if e.path == b"a.bin"]
        with pytest.raises(TreeError, match=r"a\.bin changed"):
            list(source.records({digest: ALL}))

    def test_attributes_outside_of_the_tree_count(self, repo: Path) -> None:
        make_tree(repo, {b"a.bin": ("f", b"1")})
        assert scan(repo).pointers == ()
        (repo / ".git/info").mkdir(exist_ok=True)
        (repo / ".git/info/attributes").write_text("*.bin filter=lfs\n")
        assert scan(repo).pointers == (b"a.bin",)
