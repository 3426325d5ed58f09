"""A launcher that AppArmor knows, for systems on which it restricts user namespaces.

There a program may make them only if a profile names it, and a profile names programs by their
path. To name the system's Python would let everything written in Python make them; so a copy of
the interpreter is put where only one user can start it, and the profile names that copy.

Rules
- The copy lies in a folder that no sandbox shows and nobody but root can write to.
- It is used only if all of that still holds.
- It is of the same Python as the runner (`cache_tag`): the launcher's code is compiled for it.

Left to others: putting copy and profile there (`runner/apparmor.py`).
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

FOLDER = Path("/var/lib/airlox/launchers")
PROFILES = Path("/etc/apparmor.d")
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def path_for(uid: int, folder: Path = FOLDER) -> Path:
    """Where the copy for a user and this Python lies."""
    return folder / f"{uid}-{sys.implementation.cache_tag}" / "python"


def installed() -> str | None:
    """The copy for this process's user, if there is one that only root can have put there."""
    path = path_for(os.geteuid())
    try:
        found = path.lstat()
    except OSError:
        return None
    trusted = stat.S_ISREG(found.st_mode) and all(
        only_root_writes(place.lstat()) for place in (path, *path.parents)
    )
    return str(path) if trusted and os.access(path, os.X_OK) else None


def only_root_writes(found: os.stat_result) -> bool:
    """Whether it is root's, and no other user's to change. A link never counts as such."""
    return found.st_uid == 0 and not found.st_mode & _OTHERS_MAY_WRITE


def profile_name(uid: int) -> str:
    return f"airlox-launcher-{uid}"


def profile(uid: int, path: Path) -> str:
    """The profile: nothing is taken from this program, and it may make user namespaces."""
    name = profile_name(uid)
    return f"""\
# Lets the launcher of Airlox runners make user namespaces, which it then confines jobs with.
# Only the user with uid {uid} can start this program.
abi <abi/4.0>,
include <tunables/global>

profile {name} {path} flags=(unconfined) {{
  userns,

  include if exists <local/{name}>
}}
"""
