"""Transfer codes: `417-guitar-orbit` read and printed, the key exchange behind it, and the sealed
form of a code whose sender does not wait.

While both ends are online two words (22 bits) are enough: SPAKE2 (RFC 9382, edwards25519, SHA-256,
HKDF, HMAC) lets whoever carries the messages test one guess for each exchange it takes part in, and
none afterwards. The sender is A, the receiver is B, and B confirms first: the invite leaves only
after its confirmation was checked. Nameplate, session and role are part of both identities, so that
a relay that lies about one of them breaks the exchange.

A parked code has six words (66 bits), because its sealed invite lies where guesses can be tested
at leisure; each then costs Argon2id.

Everything random is an argument. What was agreed is good for one invite.
Source: docs/protocol.md, "Transfer codes".
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, Literal

import msgspec
from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_is_valid_point,
    crypto_core_ed25519_scalar_mul,
    crypto_core_ed25519_scalar_reduce,
    crypto_core_ed25519_sub,
    crypto_pwhash_alg,
    crypto_pwhash_ALG_ARGON2ID13,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)
from nacl.exceptions import CryptoError

from airlox.errors import EncodingError, SignatureError, ValidationError
from airlox.protocol import canonical, limits
from airlox.protocol.aead import open_sealed, seal
from airlox.protocol.digest import sha256
from airlox.protocol.encoding import (
    KEY_BYTES,
    SessionId,
    b64u_decode,
    b64u_encode,
    parse_session_id,
)
from airlox.protocol.invite import Invite, parse_invite
from airlox.protocol.keys import CONTEXT, Info, Role, hkdf
from airlox.protocol.wordlist import WORD_BITS, WORDS

LIVE_WORDS: Final = 2
PARKED_WORDS: Final = 6
VERIFIER_WORDS: Final = 5
"""Someone who guessed the words could look for keys of equal verifiers at both ends: 55 bits are
too many for the time that an exchange has."""
GUESSES: Final = 3
"""Wrong guesses after which a code is void."""
SCALAR_RANDOM_BYTES: Final = 64
SALT_BYTES: Final = 16
PARKED_PASSES: Final = 4
PARKED_MEMORY_BYTES: Final = 64 * limits.MIB

_M: Final = bytes.fromhex("d048032c6ea0b6d697ddc2e86bda85a33adac920f1bf18e1b0c6d166a5cecdaf")
_N: Final = bytes.fromhex("d3bfb518f44f3430f29d0c92af503865a1ed3281dc69b35dd868ba85f886c4ab")
"""RFC 9382, section 4: points whose logarithms nobody knows."""
_COFACTOR: Final = (8).to_bytes(KEY_BYTES, "little")
_KNOWN: Final = frozenset(WORDS)
_WORDS_LABEL: Final = b"airlox/v1/transfer-words\x00"


# ── codes ────────────────────────────────────────────────────────────────────────────────────


class Code(msgspec.Struct, frozen=True):
    """A code. The words never show in `repr`; `text()` gives the code, which is a secret."""

    nameplate: int
    words: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Code(nameplate={self.nameplate})"

    def text(self) -> str:
        return "-".join((str(self.nameplate), *self.words))

    @property
    def is_parked(self) -> bool:
        return len(self.words) == PARKED_WORDS


def draw_words(count: int, random: bytes) -> tuple[str, ...]:
    """So many words, from as many random bytes as they take. Raises EncodingError."""
    bits = WORD_BITS * count
    if len(random) != random_bytes_of(count):
        raise EncodingError(f"{count} words are made of {random_bytes_of(count)} random bytes")
    number = int.from_bytes(random, "big") >> (8 * len(random) - bits)
    places = (number >> (WORD_BITS * at) for at in reversed(range(count)))
    return tuple(WORDS[place % len(WORDS)] for place in places)


def random_bytes_of(count: int) -> int:
    """The random bytes that `count` words take."""
    return -(-WORD_BITS * count // 8)


_SEPARATORS: Final = re.compile(r"[\s\-‐‑‒–—−_.,]+")
_CODE: Final = re.compile(r"([1-9][0-9]{0,11}) ?([a-z]+(?: [a-z]+)*)\Z")
_EXAMPLE: Final = "a code is a number and two words, as in 417-guitar-orbit; six when it was parked"


def parse_code(text: str) -> Code:
    """The code that a person typed: in any case, with spaces, dashes or nothing between its parts
    as long as there is but one way to read it.

    Raises ValidationError `code_mistyped`, which repeats nothing of what was typed. A word that is
    not in the list is answered with the ones it resembles: they come from the public list.
    """
    if len(text) > limits.CODE_CHARS:
        raise _mistyped("this is too long for a code", _EXAMPLE)
    match = _CODE.match(_SEPARATORS.sub(" ", text).strip().lower())
    if match is None:
        raise _mistyped("this is not a code", _EXAMPLE)
    readings: list[tuple[str, ...]] = [()]
    for place, group in enumerate(match[2].split(" "), 1):
        found = [*_readings(group, PARKED_WORDS)]
        if not found:
            raise _mistyped(f"word {place} of this code is none of its list", _near(group))
        readings = [(*before, *after) for before in readings for after in found]
        readings = [words for words in readings if len(words) <= PARKED_WORDS]
    readings = [words for words in readings if len(words) in (LIVE_WORDS, PARKED_WORDS)]
    if len(readings) > 1:
        raise _mistyped("this code can be read in two ways", "put a dash between its words")
    if not readings:
        raise _mistyped("this code has too few words or too many", _EXAMPLE)
    return Code(int(match[1]), readings[0])


def _readings(letters: str, most: int) -> Iterator[tuple[str, ...]]:
    """Every way to read letters without a gap as at most so many words."""
    if not letters:
        yield ()
    elif most:
        for word in _beginnings(letters):
            for rest in _readings(letters[len(word) :], most - 1):
                yield (word, *rest)


def _beginnings(letters: str) -> list[str]:
    """The words of the list with which letters begin."""
    lengths = range(3, min(len(letters), 8) + 1)
    return [letters[:size] for size in lengths if letters[:size] in _KNOWN]


def _near(typed: str) -> str:
    """The words that resemble what was typed, in words for a person."""
    if len(typed) <= 12:
        alike = (word for word in WORDS if abs(len(word) - len(typed)) <= 2)
        ranked = sorted((_distance(typed, word), word) for word in alike)
        if ranked and ranked[0][0] <= 2:
            nearest = [word for far, word in ranked if far == ranked[0][0]][:3]
            return f"did you mean {' or '.join(nearest)}?"
    return "check its spelling"


def _distance(one: str, other: str) -> int:
    """Letters to change, leave out, insert or swap with their neighbour."""
    before, row = list[int](), list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        older, before, row = before, row, [at]
        for to, wanted in enumerate(other, 1):
            cost = min(before[to] + 1, row[-1] + 1, before[to - 1] + (letter != wanted))
            if at > 1 and to > 1 and letter == other[to - 2] and one[at - 2] == wanted:
                cost = min(cost, older[to - 2] + 1)
            row.append(cost)
    return row[-1]


def _mistyped(message: str, hint: str) -> ValidationError:
    return ValidationError(message, code="code_mistyped", hint=hint)


# ── the exchange ─────────────────────────────────────────────────────────────────────────────


class Side(Enum):
    """The two ends: A and B of RFC 9382."""

    SENDER = "sender"
    RECEIVER = "receiver"


class Offered(msgspec.Struct, frozen=True):
    """What a code stands for, as both ends know it: it goes into the exchange."""

    session_id: SessionId
    role: Role
    nameplate: int

    def identity(self, side: Side) -> bytes:
        where = f"{self.nameplate} {self.session_id} {self.role}"
        return CONTEXT + f"/transfer {side.value} {where}".encode()


class Share(msgspec.Struct, frozen=True):
    """One end's half of an exchange. Its secrets never show in `repr`; use it once."""

    side: Side
    point: bytes
    _scalar: bytes
    _password: bytes

    def __repr__(self) -> str:
        return f"Share({self.side.value})"


def make_share(side: Side, words: tuple[str, ...], random: bytes) -> Share:
    """A share from 64 random bytes: x·G + w·M, or y·G + w·N. Raises EncodingError."""
    if len(random) != SCALAR_RANDOM_BYTES:
        raise EncodingError(f"a share is made of {SCALAR_RANDOM_BYTES} random bytes")
    scalar = crypto_core_ed25519_scalar_reduce(random)
    password = password_scalar(words)
    mask = _multiply(password, _mask_of(side))
    try:
        point = crypto_core_ed25519_add(crypto_scalarmult_ed25519_base_noclamp(scalar), mask)
    except CryptoError:
        raise EncodingError("the random bytes of a share are zero") from None
    return Share(side, point, scalar, password)


def password_scalar(words: tuple[str, ...]) -> bytes:
    """w: the words as a number below the order of the group, 32 bytes."""
    digest = hashlib.sha512(_WORDS_LABEL + "-".join(words).encode()).digest()
    return crypto_core_ed25519_scalar_reduce(digest)


def _mask_of(side: Side) -> bytes:
    return _M if side is Side.SENDER else _N


def _multiply(scalar: bytes, point: bytes) -> bytes:
    """Raises EncodingError where the product is the neutral point."""
    try:
        return crypto_scalarmult_ed25519_noclamp(scalar, point)
    except CryptoError:
        raise EncodingError("a share hides nothing") from None


class Agreed(msgspec.Struct, frozen=True):
    """What an end has after it saw the other's share. Nothing of it ever shows in `repr`.

    Until `check` returned, whoever is at the other end may have guessed.
    """

    confirmation: bytes
    """To be sent to the other end."""
    verifier: str
    """Five words for people to compare, the same at both ends."""
    _expected: bytes
    _key: bytes

    def __repr__(self) -> str:
        return "Agreed()"

    def check(self, confirmation: bytes) -> None:
        """Returns when the other end has the same words. To be called once for an exchange.

        Raises SignatureError.
        """
        if not hmac.compare_digest(confirmation, self._expected):
            raise SignatureError("the other end has other words", code="code_wrong")


def agree(own: Share, point: bytes, offered: Offered) -> Agreed:
    """The keys from the own share and the point of the other's. Raises EncodingError."""
    other = Side.RECEIVER if own.side is Side.SENDER else Side.SENDER
    check_point(point)
    try:
        unmasked = crypto_core_ed25519_sub(point, _multiply(own._password, _mask_of(other)))
    except CryptoError:
        raise EncodingError("a share is no point") from None
    scalar = crypto_core_ed25519_scalar_mul(own._scalar, _COFACTOR)
    shared = _multiply(scalar, unmasked)
    points = {own.side: own.point, other: point}
    transcript = build_transcript(
        offered.identity(Side.SENDER),
        offered.identity(Side.RECEIVER),
        points[Side.SENDER],
        points[Side.RECEIVER],
        shared,
        own._password,
    )
    schedule = key_schedule(transcript)
    confirmations = {Side.SENDER: schedule.confirm_a, Side.RECEIVER: schedule.confirm_b}
    verifier = hkdf(schedule.key, CONTEXT, Info.TRANSFER_VERIFIER)
    return Agreed(
        confirmation=confirmations[own.side],
        verifier=" ".join(draw_words(VERIFIER_WORDS, verifier[: random_bytes_of(VERIFIER_WORDS)])),
        _expected=confirmations[other],
        _key=hkdf(schedule.key, CONTEXT, Info.TRANSFER_KEY),
    )


def check_point(point: bytes) -> None:
    """Returns for the one encoding of a point of the group of prime order, and not the neutral
    one. Raises EncodingError."""
    if len(point) != KEY_BYTES or not crypto_core_ed25519_is_valid_point(point):
        raise EncodingError("a share is no point of the group")


def build_transcript(a: bytes, b: bytes, pa: bytes, pb: bytes, k: bytes, w: bytes) -> bytes:
    """TT of RFC 9382: each part after its length, eight bytes, little-endian."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in (a, b, pa, pb, k, w))


class Schedule(msgspec.Struct, frozen=True):
    """What RFC 9382 derives from a transcript, with SHA-256."""

    key: bytes
    confirm_a: bytes
    confirm_b: bytes

    def __repr__(self) -> str:
        return "Schedule()"


def key_schedule(transcript: bytes) -> Schedule:
    """Ke, and the confirmations of A and B, of RFC 9382 without additional data."""
    digest = sha256(transcript)
    key, root = digest[:16], digest[16:]
    confirm = hkdf(root, b"", b"ConfirmationKeys")
    return Schedule(
        key=key,
        confirm_a=hmac.digest(confirm[:16], transcript, hashlib.sha256),
        confirm_b=hmac.digest(confirm[16:], transcript, hashlib.sha256),
    )


# ── its messages ─────────────────────────────────────────────────────────────────────────────


class _Opening(canonical.Wire, frozen=True, kw_only=True):
    share: str
    v: Literal[1] = 1


class _Answer(canonical.Wire, frozen=True, kw_only=True):
    role: Role
    session_id: str
    share: str
    v: Literal[1] = 1


class _Confirmation(canonical.Wire, frozen=True, kw_only=True):
    confirm: str
    v: Literal[1] = 1


def encode_opening(share: Share) -> bytes:
    """The receiver's first message."""
    return canonical.encode(_Opening(share=b64u_encode(share.point)))


def parse_opening(message: bytes) -> bytes:
    """The receiver's point. Raises EncodingError."""
    return _point(canonical.decode(message, _Opening, "opening of a transfer").share)


def encode_answer(share: Share, offered: Offered) -> bytes:
    """The sender's first message."""
    return canonical.encode(
        _Answer(role=offered.role, session_id=offered.session_id, share=b64u_encode(share.point))
    )


def parse_answer(message: bytes, nameplate: int) -> tuple[bytes, Offered]:
    """The sender's point, and what it says it offers: true once it has confirmed. Raises
    EncodingError."""
    answer = canonical.decode(message, _Answer, "answer of a transfer")
    _check_role(answer.role)
    offered = Offered(parse_session_id(answer.session_id), answer.role, nameplate)
    return _point(answer.share), offered


def encode_confirmation(agreed: Agreed) -> bytes:
    return canonical.encode(_Confirmation(confirm=b64u_encode(agreed.confirmation)))


def parse_confirmation(message: bytes) -> bytes:
    """The other end's confirmation, unchecked. Raises EncodingError."""
    confirm = canonical.decode(message, _Confirmation, "confirmation of a transfer").confirm
    return b64u_decode(confirm, KEY_BYTES)


def _point(text: str) -> bytes:
    point = b64u_decode(text, KEY_BYTES)
    check_point(point)
    return point


# ── the invite ───────────────────────────────────────────────────────────────────────────────


def seal_invite(agreed: Agreed, offered: Offered, invite: Invite, nonce: bytes) -> bytes:
    """The sender's last message: the link without its relay, which both ends know. One for each
    exchange. Raises ValidationError when the invite is not what was offered."""
    _check_offered(invite, offered)
    return seal(agreed._key, nonce, _tail(invite), offered.identity(Side.SENDER))


def open_invite(agreed: Agreed, offered: Offered, sealed: bytes, base_url: str) -> Invite:
    """The invite, on the relay that brought it: its parsed address. Raises ProtocolError."""
    _check_size(sealed)
    plain = open_sealed(agreed._key, sealed, offered.identity(Side.SENDER), "the sealed invite")
    return _invite(base_url, plain, offered)


_NO_RELAY: Final = "https://relay.invalid"
"""Stands for the relay where a link is read or written without one."""


def _tail(invite: Invite) -> bytes:
    link = msgspec.structs.replace(invite, base_url=_NO_RELAY).url()
    return link.removeprefix(_NO_RELAY).encode()


def _invite(base_url: str, tail: bytes, offered: Offered) -> Invite:
    try:
        invite = parse_invite(_NO_RELAY + tail.decode("ascii"))
    except UnicodeDecodeError:
        raise EncodingError("the sealed invite is not a link") from None
    if _tail(invite) != tail:  # nothing of it may become part of the address
        raise EncodingError("the sealed invite is not in its one form")
    _check_offered(invite, offered)
    return msgspec.structs.replace(invite, base_url=base_url)


def _check_role(role: Role) -> None:
    if role is Role.OWNER:
        raise EncodingError("the owner's link is not handed over by a code")


def _check_offered(invite: Invite, offered: Offered) -> None:
    if (invite.session_id, invite.role) != (offered.session_id, offered.role):
        raise ValidationError("the sealed invite is not the one that was offered")


def _check_size(sealed: bytes) -> None:
    if len(sealed) > limits.SEALED_INVITE_BYTES:
        raise EncodingError("the sealed invite is too long")


# ── parked ───────────────────────────────────────────────────────────────────────────────────


class ParkedKeys(msgspec.Struct, frozen=True):
    """What six words and a salt give. Nothing of it shows in `repr`."""

    access: bytes
    """Shown to the relay, which knows its hash: whoever knows the words may have the bytes."""
    _key: bytes

    def __repr__(self) -> str:
        return "ParkedKeys()"


class Parked(canonical.Wire, frozen=True, kw_only=True):
    """What a relay keeps of a parked code. `salt`, `role` and `session_id` it tells anybody."""

    access_sha256: str
    role: Role
    salt: str
    sealed: str
    session_id: str
    v: Literal[1] = 1

    def __post_init__(self) -> None:
        b64u_decode(self.access_sha256, KEY_BYTES)
        b64u_decode(self.salt, SALT_BYTES)
        parse_session_id(self.session_id)
        _check_role(self.role)
        _check_size(b64u_decode(self.sealed))


def stretch(words: tuple[str, ...], salt: bytes) -> ParkedKeys:
    """Argon2id over the words. Takes a good tenth of a second and 64 MiB."""
    root = crypto_pwhash_alg(
        KEY_BYTES,
        "-".join(words).encode(),
        salt,
        PARKED_PASSES,
        PARKED_MEMORY_BYTES,
        crypto_pwhash_ALG_ARGON2ID13,
    )
    return ParkedKeys(
        access=hkdf(root, CONTEXT, Info.PARKED_ACCESS), _key=hkdf(root, CONTEXT, Info.PARKED_KEY)
    )


def park(words: tuple[str, ...], invite: Invite, *, salt: bytes, nonce: bytes) -> bytes:
    """The document a relay is to keep. Raises EncodingError for too few words."""
    if len(words) != PARKED_WORDS:
        raise EncodingError(f"a parked code has {PARKED_WORDS} words")
    keys = stretch(words, salt)
    aad = _parked_aad(invite.session_id, invite.role)
    return canonical.encode(
        Parked(
            access_sha256=b64u_encode(sha256(keys.access)),
            role=invite.role,
            salt=b64u_encode(salt),
            sealed=b64u_encode(seal(keys._key, nonce, _tail(invite), aad)),
            session_id=invite.session_id,
        )
    )


def parse_parked(document: bytes) -> Parked:
    """Raises EncodingError."""
    return canonical.decode(document, Parked, "parked invite")


def open_parked(keys: ParkedKeys, sealed: bytes, offered: Offered, base_url: str) -> Invite:
    """The invite, on the relay that kept it: its parsed address. Raises ProtocolError."""
    _check_size(sealed)
    aad = _parked_aad(offered.session_id, offered.role)
    plain = open_sealed(keys._key, sealed, aad, "the sealed invite")
    return _invite(base_url, plain, offered)


def _parked_aad(session_id: SessionId, role: Role) -> bytes:
    return CONTEXT + f"/parked {session_id} {role}".encode()
