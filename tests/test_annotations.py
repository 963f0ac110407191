"""What an editor can read about the public names without importing them: the annotations of every parameter and return
value. `python tests/test_annotations.py` prints what is missing."""
import ast
from functools import cache
from pathlib import Path

import salviz

package = Path(__file__).resolve().parents[1]/'salviz'
called = {'__init__', '__call__'} # the names with underscores that are public too
still_open = ['Term'] # namedtuples, whose fields have no types
functions = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def module(name):
    "Return the syntax tree of `name`, a module of salviz such as `core.runs`"
    path = package.joinpath(*name.split('.'))
    path = path/'__init__.py' if path.is_dir() else path.with_suffix('.py')
    return ast.parse(path.read_text(encoding='utf-8'))


def imported(statement, within): # the module of salviz from which `statement` imports names, or None
    if not isinstance(statement, ast.ImportFrom): return None
    source = statement.module or ''
    if not statement.level: return source.removeprefix('salviz.') if source.startswith('salviz.') else None
    parts = within.split('.')
    is_package = (package/Path(*parts)).is_dir()
    above = parts[:len(parts) - statement.level + is_package]
    return '.'.join([*above, *([source] if source else [])])


def home_of(name, within):
    """Return (the module that defines `name`, its syntax tree), from the definitions and imports of the module
    `within`; or None"""
    for node in ast.walk(module(within)):
        if isinstance(node, (*functions, ast.ClassDef)) and node.name == name and node in module(within).body:
            return within, node
        source = imported(node, within)
        if source is None: continue
        for taken in node.names:
            if (taken.asname or taken.name) == name: return home_of(taken.name, source)
    return None


def name_of(node): # the name in a decorator, base or annotation
    if isinstance(node, ast.Call): return name_of(node.func)
    return getattr(node, 'id', getattr(node, 'value', None))


def patches_of(cls):
    "Yield the functions that are added to the class named `cls`, with their modules"
    for path in sorted(package.rglob('*.py')):
        if '@patch' not in path.read_text(encoding='utf-8'): continue
        within = '.'.join(path.relative_to(package).with_suffix('').parts)
        for node in module(within).body:
            if not isinstance(node, functions) or 'patch' not in map(name_of, node.decorator_list): continue
            if name_of(node.args.args[0].annotation) == cls: yield within, node


def callables_of(name, within):
    "Yield (title, syntax tree, is it a method?) of the callables that users of `name` in the module `within` can call"
    found = home_of(name, within)
    if found is None: return
    within, node = found
    if isinstance(node, functions):
        yield f'{within}.{name}', node, False
        for decorator in node.decorator_list: # a function with the parameters of another one has its annotations
            if name_of(decorator) == 'delegates' and isinstance(decorator, ast.Call) and decorator.args:
                yield from callables_of(name_of(decorator.args[0]), within)
        return
    own = [(within, child) for child in node.body if isinstance(child, functions)]
    for at, child in [*own, *patches_of(name)]:
        if child.name in called or not child.name.startswith('_'): yield f'{at}.{name}.{child.name}', child, True
    for base in node.bases: yield from callables_of(name_of(base), within)


def public_names():
    "Return (name, its module) of each name in the stub"
    return [(name, salviz._home[name]) for name in salviz.__all__]


def public():
    "Return {title: (syntax tree, is it a method?)} of the public functions and methods"
    return {title: (node, method) for name, source in public_names()
            for title, node, method in callables_of(name, source)}


def open_places(node, method):
    "Return (number of annotations of the function `node`, its parameters without one, including 'return')"
    static = 'staticmethod' in map(name_of, node.decorator_list)
    taken = [*node.args.posonlyargs, *node.args.args][method and not static:] + node.args.kwonlyargs
    given = {x.arg: x.annotation for x in taken}
    if node.name != '__init__': given['return'] = node.returns
    return sum(x is not None for x in given.values()), [name for name, x in given.items() if x is None]


def test_every_public_parameter_and_return_is_annotated():
    assert [name for name, source in public_names() if home_of(name, source) is None] == still_open
    missing = {title: places for title, (node, method) in public().items() if (places := open_places(node, method)[1])}
    assert not missing, '\n'.join(f'{title}: {", ".join(places)}' for title, places in missing.items())


def test_annotations_of_parameters_with_the_default_none_allow_none():
    wrong = []
    for path in sorted(package.rglob('*.py')):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if not isinstance(node, functions): continue
            a, after = node.args, len(node.args.args) - len(node.args.defaults)
            for x, default in [*zip(a.args[after:], a.defaults), *zip(a.kwonlyargs, a.kw_defaults)]:
                if x.annotation is None or not isinstance(default, ast.Constant) or default.value is not None: continue
                written = ast.unparse(x.annotation)
                if 'None' not in written and written not in ('object', 'Any'):
                    wrong.append(f'{path.relative_to(package)}, {node.name}: {x.arg}:{written}')
    assert not wrong, wrong


if __name__ == '__main__':
    counts = {title: open_places(*found) for title, found in public().items()}
    for title, (_, places) in counts.items():
        if places: print(f'{title}: {", ".join(places)}')
    annotated = sum(n for n, _ in counts.values())
    total = annotated + sum(len(places) for _, places in counts.values())
    print(f'{annotated} of {total} annotated, {annotated/total:.1%}, in {len(counts)} functions')
