"""The loader's cache, as the loader's own program reads it, and broken in every way."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.sandbox.linux.ldcache import libraries
from support import parts
from support.libraries import made

CACHE = Path("/etc/ld.so.cache")


ENTRIES = [("libcuda.so.1", "/usr/lib/libcuda.so.1"), ("libz.so.1", "/lib/libz.so.1")]


def test_names_and_paths() -> None:
    assert libraries(made(ENTRIES)) == dict(ENTRIES)


def test_behind_the_older_format() -> None:
    old = struct.pack("<11sxI", b"ld.so-1.7.0", 3) + bytes(36)
    padded = old.ljust(-(-len(old) // 8) * 8, b"\0")
    assert libraries(padded + made(ENTRIES)) == dict(ENTRIES)


def test_the_first_of_several_counts() -> None:
    twice = [("libz.so.1", "/lib64/libz.so.1"), ("libz.so.1", "/lib32/libz.so.1")]
    assert libraries(made(twice)) == {"libz.so.1": "/lib64/libz.so.1"}


def test_a_path_that_is_none_is_left_out() -> None:
    assert libraries(made([("libz.so.1", "libz.so.1"), ("", "/lib/x")])) == {}


def test_this_machine_s() -> None:
    parts.require("linux")
    if not CACHE.exists():
        pytest.skip("needs /etc/ld.so.cache: ldconfig makes it")
    said = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=60)
    expected: dict[str, str] = {}
    for name, path in re.findall(r"^\t(\S+) \(.*\) => (/.*)$", said.stdout, re.MULTILINE):
        expected.setdefault(name, path)
    assert expected
    assert libraries(CACHE.read_bytes()) == expected


@given(st.binary(max_size=200))
def test_anything_else_has_none(data: bytes) -> None:
    assert isinstance(libraries(data), dict)
    assert isinstance(libraries(b"glibc-ld.so.cache1.1" + data), dict)
    assert isinstance(libraries(b"ld.so-1.7.0\0" + data), dict)


@given(st.integers(0, len(made(ENTRIES)) - 1), st.integers(0, 255))
def test_a_damaged_one_does_no_harm(at: int, value: int) -> None:
    whole = made(ENTRIES)
    assert isinstance(libraries(whole[:at]), dict)
    assert isinstance(libraries(whole[:at] + bytes([value]) + whole[at + 1 :]), dict)
