"""What a job tries, and what it must see; see `support/attacks.py` for the table.

Attacks that do not disturb each other share one start of the sandbox; see `support/grounds.py`.
"""

from __future__ import annotations

import pytest

from support import grounds
from support.attacks import ATTACKS, Attack
from support.grounds import Ground

_WITHOUT = [(attack, layer) for attack in ATTACKS for layer in attack.without]
_IN_CONTAINERS = [attack for attack in ATTACKS if attack.contained is not None]
_TEETH = [attack for attack in ATTACKS if attack.teeth]


@pytest.mark.parametrize("ground", grounds.WALLED, ids=str)
@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_held(attack: Attack, ground: Ground) -> None:
    words = grounds.told_by(ground, tuple(map(str, ATTACKS)), None)[str(attack)]
    assert words
    assert set(words) <= attack.held


@pytest.mark.slow
@pytest.mark.parametrize("ground", grounds.CONTAINERS, ids=str)
@pytest.mark.parametrize("attack", _IN_CONTAINERS, ids=str)
def test_held_in_a_container(attack: Attack, ground: Ground) -> None:
    words = grounds.told_by(ground, tuple(map(str, _IN_CONTAINERS)), None)[str(attack)]
    assert words
    assert set(words) <= attack.held | (attack.contained or set())


@pytest.mark.parametrize("ground", grounds.LOCAL, ids=str)
@pytest.mark.parametrize(("attack", "layer"), _WITHOUT, ids=str)
def test_held_with_one_layer_taken_off(attack: Attack, layer: str, ground: Ground) -> None:
    names = tuple(str(attack) for attack in ATTACKS if layer in attack.without)
    words = grounds.told_by(ground, names, layer)[str(attack)]
    assert words
    assert set(words) <= attack.without[layer]


@pytest.mark.parametrize("attack", _TEETH, ids=str)
def test_has_teeth(attack: Attack) -> None:
    """With no walls at all, an ordinary user's job gets something of what it tries."""
    words = grounds.told_by(grounds.OPEN, tuple(map(str, _TEETH)), None)[str(attack)]
    assert set(words) - attack.held
