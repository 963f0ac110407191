"""Predictions in a real Chromium: the same scores and codes as in Python, every kind by keyboard alone, nothing in the
document before an answer is committed, and answers that persist."""
import base64
import gzip
import json
import random
import re

import pytest

import invented
from browser import new_page, send, settled
from salviz.course import predictions, session
from salviz.course.kinds import Query, choice, head, number, order, score, slope, truth_text, value_text, words
from salviz.course.predictions import Answers, Predict, Reveal, _course_program, course_styles, course_text
from salviz.course.session import answer_code, answers_file, answers_of_code, checked_entry, checksum, read_answers
from salviz.explorer.page import page_of, plotly_gz
from salviz.explorer.page_compression import text_of_bytes
from salviz.explorer.assets import _exported, bundle, styles
from test_js_help import contrast
from test_predictions import cases, every_kind, film, fresh, hostile, some_answer, some_truth # noqa: F401, a fixture

template = '''<!doctype html><html lang="en"><meta charset="utf-8"><title>lesson</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline' blob:;
style-src 'unsafe-inline'; img-src data: blob:">
<style>html {{ color-scheme: light dark; background: #fff }} html[data-theme=dark] {{ background: #111 }}
body {{ margin: 8px }} {styles}</style><body data-lesson="{lesson}"><button id="before">before</button>
{body}<button id="after">after</button>{more}<script type="module">{program}</script></body></html>'''

def write_lesson(path, *widgets, lesson='1', more=''):
    "Write a page of `widgets` to a file, and return its address"
    body = ''.join(widget.page_html() for widget in widgets)
    path.write_text(template.format(styles=styles() + course_styles(), lesson=lesson, body=body, more=more,
                                    program=_course_program('coursepage.js')), encoding='utf-8')
    return path.absolute().as_uri()

@pytest.fixture
def opened(browser):
    "Return a function that opens an address in a separate page; at the end, check for errors and network requests"
    pages = []
    def make(url, **kw):
        p = new_page(browser, **{'viewport': dict(width=900, height=900), **kw})
        p.outside.clear()
        p.set_default_timeout(8000)
        pages.append((p, url))
        p.goto(url)
        p.wait_for_function('() => window.salvizCourse')
        settled(p)
        return p
    yield make
    for p, url in pages:
        errors, outside = p.errors, [o for o in p.outside if o.split('#')[0] != url]
        p.close()
        assert errors == [] and outside == []

def entry(p, name='1.x'): return p.evaluate('name => salvizCourse.book.entry(name)', name)

def state(p, name='1.x'): return p.get_attribute(f'[data-course-name="{name}"]', 'data-state')

def load(page, *modules):
    "Load `modules` of the course into `page`; their exports are in `window.sv`"
    names = ', '.join(_exported(*modules, read=course_text))
    source = f'{bundle(*modules, read=course_text)}\nwindow.sv = {{{names}}};'
    page.evaluate("source => import(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})))", source)

# --- comparison of JavaScript with Python

def test_the_table_of_cases_is_right_in_javascript(page):
    load(page, 'score.js', 'say.js')
    send(page, cases=cases)
    got = page.evaluate('''() => cases.map(({asked, value, truth}) => [sv.courseFits(asked, value),
        sv.courseScore(asked, value, truth), sv.courseValueText(asked, value), sv.courseTruthText(asked, truth)])''')
    for case, (fits, content, value, true) in zip(cases, got):
        cards = Query(**case['asked'])
        assert fits and content == (None if case['score'] is None else pytest.approx(case['score'], abs=1e-12)), case
        assert value == value_text(cards, case['value']) and true == truth_text(cards, case['truth']), case

def test_invented_answers_score_the_same_in_both_languages(page):
    load(page, 'score.js')
    rng, subset = random.Random(0), []
    for _ in range(300):
        kind = rng.choice(['order', 'number', 'slope'])
        if kind == 'order':
            cards, value = order(*'abcde'), rng.sample(range(5), 5)
            truth = [sorted(rng.choice([.1, .2, .3, .4]) for _ in range(2)) for _ in range(5)]
        else:
            cards = number(-1, 2) if kind == 'number' else slope(.2, -1, 2)
            value, truth = round(rng.uniform(-1, 2), 2), sorted(round(rng.uniform(-1, 2), 2) for _ in range(2))
        subset.append((cards, value, truth))
    send(page, some=[[cards.described(), value, truth] for cards, value, truth in subset])
    assert page.evaluate('() => some.map(([asked, value, truth]) => sv.courseScore(asked, value, truth))') == [
        score(*one) for one in subset]

def test_codes_and_checksums_are_the_same_in_both_languages(page):
    load(page, 'file.js')
    for text in ('', 'a', 'ü🙂\u2028', 'x'*1000):
        assert page.evaluate('text => sv.courseChecksum(text)', text) == checksum(text)
    answered = {f'1.{kind}': session.discuss(session.commit(session.new_entry(cards, 'a1'), some_answer[kind], 'guess'),
            some_answer[kind], 'sure') for kind, cards in every_kind.items()}
    answered |= {'1.ü': session.new_entry(words(film), 'b2'), '1.check': dict(kind='check', passed=True, tries=3)}
    file = answers_file('bo-b', answered)
    theirs = page.evaluate('file => sv.courseCode(file)', file)
    back, here = answers_of_code(theirs)['entries'], page.evaluate('code => sv.courseOfCode(code)', answer_code(file))
    assert back == answers_of_code(answer_code(file))['entries'] == here['entries']
    assert here['set'] == file['set'] == page.evaluate('f => sv.courseFile(f.nickname, f.entries).set', file)
    wrong = page.evaluate('''code => [code.slice(0, -1), code.replace('.W', '.X'), 'x', ''].map(one => {
        try { sv.courseOfCode(one); return ''; } catch (error) { return error.message; } })''', theirs)
    assert all('code' in text for text in wrong)

# --- by keyboard alone

def press(p, *keys):
    for key in keys: p.keyboard.press(key)

def answer_by_keys(p, kind):
    "Answer from the first element that Tab reaches, and return the answer"
    if kind == 'words': press(p, 'ArrowRight', 'End', 'Home', *['ArrowRight']*4, ' ', *['ArrowRight']*4, 'Enter')
    if kind == 'head': press(p, 'ArrowDown', 'ArrowDown', 'ArrowUp', *['ArrowRight']*8, ' ')
    if kind == 'choice': press(p, ' ', 'ArrowDown')
    if kind == 'order': press(p, 'ArrowDown', 'ArrowDown', 'Alt+ArrowUp', 'Alt+ArrowUp', 'Alt+ArrowUp')
    if kind == 'number': press(p, 'Home', *['ArrowRight']*30)
    if kind == 'slope': press(p, *['PageUp']*3)
    return dict(some_answer)[kind]

@pytest.mark.sample(1)
@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('kind', every_kind)
def test_a_prediction_is_answered_talked_about_and_revealed_by_keyboard_alone(opened, tmp_path, kind, scheme):
    one = Predict('1.x', 'What will it be?', every_kind[kind], some_truth[kind])
    seen = Reveal('1.x', content='It is this.', title='The run')
    p = opened(write_lesson(tmp_path/'l.html', one, seen), color_scheme=scheme)
    assert p.get_attribute('.course-predict', 'data-theme') == scheme
    p.focus('#before')
    press(p, 'Tab', 'Tab') # the button for full screen comes first
    value = answer_by_keys(p, kind)
    press(p, *['Tab']*(2 if kind == 'number' else 2 if kind == 'slope' else 1)) # past a separate field or button
    press(p, ' ', 'ArrowRight', 'ArrowRight', 'Tab')
    p.keyboard.type('for fun')
    press(p, 'Tab', 'Enter')
    settled(p)
    first = entry(p)['first']
    assert (first['value'], first['confidence'], first['why']) == (value, 'sure', 'for fun')
    assert state(p) == 'committed' and p.evaluate('() => document.activeElement.textContent').startswith('Answer again')
    press(p, 'Enter') # pressing it twice in a row reveals nothing
    settled(p)
    assert p.evaluate('() => document.activeElement.closest(".cr-place") !== null')
    press(p, *['Tab']*(2 if kind in ('number', 'slope') else 1))
    press(p, 'ArrowLeft', 'Tab', 'Tab', 'Enter')
    settled(p)
    assert state(p) == 'discussed' and entry(p)['second']['value'] == value and entry(p)['first'] == first
    press(p, 'Enter')
    p.wait_for_selector('.cr-ink-true, .cr-tag-true, .cr-true', state='attached')
    assert state(p) == 'revealed'
    assert p.evaluate('() => document.activeElement.classList.contains("course-predict")'), 'Tab goes on from here'
    lines = p.inner_text('.cr-results')
    assert 'score' in lines and 'you, later' in lines
    assert truth_text(every_kind[kind], one.truth()).split(' ')[0] in p.inner_text('.course-predict')
    answered = entry(p)
    assert checked_entry(one.query, answered, one.id) == {name: answered[name] for name in answered}

@pytest.mark.slow
def test_enter_in_the_line_of_why_commits(opened, tmp_path):
    p = opened(write_lesson(tmp_path/'l.html', Predict('1.x', 'Which?', words(film), ['never'])))
    p.focus('.cr-why-field')
    press(p, 'Enter')
    assert 'Choose a word first' in p.inner_text('.cr-note') and state(p) == 'open'
    press(p, ' ', 'Tab', ' ', 'Tab')
    p.keyboard.type('so')
    press(p, 'Enter')
    settled(p)
    assert entry(p)['first']['why'] == 'so' and entry(p)['second'] is None

@pytest.mark.slow
def test_no_key_that_is_handled_reaches_the_page_around(opened, tmp_path):
    p = opened(write_lesson(tmp_path/'l.html', *(Predict(f'1.{kind}', 'What?', cards)
                                                 for kind, cards in every_kind.items())))
    p.evaluate('() => { window.heard = []; document.addEventListener("keydown", e => heard.push(e.key)); }')
    for selector in ('.cr-word', '.cr-cell', '.cr-handle', '.cr-slope'):
        p.focus(f'{selector}[tabindex="0"]')
        press(p, 'ArrowDown', 'ArrowUp', *([] if selector == '.cr-handle' else [' ', 'Enter']), 'Home', 'End')
        assert p.evaluate('() => document.activeElement.dataset.lmSuppressShortcuts') == 'true'
        press(p, 'Control')
    assert p.evaluate('() => heard') == ['Control']*4, 'so that JupyterLab can still be told to save'

@pytest.mark.slow
def test_missing_answers_are_named_and_nothing_is_committed(opened, tmp_path):
    p = opened(write_lesson(tmp_path/'l.html', Predict('1.x', 'Which?', words(film, most=2))))
    p.click('text=Commit')
    assert p.inner_text('.cr-note') == 'Choose a word first.' and entry(p) is None
    for word in ('never', 'bad', 'film'): p.click(f'.cr-word:text-is("{word}")')
    assert p.locator('.cr-word[aria-selected=true]').all_inner_texts() == ['bad', 'never']
    assert '2 words at most' in p.inner_text('.sv-said')
    p.click('text=Commit')
    assert p.inner_text('.cr-note') == 'First choose how sure you are.' and entry(p) is None
    p.click('.cr-word:text-is("bad")')
    p.click('.cr-word:text-is("film")')
    p.click('text=a guess')
    p.click('text=Commit')
    assert entry(p)['first']['value'] == [1, 8]
    p.click('.cr-word:text-is("the")', force=True)
    assert p.locator('.cr-word[aria-selected=true]').all_inner_texts() == ['film', 'never'], 'it cannot be changed'

# --- pointers

def commit(p, sure='a guess'):
    p.click(f'text={sure}')
    p.click('button:text-is("Commit")')

@pytest.mark.slow
def test_items_are_dragged_into_their_order_by_mouse(opened, tmp_path):
    p = opened(write_lesson(tmp_path/'l.html', Predict('1.x', 'Order?', order('a', 'b', 'c', 'd'))))
    boxes = [handle.bounding_box() for handle in p.locator('.cr-handle').all()]
    p.mouse.move(boxes[3]['x'] + 60, boxes[3]['y'] + 15)
    p.mouse.down()
    p.mouse.move(boxes[3]['x'] + 60, boxes[1]['y'] + 15, steps=8)
    p.mouse.up()
    p.click('.cr-order-item:has-text("a") .cr-arrow >> nth=1')
    commit(p)
    assert entry(p)['first']['value'] == [3, 0, 1, 2]

@pytest.mark.slow
def test_the_end_of_a_line_is_drawn_by_mouse_and_by_touch(opened, tmp_path):
    url = write_lesson(tmp_path/'l.html', Predict('1.x', 'Where?', slope(.2)))
    for kw in ({}, dict(has_touch=True)):
        p = opened(url, **kw)
        p.evaluate('() => salvizCourse.book.say({entries: {}})')
        p.reload()
        p.wait_for_function('() => window.salvizCourse')
        zone = p.locator('.cr-slope-zone').bounding_box()
        x, y = zone['x'] + zone['width']/3, zone['y'] + zone['height']/2
        if kw: p.touchscreen.tap(x, y)
        else: p.mouse.click(x, y)
        commit(p)
        assert entry(p)['first']['value'] == pytest.approx(.5, abs=.02)

@pytest.mark.slow
def test_words_and_heads_are_chosen_by_touch(opened, tmp_path):
    p = opened(write_lesson(tmp_path/'l.html', Predict('1.x', 'Which?', words(film)), Predict('1.y', 'Which?',
                            head(6, 12))), has_touch=True, viewport=dict(width=360, height=800))
    for word in ('bad', 'never'): p.tap(f'.cr-word:text-is("{word}")')
    p.tap('[aria-label="layer 5, head 11"]')
    for name in '1.x', '1.y':
        p.tap(f'[data-course-name="{name}"] >> text=I think so')
        p.tap(f'[data-course-name="{name}"] >> button:text-is("Commit")')
    assert [entry(p, name)['first']['value'] for name in ('1.x', '1.y')] == [[4, 8], [5, 11]]

# --- before an answer is committed

def test_neither_truth_nor_reveal_is_in_the_document_before_an_answer_is_committed(opened, tmp_path):
    class Html:
        def _repr_html_(self): return '<b class="secret">the secret table</b>'
    one, two = (Predict(f'1.{name}', 'Which?', choice('left', 'right'), 'right') for name in 'xy')
    seen = Reveal('1.x', '1.y', content=['the secret text', Html(), Predict('1.inner', 'And then?', words(film))])
    url = write_lesson(tmp_path/'l.html', one, two, seen)
    assert 'secret' not in (tmp_path/'l.html').read_text()
    p = opened(url)
    assert 'secret' not in p.content() and p.locator('.cr-true, .cr-tag-true').count() == 0
    p.click('[data-course-name="1.x"] >> text=left')
    p.click('[data-course-name="1.x"] >> text=a guess')
    p.click('[data-course-name="1.x"] >> button:text-is("Commit")')
    assert p.locator('.cr-true, .cr-tag-true').count() == 0 and 'secret' not in p.content()
    assert p.inner_text('.cr-wait').startswith('Shown after you commit 1.y')
    p.click('.cr-link')
    assert p.evaluate('() => document.activeElement.closest("[data-course-name]").dataset.courseName') == '1.y'
    p.click('[data-course-name="1.y"] >> text=right')
    p.click('[data-course-name="1.y"] >> text="sure"')
    p.click('[data-course-name="1.y"] >> button:text-is("Commit")')
    assert 'secret' not in p.content(), 'it waits to be asked for: neighbours may talk first'
    p.click('button:text-is("Show")')
    p.wait_for_selector('.secret')
    assert state(p, '1.x') == state(p, '1.y') == 'revealed'
    p.wait_for_selector('[data-course-name="1.inner"]')
    p.click('[data-course-name="1.inner"] >> .cr-word:text-is("bad")')
    p.wait_for_function('() => document.querySelectorAll(".cr-option-text.cr-true").length === 2')

@pytest.mark.slow
def test_showing_anyway_is_recorded_as_skipped(opened, tmp_path):
    one, seen = Predict('1.x', 'Which?', words(film), ['never']), Reveal('1.x', content='It.')
    p = opened(write_lesson(tmp_path/'l.html', one, seen))
    p.click('text=Show anyway')
    p.wait_for_selector('.cr-text')
    assert entry(p)['skipped'] and entry(p)['first'] is None and state(p) == 'revealed'
    assert 'recorded as skipped' in p.inner_text('.course-predict') and not p.is_visible('text=Commit')
    p.wait_for_selector('.cr-true')
    p.reload()
    p.wait_for_selector('.cr-text')
    assert 'skipped' in p.inner_text('.course-predict .cr-state')

@pytest.mark.slow
def test_an_explorer_is_opened_within_a_reveal_and_only_then(opened, tmp_path):
    run = invented.run(tmp_path/'run', probes=(0, 1), steps=(0, 10))
    seen = Reveal('1.x', page_of(run, panels=['sentence', 'heads'], plotly=False), title='Look')
    p = opened(write_lesson(tmp_path/'l.html', Predict('1.x', 'Which?', words(film)), seen))
    assert p.locator('canvas').count() == 0 and p.locator('#salviz-meta').count() == 0
    p.click('text=Show anyway')
    p.wait_for_function('() => document.querySelector(".cr-content .sv-heads canvas")?.width > 50')
    assert p.locator('.cr-content .sv-line .sv-chip').count() > 2

@pytest.mark.slow
def test_curves_in_a_reveal_find_the_plotly_that_the_page_carries_once(opened, tmp_path):
    run = invented.run(tmp_path/'run', probes=(0,), steps=(0, 10))
    seen = Reveal('1.x', page_of(run, panels=['time', 'sentence'], plotly=False))
    more = f'<script type="text/plain" id="salviz-plotly">{text_of_bytes(plotly_gz())}</script>'
    p = opened(write_lesson(tmp_path/'l.html', Predict('1.x', 'Which?', words(film)), seen, more=more))
    p.click('text=Show anyway')
    p.wait_for_selector('.cr-content .js-plotly-plot', timeout=20000)

# --- persistence

def test_answers_and_reveals_survive_a_reload_per_lesson(opened, tmp_path):
    one = Predict('1.x', 'Which?', words(film), ['never'])
    url = write_lesson(tmp_path/'l.html', one, Reveal('1.x', content='It is never.'), Answers())
    p = opened(url)
    p.click('.cr-word:text-is("bad")')
    p.fill('.course-predict input[type=text]', 'a reason')
    commit(p)
    assert state(p) == 'committed'
    p.reload()
    p.wait_for_function('() => window.salvizCourse')
    assert state(p) == 'committed' and 'a reason' in p.inner_text('.cr-results') and 'It is never' not in p.content()
    p.click('button:text-is("Show")')
    p.wait_for_selector('.cr-text')
    p.reload()
    p.wait_for_selector('.cr-text')
    assert state(p) == 'revealed' and 'score' in p.inner_text('.cr-results')
    write_lesson(tmp_path/'l.html', one, lesson='2')
    p.reload()
    p.wait_for_function('() => window.salvizCourse')
    assert state(p) == 'open'
    write_lesson(tmp_path/'l.html', Predict('1.x', 'Another question?', words(film), ['never']))
    p.reload()
    p.wait_for_function('() => window.salvizCourse')
    assert state(p) == 'open', 'an answer to another question is none to this'

@pytest.mark.slow
def test_unsaved_answers_survive_in_the_tab(opened, tmp_path):
    p = opened(write_lesson(tmp_path/'l.html', Predict('1.x', 'Which?', words(film)), Answers()))
    p.click('.cr-word:text-is("bad")')
    commit(p)
    p.evaluate('() => localStorage.clear()')
    p.reload()
    p.wait_for_function('() => window.salvizCourse')
    assert state(p) == 'committed'
    p.evaluate('() => { localStorage.clear(); sessionStorage.setItem(`${salvizCourse.book.key} time`, "-1"); }')
    p.reload()
    p.wait_for_function('() => window.salvizCourse')
    assert state(p) == 'open', 'what another tab did later counts'

@pytest.mark.slow
@pytest.mark.parametrize('answered', ['{', '[]', '{"entries": 3}', '{"entries": {"1.x": {"state": "revealed"}}}',
    '{"entries": {"1.x": {"id": "ID", "kind": "words", "state": "committed", "first": {"value": [99]}}}}',
    '{"entries": {"1.x": {"id": "ID", "kind": "words", "state": "committed", "first": null}}}'])
def test_what_is_damaged_in_the_storage_is_not_believed(opened, tmp_path, answered):
    one = Predict('1.x', 'Which?', words(film), ['never'])
    p = opened(write_lesson(tmp_path/'l.html', one))
    p.evaluate('kept => localStorage.setItem(salvizCourse.book.key, kept)', answered.replace('ID', one.id))
    p.reload()
    p.wait_for_function('() => window.salvizCourse')
    assert state(p) == 'open' and p.is_visible('text=Commit')

@pytest.mark.slow
def test_without_storage_a_message_is_shown_and_the_rest_works(page, tmp_path):
    write_lesson(tmp_path/'l.html', Predict('1.x', 'Which?', words(film), ['never']), Answers())
    page.set_content((tmp_path/'l.html').read_text())
    page.wait_for_function('() => window.salvizCourse')
    assert 'download them before you close' in page.inner_text('.course-answers')
    page.click('.cr-word:text-is("bad")')
    commit(page)
    page.click('text=Show the answer')
    page.wait_for_selector('.cr-true')
    assert 'F1 0' in page.inner_text('.cr-results')

@pytest.mark.slow
def test_answers_leave_as_a_file_and_a_code_that_python_reads(opened, tmp_path):
    one = Predict('1.x', 'Which?', words(film), ['never'])
    p = opened(write_lesson(tmp_path/'l.html', one, Predict('1.y', 'Up?', choice('up', 'down')), Answers()))
    p.click('.cr-word:text-is("never")')
    p.click('.course-predict >> nth=0 >> text=a guess')
    p.click('.course-predict >> nth=0 >> text=Commit')
    p.click('text=Show the answer')
    p.wait_for_selector('.cr-true')
    p.click('text=Download')
    assert 'nickname first' in p.inner_text('.course-answers .cr-note')
    p.fill('.cr-nickname input', 'a b')
    assert 'letters a to z' in p.inner_text('.course-answers .cr-note')
    p.fill('.cr-nickname input', 'alice')
    with p.expect_download() as download: p.click('text=Download')
    assert download.value.suggested_filename == 'answers-alice.json'
    download.value.save_as(tmp_path/'answers-alice.json')
    file = read_answers(tmp_path/'answers-alice.json')
    answered = file['entries']['1.x']
    assert file['lesson'] == '1' and answered['scores'] == [1, None] and list(file['entries']) == ['1.x']
    assert checked_entry(one.query, answered, one.id)['state'] == 'revealed'
    code = answers_of_code(p.input_value('.cr-code'))
    assert code['nickname'] == 'alice' and code['entries']['1.x']['first']['value'] == [8]
    rows = p.locator('.cr-table tbody tr').all_inner_texts()
    assert len(rows) == 2 and 'never' in rows[0] and 'not answered' in rows[1]
    assert not re.search('right|correct|well done|total|sum', p.inner_text('.course-answers'), re.I)

@pytest.mark.slow
def test_a_class_file_is_shown_after_the_reveal(opened, tmp_path):
    one = Predict('1.x', 'Which?', words(film), ['never'])
    pupils = [answers_file(f'p{i}', {'1.x': session.commit(session.new_entry(one.query, one.id), [8 if i else 4])})
              for i in range(5)]
    path = session._write_class_answers(pupils, tmp_path/'class.json')
    p = opened(write_lesson(tmp_path/'l.html', one, Answers()))
    p.set_input_files('input[type=file]', path)
    noted = 'text => document.querySelector(".course-answers .cr-note").textContent.includes(text)'
    p.wait_for_function(noted, arg='to 1 question.')
    assert p.locator('.cr-tag-class').count() == 0
    p.click('.cr-word:text-is("bad")')
    commit(p)
    p.click('text=Show the answer')
    p.wait_for_selector('text=4 of 5')
    assert 'never: 4; bad: 1 (5 answers)' in p.inner_text('.course-predict .cr-results')
    p.set_input_files('input[type=file]', [dict(name='x.json', mimeType='application/json', buffer=b'{"no')])
    p.wait_for_function(noted, arg='Problems: x.json is not JSON')

@pytest.mark.slow
def test_a_damaged_class_file_breaks_no_page_at_no_reload_and_the_rest_is_shown(opened, tmp_path):
    one = Predict('1.x', 'Which?', words(film), ['never'])
    whole = dict(id=one.id, kind='words', first=[[8], [4]], second=[[8], [4]], confidence=['sure', 'guess'])
    p = opened(write_lesson(tmp_path/'l.html', one, Answers()))
    p.click('.cr-word:text-is("bad")')
    commit(p)
    p.click('text=Show the answer')
    shown = 'text => (document.querySelector(".cr-results")?.innerText ?? "").includes(text)'
    def class_file(**change): return dict(salviz='class-answers', version=1, entries={'1.x': whole | change})
    wrong = [class_file(first=[3, [8]]), class_file(first=[[8]]), class_file(first=7),
             class_file(kind='choice', first=[0, 1]), class_file(first=[[99], [8]]),
             dict(salviz='class-answers', version=1, entries=[1]), [], 3, None,
             dict(salviz='answers', version=1, nickname='eve', entries={'1.x': dict(kind='words', state=[], first=3)})]
    files = [dict(name=f'{i}.json', mimeType='application/json', buffer=json.dumps(x).encode())
             for i, x in enumerate([*wrong, class_file()])]
    for i, file in enumerate(files):
        p.set_input_files('input[type=file]', [file])
        p.wait_for_function('i => document.querySelector(".course-answers .cr-note").textContent.includes(i)',
                            arg=f'{i}.json' if i not in (4, len(wrong)) else 'class answers to 1 question.')
        p.reload()
        p.wait_for_function('() => window.salvizCourse')
        assert p.locator('.salviz-failed').count() == 0
    p.wait_for_function(shown, arg='(2 answers)')
    p.set_input_files('input[type=file]', files) # all at once: the valid parts of each file count
    p.wait_for_function(shown, arg='(3 answers)')
    older = dict(first=3), dict(first=[3], second=[3], confidence=['sure']), dict(first=[[99]]), 3
    for answered in older:
        stored = dict(classmates={'1.x': whole | answered if isinstance(answered, dict) else answered},
                      entries={'1.x': 3, '1.y': None})
        p.evaluate('''kept => { for (const storage of [localStorage, sessionStorage])
            storage.setItem(salvizCourse.book.key, JSON.stringify(kept)); }''', stored)
        p.reload()
        p.wait_for_function('() => window.salvizCourse')
        assert p.locator('.salviz-failed').count() == 0 and state(p) == 'open'

# --- display

@pytest.mark.slow
@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_texts_can_be_read_against_what_is_behind_them_in_every_state(opened, tmp_path, scheme):
    cards = [Predict(f'1.{kind}', 'What?', one, some_truth[kind]) for kind, one in every_kind.items()]
    p = opened(write_lesson(tmp_path/'l.html', *cards, Reveal('1.words', content='It.', title='x'), Answers()),
               color_scheme=scheme)
    entries = {one.name: session.commit(session.new_entry(one.query, one.id), some_answer[one.query.kind], 'sure', 'x')
               for one in cards}
    later = {name: session.discuss(one, one['first']['value']) for name, one in entries.items()}
    revealed = {name: session.reveal(one) for name, one in later.items()}
    of_class = {one.name: dict(id=one.id, kind=one.query.kind, first=[some_answer[one.query.kind]]*3,
                               second=[some_answer[one.query.kind]]*3, confidence=['sure']*3) for one in cards}
    seen = 0
    for answered in ({}, entries, later, revealed):
        p.evaluate('kept => salvizCourse.book.say(kept)', dict(entries=answered, classmates=of_class))
        p.reload()
        p.wait_for_function('() => window.salvizCourse')
        shown = '() => document.querySelectorAll(".cr-result .cr-tag-true").length === 5'
        if answered is revealed: p.wait_for_function(shown)
        settled(p)
        ratios = p.evaluate(contrast)
        seen += len(ratios)
        assert [r for r in ratios if r[0] < 4.5] == []
    assert seen > 300

@pytest.mark.slow
@pytest.mark.parametrize('width', [360, 760, 1920])
@pytest.mark.parametrize('count', [3, 60])
def test_nothing_is_wider_than_the_page_whatever_the_sentence(opened, tmp_path, width, count):
    sentence = ' '.join(['extraordinarily', 'not', 'a'][i%3] + (',' if i%7 == 6 else '') for i in range(count))
    names = [f'a rather long name of an explanation {i}' for i in range(7)]
    kinds = [words(sentence, most=3), head(12, 16), choice(*names), order(*names), number(0, 1000, 1, '%'),
             slope(.2, ends=('before training', 'after twenty steps of training'))]
    truths = [[0, 1], (0, 2), 0, {name: (i, i + 1.5) for i, name in enumerate(names)}, (100, 300), .5]
    cards = [Predict(f'1.{one.kind}', 'What?', one, truth) for one, truth in zip(kinds, truths)]
    url = write_lesson(tmp_path/'l.html', *cards, Answers())
    p = opened(url, viewport=dict(width=width, height=800))
    values = [[0, 2], [11, 15], 6, [6, 5, 4, 3, 2, 1, 0], 400., .9]
    entries = {one.name: session.reveal(session.discuss(session.commit(session.new_entry(one.query, one.id), value),
               value)) for one, value in zip(cards, values)}
    for answered in ({}, entries):
        p.evaluate('entries => salvizCourse.book.say({entries})', answered)
        p.reload()
        p.wait_for_function('() => window.salvizCourse')
        settled(p)
        assert p.evaluate('() => document.documentElement.scrollWidth') <= width
        texts = '.course button, .course label, .course p, .cr-option-text, .cr-tag, .cr-order-text'
        cut = p.eval_on_selector_all(texts,
            """all => all.filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1
                && getComputedStyle(e).display !== 'inline').map(e => e.outerHTML.slice(0, 120))""")
        assert cut == []

@pytest.mark.slow
def test_arrow_keys_reach_every_word_of_a_sentence_that_is_broken_into_lines(opened, tmp_path):
    sentence = ' '.join(f'word{i}' for i in range(60))
    p = opened(write_lesson(tmp_path/'l.html', Predict('1.x', 'Which?', words(sentence))),
               viewport=dict(width=360, height=800))
    p.focus('.cr-word')
    tops = []
    for _ in range(60):
        tops.append(p.evaluate('() => document.activeElement.getBoundingClientRect().top + scrollY'))
        press(p, 'ArrowDown')
    lines = p.evaluate('() => new Set([...document.querySelectorAll(".cr-word")].map(w => w.offsetTop)).size')
    assert len(set(tops)) == lines > 5 and tops == sorted(tops)

@pytest.mark.slow
def test_every_text_from_outside_is_text(opened, tmp_path):
    cards = []
    for i, text in enumerate(hostile):
        sentence = f'a {text} film'
        cards += [Predict(f'1.w{i} {text}', text, words(sentence), [0]), Predict(f'1.c{i}', text, choice(text, 'b'), 0),
                  Predict(f'1.o{i}', text, order(text, 'b', first=text, last='x'), [0, 1]),
                  Predict(f'1.n{i}', text, number(0, 1, unit=text), .5),
                  Predict(f'1.s{i}', text, slope(.5, unit=text, ends=(text, 'x')), .5),
                  Reveal(f'1.c{i}', content=text, title=text)]
    p = opened(write_lesson(tmp_path/'l.html', *cards, Answers()))
    value = dict(words=[0], choice=0, order=[0, 1], number=.5, slope=.5)
    predicted = [one for one in cards if isinstance(one, Predict)]
    entries = {one.name: session.reveal(session.commit(session.new_entry(one.query, one.id), value[one.query.kind],
               'sure', hostile[i%len(hostile)])) for i, one in enumerate(predicted)}
    for answered in ({}, entries):
        p.evaluate('entries => salvizCourse.book.say({entries})', answered)
        p.reload()
        p.wait_for_function('() => window.salvizCourse')
        settled(p)
        assert p.evaluate('() => window.hit') is None and p.locator('img').count() == 0
        assert p.locator('.salviz-failed').count() == 0
    p.wait_for_function('() => document.querySelectorAll(".cr-text").length === 5')
    assert p.locator('.cr-text').nth(1).text_content() == hostile[1]

def test_states_and_kinds_have_accessible_names(opened, tmp_path):
    p = opened(write_lesson(tmp_path/'l.html', *(Predict(f'1.{kind}', f'What of {kind}?', one, some_truth[kind])
                                                 for kind, one in every_kind.items())))
    for role, kind in dict(listbox='words', grid='head', radiogroup='choice', list='order', slider='slope').items():
        assert p.get_by_role(role, name=f'What of {kind}?', exact=True).count() == 1, role
    assert p.get_by_role('spinbutton', name='What of number?').count() == 1
    assert p.get_by_role('group', name='What of words?').count() == 1
    assert p.get_by_role('option', name='never', selected=False).count() == 1
    assert p.get_by_role('gridcell', name='layer 3, head 4').count() == 1
    assert p.locator('.sv-said[aria-live=polite]').count() == 6
    p.focus('.cr-handle[tabindex="0"]')
    press(p, 'Alt+ArrowDown')
    assert p.inner_text('[data-course-name="1.order"] .sv-said') == 'a is now in position 2 of 3.'
    assert p.evaluate('() => document.activeElement.getAttribute("aria-label")').startswith('a, position 2 of 3')

def test_f_is_full_screen_but_a_letter_where_one_types(opened, tmp_path):
    p = opened(write_lesson(tmp_path/'l.html', Predict('1.x', 'Which?', words(film))))
    p.focus('.cr-word')
    press(p, 'f')
    p.wait_for_function('() => document.fullscreenElement?.classList.contains("course-predict")')
    press(p, 'f')
    p.wait_for_function('() => !document.fullscreenElement')
    p.focus('.cr-why-field')
    p.keyboard.type('for f')
    assert p.input_value('.cr-why-field') == 'for f' and p.evaluate('() => document.fullscreenElement') is None
    p.click('.cr-full')
    p.wait_for_function('() => document.fullscreenElement')

# --- as a widget

stub = '''() => {
    const listeners = {};
    window.sent = [];
    window.model = {state, get: name => state[name], set: (name, x) => { state[name] = x; emit(name); },
        save_changes: () => sent.push(JSON.parse(JSON.stringify(state.answer))), send: what => sent.push(what),
        on: (name, f) => (listeners[name] ??= new Set()).add(f), off: (name, f) => listeners[name]?.delete(f)};
    window.emit = name => { for (const f of listeners[`change:${name}`] ?? []) f(); };
    window.left = () => Object.values(listeners).reduce((n, all) => n + all.size, 0); }'''

def mount(page, widget):
    "Mount a widget without Jupyter: `state` has what its kernel would send, `sent` has what it sends"
    page.evaluate('css => { document.head.appendChild(document.createElement("style")).textContent = css; }',
                  styles() + course_styles())
    names = [name for name in ('about', 'answer', 'outcome', 'state', 'summary') if widget.has_trait(name)]
    send(page, state={name: getattr(widget, name) for name in names})
    page.evaluate(stub)
    page.evaluate('''async source => {
        const url = URL.createObjectURL(new Blob([source], {type: 'text/javascript'}));
        const {default: widget} = await import(url);
        document.body.innerHTML = '<div id="el"></div>';
        window.close_ = widget.render({model, el: document.getElementById('el')}); }''', _course_program())

def test_in_a_notebook_the_kernel_receives_answers_and_sends_the_truth(page):
    one = Predict('1.x', 'Which?', words(film), ['never'])
    mount(page, one)
    assert page.evaluate('() => JSON.stringify(state)').count('truth') == 0
    page.click('.cr-word:text-is("bad")')
    commit(page)
    one.answer = page.evaluate('() => sent.at(-1)')
    assert one.answer['state'] == 'committed' and one.answer['first']['value'] == [4]
    page.click('text=Show the answer')
    assert 'Waiting for the answer' in page.inner_text('.cr-note')
    one.answer = page.evaluate('() => sent.at(-1)')
    send(page, truth=one.outcome)
    page.evaluate('() => { state.outcome = truth; emit("outcome"); }')
    assert 'F1 0' in page.inner_text('.cr-results') and page.inner_text('.cr-note') == ''
    page.evaluate('() => close_()')
    assert page.evaluate('() => left()') == 0 and page.locator('.course').count() == 0

def test_in_a_notebook_a_reveal_sends_a_request_to_the_kernel(page):
    Predict('1.x', 'Which?', words(film), ['never'])
    seen = Reveal('1.x', content='It.')
    mount(page, seen.gate)
    page.click('text=Show anyway')
    assert page.evaluate('() => sent') == [dict(wish='anyway')]
    page.evaluate('() => { state.state = {waiting: [], open: false, error: ""}; emit("state"); }')
    page.click('button:text-is("Show")')
    assert page.evaluate('() => sent.at(-1)') == dict(wish='open')
    page.evaluate('() => { state.state = {waiting: [], open: true, error: "It could not be made."}; emit("state"); }')
    assert 'could not be made' in page.inner_text('.cr-note')

def test_in_a_notebook_answers_come_from_the_kernel(page, tmp_path):
    one = Predict('1.x', 'Which?', words(film), ['never'])
    one.commit(['never'], 'sure')
    one.reveal()
    mount(page, predictions.answers('alice', tmp_path))
    assert 'Saved to answers-alice.json.' in page.inner_text('.course-answers')
    assert 'sure (1)' in page.inner_text('.course-answers')
    with page.expect_download() as download: page.click('text=Download')
    assert download.value.suggested_filename == 'answers-alice.json'
    assert answers_of_code(page.input_value('.cr-code'))['entries']['1.x']['first']['value'] == [8]

def test_packed_is_what_a_page_unpacks(page):
    text = predictions.packed_text(dict(a='ü</script>'))
    assert json.loads(gzip.decompress(base64.b64decode(text))) == dict(a='ü</script>')
