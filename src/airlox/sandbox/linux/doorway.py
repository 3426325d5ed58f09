"""The door of a job's network: a listening socket on its loopback, handed to the runner.

A socket stays in the network it was opened in, whoever holds it. So the keeper opens one inside,
sends it out and keeps nothing: the job connects to its own loopback, and the runner, outside,
accepts. Nothing of ours carries the bytes inside, where a job could stop it, and no file is shown.

Imported by the launcher. `_socket` is loaded only where there is a door.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

ADDRESS = "127.0.0.1"
PORT = 3128

_BACKLOG = 128
_BUFFER_BYTES = 128 * 1024
"""Of each direction of a connection; the kernel takes twice as much."""


def open_door(door_fd: int) -> None:
    """Listen in the network this process is in, and send the socket out through `door_fd`."""
    if door_fd < 0:
        return
    import _socket

    listener = listen()
    way = _socket.socket(fileno=door_fd)
    rights = listener.fileno().to_bytes(4, "little")
    way.sendmsg([b"d"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    listener.close()
    way.close()


def listen() -> _socket.socket:
    """A socket that listens on the loopback of this thread's network. Raises OSError."""
    import _socket

    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        os.set_inheritable(listener.fileno(), False)
        for buffer in (_socket.SO_RCVBUF, _socket.SO_SNDBUF):
            listener.setsockopt(_socket.SOL_SOCKET, buffer, _BUFFER_BYTES)
        listener.bind((ADDRESS, PORT))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
