# Every target sets up what it needs: a virtual environment in .venv with the tested versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS ?= runs

QUICK := -n 2 --dist loadscope -m "not slow and not zoo and not faces"

.DEFAULT_GOAL := help
.PHONY: help setup demo test coverage golden native-test neon check format slow zoo faces wheel fashion clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## virtual environment with the package, its extras and the tools

$(READY): pyproject.toml setup.py constraints.txt $(wildcard csrc/*.cpp csrc/*.h)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: $(READY) ## sparse and dense networks on digits, ours and others: a table and a report
	$(BIN)/gossamer reproduce gossamer/demo --out $(RUNS)/demo

test: check native-test ## format, lint, types, layering, C++ tests, tests
	$(BIN)/python -m pytest $(QUICK)

coverage: $(READY) ## the tests again, counting lines and branches: half as long again
	$(BIN)/python -m pytest $(QUICK) --cov --cov-report=term

golden: $(READY) ## every number against those of BASE=commit, bit for bit; ONLY=part of a case's name
	@PYTHONPATH=tests $(BIN)/python -m golden.compare $(BASE) $(if $(ONLY),--only '$(ONLY)')

native-test: ## C++ tests of the engine under the address and undefined behaviour sanitizers
	@if command -v $(firstword $(CXX)) > /dev/null; then \
	  $(MAKE) --no-print-directory --silent --jobs=2 -C csrc/tests asan; \
	else \
	  echo "native-test: no C++ compiler ($(CXX)), so the engine's C++ tests are left out"; \
	fi

neon: ## the same tests for aarch64, cross-compiled and run under qemu, without sanitizers
	@$(MAKE) --no-print-directory --silent --jobs=2 -C csrc/tests neon

check: $(READY) ## static checks only
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## rewrite the sources in the project's form
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

slow: $(READY) ## statistics and experiments that take minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,truth]'
	$(BIN)/python -m pytest -m slow

zoo: $(READY) ## networks of other packages: converts them, and writes docs/zoo.md
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,zoo]'
	PYTHONPATH=tests $(BIN)/python -m zoo.table
	$(BIN)/python -m pytest -m zoo tests/zoo

faces: $(READY) ## real runs of the tools of others: Lightning, transformers, accelerate, TensorBoard
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,lightning,hf,tensorboard]'
	$(BIN)/python -m pytest -m faces

wheel: $(READY) ## a wheel of this platform in dist/
	@rm -rf build/lib* # setuptools would pack modules that are gone from src/
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

fashion: $(READY) ## the Fashion-MNIST table of docs/results.md; needs DATA=folder
	$(BIN)/gossamer reproduce li2024ssvi/fashion --data-dir $(DATA) --out $(RUNS)/fashion

clean: ## remove the environment and caches, never runs
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info src/gossamer/ops/native/libgossamer.so
