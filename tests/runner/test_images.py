"""Which image jobs in containers find.

The engine's command is a script here; a real engine is in `tests/e2e/test_runner_docker.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airlox.errors import SandboxError
from airlox.runner import images
from airlox.runner.image_python import Wanted
from airlox.runner.notes import Note
from airlox.runner.options import RunnerOptions
from airlox.sandbox.container.engine import Engine
from airlox.sandbox.container.ready import label_of


class TestImage:
    """`said` is what the operator is told; the script writes down how it was called."""

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        return folder

    def choose(self, engine: Path, script: str, **given: Any) -> tuple[RunnerOptions, list[Note]]:
        command = engine / "docker"
        command.write_text(f'#!/bin/sh\necho "$*" >> {engine}/calls\n{script}\n')
        command.chmod(0o755)
        chosen = RunnerOptions(
            name="box",
            cache_root=engine.parent / "cache",
            host="lab",
            path=f"{engine}:/usr/bin:/bin",
            sandbox="docker",
            **given,
        )
        said: list[Note] = []
        wanted = Wanted("python3.12", ())
        return images.with_image(chosen, engine.parent, wanted, said.append), said

    def calls(self, engine: Path) -> list[str]:
        return [line.split()[0] for line in (engine / "calls").read_text().splitlines()]

    def test_one_that_is_there_is_used_as_it_is(self, engine: Path) -> None:
        chosen, said = self.choose(engine, "echo '{}'", image="mine:1")
        assert (chosen.image, said, self.calls(engine)) == ("mine:1", [], ["image"])

    def test_one_that_is_missing_is_fetched_and_that_is_told(self, engine: Path) -> None:
        missing = 'if [ "$1" = image ]; then echo "Error: No such image: x" >&2; exit 1; fi'
        chosen, said = self.choose(engine, missing, image="mine:1")
        assert chosen.image == "mine:1"
        assert [note.text for note in said] == ["fetching the image mine:1"]
        assert self.calls(engine) == ["image", "pull"]

    def test_one_that_cannot_be_fetched_is_refused_with_the_reason(self, engine: Path) -> None:
        with pytest.raises(SandboxError, match=r"mine:1 cannot be fetched.*manifest unknown") as e:
            self.choose(
                engine,
                'if [ "$1" = image ]; then echo "Error: No such image: x" >&2\n'
                'else echo "Error response from daemon: manifest unknown" >&2; fi; exit 1',
                image="mine:1",
            )
        assert e.value.code == "image_missing"

    def test_without_a_name_it_is_that_of_the_sessions_python(self, engine: Path) -> None:
        chosen, _ = self.choose(engine, "echo '{}'")
        assert chosen.image == "python:3.12-slim"
        chosen, _ = self.choose(engine, "echo '{}'", image_base="registry.lan/py")
        assert (chosen.image, chosen.image_base) == ("registry.lan/py", None)


def test_a_container_that_an_image_is_made_of_can_be_found_again(tmp_path: Path) -> None:
    """As any other of a runner that died."""
    command = tmp_path / "docker"
    command.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\necho {"0" * 64}\n')
    command.chmod(0o755)
    label = label_of(tmp_path)
    with (tmp_path / "site.tar").open("w+b") as archive:
        images._lay_into(Engine(str(command)), "base", "made:1", "/site", archive, label)
    made, *others = (tmp_path / "calls").read_text().splitlines()
    assert made.startswith("create ")
    assert f"--label={label}" in made.split()
    assert [line.split()[0] for line in others] == ["cp", "commit", "rm"]
