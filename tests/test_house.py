"""The tools that keep the repository in order find what they are there to find."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import check_tree
import make_venv
import pytest
from packaging.requirements import Requirement

from support import parts

ROOT = Path(check_tree.ROOT)
# Written in two halves, so that the tree's own check does not find them here.
REGISTRY = "pypi" + ".org"
PYENV = "/root/" + ".pyenv/versions"


def git(folder: Path, *arguments: str) -> None:
    parts.require("git")
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


class TestTrackedFiles:
    def test_lists_what_is_tracked_and_there(self, tmp_path: Path) -> None:
        git(tmp_path, "init", "--quiet")
        for name in ("kept.md", "gone.md", "untracked.md"):
            (tmp_path / name).write_text("x")
        git(tmp_path, "add", "kept.md", "gone.md")
        (tmp_path / "gone.md").unlink()
        assert check_tree.tracked_files(tmp_path) == ["kept.md"]

    def test_reads_texts_and_leaves_binaries_out(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("hello")
        (tmp_path / "picture").write_bytes(b"\x89PNG\0")
        assert check_tree.read_texts(tmp_path, ["text", "picture"]) == {"text": "hello"}


class TestRegistryHosts:
    def test_a_planted_host_is_found_with_its_line(self, tmp_path: Path) -> None:
        git(tmp_path, "init", "--quiet")
        (tmp_path / "notes.txt").write_text(f"one\nsee https://{REGISTRY}/project/airlox\n")
        git(tmp_path, "add", "notes.txt")
        texts = check_tree.read_texts(tmp_path, check_tree.tracked_files(tmp_path))
        assert list(check_tree.registry_hosts(texts)) == [
            f"notes.txt:2: names a package registry: {REGISTRY}"
        ]

    @pytest.mark.parametrize(
        "host",
        ["FILES.pythonHosted" + ".org", "registry.npmjs" + ".org", "deb.debian" + ".org"],
    )
    def test_the_others_are_found_too(self, host: str) -> None:
        assert list(check_tree.registry_hosts({"a": f"http://{host}/x"}))

    def test_the_names_of_clients_are_no_hosts(self) -> None:
        assert not list(check_tree.registry_hosts({"a": "pip install airlox; npm i; pypi"}))


class TestLocks:
    @pytest.mark.parametrize(
        "line", ["--index-url https://x/simple", "-i x", "six @ https://x/six.whl", "-f ./wheels"]
    )
    def test_an_address_in_a_lock_is_found(self, line: str) -> None:
        assert list(check_tree.lock_addresses({"requirements/dev.txt": f"six==1\n{line}\n"}))

    def test_an_address_in_an_npm_lock_is_found(self) -> None:
        lock = '{"resolved": "https://example.test/x.tgz"}'
        assert list(check_tree.lock_addresses({"web/package-lock.json": lock}))

    def test_locks_that_always_hold_addresses_are_refused(self) -> None:
        assert list(check_tree.lock_addresses({"uv.lock": ""}))

    def test_a_plain_lock_passes(self) -> None:
        lock = "six==1.16.0 ; sys_platform == 'win32' \\\n    --hash=sha256:00\n    # via x\n"
        assert not list(check_tree.lock_addresses({"requirements/dev.txt": lock}))

    def test_a_dependency_that_is_not_pinned_is_found(self) -> None:
        locks = {"lock": "six==1.16.0 \\\n    --hash=sha256:00\nFoo.Bar==2 ; os_name == 'nt' \\\n"}
        wanted = {"lock": [Requirement(line) for line in ("six>=1.17", "foo-bar", "absent")]}
        assert list(check_tree.unpinned(locks, wanted)) == [
            "lock: does not pin six>=1.17; run `make lock`",
            "lock: does not pin absent; run `make lock`",
        ]


class TestMachinePaths:
    @pytest.mark.parametrize("path", [PYENV, "/work/" + "main/src", "/opt/" + "wheels"])
    def test_a_path_of_one_machine_is_found(self, path: str) -> None:
        assert list(check_tree.machine_paths({"a.py": f"x = '{path}'"}))

    @pytest.mark.parametrize("path", ["/work/main.py", "/work/src", "/root/.ssh/id", "/usr/bin"])
    def test_a_path_of_any_machine_passes(self, path: str) -> None:
        assert not list(check_tree.machine_paths({"a.py": f"x = '{path}'"}))


class TestLinks:
    FILES = ("README.md", "docs/a.md", "docs/b.md", "src/x.py")

    def findings(self, text: str, name: str = "docs/a.md") -> list[str]:
        texts = {"docs/b.md": "# The *first* one\n## Twice\n## Twice\n", name: text}
        return list(check_tree.dead_links(texts, self.FILES))

    @pytest.mark.parametrize(
        "link",
        [
            "b.md",
            "../README.md",
            "../src",
            "/docs/b.md",
            "b.md#the-first-one",
            "b.md#twice-1",
            "https://example.test/",
            "mailto:a@example.test",
        ],
    )
    def test_a_living_link_passes(self, link: str) -> None:
        assert not self.findings(f"see [this]({link})")

    @pytest.mark.parametrize(
        "link", ["c.md", "../../README.md", "docs/b.md", "b.md#third", "b.md#twice-2", "#none"]
    )
    def test_a_dead_link_is_found_with_its_line(self, link: str) -> None:
        (finding,) = self.findings(f"\nsee [this]({link})")
        assert finding.startswith(f"docs/a.md:2: link to {link}: no such")

    def test_fenced_text_is_no_link_and_keeps_the_count_of_lines(self) -> None:
        (finding,) = self.findings("```\n[x](gone.md)\n# no heading\n```\n[y](lost.md)")
        assert finding.startswith("docs/a.md:5: link to lost.md")

    def test_only_documents_are_read(self) -> None:
        assert not self.findings("[x](gone.md)", name="src/x.py")


class TestStartUpFiles:
    def test_a_package_with_a_start_up_file_is_found(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        info = tmp_path / "slow_start-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-start\nVersion: 1.0\n")
        (info / "RECORD").write_text("slow_start.pth,,\nslow_start.py,,\n")
        (tmp_path / "slow_start.pth").write_text("import slow_start\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        assert metadata.version("slow-start") == "1.0"
        locks = {"lock": "slow-start==1.0\nnot-installed-anywhere==1\nmsgspec==1\n"}
        (finding,) = check_tree.start_up_files(locks)
        assert finding.startswith("slow-start: installs slow_start.pth")


class TestMakeVenv:
    def test_an_old_interpreter_is_told_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(make_venv, "OLDEST_PYTHON", (99, 0))
        with pytest.raises(make_venv.SetupError, match="PYTHON="):
            make_venv.check_interpreter()

    def test_a_missing_part_is_named_in_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ensurepip", None)
        with pytest.raises(make_venv.SetupError, match=r"apt-get install python3\.\d+-venv$") as it:
            make_venv.check_interpreter()
        assert "\n" not in str(it.value)

    def test_a_folder_that_is_no_environment_is_left_alone(self, tmp_path: Path) -> None:
        precious = tmp_path / ".venv" / "thesis.txt"
        precious.parent.mkdir()
        precious.write_text("years of work")
        with pytest.raises(make_venv.SetupError, match="move it away"):
            make_venv.make_environment(precious.parent)
        assert precious.read_text() == "years of work"

    def test_the_fingerprint_follows_its_sources(self, tmp_path: Path) -> None:
        for name in (make_venv.LOCK, "pyproject.toml", "tools/make_venv.py"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("")
        before = make_venv.fingerprint(tmp_path)
        assert make_venv.fingerprint(tmp_path) == before
        (tmp_path / make_venv.LOCK).write_text("six==1.16.0")
        assert make_venv.fingerprint(tmp_path) != before

    def test_a_copied_environment_is_not_used(self, tmp_path: Path) -> None:
        scripts = tmp_path / "bin"
        scripts.mkdir()
        (tmp_path / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
        (scripts / "python").symlink_to(Path(sys.executable).resolve())
        script = scripts / "pip"
        script.write_text(f"#!{tmp_path}/bin/python\n")
        assert make_venv.is_usable(tmp_path)
        script.write_text("#!/elsewhere/.venv/bin/python\n")
        assert not make_venv.is_usable(tmp_path)


class TestMakefile:
    def test_help_is_the_default_and_names_every_target(self) -> None:
        shown = subprocess.run(
            ["make", "--no-print-directory"],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        lines = (ROOT / "Makefile").read_text().splitlines()
        phony = next(line for line in lines if line.startswith(".PHONY:"))
        assert [line.split()[1] for line in shown.stdout.splitlines()] == phony.split()[1:]


class TestRequire:
    MISSING = parts.Part(lambda: False, "apt-get install unobtainium")

    @pytest.fixture(autouse=True)
    def _plant_a_missing_part(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parts, "PARTS", {"unobtainium": self.MISSING})

    def test_a_missing_part_skips_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CI", raising=False)
        with pytest.raises(pytest.skip.Exception, match="needs unobtainium: apt-get install"):
            parts.require("unobtainium")

    def test_in_ci_it_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CI", "true")
        with pytest.raises(pytest.fail.Exception, match="needs unobtainium"):
            parts.require("unobtainium")

    def test_an_unknown_part_is_a_mistake(self) -> None:
        with pytest.raises(KeyError):
            parts.require("luck")
