# make demo | test | quick | check | bench | docs | package: each sets up .venv by itself and is quick the second time.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Dozens of processes of the tests would compile the same modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick check bench docs package format clean browser

demo: .venv/installed-serve
	$(BIN)/gradspace demo

test: .venv/installed-dev browser
	$(BIN)/pytest -n auto

# The tests that are not slow: no long training, no killed processes, few servers.
quick: .venv/installed-dev browser
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

# The documentation as a site, in site/.
docs: .venv/installed-docs
	DISABLE_MKDOCS_2_WARNING=true NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean

# The source distribution and the wheel, in dist/.
package: .venv/installed-dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*

# An extra is installed when its mark is older than what it was made from.
.venv/installed: pyproject.toml constraints.txt
	@echo "Setting up .venv (once, a few minutes)"
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv .venv
	@$(PIP) --editable .
	@touch $@

.venv/installed-%: .venv/installed
	@$(PIP) --editable ".[$*]"
	@touch $@

# Tests of pages use Debian's Chromium and its driver. Where these cannot be installed the tests are
# skipped, as their last lines say, and the next run tries again.
browser:
	@{ command -v chromium && command -v chromedriver; } > /dev/null \
	  || { apt-get -qq update && apt-get -qq install --yes --no-install-recommends \
	      chromium chromium-driver fonts-dejavu-core > /dev/null; } \
	  || echo "Chromium and its driver cannot be installed: the tests of pages will be skipped"

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
