"""What lasts over calls: open sessions, jobs, allowed folders, and what the server was started
with."""

from __future__ import annotations

from dataclasses import dataclass, field

from airlox.mcp.allowed_dirs import AllowedDirs
from airlox.mcp.jobs import JobBook
from airlox.mcp.sessions import Sessions
from airlox.mcp.workers import Workers


@dataclass(frozen=True)
class DeskOptions:
    """What a server was started with.

    `display_name` is what others see instead of the client's own name; `invite` a link that is
    joined when a call first needs a session; without `allow_dirs` files are taken from the
    working directory; `state_dirs` are further folders of this machine's own that no tool may
    reach.
    """

    cache_dir: str
    display_name: str | None = None
    description: str | None = None
    relay: str | None = None
    invite: str | None = field(default=None, repr=False)
    allow_dirs: tuple[str, ...] = ()
    owner_invite_dir: str | None = None
    state_dirs: tuple[str, ...] = ()


class Desk:
    """Safe to share between threads; `close` ends everything. Raises UsageError when an allowed
    folder may not be one."""

    def __init__(self, options: DeskOptions) -> None:
        private = (options.cache_dir, *options.state_dirs)
        if options.owner_invite_dir is not None:
            private = (*private, options.owner_invite_dir)
        self.files = AllowedDirs.of(options.allow_dirs, private)
        self.sessions = Sessions(options)
        self.workers = Workers()
        self._followers = Workers()
        self.jobs = JobBook(self.workers, self._followers)

    def close(self, within_s: float = 0.0) -> None:
        """End every wait and disconnect from every session; sessions and jobs go on. What is on
        its way, such as the word that a job is cancelled, has `within_s`."""
        self.workers.join(within_s)
        self.sessions.disconnect()
        self.workers.join()
        self._followers.join()
