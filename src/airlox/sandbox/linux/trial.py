"""Building everything once with nothing to run: what a probe of the `local` sandbox is."""

from __future__ import annotations

import contextlib
import os
import select
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox import probe as causes
from airlox.sandbox.base import Limits, Network, Plan
from airlox.sandbox.linux.walls import Given

if TYPE_CHECKING:
    from airlox.sandbox.linux.builders import Builder
    from airlox.sandbox.linux.launched import Launched
    from airlox.sandbox.linux.outlet import Outlet
    from airlox.sandbox.linux.walls import Walls

_WITHIN_S = 5.0


def try_out(builder: Builder, walls: Walls, state_dir: Path) -> None:
    """Raise all walls in folders made for it, and let go again. Blocks.

    Raises:
        SandboxError: a wall cannot be had, with cause and remedy.
    """
    builder.check()
    with tempfile.TemporaryDirectory(dir=state_dir, prefix="probe-") as folder:
        os.chmod(folder, 0o711)  # as the folders above a workspace: nothing in it can be listed
        work, out, home = (_place(Path(folder, name), walls) for name in ("work", "out", "home"))
        limits = Limits(timeout_s=_WITHIN_S, memory_bytes=None)
        options = walls.options
        plan = Plan(
            argv=(),
            env=(),
            cwd=walls.layout.work,
            work=work,
            out=out,
            home=home,
            limits=limits,
            network=options.network,
            hosts=options.hosts,
        )
        with contextlib.ExitStack() as stack:
            null = stack.enter_context(open(os.devnull, "wb"))
            outlet = open_outlet(plan, stack)
            door_fd = outlet.door_fd if outlet else -1
            given = Given(null.fileno(), null.fileno(), door_fd=door_fd)
            with start(builder, walls, plan, given) as launched:
                _follow(launched)
            if outlet is not None:
                outlet.take().close()


def open_outlet(plan: Plan, stack: contextlib.ExitStack) -> Outlet | None:
    """The way out of a command whose network is an allow list, for as long as the stack."""
    if plan.network is not Network.ALLOW_LIST:
        return None
    from airlox.sandbox.linux.outlet import Outlet  # most runners have no use for it

    return stack.enter_context(Outlet(plan.hosts))


def start(builder: Builder, walls: Walls, plan: Plan, given: Given) -> Launched:
    """Launch, with an error that says so.

    Raises:
        SandboxError: as `Builder.launch`, or no process can be had (`not_started`).
    """
    try:
        return builder.launch(walls, plan, given)
    except OSError as error:
        raise SandboxError(
            f"the launcher could not be started: {error.strerror}", code="not_started"
        ) from error


def _place(path: Path, walls: Walls) -> Path:
    path.mkdir(0o700)
    if walls.user is not None:
        try:
            os.chown(path, walls.user.uid, walls.user.gid)
        except OSError as error:  # root of a namespace in which there is nobody else
            raise causes.refusal("root_no_user", error.strerror or "") from error
    return path


def _follow(launched: Launched) -> None:
    deadline = time.monotonic() + _WITHIN_S
    poll = select.poll()
    poll.register(launched.info_fd, select.POLLIN)
    while (left_s := deadline - time.monotonic()) > 0:
        poll.poll(left_s * 1000)
        lines, more = launched.told()
        for told in lines:
            if told.word == "error":
                raise causes.explain(told.step, told.numbers[0], told.text, causes.look_at_host())
            if told.word == "pid":
                launched.meet_keeper(told.numbers[0])
            if told.word == "ready":
                launched.go()
            if told.word == "exit":
                return
        if not more:
            raise launched.last_words()
    raise causes.refusal("start_timeout")
