# Two commands do all the set-up: `make demo` and `make test`. Both create .venv when it is missing.
PYTHON ?= python3
# Two test processes on two cores: one thread each, so that they do not wait for one another.
TEST_THREADS ?= 1
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow lint docs bench dist constraints audit clean

demo: $(STAMP)
	$(BIN)/ldreg demo --out out/demo

test: $(STAMP) lint
	OMP_NUM_THREADS=$(TEST_THREADS) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu"

test-slow: $(STAMP)
	OMP_NUM_THREADS=$(TEST_THREADS) $(BIN)/python -m pytest -n 2 --dist loadfile -m "slow and not gpu"

lint: $(STAMP)
	$(BIN)/ruff check src tests examples benchmarks docs
	$(BIN)/ruff format --check src tests examples benchmarks docs
	$(BIN)/mypy

# The site, which needs no network to be read: open site/index.html, or `python -m http.server -d site` for its search.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir site

bench: $(STAMP)
	$(BIN)/ldreg bench lid

# Wheel and source archive, from what is in the working directory.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

# Reinstalled only when the dependencies change.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

# Writes down what .venv holds; on the oldest Python allowed, as its versions exist for newer ones too. For newer versions,
# first .venv/bin/pip install --upgrade --upgrade-strategy eager -e ".[dev]", then test.
constraints:
	$(BIN)/pip --disable-pip-version-check freeze --exclude-editable > $(VENV)/frozen.txt
	{ echo "# Exact versions of all that \`make test\` installs, for pip's -c: what a platform does not ask for,"; \
	  echo "# as CUDA and Triton, it does not get. Written anew from .venv by \`make constraints\`."; \
	  LC_ALL=C sort -f $(VENV)/frozen.txt; } > $(VENV)/constraints.txt
	mv $(VENV)/constraints.txt constraints.txt

# Known advisories against constraints.txt; needs the internet. In an environment of its own, as .venv is what is pinned.
audit:
	test -x $(VENV)/audit/bin/pip-audit || \
	  { $(PYTHON) -m venv $(VENV)/audit && $(VENV)/audit/bin/pip install --quiet --disable-pip-version-check pip-audit; }
	$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt

clean:
	rm -rf $(VENV) out dist site .mypy_cache .ruff_cache .pytest_cache
