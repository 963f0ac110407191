"A run is written to each tracker with its numbers and pictures by step, and a missing package is named."
import io
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from salviz.core.runs import Run
from salviz.core.snapshots import Snapshot


@pytest.fixture
def run(tmp_path):
    "Create a run of two recorded steps of one example, with losses and scores"
    run = Run.create(tmp_path/'run', dict(method=dict(name='FineTuning', args={}), task='classification'))
    for step in (0, 10):
        run.save(Snapshot(step=step, epoch=step/10, probe=0, texts=('a b',), tokens=['[CLS]', 'a', 'b', '[SEP]'],
                          word_ids=[-1, 0, 1, -1], words=['a', 'b'], layers=dict(attention=[3]),
                          arrays=dict(attention=np.full((1, 2, 4, 4), .25))))
        run.log(dict(kind='record', step=step, seconds=1.))
    run.log(dict(kind='train', step=5, epoch=.5, loss=.7))
    run.log(dict(kind='log', step=5, learning_rate=1e-3, grad_norm=float('nan')))
    run.log(dict(kind='eval', step=10, loss=.6, accuracy=.8))
    run.log(dict(kind='score', split='test', step=10, accuracy=.75))
    return run


class Calls:
    "An object with any method; the calls of all of its methods are in `calls`"
    def __init__(self, calls, **values): self.__dict__ |= dict(calls=calls) | values
    def __getattr__(self, name):
        if name.startswith('__'): raise AttributeError(name)
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return Calls(self.calls, info=types.SimpleNamespace(run_id='1'), experiment_id='2')
        return call


@pytest.fixture
def stand_in(monkeypatch):
    "Return a function that replaces the package of a tracker by a recorder of calls, and returns the recorder"
    def replace(to):
        calls = []
        module = Calls(calls, Image=lambda image: image, MlflowClient=lambda tracking_uri: Calls(calls),
                       SummaryWriter=lambda folder: Calls(calls), entities=Calls(calls, Metric=lambda *values: values))
        monkeypatch.setitem(sys.modules, dict(tensorboard='torch.utils.tensorboard').get(to, to), module)
        if to == 'trackio': monkeypatch.setitem(sys.modules, 'trackio.utils', types.SimpleNamespace(TRACKIO_DIR='x'))
        module.init = lambda **kwargs: module._begun(**kwargs, space=os.environ.get('TRACKIO_SPACE_ID'))
        return calls
    return replace


def written(to, calls) -> tuple: # ({(name, step): number}, {(name, step): size of a picture})
    "Return what was written to the tracker `to`"
    numbers, sizes = {}, {}
    for name, args, kwargs in calls:
        if name == 'add_scalar': numbers[args[0], args[2]] = args[1]
        elif name == 'add_image': sizes[args[0], args[2]] = args[1].shape[1::-1]
        elif name == 'log_batch': numbers |= {(key, step): x for key, x, _, step in kwargs['metrics']}
        elif name == 'log_image': sizes[kwargs['key'], kwargs['step']] = args[1].size
        elif name == 'log':
            for key, x in args[0].items(): (sizes if hasattr(x, 'size') else numbers)[key, kwargs['step']] = x
    return numbers, {at: getattr(x, 'size', x) for at, x in sizes.items()}


@pytest.mark.parametrize('to', ['tensorboard', 'trackio', 'wandb', 'mlflow'])
def test_every_tracker_gets_numbers_and_pictures_at_their_steps(to, run, stand_in, tmp_path, monkeypatch):
    monkeypatch.setenv('TRACKIO_SPACE_ID', 'somebody/online')
    calls = stand_in(to)
    run.export_to(to, tmp_path/'logs', picture_steps=[-1])
    numbers, pictures = written(to, calls)
    rows = {at: x for at, x in numbers.items() if not at[0].startswith('heads/')}
    assert rows == {('train/loss', 5): .7, ('log/learning_rate', 5): 1e-3, ('validation/loss', 10): .6,
                    ('validation/accuracy', 10): .8, ('test/accuracy', 10): .75}
    assert numbers['heads/largest/3.1', 0] == numbers['heads/largest/3.0', 10] == .25
    assert list(pictures) == [('head_grid/probe-0', 10)] and min(pictures['head_grid/probe-0', 10]) > 100
    assert calls[-1][0] in ('close', 'finish', 'set_terminated')
    begun = [kwargs for name, _, kwargs in calls if name == '_begun']
    if to == 'wandb': assert begun[0]['mode'] == 'offline' and begun[0]['config']['task'] == 'classification'
    if to == 'trackio': assert begun[0]['space'] is None and os.environ['TRACKIO_SPACE_ID'] == 'somebody/online'


@pytest.mark.parametrize('to', ['tensorboard', 'trackio', 'wandb', 'mlflow'])
def test_a_missing_package_is_named_and_nothing_is_written(to, run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, dict(tensorboard='torch.utils.tensorboard').get(to, to), None)
    with pytest.raises(ImportError, match=f'export_to: .* needs the package {to}, .*; pip install {to}'):
        run.export_to(to, tmp_path/'logs')
    assert not (tmp_path/'logs').exists()


def test_a_tracker_must_be_known(run):
    message = "export_to: to must be 'tensorboard', 'trackio', 'wandb' or 'mlflow', got 'paper'"
    with pytest.raises(ValueError, match=message): run.export_to('paper')


@pytest.mark.slow
def test_tensorboard_reads_the_event_file(run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    folder = run.export_to('tensorboard', tmp_path/'logs')
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [(e.step, round(e.value, 6)) for e in events.Scalars('train/loss')] == [(5, .7)]
    assert [e.step for e in events.Scalars('heads/entropy/3.1')] == [0, 10]
    assert [e.step for e in events.Images('head_grid/probe-0')] == [0, 10]
    assert events.Images('head_grid/probe-0')[0].encoded_image_string.startswith(b'\x89PNG')
    with pytest.raises(FileExistsError, match='already has event files'): run.export_to('tensorboard', tmp_path/'logs')


# Reads `folder` and prints {'scalars': {name: [[step, number]]}, 'pictures': {step: path}}.
readers = dict(
    trackio='''
from trackio.sqlite_storage import SQLiteStorage
rows = SQLiteStorage.get_logs('salviz', 'run')
scalars = {name: [[r['step'], r[name]] for r in rows if name in r] for name in names}
pictures = {r['step']: f'{folder}/media/' + r[picture]['file_path'] for r in rows if picture in r}
''',
    mlflow='''
import mlflow
client = mlflow.MlflowClient(tracking_uri=f'sqlite:///{folder}/mlflow.db')
run, = client.search_runs([client.get_experiment_by_name('salviz').experiment_id])
assert run.info.status == 'FINISHED' and run.info.run_name == 'run'
scalars = {name: [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, name)] for name in names}
found = [a.path for a in client.list_artifacts(run.info.run_id, 'images') if a.path.endswith('.png')]
local = {int(path.split('+')[2]): client.download_artifacts(run.info.run_id, path) for path in found}
pictures = {step: path for step, path in local.items() if 'head_grid~probe-0' in path}
''',
    # its file consists of blocks of 32,768 bytes; a record has a header of 7 bytes in each of its blocks
    wandb='''
from wandb.proto.wandb_internal_pb2 import Record
file, = folder.glob('wandb/offline-run-*/*.wandb')
data, at, parts, rows = file.read_bytes(), 7, b'', []
while at < len(data):
    left = 32768 - at % 32768
    if left < 7: at += left; continue
    size, kind = int.from_bytes(data[at + 4:at + 6], 'little'), data[at + 6]
    parts, at = parts + data[at + 7:at + 7 + size], at + 7 + size
    if kind not in (1, 4): continue
    record, parts = Record.FromString(parts), b''
    if record.WhichOneof('record_type') != 'history': continue
    values = {item.key or '/'.join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
    rows.append((record.history.step.num, values))
scalars = {name: [[step, row[name]] for step, row in rows if name in row] for name in names}
pictures = {step: f'{file.parent}/files/' + row[picture + '/path'] for step, row in rows if picture + '/path' in row}
''')

export = '''
import sys
from salviz.core.runs import Run
Run(sys.argv[1]).export_to(sys.argv[2], sys.argv[3])
'''

begin = '''
import json, sys
from pathlib import Path
folder = Path(sys.argv[1])
names, picture = ['train/loss', 'validation/accuracy', 'heads/entropy/3.1'], 'head_grid/probe-0'
'''


@pytest.mark.slow
@pytest.mark.parametrize('to', ['trackio', 'wandb', 'mlflow'])
def test_a_tracker_reads_what_was_written(to, run, tmp_path):
    "With the newest version of the package and the versions of other packages that it needs"
    site, out = tmp_path/'site', tmp_path/'out'
    subprocess.run([sys.executable, '-m', 'uv', 'pip', 'install', '--quiet', '--python', sys.executable, '--target',
                    site, to], check=True)
    paths = [site, Path(__file__).resolve().parents[2]]
    env = os.environ | dict(PYTHONPATH=':'.join(map(str, paths)), TRACKIO_DIR=f'{tmp_path}/logs')
    def ran(code, *args):
        done = subprocess.run([sys.executable, '-c', code, *args], text=True, capture_output=True, cwd=tmp_path,
                              env=env)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    ran(export, run.path, to, tmp_path/'logs')
    end = 'Path(sys.argv[2]).write_text(json.dumps(dict(scalars=scalars, pictures=pictures)))'
    ran(begin + readers[to] + end, tmp_path/'logs', out)
    found = json.loads(out.read_text())
    assert found['scalars']['train/loss'] == [[5, .7]] and found['scalars']['validation/accuracy'] == [[10, .8]]
    assert [[step, round(x, 4)] for step, x in found['scalars']['heads/entropy/3.1']] == [[0, 1.3863], [10, 1.3863]]
    assert [*found['pictures']] == ['0', '10']
    for path in found['pictures'].values():
        assert min(Image.open(io.BytesIO(Path(path).read_bytes())).size) > 100
