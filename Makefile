# Everything runs in .venv, which the first target that needs it makes from PYTHON (>= 3.11).
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMPS := .venv/stamps
JS := tests/e2e/js
JOBS ?= 2

.PHONY: help install demo serve test bench fuzz lint clean

help: ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Python >= 3.11 is needed") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv

$(STAMPS)/demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo]'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[harmony,otel,test,lint]'
	@mkdir -p $(STAMPS) && touch $@

$(JS)/node_modules/.package-lock.json: $(JS)/package.json $(JS)/package-lock.json
	cd $(JS) && npm ci --silent --no-audit --no-fund
	@touch $@

# For the test of /debug/ui. Elsewhere than on Debian, and without being root, a Chromium has to be there already.
$(STAMPS)/chromium: | $(BIN)/python
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	    chromium fonts-dejavu-core >/dev/null; } || \
	  echo "make: no Chromium and no way to install one: tests/e2e/test_ui.py will fail" >&2
	@mkdir -p $(STAMPS) && touch $@

install: $(STAMPS)/demo ## Make .venv and install the package

demo: $(STAMPS)/demo ## One streamed chat with reasoning and a tool call, from a scripted token-only engine
	@$(BIN)/python config/demo.py

serve: $(STAMPS)/demo ## The demo engine and the sidecar, left running until Ctrl-C
	@$(BIN)/python config/demo.py --serve

test: $(STAMPS)/test $(STAMPS)/chromium $(JS)/node_modules/.package-lock.json ## Install what the tests need and run all of them
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

bench: $(STAMPS)/test ## Throughput, latency and memory, against a bare relay
	$(BIN)/python -m tests.bench $(ARGS)

fuzz: $(STAMPS)/test ## 100,000 marker-rich outputs per family, random cuts, saved and restored at each (minutes per family)
	$(BIN)/python -m tests.fuzz $(ARGS)
	SCHEDULES=100 FUZZ_STATES=200000 $(BIN)/python -m pytest -q --timeout 0 tests/derender_http/test_schedules.py \
		tests/derender_http/test_fuzz.py

# Fetched once.
TOOLS := .cache/tools
$(TOOLS)/stamp: scripts/tools.py | $(BIN)/python
	$(BIN)/python scripts/tools.py helm kubectl promtool prometheus
	@mkdir -p $(TOOLS) && touch $@

lint: $(STAMPS)/test $(TOOLS)/stamp ## Style, types, import contract; the chart in all shapes against Kubernetes' schemas
	$(BIN)/ruff check proxy tests config scripts helm
	$(BIN)/mypy
	$(BIN)/mypy scripts/tools.py scripts/chart.py helm/files/wait_for_drain.py helm/files/api_test.py
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/docker tests/helm/test_render.py tests/helm/test_values.py tests/helm/test_examples.py

chart: $(STAMPS)/test ## Write what is derived from the chart's values, the settings and the templates
	$(BIN)/python scripts/chart.py --write

lock: ## Pin what the image is made of; ARGS=--upgrade takes the newest
	PYTHON=$(PYTHON) scripts/lock.sh $(ARGS)

image-check: ## Build the image and run it, without a Docker engine; as root on Debian
	scripts/image_check.sh

clean: ## Remove what the targets made
	rm -rf .venv $(JS)/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info
