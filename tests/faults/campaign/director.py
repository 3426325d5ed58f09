"""Sets a campaign's stage, draws faults from the seed, heals them, and brings all to rest."""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from airlox import Session
from airlox.errors import AirloxError
from support.ports import free_port

from .people import Settings
from .processes import Process
from .surroundings import RELAY_ADDRESS, Clock, Disk, Line, Network

GRACE_S = 5
TICK_S = 0.1
START_S = 120.0
SETTLE_S = 120.0
RELAY_DISK_MB, OTHER_DISK_MB = 192, 96
RELAY_FLAGS = {
    "--runner-grace": f"{GRACE_S}s",
    "--claim-timeout": "5s",
    "--cancel-timeout": "5s",
    "--online-timeout": "5s",
    "--stall-timeout": "5s",
    "--keepalive": "2s",
    "--stream-queue-bytes": "64K",
    "--journal-segment-bytes": "256K",
    "--min-free-bytes": "1M",
    "--joins-per-minute": "0",
}


class Size(NamedTuple):
    """How large a campaign is: its seed, time, bounds over all people, and how many of these
    send items, and how many jobs; half as many read."""

    seed: int
    seconds: float
    items: int = 100_000
    jobs: int = 10_000
    people: int = 4


@dataclass
class Actor:
    """A process with its surroundings, as far as this machine can make them."""

    process: Process
    kind: str
    clock: Clock
    line: Line | None = None
    disk: Disk | None = None
    offsets_s: Sequence[int] = Clock.SMALL_S
    wanted: bool = True
    """Whether it is to be started again when it is found dead."""
    hurt: set[str] = field(default_factory=set)


class Stage:
    """Folders and actors of one campaign. `network` is None where nothing can be cut."""

    def __init__(self, root: Path, size: Size, *, inside: bool) -> None:
        self.root = root
        self.size = size
        self.network = Network() if inside else None
        self.disks: list[Disk] = []
        self.stop = root / "stop"
        self.marker = f"7{os.getpid()}.{size.seed % 1000}1"
        for name in ("journals", "logs", "tmp", "ledger", "clocks"):
            (root / name).mkdir()
        (root / "ledger").chmod(0o777)
        host = RELAY_ADDRESS if inside else "127.0.0.1"
        port = free_port(host)
        self.url = f"http://{host}:{port}"
        self.relay = self._relay(f"{host}:{port}")
        self.runners: list[Actor] = []
        self.people: list[Actor] = []

    @property
    def actors(self) -> list[Actor]:
        return [self.relay, *self.runners, *self.people]

    @property
    def readers(self) -> list[Actor]:
        return [actor for actor in self.people if actor.kind == "read"]

    def cast(self, invites: Mapping[str, str]) -> None:
        """Everybody but relay and owner."""
        for sandbox in ("process", "process", *(("local",) if self.network else ())):
            self.runners.append(self._runner(len(self.runners), sandbox, invites["runner"]))
        size = self.size
        items, jobs = size.items // size.people, size.jobs // size.people
        for n in range(size.people):
            self.people.append(self._person("items", f"items{n}", invites["sender"], items))
            self.people.append(self._person("jobs", f"jobs{n}", invites["sender"], jobs))
        for n in range((size.people + 1) // 2):
            self.people.append(self._person("read", f"read{n}", invites["observer"], 0))

    def journal(self, name: str) -> Path:
        return self.root / "journals" / f"{name}.jsonl"

    def close(self) -> None:
        for actor in self.actors:
            actor.process.signal(signal.SIGCONT)
            actor.process.kill()
        if self.network is not None:
            self.network.close()
        for disk in self.disks:
            disk.close()

    # -- one actor ---------------------------------------------------------------------------

    def _relay(self, listen: str) -> Actor:
        disk, folder = self._disk("relay", RELAY_DISK_MB)
        flags = [f"{name}={value}" for name, value in RELAY_FLAGS.items()]
        argv = ["-m", "airlox.relay", f"--data={folder / 'data'}"]
        return self._actor("relay", "relay", [*argv, f"--listen={listen}", *flags], disk=disk)

    def _runner(self, number: int, sandbox: str, invite: str) -> Actor:
        name = f"box{number}"
        disk, folder = self._disk(name, OTHER_DISK_MB)
        options = {
            "name": name,
            "cache_root": str(folder / "cache"),
            "sandbox": sandbox,
            "concurrency": 3,
            "disk_floor_bytes": 4 << 20,
        }
        main = Path(__file__).parents[2] / "support" / "runner_main.py"
        argv = [str(main), json.dumps(options)]
        return self._actor("runner", name, argv, disk=disk, invite=invite, apart=True)

    def _person(self, mode: str, name: str, invite: str, most: int) -> Actor:
        disk, folder = self._disk(name, OTHER_DISK_MB)
        argv = self._argv(mode, name, folder, most)
        actor = self._actor(mode, name, argv, disk=disk, invite=invite, apart=True)
        actor.offsets_s = Clock.OFFSETS_S
        return actor

    def final_view(self, actor: Actor) -> Process:
        """The program that tells what this person has in the end."""
        name = actor.process.name
        settings = Settings(**json.loads(actor.process.argv[-1]))
        last = settings._replace(mode="tell", journal=str(self.journal(f"{name}.final")))
        return actor.process.like([*actor.process.argv[:-1], json.dumps(last._asdict())])

    def _argv(self, mode: str, name: str, folder: Path, most: int) -> list[str]:
        settings = Settings(
            mode=mode,
            name=name,
            folder=str(folder / "cache"),
            journal=str(self.journal(name)),
            stop=str(self.stop),
            ledger=str(self.root / "ledger"),
            marker=self.marker,
            seed=self.size.seed,
            most=most,
            pause_s=0.02 if mode == "items" else 0.05,
        )
        program = str(Path(__file__).with_name("people.py"))
        return [program, json.dumps(settings._asdict())]

    def _disk(self, name: str, megabytes: int) -> tuple[Disk | None, Path]:
        folder = self.root / "disks" / name
        if self.network is None:
            folder.mkdir(parents=True)
            return None, folder
        self.disks.append(disk := Disk(folder, megabytes))
        return disk, folder

    def _actor(
        self,
        kind: str,
        name: str,
        argv: list[str],
        *,
        disk: Disk | None,
        invite: str = "",
        apart: bool = False,
    ) -> Actor:
        line = self.network.add() if self.network is not None and apart else None
        clock = Clock(self.root / "clocks" / name)
        clocked = str(Path(__file__).with_name("clocked.py"))
        environ = {"TMPDIR": str(self.root / "tmp"), "TEST_INVITE": invite}
        process = Process(
            name,
            [sys.executable, clocked, str(clock.path), *argv],
            log=self.root / "logs" / name,
            prefix=() if line is None else line.way_in,
            environ=environ,
        )
        return Actor(process, kind, clock, line, disk)


class Fault(NamedTuple):
    """A kind of fault: how often, whom it can hit, and what begins it.

    `begin` gives what heals it and after how many seconds, or None when it could not begin.
    """

    name: str
    weight: int
    victims: Callable[[], Sequence[Actor]]
    begin: Callable[[Actor], tuple[float, Callable[[], None]] | None]


class Director:
    """Plays one campaign on a stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._chance = random.Random(stage.size.seed)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.faults: Counter[str] = Counter()

    # -- the course of things ----------------------------------------------------------------

    def open(self) -> Session:
        """Start the relay and everybody; the owner's session, with all runners approved, once
        everybody is at work."""
        self._stage.relay.process.start()
        until = time.monotonic() + START_S
        while True:
            try:
                owner = self._create()
                break
            except AirloxError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        self._stage.cast(owner.invites)
        for actor in self._stage.actors[1:]:
            actor.process.start()
        self._approve(owner, {actor.process.name for actor in self._stage.runners}, until)
        self._await_work(owner, until)
        return owner

    def _create(self) -> Session:
        return Session.create(
            self._stage.url,
            mode="execute",
            ttl="12h",
            job_limits={"runtime": f"python3.{sys.version_info[1]}", "kinds": ["shell"]},
            cache_dir=self._stage.root / "owner",
        )

    def _approve(self, owner: Session, names: set[str], until: float) -> None:
        while names:
            if time.monotonic() > until:
                raise RuntimeError(f"did not join: {sorted(names)}")
            for runner in owner.runners():
                if runner.name in names:
                    owner.approve_runner(runner)
                    names.remove(runner.name)
            time.sleep(0.1)

    def _await_work(self, owner: Session, until: float) -> None:
        """Wait for the end of a first job, where jobs are sent."""

        def has_ended() -> bool:
            results = [job.result() for job in owner.jobs()]
            return any(result is not None and result.signed for result in results)

        while self._stage.size.jobs and not has_ended():
            if time.monotonic() > until:
                raise RuntimeError("no job came to its end")
            time.sleep(0.1)

    def play(self) -> None:
        """Hurt and heal until the time is over, then heal everything."""
        until = time.monotonic() + self._stage.size.seconds
        next_fault = time.monotonic() + 1
        while (now := time.monotonic()) < until:
            self._heal(now)
            self._revive()
            if now >= next_fault:
                self._draw()
                next_fault = now + self._chance.uniform(0.2, 1.5)
            time.sleep(TICK_S)
        while self._due:
            heapq.heappop(self._due)[2]()
        self._revive()

    def rest(self, owner: Session) -> None:
        """Let people finish, and every job come to its end, as far as it does in time."""
        self._stage.stop.touch()
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until:
            for actor in self._stage.people:
                actor.wanted = actor.process.runs
            self._revive()
            if not any(a.wanted for a in self._stage.people) and self._all_ended(owner):
                return
            time.sleep(0.5)

    def _all_ended(self, owner: Session) -> bool:
        """Whether every job has an end, and no runner has more to say."""
        try:
            ended = all(job.result() is not None for job in owner.jobs())
        except AirloxError:
            return False
        spools = self._stage.root.glob("disks/box*/cache/runner/ax_*/*/spool/*")
        return ended and not any(spools)

    # -- faults ------------------------------------------------------------------------------

    def _kinds(self) -> list[Fault]:
        stage = self._stage
        everyone = stage.actors
        return [
            Fault("kill relay", 3, lambda: [stage.relay], self._kill),
            Fault("kill runner", 3, lambda: stage.runners, self._kill),
            Fault("kill person", 6, lambda: stage.people, self._kill),
            Fault("short cut", 3, lambda: [a for a in everyone if a.line], self._cut_short),
            Fault("long cut", 2, lambda: [a for a in stage.runners if a.line], self._cut_long),
            Fault("cut of many", 1, lambda: [stage.relay] if stage.network else [], self._cut_all),
            Fault("full disk", 3, lambda: [a for a in everyone if a.disk], self._fill),
            Fault("read-only disk", 3, lambda: [a for a in everyone if a.disk], self._lock),
            Fault("stopped reader", 3, lambda: stage.readers, self._pause),
            Fault("stopped process", 1, lambda: everyone, self._pause),
            Fault("wrong clock", 4, lambda: everyone, self._turn),
        ]

    def _draw(self) -> None:
        kinds = [kind for kind in self._kinds() if kind.victims()]
        kind = self._chance.choices(kinds, [kind.weight for kind in kinds])[0]
        victim = self._chance.choice(kind.victims())
        word = kind.name.split()[-1]
        if word in victim.hurt:
            return
        begun = kind.begin(victim)
        if begun is None:
            return
        self.faults[kind.name] += 1
        victim.hurt.add(word)
        after_s, heal = begun

        def end() -> None:
            heal()
            victim.hurt.discard(word)

        heapq.heappush(self._due, (time.monotonic() + after_s, next(self._count), end))

    def _kill(self, victim: Actor) -> tuple[float, Callable[[], None]] | None:
        if not victim.process.runs:
            return None
        victim.process.kill()
        victim.wanted = False
        longest = 2 * GRACE_S if victim.kind == "runner" else 3

        def want() -> None:
            victim.wanted = True

        return self._chance.uniform(0, longest), want

    def _cut_short(self, victim: Actor) -> tuple[float, Callable[[], None]]:
        return self._cut([victim], self._chance.uniform(1, GRACE_S - 2))

    def _cut_long(self, victim: Actor) -> tuple[float, Callable[[], None]]:
        longest = max(2 * GRACE_S + 5, self._stage.size.seconds / 5)
        return self._cut([victim], self._chance.uniform(GRACE_S + 2, min(longest, 600)))

    def _cut_all(self, victim: Actor) -> tuple[float, Callable[[], None]]:
        cut = [actor for actor in self._stage.actors if actor.line]
        return self._cut(cut, self._chance.uniform(1, 2 * GRACE_S))

    def _cut(self, victims: list[Actor], for_s: float) -> tuple[float, Callable[[], None]]:
        lines = [victim.line for victim in victims if victim.line]
        for line in lines:
            line.cut()

        def mend() -> None:
            for line in lines:
                line.mend()

        return for_s, mend

    def _fill(self, victim: Actor) -> tuple[float, Callable[[], None]]:
        assert victim.disk is not None
        victim.disk.fill()
        return self._chance.uniform(0.5, 4), victim.disk.empty

    def _lock(self, victim: Actor) -> tuple[float, Callable[[], None]] | None:
        assert victim.disk is not None
        if not victim.disk.lock():
            return None
        return self._chance.uniform(0.5, 4), victim.disk.unlock

    def _pause(self, victim: Actor) -> tuple[float, Callable[[], None]]:
        victim.process.signal(signal.SIGSTOP)
        return self._chance.uniform(1, 12), lambda: victim.process.signal(signal.SIGCONT)

    def _turn(self, victim: Actor) -> tuple[float, Callable[[], None]]:
        victim.clock.set(self._chance.choice(victim.offsets_s))
        return self._chance.uniform(1, 20), lambda: None

    def _heal(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()

    def _revive(self) -> None:
        for actor in self._stage.actors:
            if actor.wanted and not actor.process.runs:
                done = actor.process.by_itself and actor.process.by_itself[-1] == 0
                if not (done and actor in self._stage.people):
                    actor.process.start()
