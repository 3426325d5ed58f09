"""One use of a tool: its arguments, its caller, and the time it has.

What every tool does alike is here: finding its session, making calls that end in time, saying
which call to make next after an error, and keeping owners' links out of every answer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airlox.errors import AirloxError, UsageError
from airlox.mcp.shapes import in_our_words
from airlox.mcp.tool import Answer
from airlox.mcp.workers import cancelled, wait_for

if TYPE_CHECKING:
    from airlox.client.session import Session
    from airlox.mcp.desk import Desk
    from airlox.mcp.sessions import Place
    from airlox.mcp.tool import Caller
    from airlox.protocol.view import Item

WAIT_S: Final = 45
"""What a call may take unless it says otherwise: with `GRACE_S` it answers well before common
clients give up, after a minute."""
LONGEST_WAIT_S: Final = 600
GRACE_S: Final = 4.0
"""How much longer than it was asked to wait a call may take."""

NEXT: Final = {
    "ambiguous_runner": "list_runners gives their keys: name one by its key",
    "bad_input": "list_items gives the ids of files; send_file sends one",
    "connection_lost": "make the call again in a while; if it stays away, tell the user",
    "cut_off": "tell the user; join_session with a new link goes on",
    "cancelled": "nobody waits for an answer any more",
    "file_type": "send_file takes .py .md .zip .png .jpg .webp: pack other files into a .zip",
    "limit": "send less at once: a long text can go as a .md file with send_file",
    "needs_full_session": "create_session with execute and shell",
    "no_jobs": "create_session with execute makes one that takes jobs",
    "no_machine": "ask the user for its name, or to run: airlox machine add NAME",
    "no_runner_available": "list_runners shows who is online, approved and free",
    "no_such_item": "list_items gives the ids",
    "no_such_participant": "session_info shows who is here: name one by its key",
    "no_such_job": "run and run_python give the id; list_items lists jobs",
    "no_such_runner": "list_runners gives names and keys",
    "participant_left": "session_info shows who is here",
    "runner_busy": "make the call again when a job has ended; list_runners shows who is free",
    "runner_not_approved": "ask the user whether to approve_runner it",
    "session_closed": "it is over: join_session or create_session another",
    "session_gone": "it is over: join_session or create_session another",
    "tree_credentials": "leave them out with tree_exclude",
    "tree_root": "give tree_dir the folder of a project",
}
"""The next call after an error, where the client's own hint is meant for the command line."""

GENERAL: Final = "mend the call and make it again; session_info shows what the session allows"
"""Where there is no other hint."""
HIDDEN: Final = "[an owner's key]"
_PIECE_CHARS: Final = 8
"""A text that was cut may hold a part of a key: so many characters in a row give it away."""

T = TypeVar("T")


class Use:
    """See the module's text. Belongs to one thread, but for `tell`."""

    def __init__(self, desk: Desk, arguments: dict[str, Any], caller: Caller) -> None:
        self.desk = desk
        self.arguments = arguments
        self.caller = caller
        wait_s = arguments.get("wait_s")
        self._until = time.monotonic() + (WAIT_S if wait_s is None else wait_s)

    def __getitem__(self, name: str) -> Any:
        """An argument; None where it was left out."""
        return self.arguments.get(name)

    @property
    def left_s(self) -> float:
        """What is left of the time the caller means to wait."""
        return max(0.0, self._until - time.monotonic())

    @property
    def limit_s(self) -> float:
        """What is left until the call must answer."""
        return self.left_s + GRACE_S

    def do(self, doing: str, work: Callable[[], T]) -> T:
        """What comes of `work`, as long as the call has time. Raises WaitTimeout and what `work`
        raises."""
        if self.caller.cancelled:
            raise cancelled()
        return wait_for(self.desk.workers.start(work), self.limit_s, self.caller, doing)

    def place(self) -> Place:
        """The session of the call. Raises UsageError, and as `Session.join`."""
        name = self.caller.client_name
        return self.do("opening the session", lambda: self.desk.sessions.get(self["session"], name))

    def owned_place(self, what: str) -> Place:
        """The session of the call, which must be one's own. Raises PolicyError, and as `place`."""
        from airlox.protocol.keys import Role
        from airlox.protocol.policy import check_may

        place = self.place()
        check_may(Role(place.session.role), Role.OWNER, what=what)
        return place

    def confirm(self, title: str, question: str) -> None:
        """Ask the person, where the client can. Raises UsageError when they say no."""
        if self.caller.ask(self._clean(question), title=title) is False:
            raise UsageError(
                f"the user declined: {title}",
                code="declined",
                hint="do not try again unless the user asks for it",
            )

    def tell(self, text: str) -> None:
        """Tell how far it is; from any thread."""
        self.caller.progress(self._clean(text))

    # -- what leaves -------------------------------------------------------------------------

    def advised(self, error: AirloxError) -> AirloxError:
        """An error with the next call as its hint, and without secrets."""
        hint = in_our_words(NEXT.get(error.code) or error.hint or GENERAL)
        error.message = self._clean(error.message)
        error.hint = self._clean(hint)
        error.args = (error.message,)
        return error

    def checked(self, answer: Answer) -> Answer:
        """An answer without the key of any session's owner, whoever wrote it into what is told."""
        return Answer(self._clean(answer.structured), self._clean(answer.text), answer.is_error)

    def _clean(self, value: T) -> T:
        cleaned: T = _without(value, self.desk.sessions.owner_keys())
        return cleaned


def find_item(session: Session, item_id: str) -> Item:
    """The item of an id. Raises UsageError when there is none to be had."""
    item = session.item(item_id)
    if item is None:
        raise UsageError(
            f"no item {item_id[:40]!r} can be had in this session", code="no_such_item"
        )
    return item


def _without(value: Any, secrets: list[str]) -> Any:
    match value:
        case str():
            for secret in secrets:
                value = _hide(value, secret)
            return value
        case dict():
            return {_without(k, secrets): _without(v, secrets) for k, v in value.items()}
        case list() | tuple():
            return [_without(each, secrets) for each in value]
        case _:
            return value


def _hide(text: str, secret: str) -> str:
    """A text without a secret, and without what a cut left of it."""
    starts = range(0, len(secret) - _PIECE_CHARS + 1, _PIECE_CHARS)
    pieces = [secret[start : start + _PIECE_CHARS] for start in starts] or [secret]
    told, done = [], 0
    for found in re.finditer("|".join(map(re.escape, pieces)), text):
        first, last = found.span()
        if first < done:
            continue
        before, _, after = secret.partition(found[0])
        reach = text[max(done, first - len(before)) : first]
        first -= _alike(reach[::-1], before[::-1])
        told += [text[done:first], HIDDEN]
        done = last + _alike(text[last : last + len(after)], after)
    return "".join((*told, text[done:]))


def _alike(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
