"help() shows the comments next to parameters."
import inspect
import pydoc

import pytest

import salviz
from salviz.core.docstrings import comments_of

def shown(name):
    "Return the output of help without the inherited members of a class"
    thing = getattr(salviz, name)
    return inspect.getdoc(thing) if inspect.isclass(thing) else pydoc.plain(pydoc.render_doc(thing))

@pytest.mark.parametrize('name, says', [
    ('explain', ['target: \'predicted\', \'gold\', \'each\', a class', 'options: options of the method',
                 '[batch, height, width]', "Example: `explain(model, 'a truly moving film'"]),
    ('explore', ['position: token whose output is explained',
                 '[layers, heads, query, key]', 'Example: `explore()`', '`explore(model, tokenizer, ']),
    ('Explorer', ['compare: another run, to compare with', '[layers, heads, query, key]', "Example: `Explorer('runs/"]),
    ('train', ['early_stopping: stop after this number of evaluations', 'seed: seed of data order, dropout']),
    ('start_training', ['early_stopping: stop after this number of evaluations']), # what it passes on to train
    ('ADDrop', ['p: fraction of each row that may be dropped']),
    ('Snapshot', ['is_special: bool [n]; default: tokens without a word'])])
def test_help_shows_parameters_shapes_and_an_example(name, says):
    for message in says: assert message in shown(name), message
    assert shown(name).count('Parameters\n') == 1 # a second call adds nothing

@pytest.mark.parametrize('name', ['explain', 'explore', 'Explorer', 'train'])
def test_help_documents_existing_and_nearly_all_parameters(name):
    thing = getattr(salviz, name)
    taken, message = {*inspect.signature(thing).parameters}, {*comments_of(thing)} - {'return'}
    assert message <= taken and len(taken - message) <= 1
