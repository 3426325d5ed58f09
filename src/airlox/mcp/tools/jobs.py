"""Tools for jobs: run a command or Python on another machine, and take what came of it."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any, Final

from airlox import safefs
from airlox.errors import UsageError
from airlox.mcp import shapes
from airlox.mcp.jobs import Watch, wait_ended, wait_sent
from airlox.mcp.tool import Answer
from airlox.mcp.tools.declaring import (
    ADD,
    RUN,
    SESSION,
    flag,
    number,
    text,
    tool,
    wait,
    words,
)
from airlox.mcp.use import Use, find_item

if TYPE_CHECKING:
    from airlox.client.jobs import Job, Result
    from airlox.mcp.sessions import Place

TEXT_FILE_BYTES: Final = 16 * 1024
TEXTS_BYTES: Final = 48 * 1024

_STATES: Final = frozenset({"queued", "assigned", "running", "finished", "failed"})
"""What a relay may say of a job that goes on."""

FILES = words("file item ids; ZIPs unpacked")
LABELS = words("any runner with all these")
RUNNER = text("name or key")
MEMORY = number("limit")
TIMEOUT = number("limit")
GIVES = {
    "session": "string",
    "job": "string",
    "status": "string",
    "exit_code": "integer?",
    "stdout": "string",
    "stderr": "string",
}


@tool(
    "Run a command",
    RUN,
    "Run a command or shell script sandboxed on a runner, with tree_dir in a copy of that "
    "checkout. Gives the signed result or, after wait_s, a job id for get_result.",
    {
        "command": words("words, or give script", ["pytest", "-x"]),
        "script": text("shell script"),
        "machine": text("NAME[/label] of airlox machine add"),
        "session": SESSION,
        "runner": RUNNER,
        "labels": LABELS,
        "tree_dir": text("allowed folder; git-ignored files stay", "."),
        "tree_exclude": words("globs to leave out"),
        "files": FILES,
        "fresh": flag("empty workspace"),
        "timeout_s": TIMEOUT,
        "memory_mb": MEMORY,
        "wait_s": wait(),
    },
    GIVES,
    slow=True,
)
def run(use: Use) -> Answer:
    if bool(use["command"]) == bool(use["script"]):
        raise UsageError(
            "a job is one command or one script", hint="give `command`, or `script`, and not both"
        )
    if use["machine"] is not None and use["session"] is not None:
        raise UsageError("a machine has its own session", hint="leave `session` out")

    def send() -> tuple[Place, Job]:
        place, target = _where(use)
        job = place.session.run_shell(
            use["command"] or use["script"], **target, **_choices(use, place), **_tree(use)
        )
        if use["machine"] is not None:
            use.desk.sessions.remember_job(use["machine"].partition("/")[0], job.id)
        return place, job

    return _run(use, send)


@tool(
    "Run Python",
    RUN,
    "Run Python on a runner, sandboxed; result as in `run`. Files in $AIRLOX_OUT come back: small "
    "texts as out_text, all with get_result's save_dir.",
    {
        "code": text("source", "print(1)"),
        "filename": text("says what it does"),
        "requirements": words("allowed packages it needs"),
        "files": FILES,
        "session": SESSION,
        "runner": RUNNER,
        "labels": LABELS,
        "timeout_s": TIMEOUT,
        "memory_mb": MEMORY,
        "progress_file": text("log to report from"),
        "wait_s": wait(),
    },
    GIVES,
    needs=("code",),
    slow=True,
)
def run_python(use: Use) -> Answer:
    def send() -> tuple[Place, Job]:
        place, target = _where(use)
        job = place.session.run_python(
            use["code"],
            filename=use["filename"] or "main.py",
            requirements=use["requirements"] or (),
            progress_file=use["progress_file"],
            **target,
            **_choices(use, place),
        )
        return place, job

    return _run(use, send)


@tool(
    "Get result",
    ADD,
    "Wait for a job's signed result; save_dir saves its out files, out.zip unpacked.",
    {
        "job": text("id", "7QkZ0vQ3"),
        "save_dir": text("allowed folder", "out"),
        "session": SESSION,
        "wait_s": wait(),
    },
    GIVES,
    needs=("job",),
    slow=True,
)
def get_result(use: Use) -> Answer:
    return _answer(use, _find(use))


# -- sending ----------------------------------------------------------------------------------


def _run(use: Use, send: Any) -> Answer:
    """Have a job sent, once, and give its result or what to go on with."""
    request = json.dumps(use.arguments, sort_keys=True)
    watch = use.desk.jobs.send(use.caller.idempotency_key, request, send)
    use.caller.on_cancel(lambda: use.desk.jobs.stop(watch))
    return _answer(use, watch)


def _where(use: Use) -> tuple[Place, dict[str, Any]]:
    """The session of a job and whom in it the job is for. Talks to a relay."""
    sessions, name = use.desk.sessions, use.caller.client_name
    labels = use["labels"] or ()
    if use["machine"] is None:
        place = sessions.get(use["session"], name)
        return place, {"runner": use["runner"], "labels": labels or None}
    machine_name, _, label = use["machine"].partition("/")
    place, machine = sessions.of_machine(machine_name, name)
    runner, wanted = machine.target(label, use["runner"], labels)
    return place, {"runner": runner, "labels": wanted or None}


def _choices(use: Use, place: Place) -> dict[str, Any]:
    return {
        "files": [find_item(place.session, item) for item in use["files"] or ()],
        "timeout": use["timeout_s"],
        "memory_mb": use["memory_mb"],
    }


def _tree(use: Use) -> dict[str, Any]:
    """What of a folder goes along; the folder was opened, so it is one that may."""
    fresh = {"fresh": True} if use["fresh"] else {}
    if use["tree_dir"] is None:
        if use["tree_exclude"]:
            raise UsageError("tree_exclude is for a tree", hint="give `tree_dir` too")
        return fresh
    files = use.desk.files
    with files.folder(use["tree_dir"]) as folder:
        options = {"exclude": use["tree_exclude"] or (), "check_root": files.check_tree_root}
        return {"tree": folder.path, "tree_options": options, **fresh}


# -- answering --------------------------------------------------------------------------------


def _find(use: Use) -> Watch:
    """The watch of the job a call names; a new one where none goes on. Raises UsageError."""
    jobs, name = use.desk.jobs, use["job"]
    watch = jobs.find(name)
    if watch is not None:
        return watch
    handle = jobs.handle(name)
    if handle is None:
        place = use.place()
        handle = place, use.do("looking for the job", lambda: place.session.job(name))
    return jobs.follow(*handle)


def _answer(use: Use, watch: Watch) -> Answer:
    """The result of a job, or what to go on with when the call's time is over."""
    sent = wait_sent(watch, use.limit_s, use.caller)
    if sent is None:
        return _not_sent(watch)
    place, job = sent
    result = wait_ended(watch, use.left_s, use.caller, use.tell)
    if result is None:
        return _unfinished(place, job, watch)
    if not result.signed:  # a signed one that came later wins
        result = use.do("looking for a signed result", job.result) or result
    answer = _finished(use, place, result)
    if job.upload is not None:
        answer.structured["tree_sent"] = shapes.tree_sent(job.upload)
    return answer


def _not_sent(watch: Watch) -> Answer:
    shape = {"job": watch.ticket, "status": "sending"}
    return Answer(shape, f"the job is still being sent: get_result with job {watch.ticket} goes on")


def _unfinished(place: Place, job: Job, watch: Watch) -> Answer:
    status = watch.status
    shape: dict[str, Any] = {
        "session": place.handle,
        "job": job.id,
        "status": status.state if status is not None and status.state in _STATES else "assigned",
    }
    if status is not None and status.waits:
        shape |= {"place": status.place, "reason": status.reason, **shapes.UNTRUSTED}
    output = watch.tail.text
    said = f"job {job.id} is {shape['status']}: get_result goes on"
    if output:
        shape |= {"output_so_far": output, **shapes.UNTRUSTED}
        said += "\n" + shapes.quoted(shapes.shortened(output, shapes.TEXT_CHARS, 0), "the job")
    return Answer(shape, said)


def _finished(use: Use, place: Place, result: Result) -> Answer:
    shape = {"session": place.handle, **shapes.result(result)}
    said = shapes.result_text(result)
    if result.out_files:
        shape["out_text"] = use.do(
            "reading the out files",
            lambda: result.texts(file_bytes=TEXT_FILE_BYTES, total_bytes=TEXTS_BYTES),
        )
    if use["save_dir"] is not None:
        shape["saved"] = use.do("saving", lambda: _save(use, result))
        said += f"\nsaved {len(shape['saved'])} files in {use['save_dir']}"
    return Answer(shape, said)


def _save(use: Use, result: Result) -> list[str]:
    """Save what came back, and output that is too long for an answer; their paths."""
    head = f"airlox-{secrets.token_hex(4)}"
    with use.desk.files.folder(use["save_dir"], make=True) as folder:
        saved = result.save_at(folder.fd, f"{head}-out")
        for name, output in (("stdout", result.stdout), ("stderr", result.stderr)):
            if len(output) > shapes.OUTPUT_CHARS:
                data = output.encode()
                saved.append(safefs.save_new_at(folder.fd, f"{head}-{name}.txt", data))
        return [f"{folder.path}/{path}" for path in saved]
