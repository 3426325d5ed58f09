"""One session with its people, the same in every run: what fuzzed documents are signed with."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from airlox.protocol.item import ItemRef
from airlox.protocol.keys import Role, SigningKey
from support.vectors import VECTORS
from support.world import Person, World

ROLES: Final = tuple(Role)
JOB: Final = ItemRef(blob_sha256="A" * 43, id="B" * 21 + "A")


@cache
def world(*, full: bool) -> World:
    return World(full=full, owner_seed=bytes(range(32)))


@cache
def person(role: Role, *, full: bool) -> Person:
    key = SigningKey.from_seed(bytes([ROLES.index(role) + 1]) * 32)
    return world(full=full).person(role, key=key)


@contextmanager
def unlogged() -> Iterator[None]:
    """A refusal that a relay logs is no finding, and each would be a line."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@cache
def _cases() -> list[dict[str, Any]]:
    files = sorted(VECTORS.glob("*.json"))
    return [case for file in files for case in json.loads(file.read_text())["cases"]]


def given(field: str, *operations: str) -> list[bytes]:
    """What the vectors put into `field` of some operations: texts, hex and base64 as bytes."""
    found = []
    for case in _cases():
        value = case["in"].get(field) if case["op"] in operations else None
        if isinstance(value, str):
            found.append(_bytes(field, value))
    return list(dict.fromkeys(found))


def opened() -> list[tuple[str, bytes, bytes, bool]]:
    """Role, meta and body of every item that the vectors open, and whether its session is full."""
    cases = [case for case in _cases() if case["op"] == "open_checked" and "ok" in case]
    found = [(case["ok"], '"features"' in case["in"]["signed_manifest"]) for case in cases]
    return [(ok["role"], ok["meta"].encode(), bytes.fromhex(ok["body"]), f) for ok, f in found]


def _bytes(field: str, value: str) -> bytes:
    if field.endswith("_b64"):
        return base64.b64decode(value)
    return bytes.fromhex(value) if field == "payload" else value.encode("utf-8", "surrogatepass")
