"""Who may post what: one table, and the two halves of the check of an item.

`check_header` needs no session key: it is the relay's gate and the reader's first half.
`check_payload` is the reader's second half, on what was decrypted.
Source: docs/protocol.md, "Items".
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from airlox.errors import PolicyError
from airlox.protocol import limits
from airlox.protocol.archive import inspect_zip
from airlox.protocol.cert import Cert
from airlox.protocol.encoding import PublicKey
from airlox.protocol.item import Envelope, Header, Kind, decrypt_item, verify_item
from airlox.protocol.job import PythonJob, Result, ShellJob, check_job, check_result
from airlox.protocol.keys import Role
from airlox.protocol.manifest import ContentType, Feature, JobKind, Manifest, Mode
from airlox.protocol.names import check_safe_name, lower_ascii
from airlox.protocol.payload import (
    File,
    Meta,
    RunnerApprove,
    RunnerReject,
    SessionClose,
    decode_payload,
)

MAY_POST: Final[dict[Kind, frozenset[Role]]] = {
    Kind.TEXT: frozenset({Role.OWNER, Role.SENDER}),
    Kind.FILE: frozenset({Role.OWNER, Role.SENDER, Role.RUNNER}),
    Kind.JOB: frozenset({Role.OWNER, Role.SENDER}),
    Kind.RESULT: frozenset({Role.OWNER, Role.RUNNER}),
    Kind.EVENT: frozenset({Role.OWNER, Role.SENDER}),
    Kind.RUNNER_INFO: frozenset({Role.RUNNER}),
}
"""Which roles may post each kind. Of events, a sender may post `job_cancel` only."""

EXECUTE_ONLY: Final = frozenset({Kind.JOB, Kind.RESULT, Kind.RUNNER_INFO})
FULL_ONLY: Final = frozenset({Kind.RUNNER_INFO})

MIME_OF: Final[dict[str, dict[str, str]]] = {
    "py": {".py": "text/x-python"},
    "md": {".md": "text/markdown", ".markdown": "text/markdown"},
    "zip": {".zip": "application/zip"},
    "image": {
        ".png": "image/png",
        ".jpg": "image/jpeg",
        ".jpeg": "image/jpeg",
        ".webp": "image/webp",
    },
}
"""For each subkind of file: extension (lower case) to the one MIME type that goes with it."""

_TYPE_OF_FILE: Final = {
    "py": ContentType.PY,
    "md": ContentType.MD,
    "zip": ContentType.ZIP,
    "image": ContentType.IMAGE,
}


def check_role_may_post(role: Role, kind: Kind) -> None:
    """Raises PolicyError unless `role` may post items of `kind`."""
    if role not in MAY_POST[kind]:
        raise PolicyError(
            f"the role {role} may not post {kind} items",
            code="forbidden",
            hint="use an invite of another role",
        )


def check_header(manifest: Manifest, cert: Cert, envelope: Envelope, blob: bytes) -> Role:
    """Certificate, signature, size, time, role and content type of an item; gives the role.

    Raises ValidationError, SignatureError or PolicyError.
    """
    verify_item(envelope, blob)
    check_header_rules(manifest, cert, envelope.header)
    return cert.role


def check_header_rules(manifest: Manifest, cert: Cert, header: Header) -> None:
    """`check_header` without the blob: what the header alone decides. Raises PolicyError."""
    if header.author != cert.participant_pub:
        raise PolicyError("the item's author is not the certificate's participant")
    if header.session_id != manifest.session_id:
        raise PolicyError("item of another session")
    if header.epoch is not UNSET and not manifest.has(Feature.EPOCHS):
        raise PolicyError("this session has no epochs", code="no_epochs")
    expires = manifest.expires_at_ms
    if header.created_at_ms < manifest.created_at_ms or (
        expires is not None and header.created_at_ms >= expires
    ):
        raise PolicyError(f"item {header.id} is dated outside the session's lifetime")
    if header.size > manifest.max_item_bytes:
        raise PolicyError(
            f"item of {header.size} bytes is beyond the session's {manifest.max_item_bytes}",
            code="too_large",
        )
    check_role_may_post(cert.role, header.kind)
    if cert.role is Role.RUNNER and manifest.mode is not Mode.EXECUTE:
        raise PolicyError("runners need an execute session")
    _check_kind(manifest, header.kind, header.subkind)


def _check_kind(manifest: Manifest, kind: Kind, subkind: str | None) -> None:
    if kind in EXECUTE_ONLY and manifest.mode is not Mode.EXECUTE:
        raise PolicyError(f"{kind} items need an execute session")
    if kind in FULL_ONLY and not manifest.is_full:
        raise PolicyError(f"{kind} items need a full session")
    if kind is Kind.JOB:
        wanted = JobKind.PYTHON if subkind == "py" else JobKind.SHELL
        if wanted not in manifest.kinds:
            raise PolicyError(
                f"this session takes no {wanted} jobs",
                code="kind_not_allowed",
                hint=f"create the session with --kinds {wanted}",
            )
    needed = _content_type(kind, subkind)
    if needed is not None and needed not in manifest.allowed_types:
        raise PolicyError(f"this session does not allow {needed} content")


def _content_type(kind: Kind, subkind: str | None) -> ContentType | None:
    if kind is Kind.TEXT:
        return ContentType.TEXT
    if kind is Kind.FILE:
        return _TYPE_OF_FILE[subkind or ""]
    return ContentType.PY if kind is Kind.JOB and subkind == "py" else None


def open_checked(
    manifest: Manifest, cert: Cert, envelope: Envelope, blob: bytes, session_key: bytes
) -> tuple[Meta, bytes]:
    """Everything a reader checks of an item; gives its meta and body.

    Raises ValidationError, SignatureError, DecryptError or PolicyError.
    """
    check_header(manifest, cert, envelope, blob)
    payload = decrypt_item(envelope, blob, session_key)
    meta, body = decode_payload(payload, full=manifest.is_full)
    check_payload(manifest, cert.role, envelope.header, meta, body)
    return meta, body


def check_payload(manifest: Manifest, role: Role, header: Header, meta: Meta, body: bytes) -> None:
    """The content goes with its header and keeps to the session. Raises as `open_checked`."""
    if meta.type != header.kind:
        raise PolicyError(f"a {header.kind} item carries a {meta.type}")
    if isinstance(meta, File):
        check_file(header.subkind or "", meta, body)
    elif isinstance(meta, PythonJob | ShellJob):
        if (header.subkind == "sh") != isinstance(meta, ShellJob):
            raise PolicyError("the job is not of the kind its header says")
        if manifest.job_limits is None:
            raise PolicyError("jobs need an execute session")
        check_job(meta, manifest.job_limits)
        _check_queue(manifest, header, meta)
        if meta.pull is not UNSET and not manifest.has(Feature.PULL):
            raise PolicyError(
                "what jobs change in a tree does not come back in this session",
                code="no_pull",
                hint="create the session with --features pull",
            )
    elif isinstance(meta, Result):
        check_result(meta, full=manifest.is_full)
    elif isinstance(meta, RunnerApprove | RunnerReject | SessionClose):
        if role is not Role.OWNER:
            raise PolicyError(f"only the owner may post {meta.event}", code="forbidden")
        _check_reason(meta)


def _check_queue(manifest: Manifest, header: Header, job: PythonJob | ShellJob) -> None:
    """A job waits only where the session has a queue, and not for ever."""
    if job.queue is UNSET:
        return
    if not manifest.has(Feature.QUEUE):
        raise PolicyError(
            "jobs do not wait in this session",
            code="no_queue",
            hint="create the session with --features queue",
        )
    wait_ms = job.queue.start_by_ms - header.created_at_ms
    if not 0 <= wait_ms <= limits.QUEUE_MS:
        raise PolicyError(f"a job waits for at most {limits.QUEUE_MS // 86_400_000} days")


def _check_reason(meta: RunnerApprove | RunnerReject | SessionClose) -> None:
    reason = meta.reason if isinstance(meta, RunnerReject) else None
    if reason is not None and len(reason) > limits.REASON:
        raise PolicyError(f"a reason has at most {limits.REASON} characters")


def check_file(subkind: str, meta: File, body: bytes) -> None:
    """Name, extension, MIME type, subkind and content of a file agree.

    Raises PolicyError, or ValidationError for an archive that is unsafe.
    """
    check_safe_name(meta.name)
    dot = meta.name.rfind(".")
    extension = lower_ascii(meta.name[dot:]) if dot > 0 else ""
    if MIME_OF[subkind].get(extension) != meta.mime:
        raise PolicyError("file name, type and content kind do not go together")
    if subkind in ("py", "md"):
        _check_text(subkind, body)
    elif subkind == "zip":
        if body[:4] not in (b"PK\x03\x04", b"PK\x05\x06"):
            raise PolicyError("not a ZIP archive")
        inspect_zip(body)
    else:
        _check_image(meta.mime, body)


def _check_text(subkind: str, body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError:
        raise PolicyError("text file is not UTF-8") from None
    if subkind == "md" and b"\0" in body:
        raise PolicyError("Markdown file has a NUL character")


def _check_image(mime: str, body: bytes) -> None:
    found = image_mime(body)
    if found != mime:
        raise PolicyError(f"content is not {mime}")


def image_mime(body: bytes) -> str | None:
    """MIME type by magic bytes, or None. Says nothing about the rest of the file."""
    if body.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if body.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "image/webp"
    return None


def may_take_jobs(
    manifest: Manifest,
    runner: PublicKey,
    approved: frozenset[PublicKey],
    rejected: frozenset[PublicKey],
) -> bool:
    """Whether the owner's signed events let `runner` take jobs. A rejection is final."""
    if runner in rejected or manifest.job_limits is None:
        return False
    return runner in approved or not manifest.job_limits.approve_runners


def check_may(role: Role, *allowed: Role, what: str) -> None:
    """Raises PolicyError unless `role` is one of `allowed`."""
    if role not in allowed:
        names = " or ".join(allowed)
        raise PolicyError(
            f"only the {names} may {what}", code="forbidden", hint=f"use the {names} invite"
        )
