"""Targets: transfer codes as somebody types them, and the messages that a relay passes on.

The inside of a sealed invite is sealed with the right key: what the other end may do who means
harm.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from airlox.protocol import aead, canonical, transfer
from airlox.protocol.encoding import SessionId, b64u_decode, b64u_encode
from airlox.protocol.invite import member_invite
from airlox.protocol.keys import Role
from airlox.protocol.transfer import Offered, Side

_WORDS: Final = ("guitar", "orbit")
_BASE: Final = "https://relay.example"
_LINK: Final = member_invite(_BASE, bytes(range(32)), Role.RUNNER)
_OFFERED: Final = Offered(_LINK.session_id, _LINK.role, 417)
_NONCE: Final = bytes(aead.NONCE_BYTES)
_TAIL: Final = _LINK.url().removeprefix(_BASE).encode()


def read_code(data: bytes) -> None:
    code = transfer.parse_code(data.decode("utf-8", "replace"))
    assert transfer.parse_code(code.text()) == code


def code_seeds() -> list[bytes]:
    texts = (
        "417-guitar-orbit",
        "417 GUITAR ORBIT",
        "417guitarorbit",
        "417-barnarrow",
        "417-gitar-x",
    )
    return [*map(str.encode, texts), b"417" + b"-guitar" * 6, "9–lemon—tango".encode()]


@cache
def _ends() -> tuple[transfer.Share, transfer.Agreed, transfer.Agreed]:
    """The sender's share, and what both ends agreed on."""
    own = transfer.make_share(Side.SENDER, _WORDS, bytes(range(64)))
    other = transfer.make_share(Side.RECEIVER, _WORDS, bytes(range(1, 65)))
    return (
        own,
        transfer.agree(own, other.point, _OFFERED),
        transfer.agree(other, own.point, _OFFERED),
    )


def read_transfer(data: bytes) -> None:
    """The first byte says which message the rest is."""
    kind, message = data[:1], data[1:]
    own, sender, receiver = _ends()
    if kind == b"o":
        point = transfer.parse_opening(message)
        assert message == f'{{"share":"{b64u_encode(point)}","v":1}}'.encode()
        transfer.agree(own, point, _OFFERED)
    elif kind == b"a":
        point, offered = transfer.parse_answer(message, 417)
        assert b64u_encode(point).encode() in message
        assert offered.session_id.encode() in message
    elif kind == b"c":
        sender.check(transfer.parse_confirmation(message))
        assert message == transfer.encode_confirmation(receiver)
    elif kind == b"p":
        parked = transfer.parse_parked(message)
        assert canonical.encode(parked) == message
        keys = transfer.ParkedKeys(access=b"", _key=bytes(32))
        offered = Offered(SessionId(parked.session_id), parked.role, 0)
        transfer.open_parked(keys, b64u_decode(parked.sealed), offered, _BASE)
    elif kind == b"s":
        transfer.open_invite(receiver, _OFFERED, message, _BASE)
    else:
        aad = _OFFERED.identity(Side.SENDER)
        sealed = aead.seal(sender._key, _NONCE, data, aad)
        found = transfer.open_invite(receiver, _OFFERED, sealed, _BASE)
        assert (found.session_id, found.role) == (_LINK.session_id, _LINK.role)
        assert found.url().encode() == _BASE.encode() + data


def transfer_seeds() -> list[bytes]:
    own, sender, receiver = _ends()
    other = transfer.make_share(Side.RECEIVER, _WORDS, bytes(range(1, 65)))
    aad = f"airlox/v1/parked {_LINK.session_id} runner".encode()
    parked = transfer.Parked(
        access_sha256=b64u_encode(bytes(32)),
        role=Role.RUNNER,
        salt=b64u_encode(bytes(16)),
        sealed=b64u_encode(aead.seal(bytes(32), _NONCE, _TAIL, aad)),
        session_id=_LINK.session_id,
    )
    return [
        b"o" + transfer.encode_opening(other),
        b"a" + transfer.encode_answer(own, _OFFERED),
        b"c" + transfer.encode_confirmation(receiver),
        b"c" + transfer.encode_confirmation(sender),
        b"s" + transfer.seal_invite(sender, _OFFERED, _LINK, _NONCE),
        b"p" + canonical.encode(parked),
        _TAIL,
        b"@evil.example" + _TAIL,
    ]
