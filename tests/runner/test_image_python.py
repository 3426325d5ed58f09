"""The Python in an image, and which packages it must have."""

from __future__ import annotations

import json

import pytest

from airlox.errors import JobRefused, UsageError
from airlox.protocol.manifest import JobLimits
from airlox.runner.image_python import ImageSupply, Wanted, wanted_by

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
    wanted = wanted_by(session, pins=True)
    assert wanted == Wanted("python3.12", (("numpy", "==2.1"), ("six", "")))
    assert wanted.names == ("numpy", "six")
