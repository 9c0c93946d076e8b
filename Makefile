# make demo    set up .venv and watch a real 1F1B pipeline train (q leaves)
# make test    set up .venv and run the tests; make test-long runs those that take longest
PYTHON ?= python3
# A wheel index for torch, where the default one would bring CUDA builds you do not want:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: demo test test-long native native-asan unit lint bench diagnosis siege frameworks matrix torches lowest sessions \
  dist docs pictures snapshots install clean
.DEFAULT_GOAL := test

demo: $(STAMP)
	$(BIN)/pardbg demo

# Files at a time, in the order of tests/conftest.py; what a module's tests share is made once. One
# more than two cores: a third of the time is waiting.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Hundreds of processes import the same modules: each is compiled once.
export PYTHONDONTWRITEBYTECODE :=

# What fails beside the others is tried once more alone, and named: tests/again.py.
AGAIN := test $$? = 1 && $(BIN)/python -m tests.again

test: $(STAMP) native
	$(PYTEST) -m "not long" || { $(AGAIN); }

# The rest of them, of tests/conftest.py's LONG.
test-long: $(STAMP) native
	$(PYTEST) -m long || { $(AGAIN); }

# The agent's hot path in C++, for the tests: half a minute, once. Where it cannot be built they
# take Python's way alone.
native: $(STAMP)
	@PARDBG_NATIVE=$(or $(PARDBG_NATIVE),.native) $(BIN)/pardbg native build || true

# Its tests over a build with AddressSanitizer and UBSan.
native-asan: $(STAMP)
	tests/asan.sh $(BIN)/python

# All that needs no second process: seconds.
unit: $(STAMP)
	$(PYTEST) $(wildcard tests/unit tests/contracts tests/wire tests/ui)

# Install and unit tests on each Python from 3.10 to 3.14 that is here, a line each:
#   make matrix PYTHONS="python3.12 /opt/python3.13/bin/python3"
matrix:
	@TORCH_INDEX="$(TORCH_INDEX)" tests/matrix.sh $(PYTHONS)

# Both wheels with the oldest releases of what they need, on each Python that is here:
#   make lowest PYTHONS="python3.10 python3.13"
lowest: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@UV=$(BIN)/uv tests/lowest.sh $(PYTHONS)

# The hooks' tests and every recipe beside other releases of torch, each in an environment of its
# own (gigabytes, removed afterwards; KEEP=DIR keeps them), as a table:
#   make torches VERSIONS="2.6 2.9"
torches: $(STAMP)
	$(BIN)/python -m tests.torches $(if $(KEEP),--keep $(KEEP)) \
	  $(if $(TORCH_INDEX),--index $(TORCH_INDEX)) $(VERSIONS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/typos

# Both distributions into dist/: source, and a wheel built from it.
dist: $(STAMP)
	$(BIN)/python -m tests.packaging.build dist

# The site of docs/ into site/; a broken link fails.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict

# The pictures in docs/pictures, anew: from sessions/, and of a run of the demo (a minute, on idle cores).
pictures: $(STAMP)
	$(BIN)/python -m tests.ui.pictures

# Accept how the screens look now.
snapshots: $(STAMP)
	$(PYTEST) -q tests/ui/snapshots --snapshot-update

# Ten minutes with a GPU: what only one can prove, as a table. Without one: make gpu DEVICE=sim
.PHONY: gpu
gpu: $(STAMP) native
	@failed=0; export OMP_NUM_THREADS=1; \
	PARDBG_NATIVE=$(or $(PARDBG_NATIVE),.native) \
	  $(BIN)/python -m tests.gpu $(if $(DEVICE),--device $(DEVICE)) $(ROWS) || failed=1; \
	PARDBG_HOOKS=dispatcher \
	  $(BIN)/python -m tests.gpu $(if $(DEVICE),--device $(DEVICE)) \
	  spans graphs ops contexts hang losses || failed=1; \
	$(BIN)/python -m pytest -q tests/gpu || failed=1; exit $$failed

diagnosis: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.diagnosis $(ARGS)

# Programs of training frameworks, plain and watched, as a table. Frameworks that are not in .venv:
#   make frameworks FRAMEWORKS_PYTHON=/path/to/python FRAMEWORKS_PATH=/src/picotron ONLY="megatron"
frameworks: $(STAMP)
	PARDBG_FRAMEWORKS_PYTHON="$(or $(FRAMEWORKS_PYTHON),$(abspath $(BIN)/python))" \
	  PARDBG_FRAMEWORKS_PATH="$(FRAMEWORKS_PATH)" $(BIN)/python -m tests.frameworks $(ONLY)

# What must never happen, tried many times: ARGS="kills --size 10 --seed 7", ARGS="soak --soak 7200".
siege: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.siege $(ARGS)
	PARDBG_SIEGE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/faults/test_on_hang.py \
	  tests/unit/analysis/test_horizon.py

bench: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.bench $(ONLY)

# Record the sessions in sessions/ anew: some minutes on an idle machine. ONLY="1f1b ddp" does some.
sessions: $(STAMP)
	$(BIN)/python -m tests.sessions $(ONLY)

install: $(STAMP)

$(STAMP): pyproject.toml agent/pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "pardbg: no $(PYTHON) here; install Python 3.10 or newer, or run: make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "pardbg: $(PYTHON) is $$($(PYTHON) -V 2>&1), but Python 3.10 or newer is needed; run: make PYTHON=python3.11" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "pardbg: $(PYTHON) cannot make a virtual environment (on Debian: apt install python3-venv)" >&2; exit 2; }
	@echo "pardbg: what pyproject.toml names goes into $(VENV), from pip's index$(if $(TORCH_INDEX), and $(TORCH_INDEX));" \
	  "torch is the largest (a build without CUDA: TORCH_INDEX=https://download.pytorch.org/whl/cpu)"
	$(BIN)/python -m pip install --disable-pip-version-check $(INDEX) \
	  -c constraints.txt -e ./agent -e '.[train,dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +
