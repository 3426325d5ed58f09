"""A working tree on its way to a job: only what its runner lacks, and only from that tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airlox import ConnectionLost, ProtocolError, Session, TreeError, UsageError
from airlox.client import trees
from airlox.protocol import pack
from airlox.protocol.encoding import ItemId, b64u_decode
from airlox.tree.index import TreeIndex, parse_index
from airlox.tree.lack import encode_lack, encode_lacking_index
from airlox.tree.packs import read_pack
from journeys.conftest import People
from support.fake_runner import FULL, FakeRunner, Task
from support.trees import git

PATIENT_S = 60.0


class Keeper:
    """What a runner keeps of trees: contents by digest, as its packs brought them."""

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes] = {}
        self.received: list[set[bytes]] = []
        """Digests that came with each job."""
        self.cwd: object = None
        self.forget = False
        self.ask: Callable[[Task, TreeIndex], None] | None = None

    def __call__(self, task: Task) -> None:
        if self.forget:
            self.contents.clear()
        self.cwd = task.meta.cwd
        self.received.append(set())
        self._unpack(task)
        digest = b64u_decode(task.meta.tree.digest, 32)
        if digest not in self.contents:
            self._ask_and_wait(task, encode_lacking_index(digest))
        index = parse_index(self.contents[digest])
        missing = index.sizes().keys() - self.contents.keys()
        if missing:
            self._ask_and_wait(task, encode_lack(index, missing))
        assert not index.sizes().keys() - self.contents.keys()
        if self.ask is not None:
            self.ask(task, index)
        task.finish()

    def _ask_and_wait(self, task: Task, plain: bytes) -> None:
        before = len(task.packs())
        task.lacks(plain)
        for _ in range(600):
            if len(task.packs()) > before:
                break
            task.cancelled.wait(0.05)
        self._unpack(task)

    def _unpack(self, task: Task) -> None:
        for _, plain in sorted(task.packs().items()):
            for part in read_pack(plain, lambda what, digest, size: True):
                self.received[-1].add(part.digest)
                self.contents[part.digest] = part.data


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture
def sender(people: People, keeper: Keeper) -> Iterator[Session]:
    owner = people.owner(mode="execute", job_limits=FULL)
    with FakeRunner(owner.invites["runner"], people.folder, keeper) as runner:
        owner.approve_runner(runner.public)
        yield people.join(owner.invites["sender"], "sender")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    for number in range(20):
        (folder / "sub" / f"{number}.txt").write_text(f"file {number}")
    (folder / ".airloxignore").write_text("*.log\n")
    (folder / "noise.log").write_text("left out")
    return folder


def run(sender: Session, tree: Path, **options: Any) -> None:
    job = sender.run_shell(["true"], runner=options.pop("runner", "box"), tree=tree, **options)
    result = job.wait(PATIENT_S)
    assert result.ok
    assert result.tree == job.meta.tree.digest  # type: ignore[union-attr]


def test_the_first_time_all_then_only_what_changed(
    sender: Session, tree: Path, keeper: Keeper
) -> None:
    run(sender, tree)
    assert len(keeper.received[0]) == 21 + 1  # 20 files, the ignore file, the index
    run(sender, tree)
    assert keeper.received[1] == set()
    (tree / "sub" / "3.txt").write_text("changed")
    (tree / "new.txt").write_text("new")
    (tree / "sub" / "4.txt").unlink()
    run(sender, tree)
    assert len(keeper.received[2]) == 3
    assert b"left out" not in keeper.contents.values()


def test_a_later_process_knows_what_the_runner_has(
    sender: Session, tree: Path, keeper: Keeper, people: People
) -> None:
    run(sender, tree)
    sender.disconnect()
    again = people.join(_link(sender), "sender")
    run(again, tree)
    assert keeper.received[1] == set()


def _link(sender: Session) -> str:
    return sender._core.membership.invite.url()


def test_a_runner_that_lost_it_asks(sender: Session, tree: Path, keeper: Keeper) -> None:
    run(sender, tree)
    keeper.forget = True
    run(sender, tree)
    assert len(keeper.received[1]) == 22


def test_a_runner_not_chosen_beforehand_asks(sender: Session, tree: Path, keeper: Keeper) -> None:
    run(sender, tree, runner=None)
    assert len(keeper.received[0]) == 22


def test_a_sender_that_will_not_stay_sends_everything(
    sender: Session, tree: Path, keeper: Keeper
) -> None:
    run(sender, tree)
    keeper.forget = True
    run(sender, tree, stay=False)
    assert len(keeper.received[1]) == 22


def test_a_question_for_another_tree_gets_nothing(
    sender: Session, tree: Path, keeper: Keeper, tmp_path: Path
) -> None:
    """[P-TRE-2] A hostile runner fishes: a bitmap over an index of its own is refused."""
    other = parse_index(_index_of(tmp_path, b"secret").encode())
    before: list[int] = []

    def fish(task: Task, index: TreeIndex) -> None:
        before.append(len(task.packs()))
        task.lacks(encode_lack(other, other.sizes().keys()))
        task.lacks(encode_lacking_index(other.digest))
        task.print((1, b"after the questions"))
        task.cancelled.wait(0.3)
        before.append(len(task.packs()))

    keeper.ask = fish
    run(sender, tree)
    assert before[0] == before[1]
    assert any("refused" in warning for warning in sender.warnings)


def test_both_indexes_of_a_job_may_be_asked_for(
    sender: Session, tree: Path, keeper: Keeper, tmp_path: Path
) -> None:
    """[P-TRE-2] That of its tree and that of its repository, and no third one."""
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "one")
    other = parse_index(_index_of(tmp_path, b"secret").encode())
    named: list[bytes] = []

    def ask(task: Task, index: TreeIndex) -> None:
        digest = b64u_decode(task.meta.tree.git, 32)
        keeper._ask_and_wait(task, encode_lacking_index(digest))
        repository = parse_index(keeper.contents[digest])
        named.extend(entry.path for entry in repository.entries)
        keeper._ask_and_wait(task, encode_lack(repository, repository.sizes().keys()))
        assert not repository.sizes().keys() - keeper.contents.keys()
        count = len(task.packs())
        task.lacks(encode_lacking_index(other.digest))
        task.cancelled.wait(0.5)
        assert len(task.packs()) == count

    keeper.ask = ask
    keeper.forget = True
    run(sender, tree, runner=None, tree_options={"git_metadata": True})
    assert b"HEAD" in named
    assert b"config" in named


def test_an_unchanged_repository_is_not_sent_again(
    sender: Session, tree: Path, keeper: Keeper
) -> None:
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "one")
    options = {"git_metadata": True}
    run(sender, tree, tree_options=options)
    run(sender, tree, tree_options=options)
    assert keeper.received[1] == set()
    git(tree, "tag", "v1")
    run(sender, tree, tree_options=options)
    assert len(keeper.received[2]) == 2, "the index and packed-refs"
    with pytest.raises(UsageError, match="unknown tree option"):
        run(sender, tree, tree_options={"git": True})


def test_a_question_that_comes_again_costs_nothing(
    sender: Session, tree: Path, keeper: Keeper
) -> None:
    """[P-TRE-2] A relay may repeat a question: what was asked for is on the relay already."""
    core = sender._core
    put: list[int] = []
    api: Any = SimpleNamespace(
        put_pack=lambda job, number, sealed, epoch, moved: put.append(number),
        on_progress=None,
        events=core.api.events,
    )
    upload = trees.TreeUpload(core, str(tree), job=_job_id(), runner=None)
    runner = core.membership.key.public
    questions = [
        _sealed_question(core, upload, encode_lack(upload._tree.source.index, ())) for _ in range(2)
    ]
    everything = encode_lack(upload._tree.source.index, upload._tree.source.index.sizes().keys())
    asked = _sealed_question(core, upload, everything)
    for _ in range(50):
        upload.answer(asked, runner, api)
    assert put == [0]
    # one of another runner's, and one for another job, open nothing
    for wrong in (_sealed_question(core, upload, everything, job="B" * 22), questions[0][:-1]):
        with pytest.raises(ProtocolError):
            upload.answer(wrong, runner, api)
    assert put == [0]


def test_a_question_whose_answer_broke_is_answered_again(
    sender: Session, tree: Path, keeper: Keeper
) -> None:
    core = sender._core
    put: list[int] = []

    def put_pack(job: str, number: int, sealed: bytes, epoch: int, moved: object) -> None:
        put.append(number)
        if len(put) == 1:
            raise ConnectionLost("cut")

    upload = trees.TreeUpload(core, str(tree), job=_job_id(), runner=None)
    everything = encode_lack(upload._tree.source.index, upload._tree.source.index.sizes().keys())
    asked = _sealed_question(core, upload, everything)
    api: Any = SimpleNamespace(put_pack=put_pack, on_progress=None)
    with pytest.raises(ConnectionLost):
        upload.answer(asked, core.membership.key.public, api)
    upload.answer(asked, core.membership.key.public, api)
    assert put == [0, 1]


def _sealed_question(core: Any, upload: Any, plain: bytes, job: str | None = None) -> bytes:
    me = core.membership
    return pack.seal_lack(
        me.invite.session_key,
        me.manifest.session_id,
        job=ItemId(job or upload.job),
        runner=me.key.public,
        plain=plain,
        nonce=os.urandom(12),
    )


def _index_of(folder: Path, content: bytes) -> TreeIndex:
    from airlox.tree.read import read_index
    from airlox.tree.scan import scan

    (folder / "other").mkdir()
    (folder / "other" / "file").write_bytes(content)
    return read_index(scan(folder / "other"))


def test_questions_without_end_are_not_answered(
    sender: Session, tree: Path, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "ANSWERS", 2)
    upload = sender._core
    made = trees.TreeUpload(upload, str(tree), job=_job_id(), runner=None)
    for _ in range(3):
        with pytest.raises(ProtocolError) as caught:
            made.answer(b"x" * 60, upload.membership.key.public, upload.api)
    assert "again and again" in caught.value.message


def _job_id() -> Any:
    return "A" * 22


def test_credentials_stay_here(sender: Session, tree: Path, keeper: Keeper) -> None:
    (tree / ".env").write_text("TOKEN=x")
    with pytest.raises(TreeError) as caught:
        run(sender, tree)
    assert caught.value.code == "tree_credentials"
    assert sender.jobs() == []
    run(sender, tree, tree_options={"allow": [".env"]})
    assert b"TOKEN=x" in keeper.contents.values()
    run(sender, tree, tree_options={"exclude": [".env"]})
    wrong: list[dict[str, Any]] = [{"exclude": "*"}, {"alow": []}]
    for options in wrong:
        with pytest.raises(UsageError):
            run(sender, tree, tree_options=options)


def test_the_job_starts_where_its_sender_stands(
    sender: Session, tree: Path, keeper: Keeper
) -> None:
    from support import parts

    parts.require("git")
    import subprocess

    subprocess.run(["git", "init", "-q", str(tree)], check=True, timeout=60)
    run(sender, tree / "sub")
    assert keeper.cwd == "sub"
    assert b"file 0" in keeper.contents.values()
    run(sender, tree)
    assert keeper.cwd != "sub"


def test_a_floor_session_takes_no_tree(people: People, tree: Path) -> None:
    owner = people.owner(mode="execute")
    with pytest.raises(UsageError) as caught:
        owner.run_python("1", tree=tree)
    assert caught.value.code == "needs_full_session"
