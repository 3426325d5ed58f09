"""One target under atheris: `python -m fuzz.child TARGET CORPUS [options of libFuzzer]`.

A process of its own: the fuzzer ends it as it likes, and its instrumentation is for the modules
that are imported under it.
"""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    atheris = importlib.import_module("atheris")
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=["airlox"]):
        targets = importlib.import_module("fuzz.targets")
    accepts = importlib.import_module("fuzz.target").accepts
    target = targets.TARGETS[name]
    list(target.seeds())  # what is made once is no part of the first input's time

    def take(data: bytes) -> None:
        accepts(target, data)

    atheris.Setup(sys.argv, take)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
