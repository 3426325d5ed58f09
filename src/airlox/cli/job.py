"""`airlox result`, `airlox cancel`, `airlox job ls`: jobs that were sent before."""

from __future__ import annotations

from airlox.cli import opening, options, pulling, waiting
from airlox.cli.main import EXIT_NO_RESULT
from airlox.errors import AirloxError, WaitTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from airlox.cli.options import Parser
    from airlox.cli.output import Voice
    from airlox.client.session import Session

EXAMPLES = {
    "result": "airlox result --wait 2h -- 7QkZ0vQ3T1mJx2c4b6d8eg",
    "cancel": "airlox cancel --on gpu-box -- 7QkZ0vQ3T1mJx2c4b6d8eg",
}


def add_arguments(parser: Parser, command: str) -> bool:
    if command == "job":
        leaf = options.Actions(parser).add(
            "ls", "List the jobs of a session", example="airlox job ls --on gpu-box"
        )
        _add_where(leaf)
        return False
    parser.add_argument(
        "job", metavar="JOB", help="its id; put -- before one that starts with a dash"
    )
    if command == "result":
        parser.add_argument(
            "--wait",
            type=options.duration,
            default=0,
            metavar="TIME",
            help="how long to wait for the end [0]; without an end the exit code is 75",
        )
        parser.add_argument("--out-dir", metavar="DIR", help="save the job's files there")
        pulling.add_result_flags(parser)
    _add_where(parser)
    return True


def _add_where(parser: Parser) -> None:
    parser.add_argument("--on", metavar="MACHINE", help="the machine the job was sent to")
    options.add_invite_flags(parser)


def run(args: Namespace, voice: Voice) -> int:
    with opening.open_place(args, voice) as session:
        match args.verb:
            case "result":
                return _result(args, session, voice)
            case "cancel":
                return _cancel(args, session, voice)
            case _:
                return _list(session, voice)


def _result(args: Namespace, session: Session, voice: Voice) -> int:
    from airlox.cli import ending

    pulling.check_patch(args.patch, json=args.json)
    job = session.job(args.job)
    result = job.result()
    if result is None and args.wait:
        try:
            result = job.wait(args.wait)
        except WaitTimeout as late:
            if late.code == "closed":
                raise
    if result is None:
        state = job.state()
        if voice.json:
            place = {"place": state.place, "reason": state.reason} if state.waits else {}
            voice.document({"job": job.id, "status": state.state, **place})
        else:
            said = waiting.text(state) if state.waits else state.state
            voice.warn(f"job {job.id} has no result yet: {said}")
        return EXIT_NO_RESULT
    saved = ending.save_files(result, args.out_dir)
    if not voice.json:
        ending.print_output(result, voice)
    brought = pulling.bring(result, voice, pull=args.pull, patch=args.patch)
    ending.tell(result, saved, voice, brought.shape)
    return brought.exit_code(ending.exit_code(result))


def _cancel(args: Namespace, session: Session, voice: Voice) -> int:
    job = session.job(args.job)
    if job.result() is not None:
        raise AirloxError(
            f"job {job.id} has ended", code="job_ended", hint="airlox result shows how"
        )
    job.cancel()
    if voice.json:
        voice.document({"cancelled": job.id})
    else:
        voice.say(f"cancelled {job.id}")
    return 0


def _list(session: Session, voice: Voice) -> int:
    from airlox.cli import shapes

    names = {runner.participant_pub: runner.name for runner in session.runners()}
    jobs = [shapes.job(job, names) for job in session.jobs()]
    if voice.json:
        voice.document({"jobs": jobs})
        return 0
    rows = [
        [
            job["job"],
            job["runner_name"] or "",
            _status(job),
            job["what"],
        ]
        for job in jobs
    ]
    voice.table(("JOB", "RUNNER", "STATUS", "WHAT"), rows)
    return 0


def _status(job: dict[str, Any]) -> str:
    """How a job stands, in a word or two: `exit 0`, `running`, `waits: place 2, busy`."""
    if "place" in job:
        place = "" if job["place"] is None else f"place {job['place']}, "
        return f"waits: {place}{str(job['reason'] or 'queued').replace('_', ' ')}"
    return str(job["status"]) if job["exit_code"] is None else f"exit {job['exit_code']}"
