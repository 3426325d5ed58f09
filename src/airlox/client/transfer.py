"""Transfer codes: an invite handed over in a few words.

The sender calls `Session.transfer_code` and reads the code aloud; the receiver gives it to
`redeem`, together with the address of the relay, which a code does not carry. What comes out is
an `Invite` like that of a link.

The sender counts wrong guesses itself and checks one confirmation for each exchange, whatever the
relay says; the receiver makes one exchange for each call. The rules of both are in
`protocol/transfer.py`, the calls in `transfer_api.py`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from airlox.client import transfer_api as calls
from airlox.client.deadline import Deadline
from airlox.client.relay_api import RelayApi
from airlox.errors import (
    AirloxError,
    ConnectionLost,
    ProtocolError,
    RelayError,
    TransferError,
    UsageError,
    WaitTimeout,
)
from airlox.protocol import transfer
from airlox.protocol.aead import NONCE_BYTES
from airlox.protocol.encoding import b64u_decode, parse_session_id
from airlox.protocol.invite import Invite, parse_base_url, plain_http_host
from airlox.protocol.keys import MEMBER_ROLES, Role
from airlox.protocol.transfer import Offered, Side
from airlox.protocol.wire import CodeState, TryState

Verify = Callable[[str], bool]
"""Shown five words, says whether the other end shows the same. May take its time."""
OnGuess = Callable[[int], None]
"""Hears that somebody gave wrong words, and how many wrong guesses are left."""

REDEEM_TIMEOUT_S: Final = 60.0
RECEIPT_S: Final = 30.0
"""How long a receiver may take to say that it has the invite."""
RECONNECT_S: Final = 0.5
LEAVE_S: Final = 3.0
"""For the last words of a receiver that gives up."""


# ── the sender ───────────────────────────────────────────────────────────────────────────────


class TransferOffer:
    """A code that stands on the relay. Made by `Session.transfer_code`; safe to share.

    `code` is a secret until it is used: it is for people's ears, not for logs.
    """

    def __init__(
        self,
        api: RelayApi,
        invite: Invite,
        code: transfer.Code,
        expires: Deadline,
        verify: Verify | None,
        on_guess: OnGuess | None,
    ) -> None:
        """For `offer`."""
        self._api = api
        self._invite = invite
        self._code = code
        self._expires = expires
        self._verify = verify
        self._on_guess = on_guess
        self._offered = Offered(invite.session_id, invite.role, code.nameplate)
        self._version: int | None = None
        self._exchanges: dict[str, _Exchange] = {}
        self._guesses_left = transfer.GUESSES
        self._sent: str | None = None
        """The try that was sent the invite."""
        self._receipt = Deadline.after(None)
        self._waiting = threading.Lock()
        self._waiters: set[Waiter] = set()

    def __repr__(self) -> str:
        return f"<TransferOffer {self._code.nameplate} for {self.role}>"

    @property
    def code(self) -> str:
        """The code as it is read aloud, `417-guitar-orbit`; six words when parked."""
        return self._code.text()

    @property
    def parked(self) -> bool:
        """Whether the relay keeps the sealed invite, so that nobody need wait."""
        return self._code.is_parked

    @property
    def role(self) -> str:
        """The role that the invite grants."""
        return self._invite.role.value

    @property
    def expires_in_s(self) -> float:
        """Seconds until the relay forgets the code, never below 0."""
        return self._expires.left_s() or 0.0

    @property
    def guesses_left(self) -> int:
        """Wrong guesses until the code is void, as far as known here."""
        return self._guesses_left

    def wait(self, timeout: float | None = None) -> None:
        """Answer whoever redeems the code; returns when the invite has arrived.

        Wrong guesses go to `on_guess`, and the wait goes on until there were three. A parked code
        needs no wait; one only tells when it was redeemed. Raises WaitTimeout, after which it can
        be called again; TransferError with a code of its class; SessionClosed, RelayError,
        ConnectionLost.
        """
        self.wait_with(self.waiter(timeout))

    def waiter(self, timeout: float | None = None) -> Waiter:
        """What `wait_with` waits with: closing it ends that wait alone, also before it began."""
        deadline = Deadline.after(timeout)
        waiter = Waiter(self._api.scope(deadline), deadline)
        self._waiters.add(waiter)
        return waiter

    def wait_with(self, waiter: Waiter) -> None:
        """See `wait`."""
        try:
            if not self._waiting.acquire(blocking=False):
                raise UsageError("this code is waited for already", hint="one wait at a time")
            try:
                if self._sent is not None:
                    self._receipt = Deadline.after(RECEIPT_S)
                while not waiter.api.over:
                    if self._step(waiter):
                        return
            finally:
                self._waiting.release()
        finally:
            self._waiters.discard(waiter)
        if not waiter.deadline.passed:
            raise WaitTimeout("the wait for this code was closed", code="closed")
        raise WaitTimeout("nobody redeemed the code in the time given")

    def cancel(self) -> None:
        """Take the code back: nobody can redeem it any more. Safe to repeat."""
        try:
            calls.cancel(self._api, self._code.nameplate)
        except RelayError as error:
            if error.code != "code_unknown":
                raise self._named(error) from error

    def close(self) -> None:
        """End a `wait`, from any thread, with WaitTimeout of code `closed`. The code stands."""
        for waiter in tuple(self._waiters):
            waiter.close()

    def _step(self, waiter: Waiter) -> bool:
        """Take in what happened next; whether the invite has arrived."""
        api = waiter.api
        try:
            shown = calls.look(api.within(self._receipt), self._code.nameplate, self._version)
            self._version = shown.version
            self._forget_others(shown)
            for each in shown.tries:
                self._serve(api, each)
        except RelayError as error:
            raise self._named(error) from error
        except ConnectionLost as error:
            if error.code == "tls":
                raise
            self._check_receipt()
            self._version = None  # what was not answered is no news
            if not api.over:
                api.pause(waiter.deadline.cap_s(RECONNECT_S))
            return False
        self._note_guesses(shown.guesses_left)
        return self._settle(shown)

    def _forget_others(self, shown: calls.CodeShown) -> None:
        """A relay keeps the newest tries alone: of those that it dropped nothing more comes."""
        there = {each.id for each in shown.tries}
        gone = [n for n, each in self._exchanges.items() if n not in there and not each.is_wrong]
        for number in gone:
            del self._exchanges[number]

    def _settle(self, shown: calls.CodeShown) -> bool:
        """Whether the invite has arrived. Raises what ended the code."""
        states = {each.id: each.state for each in shown.tries}
        if shown.state == CodeState.USED and (self.parked or self._sent is not None):
            state = states.get(self._sent or "")
            if self.parked or state == TryState.DONE:
                return True
            if state == TryState.LEFT:
                raise _not_received() if self._verify is None else _not_compared()
            self._check_receipt()
            return False
        self._check_guesses()
        if shown.state != CodeState.OPEN:
            code = f"code_{shown.state}"
            raise calls.ended(code if code in calls.ENDS else "code_gone")
        return False

    def _serve(self, api: RelayApi, shown: calls.TryShown) -> None:
        """Answer what a receiver said and was not answered yet."""
        exchange = self._exchanges.get(shown.id)
        if shown.state != TryState.OPEN:
            if exchange is not None and not exchange.is_wrong:
                del self._exchanges[shown.id]
            return
        if self.parked or self._sent not in (None, shown.id):
            return
        self._check_guesses()
        try:
            exchange = exchange or self._begin(api, shown)
            if not exchange.is_answered:
                calls.answer(api, self._code.nameplate, shown.id, exchange.answer)
                exchange.is_answered = True
            if exchange.is_wrong:
                calls.wrong(api, self._code.nameplate, shown.id)
            elif len(shown.said) > 1:
                self._confirm(api, shown, exchange)
        except ProtocolError:
            self._count_wrong(api, shown.id)
        except RelayError as error:
            self._sent = None  # it was refused
            if error.code != "try_over":  # the receiver gave up meanwhile
                raise
            self._exchanges.pop(shown.id, None)

    def _begin(self, api: RelayApi, shown: calls.TryShown) -> _Exchange:
        """A share made for this exchange alone. Raises ProtocolError.

        The two shares meet no earlier than a confirmation is there to be checked: else an opening
        that is a guess times N would tell by the refusal, which costs one guess, that it is right,
        and by the answer, which costs none, that it is wrong.
        """
        random = os.urandom(transfer.SCALAR_RANDOM_BYTES)
        share = transfer.make_share(Side.SENDER, self._code.words, random)
        exchange = _Exchange(share, transfer.encode_answer(share, self._offered))
        self._exchanges[shown.id] = exchange
        exchange.point = transfer.parse_opening(calls.message_of(shown.said, 0, api))
        return exchange

    def _confirm(self, api: RelayApi, shown: calls.TryShown, exchange: _Exchange) -> None:
        """Check the receiver's confirmation, once, and send the invite. Raises ProtocolError."""
        if exchange.agreed is None:
            confirmation = transfer.parse_confirmation(calls.message_of(shown.said, 1, api))
            agreed = transfer.agree(exchange.share, exchange.point, self._offered)
            agreed.check(confirmation)
            exchange.agreed = agreed
        agreed, nameplate = exchange.agreed, self._code.nameplate
        calls.answer(api, nameplate, shown.id, transfer.encode_confirmation(agreed))
        if self._verify is not None and not exchange.is_compared:
            if not self._verify(agreed.verifier):
                self.cancel()
                raise _not_compared()
            exchange.is_compared = True
        if exchange.sealed is None:
            nonce = os.urandom(NONCE_BYTES)
            exchange.sealed = transfer.seal_invite(agreed, self._offered, self._invite, nonce)
        self._sent = shown.id  # from here on it may have arrived, whether or not that is heard
        self._receipt = Deadline.after(RECEIPT_S)
        self._version = None
        calls.send_invite(api, nameplate, shown.id, exchange.sealed)

    def _count_wrong(self, api: RelayApi, number: str) -> None:
        """A wrong guess ends its exchange. After the third nobody is answered any more, whatever
        the relay says."""
        exchange = self._exchanges[number]
        exchange.is_answered = exchange.is_wrong = True
        self._note_guesses(self._guesses_left - 1)
        calls.wrong(api, self._code.nameplate, number)
        self._check_guesses()

    def _check_guesses(self) -> None:
        if self._guesses_left == 0 and self._sent is None:
            raise calls.ended("code_void")

    def _note_guesses(self, left: int) -> None:
        """Tell of each wrong guess; the relay may know of more than were answered here."""
        while self._guesses_left > max(0, left):
            self._guesses_left -= 1
            if self._on_guess is not None:
                self._on_guess(self._guesses_left)

    def _check_receipt(self) -> None:
        if self._sent is not None and self._receipt.passed:
            raise _not_received()

    def _named(self, error: RelayError) -> AirloxError:
        """What a refusal means: a code that is gone, a session that is."""
        if error.code == "code_unknown":
            return _not_received() if self._sent is not None else calls.ended("code_gone")
        named = calls.meaning(error)
        return self._api.end_of_session(error) if named is error else named


class Waiter:
    """One wait for a code: it ends with its deadline, or when it is closed from any thread."""

    def __init__(self, api: RelayApi, deadline: Deadline) -> None:
        self.api = api
        self.deadline = deadline

    def close(self) -> None:
        self.api.close()


class _Exchange:
    """One receiver's exchange."""

    def __init__(self, share: transfer.Share, answer: bytes) -> None:
        self.share = share
        self.point = b""
        """The receiver's share."""
        self.answer = answer
        self.is_answered = self.is_wrong = self.is_compared = False
        self.agreed: transfer.Agreed | None = None
        """Once the receiver's confirmation was right. A wrong one ends the exchange."""
        self.sealed: bytes | None = None


def offer(
    api: RelayApi,
    invite: Invite,
    *,
    park: bool,
    verify: Verify | None,
    on_guess: OnGuess | None,
) -> TransferOffer:
    """A new code for `invite`. For `Session.transfer_code`."""
    if invite.role not in MEMBER_ROLES:
        raise UsageError(
            "the owner's link is not handed over by a code",
            code="owner_link",
            hint="whoever has it can do everything; give the link itself if you mean that",
        )
    if park and verify is not None:
        raise UsageError(
            "nobody compares a verifier with a parked code", hint="leave out either of the two"
        )
    count = transfer.PARKED_WORDS if park else transfer.LIVE_WORDS
    words = transfer.draw_words(count, os.urandom(transfer.random_bytes_of(count)))
    document = b""
    if park:
        salt, nonce = os.urandom(transfer.SALT_BYTES), os.urandom(NONCE_BYTES)
        document = transfer.park(words, invite, salt=salt, nonce=nonce)
    try:
        found = calls.offer(api, document)
    except RelayError as error:
        if calls.is_no_such_path(error):
            api.fetch_manifest()  # raises SessionClosed unless it is the path that is unknown
            raise calls.no_codes(api) from error
        raise api.end_of_session(error) from error
    expires = Deadline.after(found.expires_in_s)
    return TransferOffer(
        api, invite, transfer.Code(found.nameplate, words), expires, verify, on_guess
    )


# ── the receiver ─────────────────────────────────────────────────────────────────────────────


def redeem(
    relay: str,
    code: str,
    *,
    role: str | None = None,
    verify: Verify | None = None,
    timeout: float | None = REDEEM_TIMEOUT_S,
    insecure_http_host: str | None = None,
) -> Invite:
    """The invite that a code stands for; joining with `invite.url()` is the caller's.

    `relay` is the address of the relay the sender uses; the invite names it too. With `role` a code
    for another role is refused before it is spent. With `verify` both ends must compare; a sender
    that compares waits for us. `timeout` is for each thing the other end says.
    `insecure_http_host` is the one host that `relay` may name with plain http; whether the
    session's owner allows it is checked at the join. Each call is one guess: it is not repeated
    here, whatever happens.

    Raises TransferError with a code of its class, WaitTimeout when nobody answered, ValidationError
    for a bad address, ProtocolError for a sender or relay that breaks the protocol, RelayError,
    ConnectionLost.
    """
    if role is not None and role not in {member.value for member in MEMBER_ROLES}:
        known = ", ".join(member.value for member in MEMBER_ROLES)
        raise UsageError(f"{role[:40]!r} is no role of an invite", hint=f"one of {known}")
    parsed, base = transfer.parse_code(code), _base_url(relay, insecure_http_host)
    wanted = None if role is None else Role(role)
    api = RelayApi.connect(base, "", plain_http=True)
    try:
        if not parsed.is_parked:
            return _Redeeming(api, base, parsed, wanted, timeout).run(verify)
        if verify is not None:
            raise UsageError("nobody compares a verifier with a parked code", hint="leave it out")
        return _take_parked(api.within(Deadline.after(timeout)), base, parsed, wanted)
    except RelayError as error:
        if calls.is_no_such_path(error):
            raise calls.no_codes(api) from error
        raise calls.meaning(error) from error
    finally:
        api.close()


def _base_url(relay: str, insecure_http_host: str | None) -> str:
    base = parse_base_url(relay, plain_http=insecure_http_host is not None)
    host = plain_http_host(base)
    if host is not None and host != insecure_http_host:
        raise UsageError(
            f"plain http to {host} was not allowed, but to {str(insecure_http_host)[:80]!r}",
            code="plain_http",
            hint="use https, or name the relay's host",
        )
    return base


class _Redeeming:
    """One exchange, seen from the receiver."""

    def __init__(
        self,
        api: RelayApi,
        base_url: str,
        code: transfer.Code,
        wanted: Role | None,
        timeout: float | None,
    ) -> None:
        self._api = api
        self._base_url = base_url
        self._code = code
        self._wanted = wanted
        self._timeout = timeout
        self._number = ""
        self._shown: calls.TryAnswer | None = None

    def run(self, verify: Verify | None) -> Invite:
        nameplate = self._code.nameplate
        random = os.urandom(transfer.SCALAR_RANDOM_BYTES)
        share = transfer.make_share(Side.RECEIVER, self._code.words, random)
        opening = transfer.encode_opening(share)
        self._number = calls.begin(self._bounded(), nameplate, opening)
        try:
            invite = self._exchange(share, verify)
        except BaseException as error:
            with suppress(AirloxError):
                calls.leave(self._api.within(Deadline.after(LEAVE_S)), nameplate, self._number)
            if isinstance(error, RelayError) and error.code == "code_unknown":
                raise calls.ended("code_gone") from error  # it was known a moment ago
            raise
        with suppress(RelayError, ConnectionLost):  # it arrived, whether or not that can be told
            calls.done(self._api.within(Deadline.after(LEAVE_S)), nameplate, self._number)
        return invite

    def _exchange(self, share: transfer.Share, verify: Verify | None) -> Invite:
        """The invite, once the sender has confirmed that it has the same words."""
        point, offered = transfer.parse_answer(self._hear(0), self._code.nameplate)
        _check_role(offered.role, self._wanted)
        agreed = transfer.agree(share, point, offered)
        confirmation = transfer.encode_confirmation(agreed)
        self._say(confirmation)
        agreed.check(transfer.parse_confirmation(self._hear(1)))
        if verify is not None and not verify(agreed.verifier):
            raise _not_compared()
        try:
            sealed = self._hear(2)
        except TransferError as error:
            if verify is None or error.code != "code_cancelled":
                raise
            raise _not_compared() from error  # whoever compares takes the code back for that
        return transfer.open_invite(agreed, offered, sealed, self._base_url)

    def _say(self, message: bytes) -> None:
        """Post a message, over lines that break. Raises ConnectionLost when there is none."""
        deadline = Deadline.after(self._timeout)
        while True:
            api = self._api.within(deadline)
            try:
                calls.confirm(api, self._code.nameplate, self._number, message)
                return
            except ConnectionLost as error:
                if error.code in ("tls", "closed") or deadline.passed:
                    raise
                self._api.pause(deadline.cap_s(RECONNECT_S))

    def _bounded(self) -> RelayApi:
        return self._api.within(Deadline.after(self._timeout))

    def _hear(self, at: int) -> bytes:
        """Wait for a message of the sender. Raises TransferError and WaitTimeout."""
        deadline = Deadline.after(self._timeout)
        while len(self._said) <= at:
            self._check_goes_on()
            if deadline.passed:
                raise self._nobody()
            try:
                self._look(self._api.within(deadline))
            except ConnectionLost as error:
                if error.code in ("tls", "closed"):
                    raise
                self._api.pause(deadline.cap_s(RECONNECT_S))
        return calls.message_of(self._said, at, self._api)

    def _look(self, api: RelayApi) -> None:
        """Take in what is said and known, once there is more."""
        after = None if self._shown is None else self._shown.version
        self._shown = calls.look_at_try(api, self._code.nameplate, self._number, after)

    @property
    def _said(self) -> list[str]:
        return [] if self._shown is None else self._shown.said

    def _check_goes_on(self) -> None:
        shown = self._shown
        if shown is None:
            return
        if shown.state == TryState.WRONG:
            left = max(0, shown.guesses_left)
            raise TransferError(
                "these are not the words of this code",
                code="code_wrong",
                hint=f"say them again slowly: wrong guesses left: {left}"
                if left
                else "the code is void now; ask for a new one",
            )
        if shown.state == TryState.LEFT:
            raise self._nobody()
        if f"code_{shown.state}" in calls.ENDS:
            raise calls.ended(f"code_{shown.state}")

    def _nobody(self) -> WaitTimeout:
        return WaitTimeout(
            f"nobody at the other end answered for code {self._code.nameplate} in time",
            hint="whoever made the code must keep waiting there, until it was redeemed",
        )


def _take_parked(api: RelayApi, base_url: str, code: transfer.Code, wanted: Role | None) -> Invite:
    head = calls.parked_head(api, code.nameplate)
    _check_role(head.role, wanted)
    offered = Offered(parse_session_id(head.session_id), head.role, code.nameplate)
    keys = transfer.stretch(code.words, b64u_decode(head.salt, transfer.SALT_BYTES))
    claim = os.urandom(transfer.SALT_BYTES)
    sealed = calls.take_parked(api, code.nameplate, keys.access, claim)
    return transfer.open_parked(keys, sealed, offered, base_url)


def _check_role(found: Role, wanted: Role | None) -> None:
    if wanted is not None and found is not wanted:
        raise TransferError(
            f"this code is for {_article(found)}, not for {_article(wanted)}",
            code="wrong_role",
            hint=f"it was not used up; ask for a code for {_article(wanted)}",
        )


def _article(role: Role) -> str:
    return f"{'an' if role is Role.OBSERVER else 'a'} {role.value}"


def _not_compared() -> TransferError:
    return TransferError(
        "somebody said that the two ends do not show the same words; no invite was handed over",
        code="not_compared",
        hint="somebody may have listened to the code; make a new one and tell it in private",
    )


def _not_received() -> TransferError:
    return TransferError(
        "the invite was sent, but the other end did not say that it has it",
        code="not_received",
        hint="if it did not join, make a new code",
    )
