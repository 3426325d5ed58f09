"""How a launcher gets the orders of its job: one message, with descriptors.

The orders themselves lie in an anonymous file, so that giving them waits for nobody, however long
they are and however far the launcher has come. With it travel the descriptors of the one job it
will launch; until then it holds none. End of file means that there will be no job, or that there is
no runner any more.

The launcher's side; `launch.py` sends. `_socket` is loaded here, early: once the job's uid is put
on, the interpreter's files may be out of reach.
"""

from __future__ import annotations

import _socket
import os

from airlox.sandbox.linux.blueprint import Blueprint, decode

_MOST = 64
_FD_BYTES = 4


def encode_post(parent_pid: int, info_fd: int, way_fd: int) -> bytes:
    """What a launcher knows while it waits: whose it is, where it tells of failures, and where its
    orders will come from. The descriptors as it numbers them."""
    return b"%d %d %d" % (parent_pid, info_fd, way_fd)


def decode_post(data: bytes) -> tuple[int, int, int]:
    """What `encode_post` was given."""
    parent_pid, info_fd, way_fd = (int(word) for word in data.split())
    return parent_pid, info_fd, way_fd


def take(way_fd: int) -> Blueprint | None:
    """Wait for orders, put the job's outputs in place and name its descriptors as they are here.

    None when there will be no job.
    """
    way = _socket.socket(fileno=way_fd)
    word, rights, _, _ = way.recvmsg(1, _socket.CMSG_SPACE(_MOST * _FD_BYTES))
    way.close()
    if not word:
        return None
    orders_fd, stdout_fd, stderr_fd, *others = _numbers(b"".join(data for _, _, data in rights))
    with open(orders_fd, "rb") as file:
        blueprint = decode(file.read())
    for number, fd in ((1, stdout_fd), (2, stderr_fd)):
        os.dup2(fd, number)
        os.close(fd)
    if blueprint.door_fd >= 0:
        blueprint.door_fd = others.pop()
    blueprint.cgroup_fds = tuple(others)
    return blueprint


def _numbers(packed: bytes) -> list[int]:
    """Descriptors as the kernel packs them."""
    places = range(0, len(packed), _FD_BYTES)
    return [int.from_bytes(packed[at : at + _FD_BYTES], "little") for at in places]
