"""What agents are told. A prompt names items by their ids and never holds what others wrote."""

from __future__ import annotations

from pathlib import Path

from airlox.agents.ledger import Batch

_HERE = Path(__file__).parent


def worker_prompt() -> str:
    """For an agent that does the work posted in a session."""
    return (_HERE / "prompt.md").read_text("utf-8")


def woken_prompt(batch: Batch, session_id: str) -> str:
    """For an agent that is started because of a batch."""
    count = "one item is" if len(batch.items) == 1 else f"{len(batch.items)} items are"
    return (
        (_HERE / "woken.md")
        .read_text("utf-8")
        .format(
            count=count,
            session=session_id,
            items="\n".join(f"- {item}" for item in batch.items),
            batch=batch.id,
            start=batch.starts,
        )
    )
