"""What a runner tells its operator: short notes that a face prints as text or JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that happened.

    `kind`: away, sandbox, joined, waiting, ready, shell_only, job_started, job_ended, job_lost,
    stopping, ended, restarting, warning. `facts` holds what a program may want of it.
    """

    kind: str
    text: str
    facts: Mapping[str, str] = field(default_factory=dict)


Say = Callable[[Note], None]
"""Called from any thread; must not block for long."""
