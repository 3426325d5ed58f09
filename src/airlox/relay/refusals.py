"""Why the relay says no, and the one place where that becomes an HTTP status and a code."""

from __future__ import annotations

import logging
import math
from typing import Final, NamedTuple

from airlox.errors import AirloxError, PolicyError, ProtocolError, StorageError
from airlox.protocol.wire import STATUS_OF

log = logging.getLogger("airlox.relay")


class Refusal(AirloxError):
    """A request the relay does not carry out; `code` is one of `wire.STATUS_OF`.

    `setting` is the limit that was met, as its operator would give it; `retry_s` says after how
    long the same request may be carried out, where waiting helps. The message has both: old
    clients show nothing else. `limit` names what of the request may be how much at most, for a
    client that can ask for less.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        setting: str | None = None,
        retry_s: float | None = None,
        limit: dict[str, int] | None = None,
    ) -> None:
        if setting is not None:
            message += f" ({setting})"
        self.retry_after_s = None if retry_s is None else max(1, math.ceil(retry_s))
        if self.retry_after_s is not None:
            message += f"; try again in {self.retry_after_s} s"
        self.limit = limit
        super().__init__(message, code=code)


class Answer(NamedTuple):
    status: int
    code: str
    message: str
    retry_after_s: int | None = None
    limit: dict[str, int] | None = None


_AT_ONCE_S: Final = 1
_STORAGE: Final = {
    "full": Refusal("full", "the relay has no room left; its operator must make some"),
    "busy": Refusal(
        "busy",
        "too much of all sessions waits for the relay's disk",
        setting="--max-pending-bytes",
        retry_s=_AT_ONCE_S,
    ),
    "not_found": Refusal("evicted", "the bytes are not on the relay"),
    "failed": Refusal(
        "disk_failed",
        "the relay's disk failed, and it takes nothing new until its operator has seen to it; "
        "its log says why",
    ),
}
_DISK_TROUBLE: Final = Refusal(
    "busy", "the relay's disk failed this time; its log says why", retry_s=_AT_ONCE_S
)


def answer_for(error: Exception) -> Answer:
    """Status, code and message of an error. One that nobody foresaw is logged and told to nobody.

    A ProtocolError that arrives here is about a document the caller sent.
    """
    if isinstance(error, PolicyError):
        error = Refusal(error.code if error.code in STATUS_OF else "policy", error.message)
    elif isinstance(error, ProtocolError):
        error = Refusal("bad_request", error.message)
    elif isinstance(error, StorageError):
        error = _STORAGE.get(error.code, _DISK_TROUBLE)
    if isinstance(error, Refusal):
        status = STATUS_OF[error.code]
        return Answer(status, error.code, error.message, error.retry_after_s, error.limit)
    log.error("request failed", exc_info=error)
    return Answer(500, "error", "the relay failed; its log says why")


def refuse(code: str, error: ProtocolError) -> Refusal:
    """The refusal of a document that does not verify; policy keeps its own code."""
    if isinstance(error, PolicyError):
        return Refusal(error.code if error.code in STATUS_OF else "policy", error.message)
    return Refusal(code, error.message)
