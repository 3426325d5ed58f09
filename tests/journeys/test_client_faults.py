"""The network is cut, the disk is full: a clear error, nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox import ConnectionLost, RelayError, StorageError
from airlox.client import outbox
from airlox.protocol.chain import Place
from airlox.protocol.encoding import ItemId
from airlox.protocol.payload import Text
from journeys.conftest import People
from support.cutting import Network
from support.relay import RelayThread
from support.small_disk import small_disk


@pytest.fixture
def network(relay: RelayThread, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    monkeypatch.setattr(outbox, "FIRST_WAIT_S", 0.01)
    with Network(relay.url) as made:
        yield made


class TestCutOff:
    def test_in_the_middle_of_an_upload(self, people: People, network: Network) -> None:
        owner = people.owner(relay=network.url)
        owner.send_text("warm")
        network.cut_requests_after(300_000, holding=b"/items")
        owner.send_file(b"#" * 1_000_000, name="big.md")
        assert network.cuts == 1
        assert [item.name for item in owner.items()] == [None, "big.md"]
        assert any("again" in warning for warning in owner.warnings)

    def test_before_the_answer_of_an_upload(self, people: People, network: Network) -> None:
        """The relay has the item and nobody heard: the repetition does not make a second one."""
        owner = people.owner(relay=network.url)
        network.cut_answers(holding=b"/items ")
        ref = owner.send_text("once")
        assert network.cuts == 1
        assert [item.id for item in owner.items()] == [ref.id]

    def test_before_the_answers_of_create_and_join(self, people: People, network: Network) -> None:
        network.cut_answers(holding=b"POST /v1/sessions ")
        owner = people.owner(relay=network.url)
        network.cut_answers(holding=b"/participants")
        agent = people.join(owner.invites["sender"])
        assert network.cuts == 2
        agent.send_text("here")
        assert [p.display_name for p in owner.participants()] == ["owner", "agent"]

    def test_while_streaming(self, people: People, network: Network) -> None:
        owner = people.owner()
        link = owner.invites["sender"].replace(people.relay_url, network.url)
        agent = people.join(link)
        stream = agent.stream(timeout=60)
        owner.send_text("one")
        assert next(stream).text == "one"
        network.cut_now()
        owner.send_text("two")
        assert next(stream).text == "two"
        stream.close()

    def test_for_good(
        self, people: People, network: Network, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        owner = people.owner(relay=network.url)
        ref = owner.send_text("kept")
        owner.items()
        network.__exit__(None, None, None)
        sealed = owner._core.outbox.seal(_text("lost"))
        with pytest.raises(ConnectionLost):
            owner._core.outbox.post(sealed, timeout_s=0.2)
        with pytest.raises(ConnectionLost):
            owner.items()
        # what is here stays readable
        assert owner.item(ref.id) is not None


def _text(text: str) -> Text:
    return Text(text=text)


def test_a_duplicate_that_is_not_ours_is_an_error(people: People) -> None:
    """The same id with other bytes is never taken for a success, on whichever try."""
    owner = people.owner()
    first = owner._core.outbox.seal(_text("mine"))
    owner._core.outbox.post(first)
    owner._core.outbox.post(first)
    place = Place(ItemId(first.ref.id), ())
    other = owner._core.outbox.seal(_text("other"), place=place)
    with pytest.raises(RelayError) as caught:
        owner._core.outbox.post(other)
    assert caught.value.code == "duplicate"
    assert not owner._core.outbox._is_ours(other, owner._core.api)
    assert owner._core.outbox._is_ours(first, owner._core.api)
    assert [item.text for item in owner.items()] == ["mine"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "256k") as folder:
        yield folder


class TestDiskFull:
    def test_nothing_is_posted_that_is_not_kept(self, people: People, disk: Path) -> None:
        people.folder = disk
        owner = people.owner()
        with pytest.raises(StorageError) as caught:
            owner.send_file(b"#" * 400_000, name="big.md")
        assert caught.value.code == "disk_full"
        assert caught.value.hint
        assert owner.items() == []
        owner.send_text("small ones go on")
        assert [item.text for item in owner.items()] == ["small ones go on"]

    def test_a_reader_stops_before_anything_is_missed(self, people: People, disk: Path) -> None:
        owner = people.owner()
        people.folder = disk
        agent = people.join(owner.invites["sender"])
        agent.items()
        filler = disk / "filler"
        owner.send_file(b"#" * 100_000, name="a.md")
        owner.send_text("b")
        with pytest.raises(OSError), filler.open("wb") as file:  # noqa: PT012
            while True:
                file.write(bytes(4096))
                file.flush()
        with pytest.raises(StorageError) as caught:
            agent.items()
        assert caught.value.code == "disk_full"
        filler.unlink()
        assert [item.text or item.name for item in agent.items()] == ["a.md", "b"]
        # nor does a later process miss anything
        agent.disconnect()
        again = people.join(owner.invites["sender"])
        assert [item.text or item.name for item in again.items()] == ["a.md", "b"]

    def test_a_join_that_cannot_be_kept_is_an_error(self, people: People, disk: Path) -> None:
        owner = people.owner()
        people.folder = disk
        with pytest.raises(OSError), (disk / "filler").open("wb") as file:  # noqa: PT012
            while True:
                file.write(bytes(4096))
                file.flush()
        with pytest.raises(StorageError) as caught:
            people.join(owner.invites["sender"])
        assert caught.value.code == "disk_full"
