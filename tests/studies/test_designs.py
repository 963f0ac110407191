"""Studies from files and from the command line, their progress while others train, and searches."""
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest

from helpers import full_disk, is_running
from salviz.cli import main
from salviz.core.leases import Lease
from salviz.core.runs import Run
from salviz.methods import ADDrop
from salviz.models.corruption import small_model, train_tokenizer
from salviz.studies import designs
from salviz.studies.designs import engine, load_study
from salviz.studies.engines import pack_run
from salviz.studies.progress import study_progress
from salviz.studies.search import Search
from salviz.studies.study import Study

toml = textwrap.dedent("""
    model = "tiny"
    data = "rows.jsonl"
    seeds = [0, 1]
    measures = ["test_accuracy", "test_loss"]
    settings = {p = [0.2, 0.4]}
    train = {epochs = 1, batch_size = 8, snapshots = 0, probes = 1}
    [methods]
    FineTuning = "FineTuning"
    "AD-DROP" = {kind = "ADDrop", cross_tuning = false}
    """)
table = {'model': 'tiny', 'data': 'rows.jsonl', 'seeds': [0], 'measures': ['test_loss'], 'methods': {'FineTuning': {}},
         'train': dict(epochs=1, batch_size=8, snapshots=0, probes=1)}

@pytest.fixture(scope='module')
def home(tmp_path_factory, tiny_data):
    "Create a folder with a model and sentences for study files"
    home = tmp_path_factory.mktemp('designs')
    tokenizer = train_tokenizer(tiny_data['train']['text'], vocab_size=90)
    model = small_model('classification', tokenizer, layers=1, heads=2, hidden=16, labels=['negative', 'positive'])
    for part in (model, tokenizer): part.save_pretrained(home/'tiny')
    rows = [json.dumps(row) for row in tiny_data['train']]
    (home/'rows.jsonl').write_text('\n'.join(rows))
    (home/'grid.toml').write_text(toml)
    return home

@pytest.fixture(scope='module')
def whole(home):
    "Train the study of grid.toml with two processes of the command line, and return its folder"
    assert main(['study', 'run', str(home/'grid.toml'), '--workers', '2', '--threads', '1']) == 0
    return home/'grid'

def results(folder): return Study.open(folder).results()

def test_file_can_set_the_number_of_processes(home):
    (home/'shared.toml').write_text('processes = 2\n' + (home/'grid.toml').read_text())
    study = load_study(home/'shared.toml')
    assert study.options.processes == study.manifest['design']['processes'] == 2
    (home/'odd.toml').write_text('processes = 3\n' + (home/'grid.toml').read_text())
    with pytest.raises(ValueError, match='a batch of 8 cannot be divided evenly among 3 processes'):
        load_study(home/'odd.toml')

@pytest.mark.slow
def test_two_workers_give_the_same_numbers(home, whole):
    (home/'alone.toml').write_text((home/'grid.toml').read_text())
    assert main(['study', 'run', str(home/'alone.toml')]) == 0
    pd.testing.assert_frame_equal(results(home/'alone'), results(whole), check_exact=True)

@pytest.mark.slow
def test_workers_without_a_shared_folder_give_the_same_numbers(home, whole):
    (home/'apart.toml').write_text((home/'grid.toml').read_text())
    study = load_study(home/'apart.toml')
    with ThreadPoolExecutor(1) as pool: study.run(executor=pool, threads=1, shared=False)
    pd.testing.assert_frame_equal(results(home/'apart'), results(whole), check_exact=True)

@pytest.mark.slow
def test_finished_study_is_not_trained_again(home, whole, capsys):
    before = {p: p.stat().st_mtime_ns for p in whole.glob('runs/*/summary.json')}
    assert main(['study', 'run', str(home/'grid.toml')]) == 0
    assert all(p.stat().st_mtime_ns == t for p, t in before.items()) and len(before) == 6
    assert 'finished         6' in capsys.readouterr().out

@pytest.mark.slow
def test_collect_writes_csv_and_reads_archives(whole, tmp_path, capsys):
    first, *rest = sorted(p.name for p in (whole/'runs').iterdir())
    shutil.copytree(whole, tmp_path/'s', ignore=shutil.ignore_patterns(first, f'{first}.json'))
    (tmp_path/'one.tar').write_bytes(pack_run(whole, first))
    assert main(['study', 'collect', str(tmp_path/'s')]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 5
    out = tmp_path/'all.csv'
    assert main(['study', 'collect', str(tmp_path/'s'), str(tmp_path/'one.tar'), '--out', str(out)]) == 0
    pd.testing.assert_frame_equal(pd.read_csv(out), results(whole), check_dtype=False)
    assert main(['study', 'collect', str(tmp_path/'s'), '--out', str(out)]) == 2
    assert 'already exists; use --force' in capsys.readouterr().err

def test_full_disk_keeps_the_old_results_file(whole, tmp_path, capsys):
    (tmp_path/'all.csv').write_text('old')
    with full_disk(most=50):
        status = main(['study', 'collect', str(whole), '--out', str(tmp_path/'all.csv'), '--force'])
    assert status == 2 and (tmp_path/'all.csv').read_text() == 'old' and len([*tmp_path.iterdir()]) == 1

driver = '''
import os, time
from salviz.studies.designs import engine
def work(_):
    time.sleep(1)
    return os.getpid()
if __name__ == '__main__':
    with engine(workers=2) as make, make() as pool:
        print(*set(pool.map(work, range(4))), flush=True)
        pool.submit(time.sleep, 600)
        time.sleep(600)
'''

def test_workers_exit_when_their_parent_is_killed(tmp_path):
    (tmp_path/'driver.py').write_text(driver)
    process = subprocess.Popen([sys.executable, tmp_path/'driver.py'], stdout=subprocess.PIPE, text=True)
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2 and all(map(is_running, workers))
    process.kill()
    process.wait()
    until = time.monotonic() + 60
    while any(map(is_running, workers)) and time.monotonic() < until: time.sleep(.1)
    left = list(filter(is_running, workers))
    for pid in left: os.kill(pid, signal.SIGKILL)
    assert not left

def test_status_reports_running_and_remaining_trials(whole, tmp_path, capsys):
    shutil.copytree(whole, tmp_path/'s')
    first, second, third = sorted(p.name for p in (tmp_path/'s'/'runs').iterdir())[:3]
    for name in (first, second): shutil.rmtree(tmp_path/'s'/'runs'/name)
    with Lease(tmp_path/'s'/'locks'/first):
        assert main(['study', 'status', str(tmp_path/'s'), '--json']) == 0
        known = json.loads(capsys.readouterr().out)
    cells = {c['run'][5:]: c for c in known['cells']}
    assert known['counts'] == {'finished': 4, 'running': 1, 'failed': 0, 'set aside': 0, 'interrupted': 0, 'missing': 1}
    assert (cells[first]['process'], cells[second]['process'], known['left']) == (os.getpid(), None, 2)
    assert cells[third]['seconds'] >= 0 and known['end'] and 'torch' not in known
    assert study_progress(tmp_path/'s').counts['running'] == 0

def test_trial_of_a_dead_worker_is_not_running(whole, tmp_path):
    shutil.copytree(whole, tmp_path/'s')
    name = next((tmp_path/'s'/'runs').iterdir()).name
    if not (child := os.fork()): # takes the lease and is killed with it
        Lease(tmp_path/'s'/'locks'/name)._take()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert list((tmp_path/'s'/'locks').glob(f'{name}.*')) and study_progress(tmp_path/'s').counts['running'] == 0

wrong = [('x.json', {**table, 'seed': 1}, 'x.json has unknown keys seed; available: model, data'),
         ('x.json', {k: x for k, x in table.items() if k != 'data'}, 'x.json lacks data'),
         ('x.json', {**table, 'seeds': 3}, 'seeds must be a list, got 3'),
         ('x.json', {**table, 'model': ''}, "model must be a non-empty string, got ''"),
         ('x.json', {**table, 'processes': True}, 'processes must be an integer, got True'),
         ('x.json', {**table, 'data': dict(name='rows.jsonl', label=5)}, 'load_text: label must be a string'),
         ('x.json', {**table, 'data': dict(name='rows.jsonl', train_size=[])}, 'train_size must be an integer'),
         ('x.json', {**table, 'methods': {'A': dict(kind=['ADDrop'])}}, "unknown method ['ADDrop']; available:"),
         ('x.json', '['*100_000, 'x.json cannot be read: maximum recursion depth'),
         ('x.json', {**table, 'methods': {'A': 'Drop'}}, "unknown method 'Drop'; available: FineTuning, SalLM"),
         ('x.json', {**table, 'methods': {'ADDrop': dict(r=1)}},
          'methods.ADDrop has unknown keys r; available: kind, p'),
         ('x.json', {**table, 'data': dict(name='rows.jsonl', txt='a')}, 'data has unknown keys txt; available: text'),
         ('x.json', {**table, 'settings': dict(r=[1])}, 'train, methods, model and data have no argument r'),
         ('x.json', {**table, 'train': dict(epoch=1)}, 'train has no argument epoch; available:'),
         ('x.toml', 'model = tiny', 'x.toml cannot be read'), ('x.py', 'x = 1', 'x.py does not create a Study'),
         ('x.yaml', '', 'loaded from .py, .toml, .json')]

@pytest.mark.parametrize('name,text,message', wrong)
def test_invalid_study_file_raises_a_short_error(home, tmp_path, capsys, name, text, message):
    for part in ('tiny', 'rows.jsonl'): (tmp_path/part).symlink_to(home/part)
    (tmp_path/name).write_text(text if isinstance(text, str) else json.dumps(text))
    before = sorted(tmp_path.iterdir())
    assert main(['study', 'run', str(tmp_path/name)]) == 2
    assert message in capsys.readouterr().err and sorted(tmp_path.iterdir()) == before

@pytest.mark.slow
def test_study_file_can_vary_data_and_name_a_teacher(home):
    data = dict(name='rows.jsonl', validation_size=3, test_size=3)
    text = {**table, 'data': data, 'settings': dict(train_size=[8, 16])}
    text['methods'] = {'FineTuning': {}, 'SalLM': dict(teacher=dict(run_of='FineTuning'), steps=2)}
    (home/'taught.json').write_text(json.dumps(text))
    assert main(['study', 'run', str(home/'taught.json')]) == 0
    runs = {p.name: Run(p).config for p in (home/'taught'/'runs').iterdir()}
    assert {name: c['data']['sizes']['train'] for name, c in runs.items()} == {
        f'{m}.train_size={n}.seed=0': n for m in ('FineTuning', 'SalLM') for n in (8, 16)}
    changed = {**text, 'methods': {**text['methods'], 'SalLM': dict(teacher=dict(run_of='FineTuning'), steps=3)}}
    (home/'taught.json').write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=r'methods.SalLM.function changed from SalLM\(.*steps=2'):
        load_study(home/'taught.json')

def test_slurm_options_are_passed_to_submitit(monkeypatch, tmp_path):
    "With a stand-in for the interface of submitit; another test uses its local executor"
    asked = {}
    class Executor:
        def __init__(self, folder, cluster, **kw): asked.update(folder=folder, cluster=cluster, **kw)
        @classmethod
        def _valid_parameters(cls): return {'gpus_per_node', 'timeout_min'}
        def update_parameters(self, **kw):
            if 'nonsense' in kw: raise NameError('many lines')
            asked.update(kw)
    class Slurm:
        @classmethod
        def _valid_parameters(cls): return {'partition', 'gpus_per_node'}
    module = type('submitit', (), dict(AutoExecutor=Executor, SlurmExecutor=Slurm))
    monkeypatch.setattr(designs, 'optional_module', lambda *_: module)
    with engine(slurm=designs.slurm_options('partition=gpu,gpus_per_node=1,timeout_min=9'), logs=tmp_path): pass
    assert asked == dict(folder=tmp_path, cluster='slurm', slurm_max_num_timeout=3, slurm_partition='gpu',
                         gpus_per_node=1, timeout_min=9)
    asked.clear()
    with engine(slurm=dict(max_num_timeout=9, time='4:00:30'), logs=tmp_path): pass
    assert asked == dict(folder=tmp_path, cluster='slurm', slurm_max_num_timeout=9, timeout_min=241)
    with pytest.raises(ValueError, match='rejects the name or value of one of the options nonsense'):
        with engine(slurm=dict(nonsense=1)): pass
    for given, message in [(dict(gpus_per_node=1), 'requires a time limit for a trial'),
                           (dict(time='x'), 'time must be in one of Slurm.s formats'),
                           (dict(time=1, timeout_min=1), 'contains both time and'),
                           (dict(max_num_timeout='many', timeout_min=1), 'a non-negative integer')]:
        with pytest.raises(ValueError, match=message), engine(slurm=given): pass

def test_dask_worker_with_several_threads_raises(monkeypatch):
    class Client:
        threads = 1
        def __init__(self, address): self.address = address
        def __enter__(self): return self
        def __exit__(self, *_): pass
        def nthreads(self): return {'tcp://w:1': self.threads}
        def get_executor(self, **kw): return self.address, kw
    monkeypatch.setattr(designs, 'optional_module', lambda *_: type('distributed', (), dict(Client=Client)))
    with engine(dask='tcp://a:1') as executor: assert executor == ('tcp://a:1', dict(pure=False))
    Client.threads = 4
    with pytest.raises(ValueError, match='--nthreads 1'), engine(dask='tcp://a:1'): pass

@pytest.mark.slow
def test_local_submitit_jobs_give_the_same_numbers(home, whole):
    (home/'jobs.toml').write_text((home/'grid.toml').read_text())
    words = ['--slurm', 'cluster=local,timeout_min=9,partition=x', '--threads', '1']
    assert main(['study', 'run', str(home/'jobs.toml'), *words]) == 0
    pd.testing.assert_frame_equal(results(home/'jobs'), results(whole), check_exact=True)

@pytest.mark.slow
def test_dask_workers_give_the_same_numbers(home, whole):
    distributed = __import__('distributed')
    (home/'dask.toml').write_text((home/'grid.toml').read_text())
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        assert main(['study', 'run', str(home/'dask.toml'), '--dask', cluster.scheduler_address, '--threads', '1']) == 0
    pd.testing.assert_frame_equal(results(home/'dask'), results(whole), check_exact=True)

@pytest.fixture(scope='module')
def searched(tiny_data):
    tokenizer = train_tokenizer(tiny_data['train']['text'], vocab_size=90)
    def bert(seed):
        sizes = dict(layers=1, heads=2, hidden=16, num_labels=2)
        return small_model('classification', tokenizer, seed=seed, **sizes), tokenizer
    def search(folder, **kw):
        usual = dict(model=bert, data=tiny_data, methods={'AD-DROP': ADDrop(cross_tuning=False)}, epochs=1,
                     batch_size=16, space=dict(p=(.1, .9)), by='validation_loss', snapshots=0, probes=1, progress=False)
        return Search(folder, **{**usual, **kw})
    return search

@pytest.mark.slow
def test_interrupted_search_continues_with_the_same_points(searched, tmp_path):
    once = searched(tmp_path/'a', trials=4).run()
    searched(tmp_path/'b', trials=1).run()
    asked = searched(tmp_path/'b', trials=2)
    asked._next(asked._open_optuna()) # its process ends between optuna's ask and tell
    pd.testing.assert_frame_equal(searched(tmp_path/'b', trials=4).run(), once, check_exact=True)
    assert searched(tmp_path/'b').trials_table().state.tolist() == ['COMPLETE']*4

@pytest.mark.slow
def test_search_runs_have_no_test_scores(searched, tmp_path):
    search = searched(tmp_path/'s', trials=2)
    search.run()
    for run in (p for p in (tmp_path/'s'/'runs').iterdir()):
        assert 'test' not in Run(run).config['data']['sizes'] and '"test"' not in (run/'metrics.jsonl').read_text()
    chosen = search.report(seeds=(5,))
    assert chosen.results().test_accuracy.notna().all() and list(chosen.results().p) == [search.best_point['p']]
