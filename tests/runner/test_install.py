"""Services of runners, put in place and taken away; the system's own commands are stand-ins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airlox.errors import StorageError, UsageError
from airlox.runner import install
from airlox.runner.services import Definition

LINK = "https://relay.example/s/ax_1#runner.secret"


@pytest.fixture
def link_path(tmp_path: Path) -> Path:
    return install.link_file(tmp_path / "config", "box")


@pytest.fixture
def definition(tmp_path: Path) -> Definition:
    """Its commands write down that they were run."""
    log = tmp_path / "told"

    def command(word: str) -> tuple[str, ...]:
        return ("/bin/sh", "-c", f"echo {word} >> {log}")

    return Definition(
        path=tmp_path / "units/airlox-box.service",
        content=b"[Service]\n",
        forget=(command("forget"),),
        start=(command("reload"), command("start")),
        stop=(command("stop"),),
        removed=(command("reload"),),
    )


def told(tmp_path: Path) -> list[str]:
    return (tmp_path / "told").read_text().split()


def test_both_files_and_a_start(tmp_path: Path, definition: Definition, link_path: Path) -> None:
    install.install(definition, link_path, LINK)
    assert definition.path.read_bytes() == definition.content
    assert link_path.read_text() == LINK + "\n"
    assert link_path.stat().st_mode & 0o777 == 0o600
    assert link_path.parent.stat().st_mode & 0o777 == 0o700
    assert told(tmp_path) == ["forget", "reload", "start"]


def test_again_for_the_same_session(definition: Definition, link_path: Path) -> None:
    install.install(definition, link_path, LINK)
    changed = replace(definition, content=b"[Unit]\n")
    install.install(changed, link_path, LINK)
    assert definition.path.read_bytes() == changed.content


def test_another_session_does_not_take_its_place(
    tmp_path: Path, definition: Definition, link_path: Path
) -> None:
    install.install(definition, link_path, LINK)
    before = told(tmp_path)
    with pytest.raises(UsageError) as refused:
        install.install(replace(definition, content=b"other"), link_path, LINK + "2")
    assert refused.value.code == "service_exists"
    assert LINK not in str(refused.value)
    assert definition.path.read_bytes() == definition.content
    assert told(tmp_path) == before


def test_a_service_that_is_there_is_seen_before_a_code_is_spent(
    definition: Definition, link_path: Path
) -> None:
    install.check_absent(link_path)
    install.install(definition, link_path, LINK)
    with pytest.raises(UsageError) as refused:
        install.check_absent(link_path)
    assert refused.value.code == "service_exists"


def test_a_system_that_cannot_be_told(definition: Definition, link_path: Path) -> None:
    failing = replace(definition, start=(("/bin/sh", "-c", "echo no bus >&2; exit 1"),))
    with pytest.raises(UsageError) as refused:
        install.install(failing, link_path, LINK)
    assert refused.value.code == "service_not_started"
    assert "no bus" in refused.value.message
    assert definition.path.exists()


def test_a_system_without_the_program(definition: Definition, link_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        install.install(replace(definition, start=(("/nonexistent/ctl",),)), link_path, LINK)
    assert "no such program" in refused.value.message


def test_uninstalled(tmp_path: Path, definition: Definition, link_path: Path) -> None:
    install.install(definition, link_path, LINK)
    (tmp_path / "told").unlink()
    assert install.uninstall(definition, link_path)
    assert not definition.path.exists()
    assert not link_path.exists()
    assert told(tmp_path) == ["stop", "reload"]
    assert not install.uninstall(definition, link_path)


def test_a_place_that_is_none(tmp_path: Path, definition: Definition, link_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        install.install(replace(definition, path=tmp_path / "file/unit"), link_path, LINK)


def test_variables_that_go_along() -> None:
    environ = {"PATH": "/a", "HOME": "/h", "AIRLOX_INVITE": LINK, "AIRLOX_WORK_ROOT": "/w"}
    assert install.kept(environ) == (("PATH", "/a"), ("AIRLOX_WORK_ROOT", "/w"))


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"])
def test_a_password_does_not(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        install.kept({name: "http://me:word@proxy"})
    assert refused.value.code == "secret_in_service"
    assert "word" not in str(refused.value).replace("password", "")


@pytest.mark.parametrize(
    ("environ", "uid", "folder"),
    [
        ({}, 1000, "/h/.config"),
        ({"XDG_CONFIG_HOME": "/x"}, 1000, "/x"),
        ({"XDG_CONFIG_HOME": "relative"}, 1000, "/h/.config"),
        ({"XDG_CONFIG_HOME": "/x"}, 0, "/etc"),
    ],
)
def test_where_settings_lie(environ: dict[str, str], uid: int, folder: str) -> None:
    assert install.config_folder(environ, Path("/h"), uid) == Path(folder)
