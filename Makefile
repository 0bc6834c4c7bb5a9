# make demo | test | quick | check | bench: each sets up .venv by itself and is quick the second time.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test quick check bench format clean

demo: .venv/installed-serve
	$(BIN)/gradspace demo

test: .venv/installed-dev .venv/browser
	$(BIN)/pytest -n auto

# The tests that are not slow: no long training, no killed processes, few servers.
quick: .venv/installed-dev .venv/browser
	$(BIN)/pytest -n auto -m "not slow"

check: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed-bench
	$(BIN)/python -m benchmarks

# An extra is installed when its mark is older than what it was made from.
.venv/installed: pyproject.toml constraints.txt
	@echo "Setting up .venv (once, a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) --editable .
	@touch $@

.venv/installed-%: .venv/installed
	@$(PIP) --editable ".[$*]"
	@touch $@

# Tests of pages use Debian's Chromium, and are skipped where it cannot be installed.
.venv/browser: .venv/installed
	@command -v chromium chromedriver > /dev/null \
	  || (apt-get -qq update && apt-get -qq install --yes --no-install-recommends \
	      chromium chromium-driver fonts-dejavu-core > /dev/null) \
	  || echo "Chromium cannot be installed here: tests of pages will be skipped"
	@touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
