"""`airlox runner join`: be a runner until the session or the operator ends it."""

from __future__ import annotations

from airlox.cli import options, runner_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from airlox.cli.output import Voice
    from airlox.runner.notes import Note


def add_arguments(actions: options.Actions) -> None:
    parser = actions.add(
        "join",
        "Run the jobs of a session on this machine until the session ends",
        details="Takes a runner's link, or a transfer code for one. Ctrl-C ends it: a job that "
        "runs is cancelled and reported. One that has joined before waits for a relay that is "
        "away; a new one says so and ends.",
        example="airlox runner join --name gpu-box --labels gpu,a100 --sandbox local",
    )
    runner_flags.add_flags(parser)


def run(args: Namespace, voice: Voice) -> int:
    from airlox.runner.worker import run_runner

    chosen = runner_flags.runner_options(args)
    invite = runner_flags.take_invite(args, voice, chosen)
    return run_runner(chosen, invite, lambda note: say(note, voice))


def say(note: Note, voice: Voice) -> None:
    """Pass on what the runner tells; called from any thread."""
    if voice.json:
        voice.json_line({"kind": note.kind, "text": note.text, **note.facts})
    elif note.kind == "warning":
        voice.warn(note.text)
    else:
        voice.note(note.text)
