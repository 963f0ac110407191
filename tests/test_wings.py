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
counts = [*rooms_of('core', 'measures', 'views', 'claims'), 'training.settings', 'training.study',
          'training.designs', 'training.progress', 'training.search', 'cli',
          *(f'explorer.{room}' for room in ('program', 'codes', 'payload', 'packed', 'described', 'page', 'courier',
                                            'saving', 'bertviz'))]
draws = [*(room for room in looks if room not in counts), 'tour', *rooms_of('course')]
computes = rooms_of('data', 'models', 'attribution', 'methods', 'training', 'probing')
trains = [*(room for room in computes if room not in counts), 'bench']

@pytest.fixture(scope='module')
def brought():
    """{room: what of `heavy` is there after it and those before it in its wing were imported}; each wing in an
    interpreter of its own, those that count before those that draw"""
    code = '''
import importlib, json, sys
heavy, rooms = json.loads(sys.argv[1])
import salviz
found = {'__init__': [k for k in heavy if k in sys.modules]}
for room in rooms:
    importlib.import_module(f'salviz.{room}')
    found[room] = [k for k in [*heavy, 'salviz.views', 'salviz.figures'] if k in sys.modules]
print(json.dumps(found))'''
    found = {}
    for rooms in (counts + draws, trains):
        done = subprocess.run([sys.executable, '-c', code, json.dumps([heavy, rooms])], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        found.update(json.loads(done.stdout))
    return found

@pytest.mark.parametrize('room', ['__init__', *counts])
def test_who_counts_needs_neither_torch_nor_what_draws(brought, room): assert not set(brought[room]) & set(heavy)

@pytest.mark.parametrize('room', draws)
def test_who_draws_needs_neither_torch_nor_what_scores(brought, room):
    assert not {*computing, *scoring, 'matplotlib.pyplot'} & set(brought[room])

@pytest.mark.parametrize('room', trains)
def test_who_trains_needs_nothing_that_draws(brought, room):
    assert not {*drawing, 'IPython', 'salviz.views', 'salviz.figures'} & set(brought[room])

def test_who_collects_the_runs_of_a_study_needs_no_torch():
    code = 'import sys, salviz.training.engines; print(*sorted({"torch", "transformers"} & set(sys.modules)))'
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout.strip() == ''

# What a floor may import besides itself.
below = dict(core=[], measures=['core'], data=['core', 'measures'], models=['core', 'measures', 'data'])
below['attribution'] = [*below['models'], 'models']
below['methods'] = [*below['attribution'], 'attribution']
below['training'] = below['probing'] = [*below['methods'], 'methods']
below['views'] = ['core', 'measures']
below['figures'] = [*below['views'], 'views']
below['explorer'] = [*below['figures'], 'figures']
below['course'] = below['claims'] = [*below['training'], 'training', 'probing', *below['explorer'], 'explorer']
# Loaded when called: a look is shown in the explorer, and a sentence of its reader's own is asked of a model.
upwards = {('probing.look', 'explorer.widget'), ('explorer.own', 'probing.look'),
           ('explorer.own', 'models.checkpoints'), ('explorer.own', 'training.trainer')}

def imported(file):
    "Rooms that the module in `file` imports, anywhere in it"
    here = file.relative_to(package).with_suffix('').parts
    for node in ast.walk(ast.parse(file.read_text())):
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

def test_a_public_name_never_turns_into_a_module():
    """Whatever was imported before: a package gets an attribute for each of its modules, and a module `demo` hid the
    function"""
    code = '''
import pkgutil, types
from importlib import import_module
import salviz
modules = [m.name for m in pkgutil.walk_packages(salviz.__path__, 'salviz.') if not m.name.endswith('_modidx')]
print([m for m in modules if m.rpartition('.')[2] in salviz.__all__])
for name in modules: import_module(name)
for name in salviz.__all__: assert not isinstance(getattr(salviz, name), types.ModuleType), name
names = {}
exec('from salviz import *', names)
assert all(not isinstance(names[name], types.ModuleType) for name in salviz.__all__)
assert names['demo'] is salviz.demo and callable(salviz.demo)
from salviz.training import train
from salviz.data import load_text
from salviz.explorer import Explorer
assert train.__module__ == 'salviz.training.trainer' and Explorer.__module__ == 'salviz.explorer.widget'
'''
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ['[]']
