"""A server on the product's protocol layer, with tools that do what tests need.

`python -m support.mcp_fixture` serves on standard streams, with `http` over HTTP: with a folder
behind it for the token, else without one. What the server does apart from answering is written to
its standard error, one line each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from airlox.errors import UsageError
from airlox.mcp.tool import Answer, Caller, Hints, Tool

HINTS = Hints(read_only=False, destructive=False, idempotent=False, open_world=False)
TEXT = {"type": "string", "description": "a text", "maxLength": 100}
Run = Callable[["Desk", dict[str, Any], Caller], Answer]


class Desk:
    """Counts what was done."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done = 0

    def close(self, within_s: float) -> None:
        note("desk closed")


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def answer(text: str, **structured: Any) -> Answer:
    return Answer({"text": text, **structured}, text)


def echo(desk: Desk, arguments: dict[str, Any], caller: Caller) -> Answer:
    return answer(arguments["text"], client=caller.client_name)


def count(desk: Desk, arguments: dict[str, Any], caller: Caller) -> Answer:
    """Something that must be done once."""
    with desk.lock:
        desk.done += 1
        return answer(f"{desk.done}", count=desk.done)


def work(desk: Desk, arguments: dict[str, Any], caller: Caller) -> Answer:
    """Goes on until it is cancelled or `seconds` have passed, and tells how far it is."""
    stop = threading.Event()
    caller.on_cancel(stop.set)
    note("work begun")
    seconds = arguments.get("seconds", 60)
    ends_s = time.monotonic() + seconds
    step = 0
    while not stop.wait(min(0.05, max(0.0, ends_s - time.monotonic()))):
        step += 1
        caller.progress(f"step {step}\nof \x1b[31mmany")
        if time.monotonic() >= ends_s:
            return answer("worked", key=caller.idempotency_key)
    note("work stopped")
    return answer("stopped")


def stuck(desk: Desk, arguments: dict[str, Any], caller: Caller) -> Answer:
    """Neither answers nor stops, as a tool must not."""
    note("stuck")
    threading.Event().wait()
    return answer("never")


def confirm(desk: Desk, arguments: dict[str, Any], caller: Caller) -> Answer:
    """Asks twice before it does something."""
    first = caller.ask(f"Do {arguments['what']}?", title="Do it")
    second = caller.ask("Really?", title="Really") if first else None
    with desk.lock:
        desk.done += 1
    return answer(f"{first} {second}", first=first, second=second, done=desk.done)


def fail(desk: Desk, arguments: dict[str, Any], caller: Caller) -> Answer:
    kind = arguments["kind"]
    if kind == "error":
        raise UsageError("it cannot be", code="cannot", hint="call echo")
    if kind == "half":
        return answer("half a pair: \ud83d", also="\ud83d")
    raise RuntimeError("a secret")


def child(desk: Desk, arguments: dict[str, Any], caller: Caller) -> Answer:
    """What a process that a tool starts has for its streams, and what a stray print does."""
    print("a stray print", flush=True)
    code = "import os,sys; print('a stray child'); sys.exit(len(os.read(0, 10)))"
    done = subprocess.run([sys.executable, "-c", code], timeout=60)
    return answer("printed", code=done.returncode)


def tool(name: str, run: Run, /, *, slow: bool = False, **arguments: dict[str, Any]) -> Tool:
    required = [each for each in arguments if each not in ("wait_s", "seconds")]
    return Tool(
        name=name,
        title=name.title(),
        description=f"{name} for tests",
        hints=HINTS,
        input_schema={
            "type": "object",
            "properties": arguments,
            "required": required,
            "additionalProperties": False,
        },
        output_schema={"type": "object", "properties": {"text": {"type": "string"}}},
        run=run,  # type: ignore[arg-type]  # its desk is not the product's
        slow=slow,
    )


SECONDS = {"type": "number", "minimum": 0, "maximum": 600, "description": "how long"}
WAIT = {**SECONDS, "default": 45}

TOOLS = (
    tool("work", work, slow=True, seconds=SECONDS, wait_s=WAIT),
    tool("echo", echo, text=TEXT),
    tool("count", count),
    tool("stuck", stuck, wait_s=WAIT),
    tool("confirm", confirm, what=TEXT),
    tool("fail", fail, kind={"enum": ["error", "bug", "half"], "description": "how"}),
    tool("child", child),
)


def told(url: str, token_file: str | None) -> None:
    note(f"serving on {url}")
    note(f"token in {token_file}")


def main() -> None:
    from airlox.mcp.life import serve_stdio

    parent = os.getppid()
    if sys.argv[1:2] == ["http"]:
        from airlox.mcp.http import serve_http

        folder = sys.argv[2] if len(sys.argv) > 2 else None
        serve_http(TOOLS, Desk(), port=0, token_dir=folder, on_ready=told)  # type: ignore[arg-type]
    else:
        serve_stdio(TOOLS, Desk(), parent)  # type: ignore[arg-type]
    os._exit(0)


if __name__ == "__main__":
    main()
