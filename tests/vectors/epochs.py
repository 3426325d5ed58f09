"""What the operations of the vectors of epochs mean, on the Python core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airlox.errors import DecryptError
from airlox.protocol import audit, epochs, invite, item, live, manifest
from airlox.protocol.encoding import PublicKey
from airlox.protocol.keyring import Keyring, check_link
from airlox.protocol.keys import Role, SigningKey


def _terms(i: dict[str, Any]) -> tuple[manifest.Manifest, epochs.EpochState]:
    found = manifest.parse_manifest(i["signed_manifest"])
    return found, epochs.fold_epochs(i["epochs"], found)


def _keyring(i: dict[str, Any]) -> Keyring:
    seed = i.get("participant_seed")
    participant = None if seed is None else SigningKey.from_seed(bytes.fromhex(seed))
    found = manifest.parse_manifest(i["signed_manifest"])
    keyring = Keyring(found, invite.parse_invite(i["invite"]), participant)
    keyring.learn_all(i["epochs"])
    return keyring


def _begin(i: dict[str, Any]) -> str:
    terms, state = _terms(i)
    seed = bytes.fromhex(i["owner_seed"])
    owner = Keyring(terms, invite.owner_invite("https://relay.example", seed))
    owner.learn_all(i["epochs"])
    revocation = epochs.Revocation(
        Role(i["role"]),
        None if i["cut_off"] is None else PublicKey(i["cut_off"]),
        tuple(map(PublicKey, i["kept"])),
    )
    return epochs.build_epoch(
        seed,
        terms,
        state,
        revocation,
        earlier_key=owner.current()[1],
        created_at_ms=i["created_at_ms"],
        salt=bytes.fromhex(i["salt"]),
    )


def _parse(i: dict[str, Any]) -> dict[str, Any]:
    _, state = _terms(i)
    return {
        "number": state.number,
        "head": state.head,
        "role_keys": {role.value: key for role, key in sorted(state.role_keys.items())},
        "replaced": {key: role.value for key, role in sorted(state.replaced.items())},
    }


def _session_keys(i: dict[str, Any]) -> list[str | None]:
    keyring = _keyring(i)

    def key(number: int) -> str | None:
        try:
            return keyring.of(number).hex()
        except DecryptError:
            return None

    return [key(number) for number in range(keyring.number + 1)]


def _check_link(i: dict[str, Any]) -> None:
    terms, state = _terms(i)
    check_link(invite.parse_invite(i["invite"]), terms, state, has_joined=i["has_joined"])


def _check_epoch(i: dict[str, Any]) -> None:
    _, state = _terms(i)
    state.check_number(item.parse_envelope(i["envelope"]).header.epoch_number, "the item")


def _live_epochs(i: dict[str, Any]) -> list[str]:
    keyring = _keyring(i)
    reader = live.LiveReader(
        keyring.of(0),
        manifest.parse_manifest(i["signed_manifest"]).session_id,
        item.ItemRef(**i["job"]),
        PublicKey(i["runner"]),
        later_key=keyring.of,
    )
    found = []
    for frame in i["frames"]:
        pieces, reader = reader.read(bytes.fromhex(frame))
        found += [piece.data.decode() for piece in pieces]
    return found


def _verify_epochs(i: dict[str, Any]) -> dict[str, Any]:
    report = audit.verify_audit(i["lines"], invite=i.get("invite"))
    return {
        "verified": report.verified,
        "wrong": sorted({problem.line for problem in report.problems}),
        "epochs": [
            {"line": e.line, "number": e.number, "role": e.role.value, "cut_off": e.cut_off}
            for e in report.epochs
        ],
        "cut_off": [person.cut_off for person in report.people],
        "decisions": [decision.line for decision in report.decisions],
    }


EPOCHS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "begin_epoch": _begin,
    "parse_epochs": _parse,
    "session_keys": _session_keys,
    "check_link": _check_link,
    "check_epoch": _check_epoch,
    "live_epochs": _live_epochs,
    "verify_epochs": _verify_epochs,
}
