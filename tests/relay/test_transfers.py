"""Transfer codes as a relay keeps them: numbers, guesses, ends, waits, and nothing on the disk."""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airlox.protocol import canonical, transfer, wire
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import b64u_encode
from airlox.protocol.keys import Role
from airlox.relay import transfers
from support.clock import Clock
from support.crew import Crew
from support.relay import Answer, Member, RelayThread, now_ms, until

A, B = "198.51.100.1", "198.51.100.2"
ACCESS, SEALED = bytes([7]) * 32, bytes(range(180))


@pytest.fixture
def clock() -> Clock:
    return Clock(now_ms())


@pytest.fixture
def relay(clock: Clock) -> Iterator[RelayThread]:
    with RelayThread(clock=clock) as running:
        yield running


@pytest.fixture
def crew(relay: RelayThread) -> Crew:
    return Crew(relay)


class Codes:
    """The codes of a session's owner, and receivers at any address."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.owner: Member = crew.owner

    def offer(self, document: bytes = b"", **headers: str) -> int:
        answer = self.owner.post(wire.codes(self.crew.sid), document, **headers)
        assert answer.status == 201, answer.body
        nameplate: int = answer.json["nameplate"]
        return nameplate

    def parked(self) -> bytes:
        """A document to keep. What is sealed in it is the relay's business as little as how
        `ACCESS` follows from words."""
        return canonical.encode(
            transfer.Parked(
                access_sha256=b64u_encode(sha256(ACCESS)),
                role=Role.RUNNER,
                salt=b64u_encode(bytes(16)),
                sealed=b64u_encode(SEALED),
                session_id=self.crew.sid,
            )
        )

    def look(self, nameplate: int, after: int | None = None) -> dict[str, Any]:
        answer = self.owner.get(wire.code(self.crew.sid, nameplate, after))
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.json
        return found

    def own(self, path: str, body: bytes = b"") -> Answer:
        return self.owner.post(path, body)

    def ask(self, method: str, path: str, body: bytes = b"", at: str = A) -> Answer:
        return self.crew.http.ask(method, path, body, x_forwarded_for=at)

    def begin(self, nameplate: int, opening: bytes = b"opening", at: str = A) -> str:
        answer = self.ask("POST", wire.tries(nameplate), opening, at)
        assert answer.status == 201, answer.body
        number: str = answer.json["try"]
        return number

    def take(self, nameplate: int, access: bytes, claim: bytes = bytes(16), at: str = A) -> Answer:
        body = {"access": b64u_encode(access), "claim": b64u_encode(claim)}
        return self.ask("POST", wire.parked(nameplate), json.dumps(body).encode(), at)

    def wrong(self, nameplate: int, number: str) -> Answer:
        return self.own(wire.wrong_try(self.crew.sid, nameplate, number))


@pytest.fixture
def codes(crew: Crew) -> Codes:
    return Codes(crew)


class TestNameplates:
    def test_a_hundred_numbers_for_each(self, codes: Codes, relay: RelayThread) -> None:
        """P-TRF-10: of each length, and no number is longer than that needs."""
        numbers = [codes.offer() for _ in range(100)]
        assert len(set(numbers)) == 100
        by_length: dict[int, int] = {}
        for number in numbers:
            digits = len(str(number))
            by_length[digits] = by_length.get(digits, 0) + 1
        assert by_length == {3: 9, 4: 90, 5: 1}

    def test_they_are_drawn(self, codes: Codes, monkeypatch: pytest.MonkeyPatch) -> None:
        """P-TRF-10: from all of their length, and not one after the other."""
        asked: list[int] = []

        def draw(below: int) -> int:
            asked.append(below)
            return len(asked) // 2

        monkeypatch.setattr(secrets, "randbelow", draw)
        assert [codes.offer(), codes.offer(), codes.offer()] == [100, 101, 102]
        assert set(asked) == {900}

    def test_a_number_that_was_used_comes_back_only_after_a_while(
        self, codes: Codes, relay: RelayThread, clock: Clock
    ) -> None:
        nameplate = codes.offer()
        codes.own(wire.cancel_code(codes.crew.sid, nameplate))
        kept = relay.relay.transfers._codes
        clock.turn(599)
        relay.call(relay.relay.transfers.tick)
        assert nameplate in kept
        clock.turn(2)
        relay.call(relay.relay.transfers.tick)
        assert not kept
        assert codes.ask("POST", wire.tries(nameplate)).error == "404 code_unknown"


class TestAnExchange:
    def test_what_is_said_is_passed_on(self, codes: Codes) -> None:
        """P-TRF-13: each answer is the whole state."""
        nameplate = codes.offer()
        number = codes.begin(nameplate, b"\x00opening")
        seen = codes.look(nameplate)
        assert seen["tries"] == [
            {"id": number, "state": "open", "said": [b64u_encode(b"\x00opening")]}
        ]
        sid = codes.crew.sid
        assert codes.own(wire.answer_try(sid, nameplate, number), b"answer").status == 204
        path = wire.one_try(nameplate, number)
        assert codes.ask("GET", path).json["said"] == [b64u_encode(b"answer")]
        assert codes.ask("POST", path, b"confirmation").status == 204
        assert len(codes.look(nameplate)["tries"][0]["said"]) == 2
        assert codes.own(wire.answer_try(sid, nameplate, number), b"mine").status == 204
        assert codes.own(wire.send_invite(sid, nameplate, number), b"sealed").status == 204
        told = codes.ask("GET", path).json
        assert told["state"] == "sent"
        assert told["said"][-1] == b64u_encode(b"sealed")
        assert codes.look(nameplate)["state"] == "used"
        assert codes.ask("POST", wire.end_try(nameplate, number)).status == 204
        assert codes.look(nameplate)["tries"][0]["state"] == "done"
        assert codes.ask("GET", path).json["said"] == []

    def test_saying_it_again_changes_nothing(self, codes: Codes) -> None:
        nameplate, sid = codes.offer(), codes.crew.sid
        number = codes.begin(nameplate)
        assert codes.begin(nameplate) == number
        path = wire.one_try(nameplate, number)
        for _ in range(2):
            assert codes.own(wire.answer_try(sid, nameplate, number), b"answer").status == 204
            assert codes.ask("POST", path, b"confirmation").status == 204
            assert codes.own(wire.answer_try(sid, nameplate, number), b"mine").status == 204
        for _ in range(2):
            assert codes.own(wire.send_invite(sid, nameplate, number), b"sealed").status == 204
        assert (
            codes.own(wire.send_invite(sid, nameplate, number), b"other").error == "410 code_used"
        )
        assert len(codes.ask("GET", path).json["said"]) == 3
        for _ in range(2):
            assert codes.ask("POST", wire.end_try(nameplate, number)).status == 204
            assert codes.ask("POST", wire.leave_try(nameplate, number)).status == 204
        assert codes.own(wire.send_invite(sid, nameplate, number), b"sealed").status == 204

    def test_more_than_may_be_said(self, codes: Codes) -> None:
        nameplate, sid = codes.offer(), codes.crew.sid
        number = codes.begin(nameplate)
        path = wire.one_try(nameplate, number)
        assert codes.ask("POST", path, b"1").status == 204
        assert codes.ask("POST", path, b"2").error == "400 bad_request"
        answer = wire.answer_try(sid, nameplate, number)
        assert [codes.own(answer, text).status for text in (b"1", b"2")] == [204, 204]
        assert codes.own(answer, b"3").error == "400 bad_request"
        assert codes.own(answer, bytes(513)).error == "413 too_large"
        assert codes.ask("POST", path, bytes(513)).error == "413 too_large"
        assert codes.ask("POST", wire.tries(nameplate), bytes(513)).error == "413 too_large"
        sealed = wire.send_invite(sid, nameplate, number)
        assert codes.own(sealed, bytes(513)).error == "413 too_large"
        assert codes.ask("POST", wire.end_try(nameplate, number)).error == "400 bad_request"

    def test_who_may_see_a_try(self, codes: Codes, relay: RelayThread) -> None:
        nameplate = codes.offer()
        number = codes.begin(nameplate)
        other = codes.offer()
        for path in (
            wire.one_try(nameplate, "A" * 22),
            wire.one_try(other, number),
            wire.one_try(nameplate + 1_000_000, number),
        ):
            assert codes.ask("GET", path).error == "404 code_unknown"
        sid = codes.crew.sid
        assert codes.own(wire.answer_try(sid, other, number)).error == "404 not_found"
        stranger = Codes(Crew(relay))
        assert stranger.own(wire.code(stranger.crew.sid, nameplate)).status == 404
        path = wire.cancel_code(stranger.crew.sid, nameplate)
        assert stranger.own(path).error == "404 code_unknown"

    def test_only_the_owner_offers(self, codes: Codes) -> None:
        sender = codes.crew.sender
        assert sender.post(wire.codes(codes.crew.sid)).error == "403 forbidden"
        codes.owner = sender
        path = wire.code(codes.crew.sid, 100)
        assert sender.get(path).error == "403 forbidden"
        assert codes.ask("POST", wire.codes(codes.crew.sid)).error == "401 unauthorized"

    @pytest.mark.parametrize("text", ["x", "-1", "1e3", "%F0%9F%8E%B8", "1" * 13, "0"])
    def test_what_is_no_number(self, codes: Codes, text: str) -> None:
        path = f"{wire.CODES}/{text}/tries"
        assert codes.ask("POST", path).error == "404 code_unknown"
        path = f"{wire.codes(codes.crew.sid)}/{text}"
        assert codes.owner.get(path).error == "404 code_unknown"


class TestEnds:
    def test_three_wrong_guesses(self, codes: Codes) -> None:
        """P-TRF-11"""
        nameplate = codes.offer()
        for left in (2, 1, 0):
            number = codes.begin(nameplate, b"%d" % left)
            assert codes.wrong(nameplate, number).status == 204
            assert codes.wrong(nameplate, number).status == 204
            told = codes.ask("GET", wire.one_try(nameplate, number)).json
            assert (told["state"], told["guesses_left"]) == ("wrong", left)
        assert codes.look(nameplate)["state"] == "void"
        assert codes.ask("POST", wire.tries(nameplate)).error == "410 code_void"

    def test_used(self, codes: Codes) -> None:
        """P-TRF-11"""
        nameplate = codes.offer()
        first, second = codes.begin(nameplate, b"1"), codes.begin(nameplate, b"2")
        codes.own(wire.send_invite(codes.crew.sid, nameplate, first), b"sealed")
        assert codes.ask("GET", wire.one_try(nameplate, second)).json["state"] == "used"
        assert codes.ask("POST", wire.one_try(nameplate, second), b"x").error == "410 code_used"
        assert codes.ask("POST", wire.tries(nameplate)).error == "410 code_used"
        assert codes.look(nameplate)["expires_in_s"] == 0

    def test_expired(self, codes: Codes, clock: Clock) -> None:
        """P-TRF-11"""
        nameplate = codes.offer()
        number = codes.begin(nameplate)
        assert codes.look(nameplate)["expires_in_s"] == 600
        clock.turn(600)
        assert codes.ask("POST", wire.tries(nameplate)).error == "410 code_expired"
        assert codes.ask("GET", wire.one_try(nameplate, number)).json["state"] == "expired"
        path = wire.send_invite(codes.crew.sid, nameplate, number)
        assert codes.own(path, b"sealed").error == "410 code_expired"

    def test_the_wall_clock_ends_nothing(self, codes: Codes, clock: Clock) -> None:
        nameplate = codes.offer()
        clock.set_by(1800)
        assert codes.begin(nameplate)

    def test_its_session_or_participant_goes(self, codes: Codes, relay: RelayThread) -> None:
        """P-TRF-11"""
        nameplate = codes.offer()
        assert codes.owner.post(wire.leave(codes.crew.sid)).status == 200
        assert codes.ask("POST", wire.tries(nameplate)).error == "410 code_cancelled"
        other = Codes(Crew(relay))
        nameplate = other.offer(other.parked())
        assert other.owner.post(wire.close(other.crew.sid)).status == 200
        assert codes.ask("GET", wire.parked(nameplate)).error == "410 code_cancelled"

    def test_a_silent_exchange_ends(self, codes: Codes, clock: Clock) -> None:
        """Not one whose receiver has confirmed: people may compare meanwhile."""
        nameplate = codes.offer()
        silent, confirmed = codes.begin(nameplate, b"1"), codes.begin(nameplate, b"2")
        codes.ask("POST", wire.one_try(nameplate, confirmed), b"confirmation")
        clock.turn(transfers.TRY_S)
        states = {each["id"]: each["state"] for each in codes.look(nameplate)["tries"]}
        assert states == {silent: "left", confirmed: "open"}
        path = wire.one_try(nameplate, silent)
        assert codes.ask("POST", path, b"x").status == 204
        assert codes.ask("GET", path).json["state"] == "left"
        path = wire.answer_try(codes.crew.sid, nameplate, silent)
        assert codes.own(path, b"x").error == "409 try_over"

    def test_open_exchanges_are_few(self, codes: Codes) -> None:
        nameplate = codes.offer()
        first = codes.begin(nameplate, b"0")
        for at in range(1, transfers.TRIES_AT_ONCE):
            codes.begin(nameplate, b"%d" % at)
        busy = codes.ask("POST", wire.tries(nameplate), b"x")
        assert busy.error == "409 code_busy"
        assert int(busy.headers["retry-after"]) > 0
        assert codes.ask("POST", wire.leave_try(nameplate, first)).status == 204
        assert codes.begin(nameplate, b"y")

    def test_those_that_are_over_are_few(self, relay: RelayThread) -> None:
        with RelayThread(code_guesses_per_hour=0) as other:
            codes = Codes(Crew(other))
            nameplate = codes.offer()
            for at in range(transfers.TRIES + 3):
                number = codes.begin(nameplate, b"%d" % at)
                codes.ask("POST", wire.leave_try(nameplate, number))
            assert len(codes.look(nameplate)["tries"]) == transfers.TRIES


class TestParked:
    def test_the_words_open_it_once(self, codes: Codes) -> None:
        """P-TRF-8"""
        document = codes.parked()
        nameplate = codes.offer(document)
        parked = transfer.parse_parked(document)
        head = codes.ask("GET", wire.parked(nameplate))
        assert head.json == {
            "role": "runner",
            "salt": parked.salt,
            "session_id": codes.crew.sid,
        }
        assert codes.take(nameplate, ACCESS).json == {"sealed": parked.sealed}
        assert codes.take(nameplate, ACCESS).json == {"sealed": parked.sealed}
        assert codes.take(nameplate, ACCESS, b"x" * 16).error == "410 code_used"
        assert codes.look(nameplate)["state"] == "used"

    def test_wrong_words(self, codes: Codes) -> None:
        """P-TRF-8"""
        nameplate = codes.offer(codes.parked())
        answers = [codes.take(nameplate, bytes(32)) for _ in range(4)]
        assert [each.error for each in answers] == ["403 code_wrong"] * 3 + ["410 code_void"]
        assert "2 guesses" in answers[0].json["message"]

    @pytest.mark.parametrize(
        "body", [b"", b"{}", b'{"access":"AA","claim":"AA"}', b"\xff", b"x" * 257]
    )
    def test_what_is_no_request(self, codes: Codes, body: bytes) -> None:
        nameplate = codes.offer(codes.parked())
        assert codes.ask("POST", wire.parked(nameplate), body).status in (400, 413)
        assert codes.look(nameplate)["guesses_left"] == 3

    def test_what_cannot_be_parked(self, codes: Codes, relay: RelayThread) -> None:
        path = wire.codes(codes.crew.sid)
        other = Codes(Crew(relay))
        document = codes.parked()
        for body in (b"{}", document[:-1], other.parked(), document.replace(b"runner", b"owner")):
            assert codes.own(path, body).error == "400 bad_request"
        assert codes.own(path, bytes(1025)).error == "413 too_large"

    def test_the_two_kinds_are_told_apart(self, codes: Codes) -> None:
        parked, live = codes.offer(codes.parked()), codes.offer()
        assert codes.ask("POST", wire.tries(parked)).error == "403 code_wrong"
        assert codes.ask("GET", wire.parked(live)).error == "403 code_wrong"
        assert codes.take(live, bytes(32)).error == "403 code_wrong"


class TestGuesses:
    def test_ten_for_each_address(self, codes: Codes, clock: Clock) -> None:
        """P-TRF-12: and it is said when to come again."""
        for number in range(10):
            assert codes.ask("POST", wire.tries(5_000_000 + number)).error == "404 code_unknown"
        nameplate = codes.offer()
        refused = codes.ask("POST", wire.tries(nameplate))
        assert refused.error == "429 too_many_guesses"
        assert codes.ask("GET", wire.parked(nameplate)).error == "429 too_many_guesses"
        assert codes.begin(nameplate, at=B)
        clock.turn(int(refused.headers["retry-after"]))
        assert codes.begin(nameplate, b"later")
        assert codes.look(nameplate)["guesses_left"] == 3

    def test_what_succeeds_costs_nothing(self, codes: Codes) -> None:
        """P-TRF-12"""
        document = codes.parked()
        for at in range(12):
            nameplate = codes.offer()
            number = codes.begin(nameplate, b"%d" % at)
            codes.own(wire.send_invite(codes.crew.sid, nameplate, number), b"sealed")
            assert codes.take(codes.offer(document), ACCESS).status == 200

    def test_what_was_begun_and_left_costs_one(self, codes: Codes) -> None:
        """P-TRF-12"""
        nameplate = codes.offer()
        for at in range(10):
            number = codes.begin(nameplate, b"%d" % at)
            assert codes.ask("POST", wire.leave_try(nameplate, number)).status == 204
        refused = codes.ask("POST", wire.tries(nameplate), b"once more")
        assert refused.error == "429 too_many_guesses"
        assert codes.look(nameplate)["guesses_left"] == 3

    def test_an_address_of_version_6_is_its_network(self, codes: Codes) -> None:
        """P-TRF-12"""
        for number in range(10):
            address = f"2001:db8:1:2::{number:x}"
            path = wire.tries(5_000_000 + number)
            assert codes.ask("POST", path, at=address).error == "404 code_unknown"
        nameplate = codes.offer()
        same, other = "2001:db8:1:2:ffff::1", "2001:db8:1:3::1"
        refused = codes.ask("POST", wire.tries(nameplate), at=same)
        assert refused.error == "429 too_many_guesses"
        assert codes.begin(nameplate, at=other)

    def test_a_client_does_not_name_itself(self, codes: Codes) -> None:
        """P-TRF-12: what a proxy adds last counts, not what a client wrote before it."""
        for number in range(10):
            codes.ask("POST", wire.tries(5_000_000 + number), at=f"203.0.113.{number}, {A}")
        nameplate = codes.offer()
        refused = codes.ask("POST", wire.tries(nameplate), at=f"203.0.113.99, {A}")
        assert refused.error == "429 too_many_guesses"

    def test_a_proxy_that_names_nobody_counts_as_one(self, codes: Codes) -> None:
        """P-TRF-12"""
        for number in range(10):
            codes.crew.http.ask("POST", wire.tries(5_000_000 + number))
        nameplate = codes.offer()
        refused = codes.crew.http.ask("POST", wire.tries(nameplate))
        assert refused.error == "429 too_many_guesses"
        assert codes.begin(nameplate)


class TestWaits:
    def waiting(self, codes: Codes, path: str) -> http.client.HTTPConnection:
        """A connection on which an answer is waited for."""
        connection = codes.crew.http.connect()
        headers = {"authorization": f"Bearer {codes.owner.token}"}
        connection.request("GET", path, headers=headers)
        return connection

    def answer(self, connection: http.client.HTTPConnection) -> Any:
        try:
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def waits(self, relay: RelayThread) -> int:
        return int(relay.relay.core.quotas._streams.held(0, "all"))

    def test_news_end_them(self, codes: Codes, relay: RelayThread) -> None:
        """P-TRF-13"""
        nameplate = codes.offer()
        path = wire.code(codes.crew.sid, nameplate, codes.look(nameplate)["version"])
        sender = self.waiting(codes, path)
        until(lambda: self.waits(relay) == 1)
        number = codes.begin(nameplate)
        assert self.answer(sender)["tries"][0]["id"] == number
        version = codes.ask("GET", wire.one_try(nameplate, number)).json["version"]
        receiver = self.waiting(codes, wire.one_try(nameplate, number, version))
        until(lambda: self.waits(relay) == 1)
        codes.own(wire.answer_try(codes.crew.sid, nameplate, number), b"answer")
        assert self.answer(receiver)["said"] == [b64u_encode(b"answer")]

    @pytest.mark.parametrize("end", ["cancel", "expire", "close"])
    def test_the_end_of_the_code_ends_them(
        self, codes: Codes, relay: RelayThread, clock: Clock, end: str
    ) -> None:
        """P-TRF-13"""
        nameplate = codes.offer()
        number = codes.begin(nameplate)
        receiver = self.waiting(codes, wire.one_try(nameplate, number, 1))
        until(lambda: self.waits(relay) == 1)
        if end == "cancel":
            codes.own(wire.cancel_code(codes.crew.sid, nameplate))
        elif end == "expire":
            clock.turn(601)
        else:
            codes.owner.post(wire.close(codes.crew.sid))
        expected = "expired" if end == "expire" else "cancelled"
        assert self.answer(receiver)["state"] == expected

    def test_the_end_of_the_relay_ends_them(self, clock: Clock) -> None:
        """P-TRF-13"""
        with RelayThread(clock=clock) as relay:
            codes = Codes(Crew(relay))
            nameplate = codes.offer()
            number = codes.begin(nameplate)
            version = codes.look(nameplate)["version"]
            sender = self.waiting(codes, wire.code(codes.crew.sid, nameplate, version))
            receiver = self.waiting(codes, wire.one_try(nameplate, number, 1))
            until(lambda: self.waits(relay) == 2)
        assert self.answer(sender)["state"] == "open"
        assert self.answer(receiver)["state"] == "open"

    def test_time_ends_them(
        self, codes: Codes, relay: RelayThread, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transfers, "WAIT_S", 0.05)
        nameplate = codes.offer()
        version = codes.look(nameplate)["version"]
        assert codes.look(nameplate, version)["version"] == version

    def test_whoever_leaves_gives_the_place_back(self, codes: Codes, relay: RelayThread) -> None:
        nameplate = codes.offer()
        version = codes.look(nameplate)["version"]
        connection = self.waiting(codes, wire.code(codes.crew.sid, nameplate, version))
        until(lambda: self.waits(relay) == 1)
        connection.close()
        until(lambda: self.waits(relay) == 0)

    def test_a_wait_that_is_refused_keeps_no_place(self, codes: Codes, relay: RelayThread) -> None:
        nameplate = codes.offer()
        path = wire.one_try(nameplate, codes.begin(nameplate))
        assert codes.ask("GET", f"{path}?after=x").status == 400
        assert codes.owner.get(f"{wire.code(codes.crew.sid, nameplate)}?after=-1").status == 400
        until(lambda: self.waits(relay) == 0)


def test_nothing_reaches_the_disk(tmp_path: Path) -> None:
    """P-TRF-11: neither a parked invite nor a message, whatever is written meanwhile."""
    with RelayThread(data=str(tmp_path)) as relay:
        codes = Codes(Crew(relay))
        document = codes.parked()
        parked, live = codes.offer(document), codes.offer()
        number = codes.begin(live, b"a message of an exchange")
        codes.own(wire.answer_try(codes.crew.sid, live, number), b"an answer to it")
        codes.crew.sender.say("something that is kept")
    held = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert codes.crew.sid.encode() in held
    for secret in (SEALED, SEALED[12:44], document[:60], b"a message of an", b"an answer to"):
        assert secret not in held
        assert b64u_encode(secret).encode() not in held
    with RelayThread(data=str(tmp_path)) as relay:
        codes.crew.http.port = int(relay.url.rpartition(":")[2])
        assert codes.ask("GET", wire.parked(parked)).error == "404 code_unknown"
        assert codes.owner.get(wire.code(codes.crew.sid, live)).error == "404 code_unknown"
