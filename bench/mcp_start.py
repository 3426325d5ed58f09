"""The MCP server's first reply, from the start of its process, beside the SDK's smallest server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.measure import BIN, Row, alternate, compile_first, folder, process

PEER = Path(__file__).with_name("mcp_peer.py")
REQUEST = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/list",
        "params": {
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        },
    }
)


def rows() -> list[Row]:
    compile_first()
    python = str(BIN / "python")
    with folder() as cache:
        ours, peer = alternate(
            lambda: first_reply([str(BIN / "airlox"), "mcp", "--cache-dir", str(cache)], cache),
            lambda: first_reply([python, str(PEER)], cache),
            times=15,
        )
    return [Row("airlox mcp, first reply", ours, peer, "ms", "the SDK's smallest server", "≤ 1.1")]


def first_reply(argv: Sequence[str], where: Path) -> None:
    """Start a server, ask for its tools, and end it when they are there."""
    pipe = subprocess.PIPE
    with process(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd=where) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        with server.stdin, server.stdout:
            server.stdin.write(f"{REQUEST}\n")
            server.stdin.flush()
            reply = json.loads(server.stdout.readline())
            if not reply["result"]["tools"]:
                raise RuntimeError(f"{argv[0]} lists no tools")
            server.kill()


if __name__ == "__main__":
    from bench.measure import report

    print(report(rows()))
