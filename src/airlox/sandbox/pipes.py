"""The output of a job: two pipes, read in the event loop for as long as the job runs.

Rules
- The reader never stops: whatever the job prints is taken and handed on at once, in chunks of at
  most `OUTPUT_CHUNK_BYTES`, so that a job never hangs on a full pipe and memory stays flat.
- The end is never waited for. A child that keeps a pipe open after the main process is gone
  delays nothing: `finish` takes what lies in the pipes at that moment and closes them.
- An error in the sink does not stop the reading; it is raised by `finish`.

Left to others: what is kept of the output, and its decoding.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from airlox.sandbox.base import OUTPUT_CHUNK_BYTES, STDERR, STDOUT

if TYPE_CHECKING:
    from types import TracebackType

    from airlox.sandbox.base import OutputSink

# What a pipe can hold at most for an unprivileged process (fs.pipe-max-size), so that a survivor
# which writes without end cannot keep `finish` busy.
_PIPE_HOLDS_BYTES = 1 << 20


class OutputPipes:
    """Both pipes of one job. Made and used in the event loop's thread; a context manager.

    Give `stdout_fd` and `stderr_fd` to the job, then call `start`, and at the end `finish`.
    """

    def __init__(self, on_output: OutputSink) -> None:
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        self._error: Exception | None = None
        self._readers: dict[int, int] = {}  # stream -> read end
        self._writers: dict[int, int] = {}  # stream -> write end
        try:
            for stream in (STDOUT, STDERR):
                self._readers[stream], self._writers[stream] = os.pipe()
                os.set_blocking(self._readers[stream], False)
        except OSError:
            self.close()
            raise

    @property
    def stdout_fd(self) -> int:
        """Write end for the job's standard output; not inheritable."""
        return self._writers[STDOUT]

    @property
    def stderr_fd(self) -> int:
        """Write end for the job's standard error; not inheritable."""
        return self._writers[STDERR]

    def start(self) -> None:
        """Begin to read. Call it once the job has its ends: the ones here are closed."""
        self._close_writers()
        for stream, fd in self._readers.items():
            self._loop.add_reader(fd, self._read, stream)

    def finish(self) -> None:
        """Take what is still in the pipes, without waiting, and close them.

        Raises the first error of the sink, if there was one.
        """
        for stream in tuple(self._readers):
            taken = 0
            while stream in self._readers and taken < _PIPE_HOLDS_BYTES:
                got = self._read(stream)
                if got == 0:
                    break
                taken += got
        self.close()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Close whatever is still open, reading nothing. Idempotent."""
        self._close_writers()
        for stream in tuple(self._readers):
            self._close_reader(stream)

    def __enter__(self) -> OutputPipes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self, stream: int) -> int:
        """Read one chunk; the number of bytes that came, 0 for none now or none ever."""
        try:
            chunk = os.read(self._readers[stream], OUTPUT_CHUNK_BYTES)
        except BlockingIOError:
            return 0
        if not chunk:
            self._close_reader(stream)
            return 0
        try:
            self._on_output(stream, chunk)
        except Exception as e:
            self._error = self._error or e
        return len(chunk)

    def _close_reader(self, stream: int) -> None:
        fd = self._readers.pop(stream)
        self._loop.remove_reader(fd)
        os.close(fd)

    def _close_writers(self) -> None:
        while self._writers:
            os.close(self._writers.popitem()[1])
