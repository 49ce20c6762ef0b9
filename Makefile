# `make test` and `make demo` work on a fresh clone: both prepare .venv first.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.holdfast-installed
PYTEST_ARGS ?=
WORKERS ?= 2 # pytest processes
BENCH ?=

TORCHREC_VENV := .venv-torchrec
TORCHREC_BIN := $(TORCHREC_VENV)/bin
TORCHREC_STAMP := $(TORCHREC_VENV)/.holdfast-installed

.PHONY: help setup test test-slow test-torchrec fast explore lint style types format demo bench docs

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv and install everything the lock names

# One line that counts packages on a terminal, silence elsewhere; pip's warnings and errors always show.
PIP_PROGRESS = awk -v total="$$(grep -c '==' requirements.lock)" -v live="$$(test -t 2 && echo 1 || echo 0)" \
	'/^(Collecting|Requirement already satisfied:)/ && live { \
		n += n < total; sub(/ \(.*/, ""); printf "\r\033[K  resolving %d/%d %s", n, total, $$NF > "/dev/stderr" } \
	 /^Installing collected/ { printf "%s  unpacking and installing ...\n", live ? "\r\033[K" : "" > "/dev/stderr" }'

$(STAMP): requirements.lock pyproject.toml
	@test -x $(BIN)/pip || { echo "Creating $(VENV) ..."; $(PYTHON) -m venv $(VENV); }
	@echo "Installing $$(grep -c '==' requirements.lock) packages into $(VENV) (torch is the large one) ..."
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -r requirements.lock | $(PIP_PROGRESS)
	@$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
	@touch $@
	@echo "$(VENV) is ready."

test: style ## lint, type-check, check the import layers, run the fast tests
	@$(MAKE) --no-print-directory -j 2 types fast

# Kernels first: processes that start at the same time would each compile them. Files in their order: xdist would take
# those with few tests last, which are the long ones.
FAST_TESTS = $(BIN)/python -m tests.compile_kernels; \
	$(BIN)/pytest -m "not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

fast: setup
	$(FAST_TESTS) $(PYTEST_ARGS)

test-slow: setup ## run the slow tests: power cuts, real servers, kills
	$(BIN)/pytest -m slow $(PYTEST_ARGS)

# TorchRec needs an older torchmetrics and must not see the dependencies it asks for: it has an environment of its own.
$(TORCHREC_STAMP): requirements-torchrec.lock pyproject.toml
	@test -x $(TORCHREC_BIN)/pip || { echo "Creating $(TORCHREC_VENV) ..."; $(PYTHON) -m venv $(TORCHREC_VENV); }
	@echo "Installing TorchRec into $(TORCHREC_VENV) (1.3 GB) ..."
	@$(TORCHREC_BIN)/python -m pip install --disable-pip-version-check -q --progress-bar off --no-deps \
		-r requirements-torchrec.lock
	@$(TORCHREC_BIN)/python -m pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
	@touch $@

test-torchrec: $(TORCHREC_STAMP) ## run the tests with TorchRec, on 1, 2 and 4 processes
	$(TORCHREC_BIN)/pytest -m "not slow" tests/integrations/torchrec $(PYTEST_ARGS)

explore: setup ## run the fast tests with property-based examples that no run had before
	$(FAST_TESTS) --hypothesis-profile explore $(PYTEST_ARGS)

lint: style types ## ruff, mypy --strict, import layers

style: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## rewrite the code as ruff wants it
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

demo: setup ## get killed, resume, compare; then a cluster climbs down its ladder: two minutes
	$(BIN)/python -m benchmarks.demo

docs: setup ## build the site, with the reference made from docstrings, into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

bench: setup ## run a benchmark: make bench BENCH=stall
	$(BIN)/python -m benchmarks $(BENCH)
