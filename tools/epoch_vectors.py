"""Cases of epochs: documents that are made, what of them is refused, and who can open what.

Used by make_vectors.py. A story is a list of steps; its people are named by letters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from audit_vectors import Trail

from airlox.protocol import canonical, encoding, invite, item, keys, live, manifest, payload
from airlox.protocol.epochs import EpochState, Revocation, build_epoch, parse_epoch
from airlox.protocol.keyring import Keyring
from airlox.protocol.signature import Label

Case = dict[str, Any]
Verdict = Callable[[str, str, dict[str, Any]], Case]
Change = Callable[[dict[str, Any]], None]

OWNER_SEED = bytes(range(32))
SESSION = keys.SessionKeys.derive(OWNER_SEED)
OWNER = SESSION.owner
T0 = 1_700_000_000_000
BASE = "https://relay.example"
PEOPLE = {name: keys.SigningKey.from_seed(bytes([80 + at]) * 32) for at, name in enumerate("abcd")}
FEATURES = (manifest.Feature.EPOCHS, manifest.Feature.LIVE, manifest.Feature.TREES)
SENDER, OBSERVER, RUNNER = keys.MEMBER_ROLES


def _terms(features: Sequence[manifest.Feature] = FEATURES) -> str:
    return manifest.build_manifest(
        OWNER_SEED,
        mode=manifest.Mode.EXECUTE,
        created_at_ms=T0,
        ttl_ms=None,
        job_limits=manifest.JobLimits(
            approve_runners=True,
            kinds=(manifest.JobKind.SHELL,),
            memory_mb=512,
            network=False,
            packages=(),
            return_out=True,
            runtime="python3.12",
            timeout_s=60,
        ),
        features=features,
    )


DOCUMENT = _terms()
TERMS = manifest.parse_manifest(DOCUMENT)


class Story:
    """Epochs one after the other, as the owner makes them."""

    def __init__(self) -> None:
        self.documents: list[str] = []
        self.state = EpochState.begin(TERMS)
        self.people = dict(PEOPLE)
        self.keyring = Keyring(TERMS, invite.owner_invite(BASE, OWNER_SEED))

    def revoke(self, role: keys.Role, cut_off: str | None = None, kept: str = "") -> Story:
        inputs = self.inputs(role, cut_off, kept)
        document = build_epoch(
            OWNER_SEED,
            TERMS,
            self.state,
            Revocation(
                role,
                None if cut_off is None else self.people[cut_off].public,
                tuple(self.people[name].public for name in kept),
            ),
            earlier_key=self.keyring.current()[1],
            created_at_ms=inputs["created_at_ms"],
            salt=bytes.fromhex(inputs["salt"]),
        )
        epoch = parse_epoch(document, TERMS, self.state)
        self.state = self.state.after(epoch)
        self.keyring.learn(epoch)
        self.documents.append(document)
        return self

    def inputs(self, role: keys.Role, cut_off: str | None, kept: str) -> dict[str, Any]:
        number = self.state.number + 1
        return {
            "signed_manifest": DOCUMENT,
            "epochs": list(self.documents),
            "owner_seed": OWNER_SEED.hex(),
            "role": role.value,
            "cut_off": None if cut_off is None else self.people[cut_off].public,
            "kept": [self.people[name].public for name in kept],
            "created_at_ms": T0 + number,
            "salt": (bytes([number]) * 16).hex(),
        }


def cases(verdict: Verdict) -> list[Case]:
    return [
        *_made(verdict),
        *_refused(verdict),
        *_keys(verdict),
        *_links(verdict),
        *_items(verdict),
        *_segments(verdict),
        *_trails(verdict),
    ]


# ── documents ────────────────────────────────────────────────────────────────────────────────


def _made(verdict: Verdict) -> list[Case]:
    def case(name: str, story: Story, *revoked: Any) -> Case:
        return verdict(f"begin-{name}", "begin_epoch", story.inputs(*revoked))

    after_role = Story().revoke(OBSERVER)
    after_two = Story().revoke(SENDER, "a", "bc").revoke(RUNNER)
    low = encoding.PublicKey(encoding.b64u_encode(bytes([1]) + bytes(31)))
    with_low = Story().inputs(SENDER, "a", "b")
    with_low["kept"].append(low)
    return [
        case("role", Story(), OBSERVER, None, ""),
        case("participant", Story(), SENDER, "a", "cb"),
        case("the-only-participant", Story(), RUNNER, "d", ""),
        case("second", after_role, SENDER, "a", "b"),
        case("renewed-again", Story().revoke(SENDER, "a", "bc"), SENDER, "b", "c"),
        case("last-role", after_two.revoke(SENDER), OBSERVER, None, ""),
        case("role-revoked-before", after_role, OBSERVER, None, ""),
        case("owner", Story(), keys.Role.OWNER, None, ""),
        case("kept-and-cut-off", Story(), SENDER, "a", "ab"),
        verdict("begin-key-of-small-order-left-out", "begin_epoch", with_low),
    ]


def _forged(document: str, change: Change, signer: keys.SigningKey = OWNER) -> str:
    """A document with a change of its body, signed as the owner would."""
    body = json.loads(document)["epoch"]
    change(body)
    signature = signer.sign(Label.EPOCH, canonical.encode(body))
    return canonical.encode({"epoch": body, "sig": signature}).decode()


def _set(**fields: Any) -> Change:
    return lambda body: body.update(fields)


def _drop(name: str) -> Change:
    return lambda body: body.pop(name)


def _in(name: str, change: Change) -> Change:
    return lambda body: change(body[name])


def _refused(verdict: Verdict) -> list[Case]:
    first = Story().revoke(SENDER, "a", "bc")
    second = Story().revoke(SENDER, "a", "bc").revoke(OBSERVER)
    one, two = first.documents[0], second.documents[1]

    def case(name: str, document: str, *before: str, terms: str = DOCUMENT) -> Case:
        inputs = {"signed_manifest": terms, "epochs": [*before, document]}
        return verdict(f"parse-{name}", "parse_epochs", inputs)

    def changed(name: str, change: Change) -> Case:
        return case(name, _forged(one, change))

    body = json.loads(one)["epoch"]
    box, kept = body["boxes"]["runner"], body["renewal"]["kept"]
    without = _terms(FEATURES[1:])
    other = encoding.b64u_encode(bytes(32))
    return [
        case("one", one),
        case("two", two, one),
        case(
            "signed-by-a-role",
            _forged(one, _set(), keys.SigningKey.from_seed(SESSION.role_seeds[SENDER])),
        ),
        case("signed-by-a-participant", _forged(one, _set(), PEOPLE["a"])),
        case("altered-after-signing", one.replace(box[:8], "AAAAAAAA")),
        case("not-canonical", one.replace('"v":1', '"v": 1')),
        case("unknown-field", one.replace('"v":1', '"v":1,"w":1')),
        case("without-feature", one, terms=without),
        case("repeated", one, one),
        case("second-first", two),
        case("another-second-after-it", two, _forged(one, _set(created_at_ms=T0))),
        changed("number-zero", _set(number=0)),
        changed("number-jumps", _set(number=2)),
        changed("number-beyond-limit", _set(number=129)),
        changed("other-session", _set(session_id="ax_" + "a" * 26)),
        changed("other-before", _set(prev=other)),
        changed("role-owner", _set(role="owner")),
        changed("version", _set(v=2)),
        changed("salt-short", _set(salt=encoding.b64u_encode(bytes(15)))),
        changed("one-time-short", _set(one_time=encoding.b64u_encode(bytes(31)))),
        changed("earlier-short", _set(earlier=encoding.b64u_encode(bytes(47)))),
        changed("box-missing", _in("boxes", _drop("runner"))),
        changed("box-null", _in("boxes", _set(runner=None))),
        changed("box-long", _in("boxes", _set(runner=encoding.b64u_encode(bytes(49))))),
        changed("box-of-revoked-role", _drop("renewal")),
        changed("renewal-null", _set(renewal=None)),
        changed("role-key-of-manifest", _in("renewal", _set(role_pub=TERMS.key_of(SENDER)))),
        changed("role-key-of-owner", _in("renewal", _set(role_pub=TERMS.owner_pub))),
        changed("role-key-no-point", _in("renewal", _set(role_pub="_" * 43))),
        changed("kept-out-of-order", _in("renewal", _set(kept=kept[::-1]))),
        changed("kept-twice", _in("renewal", _set(kept=[kept[0], *kept]))),
        changed("kept-cut-off", _in("renewal", _set(cut_off=kept[0]["participant_pub"]))),
    ]


# ── who can open what ────────────────────────────────────────────────────────────────────────


def _keys(verdict: Verdict) -> list[Case]:
    story = Story().revoke(SENDER, "a", "bc").revoke(OBSERVER).revoke(SENDER, "b", "c")
    renewed = [
        Story().revoke(SENDER, "a", "bc").keyring.link(BASE, SENDER).url(),
        story.keyring.link(BASE, SENDER).url(),
    ]
    first = {role: invite.member_invite(BASE, OWNER_SEED, role).url() for role in keys.MEMBER_ROLES}

    def case(name: str, link: str, who: str | None = None, documents: Any = None) -> Case:
        inputs = {
            "signed_manifest": DOCUMENT,
            "epochs": story.documents if documents is None else documents,
            "invite": link,
            "participant_seed": None if who is None else PEOPLE[who].seed.hex(),
        }
        return verdict(f"keys-{name}", "session_keys", inputs)

    swapped = _forged(story.documents[0], _in("boxes", _swap))
    return [
        case("owner", invite.owner_invite(BASE, OWNER_SEED).url()),
        case("runner", first[RUNNER], "d"),
        case("newcomer-with-a-first-link", first[RUNNER]),
        case("observer-revoked", first[OBSERVER]),
        case("sender-cut-off-first", first[SENDER], "a"),
        case("sender-cut-off-later", first[SENDER], "b"),
        case("sender-who-stays", first[SENDER], "c"),
        case("sender-with-the-first-link-alone", first[SENDER]),
        case("newcomer-with-the-second-link", renewed[0]),
        case("newcomer-with-the-third-link", renewed[1]),
        case("boxes-swapped", first[RUNNER], "d", [swapped]),
    ]


def _swap(boxes: dict[str, str]) -> None:
    boxes["observer"], boxes["runner"] = boxes["runner"], boxes["observer"]


def _links(verdict: Verdict) -> list[Case]:
    renewed = Story().revoke(SENDER, "a", "b")
    gone = Story().revoke(SENDER)
    new = renewed.keyring.link(BASE, SENDER).url()
    first = invite.member_invite(BASE, OWNER_SEED, SENDER).url()

    def case(name: str, link: str, story: Story, *, has_joined: bool = False) -> Case:
        inputs = {
            "signed_manifest": DOCUMENT,
            "epochs": story.documents,
            "invite": link,
            "has_joined": has_joined,
        }
        return verdict(f"link-{name}", "check_link", inputs)

    return [
        case("first", first, Story()),
        case("replaced", first, renewed),
        case("replaced-for-who-joined", first, renewed, has_joined=True),
        case("new", new, renewed),
        case("new-before-its-epoch-is-known", new, Story()),
        case("of-a-role-that-was-revoked", first, gone),
        case("revoked-for-who-joined", first, gone, has_joined=True),
        case("other-role", invite.member_invite(BASE, OWNER_SEED, RUNNER).url(), renewed),
    ]


# ── what is sealed in an epoch ───────────────────────────────────────────────────────────────


def _items(verdict: Verdict) -> list[Case]:
    story = Story().revoke(OBSERVER)
    number, session_key = story.keyring.current()

    def sealed(epoch: int, key: bytes) -> item.SealedItem:
        return item.seal_item(
            PEOPLE["a"],
            key,
            session_id=SESSION.session_id,
            item_id=encoding.new_item_id(bytes([5]) * 16),
            kind=item.Kind.TEXT,
            subkind=None,
            created_at_ms=T0 + 9,
            payload=payload.encode_payload(payload.Text(text="later")),
            nonce=bytes([6]) * 12,
            epoch=epoch,
        )

    def case(name: str, envelope: str, epochs: Sequence[str]) -> Case:
        inputs = {"signed_manifest": DOCUMENT, "epochs": list(epochs), "envelope": envelope}
        return verdict(f"item-{name}", "check_epoch", inputs)

    now, before = sealed(number, session_key), sealed(0, SESSION.session_key)
    zero = now.envelope.replace('"epoch":1', '"epoch":0')
    null = now.envelope.replace('"epoch":1', '"epoch":null')
    return [
        case("of-this-epoch", now.envelope, story.documents),
        case("before-the-first", before.envelope, []),
        case("of-an-epoch-that-ended", before.envelope, story.documents),
        case("of-an-epoch-not-shown", now.envelope, []),
        case("of-epoch-zero-in-words", zero, []),
        case("of-epoch-null", null, []),
    ]


def _segments(verdict: Verdict) -> list[Case]:
    story = Story().revoke(OBSERVER)
    number, session_key = story.keyring.current()
    job = item.ItemRef(
        blob_sha256=encoding.b64u_encode(bytes([2]) * 32),
        id=encoding.b64u_encode(bytes([1]) * 16),
    )
    writer = live.LiveWriter(
        PEOPLE["d"], SESSION.session_key, SESSION.session_id, job, bytes([5]) * 16
    )
    first, writer = writer.write([live.Piece(1, b"before\n")])
    later = live.LiveWriter(
        PEOPLE["d"],
        session_key,
        SESSION.session_id,
        job,
        bytes([5]) * 16,
        writer.n,
        writer.offset,
        writer.head,
        number,
    )
    second, _ = later.write([live.Piece(1, b"after\n")])

    def case(name: str, epochs: Sequence[str]) -> Case:
        inputs = {
            "signed_manifest": DOCUMENT,
            "epochs": list(epochs),
            "invite": invite.member_invite(BASE, OWNER_SEED, RUNNER).url(),
            "job": {"blob_sha256": job.blob_sha256, "id": job.id},
            "runner": PEOPLE["d"].public,
            "frames": [first.hex(), second.hex()],
        }
        return verdict(f"live-{name}", "live_epochs", inputs)

    return [case("over-two-epochs", story.documents), case("without-the-second", [])]


# ── trails ───────────────────────────────────────────────────────────────────────────────────


def _trails(verdict: Verdict) -> list[Case]:
    """A trail with two revocations, and what becomes of it when one is moved or left out."""
    trail, story = Trail(), Story()

    def revoke(role: keys.Role, cut_off: str | None = None, *kept: str) -> None:
        trail.add("epoch", signed_epoch=story.revoke(role, cut_off, *kept).documents[-1])
        trail.epoch, trail.session_key = story.keyring.current()

    def say(name: str, text: str) -> None:
        trail.post(name, payload.Text(text=text))

    trail.create(DOCUMENT)
    for name, role in (("owner", keys.Role.OWNER), ("a", SENDER), ("b", SENDER), ("o", OBSERVER)):
        trail.join(name, role)
    story.people = trail.people
    say("a", "before")
    revoke(SENDER, "a", "b")
    say("b", "once")
    trail.join("c", SENDER, story.keyring.link(BASE, SENDER).role_seed)
    story.people = trail.people
    say("c", "here")
    revoke(OBSERVER)
    say("b", "twice")
    rejection = payload.RunnerReject(participant_pub=trail.people["c"].public, reason=None)
    trail.post("owner", rejection, with_blob=True)
    lines = trail.entries
    places = [at for at, entry in enumerate(lines) if entry["event"] == "epoch"]
    owner = invite.owner_invite(BASE, OWNER_SEED).url()
    first = invite.member_invite(BASE, OWNER_SEED, SENDER).url()

    def case(name: str, entries: Sequence[dict[str, Any]], link: str | None = None) -> Case:
        inputs: dict[str, Any] = {"lines": [json.dumps(entry) for entry in entries]}
        if link is not None:
            inputs["invite"] = link
        return verdict(f"trail-{name}", "verify_epochs", inputs)

    def without(at: int) -> list[dict[str, Any]]:
        return lines[:at] + lines[at + 1 :]

    late = [*without(places[0]), lines[places[0]]]
    return [
        case("holds", lines),
        case("holds-for-the-owner", lines, owner),
        case("with-a-replaced-link", lines, first),
        case("first-left-out", without(places[0])),
        case("second-left-out", without(places[1])),
        case("first-at-the-end", late),
        case("second-twice", [*lines, lines[places[1]]]),
        case("by-who-was-cut-off", [*lines, lines[5]]),
    ]
