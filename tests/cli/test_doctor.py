"""What `airlox runner doctor` prints, and the code it ends with."""

from __future__ import annotations

import io
import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from airlox.cli import doctor, runner
from airlox.cli.options import Parser
from airlox.cli.output import Voice
from airlox.errors import SandboxError
from airlox.runner.attacks import ATTACKS
from airlox.runner.checks import Check, State
from airlox.runner.doctor import Diagnosis
from airlox.runner.trials import Trial
from airlox.sandbox.base import Layer, Report
from support import parts
from support.commands import Cli

RUNTIME = f"python3.{sys.version_info.minor}"


def parse(*words: str) -> Namespace:
    parser = Parser(prog="airlox runner")
    runner.add_arguments(parser, "runner")
    return parser.parse_args(["doctor", *words])


def shown(found: Diagnosis, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    monkeypatch.setattr("airlox.runner.doctor.diagnose", lambda *_: found)
    out = io.StringIO()
    args = parse(*words)
    return doctor.run(args, Voice(json=args.json, stdout=out, stderr=io.StringIO())), out.getvalue()


LAYERS = (
    Layer("uid", True, "jobs run as uid 5"),
    Layer("cgroup", False, "none may be made", "cgroup_none", "systemd-run …"),
)
HELD = tuple(Trial(attack, True, "ENOENT") for attack in ATTACKS)


def test_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report("local", "own", LAYERS, usable=True)
    code, text = shown(Diagnosis(report, (), HELD), monkeypatch)
    assert code == 0
    assert "cgroup  off    none may be made" in text
    assert "  cgroup: systemd-run …" in text
    assert text.endswith("all is well: 12 attacks held\n")


def test_one_attack_got_through(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report("local", "own", LAYERS, usable=True)
    trials = (Trial(ATTACKS[0], False, "done"), Trial(ATTACKS[1], None, "?"), *HELD[2:])
    code, text = shown(Diagnosis(report, (), trials), monkeypatch)
    assert code == 1
    assert f"BROKEN     {ATTACKS[0].what}" in text
    assert "1 of 12 attacks got through, 1 of 12 attacks could not be tried" in text


def test_what_cannot_be_built_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = SandboxError("AppArmor forbids it", code="userns_apparmor", hint="sudo this")
    layers = (Layer("walls", False, refusal.message, refusal.code, refusal.hint),)
    report = Report("local", "own", layers, usable=False, refusal=refusal)
    code, text = shown(Diagnosis(report, (), ()), monkeypatch)
    assert code == 1
    assert "no attack was made" in text
    assert text.count("sudo this") == 1
    assert text.endswith("not usable: AppArmor forbids it\n")


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = SandboxError("no", code="userns_off", hint="do")
    report = Report("local", "own", LAYERS, usable=False, refusal=refusal)
    check = Check("disk", State.FAILED, "full", "disk_full", "free some")
    code, text = shown(Diagnosis(report, (check,), HELD[:1]), monkeypatch, "--json")
    assert code == 1
    assert json.loads(text) == {
        "attacks": [{"held": True, "name": "operators-file", "seen": "ENOENT"}],
        "builder": "own",
        "checks": [
            {
                "code": "disk_full",
                "detail": "full",
                "name": "disk",
                "remedy": "free some",
                "state": "failed",
            }
        ],
        "gpus": 0,
        "healthy": False,
        "layers": [
            {"detail": "jobs run as uid 5", "name": "uid", "on": True},
            {
                "code": "cgroup_none",
                "detail": "none may be made",
                "name": "cgroup",
                "on": False,
                "remedy": "systemd-run …",
            },
        ],
        "refusal": {"code": "userns_off", "error": "no", "hint": "do"},
        "sandbox": "local",
        "usable": False,
    }


def test_as_a_program(tmp_path: Path) -> None:
    """Without walls, which every machine can do: attacks get through, and the code says so."""
    person = Cli("http://127.0.0.1:1", tmp_path / "home")
    words = ("runner", "doctor", "--sandbox", "process", "--runtime", RUNTIME, "--json")
    found = person(*words, "--work-root", str(tmp_path / "work"), code=1).document
    assert found["sandbox"] == "process"
    assert not found["healthy"]
    assert {check["name"]: check["state"] for check in found["checks"]}["python"] == "ok"
    assert len(found["attacks"]) == 12
    assert list((tmp_path / "work").iterdir()) == []


def test_root_of_a_namespace_with_nobody_else_in_it(tmp_path: Path) -> None:
    """As in a rootless container. What this machine would have all the same is told."""
    parts.require("user namespaces")
    inside = Cli("", tmp_path / "home", way_in=("unshare", "--user", "--map-root-user"))
    words = ("runner", "doctor", "--runtime", RUNTIME, "--json", "--work-root", str(tmp_path))
    found = inside(*words, code=1).document
    assert found["refusal"]["code"] == "root_no_user"
    assert found["attacks"] == []
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers["uid"]["code"] == "root_no_user"
    assert layers["mounts"]["detail"] == "not tried, for want of uid"
