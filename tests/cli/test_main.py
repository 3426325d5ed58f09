"""Finding the command, and what its end means to whoever called."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from airlox import __version__
from airlox.cli import main as front
from airlox.cli.options import CommandLineError
from airlox.errors import (
    AirloxError,
    ConnectionLost,
    JobRefused,
    RelayError,
    SandboxError,
    UsageError,
    WaitTimeout,
)

ACTIONS = {
    "audit": ("verify",),
    "session": ("create", "info", "invites", "code", "revoke", "audit", "close"),
    "send": ("text", "file"),
    "job": ("ls",),
    "runner": ("join", "list", "approve", "reject"),
    "machine": ("add", "ls", "invite", "approve", "rm"),
}
LEAVES = [
    (command, *action)
    for command in front.COMMANDS
    for action in ([(a,) for a in ACTIONS[command]] if command in ACTIONS else [()])
]


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "airlox.cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environ,
    )


class TestFront:
    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert front.main(["--version"]) == 0
        assert capsys.readouterr().out == f"airlox {__version__}\n"

    def test_help_names_every_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert front.main(["--help"]) == 0
        shown = capsys.readouterr().out
        assert all(f"  {command} " in shown for command in front.COMMANDS)

    def test_nothing_is_wrong_usage(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert front.main([]) == 2
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize("words", [["--version"], ["--help"]])
    def test_neither_imports_much(self, words: list[str]) -> None:
        program = (
            "import sys; before = set(sys.modules)\n"
            f"from airlox.cli.main import main; main({words!r})\n"
            "print(*sorted(set(sys.modules) - before), file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
        loaded = {name.partition(".")[0] for name in done.stderr.split()}
        assert loaded <= sys.stdlib_module_names | {"airlox"}
        assert not loaded & {"argparse", "json", "http", "ssl", "asyncio", "importlib"}

    @pytest.mark.parametrize("leaf", LEAVES, ids=" ".join)
    def test_every_help_has_an_example(
        self, leaf: tuple[str, ...], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert front.main([*leaf, "--help"]) == 0
        shown = capsys.readouterr().out
        command = " ".join(leaf)
        example = shown.partition("example:\n")[2]
        assert f"airlox {command}" in example
        for flag in ("--json", "--quiet", "--cache-dir"):
            assert flag in shown

    @pytest.mark.parametrize("command", ACTIONS)
    def test_help_of_a_group(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert front.main(["help", command]) == 0
        shown = capsys.readouterr().out
        assert all(f"    {action} " in shown for action in ACTIONS[command])

    def test_the_group_alone_is_wrong_usage(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert front.main(["session"]) == 2
        assert "airlox session --help" in capsys.readouterr().err

    def test_a_near_miss_is_told(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert front.main(["sesion", "create"]) == 2
        assert "did you mean session?" in capsys.readouterr().err

    def test_abbreviated_flags_are_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert front.main(["items", "--js"]) == 2
        assert "--js" in capsys.readouterr().err


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A command `end` that ends as the test says."""
    module = types.ModuleType("airlox.cli.ending_for_tests")
    module.__dict__["add_arguments"] = lambda parser, command: True
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(front.COMMANDS, "end", ("ending_for_tests", "end"))
    return module


def end_with(module: types.ModuleType, error: BaseException) -> int:
    def run(args: object, voice: object) -> int:
        raise error

    module.__dict__["run"] = run
    return front.main(["end"])


class TestExitCodes:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (CommandLineError("x"), 2),
            (UsageError("no such runner"), 1),
            (AirloxError("x"), 1),
            (RelayError(409, "exists", "x"), 1),
            (ConnectionLost("x"), 1),
            (JobRefused("x"), 1),
            (WaitTimeout("x"), 75),
            (SandboxError("x"), 78),
            (KeyboardInterrupt(), 130),
            (SystemExit(143), 143),
            (FileNotFoundError(2, "No such file", "here"), 1),
        ],
    )
    def test_table(self, ending: types.ModuleType, error: BaseException, code: int) -> None:
        assert end_with(ending, error) == code

    def test_the_command_s_own(self, ending: types.ModuleType) -> None:
        ending.__dict__["run"] = lambda args, voice: 42
        assert front.main(["end"]) == 42

    def test_a_missing_file_is_named(
        self, ending: types.ModuleType, capsys: pytest.CaptureFixture[str]
    ) -> None:
        end_with(ending, FileNotFoundError(2, "No such file", "here"))
        assert capsys.readouterr().err == "airlox: here: No such file\n"

    def test_a_bug_is_reported_without_its_words(
        self,
        ending: types.ModuleType,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        assert end_with(ending, ValueError("the link is s3cret")) == 1
        said = capsys.readouterr().err
        assert "bug: ValueError at cli/main.py:" in said
        assert "s3cret" not in said
        assert "Traceback" not in said
        monkeypatch.setenv("AIRLOX_DEBUG", "1")
        end_with(ending, ValueError("the link is s3cret"))
        assert "Traceback" in capsys.readouterr().err


class TestPipes:
    def test_a_reader_that_left_is_no_error(self) -> None:
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, "-m", "airlox.cli", "machine", "invite", "--help"],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=60,
        )
        os.close(write)
        assert done.stderr == b""

    def test_errors_of_a_command_line_are_one_json_line(self) -> None:
        done = run("items", "--json", AIRLOX_INVITE="")
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith('{"error":"no session given","code":"no_invite"')

    def test_json_after_the_dashes_is_the_command_s(self) -> None:
        done = run("run", "--", "tool", "--json", AIRLOX_INVITE="")
        assert done.returncode == 2
        assert done.stderr.startswith("airlox: no session given")


class TestHelpIsQuick:
    @pytest.mark.parametrize("command", front.COMMANDS)
    def test_it_loads_no_client(self, command: str) -> None:
        program = (
            "import sys\n"
            f"from airlox.cli.main import main; main([{command!r}, '--help'])\n"
            "print(*sorted(sys.modules), file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
        loaded = done.stderr.split()
        assert not {"msgspec", "nacl", "http.client", "airlox.client.session"} & set(loaded)


class TestStartIsQuick:
    def test_parsing_loads_no_compressors(self) -> None:
        """Which come with what argparse would look up the width of the terminal with."""
        program = (
            "import sys\n"
            "from airlox.cli.main import _prepare\n"
            "_prepare(['run', '--on', 'box', '--', 'true'])\n"
            "print(*sorted(sys.modules))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
        assert not {"shutil", "bz2", "lzma", "msgspec"} & set(done.stdout.split())


class TestEnd:
    def test_what_was_printed_arrives(self) -> None:
        """Though the process leaves without taking itself down."""
        for words in (["--version"], ["--help"], ["run", "--help"]):
            done = run(*words)
            assert (done.returncode, done.stdout[-1:]) == (0, "\n")
            assert len(done.stdout) > len("airlox ")

    def test_a_reader_that_left_is_no_fault(self) -> None:
        readable, writable = os.pipe()
        os.close(readable)
        done = subprocess.run(
            [sys.executable, "-m", "airlox.cli", "--help"],
            stdout=writable,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"PYTHONUNBUFFERED": ""},
        )
        os.close(writable)
        assert (done.returncode, done.stderr) == (0, "")
