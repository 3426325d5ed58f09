"""Targets: what a stranger or a member asks of a relay.

Each input is one request to a relay with one session, in which a job runs:

    WHO METHOD PATH      who: o, s, v, r for the roles, - for a stranger. PATH below the session,
    name: value          or from /v1 on; $job, $item, $runner, $code, $try stand for ids
    (an empty line, then the body)

The relay is the same before each input. It answers once, with a status and a code of the table.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from airlox.protocol import canonical, wire
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import b64u_encode
from airlox.protocol.keys import Role
from airlox.protocol.live import LiveWriter, Piece
from airlox.protocol.transfer import Parked
from airlox.relay.addresses import Origin
from airlox.relay.app import App
from airlox.relay.config import Config
from airlox.relay.relay import Relay
from airlox.relay.routes import CODE_ROUTES, ROUTES
from airlox.relay.store.memory import MemoryStore
from support.clock import Clock
from support.crew import ANY, a_job, a_result
from support.world import NOW_MS

from .session import person, unlogged, world

_ROLES: Final = {"o": Role.OWNER, "s": Role.SENDER, "v": Role.OBSERVER, "r": Role.RUNNER}
_NAME: Final = re.compile(r"\$([a-z]+)")
_FAILURES: Final = (503, 507)
"""Answers of a relay that is well: it has no room, or no time now."""


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


@dataclass(frozen=True)
class History:
    """A session on a relay: what the store has of it, who may enter, and ids in it."""

    store: MemoryStore
    entries: list[bytes]
    tokens: dict[str, str]
    names: dict[str, str]


@cache
def history() -> History:
    return asyncio.run(_play())


async def _play() -> History:
    """A session in which everybody has joined, something was said, and a job runs."""
    relay, terms = _relay(MemoryStore()), world(full=True)
    sid, tokens = terms.keys.session_id, dict[str, str]()
    people = {letter: person(role, full=True) for letter, role in _ROLES.items()}

    async def play(path: str, body: bytes | str, who: str = "-", **headers: str) -> Any:
        data = body.encode() if isinstance(body, str) else body
        named = [*headers.items(), *_authorization(tokens.get(who))]
        pairs = tuple((k.replace("_", "-").encode(), v.encode()) for k, v in named)
        status, answer = await _ask(relay, _Request("POST", path, pairs, data))
        assert status < 300, answer
        return json.loads(answer or b"{}")

    await play(wire.SESSIONS, terms.document)
    for letter, someone in people.items():
        answer = await play(wire.participants(sid), someone.join, join_secret=letter * 43)
        tokens[letter] = answer["token"]
    runner, said, job = people["r"].public, people["s"].say("hello"), _job()
    await play(wire.items(sid), said.frame(), "s")
    await play(wire.approve(sid, runner), b"", "o")
    await play(wire.heartbeat(sid), '{"job":null,"slots":2,"jobs":[]}', "r")
    await play(wire.jobs(sid), job.frame(), "s", airlox_target=ANY)
    await play(wire.claim(sid, job.ref.id), b"", "r")
    store = relay.core.store
    assert isinstance(store, MemoryStore)
    names = {"job": job.ref.id, "item": said.ref.id, "runner": runner, "sid": sid}
    return History(store, await store.read(sid), tokens, names)


@cache
def _job() -> Any:
    return person(Role.SENDER, full=True).post(a_job(), subkind="py")


def _authorization(token: str | None) -> list[tuple[str, str]]:
    return [] if token is None else [("authorization", f"Bearer {token}")]


def _relay(store: MemoryStore) -> Relay:
    return Relay(Config(min_free_bytes=0, posts_per_second=0), store, Clock(NOW_MS))


async def _ask(relay: Relay, request: _Request) -> tuple[int, bytes]:
    """Status and body of the one answer. The asker goes as soon as its request was read."""
    path, _, query = request.path.partition("?")
    scope = {
        "type": "http",
        "method": request.method,
        "path": path,
        "query_string": query.encode("utf-8", "surrogateescape"),
        "headers": [*request.headers, (b"content-length", b"%d" % len(request.body))],
        "client": ("192.0.2.1", 9),
    }
    incoming = iter([{"type": "http.request", "body": request.body, "more_body": False}])
    answers: list[Any] = []

    async def receive() -> Any:
        return next(incoming, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        answers.append(message)

    await App(relay, "0")(scope, receive, send)
    if not answers:
        return 204, b""  # it went while it waited for news, and nobody was left to answer
    head, *parts = answers
    assert all(part["type"] == "http.response.body" for part in parts)
    assert not parts[-1].get("more_body", False)
    return int(head["status"]), b"".join(part["body"] for part in parts)


# ── the target ───────────────────────────────────────────────────────────────────────────────


def read_request(data: bytes) -> None:
    with unlogged():
        asyncio.run(_answer(_parse(data)))


async def _answer(request: _Request) -> None:
    relay = _relay(copy.deepcopy(history().store))
    await relay.core.load()
    status, body = await _ask(relay, replace(request, path=_with_codes(relay, request.path)))
    assert 200 <= status < 500 or status in _FAILURES, body
    if status >= 400:
        said = json.loads(body)
        assert set(said) == {"error", "message"}
        assert wire.STATUS_OF[said["error"]] == status
        assert len(said["message"]) < 1000
        assert said["message"].isprintable()


def _with_codes(relay: Relay, path: str) -> str:
    """The path with what only lives as long as a relay: codes, and a try of one."""
    if "$" not in path:
        return path
    session = relay.core.session(history().names["sid"])
    owner = next(who for who in session.participants.values() if who.role is Role.OWNER)
    here = Origin("192.0.2.2", True)
    code = relay.transfers.offer(session, owner, b"", here)
    parked = relay.transfers.offer(session, owner, _parked(session.id), here)
    one = relay.transfers.begin(code.nameplate, b"opening", here)
    path = path.replace("$code", str(code.nameplate)).replace("$try", one.id)
    return path.replace("$parked", str(parked.nameplate))


def _parked(sid: str) -> bytes:
    return canonical.encode(
        Parked(
            access_sha256=b64u_encode(sha256(bytes(32))),
            role=Role.RUNNER,
            salt=b64u_encode(bytes(16)),
            sealed=b64u_encode(bytes(100)),
            session_id=sid,
        )
    )


def _parse(data: bytes) -> _Request:
    head, _, body = data.partition(b"\n\n")
    first, *lines = head.decode("utf-8", "surrogateescape").split("\n")
    who, _, rest = first.partition(" ")
    method, _, path = rest.partition(" ")
    path = _NAME.sub(lambda found: history().names.get(found[1], found[0]), path)
    if not path.startswith(wire.API):
        path = wire.session(history().names["sid"]) + path
    pairs = [_header(line) for line in lines]
    token = history().tokens.get(who)
    authorization = [] if token is None else [(b"authorization", b"Bearer " + token.encode())]
    return _Request(method, path, (*pairs, *authorization), body)


def _header(line: str) -> tuple[bytes, bytes]:
    name, _, value = line.encode("utf-8", "surrogateescape").partition(b":")
    return name.strip().lower(), value.strip()


# ── inputs ───────────────────────────────────────────────────────────────────────────────────


def request_seeds() -> list[bytes]:
    """Every route for everybody who may use it, with bodies that are taken."""
    return [*_plain_seeds(), *_code_seeds(), *_bodies()]


def _plain_seeds() -> Iterator[bytes]:
    for method, *parts in ROUTES:
        if not parts:
            continue
        names = {"items": "$item", "jobs": "$job", "runners": "$runner", "roles": "sender"}
        names |= {"codes": "$code", "tries": "$try"}
        ids = [parts[n] if p != "*" else names.get(parts[n - 1], "0") for n, p in enumerate(parts)]
        path = "".join(f"/{part}" for part in ids[1:])
        for who in "osr-":
            yield f"{who} {method} {path}?after=0&limit=2&from=0\nlast-event-id: 1".encode()


def _code_seeds() -> Iterator[bytes]:
    """What receivers ask, of both kinds of codes, and what opens a parked one."""
    for method, *parts in CODE_ROUTES:
        for code in ("$code", "$parked", "0"):
            ids = [code, *("$try" if part == "*" else part for part in parts[1:])]
            yield f"- {method} {wire.CODES}/{'/'.join(ids)}?after=0\n\n{{}}".encode()
    take = {"access": b64u_encode(bytes(32)), "claim": b64u_encode(bytes(16))}
    yield f"- POST {wire.CODES}/$parked/parked\n\n{json.dumps(take)}".encode()
    yield f"o POST /codes\n\n{_parked(history().names['sid']).decode()}".encode()


def _bodies() -> Iterator[bytes]:
    terms, people = world(full=True), {k: person(role, full=True) for k, role in _ROLES.items()}
    runner, job = people["r"], _job()
    sender = people["s"]
    target = b"\nairlox-target: " + ANY.encode()
    yield b"- POST /v1/sessions\n\n" + world(full=False).document.encode()
    yield b"- POST /participants\nairlox-join-secret: x\n\n" + runner.join.encode()
    yield b"s POST /items\n\n" + sender.say("more").frame()
    yield b"s POST /jobs" + target + b"\n\n" + sender.post(a_job(), subkind="py").frame()
    yield b"r POST /items\n\n" + runner.post(a_result(job.ref), refs=[job.ref]).frame()
    yield b'r POST /runners/me/heartbeat\n\n{"job":"x","free_slots":1}'
    writer = LiveWriter(
        runner.key, terms.keys.session_key, terms.keys.session_id, job.ref, bytes(16)
    )
    yield b"r POST /jobs/$job/output\n\n" + writer.write([Piece(1, b"out")])[0]
    yield b"r POST /jobs/$job/lack\n\n" + bytes(60)
    yield b"s PUT /jobs/$job/packs/0\n\n" + bytes(60)
    yield b"- GET /v1/health"
    yield b"s POST /jobs" + target + b"\n\n" + canonical.encode({})
