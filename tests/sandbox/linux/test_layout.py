"""The mount plan: an allow list, compiled from a plan and the look of the host."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from airlox.errors import SandboxError
from airlox.sandbox.base import Limits, Mount, Network, Plan
from airlox.sandbox.linux import layout
from airlox.sandbox.linux.syscalls import ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY

LIMITS = Limits(timeout_s=1, memory_bytes=1 << 20)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A small system: merged /usr, a home with secrets, an /etc with good and bad."""
    root = tmp_path / "host"
    for folder in ("usr/bin", "usr/lib", "opt", "home/ann/.ssh", "root", "var/lib", "run", "srv"):
        (root / folder).mkdir(parents=True)
    for folder in ("etc/ssl/certs", "etc/ssl/private", "etc/ssh", "etc/python3"):
        (root / folder).mkdir(parents=True)
    for name in ("shadow", "passwd", "sudoers", "ld.so.cache", "mime.types", "ssl/openssl.cnf"):
        (root / "etc" / name).write_text(name)
    (root / "bin").symlink_to("usr/bin")
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").mkdir()
    (root / "etc/localtime").symlink_to("/usr/share/zoneinfo/UTC")
    (root / "etc/resolv.conf").write_text("nameserver 192.0.2.1\n")
    return root


def plan_for(tmp_path: Path, *toolchains: Mount, network: Network = Network.OFF) -> Plan:
    return Plan(
        argv=("true",),
        env=(),
        cwd="/work",
        work=tmp_path / "w",
        out=tmp_path / "o",
        home=tmp_path / "h",
        limits=LIMITS,
        toolchains=toolchains,
        network=network,
    )


def placed(steps: tuple[tuple[object, ...], ...], *, kind: str = "bind") -> dict[str, tuple]:  # type: ignore[type-arg]
    return {step[1].decode(): step for step in steps if step[0] == kind}  # type: ignore[attr-defined]


class TestSteps:
    def test_only_what_the_list_names_exists(self, host: Path, tmp_path: Path) -> None:
        steps = layout.steps(plan_for(tmp_path), root=host)
        binds = set(placed(steps))
        assert binds == {
            "usr", "opt", "lib64", "etc/ld.so.cache", "etc/mime.types", "etc/ssl/certs",
            "etc/ssl/openssl.cnf", "etc/python3", "work", "out", "home/job",
            "dev/null", "dev/zero", "dev/full", "dev/random", "dev/urandom", "dev/tty",
        }  # fmt: skip

    def test_links_stay_links(self, host: Path, tmp_path: Path) -> None:
        links = placed(layout.steps(plan_for(tmp_path), root=host), kind="link")
        assert links["bin"][2] == b"usr/bin"
        assert links["etc/localtime"][2] == b"/usr/share/zoneinfo/UTC"
        assert links["var/tmp"][2] == b"/tmp"

    def test_three_folders_are_writable_and_must_belong_to_the_job(
        self, host: Path, tmp_path: Path
    ) -> None:
        binds = placed(layout.steps(plan_for(tmp_path), root=host))
        writable = {
            path
            for path, step in binds.items()
            if not step[5] & ATTR_RDONLY and not path.startswith("dev/")
        }
        assert writable == {"work", "out", "home/job"}
        assert {path for path, step in binds.items() if step[4]} == writable
        for path, step in binds.items():
            assert step[5] & ATTR_NOSUID
            assert path.startswith("dev/") or step[5] & ATTR_NODEV

    def test_names_are_resolved_only_with_network(self, host: Path, tmp_path: Path) -> None:
        off = placed(layout.steps(plan_for(tmp_path), root=host), kind="file")
        assert "etc/resolv.conf" not in off
        plan = plan_for(tmp_path, network=Network.ON)
        on = placed(layout.steps(plan, root=host), kind="file")
        assert on["etc/resolv.conf"][2] == b"nameserver 192.0.2.1\n"

    def test_accounts_are_made_up(self, host: Path, tmp_path: Path) -> None:
        files = placed(layout.steps(plan_for(tmp_path), root=host), kind="file")
        users = [line.split(b":")[0] for line in files["etc/passwd"][2].splitlines()]
        assert users == [b"root", b"job", b"nobody"]

    def test_each_job_has_a_machine_id_of_its_own(self, host: Path, tmp_path: Path) -> None:
        ids = {
            placed(layout.steps(plan_for(tmp_path), root=host), kind="file")["etc/machine-id"][2]
            for _ in range(3)
        }
        assert len(ids) == 3


class TestToolchains:
    def toolchains(self, *mounts: Mount) -> list[tuple[object, ...]]:
        return list(layout._toolchains(mounts))

    def test_at_its_own_path_read_only(self, tmp_path: Path) -> None:
        (step,) = self.toolchains(Mount(tmp_path, str(tmp_path)))
        assert step[1:3] == (bytes(tmp_path)[1:], bytes(tmp_path))
        assert step[5] == ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV

    def test_what_is_there_already_is_not_bound_again(self, tmp_path: Path) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        usr = Mount(Path("/usr/bin"), "/usr/bin")
        mounts = (Mount(inner, str(inner)), Mount(tmp_path, str(tmp_path)), usr)
        assert [step[1] for step in self.toolchains(*mounts)] == [bytes(tmp_path)[1:]]

    def test_a_link_brings_what_it_leads_to(self, tmp_path: Path) -> None:
        real, link = tmp_path / "3.12.1", tmp_path / "3.12"
        real.mkdir()
        link.symlink_to(real)
        steps = self.toolchains(Mount(link, str(link)))
        assert steps[0] == ("link", bytes(link)[1:], bytes(real))
        assert steps[1][:3] == ("bind", bytes(real)[1:], bytes(real))

    @pytest.mark.parametrize("path", ["/", "/home", "/proc", "/dev", "/etc", "/tmp"])
    def test_one_that_would_hide_our_folders_is_refused(self, path: str) -> None:
        with pytest.raises(SandboxError) as caught:
            self.toolchains(Mount(Path(path), path))
        assert caught.value.code == "toolchain_path"

    def test_writable_moved_or_missing_ones_are_refused(self, tmp_path: Path) -> None:
        for mount, code in (
            (Mount(tmp_path, str(tmp_path), writable=True), "toolchain_path"),
            (Mount(tmp_path, "/elsewhere"), "toolchain_path"),
            (Mount(tmp_path / "none", str(tmp_path / "none")), "toolchain_unreadable"),
        ):
            with pytest.raises(SandboxError) as caught:
                self.toolchains(mount)
            assert caught.value.code == code


class TestRlimits:
    def test_values(self) -> None:
        limits = dict(layout.rlimits(LIMITS, memory_back_stop=False))
        assert limits[resource.RLIMIT_CORE] == 0
        assert limits[resource.RLIMIT_NPROC] == LIMITS.processes + 1
        assert resource.RLIMIT_DATA not in limits
        assert resource.RLIMIT_AS not in limits

    def test_data_is_limited_where_no_group_limits_memory(self) -> None:
        limits = dict(layout.rlimits(LIMITS, memory_back_stop=True))
        assert limits[resource.RLIMIT_DATA] == 4 << 20
        unlimited = Limits(timeout_s=1, memory_bytes=None)
        assert resource.RLIMIT_DATA not in dict(layout.rlimits(unlimited, memory_back_stop=True))


class TestWhereOurFoldersGo:
    @pytest.mark.parametrize("root", ["/work/me/.venv", "/out", "/home/job/bin", "/home"])
    def test_aside_when_a_toolchain_lies_in_the_way(self, root: str) -> None:
        assert layout.choose([Path("/usr/local"), Path(root)]) == layout.ASIDE

    def test_usually_not(self, tmp_path: Path) -> None:
        roots = [tmp_path, Path("/opt/tools"), Path("/home/someone/.venv"), Path("/workshop")]
        assert layout.choose(roots) == layout.LAYOUT

    def test_the_steps_follow(self, tmp_path: Path) -> None:
        found = placed(layout.steps(plan_for(tmp_path), where=layout.ASIDE))
        for path in ("airlox/work", "airlox/out", "airlox/home"):
            assert path in found
        assert "work" not in found
