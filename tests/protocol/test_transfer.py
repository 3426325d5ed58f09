"""Transfer codes: reading them, the exchange held against a second implementation and the RFC,
and that nothing changed on the way is taken."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import product
from typing import Any, Final

import ed25519_odd as odd
import pytest
import spake2_plain as plain
import transfer_vectors
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.bindings import crypto_scalarmult_ed25519_base_noclamp

from airlox.errors import DecryptError, ProtocolError, SignatureError, ValidationError
from airlox.protocol import limits, transfer
from airlox.protocol.encoding import SessionId, b64u_decode, b64u_encode
from airlox.protocol.invite import Invite, member_invite
from airlox.protocol.keys import Role
from airlox.protocol.transfer import Code, Offered, Parked, Side
from airlox.protocol.wordlist import WORDS
from support.vectors import VECTORS

BASE: Final = "https://relay.example"
LINK: Final = member_invite(BASE, bytes(range(32)), Role.RUNNER)
OFFERED: Final = Offered(LINK.session_id, LINK.role, 417)
WORDS_2: Final = ("guitar", "orbit")
WORDS_6: Final = ("guitar", "orbit", "abacus", "zucchini", "lemon", "tango")
NONCE: Final = bytes(12)

codes = st.builds(
    lambda nameplate, count, random: Code(
        nameplate, transfer.draw_words(count, random[: transfer.random_bytes_of(count)])
    ),
    st.integers(1, 10**12 - 1),
    st.sampled_from([transfer.LIVE_WORDS, transfer.PARKED_WORDS]),
    st.binary(min_size=16, max_size=16),
)


def random(seed: str, size: int = 64) -> bytes:
    return hashlib.shake_256(seed.encode()).digest(size)


def exchange(
    sender_words: tuple[str, ...] = WORDS_2,
    receiver_words: tuple[str, ...] = WORDS_2,
    receiver_offered: Offered = OFFERED,
) -> tuple[transfer.Agreed, transfer.Agreed]:
    """What the ends of one exchange agreed on: the sender, the receiver."""
    own = transfer.make_share(Side.SENDER, sender_words, random("x"))
    other = transfer.make_share(Side.RECEIVER, receiver_words, random("y"))
    sender = transfer.agree(own, transfer.parse_opening(transfer.encode_opening(other)), OFFERED)
    point, _ = transfer.parse_answer(transfer.encode_answer(own, OFFERED), OFFERED.nameplate)
    return sender, transfer.agree(other, point, receiver_offered)


class TestCodes:
    @given(codes, st.sampled_from(["-", " ", "\u2013", ", ", "._"]), st.booleans())
    def test_what_is_printed_is_read_again(self, code: Code, gap: str, is_loud: bool) -> None:
        """P-TRF-1"""
        text = code.text().replace("-", gap)
        assert transfer.parse_code(f" {text.upper() if is_loud else text}\n") == code

    @given(codes)
    def test_dashes_may_be_missing_where_that_is_clear(self, code: Code) -> None:
        """P-TRF-1"""
        together = code.text().replace("-", "")
        try:
            read = transfer.parse_code(together)
        except ValidationError:
            with pytest.raises(ValidationError, match="in two ways"):
                transfer.parse_code(together)
        else:
            assert read == code

    @given(st.text(max_size=limits.CODE_CHARS + 10))
    def test_anything_else_is_refused_and_not_repeated(self, text: str) -> None:
        with pytest.raises(ValidationError) as caught:
            transfer.parse_code(f"{text}!")
        assert caught.value.code == "code_mistyped"
        assert len(text) < 4 or text not in caught.value.message

    def test_nearness_looks_at_the_list_alone(self) -> None:
        """P-TRF-2: the words that are meant are not known to whoever makes the suggestion."""
        with pytest.raises(ValidationError) as caught:
            transfer.parse_code("417-gitar-orbit")
        assert caught.value.hint == "did you mean guitar?"
        assert "gitar" not in caught.value.message
        with pytest.raises(ValidationError, match="check its spelling"):
            transfer.parse_code("417-qqqqqq-orbit")
        assert transfer.parse_code("417-magnet-orbit").words == ("magnet", "orbit")

    def test_a_code_shows_in_no_repr(self) -> None:
        code = Code(417, WORDS_2)
        share = transfer.make_share(Side.SENDER, WORDS_2, random("x"))
        shown = repr((code, share, *exchange(), transfer.key_schedule(b"")))
        assert not any(word in shown for word in WORDS_2)
        assert share._scalar.hex() not in shown
        assert repr(share._scalar) not in shown

    def test_each_word_is_as_likely(self) -> None:
        """P-TRF-1: every pair of the list comes from as many of the 2^24 draws as any other."""
        drawn = {transfer.draw_words(2, n.to_bytes(3, "big"))[1] for n in range(4 * 2048)}
        assert drawn == set(WORDS)
        with pytest.raises(ValidationError):
            transfer.draw_words(2, bytes(4))


RFC_9382: Final = json.loads((VECTORS.parent / "tests/protocol/rfc9382.json").read_text())


class TestAgainstOthers:
    @pytest.mark.parametrize("case", RFC_9382, ids=lambda case: f"{case['A']}-{case['B']}")
    def test_transcript_and_key_schedule_of_the_rfc(self, case: dict[str, str]) -> None:
        """P-TRF-3: the published cases are of P-256; what follows from the points is ours, too."""
        a, b = case["A"].encode(), case["B"].encode()
        pa, pb, k, w = (bytes.fromhex(case[name]) for name in ("pA", "pB", "K", "w"))
        found = transfer.key_schedule(transfer.build_transcript(a, b, pa, pb, k, w))
        assert found.key.hex() == case["Ke"]
        assert (found.confirm_a.hex(), found.confirm_b.hex()) == (case["cA"], case["cB"])

    def test_the_points_come_from_their_seeds(self) -> None:
        """P-TRF-3"""
        assert odd.encode(plain.M) == transfer._M
        assert odd.encode(plain.N) == transfer._N

    def test_the_second_implementation_made_the_vectors(self) -> None:
        """P-TRF-3"""
        cases = json.loads((VECTORS / "transfer.json").read_text())["cases"]
        exchanges = [case for case in cases if case["op"] == "exchange"]
        assert len(exchanges) >= 3
        for case in exchanges:
            assert transfer_vectors.exchange_outcome(case["in"]) == case["ok"]
        (parked,) = (case for case in cases if case["op"] == "park")
        assert transfer_vectors.parked_outcome(parked["in"]) == parked["ok"]

    @pytest.mark.slow
    @settings(max_examples=20)
    @given(st.integers(), codes)
    def test_both_agree_on_any_exchange(self, seed: int, code: Code) -> None:
        """P-TRF-3"""
        x, y = random(f"x {seed}"), random(f"y {seed}")
        own = transfer.make_share(Side.SENDER, code.words, x)
        other = transfer.make_share(Side.RECEIVER, code.words, y)
        offered = Offered(LINK.session_id, LINK.role, code.nameplate)
        agreed = transfer.agree(own, other.point, offered)
        where = f"{code.nameplate} {LINK.session_id} runner"
        run = plain.exchange(list(code.words), where, x, y)
        assert (own.point, other.point) == (run.pa, run.pb)
        assert (agreed.confirmation, agreed._key) == (run.confirm_a, run.key)


class TestExchange:
    def test_the_invite_crosses(self) -> None:
        sender, receiver = exchange()
        sender.check(receiver.confirmation)
        receiver.check(sender.confirmation)
        assert sender.verifier == receiver.verifier
        assert len(sender.verifier.split()) == transfer.VERIFIER_WORDS
        sealed = transfer.seal_invite(sender, OFFERED, LINK, NONCE)
        assert transfer.open_invite(receiver, OFFERED, sealed, BASE) == LINK

    def test_the_invite_names_the_relay_that_brought_it(self) -> None:
        """P-TRF-7"""
        sender, receiver = exchange()
        sealed = transfer.seal_invite(sender, OFFERED, LINK, NONCE)
        other = transfer.open_invite(receiver, OFFERED, sealed, "http://127.0.0.1:8080")
        assert other.base_url == "http://127.0.0.1:8080"
        assert (other.role_seed, other.session_key) == (LINK.role_seed, LINK.session_key)

    @pytest.mark.parametrize(
        "words", [("guitar", "camel"), ("camel", "orbit"), ("orbit", "guitar"), WORDS_6]
    )
    def test_other_words_confirm_nothing(self, words: tuple[str, ...]) -> None:
        """P-TRF-5"""
        sender, receiver = exchange(receiver_words=words)
        for one, other in ((sender, receiver), (receiver, sender)):
            with pytest.raises(SignatureError):
                one.check(other.confirmation)
        assert sender.verifier != receiver.verifier

    @pytest.mark.parametrize(
        "offered",
        [
            Offered(LINK.session_id, Role.SENDER, 417),
            Offered(LINK.session_id, LINK.role, 418),
            Offered(SessionId("ax_" + "a" * 26), LINK.role, 417),
        ],
        ids=["role", "nameplate", "session"],
    )
    def test_a_relay_that_lies_about_the_offer_breaks_the_exchange(self, offered: Offered) -> None:
        """P-TRF-4"""
        sender, receiver = exchange(receiver_offered=offered)
        with pytest.raises(SignatureError):
            sender.check(receiver.confirmation)
        with pytest.raises(SignatureError):
            receiver.check(sender.confirmation)

    def test_the_own_share_sent_back_is_no_partner(self) -> None:
        """P-TRF-4: the ends use different points of the RFC, and confirm differently."""
        own = transfer.make_share(Side.SENDER, WORDS_2, random("x"))
        agreed = transfer.agree(own, own.point, OFFERED)
        with pytest.raises(SignatureError):
            agreed.check(agreed.confirmation)

    @pytest.mark.parametrize(
        "name", [name for name in transfer_vectors.points() if name != "of-the-group"]
    )
    def test_points_outside_the_group_are_refused(self, name: str) -> None:
        """P-TRF-3"""
        point = transfer_vectors.points()[name]
        own = transfer.make_share(Side.SENDER, WORDS_2, random("x"))
        with pytest.raises(ValidationError):
            transfer.agree(own, point, OFFERED)
        message = f'{{"share":"{b64u_encode(point)}","v":1}}'.encode()
        with pytest.raises(ValidationError):
            transfer.parse_opening(message)

    def test_a_share_that_is_only_the_mask_is_refused(self) -> None:
        """P-TRF-3: it would fix the shared point whatever our scalar is."""
        own = transfer.make_share(Side.SENDER, WORDS_2, random("x"))
        mask = odd.encode(odd.multiply(plain.password(list(WORDS_2)), plain.N))
        with pytest.raises(ValidationError):
            transfer.agree(own, mask, OFFERED)

    def test_only_the_invite_that_was_offered_is_sealed_and_taken(self) -> None:
        """P-TRF-7"""
        sender, receiver = exchange()
        other = member_invite(BASE, bytes(range(32)), Role.SENDER)
        with pytest.raises(ValidationError):
            transfer.seal_invite(sender, OFFERED, other, NONCE)
        for tail in (
            b"",
            b"/s/x",
            other.url().removeprefix(BASE).encode(),
            b"\xff",
            b"@evil" + _tail(),
        ):
            with pytest.raises(ProtocolError):
                transfer.open_invite(receiver, OFFERED, _sealed(sender, tail), BASE)
        with pytest.raises(ValidationError):
            transfer.open_invite(receiver, OFFERED, _sealed(sender, b"x" * 600), BASE)


def _tail() -> bytes:
    return LINK.url().removeprefix(BASE).encode()


def _sealed(sender: transfer.Agreed, plaintext: bytes) -> bytes:
    return plain.sealed(sender._key, NONCE, plaintext, OFFERED.identity(Side.SENDER))


mutations = st.tuples(st.integers(0, 2000), st.integers(1, 255))


def mutated(message: bytes, at: int, by: int) -> bytes:
    place = at % len(message)
    return message[:place] + bytes([message[place] ^ by]) + message[place + 1 :]


class TestMutations:
    """P-TRF-6: whatever is changed in any message, no invite is opened."""

    def run(self, change: Any) -> Invite:
        """An exchange whose messages go through `change(which, message)`."""
        sender_share = transfer.make_share(Side.SENDER, WORDS_2, random("x"))
        receiver_share = transfer.make_share(Side.RECEIVER, WORDS_2, random("y"))
        opening = change(0, transfer.encode_opening(receiver_share))
        sender = transfer.agree(sender_share, transfer.parse_opening(opening), OFFERED)
        answer = change(1, transfer.encode_answer(sender_share, OFFERED))
        point, offered = transfer.parse_answer(answer, OFFERED.nameplate)
        receiver = transfer.agree(receiver_share, point, offered)
        sender.check(transfer.parse_confirmation(change(2, transfer.encode_confirmation(receiver))))
        receiver.check(transfer.parse_confirmation(change(3, transfer.encode_confirmation(sender))))
        sealed = change(4, transfer.seal_invite(sender, OFFERED, LINK, NONCE))
        return transfer.open_invite(receiver, offered, sealed, BASE)

    def test_without_a_change_it_is_opened(self) -> None:
        assert self.run(lambda which, message: message) == LINK

    @pytest.mark.parametrize("target", range(5))
    @settings(max_examples=60)
    @given(mutations)
    def test_a_changed_byte(self, target: int, mutation: tuple[int, int]) -> None:
        def change(which: int, message: bytes) -> bytes:
            return mutated(message, *mutation) if which == target else message

        with pytest.raises(ProtocolError):
            self.run(change)

    @pytest.mark.parametrize("target", range(5))
    @given(st.binary(max_size=400))
    def test_anything_else(self, target: int, instead: bytes) -> None:
        with pytest.raises(ProtocolError):
            self.run(lambda which, message: instead if which == target else message)


PARKED: Final = transfer.park(WORDS_6, LINK, salt=bytes(16), nonce=NONCE)
PARKED_KEYS: Final = transfer.stretch(WORDS_6, bytes(16))


class TestParked:
    def open(self, document: Parked) -> Invite:
        offered = Offered(SessionId(document.session_id), document.role, 0)
        return transfer.open_parked(PARKED_KEYS, b64u_decode(document.sealed), offered, BASE)

    def test_the_invite_comes_out(self) -> None:
        parked = transfer.parse_parked(PARKED)
        assert self.open(parked) == LINK
        assert parked.access_sha256 == b64u_encode(hashlib.sha256(PARKED_KEYS.access).digest())
        assert len(PARKED) <= limits.PARKED_BYTES

    def test_two_words_are_too_few(self) -> None:
        """P-TRF-8"""
        with pytest.raises(ValidationError):
            transfer.park(WORDS_2, LINK, salt=bytes(16), nonce=NONCE)

    @given(mutations)
    def test_a_changed_byte_is_refused(self, mutation: tuple[int, int]) -> None:
        """P-TRF-8: or stands where the words are not checked against it."""
        try:
            document = transfer.parse_parked(mutated(PARKED, *mutation))
        except ProtocolError:
            return
        was = transfer.parse_parked(PARKED)
        if document.access_sha256 != was.access_sha256 or document.salt != was.salt:
            return  # the words lead to other keys, or the relay does not know them
        with pytest.raises(ProtocolError):
            self.open(document)

    def test_the_owners_link_is_never_handed_over(self) -> None:
        """P-TRF-7"""
        owner = PARKED.replace(b'"runner"', b'"owner"')
        with pytest.raises(ValidationError):
            transfer.parse_parked(owner)
        share = transfer.make_share(Side.SENDER, WORDS_2, random("x"))
        answer = transfer.encode_answer(share, Offered(LINK.session_id, Role.OWNER, 417))
        with pytest.raises(ValidationError):
            transfer.parse_answer(answer, 417)

    def test_other_words_do_not_open_it(self) -> None:
        """P-TRF-8"""
        parked = transfer.parse_parked(PARKED)
        keys = transfer.stretch((*WORDS_6[:5], "camel"), bytes(16))
        assert keys.access != PARKED_KEYS.access
        with pytest.raises(DecryptError):
            transfer.open_parked(keys, b64u_decode(parked.sealed), OFFERED, BASE)


class TestSearch:
    """P-TRF-5: every code fits what a relay saw of an exchange.

    With points of the RFC whose logarithms somebody knew, one could say with which secrets two
    honest ends would have sent the very same bytes for any other code. So here somebody knows.
    """

    def fits(self, pair: tuple[str, ...], seen: tuple[bytes, bytes], logs: tuple[int, int]) -> bool:
        w = int.from_bytes(transfer.password_scalar(WORDS_2), "little")
        other_w = int.from_bytes(transfer.password_scalar(pair), "little")
        made = []
        for side, name, log in zip(Side, ("x", "y"), logs, strict=True):
            secret = int.from_bytes(random(name), "little") + (w - other_w) * log
            share = transfer.make_share(side, pair, (secret % odd.L).to_bytes(64, "little"))
            made.append(share.point)
        return tuple(made) == seen

    def check(self, monkeypatch: pytest.MonkeyPatch, pairs: Iterable[tuple[str, str]]) -> None:
        logs = (
            int.from_bytes(random("m", 32), "little"),
            int.from_bytes(random("n", 32), "little"),
        )
        for name, log in zip(("_M", "_N"), logs, strict=True):
            scalar = (log % odd.L).to_bytes(32, "little")
            monkeypatch.setattr(transfer, name, crypto_scalarmult_ed25519_base_noclamp(scalar))
        own = transfer.make_share(Side.SENDER, WORDS_2, random("x"))
        other = transfer.make_share(Side.RECEIVER, WORDS_2, random("y"))
        seen = (own.point, other.point)
        assert not self.fits(WORDS_2, seen[::-1], logs)
        assert all(self.fits(pair, seen, logs) for pair in pairs)

    def test_the_exchange_fits_every_pair(self, monkeypatch: pytest.MonkeyPatch) -> None:
        some = WORDS[::64]
        self.check(monkeypatch, product(some, some))

    @pytest.mark.slow
    def test_the_exchange_fits_far_more_pairs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.check(monkeypatch, product(WORDS, WORDS[::256]))
