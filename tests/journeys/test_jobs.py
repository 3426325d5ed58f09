"""Jobs from a sender's side: sent, followed, cancelled; only results bound to the job count."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airlox import JobRefused, PolicyError, SessionClosed, UsageError, ValidationError, WaitTimeout
from airlox.client import follow
from airlox.client.jobs import JobNotTaken
from airlox.protocol.job import Cause, CauseKind, Status
from journeys.conftest import People
from support.fake_runner import FULL, FakeRunner, Task

PATIENT_S = 60.0


class Place:
    """An execute session with an approved runner and a sender."""

    def __init__(self, people: People, script: Callable[[Task], None], full: bool) -> None:
        self.people = people
        limits: dict[str, Any] = {"timeout_s": 60, "packages": ["numpy"], **(FULL if full else {})}
        self.owner = people.owner(mode="execute", job_limits=limits)
        self.sender = people.join(self.owner.invites["sender"], "sender")
        self.runner = self.start("box", script)

    def start(
        self, name: str, script: Callable[[Task], None], labels: tuple[str, ...] = ("cpu",)
    ) -> FakeRunner:
        link = self.owner.invites["runner"]
        runner = FakeRunner(link, self.people.folder, script, name=name, labels=labels)
        runner.__enter__()
        self.owner.approve_runner(runner.public)
        return runner


Make = Callable[..., Place]


@pytest.fixture
def make(people: People) -> Iterator[Make]:
    places: list[Place] = []

    def build(script: Callable[[Task], None] = Task.finish, full: bool = True) -> Place:
        places.append(Place(people, script, full))
        return places[-1]

    yield build
    for place in places:
        place.runner.__exit__(None, None, None)


@pytest.mark.parametrize("full", [True, False])
class TestRoundTrip:
    def test_python(self, make: Make, full: bool) -> None:
        place = make(full=full)
        job = place.sender.run_python("print(1)", runner="box")
        result = job.wait(PATIENT_S)
        assert (result.status, result.exit_code, result.stdout) == ("completed", 0, "done\n")
        assert result.ok
        assert result.signed
        assert result.runner == job.runner == place.runner.public
        assert result.runner_name == "box"
        assert (result.env is not None) == full
        assert job.state().state == "finished"
        assert job.result() is not None
        # anybody who may read sees the same
        assert place.owner.job(job.id).wait(PATIENT_S) == msgspec.structs.replace(
            result, out_files=()
        )
        assert [found.id for found in place.owner.jobs()] == [job.id]

    def test_inputs_and_out_files(self, make: Make, full: bool, tmp_path: Path) -> None:
        inputs: list[bytes] = []

        def script(task: Task) -> None:
            inputs.extend(task.runner.blob(ref) for ref in task.meta.files)
            with io.BytesIO() as data:
                with zipfile.ZipFile(data, "w") as archive:
                    archive.writestr("summary.json", "{}")
                    archive.writestr("logs/run.txt", "ran")
                container = data.getvalue()
            image = task.send_file("chart.png", b"\x89PNG\r\n\x1a\n", "image", "image/png")
            rest = task.send_file("out.zip", container, "zip", "application/zip")
            task.finish(out_files=(image, rest))

        place = make(script, full)
        data = place.sender.send_file(b"x = 1\n", name="data.py")
        job = place.sender.run_python("import data", files=[data], labels=["cpu"])
        result = job.wait(PATIENT_S)
        assert len(inputs) == 1
        assert result.paths() == ["chart.png", "summary.json", "logs/run.txt"]
        assert result.read("chart.png").startswith(b"\x89PNG")
        assert result.read("summary.json") == b"{}"
        assert result.out_file("out.zip").data is not None
        with pytest.raises(UsageError, match=r"logs/run\.txt"):
            result.read("nothing.txt")
        out = tmp_path / "out"
        for _ in range(2):
            result.save_to(out)
        names = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
        assert names == [
            "chart-1.png",
            "chart.png",
            "logs/run-1.txt",
            "logs/run.txt",
            "summary-1.json",
            "summary.json",
        ]
        # out files outlive the session
        place.owner.close()
        assert result.read("logs/run.txt") == b"ran"

    def test_cancel(self, make: Make, full: bool) -> None:
        started = threading.Event()

        def script(task: Task) -> None:
            started.set()
            assert task.cancelled.wait(PATIENT_S)
            cause = Cause(kind=CauseKind.CANCELLED) if full else msgspec.UNSET
            task.finish(status=Status.CANCELLED, exit_code=None, cause=cause, reason="asked to")

        place = make(script, full)
        job = place.sender.run_python("while True: pass", runner="box")
        assert started.wait(PATIENT_S)
        job.cancel()
        result = job.wait(PATIENT_S)
        assert (result.status, result.signed, result.ok) == ("cancelled", True, False)

    def test_nobody_takes_it(self, make: Make, full: bool) -> None:
        place = make(full=full)
        with pytest.raises(JobNotTaken) as caught:
            place.sender.run_python("1", labels=["gpu"])
        assert caught.value.code == "no_runner_available"
        assert isinstance(caught.value, JobRefused)
        # the job stays in the timeline, and never leaves anybody waiting
        late = place.owner.job(caught.value.job).wait(PATIENT_S)
        assert (late.status, late.signed, late.reason) == ("failed", False, "no_runner_available")

    def test_a_runner_that_vanishes_ends_the_wait(self, people: People, full: bool) -> None:
        """The relay's word `failed` is the only thing that ends such a wait."""
        limits: dict[str, Any] = FULL if full else {}
        owner = people.owner(mode="execute", job_limits=limits)
        runner = FakeRunner(owner.invites["runner"], people.folder, lambda task: None)
        with runner:
            owner.approve_runner("box")
            job = owner.run_python("1", runner="box")
            with pytest.raises(WaitTimeout):
                job.wait(0.3)
            job.cancel()
            owner.reject_runner("box", "gone for good")
        result = job.wait(PATIENT_S)
        assert not result.signed
        assert result.reason


class TestFollowing:
    def test_output_arrives_before_the_end(self, make: Make) -> None:
        seen = threading.Event()

        def script(task: Task) -> None:
            task.print((1, b"one\n"), (2, b"oops\n"))
            assert seen.wait(PATIENT_S)
            task.print((1, b"two\n"))
            task.finish()

        place = make(script)
        job = place.sender.run_python("1", runner="box")
        got = []
        for piece in job.output(PATIENT_S):
            got.append(piece)
            seen.set()
        assert [piece[:2] for piece in got] == [
            ("stdout", b"one\n"),
            ("stderr", b"oops\n"),
            ("stdout", b"two\n"),
        ]
        result = job.result()
        assert result is not None
        assert result.ok
        assert list(job.output()) == []

    def test_others_who_may_read_follow_too(self, make: Make) -> None:
        go_on = threading.Event()

        def script(task: Task) -> None:
            task.print((1, b"one\n"))
            assert go_on.wait(PATIENT_S)
            task.finish()

        place = make(script)
        job = place.sender.run_python("1", runner="box")
        output = place.owner.job(job.id).output(PATIENT_S)
        assert next(output).data == b"one\n"
        go_on.set()
        assert list(output) == []

    def test_close_ends_a_wait_from_another_thread(self, make: Make) -> None:
        release = threading.Event()

        def script(task: Task) -> None:
            task.print((1, b"here\n"))
            assert release.wait(PATIENT_S)

        place = make(script)
        job = place.sender.run_python("1", runner="box")
        errors: list[BaseException] = []
        reached = threading.Event()

        def wait() -> None:
            try:
                for _ in job.output(60):
                    reached.set()
            except WaitTimeout as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert reached.wait(PATIENT_S)
        job.close()
        thread.join(PATIENT_S)
        release.set()
        assert not thread.is_alive()
        assert [getattr(error, "code", None) for error in errors] == ["closed"]

    def test_the_end_of_the_session_ends_a_wait(self, make: Make) -> None:
        started, release = threading.Event(), threading.Event()

        def script(task: Task) -> None:
            started.set()
            assert release.wait(PATIENT_S)

        place = make(script, full=False)
        job = place.sender.run_python("1", runner="box")
        assert started.wait(PATIENT_S)
        threading.Timer(0.2, place.owner.close).start()
        with pytest.raises(SessionClosed):
            job.wait(PATIENT_S)
        release.set()


class TestResultsThatDoNotCount:
    @pytest.mark.parametrize(
        "changes",
        [
            {"code_sha256": "0" * 64},
            {"input_sha256": "0" * 64},
        ],
    )
    def test_of_other_code_or_inputs(
        self, make: Make, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(follow, "POLL_S", 0.05)
        place = make(lambda task: task.finish(**changes))
        job = place.sender.run_python("1", runner="box")
        result = job.wait(PATIENT_S)
        assert not result.signed
        assert result.status == "failed"
        assert "not valid" in (result.reason or "")

    def test_by_a_runner_that_was_not_approved(self, people: People) -> None:
        """The relay may hand a job to anybody; the sender believes approved runners only."""
        owner = people.owner(mode="execute", job_limits={"approve_runners": True, **FULL})
        with FakeRunner(owner.invites["runner"], people.folder, Task.finish) as runner:
            with pytest.raises(JobRefused) as caught:
                owner.run_python("1", runner="box")
            assert caught.value.code == "runner_not_approved"
            # approved by the relay's flag alone, without the owner's signature
            owner._core.api.approve(runner.public)
            with pytest.raises(JobRefused):
                owner.run_python("1", runner="box")
            job = owner.run_python("1")
            result = job.wait(PATIENT_S)
        assert not result.signed
        assert "not approve" in (result.reason or "")


class TestChecksBeforeSending:
    """[P-FLR-8, P-JOB-1] A refused invalid job looks to its sender like one that never ends, so
    nothing invalid is ever sent."""

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"timeout": 61}, PolicyError),
            ({"timeout": 0}, PolicyError),
            ({"memory_mb": 100_000}, PolicyError),
            ({"requirements": ["pandas"]}, PolicyError),
            ({"requirements": ["numpy==1"]}, ValidationError),
            ({"filename": "main.txt"}, PolicyError),
            ({"filename": "../main.py"}, PolicyError),
            ({"labels": ["GPU!"]}, PolicyError),
            ({"labels": ["cpu"], "runner": "box"}, UsageError),
            ({"runner": "nobody"}, UsageError),
            ({"files": [{"id": "A" * 22, "blob_sha256": "A" * 43}]}, UsageError),
            ({"cwd": "sub"}, UsageError),
        ],
    )
    def test_python(self, make: Make, options: dict[str, Any], error: type[Exception]) -> None:
        place = make(full=False)
        with pytest.raises(error):
            place.sender.run_python(
                "1", **({"runner": "box"} | options if "labels" not in options else options)
            )
        assert place.sender.jobs() == []

    def test_names_that_collide(self, make: Make) -> None:
        place = make()
        one = place.sender.send_file(b"1", name="a.py")
        two = place.sender.send_file(b"2", name="A.py")
        for options in ({"files": [one, two]}, {"files": [one], "filename": "a.py"}):
            with pytest.raises(UsageError) as caught:
                place.sender.run_python("1", runner="box", **options)
            assert caught.value.code == "input_names_collide"

    def test_who_may(self, make: Make, people: People) -> None:
        place = make()
        watcher = people.join(place.owner.invites["observer"], "watcher")
        with pytest.raises(PolicyError):
            watcher.run_python("1")
        relay_session = people.owner()
        with pytest.raises(UsageError) as caught:
            relay_session.run_python("1")
        assert caught.value.code == "no_jobs"

    def test_shell_needs_its_kind(self, make: Make) -> None:
        place = make(full=False)
        with pytest.raises(PolicyError) as caught:
            place.sender.run_shell("true", runner="box")
        assert caught.value.code == "kind_not_allowed"


class TestShell:
    def test_a_script_and_a_command(self, make: Make, tmp_path: Path) -> None:
        seen: list[Any] = []

        def script(task: Task) -> None:
            seen.append((task.meta.script, task.meta.command))
            task.finish()

        place = make(script)
        (tmp_path / "ci.sh").write_text("make test\n")
        (tmp_path / "a.py").write_text("1\n")
        assert place.sender.run_shell("make test", runner="box").wait(PATIENT_S).ok
        assert place.sender.run_shell(["make", "test"], runner="box").wait(PATIENT_S).ok
        assert place.sender.run_file(tmp_path / "ci.sh", runner="box").wait(PATIENT_S).ok
        assert seen == [
            ("make test", msgspec.UNSET),
            (msgspec.UNSET, ("make", "test")),
            ("make test\n", msgspec.UNSET),
        ]


class TestRunners:
    def test_the_list(self, make: Make) -> None:
        place = make()
        [runner] = place.sender.runners()
        assert (runner.name, runner.labels, runner.sandbox) == ("box", ("cpu",), "local")
        assert runner.approved
        assert runner.online
        assert not runner.rejected
        assert len(runner.fingerprint) == 16

    def test_a_name_that_means_two(self, make: Make, people: People) -> None:
        place = make()
        link = place.owner.invites["runner"]
        other = FakeRunner(link, people.folder / "other", Task.finish, name="box")
        with other:
            with pytest.raises(UsageError) as caught:
                place.owner.approve_runner("box")
            assert caught.value.code == "ambiguous_runner"
            assert place.owner.approve_runner(other.public).participant_pub == other.public

    def test_a_rejection_is_final(self, make: Make) -> None:
        place = make()
        place.owner.reject_runner("box", "no")
        with pytest.raises(UsageError) as caught:
            place.owner.approve_runner("box")
        assert caught.value.code == "runner_rejected"
        for session in (place.owner, place.sender):
            with pytest.raises(JobRefused):
                session.run_python("1", runner="box")

    def test_only_the_owner_decides(self, make: Make) -> None:
        place = make()
        for act in (place.sender.approve_runner, place.sender.reject_runner):
            with pytest.raises(PolicyError):
                act("box")


def test_session_takes_no_unknown_job(make: Make) -> None:
    place = make()
    text = place.sender.send_text("not a job")
    for job_id in ("nonsense", "A" * 22, text.id):
        with pytest.raises(UsageError) as caught:
            place.sender.job(job_id)
        assert caught.value.code == "no_such_job"
