"""The calls to a relay about transfer codes, and what their refusals mean.

Each of them may be made again when its answer was lost. Nothing the relay says is believed beyond
its form: what matters is checked by whoever has the words.
"""

from __future__ import annotations

from typing import Final

import msgspec

from airlox.client.answers import decode, not_a_relay
from airlox.client.relay_api import RelayApi
from airlox.errors import AirloxError, EncodingError, ProtocolError, RelayError, TransferError
from airlox.protocol import limits, wire
from airlox.protocol.encoding import b64u_decode, b64u_encode
from airlox.protocol.keys import Role

TRIES_SHOWN: Final = 64
"""Most tries of a code that are looked at in one answer."""
NAMEPLATE: Final = 10**12
LIFETIME_S: Final = 7 * 86_400
"""Longer than any relay lets a code stand."""
ID_CHARS: Final = 64


class CodeOffered(msgspec.Struct, frozen=True):
    nameplate: int
    expires_in_s: int


class TryShown(msgspec.Struct, frozen=True):
    """An exchange as the sender sees it."""

    id: str
    state: str
    said: list[str]


class CodeShown(msgspec.Struct, frozen=True):
    version: int
    state: str
    guesses_left: int
    tries: list[TryShown]


class TryAnswer(msgspec.Struct, frozen=True):
    """An exchange as the receiver sees it."""

    version: int
    state: str
    guesses_left: int
    said: list[str]


class ParkedHead(msgspec.Struct, frozen=True):
    role: Role
    salt: str
    session_id: str


class _Begun(msgspec.Struct, frozen=True):
    number: str = msgspec.field(name="try")


class _Sealed(msgspec.Struct, frozen=True):
    sealed: str


# ── the sender ───────────────────────────────────────────────────────────────────────────────


def offer(api: RelayApi, parked: bytes) -> CodeOffered:
    """A new code; `parked` is the document kept with it, or empty."""
    answer = api.repeat("POST", wire.codes(api.session_id), parked)
    found = decode(answer, CodeOffered, "new code", api.relay)
    if not (0 < found.nameplate < NAMEPLATE and 0 <= found.expires_in_s <= LIFETIME_S):
        not_a_relay("new code", api.relay)
    return found


def look(api: RelayApi, nameplate: int, after: int | None) -> CodeShown:
    """The code, once there is more than version `after`; about as it is after a while."""
    answer = api.repeat("GET", wire.code(api.session_id, nameplate, after))
    found = decode(answer, CodeShown, "state of the code", api.relay)
    if len(found.tries) > TRIES_SHOWN or any(len(each.id) > ID_CHARS for each in found.tries):
        not_a_relay("state of the code", api.relay)
    return found


def answer(api: RelayApi, nameplate: int, number: str, message: bytes) -> None:
    api.repeat("POST", wire.answer_try(api.session_id, nameplate, _id(number)), message)


def wrong(api: RelayApi, nameplate: int, number: str) -> None:
    api.repeat("POST", wire.wrong_try(api.session_id, nameplate, _id(number)))


def send_invite(api: RelayApi, nameplate: int, number: str, sealed: bytes) -> None:
    api.repeat("POST", wire.send_invite(api.session_id, nameplate, _id(number)), sealed)


def cancel(api: RelayApi, nameplate: int) -> None:
    api.repeat("POST", wire.cancel_code(api.session_id, nameplate))


# ── the receiver ─────────────────────────────────────────────────────────────────────────────


def begin(api: RelayApi, nameplate: int, opening: bytes) -> str:
    """The id of a new exchange. The same opening again begins no other."""
    answer = api.repeat("POST", wire.tries(nameplate), opening, auth=False)
    number = decode(answer, _Begun, "new try", api.relay).number
    try:
        return _id(number)
    except EncodingError:
        not_a_relay("new try", api.relay)


def look_at_try(api: RelayApi, nameplate: int, number: str, after: int | None) -> TryAnswer:
    """The exchange, once there is more than version `after`; about as it is after a while."""
    answer = api.repeat("GET", wire.one_try(nameplate, number, after), auth=False)
    return decode(answer, TryAnswer, "state of the try", api.relay)


def confirm(api: RelayApi, nameplate: int, number: str, message: bytes) -> None:
    api.repeat("POST", wire.one_try(nameplate, number), message, auth=False)


def done(api: RelayApi, nameplate: int, number: str) -> None:
    api.repeat("POST", wire.end_try(nameplate, number), auth=False)


def leave(api: RelayApi, nameplate: int, number: str) -> None:
    api.repeat("POST", wire.leave_try(nameplate, number), auth=False)


def parked_head(api: RelayApi, nameplate: int) -> ParkedHead:
    answer = api.repeat("GET", wire.parked(nameplate), auth=False)
    return decode(answer, ParkedHead, "parked code", api.relay)


def take_parked(api: RelayApi, nameplate: int, access: bytes, claim: bytes) -> bytes:
    """The sealed invite of a parked code; with the same `claim` again."""
    body = msgspec.json.encode({"access": b64u_encode(access), "claim": b64u_encode(claim)})
    answer = api.repeat("POST", wire.parked(nameplate), body, auth=False)
    sealed = decode(answer, _Sealed, "sealed invite", api.relay).sealed
    return message_of([sealed], 0, api)


# ── what is read ─────────────────────────────────────────────────────────────────────────────


def message_of(said: list[str], at: int, api: RelayApi) -> bytes:
    """A message that was passed on. Raises ProtocolError for what no relay passes on."""
    if len(said) <= at or len(said[at]) > 2 * limits.CODE_MESSAGE_BYTES:
        not_a_relay("message of a transfer", api.relay)
    try:
        return b64u_decode(said[at])
    except ProtocolError:
        not_a_relay("message of a transfer", api.relay)


def _id(number: str) -> str:
    """An id that may become part of a path: it is the relay's word. Raises EncodingError."""
    b64u_decode(number, 16)
    return number


_AGAIN: Final = "ask for a new code"
_MEANINGS: Final = {
    "code_unknown": (
        "the relay has no such code",
        "check its number and the relay's address; codes last for minutes, and end with the relay",
    ),
    "code_expired": ("this code has expired", _AGAIN),
    "code_used": ("this code has been used already", f"each is good for once; {_AGAIN}"),
    "code_void": ("this code is void after three wrong guesses", _AGAIN),
    "code_cancelled": ("this code was taken back, or its session has ended", _AGAIN),
    "code_busy": ("others are redeeming this code just now", "try again in a moment"),
    "try_over": ("this try is over: nobody said anything for too long", "give the code again"),
    "code_gone": ("the relay does not know this code any more", "make a new code"),
    "too_many_guesses": ("too many codes from this address came to nothing", _AGAIN),
}
ENDS: Final = frozenset({"code_used", "code_expired", "code_void", "code_cancelled"})
"""How a code ends while it is known."""


def ended(code: str) -> TransferError:
    """The error of a code that opens nothing (any more)."""
    message, hint = _MEANINGS[code]
    return TransferError(message, code=code, hint=hint)


def is_no_such_path(error: RelayError) -> bool:
    """Whether a relay does not know the paths of transfer codes, or has no such session."""
    return error.status in (404, 405) and error.code not in _MEANINGS


def no_codes(api: RelayApi) -> TransferError:
    """The error of a relay that is older than transfer codes."""
    return TransferError(
        f"the relay at {api.relay} has no transfer codes",
        code="no_codes",
        hint="hand over the link itself, or have the relay updated",
    )


def meaning(error: RelayError) -> AirloxError:
    """The refusal of a relay as what it means for a code, where it means that."""
    if error.code == "code_wrong":
        return TransferError(
            "these are not the words of this code",
            code="code_wrong",
            hint="say them again slowly; after three wrong guesses a code is void",
        )
    if error.code not in _MEANINGS:
        return error
    message, hint = _MEANINGS[error.code]
    if error.retry_after_s is not None:
        hint = f"try again in {error.retry_after_s} s"
    return TransferError(message, code=error.code, hint=hint, retry_after_s=error.retry_after_s)
