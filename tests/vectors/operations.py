"""What each operation of the vectors means, on the Python core."""

from __future__ import annotations

import base64
import hashlib
import json
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from airlox import errors
from airlox.protocol import (
    addressing,
    audit,
    canonical,
    cert,
    chain,
    invite,
    item,
    job,
    keys,
    live,
    manifest,
    pack,
    payload,
    policy,
    transfer,
)
from airlox.protocol.encoding import (
    ItemId,
    PublicKey,
    SessionId,
    b64u_decode,
    parse_session_id,
)
from airlox.tree import changes
from airlox.tree.chunks import Cutter
from airlox.tree.index import parse_index
from airlox.tree.wanted import Wanted
from vectors.epochs import EPOCHS

VECTORS = Path(__file__).parents[2] / "vectors"


def _json(text: str) -> Any:
    """JSON as the reference's own calls take it: loose, but each key once."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise errors.EncodingError("repeated key")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except ValueError as error:
        raise errors.EncodingError("not JSON") from error


def _plain(value: Any, type_: Any) -> Any:
    """Drops unknown fields and fills absent nulls, as the reference's calls do."""
    if isinstance(type_, types.UnionType) and isinstance(value, dict):
        wanted = [t for t in type_.__args__ if getattr(t, "__struct_config__", None)]
        type_ = next((t for t in wanted if t.__struct_config__.tag == value.get("type")), None)
    if getattr(type_, "__origin__", None) is tuple and isinstance(value, list):
        return [_plain(v, type_.__args__[0]) for v in value]
    if not (isinstance(type_, type) and issubclass(type_, msgspec.Struct)):
        return value
    if not isinstance(value, dict):
        return value
    known = {f.encode_name: f.type for f in msgspec.structs.fields(type_)}
    out = {k: _plain(v, known[k]) for k, v in value.items() if k in known}
    if type_.__struct_config__.tag is not None:
        out["type"] = value["type"]
    for name, t in known.items():
        if name not in out and type(None) in getattr(t, "__args__", ()):
            out[name] = None
    return out


def _meta(text: str) -> payload.Meta:
    value = _json(text)
    if not isinstance(value, dict):
        raise errors.EncodingError("not an object")
    forms = {
        "text": payload.Text,
        "file": payload.File,
        "job": job.FloorPythonJob,
        "result": job.FloorResult,
        "event": payload._EVENTS.get(value.get("event", "")),
    }
    form = forms.get(value.get("type", ""))
    plain = _plain(value, form) if form else value
    return payload.parse_meta(canonical.encode(plain), full=False)


def _b64(text: str) -> bytes:
    return base64.b64decode(text)


def _canonical_text(i: dict[str, Any]) -> str:
    text = bytes.fromhex(i["text_utf8_hex"]).decode()
    return canonical.encode(payload.Text(text=text)).hex()


def _canonical_result(field: str) -> Callable[[dict[str, Any]], str]:
    def run(i: dict[str, Any]) -> str:
        sample = next(
            c
            for c in json.loads((VECTORS / "canonical.json").read_text())["cases"]
            if c["op"] == f"canonical_result_{field}" and "ok" in c
        )
        meta = json.loads(bytes.fromhex(sample["ok"]) if _is_hex(sample["ok"]) else sample["ok"])
        meta[field] = i[field]
        document = canonical.encode(meta)
        payload.parse_meta(document, full=False)
        return document.hex() if _is_hex(sample["ok"]) else document.decode()

    return run


def _is_hex(text: str) -> bool:
    return all(c in "0123456789abcdef" for c in text)


def _create(i: dict[str, Any]) -> str:
    params = _json(i["params"])
    if not isinstance(params, dict):
        raise errors.EncodingError("not an object")
    try:
        spec = msgspec.convert(params, _CreateParams, strict=True)
    except msgspec.ValidationError as error:
        raise errors.EncodingError(str(error)) from error
    return manifest.build_manifest(bytes.fromhex(i["owner_seed"]), **msgspec.structs.asdict(spec))


class _CreateParams(msgspec.Struct, forbid_unknown_fields=True):
    mode: manifest.Mode
    created_at_ms: int
    ttl_ms: int | None
    allowed_types: tuple[manifest.ContentType, ...]
    max_item_bytes: int = 26214400
    job_limits: manifest.JobLimits | None = None


def _invite_info(i: dict[str, Any]) -> dict[str, Any]:
    found = invite.parse_invite(i["url"])
    return {
        "info": {
            "base_url": found.base_url,
            "role": found.role.value,
            "session_id": found.session_id,
        },
        "session_key": found.session_key.hex(),
        "role_seed": found.role_seed.hex(),
    }


def _check_invite(i: dict[str, Any]) -> None:
    found = invite.parse_invite(i["url"])
    invite.check_invite(found, manifest.parse_manifest(i["signed_manifest"]))


def _role(text: str) -> keys.Role:
    try:
        return keys.Role(text)
    except ValueError as error:
        raise errors.EncodingError("unknown role") from error


def _issue(i: dict[str, Any]) -> str:
    return cert.issue_cert(
        bytes.fromhex(i["role_seed"]),
        session_id=SessionId(i["session_id"]),
        role=_role(i["role"]),
        participant_pub=PublicKey(i["participant_pub"]),
        issued_at_ms=i["issued_at_ms"],
    )


def _verify_cert(i: dict[str, Any]) -> str:
    terms = manifest.parse_manifest(i["signed_manifest"])
    return cert.parse_cert(i["cert"], terms).role.value


def _sign_join(i: dict[str, Any]) -> str:
    fields = _json(i["join"])
    if not isinstance(fields, dict):
        raise errors.EncodingError("not an object")
    runner = fields.get("runner")
    return cert.sign_join(
        keys.SigningKey.from_seed(bytes.fromhex(i["participant_seed"])),
        cert=canonical.encode(fields["cert"]).decode(),
        session_id=fields["session_id"],
        display_name=fields["display_name"],
        kind=cert.ClientKind(fields["kind"]),
        created_at_ms=fields["created_at_ms"],
        description=fields.get("description"),
        runner=None if runner is None else msgspec.convert(runner, cert.RunnerInfo),
    )


def _verify_join(i: dict[str, Any]) -> None:
    cert.parse_join(i["signed_join"], manifest.parse_manifest(i["signed_manifest"]))


def _open_item(i: dict[str, Any]) -> str:
    envelope = item.parse_envelope(i["envelope"])
    return item.open_item(envelope, _b64(i["blob_b64"]), bytes.fromhex(i["session_key"])).hex()


def _verify_item(i: dict[str, Any]) -> None:
    item.verify_item(item.parse_envelope(i["envelope"]), _b64(i["blob_b64"]))


def _item_ref(i: dict[str, Any]) -> Any:
    envelope = item.parse_envelope(i["envelope"])
    return canonical.encode(item.verify_item(envelope, _b64(i["blob_b64"]))).decode()


def _check_header(i: dict[str, Any]) -> str:
    terms = manifest.parse_manifest(i["signed_manifest"])
    proof = cert.parse_cert(i["author_cert"], terms)
    envelope = item.parse_envelope(i["envelope"])
    return policy.check_header(terms, proof, envelope, _b64(i["blob_b64"])).value


def _open_checked(i: dict[str, Any]) -> Any:
    terms = manifest.parse_manifest(i["signed_manifest"])
    proof = cert.parse_cert(i["author_cert"], terms)
    envelope = item.parse_envelope(i["envelope"])
    key = bytes.fromhex(i["session_key"])
    meta, body = policy.open_checked(terms, proof, envelope, _b64(i["blob_b64"]), key)
    return {"role": proof.role.value, "meta": canonical.encode(meta).decode(), "body": body.hex()}


def _check_result(i: dict[str, Any]) -> None:
    approved = i["approved"]
    if approved is not None:
        if not isinstance(approved, list):
            raise errors.EncodingError("approved is not a list")
        approved = frozenset(keys.parse_public_key(k) for k in approved)
    result = _meta(json.dumps(i["result_meta"]))
    request = _meta(json.dumps(i["job_meta"]))
    if not isinstance(result, job.Result) or not isinstance(request, job.PythonJob):
        raise errors.ValidationError("not a job and its result")
    job.check_result_for_job(
        result,
        job_ref=item.ItemRef(**i["job_ref"]),
        job=request,
        author=keys.parse_public_key(i["author"]),
        approved=approved,
    )


def _decode(i: dict[str, Any]) -> Any:
    meta, body = payload.decode_payload(bytes.fromhex(i["payload"]), full=False)
    return {"meta": canonical.encode(meta).decode(), "body": body.hex()}


def _frame(i: dict[str, Any]) -> dict[str, str]:
    frame = item.encode_frame(i["envelope"], _b64(i["blob_b64"]))
    assert item.parse_frame(frame) == (i["envelope"], _b64(i["blob_b64"]))
    return {"frame_b64": base64.b64encode(frame).decode()}


def _derive(i: dict[str, Any]) -> dict[str, str]:
    derived = keys.SessionKeys.derive(bytes.fromhex(i["owner_seed"]))
    seeds = {f"{r.value}_seed": s.hex() for r, s in derived.role_seeds.items()}
    return {
        "session_id": derived.session_id,
        "session_key": derived.session_key.hex(),
        **seeds,
    }


def _full_meta(document: str) -> Any:
    return payload.parse_meta(document.encode(), full=True)


def _bind(i: dict[str, Any]) -> None:
    request, result = _full_meta(i["job_meta"]), _full_meta(i["result_meta"])
    job.bind_result(result, job=request, input_sha256=i["input_sha256"])


def _live_write(i: dict[str, Any]) -> dict[str, Any]:
    writer = live.LiveWriter(
        keys.SigningKey.from_seed(bytes.fromhex(i["author_seed"])),
        bytes.fromhex(i["session_key"]),
        SessionId(i["session_id"]),
        item.ItemRef(**i["job"]),
        bytes.fromhex(i["random"]),
    )
    frames = []
    for segment in i["segments"]:
        frame, writer = writer.write([live.Piece(n, bytes.fromhex(data)) for n, data in segment])
        frames.append(base64.b64encode(frame).decode())
    return {"frames_b64": frames, "head": writer.head}


def _live_read(i: dict[str, Any]) -> dict[str, Any]:
    reader = live.LiveReader(
        bytes.fromhex(i["session_key"]),
        SessionId(i["session_id"]),
        item.ItemRef(**i["job"]),
        PublicKey(i["runner"]),
    )
    pieces: list[live.Piece] = []
    for frame in i["frames_b64"]:
        more, reader = reader.read(_b64(frame))
        pieces += more
    last = reader.last
    return {
        "pieces": [[piece.stream, piece.data.hex()] for piece in pieces],
        "gap_bytes": reader.gap_bytes,
        "head": last.link if last else None,
    }


def _open_pack(i: dict[str, Any]) -> str:
    plain = pack.open_pack(
        bytes.fromhex(i["session_key"]),
        SessionId(i["session_id"]),
        job=ItemId(i["job"]),
        number=i["number"],
        sealed=_b64(i["sealed_b64"]),
    )
    return plain.hex()


def _open_lack(i: dict[str, Any]) -> str:
    plain = pack.open_lack(
        bytes.fromhex(i["session_key"]),
        SessionId(i["session_id"]),
        job=ItemId(i["job"]),
        runner=PublicKey(i["runner"]),
        sealed=_b64(i["sealed_b64"]),
    )
    return plain.hex()


def _cut(i: dict[str, Any]) -> list[list[Any]]:
    seed = keys.chunk_seed(bytes.fromhex(i["session_key"]), SessionId(i["session_id"]))
    recipe = Cutter(seed).recipe(_counted(i["size"]))
    return [[chunk.length, chunk.digest.hex()] for chunk in recipe.chunks]


def _counted(size: int) -> Iterator[bytes]:
    """Bytes anyone can make: SHA-256 of 0, 1, 2, … as four bytes each, one after the other."""
    for number in range(0, size, 32):
        yield hashlib.sha256((number // 32).to_bytes(4, "big")).digest()[: size - number]


def _find_place(i: dict[str, Any]) -> dict[str, Any]:
    place = chain.find_place(
        PublicKey(i["author"]),
        [item.ItemRef(**ref) for ref in i["chosen"]],
        [chain.Link(item.ItemRef(**tip["ref"]), tip["seq"], tip["stays"]) for tip in i["tips"]],
        knows=i["knows"],
        random=bytes.fromhex(i["random"]),
    )
    return {"id": place.item_id, "refs": [msgspec.to_builtins(ref) for ref in place.refs]}


def _read_mark(i: dict[str, Any]) -> dict[str, Any] | None:
    header = item.parse_envelope(i["envelope"]).header
    mark = chain.read_mark(header)
    if mark is None:
        return None
    chosen = len(chain.chosen_refs(header))
    return {**msgspec.to_builtins(mark), "chosen": chosen}


def _verify_audit(i: dict[str, Any]) -> dict[str, Any]:
    wanted = {name: i[name] for name in ("session_id", "invite", "extract") if name in i}
    report = audit.verify_audit(i["lines"], **wanted)
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(report))
    proved = ("session_id", "is_expected", "items", "linked", "unchained", "maybe_forgotten")
    for person in found["people"]:
        del person["fingerprint"]
    return {name: found[name] for name in (*proved, "people", "jobs", "decisions")} | {
        "verified": report.verified,
        "wrong": sorted({problem.line for problem in report.problems}),
    }


def _chain(i: dict[str, Any]) -> dict[str, Any]:
    reader = chain.Chain(numbered=i["numbered"])
    for event in i["events"]:
        if "skip" in event:
            reader.skip(*event["skip"])
        else:
            envelope = item.parse_envelope(event["envelope"])
            reader.step(event["seq"], envelope, event.get("blob_sha256"))
    alarms = [
        {"kind": alarm.kind, "item": alarm.item, "seq": alarm.seq, "named_by": alarm.named_by}
        for alarm in reader.alarms
    ]
    return {"alarms": alarms, "forgotten": reader.counted_forgotten}


def _read_changes(i: dict[str, Any]) -> list[list[Any]]:
    found = changes.parse_changes(_b64(i["archive_b64"]), most_bytes=i["most_bytes"])
    sent = None if "sent" not in i else parse_index(bytes.fromhex(i["sent"]))
    changes.check_changes(found, Wanted(i["patterns"]), sent)
    return [
        [
            change.path.hex(),
            None if change.before is None else change.before.kind.value,
            None if change.after is None else change.after.kind.value,
        ]
        for change in found
    ]


def _reasons_for(i: dict[str, Any]) -> dict[str, list[str]]:
    post = msgspec.convert(i["post"], addressing.Post)
    found = {
        key: addressing.reasons_for(post, PublicKey(key), keys.Role(role))
        for key, role in i["people"].items()
    }
    return {key: [reason.value for reason in reasons] for key, reasons in found.items()}


def _count_hops(i: dict[str, Any]) -> int:
    return addressing.count_hops(cert.ClientKind(kind) for kind in i["authors"])


def _parse_code(i: dict[str, Any]) -> dict[str, Any]:
    code = transfer.parse_code(i["text"])
    return {"nameplate": code.nameplate, "words": list(code.words)}


def _exchange(i: dict[str, Any]) -> dict[str, Any]:
    """Both ends of one exchange, each with its own half of the inputs."""
    words, link = tuple(i["words"]), invite.parse_invite(i["link"])
    offered = transfer.Offered(link.session_id, link.role, i["nameplate"])
    randoms = (bytes.fromhex(i[f"{side}_random"]) for side in ("sender", "receiver"))
    sides = (transfer.Side.SENDER, transfer.Side.RECEIVER)
    own, other = (
        transfer.make_share(side, words, random)
        for side, random in zip(sides, randoms, strict=True)
    )
    sender = transfer.agree(own, other.point, offered)
    receiver = transfer.agree(other, own.point, offered)
    sender.check(receiver.confirmation)
    receiver.check(sender.confirmation)
    assert sender.verifier == receiver.verifier
    sealed = transfer.seal_invite(sender, offered, link, bytes.fromhex(i["nonce"]))
    assert transfer.open_invite(receiver, offered, sealed, link.base_url) == link
    return {
        "sender_point": own.point.hex(),
        "receiver_point": other.point.hex(),
        "sender_confirmation": sender.confirmation.hex(),
        "receiver_confirmation": receiver.confirmation.hex(),
        "verifier": sender.verifier,
        "sealed": sealed.hex(),
    }


def _park(i: dict[str, Any]) -> str:
    salt, nonce = bytes.fromhex(i["salt"]), bytes.fromhex(i["nonce"])
    link = invite.parse_invite(i["link"])
    return transfer.park(tuple(i["words"]), link, salt=salt, nonce=nonce).decode()


def _open_parked(i: dict[str, Any]) -> str:
    parked = transfer.parse_parked(i["document"].encode())
    found = transfer.stretch(tuple(i["words"]), b64u_decode(parked.salt))
    offered = transfer.Offered(parse_session_id(parked.session_id), parked.role, 0)
    sealed = b64u_decode(parked.sealed)
    return transfer.open_parked(found, sealed, offered, i["base_url"]).url()


OPERATIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "canonical_text_meta": _canonical_text,
    "canonical_result_wall_ms": _canonical_result("wall_ms"),
    "canonical_result_exit_code": _canonical_result("exit_code"),
    "public_key": lambda i: keys.SigningKey.from_seed(bytes.fromhex(i["seed"])).public,
    "fingerprint": lambda i: keys.fingerprint(PublicKey(i["public_key"])),
    "derive": _derive,
    "create_session": _create,
    "verify_manifest": lambda i: manifest.manifest_body(i["signed_manifest"]),
    "owner_invite": lambda i: invite.owner_invite(
        i["base_url"], bytes.fromhex(i["owner_seed"])
    ).url(),
    "member_invite": lambda i: invite.member_invite(
        i["base_url"], bytes.fromhex(i["owner_seed"]), _role(i["role"])
    ).url(),
    "parse_invite": _invite_info,
    "check_invite": _check_invite,
    "issue_cert": _issue,
    "verify_cert": _verify_cert,
    "sign_join": _sign_join,
    "verify_join": _verify_join,
    "join_cert": lambda i: cert.join_cert(i["signed_join"]),
    "encode_payload": lambda i: payload.encode_payload(
        _meta(i["meta"]), bytes.fromhex(i["body"])
    ).hex(),
    "decode_payload": _decode,
    "verify_item": _verify_item,
    "open_item": _open_item,
    "item_ref": _item_ref,
    "check_header": _check_header,
    "open_checked": _open_checked,
    "check_result_for_job": _check_result,
    "frame": _frame,
    "bind_result": _bind,
    "live_write": _live_write,
    "live_read": _live_read,
    "open_pack": _open_pack,
    "open_lack": _open_lack,
    "cut": _cut,
    "find_place": _find_place,
    "read_mark": _read_mark,
    "chain": _chain,
    "read_changes": _read_changes,
    "verify_audit": _verify_audit,
    "recipients": lambda i: list(addressing.encode_recipients(i["words"])),
    "reasons_for": _reasons_for,
    "count_hops": _count_hops,
    "parse_code": _parse_code,
    "draw_words": lambda i: list(transfer.draw_words(i["count"], bytes.fromhex(i["random"]))),
    "exchange": _exchange,
    "check_point": lambda i: transfer.check_point(bytes.fromhex(i["point"])),
    "park": _park,
    "open_parked": _open_parked,
    **EPOCHS,
}
