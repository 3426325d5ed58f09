"""The system calls of a job in a container, as a profile that container engines read. Pure.

What `linux/seccomp.py` refuses is refused here, and the other way round: a list of what is allowed,
for engines answer what stands in no rule with a refusal, calls newer than the list included. Calls
of another architecture (x32, 32-bit) end the program.

Not here: typing into a terminal. Engines cannot judge one argument by several values, and a
container has no terminal but its own.
"""

from __future__ import annotations

import json
from typing import Final

from airlox.sandbox.linux import seccomp

_NAMES: Final = """
accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown
clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup
dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd
eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fanotify_mark
fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr file_getattr
file_setattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex
futex_requeue futex_wait futex_waitv futex_wake futimesat get_mempolicy get_robust_list
get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer
getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit
getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr getxattrat
inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents
io_pgetevents io_setup io_submit ioprio_get ioprio_set kill landlock_add_rule
landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listmount
listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lsm_get_self_attr lsm_list_modules
lsm_set_self_attr lstat madvise map_shadow_stack mbind membarrier memfd_create mincore mkdir
mkdirat mknod mknodat mlock mlock2 mlockall mmap modify_ldt move_pages mprotect mq_getsetattr
mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv
msgsnd msync munlock munlockall munmap nanosleep newfstatat open openat openat2 pause pidfd_open
pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv
preadv2 prlimit64 process_madvise process_mrelease process_vm_readv process_vm_writev pselect6
ptrace pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg
recvmsg remap_file_pages removexattr removexattrat rename renameat renameat2 restart_syscall
rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min
sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select
semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto set_mempolicy
set_mempolicy_home_node set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid
setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid
setsockopt setuid setxattr setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd
signalfd4 socketpair splice stat statfs statmount statx symlink symlinkat sync sync_file_range
syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime
timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname
unlink unlinkat utime utimensat utimes vfork vmsplice wait4 waitid write writev
"""
ALLOWED: Final = tuple(_NAMES.split())

_ARCHITECTURES: Final = ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")
_ALLOW: Final = "SCMP_ACT_ALLOW"
_ERRNO: Final = "SCMP_ACT_ERRNO"
_SEGMENT: Final = "shmget"
_FAMILIES: Final = range(64)
"""More than any kernel knows."""


def build_profile(*, counted: bool = True) -> bytes:
    """The profile as JSON. Unless a control group counts memory (`counted`), what would be memory
    that no process shows cannot be made, or is small."""
    unseen = frozenset() if counted else frozenset(seccomp.UNSEEN)
    profile = {
        "defaultAction": _ERRNO,
        "archMap": [{"architecture": name, "subArchitectures": []} for name in _ARCHITECTURES],
        "syscalls": [
            {"names": [*(n for n in ALLOWED if n not in unseen), "ioctl"], "action": _ALLOW},
            {
                "names": sorted({*seccomp.ABSENT, *unseen} - {_SEGMENT}),
                "action": _ERRNO,
                "errnoRet": seccomp.ENOSYS,
            },
            *(() if counted else (_small_segments(),)),
            _no_bits("clone", seccomp.NAMESPACES),
            _no_bits("unshare", seccomp.NAMESPACES | seccomp.NEW_TIME),
            *(_only("personality", value) for value in seccomp.PERSONALITIES),
            *(_only("socket", family) for family in seccomp.FAMILIES),
            *(
                _only("socket", family, error=seccomp.EAFNOSUPPORT)
                for family in _FAMILIES
                if family not in seccomp.FAMILIES
            ),
        ],
    }
    return json.dumps(profile).encode()


def _only(name: str, value: int, *, error: int | None = None) -> dict[str, object]:
    """A rule for calls whose first argument is this."""
    test = {"index": 0, "value": value, "op": "SCMP_CMP_EQ"}
    action = {"action": _ALLOW} if error is None else {"action": _ERRNO, "errnoRet": error}
    return {"names": [name], **action, "args": [test]}


def _small_segments() -> dict[str, object]:
    """A rule for shared memory of no great size, which is the second argument."""
    test = {"index": 1, "value": seccomp.SHARED_SEGMENT_BYTES, "op": "SCMP_CMP_LE"}
    return {"names": [_SEGMENT], "action": _ALLOW, "args": [test]}


def _no_bits(name: str, mask: int) -> dict[str, object]:
    """A rule for calls whose first argument has none of these bits."""
    test = {"index": 0, "value": mask, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    return {"names": [name], "action": _ALLOW, "args": [test]}
