"""`airlox mcp`: the server as agents start it, and what it prints to set them up."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from mcp.shared.exceptions import MCPError

from airlox.agents.configs import CLIENTS, WORKER_TOOLS
from airlox.agents.prompts import worker_prompt
from airlox.cli import main as front
from airlox.cli import mcp
from airlox.mcp.tools import TOOLS
from mcp import Client, StdioServerParameters
from support.mcp_client import ROOT, TIMEOUT_S, run
from support.mcp_raw import raw_server

MODULE = [sys.executable, "-m", "airlox.cli", "mcp"]


class TestConfig:
    def test_every_client_is_known(self) -> None:
        assert set(mcp.CLIENTS) == set(CLIENTS)

    @pytest.mark.parametrize("client", ["claude", "cursor", "vscode", "opencode"])
    def test_is_json(self, client: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert front.main(["mcp", "config", client]) == 0
        printed = capsys.readouterr()
        assert "airlox" in str(json.loads(printed.out))
        assert "belongs in" in printed.err

    def test_of_codex_is_toml(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert front.main(["mcp", "config", "codex", "--allow-dir", "/tmp/a b"]) == 0
        server = tomllib.loads(capsys.readouterr().out)["mcp_servers"]["airlox"]
        assert server["command"] == "airlox"
        assert server["args"] == ["mcp", "--tools", "worker", "--allow-dir", "/tmp/a b"]

    def test_as_a_document(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert front.main(["mcp", "config", "claude", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert sorted(document) == ["advice", "config", "file"]
        json.loads(document["config"])

    def test_of_another_client(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert front.main(["mcp", "config", "emacs"]) == 2
        assert "claude" in capsys.readouterr().err


def test_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.main(["mcp", "prompt"]) == 0
    assert capsys.readouterr().out.strip() == worker_prompt().strip()
    assert front.main(["mcp", "prompt", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"prompt": worker_prompt()}


@pytest.mark.parametrize("flags", [["--port", "80"], ["--no-token"]])
def test_flags_that_go_with_http(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert front.main(["mcp", *flags]) == 2
    assert "--http" in capsys.readouterr().err


@pytest.mark.parametrize("names", ["send_txt", "worker,nothing", ""])
def test_tools_that_are_none(names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.main(["mcp", "--tools", names]) == 2
    assert "create_session" in capsys.readouterr().err


def test_standard_input_is_for_the_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.main(["mcp", "--invite-file", "-"]) == 2
    assert "AIRLOX_INVITE" in capsys.readouterr().err


def test_without_the_extra() -> None:
    program = "import sys; sys.modules['mcp'] = None\n"
    program += "from airlox.cli.main import main; sys.exit(main(['mcp']))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 1
    assert "needs mcp, which is not installed" in done.stderr
    assert "pip install 'airlox[mcp]'" in done.stderr


class TestServer:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [("worker", WORKER_TOOLS), ("send_text,list_items", ("list_items", "send_text"))],
    )
    def test_only_some_tools(self, tmp_path: Path, given: str, expected: tuple[str, ...]) -> None:
        server = StdioServerParameters(
            command=sys.executable,
            args=[*MODULE[1:], "--tools", given, "--cache-dir", str(tmp_path / "cache")],
            env={"PYTHONPATH": str(ROOT / "src")},
            cwd=tmp_path,
        )

        async def test() -> None:
            async with Client(server) as client:
                listed = await client.list_tools()
                assert tuple(tool.name for tool in listed.tools) == expected
                with pytest.raises(MCPError):
                    await client.call_tool("close_session", {})

        run(test)

    def test_an_agent_finds_the_tools(self, tmp_path: Path) -> None:
        server = StdioServerParameters(
            command=sys.executable,
            args=[*MODULE[1:], "--cache-dir", str(tmp_path / "cache")],
            env={"PYTHONPATH": str(ROOT / "src")},
            cwd=tmp_path,
        )

        async def test() -> None:
            async with Client(server) as client:
                listed = await client.list_tools()
                assert [tool.name for tool in listed.tools] == [tool.name for tool in TOOLS]
                refused = await client.call_tool("list_items", {})
                assert refused.is_error
                assert "join_session" in str(refused.content)

        run(test)

    def test_over_http_it_names_the_file_of_its_token(self, tmp_path: Path) -> None:
        argv = [*MODULE, "--http", "--json", "--cache-dir", str(tmp_path / "cache")]
        with raw_server(argv, cwd=tmp_path) as server:
            told = server.answer()
            assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/mcp", told["url"])
            path = Path(told["token_file"])
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
            assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(TIMEOUT_S) == 0
            assert not path.exists()
