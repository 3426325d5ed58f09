"""A relay for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.relay import RelayThread


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayThread]:
    with RelayThread() as relay:
        yield relay
