"""Tools for sessions: make, join, look, hand out links, cut off, end, keep the trail."""

from __future__ import annotations

import secrets
from typing import Any

from airlox import safefs
from airlox.errors import UsageError
from airlox.mcp import shapes
from airlox.mcp.sessions import shareable
from airlox.mcp.tool import Answer
from airlox.mcp.tools.declaring import ADD, END, READ, SESSION, SET, flag, number, text, tool, words
from airlox.mcp.use import Use

MEMORY_MB = 2048
TTL_MINUTES = 60
_NOT_KEPT = "not kept: nobody owns the session once this server ends (--owner-invite-dir keeps it)"
_WARNINGS = 5
_ROLES = ("sender", "observer", "runner")
_OF_JOBS = ("shell", "packages", "network", "job_timeout_s", "job_memory_mb")


@tool(
    "Create session",
    ADD,
    "Create an end-to-end encrypted session you own. Gives a link per role: share each only with "
    "whoever should have it.",
    {
        "execute": flag("have runners for Python jobs"),
        "shell": flag("execute: also shell jobs (`run`)"),
        "description": text("what you do, for others"),
        "ttl_minutes": number("default 60"),
        "never_expires": flag("until closed"),
        "packages": words("jobs may import", ["pandas>=2"]),
        "network": flag("let jobs use it"),
        "approve_runners": flag("default true"),
        "job_timeout_s": number("default 60"),
        "job_memory_mb": number("default 2048"),
        "insecure_http_host": text("reached by plain http, in the clear: ask the user"),
    },
    {"session": "string", "invites": "object", "expires_at_ms": "integer?"},
)
def create_session(use: Use) -> Answer:
    ttl_s = (use["ttl_minutes"] or TTL_MINUTES) * 60
    place = use.do(
        "creating the session",
        lambda: use.desk.sessions.create(
            use.caller.client_name,
            description=use["description"],
            mode="execute" if use["execute"] else "relay",
            ttl=None if use["never_expires"] else ttl_s,
            insecure_http_host=use["insecure_http_host"],
            job_limits=_job_limits(use),
        ),
    )
    links = shareable(place.session)
    kept = _NOT_KEPT if place.owner_file is None else f"kept as {place.owner_file}"
    shape = shapes.terms(place) | {"invites": links, "owner_link": kept}
    lines = [f"created session {place.handle}; the owner's link is {kept}; links to share:"]
    return Answer(shape, "\n".join(lines + [f"{role}: {link}" for role, link in links.items()]))


def _job_limits(use: Use) -> dict[str, Any] | None:
    """The job limits asked for. Raises UsageError where the session takes no jobs."""
    if not use["execute"]:
        given = [name for name in _OF_JOBS if use[name]]
        if given:
            raise UsageError(f"{given[0]} is for sessions with jobs", hint="set `execute` too")
        return None
    return {
        "approve_runners": use["approve_runners"],
        "kinds": ["python", "shell"] if use["shell"] else None,
        "memory_mb": use["job_memory_mb"] or MEMORY_MB,
        "network": use["network"],
        "packages": use["packages"],
        "timeout_s": use["job_timeout_s"],
    }


@tool(
    "Join session",
    SET,
    "Join a session by invite link; its role decides what you may do.",
    {
        "invite": text("link", "https://host/s/ax_x#k"),
        "description": text("what you do, for others"),
    },
    {"session": "string", "role": "string"},
    needs=("invite",),
)
def join_session(use: Use) -> Answer:
    sessions, name = use.desk.sessions, use.caller.client_name
    place = use.do("joining", lambda: sessions.join(use["invite"], name, use["description"]))
    return Answer(shapes.terms(place), f"joined session {place.handle} as {place.session.role}")


@tool(
    "Session info",
    READ,
    "A session's settings, participants and your role.",
    {"session": SESSION},
    {"session": "string", "role": "string", "participants": "array"},
    example={},
)
def session_info(use: Use) -> Answer:
    place = use.place()
    session = place.session
    people = use.do("reading the session", session.participants)
    shape = shapes.terms(place) | {
        "participants": [shapes.participant(person) for person in people],
        "closed": session.closed,
        "alarms": [str(alarm) for alarm in session.alarms(sync=False)],
        "warnings": list(session.warnings)[-_WARNINGS:],
    }
    names = ", ".join(shapes.who(person.role, person.display_name) for person in people)
    head = f"session {place.handle} on {session.relay}, you are {session.role}"
    if session.closed is not None:
        head += f"; it is over:\n{shapes.quoted(session.closed, 'the relay')}"
    return Answer(shape | shapes.UNTRUSTED, f"{head}\n{shapes.quoted(names, 'participants')}")


@tool(
    "Get invites",
    READ,
    "The links to share, by role.",
    {"session": SESSION},
    {"session": "string", "invites": "object"},
    example={},
)
def get_invites(use: Use) -> Answer:
    place = use.owned_place("hand out invites")
    use.do("fetching news", place.session.participants)  # a link may have been replaced
    links = shareable(place.session)
    lines = [f"{role}: {link}" for role, link in links.items()]
    return Answer({"session": place.handle, "invites": links}, "\n".join(lines))


@tool(
    "Revoke role",
    END,
    "Cut off all of a role and void its link, without undo. Only when the user asks.",
    {
        "role": text("sender, observer or runner", "observer"),
        "session": SESSION,
    },
    {"session": "string", "revoked": "string"},
    needs=("role",),
)
def revoke_role(use: Use) -> Answer:
    place, role = use.owned_place("revoke roles"), use["role"]
    if role not in _ROLES:  # a session could cut off one participant of that name
        raise UsageError(f"{role[:40]!r} is no role to revoke", hint=f"one of {', '.join(_ROLES)}")
    use.confirm(
        "Revoke a role",
        f"Cut off everyone who joined session {place.handle} as {role}, and void that link? "
        "This cannot be undone.",
    )
    use.do("revoking", lambda: place.session.revoke(role))
    shape = {"session": place.handle, "revoked": role}
    return Answer(shape, f"revoked {role} in session {place.handle}")


@tool(
    "Close session",
    END,
    "End and purge the session for everyone, without undo. Only when the user asks.",
    {"session": SESSION},
    {"session": "string", "closed": "boolean"},
    example={},
)
def close_session(use: Use) -> Answer:
    place = use.owned_place("close the session")
    use.confirm(
        "Close the session",
        f"End session {place.handle} for everyone, and have the relay forget all of it? "
        "This cannot be undone.",
    )
    use.do("closing", place.session.close)
    use.desk.sessions.drop(place)
    shape = {"session": place.handle, "closed": True}
    return Answer(shape, f"closed session {place.handle}")


@tool(
    "Export audit trail",
    ADD,
    "Save who did what, with proof, as JSON lines (owner or observer).",
    {"dir": text("allowed folder", "audit"), "session": SESSION},
    {"path": "string", "records": "integer"},
    needs=("dir",),
)
def export_audit(use: Use) -> Answer:
    from msgspec import json

    place = use.place()
    records = use.do("reading the trail", place.session.audit)
    data = b"".join(json.encode(record) + b"\n" for record in records)
    name = f"airlox-{secrets.token_hex(4)}-audit.jsonl"
    with use.desk.files.folder(use["dir"], make=True) as folder:
        path = f"{folder.path}/{safefs.save_new_at(folder.fd, name, data)}"
    shape = {"session": place.handle, "path": path, "records": len(records)}
    return Answer(shape, f"saved {len(records)} records; check them: airlox audit verify {path}")
