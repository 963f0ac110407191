"The eight lessons as they are: run whole for who teaches, and for who learns until the first check."
import contextlib
from pathlib import Path

import pytest

from salviz.course import predictions
from salviz.course.editions import cell_tag, cell_text, course_fact, edition_of, lesson_files, read_lesson
from salviz.course.handout import _no_network, _rehearse_lesson
from salviz.course.pages import run_cell
from salviz.course.predictions import Reveal
from test_predictions import fresh # noqa: F401, a fixture

sources = Path(__file__).resolve().parents[2]/'nbs'/'00_lessons'
lessons = [path for path in lesson_files(sources) if path.stem[0] in '12345678']

def test_there_are_eight_of_them(): assert [path.stem[0] for path in lessons] == [*'12345678']

which = [pytest.param(path, marks=pytest.mark.slow) if path.stem[0] in '45678' else path # which train longest
         for path in lessons]

@pytest.mark.sample(1)
@pytest.mark.parametrize('path', which, ids=lambda path: path.stem)
def test_a_lesson_runs_whole_without_network_and_its_checks_find_its_solutions_right(path):
    with _no_network(): line = _rehearse_lesson(path)
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

@pytest.mark.parametrize('path', lessons, ids=lambda path: path.stem)
def test_run_all_cells_shows_no_result_before_it_is_predicted(path, tmp_path, monkeypatch):
    "Neither what is revealed nor what a training would show; nothing is trained"
    def trains(*args, **kwargs): raise AssertionError('something was trained before anyone had predicted')
    for place in ('salviz.training.trainer.train', 'salviz.training.trainer.prior_experiment',
                  'salviz.course.classroom.teach', 'salviz.analysis.faithfulness.faithfulness_table'):
        monkeypatch.setattr(place, trains)
    given, shared, gates, seen = edition_of(read_lesson(path), 'student', course_fact), {'__name__': '__main__'}, [], []
    is_train = {cell.id: cell_tag(cell) == 'train' for cell in read_lesson(path).cells}
    with contextlib.chdir(tmp_path):
        for cell in given.cells:
            if cell.cell_type != 'code' or path.stem[0] == '1' and is_train[cell.id]: continue # 1 asks for sentences
            shown = run_cell(cell_text(cell), shared, cell.id)
            gates += [thing for thing in shown if isinstance(thing, Reveal)]
            if is_train[cell.id]:
                assert not cell.metadata.get('jupyter'), 'what learners change can be seen'
                seen += [thing for thing in shown if not isinstance(thing, Reveal)]
    assert gates and not any(gate.is_open or len(gate.children) > 1 for gate in gates) and seen == []

def test_a_training_waits_for_its_predictions_and_is_shown_after_them(tmp_path, monkeypatch):
    lesson = edition_of(read_lesson(next(path for path in lessons if path.stem[0] == '7')), 'student', course_fact)
    shared, gates = {'__name__': '__main__'}, []
    monkeypatch.setattr('salviz.training.trainer.prior_experiment', lambda *args, **kwargs: 'a table of losses')
    with contextlib.chdir(tmp_path):
        for cell in lesson.cells:
            if cell.cell_type == 'code': gates += [thing for thing in run_cell(cell_text(cell), shared, cell.id)
                                                   if isinstance(thing, Reveal)]
    with pytest.raises(ValueError, match='commit 7.tied, 7.train first'): gates[1].show()
    predictions._session.predictions['7.tied'].commit(.5)
    predictions._session.predictions['7.train'].commit('low')
    gates[1].show()
    assert gates[1].gate.state == dict(waiting=[], open=True, error='')
    assert gates[1].children[1].outputs[0]['data']['text/markdown'] == 'a table of losses'
