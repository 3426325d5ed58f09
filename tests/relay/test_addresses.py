"""Whom a request counts for: networks, and proxies that are believed or not."""

from __future__ import annotations

import pytest

from airlox.relay.addresses import Origin, network_of, origin_of


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("192.0.2.1:4711", "192.0.2.1:4712", True),
        ("[2001:db8:1:2::1]:4711", "2001:db8:1:2::2", True),
        ("somewhere", "elsewhere", False),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same


FAR = "203.0.113.9"


def origin(peer: str, *forwarded: str, behind_proxy: bool = False) -> Origin:
    headers = [(b"host", b"x"), *((b"x-forwarded-for", each.encode()) for each in forwarded)]
    return origin_of(peer, headers, behind_proxy=behind_proxy)


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_a_proxy_on_this_machine_is_believed(peer: str) -> None:
    assert origin(peer, "198.51.100.1") == Origin("198.51.100.1", True)


def test_a_proxy_elsewhere_is_believed_only_when_told_so() -> None:
    assert origin(FAR, "198.51.100.1") == Origin(FAR, True)
    assert origin(FAR, "198.51.100.1", behind_proxy=True) == Origin("198.51.100.1", True)
    assert origin("127.0.0.2", "198.51.100.1") == Origin("127.0.0.2", True)


@pytest.mark.parametrize(
    "forwarded",
    [
        ("10.0.0.1, 198.51.100.1",),
        ("10.0.0.1", "198.51.100.1"),
        ("10.0.0.1, 10.0.0.2", "10.0.0.3,198.51.100.1"),
    ],
)
def test_what_a_client_claims_of_itself_does_not_count(forwarded: tuple[str, ...]) -> None:
    """Some proxies add to the header, some add another one: the last word is theirs."""
    assert origin(FAR, *forwarded, behind_proxy=True).network == "198.51.100.1"


@pytest.mark.parametrize("forwarded", [(), ("",), ("198.51.100.1", " ")])
def test_a_proxy_that_names_nobody_may_be_anybody(forwarded: tuple[str, ...]) -> None:
    found = origin(FAR, *forwarded, behind_proxy=True)
    assert (found.network, found.holder) == (FAR, None)


def test_a_long_name_is_a_short_key() -> None:
    assert len(origin("127.0.0.1", "x" * 10_000).network) == 64
