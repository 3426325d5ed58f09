"""A real `airlox-server` process, for tests that kill it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 60


class ServerProcess:
    """Started when made; `url` is where it listens."""

    def __init__(
        self, *options: str, log: Path | None = None, open_files: int | None = None
    ) -> None:
        command = [sys.executable, "-m", "airlox.relay", "--listen", "127.0.0.1:0", *options]
        if open_files is not None:
            command = ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *command]
        with open(log or os.devnull, "ab") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True
            )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        self.url = self.first_line.strip().removeprefix("listening on ")

    def kill(self) -> None:
        """What nobody can prepare for."""
        self.process.send_signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(START_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


@contextmanager
def server(
    *options: str, log: Path | None = None, open_files: int | None = None
) -> Iterator[ServerProcess]:
    running = ServerProcess(*options, log=log, open_files=open_files)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.kill()
        elif running.process.stdout is not None:
            running.process.stdout.close()
