"Marks: files and codes are read as they were written, or rejected with the reason; a class can mark by keyboard alone."
import json
import random
import subprocess
import sys

import pytest

from browser import evaluate_json, new_page, settled
from salviz.course import marks as marks_module
from salviz.course.marks import (Marks, _clean_nickname, _file_name, _sheet_json, checked_sheet, codes_in, mark_set,
                                 read_code, read_sheet, sheet_code)
from salviz.course.predictions import _course_program, course_styles, course_text
from salviz.explorer.assets import _exported, bundle, static_text

hostile = ['<img src=x onerror="window.broken=1">', "</script><script>window.broken=1</script>", '\u202eevil\u2066',
           'a:b:c', 'Zoë', '名前', '😀', 'A\u0301', '../../etc/passwd', 'x'*99, '  two  words\n', '"quoted"', '\ud800z']
texts = ['the film is not bad , but it never surprises .', "a dull story that doesn't move", 'warm and funny',
         '<b>bold</b> & </script> "quoted" 😀 words', 'x']

def invented(of, nickname, rng, unfinished=.2):
    "Return random marks of a student"
    marks = []
    for words in of.words:
        at = rng.sample(range(len(words)), rng.randint(0, min(of.most, len(words))))
        marks.append(None if rng.random() < unfinished else [int(i in at) for i in range(len(words))])
    return checked_sheet(of, nickname, marks)

def cases(count=60):
    "Yield (set, sheet) of random sets and students, including hostile names"
    rng = random.Random(0)
    for i in range(count):
        def sentence(): return ' '.join(rng.choice('abc') for _ in range(rng.randint(1, 18)))
        subset = [sentence() for _ in range(rng.randint(1, 20))]
        of = mark_set(texts if i % 5 == 0 else subset, most=rng.randint(1, 6))
        yield of, invented(of, hostile[i % len(hostile)], rng, rng.choice([0, .2, 1]))

def load_course(page, *modules):
    "Load `modules` of the course into `page`; their exports are in `window.sv`"
    program = bundle(*modules, read=course_text)
    names = ', '.join(_exported(*modules, read=course_text))
    page.evaluate("source => import(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})))",
                  f'{program}\nwindow.sv = {{{names}}};')

def mounted(page, of, value=None, theme=None):
    "Mount the marks of `of` in `page`; each new state is added to `window.written`"
    load_course(page, 'marks.js')
    page.evaluate('''([css, set, kept]) => {
        document.head.appendChild(document.createElement('style')).textContent = css;
        window.written = [];
        window.view = sv.mountMarks(document.body, set, kept, state => written.push(state)); }''',
                  [course_text('marks.css'), of.described(), value])

def test_files_and_codes_come_back_as_they_were_handed_in():
    for of, sheet in cases():
        assert read_sheet(of, _sheet_json(of, sheet)) == sheet
        assert read_code(of, sheet_code(of, sheet)) == sheet

def test_a_file_that_an_editor_has_saved_again_is_read():
    of, sheet = next(cases())
    text = _sheet_json(of, sheet)
    sheet_text = json.loads(text)
    in_words = dict(sheet_text, marks=[flags and [bool(x) for x in flags] for flags in sheet_text['marks']])
    for saved in ('\ufeff' + text, text.replace('\n', '\r\n'), json.dumps(sheet_text, indent=8), text + '\n\n',
                  json.dumps(dict(reversed(sheet_text.items()), comment='mine')), json.dumps(in_words)):
        assert read_sheet(of, saved) == sheet

def test_twenty_sentences_of_twelve_words_are_a_code_that_can_be_typed():
    of = mark_set([' '.join('abcdefghijkl')]*20)
    code = sheet_code(of, invented(of, 'alice', random.Random(1)))
    assert len(code.split(':')[2].replace('-', '')) == 6 + 39 + 7 and len(code) < 80

def test_every_single_mistyped_sign_is_noticed():
    of, rng = mark_set(texts), random.Random(0)
    code = sheet_code(of, invented(of, 'alice', rng))
    alike = [set('0oO'), set('1iIlL')]
    for i, c in enumerate(code):
        for other in '0123456789ABCDEFGHJKLMNPQRSTUVWXYZ-: é':
            same = c.upper() == other.upper() or any({c, other} <= pair for pair in alike)
            dash = c == '-' and other == '-'
            if same or dash: continue
            with pytest.raises(ValueError): read_code(of, code[:i] + other + code[i + 1:])

def test_neighbours_that_changed_places_and_lost_signs_are_noticed():
    of, rng = mark_set(texts), random.Random(3)
    for nickname in ('alice', 'bob'):
        code = sheet_code(of, invented(of, nickname, rng))
        start = code.rindex(':') + 1
        for i in range(start, len(code) - 1):
            swapped = code[:i] + code[i + 1] + code[i] + code[i + 2:]
            if swapped.replace('-', '') != code.replace('-', ''):
                with pytest.raises(ValueError, match='does not match its checksum'): read_code(of, swapped)
            if code[i] != '-':
                with pytest.raises(ValueError, match='does not match its checksum'):
                    read_code(of, code[:i] + code[i + 1:])

def test_a_code_survives_small_letters_other_dashes_line_breaks_and_a_chat_around_it():
    of, sheet = next(cases())
    sheet = checked_sheet(of, 'Alice', sheet.marks)
    code = sheet_code(of, sheet)
    for typed in (code.lower(), code.upper(), code.replace('-', '–'), code.replace('-', '-\n  '),
                  code.replace('0', 'o'), code.replace('1', 'l').replace('marksl', 'marks1'),
                  f'[10:02] Alice: {code}, done!'):
        assert read_code(of, typed).marks == sheet.marks
    assert codes_in(f'Alice: {code}\nBob: me too\n{code}') == [code, code]

def test_invalid_marks_raise_errors_with_the_reason():
    of = mark_set(texts)
    good = json.loads(_sheet_json(of, invented(of, 'amy', random.Random(0))))
    first = [0]*len(of.words[0])
    reasons = [
        ('{"salviz": "marks"', 'is not JSON'), ('[1]', 'not a marks file'), ('"marks"', 'not a marks file'),
        ('[' * 100000, 'is nested too deeply'),
        (dict(good, version=2), 'has version 2'), (dict(good, set='000000'), 'another set'),
        (dict(good, nickname=''), 'the nickname must be a non-empty string'),
        (dict(good, nickname=7), 'the nickname must be a non-empty string'),
        (dict(good, marks={}), 'marks must have one entry'), (dict(good, marks=good['marks'][:-1]), 'got 4 entries'),
        (dict(good, marks=[first[:-1], *good['marks'][1:]]), f'{len(first) - 1} flags for {len(first)} words'),
        (dict(good, marks=[[2] + first[1:], *good['marks'][1:]]), 'flags, 0 or 1'),
        (dict(good, marks=['0'*len(first), *good['marks'][1:]]), 'flags, 0 or 1'),
        (dict(good, marks=[[1]*len(first), *good['marks'][1:]]), 'at most 4 are allowed')]
    for sheet_text, reason in reasons:
        with pytest.raises(ValueError, match=reason):
            read_sheet(of, sheet_text if isinstance(sheet_text, str) else json.dumps(sheet_text))

@pytest.mark.slow
def test_another_process_reads_the_same(tmp_path):
    of, sheet = next(cases())
    (tmp_path/'texts.json').write_text(json.dumps([list(of.texts), of.most]))
    (tmp_path/'marks.json').write_text(_sheet_json(of, sheet), encoding='utf-8')
    code = '''
import json, sys
from salviz.course.marks import *
texts, most = json.load(open(sys.argv[1] + '/texts.json'))
of = mark_set(texts, most)
print(of.id); print(sheet_code(of, read_sheet(of, open(sys.argv[1] + '/marks.json', encoding='utf-8').read())))
print([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])'''
    done = subprocess.run([sys.executable, '-c', code, tmp_path], capture_output=True, text=True)
    assert done.stdout.splitlines() == [of.id, sheet_code(of, sheet), '[]'], done.stderr[-2000:]

def test_python_and_javascript_write_and_read_the_same_files_codes_and_names(page):
    load_course(page, 'markscode.js')
    table = [dict(set=of.described(), sheet=dict(nickname=s.nickname, marks=s.marks)) for of, s in cases()]
    result = evaluate_json(page, '''rows => rows.map(({set, sheet}) => {
        const code = sv.marksCode(set, sheet), file = sv.marksFile(set, sheet);
        return [code, JSON.parse(file), sv.marksFileName(sheet.nickname), sv.marksReadCode(set, code).marks,
                sv.marksReadFile(set, file).marks]; })''', table)
    for (of, sheet), (code, file, name, read, again) in zip(cases(), result):
        assert code == sheet_code(of, sheet) and file == json.loads(_sheet_json(of, sheet))
        assert name == _file_name(sheet.nickname)
        assert read == again == [None if flags is None else list(flags) for flags in sheet.marks]
        assert read_code(of, code) == sheet
    names = [name for name in hostile if '\ud800' not in name] + ['\t a\u00a0b\u2003c\x85d\x1ce', 'ſK:ı', 'a\u200db']
    assert evaluate_json(page, 'names => names.map(sv.marksNickname)', names) == [_clean_nickname(x) for x in names]

def test_python_and_javascript_raise_the_same_errors(page):
    load_course(page, 'markscode.js')
    of, rng = mark_set(texts), random.Random(5)
    sheet = invented(of, 'amy', rng)
    good, code, first = json.loads(_sheet_json(of, sheet)), sheet_code(of, sheet), [0]*len(of.words[0])
    files = ['{', '[]', '"x"', json.dumps(dict(good, version='1')), json.dumps(dict(good, set='ABC')),
             json.dumps(dict(good, nickname=[1, 'ü'])), json.dumps(dict(good, marks=7)),
             json.dumps(dict(good, marks=[None])), json.dumps(dict(good, marks=[[1]*len(first), *good['marks'][1:]])),
             json.dumps(dict(good, marks=[[1, 1], *good['marks'][1:]])),
             json.dumps(dict(good, marks=[[0, 'x', None], *good['marks'][1:]])),
             json.dumps({k: v for k, v in good.items() if k != 'marks'})]
    codes = ['hello', code[:-2], 'marks9' + code[6:], code.replace('amy', 'any'),
             sheet_code(mark_set(['warm']), checked_sheet(mark_set(['warm']), 'amy', [[1]]))]
    def reasons(read, texts):
        invalid = []
        for text in texts:
            try: invalid.append(read(of, text) and None)
            except ValueError as e: invalid.append(str(e))
        return invalid
    refuse = '''([set, texts]) => texts.map(text => {
        try { sv.NAME(set, text); return null; } catch (error) { return error.message; } })'''
    for read, name, texts_ in ((read_sheet, 'marksReadFile', files), (read_code, 'marksReadCode', codes)):
        in_page = evaluate_json(page, refuse.replace('NAME', name), [of.described(), texts_])
        assert in_page == reasons(read, texts_) and None not in in_page

def test_javascript_notices_every_mistyped_sign(page):
    load_course(page, 'markscode.js')
    of = mark_set(texts)
    code = sheet_code(of, invented(of, 'alice', random.Random(0)))
    wrong = [code[:i] + other + code[i + 1:] for i in range(13, len(code)) for other in '23456789ABCDEFGH' if
             code[i] not in (other, '-')]
    read = '([set, codes]) => codes.filter(code => { try { return sv.marksReadCode(set, code); } catch { return 0; } })'
    assert evaluate_json(page, read, [of.described(), wrong]) == []

def test_sentences_are_marked_by_keyboard_alone(page):
    of = mark_set(texts)
    mounted(page, of)
    for key in 'Tab Space ArrowRight ArrowRight Enter End ArrowLeft Space'.split(): page.keyboard.press(key)
    last = len(of.words[0]) - 2
    assert page.evaluate('view.state.marks[0]') == [int(i in (0, 2, last)) for i in range(len(of.words[0]))]
    assert page.locator('[role=option][aria-selected=true]').all_inner_texts() == [of.words[0][i] for i in (0, 2, last)]
    page.keyboard.press('PageDown')
    assert page.evaluate('document.activeElement.textContent') == of.words[1][0]
    for _ in range(3): page.keyboard.press('Tab')
    assert page.evaluate('document.activeElement.textContent') == 'No word is needed'
    page.keyboard.press('Enter')
    assert page.evaluate('view.state.marks.slice(1)') == [[0]*6, None, None, None]
    page.keyboard.press('Tab')
    page.keyboard.type('alice')
    code = page.locator('.sv-marks-code').input_value()
    assert [s.done for s in [read_code(of, code)]] == [2] and read_code(of, code).nickname == 'alice'
    for _ in range(2): page.keyboard.press('Tab')
    page.keyboard.press('Enter')
    page.wait_for_function("() => /code is/.test(document.querySelector('.sv-marks-hand .sv-marks-said').textContent)")

def test_the_limit_of_marked_words_is_enforced_with_a_message(page):
    of = mark_set(texts, most=2)
    mounted(page, of)
    for i in (0, 3, 5): page.locator('[role=option]').nth(i).click()
    assert sum(page.evaluate('view.state.marks[0]')) == 2
    assert '2 words at most' in page.locator('.sv-marks-said[aria-live]').first.inner_text()
    for i in (0, 3): page.locator('[role=option]').nth(i).click()
    assert page.evaluate('view.state.marks[0]') is None # no word is marked, nor is the sentence marked as needing none

def test_marks_leave_as_the_file_that_python_reads(page):
    of = mark_set(texts)
    mounted(page, of, dict(marks=[None, [1, 0, 0, 0, 0, 1], None, None, [0]], at=1, nickname='Zoë <b>'))
    with page.expect_download() as waiting: page.locator('text=Download file').click()
    assert waiting.value.suggested_filename == 'marks-Zo-b.json'
    sheet = read_sheet(of, open(waiting.value.path(), encoding='utf-8').read())
    assert sheet.nickname == 'Zoë <b>' and sheet.marks == (None, (1, 0, 0, 0, 0, 1), None, None, (0,))

def test_hostile_words_and_names_are_text(page):
    of = mark_set(['<img src=x onerror="window.broken=1"> is </script><script>window.broken=1</script> 😀 fine'])
    for name in hostile[:4]:
        mounted(page, of, dict(marks=[None], at=0, nickname=name))
        assert page.locator('[role=option]').all_inner_texts() == of.words[0]
        assert page.evaluate('[window.broken, document.images.length, document.body.querySelectorAll("script").length]'
                             ) == [None, 0, 0]
        page.evaluate('view.destroy()')

def test_a_state_that_is_of_something_else_is_taken_for_none(page):
    of = mark_set(texts)
    load_course(page, 'marks.js')
    empty = [None]*len(of)
    for value in (None, 7, [], dict(marks=[1]), dict(marks=[[1]*5]*5), dict(marks='x', at=-1), dict(at=99, nickname=3)):
        state = evaluate_json(page, '([set, kept]) => sv.marksStateOf(set, kept)', [of.described(), value])
        assert state == dict(marks=empty, at=0, nickname='')

@pytest.mark.sample(1)
@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('width', [360, 1280])
def test_nothing_is_cut_off_on_a_phone_or_a_wall_in_either_theme(browser, scheme, width):
    of = mark_set(['an extraordinarilyoverlongwordthatnobodyhyphenates ' + texts[0]] + texts)
    page = new_page(browser, viewport=dict(width=width, height=800), color_scheme=scheme)
    mounted(page, of, dict(marks=[[0, 1] + [0]*(len(of.words[0]) - 2)] + [None]*5, at=0, nickname='Zoë'))
    settled(page)
    assert page.evaluate('document.documentElement.scrollWidth') <= width
    assert page.eval_on_selector('.sv-marks', 'el => el.dataset.theme') == scheme
    colours = page.eval_on_selector('[aria-selected=true]', 'el => [getComputedStyle(el).color, '
                                    'getComputedStyle(el).backgroundColor]')
    assert contrast(*colours) > 4.5
    assert page.errors == [] and page.outside == []
    page.close()

def contrast(one, other):
    "Return the WCAG contrast of two colours, given as `rgb(r, g, b)`"
    def light(colour):
        parts = [int(x)/255 for x in colour[4:-1].split(',')[:3]]
        linear = [x/12.92 if x <= .03928 else ((x + .055)/1.055)**2.4 for x in parts]
        return sum(w*x for w, x in zip((.2126, .7152, .0722), linear))
    high, low = sorted([light(one), light(other)], reverse=True)
    return (high + .05)/(low + .05)

def test_keys_do_not_reach_the_page_around(page):
    mounted(page, mark_set(texts))
    page.evaluate("document.addEventListener('keydown', event => { window.reached = event.key; })")
    page.locator('[role=option]').first.focus()
    for key in ('Space', 'ArrowDown', 'PageDown', 'a', 'j'): page.keyboard.press(key)
    assert page.evaluate('window.reached ?? null') is None
    assert page.locator('.sv-marks').get_attribute('data-lm-suppress-shortcuts') == 'true'

@pytest.mark.slow
def test_a_page_without_a_kernel_stores_its_marks_over_a_reload(browser, tmp_path):
    marks = Marks('3.marks', texts)
    style, program = (f'{static_text("explorer.css")}{course_styles()}', _course_program('coursepage.js'))
    html = (f'<!doctype html><meta charset="utf-8"><style>{style}</style><body data-lesson="3">{marks.page_html()}'
            f'<script type="module">{program}</script></body>')
    for name in ('a', 'b'): (tmp_path/f'{name}.html').write_text(html, encoding='utf-8')
    marks.close()
    page = new_page(browser)
    def goto(name):
        page.goto((tmp_path/f'{name}.html').as_uri())
        page.locator('[role=option]').first.wait_for()
    goto('a')
    page.locator('[role=option]').nth(1).click()
    page.locator('.sv-marks-name input').fill('amy')
    code = page.locator('.sv-marks-code').input_value()
    goto('b')
    assert page.locator('[aria-selected=true]').count() == 0 and page.locator('.sv-marks-code').input_value() == ''
    goto('a')
    assert page.locator('.sv-marks-code').input_value() == code and read_code(marks.of, code).marks[0][1] == 1
    page.locator('[role=option]').first.focus()
    page.keyboard.press('f')
    page.wait_for_function('() => document.fullscreenElement?.matches(".course-marks")')
    assert page.errors == [] and [x for x in page.outside if not x.startswith(tmp_path.as_uri())] == []
    page.close()

def test_marks_are_synchronised_between_page_and_kernel(page):
    marks = Marks('3.marks', texts)
    traits = dict(about=marks.described(), state=dict(marks.state))
    marks.close()
    page.evaluate("""async ([source, traits]) => {
        const url = URL.createObjectURL(new Blob([source], {type: 'text/javascript'}));
        window.listeners = new Set();
        window.saved = [];
        window.model = {get: name => traits[name], set: (name, x) => { traits[name] = x; },
            save_changes: () => saved.push(structuredClone(traits.state)),
            on: (name, f) => { if (name === 'change:state') listeners.add(f); },
            off: (name, f) => listeners.delete(f)};
        window.end = (await import(url)).default.render({model, el: document.body}); }""", [_course_program(), traits])
    page.locator('[role=option]').nth(2).click()
    assert page.evaluate('saved.at(-1).marks[0][2]') == 1 and page.locator('[aria-selected=true]').count() == 1
    state = dict(marks=[[1] + [0]*10, None, None, None, None], at=0, nickname='amy')
    page.evaluate('state => { model.set("state", state); for (const tell of listeners) tell(); }', state)
    assert page.locator('[aria-selected=true]').all_inner_texts() == ['the']
    assert read_code(marks.of, page.locator('.sv-marks-code').input_value()).nickname == 'amy'
    assert len(page.evaluate('saved')) == 1 # a state from the kernel is not sent back to it
    page.evaluate('end()')
    assert page.evaluate('[listeners.size, document.querySelectorAll(".sv-marks").length]') == [0, 0]

def test_a_kernel_that_was_started_again_gets_the_marks_of_the_browser_unless_they_are_not_mine(browser, tmp_path):
    (tmp_path/'l.html').write_text('<!doctype html><body></body>')
    marks = Marks('3.marks', texts)
    sheet_text = [_course_program(), marks.described(), dict(marks.state)]
    marks.close()
    page = browser.new_page()
    page.goto((tmp_path/'l.html').as_uri())
    start = """async ([source, about, state]) => {
        const traits = {about, state};
        window.model = {get: name => traits[name], set: (name, x) => { traits[name] = x; }, save_changes: () => {},
            send: () => {}, on: () => {}, off: () => {}};
        document.body.replaceChildren();
        const url = URL.createObjectURL(new Blob([source], {type: 'text/javascript'}));
        (await import(url)).default.render({model, el: document.body}); }"""
    page.evaluate(start, sheet_text)
    assert 'restored' not in page.inner_text('.sv-marks')
    page.locator('.sv-marks-word').nth(1).click()
    marked = page.evaluate('() => model.get("state").marks')
    page.evaluate(start, sheet_text)
    assert page.evaluate('() => model.get("state").marks') == marked
    assert 'restored from this browser' in page.inner_text('.sv-marks')
    page.click('text=start over')
    assert page.evaluate('() => model.get("state").marks') == [None]*len(texts)
    page.evaluate(start, sheet_text)
    assert 'restored' not in page.inner_text('.sv-marks')
    page.close()

def test_a_widget_rejects_invalid_marks_and_a_missing_nickname():
    marks = Marks('3.marks', texts)
    with pytest.raises(ValueError, match='no nickname yet'): marks.code
    marks.state = dict(marks=[[1]*len(marks.of.words[0])] + [None]*4, at=0, nickname='amy')
    with pytest.raises(ValueError, match='at most 4'): marks.sheet
    with pytest.raises(ValueError, match='`name` must be a non-empty string'): Marks('', texts)
    assert marks_module.mark_set(marks.of) is marks.of
    marks.close()
