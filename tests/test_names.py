"Names in code are words of the field, and each is exported by one module"
import ast
import re
from pathlib import Path

import pytest

import salviz

package = Path(salviz.__file__).parent
modules = [file for file in sorted(package.rglob('*.py')) if file.name != '_modidx.py']
scripts = [file for file in sorted(package.rglob('*.js')) if 'lib' not in file.parts and '.min.' not in file.name]

# Words of the glossary that must not occur in names, with their replacements (CONTRIBUTING.md)
forbidden = dict(
    said='message', told='documented', made='result', there='existing', given='kwargs, received', own='custom',
    kept='cached, saved', known='names, supported', some='subset', asked='queried, target', room='module, space',
    rooms='modules', door='validation', wing='layer', floor='package', porch='entry point', house='code base',
    kin='similar', serves='supports', share='fraction', shares='fractions', arm='condition', arms='conditions',
    still='static', stills='static images')
allowed = {'floor', 'parse_known_args'} # of other libraries
# Names that are stored in the files of runs, studies and rows, or that lessons and earlier versions use
recorded = {
    'analysis/faithfulness.py': {'shares'}, 'analysis/roar.py': {'share'},
    'course/solutions.py': {'kept', 'share', 'top_share'}, 'figures/sheet.py': {'share'},
    'replication/classifiers.py': {'arms', 'shares'}, 'replication/language.py': {'made'},
    'replication/registry.py': {'arm', 'arms'}, 'replication/series.py': {'made'}, 'studies/study.py': {'known'},
    'views/base.py': {'PatternShares', 'pattern_shares'}}
# Two functions of one name: numpy counterparts of functions on tensors, and what students write in the exercises
counterparts = {'core/maths.py', 'course/solutions.py'}


def words_of(name):
    "Return the words of an identifier in lower case: `shareOfHeads` and `share_of_heads` give share, of, heads"
    return [word.lower() for word in re.findall(r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+', name)]

def names_defined(tree):
    "Yield names that the module binds: variables, attributes, parameters, functions and classes"
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)): yield node.name
        elif isinstance(node, ast.arg): yield node.arg

def names_declared(script):
    "Return names that a script declares: variables, functions, parameters and names of destructured objects"
    script = re.sub(r'//.*|/\*.*?\*/', '', script)
    declared = re.findall(r'\b(?:const|let|var|function|class)\s+([\w$]+)', script)
    for taken in re.findall(r'\b(?:const|let|var)\s*[{\[]([^}\]]*)[}\]]\s*=', script):
        declared += re.findall(r'([\w$]+)\s*(?=,|$|=)', taken)
    for parameters in re.findall(r'\bfunction\s*[\w$]*\(([^)]*)\)|\(([^()]*)\)\s*=>', script):
        declared += re.findall(r'[\w$]+', ' '.join(parameters))
    return declared

def found_in(names):
    return sorted({f'{name} ({forbidden[word]})' for name in names for word in words_of(name)
                   if word in forbidden and name not in allowed})

@pytest.mark.parametrize('file', modules, ids=lambda file: file.relative_to(package).as_posix())
def test_python_names_are_the_words_of_the_field(file):
    stored = recorded.get(file.relative_to(package).as_posix(), set())
    defined = set(names_defined(ast.parse(file.read_text(encoding='utf-8'))))
    assert stored <= defined, 'remove names that are no longer there from `recorded`'
    found = found_in(defined - stored)
    assert not found, f'{", ".join(found)}: see the glossary in CONTRIBUTING.md'

def test_javascript_names_are_the_words_of_the_field():
    found = {file.name: found_in(names_declared(file.read_text(encoding='utf-8'))) for file in scripts}
    assert not any(found.values()), {name: words for name, words in found.items() if words}

def exports(file):
    "Return the names in `__all__` of the module at `file`"
    for node in ast.parse(file.read_text(encoding='utf-8')).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], 'id', '') == '__all__':
            return ast.literal_eval(node.value) if isinstance(node.value, ast.List) else []
    return []

def test_a_name_is_exported_by_one_module():
    "A package may pass on what its modules define"
    homes = {}
    for file in modules:
        path = file.relative_to(package).as_posix()
        if file.name == '__init__.py' or path in counterparts: continue
        for name in exports(file): homes.setdefault(name, []).append(path)
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}

def test_the_words_of_a_name_are_found():
    assert words_of('shareOfHeads') == words_of('share_of_heads') == ['share', 'of', 'heads']
    assert found_in(['known_names', 'knowledge', 'floor', 'shared']) == ['known_names (names, supported)']
    defined = names_defined(ast.parse('def f(given): x.told = 1'))
    assert found_in(defined) == ['given (kwargs, received)', 'told (documented)']
    assert {'kept', 'r', 'said'} <= set(names_declared('const {kept, room: r} = x; function f(said) {}'))
