"""Jobs that mean ill, by senders who do not trust each other: the next job sees none of it.

All of them run in `local`. (Without walls the scripts here would harm the machine.)
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlox import Session
from support.machines import RelayProgram, RunnerProgram

WAIT_S = 60.0

NASTY = """
cat a.txt sub/run
rm -rf a.txt sub
mkdir -p a.txt/b; touch a.txt/b/c; chmod 000 a.txt/b a.txt
ln -s / sub
mkdir .airlox-sync-0; touch .airlox-sync-0/x; chmod 000 .airlox-sync-0
mkfifo pipe; ln -s loop loop; touch "$(printf 'bad\\377\\nname')"
i=0; mkdir deep; cd deep; while [ $i -lt 300 ]; do mkdir d; cd d; i=$((i+1)); done
cd; mkdir -p .airlox-script.d; rm -f .airlox-script; mkdir .airlox-script; chmod 000 .airlox-script
chmod 000 ~ $AIRLOX_OUT; cd $OLDPWD
until [ "$PWD" = / ]; do cd ..; done
chmod 000 work
"""
LOOK = "cat a.txt; sub/run; ls -A ~ | grep -v airlox-script"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("session")
    limits = {"kinds": ["shell"], "approve_runners": False, "timeout_s": 300}
    with (
        RelayProgram(folder / "relay") as relay,
        Session.create(
            relay.url, mode="execute", job_limits=limits, cache_dir=folder / "owner"
        ) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def eve(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Another sender."""
    folder = tmp_path_factory.mktemp("eve")
    with Session.join(session.invites["sender"], display_name="eve", cache_dir=folder) as joined:
        yield joined


@pytest.fixture(scope="module")
def runner(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunnerProgram]:
    folder = tmp_path_factory.mktemp("runner")
    invite = session.invites["runner"]
    with RunnerProgram(invite, folder, sandbox="local", concurrency=2) as program:
        program.note("ready")
        yield program
        assert program.stop() == 0


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("content\n")
    (tmp_path / "sub/run").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "sub/run").chmod(0o755)
    (tmp_path / "sub/airlox-test-went-through-a-link").write_text("")
    return tmp_path


def test_the_next_job_finds_its_tree_whatever_the_last_one_did(
    session: Session, runner: RunnerProgram, tree: Path
) -> None:
    """[P-TRE-1] Nothing was followed: what `sub -> /` leads to is not the workspace's."""
    first = session.run_shell(NASTY, runner="box", tree=tree).wait(WAIT_S)
    assert first.stdout.startswith("content\n"), first
    second = session.run_shell(LOOK, runner="box", tree=tree).wait(WAIT_S)
    assert (second.stdout, second.reason) == ("content\nran\n", None), second
    assert not Path("/airlox-test-went-through-a-link").exists()


def test_another_sender_finds_nothing_of_it(
    session: Session, eve: Session, runner: RunnerProgram, tree: Path
) -> None:
    mine = "echo secret > kept; echo secret > ~/kept; ls"
    assert "kept" in session.run_shell(mine, runner="box", tree=tree).wait(WAIT_S).stdout
    script = "ls -A . ~ $AIRLOX_OUT /tmp /dev/shm; find / -name kept 2>/dev/null; true"
    seen = eve.run_shell(script, runner="box", tree=tree).wait(WAIT_S)
    assert "a.txt" in seen.stdout
    assert "kept" not in seen.stdout


def test_what_is_planted_for_the_next_job_never_runs_outside(
    session: Session, runner: RunnerProgram, tree: Path
) -> None:
    """Hooks, start-up files and settings: whoever would run them is in a sandbox too."""
    ran = f"/tmp/airlox-test-ran-{secrets.token_hex(8)}"
    plant = f"""
printf '#!/bin/sh\ntouch {ran}\n' > hook; chmod 755 hook
git init -q . 2>/dev/null || mkdir -p .git/hooks
for name in post-checkout pre-commit post-index-change fsmonitor; do cp hook .git/hooks/$name; done
printf '[core]\n fsmonitor = {ran}.sh\n hooksPath = .git/hooks\n' >> .git/config
for name in sitecustomize usercustomize conftest; do
    echo "open('{ran}', 'w')" > $name.py; cp $name.py ~
done
for name in .bashrc .profile .bash_profile; do echo "touch {ran}" > ~/$name; cp ~/$name .; done
cp hook airlox; cp hook python3; cp hook git; cp hook cat
cp hook .airlox-script
"""
    assert session.run_shell(plant, runner="box", tree=tree).wait(WAIT_S).ok
    for script in (LOOK, "exec /bin/cat a.txt"):
        assert session.run_shell(script, runner="box", tree=tree).wait(WAIT_S).ok
    assert not Path(ran).exists()


def test_two_senders_at_once_do_not_see_each_other(
    session: Session, eve: Session, runner: RunnerProgram
) -> None:
    busy = "touch /tmp/mine /dev/shm/mine; echo begun; exec sleep 61.7"
    job = session.run_shell(busy, runner="box")
    assert next(job.output(WAIT_S)).data == b"begun\n"
    seen = eve.run_shell(
        "ls /tmp /dev/shm; cat /proc/[0-9]*/cmdline | tr '\\0' ' '", runner="box"
    ).wait(WAIT_S)
    assert seen.status == "completed"
    assert "mine" not in seen.stdout
    assert "61.7" not in seen.stdout
    job.cancel()
    assert job.wait(WAIT_S).status == "cancelled"


def test_two_jobs_of_one_sender_share_a_workspace_one_after_the_other(
    session: Session, runner: RunnerProgram, tree: Path
) -> None:
    script = "echo $$ >> log; [ -e running ] && echo together; touch running; sleep 0.3; rm running"
    jobs = [session.run_shell(script, runner="box", tree=tree) for _ in range(2)]
    assert [job.wait(WAIT_S).stdout for job in jobs] == ["", ""]
    assert session.run_shell("wc -l < log", runner="box", tree=tree).wait(WAIT_S).stdout == "2\n"


def test_no_secret_of_the_runner_is_in_a_jobs_reach(
    session: Session, runner: RunnerProgram, tmp_path: Path
) -> None:
    """Invite, session key, token and seeds: in no variable, argument, process or readable file."""
    script = (
        "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/self/mountinfo 2>/dev/null\n"
        "for f in /proc/[0-9]*/fd/*; do readlink $f; done 2>/dev/null\n"
        "grep -rls -e 'participant_seed' -e 'ax_' / --exclude-dir=proc --exclude-dir=usr "
        "--exclude-dir=opt --exclude-dir=dev 2>/dev/null\n"
        "ls -A /proc/self/fd | sort -n | tail -1; true"
    )
    result = session.run_shell(script, runner="box").wait(WAIT_S)
    assert result.status == "completed"
    said = result.stdout + result.stderr
    key = session.invites["runner"].rpartition("#")[2]
    assert "AIRLOX_OUT" in said
    for secret in (key, "participant_seed", "TEST_INVITE", session.session_id, "identity-"):
        assert secret not in said, secret
    assert str(tmp_path.parent.parent) not in said


def test_paths_cut_between_writes_are_not_shown_live(
    session: Session, runner: RunnerProgram
) -> None:
    script = 'p=$PWD; printf %s "${p%?}"; printf %s "${p#"${p%?}"}"; printf /x; echo'
    job = session.run_shell(script, runner="box")
    assert b"".join(piece.data for piece in job.output(WAIT_S)) == b"$WORK/x\n"
    assert job.wait(WAIT_S).stdout == "$WORK/x\n"


@pytest.mark.slow
def test_a_storm_of_out_files_is_bounded(session: Session, runner: RunnerProgram) -> None:
    script = (
        "cd $AIRLOX_OUT; i=0; while [ $i -lt 100 ]; do mkdir $i; (cd $i; seq 1000 | xargs touch); "
        "i=$((i+1)); done"
    )
    result = session.run_shell(script, runner="box", timeout=240).wait(240)  # a hundred thousand
    assert result.status == "completed", result
    assert len(result.paths()) <= 10_000
    assert len(result.left_out) <= 100
    assert any("more than" in left.reason for left in result.left_out)
    assert session.run_shell(["true"], runner="box").wait(WAIT_S).ok


def test_names_of_out_files_that_could_harm_are_left_out(
    session: Session, runner: RunnerProgram
) -> None:
    script = (
        "cd $AIRLOX_OUT; echo x > 'a\\b'; echo x > \"$(printf 'esc\\033[2J')\"; echo x > con.txt; "
        "ln -s / root; ln ok hard 2>/dev/null; echo y > ok"
    )
    result = session.run_shell(script, runner="box").wait(WAIT_S)
    assert sorted(result.paths()) == ["_con.txt", "ok"]
    assert all(left.path.isprintable() for left in result.left_out)
    assert len(result.left_out) == 3
    assert os.path.basename(result.left_out[-1].path) == "root"
