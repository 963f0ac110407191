"A replication that takes seconds: trained once, by several processes, after a kill, and from rows without runs"
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

import forked
from helpers import is_running
from salviz.replication.reproduce import selected_claims, list_claims, reproduce
from salviz.replication.rows import read_rows

modules = ('tiny_claims',)
names = ('T1', 'T2')

@pytest.fixture(scope='module', autouse=True)
def tiny():
    import tiny_claims
    yield
    tiny_claims.forget()
    sys.modules.pop('tiny_claims', None)

@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    "Return a folder in which two processes have trained everything"
    folder = tmp_path_factory.mktemp('tiny')
    return folder, reproduce(folder, names, processes=2, progress=False, modules=modules)

@pytest.mark.slow
def test_two_processes_train_each_trial_once(trained):
    folder, rows = trained
    assert sorted(zip(rows.study, rows.method, rows.seed)) == [
        ('AGAIN', 'FT', 100), ('AGAIN', 'FT', 101), ('TINY', 'FT', 100), ('TINY', 'FT', 101), ('TINY', 'GA', 100),
        ('TINY', 'GA', 101)]
    assert (rows.finished == 1).all() and rows.processor.notna().all() and (rows.threads == 1).all()
    before = {p: p.stat().st_mtime_ns for p in folder.rglob('summary.json')}
    again = reproduce(folder, names, progress=False, modules=modules)
    assert again.equals(rows) and before == {p: p.stat().st_mtime_ns for p in folder.rglob('summary.json')}

@pytest.mark.slow
def test_rows_of_another_machine_are_continued(trained, tmp_path):
    "AGAIN starts from checkpoints of TINY, which are missing: those are trained again, their rows stay"
    file, text = tmp_path/'rows.jsonl', (trained[0]/'rows.jsonl').read_text()
    kept = [line for line in text.splitlines() if '"AGAIN"' not in line or '"kind": "registry"' in line]
    file.write_text('\n'.join(kept) + '\n')
    rows = reproduce(tmp_path/'studies', ('T2',), rows=file, progress=False, modules=modules)
    assert len(rows) == 6 and file.read_text().splitlines()[:len(kept)] == kept
    assert {p.parent.name for p in (tmp_path/'studies'/'TINY').rglob('summary.json')} == {'FT.seed=100', 'FT.seed=101'}

@pytest.mark.slow
def test_workers_end_with_a_killed_parent_and_the_next_call_resumes_from_the_rows(trained, tmp_path):
    code = ('from salviz.replication.reproduce import reproduce; '
            f'reproduce({str(tmp_path)!r}, {names!r}, progress=False, modules={modules!r})')
    running = forked.begin(forked.code, code, ['-c'], said=tmp_path/'said')
    while not len(read_rows(tmp_path/'rows.jsonl')):
        assert running.is_alive(), (tmp_path/'said.err').read_text()
        time.sleep(.1)
    workers = list(map(int, Path(f'/proc/{running.pid}/task/{running.pid}/children').read_text().split()))
    os.kill(running.pid, signal.SIGKILL)
    running.join()
    until = time.monotonic() + 60
    while any(map(is_running, workers)): assert time.monotonic() < until, 'its workers have not ended'
    kept = (tmp_path/'rows.jsonl').read_text()
    rows = reproduce(tmp_path, names, progress=False, modules=modules)
    assert len(rows) == 6 and (tmp_path/'rows.jsonl').read_text().startswith(kept[:kept.rindex('\n') + 1])
    numbers = ['study', 'method', 'seed', 'test_accuracy']
    whole = trained[1].sort_values(numbers[:3])[numbers].reset_index(drop=True)
    assert rows.sort_values(numbers[:3])[numbers].reset_index(drop=True).equals(whole)

@pytest.mark.slow
def test_a_failed_trial_is_named_and_the_others_are_trained(trained, tmp_path):
    "The checkpoint that AGAIN starts from exists for seed 101 but cannot be read"
    folder = tmp_path/'studies'
    shutil.copytree(trained[0], folder)
    shutil.rmtree(folder/'AGAIN')
    lines = (folder/'rows.jsonl').read_text().splitlines()
    (folder/'rows.jsonl').write_text('\n'.join(x for x in lines if '"study": "AGAIN"' not in x) + '\n')
    for weights in (folder/'TINY'/'runs'/'FT.seed=101').rglob('*.safetensors'):
        if 'checkpoints' in weights.parts: weights.unlink()
    with pytest.raises(RuntimeError, match='no result for 1 of 6 trials: AGAIN FT.seed=101'):
        reproduce(folder, names, progress=False, modules=modules)
    assert len(read_rows(folder/'rows.jsonl')) == 5

@pytest.mark.parametrize('wrong, why', [(dict(names=('D99',)), "unknown claim 'D99'"),
    (dict(budget='huge'), 'budget'), (dict(processes=0), 'processes must be'),
    (dict(processes=True), 'processes must be'),
    (dict(names=('D7',), budget='quick'), "not available for the budget 'quick': D7")])
def test_invalid_arguments_raise_an_error_before_training(tmp_path, wrong, why):
    with pytest.raises(ValueError, match=why): reproduce(tmp_path/'new', **{'progress': False, **wrong})
    assert not (tmp_path/'new').exists()

def test_the_list_has_the_cost_of_each_claim():
    table = list_claims()
    assert {'D1', 'L3'} <= set(table.claim) and (table.minutes > 0).all()
    assert len(selected_claims(['D2'])) == 1
