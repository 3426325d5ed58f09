"""The session a command works in: joined by a link, or made anew.

What is wished for beyond what a relay allows is lowered only where it was not asked for by name,
and the person is told.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager

from airlox.cli import options
from airlox.cli.output import span_text, time_text
from airlox.errors import AirloxError, JobRefused, RelayError, SessionClosed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Collection, Iterator
    from typing import Any

    from airlox.cli.output import Voice
    from airlox.client.machines import Machine, Machines
    from airlox.client.progress import OnProgress
    from airlox.client.session import Session

LONGEST_S = 30 * 86_400
MB = 1024 * 1024
DEFAULT_ITEM_MB = 25
TTL, ITEMS = "ttl", "items"


def open_session(args: Namespace, voice: Voice, *, link: str | None = None) -> Session:
    """The session of `link`, else of the flags and variables; joined, or taken up again."""
    from airlox.client.session import Session

    link = link or options.read_invite(args, os.environ)
    _refuse_runner_link(link)
    return Session.join(
        link,
        display_name=_profile(args, "display_name", options.NAME) or "cli",
        description=_profile(args, "description", options.DESCRIPTION),
        kind="cli",
        cache_dir=options.cache_root(args, os.environ),
        on_warning=voice.warn,
        on_progress=_progress(voice),
    )


def _progress(voice: Voice) -> OnProgress | None:
    if voice.is_quiet:
        return None
    from airlox.cli.progress import Transfers

    return Transfers(voice).hear


def _refuse_runner_link(link: str) -> None:
    from airlox.protocol.invite import parse_invite
    from airlox.protocol.keys import Role

    if parse_invite(link).role is Role.RUNNER:
        raise AirloxError(
            "this is a runner's link",
            code="wrong_role",
            hint="airlox runner join takes it; other commands take an owner's, sender's or "
            "observer's link",
        )


def create_session(
    args: Namespace,
    voice: Voice,
    *,
    ttl_s: int | None,
    max_item_mb: int,
    may_lower: Collection[str],
    **terms: Any,
) -> Session:
    """A new session on the relay of the flags, joined as its owner.

    `ttl_s` None lasts until it is closed. Where `may_lower` holds TTL, a relay that wants sessions
    to end gives 30 days; where it holds ITEMS, one that takes smaller items gives its largest. A
    relay that does not say what it allows gives the defaults.
    """
    from airlox.client.session import Session

    relay = options.read_relay(args.relay, os.environ)
    wish = _Wish(ttl_s, max_item_mb * MB, may_lower)
    while True:
        try:
            return Session.create(
                relay,
                ttl=wish.ttl_s,
                max_item_bytes=wish.item_bytes,
                display_name=_profile(args, "display_name", options.NAME) or "owner",
                description=_profile(args, "description", options.DESCRIPTION),
                kind="cli",
                cache_dir=options.cache_root(args, os.environ),
                on_warning=voice.warn,
                on_progress=_progress(voice),
                **terms,
            )
        except RelayError as error:
            voice.note(wish.lower(error))


class _Wish:
    """Terms that a relay may have other ideas of."""

    def __init__(self, ttl_s: int | None, item_bytes: int, may_lower: Collection[str]) -> None:
        self.ttl_s = ttl_s
        self.item_bytes = item_bytes
        self._may_lower = set(may_lower)

    def lower(self, error: RelayError) -> str:
        """Ask for less, each thing once; what is said of it. Raises the error where nothing was to
        be lowered."""
        wants_an_end = error.code == "never_expires_not_allowed"
        if TTL in self._may_lower and (wants_an_end or "lifetime_ms" in error.limit):
            self._may_lower.discard(TTL)
            self.ttl_s = min(LONGEST_S, error.limit.get("lifetime_ms", LONGEST_S * 1000) // 1000)
            return f"this relay wants sessions to end: this one lasts {span_text(self.ttl_s)}"
        if ITEMS in self._may_lower and error.code == "policy":
            self._may_lower.discard(ITEMS)
            most = error.limit.get("max_item_bytes", DEFAULT_ITEM_MB * MB)
            if 0 < most < self.item_bytes:
                self.item_bytes = most
                return f"this relay takes smaller items: up to {most / MB:.3g} MB here"
        raise error


def _profile(args: Namespace, field: str, variable: str) -> str | None:
    given: str | None = getattr(args, field, None)
    return given or os.environ.get(variable) or None


@contextmanager
def open_place(args: Namespace, voice: Voice) -> Iterator[Session]:
    """The session of `--on MACHINE`, else that of the flags and variables, for a block."""
    machine = machine_of(args)
    if machine is None:
        with open_session(args, voice) as session:
            yield session
        return
    with of_machine(machine), open_machine(args, voice, machine) as session:
        yield session


def open_machine(args: Namespace, voice: Voice, machine: Machine) -> Session:
    """The session of a machine, as whoever sends jobs there."""
    return open_session(args, voice, link=machine.sender_invite)


@contextmanager
def of_machine(machine: Machine) -> Iterator[None]:
    """What ends or refuses within the block is told as the machine's, with what to do."""
    try:
        yield
    except AirloxError as error:
        told = told_of(machine, error)
        if told is error:
            raise
        raise told from error


def told_of(machine: Machine, error: AirloxError) -> AirloxError:
    """The end of a session, as the end of the machine it is of; any other error as it is."""
    if isinstance(error, JobRefused) and error.code == "no_runner_available":
        error.hint = f"see the runners of {machine.name}: airlox machine ls; --queue waits for one"
    if not isinstance(error, SessionClosed) and error.code != "cut_off":
        return error
    expires_at_ms = machine.expires_at_ms
    why = error.message
    if expires_at_ms is not None and expires_at_ms <= time.time() * 1000:
        why = f"its session expired {time_text(expires_at_ms)}"
    elif error.code == "cut_off":
        why = f"its session's senders were revoked, or this one left ({why})"
    return SessionClosed(
        f"machine {machine.name} takes no more jobs: {why}",
        code=error.code,
        hint=f"a new session for the same runner: airlox machine add {machine.name} --renew; "
        f"or forget it: airlox machine rm {machine.name}",
    )


def check_open(session: Session) -> None:
    """Raises SessionClosed when the session is known to be over."""
    if session.closed is not None:
        raise SessionClosed(session.closed, code="session_gone")


def machines(args: Namespace) -> Machines:
    """The machines of the command's cache."""
    from airlox.client.machines import Machines

    return Machines(options.cache_root(args, os.environ))


def machine_of(args: Namespace) -> Machine | None:
    """The machine that `--on NAME[/LABEL]` names, or None. Raises UsageError for an unknown one."""
    return None if args.on is None else machines(args).get(args.on.partition("/")[0])


def remember_job(args: Namespace, machine: Machine, job_id: str) -> None:
    """Keep a machine's last job for `machine ls`."""
    machines(args).update(machine.name, last_job=job_id)
