"""Cases of what a job changed in its tree: archives that a client takes, and each it refuses.

Used by make_vectors.py.
"""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from airlox.tree.index import MAGIC, Entry, Kind, TreeIndex

Case = dict[str, Any]
Verdict = Callable[[str, str, dict[str, Any]], Case]
Files = Mapping[bytes, tuple[str, bytes]]

SENT: Files = {b"a.py": ("f", b"one"), b"d/b.py": ("x", b"two"), b"l": ("l", b"a.py")}
MOST_BYTES = 100_000


def index(files: Files) -> bytes:
    return TreeIndex(
        Entry(path, Kind(kind), len(content), sha256(content).digest())
        for path, (kind, content) in files.items()
    ).encode()


def raw_index(*paths: bytes) -> bytes:
    """An index of empty files with any paths, in any order."""
    rows = [b"f" + len(p).to_bytes(2, "big") + p + bytes(8) + sha256(b"").digest() for p in paths]
    return MAGIC + len(rows).to_bytes(4, "big") + b"".join(rows)


def archive(members: Mapping[str, bytes]) -> bytes:
    """Stored, so that no compressor decides on the bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as made:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            made.writestr(entry, data)
    return buffer.getvalue()


def members(before: Files, after: Files) -> dict[str, bytes]:
    contents = {sha256(content).hexdigest(): content for _, content in after.values()}
    return {"before": index(before), "after": index(after), **contents}


def cases(verdict: Verdict) -> list[Case]:
    def case(name: str, data: bytes, sent: Files | None = SENT, **changes: Any) -> Case:
        inputs: dict[str, Any] = {
            "archive_b64": base64.b64encode(data).decode(),
            "most_bytes": MOST_BYTES,
            "patterns": ["**"],
        }
        if sent is not None:
            inputs["sent"] = index(sent).hex()
        return verdict(name, "read_changes", inputs | changes)

    def changed(name: str, before: Files, after: Files, **changes: Any) -> Case:
        return case(name, archive(members(before, after)), **changes)

    def new(name: str, *paths: bytes) -> Case:
        parts = {"before": index({}), "after": raw_index(*paths), sha256(b"").hexdigest(): b""}
        return case(name, archive(parts))

    def edited(name: str, edit: Callable[[dict[str, bytes]], Any]) -> Case:
        parts = members({b"a.py": SENT[b"a.py"]}, {b"a.py": ("f", b"ONE")})
        edit(parts)
        return case(name, archive(parts))

    one = sha256(b"ONE").hexdigest()
    return [
        changed("nothing", {}, {}),
        changed("new", {}, {b"n/e w.py": ("x", b"")}),
        changed("deleted", {b"l": SENT[b"l"]}, {}),
        changed(
            "all-kinds", SENT, {b"a.py": ("x", b"one"), b"l": ("f", b""), b"\xff": ("l", b"d")}
        ),
        changed("folder-for-file", {b"a.py": SENT[b"a.py"]}, {b"a.py/b": ("f", b"")}),
        changed("file-for-folder", {b"d/b.py": SENT[b"d/b.py"]}, {b"d": ("f", b"")}),
        changed("never-like-that", {b"a.py": ("f", b"two")}, {}),
        changed("never-in-that-mode", {b"a.py": ("x", b"one")}, {}),
        changed("never-there", {b"z.py": ("f", b"")}, {}),
        changed("new-over-old", {}, {b"a.py": ("f", b"")}),
        changed("below-a-file", {}, {b"a.py/b": ("f", b"")}),
        changed("over-a-folder", {}, {b"d": ("f", b"")}),
        changed("tree-not-known", {b"z.py": ("f", b"")}, {b"a.py": ("f", b"")}, sent=None),
        changed("no-change", {b"a.py": SENT[b"a.py"]}, {b"a.py": SENT[b"a.py"]}),
        changed("asked-for", {}, {b"x/n.py": ("f", b"")}, patterns=["*.py", "!a.py"]),
        changed("not-asked-for", {}, {b"n.sh": ("f", b"")}, patterns=["*.py"]),
        changed("asked-for-not", {}, {b"n.py": ("f", b"")}, patterns=["*.py", "!n.py"]),
        changed("deleted-not-asked-for", {b"l": SENT[b"l"]}, {}, patterns=["*.py"]),
        changed("at-limit", {}, {b"n": ("f", bytes(1000))}, most_bytes=1000 + 9 + 9 + 44),
        changed("over-limit", {}, {b"n": ("f", bytes(1000))}, most_bytes=1000 + 9 + 9 + 43),
        changed("link-with-nul", {}, {b"n": ("l", b"a\0b")}),
        new("absolute", b"/n.py"),
        new("dotdot", b"../n.py"),
        new("dotdot-inside", b"d/../../n.py"),
        new("git", b".git/config"),
        new("git-upper-case", b"d/.GIT/config"),
        new("git-short-name", b"git~1/config"),
        new("git-unseen-character", ".g\u200cit/config".encode()),
        new("git-dot-at-end", b".git./config"),
        new("github", b".github/n.py"),
        new("twice", b"n.py", b"n.py"),
        new("not-in-order", b"o.py", b"n.py"),
        new("file-and-folder", b"n", b"n/o"),
        edited("as-it-is", lambda parts: None),
        edited("content-missing", lambda parts: parts.pop(one)),
        edited("content-another", lambda parts: parts.update({one: b"ANY"})),
        edited("content-longer", lambda parts: parts.update({one: b"ONE!"})),
        edited("content-unasked", lambda parts: parts.update({"0" * 64: b""})),
        edited("content-upper-case", lambda parts: parts.update({one.upper(): parts.pop(one)})),
        edited("member-unknown", lambda parts: parts.update(readme=b"")),
        edited("before-missing", lambda parts: parts.pop("before")),
        edited("after-missing", lambda parts: parts.pop("after")),
        edited("after-cut", lambda parts: parts.update(after=parts["after"][:-1])),
        case("no-archive", b"PK"),
    ]
