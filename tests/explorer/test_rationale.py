"""The panel Rationale: its numbers against the metrics of salviz and the view of the figure, and its message if there
is no rationale."""
import numpy as np
import pytest

import invented
from browser import browser, evaluate_json, load, mount, page, settled # noqa: F401 (fixtures)
from salviz.explorer.run_metadata import meta
from salviz.explorer.payload import pack_frame
from salviz.metrics.plausibility import auprc, hard_rationale, iou_f1, random_auprc, token_f1
from salviz.views.base import explanation_beside_rationale

def test_javascript_and_python_measure_agreement_alike(page):
    load(page, 'maths.js')
    rng, cases = np.random.default_rng(0), []
    for n in (*range(2, 12), 60)*8:
        values = rng.normal(size=n) if rng.random() < .6 else rng.integers(0, 4, n).astype(float)
        marked = rng.random(n) < rng.choice([.2, .5, .8])
        if 0 < marked.sum() < n and np.ptp(values): cases.append((values, marked))
    got = evaluate_json(page, 'cases => cases.map(([x, marked]) => sv.pointedAt(x, marked))',
                        [(x.tolist(), m.astype(int).tolist()) for x, m in cases])
    ties = 0
    for (x, marked), js in zip(cases, got):
        k, order = int(marked.sum()), np.sort(x)[::-1]
        assert js['auprc'] == pytest.approx(auprc(x, marked), abs=1e-12)
        assert js['random'] == pytest.approx(random_auprc(len(x), k), abs=1e-12)
        tied, chosen = order[k] == order[k - 1], [hard_rationale(x, k)]
        ties += tied
        assert js['tied'] == (np.sum(x == order[k]) if tied else 0)
        for name, measure in dict(f1=token_f1, iou=iou_f1).items():
            assert js[name] == (None if tied else pytest.approx(measure(chosen, [marked]).f1, abs=1e-12))
    assert 10 < ties < len(cases) - 10

# --- in the page

def taught(step=0, probe=0, method='RationaleGuided'):
    "Return a snapshot in which all annotators marked one word, two of three another, and one of them a third"
    s = invented.snapshot(step, probe, method=method)
    share = np.zeros(len(s.tokens), np.float32)
    share[1:4] = 1, 1/3, 2/3
    s.arrays['rationale'] = share >= .5
    if method == 'RationaleGuided': s.arrays['rationale_target'] = share
    return s

def opened(page, *snapshots, **state):
    mount(page, meta([list(snapshots)]), [pack_frame(s) for s in snapshots], state, ['rationale'])
    return page.locator('.sv-rationale')

def numbers(panel) -> list: # of text: AUPRC, token F1, span F1
    items = panel.locator('.sv-agreement li').all_inner_texts()
    return [item.split(name)[1].split(' (')[0].strip() for item, name in zip(items, ('AUPRC', 'token F1', '≥ 0.5)'))]

@pytest.mark.slow
def test_the_numbers_are_those_of_the_figure_at_each_step_and_for_each_explanation(page):
    snapshots = [taught(step) for step in (0, 10, 20)]
    panel = opened(page, *snapshots)
    for s in snapshots:
        for of in ('explanation', 'saliency'):
            page.evaluate('s => app.state.set(s)', dict(step=s.step, explanation=of))
            settled(page)
            view = explanation_beside_rationale(s, of)
            expected = [view.auprc, view.token_f1, view.iou_f1]
            assert [float(x) for x in numbers(panel)] == pytest.approx(expected, abs=.0051)
    # one line for each number, over all three steps
    lines = panel.locator('path').evaluate_all('all => all.map(p => p.getAttribute("d"))')
    assert [line.count('L') for line in lines] == [2]*3

@pytest.mark.slow
def test_fractions_are_bar_heights_and_marked_words_are_filled(page):
    panel = opened(page, taught())
    bars = panel.locator('.sv-share > span')
    assert bars.evaluate_all('all => all.map(b => b.hidden ? 0 : b.offsetHeight)') == [0, 9, 3, 6, 0, 0, 0, 0]
    assert bars.evaluate_all('all => all.map(b => b.classList.contains("sv-few") && !b.hidden)').index(True) == 2
    assert panel.locator('.sv-pointed').count() == 2 and '2 of 6 tokens' in panel.inner_text()
    panel.locator('.sv-chip').first.focus()
    for key in ('ArrowRight', 'ArrowRight'): page.keyboard.press(key)
    assert 'marked by 33' in panel.locator('.sv-reading').inner_text()
    page.keyboard.press('End')
    assert 'cannot be marked' in panel.locator('.sv-reading').inner_text()

@pytest.mark.slow
@pytest.mark.parametrize('what, message', [
    ('nothing', 'The rationale marks nothing'), ('everything', 'The rationale marks every token'),
    ('flat', 'All tokens have the same value, so the explanation highlights nothing'),
    ('tied', '5 tokens tie at the threshold')])
def test_undefined_agreement_is_explained(page, what, message):
    s = taught()
    if what in ('nothing', 'everything'): s.arrays['rationale'][:] = what == 'everything'
    else: s.arrays['explanation'][:] = .5
    if what == 'tied': s.arrays['explanation'][1] = .7
    panel = opened(page, s)
    assert message in panel.inner_text() and numbers(panel)[1:] == ['undefined']*2
    assert (numbers(panel)[0] == 'undefined') == (what != 'tied') and not panel.locator('.sv-pointed').count()
    # no colours if no word would differ from another
    assert panel.locator('.sv-scale-bar').count() == (what != 'flat')

@pytest.mark.slow
def test_any_method_shows_rationales_and_notes_sentences_without_one(page):
    panel = opened(page, invented.snapshot(0, 0), taught(0, 1, 'FineTuning'))
    assert 'no rationale for this sentence' in panel.inner_text() and not panel.locator('.sv-line').is_visible()
    page.evaluate('() => app.state.set({probe: 1})')
    settled(page)
    choice = panel.locator('select')
    assert choice.input_value() == 'saliency'
    assert choice.evaluate('c => [...c.options].map(o => o.disabled)') == [True, False, False, False]
    for of in ('attention', 'rollout'):
        choice.select_option(of)
        settled(page)
        assert panel.locator('.sv-scale-bar').count() == 1 and '[CLS]' in panel.locator('.sv-note').last.inner_text()

def test_a_run_without_rationales_has_no_such_panel(page):
    panel = opened(page, invented.snapshot(0, 0))
    assert not panel.is_visible() and 'no rationales' in page.inner_text('.sv-missing')

@pytest.mark.slow
def test_empty_panels_make_no_statement_about_the_model(page):
    s = invented.snapshot(0, 0)
    mount(page, meta([[s]]), [pack_frame(s)])
    assert not page.locator('.sv-continuation').is_visible() and not page.locator('.sv-missing').is_visible()
