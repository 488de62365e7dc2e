# The one way to set up, try, test and measure feddle. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow torture lint bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/base: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "feddle needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing feddle into $(VENV) (once; torch is large)"
	@$(PIP) -e .
	@touch $@

$(VENV)/dev: $(VENV)/base
	@$(PIP) -e '.[test,lint]'
	@touch $@

$(VENV)/docs: $(VENV)/base
	@$(PIP) -e '.[docs]'
	@touch $@

setup: $(VENV)/base ## create .venv and install feddle into it

demo: $(VENV)/base ## compare feddle+, FedBuff and FedAvg on Fashion-MNIST (two to three minutes)
	@$(BIN)/feddle compare experiments/demo.yaml

test: $(VENV)/dev ## run the quick tests, one process per core
	@$(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist worksteal

test-slow: $(VENV)/dev ## run the tests that take minutes
	@$(BIN)/python -m pytest -q -m slow

torture: $(VENV)/dev ## kill runs, feed malformed inputs and send hostile updates at random (20 minutes)
	@$(BIN)/python tests/torture.py $(ARGS)

lint: $(VENV)/dev ## check format, lint, types and layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(VENV)/dev ## measure speed, as ratios, and the cost of a round at the server
	@$(BIN)/python bench/step.py
	@$(BIN)/python bench/search.py
	@$(BIN)/python bench/denormals.py
	@$(BIN)/python bench/precision.py
	@$(BIN)/python bench/preprocessing.py
	@$(BIN)/python bench/scale.py
	@$(BIN)/python bench/wall.py
	@$(BIN)/python bench/peers.py
	@$(BIN)/python bench/server_cost.py

docs: $(VENV)/docs ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove .venv and caches
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis
