# Each target does its own set-up, into .venv. Needs Python 3.11 or 3.12, a C++ compiler and pip's index; no GPU.

VENV := .venv
TRITON := 3.6.0
PYTHON := $(shell for python in python3 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$python && break; done)
BIN := $(VENV)/bin
HASH := $(firstword $(shell cat pyproject.toml constraints.txt | sha256sum))
STAMP := $(VENV)/installed-$(HASH)
SERVING := $(VENV)/serving-$(HASH)
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
MKDOCS := $(VENV)/mkdocs
SITE := $(MKDOCS)/installed-$(firstword $(shell sha256sum docs/site/requirements.txt))

.PHONY: demo test check bench test-gpu bench-gpu docs mkdocs

# It needs nothing of what tests and checks need.
demo: $(or $(wildcard $(STAMP)),$(SERVING))
	@$(BIN)/squadron demo $(ARGS)

test: $(STAMP) $(VENV)/has-triton
	@$(BIN)/python -m pytest -q -n 3 --dist loadscope -p tests.lanes -m "not gpu and not ray_up and not wheel and not long" $(ARGS)

check: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(STAMP)
	@$(BIN)/python -m tests.benchmarks $(ARGS)

# The documents as a site. It needs nothing of Squadron's, and has an environment of its own.
docs: $(SITE)
	@$(MKDOCS)/bin/mkdocs --quiet build --strict
	@echo "build/site/index.html"

mkdocs: $(SITE)

test-gpu: $(STAMP) $(VENV)/has-triton
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo "No CUDA device can be seen here"; exit 1; }
	@$(BIN)/python -m pytest -q -c tests/gpu.ini --rootdir=. $(ARGS)

# A machine that has torch, Triton, tokenizers, jinja2 and (for the tests) pytest needs no installation, nor ray or pydantic:
# `python -m tests.benchmarks.gpu`, `python -m pytest -c tests/gpu.ini --rootdir=.`
bench-gpu: $(STAMP) $(VENV)/has-triton
	@$(BIN)/python -m tests.benchmarks.gpu $(ARGS)

# Anew whenever pyproject.toml or constraints.txt has changed. A machine with GPUs that has a torch of its own gives it to the venv:
# `make VENV_OPTIONS=--system-site-packages test-gpu`.
$(STAMP): EXTRAS := [dev]
$(STAMP) $(SERVING):
	@test -x $(BIN)/python || test -n "$(PYTHON)" || { echo "Squadron needs Python 3.11 or 3.12, and found neither"; exit 1; }
	@test -x $(BIN)/python || { echo "Making $(VENV) with $(PYTHON) ..."; $(PYTHON) -m venv $(VENV_OPTIONS) $(VENV); }
	@$(BIN)/python -c 'import torch' 2>/dev/null || { echo "Installing torch, about half a minute ..."; \
		$(PIP) --no-compile --constraint constraints.txt torch; }
	@echo "Installing Squadron and its dependencies, about a minute ..."
	@$(PIP) --no-compile --constraint constraints.txt --editable '.$(EXTRAS)'
	@test "$(COMPILE)" = no || $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # pip would do it with one core
	@rm -f $(filter-out $(STAMP) $(SERVING),$(wildcard $(VENV)/installed-* $(VENV)/serving-*)) && touch $@

# A torch for CUDA has brought its own; one for CPUs has none, and the kernels are interpreted and compiled all the same.
$(VENV)/has-triton: $(STAMP)
	@$(BIN)/python -c 'import triton' 2>/dev/null || { echo "Installing triton $(TRITON), about half a minute ..."; \
		$(PIP) triton==$(TRITON); }
	@touch $@

# What writes published formats, for the test that reads what it wrote, which is skipped without.
$(VENV)/packers: $(STAMP) .ci/packers
	@.ci/packers $@ || echo "Going on without the packers of published formats"

# What moves blocks from node to node, for the tests that have it do so, which are skipped without.
$(VENV)/nixl: $(STAMP)
	@.ci/nixl $@ || echo "Going on without NIXL"

$(SITE):
	@test -n "$(PYTHON)" || { echo "Squadron needs Python 3.11 or 3.12, and found neither"; exit 1; }
	@echo "Installing mkdocs, a few seconds ..."
	@test -x $(MKDOCS)/bin/python || $(PYTHON) -m venv $(MKDOCS)
	@$(MKDOCS)/bin/python -m pip install -qq --disable-pip-version-check --requirement docs/site/requirements.txt
	@rm -f $(MKDOCS)/installed-* && touch $@
