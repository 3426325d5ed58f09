"""What a runner says of itself and of where a job ran. No path of the machine is in it."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import UNSET, UnsetType

from airlox import __version__
from airlox.protocol import limits
from airlox.protocol.cert import RunnerInfo, SandboxName
from airlox.protocol.job import AppliedLimits, Env
from airlox.protocol.manifest import JobKind
from airlox.protocol.payload import RunnerInfoNote
from airlox.runner.options import RunnerOptions
from airlox.runner.packages import Interpreter
from airlox.sandbox.base import Limits, Network, Report

PROCESS: Final = "process"
"""The sandbox without walls: it cannot keep a job off the network."""
DOCKER: Final = "docker"
"""The sandbox whose jobs find the system of an image instead of the machine's."""

NetworkWord = Literal["off", "allow_list", "on", "open"]

_NUMBERED: Final = frozenset({"cgroup", "landlock", "seccomp"})
"""Layers whose version is worth signing; their detail begins with it."""
_NUMBER: Final = re.compile(r"\d+")
_NETWORK: Final = "network"
_UID: Final = "uid"
"""The layer that is off where jobs run as root."""


def runner_info(options: RunnerOptions) -> RunnerInfo:
    """What stands in the signed join."""
    return RunnerInfo(
        host=options.host,
        labels=options.labels,
        name=options.name,
        network_unblocked=options.sandbox == PROCESS,
        sandbox=SandboxName(options.sandbox),
    )


def runner_info_note(
    options: RunnerOptions,
    report: Report,
    *,
    kinds: tuple[JobKind, ...],
    slots: int,
    network: Network,
    python: str | None,
) -> RunnerInfoNote:
    """What stands in the signed item of a full session."""
    return RunnerInfoNote(
        airlox=__version__,
        kinds=kinds,
        layers=dict(sorted(layers(report, network=network).items())[: limits.LAYERS]),
        network=network_word(options, network),
        platform=_platform(),
        sandbox=report.sandbox,
        slots=slots,
        workspaces=options.workspaces,
        builder=report.builder,
        gpus=report.gpus or UNSET,
        hosts=_hosts(options, network),
        image=UNSET if report.image is None else report.image,
        memory_mb=UNSET if options.memory_mb is None else options.memory_mb,
        python=UNSET if python is None else python,
    )


def env(
    report: Report,
    options: RunnerOptions,
    *,
    network: Network,
    interpreter: Interpreter | None,
) -> Env:
    """Where a job ran."""
    return Env(
        airlox=__version__,
        layers=layers(report, network=network),
        network=network_word(options, network),
        platform=_platform(),
        sandbox=report.sandbox,
        builder=report.builder,
        gpus=report.gpus or UNSET,
        hosts=_hosts(options, network),
        image=UNSET if report.image is None else report.image,
        interpreter=UNSET if interpreter is None else interpreter.source,
        packages=UNSET if interpreter is None else _packages(interpreter.packages),
        python=UNSET if interpreter is None else interpreter.version,
    )


def layers(report: Report, *, network: Network) -> dict[str, int]:
    """Each layer with its version or ABI, 1 where it has none, 0 when it is off.

    A job that has the whole network has the host's: no wall stands there.
    """
    found = {}
    for layer in report.layers:
        number = _NUMBER.search(layer.detail) if layer.name in _NUMBERED else None
        stands = layer.on and not (network is Network.ON and layer.name == _NETWORK)
        found[layer.name] = (int(number.group()) if number else 1) if stands else 0
    return found


def network_word(options: RunnerOptions, network: Network) -> NetworkWord:
    return "open" if options.sandbox == PROCESS else network.value


def network_of(options: RunnerOptions, session_allows: bool) -> Network:
    """The network a job gets here: none unless session and operator both allow it."""
    if options.sandbox == PROCESS:
        return Network.ON
    if not session_allows or options.no_network:
        return Network.OFF
    return Network.ALLOW_LIST if options.allow_hosts else Network.ON


def _hosts(options: RunnerOptions, network: Network) -> tuple[str, ...] | UnsetType:
    return options.hosts if network is Network.ALLOW_LIST else UNSET


def applied_limits(used: Limits, report: Report) -> AppliedLimits:
    """The limits of a plan as the result names them: those that were enforced.

    Without walls the kernel counts the processes of a user, and those of root not at all.
    """
    counted = report.sandbox != PROCESS or layers(report, network=Network.ON).get(_UID)
    return AppliedLimits(
        timeout_s=round(used.timeout_s),
        cpus_milli=UNSET if used.cpus is None else round(used.cpus * 1000),
        disk_bytes=used.disk_bytes,
        memory_bytes=UNSET if used.memory_bytes is None else used.memory_bytes,
        open_files=used.open_files,
        processes=used.processes if counted else UNSET,
    )


def _packages(installed: Mapping[str, str]) -> dict[str, str]:
    shown = sorted(installed.items())[: limits.ENV_ENTRIES]
    return {name: version[: limits.ENV_TEXT] for name, version in shown}


def _platform() -> str:
    return f"{platform.system().lower()}-{platform.machine().lower()}"[: limits.ENV_TEXT]
