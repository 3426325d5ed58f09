"""A server as a child, spoken to in lines: what no client of the SDK would send."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from support.mcp_client import ROOT, TIMEOUT_S

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Lines:
    """What a process writes, read as it comes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._queue.put(line)
        self._queue.put(None)

    def join(self) -> None:
        self._thread.join(TIMEOUT_S)

    def next(self) -> bytes | None:
        """The next line, or None at the end."""
        return self._queue.get(timeout=TIMEOUT_S)

    def until(self, wanted: Callable[[bytes], bool]) -> bytes:
        while (line := self.next()) is not None:
            if wanted(line):
                return line
        raise AssertionError("the process ended without saying it")


class RawServer:
    """The fixture server, or another command, and lines to and from it."""

    def __init__(self, argv: list[str] | None = None, **options: Any) -> None:
        paths = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
        settings: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "env": os.environ | {"PYTHONPATH": paths},
        }
        self.process = subprocess.Popen(argv or self.argv(), **(settings | options))
        self.out = Lines(self.process.stdout) if self.process.stdout else None
        self.err = Lines(self.process.stderr) if self.process.stderr else None

    @staticmethod
    def argv() -> list[str]:
        """The fixture server."""
        return [sys.executable, "-m", "support.mcp_fixture"]

    def close(self) -> None:
        """End it, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT_S)
        if self.process.stdin is not None:
            self.process.stdin.close()
        for lines in (self.out, self.err):
            if lines is not None:
                lines.join()

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def ask(self, number: int | str, method: str, **params: Any) -> None:
        """A request of the newest revision."""
        document = {
            "jsonrpc": "2.0",
            "id": number,
            "method": method,
            "params": {"_meta": META, **params},
        }
        self.send(json.dumps(document).encode() + b"\n")

    def call(self, number: int | str, name: str, **arguments: Any) -> None:
        self.ask(number, "tools/call", name=name, arguments=arguments)

    def answer(self) -> Any:
        """The next message of the server."""
        assert self.out is not None
        line = self.out.next()
        assert line is not None, "the server ended"
        return json.loads(line)

    def said(self, text: str) -> None:
        """Wait for a line on standard error."""
        assert self.err is not None
        self.err.until(lambda line: line.strip() == text.encode())

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


@contextmanager
def raw_server(argv: list[str] | None = None, **options: Any) -> Iterator[RawServer]:
    server = RawServer(argv, **options)
    try:
        yield server
    finally:
        server.close()
