"""Every limit of a relay, in one table: flag, `AIRLOX_*` variable, default, bounds, meaning.

The fields of `Config` are that table: `max_item_bytes` is the flag `--max-item-bytes` and the
variable `AIRLOX_MAX_ITEM_BYTES`, `runner_grace_s` is `--runner-grace` and `AIRLOX_RUNNER_GRACE`.
A flag wins over its variable, which wins over the default. Sizes take the suffixes K, M and G
(powers of 1024), times s, m, h and d; a time without one is in seconds. Bounds of the *format* are
not here but in `protocol/limits.py`; a relay may only be stricter.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from airlox.errors import UsageError
from airlox.protocol import limits, wire

KIB: Final = limits.KIB
MIB: Final = limits.MIB
GIB: Final = 1024 * MIB

# What an event costs in the answer of `/events`, at most (see `Config.event_reserve_bytes`).
EVICTED_EVENTS_BYTES: Final = 2 * 96
JOB_EVENTS_BYTES: Final = 5 * 256
LEFT_EVENT_BYTES: Final = 160
WANT_EVENTS_BYTES: Final = 2 * MIB
RESULT_EVENTS_BYTES: Final = 2 * MIB


class Bounds(NamedTuple):
    """Smallest and largest value an operator may choose, and what the option is for."""

    low: int
    high: int
    text: str


def _count(default: int, low: int, high: int, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"bounds": Bounds(low, high, text)})


def _flag(default: bool, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"bounds": Bounds(0, 1, text)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The settings of one relay. `data` is None for a relay that keeps everything in memory,
    `audit_dir` for one that writes down nothing of what it forgets."""

    data: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    log_level: str = "info"
    audit_dir: str | None = None

    # sessions
    max_lifetime_s: int = _count(
        limits.LIFETIME_MS // 1000, 1, limits.LIFETIME_MS // 1000, "longest life of a session"
    )
    allow_never_expires: bool = _flag(True, "allow sessions that last until they are closed")
    max_sessions: int = _count(10_000, 1, 10_000_000, "sessions at one time")
    max_sessions_per_address: int = _count(
        1_000,
        0,
        10_000_000,
        "of these, sessions one address has made since the relay's start; 0 is no limit",
    )
    max_session_bytes: int = _count(2 * GIB, 1, 1 << 50, "bytes one session may hold")
    max_clock_ahead_s: int = _count(
        600, 0, 86_400, "how far a new session's clock may be ahead of the relay's"
    )
    max_manifest_age_s: int = _count(
        86_400, 60, 30 * 86_400, "age at which a signed manifest no longer opens a session"
    )
    # what a session holds
    max_participants: int = _count(500, 1, 5_000, "participants of one session, also past ones")
    max_participants_per_address: int = _count(
        250,
        0,
        5_000,
        "of these, joined from one address since the relay's start; 0 is no limit",
    )
    max_items: int = _count(20_000, 1, 40_000, "items of one session")
    max_jobs: int = _count(3_000, 1, 5_000, "jobs of one session")
    max_waiting_jobs: int = _count(
        1_000, 0, 5_000, "of these, jobs that wait for a slot (sessions with `queue`)"
    )
    max_waiting_jobs_per_participant: int = _count(
        200, 0, 5_000, "of these, jobs of one participant"
    )
    max_item_bytes: int = _count(100 * MIB, 1, limits.ITEM_BYTES, "largest item of a session")
    max_share_percent: int = _count(
        75, 10, 100, "how much of a session's items and bytes one of several participants may fill"
    )
    # what is forgotten of sessions with `history`
    history_s: int = _count(
        7 * 86_400, 1, 3_650 * 86_400, "age at which a finished job is forgotten"
    )
    history_jobs: int = _count(5_000, 1, 100_000, "finished jobs that are kept, up to that age")
    # rates, per minute or second
    behind_proxy: bool = _flag(
        False, "all clients come through a proxy that names them in X-Forwarded-For"
    )
    creates_per_minute: int = _count(60, 0, 1_000_000, "new sessions per address; 0 is no limit")
    joins_per_minute: int = _count(240, 0, 1_000_000, "joins per session; 0 is no limit")
    joins_per_minute_per_address: int = _count(
        120, 0, 1_000_000, "of these, joins from one address; 0 is no limit"
    )
    posts_per_second: int = _count(
        5_000, 0, 1_000_000, "posts per participant, in bursts of twice as many; 0 is no limit"
    )
    transfer_bytes_per_hour: int = _count(
        64 * GIB, 0, 1 << 50, "sealed bytes a session may send and fetch; 0 is no limit"
    )
    max_wants: int = _count(100, 1, 10_000, "blobs one participant may be waiting for")
    want_lifetime_s: int = _count(600, 1, 86_400, "how long a request for an evicted blob stands")
    want_pause_s: int = _count(240, 0, 86_400, "time after which a request is announced again")
    newcomer_grace_s: int = _count(
        600, 0, 7 * 86_400, "blobs from before somebody joined are kept for them this long"
    )
    # connections and transfers
    max_connections: int = _count(20_000, 1, 1_000_000, "connections at one time")
    max_connections_per_address: int = _count(
        2_000, 1, 1_000_000, "of these, connections of one address"
    )
    max_streams: int = _count(10_000, 1, 1_000_000, "open streams at one time")
    max_streams_per_session: int = _count(
        5_000, 1, 1_000_000, "of these, open streams of one session"
    )
    max_streams_per_address: int = _count(
        2_000, 1, 1_000_000, "of these, open streams of one address"
    )
    max_streams_per_participant: int = _count(16, 1, 1_000, "open streams of one participant")
    stream_queue_bytes: int = _count(
        MIB, 64 * KIB, 64 * MIB, "bytes that may wait for one slow reader before it is cut"
    )
    stall_timeout_s: int = _count(
        60, 1, 3_600, "a stream whose reader takes nothing so long is cut"
    )
    keepalive_s: int = _count(15, 1, 30, "pause between keepalives on a silent stream")
    max_transfers: int = _count(128, 1, 100_000, "large bodies under way at one time")
    max_transfers_per_participant: int = _count(
        16, 1, 100_000, "of these, large bodies of one participant"
    )
    max_transfers_per_session: int = _count(64, 1, 100_000, "of these, large bodies of one session")
    max_transfers_per_address: int = _count(64, 1, 100_000, "of these, large bodies of one address")
    body_timeout_s: int = _count(30, 1, 3_600, "time for any body; large ones have more")
    min_bytes_per_second: int = _count(
        16 * KIB, 1, GIB, "slowest transfer that is waited for, in bytes per second"
    )
    # runners and jobs
    online_timeout_s: int = _count(30, 1, 600, "a runner without a stream is online this long")
    runner_grace_s: int = _count(120, 1, 86_400, "a runner away for this long has lost its jobs")
    claim_timeout_s: int = _count(60, 1, 3_600, "time a runner has to take a job it was given")
    max_queue_wait_s: int = _count(
        limits.QUEUE_MS // 1000,
        1,
        limits.QUEUE_MS // 1000,
        "longest time that a job may wait for a slot (sessions with `queue`)",
    )
    cancel_timeout_s: int = _count(60, 1, 3_600, "time a cancelled job has to report its end")
    # live output and packs of full sessions
    live_ring_bytes: int = _count(MIB, 64 * KIB, 64 * MIB, "live output held per job")
    live_retention_s: int = _count(600, 1, 86_400, "live output is held this long after its job")
    live_total_bytes: int = _count(256 * MIB, MIB, 64 * GIB, "live output held in all")
    max_packs: int = _count(4_096, 1, limits.PACKS, "packs of one job's tree")
    unclaimed_pack_lifetime_s: int = _count(600, 1, 86_400, "packs without a job go after this")
    # transfer codes
    code_lifetime_s: int = _count(600, 1, 3_600, "how long a transfer code can be redeemed")
    max_codes: int = _count(
        10_000, 1, 100_000, "transfer codes at one time, also those that ended lately"
    )
    max_codes_per_session: int = _count(100, 1, 100_000, "of these, codes of one session")
    max_codes_per_address: int = _count(
        1_000, 1, 100_000, "of these, codes offered from one address"
    )
    code_guesses_per_hour: int = _count(
        10, 0, 1_000_000, "tries of one address at transfer codes that fail; 0 is no limit"
    )
    # storage
    ephemeral_bytes: int = _count(GIB, MIB, 1 << 50, "bytes an ephemeral relay holds in all")
    min_free_bytes: int = _count(
        256 * MIB, 0, 1 << 50, "free space below which nothing new is taken"
    )
    inline_blob_bytes: int = _count(
        64 * KIB, 0, MIB, "blobs up to this size are made durable together with their item"
    )
    journal_segment_bytes: int = _count(
        32 * MIB, 4 * KIB, GIB, "size at which a piece of the journal is closed"
    )
    journal_segment_age_s: int = _count(
        30, 1, 3_600, "age at which it is; purged bytes leave the disk within twice this time"
    )
    max_pending_bytes: int = _count(
        64 * MIB, MIB, GIB, "posts waiting for the disk before new ones are refused"
    )
    sweep_ms: int = _count(500, 10, 60_000, "pause between two looks at what has expired")

    def __post_init__(self) -> None:
        for field in limit_fields():
            bounds, value = bounds_of(field), getattr(self, field.name)
            if not bounds.low <= value <= bounds.high:
                low, high = _spelled(field, bounds.low), _spelled(field, bounds.high)
                raise UsageError(f"{flag_of(field.name)} must lie between {low} and {high}")

    @property
    def watermark_bytes(self) -> int:
        """Free space below which nothing new is taken: in memory at most a quarter of all."""
        if self.data is None:
            return min(self.min_free_bytes, self.ephemeral_bytes // 4)
        return self.min_free_bytes

    @property
    def event_reserve_bytes(self) -> int:
        """What must stay free of a session's event list for events that cannot be refused.

        A 0.1.0 client reads the whole list in one answer of at most 32 MiB.
        """
        return (
            self.max_items * EVICTED_EVENTS_BYTES
            + self.max_jobs * JOB_EVENTS_BYTES
            + self.max_participants * LEFT_EVENT_BYTES
        )

    @property
    def item_event_bytes(self) -> int:
        """Size of the event list up to which items and joins are taken."""
        return self.result_event_bytes - RESULT_EVENTS_BYTES

    @property
    def result_event_bytes(self) -> int:
        """Size of the event list up to which results of jobs under way are taken."""
        return self.want_event_bytes - WANT_EVENTS_BYTES

    @property
    def want_event_bytes(self) -> int:
        """Size of the event list up to which blobs may be asked back."""
        return wire.ANSWER_BYTES - 64 * KIB - self.event_reserve_bytes


def limit_fields() -> list[dataclasses.Field[Any]]:
    """The rows of the table: every field that has bounds."""
    return [field for field in dataclasses.fields(Config) if "bounds" in field.metadata]


def bounds_of(field: dataclasses.Field[Any]) -> Bounds:
    bounds: Bounds = field.metadata["bounds"]
    return bounds


def flag_of(name: str) -> str:
    return "--" + _option(name).replace("_", "-")


def setting_of(config: Config, name: str) -> str:
    """A limit and its value as an operator would give it: `--max-items 20000`."""
    field = next(each for each in limit_fields() if each.name == name)
    return f"{flag_of(name)} {_spelled(field, getattr(config, name))}"


def variable_of(name: str) -> str:
    return "AIRLOX_" + _option(name).upper()


def _option(name: str) -> str:
    """Of a time, whose unit stands in its value."""
    return name.removesuffix("_s")


def parse_config(argv: Sequence[str], environment: Mapping[str, str], version: str) -> Config:
    """The settings a command line and an environment ask for. Raises UsageError.

    `--help` and `--version` print and leave with SystemExit(0).
    """
    given = vars(_parser(version).parse_args(argv))
    values: dict[str, Any] = {}
    for field in limit_fields():
        text = given[field.name]
        if text is None:
            text = environment.get(variable_of(field.name))
        if text is not None:
            values[field.name] = _parse_value(field, text)
    host, port = _parse_listen(
        given["listen"] or environment.get("AIRLOX_LISTEN") or "127.0.0.1:8080"
    )
    return Config(
        data=_data(given, environment),
        host=host,
        port=port,
        log_level=_log_level(given["log_level"] or environment.get("AIRLOX_LOG_LEVEL") or "info"),
        audit_dir=given["audit_dir"] or environment.get("AIRLOX_AUDIT_DIR") or None,
        **values,
    )


class _Parser(argparse.ArgumentParser):
    """Wrong usage is an error of ours, not an exit in the middle of parsing."""

    def error(self, message: str) -> Any:
        raise UsageError(message, hint="airlox-server --help shows the options")


def _parser(version: str) -> _Parser:
    parser = _Parser(
        prog="airlox-server",
        description="The relay: stores and forwards sealed items. It cannot read them.",
        epilog="Every option is also a variable: --max-item-bytes is AIRLOX_MAX_ITEM_BYTES. "
        "Sizes take K, M and G, times s, m, h and d; without one they are in seconds.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"airlox-server {version}")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data", metavar="DIR", help="the one folder that everything is kept in")
    where.add_argument("--ephemeral", action="store_true", help="keep everything in memory")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="default 127.0.0.1:8080; port 0 takes a free one"
    )
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error")
    parser.add_argument(
        "--audit-dir",
        metavar="DIR",
        help="where the audit trail of what is forgotten is written first, a file for each session",
    )
    table = parser.add_argument_group("limits")
    for field in limit_fields():
        table.add_argument(
            flag_of(field.name),
            dest=field.name,
            metavar=_metavar(field),
            help=f"{bounds_of(field).text} (default {_spelled(field, field.default)})",
        )
    return parser


_SIZES: Final = {"G": GIB, "M": MIB, "K": KIB}
_TIMES: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def _units(field: dataclasses.Field[Any]) -> Mapping[str, int]:
    """The suffixes a value may have, the largest first."""
    if "bytes" in field.name.split("_"):
        return _SIZES
    return _TIMES if field.name.endswith("_s") else {}


def _metavar(field: dataclasses.Field[Any]) -> str:
    if field.type == "bool":
        return "yes|no"
    return "TIME" if _units(field) is _TIMES else "N"


def _spelled(field: dataclasses.Field[Any], value: Any) -> str:
    """A value as it may be given."""
    if field.type == "bool":
        return "yes" if value else "no"
    for suffix, size in _units(field).items():
        if value and value % size == 0:
            return f"{value // size}{suffix}"
    return str(value)


_WORDS: Final = {"yes": True, "no": False, "1": True, "0": False, "true": True, "false": False}


def _parse_value(field: dataclasses.Field[Any], text: str) -> int | bool:
    if field.type == "bool":
        if text.lower() not in _WORDS:
            raise UsageError(f"{flag_of(field.name)} takes yes or no")
        return _WORDS[text.lower()]
    digits, factor = text, 1
    for suffix, size in _units(field).items():
        if text[-1:].lower() == suffix.lower():
            digits, factor = text[:-1], size
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise UsageError(f"{flag_of(field.name)} takes a whole number, not {text[:40]!r}")
    return int(digits) * factor


def _parse_listen(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UsageError("--listen takes HOST:PORT, for example 127.0.0.1:8080 or [::1]:8080")
    return host, int(port)


def _data(given: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    if given["ephemeral"]:
        return None
    if given["data"]:
        return str(given["data"])
    ephemeral = environment.get("AIRLOX_EPHEMERAL", "no").lower()
    if _WORDS.get(ephemeral, False):
        return None
    data = environment.get("AIRLOX_DATA")
    if not data:
        raise UsageError(
            "where should the relay keep its data?",
            hint="give --data DIR, or --ephemeral to keep everything in memory",
        )
    return data


def _log_level(text: str) -> str:
    if text.lower() not in ("debug", "info", "warning", "error"):
        raise UsageError("--log-level takes debug, info, warning or error")
    return text.lower()
