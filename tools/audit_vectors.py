"""Cases of the audit trail: one that holds, and what becomes of it when it is changed.

Used by make_vectors.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from airlox.protocol import cert, chain, encoding, invite, item, job, keys, manifest, payload

Case = dict[str, Any]
Entry = dict[str, Any]
Verdict = Callable[[str, str, dict[str, Any]], Case]

OWNER_SEED = bytes(range(32))
SESSION = keys.SessionKeys.derive(OWNER_SEED)
T0 = 1_700_000_000_000
BASE = "https://relay.example"


class Trail:
    """Entries of a session as a relay writes them; every byte of it is fixed."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._people: dict[str, keys.SigningKey] = {}
        self._tips: dict[str, chain.Link] = {}
        self._seq = 0
        self._posts = 0
        self.epoch, self.session_key = 0, SESSION.session_key

    def add(self, event: str, *, is_event: bool = False, **fields: Any) -> None:
        """An entry. `is_event`: readers of the session were told of it, under the next number."""
        self.entries.append({"at_ms": T0 + len(self.entries), "event": event, **fields})
        self._seq += is_event

    def create(self, document: str) -> None:
        self.add("created", signed_manifest=document)

    @property
    def people(self) -> dict[str, keys.SigningKey]:
        """The keys of those who joined."""
        return dict(self._people)

    def join(self, name: str, role: keys.Role, role_seed: bytes | None = None) -> str:
        key = self._people[name] = keys.SigningKey.from_seed(bytes([40 + len(self._people)]) * 32)
        proof = cert.issue_cert(
            role_seed or SESSION.role_seed(role),
            session_id=SESSION.session_id,
            role=role,
            participant_pub=key.public,
            issued_at_ms=T0,
        )
        info = cert.RunnerInfo(
            host="box",
            labels=(),
            name=name,
            network_unblocked=False,
            sandbox=cert.SandboxName.LOCAL,
        )
        is_runner = role is keys.Role.RUNNER
        document = cert.sign_join(
            key,
            cert=proof,
            session_id=SESSION.session_id,
            display_name=name,
            kind=cert.ClientKind.RUNNER if is_runner else cert.ClientKind.CLI,
            created_at_ms=T0,
            runner=info if is_runner else None,
        )
        self.add("joined", signed_join=document, is_event=True)
        return key.public

    def post(
        self,
        name: str,
        meta: payload.Meta,
        subkind: str | None = None,
        refs: Sequence[item.ItemRef] = (),
        *,
        with_blob: bool = False,
    ) -> item.ItemRef:
        """A chained item and its entry."""
        self._posts += 1
        key = self._people[name]
        tips = [self._tips[name]] if name in self._tips else []
        random = bytes([self._posts]) * chain.RANDOM_BYTES
        place = chain.find_place(key.public, refs, tips, knows=True, random=random)
        sealed = item.seal_item(
            key,
            self.session_key,
            session_id=SESSION.session_id,
            item_id=place.item_id,
            kind=payload.kind_of(meta),
            subkind=subkind,
            created_at_ms=T0 + 100 + self._posts,
            payload=payload.encode_payload(meta, b""),
            nonce=bytes([self._posts]) * 12,
            refs=place.refs,
            epoch=self.epoch,
        )
        stays = chain.stays(item.parse_envelope(sealed.envelope).header)
        self._tips[name] = chain.Link(sealed.ref, self._seq, stays)
        blob = {"blob": encoding.b64u_encode(sealed.blob)} if with_blob else {}
        self.add(
            "item",
            envelope=sealed.envelope,
            blob_sha256=sealed.ref.blob_sha256,
            seq=self._seq,
            **blob,
            is_event=True,
        )
        return sealed.ref

    def state(self, word: str, job_ref: item.ItemRef, runner: str) -> None:
        fields = {"job": job_ref.id, "participant_pub": runner, "reason": None}
        self.add(word, **fields, is_event=True)


def _terms() -> str:
    return manifest.build_manifest(
        OWNER_SEED,
        mode=manifest.Mode.EXECUTE,
        created_at_ms=T0,
        ttl_ms=3_600_000,
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
        features=(manifest.Feature.HISTORY, manifest.Feature.LIVE),
    )


def _story(result: job.Result) -> list[Entry]:
    """Approval, a text, a job and its result, and who left. `result` fits any job."""
    trail = Trail()
    trail.create(_terms())
    owner = trail.join("ann", keys.Role.OWNER)
    trail.join("agent", keys.Role.SENDER)
    box = trail.join("box", keys.Role.RUNNER)
    trail.add("approved", participant_pub=box)
    trail.post("ann", payload.RunnerApprove(participant_pub=box), with_blob=True)
    hello = trail.post("agent", payload.Text(text="hello"))
    trail.add("ack", item=hello.id, participant_pub=owner)
    shell = job.ShellJob(
        command=("true",), files=(), memory_mb=None, target=job.AnyRunner(), timeout_s=10
    )
    ran = trail.post("agent", shell, "sh")
    trail.state("assigned", ran, box)
    trail.state("claimed", ran, box)
    trail.post("box", result, refs=[ran])
    trail.state("finished", ran, box)
    trail.post("agent", payload.Text(text="thanks"), refs=[hello])
    trail.add("revoked", role="sender", is_event=True)
    return trail.entries


APPROVAL, HELLO, JOB, RESULT, THANKS = 5, 6, 8, 11, 13
"""Where the items stand in `_story`."""


def cases(verdict: Verdict, result: job.Result) -> list[Case]:
    story = _story(result)

    def check(name: str, entries: Sequence[Entry], **given: Any) -> Case:
        lines = [json.dumps(entry, separators=(",", ":")) for entry in entries]
        return verdict(f"audit-{name}", "verify_audit", {"lines": lines, **given})

    def without(*places: int) -> list[Entry]:
        return [entry for at, entry in enumerate(story) if at not in places]

    def changed(at: int, **fields: Any) -> list[Entry]:
        return [*story[:at], {**story[at], **fields}, *story[at + 1 :]]

    def swapped(one: int, other: int) -> list[Entry]:
        places = {one: story[other], other: story[one]}
        return [places.get(at, entry) for at, entry in enumerate(story)]

    bare = [{name: entry[name] for name in entry if name != "seq"} for entry in story]
    observer = invite.member_invite(BASE, OWNER_SEED, keys.Role.OBSERVER).url()
    stranger = invite.member_invite(BASE, bytes(32), keys.Role.OBSERVER)
    gone = {"at_ms": T0, "event": "forgotten", "ranges": [[5, 9]]}
    extract = {"at_ms": T0, "event": "extract", "jobs": []}
    rest = without(JOB, JOB + 1, JOB + 2, RESULT, RESULT + 1)
    return [
        check("whole", story),
        check("whole-with-id", story, session_id=SESSION.session_id),
        check("whole-with-invite", story, invite=observer),
        check("without-numbers", bare),
        check("other-id", story, session_id=stranger.session_id),
        check("other-invite", story, invite=stranger.url()),
        check("empty", []),
        check("no-manifest", story[1:]),
        check("manifest-twice", [*story, story[0]]),
        check("join-missing", without(2)),
        check("join-twice", [*story, story[2]]),
        check("item-missing", without(HELLO)),
        check("last-item-missing", without(THANKS)),
        check("item-twice", [*story, story[HELLO]]),
        check("items-swapped", swapped(HELLO, JOB)),
        check("items-swapped-without-numbers", [bare[0], *bare[1:6], bare[8], bare[7], bare[6]]),
        check("number-changed", changed(JOB, seq=6)),
        check("number-missing", changed(THANKS, seq=None)),
        check("digest-of-another", changed(HELLO, blob_sha256=story[JOB]["blob_sha256"])),
        check("blob-changed", changed(APPROVAL, blob=story[APPROVAL]["blob"][:-4] + "AAAA")),
        check("result-without-job", without(JOB)),
        check("result-missing", without(RESULT)),
        check("approval-missing", without(4)),
        check("item-after-revoked", [*story[:THANKS], story[-1], story[THANKS]]),
        check("unknown-entry", [*story, {"at_ms": T0, "event": "blessed"}]),
        check("unknown-field", changed(HELLO, mood="fine")),
        check("forgotten", [rest[0], gone, *rest[1:]]),
        check("forgotten-untold", rest),
        check("forgotten-but-a-text", [story[0], gone, *without(0, HELLO)]),
        check("extract", [rest[0], extract, *rest[1:]], extract=True),
        check("extract-not-asked-for", [rest[0], extract, *rest[1:]]),
        check("extract-said-late", [*story, extract], extract=True),
    ]
