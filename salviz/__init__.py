"Train language models with explanations and see what that does to attention."
# The public names are those that `salviz/__init__.pyi` lists for editors. A name is imported when it is first used:
# `import salviz` costs nothing and does not import torch. Public functions validate their arguments
# (salviz.core.validation), and `help` shows the comments next to their parameters (salviz.core.docstrings).
import ast
from importlib import import_module
from pathlib import Path
from types import FunctionType

__version__ = "0.2.0"

def _public_names(file) -> dict: # {public name: its module}
    "Map each name that the stub `file` re-exports, including through `from .methods import *`, to its module"
    home = {}
    for statement in ast.parse(file.read_text(encoding='utf-8')).body:
        if not isinstance(statement, ast.ImportFrom): continue
        for name in statement.names:
            if name.name == '*':
                home |= dict.fromkeys(_public_names(file.parent/statement.module/'__init__.py'), statement.module)
            elif name.asname: home[name.name] = statement.module
    return home

_home = _public_names(Path(__file__).with_suffix('.pyi'))
__all__ = list(_home)

def __getattr__(name):
    if name not in _home: raise AttributeError(f'module salviz has no attribute {name!r}')
    # here, because `import salviz` needs no other package
    from salviz.core.validation import validated, with_readable_signatures
    thing = getattr(import_module(f'salviz.{_home[name]}'), name)
    if type(thing) is FunctionType: thing = validated(thing)
    return documented(with_readable_signatures(thing))

def __dir__(): return [*globals(), *__all__]

def lazy_attributes(module, home):
    "Return a `__getattr__` for `module` that imports each name in `home`, {name: module}, on first use"
    def load(name):
        if name not in home: raise AttributeError(f'module {module} has no attribute {name!r}')
        return getattr(import_module(f'salviz.{home[name]}'), name)
    return load

def lazy_names(package, **more):
    "Return a `__getattr__` for `package` that imports its public names and the names in `more`, {name: module}"
    within = package.removeprefix('salviz.')
    home = {name: module for name, module in _home.items() if module.startswith(f'{within}.')}
    return lazy_attributes(package, home | {name: f'{within}.{module}' for name, module in more.items()})

from salviz.core.docstrings import documented # noqa: E402, their package calls `lazy_names`
from salviz.core.model_access import provide_model_access # noqa: E402

def _model_source(*args):
    "Return a `ModelSource`; the import is local so that the explorer does not depend on the analysis package"
    from salviz.analysis.model_source import ModelSource
    return ModelSource(*args)

provide_model_access(_model_source)
