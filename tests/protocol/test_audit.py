"""The offline check of audit trails: what holds is proved, and nothing that was changed is."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airlox.errors import ValidationError
from airlox.protocol import limits
from airlox.protocol.audit import AuditReport, verify_audit
from airlox.protocol.item import ItemRef, parse_envelope
from airlox.protocol.keys import Role
from airlox.protocol.manifest import Mode
from airlox.protocol.payload import File, JobCancel, RunnerApprove, Text
from support.crew import a_result
from support.trails import BASE_URL, Story, TrailMaker
from support.world import Person, World


@pytest.fixture(scope="module", params=["numbered", "unnumbered", "floor"])
def story(request: pytest.FixtureRequest) -> Story:
    return Story(full=request.param != "floor", numbered=request.param != "unnumbered")


def codes(report: AuditReport) -> list[tuple[int, str]]:
    return [(problem.line, problem.code) for problem in report.problems]


def is_within(found: AuditReport, whole: AuditReport) -> bool:
    """Whether all that a report calls proved is proved in another."""
    people = {person.participant_pub: person for person in whole.people}
    for person in found.people:
        known = people.get(person.participant_pub)
        if known is None or (known.display_name, known.role, known.kind) != (
            person.display_name,
            person.role,
            person.kind,
        ):
            return False
        if person.linked > known.linked or any(
            count > known.items.get(kind, 0) for kind, count in person.items.items()
        ):
            return False
    jobs = {job.job: job for job in whole.jobs}
    for job in found.jobs:
        known_job = jobs.get(job.job)
        if known_job is None or job.author != known_job.author:
            return False
        if job.result is not None and (job.result, job.runner) != (
            known_job.result,
            known_job.runner,
        ):
            return False
        if not set(job.cancelled_by) <= set(known_job.cancelled_by):
            return False
    decisions = {(one.item, one.what, one.about) for one in whole.decisions}
    return (
        found.session_id in (None, whole.session_id)
        and {(one.item, one.what, one.about) for one in found.decisions} <= decisions
    )


class TestWhatHolds:
    def test_is_proved(self, story: Story) -> None:
        """P-AUD-1, P-AUD-3"""
        report = verify_audit(story.lines)
        assert report.problems == ()
        assert report.verified
        assert report.session_id == story.world.manifest.session_id
        assert report.lines == len(story.lines)
        people = {person.display_name: person for person in report.people}
        assert {name: person.role.value for name, person in people.items()} == {
            "owner": "owner",
            "agent": "sender",
            "observer": "observer",
            "box": "runner",
            "spare": "runner",
        }
        assert people["owner"].items == {"event": 3, "text": 1}
        assert people["agent"].items == {"text": 2, "file": 1, "job": 2}
        assert people["box"].items == {"result": 1}
        first, second = report.jobs
        assert (first.author, first.result) == (story.sender.public, story.result.ref.id)
        assert first.runner == story.box.public
        assert (second.result, second.cancelled_by) == (None, (story.owner.public,))
        assert (report.linked, report.unchained) == (7, 0)

    def test_what_the_relay_says_is_kept_apart(self, story: Story) -> None:
        """P-AUD-4"""
        report = verify_audit(story.lines)
        first, second = report.jobs
        assert (first.state, second.state, second.reason) == ("finished", "failed", "cancelled")
        gone = {person.display_name: person.cut_off for person in report.people}
        assert gone == {
            "owner": None,
            "agent": "revoked",
            "observer": "left",
            "box": None,
            "spare": "rejected",
        }
        assert report.claims["ack"] == 2
        assert "item" not in report.claims

    def test_any_form_of_line_will_do(self, story: Story) -> None:
        """P-AUD-2: what relays write, what clients print, what programs hold."""
        whole = verify_audit(story.lines)
        entries = story.trail.entries
        for lines in (
            entries,
            [line.decode() for line in story.lines],
            [json.dumps(entry, indent=None, sort_keys=True) + "\r\n" for entry in entries],
            b"\n".join(story.lines),
            b"\n".join(story.lines).decode(),
        ):
            assert verify_audit(lines) == whole
        spaced = [line for each in story.lines for line in (each, b"\n", b"  ")]
        assert verify_audit(spaced).verified

    def test_the_owner_s_decisions_are_opened_with_an_invite(self) -> None:
        """P-AUD-6"""
        story = Story()
        for role in (Role.OWNER, Role.OBSERVER, Role.SENDER, Role.RUNNER):
            link = story.world.invite(BASE_URL, role).url()
            report = verify_audit(story.lines, invite=link)
            assert report.verified
            assert report.is_expected
            assert [(one.what, one.about) for one in report.decisions] == [
                ("approved", story.box.public),
                ("cancelled", story.second.ref.id),
                ("rejected", story.spare.public),
            ]
        assert verify_audit(story.lines).decisions == ()

    def test_decisions_are_the_owner_s_alone(self) -> None:
        """P-AUD-6: what others sign decides nothing, whatever a relay puts beside it."""
        story = Story()
        cancel = JobCancel(job=story.job.ref)
        trail = TrailMaker(World(full=True))
        sender, box = trail.join(Role.SENDER), trail.join(Role.RUNNER, "box")
        job = trail.job(sender)
        trail.post(sender, JobCancel(job=job.ref), refs=[job.ref], blob=True)
        trail.post(sender, cancel, refs=[story.job.ref], blob=True, chained=False)
        link = trail.world.invite(BASE_URL, Role.OBSERVER).url()
        report = verify_audit(trail.lines, invite=link)
        assert report.verified
        assert report.decisions == ()
        assert report.jobs[0].cancelled_by == (sender.public,)
        trail.post(sender, RunnerApprove(participant_pub=box.public), blob=True)
        assert verify_audit(trail.lines, invite=link).decisions == ()

    def test_a_cancel_is_of_the_very_job(self) -> None:
        trail = TrailMaker(World(full=True))
        owner, sender = trail.join(Role.OWNER), trail.join(Role.SENDER)
        job, other = trail.job(sender), trail.job(sender)
        ref = ItemRef(blob_sha256=other.ref.blob_sha256, id=job.ref.id)
        trail.post(owner, JobCancel(job=ref), refs=[ref], blob=True, chained=False)
        link = trail.world.invite(BASE_URL, Role.OBSERVER).url()
        report = verify_audit(trail.lines, invite=link)
        assert report.decisions == ()
        assert [job.cancelled_by for job in report.jobs] == [(), ()]

    def test_without_links_nothing_is_said_of_order(self) -> None:
        """P-AUD-5: 0.1.0 clients do not chain."""
        trail = TrailMaker(World())
        owner = trail.join(Role.OWNER)
        for number in range(3):
            trail.post(owner, Text(text=str(number)), chained=False)
        lines = trail.lines
        report = verify_audit(lines)
        assert (report.verified, report.linked, report.unchained) == (True, 0, 3)
        assert verify_audit(lines[:3] + lines[4:]).verified  # and so it may be missing


class TestOtherSessions:
    def test_the_session_may_be_named(self, story: Story) -> None:
        """P-AUD-1"""
        sid = story.world.manifest.session_id
        report = verify_audit(story.lines, session_id=sid)
        assert report.verified
        assert report.is_expected
        report = verify_audit(story.lines, session_id=World().manifest.session_id)
        assert codes(report) == [(1, "other_session")]
        assert report.session_id is None
        assert report.people == ()

    def test_an_invite_names_it_too(self, story: Story) -> None:
        other = World().invite(BASE_URL, Role.OBSERVER).url()
        report = verify_audit(story.lines, invite=other)
        assert [line for line, _ in codes(report)] == [1]
        assert other.partition("#")[2] not in str(report)

    def test_an_invite_must_be_of_the_same_role_key(self) -> None:
        story = Story()
        good = story.world.invite(BASE_URL, Role.OBSERVER).url()
        head, _, _ = good.rpartition("&rk=")
        other = World().invite(BASE_URL, Role.OBSERVER).url().rpartition("&rk=")[2]
        report = verify_audit(story.lines, invite=f"{head}&rk={other}")
        assert not report.verified
        assert other not in str(report)

    @pytest.mark.parametrize("wrong", [{"session_id": "ax_1"}, {"invite": "https://x"}])
    def test_a_malformed_one_is_an_error(self, story: Story, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            verify_audit(story.lines, **wrong)

    def test_lines_of_another_session_are_named(self, story: Story) -> None:
        """P-AUD-3: each, wherever it is put; also where the same people take part."""
        other = Story()
        for line in other.lines:
            report = verify_audit([*story.lines, line])
            assert report.problems, line
            assert is_within(report, verify_audit(story.lines))


class TestChanges:
    def test_a_trail_begins_with_the_manifest(self, story: Story) -> None:
        """P-AUD-1"""
        assert codes(verify_audit([])) == [(0, "order")]
        assert codes(verify_audit(story.lines[1:])) == [(1, "order")]
        assert verify_audit(story.lines[1:]).items == 0

    def test_a_line_left_out(self, story: Story) -> None:
        """P-AUD-5: of signed lines, all but those that nothing after them names."""
        lines, whole = story.lines, verify_audit(story.lines)
        unnamed = []
        for at, entry in enumerate(story.trail.entries):
            report = verify_audit(lines[:at] + lines[at + 1 :])
            assert is_within(report, whole)
            if report.verified and entry["event"] in ("created", "joined", "item"):
                unnamed.append(entry)
        # an observer nobody hears of again would be one; here the relay says that it left
        kinds = [parse_envelope(entry["envelope"]).header.kind.value for entry in unnamed]
        assert kinds == ["text", "text"]

    def test_a_line_twice(self, story: Story) -> None:
        """P-AUD-3: anywhere after its own place."""
        lines = story.lines
        for at, entry in enumerate(story.trail.entries):
            if entry["event"] in ("created", "joined", "item"):
                for to in (at + 1, len(lines)):
                    report = verify_audit([*lines[:to], lines[at], *lines[to:]])
                    assert report.problems, entry

    def test_items_of_one_author_in_another_order(self, story: Story) -> None:
        """P-AUD-5"""
        entries, lines = story.trail.entries, story.lines
        by_author: dict[str, list[int]] = {}
        for at, entry in enumerate(entries):
            if entry["event"] == "item":
                author = parse_envelope(entry["envelope"]).header.author
                by_author.setdefault(author, []).append(at)
        for places in by_author.values():
            for first in places:
                for second in places:
                    if first < second:
                        swapped = list(lines)
                        swapped[first], swapped[second] = lines[second], lines[first]
                        found = {code for _, code in codes(verify_audit(swapped))}
                        assert found & {"reordered", "order", "missing"}

    def test_an_item_under_another_number(self) -> None:
        """P-AUD-5: its author signed which number it was told."""
        story = Story()
        entries = [dict(entry) for entry in story.trail.entries]
        (job,) = [entry for entry in entries if entry.get("envelope") == story.job.envelope]
        job["seq"] += 1  # the next item comes later still
        report = verify_audit(entries)
        assert [(one.code, one.item) for one in report.problems] == [
            ("reordered", story.job.ref.id)
        ]

    def test_numbers_are_there_or_not(self) -> None:
        story = Story()
        for at, entry in enumerate(story.trail.entries):
            if "seq" in entry:
                bare = {name: value for name, value in entry.items() if name != "seq"}
                entries = [*story.trail.entries[:at], bare, *story.trail.entries[at + 1 :]]
                assert "order" in {code for _, code in codes(verify_audit(entries))}

    @pytest.mark.parametrize("field", ["signed_manifest", "signed_join", "envelope", "blob_sha256"])
    def test_any_bit_of_what_is_signed(self, story: Story, field: str) -> None:
        """P-AUD-3"""
        whole = verify_audit(story.lines)
        at = max(at for at, entry in enumerate(story.trail.entries) if field in entry)
        text = story.trail.entries[at][field]
        for place in range(0, len(text), 7):
            for flip in (1, 2, 32):
                changed = text[:place] + chr(ord(text[place]) ^ flip) + text[place + 1 :]
                entries = list(story.trail.entries)
                entries[at] = {**entries[at], field: changed}
                report = verify_audit(entries)
                assert report.problems, (field, place, flip)
                assert is_within(report, whole)

    def test_bytes_beside_an_item(self) -> None:
        """P-AUD-6: also without a key they must be those that were signed."""
        story = Story()
        at = next(at for at, entry in enumerate(story.trail.entries) if "blob" in entry)
        blob = story.trail.entries[at]["blob"]
        for other in ("", blob[:-4], blob + "AAAA", "AAAA" + blob[4:], "="):
            entries = list(story.trail.entries)
            entries[at] = {**entries[at], "blob": other}
            report = verify_audit(entries, invite=story.invite)
            assert [line for line, _ in codes(report)] == [at + 1]
            assert codes(verify_audit(entries)) == codes(report)
            assert len(report.decisions) == 2


class TestProperties:
    """P-AUD-3: whatever is done to a trail, nothing is called proved that is not."""

    STORY = Story()
    WHOLE = verify_audit(STORY.lines, invite=STORY.invite)
    OTHER = Story()
    DATA = b"\n".join(STORY.lines)

    def check(self, lines: list[bytes]) -> AuditReport:
        report = verify_audit(lines, invite=self.STORY.invite)
        assert is_within(report, self.WHOLE), report.problems
        for problem in report.problems:
            assert problem.text.isprintable()
            assert len(problem.text) < 400
        return report

    @given(st.data())
    def test_bytes_changed(self, data: st.DataObject) -> None:
        changed = bytearray(self.DATA)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(changed) - 1))
            changed[at] = data.draw(st.integers(0, 255))
        self.check(bytes(changed).split(b"\n"))

    @given(st.data())
    def test_pieces_cut_out_and_put_elsewhere(self, data: st.DataObject) -> None:
        places = st.integers(0, len(self.DATA))
        low, high = sorted((data.draw(places), data.draw(places)))
        rest = self.DATA[:low] + self.DATA[high:]
        at = data.draw(st.integers(0, len(rest)))
        self.check((rest[:at] + self.DATA[low:high] + rest[at:]).split(b"\n"))
        self.check(rest.split(b"\n"))

    @given(st.lists(st.sampled_from([*STORY.lines, *OTHER.lines]), max_size=12), st.data())
    def test_lines_of_any_session_put_in(self, extra: list[bytes], data: st.DataObject) -> None:
        lines = list(self.STORY.lines)
        for line in extra:
            lines.insert(data.draw(st.integers(0, len(lines))), line)
        report = self.check(lines)
        if any(b'"event":"item"' in line or b'"event":"joined"' in line for line in extra):
            assert report.problems

    @settings(max_examples=30)
    @given(st.permutations(range(len(STORY.lines))))
    def test_any_order(self, order: list[int]) -> None:
        lines = [self.STORY.lines[at] for at in order]
        self.check(lines)
        self.check([self.STORY.lines[0], *(line for line in lines if line != lines[0])])

    @given(st.lists(st.integers(1, len(STORY.lines) - 1), unique=True))
    def test_lines_left_out(self, gone: list[int]) -> None:
        self.check([line for at, line in enumerate(self.STORY.lines) if at not in set(gone)])

    @given(
        st.integers(1, len(STORY.lines) - 1),
        st.dictionaries(
            st.sampled_from(["event", "seq", "blob", "participant_pub", "job", "item", "role"]),
            st.sampled_from(
                [
                    *{
                        value
                        for entry in STORY.trail.entries
                        for value in entry.values()
                        if isinstance(value, str | int)
                    }
                ]
            ),
            max_size=2,
        ),
    )
    def test_fields_of_other_lines(self, at: int, fields: dict[str, Any]) -> None:
        entries = list(self.STORY.trail.entries)
        entries[at] = {**entries[at], **fields}
        self.check([msgspec.json.encode(entry) for entry in entries])


class TestPolicy:
    """P-AUD-3: what a reader of the session would refuse is refused here."""

    @pytest.fixture
    def trail(self) -> TrailMaker:
        return TrailMaker(World(full=True))

    def one_problem(self, trail: TrailMaker, code: str) -> str:
        report = verify_audit(trail.lines)
        (problem,) = report.problems
        assert problem.code == code
        return problem.text

    @pytest.mark.parametrize(
        ("role", "meta", "subkind"),
        [
            (Role.OBSERVER, Text(text="x"), None),
            (Role.RUNNER, Text(text="x"), None),
            (Role.OBSERVER, File(mime="text/markdown", name="a.md"), "md"),
        ],
    )
    def test_roles(self, trail: TrailMaker, role: Role, meta: Any, subkind: str | None) -> None:
        trail.post(trail.join(role), meta, subkind=subkind)
        assert str(role) in self.one_problem(trail, "forbidden")

    def test_time(self, trail: TrailMaker) -> None:
        trail.post(trail.join(Role.OWNER), Text(text="x"), at_ms=trail.world.now_ms - 1)
        self.one_problem(trail, "policy")

    def test_who_did_not_join(self, trail: TrailMaker) -> None:
        trail.post(trail.world.person(Role.OWNER), Text(text="x"))
        assert "not joined" in self.one_problem(trail, "order")

    def test_a_certificate_of_another_role(self, trail: TrailMaker) -> None:
        sender = trail.world.person(Role.SENDER)
        trail.add("joined", signed_join=sender.join.replace('"role":"sender"', '"role":"owner"'))
        self.one_problem(trail, "signature")

    def test_runners_need_jobs(self) -> None:
        trail = TrailMaker(World(mode=Mode.RELAY))
        trail.join(Role.RUNNER)
        self.one_problem(trail, "policy")

    def test_a_feature_of_a_later_version_is_named(self, trail: TrailMaker) -> None:
        document = trail.world.document.replace(
            '"features":[', '"fields":1,"features":["aardvarks",'
        )
        report = verify_audit([{"at_ms": 1, "event": "created", "signed_manifest": document}])
        assert report.problems[0].code == "unsupported_feature"
        assert "aardvarks" in report.problems[0].text


class TestResults:
    """P-AUD-3: a result is one runner's answer to one job, exactly as it is there."""

    @pytest.fixture
    def story(self) -> Story:
        return Story()

    def problem(self, story: Story) -> tuple[str, str]:
        report = verify_audit(story.lines)
        assert len(report.problems) == 1
        return report.problems[0].code, report.problems[0].text

    def test_of_a_job_that_is_not_there(self, story: Story) -> None:
        ref = ItemRef(blob_sha256=story.job.ref.blob_sha256, id="A" * 21 + "Q")
        story.trail.post(story.box, a_result(ref), refs=[ref], chained=False)
        assert self.problem(story)[0] == "order"

    def test_of_other_bytes(self, story: Story) -> None:
        ref = ItemRef(blob_sha256=story.hello.ref.blob_sha256, id=story.second.ref.id)
        story.trail.post(story.box, a_result(ref), refs=[ref], chained=False)
        assert "other bytes" in self.problem(story)[1]

    def test_of_no_job(self, story: Story) -> None:
        story.trail.post(story.box, a_result(story.job.ref), chained=False)
        assert self.problem(story)[0] == "order"

    def test_a_second_one(self, story: Story) -> None:
        story.trail.post(story.box, a_result(story.job.ref), refs=[story.job.ref])
        assert story.result.ref.id in self.problem(story)[1]

    def test_by_the_owner(self, story: Story) -> None:
        story.trail.post(story.owner, a_result(story.second.ref), refs=[story.second.ref])
        assert self.problem(story)[0] == "policy"

    def test_by_a_runner_that_was_not_approved(self, story: Story) -> None:
        other = story.trail.join(Role.RUNNER, "other")
        story.trail.state("assigned", story.second, other)
        story.trail.post(other, a_result(story.second.ref), refs=[story.second.ref])
        assert self.problem(story) == (
            "contradiction",
            "a result by a runner that the relay does not say was approved",
        )

    def test_by_another_than_was_given_the_job(self, story: Story) -> None:
        other = story.trail.join(Role.RUNNER, "other")
        story.trail.add("approved", participant_pub=other.public)
        story.trail.post(other, a_result(story.second.ref), refs=[story.second.ref])
        assert "another runner" in self.problem(story)[1]


Break = Callable[[Story], None]


def _after_it_left(story: Story) -> None:
    story.trail.add("left", participant_pub=story.owner.public)
    story.trail.post(story.owner, Text(text="x"))


def _after_it_was_revoked(story: Story) -> None:
    story.trail.post(story.sender, Text(text="x"))


def _join_of_a_revoked_role(story: Story) -> None:
    story.trail.join(Role.SENDER, "late")


def _revoked_twice(story: Story) -> None:
    story.trail.add("revoked", role="sender")


def _owner_revoked(story: Story) -> None:
    story.trail.add("revoked", role="owner")


def _approved_who_is_no_runner(story: Story) -> None:
    story.trail.add("approved", participant_pub=story.owner.public)


def _rejected_who_is_no_runner(story: Story) -> None:
    story.trail.add("rejected", participant_pub=story.owner.public)


def _somebody_unknown(story: Story) -> None:
    story.trail.add("left", participant_pub=World().person(Role.OWNER).public)


def _an_unknown_item(story: Story) -> None:
    story.trail.add("evicted", item="A" * 21 + "Q")


def _an_unknown_job(story: Story) -> None:
    story.trail.add("failed", job=story.hello.ref.id, participant_pub=None, reason="x")


def _finished_without_result(story: Story) -> None:
    story.trail.state("finished", story.second, story.box)


def _given_to_no_runner(story: Story) -> None:
    story.trail.state("assigned", story.second, story.owner)


def _cancelled_by_a_stranger(story: Story) -> None:
    story.trail.add("cancel", job=story.job.ref.id, participant_pub=story.box.public)


@pytest.mark.parametrize(
    "break_it",
    [
        _after_it_left,
        _after_it_was_revoked,
        _join_of_a_revoked_role,
        _revoked_twice,
        _owner_revoked,
        _approved_who_is_no_runner,
        _rejected_who_is_no_runner,
        _somebody_unknown,
        _an_unknown_item,
        _an_unknown_job,
        _finished_without_result,
        _given_to_no_runner,
        _cancelled_by_a_stranger,
    ],
)
def test_a_relay_that_contradicts_itself(break_it: Break) -> None:
    """P-AUD-4"""
    story = Story()
    before = len(story.lines)
    break_it(story)
    ((line, code),) = codes(verify_audit(story.lines))
    assert code == "contradiction"
    assert line > before


class TestForgetting:
    """P-AUD-7"""

    def story(self, *, numbered: bool = True) -> tuple[TrailMaker, Person, Person, list[str]]:
        """Three jobs with a text before each."""
        trail = TrailMaker(World(full=True), numbered=numbered)
        sender, box = trail.join(Role.SENDER), trail.join(Role.RUNNER, "box")
        trail.add("approved", participant_pub=box.public)
        jobs = []
        for number in range(3):
            trail.post(sender, Text(text=str(number)))
            jobs.append(trail.run(sender, box)[0].ref.id)
        return trail, sender, box, jobs

    def without(self, trail: TrailMaker, gone: set[str]) -> list[dict[str, Any]]:
        """The entries that a relay has left after it forgot jobs, and their numbers."""
        kept = []
        for entry in trail.entries:
            refs = set()
            if entry["event"] == "item":
                header = parse_envelope(entry["envelope"]).header
                refs = {header.id}
                if header.kind == "result":
                    refs.add(header.refs[0].id)
            if not gone & ({entry.get("job"), entry.get("item")} | refs):
                kept.append(entry)
        return kept

    def test_before_the_entries_go(self) -> None:
        trail, sender, _, jobs = self.story()
        trail.add("forgotten", jobs=jobs[:2])
        trail.post(sender, Text(text="x"))
        trail.add("ack", item=jobs[0], participant_pub=sender.public)  # it was on its way
        report = verify_audit(trail.lines)
        assert report.verified
        assert (report.forgotten_jobs, report.maybe_forgotten) == (2, 0)

    def test_after_the_entries_went(self) -> None:
        trail, sender, _, jobs = self.story()
        trail.post(sender, Text(text="x"))
        kept = self.without(trail, set(jobs[:2]))
        gone = [entry["seq"] for entry in trail.entries if "seq" in entry]
        left = {entry["seq"] for entry in kept if "seq" in entry}
        ranges = [[seq, seq] for seq in gone if seq not in left]
        told = {"at_ms": 1, "event": "forgotten", "ranges": ranges}
        report = verify_audit([kept[0], told, *kept[1:]])
        assert report.verified, report.problems
        assert report.maybe_forgotten > 0
        assert not verify_audit(kept).verified  # without a word of it

    def test_in_a_trail_without_numbers(self) -> None:
        """There what follows the relay's word may have been forgotten, and nothing before."""
        trail, sender, _, jobs = self.story(numbered=False)
        trail.post(sender, Text(text="after the jobs"))
        kept = self.without(trail, set(jobs))
        told = {"at_ms": 1, "event": "forgotten", "jobs": jobs}
        assert verify_audit([kept[0], told, *kept[1:]]).verified
        assert not verify_audit(kept).verified
        assert not verify_audit([*kept, told]).verified

    def test_what_no_relay_forgets_is_missed(self) -> None:
        trail, *_ = self.story()
        text = next(entry for entry in trail.entries if "envelope" in entry)
        kept = [entry for entry in trail.entries if entry is not text]
        told = {"at_ms": 1, "event": "forgotten", "ranges": [[0, 50]]}
        report = verify_audit([kept[0], told, *kept[1:]])
        assert {problem.code for problem in report.problems} == {"missing"}

    def test_an_id_that_is_free_again(self) -> None:
        trail = TrailMaker(World(full=True))
        sender, box = trail.join(Role.SENDER), trail.join(Role.RUNNER, "box")
        trail.add("approved", participant_pub=box.public)
        job, _ = trail.run(sender, box)
        trail.add("forgotten", jobs=[job.ref.id])
        trail.tell(job)
        assert verify_audit(trail.lines).verified
        trail.tell(job)
        assert not verify_audit(trail.lines).verified

    def test_what_was_signed_once_counts_once(self) -> None:
        """A relay that says it forgot may tell a job again, but nothing that it never forgets."""
        trail = TrailMaker(World(full=True))
        sender, box = trail.join(Role.SENDER), trail.join(Role.RUNNER, "box")
        trail.add("approved", participant_pub=box.public)
        text = trail.post(sender, Text(text="go ahead"))
        job, _ = trail.run(sender, box)
        once = verify_audit(trail.lines)
        trail.add("forgotten", jobs=[job.ref.id])
        trail.tell(job)
        again = verify_audit(trail.lines)
        assert again.verified
        assert [(p.items, p.linked) for p in again.people] == [
            (p.items, p.linked) for p in once.people
        ]
        trail.tell(text)
        assert [problem.item for problem in verify_audit(trail.lines).problems] == [text.ref.id]

    def test_sessions_that_keep_all(self) -> None:
        trail = TrailMaker(World())
        trail.add("forgotten", jobs=[])
        assert codes(verify_audit(trail.lines)) == [(2, "contradiction")]

    def test_an_extract_tells_of_its_jobs_alone(self) -> None:
        trail, _, _, jobs = self.story()
        kept = self.without(trail, set(jobs[:1]) | set(jobs[2:]))
        kept = [e for e in kept if "seq" not in e or b"text" not in msgspec.json.encode(e)]
        marked = {"at_ms": 1, "event": "extract", "jobs": [jobs[1]]}
        entries = [kept[0], marked, *kept[1:]]
        report = verify_audit(entries, extract=True)
        assert report.verified, report.problems
        assert report.extract_of == 1
        assert [job.job for job in report.jobs] == [jobs[1]]
        assert not verify_audit(kept, extract=True).verified
        # a relay does not get away with an extract where all was asked for
        report = verify_audit(entries)
        assert {problem.code for problem in report.problems} == {"extract", "missing"}

    def test_an_extract_is_marked_at_its_start(self) -> None:
        trail, _, _, jobs = self.story()
        trail.add("extract", jobs=jobs)
        assert codes(verify_audit(trail.lines, extract=True)) == [(len(trail.lines), "order")]


class TestBounds:
    """P-AUD-8"""

    def test_problems_are_counted_beyond_what_is_listed(self) -> None:
        lines = [Story().lines[0], *([b"nonsense"] * (limits.TRAIL_PROBLEMS + 5))]
        report = verify_audit(lines)
        assert len(report.problems) == limits.TRAIL_PROBLEMS
        assert report.more_problems == 5

    def test_without_a_manifest_one_problem_is_enough(self) -> None:
        report = verify_audit([b"nonsense"] * 50)
        assert len(report.problems) == 1
        assert report.lines == 50

    @pytest.mark.parametrize("bound", ["TRAIL_ITEMS", "TRAIL_PEOPLE"])
    def test_more_than_is_checked_is_said(
        self, bound: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, bound, 3)
        story = Story()
        report = verify_audit(story.lines)
        assert "limit" in {problem.code for problem in report.problems}
        assert len(report.people) <= (3 if bound == "TRAIL_PEOPLE" else 5)

    def test_a_line_without_end(self) -> None:
        report = verify_audit([Story().lines[0], b"[" * (limits.TRAIL_LINE_BYTES + 1)])
        assert codes(report) == [(2, "limit")]

    @given(st.lists(st.binary(max_size=60) | st.text(max_size=60), max_size=5))
    def test_nothing_raises(self, lines: list[bytes | str]) -> None:
        assert not verify_audit(lines).verified or not lines
        verify_audit([TestProperties.STORY.lines[0], *lines])


def test_a_long_trail_takes_little_memory() -> None:
    """P-AUD-8: what is kept does not grow with lines that are no items."""
    story = Story()
    ack = msgspec.json.encode(
        {
            "at_ms": 1,
            "event": "ack",
            "item": story.hello.ref.id,
            "participant_pub": story.owner.public,
        }
    )

    def lines() -> Any:
        yield from story.lines
        for _ in range(3000):
            yield ack

    tracemalloc.start()
    try:
        assert verify_audit(lines()).verified
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_report_holds_no_key() -> None:
    story = Story()
    report = verify_audit([*story.lines, os.urandom(20)], invite=story.invite)
    assert story.invite.partition("ok=")[2] not in str(report)
