"""How a system keeps a runner running: what systemd and launchd are given to read. Pure.

Rules
- The link to the session is in a file of its own, which only the runner's user can read; never in
  a definition, in arguments or in variables, all of which other users may see.
- A service finds the programs its installer found: it gets the same `PATH`.
- The runner starts again by itself after failures (`serve.py`); the system only does so when even
  its supervisor was killed.
- Jobs get control groups below the service's own (`Delegate`); one that runs out of memory there
  must not take the runner with it (`OOMPolicy`), and its end is the runner's business (`KillMode`).

Windows has its own kind of services; there is none here for it.
"""

from __future__ import annotations

import plistlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airlox.errors import UsageError

STOP_S: Final = 90
"""Time to cancel jobs and post their results before the system ends the runner."""
_RESTART_S: Final = 10
_LINGER: Final = (
    "it runs while you are logged in; `loginctl enable-linger` has it start with the machine"
)
_LABEL: Final = "dev.airlox.runner"

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Service:
    """One runner: its name, the program with its arguments, and its variables."""

    name: str
    argv: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        for text in (*self.argv, *(part for pair in self.environ for part in pair)):
            if not text.isprintable():
                raise UsageError(
                    f"a service cannot hold {text[:40]!r}: it has a character that is not printable"
                )


@dataclass(frozen=True, slots=True)
class Definition:
    """What the system reads, where, and the commands that make it act on it.

    `forget` makes it let go of what the definition said before, and may fail where it said
    nothing. `advice` is what the operator should know beside.
    """

    path: Path
    content: bytes
    forget: tuple[Command, ...]
    start: tuple[Command, ...]
    stop: tuple[Command, ...]
    removed: tuple[Command, ...] = ()
    advice: str = ""


def define(platform: str, service: Service, *, config: Path, home: Path, uid: int) -> Definition:
    """The definition for a system such as `sys.platform` names it; `config` is the user's folder
    of settings. Of root's runners the whole system is in charge. Raises UsageError."""
    if platform == "linux":
        return _systemd(service, config, whole_system=uid == 0)
    if platform == "darwin":
        return _launchd(service, home, uid)
    raise UsageError(
        f"services are not offered on {platform}",
        code="no_services",
        hint="have something of this system start `airlox runner serve`",
    )


# ── systemd ──────────────────────────────────────────────────────────────────────────────────


def _systemd(service: Service, config: Path, *, whole_system: bool) -> Definition:
    unit = f"airlox-{service.name}.service"
    folder = Path("/etc/systemd/system") if whole_system else config / "systemd/user"
    systemctl = ("systemctl",) if whole_system else ("systemctl", "--user")
    reload = (*systemctl, "daemon-reload")
    return Definition(
        path=folder / unit,
        content=systemd_unit(service, whole_system=whole_system).encode(),
        forget=(),
        start=(reload, (*systemctl, "enable", unit), (*systemctl, "restart", unit)),
        stop=((*systemctl, "disable", "--now", unit),),
        removed=(reload,),
        advice="" if whole_system else _LINGER,
    )


def systemd_unit(service: Service, *, whole_system: bool) -> str:
    """The text of the unit."""
    network = "Wants=network-online.target\nAfter=network-online.target\n" if whole_system else ""
    environ = "".join(
        f"Environment={_quoted(f'{name}={value}', dollars=False)}\n"
        for name, value in service.environ
    )
    return f"""\
[Unit]
Description=Airlox runner {service.name}
{network}
[Service]
Type=exec
ExecStart={" ".join(_quoted(word, dollars=True) for word in service.argv)}
{environ}Delegate=yes
OOMPolicy=continue
KillMode=mixed
TimeoutStopSec={STOP_S}
Restart=on-abnormal
RestartSec={_RESTART_S}
UMask=0077

[Install]
WantedBy={"multi-user.target" if whole_system else "default.target"}
"""


def _quoted(text: str, *, dollars: bool) -> str:
    """A word as systemd reads it. In commands, and only there, a dollar starts a variable."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text.replace("$", "$$") if dollars else text}"'


# ── launchd ──────────────────────────────────────────────────────────────────────────────────


def _launchd(service: Service, home: Path, uid: int) -> Definition:
    label = f"{_LABEL}.{service.name}"
    whole_system = uid == 0
    library = Path("/Library") if whole_system else home / "Library"
    folder = library / ("LaunchDaemons" if whole_system else "LaunchAgents")
    domain = "system" if whole_system else f"gui/{uid}"
    path = folder / f"{label}.plist"
    log = library / "Logs" / f"airlox-{service.name}.log"
    leave = ("launchctl", "bootout", f"{domain}/{label}")
    return Definition(
        path=path,
        content=launchd_plist(service, label, log),
        forget=(leave,),
        start=(("launchctl", "bootstrap", domain, str(path)),),
        stop=(leave,),
        advice=f"what it says goes to {log}",
    )


def launchd_plist(service: Service, label: str, log: Path) -> bytes:
    """The property list of the agent or daemon."""
    return plistlib.dumps(
        {
            "Label": label,
            "ProgramArguments": list(service.argv),
            "EnvironmentVariables": dict(service.environ),
            "RunAtLoad": True,
            "KeepAlive": {"Crashed": True},
            "ThrottleInterval": _RESTART_S,
            "ExitTimeOut": STOP_S,
            "Umask": 0o077,
            "StandardOutPath": str(log),
            "StandardErrorPath": str(log),
        }
    )
