"""Paths inside a tree: what is allowed, and how one is shown to a person. Pure.

A path is bytes, relative, with `/` between its components. It need not be UTF-8 and may hold
newlines; it may never lead anywhere but beneath the root it is used with.
"""

from __future__ import annotations

from typing import Final

from airlox.errors import LimitError, ValidationError

PATH_BYTES: Final = 4096
COMPONENT_BYTES: Final = 255
DEPTH: Final = 128
"""Most components of a path: bounds the descriptors held open while walking."""

SYNC_PREFIX: Final = b".airlox-sync-"
"""Start of the names `apply` uses for its own folder in the root of a workspace."""


def check_component(name: bytes) -> None:
    """Refuse a name that is empty, `.`, `..`, `.git` in any case, too long, or holds NUL or `/`."""
    if not name or name in (b".", b".."):
        raise ValidationError(f"a tree path has the component {shown(name)!r}")
    if len(name) > COMPONENT_BYTES:
        raise LimitError(f"the name {shown(name[:40])}… in a tree is over {COMPONENT_BYTES} bytes")
    if b"\0" in name or b"/" in name:
        raise ValidationError(f"a tree path has a forbidden byte in {shown(name)}")
    if len(name) == 4 and name.lower() == b".git":
        raise ValidationError("a tree may not reach into .git")


def check_folder(path: bytes) -> None:
    """Refuse a folder path (or whole path) that is too long, too deep, or badly made."""
    if len(path) > PATH_BYTES:
        raise LimitError(f"a tree path is over {PATH_BYTES} bytes")
    components = path.split(b"/")
    if len(components) > DEPTH:
        raise LimitError(f"a tree path has over {DEPTH} components")
    if components[0].startswith(SYNC_PREFIX):
        raise ValidationError(f"the name {shown(components[0])} is reserved")
    for component in components:
        check_component(component)


def split(path: bytes) -> tuple[bytes, bytes]:
    """Folder and name; the folder of a path without `/` is empty."""
    folder, _, name = path.rpartition(b"/")
    return folder, name


def shown(path: bytes) -> str:
    """The path as one printable line: nothing in it can act on a terminal or be read as text."""
    text = path.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
