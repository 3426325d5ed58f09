"""Makes `.venv`: the locked packages of `requirements/dev.txt`, and Airlox itself, editable.

Run by `make setup` with the interpreter that the environment is to have. Needs nothing but the
standard library. Doing it again costs one short start of Python unless the lock, the project file,
this file, the interpreter or the folder changed.

Rules: what a person must install first is said in one line; a folder `.venv` that is not a virtual
environment is left alone; packages come only with the hashes of the lock, from whatever registry
pip is set up with on this machine.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

OLDEST_PYTHON = (3, 11)
ROOT = Path(__file__).resolve().parent.parent
LOCK = "requirements/dev.txt"
PYTHON = Path(".venv/bin/python")


class SetupError(Exception):
    """Setup cannot go on; the text is one line and says what to do."""


def main() -> int:
    try:
        if set_up(ROOT):
            print("airlox: ready: .venv/bin/airlox, .venv/bin/airlox-server")
    except SetupError as error:
        print(f"airlox: {error}", file=sys.stderr)
        return 1
    return 0


def set_up(root: Path) -> bool:
    """Bring `root`/.venv up to date. False if it already was."""
    check_interpreter()
    stamp = root / ".venv" / "airlox-setup-stamp"
    wanted = fingerprint(root)
    if stamp.is_file() and stamp.read_text() == wanted and is_usable(stamp.parent):
        return False
    stamp.unlink(missing_ok=True)
    make_environment(stamp.parent)
    install(root)
    stamp.write_text(wanted)
    return True


def check_interpreter() -> None:
    version = sys.version_info
    if version < OLDEST_PYTHON:
        raise SetupError(
            f"Python 3.11 or newer is needed and this is {version.major}.{version.minor}: "
            "install one and name it, as in `make PYTHON=python3.12`"
        )
    try:
        import ensurepip

        ensurepip.version()
    except (ImportError, AttributeError):
        raise SetupError(
            "a part of Python is missing: "
            f"sudo apt-get install python{version.major}.{version.minor}-venv"
        ) from None


def fingerprint(root: Path) -> str:
    """Changes with everything that the environment is made from."""
    digest = hashlib.sha256(f"{root}\n{sys.version}\n{sys.base_prefix}\n".encode())
    for name in (LOCK, "pyproject.toml", "tools/make_venv.py"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def is_usable(environment: Path) -> bool:
    """Whether the environment runs on this interpreter and from this folder.

    A virtual environment holds absolute paths: a moved or copied one runs another's packages.
    """
    python = environment / "bin" / "python"
    probe = "import sys; print(sys.version, sys.base_prefix, sys.prefix)"
    try:
        seen = subprocess.run(
            [str(python), "-I", "-c", probe], capture_output=True, text=True, timeout=60
        )
    except OSError:
        return False
    script = environment / "bin" / "pip"
    return (
        seen.stdout == f"{sys.version} {sys.base_prefix} {environment}\n"
        and script.is_file()
        and str(environment).encode() in script.read_bytes()[:512]
    )


def make_environment(environment: Path) -> None:
    if is_usable(environment):
        return
    is_ours = (environment / "pyvenv.cfg").is_file()
    if environment.exists() and not is_ours:
        raise SetupError(f"{environment} is no virtual environment: move it away, then run again")
    print("airlox: making .venv …", flush=True)
    try:
        venv.create(environment, clear=is_ours, with_pip=True)
    except (subprocess.CalledProcessError, OSError) as error:
        raise SetupError(
            f"no virtual environment could be made at {environment}: {error}"
        ) from None


def install(root: Path) -> None:
    print("airlox: installing the locked packages …", flush=True)
    run_pip(root, "install", "--require-hashes", "--only-binary", ":all:", "--requirement", LOCK)
    # By uv: the scripts that older versions of pip write import `re` at every start.
    words = ("--offline", "--no-deps", "--no-build-isolation", "--editable", ".")
    run_tool(root, "uv", "pip", "install", "--quiet", "--python", str(root / PYTHON), *words)
    # Some versions of venv bring it along; its .pth file would slow every start.
    run_pip(root, "uninstall", "--yes", "setuptools")


def run_pip(root: Path, command: str, *arguments: str) -> None:
    quiet = ("--quiet", "--quiet", "--disable-pip-version-check", "--no-input")
    run_tool(root, "pip", command, *quiet, *arguments)


def run_tool(root: Path, tool: str, *arguments: str) -> None:
    """Runs a module of the environment, which tells by itself what goes wrong."""
    done = subprocess.run([str(root / PYTHON), "-m", tool, *arguments], cwd=root)
    if done.returncode:
        raise SetupError(
            f"`{tool}` failed, its reason stands above: check the network and pip's settings, "
            "then run again"
        )


if __name__ == "__main__":
    sys.exit(main())
