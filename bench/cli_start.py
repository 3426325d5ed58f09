"""Start of the command line beside a bare interpreter: imports are what a command costs."""

from __future__ import annotations

from bench.measure import BIN, Row, alternate, compile_first, run


def rows() -> list[Row]:
    compile_first()
    python = str(BIN / "python")
    found = []
    for flag, target in (("--version", "≤ 1.6"), ("--help", "≤ 3")):
        ours, peer = alternate(
            lambda flag=flag: run([str(BIN / "airlox"), flag]),  # type: ignore[misc]
            lambda: run([python, "-c", "pass"]),
            times=21,
        )
        found.append(Row(f"airlox {flag}", ours, peer, "ms", "python -c pass", target))
    return found


if __name__ == "__main__":
    from bench.measure import report

    print(report(rows()))
