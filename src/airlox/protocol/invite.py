"""Invite links: a role of a session, with its keys in the fragment.

A browser never sends a fragment to a server, so a relay sees the session id and nothing else.
Source: docs/protocol.md, "Invites".
"""

from __future__ import annotations

import re
from typing import Final
from unicodedata import category

import msgspec

from airlox.errors import EncodingError, PolicyError, ValidationError
from airlox.protocol.encoding import (
    KEY_BYTES,
    PublicKey,
    SessionId,
    b64u_decode,
    b64u_encode,
    parse_session_id,
)
from airlox.protocol.keys import Role, SessionKeys, SigningKey
from airlox.protocol.manifest import Manifest

_LETTERS: Final = {
    Role.OWNER: "owner",
    Role.SENDER: "send",
    Role.OBSERVER: "view",
    Role.RUNNER: "run",
}
_ROLES: Final = {word: role for role, word in _LETTERS.items()}
_HTTPS: Final = re.compile(r"https://[^/:]")
_LOOPBACK: Final = re.compile(
    r"http://((?:[\w-]+\.)*localhost|127\.0\.0\.1|\[::1\])(:[0-9]*)?(/.*)?\Z",
    re.ASCII,
)
_PLAIN: Final = re.compile(r"http://([A-Za-z0-9._-]+)(:[0-9]*)?(/.*)?\Z")
_PLAIN_FIELD: Final = "http"
_HINT: Final = "copy the whole link again, from the part before # to its end"


class Invite(msgspec.Struct, frozen=True):
    """A parsed link. Keys never show in `repr`; `url()` gives the link, which is a secret."""

    base_url: str
    session_id: SessionId
    role: Role
    session_key: bytes
    role_seed: bytes

    def __repr__(self) -> str:
        shown = (self.base_url, self.session_id, self.role)
        return "Invite(base_url={!r}, session_id={!r}, role={!r})".format(*shown)

    @property
    def is_plain_http(self) -> bool:
        """Whether the relay is another machine's and reached without TLS."""
        return plain_http_host(self.base_url) is not None

    def url(self) -> str:
        """The link. Whoever holds it holds the role."""
        head = f"{self.base_url}/s/{self.session_id}#v=1&r={_LETTERS[self.role]}"
        if self.is_plain_http:
            head += f"&{_PLAIN_FIELD}=1"
        if self.role is Role.OWNER:
            return f"{head}&ok={b64u_encode(self.role_seed)}"
        return f"{head}&k={b64u_encode(self.session_key)}&rk={b64u_encode(self.role_seed)}"


def parse_base_url(text: str, *, plain_http: bool = False) -> str:
    """A relay's address without trailing slashes: https, or http to this machine only.

    With `plain_http` also http to a host with a name or an IPv4 address: for addresses that
    `check_invite` holds to the one host that the session's owner allows. Raises ValidationError.
    """
    if any(c in "?#@" or c.isspace() or category(c) == "Cc" for c in text):
        raise ValidationError("relay address has a query, fragment, user or white space")
    base = text.rstrip("/")
    if _HTTPS.match(base) or _LOOPBACK.match(base) or (plain_http and _PLAIN.match(base)):
        return base
    raise ValidationError(
        "relay address must start with https:// (plain http only to localhost)",
        hint="use https, or http://127.0.0.1:PORT for a relay on this machine; an owner may allow "
        "plain http to one host: session create --insecure-http-host NAME",
    )


def plain_http_host(base_url: str) -> str | None:
    """The host, in small letters, that an address reaches by plain http; None for https and for
    this machine."""
    if not base_url.startswith("http://") or _LOOPBACK.match(base_url):
        return None
    found = _PLAIN.match(base_url)
    return "" if found is None else found[1].lower()


def owner_invite(base_url: str, owner_seed: bytes, *, plain_http: bool = False) -> Invite:
    """The owner's link; `plain_http` as in `parse_base_url`. Raises ValidationError."""
    base = parse_base_url(base_url, plain_http=plain_http)
    keys = SessionKeys.derive(owner_seed)
    return Invite(base, keys.session_id, Role.OWNER, keys.session_key, owner_seed)


def member_invite(
    base_url: str, owner_seed: bytes, role: Role, *, plain_http: bool = False
) -> Invite:
    """The link of sender, observer or runner. Raises ValidationError, also for the owner's role."""
    if role is Role.OWNER:
        raise ValidationError("the owner's link is made from the owner seed alone")
    base = parse_base_url(base_url, plain_http=plain_http)
    keys = SessionKeys.derive(owner_seed)
    return Invite(base, keys.session_id, role, keys.session_key, keys.role_seed(role))


def parse_invite(url: str) -> Invite:
    """A link as written by any client. Raises ValidationError, never quoting the link."""
    head, hash_, fragment = url.partition("#")
    base, marker, tail = head.rpartition("/s/")
    if not hash_ or not marker:
        raise ValidationError("this is not an invite link", hint=_HINT)
    session_id = parse_session_id(tail.removesuffix("/"))
    fields = _parse_fragment(fragment)
    if fields.get("v") != "1":
        raise ValidationError("invite link of an unknown version", hint="update airlox")
    role = _ROLES.get(fields.get("r", ""))
    if role is None:
        raise ValidationError("invite link without a known role", hint=_HINT)
    # a link says so itself: one whose https became http on its way is refused as it is
    base_url = parse_base_url(base, plain_http=fields.get(_PLAIN_FIELD) == "1")
    if role is Role.OWNER:
        return _parse_owner(base_url, session_id, fields)
    if "ok" in fields:
        raise ValidationError("a member's link must not carry the owner key")
    return Invite(base_url, session_id, role, _key(fields, "k"), _key(fields, "rk"))


def _parse_owner(base_url: str, session_id: SessionId, fields: dict[str, str]) -> Invite:
    if "k" in fields or "rk" in fields:
        raise ValidationError("an owner link must not carry other keys")
    invite = owner_invite(base_url, _key(fields, "ok"), plain_http=True)
    if invite.session_id != session_id:
        raise ValidationError("the owner key in this link belongs to another session", hint=_HINT)
    return invite


def _key(fields: dict[str, str], name: str) -> bytes:
    try:
        return b64u_decode(fields[name], KEY_BYTES)
    except (KeyError, EncodingError):
        raise ValidationError("invite link with a missing or damaged key", hint=_HINT) from None


def _parse_fragment(fragment: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for piece in fragment.split("&"):
        if not piece:
            continue
        name, equals, value = piece.partition("=")
        if not equals:
            raise ValidationError("malformed invite link", hint=_HINT)
        if name in fields:
            raise ValidationError("invite link with a repeated field", hint=_HINT)
        fields[name] = value
    return fields


def check_invite(invite: Invite, manifest: Manifest, role_key: PublicKey | None = None) -> None:
    """Returns when the link's role key is `role_key`, else the manifest's. Raises ValidationError.

    Plain http goes to the host that the manifest names and to no other: PolicyError. The session
    key cannot be checked here: a wrong one shows as DecryptError on every item.
    """
    if invite.session_id != manifest.session_id:
        raise ValidationError("the relay's manifest is of another session")
    host = plain_http_host(invite.base_url)
    if host is not None and host != manifest.insecure_http_host:
        raise PolicyError(
            f"the owner of this session does not allow plain http to {host}",
            code="plain_http",
            hint="use a link with https; an owner allows plain http to one host with "
            "session create --insecure-http-host NAME",
        )
    if SigningKey.from_seed(invite.role_seed).public != (role_key or manifest.key_of(invite.role)):
        raise ValidationError("the role key in this link is not the session's", hint=_HINT)
