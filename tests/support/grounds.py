"""Where an attack is tried: a sandbox, its builder, and the user that the runner is.

A test takes a `Ground` and runs its snippets there; to have every attack tried in one more sandbox,
add its grounds to `WALLED`. Several attacks that do not disturb each other are run in one start:
`batch` has each in a process of its own and gives the words of each.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from support import sandbox
from support.attacks import ATTACKS
from support.sandbox import Seen


@dataclass(frozen=True)
class Ground:
    """One way of running a snippet. `builder` None: whatever the sandbox has."""

    sandbox: str
    user: str
    builder: str | None = None

    def run(self, code: str, **request: Any) -> Seen:
        """See `sandbox.run`."""
        return sandbox.run(code, **self._own(), **request)

    def run_until(self, word: str, code: str, *, timeout_s: float, **request: Any) -> Seen:
        """What is seen of a snippet that its time limit ends after it told `word`: a machine that
        does not get so far in time is given more."""
        limits = request.pop("limits", {})
        for limit_s in (timeout_s, 4 * timeout_s, 16 * timeout_s):
            seen = self.run(code, limits={**limits, "timeout_s": limit_s}, **request)
            if word in seen.words:
                break
        return seen

    def started(self, code: str, **request: Any) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """See `sandbox.started`."""
        return sandbox.started(code, **self._own(), **request)

    def _own(self) -> dict[str, Any]:
        own = {"sandbox": self.sandbox, "user": self.user}
        return own if self.builder is None else {**own, "builder": self.builder}

    def __str__(self) -> str:
        return "-".join(filter(None, (self.sandbox, self.builder, self.user)))


LOCAL = tuple(Ground("local", user, name) for name in ("own", "bwrap") for user in sandbox.USERS)
AS_ROOT, AS_USER = LOCAL[::2], LOCAL[1::2]
EACH = tuple(
    pytest.param(ground, marks=pytest.mark.slow if str(ground) == "local-bwrap-root" else ())
    for ground in LOCAL
)
"""For a start of the sandbox in each test: the rarest of the four waits for the slow tests."""
WALLED = LOCAL
"""Every ground on which an attack must be held."""
CONTAINERS = tuple(Ground("docker", user) for user in sandbox.USERS)
"""Where the system that a job finds is an image's."""
EVERYWHERE = (*EACH, *(pytest.param(ground, marks=pytest.mark.slow) for ground in CONTAINERS))
"""For a start of a sandbox in each test. A container takes a second to be there."""
OPEN = Ground("process", "user")
"""No walls at all: shows that an attack is one."""

_BATCH = """
def alone(code):
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(writable, 1)
        os.closerange(3, 1 << 12)
        try:
            exec(code, globals())
        except BaseException:
            import traceback
            traceback.print_exc()
            os.write(1, b"failed")
        os._exit(0)
    os.close(writable)
    with open(readable, "rb") as words:
        told = words.read().decode()
    os.waitpid(pid, 0)
    return told
os.write(1, json.dumps({name: alone(code) for name, code in json.loads(BATCH).items()}).encode())
"""


def batch(ground: Ground, snippets: Mapping[str, str], **request: Any) -> dict[str, str]:
    """Run each snippet in one and the same sandbox; what each told. `failed` ends a failed one."""
    code = f"BATCH = {json.dumps(dict(snippets))!r}\n{_BATCH}"
    seen = ground.run(code, limits={"timeout_s": 60.0}, **request)
    assert (seen.cause, seen.exit_code) == ("exit", 0), seen.errors
    return dict(json.loads(seen.text))


@cache
def told_by(ground: Ground, names: tuple[str, ...], without: str | None) -> dict[str, list[str]]:
    """The words of these attacks of the list, tried once for every test that asks."""
    snippets = {str(attack): attack.code for attack in ATTACKS if str(attack) in names}
    layers = {"without": [without]} if without else {}
    return {name: text.split() for name, text in batch(ground, snippets, **layers).items()}
