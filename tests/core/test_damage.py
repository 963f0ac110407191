"""Runs survive kills at any moment, flipped bits, cuts, appended bytes and concurrent processes, and runs from other
people are read safely."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from transformers import AutoModelForSequenceClassification, AutoTokenizer

import forked
import salviz.training.trainer
from salviz.methods import FineTuning
from salviz.core.run_files import checkpoint_damage, read_object, sealed, write_manifest, write_whole
from salviz.core.snapshots import Snapshot, decode_snapshot, encode_arrays, encode_snapshot
from salviz.core.locks import Held, RunInUse
from salviz.core.runs import Run
from salviz.studies.study import Study, StudyOptions
from salviz.training.trainer import load_model, train

quick = dict(epochs=2, batch_size=8, learning_rate=1e-3, progress=False, probes=2, snapshots=4)

def weights(model): return torch.cat([p.detach().flatten() for p in model.parameters()])

def rows_of(run):
    "Return all rows without times"
    return [{k: v for k, v in r.items() if 'seconds' not in k} for r in run.metrics]

def same_run(a, b):
    "Return whether two finished runs have equal recordings and equal best weights"
    assert rows_of(a) == rows_of(b) and a.recorded == b.recorded and a.finished and b.finished
    assert a.best_step == b.best_step and list(a.checkpoints) == list(b.checkpoints)
    for s in a.snapshots():
        other = b.snapshot(s.step, s.probe)
        assert s.losses == other.losses and s.arrays.keys() == other.arrays.keys()
        for k, x in s.arrays.items():
            assert np.array_equal(x, other.arrays[k], equal_nan=x.dtype.kind == 'f'), (s.step, k)
    for which in ('best', 'last'): assert torch.equal(*(weights(load_model(r, which)[0]) for r in (a, b)))
    # possible locations of a damaged checkpoint
    assert [d for d in b.check() if not d.file.startswith('superseded/')] == []
    return True

class Breaks(FineTuning):
    "Plain fine-tuning that fails once before a step"
    def __init__(self, at=None): self.at = at
    def args(self): return {}
    @property
    def name(self): return 'FineTuning'
    def plan(self, model, batch, progress):
        if progress.step == self.at and model.training:
            self.at = None
            raise KeyboardInterrupt
        return super().plan(model, batch, progress)

def as_earlier(config, path):
    "Write `config` to `path` in the form of an earlier version: without format, seal and first weights"
    said = {k: v for k, v in read_object(config).items() if k not in ('format', 'first_weights')}
    write_whole(path, json.dumps(said).encode())

@pytest.fixture(scope='module')
def home(tmp_path_factory, make_tiny_bert, tiny_tokenizer, tiny_data):
    "Create a folder with model, tokenizer and data for other processes, and an uninterrupted run"
    home = tmp_path_factory.mktemp('damage')
    make_tiny_bert().save_pretrained(home/'model'); tiny_tokenizer.save_pretrained(home/'model')
    tiny_data.save_to_disk(home/'data')
    done = forked.run(life, home, home/'whole', -1, name='life')
    assert done.returncode == 0, done.stderr[-3000:]
    (home/'touched').write_text('\n'.join(line[2:] for line in done.stdout.splitlines() if line.startswith('# ')))
    return home

@pytest.fixture(scope='module')
def stopped(tmp_path_factory, make_tiny_bert, tiny_tokenizer, tiny_data):
    "Create a run that failed in its last epoch, with two checkpoints to resume from; tests use copies"
    path = tmp_path_factory.mktemp('stopped')/'run'
    with pytest.raises(KeyboardInterrupt):
        train(make_tiny_bert(), tiny_tokenizer, tiny_data, Breaks(13), run_dir=path,
              **{**quick, 'epochs': 3, 'keep': 3})
    assert list(Run(path).checkpoints) == [5, 10]
    return path

@pytest.fixture(scope='module')
def unbroken(tmp_path_factory, make_tiny_bert, tiny_tokenizer, tiny_data):
    "Return the uninterrupted version of `stopped`"
    path = tmp_path_factory.mktemp('unbroken')/'run'
    return train(make_tiny_bert(), tiny_tokenizer, tiny_data, FineTuning(), run_dir=path,
                 **{**quick, 'epochs': 3, 'keep': 3})

@pytest.fixture
def copy(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path/'run')
    return Run(tmp_path/'run')

@pytest.fixture
def resume(make_tiny_bert, tiny_tokenizer, tiny_data):
    def go_on(run, seed=9): # of other weights: those of the run come from its checkpoint
        return train(make_tiny_bert(seed=seed), tiny_tokenizer, tiny_data, FineTuning(), run_dir=run.path, resume=True,
                     **{**quick, 'epochs': 3, 'keep': 3})
    return go_on


# Kills

# A process that starts or resumes training in a folder, like a requeued job. It dies before its k-th file operation
# there (-1: it survives and reports the operations).
life = '''
import os, signal, sys, warnings
import datasets
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from salviz.training.trainer import train
home, path, k = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = AutoModelForSequenceClassification.from_pretrained(home + '/model')
tokenizer = AutoTokenizer.from_pretrained(home + '/model')
data, touched = datasets.load_from_disk(home + '/data'), 0
def watch(event, args):
    global touched
    if event not in ('open', 'os.rename', 'os.remove', 'os.mkdir', 'os.truncate') or path not in str(args[0]): return
    if touched == k: os.kill(os.getpid(), signal.SIGKILL)
    if k < 0: print('#', event, args[0], flush=True)
    touched += 1
sys.addaudithook(watch)
print('begins', flush=True)
train(model, tokenizer, data, run_dir=path, resume=os.path.exists(path), epochs=2, batch_size=8, learning_rate=1e-3,
      progress=False, probes=2, snapshots=4)
'''

def live(home, path, k=-1, seconds=None):
    """Run a training in `path` in another process, and return its exit status; kill it before its `k`-th file
    operation, or some `seconds` after its start"""
    said = path.with_suffix('.said')
    process = forked.begin(forked.code, life, ['life', str(home), str(path), str(k)], said=said)
    if seconds is not None:
        while process.exitcode is None and 'begins' not in (said.read_text() if said.exists() else ''):
            process.join(.002)
        process.join(seconds)
        process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), Path(f'{said}.err').read_text()[-3000:]
    return process.exitcode

def touches(home): return (home/'touched').read_text().splitlines()

places = dict(folder='os.mkdir .*/whole$', config='os.rename .*/.config.json', look='open .*probe-001',
              row='os.rename .*/.metrics.jsonl', checkpoint='open .*checkpoint-5/.manifest',
              second='os.rename .*checkpoint-10/.manifest', scores='os.mkdir .*/arrays',
              summary='os.rename .*/.summary.json', tidying='os.remove .*checkpoint-10/scheduler')

@pytest.mark.sample(1)
@pytest.mark.parametrize('place', places)
def test_killed_training_resumes_to_the_same_result(place, home, tmp_path, make_tiny_bert, tiny_tokenizer,
                                                         tiny_data):
    k = next(i for i, touch in enumerate(touches(home)) if re.match(places[place], touch))
    assert live(home, tmp_path/'run', k) == -signal.SIGKILL
    again = tmp_path/'run'
    if not (again/'summary.json').exists(): # otherwise the kill came after the end
        loaded = dict(model=AutoModelForSequenceClassification.from_pretrained(home/'model'),
                      tokenizer=AutoTokenizer.from_pretrained(home/'model'))
        train(**loaded, data=tiny_data, run_dir=again, resume=again.exists(), **quick)
    assert same_run(Run(home/'whole'), Run(again))

@pytest.mark.slow
def test_hundred_random_kills_change_nothing(home, tmp_path):
    "Kill half of the runs before a random file operation, half after a random time; resumed runs may be killed again"
    rng, kills, ended, early, late, run = random.Random(11), 0, 0, 0, 0, 0
    start = time.monotonic()
    live(home, tmp_path/'timed')
    lifetime = time.monotonic() - start
    while kills < 100:
        path = tmp_path/str(run)
        if kills % 2: how = dict(k=rng.randrange(len(touches(home))))
        else: how = dict(seconds=lifetime*rng.random())
        if live(home, path, **how) == 0:
            assert same_run(Run(home/'whole'), Run(path))
            ended, run = ended + 1, run + 1
        else:
            kills += 1
            early += not (path/'metrics.jsonl').exists()
            late += (path/'config.json').exists() and any(r['kind'] == 'score' for r in Run(path).metrics)
            if (path/'config.json').exists(): assert Run(path).damaged == []
            if (path/'summary.json').exists(): # the kill came after the end, so there is nothing to resume
                assert same_run(Run(home/'whole'), Run(path))
                ended, run = ended + 1, run + 1
    if (tmp_path/str(run)).exists():
        assert live(home, tmp_path/str(run)) == 0
        assert same_run(Run(home/'whole'), Run(tmp_path/str(run)))
        ended += 1
    print(f'{kills} kills, {early} of them before the first row, {late} while scoring; {ended} runs, all equal to the '
          'undisturbed one')
    assert ended and early and late

@pytest.mark.slow
def test_score_rows_are_not_duplicated_after_a_kill(copy, resume, unbroken):
    copy.log(dict(kind='score', split='train', step=5, examples=37, accuracy=.5))
    run = resume(copy)
    assert [r['split'] for r in run.metrics if r['kind'] == 'score'] == ['train', 'test'] and same_run(unbroken, run)

@pytest.mark.slow
def test_run_ended_by_early_stopping_is_only_scored(
    tmp_path, make_tiny_bert, tiny_tokenizer, tiny_data, monkeypatch):
    def go(path, **kw):
        settings = {**quick, 'epochs': 9, 'learning_rate': 1e-6, 'early_stopping': 2}
        return train(make_tiny_bert(), tiny_tokenizer, tiny_data, run_dir=path, **settings, **kw)
    whole = go(tmp_path/'whole')
    assert whole.summary['steps'] < 45
    def die(trainer): raise KeyboardInterrupt
    with monkeypatch.context() as m:
        m.setattr(salviz.training.trainer, '_finish', die)
        with pytest.raises(KeyboardInterrupt): go(tmp_path/'run')
    assert same_run(whole, go(tmp_path/'run', resume=True))

@pytest.mark.slow
def test_snapshot_without_its_row_is_recorded_again(copy, resume, unbroken):
    lines = (copy.path/'metrics.jsonl').read_bytes().splitlines(keepends=True)
    looks = [line for line in lines if b'"record"' in line and b'"step": 10' in line]
    (copy.path/'metrics.jsonl').write_bytes(b''.join(line for line in lines if line not in looks))
    (copy.path/'checkpoints'/'checkpoint-10'/'manifest.json').unlink() # so that the rows after step 5 are moved
    assert same_run(unbroken, resume(copy))

@pytest.mark.slow
@pytest.mark.parametrize('left', ['nothing', 'a temporary file', 'only a config', 'a failed try'])
def test_run_killed_before_a_step_can_start_and_resume(left, tmp_path, make_tiny_bert, tiny_tokenizer,
                                                                tiny_data):
    given = dict(model=make_tiny_bert(), tokenizer=tiny_tokenizer, data=tiny_data, **{**quick, 'epochs': 1})
    def leave(path):
        if left == 'a failed try':
            with pytest.raises(KeyboardInterrupt):
                train(**{**given, 'model': make_tiny_bert()}, method=Breaks(0), run_dir=path)
            assert Run(path).state['error'] and Run(path).recorded
            return
        path.mkdir()
        if left == 'a temporary file': (path/'.config.json.0a1b2c3d.tmp').write_text('{"method": {"na')
        if left == 'only a config': # as in an earlier version, which recorded the weights later
            as_earlier(kept/'config.json', path/'config.json')
    kept = tmp_path/'kept'
    whole = train(**{**given, 'model': make_tiny_bert()}, run_dir=kept)
    for resumed in (False, True):
        path = tmp_path/f'{resumed}'
        leave(path)
        run = train(**{**given, 'model': make_tiny_bert()}, run_dir=path, resume=resumed)
        assert rows_of(run) == rows_of(whole)
        assert run.recorded == whole.recorded
        assert run.check() == []
        assert 'error' not in run.state
    with pytest.raises(FileExistsError, match='already exists'): train(**given, run_dir=kept)

def test_foreign_files_are_preserved(tmp_path, make_tiny_bert, tiny_tokenizer, tiny_data):
    with pytest.raises(KeyboardInterrupt):
        train(make_tiny_bert(), tiny_tokenizer, tiny_data, Breaks(0), run_dir=tmp_path/'run', **quick)
    (tmp_path/'run'/'notes.txt').write_text('mine')
    with pytest.raises(FileExistsError, match='already exists'):
        train(make_tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', **quick)
    assert (tmp_path/'run'/'notes.txt').read_text() == 'mine'

@pytest.mark.slow
def test_trial_killed_early_recovers(tmp_path, make_tiny_bert, tiny_tokenizer, tiny_data):
    def bert(seed): return make_tiny_bert(seed), tiny_tokenizer
    def study(name):
        return Study(tmp_path/name, bert, tiny_data, {'FineTuning': FineTuning}, seeds=(0, 1),
                     measures=['test_accuracy'], progress=False,
                     epochs=1, batch_size=8, snapshots=0)
    want = study('whole').run()
    killed = study('killed')
    (killed.folder/'runs'/'FineTuning.seed=0').mkdir(parents=True)
    write_whole(killed.folder/'runs'/'FineTuning.seed=0'/'.config.json.0a1b2c3d.tmp', b'{')
    as_earlier(tmp_path/'whole'/'runs'/'FineTuning.seed=1'/'config.json',
               killed.folder/'runs'/'FineTuning.seed=1'/'config.json')
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        found = killed.run()
    assert found.test_accuracy.tolist() == want.test_accuracy.tolist() and killed.status().error.tolist() == ['', '']


# One process at a time

holder = '''
import sys, time
from salviz.core.locks import Held
held = Held(sys.argv[1])
print('holds', flush=True)
time.sleep(600)
'''

@pytest.fixture
def other(tmp_path):
    "Return a function that lets another process lock the folder `path`"
    begun = []
    def hold(path):
        said = tmp_path/'holder.said'
        begun.append(forked.begin(forked.code, holder, ['holder', str(path)], said=said))
        while begun[-1].exitcode is None and 'holds' not in (said.read_text() if said.exists() else ''):
            begun[-1].join(.01)
        assert begun[-1].exitcode is None, Path(f'{said}.err').read_text()
        return begun[-1]
    yield hold
    for p in begun: p.kill(), p.join()

@pytest.mark.slow
def test_run_in_use_rejects_training_but_can_be_read(copy, resume, other, unbroken):
    process, before = other(copy.path), {p: p.stat().st_mtime_ns for p in copy.path.rglob('*')}
    with pytest.raises(RunInUse,
                       match=f'is in use by process {process.pid} on .*, since 20.*wait until it has ended'):
        resume(copy)
    assert {p: p.stat().st_mtime_ns for p in copy.path.rglob('*')} == before
    assert Run(copy.path).damaged == [] == Run(copy.path).check()
    assert Run(copy.path).snapshots()
    assert load_model(copy, 'last')
    process.kill(), process.join()
    assert same_run(unbroken, resume(copy)) # the process has ended
    assert not (copy.path/'.training.json').exists()

def test_copied_folder_is_unlocked_and_a_moved_one_is_not(copy, other, tmp_path):
    other(copy.path)
    shutil.copytree(copy.path, tmp_path/'copy')
    Held(tmp_path/'copy').release()
    os.rename(copy.path, tmp_path/'moved')
    with pytest.raises(RunInUse): Held(tmp_path/'moved')

def test_two_trainings_in_one_process_cannot_share_a_run(copy, resume):
    held = Held(copy.path)
    with pytest.raises(RunInUse, match=f'is in use by process {os.getpid()} on'): resume(copy)
    held.release()
    assert resume(copy).finished

@pytest.mark.parametrize('note', [b'', b'{"host": 3}', b'[]', b'\xff\xfe', b'{"host": "a", "process": 1}'])
def test_damaged_lock_note_is_ignored(note, copy):
    (copy.path/'.lock').write_bytes(b'')
    (copy.path/'.training.json').write_bytes(note)
    Held(copy.path).release()

def test_fork_of_the_holder_does_not_keep_the_lock(tmp_path):
    (tmp_path/'run').mkdir()
    code = f'''
import os, time
from salviz.core.locks import Held
held = Held({str(tmp_path/'run')!r})
pid = os.fork()
if pid == 0: os.close(1); time.sleep(60); os._exit(0)
print(pid, flush=True)
os.kill(os.getpid(), 9)'''
    child = int(subprocess.run([sys.executable, '-c', code], stdout=subprocess.PIPE).stdout)
    os.kill(child, 0) # the child is alive
    try: Held(tmp_path/'run').release()
    finally: os.kill(child, signal.SIGKILL)

def test_only_one_of_many_threads_locks_a_folder(tmp_path):
    held, refused = [], []
    def hold():
        try: held.append(Held(tmp_path))
        except RunInUse: refused.append(1)
    threads = [threading.Thread(target=hold) for _ in range(8)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert len(held) == 1 and len(refused) == 7


# Checkpoints

def flip(path, bit=None):
    data = bytearray(path.read_bytes())
    bit = len(data)*4 if bit is None else bit # in the middle
    data[bit//8] ^= 1 << bit % 8
    path.write_bytes(bytes(data))

def delete(path): path.unlink()
def cut(path): path.write_bytes(path.read_bytes()[:-100])

@pytest.mark.sample(1)
@pytest.mark.parametrize('name,harm', [('model.safetensors', flip), ('optimizer.pt', cut), ('optimizer.pt', flip),
                                       ('rng_state.pth', delete), ('scheduler.pt', delete),
                                       ('trainer_state.json', flip), ('tokenizer.json', delete),
                                       ('manifest.json', flip), ('scheduler.pt', flip)])
def test_damaged_checkpoint_falls_back_to_the_previous_with_a_warning(name, harm, copy, resume, unbroken):
    harm(copy.path/'checkpoints'/'checkpoint-10'/name)
    assert f'checkpoints/checkpoint-10/{name}' in [d.file for d in Run(copy.path).check()]
    with pytest.warns(UserWarning,
                      match='resumes from checkpoint-5, because a later checkpoint is damaged .checkpoint-10: '
                      f'{name} '):
        run = resume(copy)
    assert same_run(unbroken, run) and run.state['passed_over'][0].startswith(f'checkpoint-10: {name} ')
    assert (run.path/'superseded'/'1'/'checkpoints'/'checkpoint-10').is_dir()

@pytest.mark.parametrize('name,harm', [('model.safetensors', flip), ('rng_state.pth', delete)])
def test_run_without_a_complete_checkpoint_is_not_resumed(name, harm, copy, resume):
    for step in (5, 10): harm(copy.path/'checkpoints'/f'checkpoint-{step}'/name)
    before = {p: p.stat().st_mtime_ns for p in copy.path.rglob('*') if not p.name.startswith('.')}
    with pytest.raises(ValueError,
                       match=f'all of its checkpoints are damaged .checkpoint-10: {name} .*; checkpoint-5: {name}.*'
                       'start from the beginning'):
        resume(copy)
    assert {p: p.stat().st_mtime_ns for p in copy.path.rglob('*') if p in before} == before
    assert 'passed_over' not in copy.state

def test_damaged_best_checkpoint_is_detected_before_training(copy, resume, unbroken):
    state = copy.path/'checkpoints'/'checkpoint-10'/'trainer_state.json'
    said = json.loads(state.read_text())
    best = said['best_global_step']
    assert best in (5, 10)
    if best == 10:
        state.write_text(json.dumps({**said, 'best_global_step': 5,
                                     'best_model_checkpoint': 'elsewhere/run/checkpoints/checkpoint-5'}))
        write_manifest(state.parent, rows=0)
    flip(copy.path/'checkpoints'/'checkpoint-5'/'model.safetensors')
    with pytest.raises(ValueError,
                       match='checkpoint-10: the best checkpoint so far, checkpoint-5: model.safetensors does not '
                       'match its checksum'):
        resume(copy)

def test_partly_deleted_checkpoint_is_neither_listed_nor_loaded(copy):
    for name in ('tokenizer.json', 'tokenizer_config.json', 'model.safetensors', 'trainer_state.json'):
        shutil.copytree(copy.path/'checkpoints'/'checkpoint-5', copy.path/'kept')
        delete(copy.path/'checkpoints'/'checkpoint-5'/name)
        assert list(Run(copy.path).checkpoints) == [10]
        with pytest.raises(ValueError, match=f'checkpoint-5/{name} is missing'): load_model(copy, 5)
        shutil.rmtree(copy.path/'checkpoints'/'checkpoint-5')
        os.rename(copy.path/'kept', copy.path/'checkpoints'/'checkpoint-5')
    delete(copy.path/'checkpoints'/'checkpoint-5'/'manifest.json')
    assert list(Run(copy.path).checkpoints) == [10] and Run(copy.path).damaged == []

@pytest.mark.sample(1)
@pytest.mark.parametrize('name,harm', [('optimizer.pt', cut), ('rng_state.pth', delete), ('scheduler.pt', delete),
                                       ('optimizer.pt', flip)])
def test_checkpoint_of_an_earlier_version_is_checked_as_far_as_possible(name, harm, copy, resume, unbroken):
    copy.set_state(first_weights=copy.config['first_weights'])
    as_earlier(copy.path/'config.json', copy.path/'config.json')
    for step in (5, 10): delete(copy.path/'checkpoints'/f'checkpoint-{step}'/'manifest.json')
    assert list(Run(copy.path).checkpoints) == [5, 10]
    harm(copy.path/'checkpoints'/'checkpoint-10'/name)
    with pytest.warns(UserWarning,
                      match='resumes from checkpoint-5, because a later checkpoint is damaged .checkpoint-10: '
                      f'{name} '):
        run = resume(copy)
    assert rows_of(run) == rows_of(unbroken)

@pytest.mark.parametrize('name', ['state.json', 'summary.json', 'metrics.jsonl'])
def test_run_with_damaged_files_is_not_resumed(name, copy, resume):
    (copy.path/name).write_bytes(b'')
    with pytest.raises(ValueError, match=f'cannot resume .*: {name} is .*restore it from a copy'): resume(copy)

def test_finished_run_keeps_weights_without_resume_files(unbroken, stopped):
    files = {p.name for p in unbroken.path.rglob('checkpoint-*/*')}
    assert {'model.safetensors', 'tokenizer.json', 'trainer_state.json', 'manifest.json'} <= files
    assert not {'optimizer.pt', 'scheduler.pt', 'rng_state.pth'} & files
    assert {'optimizer.pt', 'scheduler.pt', 'rng_state.pth'} <= {p.name for p in stopped.rglob('*')}
    assert list(unbroken.checkpoints) == [5, 10, 15]
    for step in unbroken.checkpoints: load_model(unbroken, step)

@pytest.mark.sample(1)
@pytest.mark.parametrize('keep', [1, 2])
def test_the_best_and_the_last_checkpoints_are_kept(keep, tmp_path, make_tiny_bert, tiny_tokenizer, tiny_data):
    run = train(make_tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run',
                **{**quick, 'epochs': 4, 'keep': keep, 'snapshots': 0})
    assert len(run.checkpoints) == keep and run.best_step in run.checkpoints and (keep == 1 or 20 in run.checkpoints)
    assert {p.name for p in (run.path/'checkpoints').iterdir()} == {f'checkpoint-{s}' for s in run.checkpoints}

def test_moved_run_ends_with_its_best_weights(stopped, resume, unbroken, tmp_path):
    shutil.copytree(stopped, tmp_path/'far'/'away')
    run = resume(Run(tmp_path/'far'/'away'))
    assert same_run(unbroken, run)


# Bits

@pytest.fixture(scope='module')
def victim(tmp_path_factory, stopped, make_tiny_bert, tiny_tokenizer, tiny_data):
    "Create a finished run with every kind of file: it was resumed, and has arrays, a state and a nested run"
    path = tmp_path_factory.mktemp('victim')/'run'
    shutil.copytree(stopped, path)
    train(make_tiny_bert(), tiny_tokenizer, tiny_data, FineTuning(), run_dir=path, resume=True,
          **{**quick, 'epochs': 3, 'keep': 3})
    run = Run(path)
    run.set_state(alpha=10.)
    run.save_arrays('teacher', dict(saliency=np.random.default_rng(0).normal(size=40), is_masked=np.arange(9) % 2 == 0))
    teacher = Run.create(path/'teacher', dict(method='FineTuning'))
    teacher.log(dict(kind='train', step=1, loss=.5)), teacher.finish(best_step=1)
    return path

def contents(path):
    "Return everything that can be read of the run in `path`"
    run, out = Run(path), {}
    out['config'], out['state'], out['summary'], out['metrics'], out[
        'best'] = run.config, run.state, run.summary, run.metrics, run.best_step
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        for s in run.snapshots():
            said = {k: getattr(s, k) for k in ('epoch', 'layers', 'texts', 'tokens', 'labels', 'words', 'label',
                                               'classes', 'losses', 'info')}
            out['snapshot', s.step, s.probe] = (
                said, {k: x.tobytes() for k, x in s.arrays.items()}, s.word_ids.tolist(), s.is_special.tolist())
    for p in sorted(path.glob('arrays/[!.]*')):
        try: out['arrays', p.name] = {k: x.tobytes() for k, x in run.load_arrays(p.stem).items()}
        except ValueError: pass
    for step, folder in run.checkpoints.items():
        if not checkpoint_damage(folder, contents=True):
            out['checkpoint', step] = sorted((p.name, p.read_bytes()) for p in folder.iterdir() if p.name in known)
    for inner in (path/'superseded'/'1', path/'teacher'):
        if (inner/'config.json').exists():
            try: out |= {(inner.name, k): x for k, x in contents(inner).items()}
            except ValueError: pass
    return out

known = ('model.safetensors', 'tokenizer.json', 'tokenizer_config.json', 'config.json', 'trainer_state.json',
         'optimizer.pt', 'scheduler.pt', 'rng_state.pth')

def hurt(data, rng):
    "Flip a bit, remove bytes at the end or inside, or append bytes"
    kind = rng.choice(['flip', 'flip', 'flip', 'cut', 'gap', 'append'])
    if kind == 'append' or not data:
        return kind, data + rng.choice([rng.randbytes(rng.randint(1, 99)), b'\n', b'{"step": 1}\n', b'\0',
                                        data[:rng.randint(1, 99)]])
    if kind == 'cut': return kind, data[:rng.randrange(len(data))]
    if kind == 'gap':
        a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        return kind, data[:a] + data[b:]
    i = rng.randrange(len(data))
    return kind, data[:i] + bytes([data[i] ^ 1 << rng.randrange(8)]) + data[i + 1:]

def harm_again_and_again(victim, times, seed):
    "Damage a random file, check that it is reported or harmless, and restore it; return the counts of both"
    rng, before, count = random.Random(seed), contents(victim), {}
    files = [p for p in sorted(victim.rglob('*')) if p.is_file()]
    kinds = sorted({p.suffix + p.parent.name.partition('-')[0] for p in files})
    assert Run(victim).check() == []
    for _ in range(times):
        of_kind = rng.choice(kinds) # select a kind of file first, because there are many snapshots but only one summary
        file = rng.choice([p for p in files if p.suffix + p.parent.name.partition('-')[0] == of_kind])
        whole, name = file.read_bytes(), file.relative_to(victim).as_posix()
        kind, data = hurt(whole, rng)
        file.write_bytes(data)
        try: named, after = [d.file for d in Run(victim).check()], contents(victim)
        except ValueError as e: named, after = [name] if name in str(e) else [], None
        said = any(o.partition(',')[0] == name for o in named)
        assert said or after == before, (name, kind, data == whole)
        for k, x in (after or {}).items(): # reported or not: everything readable is what was written
            if not isinstance(k, tuple) or k[0] in ('superseded', '1', 'teacher'): continue
            assert x == before[k], (name, kind, k)
        count[kind, 'named' if said else 'harmless'] = count.get((kind, 'named' if said else 'harmless'), 0) + 1
        file.write_bytes(whole)
    assert Run(victim).check() == []
    return count

@pytest.mark.slow
def test_random_damage_is_harmless_or_reported(victim):
    count = harm_again_and_again(victim, 150, seed=1)
    assert sum(count.values()) == 150 and sum(n for (_, how), n in count.items() if how == 'named') > 100

@pytest.mark.slow
def test_thousand_random_damages_are_harmless_or_reported(victim):
    count = harm_again_and_again(victim, 1000, seed=2)
    print('\n'.join(f'{kind} {how}: {n}' for (kind, how), n in sorted(count.items())))
    assert sum(count.values()) == 1000

def test_every_bit_of_a_snapshot_is_sealed():
    whole = encode_snapshot(Snapshot(3, .5, 0, dict(attention=np.full((1, 1, 2, 2), .5)), tokens=['a', 'b'], label=1,
                                     classes=['x', 'y'], losses=dict(task=.5)))
    for bit in range(8*len(whole)):
        data = bytearray(whole)
        data[bit//8] ^= 1 << bit % 8
        with pytest.raises(ValueError): decode_snapshot(bytes(data))

def test_lost_rows_are_reported_where_their_number_is_recorded(stopped, victim, tmp_path):
    for k, path in enumerate((stopped, victim)):
        shutil.copytree(path, tmp_path/f'{k}')
        file = tmp_path/f'{k}'/'metrics.jsonl'
        lines = file.read_bytes().splitlines(keepends=True)
        for n in (0, 1, 5):
            file.write_bytes(b''.join(lines[:n]))
            assert [d.file for d in Run(file.parent).damaged] == ['metrics.jsonl']
            assert f'has {n} rows' in Run(file.parent).damaged[0].reason or n == 0


def test_rows_after_finish_count_and_duplicates_are_damage(tmp_path):
    run = Run.create(tmp_path/'run', {})
    run.log(dict(step=1, loss=.5)), run.finish(), run.log(dict(step=1, note='later'))
    assert run.damaged == [] and run.summary['rows'] == 2
    file = run.path/'metrics.jsonl'
    file.write_bytes(file.read_bytes()*2)
    assert Run(run.path).damaged == [('metrics.jsonl', 'has 4 rows; 2 were written')]


# Runs from other people

@pytest.fixture
def run(tmp_path):
    run = Run.create(tmp_path/'run', dict(method=dict(name='ADDrop', args={}),
                                          best_metric=dict(name='accuracy', greater_is_better=True)))
    for step in (0, 10):
        run.save(Snapshot(step, 0., 0, dict(attention=np.full((1, 1, 2, 2), .5)), tokens=['a', 'b'], label=1,
                          classes=['x', 'y'], losses=dict(task=.5)))
    run.log(dict(kind='train', step=1, epoch=.1, loss=1.)), run.log(dict(kind='eval', step=10, accuracy=.5, loss=1.))
    run.set_state(best_step=10), run.save_arrays('own', dict(x=np.arange(3))), run.finish(best_step=10)
    return run

def look_at_everything(path):
    run = Run(path)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore') # about unreadable snapshots
        run.snapshots()
    run.metrics, run.state, run.summary, run.finished, run.checkpoints
    run.best_checkpoint, run.scores(), run.train_loss, repr(run)
    return [d.file for d in run.check()]

inner = ['state.json', 'summary.json', 'metrics.jsonl', 'snapshots/step-00000010.probe-000.safetensors',
         'arrays/own.safetensors']

@pytest.mark.parametrize('name', [*inner, 'snapshots', 'arrays', 'checkpoints'])
@pytest.mark.parametrize('kind', ['pipe', 'folder', 'device', 'socket', 'loop', 'file'])
def test_special_files_are_reported_without_blocking(name, kind, run):
    file = run.path/name
    if (kind == 'file') == (name in inner): return # a file is what it should be; a folder as well
    if kind == 'folder' and name not in inner: return
    shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
    make = dict(pipe=os.mkfifo, folder=os.mkdir, device=lambda p: os.symlink('/dev/zero', p),
                loop=lambda p: os.symlink(p, p), file=lambda p: Path(p).write_text('x'))
    if kind == 'socket':
        import socket
        at = os.getcwd()
        os.chdir(file.parent)
        try: socket.socket(socket.AF_UNIX).bind(file.name)
        finally: os.chdir(at)
    else: make[kind](file)
    assert look_at_everything(run.path) == [name]

def test_config_that_is_not_a_file_raises(run):
    for make in (os.mkfifo, os.mkdir, lambda p: os.symlink('/dev/zero', p), lambda p: os.symlink(p, p)):
        (run.path/'config.json').unlink() if (run.path/'config.json').exists() else None
        make(run.path/'config.json')
        with pytest.raises(ValueError, match=r'config.json (is a|cannot be read)'): Run(run.path)
        os.rmdir(run.path/'config.json') if (run.path/'config.json').is_dir() else os.unlink(run.path/'config.json')

odd = [None, 3, -1, 10**400, 1e999, True, '', 'x', [], [1], {}, {'a': 1}, [[]], float('nan')]

@pytest.mark.parametrize('name,keys',
                         [('config.json', ['method', 'model', 'data', 'seed', 'settings', 'best_metric', 'task']),
                          ('state.json', ['best_step', 'error']), ('summary.json', ['best_step', 'rows', 'ended'])])
def test_json_of_wrong_types_is_reported_or_read(name, keys, run):
    for key in keys:
        for x in odd:
            whole = read_object(run.path/name)
            write_whole(run.path/name, sealed({**whole, key: x}).encode())
            try: assert set(look_at_everything(run.path)) <= {name, 'metrics.jsonl'}
            except ValueError as e: assert name == 'config.json' and 'config.json has ' in str(e) and '\n' not in str(e)
            write_whole(run.path/name, sealed(whole).encode())

@pytest.mark.slow
def test_rows_of_wrong_types_are_reported_or_read(run):
    whole = (run.path/'metrics.jsonl').read_bytes()
    for key in ('step', 'epoch', 'loss', 'task', 'kind', 'split', 'accuracy', 'seconds'):
        for x in odd:
            for kind in ('train', 'eval', 'score'):
                line = sealed({**dict(kind=kind, step=10, epoch=1., loss=1., split='test'), key: x})
                (run.path/'metrics.jsonl').write_bytes(whole + line.encode() + b'\n')
                # one row too many for a finished run
                assert set(look_at_everything(run.path)) <= {'metrics.jsonl, line 3', 'metrics.jsonl'}, (key, x)

@pytest.mark.slow
def test_snapshots_of_wrong_types_are_reported_or_read(run):
    file = run.path/inner[3]
    data = file.read_bytes()
    meta = json.loads(json.loads(data[8:8 + int.from_bytes(data[:8], 'little')])['__metadata__']['salviz.snapshot'])
    del meta['seal'], meta['checksum']
    stored = {'attention': np.zeros((1, 1, 2, 2), np.float16)}
    for key in meta:
        for x in [*odd, dict(attention=dict(exponent=10**12)), dict(attention=dict(exponent='x')),
                  dict(attention=dict(bits=[10**9, 10**9])), dict(attention=dict(bits=[-1, -8])),
                  ['a', 'b', 'c'], [1, 2], dict(attention=[5]), dict(attention=['x']), [10**12, 0], [-5, 0]]:
            write_whole(file, encode_arrays(stored, 'salviz.snapshot', {**meta, key: x}))
            assert set(look_at_everything(run.path)) <= {inner[3]}, (key, x)

def test_code_in_a_run_folder_is_never_run(unbroken, tmp_path, monkeypatch):
    shutil.copytree(unbroken.path, tmp_path/'run')
    run = Run(tmp_path/'run')
    folder = run.checkpoints[15]
    (folder/'evil.py').write_text(f'open({str(tmp_path/"ran")!r}, "w")\nclass Evil: pass')
    config, tokenizer = json.loads((folder/'config.json').read_text()), json.loads(
        (folder/'tokenizer_config.json').read_text())
    monkeypatch.setattr('builtins.input', lambda *a: 'y')
    for where in ('tokenizer', 'model', 'both'):
        evil = dict(AutoConfig='evil.Evil', AutoModel='evil.Evil', AutoModelForSequenceClassification='evil.Evil',
                    AutoTokenizer=['evil.Evil', 'evil.Evil'])
        if where != 'tokenizer':
            (folder/'config.json').write_text(json.dumps({**config, 'model_type': 'evil',
                                                          'architectures': ['EvilForSequenceClassification'],
                                                          'auto_map': evil}))
        if where != 'model':
            (folder/'tokenizer_config.json').write_text(json.dumps({**tokenizer, 'tokenizer_class': 'Evil',
                                                                    'auto_map': evil}))
        write_manifest(folder)
        try: load_model(run, 15)
        except (ValueError, OSError): pass
        assert not (tmp_path/'ran').exists()
    for name in (None, [], ['Trainer'], ['os'], [3], ['PreTrainedConfig'], 'BertModel'):
        (folder/'config.json').write_text(json.dumps({**config, 'architectures': name}))
        write_manifest(folder)
        with pytest.raises(ValueError, match='does not name the class of the model|which is not a model class of'):
            load_model(run, 15)


# A study's disk

@pytest.mark.slow
def test_study_without_weights_deletes_them_after_each_trial(tmp_path, make_tiny_bert, tiny_tokenizer, tiny_data):
    seen, folder = [], tmp_path/'s'
    def bert(seed):
        seen.append(sorted(p.parent.parent.name for p in (folder/'runs').glob('*/checkpoints/checkpoint-*'))
                    if folder.exists() else [])
        return make_tiny_bert(seed), tiny_tokenizer
    def accuracy(model, run): return float(run.path.name[-1]) # needs the weights
    given = dict(measures=[accuracy], options=StudyOptions(weights='none'), progress=False, epochs=1, batch_size=8,
                 snapshots=0)
    study = Study(folder, bert, tiny_data, {'FineTuning': FineTuning}, seeds=(0, 1, 2), **given)
    held = study._lease(study.cells[2])
    with held, pytest.warns(UserWarning, match='1 trial is being trained by another process'): study.run()
    assert seen[-2:] == [[], []]
    assert not list(folder.glob('runs/*/checkpoints/checkpoint-*'))
    assert study.results()['accuracy'].tolist() == [0., 1.]
    assert study.run()['accuracy'].tolist() == [0., 1., 2.] and not list(folder.glob('runs/*/checkpoints/checkpoint-*'))

def test_weights_needed_by_another_trial_are_kept_until_then(tmp_path, make_tiny_bert, tiny_tokenizer, tiny_data):
    def bert(seed): return make_tiny_bert(seed), tiny_tokenizer
    loaded = []
    def built(run_of):
        loaded.append(load_model(run_of('plain')))
        return FineTuning()
    study = Study(tmp_path/'s', bert, tiny_data, {'plain': FineTuning, 'built': built}, seeds=(0, 1),
                  measures=['test_accuracy'], options=StudyOptions(weights='none'), progress=False,
                  epochs=1, batch_size=8, snapshots=0)
    assert len(study.run()) == 4
    assert len(loaded) == 2
    assert not list((tmp_path/'s').glob('runs/*/checkpoints/checkpoint-*'))
