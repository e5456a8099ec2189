# Needs python3, pip and make. Everything else lands in $(VENV).
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint test-fast test-slow test-real-engine parity clean

demo: $(VENV)/.installed
	$(BIN)/equilibrium demo

test: $(VENV)/.tested-with lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "(unit or integration) and not slow"
	$(BIN)/python -m pytest -m "e2e and not slow"

# What takes a minute and more by the clock: parity with stock, silence, live fits.
test-slow: $(VENV)/.tested-with
	$(BIN)/python -m pytest -m slow

test-fast: $(VENV)/.tested-with
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "(unit or integration) and not slow"

# A real vLLM on the CPU, EQUILIBRIUM_REAL_ENGINE (default .venv-vllm); needs a machine that is idle.
test-real-engine: $(VENV)/.tested-with
	$(BIN)/python -m pytest -m real_engine

# Observes stock and both attachments, and writes docs/parity.md.
parity: $(VENV)/.tested-with
	EQUILIBRIUM_WRITE_PARITY=1 $(BIN)/python -m pytest tests/parity

lint: $(VENV)/.tested-with
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.tested-with: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs
