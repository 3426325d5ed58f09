"""`airlox help`, its topics, and the man pages, which are made of the same."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import make_man
import pytest

from airlox.cli import main as front
from airlox.cli import options, topics
from airlox.cli.main import main
from support import parts

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "man").glob("man*/*"))
WIDTH = 80


def out(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["help", *words]) == 0
    return capsys.readouterr().out


class TestTopics:
    def test_all_are_listed(self, capsys: pytest.CaptureFixture[str]) -> None:
        listed = [line.split()[0] for line in out(capsys, "topics").splitlines()]
        assert listed == list(topics.TOPICS)
        assert json.loads(out(capsys, "topics", "--json"))["topics"].keys() == set(topics.TOPICS)

    def test_each_file_is_a_topic(self) -> None:
        found = {path.stem for path in Path(topics.__file__).parent.glob("*.txt")}
        assert found == set(topics.TOPICS)
        assert not found & front.COMMANDS.keys()

    @pytest.mark.parametrize("name", topics.TOPICS)
    def test_one(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        shown = out(capsys, name)
        summary, text = topics.read(name)
        assert shown == f"{summary}\n\n{text}"
        assert max(map(len, shown.splitlines())) <= WIDTH

    def test_in_two_words(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert out(capsys, "exit", "codes") == out(capsys, "exit-codes")

    def test_every_variable_is_explained(self) -> None:
        text = topics.read("environment")[1]
        for value in vars(options).values():
            if isinstance(value, str) and value.startswith("AIRLOX_"):
                assert f"  {value} " in text

    def test_every_exit_code_is_explained(self) -> None:
        text = topics.read("exit-codes")[1]
        found = {name: code for name, code in vars(front).items() if name.startswith("EXIT_")}
        codes = [
            code
            for value in found.values()
            for code in (value.values() if isinstance(value, dict) else (value,))
        ]
        assert len(codes) > 5
        assert len(codes) == len(set(codes))
        for code in codes:
            assert re.search(rf"^  {code} ", text, re.MULTILINE)

    @pytest.mark.parametrize("name", topics.TOPICS)
    def test_commands_it_shows_are_commands(self, name: str) -> None:
        for command in re.findall(r"(?:^  |`)airlox ([a-z]+)", topics.read(name)[1], re.MULTILINE):
            assert command in front.COMMANDS


class TestCommands:
    def test_without_words_it_is_the_front(self, capsys: pytest.CaptureFixture[str]) -> None:
        shown = out(capsys)
        assert main(["--help"]) == 0
        assert capsys.readouterr().out == shown

    @pytest.mark.parametrize("words", [["run"], ["session", "create"], ["audit", "verify"]])
    def test_of_a_command(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        shown = out(capsys, *words)
        assert main([*words, "--help"]) == 0
        assert capsys.readouterr().out == shown

    @pytest.mark.parametrize(
        ("words", "hint"),
        [
            (["tres"], "did you mean trees?"),
            (["sessoin"], "did you mean session?"),
            (["zzz"], "airlox help topics lists them"),
            (["session", "zzz"], "it has create, info"),
            (["run", "zzz"], "airlox run --help"),
        ],
    )
    def test_what_is_not_there(
        self, words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["help", *words]) == 2
        assert hint in capsys.readouterr().err


class TestManPages:
    def test_they_are_as_they_would_be_written(self) -> None:
        written = {f"{path.parent.name}/{path.name}": path.read_text() for path in PAGES}
        assert written == dict(make_man.all_pages()), "run `make man`"

    def test_they_say_nothing_that_roff_takes_for_a_request(self) -> None:
        assert make_man._quote(".x\\y\n'z - a") == "\\&.x\\ey\n\\&'z \\- a"

    @pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
    def test_they_are_sound(self, path: Path) -> None:
        parts.require("mandoc")
        done = subprocess.run(
            ["mandoc", "-T", "lint", "-W", "warning", path],
            capture_output=True,
            text=True,
            timeout=60,
        )
        found = [line for line in done.stdout.splitlines() if "missing date" not in line]
        assert found == []
