"""What a result says of an allow list: P-RES-5. Whole results stand in `vectors/full.json`."""

from __future__ import annotations

from typing import Any

import pytest

from airlox.errors import ValidationError
from airlox.protocol import limits
from airlox.protocol.job import Denied, Egress


def denied(count: int) -> tuple[Denied, ...]:
    return tuple(Denied(reason="not_listed", target=f"h{n}.org:443") for n in range(count))


def egress(**fields: Any) -> Egress:
    return Egress(**({"connections": 0, "received_bytes": 0, "sent_bytes": 0} | fields))


class TestEgress:
    def test_names_and_count_go_together(self) -> None:
        assert egress(denials=0)
        assert egress(denials=1, denied=denied(1))
        assert egress(denials=500, denied=denied(limits.DENIED))

    @pytest.mark.parametrize(
        "fields",
        [
            {"denials": 1},
            {"denials": 0, "denied": denied(1)},
            {"denials": 0, "denied": ()},
            {"denials": 2, "denied": denied(3)},
            {"denials": 2, "denied": denied(1) * 2},
            {"denials": 99, "denied": denied(limits.DENIED + 1)},
        ],
    )
    def test_contradictions(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            egress(**fields)

    @pytest.mark.parametrize("target", ["a.org:443", "[::1]:22", "10.0.0.1:80", "_x.a-b.org:65535"])
    def test_targets(self, target: str) -> None:
        assert Denied(reason="ip_literal", target=target)

    @pytest.mark.parametrize(
        "target", ["", "a.org", "a b:1", "A.org:1", "a.org:1\n", "\x1b[2J:1", f"{'a' * 261}:1"]
    )
    def test_malformed_targets(self, target: str) -> None:
        with pytest.raises(ValidationError):
            Denied(reason="not_listed", target=target)


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("not_listed", "allow with --allow-host a.org:443 on the runner"),
        ("ip_literal", "only names are let through, no addresses"),
        ("not_public", "its address is not public"),
        ("plain_http", "only CONNECT is let through, so use https"),
    ],
)
def test_in_words(reason: Any, advice: str) -> None:
    assert Denied(reason=reason, target="a.org:443").text == f"blocked: a.org:443; {advice}"
