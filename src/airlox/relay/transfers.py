"""Transfer codes on the relay: nameplates, guesses, and a few bounded messages for each exchange.

What passes through is opaque here. The rules are those of docs/protocol.md, "Transfer codes":

- a code is in memory alone: neither its messages nor a parked invite ever reach the disk, and with
  the relay's end they are gone;
- each exchange (a *try*) costs its address one guess until it succeeds, each wrong one costs the
  code one;
- a code that ended is remembered for one more lifetime, so that who comes late hears why, and its
  number is given to nobody else meanwhile;
- whatever is posted may be posted again: the answer was lost, and it changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections import Counter
from typing import Annotated, Final

import msgspec

from airlox.errors import ProtocolError
from airlox.protocol import canonical
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import KEY_BYTES, b64u_decode, b64u_encode
from airlox.protocol.transfer import GUESSES, Parked, parse_parked
from airlox.protocol.wire import CodeState, TryState
from airlox.relay.addresses import Origin
from airlox.relay.entities import Participant
from airlox.relay.gates import Place
from airlox.relay.refusals import Refusal
from airlox.relay.service import Core
from airlox.relay.state import Session

WAIT_S: Final = 20.0
"""A wait without news is answered after this: soon enough for whatever stands in between."""
ID_BYTES: Final = 16
TRIES_AT_ONCE: Final = 4
"""Open exchanges of one code."""
TRIES: Final = 16
"""Exchanges of one code that are kept, also those that are over."""
TRY_S: Final = 120
"""An exchange in which nobody says anything for this long is over; people who compare verifiers
have until the code expires."""
SAID: Final = 2
"""Messages of each end before the invite."""
FEWEST_DIGITS: Final = 3
LEAST: Final = 100
"""The first number of so many digits."""
NUMBERS_FOR_EACH: Final = 100
"""Numbers of a length, for each code that has one."""
TAKE_BYTES: Final = 256


class Take(canonical.Wire, frozen=True, kw_only=True):
    """What opens a parked code: proof of its words, and a secret under which the answer may be
    asked for again."""

    access: Annotated[str, msgspec.Meta(max_length=64)]
    claim: Annotated[str, msgspec.Meta(max_length=64)]


class Bell:
    """Counts changes, and wakes who waits for the next one."""

    def __init__(self) -> None:
        self.version = 1
        self._changed = asyncio.Event()

    def ring(self) -> None:
        self.version += 1
        self.wake()

    def wake(self) -> None:
        """Ends the waits though there is nothing new."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def next(self) -> None:
        await self._changed.wait()


class Try:
    """One exchange about a code. Its id is known to the two ends and the relay."""

    def __init__(self, opening: bytes, origin: Origin, now_ms: int) -> None:
        self.id = b64u_encode(secrets.token_bytes(ID_BYTES))
        self.origin = origin
        self.state: str = TryState.OPEN
        self.from_receiver = [opening]
        self.from_sender: list[bytes] = []
        self.invite_sha256 = b""
        """Of the sealed invite, once it was sent; the bytes go when the receiver has them."""
        self.heard_ms = now_ms
        """When somebody said something last, in ticks."""
        self.bell = Bell()

    def end(self, state: str) -> None:
        """It is over: what was said is not needed any more."""
        self.state = state
        self.from_receiver.clear()
        self.from_sender.clear()
        self.bell.ring()

    @property
    def is_open(self) -> bool:
        return self.state == TryState.OPEN

    @property
    def is_confirmed(self) -> bool:
        return len(self.from_receiver) == SAID


class Code:
    """One code: who offers it, what is left of it, and the exchanges about it."""

    def __init__(
        self,
        nameplate: int,
        session: Session,
        by: Participant,
        parked: Parked | None,
        place: Place,
        until_ms: int,
    ) -> None:
        self.nameplate = nameplate
        self.session = session
        self.by = by
        self.parked = parked
        self.place = place
        self.until_ms = until_ms
        """When it expires; once it has ended, when it is forgotten. In ticks."""
        self.state = CodeState.OPEN
        self.guesses_left = GUESSES
        self.tries: dict[str, Try] = {}
        self.claim: bytes | None = None
        """Hash of the secret of whoever took a parked invite."""
        self.bell = Bell()


class Transfers:
    """All codes of a relay."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._codes: dict[int, Code] = {}
        self._lengths: Counter[int] = Counter()
        self._is_ending = False

    # ── the sender ───────────────────────────────────────────────────────────────────────────

    def offer(self, session: Session, by: Participant, document: bytes, origin: Origin) -> Code:
        """A new code of the session's owner; `document` is what is parked with it, if anything.
        Raises Refusal."""
        self._core.quotas.take_post(session, by.key)
        parked = _parse_parked(document, session) if document else None
        place = self._core.quotas.code(session, origin)
        until_ms = self._core.clock.ticks_ms() + self._lifetime_ms
        code = Code(self._draw(), session, by, parked, place, until_ms)
        self._codes[code.nameplate] = code
        self._lengths[len(str(code.nameplate))] += 1
        return code

    def own(self, session: Session, by: Participant, nameplate: int) -> Code:
        """A code that `by` offers, in whatever state. Raises Refusal."""
        code = self._codes.get(nameplate)
        if code is None or code.session is not session or code.by is not by:
            raise _unknown()
        self._settle(code)
        return code

    def own_try(self, code: Code, number: str) -> Try:
        found = code.tries.get(number)
        if found is None:
            raise Refusal("not_found", "no such try of this code")
        return found

    def describe(self, code: Code) -> dict[str, object]:
        """The code as its sender sees it."""
        return {
            "version": code.bell.version,
            "state": code.state,
            "guesses_left": code.guesses_left,
            "expires_in_s": self.expires_in_s(code),
            "tries": [
                {"id": each.id, "state": each.state, "said": _texts(each.from_receiver)}
                for each in code.tries.values()
            ],
        }

    def expires_in_s(self, code: Code) -> int:
        if code.state != CodeState.OPEN:
            return 0
        return max(0, (code.until_ms - self._core.clock.ticks_ms()) // 1000)

    def answer(self, code: Code, one: Try, message: bytes) -> None:
        """The sender's next message. Raises Refusal."""
        if message in one.from_sender:
            return
        self._check_goes_on(code, one)
        if len(one.from_sender) == SAID:
            raise Refusal("bad_request", "the sender has said all that it may")
        one.from_sender.append(message)
        self._heard(one)
        one.bell.ring()

    def wrong(self, code: Code, one: Try) -> None:
        """The receiver's words were wrong: it costs the code a guess. Raises Refusal."""
        if one.state == TryState.WRONG:
            return
        self._check_goes_on(code, one)
        one.end(TryState.WRONG)
        self._count_wrong(code)

    def send_invite(self, code: Code, one: Try, sealed: bytes) -> None:
        """The last message. From here on the code is used. Raises Refusal."""
        if one.invite_sha256 == sha256(sealed):
            return
        self._check_goes_on(code, one)
        one.from_sender.append(sealed)
        one.invite_sha256 = sha256(sealed)
        one.state = TryState.SENT
        self._core.quotas.forgive_guess(one.origin)
        one.bell.ring()
        self._end(code, CodeState.USED)

    def cancel(self, code: Code) -> None:
        if code.state == CodeState.OPEN:
            self._end(code, CodeState.CANCELLED)

    # ── the receiver ─────────────────────────────────────────────────────────────────────────

    def begin(self, nameplate: int, opening: bytes, origin: Origin) -> Try:
        """A new exchange. Raises Refusal."""
        code = self._open_code(nameplate, origin)
        if code.parked is not None:
            raise self._other_kind("this code was parked: it has six words", origin)
        for known in code.tries.values():
            if known.is_open and known.from_receiver[0] == opening:
                return known
        if sum(each.is_open for each in code.tries.values()) >= TRIES_AT_ONCE:
            raise Refusal("code_busy", "others are redeeming this code just now", retry_s=TRY_S)
        self._core.quotas.take_guess(origin)
        one = Try(opening, origin, self._core.clock.ticks_ms())
        code.tries[one.id] = one
        if len(code.tries) > TRIES:
            del code.tries[next(each.id for each in code.tries.values() if not each.is_open)]
        code.bell.ring()
        return one

    def tried(self, nameplate: int, number: str) -> tuple[Code, Try]:
        """A receiver's own exchange, in whatever state. Raises Refusal."""
        code = self._codes.get(nameplate)
        one = None if code is None else code.tries.get(number)
        if code is None or one is None:
            raise _unknown()
        self._settle(code)
        return code, one

    def describe_try(self, code: Code, one: Try) -> dict[str, object]:
        """The exchange as its receiver sees it."""
        is_cut_short = one.is_open and code.state != CodeState.OPEN
        return {
            "version": one.bell.version,
            "state": code.state if is_cut_short else one.state,
            "guesses_left": code.guesses_left,
            "said": _texts(one.from_sender),
        }

    def confirm(self, code: Code, one: Try, message: bytes) -> None:
        """The receiver's next message; in a try that is over it means nothing any more. Raises
        Refusal."""
        if message in one.from_receiver or not one.is_open:
            return
        self._check_goes_on(code, one)
        if one.is_confirmed:
            raise Refusal("bad_request", "the receiver has said all that it may")
        one.from_receiver.append(message)
        self._heard(one)
        code.bell.ring()

    def done(self, code: Code, one: Try) -> None:
        """The receiver has its invite. Raises Refusal."""
        if one.state == TryState.SENT:
            one.end(TryState.DONE)
            code.bell.ring()
        elif one.state != TryState.DONE:
            raise Refusal("bad_request", "no invite has been sent in this try")

    def leave(self, code: Code, one: Try) -> None:
        """The receiver gives up; a sealed invite that it did not take goes."""
        if one.is_open or one.state == TryState.SENT:
            self._leave(code, one)

    # ── parked codes ─────────────────────────────────────────────────────────────────────────

    def parked_head(self, nameplate: int, origin: Origin) -> dict[str, object]:
        """What a receiver needs before it can show that it knows the words. Raises Refusal."""
        self._core.quotas.check_guess(origin)
        code = self._parked_code(nameplate, origin)
        assert code.parked is not None  # _parked_code looked
        parked = code.parked
        return {"role": parked.role, "salt": parked.salt, "session_id": parked.session_id}

    def take(self, nameplate: int, document: bytes, origin: Origin) -> str:
        """The sealed invite, for who knows the words; once. Raises Refusal."""
        access, claim = _parse_take(document)
        code = self._codes.get(nameplate)
        if code is not None and code.parked is not None and code.claim is not None:
            is_same = hmac.compare_digest(code.claim, sha256(claim))
            if is_same:
                return code.parked.sealed
        code = self._parked_code(nameplate, origin)
        assert code.parked is not None  # _parked_code looked
        self._core.quotas.take_guess(origin)
        if not hmac.compare_digest(sha256(access), b64u_decode(code.parked.access_sha256)):
            self._count_wrong(code)
            raise Refusal("code_wrong", _guesses_left(code.guesses_left))
        self._core.quotas.forgive_guess(origin)
        code.claim = sha256(claim)
        self._end(code, CodeState.USED)
        return code.parked.sealed

    def _parked_code(self, nameplate: int, origin: Origin) -> Code:
        code = self._open_code(nameplate, origin)
        if code.parked is None:
            raise self._other_kind("this code was not parked: it has two words", origin)
        return code

    # ── waiting ──────────────────────────────────────────────────────────────────────────────

    async def news(self, bell: Bell, after: int) -> None:
        """Returns once there is more than version `after`, or no more time to wait for it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while bell.version <= after and not self._is_ending:
                    await bell.next()

    def end_waits(self) -> None:
        """Ends every wait, and those that come from now on: the relay stops."""
        self._is_ending = True
        for code in self._codes.values():
            for bell in (code.bell, *(each.bell for each in code.tries.values())):
                bell.wake()

    def tick(self) -> None:
        """Ends what is over and forgets what ended long ago; to be called about once a second."""
        for code in list(self._codes.values()):
            self._settle(code)
            if code.state != CodeState.OPEN and self._core.clock.ticks_ms() >= code.until_ms:
                del self._codes[code.nameplate]
                self._lengths[len(str(code.nameplate))] -= 1
                code.place.give()

    # ── how codes end ────────────────────────────────────────────────────────────────────────

    def _settle(self, code: Code) -> None:
        """Brings a code up to date with time, with its session, and with who offers it."""
        if code.state != CodeState.OPEN:
            return
        now_ms = self._core.clock.ticks_ms()
        if not self._is_live(code.session) or not code.by.is_here:
            self._end(code, CodeState.CANCELLED)
        elif now_ms >= code.until_ms:
            self._end(code, CodeState.EXPIRED)
        else:
            for one in list(code.tries.values()):
                is_silent = now_ms - one.heard_ms >= TRY_S * 1000
                if one.is_open and not one.is_confirmed and is_silent:
                    self._leave(code, one)

    def _end(self, code: Code, state: str) -> None:
        """From here on the code opens nothing; what was sent stays until it was fetched."""
        code.state = state
        code.until_ms = self._core.clock.ticks_ms() + self._lifetime_ms
        if state != CodeState.USED:
            code.parked = None
        for one in code.tries.values():
            one.bell.ring()
        code.bell.ring()

    def _leave(self, code: Code, one: Try) -> None:
        one.end(TryState.LEFT)
        code.bell.ring()

    def _count_wrong(self, code: Code) -> None:
        code.guesses_left -= 1
        if code.guesses_left == 0:
            self._end(code, CodeState.VOID)
        else:
            code.bell.ring()

    def _open_code(self, nameplate: int, origin: Origin) -> Code:
        """The code of a nameplate, for whoever comes from outside. Raises Refusal; each but a
        busy relay's costs a guess."""
        self._core.quotas.check_guess(origin)
        code = self._codes.get(nameplate)
        if code is not None:
            self._settle(code)
            if code.state == CodeState.OPEN:
                return code
        self._core.quotas.take_guess(origin)
        raise _unknown() if code is None else Refusal(f"code_{code.state}", _ENDS[code.state])

    def _other_kind(self, message: str, origin: Origin) -> Refusal:
        self._core.quotas.take_guess(origin)
        return Refusal("code_wrong", message)

    def _check_goes_on(self, code: Code, one: Try) -> None:
        if code.state != CodeState.OPEN:
            raise Refusal(f"code_{code.state}", _ENDS[code.state])
        if not one.is_open:
            raise Refusal("try_over", f"this try is over: {one.state}")

    def _heard(self, one: Try) -> None:
        one.heard_ms = self._core.clock.ticks_ms()

    def _is_live(self, session: Session) -> bool:
        try:
            return self._core.session(session.id) is session
        except Refusal:
            return False

    @property
    def _lifetime_ms(self) -> int:
        return self._core.config.code_lifetime_s * 1000

    def _draw(self) -> int:
        """A free number of the shortest length that has a hundred for each one given out."""
        digits, least = FEWEST_DIGITS, LEAST
        while 9 * least < NUMBERS_FOR_EACH * (self._lengths[digits] + 1):
            digits, least = digits + 1, 10 * least
        while True:
            number = least + secrets.randbelow(9 * least)
            if number not in self._codes:
                return number


_ENDS: Final = {
    CodeState.USED: "this code has been used",
    CodeState.EXPIRED: "this code has expired",
    CodeState.VOID: f"this code is void after {GUESSES} wrong guesses",
    CodeState.CANCELLED: "this code was taken back, or its session has ended",
}


def _unknown() -> Refusal:
    return Refusal(
        "code_unknown", "no such code here; codes last for minutes, and end with the relay"
    )


def _guesses_left(left: int) -> str:
    return f"wrong words; {left} guesses are left" if left else "wrong words; the code is void"


def _texts(messages: list[bytes]) -> list[str]:
    return [b64u_encode(message) for message in messages]


def _parse_parked(document: bytes, session: Session) -> Parked:
    try:
        parked = parse_parked(document)
    except ProtocolError as error:
        raise Refusal("bad_request", error.message) from None
    if parked.session_id != session.id:
        raise Refusal("bad_request", "a parked code is for a member of its own session")
    return parked


def _parse_take(document: bytes) -> tuple[bytes, bytes]:
    """Access and claim. Raises Refusal."""
    try:
        take = canonical.decode_loose(document, Take, "request for a parked invite")
        return b64u_decode(take.access, KEY_BYTES), b64u_decode(take.claim, ID_BYTES)
    except ProtocolError as error:
        raise Refusal("bad_request", error.message) from None
