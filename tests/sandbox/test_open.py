"""The table of sandboxes, and what `local` says of itself."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from airlox.errors import SandboxError, UsageError
from airlox.sandbox import open_sandbox
from airlox.sandbox.base import Limits, Plan, SandboxOptions
from support import parts


def test_every_name_opens(tmp_path: Path) -> None:
    for name in ("local", "process"):
        assert open_sandbox(name, SandboxOptions(state_dir=tmp_path)).name == name


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        open_sandbox("moat", SandboxOptions(state_dir=tmp_path))
    assert caught.value.code == "unknown_sandbox"


def test_local_is_never_turned_into_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxError) as caught:
        open_sandbox("local", SandboxOptions(state_dir=tmp_path))
    assert caught.value.code == "not_linux"


class TestLocal:
    @pytest.fixture(autouse=True)
    def _needs(self) -> None:
        parts.require("linux")
        parts.require("user namespaces")

    def test_probe_names_every_layer(self, tmp_path: Path) -> None:
        report = open_sandbox("local", SandboxOptions(state_dir=tmp_path)).probe()
        assert report.usable
        assert [layer.name for layer in report.layers] == [
            "uid", "userns", "network", "mounts", "capabilities", "seccomp", "userns_limit",
            "landlock", "rlimits", "cgroup", "watcher",
        ]  # fmt: skip
        assert all(layer.on or (layer.code and layer.remedy) for layer in report.layers)
        assert [path.name for path in tmp_path.iterdir()] in ([], ["job-uid"])

    @pytest.mark.parametrize(
        ("options", "code"),
        [
            ({"builder": "crane"}, "no_builder"),
            ({"require_layers": ("moat",)}, "layer_missing"),
        ],
    )
    def test_what_cannot_be_had_is_refused(
        self, tmp_path: Path, options: dict[str, object], code: str
    ) -> None:
        sandbox = open_sandbox("local", SandboxOptions(tmp_path, **options))  # type: ignore[arg-type]
        with pytest.raises(SandboxError) as caught:
            sandbox.prepare()
        assert caught.value.code == code

    def test_a_folder_that_is_not_the_jobs_is_refused(self, tmp_path: Path) -> None:
        parts.require("root")
        sandbox = open_sandbox("local", SandboxOptions(tmp_path))
        work, out, home = (tmp_path / name for name in ("work", "out", "home"))
        for place in (work, out, home):
            place.mkdir()
        plan = Plan(("true",), (), "/work", work, out, home, Limits(5, None))
        with pytest.raises(SandboxError) as caught:
            asyncio.run(sandbox.run(plan, on_output=lambda *_: None, cancel=asyncio.Event()))
        assert caught.value.code == "mount_source_owner"

    def test_only_the_main_thread_may_start_one(self, tmp_path: Path) -> None:
        plan = Plan(("true",), (), "/", tmp_path, tmp_path, tmp_path, Limits(5, None))
        caught: list[SandboxError] = []

        def start() -> None:
            sandbox = open_sandbox("local", SandboxOptions(tmp_path))
            run = sandbox.run(plan, on_output=lambda *_: None, cancel=asyncio.Event())
            try:
                asyncio.run(run)
            except SandboxError as error:
                caught.append(error)

        thread = threading.Thread(target=start)
        thread.start()
        thread.join(30)
        assert "main thread" in caught[0].message
