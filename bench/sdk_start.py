"""What `from airlox import Session` costs, beside the standard library's `http.client`."""

from __future__ import annotations

from bench.measure import BIN, Row, alternate, compile_first, run


def rows() -> list[Row]:
    compile_first()
    python = str(BIN / "python")
    ours, peer = alternate(
        lambda: run([python, "-c", "from airlox import Session; Session"]),
        lambda: run([python, "-c", "import http.client"]),
        times=21,
    )
    return [Row("from airlox import Session", ours, peer, "ms", "import http.client", "–")]


if __name__ == "__main__":
    from bench.measure import report

    print(report(rows()))
