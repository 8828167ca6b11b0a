# Every target makes its own virtual environment in .venv; nothing else has to be installed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo serve test test-fast fuzz faults bounds check bench figures docs docs-serve package versions clean

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
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/.venv/bounds $(PYTEST) -m "not slow" tests
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/.venv/bounds $(BIN)/python tests/fuzz/run.py --forged 1000

check: .venv/dev
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check src tests benchmarks examples docs/*.py docs/figures
	$(BIN)/lint-imports
	$(BIN)/pyright

# The site: figures are drawn and the gallery is run where they are older than what they show.
docs: .venv/docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory docs/_build/html 8420

bench: .venv/base
	$(BIN)/python benchmarks/core.py

# The sdist and the wheel, installed where nothing else is, and each extra alone.
package: .venv/dev
	$(BIN)/python tests/package.py

# Every number in the README and docs/ that a machine can give, measured again and written where it
# stands; what has changed by more than its noise is marked. All of it takes hours: ONLY="speed core".
figures: .venv/dev
	$(BIN)/python benchmarks/figures.py $(if $(ONLY),--only $(ONLY))

# A fit of each loss with the oldest and with the newest libraries that pyproject.toml allows:
# make -j2 versions. Kernels of different versions of Numba would replace each other in one cache.
versions: versions-lowest versions-newest

versions-%: .venv-%/made
	PYTHONPATH=src NUMBA_CACHE_DIR=$(<D)/kernels $(<D)/bin/python tests/smoke.py

WANTED = import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
    wanted = project["dependencies"] + project["optional-dependencies"]["plots"]
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
	$(BIN)/python -m pip install --quiet --editable '.[plots]'
	touch $@

.venv/serve: .venv/base
	$(BIN)/python -m pip install --quiet --editable '.[serve]'
	touch $@

.venv/dev: .venv/base
	$(BIN)/python -m pip install --quiet --editable '.[test,check]'
	touch $@

.venv/docs: .venv/base
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

clean:
	rm -rf docs/_build docs/made docs/gallery .venv .venv-lowest .venv-newest .venv-package
