"""Certificates (proof of a role for one key) and join requests.

A certificate is signed with the role's key, a join with the participant's own.
Source: docs/protocol.md, "Certificates and joins".
"""

from __future__ import annotations

import re
from contextlib import suppress
from enum import StrEnum
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from airlox.errors import LimitError, SignatureError, ValidationError
from airlox.protocol import canonical, limits
from airlox.protocol.canonical import Signed, TimeMs, Wire
from airlox.protocol.encoding import PublicKey, SessionId
from airlox.protocol.epochs import EpochState, link_replaced
from airlox.protocol.keys import Role, SigningKey, parse_public_key
from airlox.protocol.manifest import Manifest
from airlox.protocol.names import check_display_text
from airlox.protocol.signature import Label, verify


class ClientKind(StrEnum):
    """What software joined, by its own word."""

    SDK = "sdk"
    CLI = "cli"
    WEB = "web"
    RUNNER = "runner"


class SandboxName(StrEnum):
    """How a runner confines jobs. `process` is known in full sessions only."""

    LOCAL = "local"
    DOCKER = "docker"
    KUBERNETES = "kubernetes"
    PROCESS = "process"


_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")


def check_runner_name(text: str) -> str:
    """A runner's name or label. Raises ValidationError."""
    if _NAME.match(text) is None:
        raise ValidationError(
            "runner names and labels are 1 to 63 of a-z 0-9 . _ - and start with a letter or digit"
        )
    return text


class RunnerInfo(Wire, frozen=True, kw_only=True):
    """What a runner says of itself when it joins."""

    host: str
    labels: tuple[str, ...]
    name: str
    network_unblocked: bool
    sandbox: SandboxName

    def __post_init__(self) -> None:
        check_display_text(self.host, "host", limits.HOST)
        check_runner_name(self.name)
        if len(self.labels) > limits.LABELS:
            raise LimitError(f"a runner has at most {limits.LABELS} labels")
        for label in self.labels:
            check_runner_name(label)


class _CertBody(Wire, frozen=True, kw_only=True):
    issued_at_ms: TimeMs
    participant_pub: str
    role: Role
    session_id: str
    v: Literal[1]


class SignedCert(Signed, frozen=True, kw_only=True):
    """A certificate as it travels; `parse_cert` gives the verified value."""

    cert: _CertBody


class _JoinBody(Wire, frozen=True, kw_only=True):
    cert: SignedCert
    created_at_ms: TimeMs
    description: str | UnsetType = UNSET
    display_name: str
    kind: ClientKind
    runner: RunnerInfo | None
    session_id: str
    v: Literal[1]


class _SignedJoin(Signed, frozen=True, kw_only=True):
    join: _JoinBody


class Cert(msgspec.Struct, frozen=True):
    """A verified certificate."""

    participant_pub: PublicKey
    role: Role
    issued_at_ms: int


class Join(msgspec.Struct, frozen=True):
    """A verified join request. `document` is the signed text it came from."""

    document: str
    cert: Cert
    created_at_ms: int
    description: str | None
    display_name: str
    kind: ClientKind
    runner: RunnerInfo | None

    @property
    def participant_pub(self) -> PublicKey:
        return self.cert.participant_pub

    @property
    def role(self) -> Role:
        return self.cert.role


def issue_cert(
    role_seed: bytes,
    *,
    session_id: SessionId,
    role: Role,
    participant_pub: PublicKey,
    issued_at_ms: int,
) -> str:
    """A certificate signed with the role's key."""
    if not 0 <= issued_at_ms <= canonical.MAX_INTEGER:
        raise LimitError("time out of range")
    body = _CertBody(
        issued_at_ms=issued_at_ms,
        participant_pub=parse_public_key(participant_pub),
        role=role,
        session_id=session_id,
        v=1,
    )
    sig = SigningKey.from_seed(role_seed).sign(Label.CERT, canonical.encode(body))
    return canonical.encode(SignedCert(cert=body, sig=sig)).decode()


def parse_cert(document: str, manifest: Manifest) -> Cert:
    """The verified certificate. Raises ValidationError or SignatureError."""
    return _check_cert(canonical.decode(document, SignedCert, "certificate"), manifest)


def _check_cert(signed: SignedCert, manifest: Manifest, state: EpochState | None = None) -> Cert:
    body = signed.cert
    if body.session_id != manifest.session_id:
        raise ValidationError("certificate of another session")
    participant = parse_public_key(body.participant_pub)
    role_key = manifest.key_of(body.role) if state is None else state.key_of(body.role)
    try:
        verify(role_key, Label.CERT, canonical.encode(body), signed.sig)
    except SignatureError:
        _check_not_replaced(signed, state)
        raise
    return Cert(participant_pub=participant, role=body.role, issued_at_ms=body.issued_at_ms)


def _check_not_replaced(signed: SignedCert, state: EpochState | None) -> None:
    """Says so when a certificate is of a key that its role had before. Raises PolicyError."""
    for role_key, role in () if state is None else state.replaced.items():
        if role is signed.cert.role:
            with suppress(SignatureError):
                verify(role_key, Label.CERT, canonical.encode(signed.cert), signed.sig)
                raise link_replaced(role)


def sign_join(
    key: SigningKey,
    *,
    cert: str,
    session_id: SessionId,
    display_name: str,
    kind: ClientKind,
    created_at_ms: int,
    description: str | None = None,
    runner: RunnerInfo | None = None,
) -> str:
    """A join request signed with the participant's key, which the certificate must name."""
    signed_cert = canonical.decode(cert, SignedCert, "certificate")
    if signed_cert.cert.participant_pub != key.public:
        raise ValidationError("the certificate names another participant key")
    body = _JoinBody(
        cert=signed_cert,
        created_at_ms=created_at_ms,
        description=UNSET if description is None else description,
        display_name=display_name,
        kind=kind,
        runner=runner,
        session_id=session_id,
        v=1,
    )
    sig = key.sign(Label.JOIN, canonical.encode(body))
    return canonical.encode(_SignedJoin(join=body, sig=sig)).decode()


def join_cert(document: str) -> str:
    """The certificate inside a join request, as canonical text; not verified."""
    signed = canonical.decode(document, _SignedJoin, "join")
    return canonical.encode(signed.join.cert).decode()


def parse_join(document: str, manifest: Manifest, state: EpochState | None = None) -> Join:
    """The verified join request, under the role keys that `state` says, else the manifest's.

    Raises ValidationError or SignatureError, and PolicyError for a role that was revoked or a link
    that was replaced.
    """
    if len(document) > limits.JOIN_BYTES:
        raise LimitError("join request is too large")
    signed = canonical.decode(document, _SignedJoin, "join")
    body = signed.join
    if body.session_id != manifest.session_id:
        raise ValidationError("join request of another session")
    check_display_text(body.display_name, "display name", limits.DISPLAY_NAME)
    if body.description is not UNSET:
        check_display_text(body.description, "description", limits.DESCRIPTION)
    is_runner = body.cert.cert.role is Role.RUNNER
    if not (is_runner == (body.kind is ClientKind.RUNNER) == (body.runner is not None)):
        raise ValidationError("runner role, runner kind and runner info go together")
    if body.runner and body.runner.sandbox is SandboxName.PROCESS and not manifest.is_full:
        raise ValidationError(
            "the process sandbox is known in full sessions only",
            hint="create the session with --kinds, or use another sandbox",
        )
    cert = _check_cert(body.cert, manifest, state)
    verify(cert.participant_pub, Label.JOIN, canonical.encode(body), signed.sig)
    return Join(
        document=document,
        cert=cert,
        created_at_ms=body.created_at_ms,
        description=None if body.description is UNSET else body.description,
        display_name=body.display_name,
        kind=body.kind,
        runner=body.runner,
    )
