"The eight lessons as they are: run whole for who teaches, and for who learns until the first check."
import contextlib
from pathlib import Path

import pytest

from salviz.course import session
from salviz.course.editions import cell_tag, cell_text, course_fact, edition_of, lesson_files, read_lesson
from salviz.course.handout import no_network, rehearse_lesson
from salviz.course.pages import run_cell

sources = Path(__file__).resolve().parents[2]/'nbs'/'00_lessons'
lessons = [path for path in lesson_files(sources) if path.stem[0] in '12345678']

@pytest.fixture(autouse=True)
def alone(monkeypatch): monkeypatch.setattr(session, 'entries', {})

def test_there_are_eight_of_them(): assert [path.stem[0] for path in lessons] == [*'12345678']

which = [pytest.param(path, marks=pytest.mark.slow) if path.stem[0] in '567' else path # which train longest
         for path in lessons]

@pytest.mark.parametrize('path', which, ids=lambda path: path.stem)
def test_a_lesson_runs_whole_without_network_and_its_checks_find_its_solutions_right(path):
    with no_network(): line = rehearse_lesson(path)
    assert ' checks right' in line and '0 checks' not in line

@pytest.mark.parametrize('path', lessons, ids=lambda path: path.stem)
def test_what_students_have_fails_in_its_checks_only(path, tmp_path):
    given, shared, verdicts = edition_of(read_lesson(path), 'student', course_fact), {'__name__': '__main__'}, []
    trains = {cell.id for cell in read_lesson(path).cells if cell_tag(cell) == 'train'}
    with contextlib.chdir(tmp_path):
        for cell in given.cells:
            if cell.cell_type != 'code' or cell.id in trains: continue
            shown = run_cell(cell_text(cell), shared, cell.id)
            verdicts += [thing for thing in shown if hasattr(thing, 'passed')]
    assert verdicts and not any(verdict.passed for verdict in verdicts)
