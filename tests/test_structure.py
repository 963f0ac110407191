"The library equals the export of the notebooks, the notebooks are clean and run, and README equals its notebook."
import ast
import filecmp
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import forked
import sorted_imports
from outputs import is_slow

root = Path(__file__).resolve().parents[1]
bin = Path(sys.executable).parent
names = sorted(p.relative_to(root/'nbs').as_posix() for p in (root/'nbs').rglob('*.ipynb')
               if '.ipynb_checkpoints' not in p.parts)
documented = [n for n in names if re.match(r'\d\d_\w+/\d\d_', n)]

def files(folder, pattern):
    made = {'.ipynb_checkpoints', '__pycache__', '_modidx.py'} # created by JupyterLab, Python and nbdev
    return {p.relative_to(folder).as_posix() for p in folder.rglob(pattern) if not made & set(p.parts)}

@pytest.fixture(scope='module')
def fresh(tmp_path_factory):
    "Return a copy of the project in which everything that notebooks generate was generated again"
    copy = tmp_path_factory.mktemp('fresh')
    for name in ['nbs', 'settings.ini', 'setup.py', 'pyproject.toml', 'README.md']:
        (shutil.copytree if (root/name).is_dir() else shutil.copy)(root/name, copy/name)
    for file in (root/'salviz').rglob('__*__.py'): # these are not generated
        (copy/file.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy/file.relative_to(root))
    for command in ('nbdev-export', 'nbdev-clean'):
        done = forked.run((bin/command).read_text(), name=command, cwd=copy)
        assert done.returncode == 0, done.stderr[-3000:]
    return copy

def test_imports_are_sorted():
    unsorted = [f'{path.name}: cell {cell["id"]}' for path, _, cell, _ in sorted_imports.unsorted_cells()]
    assert not unsorted, 'run `make notebooks`: ' + ', '.join(unsorted)

@pytest.mark.parametrize('folder,pattern', [('salviz', '*.py'), ('nbs', '*.ipynb')])
def test_library_and_notebooks_agree_and_are_clean(fresh, folder, pattern):
    here, there = root/folder, fresh/folder
    remedy = f'{folder}: run `make notebooks`, and remove modules that have no notebook'
    assert files(here, pattern) == files(there, pattern), remedy
    _, differ, errors = filecmp.cmpfiles(here, there, sorted(files(here, pattern)), shallow=False)
    assert not differ + errors, f'{folder}: edit the notebooks and run `make notebooks`'

def test_readme_is_what_the_index_notebook_says(tmp_path):
    subprocess.run([sys.executable, '-m', 'nbconvert', '--to', 'markdown', '--output-dir', tmp_path, '--output',
                    'README', root/'nbs'/'index.ipynb'], check=True, capture_output=True)
    text = re.sub(r'\]\((images/|[a-z0-9_/]+\.ipynb)', r'](nbs/\1', (tmp_path/'README.md').read_text())
    assert text == (root/'README.md').read_text(), 'run `make readme`'

def test_the_example_in_readme_works(tmp_path):
    code = re.search(r'^~~~python\n(.*?)^~~~', (root/'README.md').read_text(),
                     re.M | re.S)[1].replace('320', '24').replace('160', '16').replace('probes=4', 'probes=1')
    done = forked.run(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path/'discard.pdf').read_bytes()[:4] == b'%PDF' and 'ADDrop' in done.stdout

pages = [pytest.param(f'{n}.ipynb', marks=pytest.mark.slow)
         for n in ('quickstart', '00_learn/gallery', '00_learn/figures_for_a_paper', '00_learn/next_tokens',
                   '00_learn/adapters', '00_learn/vision_transformer', '00_learn/many_machines', '00_learn/own_method',
                   '00_learn/comparison')]

@pytest.mark.parametrize('name', [*documented, *pages])
def test_notebook_runs(name, tmp_path):
    """Run the cells of a notebook as nbdev does, except those marked `#| slow`; assertions must pass, and saved outputs
    must be what the code returns now"""
    said = tmp_path/'said.txt'
    assert forked.notebook(root/'nbs'/name, said, slow=False) == 0, said.read_text()[-6000:]

with_slow_cells = [n for n in documented if any(is_slow(c) for c in json.loads((root/'nbs'/n).read_text())['cells'])]

@pytest.mark.slow
@pytest.mark.parametrize('name', with_slow_cells)
def test_slow_cells_run(name, tmp_path):
    "Run all cells, including the large ones whose behaviour a smaller test of `make test` covers"
    assert forked.notebook(root/'nbs'/name, tmp_path/'said.txt') == 0, (tmp_path/'said.txt').read_text()[-6000:]

@pytest.mark.slow
def test_kept_outputs_that_the_code_does_not_give_any_more_are_named(tmp_path):
    def cell(id, source, *outputs):
        return dict(id=id, cell_type='code', metadata={}, execution_count=None, source=source, outputs=list(outputs))
    def printed(text): return dict(output_type='stream', name='stdout', text=text)
    def result(**data):
        return dict(output_type='execute_result', execution_count=None, metadata={},
                    data={k.replace('_', '/'): v for k, v in data.items()})
    picture = "class P:\n    def _repr_png_(self): return b'png'\n    def __repr__(self): return 'a picture'\nP()"
    cells = [cell('same', "print('accuracy', .4119)", printed('accuracy 0.4120\n')), # a number may differ in its digits
             cell('words', "print('now')", printed('then\n')),
             cell('fewer', "print(1)", printed('1 2\n')),
             cell('gone', 'x = 1', result(text_plain='1')),
             cell('new', 'x'),
             cell('lost', picture, result(text_plain='a picture')), # its picture is missing
             cell('drawn', picture, result(text_plain='another repr', image_png='AAAA'))]
    notebook = dict(cells=cells, metadata=dict(kernelspec=dict(name='python3', language='python', display_name='p')),
                    nbformat=4, nbformat_minor=5)
    (tmp_path/'00_a.ipynb').write_text(json.dumps(notebook))
    assert forked.notebook(tmp_path/'00_a.ipynb', tmp_path/'said.txt') == 1
    named = re.findall(r'below cell (\w+) is stale', (tmp_path/'said.txt').read_text())
    assert named == ['words', 'fewer', 'gone', 'new', 'lost']
    done = forked.run('import sys, outputs; sys.exit(outputs.keep(sys.argv[1]))', tmp_path/'00_a.ipynb')
    assert done.returncode == 0, done.stderr[-2000:]
    assert forked.notebook(tmp_path/'00_a.ipynb', tmp_path/'said.txt') == 0, (tmp_path/'said.txt').read_text()

def test_no_two_notebooks_of_a_folder_have_one_number():
    numbers = [name[:name.index('/') + 3] for name in documented if re.search(r'/\d\d_', name)]
    assert sorted({n for n in numbers if numbers.count(n) > 1}) == []

@pytest.mark.parametrize('name', documented)
def test_notebook_explains(name):
    """There is prose for at least every third block of code and a check for at least every third exported block, and no
    cell is a pasted module. A block is up to 40 lines of adjacent exported cells, or one other code cell"""
    cells = json.loads((root/'nbs'/name).read_text())['cells']
    source = lambda c: ''.join(c['source'])
    code = [c for c in cells if c['cell_type'] == 'code' and source(c).strip()]
    is_exported = [c['cell_type'] == 'code' and bool(re.search(r'^#\|\s*export', source(c), re.M)) for c in cells]
    exported = [source(c) for c, is_one in zip(cells, is_exported) if is_one]
    runs = [list(run) for is_one, run in itertools.groupby(zip(is_exported, cells), key=lambda x: x[0]) if is_one]
    blocks = sum(math.ceil(sum(len(source(c).splitlines()) - 1 for _, c in run)/40) for run in runs)
    checks = sum(bool(re.search(r'\bassert\b|test_eq|test_close|expect_fail', source(c))) for c in code)
    prose = [c for c in cells if c['cell_type'] == 'markdown']
    assert max(len(s.splitlines()) for s in exported) <= 60
    assert len(prose) * 3 >= len(code) - len(exported) + blocks and checks * 3 >= blocks
    assert not any(o.get('output_type') == 'error' for c in code for o in c['outputs'])

@pytest.mark.parametrize('folder', ['nbs', 'salviz', 'tests', 'docs'])
def test_lines_can_be_scanned(folder):
    "At most 120 characters; rows of tables cannot be broken"
    long = []
    for file in sorted((root/folder).rglob('*')):
        if {'.ipynb_checkpoints', '__pycache__', '_modidx.py'} & set(file.parts): continue
        if file.suffix == '.ipynb':
            sources = [''.join(c['source']) for c in json.loads(file.read_text())['cells']]
        elif file.suffix == '.py' and folder == 'salviz': # without the header of nbdev
            sources = [file.read_text().partition('\n# %% ../')[2] or file.read_text()]
        elif file.suffix in ('.py', '.js', '.css'): sources = [file.read_text()]
        else: continue
        lines = [line for source in sources for line in source.splitlines()]
        long += [f'{file.relative_to(root)}: {line.strip()[:60]}…' for line in lines
                 if len(line) > 120 and not line.startswith('|')]
    assert not long, '\n'.join(long)

def test_no_message_is_broken_before_a_fragment():
    "No piece of an implicitly joined string that has a line of its own is shorter than ten characters"
    piece, fragments = re.compile(r"""\s*f?(['"])((?:[^'"\\]|\\.)*)\1[,)\]}]*"""), []
    for file in sorted((root/'salviz').rglob('*.py')):
        lines = file.read_text().splitlines()
        for i, (before, line) in enumerate(zip(lines, lines[1:]), 2):
            alone = piece.fullmatch(line)
            joined = re.search(r""" ['"]$""", before) # the piece before it ends with a space
            if alone and joined and len(alone[2]) < 10:
                fragments.append(f'{file.relative_to(root)}:{i}: {line.strip()}')
    assert not fragments, '\n'.join(fragments)

def _parameters_below_a_comment(lines, function):
    "Return the numbers of lines with a parameter of `function`, below a comment of one line"
    parameters = [*function.args.args, *function.args.kwonlyargs]
    numbers = [p.lineno - 1 for p in parameters if p.lineno > function.lineno + 1]
    def is_comment(number): return lines[number].lstrip().startswith('#')
    return [n for n in numbers if is_comment(n - 1) and not is_comment(n - 2)]

def test_a_comment_stands_behind_its_parameter_if_it_fits():
    wrong = []
    for file in sorted((root/'salviz').rglob('*.py')):
        lines = file.read_text().splitlines()
        for function in ast.walk(ast.parse('\n'.join(lines))):
            if not isinstance(function, ast.FunctionDef): continue
            for n in _parameters_below_a_comment(lines, function):
                has_room = len(f'{lines[n]} {lines[n - 1].strip()}') <= 120
                if lines[n].endswith(',') and has_room: wrong.append(f'{file.relative_to(root)}:{n}')
    assert not wrong

def test_imports_of_several_lines_are_aligned():
    wrong = []
    for file in sorted((root/'salviz').rglob('*.py')):
        lines = file.read_text().splitlines()
        for node in ast.walk(ast.parse('\n'.join(lines))):
            if not isinstance(node, ast.ImportFrom) or node.end_lineno == node.lineno: continue
            first = lines[node.lineno - 1]
            indent = node.col_offset + 4 if first.endswith('(') else first.index('(') + 1
            starts = {len(line) - len(line.lstrip()) for line in lines[node.lineno:node.end_lineno]}
            if starts != {indent}: wrong.append(f'{file.relative_to(root)}:{node.lineno}')
    assert not wrong

def test_kept_outputs_teach_and_are_small():
    "No progress bars, warnings or paths of the machine on which a notebook was saved"
    for name in names:
        for c in json.loads((root/'nbs'/name).read_text())['cells']:
            outputs = c.get('outputs', [])
            assert len(json.dumps(outputs)) < 400_000 and not any(o.get('name') == 'stderr' for o in outputs), name
            assert str(root) not in json.dumps(outputs) and 'site-packages' not in json.dumps(outputs), name
