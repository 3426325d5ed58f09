"""`airlox completion` in real shells, and that it offers what the commands take."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from airlox.cli import completion, parsers
from airlox.cli.main import COMMANDS, main
from airlox.client.machines import Machine, Machines
from support import parts

ASK_BASH = """
eval "$(airlox completion bash)"
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
"$(complete -p airlox | sed 's/.* -F \\([^ ]*\\) .*/\\1/')" airlox
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def in_shell(shell: str, code: str, cache: Path) -> list[str]:
    """The lines that a shell prints."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        [shell, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": path, "HOME": str(cache), "AIRLOX_CACHE_DIR": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    for name in ("gpu-box", "mac"):
        Machines(tmp_path).add(
            Machine(
                name=name,
                session_id="s",
                relay="r",
                owner_invite="x",
                sender_invite="x",
                created_at_ms=1,
            )
        )
    return tmp_path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("airlox mach", "machine"),
        ("airlox session cre", "create"),
        ("airlox run --tree-all", "--tree-allow"),
        ("airlox run --on gp", "gpu-box"),
        ("airlox completion fi", "fish"),
    ],
)
def test_bash_offers(words: str, offered: str, cache: Path) -> None:
    assert offered in in_shell("bash", ASK_BASH.format(words=words), cache)


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_script_is_sound(shell: str, tmp_path: Path) -> None:
    """The shell itself reads it, where it is here."""
    if shell != "bash":
        parts.require(shell)
    path = tmp_path / "script"
    path.write_text(completion.script(shell))
    flag = "--no-execute" if shell == "fish" else "-n"
    assert subprocess.run([shell, flag, path], timeout=60).returncode == 0


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_every_command_and_flag_is_in_it(shell: str) -> None:
    text = completion.script(shell)
    for name in COMMANDS:
        assert name in text
        _, parser = parsers.parser_of(name)
        for each in [found for _, found in parsers.actions_of(parser)] or [parser]:
            for action in each._actions:
                for flag in action.option_strings[-1:]:
                    assert flag.lstrip("-") in text, (name, flag)


def test_without_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    assert "airlox completion bash|zsh|fish" in capsys.readouterr().err


def test_names_of_machines(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "--machines", "--cache-dir", str(cache)]) == 0
    assert capsys.readouterr().out == "gpu-box\nmac\n"
    assert main(["completion", "--machines", "--cache-dir", str(cache / "none")]) == 0
    assert capsys.readouterr().out == ""


def test_the_scripts_are_the_same_each_time() -> None:
    assert completion.script("zsh") == completion.script("zsh")
    assert shutil.which("airlox", path=str(Path(sys.executable).parent))
