"Run the eight lessons: the teacher edition completely, the student edition up to its checks; check their language."
import contextlib
import re
from pathlib import Path

import pytest

from salviz.course import grading, predictions
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
    built, shared, verdicts = edition_of(read_lesson(path), 'student', course_fact), {'__name__': '__main__'}, []
    trains = {cell.id for cell in read_lesson(path).cells if cell_tag(cell) == 'train'}
    with contextlib.chdir(tmp_path):
        for cell in built.cells:
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
    built, shared, gates, seen = edition_of(read_lesson(path), 'student', course_fact), {'__name__': '__main__'}, [], []
    is_train = {cell.id: cell_tag(cell) == 'train' for cell in read_lesson(path).cells}
    with contextlib.chdir(tmp_path):
        for cell in built.cells:
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
    with pytest.raises(ValueError, match='commit 7.tied, 7.train first'): gates[2].show()
    predictions._session.predictions['7.tied'].commit(.5)
    predictions._session.predictions['7.train'].commit('low')
    gates[2].show()
    assert gates[2].gate.state == dict(waiting=[], open=True, error='')
    assert gates[2].children[1].outputs[0]['data']['text/markdown'] == 'a table of losses'

# What is not prose: code, formulas, tables, headings, the header line, HTML tags, links' targets
not_prose = re.compile(r'^~~~.*?^~~~|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|'
                       r'^\|.*?$|^#+ .*?$|^> Difficulty.*?$|<[^>]*>|\]\([^)]*\)', re.S | re.M)
end_of_sentence = re.compile(r'[.!?](?=\W)|\n\n|\n(?=- |\d\. )')

def prose_of(path, *left_out):
    "Return the prose of a lesson without cells that have one of the tags `left_out`"
    cells = (cell for cell in read_lesson(path).cells if cell.cell_type == 'markdown')
    return '\n\n'.join(not_prose.sub(' ', cell_text(cell)) for cell in cells if cell_tag(cell) not in left_out)

silent = re.compile(r'(?<=[^aeiouyl])e$|(?<=[^aeiouytd])ed$|(?<=[^aeiouyscxzgh])es$|(?<=[aeiouy])le$')
split_vowels = re.compile(r'(?<![ct])i(?=a|en|er|es)|(?<=a)ye')

def syllables(word):
    "Estimate the number of syllables: groups of vowels without a silent e (1 % off the CMU dictionary on the lessons)"
    word = re.sub('[^a-z]', '', word.lower())
    return max(1, len(re.findall('[aeiouy]+', silent.sub('', word))) + len(split_vowels.findall(word)))

def reading_grade(text):
    "Return the Flesch-Kincaid grade of `text`"
    sentences = [re.findall(r"[A-Za-z][A-Za-z'’]*", part) for part in end_of_sentence.split(text)]
    sentences = [words for words in sentences if words]
    words = [word for words in sentences for word in words]
    return .39*len(words)/len(sentences) + 11.8*sum(map(syllables, words))/len(words) - 15.59

def test_reading_grades_of_easy_and_hard_sentences_are_right():
    assert [syllables(word) for word in 'layer gradient make marked sentences attention the'.split()] == [
        2, 3, 1, 1, 3, 3, 1]
    assert reading_grade('The cat sat on the mat.') < 1
    assert reading_grade('Comprehensiveness quantifies the degradation of classification probability.') > 20

@pytest.mark.parametrize('path', lesson_files(sources), ids=lambda path: path.stem)
def test_a_lesson_can_be_read_at_seventeen(path):
    "The Flesch-Kincaid grade is at most 8, and no sentence has more than 35 words"
    assert reading_grade(prose_of(path)) <= 8
    longest = max(end_of_sentence.split(prose_of(path)), key=lambda part: len(part.split()))
    assert len(longest.split()) <= 35, longest

# Blocks that may have many numbers: code, displayed formulas, tables. Inline code and inline formulas count as text
not_paragraph = re.compile(r'^(~~~|```).*?^\1|\$\$.*?\$\$|^\|.*?$', re.S | re.M)
a_number = re.compile(r'(?<![\w.])\d*\.?\d+')

def numbers_in_paragraphs(text):
    "Return {paragraph: count of its numbers} for Markdown; an empty line ends a paragraph"
    return {part: len(a_number.findall(part)) for part in re.split(r'\n\s*\n', not_paragraph.sub('\n\n', text))}

def test_numbers_of_a_paragraph_are_counted_without_those_of_blocks():
    text = 'Row 1 is `.3 -.15`:\n\n| 1 | 2 |\n|---|---|\n| 3 | 4 |\n\nSo $n_1 = 8.5$, a 16-bit one.\n\n$$n = 5$$\n'
    assert [n for n in numbers_in_paragraphs(text).values() if n] == [3, 2]

@pytest.mark.parametrize('path', lesson_files(sources), ids=lambda path: path.stem)
def test_a_paragraph_has_fewer_than_twelve_numbers(path):
    "More numbers belong in a table"
    texts = [cell_text(cell) for cell in read_lesson(path).cells if cell.cell_type == 'markdown']
    counts = {part: n for text in texts for part, n in numbers_in_paragraphs(text).items()}
    assert counts and not [part for part, n in counts.items() if n >= 12]

@pytest.mark.parametrize('path', lesson_files(sources), ids=lambda path: path.stem)
def test_a_lesson_opens_with_a_picture(path):
    pictures = [i for i, cell in enumerate(read_lesson(path).cells) if cell_tag(cell) == 'picture']
    assert pictures and pictures[0] <= 2 or path.stem == '0_for_teachers'

@pytest.mark.sample(4)
@pytest.mark.parametrize('path', lessons, ids=lambda path: path.stem)
def test_every_card_shows_its_subject(path):
    "A sentence to click, a sentence in the question, or a picture"
    for name, one in grading._predictions_in(read_lesson(path), path.stem).items():
        shows = one.query.kind == 'words' or 'picture' in one.about or '“' in one.question
        assert shows, f'{name} shows neither its sentence nor a picture'
