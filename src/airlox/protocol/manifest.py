"""The session manifest: the terms the owner signed, fixed for the session's life.

A *floor* session uses the fields of 0.1.0 only. A *full* session names its `features` and, in
`job_limits`, the `kinds` of jobs; an older client refuses it as a whole.
Source: docs/protocol.md, "Manifest".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from airlox.errors import EncodingError, LimitError, PolicyError, ValidationError
from airlox.protocol import canonical, limits
from airlox.protocol.canonical import Signed, TimeMs, Wire
from airlox.protocol.encoding import PublicKey, SessionId, parse_session_id
from airlox.protocol.keys import Role, SessionKeys, SigningKey, parse_public_key, session_id_of
from airlox.protocol.signature import Label, verify


class Mode(StrEnum):
    """`execute` sessions have runners and jobs; `relay` sessions do not."""

    RELAY = "relay"
    EXECUTE = "execute"


class ContentType(StrEnum):
    TEXT = "text"
    PY = "py"
    MD = "md"
    ZIP = "zip"
    IMAGE = "image"


class JobKind(StrEnum):
    PYTHON = "python"
    SHELL = "shell"


class Feature(StrEnum):
    """What a full session switches on. A reader that lacks one refuses the session by its name."""

    EPOCHS = "epochs"
    HISTORY = "history"
    LIVE = "live"
    PINS = "pins"
    PULL = "pull"
    QUEUE = "queue"
    TREES = "trees"


ALL_TYPES: Final = tuple(ContentType)
ALL_FEATURES: Final = tuple(sorted(Feature))

_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
    r"(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*\Z"
)
_RUNTIME: Final = re.compile(r"python3\.[0-9]+\Z")
_PACKAGE: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")
_PIN: Final = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*)((?:===|[=<>!~]=|[<>])[!-~]+)\Z")


def check_kinds(kinds: tuple[JobKind, ...]) -> None:
    """Raises ValidationError unless the list is sorted, without repeats, and not empty."""
    if not kinds or list(kinds) != sorted(set(kinds)):
        raise ValidationError("kinds must be a sorted list of python, shell")


class JobLimits(Wire, frozen=True, kw_only=True):
    """What a job of the session may use; each value is a ceiling a job may lower."""

    approve_runners: bool
    kinds: tuple[JobKind, ...] | UnsetType = UNSET
    memory_mb: Annotated[int, msgspec.Meta(ge=limits.JOB_MEMORY_MB[0], le=limits.JOB_MEMORY_MB[1])]
    network: bool
    packages: tuple[str, ...]
    return_out: bool
    runtime: str
    timeout_s: Annotated[int, msgspec.Meta(ge=1, le=limits.JOB_TIMEOUT_S)]

    def __post_init__(self) -> None:
        if _RUNTIME.match(self.runtime) is None:
            raise ValidationError("runtime must look like python3.12")
        if self.kinds is not UNSET:
            check_kinds(self.kinds)


class RoleKeys(Wire, frozen=True, kw_only=True):
    observer: str
    runner: str
    sender: str


class _Body(Wire, frozen=True, kw_only=True):
    allowed_types: tuple[ContentType, ...]
    created_at_ms: TimeMs
    expires_at_ms: TimeMs | None
    features: tuple[str, ...] | UnsetType = UNSET
    insecure_http_host: str | UnsetType = UNSET
    job_limits: JobLimits | None
    max_item_bytes: Annotated[int, msgspec.Meta(ge=1, le=limits.ITEM_BYTES)]
    mode: Mode
    owner_pub: str
    roles: RoleKeys
    session_id: str
    v: Literal[1]


class _SignedManifest(Signed, frozen=True, kw_only=True):
    manifest: _Body


class _LooseBody(msgspec.Struct):
    features: tuple[str, ...] = ()


class _Loose(msgspec.Struct):
    """What a manifest that cannot be read says it needs."""

    manifest: _LooseBody


class Manifest(msgspec.Struct, frozen=True):
    """Verified terms of a session. `document` is the signed text they came from."""

    document: str
    allowed_types: tuple[ContentType, ...]
    created_at_ms: int
    expires_at_ms: int | None
    features: tuple[Feature, ...]
    insecure_http_host: str | None
    """The one host beside this machine that participants may reach by plain http."""
    job_limits: JobLimits | None
    max_item_bytes: int
    mode: Mode
    owner_pub: PublicKey
    role_keys: dict[Role, PublicKey]
    session_id: SessionId

    @property
    def is_full(self) -> bool:
        """Whether the session goes beyond 0.1.0's forms."""
        return bool(self.features)

    @property
    def kinds(self) -> tuple[JobKind, ...]:
        """Kinds of jobs the session takes; none in relay mode."""
        if self.job_limits is None:
            return ()
        return (JobKind.PYTHON,) if self.job_limits.kinds is UNSET else self.job_limits.kinds

    def has(self, feature: Feature) -> bool:
        return feature in self.features

    def key_of(self, role: Role) -> PublicKey:
        return self.role_keys[role]

    def clamp_time(self, now_ms: int) -> int:
        """The nearest time inside the session's window; items outside are refused by readers."""
        at = max(now_ms, self.created_at_ms)
        return at if self.expires_at_ms is None else min(at, self.expires_at_ms - 1)


def build_manifest(
    owner_seed: bytes,
    *,
    mode: Mode,
    created_at_ms: int,
    ttl_ms: int | None,
    allowed_types: Sequence[ContentType] = ALL_TYPES,
    max_item_bytes: int = limits.DEFAULT_ITEM_BYTES,
    job_limits: JobLimits | None = None,
    features: Sequence[Feature] = (),
    insecure_http_host: str | None = None,
) -> str:
    """The signed manifest of a new session, checked as a reader would. Raises ValidationError."""
    keys = SessionKeys.derive(owner_seed)
    body = _Body(
        allowed_types=tuple(allowed_types),
        created_at_ms=created_at_ms,
        expires_at_ms=None if ttl_ms is None else created_at_ms + ttl_ms,
        features=tuple(sorted(features)) or UNSET,
        insecure_http_host=UNSET if insecure_http_host is None else insecure_http_host,
        job_limits=job_limits,
        max_item_bytes=max_item_bytes,
        mode=mode,
        owner_pub=keys.owner.public,
        roles=RoleKeys(
            **{
                role.value: SigningKey.from_seed(seed).public
                for role, seed in keys.role_seeds.items()
            }
        ),
        session_id=keys.session_id,
        v=1,
    )
    document = canonical.encode(
        _SignedManifest(manifest=body, sig=keys.owner.sign(Label.MANIFEST, canonical.encode(body)))
    ).decode()
    parse_manifest(document)
    return document


def parse_manifest(document: str) -> Manifest:
    """The verified manifest. Raises ValidationError or SignatureError.

    A feature this version does not know is a PolicyError that names it.
    """
    if len(document) > limits.MANIFEST_BYTES:
        raise LimitError("manifest is too large")
    signed = _decode(document)
    body = signed.manifest
    owner = parse_public_key(body.owner_pub)
    if parse_session_id(body.session_id) != session_id_of(owner):
        raise ValidationError("session id does not belong to the manifest's owner key")
    role_keys = _role_keys(body, owner)
    _check_lifetime(body)
    _check_types(body)
    _check_http_host(body)
    _check_features(body)
    _check_limits(body)
    verify(owner, Label.MANIFEST, canonical.encode(body), signed.sig)
    return Manifest(
        document=document,
        allowed_types=body.allowed_types,
        created_at_ms=body.created_at_ms,
        expires_at_ms=body.expires_at_ms,
        features=_known_features(() if body.features is UNSET else body.features),
        insecure_http_host=None if body.insecure_http_host is UNSET else body.insecure_http_host,
        job_limits=body.job_limits,
        max_item_bytes=body.max_item_bytes,
        mode=body.mode,
        owner_pub=owner,
        role_keys=role_keys,
        session_id=SessionId(body.session_id),
    )


def _decode(document: str) -> _SignedManifest:
    try:
        return canonical.decode(document, _SignedManifest, "manifest")
    except EncodingError:
        # A later feature may bring fields with it: its name says more than theirs. Nothing is
        # verified here, and nothing but the refusal depends on it.
        _known_features(_read_features(document))
        raise


def _read_features(document: str) -> tuple[str, ...]:
    try:
        return canonical.decode_loose(document, _Loose, "manifest").manifest.features
    except EncodingError:
        return ()


def manifest_body(document: str) -> str:
    """Canonical JSON of the inner manifest of a verified document."""
    parse_manifest(document)
    signed = canonical.decode(document, _SignedManifest, "manifest")
    return canonical.encode(signed.manifest).decode()


def _role_keys(body: _Body, owner: PublicKey) -> dict[Role, PublicKey]:
    keys = {
        Role.OWNER: owner,
        Role.SENDER: parse_public_key(body.roles.sender),
        Role.OBSERVER: parse_public_key(body.roles.observer),
        Role.RUNNER: parse_public_key(body.roles.runner),
    }
    if len(set(keys.values())) != len(keys):
        raise ValidationError("role keys of a manifest must differ")
    return keys


def _check_lifetime(body: _Body) -> None:
    if body.expires_at_ms is None:
        return
    lifetime = body.expires_at_ms - body.created_at_ms
    if not 0 < lifetime <= limits.LIFETIME_MS:
        raise LimitError("a session lives for up to 30 days, or never expires")


def _check_types(body: _Body) -> None:
    if not body.allowed_types or len(set(body.allowed_types)) != len(body.allowed_types):
        raise ValidationError("allowed types must be given, each once")


def _check_http_host(body: _Body) -> None:
    if body.insecure_http_host is not UNSET and _HOST.match(body.insecure_http_host) is None:
        raise ValidationError(
            "the host for plain http must be a name or an IPv4 address, in small letters",
            hint="without http:// and port, such as relay.airlox.svc.cluster.local",
        )


def _check_features(body: _Body) -> None:
    if body.features is UNSET:
        return
    words = body.features
    if not words or len(words) > limits.FEATURES or list(words) != sorted(set(words)):
        raise EncodingError("features must be a sorted list without repeats")


def _known_features(words: tuple[str, ...]) -> tuple[Feature, ...]:
    unknown = [word for word in words if word not in set(Feature)]
    if unknown:
        raise PolicyError(
            f"this session needs the feature {unknown[0][:40]!r}, which this version lacks",
            code="unsupported_feature",
            hint="update airlox on this machine",
        )
    return tuple(Feature(word) for word in words)


def _check_limits(body: _Body) -> None:
    job_limits = body.job_limits
    features = () if body.features is UNSET else body.features
    if (body.mode is Mode.EXECUTE) != (job_limits is not None):
        raise ValidationError("job limits belong to execute sessions, and only to them")
    if job_limits is None:
        if set(features) & set(Feature):
            raise ValidationError("these features need an execute session")
        return
    full = bool(features)
    if full != (job_limits.kinds is not UNSET) or (full and Feature.LIVE not in features):
        raise ValidationError("a full session names its kinds, and the feature live")
    python = job_limits.kinds is UNSET or JobKind.PYTHON in job_limits.kinds
    if python and ContentType.PY not in body.allowed_types:
        raise ValidationError("Python jobs need the content type py")
    for entry in job_limits.packages:
        parse_package(entry, pins=Feature.PINS in features)


def parse_package(entry: str, *, pins: bool) -> tuple[str, str]:
    """Name and version specifier of an allowlist entry; the specifier is empty without a pin.

    A specifier is a list of PEP 440 clauses in ASCII, without spaces, sorted as text, each once.
    Raises ValidationError.
    """
    if _PACKAGE.match(entry) and len(entry) <= limits.PACKAGE_NAME:
        return entry, ""
    match = _PIN.match(entry)
    if not pins or match is None or len(entry) > limits.PACKAGE_ENTRY:
        raise ValidationError(
            "allowlist entries are normalised package names"
            + (", with a PEP 440 version specifier at most" if pins else "")
        )
    name, specifier = match.groups()
    _check_specifier(specifier)
    return name, specifier


def _check_specifier(specifier: str) -> None:
    from packaging.specifiers import InvalidSpecifier, Specifier

    clauses = specifier.split(",")
    try:
        for clause in clauses:
            Specifier(clause)
    except InvalidSpecifier:
        raise ValidationError("malformed version specifier in the allowlist") from None
    if clauses != sorted(set(clauses)):
        raise EncodingError("version specifier is not in canonical form")
