# Every target makes its own virtual environment in .venv; nothing else has to be installed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo serve test test-fast fuzz faults bounds check bench versions clean

demo: .venv/base
	$(BIN)/scaledsgd demo

# A small model that learns, and the page that shows it.
serve: .venv/serve
	$(BIN)/scaledsgd serve --playground

# In two processes, which leave each other a core; a file's tests stay in one of them, and share what
# they have set up.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

test: .venv/dev
	$(PYTEST)

# For the work between: less than a minute, without doctests and what is marked as slow.
test-fast: .venv/dev
	$(PYTEST) -m "not slow" tests

# Tries without end, for so many minutes; hundreds of kills, cuts and restarts; and every compiled loop
# built with checks of its bounds.
MINUTES ?= 30
fuzz: .venv/dev
	$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES)

faults: .venv/dev
	$(BIN)/python tests/faults/faults.py --kills 300 --cuts 50 --restarts 20 --rotations 20

bounds: .venv/dev
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.venv/bounds $(PYTEST) -m "not slow" tests
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.venv/bounds $(BIN)/python tests/fuzz/run.py --forged 1000

check: .venv/dev
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: .venv/base
	$(BIN)/python benchmarks/core.py

# A fit of each loss with the oldest and with the newest libraries that pyproject.toml allows:
# make -j2 versions. Kernels of different versions of Numba would replace each other in one cache.
versions: versions-lowest versions-newest

versions-%: .venv-%/made
	PYTHONPATH=src NUMBA_CACHE_DIR=$(<D)/kernels $(<D)/bin/python tests/smoke.py

WANTED = import tomllib; wanted = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]
LOWEST = (part.split(",")[0].replace(">=", "==") + ".*" for part in wanted)

.venv-lowest/wanted: pyproject.toml .venv/base
	$(PYTHON) -m venv --without-pip --clear $(@D)
	$(BIN)/python -c '$(WANTED); print(*$(LOWEST), sep="\n")' > $@

.venv-newest/wanted: pyproject.toml .venv/base
	$(PYTHON) -m venv --without-pip --clear $(@D)
	$(BIN)/python -c '$(WANTED); print(*wanted, sep="\n")' > $@

.venv-%/made: .venv-%/wanted
	$(BIN)/python -m pip --python $(@D)/bin/python install --quiet --no-compile --requirement $<
	touch $@

.PRECIOUS: .venv-%/made  # not removed as a step on the way

.venv/base: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/serve: .venv/base
	$(BIN)/python -m pip install --quiet --editable '.[serve]'
	touch $@

.venv/dev: .venv/base
	$(BIN)/python -m pip install --quiet --editable '.[test,check]'
	touch $@

clean:
	rm -rf .venv .venv-lowest .venv-newest
