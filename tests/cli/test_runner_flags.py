"""What the flags of a runner ask for."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from airlox.cli import runner, runner_flags
from airlox.cli.options import CommandLineError, Parser
from airlox.errors import AirloxError, UsageError

from .test_output import Spoken


def parse(*words: str) -> Namespace:
    parser = Parser(prog="airlox runner")
    runner.add_arguments(parser, "runner")
    return parser.parse_args(["join", "--name", "box", *words])


class TestOptions:
    def test_defaults(self, tmp_path: Path) -> None:
        chosen = runner_flags.runner_options(parse("--cache-dir", str(tmp_path)))
        assert (chosen.name, chosen.sandbox, chosen.concurrency) == ("box", "local", 1)
        assert chosen.cache_root == tmp_path
        assert chosen.workspaces
        assert chosen.work_root is None
        assert not chosen.no_network

    def test_every_flag(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        chosen = runner_flags.runner_options(
            parse(
                *("--labels", "gpu,a100", "--labels", "big", "--description", "8 cores"),
                *("--require-layers", "seccomp,landlock", "--job-user", "nobody"),
                *("--concurrency", "4", "--no-network", "--memory", "2G"),
                *("--sandbox-builder", "bwrap", "--allow-userns", "--no-data-limit"),
                *("--python", "py", "--toolchain", "tools", "--no-workspace", "--work-root", "w"),
            )
        )
        assert chosen.labels == ("gpu", "a100", "big")
        assert chosen.description == "8 cores"
        assert chosen.require_layers == ("seccomp", "landlock")
        assert chosen.job_user == "nobody"
        assert (chosen.concurrency, chosen.memory_mb) == (4, 2048)
        assert chosen.no_network
        assert (chosen.builder, chosen.allow_userns, chosen.memory_back_stop) == (
            "bwrap",
            True,
            False,
        )
        assert chosen.python == tmp_path / "py"
        assert chosen.toolchains == (tmp_path / "tools",)
        assert not chosen.workspaces
        assert chosen.work_root == tmp_path / "w"

    def test_containers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        words = ("--sandbox", "docker", "--docker-cpus", "1.5", "--docker-runtime", "runsc")
        chosen = runner_flags.runner_options(parse(*words, "--image", "debian:12"))
        assert (chosen.image, chosen.image_base) == ("debian:12", None)
        assert (chosen.cpus, chosen.docker_runtime) == (1.5, "runsc")
        monkeypatch.setenv("AIRLOX_IMAGE_BASE", "registry.lan/py")
        assert runner_flags.runner_options(parse(*words)).image_base == "registry.lan/py"
        chosen = runner_flags.runner_options(parse(*words, "--image-base", "mine"))
        assert chosen.image_base == "mine"
        named = runner_flags.runner_options(parse(*words, "--image", "debian:12"))
        assert named.image_base is None  # the variable is for whoever names none
        assert runner_flags.runner_options(parse()).image_base is None

    @pytest.mark.parametrize(
        "words",
        [
            ("--image", "debian:12"),
            ("--image-base", "x"),
            ("--docker-runtime", "runsc"),
            ("--sandbox", "docker", "--image", "-rm"),
            ("--sandbox", "docker", "--image", "a b"),
            ("--sandbox", "docker", "--image", "a", "--image-base", "b"),
            ("--sandbox", "docker", "--python", "python3"),
            ("--sandbox", "docker", "--docker-runtime", "a=b"),
            ("--sandbox", "docker", "--cpus", "nan"),
        ],
    )
    def test_containers_that_make_no_sense(self, words: tuple[str, ...]) -> None:
        with pytest.raises(UsageError):
            runner_flags.runner_options(parse(*words))

    def test_by_default_a_job_makes_no_user_namespace_and_its_data_is_limited(self) -> None:
        chosen = runner_flags.runner_options(parse())
        assert (chosen.builder, chosen.allow_userns, chosen.memory_back_stop) == (None, False, True)

    @pytest.mark.parametrize("flag", [("--sandbox-builder", "own"), ("--allow-userns",)])
    def test_what_only_local_has(self, flag: tuple[str, ...]) -> None:
        with pytest.raises(UsageError, match=flag[0]):
            runner_flags.runner_options(parse("--unsandboxed", *flag))

    def test_hosts(self) -> None:
        flags = ("--allow-host", "api.example.net", "--allow-host", "*.example.org:8443")
        assert runner_flags.runner_options(parse(*flags)).allow_hosts == flags[1::2]
        assert runner_flags.runner_options(parse()).allow_hosts == ()

    @pytest.mark.parametrize(
        ("other", "code"),
        [
            (("--no-network",), "network_contradiction"),
            (("--sandbox", "process"), "network_unblocked"),
            (("--unsandboxed",), "network_unblocked"),
            (("--allow-host", "10.0.0.1"), "bad_host"),
        ],
    )
    def test_hosts_that_could_not_be_kept_to(self, other: tuple[str, ...], code: str) -> None:
        with pytest.raises(UsageError) as caught:
            runner_flags.runner_options(parse("--allow-host", "api.example.net", *other))
        assert caught.value.code == code

    @pytest.mark.parametrize("flag", ["--cpus", "--docker-cpus"])
    def test_a_share_of_the_processors(self, flag: str) -> None:
        assert runner_flags.runner_options(parse(flag, "1.5")).cpus == 1.5

    def test_gpus(self) -> None:
        assert runner_flags.runner_options(parse("--gpus", "2")).gpus == "2"

    @pytest.mark.parametrize("words", [("--gpus", "some"), ("--gpus", "0"), ("--gpus", "65")])
    def test_gpus_that_are_no_number(self, words: tuple[str, ...]) -> None:
        with pytest.raises(UsageError):
            runner_flags.runner_options(parse(*words))

    def test_without_walls_there_is_no_choice_of_gpus(self) -> None:
        assert runner_flags.runner_options(parse("--unsandboxed", "--gpus", "all")).gpus == "all"
        with pytest.raises(UsageError) as refused:
            runner_flags.runner_options(parse("--unsandboxed", "--gpus", "1"))
        assert refused.value.code == "gpus_not_offered"

    def test_unsandboxed_is_another_word(self) -> None:
        assert runner_flags.runner_options(parse("--unsandboxed")).sandbox == "process"
        with pytest.raises(CommandLineError):
            runner_flags.runner_options(parse("--unsandboxed", "--sandbox", "local"))

    def test_variables(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("AIRLOX_WORK_ROOT", str(tmp_path))
        monkeypatch.setenv("AIRLOX_DESCRIPTION", "a person")
        assert runner_flags.runner_options(parse()).work_root == tmp_path
        assert runner_flags.runner_options(parse()).description == "a person"
        monkeypatch.setenv("AIRLOX_RUNNER_DESCRIPTION", "a machine")
        assert runner_flags.runner_options(parse()).description == "a machine"

    def test_a_malformed_name_is_refused(self) -> None:
        with pytest.raises(AirloxError):
            runner_flags.runner_options(parse("--labels", "Not/OK"))


class TestAsWords:
    """A command line made of flags says the same when it is read again."""

    @pytest.mark.parametrize(
        "words",
        [
            (),
            ("--labels", "gpu,a100", "--labels", "big", "--description=-8 cores"),
            ("--require-layers", "seccomp,landlock", "--job-user", "nobody", "--no-network"),
            ("--concurrency", "4", "--memory", "2G", "--docker-cpus", "0.5", "--no-workspace"),
            ("--sandbox", "process", "--gpus", "all", "--python", "/usr/bin/python3"),
            ("--toolchain", "/opt/a", "--toolchain", "/opt/b", "--work-root", "/srv/airlox"),
            ("--allow-host", "a.example.org", "--allow-host", "*.example.org:8443"),
        ],
    )
    def test_round_trip(self, words: tuple[str, ...]) -> None:
        args = parse(*words)
        again = parse(*runner_flags.as_words(args)[1:])
        assert vars(again) == vars(args)

    def test_every_flag_can_be_said_again(self) -> None:
        """One that is added must be known here, and be absolute if it is a path."""
        parser = Parser()
        runner_flags.add_flags(parser)
        for action in parser._actions:
            assert action.option_strings, action.dest
            if action.dest not in runner_flags.SESSION_FLAGS:
                assert action.nargs in (None, 0), action.dest

    def test_paths_are_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        found = runner_flags.as_words(parse("--python", "py", "--toolchain", "t"))
        assert found == ["--name=box", f"--python={tmp_path}/py", f"--toolchain={tmp_path}/t"]

    def test_the_link_is_left_out(self) -> None:
        args = parse("--invite", "https://relay/s/x#secret", "--invite-file", "f")
        assert runner_flags.as_words(args) == ["--name=box"]
        args = parse("--code", "417-guitar-orbit", "--relay", "https://relay", "--verify")
        assert runner_flags.as_words(args) == ["--name=box"]

    def test_a_link_and_a_code_do_not_go_together(self) -> None:
        voice = Spoken().voice
        for words in (
            ("--code", "417-guitar-orbit", "--invite", "https://relay/s/x#secret"),
            ("--relay", "https://relay"),
            ("--verify",),
        ):
            with pytest.raises(CommandLineError, match="code"):
                runner_flags.take_invite(parse(*words), voice)
