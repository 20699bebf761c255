# `make` alone prints the targets. Nothing is needed but Python 3.11 or later, make and pip.

PYTHON ?= python3
VENV := .venv
DEMO := .demo-venv
BIN := $(VENV)/bin
WORKERS ?= auto
# The recorded traffic and the measuring tools lie beside the checkout, where they are there at all.
SHARED := $(or $(LLMBROKER_SHARED),$(wildcard ../shared))
RATIO = $(BIN)/python $(SHARED)/bench/ratio.py
PYTEST = $(BIN)/python -m pytest

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help routing-bench limits-bench planning-bench demo check fix tables prices docs slow live traffic soak concurrency failover kills steps walks bench import-bench rows-bench study bfcl bfcl-local bfcl-oracle bfcl-multi routing lock changelog clean need-shared

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(DEMO)/.stamp ## a real model on this machine answers the weather example: no key, no service
	@$(DEMO)/bin/llmbroker demo

check: $(VENV)/.stamp ## format, lint, types, layers, generated docs, tests: all that CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/generate.py --check
	$(PYTEST) -q -n $(WORKERS)

fix: $(VENV)/.stamp ## format, mend what lint can mend, write the generated pages anew
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python docs/generate.py

tables: $(VENV)/.stamp ## write the generated pages anew
	$(BIN)/python docs/generate.py

prices: $(VENV)/.stamp ## write the packaged price list anew from the newest genai-prices
	$(BIN)/python -m pip install --quiet --upgrade genai-prices
	$(BIN)/python docs/generate_prices.py

docs: $(VENV)/.docs-stamp ## build the documentation into docs/_build/html
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

slow: $(VENV)/.stamp ## the tests that take longer
	$(PYTEST) -q -n $(WORKERS) -m slow

live: $(VENV)/.stamp ## the tests that want a real server on this machine
	$(PYTEST) -q -m live

traffic: $(VENV)/.stamp need-shared ## decode the recorded traffic of every provider and print the counts
	LLMBROKER_SHARED=$(SHARED) LLMBROKER_NEED_TRAFFIC=1 $(PYTEST) -q -n $(WORKERS) -m traffic

bench: $(VENV)/.bench-stamp need-shared ## CPU of a call, a loop, a stream in units of bare httpx
	$(BIN)/python benchmarks/cost.py $(SHARED)

import-bench: $(VENV)/.bench-stamp ## CPU and memory of `import llmbroker` beside `import httpx`
	$(BIN)/python benchmarks/imports.py

rows-bench: $(VENV)/.bench-stamp ## rows a second beside a thread pool over the openai client
	$(BIN)/python benchmarks/rows.py $(N)

study: $(VENV)/.study-stamp ## run the example study on the model of this machine; writes what its page shows
	rm -f examples/study/study.db*
	$(BIN)/python examples/study/study.py

routing-bench: $(VENV)/.stamp need-shared ## good answers, refusals, waste in a recorded workload, beside a peer and an oracle
	$(BIN)/python benchmarks/routing/run.py $(SHARED) --seeds $(or $(N),20)

limits-bench: $(VENV)/.stamp ## CPU of a pooled call without limits, with one, with three; of a look at what other processes told
	$(BIN)/python benchmarks/limits.py

planning-bench: $(VENV)/.stamp ## CPU of choosing among 5 to 200 models
	$(BIN)/python benchmarks/planning.py

soak: $(VENV)/.bench-stamp ## 10,000 calls, 1,000 cut streams, 1,000 timeouts: descriptors, threads, memory stay flat
	$(BIN)/python benchmarks/soak.py $(N)

concurrency: $(VENV)/.stamp ## 1,000 calls at once, after one warm-up, beside the provider's own time
	$(BIN)/python benchmarks/concurrency.py calls $(N)

failover: $(VENV)/.stamp ## what a failover adds after a refusal, seen from the provider
	$(BIN)/python benchmarks/concurrency.py failover $(N)

kills: $(VENV)/.stamp ## kill -9 at any moment: every reply that was handed over has its row
	$(BIN)/python benchmarks/kills.py $(N)

steps: $(VENV)/.stamp ## CPU of a step of the tool loop: plain, with a budget, streamed, durable, all three
	$(BIN)/python benchmarks/steps.py

walks: $(VENV)/.stamp ## random walks through the tool loop, three kinds, N each over each port: every promise
	LLMBROKER_WALKS=$(or $(N),2500) $(PYTEST) -q -n 2 --timeout 3600 tests/loop/test_walks.py tests/loop/test_long_walks.py \
	  tests/loop/test_socket_walks.py

bfcl: $(VENV)/.bench-stamp need-shared ## function-calling tasks through the tool loop, against a 0.5B model on this machine
	$(BIN)/python benchmarks/bfcl.py $(SHARED)

bfcl-local: $(VENV)/.bench-stamp need-shared ## the same tasks with the model inside this process, its calls held by a grammar
	$(BIN)/python benchmarks/bfcl_local.py $(SHARED)

bfcl-oracle: $(VENV)/.bench-stamp ## BFCL's accepted answers through the loop, in every dialect, whole, streamed, damaged
	$(BIN)/python benchmarks/bfcl_oracle.py --corrupt

routing: $(VENV)/.bench-stamp need-shared ## the broker in the routing simulator, beside peers and oracle
	$(BIN)/python benchmarks/routing/run.py $(SHARED)

bfcl-multi: $(VENV)/.bench-stamp ## BFCL's conversations through the loop: every call runs, every final state is the right one
	$(BIN)/python benchmarks/bfcl_multi.py

lock: ## resolve requirements.lock anew, for every Python from 3.11 on
	$(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/python -m pip install --quiet uv
	$(VENV)-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-emit-index-url --no-emit-find-links \
	  --no-annotate --custom-compile-command "make lock" --all-extras --output-file requirements.lock pyproject.toml
	rm -rf $(VENV)-lock

changelog: $(VENV)/.stamp ## show the next release's part of the changelog
	$(BIN)/towncrier build --draft --version next

clean: ## remove both environments and what was built
	rm -rf $(VENV) $(DEMO) docs/_build build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

need-shared:
	@test -n "$(SHARED)" || { echo "This target reads the shared files: set LLMBROKER_SHARED to their folder."; exit 1; }

# An environment is made once and again when what it is made of has changed. pip works within the versions of the lock file.
# A Python without ensurepip gets an empty environment that the system's pip fills.
define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; $(PYTHON) is" \
  "$$($(PYTHON) -V 2>&1). Name another: make PYTHON=python3.12 ..."; exit 1; }
@test -x $(1)/bin/python || { echo "Making $(1)"; $(PYTHON) -m venv $(1) 2>/dev/null || { rm -rf $(1); \
  $(PYTHON) -m venv --without-pip $(1) && $(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }; }
@echo "Installing $(2) into $(1)"
@$(1)/bin/python -m pip install --quiet --constraint requirements.lock $(2)
endef

$(VENV)/.stamp: pyproject.toml requirements.lock
	$(call environment,$(VENV),--editable '.[dev]')
	@touch $@

$(VENV)/.docs-stamp: $(VENV)/.stamp
	$(call environment,$(VENV),--editable '.[dev$(comma)docs]')
	@touch $@

$(VENV)/.bench-stamp: $(VENV)/.stamp
	$(call environment,$(VENV),--editable '.[dev$(comma)local$(comma)bench]')
	@touch $@

$(VENV)/.study-stamp: $(VENV)/.stamp
	$(call environment,$(VENV),--editable '.[dev$(comma)study]')
	@touch $@

$(DEMO)/.stamp: pyproject.toml requirements.lock
	$(call environment,$(DEMO),--editable '.[local]')
	@touch $@

comma := ,
