"""Which image jobs in containers find, and what is in it.

The engine's command is a script here; a real engine is in `tests/e2e/test_runner_docker.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airlox.errors import JobRefused, SandboxError, UsageError
from airlox.protocol.manifest import JobLimits
from airlox.runner import images
from airlox.runner.images import ImageSupply, Wanted
from airlox.runner.notes import Note
from airlox.runner.options import RunnerOptions

WANTED = Wanted("python3.12", (("six", ">=1"),))
FOUND = {
    "version": "3.12.4",
    "executable": "/usr/local/bin/python3.12",
    "site": "/usr/local/lib/python3.12/site-packages",
    "machine": "x86_64",
    "libc": "glibc",
    "packages": {"six": "1.17.0"},
}


class Image:
    """A container in which `name` says what `said` is."""

    def __init__(self, name: str, said: object) -> None:
        self.name = name
        self.said = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.asked: list[str] = []

    def ask(self, *argv: str) -> tuple[int, bytes]:
        self.asked.append(argv[0])
        return (0, self.said) if argv[0] == self.name else (127, b"")


class TestSupply:
    @pytest.mark.parametrize("name", ["python3.12", "python3", "python"])
    def test_the_python_of_the_image(self, name: str) -> None:
        supply = ImageSupply(Image(name, FOUND), WANTED)
        assert supply.check() == "3.12.4"
        python = supply.get()
        assert (str(python.path), python.source, python.mounts) == (
            "/usr/local/bin/python3.12",
            "image",
            (),
        )
        assert python.packages == {"six": "1.17.0"}

    def test_it_is_asked_once(self) -> None:
        image = Image("python3.12", FOUND)
        supply = ImageSupply(image, WANTED)
        for _ in range(3):
            supply.get()
        assert image.asked == ["python3.12"]

    @pytest.mark.parametrize(
        "said",
        [
            FOUND | {"version": "3.11.2"},
            FOUND | {"executable": "/bin/\x1b[31m"},
            {"version": "3.12.4"},
            b"Python 3.12.4",
            b"",
            json.dumps(FOUND).encode() + b" " * 70_000,
        ],
    )
    def test_what_is_no_such_python(self, said: object) -> None:
        with pytest.raises(UsageError) as raised:
            ImageSupply(Image("python3", said), WANTED).check()
        assert raised.value.code == "no_runtime"
        with pytest.raises(JobRefused):
            ImageSupply(Image("python3", said), WANTED).get()

    @pytest.mark.parametrize(
        ("installed", "code"),
        [({}, "package_missing"), ({"six": "0.9"}, "package_version")],
    )
    def test_a_package_that_is_not_as_pinned(self, installed: object, code: str) -> None:
        image = Image("python3.12", FOUND | {"packages": installed})
        with pytest.raises(UsageError, match="the image") as raised:
            ImageSupply(image, WANTED).check()
        assert raised.value.code == code


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


def test_what_a_session_wants() -> None:
    session = JobLimits(
        approve_runners=True,
        memory_mb=512,
        network=False,
        packages=("numpy==2.1", "six"),
        return_out=True,
        runtime="python3.12",
        timeout_s=60,
    )
    wanted = images.wanted_by(session, pins=True)
    assert wanted == Wanted("python3.12", (("numpy", "==2.1"), ("six", "")))
    assert wanted.names == ("numpy", "six")
