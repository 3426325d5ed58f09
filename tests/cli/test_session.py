"""What the flags of `airlox session create` ask for."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from airlox.cli import opening, session
from airlox.cli.options import CommandLineError, Parser
from airlox.client.session import Session
from airlox.errors import RelayError, UsageError

from .test_output import Spoken


def parse(*words: str) -> Namespace:
    parser = Parser(prog="airlox session")
    session.add_arguments(parser, "session")
    return parser.parse_args(["create", *words])


def wish(*words: str) -> dict[str, Any]:
    return session._wish(parse(*words))


class TestWish:
    def test_nothing_said(self) -> None:
        assert wish() == {
            "mode": "relay",
            "ttl_s": 3600,
            "allowed_types": ("text", "py", "md", "zip", "image"),
            "max_item_mb": 25,
            "job_limits": None,
            "features": None,
            "insecure_http_host": None,
            "may_lower": (),
        }

    def test_a_floor_session_names_no_kinds(self) -> None:
        assert wish("--execute")["job_limits"] == {}
        assert wish("--mode", "execute") == wish("--execute")

    def test_every_job_flag(self) -> None:
        given = wish(
            *("--execute", "--runtime", "python3.11", "--job-timeout", "2m", "--job-memory", "1G"),
            *("--network", "--package", "a,b==1", "--package", "c", "--kinds", "python,shell"),
            *("--no-out-files", "--no-approval", "--features", "live,trees"),
        )
        assert given["job_limits"] == {
            "runtime": "python3.11",
            "timeout_s": 120,
            "memory_mb": 1024,
            "network": True,
            "packages": ("a", "b==1", "c"),
            "kinds": ("python", "shell"),
            "return_out": False,
            "approve_runners": False,
        }
        assert given["features"] == ("live", "trees")

    def test_lifetime_and_types(self) -> None:
        given = wish("--ttl", "never", "--types", "text,md", "--max-item-mb", "5")
        assert given["ttl_s"] is None
        assert given["allowed_types"] == ("text", "md")
        assert given["max_item_mb"] == 5
        assert wish("--ttl", "7d")["ttl_s"] == 604_800

    def test_the_profile_of_a_host_runner(self) -> None:
        given = wish("--profile", "host-runner")
        assert given["mode"] == "execute"
        assert given["ttl_s"] is None
        assert given["max_item_mb"] == 100
        assert given["may_lower"] == (opening.TTL, opening.ITEMS)
        assert given["job_limits"] == {
            "timeout_s": 1800,
            "memory_mb": 4096,
            "approve_runners": True,
        }

    def test_flags_win_over_the_profile(self) -> None:
        given = wish(
            "--profile", "host-runner", "--ttl", "1d", "--job-memory", "512", "--no-approval"
        )
        assert given["ttl_s"] == 86_400
        assert given["job_limits"] == {
            "timeout_s": 1800,
            "memory_mb": 512,
            "approve_runners": False,
        }
        assert given["may_lower"] == (opening.ITEMS,)

    @pytest.mark.parametrize(
        "words",
        [
            ("--network",),
            ("--kinds", "shell"),
            ("--features", "live"),
            ("--execute", "--mode", "relay"),
            ("--profile", "host-runner", "--mode", "relay"),
        ],
    )
    def test_what_does_not_go_together(self, words: tuple[str, ...]) -> None:
        with pytest.raises(CommandLineError):
            wish(*words)

    @pytest.mark.parametrize(
        "words", [("--types", "exe"), ("--kinds", ""), ("--ttl", "0"), ("--max-item-mb", "0")]
    )
    def test_bad_values(self, words: tuple[str, ...]) -> None:
        with pytest.raises(CommandLineError):
            parse(*words)


class TestOwnerFile:
    def test_is_private_and_new(self, tmp_path: Path) -> None:
        path = tmp_path / "owner"
        session._reserve(str(path))
        assert os.stat(path).st_mode & 0o777 == 0o600
        with pytest.raises(UsageError, match="exists already"):
            session._reserve(str(path))

    def test_nothing_is_left_when_no_session_was_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise RelayError(507, "full", "no room")

        monkeypatch.setattr(opening, "create_session", refuse)
        args = parse("--owner-invite-file", str(tmp_path / "owner"))
        with pytest.raises(RelayError):
            session._create(args, Spoken().voice)
        assert not (tmp_path / "owner").exists()


class TestLowering:
    """A relay that grants less than a profile asks for."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def create(relay: str, **terms: Any) -> str:
            asked.append(terms)
            if terms["ttl"] is None:
                raise RelayError(403, "never_expires_not_allowed", "no")
            if terms["max_item_bytes"] > 25 * opening.MB:
                raise RelayError(403, "policy", "no")
            return "session"

        monkeypatch.setattr(Session, "create", create)
        return asked

    def test_where_it_may_be(self, asked: list[dict[str, Any]]) -> None:
        said = Spoken()
        made: Any = opening.create_session(
            Namespace(relay="http://127.0.0.1:1", cache_dir="c"),
            said.voice,
            ttl_s=None,
            max_item_mb=100,
            may_lower=(opening.TTL, opening.ITEMS),
        )
        assert made == "session"
        assert (asked[-1]["ttl"], asked[-1]["max_item_bytes"]) == (30 * 86_400, 25 * opening.MB)
        assert "30 days" in said.err.text
        assert "25 MB" in said.err.text

    def test_what_the_relay_says_it_allows_is_asked_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[tuple[Any, int]] = []

        def create(relay: str, **terms: Any) -> str:
            asked.append((terms["ttl"], terms["max_item_bytes"]))
            if terms["max_item_bytes"] > 50 * opening.MB:
                raise RelayError(403, "policy", "no", limit={"max_item_bytes": 50 * opening.MB})
            if terms["ttl"] is None or terms["ttl"] > 86_400:
                raise RelayError(403, "policy", "no", limit={"lifetime_ms": 86_400_000})
            return "session"

        monkeypatch.setattr(Session, "create", create)
        said = Spoken()
        opening.create_session(
            Namespace(relay="http://127.0.0.1:1", cache_dir="c"),
            said.voice,
            ttl_s=None,
            max_item_mb=100,
            may_lower=(opening.TTL, opening.ITEMS),
        )
        assert asked[-1] == (86_400, 50 * opening.MB)
        assert "50 MB" in said.err.text
        assert "24 h" in said.err.text

    @pytest.mark.parametrize("limit", [{}, {"max_item_bytes": 0}, {"max_item_bytes": 1 << 40}])
    def test_a_relay_that_refuses_everything_is_not_asked_for_ever(
        self, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
    ) -> None:
        asked: list[str] = []

        def create(relay: str, **terms: Any) -> str:
            asked.append(relay)
            raise RelayError(403, "policy", "no", limit=limit)

        monkeypatch.setattr(Session, "create", create)
        with pytest.raises(RelayError):
            opening.create_session(
                Namespace(relay="http://127.0.0.1:1", cache_dir="c"),
                Spoken().voice,
                ttl_s=None,
                max_item_mb=100,
                may_lower=(opening.TTL, opening.ITEMS),
            )
        assert len(asked) <= 2

    def test_what_was_asked_for_is_given_or_refused(self, asked: list[dict[str, Any]]) -> None:
        with pytest.raises(RelayError, match="never_expires"):
            opening.create_session(
                Namespace(relay="http://127.0.0.1:1", cache_dir="c"),
                Spoken().voice,
                ttl_s=None,
                max_item_mb=1,
                may_lower=(opening.ITEMS,),
            )
        assert len(asked) == 1
