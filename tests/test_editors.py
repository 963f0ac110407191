"What an editor without a running kernel shows of the public names: completions, signatures, docstrings, types"
import ast
import importlib
import inspect
import json
import os
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import jedi
import pytest

import salviz

root = Path(__file__).resolve().parents[1]
stub = root/'salviz'/'__init__.pyi'

def signature(call):
    "Return what jedi shows after the opening parenthesis of `call`: the signature and the docstring"
    found, = jedi.Script(f'import salviz\nsalviz.{call}(').get_signatures(2, len(f'salviz.{call}('))
    return found.to_string(), found.docstring(raw=True)

def test_the_stub_lists_every_public_name_once_in_the_module_that_exports_it():
    imports = [s for file in (stub, root/'salviz'/'methods'/'__init__.py') for s in ast.parse(file.read_text()).body
               if isinstance(s, ast.ImportFrom) and s.names[0].name != '*']
    names = [name.name for s in imports for name in s.names]
    assert sorted(names) == sorted(set(names)) == sorted(salviz.__all__)
    for s in imports:
        module = f'salviz.{s.module}' if s.level else s.module
        exported = importlib.import_module(module)
        for name in s.names:
            assert name.asname == name.name # `import x as x` exports a name of a stub
            thing = getattr(exported, name.name)
            assert thing.__module__ == module, (name.name, thing.__module__)

def test_names_are_completed():
    found = [c.name for c in jedi.Script('import salviz\nsalviz.tra').complete(2, len('salviz.tra'))]
    assert {'train', 'train_tokenizer', 'Training'} <= {*found}

@pytest.mark.sample(2)
@pytest.mark.parametrize('call, parameters', [
    ('train', ('model', 'tokenizer', 'data', 'method', 'run_dir', 'resume')),
    ('explore', ('model', 'tokenizer', 'texts')), ('ADDrop', ('p', 'q', 'layers')),
    ('figure', ('source', 'kind', 'width'))])
def test_a_call_shows_its_parameters_and_docstring(call, parameters):
    shown, docstring = signature(call)
    assert all(re.search(rf'\b{name}: \S', shown) for name in parameters), shown # with an annotation
    thing = getattr(salviz, call)
    assert docstring and docstring.split('\n')[0] in (thing.__doc__ or '')

@pytest.mark.parametrize('name', salviz.__all__)
def test_help_shows_types_as_editors_do(name):
    thing = getattr(salviz, name)
    assert 'Annotated[' not in pydoc.render_doc(thing)
    shown = str(inspect.signature(thing))
    assert not re.search(r"salviz\.|typing\.|collections\.|: '", shown), shown

# Records of data, whose arguments are the fields that you read later.
records = {'AnswerExplanation', 'Plan', 'Snapshot', 'TokenText'}

def _constructor_arguments(cls):
    return [name for name, p in inspect.signature(cls).parameters.items() if p.kind is not p.VAR_KEYWORD]

def test_constructors_have_at_most_eight_arguments():
    classes = {name: getattr(salviz, name) for name in salviz.__all__ if inspect.isclass(getattr(salviz, name))}
    counts = {name: len(_constructor_arguments(cls)) for name, cls in classes.items()}
    options = {name for name, cls in classes.items() if name.endswith(('Variant', 'Options'))}
    assert {name: n for name, n in counts.items() if n > 8 and name not in records | options} == {}
    assert len(classes) > 25 and {'Study', 'Explorer', 'SalLM', 'ADDrop'} <= classes.keys() - records - options

def test_the_documentation_shows_the_signature_of_help():
    sys.path.insert(0, str(root/'docs'))
    pytest.importorskip('sphinx')
    from conf import readable_types
    for name in ('train', 'figure', 'ADDrop', 'Explorer'):
        thing = getattr(salviz, name)
        what = 'class' if isinstance(thing, type) else 'function'
        arguments, returns = readable_types(None, what, name, inspect.unwrap(thing), None, '()', None)
        assert str(inspect.signature(thing)) == arguments + f' -> {returns}'*(what == 'function')

@pytest.mark.slow
def test_a_type_checker_accepts_the_code_of_readme_and_quickstart(tmp_path):
    readme = re.search(r'^~~~python\n(.*?)^~~~', (root/'README.md').read_text(), re.M | re.S)[1]
    cells = json.loads((root/'nbs'/'quickstart.ipynb').read_text())['cells']
    quickstart = '\n\n'.join(''.join(c['source']) for c in cells if c['cell_type'] == 'code')
    (tmp_path/'readme.py').write_text(readme)
    (tmp_path/'quickstart.py').write_text(quickstart.replace('await training', 'training.wait()')) # as in a script
    checked = subprocess.run([sys.executable, '-m', 'mypy', '--follow-imports=silent', '--ignore-missing-imports',
                              '--cache-dir', str(tmp_path/'cache'), 'readme.py', 'quickstart.py'], cwd=tmp_path,
                             env={**os.environ, 'MYPYPATH': str(root)}, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
