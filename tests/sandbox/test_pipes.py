"""The reader of a job's output: all of it, in bounded pieces, and never the reason to wait."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine

import pytest

from airlox.sandbox.base import OUTPUT_CHUNK_BYTES, STDERR, STDOUT
from airlox.sandbox.pipes import OutputPipes


class Heard:
    """Collects what the pipes hand on."""

    def __init__(self) -> None:
        self.text = {STDOUT: bytearray(), STDERR: bytearray()}
        self.largest = 0
        self.changed = asyncio.Event()

    def __call__(self, stream: int, chunk: bytes) -> None:
        assert chunk
        self.text[stream] += chunk
        self.largest = max(self.largest, len(chunk))
        self.changed.set()

    async def until(self, condition: Callable[[Heard], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()


def run(story: Callable[[Heard], Coroutine[None, None, None]]) -> Heard:
    async def main() -> Heard:
        heard = Heard()
        await story(heard)
        return heard

    before = len(os.listdir("/dev/fd"))
    heard = asyncio.run(main())
    assert len(os.listdir("/dev/fd")) == before
    return heard


def start(pipes: OutputPipes, script: str) -> subprocess.Popen[bytes]:
    """Start a Python program on the pipes."""
    out, err = pipes.stdout_fd, pipes.stderr_fd
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script], stdin=subprocess.DEVNULL, stdout=out, stderr=err
    )
    pipes.start()
    return process


def wait(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    return asyncio.ensure_future(asyncio.to_thread(process.wait, 60))


def test_streams_are_kept_apart() -> None:
    async def story(heard: Heard) -> None:
        with OutputPipes(heard) as pipes:
            await wait(start(pipes, "import os; os.write(1, b'out'); os.write(2, b'err')"))
            pipes.finish()

    assert run(story).text == {STDOUT: b"out", STDERR: b"err"}


def test_what_was_written_just_before_the_end_is_there() -> None:
    async def story(heard: Heard) -> None:
        with OutputPipes(heard) as pipes:
            process = start(pipes, "import os; os.write(1, b'x' * 60000)")
            process.wait(60)  # blocks the loop: nothing is read before the end
            pipes.finish()

    assert len(run(story).text[STDOUT]) == 60000


def test_much_output_flows_in_bounded_chunks() -> None:
    async def story(heard: Heard) -> None:
        with OutputPipes(heard) as pipes:
            script = "import os\nfor _ in range(100): os.write(1, bytes(100_000))"
            await wait(start(pipes, script))
            pipes.finish()

    heard = run(story)
    assert heard.text[STDOUT] == bytes(10_000_000)
    assert heard.largest <= OUTPUT_CHUNK_BYTES


def test_output_comes_while_the_job_runs() -> None:
    async def story(heard: Heard) -> None:
        with OutputPipes(heard) as pipes:
            script = "import os, time; os.write(1, b'now'); time.sleep(1000)"
            process = start(pipes, script)
            await heard.until(lambda heard: heard.text[STDOUT] == b"now")
            assert process.poll() is None
            process.kill()
            await wait(process)

    run(story)


def test_a_child_that_keeps_the_pipe_does_not_delay_the_end() -> None:
    async def story(heard: Heard) -> None:
        with OutputPipes(heard) as pipes:
            writer = os.dup(pipes.stdout_fd)
            await wait(start(pipes, "import os; os.write(1, b'done')"))
            pipes.finish()  # with `writer` open, end of file never comes
            os.close(writer)

    assert run(story).text[STDOUT] == b"done"


def test_a_survivor_that_never_stops_writing_does_not_keep_the_end_busy() -> None:
    async def story(heard: Heard) -> None:
        with OutputPipes(heard) as pipes:
            writer = start(pipes, "import os\nwhile True: os.write(1, bytes(65536))")
            await heard.until(lambda heard: len(heard.text[STDOUT]) > 0)
            pipes.finish()
            assert await wait(writer) != 0  # nobody reads any more

    run(story)


def test_end_of_file_ends_the_reading_and_no_more() -> None:
    async def story(heard: Heard) -> None:
        with OutputPipes(heard) as pipes:
            script = "import os; os.close(1); os.write(2, b'a'); os.read(0, 1); os.write(2, b'b')"
            await wait(start(pipes, script))
            pipes.finish()
            pipes.finish()

    assert run(story).text == {STDOUT: b"", STDERR: b"ab"}


def test_an_error_of_the_sink_does_not_stop_the_job_and_is_raised_at_the_end() -> None:
    async def story(heard: Heard) -> None:
        def sink(stream: int, chunk: bytes) -> None:
            heard(stream, chunk)
            raise LookupError("first" if heard.text[STDOUT] == chunk else "later")

        with OutputPipes(sink) as pipes:
            process = start(pipes, "import os\nfor _ in range(50): os.write(1, bytes(50_000))")
            assert await wait(process) == 0
            with pytest.raises(LookupError, match="first"):
                pipes.finish()

    assert len(run(story).text[STDOUT]) == 2_500_000


def test_leaving_without_a_start_closes_everything() -> None:
    async def story(heard: Heard) -> None:
        with OutputPipes(heard):
            pass

    run(story)
