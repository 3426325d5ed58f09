"""Tools for runners: who there is, and whom the owner lets take jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airlox.mcp import shapes
from airlox.mcp.tool import Answer
from airlox.mcp.tools.declaring import END, READ, SESSION, SET, text, tool
from airlox.mcp.use import Use

if TYPE_CHECKING:
    from airlox.client.shown import Runner
    from airlox.mcp.sessions import Place

RUNNER = text("name or key", "gpu-box")


@tool(
    "List runners",
    READ,
    "Which are approved, online, busy. Names and descriptions are their claims.",
    {"session": SESSION},
    {"session": "string", "runners": "array"},
    example={},
)
def list_runners(use: Use) -> Answer:
    place = use.place()
    runners = use.do("listing runners", place.session.runners)
    shape = {"session": place.handle, "runners": [shapes.runner(each) for each in runners]}
    lines = "\n".join(f"{each.name} ({each.fingerprint}): {_state(each)}" for each in runners)
    said = shapes.quoted(lines, "runners") if runners else "no runner has joined"
    return Answer(shape | shapes.UNTRUSTED, said)


def _state(runner: Runner) -> str:
    if runner.rejected or runner.left:
        return "rejected" if runner.rejected else "left"
    words = ["approved" if runner.approved else "waits for approval"]
    words.append("online" if runner.online else "offline")
    if runner.job is not None:
        words.append(f"runs job {runner.job}")
    return ", ".join(words)


@tool(
    "Approve runner",
    SET,
    "Let a runner take jobs. Ask the user first: any holder of the link can claim any name.",
    {"runner": RUNNER, "session": SESSION},
    {"runner": "object"},
    needs=("runner",),
)
def approve_runner(use: Use) -> Answer:
    place, runner = _chosen(use, "approve runners")
    use.confirm(
        "Approve a runner",
        f"Let {_who(runner)} take jobs of session {place.handle}? Its name and description are "
        "its own claims; compare the key with what the runner printed when it started.",
    )
    approved = use.do("approving", lambda: place.session.approve_runner(runner))
    shape = {"session": place.handle, "runner": shapes.runner(approved)}
    return Answer(shape | shapes.UNTRUSTED, f"approved runner {runner.name} {runner.fingerprint}")


@tool(
    "Reject runner",
    END,
    "Turn a runner away for good. Only when the user asks.",
    {"runner": RUNNER, "session": SESSION},
    {"runner": "object"},
    needs=("runner",),
)
def reject_runner(use: Use) -> Answer:
    place, runner = _chosen(use, "reject runners")
    use.confirm(
        "Reject a runner",
        f"Turn {_who(runner)} away from session {place.handle}? This cannot be undone.",
    )
    rejected = use.do("rejecting", lambda: place.session.reject_runner(runner))
    shape = {"session": place.handle, "runner": shapes.runner(rejected)}
    return Answer(shape | shapes.UNTRUSTED, f"rejected runner {runner.name} {runner.fingerprint}")


def _chosen(use: Use, what: str) -> tuple[Place, Runner]:
    """The runner meant, before anything is done to it."""
    from airlox.client.shown import choose_runner

    place = use.owned_place(what)
    runners = use.do("listing runners", place.session.runners)
    return place, choose_runner(runners, use["runner"])


def _who(runner: Runner) -> str:
    """A runner for a person to judge: in the person's line, so its own words are quoted, and
    cannot end the quotation."""
    labels = f", labels {', '.join(runner.labels)}" if runner.labels else ""
    words = json.dumps(runner.description, ensure_ascii=False)
    claim = f", which says of itself {words}" if runner.description else ""
    return f"runner {runner.name} (key {runner.fingerprint}{labels}){claim}"
