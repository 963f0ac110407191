"""What importing a room brings along: who looks needs no torch, who counts needs nothing that draws, and who trains
neither."""
import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import salviz

package = Path(salviz.__file__).parent
heavy = ['torch', 'transformers', 'datasets', 'captum', 'matplotlib', 'matplotlib.pyplot', 'plotly', 'ipywidgets',
         'anywidget', 'IPython', 'bertviz', 'sklearn', 'scipy.stats']
computing, drawing = heavy[:4], ['matplotlib', 'plotly', 'ipywidgets', 'anywidget']
scoring = heavy[-2:] # takes about a second to load, and is loaded when something is scored or tested

def rooms_of(*floors): # their modules, as `floor.room`
    return [f'{floor}.{p.stem}' for floor in floors for p in sorted((package/floor).glob('*.py'))
            if p.stem != '__init__']

looks = rooms_of('figures', 'explorer')
counts = [*rooms_of('core', 'metrics', 'views', 'replication'), 'training.settings', 'training.study',
          'training.designs', 'training.progress', 'training.search', 'cli',
          *(f'explorer.{room}' for room in ('assets', 'quantisation', 'payload', 'page_compression', 'run_metadata',
                                            'page', 'transfer', 'notebook_cleanup', 'bertviz'))]
draws = [*(room for room in looks if room not in counts), 'tour', *rooms_of('course')]
computes = rooms_of('data', 'models', 'attribution', 'methods', 'training', 'analysis')
trains = [*(room for room in computes if room not in counts), 'bench']

# One interpreter imports everything, with no network: what counts and what draws in a process that is forked from it,
# what trains, and at the end the rest, in itself.
importing = '''
import importlib, json, os, pkgutil, socket, sys, types
def refuse(*args, **kwargs): raise OSError('an import reached for the network')
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
heavy, counts, draws, trains = json.loads(sys.argv[1])
import salviz
found = {'__init__': [k for k in heavy if k in sys.modules]}
def imported(rooms):
    for room in rooms:
        importlib.import_module(f'salviz.{room}')
        found[room] = [k for k in [*heavy, 'salviz.views', 'salviz.figures'] if k in sys.modules]
imported(['training.engines'])
found['engines alone'] = found.pop('training.engines')
read, write = os.pipe()
if not os.fork():
    imported(counts)
    imported(draws)
    with open(write, 'w') as f: json.dump(found, f)
    os._exit(0)
os.close(write)
with open(read) as f: found.update(json.load(f))
imported(trains)
modules = [m.name for m in pkgutil.walk_packages(salviz.__path__, 'salviz.') if not m.name.endswith('_modidx')]
for name in modules: importlib.import_module(name)
names = {}
exec('from salviz import *', names)
from salviz.training import train
from salviz.data import load_text
from salviz.explorer import Explorer
print(json.dumps(dict(
    found=found, shadowed=[m for m in modules if m.rpartition('.')[2] in salviz.__all__],
    hidden=[name for name in salviz.__all__ if isinstance(getattr(salviz, name), types.ModuleType)
            or isinstance(names[name], types.ModuleType)],
    demo=names['demo'] is salviz.demo and callable(salviz.demo),
    homes=[train.__module__, Explorer.__module__, load_text.__module__])))'''

@pytest.fixture(scope='module')
def imports():
    "What `importing` found"
    done = subprocess.run([sys.executable, '-c', importing, json.dumps([heavy, counts, draws, trains])],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])

@pytest.fixture(scope='module')
def brought(imports):
    "{module: which of `heavy` are loaded after it and those before it were imported}"
    return imports['found']

@pytest.mark.parametrize('room', ['__init__', *counts])
def test_who_counts_needs_neither_torch_nor_what_draws(brought, room): assert not set(brought[room]) & set(heavy)

@pytest.mark.parametrize('room', draws)
def test_who_draws_needs_neither_torch_nor_what_scores(brought, room):
    assert not {*computing, *scoring, 'matplotlib.pyplot'} & set(brought[room])

@pytest.mark.parametrize('room', trains)
def test_who_trains_needs_nothing_that_draws(brought, room):
    assert not {*drawing, 'IPython', 'salviz.views', 'salviz.figures'} & set(brought[room])

def test_who_collects_the_runs_of_a_study_needs_no_torch(brought):
    assert not {'torch', 'transformers'} & set(brought['engines alone'])

# What a floor may import besides itself.
below = dict(core=[], metrics=['core'], data=['core', 'metrics'], models=['core', 'metrics', 'data'])
below['attribution'] = [*below['models'], 'models']
below['methods'] = [*below['attribution'], 'attribution']
below['training'] = below['analysis'] = [*below['methods'], 'methods']
below['views'] = ['core', 'metrics']
below['figures'] = [*below['views'], 'views']
below['explorer'] = [*below['figures'], 'figures']
below['course'] = below['replication'] = [*below['training'], 'training', 'analysis', *below['explorer'], 'explorer']
# Loaded when called: the explorer computes the maps of a model, and those of a custom sentence.
upwards = {('explorer.model_explorer', 'analysis.model_maps'), ('explorer.model_explorer', 'models.loading'),
           ('explorer.custom_sentences', 'analysis.model_maps'), ('explorer.custom_sentences', 'models.checkpoints'),
           ('explorer.custom_sentences', 'training.trainer')}

def imported(file):
    "Modules that `file` imports, anywhere in it; `if TYPE_CHECKING:` blocks, which never run, are left out"
    here, tree = file.relative_to(package).with_suffix('').parts, ast.parse(file.read_text())
    tree.body = [x for x in tree.body if not (isinstance(x, ast.If) and ast.unparse(x.test) == 'TYPE_CHECKING')]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ['salviz', *here[:len(here) - node.level], *(node.module or '').split('.')]
            names = ['.'.join([o for o in base if o] + [a.name]) for a in node.names]
        elif isinstance(node, ast.ImportFrom): names = [f'{node.module}.{a.name}' for a in node.names]
        elif isinstance(node, ast.Import): names = [a.name for a in node.names]
        else: continue
        yield from ('.'.join(o.split('.')[1:3]) for o in names if o.startswith('salviz.'))

def test_floors_import_those_below_them_only():
    met = set()
    for floor, allowed in below.items():
        for room in rooms_of(floor):
            file = package/f'{room.replace(".", "/")}.py'
            for other in imported(file):
                if other.split('.')[0] in {floor, *allowed} or other.split('.')[0] not in below: continue
                wrong = f'{room} imports {other}: {floor} may import {", ".join(allowed) or "nothing of salviz"}'
                assert (room, other) in upwards, wrong
                met.add((room, other))
    assert met == upwards # an exception that nobody needs any more goes

def test_a_public_name_never_turns_into_a_module(imports):
    """Whatever was imported before: a package gets an attribute for each of its modules, and a module `demo` hid the
    function"""
    assert imports['shadowed'] == imports['hidden'] == [] and imports['demo']
    assert imports['homes'] == ['salviz.training.trainer', 'salviz.explorer.widget', 'salviz.data.texts']
