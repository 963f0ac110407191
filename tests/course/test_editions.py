"""Editions: students receive no solution, a number that differs from its fact is not built, and the package ships the
sources."""
import ast
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import lessons
from salviz.course.editions import (_lessons_folder, _loose_numbers, _with_numbers, _without_outputs, cell_text,
                                    edition_of, lesson_faults, lesson_files, read_lesson, ship_lessons, write_editions)

root = Path(__file__).resolve().parents[2]
sources = root/'nbs'/'00_lessons'
lesson_paths = sorted(sources.glob('*.ipynb'))

def text_of(notebook): return '\n'.join(cell_text(cell) for cell in notebook.cells)

def test_the_stand_in_has_no_faults():
    assert lesson_faults(lessons.lesson(), lessons.facts) == []

@pytest.mark.parametrize('edition', ['student', 'page'])
def test_no_line_of_a_solution_reaches_students(edition):
    source = lessons.lesson()
    shown = text_of(edition_of(source, edition, lessons.facts))
    stub = next(cell_text(cell) for cell in source.cells if cell.metadata.get('tags') == ['stub'])
    apart = ['solution'], ['teacher'], ['facts']
    hidden = [line.strip() for cell in source.cells if cell.metadata.get('tags') in apart
              for line in cell_text(cell).splitlines()]
    assert [line for line in hidden if len(line) > 12 and line in shown and line not in stub] == []
    assert 'taken off first' not in shown and 'Misconceptions' not in shown and 'Expected' not in shown
    assert '<!--' not in shown

def test_an_edition_has_no_outputs_and_no_tags():
    source = lessons.lesson()
    source.cells[2].outputs = [nbformat.v4.new_output('stream', text='secret')]
    for edition in ('student', 'teacher'):
        edited = edition_of(source, edition, lessons.facts)
        nbformat.validate(edited)
        assert 'secret' not in nbformat.writes(edited)
        assert all(set(cell.metadata) <= {'jupyter'} and not cell.get('outputs') for cell in edited.cells)
    assert source.cells[2].outputs, 'the source is left as it was'

def test_code_with_true_answers_or_pictures_is_folded():
    for edition in ('student', 'teacher'):
        for cell in edition_of(lessons.lesson(), edition, lessons.facts).cells:
            hides = cell.cell_type == 'code' and re.search(r'\b(Predict|Reveal|Bars)\(', cell_text(cell))
            assert bool(hides) == (cell.metadata.get('jupyter') == {'source_hidden': True}), cell_text(cell)

def test_students_cells_run_until_the_check_and_teachers_cells_run_whole():
    source = lessons.lesson()
    for edition, right in (('student', False), ('teacher', True)):
        names, verdicts = {}, []
        for cell in edition_of(source, edition, lessons.facts).cells:
            if cell.cell_type != 'code' or 'Predict' in cell_text(cell) or 'Reveal' in cell_text(cell): continue
            if 'answers(' in cell_text(cell): continue
            exec(cell_text(cell), names)
            if 'Verdict' in names: verdicts.append(names['Verdict'].passed)
        assert set(verdicts) == {right}

def test_teachers_read_solutions_and_what_is_theirs_behind_a_fold():
    cells = edition_of(lessons.lesson(), 'teacher', lessons.facts).cells
    folded = [cell_text(cell) for cell in cells if cell_text(cell).startswith('<details>')]
    assert [re.match('<details><summary>(.*?)</summary>', text)[1] for text in folded] == [
        'For the teacher', 'For the teacher', 'Solution']
    assert all(text.endswith('\n\n</details>') for text in folded) and '## For the teacher' not in folded[0]
    assert not any('# yours' in cell_text(cell) for cell in cells)

@pytest.mark.parametrize('prose', ['.88<!--1.share-->', '1.87<!--1.share-->', '-.87<!--1.share-->',
                                   '.87 <!--1.share-->', '.870<!--1.share-->', '<!--1.share-->'])
def test_a_number_that_is_not_its_fact_is_not_built(prose):
    wrong = lessons.lesson(changed={10: f'The accuracy is {prose}.'})
    for edition in ('student', 'teacher', 'page'):
        with pytest.raises(ValueError, match='cell cell-10: fact 1.share is .87, but the text contains'):
            edition_of(wrong, edition, lessons.facts)

def test_an_unknown_fact_is_named(tmp_path):
    folder = lessons.written(tmp_path/'lessons', changed={10: 'It is .87<!--1.shar-->.'})
    with pytest.raises(ValueError, match='lesson 1_row: cell cell-10: 1.shar'):
        write_editions(tmp_path, lessons=folder, fact=lessons.facts)
    assert [path.name for path in tmp_path.iterdir()] == ['lessons'], 'nothing is written before all is right'

def test_numbers_with_words_signs_and_bold_are_checked():
    facts = dict(a='11 of 12', b='-3.24', c='negative .84').get
    assert _with_numbers('**11 of 12<!--a-->**, (-3.24<!--b-->) and negative .84<!-- c -->', facts) == (
        '**11 of 12**, (-3.24) and negative .84')

@pytest.mark.parametrize('text,loose', [
    ('The share is .56.', ['.56']), ('A gain of 12 % and of 3.5%', ['12', '3.5']), ('from -3 to -.5', ['-3', '-.5']),
    ('lesson 3, 12 heads, 2-5, 2026-01-01', []), ('`p=.3` and $q = .5$\n\n```\n.7\n```', []),
    ('[a](https://a.b/1.5)', []), ('.56<!--1.a--> of them', [])])
def test_a_measured_number_without_a_fact_is_loose(text, loose): assert _loose_numbers(text) == loose

@pytest.mark.parametrize('changed,more,words', [
    ({0: '# 1 A title'}, (), 'must contain a line such as'),
    ({0: '## No title'}, (), 'must start with `# `'),
    ({1: lessons.plan.replace('| 15 |', '| 14 |')}, (), 'the minute plan adds up to 19 minutes, but the header has 20'),
    ({1: lessons.plan.replace('### Misconceptions', '### Errors')}, (), 'no teacher cell contains ### Misconceptions'),
    ({4: "Predict('2.words', 'Which?', words('a b'))"}, (), 'must start with 1., got 2.words'),
    ({8: "Reveal('1.word', lambda: 'a')"}, (), 'Reveal names 1.word, but no cell above predicts it'),
    ({8: 'None'}, (), '1.words is predicted but never revealed'),
    ({10: 'It is .5.'}, (), 'cell cell-10: .5 has no fact'),
    ({18: '#### Deep'}, (), 'a heading of level 4 below level 2'),
    ({18: '# Another'}, (), 'a second title'),
    ({19: lessons.recall.replace('5. ', '6. ')}, (), 'Five questions to recall'),
    ({18: 'Hint: `weights = np.exp(scores - np.max(scores))`'}, (), 'the student edition contains a line'),
    ({}, [('code', 'def f(): pass', 'stub')], 'the cell after a stub must be its solution'),
    ({}, [('code', 'x = 1', 'answer')], 'at most one of the tags')])
def test_faults_of_a_lesson_are_listed(changed, more, words):
    faults = lesson_faults(lessons.lesson(changed, more), lessons.facts)
    assert any(words in fault for fault in faults), faults

def test_a_page_for_teachers_only_has_no_students_edition(tmp_path):
    folder = lessons.written(tmp_path/'lessons')
    everybodys = ['0_transformers', '1_row']
    for edition, names in (('student', everybodys), ('teacher', ['0_for_teachers', *everybodys])):
        (out := tmp_path/edition).mkdir()
        assert [path.stem for path in write_editions(out, edition, folder, lessons.facts)] == names
    assert '<details>' not in text_of(read_lesson(tmp_path/'teacher'/'0_for_teachers.ipynb'))

def test_lessons_come_in_the_order_of_their_numbers(tmp_path):
    for name in ('10_a', '2_b', '0_c'): nbformat.write(lessons.lesson(), tmp_path/f'{name}.ipynb')
    (tmp_path/'notes.ipynb').write_text('no lesson')
    assert [path.stem for path in lesson_files(tmp_path)] == ['0_c', '2_b', '10_a']

def test_what_is_shipped_has_no_outputs_and_nothing_that_has_no_source(tmp_path):
    folder, shipped = lessons.written(tmp_path/'lessons'), tmp_path/'shipped'
    source = read_lesson(folder/'1_row.ipynb')
    source.cells[2].outputs = [nbformat.v4.new_output('stream', text='secret')]
    nbformat.write(source, folder/'1_row.ipynb')
    shipped.mkdir()
    (shipped/'9_gone.ipynb').write_text('{}')
    ship_lessons(folder, shipped)
    assert sorted(path.name for path in shipped.iterdir()) == sorted(path.name for path in folder.iterdir())
    assert 'secret' not in (shipped/'1_row.ipynb').read_text()
    assert [cell_text(c) for c in read_lesson(shipped/'1_row.ipynb').cells] == [cell_text(c) for c in source.cells]

def test_the_package_ships_the_lessons_of_the_sources():
    "`make course` writes them"
    shipped = {path.name: path.read_text(encoding='utf-8') for path in _lessons_folder().glob('*.ipynb')}
    assert shipped == {path.name: _without_outputs(read_lesson(path)) for path in lesson_paths}, 'run `make course`'

@pytest.mark.parametrize('path', lesson_paths, ids=[path.stem for path in lesson_paths])
def test_a_lesson_is_as_lessons_are_written(path):
    source = read_lesson(path)
    assert lesson_faults(source) == []
    for cell in source.cells:
        if cell.cell_type == 'code': ast.parse(cell_text(cell))

@pytest.mark.slow
def test_the_course_is_written_without_torch(tmp_path):
    code = '''
import sys, pathlib
sys.path.insert(0, 'tests')
import lessons
from salviz.course.editions import write_editions
from salviz.course.pages import write_pages
import salviz.course.handout, salviz.course.grading
out = pathlib.Path(sys.argv[1])
folder = lessons.written(out/'lessons')
write_editions(out, lessons=folder, fact=lessons.facts)
write_pages(out, lessons=folder, fact=lessons.facts, say=lambda line: None)
print([name for name in ('torch', 'transformers', 'datasets', 'matplotlib.pyplot') if name in sys.modules])'''
    done = subprocess.run([sys.executable, '-c', code, tmp_path], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == '[]'
