"""Writes the vectors of our own: full sessions, live output, packs, the chain, addressed messages,
trails, odd signatures.

    python tools/make_vectors.py [--check]

Inputs are fixed, so every run writes the same bytes; `--check` writes nothing and fails when a
file would change. A signed form never changes once it is here: a diff in this output is a change
of the protocol, and needs a feature of its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import addressing_vectors
import audit_vectors
import chain_vectors
import ed25519_odd as odd
import epoch_vectors
import msgspec
import pull_vectors
import transfer_vectors

from airlox import errors
from airlox.protocol import (
    aead,
    canonical,
    cert,
    invite,
    item,
    job,
    keys,
    live,
    manifest,
    pack,
    payload,
)
from airlox.protocol.digest import NOTHING_HEX
from airlox.protocol.encoding import ItemId, b64u_encode

VECTORS = Path(__file__).parents[1] / "vectors"
OWNER_SEED = bytes(range(32))
T0 = 1_700_000_000_000
KEYS = keys.SessionKeys.derive(OWNER_SEED)
SENDER = keys.SigningKey.from_seed(bytes([7]) * 32)
RUNNER = keys.SigningKey.from_seed(bytes([9]) * 32)
NONCE = bytes([11]) * 12
JOB_ID = ItemId(b64u_encode(bytes([1]) * 16))
JOB_REF = item.ItemRef(blob_sha256=b64u_encode(bytes([2]) * 32), id=JOB_ID)
TREE = b64u_encode(bytes([3]) * 32)

JOB_NUMBER = 4
"""Its id and its time follow from it."""

Case = dict[str, Any]


def limits(**changes: Any) -> manifest.JobLimits:
    values: dict[str, Any] = {
        "approve_runners": True,
        "kinds": (manifest.JobKind.PYTHON, manifest.JobKind.SHELL),
        "memory_mb": 512,
        "network": False,
        "packages": ("numpy<3,>=1.26", "pandas"),
        "return_out": True,
        "runtime": "python3.12",
        "timeout_s": 60,
    }
    return manifest.JobLimits(**(values | changes))


PINNED = (manifest.Feature.LIVE, manifest.Feature.PINS, manifest.Feature.TREES)
"""What the vectors' full session switches on: later features do not change them."""


QUEUED = tuple(sorted((manifest.Feature.QUEUE, *PINNED)))
PULLED = tuple(sorted((manifest.Feature.PULL, *PINNED)))


def full_manifest(features: tuple[manifest.Feature, ...] = PINNED, **changes: Any) -> str:
    return manifest.build_manifest(
        OWNER_SEED,
        mode=manifest.Mode.EXECUTE,
        created_at_ms=T0,
        ttl_ms=3_600_000,
        max_item_bytes=1_000_000,
        job_limits=limits(**changes),
        features=features,
    )


FULL = full_manifest()
FLOOR = manifest.build_manifest(
    OWNER_SEED,
    mode=manifest.Mode.EXECUTE,
    created_at_ms=T0,
    ttl_ms=3_600_000,
    job_limits=limits(kinds=msgspec.UNSET, packages=("pandas",)),
)


def resigned(document: str, change: Callable[[dict[str, Any]], None]) -> str:
    """A manifest changed and signed again by its owner, checked by nobody."""
    value = json.loads(document)
    change(value["manifest"])
    inner = canonical.encode(value["manifest"])
    value["sig"] = KEYS.owner.sign("manifest", inner)
    return canonical.encode(value).decode()


def certificate(role: keys.Role, key: keys.SigningKey) -> str:
    return cert.issue_cert(
        KEYS.role_seed(role),
        session_id=KEYS.session_id,
        role=role,
        participant_pub=key.public,
        issued_at_ms=T0 + 5,
    )


def join(role: keys.Role, key: keys.SigningKey, name: str, sandbox: str | None = None) -> str:
    info = None
    if sandbox:
        info = cert.RunnerInfo(
            host="box",
            labels=("gpu",),
            name=name,
            network_unblocked=False,
            sandbox=cert.SandboxName(sandbox),
        )
    return cert.sign_join(
        key,
        cert=certificate(role, key),
        session_id=KEYS.session_id,
        display_name=name,
        kind=cert.ClientKind.RUNNER if sandbox else cert.ClientKind.CLI,
        created_at_ms=T0 + 6,
        runner=info,
    )


def sealed(
    key: keys.SigningKey, kind: item.Kind, subkind: str | None, plain: bytes, number: int
) -> item.SealedItem:
    return item.seal_item(
        key,
        KEYS.session_key,
        session_id=KEYS.session_id,
        item_id=ItemId(b64u_encode(bytes([number]) * 16)),
        kind=kind,
        subkind=subkind,
        created_at_ms=T0 + 1000 + number,
        payload=plain,
        nonce=NONCE,
    )


def framed(document: bytes, body: bytes = b"") -> bytes:
    return len(document).to_bytes(4, "big") + document + body


def open_case(
    name: str,
    role: keys.Role,
    kind: item.Kind,
    subkind: str | None,
    meta: Any,
    terms: str = FULL,
    body: bytes = b"",
) -> Case:
    """An `open_checked` case; its verdict is the core's own, pinned by the committed file."""
    key = RUNNER if role is keys.Role.RUNNER else SENDER
    document = meta if isinstance(meta, bytes) else canonical.encode(meta)
    post = sealed(key, kind, subkind, framed(document, body), JOB_NUMBER)
    inputs = {
        "signed_manifest": terms,
        "session_key": KEYS.session_key.hex(),
        "author_cert": certificate(role, key),
        "envelope": post.envelope,
        "blob_b64": base64.b64encode(post.blob).decode(),
    }
    return verdict(name, "open_checked", inputs)


def verdict(name: str, op: str, inputs: dict[str, Any]) -> Case:
    try:
        return {"name": name, "op": op, "in": inputs, "ok": OPERATIONS[op](inputs)}
    except errors.ProtocolError as error:
        known = (errors.SignatureError, errors.DecryptError, errors.PolicyError)
        class_ = next((k for k in known if isinstance(error, k)), errors.ValidationError)
        return {"name": name, "op": op, "in": inputs, "error": class_.__name__}


# ── full sessions ────────────────────────────────────────────────────────────────────────────

SHELL = job.ShellJob(
    command=("pytest", "-x", "tests/é"),
    cwd="sub/dir",
    files=(),
    fresh=True,
    memory_mb=None,
    progress_file="progress.txt",
    require_layers=("landlock", "seccomp"),
    target=job.OneRunner(name="box", participant_pub=RUNNER.public),
    timeout_s=60,
    tree=job.TreeRef(digest=TREE, files=412, size=3_100_000),
)
PYTHON = job.PythonJob(
    code="print(1)\n",
    filename="main.py",
    files=(),
    memory_mb=256,
    requirements=("numpy",),
    runtime="python3.12",
    target=job.AnyRunner(),
    timeout_s=30,
    tree=job.TreeRef(digest=TREE, files=1, git=b64u_encode(bytes([4]) * 32), size=2),
)
LEFT_OUT = job.LeftOut(path="out/link", reason="symbolic link")
ENV = job.Env(
    airlox="0.2.0",
    builder="own",
    image="sha256:" + "0" * 64,
    interpreter="uv-runtime",
    layers={"cgroup": 1, "landlock": 7, "seccomp": 1},
    network="off",
    packages={"numpy": "2.1.0", "pandas": "2.2.3"},
    platform="linux-x86_64",
    python="3.12.1",
    sandbox="local",
)
RESULT = job.Result(
    cause=job.Cause(kind=job.CauseKind.EXIT),
    code_sha256=job.code_sha256(SHELL),
    env=ENV,
    exit_code=1,
    input_sha256=hashlib.sha256(b"").hexdigest(),
    job=JOB_REF,
    left_out=(LEFT_OUT,),
    limits=job.AppliedLimits(
        timeout_s=60,
        memory_bytes=536_870_912,
        processes=512,
        open_files=8192,
        disk_bytes=1 << 30,
        cpus_milli=2000,
    ),
    live=job.LiveTotals(dropped_bytes=0, head=TREE, segments=3, stderr_bytes=7, stdout_bytes=1200),
    out_files=(),
    peak=job.Peak(memory_bytes=318_000_000, source="cgroup"),
    peak_mem_mb=318,
    reason=None,
    status=job.Status.COMPLETED,
    stderr="warning",
    stderr_truncated=False,
    stdout="1 passed\n",
    stdout_truncated=False,
    tree=TREE,
    wall_ms=41_200,
)
INFO = payload.RunnerInfoNote(
    airlox="0.2.0",
    builder="own",
    gpus=1,
    image="sha256:" + "0" * 64,
    kinds=(manifest.JobKind.PYTHON, manifest.JobKind.SHELL),
    layers={"cgroup": 1, "landlock": 7, "seccomp": 1},
    memory_mb=16_000,
    network="off",
    platform="linux-x86_64",
    python="3.12.1",
    sandbox="local",
    slots=4,
    workspaces=True,
)


def full_cases() -> list[Case]:
    return [
        *manifest_cases(),
        *plain_http_cases(),
        *join_cases(),
        *job_cases(),
        *result_cases(),
        *info_cases(),
    ]


def manifest_cases() -> list[Case]:
    def check(name: str, document: str) -> Case:
        return verdict(f"manifest-{name}", "verify_manifest", {"signed_manifest": document})

    def change(**changes: Any) -> str:
        return resigned(FULL, lambda body: body.update(changes))

    def limit(**changes: Any) -> str:
        return resigned(FULL, lambda body: body["job_limits"].update(changes))

    def teleporting(body: dict[str, Any]) -> None:
        body["features"] = ["live", "teleport"]

    return [
        check("full", FULL),
        check("history", full_manifest((manifest.Feature.HISTORY, *PINNED))),
        check("queue", full_manifest(QUEUED)),
        check("pull", full_manifest(PULLED)),
        check("history-only", change(features=["history"])),
        check("live-only", full_manifest((manifest.Feature.LIVE,), packages=("pandas",))),
        check("shell-only", full_manifest(kinds=(manifest.JobKind.SHELL,))),
        check("http-host", change(insecure_http_host="relay-1.airlox_x.svc")),
        check("http-host-address", change(insecure_http_host="10.0.0.7")),
        check("http-host-null", change(insecure_http_host=None)),
        check("http-host-large", change(insecure_http_host="Relay")),
        check("http-host-port", change(insecure_http_host="relay:80")),
        check("features-empty", change(features=[])),
        check("features-null", change(features=None)),
        check("features-unsorted", change(features=["trees", "live", "pins"])),
        check("features-repeated", change(features=["live", "live"])),
        check("features-unknown", change(features=["live", "pins", "teleport", "trees"])),
        check("features-without-live", change(features=["pins", "trees"])),
        check("features-without-kinds", resigned(FULL, lambda b: b["job_limits"].pop("kinds"))),
        check("kinds-without-features", resigned(FULL, lambda b: b.pop("features"))),
        check("kinds-empty", limit(kinds=[])),
        check("kinds-unsorted", limit(kinds=["shell", "python"])),
        check("kinds-unknown", limit(kinds=["python", "ruby"])),
        check("kinds-null", limit(kinds=None)),
        check("python-without-py", change(allowed_types=["text"])),
        check(
            "shell-without-py",
            resigned(
                full_manifest(kinds=(manifest.JobKind.SHELL,)),
                lambda b: b.update(allowed_types=["text"]),
            ),
        ),
        check("pin-unsorted-specifier", limit(packages=["numpy>=1.26,<3"])),
        check("pin-space", limit(packages=["numpy >=1.26"])),
        check("pin-malformed", limit(packages=["numpy>=x"])),
        check("pin-exact", limit(packages=["cugrid==0.1.0"])),
        check("pin-long", limit(packages=["numpy==" + "1" * 200])),
        check("pin-not-ascii", limit(packages=["numpy===\u0661"])),
        check("pin-repeated", limit(packages=["numpy<3,<3"])),
        check("pin-without-feature", change(features=["live", "trees"])),
        check("unknown-feature-with-a-field", change(features=["live", "teleport"], gate=1)),
        check("unknown-feature-with-a-kind", resigned(limit(kinds=["beam"]), teleporting)),
        check("unknown-field", change(gate=1)),
        check("features-in-relay", change(mode="relay", job_limits=None)),
    ]


def plain_http_cases() -> list[Case]:
    """Links to a relay without TLS, and manifests that allow one host, another, or none."""
    link = invite.owner_invite("http://relay.svc:8080", OWNER_SEED, plain_http=True).url()
    tail = link.partition("/s/")[2]

    def parse(name: str, url: str) -> Case:
        return verdict(f"plain-http-link-{name}", "parse_invite", {"url": url})

    def check(name: str, base: str, host: str | None) -> Case:
        document = (
            FULL if host is None else resigned(FULL, lambda b: b.update(insecure_http_host=host))
        )
        given = {"url": f"{base}/s/{tail}", "signed_manifest": document}
        return verdict(f"plain-http-{name}", "check_invite", given)

    return [
        parse("owner", link),
        parse(
            "sender",
            invite.member_invite(
                "http://10.0.0.7", OWNER_SEED, keys.Role.SENDER, plain_http=True
            ).url(),
        ),
        parse("unsaid", link.replace("&http=1", "")),
        parse("two", link.replace("&http=1", "&http=2")),
        parse("bracketed", f"http://[fd00::1]/s/{tail}"),
        check("named", "http://relay.svc:8080", "relay.svc"),
        check("large-letters", "http://RELAY.svc", "relay.svc"),
        check("another", "http://other.svc", "relay.svc"),
        check("none", "http://relay.svc", None),
        check("https", "https://other.example", "relay.svc"),
        check("this-machine", "http://127.0.0.1:1", "relay.svc"),
    ]


def join_cases() -> list[Case]:
    def check(name: str, document: str, terms: str) -> Case:
        inputs = {"signed_join": document, "signed_manifest": terms}
        return verdict(f"join-{name}", "verify_join", inputs)

    process = join(keys.Role.RUNNER, RUNNER, "box", "process")
    return [
        check("process-in-full", process, FULL),
        check("process-in-floor", process, FLOOR),
        check("local-in-full", join(keys.Role.RUNNER, RUNNER, "box", "local"), FULL),
    ]


def job_cases() -> list[Case]:
    def shell(name: str, terms: str = FULL, **changes: Any) -> Case:
        meta = msgspec.structs.replace(SHELL, **changes)
        return open_case(f"shell-{name}", keys.Role.SENDER, item.Kind.JOB, "sh", meta, terms)

    def raw(name: str, subkind: str, change: Callable[[dict[str, Any]], None]) -> Case:
        base = SHELL if subkind == "sh" else PYTHON
        value = json.loads(canonical.encode(base))
        change(value)
        document = canonical.encode(value)
        return open_case(name, keys.Role.SENDER, item.Kind.JOB, subkind, document)

    def until(wait_ms: int) -> job.QueueTerms:
        """Waits so long from the time that the item's header says."""
        return job.QueueTerms(start_by_ms=T0 + 1000 + JOB_NUMBER + wait_ms)

    def python_queued(name: str, terms: str) -> Case:
        meta = msgspec.structs.replace(PYTHON, queue=until(1))
        return open_case(name, keys.Role.SENDER, item.Kind.JOB, "py", meta, terms)

    def pulling(name: str, *patterns: str, **changes: Any) -> Case:
        """A job that has such files back."""
        given: Case = {"terms": full_manifest(PULLED), "pull": job.PullTerms(patterns=patterns)}
        return shell(f"pull{name}", **(given | changes))

    unset = msgspec.UNSET
    plain: dict[str, Any] = {"tree": unset, "cwd": unset}
    return [
        shell("command"),
        shell("script", command=unset, script="#!/bin/sh\nmake test\n"),
        shell("plain", **plain, fresh=unset, progress_file=unset, require_layers=unset),
        shell("both", script="x"),
        shell("neither", command=unset),
        shell("script-at-limit", command=unset, script="x" * 65536),
        shell("script-over-limit", command=unset, script="x" * 65537),
        shell("command-empty", command=()),
        shell("command-empty-word", command=("",)),
        shell("command-empty-argument", command=("true", "")),
        shell("command-nul", command=("a\0b",)),
        shell("command-words-over-limit", command=("x",) * 4097),
        shell("command-bytes-over-limit", command=("x" * 131072,)),
        shell("cwd-dotdot", cwd="a/../b"),
        shell("cwd-absolute", cwd="/etc"),
        shell("cwd-empty", cwd=""),
        shell("cwd-without-tree", tree=unset),
        shell("progress-dotdot", progress_file="../x"),
        shell("layers-empty", require_layers=()),
        shell("layers-unsorted", require_layers=("seccomp", "landlock")),
        shell("timeout-over", timeout_s=61),
        shell("memory-over", memory_mb=513),
        shell("in-floor-session", terms=FLOOR),
        shell("not-in-kinds", terms=full_manifest(kinds=(manifest.JobKind.PYTHON,))),
        shell("queue", terms=full_manifest(QUEUED), queue=until(3_600_000)),
        shell("queue-at-once", terms=full_manifest(QUEUED), queue=until(0)),
        shell("queue-at-limit", terms=full_manifest(QUEUED), queue=until(7 * 86_400_000)),
        shell("queue-over-limit", terms=full_manifest(QUEUED), queue=until(7 * 86_400_000 + 1)),
        shell("queue-in-the-past", terms=full_manifest(QUEUED), queue=until(-1)),
        shell("queue-without-feature", queue=until(3_600_000)),
        raw("shell-queue-null", "sh", lambda v: v.update(queue=None)),
        raw(
            "shell-queue-unknown-field", "sh", lambda v: v.update(queue={"start_by_ms": 1, "x": 1})
        ),
        python_queued("python-queue", full_manifest(QUEUED)),
        python_queued("python-queue-without-feature", FULL),
        pulling("", "**/*.py", "!build/"),
        pulling("-ignored", pull=job.PullTerms(patterns=("dist/",), ignored=True)),
        pulling("-without-feature", "**", terms=FULL),
        pulling("-without-tree", "**", tree=unset, cwd=unset),
        pulling("-without-files-back", "**", terms=full_manifest(PULLED, return_out=False)),
        pulling("-nothing"),
        pulling("-patterns-at-limit", *["*"] * 32),
        pulling("-patterns-over-limit", *["*"] * 33),
        pulling("-bytes-at-limit", "é" * 512),
        pulling("-bytes-over-limit", "é" * 512 + "x"),
        pulling("-empty", ""),
        pulling("-blank", "  "),
        pulling("-newline", "a\nb"),
        pulling("-control", "a\x85b"),
        raw("shell-pull-null", "sh", lambda v: v.update(pull=None)),
        raw("shell-pull-list", "sh", lambda v: v.update(pull=["*"])),
        raw(
            "shell-pull-unknown-field",
            "sh",
            lambda v: v.update(pull={"patterns": ["*"], "x": 1}),
        ),
        raw(
            "shell-pull-ignored-false",
            "sh",
            lambda v: v.update(pull={"ignored": False, "patterns": ["*"]}),
        ),
        raw("shell-fresh-false", "sh", lambda v: v.update(fresh=False)),
        raw("shell-null-script", "sh", lambda v: v.update(script=None)),
        raw("shell-unknown-field", "sh", lambda v: v.update(gpu=1)),
        raw("shell-tree-short-digest", "sh", lambda v: v["tree"].update(digest="AA")),
        raw("shell-tree-short-git", "sh", lambda v: v["tree"].update(git="AA")),
        raw("shell-tree-null-git", "sh", lambda v: v["tree"].update(git=None)),
        raw("shell-tree-unknown-field", "sh", lambda v: v["tree"].update(packs=[])),
        open_case("python-full", keys.Role.SENDER, item.Kind.JOB, "py", PYTHON),
        open_case("python-in-floor", keys.Role.SENDER, item.Kind.JOB, "py", PYTHON, FLOOR),
        open_case("python-as-sh", keys.Role.SENDER, item.Kind.JOB, "sh", PYTHON),
        open_case("shell-as-py", keys.Role.SENDER, item.Kind.JOB, "py", SHELL),
        open_case("shell-by-observer", keys.Role.OBSERVER, item.Kind.JOB, "sh", SHELL),
        open_case("shell-by-runner", keys.Role.RUNNER, item.Kind.JOB, "sh", SHELL),
        bind_case("bind-good", SHELL, RESULT),
        bind_case("bind-other-code", PYTHON, RESULT),
        bind_case(
            "bind-other-tree", SHELL, msgspec.structs.replace(RESULT, tree=JOB_REF.blob_sha256)
        ),
        bind_case("bind-no-tree", SHELL, msgspec.structs.replace(RESULT, tree=unset)),
        bind_case(
            "bind-other-inputs", SHELL, msgspec.structs.replace(RESULT, input_sha256="0" * 64)
        ),
        bind_case("bind-refused-unread", SHELL, refused_unread()),
        bind_case("bind-lost-before-inputs", SHELL, lost(), inputs="1" * 64),
        bind_case("bind-completed-without-inputs", SHELL, RESULT, inputs="1" * 64),
        bind_case("bind-lost-other-tree", SHELL, lost(tree=JOB_REF.blob_sha256)),
        bind_case("bind-lost-tree", SHELL, lost(tree=TREE)),
        bind_case(
            "bind-tree-of-a-job-without", msgspec.structs.replace(SHELL, **plain), lost(tree=TREE)
        ),
    ]


def refused_unread() -> job.Result:
    return msgspec.structs.replace(
        RESULT,
        cause=job.Cause(kind=job.CauseKind.REFUSED, code="invalid_job"),
        code_sha256=hashlib.sha256(b"").hexdigest(),
        exit_code=None,
        reason="job did not verify",
        status=job.Status.REFUSED,
        tree=msgspec.UNSET,
    )


def lost(**changes: Any) -> job.Result:
    """A job that ended before its inputs and tree were in place."""
    values: dict[str, Any] = {
        "cause": job.Cause(kind=job.CauseKind.RUNNER_LOST),
        "exit_code": None,
        "input_sha256": NOTHING_HEX,
        "reason": "the runner stopped",
        "status": job.Status.FAILED,
        "tree": msgspec.UNSET,
    }
    return msgspec.structs.replace(RESULT, **(values | changes))


def bind_case(
    name: str, request: job.Job, result: job.Result, *, inputs: str = NOTHING_HEX
) -> Case:
    given = {
        "job_meta": canonical.encode(request).decode(),
        "result_meta": canonical.encode(result).decode(),
        "input_sha256": inputs,
    }
    return verdict(name, "bind_result", given)


def result_cases() -> list[Case]:
    def check(name: str, terms: str = FULL, **changes: Any) -> Case:
        meta = msgspec.structs.replace(RESULT, **changes)
        return open_case(f"result-{name}", keys.Role.RUNNER, item.Kind.RESULT, None, meta, terms)

    def raw(name: str, change: Callable[[dict[str, Any]], None]) -> Case:
        value = json.loads(canonical.encode(RESULT))
        change(value)
        document = canonical.encode(value)
        return open_case(f"result-{name}", keys.Role.RUNNER, item.Kind.RESULT, None, document)

    ends = [
        check(
            f"cause-{kind.value}",
            cause=job.Cause(kind=kind, limit=5, peak=4, signal=9, code="x", by=SENDER.public),
            status=job.STATUS_OF_CAUSE[kind],
            exit_code=0 if kind is job.CauseKind.EXIT else None,
            reason="why",
        )
        for kind in job.CauseKind
    ]
    unset = msgspec.UNSET
    listed = msgspec.structs.replace(
        ENV, network="allow_list", hosts=("*.example.org", "example.org:443"), gpus=2
    )
    denied = (
        job.Denied(reason="not_listed", target="other.org:443"),
        job.Denied(reason="ip_literal", target="169.254.169.254:80"),
        job.Denied(reason="ip_literal", target="[::1]:22"),
        job.Denied(reason="not_public", target="in.example.org:443"),
        job.Denied(reason="plain_http", target="example.org:80"),
    )
    egress = job.Egress(
        connections=3, denials=7, received_bytes=5000, sent_bytes=700, denied=denied
    )

    def went_out(name: str, change: Callable[[dict[str, Any]], object]) -> Case:
        value = json.loads(
            canonical.encode(msgspec.structs.replace(RESULT, env=listed, egress=egress))
        )
        change(value["egress"])
        document = canonical.encode(value)
        return open_case(f"result-{name}", keys.Role.RUNNER, item.Kind.RESULT, None, document)

    return [
        check("full"),
        *ends,
        check(
            "least",
            left_out=unset,
            limits=unset,
            peak=unset,
            tree=unset,
            live=job.LiveTotals(
                dropped_bytes=0, head=None, segments=0, stderr_bytes=0, stdout_bytes=0
            ),
            env=job.Env(
                airlox="0.2.0",
                layers={},
                network="open",
                platform="linux-x86_64",
                sandbox="process",
            ),
        ),
        check("allow-list", env=listed),
        check("egress", env=listed, egress=egress),
        check("egress-without-allow-list", egress=egress),
        went_out("egress-all-let-through", lambda v: (v.pop("denied"), v.update(denials=0))),
        went_out("egress-denials-without-names", lambda v: v.pop("denied")),
        went_out("egress-names-without-denials", lambda v: v.update(denials=0)),
        went_out("egress-more-names-than-denials", lambda v: v.update(denials=4)),
        went_out("egress-no-names", lambda v: v.update(denied=[])),
        went_out("egress-named-twice", lambda v: v["denied"].append(v["denied"][0])),
        went_out(
            "egress-most-names",
            lambda v: v.update(
                denials=99,
                denied=[{"reason": "not_listed", "target": f"h{n}.org:443"} for n in range(20)],
            ),
        ),
        went_out(
            "egress-too-many-names",
            lambda v: v.update(
                denials=99,
                denied=[{"reason": "not_listed", "target": f"h{n}.org:443"} for n in range(21)],
            ),
        ),
        went_out("egress-reason-unknown", lambda v: v["denied"][0].update(reason="mood")),
        went_out("egress-target-malformed", lambda v: v["denied"][0].update(target="a b:443")),
        went_out("egress-target-without-port", lambda v: v["denied"][0].update(target="a.org")),
        went_out("egress-target-escape", lambda v: v["denied"][0].update(target="\x1b[2J:443")),
        went_out("egress-unknown-field", lambda v: v.update(hosts=[])),
        raw("hosts-without-allow-list", lambda v: v["env"].update(hosts=["example.org"])),
        raw("allow-list-without-hosts", lambda v: v["env"].update(network="allow_list")),
        raw(
            "hosts-unsorted",
            lambda v: v["env"].update(network="allow_list", hosts=["b.org", "a.org"]),
        ),
        raw(
            "hosts-malformed",
            lambda v: v["env"].update(network="allow_list", hosts=["a b"]),
        ),
        check("oom-kills", peak=job.Peak(memory_bytes=1, source="cgroup", oom_kills=3)),
        check("cut", stdout_truncated=True, stdout_bytes=5_000_000),
        check("total-of-what-was-not-cut", stderr_bytes=7),
        raw("left-out-too-long", lambda v: v["left_out"][0].update(path="x" * 4097)),
        check("without-env", env=unset),
        check("without-cause", cause=unset),
        check("without-live", live=unset),
        check("cause-and-status-differ", cause=job.Cause(kind=job.CauseKind.SIGNAL)),
        check("left-out-empty", left_out=()),
        check("left-out-over-limit", left_out=(LEFT_OUT,) * 101),
        check("tree-short", tree="AA"),
        check("in-floor-session", terms=FLOOR),
        raw("env-null", lambda v: v.update(env=None)),
        raw("env-unknown-field", lambda v: v["env"].update(hostname="x")),
        raw("env-newline", lambda v: v["env"].update(python="3\n4")),
        raw("env-long-text", lambda v: v["env"].update(python="3" * 201)),
        raw("env-network-unknown", lambda v: v["env"].update(network="maybe")),
        raw("cause-unknown", lambda v: v["cause"].update(kind="bored")),
        raw("cause-by-bad-key", lambda v: v["cause"].update(by="AA")),
        raw("live-head-without-segments", lambda v: v["live"].update(segments=0)),
        raw("live-segments-without-head", lambda v: v["live"].update(head=None)),
        raw("peak-source-unknown", lambda v: v["peak"].update(source="guess")),
        raw("limits-negative", lambda v: v["limits"].update(memory_bytes=-1)),
        raw("layers-float", lambda v: v["env"]["layers"].update(seccomp=True)),
    ]


def info_cases() -> list[Case]:
    def raw(name: str, change: Callable[[dict[str, Any]], None]) -> Case:
        value = json.loads(canonical.encode(INFO))
        change(value)
        document = canonical.encode(value)
        return open_case(name, keys.Role.RUNNER, item.Kind.RUNNER_INFO, None, document)

    kind = item.Kind.RUNNER_INFO
    return [
        open_case("info-good", keys.Role.RUNNER, kind, None, INFO),
        open_case("info-by-sender", keys.Role.SENDER, kind, None, INFO),
        open_case("info-in-floor", keys.Role.RUNNER, kind, None, INFO, FLOOR),
        raw("info-no-kinds", lambda v: v.update(kinds=[])),
        raw("info-no-slots", lambda v: v.update(slots=0)),
        raw("info-unknown-field", lambda v: v.update(cpu="x")),
        raw("info-hosts", lambda v: v.update(network="allow_list", hosts=["example.org"])),
        raw("info-hosts-missing", lambda v: v.update(network="allow_list")),
        raw("info-escape", lambda v: v.update(sandbox="\x1b[2J")),
    ]


# ── live output and packs ────────────────────────────────────────────────────────────────────


def written() -> tuple[list[bytes], str]:
    writer = live.LiveWriter(
        RUNNER, KEYS.session_key, KEYS.session_id, JOB_REF, bytes([5]) * live.RANDOM_BYTES
    )
    frames = []
    for pieces in (
        [live.Piece(live.STDOUT, b"collected 2 items\n")],
        [live.Piece(live.STDERR, b"warning\n"), live.Piece(live.STDOUT, "é".encode())],
        [live.Piece(live.STDOUT, b"2 passed\n")],
    ):
        frame, writer = writer.write(pieces)
        frames.append(frame)
    return frames, writer.head or ""


def live_cases() -> list[Case]:
    frames, head = written()

    def read(name: str, chosen: list[bytes], **changes: Any) -> Case:
        inputs = {
            "session_key": KEYS.session_key.hex(),
            "session_id": KEYS.session_id,
            "job": msgspec.to_builtins(JOB_REF),
            "runner": RUNNER.public,
            "frames_b64": [base64.b64encode(f).decode() for f in chosen],
        }
        return verdict(f"live-{name}", "live_read", inputs | changes)

    def flipped(frame: bytes, at: int) -> bytes:
        return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]

    other = msgspec.to_builtins(item.ItemRef(blob_sha256=TREE, id=JOB_ID))
    return [
        {
            "name": "live-write",
            "op": "live_write",
            "in": {
                "author_seed": (bytes([9]) * 32).hex(),
                "session_key": KEYS.session_key.hex(),
                "session_id": KEYS.session_id,
                "job": msgspec.to_builtins(JOB_REF),
                "random": (bytes([5]) * 16).hex(),
                "segments": [
                    [[1, b"collected 2 items\n".hex()]],
                    [[2, b"warning\n".hex()], [1, "é".encode().hex()]],
                    [[1, b"2 passed\n".hex()]],
                ],
            },
            "ok": {"frames_b64": [base64.b64encode(f).decode() for f in frames], "head": head},
        },
        read("all", frames),
        read("late-start", frames[1:]),
        read("repeated", [frames[0], frames[0], frames[1]]),
        read("other-nonce", [renonced(frames[0])]),
        read("gap", [frames[0], frames[2]]),
        read("old-after-new", [frames[0], frames[1], frames[0], frames[2]]),
        read("flipped-end", [flipped(frames[0], len(frames[0]) - 1)]),
        read("flipped-head", [flipped(frames[0], 40)]),
        read("cut", [frames[0][:-1]]),
        read("other-job", frames, job=other),
        read("other-runner", frames, runner=SENDER.public),
        read("other-key", frames, session_key=(bytes([6]) * 32).hex()),
        read("other-session", frames, session_id="ax_" + "a" * 26),
    ]


def renonced(frame: bytes) -> bytes:
    """The first segment under another nonce, signed again by its runner."""
    document, blob = item.parse_frame(frame)
    value = json.loads(document)
    header = canonical.encode(value["segment"])
    secret = keys.live_key(
        KEYS.session_key,
        KEYS.session_id,
        job=JOB_ID,
        job_blob=bytes([2]) * 32,
        runner=RUNNER.public,
        random=bytes([5]) * live.RANDOM_BYTES,
    )
    plain = aead.open_sealed(secret, blob, header, "segment")
    blob = aead.seal(secret, NONCE, plain, header)
    value["sig"] = RUNNER.sign("live", header + hashlib.sha256(blob).digest())
    return item.encode_frame(canonical.encode(value).decode(), blob)


def pack_cases() -> list[Case]:
    plain = b"a pack's plain bytes"
    sealed_pack = pack.seal_pack(
        KEYS.session_key, KEYS.session_id, job=JOB_ID, number=7, plain=plain, nonce=NONCE
    )
    sealed_lack = pack.seal_lack(
        KEYS.session_key,
        KEYS.session_id,
        job=JOB_ID,
        runner=RUNNER.public,
        plain=b"\x05",
        nonce=NONCE,
    )
    base = {
        "session_key": KEYS.session_key.hex(),
        "session_id": KEYS.session_id,
        "job": JOB_ID,
    }

    def opened(name: str, sealed_bytes: bytes, number: int = 7, **changes: Any) -> Case:
        sealed_b64 = base64.b64encode(sealed_bytes).decode()
        inputs = base | {"number": number, "sealed_b64": sealed_b64} | changes
        return verdict(f"pack-{name}", "open_pack", inputs)

    def lacking(name: str, sealed_bytes: bytes, runner: str = RUNNER.public) -> Case:
        sealed_b64 = base64.b64encode(sealed_bytes).decode()
        return verdict(
            f"lack-{name}", "open_lack", base | {"runner": runner, "sealed_b64": sealed_b64}
        )

    return [
        opened("good", sealed_pack),
        opened("other-number", sealed_pack, number=8),
        opened("number-too-large", sealed_pack, number=1 << 32),
        opened("number-negative", sealed_pack, number=-1),
        opened("other-job", sealed_pack, job=b64u_encode(bytes([8]) * 16)),
        opened("flipped", sealed_pack[:-1] + bytes([sealed_pack[-1] ^ 1])),
        opened("short", sealed_pack[:20]),
        lacking("good", sealed_lack),
        lacking("other-runner", sealed_lack, SENDER.public),
        lacking("flipped", sealed_lack[:-1] + bytes([sealed_lack[-1] ^ 1])),
        *(cutting(KEYS, size) for size in (0, 1, 32 * 1024, 3_000_001)),
        cutting(keys.SessionKeys.derive(bytes(32)), 3_000_001),
    ]


def cutting(of: keys.SessionKeys, size: int) -> Case:
    inputs = {"session_key": of.session_key.hex(), "session_id": of.session_id, "size": size}
    return verdict(f"cut-{of.session_id[3:7]}-{size}", "cut", inputs)


# ── what 0.1.0 does beyond the given vectors; each verdict was asked of its core ─────────────


RELAY = manifest.build_manifest(
    OWNER_SEED, mode=manifest.Mode.RELAY, created_at_ms=T0, ttl_ms=3_600_000
)
KERAS = manifest.build_manifest(
    OWNER_SEED,
    mode=manifest.Mode.EXECUTE,
    created_at_ms=T0,
    ttl_ms=3_600_000,
    max_item_bytes=1_000_000,
    job_limits=limits(kinds=msgspec.UNSET, packages=("keras",)),
)


def floor_cases() -> list[Case]:
    return [*floor_file_cases(), *floor_job_cases(), *floor_reason_cases(), *floor_link_cases()]


def floor_file_cases() -> list[Case]:
    def file(name: str, subkind: str, file_name: str, body: bytes, **options: Any) -> Case:
        mime = {"py": "text/x-python", "md": "text/markdown"}[subkind]
        meta = payload.File(mime=mime, name=file_name)
        role = options.pop("role", keys.Role.SENDER)
        terms = options.pop("terms", KERAS)
        return open_case(f"file-{name}", role, item.Kind.FILE, subkind, meta, terms, body)

    return [
        file("py-nul", "py", "a.py", b"a\0b"),
        file("md-nul", "md", "a.md", b"a\0b"),
        file("md-controls", "md", "a.md", b"\x01\x1b\x7f"),
        file("extension-kelvin", "md", "a.mar\u212adown", b"x"),
        file("extension-upper", "md", "a.MARKDOWN", b"x"),
        file("by-runner", "py", "a.py", b"", role=keys.Role.RUNNER),
        file("by-runner-in-relay", "py", "a.py", b"", role=keys.Role.RUNNER, terms=RELAY),
        file("by-owner-in-relay", "py", "a.py", b"", role=keys.Role.OWNER, terms=RELAY),
    ]


def floor_job_cases() -> list[Case]:
    plain = msgspec.structs.replace(PYTHON, tree=msgspec.UNSET, requirements=())

    def ask(name: str, **changes: Any) -> Case:
        meta = msgspec.structs.replace(plain, **changes)
        return open_case(f"job-{name}", keys.Role.SENDER, item.Kind.JOB, "py", meta, KERAS)

    return [
        ask("requirement-upper", requirements=("KERAS",)),
        ask("requirement-kelvin", requirements=("\u212aeras",)),
        ask("requirement-repeated", requirements=("keras", "Keras", "keras")),
        ask("filename-upper", filename="A.PY"),
        ask("code-nul", code="a\0b"),
    ]


def floor_reason_cases() -> list[Case]:
    floor = {
        name: getattr(RESULT, name)
        for name in job.FloorResult.__struct_fields__
        if name not in ("reason", "type")
    }

    def said(name: str, reason: str) -> list[Case]:
        reject = payload.RunnerReject(participant_pub=RUNNER.public, reason=reason)
        result = job.FloorResult(**floor, reason=reason)
        return [
            open_case(f"reject-{name}", keys.Role.OWNER, item.Kind.EVENT, None, reject, KERAS),
            open_case(f"result-{name}", keys.Role.RUNNER, item.Kind.RESULT, None, result, KERAS),
        ]

    return [
        *said("reason-4096", "\u00e9" * 4096),
        *said("reason-4097", "\u00e9" * 4097),
        *said("reason-empty", ""),
    ]


def floor_link_cases() -> list[Case]:
    tail = "/s/" + invite.owner_invite("https://r.example", OWNER_SEED).url().split("/s/")[1]

    def link(base: str) -> Case:
        return verdict(f"link-{base}", "parse_invite", {"url": base + tail})

    return [
        link(base)
        for base in (
            "https:///x",
            "https://:80",
            "https://:",
            "https://a/s/x",
            "http://a.b.localhost",
            "http://localhost.",
            "http://127.1",
            "http://localhost/a//",
        )
    ]


# ── odd keys and signatures ──────────────────────────────────────────────────────────────────


def signature_cases() -> list[Case]:
    return [*key_cases(), *odd_signatures()]


def key_cases() -> list[Case]:
    raws: dict[str, bytes] = {}
    for y in (0, 1, 2, 3, 18, odd.P - 1):
        for sign in (0, 1):
            name = "p-1" if y == odd.P - 1 else str(y)
            raws[f"key-y{name}-sign{sign}"] = (y | sign << 255).to_bytes(32, "little")
            if y + odd.P < 2**255:
                raw = (y + odd.P | sign << 255).to_bytes(32, "little")
                raws[f"key-y{name}+p-sign{sign}"] = raw
    point, torsion = odd.IDENTITY, odd.torsion()
    for n in range(8):
        raws[f"key-torsion-{n}"] = odd.encode(point)
        point = odd.add(point, torsion)
    return [
        verdict(name, "fingerprint", {"public_key": b64u_encode(raw)}) for name, raw in raws.items()
    ]


def odd_signatures() -> list[Case]:
    a = odd.scalar(bytes([7]) * 32)
    public = odd.encode(odd.multiply(a, odd.BASE))
    torsion = odd.torsion()
    blob = bytes(59)

    def header(author: bytes) -> bytes:
        return canonical.encode(
            item.Header(
                author=b64u_encode(author),
                created_at_ms=T0,
                id=JOB_ID,
                kind=item.Kind.TEXT,
                refs=(),
                session_id=KEYS.session_id,
                size=31,
                subkind=None,
                v=1,
            )
        )

    def message(author: bytes) -> bytes:
        signed = header(author) + hashlib.sha256(blob).digest()
        return keys.signing_input("item", signed)

    def case(name: str, author: bytes, r: bytes, s: int) -> Case:
        sig = b64u_encode(r + s.to_bytes(32, "little"))
        envelope = f'{{"header":{header(author).decode()},"sig":"{sig}"}}'
        inputs = {"envelope": envelope, "blob_b64": base64.b64encode(blob).decode()}
        return verdict(f"sig-{name}", "verify_item", inputs)

    def by_nonce(author: bytes, secret: int, wanted: Callable[[int], bool]) -> tuple[bytes, int]:
        nonce = 1
        while True:
            r = odd.encode(odd.multiply(nonce, odd.BASE))
            h = odd.challenge(r, author, message(author))
            if wanted(h):
                return r, (nonce + h * secret) % odd.L
            nonce += 1

    def fixed_r(r: bytes, nonce: int = 0) -> int:
        return (nonce + odd.challenge(r, public, message(public)) * a) % odd.L

    r, s = by_nonce(public, a, lambda h: True)
    identity = odd.encode(odd.IDENTITY)
    identity_plus_p = (1 + odd.P).to_bytes(32, "little")
    mixed_r = odd.encode(odd.add(odd.multiply(5, odd.BASE), torsion))
    small = odd.encode(torsion)
    mixed = odd.encode(odd.add(odd.multiply(a, odd.BASE), torsion))
    return [
        case("good", public, r, s),
        case("s-plus-group-order", public, r, s + odd.L),
        case("r-identity", public, identity, fixed_r(identity)),
        case("r-identity-not-canonical", public, identity_plus_p, fixed_r(identity_plus_p)),
        case("r-mixed-order", public, mixed_r, fixed_r(mixed_r, 5)),
        case("key-identity", identity, *by_nonce(identity, 0, lambda h: True)),
        case("key-small-order", small, *by_nonce(small, 0, lambda h: h % 8 == 0)),
        case("key-mixed-order-holds", mixed, *by_nonce(mixed, a, lambda h: h % 8 == 0)),
        case("key-mixed-order-cofactored-only", mixed, *by_nonce(mixed, a, lambda h: h % 8 > 0)),
    ]


# ── what each operation answers; the tests hold their own table ──────────────────────────────


def _operations() -> dict[str, Callable[[dict[str, Any]], Any]]:
    sys.path.insert(0, str(VECTORS.parent / "tests"))
    from vectors.operations import OPERATIONS as table

    found: dict[str, Callable[[dict[str, Any]], Any]] = table
    return found


OPERATIONS = _operations()


def document(name: str, cases: list[Case]) -> str:
    target = "airlox 0.1.0" if name.startswith("extra-") else "airlox 0.2.0"
    head = {"format": 1, "target": target, "file": name, "cases": cases}
    return json.dumps(head, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    terms = {"floor": FLOOR, "full": FULL}
    files = {
        "addressing": addressing_vectors.cases(verdict, open_case, terms),
        "audit": audit_vectors.cases(verdict, RESULT),
        "chain": chain_vectors.cases(verdict),
        "changes": pull_vectors.cases(verdict),
        "epochs": epoch_vectors.cases(verdict),
        "full": full_cases(),
        "live": live_cases(),
        "packs": pack_cases(),
        "signatures": signature_cases(),
        "transfer": transfer_vectors.cases(verdict),
        "extra-policy": floor_cases(),
    }
    stale = []
    for name, cases in files.items():
        path, text = VECTORS / f"{name}.json", document(name, cases)
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text)
    print("changed:", *stale) if stale else print("vectors are as they were")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
