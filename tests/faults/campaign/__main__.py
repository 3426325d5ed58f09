"""`python -m faults.campaign --seconds 60 --seed 7`: figures on standard output, exit code 1 when
anything that must hold does not."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from airlox import Session
from airlox.errors import AirloxError

from . import checks, surroundings
from .director import Director, Size, Stage
from .people import read_journal
from .processes import Process, leftovers, reap, take_in_orphans

VIEW_S = 100.0
GONE_S = 60.0
FINDINGS_SHOWN = 40


def main() -> int:
    args = _parser().parse_args()
    inside = surroundings.enter()
    take_in_orphans()
    size = Size(args.seed, args.seconds, args.items, args.jobs, args.people)
    root = Path(tempfile.mkdtemp(prefix="airlox-campaign-"))
    try:
        figures, wrong = campaign(root, size, inside=inside)
    finally:
        if args.keep:
            print(f"kept: {root}", file=sys.stderr)
        else:
            shutil.rmtree(root, ignore_errors=True)
    print(json.dumps(figures, indent=2))
    for finding in wrong[:FINDINGS_SHOWN]:
        print(f"WRONG: {finding}")
    print(f"{len(wrong)} findings" if wrong else "everything holds")
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="faults.campaign", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long faults are made [60]")
    parser.add_argument("--seed", type=int, default=1, help="what the faults are drawn from [1]")
    parser.add_argument("--items", type=int, default=10_000, help="most items to send [10000]")
    parser.add_argument("--jobs", type=int, default=2_000, help="most jobs to send [2000]")
    parser.add_argument("--people", type=int, default=4, help="senders of each kind [4]")
    parser.add_argument("--keep", action="store_true", help="keep journals and logs")
    return parser


def campaign(root: Path, size: Size, *, inside: bool) -> tuple[dict[str, Any], list[str]]:
    """Figures, and what was found wrong."""
    began = time.monotonic()
    took: dict[str, float] = {}

    def note(phase: str) -> None:
        took[phase] = round(time.monotonic() - began - sum(took.values()), 1)

    stage = Stage(root, size, inside=inside)
    try:
        director = Director(stage)
        with director.open() as owner:
            note("open")
            director.play()
            note("play")
            director.rest(owner)
            note("rest")
            wrong, figures = _look(stage, owner)
            note("look")
            wrong += _end(stage, owner)
        wrong += _look_for_leftovers(stage)
        note("end")
    finally:
        stage.close()
    lacking = [] if inside else ["no root, ip, unshare or nsenter: no cut, no full disk"]
    about = {
        "seed": size.seed,
        "seconds": took,
        "faults": dict(director.faults.most_common()),
        "not tried": lacking,
        "ended by themselves": {
            a.process.name: a.process.by_itself for a in stage.actors if any(a.process.by_itself)
        },
    }
    return about | figures, wrong


def _look(stage: Stage, owner: Session) -> tuple[list[str], dict[str, Any]]:
    tellers = _ask_everybody(stage)
    owner.items()
    views = {each.name: _final_view(stage, each) for each in tellers}
    journals = {
        actor.process.name: read_journal(stage.journal(actor.process.name))
        for actor in stage.people
    }
    jobs = {job.id: job for job in owner.jobs()}
    ends = {job.id: job.result() for job in jobs.values()}
    session = checks.Session(owner.records(), jobs, ends)
    wrong = [
        *checks.check_items(session, journals),
        *checks.check_views(session, views),
        *checks.check_streams(session, journals),
        *checks.check_jobs(session, journals),
        *checks.check_trail(session, owner.audit()),
        *checks.check_ledger(session, stage.root / "ledger"),
    ]
    return wrong, checks.figures(session, journals)


def _ask_everybody(stage: Stage) -> list[Process]:
    """Processes that write down what each person has in the end."""
    tellers = []
    for actor in stage.people:
        actor.process.kill()
        tellers.append(stage.final_view(actor))
        tellers[-1].start()
    return tellers


def _final_view(stage: Stage, teller: Process) -> checks.Notes:
    teller.wait(VIEW_S)
    return read_journal(stage.journal(f"{teller.name}.final"))


def _end(stage: Stage, owner: Session) -> list[str]:
    """Stop everything as an operator would."""
    wrong = []
    for actor in stage.runners:
        code = actor.process.stop()
        if code != 0:
            wrong.append(f"{actor.process.name} was stopped and ended with {code}")
    wrong += checks.check_folders_of_runners(stage.root)
    try:
        owner.close()
    except AirloxError as error:
        wrong.append(f"the session could not be closed: {error}")
    code = stage.relay.process.stop()
    if code != 0:
        wrong.append(f"the relay was stopped and ended with {code}")
    return wrong


def _look_for_leftovers(stage: Stage) -> list[str]:
    holders = stage.network.pids if stage.network is not None else set()
    until = time.monotonic() + GONE_S
    while True:
        reap()
        left = [each for each in leftovers() if int(each.split()[0]) not in holders]
        if not left or time.monotonic() > until:
            break
        time.sleep(0.1)
    pids = [pid for actor in stage.runners for pid in actor.process.pids]
    return [
        *(f"left running: {each}" for each in islice(left, 10)),
        *_others(stage, pids),
    ]


def _others(stage: Stage, pids: list[int]) -> Iterator[str]:
    yield from checks.check_logs(stage.root / "logs")
    yield from checks.check_folders_of_relay(stage.root)
    yield from checks.check_mounts(stage.root, [disk.mount for disk in stage.disks])
    yield from checks.check_groups(pids)


if __name__ == "__main__":
    sys.exit(main())
