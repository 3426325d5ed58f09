"""GPUs of this machine, and what a job must see to use one: devices, libraries, parts of /sys.

`look` reads, `choose` picks, `steps` compiles: all over a root folder, so that made-up machines can
be looked at. Nothing is opened.

| kind   | a GPU is           | and also                                                    |
|--------|--------------------|-------------------------------------------------------------|
| NVIDIA | /dev/nvidiaN       | nvidiactl, nvidia-uvm, nvidia-caps; its node of /dev/dri    |
| other  | /dev/dri/renderDN  | its cardN; with AMD's compute driver /dev/kfd               |

Rules
- A job sees the GPUs it is given and no other; of /sys their own folders and the machine's
  processors and memory nodes, read-only. /proc/driver is read-only in every sandbox.
- The driver's libraries lie in folders that a sandbox shows anyway, or are shown one by one.
- A device whose file lets the job's user do nothing is made anew for that user, which only a
  launcher started as root can. An ordinary user must be let in by the machine's own groups.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airlox.errors import SandboxError
from airlox.sandbox.linux import ldcache
from airlox.sandbox.linux.syscalls import ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airlox.sandbox.linux.blueprint import Step

NONE = "none"
ALL = "all"
_READ_ONLY = ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV
_NVIDIA = re.compile(r"nvidia([0-9]+)")
_NVIDIA_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_NVIDIA_VENDOR = "0x10de"
_AMD_VENDOR = "0x1002"
_RENDER = re.compile(r"renderD([0-9]+)")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MINOR = re.compile(r"^Device Minor:\s*([0-9]+)", re.MULTILINE)
_LIBRARIES = re.compile(
    r"lib(cuda|cudadebugger|nvcuvid|nvoptix|nvidia-.*|(GLX|EGL|GLESv1_CM|GLESv2|vdpau)_nvidia"
    r"|drm.*|hsa-runtime64|hsakmt|amdhip64|OpenCL|ze_.*|va.*)\.so\b"
)
_SETTINGS = ("etc/OpenCL", "etc/vulkan", "etc/glvnd", "run/opengl-driver")
_TOPOLOGY = ("sys/devices/system/cpu", "sys/devices/system/node")
_KFD_TOPOLOGY = ("sys/devices/virtual/kfd", "sys/class/kfd")
_MODULES = ("sys/module/nvidia", "sys/module/nvidia_uvm", "sys/module/amdgpu")
_SHOWN_ANYWAY = ("/usr/", "/opt/", "/nix/store/", "/lib", "/bin/", "/sbin/")
_CACHE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its own devices, and its folder of /sys where that is known."""

    name: str
    devices: tuple[str, ...]
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The GPUs of a machine. `shared` are devices that each of some kind needs; `files` are shown
    read-only, as are `folders` of /sys and the links that lead to them."""

    gpus: tuple[Gpu, ...] = ()
    shared: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device, in one list."""
        return (*self.shared, *(device for gpu in self.gpus for device in gpu.devices))


NOTHING = Found()


# ── looking ──────────────────────────────────────────────────────────────────────────────────


def look(root: Path = Path("/")) -> Found:
    """What there is. Paths in the answer are those of the running system, without `root`."""
    rendering = _rendering(root)
    gpus = (*_nvidia(root, rendering), *_others(root, rendering))
    if not gpus:
        return NOTHING
    amd = any(node.vendor == _AMD_VENDOR for node in rendering)
    return Found(
        gpus=gpus,
        shared=tuple(_shared(root, amd)),
        files=tuple(_files(root)),
        folders=tuple(_existing(root, (*_TOPOLOGY, *_MODULES, *(_KFD_TOPOLOGY if amd else ())))),
    )


@dataclass(frozen=True, slots=True)
class _Node:
    """A pair of nodes of /dev/dri: one to render with, and the card it belongs to."""

    devices: tuple[str, ...]
    vendor: str
    folder: str | None


def _rendering(root: Path) -> tuple[_Node, ...]:
    nodes = []
    for path in sorted((root / "dev/dri").glob("renderD*"), key=_number_of):
        if _RENDER.fullmatch(path.name) is None or not _is_device(path):
            continue
        folder = os.path.realpath(root / "sys/class/drm" / path.name / "device")
        known = Path(folder).is_dir()
        cards = sorted(os.listdir(f"{folder}/drm")) if Path(folder, "drm").is_dir() else []
        beside = [f"/dev/dri/{name}" for name in cards if name.startswith("card")]
        there = [card for card in beside if _is_device(root / card[1:])]
        nodes.append(
            _Node(
                devices=(f"/dev/dri/{path.name}", *there),
                vendor=_word(Path(folder, "vendor")),
                folder=_outside(folder, root) if known else None,
            )
        )
    return tuple(nodes)


def _nvidia(root: Path, rendering: Iterable[_Node]) -> Iterator[Gpu]:
    addresses = _addresses_of_nvidia(root)
    for path in sorted((root / "dev").glob("nvidia*"), key=_number_of):
        match = _NVIDIA.fullmatch(path.name)
        if match is None or not _is_device(path):
            continue
        address = addresses.get(int(match[1]), "")
        mine = [node for node in rendering if node.folder and node.folder.endswith(f"/{address}")]
        folder = mine[0].folder if mine else _folder_of_pci(root, address)
        more = [device for node in mine for device in node.devices]
        yield Gpu(path.name, (f"/dev/{path.name}", *more), folder)


def _others(root: Path, rendering: Iterable[_Node]) -> Iterator[Gpu]:
    for node in rendering:
        if node.vendor != _NVIDIA_VENDOR:
            yield Gpu(node.devices[0].rpartition("/")[2], node.devices, node.folder)


def _addresses_of_nvidia(root: Path) -> dict[int, str]:
    """The PCI address of each NVIDIA GPU, by the number of its device."""
    found = {}
    for folder in (root / "proc/driver/nvidia/gpus").glob("*"):
        match = _MINOR.search(_text(folder / "information"))
        if match is not None and _PCI_ADDRESS.fullmatch(folder.name):
            found[int(match[1])] = folder.name
    return found


def _folder_of_pci(root: Path, address: str) -> str | None:
    link = root / "sys/bus/pci/devices" / address
    return _outside(os.path.realpath(link), root) if address and link.exists() else None


def _shared(root: Path, amd: bool) -> Iterator[str]:
    dev = root / "dev"
    caps = sorted((dev / "nvidia-caps").glob("nvidia-cap*"), key=_number_of)
    for path in (*(dev / name for name in _NVIDIA_SHARED), *caps, *((dev / "kfd",) if amd else ())):
        if _is_device(path):
            yield f"/{path.relative_to(root)}"


def _files(root: Path) -> Iterator[str]:
    """Settings of the drivers, and libraries that lie where a sandbox shows nothing."""
    yield from _existing(root, _SETTINGS)
    try:
        with open(root / "etc/ld.so.cache", "rb") as file:
            data = file.read(_CACHE_BYTES)
    except OSError:
        return
    for name, path in sorted(ldcache.libraries(data).items()):
        if _LIBRARIES.match(name) and not path.startswith(_SHOWN_ANYWAY):
            yield from _existing(root, (path[1:],))


def _existing(root: Path, names: Iterable[str]) -> Iterator[str]:
    return (f"/{name}" for name in names if (root / name).exists())


def _outside(path: str, root: Path) -> str:
    """A path below a root as the running system has it."""
    return "/" + os.path.relpath(path, os.path.realpath(root))


def _is_device(path: Path) -> bool:
    try:
        return stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        return False


def _number_of(path: Path) -> tuple[int, str]:
    digits = re.search(r"[0-9]+$", path.name)
    return (int(digits[0]) if digits else -1, path.name)


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""


def _word(path: Path) -> str:
    return _text(path).strip()


# ── choosing ─────────────────────────────────────────────────────────────────────────────────


def choose(found: Found, wanted: str) -> Found:
    """What jobs get of it: all GPUs, or the first so many.

    Raises:
        SandboxError: there are none, or fewer than wanted (`gpus_missing`).
    """
    here = len(found.gpus)
    count = here if wanted == ALL else int(wanted)
    if here == 0 or count > here:
        raise SandboxError(
            f"--gpus {wanted}: this machine shows {here or 'no'} GPU{'' if here == 1 else 's'}",
            code="gpus_missing",
            hint="install the driver of the GPU, or join with fewer"
            if here == 0
            else f"join with --gpus {here} or --gpus all",
        )
    return Found(found.gpus[:count], found.shared, found.files, found.folders)


# ── mounting ─────────────────────────────────────────────────────────────────────────────────


def steps(found: Found, user: tuple[int, int] | None, root: Path = Path("/")) -> tuple[Step, ...]:
    """The mount plan for these GPUs. `user` is the uid and gid that a launcher started as root puts
    on; None: the job is whoever we are.

    Raises:
        SandboxError: the job could not open one of the devices (`gpus_denied`).
    """
    wanted = (
        *(_device(device, user, root) for device in found.devices),
        *(step for path in found.files for step in _shown(path, root)),
        *(step for path in _sys_paths(found, root) for step in _shown(path, root)),
    )
    by_target = {step[1]: step for step in reversed(wanted)}
    return tuple(reversed(by_target.values()))


def _device(path: str, user: tuple[int, int] | None, root: Path) -> Step:
    source = root / path[1:]
    node = source.stat()
    target = os.fsencode(path).lstrip(b"/")
    if user is None:
        if not os.access(source, os.R_OK | os.W_OK):
            raise SandboxError(
                f"this user may not open {path}, which the GPU needs",
                code="gpus_denied",
                hint="add the user to the group of that file (`ls -l`), often render or video, and "
                "log in again",
            )
    elif not _may(user, node):
        return ("device", target, os.major(node.st_rdev), os.minor(node.st_rdev))
    return ("bind", target, os.fsencode(source), "c", False, ATTR_NOSUID)


def _may(user: tuple[int, int], node: os.stat_result) -> bool:
    """Whether a user without further groups can read and write a file."""
    uid, gid = user
    shift = 6 if node.st_uid == uid else 3 if node.st_gid == gid else 0
    return (node.st_mode >> shift) & 0o6 == 0o6


def _sys_paths(found: Found, root: Path) -> Iterator[str]:
    yield from found.folders
    for gpu in found.gpus:
        if gpu.folder is not None:
            yield gpu.folder
            yield from _existing(root, (f"sys/bus/pci/devices/{gpu.folder.rpartition('/')[2]}",))
        for device in gpu.devices:
            number = (root / device[1:]).stat().st_rdev
            links = (
                f"sys/class/drm/{device.rpartition('/')[2]}",
                f"sys/dev/char/{os.major(number)}:{os.minor(number)}",
            )
            yield from _existing(root, links)


def _shown(path: str, root: Path) -> Iterator[Step]:
    """A file, folder or link at its own path; of a link that leads out of what is shown, the end
    too."""
    source = root / path[1:]
    target = os.fsencode(path).lstrip(b"/")
    if not source.is_symlink():
        kind = "d" if source.is_dir() else "f"
        yield ("bind", target, os.fsencode(source), kind, False, _READ_ONLY)
        return
    yield ("link", target, os.fsencode(source.readlink()))
    if path.startswith("/sys/"):
        return  # leads to the folder of a GPU
    real = _outside(os.path.realpath(source), root)
    if not real.startswith(_SHOWN_ANYWAY):
        yield from _shown(real, root)
