"""The session a command works in: joined by a link, or made anew.

What is wished for beyond what a relay allows is lowered only where it was not asked for by name,
and the person is told.
"""

from __future__ import annotations

import os

from airlox.cli import options
from airlox.errors import AirloxError, RelayError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Collection
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
    to end gives 30 days; where it holds ITEMS, one that takes smaller items gives the default.
    """
    from airlox.client.session import Session

    relay = options.read_relay(args.relay, os.environ)
    while True:
        try:
            return Session.create(
                relay,
                ttl=ttl_s,
                max_item_bytes=max_item_mb * MB,
                display_name=_profile(args, "display_name", options.NAME) or "owner",
                description=_profile(args, "description", options.DESCRIPTION),
                kind="cli",
                cache_dir=options.cache_root(args, os.environ),
                on_warning=voice.warn,
                on_progress=_progress(voice),
                **terms,
            )
        except RelayError as error:
            if error.code == "never_expires_not_allowed" and TTL in may_lower and ttl_s is None:
                voice.note("this relay wants sessions to end: this one lasts 30 days")
                ttl_s = LONGEST_S
            elif error.code == "policy" and ITEMS in may_lower and max_item_mb > DEFAULT_ITEM_MB:
                voice.note(f"this relay takes smaller items: up to {DEFAULT_ITEM_MB} MB here")
                max_item_mb = DEFAULT_ITEM_MB
            else:
                raise


def _profile(args: Namespace, field: str, variable: str) -> str | None:
    given: str | None = getattr(args, field, None)
    return given or os.environ.get(variable) or None


def open_place(args: Namespace, voice: Voice) -> Session:
    """The session of `--on MACHINE`, else that of the flags and variables."""
    machine = machine_of(args)
    return open_session(args, voice, link=None if machine is None else machine.sender_invite)


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
