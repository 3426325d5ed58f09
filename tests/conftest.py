"""What every test may count on: no setting of the person who runs it, and steady properties."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from support import engine

# A shared machine may pause for a second, and time is never what a property is about. Where CI is
# set, hypothesis' own profile draws the same examples every time.
settings.register_profile(
    "airlox",
    settings.get_profile("ci" if os.environ.get("CI") else "default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("airlox")


def pytest_configure(config: pytest.Config) -> None:
    """Forget the caller's AIRLOX_* settings, and give tests a cache that is not the caller's.

    Here, not in a fixture: module-wide fixtures and the processes they start must see it too.
    Nor do those ignore Ctrl-C, as all does that a script starts in the background, or the end of
    a terminal, as all does that `nohup` starts: what has a handler here is as usual in a child.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)
    for name in [name for name in os.environ if name.startswith("AIRLOX_")]:
        del os.environ[name]
    cache = tempfile.mkdtemp(prefix="airlox-tests-")
    os.environ["AIRLOX_CACHE_DIR"] = cache
    config.add_cleanup(lambda: shutil.rmtree(cache, ignore_errors=True))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make what containers start from before the clock of a test runs."""
    wanted = any("docker" in item.nodeid for item in session.items)
    if wanted and not session.config.option.collectonly:
        engine.prepare()


@pytest.fixture(scope="session", autouse=True)
def _engine_left() -> Iterator[None]:
    """Whoever used the container engine is done with it."""
    yield
    engine.leave()
