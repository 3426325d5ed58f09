"""One target under atheris: `python -m fuzz.child TARGET CORPUS [options of libFuzzer]`.

A process of its own: the fuzzer ends it as it likes, and its instrumentation is for the modules
that are imported under it.
"""

from __future__ import annotations

import importlib
import sys
from random import Random
from typing import Final

from .mutate import change_value

VALUES: Final = 0.3
"""Share of inputs that are made by changing a value and not some bytes."""


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

    def mutate(data: bytes, most_bytes: int, seed: int) -> bytes:
        random = Random(seed)
        made = change_value(data, random) if random.random() < VALUES else None
        if made is not None and len(made) <= most_bytes:
            return made
        changed: bytes = atheris.Mutate(data, most_bytes)
        return changed

    atheris.Setup(sys.argv, take, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
