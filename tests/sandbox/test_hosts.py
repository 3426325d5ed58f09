"""Rules of an allow list, and which addresses are public. Numbers: the attack list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import UsageError
from airlox.sandbox.hosts import MAX_RULES, is_literal, is_public, parse_rule, parse_rules


def words(text: str) -> list[str]:
    return text.split()


LABEL = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)


class TestParseRule:
    @pytest.mark.parametrize(
        ("text", "rule"),
        [
            ("api.example.net", "api.example.net:443"),
            ("API.Example.net.", "api.example.net:443"),
            (" api.example.net:8443 ", "api.example.net:8443"),
            ("*.example.org", "*.example.org:443"),
            ("*.example.org:80", "*.example.org:80"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example:443"),
            ("1.example.org", "1.example.org:443"),
        ],
    )
    def test_reads(self, text: str, rule: str) -> None:
        assert str(parse_rule(text)) == rule

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "*",
            "*.org",
            "localhost",
            "*example.org",
            "a.*.example.org",
            "*.*.example.org",
            "ex*mple.org",
            "exa mple.org",
            "exämple.org",
            "-a.example.org",
            "a-.example.org",
            "a..example.org",
            ".example.org",
            "example.org:",
            "example.org:0",
            "example.org:65536",
            "example.org:443x",
            "example.org:４43",
            "https://example.org",
            "user@example.org",
            "10.0.0.1",
            "10.0.0.1:443",
            "127.1",
            "0x7f.0x1",
            "2130706433",
            "[2606:4700::1]:443",
            "2606:4700::1",
            "*.0.0.1",
            f"{'a' * 64}.example.org",
            ".".join(["a" * 60] * 5),
        ],
    )
    def test_refuses(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_rule(text)
        assert caught.value.code == "bad_host"

    def test_a_list_is_sorted_and_has_each_once(self) -> None:
        rules = parse_rules(["b.org", "a.org:80", "B.org:443"])
        assert [str(rule) for rule in rules] == ["a.org:80", "b.org:443"]

    def test_a_list_has_an_end(self) -> None:
        names = [f"h{number}.example.org" for number in range(MAX_RULES + 1)]
        assert len(parse_rules(names[:-1])) == MAX_RULES
        with pytest.raises(UsageError) as caught:
            parse_rules(names)
        assert caught.value.code == "too_many_hosts"


class TestAllows:
    @pytest.mark.parametrize(
        ("rule", "name", "port", "allowed"),
        [
            ("example.org", "example.org", 443, True),
            ("example.org", "example.org", 80, False),
            ("example.org", "a.example.org", 443, False),
            ("example.org", "example.org.evil.net", 443, False),
            ("example.org", "evilexample.org", 443, False),
            ("*.example.org", "a.example.org", 443, True),
            ("*.example.org", "example.org", 443, False),
            ("*.example.org", ".example.org", 443, False),
            ("*.example.org", "a.b.example.org", 443, False),
            ("*.example.org", "aexample.org", 443, False),
            ("*.example.org", "*.example.org", 443, True),  # a name nobody has
            ("*.example.org:80", "a.example.org", 80, True),
        ],
    )
    def test_table(self, rule: str, name: str, port: int, allowed: bool) -> None:
        assert parse_rule(rule).allows(name, port) is allowed

    @given(st.lists(LABEL, min_size=2, max_size=4), st.lists(LABEL, min_size=1, max_size=4))
    def test_a_wildcard_is_one_label(self, suffix: list[str], prefix: list[str]) -> None:
        rule = parse_rule("*." + ".".join(suffix))
        assert rule.allows(".".join(prefix + suffix), 443) is (len(prefix) == 1)


class TestLiterals:
    @pytest.mark.parametrize(
        "name",
        words(
            "127.0.0.1 127.1 2130706433 0x7f000001 0x7f.1 0177.0.0.1 1.2.3.4. [::1] ::1 a.0x 0X7F"
        ),
    )
    def test_addresses_in_any_form(self, name: str) -> None:
        assert is_literal(name)

    @pytest.mark.parametrize("name", words("example.org 1.example.org 127.0.0.1.nip.io a0x.org"))
    def test_names(self, name: str) -> None:
        assert not is_literal(name)


class TestPublic:
    @pytest.mark.parametrize(
        "address",
        words("8.8.8.8 1.1.1.1 2606:4700::1 2a00:1450:4001::1 ::ffff:8.8.8.8 64:ff9b::808:808"),
    )
    def test_open(self, address: str) -> None:
        assert is_public(address)

    @pytest.mark.parametrize(
        "address",
        words("""0.0.0.0 10.1.2.3 100.64.0.1 100.100.100.200 127.0.0.1 127.255.0.1 168.63.129.16
        169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1
        192.168.1.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.1.1.1 240.0.0.1
        255.255.255.255
        :: ::1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe
        64:ff9b:1::1 100::1 2001::1 2001:db8::1 2002:7f00:1::1 2002:a00:1::1 2002:a9fe:a9fe::1
        3fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1
        ff0e::1"""),
    )
    def test_closed(self, address: str) -> None:  # 44, 45
        assert not is_public(address)

    @given(st.text(max_size=40))
    def test_anything_else_is_closed(self, text: str) -> None:
        is_public(text)
        assert not is_public("x" + text)
