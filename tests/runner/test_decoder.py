"""Images of jobs are decoded by a process that can do nothing else."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.client.attachments import sanitize_image
from airlox.errors import AirloxError, ValidationError
from airlox.runner import decoder as decoding
from airlox.runner.decoder import ImageDecoder
from airlox.sandbox.linux import syscalls
from support.images import build_png

VECTORS = Path(__file__).parents[2] / "vectors" / "images.json"
PNG = build_png(2, 2, bytes(2 * (1 + 3 * 2)))
confines = pytest.mark.skipif(
    sys.platform != "linux" or not syscalls.SUPPORTED, reason="no filter for this system"
)


@pytest.fixture
def decoder() -> Iterator[ImageDecoder]:
    with ImageDecoder() as made:
        yield made


def pid_of(decoder: ImageDecoder) -> int:
    process = decoder._process
    assert process is not None
    return process.pid


def images() -> list[bytes]:
    cases = json.loads(VECTORS.read_text())["cases"]
    return [base64.b64decode(case["in"]["data_b64"]) for case in cases if "data_b64" in case["in"]]


def test_as_in_this_process(decoder: ImageDecoder) -> None:
    """Every kind of image of the vectors, sound or not, one after the other."""
    found = images()
    assert len(found) > 10
    for data in (PNG, *found):
        try:
            wanted = sanitize_image(data)
        except AirloxError:
            with pytest.raises(ValidationError):
                decoder.sanitize(data)
        else:
            assert decoder.sanitize(data) == wanted


@confines
def test_it_can_only_compute(decoder: ImageDecoder) -> None:
    decoder.sanitize(PNG)
    status = Path(f"/proc/{pid_of(decoder)}/status").read_text().splitlines()
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status
    assert len(os.listdir(f"/proc/{pid_of(decoder)}/fd")) == 3


ATTEMPTS = """
import os, socket, sys
sys.path[:] = sys.argv[1:]
from airlox.runner import decoder
decoder._confine()
for attempt in (
    lambda: os.open("/etc/passwd", os.O_RDONLY),
    lambda: os.listdir("/"),
    lambda: os.stat("/etc"),
    lambda: socket.socket(),
    lambda: os.fork(),
    lambda: os.execv("/bin/true", ["true"]),
    lambda: os.kill(os.getppid(), 0),
    lambda: os.unlink("/nothing"),
    lambda: os.setuid(0),
    lambda: os.pipe(),
):
    try:
        attempt()
        os.write(1, b"done\\n")
    except OSError as error:
        os.write(1, b"%d\\n" % error.errno)
os._exit(0)
"""


@confines
def test_nothing_else_is_left_to_it() -> None:
    argv = [sys.executable, "-I", "-c", ATTEMPTS, *sys.path]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=True)
    assert done.stdout.split() == [b"1"] * 10


def test_one_that_dies_is_started_again(decoder: ImageDecoder) -> None:
    decoder.sanitize(PNG)
    first = pid_of(decoder)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(ValidationError):
        decoder.sanitize(PNG)
    assert decoder.sanitize(PNG)[0] == "image/png"
    assert pid_of(decoder) != first


def test_one_that_takes_too_long(decoder: ImageDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder.sanitize(PNG)
    os.kill(pid_of(decoder), signal.SIGSTOP)
    monkeypatch.setattr(decoding, "IMAGE_S", 0.2)
    with pytest.raises(ValidationError):
        decoder.sanitize(PNG)
    monkeypatch.undo()
    assert decoder.sanitize(PNG)[0] == "image/png"


LIAR = "import os; os.write(1, b'r'); os.read(0, 100); os.write(1, {answer!r}); os.read(0, 1)"


@pytest.mark.parametrize("answer", [b"", b"\xff\xff\xff\xff", b"\0\0\0\x20short"])
def test_one_that_was_taken_over(
    decoder: ImageDecoder, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(decoding, "_PROGRAM", LIAR.format(answer=answer))
    monkeypatch.setattr(decoding, "IMAGE_S", 2.0)
    with pytest.raises(ValidationError):
        decoder.sanitize(PNG)


def test_it_ends_with_its_user() -> None:
    with ImageDecoder() as decoder:
        decoder.sanitize(PNG)
        pid = pid_of(decoder)
    assert not Path(f"/proc/{pid}").exists()
    with ImageDecoder() as unused:
        assert unused._process is None


def test_it_works_in_any_thread() -> None:
    """Out files are gathered in a worker thread."""
    seen: list[str] = []

    def work() -> None:
        with ImageDecoder() as decoder:
            seen.append(decoder.sanitize(PNG)[0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert seen == ["image/png"]
