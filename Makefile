# Every target makes its own virtual environment in .venv; nothing else has to be installed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-fast check bench clean

demo: .venv/base
	$(BIN)/scaledsgd demo

# In two processes, which leave each other a core; a file's tests stay in one of them, and share what
# they have set up.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

test: .venv/dev
	$(PYTEST)

# For the work between: less than a minute, without doctests and what is marked as slow.
test-fast: .venv/dev
	$(PYTEST) -m "not slow" tests

check: .venv/dev
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: .venv/base
	$(BIN)/python benchmarks/core.py

.venv/base: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/dev: .venv/base
	$(BIN)/python -m pip install --quiet --editable '.[test,check]'
	touch $@

clean:
	rm -rf .venv
