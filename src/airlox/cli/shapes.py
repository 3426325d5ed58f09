"""What `--json` prints of each thing: plain values with the keys of 0.1.0, and more.

Keys are added, never renamed or removed; what a session of the older kind does not have is absent.
Text output is made from the same values, so that both say the same.
"""

from __future__ import annotations

import msgspec

from airlox.client.shown import Delivery, ParticipantInfo, Runner
from airlox.protocol.item import ItemRef
from airlox.protocol.job import PythonJob, Result, ShellJob
from airlox.protocol.payload import File, Text
from airlox.protocol.view import Item, ItemStatus, Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from airlox.client.jobs import Job
    from airlox.client.machines import Machine
    from airlox.client.session import Session
    from airlox.protocol.chain import Alarm

    Shape = dict[str, Any]

_READABLE = frozenset({"py", "md"})
"""Files whose content is shown with the item."""


def ref(value: ItemRef) -> Shape:
    return {"blob_sha256": value.blob_sha256, "id": value.id}


def participant(value: ParticipantInfo) -> Shape:
    return {
        "description": value.description,
        "display_name": value.display_name,
        "fingerprint": value.fingerprint,
        "kind": value.kind,
        "left": value.left,
        "participant_pub": value.participant_pub,
        "role": value.role,
    }


def alarm(value: Alarm) -> Shape:
    return {
        "author": value.author,
        "item": value.item,
        "kind": value.kind.value,
        "message": str(value),
        "named_by": value.named_by,
        "seq": value.seq,
    }


def runner(value: Runner) -> Shape:
    shape: Shape = {
        "approved": value.approved,
        "description": value.description,
        "fingerprint": value.fingerprint,
        "host": value.host,
        "job": value.job,
        "kinds": list(value.kinds),
        "labels": list(value.labels),
        "left": value.left,
        "name": value.name,
        "network_unblocked": value.network_unblocked,
        "online": value.online,
        "participant_pub": value.participant_pub,
        "rejected": value.rejected,
        "sandbox": value.sandbox,
    }
    if value.info is not None:
        shape["info"] = _without(msgspec.to_builtins(value.info), "type", "kinds", "sandbox")
    return shape


def machine(value: Machine) -> Shape:
    """A machine without its links."""
    return {
        "created_at_ms": value.created_at_ms,
        "expires_at_ms": value.expires_at_ms,
        "last_job": value.last_job,
        "name": value.name,
        "relay": value.relay,
        "session_id": value.session_id,
    }


def session(value: Session) -> Shape:
    """The terms of a session, who takes part, and what the relay was caught at. Reads what was
    synced."""
    manifest = value.manifest
    return {
        "alarms": [alarm(each) for each in value.alarms(sync=False)],
        "allowed_types": [kind.value for kind in manifest.allowed_types],
        "closed": value.closed,
        "created_at_ms": manifest.created_at_ms,
        "expires_at_ms": manifest.expires_at_ms,
        "features": [feature.value for feature in manifest.features],
        "insecure_http_host": manifest.insecure_http_host,
        "job_limits": msgspec.to_builtins(manifest.job_limits),
        "max_item_bytes": manifest.max_item_bytes,
        "mode": manifest.mode.value,
        "participants": [participant(p) for p in value.participants(sync=False)],
        "relay": value.relay,
        "session_id": value.session_id,
        "your_role": value.role,
    }


def item(value: Item, *, valid: bool = True) -> Shape:
    """An item that was opened. `valid` says, of a result, whether it is bound to its job."""
    shape = {
        "author": value.author.public,
        "author_name": value.author_name,
        "author_role": value.author.role.value,
        "created_at_ms": value.created_at_ms,
        "id": value.id,
        "kind": value.kind.value,
        "ref": ref(value.ref),
        "seq": value.seq,
        "status": "ok",
        "subkind": value.subkind,
    }
    return shape | _address(value) | _content(value, valid)


def _address(value: Item) -> Shape:
    """Whom an item is for, as far as it says so or it is for us."""
    shape: Shape = {}
    if value.to:
        shape["to"] = list(value.to)
    if value.reply_to is not None:
        shape["reply_to"] = value.reply_to
    if value.for_me:
        shape["for_me"] = [reason.value for reason in value.for_me]
    return shape


def unavailable(record: Record) -> Shape:
    """An item that cannot be had: refused, evicted, or not fetched yet."""
    header = record.envelope.header if record.envelope else None
    author = record.author
    return {
        "author": header.author if header else None,
        "author_name": author.name if author else None,
        "author_role": author.role.value if author else None,
        "created_at_ms": header.created_at_ms if header else None,
        "id": header.id if header else None,
        "kind": header.kind.value if header else None,
        "error": record.reason,
        "ref": {"blob_sha256": "", "id": header.id if header else ""},
        "seq": record.seq,
        "status": "rejected" if record.status is ItemStatus.REFUSED else record.status.value,
        "subkind": header.subkind if header else None,
    }


def delivery(value: Delivery) -> Shape:
    return {
        "created_at_ms": value.created_at_ms,
        "delivered": [_person(each) for each in value.delivered],
        "id": value.id,
        "kind": value.kind,
        "to": list(value.to),
        "waiting": [_person(each) for each in value.waiting],
    }


def _person(value: ParticipantInfo) -> Shape:
    return {
        "display_name": value.display_name,
        "participant_pub": value.participant_pub,
        "role": value.role,
    }


def _content(value: Item, valid: bool) -> Shape:
    match value.meta:
        case Text(text=text):
            return {"text": text}
        case File(mime=mime, name=name):
            shape: Shape = {"mime": mime, "name": name, "size": len(value.body)}
            if value.subkind in _READABLE:
                shape["content"] = value.body.decode()
            return shape
        case PythonJob() | ShellJob() as job:
            return _without(msgspec.to_builtins(job), "type", "kind")
        case Result() as result:
            return _result_item(result) | {"valid": valid}
        case other:
            return {"meta": msgspec.to_builtins(other)}


def _result_item(result: Result) -> Shape:
    return {
        "exit_code": result.exit_code,
        "job": result.job.id,
        "out_files": [file.name for file in result.out_files],
        "reason": result.reason,
        "status": result.status.value,
        "stderr": result.stderr,
        "stdout": result.stdout,
        "wall_ms": result.wall_ms,
    } | _full_result(result)


def _full_result(result: Result) -> Shape:
    """What results of full sessions say beyond those of 0.1.0."""
    known = msgspec.to_builtins(result)
    fields = ("cause", "env", "left_out", "limits", "live", "peak", "tree")
    return {name: known[name] for name in fields if name in known}


def _without(shape: Shape, *names: str) -> Shape:
    return {name: value for name, value in shape.items() if name not in names}


def job(value: Job, names: dict[str, str]) -> Shape:
    """A job and how it stands; `names` are those of runners by key."""
    result = value.result()
    state = value.state() if result is None else None
    runner_pub = result.runner if result is not None else value.runner
    waits = {"place": state.place} if state is not None and state.waits else {}
    return {
        "exit_code": None if result is None else result.exit_code,
        "job": value.id,
        "reason": result.reason if result is not None else state and state.reason,
        "runner": runner_pub,
        "runner_name": names.get(runner_pub or ""),
        "signed": None if result is None else result.signed,
        "status": result.status if result is not None else state and state.state,
        "target": msgspec.to_builtins(value.meta.target),
        "wall_ms": None if result is None else result.wall_ms,
        "what": what(value.meta),
    } | waits


def what(meta: PythonJob | ShellJob) -> str:
    """What a job runs, in a line."""
    if isinstance(meta, PythonJob):
        return meta.filename
    if meta.command is not msgspec.UNSET:
        import shlex

        return shlex.join(meta.command)
    first = next((line for line in str(meta.script).splitlines() if line.strip("#! ")), "")
    return f"script: {first[:60]}"
