"""The builder `bwrap`: what bubblewrap is told, and what its complaints mean here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox.errors import SandboxError
from airlox.sandbox import probe
from airlox.sandbox.base import Limits, Plan, SandboxOptions
from airlox.sandbox.linux import bwrap, layout, trial
from airlox.sandbox.linux.launched import Lines
from airlox.sandbox.linux.walls import Given, Walls
from support import parts

OPEN = probe.Host(apparmor_restricts=False, userns_allowed=True, in_container=False)
UBUNTU = probe.Host(apparmor_restricts=True, userns_allowed=True, in_container=False)
BOX = probe.Host(apparmor_restricts=False, userns_allowed=True, in_container=True)


@pytest.mark.parametrize(
    ("words", "host", "code"),
    [
        ("bwrap: setting up uid map: Permission denied", UBUNTU, "userns_apparmor"),
        (
            "bwrap: Creating new namespace failed: Operation not permitted",
            UBUNTU,
            "userns_apparmor",
        ),
        ("bwrap: Creating new namespace failed: Operation not permitted", BOX, "userns_container"),
        (
            "bwrap: No permissions to create new namespace, likely because the kernel does not …",
            OPEN,
            "userns_off",
        ),
        (
            "bwrap: Creating new namespace failed: nesting depth or … exceeded (ENOSPC)",
            OPEN,
            "userns_off",
        ),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", UBUNTU, "userns_apparmor"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", OPEN, "loopback"),
        (
            "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
            BOX,
            "mount_proc_masked",
        ),
        ("bwrap: Failed to make / slave: Permission denied", BOX, "userns_container"),
        ("bwrap: Unknown option --size", OPEN, "too_old_bwrap"),
        ("bwrap: The --size option is not permitted in setuid mode", OPEN, "setuid_bwrap"),
        (
            "bwrap: Can't find source path /root/x: Permission denied",
            OPEN,
            "toolchain_unreadable",
        ),
        ("bwrap: execvp /root/bin/python3: Permission denied", OPEN, "toolchain_unreadable"),
        ("Fatal Python error: init_fs_encoding: failed", OPEN, "toolchain_unreadable"),
        ("bwrap: something new", OPEN, "sandbox_unavailable"),
        ("", OPEN, "sandbox_unavailable"),
    ],
)
def test_complaints(words: str, host: probe.Host, code: str) -> None:
    error = bwrap.explain(words, host)
    assert error.code == code
    assert error.hint


def test_a_complaint_names_what_it_is_about() -> None:
    assert "--size" in bwrap.explain("bwrap: Unknown option --size", OPEN).message
    unreachable = "bwrap: Can't find source path /root/x: Permission denied"
    assert "/root/x" in bwrap.explain(unreachable, OPEN).message


@pytest.mark.parametrize(
    ("told", "pid"),
    [
        (b"", None),
        (b"{\n", None),
        (b'{\n    "child-pid": 4711', 4711),
        (b'{\n    "child-pid": 4711,\n    "cgroup-namespace": 4026532182\n}\n', 4711),
    ],
)
def test_the_child_is_named(told: bytes, pid: int | None) -> None:
    assert bwrap.parse_child(told) == pid


@pytest.fixture
def lines() -> Iterator[Lines]:
    with Lines() as made:
        yield made


def told(lines: Lines, tmp_path: Path, options: frozenset[str] = frozenset()) -> list[bytes]:
    """What bubblewrap would be told for an ordinary plan."""
    for name in ("work", "out", "home"):
        (tmp_path / name).mkdir(exist_ok=True)
    places = {name: tmp_path / name for name in ("work", "out", "home")}
    plan = Plan(("true",), (), "/work", limits=Limits(9.0, None), **places)  # type: ignore[arg-type]
    walls = Walls(SandboxOptions(tmp_path), layout.LAYOUT)
    blueprint = walls.blueprint(plan, Given(1, 2), lines.theirs)
    return bwrap._Orders(lines, options).arguments(blueprint)


class TestArguments:
    def test_everything_is_read_only_at_the_end(self, lines: Lines, tmp_path: Path) -> None:
        assert told(lines, tmp_path)[-4:] == [b"--remount-ro", b"/dev", b"--remount-ro", b"/"]

    def test_every_tmpfs_has_a_size(self, lines: Lines, tmp_path: Path) -> None:
        words = told(lines, tmp_path)
        places = [place for place, word in enumerate(words) if word == b"--tmpfs"]
        assert len(places) == 2
        for place in places:
            assert words[place - 4] == b"--size"
            assert int(words[place - 3]) > 0

    def test_only_the_jobs_folders_are_writable(self, lines: Lines, tmp_path: Path) -> None:
        words = told(lines, tmp_path)
        bound = [words[place + 2] for place, word in enumerate(words) if word == b"--bind"]
        assert sorted(bound) == [b"/home/job", b"/out", b"/work"]

    def test_they_come_from_descriptors_where_that_can_be(
        self, lines: Lines, tmp_path: Path
    ) -> None:
        words = told(lines, tmp_path, frozenset(["--bind-fd"]))
        assert b"--bind" not in words
        place = words.index(b"--bind-fd")
        opened = os.readlink(f"/proc/self/fd/{int(words[place + 1])}")
        assert (opened, words[place + 2]) == (str(tmp_path / "work"), b"/work")

    def test_no_namespace_is_shared_but_the_network_where_it_may(
        self, lines: Lines, tmp_path: Path
    ) -> None:
        kinds = {word for word in told(lines, tmp_path) if word.startswith(b"--unshare")}
        names = (b"user", b"pid", b"ipc", b"uts", b"cgroup", b"net")
        assert kinds == {b"--unshare-" + name for name in names}

    def test_user_namespaces_end_here_where_that_can_be(self, lines: Lines, tmp_path: Path) -> None:
        assert b"--disable-userns" not in told(lines, tmp_path)
        assert b"--disable-userns" in told(lines, tmp_path, frozenset(["--disable-userns"]))

    def test_a_link_in_place_of_a_folder_is_refused(self, lines: Lines, tmp_path: Path) -> None:
        (tmp_path / "work").symlink_to("/etc")
        for name in ("out", "home"):
            (tmp_path / name).mkdir()
        with pytest.raises(SandboxError) as caught:
            told(lines, tmp_path)
        assert caught.value.code == "mount_source_kind"

    def test_a_folder_of_somebody_else_is_refused(self, lines: Lines, tmp_path: Path) -> None:
        parts.require("root")
        (tmp_path / "out").mkdir()
        os.chown(tmp_path / "out", 60123, 60123)
        with pytest.raises(SandboxError) as caught:
            told(lines, tmp_path)
        assert caught.value.code == "mount_source_owner"


class TestProgram:
    """A bubblewrap that is missing or cannot do what is needed."""

    @pytest.fixture
    def program(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(bwrap, "_SEARCHED", str(tmp_path))
        return tmp_path / "bwrap"

    def test_none(self, program: Path) -> None:
        with pytest.raises(SandboxError) as caught:
            bwrap.Bwrap().check()
        assert caught.value.code == "no_bwrap"

    def test_one_that_lacks_an_option(self, program: Path, tmp_path: Path) -> None:
        program.write_text(
            "#!/bin/sh\n[ $1 = --help ] && exit\necho 'bwrap: Unknown option --size' >&2; exit 1\n"
        )
        program.chmod(0o755)
        walls = Walls(SandboxOptions(tmp_path), layout.LAYOUT)
        with pytest.raises(SandboxError) as caught:
            trial.try_out(bwrap.Bwrap(), walls, tmp_path)
        assert (caught.value.code, "--size" in caught.value.message) == ("too_old_bwrap", True)

    def test_the_plan_is_not_among_its_arguments(self, program: Path, tmp_path: Path) -> None:
        program.write_text(f'#!/bin/sh\n[ $1 = --help ] || echo "$@" > {tmp_path}/args\nexit 1\n')
        program.chmod(0o755)
        with pytest.raises(SandboxError):
            trial.try_out(bwrap.Bwrap(), Walls(SandboxOptions(tmp_path), layout.LAYOUT), tmp_path)
        said = (tmp_path / "args").read_text()
        assert said.startswith("--args ")
        assert str(tmp_path) not in said


def test_the_interpreter_is_shown_at_its_real_path() -> None:
    done = subprocess.run([bwrap.interpreter(), "-c", ""], timeout=60)
    assert done.returncode == 0
    assert not os.path.islink(bwrap.interpreter())


def test_by_itself_its_dev_can_be_filled() -> None:  # 6: teeth
    parts.require("bwrap")
    fill = ["--dev", "/dev", "/bin/sh", "-c", "echo x > /dev/filler"]
    done = subprocess.run(["bwrap", "--unshare-all", "--ro-bind", "/", "/", *fill], timeout=60)
    assert done.returncode == 0
