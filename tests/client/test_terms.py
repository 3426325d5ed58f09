"""The terms of a session: what callers may give, and what it becomes in the manifest."""

from __future__ import annotations

import os
from typing import Any

import pytest

from airlox.client import terms
from airlox.errors import LimitError, UsageError, ValidationError
from airlox.protocol.manifest import Manifest, parse_manifest
from support.world import NOW_MS


def make(**changes: Any) -> Manifest:
    given: dict[str, Any] = {
        "mode": "execute",
        "created_at_ms": NOW_MS,
        "ttl": "1h",
        "allowed_types": ["text", "py"],
        "max_item_bytes": 1_000_000,
        "job_limits": None,
        "features": None,
    }
    return parse_manifest(terms.new_manifest(os.urandom(32), **(given | changes)))


@pytest.mark.parametrize(
    ("ttl", "ms"),
    [(90, 90_000), (1.5, 1500), ("90", 90_000), ("30m", 1_800_000), (" 2 h ", 7_200_000)],
)
def test_lifetimes(ttl: int | float | str, ms: int) -> None:
    assert make(ttl=ttl).expires_at_ms == NOW_MS + ms


@pytest.mark.parametrize("ttl", [None, "never"])
def test_a_session_without_an_end(ttl: str | None) -> None:
    assert make(ttl=ttl).expires_at_ms is None


@pytest.mark.parametrize("ttl", ["soon", "", "1w", "-5", "1h30m", "9" * 30, float("nan"), 1e999])
def test_what_is_no_lifetime(ttl: float | str) -> None:
    with pytest.raises(UsageError) as caught:
        make(ttl=ttl)
    assert caught.value.hint


@pytest.mark.parametrize("ttl", [0, -1, "31d", 2**70])
def test_lifetimes_out_of_bounds(ttl: int | str) -> None:
    with pytest.raises((LimitError, ValidationError)):
        make(ttl=ttl)


def test_the_limits_of_the_readme_make_a_floor_session() -> None:
    given = {
        "runtime": "python3.12",
        "timeout_s": 120,
        "memory_mb": 2048,
        "network": False,
        "packages": ["pandas", "matplotlib"],
        "return_out": True,
        "approve_runners": True,
    }
    manifest = make(job_limits=given)
    assert not manifest.is_full
    limits = manifest.job_limits
    assert limits is not None
    assert (limits.timeout_s, limits.memory_mb) == (120, 2048)
    assert sorted(limits.packages) == ["matplotlib", "pandas"]


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        ({"job_limits": {"kinds": ["python", "shell"]}}, ["python", "shell"]),
        ({"job_limits": {"kinds": ("shell",)}}, ["shell"]),
        ({"job_limits": {"packages": ["numpy>=1.26,<3"]}}, ["python"]),
        ({"features": ["live"]}, ["python"]),
    ],
)
def test_what_makes_a_full_one(given: dict[str, Any], kinds: list[str]) -> None:
    manifest = make(**given)
    assert manifest.is_full
    assert sorted(manifest.kinds) == kinds


@pytest.mark.parametrize(
    ("written", "entry"),
    [
        ("pandas", "pandas"),
        ("PyYAML", "pyyaml"),
        ("scikit_learn", "scikit-learn"),
        ("zope.interface", "zope-interface"),
        ("cugrid==0.1.0", "cugrid==0.1.0"),
        ("numpy>=1.26,<3", "numpy<3,>=1.26"),
        (" NumPy >= 1.26, <3, <3 ", "numpy<3,>=1.26"),
        ("numpy~=1.26", "numpy~=1.26"),
    ],
)
def test_packages_as_people_write_them(written: str, entry: str) -> None:
    limits = make(job_limits={"packages": [written]}).job_limits
    assert limits is not None
    assert limits.packages == (entry,)


@pytest.mark.parametrize(
    "written", ["", "numpy[extra]", "numpy>=", "numpy==1,", "-x", "numpy @ https://x", "é", "a b"]
)
def test_what_is_no_package(written: str) -> None:
    with pytest.raises(ValidationError):
        make(job_limits={"packages": [written]})


@pytest.mark.parametrize(
    "given",
    [
        {"mode": "exec"},
        {"mode": "relay", "job_limits": {"timeout_s": 5}},
        {"allowed_types": ["exe"]},
        {"features": ["telepathy"]},
        {"job_limits": {"timeout": 5}},
        {"job_limits": {"timeout_s": "5"}},
        {"job_limits": {"kinds": ["perl"]}},
        {"job_limits": {"kinds": "shell"}},
        {"job_limits": {"packages": "pandas"}},
    ],
)
def test_mistakes_are_named_with_what_is_known(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        make(**given)
