"""The way out of one job where an allow list holds: a proxy for tunnels to named hosts.

It runs in the runner's event loop and listens on a socket that was opened inside the job's network
(`linux/doorway.py`): the job has no other way out, no file and no process of ours to attack.

Rules
- A tunnel leads to a listed name and port, at an address that was looked up here, checked, and is
  the one connected to. All addresses of the name must be public and none this machine's own.
- Every byte from the job and from the host is hostile. Of both nothing is read but the head of the
  job's one request; it and every wait have a time and a size.
- A direction holds one chunk: a side that does not read stops the other, and memory stays flat.
- Waits let other tasks run after each chunk, so that a fast job does not hold up the runner.

Left to others: rules and addresses (`hosts.py`), requests and answers (`connect.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

from airlox.sandbox.base import Denial, DenialReason, Egress
from airlox.sandbox.connect import (
    ESTABLISHED,
    HEAD_BYTES,
    HEAD_END,
    Refused,
    Target,
    check_listed,
    denied,
    parse_head,
)
from airlox.sandbox.hosts import HostRule, is_public

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from airlox.sandbox.lookups import LookUp

MAX_CONNECTIONS: Final = 64
MAX_NAMED: Final = 20
HEAD_S: Final = 10.0
CONNECT_S: Final = 5.0
IDLE_S: Final = 600.0

_CHUNK_BYTES: Final = 64 * 1024
_TRIED_ADDRESSES: Final = 4
_PAUSE_S: Final = 0.002
"""Between two connections, so that a flood of them costs the runner little."""
_NO_DESCRIPTOR_PAUSE_S: Final = 0.2
_WINDOW_BYTES: Final = 1 << 20
"""What the kernel holds at most for one connection to a host, in each direction."""
_TOO_MANY: Final = Refused(503, f"this job has {MAX_CONNECTIONS} connections open already")


class EgressProxy:
    """The proxy of one job, from `listener` (which it closes) to hosts. A context manager.

    Made and used in the event loop's thread. Leaving the block cuts every connection.
    """

    def __init__(
        self,
        listener: socket.socket,
        rules: Sequence[HostRule],
        look_up: LookUp,
        *,
        head_s: float = HEAD_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._listener = listener
        self._rules = rules
        self._look_up = look_up
        self._head_s = head_s
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: asyncio.Task[None] | None = None
        self._connections = self._sent_bytes = self._received_bytes = self._denials = 0
        self._denied: dict[Denial, None] = {}

    def seen(self) -> Egress:
        """What passed so far, and what was not let through."""
        return Egress(
            connections=self._connections,
            sent_bytes=self._sent_bytes,
            received_bytes=self._received_bytes,
            denials=self._denials,
            denied=tuple(self._denied),
        )

    async def __aenter__(self) -> EgressProxy:
        self._listener.setblocking(False)
        self._serving = asyncio.create_task(self._serve())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._serving is not None
        ending = [self._serving, *self._tasks]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._listener.close()

    async def _serve(self) -> None:
        while True:
            try:
                client, _ = await self._loop.sock_accept(self._listener)
            except OSError:
                # No descriptor is free, or the caller is gone already. Neither is an end.
                await asyncio.sleep(_NO_DESCRIPTOR_PAUSE_S)
                continue
            if len(self._tasks) < MAX_CONNECTIONS:
                task = asyncio.create_task(self._handle(client))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                _turn_away(client)
            await asyncio.sleep(_PAUSE_S)

    async def _handle(self, client: socket.socket) -> None:
        """One connection of the job, to its end. Peers that leave or stall end it quietly."""
        with client, contextlib.suppress(OSError):
            try:
                async with asyncio.timeout(self._head_s):
                    head, early = await self._read_head(client)
                target = parse_head(head)
                check_listed(target, self._rules)
                host = await self._connect(target)
            except Refused as refused:
                await self._refuse(client, refused)
                return
            with host:
                self._connections += 1
                await self._tunnel(client, host, early)

    async def _read_head(self, client: socket.socket) -> tuple[bytes, bytes]:
        """The head of a request, and what came behind it."""
        data = b""
        while HEAD_END not in data:
            if len(data) >= HEAD_BYTES:
                raise Refused(431, f"the request has more than {HEAD_BYTES} bytes")
            chunk = await self._loop.sock_recv(client, HEAD_BYTES - len(data))
            if not chunk:
                raise ConnectionResetError("the job closed before its request was whole")
            data += chunk
        head, _, early = data.partition(HEAD_END)
        return head, early

    async def _refuse(self, client: socket.socket, refused: Refused) -> None:
        if refused.denial is not None:
            self._denials += 1
            if len(self._denied) < MAX_NAMED:
                self._denied.setdefault(refused.denial)
        async with asyncio.timeout(self._head_s):
            await self._loop.sock_sendall(client, refused.answer())
            client.shutdown(socket.SHUT_WR)
            # Closing with unread bytes would reset the connection before the answer is read.
            while await self._loop.sock_recv(client, _CHUNK_BYTES):
                await asyncio.sleep(0)

    # -- to the host ----------------------------------------------------------------------------

    async def _connect(self, target: Target) -> socket.socket:
        """A connection to the target. Raises Refused with what stands in the way."""
        addresses = await self._addresses(target)
        for address in addresses[:_TRIED_ADDRESSES]:
            with contextlib.suppress(OSError):
                return await self._connect_to(address, target.port)
        raise Refused(502, f"{target} cannot be reached")

    async def _addresses(self, target: Target) -> Sequence[str]:
        try:
            found = await self._look_up(target.name)
        except TimeoutError:
            raise Refused(504, f"{target.name} could not be looked up in time") from None
        except OSError:
            raise Refused(502, f"{target.name} has no address") from None
        if not all(is_public(address) and not is_own(address) for address in found):
            raise denied(target, DenialReason.NOT_PUBLIC)
        return found

    async def _connect_to(self, address: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        host = socket.socket(family, socket.SOCK_STREAM)
        try:
            host.setblocking(False)
            host.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for bound in (socket.TCP_WINDOW_CLAMP, socket.TCP_NOTSENT_LOWAT):
                host.setsockopt(socket.IPPROTO_TCP, bound, _WINDOW_BYTES)
            async with asyncio.timeout(CONNECT_S):
                await self._loop.sock_connect(host, (address, port))
        except BaseException:
            host.close()
            raise
        return host

    # -- the tunnel -----------------------------------------------------------------------------

    async def _tunnel(self, client: socket.socket, host: socket.socket, early: bytes) -> None:
        async with asyncio.timeout(self._idle_s) as quiet:
            await self._loop.sock_sendall(client, ESTABLISHED)
            await self._loop.sock_sendall(host, early)
            self._sent_bytes += len(early)
            ways = [
                asyncio.create_task(self._pass_on(client, host, quiet, outwards=True)),
                asyncio.create_task(self._pass_on(host, client, quiet, outwards=False)),
            ]
            try:
                await asyncio.gather(*ways)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(
        self, source: socket.socket, sink: socket.socket, quiet: asyncio.Timeout, *, outwards: bool
    ) -> None:
        """Bytes of one direction, until their end, which is passed on too."""
        while chunk := await self._loop.sock_recv(source, _CHUNK_BYTES):
            await self._loop.sock_sendall(sink, chunk)
            if outwards:
                self._sent_bytes += len(chunk)
            else:
                self._received_bytes += len(chunk)
            quiet.reschedule(self._loop.time() + self._idle_s)
            await asyncio.sleep(0)
        sink.shutdown(socket.SHUT_WR)


def is_own(address: str) -> bool:
    """Whether packets to an address stay on this machine. Sends none."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((address, 9))
        return bool(probe.getsockname()[0] == address)
    return False


def _turn_away(client: socket.socket) -> None:
    """Answer at once or not at all: nobody waits for a connection that is one too many."""
    with client, contextlib.suppress(OSError):
        client.send(_TOO_MANY.answer())
        client.shutdown(socket.SHUT_WR)
        client.recv(_CHUNK_BYTES)
