"""Threads that make the calls a tool waits for, so that no tool waits longer than it may.

A relay that does not answer must not hold a tool up: the call goes on in its thread, which ends
by the client's own time-outs, and the tool says what to do next. Their number is bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeVar

from airlox.errors import AirloxError, UsageError, WaitTimeout

if TYPE_CHECKING:
    from airlox.mcp.tool import Caller

MOST: Final = 64
JOIN_S: Final = 5.0

T = TypeVar("T")


class Workers:
    """Starts threads and knows them until they end. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[threading.Thread] = set()

    def start(self, work: Callable[[], T]) -> Future[T]:
        """Have `work` done. Raises UsageError while too much of it is still going on."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)
            finally:
                with self._lock:
                    self._running.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="airlox-call", daemon=True)
        with self._lock:
            if len(self._running) >= MOST:
                raise UsageError(
                    f"{MOST} calls are still waiting for a relay",
                    code="busy",
                    hint="wait a minute, then make the call again",
                )
            self._running.add(thread)
        thread.start()
        return done

    def join(self, within_s: float = JOIN_S) -> None:
        """Wait for what still runs, `within_s` at most."""
        with self._lock:
            threads = list(self._running)
        for thread in threads:
            thread.join(within_s / len(threads))


def wait_for(done: Future[T], seconds: float, caller: Caller, doing: str) -> T:
    """What comes of the work, which goes on in its thread when it takes longer.

    Raises what it raised, WaitTimeout after `seconds`, and `cancelled` at once when the call is.
    """
    wake = threading.Event()
    done.add_done_callback(lambda _: wake.set())
    caller.on_cancel(wake.set)
    wake.wait(seconds)
    if done.done():
        return done.result()
    if caller.cancelled:
        raise cancelled()
    raise WaitTimeout(
        f"{doing} takes longer than {seconds:.0f} s: the relay may be out of reach",
        code="slow",
        hint="look first whether it was done (session_info, list_items), then try again",
    )


def cancelled() -> AirloxError:
    return AirloxError("the call was cancelled", code="cancelled")
