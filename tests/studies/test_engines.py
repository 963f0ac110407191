"Studies on engines: the same numbers on every engine, no trial trained twice, and recovery from killed workers."
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from types import SimpleNamespace
from unittest import mock

import cloudpickle
import pandas as pd
import pytest
import torch

import helpers
from helpers import at_step
from salviz.cli import main
from salviz.core.leases import Lease, Leased, holder
from salviz.core.run_files import sealed
from salviz.core.runs import Run
from salviz.data.texts import subset
from salviz.methods import FineTuning
from salviz.models.corruption import small_model, train_tokenizer
from salviz.metrics.study_results import state_of
from salviz.training.control import Stopped, unbroken
from salviz.studies.engines import RayExecutor, _free_device, _incoming, _left_in_time, pack_run, run_on, unpack_run
from salviz.studies.progress import study_progress
from salviz.studies.study import Study
from salviz.studies.trials import most_tries

for module in (sys.modules[__name__], helpers): # workers elsewhere cannot import these files
    cloudpickle.register_pickle_by_value(module)

def process_pool(folder): return partial(ProcessPoolExecutor, 2, mp_context=get_context('spawn'))

def loky_pool(folder):
    from loky import get_reusable_executor
    return partial(get_reusable_executor, 2)

def slurm(folder): # submitit's executor for one machine
    from submitit import AutoExecutor
    executor = AutoExecutor(folder/'jobs', cluster='local')
    executor.update_parameters(timeout_min=10)
    return executor

@contextmanager
def on(engine, folder):
    "Return an executor of two worker processes"
    if engine == 'dask':
        from dask.distributed import Client, LocalCluster
        with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
                          local_directory=folder/'dask') as cluster, Client(cluster) as client:
            yield client.get_executor()
    elif engine == 'ray':
        with ray_of_two_workers(): yield RayExecutor()
    else: yield dict(pool=process_pool, loky=loky_pool, slurm=slurm)[engine](folder)

@contextmanager
def ray_of_two_workers(): # `make slow` installs it
    with mock.patch.dict(os.environ, RAY_AUTH_MODE='disabled', RAY_USAGE_STATS_ENABLED='0'):
        import ray
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        try: yield
        finally: ray.shutdown()

def die(deaths, times):
    "Kill this process unless the file `deaths` already has `times` letters"
    so_far = deaths.read_text() if deaths.exists() else ''
    if len(so_far) >= times: return
    deaths.write_text(so_far + 'x')
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.fixture(scope='module')
def made(tiny_data):
    data = subset(tiny_data, 16, validation_size=8, test_size=8)
    tokenizer = train_tokenizer(data['train']['text'], vocab_size=90)
    def study(folder, deaths=None, times=1, happens=None, at=3, **kw):
        """Create a study in which, with a file `deaths`, seed 1 dies once in its second epoch, or `times` times at its
        beginning

        Otherwise `happens` is called before the step `at`; step 3 is the first of the second epoch."""
        def bert(seed):
            sizes = dict(layers=1, heads=2, hidden=16, num_labels=2)
            model = small_model('classification', tokenizer, seed=seed, **sizes)
            if happens: at_step(model, at, happens)
            elif deaths and seed == 1: at_step(model, 3 if times == 1 else 1, lambda: die(deaths, times))
            return model, tokenizer
        usual = dict(model=bert, data=data, methods={'FT': FineTuning}, seeds=(0, 1), epochs=2, batch_size=8,
                     measures=['test_accuracy', 'test_loss'], snapshots=0, probes=1, progress=False)
        return Study(folder, **{**usual, **kw})
    return study

@pytest.fixture(scope='module')
def plain(made, tmp_path_factory): return made(tmp_path_factory.mktemp('plain')/'study').run()

def same(frame, plain): pd.testing.assert_frame_equal(frame, plain, check_exact=True)

engines = ['pool', *(pytest.param(name, marks=pytest.mark.slow) for name in ('loky', 'dask', 'slurm', 'ray'))]

@pytest.mark.parametrize('engine', engines)
def test_trial_of_a_killed_worker_continues_from_its_checkpoint_with_the_same_numbers(engine, made, plain,
                                                                                                  tmp_path):
    study, deaths = made(tmp_path/'s', deaths=tmp_path/'deaths'), tmp_path/'deaths'
    with on(engine, tmp_path) as executor: frame = study.run(executor=executor)
    assert deaths.read_text() == 'x'
    same(frame, plain)
    assert not list((tmp_path/'s'/'locks').iterdir())
    resumed = Run(tmp_path/'s'/'runs'/'FT.seed=1')
    assert resumed.finished and len({r['step'] for r in resumed.train_rows}) == len(resumed.train_rows)

@pytest.mark.slow
def test_job_whose_time_is_up_stops_after_its_step_and_continues_in_the_next_job(made, tmp_path):
    "The signal arrives in step 3 of 4 of one epoch; a job that starts over would receive it again"
    told, whole = tmp_path/'told', dict(seeds=(1,), epochs=1, batch_size=4)
    def tell():
        told.write_text('x' if not told.exists() else 'told again')
        if told.read_text() == 'x': os.kill(os.getpid(), signal.SIGUSR2)
    study = made(tmp_path/'s', happens=tell, **whole)
    same(study.run(executor=slurm(tmp_path)), made(tmp_path/'plain', **whole).run())
    assert told.read_text() == 'x' and 'error' not in Run(tmp_path/'s'/'runs'/'FT.seed=1').state
    said, = (tmp_path/'jobs').glob('*_log.out')
    assert 'Requeued' in said.read_text() and 'tries' not in study._record('FT.seed=1')

@pytest.fixture
def answered():
    "Record calls of submitit's signal handlers in this process"
    __import__('submitit') # the signals are looked at where it is loaded
    said, numbers = [], (signal.SIGUSR2, signal.SIGTERM)
    def answer(number, frame): said.append(number)
    before = [signal.signal(n, answer) for n in numbers]
    yield said
    assert all(signal.getsignal(n) is answer for n in numbers)
    assert signal.alarm(0) == 0 and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    for n, handler in zip(numbers, before): signal.signal(n, handler)

def tell(number=signal.SIGUSR2): os.kill(os.getpid(), number)

@pytest.mark.sample(1)
@pytest.mark.parametrize('number, answers', [(signal.SIGUSR2, [signal.SIGUSR2]), (signal.SIGTERM, [])])
def test_work_outside_steps_is_interrupted_when_the_time_is_up(number, answers, answered):
    def act(is_up):
        tell(number)
        while is_up(): time.sleep(.01)
    assert _left_in_time(act, 1) == ('left', 'the time limit of this job has been reached') and answered == answers

@pytest.mark.slow
def test_signal_does_not_interrupt_a_checkpoint_and_may_be_repeated(answered):
    def act(is_up):
        tell()
        unbroken.set()
        tell()
        time.sleep(2.5)
        unbroken.clear()
        raise Stopped('written')
    assert _left_in_time(act, 1) == ('left', 'written') and answered == [signal.SIGUSR2]

def test_finished_job_is_not_queued_again_and_other_stops_propagate(answered):
    assert _left_in_time(lambda is_up: (tell(), is_up()), 9) == (None, True) and answered == []
    def stop(is_up): raise Stopped('by somebody')
    with pytest.raises(Stopped, match='by somebody'): _left_in_time(stop, 9)

@pytest.mark.slow
def test_interrupted_evaluation_and_measures_run_in_the_next_job(answered, made, plain, tmp_path):
    study, slow = made(tmp_path/'s', seeds=(1,)), threading.Event()
    own = study._load
    def load(cell):
        model, tokenizer = own(cell)
        def hook(module, args):
            if module.training or slow.is_set(): return
            slow.set()
            tell()
            time.sleep(30)
        model.register_forward_pre_hook(hook)
        return model, tokenizer
    study._load = load
    cell, = study.cells
    assert _left_in_time(lambda leave: study.run_cell(cell, leave=leave), 1)[0] == 'left'
    assert study._record(cell.name) == {'measures': {}}
    assert Run(tmp_path/'s'/'runs'/cell.name).checkpoints == {} # an epoch's is saved after its evaluation
    run = tmp_path/'s'/'runs'/cell.name
    with pytest.raises(Stopped, match='not measured yet'):
        study.run_cell(cell, leave=lambda: state_of(run) == 'finished')
    same(study.run().reset_index(drop=True), plain[plain.seed == 1].reset_index(drop=True))

@pytest.mark.slow
def test_trial_whose_jobs_end_early_is_sent_again_while_it_makes_progress(
        made, plain, tmp_path):
    "First two steps per job, then a job without any step"
    study, here = made(tmp_path/'s'), Here()
    turns = []
    def submit(work, sent, name, *args):
        if name != 'FT.seed=1': return Here.submit(here, work, sent, name, *args)
        future, asked = Future(), []
        def is_up():
            asked.append(1)
            return len(asked) > 3 + len(turns)
        turns.append(1)
        try: outcome = cloudpickle.loads(sent).run_cell(study.cells[1], leave=is_up), ''
        except Stopped as e: outcome = 'left', str(e)
        future.set_result(outcome)
        return future
    same(study.run(executor=SimpleNamespace(submit=submit)), plain)
    assert len(turns) > 1 and 'tries' not in study._record('FT.seed=1')
    stuck = made(tmp_path/'stuck')
    def left(work, sent, name, *args):
        if name != 'FT.seed=1': return Here.submit(here, work, sent, name, *args)
        future = Future()
        future.set_result(('left', 'a word of submitit'))
        return future
    with pytest.raises(RuntimeError, match='FT.seed=1: the jobs of this trial end too early .last reason'):
        stuck.run(executor=SimpleNamespace(submit=left))
    assert set(stuck.status().state) == {'finished', 'missing'}

@pytest.mark.slow
def test_stopped_trial_does_not_count_as_a_try_but_an_exit_does(made, tmp_path):
    def ended(): raise end
    study = made(tmp_path/'s', happens=ended, at=1)
    for end in [KeyboardInterrupt, Stopped]*most_tries:
        with pytest.raises(end): study.run_cell(study.cells[0])
    assert study._record(study.cells[0].name) == {'measures': {}}
    assert 'failed' not in set(study.status().state)
    end = SystemExit
    with pytest.raises(end): study.run_cell(study.cells[0])
    assert study._record(study.cells[0].name) == {'measures': {}, 'tries': 1}

@pytest.mark.slow
@pytest.mark.parametrize('engine', ['pool', 'dask', 'ray'])
def test_workers_without_a_shared_folder_return_runs_as_files(engine, made, plain, tmp_path):
    study = made(tmp_path/'s', deaths=tmp_path/'deaths')
    with on(engine, tmp_path) as executor: same(study.run(executor=executor, shared=False), plain)
    assert (tmp_path/'deaths').read_text() == 'x'
    assert sorted(p.name for p in (tmp_path/'s').iterdir()) == ['cells', 'locks', 'runs', 'study.json']

@pytest.mark.slow
def test_trial_that_dies_three_times_is_set_aside(made, plain, tmp_path):
    study = made(tmp_path/'s', deaths=tmp_path/'deaths', times=3)
    with pytest.warns(UserWarning, match='seed=1: its process died'): study.run(executor=process_pool(tmp_path))
    assert study.status().set_index('seed').state.to_dict() == {0: 'finished', 1: 'failed'}
    with pytest.warns(UserWarning, match='1 of 2 trials failed'): study.run()
    same(study.run(retry='all'), plain)

@pytest.mark.slow
def test_broken_pool_that_cannot_be_created_again_raises(made, plain, tmp_path):
    study = made(tmp_path/'s', deaths=tmp_path/'deaths')
    with process_pool(tmp_path)() as pool, pytest.raises(RuntimeError, match='a function that creates the executor'):
        study.run(executor=pool)
    same(study.run(), plain)

def test_study_that_a_worker_cannot_load_raises_without_failed_trials(made, tmp_path, monkeypatch):
    class Elsewhere: # a module that exists only here
        def __reduce__(self): return __import__, ('a_module_that_is_here_alone',)
    study = made(tmp_path/'s')
    study.measures['x'] = Elsewhere()
    with pytest.raises(RuntimeError, match="No module named 'a_module_that_is_here_alone'"):
        run_on(study, process_pool(tmp_path), study.cells)
    assert not list((tmp_path/'s').glob('cells/*'))

two_runs = '''
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import cloudpickle
if __name__ == '__main__':
    with open(sys.argv[1], 'rb') as f: study = cloudpickle.load(f)
    study.run(executor=lambda: ProcessPoolExecutor(1, mp_context=get_context('spawn')))
'''

@pytest.mark.slow
def test_two_processes_on_one_folder_train_no_trial_twice(made, plain, tmp_path):
    study = made(tmp_path/'s')
    (tmp_path/'sent').write_bytes(cloudpickle.dumps(study))
    (tmp_path/'two.py').write_text(two_runs)
    both = [subprocess.Popen([sys.executable, '-W', 'ignore', tmp_path/'two.py', tmp_path/'sent'])
            for _ in range(2)]
    assert [p.wait(timeout=300) for p in both] == [0, 0]
    same(study.results(), plain)
    for seed in (0, 1):
        run = Run(tmp_path/'s'/'runs'/f'FT.seed={seed}')
        assert [r['step'] for r in run.train_rows] == sorted({r['step'] for r in run.train_rows})
    assert not (tmp_path/'s'/'superseded').exists()

@pytest.mark.slow
def test_process_that_lost_its_lease_stops_before_its_next_step(made, tmp_path):
    followed = []
    def follow(): # like another process that considers this one dead
        if followed: return
        file, = (tmp_path/'s'/'locks').glob('*.1')
        followed.append(file.write_text(sealed({**holder(file), 'id': 'another'})))
    study = made(tmp_path/'s', happens=follow)
    cell = study.cells[0]
    study.patience = -1. # the lease is checked before every step
    assert study.run_cell(cell) == 'busy' and followed
    record = json.loads((tmp_path/'s'/'cells'/f'{cell.name}.json').read_text())
    assert 'error' not in record and not Run(tmp_path/'s'/'runs'/cell.name).finished

@pytest.mark.slow
def test_only_one_process_gets_the_lease_of_a_dead_one(tmp_path):
    (tmp_path/'cell.1').write_text(sealed(dict(host='elsewhere', process=1, started='x', id='gone')))
    os.utime(tmp_path/'cell.1', (0, 0))
    script = textwrap.dedent('''
        import sys, time
        from salviz.core.leases import Lease, Leased
        while time.time() < float(sys.argv[2]): pass
        try:
            with Lease(sys.argv[1]):
                print('held')
                time.sleep(1.5)
        except Leased: print('refused')
        ''')
    start = time.time() + 2
    many = [subprocess.Popen([sys.executable, '-c', script, tmp_path/'cell', str(start)], stdout=subprocess.PIPE,
                             text=True) for _ in range(6)]
    outcomes = [p.communicate(timeout=60)[0].strip() for p in many]
    assert outcomes.count('held') <= 1 and set(outcomes) <= {'held', 'refused'}
    with Lease(tmp_path/'cell'): pass
    assert not list(tmp_path.iterdir())

@pytest.mark.slow
def test_truncated_or_foreign_archives_raise(made, plain, tmp_path):
    study = made(tmp_path/'a')
    study.run()
    name, other = study.cells[0].name, made(tmp_path/'b')
    archive = pack_run(tmp_path/'a', name)
    for bad in (archive[:len(archive)//2], b'', archive[:512*3]):
        with pytest.raises(ValueError, match='unpack_run'): unpack_run(tmp_path/'b', bad)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode='w') as tar:
        info = tarfile.TarInfo('../escaped')
        info.size = 1
        tar.addfile(info, io.BytesIO(b'x'))
    with pytest.raises(ValueError, match='does not belong to a run'): unpack_run(tmp_path/'b', file.getvalue())
    assert not (tmp_path/'escaped').exists()
    foreign = made(tmp_path/'c', seeds=(7,))
    with pytest.raises(ValueError, match=f'has no trial {name}; available: FT.seed=7'):
        unpack_run(tmp_path/'c', archive)
    (tmp_path/'file.tar').write_bytes(archive)
    assert unpack_run(tmp_path/'b', tmp_path/'file.tar') == name == unpack_run(tmp_path/'b', archive)
    same(other.run(), plain)
    assert [p.name for p in (tmp_path/'b').iterdir() if p.name.startswith('.')] == [] and foreign.folder.exists()

def tar_of(*members, mode='w'):
    "Return a tar file with `members`: (name, bytes, changes of the header)"
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for name, data, header in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in header.items(): setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()

def far_too_long(archive):
    "Return `archive` with a header that claims 8 GB for its first member"
    info = tarfile.TarInfo.frombuf(archive[:512], 'utf-8', 'strict')
    info.size = 2**33
    return info.tobuf(tarfile.GNU_FORMAT) + archive[512:]

one = ('run/a', bytes(10), {})
hostile = {**{kind: (tar_of(one, mode=f'w:{kind}'), 'ReadError') for kind in ('gz', 'bz2', 'xz')},
           'longer than it is': (far_too_long(tar_of(one)), 'truncated'),
           'sparse': (tar_of(('run/a', b'', {'pax_headers': {'GNU.sparse.major': '0', 'GNU.sparse.map': '0,0',
                                                             'GNU.sparse.size': str(2**40)}})), 'regular file'),
           'large record': (tar_of(('name.json', bytes(2**24 + 1), {})), 'at most'),
           **{kind: (tar_of(('run/a', b'', {'type': kind.encode(), 'linkname': '/etc/passwd'})), 'regular file')
              for kind in '12346'}, # links, devices, a pipe
           **{name: (tar_of((name, b'x', {})), 'does not belong') for name in (
               '../a', 'run/../../a', '/etc/a', 'run//a', 'run/./a', 'a', 'runs/a', '.lock', 'name.json/a')}}

@pytest.mark.parametrize('name', hostile)
def test_hostile_archive_raises_before_anything_is_unpacked(name, tmp_path, monkeypatch):
    archive, reason = hostile[name]
    monkeypatch.setattr(tarfile.TarFile, 'extractall', lambda *a, **k: pytest.fail('it was unpacked'))
    (tmp_path/'a.tar').write_bytes(archive)
    for given in (archive, tmp_path/'a.tar'):
        with pytest.raises(ValueError, match=f'unpack_run: the archive must be .*{reason}'), _incoming(tmp_path, given):
            pass
    assert [p.name for p in tmp_path.iterdir()] == ['a.tar']

def test_archive_larger_than_the_free_space_raises_before_anything_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: SimpleNamespace(free=9))
    with pytest.raises(ValueError, match='it needs 10 bytes of disk space, but only 9 are free'):
        with _incoming(tmp_path, tar_of(one)): pass

@pytest.mark.slow
def test_collect_skips_invalid_archives_and_adds_the_others(made, plain, tmp_path, capsys):
    made(tmp_path/'a').run()
    made(tmp_path/'b')
    (tmp_path/'archives').mkdir()
    for cell in ('FT.seed=0', 'FT.seed=1'):
        (tmp_path/'archives'/f'{cell}.tar').write_bytes(pack_run(tmp_path/'a', cell))
    (tmp_path/'archives'/'A.tar').write_bytes(b'no archive')
    os.mkfifo(tmp_path/'archives'/'pipe.tar')
    assert main(['study', 'collect', str(tmp_path/'b'), '/dev/zero', str(tmp_path/'archives')]) == 2
    said = capsys.readouterr().err
    assert '3 of 5 archives cannot be used: /dev/zero' in said and 'A.tar' in said and 'pipe.tar' in said
    assert said.endswith('Archives added: 2.\n') and said.count('\n') == 1
    same(Study.open(tmp_path/'b').results(), plain)

class Here(Executor):
    """An executor that runs jobs at once in this process; `dies(name of a trial, number of sends)` returns the
    exception of a crash"""
    def __init__(self, dies=lambda name, n: None): self.dies, self.sent = dies, []

    def submit(self, work, sent, name, *args):
        future = Future()
        self.sent.append(name)
        if death := self.dies(name, self.sent.count(name)): future.set_exception(death)
        else: future.set_result(work(sent, name, *args))
        return future

class Nodes:
    "Threads that call `happens(name of the trial)` instead of training; its exceptions are crashes"
    def __init__(self, happens): self.happens, self.threads = happens, ThreadPoolExecutor(8)

    def submit(self, work, sent, name, *args):
        return self.threads.submit(lambda: self.happens(name) or ('finished', ''))

@pytest.mark.slow
def test_ray_executor_submits_tasks_and_raises_without_ray(made, plain, tmp_path, monkeypatch):
    "With a stand-in for ray's interface; `make slow` uses ray itself, which needs a quarter of a gigabyte"
    class WorkerCrashedError(Exception): "A substitute for ray's exception"
    def crash(name, n): return WorkerCrashedError('the worker died unexpectedly') if n == 1 else None
    asked, here = [], Here(crash)
    def remote(**options):
        asked.append(options)
        def task(function):
            def call(*args): return SimpleNamespace(future=lambda: here.submit(function, *args))
            return SimpleNamespace(remote=call)
        return task
    ray = SimpleNamespace(remote=remote, is_initialized=lambda: False, init=lambda: asked.append('started'))
    monkeypatch.setitem(sys.modules, 'ray', ray)
    same(made(tmp_path/'s').run(executor=RayExecutor(num_gpus=1)), plain)
    assert asked == ['started', dict(max_retries=0, num_gpus=1)] and len(here.sent) == 4
    monkeypatch.setitem(sys.modules, 'ray', None)
    with pytest.raises(ImportError, match=r"pip install 'salviz\[ray\]'"): RayExecutor()

@pytest.mark.slow
@pytest.mark.parametrize('shared', [True, False])
def test_finished_trials_are_not_sent_again_and_new_measures_train_nothing(shared, made, plain, tmp_path):
    study, here = made(tmp_path/'s'), Here()
    same(study.run(executor=here, shared=shared), plain)
    ends = {p: p.read_text() for p in (tmp_path/'s').glob('runs/*/summary.json')}
    same(study.run(executor=here, shared=shared), plain)
    assert here.sent == [c.name for c in study.cells]
    more = made(tmp_path/'s', measures=['test_accuracy', 'test_loss', 'gap'])
    assert more.run(executor=here, shared=shared)['gap'].notna().all() and len(here.sent) == 4
    assert ends == {p: p.read_text() for p in ends}

def test_interrupted_run_is_sent_along_and_leased_without_a_shared_folder(made, plain, tmp_path):
    happened = []
    def happens(): # first the training is stopped in its second epoch; it has no third step when that is trained alone
        happened.append(study_progress(tmp_path/'s').counts['running'])
        raise KeyboardInterrupt
    study = made(tmp_path/'s', seeds=(0,), happens=happens)
    with pytest.raises(KeyboardInterrupt): study.run()
    same(study.run(executor=Here(), shared=False), plain[:1])
    assert happened == [1]

def test_sent_trial_is_leased_without_a_shared_folder(made, plain, tmp_path):
    other, seen = made(tmp_path/'s', seeds=(0,)), tmp_path/'seen'
    def look(): seen.write_text(f'{other.run_cell(other.cells[0])} {study_progress(other.folder).counts["running"]}')
    same(made(tmp_path/'s', seeds=(0,), happens=look).run(executor=Here(), shared=False), plain[:1])
    assert seen.read_text() == 'busy 1'

@pytest.mark.slow
@pytest.mark.parametrize('shared', [True, False])
def test_error_counts_as_a_try_on_any_worker(shared, made, tmp_path):
    def broken(): raise OSError('broken')
    study, here = made(tmp_path/'s', seeds=(0,), happens=broken, at=1), Here()
    for _ in range(5):
        with pytest.raises(RuntimeError, match='every trial failed .1 of 1.; .*first error: OSError: broken'):
            study.run(executor=here, shared=shared)
    assert len(here.sent) == 3 and study_progress(tmp_path/'s').counts['set aside'] == 1

@pytest.mark.slow
def test_archive_does_not_replace_a_running_trial(made, plain, tmp_path):
    made(tmp_path/'a', seeds=(0,)).run()
    refused, archive = [], pack_run(tmp_path/'a', 'FT.seed=0')
    def collect():
        with pytest.raises(ValueError, match=f'run of FT.seed=0 was not added.* held by process {os.getpid()}') as e:
            unpack_run(tmp_path/'b', archive)
        refused.append(e)
    same(made(tmp_path/'b', seeds=(0,), happens=collect).run(), plain[:1])
    assert refused and len(Run(tmp_path/'b'/'runs'/'FT.seed=0').train_rows) == 4

@pytest.mark.slow
def test_archive_of_a_failed_run_does_not_replace_a_longer_one(made, plain, tmp_path):
    def stop(): raise KeyboardInterrupt
    def fail(): raise OSError('broken')
    further = made(tmp_path/'a', seeds=(0,), happens=stop)
    with pytest.raises(KeyboardInterrupt): further.run()
    with pytest.raises(RuntimeError, match='broken'): made(tmp_path/'b', seeds=(0,), happens=fail, at=1).run()
    unpack_run(tmp_path/'a', pack_run(tmp_path/'b', 'FT.seed=0'))
    assert list(Run(tmp_path/'a'/'runs'/'FT.seed=0').checkpoints) == [2]
    assert further.status()['error'].tolist() == ['OSError: broken']
    same(made(tmp_path/'a', seeds=(0,)).run(), plain[:1])

@pytest.mark.slow
def test_trial_that_died_on_another_host_can_be_tried_again(made, plain, tmp_path):
    def stop(): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): made(tmp_path/'s', seeds=(0,), happens=stop).run()
    study, run = made(tmp_path/'s', seeds=(0,)), tmp_path/'s'/'runs'/'FT.seed=0'
    gone, lock = dict(host='elsewhere', process=1, started='x'), tmp_path/'s'/'locks'/'FT.seed=0.1'
    (run/'.lock').touch()
    note = dict(gone, since='yesterday', file=os.stat(run/'.lock').st_ino)
    (run/'.training.json').write_text(sealed(note))
    lock.write_text(sealed(dict(gone, id='gone')))
    os.utime(lock, (0, 0))
    study._write_record('FT.seed=0', measures={}, tries=3)
    with pytest.raises(RuntimeError, match='a lack of memory and a time limit'): study.run()
    same(study.run(retry='all'), plain[:1])

@pytest.mark.slow
def test_caching_engine_trains_a_dead_trial_again(made, plain, tmp_path):
    remembered, here = {}, Here(lambda name, n: OSError('the machine went away') if n == 1 else None)
    def submit(*call): # as dask's executor does by default: the same arguments have the same outcome
        key = repr(call)
        if key not in remembered: remembered[key] = here.submit(*call)
        return remembered[key]
    same(made(tmp_path/'s').run(executor=SimpleNamespace(submit=submit)), plain)

@pytest.mark.sample(1)
@pytest.mark.parametrize('shared', [True, False])
def test_three_deaths_count_as_three_tries(shared, made, tmp_path):
    study = made(tmp_path/'s')
    def die(name, n):
        if name != 'FT.seed=1': return None
        if shared: study._write_record(name, measures={}, tries=n)
        return OSError('the machine went away')
    here = Here(die)
    with pytest.warns(UserWarning, match='seed=1: its process died'): study.run(executor=here, shared=shared)
    assert here.sent.count('FT.seed=1') == 3 and study.status()['state'].tolist() == ['finished', 'failed']

def test_retries_of_the_engine_stop_after_three_tries(made, tmp_path):
    study = made(tmp_path/'s')
    def die(name, n): # three workers, unknown to the sender
        if name == 'FT.seed=1': study._write_record(name, measures={}, tries=3)
    with pytest.warns(UserWarning, match='seed=1: its process died'): study.run(executor=Here(die))
    assert not (tmp_path/'s'/'runs'/'FT.seed=1').exists()

def test_retries_of_dask_count_without_a_shared_folder(made, tmp_path):
    class KilledWorker(Exception): allowed_failures = 3
    here = Here(lambda name, n: KilledWorker('four workers died') if name == 'FT.seed=1' else None)
    with pytest.warns(UserWarning, match='seed=1: its process died'):
        made(tmp_path/'s').run(executor=here, shared=False)
    assert here.sent.count('FT.seed=1') == 1

def test_dead_trial_is_sent_again_at_once_with_others(made, tmp_path):
    study, tried, together = made(tmp_path/'s', seeds=range(4)), [], threading.Barrier(4, timeout=60)
    def happens(name):
        tried.append(name)
        if tried.count(name) > 1: return together.wait() and None
        study._write_record(name, measures={}, tries=1)
        raise OSError('the machine went away')
    assert run_on(study, Nodes(happens), study.cells) == [] and len(tried) == 8

def test_number_of_trials_in_flight_is_limited(made, tmp_path):
    study, flying, most, last = made(tmp_path/'s', seeds=range(4)), set(), [], threading.Event()
    def happens(name):
        flying.add(name)
        most.append(len(flying))
        if name == 'FT.seed=3': last.set()
        if name == 'FT.seed=0': assert last.wait(timeout=60)
        flying.remove(name)
    assert run_on(study, Nodes(happens), study.cells, in_flight=2) == []
    assert len(most) == 4 and max(most) == 2

def test_full_queue_gets_the_remaining_trials_later(made, tmp_path):
    study, done, refused, jobs = made(tmp_path/'s', seeds=range(4)), [], threading.Event(), []
    def happens(name):
        assert refused.wait(timeout=60)
        done.append(name)
    nodes = Nodes(happens)
    def submit(*call):
        if sum(not job.done() for job in jobs) > 1:
            refused.set()
            raise OSError('QOSMaxSubmitJobPerUserLimit')
        jobs.append(nodes.submit(*call))
        return jobs[-1]
    assert run_on(study, SimpleNamespace(submit=submit), study.cells) == []
    assert sorted(done) == [c.name for c in study.cells]
    def never(*call): raise OSError('the partition is down')
    with pytest.raises(RuntimeError, match='did not train FT.seed=0: the partition is down'):
        run_on(study, SimpleNamespace(submit=never), study.cells)

def test_each_process_takes_a_free_device(tmp_path):
    held = [_free_device(('5', '6'), tmp_path/'d') for _ in range(3)]
    assert [lease.path.name for lease in held] == ['5-0', '6-0', '5-1']
    held[1].__exit__()
    held[1] = _free_device(('5', '6'), tmp_path/'d')
    assert held[1].path.name == '6-0'
    for lease in held: lease.__exit__()

@pytest.mark.slow
def test_workers_get_one_device_each_and_the_requested_threads(made, tmp_path, monkeypatch):
    seen = tmp_path/'seen'
    def look(): # wait for both: a worker that has ended has no device
        with seen.open('a') as f: print(os.environ.get('CUDA_VISIBLE_DEVICES'), torch.get_num_threads(), file=f)
        while len(seen.read_text().splitlines()) < 2: time.sleep(.05)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '0') # the initial value of the workers
    monkeypatch.setenv('TMPDIR', str(tmp_path)) # like a host without other processes
    study = made(tmp_path/'s', happens=look)
    study.run(executor=lambda: ProcessPoolExecutor(2, mp_context=get_context('spawn')), devices=('5', '6'), threads=1)
    assert sorted(seen.read_text().splitlines()) == ['5 1', '6 1']
