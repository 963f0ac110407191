"""Pages of lessons, opened from disk in a real browser: no network requests, and nothing is shown before it is
predicted."""
import os
import re
from pathlib import Path

import pytest

import accessible
import lessons
from browser import browser, new_page, settled # noqa: F401 (fixture)
from salviz.course import grading
from salviz.course.editions import cell_text, lesson_files, read_lesson
from salviz.course.pages import Fragments, _maths, _words_html, lesson_html, write_pages
from salviz.course.predictions import course_styles

sources = Path(__file__).resolve().parents[2]/'nbs'/'00_lessons'
lesson_paths = lesson_files(sources) if sources.is_dir() else []
read = [path for path in lesson_paths if path.stem != '0_for_teachers'] # by students

@pytest.fixture(scope='module')
def pages(tmp_path_factory):
    "Write the pages of the small lesson"
    folder = tmp_path_factory.mktemp('pages')
    write_pages(folder, lessons=lessons.written(folder/'sources'), has_class=True, fact=lessons.facts,
                say=lambda line: None)
    return folder

def opened(browser, path, **kw):
    "Open the file at `path` in a separate page"
    p = new_page(browser, **kw)
    p.outside.clear()
    p.goto(path.absolute().as_uri())
    p.wait_for_function('() => document.documentElement.dataset.theme')
    return p

def closed(p, *paths):
    "Check that there were no errors in `p` and that only the files themselves were requested"
    errors, outside = p.errors, set(p.outside) - {path.absolute().as_uri() for path in paths}
    p.close()
    assert errors == [] and outside == set()

def show(p, name):
    "Reveal the content for the prediction `name` without predicting"
    p.locator(f'.course-reveal[data-course-name="reveal {name}"]').get_by_role('button', name='Show anyway').click()

def explorers(p): return p.locator('.course-explorer .sv-panel:not([hidden]) canvas').count()

@pytest.mark.slow
@pytest.mark.parametrize('scheme,background', [('light', 'rgb(255, 255, 255)'), ('dark', 'rgb(21, 24, 28)')])
@pytest.mark.parametrize('width', [360, 1300])
def test_a_page_opens_from_disk_in_both_themes_and_never_scrolls_sideways(browser, pages, scheme, background, width):
    p = opened(browser, pages/'1_row.html', color_scheme=scheme, viewport=dict(width=width, height=800))
    assert p.evaluate('() => document.documentElement.dataset.theme') == scheme
    assert p.evaluate('() => getComputedStyle(document.body).backgroundColor') == background
    show(p, '1.words'); show(p, '1.class')
    p.wait_for_function('() => document.querySelectorAll(".course-explorer .salviz .sv-panel canvas").length > 2')
    assert p.evaluate('() => document.querySelector(".course-explorer .salviz").dataset.theme') == scheme
    assert p.evaluate('() => document.documentElement.scrollWidth <= window.innerWidth')
    closed(p, pages/'1_row.html')

def test_what_is_revealed_is_absent_before_a_commitment_and_there_after_it(browser, pages):
    path = pages/'1_row.html'
    assert 'revealed words say' not in path.read_text()
    p = opened(browser, path)
    assert p.locator('.course-explorer').count() == 0 and 'revealed words' not in p.content()
    card = p.locator('.course-predict[data-course-name="1.words"]')
    for word in ('best', 'movies'): card.get_by_role('option', name=word).click()
    card.get_by_label('I think so').check()
    card.get_by_role('button', name='Commit', exact=True).click()
    assert p.locator('.course-explorer').count() == 0
    card.get_by_role('button', name='Keep my first answer').or_(
        card.get_by_role('button', name='Show the answer')).first.click()
    p.locator('.course-reveal[data-course-name="reveal 1.words"]').get_by_role('button', name='Show', exact=True).or_(
        p.locator('.course-explorer')).first.click()
    p.wait_for_function('() => document.querySelectorAll(".course-explorer .salviz").length === 1')
    assert p.locator('strong', has_text='best').count() == 1
    assert p.locator('.course-reveal[data-course-name="reveal 1.class"] .course-explorer').count() == 0
    closed(p, path)

@pytest.mark.slow
def test_two_reveals_of_one_run_store_its_data_once(browser, pages):
    text = (pages/'1_row.html').read_text()
    stored = re.findall(r'<script type="[^"]*" data-part="(\w+)">(.*?)</script>', text, re.S)
    assert len({name for name, _ in stored}) == len(stored) == len({data for _, data in stored})
    p = opened(browser, pages/'1_row.html')
    show(p, '1.words'); show(p, '1.class')
    p.wait_for_function('() => document.querySelectorAll(".course-explorer .salviz").length === 2')
    used = p.eval_on_selector_all('.course-explorer', 'all => all.map(place => JSON.parse(place.dataset.parts))')
    frames = [{part for name, part in one.items() if name.startswith('salviz-frames')} for one in used]
    assert frames[0] == frames[1] and {part for one in used for part in one.values()} == {name for name, _ in stored}
    closed(p, pages/'1_row.html')

def test_plotly_is_in_the_page_only_where_a_panel_draws_with_it(tmp_path):
    def page(panels):
        lesson = lessons.lesson(changed={8: f"Reveal('1.words', lambda: Explorer(run, probes=[0], panels={panels}))",
                                         9: 'None'})
        return len(lesson_html(lesson, '1_row', fact=lessons.facts))/1e6
    assert page(['sentence']) < 1 and 2 < page(['time']) < 3

@pytest.mark.slow
def test_a_page_has_a_language_headings_and_a_link_to_its_start(browser, pages):
    p = opened(browser, pages/'1_row.html')
    assert p.evaluate('() => document.documentElement.lang') == 'en' and 'Which word' in p.title()
    assert p.locator('h1').count() == 1
    levels = p.eval_on_selector_all('main > :is(h1, h2, h3)', 'all => all.map(one => Number(one.tagName[1]))')
    assert levels[0] == 1 and all(b <= a + 1 for a, b in zip(levels, levels[1:]))
    p.keyboard.press('Tab')
    assert p.evaluate('() => document.activeElement.className') == 'course-skip'
    assert p.evaluate('() => document.activeElement.getBoundingClientRect().left') >= 0
    p.keyboard.press('Enter')
    assert p.evaluate('() => location.hash') == '#course-main'
    assert p.locator('main math').count() >= 2 and p.locator('main details').count() == 5
    assert accessible.faults(p) == []
    assert 'In a notebook you write' in p.inner_text('main') and 'Exercise.' not in p.inner_text('main')
    closed(p, pages/'1_row.html')

def test_a_page_contains_no_code_and_no_solution(pages):
    text = (pages/'1_row.html').read_text()
    for hidden in ('Run.example', 'def row', 'np.exp', 'overflows', 'Misconceptions', 'Expected', 'trained = True',
                   '<!--1'):
        assert hidden not in text, hidden

@pytest.mark.slow
def test_the_index_leads_to_every_lesson_and_back(browser, pages):
    p = opened(browser, pages/'index.html')
    assert p.eval_on_selector_all('main a', 'all => all.map(one => one.getAttribute("href"))') == [
        '1_row.html', '0_transformers.html', 'class.html']
    p.get_by_role('link', name='1 Which word is read most?').click()
    p.get_by_role('link', name='All lessons').click()
    assert p.title() == 'Tell a model where to look'
    closed(p, pages/'index.html', pages/'1_row.html')

@pytest.mark.slow
def test_teachers_pages_fold_what_is_theirs(tmp_path):
    sources = lessons.written(tmp_path/'sources')
    write_pages(tmp_path, 'teacher_page', sources, fact=lessons.facts, say=lambda line: None)
    text = (tmp_path/'1_row.html').read_text()
    assert '<details><summary>For the teacher</summary>' in text and 'Misconceptions' in text
    assert '<h1>For those who teach</h1>' in (tmp_path/'0_for_teachers.html').read_text()

@pytest.mark.slow
@pytest.mark.parametrize('hostile', ['</script><script>window.hit = 1</script>', '<img src=x onerror="window.hit = 2">',
                                     '<!-- <script>', '"><svg onload=window.hit=3>', '&lt;b&gt;', 'a\u2028b', ']]>'])
def test_words_from_outside_are_text(browser, tmp_path, hostile):
    cells = [('code', f'import pandas as pd\nhostile = {hostile!r}', ''), ('code', 'print(hostile)', ''),
             ('code', 'pd.DataFrame({hostile: [hostile]}, index=[hostile])', ''),
             ('code', "Predict('1.h', hostile, choice(hostile, 'b'), truth='b')", ''),
             ('code', "Reveal('1.h', content=[hostile, pd.Series([hostile])])", '')]
    lesson = lessons.lesson(more=cells)
    lesson.cells[0].source = lesson.cells[0].source.replace('Which word is read most?', hostile.replace('\u2028', 'x'))
    path = tmp_path/'h.html'
    path.write_text(lesson_html(lesson, 'h', fact=lessons.facts))
    p = opened(browser, path)
    show(p, '1.h')
    p.wait_for_function('() => document.querySelectorAll(".course-reveal table").length === 1')
    assert p.evaluate('() => window.hit') is None and p.locator('img, svg[onload]').count() == 0
    closed(p, path)

@pytest.mark.parametrize('markdown', ['<iframe src="https://a.b"></iframe>', '<details open ontoggle=hit()>',
                                      '<a href=x>y</a>', '[a](javascript:hit())',
                                      '![a](https://a.b/c.png)', '<style>* {}</style>',
                                      '<summary onclick=hit()>a</summary>', '$\\href{javascript:hit()}{a}$'])
def test_markdown_adds_no_raw_markup(markdown):
    try: pages = _words_html(markdown)
    except ValueError: return
    assert not re.search(r'<(iframe|details [^>]|a href="?(x|java)|img|style|summary )|javascript', pages)

def test_an_error_names_the_lesson_and_the_cell(tmp_path):
    folder = lessons.written(tmp_path/'sources', changed={4: "x = 1\nPredict('1.words', 'Which?', wrds('a b'))"})
    with pytest.raises(RuntimeError, match=r"lesson 1_row, cell cell-4 \(`x = 1`\): NameError: name 'wrds'"):
        write_pages(tmp_path, lessons=folder, fact=lessons.facts, say=lambda line: None)

def test_a_failing_reveal_is_an_error_of_its_cell(tmp_path):
    with pytest.raises(RuntimeError, match='lesson 1_row, cell cell-9.*ZeroDivisionError'):
        lesson_html(lessons.lesson(changed={9: "Reveal('1.class', lambda: 1/0)"}), '1_row', fact=lessons.facts)

@pytest.mark.slow
def test_cells_leave_no_files_in_the_folder_of_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lesson_html(lessons.lesson(more=[('code', "open('left.txt', 'w').close()", '')]), '1_row', fact=lessons.facts)
    assert list(tmp_path.iterdir()) == []

@pytest.mark.parametrize('formula', [r'a_i^2', r'\sum_{i=1}^n \frac{a}{b}', r'\mathrm{KL}(t \,\|\, a)',
                                     r'\log p(y \mid x)', r'\hat y = \operatorname{argmax}_c z_c',
                                     r'\mathbf{1}[a \ge b]', r'\text{row of [CLS]}',
                                     r'\sqrt{d}', r'-\infty', r'\odot \times \cdot \leq \in \mathbb{R}^{n}'])
def test_the_formulas_of_lessons_become_mathml(formula): assert _maths(formula).startswith('<math')

def test_operators_of_formulas_are_operators_in_a_sign_that_fonts_have():
    assert '<mo stretchy="false">&#92;</mo>' in _maths(r'X \setminus \{w\}') and '29F5' not in _maths(r'X \setminus w')
    brackets = _maths(r'k = \lfloor n (1 - p) \rfloor \iff a \ge b')
    for sign in ('0230A', '0230B', '027FA', '02265'): assert f'>&#x{sign};</mo>' in brackets
    assert '<mi>&#x003B1;</mi>' in _maths(r'\alpha')

def test_a_widget_without_page_html_raises_an_error():
    import ipywidgets
    with pytest.raises(ValueError, match='cannot contain IntSlider objects'): Fragments().shown(ipywidgets.IntSlider())

def test_figures_have_alternative_text():
    from matplotlib.figure import Figure
    figure = Figure(figsize=(2, 1))
    figure.subplots().set_title('Share <b>')
    shown = Fragments().shown(figure)
    assert 'alt="Share &lt;b&gt;"' in shown and 'src="data:image/png;base64,' in shown

@pytest.fixture(scope='module')
def lesson_pages(tmp_path_factory):
    "Return a function that returns the page of a lesson as a file, which is written once"
    folder = tmp_path_factory.mktemp('lessons')
    def page_of(path):
        page = folder/f'{path.stem}.html'
        edition = 'page' if path in read else 'teacher_page'
        if not page.exists(): page.write_text(lesson_html(read_lesson(path), path.stem, edition=edition))
        return page
    return page_of

def revealed(browser, page, **kw):
    "Open the lesson `page` and everything that it reveals"
    p = opened(browser, page, **kw)
    gates = p.locator('.course-reveal').get_by_role('button', name='Show anyway')
    while gates.count(): gates.first.click() # a click can open several reveals
    p.wait_for_function('() => [...document.querySelectorAll(".course-explorer")]'
                        '.every(one => one.querySelector(".sv-panel"))')
    settled(p)
    return p

@pytest.mark.sample(1)
@pytest.mark.parametrize('scheme,width', [('light', 1300), ('dark', 360)])
@pytest.mark.parametrize('path', lesson_paths, ids=[path.stem for path in lesson_paths])
def test_every_lesson_opens_with_all_that_it_reveals(browser, lesson_pages, path, scheme, width):
    page = lesson_pages(path)
    has_model = 'worker-src blob:' in page.read_text()
    assert page.stat().st_size <= (16e6 if has_model else 4e6)
    assert has_model == (path.stem[0] in '1245678')
    p = revealed(browser, page, color_scheme=scheme, viewport=dict(width=width, height=800))
    assert p.locator('.salviz-failed').count() == 0
    assert p.evaluate('() => document.documentElement.scrollWidth <= window.innerWidth')
    assert accessible.faults(p) == []
    if (out := os.environ.get('LOOK')): p.screenshot(path=f'{out}/{path.stem}-{scheme}.png', full_page=True)
    closed(p, page)

# Rules of the course's style sheets that match an element of an explorer, each once.
reaching = '''css => {
    const sheet = new CSSStyleSheet(), parts = [...document.querySelectorAll('.course-explorer .salviz *')];
    sheet.replaceSync(css);
    const rules = list => [...list].flatMap(rule => rule instanceof CSSStyleRule ? [rule] : rules(rule.cssRules ?? []));
    return rules(sheet.cssRules).map(rule => rule.selectorText)
        .filter(selector => parts.some(part => part.matches(selector))); }'''

# Whether the probability bars of each explorer that has some are drawn.
bars_are_high = '''() => [...document.querySelectorAll('.course-explorer')].every(place => {
    const all = [...place.querySelectorAll('.sv-class-bar')], seen = all.filter(bar => bar.checkVisibility());
    return !all.length || seen.length && seen.every(bar => bar.getBoundingClientRect().height >= 8); })'''

# The texts on the controls of explorers: titles, labels, options, buttons.
controls = '''() => [...document.querySelectorAll('.course-explorer :is(h3, label, button, select, summary)')]
    .filter(one => one.getClientRects().length)
    .flatMap(one => one.tagName === 'SELECT' ? [...one.options].map(option => option.text) : [one.textContent])'''

@pytest.mark.slow
@pytest.mark.parametrize('path', read, ids=[path.stem for path in read])
def test_an_explorer_in_a_lesson_has_its_usual_look_and_the_named_panels(browser, lesson_pages, path):
    page = lesson_pages(path)
    p = revealed(browser, page)
    p.wait_for_function(bars_are_high)
    assert p.evaluate(reaching, course_styles()) == []
    shown = ' | '.join(p.evaluate(controls))
    prose = [cell_text(cell) for cell in read_lesson(path).cells if cell_text(cell).startswith('## Reveal')]
    named = [name for text in prose for name in re.findall(r'(?<!\*)\*([^*]+)\*(?!\*)', text)]
    assert [name for name in named if name not in shown] == []
    if any('choose a head' in ' '.join(text.split()) for text in prose): assert p.locator('.sv-heads canvas').count()
    closed(p, page)

@pytest.mark.sample(4)
@pytest.mark.parametrize('path', read, ids=[path.stem for path in read])
def test_every_question_can_be_read_by_itself(path):
    "On the vote screen and in full screen, only one card is visible"
    questions = grading._predictions_in(read_lesson(path), path.stem).values()
    lost = re.compile(r'\b(this sentence|these are|are these|the other six|and after it|accuracy then)\b', re.I)
    assert [one.question for one in questions if lost.search(one.question)] == []

@pytest.mark.parametrize('name', ['1_what_it_looks_at', '6_least_salient'])
def test_sentences_quoted_in_prose_are_those_of_the_questions(name):
    source = read_lesson(sources/f'{name}.ipynb')
    quoted, = [line[2:] for cell in source.cells[1:] if cell.cell_type == 'markdown'
               for line in cell_text(cell).splitlines() if line.startswith('> ')]
    questions = grading._predictions_in(source, name).values()
    assert {one.query.options['sentence'] for one in questions if one.query.kind == 'words'} == {quoted}
    assert any(quoted in one.question for one in questions)
