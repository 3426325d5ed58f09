"""The program `airlox`, and `python -m airlox.cli` where its script is not on the PATH."""

from __future__ import annotations

import os

from airlox.cli.main import main

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def start() -> NoReturn:
    """Run the command line of this process and end it.

    When `main` returns, all is written, closed and joined. To take the interpreter down piece by
    piece after that is a good part of what a short command costs, and serves nobody.
    """
    os._exit(main())


if __name__ == "__main__":
    start()
