# Everything runs in .venv, which the first target that needs it makes from PYTHON (>= 3.11).
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMPS := .venv/stamps
JS := tests/e2e/js

.PHONY: help install demo serve test bench fuzz lint clean

help: ## List the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Python >= 3.11 is needed") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv

$(STAMPS)/demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo]'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[harmony,test,lint]'
	@mkdir -p $(STAMPS) && touch $@

$(JS)/node_modules/.package-lock.json: $(JS)/package.json $(JS)/package-lock.json
	cd $(JS) && npm ci --silent --no-audit --no-fund
	@touch $@

install: $(STAMPS)/demo ## Make .venv and install the package

demo: $(STAMPS)/demo ## One streamed chat with reasoning and a tool call, from a scripted token-only engine
	@$(BIN)/python config/demo.py

serve: $(STAMPS)/demo ## The demo engine and the sidecar, left running until Ctrl-C
	@$(BIN)/python config/demo.py --serve

test: $(STAMPS)/test $(JS)/node_modules/.package-lock.json ## Install what the tests need and run all of them
	$(BIN)/python -m pytest $(ARGS)

bench: $(STAMPS)/test ## Throughput, latency and memory, against a bare relay
	$(BIN)/python -m tests.bench $(ARGS)

fuzz: $(STAMPS)/test ## 100,000 marker-rich outputs per family, random cuts, saved and restored at each (minutes per family)
	$(BIN)/python -m tests.fuzz $(ARGS)

lint: $(STAMPS)/test ## Style, types, import contract
	$(BIN)/ruff check proxy tests config
	$(BIN)/mypy
	$(BIN)/lint-imports

clean: ## Remove what the targets made
	rm -rf .venv $(JS)/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info
