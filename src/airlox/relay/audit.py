"""The audit trail of a session: its records as JSON lines, with what they can be checked by.

A line says what the relay claims happened; the signed documents in it prove the rest. Tokens and
secrets are in no line, not even hashed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from airlox.protocol.encoding import b64u_encode
from airlox.protocol.wire import JobState
from airlox.relay import records
from airlox.relay.records import AnyRecord

_JOB_WORDS = {JobState.RUNNING: "claimed"}


def audit_lines(entries: Iterable[bytes]) -> bytes:
    """One JSON object and a newline for each entry that belongs to the trail."""
    lines = []
    for record in map(records.decode, entries):
        fields = _fields(record)
        if fields:
            lines.append(msgspec.json.encode({"at_ms": record.at_ms, **fields}) + b"\n")
    return b"".join(lines)


def _fields(record: AnyRecord) -> dict[str, Any]:
    match record:
        case records.Created(manifest=manifest):
            return {"event": "created", "signed_manifest": manifest}
        case records.Joined(join=join):
            return {"event": "joined", "signed_join": join}
        case records.Posted(envelope=envelope, blob_sha256=digest):
            return {"event": "item", "envelope": envelope, "blob_sha256": b64u_encode(digest)}
        case records.Acked(item=item, participant=who):
            return {"event": "ack", "item": item, "participant_pub": who}
        case records.Left(participant=who):
            return {"event": "left", "participant_pub": who}
        case records.Revoked(role=role):
            return {"event": "revoked", "role": role}
        case records.Approved(participant=who):
            return {"event": "approved", "participant_pub": who}
        case records.Rejected(participant=who):
            return {"event": "rejected", "participant_pub": who}
        case records.JobChanged(job=job, state=state, runner=runner, reason=reason):
            word = _JOB_WORDS.get(state, state)
            return {"event": word, "job": job, "participant_pub": runner, "reason": reason}
        case records.CancelAsked(job=job, participant=who):
            return {"event": "cancel", "job": job, "participant_pub": who}
        case records.Wanted(item=item, participant=who):
            return {"event": "want", "item": item, "participant_pub": who}
        case records.Evicted(item=item):
            return {"event": "evicted", "item": item}
        case records.Reseeded(item=item, participant=who):
            return {"event": "reseeded", "item": item, "participant_pub": who}
        case records.Forgot(jobs=jobs):
            return {"event": "forgotten", "jobs": jobs}
        case _:
            return {}
