"""`airlox run` on several machines at once: `--on a,b,c`, and `--on pool/label --all`.

Each place has a job of its own, a prefix in the output, a thread, and a closing line. One that is
not there, or refuses, counts as failed; the others go on. The exit code is the first that is not 0,
in the order in which the places were given; runners of `--all` are in the order of their names.

Ctrl-C cancels all jobs and waits for their ends; a second one leaves at once.
"""

from __future__ import annotations

import os
import threading
import time
from argparse import Namespace
from contextlib import ExitStack, nullcontext, suppress

from airlox.cli import ending, opening, options, tree
from airlox.cli import run as running
from airlox.cli.chorus import Chorus
from airlox.cli.main import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_NO_RESULT, exit_code
from airlox.cli.waiting import Waiting
from airlox.errors import AirloxError, JobRefused, WaitTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from airlox.cli.chorus import Part
    from airlox.cli.output import Voice
    from airlox.client.jobs import Job, Result
    from airlox.client.machines import Machine
    from airlox.client.session import Session
    from airlox.client.shown import Runner

PLACES = 64
"""Most jobs of one command: each has a thread, and connections of its own."""
_LEAVE_S = 2.0


def run(args: Namespace, voice: Voice) -> int:
    named = _named(args)
    machines = {name: opening.machines(args).get(name.partition("/")[0]) for name in named}
    source = running.read_source(args)
    chorus = Chorus(json=voice.json, quiet=args.quiet)
    with ExitStack() as stack:
        sites: dict[str, _Site] = {}
        for machine in machines.values():
            if machine.name not in sites:
                sites[machine.name] = site = _Site(args, machine, chorus.part(machine.name))
                stack.callback(site.close)
        places: dict[tuple[str, str], _Place] = {}
        for name in named:
            for place in _places(args, name, sites[machines[name].name]):
                # a runner that several labels fit gets one job
                which = place.args.runner or place.name
                places.setdefault((place.site.machine.name, which), place)
        return _Crowd(list(places.values()), source, chorus, voice).run()


def _named(args: Namespace) -> list[str]:
    """The places of `--on`. Raises CommandLineError for flags that do not go together."""
    named = options.words(args.on or "")
    if not named:
        raise options.CommandLineError(
            "--all needs a machine", hint="write --on NAME --all, or --on NAME/LABEL --all"
        )
    if args.runner is not None:
        raise options.CommandLineError(
            "--runner names one runner, and this is for several",
            hint="--on NAME/LABEL chooses among the runners of a machine",
        )
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise options.CommandLineError(f"{twice[0][:63]!r} is named twice")
    return named


class _Site:
    """A machine's session, opened when the first of its places needs it and shared by all."""

    def __init__(self, args: Namespace, machine: Machine, voice: Part) -> None:
        self.machine = machine
        self._args = args
        self._voice = voice
        self._opening = threading.Lock()
        self.sending = threading.Lock()
        """One at a time sends its tree: the first looks at the files, the others find them looked
        at, and they share the way to the relay anyhow."""
        self._session: Session | None = None
        self._files: list[Any] | None = None

    def session(self) -> Session:
        """Raises AirloxError, each time anew."""
        with self._opening:
            if self._session is None:
                self._session = opening.open_machine(self._args, self._voice, self.machine)
            return self._session

    def files(self) -> list[Any]:
        """The input files on their relay, sent once."""
        session = self.session()
        with self._opening:
            if self._files is None:
                self._files = running.send_inputs(self._args, session)
            return self._files

    def close(self) -> None:
        """End what the session waits for, at once: whoever opens it just now is not waited for."""
        if self._session is not None:
            self._session.disconnect()


class _Place:
    """One job to be: where it goes, and what a command line for it alone would say."""

    def __init__(
        self, name: str, site: _Site, args: Namespace, *, error: AirloxError | None = None
    ) -> None:
        self.name = name
        self.site = site
        self.args = args
        self.error = error
        """Why there is nothing to send a job to."""


def _places(args: Namespace, named: str, site: _Site) -> list[_Place]:
    """The places that a name of `--on` stands for: itself, or with `--all` each runner there."""
    if not args.all:
        return [_Place(named, site, _own(args, named))]
    labels = {*options.flat(args.label), *options.words(named.partition("/")[2])}
    try:
        runners = _fitting(site, labels)
    except AirloxError as error:
        return [_Place(named, site, args, error=error)]
    alone = "," not in (args.on or "")
    names = [runner.name for runner in runners]
    places = []
    for runner in runners:
        called = runner.name if names.count(runner.name) == 1 else runner.fingerprint
        name = called if alone else f"{site.machine.name}/{called}"
        own = _own(args, name, on=site.machine.name, runner=runner.participant_pub, label=None)
        places.append(_Place(name, site, own))
    return places


def _fitting(site: _Site, labels: set[str]) -> list[Runner]:
    """Runners that would take a job with these labels, by name. Raises JobRefused without one."""
    runners = site.session().runners()
    able = [r for r in runners if r.approved and r.online and not (r.rejected or r.left)]
    fitting = [runner for runner in able if labels <= set(runner.labels)]
    if not fitting:
        opening.check_open(site.session())
        of = f" with {', '.join(sorted(labels))}" if labels else ""
        raise JobRefused(
            f"no runner of {site.machine.name}{of} is online and approved",
            code="no_runner_available",
            hint="see which there are: airlox machine ls",
        )
    return sorted(fitting, key=lambda runner: (runner.name, runner.participant_pub))


def _own(args: Namespace, name: str, **changes: Any) -> Namespace:
    """The command line for one place. Files of each go to a folder of its name."""
    own: dict[str, Any] = vars(args) | {"on": name} | changes
    if args.out_dir is not None:
        own["out_dir"] = os.path.join(args.out_dir, *name.split("/"))
    return Namespace(**own)


class _Crowd:
    """The jobs of one command, each in a thread."""

    def __init__(self, places: list[_Place], source: str, chorus: Chorus, voice: Voice) -> None:
        """Raises CommandLineError for too many."""
        if len(places) > PLACES:
            raise options.CommandLineError(
                f"{len(places)} places are more than one command may have ({PLACES})"
            )
        chorus.align(place.name for place in places)
        self._voice = voice
        self._stopping = threading.Event()
        self._sites = {place.site for place in places}
        self._seats = [
            _Seat(place, source, chorus.part(place.name), self._stopping.is_set, self._failed)
            for place in places
        ]
        self._broken = False

    def run(self) -> int:
        threads = [threading.Thread(target=seat.work, daemon=True) for seat in self._seats]
        with running.CtrlC(self, self._voice):
            try:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            except BaseException:
                self._leave(threads)
                raise
        if self._broken:
            raise BrokenPipeError
        self._tell_failed()
        return next((seat.code for seat in self._seats if seat.code), 0)

    def cancel(self) -> None:
        """Cancel every job that has not ended; what was not sent yet stays unsent."""
        self._stopping.set()
        threads = [threading.Thread(target=seat.cancel, daemon=True) for seat in self._seats]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _failed(self, error: BaseException) -> None:
        """Nobody reads the output any more: jobs that go on unseen help nobody."""
        if isinstance(error, BrokenPipeError) and not self._broken:
            self._broken = True
            self.cancel()

    def _leave(self, threads: Sequence[threading.Thread]) -> None:
        """End every wait at once; the jobs go on."""
        for seat in self._seats:
            seat.leave()
        for site in self._sites:
            site.close()
        until = time.monotonic() + _LEAVE_S
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))

    def _tell_failed(self) -> None:
        failed = [seat.name for seat in self._seats if seat.code]
        if failed:
            done = len(self._seats) - len(failed)
            self._voice.note(f"{done} of {len(self._seats)} succeeded; not: {', '.join(failed)}")


class _Seat:
    """One job and its thread. `code` is its exit code, once `work` has ended."""

    def __init__(
        self,
        place: _Place,
        source: str,
        voice: Part,
        is_stopping: Callable[[], bool],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.name = place.name
        self.code = EXIT_ERROR
        self._place = place
        self._source = source
        self._voice = voice
        self._is_stopping = is_stopping
        self._on_failure = on_failure
        self._job: Job | None = None
        self._cancelling = threading.Lock()
        self._is_cancelled = False

    def work(self) -> None:
        try:
            self.code = self._work()
        except AirloxError as error:
            self.code = self._tell(error)
        except BaseException as error:
            # said as anywhere else: a bug by its place, a reader that left not at all
            self.code = exit_code(error, self._voice)
            self._on_failure(error)

    def cancel(self) -> None:
        """Cancel the job, once, where there is one."""
        with self._cancelling:
            if self._job is None or self._is_cancelled:
                return
            self._is_cancelled = True
        try:
            self._job.cancel()
        except AirloxError as error:
            self._voice.warn(f"the job could not be cancelled: {error}")

    def leave(self) -> None:
        """End the wait and say nothing more."""
        self._voice.mute()
        if self._job is not None:
            self._job.close()

    def _work(self) -> int:
        if self._place.error is not None:
            raise self._place.error
        job = self._send()
        if job is None:
            self._voice.note("not sent")
            return EXIT_INTERRUPTED
        if self._place.args.no_wait:
            return running.print_id(job, self._place.args, self._voice)
        return self._follow(job)

    def _send(self) -> Job | None:
        """The posted job; None where all was cancelled before."""
        args, site = self._place.args, self._place.site
        session = site.session()
        files = site.files()
        with site.sending if args.tree else nullcontext():
            if self._is_stopping():
                return None
            job = running.post(args, session, site.machine, self._source, files)
        with self._cancelling:
            self._job = job
        if self._is_stopping():
            self.cancel()
        opening.remember_job(args, site.machine, job.id)
        if job.upload is not None:
            tree.warn(job.upload, self._voice)
        if not args.no_wait:
            self._voice.note(running.first_line(session, job, args.on), "bold")
        return job

    def _follow(self, job: Job) -> int:
        args = self._place.args
        waits = Waiting(job, self._voice, self.name, lambda: self.name)
        result = running.show(job, self._voice, wait_s=args.wait, on_status=waits.hear)
        ending.tell(result, ending.save_files(result, args.out_dir), self._voice)
        return self._code_of(result)

    def _code_of(self, result: Result) -> int:
        if self._is_stopping() and "cancelled" in (result.status, result.reason):
            return EXIT_INTERRUPTED
        return ending.exit_code(result)

    def _tell(self, error: AirloxError) -> int:
        """Say why a place has no result; its exit code."""
        error = opening.told_of(self._place.site.machine, error)
        if not self._voice.json:
            return exit_code(error, self._voice)
        if not isinstance(error, WaitTimeout) or self._job is None:
            self._voice.document(running.refusal_shape(error))
            return EXIT_ERROR
        state = "unknown"
        with suppress(AirloxError):
            state = self._job.state().state
        self._voice.document({"job": self._job.id, "status": state})
        return EXIT_NO_RESULT
