"""The ASGI application: finds the route, answers errors. The only place that does the latter."""

from __future__ import annotations

import contextlib
import logging
from typing import Final

from airlox.protocol import wire
from airlox.relay.call import Call, Disconnected, Receive, Scope, Send
from airlox.relay.gates import Rate
from airlox.relay.refusals import Refusal, answer_for
from airlox.relay.relay import Relay
from airlox.relay.routes import find_code_route, find_route

log = logging.getLogger("airlox.relay")

LOGGED_AT_ONCE: Final = 20
LOGGED_PER_S: Final = 0.2
"""Refusals that are logged, for each code: a flood of them is not to fill the disk."""
_PREFIX = wire.SESSIONS + "/"
_CODES_PREFIX = wire.CODES + "/"


class App:
    def __init__(self, relay: Relay, version: str) -> None:
        self._relay = relay
        self._version = version
        self._logged = Rate(relay.core.clock, per_s=LOGGED_PER_S, burst=LOGGED_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        call = Call(scope, receive, send, self._relay.core.config)
        try:
            await self._dispatch(call)
        except Disconnected:
            pass
        except Exception as error:
            await self._answer_error(call, error)

    async def _dispatch(self, call: Call) -> None:
        path: str = call.scope["path"]
        find = find_route
        if path.startswith(_PREFIX):
            call.parts = path[len(_PREFIX) :].split("/")
        elif path.startswith(_CODES_PREFIX):
            call.parts = path[len(_CODES_PREFIX) :].split("/")
            find = find_code_route
        elif path == wire.HEALTH and call.method == "GET":
            await self._answer_health(call)
            return
        elif path != wire.SESSIONS:
            raise Refusal("not_found", "no such path")
        handler = find(call.method, call.parts)
        if handler is None:
            raise Refusal("not_found", "no such path, or not with this method")
        await handler(self._relay, call)

    async def _answer_health(self, call: Call) -> None:
        """`ok`, or 503 while nothing that is posted can be kept."""
        is_failing = self._relay.core.store.is_failing()
        word, status = ("disk_failed", 503) if is_failing else ("ok", 200)
        await call.answer_json({"status": word, "version": self._version}, status)

    async def _answer_error(self, call: Call, error: Exception) -> None:
        status, code, message, retry_after_s, limit = answer_for(error)
        if status >= 500 and self._logged.take(code):
            log.warning("refused", extra={"status": status, "code": code, "reason": message})
        if call.has_begun:
            # Half an answer cannot be taken back: the broken connection is the error.
            raise error
        with contextlib.suppress(Disconnected):
            more = {} if limit is None else {"limit": limit}
            body = {"error": code, "message": message, **more}
            await call.answer_json(body, status, retry_after_s)
