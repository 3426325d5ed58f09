"""Flags and variables become one frozen, checked configuration."""

from __future__ import annotations

import pytest

from airlox.errors import UsageError
from airlox.protocol import wire
from airlox.relay.config import Config, bounds_of, flag_of, limit_fields, parse_config, variable_of

MIB = 1 << 20


def parse(*argv: str, **environment: str) -> Config:
    return parse_config(argv, environment, "0.0.0")


def test_default_listens_on_loopback() -> None:
    config = parse("--ephemeral")
    assert (config.host, config.port, config.data) == ("127.0.0.1", 8080, None)


def test_a_relay_must_be_told_where_to_keep_its_data() -> None:
    with pytest.raises(UsageError, match="keep its data") as caught:
        parse()
    assert "--ephemeral" in (caught.value.hint or "")


def test_a_flag_wins_over_its_variable_which_wins_over_the_default() -> None:
    assert parse("--ephemeral", AIRLOX_MAX_ITEMS="7").max_items == 7
    assert parse("--ephemeral", "--max-items", "8", AIRLOX_MAX_ITEMS="7").max_items == 8
    assert parse("--ephemeral").max_items == Config().max_items


@pytest.mark.parametrize("field", limit_fields(), ids=lambda field: field.name)
def test_every_limit_is_a_flag_and_a_variable(field) -> None:  # type: ignore[no-untyped-def]
    text = "no" if field.type == "bool" else str(bounds_of(field).low)
    expected = False if field.type == "bool" else bounds_of(field).low
    by_flag = parse("--ephemeral", flag_of(field.name), text)
    by_variable = parse("--ephemeral", **{variable_of(field.name): text})
    assert getattr(by_flag, field.name) == expected
    assert by_flag == by_variable


@pytest.mark.parametrize("field", limit_fields(), ids=lambda field: field.name)
def test_a_value_beyond_its_bounds_is_refused_by_name(field) -> None:  # type: ignore[no-untyped-def]
    text = "maybe" if field.type == "bool" else str(bounds_of(field).high + 1)
    with pytest.raises(UsageError, match=flag_of(field.name)):
        parse("--ephemeral", flag_of(field.name), text)


@pytest.mark.parametrize(
    ("text", "size"), [("25M", 25 * MIB), ("64k", 65536), ("1G", 1 << 30), ("9", 9)]
)
def test_sizes_take_suffixes(text: str, size: int) -> None:
    assert parse("--ephemeral", "--max-item-bytes", text).max_item_bytes == size


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("2m", 120), ("1H", 3600)])
def test_times_take_units_and_are_in_seconds_without(text: str, seconds: int) -> None:
    assert parse("--ephemeral", "--runner-grace", text).runner_grace_s == seconds
    assert parse("--ephemeral", AIRLOX_RUNNER_GRACE=text).runner_grace_s == seconds


@pytest.mark.parametrize("text", ["", "2K", "1.5m", "-1s", "s"])
def test_times_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--runner-grace"):
        parse("--ephemeral", f"--runner-grace={text}")


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1T", "M", "٣", "1" * 40])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse("--ephemeral", f"--max-item-bytes={text}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.0.0.0:0", ("0.0.0.0", 0)), ("[::1]:80", ("::1", 80)), ("box:8080", ("box", 8080))],
)
def test_listen(text: str, expected: tuple[str, int]) -> None:
    config = parse("--ephemeral", "--listen", text)
    assert (config.host, config.port) == expected


@pytest.mark.parametrize("text", ["8080", ":8080", "host:", "host:70000", "host:x"])
def test_listen_addresses_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse("--ephemeral", "--listen", text)


def test_data_and_ephemeral_exclude_each_other() -> None:
    with pytest.raises(UsageError):
        parse("--ephemeral", "--data", "x")
    assert parse(AIRLOX_DATA="d").data == "d"
    assert parse(AIRLOX_EPHEMERAL="yes").data is None


def test_the_watermark_leaves_a_small_memory_of_use() -> None:
    assert Config(ephemeral_bytes=4 << 20).watermark_bytes == 1 << 20
    assert Config(min_free_bytes=5).watermark_bytes == 5
    assert Config(data="d", ephemeral_bytes=4 << 20).watermark_bytes == 256 << 20


def test_unknown_options_and_levels_are_refused() -> None:
    for argv in (["--ephemeral", "--max-item", "3"], ["--ephemeral", "--log-level", "loud"]):
        with pytest.raises(UsageError):
            parse(*argv)


def test_the_event_list_always_fits_one_answer() -> None:
    config = Config()
    assert config.want_event_bytes + config.event_reserve_bytes < wire.ANSWER_BYTES
    assert config.item_event_bytes > 10 * MIB
    largest = parse(
        "--ephemeral", "--max-items=40000", "--max-jobs=5000", "--max-participants=5000"
    )
    assert largest.item_event_bytes > 8 * MIB


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(flag_of(field.name) in text for field in limit_fields())
