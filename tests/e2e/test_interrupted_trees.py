"""Uploads of trees that break off: what has arrived is not sent again."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from airlox import Session
from support.machines import RelayProgram, RunnerProgram

WAIT_S = 120.0
FILES = 48
FILE_BYTES = 1 << 20
PACKS = FILES // 3
"""As many of these files fit into a pack."""
SENDER = """
import os, sys
from airlox import Session
from airlox.client.relay_api import RelayApi

link, cache, folder, most = *sys.argv[1:4], int(sys.argv[4])
put, done = RelayApi.put_pack, 0

def put_some(api, *words, **named):
    global done
    put(api, *words, **named)
    done += 1
    if done == most:
        os._exit(9)

RelayApi.put_pack = put_some
session = Session.join(link, cache_dir=cache)
session.run_shell(["true"], runner="box", tree=folder).wait(60)
"""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with (
        RelayProgram(tmp_path / "relay") as relay,
        Session.create(
            relay.url,
            mode="execute",
            job_limits={"kinds": ["shell"], "approve_runners": False},
            cache_dir=tmp_path / "cache",
        ) as session,
        RunnerProgram(
            session.invites["runner"], tmp_path / "runner", sandbox="local", concurrency=2
        ) as runner,
    ):
        runner.note("ready")
        yield session


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    draw = random.Random(1)
    for number in range(FILES):
        (folder / f"{number:02}").write_bytes(draw.randbytes(FILE_BYTES))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("percent", [30, 90, 100])
def test_the_next_try_sends_the_rest(
    session: Session, tmp_path: Path, tree: Path, percent: int
) -> None:
    most = 1 + PACKS * percent // 100  # the first has the index
    owner = session._core.membership.invite.url()
    argv = [sys.executable, "-c", SENDER, owner, str(tmp_path / "cache"), str(tree), str(most)]
    assert subprocess.run(argv, timeout=WAIT_S, check=False).returncode == 9
    job = session.run_shell("cat ?? | sha256sum", runner="box", tree=tree)
    result = job.wait(WAIT_S)
    whole = b"".join(path.read_bytes() for path in sorted(tree.iterdir()))
    assert result.stdout.split()[0] == sha256(whole).hexdigest()
    assert job.upload is not None
    rest = FILES * FILE_BYTES * (100 - percent) // 100
    assert job.upload.sent_bytes < rest + (5 << 20)
