"""Decoding the images of a job, in a process that can do nothing but that.

An image comes from a job, and what decodes it is a million lines of native code. So it runs in a
process of its own, which loads what it needs, gives up every system call but those for memory and
for the descriptors it has, and only then reads the first image. Whoever takes it over can send a
wrong image back, or none.

A request is a length (4 bytes, big-endian) and the image; an answer the length, the MIME type in
16 bytes, and the new image; a length of 0 says that it is none. Where the kernel has no such
filter the process still holds neither our memory nor our descriptors.
"""

from __future__ import annotations

import os
import resource
import select
import struct
import subprocess
import sys
import time
from types import TracebackType
from typing import Final, Self

from airlox.errors import AirloxError, ValidationError

IMAGE_S: Final = 20.0
"""Time for one image; one that takes longer is none."""
START_S: Final = 20.0
MEMORY_BYTES: Final = 2 << 30
CPU_S: Final = 120

_LENGTH: Final = struct.Struct(">I")
_MIME_BYTES: Final = 16
_READY: Final = b"r"
_MOST_BYTES: Final = 256 << 20
_STEP_BYTES: Final = 1 << 20


class ImageDecoder:
    """Decodes one image after another; the process starts with the first. A context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def sanitize(self, data: bytes) -> tuple[str, bytes]:
        """As `attachments.sanitize_image`, but that its errors are one ValidationError."""
        try:
            process = self._process or self._start()
            answer = self._ask(process, data)
        except (OSError, EOFError, TimeoutError):
            self._end()
            raise ValidationError("image cannot be decoded") from None
        if answer is None:
            raise ValidationError("image is damaged, too large, or of another kind")
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        """Raises OSError, EOFError or TimeoutError."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _PROGRAM, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
        if _read(self._process, 1, time.monotonic() + START_S) != _READY:
            raise EOFError
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], data: bytes) -> tuple[str, bytes] | None:
        until_s = time.monotonic() + IMAGE_S
        _write(process, _LENGTH.pack(len(data)) + data, until_s)
        (length,) = _LENGTH.unpack(_read(process, _LENGTH.size, until_s))
        if length == 0:
            return None
        if length > _MOST_BYTES:
            raise EOFError
        answer = _read(process, length, until_s)
        mime = answer[:_MIME_BYTES].rstrip(b"\0").decode("ascii", "replace")
        return mime, answer[_MIME_BYTES:]

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait(timeout=START_S)


_PROGRAM: Final = """
import sys
sys.path[:] = sys.argv[1:]
from airlox.runner.decoder import serve
serve()
"""


def _read(process: subprocess.Popen[bytes], size: int, until_s: float) -> bytes:
    """Exactly so many bytes of the answer. Raises EOFError, TimeoutError."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    data = bytearray()
    while len(data) < size:
        _wait(fd, until_s, to_read=True)
        part = os.read(fd, min(size - len(data), _STEP_BYTES))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _write(process: subprocess.Popen[bytes], data: bytes, until_s: float) -> None:
    assert process.stdin is not None
    fd = process.stdin.fileno()
    os.set_blocking(fd, False)
    rest = memoryview(data)
    while rest:
        _wait(fd, until_s, to_read=False)
        rest = rest[os.write(fd, rest[:_STEP_BYTES]) :]


def _wait(fd: int, until_s: float, *, to_read: bool) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN if to_read else select.POLLOUT)
    if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
        raise TimeoutError


# ── inside ───────────────────────────────────────────────────────────────────────────────────


def serve() -> None:
    """The process: until its input ends. Never returns."""
    from airlox.client.attachments import load_image_formats, sanitize_image

    load_image_formats()
    _confine()
    os.write(1, _READY)
    while (head := _all(_LENGTH.size)) is not None:
        data = _all(_LENGTH.unpack(head)[0])
        if data is None:
            break
        try:
            mime, body = sanitize_image(data)
        except (AirloxError, MemoryError):
            _say(_LENGTH.pack(0))
            continue
        _say(_LENGTH.pack(_MIME_BYTES + len(body)) + mime.encode().ljust(_MIME_BYTES, b"\0") + body)
    os._exit(0)


def _confine() -> None:
    """Keep to computing, as far as the system lets us."""
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_AS, MEMORY_BYTES),
    ):
        resource.setrlimit(what, (most, most))
    if sys.platform != "linux":
        return
    from airlox.sandbox.linux import seccomp, syscalls

    if syscalls.SUPPORTED:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        syscalls.install_filter(seccomp.compile_computing(syscalls.MACHINE))


def _all(size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = os.read(0, min(size - len(data), _STEP_BYTES))
        if not part:
            return None
        data += part
    return bytes(data)


def _say(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest[:_STEP_BYTES]) :]
