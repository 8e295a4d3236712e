# The interpreter that makes the environment, and pip options for torch alone (where a CPU build is found).
PYTHON ?= python3.11
TORCH_ARGS ?=
VENV ?= .venv
RUN := $(VENV)/bin/python

# Setup is done once for a content of these files and a place of the checkout (the editable install names it).
CPU_SET := pyproject.toml setup.py $(wildcard docker/cpu/*.sh docker/cpu/*.py docker/cpu/requirements*.txt) \
	$(wildcard docker/cpu/shim*/pyproject.toml docker/cpu/shim*/src/*.py docker/cpu/shim*/src/*/*.py)
KEY := $(shell { pwd; cat $(CPU_SET); } | sha256sum | cut -c1-16)
STAMP := $(VENV)/.cpu-set-$(KEY)

export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo pd-demo test lint bench soak paper

help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/\1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

setup: $(STAMP) ## install the locked CPU set and this package into .venv (PYTHON=, TORCH_ARGS=)

$(STAMP):
	@PYTHON='$(PYTHON)' TORCH_ARGS='$(TORCH_ARGS)' docker/cpu/install.sh '$(VENV)'
	@rm -f $(VENV)/.cpu-set-????????????????
	@touch $@

demo: setup ## the real server on the CPU, once per policy, on recorded trajectories: table, JSON and plot in out/demo
	$(RUN) -m eval demo --out out/demo $(ARGS)

pd-demo: setup ## the same with one prefill and three decode servers behind SGLang's router: out/pd-demo
	$(RUN) -m eval pd-demo --out out/pd-demo $(ARGS)

test: setup ## every test (ARGS='-k name' is passed to pytest)
	$(RUN) -m pytest $(ARGS)

lint: setup ## ruff check, ruff format --check, mypy
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: setup ## time of one eviction against stock LRU, from 10 to 10,000 idle trajectories
	$(RUN) -m eval bench evict

soak: setup ## the state machine of the cache, 1,000,000 operations on each tree core
	AGENTCACHE_STATE_MACHINE_OPS=1000000 $(RUN) -m pytest tests/property --timeout 0 $(ARGS)

paper: setup ## the papers' experiments in the simulator, our figure beside each claim: out/paper (ARGS='--share 0.2')
	$(RUN) -m eval paper --out out/paper $(ARGS)
