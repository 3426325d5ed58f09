"""Transfer codes between two ends and a real relay: everything that can be typed, said, lost or
lied about, and the name it has."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from nacl.bindings import crypto_scalarmult_ed25519_noclamp

from airlox import AsyncSession, Session, TransferError, UsageError, WaitTimeout, redeem
from airlox.client import transfer as client
from airlox.client import transfer_api as calls
from airlox.client.relay_api import RelayApi
from airlox.errors import (
    AirloxError,
    DecryptError,
    ProtocolError,
    RelayError,
    SessionClosed,
    SignatureError,
    ValidationError,
)
from airlox.protocol import transfer
from airlox.protocol.encoding import SessionId, b64u_decode, b64u_encode
from airlox.protocol.invite import member_invite
from airlox.protocol.keys import Role
from airlox.protocol.transfer import Offered, Side
from airlox.protocol.wordlist import WORDS
from support.clock import Clock
from support.codes import Receiver, Waiting, other_words, search, search_beside
from support.middle import Carrier
from support.relay import RelayThread, now_ms, until
from support.scripted import Peer, Request, Scripted

LINK: Final = member_invite("http://127.0.0.1", bytes(range(32)), Role.RUNNER)
LONG: Final = "A" * 9000
SOON_S: Final = 0.3
"""For waits that end without an answer."""
FIRST_WORDS: Final = int(os.environ.get("TEST_FIRST_WORDS", "4"))
EXECUTE: Final[dict[str, Any]] = {"mode": "execute", "job_limits": {"runtime": "python3.12"}}


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayThread]:
    with RelayThread(code_guesses_per_hour=0) as running:
        yield running


@pytest.fixture
def owner(relay: RelayThread, tmp_path: Path) -> Iterator[Session]:
    with Session.create(relay.url, cache_dir=tmp_path / "owner", **EXECUTE) as session:
        yield session


Redeeming = Callable[..., Receiver]


@pytest.fixture
def redeeming(relay: RelayThread) -> Iterator[Redeeming]:
    """Receivers of the relay's codes, whose connections end with the test."""
    with ExitStack() as made:
        yield lambda code, *words, url=relay.url: made.enter_context(
            closing(Receiver(url, code, words or None))
        )


def refused(code: str, call: Callable[[], object]) -> TransferError:
    with pytest.raises(TransferError) as caught:
        call()
    assert caught.value.code == code
    assert caught.value.hint
    return caught.value


class TestItCrosses:
    @pytest.mark.parametrize("role", ["sender", "observer", "runner"])
    def test_any_role(self, owner: Session, relay: RelayThread, role: str) -> None:
        offer = owner.transfer_code(role)
        assert offer.role == role
        assert not offer.parked
        assert 0 < offer.expires_in_s <= 600
        with Waiting(offer) as sender:
            invite = redeem(relay.url, offer.code.upper().replace("-", " "))
            assert sender.result() == "arrived"
        assert invite.url() == owner.invites[role]

    def test_a_full_session_and_a_join(self, relay: RelayThread, tmp_path: Path) -> None:
        terms = {**EXECUTE, "features": ["live"]}
        with Session.create(relay.url, cache_dir=tmp_path / "o", **terms) as owner:
            offer = owner.transfer_code("sender")
            with Waiting(offer):
                invite = redeem(relay.url, offer.code, role="sender")
            with Session.join(invite.url(), cache_dir=tmp_path / "s") as joined:
                assert joined.role == "sender"
                assert joined.session_id == owner.session_id

    def test_the_invite_names_the_relay_that_the_receiver_used(
        self, owner: Session, relay: RelayThread
    ) -> None:
        offer = owner.transfer_code("runner")
        other = relay.url.replace("127.0.0.1", "localhost")
        with Waiting(offer):
            assert redeem(other, offer.code).base_url == other

    def test_awaited(self, relay: RelayThread, tmp_path: Path) -> None:
        async def scenario() -> None:
            owner = await AsyncSession.create(relay.url, cache_dir=tmp_path / "o")
            offer = await owner.transfer_code("sender")
            assert (offer.role, offer.parked, offer.guesses_left) == ("sender", False, 3)
            assert offer.expires_in_s > 0
            assert offer.code.partition("-")[0] in repr(offer)
            given_up = asyncio.create_task(offer.wait())
            await asyncio.sleep(0)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            wait = asyncio.create_task(self.patiently(offer))
            invite = await asyncio.to_thread(redeem, relay.url, offer.code)
            await wait
            assert invite.role is Role.SENDER
            await offer.cancel()
            offer.close()
            await owner.disconnect()

        asyncio.run(scenario())

    async def patiently(self, offer: Any) -> None:
        """A wait that begins once the one before it has ended in its thread."""
        while True:
            try:
                await offer.wait(60)
                return
            except UsageError:
                await asyncio.sleep(0.01)


class TestWrongWords:
    def test_three_in_all(self, owner: Session, relay: RelayThread) -> None:
        """P-TRF-9: the sender is told of each, and goes on with the same words until the third."""
        heard: list[int] = []
        offer = owner.transfer_code("runner", on_guess=heard.append)
        wrong = other_words(offer.code)
        with Waiting(offer) as sender:
            for left in (2, 1):
                error = refused("code_wrong", lambda: redeem(relay.url, wrong))
                assert str(left) in str(error)
            assert "void" in str(refused("code_wrong", lambda: redeem(relay.url, wrong)))
            assert sender.result() == "code_void"
        assert heard == [2, 1, 0]
        refused("code_void", lambda: redeem(relay.url, offer.code))
        refused("code_void", lambda: offer.wait(SOON_S))

    def test_the_right_words_after_a_wrong_guess(self, owner: Session, relay: RelayThread) -> None:
        offer = owner.transfer_code("runner")
        with Waiting(offer) as sender:
            refused("code_wrong", lambda: redeem(relay.url, other_words(offer.code)))
            assert redeem(relay.url, offer.code).role is Role.RUNNER
            assert sender.result() == "arrived"
        assert offer.guesses_left == 2

    def test_a_relay_that_does_not_count(
        self, owner: Session, relay: RelayThread, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P-TRF-9: after three the sender answers nobody any more."""
        monkeypatch.setattr(relay.relay.transfers, "_count_wrong", lambda code: code.bell.ring())
        offer = owner.transfer_code("runner")
        with Waiting(offer) as sender:
            for _ in range(3):
                refused("code_wrong", lambda: redeem(relay.url, other_words(offer.code)))
            assert sender.result() == "code_void"
        refused("code_void", lambda: offer.wait(SOON_S))
        with pytest.raises(WaitTimeout):
            redeem(relay.url, offer.code, timeout=SOON_S)

    def test_one_confirmation_for_each_exchange(
        self, owner: Session, relay: RelayThread, redeeming: Redeeming
    ) -> None:
        """P-TRF-5: a relay cannot have another one checked against the same shares."""
        offer = owner.transfer_code("runner")
        receiver = redeeming(offer.code, "camel", "lemon")
        with Waiting(offer):
            receiver.begin()
            receiver.confirm()
            until(lambda: offer.guesses_left == 2)
            code, one = relay.relay.transfers.tried(receiver.nameplate, receiver.number)

            def again() -> None:
                one.state = "open"
                one.from_sender.clear()
                code.bell.ring()

            relay.call(again)
            until(lambda: one.state == "wrong")
            assert one.from_sender == []

    def test_an_opening_that_is_a_guess_tells_nothing(
        self, owner: Session, redeeming: Redeeming
    ) -> None:
        """P-TRF-5: w·N alone would fix the shared point. It is answered like any other, whether or
        not w is right, and refused only together with its confirmation, which costs the guess."""
        offer = owner.transfer_code("runner")
        right = transfer.parse_code(offer.code).words
        with Waiting(offer) as sender:
            for left, words in ((2, right), (1, ("camel", "lemon")), (0, right)):
                receiver = redeeming(offer.code)
                w = transfer.password_scalar(words)
                point = crypto_scalarmult_ed25519_noclamp(w, transfer._N)
                opening = f'{{"share":"{b64u_encode(point)}","v":1}}'.encode()
                receiver.number = calls.begin(receiver.api, receiver.nameplate, opening)
                receiver.hear(0)
                assert offer.guesses_left == left + 1
                message = f'{{"confirm":"{b64u_encode(bytes(32))}","v":1}}'.encode()
                calls.confirm(receiver.api, receiver.nameplate, receiver.number, message)
                until(lambda left=left: offer.guesses_left == left)  # type: ignore[misc]
            assert sender.result() == "code_void"

    def test_what_is_no_message_is_a_wrong_guess(
        self, owner: Session, relay: RelayThread, redeeming: Redeeming
    ) -> None:
        offer = owner.transfer_code("runner")
        nameplate = transfer.parse_code(offer.code).nameplate
        api = redeeming(offer.code).api
        with Waiting(offer) as sender:
            for opening in (b"{}", b'{"share":"AQ","v":1}', os.urandom(30)):
                calls.begin(api, nameplate, opening)
            assert sender.result() == "code_void"


class TestBadCodes:
    @pytest.mark.parametrize("code", ["", "417", "guitar-orbit", "417-gitar-orbit", "417-a-b"])
    def test_mistyped(self, code: str) -> None:
        """P-TRF-2: nobody is asked; there is no relay at all."""
        with pytest.raises(ValidationError) as caught:
            redeem("http://127.0.0.1:9", code)
        assert caught.value.code == "code_mistyped"

    def test_unknown(self, relay: RelayThread) -> None:
        refused("code_unknown", lambda: redeem(relay.url, "999999-guitar-orbit"))
        refused("code_unknown", lambda: redeem(relay.url, "999999" + "-guitar" * 6))

    def test_used(self, owner: Session, relay: RelayThread) -> None:
        offer = owner.transfer_code("runner")
        with Waiting(offer):
            redeem(relay.url, offer.code)
        refused("code_used", lambda: redeem(relay.url, offer.code))

    def test_cancelled(self, owner: Session, relay: RelayThread) -> None:
        offer = owner.transfer_code("runner")
        with Waiting(offer) as sender:
            offer.cancel()
            offer.cancel()
            assert sender.result() == "code_cancelled"
        refused("code_cancelled", lambda: redeem(relay.url, offer.code))

    def test_cancelled_while_somebody_redeems(
        self, owner: Session, relay: RelayThread, redeeming: Redeeming
    ) -> None:
        offer = owner.transfer_code("runner")
        receiver = redeeming(offer.code)
        receiver.begin()
        offer.cancel()
        with pytest.raises(AssertionError, match="cancelled"):
            receiver.hear(0)

    def test_with_its_session(self, owner: Session, relay: RelayThread) -> None:
        """P-TRF-11"""
        offer = owner.transfer_code("runner")
        with Waiting(offer) as sender:
            owner.close()
            assert sender.result() in ("session_gone", "cut_off")
        refused("code_cancelled", lambda: redeem(relay.url, offer.code))

    def test_with_whoever_offers_it(self, owner: Session, relay: RelayThread) -> None:
        """P-TRF-11"""
        offer = owner.transfer_code("runner")
        owner.leave()
        refused("code_cancelled", lambda: redeem(relay.url, offer.code))
        with pytest.raises(SessionClosed):
            offer.wait(SOON_S)

    def test_expired(self, tmp_path: Path, redeeming: Redeeming) -> None:
        """P-TRF-11: at both ends, and in the middle of an exchange."""
        clock = Clock(now_ms())
        with (
            RelayThread(clock=clock) as relay,
            Session.create(relay.url, cache_dir=tmp_path, **EXECUTE) as owner,
        ):
            offer = owner.transfer_code("runner")
            receiver = redeeming(offer.code, url=relay.url)
            receiver.begin()
            with Waiting(offer) as sender:
                receiver.hear(0)
                clock.turn(601)
                assert sender.result() == "code_expired"
            with pytest.raises(AssertionError, match="expired"):
                receiver.hear(1)
            refused("code_expired", lambda: redeem(relay.url, offer.code))

    def test_another_role(self, owner: Session, relay: RelayThread) -> None:
        """The code is not spent on it."""
        offer = owner.transfer_code("sender")
        with Waiting(offer) as sender:
            error = refused("wrong_role", lambda: redeem(relay.url, offer.code, role="runner"))
            assert "a sender" in str(error)
            assert redeem(relay.url, offer.code, role="sender").role is Role.SENDER
            assert sender.result() == "arrived"

    def test_what_cannot_be_offered(self, owner: Session, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="owner"):
            owner.transfer_code("owner")
        with pytest.raises(UsageError, match="observer"):
            owner.transfer_code("king")
        with pytest.raises(UsageError):
            owner.transfer_code("runner", park=True, verify=lambda words: True)
        with pytest.raises(UsageError):
            redeem(owner.relay, "417-guitar-orbit", role="owner")
        with Session.join(owner.invites["sender"], cache_dir=tmp_path / "s") as member:
            with pytest.raises(AirloxError) as caught:
                member.transfer_code("sender")
            assert caught.value.code == "forbidden"


class TestTheOtherEnd:
    def test_nobody_answers(self, owner: Session, relay: RelayThread) -> None:
        offer = owner.transfer_code("runner")
        with pytest.raises(WaitTimeout) as caught:
            redeem(relay.url, offer.code, timeout=SOON_S)
        assert caught.value.hint is not None
        assert "keep waiting" in caught.value.hint

    def test_two_at_once(self, owner: Session, relay: RelayThread) -> None:
        offer = owner.transfer_code("runner")
        outcomes: list[str] = []

        def take() -> None:
            try:
                outcomes.append(redeem(relay.url, offer.code).role.value)
            except TransferError as error:
                outcomes.append(error.code)

        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        with Waiting(offer) as sender:
            assert sender.result() == "arrived"
            for thread in threads:
                thread.join(60)
        assert sorted(outcomes) == ["code_used", "runner"]

    def test_too_many_at_once(
        self, owner: Session, relay: RelayThread, redeeming: Redeeming
    ) -> None:
        offer = owner.transfer_code("runner")
        for _ in range(4):
            redeeming(offer.code).begin()
        error = refused("code_busy", lambda: redeem(relay.url, offer.code))
        assert error.retry_after_s is not None

    def test_a_receiver_that_dies_before_the_invite(
        self, owner: Session, relay: RelayThread, redeeming: Redeeming
    ) -> None:
        offer = owner.transfer_code("runner")
        dead = redeeming(offer.code)
        with Waiting(offer) as sender:
            dead.begin()
            dead.hear(0)
            assert redeem(relay.url, offer.code).role is Role.RUNNER
            assert sender.result() == "arrived"

    def test_a_receiver_that_gives_up_after_it_confirmed(
        self, owner: Session, relay: RelayThread, redeeming: Redeeming
    ) -> None:
        """The invite is sent to nobody, and the code stands."""
        asked, answer = threading.Event(), threading.Event()

        def verify(words: str) -> bool:
            asked.set()
            return answer.wait(60)

        offer = owner.transfer_code("runner", verify=verify)
        dead = redeeming(offer.code)
        with Waiting(offer) as sender:
            dead.begin()
            dead.confirm()
            assert asked.wait(60)
            calls.leave(dead.api, dead.nameplate, dead.number)
            answer.set()
            assert redeem(relay.url, offer.code).role is Role.RUNNER
            assert sender.result() == "arrived"

    def test_a_receiver_that_dies_with_the_invite_under_way(
        self,
        owner: Session,
        relay: RelayThread,
        monkeypatch: pytest.MonkeyPatch,
        redeeming: Redeeming,
    ) -> None:
        monkeypatch.setattr(client, "RECEIPT_S", SOON_S)
        offer = owner.transfer_code("runner")
        dead = redeeming(offer.code)
        with Waiting(offer) as sender:
            dead.begin()
            dead.confirm()
            assert sender.result() == "not_received"
        refused("code_used", lambda: redeem(relay.url, offer.code))
        assert dead.take().role is Role.RUNNER
        calls.done(dead.api, dead.nameplate, dead.number)
        offer.wait(60)

    def test_a_sender_that_waits_again(self, owner: Session, relay: RelayThread) -> None:
        offer = owner.transfer_code("runner")
        with pytest.raises(WaitTimeout) as caught:
            offer.wait(SOON_S)
        assert caught.value.code == "timeout"
        with Waiting(offer) as sender:
            redeem(relay.url, offer.code)
            assert sender.result() == "arrived"

    def test_waits_end_when_they_are_closed(self, owner: Session) -> None:
        offer = owner.transfer_code("runner")
        with Waiting(offer) as sender:
            until(lambda: offer._waiting.locked())
            with pytest.raises(UsageError):
                offer.wait(SOON_S)
            offer.close()
            assert sender.result() == "closed"
        with Waiting(offer) as sender:
            until(lambda: offer._waiting.locked())
            owner.disconnect()
            assert sender.result() == "closed"


class TestComparing:
    def test_both_see_the_same(self, owner: Session, relay: RelayThread) -> None:
        shown: list[str] = []

        def verify(words: str) -> bool:
            shown.append(words)
            return True

        offer = owner.transfer_code("runner", verify=verify)
        with Waiting(offer) as sender:
            redeem(relay.url, offer.code, verify=verify)
            assert sender.result() == "arrived"
        assert shown[0] == shown[1]
        assert len(shown[0].split()) == 5

    def test_the_sender_says_no(self, owner: Session, relay: RelayThread) -> None:
        offer = owner.transfer_code("runner", verify=lambda words: False)
        with Waiting(offer) as sender:
            refused("code_cancelled", lambda: redeem(relay.url, offer.code))
            assert sender.result() == "not_compared"

    def test_the_sender_says_no_and_the_receiver_compares_too(
        self, owner: Session, relay: RelayThread
    ) -> None:
        offer = owner.transfer_code("runner", verify=lambda words: False)
        with Waiting(offer) as sender:
            refused("not_compared", lambda: redeem(relay.url, offer.code, verify=lambda w: True))
            assert sender.result() == "not_compared"

    @pytest.mark.parametrize("compares", [True, False])
    def test_the_receiver_says_no_when_the_invite_was_sent(
        self, owner: Session, relay: RelayThread, compares: bool
    ) -> None:
        offer = owner.transfer_code("runner", verify=(lambda words: True) if compares else None)
        nameplate = transfer.parse_code(offer.code).nameplate

        def says_no(words: str) -> bool:
            until(lambda: relay.relay.transfers._codes[nameplate].state == "used", "the invite")
            return False

        with Waiting(offer) as sender:
            refused("not_compared", lambda: redeem(relay.url, offer.code, verify=says_no))
            assert sender.result() == ("not_compared" if compares else "not_received")

    def test_the_receiver_says_no(self, owner: Session, relay: RelayThread) -> None:
        offer = owner.transfer_code("runner")
        with Waiting(offer):
            refused(
                "not_compared", lambda: redeem(relay.url, offer.code, verify=lambda words: False)
            )


class TestParked:
    def test_nobody_waits(self, owner: Session, relay: RelayThread) -> None:
        offer = owner.transfer_code("runner", park=True)
        assert offer.parked
        assert len(offer.code.split("-")) == 7
        assert redeem(relay.url, offer.code, role="runner").url() == owner.invites["runner"]
        offer.wait(60)
        refused("code_used", lambda: redeem(relay.url, offer.code))

    def test_wrong_words(self, owner: Session, relay: RelayThread) -> None:
        """P-TRF-8"""
        heard: list[int] = []
        offer = owner.transfer_code("runner", park=True, on_guess=heard.append)
        wrong = other_words(offer.code)
        refused("wrong_role", lambda: redeem(relay.url, offer.code, role="sender"))
        for _ in range(3):
            refused("code_wrong", lambda: redeem(relay.url, wrong))
        refused("code_void", lambda: redeem(relay.url, offer.code))
        refused("code_void", lambda: offer.wait(60))
        assert heard == [2, 1, 0]

    def test_cancelled(self, owner: Session, relay: RelayThread) -> None:
        offer = owner.transfer_code("runner", park=True)
        offer.cancel()
        refused("code_cancelled", lambda: redeem(relay.url, offer.code))

    def test_the_other_kind_of_code(self, owner: Session, relay: RelayThread) -> None:
        parked = owner.transfer_code("runner", park=True).code
        live = owner.transfer_code("runner").code
        two, six = "-".join(parked.split("-")[:3]), f"{live}-guitar-orbit-lemon-tango"
        assert "six words" in str(refused("code_wrong", lambda: redeem(relay.url, two)).__cause__)
        assert "two words" in str(refused("code_wrong", lambda: redeem(relay.url, six)).__cause__)
        with pytest.raises(UsageError):
            redeem(relay.url, parked, verify=lambda words: True)

    def test_an_answer_that_was_lost_is_given_again(
        self, owner: Session, relay: RelayThread, redeeming: Redeeming
    ) -> None:
        """P-TRF-8: to the same receiver, and to no other."""
        offer = owner.transfer_code("runner", park=True)
        code = transfer.parse_code(offer.code)
        api = redeeming(offer.code).api
        head = calls.parked_head(api, code.nameplate)
        salt = b64u_decode(head.salt)
        access = transfer.stretch(code.words, salt).access
        first = calls.take_parked(api, code.nameplate, access, bytes(16))
        assert calls.take_parked(api, code.nameplate, access, bytes(16)) == first
        with pytest.raises(AirloxError) as caught:
            calls.take_parked(api, code.nameplate, access, bytes([1] * 16))
        assert caught.value.code == "code_used"


class TestASenderWithoutTheWords:
    """Whoever plays the sender, such as a relay: the receiver's words are no more than guessed."""

    def answering(self, owner: Session, words: tuple[str, str], sealed: bytes) -> threading.Thread:
        """A thread that answers the only try of the owner's newest code by other words."""
        api = owner._core.api
        self.nameplate = calls.offer(api, b"").nameplate
        offered = Offered(SessionId(owner.session_id), Role.RUNNER, self.nameplate)

        def run() -> None:
            shown = calls.look(api, self.nameplate, None)
            while not shown.tries or len(shown.tries[0].said) < 1:
                shown = calls.look(api, self.nameplate, shown.version)
            number = shown.tries[0].id
            share = transfer.make_share(Side.SENDER, words, os.urandom(64))
            point = transfer.parse_opening(calls.message_of(shown.tries[0].said, 0, api))
            agreed = transfer.agree(share, point, offered)
            calls.answer(api, self.nameplate, number, transfer.encode_answer(share, offered))
            calls.answer(api, self.nameplate, number, transfer.encode_confirmation(agreed))
            with suppress(RelayError):  # the receiver may be gone already
                calls.send_invite(api, self.nameplate, number, sealed)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def test_it_is_found_out_before_anything_is_opened(
        self, owner: Session, relay: RelayThread
    ) -> None:
        """P-TRF-5"""
        thread = self.answering(owner, ("camel", "lemon"), os.urandom(200))
        with pytest.raises(SignatureError) as caught:
            redeem(relay.url, f"{self.nameplate}-guitar-orbit")
        assert caught.value.code == "code_wrong"
        thread.join(60)

    def test_one_that_has_them_and_seals_something_else(
        self, owner: Session, relay: RelayThread
    ) -> None:
        """P-TRF-6"""
        thread = self.answering(owner, ("guitar", "orbit"), os.urandom(200))
        with pytest.raises(DecryptError):
            redeem(relay.url, f"{self.nameplate}-guitar-orbit")
        thread.join(60)


class TestALineThatLoses:
    @pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.slow)])
    def test_every_answer_is_lost_so_many_times(
        self, relay: RelayThread, tmp_path: Path, times: int
    ) -> None:
        """P-TRF-9, P-TRF-13: whatever was posted is posted again, and is there once. Four times are
        more than one call tries."""
        lost: Counter[str] = Counter()
        must_arrive = ("/codes", "/tries") if times > 1 else ()

        def loses(request: Request) -> bool:
            what = f"{request.method} {request.path} {request.body!r}"
            if "/codes" not in what or request.path.endswith(must_arrive):
                return False
            lost[what] += 1
            return lost[what] <= times

        carrier = Carrier(relay.url)
        with (
            Scripted(carrier) as way,
            Session.create(way.base_url, cache_dir=tmp_path, **EXECUTE) as owner,
        ):
            carrier.loses = loses
            offer = owner.transfer_code("runner")
            with Waiting(offer) as sender:
                assert redeem(way.base_url, offer.code).role is Role.RUNNER
                assert sender.result() in ("arrived", "not_received")
        openings = {r.body for r, _ in carrier.seen if r.path.endswith("/tries")}
        assert len(openings) == 1
        for step in ("/invite", "/done", "confirm"):
            assert any(step in what for what in lost), step

    def test_an_older_relay(self, tmp_path: Path) -> None:
        document = {"signed_manifest": "{}"}

        def script(peer: Peer) -> None:
            while (request := peer.read()) is not None:
                if request.method == "GET" and "codes" not in request.path:
                    peer.answer(200, document)
                else:
                    peer.answer(404, {"error": "not_found", "message": "no such path"})

        with Scripted(script) as server:
            refused("no_codes", lambda: redeem(server.base_url, "417-guitar-orbit"))
            api = RelayApi.connect(server.base_url, LINK.session_id, token="t")
            make = partial(client.offer, api, LINK, park=False, verify=None, on_guess=None)
            refused("no_codes", make)
            api.close()

    @pytest.mark.parametrize(
        "answers",
        [
            [{}],
            [{"try": 5}],
            [{"try": "../../sessions"}],
            [{"try": "A" * 22}, {"version": 1, "state": "open", "guesses_left": 3, "said": ["!"]}],
            [{"try": "A" * 22}, {"version": 1, "state": 7, "guesses_left": 3, "said": []}],
            [{"try": "A" * 22}, {"said": ["AAAA"], "version": 1, "state": "", "guesses_left": 0}],
            [{"try": "A" * 22}, [[]] * 1000],
            [
                {"try": "A" * 22},
                {"said": ["A" * 9000], "version": 1, "state": "", "guesses_left": 0},
            ],
        ],
    )
    def test_answers_that_no_relay_gives(self, answers: list[Any]) -> None:
        def script(peer: Peer) -> None:
            while (request := peer.read()) is not None:
                is_first = request.path.endswith("/tries")
                peer.answer(200, answers[0 if is_first else -1])

        with Scripted(script) as server, pytest.raises(ProtocolError):
            redeem(server.base_url, "417-guitar-orbit", timeout=30)

    @pytest.mark.parametrize(
        "offered",
        [
            {"nameplate": 0, "expires_in_s": 60},
            {"nameplate": 417, "expires_in_s": -1},
            {"nameplate": 417, "expires_in_s": 10**400},
        ],
    )
    def test_codes_that_no_relay_offers(self, offered: dict[str, int]) -> None:
        def script(peer: Peer) -> None:
            while peer.read() is not None:
                peer.answer(201, offered)

        with Scripted(script) as server:
            api = RelayApi.connect(server.base_url, LINK.session_id, token="t")
            with pytest.raises(ProtocolError):
                client.offer(api, LINK, park=False, verify=None, on_guess=None)
            api.close()


class TestTriesThatARelayMakesUp:
    def ended_by(self, shown: list[dict[str, Any]]) -> tuple[str, list[str]]:
        """How the wait of a sender ends that is shown these states of its code, and the paths it
        posted to."""
        states, posted = iter(shown), list[str]()

        def script(peer: Peer) -> None:
            while (request := peer.read()) is not None:
                if request.path.endswith("/codes"):
                    peer.answer(201, {"nameplate": 417, "expires_in_s": 60})
                elif request.method == "GET":
                    peer.answer(200, {"version": 1, "guesses_left": 3} | next(states))
                else:
                    posted.append(request.path)
                    peer.answer(204)

        with Scripted(script) as server:
            api = RelayApi.connect(server.base_url, LINK.session_id, token="t")
            offer = client.offer(api, LINK, park=False, verify=None, on_guess=None)
            with Waiting(offer) as sender:
                ended = sender.result()
            api.close()
        return ended, posted

    def tries(self, number: int, said: list[str]) -> dict[str, Any]:
        one = {"id": b64u_encode(number.to_bytes(16, "big")), "state": "open", "said": said}
        return {"state": "open", "tries": [one]}

    def test_in_which_nothing_was_said(self) -> None:
        ended, posted = self.ended_by([self.tries(number, []) for number in range(3)])
        assert ended == "code_void"
        assert [path.rpartition("/")[2] for path in posted] == ["wrong"] * 3

    def test_without_end(self) -> None:
        """Of those that the relay shows no more nothing is kept: they keep out nobody."""
        share = transfer.make_share(Side.RECEIVER, ("camel", "lemon"), os.urandom(64))
        said = [b64u_encode(transfer.encode_opening(share))]
        many = [self.tries(number, said) for number in range(300)]
        ended, posted = self.ended_by([*many, {"state": "cancelled", "tries": []}])
        assert ended == "code_cancelled"
        assert len(posted) == 300


class TestWhatTheRelayCanFind:
    def exchange(self, relay: RelayThread, tmp_path: Path) -> tuple[list[bytes], transfer.Code]:
        """Everything that passes to and from the relay while a code is redeemed, and the code."""
        carrier = Carrier(relay.url)
        with (
            Scripted(carrier) as way,
            Session.create(way.base_url, cache_dir=tmp_path, **EXECUTE) as owner,
        ):
            offer = owner.transfer_code("runner")
            with Waiting(offer) as sender:
                redeem(way.base_url, offer.code)
                assert sender.result() == "arrived"
        seen = [part for request, answer in carrier.seen for part in (*request[:2], answer)]
        whole = b"".join(part if isinstance(part, bytes) else part.encode() for part in seen)
        code = transfer.parse_code(offer.code)
        assert not any(word.encode() in whole for word in code.words if len(word) > 4)
        posted = [request for request, _ in carrier.seen if "/tries" in request.path]
        return [request.body for request in posted if b'"v":1' in request.body], code

    def test_the_search_finds_nothing(self, relay: RelayThread, tmp_path: Path) -> None:
        """P-TRF-5"""
        messages, code = self.exchange(relay, tmp_path)
        assert len(messages) == 4
        first, second = code.words
        pairs = [(first, second), *product(WORDS[:8], WORDS[:8])]
        assert list(search(messages, code.nameplate, pairs)) == []

    @pytest.mark.slow
    def test_a_longer_search_finds_nothing(self, relay: RelayThread, tmp_path: Path) -> None:
        """P-TRF-5: half of all second words beside the right first one, and the other way."""
        messages, code = self.exchange(relay, tmp_path)
        first, second = code.words
        some = WORDS[::2]
        pairs = [*((first, word) for word in some), *((word, second) for word in some)]
        assert list(search(messages, code.nameplate, pairs)) == []

    @pytest.mark.slow
    def test_a_search_of_all_words_finds_nothing(self, relay: RelayThread, tmp_path: Path) -> None:
        """P-TRF-5: TEST_FIRST_WORDS=2048 takes every pair there is, the right one among them."""
        messages, code = self.exchange(relay, tmp_path)
        at = WORDS.index(code.words[0])
        firsts = [WORDS[(at + step) % len(WORDS)] for step in range(FIRST_WORDS)]
        assert search_beside(messages, code.nameplate, firsts) == []

    def test_the_search_would_find_a_careless_exchange(self) -> None:
        """The same searches, where one end has no secret: y is one."""
        words = ("guitar", "orbit")
        offered = Offered(SessionId("ax_" + "a" * 26), Role.RUNNER, 417)
        own = transfer.make_share(Side.SENDER, words, os.urandom(64))
        other = transfer.make_share(Side.RECEIVER, words, (1).to_bytes(64, "little"))
        sender = transfer.agree(own, other.point, offered)
        receiver = transfer.agree(other, own.point, offered)
        messages = [
            transfer.encode_opening(other),
            transfer.encode_answer(own, offered),
            transfer.encode_confirmation(receiver),
            transfer.encode_confirmation(sender),
        ]
        pairs = [("lemon", "tango"), words, ("orbit", "guitar")]
        assert set(search(messages, 417, pairs)) == {words}
        assert set(search(messages, 417, pairs, thorough=False)) == {words}
