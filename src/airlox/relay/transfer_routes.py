"""HTTP to transfer codes and back: parse, call, answer. No rules here.

Receivers have no session and no token: what they post about is named by the id of their try.
"""

from __future__ import annotations

import asyncio
from typing import Final

from airlox.protocol import limits
from airlox.protocol.keys import Role
from airlox.relay.call import Call, Disconnected
from airlox.relay.entities import Participant
from airlox.relay.gates import Place
from airlox.relay.refusals import Refusal
from airlox.relay.relay import Relay
from airlox.relay.state import Session
from airlox.relay.transfers import TAKE_BYTES, Bell, Code, Try

NAMEPLATE_DIGITS: Final = 12


def _nameplate(call: Call, place: int) -> int:
    text = call.parts[place]
    if not text.isascii() or not text.isdigit() or len(text) > NAMEPLATE_DIGITS:
        raise Refusal("code_unknown", "no such code here")
    return int(text)


async def _wait(relay: Relay, call: Call, bell: Bell, place: Place) -> None:
    """Until there is more than the asker has seen, if it said what that is. Raises
    Disconnected."""
    with place:
        after = call.number_after(call.query("after"), "after")
        if after is None:
            return
        news = asyncio.create_task(relay.transfers.news(bell, after))
        gone = asyncio.create_task(call.wait_for_disconnect())
        try:
            await asyncio.wait({news, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            gone.cancel()
        if not news.done():
            raise Disconnected


# ── the sender ───────────────────────────────────────────────────────────────────────────────


def _enter(relay: Relay, call: Call) -> tuple[Session, Participant]:
    """The session of the path and its owner. Raises Refusal."""
    session = relay.core.session(call.sid)
    who = relay.core.authenticate(session, call.token())
    relay.core.check_role(who, Role.OWNER, what="offer transfer codes")
    return session, who


def _own(relay: Relay, call: Call) -> tuple[Session, Participant, Code]:
    session, who = _enter(relay, call)
    return session, who, relay.transfers.own(session, who, _nameplate(call, 2))


def _own_try(relay: Relay, call: Call) -> tuple[Code, Try]:
    _, _, code = _own(relay, call)
    return code, relay.transfers.own_try(code, call.parts[4])


async def offer(relay: Relay, call: Call) -> None:
    session, who = _enter(relay, call)
    document = await call.body.all(limits.PARKED_BYTES)
    code = relay.transfers.offer(session, who, document, call.origin)
    expires_in_s = relay.transfers.expires_in_s(code)
    await call.answer_json({"nameplate": code.nameplate, "expires_in_s": expires_in_s}, 201)


async def look(relay: Relay, call: Call) -> None:
    session, who, code = _own(relay, call)
    await _wait(relay, call, code.bell, relay.core.quotas.stream(session, who.key, call.origin))
    relay.core.session(session.id)  # it may have ended meanwhile
    await call.answer_json(relay.transfers.describe(code))


async def answer(relay: Relay, call: Call) -> None:
    code, one = _own_try(relay, call)
    relay.transfers.answer(code, one, await call.body.all(limits.CODE_MESSAGE_BYTES))
    await call.answer(204)


async def wrong(relay: Relay, call: Call) -> None:
    relay.transfers.wrong(*_own_try(relay, call))
    await call.answer(204)


async def send_invite(relay: Relay, call: Call) -> None:
    code, one = _own_try(relay, call)
    relay.transfers.send_invite(code, one, await call.body.all(limits.SEALED_INVITE_BYTES))
    await call.answer(204)


async def cancel(relay: Relay, call: Call) -> None:
    _, _, code = _own(relay, call)
    relay.transfers.cancel(code)
    await call.answer(204)


# ── the receiver: the path begins with the nameplate ─────────────────────────────────────────


async def begin(relay: Relay, call: Call) -> None:
    opening = await call.body.all(limits.CODE_MESSAGE_BYTES)
    one = relay.transfers.begin(_nameplate(call, 0), opening, call.origin)
    await call.answer_json({"try": one.id}, 201)


def _tried(relay: Relay, call: Call) -> tuple[Code, Try]:
    return relay.transfers.tried(_nameplate(call, 0), call.id)


async def look_at_try(relay: Relay, call: Call) -> None:
    code, one = _tried(relay, call)
    await _wait(relay, call, one.bell, relay.core.quotas.receiver(call.origin))
    await call.answer_json(relay.transfers.describe_try(code, one))


async def confirm(relay: Relay, call: Call) -> None:
    code, one = _tried(relay, call)
    relay.transfers.confirm(code, one, await call.body.all(limits.CODE_MESSAGE_BYTES))
    await call.answer(204)


async def done(relay: Relay, call: Call) -> None:
    relay.transfers.done(*_tried(relay, call))
    await call.answer(204)


async def leave(relay: Relay, call: Call) -> None:
    relay.transfers.leave(*_tried(relay, call))
    await call.answer(204)


async def parked_head(relay: Relay, call: Call) -> None:
    await call.answer_json(relay.transfers.parked_head(_nameplate(call, 0), call.origin))


async def take(relay: Relay, call: Call) -> None:
    document = await call.body.all(TAKE_BYTES)
    sealed = relay.transfers.take(_nameplate(call, 0), document, call.origin)
    await call.answer_json({"sealed": sealed})
