"`make check` runs what a change affects: tests and notebooks of the module and of its users, and no others."
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

root = Path(__file__).resolve().parents[1]
def notebook(name): return f'tests/test_structure.py::test_notebook_runs[{name}.ipynb]'
# tests of `metrics.tasks`, which is changed, of a module that calls it, and of a package that does not use it
own, caller = ['tests/metrics/test_metrics.py', notebook('08_metrics/04_tasks')], notebook('03_models/02_tasks')
others = ['tests/methods/test_patterns.py', notebook('05_methods/01_patterns')]

@pytest.fixture
def check(tmp_path):
    "Return a function that runs pytest in a copy of the project like `make check`, and returns the selected tests"
    for folder in ('salviz', 'tests', 'nbs'):
        made = shutil.ignore_patterns('__pycache__', '.ipynb_checkpoints')
        shutil.copytree(root/folder, tmp_path/folder, ignore=made)
    for file in ('pyproject.toml', 'settings.ini'): shutil.copy(root/file, tmp_path/file)
    def run(*options):
        done = subprocess.run([sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '--testmon-forceselect',
                               *options, *own, caller, *others], cwd=tmp_path, capture_output=True, text=True,
                              env={**os.environ, 'PYTHONPATH': str(tmp_path)})
        assert done.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout[-3000:] + done.stderr[-2000:]
        return {re.sub(r'::test_(?!notebook_runs).*', '', line) for line in done.stdout.splitlines()
                if line.startswith('tests/')}
    run.folder = tmp_path
    return run

@pytest.mark.slow
def test_a_change_selects_what_runs_it_and_nothing_of_an_unrelated_floor(check):
    check()
    for file in ('salviz/metrics/tasks.py', 'nbs/08_metrics/04_tasks.ipynb'): # as `make notebooks` changes them
        was = (check.folder/file).read_text()
        assert was.count("=self.metric != 'loss'") == 1
        (check.folder/file).write_text(was.replace("=self.metric != 'loss'", "=self.metric not in ('loss',)"))
    assert check('--collect-only') == {*own, caller}
