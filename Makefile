# Every target sets up what it needs: a virtual environment in .venv with the pinned versions.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUNS   ?= runs

# Two threads that wait by spinning take a tiny model ten times as long on a machine that is busy otherwise.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo demo-seeds test lint format bench clean

demo: $(VENV)/.run           ## train PromptCCD on digits through its four stages and print the table
	$(BIN)/promptccd train --config hub_configs/promptccd-digits.yaml --output_dir $(RUNS)/promptccd-digits
	$(BIN)/promptccd evaluate $(RUNS)/promptccd-digits --baselines --next-steps

demo-seeds: $(VENV)/.run     ## the same for seeds 1, 7 and 10, and their mean
	for seed in 1 7 10; do $(BIN)/promptccd train --config hub_configs/promptccd-digits.yaml \
		--seed $$seed --output_dir $(RUNS)/promptccd-digits-seed$$seed || exit $$?; done
	$(BIN)/promptccd evaluate $(foreach seed,1 7 10,$(RUNS)/promptccd-digits-seed$(seed)) --baselines

test: $(VENV)/.dev           ## the whole suite, offline
	$(BIN)/python -m pytest

lint: $(VENV)/.dev           ## ruff and mypy, nothing is changed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev         ## rewrite to the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev          ## ratios of speed and memory, each measured in one run
	$(BIN)/python -m benchmarks.bench_all

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache

$(VENV)/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": say make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.run
