"""The official conformance suite at the server, over HTTP, at both revisions that it scores."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import node_packages, parts
from support.mcp_raw import raw_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

REVISIONS = ("2025-11-25", "2026-07-28")
DOES_NOT_APPLY = {
    # no tool of ours needs a client that knows tasks
    ("tasks-required-task-error", "sep-2663-server-returns-missing-capability-when-required"),
    # asks for a name; questions of ours are answered by yes or no
    ("tasks-mrtr-composition", "sep-2663-mrtr-synchronous-before-task-creation"),
}
"""Checks of optional extensions, by scenario, that our layer has no use for."""
OWN = ("server-initialize", "ping", "tools-list", "dns-rebinding-protection")
"""Scenarios that need no tools of the suite's own."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    parts.require("npm packages")
    with raw_server([sys.executable, "-m", "support.mcp_conformance"]) as running:
        assert running.err is not None
        line = running.err.until(lambda line: line.startswith(b"serving on"))
        yield line.split()[-1].decode()


def suite(url: str, results: Path, *words: str) -> tuple[str, set[tuple[str, str]]]:
    """The suite's own words, and the checks that failed, by scenario."""
    program = str(node_packages.CONFORMANCE / "dist" / "index.js")
    done = node_packages.run(program, "server", "--url", url, "-o", str(results), *words)
    failed = set()
    for path in results.glob("*/checks.json"):
        scenario = re.sub(r"-\d{4}-\d\d-\d\dT.*", "", path.parent.name).removeprefix("server-")
        checks = json.loads(path.read_text())
        failed |= {(scenario, each["id"]) for each in checks if each["status"] == "FAILURE"}
    return f"{done.stdout}\n{done.stderr}", failed


@pytest.mark.parametrize("revision", REVISIONS)
def test_all_that_a_revision_requires(server: str, revision: str, tmp_path: Path) -> None:
    words, failed = suite(server, tmp_path, "--requirements", revision)
    assert "=== SUMMARY ===" in words
    assert failed <= DOES_NOT_APPLY, words
    required = words.split("=== SUMMARY ===")[1]
    assert required.count("✓") > 30


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_product_itself(revision: str, tmp_path: Path) -> None:
    parts.require("npm packages")
    argv = [sys.executable, "-m", "airlox.cli", "mcp", "--http", "--no-token"]
    argv += ["--cache-dir", str(tmp_path / "cache")]
    with raw_server(argv, cwd=tmp_path) as running:
        assert running.out is not None
        line = running.out.until(lambda line: line.startswith(b"serving on"))
        for scenario in OWN:
            flags = ("--scenario", scenario, "--spec-version", revision)
            words, failed = suite(line.split()[-1].decode(), tmp_path / scenario, *flags)
            assert not failed, words
