"""Values of shared flags, and where links, relays and caches come from."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.cli import options
from airlox.cli.main import COMMANDS
from airlox.errors import StorageError, UsageError


class TestDuration:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("90", 90), ("30s", 30), ("10m", 600), ("2h", 7200), ("7d", 604_800), ("0", 0)],
    )
    def test_forms(self, text: str, seconds: int) -> None:
        assert options.duration(text) == seconds

    @pytest.mark.parametrize("text", ["", "s", "-1", "1.5h", "1w", "1 h", "10mm", "9999999d", "١"])
    def test_others_are_refused(self, text: str) -> None:
        with pytest.raises(argparse.ArgumentTypeError, match="no duration"):
            options.duration(text)

    @given(st.integers(0, 3650), st.sampled_from(["s", "m", "h", "d"]))
    def test_units_scale(self, number: int, unit: str) -> None:
        assert options.duration(f"{number}{unit}") == number * options.duration(f"1{unit}")

    @given(st.text())
    def test_any_text_is_read_or_refused(self, text: str) -> None:
        for parse in (options.duration, options.memory, options.count, options.lifetime):
            try:
                value = parse(text)
            except argparse.ArgumentTypeError:
                continue
            assert value is None or value >= 0

    def test_a_lifetime_may_be_endless_but_not_nothing(self) -> None:
        assert options.lifetime("never") is None
        with pytest.raises(argparse.ArgumentTypeError):
            options.lifetime("0s")


class TestMemory:
    @pytest.mark.parametrize(
        ("text", "mb"), [("512", 512), ("512M", 512), ("4G", 4096), ("1gb", 1024)]
    )
    def test_forms(self, text: str, mb: int) -> None:
        assert options.memory(text) == mb

    @pytest.mark.parametrize("text", ["0", "", "4T", "-1", "1.5G"])
    def test_others_are_refused(self, text: str) -> None:
        with pytest.raises(argparse.ArgumentTypeError, match="memory"):
            options.memory(text)


class TestLists:
    def test_words_and_repeats(self) -> None:
        assert options.flat([options.words("a, b,"), options.words("c")]) == ("a", "b", "c")
        assert options.flat(None) == ()

    def test_known_words_only(self) -> None:
        assert options.one_of("py", "md")("md,py") == ["md", "py"]
        for text in ("exe", "", ","):
            with pytest.raises(argparse.ArgumentTypeError, match="none of py, md"):
                options.one_of("py", "md")(text)


def given_flags(**values: str | None) -> argparse.Namespace:
    return argparse.Namespace(**({"invite": None, "invite_file": None, "cache_dir": None} | values))


class TestInvite:
    def test_the_flag_wins_over_the_variable(self) -> None:
        flags = given_flags(invite=" link ")
        assert options.read_invite(flags, {"AIRLOX_INVITE": "other"}) == "link"
        assert options.read_invite(given_flags(), {"AIRLOX_INVITE": "other\n"}) == "other"

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "link").write_text("link\n")
        assert options.read_invite(given_flags(invite_file=str(tmp_path / "link")), {}) == "link"
        with pytest.raises(StorageError):
            options.read_invite(given_flags(invite_file=str(tmp_path / "none")), {})

    def test_none_is_told_what_to_do(self) -> None:
        with pytest.raises(UsageError) as caught:
            options.read_invite(given_flags(), {"AIRLOX_INVITE": ""})
        assert caught.value.code == "no_invite"
        assert "AIRLOX_INVITE" in (caught.value.hint or "")

    def test_two_are_refused(self) -> None:
        with pytest.raises(UsageError, match="not both"):
            options.read_invite(given_flags(invite="a", invite_file="b"), {})


class TestOthers:
    def test_relay(self) -> None:
        assert options.read_relay("https://a", {"AIRLOX_RELAY": "https://b"}) == "https://a"
        assert options.read_relay(None, {"AIRLOX_RELAY": "https://b"}) == "https://b"
        with pytest.raises(UsageError) as caught:
            options.read_relay(None, {})
        assert caught.value.code == "no_relay"

    def test_cache(self) -> None:
        assert (
            options.cache_root(given_flags(cache_dir="here"), {"AIRLOX_CACHE_DIR": "x"}) == "here"
        )
        assert options.cache_root(given_flags(), {"AIRLOX_CACHE_DIR": "x"}) == "x"


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _parsers(inner)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_missing_is_called_what_the_help_calls_it(name: str) -> None:
    module = import_module(f"airlox.cli.{COMMANDS[name][0]}")
    whole = options.Parser(prog=name, description="", example="")
    module.add_arguments(whole, name)
    for parser in _parsers(whole):
        for action in parser._actions:
            if not action.option_strings:
                assert action.metavar is not None, (parser.prog, action.dest)
