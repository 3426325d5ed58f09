"""Why a container cannot be had here, in words with a remedy and a stable code.

`explain` reads the last words of the engine's command; they differ between versions, so what is not
known is passed on as it is, on one line and bounded.
"""

from __future__ import annotations

from airlox.errors import SandboxError

_SAID_CHARS = 400

_CAUSES = {
    "docker_missing": (
        "this machine has neither the command docker nor podman",
        "install Docker or Podman, or use `--sandbox local`",
    ),
    "engine_unreachable": (
        "the container engine does not answer",
        "start it (`sudo systemctl start docker`), or name another by DOCKER_HOST",
    ),
    "engine_denied": (
        "this user may not use the container engine",
        (
            "run an engine without root (rootless Docker, Podman), or add the user to the group "
            "that may: `sudo usermod -aG docker $USER`, then log in again; whoever is in it is as "
            "good as root"
        ),
    ),
    "engine_slow": (
        "the container engine did not answer in time",
        "the machine may be overloaded; look at `docker info`",
    ),
    "engine_not_linux": (
        "the container engine runs no Linux containers",
        "switch it to Linux containers",
    ),
    "engine_remaps": (
        (
            "the container engine gives containers user ids of their own, to whom the folders of "
            "jobs do not belong"
        ),
        "leave `userns-remap` out of the engine's settings, or use a rootless engine",
    ),
    "no_image": (
        "containers are made from an image, and none is named",
        "name one by --image",
    ),
    "image_missing": (
        "the container engine does not have the image",
        "fetch it with `docker pull`",
    ),
    "image_architecture": (
        "the image is for another kind of processor",
        "name one that has this machine's",
    ),
    "container_folders": (
        "in a container the folders of jobs cannot be written to",
        (
            "the engine must run on this machine and see its folders: name another place by "
            "--work-root, or another engine by DOCKER_HOST"
        ),
    ),
    "container_refused": (
        "the container engine did not build the container",
        "what it says names the cause; `docker info` shows what it can do",
    ),
    "allow_hosts_unsupported": (
        "containers cannot be held to a list of hosts here",
        "use `--sandbox local`, or leave out --allow-host",
    ),
    "cgroup_none": (
        "the container engine limits neither memory nor processes; memory is watched",
        "give it control groups: https://docs.docker.com/engine/security/rootless/tips/",
    ),
    "memory_unwatched": (
        (
            "the container engine puts jobs into no control group, so that their memory can "
            "neither be limited nor watched"
        ),
        "delegate control groups to it: https://docs.docker.com/engine/security/rootless/tips/",
    ),
    "shared_users": (
        "user ids in containers are those of the machine",
        "a rootless engine has its own",
    ),
    "seccomp_off": ("the container engine filters no system calls", "use its default profile"),
    "landlock_off": ("containers do without Landlock", "use `--sandbox local`"),
}

_SAID = (
    ("permission denied while trying to connect", "engine_denied"),
    ("connect: permission denied", "engine_denied"),
    ("Cannot connect to the Docker daemon", "engine_unreachable"),
    ("error during connect", "engine_unreachable"),
    ("unable to connect to Podman", "engine_unreachable"),
    ("No such image", "image_missing"),
    ("no such image", "image_missing"),
    ("image not known", "image_missing"),
)


def refusal(code: str, detail: str = "") -> SandboxError:
    """The error of a known cause."""
    cause, remedy = _CAUSES[code]
    return SandboxError(f"{cause}: {detail}" if detail else cause, code=code, hint=remedy)


def remedy(code: str) -> tuple[str, str]:
    """Cause and remedy of a code, for a layer that is off."""
    return _CAUSES[code]


def explain(said: str) -> SandboxError:
    """The error for a command of the engine that failed with these words."""
    code = next((code for words, code in _SAID if words in said), "container_refused")
    return refusal(code, last_words(said) if code in ("container_refused", "image_missing") else "")


def last_words(said: str) -> str:
    """What the engine said, on one line that can be shown."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Run 'docker", "See 'docker"))]
    text = " ".join(told[-3:]).removeprefix("docker: ")
    text = text.removeprefix("Error response from daemon: ")
    return "".join(char for char in text if char.isprintable())[:_SAID_CHARS]
