"Studies: nothing is trained twice, killed studies continue, failures are recorded, and a different design raises."
import json
import math
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings
from datetime import datetime, timezone
from functools import lru_cache, partial
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch

import forked
from salviz.data.texts import subset
from salviz.methods import ADDrop, ADDropVariant, AttentionGuidance, FineTuning, SalLM
from salviz.models.checkpoints import thin_out
from salviz.models.nets import small_net
from salviz.models.corruption import small_model, train_tokenizer
from salviz.core.run_files import sealed, write_manifest, write_whole
from salviz.core.runs import Run
from salviz.data.signals import load_images
from salviz.core.leases import Lease
from salviz.studies.study import Study, StudyOptions, _measure_version, _named_measures
from salviz.studies.trials import Trial, arguments_of, fresh_method, study_cells

# The design is in a separate file, which this process and a process that will be killed both read.
design = textwrap.dedent("""
    import datasets
    from salviz.methods import ADDrop, FineTuning
    from salviz.models.corruption import small_model, train_tokenizer
    from salviz.studies.study import Study
    data = datasets.load_from_disk(home + '/data')
    tokenizer = train_tokenizer(data['train']['text'], vocab_size=90)
    sizes = dict(layers=1, heads=2, hidden=16, num_labels=2, initializer_range=.2)
    def bert(seed): return small_model('classification', tokenizer, seed=seed, **sizes), tokenizer
    settings = dict(epochs=2, batch_size=8, learning_rate=1e-2, snapshots=0, probes=1, progress=False)
    measures = ['test_accuracy', 'test_loss', 'gap', 'average_loss']
    def study(folder, **kw):
        usual = dict(model=bert, data=data, methods={'FineTuning': FineTuning, 'AD-DROP': ADDrop}, seeds=(0, 1),
                     measures=measures)
        return Study(folder, **{**usual, **settings, **kw})
    """)

@pytest.fixture(scope='module')
def home(tmp_path_factory, tiny_data):
    home = tmp_path_factory.mktemp('study')
    subset(tiny_data, 24, validation_size=8, test_size=16).save_to_disk(home/'data')
    (home/'design.py').write_text(f'home = {str(home)!r}\n{design}')
    return home

@pytest.fixture(scope='module')
def made(home): return runpy.run_path(str(home/'design.py'))

@pytest.fixture(scope='module')
def whole(home, made):
    "Train a study without interruption; tests only read it, or copy it"
    study = made['study'](home/'whole')
    study.run()
    return study

@pytest.mark.slow
def test_killed_study_ends_in_the_same_table(home, made, whole, tmp_path):
    code = textwrap.dedent(f"""
        import os, runpy, signal
        from salviz.training.trainer import MethodTrainer
        closed, done = MethodTrainer.close_step, []
        def close(self, seconds):
            closed(self, seconds); done.append(0)
            # the fourth step of the second run: after its first checkpoint
            if len(done) == 6 + 4: os.kill(os.getpid(), signal.SIGKILL)
        MethodTrainer.close_step = close
        runpy.run_path({str(home/'design.py')!r})['study']({str(tmp_path/'killed')!r}).run()""")
    done = forked.run(code)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    left = Study.open(tmp_path/'killed')
    assert left.status()['state'].tolist() == ['finished', 'interrupted', 'missing', 'missing']
    assert len(left.results()) == 1
    interrupted = Run(tmp_path/'killed'/left.manifest['cells'][1]['run'])
    assert interrupted.checkpoints and interrupted.last_step == 4
    first = (tmp_path/'killed'/left.manifest['cells'][0]['run']/'summary.json').stat().st_mtime_ns
    again = made['study'](tmp_path/'killed')
    again.run()
    # not trained again
    assert (tmp_path/'killed'/left.manifest['cells'][0]['run']/'summary.json').stat().st_mtime_ns == first
    # continued from step 3
    assert [r['step'] for r in interrupted.train_rows] == [1, 2, 3, 4, 5, 6]
    assert (interrupted.path/'superseded').exists()
    pd.testing.assert_frame_equal(again.results(), whole.results(), check_exact=True)
    assert again.table(compare_to='FineTuning').text == whole.table(compare_to='FineTuning').text

@pytest.mark.slow
def test_results_are_tidy_and_open_without_torch(whole):
    found = whole.results()
    assert found.columns.tolist() == ['method', 'seed', 'run', 'test_accuracy', 'test_loss', 'gap', 'average_loss']
    assert found[['method', 'seed']].values.tolist() == [['FineTuning', 0], ['AD-DROP', 0], ['FineTuning', 1],
                                                         ['AD-DROP', 1]]
    assert found.average_loss.nunique() == 4 # four different trainings
    for r in found.to_dict('records'):
        run = Run(whole.folder/r['run'])
        assert r['test_accuracy'] == run.scores('test')['accuracy']
        assert r['average_loss'] == np.mean([o['task'] for o in run.train_rows])
        assert run.config['seed'] == r['seed']
        assert run.config['method']['name'] == dict(FineTuning='FineTuning').get(r['method'], 'ADDrop')
    code = ("import sys\nfrom salviz.studies.study import Study\ns = "
            f"Study.open({str(whole.folder)!r})\nprint(s.table(compare_to='FineTuning').text)\nprint('torch' in "
            "sys.modules, 'matplotlib' in sys.modules)")
    said = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout.rstrip().split('\n')
    assert said[-1] == 'False False' and '\n'.join(said[:-1]) == whole.table(compare_to='FineTuning').text
    assert repr(Study.open(whole.folder)) == 'Study whole: 2 methods x 2 seeds, 4 runs: 4 finished'
    assert {k: [r.config['seed'] for r in v]
            for k, v in whole.runs().items()} == {'FineTuning': [0, 1], 'AD-DROP': [0, 1]}
    assert [r.path.name for r in whole.runs(seed=1)['AD-DROP']] == ['AD-DROP.seed=1']

@pytest.mark.slow
def test_table_caption_names_model_data_and_training(whole):
    said = whole.table(compare_to='FineTuning').caption
    for part in ('Model: bert (BertForSequenceClassification, 1 layer, 2 heads).',
                 'Data: 24 train, 8 validation, 16 test examples.', 'epochs 2', 'learning rate 0.01', '2 seeds (0, 1)',
                 'No marks'):
        assert part in said, part
    assert 'snapshots' not in said and 'missing' not in said and 'unnamed' not in said

def test_results_and_tables_contain_metadata_for_captions_and_citations(whole):
    frame, table = whole.results(), whole.table()
    origin = frame.attrs['origin']
    assert frame.attrs == dict(about=whole.about, names=['FineTuning', 'ADDrop', 'BertForSequenceClassification'],
                               seeds=[0, 1], origin=origin)
    assert (origin['name'], origin['runs'], origin['model']) == ('whole', 4, 'BertForSequenceClassification')
    assert origin['data_fingerprint'] == whole.manifest['design']['data']['fingerprint']
    assert origin['hardware'] == [Run(whole.folder/frame.run[0]).config['hardware']] and 'folder' not in origin
    assert frame.attrs == Study.open(whole.folder).results().attrs
    assert table.about == whole.about
    assert table.names == tuple(frame.attrs['names'])
    assert table.frame.attrs['origin'] == origin
    assert table.caption.endswith(whole.about)

def test_gap_is_never_marked_as_best(whole):
    frame = whole.table().frame
    assert not frame[frame.measure == 'gap']['best'].any() and 'gap ↓' not in whole.table().text

@pytest.mark.parametrize('better,said',
                         [(dict(gap='down'), r"better\['gap'\] must be 'higher', 'lower' or None, got 'down'"),
                          (dict(gap=True), 'must be'),
                          (dict(acc='higher'), "better contains the unknown name 'acc'; available")])
def test_invalid_direction_raises_before_anything_is_written(made, whole, tmp_path, better, said):
    with pytest.raises(ValueError, match=said): made['study'](tmp_path/'s', options=StudyOptions(better=better))
    assert not (tmp_path/'s').exists()
    with pytest.raises(ValueError, match=said): whole.table(better=better)
    of_function = made['study'](whole.folder,
                                measures={'test_accuracy': 'test_accuracy', 'faith': lambda run: {'a': 1., 'b': 2.}},
                                options=StudyOptions(better=dict(faith_b='lower')))
    assert of_function.table().text # faith_b does not exist before it is computed

@pytest.mark.parametrize('change,said', [
    (dict(seeds=(0, 2)), 'seeds changed from [0, 1] to [0, 2]'),
    (dict(learning_rate=1e-3), 'train.learning_rate changed from 0.01 to 0.001'),
    (dict(methods={'FineTuning': FineTuning, 'AD-DROP': ADDrop(p=.5)}),
     'methods.AD-DROP.args.p changed from 0.3 to 0.5'),
    (dict(methods={'FineTuning': FineTuning}), "methods.AD-DROP changed from {'name': 'ADDrop'"),
    (dict(weight_decay=.1), 'train.weight_decay changed from absent to 0.1'),
    (dict(settings=dict(q=[.2, .4])), 'settings.q changed from absent to [0.2, 0.4]'),
    ('data', 'data.fingerprint changed from'),
    ('model', 'model.weights changed from')])
def test_different_design_in_the_same_folder_raises_and_names_the_difference(made, whole, change, said):
    if change == 'data':
        change = dict(data=datasets.DatasetDict({**made['data'], 'train': made['data']['train'].select(range(20))}))
    if change == 'model':
        def bert(seed): return made['bert'](seed + 5)
        bert.__qualname__ = 'bert'
        change = dict(model=bert)
    before = (whole.folder/'study.json').read_bytes()
    with pytest.raises(ValueError, match='a different design.*' + re.escape(said)):
        made['study'](whole.folder, **change)
    assert (whole.folder/'study.json').read_bytes() == before

def test_design_older_than_an_argument_of_a_method_is_the_same_design(made, whole):
    file = whole.folder/'study.json'
    before = file.read_bytes()
    old = json.loads(before)
    del old['seal'], old['design']['methods']['AD-DROP']['args']['region']
    file.write_text(sealed(old, indent=2))
    try:
        with pytest.raises(ValueError, match='a different design.*AD-DROP.args.region changed from high to low'):
            made['study'](whole.folder,
                          methods={'FineTuning': FineTuning, 'AD-DROP': ADDrop(variant=ADDropVariant(region='low'))})
        assert len(made['study'](whole.folder).results()) == 4
    finally: file.write_bytes(before)

def test_study_grows_only_with_extend_and_only_by_adding(made, whole):
    more = dict(methods={'FineTuning': FineTuning, 'AD-DROP': ADDrop, 'guided': AttentionGuidance(alpha=1.)},
                seeds=(0, 1, 2))
    with pytest.raises(ValueError, match=r'extend=True\) allows new'): made['study'](whole.folder, **more)
    for less in (dict(seeds=(1, 2)), dict(methods={'FineTuning': FineTuning}), dict(epochs=3)):
        with pytest.raises(ValueError, match='a different design'):
            made['study'](whole.folder, options=StudyOptions(extend=True), **less)
    before = (whole.folder/'study.json').read_bytes()
    grown = made['study'](whole.folder, options=StudyOptions(extend=True), **more)
    try:
        assert grown.status()['state'].value_counts().to_dict() == dict(finished=4, missing=5)
        assert len(grown.results()) == 4
        assert '5 of 9 runs are missing' in grown.about
    finally: (whole.folder/'study.json').write_bytes(before)

# measures

def test_measures_are_cached_until_their_code_or_the_run_changes(made, whole, tmp_path):
    log = str(tmp_path/'calls') # a list would be part of the function, which is another one when the list grows
    def counted(run, model, tokenizer, data):
        with open(log, 'a') as f:
            f.write(json.dumps([run.config['seed'], model.training, len(data['test']), tokenizer.pad_token]) + '\n')
        model.train()
        return {'rows': len(run.train_rows), 'draw': torch.rand(1)}
    def calls(): return sorted(map(json.loads, open(log)))
    def study(f): return made['study'](whole.folder, measures={'test_accuracy': 'test_accuracy', 'mine': f})
    found = study(counted).run()
    assert calls() == [[s, False, 16, '[PAD]'] for s in (0, 0, 1, 1)] and found.mine_rows.tolist() == [6.]*4
    assert found.mine_draw[0] == found.mine_draw[1] != found.mine_draw[2] # from the run's seed
    pd.testing.assert_frame_equal(study(counted).run(), found)
    assert len(calls()) == 4
    pd.testing.assert_frame_equal(study(counted).run(measure_again=['mine']), found)
    assert len(calls()) == 8
    with pytest.raises(ValueError, match='unknown measure mime; available: test_accuracy, mine'):
        study(counted).run(measure_again=['mime'])
    def counted(run): return 7
    changed = study(counted)
    assert changed.results().mine.isna().all() # results of other code are not shown
    assert changed.run().mine.tolist() == [7.]*4
    assert changed.results().test_accuracy.tolist() == whole.results().test_accuracy.tolist()

def test_measure_version_depends_on_source_values_and_the_end_of_the_run(tmp_path):
    run = Run.create(tmp_path/'run', {})
    run.finish()
    def one(run): return 1
    def two(run): return 2
    def with_default(run, a=1): return a
    versions = [_measure_version(f, run) for f in ('gap', 'test_accuracy', one, two, with_default, Scorer, Scorer(1))]
    assert len(set(versions)) == len(versions)
    with_default.__defaults__ = (2,)
    assert _measure_version(with_default, run) != versions[4]
    (tmp_path/'run'/'summary.json').write_text(json.dumps(dict(ended='later')))
    assert _measure_version('gap', run) != versions[0] and _measure_version(one, run) != versions[2]

class Scorer:
    "A custom callable object"
    def __init__(self, k): self.k = k
    def __call__(self, run): return self.k

def enclosed(x): return lambda run: x
def bound(x): return partial(lambda x, run: x, x)

@pytest.mark.sample(2)
@pytest.mark.parametrize('make', [enclosed, bound, Scorer, lambda x: Scorer(x).__call__,
                                  lambda x: lru_cache(enclosed(x))])
def test_measure_version_distinguishes_the_values_of_a_function(tmp_path, make):
    run = Run.create(tmp_path/'run', {})
    run.finish()
    values = [1, 1., '1', None, [1], (1,), {1: 2}, {2: 1}, [[1], [2]], [[1, 2]], b'1', Path('a')]
    versions = [_measure_version(make(x), run) for x in values]
    assert versions == [_measure_version(make(x), run) for x in values] and len(set(versions)) == len(versions)
    for x in (np.arange(3), torch.ones(2), pd.DataFrame(), {1, 2}, [object()], run):
        with pytest.raises(ValueError, match='created with values that have no short text form; set a version'):
            _measure_version(make(x), run)

def test_measure_without_source_needs_a_version_which_alone_counts(tmp_path):
    run, around = Run.create(tmp_path/'run', {}), {}
    run.finish()
    exec('def m(run): return helper()', around)
    for f in (around['m'], len):
        match = "the source of measure '(m|len)' cannot be read; set a version, such as measure"
        with pytest.raises(ValueError, match=match):
            _measure_version(f, run)
    around['m'].version = '1'
    first = _measure_version(around['m'], run)
    around['helper'] = lambda: 2
    assert _measure_version(around['m'], run) == first # globals are not followed, as the notebook says
    around['m'].version = '2'
    assert _measure_version(around['m'], run) != first

def test_result_of_another_version_is_not_shown(made, whole):
    def study(f): return made['study'](whole.folder, measures={'test_accuracy': 'test_accuracy', 'm': f})
    assert [study(enclosed(x)).run().m[0] for x in (3, 11)] == [3., 11.]
    assert study(enclosed(5)).results().m.isna().all()
    def versioned(run): return 7
    versioned.version = '1'
    assert study(versioned).run().m.tolist() == [7.]*4
    versioned.version = '2'
    assert study(versioned).results().m.isna().all()

@pytest.mark.parametrize('measures,said',
                         [(['test_acc', 'acuracy'], "unknown measure 'acuracy'; available: gap, average_loss"),
    ([], 'at least one'), ([lambda run: 0], 'requires a name'), (dict(a=3), 'must be a name or a function'),
    (dict(a=lambda net: 0), 'has unknown arguments net; allowed: run, model, tokenizer, data'),
    (dict(seed='gap'), 'column with this name already')])
def test_invalid_measures_raise(measures, said):
    with pytest.raises(ValueError, match=said): _named_measures(measures)

def test_failed_measure_keeps_the_run_and_is_tried_again(made, whole):
    def broken(run): return 'many'
    study = made['study'](whole.folder, measures={'test_accuracy': 'test_accuracy', 'broken': broken})
    with pytest.raises(RuntimeError, match="every trial failed .4 of 4.*measure 'broken' must return a number"):
        study.run()
    assert study.status()['state'].tolist() == ['failed']*4 and study.results().test_accuracy.notna().all()
    mended = made['study'](whole.folder)
    assert not (mended.run().isna().any().any() or mended.status()['error'].any())

def test_process_that_dies_in_a_measure_counts_as_a_try_although_others_are_stored(made, whole, tmp_path):
    class Killed(BaseException): pass
    def deadly(run):
        if deadly.version == '2': raise Killed
        return 1.
    deadly.version = '1'
    shutil.copytree(whole.folder, tmp_path/'s')
    def opened(): return made['study'](tmp_path/'s', measures={'gap': 'gap', 'deadly': deadly})
    opened()._finish(opened().cells[0], ()) # all measures exist before, and one is outdated
    deadly.version = '2'
    study = opened()
    for tries in (1, 2, 3):
        with pytest.raises(Killed): study._finish(study.cells[0], ['gap'])
        record = study._record(study.cells[0].name)
        assert record['tries'] == tries and datetime.fromisoformat(record['began']) <= datetime.now(timezone.utc)
    study._wanted(True)
    assert 'its process died repeatedly' in study.status().error.iloc[0]
    deadly.version = '3'
    mended = opened()
    mended.run(retry='all')
    assert set(mended._record(study.cells[0].name)) == {'measures'} and mended.results().deadly.tolist() == [1.]*4

def test_misspelt_score_raises_after_the_first_trial_without_failed_trials(made, tmp_path):
    kw = dict(methods={'FineTuning': FineTuning}, seeds=(0, 1, 2), epochs=1)
    study = made['study'](tmp_path/'s', measures=[*'gap average_loss'.split(), 'test_acuracy'], **kw)
    with pytest.raises(ValueError, match="unknown metric 'test_acuracy'.*Finished trials are stored"): study.run()
    assert study.status()['state'].tolist() == ['finished', 'missing', 'missing'] and not study.status()['error'].any()
    written = (tmp_path/'s'/'runs'/'FineTuning.seed=0'/'summary.json').stat().st_mtime_ns
    mended = made['study'](tmp_path/'s', measures=['test_accuracy'], **kw)
    mended._finish(mended.cells[0], ())
    assert mended.results().test_accuracy.notna().tolist() == [True]
    assert (tmp_path/'s'/'runs'/'FineTuning.seed=0'/'summary.json').stat().st_mtime_ns == written

# Failures

class Fails(FineTuning):
    "A method that raises for one seed"
    seeds = {1}
    def plan(self, model, batch, progress):
        if progress.seed in self.seeds and progress.step == 1: raise RuntimeError('out of luck')
        return super().plan(model, batch, progress)

@pytest.mark.slow
def test_failed_trial_is_reported_and_tried_again_while_others_continue(made, tmp_path, monkeypatch):
    study = made['study'](tmp_path/'s', methods={'unlucky': Fails}, epochs=1, measures=['test_accuracy'])
    with pytest.warns(UserWarning, match='1 of 2 trials failed; .* unlucky.seed=1: RuntimeError: out of luck'):
        found = study.run()
    assert found.seed.tolist() == [0]
    assert study.status()[['state', 'error']].values.tolist() == [['finished', ''],
                                                                  ['failed', 'RuntimeError: out of luck']]
    assert 'in plan' in json.loads((tmp_path/'s'/'cells'/'unlucky.seed=1.json').read_text())['traceback']
    assert '1 of 2 runs are missing' in study.about
    monkeypatch.setattr(Fails, 'seeds', set())
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        assert len(study.run(retry=False)) == 1
    assert study.run().seed.tolist() == [0, 1] and study.status()['state'].tolist() == ['finished']*2

@pytest.mark.slow
def test_run_that_cannot_continue_is_moved_aside_and_trained_again(made, tmp_path):
    study = made['study'](tmp_path/'s', methods={'FineTuning': FineTuning}, seeds=(0, 1), epochs=1,
                          measures=['test_accuracy'])
    for name in ('FineTuning.seed=0', 'FineTuning.seed=1'): (tmp_path/'s'/'runs'/name).mkdir(parents=True)
    (tmp_path/'s'/'runs'/'FineTuning.seed=0'/'half').write_text('what a kill left')
    only_weights = Run.create(tmp_path/'r', dict(seed=1))
    (only_weights.path/'checkpoints'/'checkpoint-2').mkdir(parents=True)
    (only_weights.path/'checkpoints'/'checkpoint-2'/'trainer_state.json').write_text('{"step": 2}')
    write_manifest(only_weights.path/'checkpoints'/'checkpoint-2')
    (tmp_path/'s'/'runs'/'FineTuning.seed=1').rmdir(); os.rename(tmp_path/'r', tmp_path/'s'/'runs'/'FineTuning.seed=1')
    assert study.status()['state'].tolist() == ['interrupted']*2
    assert len(study.run()) == 2
    assert (tmp_path/'s'/'superseded'/'FineTuning.seed=0.1'/'half').exists()
    assert (tmp_path/'s'/'superseded'/'FineTuning.seed=1.1'/'config.json').exists()
    files = {p.name for p in (tmp_path/'s'/'runs').rglob('checkpoint-*/*')}
    # files that a finished run does not need any more
    assert 'model.safetensors' in files and not {'optimizer.pt', 'scheduler.pt', 'rng_state.pth'} & files
    thin_out(Run(tmp_path/'s'/'runs'/'FineTuning.seed=0'), 'none')
    assert not Run(tmp_path/'s'/'runs'/'FineTuning.seed=0').checkpoints

def test_trial_of_another_process_is_skipped(made, whole):
    with Lease(whole.folder/"locks"/"AD-DROP.seed=1"), pytest.warns(
        UserWarning, match=r'1 trial is being trained by another process \(AD-DROP.seed=1\)'):
        made['study'](whole.folder).run()

# cells

def test_setting_goes_to_every_argument_of_its_name():
    methods = dict(plain=FineTuning, drop=ADDrop, ready=ADDrop(q=.5), made=lambda q: ADDrop(q=q),
                   fixed=lambda: FineTuning())
    cells = study_cells(methods, (0, 1), dict(q=[.2, .4], lr=[1, 2]), ['lr'])
    counts = pd.Series([c.method for c in cells]).value_counts().to_dict()
    assert counts == dict(plain=4, drop=8, ready=8, made=8, fixed=4) and len({c.name for c in cells}) == len(cells)
    assert dict(next(c for c in cells if c.method == 'fixed').settings) == dict(lr=1)
    # whole comparisons first
    assert [c.method for c in cells[:5]] == list(methods) and {c.seed for c in cells[:5]} == {0}
    ready = ADDrop(p=.6, cross_tuning=False)
    made = fresh_method(ready, dict(q=.9))
    assert (made.p, made.q, made.cross_tuning, ready.q) == (.6, .9, False, .2)
    assert fresh_method(ADDrop() + AttentionGuidance(), {}).name == 'ADDrop + AttentionGuidance'
    assert arguments_of(ADDrop)['p'] is False

@pytest.mark.parametrize('method,value', [('../../etc', .1), ('a/b\\c', 'x/../y'), ('..', None),
                                          ('méthode "1"\n', [1, 2]), ('x'*300, .1)])
def test_folder_of_a_trial_stays_in_the_study(method, value, tmp_path):
    name = Trial(method, (('p', value),), 0).name
    assert '/' not in name and '\\' not in name and '\n' not in name and not name.startswith('.') and len(name) <= 200
    assert (tmp_path/'runs'/name).resolve().parent == (tmp_path/'runs').resolve()

def test_trial_names_in_any_script_are_valid_folder_names(tmp_path):
    "Names are cut at whole characters; short names do not change"
    name = Trial('注意力' * 80, (('p', .3),), 0).name
    assert name == '注意力' * 26 and Trial('注意力' * 20, (), 0).name == '注意力' * 20 + '.seed=0'
    write_whole(tmp_path/f'{name}.json', b'{}')

def test_trials_with_equal_folder_names_raise():
    for methods in ({'a b': FineTuning, 'a/b': ADDrop}, {'A': FineTuning, 'a': ADDrop}):
        with pytest.raises(ValueError, match='the same folder'): study_cells(methods, (0,), {}, [])
    with pytest.raises(ValueError, match='the same folder'): study_cells({'a'*300: FineTuning}, (0, 1), {}, [])

@pytest.mark.parametrize('change,said', [
    (dict(methods={}), 'methods must be a non-empty dict'), (dict(seeds=(0, 0)), 'distinct integers'),
    (dict(methods=dict(a='ADDrop')), r"methods\['a'\] must be a method, its class, or a function .*, got 'ADDrop'"),
    (dict(methods=dict(a=None)), r"methods\['a'\] must be a method"),
    (dict(seeds=3), 'seeds must be a list of non-negative integers'), (dict(seeds=()), 'distinct integers'),
    (dict(settings=dict(p=.3)), r"settings\['p'\] must be a list"),
    (dict(settings=dict(pp=[1])), 'train, methods, model and data have no argument pp'),
    (dict(settings=dict(seed=[1])), 'use seeds='), (dict(settings=dict(epochs=[2, 3])), 'both contain epochs'),
    (dict(epoch=3), 'train has no argument epoch; available: probes'),
    (dict(run_dir='x'), 'train has no argument run_dir'), (dict(progress=1), 'progress must be True or False, got 1'),
    (dict(model=lambda size: 0), 'the model requires arguments that are not available: size; available: seed'),
    (dict(methods=dict(a=lambda teacher: 0)), "method 'a' requires arguments that are not available: teacher; "
     'available: seed, run_of'),
    (dict(methods=dict(a=lambda: ADDrop(p=7))), 'p must be between'),
    (dict(precision='bf16'), "set attention_kernel='sdpa'"),
    (dict(settings=dict(precision=['fp32', 'bf16'])), 'set attention_kernel='),
    (dict(precision='bf16', settings=dict(attention_kernel=['sdpa', None])), 'set attention_kernel=')])
def test_invalid_arguments_raise_before_anything_is_written(made, tmp_path, change, said):
    with pytest.raises(ValueError, match=said): made['study'](tmp_path/'s', **change)
    assert not (tmp_path/'s').exists()

def test_folders_without_a_study_are_not_changed(made, tmp_path):
    (tmp_path/'mine.txt').write_text('x')
    with pytest.raises(FileExistsError, match='does not contain a study'): made['study'](tmp_path)
    with pytest.raises(FileNotFoundError, match='no study in'): Study.open(tmp_path)
    with pytest.raises(ValueError, match='is not JSON'): (tmp_path/'study.json').write_text('{'), Study.open(tmp_path)
    study = made['study'](tmp_path/'s')
    with pytest.raises(ValueError, match='no finished run yet'): study.table()
    assert study.results().columns.tolist()[:3] == ['method', 'seed', 'run'] and len(study.results()) == 0
    with pytest.raises(ValueError, match='only returns results'): Study.open(tmp_path/'s').run()

# what a study can express

@pytest.mark.slow
def test_method_can_build_on_the_run_of_another_method(made, tmp_path):
    methods = {'plain': FineTuning, 'sallm': lambda run_of, weight: SalLM(teacher=run_of('plain'), weight=weight,
                                                                          steps=2)}
    study = made['study'](tmp_path/'s', methods=methods, seeds=(3,), epochs=1, settings=dict(weight=[.5, 2.]),
                          measures=['test_accuracy'])
    found = study.run()
    assert found[['method', 'seed']].values.tolist() == [['plain', 3], ['sallm', 3], ['sallm', 3]]
    assert math.isnan(found.weight[0])
    assert found.weight[1:].tolist() == [.5, 2.]
    args = [Run(study.folder/r).config['method']['args'] for r in found.run[1:]]
    assert [a['teacher'] for a in args] == [str(study.folder/found.run[0])]*2
    assert [a['weight'] for a in args] == [.5, 2.]
    assert list(study.runs()) == ['plain', 'sallm, weight=0.5', 'sallm, weight=2.0']
    lost = made['study'](tmp_path/'t', methods={'sallm': lambda run_of: SalLM(teacher=run_of('plain')),
                                                'plain': FineTuning}, seeds=(0,), measures=['test_accuracy'], epochs=1)
    with pytest.warns(UserWarning, match='plain.seed=0 has no finished run; in methods=, list a method before'):
        assert lost.run().method.tolist() == ['plain']

def _invented_training(study, cell, check):
    "Create a finished run of `cell` with a checkpoint, in place of `Study._trained`"
    path = study.folder/'runs'/cell.name
    if path.exists(): return Run(path), None
    run = Run.create(path, dict(seed=cell.seed))
    checkpoint = path/'checkpoints'/'checkpoint-2'
    checkpoint.mkdir(parents=True)
    (checkpoint/'trainer_state.json').write_text('{"step": 2}')
    write_manifest(checkpoint)
    run.finish(test_accuracy=1.)
    return run, None

def _opened_and_leased(made, folder, monkeypatch, seeds, **kw):
    "Return how often a study of `seeds` seeds opens a run and takes a lease, per trial"
    def one(run): return 1.
    study = made['study'](folder, measures=[one], seeds=range(seeds), options=StudyOptions(weights='none'), **kw)
    counts = dict(opened=0, leased=0)
    def counted(name, act):
        def counting(*args, **kw):
            counts[name] += 1
            return act(*args, **kw)
        return counting
    with monkeypatch.context() as patched:
        patched.setattr(Study, '_trained', _invented_training)
        patched.setattr(Run, '__init__', counted('opened', Run.__init__))
        patched.setattr(Study, '_lease', counted('leased', Study._lease))
        for cell in study.cells: assert study.run_cell(cell) == 'finished'
    return study, {k: n/len(study.cells) for k, n in counts.items()}

def test_number_of_opened_runs_per_trial_does_not_grow_with_the_study(
    made, tmp_path, monkeypatch):
    methods = {'plain': FineTuning, 'built': lambda run_of: FineTuning()}
    for given in ({}, dict(methods=methods)):
        few, many = (_opened_and_leased(made, tmp_path/f'{len(given)}-{n}', monkeypatch, n, **given) for n in (2, 6))
        assert few[1] == many[1] and few[1]['leased'] <= 2
        assert not list(many[0].folder.glob('runs/*/checkpoints/checkpoint-*'))

def test_next_run_deletes_checkpoints_of_a_killed_process(made, tmp_path, monkeypatch):
    monkeypatch.setattr(Study, '_trained', _invented_training)
    def one(run): return 1.
    with monkeypatch.context() as killed:
        killed.setattr(Study, '_thin_out', lambda study, cell: None)
        study = made['study'](tmp_path/'s', measures=[one], options=StudyOptions(weights='none'))
        for cell in study.cells: study.run_cell(cell)
    assert len(list(tmp_path.glob('s/runs/*/checkpoints/checkpoint-*'))) == 4
    # as if workers had finished them
    monkeypatch.setattr(Study, 'run_cell', lambda study, cell, again: 'finished')
    study.run()
    assert not list(tmp_path.glob('s/runs/*/checkpoints/checkpoint-*'))

def test_named_model_gets_a_new_head_for_each_seed(made, tmp_path):
    model, tokenizer = made['bert'](0)
    model.bert.save_pretrained(tmp_path/'bert'); tokenizer.save_pretrained(tmp_path/'bert')
    study = made['study'](tmp_path/'s', model=str(tmp_path/'bert'))
    heads = [study._load(c)[0].classifier.weight.detach() for c in study.cells]
    assert torch.equal(heads[0], heads[1]) and torch.equal(heads[2], heads[3]) and not torch.equal(heads[0], heads[2])
    assert study._load(study.cells[0])[0].config.id2label == {0: 'negative', 1: 'positive'}

@pytest.mark.slow
def test_data_and_model_may_depend_on_settings_and_nets_need_no_tokenizer(tmp_path):
    digits = load_images('digits')
    study = Study(tmp_path/'s', model=lambda seed: small_net('digit-cnn', digits, seed=seed),
                  data=lambda train_size: subset(digits, train_size, validation_size=16, test_size=32),
                  methods=dict(plain=FineTuning), seeds=(0,), settings=dict(train_size=[16, 32]),
                  measures=['test_accuracy'], epochs=1, snapshots=0, probes=1, batch_size=16, progress=False,
                  options=StudyOptions(weights='none'))
    found = study.run()
    assert found.train_size.tolist() == [16, 32]
    assert [Run(study.folder/r).config['data']['sizes']['train'] for r in found.run] == [16, 32]
    assert not any(Run(study.folder/r).checkpoints for r in found.run) # weights='none'
    table = study.table(rows='method', columns='train_size', measure='test_accuracy')
    assert table.heads()[1] == ['train_size = 16', 'train_size = 32'] and 'One seed (0)' in table.caption
    # the function is a lambda
    assert study.table().grid()[1][0] == ['plain', '32']
    assert 'Data: MNIST digits.' in study.about
    assert 'Model: DigitCNN.' in study.about
    assert study.names == ['FineTuning', 'digits', 'DigitCNN']
