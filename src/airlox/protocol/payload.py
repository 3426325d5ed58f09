"""What an item may carry, and how it is framed: 4-byte length ‖ canonical JSON meta ‖ body.

The form depends on the session: in floor sessions no field beyond 0.1.0's is known, but for `to`
and `reply_to`, for which a person asks and which 0.1.0 refuses item by item. Structure is
checked here (ValidationError); whether the content is allowed is policy.py's question.
Source: docs/protocol.md, "Payloads".
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from airlox.errors import EncodingError, LimitError, ValidationError
from airlox.protocol import canonical, limits
from airlox.protocol.addressing import check_recipients
from airlox.protocol.canonical import U32, Wire
from airlox.protocol.encoding import parse_item_id
from airlox.protocol.item import ItemRef, Kind
from airlox.protocol.job import (
    FloorPythonJob,
    FloorResult,
    Job,
    PythonJob,
    Result,
    ShellJob,
    check_hosts,
)
from airlox.protocol.keys import parse_public_key
from airlox.protocol.manifest import JobKind, check_kinds


class Addressed(Wire, frozen=True, kw_only=True):
    """What says whom a message or file is for; both left out when unused.

    They are sealed with the content: a relay does not learn who talks to whom.
    """

    reply_to: str | UnsetType = UNSET
    to: tuple[str, ...] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.to is not UNSET:
            check_recipients(self.to)
        if self.reply_to is not UNSET:
            parse_item_id(self.reply_to)


class Text(Addressed, frozen=True, kw_only=True):
    """A message, Markdown."""

    text: str
    type: Literal["text"] = "text"


class File(Addressed, frozen=True, kw_only=True):
    """A file; its bytes are the body."""

    mime: str
    name: str
    type: Literal["file"] = "file"


class RunnerApprove(Wire, frozen=True, kw_only=True):
    """The owner approves exactly this runner."""

    participant_pub: str
    event: Literal["runner_approve"] = "runner_approve"
    type: Literal["event"] = "event"

    def __post_init__(self) -> None:
        parse_public_key(self.participant_pub)


class RunnerReject(Wire, frozen=True, kw_only=True):
    """The owner rejects this runner, for good."""

    participant_pub: str
    reason: str | None
    event: Literal["runner_reject"] = "runner_reject"
    type: Literal["event"] = "event"

    def __post_init__(self) -> None:
        parse_public_key(self.participant_pub)


class JobCancel(Wire, frozen=True, kw_only=True):
    """The owner or the job's author cancels a job."""

    job: ItemRef
    event: Literal["job_cancel"] = "job_cancel"
    type: Literal["event"] = "event"


class SessionClose(Wire, frozen=True, kw_only=True):
    """The owner closes the session."""

    event: Literal["session_close"] = "session_close"
    type: Literal["event"] = "event"


class RunnerInfoNote(Wire, frozen=True, kw_only=True):
    """What a runner offers (full sessions): the only source of these facts."""

    airlox: str
    kinds: tuple[JobKind, ...]
    layers: dict[str, U32]
    network: Literal["off", "allow_list", "on", "open"]
    platform: str
    sandbox: str
    slots: U32
    workspaces: bool
    type: Literal["runner_info"] = "runner_info"
    builder: str | UnsetType = UNSET
    gpus: U32 | UnsetType = UNSET
    hosts: tuple[str, ...] | UnsetType = UNSET
    image: str | UnsetType = UNSET
    memory_mb: U32 | UnsetType = UNSET
    python: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        texts = [self.airlox, self.platform, self.sandbox, *self.layers]
        optional = (self.builder, self.image, self.python)
        texts += [text for text in optional if text is not UNSET]
        if any(len(text) > limits.ENV_TEXT or not text.isprintable() for text in texts):
            raise ValidationError("runner info has a text that is too long or not printable")
        if len(self.layers) > limits.LAYERS or not all(key.isascii() for key in self.layers):
            raise ValidationError("malformed layers in runner info")
        check_kinds(self.kinds)
        check_hosts(self.network, self.hosts)
        if self.slots < 1:
            raise ValidationError("a runner has at least one slot")


Event = RunnerApprove | RunnerReject | JobCancel | SessionClose
Meta = Text | File | Job | Result | Event | RunnerInfoNote

_EVENTS: Final[dict[str, type[Any]]] = {
    "runner_approve": RunnerApprove,
    "runner_reject": RunnerReject,
    "job_cancel": JobCancel,
    "session_close": SessionClose,
}


class _Probe(msgspec.Struct):
    """The fields that say which form a meta has; the form itself decides the rest."""

    type: str
    event: str = ""
    kind: msgspec.Raw = msgspec.Raw(b"")


def encode_payload(meta: Meta, body: bytes = b"") -> bytes:
    """The framed payload. Raises ValidationError for a body where none belongs, or a big meta."""
    return _frame(canonical.encode(meta), meta, body)


def decode_payload(data: bytes, *, full: bool) -> tuple[Meta, bytes]:
    """Meta and body of a payload, in the form of a full or a floor session.

    Raises ValidationError.
    """
    size = int.from_bytes(data[:4], "big")
    if len(data) < 4 or size > len(data) - 4:
        raise EncodingError("payload ends before its meta does")
    if size > limits.META_BYTES:
        raise LimitError(f"a meta has at most {limits.META_BYTES} bytes")
    meta = parse_meta(data[4 : 4 + size], full=full)
    body = data[4 + size :]
    if body and not isinstance(meta, File):
        raise ValidationError("only files have a body")
    return meta, body


def parse_meta(document: bytes, *, full: bool) -> Meta:
    """The meta in canonical form. Raises ValidationError."""
    probe = canonical.decode_loose(document, _Probe, "payload meta")
    form = _form_of(probe, full)
    value = canonical.decode(document, form, f"{probe.type[:20]} meta")
    return _widen(value)


def _form_of(probe: _Probe, full: bool) -> type[Any]:
    match probe.type:
        case "text":
            return Text
        case "file":
            return File
        case "job" if full:
            return ShellJob if bytes(probe.kind) == b'"shell"' else PythonJob
        case "job":
            return FloorPythonJob
        case "result":
            return Result if full else FloorResult
        case "runner_info" if full:
            return RunnerInfoNote
        case "event" if probe.event in _EVENTS:
            return _EVENTS[probe.event]
        case _:
            raise ValidationError("payload of an unknown type")


def _widen(value: Any) -> Meta:
    """Floor forms become the general ones, with the further fields absent."""
    if type(value) is FloorPythonJob:
        return PythonJob(**msgspec.structs.asdict(value))
    if type(value) is FloorResult:
        return Result(**msgspec.structs.asdict(value))
    meta: Meta = value
    return meta


def _frame(document: bytes, meta: Meta, body: bytes) -> bytes:
    if len(document) > limits.META_BYTES:
        raise LimitError(f"a meta has at most {limits.META_BYTES} bytes")
    if body and not isinstance(meta, File):
        raise ValidationError("only files have a body")
    return len(document).to_bytes(4, "big") + document + body


def kind_of(meta: Meta) -> Kind:
    """The item kind that carries this meta."""
    return Kind(meta.type)
