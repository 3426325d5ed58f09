"""`airlox run --on box --tree -- true` beside `rsync -az` over ssh followed by `ssh … true`.

A tree of 2,000 files the first time, unchanged, and with 10 of them changed; 100,000 files
unchanged beside `git status`; one byte inserted at the head of a file of a gigabyte, and what it
costs to cut, hash, compress and seal beside the libraries' own rates.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.box import Box, box
from bench.measure import Row, alternate, compile_first, folder, run
from bench.run_true import ssh_server

FILES = 2_000
MANY = 100_000
CHANGED = 10
BIG_BYTES = 1 << 30
SAMPLE_BYTES = 256 << 20
PAUSE_S = 2.0
"""Between two commands of a person."""
TIMES = 9
WORDS = [line.encode() for line in ("import os", "def main() -> None:", "    return", "class A:")]


def rows() -> list[Row]:
    compile_first()
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    for command in ("rsync", "ssh", sshd):
        if shutil.which(command) is None:
            raise RuntimeError(f"{command} is missing: apt-get install rsync openssh-server")
    with box() as ours, folder() as root, ssh_server(sshd, root) as ssh:
        return [
            *two_thousand(ours, root, ssh),
            *hundred_thousand(ours, root),
            *one_big(ours, root),
            pipeline(),
        ]


# ── a project ────────────────────────────────────────────────────────────────────────────────


def make_files(top: Path, count: int) -> None:
    """Files as a project has them: some hundred lines each, 40 to a folder, in git."""
    draw = random.Random(count)
    for number in range(count):
        path = top / f"pkg{number // 40:04}" / f"mod{number % 40:02}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\n".join(draw.choices(WORDS, k=150)) + b"# %d\n" % number)
    git = ["git", "-c", "user.name=b", "-c", "user.email=b@example.org", "-C", str(top)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "start"]):
        run([*git, *words])


def change(top: Path, count: int, serial: Iterator[int]) -> None:
    for path in itertools.islice(sorted(top.glob("pkg*/mod07.py")), count):
        path.write_bytes(path.read_bytes() + b"# %d\n" % next(serial))


def two_thousand(ours: Box, root: Path, ssh: list[str]) -> Iterator[Row]:
    top = root / "project"
    make_files(top, FILES)
    there = root / "there"
    serial = itertools.count()

    def mine(*words: str) -> None:
        ours.airlox("run", "--on", ours.name, "--tree", *words, "--", "true", cwd=top)

    def peer() -> None:
        shell = " ".join(ssh[:-1])
        run(["rsync", "-az", "--delete", "-e", shell, f"{top}/", f"{ssh[-1]}:{there}/"])
        run([*ssh, "true"])

    def peer_anew() -> None:
        shutil.rmtree(there, ignore_errors=True)
        peer()

    name = "rsync -az, ssh true"
    # `--fresh` begins with an empty workspace, and the sender is asked for everything again.
    yield Row(
        "tree of 2,000 files, cold",
        *alternate(lambda: mine("--fresh"), peer_anew, times=TIMES),
        "ms",
        name,
        "≤ 0.8",
    )
    yield Row("the same, unchanged", *alternate(mine, peer, times=TIMES), "ms", name, "≤ 0.5")
    spent = taking_turns(lambda: change(top, CHANGED, serial), [mine, peer], times=TIMES)
    yield Row(f"{CHANGED} files changed", *spent, "ms", name, "≤ 0.5")


def taking_turns(
    before: Callable[[], object], calls: list[Callable[[], object]], *, times: int
) -> tuple[float, float]:
    """Medians of two calls in milliseconds; before each round something happens to both."""
    spent: list[list[float]] = [[], []]
    for _ in range(times):
        before()
        for call, into in zip(calls, spent, strict=True):
            start = time.perf_counter()
            call()
            into.append((time.perf_counter() - start) * 1000)
    return statistics.median(spent[0]), statistics.median(spent[1])


# ── many files, and a large one ──────────────────────────────────────────────────────────────


def hundred_thousand(ours: Box, root: Path) -> Iterator[Row]:
    """What the tree costs: the time of `run --tree` less that of `run`."""
    top = root / "many"
    make_files(top, MANY)
    ours.airlox("run", "--on", ours.name, "--tree", "--", "true", cwd=top, timeout_s=600)
    git = ["git", "-C", str(top), "status", "--short"]

    def mine() -> None:
        ours.airlox("run", "--on", ours.name, "--tree", "--", "true", cwd=top)

    time.sleep(3)  # what was written just now is not remembered by either
    mine()
    # After a job the runner looks through the workspace, while nobody waits for it.
    paused, status = taking_turns(
        lambda: time.sleep(PAUSE_S), [mine, lambda: run(git)], times=TIMES
    )
    at_once, _ = alternate(mine, lambda: run(git), times=TIMES)
    plain, _ = alternate(
        lambda: ours.airlox("run", "--on", ours.name, "--", "true"), lambda: None, times=TIMES
    )
    what = "100,000 files unchanged, less a run without"
    yield Row(what, paused - plain, status, "ms", "git status", "≤ 1.5")
    yield Row("the same, at once after a job", at_once - plain, status, "ms", "git status", "–")
    with ours.session() as session:
        sent_bytes(session, ours.name, top)  # another participant, with a workspace of its own
        sent = sent_bytes(session, ours.name, top)
        yield Row("bytes sent for them", sent / 1000, 20, "kB", "bound", "≤ 1")
        change(top, 1, itertools.count())
        sent = sent_bytes(session, ours.name, top)
        yield Row("bytes sent for 1 changed of 100,000", sent / 1000, 4000, "kB", "bound", "≤ 1")


def sent_bytes(session: object, runner: str, top: Path) -> int:
    job = session.run_shell(["true"], runner=runner, tree=top)  # type: ignore[attr-defined]
    assert job.wait(timeout=300).ok
    count: int = job.upload.sent_bytes
    return count


def one_big(ours: Box, root: Path) -> Iterator[Row]:
    top = root / "big"
    top.mkdir()
    path = top / "data"
    write_random(path, BIG_BYTES)
    with ours.session() as session:
        start = time.perf_counter()
        sent = sent_bytes(session, ours.name, top)
        spent_s = time.perf_counter() - start
        yield Row("1 GiB of random bytes, cold", sent / spent_s / 1e6, 1, "MB/s", "–", "–")
        moved = top / "moved"
        with path.open("rb") as source, moved.open("wb") as target:
            target.write(b"!")
            shutil.copyfileobj(source, target, 1 << 20)
        moved.replace(path)
        sent = sent_bytes(session, ours.name, top)
        yield Row("a byte inserted at its head, sent", sent / 1e6, 4, "MB", "bound", "≤ 1")


def write_random(path: Path, size: int) -> None:
    with path.open("wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))


def pipeline() -> Row:
    """Cut, hash, compress and seal in one go, beside the four libraries one after the other."""
    from hashlib import sha256

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from zstandard import ZstdCompressor

    from airlox.protocol.aead import seal
    from airlox.tree.chunks import Cutter
    from airlox.tree.packs import content_record, write_packs

    draw = random.Random(1)
    block = b"".join(draw.choices(WORDS, k=1 << 16)) + draw.randbytes(1 << 19)
    data = [block[n:] + block[:n] for n in range(SAMPLE_BYTES // len(block))]
    size = sum(map(len, data))
    cutter = Cutter(1)

    def ours() -> None:
        chunks = (bytes(chunk) for chunk in cutter.cut(data))
        records = (content_record(sha256(chunk).digest(), chunk) for chunk in chunks)
        for pack in write_packs(records):
            seal(bytes(32), bytes(12), pack, b"")

    def theirs() -> None:
        chunks = [bytes(chunk) for chunk in cutter.cut(data)]
        for chunk in chunks:
            sha256(chunk).digest()
        compressor = ZstdCompressor(level=3)
        stored = [compressor.compress(chunk) for chunk in chunks]
        cipher = AESGCM(bytes(32))
        for chunk in stored:
            cipher.encrypt(bytes(12), chunk, b"")

    mine, peer = alternate(ours, theirs, times=3)
    rate = size / 1000
    return Row(
        "cut, hash, compress, seal",
        rate / mine,
        rate / peer,
        "MB/s",
        "the libraries alone",
        "≥ 0.7",
    )


if __name__ == "__main__":
    from bench.measure import report

    print(report(rows()))
