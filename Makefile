# Everything that a fresh machine needs is installed by `setup`; a second run of it takes no time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Images for containers often set it. Every process that a test starts would compile minflinkd anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup servers compiled ready demo shop test test-all shapes coverage mutate lint format bench bench-compare clean

setup: $(VENV)/.installed

# Each step says what it does, and how long it took; a step that fails says why, and leaves no .installed behind.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "minflinkd needs Python 3.11 or later, and $(PYTHON) is not: make PYTHON=python3.12 setup"; exit 1; }
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; command -v $$java >/dev/null || { echo "minflinkd needs Java 17 or later, and there is no $$java: install one (Debian: apt-get install openjdk-17-jre-headless), put it on the PATH, or set JAVA_HOME"; exit 1; }
	@echo "Setting up $(VENV): some 160 Python packages, 1.7 GB on disk. 2 to 10 minutes, by network and machine; nothing outside $(CURDIR)/$(VENV) is changed, but for pip's cache."
	@began=$$(date +%s); step() { echo "[$$(($$(date +%s) - began)) s] $$1"; }; \
	step "1/3 a virtual environment of $$($(PYTHON) --version)"; \
	$(PYTHON) -m venv $(VENV) && \
	step "2/3 packages from the Python index, pyspark (450 MB) the largest; pip reports problems only" && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' && \
	step "3/3 looking whether the command starts" && \
	$(BIN)/minflinkd --version && \
	step "done. Next: make demo, or . $(VENV)/bin/activate && minflinkd --help" || \
	{ step "FAILED: see above; make setup goes on where it stopped"; exit 1; }
	@touch $@

# Servers for the tests that are no Python packages; what cannot be installed is said, and its tests are skipped.
servers: setup
	@python -m tests.servers.install
	@python -m tests.class_archives

demo: setup
	@minflinkd demo

# Kafka, Iceberg and PostgreSQL under kills: examples/shop/README.md.
shop: servers
	@python -m examples.shop.play

lint: setup
	ruff check .
	ruff format --check .
	mypy
	lint-imports

# What needs no Spark comes first, then the rest, in the order of tests/conftest.py. A file is in one process, and so are
# the files that share a cluster or a session. There are more processes than the two cores for which this is made: much
# of a test is waiting, for a process to start or to be missed.
WITHOUT_SPARK := tests/unit tests/component tests/attack tests/sim tests/servers tests/storage examples/storage_backend/tests tests/shapes/test_drawing.py tests/shapes/test_planted.py tests/shapes/test_reduction.py tests/shapes/test_summary.py
PROCESSES := 3
PYTEST := pytest --durations=25 --durations-min=5
LIGHT := $(PYTEST) -n 3 --dist loadfile $(WITHOUT_SPARK)
HEAVY = $(PYTEST) -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder $(addprefix --ignore=,$(WITHOUT_SPARK))

# Each process of pytest reads all tests. This one compiles them for the others, on a core that would be idle meanwhile.
# The others report an error in a test.
compiled: setup
	@pytest --collect-only -qq > /dev/null || true

ready: setup
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line lint servers compiled

test: ready
	$(LIGHT) -m "not slow"
	$(HEAVY) -m "not slow"

# The second part runs even if the first fails: whoever waits for hours should learn of all failures. Slow tests keep the
# processors busy, so the second part has one process for each.
test-all: PROCESSES := 2
test-all: export HYPOTHESIS_PROFILE := exploring
test-all: ready
	@failed=; echo '$(LIGHT)'; $(LIGHT) || failed=1; echo '$(HEAVY)'; $(HEAVY) || failed=1; test -z "$$failed"

# Jobs of every shape against their batch; `make shapes SEEDS=17` plays one of them again.
SEEDS := 0-999
shapes: setup
	python -m tests.shapes --seeds $(SEEDS)

# Reports, not limits: branches that no unit or component test and no simulation takes, and changes that no unit test notices.
REPORTS = python -m pip install --quiet --disable-pip-version-check --editable '.[reports]'

coverage: setup
	$(REPORTS)
	$(PYTEST) -n logical --dist loadfile tests/unit tests/component tests/sim -m "not slow" --cov=minflinkd --cov-branch --cov-report=term:skip-covered --cov-report=html

# `make mutate MUTANTS='minflinkd.jobmaster.scheduler.sizing*'` looks at one module.
mutate: setup
	$(REPORTS)
	mutmut run $(MUTANTS) > mutants.log || { tail -c 2000 mutants.log; exit 1; }
	@tail -c 300 mutants.log | tr '\r' '\n' | tail -2
	mutmut results

format: setup
	ruff check --fix .
	ruff format .

bench: setup
	python -m benchmarks $(BENCH)

# Which figures of the last `make bench` are worse than those of earlier ones.
bench-compare: setup
	python -m benchmarks.compare

clean:
	rm -rf $(VENV) .servers .mypy_cache .ruff_cache .import_linter_cache .hypothesis
