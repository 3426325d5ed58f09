#!/bin/sh
# Writes the locks: requirements/airlox.txt (all that running Airlox needs) and dev.txt (that, at
# the same versions, and the tools of this repository). Both hold for every platform and Python
# version we name, carry hashes, and name no registry: pip and uv ask the one they are set up with.
#
# Versions stay as they are where the inputs allow it; `make lock UPGRADE=1` takes newer ones.
set -eu
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}

lock() {
    output=$1
    shift
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
        ${UPGRADE:+--upgrade} --output-file "$output" pyproject.toml --all-extras "$@"
}

lock requirements/airlox.txt
lock requirements/dev.txt requirements/dev.in --constraint requirements/airlox.txt
