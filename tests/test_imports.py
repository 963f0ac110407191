"""What importing a module loads: modules for viewing do not load torch, modules for counting load nothing that draws,
and modules for training load neither views nor figures."""
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

def modules_of(*packages): # their modules, as `package.module`
    return [f'{name}.{p.stem}' for name in packages for p in sorted((package/name).glob('*.py'))
            if p.stem != '__init__']

looks = modules_of('figures', 'explorer')
counts = [*modules_of('core', 'metrics', 'views', 'replication'), 'training.settings', 'training.control',
          *(module for module in modules_of('studies') if module != 'studies.trade_off'), 'cli',
          *(f'explorer.{module}' for module in ('assets', 'quantisation', 'payload', 'page_compression', 'run_metadata',
                                                'page', 'transfer', 'notebook_cleanup', 'bertviz'))]
draws = [*(module for module in looks if module not in counts), 'tour', 'model_explorer', *modules_of('course')]
computes = modules_of('data', 'models', 'attribution', 'methods', 'training', 'studies', 'analysis')
trains = [*(module for module in computes if module not in counts), *modules_of('benchmarks')]

# One interpreter imports everything, without a network: modules that count and draw in a forked process, then modules
# that train, and at the end all others in the interpreter itself.
importing = '''
import importlib, json, os, pkgutil, socket, sys, types
def refuse(*args, **kwargs): raise OSError('an import reached for the network')
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
heavy, counts, draws, trains = json.loads(sys.argv[1])
import salviz
found = {'__init__': [k for k in heavy if k in sys.modules]}
def imported(modules):
    for module in modules:
        importlib.import_module(f'salviz.{module}')
        found[module] = [k for k in [*heavy, 'salviz.views', 'salviz.figures'] if k in sys.modules]
imported(['studies.engines'])
found['engines alone'] = found.pop('studies.engines')
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
    "Return the output of `importing`"
    done = subprocess.run([sys.executable, '-c', importing, json.dumps([heavy, counts, draws, trains])],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])

@pytest.fixture(scope='module')
def brought(imports):
    "Return {module: which of `heavy` are loaded after importing it and those before it}"
    return imports['found']

@pytest.mark.parametrize('module', ['__init__', *counts])
def test_who_counts_needs_neither_torch_nor_what_draws(brought, module): assert not set(brought[module]) & set(heavy)

@pytest.mark.parametrize('module', draws)
def test_who_draws_needs_neither_torch_nor_what_scores(brought, module):
    assert not {*computing, *scoring, 'matplotlib.pyplot'} & set(brought[module])

@pytest.mark.parametrize('module', trains)
def test_who_trains_needs_nothing_that_draws(brought, module):
    assert not {*drawing, 'IPython', 'salviz.views', 'salviz.figures'} & set(brought[module])

def test_who_collects_the_runs_of_a_study_needs_no_torch(brought):
    assert not {'torch', 'transformers'} & set(brought['engines alone'])

# The packages and modules of salviz in order of dependence: each may import the packages of its list besides itself,
# whether at the top of a module, inside a function or by `import_module`.
below = dict(core=[], metrics=['core'], data=['core', 'metrics'], models=['core', 'metrics', 'data'])
below['attribution'] = [*below['models'], 'models']
below['methods'] = [*below['attribution'], 'attribution']
below['training'] = below['analysis'] = [*below['methods'], 'methods']
below['studies'] = [*below['training'], 'training']
below['views'] = ['core', 'metrics']
below['figures'] = [*below['views'], 'views']
below['explorer'] = [*below['figures'], 'figures']
below['course'] = below['replication'] = below['benchmarks'] = [*below['studies'], 'studies', 'analysis',
                                                                *below['explorer'], 'explorer']
# Modules above all packages. `model_explorer` joins `analysis`, which computes, to the explorer, which shows the
# results; for custom sentences, `salviz/__init__.py` does so, see `core.model_access`.
above = {'tour', 'model_explorer', 'cli', '__main__'}

def _is_type_checking(node): return isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING'

def _named_modules(node, package_of):
    "Return modules that the statement or call `node` imports, as written from the top: salviz.core.runs.Run"
    if isinstance(node, ast.ImportFrom):
        base = [*package_of(node.level), *filter(None, [node.module])] if node.level else [node.module]
        return ['.'.join([*base, a.name]) for a in node.names]
    if isinstance(node, ast.Import): return [a.name for a in node.names]
    is_call = isinstance(node, ast.Call) and ast.unparse(node.func).split('.')[-1] in ('import_module', '__import__')
    if is_call and node.args and isinstance(node.args[0], ast.Constant): return [node.args[0].value]
    return []

def imported(file):
    """Return the modules of salviz that `file` imports anywhere, as `package.module`; `if TYPE_CHECKING:` blocks, which
    never run, are left out"""
    parents = ['salviz', *file.relative_to(package).with_suffix('').parts]
    tree = ast.parse(file.read_text())
    tree.body = [x for x in tree.body if not _is_type_checking(x)]
    found = [name for node in ast.walk(tree) for name in _named_modules(node, lambda level: parents[:-level])]
    return {'.'.join(name.split('.')[1:3]) for name in found if name.startswith('salviz.')}

def test_the_order_names_every_package_of_the_library():
    assert {p.parent.name for p in package.glob('*/__init__.py')} == set(below)

@pytest.mark.parametrize('name', below)
def test_a_package_imports_only_packages_below_it(name):
    wrong = {(module, other) for module in modules_of(name)
             for other in imported(package/f'{module.replace(".", "/")}.py')
             if other.split('.')[0] in below and other.split('.')[0] not in (name, *below[name])}
    assert not wrong, f'{name} may import {", ".join(below[name]) or "no other package"}'

def test_no_package_imports_a_module_above_all_packages():
    found = {(module, other) for name in below for module in modules_of(name)
             for other in imported(package/f'{module.replace(".", "/")}.py') if other.split('.')[0] in above}
    assert not found

def _reached_from(name, imports):
    "Return all modules that importing the module `name` loads, within `imports` {module: modules}"
    reached, waiting = set(), [name]
    while waiting:
        for other in imports.get(waiting.pop(), ()):
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return reached

@pytest.mark.parametrize('name', ['training', 'studies'])
def test_the_modules_of_training_and_studies_import_each_other_in_one_direction(name):
    imports = {module: imported(package/f'{module.replace(".", "/")}.py') for module in modules_of(name)}
    assert not [module for module in imports if module in _reached_from(module, imports)]

def test_the_packages_import_each_other_in_one_direction():
    "No chain of imports leads from a package back to itself"
    imports = {name: {other.split('.')[0] for module in modules_of(name)
                      for other in imported(package/f'{module.replace(".", "/")}.py')} - {name} for name in below}
    assert not [name for name in below if name in _reached_from(name, imports)]

def test_a_public_name_never_turns_into_a_module(imports):
    """In any order of imports: a package gets an attribute for each of its modules, and a module `demo` would hide the
    function"""
    assert imports['shadowed'] == imports['hidden'] == [] and imports['demo']
    assert imports['homes'] == ['salviz.training.trainer', 'salviz.explorer.widget', 'salviz.data.texts']
