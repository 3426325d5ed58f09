"""Every benchmark, one table: `make bench`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench import cli_start, relay_posts, relay_streams, run_true, sandbox_start, sdk_start  # noqa: E402
from bench.measure import Row, report  # noqa: E402


def main() -> int:
    rows: list[Row] = []
    for part in (cli_start, sdk_start, run_true, sandbox_start, relay_posts, relay_streams):
        print(f"{part.__name__} …", file=sys.stderr, flush=True)
        rows += part.rows()
    print(report(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
