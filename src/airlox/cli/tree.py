"""The flags of `airlox run` about the working tree, and what of it would go."""

from __future__ import annotations

import os

from airlox.cli import options, pulling
from airlox.cli.output import path_text, size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.client.trees import TreeUpload
    from airlox.tree.overview import Overview

_CHOSEN = "excluded by "
_NAMED = 5
"""Most files that a warning names."""


def add_flags(parser: Parser) -> None:
    tree = parser.add_argument_group("working tree")
    tree.add_argument(
        "--tree",
        action="store_true",
        help="send the tree of this folder as it is now, ignored files left out, and start in the "
        "same folder of it",
    )
    tree.add_argument("--cwd", metavar="DIR", help="start in this folder of the tree instead")
    tree.add_argument(
        "--fresh", action="store_true", help="forget what the runner kept of earlier trees"
    )
    tree.add_argument(
        "--tree-allow",
        action="append",
        default=[],
        metavar="NAME",
        help="send this file although its name means credentials",
    )
    tree.add_argument(
        "--tree-exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave out, as in .gitignore; .airloxignore holds such lines too",
    )
    tree.add_argument(
        "--tree-include",
        action="append",
        default=[],
        metavar="PATTERN",
        help="send these files although they are ignored: a file, a folder, *.bin, **/*.bin",
    )
    tree.add_argument(
        "--tree-lfs",
        action="store_true",
        help="send the content of Git LFS files, not the pointers that git commits",
    )
    tree.add_argument(
        "--git-metadata",
        action="store_true",
        help="send commits, tags and index too, so that git describe, diff and status work there",
    )
    pulling.add_run_flags(tree)
    tree.add_argument(
        "--dry-run",
        action="store_true",
        help="send nothing: list what would go, what would not, and by which rule",
    )


def check(args: Namespace) -> None:
    """Raises CommandLineError for flags that say something of no tree."""
    lists = args.tree_allow or args.tree_exclude or args.tree_include
    flags = args.tree_lfs or args.git_metadata or args.cwd or args.fresh or args.dry_run
    if not args.tree and (lists or flags):
        raise options.CommandLineError(
            "--cwd, --fresh, --dry-run, --git-metadata and --tree-… go with --tree",
            hint="add --tree to send the working tree",
        )
    pulling.check_run(args)


def choices(args: Namespace) -> dict[str, Any]:
    """What `Session.run_*` takes for the tree."""
    if not args.tree:
        return {}
    chosen: dict[str, Any] = {
        "allow": args.tree_allow,
        "exclude": args.tree_exclude,
        "include": args.tree_include,
        "lfs": args.tree_lfs,
    }
    if args.git_metadata:
        chosen["git_metadata"] = True
    sent = {"tree": ".", "tree_options": chosen, "cwd": args.cwd, "fresh": args.fresh}
    return sent | pulling.choices(args)


def warn(upload: TreeUpload, voice: Voice) -> None:
    """Name what a person might take for sent."""
    if upload.pointers:
        voice.warn(f"Git LFS: only the pointers go of {_names(upload.pointers)} (--tree-lfs)")
    paths = [left.path for left in upload.left_out if not left.reason.startswith(_CHOSEN)]
    if paths:
        voice.warn(f"not sent: {_names(paths)} (see why: --dry-run)")
    if upload.is_shallow:
        voice.warn("git metadata: this clone is shallow; older commits and tags are not here to go")


def list_all(args: Namespace, voice: Voice) -> int:
    """`--dry-run`. Raises TreeError."""
    from airlox.tree.overview import overview
    from airlox.tree.scan import Choice

    lists = (tuple(args.tree_allow), tuple(args.tree_exclude), tuple(args.tree_include))
    choice = Choice(*lists, lfs=args.tree_lfs)
    found = overview(os.curdir, choice, git_metadata=args.git_metadata)
    if voice.json:
        voice.document(_overview_shape(found))
        return 0
    for file in found.goes:
        note = "  as a Git LFS pointer" if file.as_pointer else ""
        voice.say(f"goes   {_text(file.path)}  {size_text(file.size)}{note}")
    if (git := found.metadata) is not None:
        shallow = ", of a shallow clone" if git.is_shallow else ""
        counts = f"commits: {git.commits} (without old files), tags: {git.tags}"
        voice.say(f"goes   .git  {counts}{shallow}")
    for stays in found.stays:
        voice.say(f"stays  {_text(stays.path)}  {stays.reason}")
    voice.note(f"{len(found.goes)} files, {size_text(found.size)}; nothing was sent")
    return 0


def _overview_shape(found: Overview) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "root": found.root,
        "goes": [
            {"path": _text(f.path), "size": f.size, "pointer": f.as_pointer} for f in found.goes
        ],
        "stays": [{"path": _text(s.path), "reason": s.reason} for s in found.stays],
    }
    if found.metadata is not None:
        shape["git_metadata"] = found.metadata._asdict()
    return shape


def _names(paths: Any) -> str:
    named = ", ".join(_text(path) for path in paths[:_NAMED])
    return named if len(paths) <= _NAMED else f"{named} and {len(paths) - _NAMED} more"


def _text(path: bytes) -> str:
    return path_text(os.fsdecode(path))
