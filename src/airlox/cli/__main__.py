"""`python -m airlox.cli`: the command line where its script is not on the PATH."""

from __future__ import annotations

import sys

from airlox.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
