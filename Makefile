# On a fresh Linux with Python 3.11 or newer, git and make:
#   make grade    grade a sample class and print the table
#   make test     run all that CI runs
# PYTHON and TORCH_INDEX_URL are read by .ci/setup_env.sh.

export PYTHON ?=
export TORCH_INDEX_URL ?=
# Tools of the environment come first: nbgrader starts `alembic`, which it looks up on PATH.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

PY := .venv/bin/python
READY := .venv/.ready
OUT := graded-samples

.PHONY: help env release grade linux test lint test-unit test-notebooks bench bench-grading clouds lab clean
.DEFAULT_GOAL := help

help:
	@echo 'make grade    make the sample class, grade it in the sandbox, print the table (Linux)'
	@echo 'make test     all that CI runs: lint, tests, notebooks'
	@echo 'make lab      open JupyterLab here'
	@echo 'make release  derive release/ and notebooks/ from source/, and check them'
	@echo 'make env      make or update .venv (PYTHON=python3.12, TORCH_INDEX_URL=https://…/whl/cpu)'
	@echo 'make bench    compare native MTP with plain autoregression: table and mtp-bench.png (a minute)'
	@echo 'make bench-grading  time the grader against plain nbgrader (about 10 minutes)'
	@echo 'make clouds   run the notebooks on the versions that clouds ship (downloads GBs, about half an hour)'
	@echo 'make lint | test-unit | test-notebooks    the parts of make test'
	@echo 'make clean    remove .venv, caches and graded samples'

env: $(READY)

# The script writes the stamp itself, last.
$(READY): requirements.txt .ci/constraints.txt .ci/setup_env.sh
	@bash .ci/setup_env.sh

release: $(READY)
	$(PY) -m grading release

grade: linux $(READY)
	$(PY) -m grading release
	$(PY) samples/make_class.py --out $(OUT)/inbox
	$(PY) -m grading grade $(OUT)/inbox --out $(OUT) --roster samples/roster.csv

linux:
	@[ "$$(uname -s)" = Linux ] || { \
	  echo "error: grading runs learners' code in a sandbox that only Linux has, and this is $$(uname -s)." >&2; \
	  echo 'error: run it in WSL 2 (Windows) or in a Linux container: see README.md.' >&2; exit 1; }

test: lint test-unit test-notebooks

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

# One thread: the models are tiny, and several kernels at once would only fight over the cores.
test-unit test-notebooks: export OMP_NUM_THREADS = 1

test-unit: $(READY)
	$(PY) -m pytest

# source/ holds no outputs, so there is nothing to compare with: --nbval-lax checks that it runs.
test-notebooks: $(READY)
	$(PY) -m pytest --nbval-lax source
	$(PY) -m grading release --solved $(OUT)/solved
	$(PY) -m pytest --nbval-lax $(OUT)/solved
	$(PY) -m pytest --nbval notebooks

bench: $(READY)
	OMP_NUM_THREADS=1 $(PY) -m mtp bench

bench-grading: linux $(READY)
	$(PY) -m grading.bench

# Each environment is made afresh in a temporary folder; not a part of CI.
clouds: $(READY)
	$(PY) .ci/clouds.py

lab: $(READY)
	$(PY) -m jupyter lab

clean:
	rm -rf .venv .pytest_cache .ruff_cache $(OUT)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
