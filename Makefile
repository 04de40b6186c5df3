# make demo | test | coverage | grid | lint | bench | clean. The first of them builds .venv; changed requirements rebuild it.
PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
STAMP := .venv/.installed

# Data is looked for in $NEOTENY_DATA first; a folder beside the checkout serves where it exists.
ifneq ($(wildcard ../shared/data),)
export NEOTENY_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo test test-slow coverage grid lint format bench clean

demo: $(STAMP)
	$(BIN)/neoteny run examples/demo.py --out results/demo
	$(BIN)/neoteny report results/demo

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=15

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

coverage: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --cov --cov-report=term:skip-covered

grid: $(STAMP)
	PYTHONPATH=src:tests $(BIN)/python tests/support/kernel_grid.py --jobs $(JOBS) $(GRID)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tests/support/file_lengths.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/stacking.py
	$(BIN)/python benchmarks/online.py
	$(BIN)/python benchmarks/rl.py

$(STAMP): requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf .venv build dist .coverage .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +
