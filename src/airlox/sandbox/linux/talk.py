"""How launcher, keeper and stage tell the runner what happened: lines on the info pipe.

    pid N                      host pid of pid 1, from the launcher
    ready                      every wall stands, the stage waits for "go"
    error STEP ERRNO TEXT      a wall could not be built, or the command could not be executed
    exit STATUS MAXRSS_KB      how the main process ended, from the keeper

The job never holds this pipe, so nothing it does can forge a line. Lines are shorter than a pipe
writes at once, so three writers need no lock.
"""

from __future__ import annotations

import os

_LINE_BYTES = 1000


class StepFailed(Exception):
    """A wall could not be built. `step` is a word for the runner, `number` the errno."""

    def __init__(self, step: str, number: int, text: str) -> None:
        super().__init__(step, number, text)
        self.step = step
        self.number = number
        self.text = text


class failures_told:
    """A block whose every failure is told to the runner and ends this process.

    Written out because importing contextlib would cost a good part of the start.
    """

    def __init__(self, info_fd: int) -> None:
        self._info_fd = info_fd

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        if isinstance(error, StepFailed):
            tell(self._info_fd, f"error {error.step} {error.number} {error.text}")
        else:
            number = getattr(error, "errno", None) or 0
            tell(self._info_fd, f"error unexpected {number} {type(error).__name__}: {error}")
        os._exit(1)


def tell(info_fd: int, line: str) -> None:
    """One line to the runner. If nobody listens the runner is gone, and we end with it."""
    flat = line.replace("\n", " ").encode("utf-8", "replace")[:_LINE_BYTES]
    try:
        os.write(info_fd, flat + b"\n")
    except OSError:
        os._exit(1)


def run_step(step: str, action: object, *arguments: object) -> None:
    """Call, and name the step if the system refuses."""
    try:
        action(*arguments)  # type: ignore[operator]
    except OSError as error:
        raise StepFailed(step, error.errno or 0, str(error)) from error
