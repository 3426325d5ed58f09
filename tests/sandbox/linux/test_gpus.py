"""GPUs of made-up machines: what is found, what a job gets, and how it is mounted.

Made-up devices are links to real ones: only root could make others.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airlox.errors import SandboxError
from airlox.sandbox.linux import gpus
from airlox.sandbox.linux.gpus import ALL, Found, Gpu, choose, look
from airlox.sandbox.linux.syscalls import ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY
from support.libraries import made

JOB = (54321, 54321)


class Machine:
    """A root folder to be filled."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def device(self, *names: str) -> None:
        for name in names:
            path = self.root / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to("/dev/null")

    def file(self, name: str, text: str = "") -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def pci(self, address: str, vendor: str, *drm: str) -> str:
        """A device on the bus, with its nodes of /dev/dri; its folder."""
        folder = f"sys/devices/pci0000:00/{address}"
        self.file(f"{folder}/vendor", f"{vendor}\n")
        self._link(f"sys/bus/pci/devices/{address}", f"../../../devices/pci0000:00/{address}")
        for name in drm:
            self.file(f"{folder}/drm/{name}/dev")
            self.device(f"dri/{name}")
            self._link(f"sys/class/drm/{name}", f"../../devices/pci0000:00/{address}/drm/{name}")
            self._link(f"{folder}/drm/{name}/device", "../..")
        return f"/{folder}"

    def nvidia(self, number: int, address: str) -> None:
        self.device(f"nvidia{number}")
        self.file(f"proc/driver/nvidia/gpus/{address}/information", f"Device Minor: \t {number}\n")

    def _link(self, name: str, target: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def two_nvidia(machine: Machine) -> Machine:
    machine.nvidia(0, "0000:65:00.0")
    machine.nvidia(1, "0000:b3:00.0")
    machine.device("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap1")
    machine.pci("0000:65:00.0", "0x10de", "card0", "renderD128")
    machine.pci("0000:b3:00.0", "0x10de", "card1", "renderD129")
    machine.file("sys/devices/system/cpu/online", "0-7")
    machine.file("sys/module/nvidia/version", "570")
    return machine


class TestLook:
    def test_a_machine_without(self, machine: Machine) -> None:
        machine.device("null", "nvidiactl", "nvidia-modeset", "dri/card0")
        assert look(machine.root) == Found()

    def test_nvidia(self, two_nvidia: Machine) -> None:
        found = look(two_nvidia.root)
        assert found.gpus == (
            Gpu(
                "nvidia0",
                ("/dev/nvidia0", "/dev/dri/renderD128", "/dev/dri/card0"),
                "/sys/devices/pci0000:00/0000:65:00.0",
            ),
            Gpu(
                "nvidia1",
                ("/dev/nvidia1", "/dev/dri/renderD129", "/dev/dri/card1"),
                "/sys/devices/pci0000:00/0000:b3:00.0",
            ),
        )
        assert found.shared == (
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
            "/dev/nvidia-caps/nvidia-cap1",
        )
        assert found.folders == ("/sys/devices/system/cpu", "/sys/module/nvidia")

    def test_nvidia_without_rendering(self, machine: Machine) -> None:
        machine.nvidia(0, "0000:65:00.0")
        folder = machine.pci("0000:65:00.0", "0x10de")
        assert look(machine.root).gpus == (Gpu("nvidia0", ("/dev/nvidia0",), folder),)

    def test_nvidia_of_which_nothing_else_is_known(self, machine: Machine) -> None:
        machine.device("nvidia0")
        assert look(machine.root).gpus == (Gpu("nvidia0", ("/dev/nvidia0",)),)

    def test_numbers_are_no_words(self, machine: Machine) -> None:
        machine.device(*(f"nvidia{number}" for number in (10, 9, 0)))
        names = [gpu.name for gpu in look(machine.root).gpus]
        assert names == ["nvidia0", "nvidia9", "nvidia10"]

    def test_amd(self, machine: Machine) -> None:
        folder = machine.pci("0000:03:00.0", "0x1002", "card0", "renderD128")
        machine.device("kfd")
        machine.file("sys/devices/virtual/kfd/kfd/topology/nodes")
        found = look(machine.root)
        assert found.gpus == (Gpu("renderD128", ("/dev/dri/renderD128", "/dev/dri/card0"), folder),)
        assert found.shared == ("/dev/kfd",)
        assert found.folders == ("/sys/devices/virtual/kfd",)

    def test_intel_has_no_compute_driver_of_its_own(self, machine: Machine) -> None:
        machine.pci("0000:00:02.0", "0x8086", "card0", "renderD128")
        machine.device("kfd")
        found = look(machine.root)
        assert [gpu.name for gpu in found.gpus] == ["renderD128"]
        assert found.shared == ()

    def test_a_file_is_no_device(self, machine: Machine) -> None:
        machine.file("dev/nvidia0")
        assert look(machine.root) == Found()

    def test_libraries_that_lie_elsewhere_are_shown(self, machine: Machine) -> None:
        machine.device("nvidia0")
        libraries = {
            "libcuda.so.1": "/srv/driver/libcuda.so.1",
            "libnvidia-ml.so.1": "/usr/lib/libnvidia-ml.so.1",
            "libsecret.so.1": "/srv/driver/libsecret.so.1",
            "libEGL_nvidia.so.0": "/srv/driver/gone.so",
        }
        for path in ("srv/driver/libcuda.so.1", "srv/driver/libsecret.so.1", "etc/OpenCL/v"):
            machine.file(path)
        (machine.root / "etc/ld.so.cache").write_bytes(made([*libraries.items()]))
        assert look(machine.root).files == ("/etc/OpenCL", "/srv/driver/libcuda.so.1")


class TestChoose:
    FOUND = Found(tuple(Gpu(f"nvidia{n}", (f"/dev/nvidia{n}",)) for n in range(3)), ("/dev/x",))

    def test_all(self) -> None:
        assert choose(self.FOUND, ALL) == self.FOUND

    def test_the_first(self) -> None:
        chosen = choose(self.FOUND, "2")
        assert chosen.devices == ("/dev/x", "/dev/nvidia0", "/dev/nvidia1")

    @pytest.mark.parametrize(
        ("found", "wanted", "words"),
        [(FOUND, "4", "3 GPUs"), (Found(), ALL, "no GPUs"), (Found(FOUND.gpus[:1]), "2", "1 GPU")],
    )
    def test_more_than_there_are(self, found: Found, wanted: str, words: str) -> None:
        with pytest.raises(SandboxError) as refused:
            choose(found, wanted)
        assert refused.value.code == "gpus_missing"
        assert refused.value.message.endswith(words)
        assert refused.value.hint


class TestSteps:
    def test_a_job_sees_its_gpu_and_no_other(self, two_nvidia: Machine) -> None:
        chosen = choose(look(two_nvidia.root), "1")
        found = gpus.steps(chosen, JOB, two_nvidia.root)
        by_target = {os.fsdecode(step[1]): step for step in found}  # type: ignore[arg-type]
        assert set(by_target) == {
            "dev/nvidiactl",
            "dev/nvidia-uvm",
            "dev/nvidia-uvm-tools",
            "dev/nvidia-caps/nvidia-cap1",
            "dev/nvidia0",
            "dev/dri/renderD128",
            "dev/dri/card0",
            "sys/devices/system/cpu",
            "sys/module/nvidia",
            "sys/devices/pci0000:00/0000:65:00.0",
            "sys/bus/pci/devices/0000:65:00.0",
            "sys/class/drm/renderD128",
            "sys/class/drm/card0",
        }
        assert len(found) == len(by_target)
        assert by_target["dev/nvidia0"][3:] == ("c", False, ATTR_NOSUID)
        folder = by_target["sys/devices/pci0000:00/0000:65:00.0"]
        assert folder[3:] == ("d", False, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)
        assert by_target["sys/class/drm/card0"][0] == "link"

    def test_nothing_is_chosen_nothing_is_shown(self, two_nvidia: Machine) -> None:
        assert gpus.steps(gpus.NOTHING, JOB, two_nvidia.root) == ()

    def test_a_link_that_leads_elsewhere_is_followed(self, machine: Machine) -> None:
        machine.file("srv/libcuda.so.570")
        (machine.root / "srv/libcuda.so.1").symlink_to("libcuda.so.570")
        found = gpus.steps(Found(files=("/srv/libcuda.so.1",)), JOB, machine.root)
        assert [step[:2] for step in found] == [
            ("link", b"srv/libcuda.so.1"),
            ("bind", b"srv/libcuda.so.570"),
        ]


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "may"),
    [
        (0o666, 0, 0, True),
        (0o660, 0, 0, False),
        (0o660, 0, JOB[1], True),
        (0o600, JOB[0], 0, True),
        (0o066, JOB[0], 0, False),
        (0o604, 0, 0, False),
    ],
)
def test_who_may_open_a_device(mode: int, uid: int, gid: int, may: bool) -> None:
    node = os.stat_result((0o020000 | mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))
    assert gpus._may(JOB, node) is may
