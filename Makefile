# The commands of this repository. `make` alone lists them.

PYTHON ?= python3
BIN := .venv/bin
# What `make demo` runs on the "other machine", in the working tree that it sent there.
DEMO ?= python -m pytest -q -p no:cacheprovider tests/protocol
# How long `make faults` makes faults, and `make fuzz` works on each parser.
SECONDS ?= 120
# What `make faults` draws its faults from.
SEED ?= 1
# One parser for `make fuzz` (tests/fuzz/targets.py names them), and a file with one input for it.
TARGET ?=
REPLAY ?=
# A folder, file or test for `make test`; any options of pytest.
ARGS ?=
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal -q

.DEFAULT_GOAL := help
.PHONY: help setup demo check format test test-all faults fuzz interop bench vectors man lock
.PHONY: check-format check-lint check-types check-imports check-tree

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv with everything in it: .venv/bin/airlox, .venv/bin/airlox-server
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "airlox: $(PYTHON) is missing: sudo apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) tools/make_venv.py

demo: setup ## run this tree's tests in a sandbox on "another machine", through a relay of its own
	@command -v git >/dev/null 2>&1 || { echo "airlox: git is missing: sudo apt-get install git" >&2; exit 1; }
	@$(BIN)/airlox demo --tree -- $(DEMO)

check: check-format check-lint check-types check-imports check-tree ## all checks of the code (-k: go on after a failure)

check-format: setup
	$(BIN)/ruff format --check --quiet .

check-lint: setup
	$(BIN)/ruff check --quiet .

check-types: setup
	$(BIN)/mypy --strict

check-imports: setup
	$(BIN)/lint-imports --no-logo

check-tree: setup
	$(BIN)/python tools/check_tree.py

format: setup ## format the code and mend what lint can mend
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet .

test: setup ## every test that is not slow (ARGS=tests/relay for some of them)
	$(PYTEST) -m "not slow" $(ARGS)

# Exit status 5 of pytest says that no test is marked slow: all of them ran above.
test-all: test ## every test: those of `make test`, then the slow ones
	$(PYTEST) -m slow $(ARGS) || [ $$? -eq 5 ]

faults: setup ## kill, cut, fill and stop real processes for SECONDS=120 with SEED=1, then check all
	@PYTHONPATH=src:tests $(BIN)/python -m faults.campaign --seconds $(SECONDS) --seed $(SEED)

fuzz: setup ## feed the parsers of foreign bytes, or TARGET=zip alone, what reaches new code
ifeq ($(REPLAY),)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		--only-binary :all: --requirement requirements/fuzz.txt || \
		{ echo "airlox: no fuzzer for this machine: it needs Linux and CPython" >&2; exit 1; }
endif
	@PYTHONPATH=src:tests $(BIN)/python -m fuzz --seconds $(SECONDS) \
		$(if $(TARGET),--target $(TARGET)) $(if $(REPLAY),--replay $(REPLAY))

interop: setup ## every test with the published 0.1.0, and docs/interop.md anew
	@PYTHONPATH=tests $(BIN)/python tools/interop_matrix.py

bench: setup ## timings beside named peers; results belong into docs/benchmarks.md
	$(BIN)/python bench/run.py

vectors: setup ## write the conformance vectors of our own again
	$(BIN)/python tools/make_vectors.py

man: setup ## write the man pages again, from the parsers and the texts of airlox help
	$(BIN)/python tools/make_man.py

lock: setup ## write requirements/*.txt again (UPGRADE=1 takes newer versions)
	UPGRADE=$(UPGRADE) sh tools/make_lock.sh
