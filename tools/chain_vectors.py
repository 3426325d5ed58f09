"""Cases of the chain: what ids say, a chain that is whole, and each kind of alarm.

Used by make_vectors.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airlox.protocol import chain, encoding, item, keys, payload

Case = dict[str, Any]
Verdict = Callable[[str, str, dict[str, Any]], Case]

SESSION = keys.SessionKeys.derive(bytes(range(32)))
T0 = 1_700_000_000_000


def ref(number: int) -> item.ItemRef:
    """A reference to something that is in no session."""
    raw = bytes([number])
    return item.ItemRef(
        blob_sha256=encoding.b64u_encode(raw * 32), id=encoding.b64u_encode(raw * 16)
    )


def plain(value: item.ItemRef) -> dict[str, str]:
    return {"blob_sha256": value.blob_sha256, "id": value.id}


class Author:
    """Posts texts. `tips` are what a post links to and joins."""

    def __init__(self, seed: int) -> None:
        self.key = keys.SigningKey.from_seed(bytes([seed]) * 32)
        self.tips: list[chain.Link] = []
        self._count = 0

    def post(
        self,
        seq: int | None,
        *chosen: item.ItemRef,
        knows: bool = True,
        stays: bool = True,
        chained: bool = True,
    ) -> tuple[item.ItemRef, str]:
        """A text: its reference and envelope. The relay acknowledges it as number `seq`."""
        self._count += 1
        random = bytes([self._count]) * chain.RANDOM_BYTES
        place = chain.find_place(self.key.public, chosen, self.tips, knows=knows, random=random)
        if not chained:
            drawn = encoding.new_item_id(bytes([self._count]) * 16)
            place = chain.Place(drawn, chosen)
        sealed = item.seal_item(
            self.key,
            SESSION.session_key,
            session_id=SESSION.session_id,
            item_id=place.item_id,
            kind=item.Kind.TEXT,
            subkind=None,
            created_at_ms=T0 + self._count,
            payload=payload.encode_payload(payload.Text(text="hi")),
            nonce=bytes([self._count]) * 12,
            refs=place.refs,
        )
        self.tips = [chain.Link(sealed.ref, seq, stays)]
        return sealed.ref, sealed.envelope


def event(seq: int, posted: tuple[item.ItemRef, str], **more: Any) -> dict[str, Any]:
    return {"seq": seq, "envelope": posted[1], **more}


def cases(verdict: Verdict) -> list[Case]:
    return [*_places(verdict), *_marks(verdict), *_whole(verdict), *_alarms(verdict)]


def _places(verdict: Verdict) -> list[Case]:
    author = keys.SigningKey.from_seed(bytes([7]) * 32).public

    def case(name: str, chosen: int, tips: Sequence[tuple[int | None, bool]], knows: bool) -> Case:
        inputs = {
            "author": author,
            "chosen": [plain(ref(1 + n)) for n in range(chosen)],
            "tips": [
                {"ref": plain(ref(100 + n)), "seq": seq, "stays": stays}
                for n, (seq, stays) in enumerate(tips)
            ],
            "knows": knows,
            "random": bytes(range(chain.RANDOM_BYTES)).hex(),
        }
        return verdict(f"place-{name}", "find_place", inputs)

    tip = (7, True)
    return [
        case("first", 0, [], True),
        case("first-with-references", 2, [], False),
        case("linked", 0, [tip], True),
        case("linked-and-forgettable", 1, [(7, False)], True),
        case("number-unknown", 0, [(None, True)], True),
        case("number-too-large", 0, [(2**32 - 1, True)], True),
        case("joined", 1, [(1, False), (2, True), tip], True),
        case("joins-eight-of-twelve", 1, [(n, True) for n in range(12)], True),
        case("a-result-of-62-files", 63, [(1, True), tip], True),
        case("no-room", 64, [tip], True),
    ]


def _marks(verdict: Verdict) -> list[Case]:
    author = Author(7)

    def case(name: str, envelope: str) -> Case:
        return verdict(f"mark-{name}", "read_mark", {"envelope": envelope})

    first, linked = author.post(3), author.post(4, ref(1), knows=False, stays=False)
    author.tips = [chain.Link(first[0], 3), *author.tips]
    joined = author.post(5, ref(2), ref(3))
    merely_drawn = Author(8).post(0, ref(1), ref(2), chained=False)
    moved = linked[1].replace(plain(ref(1))["id"], plain(ref(9))["id"])
    another_link = linked[1].replace(first[0].id, ref(9).id)
    return [
        case("first", first[1]),
        case("linked", linked[1]),
        case("joined", joined[1]),
        case("of-no-chain", merely_drawn[1]),
        case("other-chosen-reference", moved),
        case("other-link", another_link),
    ]


def _chain(verdict: Verdict, name: str, *events: dict[str, Any], numbered: bool = True) -> Case:
    return verdict(f"chain-{name}", "chain", {"events": list(events), "numbered": numbered})


def _whole(verdict: Verdict) -> list[Case]:
    author, other = Author(7), Author(8)
    a, b, c = author.post(0), author.post(1), author.post(5)
    old = [other.post(n, ref(n), chained=False) for n in (2, 3)]
    reply = other.post(4, a[0], ref(9), knows=False)
    author.tips = [chain.Link(a[0], 0, True)]
    fork = author.post(6)
    author.tips = [chain.Link(c[0], 5, True), *author.tips]
    joining = author.post(7)
    job = Author(10)
    gone, after = job.post(3, stays=False), job.post(9)
    return [
        _chain(
            verdict,
            "whole-with-those-who-do-not-chain",
            *(event(0, a), event(1, b), event(2, old[0]), event(3, old[1])),
            *(event(4, reply), event(5, c), event(6, fork), event(7, joining)),
        ),
        _chain(verdict, "forgotten", {"skip": [2, 8]}, event(9, after)),
        _chain(verdict, "let-go-of-later", event(3, gone), {"skip": [3, 3]}, event(9, after)),
        _chain(
            verdict, "places-not-numbers", event(0, a), event(1, b), event(2, c), numbered=False
        ),
    ]


def _alarms(verdict: Verdict) -> list[Case]:
    author, other = Author(7), Author(8)
    a, b, c, d = author.post(0), author.post(1), author.post(2), author.post(3)
    reply = other.post(4, d[0])
    wrong = encoding.b64u_encode(bytes(32))
    job = Author(10)
    job.post(3, stays=False)
    after_job = job.post(9)
    unknown = Author(11)
    unknown.post(None, stays=False)
    after_unknown = unknown.post(9)
    return [
        _chain(verdict, "missing-in-the-middle", event(0, a), event(2, c), event(3, d)),
        _chain(verdict, "missing-two-in-a-row", event(0, a), event(3, d)),
        _chain(verdict, "missing-first", event(1, b), event(2, c)),
        _chain(verdict, "missing-newest-that-another-names", event(0, a), event(4, reply)),
        _chain(verdict, "missing-and-renumbered", event(0, a), event(1, c), event(2, d)),
        _chain(verdict, "renumbered", event(1, a), event(2, b)),
        _chain(verdict, "late", event(0, a), event(1, c), event(2, b), event(3, d)),
        _chain(verdict, "repeated", event(0, a), event(1, b), event(2, a), event(3, a)),
        _chain(verdict, "altered", event(0, a, blob_sha256=wrong), event(1, b)),
        _chain(verdict, "a-text-is-never-forgotten", event(0, a), {"skip": [1, 1]}, event(2, c)),
        _chain(verdict, "not-in-what-was-forgotten", {"skip": [4, 8]}, event(9, after_job)),
        _chain(verdict, "number-unknown-and-nothing-forgotten", event(9, after_unknown)),
        _chain(verdict, "missing-by-place", event(0, a), event(1, c), numbered=False),
    ]
