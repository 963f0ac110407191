"""Files with any content that students hand in: none makes a command or a page hang, stops the others, begins a row in
a teacher's spreadsheet or moves the cursor of a terminal."""
import csv
import json
import multiprocessing
from collections import Counter

import pytest

import hostile_files
from browser import evaluate_json
from hostile_files import answers, changed, class_answers, entry, marks, nasty, odd, of, places
from salviz.core.untrusted import parsed_json, printable
from salviz.course import marks as codes
from salviz.course import session
from salviz.course.classroom import _prediction_lines, _read_handed, class_page, run_class
from salviz.course.grading import Assignments, Grades, _grade_one, _handed_in
from salviz.course.marks import read_sheet, sheet_code
from salviz.course.predictions import Predict, choice, words
from salviz.course.session import class_answers as of_class
from test_classroom import closed, opened
from test_marks import load_course

good = 'ann', 'bob', 'cy'
limit = 120 # seconds after which a process counts as hanging; an answer takes less than two

def in_time(act, *args):
    "Return the result of `act` from a separate process, which fails if it hangs"
    context = multiprocessing.get_context('fork')
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=lambda: writer.send(act(*args)))
    process.start()
    writer.close()
    try:
        assert reader.poll(limit), f'no answer within {limit} s'
        return reader.recv()
    finally:
        process.kill()
        process.join()

@pytest.fixture(scope='module')
def tasks():
    film = Predict('1.words', 'Which?', words('the film is not bad .'), [3, 4])
    questions = {'1.words': film, '1.class': Predict('1.class', 'Which class?', choice('bad', 'good'), 1)}
    return Assignments(questions, {'row': 1})

def hand_in(folder, *names):
    "Write the valid files of the students `names`"
    for i, name in enumerate(names):
        sheet = marks(name) | dict(marks=[[int(w == i) for w in range(6)], None, [0, 1, 0]])
        (folder/f'marks-{name}.json').write_text(json.dumps(sheet))
        first = entry()['first'] | dict(time=f'2026-01-01T10:00:0{i}Z')
        (folder/f'answers-{name}.json').write_text(json.dumps(answers(name, {'1.words': entry(first=first)})))

def is_shown(text): return text.isprintable() or text == printable(text)

def merged(folder): return run_class([folder], folder/'out', list(of.texts), of.most)

def graded(folder, tasks):
    "Return the report of a class, its table as a spreadsheet reads it, and the number of rows"
    handed = _handed_in(folder)
    rows = [dict(_grade_one(handed_file, tasks), file=name) for name, handed_file in handed.files.items()]
    path = Grades(rows, handed.notes).write(folder/'grades.csv')
    table = list(csv.reader(path.read_text(encoding='utf-8-sig').splitlines(keepends=True)))
    path.unlink()
    return Grades(rows, handed.notes).report(), table, len(rows)

def check_report(report):
    assert all(is_shown(line) for line in report.split('\n')) and report.encode() and len(report) < 2_000_000

def check_table(table, rows):
    assert len(table) == rows + 1 and {len(row) for row in table} == {len(table[0])}
    cells = [cell for row in table for cell in row]
    assert not [cell for cell in cells if cell.lstrip()[:1] in tuple('=+-@') or {'\r', '\n', '\t', '\x1b'} & {*cell}]

def check_class(folder, tasks):
    "Check that all other students count and that nothing reaches a terminal or a spreadsheet; return both reports"
    report = in_time(merged, folder)
    check_report(report)
    rows = [json.loads(line) for line in (folder/'out'/'marks.jsonl').read_text().splitlines()]
    assert rows[0]['votes'][:3] >= [1, 1, 1] and rows[0]['asked'] >= 3
    printed, table, count = in_time(graded, folder, tasks)
    check_report(printed)
    check_table(table, count)
    assert {*good} <= {row[0] for row in table}
    return report, printed

# --- one file

@pytest.mark.sample(2)
@pytest.mark.parametrize('name', hostile_files.texts())
def test_no_text_of_any_content_hangs_what_reads_it(tasks, tmp_path, name):
    hand_in(tmp_path, *good)
    (tmp_path/'answers-eve.json').write_text(hostile_files.texts()[name], encoding='utf-8')
    report, _ = check_class(tmp_path, tasks)
    assert len(report.splitlines()) < 1100

def test_of_a_code_that_is_too_long_nothing_is_decoded(monkeypatch):
    decoded = []
    monkeypatch.setattr(codes, '_flags_of', lambda *args: decoded.append(args))
    for count in (1, 1000, 400_000):
        body = of.id + '1'*count
        problem = r'has \d+' if count < 2000 else r'does not match its checksum: .*\d+' # cut off after many characters
        with pytest.raises(ValueError, match=f'^{problem} characters; codes of this class have'):
            codes.read_code(of, f'marks1:x:{body}{codes._check_signs("x", body)}')
    assert decoded == []

def test_codes_are_found_where_they_were():
    code = sheet_code(of, read_sheet(of, json.dumps(marks('ann'))))
    for around in ('{}', 'marks12345678901:{}', '{} marks1:   ', 'marks1:\n{}\n', 'marks1:a:\t\n{}'):
        assert [sheet.nickname for sheet in _read_handed(of, around.format(code))[0]] == ['ann'], around
    sheets, broken, _ = _read_handed(of, f'{code}\n'*501)
    assert sheets == [] and broken == [('', 'has 501 codes; at most 500 are allowed')]

@pytest.mark.parametrize('make', [answers, marks, class_answers])
def test_anything_in_any_place_of_a_file_is_left_out_and_stops_nothing(tasks, make):
    whole = json.loads(json.dumps(make() if make is class_answers else make('eve')))
    sound = answers('ann')
    for handed_file in (whole, sound):
        for name, question in tasks.predictions.items():
            if name in handed_file.get('entries', {}): handed_file['entries'][name]['id'] = question.id
    for place in places(whole):
        for value in odd:
            text = json.dumps(changed(whole, place, value))
            try: found = parsed_json(text)
            except ValueError: continue
            lines = _prediction_lines([('answers-ann.json', sound), ('answers-eve.json', found)], tasks.predictions)
            assert '1.class: Which class?' in lines
            assert of_class([sound, found if isinstance(found, dict) else {}], [])['1.class']['first'][0] == 1
            try: handed_file = session.checked_answers_file(found, 'eve', [])
            except ValueError: continue
            joined = session.joined_entries(sound['entries'], handed_file['entries'])
            row = _grade_one(handed_file | dict(entries=joined), tasks)
            assert 0 <= row['predictions'] <= 2 and 0 <= row['checks'] <= 3
            assert session.answers_of_code(session.answer_code(handed_file | dict(entries=joined)))

@pytest.mark.sample(1)
@pytest.mark.parametrize('change', [
    dict(state=[]), dict(state={}), dict(state='right'), dict(first='abc'), dict(first=[1]), dict(first=True),
    dict(first=dict(x=1)), dict(id=[]), dict(kind=[]), dict(second=3)])
def test_a_damaged_entry_is_named_and_the_others_of_its_file_count(tasks, tmp_path, change):
    hand_in(tmp_path, *good)
    (tmp_path/'answers-eve.json').write_text(json.dumps(answers('eve', {'1.words': entry(**change)})))
    for report in check_class(tmp_path, tasks):
        assert "answers-eve.json: left out the damaged entry '1.words'" in report
    handed_file = session.read_answers(tmp_path/'answers-eve.json', [])
    assert _grade_one(handed_file, tasks)['committed'] == '1 of 2'

def test_invalid_files_are_named(tasks, tmp_path):
    hand_in(tmp_path, *good)
    hostile_files.write_special(tmp_path)
    for report in check_class(tmp_path, tasks):
        for name in ('folder', 'pipe', 'loop', 'zero', 'none', 'locked'): assert f'answers-{name}.json' in report, name

# --- printed and exported texts

def test_no_name_and_no_reason_reaches_a_terminal_or_another_cell(tasks, tmp_path):
    hand_in(tmp_path, *good)
    first = entry()['first'] | dict(why=nasty, time='2026-01-01T11:00:00Z')
    for name in ('=1+1', '\x1b[31m', '-\udcff\u202e', 'x\ry'):
        handed_file = answers('eve', {nasty: entry(), '1.words': entry(first=first)})
        (tmp_path/f'answers-{name}.json').write_text(json.dumps(handed_file))
        (tmp_path/f'marks-{name}.json').write_text(json.dumps(marks(nasty)))
    (tmp_path/'answers-broken\x1b]0;x\x07.json').write_text('{')
    report, printed = check_class(tmp_path, tasks)
    assert 'answers-broken.json' in report and 'answers-broken.json' in printed

def test_a_class_is_shown_without_unreadable_files(tmp_path):
    hand_in(tmp_path, *good)
    (tmp_path/'answers-eve.json').write_text(json.dumps(answers('eve', {'1.class': entry('choice', [])})))
    (tmp_path/'answers-cut.json').write_text('{"salviz"')
    with pytest.warns(UserWarning, match='answers-(cut.json is not JSON|eve.json: left out)') as printed:
        path = session._write_class_answers(tmp_path, tmp_path/'class.json')
    assert len(printed) == 2 and of_class(path)['1.class']['first'] == [1, 1, 1]

def test_answers_that_fit_another_question_are_not_shown():
    one = Predict('9.w', 'Which?', words('one good film'), ['good'])
    entries = [entry(id=one.id), entry(id=one.id, value=[99]), entry(id=one.id, value=[0, 1, 2])]
    from salviz.course.predictions import _session
    _session.classmates = of_class([answers('eve', {'9.w': x}) for x in entries])
    assert _session.of_class(one)['first'] == [[0, 1]] and len(_session.classmates['9.w']['first']) == 3
    _session.classmates = of_class([answers('eve', {'9.w': entry('choice', 1, id=one.id)})])
    assert _session.of_class(one) is None
    _session.classmates = {}

# --- the pages

def test_javascript_reads_and_rejects_files_like_python(page):
    load_course(page, 'untrusted.js')
    whole = json.loads(json.dumps(class_answers()))
    texts = [json.dumps(changed(whole, place, value)) for place in places(whole) for value in odd]
    def here(text):
        try: return session._answers_in(parsed_json(text), 'x', [])
        except ValueError: return None
    in_page = evaluate_json(page, '''texts => texts.map(text => {
        try { return sv.courseClassFile(sv.courseParsed(text)).answers; } catch { return null; } })''', texts)
    wrong = [text for text, one, other in zip(texts, map(here, texts), in_page) if (one or {}) != (other or {})]
    assert wrong == [] and len(texts) > 500
    seen = [nasty, 'a\u0085b\tc', '\x1b[0;', '👩‍🚀 名前']
    assert evaluate_json(page, 'texts => texts.map(sv.coursePrintable)', seen) == [*map(printable, seen)]

@pytest.mark.slow
def test_the_page_of_a_class_names_what_it_cannot_read_and_stores_none_of_it(browser, tmp_path):
    hand_in(tmp_path, *good)
    path = class_page(tmp_path/'class.html', list(of.texts), of.most)
    page = opened(browser, path)
    counted = "() => /\\b3 students/.test(document.querySelector('[role=status]').textContent)"
    page.locator('input[type=file]').set_input_files([str(tmp_path/f'marks-{name}.json') for name in good])
    page.wait_for_function(counted)
    before = page.evaluate('() => Object.entries(localStorage).find(([key]) => !key.endsWith("time"))[1]')
    bad = {f'{name}.txt': text for name, text in hostile_files.texts().items()
           if '"answers"' not in text[:40] and name != 'accents'} # which are marks with a name that is cut off
    for name, text in (bad | {'red\x1b[31m\u202e.json': '{"salviz":', 'latin.txt': None}).items():
        data = 'é'.encode('latin-1') if text is None else text.encode()
        page.locator('input[type=file]').set_input_files([dict(name=name, mimeType='text/plain', buffer=data)])
        page.locator(f'li:has-text("{printable(name)}")').first.wait_for(timeout=1000*limit)
    assert page.evaluate('() => Object.entries(localStorage).find(([key]) => !key.endsWith("time"))[1]') == before
    page.reload()
    page.wait_for_function(counted)
    assert page.locator('li').count() == 0
    closed(page, path)

@pytest.mark.slow
def test_hundreds_of_hostile_files_are_handled(tasks, tmp_path):
    counts = Counter()
    for seed in range(8):
        folder = tmp_path/str(seed)
        folder.mkdir()
        names = hostile_files.write(folder, 50, seed)
        hand_in(folder, *good)
        report, printed = check_class(folder, tasks)
        named = [name for name in names if printable(name) in report or printable(name) in printed]
        counts += Counter(files=len(names), named=len(named))
    print(f'{counts["files"]} hostile files in {seed + 1} classes, {counts["named"]} of them named; '
          'none hangs, stops the others, or reaches a terminal or a spreadsheet')
    assert counts['files'] > 600
