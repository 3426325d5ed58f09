"""A lock between processes: an exclusive lock on a small file, waited for with an end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Final

from airlox import safefs
from airlox.client.deadline import Deadline
from airlox.errors import StorageError

TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.02


@contextlib.contextmanager
def file_lock(path: str, what: str, timeout_s: float = TIMEOUT_S) -> Iterator[None]:
    """Hold the lock of `path`, made where missing; `what` names it in errors.

    Not reentrant, also not within a process; a process that dies lets go. Raises StorageError.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise safefs.storage_error(f"lock {what}", error) from error
    try:
        _acquire(fd, what, Deadline.after(timeout_s))
        yield
    finally:
        os.close(fd)  # which lets go of the lock


def _acquire(fd: int, what: str, deadline: Deadline) -> None:
    import fcntl

    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if deadline.passed:
                raise StorageError(
                    f"another process holds {what}",
                    code="locked",
                    hint="end it, or give this one a cache of its own (AIRLOX_CACHE_DIR)",
                ) from None
            time.sleep(_POLL_S)
        except OSError as error:
            raise StorageError(f"cannot lock {what}: {error.strerror}") from error
