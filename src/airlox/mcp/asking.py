"""Questions to the person, through whatever way the client has.

| the client speaks              | way                                                             |
|--------------------------------|-----------------------------------------------------------------|
| 2026-07-28, can ask            | the call ends with the question and is repeated with the answer |
| the same, the call is a task   | the task waits, `tasks/update` brings the answer                |
| an older revision, can ask     | a request to the client, while the call waits                   |
| any revision, cannot ask       | nobody is asked: the tool gets None                             |

An answer counts for exactly the question that was put: it is bound to the question's words, and
by the SDK's sealed state to the call's name and arguments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

ASK_S: Final = 300.0
"""How long a person may take; a call's own time does not run meanwhile."""
FIELD: Final = "confirm"
_STATE_CHARACTERS: Final = 64 * 1024


@dataclass(frozen=True)
class Question:
    """A question that yes or no answers."""

    title: str
    text: str

    @property
    def key(self) -> str:
        """Names the question by its words."""
        return "q" + hashlib.sha256(f"{self.title}\0{self.text}".encode()).hexdigest()[:20]

    def schema(self) -> dict[str, Any]:
        """What the client shows a form for."""
        field = {"type": "boolean", "title": self.title, "default": False}
        return {"type": "object", "properties": {FIELD: field}, "required": [FIELD]}


class Unanswered(BaseException):
    """Ends a call that must be repeated with the answer. Not an Exception: no tool catches it."""

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = question


Asker = Callable[[Question], "Future[bool | None]"]
"""Puts a question, from any thread. May raise Unanswered instead."""


def settled(answer: bool | None) -> Future[bool | None]:
    future: Future[bool | None] = Future()
    future.set_result(answer)
    return future


def nobody(question: Question) -> Future[bool | None]:
    """The asker of clients that cannot ask."""
    return settled(None)


@dataclass(frozen=True)
class Answers:
    """The asker of calls that are repeated: what was answered so far."""

    given: Mapping[str, bool]

    def __call__(self, question: Question) -> Future[bool | None]:
        if question.key not in self.given:
            raise Unanswered(question)
        return settled(self.given[question.key])

    def state(self, question: Question) -> str:
        """What the repeated call brings back: earlier answers, and what is being asked."""
        return json.dumps({"given": dict(self.given), "asked": question.key})

    @classmethod
    def of(cls, state: str | None, responses: Mapping[str, Any] | None) -> Answers:
        """From a repeated call. Responses to what was not asked are passed over."""
        if state is None or len(state) > _STATE_CHARACTERS:
            return cls({})
        kept = json.loads(state)
        given = dict(kept["given"])
        response = (responses or {}).get(kept["asked"])
        if response is not None:
            given[kept["asked"]] = said_yes(response)
        return cls(given)


def said_yes(response: Any) -> bool:
    """Whether a person agreed; anything but a clear yes is a no."""
    if not isinstance(response, Mapping):
        response = {"action": getattr(response, "action", None), "content": response.content}
    content = response.get("content")
    agreed = isinstance(content, Mapping) and content.get(FIELD) is True
    return response.get("action") == "accept" and agreed
