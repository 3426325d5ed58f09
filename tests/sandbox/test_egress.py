"""The proxy of an allow list between a job and a small internet. Numbers: the attack list."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from airlox.sandbox.base import Denial, DenialReason
from airlox.sandbox.connect import HEAD_BYTES
from airlox.sandbox.egress import MAX_CONNECTIONS, MAX_NAMED, EgressProxy, is_own
from airlox.sandbox.hosts import parse_rules
from support.internet import (
    HOST,
    HOST_6,
    METADATA,
    NAME,
    OTHER_HOST,
    OWN,
    OWN_6,
    PRIVATE,
    Internet,
    internet,
)
from support.outside import AFTERWARDS, DEAF, ECHO, LOUD

WITHIN_S = 60.0
MIB = 1 << 20
LISTED = [f"{NAME}:{port}" for port in (ECHO, DEAF, LOUD, AFTERWARDS, 443, 9)]


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    with internet(tmp_path_factory.mktemp("internet")) as made:
        yield made


class LookUps:
    """A resolver of a test: what it answers, one list for each question in turn."""

    def __init__(self, *turns: Sequence[str]) -> None:
        self._turns = list(turns)
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        found = self._turns[min(len(self.asked), len(self._turns)) - 1]
        if not found:
            raise OSError("no such name")
        return found


Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Job:
    """What a job does through its proxy. Closes at the end what it opened."""

    def __init__(self, proxy: EgressProxy, port: int) -> None:
        self.proxy = proxy
        self.port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        return reader, writer

    async def ask(self, head: bytes) -> tuple[bytes, Peer]:
        """The head of the answer, and the connection behind it."""
        reader, writer = await self.connect()
        writer.write(head + b"\r\n\r\n")
        return await reader.readuntil(b"\r\n\r\n"), (reader, writer)

    async def tunnel(self, target: str) -> Peer:
        answer, peer = await self.ask(f"CONNECT {target} HTTP/1.1".encode())
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        return peer

    async def refused(self, target: str) -> str:
        """The status line of an answer that closes the connection, which says all twice."""
        answer, (reader, _) = await self.ask(f"CONNECT {target} HTTP/1.1".encode())
        line = answer.split(b"\r\n")[0].decode()
        assert line.split(" ", 2)[2] in (await reader.read()).decode()
        return line

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def job(look_up: LookUps | None = None, **times: float) -> AsyncIterator[Job]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    port = listener.getsockname()[1]
    proxy = EgressProxy(listener, parse_rules(LISTED), look_up or LookUps([HOST]), **times)
    async with asyncio.timeout(WITHIN_S), proxy:
        made = Job(proxy, port)
        try:
            yield made
        finally:
            made.close()


def run(story: Callable[[], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        return await story()

    return asyncio.run(whole())


@pytest.mark.usefixtures("net")
class TestTunnel:
    def test_bytes_go_both_ways_and_are_counted(self) -> None:
        async def story() -> None:
            async with job() as it:
                reader, writer = await it.tunnel(f"{NAME}:{ECHO}")
                writer.write(b"hello")
                assert await reader.readexactly(5) == b"hello"
                writer.write_eof()
                assert await reader.read() == b""
                seen = it.proxy.seen()
            assert (seen.connections, seen.sent_bytes, seen.received_bytes) == (1, 5, 5)
            assert (seen.denials, seen.denied) == (0, ())

        run(story)

    def test_bytes_right_behind_the_request_are_passed_on(self) -> None:
        async def story() -> None:
            async with job() as it:
                head = f"CONNECT {NAME}:{ECHO} HTTP/1.1\r\n\r\nearly".encode()
                reader, writer = await it.connect()
                writer.write(head)
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(5) == b"early"
                assert it.proxy.seen().sent_bytes == 5

        run(story)

    def test_a_request_may_come_byte_by_byte(self) -> None:
        async def story() -> None:
            async with job() as it:
                reader, writer = await it.connect()
                for byte in f"CONNECT {NAME}:{ECHO} HTTP/1.1\r\n\r\n".encode():
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")

        run(story)

    def test_half_close_lets_the_answer_come(self) -> None:
        async def story() -> None:
            async with job() as it:
                reader, writer = await it.tunnel(f"{NAME}:{AFTERWARDS}")
                writer.write(bytes(100_000))
                writer.write_eof()
                assert await reader.read() == b"heard 100000"

        run(story)

    def test_large_both_ways_with_flat_memory(self) -> None:
        async def story() -> None:
            size = 64 * MIB
            async with job() as it:
                reader, writer = await it.tunnel(f"{NAME}:{ECHO}")

                async def send() -> None:
                    for _ in range(size // MIB):
                        writer.write(bytes(MIB))
                        await writer.drain()
                    writer.write_eof()

                before = _peak_bytes()
                sending = asyncio.create_task(send())
                taken = 0
                while chunk := await reader.read(1 << 16):
                    taken += len(chunk)
                await sending
                assert taken == size
                assert _peak_bytes() - before < 16 * MIB
                seen = it.proxy.seen()
                assert (seen.sent_bytes, seen.received_bytes) == (size, size)

        run(story)

    def test_a_host_that_takes_nothing_stops_the_job_not_the_runner(self) -> None:
        async def story() -> None:
            async with job() as it:
                _, writer = await it.tunnel(f"{NAME}:{DEAF}")
                before = _peak_bytes()
                writer.transport.set_write_buffer_limits(high=0)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(_write_on(writer), 1)
                assert it.proxy.seen().sent_bytes < 16 * MIB
                assert _peak_bytes() - before < 16 * MIB
                writer.transport.abort()

        run(story)

    def test_a_job_that_reads_nothing_stops_the_host(self) -> None:
        async def story() -> None:
            async with job() as it:
                _, writer = await it.tunnel(f"{NAME}:{LOUD}")
                reader_transport = writer.transport
                reader_transport.pause_reading()  # type: ignore[attr-defined]
                settled = -1
                while settled != it.proxy.seen().received_bytes:
                    settled = it.proxy.seen().received_bytes
                    await asyncio.sleep(0.3)
                assert settled < 16 * MIB
                reader_transport.abort()

        run(story)

    def test_a_quiet_tunnel_ends(self) -> None:
        async def story() -> None:
            async with job(idle_s=0.2) as it:
                reader, _ = await it.tunnel(f"{NAME}:{ECHO}")
                assert await reader.read() == b""

        run(story)

    def test_ipv6_and_a_second_address(self) -> None:
        async def story() -> None:
            async with job(LookUps(["2a0f:2::dead", HOST_6])) as it:
                reader, writer = await it.tunnel(f"{NAME}:{ECHO}")
                writer.write(b"six")
                assert await reader.readexactly(3) == b"six"

        run(story)

    def test_a_host_that_is_not_there_or_refuses(self) -> None:
        async def story() -> None:
            async with job(LookUps([HOST], [])) as it:
                assert await it.refused(f"{NAME}:9") == f"HTTP/1.1 502 {NAME}:9 cannot be reached"
                assert await it.refused(f"{NAME}:9") == f"HTTP/1.1 502 {NAME} has no address"
                assert it.proxy.seen().denials == 0

        run(story)


class TestDenied:
    @pytest.mark.parametrize(
        ("target", "reason"),
        [
            ("other.org:443", DenialReason.NOT_LISTED),
            (f"www.{NAME}:443", DenialReason.NOT_LISTED),
            (f"{NAME}:22", DenialReason.NOT_LISTED),
            (f"{HOST}:{ECHO}", DenialReason.IP_LITERAL),
            (f"[{HOST_6}]:{ECHO}", DenialReason.IP_LITERAL),
            (f"{METADATA}:80", DenialReason.IP_LITERAL),
            ("127.0.0.1:443", DenialReason.IP_LITERAL),
            ("[::1]:443", DenialReason.IP_LITERAL),
            ("2130706433:443", DenialReason.IP_LITERAL),
            ("localhost:443", DenialReason.NOT_LISTED),
        ],
    )
    def test_not_on_the_list(self, net: Internet, target: str, reason: DenialReason) -> None:  # 44
        async def story() -> None:
            look_ups = LookUps([HOST])
            async with job(look_ups) as it:
                line = await it.refused(target)
                assert line.startswith(f"HTTP/1.1 403 blocked: {target}; ")
                assert it.proxy.seen().denied == (Denial(target, reason),)
            assert look_ups.asked == []

        before = net.connections()
        run(story)
        assert net.connections() == before

    @pytest.mark.parametrize(
        "addresses",
        [
            [PRIVATE],
            [METADATA],
            ["127.0.0.1"],
            ["::1"],
            ["fd00:ec2::254"],
            ["fe80::1%near"],
            [f"::ffff:{PRIVATE}"],
            ["64:ff9b::a09:909"],
            ["0.0.0.0"],
            [HOST, PRIVATE],
            [PRIVATE, HOST],
            [OWN],
            [OWN_6],
            ["not-an-address"],
        ],
        ids=" ".join,
    )
    def test_a_name_that_leads_where_no_one_may(self, net: Internet, addresses: list[str]) -> None:
        async def story() -> None:  # 45
            async with job(LookUps(addresses)) as it:
                line = await it.refused(f"{NAME}:{ECHO}")
                assert line.startswith("HTTP/1.1 403 blocked: ")
                assert it.proxy.seen().denied == (
                    Denial(f"{NAME}:{ECHO}", DenialReason.NOT_PUBLIC),
                )

        before = net.connections()
        with socket.create_server(("::", ECHO), family=socket.AF_INET6, dualstack_ipv6=True) as own:
            own.setblocking(False)
            run(story)
            with pytest.raises(BlockingIOError):
                own.accept()
        assert net.connections() == before

    def test_an_answer_that_changes_between_two_look_ups(self, net: Internet) -> None:  # 45
        """Each tunnel leads to the address that was checked for it, looked up once."""

        async def story() -> None:
            look_ups = LookUps([HOST], [PRIVATE], [OTHER_HOST])
            async with job(look_ups) as it:
                await it.tunnel(f"{NAME}:{ECHO}")
                assert (await it.refused(f"{NAME}:{ECHO}")).startswith("HTTP/1.1 403 ")
                await it.tunnel(f"{NAME}:{ECHO}")
            assert look_ups.asked == [NAME] * 3

        before = len(net.connections())
        run(story)
        wanted = [f"{HOST} {ECHO}", f"{OTHER_HOST} {ECHO}"]
        assert net.connections()[before:] == wanted

    @pytest.mark.usefixtures("net")
    def test_plain_http_gets_words_and_no_connection(self) -> None:
        async def story() -> None:
            async with job() as it:
                answer, (reader, _) = await it.ask(
                    f"GET http://{NAME}/simple HTTP/1.1\r\nHost: {NAME}".encode()
                )
                assert answer.startswith(b"HTTP/1.1 403 ")
                assert b"use https" in await reader.read()
                assert it.proxy.seen().denied == (Denial(f"{NAME}:80", DenialReason.PLAIN_HTTP),)

        run(story)

    @pytest.mark.usefixtures("net")
    def test_the_first_different_ones_are_named_and_all_counted(self) -> None:
        async def story() -> None:
            async with job() as it:
                for _ in range(2):
                    for number in range(MAX_NAMED + 5):
                        await it.refused(f"h{number}.net:443")
                seen = it.proxy.seen()
                assert seen.denials == 2 * (MAX_NAMED + 5)
                assert [denial.target for denial in seen.denied] == [
                    f"h{number}.net:443" for number in range(MAX_NAMED)
                ]

        run(story)


@pytest.mark.usefixtures("net")
class TestBounds:
    def test_one_connection_too_many(self) -> None:
        async def story() -> None:
            async with job() as it:
                open_ones = [await it.connect() for _ in range(MAX_CONNECTIONS)]
                line = await it.refused(f"{NAME}:{ECHO}")
                assert line.startswith(f"HTTP/1.1 503 this job has {MAX_CONNECTIONS} connections")
                open_ones[0][1].close()
                await open_ones[0][1].wait_closed()
                while True:
                    answer, _ = await it.ask(f"CONNECT {NAME}:{ECHO} HTTP/1.1".encode())
                    if answer.startswith(b"HTTP/1.1 200 "):
                        break

        run(story)

    def test_a_request_that_never_ends_in_bytes(self) -> None:
        async def story() -> None:
            async with job() as it:
                reader, writer = await it.connect()
                writer.write(b"CONNECT " + bytes(HEAD_BYTES))
                assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")

        run(story)

    def test_a_request_that_never_ends_in_time(self) -> None:
        async def story() -> None:
            async with job(head_s=0.2) as it:
                reader, writer = await it.connect()
                writer.write(b"CONNECT ")
                assert await reader.read() == b""

        run(story)

    def test_a_job_that_takes_no_answer(self) -> None:
        async def story() -> None:
            async with job(head_s=0.2) as it:
                for _ in range(MAX_CONNECTIONS):
                    _, writer = await it.connect()
                    writer.write(b"CONNECT other.org:443 HTTP/1.1\r\n\r\n")
                while True:  # until their time is over, and others have their turn
                    answer, _ = await it.ask(f"CONNECT {NAME}:{ECHO} HTTP/1.1".encode())
                    if answer.startswith(b"HTTP/1.1 200 "):
                        break
                    await asyncio.sleep(0.05)

        run(story)

    def test_a_busy_tunnel_leaves_time_for_others(self) -> None:
        async def story() -> None:
            async with job() as it:
                reader, _ = await it.tunnel(f"{NAME}:{LOUD}")
                for _ in range(100):
                    await reader.read(1 << 16)
                    await asyncio.sleep(0)
                other, writer = await it.tunnel(f"{NAME}:{ECHO}")
                writer.write(b"me too")
                assert await other.readexactly(6) == b"me too"

        run(story)

    def test_the_end_of_a_job_leaves_nothing(self) -> None:
        before = _open_files()

        async def story() -> None:
            async with job() as it:
                for port in (ECHO, DEAF, LOUD):
                    for _ in range(5):
                        await it.tunnel(f"{NAME}:{port}")
                await it.connect()

        run(story)
        assert _open_files() == before

    def test_no_free_descriptor_is_no_end(self) -> None:
        async def story() -> None:
            loop = asyncio.get_running_loop()
            with socket.socket() as late:
                late.setblocking(False)
                async with job() as it:
                    reader, writer = await it.connect()
                    with _no_free_descriptor():
                        writer.write(f"CONNECT {NAME}:{ECHO} HTTP/1.1\r\n\r\n".encode())
                        assert await reader.read() == b""
                        await loop.sock_connect(late, ("127.0.0.1", it.port))
                        await asyncio.sleep(0.05)
                    await loop.sock_sendall(late, b"GET / HTTP/1.1\r\n\r\n")
                    assert (await loop.sock_recv(late, 100)).startswith(b"HTTP/1.1 400 ")

        run(story)


async def _write_on(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(bytes(1 << 16))
        await writer.drain()


@contextmanager
def _no_free_descriptor() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, _open_files())) + 2, hard))
    try:
        with suppress(OSError):
            while True:
                fillers.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)


def test_own_addresses(net: Internet) -> None:
    assert all(is_own(address) for address in ("127.0.0.1", "::1", OWN, OWN_6))
    assert not any(is_own(address) for address in (HOST, HOST_6, "nonsense"))


def _open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
