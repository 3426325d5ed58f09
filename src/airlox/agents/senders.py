"""Who may wake a listener: what `--from` names.

`owner` is the holder of the owner's link, a key is one participant: both are proven by signatures.
A display name is chosen by whoever joins, and a role is shared by all who hold its link; both are
taken, with a warning. A fingerprint is refused: anyone may call themselves by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from airlox.errors import UsageError, ValidationError
from airlox.protocol.addressing import ROLE_PREFIX
from airlox.protocol.encoding import PublicKey
from airlox.protocol.keys import Role, is_fingerprint, parse_public_key
from airlox.protocol.view import Participant

OWNER: Final = "owner"


class Senders(msgspec.Struct, frozen=True):
    """Those who may wake; nobody named means everybody."""

    keys: frozenset[PublicKey] = frozenset()
    roles: frozenset[Role] = frozenset()
    names: frozenset[str] = frozenset()

    def may_wake(self, author: Participant) -> bool:
        if not (self.keys or self.roles or self.names):
            return True
        return author.public in self.keys or author.role in self.roles or author.name in self.names

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is weak about how they are named."""
        names = [
            f"--from {name}: anyone with a link can join under that name; "
            "a key names one participant"
            for name in sorted(self.names)
        ]
        roles = [
            f"--from {ROLE_PREFIX}{role.value}: everyone who holds that link has this role; "
            "a key names one participant"
            for role in sorted(self.roles - {Role.OWNER})
        ]
        return (*names, *roles)


def parse_senders(words: Sequence[str]) -> Senders:
    """What `--from`, given once or more, names. Raises UsageError."""
    keys: set[PublicKey] = set()
    roles: set[Role] = set()
    names: set[str] = set()
    for word in words:
        if word == OWNER:
            roles.add(Role.OWNER)
        elif word.startswith(ROLE_PREFIX):
            roles.add(_role(word.removeprefix(ROLE_PREFIX)))
        elif (key := _key(word)) is not None:
            keys.add(key)
        elif is_fingerprint(word.strip()):
            raise UsageError(
                f"--from {word}: this is the short form of a key",
                hint="give the whole key; airlox session info --json shows it",
            )
        elif word.strip():
            names.add(word.strip())
        else:
            raise UsageError("--from is empty", hint="name owner, a key, a name or role:ROLE")
    return Senders(frozenset(keys), frozenset(roles), frozenset(names))


def _role(word: str) -> Role:
    try:
        return Role(word)
    except ValueError:
        known = ", ".join(role.value for role in Role)
        raise UsageError(f"there is no role {word[:40]!r}", hint=f"one of {known}") from None


def _key(word: str) -> PublicKey | None:
    try:
        return parse_public_key(word)
    except ValidationError:
        return None
