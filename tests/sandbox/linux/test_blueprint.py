"""The launcher's orders survive the way, and the lines it answers are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.sandbox.linux import launched
from airlox.sandbox.linux.blueprint import Blueprint, decode, encode

_STEP = st.one_of(
    st.tuples(st.just("dir"), st.binary(), st.integers(0, 0o7777)),
    st.tuples(st.just("file"), st.binary(), st.binary()),
    st.tuples(st.just("bind"), st.binary(), st.binary(), st.sampled_from("dfc"), st.booleans()),
)
_FIELDS = {
    "argv": st.lists(st.binary()).map(tuple),
    "cgroup_fds": st.lists(st.integers(3, 100)).map(tuple),
    "control_fd": st.integers(3, 100),
    "cwd": st.binary(),
    "devices": st.lists(st.text()).map(tuple),
    "door_fd": st.integers(-1, 100),
    "env": st.lists(st.tuples(st.binary(), st.binary())).map(tuple),
    "filter": st.binary(),
    "gid": st.integers(-1, 2**32 - 2),
    "go_fd": st.integers(3, 100),
    "host_network": st.booleans(),
    "info_fd": st.integers(3, 100),
    "landlock_abi": st.integers(0, 9),
    "nice": st.integers(0, 19),
    "no_new_privs": st.booleans(),
    "output_fds": st.tuples(st.integers(1, 100), st.integers(1, 100)),
    "parent_pid": st.integers(1, 2**22),
    "rlimits": st.lists(st.tuples(st.integers(0, 15), st.integers(0, 2**63 - 1))).map(tuple),
    "steps": st.lists(_STEP).map(tuple),
    "uid": st.integers(-1, 2**32 - 2),
    "userns_limit": st.booleans(),
    "writable": st.lists(st.text()).map(tuple),
}


@given(st.fixed_dictionaries(_FIELDS))
def test_round_trip(values: dict[str, object]) -> None:
    read = decode(encode(Blueprint(**values)))
    assert {name: getattr(read, name) for name in Blueprint.FIELDS} == values


def test_a_field_too_few_or_too_many_is_an_error() -> None:
    values: dict[str, object] = dict.fromkeys(Blueprint.FIELDS, 0)
    with pytest.raises(TypeError):
        Blueprint(**values, more=1)
    del values["uid"]
    with pytest.raises(TypeError):
        Blueprint(**values)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ready", launched.Told("ready")),
        ("pid 42", launched.Told("pid", numbers=(42,))),
        ("exit 256 9000", launched.Told("exit", numbers=(256, 9000))),
        ("error userns 1 not permitted", launched.Told("error", "userns", (1,), "not permitted")),
        ("error exec 2", launched.Told("error", "exec", (2,), "")),
    ],
)
def test_lines(line: str, told: launched.Told) -> None:
    assert launched.parse_line(line) == told


@pytest.mark.parametrize("line", ["pid", "pid x", "exit 1", "error userns x y", "error", "hello"])
def test_a_line_of_no_known_form_is_an_error(line: str) -> None:
    with pytest.raises(ValueError):
        launched.parse_line(line)
