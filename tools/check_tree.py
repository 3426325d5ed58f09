"""What no other check sees: the tracked files, the locks, and the links between documents.

* No file names a package registry, and no lock holds an address: where packages come from is the
  affair of the machine that installs them.
* No file names a path of the machine it was written on.
* Each relative link of a document leads to a tracked file, and each `#section` to a heading.
* The locks pin every direct dependency. (Their hashes are pip's affair: it refuses one without.)
* No locked package brings a `.pth` file: every start of Python in that environment would read it.

Each check takes what it looks at as arguments and returns its findings, one line each.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements/airlox.txt", "requirements/dev.txt")
FUZZ_LOCK = "requirements/fuzz.txt"  # `make fuzz` adds its packages to the same environment

# Escaped dots keep this file from finding itself.
REGISTRY_HOST = re.compile(
    r"pypi\.org|pythonhosted\.org|pypi\.python\.org"
    r"|registry\.npmjs\.org|npmjs\.com|registry\.yarnpkg\.com|unpkg\.com|jsdelivr\.net"
    r"|deb\.debian\.org|security\.debian\.org|archive\.ubuntu\.com|ports\.ubuntu\.com"
    r"|crates\.io|proxy\.golang\.org|conda\.anaconda\.org|anaconda\.org",
    re.IGNORECASE,
)
# A bare /work or /root is a place in every sandbox or machine; these are of one alone.
MACHINE_PATH = re.compile(
    r"/root/\.pyenv\b"
    r"|/work/(?:main|shared|notes)/"
    r"|/work/\.(?:library|mirror)\b"
    r"|/opt/(?:wheels|pypi)\b"
)
LOCK_OF_ANOTHER_TOOL = re.compile(r"(?:^|/)(?:uv|poetry|pdm|Pipfile)\.lock$")
ADDRESS = re.compile(r"[a-z+]+://|^\s*(?:-i|-f|--[a-z-]*index-url|--find-links)\b", re.MULTILINE)
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)

MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def main() -> int:
    texts = read_texts(ROOT, tracked_files(ROOT))
    locks = {name: texts.get(name, "") for name in LOCKS}
    findings = [
        *registry_hosts(texts),
        *lock_addresses(texts),
        *machine_paths(texts),
        *dead_links(texts, tracked_files(ROOT)),
        *unpinned(locks, direct_dependencies(ROOT)),
        *start_up_files(locks | {FUZZ_LOCK: texts.get(FUZZ_LOCK, "")}),
    ]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def tracked_files(root: Path) -> list[str]:
    """Names of the files that git tracks and that are there, relative to `root`."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, timeout=60
    )
    names = listed.stdout.decode().split("\0")
    return [name for name in names if name and (root / name).is_file()]


def read_texts(root: Path, names: Iterable[str]) -> dict[str, str]:
    """The contents of those files that are text."""
    texts = {}
    for name in names:
        data = (root / name).read_bytes()
        if b"\0" not in data:
            texts[name] = data.decode(errors="replace")
    return texts


def registry_hosts(texts: Mapping[str, str]) -> Iterator[str]:
    yield from _matches(texts, REGISTRY_HOST, "names a package registry")


def machine_paths(texts: Mapping[str, str]) -> Iterator[str]:
    yield from _matches(texts, MACHINE_PATH, "names a path of one machine")


def lock_addresses(texts: Mapping[str, str]) -> Iterator[str]:
    """Addresses in locks of ours, and locks of tools that cannot leave them out."""
    for name in texts:
        if LOCK_OF_ANOTHER_TOOL.search(name):
            yield f"{name}: this kind of lock holds addresses; use `make lock`"
    requirements = {name: text for name, text in texts.items() if name.startswith("requirements/")}
    yield from _matches(requirements, ADDRESS, "holds an address")
    npm_locks = {name: text for name, text in texts.items() if name.endswith("package-lock.json")}
    yield from _matches(npm_locks, re.compile(r'"resolved": *"[a-z+]+://'), "holds an address")


def dead_links(texts: Mapping[str, str], files: Iterable[str]) -> Iterator[str]:
    """Relative links of documents to files that are not tracked or sections that are not there."""
    tracked = set(files)
    known = tracked | {str(folder) for name in tracked for folder in Path(name).parents}
    for name, text in texts.items():
        if not name.endswith(".md"):
            continue
        for line, link in _links(text):
            path, _, section = link.partition("#")
            target = _resolve(name, path)
            if target not in known:
                yield f"{name}:{line}: link to {link}: no such file in the repository"
            elif section and target.endswith(".md") and section not in sections(texts[target]):
                yield f"{name}:{line}: link to {link}: no such heading"


def sections(text: str) -> set[str]:
    """The anchors that a document's headings get where it is shown."""
    anchors: set[str] = set()
    for heading in HEADING.findall(FENCED.sub("", text)):
        base = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        anchor, repeat = base, 0
        while anchor in anchors:
            repeat += 1
            anchor = f"{base}-{repeat}"
        anchors.add(anchor)
    return anchors


def direct_dependencies(root: Path) -> dict[str, list[Requirement]]:
    """What each lock must pin: its name -> the requirements written by hand."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    written = [*project["dependencies"], *(line for extra in extras for line in extra)]
    running = [Requirement(line) for line in written if not line.startswith(project["name"])]
    lines = (root / "requirements/dev.in").read_text().splitlines()
    tools = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {LOCKS[0]: running, LOCKS[1]: [*running, *tools]}


def pins(lock: str) -> dict[str, str]:
    """Normal name of each locked package -> its version."""
    return {canonicalize_name(name): version for name, version in PINNED.findall(lock)}


def unpinned(
    locks: Mapping[str, str], wanted: Mapping[str, Iterable[Requirement]]
) -> Iterator[str]:
    for lock, text in locks.items():
        locked = pins(text)
        for requirement in wanted[lock]:
            version = locked.get(canonicalize_name(requirement.name))
            if version is None or version not in requirement.specifier:
                yield f"{lock}: does not pin {requirement}; run `make lock`"


def start_up_files(locks: Mapping[str, str]) -> Iterator[str]:
    """`.pth` files of the locked packages, as installed beside this interpreter."""
    for name in sorted({name for text in locks.values() for name in pins(text)}):
        try:
            files = metadata.files(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        for file in files or ():
            if file.suffix == ".pth":
                yield f"{name}: installs {file}, which every start of Python would read"


def _matches(texts: Mapping[str, str], pattern: re.Pattern[str], complaint: str) -> Iterator[str]:
    for name, text in texts.items():
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: {complaint}: {match.group().strip()}"


def _links(text: str) -> Iterator[tuple[int, str]]:
    """Line and target of each link that leads to a file or a section of this repository."""
    blanked = FENCED.sub(lambda fence: "\n" * fence.group().count("\n"), text)
    for match in MARKDOWN_LINK.finditer(blanked):
        link = match[1]
        if not re.match(r"[a-z][a-z0-9+.-]*:", link):
            yield blanked.count("\n", 0, match.start()) + 1, link


def _resolve(document: str, path: str) -> str:
    """The linked path relative to the root; what climbs out of it keeps its `..`."""
    parts: list[str] = [] if path.startswith("/") else list(Path(document).parent.parts)
    if not path:
        return document
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts) or "."


if __name__ == "__main__":
    sys.exit(main())
