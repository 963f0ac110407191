"""Runs survive kills, damage and concurrent access, restore what was stored, and open without torch"""
import copy
import dataclasses
import json
import math
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import salviz
from salviz.core.run_files import sealed, write_manifest
from salviz.core.snapshots import Snapshot, decode_snapshot, encode_snapshot, snapshot_numbers
from salviz.core.locks import Held, RunInUse
from salviz.core.runs import Run, runs_table

HOUSE = Path(salviz.__file__).parents[1]
CONFIG = dict(method=dict(name='ADDrop', args=dict(p=.3, q=.2)),
              model=dict(name='minilm', **{'class': 'BertForSequenceClassification'}, layers=2, heads=2),
              data=dict(name='movie-sentences', fingerprint='ab12', sizes=dict(train=8, validation=2, test=2)), seed=7,
              settings=dict(epochs=2))


def look(step=0, probe=0, n=6, **kwargs):
    "Return a snapshot whose content is determined by step and probe"
    rng = np.random.default_rng((step, probe))
    attention = rng.dirichlet(np.ones(n), (2, 2, n)).astype(np.float32)
    arrays = dict(attention=attention, saliency=rng.normal(size=n), discarded=attention > .3,
                  probabilities=rng.dirichlet([1, 1, 1]).astype(np.float32))
    return Snapshot(**{**dict(step=step, epoch=step/10, probe=probe, arrays=arrays, tokens=[f't{i}' for i in range(n)],
                              label=1, classes=['a', 'b', 'c'],
                              losses=dict(task=.5), info=dict(pooled_row=0)), **kwargs})


def row(step): return dict(step=step, kind='train', loss=1/(step + 1), text='x'*(step % 50))


def is_whole(s):
    "Return whether `s` equals exactly what was saved for its step and probe"
    want = decode_snapshot(encode_snapshot(look(s.step, s.probe, n=len(s.tokens))))
    return (set(s.arrays) == set(want.arrays) and all(np.array_equal(s.arrays[k], x) for k, x in want.arrays.items())
            and s.tokens == want.tokens)


@pytest.fixture
def run(tmp_path):
    run = Run.create(tmp_path/'run', CONFIG)
    for step in (0, 10, 20):
        run.log(row(step))
        for probe in (0, 1): run.save(look(step, probe))
    return run


# Writers that are killed are forks of a small separate process that has imported what they need: a fork takes
# milliseconds.

class Writer:
    "A fork that runs the function `job` of this file and writes a dot for each finished action"
    def __init__(self, keeper, job, *args):
        self.keeper = keeper
        keeper.stdin.write(json.dumps([job, *map(str, args)]).encode() + b'\n')
        keeper.stdin.flush()
        self.pid = int(keeper.stdout.readline())
        self.ended = None

    def __enter__(self): return self

    def __exit__(self, *failure):
        if self.ended is None: self.kill(), self.end()

    def wait_for(self, dots):
        "Read up to `dots` dots; return how many came before the end"
        for i in range(dots):
            if self.keeper.stdout.read(1) != b'.': return i
        return dots

    def kill(self): os.kill(self.pid, signal.SIGKILL)

    def end(self):
        "Wait for the end; return the number of further dots and the exit status (negative: the signal)"
        dots = len(self.keeper.stdout.readline()) - 1
        self.ended = dots, int(self.keeper.stdout.readline())
        return self.ended


def keep_writers():
    "Fork a process for each line of the input"
    for line in iter(sys.stdin.readline, ''):
        job, *args = json.loads(line)
        pid = os.fork()
        if not pid:
            try:
                os.write(1, f'{os.getpid()}\n'.encode())
                globals()[job](*args)
                os._exit(0)
            except BaseException: traceback.print_exc()
            os._exit(1)
        status = os.waitpid(pid, 0)[1]
        os.write(1, f'\n{os.waitstatus_to_exitcode(status)}\n'.encode())


@pytest.fixture(scope='module')
def writer():
    "Return a function that starts writers, one at a time"
    keeper = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HOUSE,
                              bufsize=-1,
                              env={**os.environ, 'PYTHONPATH': str(HOUSE), 'OMP_NUM_THREADS': '1'})
    yield lambda job, *args: Writer(keeper, job, *args)
    keeper.stdin.close()
    assert keeper.wait() == 0
    keeper.stdout.close()


def write_on(path, start, stop):
    "Write rows, snapshots and state from number `start` on, and a dot after each number"
    run = Run(path)
    for i in range(int(start), int(stop)):
        run.log(row(i))
        run.save(look(i, i % 3, n=40))
        run.set_state(i=i)
        os.write(1, b'.')


def check_whole(run, done):
    "Check that rows and snapshots record at least `done` numbers exactly and without gaps; return their count"
    run = Run(run.path)
    assert run.damaged == []
    assert run.metrics == [row(i) for i in range(len(run.metrics))]
    assert run.steps == list(range(len(run.steps)))
    assert len(run.metrics) - 1 <= len(run.steps) <= len(run.metrics) and len(run.steps) >= done
    assert run.state.get('i', -1) in (len(run.steps) - 1, len(run.steps) - 2)
    return len(run.metrics)


@pytest.mark.slow
def test_run_killed_at_any_moment_has_all_complete_data_and_resumes(tmp_path, writer):
    run, rng, done = Run.create(tmp_path/'run', CONFIG), random.Random(5), 0
    for _ in range(50):
        with writer('write_on', run.path, done, 10**9) as w:
            seen = w.wait_for(rng.randrange(4))
            # the kill can happen at any moment of the writer's loop
            for _ in range(rng.randrange(60_000)): pass
            w.kill()
            further, status = w.end()
        assert status == -signal.SIGKILL
        done = check_whole(run, done + seen + further)
        if len(run.steps) < done:
            # the row was written but its snapshot was not: continue exactly there
            run.save(look(done - 1, (done - 1) % 3, n=40))
            run.set_state(i=done - 1)
    assert done >= 50 and all(is_whole(s) for s in Run(run.path).snapshots())


def die_at(path, call):
    "Perform various actions in the run, and die before file operation number `call`"
    left = int(call)

    def watch(event, args):
        nonlocal left
        if event in ('open', 'os.rename', 'os.truncate', 'os.mkdir',
                     'os.remove') and (isinstance(args[0], int) or str(args[0]).startswith(path)):
            if left == 0: os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
    run = Run(path)
    sys.addaudithook(watch)
    run.supersede(10); os.write(1, b'.')
    run.log(row(11)); os.write(1, b'.')
    run.save(look(11)); os.write(1, b'.')
    run.save(look(10, 1)); os.write(1, b'.') # replaces an existing one
    run.set_state(best_step=11); os.write(1, b'.')
    run.save_arrays('teacher', dict(x=np.arange(9))); os.write(1, b'.')
    run.finish(test_accuracy=.5); os.write(1, b'.')


def test_kill_before_any_file_operation_loses_nothing(run, tmp_path, writer):
    with open(run.path/'metrics.jsonl', 'ab') as f: f.write(b'{"step": 2')
    run.set_state(best_step=20)
    for step in (10, 20):
        checkpoint(run, step)
    interrupted = 0
    for call in range(1000):
        path = tmp_path/f'copy-{call}'
        shutil.copytree(run.path, path)
        dots, status = writer('die_at', path, call).end()
        parts = [Run(path), *(Run(p) for p in sorted(path.glob('superseded/*')) if (p/'config.json').exists())]
        assert all(p.damaged == [] for p in parts)
        snapshots = {(s.step, s.probe): s for p in parts for s in p.snapshots()} if parts[0].steps else {}
        assert set(snapshots) >= {(s, p) for s in (0, 10, 20) for p in (0, 1)}
        assert all(map(is_whole, snapshots.values()))
        assert {r['step'] for p in parts for r in p.metrics} >= {0, 10, 20}
        assert {s for p in parts for s in p.checkpoints} == {10, 20}
        if dots >= 1: assert set(parts[0].steps) <= {0, 10, 11} and parts[0].state.get('best_step') != 20
        if dots >= 2: assert [r['step'] for r in parts[0].metrics] == [0, 10, 11]
        if dots >= 3: assert parts[0].steps == [0, 10, 11]
        if dots >= 5: assert parts[0].best_step == 11
        if dots >= 6: assert parts[0].load_arrays('teacher')['x'].tolist() == list(range(9))
        interrupted += any(p.parent.parent == path or p.parent == path for p in path.glob('**/.*.tmp'))
        run2 = Run(path)
        run2.supersede(10)
        assert not [*path.glob('.*.tmp'), *path.glob('*/.*.tmp')]
        run2.log(row(12)), run2.save(look(12))
        assert [r['step'] for r in run2.metrics] == [0, 10, 12] and run2.steps == [0, 10, 12] and not run2.finished
        shutil.rmtree(path)
        if status == 0: break
        assert status == -signal.SIGKILL
    # some kills leave an incomplete temporary file
    assert status == 0 and dots == 7 and call > 25 and interrupted > 5


def write_and_supersede(path):
    "Write rows and snapshots forever, returning to step 4 after every 16"
    run, step = Run(path), 0
    while True:
        run.log(row(step)), run.save(look(step, step % 2, n=30))
        step += 1
        if step == 16:
            run.supersede(4)
            step = 5
        os.write(1, b'.')


@pytest.mark.slow
def test_concurrent_reader_sees_only_complete_data(tmp_path, writer):
    path = Run.create(tmp_path/'run', CONFIG).path
    live, lengths = Run(path), set()
    with writer('write_and_supersede', path) as w:
        for _ in range(40):
            w.wait_for(1)
            for run in (live, Run(path)):
                rows = run.metrics
                assert rows == [row(i) for i in range(len(rows))] and run.damaged == []
                assert all(map(is_whole, run.snapshots()))
                lengths.add(len(rows))
            assert repr(live)
    assert w.ended[1] == -signal.SIGKILL and len(lengths) > 5 and list(path.glob('superseded/*'))
    assert live.metrics == Run(path).metrics and live.steps == Run(path).steps


def test_concurrent_threads_lose_nothing(run):
    before = len(run.metrics)
    def write(k):
        for i in range(25): run.log(row(100*k + i)), run.save(look(100*k + i, k)), run.set_state(**{f'{k}-{i}': i})
    threads = [threading.Thread(target=write, args=(k,)) for k in range(1, 5)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert len(run.metrics) == before + 100 and len(run.state) == 100 and run.damaged == []
    assert sorted(r['step'] for r in run.metrics[before:]) == sorted(100*k + i for k in range(1, 5) for i in range(25))


def test_only_one_process_can_create_a_folder(tmp_path):
    made, refused = [], []
    def make(i):
        try: made.append(Run.create(tmp_path/'run', dict(seed=i)))
        except FileExistsError: refused.append(i)
    threads = [threading.Thread(target=make, args=(i,)) for i in range(8)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert len(made) == 1 and len(refused) == 7 and Run(tmp_path/'run').config['seed'] == made[0].config['seed']


# Damage

NAME = 'step-00000010.probe-001.safetensors'


def header(**change):
    "Create a snapshot file with a modified salviz header"
    data = encode_snapshot(look(10, 1))
    n = int.from_bytes(data[:8], 'little')
    meta = json.loads(json.loads(data[8:8+n])['__metadata__']['salviz.snapshot'])
    for k, v in change.items(): meta.pop(k) if v is None else meta.update({k: v})
    return safetensors.numpy.save(safetensors.numpy.load(data), {'salviz.snapshot': json.dumps(meta)})


def raw_header(text, tail=b''):
    text = text.encode()
    return len(text).to_bytes(8, 'little') + text + tail


WHOLE = encode_snapshot(look(10, 1))
DAMAGED = {
    'empty': b'',
    'one byte': b'x',
    'header only': WHOLE[:8],
    'cut in the header': WHOLE[:200],
    'cut in the arrays': WHOLE[:-100],
    'one byte short': WHOLE[:-1],
    'one byte long': WHOLE + b'\0',
    'twice': WHOLE*2,
    'garbage': random.Random(0).randbytes(5000),
    'text': b'<html>404</html>'*99,
    'NUL bytes': bytes(len(WHOLE)),
    'arrays of NUL bytes': WHOLE[:-1000] + bytes(1000),
    'one flipped bit': WHOLE[:-50] + bytes([WHOLE[-50] ^ 4]) + WHOLE[-49:],
    'header of NUL bytes': WHOLE[:8] + bytes(300) + WHOLE[308:],
    'foreign safetensors': safetensors.numpy.save(dict(weight=np.ones(3, np.float32))),
    'foreign safetensors with metadata': safetensors.numpy.save(dict(weight=np.ones(3, np.float32)), dict(format='pt')),
    'metadata that is not JSON': safetensors.numpy.save(dict(x=np.ones(3)), {'salviz.snapshot': '{"step": 1'}),
    'metadata that is a list': safetensors.numpy.save(dict(x=np.ones(3)), {'salviz.snapshot': '[1, 2]'}),
    'metadata of another step': header(step=11),
    'metadata of another probe': header(probe=2),
    'a step that is a text': header(step='10'),
    'a format to come': header(format=2),
    'no tokens': header(tokens=None),
    'no checksum': header(checksum=None),
    'other tokens': header(tokens=['a']),
    'tokens that are a number': header(tokens=5),
    'layers that are a list': header(layers=[1]),
    'arrays that are not described': header(stored={}),
    'arrays described wrongly': header(stored=dict(attention=dict(bits=[2, 2]), saliency=dict(exponent='x'),
                                                   discarded=dict(other=1), probabilities={})),
    'a header that is a list': raw_header('[1, 2, 3]'),
    'a header without offsets': raw_header('{"x": {"dtype": "F16"}}'),
    'a header nested a thousand levels': raw_header('['*100_000),
    'a header that points beyond the file': raw_header('{"x": {"dtype": "U8", "shape": [9], "data_offsets": [0, '
                                                       '999999999]}}', bytes(9)),
}


@pytest.mark.parametrize('kind', DAMAGED)
def test_damaged_snapshot_is_reported_and_the_rest_opens(run, kind):
    (run.path/'snapshots'/NAME).write_bytes(DAMAGED[kind])
    if kind in ('cut in the arrays', 'one byte short', 'twice', 'garbage', 'text', 'NUL bytes', 'foreign safetensors',
                'metadata of another step', 'no tokens'):
        assert len(Run(run.path).damaged) == 1 # the header is enough to detect it
    for reader in (run, Run(run.path)): # also a reader that has cached the intact file
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter('always')
            seen = [(s.step, s.probe) for s in reader.snapshots()]
        assert seen == [(0, 0), (0, 1), (10, 0), (20, 0), (20, 1)]
        assert [d.file for d in reader.damaged] == [f'snapshots/{NAME}'] and len(reader.damaged[0].reason) > 10
        assert all(NAME in str(w.message) for w in warned) and len(warned) <= 1
        with pytest.raises(KeyError, match='no step 10 of probe 1 in run: its file .*; available: 0, 20'):
            reader.snapshot(10, 1)
        assert reader.snapshot(-2, 1).step == 0 and reader.metrics and f'{NAME}' in repr(reader)
    with pytest.raises((KeyError, ValueError),
                       match='no step 10|probe-001.safetensors .* the other snapshots of the run are still readable'):
        Run(run.path).snapshot(10, 1)
    run.save(look(10, 1))
    assert run.damaged == [] and len(run.snapshots()) == 6


def test_foreign_files_among_snapshots_are_reported_and_temporary_ones_ignored(run):
    shutil.copy(run.path/'snapshots'/NAME, run.path/'snapshots/copy of a snapshot.safetensors')
    shutil.copy(run.path/'snapshots'/NAME, run.path/'snapshots/step-00000030.probe-001.safetensors')
    (run.path/'snapshots/step-00000031.probe-001.safetensors').mkdir()
    (run.path/f'snapshots/.{NAME}.0a1b2c3d.tmp').write_bytes(b'half')
    assert [d.file[10:] for d in run.damaged] == ['copy of a snapshot.safetensors',
                                                  'step-00000030.probe-001.safetensors',
                                                  'step-00000031.probe-001.safetensors']
    assert 'is step 10 of probe 1 according to its header' in run.damaged[1].reason
    assert run.steps == [0, 10, 20] and len(run.snapshots()) == 6


@pytest.mark.parametrize('line', [b'{"step": 3, "lo', b'\0\0\0\0', b'[1]', b'{"loss": 1}', b'{"step": "3"}',
                                  b'{"step": -1}', b'\xff\xfe', b'nonsense',
                                  b'['*100_000, b'7\r8'])
def test_damaged_metrics_line_is_reported_and_the_others_are_read(run, line):
    f = run.path/'metrics.jsonl'
    lines = f.read_bytes().split(b'\n')
    f.write_bytes(b'\n'.join([lines[0], line, *lines[1:]]))
    assert run.metrics == [row(s) for s in (0, 10, 20)]
    assert [d.file for d in run.damaged] == ['metrics.jsonl, line 2']
    run.log(row(30))
    assert len(run.metrics) == 4
    run.supersede(10)
    assert run.metrics == [row(0), row(10)] and line in f.read_bytes().split(b'\n') # the damaged line is kept


@pytest.mark.parametrize('half', [b'{"step": 3, "lo', b'\0\0\0\0', b'{"step": 30}', b'x'*100_000])
def test_incomplete_last_line_is_ignored_and_removed_by_the_next_row(run, half):
    f = run.path/'metrics.jsonl'
    whole = f.read_bytes()
    f.write_bytes(whole + half)
    assert run.metrics == [row(s) for s in (0, 10, 20)] and run.damaged == []
    assert f.read_bytes() == whole + half # reading does not change the file
    run.log(row(30))
    assert f.read_bytes().startswith(whole) and [r['step'] for r in run.metrics] == [0, 10, 20, 30]


def test_metrics_file_without_a_complete_line_is_replaced(run):
    (run.path/'metrics.jsonl').write_bytes(b'{"ste')
    assert run.metrics == [] and run.damaged == []
    run.log(row(1))
    assert run.metrics == [row(1)]


@pytest.mark.parametrize('name', ['state.json', 'summary.json'])
@pytest.mark.parametrize('data', [b'', b'{"a": 1', b'[1]', bytes(20)])
def test_damaged_state_or_summary_is_reported_and_the_rest_opens(run, name, data):
    (run.path/name).write_bytes(data)
    assert [d.file for d in run.damaged] == [name]
    assert run.state == {} and not run.finished and len(run.snapshots()) == 6 and len(run.metrics) == 3


def test_damaged_arrays_are_reported_and_others_are_read(run):
    run.save_arrays('good', dict(x=np.arange(3))), run.save_arrays('bad', dict(x=np.arange(300)))
    f = run.path/'arrays/bad.safetensors'
    f.write_bytes(f.read_bytes()[:-5])
    assert [d.file for d in run.damaged] == ['arrays/bad.safetensors']
    with pytest.raises(ValueError, match=r'bad.safetensors is damaged'): run.load_arrays('bad')
    assert run.load_arrays('good')['x'].tolist() == [0, 1, 2]


@pytest.mark.parametrize('data', [b'', b'{"method": ', b'[1]', b'null', bytes(50), b'\xff\xfe', b'method: ADDrop'])
def test_unreadable_config_raises_with_its_file(run, data):
    (run.path/'config.json').write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(str(run.path/'config.json')) + ' (is not JSON|contains a JSON)'):
        Run(run.path)


def test_folder_without_a_run_raises_with_the_missing_file(tmp_path, run):
    with pytest.raises(FileNotFoundError, match='the folder does not exist'): Run(tmp_path/'nowhere')
    with pytest.raises(FileNotFoundError, match='config.json'): Run(tmp_path)
    with pytest.raises(FileNotFoundError, match='it is a file, not a folder'): Run(run.path/'config.json')
    (run.path/'config.json').unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(str(run.path/'config.json'))): Run(run.path)


# Stored values

@pytest.mark.parametrize('dtype', [np.float16, np.float32, np.float64])
def test_float16_precision_covers_the_range_of_an_array(dtype):
    rng = np.random.default_rng(0)
    small, big = (-20, 15) if dtype == np.float16 else (-120, 120) if dtype == np.float32 else (-900, 1000)
    for exponent in range(small, big, 5 if dtype == np.float16 else 40):
        with np.errstate(under='ignore'):
            x = (rng.normal(size=64)*2.**rng.uniform(-25, 0, 64)*2.**exponent).astype(dtype)
        y = decode_snapshot(encode_snapshot(Snapshot(0, 0., 0, dict(own=x)))).arrays['own']
        top = float(np.abs(x).max())
        assert np.isfinite(y).all()
        for a, b in zip(x.astype(np.float64), y.astype(np.float64)):
            if abs(a) >= top*2.**-28: assert abs(a - b) <= abs(a)*2.**-11
            else: assert abs(a - b) <= top*2.**-39


def test_values_beyond_the_float16_range_are_preserved():
    x = np.array([65504., 65520., 1e6, -3e38, 1e30])
    y = decode_snapshot(encode_snapshot(Snapshot(0, 0., 0, dict(own=x)))).arrays['own']
    assert np.isfinite(y).all() and np.allclose(y[[3, 4]], x[[3, 4]], rtol=1e-3)
    x = np.array([70000., 1e5, 66000.])
    assert np.allclose(decode_snapshot(encode_snapshot(Snapshot(0, 0., 0, dict(own=x)))).arrays['own'], x, rtol=2**-11)
    gradients = np.array([[3e-9, -1e-8, 2e-11, 0.]])
    back = decode_snapshot(encode_snapshot(Snapshot(0, 0., 0, dict(own=gradients)))).arrays['own']
    assert (gradients.astype(np.float16)[0, [0, 2]] == 0).all() and np.allclose(back, gradients, rtol=2**-11, atol=0)


def test_nan_infinities_zeros_and_signs_are_preserved():
    x = np.array([np.nan, np.inf, -np.inf, 0., -0., 1.5, -2.])
    y = decode_snapshot(encode_snapshot(Snapshot(0, 0., 0,
                                                 dict(own=x, all_nan=np.full(3, np.nan),
                                                      zeros=np.zeros((2, 2)))))).arrays
    assert np.array_equal(y['own'], x, equal_nan=True) and np.array_equal(np.signbit(y['own'][1:]), np.signbit(x[1:]))
    assert np.isnan(y['all_nan']).all() and (y['zeros'] == 0).all()


def test_arrays_of_any_layout_and_dtype_are_restored():
    rng = np.random.default_rng(1)
    arrays = dict(transposed=rng.integers(-9, 9, (3, 5)).T, strided=np.arange(20)[::3],
                  fortran=np.asfortranarray(rng.normal(size=(4, 3)).round(1)),
                  big_endian=np.arange(5, dtype='>i4'), scalar=np.array(3), none=np.zeros((0, 4)),
                  bits=rng.random((3, 7)) > .5, one_bit=np.array(True),
                  no_bits=np.zeros((2, 0), bool), small=np.arange(4, dtype=np.uint8),
                  broadcast=np.broadcast_to(np.array([True, False]), (3, 2)),
                  flipped=np.arange(6).reshape(2, 3)[::-1], floats=rng.normal(size=(2, 3))[:, ::-1])
    back = decode_snapshot(encode_snapshot(Snapshot(0, 0., 0, arrays))).arrays
    assert list(sorted(back)) == list(sorted(arrays))
    for k, x in arrays.items():
        assert back[k].shape == x.shape and (back[k].dtype.kind == x.dtype.kind), k
        assert np.allclose(back[k].astype(float), x.astype(float), rtol=1e-3), k


def test_non_numeric_arrays_raise_before_writing(run):
    before = sorted(run.path.glob('**/*'))
    for bad in (np.array(['a']), np.array([None]), np.array([1j])):
        with pytest.raises(ValueError, match="array 'own' has dtype"): run.save(Snapshot(99, 0., 0, dict(own=bad)))
        with pytest.raises(ValueError, match="array 'own' has dtype"): run.save_arrays('a', dict(own=bad))
    assert sorted(run.path.glob('**/*')) == before


def test_hostile_text_is_restored_exactly(run):
    nasty = ['</script><script>alert(1)</script>', '\0\n\r\t', '\u2028\u2029', '\ud800 lone', '👩‍👩‍👧', '"\\', 'ሰላም',
             '\u202e', '', '{"step": 1}\n', '__proto__']
    run.save(look(40, 2, n=len(nasty), tokens=nasty, texts=(' '.join(nasty), nasty[0]), classes=nasty[:3],
                  info=dict(note=nasty)))
    s = Run(run.path).snapshot(40, 2)
    assert s.tokens == s.labels == s.words == nasty
    assert s.texts == (' '.join(nasty), nasty[0])
    assert s.classes == nasty[:3]
    assert s.info['note'] == nasty
    run.log(dict(step=40, note=nasty))
    assert run.metrics[-1]['note'] == nasty and repr(s).encode('utf-8', 'replace')


def test_saving_the_same_snapshot_twice_gives_the_same_bytes(run):
    assert encode_snapshot(look(3, 1)) == encode_snapshot(look(3, 1))
    again = decode_snapshot(encode_snapshot(run.snapshot(10, 1))) # encoding it again does not round again
    assert list(again.arrays) == list(look().arrays) and is_whole(again)


def test_snapshot_of_the_same_step_and_probe_is_replaced(run):
    run.save(look(10, 1, losses=dict(task=9.)))
    assert run.snapshot(10, 1).losses == dict(task=9.) and len(run.snapshots()) == 6


def test_reading_does_not_change_the_folder(run):
    stamp = lambda: {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in run.path.glob('**/*')}
    before, reader = stamp(), Run(run.path)
    reader.snapshots(), reader.metrics, reader.damaged, repr(
        reader), reader.best_checkpoint, reader.checkpoints, reader.state, runs_table(run.path.parent)
    assert stamp() == before


def test_copied_run_opens_and_has_no_absolute_paths(run, tmp_path):
    run.finish(test_accuracy=.5), run.set_state(a=1), run.save_arrays('a', dict(x=np.ones(2)))
    shutil.copytree(run.path, tmp_path/'elsewhere/copy')
    other = Run(tmp_path/'elsewhere/copy')
    assert other.metrics == run.metrics
    assert other.config == run.config
    assert all(map(is_whole, other.snapshots()))
    assert other.finished
    assert not any(str(tmp_path).encode() in p.read_bytes() for p in other.path.glob('**/*') if p.is_file())


def test_rows_and_config_accept_arrays_paths_and_functions(tmp_path):
    class Tensor: # what torch and numpy scalars have in common
        def tolist(self): return 2.5
    args = dict(pattern=look, layers=(0, np.int64(1)), teacher=Run.create(tmp_path/'t', {}))
    run = Run.create(tmp_path/'run', dict(method=dict(name='Own', args=args), seed=np.int64(3)))
    assert run.config['method']['args'] == dict(pattern=f'{__name__}.look', layers=[0, 1], teacher=str(tmp_path/'t'))
    assert run.config['seed'] == 3
    run.log(dict(step=np.int64(4), loss=Tensor(), rate=np.float32(.5), bad=float('nan'), worse=float('inf')))
    got = Run(run.path).metrics[0]
    assert (got['step'], got['loss'], got['rate'], got['worse']) == (4, 2.5, .5, math.inf) and math.isnan(got['bad'])
    with pytest.raises(ValueError, match='cannot be written as JSON'): run.log(dict(step=1, x={(1, 2): 3}))
    for bad in (None, [1], {}, dict(loss=1.), dict(step=-1), dict(step=1.5), dict(step=True), dict(step='1')):
        with pytest.raises(ValueError, match="row must be a dict with 'step'"): run.log(bad)
    assert len(run.metrics) == 1


# Creating, finding

def test_existing_folder_is_never_overwritten(run, tmp_path):
    before = (run.path/'config.json').read_bytes()
    with pytest.raises(FileExistsError, match='never overwritten'): Run.create(run.path, CONFIG)
    with pytest.raises(FileExistsError, match='never overwritten'): Run.create(run.path, CONFIG, exist='empty')
    (tmp_path/'empty').mkdir(), (tmp_path/'file').write_text('x')
    with pytest.raises(FileExistsError, match='never overwritten'): Run.create(tmp_path/'empty', CONFIG)
    for exist in ('refuse', 'empty'):
        with pytest.raises(FileExistsError, match='never overwritten'): Run.create(tmp_path/'file', CONFIG, exist)
    assert Run.create(tmp_path/'empty', CONFIG, exist='empty').config['seed'] == 7
    assert Run.create(tmp_path/'new', CONFIG, exist='empty').config['seed'] == 7
    with pytest.raises(ValueError, match="exist must be 'refuse', 'empty' or 'untrained', got 'overwrite'"):
        Run.create(tmp_path/'x', CONFIG, exist='overwrite')
    with pytest.raises(ValueError, match='config must be a dict'): Run.create(tmp_path/'x', 'ADDrop')
    with pytest.raises(ValueError, match='cannot be written as JSON'): Run.create(tmp_path/'x', {(1, 2): 3})
    assert not (tmp_path/'x').exists() and (run.path/'config.json').read_bytes() == before


def test_config_records_time_and_versions_unless_passed(tmp_path):
    c = Run.create(tmp_path/'a', CONFIG).config
    assert {k: c[k] for k in CONFIG} == CONFIG
    assert c['created'].endswith('+00:00')
    assert c['versions']['python']
    assert c['versions']['numpy'] == np.__version__
    c = Run.create(tmp_path/'b', {**CONFIG, 'created': 'then', 'versions': dict(torch='1')}).config
    assert c['created'] == 'then' and c['versions'] == dict(torch='1')


def test_unknown_steps_and_probes_raise_with_available_ones(run, tmp_path):
    for call, said in ((lambda: run.snapshot(15), 'no step 15 of probe 0 in run; available: 0, 10, 20'),
                       (lambda: run.snapshot(-4), 'available: 0, 10, 20'),
                       (lambda: run.snapshot(probe=2), 'no probe 2 in run; available: 0, 1'),
                       (lambda: run.snapshots(probe=9), 'available: 0, 1'),
                       (lambda: run.snapshots(step=15), 'available: 0, 10, 20'),
                       (lambda: Run.create(tmp_path/'e', {}).snapshot(), 'no snapshots in .* yet'),
                       (lambda: run.load_arrays('x'), "no arrays 'x' in run; available: none"),
                       (lambda: run.snapshot().at('attention', 5), 'recorded layers: 0, 1'),
                       (lambda: run.snapshot().at('entropy'), 'available'),
                       (lambda: run.snapshot().at('saliency'), 'has no layers')):
        with pytest.raises(KeyError, match=said): call()
    assert Run(tmp_path/'e').snapshots() == [] and Run(tmp_path/'e').steps == []


def test_last_snapshot_is_per_probe(run):
    run.save(look(30, 0)) # killed halfway through a step
    assert (run.snapshot(probe=0).step, run.snapshot(probe=1).step) == (30, 20)
    assert [(s.step, s.probe) for s in run.snapshots(step=-1)] == [(20, 1), (30, 0)]
    assert [(s.step, s.probe) for s in run.snapshots(step=-4)] == [(0, 0)]
    assert [(s.step, s.probe) for s in run.snapshots(step=10)] == [(10, 0), (10, 1)]
    assert [s.step for s in run.snapshots(0, 10)] == [10]


# Current content of the folder

def told(run, *place):
    "Return step and probe of `run.snapshot`, or its error as text"
    try: s = run.snapshot(*place)
    except (KeyError, ValueError) as e: return str(e)
    return s.step, s.probe, is_whole(s)


def test_reading_every_snapshot_lists_the_folder_once(run, monkeypatch):
    scans, scan = [], Run._scan
    monkeypatch.setattr(Run, '_scan', lambda run: scans.append(1) or scan(run))
    assert [is_whole(run.snapshot(*place)) for place in run.recorded] == [True]*6 and len(scans) == 1


@pytest.mark.sample(2)
@pytest.mark.parametrize('seed', range(4))
def test_cached_run_equals_a_newly_opened_one(run, seed):
    rng, writer, folder = np.random.default_rng(seed), Run(run.path), run.path/'snapshots'
    def files(): return sorted(folder.glob('step-*'))
    def any_file(): return files()[rng.integers(len(files()))]
    def save(): writer.save(look(int(rng.integers(9))*10, int(rng.integers(2))))
    def delete(): any_file().unlink()
    def cut(): any_file().write_bytes(b'cut off')
    def mend():
        for p in files():
            if p.read_bytes() == b'cut off': writer.save(look(*snapshot_numbers(p.name)))
    def another_folder():
        shutil.copytree(folder, run.path/'aside')
        shutil.rmtree(folder)
        os.rename(run.path/'aside', folder)
    def stray(): (folder/f'note-{rng.integers(3)}.txt').write_text('no snapshot')
    acts = [save, save, save, delete, cut, mend, another_folder, stray]
    for _ in range(60):
        if len(files()) > 1: acts[rng.integers(len(acts))]()
        else: save()
        if rng.random() < .5: os.utime(folder, ns=(123, 123)) # time stamps of a file system may not change
        if rng.random() < .1: (folder/'note-1.txt').unlink(missing_ok=True)
        for place in [(), (-2, 1), (int(rng.integers(9))*10, int(rng.integers(2)))]:
            assert told(run, *place) == told(Run(run.path), *place)
    shutil.rmtree(folder)
    assert told(run) == f"'no snapshots in {run.path} yet'"


def test_arrays_of_wrong_shapes_raise_with_their_name():
    for kwargs, said in ((dict(arrays=dict(attention=np.ones((2, 2, 6, 5)))),
                          r"'attention' must have shape \[L, H, n, n\] with n=6"),
                         (dict(arrays=dict(guided=np.ones(3))), r"'guided' must have shape \[L, H\]"),
                         (dict(arrays=dict(attention=np.ones((2, 2, 6, 6)), guided=np.ones((1, 3)))), 'H=2'),
                         (dict(arrays=dict(probabilities=np.ones(2))), 'C=3, got'),
                         (dict(labels=['a']), 'labels must have one entry for each of the 6 tokens'),
                         (dict(arrays=dict(own=np.ones(3)), layers=dict(own=[0, 1])),
                          r"'own' must have one row for each of its layers \[0, 1\], got shape \[3\]"),
                         (dict(is_special=[True]), 'is_special must'),
                         (dict(probe=1.5), 'probe must be a non-negative integer'),
                         (dict(step=True), 'step must be a non-negative integer')):
        with pytest.raises(ValueError, match=said): dataclasses.replace(look(), **kwargs)


# Files of an earlier salviz, byte for byte
OLD = raw_header(
    r'{"__metadata__":{"salviz.snapshot":"{\"step\": 3, \"epoch\": 0.5, \"probe\": 0, \"layers\": {\"attention\": [0], '
    r'\"discarded\": [0]}, \"texts\": '
    r'[\"a\"], \"tokens\": [\"[CLS]\", \"a\"], \"labels\": [\"[CLS]\", \"a\"], \"words\": [\"a\"], \"word_ids\": [-1, '
    r'0], \"is_special\": [true, false], '
    r'\"label\": 1, \"classes\": [\"no\", \"yes\"], \"losses\": {\"task\": 0.5}, \"info\": {\"method\": \"ADDrop\", '
    r'\"pooled_row\": 0}, \"format\": 1, '
    r'\"stored\": {\"attention\": {\"exponent\": -15}, \"discarded\": {\"bits\": [1, 1, 2, 2]}, \"saliency\": {}, '
    r'\"probabilities\": {}}, \"checksum\": 3263'
    r'586256}"},"probabilities":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    r'"saliency":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},"attention":{"'
    r'dtype":"F16","shape":[1,1,2,2],"data_offsets":[16,24]},'
    r'"discarded":{"dtype":"U8","shape":[1],"data_offsets":[24,25]}}'
    + ' '*2, bytes.fromhex('0000803e0000403f0000003f000080be007000760074007460'))


def picture(modality, step=0, probe=0, **kwargs):
    "Return a snapshot of an image of three channels or of a series of seven steps"
    rng = np.random.default_rng((step, probe))
    whole, flat = ((3, 5, 4), (5, 4)) if modality == 'image' else ((7, 3), (7, 3))
    seen, mask = (1013 + rng.normal(size=whole)).astype(np.float32), rng.random(flat) > .6
    arrays = dict(input=seen, saliency_map=rng.normal(size=flat).astype(np.float32),
                  method_saliency_map=rng.normal(size=flat).astype(np.float32),
                  masked_map=np.where(mask, np.float32(1000.125), seen), is_masked_map=mask,
                  probabilities=np.float32([.2, .5, .3]), masked_probabilities=np.float32([.3, .4, .3]))
    if modality == 'series': arrays['informative'] = rng.random(flat) > .5
    return Snapshot(**{**dict(step=step, epoch=0., probe=probe, arrays=arrays, label=2, classes=['a', 'b', 'c'],
                              info=dict(modality=modality)), **kwargs})


@pytest.mark.parametrize('modality', ['image', 'series'])
def test_images_and_series_are_restored_exactly(run, modality):
    want = picture(modality, 40)
    run.save(want)
    got = Run(run.path).snapshot(40)
    assert set(got.arrays) == set(want.arrays)
    assert (got.tokens, got.texts, got.words, list(got.word_ids)) == ([], (), [], [])
    for k, x in want.arrays.items(): assert got.arrays[k].dtype == x.dtype and np.array_equal(got.arrays[k], x), k
    changed = (got.arrays['masked_map'] != got.arrays['input']).reshape(-1, *got.arrays['is_masked_map'].shape).any(0)
    # entries that are not masked are equal, so the mask can be derived
    assert np.array_equal(changed, got.arrays['is_masked_map'])
    assert (got.label, got.info['modality']) == (2, modality)
    assert f'{modality}' in repr(got)
    assert "label 'c', predicted 'b' with 0.50" in repr(got)
    assert safetensors.numpy.load(encode_snapshot(want))['is_masked_map'].nbytes == math.ceil(
        want.arrays['is_masked_map'].size/8)


def test_inconsistent_arrays_of_images_and_series_raise_with_their_name():
    for modality, name, shape, said in (('image', 'saliency_map', (4, 5),
                                         r"'saliency_map' must have shape \[h, w\] with C=3, c=3, h=5, w=4, got \[4, "
                                         r"5\]"),
                                        ('image', 'is_masked_map', (3, 5, 4), r'shape \[h, w\]'),
                                        ('image', 'masked_map', (1, 5, 4), r'\[c, h, w\]'),
                                        ('image', 'method_saliency_map', (5,), r'\[h, w\]'),
                                        ('series', 'input', (3, 7), r"must have shape \[T, F\]"),
                                        ('series', 'informative', (7,), r'\[T, F\]'),
                                        ('series', 'probabilities', (2,), 'C=3'),
                                        ('image', 'input', (5, 4), r'\[c, h, w\]')):
        s = picture(modality)
        with pytest.raises(ValueError, match=said): dataclasses.replace(s, arrays={**s.arrays, name: np.ones(shape)})
    for kwargs in (dict(tokens=['a']), dict(texts=('a',)), dict(words=['a'])):
        with pytest.raises(ValueError, match="modality 'image' must have no tokens, texts or words, got"):
            picture('image', **kwargs)
    with pytest.raises(ValueError, match="must be 'text', 'image' or 'series', got 'sound'"):
        picture('image', info=dict(modality='sound'))


def test_token_and_translation_predictions_are_restored_exactly(run):
    n, score = 6, 3.1415926
    run.save(look(40, label=score, classes=[], arrays=dict(prediction=np.float32([2.7182817]))))
    got = run.snapshot(40)
    assert (got.label, got.arrays['prediction'].tolist()) == (score, [float(np.float32(2.7182817))])
    assert 'label 3.142, predicted 2.718' in repr(got)
    confidence = np.float32([np.nan, .1234567, .9, .8, .7, np.nan])
    run.save(look(41, label=None, arrays=dict(token_confidence=confidence),
                  info=dict(task='token_classification', token_labels=[None, 'B-LOC', 'O', None, 'O', None],
                                                                                        token_predictions=[
        None, 'O', 'O', None, 'O', None])))
    got = run.snapshot(41)
    assert np.array_equal(got.arrays['token_confidence'], confidence, equal_nan=True)
    assert got.info['token_labels'] == [None, 'B-LOC', 'O', None, 'O', None]
    run.save(look(42, label=None, arrays=dict(target_probability=np.float32([.123456, .9])),
                  info=dict(target_tokens=['a', '</s>'], predicted_tokens=['b', '</s>'])))
    assert run.snapshot(42).arrays['target_probability'].tolist() == np.float32([.123456, .9]).tolist()
    assert run.damaged == []
    for kwargs, said in ((dict(arrays=dict(token_confidence=np.ones(5))),
                          r"'token_confidence' must have shape \[n\] with n=6"),
                         (dict(label=math.inf), 'a finite score or None, got inf'),
                         (dict(arrays=dict(prediction=np.ones(2))), r"'prediction' must have shape \[1\]"),
                         (dict(label='positive'), "or None, got 'positive'"),
                         (dict(info=dict(token_labels=['O']*5)),
                          r"info\['token_labels'\] must have 6 entries, one for each token, got 5"),
                         (dict(info=dict(target_tokens=['a'], predicted_tokens=['a', 'b'])),
                          r"info\['predicted_tokens'\] must have 1 entries, one for each target token, got 2"),
                         (dict(arrays=dict(target_probability=np.ones(2)), info=dict(target_tokens=['a'])),
                          r"info\['target_tokens'\] must have 2 entries")):
        with pytest.raises(ValueError, match=said): look(**kwargs)
    assert type(look(label=np.int64(2)).label) is int and type(look(label=np.float32(2)).label) is float


def test_snapshots_are_compatible_with_earlier_versions():
    s = decode_snapshot(OLD)
    assert (s.label, s.step, s.tokens, s.texts) == (1, 3, ['[CLS]', 'a'], ('a',))
    assert s.arrays['saliency'].tolist() == [.5, -.25]
    assert s.arrays['discarded'].tolist() == [[[[False, True], [True, False]]]]
    now = encode_snapshot(s)
    assert safetensors.numpy.load(now).keys() == safetensors.numpy.load(OLD).keys()
    old, new = (json.loads(json.loads(data[8:8 + int.from_bytes(data[:8], 'little')])['__metadata__'][
        'salviz.snapshot']) for data in (OLD, now))
    assert new.pop('seal').startswith('crc32:') and new == old


@pytest.mark.parametrize('modality', ['image', 'series'])
@pytest.mark.parametrize('kind', ['cut', 'one flipped bit', 'tokens of a text'])
def test_damaged_image_or_series_is_reported_and_the_rest_opens(run, modality, kind):
    run.save(picture(modality, 30)), run.save(picture(modality, 30, 1))
    file = run.path/'snapshots/step-00000030.probe-001.safetensors'
    data = file.read_bytes()
    if kind == 'cut': data = data[:-9]
    elif kind == 'one flipped bit': data = data[:-50] + bytes([data[-50] ^ 4]) + data[-49:]
    else:
        n = int.from_bytes(data[:8], 'little')
        meta = json.loads(json.loads(data[8:8+n])['__metadata__']['salviz.snapshot']) | dict(
            tokens=['a'], labels=['a'], word_ids=[0], is_special=[False])
        data = safetensors.numpy.save(safetensors.numpy.load(data), {'salviz.snapshot': json.dumps(meta)})
    file.write_bytes(data)
    reader = Run(run.path)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter('always')
        seen = [(s.step, s.probe) for s in reader.snapshots(step=30)]
    assert seen == [(30, 0)] and [d.file for d in reader.damaged] == [f'snapshots/{file.name}']
    with pytest.raises(KeyError, match='no step 30 of probe 1 in run: its file '): reader.snapshot(30, 1)


def test_config_selects_the_best_step(tmp_path):
    rows = [dict(step=s, kind='eval', spearman=a, mse=b, loss=c)
            for s, a, b, c in ((1, .2, 3., 5.), (2, .6, 1., 4.), (3, .6, 2., 1.), (4, math.nan, 0., .5))]
    for metric, best, names in ((dict(name='spearman', greater_is_better=True), 2, ['spearman', 'mse', 'loss']),
                                (dict(name='loss', greater_is_better=False), 4, ['loss', 'spearman', 'mse']),
                                (dict(name='mse', greater_is_better=False), 4, ['mse', 'spearman', 'loss']),
                                (dict(name='loss'), 4, ['loss', 'spearman', 'mse'])):
        run = Run.create(tmp_path/f'{metric}', dict(best_metric=metric, method='FineTuning'))
        assert run.best_step is None and run.measures == list(dict.fromkeys([metric['name'], 'loss']))
        for r in rows: run.log(r)
        assert (run.best_step, run.measures) == (best, names) and run.scores()['mse'] == rows[best - 1]['mse']
        for step in (1, 3): checkpoint(run, step)
        assert run.best_checkpoint.name == 'checkpoint-3'
        run.log(dict(kind='score', split='test', step=best, examples=5, loss=2.,
                     **{k: .25 for k in names if k != 'loss'}))
        assert run.measures == names
        assert 'examples' not in run.scores('test')
        assert run.scores('test')[names[0]] == (2. if names[0] == 'loss' else .25)
    assert 'validation loss 0.500, mean squared error 0.000 at step 4' in repr(run) # the Spearman there is undefined


def test_runs_table_has_a_column_for_each_score(tmp_path):
    a = Run.create(tmp_path/'a', dict(best_metric=dict(name='f1', greater_is_better=True)))
    a.log(dict(kind='eval', step=1, epoch=1., f1=.5, accuracy=.9,
               loss=1.)), a.log(dict(kind='score', split='test', step=1, examples=3, f1=.4, accuracy=.8, loss=1.))
    assert list(runs_table(tmp_path).columns) == ['name', 'method', 'seed', 'steps', 'validation_f1',
                                                  'validation_accuracy', 'test_f1', 'test_accuracy', 'train_loss',
                                                  'finished', 'damaged']
    b = Run.create(tmp_path/'b', dict(best_metric=dict(name='loss', greater_is_better=False)))
    b.log(dict(kind='eval', step=7, loss=2., accuracy=.3))
    t = runs_table(tmp_path).set_index('name')
    assert (t.validation_f1['a'], t.test_f1['a'], t.validation_loss['b'],
            t.validation_accuracy['b']) == (.5, .4, 2., .3)
    assert math.isnan(t.validation_f1['b'])
    assert math.isnan(t.validation_loss['a'])


def test_layers_keep_the_numbers_of_the_model(run):
    attention = np.stack([np.full((2, 6, 6), x) for x in (.25, .5, 1.)])
    run.save(Snapshot(40, 0., 0, dict(attention=attention), dict(attention=[1, 4, 11]), tokens=list('abcdef')))
    s = run.snapshot(40)
    assert [s.at('attention', l).max() for l in (1, 4, 11, -1, -3)] == [.25, .5, 1., 1., .25]
    assert s.layers['attention'] == [1, 4, 11]


# Subscribers and copies

def test_subscribers_receive_what_a_reader_gets(run):
    got, more = [], []
    stop, stop_more = run.subscribe(got.append), run.subscribe(more.append)
    run.log(dict(step=30, loss=np.float32(.1), where=(1, 2))), run.save(look(30))
    stop()
    stop()
    run.log(row(31))
    stop_more()
    reader = Run(run.path)
    assert got[0] == reader.metrics[-2]
    assert np.array_equal(got[1].arrays['saliency'], reader.snapshot(30).arrays['saliency'])
    assert got[1].arrays is not None
    assert len(got) == 2
    assert len(more) == 3
    assert not np.array_equal(got[1].arrays['saliency'], look(30).arrays['saliency'])


def test_failing_subscriber_only_causes_a_warning(run):
    got = []
    def fail(item): raise RuntimeError('the browser is gone')
    run.subscribe(fail), run.subscribe(got.append)
    with pytest.warns(match='a subscriber of run run failed .RuntimeError: the browser is gone.; the run continues'):
        run.log(row(30))
    with pytest.warns(match='the browser is gone'): run.save(look(30))
    assert [str(e) for e in run.subscriber_errors] == ['the browser is gone']*2 and len(got) == 2
    assert run.metrics[-1] == row(30) and is_whole(run.snapshot(30))


def test_subscriber_may_read_write_and_unsubscribe_during_a_call(run):
    def once(item):
        stop()
        run.set_state(seen=len(run.metrics))
    stop, got = run.subscribe(once), []
    run.subscribe(got.append)
    run.log(row(30)), run.log(row(31))
    assert run.state == dict(seen=4) and len(got) == 2


def test_run_is_pickled_without_its_listeners(run):
    run.subscribe(print)
    for other in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run)):
        assert other.path == run.path and other.config == run.config and not other._listeners
        other.log(row(30))
    assert [r['step'] for r in run.metrics] == [0, 10, 20, 30, 30]


def test_run_is_found_after_changing_the_working_directory(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    relative = Run('run')
    monkeypatch.chdir('/')
    relative.log(row(30))
    assert len(run.metrics) == 4 and os.fspath(relative) == str(run.path)


# Resuming, results

def checkpoint(run, step, complete=True):
    folder = run.path/f'checkpoints/checkpoint-{step}'
    folder.mkdir(parents=True)
    (folder/'model.safetensors').write_bytes(b'weights %d' % step)
    (folder/'trainer_state.json').write_text(json.dumps(dict(global_step=step)) if complete else '{"global')
    if complete: write_manifest(folder, sum(r['step'] <= step for r in run.metrics))


def test_supersede_moves_everything_later_and_loses_no_byte(run):
    for step in (10, 20): checkpoint(run, step)
    checkpoint(run, 25, complete=False)
    (run.path/'snapshots/step-00000015.probe-000.safetensors').write_bytes(b'damaged') # moved together with its step
    run.log(dict(step=20, kind='eval', accuracy=.5)), run.set_state(best_step=20,
                                                                    alpha=10.), run.finish(test_accuracy=.4)
    files = sorted(p.read_bytes() for p in run.path.glob('**/*') if p.is_file()
                   and p.name not in ('metrics.jsonl', 'state.json'))
    lines = sorted((run.path/'metrics.jsonl').read_bytes().split(b'\n')[:-1])
    aside = run.supersede(10)
    assert aside == run.path/'superseded/1'
    old = Run(aside)
    assert (run.steps, [r['step'] for r in run.metrics], list(run.checkpoints)) == ([0, 10], [0, 10], [10])
    assert (old.steps, [r['step'] for r in old.metrics], list(old.checkpoints)) == ([20], [20, 20], [20])
    assert old.finished
    assert not run.finished
    assert old.state == dict(best_step=20, alpha=10.)
    assert run.state == dict(alpha=10.)
    assert (old.path/'checkpoints/checkpoint-25').is_dir() and run.damaged == [] and len(old.damaged) == 1
    after = [p.read_bytes() for p in run.path.glob('**/*') if p.is_file()
             and p.name not in ('metrics.jsonl', 'state.json')]
    after.remove((old.path/'config.json').read_bytes()) # the copy that makes the superseded part a run
    assert sorted(after) == files
    assert sorted(l for p in run.path.glob('**/metrics.jsonl') for l in p.read_bytes().split(b'\n')[:-1]) == lines
    assert run.supersede(10) is None and not (run.path/'superseded/2').exists()
    run.log(row(11)), run.save(look(11))
    assert run.supersede(10) == run.path/'superseded/2'
    assert Run(run.path/'superseded/2').steps == [11]
    assert Run(aside).steps == [20]
    assert run.supersede(-1) == run.path/'superseded/3'
    assert run.steps == []
    assert run.metrics == []
    assert run.checkpoints == {}
    assert list(runs_table(run.path.parent).name) == ['run']


def test_best_checkpoint_is_the_recorded_or_best_validated_one(run):
    assert run.best_step is None and run.best_checkpoint is None
    for step, accuracy in ((5, .9), (10, .5), (20, .7), (30, .7), (40, float('nan'))):
        run.log(dict(step=step, eval_loss=1., eval_accuracy=accuracy, eval_macro_f1=.1*step))
    assert run.best_step == 5 and run.best_checkpoint is None
    for step in (10, 20, 30): checkpoint(run, step)
    checkpoint(run, 50, complete=False)
    assert list(run.checkpoints) == [10, 20, 30]
    assert run.best_checkpoint.name == 'checkpoint-20'
    assert run.scores()['accuracy'] == .9
    run.set_state(best_step=10)
    assert run.best_step == 10 and run.best_checkpoint.name == 'checkpoint-10' and run.scores()['accuracy'] == .5
    run.finish(best_step=30)
    assert run.best_step == 30
    assert run.best_checkpoint.name == 'checkpoint-30'
    assert run.scores() == dict(accuracy=.7, macro_f1=3., loss=1.)


def test_rows_are_distinguished_by_kind_or_names(run):
    run.log(dict(step=30, kind='eval', accuracy=.5,
                 loss=1.)), run.log(dict(step=30,
                                         eval_loss=1.)), run.log(dict(step=30, kind='score', split='test', loss=1.))
    run.log(dict(step=31, loss=1.)), run.log(dict(step=31, note='x'))
    assert [r['step'] for r in run.train_rows] == [0, 10, 20, 31] and len(run.eval_rows) == 2


def test_runs_table_lists_damaged_runs_and_skips_other_folders(tmp_path):
    a = Run.create(tmp_path/'a', CONFIG)
    for step in range(1, 5): a.log(dict(kind='train', step=step, epoch=step/2, loss=2., task=float(step)))
    for step, accuracy in ((2, .6), (4, .5)):
        a.log(dict(kind='eval', step=step, accuracy=accuracy, macro_f1=accuracy - .1, loss=1.))
    a.log(dict(kind='score', split='test', step=2, accuracy=.4, macro_f1=.3, loss=1.2)), a.finish(best_step=2)
    Run.create(tmp_path/'b', dict(method='FineTuning')).save(look())
    (tmp_path/'b/snapshots'/NAME).write_bytes(b'garbage')
    Run.create(tmp_path/'c', CONFIG)
    (tmp_path/'c/config.json').write_text('{"method"')
    Run.create(tmp_path/'d', CONFIG).log(row(1))
    (tmp_path/'d/config.json').unlink()
    (tmp_path/'pictures').mkdir(), (tmp_path/'pictures/a.svg').write_text('x'), (tmp_path/'index.html').write_text('x')
    t = runs_table(tmp_path).set_index('name')
    assert list(t.index) == ['a', 'b', 'c', 'd']
    assert t.loc['a'].drop('damaged').to_dict() == dict(
        method='ADDrop', seed=7, steps=4, validation_accuracy=.6, validation_macro_f1=.5, test_accuracy=.4,
        test_macro_f1=.3, train_loss=3.5, finished=True)
    assert t.damaged['a'] == ''
    assert NAME in t.damaged['b']
    assert 'config.json is not JSON' in t.damaged['c']
    assert 'config.json' in t.damaged['d']
    assert t.method['b'] == 'FineTuning' and not t.finished[['b', 'c', 'd']].any()
    assert list(runs_table(tmp_path/'pictures').columns) == list(runs_table(tmp_path).columns)
    assert len(runs_table(tmp_path/'pictures')) == 0
    with pytest.raises(FileNotFoundError, match='the folder does not exist'): runs_table(tmp_path/'nowhere')


def test_run_and_snapshot_have_a_readable_repr(run):
    run.log(dict(kind='eval', step=20, accuracy=.6123,
                 macro_f1=.5)), run.log(dict(kind='score', split='test', step=20, accuracy=.55, macro_f1=.44, loss=1.))
    for part in ('Run run, seed 7, 20 steps, not finished', 'ADDrop (p=0.3, q=0.2)',
                 'minilm (BertForSequenceClassification, 2 layers, 2 heads)',
                 'movie-sentences (8 train, 2 validation, 2 test)', '6 of 2 probes, steps 0, 10, 20',
                 'validation accuracy 0.612, macro-F1 0.500 at step 20',
                 'test      accuracy 0.550'): assert part in repr(run), part
    assert 'damaged' not in repr(run)
    assert "step 10 (epoch 1.00): 't0 t1 t2 t3 t4 t5'" in repr(run.snapshot(10))
    assert "label 'b', predicted " in repr(run.snapshot(10))
    assert 'attention float32 [2, 2, 6, 6], layers 0, 1' in repr(run.snapshot(10)) and repr(Snapshot(0, 0., 0))


def test_minimal_or_odd_config_still_has_a_repr(tmp_path):
    for i, config in enumerate(({}, dict(method='Own', model='m', data=None, seed=None),
                                dict(method={}, data=dict(sizes=None), model=dict(layers=2)))):
        assert 'Run' in repr(Run.create(tmp_path/str(i), config))


def test_viewing_packages_open_runs_without_torch(run):
    code = f'''import sys
import salviz.core.runs, salviz.metrics.scores, salviz.core.maths, salviz.core.text
run = salviz.core.runs.Run({str(run.path)!r})
assert len(run.snapshots()) == 6 and run.metrics and repr(run)
print(*sorted({{'torch', 'transformers', 'datasets'}} & set(sys.modules)), sep=',')'''
    done = subprocess.run([sys.executable, '-c', code], cwd=HOUSE, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ''), done.stderr


if __name__ == '__main__': keep_writers()


def test_a_released_run_has_no_locked_file(tmp_path):
    held = Held(tmp_path)
    assert held._lock.is_locked
    held.release()
    assert not held._lock.is_locked and not held.note.exists()
