"""Cases of addressed messages: the signed form, whom an item is for, hops.

Used by make_vectors.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airlox.protocol import canonical, limits
from airlox.protocol.encoding import b64u_encode
from airlox.protocol.item import Kind
from airlox.protocol.keys import Role, SigningKey

Case = dict[str, Any]
Verdict = Callable[[str, str, dict[str, Any]], Case]
Open = Callable[..., Case]

OWNER, CODER, REVIEWER, WATCHER, BOX = (
    SigningKey.from_seed(bytes([20 + n]) * 32).public for n in range(5)
)
ROLES = {
    OWNER: Role.OWNER,
    CODER: Role.SENDER,
    REVIEWER: Role.SENDER,
    WATCHER: Role.OBSERVER,
    BOX: Role.RUNNER,
}
ITEM = b64u_encode(bytes([5]) * 16)
NO_POINT = "Ag" + "A" * 41


def cases(verdict: Verdict, opened: Open, terms: dict[str, str]) -> list[Case]:
    """`opened` makes an `open_checked` case; `terms` are the manifests by kind of session."""
    found = form_cases(opened, terms)
    found += [verdict(f"to-{name}", "recipients", {"words": list(words)}) for name, words in SETS]
    found += [
        verdict(f"for-{name}", "reasons_for", {"post": post, "people": PEOPLE})
        for name, post in POSTS
    ]
    return found + [
        verdict(f"hops-{name}", "count_hops", {"authors": authors.split()})
        for name, authors in CHAINS
    ]


# -- what stands in a message ---------------------------------------------------------------------


def form_cases(opened: Open, terms: dict[str, str]) -> list[Case]:
    to = sorted([CODER, "role:observer"])
    keys = sorted(
        SigningKey.from_seed(n.to_bytes(32, "big")).public for n in range(limits.RECIPIENTS + 1)
    )
    forms: dict[str, dict[str, Any]] = {
        "none": {},
        "to": {"to": to},
        "reply": {"reply_to": ITEM},
        "both": {"reply_to": ITEM, "to": to},
        "every-role": {"to": sorted(f"role:{role}" for role in Role)},
        "most": {"to": keys[1:]},
        "too-many": {"to": keys},
        "empty": {"to": []},
        "null": {"to": None},
        "reply-null": {"reply_to": None},
        "one-word": {"to": CODER},
        "unsorted": {"to": to[::-1]},
        "twice": {"to": [CODER, CODER]},
        "role-unknown": {"to": ["role:admin"]},
        "role-capital": {"to": ["role:Owner"]},
        "role-bare": {"to": ["role:"]},
        "name": {"to": ["coder"]},
        "key-short": {"to": [CODER[:-1]]},
        "key-no-point": {"to": [NO_POINT]},
        "number": {"to": [7]},
        "reply-short": {"reply_to": ITEM[:-1]},
        "reply-spare-bits": {"reply_to": ITEM[:-1] + "R"},
        "reply-list": {"reply_to": [ITEM]},
        "cc": {"cc": to},
    }
    found = [
        opened(
            f"{kind}-text-{name}",
            Role.SENDER,
            Kind.TEXT,
            None,
            canonical.encode({"text": "Look at parser.py", "type": "text", **fields}),
            terms[kind],
        )
        for kind in terms
        for name, fields in forms.items()
    ]
    meta = {"mime": "text/markdown", "name": "report.md", "type": "file"}
    found += [
        opened(
            f"{kind}-file-{name}",
            Role.RUNNER if name == "by-runner" else Role.SENDER,
            Kind.FILE,
            "md",
            canonical.encode(meta | forms["both"]),
            terms[kind],
            b"# Report\n",
        )
        for kind in terms
        for name in ("both", "by-runner")
    ]
    cancel = {
        "event": "job_cancel",
        "job": {"blob_sha256": b64u_encode(bytes([2]) * 32), "id": ITEM},
        "to": to,
        "type": "event",
    }
    event = canonical.encode(cancel)
    return [*found, opened("event-to", Role.SENDER, Kind.EVENT, None, event, terms["floor"])]


SETS: tuple[tuple[str, list[str]], ...] = (
    ("one", [CODER]),
    ("sorted", ["role:sender", REVIEWER, "role:observer", CODER]),
    ("twice", [CODER, "role:runner", CODER, "role:runner"]),
    ("nobody", []),
    ("unknown-role", [CODER, "role:everyone"]),
    ("name", ["coder"]),
)
"""What someone means, and the one form in which it is signed."""


# -- whom an item is for --------------------------------------------------------------------------

PEOPLE = {key: role.value for key, role in ROLES.items()}


def _post(author: str, kind: str = "text", *to: str, **known: str) -> dict[str, Any]:
    return {
        "author": author,
        "author_role": ROLES[author].value,  # type: ignore[index]
        "kind": kind,
        "to": list(to),
        "replied_author": None,
        "job_author": None,
        **known,
    }


POSTS = (
    ("everyone", _post(OWNER)),
    ("nobody", _post(CODER)),
    ("one", _post(CODER, "text", REVIEWER)),
    ("one-by-the-owner", _post(OWNER, "text", REVIEWER)),
    ("oneself", _post(CODER, "text", CODER)),
    ("a-role", _post(CODER, "text", "role:sender")),
    ("key-and-role", _post(OWNER, "text", CODER, "role:sender")),
    ("a-reply", _post(REVIEWER, replied_author=CODER)),
    ("a-reply-to-oneself", _post(REVIEWER, replied_author=REVIEWER)),
    ("a-reply-to-another", _post(REVIEWER, "text", WATCHER, replied_author=CODER)),
    ("the-owners-reply", _post(OWNER, replied_author=CODER)),
    ("a-result", _post(BOX, "result", job_author=CODER)),
    ("a-result-of-what-is-not-known", _post(BOX, "result")),
    ("the-owners-file", _post(OWNER, "file")),
    ("a-file", _post(BOX, "file", "role:owner")),
    ("the-owners-job", _post(OWNER, "job")),
    ("the-owners-event", _post(OWNER, "event")),
)

CHAINS = (
    ("none", ""),
    ("a-person", "web cli"),
    ("an-agent", "cli"),
    ("every-kind-of-agent", "cli sdk runner"),
    ("back-to-a-person", "sdk cli sdk web cli cli"),
    ("nine", " ".join(["cli"] * 9)),
)
"""Clients behind an item, the one it replies to, and so on."""
