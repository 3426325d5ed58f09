"""Sealed packs of a job's tree, and the sealed list of what a runner lacks.

Content is proved by the index, whose digest stands in the signed job: a pack needs no signature.
Every pack has a key of its own (job, number); the random nonce makes a second seal of the same
number harmless. A pack's plain form is tree/chunks.py's business.
Source: docs/protocol.md, "Trees".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airlox.errors import DecryptError, LimitError
from airlox.protocol import aead, limits
from airlox.protocol.encoding import ItemId, PublicKey, SessionId
from airlox.protocol.keys import lack_key, pack_key


def seal_pack(
    session_key: bytes,
    session_id: SessionId,
    *,
    job: ItemId,
    number: int,
    plain: bytes,
    nonce: bytes,
) -> bytes:
    """The sealed bytes of pack `number` of a job. `nonce` is 12 fresh random bytes.

    Raises LimitError.
    """
    _check_number(number)
    if len(plain) > limits.PACK_BYTES:
        raise LimitError(f"a pack has at most {limits.PACK_BYTES} bytes")
    key = pack_key(session_key, session_id, job=job, number=number)
    return aead.seal(key, nonce, plain, _aad(b"pack", job, number.to_bytes(4, "big")))


def open_pack(
    session_key: bytes, session_id: SessionId, *, job: ItemId, number: int, sealed: bytes
) -> bytes:
    """The plain pack. Raises ValidationError or DecryptError."""
    _check_number(number)
    if len(sealed) > limits.PACK_BYTES + limits.BLOB_OVERHEAD_BYTES:
        raise LimitError("pack is too large")
    key = pack_key(session_key, session_id, job=job, number=number)
    aad = _aad(b"pack", job, number.to_bytes(4, "big"))
    return aead.open_sealed(key, sealed, aad, f"pack {number} of job {job}")


def seal_lack(
    session_key: bytes,
    session_id: SessionId,
    *,
    job: ItemId,
    runner: PublicKey,
    plain: bytes,
    nonce: bytes,
) -> bytes:
    """Seals what `runner` says it lacks of a job's tree (tree/lack.py has the plain form)."""
    if len(plain) > limits.LACK_BYTES:
        raise LimitError(f"a list of lacking content has at most {limits.LACK_BYTES} bytes")
    key = lack_key(session_key, session_id, job=job, runner=runner)
    return aead.seal(key, nonce, plain, _aad(b"lack", job, runner.encode()))


def open_lack(
    session_key: bytes, session_id: SessionId, *, job: ItemId, runner: PublicKey, sealed: bytes
) -> bytes:
    """The plain list. Raises ValidationError or DecryptError."""
    if len(sealed) > limits.LACK_BYTES + limits.BLOB_OVERHEAD_BYTES:
        raise LimitError("list of lacking content is too large")
    key = lack_key(session_key, session_id, job=job, runner=runner)
    return aead.open_sealed(key, sealed, _aad(b"lack", job, runner.encode()), "list of content")


def open_with_any(keys: Iterable[bytes], open_under: Callable[[bytes], bytes]) -> bytes:
    """What opens under one of a session's keys, the newest first: packs and lists do not say which
    epoch they are of, and their content is proved by the index. Raises as `open_under`."""
    fault = DecryptError("no session key is known here")
    for key in keys:
        try:
            return open_under(key)
        except DecryptError as error:
            fault = error
    raise fault


def _check_number(number: int) -> None:
    if not 0 <= number < limits.PACKS:
        raise LimitError(f"packs are numbered from 0 to {limits.PACKS - 1}")


def _aad(kind: bytes, job: ItemId, rest: bytes) -> bytes:
    return b"airlox/v1/" + kind + b"\x00" + job.encode() + rest
