"Grading: points for committing, not for being right; no claim of a file is trusted, and nothing in it is executed."
import csv
import json
import random

import nbformat
import pytest

import lessons
from salviz.core.untrusted import _csv_cell, printable
from salviz.course import session
from salviz.course.grading import _grade_one, _graded, _handed_in, assignments_of, grade

@pytest.fixture(scope='module')
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp('asked')/'lessons'
    return lessons.written(folder, more=[('code', "check('row', row)", 'notebook')])

@pytest.fixture(scope='module')
def tasks(sources): return assignments_of(sources)

def entry(tasks, name, value, seconds=0, why='', **more):
    question = tasks.predictions[name]
    committed = session.commit(session.new_entry(question.query, question.id), value, 'sure', why)
    committed['first']['time'] = f'2026-01-01T10:{seconds//60:02d}:{seconds % 60:02d}Z'
    return committed | more

def hand_in(folder, nickname, entries, file=None):
    path = folder/(file or f'answers-{nickname}.json')
    handed_file = dict(salviz='answers', version=1, nickname=nickname, lesson='1', set='', written='', entries=entries)
    path.write_text(json.dumps(handed_file), encoding='utf-8')
    return path

def passed(value=True): return dict(kind='check', passed=value, time='')

def test_predictions_and_checks_are_read_from_the_lessons(tasks):
    assert list(tasks.predictions) == ['1.words', '1.class'] and tasks.checks == {'row': 1}

def test_committing_gives_the_same_points_right_or_wrong(tasks, tmp_path):
    rows = []
    for words, verdict in (([3, 4], 1), ([0, 1], 0)):
        file = hand_in(tmp_path, 'ann', {'1.words': entry(tasks, '1.words', words),
                                         '1.class': entry(tasks, '1.class', verdict)})
        rows.append(_grade_one(session.read_answers(file), tasks))
    assert [row['predictions'] for row in rows] == [2, 2] and [row['near_first'] for row in rows] == [1, 0]

def test_scores_in_a_file_are_ignored(tasks, tmp_path):
    lied = entry(tasks, '1.words', [0, 1], scores=[1, 1], outcome=dict(truth=[0, 1]), truth=[0, 1])
    row = _grade_one(session.read_answers(hand_in(tmp_path, 'ann', {'1.words': lied})), tasks)
    assert row['near_first'] == 0 and row['predictions'] == 1

@pytest.mark.parametrize('change', [dict(id='00000000'), dict(kind='choice'), dict(first=dict(value=[99])),
                                    dict(first=dict(value='x', confidence='sure', why='', time='')), dict(first=3),
                                    dict(state='right')])
def test_an_answer_to_something_else_gives_no_point_and_is_named(tasks, tmp_path, change):
    wrong = entry(tasks, '1.words', [3, 4]) | change
    left_out = []
    row = _grade_one(session.read_answers(hand_in(tmp_path, 'ann', {'1.words': wrong}), left_out), tasks)
    assert row['predictions'] == 0 and '1.words' in row['notes'] + ''.join(left_out)
    assert len(left_out) == (row['notes'] == '') == (list(change) != ['id'])

def test_a_reveal_without_a_prediction_scores_no_point(tasks, tmp_path):
    question = tasks.predictions['1.words']
    skipped = session.reveal(session.new_entry(question.query, question.id))
    row = _grade_one(session.read_answers(hand_in(tmp_path, 'ann', {'1.words': skipped})), tasks)
    assert (row['predictions'], row['skipped']) == (0, 1)

@pytest.mark.parametrize('claim,points', [(True, 3), (False, 0), ('yes', 0), (1, 0), (None, 0), ([True], 0)])
def test_a_check_counts_when_it_was_passed(tasks, tmp_path, claim, points):
    for name in ('1.row', 'row'):
        row = _grade_one(session.read_answers(hand_in(tmp_path, 'ann', {name: passed(claim)})), tasks)
        assert row['checks'] == points

def test_checks_and_predictions_of_no_lesson_score_nothing(tasks, tmp_path):
    row = _grade_one(session.read_answers(hand_in(tmp_path, 'ann', {'1.other': passed(), '9.words': entry(
        tasks, '1.words', [3, 4])})), tasks)
    assert (row['predictions'], row['checks']) == (0, 0)

def test_reasons_and_capstone_are_left_to_the_teacher(tasks, sources, tmp_path):
    hand_in(tmp_path, 'ann', {'1.words': entry(tasks, '1.words', [3, 4], why='it names the class')})
    row, = _graded(tmp_path, sources).rows
    assert row['reasons'] == row['capstone'] == '' and row['why'] == '1.words: it names the class'

def test_of_a_class_broken_foreign_and_doubled_files_are_named_and_the_others_graded(tasks, sources, tmp_path):
    for i in range(6):
        hand_in(tmp_path, f's{i}', {name: entry(tasks, name, value, 10*i + k) for k, (name, value) in enumerate(
            {'1.words': [3, 4], '1.class': 1}.items())})
    copied = json.loads((tmp_path/'answers-s0.json').read_text()) | dict(nickname='eve')
    for name, text in {'answers-eve.json': json.dumps(copied), 'answers-half.json': json.dumps(copied)[:-9],
                       'answers-deep.json': '['*100_000, 'answers-bytes.json': '\udcff',
                       'marks-s1.json': '{"kind": "marks"}',
                       'answers-old.json': json.dumps(copied | dict(version=0)), 'answers-list.json': '[]',
                       'answers-nick.json': json.dumps(copied | dict(nickname='=1+1')),
                       'answers-no.json': json.dumps(copied | dict(entries=3))}.items():
        (tmp_path/name).write_bytes(text.encode('utf-8', 'surrogateescape'))
    (tmp_path/'answers-big.json').write_text(' '*1_000_001)
    (tmp_path/'lesson.ipynb').write_text('{}')
    grades = _graded(tmp_path, sources)
    assert [row['student'] for row in grades.rows] == ['eve', *(f's{i}' for i in range(6))]
    printed = '\n'.join(grades.notes)
    for words in ('broken: answers-half.json', 'broken: answers-deep.json', 'broken: answers-bytes.json',
                  'foreign: marks-s1.json', 'broken: answers-old.json', 'foreign: answers-list.json',
                  'broken: answers-nick.json', 'broken: answers-no.json', 'broken: answers-big.json',
                  'not read: notebooks (1)'):
        assert words in printed, words
    assert 'duplicate: answers-s0.json contains the answers of answers-eve.json' in printed and len(grades.notes) == 11
    assert printed in grades.report()

def test_a_student_who_hands_in_twice_has_one_row(tasks, sources, tmp_path):
    less = {'1.words': entry(tasks, '1.words', [3, 4], 5)}
    more = less | {'1.class': entry(tasks, '1.class', 1, 9), '1.row': passed()}
    for one, other in ((less, more), (more, less)):
        hand_in(tmp_path, 'ann', one)
        hand_in(tmp_path, 'ann', other, 'answers-ann-2.json')
        row, = _graded(tmp_path, sources).rows
        assert (row['predictions'], row['checks']) == (2, 3)

def test_a_copy_is_noticed_after_its_author_has_handed_in_again(tasks, sources, tmp_path):
    both = {'1.words': entry(tasks, '1.words', [3, 4], 5), '1.class': entry(tasks, '1.class', 1, 9)}
    for nickname in ('ann', 'bob'): hand_in(tmp_path, nickname, both)
    copied = 'duplicate: answers-bob.json contains the answers of answers-ann.json, with equal times'
    assert copied in _graded(tmp_path, sources).notes
    third = {'1.more': entry(tasks, '1.class', 1, 20)}
    hand_in(tmp_path, 'ann', both | third, 'answers-ann (1).json')
    grades = _graded(tmp_path, sources)
    assert copied in grades.notes and len(grades.rows) == 2

def test_answer_codes_and_upper_case_names_are_graded_as_the_class_reads_them(tasks, sources, tmp_path):
    answers = {'1.words': entry(tasks, '1.words', [3, 4], 5, why='it names the class'), '1.row': passed()}
    codes = [session.answer_code(session.answers_file(name, answers)) for name in ('cody', 'ann')]
    (tmp_path/'chat.txt').write_text('\n'.join(f'from me: {code}!' for code in codes))
    (tmp_path/'list.txt').write_text('present: everybody')
    hand_in(tmp_path, 'dora', answers, 'DORA.JSON')
    hand_in(tmp_path, 'ann', answers)
    grades = _graded(tmp_path, sources)
    assert [(row['student'], row['predictions'], row['checks']) for row in grades.rows] == [
        ('ann', 1, 3), ('cody', 1, 3), ('dora', 1, 3)]
    assert grades.rows[0]['why'] == '1.words: it names the class' # not in the code
    assert grades.notes == ['twice: chat.txt, code 2 and answers-ann.json belong to one student and were merged',
                            'not read: list.txt, because it contains no answer code']

def test_two_students_of_one_nickname_keep_a_row_each(tasks, sources, tmp_path):
    for seconds, file in ((5, 'answers-ann.json'), (50, 'answers-ann-2.json')):
        hand_in(tmp_path, 'ann', {'1.words': entry(tasks, '1.words', [3, 4], seconds)}, file)
    grades = _graded(tmp_path, sources)
    assert [row['file'] for row in grades.rows] == ['answers-ann-2.json', 'answers-ann.json']
    assert grades.notes == [
        'same nickname: answers-ann.json and answers-ann-2.json differ, so they belong to two students']

def test_codes_of_two_students_of_one_nickname_are_not_merged(tasks, sources, tmp_path):
    for value, nickname in (([3, 4], 'ann'), ([0, 1], 'Ann')):
        answers = {'1.words': entry(tasks, '1.words', value), **({'1.row': passed()} if nickname == 'Ann' else {})}
        code = session.answer_code(session.answers_file(nickname, answers))
        (tmp_path/f'{len(nickname)}{value[0]}.txt').write_text(code)
    assert sorted(row['checks'] for row in _graded(tmp_path, sources).rows) == [0, 3]

def test_a_later_code_adds_a_passed_check_and_keeps_the_reason_of_the_file(tasks, sources, tmp_path):
    mine = entry(tasks, '1.words', [3, 4], 5, why='it names the class')
    hand_in(tmp_path, 'ann', {'1.words': mine, '1.row': passed(False)})
    later = {'1.words': session.reveal(mine), '1.row': passed()}
    (tmp_path/'mail.txt').write_text(session.answer_code(session.answers_file('ann', later)))
    row, = _graded(tmp_path, sources).rows
    assert (row['checks'], row['why']) == (3, '1.words: it names the class')

@pytest.mark.parametrize('why', ['=cmd|calc!A1', '+1', '-1', '@SUM(A1)', '\t=1', ' =1', '\n=1', '＝1', "x,y\"z",
                                 'a\r\nb', '\x00=1'])
def test_a_spreadsheet_runs_nothing_that_a_student_wrote(tasks, sources, tmp_path, why):
    hand_in(tmp_path, 'ann', {'1.words': entry(tasks, '1.words', [3, 4], why=why)})
    text = grade(tmp_path, tmp_path/'grades.csv', sources)
    with open(tmp_path/'grades.csv', newline='', encoding='utf-8-sig') as file: header, row = csv.reader(file)
    assert len(header) == len(row) and all(cell[:1] not in tuple('=+-@\t\r\n') for cell in row) and '=cmd' not in text
    assert _csv_cell(why).lstrip("'") == printable(why)

def test_unpaired_surrogates_do_not_stop_the_grading(tasks, sources, tmp_path):
    "A file name that is not UTF-8, and half of a surrogate pair in JSON"
    hand_in(tmp_path, 'ann', {'1.words': entry(tasks, '1.words', [3, 4])}, file='answers-\udcff.json')
    hand_in(tmp_path, 'bob', {'1.words': entry(tasks, '1.words', [3, 4], seconds=9, why='\ud800 half')})
    report = grade(tmp_path, tmp_path/'grades.csv', sources)
    assert 'ann' in report and 'bob' in report and report.encode()
    assert '□ half' in _graded(tmp_path, sources).table().why.iloc[1]
    assert 'ann' in (tmp_path/'grades.csv').read_text(encoding='utf-8-sig')

def test_the_points_of_some_lessons_only(tasks, sources, tmp_path):
    hand_in(tmp_path, 'ann', {'1.words': entry(tasks, '1.words', [3, 4])})
    row, = _graded(tmp_path, sources, numbers=[1, 3]).rows
    assert row['committed'] == '1 of 2'
    with pytest.raises(ValueError, match='no lesson with predictions or checks found'): _graded(tmp_path, sources, [5])

def test_whatever_is_changed_in_a_file_it_is_graded_or_named(tasks, sources, tmp_path):
    good = hand_in(tmp_path, 'ann', {'1.words': entry(tasks, '1.words', [3, 4]), '1.row': passed()})
    text, draw = good.read_text(), random.Random(0)
    odd = [None, [], {}, -1, 1e999, '', 'x'*50, True, [[[]]], {'a': {}}]
    for _ in range(200):
        handed_file, place = json.loads(text), None
        entries = handed_file['entries'].values()
        spots = [(handed_file, key) for key in handed_file] + [(e, key) for e in entries for key in e]
        spots += [(e['first'], key) for e in entries if 'first' in e for key in e['first']]
        place, key = draw.choice(spots)
        place[key] = draw.choice(odd)
        good.write_text(json.dumps(handed_file))
        try: handed = _handed_in(tmp_path)
        except ValueError as error:
            assert 'no answer file' in str(error)
            continue
        for one in handed.files.values():
            row = _grade_one(one, tasks)
            assert 0 <= row['predictions'] <= 2 and 0 <= row['checks'] <= 3
