"""Transfer codes: an invite handed over in a few words.

The sender calls `Session.transfer_code` and reads the code aloud; the receiver gives it to
`redeem`, together with the address of the relay, which a code does not carry. What comes out is
an `Invite` like that of a link.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from airlox.protocol.invite import Invite

Verify = Callable[[str], bool]
"""Shown five words, says whether the other end shows the same. May take its time."""
OnGuess = Callable[[int], None]
"""Hears that somebody gave wrong words, and how many wrong guesses are left."""

REDEEM_TIMEOUT_S: Final = 60.0


class TransferOffer:
    """A code that stands on the relay. Made by `Session.transfer_code`; safe to share.

    `code` is a secret until it is used: it is for people's ears, not for logs.
    """

    @property
    def code(self) -> str:
        """The code as it is read aloud, `417-guitar-orbit`; six words when parked."""
        raise NotImplementedError

    @property
    def parked(self) -> bool:
        """Whether the relay keeps the sealed invite, so that nobody need wait."""
        raise NotImplementedError

    @property
    def role(self) -> str:
        """The role that the invite grants."""
        raise NotImplementedError

    @property
    def expires_in_s(self) -> float:
        """Seconds until the relay forgets the code, never below 0."""
        raise NotImplementedError

    @property
    def guesses_left(self) -> int:
        """Wrong guesses until the code is void, as far as known here."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> None:
        """Answer whoever redeems the code; returns when the invite has arrived.

        Wrong guesses go to `on_guess`, and the wait goes on until there were three. A parked code
        needs no wait; one only tells when it was redeemed. Raises WaitTimeout, after which it can
        be called again; TransferError with a code of its class; SessionClosed, RelayError,
        ConnectionLost.
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """Take the code back: nobody can redeem it any more. Safe to repeat."""
        raise NotImplementedError

    def close(self) -> None:
        """End a `wait`, from any thread, with WaitTimeout of code `closed`. The code stands."""
        raise NotImplementedError


def redeem(
    relay: str,
    code: str,
    *,
    role: str | None = None,
    verify: Verify | None = None,
    timeout: float | None = REDEEM_TIMEOUT_S,
) -> Invite:
    """The invite that a code stands for; joining with `invite.url()` is the caller's.

    `relay` is the address of the relay the sender uses; the invite names it too. With `role` a code
    for another role is refused before it is spent. With `verify` both ends must compare; a sender
    that compares waits for us. Each call is one guess: it is not repeated here, whatever happens.

    Raises TransferError with a code of its class, WaitTimeout when nobody answered, ValidationError
    for a bad address, ProtocolError for a sender or relay that breaks the protocol, RelayError,
    ConnectionLost.
    """
    raise NotImplementedError
