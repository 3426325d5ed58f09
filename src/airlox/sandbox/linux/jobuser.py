"""Which user a root-started runner's jobs run as.

Named by the operator, else the account `airlox-job`, else a free uid of the range that systemd
keeps for dynamic users, so that a root shell in a container works without set-up. A free uid is
written into the state folder and used again at the next start, because workspaces belong to it,
and it is locked machine-wide for the life of the runner, so that two state folders never share one.
Each state folder looks from a place of its own, as systemd does by the names of services: else
another would take the first free uid while the runner that keeps it is away.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airlox import safefs
from airlox.errors import SandboxError
from airlox.sandbox.probe import refusal

ACCOUNT = "airlox-job"
DYNAMIC_UIDS = range(61184, 65520)
LOCK_DIR = Path("/run/airlox-job-users")
_FILE = "job-uid"
_FILE_BYTES = 64


@dataclass(frozen=True, slots=True)
class JobUser:
    """A user that jobs run as. `lock_fd` holds a dynamic uid; None for an account."""

    uid: int
    gid: int
    lock_fd: int | None = None


def choose(state_dir: Path, name: str | None, *, lock_dir: Path = LOCK_DIR) -> JobUser:
    """The user for this runner's jobs. Needs root.

    Raises:
        SandboxError: the named user is unknown or is root, or no uid is free (`root_no_user`).
    """
    account = _account(name or ACCOUNT)
    if account is not None:
        return account
    if name is not None:
        raise SandboxError(
            f'there is no user "{name}" on this machine',
            code="root_no_user",
            hint="make it, or leave `--job-user` out",
        )
    return _dynamic(state_dir, lock_dir)


def _account(name: str) -> JobUser | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    if entry.pw_uid == 0:
        raise SandboxError(
            f'jobs cannot run as "{name}": it is root',
            code="root_no_user",
            hint="name an ordinary user",
        )
    return JobUser(entry.pw_uid, entry.pw_gid)


def _dynamic(state_dir: Path, lock_dir: Path) -> JobUser:
    kept = _kept(state_dir)
    try:
        lock_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for uid in (kept,) if kept is not None else _from_own_place(state_dir):
            lock_fd = _lock(lock_dir / str(uid), state_dir) if _unused(uid) else None
            if lock_fd is not None:
                if uid != kept:
                    safefs.write_private(state_dir / _FILE, b"%d\n" % uid)
                return JobUser(uid, uid, lock_fd)
    except OSError as error:
        raise refusal("root_no_user", f"{error.filename}: {error.strerror}") from error
    raise refusal("root_no_user", f"uid {kept} is in use" if kept else "no uid is free")


def _from_own_place(state_dir: Path) -> Iterator[int]:
    """All uids of the range, from the one that the folder's name leads to."""
    digest = hashlib.sha256(os.fsencode(state_dir.resolve())).digest()
    first = int.from_bytes(digest[:8], "big") % len(DYNAMIC_UIDS)
    yield from DYNAMIC_UIDS[first:]
    yield from DYNAMIC_UIDS[:first]


def _kept(state_dir: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        with (state_dir / _FILE).open("rb") as file:
            uid = int(file.read(_FILE_BYTES))
        return uid if uid in DYNAMIC_UIDS else None
    return None


def _unused(uid: int) -> bool:
    with contextlib.suppress(KeyError):
        pwd.getpwuid(uid)
        return False
    return True


def _lock(path: Path, state_dir: Path) -> int | None:
    """Hold a uid for a state folder; whoever works on the same folder shares it."""
    owner = os.fsencode(state_dir.resolve())
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, owner, 0)
    except BlockingIOError:
        pass  # whose it is shows below
    fcntl.flock(fd, fcntl.LOCK_SH)
    # On its way from the one lock to the other the kernel may let somebody else in between.
    if os.pread(fd, len(owner) + 1, 0) != owner:
        os.close(fd)
        return None
    return fd
