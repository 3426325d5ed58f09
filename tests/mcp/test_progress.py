"""Live output on its way: the newest of it, not too often, short and without control characters."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.mcp.progress import MOST_CHARACTERS, News, shorten, tell
from support.mcp_client import run, until


@given(st.text())
def test_any_text_is_shown_on_one_short_line(text: str) -> None:
    shown = shorten(text)
    assert len(shown) <= MOST_CHARACTERS
    assert all(character.isprintable() for character in shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("building\n\tstep 3 ", "building step 3"),
        ("\x1b[31mred\x1b[0m", "[31mred [0m"),
        ("a" * 5000 + " end", "…" + "a" * (MOST_CHARACTERS - 5) + " end"),
        ("", ""),
    ],
)
def test_the_end_of_it_is_shown(text: str, shown: str) -> None:
    assert shorten(text) == shown


class TestTell:
    def test_the_newest_is_told_whoever_says_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airlox.mcp.progress.GAP_S", 0.05)

        async def test() -> None:
            news = News(asyncio.get_running_loop())
            told: list[tuple[float, str]] = []

            async def report(number: float, text: str) -> None:
                told.append((number, text))

            def say() -> None:
                for number in range(10_000):
                    news.put(str(number))

            telling = asyncio.create_task(tell(news, report))
            talker = threading.Thread(target=say)
            talker.start()
            await until(lambda: bool(told) and told[-1][1] == "9999")
            telling.cancel()
            talker.join()
            numbers = [number for number, _ in told]
            assert numbers == sorted(set(numbers))
            assert len(told) < 1000

        run(test)

    def test_silence_is_told_now_and_then(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airlox.mcp.progress.GAP_S", 0.0)

        async def test() -> None:
            news = News(asyncio.get_running_loop())
            told: list[str] = []

            async def report(number: float, text: str) -> None:
                told.append(text)

            telling = asyncio.create_task(tell(news, report, quiet_s=0.01))
            await until(lambda: len(told) > 2)
            telling.cancel()
            assert set(told) == {"still working"}

        run(test)

    def test_nobody_listens_any_more(self) -> None:
        loop = asyncio.new_event_loop()
        news = News(loop)
        loop.close()
        news.put("unheard")
        assert news.text == "unheard"
