# `make demo` and `make test` are all a fresh clone needs: each makes its own environment first.
# Needs python3 (3.11 or newer) with venv, or uv. `make help` lists the targets.

PYTHON ?= python3
VENV ?= .venv
UV ?= $(shell command -v uv 2>/dev/null)
ARGS ?=

# The caller's shell must not leak into the environment; proxies, certificates and index settings must.
unexport PYTHONUNBUFFERED PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE VIRTUAL_ENV CONDA_PREFIX
# Byte code that the host has compiled saves every guest the work, at a twentieth of the speed.
unexport PYTHONDONTWRITEBYTECODE
unexport PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_REQUIRE_VIRTUALENV PIP_REQUIREMENT PIP_EDITABLE PIP_PYTHON
unexport PIP_ONLY_BINARY PIP_NO_BINARY PIP_NO_DEPS PIP_DRY_RUN PIP_LOG
unexport UV_PYTHON UV_SYSTEM_PYTHON UV_CONSTRAINT UV_OVERRIDE UV_PROJECT_ENVIRONMENT UV_TARGET UV_PREFIX
# Set rather than unset: this also beats a constraint in the user's pip.conf, which the lock makes pointless.
export PIP_CONSTRAINT := /dev/null
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BIN := $(VENV)/bin
# One stamp per interpreter, so that another PYTHON makes the environment anew.
MADE := $(VENV)/.made-by-$(subst /,_,$(PYTHON))
DEMO_READY := $(VENV)/.demo-ready
DEV_READY := $(VENV)/.dev-ready
PROGRAMS := $(VENV)/programs
PROGRAMS_READY := $(PROGRAMS)/.ready

ifneq ($(UV),)
  MAKE_VENV = "$(UV)" venv --quiet --python "$(PYTHON)" "$(VENV)"
  INSTALL = "$(UV)" pip install --quiet --python "$(BIN)/python" --compile-bytecode
  INSTALL_PROGRAMS = "$(UV)" pip install --quiet --python "$(PROGRAMS)/bin/python"
else
  MAKE_VENV = "$(PYTHON)" -m venv "$(VENV)"
  INSTALL = "$(BIN)/python" -m pip -qq install
  INSTALL_PROGRAMS = "$(BIN)/python" -m pip --python "$(PROGRAMS)/bin/python" -qq install
endif
INSTALL_PROJECT = $(INSTALL) --no-deps --no-build-isolation --editable .

.DEFAULT_GOAL := help
.PHONY: help demo test lint format lock rig programs changelog clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@echo "  Variables: PYTHON=$(PYTHON) VENV=$(VENV) ARGS='-k word' (for test)"

demo: $(DEMO_READY) ## a real OOM kill and the recovery from it
	@"$(BIN)/python" demo/run.py $(ARGS)

test: $(DEV_READY) ## all tests; those in a guest run where `make rig` has been
	@"$(BIN)/python" -m pytest $(ARGS)

lint: $(DEV_READY) ## linter, format, types, import rules
	@"$(BIN)/ruff" check .
	@"$(BIN)/ruff" format --check .
	@"$(BIN)/mypy"
	@"$(BIN)/lint-imports" --no-cache --no-logo

format: $(DEV_READY) ## apply the formatter and the safe fixes
	@"$(BIN)/ruff" check --fix .
	@"$(BIN)/ruff" format .

rig: ## install QEMU and the kernels of the guest tests (root; Debian on x86-64)
	@PYTHONPATH=tests "$(PYTHON)" -m rigs

programs: $(PROGRAMS_READY) ## install the programs that recipes are tried with (500 MB, in an environment of their own)

changelog: $(DEV_READY) ## show what the next release's changelog will say
	@"$(BIN)/towncrier" build --draft --version next

# Without the machine's own settings: the lock must not depend on where it was made.
LOCK = env -u PIP_CONSTRAINT UV_NO_CONFIG=1 "$(UV)" pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header $(ARGS)
lock: ## pin again what requirements/*.in ask for (needs uv; ARGS=--upgrade for newer releases)
	@test -n "$(UV)" || { echo "make lock needs uv: put it on PATH, or set UV=/path/to/uv" >&2; exit 1; }
	@$(LOCK) --output-file requirements/demo.txt requirements/demo.in
	@$(LOCK) --output-file requirements/recipes.txt requirements/recipes.in
	@$(LOCK) --output-file requirements/dev.txt --constraint requirements/demo.txt requirements/dev.in

clean: ## remove the environment and every cache in the tree
	@rm -rf "$(VENV)" .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	@find src tests demo benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(MADE):
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) is not there: install Python 3.11 or newer, or set PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11: set PYTHON=... to a newer one" >&2; exit 1; }
	@test -n "$(UV)" || "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make environments: install python3-venv, or uv" >&2; exit 1; }
	@rm -rf "$(VENV)"
	@$(MAKE_VENV)
	@touch "$@"

$(DEMO_READY): $(MADE) requirements/demo.txt pyproject.toml
	@$(INSTALL) --require-hashes --requirement requirements/demo.txt
	@$(INSTALL_PROJECT)
	@touch "$@"

$(DEV_READY): $(MADE) requirements/dev.txt pyproject.toml
	@$(INSTALL) --require-hashes --requirement requirements/dev.txt
	@$(INSTALL_PROJECT)
	@touch "$@"

$(PROGRAMS_READY): $(MADE) requirements/recipes.txt
	@"$(BIN)/python" -m venv --without-pip "$(PROGRAMS)"
	@$(INSTALL_PROGRAMS) --require-hashes --requirement requirements/recipes.txt
	@touch "$@"
