"""The server over HTTP: who may call it, and the SDK's clients there."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client

from airlox.errors import AirloxError
from airlox.mcp.http import HOST, PATH, guarded, listening
from airlox.mcp.stdio import MOST_LINE_BYTES
from mcp import Client
from support.mcp_client import LEGACY, MODERN, TIMEOUT_S, Heard, answering, run
from support.mcp_raw import META, RawServer, raw_server

PORT = 4321
TOKEN = "a-token"
OWN = {"host": f"127.0.0.1:{PORT}", "authorization": f"Bearer {TOKEN}"}


class Answer(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]


def ask(
    headers: Mapping[str, str], *, token: str | None = TOKEN, path: str = PATH, twice: str = ""
) -> Answer:
    """What the guard answers; 200 where it lets the request pass."""
    sent: list[Any] = []

    async def passed(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read before a request is let pass")

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    raw += [(name, value) for name, value in raw if name.decode() == twice]
    scope: Any = {"type": "http", "path": path, "headers": raw}

    async def test() -> None:
        await guarded(passed, PORT, token)(scope, receive, send)

    run(test)
    return Answer(sent[0]["status"], sent[0]["headers"])


class TestGuard:
    def test_lets_pass_who_shows_the_token(self) -> None:
        assert ask(OWN).status == 200
        assert ask(OWN | {"host": f"localhost:{PORT}"}).status == 200
        assert ask(OWN | {"authorization": f"bearer {TOKEN}"}).status == 200
        assert ask(OWN | {"origin": f"http://localhost:{PORT}"}).status == 200

    @pytest.mark.parametrize(
        "shown", [None, "", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer a", f"Bearer {TOKEN}x", "ü"]
    )
    def test_the_token_must_be_shown(self, shown: str | None) -> None:
        headers = {"host": OWN["host"]}
        headers |= {} if shown is None else {"authorization": shown}
        refused = ask(headers)
        assert refused.status == 401
        assert (b"www-authenticate", b"Bearer") in refused.headers
        assert ask(headers, token=None).status == 200

    @pytest.mark.parametrize(
        "host",
        [
            *(None, "", "127.0.0.1", f"127.0.0.1:{PORT + 1}", f"[::1]:{PORT}"),
            *("evil.example", f"evil.example:{PORT}", f"127.0.0.1:{PORT}.evil.example"),
            f"127.0.0.1:{PORT}@evil.example",
        ],
    )
    def test_other_hosts_are_refused_with_the_token_and_without(self, host: str | None) -> None:
        headers = {"authorization": OWN["authorization"]}
        headers |= {} if host is None else {"host": host}
        assert ask(headers).status == 421
        assert ask(headers, token=None).status == 421

    @pytest.mark.parametrize(
        "origin",
        [
            *("", "null", "http://127.0.0.1", f"https://127.0.0.1:{PORT}"),
            *("http://evil.example", f"http://127.0.0.1:{PORT}.evil.example"),
            f"http://127.0.0.1:{PORT}/",
        ],
    )
    def test_pages_of_other_origins_are_refused(self, origin: str) -> None:
        assert ask(OWN | {"origin": origin}).status == 403

    @pytest.mark.parametrize("name", ["host", "authorization"])
    def test_what_is_said_twice_counts_as_nothing(self, name: str) -> None:
        assert ask(OWN, twice=name).status in (421, 401)

    def test_there_is_one_path(self) -> None:
        assert ask(OWN, path="/").status == 404


def test_a_port_that_is_taken() -> None:
    with listening(0) as first:
        port = first.getsockname()[1]
        with pytest.raises(AirloxError, match=f"port {port}") as caught, listening(port):
            pass
    assert caught.value.code == "port"


class Running(NamedTuple):
    server: RawServer
    url: str
    token: str

    def begin(self, body: bytes, **headers: str) -> http.client.HTTPConnection:
        """A request that is sent, with its answer still to come."""
        connection = http.client.HTTPConnection(self.url.split("/")[2], timeout=TIMEOUT_S)
        given = {
            "authorization": f"Bearer {self.token}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        connection.request("POST", PATH, body, given | headers)
        return connection

    def post(self, body: bytes, **headers: str) -> http.client.HTTPResponse:
        connection = self.begin(body, **headers)
        try:
            answer = connection.getresponse()
            answer.read()
            return answer
        finally:
            connection.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("mcp") / "token"
    argv = [*RawServer.argv(), "http", str(folder)]
    with raw_server(argv) as server:
        assert server.err is not None
        url = server.err.until(lambda line: line.startswith(b"serving on")).split()[-1].decode()
        line = server.err.until(lambda line: line.startswith(b"token in"))
        path = Path(line.decode().split()[-1])
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        token = path.read_text().strip()
        assert re.fullmatch(r"[A-Za-z0-9_-]{43}", token)
        yield Running(server, url, token)
        server.process.send_signal(signal.SIGTERM)
        server.said("desk closed")
        assert server.process.wait(TIMEOUT_S) == 0
        assert not path.exists()


class TestServer:
    @pytest.mark.parametrize(("mode", "version"), [(LEGACY, "2025-11-25"), (MODERN, "2026-07-28")])
    def test_lists_and_calls(self, running: Running, mode: str, version: str) -> None:
        async def test() -> None:
            heard = Heard()
            headers = {"authorization": f"Bearer {running.token}"}
            async with httpx2.AsyncClient(headers=headers) as web:
                transport = streamable_http_client(running.url, http_client=web)
                client = Client(transport, mode=mode, elicitation_callback=answering(True, True))
                async with client:
                    assert client.protocol_version == version
                    listed = await client.list_tools()
                    assert "echo" in [tool.name for tool in listed.tools]
                    worked = await client.call_tool("work", {"seconds": 1}, progress_callback=heard)
                    assert worked.structured_content == {"text": "worked", "key": None}
                    assert heard.texts
                    asked = await client.call_tool("confirm", {"what": "it"})
                    assert asked.structured_content is not None
                    assert asked.structured_content["text"] == "True True"

        run(test)

    def test_a_client_that_leaves_cancels_its_call(self, running: Running) -> None:
        document = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        params = {"name": "work", "arguments": {}, "_meta": META}
        headers = {
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "work",
        }
        body = json.dumps(document | {"params": params}).encode()
        connection = running.begin(body, **headers)
        running.server.said("work begun")
        connection.close()
        running.server.said("work stopped")

    def test_bodies_are_bounded(self, running: Running) -> None:
        assert running.post(b" " * (MOST_LINE_BYTES + 1)).status == 413

    def test_the_head_of_a_strangers_request_is_bounded(self, running: Running) -> None:
        port = int(running.url.split("/")[2].rpartition(":")[2])
        with socket.create_connection((HOST, port), TIMEOUT_S) as stranger:
            stranger.sendall(b"GET /mcp HTTP/1.1\r\n")
            with suppress(ConnectionError):  # it may be closed before all of it went
                for number in range(1024):
                    stranger.sendall(b"x-%d: %b\r\n" % (number, b"x" * 1024))
            with suppress(ConnectionError):
                assert stranger.recv(64)[:13] in (b"HTTP/1.1 400 ", b""), "it still waits for more"

    def test_a_stranger_is_refused(self, running: Running) -> None:
        assert running.post(b"{}", authorization="Bearer x").status == 401
        assert running.post(b"{}", host="evil.example").status == 421
        assert running.post(b"{}", origin="http://evil.example").status == 403
