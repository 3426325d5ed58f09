"""Airlox: a sandboxed job slot on machines you own, and end-to-end encrypted sessions.

    from airlox import Session

    owner = Session.create("https://relay.example")
    print(owner.invites["sender"])

`Session` blocks; `AsyncSession` is the same for asyncio. Names are loaded on first use, so that
`import airlox` costs next to nothing.
"""

from __future__ import annotations

__version__ = "0.2.0"

TYPE_CHECKING = False  # what importing `typing` would cost is most of `airlox --version`
if TYPE_CHECKING:
    from typing import Any

    from airlox.client.aio import AsyncSession
    from airlox.client.jobs import Job, OutFile, Result
    from airlox.client.progress import Progress
    from airlox.client.session import Session
    from airlox.client.shown import Delivery, ParticipantInfo, Runner
    from airlox.client.transfer import TransferOffer, redeem
    from airlox.errors import (
        AirloxError,
        ConnectionLost,
        DecryptError,
        JobRefused,
        PolicyError,
        ProtocolError,
        RecipientError,
        RelayError,
        SessionClosed,
        SignatureError,
        StorageError,
        TransferError,
        TreeError,
        UsageError,
        ValidationError,
        WaitTimeout,
    )
    from airlox.protocol.audit import AuditReport, verify_audit
    from airlox.protocol.chain import Alarm
    from airlox.protocol.item import ItemRef
    from airlox.protocol.view import Item

__all__ = [
    "AirloxError",
    "Alarm",
    "AsyncSession",
    "AuditReport",
    "ConnectionLost",
    "DecryptError",
    "Delivery",
    "Item",
    "ItemRef",
    "Job",
    "JobRefused",
    "OutFile",
    "ParticipantInfo",
    "PolicyError",
    "Progress",
    "ProtocolError",
    "RecipientError",
    "RelayError",
    "Result",
    "Runner",
    "Session",
    "SessionClosed",
    "SignatureError",
    "StorageError",
    "TransferError",
    "TransferOffer",
    "TreeError",
    "UsageError",
    "ValidationError",
    "WaitTimeout",
    "redeem",
    "verify_audit",
]

_HOMES = {
    "Alarm": "airlox.protocol.chain",
    "AsyncSession": "airlox.client.aio",
    "AuditReport": "airlox.protocol.audit",
    "Delivery": "airlox.client.shown",
    "Item": "airlox.protocol.view",
    "ItemRef": "airlox.protocol.item",
    "Job": "airlox.client.jobs",
    "OutFile": "airlox.client.jobs",
    "ParticipantInfo": "airlox.client.shown",
    "Progress": "airlox.client.progress",
    "Result": "airlox.client.jobs",
    "Runner": "airlox.client.shown",
    "Session": "airlox.client.session",
    "TransferOffer": "airlox.client.transfer",
    "redeem": "airlox.client.transfer",
    "verify_audit": "airlox.protocol.audit",
}
"""Where each public name lives; what is not listed is an error class."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'airlox' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES.get(name, "airlox.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
