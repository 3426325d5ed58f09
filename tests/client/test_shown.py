"""Which runner a word means."""

from __future__ import annotations

import msgspec
import pytest

from airlox.client.shown import Runner, choose_runner
from airlox.errors import UsageError
from airlox.protocol.keys import Role
from support.world import World


@pytest.fixture(scope="module")
def runners() -> list[Runner]:
    """One, and one that calls itself by the first one's fingerprint."""
    world = World()
    keys = [str(world.person(Role.RUNNER, name).public) for name in ("box", "mimic")]
    mine = Runner(
        participant_pub=keys[0],
        name="box",
        labels=(),
        host="",
        sandbox="none",
        network_unblocked=False,
        description=None,
        approved=False,
        rejected=False,
        online=True,
        job=None,
        left=False,
        info=None,
    )
    mimic = msgspec.structs.replace(mine, participant_pub=keys[1], name=mine.fingerprint)
    return [mine, mimic]


def test_a_runner_is_meant_by_key_fingerprint_or_name(runners: list[Runner]) -> None:
    mine, mimic = runners
    for word in (mine, mine.participant_pub, mine.fingerprint, "box"):
        assert choose_runner(runners, word) == mine
    assert choose_runner(runners, mimic.fingerprint) == mimic


def test_a_fingerprint_is_no_name_where_its_owner_is_not_shown(runners: list[Runner]) -> None:
    mine, mimic = runners
    assert mimic.name == mine.fingerprint
    with pytest.raises(UsageError) as nobody:
        choose_runner([mimic], mine.fingerprint)
    assert nobody.value.code == "no_such_runner"
