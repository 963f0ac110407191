"A suspended process whose trial another one has taken over writes nothing when it wakes up."
import errno
import fcntl
import json
import os
import platform
import signal
import time

import pandas as pd
import psutil
import pytest

import forked
from salviz.core.leases import Lease, holder
from salviz.core.run_files import sealed
from salviz.core.runs import Run
from salviz.data.texts import subset
from salviz.methods import FineTuning
from salviz.models.corruption import small_model, train_tokenizer
from salviz.training.method_trainer import MethodTrainer
from salviz.studies.progress import study_progress
from salviz.studies.study import Study

def study_in(folder, data, happens=None, **kw):
    "Create a study; `happens(n)` is called before the `n`th forward pass of its training"
    tokenizer = train_tokenizer(data['train']['text'], vocab_size=90)
    def bert(seed):
        model, passes = small_model('classification', tokenizer, seed=seed, layers=1, heads=2, hidden=16,
                                    num_labels=2), []
        def hook(module, args):
            passes.append(1)
            happens(len(passes))
        if happens: model.register_forward_pre_hook(hook)
        return model, tokenizer
    usual = dict(model=bert, data=data, methods={'FT': FineTuning}, seeds=(0,), epochs=2, batch_size=8,
                 measures=['test_accuracy', 'test_loss'], snapshots=2, probes=1, progress=False)
    return Study(folder, **{**usual, **kw})

def stopped_at_the_fourth_pass(folder, data):
    "Train the study like another host; return 0 if another process holds it in the end"
    platform.node = lambda: 'elsewhere'
    def stop(n):
        if n == 4: os.kill(os.getpid(), signal.SIGSTOP)
    study = study_in(folder, data, stop)
    study.patience = 8.
    return study.run_cell(study.cells[0]) != 'busy'

@pytest.fixture(scope='module')
def made(tiny_data):
    data = subset(tiny_data, 16, validation_size=8, test_size=8)
    return lambda folder, happens=None, **kw: study_in(folder, data, happens, **kw)

@pytest.fixture(scope='module')
def plain(made, tmp_path_factory): return made(tmp_path_factory.mktemp('plain')/'study').run()

def same(frame, plain): pd.testing.assert_frame_equal(frame, plain, check_exact=True)

def tree(folder): # all files, without leases and notes of running processes
    kept = [p for part in ('runs', 'cells') for p in (folder/part).rglob('[!.]*')]
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) if p.is_file() else None for p in kept}

def followed(study):
    "Let another process take over; return the tree of files that it finds"
    file, = (study.folder/'locks').glob('*.1')
    file.write_text(sealed({**holder(file), 'id': 'another'}))
    return tree(study.folder)

@pytest.mark.slow
@pytest.mark.parametrize('code', [errno.ENOLCK, errno.EOPNOTSUPP], ids=lambda code: errno.errorcode[code])
def test_study_works_without_file_locks(code, made, plain, tmp_path, monkeypatch):
    def flock(file, operation): raise OSError(code, os.strerror(code))
    monkeypatch.setattr(fcntl, 'flock', flock)
    same(made(tmp_path/'s').run(), plain)

def passes(made, folder):
    n = []
    made(folder, happens=n.append).run()
    return n

@pytest.mark.slow
def test_process_that_loses_its_lease_during_a_pass_writes_nothing(made, tmp_path):
    known = passes(made, tmp_path/'all')
    for stage in known:
        before = []
        def happens(n):
            if n == stage: before.append(followed(study))
        study = made(tmp_path/f's{stage}', happens=happens)
        study.patience = -1. # the lease is checked each time
        assert study.run_cell(study.cells[0]) == 'busy'
        (then,), now = before, tree(study.folder)
        assert {p for p in {**then, **now} if then.get(p, 0) != now.get(p, 0)} == set(), stage

def test_process_that_loses_its_lease_before_a_checkpoint_or_in_a_measure_writes_nothing(made, tmp_path, monkeypatch):
    before, save = [], MethodTrainer._save_checkpoint
    def measure(run):
        before.append(followed(study))
        return 1.
    measure.version = '1'
    def saved(*args):
        before.append(followed(study))
        return save(*args)
    study = made(tmp_path/'measured', measures=dict(own=measure))
    study.patience = -1.
    assert study.run_cell(study.cells[0]) == 'busy' and [tree(study.folder)] == before
    study = made(tmp_path/'saved')
    study.patience = -1.
    monkeypatch.setattr(MethodTrainer, '_save_checkpoint', saved)
    before.clear()
    assert study.run_cell(study.cells[0]) == 'busy' and [tree(study.folder)] == before

@pytest.mark.slow
def test_suspended_process_is_replaced_from_another_host_and_writes_nothing(made, plain, tmp_path):
    study = made(tmp_path/'s')
    study.patience = 8.
    child = forked.begin(stopped_at_the_fourth_pass, study.folder, study.data, said=tmp_path/'said')
    while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
        assert child.exitcode is None, (tmp_path/'said.err').read_text()
        time.sleep(.05)
    held, = study_progress(study.folder).cells.itertuples()
    assert (held.state, held.host, held.process) == ('running', 'elsewhere', child.pid)
    with pytest.warns(UserWarning, match='1 trial is being trained by another process'): study.run()
    file, = (study.folder/'locks').iterdir()
    os.utime(file, (0, 0))
    assert study_progress(study.folder).counts['running'] == 0
    same(study.run(), plain)
    before = tree(study.folder)
    time.sleep(study.patience/2)
    os.kill(child.pid, signal.SIGCONT)
    child.join()
    assert child.exitcode == 0, (tmp_path/'said.err').read_text()
    assert tree(study.folder) == before and not list((study.folder/'locks').iterdir())
    assert not (study.folder/'superseded').exists() and Run(study.folder/'runs'/study.cells[0].name).damaged == []

def test_status_uses_the_clock_of_the_file_server_and_the_patience_of_the_holder(made, tmp_path, monkeypatch):
    study, clock = made(tmp_path/'s'), time.time
    (study.folder/'locks').mkdir()
    with Lease(study.folder/'locks'/study.cells[0].name, seconds=7200) as lease:
        (file := lease.file).write_text(sealed({**lease.who, 'host': 'elsewhere'}))
        old = clock() - 3600
        os.utime(file, (old, old))
        for skew in (0, 7300, -7300):
            monkeypatch.setattr(time, 'time', lambda: clock() + skew)
            assert study_progress(study.folder).counts['running'] == 1
        os.utime(file, (old - 3700, old - 3700))
        for skew in (0, 7300, -7300):
            monkeypatch.setattr(time, 'time', lambda: clock() + skew)
            assert study_progress(study.folder).counts['running'] == 0
        assert abs(study_progress(study.folder).now.timestamp() - clock()) < 3600
        assert json.loads(study_progress(study.folder).to_json())['left'] == 1
