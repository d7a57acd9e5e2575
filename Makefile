# Every target sets up .venv first; CONTRIBUTING.md says what each is for.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
SWEEP := gpt3-1t-b200

# A file's tests share what they compile, so they stay in one process.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: sweep test test-all test-external fuzz lint bench reproduction calibration validation

sweep: $(INSTALLED)
	$(BIN)/dsx sweep sweeps/$(SWEEP).yaml -o results/$(SWEEP)
	$(BIN)/dsx pareto results/$(SWEEP) --plot results/$(SWEEP)/front.png

test: $(INSTALLED)
	$(PYTEST) -m "not slow and not fuzz and not external"

test-all: $(INSTALLED)
	$(PYTEST) -m "not fuzz and not external"

test-external: $(INSTALLED)
	$(BIN)/python -m pytest -q -m external

fuzz: $(INSTALLED)
	$(BIN)/python -m pytest -q -n 2 -m fuzz

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright

bench: $(INSTALLED)
	$(BIN)/python benchmarks/throughput.py

reproduction: $(INSTALLED)
	$(BIN)/python benchmarks/reproduction.py --write docs/reproduction.md
	$(BIN)/dsx sweep sweeps/$(SWEEP).yaml -o results/$(SWEEP)
	$(BIN)/dsx plot results/$(SWEEP) --kind front -o docs/front.png

calibration: $(INSTALLED)
	$(BIN)/python benchmarks/calibration.py --write data/assumptions/default.yaml

validation: $(INSTALLED)
	$(BIN)/python benchmarks/accuracy.py --write docs/validation.md --freeze data/validation/predictions.csv

# pip would compile all that it installs on one core, tests of libraries included: a third of the installation.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]' -c constraints.txt
	$(BIN)/python -m compileall -q -j 0 -x '/tests/' $(BIN)/../lib
	touch $@
