"The notebook three_lines needs at most three lines of salviz in each situation"
import ast
import json
from pathlib import Path

import pytest

import salviz

path = Path(__file__).resolve().parents[1]/'nbs'/'00_learn'/'three_lines.ipynb'

def situations():
    "Return {heading: the code cell below it}"
    found, heading = {}, None
    for cell in json.loads(path.read_text())['cells']:
        source = ''.join(cell['source'])
        if source.startswith('## '): heading = source.split('\n')[0][3:]
        elif cell['cell_type'] == 'code' and heading: found[heading] = cell
    return found

def lines_of_salviz(code):
    "Return the numbers of the lines that use a public name of salviz or a watcher"
    names = {*salviz.__all__, 'watcher'}
    return {node.lineno for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name) and node.id in names}

def test_the_notebook_has_the_four_situations():
    assert [*situations()] == ['You have a Trainer', 'You have a training loop', 'You have a list of tensors',
                               'You have an unfinished figure']

@pytest.mark.parametrize('heading', situations())
def test_a_situation_needs_at_most_three_lines_and_has_a_picture(heading):
    cell = situations()[heading]
    code = ''.join(cell['source'])
    assert any('image/png' in output.get('data', {}) for output in cell['outputs'])
    marked = {i for i, line in enumerate(code.split('\n'), 1) if line.endswith('# salviz')}
    assert marked == lines_of_salviz(code) and 1 <= len(marked) <= 3
