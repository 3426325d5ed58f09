"""A transfer code at the end of whoever hands an invite over: made, told, waited for, taken back.

A code whose sender waits has two words, and whoever guesses must come to the sender for each try.
One whose sender leaves is parked: what it opens lies on the relay, where guesses could be tested at
leisure, and so it has six. A code that is waited for is taken back when the wait is left.
"""

from __future__ import annotations

import shlex
import sys
import threading
from contextlib import suppress

from airlox.cli import options
from airlox.cli.output import span_text
from airlox.errors import AirloxError, TransferError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from airlox.cli.output import Voice
    from airlox.client.session import Session
    from airlox.client.transfer import TransferOffer

ROLES = ("sender", "observer", "runner")
"""Whose links are handed over by code; the owner's never is."""
_ANEW = frozenset({"code_expired", "code_gone", "not_received"})
"""Ends of a code after which a machine that is waited for gets another one. Wrong guesses are none:
each code would give three more. Those that were spent count on: the relay says that a code is gone,
and could have each of many codes guessed at twice."""


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--wait",
        action="store_true",
        help="stay until the code was used: it has two words then, else six",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare five words with the other end before the invite leaves; stays like --wait",
    )
    parser.add_argument(
        "--park",
        action="store_true",
        help="leave the sealed invite with the relay, also with --wait",
    )


def hand_over(args: Namespace, session: Session, role: str, voice: Voice) -> None:
    """Make a code for a role's invite, tell it, and stay if that was asked for.

    Raises TransferError where it was not used, SessionClosed, RelayError, CommandLineError.
    """
    if args.park and args.verify:
        raise options.CommandLineError(
            "there is nobody to compare words with for a parked code", hint="leave out --park"
        )
    stays = args.wait or args.verify
    is_parked = args.park or not stays
    offer = session.transfer_code(
        role,
        park=is_parked,
        verify=comparing(voice) if args.verify else None,
        on_guess=lambda left: tell_guess(left, voice),
    )
    try:
        _tell(offer, session, stays, voice)
        if stays:
            offer.wait()
            voice.end_status("the invite has arrived", event="received")
    except BaseException:
        with suppress(AirloxError):
            offer.cancel()
        raise


def _tell(offer: TransferOffer, session: Session, stays: bool, voice: Voice) -> None:
    command = take_command(session.relay, offer.code, offer.role)
    expires_in_s = round(offer.expires_in_s)
    if voice.json:
        shape = {
            "code": offer.code,
            "command": command,
            "expires_in_s": expires_in_s,
            "parked": offer.parked,
            "relay": session.relay,
            "role": offer.role,
            "session_id": session.session_id,
        }
        voice.document(shape)
        return
    voice.say(offer.code)
    voice.note(f"good once, for {span_text(expires_in_s)}. On the other machine:\n\n  {command}\n")
    if not stays:
        voice.note(
            "It has six words because nobody waits here: its sealed invite lies on the relay, "
            "where guesses could be tested at leisure. --wait makes one of two words."
        )


def take_command(relay: str, code: str, role: str, *, name: str = "NAME") -> str:
    """What is run at the other end."""
    from airlox.protocol.invite import plain_http_host

    where = f"--relay {shlex.quote(relay)}"
    host = plain_http_host(relay)
    if host is not None:
        where += f" --insecure-http-host {shlex.quote(host)}"
    if role == "runner":
        return f"airlox runner join {where} --code {code} --name {name}"
    return f"airlox receive {where} {code}"


def comparing(voice: Voice) -> Callable[[str], bool]:
    """Asks a person whether the other end shows the same words. Raises CommandLineError where
    there is none."""
    if not sys.stdin.isatty():
        raise options.CommandLineError(
            "--verify asks a person to compare words", hint="run it at a terminal, or leave it out"
        )

    def compare(words: str) -> bool:
        if voice.json:
            voice.status("", event="verify", words=words)
        else:
            voice.show(f"the other end must show: {words}")
        return voice.ask("does it? [y/N]").lower() in ("y", "yes")

    return compare


def tell_guess(left: int, voice: Voice) -> None:
    """Somebody gave other words. Called from any thread."""
    guesses = f"{left} wrong guess{'' if left == 1 else 'es'} more and it is void"
    text = f"somebody gave this code with other words: {guesses if left else 'it is void now'}"
    if voice.json:
        voice.status("", event="guess", guesses_left=left)
    else:
        voice.warn(text)


class Handover:
    """A code for the runner of a machine that is waited for; another one when it ended unused.

    `machine` is its name; `show` is called with each code. Whoever waits calls `look` now and then,
    and `end` at last.
    """

    def __init__(
        self, session: Session, machine: str, show: Callable[[str], None], voice: Voice
    ) -> None:
        """Raises RelayError, also for a relay that knows no codes."""
        self._session = session
        self._machine = machine
        self._show = show
        self._voice = voice
        self._is_told = False
        self._wrong = 0
        """Wrong guesses at the codes before this one."""
        self._begin()

    def _begin(self) -> None:
        self._error: AirloxError | None = None
        self._offer = self._session.transfer_code(
            "runner", on_guess=lambda left: tell_guess(left, self._voice)
        )
        self._thread = threading.Thread(target=self._wait, name="airlox-code", daemon=True)
        self._thread.start()
        self._show(self._offer.code)

    def _wait(self) -> None:
        try:
            self._offer.wait()
        except AirloxError as error:
            self._error = error

    def look(self) -> None:
        """Tell what became of the code. Raises what keeps it from being used for good."""
        if self._thread.is_alive() or self._is_told:
            return
        error = self._error
        if error is None:
            self._is_told = True
            self._voice.end_status(
                "the machine has the invite; if its runner does not start, airlox machine invite "
                f"{self._machine} runner --code makes another command",
                event="received",
            )
        elif error.code in _ANEW:
            self._count_guesses()
            self._voice.warn(f"{error.message}; here is another one")
            self._begin()
        else:
            raise error

    def _count_guesses(self) -> None:
        """Raises TransferError after as many wrong guesses, at all codes, as end one of them."""
        from airlox.protocol.transfer import GUESSES

        self._wrong += GUESSES - self._offer.guesses_left
        if self._wrong >= GUESSES:
            raise TransferError(
                f"no other code is made after {self._wrong} wrong guesses at these",
                code="code_void",
                hint="somebody may be guessing; hand the link over yourself: --link",
            )

    def end(self) -> None:
        """Take the code back, if it was not used."""
        with suppress(AirloxError):
            self._offer.cancel()
        self._offer.close()
        self._thread.join()
