"""What a job changed, returned by runners of every kind of honesty."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from airlox import PolicyError, ProtocolError, Session, UsageError
from airlox.client.pulling import Change
from airlox.client.result import Result
from airlox.protocol.job import CHANGES_NAME
from airlox.tree.changes import encode_changes
from airlox.tree.index import MAGIC, TreeIndex
from journeys.conftest import People
from support.fake_runner import FULL, FakeRunner, Task
from support.trees import Node, changes_between, describe, make_tree

WAIT_S = 60.0
ZIP = "application/zip"
SENT: dict[bytes, Node] = {b"a.py": ("f", b"one"), b"d/b.py": ("x", b"two"), b"c.md": ("f", b"")}
LIMITS = {**FULL, "approve_runners": False}
FEATURES = ("pull",)


def packed(before: dict[bytes, Node], after: dict[bytes, Node]) -> bytes:
    return encode_changes(changes_between(before, after))


def renamed(path: bytes) -> bytes:
    """An archive with a new empty file of any path, which no honest index can have."""
    row = b"f" + len(path).to_bytes(2, "big") + path + bytes(8) + sha256(b"").digest()
    members = {
        "before": TreeIndex(()).encode(),
        "after": MAGIC + (1).to_bytes(4, "big") + row,
        sha256(b"").hexdigest(): b"",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


class Pulling:
    """A session with one runner, which returns `bodies` as changes."""

    def __init__(self, people: People, tree: Path) -> None:
        self.session: Session = people.owner(mode="execute", job_limits=LIMITS, features=FEATURES)
        self.tree = tree
        self.bodies: list[bytes] = []
        self.runner = FakeRunner(self.session.invites["runner"], people.folder, self._run)

    def result(self, *bodies: bytes, **options: Any) -> Result:
        self.bodies = list(bodies)
        given: dict[str, Any] = {"tree": self.tree, "pull": ["**/*.py"]} | options
        return self.session.run_shell(["true"], runner="box", **given).wait(WAIT_S)

    def _run(self, task: Task) -> None:
        files = [task.send_file(CHANGES_NAME, body, "zip", ZIP) for body in self.bodies]
        task.finish(out_files=tuple(files))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    make_tree(folder, SENT)
    return folder


@pytest.fixture
def pulling(people: People, tree: Path) -> Iterator[Pulling]:
    made = Pulling(people, tree)
    with made.runner:
        yield made


def test_changes_come_back(pulling: Pulling, tree: Path) -> None:
    new: dict[bytes, Node] = {b"a.py": ("x", b"ONE"), b"n/new.py": ("l", b"../a.py")}
    result = pulling.result(packed({b"a.py": SENT[b"a.py"], b"d/b.py": SENT[b"d/b.py"]}, new))
    assert result.out_files == ()
    assert result.changes == (
        Change("a.py", "changed"),
        Change("d/b.py", "deleted"),
        Change("n/new.py", "new"),
    )
    assert [each.done for each in result.apply_changes()] == ["changed", "deleted", "new"]
    assert describe(tree) == new | {b"c.md": SENT[b"c.md"]}


def test_nothing_comes_back(pulling: Pulling) -> None:
    result = pulling.result()
    assert result.changes == ()
    assert result.apply_changes() == ()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "absolute": lambda: renamed(b"/tmp/x.py"),
    "up": lambda: renamed(b"../x.py"),
    "up-inside": lambda: renamed(b"d/../../x.py"),
    "git": lambda: renamed(b".git/hooks/x.py"),
    "git-of-another-case": lambda: renamed(b"d/.GIT/x.py"),
    "git-short-name": lambda: renamed(b"git~1/x.py"),
    "not-asked-for": lambda: renamed(b"x.sh"),
    "asked-for-and-not": lambda: packed({b"c.md": SENT[b"c.md"]}, {b"x.py": ("f", b"")}),
    "never-like-that": lambda: packed({b"a.py": ("f", b"guess")}, {b"a.py": ("f", b"over")}),
    "another-mode": lambda: packed({b"a.py": ("x", b"one")}, {}),
    "never-there": lambda: packed({b"z.py": ("f", b"")}, {}),
    "new-over-old": lambda: packed({}, {b"a.py": ("f", b"over")}),
    "a-folder-s-name": lambda: packed({}, {b"d": ("f", b""), b"x.py": ("f", b"")}),
    "no-indexes": lambda: renamed(b"x.py").replace(b"before", b"befour"),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_a_runner_that_returns_what_it_may_not(
    pulling: Pulling, tree: Path, body: Callable[[], bytes]
) -> None:
    """[P-PUL-3] It is refused as a whole; the result stands."""
    result = pulling.result(body())
    assert result.ok
    for use in (lambda: result.changes, result.apply_changes, result.patch):
        with pytest.raises(ProtocolError):
            use()
    assert describe(tree) == SENT


def test_names_that_differ_in_case_are_files_of_their_own(pulling: Pulling, tree: Path) -> None:
    result = pulling.result(
        packed({}, {b"A.py": ("f", b"A"), b"new.py": ("f", b""), b"NEW.py": ("f", b"N")})
    )
    result.apply_changes()
    now = describe(tree)
    assert now[b"a.py"] == SENT[b"a.py"]
    if b"A.py" in now:  # where the file system tells them apart
        assert now[b"NEW.py"] == ("f", b"N")


def test_the_first_of_two_counts(pulling: Pulling) -> None:
    first, second = packed({}, {b"1.py": ("f", b"")}), packed({}, {b"2.py": ("f", b"")})
    result = pulling.result(first, second)
    assert result.changes == (Change("1.py", "new"),)


def test_a_job_that_asked_for_nothing(pulling: Pulling, tree: Path) -> None:
    result = pulling.result(packed({}, {b"1.py": ("f", b"")}), pull=None)
    assert [file.name for file in result.out_files] == [CHANGES_NAME]
    for use in (lambda: result.changes, result.apply_changes, result.patch):
        with pytest.raises(UsageError) as caught:
            use()
        assert caught.value.code == "not_pulled"


def test_a_handle_that_does_not_know_the_tree(pulling: Pulling, tree: Path) -> None:
    """It takes the runner's word for what was sent, and still keeps what is not like that."""
    body = packed({b"a.py": ("f", b"guess")}, {b"a.py": ("f", b"over")})
    result = pulling.session.job(pulling.result(body).job).result()
    assert result is not None
    [kept] = result.apply_changes(tree)
    assert (kept.path, kept.done) == ("a.py", "kept")
    assert (tree / "a.py").read_bytes() == b"one"


class TestSessions:
    def test_without_the_feature(self, people: People, tree: Path) -> None:
        session = people.owner(mode="execute", job_limits=LIMITS)
        with pytest.raises(UsageError) as caught:
            session.run_shell("true", tree=tree, pull=["**"])
        assert caught.value.code == "no_pull"

    def test_that_return_no_files(self, people: People, tree: Path) -> None:
        limits = {**LIMITS, "return_out": False}
        session = people.owner(mode="execute", job_limits=limits, features=FEATURES)
        with pytest.raises(PolicyError) as caught:
            session.run_shell("true", tree=tree, pull=["**"])
        assert caught.value.code == "no_files_back"

    def test_without_a_tree(self, people: People) -> None:
        with pytest.raises(UsageError):
            people.owner(mode="execute", job_limits=LIMITS, features=FEATURES).run_shell(
                "true", pull=["**"]
            )

    def test_one_pattern_is_a_list_too(self, people: People, tree: Path) -> None:
        with pytest.raises(UsageError):
            people.owner(mode="execute", job_limits=LIMITS, features=FEATURES).run_shell(
                "true", tree=tree, pull="**"
            )
