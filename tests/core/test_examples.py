"The bundled example runs are complete, small, readable without torch, and unpacked once."
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import salviz
from salviz.core.examples import example_folder, example_names
from salviz.core.runs import Run, open_run

shipped = Path(str(files('salviz.core')/'finished'))

@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv('SALVIZ_CACHE', str(tmp_path/'cache'))
    return tmp_path/'cache'

def test_examples_take_less_than_six_megabytes():
    assert {p.name for p in shipped.iterdir()} == {f'{name}.tar.xz' for name in example_names}
    assert sum(p.stat().st_size for p in shipped.iterdir()) < 6e6

@pytest.mark.parametrize('name', example_names)
def test_example_is_undamaged_and_its_model_has_learned_the_task(name):
    run = Run.example(name)
    assert run.finished and run.check() == [] and run.checkpoints == {}
    assert (len(run.probes), len(run.steps)) == (8, 10)
    known, close = run.knowledge()
    assert not close and 'of 758 test examples; the largest class is 52%' in known
    assert run.scores('test')['accuracy'] > .8
    last = run.snapshot(-1, 0)
    assert list(last.classes) == ['negative', 'positive']
    rows = last.at('attention', 0).sum(-1)
    assert np.abs(rows - 1).max() < 2e-3 # stored in half precision

evidence = {'sallm': 'saliency_target', 'saliency-guided': 'masked_input', 'ad-drop': 'discard_candidates',
            'attention-guidance': 'pattern_target'}

@pytest.mark.parametrize('name', evidence)
def test_last_snapshot_has_the_method_s_evidence(name):
    assert evidence[name] in Run.example(name).snapshot(-1, 0).arrays

@pytest.mark.parametrize('name', example_names)
def test_examples_reveal_nothing_about_the_machine(name):
    folder = example_folder(name)
    for file in folder.rglob('*'):
        if file.is_file():
            held = file.read_bytes()
            assert not any(word in held for word in (b'/tmp', b'/work', b'/home', b'/root')), file

def test_examples_are_unpacked_once_by_concurrent_processes(empty_cache):
    code = 'import sys; from salviz.core.examples import example_folder; print(example_folder("plain"))'
    several = [subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    places = {one.communicate()[0].strip() for one in several}
    assert [one.returncode for one in several] == [0]*4 and len(places) == 1
    place, = map(Path, places)
    assert [p.name for p in place.parent.iterdir()] == ['plain'] and empty_cache in place.parents
    before = os.stat(place/'config.json').st_mtime_ns
    assert example_folder('plain') == place and os.stat(place/'config.json').st_mtime_ns == before

def test_existing_folder_takes_precedence_over_an_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_run('plain').path == example_folder('plain')
    Run.create('plain', dict(method=dict(name='Mine', args={})))
    assert open_run('plain').path == tmp_path/'plain' and open_run('plain').config['method']['name'] == 'Mine'

def test_unknown_example_raises_with_available_names():
    with pytest.raises(ValueError, match="unknown example run 'bert'; available: plain, sallm, "):
        salviz.Run.example('bert')
    with pytest.raises(FileNotFoundError, match='the folder does not exist'): open_run('bert')

@pytest.mark.slow
def test_examples_open_without_torch():
    code = ('import sys; from salviz import Run, figure; run = Run.example("ad-drop"); run.snapshot(-1, 0); '
            'figure("ad-drop"); print("torch" in sys.modules)')
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, 'False\n'), done.stderr[-2000:]
