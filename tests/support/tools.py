"""The MCP tools at work without a protocol: a desk, a caller that records, and every answer kept.

`Bench.call` checks arguments and answers against the tool's schemas, as a client would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import jsonschema

from airlox.errors import AirloxError
from airlox.mcp.desk import Desk, DeskOptions
from airlox.mcp.tool import Answer
from airlox.mcp.tools import TOOLS

Shape = dict[str, Any]
BY_NAME = {tool.name: tool for tool in TOOLS}


class RecordingCaller:
    """One call's other side. `answers` are what the person says, by the title of the question."""

    def __init__(self, answers: Mapping[str, bool] | None = None, key: str | None = None) -> None:
        self.client_name = "test-client"
        self.idempotency_key = key
        self.told: list[str] = []
        self.asked: list[str] = []
        self.cancelled = False
        self._answers = answers
        self._stops: list[Callable[[], None]] = []
        self.on_progress: Callable[[str], None] = lambda text: None

    def progress(self, text: str) -> None:
        self.told.append(text)
        self.on_progress(text)

    def ask(self, question: str, *, title: str) -> bool | None:
        self.asked.append(f"{title}: {question}")
        return None if self._answers is None else self._answers[title]

    def on_cancel(self, stop: Callable[[], None]) -> None:
        self._stops.append(stop)
        if self.cancelled:
            stop()

    def cancel(self) -> None:
        self.cancelled = True
        for stop in list(self._stops):
            stop()


class Bench:
    """A desk and what it answered. A context manager."""

    def __init__(self, folder: Path, **options: Any) -> None:
        """`folder` holds the cache and, unless `allow_dirs` says otherwise, the allowed `work`."""
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        given = {"cache_dir": str(folder / "cache"), "allow_dirs": (str(self.work),), **options}
        self.desk = Desk(DeskOptions(**given))
        self.said: list[str] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.desk.close()

    def answer(self, name: str, caller: RecordingCaller | None = None, **arguments: Any) -> Answer:
        """The whole answer of a tool."""
        tool = BY_NAME[name]
        jsonschema.validate(arguments, tool.input_schema)
        try:
            answer = tool.run(self.desk, arguments, caller or RecordingCaller())
        except AirloxError as error:
            self.said.append(str(error))
            raise
        self.said += [answer.text, json.dumps(answer.structured)]
        jsonschema.validate(answer.structured, tool.output_schema)
        return answer

    def call(self, name: str, caller: RecordingCaller | None = None, **arguments: Any) -> Shape:
        """The structured part of an answer."""
        return self.answer(name, caller, **arguments).structured

    def owner_link(self, handle: str) -> str:
        """What must be in no answer."""
        link: str = self.desk.sessions.get(handle, "test").session.invites["owner"]
        return link
