#!/bin/sh
# Writes the locks: requirements/airlox.txt (all that running Airlox needs) and dev.txt (that, at
# the same versions, and the tools of this repository), and fuzz.txt (what `make fuzz` adds). They
# hold for every platform and Python version we name, carry hashes, and name no registry: pip and uv
# ask the one they are set up with.
#
# Versions stay as they are where the inputs allow it; `make lock UPGRADE=1` takes newer ones.
set -eu
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}

lock() {
    output=$1
    shift
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
        ${UPGRADE:+--upgrade} --output-file "$output" "$@"
}

lock requirements/airlox.txt pyproject.toml --all-extras
lock requirements/dev.txt pyproject.toml --all-extras requirements/dev.in \
    --constraint requirements/airlox.txt
lock requirements/fuzz.txt requirements/fuzz.in
