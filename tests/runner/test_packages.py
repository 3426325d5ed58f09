"""The Python of jobs: found, checked against the session, and made only when it is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from airlox.errors import JobRefused, UsageError
from airlox.protocol.manifest import JobLimits
from airlox.runner import packages
from airlox.runner.packages import PythonSupply

HERE = f"python3.{sys.version_info[1]}"
NONE = "/nonexistent"


def supply(
    tmp_path: Path,
    *,
    runtime: str = HERE,
    allowed: tuple[str, ...] = (),
    python: Path | None = None,
    path: str = NONE,
) -> PythonSupply:
    wanted = JobLimits(
        approve_runners=False,
        memory_mb=512,
        network=False,
        packages=allowed,
        return_out=True,
        runtime=runtime,
        timeout_s=60,
    )
    return PythonSupply(wanted, pins=True, python=python, runtimes=tmp_path / "runtimes", path=path)


@pytest.fixture
def no_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PythonSupply, "_uv", lambda self: None)


class TestWithoutPackages:
    def test_the_interpreter_on_the_machine_will_do(self, tmp_path: Path) -> None:
        found = supply(tmp_path)
        assert found.check(fetch=False) == ".".join(map(str, sys.version_info[:3]))
        made = found.get()
        assert (made.source, made.packages) == ("system", {})
        assert made.version.startswith(HERE.removeprefix("python"))
        assert not (tmp_path / "runtimes").exists()

    def test_its_own_folder_is_shown_to_jobs_and_no_home(self, tmp_path: Path) -> None:
        for mount in supply(tmp_path).get().mounts:
            assert mount.target == str(mount.source)
            assert not mount.writable
            assert not str(Path.home()).startswith(mount.target)

    @pytest.mark.usefixtures("no_uv")
    def test_a_version_that_is_not_here_is_named_with_the_next_step(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as error:
            supply(tmp_path, runtime="python3.99").check(fetch=True)
        assert error.value.code == packages.NO_RUNTIME
        assert "python3.99" in error.value.message
        assert "uv python install 3.99" in (error.value.hint or "")

    @pytest.mark.usefixtures("no_uv")
    def test_and_a_job_that_needs_it_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(JobRefused) as refusal:
            supply(tmp_path, runtime="python3.99").get()
        assert refusal.value.code == packages.NO_RUNTIME

    @pytest.mark.usefixtures("no_uv")
    def test_it_is_found_by_name_on_the_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake = tmp_path / "bin/python3.98"
        fake.parent.mkdir()
        fake.write_text(
            "#!/bin/sh\n"
            """echo '{"version": "3.98.7", "executable": "/opt/py/bin/python3.98", """
            """"prefixes": ["/opt/py", "/opt/py", "/opt/py", "/opt/py"], "site": []}'\n"""
        )
        fake.chmod(0o755)
        found = supply(tmp_path, runtime="python3.98", path=str(fake.parent))
        assert found.check(fetch=False) == "3.98.7"
        assert found.get().path == Path("/opt/py/bin/python3.98")

    @pytest.mark.usefixtures("no_uv")
    @pytest.mark.parametrize("says", ["exit 1", "echo nonsense", "echo '{}'"])
    def test_a_program_of_that_name_that_is_no_interpreter_is_passed_by(
        self, tmp_path: Path, says: str
    ) -> None:
        fake = tmp_path / "python3.98"
        fake.write_text(f"#!/bin/sh\n{says}\n")
        fake.chmod(0o755)
        with pytest.raises(UsageError):
            supply(tmp_path, runtime="python3.98", path=str(tmp_path)).check(fetch=False)


class TestNamedInterpreter:
    """`--python`."""

    def test_it_is_used_as_it_is(self, tmp_path: Path) -> None:
        made = supply(tmp_path, python=Path(sys.executable), allowed=("pytest>=1",)).get()
        assert made.source == "--python"
        assert made.path == Path(sys.executable)
        assert made.packages == {"pytest": pytest.__version__}
        assert str(Path(sys.prefix)) in [mount.target for mount in made.mounts]

    @pytest.mark.parametrize(
        ("given", "code", "said"),
        [
            ({"runtime": "python3.99"}, packages.NO_RUNTIME, "the session pins python3.99"),
            ({"allowed": ("no-such-thing",)}, "package_missing", "lacks the package no-such-thing"),
            (
                {"allowed": ("pytest==0.1",)},
                "package_version",
                f"has pytest {pytest.__version__}, but the session pins pytest==0.1",
            ),
            ({"python": Path("/bin/true")}, packages.NO_RUNTIME, "does not start"),
        ],
    )
    def test_one_that_cannot_do_what_the_session_pins_is_refused_at_the_join(
        self, tmp_path: Path, given: dict[str, Any], code: str, said: str
    ) -> None:
        with pytest.raises(UsageError) as error:
            supply(tmp_path, **({"python": Path(sys.executable)} | given)).check(fetch=False)
        assert error.value.code == code
        assert said in error.value.message


class TestWithPackages:
    @pytest.mark.usefixtures("no_uv")
    def test_they_need_uv(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="need uv"):
            supply(tmp_path, allowed=("six",)).check(fetch=False)

    def test_an_environment_is_made_once_and_made_anew_when_unfinished(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[str] = []

        def run(step: str, command: tuple[str, ...], timeout_s: float) -> None:
            steps.append(step)
            if step == "uv pip install":
                environment = Path(command[command.index("--python") + 1]).parent.parent
                info = environment / "lib" / HERE / "site-packages/six-1.2.dist-info"
                info.mkdir(parents=True)
                (info / "METADATA").write_text("Metadata-Version: 2.1\nName: six\nVersion: 1.2\n")

        monkeypatch.setattr(packages, "run_step", run)
        monkeypatch.setattr(PythonSupply, "_uv", lambda self: "uv")
        made = supply(tmp_path, allowed=("six>=1",)).get()
        assert (made.source, made.packages) == ("uv-runtime", {"six": "1.2"})
        assert steps == ["uv venv", "uv pip install"]
        supply(tmp_path, allowed=("six>=1",)).get()
        assert len(steps) == 2, "the environment is there"
        (made.path.parent.parent / ".ready").unlink()
        supply(tmp_path, allowed=("six>=1",)).get()
        assert len(steps) == 4, "an unfinished one is made anew"
        supply(tmp_path, allowed=("six>=1.1",)).get()
        assert len(steps) == 6, "other packages, another environment"

    def test_a_failure_is_a_refusal_with_the_last_words(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake = tmp_path / "uv"
        fake.write_text("#!/bin/sh\necho 'no wheels for six' >&2\nexit 2\n")
        fake.chmod(0o755)
        monkeypatch.setattr(PythonSupply, "_uv", lambda self: str(fake))
        with pytest.raises(JobRefused) as refusal:
            supply(tmp_path, allowed=("six",)).get()
        assert refusal.value.code == "packages_unavailable"
        assert "no wheels for six" in refusal.value.message

    def test_uv_does_not_get_the_runners_own_settings(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRLOX_INVITE", "secret")
        assert "AIRLOX_INVITE" not in packages._environ()

    def test_uv_makes_a_real_environment(self, tmp_path: Path) -> None:
        folder = tmp_path / "venv"
        uv = supply(tmp_path)._uv()
        assert uv is not None, "the package uv is one of the development packages"
        command = (uv, "venv", "--quiet", "--python", sys.executable, str(folder))
        packages.run_step("uv venv", command, 60)
        found = packages._ask(folder / "bin/python")
        assert found is not None
        assert str(folder) in found.prefixes
