# Every target sets up what it needs; a second run finds it done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TARGETS := $(VENV)-targets
TARGETS_READY := $(TARGETS)/.ready
RESULTS ?= results
SCALE ?= quick
# The locks name every package with its version and the digests of its files: nothing else is
# installed, and what is missing is found at the end. The project itself is installed in place, and
# built with the setuptools of the lock.
PIP := -m pip --quiet --disable-pip-version-check
LOCKED := $(PIP) install --no-deps --require-hashes --requirement
IN_PLACE := $(PIP) install --no-deps --no-build-isolation --editable .

.DEFAULT_GOAL := help
.PHONY: help setup report figures test soak targets test-targets check compare bench docs notebooks data pictures format lock clean

help:
	@echo "make report   set up, fetch MNIST and Adult if it can, then write every figure and $(RESULTS)/report.html"
	@echo "make figures  the same at another scale: make figures SCALE=full takes about an hour, and resumes"
	@echo "make test     set up, then run the whole test suite"
	@echo "make soak     the same tests at their full counts and grids (an hour or more)"
	@echo "make check    style, types, import layers"
	@echo "make compare  every system on the same records, as a table and a figure"
	@echo "make bench    speed as ratios to this machine's matrix product"
	@echo "make targets  what the compilers of TPUs and GPUs say of a sweep (an environment of its own)"
	@echo "make docs     build these pages and the reference of the library: build/docs/index.html"
	@echo "make notebooks  run docs/notebooks and write their pages anew"
	@echo "make pictures draw the pictures of docs/attacks anew"
	@echo "make data     fetch MNIST and Adult into the cache (dd-jax data lists more)"
	@echo "make format   rewrite the sources in the project's style"
	@echo "make lock     pin the newest versions that fit pyproject.toml, with the digests of their files"
	@echo "make clean    remove the environment, caches and results"

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dd_jax needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(LOCKED) requirements.lock
	$(BIN)/python $(IN_PLACE)
	$(BIN)/python $(PIP) check
	@touch $@

report figures: $(READY)
	$(BIN)/python -m experiments report --fetch --results $(RESULTS) --scale $(SCALE)

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Checks whose sizes depend on tests/problems.soak run at their full size.
soak: $(READY)
	DD_JAX_SOAK=1 $(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright

compare: $(READY)
	$(BIN)/python -m experiments compare --results $(RESULTS)

bench: $(READY)
	$(BIN)/python -m experiments bench

# A link that leads nowhere is a warning, and a warning is an error.
docs: $(READY)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs build/docs

notebooks: $(READY)
	$(BIN)/python docs/write_notebooks.py

# The compilers of accelerators slow every start of JAX, so they get an environment of their own.
$(TARGETS_READY): requirements-targets.lock pyproject.toml
	$(PYTHON) -m venv $(TARGETS)
	$(TARGETS)/bin/python $(LOCKED) requirements-targets.lock
	$(TARGETS)/bin/python $(IN_PLACE)
	$(TARGETS)/bin/python $(PIP) check
	@touch $@

targets: $(TARGETS_READY)
	$(TARGETS)/bin/dd-jax targets --save experiments/figures/targets.json

test-targets: $(TARGETS_READY)
	JAX_PLATFORMS=cpu $(TARGETS)/bin/python -m pytest tests/test_targets.py

# Only by hand: the pictures are part of the documentation, and take some minutes.
pictures: $(READY)
	for page in docs/attacks/[a-z]*.md; do name=$$(basename $$page .md); \
	    $(BIN)/dd-jax attack $$name --picture docs/attacks/$$name.svg || exit; done

data: $(READY)
	$(BIN)/dd-jax data fetch mnist adult

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One version of each package for every Python and platform, with the digests of all its files. The
# second lock keeps the versions of the first.
COMPILE := $(BIN)/uv pip compile --quiet pyproject.toml --universal --fork-strategy fewest \
    --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make lock"

lock: $(READY)
	$(COMPILE) --extra dev --upgrade --output-file requirements.lock
	cp requirements.lock requirements-targets.lock
	$(COMPILE) --extra dev --extra targets --output-file requirements-targets.lock

clean:
	rm -rf $(VENV) $(TARGETS) $(RESULTS) build *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
