"What importing a room brings along: who looks needs no torch, who counts needs nothing that draws, and who trains neither."
import json
import subprocess
import sys

import pytest

heavy = ['torch', 'transformers', 'datasets', 'captum', 'matplotlib', 'matplotlib.pyplot', 'plotly', 'ipywidgets', 'anywidget', 'IPython', 'bertviz']
computing, drawing = heavy[:4], ['matplotlib', 'plotly', 'ipywidgets', 'anywidget']
counts = ('maps words files doors text assets runs names evidence bibliography metrics views sights curves statistics agreement plausibility payload '
          'study bertviz_bridge page cli').split()
draws = 'latex drawing figures charts pictures sight_figures paper tour explorer interactive'.split()
trains = ('data columns signals feed models nets pretraining attention attribution patterns explanations faithfulness rationales corpus antecedents recording '
          'methods training live bench').split()

@pytest.fixture(scope='module')
def brought():
    "{room: what of `heavy` is there after it and those before it in its wing were imported}; each wing in an interpreter of its own, those that count before those that draw"
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
def test_who_draws_needs_no_torch(brought, room): assert not {*computing, 'matplotlib.pyplot'} & set(brought[room])

@pytest.mark.parametrize('room', trains)
def test_who_trains_needs_nothing_that_draws(brought, room): assert not {*drawing, 'IPython', 'salviz.views', 'salviz.figures'} & set(brought[room])

def test_a_public_name_never_turns_into_a_module():
    "Whatever was imported before: a package gets an attribute for each of its modules, and a module `demo` hid the function"
    code = '''
import pkgutil, sys, types
from importlib import import_module
import salviz, salviz.methods
packages = salviz, salviz.methods
for package in packages:
    modules = {m.name for m in pkgutil.iter_modules(package.__path__)}
    print(package.__name__, 'bears', sorted(modules & {*package.__all__}))
    for name in modules: import_module(f'{package.__name__}.{name}')
    for name in package.__all__:
        assert not isinstance(getattr(package, name), types.ModuleType), name
names = {}
exec('from salviz import *', names)
assert all(not isinstance(names[name], types.ModuleType) for name in salviz.__all__)
assert names['demo'] is salviz.demo and callable(salviz.demo)'''
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ['salviz bears []', 'salviz.methods bears []']
