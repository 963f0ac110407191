"""The first view: which head it opens, what fits on one screen beside a file browser and on a phone, and what is left
out for a model that was not trained."""
from functools import cache

import pytest

import invented
from browser import browser, mount, page, settled # noqa: F401 (fixtures)
from salviz.core.runs import Run
from salviz.explorer.run_metadata import meta, run_meta
from salviz.explorer.payload import pack_frame
from salviz.explorer.widget import Explorer
from salviz.views.maps import telling_entry

bundled = 'plain', 'sallm', 'saliency-guided', 'ad-drop', 'attention-guidance'

@cache
def packed(name, probes):
    run = Run.example(name)
    return [pack_frame(run.snapshot(step, probe)) for step, probe in run.recorded if probe in probes]

def show(page, name, width=850, probes=range(8), theme='light', **kw):
    "Mount the bundled run `name` in an output of `width` pixels, on a screen of 720"
    run = Run.example(name)
    page.set_viewport_size(dict(width=width, height=720))
    page.add_style_tag(content='body { margin: 0 }')
    described = meta([run_meta(run, probes=list(probes))])
    mount(page, described, packed(name, probes), rows={0: run.metrics}, theme=theme, **kw)
    return run

def box(page, panel): return page.locator(f'.sv-{panel}').first.bounding_box()
def bottom(box): return box['y'] + box['height']

@pytest.mark.slow
@pytest.mark.parametrize('name', bundled)
def test_the_browser_opens_the_head_that_figures_show(page, name):
    run = show(page, name)
    for probe in range(8):
        page.evaluate('probe => app.state.set({probe, entry: {kind: "head", layer: null, head: 0}})', probe)
        settled(page)
        entry = page.evaluate('() => app.state.entry')
        assert (entry['layer'], entry['head']) == tuple(telling_entry(run.snapshot(-1, probe)).values())

@pytest.mark.sample(1)
@pytest.mark.parametrize('width', [850, 960, 1130, 1280, 1600])
@pytest.mark.parametrize('name', bundled)
def test_sentence_heads_and_map_fit_on_one_screen_side_by_side(page, name, width):
    show(page, name, width)
    heads, sentence, side = box(page, 'heads'), box(page, 'sentence'), box(page, 'side')
    assert heads['x'] + heads['width'] <= side['x'] and abs(heads['y'] - side['y']) < 2
    # In a narrow column, notes on patterns and on a masked copy are below the tokens, their scale, and the answer.
    has_long_notes = name in ('attention-guidance', 'saliency-guided') and width < 1280
    shown = box(page, 'sentence .sv-classes') if has_long_notes else sentence
    assert max(map(bottom, (heads, box(page, 'map'), shown))) <= 720
    assert page.evaluate('() => document.documentElement.scrollWidth') <= width

# Every visible text as (text, left, top, right, bottom); of canvases only the position.
texts = '''() => {
    const seen = [], walker = document.createTreeWalker(document.querySelector('.salviz'), NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode, parent = node.parentElement, style = getComputedStyle(parent);
        if (!node.data.trim() || !parent.checkVisibility() || parent.closest('.sv-said, select, svg')) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        for (const b of range.getClientRects()) seen.push([node.data, b.left, b.top, b.right, b.bottom]);
    }
    for (const part of document.querySelectorAll('.salviz :is(select, button, input, canvas)')) {
        const b = part.getBoundingClientRect();
        if (part.checkVisibility() && b.width && part.children.length === 0 && part.tagName !== 'BUTTON')
            seen.push([part.tagName, b.left, b.top, b.right, b.bottom]);
    }
    return seen; }'''

def overlaps(seen):
    "Return pairs of texts that overlap by more than a pixel in both directions"
    return [(a[0], b[0]) for i, a in enumerate(seen) for b in seen[:i]
            if min(a[3], b[3]) - max(a[1], b[1]) > 1 and min(a[4], b[4]) - max(a[2], b[2]) > 2
            and not {a[0], b[0]} <= {'INPUT', 'CANVAS'}]

@pytest.mark.slow
@pytest.mark.parametrize('theme', ['light', 'dark'])
@pytest.mark.parametrize('width', [360, 850])
@pytest.mark.parametrize('name', ['ad-drop', 'attention-guidance'])
def test_no_text_of_the_first_view_overlaps_or_is_cut(page, name, width, theme):
    show(page, name, width, theme=theme, plotly=True)
    assert page.evaluate('() => document.documentElement.scrollWidth') <= width
    seen = page.evaluate(texts)
    assert len(seen) > 40 and overlaps(seen) == []
    assert [text for text, left, _, right, _ in seen if left < 0 or right > width] == []
    cut = page.eval_on_selector_all('.salviz *', """all => all.filter(e => e.checkVisibility() && e.clientWidth
        && e.scrollWidth > e.clientWidth + 1 && ['hidden', 'clip'].includes(getComputedStyle(e).overflowX)
        && !e.closest('.sv-said, svg, input')).map(e => e.outerHTML.slice(0, 120))""")
    assert cut == []

# --- a model that was not trained

def untrained():
    "Return a snapshot like those of `explore`: of step 0, without a method"
    s = invented.snapshot(0, 0, method='FineTuning')
    del s.info['method'], s.info['args']
    return s

@pytest.mark.slow
def test_an_untrained_model_has_no_scrubber_curve_or_step_number(page):
    s = untrained()
    mount(page, meta([[s]]), [pack_frame(s)])
    assert page.locator('.sv-time').is_hidden() and page.locator('.sv-map').is_visible()
    assert 'step' not in page.inner_text('.sv-toolbar') and page.locator('.sv-missing').is_hidden()
    mount(page, meta([[s]]), [pack_frame(s)], panels=['time'])
    assert 'was not trained here' in page.inner_text('.sv-missing')

@pytest.mark.slow
@pytest.mark.parametrize('case', ['a later step', 'losses', 'a plan', 'a method'])
def test_a_training_shows_its_time_from_its_first_step_on(page, case):
    s = untrained() if case in ('losses', 'a plan') else invented.snapshot(20 if case == 'a later step' else 0, 0)
    described = meta([[s]])
    if case == 'a plan': described['runs'][0] |= dict(total_steps=80, live=True)
    mount(page, described, [pack_frame(s)], rows={0: [dict(kind='train', step=1, loss=.7)]} if case == 'losses' else {})
    assert page.locator('.sv-time').is_visible() and 'step' in page.inner_text('.sv-toolbar')

def test_the_static_image_of_an_untrained_model_has_no_text_about_time():
    explorer = Explorer([untrained()])
    assert repr(explorer) == 'Explorer of snapshots (1 sentence)'
    message = ' '.join(text.get_text() for text in explorer.picture().findobj(lambda o: hasattr(o, 'get_text')))
    assert 'time' not in message.lower().split() and 'No time' not in message and 'step' not in message
