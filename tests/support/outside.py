"""The far end of a small internet: a name server and a few servers, as a program.

Started with a JSON object: `names` (name -> a list of address lists, one for each question of a
kind in turn, the last one again and again; an empty list of lists: no answer ever comes), and
`certificate`, `key` for TLS. Says "up", then a line `ADDRESS PORT` for each connection.

Ports: 53 names · 443 HTTP over TLS · 80 HTTP · 7000 echo · 7001 takes nothing and says nothing ·
7002 sends without end · 7003 answers only when the other side has ended.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
import ssl
import struct
import sys
from collections import Counter
from typing import Any, cast

PLAIN, TLS, ECHO, DEAF, LOUD, AFTERWARDS = 80, 443, 7000, 7001, 7002, 7003
_A, _AAAA = 1, 28


class _Names(asyncio.DatagramProtocol):
    def __init__(self, names: dict[str, list[list[str]]]) -> None:
        self._names = names
        self._asked: Counter[tuple[str, int]] = Counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode())
            at += 1 + data[at]
        kind = int.from_bytes(data[at + 1 : at + 3], "big")
        question = data[12 : at + 5]
        name = ".".join(labels).lower()
        turns = self._names.get(name)
        if turns == []:
            return
        found = self._answers(name, kind, turns or [[]])
        flags = 0x8180 if turns else 0x8183
        head = data[:2] + struct.pack(">HHHHH", flags, 1, len(found), 0, 0)
        answers = b"".join(
            b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(address)) + address
            for address in found
        )
        self._transport.sendto(head + question + answers, addr)

    def _answers(self, name: str, kind: int, turns: list[list[str]]) -> list[bytes]:
        turn = min(self._asked[name, kind], len(turns) - 1)
        self._asked[name, kind] += 1
        parsed = [ipaddress.ip_address(text) for text in turns[turn]]
        version = {_A: 4, _AAAA: 6}.get(kind)
        return [address.packed for address in parsed if address.version == version]


async def _serve_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    method, path, _ = head.split(b" ", 2)
    taken = 0
    if method == b"PUT":
        size = int(head.lower().split(b"content-length:")[1].split()[0])
        while taken < size and (chunk := await reader.read(1 << 16)):
            taken += len(chunk)
    size = int(path[1:]) if path[1:].isdigit() else 0
    body = b"got %d" % taken if not size else None
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        % (size or len(body or b""))
    )
    if body is not None:
        writer.write(body)
    while size > 0:
        writer.write(bytes(min(size, 1 << 16)))
        size -= 1 << 16
        await writer.drain()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()


async def _stay_deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.Event().wait()


async def _be_loud(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(bytes(1 << 16))
        await writer.drain()


async def _answer_afterwards(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"heard %d" % len(await reader.read(-1)))


def _told(serve: Any) -> Any:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port = writer.get_extra_info("sockname")[:2]
        print(address.removeprefix("::ffff:"), port, flush=True)
        try:
            await serve(reader, writer)
            if writer.can_write_eof():
                writer.write_eof()
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    return connected


async def main() -> None:
    given = json.loads(sys.argv[1])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(given["certificate"], given["key"])
    services = {
        PLAIN: _serve_http,
        TLS: _serve_http,
        ECHO: _echo,
        DEAF: _stay_deaf,
        LOUD: _be_loud,
        AFTERWARDS: _answer_afterwards,
    }
    for port, serve in services.items():
        listener = socket.create_server(
            ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=256
        )
        context = tls if port == TLS else None
        await asyncio.start_server(_told(serve), sock=listener, ssl=context)
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(
        lambda: _Names(given["names"]), local_addr=(given["name_server"], 53)
    )
    print("up", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
