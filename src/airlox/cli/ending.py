"""How a job's end is told: its output, its files, where it ran, and the one last line.

The exit code of a completed job is the command's; any other end is 1. What was signed and what is
only the relay's word is said in so many words.
"""

from __future__ import annotations

from airlox.cli.main import EXIT_ERROR
from airlox.cli.output import STDERR, STDOUT, duration_text, path_text, size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from airlox.cli.output import Voice
    from airlox.client.jobs import Result
    from airlox.protocol.job import Cause

    Shape = dict[str, Any]

MIB = 1024 * 1024
_RELAYS_REASONS = {
    "runner_lost": "runner lost; airlox result -- {job} shows the result if it comes back",
    "queue_expired": "no slot became free in time; a longer --queue=TIME waits for one",
    "author_left": "the job's sender had left, or was cut off, before its turn came",
}
"""What the relay's reasons for ending a job mean, or what to do then."""
_SHOWN_LEFT_OUT = 5
_SHOWN_HOSTS = 3


def tell(result: Result, saved: list[str], voice: Voice, brought: Shape | None = None) -> None:
    """Print how a job ended. `brought`: what `--json` says besides of the tree's changes."""
    if voice.json:
        voice.document(result_shape(result, saved) | (brought or {}))
        return
    _tell_blocked(result, voice)
    _tell_files(result, saved, voice)
    if result.env is not None:
        voice.note(_line(env_text(result)), "dim")
    if result.others:
        voice.warn(
            "the relay gave this job to more than one runner; further results: "
            + ", ".join(result.others)
        )
    voice.note(last_line(result), "green" if result.ok else "red")
    if not result.signed and result.reason in _RELAYS_REASONS:
        voice.note(_RELAYS_REASONS[result.reason].format(job=result.job))


def exit_code(result: Result) -> int:
    """The exit code a result stands for: the command's own where it ran to its end."""
    if result.status == "completed" and result.exit_code is not None:
        return result.exit_code & 0xFF
    return EXIT_ERROR


def save_files(result: Result, folder: str | None) -> list[str]:
    """Save the files a job wrote where that was asked for; their paths."""
    if folder is None:
        return []
    return [path_text(path) for path in result.save_to(folder)]


def print_output(result: Result, voice: Voice) -> None:
    """The output as the result has it, on the streams it was written to."""
    for stream, text in ((STDOUT, result.stdout), (STDERR, result.stderr)):
        voice.output(stream, text.encode())
    voice.end_output()
    if result.stdout_truncated or result.stderr_truncated:
        voice.note("the output was longer than a result holds; the rest is gone")


def result_shape(result: Result, saved: list[str]) -> Shape:
    """The result as `--json` prints it; of a progress bar it has the last state."""
    import msgspec

    from airlox.cli import shapes
    from airlox.client.folding import fold

    shape: Shape = {
        "exit_code": result.exit_code,
        "job": result.job,
        "out_files": [
            {"name": file.name, "ref": shapes.ref(file.ref), "size": file.size}
            for file in result.out_files
        ],
        "peak_mem_mb": result.peak_mem_mb,
        "reason": result.reason,
        "runner": result.runner,
        "runner_name": result.runner_name,
        "saved": saved,
        "signed": result.signed,
        "status": result.status,
        "stderr": fold(result.stderr),
        "stderr_truncated": result.stderr_truncated,
        "stdout": fold(result.stdout),
        "stdout_truncated": result.stdout_truncated,
        "wall_ms": result.wall_ms,
    }
    for name in ("cause", "egress", "env", "left_out", "limits", "live", "others", "peak", "tree"):
        value = getattr(result, name)
        if value:
            shape[name] = msgspec.to_builtins(value)
    return shape


def _tell_blocked(result: Result, voice: Voice) -> None:
    """What the job was not let through to, right after its own words."""
    if result.egress is None or not result.egress.denied:
        return
    named = result.egress.denied
    for denied in named:
        voice.note(_line(denied.text), "red")
    if result.egress.denials > len(named):
        voice.note(f"… {result.egress.denials} attempts in all", "red")


def _tell_files(result: Result, saved: list[str], voice: Voice) -> None:
    for path in saved:
        voice.note(f"saved {path}")
    for path in result.unsaved()[:_SHOWN_LEFT_OUT] if saved else ():
        voice.note(_line(f"not saved: {path}: what makes a folder a git repository stays out"))
    if result.out_files and not saved:
        total = sum(file.size for file in result.out_files)
        names = ", ".join(file.name for file in result.out_files[:8])
        voice.note(f"files came back: {names} ({size_text(total)}); --out-dir DIR saves them")
    for left in result.left_out[:_SHOWN_LEFT_OUT]:
        voice.note(_line(f"not sent back: {left.path}: {left.reason}"))
    if len(result.left_out) > _SHOWN_LEFT_OUT:
        voice.note(f"… and {len(result.left_out) - _SHOWN_LEFT_OUT} more files not sent back")


def env_text(result: Result) -> str:
    """Where a job ran, by the runner's signed word, in one line."""
    import msgspec

    if result.env is None:
        return ""
    env = msgspec.to_builtins(result.env)
    layers = " ".join(sorted(name for name, version in env["layers"].items() if version))
    parts = [
        f"sandbox {env['sandbox']}" + (f" ({layers})" if layers else ""),
        _network_text(env),
        env["platform"],
    ]
    if "gpus" in env:
        parts.append(f"{env['gpus']} GPU{'' if env['gpus'] == 1 else 's'}")
    if "python" in env:
        source = f" ({env['interpreter']})" if "interpreter" in env else ""
        parts.append(f"python {env['python']}{source}")
    parts += [f"{name} {version}" for name, version in env.get("packages", {}).items()]
    if "image" in env:
        parts.append(f"image {env['image']}")
    parts.append(f"airlox {env['airlox']}")
    return "env: " + " · ".join(parts)


def _network_text(env: Shape) -> str:
    hosts = env.get("hosts")
    if hosts is None:
        return f"network {env['network']}"
    more = f" and {len(hosts) - _SHOWN_HOSTS} more" if len(hosts) > _SHOWN_HOSTS else ""
    return f"network to {' '.join(hosts[:_SHOWN_HOSTS])}{more} only"


def last_line(result: Result) -> str:
    """`── completed · exit 1 · 41.2 s · peak 318 MB · signed by runner gpu-box`."""
    parts = [result.status.replace("_", " ")]
    if result.exit_code is not None:
        parts.append(f"exit {result.exit_code}")
    if result.signed:
        parts.append(duration_text(result.wall_ms))
    peak_mb = result.peak_mem_mb
    if result.peak is not None:
        peak_mb = -(-result.peak.memory_bytes // MIB)
    if peak_mb:
        parts.append(f"peak {peak_mb} MB")
    reason = _reason(result)
    if reason:
        parts.append(reason)
    if result.signed:
        parts.append(f"signed by runner {result.runner_name}")
    else:
        parts.append("NOT signed: the relay's word")
    return "── " + " · ".join(parts)


def _reason(result: Result) -> str:
    """Why a job ended, where it is not by its own exit."""
    if result.reason:
        return _line(result.reason)
    return "" if result.cause is None or result.cause.kind == "exit" else _cause_text(result.cause)


def _cause_text(cause: Cause) -> str:
    return cause.kind.value.replace("_", " ")


def _line(text: str) -> str:
    """Words of a runner in one line, so that they cannot pose as the last one."""
    return text.replace("\n", " ")
