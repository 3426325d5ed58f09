"""What a tool is: its description for a model, and a blocking function.

Tools know nothing of the protocol that carries them. A call gets the desk (what lasts over
calls), arguments that fit its input schema, and a `Caller`; it gives an `Answer` or raises
AirloxError, whose `hint` says which call to make next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from airlox.mcp.desk import Desk

    Shape = dict[str, Any]


@dataclass(frozen=True)
class Hints:
    """What a client may know before it calls a tool; the protocol's four annotations."""

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool


@dataclass(frozen=True)
class Answer:
    """`structured` fits the output schema; `text` is short and for people."""

    structured: dict[str, Any]
    text: str
    is_error: bool = False


class Caller(Protocol):
    """One call, as the server sees it. Every method may be called from the tool's thread."""

    @property
    def client_name(self) -> str:
        """The client's own name for itself, such as `claude-code`."""

    @property
    def idempotency_key(self) -> str | None:
        """Calls with the same key are one call that was repeated."""

    def progress(self, text: str) -> None:
        """Tell how far it is, in a few words; nothing happens where nobody asked."""

    def ask(self, question: str, *, title: str) -> bool | None:
        """The person's answer; None where the client cannot ask. To be called before any side
        effect: it may end the call, which is then made again with the answer."""

    def on_cancel(self, stop: Callable[[], None]) -> None:
        """Have `stop` called, in any thread, when the call is cancelled; at once if it was."""

    @property
    def cancelled(self) -> bool: ...


@dataclass(frozen=True)
class Tool:
    """One tool. The schemas are JSON Schema 2020-12; `slow` ones may take up to their `wait_s`."""

    name: str
    title: str
    description: str
    hints: Hints
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    run: Callable[[Desk, dict[str, Any], Caller], Answer]
    slow: bool = False
