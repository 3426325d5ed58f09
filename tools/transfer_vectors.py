"""Cases of transfer codes: codes as people type them, whole exchanges, odd points, parked invites.

Each exchange and each parked invite is made by `spake2_plain` and must come out of the core alike.
Used by make_vectors.py.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import ed25519_odd as odd
import msgspec
import spake2_plain as plain

from airlox.protocol import invite, keys, wordlist

Case = dict[str, Any]
Verdict = Callable[[str, str, dict[str, Any]], Case]

OWNER_SEED = bytes(range(32))
BASE_URL = "https://relay.example"
NONCE = bytes([11]) * 12
SALT = bytes([12]) * 16
WORDS = ["guitar", "orbit"]
SIX = ["guitar", "orbit", "abacus", "zucchini", "lemon", "tango"]


def random(seed: str, size: int) -> bytes:
    return hashlib.shake_256(seed.encode()).digest(size)


def link(role: str) -> invite.Invite:
    return invite.member_invite(BASE_URL, OWNER_SEED, keys.Role(role))


def tail(role: str) -> bytes:
    return link(role).url().removeprefix(BASE_URL).encode()


def exchange_inputs(name: str, words: list[str], role: str, nameplate: int) -> dict[str, Any]:
    return {
        "words": words,
        "link": link(role).url(),
        "nameplate": nameplate,
        "sender_random": random(f"{name} sender", 64).hex(),
        "receiver_random": random(f"{name} receiver", 64).hex(),
        "nonce": NONCE.hex(),
    }


def exchange_outcome(i: dict[str, Any]) -> dict[str, Any]:
    """What the second implementation makes of the inputs of an exchange."""
    role = next(r for r in ("sender", "observer", "runner") if link(r).url() == i["link"])
    where = f"{i['nameplate']} {link(role).session_id} {role}"
    x, y = bytes.fromhex(i["sender_random"]), bytes.fromhex(i["receiver_random"])
    run = plain.exchange(i["words"], where, x, y)
    aad = f"airlox/v1/transfer sender {where}".encode()
    nonce = bytes.fromhex(i["nonce"])
    return {
        "sender_point": run.pa.hex(),
        "receiver_point": run.pb.hex(),
        "sender_confirmation": run.confirm_a.hex(),
        "receiver_confirmation": run.confirm_b.hex(),
        "verifier": " ".join(plain.pick(run.verifier, list(wordlist.WORDS), 5)),
        "sealed": plain.sealed(run.key, nonce, tail(role), aad).hex(),
    }


def parked_outcome(i: dict[str, Any]) -> str:
    """The document that the second implementation parks."""
    role = next(r for r in ("sender", "observer", "runner") if link(r).url() == i["link"])
    salt, nonce = bytes.fromhex(i["salt"]), bytes.fromhex(i["nonce"])
    key, access = plain.stretched(i["words"], salt)
    aad = f"airlox/v1/parked {link(role).session_id} {role}".encode()

    def text(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    members = {
        "access_sha256": text(hashlib.sha256(access).digest()),
        "role": role,
        "salt": text(salt),
        "sealed": text(plain.sealed(key, nonce, tail(role), aad)),
        "session_id": link(role).session_id,
        "v": 1,
    }
    return msgspec.json.encode(members).decode()


def points() -> dict[str, bytes]:
    """Shares that must be refused, and one that must not."""
    good = odd.multiply(5, plain.BASE)
    order_8 = torsion()
    return {
        "of-the-group": odd.encode(good),
        "neutral": odd.encode(odd.IDENTITY),
        "order-2": odd.encode((0, odd.P - 1)),
        "order-8": odd.encode(order_8),
        "order-8-times-order": odd.encode(odd.add(good, order_8)),
        "neutral-not-canonical": (odd.P + 1).to_bytes(32, "little"),
        "neutral-with-sign": (1 | 1 << 255).to_bytes(32, "little"),
        "not-on-the-curve": (2).to_bytes(32, "little"),
        "too-short": odd.encode(good)[:31],
        "all-ones": b"\xff" * 32,
    }


def torsion() -> odd.Point:
    """A point of order eight."""
    y = 2
    while True:
        y += 1
        try:
            found = odd.multiply(odd.L, plain.decode(y.to_bytes(32, "little")))
        except ValueError:
            continue
        if odd.multiply(4, found) != odd.IDENTITY:
            return found


TYPED = {
    "plain": "417-guitar-orbit",
    "capitals": "417-GUITAR-Orbit",
    "spaces": "  417 guitar  orbit ",
    "other-dashes": "417\u2013guitar\u2011orbit",
    "run-together": "417guitarorbit",
    "dots": "417.guitar.orbit",
    "longest-number": "999999999999-guitar-orbit",
    "six": "417-" + "-".join(SIX),
    "six-run-together": "417" + "".join(SIX),
    "two-ways": "417-barnarrow",
    "no-number": "guitar-orbit",
    "number-last": "guitar-orbit-417",
    "leading-zero": "0417-guitar-orbit",
    "number-too-long": "1000000000000-guitar-orbit",
    "one-word": "417-guitar",
    "three-words": "417-guitar-orbit-lemon",
    "seven-words": "417-" + "-".join([*SIX, "lemon"]),
    "word-unknown": "417-gitar-orbit",
    "word-cut": "417-guit-orbit",
    "letter-not-ascii": "417-guit\u00e1r-orbit",
    "digit-inside": "417-guitar-0rbit",
    "digits-not-ascii": "\u0664\u0661\u0667-guitar-orbit",
    "empty": "",
    "too-long": "417-guitar-orbit" + " " * 200,
}


def cases(verdict: Verdict) -> list[Case]:
    found = [verdict(f"code-{name}", "parse_code", {"text": text}) for name, text in TYPED.items()]
    for size, drawn in ((2, "000000"), (2, "ffffff"), (2, "a5c3f0"), (6, "0123456789abcdef01")):
        inputs = {"count": size, "random": drawn}
        found.append(verdict(f"words-{size}-{drawn}", "draw_words", inputs))
    for name, words, role, nameplate in (
        ("runner", WORDS, "runner", 417),
        ("observer", ["zucchini", "abacus"], "observer", 100),
        ("sender", WORDS, "sender", 999_999_999_999),
    ):
        inputs = exchange_inputs(name, words, role, nameplate)
        case = verdict(f"exchange-{name}", "exchange", inputs)
        assert case["ok"] == exchange_outcome(inputs), "the two implementations differ"
        found.append(case)
    for name, point in points().items():
        found.append(verdict(f"point-{name}", "check_point", {"point": point.hex()}))
    inputs = {
        "words": SIX,
        "link": link("runner").url(),
        "salt": SALT.hex(),
        "nonce": NONCE.hex(),
    }
    case = verdict("park", "park", inputs)
    assert case["ok"] == parked_outcome(inputs), "the two implementations differ"
    found.append(case)
    return found + opening_cases(verdict, case["ok"])


def opening_cases(verdict: Verdict, parked: str) -> list[Case]:
    def opened(name: str, words: list[str], **changes: Any) -> Case:
        document = msgspec.json.encode(msgspec.json.decode(parked) | changes).decode()
        inputs = {"document": document, "words": words, "base_url": BASE_URL}
        return verdict(f"open-parked-{name}", "open_parked", inputs)

    return [
        opened("as-it-is", SIX),
        opened("another-word", [*SIX[:5], "camel"]),
        opened("another-order", SIX[::-1]),
        opened("another-role", SIX, role="sender"),
        opened("another-salt", SIX, salt=base64.urlsafe_b64encode(bytes(16)).decode().rstrip("=")),
        opened("salt-too-short", SIX, salt="AAAA"),
        opened("another-version", SIX, v=2),
        opened("more", SIX, more=1),
    ]
