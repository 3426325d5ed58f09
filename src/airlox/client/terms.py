"""The terms of a new session, from what a caller gives to a signed manifest.

A *floor* session can be read by 0.1.0; kinds, features and version pins make a *full* one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from airlox.client.references import words
from airlox.errors import UsageError
from airlox.protocol.manifest import (
    ContentType,
    Feature,
    JobKind,
    JobLimits,
    Mode,
    build_manifest,
)

DEFAULT_LIMITS: Final[dict[str, Any]] = {
    "approve_runners": True,
    "memory_mb": 512,
    "network": False,
    "packages": (),
    "return_out": True,
    "runtime": "python3.12",
    "timeout_s": 60,
}
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(r"([0-9]{1,9})\s*([smhd]?)\Z")
_PINNED: Final = re.compile(r"[=<>!~]")
_PACKAGE: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*([=<>!~].*)?\Z", re.DOTALL)
_SEPARATORS: Final = re.compile(r"[-_.]+")


def parse_duration_s(text: str) -> int:
    """Seconds in a duration such as `90`, `30m`, `2h` or `7d`. Raises UsageError."""
    match = _DURATION.match(text.strip())
    if match is None:
        raise UsageError(f"{text[:40]!r} is no duration", hint="write it like 90, 30m, 2h or 7d")
    return int(match[1]) * _UNIT_S[match[2] or "s"]


def lifetime_ms(ttl: int | float | str | None) -> int | None:
    """Milliseconds of a lifetime in seconds or as a duration; None and `never` have no end."""
    if ttl is None or ttl == "never":
        return None
    seconds = parse_duration_s(ttl) if isinstance(ttl, str) else ttl
    try:
        return int(seconds * 1000)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{seconds} is no lifetime", hint='for none, give None or "never"'
        ) from None


def package_entry(text: str) -> str:
    """An entry of the allowlist as the manifest has it, from what people write.

    `NumPy >= 1.26, <3` becomes `numpy<3,>=1.26`: the name as PEP 503 normalises it, the clauses
    of the version sorted, no spaces. Whether it is one at all is for the manifest to say.
    """
    match = _PACKAGE.match(text)
    if match is None:
        return text
    name = _SEPARATORS.sub("-", match[1]).lower()
    clauses = {"".join(clause.split()) for clause in (match[2] or "").split(",")}
    return name + ",".join(sorted(clauses))


def new_manifest(
    owner_seed: bytes,
    *,
    mode: str,
    created_at_ms: int,
    ttl: int | float | str | None,
    allowed_types: Iterable[str],
    max_item_bytes: int,
    job_limits: Mapping[str, Any] | None,
    features: Iterable[str] | None,
    insecure_http_host: str | None = None,
) -> str:
    """The signed manifest of a new session. Raises UsageError or ValidationError."""
    given = dict(job_limits or {})
    return build_manifest(
        owner_seed,
        mode=word_of(Mode, mode, "mode"),
        created_at_ms=created_at_ms,
        ttl_ms=lifetime_ms(ttl),
        allowed_types=[word_of(ContentType, word, "content type") for word in allowed_types],
        max_item_bytes=max_item_bytes,
        features=_features(given, features, mode),
        job_limits=_limits(given, mode, features),
        insecure_http_host=insecure_http_host,
    )


def _features(given: Mapping[str, Any], features: Iterable[str] | None, mode: str) -> list[Feature]:
    """What a session switches on: all that its kinds and pins need, and what was asked for."""
    chosen = {word_of(Feature, word, "feature") for word in features or ()}
    pinned = any(_PINNED.search(str(entry)) for entry in words(given.get("packages"), "packages"))
    if mode == Mode.EXECUTE and (chosen or pinned or given.get("kinds")):
        chosen |= {Feature.EPOCHS, Feature.LIVE, Feature.TREES}
    if pinned:
        chosen.add(Feature.PINS)
    return sorted(chosen)


def _limits(
    given: Mapping[str, Any], mode: str, features: Iterable[str] | None
) -> JobLimits | None:
    if mode != Mode.EXECUTE:
        if given:
            raise UsageError("job limits belong to execute sessions", hint="use mode='execute'")
        return None
    unknown = sorted(set(given) - {*DEFAULT_LIMITS, "kinds"})
    if unknown:
        raise UsageError(
            f"unknown job limit {unknown[0][:40]!r}",
            hint="known: " + ", ".join(sorted({*DEFAULT_LIMITS, "kinds"})),
        )
    values = DEFAULT_LIMITS | {name: value for name, value in given.items() if value is not None}
    if _features(given, features, mode):
        kinds = words(values.get("kinds"), "kinds") or ("python",)
        values["kinds"] = tuple(sorted({word_of(JobKind, word, "kind of job") for word in kinds}))
    else:
        values["kinds"] = UNSET
    packages = words(values["packages"], "packages")
    values["packages"] = tuple(package_entry(str(entry)) for entry in packages)
    try:
        # as on the wire, so that the struct's own bounds apply
        return msgspec.convert(
            {name: value for name, value in values.items() if value is not UNSET}, JobLimits
        )
    except msgspec.ValidationError as error:
        raise UsageError(f"job limits: {error}") from None


W = TypeVar("W", bound=StrEnum)


def word_of(known: type[W], word: str, what: str) -> W:
    """The member of a closed set that `word` names. Raises UsageError."""
    try:
        return known(word)
    except ValueError:
        raise UsageError(
            f"unknown {what} {str(word)[:40]!r}", hint="known: " + ", ".join(known)
        ) from None
