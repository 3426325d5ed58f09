"""Jobs behind an allow list: relay, runner, resolver and hosts are real. Numbers: attack list."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airlox import Session
from airlox.client.jobs import Result
from support.internet import (
    HOST,
    HOST_6,
    METADATA,
    NAME,
    OTHER_HOST,
    OWN,
    PRIVATE,
    Internet,
    internet,
    processes_in,
)
from support.machines import RelayProgram, RunnerProgram
from support.outside import ECHO, LOUD

RUNTIME = f"python3.{sys.version_info[1]}"
WAIT_S = 60.0
NAMES = {
    f"cdn.{NAME}": [[HOST, HOST_6]],
    f"inner.{NAME}": [[PRIVATE]],
    f"mixed.{NAME}": [[HOST, PRIVATE]],
    f"own.{NAME}": [[OWN]],
    f"turning.{NAME}": [[OTHER_HOST], [PRIVATE]],
    f"silent.{NAME}": [],
}
HOSTS = [NAME, f"*.{NAME}", f"*.{NAME}:{ECHO}", f"{NAME}:{LOUD}"]
PROGRAM = """
import http.client, os, socket, ssl, sys, urllib.request
open("root.pem", "w").write({root!r})
context = ssl.create_default_context(cafile="root.pem")
def fetch(url, data=None, method=None):
    request = urllib.request.Request(url, data, method=method)
    with urllib.request.urlopen(request, timeout=20, context=context) as answer:
        return answer.read()
def tunnel(target):
    connection = socket.create_connection(("127.0.0.1", 3128), 20)
    connection.sendall(f"CONNECT {{target}} HTTP/1.1\\r\\n\\r\\n".encode())
    answer = b""
    while not answer.endswith(b"\\r\\n\\r\\n"):
        answer += connection.recv(1)
    print(target, answer.split()[1].decode(), flush=True)
    return connection
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    with internet(tmp_path_factory.mktemp("internet"), NAMES) as made:
        yield made


@pytest.fixture(scope="module")
def relay(net: Internet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProgram]:
    with RelayProgram(tmp_path_factory.mktemp("relay")) as program:
        yield program


class Bench:
    """A session and its runner, which lets jobs through to `HOSTS`."""

    def __init__(self, session: Session, runner: RunnerProgram, net: Internet) -> None:
        self.session = session
        self.runner = runner
        self._prelude = PROGRAM.format(root=net.files.root.read_text())

    def start(self, code: str) -> Any:
        return self.session.run_python(self._prelude + code, runner="box")

    def run(self, code: str) -> Result:
        result: Result = self.start(code).wait(WAIT_S)
        assert result.exit_code == 0, result.stderr
        return result


@contextmanager
def bench(
    net: Internet, relay: RelayProgram, folder: Path, *, full: bool = True, network: bool = True
) -> Iterator[Bench]:
    kinds = {"kinds": ["python", "shell"]} if full else {}
    terms = {"approve_runners": False, "runtime": RUNTIME, "network": network, "memory_mb": 256}
    with (
        Session.create(
            relay.url, mode="execute", job_limits={**terms, **kinds}, cache_dir=folder / "owner"
        ) as session,
        RunnerProgram(
            session.invites["runner"],
            folder / "runner",
            way_in=net.way_in,
            sandbox="local",
            allow_hosts=HOSTS,
        ) as runner,
    ):
        runner.note("ready")
        yield Bench(session, runner, net)


@pytest.fixture(scope="module")
def listed(
    net: Internet, relay: RelayProgram, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    with bench(net, relay, tmp_path_factory.mktemp("bench")) as made:
        yield made
        assert made.runner.stop() == 0


class TestLetThrough:
    def test_https_both_ways(self, listed: Bench) -> None:
        size = 20_000_000
        result = listed.run(
            f"print(fetch('https://{NAME}/'))\n"
            f"print(fetch('https://{NAME}/', bytes({size}), 'PUT'))\n"
            f"print(len(fetch('https://{NAME}/{size}')))\n"
        )
        assert result.stdout.split() == ["b'got", "0'", "b'got", f"{size}'", str(size)]
        assert result.env is not None
        assert result.env.network == "allow_list"
        assert result.env.hosts == tuple(
            sorted([f"{NAME}:443", f"*.{NAME}:443", f"*.{NAME}:{ECHO}", f"{NAME}:{LOUD}"])
        )
        assert result.env.layers["network"] == 1
        assert result.egress is not None
        assert result.egress.connections == 3
        assert result.egress.denials == 0
        assert result.egress.sent_bytes > size
        assert result.egress.received_bytes > size

    def test_a_job_that_stays_at_home_has_nothing_to_tell(self, listed: Bench) -> None:
        assert listed.run("print(1)").egress is None

    def test_the_runner_stays_small(self, listed: Bench) -> None:
        """Its memory is the same whether a job moves much or little."""
        for size in (1_000_000, 100_000_000):
            listed.run(f"assert len(fetch('https://{NAME}/{size}')) == {size}")
            if size == 1_000_000:
                before = _peak_kb(listed.runner.pid)
        assert _peak_kb(listed.runner.pid) - before < 16_000


class TestBlocked:
    def test_what_no_one_allowed(self, net: Internet, listed: Bench) -> None:  # 44
        targets = [
            "other.org:443",
            f"{NAME}:80",
            f"a.b.{NAME}:443",
            f"{METADATA}:80",
            f"{HOST}:{ECHO}",
            "127.0.0.1:22",
            "[::1]:22",
            "localhost:443",
        ]
        before = net.connections()
        result = listed.run(f"for target in {targets}: tunnel(target)")
        assert result.stdout.split() == [word for each in targets for word in (each, "403")]
        assert result.egress is not None
        assert result.egress.denials == len(targets)
        assert result.egress.denied
        assert [denied.target for denied in result.egress.denied] == targets
        assert result.egress.denied[0].text == (
            "blocked: other.org:443; allow with --allow-host other.org:443 on the runner"
        )
        assert net.connections() == before

    def test_names_that_lead_astray(self, net: Internet, listed: Bench) -> None:  # 45
        names = [f"{name}.{NAME}:{ECHO}" for name in ("inner", "mixed", "own")]
        before = net.connections()
        result = listed.run(f"for target in {names}: tunnel(target)")
        assert result.stdout.split()[1::2] == ["403"] * len(names)
        assert result.egress is not None
        assert {denied.reason for denied in result.egress.denied or ()} == {"not_public"}
        assert net.connections() == before

    def test_an_answer_that_changes(self, net: Internet, listed: Bench) -> None:  # 45
        before = len(net.connections())
        result = listed.run(f"for _ in range(2): tunnel('turning.{NAME}:{ECHO}')")
        assert result.stdout.split()[1::2] == ["200", "403"]
        assert net.connections()[before:] == [f"{OTHER_HOST} {ECHO}"]

    def test_a_name_server_that_says_nothing(self, listed: Bench) -> None:
        result = listed.run(f"tunnel('silent.{NAME}:443'); tunnel('{NAME}:443')")
        assert result.stdout.split()[1::2] == ["502", "200"]

    def test_going_round_the_proxy(self, net: Internet, listed: Bench) -> None:  # 46
        before = net.connections()
        result = listed.run(
            f"""
import errno
def told(action, *arguments):
    try:
        action(*arguments)
        print("done")
    except OSError as error:
        print(errno.errorcode.get(error.errno, type(error).__name__))
for address in {[HOST, HOST_6, METADATA, OWN]}:
    told(socket.create_connection, (address, {ECHO}), 5)
    udp = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    told(udp.sendto, b"x", (address, 53))
told(socket.getaddrinfo, "{NAME}", 443)
told(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
told(socket.socket, socket.AF_INET6, socket.SOCK_RAW, 58)
told(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
"""
        )
        assert result.stdout.split() == [
            *["ENETUNREACH"] * 8,
            "gaierror",
            *["EPERM"] * 2,
            "EAFNOSUPPORT",
        ]
        assert net.connections() == before


class TestTerms:
    def test_a_floor_session_tells_in_its_output(
        self, net: Internet, relay: RelayProgram, tmp_path: Path
    ) -> None:
        with bench(net, relay, tmp_path, full=False) as made:
            result = made.run(f"print(fetch('https://{NAME}/')); tunnel('other.org:443')")
        assert result.stdout.split() == ["b'got", "0'", "other.org:443", "403"]
        assert result.egress is None
        assert result.stderr == (
            "[airlox: blocked: other.org:443; allow with --allow-host other.org:443 "
            "on the runner]\n"
        )

    def test_a_session_without_network_has_none(
        self, net: Internet, relay: RelayProgram, tmp_path: Path
    ) -> None:
        with bench(net, relay, tmp_path, network=False) as made:
            result = made.run(
                "print(os.environ.get('https_proxy'))\n"
                "print(socket.socket().connect_ex(('127.0.0.1', 3128)))"
            )
            assert made.runner.notes("warning")[0]["text"].startswith("this session allows no net")
        assert result.stdout.split() == ["None", "111"]
        assert result.env is not None
        assert result.env.network == "off"

    def test_a_runner_that_is_killed_leaves_nothing(
        self, net: Internet, relay: RelayProgram, tmp_path: Path
    ) -> None:
        with bench(net, relay, tmp_path) as made:
            job = made.start(
                f"loud = tunnel('{NAME}:{LOUD}')\n"
                "print(os.readlink('/proc/self/ns/net'), flush=True)\n"
                "while loud.recv(65536): pass"
            )
            output = b""
            for piece in job.output(WAIT_S):
                output += piece.data
                if b"net:[" in output and output.endswith(b"\n"):
                    break
            network = output.split()[-1].decode()
            assert processes_in(network)
            made.runner.kill()
            deadline = time.monotonic() + WAIT_S
            while processes_in(network):
                assert time.monotonic() < deadline
                time.sleep(0.02)


def _peak_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])
