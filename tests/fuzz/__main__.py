"""`python -m fuzz --seconds 60`: each target in turn under atheris, beginning with its seeds.

    python -m fuzz --seconds 600 --target zip      one target, longer
    python -m fuzz --target zip --replay FILE      one input; needs no atheris

What a run learns stays in `.fuzz/corpus/TARGET`, so that the next one goes on from there. A
finding is an input in `.fuzz/findings`, printed with the command that replays it; the exit code is
then 1. An input that takes longer than `SLOW_S`, or a target that grows beyond `MEMORY_MB`, is a
finding too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from .target import accepts
from .targets import TARGETS

SLOW_S: Final = 5
MEMORY_MB: Final = 1024
INPUT_BYTES: Final = 16 * 1024
"""Longest input that is made; seeds may be longer."""
_GRACE_S: Final = 120
"""For a target's start, its seeds, and its last input."""

ROOT: Final = Path(__file__).parents[2]
_DONE: Final = re.compile(r"^stat::number_of_executed_units: *(\d+)", re.MULTILINE)
_COVERED: Final = re.compile(r"\bcov: (\d+)")


@dataclass(frozen=True)
class Run:
    """One target under the fuzzer: how long, how many inputs, how much of the code they reach
    (in the fuzzer's own unit), and what was found."""

    target: str
    seconds: int
    inputs: int
    covered: int
    findings: tuple[str, ...]


def main() -> int:
    args = _parser().parse_args()
    if args.replay is not None:
        return _replay(args.target, args.replay)
    names = [args.target] if args.target else list(TARGETS)
    runs = [_run(name, args.seconds, Path(args.folder)) for name in names]
    findings = [finding for run in runs for finding in run.findings]
    print(f"findings: {len(findings)}")
    return 1 if findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long for each target [60]")
    parser.add_argument("--target", choices=sorted(TARGETS), help="one target; else all")
    parser.add_argument("--folder", default=str(ROOT / ".fuzz"), help="where inputs stay [.fuzz]")
    parser.add_argument("--replay", metavar="FILE", help="run the target on this input, no more")
    return parser


def _replay(name: str | None, file: str) -> int:
    if name is None:
        print("fuzz: --replay needs --target: which of the parsers is it for?", file=sys.stderr)
        return 2
    taken = accepts(TARGETS[name], Path(file).read_bytes())
    print(f"{name}: {'accepted' if taken else 'refused'}")
    return 0


def _run(name: str, seconds: int, folder: Path) -> Run:
    """Fuzz one target in a process of its own, and say what came of it."""
    corpus, found = folder / "corpus" / name, folder / "findings"
    for each in (corpus, found):
        each.mkdir(parents=True, exist_ok=True)
    known = set(found.iterdir())
    for seed in TARGETS[name].seeds():
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        command = (sys.executable, "-m", "fuzz.child", name, *_flags(name, seconds, corpus, found))
        code = _call(command, seconds + _GRACE_S, out.fileno())
    said = log.read_text("utf-8", "replace")
    inputs = sorted(str(path) for path in set(found.iterdir()) - known)
    findings = inputs or ([] if code == 0 else [f"no input, see {log}"])
    done, covered = _DONE.search(said), _COVERED.findall(said)
    count, reached = int(done[1]) if done else 0, max(map(int, covered), default=0)
    run = Run(name, seconds, count, reached, tuple(findings))
    print(json.dumps(asdict(run)), flush=True)
    for path in inputs:
        print(f"FOUND: make fuzz TARGET={name} REPLAY={os.path.relpath(path, ROOT)}", flush=True)
    return run


def _call(command: tuple[str, ...], timeout_s: float, out: int) -> int:
    try:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return -1
    return done.returncode


def _flags(name: str, seconds: int, corpus: Path, found: Path) -> tuple[str, ...]:
    return (
        str(corpus),
        f"-max_total_time={seconds}",
        f"-timeout={SLOW_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-max_len={INPUT_BYTES}",
        f"-artifact_prefix={found}/{name}-",
        "-print_final_stats=1",
        "-use_value_profile=1",
        "-verbosity=1",
    )


if __name__ == "__main__":
    sys.exit(main())
