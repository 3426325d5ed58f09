"""Every benchmark, one table: `make bench`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench import (  # noqa: E402
    cli_start,
    mcp_start,
    relay_posts,
    relay_streams,
    run_history,
    run_output,
    run_tree,
    run_true,
    sandbox_start,
    sdk_start,
)
from bench.measure import Row, report  # noqa: E402

PARTS = (
    cli_start,
    sdk_start,
    mcp_start,
    run_true,
    run_tree,
    run_output,
    run_history,
    sandbox_start,
    relay_posts,
    relay_streams,
)


def main() -> int:
    rows: list[Row] = []
    for part in PARTS:
        print(f"{part.__name__} …", file=sys.stderr, flush=True)
        rows += part.rows()
    print(report(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
