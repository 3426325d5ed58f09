"""The sessions a server has open, each under a handle that calls name it by.

A handle is the session's id; of a session that is open in two roles the second has the role
behind it. Left out, it means the one session that is open and goes on; with none or several of
them the answer says which calls to make. Sessions of machines have handles too, but are nobody's
default: they are named by their machine.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airlox import safefs
from airlox.errors import AirloxError, UsageError, ValidationError
from airlox.protocol import limits

if TYPE_CHECKING:
    from airlox.client.machines import Machine
    from airlox.client.session import Session
    from airlox.mcp.desk import DeskOptions

MOST: Final = 32
FALLBACK_NAME: Final = "agent"
OWNER: Final = "owner"
RUNNER: Final = "runner"


@dataclass(frozen=True)
class Place:
    """An open session. `machine` is the name of the machine it was opened for."""

    handle: str
    session: Session
    machine: str | None = None
    owner_file: str | None = None
    """The file that its owner's link was kept in when it was made here."""


class Sessions:
    """Safe to share between threads; what talks to a relay is done outside the lock."""

    def __init__(self, options: DeskOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._joining = threading.Lock()
        self._places: dict[str, Place] = {}
        self._invite = options.invite
        """The link the server was started with, until it is joined."""
        self._ended = False

    # -- opening -----------------------------------------------------------------------------

    def create(self, client_name: str, *, description: str | None, **terms: Any) -> Place:
        """Make a session and keep its owner's link where the person said. Raises as
        `Session.create`, and UsageError without a relay."""
        from airlox.client.session import Session

        relay = self._options.relay
        if relay is None:
            raise UsageError(
                "this server knows no relay to make a session on",
                code="no_relay",
                hint="ask the user to start it with --relay URL or AIRLOX_RELAY set; join_session "
                "works without",
            )
        self._check_room()
        folder = self._options.owner_invite_dir
        if folder is not None and not os.path.isdir(folder):
            safefs.make_private_dir(folder)
        session = Session.create(relay, **terms, **self._profile(client_name, description))
        try:
            if folder is None:
                return self._keep(session)
            link = f"{session.invites[OWNER]}\n"
            name = f"airlox-owner-{session.session_id}.txt"
            return self._keep(session, owner_file=safefs.save_new(folder, name, link.encode()).name)
        except BaseException:
            with session, suppress(AirloxError):
                session.close()  # nobody holds its owner's link
            raise

    def join(self, link: str, client_name: str, description: str | None = None) -> Place:
        """Join by a link, or go on with the session when it is open. Raises as `Session.join`."""
        return self._open(link, client_name, description)

    def of_machine(self, name: str, client_name: str) -> tuple[Place, Machine]:
        """The session of a machine. Raises UsageError for an unknown one."""
        from airlox.client.machines import Machines

        machine = Machines(self._options.cache_dir).get(name)
        place = self._open(machine.sender_invite, client_name, None, machine=name)
        return place, machine

    def remember_job(self, machine: str, job_id: str) -> None:
        """Keep a machine's last job for `airlox machine ls`. That it cannot be kept, as when the
        machine was removed meanwhile, is no reason to lose the job."""
        from airlox.client.machines import Machines

        with suppress(AirloxError, OSError):
            Machines(self._options.cache_dir).update(machine, last_job=job_id)

    def _open(
        self, link: str, client_name: str, description: str | None, machine: str | None = None
    ) -> Place:
        from airlox.client.session import Session
        from airlox.protocol.invite import parse_invite

        invite = parse_invite(link.strip())
        if invite.role == RUNNER:
            raise UsageError(
                "this is a runner's link",
                code="wrong_role",
                hint="`airlox runner join` takes it on the machine that runs jobs; join_session "
                "takes a link of another role",
            )
        with self._joining:  # the same link twice is one session
            known = self._known(invite.session_id, invite.role.value, machine)
            if known is not None:
                return known
            self._check_room()
            session = Session.join(link.strip(), **self._profile(client_name, description))
            try:
                return self._keep(session, machine)
            except UsageError:
                session.disconnect()
                raise

    def _profile(self, client_name: str, description: str | None) -> dict[str, Any]:
        return {
            "display_name": self._options.display_name or _shown_name(client_name),
            "description": description or self._options.description,
            "cache_dir": self._options.cache_dir,
        }

    # -- finding -----------------------------------------------------------------------------

    def get(self, handle: str | None, client_name: str) -> Place:
        """The session of a handle; without one, the one that is open. Raises UsageError."""
        if handle is not None:
            with self._lock:
                place = self._places.get(handle)
            if place is None:
                raise UsageError(
                    f"no session {handle[:80]!r} is open", code="no_session", hint=self._hint()
                )
            return place
        if self._invite is not None:
            self._open(self._invite, client_name, None)
            self._invite = None
        places = [place for place in self.all() if place.machine is None]
        places = [place for place in places if place.session.closed is None] or places
        if len(places) != 1:
            what = "no session is open" if not places else f"{len(places)} sessions are open"
            raise UsageError(f"{what}: say which", code="which_session", hint=self._hint())
        return places[0]

    def all(self) -> list[Place]:
        with self._lock:
            return list(self._places.values())

    def owner_keys(self) -> list[str]:
        """The secret part of every owner's link there is here."""
        links = [] if self._options.invite is None else [self._options.invite]
        sessions = [place.session for place in self.all()]
        links += [each.invites.get(OWNER, "") for each in sessions if each.role == OWNER]
        return [key for link in links if (key := _owner_key(link))]

    def _known(self, session_id: str, role: str, machine: str | None) -> Place | None:
        for place in self.all():
            session = place.session
            if (session.session_id, session.role) == (session_id, role):
                if place.machine is not None and machine is None:
                    return self._put(Place(place.handle, session))  # now somebody's own
                return place
        return None

    def _hint(self) -> str:
        """The next call where no session was found."""
        handles = [place.handle for place in self.all()]
        if handles:
            return "give `session`, one of: " + ", ".join(handles[:8])
        return "join_session with a link, or create_session"

    # -- keeping and ending ------------------------------------------------------------------

    def _keep(
        self, session: Session, machine: str | None = None, owner_file: str | None = None
    ) -> Place:
        with self._lock:
            if self._ended:
                raise UsageError("the server ends", code="closed")
            handle = session.session_id
            if handle in self._places:
                handle = f"{handle}/{session.role}"
            place = self._places[handle] = Place(handle, session, machine, owner_file)
        return place

    def _put(self, place: Place) -> Place:
        with self._lock:
            self._places[place.handle] = place
        return place

    def _check_room(self) -> None:
        for place in self.all() if len(self.all()) >= MOST else ():
            if place.session.closed is not None:
                self.drop(place)
        if len(self.all()) >= MOST:
            raise UsageError(
                f"{MOST} sessions are open",
                code="too_many_sessions",
                hint="ask the user to restart this server, or close_session one that is yours",
            )

    def drop(self, place: Place) -> None:
        """Forget a session that is over."""
        with self._lock:
            self._places.pop(place.handle, None)
        place.session.disconnect()

    def disconnect(self) -> None:
        """End every call of every session, also of one that is only being opened. The sessions
        go on."""
        with self._lock:
            self._ended = True
        for place in self.all():
            self.drop(place)


def shareable(session: Session) -> dict[str, str]:
    """The links an owner shares, by role; the owner's own is not among them."""
    return {role: link for role, link in session.invites.items() if role != OWNER}


def _shown_name(client_name: str) -> str:
    """The client's name for itself as a display name, or a plain one where it cannot be that."""
    from airlox.protocol.names import check_display_text

    name = client_name.strip()[: limits.DISPLAY_NAME].rstrip()
    try:
        check_display_text(name, "name", limits.DISPLAY_NAME)
    except ValidationError:
        return FALLBACK_NAME
    return name


def _owner_key(link: str) -> str:
    """What makes a link an owner's; empty for other links."""
    _, _, key = link.strip().partition("ok=")
    return key.partition("&")[0]
