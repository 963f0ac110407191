"""The panel 'heads over time' in a real browser: curves, marks and their rule, choices by mouse and by keys, and
messages if there is little to show."""
import dataclasses
import re

import numpy as np
import pytest

import invented
from accessible import faults
from browser import browser, load, mount, new_page, page, settled, spoken  # noqa: F401, fixtures
from salviz.core.runs import Run
from salviz.explorer import Explorer
from salviz.explorer.payload import pack_frame
from salviz.explorer.run_metadata import HeadRows, meta, rows_with_heads, run_meta
from salviz.views.head_statistics import head_frame, mark_threshold


def rows(steps=(0, 10, 40), layers=(0, 3), heads=4, examples='probes', long_texts=2, marks=None, seed=0):
    "Return rows like those of `HeadRows` with random numbers; `marks`: {(step, layer, head): mark}"
    rng = np.random.default_rng(seed)
    def of(step):
        numbers = {name: rng.random((len(layers), heads)).round(3).tolist() for name in
                   ('entropy', 'relative_entropy', 'largest', 'to_first', 'to_special', 'distance')}
        marked = [[(marks or {}).get((step, layer, head), '') for head in range(heads)] for layer in layers]
        return dict(kind='heads', examples=examples, step=step, layers=list(layers), texts=2, long_texts=long_texts,
                    marks=marked if long_texts else None, threshold=mark_threshold, fewest_words=5, **numbers)
    return [of(step) for step in steps]


def show(page, shown, steps=(0, 10, 40), state=None, theme='light', panels=('headtime', 'map')):
    snapshots = [invented.snapshot(step, 0, method='FineTuning') for step in steps]
    mount(page, meta([snapshots]), [pack_frame(s) for s in snapshots], state=state, panels=list(panels), theme=theme,
          rows={0: shown})


def text(page, selector): return re.sub(r'\s+', ' ', page.inner_text(selector))
def label(page): return page.get_attribute('.sv-headtime canvas', 'aria-label')
def place(page): return page.eval_on_selector('.sv-headtime canvas', 'c => c.salviz')


def corner(page, row, head):
    at = place(page)
    return dict(x=at['left'] + head*at['pitch'] + 4, y=at['top'] + row*at['down'] + 4)


@pytest.mark.slow
def test_curves_are_the_rows_of_one_kind_of_examples_in_the_order_of_steps(page):
    load(page, 'headtime.js')
    probes, batches = rows((40, 0), marks={(40, 3, 1): 'dead'}), rows((10,), examples='batches')
    again = dict(probes[0], entropy=[[1., None, 3., 4.], [5., 6., 7., 8.]])
    found = page.evaluate('''rows => {
        const probes = sv.headRowsOf(rows, 'probes'), curves = sv.headCurves(probes, 'entropy');
        return {steps: curves.steps, limit: curves.limit, layers: curves.layers, heads: curves.heads,
            missing: curves.points(0, 1), points: curves.points(3, 1), marked: sv.markedHeads(sv.headRowAt(probes, 99)),
            before: sv.headRowAt(sv.headRowsOf(rows, 'batches'), 9), one: sv.headCurves(probes, 'largest').limit}; }''',
        [*probes, *batches, again, dict(kind='train', step=3, loss=1.), dict(kind='heads', examples='batches', step=0,
                                                                            reason='packed')])
    assert (found['steps'], found['limit'], found['layers'], found['heads'], found['one']) == ([0, 40], 8, [0, 3], 4, 1)
    assert [p['step'] for p in found['missing']] == [0] and found['before'] is None
    assert found['points'] == [dict(step=0, value=probes[1]['entropy'][1][1], mark=''),
                               dict(step=40, value=6, mark='dead')]
    assert found['marked'] == [dict(layer=3, head=1, mark='dead')]


@pytest.mark.slow
def test_a_head_is_chosen_in_all_panels_by_mouse_and_by_keys_and_is_described(page):
    shown = rows(layers=(0, 1), marks={(10, 1, 2): 'collapsed', (40, 0, 0): 'dead'})
    show(page, shown)
    page.click('.sv-headtime canvas', position=corner(page, 1, 2))
    settled(page)
    assert page.evaluate('() => app.state.entry') == dict(kind='head', layer=1, head=2)
    assert 'collapsed at step 10' in text(page, '.sv-headtime .sv-tip')
    assert 'at step 40, 1 head is marked (layer.head): 0.0 (dead). Chosen: layer 1, head 2: relative' in label(page)
    page.focus('.sv-headtime canvas')
    page.keyboard.press('ArrowUp')
    page.keyboard.press('ArrowLeft')
    spoken(page, 'layer 0, head 1: relative entropy')
    page.keyboard.press('ArrowLeft')
    page.keyboard.press('ArrowLeft') # stops at the edge
    spoken(page, 'layer 0, head 0: relative entropy')
    assert page.evaluate('() => app.state.entry') == dict(kind='head', layer=0, head=0)
    page.evaluate('() => app.state.set({step: 10})')
    settled(page)
    assert 'at step 10, 1 head is marked (layer.head): 1.2 (collapsed)' in label(page)


@pytest.mark.slow
def test_the_legend_states_the_rule_with_its_numbers(page):
    show(page, rows(marks={(40, 0, 0): 'dead'}))
    legend = text(page, '.sv-headtime-legend')
    assert 'dead (solid frame, D): on each of the 2 texts with at least 5 ordinary tokens, at least 95 %' in legend
    assert 'of the head’s attention goes to the first token and special tokens.' in legend
    assert 'collapsed (dashed frame, C)' in legend and 'to one word.' in legend
    assert 'At step 40, 1 head is marked (layer.head): 0.0 (dead).' in legend
    show(page, rows(long_texts=0))
    assert text(page, '.sv-headtime-legend') == ('No head can be marked as dead or collapsed: no text has at least 5 '
                                                 'ordinary tokens and more ordinary than special tokens.')


@pytest.mark.slow
def test_little_data_is_not_shown_as_a_finding(page):
    show(page, rows((0,)), steps=(0,))
    notes = text(page, '.sv-headtime > .sv-note')
    assert 'Only step 0 has statistics, so no change over time can be shown.' in notes
    assert 'These are the values before training.' in notes
    show(page, [], steps=(0, 10))
    assert not page.is_visible('.sv-headtime') # no probe examples with attention
    reason = dict(kind='heads', examples='batches', step=0, reason='several texts share a row')
    show(page, [*rows(), reason])
    assert 'Training batches have no statistics: several texts share a row.' in text(page, '.sv-headtime > .sv-note')
    assert page.is_disabled('.sv-headtime select >> nth=1')


@pytest.mark.slow
def test_training_batches_are_a_choice_and_new_rows_appear(page):
    show(page, [*rows(), *rows((10, 40), examples='batches', seed=1)])
    page.select_option('.sv-headtime select >> nth=1', 'batches')
    page.select_option('.sv-headtime select >> nth=0', 'distance')
    settled(page)
    notes = text(page, '.sv-headtime > .sv-note')
    assert 'mean distance to the attended token, in tokens' in notes
    assert 'the first 2 rows of the training batch at each step' in notes
    assert 'The batch differs from step to step' in notes and 'over 2 steps, on training batches' in label(page)
    page.evaluate('() => app.state.set({step: 0})')
    settled(page)
    assert 'no statistics at or before step 0' in label(page)
    page.evaluate('row => store.addRows(0, [row])', rows((60,), examples='batches')[0])
    settled(page)
    assert 'over 3 steps' in label(page)
    page.evaluate("() => app.state.set({headNumber: 'unknown'})") # from a link
    settled(page)
    assert 'relative entropy of 2 layers' in label(page)


@pytest.mark.slow
def test_attention_logits_are_a_choice_where_they_were_recorded_and_may_be_negative(page):
    show(page, rows())
    assert page.locator('.sv-headtime select').first.inner_text().split('\n')[-1] == 'distance' # of an earlier version
    shown = rows(heads=2)
    for i, row in enumerate(shown): row['largest_logit'] = [[-2., 12.5*i], [None, 3.]]
    show(page, shown)
    page.select_option('.sv-headtime select >> nth=0', 'largest_logit')
    settled(page)
    notes = text(page, '.sv-headtime > .sv-note')
    assert 'largest attention logit (score before the softmax), maximum over all queries and keys of 2 probe' in notes
    assert 'from −2 (bottom) to 25 (top)' in notes or 'from -2 (bottom) to 25 (top)' in notes
    page.click('.sv-headtime canvas', position=corner(page, 0, 1))
    settled(page)
    assert 'layer 0, head 1: largest logit 25 at step 40' in text(page, '.sv-headtime .sv-tip')


@pytest.fixture
def watched(tmp_path):
    "Return a run in which one head dies and one collapses, with statistics of its batches"
    run = Run.create(tmp_path/'run', dict(method=dict(name='FineTuning', args={})))
    for step in (0, 20, 40, 80):
        for probe in (0, 1):
            s = invented.snapshot(step, probe, method='FineTuning')
            a, n = np.array(s.arrays['attention'], dtype=float), len(s.tokens)
            if step >= 40: a[0, 1] = np.eye(n)[0]
            if step >= 20: a[1, 0] = np.eye(n)[2]
            run.save(dataclasses.replace(s, arrays=dict(s.arrays, attention=a)))
        layers, heads = s.layers['attention'], a.shape[1]
        numbers = {name: np.full((len(layers), heads), .1 + step/100).tolist() for name in
                   ('entropy', 'relative_entropy', 'largest', 'to_first', 'to_special', 'distance')}
        half = np.full((len(layers), heads), .5).tolist()
        if step: run.log(dict(kind='heads', examples='batches', step=step, layers=layers, texts=4, long_texts=3,
                              sinks=half, one_word=half, **numbers))
        run.log(dict(kind='train', step=step, loss=1/(1 + step)))
    run.finish(steps=80)
    return run


def test_rows_for_the_browser_are_the_numbers_of_the_frame(watched):
    heads = HeadRows(watched)
    assert not heads.more()
    found = rows_with_heads(watched, heads)
    assert [(r['examples'], r['step']) for r in found if r['kind'] == 'heads'] == [
        *(('probes', step) for step in (0, 20, 40, 80)), *(('batches', step) for step in (20, 40, 80))]
    frame, last = head_frame(watched), found[-4]
    at_end = frame[frame.step == 80]
    assert np.allclose(np.ravel(last['relative_entropy']), at_end.relative_entropy, rtol=.006)
    assert np.ravel(last['marks']).tolist() == at_end.mark.tolist() and {'dead', 'collapsed'} <= set(at_end.mark)
    one = HeadRows(watched, [1])
    one.more()
    assert one.rows()[0]['texts'] == 1
    watched.save(invented.snapshot(80, 2, method='FineTuning')) # another example at a step that was already computed
    heads.more()
    assert [r['texts'] for r in heads.rows() if r['examples'] == 'probes'] == [2, 2, 2, 3]


def test_the_widget_sends_the_rows_and_only_if_the_panel_is_shown(watched):
    import json
    def sent(explorer):
        explorer.view.settle()
        return [r for r in json.loads(explorer.view.get_state()['rows'])[0] if r['kind'] == 'heads']
    assert len(sent(Explorer(watched))) == 7 and len(sent(Explorer(watched, panels=['heads']))) == 3


@pytest.mark.slow
@pytest.mark.parametrize('theme', ['light', 'dark'])
@pytest.mark.parametrize('width', [360, 1280])
def test_a_saved_page_shows_heads_over_time(browser, watched, tmp_path, theme, width):
    Explorer(watched, panels=['headtime', 'heads', 'time']).to_html(tmp_path/'page.html')
    shown = new_page(browser, viewport=dict(width=width, height=900), color_scheme=theme)
    shown.goto((tmp_path/'page.html').as_uri())
    shown.locator('.sv-headtime canvas').wait_for()
    settled(shown)
    assert '(dead)' in label(shown) and '(collapsed)' in label(shown)
    assert shown.evaluate('() => document.documentElement.scrollWidth <= innerWidth')
    assert faults(shown) == [] and shown.errors == []
    shown.locator('.sv-headtime').screenshot(path=tmp_path/f'headtime-{theme}-{width}.png')
    assert (tmp_path/f'headtime-{theme}-{width}.png').stat().st_size > 4000
    shown.close()


def test_a_run_without_head_statistics_is_not_said_to_have_no_attention(page):
    run = Run.example('plain')
    mount(page, meta([run_meta(run, probes=[0])]), [pack_frame(run.snapshot(-1, 0))], rows={0: run.metrics})
    settled(page)
    assert 'no attention' not in page.inner_text('.salviz') and not page.locator('.sv-headtime').is_visible()
