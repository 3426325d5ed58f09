"""Puts a launcher that AppArmor knows on this machine, and takes it away; for root.

What is written: a copy of the interpreter we run on that one user alone can start, a file that
tells the copy where its library is, and the profile that names the copy. The copy is tried as that
user before the profile is loaded. Why it is a copy stands in `sandbox/linux/apparmor.py`.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airlox import safefs
from airlox.errors import StorageError, UsageError
from airlox.sandbox.collect import remove_tree
from airlox.sandbox.linux import apparmor

_PARSER: Final = "apparmor_parser"
_COMMAND_S: Final = 60.0
_TOLD_CHARS: Final = 300
_SEARCHED: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_IMPORTS: Final = "import ctypes, marshal, os, resource, select, sys"
"""What the launcher's code needs of an interpreter."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user whose runners the launcher is for."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Places:
    """Where copy and profile go."""

    launchers: Path = apparmor.FOLDER
    profiles: Path = apparmor.PROFILES


def account(name: str) -> Account:
    """The user of this name. Raises UsageError; also when the user's group has other members, who
    could start the copy too."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise UsageError(f"this machine has no user {name!r}", code="no_user") from None
    if found.pw_uid != 0 and (others := sorted(set(_others(found)))):
        raise UsageError(
            f"the group of {name} has other members, such as {others[0]}, who would get the "
            "launcher too",
            code="shared_group",
            hint="run the runner as a user with a group of its own",
        )
    return Account(name, found.pw_uid, found.pw_gid)


def _others(user: pwd.struct_passwd) -> Iterator[str]:
    """Who else is in a user's own group."""
    with suppress(KeyError):
        yield from (name for name in grp.getgrgid(user.pw_gid).gr_mem if name != user.pw_name)
    for other in pwd.getpwall():
        if other.pw_gid == user.pw_gid and other.pw_uid != user.pw_uid:
            yield other.pw_name


def install(user: Account, places: Places = Places()) -> Path:
    """Put copy and profile in place and load the profile; where the copy is.

    Raises UsageError: not root, no AppArmor, or the interpreter cannot be copied; StorageError.
    """
    parser = _parser()
    path = apparmor.path_for(user.uid, places.launchers)
    try:
        place_copy(user, path)
        profile = places.profiles / apparmor.profile_name(user.uid)
        text = apparmor.profile(user.uid, path)
        safefs.write_private(profile, text.encode(), mode=0o644)
        _run((parser, "--replace", str(profile)))
    except OSError as error:
        raise StorageError(f"{error.filename}: {error.strerror}") from None
    return path


def uninstall(user: Account, places: Places = Places()) -> bool:
    """Unload the profile and remove it and the copies; False when there were none."""
    parser = _parser()
    profile = places.profiles / apparmor.profile_name(user.uid)
    copies = [*places.launchers.glob(f"{user.uid}-*")]
    if profile.exists():
        _run((parser, "--remove", str(profile)))
        profile.unlink()
    elif not copies:
        return False
    for folder in copies:
        remove_tree(folder)
    return True


def _parser() -> str:
    """AppArmor's own program. Raises UsageError."""
    if os.geteuid() != 0:
        raise UsageError(
            "only root may do this", code="not_root", hint='sudo "$(command -v airlox)" …'
        )
    found = shutil.which(_PARSER, path=_SEARCHED)
    if found is None:
        raise UsageError(
            f"this system has no {_PARSER}: AppArmor restricts nothing here", code="no_apparmor"
        )
    return found


def place_copy(user: Account, path: Path) -> None:
    """The copy and the file beside it, tried as the user. Raises UsageError, OSError.

    Nothing is put where somebody else could change it: root would write where they lead it, and
    what the profile names would be their program.
    """
    source = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o755)
        if not apparmor.only_root_writes(folder.lstat()):
            raise UsageError(
                f"{folder} is no folder that only root may write to: others could put a program of "
                "theirs there",
                code="launcher_place",
                hint="make it one of root's, with mode 755, or take it away",
            )
    home = os.path.join(sys.base_prefix, "bin")
    safefs.write_private(path.parent / "pyvenv.cfg", f"home = {home}\n".encode(), mode=0o644)
    new = path.with_name("python.new")
    shutil.copyfile(source, new)
    os.chown(new, 0, user.gid)
    new.chmod(0o750)
    os.replace(new, path)
    refusal = _try(user, path)
    if refusal is not None:
        remove_tree(path.parent)
        raise UsageError(
            f"a copy of {source} does not start: {refusal}",
            code="launcher_not_portable",
            hint="run the runner with the system's own python3",
        )


def _try(user: Account, path: Path) -> str | None:
    """Start the copy as the launcher is started; None when it works, else what it said."""
    identity = {} if user.uid == 0 else {"user": user.uid, "group": user.gid, "extra_groups": []}
    try:
        done = subprocess.run(
            (str(path), "-I", "-S", "-B", "-c", _IMPORTS),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_S,
            cwd="/",
            env={},
            check=False,
            **identity,  # type: ignore[call-overload]
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    return None if done.returncode == 0 else _last_line(done.stderr)


def _run(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_S, check=False
    )
    if done.returncode != 0:
        raise UsageError(
            f"{_PARSER} refuses: {_last_line(done.stderr)}",
            code="profile_refused",
            hint="AppArmor 4 or newer knows such profiles; an older one restricts no namespaces",
        )


def _last_line(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:_TOLD_CHARS] if lines else "nothing"
