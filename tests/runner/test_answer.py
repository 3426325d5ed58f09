"""Answers: they always fit, say the next step, and keep to the form of the session."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from airlox.errors import PolicyError
from airlox.protocol import limits
from airlox.protocol.digest import NOTHING_HEX
from airlox.protocol.encoding import ItemId, b64u_encode
from airlox.protocol.item import ItemRef
from airlox.protocol.job import AnyRunner, Cause, CauseKind, Env, LeftOut, OutFile, ShellJob, Status
from airlox.protocol.manifest import (
    JobKind,
    JobLimits,
    Manifest,
    Mode,
    build_manifest,
    parse_manifest,
)
from airlox.protocol.payload import decode_payload, encode_payload
from airlox.runner import answer
from airlox.runner.answer import Answer
from airlox.runner.outfiles import Sendable
from airlox.runner.output import Capture
from airlox.runner.redact import Redactor
from airlox.sandbox import base

REF = ItemRef(blob_sha256=b64u_encode(b"\3" * 32), id=ItemId(b64u_encode(b"\4" * 16)))
ENV = Env(airlox="0", layers={}, network="off", platform="linux", sandbox="local")
SESSION = JobLimits(
    approve_runners=False,
    kinds=(JobKind.SHELL,),
    memory_mb=512,
    network=False,
    packages=(),
    return_out=True,
    runtime="python3.12",
    timeout_s=60,
)
JOB = ShellJob(command=("true",), files=(), memory_mb=None, target=AnyRunner(), timeout_s=10)


def manifest(*, full: bool = True, item_bytes: int = limits.DEFAULT_ITEM_BYTES) -> Manifest:
    job_limits = SESSION if full else msgspec.structs.replace(SESSION, kinds=UNSET)
    features: Any = ("live", "trees") if full else ()
    return parse_manifest(
        build_manifest(
            b"\1" * 32,
            mode=Mode.EXECUTE,
            created_at_ms=1,
            ttl_ms=None,
            max_item_bytes=item_bytes,
            job_limits=job_limits,
            features=features,
        )
    )


def printed(text: bytes) -> Capture:
    capture = Capture(Redactor([]))
    capture.write(text)
    capture.close()
    return capture


def seen(*, denied: int, name: str = "h") -> base.Egress:
    reason = base.DenialReason.NOT_LISTED
    named = tuple(base.Denial(f"{name}{n}.org:443", reason) for n in range(denied))
    return base.Egress(1, 10, 20, denied + 5, named)


def completed(stdout: bytes = b"", stderr: bytes = b"") -> Answer:
    return Answer(
        REF,
        ENV,
        Cause(kind=CauseKind.EXIT),
        None,
        exit_code=0,
        stdout=printed(stdout),
        stderr=printed(stderr),
    )


LOST = answer.lost(REF, ENV, NOTHING_HEX, NOTHING_HEX, None)


def out_files(count: int) -> tuple[OutFile, ...]:
    return tuple(OutFile(item=REF, name=f"{n}.png", size=1) for n in range(count))


class TestFit:
    def test_a_small_answer_is_whole(self) -> None:
        result = answer._fitted(manifest(), completed(b"out", b"err"), ())
        assert (result.stdout, result.stderr) == ("out", "err")
        assert not result.stdout_truncated

    def test_a_megabyte_of_nul_is_six_in_json_and_is_cut(self) -> None:
        """[P-RES-3] Both streams are within their limit, the meta is beyond its own."""
        flood = b"\0" * limits.OUTPUT_BYTES
        result = answer._fitted(manifest(), completed(flood, flood), ())
        size = len(encode_payload(result))
        assert size <= limits.META_BYTES + 4
        assert size > limits.META_BYTES * 0.9, "no more is cut than must be"
        assert result.stdout_truncated
        assert result.stdout.endswith("\0")
        assert result.stdout_bytes == result.stderr_bytes == limits.OUTPUT_BYTES

    def test_a_stream_that_was_not_cut_has_no_total(self) -> None:
        flood = b"x" * (limits.OUTPUT_BYTES + 7)
        result = answer._fitted(manifest(), completed(b"whole", flood), ())
        assert (result.stdout_bytes, result.stderr_bytes) == (UNSET, len(flood))
        decode_payload(encode_payload(result), full=True)

    @settings(max_examples=30)
    @given(st.integers(1200, 20_000), st.binary(max_size=9000), st.integers(0, 20))
    def test_every_answer_fits_the_sessions_items(
        self, item_bytes: int, text: bytes, count: int
    ) -> None:
        """P-FLR-11 and P-RES-3: [P-RES-3]"""
        small = manifest(item_bytes=item_bytes)
        if not answer.fits_at_all(small, completed()):
            return
        result = answer._fitted(small, completed(text, text), ())
        assert answer._fits(small, result)

    def test_62_files_and_all_output_fit(self) -> None:
        flood = b"\1" * limits.OUTPUT_BYTES
        result = answer._fitted(manifest(), completed(flood, flood), out_files(62))
        assert answer._fits(manifest(), result)
        assert len(result.out_files) == 62

    def test_a_session_too_small_for_any_answer_is_known_before(self) -> None:
        assert not answer.fits_at_all(manifest(item_bytes=1000), completed())
        assert answer.fits_at_all(manifest(item_bytes=4000), completed())

    def test_a_long_reason_gives_way(self) -> None:
        least = next(
            n for n in range(1000, 9000) if answer.fits_at_all(manifest(item_bytes=n), LOST)
        )
        small = manifest(item_bytes=least)
        result = answer._fitted(small, replace(LOST, reason="\1" * 4000), ())
        assert answer._fits(small, result)
        assert result.reason

    def test_a_long_list_of_what_was_left_out_gives_way(self) -> None:
        left = tuple(LeftOut(path="p" * 200, reason="r" * 200) for _ in range(100))
        small = manifest(item_bytes=3000)
        result = answer._fitted(small, replace(completed(b"x"), left_out=left), ())
        assert answer._fits(small, result)

    def test_hosts_that_a_job_tried_give_way(self) -> None:
        tried = answer.egress_of(
            base.Outcome(base.Cause.EXIT, egress=seen(denied=20, name="h" * 250))
        )
        env = msgspec.structs.replace(ENV, network="allow_list", hosts=("a.org:443",))
        small = manifest(item_bytes=3000)
        result = answer._fitted(small, replace(completed(b"x"), env=env, egress=tried), ())
        assert answer._fits(small, result)
        assert answer._fitted(manifest(), replace(completed(), egress=tried), ()).egress == tried


class TestForm:
    def test_a_floor_session_has_the_fields_of_0_1_0_only(self) -> None:
        flood = b"x" * (2 * limits.OUTPUT_BYTES)
        result = answer._fitted(manifest(full=False), completed(flood, flood), ())
        extended = ("cause", "egress", "env", "live", "limits", "peak", "tree", "left_out")
        for name in (*extended, "stdout_bytes", "stderr_bytes"):
            assert getattr(result, name) is UNSET, name

    def test_a_full_session_says_why_where_and_what_was_shown_live(self) -> None:
        result = answer._fitted(manifest(), completed(), ())
        assert (result.cause, result.env) == (Cause(kind=CauseKind.EXIT), ENV)
        assert result.live == answer.NO_LIVE

    def test_in_a_floor_session_the_reason_begins_with_the_cause(self) -> None:
        killed = replace(
            completed(), cause=Cause(kind=CauseKind.OUT_OF_MEMORY), exit_code=None, reason="killed"
        )
        assert answer._fitted(manifest(full=False), killed, ()).reason == "out_of_memory: killed"
        assert answer._fitted(manifest(), killed, ()).reason == "killed"

    def test_a_refusal_needs_no_word_in_front(self) -> None:
        refusal = answer.refused(REF, ENV, "no", "wrong_target")
        result = answer._fitted(manifest(full=False), refusal, ())
        assert (result.status, result.reason) == (Status.REFUSED, "no")

    def test_a_long_reason_is_cut_at_a_character(self) -> None:
        refusal = answer.refused(REF, ENV, "é" * 5000, "x")
        reason = answer._fitted(manifest(), refusal, ()).reason
        assert reason == "é" * (limits.REASON_BYTES // 2)

    def test_a_lost_job_says_what_to_do(self) -> None:
        result = answer._fitted(manifest(), answer.lost(REF, ENV, "c", "i", None), ())
        assert (result.status, result.code_sha256) == (Status.FAILED, "c")
        assert "run it again" in (result.reason or "")


class TestSealing:
    """The parcel of an answer, with an outbox that only notes what it is given."""

    class Outbox:
        def __init__(self, refuses: str = "") -> None:
            self.refuses = refuses
            self.sealed: list[Any] = []

        def seal(self, meta: Any, body: bytes = b"", **options: Any) -> Any:
            if getattr(meta, "name", None) == self.refuses:
                raise PolicyError("readers would refuse it")
            self.sealed.append((meta, options))
            return SimpleNamespace(ref=REF, meta=meta)

    def seal(self, outbox: Any, found: Answer, *names: str, **session: Any) -> Any:
        files = tuple(Sendable(name, "zip", "application/zip", b"x") for name in names)
        return answer.seal(outbox, manifest(**session), found, files)

    def test_the_job_stands_first_among_the_references(self) -> None:
        outbox = self.Outbox()
        self.seal(outbox, completed(), "out.zip")
        result, options = outbox.sealed[-1]
        assert options["refs"] == (REF, *(out.item for out in result.out_files))

    def test_a_file_that_readers_would_refuse_is_left_out_with_its_reason(self) -> None:
        outbox = self.Outbox(refuses="bad.zip")
        parcel = self.seal(outbox, completed(), "bad.zip", "out.zip")
        assert [out.name for out in parcel.result.meta.out_files] == ["out.zip"]
        assert parcel.result.meta.left_out[0].path == "bad.zip"

    def test_the_bare_result_names_the_files_as_left_out(self) -> None:
        parcel = self.seal(self.Outbox(), completed(b"x"), "out.zip")
        assert parcel.bare.meta.out_files == ()
        assert parcel.bare.meta.left_out[0].path == "out.zip"
        assert parcel.bare.meta.stdout == "x"

    def test_references_that_do_not_fit_cost_the_files_and_not_the_result(self) -> None:
        names = [f"{n}.zip" for n in range(30)]
        parcel = self.seal(self.Outbox(), completed(), *names, item_bytes=3000)
        assert parcel.files == ()
        assert parcel.result is parcel.bare


LESS = "write less in one job, or choose another runner"


class TestReasons:
    def reason(self, outcome: base.Outcome, **job: Any) -> str | None:
        return answer.reason_of(outcome, msgspec.structs.replace(JOB, **job), SESSION)

    def test_time(self) -> None:
        out = base.Outcome(base.Cause.TIME_OUT, limit=10_000)
        assert self.reason(out) == "killed: time limit of 10 s reached; try --timeout 20"
        assert self.reason(out, timeout_s=40) == (
            "killed: time limit of 40 s reached; try --timeout 60"
        )
        assert "the session's" in (self.reason(out, timeout_s=60) or "")

    def test_memory(self) -> None:
        out = base.Outcome(base.Cause.OUT_OF_MEMORY, limit=256 << 20, peak_bytes=255 << 20)
        assert self.reason(out) == (
            "killed: out of memory, limit 256 MB, peak 255 MB; try --memory 512"
        )
        out = base.Outcome(base.Cause.OUT_OF_MEMORY, limit=512 << 20)
        assert (self.reason(out) or "").endswith("which is all the session allows")

    def test_memory_of_which_the_runner_gives_less(self) -> None:
        out = base.Outcome(base.Cause.OUT_OF_MEMORY, limit=256 << 20)
        said = answer.reason_of(out, JOB, SESSION, memory_mb=256)
        assert said is not None
        assert said.endswith("all this runner gives a job; choose another runner")
        said = answer.reason_of(out, JOB, SESSION, memory_mb=300)
        assert said is not None
        assert said.endswith("try --memory 300")

    @pytest.mark.parametrize(
        ("outcome", "said"),
        [
            (base.Outcome(base.Cause.SIGNAL, signal=9), "killed by signal 9 (SIGKILL)"),
            (base.Outcome(base.Cause.SIGNAL, signal=63), "killed by signal 63"),
            (
                base.Outcome(base.Cause.DISK, limit=50, detail="files made"),
                f"killed: limit of the runner's disk reached: files made, 50; {LESS}",
            ),
            (
                base.Outcome(base.Cause.DISK, limit=1 << 28, detail="free space of the disk"),
                "killed: limit of the runner's disk reached: free space of the disk, 256 MB; "
                + LESS,
            ),
            (
                base.Outcome(base.Cause.PROCESS_LIMIT, limit=512),
                "killed: too many processes, limit 512; start fewer at a time",
            ),
            (base.Outcome(base.Cause.EXIT, exit_code=1), None),
        ],
    )
    def test_the_others(self, outcome: base.Outcome, said: str | None) -> None:
        assert self.reason(outcome) == said

    def test_a_child_killed_for_memory_is_told_though_the_job_ended_well(self) -> None:
        outcome = base.Outcome(base.Cause.EXIT, exit_code=0, oom_kills=1)
        said = "a process was killed for want of memory; try a larger --memory"
        assert self.reason(outcome) == said
        outcome = base.Outcome(base.Cause.EXIT, exit_code=0, oom_kills=3)
        assert self.reason(outcome) == said.replace("a process was", "3 processes were")

    def test_the_peak_counts_what_was_killed(self) -> None:
        outcome = base.Outcome(base.Cause.EXIT, peak_bytes=9, peak_source="cgroup", oom_kills=2)
        peak = answer.peak_of(outcome)
        assert peak is not None
        assert (peak.memory_bytes, peak.source, peak.oom_kills) == (9, "cgroup", 2)
        calm = answer.peak_of(replace(outcome, oom_kills=0))
        assert calm is not None
        assert calm.oom_kills is UNSET
        assert answer.peak_of(base.Outcome(base.Cause.EXIT)) is None

    def test_what_a_job_tried_of_the_network(self) -> None:
        outcome = base.Outcome(base.Cause.EXIT, egress=seen(denied=2))
        egress = answer.egress_of(outcome)
        assert egress is not None
        assert (egress.connections, egress.sent_bytes, egress.received_bytes) == (1, 10, 20)
        assert (egress.denials, len(egress.denied or ())) == (7, 2)
        assert answer.blocked(egress) == [
            f"blocked: h{n}.org:443; allow with --allow-host h{n}.org:443 on the runner"
            for n in range(2)
        ]

    def test_a_job_that_tried_nothing_of_the_network(self) -> None:
        for egress in (None, base.Egress(0, 0, 0)):
            assert answer.egress_of(base.Outcome(base.Cause.EXIT, egress=egress)) is None
        assert answer.blocked(None) == []
        calm = answer.egress_of(base.Outcome(base.Cause.EXIT, egress=base.Egress(1, 2, 3)))
        assert calm is not None
        assert (calm.denials, calm.denied) == (0, UNSET)
        assert answer.blocked(calm) == []

    @pytest.mark.parametrize("reason", base.DenialReason)
    def test_every_reason_of_the_sandbox_has_its_word(self, reason: base.DenialReason) -> None:
        denials = base.Egress(0, 0, 0, 1, (base.Denial("a.org:443", reason),))
        egress = answer.egress_of(base.Outcome(base.Cause.EXIT, egress=denials))
        assert answer.blocked(egress)[0].startswith("blocked: a.org:443; ")

    def test_causes_carry_what_belongs_to_them(self) -> None:
        assert answer.cause_of(base.Outcome(base.Cause.SIGNAL, signal=15)).signal == 15
        assert answer.cause_of(base.Outcome(base.Cause.TIME_OUT, limit=2000)).limit == 2
        memory = base.Outcome(base.Cause.OUT_OF_MEMORY, limit=64, peak_bytes=63)
        assert (answer.cause_of(memory).limit, answer.cause_of(memory).peak) == (64, 63)
        assert answer.cause_of(base.Outcome(base.Cause.EXIT, limit=1)).limit is UNSET
