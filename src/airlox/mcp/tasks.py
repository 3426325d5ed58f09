"""The tasks extension (`io.modelcontextprotocol/tasks`): calls that a client comes back for.

A call of a slow tool whose client offers the extension is answered with a task when it is not
done after a moment. The client polls with `tasks/get`, answers questions with `tasks/update` and
ends it with `tasks/cancel`. Results are kept for `TTL_MS` from the start of a task; when the table
is full of younger ones, calls are answered as for clients without the extension.

Ids are unguessable: whoever knows one may read the result.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS
from mcp_types.jsonrpc import HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY

from airlox.errors import AirloxError
from airlox.mcp.asking import Question, said_yes
from airlox.mcp.calls import BUG, Call
from airlox.mcp.results import elicitation, result_of

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp_types import ClientCapabilities

    from airlox.mcp.calls import Calls, Outcome

EXTENSION: Final = "io.modelcontextprotocol/tasks"
GRACE_S: Final = 0.25
"""A call that ends so soon is answered at once, without a task."""
TTL_MS: Final = 3_600_000
POLL_MS: Final = 1000
MOST_TASKS: Final = 64


@dataclass
class Task:
    """A call with an id. Everything but `ask` belongs to the loop."""

    id: str
    call: Call
    created_ms: int
    updated_ms: int
    cancelled: bool = False
    asked: dict[str, tuple[Question, Future[bool | None]]] = field(default_factory=dict)

    def ask(self, question: Question) -> Future[bool | None]:
        """The asker of a task: the question waits for `tasks/update`. Called in any thread."""
        answer: Future[bool | None] = Future()
        self.asked[question.key] = question, answer
        self.updated_ms = _now_ms()
        return answer

    def head(self) -> dict[str, Any]:
        """What every answer about a task says first."""
        return {
            "taskId": self.id,
            "status": self.status(),
            "createdAt": _timestamp(self.created_ms),
            "lastUpdatedAt": _timestamp(self.updated_ms),
            "ttlMs": TTL_MS,
            "pollIntervalMs": POLL_MS,
        }

    def status(self) -> str:
        if self.cancelled:
            return "cancelled"
        if self.call.outcome.done():
            return "failed" if _is_bug(self.call.outcome.result()) else "completed"
        return "input_required" if self.asked else "working"


class Tasks:
    """All tasks of a server, and the extension's three methods. Belongs to the loop."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._tasks: dict[str, Task] = {}

    def adopt(self, call: Call) -> dict[str, Any] | None:
        """Make a running call a task: the result that says so, or None where it stays a call."""
        known = [task for task in self._tasks.values() if task.call is call and not task.cancelled]
        if known:  # a repeated call means the task that it made before
            return {"resultType": "task", **known[0].head()}
        self._drop_old()
        if len(self._tasks) >= MOST_TASKS:
            return None
        now_ms = _now_ms()
        task = Task(secrets.token_urlsafe(18), call, now_ms, now_ms)
        if not call.become(task.ask):
            return None
        call.watchers += 1
        call.outcome.add_done_callback(lambda _: self._ended(task))
        self._tasks[task.id] = task
        return {"resultType": "task", **task.head()}

    async def get(self, ctx: ServerRequestContext[Any, Any], _: Any) -> dict[str, Any]:
        task = self._find(ctx)
        answer = {"resultType": "complete", **task.head()}
        match answer["status"]:
            case "completed":
                result = result_of(task.call.outcome.result(), ctx.protocol_version)
                answer["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
            case "failed":
                answer["error"] = {"code": INTERNAL_ERROR, "message": "the tool has a bug"}
            case "input_required":
                asked = list(task.asked.items())
                answer["inputRequests"] = {key: _request(question) for key, (question, _) in asked}
            case "working" if task.call.news.text:
                answer["statusMessage"] = task.call.news.text
        return answer

    async def update(self, ctx: ServerRequestContext[Any, Any], _: Any) -> dict[str, Any]:
        task = self._find(ctx)
        responses = (ctx.params or {}).get("inputResponses")
        if not isinstance(responses, Mapping):
            raise MCPError(INVALID_PARAMS, "inputResponses is an object of answers by their keys")
        for key, response in responses.items():
            found = task.asked.pop(key, None)
            if found is not None:
                _settle(found[1], said_yes(response))
                task.updated_ms = _now_ms()
        return {"resultType": "complete"}

    async def cancel(self, ctx: ServerRequestContext[Any, Any], _: Any) -> dict[str, Any]:
        task = self._find(ctx)
        if not task.cancelled and not task.call.outcome.done():
            task.cancelled, task.updated_ms = True, _now_ms()
            self._calls.leave(task.call)
        return {"resultType": "complete"}

    def _find(self, ctx: ServerRequestContext[Any, Any]) -> Task:
        """The task a request is about. Raises MCPError."""
        if not offered(ctx.session.client_capabilities):
            raise MCPError(
                MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"{ctx.method} is for clients that declare {EXTENSION}",
                {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )
        name = (ctx.params or {}).get("taskId")
        header = None if ctx.request is None else ctx.request.headers.get("mcp-name")
        if header is not None and header != name:
            raise MCPError(HEADER_MISMATCH, "the header Mcp-Name is not params.taskId")
        task = self._tasks.get(name) if isinstance(name, str) else None
        if task is None:
            raise MCPError(INVALID_PARAMS, "there is no such task, or no longer")
        return task

    def _ended(self, task: Task) -> None:
        task.asked.clear()
        if not task.cancelled:
            task.updated_ms = _now_ms()
            self._calls.leave(task.call)

    def _drop_old(self) -> None:
        past_ms = _now_ms() - TTL_MS
        for task in list(self._tasks.values()):
            if task.created_ms < past_ms and task.call.outcome.done():
                del self._tasks[task.id]


def offered(capabilities: ClientCapabilities | None) -> bool:
    """Whether a client declares the extension."""
    extensions = None if capabilities is None else capabilities.extensions
    return extensions is not None and EXTENSION in extensions


def _request(question: Question) -> dict[str, Any]:
    return elicitation(question).model_dump(by_alias=True, mode="json", exclude_none=True)


def _is_bug(outcome: Outcome) -> bool:
    return isinstance(outcome, AirloxError) and outcome.code == BUG


def _settle(answer: Future[bool | None], value: bool) -> None:
    try:
        answer.set_result(value)
    except InvalidStateError:
        pass  # the call was cancelled, or waited long enough


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _timestamp(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
