"""`airlox runner workspaces`: what runners on this machine keep of their senders' trees."""

from __future__ import annotations

import os

from airlox.cli import options
from airlox.cli.output import size_text, time_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path
    from typing import Any

    from airlox.cli.output import Voice
    from airlox.runner.housekeeping import Kept

UNUSED_S = 30 * 24 * 3600
_ROOT = f"{options.WORK_ROOT}; the cache"


def add_arguments(actions: options.Actions) -> None:
    parser = actions.add(
        "workspaces",
        "List what runners on this machine keep of their senders, or remove it",
        details="A runner removes by itself what was not used for 30 days or is beyond its quota. "
        "gc does so now, also for runners that do not run any more; it passes by what is in use.",
        example="airlox runner workspaces gc --unused 7d",
    )
    parser.add_argument("what", metavar="ACTION", choices=("ls", "gc"), help="ls: list; gc: remove")
    parser.add_argument(
        "--unused",
        type=options.duration,
        default=UNUSED_S,
        metavar="TIME",
        help="gc: remove what was not used for so long, 0 for all [30d]",
    )
    parser.add_argument(
        "--work-root", metavar="DIR", help=f"where runners were told to keep it [{_ROOT}]"
    )


def run(args: Namespace, voice: Voice) -> int:
    from airlox.runner.housekeeping import list_workspaces, remove_workspaces

    kept = list_workspaces(_root(args))
    if args.what == "ls":
        if voice.json:
            voice.document({"workspaces": [_shape(one) for one in kept]})
        else:
            voice.table(("SESSION", "RUNNER", "SENDER", "USED", "SIZE", ""), [*map(_row, kept)])
            voice.note(_sum(kept))
        return 0
    removed, held = remove_workspaces(kept, unused_s=args.unused)
    if voice.json:
        voice.document({"removed": [*map(_shape, removed)], "in_use": [*map(_shape, held)]})
        return 0
    voice.say(f"removed {_sum(removed)}")
    if held:
        voice.note(f"{len(held)} more are in use")
    return 0


def _root(args: Namespace) -> Path:
    from pathlib import Path

    named = args.work_root or os.environ.get(options.WORK_ROOT)
    return Path(named) if named else Path(options.cache_root(args, os.environ)) / "runner"


def _sum(kept: list[Kept]) -> str:
    count = "1 workspace" if len(kept) == 1 else f"{len(kept)} workspaces"
    return f"{count}, {size_text(sum(one.size_bytes for one in kept))}"


def _row(kept: Kept) -> list[str]:
    used = time_text(round(kept.used_at_s * 1000))
    state = "in use" if kept.in_use else ""
    return [kept.session, kept.runner, kept.name, used, size_text(kept.size_bytes), state]


def _shape(kept: Kept) -> dict[str, Any]:
    return {
        "in_use": kept.in_use,
        "runner": kept.runner,
        "sender": kept.name,
        "session": kept.session,
        "size_bytes": kept.size_bytes,
        "used_at_ms": round(kept.used_at_s * 1000),
    }
