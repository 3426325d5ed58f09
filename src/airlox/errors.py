"""Every error Airlox raises, in one hierarchy.

    AirloxError
    ├── ProtocolError          bytes from outside break a rule of the protocol
    │   ├── ValidationError    malformed or unsafe
    │   │   ├── EncodingError  not the one canonical form
    │   │   ├── OrderError     out of sequence, repeated, or from nowhere
    │   │   └── LimitError     beyond a numeric bound of protocol/limits.py
    │   ├── SignatureError     a signature does not verify
    │   ├── DecryptError       ciphertext does not open under the key
    │   └── PolicyError        well formed, but not allowed in this session
    ├── RelayError             the relay refused a request (carries status and code)
    ├── ConnectionLost         the relay could not be reached, or the line broke
    ├── SessionClosed          the session ended, expired, or this participant was cut off
    ├── JobRefused             a job was not accepted (carries the reason)
    ├── TransferError          a transfer code did not bring its invite across
    ├── WaitTimeout            a wait reached its deadline
    ├── StorageError           a local file could not be read or written
    ├── TreeError              a working tree cannot be sent or applied
    ├── SandboxError           a sandbox layer cannot be had
    └── UsageError             the call itself makes no sense
        └── RecipientError     whom a message is for cannot be told

Each error carries a stable `code` for machines, a message that names the object, and, where
there is one, a `hint` with the next step. Secrets (keys, invites, tokens) never enter either.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


def place_of(error: BaseException) -> str:
    """Where in our code an exception came out, as `cli/run.py:12`: what may be told of a bug."""
    trace: TracebackType | None = error.__traceback__
    place = "an unknown place"
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename.replace("\\", "/")
        path, marker, rest = file.rpartition("/airlox/")
        if marker and path:
            place = f"{rest}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


class AirloxError(Exception):
    """Base of all errors of this package.

    `code` is stable and meant for programs; `hint` says what to do next, or is None.
    """

    code: str = "error"

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ProtocolError(AirloxError):
    """Bytes from the relay or a participant break a rule of the protocol."""

    code = "protocol"


class ValidationError(ProtocolError):
    """Malformed or unsafe."""

    code = "invalid"


class EncodingError(ValidationError):
    """Not in the one canonical form."""

    code = "encoding"


class OrderError(ValidationError):
    """Out of sequence, repeated, or from an unknown author."""

    code = "order"


class LimitError(ValidationError):
    """Beyond a bound of `protocol/limits.py`."""

    code = "limit"


class SignatureError(ProtocolError):
    """A signature does not verify."""

    code = "signature"


class DecryptError(ProtocolError):
    """Ciphertext does not open under the key."""

    code = "decrypt"


class PolicyError(ProtocolError):
    """Well formed, but not allowed in this session."""

    code = "policy"


class RelayError(AirloxError):
    """The relay refused a request; `status` is the HTTP status, `code` the relay's own word.

    `retry_after_s` is after how many seconds it may be carried out, if the relay says that; `limit`
    what of the request may be how much at most (`max_item_bytes`, `lifetime_ms`), where it does.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        retry_after_s: int | None = None,
        limit: dict[str, int] | None = None,
    ) -> None:
        super().__init__(f'relay answered {status} {code}: "{message}"', code=code, hint=hint)
        self.status = status
        self.retry_after_s = retry_after_s
        self.limit = limit or {}


class ConnectionLost(AirloxError):
    """The relay could not be reached, or the connection broke. Retrying may help."""

    code = "connection_lost"


class SessionClosed(AirloxError):
    """The session ended or expired, or this participant left or was cut off."""

    code = "session_closed"


class JobRefused(AirloxError):
    """A job was not accepted; `code` names the reason (`no_runner_available`, `runner_busy`, …)."""

    code = "job_refused"


class TransferError(AirloxError):
    """A transfer code did not bring its invite across; `code` says why.

    At either end: `code_expired`, `code_used`, `code_void` (three wrong guesses), `code_cancelled`,
    `code_gone` (the relay lost it), `not_compared` (somebody said the verifiers differ), `no_codes`
    (the relay is older than codes). At the
    receiver: `code_unknown`, `code_wrong` (other words), `code_busy`, `try_over`, `wrong_role`,
    `too_many_guesses`; a code that cannot be read is a ValidationError `code_mistyped`. At the
    sender: `not_received`.
    `retry_after_s` is after how many seconds another try is taken, where the relay says that.
    """

    code = "transfer"

    def __init__(
        self, message: str, *, code: str, hint: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after_s = retry_after_s


class WaitTimeout(AirloxError):
    """A wait reached its deadline before what it waited for came."""

    code = "timeout"


class StorageError(AirloxError):
    """A local file could not be read or written."""

    code = "storage"


class TreeError(AirloxError):
    """A working tree cannot be sent, or cannot be applied safely."""

    code = "tree"


class SandboxError(AirloxError):
    """A sandbox layer that is needed cannot be had; `code` is one of the codes of the doctor."""

    code = "sandbox_unavailable"


class UsageError(AirloxError):
    """The call or command line makes no sense as given."""

    code = "usage"


class RecipientError(UsageError):
    """A message is for nobody, for somebody who is not here, or for one of several of that name.

    Nothing was sent.
    """

    code = "no_such_participant"
