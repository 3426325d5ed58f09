"""What an engine's command tells, read as values; commands that fail."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlox.errors import SandboxError
from airlox.sandbox.container import causes, told
from airlox.sandbox.container.engine import Engine, open_engine
from airlox.sandbox.container.told import State

DOCKER = {
    "ServerVersion": "20.10.24",
    "OSType": "linux",
    "Architecture": "x86_64",
    "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"],
    "MemoryLimit": True,
    "PidsLimit": True,
    "CgroupVersion": "2",
    "CgroupDriver": "systemd",
}
PODMAN = {
    "host": {
        "os": "linux",
        "arch": "arm64",
        "security": {"rootless": True, "seccompEnabled": True},
        "cgroupControllers": ["cpu", "memory", "pids"],
        "cgroupVersion": "v2",
        "cgroupManager": "systemd",
    },
    "version": {"Version": "4.3.1"},
}
IMAGE = {
    "Id": "sha256:" + "a" * 64,
    "RepoDigests": ["python@sha256:" + "b" * 64],
    "Architecture": "amd64",
    "Config": {"Env": ["PATH=/opt/bin:/bin", "LANG=C"], "Volumes": {"/data": {}}},
}


def engine_that(folder: Path, script: str) -> Engine:
    """An engine whose command is this shell script."""
    command = folder / "docker"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return open_engine(str(folder))


def that_says(folder: Path, value: Any) -> Engine:
    (folder / "said").write_text(json.dumps(value))
    return engine_that(folder, f"cat {folder}/said")


def test_docker(tmp_path: Path) -> None:
    facts = that_says(tmp_path, DOCKER).facts()
    assert (facts.name, facts.linux, facts.architecture) == ("docker", True, "amd64")
    assert (facts.rootless, facts.remaps, facts.seccomp) == (True, False, True)
    assert (facts.limits_memory, facts.limits_processes, facts.cgroup_version) == (True, True, 2)


def test_podman(tmp_path: Path) -> None:
    facts = that_says(tmp_path, PODMAN).facts()
    assert (facts.name, facts.linux, facts.architecture) == ("podman", True, "arm64")
    assert (facts.rootless, facts.seccomp, facts.limits_memory) == (True, True, True)


def test_limits_that_the_engine_does_not_keep(tmp_path: Path) -> None:
    facts = that_says(tmp_path, DOCKER | {"MemoryLimit": False, "SecurityOptions": None}).facts()
    assert (facts.limits_memory, facts.seccomp) == (False, False)


def test_an_image(tmp_path: Path) -> None:
    image = that_says(tmp_path, IMAGE).image("python:3.12")
    assert image is not None
    assert (image.id, image.digest) == ("sha256:" + "a" * 64, "sha256:" + "b" * 64)
    assert (image.path, image.volumes) == ("/opt/bin:/bin", ("/data",))


def test_an_image_of_podman(tmp_path: Path) -> None:
    image = that_says(tmp_path, [IMAGE]).image("python:3.12")
    assert image is not None
    assert image.path == "/opt/bin:/bin"


def test_an_image_made_here_is_its_own_digest(tmp_path: Path) -> None:
    image = that_says(tmp_path, {"Id": "c" * 64, "RepoDigests": [], "Config": None}).image("mine")
    assert image is not None
    assert (image.digest, image.path, image.volumes) == ("sha256:" + "c" * 64, None, ())


def test_a_container(tmp_path: Path) -> None:
    said = {
        "Status": "exited",
        "ExitCode": 137,
        "OOMKilled": True,
        "Error": "",
        "Pid": 0,
        "StartedAt": "2026-01-02T03:04:05.123456789Z",
        "FinishedAt": "2026-01-02T04:04:06.5+01:00",
    }
    assert that_says(tmp_path, said).state("x") == State("exited", 137, True, "", 0, 1377)
    running = {**said, "FinishedAt": "0001-01-01T00:00:00Z"}
    assert that_says(tmp_path, running).state("x") == State("exited", 137, True, "", 0, None)


@pytest.mark.parametrize("said", ["", "[]", "no json", "{", "null"])
def test_an_answer_that_is_none(tmp_path: Path, said: str) -> None:
    engine = engine_that(tmp_path, f"printf '%s' '{said}'")
    for ask in (engine.facts, lambda: engine.image("x"), lambda: engine.state("x")):
        with pytest.raises(SandboxError):
            ask()


@given(
    st.dictionaries(
        st.sampled_from([*DOCKER, *IMAGE, "host", "Config", "Status", "StartedAt"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=4,
        ),
    )
)
def test_an_answer_of_other_types(said: dict[str, Any]) -> None:
    """A value or an error of ours, whatever the engine's command prints."""
    for read in (told.read_facts, told.read_image, told.read_state):
        try:
            read(json.dumps(said).encode())
        except SandboxError:
            pass


class TestFailures:
    @pytest.mark.parametrize(
        ("said", "code"),
        [
            (
                "permission denied while trying to connect to the Docker daemon socket",
                "engine_denied",
            ),
            (
                "Cannot connect to the Docker daemon at unix:///x. Is it running?",
                "engine_unreachable",
            ),
            ("Error: No such image: x", "image_missing"),
            ("Error response from daemon: OCI runtime create failed", "container_refused"),
        ],
    )
    def test_have_a_cause_and_a_remedy(self, tmp_path: Path, said: str, code: str) -> None:
        engine = engine_that(tmp_path, f"echo '{said}' >&2; exit 1")
        with pytest.raises(SandboxError) as raised:
            engine.call("info", within_s=20)
        assert (raised.value.code, bool(raised.value.hint)) == (code, True)

    def test_no_command(self, tmp_path: Path) -> None:
        with pytest.raises(SandboxError) as raised:
            open_engine(str(tmp_path))
        assert raised.value.code == "docker_missing"

    def test_a_command_that_hangs(self, tmp_path: Path) -> None:
        engine = engine_that(tmp_path, "exec sleep 1000")
        with pytest.raises(SandboxError) as raised:
            engine.call("info", within_s=0.2)
        assert raised.value.code == "engine_slow"

    def test_what_is_not_there_is_no_failure(self, tmp_path: Path) -> None:
        engine = engine_that(tmp_path, "echo 'Error: No such container: x' >&2; exit 1")
        assert engine.state("x") is None
        engine.remove(["x"])
        engine = engine_that(tmp_path, "echo 'Error: No such image: x' >&2; exit 1")
        assert engine.image("x") is None

    def test_a_flood_of_output_is_cut(self, tmp_path: Path) -> None:
        engine = engine_that(tmp_path, "head -c 3000000 /dev/zero")
        assert len(engine.call("info", within_s=20)) == 1 << 20

    def test_words_are_shown_on_one_line(self) -> None:
        said = causes.explain("docker: bad\x1b[31m\nworse\nSee 'docker run --help'.\n")
        assert said.message.endswith(": bad[31m worse")
        assert len(causes.last_words("x" * 10_000)) <= 400


def test_the_environment_is_handed_over_by_descriptor(tmp_path: Path) -> None:
    """Whoever lists processes sees no value of it."""
    script = f'echo "$*" > {tmp_path}/words; cat "$3" > {tmp_path}/given; echo {"d" * 64}'
    engine = engine_that(tmp_path, script)
    made = engine.create(["image"], environment=b"SECRET=hidden\n")
    assert made == "d" * 64
    assert (tmp_path / "given").read_bytes() == b"SECRET=hidden\n"
    assert "hidden" not in (tmp_path / "words").read_text()


def test_settings_of_ours_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOX_INVITE", "secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://name:password@proxy")
    environ = Engine("docker").environ()
    assert "AIRLOX_INVITE" not in environ
    assert "HTTPS_PROXY" not in environ
    assert environ["PATH"] == os.environ["PATH"]
