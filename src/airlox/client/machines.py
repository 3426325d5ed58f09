"""Machines: local names for sessions with a runner, kept under the cache.

`<root>/machines/<name>.json`, one file a machine, 0600 because it holds invites. A name is never
taken over: adding one that exists is refused, and a machine gets another session only from whoever
knows the one it has. What a machine's session and runner are doing now is asked of the relay; only
what cannot be asked is kept here, with what a new session for the same runner is made from.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from airlox import safefs
from airlox.client.filelock import file_lock
from airlox.errors import StorageError, UsageError, ValidationError
from airlox.protocol.cert import check_runner_name

MACHINE_BYTES: Final = 64 * 1024


class Machine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One machine. The invites are secrets and never show in `repr`.

    `runner` is the key of the runner the owner chose, None until one was approved and where there
    are several. `sandbox` and `image` are those of the command that was printed for it,
    `job_limits` the session's, as `Session.create` takes them.
    """

    name: str
    session_id: str
    relay: str
    owner_invite: str
    sender_invite: str
    created_at_ms: int
    expires_at_ms: int | None = None
    runner: str | None = None
    last_job: str | None = None
    sandbox: str | None = None
    image: str | None = None
    job_limits: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"Machine(name={self.name!r}, session_id={self.session_id!r}, relay={self.relay!r})"

    def target(
        self, label: str, runner: str | None, labels: Iterable[str]
    ) -> tuple[str | None, tuple[str, ...]]:
        """The runner and the labels of a job for `NAME/label`: its own runner, unless another one
        or labels were asked for."""
        wanted = (*labels, label) if label else tuple(labels)
        return (self.runner if runner is None and not wanted else runner), wanted


class Machines:
    """The machines of one cache. Safe to share between processes."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._folder = os.path.join(os.fspath(root), "machines")

    def add(self, machine: Machine) -> None:
        """Keep a new machine. Raises UsageError when the name is taken or malformed."""
        path = self._path(machine.name)
        safefs.make_private_dir(self._folder)
        with self._lock():
            if os.path.lexists(path):
                raise UsageError(
                    f"a machine called {machine.name} exists already",
                    code="machine_exists",
                    hint=f"choose another name, or remove it: airlox machine rm {machine.name}",
                )
            safefs.write_private(path, msgspec.json.encode(machine))

    def get(self, name: str) -> Machine:
        """The machine called `name`. Raises UsageError when there is none."""
        machine = self._load(name)
        if machine is None:
            known = ", ".join(self._names()[:8])
            raise UsageError(
                f"no machine called {name[:63]!r}",
                code="no_machine",
                hint=f"known: {known}" if known else "add one: airlox machine add NAME",
            )
        return machine

    def all(self) -> list[Machine]:
        """Every machine, by name. A damaged file is left out."""
        found = []
        for name in self._names():
            try:
                found.append(self._load(name))
            except StorageError as error:
                if error.code != "damaged":
                    raise
        return [machine for machine in found if machine is not None]

    def update(self, name: str, **changes: Any) -> Machine:
        """Change fields of a machine, and return it as it is then. Raises UsageError."""
        self._path(name)
        if not os.path.isdir(self._folder):
            return self.get(name)
        with self._lock():
            machine = msgspec.structs.replace(self.get(name), **changes)
            safefs.write_private(self._path(name), msgspec.json.encode(machine))
        return machine

    def renew(self, old: Machine, new: Machine) -> None:
        """Put `new`, of the same name, in the place of `old`. Raises UsageError when that machine
        has meanwhile gone or got another session."""
        self.get(old.name)
        with self._lock():
            if self.get(old.name).session_id != old.session_id:
                raise UsageError(
                    f"machine {old.name} got another session meanwhile",
                    code="machine_changed",
                    hint="airlox machine ls shows it",
                )
            safefs.write_private(self._path(new.name), msgspec.json.encode(new))

    def remove(self, name: str) -> None:
        """Forget a machine; its session is not touched. Raises UsageError when there is none."""
        path = self._path(name)
        if not os.path.isdir(self._folder):
            self.get(name)
        with self._lock():
            try:
                os.unlink(path)
            except FileNotFoundError:
                self.get(name)
            except OSError as error:
                raise StorageError(f"cannot remove machine {name}: {error.strerror}") from error

    def _lock(self) -> Any:
        return file_lock(os.path.join(self._folder, ".lock"), "the list of machines")

    def _names(self) -> list[str]:
        try:
            files = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        stems = (file.removesuffix(".json") for file in files if file.endswith(".json"))
        return sorted(stem for stem in stems if _is_name(stem))

    def _load(self, name: str) -> Machine | None:
        path = self._path(name)
        try:
            data = safefs.read_bounded(path, MACHINE_BYTES, own=True)
            machine = msgspec.json.decode(data, type=Machine)
        except StorageError as error:
            if error.code == "not_found":
                return None
            raise
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise StorageError(
                f"the file of machine {name} is damaged",
                code="damaged",
                hint=f"remove it: {path}",
            ) from None
        return machine if machine.name == name else None

    def _path(self, name: str) -> str:
        if not _is_name(name):
            raise UsageError(
                f"{name[:63]!r} is no name for a machine",
                code="bad_name",
                hint="1 to 63 of a-z 0-9 . _ - that start with a letter or digit",
            )
        return os.path.join(self._folder, f"{name}.json")


def _is_name(text: str) -> bool:
    """Machines are named like runners, which also makes a safe file name."""
    try:
        check_runner_name(text)
    except ValidationError:
        return False
    return True
