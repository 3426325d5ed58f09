"""Definitions of services: what systemd and launchd read is what was meant."""

from __future__ import annotations

import plistlib
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from airlox.errors import UsageError
from airlox.runner.services import Definition, Service, define, systemd_unit
from support import parts

ODD = r"""a $HOME ${x} %n "b" \n 'c' ; # é"""
SERVICE = Service(
    "gpu-box.2",
    (sys.executable, "-m", "airlox.cli", "runner", "serve", f"--description={ODD}"),
    (("PATH", "/usr/bin:/opt/a b"), ("AIRLOX_DESCRIPTION", ODD)),
)


def defined(platform: str, uid: int) -> Definition:
    return define(platform, SERVICE, config=Path("/h/.config"), home=Path("/h"), uid=uid)


def verified(folder: Path, unit: str, *, user: bool) -> str:
    """What systemd has to say of a unit."""
    path = folder / "airlox-gpu-box.2.service"
    path.write_text(unit)
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    done = subprocess.run(
        command + (["--user"] if user else []),
        env={"XDG_RUNTIME_DIR": str(folder), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 or done.stderr, done
    return done.stderr


@pytest.mark.parametrize("whole_system", [False, True], ids=["user", "system"])
def test_systemd_finds_nothing_amiss(tmp_path: Path, whole_system: bool) -> None:
    parts.require("systemd-analyze")
    unit = systemd_unit(SERVICE, whole_system=whole_system)
    assert verified(tmp_path, unit, user=not whole_system) == ""


@pytest.mark.parametrize(
    ("right", "wrong"), [("Delegate=", "Delegat="), (sys.executable, "/nonexistent/python")]
)
def test_systemd_would_find_what_is_amiss(tmp_path: Path, right: str, wrong: str) -> None:
    parts.require("systemd-analyze")
    unit = systemd_unit(SERVICE, whole_system=False)
    assert right in unit
    assert verified(tmp_path, unit.replace(right, wrong), user=True)


def test_words_and_variables_are_quoted() -> None:
    lines = systemd_unit(SERVICE, whole_system=False).splitlines()
    (command,) = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
    # systemd's quotes are the shell's, but for its own two signs
    words = [word.replace("$$", "$").replace("%%", "%") for word in _split(command)]
    assert tuple(words) == SERVICE.argv
    environ = [line.partition("=")[2] for line in lines if line.startswith("Environment=")]
    found = [_split(line)[0].replace("%%", "%") for line in environ]
    assert found == [f"{name}={value}" for name, value in SERVICE.environ]


def _split(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters, lexer.quotes = True, "", '"'
    return list(lexer)


def test_places_and_commands_of_systemd() -> None:
    own, whole = defined("linux", 1000), defined("linux", 0)
    assert own.path == Path("/h/.config/systemd/user/airlox-gpu-box.2.service")
    assert own.start[0] == ("systemctl", "--user", "daemon-reload")
    assert "linger" in own.advice
    assert whole.path == Path("/etc/systemd/system/airlox-gpu-box.2.service")
    assert whole.stop == (("systemctl", "disable", "--now", "airlox-gpu-box.2.service"),)
    assert "WantedBy=multi-user.target" in whole.content.decode()
    for found in (own, whole):
        assert "Delegate=yes" in found.content.decode()


def test_a_property_list() -> None:
    found = defined("darwin", 501)
    assert found.path == Path("/h/Library/LaunchAgents/dev.airlox.runner.gpu-box.2.plist")
    assert found.start == (("launchctl", "bootstrap", "gui/501", str(found.path)),)
    assert found.forget == (("launchctl", "bootout", "gui/501/dev.airlox.runner.gpu-box.2"),)
    read = plistlib.loads(found.content)
    assert read["Label"] == found.path.stem
    assert tuple(read["ProgramArguments"]) == SERVICE.argv
    assert read["EnvironmentVariables"] == dict(SERVICE.environ)
    assert read["RunAtLoad"] is True
    assert read["KeepAlive"] == {"Crashed": True}


def test_the_daemon_of_root() -> None:
    found = defined("darwin", 0)
    assert found.path.parent == Path("/Library/LaunchDaemons")
    assert found.start[0][2] == "system"


def test_other_systems_are_refused() -> None:
    with pytest.raises(UsageError) as refused:
        defined("win32", 1000)
    assert refused.value.code == "no_services"
    assert refused.value.hint is not None
    assert "airlox runner serve" in refused.value.hint


@pytest.mark.parametrize("text", ["a\nExecStartPre=/bin/sh", "a\rb", "\x1b[31m", "\0"])
def test_nothing_can_add_a_line(text: str) -> None:
    with pytest.raises(UsageError):
        Service("box", ("/bin/true", text), ())
    with pytest.raises(UsageError):
        Service("box", ("/bin/true",), (("PATH", text),))
