"""How a job that waits for a slot is told of: its place, and why it waits."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from airlox.cli.output import Voice
    from airlox.client.answers import JobStatus
    from airlox.client.jobs import Job


def text(status: JobStatus, where: str | None = None) -> str:
    """`waits: place 2, box is busy`. `where`: the machine or runner it is for, if it is for one."""
    from airlox.protocol.wire import WaitReason

    parts = [] if status.place is None else [f"place {status.place}"]
    if status.reason == WaitReason.BUSY:
        parts.append(f"{where or 'every runner that fits'} is busy")
    elif status.reason == WaitReason.NO_RUNNER:
        parts.append(
            f"{where} is not there" if where else "no runner that fits is online and approved"
        )
    return "waits: " + (", ".join(parts) or "no slot is free")


class Waiting:
    """Tells of one job while it waits, each time something changes. `began` names the runner that
    got it in the end."""

    def __init__(self, job: Job, voice: Voice, where: str | None, began: Callable[[], str]) -> None:
        self._job = job
        self._voice = voice
        self._where = where
        self._began = began
        self._told: tuple[int | None, str | None] | None = None
        if job.waiting is not None:
            self.hear(job.waiting)

    def hear(self, status: JobStatus) -> None:
        """Another word of the relay on the job."""
        if not status.waits:
            self._end(status)
        elif (status.place, status.reason) != self._told:
            self._told = status.place, status.reason
            self._voice.status(
                text(status, self._where),
                event="waiting",
                job=self._job.id,
                place=status.place,
                reason=status.reason,
            )

    def _end(self, status: JobStatus) -> None:
        if self._told is None:
            return
        self._told = None
        if status.runner is None:
            self._voice.end_status()
        else:
            said = f"it was this job's turn: {self._where or self._began()} has it"
            self._voice.end_status(said, event="assigned", job=self._job.id, runner=status.runner)
