"""The relay's HTTP API as data: paths, header names, error codes, event names.

Both ends of the wire read this table; neither spells a path or a code itself.
Source: docs/protocol.md, chapter "HTTP API".
"""

from __future__ import annotations

from typing import Final

API: Final = "/v1"
HEALTH: Final = "/v1/health"
SESSIONS: Final = "/v1/sessions"
CODES: Final = "/v1/codes"
"""Where receivers of transfer codes ask: they know no session yet."""


def session(sid: str) -> str:
    """Path of a session; every other path of the session starts with it."""
    return f"{SESSIONS}/{sid}"


def participants(sid: str) -> str:
    return f"{session(sid)}/participants"


def leave(sid: str) -> str:
    return f"{session(sid)}/leave"


def events(sid: str, after: int | None = None) -> str:
    """All events with a number greater than `after`, in one answer; without it, all."""
    return f"{session(sid)}/events" + ("" if after is None else f"?after={after}")


def events_page(sid: str, after: int | None, limit: int, jobs: int | None = None) -> str:
    """At most `limit` events with a number greater than `after` (sessions with `history`), of
    finished jobs only those of the `jobs` newest, if that is said."""
    asked = {"limit": limit, "after": after, "jobs": jobs}
    words = "&".join(f"{name}={value}" for name, value in asked.items() if value is not None)
    return f"{session(sid)}/events?{words}"


def stream(sid: str) -> str:
    return f"{session(sid)}/stream"


def items(sid: str) -> str:
    return f"{session(sid)}/items"


def blob(sid: str, item: str) -> str:
    return f"{session(sid)}/items/{item}/blob"


def ack(sid: str, item: str) -> str:
    return f"{session(sid)}/items/{item}/ack"


def want(sid: str, item: str) -> str:
    return f"{session(sid)}/items/{item}/want"


def delivery(sid: str, limit: int) -> str:
    """Who has stored the caller's own items, the newest `limit` of them."""
    return f"{session(sid)}/delivery?limit={limit}"


def close(sid: str) -> str:
    return f"{session(sid)}/close"


def revoke(sid: str, role: str) -> str:
    return f"{session(sid)}/roles/{role}/revoke"


def epochs(sid: str) -> str:
    """Where the owner starts an epoch (sessions with `epochs`)."""
    return f"{session(sid)}/epochs"


def audit(sid: str) -> str:
    return f"{session(sid)}/audit.jsonl"


def runners(sid: str) -> str:
    return f"{session(sid)}/runners"


def approve(sid: str, runner: str) -> str:
    return f"{session(sid)}/runners/{runner}/approve"


def reject(sid: str, runner: str) -> str:
    return f"{session(sid)}/runners/{runner}/reject"


def heartbeat(sid: str) -> str:
    return f"{session(sid)}/runners/me/heartbeat"


def runner_stream(sid: str) -> str:
    return f"{session(sid)}/runners/me/stream"


def jobs(sid: str) -> str:
    return f"{session(sid)}/jobs"


def job(sid: str, job_id: str) -> str:
    return f"{session(sid)}/jobs/{job_id}"


def claim(sid: str, job_id: str) -> str:
    return f"{job(sid, job_id)}/claim"


def cancel(sid: str, job_id: str) -> str:
    return f"{job(sid, job_id)}/cancel"


def job_output(sid: str, job_id: str, from_byte: int | None = None) -> str:
    """Where the assigned runner posts segments of live output, and where a reader whose streams
    are held back asks for what `job_stream` would say at once (full sessions)."""
    return f"{job(sid, job_id)}/output" + _from(from_byte)


def job_stream(sid: str, job_id: str, from_byte: int | None = None) -> str:
    """One job as it happens: segments, state, result (full sessions)."""
    return f"{job(sid, job_id)}/stream" + _from(from_byte)


def _from(byte: int | None) -> str:
    return "" if byte is None else f"?from={byte}"


def packs(sid: str, job_id: str) -> str:
    return f"{job(sid, job_id)}/packs"


def pack(sid: str, job_id: str, number: int) -> str:
    return f"{packs(sid, job_id)}/{number}"


def lack(sid: str, job_id: str) -> str:
    """Where the assigned runner names the content it lacks (full sessions)."""
    return f"{job(sid, job_id)}/lack"


def codes(sid: str) -> str:
    """Where a session's owner offers transfer codes."""
    return f"{session(sid)}/codes"


def code(sid: str, nameplate: int, after: int | None = None) -> str:
    """A code as its owner sees it; with `after` once its version is beyond that."""
    return f"{codes(sid)}/{nameplate}" + _after(after)


def cancel_code(sid: str, nameplate: int) -> str:
    return f"{code(sid, nameplate)}/cancel"


def answer_try(sid: str, nameplate: int, number: str) -> str:
    return f"{code(sid, nameplate)}/tries/{number}"


def wrong_try(sid: str, nameplate: int, number: str) -> str:
    return f"{answer_try(sid, nameplate, number)}/wrong"


def send_invite(sid: str, nameplate: int, number: str) -> str:
    return f"{answer_try(sid, nameplate, number)}/invite"


def tries(nameplate: int) -> str:
    return f"{CODES}/{nameplate}/tries"


def one_try(nameplate: int, number: str, after: int | None = None) -> str:
    """A try as its receiver sees it; with `after` once its version is beyond that."""
    return f"{tries(nameplate)}/{number}" + _after(after)


def end_try(nameplate: int, number: str) -> str:
    """Where a receiver says that it has the invite."""
    return f"{one_try(nameplate, number)}/done"


def leave_try(nameplate: int, number: str) -> str:
    return f"{one_try(nameplate, number)}/leave"


def parked(nameplate: int) -> str:
    return f"{CODES}/{nameplate}/parked"


def _after(version: int | None) -> str:
    return "" if version is None else f"?after={version}"


class Headers:
    """Header names, lower case as ASGI and HTTP/2 have them."""

    AUTHORIZATION: Final = "authorization"
    TARGET: Final = "airlox-target"
    JOIN_SECRET: Final = "airlox-join-secret"
    QUEUE: Final = "airlox-queue"
    """With a job: for how many seconds it may wait for a slot."""
    EPOCH: Final = "airlox-epoch"
    """With a pack or a list of what is lacking: the number of the epoch whose key sealed it."""
    LAST_EVENT_ID: Final = "last-event-id"


class EventKind:
    """Kinds of a session's events, and of a job's stream."""

    PARTICIPANT: Final = "participant"
    ITEM: Final = "item"
    LEFT: Final = "left"
    REVOKED: Final = "revoked"
    EPOCH: Final = "epoch"
    """In sessions with `epochs`: a revocation that the owner signed."""
    EVICTED: Final = "evicted"
    WANT: Final = "want"
    RESEEDED: Final = "reseeded"
    JOB: Final = "job"
    CLOSED: Final = "closed"
    # in sessions with `history`
    GAP: Final = "gap"
    FORGOTTEN: Final = "forgotten"
    # on a runner's own stream
    JOB_ASSIGNED: Final = "job_assigned"
    JOB_CANCEL: Final = "job_cancel"
    REJECTED: Final = "rejected"
    PACK: Final = "pack"
    # on a job's stream
    SEGMENT: Final = "segment"
    LACK: Final = "lack"
    END: Final = "end"


class WaitReason:
    """Why a queued job waits: runners match but have no free slot, or none that matches is there
    and approved."""

    BUSY: Final = "busy"
    NO_RUNNER: Final = "no_runner"


class JobState:
    """States the relay keeps of a job. Only `FAILED` ends a 0.1.0 client's wait.

    `QUEUED` is only in sessions with `queue`."""

    QUEUED: Final = "queued"
    ASSIGNED: Final = "assigned"
    RUNNING: Final = "running"
    FINISHED: Final = "finished"
    FAILED: Final = "failed"


class CodeState:
    """States of a transfer code; all but the first are its end."""

    OPEN: Final = "open"
    USED: Final = "used"
    EXPIRED: Final = "expired"
    VOID: Final = "void"
    CANCELLED: Final = "cancelled"


class TryState:
    """States of one exchange about a code. Its receiver is told the code's end when that came
    first."""

    OPEN: Final = "open"
    WRONG: Final = "wrong"
    SENT: Final = "sent"
    DONE: Final = "done"
    LEFT: Final = "left"


STATUS_OF: Final = {
    "bad_request": 400,
    "invalid_manifest": 400,
    "invalid_join": 400,
    "invalid_item": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "policy": 403,
    "revoked": 403,
    "invite_replaced": 403,
    "never_expires_not_allowed": 403,
    "not_found": 404,
    "exists": 409,
    "old_epoch": 409,
    "unknown_epoch": 409,
    "not_next_epoch": 409,
    "somebody_joined": 409,
    "duplicate": 409,
    "present": 409,
    "not_assigned": 409,
    "no_runner_available": 409,
    "runner_busy": 409,
    "queue_full": 409,
    "code_busy": 409,
    "try_over": 409,
    "code_wrong": 403,
    "code_unknown": 404,
    "evicted": 410,
    "gone": 410,
    "code_expired": 410,
    "code_used": 410,
    "code_void": 410,
    "code_cancelled": 410,
    "too_large": 413,
    "rate_limited": 429,
    "too_many_guesses": 429,
    "too_many_wants": 429,
    "busy": 503,
    "full": 507,
    "disk_failed": 507,
}
"""Every error code of the relay and the HTTP status it travels with."""

ANSWER_BYTES: Final = 32 * 1024 * 1024
"""Largest JSON answer a 0.1.0 client accepts; `/events` is never paged for it."""
