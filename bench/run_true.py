"""`airlox run --on box -- true` beside `ssh localhost true`, a new process and connection each.

The peer is a throw-away sshd on a loopback port with a key of its own; both ends of ours are a
relay and a runner on the same machine, the job in the best sandbox the machine offers.
Also a job through a session that is already open, beside ssh over a connection kept open.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.box import Box, box
from bench.measure import (
    Row,
    alternate,
    compile_first,
    folder,
    free_port,
    process,
    run,
    wait_for_port,
)


def rows() -> list[Row]:
    compile_first()
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    if not Path(sshd).exists() or shutil.which("ssh") is None:
        raise RuntimeError("sshd is missing: apt-get install openssh-server openssh-client")
    with box() as ours, folder() as keys, ssh_server(sshd, keys) as ssh:
        return [_new_process(ours, ssh), _open_session(ours, ssh, keys)]


def _new_process(ours: Box, ssh: list[str]) -> Row:
    mine, peer = alternate(
        lambda: ours.airlox("run", "--on", ours.name, "--", "true"),
        lambda: run([*ssh, "true"]),
        times=21,
    )
    target = "≤ 0.5"
    return Row("airlox run --on box -- true", mine, peer, "ms", "ssh localhost true", target)


def _open_session(ours: Box, ssh: list[str], keys: Path) -> Row:
    control = ["-o", f"ControlPath={keys}/mux"]
    master = [*ssh[:-1], *control, "-M", "-N", "-f", ssh[-1]]
    subprocess.run(master, check=True, timeout=20, stderr=subprocess.DEVNULL)
    try:
        with ours.session() as session:
            mine, peer = alternate(
                lambda: session.run_shell(["true"], runner=ours.name).wait(timeout=30),
                lambda: run([*ssh[:-1], *control, ssh[-1], "true"]),
                times=21,
            )
    finally:
        stop = [*ssh[:-1], *control, "-O", "exit", ssh[-1]]
        subprocess.run(stop, check=False, timeout=20, stderr=subprocess.DEVNULL)
    name = "multiplexed ssh localhost true"
    return Row("session.run_shell(['true']).wait()", mine, peer, "ms", name, "≤ 1.5")


@contextmanager
def ssh_server(sshd: str, keys: Path) -> Iterator[list[str]]:
    """A throw-away sshd; gives the words of an ssh command that reaches it, host last."""
    for name in ("host", "user"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)]
        subprocess.run(keygen, check=True, timeout=20)
    shutil.copy(keys / "user.pub", keys / "authorized")
    Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    options = {
        "AuthorizedKeysFile": keys / "authorized",
        "HostKey": keys / "host",
        "ListenAddress": "127.0.0.1",
        "PidFile": "none",
        "Port": port,
        "StrictModes": "no",
        "UsePAM": "no",
    }
    argv = [sshd, "-D", "-e", "-f", "/dev/null"]
    for key, value in options.items():
        argv += ["-o", f"{key}={value}"]
    with process(argv, stderr=subprocess.DEVNULL):
        wait_for_port(port)
        words = ["ssh", "-F", "/dev/null", "-p", str(port), "-i", str(keys / "user")]
        for option in ("StrictHostKeyChecking=no", "BatchMode=yes", "LogLevel=ERROR"):
            words += ["-o", option]
        yield [*words, "-o", f"UserKnownHostsFile={keys}/known", "127.0.0.1"]


if __name__ == "__main__":
    from bench.measure import report

    print(report(rows()))
