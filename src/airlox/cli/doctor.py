"""`airlox runner doctor`: whether this machine can run jobs safely, and what would help.

Exit code 0 only when every needed layer stands, every attack was held, and no check failed.
"""

from __future__ import annotations

from airlox.cli import options, runner_flags
from airlox.cli.main import EXIT_ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from airlox.cli.output import Voice
    from airlox.runner.doctor import Diagnosis

_HELD = {True: "held", False: "BROKEN", None: "not tried"}


def add_arguments(actions: options.Actions) -> None:
    parser = actions.add(
        "doctor",
        "Say what the sandbox can do on this machine, and attack it",
        details="Shows each layer, what keeps one from standing and what would help; looks at the "
        "rest of the machine; then runs twelve attacks in a real sandbox. Needs no session. Ends "
        "with 0 only when all is well.",
        example="airlox runner doctor --sandbox local",
    )
    runner_flags.add_confinement_flags(parser)
    runner_flags.add_place_flags(parser)
    parser.add_argument(
        "--runtime",
        default=options.DEFAULT_RUNTIME,
        metavar="PYTHON",
        help=f"the Python that sessions will pin [{options.DEFAULT_RUNTIME}]",
    )
    parser.set_defaults(name="doctor", labels=None, description=None)


def run(args: Namespace, voice: Voice) -> int:
    from airlox.runner.doctor import diagnose

    chosen = runner_flags.runner_options(args)
    found = diagnose(chosen, args.runtime, _account())
    if voice.json:
        voice.document(_shape(found))
    else:
        _tell(found, voice)
    return 0 if found.healthy else EXIT_ERROR


def _account() -> str:
    """The name of this process's user; empty where it has none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


# -- as text ----------------------------------------------------------------------------------


def _tell(found: Diagnosis, voice: Voice) -> None:
    report = found.report
    voice.say(f"sandbox {report.sandbox}, built by {report.builder}")
    layers = [(layer.name, "on" if layer.on else "off", layer.detail) for layer in report.layers]
    voice.table(("LAYER", "STATE", "WHAT, OR WHY NOT"), layers)
    voice.say("")
    checks = [(check.name, check.state.value, check.detail) for check in found.checks]
    voice.table(("MACHINE", "STATE", "WHAT WAS FOUND"), checks)
    voice.say("")
    if found.trials:
        trials = [(_HELD[trial.held], trial.attack.what, trial.seen) for trial in found.trials]
        voice.table(("ATTACK", "A JOB THAT …", "SAW"), trials)
    else:
        voice.say("no attack was made: the sandbox cannot be built")
    if remedies := _remedies(found):
        voice.say("\nwhat would help:")
    for remedy, names in remedies.items():
        voice.say(f"  {', '.join(names)}: {remedy}")
    voice.say(f"\n{verdict(found)}")


def _remedies(found: Diagnosis) -> dict[str, list[str]]:
    """Each remedy once, with what it helps."""
    remedies: dict[str, list[str]] = {}
    for layer in found.report.layers:
        if not layer.on and layer.remedy:
            remedies.setdefault(layer.remedy, []).append(layer.name)
    for check in found.checks:
        if check.remedy:
            remedies.setdefault(check.remedy, []).append(check.name)
    refusal = found.report.refusal
    if refusal is not None and refusal.hint:
        remedies.setdefault(refusal.hint, ["sandbox"])
    return remedies


def verdict(found: Diagnosis) -> str:
    """What it comes to, in one line."""
    if found.healthy:
        return f"all is well: {len(found.trials)} attacks held"
    if found.report.refusal is not None:
        return f"not usable: {found.report.refusal.message}"
    broken = sum(trial.held is False for trial in found.trials)
    untried = sum(trial.held is None for trial in found.trials)
    parts = []
    if broken:
        parts.append(f"{broken} of {len(found.trials)} attacks got through")
    if untried:
        parts.append(f"{untried} of {len(found.trials)} attacks could not be tried")
    parts += [f"{check.name} failed" for check in found.checks if check.state == "failed"]
    return f"not well: {', '.join(parts)}"


# -- as JSON ----------------------------------------------------------------------------------


def _shape(found: Diagnosis) -> dict[str, Any]:
    report = found.report
    shape: dict[str, Any] = {
        "attacks": [
            {"held": trial.held, "name": trial.attack.name, "seen": trial.seen}
            for trial in found.trials
        ],
        "builder": report.builder,
        "checks": [
            _without_none(
                code=check.code,
                detail=check.detail,
                name=check.name,
                remedy=check.remedy,
                state=check.state.value,
            )
            for check in found.checks
        ],
        "gpus": report.gpus,
        "healthy": found.healthy,
        "layers": [
            _without_none(
                code=layer.code,
                detail=layer.detail,
                name=layer.name,
                on=layer.on,
                remedy=layer.remedy,
            )
            for layer in report.layers
        ],
        "sandbox": report.sandbox,
        "usable": report.usable,
    }
    if report.image is not None:
        shape["image"] = report.image
    if report.refusal is not None:
        shape["refusal"] = _without_none(
            code=report.refusal.code, error=report.refusal.message, hint=report.refusal.hint
        )
    return shape


def _without_none(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}
