# make demo   make .venv, install, run the benchmark on CartPole over every backend there is: table and chart
# make test   make .venv, install what the tests need, run those of the short tier: some minutes
# make test-all   run all tests: before a release
# make repeat the short tier RUNS=20 times, beside BESIDE=2 busy processes, and how often each test has failed: repeat/tally.txt
# make sanitize   run the tests of the compiled core under AddressSanitizer and UBSan
# make chaos  random schedules with kills, stops and Ctrl-C: SECONDS=600 for each of ENGINES="dummy subproc caller mpi ray"
# make fuzz   random programs over any spaces, sizes and engines against a model: SECONDS=60 ENGINES="dummy fork caller"
# make mutants  put small faults into a copy one by one, and list those that no test of the short tier finds (half an hour)
# make docs   build the documentation site, docs/_build/html, with warnings as errors, and check its links
# make lint   ruff and mypy        make constraints   pin the newest versions        make clean
#
# Versions come from constraints.txt. PYTHON=python3.12 picks another interpreter for a new .venv,
# PYTEST_ARGS="-k seed -x" goes to pytest ("-n 0": in one process), DEMO_ARGS="--num-envs 8" to the benchmark.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

DEMO_EXTRAS := bench,mpi,ray
TEST_EXTRAS := test
LINT_EXTRAS := bench,testing,dev
DOCS_EXTRAS := docs,testing

DEMO_ARGS ?= --seconds 0.5 --repeats 3
PYTEST_ARGS ?=
SECONDS ?= 600
ENGINES ?=
CHAOS_ARGS ?=
FUZZ_ARGS ?=
MUTANTS_ARGS ?=
RUNS ?= 20
BESIDE ?= 0
# Most tests wait more than they compute. tests/conftest.py groups those that share what they have started (a Ray).
TEST_PROCESSES := -n 4 --dist loadgroup
# Programs that tests start read this package's bytecode rather than compile it, each anew, whatever this shell says. And
# the threads of their OpenBLAS sleep at once; they would poll for 0.1 s each, beside the tests of other processes.
TEST_ENVIRONMENT := PYTHONDONTWRITEBYTECODE= OPENBLAS_THREAD_TIMEOUT=4
TORCH := torch==2.13.0

.PHONY: demo test test-all repeat sanitize chaos fuzz mutants docs lint constraints clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

demo: $(VENV)/.extras-$(DEMO_EXTRAS)
	@mkdir -p demo
	@echo "Measuring. MPI and Ray are started anew for each reading ..."
	$(BIN)/python -m vecenvs bench CartPole-v1 --backends dummy subproc subproc:caller mpi ray \
	    --json demo/cartpole.json --chart demo/cartpole.png $(DEMO_ARGS)

test: $(VENV)/.extras-$(TEST_EXTRAS) $(VENV)/mpich/.stamp
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest $(TEST_PROCESSES) -m "not long" $(PYTEST_ARGS)

test-all: $(VENV)/.extras-$(TEST_EXTRAS) $(VENV)/mpich/.stamp
	$(TEST_ENVIRONMENT) VECENVS_SCHEDULES=$${VECENVS_SCHEDULES:-100} $(BIN)/python -m pytest $(TEST_PROCESSES) $(PYTEST_ARGS)

repeat: $(VENV)/.extras-$(TEST_EXTRAS) $(VENV)/mpich/.stamp
	$(TEST_ENVIRONMENT) $(BIN)/python tests/scripts/repeat.py --runs $(RUNS) --beside $(BESIDE) -- \
	    $(TEST_PROCESSES) -m "not long" $(PYTEST_ARGS)

# A copy of the package, so that the one in use is not replaced. Python's memory is known to no leak checker.
SANITIZED := build/sanitize
OF_THE_CORE := tests/test_native.py tests/test_native_blocks.py tests/test_native_memory.py
sanitize: $(VENV)/.extras-$(TEST_EXTRAS)
	@rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	@cp -r vecenvs tests setup.py README.md LICENSE pyproject.toml $(SANITIZED) && rm -f $(SANITIZED)/vecenvs/_native/*.so
	cd $(SANITIZED) && CFLAGS="-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all" \
	    $(CURDIR)/$(BIN)/python setup.py --quiet build_ext --inplace
	cd $(SANITIZED) && LD_PRELOAD="$$(cc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	    PYTHONPATH=. $(TEST_ENVIRONMENT) $(CURDIR)/$(BIN)/python -m pytest $(OF_THE_CORE) -m "not long" $(PYTEST_ARGS)

chaos: $(VENV)/.extras-$(TEST_EXTRAS)
	PYTHONPATH=tests $(BIN)/python -m chaos --seconds $(SECONDS) $(if $(ENGINES),--engine $(ENGINES)) $(CHAOS_ARGS)

fuzz: $(VENV)/.extras-$(TEST_EXTRAS)
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(SECONDS) $(if $(ENGINES),--engine $(ENGINES)) $(FUZZ_ARGS)

mutants: $(VENV)/.extras-$(TEST_EXTRAS) $(VENV)/mpich/.stamp
	PYTHONPATH=tests $(BIN)/python -m mutants $(MUTANTS_ARGS)

docs: $(VENV)/.extras-$(DOCS_EXTRAS)
	rm -rf docs/_build
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

# The tests' second MPI: one virtual environment holds one.
$(VENV)/mpich/.stamp: setup.py constraints.txt tests/mpi/setup_mpich.sh | $(BIN)/python
	@sh tests/mpi/setup_mpich.sh $(BIN)/python $(VENV)/mpich
	@touch $@

lint: $(VENV)/.extras-$(LINT_EXTRAS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One stamp per set of extras, so that nothing is installed twice. The editable install follows the source by itself.
# Without build isolation, because constraints do not reach an isolated build; without setuptools' caution about folders.
$(VENV)/.extras-%: setup.py constraints.txt $(wildcard vecenvs/_native/*.[ch]) | $(BIN)/python
	@echo "Installing into $(VENV), 1 of 2: what builds the package (pip, setuptools, numpy) ..."
	@$(PIP) install --quiet --constraint constraints.txt pip setuptools numpy
	@echo "Installing into $(VENV), 2 of 2: vecenvs[$*] and what it needs; the first time this takes some minutes ..."
	@PYTHONWARNINGS="ignore:Editable installation" \
	    $(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[$*]'
	@$(BIN)/python -c "import vecenvs._native as n; n.is_compiled() or print('vecenvs: Python runs in place of compiled code:', n.why_not)"
	@touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "vecenvs: no '$(PYTHON)' here. Install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "vecenvs: $(PYTHON) is $$($(PYTHON) -V), but 3.10 or newer is needed. Name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "vecenvs: $(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) -V) ..."
	@$(PYTHON) -m venv --clear $(VENV)

# The newest versions that go together on every Python from 3.10 on, with markers where they differ. What torch pins
# itself (CUDA) is left to torch. Read the diff and run `make test` and `make lint` before committing it.
constraints: $(VENV)/.extras-$(LINT_EXTRAS)
	@$(PIP) install --quiet uv
	@{ echo "# The versions that development, tests and benchmarks run on. Written by \`make constraints\`."; \
	   printf '%s\n' pip setuptools '$(TORCH)' | $(BIN)/uv pip compile --quiet --universal --python-version 3.10 \
	       --all-extras --no-header --no-annotate setup.py - | grep -Ev '^(cuda|nvidia|triton)'; } > constraints.new
	@mv constraints.new constraints.txt
	@git --no-pager diff --stat -- constraints.txt

clean:
	rm -rf $(VENV) build dist demo docs/_build vecenvs/_native/*.so *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
