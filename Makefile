# Every target that needs the environment builds it first: `make demo` and `make test` work on a fresh
# checkout with python3 (3.11 or newer, with venv), make and git. `make` alone lists the targets.

PYTHON ?= python3

# Set on the command line, never taken from the shell's environment.
MODEL =
DATA = runs/data
OUT =
ARGS =

VENV := .venv
PY := $(VENV)/bin/python
EWTRAIN := $(VENV)/bin/ewtrain
PIP := $(PY) -m pip --disable-pip-version-check --no-input

# The stamp's name holds a checksum of what decides the install, so a change of branch or a moved folder
# is noticed, and a mere new time stamp is not.
READY := $(VENV)/.ready-$(shell { pwd; cat requirements/lock.txt pyproject.toml; } | cksum | cut -d ' ' -f 1)

# Two pytest or training processes on one small machine only slow each other down.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-slow check lock train-char train-world train need-model one-out bench-build clean

help: ## this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## install everything into .venv; a second run does nothing

# Torch comes first and with its dependencies: where the registry serves its CUDA build, the nvidia wheels
# have to come along; the small CPU build needs none of them. To get that one, set PIP_EXTRA_INDEX_URL to
# the CPU index that PyTorch's own install page names. All the rest is in the lock, so no resolver runs.
$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "ewtrain needs Python 3.11 or newer, and '$(PYTHON)' is not that. Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@rm -f $(VENV)/.ready-*
	@echo "Setting up $(VENV): 2 to 3 minutes and 2.5 GB, more where PyTorch comes with CUDA."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c requirements/lock.txt "$$(grep '^torch==' requirements/lock.txt)"
	$(PIP) install --quiet --no-deps -r requirements/lock.txt
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## the whole path, small, on this machine
	$(EWTRAIN) demo $(ARGS)

test: $(READY) ## the fast tests
	$(PY) -m pytest -n 2 $(ARGS)

test-slow: $(READY) ## the tests that train, serve or take minutes
	$(PY) -m pytest -m slow --timeout 900 $(ARGS)

check: $(READY) ## lint, format and types
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

lock: $(READY) ## resolve requirements/lock.txt anew around requirements/pins.txt
	$(PY) requirements/lock.py

train-char: adapter = character_agent
train-world: adapter = world_model
train-char: ## train the Character Agent: MODEL=NAME [DATA=runs/data] [OUT=DIR] [ARGS="key=value ..."]
train-world: ## train the World Model, with the same variables
train-char train-world: need-model $(READY)
	$(EWTRAIN) sft --adapter $(adapter) --model "$(MODEL)" --data "$(DATA)" --out "$(or $(OUT),runs/$(run_name)/$(adapter))" $(ARGS)

train: $(if $(OUT),one-out,train-world train-char) ## train both, each into its own folder

# A hub id keeps its owner; of a folder's path only the last part names the run.
run_name = $(if $(filter /% .% ~%,$(MODEL)),$(notdir $(patsubst %/,%,$(MODEL))),$(MODEL))

need-model:
	@test -n "$(MODEL)" || { echo "Say which model: make $(firstword $(MAKECMDGOALS)) MODEL=<recipe name, hub id or folder>" >&2; exit 1; }

one-out:
	@echo "make train writes two adapters, and OUT names the folder of one: use train-char and train-world." >&2; exit 1

bench-build: $(READY) ## time the building of rows
	$(PY) -m benchmarks.build $(ARGS)

clean: ## remove caches and build outputs; .venv and runs/ stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -path ./runs -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
