"""Jobs and results: a request to a runner, and the signed answer.

Floor sessions have Python jobs and the result of 0.1.0. Full sessions add shell jobs, trees and a
start folder, and to each result where and how the job ran and why it ended.
Source: docs/protocol.md, "Jobs" and "Results".
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, Literal

from msgspec import UNSET, UnsetType

from airlox.errors import PolicyError, ValidationError
from airlox.protocol import canonical, limits
from airlox.protocol.canonical import I32, U32, U53, TimeMs, Wire
from airlox.protocol.cert import check_runner_name
from airlox.protocol.digest import NOTHING_HEX, sha256_hex
from airlox.protocol.encoding import PublicKey, is_hex_digest, parse_hash
from airlox.protocol.item import ItemRef
from airlox.protocol.keys import parse_public_key
from airlox.protocol.manifest import JobKind, JobLimits, parse_package
from airlox.protocol.names import check_safe_name, lower_ascii

# ── whom a job is for ────────────────────────────────────────────────────────────────────────


class AnyRunner(Wire, frozen=True, kw_only=True, tag="any"):
    """Any free runner."""


class OneRunner(Wire, frozen=True, kw_only=True, tag="runner"):
    """Exactly the runner with this key."""

    name: str
    participant_pub: str

    def __post_init__(self) -> None:
        parse_public_key(self.participant_pub)


class LabelledRunner(Wire, frozen=True, kw_only=True, tag="labels"):
    """Any free runner that has all of these labels."""

    labels: tuple[str, ...]


Target = AnyRunner | OneRunner | LabelledRunner


def parse_target(document: str) -> Target:
    """The target in clear, as it stands in the header of a post: JSON in any spacing."""
    target: Target = canonical.decode_loose(document, Target, "job target")  # type: ignore[arg-type]
    check_target(target)
    return target


def check_target(target: Target) -> None:
    """Raises PolicyError for a malformed name or label."""
    if isinstance(target, AnyRunner):
        return
    labels = target.labels if isinstance(target, LabelledRunner) else (target.name,)
    if not 1 <= len(labels) <= limits.LABELS:
        raise PolicyError(f"a job names 1 to {limits.LABELS} labels")
    try:
        for label in labels:
            check_runner_name(label)
    except ValidationError as error:
        raise PolicyError(f"job target: {error.message}") from None


# ── the request ──────────────────────────────────────────────────────────────────────────────


class TreeRef(Wire, frozen=True, kw_only=True):
    """The working tree a job runs in: digest of its index, and its totals for display.

    `git`: digest of the index of a second tree, which becomes the folder `.git` of the first.
    """

    digest: str
    files: U32
    size: U53
    git: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        parse_hash(self.digest)
        if self.git is not UNSET:
            parse_hash(self.git)


CHANGES_NAME: Final = "changes.zip"
"""The out file of a job with `pull` that holds what it changed in its tree."""


class PullTerms(Wire, frozen=True, kw_only=True):
    """Which files that the job changed in its tree come back: patterns as in `.gitignore`.

    `ignored`: new files too that the tree's own ignore rules keep out of a commit.
    """

    patterns: tuple[str, ...]
    ignored: Literal[True] | UnsetType = UNSET


class QueueTerms(Wire, frozen=True, kw_only=True):
    """The job may wait for a slot, and starts no later than this."""

    start_by_ms: TimeMs


class FloorPythonJob(Wire, frozen=True, kw_only=True):
    """Runs `code` as `filename`: the form of 0.1.0, the only one a floor session knows."""

    code: str
    filename: str
    files: tuple[ItemRef, ...]
    memory_mb: U32 | None
    requirements: tuple[str, ...]
    runtime: str
    target: Target
    timeout_s: U32
    type: Literal["job"] = "job"


class PythonJob(FloorPythonJob, frozen=True, kw_only=True):
    """A Python job with what full sessions add, each field left out when unused."""

    cwd: str | UnsetType = UNSET
    fresh: Literal[True] | UnsetType = UNSET
    progress_file: str | UnsetType = UNSET
    pull: PullTerms | UnsetType = UNSET
    queue: QueueTerms | UnsetType = UNSET
    require_layers: tuple[str, ...] | UnsetType = UNSET
    tree: TreeRef | UnsetType = UNSET

    @property
    def kind(self) -> JobKind:
        return JobKind.PYTHON


class ShellJob(Wire, frozen=True, kw_only=True):
    """Runs a command given as words, or a script. Full sessions with the kind `shell` only."""

    files: tuple[ItemRef, ...]
    kind: Literal["shell"] = "shell"
    memory_mb: U32 | None
    target: Target
    timeout_s: U32
    type: Literal["job"] = "job"
    command: tuple[str, ...] | UnsetType = UNSET
    cwd: str | UnsetType = UNSET
    fresh: Literal[True] | UnsetType = UNSET
    progress_file: str | UnsetType = UNSET
    pull: PullTerms | UnsetType = UNSET
    queue: QueueTerms | UnsetType = UNSET
    require_layers: tuple[str, ...] | UnsetType = UNSET
    script: str | UnsetType = UNSET
    tree: TreeRef | UnsetType = UNSET


Job = PythonJob | ShellJob


def code_sha256(job: Job) -> str:
    """Hex digest of what runs: the code, the script, or the canonical list of words."""
    if isinstance(job, PythonJob):
        return sha256_hex(job.code.encode())
    if job.script is not UNSET:
        return sha256_hex(job.script.encode())
    return sha256_hex(canonical.encode(job.command))


def check_job(job: Job, session: JobLimits) -> None:
    """Raises PolicyError or ValidationError unless the job keeps to the session's limits."""
    if not 1 <= job.timeout_s <= session.timeout_s:
        raise PolicyError(
            f"time limit {job.timeout_s} s is beyond the session's {session.timeout_s} s",
            hint=f"use --timeout {session.timeout_s} or less",
        )
    if job.memory_mb is not None and not 1 <= job.memory_mb <= session.memory_mb:
        raise PolicyError(
            f"memory {job.memory_mb} MB is beyond the session's {session.memory_mb} MB",
            hint=f"use --memory {session.memory_mb} or less",
        )
    if len(job.files) > limits.JOB_FILES:
        raise PolicyError(f"a job has at most {limits.JOB_FILES} input files")
    check_target(job.target)
    if isinstance(job, PythonJob):
        _check_python(job, session)
    else:
        _check_shell(job)
    _check_extras(job)
    _check_pull(job, session)


def _check_python(job: PythonJob, session: JobLimits) -> None:
    check_safe_name(job.filename)
    if lower_ascii(job.filename[-3:]) != ".py":
        raise PolicyError("the program of a Python job has a name that ends in .py")
    if len(job.code.encode()) > limits.CODE_BYTES:
        raise PolicyError(f"code is larger than {limits.CODE_BYTES} bytes")
    if job.runtime != session.runtime:
        raise PolicyError(f"this session runs {session.runtime}, not {job.runtime[:40]!r}")
    allowed = {parse_package(entry, pins=True)[0] for entry in session.packages}
    for name in dict.fromkeys(job.requirements):
        plain, _ = parse_package(lower_ascii(name), pins=False)
        if plain not in allowed:
            raise PolicyError(
                f"package {plain} is not on the session's allowlist",
                hint="create the session with --package " + plain,
            )


def _check_shell(job: ShellJob) -> None:
    if (job.command is UNSET) == (job.script is UNSET):
        raise ValidationError("a shell job has either a command or a script")
    if job.script is not UNSET and len(job.script.encode()) > limits.SCRIPT_BYTES:
        raise PolicyError(f"a script has at most {limits.SCRIPT_BYTES} bytes")
    if job.command is not UNSET:
        words = job.command
        if not words or not words[0] or len(words) > limits.COMMAND_WORDS:
            raise PolicyError(f"a command has 1 to {limits.COMMAND_WORDS} words")
        if sum(len(word.encode()) + 1 for word in words) > limits.COMMAND_BYTES:
            raise PolicyError(f"a command has at most {limits.COMMAND_BYTES} bytes")
        if any("\0" in word for word in words):
            raise PolicyError("a command has no NUL characters")


def _check_extras(job: Job) -> None:
    if job.cwd is not UNSET:
        _check_inner_path(job.cwd, "start folder")
        if job.tree is UNSET:
            raise PolicyError("a start folder needs a tree")
    if job.progress_file is not UNSET:
        _check_inner_path(job.progress_file, "progress file")
    if job.require_layers is not UNSET:
        layers = job.require_layers
        if not layers or len(layers) > limits.LAYERS or list(layers) != sorted(set(layers)):
            raise ValidationError("required layers must be a sorted list without repeats")
        if any(len(layer) > 32 for layer in layers):
            raise ValidationError("malformed layer name")


def _check_pull(job: Job, session: JobLimits) -> None:
    if job.pull is UNSET:
        return
    patterns = job.pull.patterns
    if job.tree is UNSET:
        raise PolicyError("only what a job changes in a tree can be pulled")
    if not session.return_out:
        raise PolicyError("this session returns no files", code="no_files_back")
    if not 1 <= len(patterns) <= limits.PULL_PATTERNS:
        raise PolicyError(f"a job has 1 to {limits.PULL_PATTERNS} patterns of what is pulled")
    for pattern in patterns:
        if not pattern.strip(" ") or _CONTROL.search(pattern):
            raise ValidationError("a pattern of what is pulled is empty or has control characters")
        if len(pattern.encode()) > limits.PULL_PATTERN_BYTES:
            raise PolicyError(f"a pattern has at most {limits.PULL_PATTERN_BYTES} bytes")


def _check_inner_path(path: str, what: str) -> None:
    if len(path.encode()) > limits.START_FOLDER_BYTES or "\0" in path:
        raise PolicyError(f"{what} is too long or has a NUL character")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise PolicyError(f"{what} must be a relative path below the tree")


_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_HOST_NAME: Final = re.compile(r"[a-z0-9*.-]{1,253}(:[0-9]{1,5})?\Z")
"""Lower case, perhaps with wildcards and a port. What it means is the sandbox's business."""
_TARGET: Final = re.compile(r"[a-z0-9._:\[\]-]{1,260}:[0-9]{1,5}\Z")
"""A name or an address as a job asked for it, and a port."""


# ── the answer ───────────────────────────────────────────────────────────────────────────────


class Status(StrEnum):
    COMPLETED = "completed"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    FAILED = "failed"


class CauseKind(StrEnum):
    """Why a job ended: the closed vocabulary of full sessions."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIME_OUT = "time_out"
    OUT_OF_MEMORY = "out_of_memory"
    DISK = "disk"
    PROCESS_LIMIT = "process_limit"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    RUNNER_LOST = "runner_lost"
    RUNNER_ERROR = "runner_error"


STATUS_OF_CAUSE: Final[dict[CauseKind, Status]] = {
    CauseKind.EXIT: Status.COMPLETED,
    CauseKind.SIGNAL: Status.FAILED,
    CauseKind.TIME_OUT: Status.TIMED_OUT,
    CauseKind.OUT_OF_MEMORY: Status.FAILED,
    CauseKind.DISK: Status.FAILED,
    CauseKind.PROCESS_LIMIT: Status.FAILED,
    CauseKind.CANCELLED: Status.CANCELLED,
    CauseKind.REFUSED: Status.REFUSED,
    CauseKind.SANDBOX_UNAVAILABLE: Status.REFUSED,
    CauseKind.RUNNER_LOST: Status.FAILED,
    CauseKind.RUNNER_ERROR: Status.FAILED,
}


class Cause(Wire, frozen=True, kw_only=True):
    """Why a job ended, with what goes with it.

    `by`: key of who cancelled. `code`: stable word of a refusal. `limit` and `peak`: seconds for
    time_out, bytes for out_of_memory and disk, a count for process_limit. `signal`: its number.
    """

    kind: CauseKind
    by: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    limit: U53 | UnsetType = UNSET
    peak: U53 | UnsetType = UNSET
    signal: U32 | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.by is not UNSET:
            parse_public_key(self.by)
        if self.code is not UNSET and not 1 <= len(self.code) <= 64:
            raise ValidationError("malformed code in a cause")


class AppliedLimits(Wire, frozen=True, kw_only=True):
    """Limits as the runner enforced them; absent means none."""

    timeout_s: U32
    cpus_milli: U32 | UnsetType = UNSET
    disk_bytes: U53 | UnsetType = UNSET
    memory_bytes: U53 | UnsetType = UNSET
    open_files: U32 | UnsetType = UNSET
    processes: U32 | UnsetType = UNSET


class Peak(Wire, frozen=True, kw_only=True):
    """Largest memory use of all processes of the job together, and who measured it.

    `oom_kills`: how many of them the kernel ended for want of memory; left out when none.
    """

    memory_bytes: U53
    source: Literal["cgroup", "engine", "rusage", "watcher"]
    oom_kills: U32 | UnsetType = UNSET


class LiveTotals(Wire, frozen=True, kw_only=True):
    """What the live output came to. `head` is the chain's last link, null without a segment."""

    dropped_bytes: U53
    head: str | None
    segments: U32
    stderr_bytes: U53
    stdout_bytes: U53

    def __post_init__(self) -> None:
        if (self.head is None) != (self.segments == 0):
            raise ValidationError("live output has a head exactly when it has segments")
        if self.head is not None:
            parse_hash(self.head)


class Env(Wire, frozen=True, kw_only=True):
    """Where a job ran, in the runner's words: no path of the machine.

    `layers` maps each sandbox layer to its version or ABI, 0 when it is off. `packages` maps each
    allowlisted package to the version installed. `gpus` counts those the job could use; `hosts`
    are the only ones it could reach, exactly when `network` is `allow_list`.
    """

    airlox: str
    layers: dict[str, U32]
    network: Literal["off", "allow_list", "on", "open"]
    platform: str
    sandbox: str
    builder: str | UnsetType = UNSET
    gpus: U32 | UnsetType = UNSET
    hosts: tuple[str, ...] | UnsetType = UNSET
    image: str | UnsetType = UNSET
    interpreter: str | UnsetType = UNSET
    packages: dict[str, str] | UnsetType = UNSET
    python: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        packages = {} if self.packages is UNSET else self.packages
        if len(self.layers) > limits.ENV_ENTRIES or len(packages) > limits.ENV_ENTRIES:
            raise ValidationError("too many entries in env")
        texts = [self.airlox, self.network, self.platform, self.sandbox, *self.layers, *packages]
        texts += packages.values()
        optional = (self.builder, self.image, self.interpreter, self.python)
        texts += [text for text in optional if text is not UNSET]
        if any(len(text) > limits.ENV_TEXT or not text.isprintable() for text in texts):
            raise ValidationError("env has a text that is too long or not printable")
        if not all(key.isascii() for key in (*self.layers, *packages)):
            raise ValidationError("keys of canonical JSON are ASCII")
        check_hosts(self.network, self.hosts)


def check_hosts(network: str, hosts: tuple[str, ...] | UnsetType) -> None:
    """Raises ValidationError unless hosts are named, in order, exactly where only they count."""
    if (hosts is not UNSET) != (network == "allow_list"):
        raise ValidationError("hosts are named exactly when the network is an allow list")
    if hosts is UNSET:
        return
    if not 1 <= len(hosts) <= limits.HOSTS or list(hosts) != sorted(set(hosts)):
        raise ValidationError(f"hosts are a sorted list of 1 to {limits.HOSTS} without repeats")
    if any(_HOST_NAME.match(host) is None for host in hosts):
        raise ValidationError("malformed host name")


class Denied(Wire, frozen=True, kw_only=True):
    """A target that a job was not let through to, and why.

    `not_listed`: no entry of the allow list names it; `ip_literal`: an address where a name
    belongs; `not_public`: its name leads to an address that is not public; `plain_http`: asked for
    without a tunnel.
    """

    reason: Literal["ip_literal", "not_listed", "not_public", "plain_http"]
    target: str

    def __post_init__(self) -> None:
        if _TARGET.match(self.target) is None:
            raise ValidationError("malformed target that was not let through")

    @property
    def text(self) -> str:
        """What the sender is told, with the next step where there is one."""
        return f"blocked: {self.target}; {_ADVICE[self.reason].format(self.target)}"


_ADVICE: Final = {
    "ip_literal": "only names are let through, no addresses",
    "not_listed": "allow with --allow-host {} on the runner",
    "not_public": "its address is not public",
    "plain_http": "only CONNECT is let through, so use https",
}


class Egress(Wire, frozen=True, kw_only=True):
    """What passed between a job and the hosts of an allow list, and what was not let through.

    `denials` counts all attempts in vain, `denied` names the first different ones.
    """

    connections: U53
    denials: U53
    received_bytes: U53
    sent_bytes: U53
    denied: tuple[Denied, ...] | UnsetType = UNSET

    def __post_init__(self) -> None:
        named = () if self.denied is UNSET else self.denied
        if (self.denied is not UNSET) != (self.denials > 0) or len(named) > self.denials:
            raise ValidationError("targets are named exactly when some were not let through")
        if self.denied is not UNSET and not 1 <= len(named) <= limits.DENIED:
            raise ValidationError(f"a result names 1 to {limits.DENIED} targets not let through")
        if len(set(named)) != len(named):
            raise ValidationError("a target that was not let through is named twice")


class LeftOut(Wire, frozen=True, kw_only=True):
    """A file of the out folder that was not sent, and why."""

    path: str
    reason: str

    def __post_init__(self) -> None:
        if max(len(self.path), len(self.reason)) > limits.LEFT_OUT_TEXT:
            raise ValidationError("a file that was left out has too long a path or reason")


class OutFile(Wire, frozen=True, kw_only=True):
    """A file the job wrote, sent as an item of its own."""

    item: ItemRef
    name: str
    size: U53


class FloorResult(Wire, frozen=True, kw_only=True):
    """A signed answer: the form of 0.1.0, the only one a floor session knows."""

    code_sha256: str
    exit_code: I32 | None
    input_sha256: str
    job: ItemRef
    out_files: tuple[OutFile, ...]
    peak_mem_mb: U32
    reason: str | None
    status: Status
    stderr: str
    stderr_truncated: bool
    stdout: str
    stdout_truncated: bool
    wall_ms: U53
    type: Literal["result"] = "result"


class Result(FloorResult, frozen=True, kw_only=True):
    """An answer with what full sessions add.

    `stdout_bytes`, `stderr_bytes`: what a stream came to before it was cut (after redaction);
    only where it was cut. `egress`: only where an allow list held and something was tried.
    """

    cause: Cause | UnsetType = UNSET
    egress: Egress | UnsetType = UNSET
    env: Env | UnsetType = UNSET
    left_out: tuple[LeftOut, ...] | UnsetType = UNSET
    limits: AppliedLimits | UnsetType = UNSET
    live: LiveTotals | UnsetType = UNSET
    peak: Peak | UnsetType = UNSET
    stderr_bytes: U53 | UnsetType = UNSET
    stdout_bytes: U53 | UnsetType = UNSET
    tree: str | UnsetType = UNSET


_WITH_EXIT: Final = {Status.COMPLETED: (True,), Status.FAILED: (True, False)}
_NEEDS_REASON: Final = (Status.REFUSED, Status.FAILED)


def check_result(result: Result, *, full: bool) -> None:
    """Raises PolicyError or ValidationError for a result that contradicts itself."""
    if (result.exit_code is not None) not in _WITH_EXIT.get(result.status, (False,)):
        raise PolicyError(f"a {result.status} result and its exit code do not go together")
    if result.reason is None and result.status in _NEEDS_REASON:
        raise PolicyError(f"a {result.status} result needs a reason")
    if result.reason is not None and len(result.reason) > limits.REASON:
        raise PolicyError(f"a reason has at most {limits.REASON} characters")
    if any(len(t.encode()) > limits.OUTPUT_BYTES for t in (result.stdout, result.stderr)):
        raise PolicyError(f"each output stream has at most {limits.OUTPUT_BYTES} bytes")
    if not is_hex_digest(result.code_sha256) or not is_hex_digest(result.input_sha256):
        raise PolicyError("hashes of a result are 64 lower-case hex digits")
    if len(result.out_files) > limits.OUT_FILES:
        raise PolicyError(f"a result lists at most {limits.OUT_FILES} out files")
    for out in result.out_files:
        check_safe_name(out.name)
    if full:
        _check_full_result(result)


def _check_full_result(result: Result) -> None:
    if result.cause is UNSET or result.env is UNSET or result.live is UNSET:
        raise ValidationError("a result of a full session has cause, env and live")
    if STATUS_OF_CAUSE[result.cause.kind] is not result.status:
        raise PolicyError(f"a {result.status} result does not end by {result.cause.kind}")
    if result.tree is not UNSET:
        parse_hash(result.tree)
    if result.stdout_bytes is not UNSET and not result.stdout_truncated:
        raise ValidationError("stdout was not cut, and needs no total")
    if result.stderr_bytes is not UNSET and not result.stderr_truncated:
        raise ValidationError("stderr was not cut, and needs no total")
    if result.egress is not UNSET and result.env.network != "allow_list":
        raise ValidationError("only a job behind an allow list has egress")
    if result.left_out is not UNSET and not 1 <= len(result.left_out) <= limits.LEFT_OUT:
        raise ValidationError(f"a result names 1 to {limits.LEFT_OUT} files it left out")


def check_result_for_job(
    result: Result,
    *,
    job_ref: ItemRef,
    job: Job,
    author: PublicKey,
    approved: frozenset[PublicKey] | None,
) -> None:
    """The rule of 0.1.0: the result is of this job, by a runner it could go to.

    `approved` is None where the session asks no approval. Raises PolicyError.
    """
    if result.job != job_ref:
        raise PolicyError("this result is of another job")
    if isinstance(job.target, OneRunner) and job.target.participant_pub != author:
        raise PolicyError("this result is not by the runner the job was sent to")
    if approved is not None and author not in approved:
        raise PolicyError("this result is by a runner the owner did not approve")


def bind_result(result: Result, *, job: Job, input_sha256: str | None) -> None:
    """What 0.1.0 leaves unchecked: the result is of this code, these inputs, this tree.

    A job that was refused unread carries digests of nothing, and so do the inputs of one that
    ended before it had them all. `input_sha256` is None when the inputs are not at hand. Raises
    PolicyError.
    """
    codes = {code_sha256(job)} | ({NOTHING_HEX} if result.status is Status.REFUSED else set())
    if result.code_sha256 not in codes:
        raise PolicyError("this result is of other code than the job's")
    completed = result.status is Status.COMPLETED
    inputs = {input_sha256} | (set() if completed else {NOTHING_HEX})
    if input_sha256 is not None and result.input_sha256 not in inputs:
        raise PolicyError("this result is of other input files than the job's")
    tree = UNSET if job.tree is UNSET else job.tree.digest
    if result.tree != tree and (completed or result.tree is not UNSET):
        raise PolicyError("this result is of another tree than the job's")
