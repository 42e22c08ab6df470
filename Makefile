# Two commands matter: `make demo` runs the main job, `make test` passes the tests. Each sets itself up.
.PHONY: demo test check format help
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

check:  ## lint and types only
	@.ci/setup dev
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

format:  ## write the code in the one format
	@.ci/setup dev
	@.venv/bin/ruff format . && .venv/bin/ruff check --fix .

help:
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile
