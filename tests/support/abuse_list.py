"""The attack list: what a job tries, which layers stop it, where it is held, which tests show it.

One table for both readers: `docs/security.md` prints it for people (`python -m support.abuse_list`
writes the section), and `tests/sandbox/test_abuse_list.py` checks that no number is missing and
that every test it names is there. What shares a start of the sandbox stands in `attacks.py` as
well, and is then shown by `test_attacks.py` without being named here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from support.attacks import ATTACKS, Attack

LAST = 93
IN_CONTAINERS = [attack for attack in ATTACKS if attack.contained is not None]
HELD = "held"
NOT = "**not held**"
RIGHTS = "as its user may"
"""Stopped where the permissions of an ordinary user stop it, by no wall of ours."""
WATCHED = "held, watched"
EFFORT = "best effort"
WORKS = "works"
NONE = "–"

BATCH = "tests/sandbox/test_attacks.py::test_held"
CONTAINED = "tests/sandbox/test_attacks.py::test_held_in_a_container"
_ABUSE = "tests/sandbox/test_abuse.py::"
_LOCAL = "tests/sandbox/test_local.py::"
_SUITE = "tests/sandbox/test_suite.py::"
_COLLECT = "tests/sandbox/test_collect.py::"
_HOSTILE = "tests/e2e/test_runner_hostile.py::"
_APPLY = "tests/tree/test_apply.py::"
_EGRESS = "tests/sandbox/test_egress.py::"
_OUTLET = "tests/sandbox/linux/test_outlet.py::"
_ALLOWED = "tests/e2e/test_allow_list.py::"
_WORK = "tests/sandbox/test_ordinary_work.py::"
_SPACES = "tests/runner/test_workspace.py::"


@dataclass(frozen=True)
class Case:
    """One number of the list. `own`, `bwrap`, `docker` and `process` say whether it is held."""

    number: int
    tries: str
    stopped_by: str
    process: str = NOT
    proofs: tuple[str, ...] = ()
    own: str = HELD
    bwrap: str = HELD
    docker: str = HELD

    @property
    def tests(self) -> tuple[str, ...]:
        """Every test that shows it, as `file::[class::]name`."""
        batched = (BATCH,) if self.number in _numbers(ATTACKS) else ()
        contained = (CONTAINED,) if self.number in _numbers(IN_CONTAINERS) else ()
        return (*batched, *contained, *self.proofs)


def _numbers(attacks: Iterable[Attack]) -> set[int]:
    return {attack.number for attack in attacks}


def _in(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names)


_COUNTED = "cgroup; without one the watcher"

CASES = (
    Case(1, "read the operator's keys", "mounts, Landlock"),
    Case(2, "read another sender's workspace, list what lies beside it", "mounts"),
    Case(3, "read `/etc/shadow`, `/etc/sudoers`, `/etc/ssh`", "mounts, uid", RIGHTS),
    Case(4, "list `/home`, `/root`, `/var`, `/run`, `/sys`", "mounts", docker="sees the image's"),
    Case(5, "write to `/`, `/usr`, `/etc`, `/dev`", "mounts, Landlock", RIGHTS),
    Case(
        6,
        "fill the root or `/dev` with data",
        "read-only root and `/dev`, Landlock",
        RIGHTS,
        ("tests/sandbox/linux/test_bwrap.py::test_by_itself_its_dev_can_be_filled",),
    ),
    Case(7, "look through `/proc` at the runner's folders", "pid namespace, Landlock"),
    Case(
        8,
        "find the invite in an environment or a command line",
        "pid namespace; the runner drops it",
        proofs=_in(_HOSTILE, "test_no_secret_of_the_runner_is_in_a_jobs_reach"),
    ),
    Case(
        9,
        "use a descriptor it inherited",
        "all are closed",
        HELD,
        _in(_SUITE, "TestSurroundings::test_only_three_descriptors_are_open"),
    ),
    Case(10, "set the handler of core dumps", "uid, read-only `/proc/sys`, Landlock", RIGHTS),
    Case(11, "change the kernel through `/proc`", "uid, read-only `/proc/sys`, Landlock", RIGHTS),
    Case(12, "make a cgroup", "no `/sys/fs/cgroup`", RIGHTS),
    Case(13, "trace the runner, open its memory", "pid namespace, Landlock"),
    Case(14, "read the runner's memory by call", "pid namespace, Landlock"),
    Case(15, "signal the runner", "pid namespace, Landlock"),
    Case(16, "set up io_uring", "seccomp"),
    Case(17, "reach for kernel keys", "seccomp"),
    Case(18, "call bpf, perf_event_open, userfaultfd", "seccomp"),
    Case(19, "unshare a user namespace", "seccomp, limit of user namespaces"),
    Case(20, "clone a user namespace", "seccomp, limit of user namespaces"),
    Case(21, "the same by clone3", "seccomp, limit of user namespaces"),
    Case(22, "enter other namespaces", "pid namespace, seccomp", RIGHTS),
    Case(23, "mount, unmount, pivot", "seccomp, no capability, Landlock", RIGHTS),
    Case(24, "change its root", "seccomp, no capability", RIGHTS),
    Case(25, "replace the kernel, load a module, reboot, swap", "seccomp, no capability", RIGHTS),
    Case(26, "set clock or host name", "seccomp, no capability", RIGHTS),
    Case(27, "make a device file", "no capability, Landlock, nodev", RIGHTS),
    Case(
        28,
        "run su, sudo, mount, newuidmap",
        "no new privileges, nosuid",
        docker=f"{HELD} by the first alone",
    ),
    Case(
        29,
        "plant a setuid program",
        "no new privileges, nosuid",
        docker=f"{HELD} by the first alone",
    ),
    Case(30, "give a file capabilities", "no capability", RIGHTS),
    Case(31, "type into a terminal (TIOCSTI, TIOCLINUX)", "seccomp", RIGHTS),
    Case(
        32,
        "open the runner's terminal",
        "a session of its own",
        HELD,
        _in(_SUITE, "TestSurroundings::test_its_session_is_its_own_and_has_no_terminal"),
    ),
    Case(
        33,
        "call the kernel by another door (x32, 32 bit)",
        "seccomp kills",
        proofs=_in(_LOCAL, "TestOrdinaryWork::test_x32_calls_kill"),
    ),
    Case(34, "open sockets of odd families", "seccomp"),
    Case(35, "change its personality", "seccomp"),
    Case(36, "read kernel messages and addresses", "seccomp, covered in `/proc`", RIGHTS),
    Case(
        37,
        "leave a core dump",
        "limit of 0",
        HELD,
        _in(_SUITE, "TestLimits::test_limits_cannot_be_raised"),
    ),
    Case(
        38,
        "raise its limits",
        "hard limits",
        HELD,
        _in(_SUITE, "TestLimits::test_limits_cannot_be_raised"),
    ),
    Case(39, "connect to the host's 127.0.0.1", "network namespace"),
    Case(40, "connect to an abstract socket of the host", "network namespace, Landlock"),
    Case(41, "connect to a path socket (docker, ssh agent, D-Bus)", "mounts"),
    Case(
        42,
        "reach the network: TCP, UDP, IPv6, raw, DNS, metadata",
        "network namespace",
        proofs=_in(_OUTLET, "test_with_no_network_nothing_gets_out"),
    ),
    Case(
        43,
        "serve itself on 127.0.0.1 and ::1",
        "not stopped: loopback is up",
        WORKS,
        own=WORKS,
        bwrap=WORKS,
        docker=WORKS,
    ),
    Case(
        44,
        "with an allow list: another name, port, address, loopback",
        "proxy outside",
        NONE,
        (
            *_in(_EGRESS, "TestDenied::test_not_on_the_list"),
            *_in(_OUTLET, "TestAllowList::test_what_is_let_through_and_what_is_not"),
            *_in(_ALLOWED, "TestBlocked::test_what_no_one_allowed"),
        ),
    ),
    Case(
        45,
        "with an allow list: a name that leads inside, or changes between look-ups",
        "proxy connects to the address it checked",
        NONE,
        (
            *_in(_EGRESS, "TestDenied::test_a_name_that_leads_where_no_one_may"),
            *_in(_EGRESS, "TestDenied::test_an_answer_that_changes_between_two_look_ups"),
            *_in(_ALLOWED, "TestBlocked::test_an_answer_that_changes"),
        ),
    ),
    Case(
        46,
        "with an allow list: go round the proxy",
        "network namespace",
        NONE,
        (
            *_in(_OUTLET, "TestAllowList::test_there_is_no_other_way"),
            *_in(_ALLOWED, "TestBlocked::test_going_round_the_proxy"),
        ),
    ),
    Case(47, "open shared memory, semaphores, queues of the host", "ipc namespace"),
    Case(
        48,
        "a fork bomb",
        "cgroup, limit of processes",
        "held, counted per user",
        (
            *_in(_SUITE, "TestLimits::test_processes"),
            *_in(_LOCAL, "TestLimits::test_fork_bomb_meets_the_process_limit"),
            *_in(_LOCAL, "TestLimits::test_fork_bomb_without_a_cgroup"),
        ),
    ),
    Case(
        49,
        "a memory bomb in one process",
        _COUNTED,
        WATCHED,
        (
            *_in(_SUITE, "TestLimits::test_memory_of_one_process"),
            *_in(_LOCAL, "TestLimits::test_memory_without_a_cgroup_is_watched"),
        ),
    ),
    Case(
        50,
        "a memory bomb over eight processes",
        _COUNTED,
        WATCHED,
        _in(_SUITE, "TestLimits::test_memory_of_eight_processes"),
    ),
    Case(
        51,
        "memory through `/tmp`, `/dev/shm`, memory files, SysV segments",
        "size of each tmpfs; cgroup, without one seccomp",
        proofs=(
            *_in(_ABUSE, "TestMemory::test_in_files_of_tmpfs_and_memory_files"),
            *_in(_ABUSE, "TestMemory::test_that_no_process_shows"),
            *_in(_ABUSE, "test_files_without_content_in_memory"),
            *_in(_ABUSE, "test_without_walls_memory_files_are_not_seen"),
        ),
    ),
    Case(
        52,
        "a file of 10 GB",
        "limit of file size",
        HELD,
        _in(_SUITE, "TestLimits::test_one_large_file"),
    ),
    Case(
        53,
        "many files of 100 MB",
        "watcher",
        WATCHED,
        _in(_SUITE, "TestLimits::test_disk_growth"),
    ),
    Case(
        54,
        "a sparse file of 1 TB",
        "limit of file size",
        HELD,
        _in(_SUITE, "TestLimits::test_one_large_file"),
    ),
    Case(
        55,
        "disk space that no name leads to",
        "floor of free space",
        WATCHED,
        (
            *_in(_ABUSE, "TestDisk::test_space_that_no_name_leads_to_counts"),
            "tests/sandbox/test_watch.py::TestFloor::test_too_little_free_space",
        ),
    ),
    Case(
        56,
        "output without end, without lines, of NULs",
        "the reader keeps head and tail",
        HELD,
        (
            *_in(_SUITE, "TestOutput::test_all_of_much_output_is_counted"),
            *_in(_LOCAL, "TestLimits::test_output_without_end"),
            "tests/runner/test_answer.py::TestFit::test_a_megabyte_of_nul_is_six_in_json_and_is_cut",
            "tests/e2e/test_much_output.py::test_memory_is_flat_and_the_last_bytes_are_there",
        ),
    ),
    Case(
        57,
        "terminal escapes, CR, invalid UTF-8 in its output",
        "CLI shows them escaped",
        HELD,
        (
            "tests/cli/test_output.py::TestOutputOfJobs::test_a_terminal_gets_colours_only",
            "tests/cli/test_terminal.py::TestTerminalFilter::test_only_colours_and_erase_in_line_act",
            "tests/e2e/test_cli.py::TestItems::test_escapes_are_shown_and_not_obeyed",
            "tests/cli/test_chorus.py::TestHostileOutput::test_nothing_goes_back_over_the_prefix",
            "tests/hostile/test_participants.py::TestWhatIsShown::test_output_on_a_terminal",
        ),
    ),
    Case(
        58,
        "100,000 small files",
        "watcher, remover",
        WATCHED,
        (
            *_in(_SUITE, "TestLimits::test_many_small_files"),
            *_in(_COLLECT, "TestRemove::test_a_hundred_thousand_files"),
        ),
    ),
    Case(
        59,
        "folders 20,000 deep",
        "remover without recursion",
        HELD,
        _in(_COLLECT, "TestRemove::test_folders_20000_deep"),
    ),
    Case(
        60,
        "files and folders of mode 000",
        "remover, collector",
        HELD,
        (
            *_in(_COLLECT, "TestRemove::test_locked_folders"),
            *_in(_COLLECT, "TestCollect::test_locked_files_and_folders_are_named"),
        ),
    ),
    Case(61, "make a file immutable", "no capability", RIGHTS),
    Case(
        62,
        "a daemon that ignores TERM and closes its streams",
        "pid namespace, cgroup",
        EFFORT,
        (
            *_in(_ABUSE, "TestNothingIsLeft::test_of_orphans_daemons_and_their_own_reaper"),
            *_in(_LOCAL, "TestEnd::test_a_daemon_does_not_outlive_the_job"),
        ),
    ),
    Case(
        63,
        "sleep past the limit, ignoring TERM",
        "clock outside, KILL",
        HELD,
        (
            *_in(_SUITE, "TestEnd::test_time_out_of_a_job_that_ignores_term"),
            *_in(_LOCAL, "TestEnd::test_ignoring_term_helps_nobody"),
        ),
    ),
    Case(
        64,
        "make itself the reaper of its orphans",
        "pid namespace",
        EFFORT,
        _in(_ABUSE, "TestNothingIsLeft::test_of_orphans_daemons_and_their_own_reaper"),
    ),
    Case(
        65,
        "race forks and exits while it is ended",
        "pid namespace, cgroup",
        NOT,
        _in(_ABUSE, "TestNothingIsLeft::test_of_a_race_of_forks_and_exits"),
    ),
    Case(
        66,
        "kill or stop pid 1",
        "pid namespace; the judge is outside",
        NOT,
        (
            *_in(_LOCAL, "TestEnd::test_pid_one_cannot_be_harmed"),
            *_in(_ABUSE, "TestNothingIsLeft::test_of_a_job_that_stops_itself_and_all_others"),
        ),
    ),
    Case(
        67,
        "keep its output open in a child",
        "nobody waits for the end of a stream",
        HELD,
        _in(_SUITE, "TestEnd::test_a_child_that_keeps_the_output_open_delays_nothing"),
    ),
    Case(
        68,
        "stop itself and everything",
        "clock outside",
        NOT,
        _in(_ABUSE, "TestNothingIsLeft::test_of_a_job_that_stops_itself_and_all_others"),
    ),
    Case(69, "20,000 open descriptors", "limit", HELD, _in(_SUITE, "TestLimits::test_open_files")),
    Case(70, "lock 100 MB of memory", "limit", RIGHTS),
    Case(71, "raise its priority", "no capability", RIGHTS),
    Case(
        72,
        "links in the out folder to secrets, `/`, itself",
        "collector follows none",
        HELD,
        (
            *_in(_LOCAL, "TestOutFolder::test_links_are_left_out"),
            *_in(_COLLECT, "TestCollect::test_links_are_left_out_and_not_read"),
        ),
    ),
    Case(
        73,
        "hard links in the out folder",
        "mounts, collector",
        HELD,
        (
            *_in(_LOCAL, "TestOutFolder::test_hard_links_are_left_out"),
            *_in(_COLLECT, "TestCollect::test_hard_links_are_left_out"),
        ),
    ),
    Case(
        74,
        "pipes, sockets, devices in the out folder",
        "collector does not block",
        HELD,
        (
            *_in(_LOCAL, "TestOutFolder::test_pipes_and_sockets_are_left_out"),
            *_in(_COLLECT, "TestCollect::test_pipes_and_sockets_do_not_block"),
            *_in(_COLLECT, "TestCollect::test_devices_are_left_out"),
        ),
    ),
    Case(
        75,
        "a sparse file of 200 MB in the out folder",
        "collector counts the size it shows",
        HELD,
        _in(_COLLECT, "TestCollect::test_a_sparse_file_counts_with_the_size_it_shows"),
    ),
    Case(
        76,
        "swap a folder for a link while it is collected",
        "all are dead by then; descriptors",
        HELD,
        (
            *_in(_COLLECT, "TestCollect::test_a_folder_swapped_for_a_link_later_is_not_entered"),
            *_in(_COLLECT, "TestCollect::test_a_file_swapped_for_a_link_later_is_not_opened"),
        ),
    ),
    Case(
        77,
        "names that could harm where they are unpacked",
        "collector marks or leaves them out",
        HELD,
        (
            *_in(_COLLECT, "TestCollect::test_names_that_are_not_portable"),
            *_in(_COLLECT, "TestNames::test_a_portable_name_is_safe_everywhere"),
            *_in(_HOSTILE, "test_names_of_out_files_that_could_harm_are_left_out"),
        ),
    ),
    Case(
        78,
        "60 levels and 100,000 files in the out folder",
        "collector cuts at its bounds",
        HELD,
        (
            *_in(_COLLECT, "TestCollect::test_depth_is_cut"),
            *_in(_COLLECT, "TestCollect::test_the_number_of_files_is_cut_and_said_once"),
            *_in(_HOSTILE, "test_a_storm_of_out_files_is_bounded"),
        ),
    ),
    Case(
        79,
        "a progress file that is a pipe, a link, endless",
        "read beneath, without following or blocking",
        HELD,
        ("tests/runner/test_progress.py::test_tricks_show_nothing_and_block_nothing",),
    ),
    Case(
        80,
        "replace or close its work folder",
        "mounts; the next job gets it repaired",
        "repaired",
        _in(_SPACES, "test_what_a_job_did_to_its_folders_is_repaired"),
    ),
    Case(
        81,
        "plant hooks and start-up files for the same sender's next job",
        "nothing of a workspace runs outside",
        HELD,
        _in(_HOSTILE, "test_what_is_planted_for_the_next_job_never_runs_outside"),
    ),
    Case(
        82,
        "plant links that a tree would be written through",
        "trees are written beneath",
        HELD,
        (
            *_in(_APPLY, "TestHostileLeftovers::test_folders_replaced_by_links"),
            *_in(_APPLY, "TestHostileLeftovers::test_a_hard_link_is_not_written_through"),
            *_in(_HOSTILE, "test_the_next_job_finds_its_tree_whatever_the_last_one_did"),
        ),
    ),
    Case(
        83,
        "forge its own end",
        "the judge is outside; signature of the runner",
        NOT,
        (
            *_in(_LOCAL, "TestEnd::test_pid_one_cannot_be_harmed"),
            *_in(_SUITE, "TestEnd::test_what_a_child_does_is_not_the_verdict"),
        ),
    ),
    Case(
        84,
        "outlive a runner that is killed",
        "pid namespace, end of the control pipe; sweep",
        "next start sweeps",
        (
            *_in(_LOCAL, "TestEnd::test_nothing_outlives_a_killed_runner"),
            *_in(_ABUSE, "TestStart::test_nothing_is_left_at_any_moment"),
            "tests/e2e/test_runner_ordinary.py::test_a_killed_runner_leaves_nothing",
            "tests/sandbox/test_sweep.py::TestSweep::test_processes_and_folders_of_a_lost_job_go",
            "tests/sandbox/test_docker.py::TestEnds::test_what_a_dead_runner_left_is_removed_and_no_more",
        ),
        docker="next start sweeps",
    ),
    Case(
        85,
        "be started by a thread that ends",
        "started by the main thread only",
        NONE,
        ("tests/sandbox/test_open.py::TestLocal::test_only_the_main_thread_may_start_one",),
        docker=NONE,
    ),
    Case(
        86,
        "be left over from a start that is cancelled or killed at any moment",
        'nothing runs before "go"; kill by pid, session, cgroup',
        EFFORT,
        (
            *_in(_ABUSE, "TestStart::test_nothing_is_left_at_any_moment"),
            *_in(_ABUSE, "TestStart::test_nothing_is_left_at_a_few"),
            "tests/sandbox/test_docker.py::TestEnds::test_nothing_stays_of_a_cancel_at_any_moment",
        ),
    ),
    Case(
        87,
        "run twice at once in one workspace",
        "lock of the workspace",
        HELD,
        (
            *_in(_SPACES, "test_a_second_job_waits_for_the_first"),
            *_in(_HOSTILE, "test_two_jobs_of_one_sender_share_a_workspace_one_after_the_other"),
        ),
    ),
    Case(
        88,
        "find another sender's job that runs beside it",
        "namespaces",
        NOT,
        (
            *_in(_ABUSE, "TestNeighbours::test_two_jobs_at_once_find_nothing_of_each_other"),
            *_in(_HOSTILE, "test_two_senders_at_once_do_not_see_each_other"),
        ),
    ),
    Case(
        89,
        "learn the names of host and account",
        "made-up passwd and host name",
        NOT,
        _in(
            _ABUSE,
            "TestWhatIsTold::test_mounts_name_no_place_but_their_own_and_the_jobs_folders",
        ),
        own="held but for the paths of its folders¹",
        bwrap="held but for the paths of its folders¹",
        docker="held but for the paths of its folders¹",
    ),
    Case(
        90,
        "run as root under a runner that root started",
        "another uid is put on first",
        "with `--job-user`",
        (
            *_in(_LOCAL, "TestUser::test_kernel_uid_is_never_root"),
            *_in(_ABUSE, "TestWhatIsTold::test_a_named_job_user_is_the_jobs"),
            *_in(_LOCAL, "TestOrdinaryWork::test_a_file_made_by_a_job_belongs_to_its_user"),
        ),
    ),
    Case(
        91,
        "lie about the time",
        "time is measured outside",
        HELD,
        _in(_ABUSE, "TestWhatIsTold::test_time_is_measured_outside"),
    ),
    Case(
        92,
        "work: git, make, gcc, gdb, npm, cargo, pytest, terminals, parallel Python",
        "not stopped: guards against walls too many",
        WORKS,
        (
            *_in(_WORK, "TestEverywhere::test_tools"),
            *_in(_WORK, "TestEverywhere::test_parallel_python"),
            *_in(_WORK, "TestToolchainsOfAPerson::test_pytest"),
            *_in(_WORK, "TestToolchainsOfAPerson::test_cargo"),
            "tests/sandbox/test_choices.py::test_address_sanitizer_without_the_limit_on_data",
        ),
        own=WORKS,
        bwrap=WORKS,
        docker=WORKS,
    ),
    Case(
        93,
        "use a GPU it was not given",
        "mounts",
        NOT,
        (
            "tests/sandbox/linux/test_gpus.py::TestSteps::test_a_job_sees_its_gpu_and_no_other",
            "tests/sandbox/linux/test_gpus.py::TestSteps::test_nothing_is_chosen_nothing_is_shown",
        ),
    ),
)


def table() -> str:
    """The table of `docs/security.md`."""
    lines = [
        "| | a job tries to | stopped by | `local`, own | `local`, bwrap | `docker` | `process` |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        words = (case.tries, case.stopped_by, case.own, case.bwrap, case.docker, case.process)
        lines.append(f"| {case.number} | {' | '.join(words)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
