# Every target sets up what it needs: a virtual environment in .venv with the pinned versions. Files are compiled when
# they are first imported: compiling all of them takes half the time of the installation.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUNS   ?= runs

# Two threads that wait by spinning take a tiny model ten times as long on a machine that is busy otherwise.
export OMP_WAIT_POLICY ?= PASSIVE
# Where containers set it, every run of the tests would compile all of their assertions anew, twenty seconds a process.
unexport PYTHONDONTWRITEBYTECODE
export NO_MKDOCS_2_WARNING = 1  # of the theme, about a later MkDocs that is not installed

SEEDS    ?= 1 7 10
JOBS     ?= 1
MUTANTS  ?= --count 200
METHODS  ?= promptccd promptccd-gcd promptccd-b-l2p promptccd-b-dp promptccd-u promptccd-pp simgcd simgcd-replay \
	gcd-replay happy orca pa-cgcd metagcd rankstats frost grow-merge
CIFAR100   ?= uoft-cs/cifar100
CALTECH101 ?= flwrlabs/caltech101

# Rows of Happy's ablation: without any part that is its own; answers kept even and new rows started at clusters;
# rehearsal too; all of it.
ABLATED := {discovery_entropy_weight: 0, clustered_rows: false, replay_weight: 0, drift_weight: 0},{replay_weight: 0, drift_weight: 0},{drift_weight: 0},{drift_weight: 1}
# Its setting: 80 % of a category when it appears, the later stages share the rest equally.
CUTS    := '[[.8, .2, .25, 0.3333333333333333, .5, 1], [.8, .25, 0.3333333333333333, .5, 1], [.8, 0.3333333333333333, .5, 1], [.8, .5, 1], [.8, 1], [1]]'

.PHONY: versions release-check dist hashes demo tables ablation spectrum mechanisms gpu peers test check test-slow test-landing test-all faults golden mutants lint types-linux types-win32 types-darwin docs page format bench year clean

demo: $(VENV)/.run           ## discover ten categories of 362 photographs and write a page of them; two minutes, no network
	@echo "PromptCCD on 362 photographs: ten categories are labelled, ten are to be discovered."
	@$(BIN)/python examples/demo.py --out $(RUNS)/promptccd-demo

# Cells of one seed have equal backbones; what is finished is not trained again. JOBS cells are trained at once.
tables: table-digits table-cifar100-small table-caltech101-small  ## every method's answers on three data sets

table-cifar100-small: PLACE = --dataset $(CIFAR100)
table-caltech101-small: PLACE = --dataset $(CALTECH101)
table-%: $(VENV)/.run        ## one of them, METHODS="happy orca" SEEDS="1 7 10"; CIFAR100=folder for a local copy
	$(BIN)/promptccd sweep --config $(METHODS:%=hub_configs/%-$*.yaml) --seeds $(SEEDS) --baselines --jobs $(JOBS) \
		--mixed_precision no --out $(RUNS)/$* $(PLACE)

ablation: $(VENV)/.run       ## Happy's ablation: its own setting on 20 classes of CIFAR-100, and digits
	$(BIN)/promptccd sweep --config hub_configs/happy-cifar100-small.yaml --seeds $(SEEDS) --set 'options=$(ABLATED)' \
		--dataset $(CIFAR100) --class_blocks 10 2 2 2 2 2 --cuts $(CUTS) --jobs $(JOBS) --out $(RUNS)/ablation-cifar100
	$(BIN)/promptccd sweep --config hub_configs/happy-digits.yaml --seeds $(SEEDS) --set 'options=$(ABLATED)' \
		--jobs $(JOBS) --out $(RUNS)/ablation-digits

spectrum: $(VENV)/.run       ## accuracy over the labelled shares of categories and of images; about an hour
	$(BIN)/python -m benchmarks.creatures $(RUNS)/creatures
	$(BIN)/python -m benchmarks.creatures $(RUNS)/creatures-of-the-backbone --seed 1
	$(BIN)/promptccd train --config benchmarks/recipes/promptccd-gcd-creatures.yaml --dataset $(RUNS)/creatures-of-the-backbone \
		--class_blocks 17 1 1 1 --seed 3 --training.epochs 1 --pretraining.epochs 120 --output_dir $(RUNS)/other-creatures
	$(BIN)/promptccd sweep --config $(foreach method,promptccd-gcd promptccd promptccd-pp,benchmarks/recipes/$(method)-creatures-spectrum.yaml) \
		--dataset $(RUNS)/creatures --seeds 1 --set category_ratio=0.2,0.5,0.8 sample_ratio=0.2,0.5,0.8 \
		--backbone $(RUNS)/other-creatures/backbone --backbone_config '{}' --jobs $(JOBS) --out $(RUNS)/spectrum

# ORDER=7 shuffles files, and the tests within each, by that seed: no test may need another one before it.
ORDER  ?=
# All cores, but at most eight: a process of the tests needs a gigabyte.
CORES  ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n > 8 ? 8 : n)))
ARGS   ?=
PYTEST := $(BIN)/python -m pytest --numprocesses $(CORES) --dist worksteal $(if $(ORDER),--random-order-seed=$(ORDER))

# What failed beside other work is run once more alone, since kills, browsers and limits of time depend on a machine
# that others use. Both runs are printed; a test that fails twice fails. A run that broke off (another exit code than 1)
# is not run again.
AGAIN  := $(BIN)/python -m pytest --last-failed --last-failed-no-failures none

# Slow tests are dealt to five parts. `commit` takes the one whose turn it is: see tests/rotation.py.
PART ?= commit

test: $(VENV)/.dev           ## quick tests, offline; two and a half minutes on two idle cores; ARGS="tests/clustering -k seed"
	$(PYTEST) -m "not slow and not moderate" $(ARGS)

check: $(VENV)/.dev          ## what CI will say: lint, types, known risks, docs, and the tests of a landing
	$(MAKE) --jobs 2 test-landing lint faults docs  # tests wait now and then: the others run meanwhile

test-landing: $(VENV)/.dev   ## what a landing has to pass: these, the whole life of every method, a fifth of the rest
	$(PYTEST) --slow-part $(PART) || { [ $$? -eq 1 ] && $(AGAIN) --slow-part $(PART); }

test-slow: $(VENV)/.dev      ## the others: kills at every instant, hostile files, browsers, whole runs
	$(PYTEST) -m "slow or moderate"

test-all: test test-slow     ## the whole suite, before a release

faults: $(VENV)/.dev         ## what can go wrong, row by row, with the tests that hold it
	$(BIN)/python -m tests.faults

golden: $(VENV)/.dev         ## rewrite tests/golden after an intended change of outputs, some minutes; read the diff
	WRITE_GOLDEN=1 $(BIN)/python -m pytest -q -m "not slow" $$(grep -rlE "tests.kept|require_kept" tests --include="test_*.py")

mutants: $(VENV)/.dev        ## small mistakes put in one by one, guards taken out: a test must fail; MUTANTS='--count 50 clustering/'
	$(BIN)/python -m tests.mutants $(MUTANTS)

lint: types-linux types-win32 types-darwin  ## ruff, and mypy for the three systems, side by side with make -j2; nothing is changed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -c "import pathlib, yaml; [yaml.safe_load(each.read_text()) for each in pathlib.Path('.github').rglob('*.yml')]"

types-linux: $(VENV)/.dev
	$(BIN)/mypy
types-win32 types-darwin: types-%: $(VENV)/.dev
	$(BIN)/mypy --platform $* --config-file tests/platforms.ini --cache-dir .mypy_cache/$* src train.py examples

versions: $(VENV)/.release    ## fast tests on other versions of what it needs, neighbours beside it; half an hour
	$(BIN)/python -m tests.versions $(VERSIONS)

release-check: $(VENV)/.release  ## what a release has to pass, step by step, in a clean clone; says what is missing
	$(BIN)/python -m tests.release

dist: $(VENV)/.release        ## the wheel and the source distribution, into dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

hashes: $(VENV)/.release      ## pin the files of what is installed, not only their versions
	@mkdir -p build
	grep "^#" constraints.hashes.txt > build/hashes.txt
	$(BIN)/python -m uv pip compile --quiet --no-emit-index-url --universal --python-version 3.11 --generate-hashes \
		--no-annotate --no-header -c constraints.txt pyproject.toml >> build/hashes.txt
	mv build/hashes.txt constraints.hashes.txt

docs: $(VENV)/.dev           ## the site, into build/site, without a network; any warning is an error
	$(BIN)/python -m mkdocs build --strict
	@echo "Open build/site/index.html."

format: $(VENV)/.dev         ## rewrite to the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev          ## ratios of speed and memory, each measured in one run
	$(BIN)/python -m benchmarks.bench_all

YEAR   ?= --weeks 52
year: $(VENV)/.dev           ## a folder a week into one project, DATA=train.parquet: categories, kinds, what is right; goes on where it stopped
	$(BIN)/python -m benchmarks.bench_year $(DATA) $(YEAR) --out $(RUNS)/year

mechanisms: $(VENV)/.dev     ## what an idea of the paper can do that its absence cannot, in worlds built for it
	$(BIN)/python -m benchmarks.mechanisms --seeds $(SEEDS)

# GPU='diagnose --data train.parquet --label_column fine_label' takes one part alone.
GPU    ?=
gpu: $(VENV)/.dev            ## what only a GPU can tell: does every method run, how fast, what prompts could do; goes on where it stopped
	$(BIN)/python -m benchmarks.bench_gpu $(GPU) --out $(RUNS)/gpu

# PEERS='"simgcd finished"' takes one case alone.
PEERS  ?=
peers: $(VENV)/.dev          ## transformers' own tests of every model, fetched once, over every method and backbone
	$(BIN)/python -m pip install --quiet parameterized
	$(BIN)/python -m tests.peers $(PEERS)

page:                        ## build the page of `promptccd open` from frontend/; needs Node 20
	cd frontend && npm ci --no-audit --no-fund && npm run check && npm run build

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .mutants_cache .peers_cache

$(VENV)/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": say make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/pip pyproject.toml constraints.txt
	@echo "Installing promptccd, PyTorch and transformers into $(VENV): 1.7 GB, or 6.2 GB where PyTorch comes with CUDA."
	$(BIN)/pip install --no-compile -c constraints.txt -e .
	touch $@

$(VENV)/.release: $(VENV)/.dev
	$(BIN)/pip install --quiet -c constraints.txt -e '.[release]'
	touch $@

$(VENV)/.dev: $(VENV)/bin/pip pyproject.toml constraints.txt
	@echo "Installing promptccd with its tools for tests, docs and types into $(VENV): some 2 GB."
	$(BIN)/pip install --no-compile -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.run
