"""`airlox runner serve`: `join`, started again after failures; for services and long absences."""

from __future__ import annotations

from airlox.cli import join, options, runner_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from airlox.cli.output import Voice
    from airlox.errors import AirloxError
    from airlox.protocol.invite import Invite
    from airlox.runner.notes import Note
    from airlox.runner.options import RunnerOptions
    from airlox.runner.serve import LifeEnd


def add_arguments(actions: options.Actions) -> None:
    parser = actions.add(
        "serve",
        "Like join, and start again after failures",
        details="Waits for a relay that is away, also at the first start. Gives up when it fails "
        "again and again, and at once when starting again cannot help. TERM and Ctrl-C end it: a "
        "job that runs is cancelled and reported.",
        example="airlox runner serve --name gpu-box --invite-file ~/.config/airlox/gpu-box.invite",
    )
    runner_flags.add_flags(parser)


def run(args: Namespace, voice: Voice) -> int:
    from airlox.runner.confinement import claim_groups
    from airlox.runner.serve import serve

    chosen = runner_flags.runner_options(args)
    invite = runner_flags.take_invite(args, voice, chosen)
    claim_groups(chosen)
    return serve(lambda: _live(chosen, invite, voice), lambda note: join.say(note, voice))


def _live(chosen: RunnerOptions, invite: Invite, voice: Voice) -> LifeEnd:
    """One life of the runner, in a process of its own."""
    from airlox.cli.main import EXIT_ERROR, exit_code
    from airlox.errors import AirloxError
    from airlox.runner.serve import End, LifeEnd
    from airlox.runner.worker import exit_code_of, run_runner

    last_words: list[str] = []

    def say(note: Note) -> None:
        if note.kind == "ended":
            last_words.append(note.text)
        join.say(note, voice)

    try:
        code = run_runner(chosen, invite, say)
    except AirloxError as error:
        end = End.PASSING if _may_pass(error) else End.FINAL
        return LifeEnd(end, error.message, error.code, error.hint, exit_code_of(error))
    except BaseException as error:
        exit_code(error, voice)
        return LifeEnd(End.FAILED, f"the runner failed: {type(error).__name__}", "bug")
    if code == 0:
        return LifeEnd(End.DONE)
    # whether it can go on is found out by the next start, which looks at everything anew
    return LifeEnd(End.FAILED, (last_words or ["the runner ended"])[-1], exit_code=EXIT_ERROR)


def _may_pass(error: AirloxError) -> bool:
    """Whether a start that failed so may succeed later, with nobody looking at it."""
    from airlox.errors import SandboxError
    from airlox.runner.patience import may_pass

    return error.code in _PASSING if isinstance(error, SandboxError) else may_pass(error)


_PASSING = frozenset({"start_timeout", "engine_slow", "engine_unreachable"})
"""A machine under load, or a container engine that starts after us."""
