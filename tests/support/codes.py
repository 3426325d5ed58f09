"""Transfer codes in tests: a sender that waits in a thread, a receiver step by step, and the search
of somebody who has everything that passed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from types import TracebackType
from typing import Final

from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_scalar_negate,
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_noclamp,
)

from airlox.client import transfer_api as calls
from airlox.client.relay_api import RelayApi
from airlox.client.transfer import TransferOffer
from airlox.errors import AirloxError
from airlox.protocol import transfer
from airlox.protocol.invite import Invite
from airlox.protocol.transfer import Offered, Side
from airlox.protocol.wordlist import WORDS

WAIT_S: Final = 60.0
_EIGHT: Final = (8).to_bytes(32, "little")


class Waiting:
    """`with Waiting(offer) as sender:` waits for a code meanwhile."""

    def __init__(self, offer: TransferOffer) -> None:
        self._offer = offer
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._offer.wait(WAIT_S)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread.is_alive():
            self._offer.close()
            self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def result(self) -> str:
        """How the wait ended: `arrived`, or the code of its error."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the sender still waits"
        if isinstance(self._error, AirloxError):
            return self._error.code
        if self._error is not None:
            raise self._error
        return "arrived"


class Receiver:
    """An exchange that may stop anywhere, with any words."""

    def __init__(self, relay_url: str, code: str, words: tuple[str, ...] | None = None) -> None:
        parsed = transfer.parse_code(code)
        self.api = RelayApi.connect(relay_url, "")
        self.base_url = relay_url
        self.nameplate = parsed.nameplate
        random = os.urandom(transfer.SCALAR_RANDOM_BYTES)
        self._share = transfer.make_share(Side.RECEIVER, words or parsed.words, random)
        self.number = ""
        self.offered: Offered
        self.agreed: transfer.Agreed

    def close(self) -> None:
        self.api.close()

    def begin(self) -> None:
        opening = transfer.encode_opening(self._share)
        self.number = calls.begin(self.api, self.nameplate, opening)

    def hear(self, at: int) -> bytes:
        """The sender's message of a number, once it is there."""
        version = None
        while True:
            shown = calls.look_at_try(self.api, self.nameplate, self.number, version)
            version = shown.version
            if len(shown.said) > at:
                return calls.message_of(shown.said, at, self.api)
            assert shown.state == "open", shown.state

    def confirm(self) -> None:
        point, self.offered = transfer.parse_answer(self.hear(0), self.nameplate)
        self.agreed = transfer.agree(self._share, point, self.offered)
        message = transfer.encode_confirmation(self.agreed)
        calls.confirm(self.api, self.nameplate, self.number, message)

    def take(self) -> Invite:
        self.agreed.check(transfer.parse_confirmation(self.hear(1)))
        return transfer.open_invite(self.agreed, self.offered, self.hear(2), self.base_url)


def other_words(code: str) -> str:
    """The code with another last word."""
    head, _, last = code.rpartition("-")
    return f"{head}-{WORDS[(WORDS.index(last) + 1) % len(WORDS)]}"


def search_beside(
    messages: Sequence[bytes], nameplate: int, firsts: Iterable[str]
) -> list[tuple[str, str]]:
    """What `search` finds among these first words, each beside all second ones, in every process
    that there are processors for. Fewer shared points are tried: this is four million pairs where
    all words are first ones."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        found = pool.map(partial(_search_one, tuple(messages), nameplate), firsts)
        return [pair for pairs in found for pair in pairs]


def _search_one(messages: tuple[bytes, ...], nameplate: int, first: str) -> list[tuple[str, str]]:
    return list(search(messages, nameplate, ((first, word) for word in WORDS), thorough=False))


def search(
    messages: Iterable[bytes],
    nameplate: int,
    pairs: Iterable[tuple[str, str]],
    *,
    thorough: bool = True,
) -> Iterator[tuple[str, str]]:
    """Pairs of words that all the messages of an exchange prove: what somebody without its secrets
    can try for each pair. `thorough`: with every shared point that can be made from what was
    sent, else with the one that a receiver would have whose own secret were none."""
    opening, answer, *rest = messages
    receiver_point = transfer.parse_opening(opening)
    sender_point, offered = transfer.parse_answer(answer, nameplate)
    proofs = {transfer.parse_confirmation(message) for message in rest}
    for pair in pairs:
        w = transfer.password_scalar(pair)
        x = crypto_core_ed25519_sub(sender_point, crypto_scalarmult_ed25519_noclamp(w, transfer._M))
        for shared in _made_of(x, receiver_point, w) if thorough else _least(x):
            schedule = transfer.key_schedule(
                transfer.build_transcript(
                    offered.identity(Side.SENDER),
                    offered.identity(Side.RECEIVER),
                    sender_point,
                    receiver_point,
                    shared,
                    w,
                )
            )
            if {schedule.confirm_a, schedule.confirm_b} & proofs:
                yield pair


def _least(x: bytes) -> list[bytes]:
    return [crypto_scalarmult_ed25519_noclamp(_EIGHT, x)]


def _made_of(x: bytes, receiver_point: bytes, w: bytes) -> list[bytes]:
    y = crypto_core_ed25519_sub(receiver_point, crypto_scalarmult_ed25519_noclamp(w, transfer._N))
    points = [x, y, crypto_core_ed25519_add(x, y), crypto_core_ed25519_sub(x, y)]
    points += [crypto_scalarmult_ed25519_noclamp(_EIGHT, point) for point in tuple(points)]
    points += [crypto_scalarmult_ed25519_noclamp(w, point) for point in (x, y)]
    minus = crypto_core_ed25519_scalar_negate(w)
    return [*points, *(crypto_scalarmult_ed25519_noclamp(minus, point) for point in (x, y))]
