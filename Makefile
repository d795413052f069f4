# Every target does its own set-up: a bare clone needs only Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PROTO_FILES := $(wildcard protos/fedpeer/v1/*.proto)
# Workers of the default suite: one more than the machine has cores, since one of them often waits for a deadline.
PYTEST_WORKERS ?= $(shell $(PYTHON) -c "import os; print(1 + os.cpu_count())")
# Where tests keep their files: in memory, where there is room. On a disk half of what they wait for is fsync, which
# nothing here can tell from none: processes are killed, machines are not.
TEST_FILES ?= $(shell df --output=avail -k /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 4000000 {print "/dev/shm"}')
# One thread a process: workers and what they start are as many as there are cores, and threads that wait spin. Byte
# code is kept whatever the shell says: processes start by the hundred, and each would compile everything again.
PYTEST := $(if $(TEST_FILES),TMPDIR=$(TEST_FILES) )OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
FAST_TESTS := tests/test_architecture.py tests/mechanism tests/fedpeer/protocol tests/participant/test_journal.py \
	tests/participant/test_config.py tests/coordinator/test_states.py \
	--ignore tests/mechanism/test_equilibrium.py --ignore tests/mechanism/test_learner.py

.PHONY: demo docs test test-fast test-extended test-install test-slow test-browser screenshots test-arithmetics mutants test-flower lint types check-protos protos format manifests \
	bench bench-flower clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/fedpeer demo $(DEMO_ARGS)

test: $(STAMP)
	$(PYTEST) -n $(PYTEST_WORKERS) --dist loadscope --no-loadscope-reorder $(TEST_ARGS)

# The mathematics, the protocol and the house's own rules: what to run after every change.
test-fast: $(STAMP)
	$(PYTEST) -n $(PYTEST_WORKERS) --dist loadscope -q $(FAST_TESTS) $(TEST_ARGS)

# The base install from a wheel, with the lowest and the newest versions, on every Python that is here.
test-install: $(STAMP)
	$(BIN)/python -m pytest -m slow tests/packaging/test_install.py $(TEST_ARGS)

# What the default suite has no time for: other variants of its paths, whole demos, the tutorial, the site, experiments.
test-extended: $(STAMP)
	$(PYTEST) -n $(PYTEST_WORKERS) --dist loadscope --no-loadscope-reorder -m 'extended and not slow' $(TEST_ARGS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(TEST_ARGS)

# The web console in a headless Chromium, with Debian's chromium, chromium-driver and libnss3-tools; skips where they are missing.
test-browser: $(STAMP)
	$(BIN)/python -m pytest -m browser tests/browser $(TEST_ARGS)

# Pictures of the console's pages for docs/console.md.
screenshots: $(STAMP)
	$(BIN)/python -m tests.browser.screenshots docs/figures/console

# What trains or measures, under several instruction sets and numbers of threads: no test hangs on the last digits.
test-arithmetics: $(STAMP)
	$(BIN)/python -m tests.arithmetics $(TEST_ARGS)

# Small changes that a test must notice, in what money depends on. MUTANTS_ARGS="fedpeer/protocol/frames.py --guards --sample 50"
mutants: $(STAMP)
	nice -n 10 $(BIN)/python -m tests.mutation $(MUTANTS_ARGS)

# Flower pins protobuf below 7 and other libraries to narrow ranges, so it has an environment of its own.
FLOWER_VENV := .venv-flower

$(FLOWER_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(FLOWER_VENV)
	$(FLOWER_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(FLOWER_VENV)/bin/python -m pip install --quiet --editable '.[dev,flower]'
	touch $@

test-flower: $(FLOWER_VENV)/.installed
	$(FLOWER_VENV)/bin/python -m pytest tests/participant/adapters/test_flower.py \
		tests/integration/test_flower_task.py tests/integration/test_examples.py

# deploy/kustomize/base from the chart, by Helm.
manifests:
	(echo '# Rendered from deploy/helm/fedpeer by `make manifests`; change the chart.' \
		&& helm template fedpeer deploy/helm/fedpeer | sed '/^# Source: /d') > deploy/kustomize/base/fedpeer.yaml

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

lint: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(STAMP)
	$(BIN)/python -m mypy

format: $(STAMP)
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

# The compiler has an environment of its own: it pins protobuf below what the product runs on.
PROTOS_VENV := .venv-protos
PROTOS_STAMP := $(PROTOS_VENV)/.installed

$(PROTOS_STAMP): pyproject.toml
	$(PYTHON) -m venv $(PROTOS_VENV)
	$(PROTOS_VENV)/bin/python -m pip install --quiet grpcio-tools==1.75.1 mypy-protobuf==3.6.0
	touch $(PROTOS_STAMP)

protos: $(PROTOS_STAMP)
	$(PROTOS_VENV)/bin/python protos/generate.py

check-protos: $(PROTOS_STAMP)
	$(PROTOS_VENV)/bin/python protos/generate.py --check

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Shadows that train together on a CUDA device against one core; says so where torch finds none.
bench-gpu: $(STAMP)
	$(BIN)/python -m benchmarks.device

# Rounds beside Flower, which `make bench` only compares with where this environment is there.
bench-flower: $(STAMP) $(FLOWER_VENV)/.installed
	$(BIN)/python -m benchmarks.rounds --flower $(FLOWER_VENV)/bin/python

clean:
	rm -rf $(VENV) $(PROTOS_VENV) site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
