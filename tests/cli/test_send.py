"""`airlox send`, and what the others then see of it: real relay, each command to its end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.cli.main import EXIT_RECIPIENT
from airlox.protocol.keys import fingerprint
from support.here import Here, people_of, someone
from support.relay import RelayThread


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayThread]:
    with RelayThread(creates_per_minute=0) as running:
        yield running


class Talk:
    """A session with its owner, two senders, of whom one is `coder`, and an observer."""

    def __init__(self, relay: RelayThread, home: Path) -> None:
        people = people_of(relay.url, home)
        self.owner, self.link, self.observer = people["owner"], people["sender"], people["observer"]
        self.coder = self.join("coder")
        self.other = self.join("other")
        self.observer("items", "--as", "watcher")

    def join(self, name: str) -> Here:
        return someone(self.link, name)

    def key(self, name: str) -> str:
        people = self.owner("session", "info", "--json").document["participants"]
        (key,) = [p["participant_pub"] for p in people if p["display_name"] == name]
        return str(key)


@pytest.fixture
def talk(relay: RelayThread, tmp_path: Path) -> Talk:
    return Talk(relay, tmp_path)


def sent(person: Here, *words: str) -> str:
    item: str = person("send", "text", *words, "--json").document["sent"]["id"]
    return item


class TestAddressed:
    def test_what_each_of_them_sees(self, talk: Talk) -> None:
        asked = sent(talk.owner, "Review parser.py?", "--to", "coder", "--to", "role:observer")
        answer = sent(talk.coder, "Done.", "--reply-to", asked)
        seen = {
            who: [(i.get("to"), i.get("reply_to"), i.get("for_me")) for i in items]
            for who, items in {
                "owner": talk.owner("items", "--json").lines,
                "coder": talk.coder("items", "--json").lines,
                "watcher": talk.observer("items", "--json").lines,
                "other": talk.other("items", "--json").lines,
            }.items()
        }
        to = sorted([talk.key("coder"), "role:observer"])
        assert seen == {
            "owner": [(to, None, None), (None, asked, ["reply"])],
            "coder": [(to, None, ["addressed"]), (None, asked, None)],
            "watcher": [(to, None, ["role"]), (None, asked, None)],
            "other": [(to, None, None), (None, asked, None)],
        }
        assert [i["id"] for i in talk.owner("items", "--json").lines] == [asked, answer]

    @pytest.mark.parametrize("form", ["name", "key", "fingerprint"])
    def test_every_way_to_name_somebody(self, talk: Talk, form: str) -> None:
        key = talk.key("coder")
        who = {"name": "coder", "key": key, "fingerprint": fingerprint(key)}[form]  # type: ignore[arg-type]
        sent(talk.other, "hi", "--to", who)
        (item,) = talk.coder("items", "--for-me", "--json").lines
        assert item["for_me"] == ["addressed"]

    def test_files_too(self, talk: Talk, tmp_path: Path) -> None:
        (tmp_path / "a.md").write_text("# a\n")
        (tmp_path / "b.md").write_text("# b\n")
        first = sent(talk.coder, "where are they?")
        talk.owner("send", "file", "a.md", "b.md", "--to", "coder", "--reply-to", first)
        items = talk.coder("items", "--for-me", "--json", "--save", "in").lines
        assert [(i["name"], i["for_me"], i["reply_to"]) for i in items] == [
            ("a.md", ["addressed", "reply"], first),
            ("b.md", ["addressed", "reply"], first),
        ]
        assert sorted(p.name for p in (tmp_path / "in").iterdir()) == ["a.md", "b.md"]

    def test_ids_that_begin_with_a_dash_are_no_flags(self, talk: Talk) -> None:
        for words in (("--reply-to", "-" + "A" * 21), ("--to", "-" + "A" * 42)):
            done = talk.coder("send", "text", "x", *words, "--json", code=None)
            assert done.error["code"] in ("no_such_item", "no_such_participant")


NOBODY = EXIT_RECIPIENT["no_such_participant"]
REFUSALS = {
    "nobody": ("Nobody", "no_such_participant"),
    "an empty name": ("", "no_recipients"),
    "oneself": ("coder", "no_recipients"),
    "a name that two have": ("twin", "ambiguous_name"),
    "who has left": ("gone", "participant_left"),
    "no role": ("role:admin", "no_such_role"),
}


class TestRefused:
    """[P-ADR-3] Nothing leaves: neither the message nor anything before it."""

    @pytest.mark.parametrize(("who", "code"), REFUSALS.values(), ids=REFUSALS)
    def test_each_has_its_code_and_nothing_is_sent(self, talk: Talk, who: str, code: str) -> None:
        if code == "ambiguous_name":
            someone(talk.link, "twin")
            Here(talk.link.relay, talk.link.home.parent / "twin-2", invite=talk.link.invite)(
                "items", "--as", "twin"
            )
        if code == "participant_left":
            talk.join("gone")
            from airlox import Session

            cache = talk.link.home.parent / "gone"
            with Session.join(talk.link.invite, cache_dir=cache) as leaving:
                leaving.leave()
        for command in (("text", "secret"), ("file", "a.md")):
            (talk.link.home.parent / "a.md").write_text("secret")
            done = talk.coder("send", *command, "--to", who, "--json", code=EXIT_RECIPIENT[code])
            assert done.error["code"] == code
            assert done.error["hint"]
        assert talk.owner("items", "--json").out == ""

    def test_one_bad_name_among_good_ones(self, talk: Talk) -> None:
        talk.coder("send", "text", "x", "--to", "other", "--to", "nobody", code=NOBODY)
        assert talk.owner("items", "--json").out == ""

    def test_a_reply_to_nothing(self, talk: Talk) -> None:
        for item in ("A" * 22, "no id", ""):
            done = talk.coder("send", "text", "x", "--reply-to", item, "--json", code=1)
            assert done.error["code"] == "no_such_item"
        assert talk.owner("items", "--json").out == ""

    def test_an_observer_is_told_what_it_may_not_first_of_all(self, talk: Talk) -> None:
        done = talk.observer("send", "text", "x", "--to", "nobody", "--json", code=1)
        assert done.error["code"] == "forbidden"


class TestVoice:
    def test_a_transcript(self, talk: Talk) -> None:
        asked = sent(talk.owner, "Review parser.py?", "--to", "coder")
        answer = sent(talk.coder, "Which one?", "--reply-to", asked)
        again = sent(talk.owner, "src/parser.py", "--to", "role:sender", "--reply-to", answer)
        assert _read(talk.coder("items").out) == [
            f"olga (owner)  text → you  [{asked}]",
            "    Review parser.py?",
            f"coder (sender)  text ↩ {asked}  [{answer}]",
            "    Which one?",
            f"olga (owner)  text → role:sender ↩ {answer}  [{again}]",
            "    src/parser.py",
        ]
        assert _read(talk.observer("items").out)[0] == f"olga (owner)  text → coder  [{asked}]"

    def test_a_refusal(self, talk: Talk) -> None:
        done = talk.coder("send", "text", "hi", "--to", "bob", code=NOBODY)
        assert done.out == ""
        assert done.err == (
            "airlox: nobody in this session is 'bob'\n"
            "  hint: here are: coder, olga, other, watcher; `airlox session info` lists all\n"
        )

    def test_a_role_that_nobody_has_now(self, talk: Talk) -> None:
        done = talk.coder("send", "text", "hi", "--to", "role:runner")
        assert done.out.startswith("sent ")
        assert done.err == "airlox: nobody else here has the role runner now\n"

    def test_escapes_in_names_are_shown_and_not_obeyed(self, talk: Talk) -> None:
        for who in ("\x1b]0;owned\x07", "a\nairlox: sent", "\u202eevil"):
            done = talk.coder("send", "text", "hi", "--to", who, code=NOBODY)
            assert all(c.isprintable() or c == "\n" for c in done.err)
            assert done.err.count("\n") == 2
            done = talk.coder("send", "text", "x", "--to", who, "--json", code=NOBODY)
            assert done.err.isascii()
            assert done.err.count("\n") == 1


def _read(out: str) -> list[str]:
    """Lines without the time of each."""
    return [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", "", line) for line in out.splitlines()]


class TestForMe:
    def test_items(self, talk: Talk) -> None:
        sent(talk.owner, "everybody")
        sent(talk.other, "to nobody")
        mine = sent(talk.coder, "mine")
        sent(talk.other, "to the owner", "--to", "olga")
        sent(talk.other, "an answer", "--reply-to", mine)
        found = [i["text"] for i in talk.coder("items", "--for-me", "--json").lines]
        assert found == ["everybody", "an answer"]
        assert len(talk.coder("items", "--json").lines) == 5

    def test_watch(self, talk: Talk) -> None:
        sent(talk.owner, "before", "--to", "coder")
        sent(talk.other, "not for you", "--to", "olga")
        words = ("watch", "--for-me", "--json", "--timeout", "1")
        assert [i["text"] for i in talk.coder(*words).lines] == ["before"]
        assert talk.coder(*words, "--new").out == ""
