"""Transfer codes from the command line: real relay, both ends processes, and what goes wrong."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from airlox.cli.main import EXIT_TRANSFER
from support.commands import RUNTIME, TIMEOUT_S, Cli, create, on_terminal, read_event, read_note
from support.server import server

PROCESS = ("--sandbox", "process", "--python", sys.executable)


@pytest.fixture(scope="module")
def relay() -> Iterator[str]:
    with server("--ephemeral", "--code-guesses-per-hour", "1000") as running:
        yield running.url


class People(NamedTuple):
    """The owner of a session, and somebody on another machine who has nothing yet."""

    owner: Cli
    other: Cli
    links: dict[str, str]


@pytest.fixture
def people(relay: str, tmp_path: Path) -> People:
    made = create(relay, tmp_path, "--execute", "--kinds", "shell")
    links = {role: person.invite for role, person in made.items()}
    return People(made["owner"], Cli(relay, tmp_path / "other"), links)


@contextmanager
def offered(owner: Cli, *words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A `session code … --wait --json` that goes on, and what it said of its code."""
    with owner.started("session", "code", *words, "--wait", "--json") as offering:
        yield offering, document(offering)


def document(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The first JSON document of a command that goes on."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line.rstrip() == "}":
            found: dict[str, Any] = json.loads(text)
            return found
    raise AssertionError(f"it ended with {text!r}")


def other_words(code: str) -> str:
    """The same code with two words that are in the list, and not these."""
    nameplate, *words = code.split("-")
    wrong = ("guitar", "orbit") if words[0] != "guitar" else ("orbit", "guitar")
    return "-".join((nameplate, *wrong))


class TestHandedOver:
    def test_two_words_while_the_sender_waits(self, people: People) -> None:
        with offered(people.owner, "sender") as (offering, made):
            assert (made["parked"], made["role"]) == (False, "sender")
            assert len(made["code"].split("-")) == 3
            assert 0 < made["expires_in_s"] <= 600
            assert shlex.split(made["command"])[:2] == ["airlox", "receive"]
            taken = people.other(*shlex.split(made["command"])[1:], "--json").document
            assert taken["invite"] == people.links["sender"]
            assert read_event(offering, "received")
            assert offering.wait(TIMEOUT_S) == 0
        again = people.other("receive", made["code"], "--json", code=EXIT_TRANSFER["code_used"])
        assert again.error["code"] == "code_used"

    def test_six_words_when_nobody_waits_and_why(self, people: People) -> None:
        made = people.owner("session", "code", "observer")
        (code,) = made.out.split()
        assert len(code.split("-")) == 7
        assert made.err == (
            "good once, for 10 min. On the other machine:\n\n"
            f"  airlox receive --relay {people.owner.relay} {code}\n\n"
            "It has six words because nobody waits here: its sealed invite lies on the relay, "
            "where guesses could be tested at leisure. --wait makes one of two words.\n"
        )
        # as a person would say it
        spoken = people.other("receive", *code.upper().split("-"))
        assert spoken.out.strip() == people.links["observer"]
        spent = people.other("receive", code, "--json", code=EXIT_TRANSFER["code_used"])
        assert spent.error["hint"]

    def test_from_standard_input(self, people: People) -> None:
        code = people.owner("session", "code", "sender", "--quiet").out
        taken = people.other("receive", "-", "--role", "sender", stdin=code)
        assert taken.out.strip() == people.links["sender"]

    @pytest.mark.slow
    def test_a_machine_s_link(self, people: People, relay: str, tmp_path: Path) -> None:
        mine = Cli(relay, tmp_path / "mine")
        mine("machine", "add", "box", "--wait", "0", "--runtime", RUNTIME)
        link = mine("machine", "invite", "box").out.strip()
        made = mine("machine", "invite", "box", "--code", "--json").document
        assert made["parked"] is True
        assert people.other("receive", made["code"]).out.strip() == link
        for words in (("owner", "--code"), ("--wait",), ("--code", "--park", "--verify")):
            mine("machine", "invite", "box", *words, code=2)


class TestMachine:
    def test_the_one_command_adds_it(self, relay: str, tmp_path: Path) -> None:
        mine, there = Cli(relay, tmp_path / "mine"), Cli("", tmp_path / "there")
        add = ("machine", "add", "box", "--json", "--runtime", RUNTIME, "--sandbox", "process")
        with mine.started(*add) as adding:
            command = shlex.split(read_event(adding, "command")["command"])
            assert command[0] == "airlox"
            assert command[-4:] == ["--name", "box", "--sandbox", "process"]
            assert "#" not in " ".join(command)
            words = (*command[1:], "--json", "--python", sys.executable)
            with there.started(*words, stderr=None) as runner:
                read_note(runner, "ready")
                assert adding.wait(TIMEOUT_S) == 0
                assert adding.stdout is not None
                assert json.load(adding.stdout)["runner"]["approved"] is True
                assert mine("run", "--on", "box", "--", "echo", "there").out == "there\n"
                second = mine("machine", "invite", "box", "runner", "--code", "--json").document
                assert " --code " in second["command"]

    @pytest.mark.slow
    def test_a_code_that_ended_unused_is_followed_by_another(self, tmp_path: Path) -> None:
        with server("--ephemeral", "--code-lifetime", "3s") as running:
            mine, there = Cli(running.url, tmp_path / "mine"), Cli("", tmp_path / "there")
            add = ("machine", "add", "box", "--json", "--runtime", RUNTIME, "--sandbox", "process")
            with mine.started(*add) as adding:
                first = read_event(adding, "command")["command"]
                second = read_event(adding, "command")["command"]
                assert first != second
                gone = there(*shlex.split(first)[1:], "--json", *PROCESS[2:], code=None)
                assert gone.code in (EXIT_TRANSFER["code_expired"], EXIT_TRANSFER["code_unknown"])

    def test_guesses_end_it_and_no_other_code_follows(self, relay: str, tmp_path: Path) -> None:
        mine, other = Cli(relay, tmp_path / "mine"), Cli(relay, tmp_path / "other")
        with mine.started("machine", "add", "box", "--json") as adding:
            words = shlex.split(read_event(adding, "command")["command"])
            wrong = other_words(words[words.index("--code") + 1])
            for _ in range(3):
                other("receive", wrong, code=EXIT_TRANSFER["code_wrong"])
            assert adding.wait(TIMEOUT_S) == EXIT_TRANSFER["code_void"]
            assert adding.stderr is not None
            said = json.loads(adding.stderr.read().splitlines()[-1])
        assert said["code"] == "code_void"
        assert "airlox machine invite box runner --code" in said["hint"]

    def test_with_the_link_instead(self, relay: str, tmp_path: Path) -> None:
        mine = Cli(relay, tmp_path)
        with mine.started("machine", "add", "box", "--json", "--link") as adding:
            assert read_event(adding, "command")["command"].startswith("AIRLOX_INVITE='http")
            adding.send_signal(signal.SIGINT)
            assert adding.wait(TIMEOUT_S) == 130


class TestRunner:
    def test_serve_and_join_take_a_code_for_a_runner_alone(self, people: People) -> None:
        code = people.owner("session", "code", "sender", "--json").document["code"]
        refused = people.other(
            *("runner", "join", "--name", "box", "--code", code, "--json", *PROCESS),
            code=EXIT_TRANSFER["wrong_role"],
        )
        assert refused.error["code"] == "wrong_role"
        # and it was not spent
        assert people.other("receive", code).out.strip() == people.links["sender"]
        code = people.owner("session", "code", "runner", "--json").document["code"]
        words = ("runner", "serve", "--name", "box", "--code", code, "--json", *PROCESS)
        with people.other.started(*words, stderr=None) as runner:
            read_note(runner, "waiting")

    def test_a_code_is_not_spent_where_the_sandbox_cannot_be_had(self, people: People) -> None:
        code = people.owner("session", "code", "runner", "--json").document["code"]
        words = ("runner", "join", "--name", "box", "--code", code, *PROCESS)
        people.other(*words, "--require-layers", "landlock", code=78)
        assert people.other("receive", code).out.strip() == people.links["runner"]

    def test_a_service_is_installed_with_the_link_of_a_code(
        self, people: People, tmp_path: Path
    ) -> None:
        code = people.owner("session", "code", "runner", "--json").document["code"]
        words = ("runner", "install-service", "--name", "box", "--code", code, "--dry-run")
        shown = people.other(*words)
        assert code not in shown.out
        assert "--relay" not in shown.out
        assert people.other("receive", code).out.strip() == people.links["runner"]


class TestWhatGoesWrong:
    @pytest.mark.parametrize(
        ("typed", "hint"),
        [
            ("417-gitar-orbit", "did you mean guitar?"),
            ("417-guitar", "a code is a number and two words"),
            ("guitar-orbit", "a code is a number and two words"),
        ],
    )
    def test_what_is_no_code_is_found_out_here(self, tmp_path: Path, typed: str, hint: str) -> None:
        nobody = Cli("http://127.0.0.1:1", tmp_path)
        refused = nobody("receive", typed, "--json", code=EXIT_TRANSFER["code_mistyped"]).error
        assert refused["code"] == "code_mistyped"
        assert hint in refused["hint"]

    def test_as_a_person_reads_it(self, tmp_path: Path) -> None:
        nobody = Cli("http://127.0.0.1:1", tmp_path)
        done = nobody("receive", "417-gitar-orbit", code=EXIT_TRANSFER["code_mistyped"])
        assert done.out == ""
        assert done.err == (
            "airlox: word 1 of this code is none of its list\n  hint: did you mean guitar?\n"
        )

    def test_a_number_that_nobody_has(self, people: People) -> None:
        typed = "999999999-guitar-orbit"
        refused = people.other("receive", typed, "--json", code=EXIT_TRANSFER["code_unknown"])
        assert refused.error["code"] == "code_unknown"
        assert refused.error["hint"]

    def test_other_words_cost_a_guess_and_three_are_the_end(self, people: People) -> None:
        with offered(people.owner, "sender") as (offering, made):
            wrong = other_words(made["code"])
            for left in (2, 1, 0):
                refused = people.other("receive", wrong, "--json", code=EXIT_TRANSFER["code_wrong"])
                assert refused.error["code"] == "code_wrong"
                assert refused.error["hint"]
                assert read_event(offering, "guess")["guesses_left"] == left
            assert offering.wait(TIMEOUT_S) == EXIT_TRANSFER["code_void"]
        people.other("receive", made["code"], code=EXIT_TRANSFER["code_void"])

    def test_one_that_was_taken_back(self, people: People) -> None:
        with offered(people.owner, "sender") as (offering, made):
            offering.send_signal(signal.SIGINT)
            assert offering.wait(TIMEOUT_S) == 130
        refused = people.other(
            "receive", made["code"], "--json", code=EXIT_TRANSFER["code_cancelled"]
        )
        assert refused.error["code"] == "code_cancelled"
        assert refused.error["hint"]

    @pytest.mark.slow
    def test_one_whose_time_is_over(self, tmp_path: Path) -> None:
        with server("--ephemeral", "--code-lifetime", "1s") as running:
            owner = create(running.url, tmp_path)["owner"]
            with offered(owner, "sender") as (offering, made):
                assert offering.wait(TIMEOUT_S) == EXIT_TRANSFER["code_expired"]
            late = Cli(running.url, tmp_path / "other")
            refused = late("receive", made["code"], "--json", code=None)
            assert refused.error["code"] in ("code_expired", "code_unknown")
            assert refused.code == EXIT_TRANSFER[refused.error["code"]]

    def test_of_two_at_once_one_has_it(self, people: People) -> None:
        with offered(people.owner, "sender") as (offering, made):
            words = ("receive", made["code"])
            with people.other.started(*words) as one, people.other.started(*words) as two:
                shown = [process.communicate(timeout=TIMEOUT_S)[0] for process in (one, two)]
                codes = sorted((one.returncode, two.returncode))
            assert codes == [0, EXIT_TRANSFER["code_used"]]
            assert sorted(text.strip() for text in shown) == ["", people.links["sender"]]
            assert offering.wait(TIMEOUT_S) == 0

    @pytest.mark.slow
    def test_a_receiver_that_dies_is_told_of(self, people: People) -> None:
        """It is killed while somebody compares the words: it has said all it says."""
        ours, theirs = pty.openpty()
        with people.owner.started(
            "session", "code", "sender", "--verify", "--json", stdin=theirs
        ) as offering:
            made = document(offering)
            with people.other.started("receive", made["code"]) as first:
                read_event(offering, "verify")
                first.kill()
                first.wait(TIMEOUT_S)
            os.write(ours, b"y\n")
            ended = offering.wait(TIMEOUT_S)
        os.close(ours)
        os.close(theirs)
        assert ended == EXIT_TRANSFER["not_received"]

    @pytest.mark.slow
    def test_too_many_from_one_address(self, tmp_path: Path) -> None:
        with server("--ephemeral", "--code-guesses-per-hour", "1") as running:
            other = Cli(running.url, tmp_path)
            typed = "999999999-guitar-orbit"
            other("receive", typed, code=EXIT_TRANSFER["code_unknown"])
            refused = other("receive", typed, "--json", code=EXIT_TRANSFER["too_many_guesses"])
            assert refused.error["code"] == "too_many_guesses"

    def test_without_a_relay(self, tmp_path: Path) -> None:
        refused = Cli("", tmp_path)("receive", "417-guitar-orbit", "--json", code=2).error
        assert refused["code"] == "no_relay"
        assert "a code names none" in refused["error"]


class TestAtATerminal:
    def test_what_was_mistyped_is_explained_and_asked_for_again(
        self, people: People, relay: str
    ) -> None:
        code = people.owner("session", "code", "sender", "--quiet").out.strip()
        typed = ("417-gitar-orbit", "417", code)
        shown = on_terminal(people.other, "receive", typed="".join(f"{line}\n" for line in typed))
        assert "did you mean guitar?" in shown
        assert "a code is a number and two words" in shown
        assert people.links["sender"] in shown

    def test_both_ends_compare_words(self, people: People) -> None:
        ours, theirs = pty.openpty()
        words = ("session", "code", "sender", "--verify", "--json")
        with people.owner.started(*words, stdin=theirs) as offering:
            code = document(offering)["code"]
            os.write(ours, b"y\n")
            shown = on_terminal(people.other, "receive", code, "--verify", typed="y\n")
            assert read_event(offering, "verify")["words"] in shown
            assert people.links["sender"] in shown
            assert offering.wait(TIMEOUT_S) == 0
        os.close(ours)
        os.close(theirs)

    @pytest.mark.slow
    def test_words_that_differ_end_it(self, people: People) -> None:
        with offered(people.owner, "sender") as (offering, made):
            shown = on_terminal(people.other, "receive", made["code"], "--verify", typed="n\n")
            assert "do not show the same words" in shown
            assert people.links["sender"] not in shown
            offering.send_signal(signal.SIGINT)

    def test_elsewhere_nobody_can_compare(self, people: People) -> None:
        refused = people.owner("session", "code", "sender", "--verify", "--json", code=2)
        assert "at a terminal" in refused.error["hint"]
