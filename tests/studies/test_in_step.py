"Trials trained by several processes in step: numbers, errors, killed processes and lost leases."
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import cloudpickle
import pandas as pd
import psutil
import pytest

import helpers
from helpers import at_step
from salviz.core.leases import Leased
from salviz.core.runs import Run
from salviz.data.texts import subset
from salviz.methods import ADDrop, FineTuning
from salviz.models.corruption import small_model, train_tokenizer
from salviz.training.control import Stopped
from salviz.studies.processes import train_in_step
from salviz.studies.study import Study, StudyOptions

for module in (sys.modules[__name__], helpers): # the processes cannot import these files
    cloudpickle.register_pickle_by_value(module)

def rank(): return os.environ.get('RANK')

@pytest.fixture(scope='module')
def made(tiny_data):
    data = subset(tiny_data, 16, validation_size=8, test_size=8)
    tokenizer = train_tokenizer(data['train']['text'], vocab_size=90)
    def study(folder, happens=None, dropout=.1, **kw):
        "Call a function in step 3, the first step of the second epoch"
        def bert(seed):
            drawn = dict(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
            model = small_model('classification', tokenizer, seed=seed, layers=1, heads=2, hidden=16, num_labels=2,
                                **drawn).double()
            return at_step(model, 3, happens) if happens else model, tokenizer
        usual = dict(model=bert, data=data, methods={'FT': FineTuning}, seeds=[0], epochs=2, batch_size=8,
                     options=StudyOptions(processes=2), measures=['test_accuracy', 'test_loss'], snapshots=0, probes=1,
                     progress=False, args=dict(use_cpu=True))
        return Study(folder, **{**usual, **kw})
    return study

@pytest.fixture(scope='module')
def plain(made, tmp_path_factory): return made(tmp_path_factory.mktemp('plain')/'study').run()

def same(frame, plain): pd.testing.assert_frame_equal(frame, plain, check_exact=True)

@pytest.mark.slow
def test_two_processes_equal_one_up_to_rounding(made, tmp_path):
    methods = {'FT': FineTuning, 'AD-DROP': ADDrop(p=.4, q=.5, cross_tuning=False)}
    found = [made(tmp_path/str(n), dropout=0., methods=methods, options=StudyOptions(processes=n)).run()
             for n in (1, 2)]
    assert (found[0].test_loss - found[1].test_loss).abs().max() < 1e-6
    assert Run(tmp_path/'2'/'runs'/'FT.seed=0').config['settings']['batch_size'] == 4

@pytest.mark.slow
def test_engine_with_two_processes_gives_the_same_numbers_again(made, plain, tmp_path):
    pool = partial(ProcessPoolExecutor, 1, mp_context=get_context('spawn'))
    same(made(tmp_path/'s').run(executor=pool, threads=1), plain)

@pytest.mark.slow
def test_error_of_one_process_ends_all_and_is_raised(made, tmp_path):
    def fail():
        if rank() == '1': raise FloatingPointError('it is not a number')
    study = made(tmp_path/'s', happens=fail)
    with pytest.raises(RuntimeError, match='FloatingPointError: it is not a number'): study.run()
    assert 'in fail' in study._record('FT.seed=0')['traceback'] # where it was raised, not where it came back

@pytest.mark.slow
def test_killed_process_is_reported_and_the_next_run_continues(made, plain, tmp_path):
    once = tmp_path/'once'
    def die():
        if rank() == '1' and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    study = made(tmp_path/'s', happens=die)
    with pytest.raises(RuntimeError, match='FT.seed=0 was ended by SIGKILL'): study.run()
    same(study.run(), plain)
    steps = [r['step'] for r in Run(tmp_path/'s'/'runs'/'FT.seed=0').train_rows]
    assert steps == [1, 2, 3, 4]

def living(pids): return [p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != 'zombie']

def wait_for(what, seconds=60):
    until = time.time() + seconds
    while not (x := what()) and time.time() < until: time.sleep(.05)
    assert x
    return x

def waits(here):
    "Return a function that writes its process id into the folder `here` and waits while the file `hold` exists"
    def wait():
        (here/f'{os.getpid()}.pid').touch()
        while (here/'hold').exists(): time.sleep(.05)
    return wait

def pids(here): return [int(p.stem) for p in here.glob('*.pid')]

@pytest.mark.slow
def test_processes_exit_when_their_parent_is_killed_and_another_continues(made, plain, tmp_path):
    (tmp_path/'hold').touch()
    study = made(tmp_path/'s', happens=waits(tmp_path))
    (tmp_path/'study').write_bytes(cloudpickle.dumps(study))
    code = f"import pickle; pickle.load(open({str(tmp_path/'study')!r}, 'rb')).run()"
    started = subprocess.Popen([sys.executable, '-c', code])
    wait_for(lambda: len(pids(tmp_path)) == 2)
    started.kill()
    started.wait()
    wait_for(lambda: not living(pids(tmp_path)))
    (tmp_path/'hold').unlink()
    same(study.run(), plain)

@pytest.mark.slow
def test_lost_lease_ends_the_processes(made, tmp_path):
    (tmp_path/'hold').touch()
    study = made(tmp_path/'s', happens=waits(tmp_path))
    def check():
        if len(pids(tmp_path)) == 2: raise Leased('somebody else holds it')
    with pytest.raises(Leased): train_in_step(study, study.cells[0], check)
    assert len(pids(tmp_path)) == 2 and not living(pids(tmp_path))

@pytest.mark.slow
def test_processes_stop_together_with_a_checkpoint_and_the_next_run_continues(made, plain, tmp_path):
    (tmp_path/'hold').touch()
    study, asked = made(tmp_path/'s', happens=waits(tmp_path)), []
    def check():
        if len(pids(tmp_path)) < 2: return False
        if not asked: asked.append(threading.Timer(2, (tmp_path/'hold').unlink))
        if not asked[0].ident: asked[0].start()
        return True
    cell = study.cells[0]
    with pytest.raises(Stopped): train_in_step(study, cell, check)
    left = Run(tmp_path/'s'/'runs'/cell.name)
    assert not left.finished and max(left.checkpoints) == left.state['stopped'] > 0
    assert not (left.path/'.training.json').exists() and not living(pids(tmp_path))
    same(study.run(), plain)

@pytest.mark.parametrize('processes', [0, True])
def test_number_of_processes_must_be_a_positive_integer(processes):
    message = f'processes must be a positive integer, got {processes}'
    with pytest.raises(ValueError, match=message): StudyOptions(processes=processes)

def test_batch_that_cannot_be_divided_raises_before_anything_starts(made, tmp_path):
    message = 'a batch of 9 cannot be divided evenly among 2 processes; use a multiple of 2'
    with pytest.raises(ValueError, match=message): made(tmp_path/'s', batch_size=9)

def test_every_batch_size_of_a_grid_must_be_divisible(made, tmp_path):
    study = made(tmp_path/'s')
    del study.train['batch_size']
    study.settings = dict(batch_size=[8, 6, 5])
    with pytest.raises(ValueError, match='a batch of 5 cannot be divided'): study._check()

def test_devices_are_grouped_by_worker(made, tmp_path, monkeypatch):
    study = made(tmp_path/'s')
    assert study._grouped(['0', '1', '2', '3']) == ['0,1', '2,3'] and study._grouped(()) == []
    with pytest.raises(ValueError, match='3 devices cannot be divided evenly among workers with 2 processes'):
        study.run(executor=object(), devices=['0', '1', '2'])
