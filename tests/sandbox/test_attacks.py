"""What a job in `local` tries, and what it must see; see `support/attacks.py` for the table."""

from __future__ import annotations

import pytest

from support import sandbox
from support.attacks import ATTACKS, Attack

_WITHOUT = [(attack, layer) for attack in ATTACKS for layer in attack.without]


@pytest.mark.parametrize("user", sandbox.USERS)
@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_held(attack: Attack, user: str) -> None:
    seen = sandbox.run(attack.code, user=user)
    assert (seen.cause, seen.exit_code) == ("exit", 0), seen.errors
    assert seen.words
    assert set(seen.words) <= attack.held


@pytest.mark.parametrize("user", sandbox.USERS)
@pytest.mark.parametrize(("attack", "layer"), _WITHOUT, ids=str)
def test_held_with_one_layer_taken_off(attack: Attack, layer: str, user: str) -> None:
    seen = sandbox.run(attack.code, user=user, without=[layer])
    assert seen.words
    assert set(seen.words) <= attack.without[layer]


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.teeth], ids=str)
def test_has_teeth(attack: Attack) -> None:
    """With no walls at all, an ordinary user's job gets something of what it tries."""
    seen = sandbox.run(attack.code, user="user", sandbox="process")
    assert set(seen.words) - attack.held
