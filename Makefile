# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# Tests start some hundred processes, which would each compile the package's modules again where the shell has set this.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test kernels long slow chaos fuzz check docs dist clean

run: .venv/ready
	$(BIN)/fedsparsify run

test: .venv/ready
	$(BIN)/pytest -n 3 --dist worksteal

# The GPU's kernels, on a CPU under triton's interpreter; on a machine with a GPU: .venv/bin/pytest -m kernels
kernels: .venv/ready
	TRITON_INTERPRET=1 $(BIN)/pytest -m kernels -n 2 --dist worksteal

# Kernels, signals and one real federation: what CI runs beside the suite.
long: .venv/ready
	TRITON_INTERPRET=1 $(BIN)/pytest -m '(slow or kernels) and not flower' -n 2 --dist worksteal

slow: .venv/ready
	TRITON_INTERPRET=1 $(BIN)/pytest -m '(slow and not chaos) or kernels' -n 2 --dist worksteal

# Twenty rounds over a network while nodes and the server are killed: a quarter of an hour, alone on the machine.
chaos: .venv/ready
	$(BIN)/pytest -m chaos

# Random graphs in the engine under guard pages, random networks, and a minute of coverage-guided fuzzing of files; new inputs are kept in build/, one that fails is written there too.
fuzz: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt atheris
	mkdir -p build/fuzz
	$(BIN)/python tests/fuzz/fuzz_engine.py 500 --seed 29
	NETWORKS=100 $(BIN)/pytest tests/test_user_networks.py -k mixed
	$(BIN)/python tests/fuzz/fuzz_wire.py build/fuzz tests/fuzz/corpus -artifact_prefix=build/fuzz- -max_total_time=60 -max_len=2048 -verbosity=0 -print_final_stats=1

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, into site/: the report of results/ fills docs/reproduction.md and goes along. Warnings and dead links are errors.
docs: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	rm -rf site build/site-extra
	$(BIN)/fedsparsify report results --out build/site-extra/report --fill docs/reproduction.md --fill docs/rivals.md --fill docs/plus.md
	cp docs/start.html build/site-extra/index.html
	$(BIN)/sphinx-build -W --keep-going -q -c docs -d build/doctrees . site
	$(BIN)/python docs/check_site.py site

# dist/: an sdist; of it a wheel with compiled kernels (Linux on x86-64), and one without, for all other machines. Then both are installed outside of the tree.
dist: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt build setuptools twine
	rm -rf dist build/lib build/bdist.*
	$(BIN)/python -m build --no-isolation
	FEDSPARSIFY_WITHOUT_IMAGES=1 $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
	$(BIN)/twine check --strict dist/*
	$(BIN)/pytest -m dist -n 2

.venv/ready: pyproject.toml constraints.txt
	@echo 'Making .venv, once: two to five minutes, most of them without a word from pip.'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build site *.egg-info .mypy_cache .ruff_cache .pytest_cache
