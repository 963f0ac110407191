"""Votes of a class: the files and codes of twelve students become rounds on a projector, each step on a key press; the
counts are the same in Python and in the page, in the words of the questions."""
import json
import random

import pytest

import accessible
from browser import settled
from salviz.course import session
from salviz.course.classroom import _prediction_lines, class_page, run_class
from salviz.course.kinds import choice, head, number, order, slope, words
from salviz.course.predictions import Predict
from test_classroom import closed, of, opened
from test_marks import load_course
from test_predictions import fresh # noqa: F401, a fixture

film = 'The film is not bad, but it never surprises.'
result = {
    '1.class': ('What does it say of “The film is not bad, but it never surprises.”?', choice('negative', 'positive'),
                'positive', [0]*8 + [1]*4, [1]*9 + [0]*3),
    '1.word': ('Which word holds most attention?', words(film, most=1), ['never'], [[3]]*5 + [[8]]*7, [[8]]*12),
    '2.order': ('Which is best?', order('attention', 'rollout', 'occlusion'),
                dict(attention=(.2, .3), rollout=(.1, .25), occlusion=(.5, .6)), [[0, 1, 2]]*6 + [[2, 0, 1]]*6,
                [[2, 0, 1]]*12),
    '3.alpha': ('What will alpha be?', number(0, 1, .05), None, [.5]*6 + [.95]*6, [.5]*12),
    '4.after': ('And after it?', slope(.2), .6, [.2]*3 + [.9]*9, [.55]*12),
    '8.head': ('Which head looks back?', head(6, 12), [2, 7], [[0, 1]]*7 + [[2, 7]]*5, [[2, 7]]*12)}

@pytest.fixture
def questions(fresh): # noqa: F811
    return {name: Predict(name, text, kind, truth) for name, (text, kind, truth, *_) in result.items()}

def entry(question, first, second=None):
    new = session.commit(session.new_entry(question.query, question.id), first, 'think', 'a reason')
    return new if second is None else session.discuss(new, second, 'sure')

def handed(questions, i, second=True):
    "Return the answer file of student `i`"
    of_one = {name: entry(questions[name], first[i], again[i] if second else None)
             for name, (*_, first, again) in result.items()}
    return session.answers_file(f'pupil-{i}', of_one)

def twelve(folder, questions):
    "Write the files of twelve students, and return their paths"
    paths = []
    for i in range(12):
        paths.append(folder/f'answers-pupil-{i}.json')
        paths[-1].write_text(json.dumps(handed(questions, i)), encoding='utf-8')
    return paths

def show(page, name): page.get_by_role('button', name=f'Show {name}', exact=True).click()

def stage(page): return page.locator('.sv-votes').get_attribute('data-stage')

def rows(page):
    "Return the text, the tags and the numbers of the bars of each row"
    return page.eval_on_selector_all('.vt-row', '''all => all.map(row => [row.querySelector('.vt-text').textContent,
        [...row.querySelectorAll('.vt-tag')].map(tag => tag.textContent),
        [...row.querySelectorAll('.vt-count')].map(count => count.textContent)])''')

@pytest.fixture
def screen(browser, tmp_path, questions):
    "Open the class page and load the files of twelve students"
    path = class_page(tmp_path/'class.html', of, questions=questions)
    page = opened(browser, path, viewport=dict(width=1280, height=720))
    page.locator('input[type=file]').set_input_files(twelve(tmp_path, questions))
    page.get_by_text('12 students answered questions.').wait_for()
    yield page
    closed(page, path)

def test_first_answers_then_those_after_discussion_then_the_truth_each_on_a_key(screen):
    show(screen, '1.class')
    assert not screen.locator('.sv-merge').is_visible() and stage(screen) == 'question'
    assert rows(screen) == [['negative', [], []], ['positive', [], []]]
    assert 'film is not bad' in screen.inner_text('.vt-question') and '12 answers' in screen.inner_text('.vt-name')
    screen.keyboard.press('ArrowRight')
    assert stage(screen) == 'first answers' and rows(screen) == [['negative', [], ['8']], ['positive', [], ['4']]]
    screen.keyboard.press(' ')
    assert rows(screen) == [['negative', [], ['8', '3']], ['positive', [], ['4', '9']]]
    assert screen.inner_text('.vt-truth') == ''
    screen.keyboard.press('PageDown')
    assert stage(screen) == 'truth' and rows(screen)[1] == ['positive', ['true'], ['4', '9']]
    printed = screen.inner_text('.vt-truth')
    assert printed == 'Correct answer: positive. Mean score: .33 at first, .75 after discussion.'
    screen.keyboard.press('ArrowLeft')
    assert stage(screen) == 'answers after discussion' and screen.inner_text('.vt-truth') == ''
    screen.keyboard.press('Escape')
    assert screen.locator('.sv-merge').is_visible() and not screen.locator('.sv-votes').is_visible()
    assert screen.evaluate('document.activeElement.dataset.name') == '1.class'

@pytest.mark.slow
def test_buttons_do_the_same_and_advance_to_the_next_question(screen):
    show(screen, '1.class')
    forth, seen = screen.locator('.vt-main'), []
    for _ in range(4):
        seen.append(forth.inner_text())
        forth.click()
    assert seen == ['Show first answers', 'Show answers after discussion', 'Show the answer', 'Next question']
    assert screen.inner_text('.vt-name') == '1.word: 12 answers' and stage(screen) == 'question'
    forth.focus()
    screen.keyboard.press('Enter')
    assert stage(screen) == 'first answers'
    screen.locator('.vt-buttons').get_by_text('Back', exact=True).click()
    screen.locator('.vt-buttons').get_by_text('Close', exact=True).click()
    assert screen.locator('.sv-merge').is_visible()

@pytest.mark.slow
def test_every_kind_of_question_has_its_rows_and_its_truth(screen):
    def after(name, presses):
        show(screen, name)
        for _ in range(presses): screen.keyboard.press('ArrowRight')
        seen = {text: (tags, counts) for text, tags, counts in rows(screen)}
        printed = screen.inner_text('.vt-truth')
        screen.keyboard.press('Escape')
        return seen, printed
    seen, printed = after('1.word', 3)
    assert seen['never'] == (['true'], ['7', '12']) and seen['not'] == ([], ['5', '0'])
    assert 'Correct answer: never.' in printed
    seen, printed = after('2.order', 3)
    assert seen['occlusion'] == (['correct position 1'], ['2', '1'])
    assert seen['rollout'][0] == ['correct position 2 to 3']
    seen, printed = after('4.after', 3)
    assert seen['.6 to .7'][0] == ['true'] and seen['.2 to .3'] == (['before'], ['3', '0'])
    assert 'Correct answer: .2 → .6' in printed
    seen, printed = after('8.head', 0)
    assert seen == {}
    seen, printed = after('8.head', 3)
    assert seen == {'layer 2, head 7': (['true'], ['5', '12']), 'layer 0, head 1': ([], ['7', '0'])}

@pytest.mark.slow
def test_without_a_truth_the_next_question_follows_the_second_answers(screen):
    show(screen, '3.alpha')
    for _ in range(2): screen.keyboard.press('ArrowRight')
    assert screen.inner_text('.vt-main') == 'Next question' and rows(screen)[5] == ['.5 to .6', [], ['6', '12']]
    screen.keyboard.press('ArrowRight')
    assert screen.inner_text('.vt-name').startswith('4.after')

@pytest.mark.slow
@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('width,height,least', [(1280, 720, 25), (360, 740, 15)])
def test_votes_are_large_enough_for_a_projector(browser, tmp_path, questions, scheme, width, height, least):
    path = class_page(tmp_path/'class.html', of, questions=questions)
    page = opened(browser, path, viewport=dict(width=width, height=height), color_scheme=scheme)
    page.locator('input[type=file]').set_input_files(twelve(tmp_path, questions))
    page.get_by_text('12 students answered questions.').wait_for()
    assert accessible.faults(page) == []
    for name in result:
        show(page, name)
        for _ in range(3 if result[name][2] else 2): page.keyboard.press('ArrowRight')
        settled(page)
        size = page.eval_on_selector('.vt-text', 'one => parseFloat(getComputedStyle(one).fontSize)')
        assert size >= (least if len(rows(page)) < 8 else 15), (name, size)
        assert page.evaluate('document.documentElement.scrollWidth') <= width
        if width == 1280: assert page.evaluate('document.documentElement.scrollHeight') <= height, name
        assert accessible.faults(page) == []
        page.keyboard.press('Escape')
    closed(page, path)

@pytest.mark.slow
def test_codes_in_a_chat_and_files_of_one_pupil_are_one_vote(browser, tmp_path, questions):
    path = class_page(tmp_path/'class.html', of, questions=questions)
    page = opened(browser, path)
    before = handed(questions, 0, second=False)
    codes = [session.answer_code(before), session.answer_code(handed(questions, 1))]
    page.locator('textarea').fill(f'[10:01] bo: {codes[0]}\n[10:02] cy: mine {codes[1]} ok\nSVA1.AAAA.00000000')
    page.get_by_text('Read codes').click()
    page.get_by_text('2 students answered questions.').wait_for()
    assert 'This answer code is damaged' in page.inner_text('.sv-merge')
    again = {name: dict(e, second=handed(questions, 0)['entries'][name]['second'], state='discussed')
             for name, e in before['entries'].items()}
    (tmp_path/'again.json').write_text(json.dumps(before | dict(entries=again)))
    page.locator('input[type=file]').set_input_files(tmp_path/'again.json')
    page.get_by_text('2 answers; 2 answered again after discussion').first.wait_for()
    closed(page, path)

hostile = [(dict(version=2), 'has an unsupported version'), (dict(nickname='<b>'), 'needs a nickname'),
           (dict(nickname=None), 'needs a nickname'), (dict(entries=[]), 'does not contain an “entries” object'),
           (dict(entries={'1.class': 3}), 'left out 1 damaged entry'),
           (dict(entries={f'{i}': dict(kind='check') for i in range(1001)}), 'has 1001 entries; at most 1000')]

@pytest.mark.sample(1)
@pytest.mark.parametrize('change,reason', hostile, ids=map(str, range(len(hostile))))
def test_a_damaged_answers_file_is_named_and_the_others_count(browser, tmp_path, questions, change, reason):
    path = class_page(tmp_path/'class.html', of, questions=questions)
    page = opened(browser, path)
    (tmp_path/'bad.json').write_text(json.dumps(handed(questions, 0) | change))
    (tmp_path/'good.json').write_text(json.dumps(handed(questions, 1)))
    page.locator('input[type=file]').set_input_files([tmp_path/'bad.json', tmp_path/'good.json'])
    page.get_by_text('1 student answered questions.').wait_for()
    assert f'bad.json: {reason}' in page.inner_text('.sv-merge')
    closed(page, path)

def test_an_answer_to_another_version_of_a_question_counts_nowhere(page, questions):
    load_course(page, 'votes.js')
    about = questions['1.class'].described()
    of_one = handed(questions, 0)['entries']['1.class']
    wrong = [of_one | dict(id='0'*8), of_one | dict(first=of_one['first'] | dict(value=7)), of_one | dict(kind='words'),
             of_one | dict(state=[]), dict(kind='check', passed=True)]
    made_of = '''([about, entries]) => sv.votesOf(about, sv.votesStudents(
        entries.map((entry, i) => ({nickname: `n${i}`, entries: {[about.name]: entry}})))).first'''
    assert page.evaluate(made_of, [about, [of_one, *wrong]]) == [0]

def test_the_command_line_prints_votes_with_the_options_of_the_question(tmp_path, questions, monkeypatch):
    monkeypatch.setattr('salviz.course.classroom.lesson_questions', lambda: questions)
    paths = twelve(tmp_path, questions)
    report = run_class(paths, tmp_path/'out', of)
    for line in ('1.class: What does it say', '12 answers: negative × 8, positive × 4',
                 'after discussion: positive × 9, negative × 3', '12 answers: never × 7, not × 5',
                 'layer 0, head 1 × 7, layer 2, head 7 × 5', 'attention > rollout > occlusion × 6'):
        assert line in report
    assert '[0, 1]' not in report

def test_the_command_line_reads_codes_in_a_chat_as_files(tmp_path, questions, monkeypatch):
    monkeypatch.setattr('salviz.course.classroom.lesson_questions', lambda: questions)
    paths = twelve(tmp_path, questions)
    codes = [session.answer_code(handed(questions, i)) for i in range(12)]
    (tmp_path/'chat.txt').write_text('\n'.join(f'[10:0{i % 10}] pupil {i}: {code}!' for i, code in enumerate(codes)))
    from_files = run_class(paths, tmp_path/'out', of)
    assert '12 answers: negative × 8, positive × 4' in from_files
    for chat in (tmp_path/'chat.txt', (tmp_path/'chat.txt').read_text()):
        assert run_class([chat], tmp_path/'out', of) == from_files
    (tmp_path/'chat.txt').write_text(f'{codes[0]}\n{codes[1][:-1]}{"0" if codes[1][-1] != "0" else "1"}')
    report = run_class([tmp_path/'chat.txt'], tmp_path/'out', of)
    assert '1 answer: negative × 1' in report and f'code {codes[1][:24]}…: this answer code is damaged' in report

def test_files_of_one_pupil_are_joined_in_python_as_in_the_page(page, questions):
    load_course(page, 'votes.js')
    rng, files = random.Random(0), []
    for i in range(24): # one lesson each, some before and some after the discussion
        whole = handed(questions, i % 12, second=rng.random() < .5)
        subset = {name: e for name, e in whole['entries'].items() if rng.random() < .6}
        for e in subset.values(): e['first']['time'] = f'2026-01-01T00:00:0{i % 12 % 10}Z'
        files.append(dict(whole, entries=subset, nickname=rng.choice([whole['nickname'], whole['nickname'].upper()])))
    lines = _prediction_lines([(str(i), file) for i, file in enumerate(files)], questions)
    counts = page.evaluate('''([abouts, files]) => abouts.map(about => {
        const {first, second} = sv.votesOf(about, sv.votesStudents(files));
        return [about.name, first.length, JSON.stringify(first) !== JSON.stringify(second)]; })''',
        [[one.described() for one in questions.values()], files])
    for name, count, differs in counts:
        at = lines.index(f'{name}: {questions[name].question}')
        assert lines[at + 1].startswith(f'    {count} answer{"s"*(count != 1)}: ')
        assert lines[at + 2].startswith('    after discussion') == differs if at + 2 < len(lines) else not differs
