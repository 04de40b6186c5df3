# make demo | test | coverage | grid | lint | docs | bench | soak | clean. The first of them builds .venv; changed requirements rebuild it.
# make lock | audit: after a change of requirements.txt; known weaknesses of what it pins. Both need the network.
PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
STAMP := .venv/.installed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TOOLS := build/tools/bin
LOCK ?= requirements.lock

# Data is looked for in $NEOTENY_DATA first; a folder beside the checkout serves where it exists.
ifneq ($(wildcard ../shared/data),)
export NEOTENY_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo test test-slow coverage grid lint docs format bench soak lock audit clean

demo: $(STAMP)
	$(BIN)/neoteny run examples/demo.py --out results/demo
	$(BIN)/neoteny report results/demo

# Compiled Python is kept even where the environment says not to: the tests start many processes, and each would compile the package.
test: export PYTHONDONTWRITEBYTECODE :=
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

# A site of static files in site/, for any web server. A warning (a missing page, a link or an anchor without its target) is an error.
docs: $(STAMP)
	rm -rf site
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --doctree-dir build/doctrees docs site
	$(BIN)/python tests/support/site_links.py site

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/stacking.py
	$(BIN)/python benchmarks/online.py
	$(BIN)/python benchmarks/rl.py

soak: $(STAMP)
	$(BIN)/python benchmarks/soak.py

# Registries have different files of torch (with or without CUDA), so it alone has no hash: requirements.txt installs it.
# `make LOCK= test` does without hashes, for a registry that builds its own files.
$(STAMP): requirements.txt requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(if $(LOCK),$(INSTALL) --require-hashes --no-deps -r $(LOCK))
	$(INSTALL) -r requirements.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	touch $@

lock: $(TOOLS)/uv
	$(TOOLS)/uv pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-deps --no-emit-package torch \
		--no-annotate --custom-compile-command "make lock" --output-file requirements.lock requirements.txt

audit: $(TOOLS)/pip-audit
	$(TOOLS)/pip-audit --strict --no-deps --disable-pip --requirement requirements.txt

$(TOOLS)/uv $(TOOLS)/pip-audit:
	$(PYTHON) -m venv build/tools
	$(TOOLS)/python -m pip install --quiet --disable-pip-version-check uv==0.13.7 pip-audit==2.10.1

clean:
	rm -rf .venv build dist site .coverage .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +
