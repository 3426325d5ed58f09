"""How the doctor judges what came of an attack."""

from __future__ import annotations

import pytest

from airlox.runner.attacks import Attack
from airlox.runner.trials import _judge
from airlox.sandbox.base import Cause, Outcome

READ = Attack("read", "reads", "", frozenset({"ENOENT", "EACCES"}))
EAT = Attack("eat", "eats", "", frozenset({"started"}), Cause.OUT_OF_MEMORY, "out of memory")
FINE = Outcome(Cause.EXIT, exit_code=0)


@pytest.mark.parametrize(
    ("attack", "outcome", "words", "left", "held", "seen"),
    [
        (READ, FINE, ["ENOENT", "EACCES", "ENOENT"], False, True, "EACCES, ENOENT"),
        (READ, FINE, ["ENOENT", "done"], False, False, "done"),
        (READ, FINE, [], False, None, "last words"),
        (READ, Outcome(Cause.EXIT, exit_code=1), ["ENOENT"], False, None, "otherwise"),
        (READ, Outcome(Cause.TIME_OUT), ["ENOENT"], False, None, "time_out"),
        (
            READ,
            Outcome(Cause.EXIT, exit_code=127, detail="not found"),
            [],
            False,
            None,
            "not found",
        ),
        (READ, FINE, ["ENOENT"], True, False, "still runs"),
        (EAT, Outcome(Cause.OUT_OF_MEMORY), ["started"], False, True, "out of memory"),
        (EAT, FINE, ["started", "done"], False, False, "done"),
        (EAT, FINE, ["started"], False, None, "exit"),
    ],
)
def test_verdicts(
    attack: Attack,
    outcome: Outcome,
    words: list[str],
    left: bool,
    held: bool | None,
    seen: str,
) -> None:
    trial = _judge(attack, outcome, words, b"Traceback\nlast words\n", left=left)
    assert trial.held is held
    assert seen in trial.seen
