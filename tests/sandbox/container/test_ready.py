"""Engines that cannot hold a job. The engine's command is a script here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airlox.sandbox.base import SandboxOptions
from airlox.sandbox.container.ready import label_of
from airlox.sandbox.docker import DockerSandbox

GOOD = {
    "ServerVersion": "27.0",
    "OSType": "linux",
    "SecurityOptions": ["name=seccomp,profile=builtin"],
    "MemoryLimit": True,
    "PidsLimit": True,
    "CgroupDriver": "systemd",
}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"OSType": "windows"}, "engine_not_linux"),
        ({"SecurityOptions": ["name=userns"]}, "engine_remaps"),
        ({"MemoryLimit": False, "CgroupDriver": "none"}, "memory_unwatched"),
        ({"ServerVersion": "", "ServerErrors": ["connect: permission denied"]}, "engine_denied"),
        ({"ServerVersion": ""}, "engine_unreachable"),
        ({}, "image_missing"),
    ],
)
def test_an_engine_that_cannot_hold_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], code: str
) -> None:
    (tmp_path / "said").write_text(json.dumps(GOOD | change))
    command = tmp_path / "docker"
    command.write_text(
        "#!/bin/sh\n"
        f"case $1 in info) cat {tmp_path}/said ;;\n"
        "image) echo 'Error: No such image: x' >&2; exit 1 ;; esac\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    report = DockerSandbox(SandboxOptions(tmp_path, image="x")).probe()
    assert not report.usable
    assert report.refusal is not None
    assert (report.refusal.code, bool(report.refusal.hint)) == (code, True)
    assert [(layer.name, layer.on, layer.code) for layer in report.layers] == [
        ("walls", False, code)
    ]


def test_each_runner_knows_its_own_containers(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert label_of(tmp_path) == label_of(tmp_path / "link") != label_of(tmp_path / "other")
