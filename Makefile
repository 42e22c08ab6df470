# Two commands matter: `make demo` runs the main job, `make test` passes the tests. Each sets itself up.
.PHONY: demo test test-vllm check format help
.DEFAULT_GOAL := help

PY := .venv/bin/python

demo:  ## run the whole pipeline on the embedded engine, a minute or two
	@.ci/setup run
	@$(PY) -m firsttoken demo

test:  ## lint, types, then every test
	@.ci/setup dev
	@.venv/bin/ruff check . && .venv/bin/ruff format --check --quiet .
	@.venv/bin/mypy
	@.venv/bin/pytest

VLLM_EXAMPLE := examples/ladder-vllm-cpu
FIRSTTOKEN_VLLM_VENV ?= $(VLLM_EXAMPLE)/work/venv

test-vllm:  ## the tests on vLLM's CPU build: 7 GB and some minutes at first, then seven minutes
	@.ci/setup dev
	@FIRSTTOKEN_VLLM_VENV=$(abspath $(FIRSTTOKEN_VLLM_VENV)) $(VLLM_EXAMPLE)/environment.sh
	@cd $(VLLM_EXAMPLE) && { [ -d work/smollm2 ] || $(abspath $(FIRSTTOKEN_VLLM_VENV))/bin/python make_model.py work/smollm2; }
	@FIRSTTOKEN_VLLM_VENV=$(abspath $(FIRSTTOKEN_VLLM_VENV)) .venv/bin/pytest -m vllm tests/test_vllm_cpu.py

check:  ## lint and types only
	@.ci/setup dev
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

format:  ## write the code in the one format
	@.ci/setup dev
	@.venv/bin/ruff format . && .venv/bin/ruff check --fix .

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile
