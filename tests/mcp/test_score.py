"""Public rules for MCP servers (mcpscore), and what the tools cost a model in tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airlox.mcp.results import listed
from airlox.mcp.tools import TOOLS
from support import node_packages, parts

MOST_TOKENS = 2_000
MOST_TOKENS_IN_ALL = 3_500
NOT_OURS = {
    # the SDK lists the revisions that are spoken without a handshake
    "protocol_version_supported_versions_include_negotiated",
    "capability_tools_list_changed",  # tools do not change while a server runs
    "server_icons_present",
    "server_websiteurl_present",  # there is no site
    "tools_output_properties_documented",  # each description is paid for by every model
}
COUNT = """
const {countTokens} = require("gpt-tokenizer/encoding/o200k_base");
const texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(texts.map((text) => countTokens(text))));
"""


@pytest.mark.slow
def test_public_rules(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("mcpscore")
    server = [sys.executable, "-m", "airlox.cli", "mcp", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [program, "--no-config", "--smoke", "--json", "--stdio", *server],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "MCPSCORE_TOKEN"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    report: Any = json.loads(done.stdout)
    failed = {each["rule_id"] for each in report["results"] if not each["passed"]}
    assert failed <= NOT_OURS
    readiness = report["readiness"]
    assert readiness["score"] == readiness["max_score"] > 20


@pytest.mark.slow
def test_tokens() -> None:
    parts.require("npm packages")
    tools = [
        listed(tool).model_dump(by_alias=True, mode="json", exclude_none=True) for tool in TOOLS
    ]
    parts_shown = [
        part
        for tool in tools
        for part in (tool["name"], tool["description"], _json(tool["inputSchema"]))
    ]
    counted = node_packages.run("-e", COUNT, stdin=json.dumps([_json(tools), *parts_shown]))
    assert counted.returncode == 0, counted.stderr
    of_all, *of_shown = json.loads(counted.stdout)
    assert sum(of_shown) <= MOST_TOKENS
    assert of_all <= MOST_TOKENS_IN_ALL


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
