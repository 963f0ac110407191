"The command line: output, error messages, and the whole demo on a few sentences."
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import forked
import invented
from salviz import __version__
from salviz.cli import main
from salviz.core.runs import Run
from salviz.replication.comparison import MethodComparison

command, root = Path(sys.executable).parent/'salviz', Path(__file__).resolve().parents[2]

def salviz(*words, **kw):
    "Run the script that pip installs for the command line in a forked process"
    return forked.run(command.read_text(), *words, name=str(command), **kw)

@pytest.fixture(scope='module')
def demo(tmp_path_factory):
    "Train a demo on 12 sentences"
    out = tmp_path_factory.mktemp('demo')/'out'
    done = salviz('demo', '--train-size', 12, '--probes', 2, '--snapshots', 2, '--out', out)
    assert done.returncode == 0, done.stderr[-4000:]
    return out, done

names = ['plain', 'sallm', 'saliency-guided', 'ad-drop', 'attention-guidance']

def test_demo_records_a_run_for_every_method(demo):
    out, done = demo
    for name in names:
        run = Run(out/'runs'/name)
        assert run.finished and len(run.steps) >= 2 and len(run.probes) == 2 and not run.damaged
    assert len(list((out/'runs').iterdir())) == 5

def test_demo_prints_one_table_and_that_it_is_no_ranking(demo):
    out, done = demo
    for title in ('Plain fine-tuning', 'SalLM', 'Saliency guided', 'AD-DROP', 'Attention guidance'):
        assert title in done.stdout
    assert 'do not rank the methods' in ' '.join(done.stdout.split())
    table = pd.read_csv(out/'table.csv', index_col=0)
    assert len(table) == 5 and table.notna().all().all() and table.loc['Plain fine-tuning', 'time'] == 1
    assert table['valid acc'].between(0, 1).all() and table['agreement'].between(-1, 1).all()
    assert table.loc['SalLM', 'time incl. explanations'] > table.loc['SalLM', 'time']

def test_demo_writes_a_page_that_needs_no_network(demo):
    page = (demo[0]/'index.html').read_text()
    assert page.count('<img ') == 8 and 'do not rank the methods' in page
    assert not re.search(r'https?://|<script|<link|@import|src="(?!data:)', page)

def test_demo_writes_a_page_in_which_two_models_answer(demo):
    page = demo[0]/'explorer.html'
    assert 'href="explorer.html"' in (demo[0]/'index.html').read_text() and page.stat().st_size <= 16e6
    assert re.findall(r'id="(salviz-model-[^"]+)"', page.read_text()) == ['salviz-model-0-page', 'salviz-model-1-page']

@pytest.mark.slow
def test_a_demo_that_ends_with_a_plain_epoch_has_a_discard_map(demo, tmp_path):
    "With three epochs and cross-tuning, the last epoch is plain fine-tuning: the map comes from the epoch before"
    from salviz.tour import _write_pictures
    copy = tmp_path/'ad-drop'
    shutil.copytree(demo[0]/'runs'/'ad-drop', copy, ignore=shutil.ignore_patterns('checkpoints'))
    run = Run(copy)
    last = run.snapshot(probe=0)
    plain = dataclasses.replace(last, step=last.step + 3, info={**last.info, 'phase': 'fine-tuning'},
                                layers={'attention': last.layers['attention']},
                                arrays={k: v for k, v in last.arrays.items()
                                        if k in ('attention', 'saliency', 'probabilities')})
    run.save(plain)
    (path, caption), = _write_pictures({'ad-drop': run}, tmp_path/'pictures', probes=[0])['ad-drop']
    assert f'step {last.step}' in caption and path.exists()
    assert salviz('figure', copy, '--out', tmp_path/'map.png').returncode == 0

def test_demo_numbers_equal_those_of_its_runs(demo):
    table = pd.read_csv(demo[0]/'table.csv', index_col=0)
    for title, name in zip(table.index, names):
        run = Run(demo[0]/'runs'/name)
        assert table.loc[title, 'test acc'] == run.scores('test')['accuracy']
        assert table.loc[title, 'valid acc'] == run.eval_rows[-1]['accuracy'] # the weights after the last step

@pytest.mark.slow
def test_the_command_line_lists_runs_and_draws_figures(demo, tmp_path):
    assert 'AttentionGuidance' in salviz('runs', demo[0]/'runs').stdout
    file = tmp_path/'map.pdf'
    assert salviz('figure', demo[0]/'runs'/'ad-drop', '--probe', 1, '--out', file).returncode == 0
    assert file.read_bytes()[:4] == b'%PDF'
    again = salviz('figure', demo[0]/'runs'/'ad-drop', '--out', file)
    assert again.returncode == 2 and 'already exists' in again.stderr
    none = salviz('figure', demo[0]/'runs'/'ad-drop', '--step', 1234, '--out', tmp_path/'none.pdf')
    assert none.returncode == 2 and 'available: 0' in none.stderr

def test_the_command_line_trains_and_records_a_run(tmp_path):
    file = tmp_path/'mine.csv'
    pd.DataFrame(dict(sentence=[f'a {w} film number {i}' for i in range(40) for w in ('fine', 'dull')],
                      sense=['good', 'bad'] * 40)).to_csv(file, index=False)
    done = salviz('train', '--data', file, '--text', 'sentence', '--label', 'sense', '--method', 'ADDrop', '--set',
                  'p=.4', 'cross_tuning=False', '--epochs', 1, '--probes', 2, '--saliency', 'gradient_norm', '--out',
                  tmp_path/'run')
    assert done.returncode == 0, done.stderr[-3000:]
    run = Run(tmp_path/'run')
    assert run.config['method']['args']['p'] == .4 and 'discarded' in run.snapshot().arrays
    assert run.snapshot().info['saliency_method'] == 'gradient_norm'

@pytest.mark.slow
def test_a_run_is_shown_as_a_page(tmp_path):
    for name in ('one', 'two'): invented.run(tmp_path/name, 'ADDrop')
    done = salviz('show', 'one', '--compare', 'two', '--probes', '0', '--steps', '0,-1', cwd=tmp_path)
    assert (done.returncode == 0 and done.stdout.startswith('one.html: ')
            and '1 sentence x 2 steps' in done.stdout), done.stderr
    assert (tmp_path/'one.html').read_text().startswith('<!doctype html>')
    again = salviz('show', 'one', cwd=tmp_path)
    assert again.returncode == 2 and 'use --force' in again.stderr
    assert salviz('show', 'one', '--layers', '0-1', '--force', cwd=tmp_path).returncode == 0
    large = salviz('show', 'one', '--out', 'large.html', '--limit', '0.1', cwd=tmp_path)
    assert large.returncode == 2
    assert ('choose fewer examples (--probes), steps (--steps), layers (--layers), or pass --limit '
            '0' in large.stderr)
    assert not (tmp_path/'large.html').exists()
    none = salviz('show', 'one', '--probes', '7', '--out', 'none.html', cwd=tmp_path)
    assert none.returncode == 2 and 'available: [0, 1]' in none.stderr

@pytest.mark.slow
def test_the_command_line_strips_dead_views(tmp_path):
    live = {'text/plain': ['x'], 'image/png': 'iVBOR', 'application/vnd.jupyter.widget-view+json': dict(model_id='e')}
    nb = dict(cells=[dict(cell_type='code', source=[], metadata={}, execution_count=1,
                          outputs=[dict(output_type='display_data', metadata={}, data=live)])], metadata={}, nbformat=4,
              nbformat_minor=5)
    (tmp_path/'a.ipynb').write_text(json.dumps(nb))
    assert salviz('strip', 'a.ipynb', cwd=tmp_path).stdout == 'a.ipynb: 1 widget view removed\n'
    assert 'widget-view' not in (tmp_path/'a.ipynb').read_text()

@pytest.mark.slow
def test_bench_writes_its_table_and_overwrites_no_file(tmp_path):
    words = ['bench', '--quick', '--tokens', 16, '--methods', 'rd', '--rounds', 1, '--out', 'mine']
    done = salviz(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'AD-DROP RD' in done.stdout and 'timing 1 rounds' in done.stdout
    found = json.loads((tmp_path/'mine'/'bench.json').read_text())
    assert list(found['tables'][0]['rows']) == ['plain', 'again', 'rd']
    assert len(found['tables']) == 1
    assert 'memory' not in found
    again = salviz(*words, cwd=tmp_path)
    assert again.returncode == 2 and 'already exists' in again.stderr

refused = [(('demo', '--out', '.'), 'already exists'), (('train', '--method', 'Drop'), 'available: FineTuning'),
           (('train', '--method', 'ADDrop', '--set', 'p=1.3'), 'p must be between 0 and 1'),
           (('train', '--method', 'ADDrop', '--set', 'r=1'), 'ADDrop: no argument r; available: p'),
           (('train', '--data', 'movie-sentence'), 'movie-sentences'),
           (('runs', 'nowhere'), 'the folder does not exist'), (('show', 'nowhere'), 'the folder does not exist'),
           (('show', 'x', '--probes', 'a'), 'must be whole numbers'), (('strip', 'nowhere.ipynb'), 'nowhere.ipynb'),
           (('figure', 'nowhere', '--out', 'x.pdf'), 'no run in'),
           (('figure', 'x', '--kind', 'heat_map', '--out', 'x.pdf'), 'available: attention_map, '),
           (('figure', 'x', '--width', 'vldb', '--out', 'x.pdf'), 'a venue (acl, '), (('study', 'nowhere'), 'no study'),
           (('fetch', 'glove'), 'minilm'), (('bench', '--methods', 'gaa'), 'unknown methods: gaa; available: plain'),
           (('bench', '--tokens', '4'), 'from 8 to 512'), (('bench', '--device', 'gpu'), "'cpu' or 'cuda'"),
           (('demo', '--train-size', '0'), 'must be a positive integer'),
           (('demo', '--epochs', '1', '--out', 'x'), 'at least 2')]

@pytest.mark.sample(1)
@pytest.mark.parametrize('words,said', refused, ids=lambda o: '-'.join(o) if isinstance(o, tuple) else None)
def test_invalid_arguments_print_one_sentence(words, said, tmp_path):
    done = salviz(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert 'Traceback' not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture
def here(tmp_path, monkeypatch):
    "Create a folder with a run, a study and damaged notebooks"
    monkeypatch.chdir(tmp_path)
    invented.run(tmp_path/'run', 'ADDrop')
    study = tmp_path/'study'
    cells = [dict(method='FineTuning', settings={}, seed=seed, run=f'runs/FineTuning.seed={seed}') for seed in (0, 1)]
    for i, cell in enumerate(cells):
        invented.run(study/cell['run'])
        (study/'cells').mkdir(exist_ok=True)
        known = dict(measures=dict(test_accuracy=dict(value=.5 + i/10, version='')))
        (study/'cells'/f'{cell["run"][5:]}.json').write_text(json.dumps(known))
    design = dict(methods=dict(FineTuning=dict(name='FineTuning', args={})), seeds=[0, 1], settings={}, model='minilm',
                  data=dict(name='x', fingerprint='', sizes={}), train={})
    (study/'study.json').write_text(json.dumps(dict(format=1, design=design, cells=cells, measures=['test_accuracy'],
                                                    better={})))
    for i, text in enumerate(['', '[]', '{}', '{"cells": 1}', '['*100_000]): (tmp_path/f'no{i}.ipynb').write_text(text)
    for i, text in enumerate(['{"cells": [1, {}], "metadata": 1}',
                              '{"cells": [{"outputs": [1, {"data": 1}]}], "metadata": {"widgets": 1}}']):
        (tmp_path/f'odd{i}.ipynb').write_text(text)
    (tmp_path/'wrong.csv').write_text('method,share\n1,2,3\n')
    (tmp_path/'tiny.csv').write_text('a,b\n1,2\n')
    (tmp_path/'good.csv').write_text('method,seed,test_accuracy\na,0,.5\na,1,.6\nb,0,.4\nb,1,.3\n')
    return tmp_path

figure = ('figure', 'run', '--out', 'a.png')
wrong = [(('study', 'study', '--set', 'nope=1'), 'study table: no argument nope; available: rows, columns'),
         (('study', 'study', '--set', 'where=x'), 'result_table: where must be a dict'),
         (('study', 'study', '--set', 'digits=2', 'digits=3'), '--set: digits is set twice'),
         (('study', 'study', '--set', 'levels=1'), 'levels must be a dict'), (('study', ''), 'got an empty string'),
         ((*figure, '--set', 'step=1'), '--set: use the option --step instead of step='),
         ((*figure, '--set', 'source=1'), '--set: `source` is the positional argument RUN'),
         ((*figure, '--kind', 'attention_map', '--set', 'overlays=3'),
          'attention_map: overlays must be a string, a list of strings or None, got 3'),
         ((*figure, '--width', 'nan'), 'must be a number of inches or the name of a venue'),
         ((*figure, '--font-size', 'inf'), 'must be a non-negative number'),
         ((*figure, '--columns', '0'), 'must be a whole number of at least 1'),
         (('figure', '', '--out', 'a.png'), 'got an empty string'),
         (('figure', 'wrong.csv', '--kind', 'accuracy_drop', '--out', 'a.png'), 'the row on line 2 has 3 fields'),
         *[(('figure', 'good.csv', '--kind', kind, '--out', 'a.png'),
            f'figure: {kind} needs the option {option} (on the command line: --set {option}=VALUE)')
           for kind, option in (('over_setting', 'x'), ('head_map', 'value'))],
         (('train', '--method', 'AttentionGuidance', '--set', 'custom=5'),
          'custom must be a dict {name: pattern}, got 5'),
         (('train', '--method', 'SalLM', '--set', 'loss=[]'), 'SalLM: loss must be one of'),
         (('train', '--method', 'ADDrop', '--set', 'p={[]: 1}'), 'p must be between 0 and 1'),
         (('train', '--learning-rate', 'nan'), 'must be a non-negative number'),
         (('train', '--seed', '-1'), 'must be a whole number of at least 0'),
         (('train', '--epochs', '1e9'), 'whole number'),
         (('show', ''), 'got an empty string'),
         (('show', 'run', '--steps', '0-1000000000'), 'must be at most 100,000 numbers'),
         (('show', 'run', '--steps', '9'*5000), 'must be whole numbers'),
         (('show', 'run', '--limit', 'nan'), 'must be a non-negative number'),
         (('show', 'run', '--limit', '-1'), 'must be a non-negative number'),
         (('show', 'run', '--compare', ''), 'got an empty string'),
         *[(('strip', f'no{i}.ipynb'), 'is not a notebook') for i in range(5)],
         (('strip', 'run'), 'is a folder, not a notebook'), (('demo', '--probes', '0'), 'at least 2'),
         (('runs', ''), 'got an empty string'),
         (('figure', 'tiny.csv', '--kind', 'metric_table', '--out', 'a.png'),
          "metric_table: the frame has no column 'method'; available: a, b"),
         (('show', 'run', '--limit', '.01', '--out', 'a.html'), 'more than --limit 0.01 MB; choose fewer'),
         (('show', 'run', '--model', '--out', 'a.html'), '--model: no weights are stored with the run; leave'),
         (('show', 'tiny.csv'), 'tiny.csv: it is a file, not a folder'), (('runs', 'tiny.csv'), 'it is a file'),
         *[(('reproduce', option, '--rows', 'none.jsonl'), 'reproduce: no file none.jsonl')
           for option in ('--list', '--report', '--archive')],
         (('bench', '--out', 'tiny.csv'), 'tiny.csv is a file; choose another --out\n')]

def test_no_argument_of_a_user_ends_in_a_traceback(here, capsys):
    """Each of them formerly created a list of a billion numbers, disabled a limit, or caused an unrelated internal
    error"""
    before = sorted(p.name for p in here.iterdir())
    for words, said in wrong:
        try: status = main([*words])
        except SystemExit as e: status = e.code
        error = capsys.readouterr().err
        assert status == 2 and said in error and 'Traceback' not in error, (words, status, error)
    assert sorted(p.name for p in here.iterdir()) == before

def test_the_file_of_a_comparison_is_checked_before_anything_is_trained(here, capsys, monkeypatch):
    monkeypatch.setattr('salviz.load_text', lambda *a, **k: pytest.fail('the file was not checked first'))
    (here/'old.png').write_text('')
    for file, said in (('x.gif', "--figure must end in .pdf, .svg or .png, got 'x.gif'"),
                       ('nowhere/x.pdf', 'compare: no folder nowhere; create it or choose another file with --figure'),
                       ('old.png', 'old.png already exists; use --force to overwrite it, or choose another file')):
        assert main(['compare', '--figure', file]) == 2
        assert said in capsys.readouterr().err

@pytest.mark.parametrize('force', (False, True))
def test_a_comparison_without_shifted_sets_has_a_figure(here, capsys, monkeypatch, force):
    rows = [dict(method='FineTuning', seed=s, run=f'a{s}', test_accuracy=.8 + s/100, majority=.5) for s in range(3)]
    result = MethodComparison(pd.DataFrame(rows), 'accuracy', ['test'], ['FineTuning'])
    monkeypatch.setattr('salviz.load_text', lambda *a, **k: None)
    monkeypatch.setattr('salviz.replication.comparison.compare', lambda *a, **k: result)
    if force: (here/'a.png').write_text('')
    assert main(['compare', '--figure', 'a.png', *['--force']*force]) == 0, capsys.readouterr().err
    assert (here/'a.png').read_bytes().startswith(b'\x89PNG')
    result.rows['test_accuracy'] = .5
    assert main(['compare', '--out', 'new', '--figure', 'new/b.png']) == 0 # the comparison creates its folder
    assert 'new/b.png: not written, because no method is ranked' in capsys.readouterr().out

def test_the_images_of_a_pgf_figure_overwrite_no_file(here, capsys):
    (here/'a-img0.png').write_text('mine')
    assert main(['figure', 'run', '--kind', 'attention_map', '--out', 'a.pgf']) == 2
    assert 'figure: a-img0.png already exists; use --force' in capsys.readouterr().err
    assert (here/'a-img0.png').read_text() == 'mine'

failing = ['runs nowhere', 'show nowhere', 'strip no.ipynb', 'course class nobody', 'reproduce nothing',
           'fetch nothing', 'figure nowhere --out a.pdf', 'remake no.pdf', 'bench --methods nothing', 'demo --out run',
           'examples run', 'train --method Nothing', 'study nowhere', 'study run no.py', 'study status no',
           'study collect no', 'study table no']

@pytest.mark.sample(8)
@pytest.mark.parametrize('words', failing)
def test_every_command_prints_errors_as_one_line_and_with_traceback_in_full(words, here, capsys):
    assert main(words.split()) == 2
    line = capsys.readouterr().err
    assert line.startswith('salviz: ') and line.count('\n') == 1
    for given in (['--traceback', *words.split()], [*words.split(), '--traceback']):
        assert main(given) == 2
        error = capsys.readouterr().err
        assert error.startswith('Traceback (most recent call last)') and 'Error: ' in error.splitlines()[-1]

def test_errors_of_any_kind_are_printed_without_traceback_and_control_characters(
    here, capsys, monkeypatch):
    for error, words in ((ZeroDivisionError('division by zero'), 'ZeroDivisionError: division by zero'),
                         (AttributeError('\x1b[2Jone\ntwo'), 'AttributeError: \\x1b[2Jone'),
                         (KeyError(), 'KeyError: ')):
        def fail(folder, error=error): raise error
        monkeypatch.setattr('salviz.core.runs.runs_table', fail)
        assert main(['runs', 'run']) == 2
        said = capsys.readouterr().err
        assert said.startswith(f'salviz: {words}') and said.endswith(' (--traceback shows the full error)\n')
        assert said.count('\n') == 1 and '\x1b' not in said

def test_a_reader_that_ends_early_ends_the_command_quietly():
    head = subprocess.Popen([sys.executable, '-c', ''], stdin=subprocess.PIPE)
    head.wait()
    done = subprocess.run([command, 'reproduce', '--list'], stdout=head.stdin, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (141, '')

def test_names_that_the_encoding_of_the_output_lacks_are_written_as_different_escapes(here):
    invented.run(here/'runs'/'李雷', 'ADDrop')
    narrow = os.environ | dict(PYTHONIOENCODING='cp1252')
    done = subprocess.run([command, 'runs', 'runs'], capture_output=True, env=narrow)
    assert done.returncode == 0 and b' \\u674e\\u96f7 ' in done.stdout, done.stderr

def test_a_page_that_cannot_be_written_is_not_announced(here, capsys, monkeypatch):
    def full(temp, path): raise OSError(28, 'No space left on device', str(temp))
    monkeypatch.setattr('os.replace', full)
    assert main(['show', 'run', '--out', 'a.html']) == 2
    said = capsys.readouterr()
    assert said.out == '' and said.err == 'salviz: a.html: No space left on device\n'

def test_unusual_contents_of_a_notebook_are_left_unchanged(here, capsys):
    for name in ('odd0.ipynb', 'odd1.ipynb'):
        assert main(['strip', name]) == 0 and capsys.readouterr().out == f'{name}: 0 widget views removed\n'

def test_a_script_in_the_folder_above_the_clone_finds_the_library(tmp_path):
    "There the clone is a folder named salviz, which Python would otherwise import as an empty package"
    clone, site = tmp_path/'salviz', tmp_path/'site'
    shutil.copytree(root/'salviz', clone/'salviz')
    for name in ('settings.ini', 'setup.py', 'pyproject.toml', 'README.md'): shutil.copy(root/name, clone/name)
    build = 'import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])'
    subprocess.run([sys.executable, '-c', build, site], cwd=clone, check=True, capture_output=True)
    # what `pip install --editable` puts into the environment
    shutil.unpack_archive(next(site.glob('*.whl')), site, 'zip')
    code = f'import site; site.addsitedir({str(site)!r})\nimport salviz; print(salviz.__version__, salviz.__file__)'
    (tmp_path/'script.py').write_text(code)
    alone = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    # -S: without the salviz that this environment has
    done = subprocess.run([sys.executable, '-S', 'script.py'], cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert done.stdout.split() == [__version__, str(clone/'salviz'/'__init__.py')], done.stderr

def test_the_lab_and_its_kernels_find_the_command_line():
    "`!salviz` works in a notebook even if the environment is not activated"
    said = subprocess.run(['make', '--dry-run', 'lab'], cwd=root, capture_output=True, text=True).stdout
    lab, = (line for line in said.splitlines() if 'jupyter lab' in line)
    assert lab.startswith(f'PATH="{root}/.venv/bin:$PATH" .venv/bin/jupyter lab ')
