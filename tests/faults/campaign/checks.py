"""What must hold after a campaign, whatever was done to it.

* Every acknowledged item is at everyone, once, and all have the same items in the same order.
* Nothing unacknowledged is there twice; nothing was announced that nobody tried to send.
* Every job has exactly one end with a cause: at most one signed result, which wins over the
  relay's word. No job ran twice, none that is not in the session.
* The relay's audit trail proves all of that offline, and contradicts itself nowhere.
* Nobody ended with a traceback, and nothing is left behind: process, mount, group or file.

Each check gives its findings, one line each; no finding is a proof.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from airlox import verify_audit
from airlox.client.jobs import Job
from airlox.client.result import Result
from airlox.protocol.item import Kind
from airlox.protocol.job import Result as ResultMeta
from airlox.protocol.payload import Text
from airlox.protocol.view import ItemStatus, Record
from support.groups import groups_of

Notes = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Session:
    """What the owner has in the end."""

    records: Sequence[Record]
    jobs: Mapping[str, Job]
    ends: Mapping[str, Result | None]

    @property
    def order(self) -> list[tuple[int, str]]:
        return [(r.seq, str(r.envelope.id)) for r in self.records if r.envelope is not None]


def check_items(session: Session, journals: Mapping[str, Notes]) -> Iterator[str]:
    """Acknowledged ones there once and in their order, others at most once."""
    by_text: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for record in session.records:
        if record.status is not ItemStatus.OK or record.item is None:
            yield f"item {record.seq} is {record.status.value} at the owner"
        elif isinstance(record.item.meta, Text):
            text = record.item.meta.text.split("\n")[0]
            by_text[text].append((record.seq, record.item.id))
    tried = set()
    for name, notes in journals.items():
        if not name.startswith("items"):
            continue
        tried |= {f"{name} {note['n']}" for note in notes if note["kind"] == "try"}
        last = -1
        for note in (note for note in notes if note["kind"] == "ack"):
            found = by_text[f"{name} {note['n']}"]
            if [item for _, item in found] != [note["id"]]:
                yield f"{name} {note['n']} was acknowledged and is there {len(found)} times"
            elif found[0][0] <= last:
                yield f"{name} {note['n']} is out of its order"
            else:
                last = found[0][0]
    for text, found in by_text.items():
        if len(found) > 1:
            yield f"{text!r} is there {len(found)} times"
        if found and text not in tried:
            yield f"{text!r} was never sent"


def check_views(session: Session, views: Mapping[str, Notes]) -> Iterator[str]:
    """Everybody's final view is the owner's."""
    for name, notes in views.items():
        if not notes or notes[-1]["kind"] != "told":
            yield f"{name} could not tell its view: {notes[-3:]}"
            continue
        view = [note for note in notes if note["kind"] == "view"]
        if [(note["seq"], note["id"]) for note in view] != session.order:
            yield f"{name} has other items or another order than the owner"
        lacking = Counter(note["status"] for note in view if note["status"] != "ok")
        if lacking:
            yield f"{name} lacks items: {dict(lacking)}"


def check_streams(session: Session, journals: Mapping[str, Notes]) -> Iterator[str]:
    """No stream gave an item twice, or one the session has not."""
    known = set(session.order)
    for name, notes in journals.items():
        seen: set[tuple[int, str]] = set()
        for note in notes:
            if note["kind"] in ("stream", "joined"):
                seen = set()
            elif note["kind"] == "seen":
                item = (note["seq"], note["id"])
                if item in seen:
                    yield f"{name} was given item {note['seq']} twice in one stream"
                if item not in known:
                    yield f"{name} was given item {note['seq']}, which the session has not"
                seen.add(item)


def check_jobs(session: Session, journals: Mapping[str, Notes]) -> Iterator[str]:
    results: Counter[str] = Counter()
    for record in session.records:
        if record.item is not None and isinstance(record.item.meta, ResultMeta):
            results[record.item.meta.job.id] += 1
    for job, end in session.ends.items():
        if end is None:
            yield f"job {job} has no end"
        elif results[job] > 1 or end.others:
            yield f"job {job} has {results[job]} signed results"
        elif results[job] == 1 and not end.signed:
            yield f"job {job}: the relay's word wins over the signed result: {end.reason}"
        elif end.signed and end.cause is None:
            yield f"job {job} ended without a cause"
        elif not end.signed and not end.reason:
            yield f"job {job} ended without a reason"
    for job in results.keys() - session.ends.keys():
        yield f"there is a result of job {job}, which is not there"
    for name, notes in journals.items():
        if name.startswith("jobs"):
            yield from _check_sender(session, name, notes)


def _check_sender(session: Session, name: str, notes: Notes) -> Iterator[str]:
    for note in notes:
        if note["kind"] == "ack" and note["id"] not in session.jobs:
            yield f"{name} {note['n']} was accepted and is no job"
        if note["kind"] == "not_taken" and note["id"] in session.jobs:
            end = session.ends[note["id"]]
            if end is None or end.signed or end.reason != note["code"]:
                yield f"{name} {note['n']} was refused and ended otherwise"
        if note["kind"] == "end":
            end = session.ends.get(note["id"])
            told = (note["status"], note["reason"])
            if end is None or (note["signed"] and told != (end.status, end.reason)):
                yield f"{name} {note['n']} was told {told}, and the session says otherwise"


def check_trail(session: Session, trail: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The trail holds, and has the items and results that the owner has."""
    report = verify_audit(trail)
    for problem in report.problems:
        yield f"line {problem.line} of the trail: {problem.text} [{problem.code}]"
    if report.items != len(session.order):
        yield f"the trail has {report.items} items, the owner {len(session.order)}"
    answered = {job.job for job in report.jobs if job.result is not None}
    for job in answered ^ {job for job, end in session.ends.items() if end and end.signed}:
        yield f"job {job} has a result in the trail alone, or at the owner alone"


def check_ledger(session: Session, ledger: Path) -> Iterator[str]:
    """Jobs of the process sandbox wrote themselves down: once, and only real ones."""
    known = {_name(job) for job in session.jobs.values()}
    for entry in ledger.iterdir():
        runs = len(entry.read_text().splitlines())
        if runs > 1:
            yield f"job {entry.name} ran {runs} times"
        if entry.name not in known:
            yield f"job {entry.name} ran and is not in the session"


def _name(job: Job) -> str:
    script = getattr(job.meta, "script", "")
    return str(script).splitlines()[0].removeprefix("# ")


def check_logs(logs: Path) -> Iterator[str]:
    for log in sorted(logs.iterdir()):
        text = log.read_text(errors="replace")
        if "Traceback (most recent call last)" in text:
            start = text.index("Traceback (most recent call last)")
            yield f"{log.name} said: {text[start : start + 3000]}"


def check_folders_of_runners(root: Path) -> Iterator[str]:
    """Nothing of ended jobs is kept."""
    for kept in ("run", "jobs", "started", "spool", "trash"):
        for path in root.glob(f"disks/box*/cache/runner/ax_*/*/{kept}/*"):
            below = [str(each.relative_to(path)) for each in islice(path.rglob("*"), 20)]
            yield f"left behind: {path.relative_to(root)} {below}"


def check_folders_of_relay(root: Path) -> Iterator[str]:
    """Nothing of the closed session is kept, and no temporary file of anybody."""
    for pattern in ("disks/relay/data/sessions/*", "disks/relay/data/tmp/*", "tmp/*"):
        for path in root.glob(pattern):
            yield f"left behind: {path.relative_to(root)}"


def check_mounts(root: Path, own: Sequence[Path]) -> Iterator[str]:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in mounts:
        if mount.startswith(str(root)) and Path(mount) not in own:
            yield f"left mounted: {mount}"


def check_groups(pids: Sequence[int]) -> Iterator[str]:
    for pid in pids:
        for group in groups_of(pid):
            yield f"left behind: {group}"


def figures(session: Session, journals: Mapping[str, Notes]) -> dict[str, Any]:
    kinds: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    warnings: Counter[str] = Counter()
    for name, notes in journals.items():
        for note in notes:
            kinds[f"{name.rstrip('0123456789')} {note['kind']}"] += 1
            if "code" in note:
                codes[note["code"]] += 1
            if note["kind"] == "warning":
                warnings[note["text"][:60]] += 1
    ends: Counter[str] = Counter()
    for end in session.ends.values():
        if end is not None:
            cause = end.cause.kind if end.cause is not None else end.reason
            ends[f"{'signed' if end.signed else 'relay'} {end.status}: {cause}"] += 1
    return {
        "items acknowledged": kinds["items ack"],
        "items tried": kinds["items try"],
        "items in the session": len(session.order),
        "jobs accepted": kinds["jobs ack"],
        "jobs in the session": len(session.jobs),
        "jobs not taken": kinds["jobs not_taken"],
        "results": sum(
            r.envelope is not None and r.envelope.header.kind is Kind.RESULT
            for r in session.records
        ),
        "ends": dict(ends.most_common()),
        "items streamed": kinds["read seen"],
        "of them late": sum(_late(notes) for notes in journals.values()),
        "errors survived": dict(codes.most_common()),
        "warnings": dict(warnings.most_common(8)),
    }


def _late(notes: Notes) -> int:
    """How many items a reader was given after later ones, since they could not be had before."""
    late, last = 0, -1
    for note in notes:
        if note["kind"] == "seen":
            late += note["seq"] < last
            last = max(last, note["seq"])
        elif note["kind"] in ("stream", "joined"):
            last = -1
    return late
