"""When a server on standard streams ends, and that it does.

It ends when its input does, when nobody reads its output, when it is told to (TERM, INT), and when
the process that started it is gone. Then calls are cancelled and connections closed; what has not
managed that after `END_S` is ended with the process.

The parent is watched besides the input because another process may hold the input open: a
sibling that inherited the pipe. PR_SET_PDEATHSIG would not do: it speaks of the parent's
*thread*, which may end long before the parent, and of nothing that happened before it was set.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from airlox.mcp.calls import Calls
from airlox.mcp.server import build, log_to_stderr
from airlox.mcp.stdio import stdio

if TYPE_CHECKING:
    from airlox.mcp.desk import Desk
    from airlox.mcp.tool import Tool

END_S: Final = 0.9
"""From the first sign of the end to the end of the process."""
LOOK_S: Final = 0.2
WIND_UP_S: Final = 0.25
"""For answers that are on their way."""
CLOSE_S: Final = 0.45
"""For cancelling calls and closing connections."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def serve_stdio(tools: Sequence[Tool], desk: Desk, parent: int) -> None:
    """Serve on standard input and output until the end. `parent` is who started this process,
    as it was found first thing."""
    asyncio.run(_serve(tools, desk, parent))


async def _serve(tools: Sequence[Tool], desk: Desk, parent: int) -> None:
    log_to_stderr()
    ending = Ending(asyncio.get_running_loop())
    ending.on_signals()
    ending.on_parents_death(parent)
    calls = Calls(desk)
    server = build(tools, calls)
    async with stdio(ending.begin) as (incoming, outgoing):
        serving = asyncio.create_task(
            server.run(incoming, outgoing, server.create_initialization_options())
        )
        over = asyncio.create_task(ending.wait())
        await asyncio.wait({serving, over}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({serving}, timeout=WIND_UP_S)
        over.cancel()
        serving.cancel()
        await calls.close(CLOSE_S)


class Ending:
    """The one way to the end of a process. `begin` may be called by anybody, more than once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._begun = False
        self._over = asyncio.Event()

    def begin(self) -> None:
        with self._lock:
            if self._begun:
                return
            self._begun = True
        timer = threading.Timer(END_S, os._exit, (0,))
        timer.daemon = True
        timer.start()
        try:
            self._loop.call_soon_threadsafe(self._over.set)
        except RuntimeError:
            pass  # the loop is closed: it is the end

    async def wait(self) -> None:
        await self._over.wait()

    def on_signals(self) -> None:
        """Let TERM and INT begin the end."""
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self.begin)

    def on_parents_death(self, parent: int) -> None:
        """Let the death of the process `parent`, which started this one, begin the end."""
        threading.Thread(
            target=watch_parent, args=(parent, self.begin), name="mcp parent", daemon=True
        ).start()


def watch_parent(parent: int, gone: Callable[[], None]) -> None:
    """Call `gone` when `parent` no longer is this process's parent. Blocks until then."""
    fd = _process_fd(parent)
    while os.getppid() == parent:
        if fd is None:
            time.sleep(LOOK_S)
        elif select.select([fd], [], [], LOOK_S * 10)[0]:
            break
    gone()


def _process_fd(process: int) -> int | None:
    """A descriptor that becomes readable when a process ends, where the system has such."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None
