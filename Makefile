# Dressage. `make help` says what each target does. Needs make, git and a Python of at least 3.11, nothing else.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV ?= .venv
ARGS ?=
ONLY ?=
TRAFFIC ?=
P ?=
PYTHON ?=
# Test processes side by side; JOBS=0 runs all in one.
JOBS ?= logical

BIN := $(VENV)/bin
FIND_PYTHON = PYTHON="$(PYTHON)" sh scripts/find_python.sh
SETUP_SECONDS = $(VENV)/.setup-seconds

# Compiled modules are kept: a process that compiles torch anew starts 7 s later, and a run starts several.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-package lint bench replay agents families escapes lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make the environment (.venv) with everything in it; at once when it is up to date
	@py="$$($(FIND_PYTHON))" && "$$py" scripts/setup.py --venv "$(VENV)" --seconds-to "$(SETUP_SECONDS)"

demo: setup ## train a small agent on this machine; ARGS="--seed 2" passes arguments on
	@DRESSAGE_SETUP_SECONDS="$$(cat $(SETUP_SECONDS))" exec $(BIN)/dressage demo $(ARGS)

test: setup ## everything: each package's tests, the lint checks, each package alone
	$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 4 --dist worksteal $(ARGS)

test-package: ## one package alone: P=dressage-proxy, optionally PYTHON=3.12
	@test -n "$(P)" || { echo "name the package: make test-package P=dressage-proxy" >&2; exit 2; }
	@py="$$($(FIND_PYTHON))" && "$$py" scripts/lanes.py "$(P)" $(ARGS)

lint: setup ## formatting, lint, types, arrows between packages, declared dependencies
	@$(BIN)/python scripts/lint.py $(ONLY)

bench: setup ## every benchmark, or one: ONLY=proxy; writes benchmarks/out/
	@$(BIN)/python -m benchmarks $(ONLY)

replay: setup ## agents' request sequences through the real proxy; TRAFFIC=folder for recorded ones
	@$(BIN)/python -m dressage_proxy.replay $(if $(TRAFFIC),"$(TRAFFIC)") $(ARGS)

agents: setup ## the real agent programs (from npm) through the real proxy: agent x scenario; ARGS="codex --scenario resume"
	@$(BIN)/python scripts/agents.py $(ARGS)

families: setup ## the table of model families: each one certified, or refused with its reason; ARGS="qwen3 --conversations 10000"
	@$(BIN)/python scripts/families.py $(ARGS)

escapes: setup ## the known ways out of a sandbox, each tried from inside a real one; 1 if one succeeds
	@$(BIN)/python -m dressage_sandbox.escapes $(ARGS)

lock: setup ## rewrite requirements.lock from the members' pyproject.toml files
	@$(BIN)/python scripts/lock.py $(ARGS)

clean: ## remove the environment, caches and build outputs; runs/ stays
	rm -rf $(VENV) .venv-tools .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf build dist packages/*/dist recipes/dist benchmarks/out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
