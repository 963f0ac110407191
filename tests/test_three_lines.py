"The notebook three_lines needs at most three lines of salviz in each of its situations"
import ast
import json
from pathlib import Path

import pytest

import salviz

path = Path(__file__).resolve().parents[1]/'nbs'/'00_learn'/'three_lines.ipynb'

def situations():
    "{heading: code below it}"
    found, heading = {}, None
    for cell in json.loads(path.read_text())['cells']:
        source = ''.join(cell['source'])
        if cell['cell_type'] == 'markdown' and source.startswith('## '): heading = source.split('\n')[0][3:]
        elif cell['cell_type'] == 'code' and heading: found[heading] = found.get(heading, '') + source + '\n'
    return found

def lines_of_salviz(code):
    "Numbers of the lines that use a public name of salviz, or a variable that such a line assigns"
    names, lines = {*salviz.__all__}, set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Assign) and any(isinstance(x, ast.Name) and x.id in names for x in ast.walk(node.value)):
            names |= {x.id for target in node.targets for x in ast.walk(target) if isinstance(x, ast.Name)} - {'trainer'}
        if isinstance(node, ast.With): names |= {item.optional_vars.id for item in node.items if item.optional_vars}
    return {node.lineno for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name) and node.id in names}

def test_the_notebook_has_the_four_situations():
    assert [*situations()] == ['You have a Trainer', 'You have a training loop', 'You have a list of tensors',
                               'You have an unfinished figure']

@pytest.mark.parametrize('heading', situations())
def test_a_situation_needs_at_most_three_lines_and_has_a_picture(heading):
    code = situations()[heading]
    marked = {i for i, line in enumerate(code.split('\n'), 1) if line.endswith('# salviz')}
    assert marked == lines_of_salviz(code) and 1 <= len(marked) <= 3
