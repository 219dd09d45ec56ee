# Everything a developer runs. `make` alone lists the targets.
# Bash, and a recipe is one script, so that a failing line in the middle of it ends it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

BIN := .venv/bin
LOCK := requirements/dev.lock
STAMP := .venv/.installed
UV_VERSION := 0.13.7

.PHONY: help setup demo test check soak bench figures lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything from the lock (the other targets do it by themselves)
	@echo "setup: .venv is ready, try: make demo"

# PYTHON may name an interpreter; else the first of these that is new enough is taken.
$(STAMP): pyproject.toml $(LOCK)
	@python=
	for candidate in $${PYTHON:-python3.11 python3 python3.13 python3.12 python}; do
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$candidate; break; fi
	done
	if [ -z "$$python" ]; then
	  echo "error: godwit needs Python 3.11 or newer; none found (tried: $${PYTHON:-python3.11 python3 python3.13 python3.12 python})." >&2
	  echo "       Install one, or name it: make setup PYTHON=/path/to/python3" >&2
	  exit 1
	fi
	echo "setup: making .venv with $$("$$python" --version)"
	if ! "$$python" -m venv .venv; then
	  echo "error: $$python cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv)." >&2
	  exit 1
	fi
	export PIP_DISABLE_PIP_VERSION_CHECK=1
	echo "setup: installing $$(grep -c '==' $(LOCK)) locked packages, this takes about a minute"
	$(BIN)/python -m pip install -qq --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --editable .
	touch $@

demo: $(STAMP) ## Watch messages and work survive a bad network, and become a report (DEMO=forever goes on until Ctrl-C)
	@mkdir -p build
	$(BIN)/godwit demo --report build/demo.html $(if $(filter forever,$(DEMO)),--forever)

# The protocol's own tests come first and under coverage: they are quick, and what they miss is a gap to close.
PROTOCOL_TESTS := tests/wire tests/transport
test: $(STAMP) ## Run the tests, with the coverage gate on wire and transport (95 %)
	@mkdir -p build
	$(BIN)/coverage erase
	$(BIN)/coverage run --parallel-mode -m pytest tests/wire > build/tests-wire.txt 2>&1 & wire=$$!
	$(BIN)/coverage run --parallel-mode -m pytest tests/transport
	wait $$wire || { cat build/tests-wire.txt; exit 1; }
	tail -n 1 build/tests-wire.txt
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include='src/godwit/wire/*,src/godwit/transport/*' --fail-under=95
	$(BIN)/python -m pytest -n 2 --dist loadfile $(addprefix --ignore=,$(PROTOCOL_TESTS))

check: $(STAMP) ## Lint, formatting, types, layering
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layering.py

soak: $(STAMP) ## The long versions: hundreds of seeds, all scenarios, slow tests
	@$(BIN)/godwit sim run --seeds 500
	$(BIN)/godwit sim scenarios
	$(BIN)/python -m pytest -m soak || [ $$? -eq 5 ] # 5: no test is marked so

bench: $(STAMP) ## Measure on this machine: transport, broker, log, archive, jobs and Spark against peers and limits (minutes)
	@$(BIN)/godwit bench transport
	$(BIN)/godwit bench forward
	$(BIN)/godwit bench log
	$(BIN)/godwit bench archive
	$(BIN)/godwit bench jobs
	$(BIN)/godwit bench spark

figures: $(STAMP) ## Draw the figures in docs/ anew, from the simulator (minutes)
	@$(BIN)/python docs/figures/arq.py

lock: ## Pin the newest allowed versions anew, with hashes and for all platforms
	@python3 -m venv --clear build/lock
	build/lock/bin/python -m pip install -qq uv==$(UV_VERSION)
	build/lock/bin/uv pip compile pyproject.toml --group dev --extra bench --extra spark --universal --python-version 3.11 --upgrade --quiet \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --output-file $(LOCK)
	if grep -nE '://|--(extra-)?index|--find-links' $(LOCK); then
	  echo "error: $(LOCK) names an address (above); see docs/decisions/0001-locked-without-registry-addresses.md" >&2
	  exit 1
	fi
	echo "lock: $$(grep -c '==' $(LOCK)) packages pinned in $(LOCK)"

clean: ## Remove everything that can be made again
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
