"""Why a wall cannot be built on this machine, in words with a remedy and a stable code.

`explain` is pure: the step that failed, its errno and what is known of the host go in, an error
comes out. `look_at_host` reads what it needs to know. What a layer is for stands in the
documentation of the sandbox; the codes are part of the doctor's `--json`.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox.base import Layer

if TYPE_CHECKING:
    from collections.abc import Sequence

_NOT_ALLOWED = (errno.EPERM, errno.EACCES)
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")

_DOCKER = "or use `--sandbox docker`"
_APPARMOR = (
    "this system's AppArmor forbids user namespaces to programs without a profile",
    f'allow our launcher with `sudo "$(command -v airlox)" runner install-apparmor`, {_DOCKER}',
)
_CAUSES = {
    "userns_apparmor": _APPARMOR,
    "userns_off": (
        "user namespaces are switched off on this system",
        f"switch them on with `sudo sysctl user.max_user_namespaces=15000`, {_DOCKER}",
    ),
    "userns_container": (
        "this container forbids new namespaces",
        "run the runner outside of it, or let the container be the wall: `--sandbox process`",
    ),
    "mount_proc_masked": (
        "/proc cannot be mounted here: the container masks parts of it",
        "start the container with `--security-opt systempaths=unconfined`",
    ),
    "loopback": (
        "a network namespace with a loopback device could not be set up",
        f"allow unprivileged namespaces on this system, {_DOCKER}",
    ),
    "root_no_user": (
        "no other user can be put on here, and a job never runs as root",
        "start the runner as an ordinary user, or name one with `--job-user NAME`",
    ),
    "no_bwrap": (
        "bubblewrap is not installed",
        "install it (`sudo apt-get install bubblewrap`), or leave `--sandbox-builder` out",
    ),
    "too_old_bwrap": (
        "this system's bubblewrap lacks an option",
        f"update it to 0.8 or newer, {_DOCKER}",
    ),
    "setuid_bwrap": (
        "this system's bubblewrap is set-uid root, and then it limits the size of no folder",
        f"leave `--sandbox-builder` out, {_DOCKER}",
    ),
    "toolchain_unreadable": (
        "the job's user cannot reach what bubblewrap must show it",
        "keep it where every user may look, or start the runner as an ordinary user",
    ),
    "kernel_too_old": (
        "this kernel lacks the calls that build a sandbox (Linux 5.12 or newer has them)",
        "update the kernel, or use `--sandbox docker`",
    ),
    "not_linux": (
        "the local sandbox needs Linux on x86_64 or aarch64",
        "use `--sandbox docker`, or `--sandbox process` for senders you trust",
    ),
    "landlock_off": (
        "this kernel has no Landlock; mounts and seccomp still stand",
        "boot with `lsm=landlock,…`, or update the kernel",
    ),
    "userns_allowed": (
        "jobs may make user namespaces, which shows them more of the kernel",
        "leave out `--allow-userns`",
    ),
    "cgroup_none": (
        "no cgroup may be made; memory is watched, not enforced by the kernel",
        "start as `systemd-run --user --scope -p Delegate=yes airlox …`, or by `install-service`",
    ),
    "network_shared": (
        "jobs share this machine's network, the services of its loopback and of its cloud included",
        "name the hosts that jobs need with `--allow-host`, or join with `--no-network`",
    ),
    "network_host": (
        "a job with network shares the host's, and this kernel cannot keep it from local sockets",
        "use Linux 6.12 or newer with Landlock, or join with `--no-network`",
    ),
    "cpus_none": (
        "no cgroup with a controller of processors may be made, so nothing holds jobs to a share",
        "leave out `--cpus`, or start with `systemd-run --user --scope -p Delegate=yes …`",
    ),
    "gpus_need_own": (
        "bubblewrap cannot open a device for a job that only a group may open",
        "leave out `--sandbox-builder bwrap`, or start the runner as a user of that group",
    ),
    "start_timeout": (
        "the sandbox was not ready in time",
        "the machine may be overloaded; try again",
    ),
}

_WALLS = "walls"
_AT_FAULT = {
    "uid": ("root_no_user",),
    "userns": ("userns_apparmor", "userns_off", "userns_container"),
    "network": ("loopback", "network_host"),
    "mounts": ("mount_proc_masked", "mount_source", "mount_clone", "toolchain_unreadable"),
    "cgroup": ("cpus_none",),
}
"""The layer that a refusal is about, by its code; others concern all of them."""
_BY_THEMSELVES = ("landlock", "cgroup")
"""Layers that are known without building a sandbox."""

_SOURCE_STEPS = {
    "source": "cannot be opened",
    "source_kind": "is not of the kind it was a moment ago",
    "source_owner": "does not belong to the job's user",
    "clone": "cannot be mounted",
}


@dataclass(frozen=True, slots=True)
class Host:
    """What matters about this machine when namespaces fail."""

    apparmor_restricts: bool
    userns_allowed: bool
    in_container: bool


def look_at_host(root: Path = Path("/")) -> Host:
    """Read the switches of the running system; an absent one counts as open."""
    sys = root / "proc/sys"
    return Host(
        apparmor_restricts=_number(sys / "kernel/apparmor_restrict_unprivileged_userns", 0) == 1,
        userns_allowed=_number(sys / "user/max_user_namespaces", 1) > 0
        and _number(sys / "kernel/unprivileged_userns_clone", 1) != 0,
        in_container=any((root / mark[1:]).exists() for mark in _CONTAINER_MARKS),
    )


def refusal(code: str, detail: str = "") -> SandboxError:
    """The error of a known cause."""
    cause, remedy = _CAUSES[code]
    return SandboxError(f"{cause}: {detail}" if detail else cause, code=code, hint=remedy)


def remedy(code: str) -> tuple[str, str]:
    """Cause and remedy of a code, for a layer that is off."""
    return _CAUSES[code]


def stopped_at(refused: SandboxError, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The layers of a sandbox that could not be built: the one at fault with the reason, those
    that came to nothing with it, and those that this machine would have all the same."""
    at = next((name for name, codes in _AT_FAULT.items() if refused.code in codes), _WALLS)
    fault = Layer(at, False, refused.message, refused.code, refused.hint)
    seen = tuple(
        fault
        if layer.name == at
        else layer
        if layer.name in _BY_THEMSELVES or not layer.on
        else Layer(layer.name, False, f"not tried, for want of {at}")
        for layer in layers
    )
    return seen if fault in seen else (fault, *seen)


def first_missing(layers: Sequence[Layer], required: Sequence[str]) -> SandboxError | None:
    """The error for the first layer that is required and does not stand."""
    for layer in layers:
        if layer.name in required and not layer.on:
            return SandboxError(layer.detail, code=layer.code, hint=layer.remedy)
    unknown = sorted(set(required) - {layer.name for layer in layers})
    if unknown:
        return SandboxError(f"there is no layer {unknown[0]}", code="layer_missing")
    return None


def explain(step: str, number: int, text: str, host: Host) -> SandboxError:
    """The error for a step of the launcher that failed."""
    if step in _SOURCE_STEPS and number != errno.ENOSYS:
        return SandboxError(
            f"{text} {_SOURCE_STEPS[step]}" + (f": {os.strerror(number)}" if number else ""),
            code=f"mount_{step}",
            hint="a folder of the job or one of its toolchains is missing or not readable",
        )
    code = _code_of(step, number, host)
    if code is not None:
        return refusal(code, text)
    return SandboxError(
        f"the sandbox could not be built (step {step}): {text}",
        hint="`airlox runner doctor` says what this machine can do",
    )


def _code_of(step: str, number: int, host: Host) -> str | None:
    if number == errno.ENOSYS:
        return "kernel_too_old"
    if step == "uid":
        return "root_no_user"
    if step == "userns":
        return _userns_code(number, host)
    if number in _NOT_ALLOWED:
        # AppArmor lets the namespace be made and takes away what it is good for.
        # A runner started by root is restricted too: it unshares as the job's user.
        if host.apparmor_restricts:
            return "userns_apparmor"
        if step == "mount_proc":
            return "mount_proc_masked"
        if step == "loopback":
            return "loopback"
        if host.in_container and step in ("namespaces", "mounts", "uid_map"):
            return "userns_container"
    return "loopback" if step == "loopback" else None


def _userns_code(number: int, host: Host) -> str:
    if number == errno.ENOSPC or not host.userns_allowed:
        return "userns_off"
    if host.apparmor_restricts:
        return "userns_apparmor"
    return "userns_container" if host.in_container else "userns_off"


def _number(path: Path, absent: int) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return absent
