"""What a sandbox adds to the start of `true`: all of it, and each layer that can be left out.

One run, everything in turns, so that load hits all alike. Peers: a plain fork and exec, bubblewrap
alone with namespaces and the system read-only, and `python -I -S -c pass`, the budget's measure:
the launcher is an interpreter that starts just so. A layer's row compares the whole with the whole
less that layer, so its ratio says what it costs.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airlox.errors import SandboxError
from airlox.sandbox import open_sandbox
from airlox.sandbox.base import Limits, Plan, Sandbox, SandboxOptions
from airlox.sandbox.local import LocalSandbox
from bench.measure import Row, compile_first, folder, in_turns, run

TIMES = 41
TRUE = "/bin/true"
LAYERS = ("landlock", "seccomp", "userns_limit", "cgroup")
WHOLE = "sandbox local, own"
FORK_EXEC = "fork, exec"
PYTHON = "python -I -S -c pass"
BWRAP_ALONE = "bwrap alone"
BWRAP = [
    *("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    *("--tmpfs", "/tmp", "--die-with-parent", "--new-session", TRUE),
]


@dataclass(frozen=True)
class Place:
    """A folder of its own for each sandbox, and the loop that all run in."""

    root: Path
    loop: asyncio.AbstractEventLoop

    def start_of(self, name: str, sandbox: Sandbox) -> Callable[[], object]:
        """A call that runs `true` in this sandbox, ready to be repeated."""
        sandbox.prepare()
        work, out, home = (self._folder(f"{name}-{part}", sandbox) for part in "woh")
        layout = sandbox.layout(work, out, home)
        limits = Limits(timeout_s=20.0, memory_bytes=512 << 20)
        plan = Plan((TRUE,), (), layout.work, work, out, home, limits)
        return lambda: self.loop.run_until_complete(_run(sandbox, plan))

    def options(self, builder: str | None = None) -> SandboxOptions:
        """Options of a sandbox here."""
        return SandboxOptions(self.root, builder=builder)

    def _folder(self, name: str, sandbox: Sandbox) -> Path:
        path = self.root / name.replace(" ", "-").replace(",", "")
        path.mkdir(0o700)
        if (owner := sandbox.owner()) is not None:
            os.chown(path, *owner)
        return path


def rows() -> list[Row]:
    compile_first()
    if shutil.which("bwrap") is None:
        raise RuntimeError("bwrap is missing: apt-get install bubblewrap")
    with folder() as root, asyncio.Runner() as runner:
        root.chmod(0o711)
        place = Place(root, runner.get_loop())
        calls: dict[str, Callable[[], object]] = {
            FORK_EXEC: lambda: run([TRUE]),
            PYTHON: lambda: run([sys.executable, "-I", "-S", "-c", "pass"]),
            BWRAP_ALONE: lambda: run(BWRAP),
            WHOLE: place.start_of("whole", LocalSandbox(place.options("own"))),
            "sandbox process": place.start_of("none", open_sandbox("process", place.options())),
        }
        for layer in LAYERS:
            without = LocalSandbox(place.options("own"), without=frozenset([layer]))
            calls[layer] = place.start_of(layer, without)
        _add_bubblewrap(calls, place)
        return _report(in_turns(calls, times=TIMES))


async def _run(sandbox: Sandbox, plan: Plan) -> None:
    asyncio.get_running_loop().run_in_executor(None, sandbox.expect)  # as a runner does
    outcome = await sandbox.run(plan, on_output=lambda *_: None, cancel=asyncio.Event())
    if outcome.exit_code != 0:
        raise RuntimeError(f"{TRUE} ended as {outcome}")


def _add_bubblewrap(calls: dict[str, Callable[[], object]], place: Place) -> None:
    sandbox = LocalSandbox(place.options("bwrap"))
    try:
        calls["sandbox local, bwrap"] = place.start_of("bwrap", sandbox)
    except SandboxError as error:  # as root, where the interpreter lies in a private home
        print(f"left out: sandbox local, bwrap: {error}", file=sys.stderr)


def _report(ms: dict[str, float]) -> list[Row]:
    def row(what: str, peer: str, target: str = "–") -> Row:
        return Row(f"{what}: {TRUE}", ms[what], ms[peer], "ms", peer, target)

    found = [row(WHOLE, PYTHON, "≤ 4"), row(WHOLE, FORK_EXEC), row(WHOLE, BWRAP_ALONE)]
    if "sandbox local, bwrap" in ms:
        found.append(row("sandbox local, bwrap", BWRAP_ALONE))
    found.append(row("sandbox process", FORK_EXEC))
    for layer in LAYERS:
        found.append(Row(f"… its {layer}", ms[WHOLE], ms[layer], "ms", "without it", "–"))
    return found


if __name__ == "__main__":
    from bench.measure import report

    print(report(rows()))
