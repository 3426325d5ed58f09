"""What a job changed in its tree, brought into the checkout (`--pull`) or a patch (`--patch`).

What was changed here meanwhile stays. That some of what the job changed is not here in the end is
said file by file, and by the exit code 1 where the command's own was 0.
"""

from __future__ import annotations

import os

from airlox.cli import options
from airlox.cli.main import EXIT_ERROR
from airlox.cli.output import STDOUT, path_text
from airlox.errors import AirloxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from argparse import _ActionsContainer as Flags
    from collections.abc import Sequence
    from typing import Any

    from airlox.cli.output import Voice
    from airlox.client.jobs import Result
    from airlox.client.pulling import Change, Pulled, Returned

_TO_STDOUT = "-"
_NAMED = 50
"""Most files that are named as pulled; all that were kept are."""
_WORDS = {"changed": "pulled {}", "new": "pulled {} (new)", "deleted": "deleted {}"}


class Brought:
    """What came of it. `shape` is for `--json`; `whole`: whether all that changed is here."""

    def __init__(self, shape: dict[str, Any], *, whole: bool) -> None:
        self.shape = shape
        self.whole = whole

    def exit_code(self, code: int) -> int:
        return code if self.whole else code or EXIT_ERROR


NOTHING = Brought({}, whole=True)


def add_run_flags(group: Flags) -> None:
    group.add_argument(
        "--pull",
        action="append",
        default=[],
        metavar="PATTERN",
        help="bring files that the job changes back here, as in .gitignore: **/*.py, docs/, **; "
        "what changed here meanwhile stays",
    )
    group.add_argument(
        "--pull-ignored", action="store_true", help="also new files that git would ignore"
    )
    _add_patch(group, "write what the job changes to FILE as a patch for git apply instead")


def add_result_flags(group: Flags) -> None:
    group.add_argument(
        "--pull", action="store_true", help="bring files that the job changed in its tree here"
    )
    _add_patch(group, "write what the job changed in its tree to FILE as a patch for git apply")


def _add_patch(group: Flags, text: str) -> None:
    group.add_argument("--patch", metavar="FILE", help=f"{text}; - prints it")


def check_run(args: Namespace) -> None:
    """Raises CommandLineError for flags that do not go together."""
    if not (args.pull or args.patch or args.pull_ignored):
        return
    if not args.tree:
        raise options.CommandLineError(
            "--pull and --patch bring back what a job changes in a tree",
            hint="add --tree to send the working tree",
        )
    if not (args.pull or args.patch):
        raise options.CommandLineError("--pull-ignored goes with --pull or --patch")
    if args.all or "," in (args.on or ""):
        raise options.CommandLineError(
            "--pull and --patch are for one job: several would change the same files",
            hint="name one machine",
        )
    if args.no_wait and args.patch:
        raise options.CommandLineError(
            "--patch waits for the job's end, and --no-wait does not",
            hint="--pull PATTERN now, airlox result --patch FILE later",
        )
    check_patch(args.patch, json=args.json)


def check_patch(patch: str | None, *, json: bool) -> None:
    """Raises CommandLineError where no patch could be written in the end."""
    if patch is None:
        return
    if patch == _TO_STDOUT and json:
        raise options.CommandLineError("--patch - and --json both print to standard output")
    folder, name = os.path.split(patch)
    if not name or not os.path.isdir(folder or os.curdir):
        raise options.CommandLineError(f"{patch[:200]!r} is no file in a folder that is there")


def choices(args: Namespace) -> dict[str, Any]:
    """What `Session.run_*` takes for it."""
    if not (args.pull or args.patch):
        return {}
    return {"pull": args.pull or ["**"], "pull_ignored": args.pull_ignored}


def bring(
    result: Result, voice: Voice, *, pull: bool, patch: str | None, completed_only: bool = False
) -> Brought:
    """Bring here what a job changed, or say what could be brought. `completed_only`: unless it ran
    to its end, nothing changes here."""
    returned = result.returned
    if returned is None:
        return NOTHING
    try:
        if not (pull or patch):
            return _offer(returned, voice)
        if patch is not None:
            return _write_patch(returned, patch, voice)
        if completed_only and result.status != "completed":
            return _put_off(result, returned, voice)
        return _apply(returned, voice)
    except AirloxError as error:
        voice.warn(f"nothing was pulled: {error}")
        return Brought({}, whole=False)


def _offer(returned: Returned, voice: Voice) -> Brought:
    changes = returned.changes
    if changes:
        count = _count(changes)
        voice.note(f"it changed {count} of its tree: --pull brings them here, --patch FILE a patch")
    shape = [{"kind": change.kind, "path": path_text(change.path)} for change in changes]
    return Brought({"changes": shape}, whole=True)


def _put_off(result: Result, returned: Returned, voice: Voice) -> Brought:
    if not returned.changes:
        return NOTHING
    voice.warn(
        "nothing was pulled, since the job did not run to its end; what it had changed: "
        f"airlox result --pull -- {result.job}"
    )
    return Brought({}, whole=False)


def _apply(returned: Returned, voice: Voice) -> Brought:
    done = returned.apply()
    named = 0
    for each in done:
        if each.done == "kept":
            voice.warn(_kept(each))
        elif each.done != "same":
            named += 1
            if named <= _NAMED:
                voice.note(_WORDS[each.done].format(_text(each.path)))
    if named > _NAMED:
        voice.note(f"… and {named - _NAMED} more files pulled")
    if not done:
        voice.note("nothing to pull: no file that matches was changed")
    whole = all(each.done != "kept" for each in done)
    return Brought({"pulled": [_shape(each) for each in done]}, whole=whole)


def _write_patch(returned: Returned, path: str, voice: Voice) -> Brought:
    from airlox.safefs import save_new

    made = returned.patch()
    for missing in made.missing:
        voice.warn(
            f"not in the patch: {_text(os.fsdecode(missing))}: what was sent is not here any more"
        )
    if path == _TO_STDOUT:
        voice.output(STDOUT, made.data)
        voice.end_output()
        return Brought({}, whole=not made.missing)
    if not made.data:
        voice.note("no patch: no file that matches was changed")
        return Brought({"patch": None}, whole=not made.missing)
    folder, name = os.path.split(path)
    saved = os.fspath(save_new(folder or os.curdir, name, made.data, mode=0o644))
    voice.note(f"patch of {_count(returned.changes)}: {_text(saved)}")
    return Brought({"patch": path_text(saved)}, whole=not made.missing)


def _kept(each: Pulled) -> str:
    said = f"kept {_text(each.path)}: {each.reason}"
    return said if each.beside is None else f"{said}; the job's version: {_text(each.beside)}"


def _shape(each: Pulled) -> dict[str, Any]:
    shape: dict[str, Any] = {"done": each.done, "path": path_text(each.path)}
    if each.reason:
        shape["reason"] = each.reason
    if each.beside is not None:
        shape["beside"] = path_text(each.beside)
    return shape


def _count(changes: Sequence[Change]) -> str:
    return "1 file" if len(changes) == 1 else f"{len(changes)} files"


def _text(path: str) -> str:
    from airlox.tree.paths import shown

    return shown(os.fsencode(path))
