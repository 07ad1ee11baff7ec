# make demo   the main job: record, train with and without memory, evaluate, report
# make test   the tests           make check   format, lint, types, walls between folders, docs/cli.md
# make audit  known vulnerabilities of the locked packages
# Each builds .venv from requirements.lock when it is missing or out of date; in a clean clone,
# PYTHON=python3.12 make test takes another Python than the first of 3.11 to 3.13 that it finds.

export MUJOCO_GL ?= egl
export HF_HUB_OFFLINE ?= 1
# Tests and demo never talk to a robot that happens to be on the network.
export ROS_AUTOMATIC_DISCOVERY_RANGE := SYSTEM_DEFAULT
export FASTDDS_DEFAULT_PROFILES_FILE := $(CURDIR)/launch/params/fastdds_loopback.xml

BIN := .venv/bin

.PHONY: demo test check audit lock clean

demo: .venv/.renders
	@$(BIN)/python -m benchmarks.demo

test: .venv/.renders
	@$(BIN)/python -m pytest -q --numprocesses 2 --dist worksteal

check: .venv/.installed
	@$(BIN)/ruff format --check --quiet --output-format concise .
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/cli_docs.py --check

.venv/.installed: requirements.lock pyproject.toml setup.py tools/venv.sh $(wildcard launch/interfaces/* launch/interfaces/*/*)
	@bash tools/venv.sh install
	@touch $@

.venv/.renders: .venv/.installed tools/venv.sh
	@bash tools/venv.sh renders
	@touch $@

# In an environment of its own; needs PyPI's list of vulnerabilities, and fails without it.
audit: .venv/.installed
	@$(BIN)/python -m venv .venv/audit
	@.venv/audit/bin/pip install --quiet pip-audit
	@.venv/audit/bin/pip-audit --strict --requirement requirements.lock --disable-pip --require-hashes

# Needs uv. Versions stay as they are where they can; UPGRADE=--upgrade takes the newest. evdev is left
# out: it needs a compiler and kernel headers, and lerobot's keyboard teleoperation alone loads it.
lock:
	uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes $(UPGRADE) \
		--no-emit-package evdev --no-annotate --custom-compile-command "make lock" --output-file requirements.lock

clean:
	rm -rf .venv *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
