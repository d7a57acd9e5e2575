# Every target sets up .venv first; CONTRIBUTING.md says what each is for.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
SWEEP := gpt3-1t-b200

# Rewriting the asserts of all tests takes longer than reading them, and each process that tests start reads dsx.
unexport PYTHONDONTWRITEBYTECODE

# A file's tests share what they compile, so they stay in one process.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

# Packages of training frameworks, which read launch files back: megatron-core needs Python 3.12, and torch 5 GB.
FRAMEWORKS_PYTHON ?= python3.12

.PHONY: sweep test test-all test-documents test-external frameworks fuzz lint docs bench reproduction calibration validation

sweep: $(INSTALLED)
	$(BIN)/dsx sweep sweeps/$(SWEEP).yaml -o results/$(SWEEP)
	$(BIN)/dsx pareto results/$(SWEEP) --plot results/$(SWEEP)/front.png

test: $(INSTALLED)
	$(PYTEST) -m "not slow and not documents and not fuzz and not external"

test-all: $(INSTALLED)
	$(PYTEST) -m "not documents and not fuzz and not external"

test-documents: $(INSTALLED)
	$(PYTEST) -m documents

test-external: $(INSTALLED)
	$(BIN)/python -m pytest -q -m external

# Bridge and TorchTitan name packages that need a GPU to install; what their configurations need is listed.
frameworks:
	test -x .frameworks/bin/python || $(FRAMEWORKS_PYTHON) -m venv .frameworks
	.frameworks/bin/python -m pip install --quiet --disable-pip-version-check -r tests/launching/frameworks.txt
	.frameworks/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/launching/frameworks-alone.txt

fuzz: $(INSTALLED)
	$(BIN)/python -m pytest -q -n 2 -m fuzz

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright

docs: $(INSTALLED)
	$(BIN)/python -m properdocs build

bench: $(INSTALLED)
	$(BIN)/python benchmarks/throughput.py --check docs/performance.md
	$(BIN)/python benchmarks/answers.py --check docs/performance.md

reproduction: $(INSTALLED)
	$(BIN)/python benchmarks/reproduction.py --write docs/reproduction.md
	$(BIN)/dsx sweep sweeps/$(SWEEP).yaml -o results/$(SWEEP)
	$(BIN)/dsx plot results/$(SWEEP) --kind front -o docs/front.png

calibration: $(INSTALLED)
	$(BIN)/python benchmarks/calibration.py --write data/assumptions/default.yaml

validation: $(INSTALLED)
	$(BIN)/python benchmarks/accuracy.py --write docs/validation.md --freeze data/validation/predictions.csv
	$(BIN)/python benchmarks/collected_runs.py --write docs/validation.md

# pip would compile all that it installs on one core, tests of libraries included: a third of the installation.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]' -c constraints.txt
	$(BIN)/python -m compileall -q -j 0 -x '/tests/' $(BIN)/../lib
	touch $@
