"""Whatever is sent to the relay, it answers with a refusal, and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airlox.protocol import wire
from airlox.protocol.keys import Role
from airlox.relay.call import MUCH_BYTES, Call
from airlox.relay.config import Config
from airlox.relay.routes import ROUTES, find_route
from support.crew import Crew
from support.relay import Http, Member, RelayThread, new_world, now_ms

FEW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SHAPES = sorted(ROUTES)


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with RelayThread(posts_per_second=0) as relay:
        yield Crew(relay, full=True)


def answered(member: Member, method: str, path: str, body: bytes | None) -> int:
    """The status of a request, and that the relay is well after it."""
    answer = member.ask(method, path, body)
    assert answer.status < 500 or answer.status in (503, 507), answer.body
    if answer.status >= 400:
        assert set(answer.json) == {"error", "message"}
        assert wire.STATUS_OF[answer.json["error"]] == answer.status
    return answer.status


@FEW
@given(st.sampled_from(SHAPES), st.lists(st.text(max_size=30), min_size=3, max_size=3), st.data())
def test_any_ids_in_any_path(crew: Crew, shape: tuple[str, ...], ids: list[str], data: Any) -> None:
    method, *parts = shape
    if "stream" in parts or not parts:
        return
    names = iter([crew.sid, *ids])
    path = wire.SESSIONS + "".join(
        "/" + quote(next(names) if part == "*" else part, safe="") for part in parts
    )
    if path in (wire.close(crew.sid), wire.leave(crew.sid)):
        return
    body = data.draw(st.binary(max_size=200)) if method != "GET" else None
    answered(crew.sender, method, path, body)


@FEW
@given(st.binary(max_size=400))
def test_any_bytes_in_any_body(crew: Crew, body: bytes) -> None:
    sid = crew.sid
    for path in (wire.items(sid), wire.jobs(sid), wire.participants(sid), wire.SESSIONS):
        assert 400 <= answered(crew.sender, "POST", path, body) < 500


@FEW
@given(st.data())
def test_any_byte_of_a_post_changed(crew: Crew, data: Any) -> None:
    """P-FLR-7."""
    frame = bytearray(crew.sender.person.say("some text", at_ms=now_ms()).frame())
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    status = answered(crew.sender, "POST", wire.items(crew.sid), bytes(frame))
    assert 400 <= status < 500


@FEW
@given(st.data())
def test_any_byte_of_a_manifest_changed(crew: Crew, data: Any) -> None:
    document = bytearray(new_world().document.encode())
    at = data.draw(st.integers(0, len(document) - 1))
    document[at] ^= data.draw(st.integers(1, 127))
    assert 400 <= answered(crew.sender, "POST", wire.SESSIONS, bytes(document)) < 500


@FEW
@given(st.data())
def test_any_byte_of_a_join_changed(crew: Crew, data: Any) -> None:
    document = bytearray(crew.world.person(Role.SENDER).join.encode())
    at = data.draw(st.integers(0, len(document) - 1))
    document[at] ^= data.draw(st.integers(1, 127))
    status = answered(crew.sender, "POST", wire.participants(crew.sid), bytes(document))
    assert 400 <= status < 500


@FEW
@given(st.text(st.characters(max_codepoint=255), max_size=100))
def test_any_target_and_any_token(crew: Crew, text: str) -> None:
    value = "".join(c for c in text if c.isprintable()).strip()
    frame = crew.job().frame()
    answer = crew.sender.post(wire.jobs(crew.sid), frame, airlox_target=value)
    assert answer.status in (400, 403), answer.body
    path = wire.events(crew.sid)
    assert crew.http.ask("GET", path, None, value).error == "401 unauthorized"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /v1/health HTTP/9.9\r\n\r\n",
        b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET " + b"/x" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_no_harm_done(crew: Crew, request_bytes: bytes) -> None:
    with socket.create_connection((crew.http.host, crew.http.port), timeout=60) as line:
        answer = b""
        with contextlib.suppress(OSError):  # the relay may have cut the line already
            line.sendall(request_bytes)
            line.shutdown(socket.SHUT_WR)
            while part := line.recv(65536):
                answer += part
    assert not answer or answer.split(b" ")[1] in (b"400", b"404")
    assert Http(f"http://{crew.http.host}:{crew.http.port}").ask("GET", wire.HEALTH).status == 200


async def test_who_takes_much_at_once_has_the_loop_not_for_itself() -> None:
    async def send(_: object) -> None:
        pass

    turns: list[bool] = []
    scope = {"method": "GET", "headers": []}
    call = Call(scope, None, send, Config())  # type: ignore[arg-type]
    asyncio.get_running_loop().call_soon(turns.append, True)
    await call.send_part(b"x")
    assert turns == []
    await call.send_part(b"x" * MUCH_BYTES)
    assert turns == [True]


def test_a_route_is_found_by_its_shape_alone() -> None:
    assert (
        find_route("GET", ["s", "runners", "me", "stream"])
        is ROUTES[("GET", "*", "runners", "me", "stream")]
    )
    assert find_route("POST", ["s", "runners", "key", "approve"]) is not None
    for method, parts in [
        ("GET", ["s", "runners", "key", "stream"]),
        ("POST", ["s", "items", "*", "blob"]),
        ("GET", ["s", "*"]),
        ("GET", ["s", "jobs", "j", "packs", "0", "more"]),
    ]:
        assert find_route(method, parts) is None
