"""The real relay app, on uvicorn in a thread, on a free loopback port."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from airlox.relay.config import Config
from airlox.relay.server import RelayServer, bind, run

TIMEOUT_S = 30.0


class LiveRelay:
    """`with LiveRelay() as relay:` serves at `relay.url` until the block ends.

    `settings` are fields of the relay's Config; without `data` it keeps everything in memory.
    """

    def __init__(self, **settings: Any) -> None:
        config = Config(port=0, **settings)
        self.server = RelayServer(config, "test", bind(config))
        self.url = self.server.url
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LiveRelay:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S), "the relay did not start"
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.server.stop()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the relay did not stop"

    def _run(self) -> None:
        try:
            run(self.server, self._ready.set)
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()
