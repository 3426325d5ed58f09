"""Installs a runner as a service of this user, and takes it away again.

Two files are written: the link, readable by this user alone, and the definition the system reads
(`services.py`). Then the system is told; where it cannot be, the files stay and the commands are
named.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from airlox import safefs
from airlox.errors import StorageError, UsageError
from airlox.runner.services import Command, Definition

_COMMAND_S: Final = 120.0
_LINK_BYTES: Final = 8 * 1024
_TOLD_BYTES: Final = 500

KEPT_VARIABLES: Final = (
    "PATH",
    "AIRLOX_DESCRIPTION",
    "AIRLOX_IMAGE_BASE",
    "AIRLOX_RUNNER_DESCRIPTION",
    "AIRLOX_WORK_ROOT",
    "DOCKER_CONTEXT",
    "DOCKER_HOST",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
)
"""What a runner reads of its environment, and a service gets from whoever installs it."""


def kept(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables a service gets.

    Raises UsageError for one that holds a password: other users can read a service's variables.
    """
    found = tuple((name, environ[name]) for name in KEPT_VARIABLES if environ.get(name))
    for name, value in found:
        if name.upper() in ("HTTPS_PROXY", "HTTP_PROXY") and "@" in value:
            raise UsageError(
                f"{name} holds a password, which every user of this machine could read of a "
                "service",
                code="secret_in_service",
                hint="unset it for this command, and give the service a proxy that needs none",
            )
    return found


def config_folder(environ: Mapping[str, str], home: Path, uid: int) -> Path:
    """Where this user's settings lie; root's are the system's."""
    if uid == 0:
        return Path("/etc")
    given = environ.get("XDG_CONFIG_HOME")
    return Path(given) if given and given.startswith("/") else home / ".config"


def link_file(config: Path, name: str) -> Path:
    """The file that holds the link of a runner."""
    return config / "airlox" / f"{name}.invite"


def install(definition: Definition, link_path: Path, link: str) -> None:
    """Write both files and start the service; a changed one is started anew.

    Raises UsageError when a service of this name is there with another link (code
    `service_exists`) or the system cannot be told (`service_not_started`), and StorageError.
    """
    if link_path.exists() and safefs.read_bounded(link_path, _LINK_BYTES).strip() != link.encode():
        raise _exists(link_path)
    safefs.make_private_dir(link_path.parent)
    safefs.write_private(link_path, link.encode() + b"\n")
    try:
        definition.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(definition.path.parent, error) from None
    safefs.write_private(definition.path, definition.content, mode=0o644)
    for command in definition.forget:
        _told(command)
    _tell_all(definition.start)


def check_absent(link_path: Path) -> None:
    """That no service of this name is there. Raises UsageError (code `service_exists`)."""
    if link_path.exists():
        raise _exists(link_path)


def uninstall(definition: Definition, link_path: Path) -> bool:
    """Stop the service and remove both files; False when there was none. Raises StorageError."""
    found = definition.path.exists() or link_path.exists()
    for command in definition.stop if definition.path.exists() else ():
        _told(command)
    for path in (definition.path, link_path):
        with suppress(FileNotFoundError):
            try:
                path.unlink()
            except PermissionError as error:
                raise _not_written(path, error) from None
    for command in definition.removed if found else ():
        _told(command)
    return found


def _exists(link_path: Path) -> UsageError:
    return UsageError(
        f"there is a service with this name already, with another link ({link_path})",
        code="service_exists",
        hint="take it away with --uninstall, or give this runner another --name",
    )


def _not_written(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path}: {error.strerror}")


def _tell_all(commands: Iterable[Command]) -> None:
    for command in commands:
        refusal = _told(command)
        if refusal is not None:
            words = " ".join(command)
            raise UsageError(
                f"the service is written, but cannot be started: {words}: {refusal}",
                code="service_not_started",
                hint="run it where this user is logged in: "
                + " && ".join(" ".join(each) for each in commands),
            )


def _told(command: Command) -> str | None:
    """Run one command of the system; None when it worked, else what it said."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_S,
            env=_environ(),
            check=False,
        )
    except FileNotFoundError:
        return "this machine has no such program"
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    if done.returncode == 0:
        return None
    said = (done.stderr or done.stdout)[:_TOLD_BYTES].decode("utf-8", "replace")
    return " ".join(said.split()) or f"it ended with {done.returncode}"


def _environ() -> dict[str, str]:
    """Ours without our own settings, among which may be the link."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AIRLOX_")}
