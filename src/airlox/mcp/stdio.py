"""The protocol over standard input and output: one JSON message a line.

Instead of the SDK's own transport, because a line may come from anybody who can write to us:
- a line has a bound; a longer one is dropped as it comes in, and answered;
- what is no message is answered, with its id where that can be made out, instead of passed over;
- an id is one request at a time, and the number of open requests is bounded;
- standard output carries the protocol alone: whatever else writes there reaches standard error.

Reading and writing block, so each has a thread; neither can hold up the loop or the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

MOST_LINE_BYTES: Final = 4 * 1024 * 1024
MOST_OPEN: Final = 128
TOO_MANY: Final = -32010
DRAIN_S: Final = 0.2
"""How long the end waits for requests that are open: the answers to a script's last lines."""
_LOOK_S: Final = 0.005
_READ_BYTES: Final = 64 * 1024
_EDGE_BYTES: Final = 256
_ID: Final = rb'"id":\s?(-?[0-9]{1,18}|"[^"\\]{1,100}")'
_ID_FIRST: Final = re.compile(rb'\{"jsonrpc":\s?"2\.0",\s?' + _ID + rb",")
_ID_LAST: Final = re.compile(rb',\s?"jsonrpc":\s?"2\.0",\s?' + _ID + rb"\}\s*\Z")

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]
Id = int | str | None


@dataclass(frozen=True)
class TooLong:
    """A line beyond the bound: its first and last bytes, in which clients write the id."""

    first: bytes
    last: bytes

    @property
    def request_id(self) -> Id:
        found = _ID_FIRST.match(self.first) or _ID_LAST.search(self.last)
        return None if found is None else _as_id(json.loads(found[1]))


@dataclass(frozen=True)
class Refusal:
    """The answer to a line that goes no further."""

    error: JSONRPCError


class Lines:
    """Cuts what comes in into lines, holding at most one of them."""

    def __init__(self, most_bytes: int = MOST_LINE_BYTES) -> None:
        self._most = most_bytes
        self._held = bytearray()
        self._long: bytes | None = None
        """The start of a line that was found too long; `_held` is then its end so far."""

    def feed(self, data: bytes) -> Iterator[bytes | TooLong]:
        """The lines that `data` ends."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._add(part)
            yield self._take()
        self._add(rest)

    def end(self) -> Iterator[bytes | TooLong]:
        """The last line, if no line feed ended it."""
        if self._held or self._long is not None:
            yield self._take()

    def _add(self, part: bytes) -> None:
        self._held += part
        if self._long is None and len(self._held) > self._most:
            self._long = bytes(self._held[:_EDGE_BYTES])
        if self._long is not None:
            del self._held[:-_EDGE_BYTES]

    def _take(self) -> bytes | TooLong:
        held, first = bytes(self._held), self._long
        self._held.clear()
        self._long = None
        return held if first is None else TooLong(first, held)


class Gate:
    """Turns lines into messages and keeps the open requests. Belongs to the loop."""

    def __init__(self) -> None:
        self._open: set[str] = set()

    def read(self, line: bytes | TooLong) -> JSONRPCMessage | Refusal | None:
        """The message of a line, or None for an empty one."""
        if isinstance(line, TooLong):
            what = f"a message has at most {MOST_LINE_BYTES} bytes"
            return _refuse(line.request_id, INVALID_REQUEST, what)
        if not line.strip():
            return None
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            return _unreadable(line)
        if isinstance(message, JSONRPCNotification) and _names_an_id(line):
            what = "the id of a request is a text or a whole number"  # the SDK passes it over
            return _refuse(None, INVALID_REQUEST, what)
        return self._admit(message)

    def answered(self, message: JSONRPCMessage) -> None:
        """A message went out: if it answers a request, its id is free again."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._open.discard(str(message.id))

    async def drained(self, within_s: float) -> None:
        """Wait for the open requests to be answered, `within_s` at most."""
        try:
            async with asyncio.timeout(within_s):
                while self._open:
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            pass

    def _admit(self, message: JSONRPCMessage) -> JSONRPCMessage | Refusal:
        if isinstance(message, JSONRPCNotification):
            if message.method == "notifications/cancelled":  # it will not be answered
                self._open.discard(str((message.params or {}).get("requestId")))
        elif isinstance(message, JSONRPCRequest):
            name = str(message.id)  # the SDK too holds 7 and "7" to be one
            if name in self._open:  # answered without an id: with it, the first would be
                return _refuse(None, INVALID_REQUEST, f"request {name[:80]} is still open")
            if len(self._open) >= MOST_OPEN:
                return _refuse(message.id, TOO_MANY, f"{MOST_OPEN} requests are open")
            self._open.add(name)
        return message


@asynccontextmanager
async def stdio(at_end: Callable[[], None]) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """The two streams of a server on this process's standard input and output.

    `at_end` is called, in a thread, when the input has ended or nobody reads the output.
    """
    reading, writing = claim_standard_streams()
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    pipe = _Pipe(reading, writing, to_server, outgoing.clone(), at_end)
    writer = asyncio.create_task(pipe.write(from_server))
    threading.Thread(
        target=pipe.read, args=(asyncio.get_running_loop(),), name="mcp stdin", daemon=True
    ).start()
    try:
        yield incoming, outgoing
    finally:
        pipe.close()
        await asyncio.gather(writer, return_exceptions=True)


class _Pipe:
    """Both directions of one connection."""

    def __init__(
        self,
        reading: int,
        writing: int,
        to_server: MemoryObjectSendStream[SessionMessage | Exception],
        answers: Outgoing,
        at_end: Callable[[], None],
    ) -> None:
        self._reading = reading
        self._writing = writing
        self._to_server = to_server
        self._answers = answers
        self._at_end = at_end
        self._gate = Gate()

    def close(self) -> None:
        self._answers.close()
        self._to_server.close()

    # -- in: a thread, and the loop ----------------------------------------------------------

    def read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read to the end of the input. Each line waits until the server took the one before."""
        lines = Lines()
        try:
            while data := os.read(self._reading, _READ_BYTES):
                for line in lines.feed(data):
                    asyncio.run_coroutine_threadsafe(self._deliver(line), loop).result()
            for line in lines.end():
                asyncio.run_coroutine_threadsafe(self._deliver(line), loop).result()
        except (OSError, RuntimeError, asyncio.CancelledError):
            pass  # the same as the end: the input broke, or the server stopped taking
        finally:
            self._at_end()
            try:
                asyncio.run_coroutine_threadsafe(self._end(), loop)
            except RuntimeError:
                pass  # the loop is closed: all is over

    async def _end(self) -> None:
        """Let the server know that nothing more comes, once what came is answered."""
        await self._gate.drained(DRAIN_S)
        self._to_server.close()

    async def _deliver(self, line: bytes | TooLong) -> None:
        message = self._gate.read(line)
        try:
            if isinstance(message, Refusal):
                await self._answers.send(SessionMessage(message.error))
            elif message is not None:
                await self._to_server.send(SessionMessage(message))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the server ended meanwhile

    # -- out: the loop, and a thread ---------------------------------------------------------

    async def write(self, from_server: MemoryObjectReceiveStream[SessionMessage]) -> None:
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, "mcp stdout")
        try:
            async for item in from_server:
                line = _encode(item.message)
                self._gate.answered(item.message)
                await loop.run_in_executor(thread, write_all, self._writing, line)
        except OSError:
            self._at_end()  # nobody reads any more
        finally:
            from_server.close()
            thread.shutdown(wait=False, cancel_futures=True)


def claim_standard_streams() -> tuple[int, int]:
    """Private descriptors of input and output. What else uses 0 and 1 meets nothing, and
    standard error."""
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return reading, writing


def write_all(fd: int, data: bytes) -> None:
    """Write everything, also to a pipe that somebody made non-blocking. Raises OSError."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            import select

            select.select([], [fd], [])


def _encode(message: JSONRPCMessage) -> bytes:
    try:
        text = message.model_dump_json(by_alias=True, exclude_unset=True)
    except ValueError:  # an answer that is no JSON, such as one with half a pair of Unicode
        request_id = getattr(message, "id", None)
        failed = _error(request_id, INTERNAL_ERROR, "the answer cannot be encoded")
        text = failed.model_dump_json(by_alias=True, exclude_unset=True)
    return text.encode() + b"\n"


def _unreadable(line: bytes) -> Refusal:
    """The answer to a line that is no message."""
    try:
        line.decode()
        value = json.loads(line)
    except UnicodeDecodeError:
        return _refuse(None, PARSE_ERROR, "a message is valid UTF-8")
    except (ValueError, RecursionError):
        return _refuse(None, PARSE_ERROR, "a message is one line of JSON")
    if not isinstance(value, dict):
        return _refuse(None, INVALID_REQUEST, "a message is a JSON object; there are no batches")
    what = "this is no JSON-RPC 2.0 message, or holds half a pair of Unicode"
    return _refuse(_as_id(value.get("id")), INVALID_REQUEST, what)


def _names_an_id(line: bytes) -> bool:
    """Whether a line that passed for a notification has an id after all, if none that counts."""
    try:
        return "id" in json.loads(line)
    except (ValueError, RecursionError):  # numbers of thousands of digits
        return True


def _as_id(value: object) -> Id:
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _refuse(request_id: Id, code: int, message: str) -> Refusal:
    return Refusal(_error(request_id, code, message))


def _error(request_id: Id, code: int, message: str) -> JSONRPCError:
    return JSONRPCError(
        jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=f"airlox: {message}")
    )
