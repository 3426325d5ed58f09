"""The topics of `airlox help`, each a text file beside this one; man pages are made of them too.

The first line is the summary. A line that begins with spaces is shown as it is, others are
paragraphs; a heading is a line of capitals. The list is in the order in which it is shown.
"""

from __future__ import annotations

TOPICS = (
    "environment",
    "exit-codes",
    "files",
    "invites",
    "jobs",
    "json",
    "machines",
    "messages",
    "sandbox",
    "trees",
)


def read(name: str) -> tuple[str, str]:
    """The summary of a topic and its text."""
    from importlib.resources import files

    text = files(__package__).joinpath(f"{name}.txt").read_text("utf-8")
    summary, _, body = text.partition("\n")
    return summary, body.strip("\n") + "\n"
