"""How items read, and what `--json` says of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airlox.cli import items, shapes
from airlox.protocol.addressing import encode_recipients
from airlox.protocol.encoding import ItemId
from airlox.protocol.item import ItemRef
from airlox.protocol.job import (
    AnyRunner,
    LabelledRunner,
    OneRunner,
    PythonJob,
    Result,
    ShellJob,
    Status,
)
from airlox.protocol.keys import Role
from airlox.protocol.payload import File, JobCancel, Meta, RunnerApprove, RunnerReject, Text
from airlox.protocol.view import Event, Item, ItemStatus, SessionView
from support.world import Person, World

from .test_output import Spoken

COMMON = {
    *("author", "author_name", "author_role", "created_at_ms", "id", "kind", "ref", "seq"),
    *("status", "subkind"),
}
RESULT = {"exit_code", "job", "out_files", "reason", "stderr", "stdout", "valid", "wall_ms"}
"""Keys of 0.1.0's `items --json`."""

REF = ItemRef(blob_sha256="A" * 43, id="A" * 22)
Arrive = Callable[..., Item]


@pytest.fixture
def world() -> World:
    return World(full=True)


@pytest.fixture
def arrive(world: World) -> Arrive:
    """An item as a reader gets it, by someone new of a role."""
    view = SessionView(world.manifest, world.keyring())
    seq = iter(range(1000))

    def post(role: Role, meta: Meta, **options: Any) -> Item:
        person: Person = world.person(role, role.value)
        view.step(Event(next(seq), "participant", {"signed_join": person.join}))
        sealed = person.post(meta, **options)
        view.step(Event(next(seq), "item", {"envelope": sealed.envelope}))
        return view.open(ItemId(sealed.ref.id), sealed.blob)

    return post


def python_job(**changes: Any) -> PythonJob:
    values: dict[str, Any] = {
        "code": "print(1)\n",
        "filename": "a.py",
        "files": (),
        "memory_mb": None,
        "requirements": (),
        "runtime": "python3.12",
        "target": AnyRunner(),
        "timeout_s": 10,
    }
    return PythonJob(**(values | changes))


def shell_job(**what: Any) -> ShellJob:
    return ShellJob(files=(), memory_mb=None, target=AnyRunner(), timeout_s=10, **what)


def a_result() -> Result:
    return Result(
        code_sha256="0" * 64,
        exit_code=3,
        input_sha256="0" * 64,
        job=REF,
        out_files=(),
        peak_mem_mb=1,
        reason=None,
        status=Status.COMPLETED,
        stderr="",
        stderr_truncated=False,
        stdout="1\n",
        stdout_truncated=False,
        wall_ms=20,
    )


class TestShapes:
    def test_text(self, arrive: Arrive) -> None:
        shape = shapes.item(arrive(Role.SENDER, Text(text="hi")))
        assert set(shape) == COMMON | {"text"}
        assert (shape["text"], shape["author_name"], shape["author_role"]) == (
            "hi",
            "sender",
            "sender",
        )
        assert shape["ref"]["id"] == shape["id"]

    def test_a_readable_file_comes_with_its_content(self, arrive: Arrive) -> None:
        meta = File(mime="text/markdown", name="a.md")
        shape = shapes.item(arrive(Role.SENDER, meta, body=b"# hi", subkind="md"))
        assert set(shape) == COMMON | {"content", "mime", "name", "size"}
        assert (shape["content"], shape["size"]) == ("# hi", 4)

    def test_python_job(self, arrive: Arrive) -> None:
        shape = shapes.item(arrive(Role.SENDER, python_job(files=(REF,)), subkind="py"))
        assert set(shape) >= COMMON | {"code", "filename", "files", "target"}
        assert shape["kind"] == "job"
        assert shape["target"] == {"type": "any"}
        assert list(shape["files"]) == [{"blob_sha256": REF.blob_sha256, "id": REF.id}]

    def test_shell_job(self, arrive: Arrive) -> None:
        shape = shapes.item(arrive(Role.SENDER, shell_job(command=("a", "b c")), subkind="sh"))
        assert list(shape["command"]) == ["a", "b c"]
        assert (shape["kind"], shape["subkind"]) == ("job", "sh")
        assert "script" not in shape

    def test_result(self) -> None:
        shape = shapes._result_item(a_result())
        assert set(shape) == (RESULT - {"valid"}) | {"status"}
        assert (shape["job"], shape["status"], shape["exit_code"]) == (REF.id, "completed", 3)

    def test_events(self, arrive: Arrive, world: World) -> None:
        key = world.person(Role.RUNNER, "box").public
        shape = shapes.item(arrive(Role.OWNER, RunnerApprove(participant_pub=key)))
        assert set(shape) == COMMON | {"meta"}
        assert shape["meta"] == {
            "event": "runner_approve",
            "participant_pub": key,
            "type": "event",
        }
        cancel = shapes.item(arrive(Role.SENDER, JobCancel(job=REF)))
        assert set(cancel["meta"]) == {"event", "job", "type"}

    def test_whom_it_is_for_is_there_where_it_says_so(self, arrive: Arrive, world: World) -> None:
        key = world.person(Role.SENDER).public
        to = encode_recipients([key, "role:owner"])
        shape = shapes.item(arrive(Role.SENDER, Text(text="hi", to=to, reply_to=REF.id)))
        assert set(shape) == COMMON | {"reply_to", "text", "to"}
        assert (shape["to"], shape["reply_to"]) == (list(to), REF.id)

    def test_why_it_is_for_us(self, world: World) -> None:
        me = world.person(Role.SENDER, "me")
        owner = world.person(Role.OWNER)
        view = SessionView(world.manifest, world.keyring(), me.public)
        for seq, person in enumerate((me, owner)):
            view.step(Event(seq, "participant", {"signed_join": person.join}))
        sealed = owner.say("all of you")
        view.step(Event(2, "item", {"envelope": sealed.envelope}))
        shape = shapes.item(view.open(ItemId(sealed.ref.id), sealed.blob))
        assert set(shape) == COMMON | {"for_me", "text"}
        assert shape["for_me"] == ["everyone"]

    def test_what_cannot_be_had(self, world: World) -> None:
        view = SessionView(world.manifest, world.keyring())
        sealed = world.person(Role.SENDER).say("hi")
        view.step(Event(0, "item", {"envelope": sealed.envelope}))
        (record,) = view.records.values()
        assert record.status is ItemStatus.REFUSED
        shape = shapes.unavailable(record)
        assert set(shape) == COMMON | {"error"}
        assert (shape["status"], shape["error"]) == ("rejected", "its author never joined")
        assert shape["ref"] == {"blob_sha256": "", "id": sealed.ref.id}
        assert "rejected: its author never joined" in items.item_text(shape)


class TestText:
    def test_a_message_cannot_pose_as_another_item(self, arrive: Arrive) -> None:
        text = "one\n2025-01-01 00:00:00  owner (owner)  text\rtwo\x0bthree\u2028four"
        lines = items.item_text(shapes.item(arrive(Role.SENDER, Text(text=text)))).split("\n")
        assert lines[0].startswith(lines[0].lstrip())
        assert all(line.startswith("    ") for line in lines[1:])
        assert len(lines) == 6

    def test_whom_it_is_for(self, arrive: Arrive, world: World) -> None:
        key, other = world.person(Role.SENDER).public, world.person(Role.SENDER).public
        to = encode_recipients([key, other, "role:owner"])
        shape = shapes.item(arrive(Role.SENDER, Text(text="hi", to=to, reply_to=REF.id)))
        named = items.address_text(shape, {key: "coder"})
        words = named.removeprefix(" → ").removesuffix(f" ↩ {REF.id}").split(", ")
        assert set(words) == {"coder", other, "role:owner"}
        assert f"text{named}  [" in items.item_text(shape, {key: "coder"})
        assert items.address_text({}, {}) == ""

    @pytest.mark.parametrize(
        "name", ["\x1b]0;owned\x07", "a\nb (owner)  text", "\u202eevil", "a\rb"]
    )
    def test_a_name_that_acts_on_a_terminal_is_shown(
        self, name: str, arrive: Arrive, world: World
    ) -> None:
        """Joins with such names are refused; were one to come through, it would still be text."""
        key = world.person(Role.SENDER).public
        shape = shapes.item(arrive(Role.SENDER, Text(text="hi", to=(key,))))
        spoken = Spoken()
        spoken.voice.say(items.item_text(shape, {key: name}))
        head, text = spoken.out.text.split("\n")[:-1]
        assert head.isprintable()
        assert text == "    hi"

    def test_long_text_is_cut(self, arrive: Arrive) -> None:
        text = "\n".join(str(number) for number in range(100))
        shown = items.item_text(shapes.item(arrive(Role.SENDER, Text(text=text))))
        assert shown.endswith("… 60 more lines")

    @pytest.mark.parametrize(
        ("target", "text"),
        [
            (AnyRunner(), "for any runner"),
            (LabelledRunner(labels=("a", "b")), "for labels a, b"),
            (None, "for runner box"),
        ],
        ids=["any", "labels", "runner"],
    )
    def test_jobs(self, target: Any, text: str, arrive: Arrive, world: World) -> None:
        if target is None:
            key = world.person(Role.RUNNER, "box").public
            target = OneRunner(name="box", participant_pub=key)
        shown = items.item_text(
            shapes.item(arrive(Role.SENDER, python_job(target=target), subkind="py"))
        )
        assert text in shown
        assert "\n    print(1)" in shown

    def test_commands_are_quoted(self, arrive: Arrive) -> None:
        job = shell_job(command=("a", "b c"))
        shown = items.item_text(shapes.item(arrive(Role.SENDER, job, subkind="sh")))
        assert "\n    a 'b c'" in shown

    def test_results_say_whether_they_are_valid(self) -> None:
        head = dict.fromkeys(COMMON, None) | {"created_at_ms": 0, "kind": "result", "id": "i"}
        shape = head | shapes._result_item(a_result())
        assert "result completed · exit 3 · 20 ms · job" in items.item_text(shape | {"valid": True})
        assert "NOT VALID" in items.item_text(shape | {"valid": False})

    def test_events(self, arrive: Arrive, world: World) -> None:
        key = world.person(Role.RUNNER, "box").public
        meta = RunnerReject(participant_pub=key, reason="wrong machine")
        shown = items.item_text(shapes.item(arrive(Role.OWNER, meta)))
        assert re.search(rf"runner reject {re.escape(key)} .*\n    wrong machine$", shown)


class TestSave:
    def test_the_same_file_is_written_once(self, arrive: Arrive, tmp_path: Path) -> None:
        meta = File(mime="text/markdown", name="a.md")
        one = arrive(Role.SENDER, meta, body=b"one", subkind="md")
        other = arrive(Role.OWNER, meta, body=b"other", subkind="md")
        folder = str(tmp_path)
        assert items.save(folder, one) == items.save(folder, one) == str(tmp_path / "a.md")
        assert items.save(folder, other) == str(tmp_path / "a-1.md")
        assert sorted(f.name for f in tmp_path.iterdir()) == ["a-1.md", "a.md"]


class TestWhat:
    @pytest.mark.parametrize(
        ("job", "text"),
        [
            (python_job(), "a.py"),
            (shell_job(command=("pytest", "-x", "a b")), "pytest -x 'a b'"),
            (shell_job(script="#!\n\nmake all\n"), "script: make all"),
            (shell_job(script="#!/bin/sh\n"), "script: #!/bin/sh"),
        ],
        ids=["python", "command", "script", "shebang"],
    )
    def test_one_line(self, job: Any, text: str) -> None:
        assert shapes.what(job) == text
