"""A relay that lies about who has fetched what: only what fits one's own items and the verified
joins is shown."""

from __future__ import annotations

import pytest

from airlox.errors import AirloxError, RelayError
from airlox.protocol.keys import SigningKey
from hostile.conftest import Scene
from support.lying import DELIVERY, NONSENSE, Lie, say

STRANGER = SigningKey.from_seed(b"s" * 32).public


def test_what_does_not_fit_is_not_shown(scene: Scene) -> None:
    """[P-ADR-7]"""
    victim, other = scene.join("sender"), scene.join("observer", "other")
    theirs = scene.owner.send_text("theirs")
    own = victim.send_text("mine", to="other")
    me, them = victim.participant_pub, other.participant_pub
    entries = [
        *(7, None, "x", {}, {"item": 5}, {"item": own.id, "delivered": [None]}),
        {"item": theirs.id, "delivered": [them], "waiting": []},
        {"item": "A" * 22, "delivered": [them], "waiting": []},
        {"item": "\x1b[31m", "delivered": [them], "waiting": []},
        {"item": own.id, "delivered": [STRANGER, "\x1b[31m"], "waiting": []},
        {"item": own.id, "delivered": [them, me, them], "waiting": [them, STRANGER, me], "x": 1},
    ]
    scene.liar.lies[DELIVERY] = say(200, {"items": entries})
    (shown,) = victim.delivery()
    assert (shown.id, shown.kind, shown.to) == (own.id, "text", (them,))
    assert [p.participant_pub for p in shown.delivered] == [them]
    assert shown.waiting == ()


def test_more_than_was_asked_for(scene: Scene) -> None:
    victim = scene.join("sender")
    own = [victim.send_text(str(number)).id for number in range(3)]
    entries = [{"item": item, "delivered": [], "waiting": []} for item in own]
    scene.liar.lies[DELIVERY] = say(200, {"items": entries})
    assert [each.id for each in victim.delivery(2)] == own[1:]


def test_a_relay_that_does_not_tell(scene: Scene) -> None:
    victim = scene.join("sender")
    scene.liar.lies[DELIVERY] = say(404, {"error": "not_found", "message": "no such path"})
    with pytest.raises(RelayError) as caught:
        victim.delivery()
    assert caught.value.code == "no_delivery"


@pytest.mark.parametrize("lie", [NONSENSE["not json"], NONSENSE["empty"], say(200, {"items": 1})])
def test_an_answer_that_is_none(scene: Scene, lie: Lie) -> None:
    victim = scene.join("sender")
    scene.liar.lies[DELIVERY] = lie
    with pytest.raises(AirloxError, match="relay"):
        victim.delivery()
    scene.liar.honest()
    assert victim.delivery() == []
