# Two commands do all the set-up: `make demo` and `make test`. Both create .venv when it is missing.
PYTHON ?= python3
# Two test processes on two cores: one thread each, so that they do not wait for one another.
TEST_THREADS ?= 1
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow lint bench clean

demo: $(STAMP)
	$(BIN)/ldreg demo --out out/demo

test: $(STAMP) lint
	OMP_NUM_THREADS=$(TEST_THREADS) $(BIN)/python -m pytest -n 2 -m "not slow and not gpu"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m "slow and not gpu"

lint: $(STAMP)
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/pip install --quiet -e ".[bench]"
	$(BIN)/ldreg bench lid

# Reinstalled only when the dependencies change.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache
