"""Takes away what the drivers of these tests ran from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from support import sandbox


@pytest.fixture(scope="session", autouse=True)
def _copy_removed() -> Iterator[None]:
    yield
    if sandbox._copy.cache_info().currsize:
        shutil.rmtree(sandbox._copy(), ignore_errors=True)
