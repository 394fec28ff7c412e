# Everything that a fresh machine needs is installed by `setup`; a second run of it takes no time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: setup servers demo test test-all lint format bench clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "minflinkd needs Python 3.11 or later; set PYTHON=..."; exit 1; }
	@command -v java >/dev/null || { echo "minflinkd needs Java 17: install it, and put java on the PATH"; exit 1; }
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# Servers for the tests that are no Python packages; what cannot be installed is said, and its tests are skipped.
servers: setup
	@python -m tests.servers.install

demo: setup
	@minflinkd demo

lint: setup
	ruff check .
	ruff format --check .
	mypy
	lint-imports

# What needs no Spark comes first, side by side, a file in one process; a session or a cluster has all cores to itself.
WITHOUT_SPARK := tests/unit tests/sim tests/servers tests/storage examples/storage_backend/tests
PYTEST := pytest --durations=25 --durations-min=5
LIGHT := $(PYTEST) -n logical --dist loadfile $(WITHOUT_SPARK)
HEAVY := $(PYTEST) $(addprefix --ignore=,$(WITHOUT_SPARK))

test: setup lint servers
	$(LIGHT) -m "not slow"
	$(HEAVY) -m "not slow"

test-all: export HYPOTHESIS_PROFILE := exploring
test-all: setup lint servers
	$(LIGHT)
	$(HEAVY)

format: setup
	ruff check --fix .
	ruff format .

bench: setup
	python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) .servers .mypy_cache .ruff_cache .import_linter_cache .hypothesis
