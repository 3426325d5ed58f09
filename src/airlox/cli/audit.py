"""`airlox audit`: check a session's audit trail offline, and say what it proves.

Needs no relay and no key. What signatures prove and what the relay only claims are told apart in
so many words; each thing that is wrong comes with its line and item.
"""

from __future__ import annotations

import argparse
import sys

from airlox.cli import options
from airlox.cli.main import EXIT_NOT_VERIFIED
from airlox.cli.output import path_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from typing import BinaryIO

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.protocol.audit import AuditedPerson, AuditReport

_KINDS = {
    "text": "texts",
    "file": "files",
    "job": "jobs",
    "result": "results",
    "event": "decisions and cancels",
    "runner_info": "descriptions of what it offers",
}
_ONE = {
    "texts": "text",
    "files": "file",
    "jobs": "job",
    "results": "result",
    "decisions and cancels": "decision or cancel",
    "descriptions of what it offers": "description of what it offers",
}
_CLAIMS = {
    "ack": "who stored which item",
    "approved": "runners it let have jobs",
    "rejected": "runners it turned away",
    "revoked": "roles it cut off",
    "left": "who left",
    "assigned": "jobs it gave out",
    "claimed": "jobs that began",
    "failed": "jobs it ended for a reason of its own",
    "cancel": "cancels it was asked for",
    "evicted": "blobs it let go of",
    "want": "blobs it was asked for again",
    "reseeded": "blobs it got back",
    "forgotten": "times it forgot finished jobs",
}


def add_arguments(parser: Parser, command: str) -> bool:
    """Build the parser; False, as each action has its own output flags."""
    actions = options.Actions(parser)
    verify = actions.add(
        "verify",
        "Check the audit trail of a session, offline",
        details="The trail is what airlox session audit prints, or, with --extract, a file of a "
        "relay's --audit-dir. No relay is asked and no key is needed; with a link, what the owner "
        "decided on runners is read too, where the trail has it. Ends with "
        f"{EXIT_NOT_VERIFIED} when something is wrong with the trail.",
        example="airlox audit verify trail.jsonl",
    )
    verify.add_argument("file", metavar="FILE", help="the trail; - reads standard input")
    verify.add_argument(
        "--extract",
        action="store_true",
        help="take what a relay wrote down before it forgot jobs, which tells of these alone",
    )
    group = verify.add_argument_group("which session it must be of (else it says which it is)")
    group.add_argument("--session-id", type=_session_id, metavar="ID", help="its id, ax_…")
    group.add_argument(
        "--invite",
        metavar="LINK",
        help="a link of it; other users of this machine can see it in ps, so rather use "
        "--invite-file",
    )
    group.add_argument("--invite-file", metavar="FILE", help="read the link from a file")
    return False


def _session_id(text: str) -> str:
    from airlox.errors import EncodingError
    from airlox.protocol.encoding import parse_session_id

    try:
        return parse_session_id(text)
    except EncodingError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def run(args: Namespace, voice: Voice) -> int:
    from airlox.protocol.audit import verify_audit

    invite = options.read_invite(args, {}) if args.invite or args.invite_file else None
    wanted = {"session_id": args.session_id, "invite": invite, "extract": args.extract}
    if args.file == "-":
        report = verify_audit(_lines(sys.stdin.buffer), **wanted)
    else:
        with open(args.file, "rb") as trail:
            report = verify_audit(_lines(trail), **wanted)
    if voice.json:
        voice.document(report_shape(report))
    else:
        for line in report_lines(report, args.file):
            voice.say(line)
    return 0 if report.verified else EXIT_NOT_VERIFIED


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a file. Of one that is too long to be checked there is only the start."""
    from airlox.protocol.limits import TRAIL_LINE_BYTES

    most = TRAIL_LINE_BYTES + 1
    while line := stream.readline(most):
        yield line
        while len(line) == most and not line.endswith(b"\n"):
            line = stream.readline(most)


# -- the report -------------------------------------------------------------------------------


def report_shape(report: AuditReport) -> dict[str, object]:
    """The report as `--json` prints it: the fields of `AuditReport`, and `verified`."""
    import msgspec

    shape: dict[str, object] = msgspec.to_builtins(report)
    return shape | {"verified": report.verified}


def report_lines(report: AuditReport, file: str) -> Iterator[str]:
    """The report in plain words."""
    yield _verdict(report, file)
    if report.session_id is not None:
        yield "\nPROVED by signatures" + ("" if report.verified else ", of what is not wrong below")
        yield from (f"  {line}" for line in _proved(report))
        yield "\nCLAIMED by the relay alone"
        yield from (f"  {line}" for line in _claimed(report))
    if report.problems:
        yield "\nWRONG"
        for problem in report.problems:
            place = f"line {problem.line}" if problem.line else "the trail"
            item = f", item {problem.item}" if problem.item else ""
            yield f"  {place}{item}: {problem.text} [{problem.code}]"
        if report.more_problems:
            yield f"  … and {report.more_problems} more"


def _verdict(report: AuditReport, file: str) -> str:
    name = "standard input" if file == "-" else path_text(file)
    what = "" if report.extract_of is None else " as an extract"
    if report.verified:
        return f"VERIFIED{what}: nothing is wrong in the {_count(report.lines, 'line')} of {name}"
    found = _count(len(report.problems) + report.more_problems, "problem")
    return f"NOT VERIFIED: {found} in the {_count(report.lines, 'line')} of {name}"


def _proved(report: AuditReport) -> Iterator[str]:
    yield f"session: {report.session_id}, its terms signed with the owner's key" + (
        "; it is the one you named"
        if report.is_expected
        else "; compare the id with that in your link"
    )
    yield f"who joined, each with a certificate of the role ({len(report.people)}); names are"
    yield "their own word, a key is told by its fingerprint:"
    yield from (f"  {_person(person)}" for person in report.people)
    yield f"items: {report.items}, each signed by its author, bytes included, as the role may"
    if report.jobs:
        answered = sum(job.result is not None for job in report.jobs)
        yield (
            f"jobs: {len(report.jobs)}; {answered} with one result, signed by a runner over "
            "exactly that job"
        )
        if cancelled := sum(bool(job.cancelled_by) for job in report.jobs):
            yield f"cancels: {_count(cancelled, 'job')}, signed by the owner or the job's author"
    yield from _order(report)
    names = {person.participant_pub: person.display_name for person in report.people}
    for decision in report.decisions:
        about = names.get(decision.about, decision.about)  # type: ignore[call-overload]
        yield f"the owner {decision.what} {about} (line {decision.line})"
    for epoch in report.epochs:
        who = "everybody with the role" if epoch.cut_off is None else names.get(epoch.cut_off)
        yield (
            f"the owner cut off {who or epoch.cut_off} ({epoch.role}) in epoch {epoch.number} "
            f"(line {epoch.line}); items after it say they are sealed under its key"
        )


def _person(person: AuditedPerson) -> str:
    items = ", ".join(_kinds(count, _KINDS[kind]) for kind, count in person.items.items())
    return f"{person.role:<8}  {person.fingerprint}  {person.display_name}: {items or 'no items'}"


def _order(report: AuditReport) -> Iterator[str]:
    if report.linked:
        yield (
            f"order: {report.linked} of {_count(report.items, 'item')} name their author's item "
            "before, which is here unchanged and comes first"
            + (", under the number its author was told" if report.is_numbered else "")
        )
    else:
        yield "order: nothing, as no item names its author's item before"


def _claimed(report: AuditReport) -> Iterator[str]:
    yield "when each line was written; the dates in items are their authors' word"
    yield "in which order items came that do not name one another"
    yield "that the newest items of each author are here, and all revocations"
    yield "that what those who were cut off posted came before that"
    if report.unchained:
        yield (
            "that no item of clients that do not chain is missing or moved "
            f"(here: {report.unchained})"
        )
    if report.extract_of is not None:
        yield (
            f"that this is all there was to {_count(report.extract_of, 'job')}: the trail is an "
            "extract, written before the relay forgot"
        )
    if report.maybe_forgotten:
        yield (
            f"that it forgot, with finished jobs, {_count(report.maybe_forgotten, 'item')} that "
            "others name"
        )
    sealed = sum(person.items.get("event", 0) for person in report.people) - len(report.decisions)
    if sealed > 0:
        yield f"what signed decisions and cancels say: it is sealed ({sealed})"
    for word, meaning in _CLAIMS.items():
        if count := report.claims.get(word):
            yield f"{meaning} ({count})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _kinds(number: int, what: str) -> str:
    return f"{number} {_ONE[what] if number == 1 else what}"
