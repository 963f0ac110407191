"""The explorer explains itself: question marks, all keys, a tour that is shown once, announcements for screen readers,
contrast, and the order of panels on narrow pages."""
import pytest

import invented
from browser import browser, load, mount, new_page, page, settled, spoken  # noqa: F401, fixtures
from salviz.explorer.run_metadata import meta
from salviz.explorer.page import page_of, write_page
from salviz.explorer.payload import pack_frame
from salviz.explorer.assets import panel_names

tour_steps = ['Heads', 'Map', 'Sentence', 'What-if settings', 'Time']

def show(page, *snapshots, state=None, **kw):
    "Mount the explorer on `snapshots`, by default two steps of a sentence under AD-DROP"
    shown_snapshots = list(snapshots) or [invented.snapshot(step, 0, method='ADDrop') for step in (0, 10)]
    mount(page, meta([shown_snapshots]), [pack_frame(s) for s in shown_snapshots], state=state, **kw)

def press(page, *keys):
    for key in keys: page.keyboard.press(key)
    settled(page)

def state(page, key): return page.evaluate('key => app.state[key]', key)

def focused(page, selector): return page.evaluate('s => document.activeElement.matches(s)', selector)

# --- question marks and keys

@pytest.mark.slow
def test_every_panel_explains_itself_in_two_sentences_and_names_its_keys(page):
    load(page, 'panels.js')
    helps = page.evaluate('() => sv.explorerPanels.map(({name, help}) => [name, help])')
    assert [name for name, _ in helps] == list(panel_names)
    for name, help_ in helps:
        assert len(help_['says']) == 2 and all(s.endswith('.') and s.count('. ') == 0 for s in help_['says']), name
        assert help_['keys'] and all(len(pair) == 2 and all(pair) for pair in help_['keys']), name

@pytest.mark.slow
def test_a_question_mark_opens_and_escape_closes_what_it_explains(page):
    show(page, panels=['heads', 'map', 'sentence', 'time'])
    assert page.locator('.sv-panel .sv-ask').count() == 4 and not page.locator('.sv-help >> visible=true').count()
    page.click('.sv-map .sv-ask')
    assert 'query (row) to a key (column)' in page.inner_text('.sv-map .sv-help')
    assert page.get_attribute('.sv-map .sv-ask', 'aria-expanded') == 'true'
    press(page, 'Escape')
    assert not page.is_visible('.sv-map .sv-help') and focused(page, '.sv-map .sv-ask')
    assert page.get_attribute('.sv-map .sv-ask', 'aria-expanded') == 'false'

@pytest.mark.slow
def test_the_question_mark_key_lists_all_keys_unless_somebody_writes(page):
    show(page, panels=['heads', 'map', 'signal', 'time'])
    page.focus('.sv-heads canvas')
    press(page, '?')
    listed = page.inner_text('[aria-label="keyboard shortcuts"].sv-help')
    assert all(title in listed for title in ('Everywhere', 'Heads', 'Map', 'Time')) and 'What-if settings' not in listed
    assert 'read the values of the strips in this column' in listed and 'feature of a series' not in listed
    press(page, 'Escape')
    assert not page.is_visible('[aria-label="keyboard shortcuts"].sv-help') and focused(page, '.sv-toolbar .sv-ask')
    page.focus('.sv-toolbar select >> visible=true')
    press(page, '?')
    assert not page.is_visible('[aria-label="keyboard shortcuts"].sv-help')

@pytest.mark.slow
def test_keys_of_the_explorer_stay_in_it_and_those_with_control_do_not(page):
    show(page, panels=['heads', 'map'])
    page.evaluate('() => { window.heard = []; document.addEventListener("keydown", e => heard.push(e.key)); }')
    page.focus('.sv-map canvas')
    press(page, 'b', 'd', 'ArrowDown', '[', 'Shift+Enter', 'Control+b')
    assert page.evaluate('() => heard') == ['Control', 'b']

@pytest.mark.slow
@pytest.mark.parametrize('back', [False, True])
def test_the_tab_key_goes_through_all_controls_and_out_again(page, back):
    show(page)
    key = 'Shift+Tab' if back else 'Tab'
    reached, inside = set(), '() => document.activeElement.closest(".salviz") !== null'
    page.evaluate('''() => ["before", "after"].forEach((id, i) => {
        const button = document.createElement("button");
        button.id = id;
        document.body[i ? "append" : "prepend"](button); })''')
    page.focus('#after' if back else '#before')
    for _ in range(200):
        page.keyboard.press(key)
        if not page.evaluate(inside): break
        reached.add(page.evaluate('() => document.activeElement.closest(".sv-panel, .sv-toolbar, .sv-tabs").className'))
        ring = page.evaluate('() => getComputedStyle(document.activeElement).outlineStyle')
        assert ring != 'none', page.evaluate('() => document.activeElement.outerHTML.slice(0, 200)')
    assert focused(page, '#before' if back else '#after')
    for part in ('sv-toolbar', 'sv-tabs', 'sv-heads', 'sv-map', 'sv-sentence', 'sv-time'):
        assert any(part in name for name in reached), part

# --- screen readers

@pytest.mark.slow
def test_the_cell_under_the_cursor_is_announced_with_its_rank_in_the_row(page):
    s = invented.snapshot(0, 0, method='ADDrop')
    show(page, s, panels=['map'], state=dict(entry=dict(kind='head', layer=1, head=2), row=2))
    page.focus('.sv-map canvas')
    press(page, 'ArrowDown', 'ArrowRight')
    a, b = s.labels[2], s.labels[1]
    spoken(page, f'layer 1, head 2, from “{a}” to “{b}”: attention ')
    place = 1 + int((s.arrays['attention'][1, 2, 2] > s.arrays['attention'][1, 2, 2, 1]).sum())
    ordinal = {1: '1st', 2: '2nd', 3: '3rd'}.get(place, f'{place}th')
    assert f'{ordinal} of {len(s.labels)} in its row' in page.text_content('.sv-said').lower()
    press(page, 's')
    spoken(page, f'of “{b}”: ')

@pytest.mark.slow
def test_many_moves_are_announced_once_at_their_end(page):
    show(page, panels=['map'])
    page.evaluate('''() => { window.heard = 0;
        new MutationObserver(() => heard++).observe(document.querySelector(".sv-said"), {childList: true}); }''')
    page.focus('.sv-map canvas')
    press(page, *['ArrowRight']*12)
    spoken(page, 'to “[SEP]”')
    assert page.evaluate('() => heard') <= 4

@pytest.mark.slow
def test_steps_and_panels_chosen_with_keys_are_announced(page):
    show(page)
    page.focus('.sv-map canvas')
    press(page, '[')
    spoken(page, 'step 0')
    page.focus('[role=tab][aria-selected=true]')
    press(page, 'ArrowRight')
    assert focused(page, '[role=tab][aria-selected=true]') and page.inner_text(':focus') == 'Triptych'
    page.click('[aria-label="next recorded step"]')
    spoken(page, 'step 10')

@pytest.mark.slow
@pytest.mark.parametrize('side', [0, 1])
def test_the_maps_of_what_if_are_read_with_keys(page, side):
    show(page, state=dict(tab='whatif'), panels=['whatif'])
    page.locator('.sv-group[open] .sv-pair-map').nth(side).focus()
    press(page, 'ArrowDown', 'ArrowRight')
    read = page.inner_text('.sv-group[open] .sv-pair-reading')
    assert 'query' in read and 'key' in read
    spoken(page, read)

@pytest.mark.slow
def test_the_bins_of_a_distribution_are_read_with_keys(page):
    show(page, invented.image(0), invented.image(10), panels=['signal'])
    page.focus('.sv-signal-density canvas')
    press(page, 'ArrowRight', 'ArrowRight')
    read = page.text_content('.sv-signal-density .sv-tip')
    assert 'from −0.95 to −0.9' in read and 'of the cells' in read
    spoken(page, read)

@pytest.mark.slow
@pytest.mark.parametrize('tab', ['map', 'triptych', 'compare', 'whatif'])
def test_every_focusable_canvas_has_a_label(page, tab):
    show(page, state=dict(tab=tab, compare=dict(run=0, step=0)))
    named = page.eval_on_selector_all('.salviz canvas[tabindex]:not([tabindex="-1"])', """all => all
        .filter(c => c.checkVisibility()).map(c => [c.getAttribute('role'), c.getAttribute('aria-label')])""")
    assert named and all(role in ('img', 'application') and len(label or '') > 20 for role, label in named)

contrast = '''() => {
    const light = c => { const x = c / 255; return x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; };
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const over = (colours) => {
        canvas.fillStyle = '#fff'; canvas.fillRect(0, 0, 1, 1);
        for (const [colour, alpha] of colours) {
            canvas.globalAlpha = alpha; canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
        canvas.globalAlpha = 1;
        const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data;
        return .2126 * light(r) + .7152 * light(g) + .0722 * light(b); };
    const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    const dead = e => e.closest(':disabled, [aria-disabled=true], .sv-said, option, svg');
    return [...document.querySelectorAll('.salviz *')].filter(e => e.offsetParent && own(e) && !dead(e)).map(e => {
        const chain = [];
        for (let at = e; at; at = at.parentElement) chain.unshift(at);
        const back = chain.map(at => [getComputedStyle(at).backgroundColor, 1]);
        const alpha = chain.reduce((all, at) => all * Number(getComputedStyle(at).opacity), 1);
        const [a, b] = [over(back), over([...back, [getComputedStyle(e).color, alpha]])].sort((x, y) => x - y);
        return [(b + .05) / (a + .05), e.className, e.textContent.slice(0, 60)]; }); }'''

@pytest.mark.slow
@pytest.mark.parametrize('theme', ['light', 'dark'])
def test_texts_can_be_read_against_what_is_behind_them(page, theme):
    seen = 0
    for tab in ('map', 'compare', 'whatif'):
        show(page, state=dict(tab=tab, colour='saliency'), theme=theme)
        for ask in page.locator('.sv-ask >> visible=true').all(): ask.click()
        page.evaluate('() => app.tour.start()')
        settled(page)
        ratios = page.evaluate(contrast)
        seen += len(ratios)
        assert [r for r in ratios if r[0] < 4.5] == []
    assert seen > 200

# --- the tour

@pytest.fixture
def whole(tmp_path_factory):
    "Return the address of an explorer's page in a file, which has a storage"
    folder = tmp_path_factory.mktemp('tour')
    write_page(page_of(invented.run(folder/'run', 'ADDrop')), folder/'page.html', say=lambda message: None)
    return (folder/'page.html').as_uri()

def opened(p, url):
    p.goto(url)
    p.wait_for_function('() => window.salviz')
    settled(p)
    return p

@pytest.mark.slow
def test_first_use_shows_five_steps_that_cover_nothing_and_are_not_shown_again(browser, whole):
    p = opened(new_page(browser, first_use=True), whole)
    texts = []
    assert p.evaluate('() => document.activeElement === document.body'), 'it does not take the focus'
    for k, title in enumerate(tour_steps):
        text = p.inner_text('.sv-tour-text')
        assert text.startswith(f'{k + 1} of 5. {title}: ')
        texts.append(text)
        over = p.evaluate('''() => { const tour = document.querySelector('.sv-tour').getBoundingClientRect();
            return [...document.querySelectorAll('.salviz canvas')].filter(c => c.checkVisibility()).some(c => {
                const box = c.getBoundingClientRect();
                return box.left < tour.right && tour.left < box.right && box.top < tour.bottom && tour.top < box.bottom;
            }); }''')
        assert not over and p.is_visible('.sv-tour')
        p.click('.sv-tour button:text-is("Done")' if k == 4 else '.sv-tour button:text-is("Next")')
        settled(p)
    assert len(set(texts)) == 5 and p.locator('.sv-tour').count() == 0
    opened(p, whole)
    assert p.locator('.sv-tour').count() == 0
    p.click('.sv-toolbar .sv-ask')
    p.click('button:text-is("Start tour")')
    assert p.inner_text('.sv-tour-text').startswith('1 of 5. Heads') and focused(p, '.sv-tour button')
    press(p, 'Escape')
    assert p.locator('.sv-tour').count() == 0 and p.errors == []
    p.close()

@pytest.mark.slow
def test_a_skipped_tour_is_not_shown_again(browser, whole):
    p = opened(new_page(browser, first_use=True), whole)
    p.click('.sv-tour button:text-is("Skip")')
    opened(p, whole)
    assert p.locator('.sv-tour').count() == 0 and p.errors == []
    p.close()

@pytest.mark.slow
def test_without_storage_the_tour_starts_only_on_request(page):
    assert page.evaluate('() => { try { return localStorage.length >= 0; } catch { return false; } }') is False
    show(page)
    page.evaluate('() => app.tour.offer()')
    assert page.locator('.sv-tour').count() == 0
    page.evaluate('() => app.tour.start()')
    assert page.inner_text('.sv-tour-text').startswith('1 of 5. ')

@pytest.mark.slow
def test_the_tour_of_an_image_covers_its_panels(page):
    show(page, invented.image(0), invented.image(10))
    page.evaluate('() => app.tour.start()')
    assert page.inner_text('.sv-tour-text').startswith('1 of 2. Signal: ')

# --- narrow pages

@pytest.mark.sample(1)
@pytest.mark.parametrize('width', [420, 560, 800, 880, 1280])
@pytest.mark.parametrize('tokens', [3, 60])
def test_the_map_precedes_the_curves_and_nothing_is_wider_than_the_page(page, width, tokens):
    page.set_viewport_size(dict(width=width, height=900))
    labels = ['[CLS]', *(f'wonderful{i}' for i in range(tokens)), '[SEP]']
    show(page, *(invented.snapshot(step, 0, tokens=labels, method='ADDrop') for step in (0, 10)))
    for ask in page.locator('.sv-ask >> visible=true').all(): ask.click()
    page.evaluate('() => app.tour.start()')
    settled(page)
    assert page.evaluate('() => document.documentElement.scrollWidth') <= width
    tops = page.evaluate('''() => ["heads", "map", "time"].map(name =>
        document.querySelector(`.sv-${name}`).getBoundingClientRect().top)''')
    assert tops[0] <= tops[1] < tops[2] and page.evaluate('''() => document.querySelector(".sv-map")
        .compareDocumentPosition(document.querySelector(".sv-time")) === Node.DOCUMENT_POSITION_FOLLOWING''')
    cut = page.eval_on_selector_all('.salviz button, .salviz label, .salviz p, .salviz h3, .salviz dd, .sv-tour-text',
        """all => all.filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1
            && getComputedStyle(e).display !== 'inline').map(e => e.outerHTML.slice(0, 120))""")
    assert cut == []

# --- a notebook after all of its cells were run

# The relevant part of JupyterLab's page for a notebook of eight cells; the explorer is in the third.
lab_page = '''() => {
    document.body.innerHTML = '<div class="jp-WindowedPanel-outer jp-Notebook" style="height: 600px; overflow: auto">'
        + '<div class="jp-Cell" style="height: 500px"><div class="jp-InputPrompt">[*]:</div></div>'.repeat(8)
        + '</div>';
    const cells = [...document.querySelectorAll('.jp-Cell')], box = document.createElement('div');
    box.style.height = '400px';
    cells[2].append(box);
    Object.assign(window, {cells, outer: document.querySelector('.jp-Notebook'), box});
    window.done = () => {
        for (const prompt of document.querySelectorAll('.jp-InputPrompt')) prompt.textContent = '[1]:';
        outer.scrollTop = outer.scrollHeight; };
    window.top_ = () => box.getBoundingClientRect().top - outer.getBoundingClientRect().top; }'''

def at_rest(page): page.wait_for_timeout(2600)

@pytest.mark.slow
def test_the_explorer_is_in_sight_while_all_cells_run_and_when_they_have(page):
    load(page, 'sight.js')
    page.evaluate(lab_page)
    page.evaluate('() => { cells.at(-1).classList.add("jp-mod-active"); sv.scrollIntoSight(box); }')
    page.wait_for_function('() => outer.scrollTop > 0 && top_() < 300')
    page.evaluate('done')
    page.wait_for_function('() => top_() > 0 && top_() < 300')
    at_rest(page)
    page.evaluate('() => { outer.scrollTop = 0; }')
    at_rest(page)
    assert page.evaluate('() => outer.scrollTop') == 0, 'then it leaves the reader alone'

@pytest.mark.slow
def test_a_reader_who_scrolled_away_is_not_scrolled_back(page):
    load(page, 'sight.js')
    page.evaluate(lab_page)
    page.evaluate('() => { cells.at(-1).classList.add("jp-mod-active"); sv.scrollIntoSight(box); }')
    page.wait_for_function('() => outer.scrollTop > 0')
    page.mouse.move(300, 560)
    page.mouse.wheel(0, 700)
    page.evaluate('() => { cells.at(-1).dispatchEvent(new PointerEvent("pointerdown", {bubbles: true})); done(); }')
    end = page.evaluate('() => outer.scrollTop')
    at_rest(page)
    assert page.evaluate('() => outer.scrollTop') == end > 0

@pytest.mark.slow
@pytest.mark.parametrize('active', [0, 2, 3])
def test_a_cell_that_is_run_alone_or_opened_moves_nothing(page, active):
    load(page, 'sight.js')
    page.evaluate(lab_page)
    page.evaluate('k => { cells[k].classList.add("jp-mod-active"); sv.scrollIntoSight(box); }', active)
    at_rest(page)
    assert page.evaluate('() => outer.scrollTop') == 0

@pytest.mark.slow
@pytest.mark.parametrize('width', [520, 800, 950, 1280])
def test_the_question_mark_stays_in_the_first_line_of_its_head(page, width):
    page.set_viewport_size(dict(width=width, height=900))
    show(page)
    for tab in ('map', 'triptych', 'compare'):
        page.evaluate('tab => app.state.set({tab})', tab); settled(page)
        asks = page.evaluate("""() => [...document.querySelectorAll('.sv-head > .sv-ask')].filter(a => a.offsetParent)
            .map(ask => { const box = ask.getBoundingClientRect(), head = ask.parentElement.getBoundingClientRect(),
                over = [...ask.parentElement.children].filter(el => el !== ask && el.offsetParent)
                    .map(el => el.getBoundingClientRect()).some(o => o.right > box.left && o.top < box.bottom);
                return [box.top - head.top, head.right - box.right, over]; })""")
        assert len(asks) >= 2 and all(abs(down) < 1 and abs(left) < 1 and not over for down, left, over in asks), asks
