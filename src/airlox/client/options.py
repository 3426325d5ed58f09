"""The keywords that every way of running a job takes, written down once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from airlox.client.references import Refs
    from airlox.client.shown import Runner


class JobOptions(TypedDict, total=False):
    """Keywords of `Session.run_python`, `run_shell` and `run_file`; all may be left out."""

    files: Refs
    """References from `send_file`; ZIPs are unpacked into the job's folder."""
    runner: Runner | str | None
    """The one runner to send it to, by name, key or Runner; else any free one that fits."""
    labels: Iterable[str] | None
    """Labels the runner must have, all of them."""
    timeout: int | None
    """Seconds the job may run; by default the session's limit."""
    memory_mb: int | None
    """Memory the job may use; by default the session's limit."""
    tree: str | os.PathLike[str] | None
    """A folder of the working tree to send (full sessions)."""
    tree_options: Mapping[str, Any] | None
    """`allow`: names that look like credentials but may go; `exclude`: patterns to leave out;
    `include`: patterns of ignored files that go; `lfs`: send what Git LFS keeps; `git_metadata`:
    send what `git describe`, `git diff` and `git status` need there; `check_root`: is called with
    the top of the tree before anything is read, and returns which folder that is (device and
    number), or raises."""
    pull: Iterable[str] | None
    """Patterns of files that come back when the job changes them in the tree, as in `.gitignore`:
    see `Result.apply_changes` and `Result.patch` (sessions with the feature `pull`)."""
    pull_ignored: bool
    """With `pull`: new files too that git would ignore."""
    cwd: str | None
    """The folder within the tree to start in; by default that of `tree`."""
    fresh: bool
    """Start over with an empty workspace."""
    progress_file: str | None
    """A file of the job whose last line is shown while it runs."""
    require_layers: Iterable[str]
    """Sandbox layers without which the runner must refuse the job."""
    queue: bool | float | None
    """Wait for a free slot where there is none: True for a day at most, or a number of seconds
    (sessions with the feature `queue`)."""
    stay: bool
    """False stores on the relay first whatever the runner may lack, so this program may end."""
