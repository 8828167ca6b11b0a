# Every target makes its own virtual environment in .venv; nothing else has to be installed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check bench clean

demo: .venv/base
	$(BIN)/scaledsgd demo

test: .venv/dev
	$(BIN)/pytest

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
