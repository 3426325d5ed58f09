"""A launcher that AppArmor knows: the copy works, is one user's alone, and the profile parses.

No profile is loaded here.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.errors import UsageError
from airlox.runner import apparmor
from airlox.runner.apparmor import Account, Places
from airlox.sandbox import open_sandbox
from airlox.sandbox.base import SandboxOptions
from airlox.sandbox.linux import apparmor as launchers
from support import parts

ROOT = Account("root", 0, 0)
NOBODYS_UID = 59318
PARSER_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where launchers may lie: no folder on the way belongs to anybody but root."""
    parts.require("root")
    parts.require("linux")
    made = Path(tempfile.mkdtemp(prefix="airlox-tests-", dir="/var/lib"))
    made.chmod(0o755)
    yield made / "launchers"
    shutil.rmtree(made)


@pytest.fixture
def launcher(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = launchers.path_for(0, folder)
    apparmor.place_copy(ROOT, path)
    found = str(path)
    monkeypatch.setattr(launchers, "path_for", lambda uid: Path(found))
    return path


def test_a_copy_is_an_interpreter_like_ours(launcher: Path) -> None:
    code = "import sys; print(sys.version, sys.base_prefix)"
    done = subprocess.run([launcher, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{sys.version} {sys.base_prefix}\n"


def test_a_sandbox_is_built_by_the_copy(launcher: Path, tmp_path: Path) -> None:
    parts.require("user namespaces")
    assert launchers.installed() == str(launcher)
    options = SandboxOptions(state_dir=tmp_path, builder="own")
    assert open_sandbox("local", options).probe().usable
    launcher.write_text("#!/bin/sh\nexit 3\n")
    assert not open_sandbox("local", options).probe().usable


def test_nobody_else_can_start_it(launcher: Path) -> None:
    with pytest.raises(PermissionError):
        subprocess.run([launcher, "-c", ""], user=NOBODYS_UID, group=NOBODYS_UID, extra_groups=[])


@pytest.mark.parametrize("place", ["python", ".", ".."])
def test_what_another_could_have_put_there_is_not_used(launcher: Path, place: str) -> None:
    (launcher if place == "python" else launcher.parent / place).chmod(0o777)
    assert launchers.installed() is None


@pytest.mark.parametrize("how", ["belongs to another", "is open to all", "is a link"])
def test_nothing_is_put_where_others_may_write(folder: Path, how: str) -> None:
    away = folder.with_name("away")
    away.mkdir()
    if how == "is a link":
        folder.symlink_to(away)
    else:
        folder.mkdir()
        folder.chmod(0o777 if how == "is open to all" else 0o755)
        os.chown(folder, 0 if how == "is open to all" else NOBODYS_UID, 0)
    with pytest.raises(UsageError) as refused:
        apparmor.place_copy(ROOT, launchers.path_for(0, folder))
    assert refused.value.code == "launcher_place"
    assert [*away.iterdir()] == []
    assert how == "is a link" or [*folder.iterdir()] == []


def test_what_belongs_to_another_is_not_used(launcher: Path) -> None:
    os.chown(launcher, NOBODYS_UID, 0)
    assert launchers.installed() is None


def test_a_link_is_not_used(launcher: Path) -> None:
    launcher.unlink()
    launcher.symlink_to("/usr/bin/env")
    assert launchers.installed() is None


def test_an_interpreter_the_user_cannot_use_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "_base_executable", "/bin/false", raising=False)
    path = launchers.path_for(NOBODYS_UID, folder)
    with pytest.raises(UsageError) as refused:
        apparmor.place_copy(Account("x", NOBODYS_UID, NOBODYS_UID), path)
    assert refused.value.code == "launcher_not_portable"
    assert not path.parent.exists()


def test_install_and_uninstall(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the program that loads profiles."""
    log = tmp_path / "log"
    stand_in = tmp_path / "apparmor_parser"
    stand_in.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    stand_in.chmod(0o755)
    monkeypatch.setattr(apparmor, "_SEARCHED", str(tmp_path))
    places = Places(folder, tmp_path)
    path = apparmor.install(ROOT, places)
    profile = tmp_path / "airlox-launcher-0"
    assert str(path) in profile.read_text()
    assert apparmor.uninstall(ROOT, places)
    assert not path.parent.exists()
    assert not profile.exists()
    assert log.read_text().split() == ["--replace", str(profile), "--remove", str(profile)]
    assert not apparmor.uninstall(ROOT, places)


def test_a_system_without_apparmor(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apparmor, "_SEARCHED", str(tmp_path))
    with pytest.raises(UsageError) as refused:
        apparmor.install(ROOT, Places(folder, tmp_path))
    assert refused.value.code == "no_apparmor"


def test_a_user_that_shares_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def user(name: str, uid: int) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", uid, 50_000, "", "/", "/bin/sh"))

    ann, ben = user("ann", 50_001), user("ben", 50_002)
    monkeypatch.setattr(pwd, "getpwnam", lambda name: ann)
    monkeypatch.setattr(pwd, "getpwall", lambda: [ann])
    assert apparmor.account("ann") == Account("ann", 50_001, 50_000)
    monkeypatch.setattr(pwd, "getpwall", lambda: [ann, ben])
    with pytest.raises(UsageError) as refused:
        apparmor.account("ann")
    assert refused.value.code == "shared_group"
    assert "ben" in refused.value.message


def test_a_user_that_is_none() -> None:
    with pytest.raises(UsageError) as refused:
        apparmor.account("no-such-user")
    assert refused.value.code == "no_user"


def test_the_profile_parses(tmp_path: Path) -> None:
    """Parsers before 4.0 do not know the rule for user namespaces; they read the rest."""
    parts.require("apparmor_parser")
    parser = shutil.which("apparmor_parser", path=PARSER_PATH)
    assert parser is not None
    said = subprocess.run([parser, "--version"], capture_output=True, text=True, timeout=60)
    version = re.search(r"version (\d+)", said.stdout)
    assert version is not None
    path = launchers.path_for(1000)
    lines = launchers.profile(1000, path).splitlines(keepends=True)
    assert [line for line in lines if "userns" in line] == ["  userns,\n"]
    if int(version[1]) < 4:
        lines = [line for line in lines if "userns," not in line and "abi/4.0" not in line]
    for text, parses in (("".join(lines), True), ("".join(lines).replace("}", ""), False)):
        profile = tmp_path / "profile"
        profile.write_text(text)
        out = tmp_path / "out"
        command = [parser, "-Q", "-K", "-o", str(out), str(profile)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode == 0) is parses, done.stderr
        if parses:
            assert b"airlox-launcher-1000" in out.read_bytes()
