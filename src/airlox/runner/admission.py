"""May this runner take a job, and can it: asked before anything of the job is fetched.

May: by whom it is, for whom it is, whether it is still wanted, and whether the owner approved this
runner. Can: what the runner
offers, and whether there is room. Each refusal has a code and, where there is one, a next step.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from msgspec import UNSET

from airlox.client.membership import now_ms
from airlox.errors import ConnectionLost, JobRefused, RelayError
from airlox.protocol.encoding import ItemId
from airlox.protocol.job import Job, LabelledRunner, OneRunner
from airlox.protocol.keys import Role
from airlox.runner.bench import Bench
from airlox.runner.link import Order
from airlox.runner.slots import Running
from airlox.runner.workspace import check_room

APPROVAL_S: Final = 10.0
"""How long a job waits for the owner's signed approval, which may be on its way."""
APPROVAL_POLL_S: Final = 1.0
CLOCK_SLACK_MS: Final = 60_000
"""How far the clocks of a sender and of this machine may be apart."""


async def check_may_run(bench: Bench, running: Running, order: Order) -> None:
    """Raises JobRefused unless author, target and approval are right."""
    if order.may_be_done:
        raise JobRefused(
            "the job is older than what this runner remembers: it may have been carried out",
            code="too_old",
            hint="send it again as a new job; if it is new, set the sender's clock",
        )
    if order.author.role not in (Role.OWNER, Role.SENDER):
        raise JobRefused("jobs are by the owner or a sender", code="not_allowed")
    target = order.job.target
    if isinstance(target, OneRunner) and target.participant_pub != bench.link.public:
        raise JobRefused("the job is for another runner", code="wrong_target")
    if isinstance(target, LabelledRunner) and not set(target.labels) <= set(bench.options.labels):
        raise JobRefused("the job is for a runner with other labels", code="wrong_target")
    _check_still_wanted(bench, order)
    await _wait_for_approval(bench, running)


def _check_still_wanted(bench: Bench, order: Order) -> None:
    """The relay said that the job's time has come; its author said when it is over."""
    if bench.link.cancelled_by(ItemId(order.ref.id)) is not None:
        raise JobRefused("cancelled before it was given to this runner", code="cancelled")
    queue = order.job.queue
    if queue is not UNSET and now_ms() > queue.start_by_ms + CLOCK_SLACK_MS:
        raise JobRefused(
            "the job should have started earlier than this, or not at all",
            code="too_late",
            hint="send it again, with a longer --queue; if it is new, set this machine's clock",
        )


async def _wait_for_approval(bench: Bench, running: Running) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + APPROVAL_S
    while not bench.link.may_take_jobs():
        running.check()
        if loop.time() > deadline:
            raise JobRefused(
                "the owner has not approved this runner",
                code="not_approved",
                hint=f"airlox runner approve {bench.options.name}",
            )
        with suppress(ConnectionLost, RelayError):
            await bench.threads.call(bench.link.sync)
        await asyncio.sleep(APPROVAL_POLL_S)


def check_can_run(bench: Bench, job: Job) -> None:
    """Raises JobRefused when this runner does not offer what the job asks for, or has no room."""
    if job.kind not in bench.kinds:
        raise JobRefused(
            f"this runner takes no {job.kind} jobs",
            code="kind_not_offered",
            hint="choose another runner, or start this one with an interpreter (--python)",
        )
    most_mb = bench.options.memory_mb
    if job.memory_mb is not None and most_mb is not None and job.memory_mb > most_mb:
        raise JobRefused(
            f"this runner gives a job at most {most_mb} MB of memory",
            code="memory_not_offered",
            hint=f"use --memory {most_mb} or less",
        )
    if job.require_layers is not UNSET:
        on = bench.env.layers
        missing = [layer for layer in job.require_layers if not on.get(layer)]
        if missing:
            raise JobRefused(
                f"this runner's sandbox lacks {', '.join(missing)}", code="layer_missing"
            )
    for folder in (bench.folder, bench.options.cache_root):
        check_room(folder, bench.options.disk_floor_bytes)
