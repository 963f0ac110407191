"The sentence, time and what-if panels in a real browser: they show what the arrays contain, for any tokens."
import json
import re

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from browser import browser, evaluate_json, load, mount, page, pixels, send, settled, spoken  # noqa: F401, fixtures
from salviz.core import maths
from salviz.core.evidence import largest_saliency
from salviz.data.texts import Collator, encode_texts
from salviz.methods import ADDrop, AttentionGuidance, SaliencyGuided, SalLM
from salviz.methods.ad_drop import drop_mask, drop_uniform
from salviz.methods.base import Progress
from salviz.methods.saliency_guided import mask_words
from salviz.metrics.scores import attention_agreement
from salviz.models.loading import undisturbed
from salviz.explorer.run_metadata import as_run, meta, run_meta
from salviz.explorer.payload import pack_frame, unpack_frame
from salviz.core.snapshots import Snapshot
from salviz.core.text import align
from salviz.training.trainer import train
from salviz.views.base import masked_sentence
from salviz.views.maps import telling_entry

panels = ['sentence', 'time', 'whatif']
probes = ['the film was fine , warm and funny .', 'this dull story of one silly actor .']
hostile = ['[CLS]', '<img src=x onerror="window.hacked=1">', '<script>window.hacked=1</script>', '"\'`&amp;', 'שלום',
           '\u202eevil', '👩\u200d👩\u200d👧', 'zero\u200bwidth',
           '\u200b', 'a'*10000, 'e\u0301'*3, '\x07\n', '', ' ', '[SEP]']

def small_bert(tokenizer):
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                 max_position_embeddings=64, num_labels=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), pad_token_id=0, **sizes))

@pytest.fixture(scope='module')
def runs(tmp_path_factory, tiny_tokenizer, tiny_data):
    "Return {name: run of a few steps}"
    home = tmp_path_factory.mktemp('runs')
    methods = dict(addrop=lambda: ADDrop(p=.4, q=.5), masked=lambda: SaliencyGuided(mask_fraction=.4),
                   guided=lambda: AttentionGuidance(head_fraction=.5, alpha=10.),
                   sallm=lambda: SalLM(teacher=results['addrop'], steps=4))
    results = {}
    for name, method in methods.items():
        # cross-tuning needs two epochs
        size = dict(epochs=2, snapshots=6) if name == 'addrop' else dict(epochs=1, snapshots=2)
        results[name] = train(small_bert(tiny_tokenizer), tiny_tokenizer, tiny_data, method(), run_dir=home/name,
                           probes=probes, batch_size=8, learning_rate=1e-3, saliency_snapshots='all',
                           progress=False, **size)
    return results

def show(page, run, keep=None, state=None, panels=panels, plotly=False, **kw):
    "Mount the panels on `run` (steps `keep` are shipped)"
    run = as_run(run)
    frames = [pack_frame(run.snapshot(step, probe)) for step, probe in run.recorded if keep is None or step in keep]
    mount(page, {**meta([run]), **kw}, frames, state=state, panels=panels, rows={0: run.metrics}, plotly=plotly)

def by_hand(labels, special=None, step=0, probe=0, seed=0, info=None, **arrays):
    "Return a snapshot of invented tokens"
    n, rng = len(labels), np.random.default_rng(seed)
    special = np.array([l in ('[CLS]', '[SEP]') for l in labels]) if special is None else np.array(special)
    word_ids = np.where(special, -1, np.cumsum(~special) - 1)
    a = rng.random((2, 3, n, n)) + .01
    arrays = dict(attention=a/a.sum(-1, keepdims=True), saliency=rng.normal(size=n), probabilities=np.array([.25, .75]),
                  **arrays)
    return Snapshot(step=step, epoch=step/4, probe=probe, arrays=arrays, layers=dict(attention=[0, 1]),
                    texts=(' '.join(l for l, s in zip(labels, special) if not s),), tokens=list(labels),
                    labels=list(labels),
                    words=[l for l, s in zip(labels, special) if not s], word_ids=word_ids, is_special=special, label=1,
                    classes=['no', 'yes'], losses=dict(task=.5),
                    info=dict(pooled_row=0, **(info or {})))

def set_state(page, **changes):
    page.evaluate('changes => app.state.set(changes)', changes)
    settled(page)

def state(page): return page.evaluate('() => app.state.get()')
def text(page, selector): return page.inner_text(selector)
def chips(page): return page.query_selector_all('.sv-line .sv-chip')

def fills(page):
    return page.evaluate(
        '''() => [...document.querySelectorAll('.sv-line .sv-chip')].map(c => [getComputedStyle(c).backgroundColor,
            getComputedStyle(c).color])''')

def rgb(css): return [int(x) for x in css[css.index('(') + 1:-1].split(',')[:3]]

def luminance(css):
    x = np.array(rgb(css))/255
    return float(np.where(x <= .04045, x/12.92, ((x + .055)/1.055)**2.4) @ [.2126, .7152, .0722])

# the sentence

def shares(x, special):
    x = np.where(special, 0, np.abs(x))
    return x/x.sum()

@pytest.mark.slow
@pytest.mark.parametrize('theme', ['light', 'dark'])
@pytest.mark.parametrize('colour', ['saliency', 'attention', 'difference'])
def test_colours_of_tokens_are_the_stated_scale_and_stay_readable(page, runs, theme, colour):
    show(page, runs['addrop'], panels=['sentence'],
         state=dict(colour=colour, row=3, entry=dict(kind='head', layer=1, head=2)))
    set_state(page, theme=theme)
    frame = unpack_frame(pack_frame(runs['addrop'].snapshot(-1, 0)))['arrays']
    special = runs['addrop'].snapshot(-1, 0).is_special
    saliency, attention = frame['saliency'].astype(float), frame['attention'][1, 2, 3].astype(float)
    values = dict(saliency=saliency, attention=attention,
                  difference=shares(attention, special) - shares(saliency, special))[colour]
    limit = np.abs(values[~special]).max()
    if colour == 'saliency': limit = run_meta(runs['addrop'])['saliency']['limit']
    load(page, 'colour.js')
    wanted = page.evaluate(
        '''([values, limit, signed, theme]) => { const scale = sv.colourScaleOf({limit, signed, theme,
            palette: 'cividis'});
        return values.map(v => sv.cssColour(sv.scaleColour(scale, v))); }''',
        [values.tolist(), limit, colour != 'attention', theme])
    shown = fills(page)
    assert [np.abs(np.array(rgb(a)) - rgb(b)).max() <= 2 for (a, _), b, s in zip(shown, wanted, special)
            if not s] == [True]*int((~special).sum())
    for back, ink in [o for o, s in zip(shown, special) if not s]:
        light, dark = sorted([luminance(back), luminance(ink)], reverse=True)
        assert (light + .05)/(dark + .05) >= 4.5
    ends = page.eval_on_selector_all('.sv-scale-tick', 'ticks => ticks.map(t => t.textContent)')
    assert float(ends[-1].replace('−', '-')) == pytest.approx(limit, rel=.06)
    assert ends[0] == ('0' if colour == 'attention' else '−' + ends[-1])

@pytest.mark.slow
def test_saliency_has_one_scale_for_all_sentences_and_steps_of_a_run_unless_another_is_chosen(page, runs):
    run = runs['addrop']
    show(page, run, panels=['sentence'])
    def most(step, probe):
        s = run.snapshot(step, probe)
        return float(np.abs(s.arrays['saliency'][~np.array(s.is_special)]).max())
    largest = {place: most(*place) for place in run.recorded}
    def end(): return page.locator('.sv-sentence .sv-scale-tick[data-end="high"]').inner_text()
    def number(x): return page.evaluate('([x]) => sv.shortNumber(x)', [x])
    load(page, 'colour.js')
    kind = page.locator('.sv-sentence .sv-scale-kind')
    for step, probe in run.recorded:
        set_state(page, step=step, probe=probe)
        assert end() == number(max(largest.values())) and kind.inner_text() == 'square-root scale of the run'
    place = min(largest, key=largest.get)
    set_state(page, step=place[0], probe=place[1])
    assert 'of the run' in text(page, '.sv-sentence-scale')
    page.get_by_label('Scale to this sentence').check(); settled(page)
    assert end() == number(largest[place]) != number(max(largest.values()))
    assert 'scaled to this sentence and step' in page.locator('.sv-sentence-main .sv-note').inner_text()
    assert kind.inner_text() == 'square-root scale of this sentence'
    set_state(page, colour='attention')
    assert kind.inner_text() == 'square-root scale'
    assert not page.get_by_label('Scale to this sentence').is_visible()

def test_a_page_with_a_few_steps_has_the_scale_of_the_whole_run(page, runs):
    run = runs['addrop']
    places = {(s, p): largest_saliency(run.snapshot(s, p)) for s, p in run.recorded}
    step, probe = min(places, key=places.get)
    few, every = run_meta(run, probes=[probe], steps=[step]), run_meta(run)
    assert few['saliency'] == every['saliency'] == dict(limit=max(places.values()), step=max(run.steps))

@pytest.mark.slow
def test_the_scale_names_its_last_step_during_training_and_notes_an_unknown_limit(page, runs):
    run = runs['addrop']
    frame, described = pack_frame(run.snapshot(-1, 0)), run_meta(run)
    def note(**changes):
        mount(page, meta([dict(described, **changes)]), [frame], panels=['sentence'])
        return page.locator('.sv-sentence-main .sv-note').inner_text()
    scale = dict(limit=7., step=40)
    assert 'of the run so far, up to step 40.' in note(saliency=scale, live=True, finished=False)
    assert 'so far' not in note(saliency=scale, live=False, finished=True)
    assert 'scale of the run' in page.inner_text('.sv-sentence-scale')
    unknown = note(saliency=dict(limit=None, step=40))
    assert 'The largest saliency of the run was not recorded' in unknown
    assert page.locator('.sv-sentence .sv-scale-kind').inner_text() == 'square-root scale of this sentence'

def test_merged_words_are_sums_over_their_pieces(page, runs):
    load(page, 'sentence.js', 'codec.js')
    s = runs['addrop'].snapshot(-1, 0)
    data = pack_frame(s)
    frame, probe = unpack_frame(data)['arrays'], run_meta(runs['addrop'])['probes'][0]
    units = [np.flatnonzero(s.word_ids == w) for w in range(len(s.words))]
    assert max(map(len, units)) > 1, 'the test needs a word of several pieces'
    row = int(units[1][0])
    send(page, given=dict(frame=data, probe=probe,
                          state=dict(row=row, entry=dict(kind='head', layer=0, head=1), mergeWords=True,
                                     hideSpecial=True, colour='saliency')))
    found = evaluate_json(page, '() => sv.sentenceValues(sv.decodeFrame(given.frame), given.probe, given.state)')
    attention = frame['attention'][0, 1].astype(float)
    assert np.allclose(found['saliency'], [frame['saliency'][u].sum() for u in units], atol=1e-6)
    assert np.allclose(found['attention'], [attention[units[1]][:, u].sum(-1).mean() for u in units], atol=1e-6)

def test_click_chooses_the_row_and_shift_click_adds_up_tokens(page, runs):
    show(page, runs['addrop'], panels=['sentence'], state=dict(entry=dict(kind='head', layer=1, head=0)))
    attention = unpack_frame(pack_frame(runs['addrop'].snapshot(-1, 0)))['arrays']['attention'][1, 0]
    chips(page)[2].click()
    chips(page)[4].click(modifiers=['Shift'])
    chips(page)[5].click(modifiers=['Control'])
    settled(page)
    assert state(page)['row'] == 2 and state(page)['tokens'] == [4, 5]
    label = text(page, '.sv-sum')
    assert '2 chosen tokens' in label
    assert float(label.split(' of ')[0]) == pytest.approx(attention[2, [4, 5]].sum(), rel=.06)
    spoken(page, label)
    chips(page)[2].click()
    chips(page)[4].click(modifiers=['Shift'])
    settled(page)
    assert state(page)['row'] is None and state(page)['tokens'] == [5]

@pytest.mark.slow
def test_keys_walk_choose_and_add(page, runs):
    show(page, runs['addrop'], panels=['sentence'])
    page.focus('.sv-line .sv-chip[tabindex="0"]')
    for key in ('ArrowRight', 'ArrowRight', 'Enter', 'ArrowRight', ' ', 'End', ' '): page.keyboard.press(key)
    settled(page)
    assert state(page)['row'] == 2 and state(page)['tokens'] == [3, len(chips(page)) - 1]
    assert 'attention from' in page.evaluate('() => document.activeElement.getAttribute("aria-label")')
    page.keyboard.press('Escape')
    settled(page)
    assert state(page)['row'] is None and state(page)['tokens'] == []

def test_the_masked_copy_is_below_its_words(page, runs):
    run = runs['masked']
    show(page, run, panels=['sentence'], state=dict(hideSpecial=True))
    s = run.snapshot(-1, 0)
    masked = s.arrays['is_masked'].astype(bool)
    shown = page.evaluate('() => [...document.querySelectorAll(".sv-copy")].map(c => '
                          '[c.classList.contains("sv-replaced"), c.textContent])')
    assert [r for r, _ in shown] == [bool(masked[s.word_ids == w].any()) for w in range(len(s.words))]
    assert any(r for r, _ in shown)
    assert all(copy == s.words[w] for w, (replaced, copy) in enumerate(shown) if not replaced)
    p, q = s.arrays['probabilities'], s.arrays['masked_probabilities']
    assert float(text(page, '.sv-class-box .sv-note').split('= ')[1].replace('−', '-')) == pytest.approx(
        maths.kl(p, q), rel=.6, abs=1e-9)
    assert 'predicted' in text(page, f'.sv-class:nth-child({p.argmax() + 1})')

@pytest.mark.sample(1)
@pytest.mark.parametrize('ranking, values, lost, tied', [
    ('signed', [0, -1., 0., 0., 2., 0], [1], 0), ('signed', [0, 0., 0., 0., 2., 0], [1], 3),
    ('magnitude', [0, -.5, .5, 1., 2., 0], [1, 2], 0), ('magnitude', [0, -.5, 1., .5, -.5, 0], [1, 3], 3),
    ('signed', [0, -1., 0., 0., 2., 0], [], 0)])
def test_which_of_equal_words_is_masked_means_nothing(page, ranking, values, lost, tied):
    s = by_hand(['[CLS]', 'a', 'very', 'good', 'film', '[SEP]'],
                info=dict(methods=dict(SaliencyGuided=dict(ranking=ranking)), masked_labels=list('abcdef')),
                is_masked=np.isin(np.arange(6), lost), method_saliency=np.array(values))
    show(page, [s], panels=['sentence'])
    label = text(page, '.sv-sentence')
    lowest = 'saliency closest to zero' if ranking == 'magnitude' else 'the lowest saliency'
    replaced = f'the words with {lowest} ({len(lost)} of 4) are replaced' if lost else 'no word is replaced (0 of 4).'
    assert replaced in label
    assert ('Ties: ' in label) == bool(tied)
    if tied: assert f'{tied} words tie at the threshold; which of them are replaced is arbitrary' in label
    caption = masked_sentence(s).caption
    assert (f'{tied} words tie at the threshold' in caption) == bool(tied)
    assert ('Ties: ' in caption) == bool(tied)

def test_gold_label_and_prediction_are_marked(page):
    show(page, [by_hand(['[CLS]', 'good', '[SEP]'])], panels=['sentence'])
    assert text(page, '.sv-predicted').split() == ['yes', '0.75', 'label', 'predicted']
    assert 'task 0.5' in text(page, '.sv-sentence-side')

def test_in_multi_label_classification_every_class_above_one_half_is_predicted(page):
    s = by_hand(['[CLS]', 'good', '[SEP]'],
                info=dict(task='multi_label_classification', right_classes=['yes', 'maybe']))
    s.arrays['probabilities'], s.classes, s.label = np.array([.7, .8, .1]), ['no', 'yes', 'maybe'], None
    show(page, [s], panels=['sentence'])
    rows = page.evaluate('() => [...document.querySelectorAll(".sv-class")].map(row => ['
                         'row.querySelector(".sv-class-name").textContent, '
                         '[...row.querySelectorAll(".sv-tag")].map(tag => tag.textContent)])')
    assert rows == [['no', ['predicted']], ['yes', ['label', 'predicted']], ['maybe', ['label']]]
    assert 'predicted above 0.5' in text(page, '.sv-class-box')

def test_missing_evidence_has_a_note(page):
    s = by_hand(['[CLS]', 'good', '[SEP]'])
    del s.arrays['saliency'], s.arrays['probabilities']
    show(page, [s])
    assert 'No saliency was recorded' in text(page, '.sv-sentence-main')
    assert 'No probabilities' in text(page, '.sv-sentence-side')
    page.evaluate('() => { for (const group of document.querySelectorAll(".sv-group")) group.open = true; }')
    settled(page)
    notes = page.eval_on_selector_all('.sv-group-missing:not([hidden])', 'o => o.map(n => n.textContent)')
    assert len(notes) == 3 and all('not recorded at this step' in o for o in notes)

@pytest.mark.slow
def test_hostile_tokens_are_text_in_every_panel(page):
    attribution = np.random.default_rng(0).normal(size=(2, 3, len(hostile), len(hostile)))
    s = [by_hand(hostile, step=k, info=dict(seed=1, drawn_step=k, example_id=5), attention_attribution=attribution)
         for k in (0, 4)]
    for o in s: o.layers['attention_attribution'] = [0, 1]
    for o in s: o.classes, o.losses = hostile[1:3], {'<img src=x onerror=window.hacked=1>': 1.}
    show(page, s, plotly=True)
    page.evaluate('() => { for (const group of document.querySelectorAll(".sv-group")) group.open = true; }')
    for colour in ('attention', 'difference', 'saliency'):
        set_state(page, colour=colour, row=1, tokens=list(range(len(hostile))))
    for merge in (True, False):
        set_state(page, mergeWords=merge,
                  whatIf=dict(p=.5, q=.5, region='low', protect=True, pattern='next', topShare=.5, maskedShare=.5))
    for chip in chips(page): chip.hover()
    page.hover('.sv-pair-map')
    assert page.evaluate('() => [window.hacked, document.querySelectorAll(".salviz img, .salviz script, .salviz '
                         'iframe").length]') == [None, 0]
    shown = page.eval_on_selector_all('.sv-line .sv-chip', 'o => o.map(c => c.textContent)')
    assert shown[2].startswith('<script>window') and shown[9] == 'a'*28 + '…' and shown[12] == '∅' and shown[13] == '␣'
    assert shown[5] == '‹U+202E›evil'
    assert shown[7] == 'zero‹U+200B›width'
    assert shown[8] == '‹U+200B›'
    assert shown[6] == hostile[6]
    assert shown[11] == '␇↵'
    set_state(page, row=9)
    page.hover('.sv-sentence-head')
    assert page.evaluate('() => document.querySelector(".sv-full").textContent') == 'a'*10000
    page.set_viewport_size(dict(width=700, height=900))
    settled(page)
    assert page.evaluate('() => document.documentElement.scrollWidth <= 700')

def test_right_to_left_sentences_run_from_the_right(page):
    show(page, [by_hand(['[CLS]', 'שלום', 'עולם', '[SEP]'])], panels=['sentence'])
    x = [c.bounding_box()['x'] for c in chips(page)]
    assert x == sorted(x, reverse=True)
    page.focus('.sv-line .sv-chip[tabindex="0"]')
    page.keyboard.press('ArrowLeft')
    assert page.evaluate('() => document.activeElement.dataset.token') == '1'

# time

def wait_step(page, step): page.wait_for_function('step => store.stepOf(app.state) === step', arg=step)

@pytest.mark.slow
def test_keys_move_the_scrubber_over_recorded_steps(page, runs):
    run = runs['addrop']
    show(page, run, panels=['time'])
    steps = run.steps
    page.focus('.sv-time-range')
    for key, wanted in (('Home', steps[0]), ('ArrowRight', steps[1]), ('ArrowRight', steps[2]), ('ArrowLeft', steps[1]),
                        ('End', steps[-1]), ('ArrowRight', steps[-1])):
        page.keyboard.press(key)
        settled(page)
        assert state(page)['step'] == wanted and page.input_value('.sv-time-range') == str(wanted)
    last = run.snapshot(-1, 0)
    words = page.get_attribute('.sv-time-range', 'aria-valuetext')
    assert words == f'step {steps[-1]} of {steps[-1]}, epoch {last.info["method_epoch"]}, AD-DROP phase'

@pytest.mark.slow
def test_dragging_stops_at_recorded_steps_only(page, runs):
    show(page, runs['addrop'], panels=['time'])
    steps = runs['addrop'].steps
    for value in range(steps[-1] + 1):
        page.eval_on_selector('.sv-time-range', '(r, v) => { r.value = v; r.dispatchEvent(new Event("input")); }',
                              value)
        settled(page)
        assert int(page.input_value('.sv-time-range')) == min(steps, key=lambda s: abs(s - value))

@pytest.mark.slow
def test_play_goes_through_the_steps_and_stops_at_the_end(page, runs):
    show(page, runs['addrop'], panels=['time'], state=dict(speed=15, step=0))
    page.evaluate('() => { window.seen = []; app.state.on(changed => { if (changed.has("step")) '
                  'seen.push(app.state.step); }); }')
    page.focus('.sv-time-range')
    page.keyboard.press(' ')
    page.wait_for_function('() => !app.state.playing && seen.length > 2')
    assert page.evaluate('() => seen') == runs['addrop'].steps[1:]
    settled(page)
    assert text(page, '.sv-time-button:nth-child(2)') == '▶'

def test_the_button_that_reaches_the_first_step_keeps_the_focus_and_the_keys(page, runs):
    run, back = runs['addrop'], 'button[aria-label="previous recorded step"]'
    show(page, run, panels=['time'], state=dict(step=run.steps[1]))
    page.click(back)
    settled(page)
    assert state(page)['step'] == run.steps[0] and page.get_attribute(back, 'aria-disabled') == 'true'
    page.keyboard.press('Enter')
    assert page.evaluate('s => document.activeElement.matches(s)', back) and state(page)['step'] == run.steps[0]
    page.keyboard.press(']')
    settled(page)
    assert state(page)['step'] == run.steps[1] and page.get_attribute(back, 'aria-disabled') == 'false'

def test_each_evaluation_score_is_drawn_under_its_name(page):
    load(page, 'curves.js')
    names = lambda row: page.evaluate('row => sv.curveSeries([{kind: "eval", step: 4, ...row}], {x: [], y: [], probes: '
                                      '0}).map(c => [c.name, c.subplot])', row)
    assert names(dict(loss=6.8, accuracy=.1)) == [['validation loss', 0], ['validation accuracy', 1]]
    assert names(dict(loss=6., mse=6., pearson=.1, spearman=.2)) == [['validation MSE', 0], ['validation Pearson', 1],
                                                                     ['validation Spearman', 1]]
    assert names(dict(loss=.4, f1=.5)) == [['validation loss', 0], ['validation F1', 1]]
    # perplexity shows the same as the loss, on a scale on which a fraction would not be visible
    assert names(dict(loss=4.9, perplexity=142., accuracy=.1)) == [['validation loss', 0], ['validation accuracy', 1]]

def test_a_fraction_of_a_training_step_is_drawn_as_a_score(page):
    load(page, 'curves.js')
    rows = [dict(kind='train', step=k, loss=1., task=2., distillation=.4, explanation=.6, teacher_agreement=k - 1,
                 task_weight=0., teacher_agreement_weight=0.) for k in (1, 2)]
    drawn = page.evaluate('rows => sv.curveSeries(rows, {x: [], y: [], probes: 0}).map(c => [c.name, c.subplot])', rows)
    assert drawn == [['total', 0], ['task', 0], ['distillation', 0], ['explanation', 0], ['teacher agreement', 1]]

def test_a_mean_over_a_subset_of_sentences_states_its_size(page):
    load(page, 'curves.js')
    name = lambda probes, of: page.evaluate(
        'known => sv.curveSeries([], {x: [0], y: [.5], ...known})[0].name', dict(probes=probes, of=of))
    assert name(1, 8) == 'agreement of attention and saliency (1 of 8 sentences)'
    assert name(8, 8) == 'agreement of attention and saliency (8 sentences)'

@pytest.mark.slow
def test_a_curve_that_was_hidden_stays_hidden_while_its_name_grows(page):
    load(page, 'curves.js')
    shown = page.evaluate('''() => {
        const [one, all] = [1, 2].map(probes => sv.curveSeries([], {x: [0], y: [.5], probes, of: 2})[0]);
        return [one.name !== all.name, one.id === all.id && Boolean(one.id)]; }''')
    assert shown == [True, True]
    show(page, [by_hand(['[CLS]', 'a', 'good', 'film', '[SEP]'], step=k) for k in range(3)], panels=['time'],
         plotly=True)
    page.wait_for_selector('.sv-curves .main-svg')
    key = page.locator('.sv-curve-key', has_text='agreement')
    key.click()
    assert key.get_attribute('data-name') == 'agreement' and key.get_attribute('aria-pressed') == 'false'
    assert page.evaluate('document.querySelector(".sv-curve-plot").data.map(t => t.visible)') == [False]

@pytest.mark.slow
def test_thirty_steps_a_second_are_all_shown(page):
    show(page, [by_hand(['[CLS]', 'a', 'good', 'film', '[SEP]'], step=k) for k in range(31)],
         panels=['sentence', 'time'], state=dict(step=0, speed=30), plotly=True)
    page.wait_for_selector('.sv-curves .main-svg')
    page.evaluate('() => { window.seen = []; app.state.on(changed => { if (changed.has("step")) '
                  'seen.push(performance.now()); }); app.state.set({playing: true}); }')
    page.wait_for_function('() => !app.state.playing && seen.length')
    assert len(page.evaluate('() => seen')) == 30

def test_steps_missing_from_the_page_are_hollow_and_explained(page, runs):
    run = runs['addrop']
    away = run.steps[2]
    show(page, run, keep=[s for s in run.steps if s != away], panels=['time'], shipped='steps= chooses what ships.')
    assert page.eval_on_selector_all('.sv-hollow',
                                     'o => o.map(c => [Number(c.dataset.step), '
                                     'c.querySelector("title").textContent])') \
        == [[away, f'Step {away} was recorded but is not on this page. steps= chooses what ships.']]
    page.click('.sv-hollow', force=True)
    settled(page)
    assert f'Step {away} was recorded but is not on this page' in text(page, '.sv-time')
    assert state(page)['step'] in (run.steps[1], run.steps[3])

def test_live_follows_the_newest_step(page, runs):
    run = runs['addrop']
    show(page, run, keep=run.steps[:3], panels=['time'])
    send(page, more=pack_frame(run.snapshot(run.steps[3], 0)), told={**meta([run])})
    page.evaluate('() => { told.runs[0].live = true; told.runs[0].finished = false; store.load(told); }')
    settled(page)
    assert page.get_attribute('button:text("live")', 'aria-pressed') == 'true'
    page.evaluate('() => store.addFrame(more)')
    settled(page)
    assert f'step {run.steps[3]} of' in text(page, '.sv-time-where')
    page.click('button[aria-label="previous recorded step"]')
    settled(page)
    assert state(page)['step'] == run.steps[2] and page.get_attribute('button:text("live")', 'aria-pressed') == 'false'
    page.click('button:text("live")')
    settled(page)
    assert state(page)['step'] is None

# curves

@pytest.mark.slow
def test_agreement_in_the_browser_is_the_one_of_the_metrics(page, runs):
    steps, wanted = runs['addrop'].steps, {}
    for s in runs['addrop'].snapshots():
        wanted.setdefault(s.step, []).append(attention_agreement(s))
    show(page, runs['addrop'], panels=['time'], plotly=True)
    page.wait_for_selector('.sv-curves .main-svg')
    drawn = page.evaluate('() => { const t = document.querySelector(".sv-curve-plot").data.find(t => '
                          't.name.startsWith("agreement")); return [t.x, t.y]; }')
    assert drawn[0] == steps and np.allclose(drawn[1], [np.mean(wanted[s]) for s in steps], atol=1e-9)

@pytest.mark.slow
def test_clicking_a_curve_jumps_to_the_nearest_shipped_step(page, runs):
    run = runs['addrop']
    show(page, run, keep=run.steps[::2], panels=['time'], plotly=True)
    page.wait_for_selector('.sv-curves .main-svg')
    box = page.query_selector('.sv-curve-plot').bounding_box()
    place = page.evaluate('step => { const a = document.querySelector(".sv-curve-plot")._fullLayout.xaxis; return '
                          'a._offset + a.d2p(step); }', run.steps[1])
    page.mouse.move(box['x'] + place, box['y'] + 60, steps=4)
    page.wait_for_selector('.hoverlayer .hovertext, .hoverlayer .legend')
    page.mouse.down()
    page.mouse.up()
    page.wait_for_function('() => app.state.step !== null')
    assert state(page)['step'] == min(run.steps[::2], key=lambda s: abs(s - run.steps[1]))

@pytest.mark.slow
def test_curves_are_read_with_the_keyboard(page, runs):
    run = runs['addrop']
    show(page, run, panels=['time'], plotly=True)
    page.wait_for_selector('.sv-curves .main-svg')
    read = lambda: text(page, '.sv-curves .sv-tip')
    number = lambda name, label: float(re.search(rf'(?:: |; ){re.escape(name)} ([\d.−e]+)', label)[1].replace('−', '-'))
    train = {row['step']: row for row in run.metrics if row['kind'] == 'train'}
    loss = 'task (equals total)'
    page.focus('.sv-curve-plot')
    assert read() == ''
    page.keyboard.press('End')
    last = max(train)
    assert read().startswith(f'step {last}: ') and number(loss, read()) == pytest.approx(train[last]['loss'], rel=.01)
    for k in range(1, 4):
        page.keyboard.press('ArrowLeft')
        label = read()
        assert label.startswith(f'step {last - k}: ')
        assert number(loss, label) == pytest.approx(train[last - k]['loss'], rel=.01)
    evals = [row for row in run.metrics if row['kind'] == 'eval' and row.get('split', 'validation') == 'validation'
             and row['step'] <= last - 3]
    assert number('validation accuracy', label) == pytest.approx(evals[-1]['accuracy'], rel=.01)
    assert f'(at step {evals[-1]["step"]})' in label.split('validation accuracy')[1] and 'macro-F1' not in label
    spoken(page, label)
    place = page.evaluate('step => { const p = document.querySelector(".sv-curve-plot"), a = p._fullLayout.xaxis; '
                          'return p.getBoundingClientRect().x + a._offset + a.d2p(step); }', last - 3)
    assert abs(page.query_selector('.sv-curve-read').bounding_box()['x'] + 1 - place) < 1
    page.keyboard.press('Enter')
    settled(page)
    assert state(page)['step'] == min(run.steps, key=lambda s: abs(s - last + 3)) and read() == label
    page.click(f'.sv-curve-key:text-is("{loss}")') # hidden curves are not announced
    page.focus('.sv-curve-plot')
    page.keyboard.press('Home')
    assert loss not in read() and read().startswith(f'step {min(run.steps)}: ')
    page.focus('.sv-time-range')
    assert read() == '' and not page.is_visible('.sv-curve-read')

def test_of_many_rows_the_running_mean_is_read_as_well(page):
    load(page, 'curves.js')
    label = page.evaluate("""() => { const x = Array.from({length: 600}, (_, i) => i + 1);
        const few = {name: 'score', marks: true, x: [40, 80], y: [.25, .75]};
        const many = {name: 'total', x, y: x.map(v => v % 2 + 1)};
        return [30, 50, 80].map(step => sv.curveReading([many, few], step)); }""")
    total = 'total 1, moving average 1.48'
    assert label == [f'step 30: {total}', f'step 50: {total}; score 0.25 (at step 40)', f'step 80: {total}; score 0.75']

@pytest.mark.slow
def test_a_hundred_updates_keep_the_same_plot(page, runs):
    run = runs['guided']
    show(page, run, keep=run.steps[:1], panels=['time'], plotly=True)
    page.wait_for_selector('.sv-curves .main-svg')
    rows = [dict(kind='train', step=100 + k, loss=2 + 1/(k + 1), task=1., attention_guidance=1 + 1/(k + 1),
                 attention_guidance_weight=1 - k/100) for k in range(100)]
    page.evaluate('''async rows => {
        const plot = document.querySelector('.sv-curve-plot'), svg = plot.querySelector('.main-svg');
        let draws = 0;
        const react = Plotly.react;
        Plotly.react = (...args) => { draws++; return react(...args); };
        for (const row of rows) { store.addRows(0, [row]); await new Promise(requestAnimationFrame); }
        await new Promise(done => { const wait = () => plot.data[0].x.at(-1) === 199 ? done() : setTimeout(wait, 50);
            wait(); });
        window.same = [plot === document.querySelector('.sv-curve-plot'),
            svg === document.querySelector('.sv-curve-plot .main-svg'),
            document.querySelectorAll('.js-plotly-plot').length, draws];
    }''', rows)
    same = page.evaluate('() => window.same')
    assert same[:3] == [True, True, 1] and same[3] < 50
    assert page.eval_on_selector_all('.sv-curve-key', 'o => o.map(b => b.textContent)') == ['total', 'task',
        'attention guidance', 'validation loss', 'validation accuracy', 'validation macro-F1',
        'agreement of attention and saliency (2 sentences)', 'weight α of attention guidance']

def test_the_current_step_is_a_line_that_moves_without_drawing(page, runs):
    run = runs['addrop']
    show(page, run, panels=['time'], plotly=True)
    page.wait_for_selector('.sv-curves .main-svg')
    page.evaluate('() => { window.drawn = 0; for (const name of ["react", "relayout", "restyle"]) { const f = '
                  'Plotly[name]; Plotly[name] = (...a) => { drawn++; return f(...a); }; } }')
    for step in run.steps:
        set_state(page, step=step)
        wanted = page.evaluate('step => { const p = document.querySelector(".sv-curve-plot"), a = p._fullLayout.xaxis; '
                               'return p.getBoundingClientRect().x + a._offset + a.d2p(step); }', step)
        line = page.query_selector('.sv-curve-now').bounding_box()
        thumb = page.evaluate(
            '''() => { const r = document.querySelector('.sv-time-range'), b = r.getBoundingClientRect();
                return b.x + 8 + (b.width - 16) * r.value / r.max; }''')
        assert abs(line['x'] + 1 - wanted) < 1 and abs(thumb - wanted) < 1.5
    assert page.evaluate('() => drawn') == 0

@pytest.mark.slow
def test_without_plotly_a_message_replaces_the_curves(page, runs):
    show(page, runs['addrop'], panels=['time'])
    page.wait_for_selector('.sv-curves :text("need plotly")')
    assert page.is_visible('.sv-time-range')

@pytest.mark.slow
def test_plotly_is_requested_after_the_maps_when_the_browser_is_idle(page, runs):
    page.evaluate('() => { window.later = []; window.requestIdleCallback = (act, how) => later.push([act, how]); }')
    show(page, runs['addrop'], panels=['heads', 'map', 'time'])
    page.evaluate('() => { app.destroy(); window.times = 0; later.length = 0; '
                  'const el = document.getElementById("el"); '
                  'window.app = sv.mountApp(el, store, {panels: ["heads", "map", "time"], '
                  'plotly: async () => { times++; return null; }}); }')
    settled(page)
    tells = '() => [times, later.length, document.querySelector(".sv-map canvas") !== null]'
    assert page.evaluate(tells) == [0, 1, True]
    assert len(set(pixels(page, '.sv-map canvas', 0, 0, 150, 150))) > 2
    assert page.evaluate('() => later[0][1]') == dict(timeout=2000), 'a page that is never idle gets its curves too'
    page.evaluate('() => later[0][0]()')
    page.wait_for_selector('.sv-curves :text("need plotly")')
    assert page.evaluate('() => times') == 1

@pytest.mark.slow
def test_curves_are_drawn_without_requestidlecallback(page, runs):
    page.evaluate('() => { delete window.requestIdleCallback; }')
    show(page, runs['addrop'], panels=['time'], plotly=True)
    page.wait_for_selector('.sv-curves .main-svg')

def test_cross_tuning_epochs_are_shaded(page):
    load(page, 'curves.js')
    spans = evaluate_json(page, '() => sv.epochSpans({steps_per_epoch: 5, cross_tuning: true}, 18)')
    assert [(s['from'], s['to'], s['epoch'], s['shaded'])
            for s in spans] == [(0, 5, 1, False), (5, 10, 2, True), (10, 15, 3, False), (15, 18, 4, True)]

@pytest.mark.slow
def test_thinning_loses_no_extreme_and_smoothing_is_a_mean(page):
    load(page, 'curves.js')
    y = np.random.default_rng(0).normal(size=10000)
    x = list(range(10000))
    thin, smooth = evaluate_json(page, '([x, y]) => [sv.thinned(x, y, 300), sv.smoothed(y, 20)]', [x, y.tolist()])
    assert len(thin['x']) <= 600
    assert thin['x'] == sorted(thin['x'])
    assert max(thin['y']) == y.max()
    assert min(thin['y']) == y.min()
    assert np.allclose(smooth, [y[max(0, i - 20):i + 21].mean() for i in range(10000)])

# what if

def plan_of(tiny_tokenizer, **options):
    "Return AD-DROP's plan for one sentence as in training: (snapshot, batch, attribution in floating point)"
    model, batch = small_bert(tiny_tokenizer), Collator(tiny_tokenizer)([encode_texts([probes[0]], tiny_tokenizer)[0]])
    batch['example_id'][:] = 41
    with undisturbed(model):
        plan = ADDrop.from_args(dict(p=.4, q=.5, cross_tuning=False, **options)).plan(model, batch,
                                                                                      Progress(step=7, epoch=2, seed=3))
    shown = {k: torch.stack(list(v.values()), 1)[0].numpy() for k, v in plan.shown().items()}
    t, n = align(tiny_tokenizer, probes[0]), batch['input_ids'].shape[1]
    s = by_hand(t.labels, special=t.is_special, step=7,
                info=dict(method='ADDrop', args=dict(p=.4, q=.5, region='high', protect_special=False) | options,
                          seed=3, drawn_step=7, example_id=41))
    s.arrays['attention'] = np.full((2, 4, n, n), 1/n)
    s.arrays.update(shown)
    s.layers.update({k: [0, 1] for k in shown})
    s.word_ids, s.words, s.tokens = t.word_ids, t.words, t.tokens
    return s, batch, shown['attention_attribution']

@pytest.fixture(scope='module')
def planned(tiny_tokenizer): return plan_of(tiny_tokenizer)

def recomputed(page, snapshot, **settings):
    "Return (candidates, discarded) [layers, heads, n, n] as the panel recomputes them"
    send(page, given=dict(frame=pack_frame(snapshot), special=snapshot.is_special.tolist(), settings=settings))
    out = evaluate_json(page, '''() => { const frame = sv.decodeFrame(given.frame);
        return [0, 1].map(l => [0, 1, 2, 3].map(h => { const r = sv.regionWith(frame, given.special, given.settings, l,
            h); return [[...r.candidates], [...r.discarded]]; })); }''')
    n = len(snapshot.tokens)
    return np.array(out, bool).reshape(2, 4, 2, n, n).transpose(2, 0, 1, 3, 4)

def test_at_the_recorded_settings_the_region_is_the_recorded_one(page, planned):
    load(page, 'derive.js', 'codec.js')
    candidates, discarded = recomputed(page, planned[0], p=.4, q=.5, region='high', protect=False)
    assert (candidates == planned[0].arrays['discard_candidates']).all()
    assert (discarded == planned[0].arrays['discarded']).all()
    assert discarded.any()

@pytest.mark.sample(2)
@pytest.mark.parametrize('p,q,region,protect', [
    (0, .5, 'high', False), (.5, .3, 'high', True), (1, .5, 'high', False), (.1, .9, 'low', False),
    (.77, 1, 'low', True), (.77, 1, 'low_released', False), (.3, .5, 'low_released', True),
    (1, .5, 'low_released', False)])
def test_other_settings_give_what_training_would_have_drawn(page, planned, p, q, region, protect):
    load(page, 'derive.js', 'codec.js')
    snapshot, batch, attribution = planned
    allowed = np.ones_like(attribution, bool)
    may = allowed & ~snapshot.is_special if protect else allowed
    candidates, discarded = recomputed(page, snapshot, p=p, q=q, region=region, protect=protect)
    wanted = maths.discard_candidates(attribution, may, p, region)
    assert (candidates == wanted).all()
    for l in (0, 1):
        drawn = drop_mask(torch.tensor(wanted[l])[None], torch.tensor(allowed[l])[None], q,
                          drop_uniform(batch, 4, 3, 7, l))
        assert (discarded[l] == drawn[0].numpy()).all()

@pytest.mark.sample(1)
@pytest.mark.parametrize('p,q,region', [(.4, .5, 'high'), (.77, 1, 'low'), (.3, .9, 'high')])
def test_rows_that_a_run_left_out_stay_out_whatever_the_settings(page, tiny_tokenizer, p, q, region):
    load(page, 'derive.js', 'codec.js')
    snapshot, _, attribution = plan_of(tiny_tokenizer, unread_rows='left_out')
    read = np.ones(attribution.shape[2], bool), np.arange(attribution.shape[2]) == 0 # the last layer's [CLS]
    candidates, discarded = recomputed(page, snapshot, p=p, q=q, region=region, protect=False)
    for l in (0, 1):
        assert (candidates[l] == maths.discard_candidates(attribution[l], read[l][:, None], p, region)).all()
        assert not discarded[l][:, ~read[l]].any()
    if (p, q) == (.4, .5):
        assert (candidates == snapshot.arrays['discard_candidates']).all()
        assert (discarded == snapshot.arrays['discarded']).all()

def test_left_out_rows_are_counted_and_not_called_ties(page, tiny_tokenizer, planned):
    shown_text = {}
    for how, snapshot in dict(tie=planned[0], left_out=plan_of(tiny_tokenizer, unread_rows='left_out')[0]).items():
        show(page, [snapshot], panels=['whatif'], state=dict(entry=dict(kind='head', layer=1, head=2)))
        shown_text[how] = text(page, '.sv-group[open] .sv-group-body > .sv-note')
    n = len(planned[0].tokens)
    assert f'In {n - 1} of {n} rows, keys tie' in shown_text['tie'] and 'left out' not in shown_text['tie']
    assert f'Rows on which the score does not depend are left out ({n - 1} of {n}).' in shown_text['left_out']
    assert 'keys tie' not in shown_text['left_out']

def slide(page, label, value):
    page.eval_on_selector(f'label:has-text("{label}") input[type=range] >> visible=true',
                          '(r, v) => { r.value = v; r.dispatchEvent(new Event("input")); }', value)
    settled(page)

def test_sliders_change_the_region_and_back_restores_it(page, planned):
    snapshot, _, attribution = planned
    show(page, [snapshot], panels=['whatif'], state=dict(entry=dict(kind='head', layer=0, head=2)))
    recorded = snapshot.arrays['discard_candidates'][0, 2]
    assert f'{recorded.sum()} candidates' in text(page, '.sv-group[open] .sv-group-counts')
    assert '0 candidates and 0 dropped positions differ' in text(page, '.sv-group-counts')
    slide(page, 'p', 70)
    wanted = maths.discard_candidates(attribution[0, 2], np.ones_like(recorded), .7)
    label = text(page, '.sv-group[open] .sv-group-counts')
    assert f'head 2: {wanted.sum()} candidates' in label
    assert f'recorded: {recorded.sum()} candidates' in label
    assert f'{(wanted != recorded).sum()} candidates and' in label
    assert state(page)['whatIf'] == dict(p=.7, q=.5, region='high', protect=False)
    page.click('button:text("Reset")')
    settled(page)
    assert state(page)['whatIf'] is None
    assert '0 candidates and 0 dropped positions differ' in text(page, '.sv-group-counts')

@pytest.mark.slow
def test_the_released_low_region_can_be_chosen_and_shows_its_count(page, planned):
    snapshot, _, attribution = planned
    show(page, [snapshot], panels=['whatif'], state=dict(entry=dict(kind='head', layer=0, head=2)))
    n, lessons = len(snapshot.tokens), {}
    share = next(p for p in (.3, .35, .45) if n*p != int(n*p)) # not a whole number of keys in a row
    slide(page, 'p', round(100*share))
    for region in maths.region_names:
        page.select_option('.sv-group[open] select', region)
        settled(page)
        wanted = maths.discard_candidates(attribution[0, 2], np.ones((n, n), bool), share, region)
        assert f'head 2: {wanted.sum()} candidates' in text(page, '.sv-group[open] .sv-group-counts')
        lessons[region] = text(page, '.sv-group[open] .sv-group-body > .sv-note')
    few = int(n*share)
    assert f'of {n} keys, the {few} with the lowest attribution' in lessons['low_released']
    assert f'of {n} keys, the {few + 1} with the lowest attribution' in lessons['low']

def test_ranks_from_stored_values_have_a_note(page, planned):
    snapshot = by_hand(planned[0].labels, info=dict(method='ADDrop', args=dict(p=.4, q=.5)),
                       attention_attribution=planned[2][:, :3])
    snapshot.layers['attention_attribution'] = [0, 1]
    show(page, [snapshot], panels=['whatif'])
    counts = text(page, '.sv-group-counts')
    assert 'half precision' in counts and 'Drops cannot be recomputed' in counts

def test_plain_epochs_of_cross_tuning_explain_the_missing_region(page, runs):
    show(page, runs['addrop'], panels=['whatif'], state=dict(step=0))
    assert 'plain fine-tuning' in text(page, '.sv-group[open]')

@pytest.mark.sample(3)
@pytest.mark.parametrize('name', maths.pattern_names)
@pytest.mark.parametrize('boundary,multiple', [('uniform', 'uniform'), ('zero', 'indicator')])
def test_patterns_match_those_of_python(page, name, boundary, multiple):
    load(page, 'derive.js')
    probe = dict(tokens=['[CLS]', 'a', '.', 'b', '##.', '[SEP]'], is_special=[True, False, False, False, False, True])
    occurs = dict(delim=[1, 0, 0, 0, 0, 1], period=[0, 0, 1, 0, 1, 0]).get(name)
    found = evaluate_json(page,
                          '([name, probe, boundary, multiple]) => [...sv.patternOf(name, probe, boundary, multiple)]',
                          [name, probe, boundary, multiple])
    assert np.array_equal(np.reshape(found, (6, 6)), maths.pattern_matrix(name, [True]*6, occurs, boundary, multiple))

def test_a_chosen_pattern_gives_its_residual(page, runs):
    run = runs['guided']
    show(page, run, panels=['whatif'], state=dict(entry=dict(kind='head', layer=1, head=1)))
    arrays = unpack_frame(pack_frame(run.snapshot(-1, 0)))['arrays']
    a, target = arrays['attention'][1, 1].astype(float), arrays['pattern_target'][1, 1].astype(float)
    label = text(page, '.sv-group[open] .sv-group-counts')
    assert 'recorded (prev)' in label
    assert float(label.split('residual ')[1].rstrip('.').replace('−',
                                                                '-')) == pytest.approx(
        ((a - target)**2).mean(), rel=.06)
    page.select_option('.sv-group[open] select >> nth=0', 'first')
    settled(page)
    first = maths.pattern_matrix('first', np.ones(len(a)))
    label = text(page, '.sv-group[open] .sv-group-counts')
    assert float(label.split('residual ')[1].split(';')[0].replace('−',
                                                                  '-')) == pytest.approx(
        ((a - first)**2).mean(), rel=.06)

@pytest.mark.sample(1)
@pytest.mark.parametrize('share,binarised', [(.01, True), (.3, True), (1., True), (.3, False)])
def test_the_target_of_sallm_is_recomputed(page, runs, share, binarised):
    run = runs['sallm']
    show(page, run, panels=['whatif'], state=dict(whatIf=dict(topShare=share, binarised=binarised)))
    s = run.snapshot(-1, 0)
    target = maths.saliency_target(s.arrays['method_saliency'], ~s.is_special, share, binarised)
    load(page, 'derive.js')
    found = evaluate_json(page,
                          '() => [...sv.sallmTarget(store.frameOf(app.state), app.state, store.probe(0, '
                          '0).is_special).values]')
    assert np.allclose(found, target, atol=1e-12)
    marked = page.eval_on_selector_all('.sv-target-row:nth-child(2) .sv-chip',
                                       'o => o.map(c => c.classList.contains("sv-marked"))')
    assert marked == (target[~s.is_special] > 0).tolist()

@pytest.mark.sample(1)
@pytest.mark.parametrize('task, ranking', [('regression', None), ('classification', 'magnitude'),
                                           ('token_classification', None), ('causal_lm', None)])
def test_the_target_of_sallm_is_recomputed_for_its_task(page, task, ranking):
    "For a score, by the size of saliency; for an answer, over its prompt; in the row whose output is explained"
    labels = ['[CLS]', 'a', 'b', 'c', 'd', 'e', '[SEP]']
    special, saliency = np.array([x[0] == '[' for x in labels]), np.array([0, .1, -.9, .2, .6, -.3, 0], np.float32)
    row = dict(token_classification=2, causal_lm=3).get(task)
    counts = ~special & (np.arange(7) <= (3 if task == 'causal_lm' else 6))
    ranked = np.abs(saliency) if ranking or task == 'regression' else saliency
    def target(share): return maths.saliency_target(ranked, counts, share).astype(np.float32)
    arrays = {} if row is None else dict(asked_row=np.arange(7) == row)
    args = dict(top_fraction=.3, binarised=True, ranking=ranking)
    info = dict(method='SalLM', args=args, methods=dict(SalLM=args), task=task,
                **(dict(axes=dict(asked_row=['token'])) if row else {}))
    s = by_hand(labels, info=info, method_saliency=saliency, saliency_target=target(.3), **arrays)
    show(page, s, panels=['map', 'whatif'], state=dict(whatIf=dict(topShare=.6, binarised=True)))
    load(page, 'derive.js')
    code = 'store.frameOf(app.state)'
    assert page.evaluate(f'() => sv.targetRow({code})') == (row or 0)
    results = evaluate_json(page, f'() => [...sv.sallmTarget({code}, app.state, store.probe(0, 0).is_special).values]')
    assert np.allclose(results, target(.6), atol=1e-7)

@pytest.mark.sample(1)
@pytest.mark.parametrize('share,ranking,first',
                         [(.2, 'signed', 'next'), (.5, 'magnitude', 'keep'), (.9, 'signed', 'mask'),
                          (1., 'signed', 'next'), (0., 'signed', 'next')])
def test_masked_words_are_those_of_the_method(page, runs, share, ranking, first, tiny_tokenizer):
    run, s = runs['masked'], runs['masked'].snapshot(-1, 1)
    show(page, run, panels=['whatif'],
         state=dict(probe=1, whatIf=dict(maskedShare=share, ranking=ranking, first=first)))
    ids = tiny_tokenizer.convert_tokens_to_ids(s.tokens)
    masked, is_masked = mask_words(torch.tensor([ids]),
                                   torch.tensor(s.arrays['method_saliency'].astype(np.float32))[None],
                                   torch.tensor(np.asarray(s.word_ids, dtype=np.int64))[None],
                                   torch.tensor([[-1 if o else 0 for o in s.is_special]]), share, first, ranking,
                                   tiny_tokenizer.mask_token_id)
    load(page, 'maths.js')
    found = evaluate_json(
        page, '''([share, ranking, first]) => { const frame = store.frameOf(app.state), {masked, source} =
        sv.maskedWords(frame.get('method_saliency').values(), store.probe(0, 1).word_ids,
            {fraction: share, ranking, first});
            return [[...masked], [...source]]; }''', [share, ranking, first])
    assert found[0] == is_masked[0].int().tolist()
    assert [tiny_tokenizer.mask_token_id if k < 0 else ids[k] for k in found[1]] == masked[0].tolist()
    words = page.eval_on_selector_all('.sv-target-row:nth-child(2) .sv-chip',
                                      'o => o.map(c => c.classList.contains("sv-replaced"))')
    assert words == [bool(is_masked[0][torch.tensor(s.word_ids == w)].any()) for w in range(len(s.words))]

@pytest.mark.slow
def test_the_threshold_shows_the_remaining_fraction(page, runs):
    show(page, runs['addrop'], panels=['whatif'], state=dict(entry=dict(kind='head', layer=0, head=0), threshold=.1))
    page.click('summary:has-text("Threshold")')
    settled(page)
    a = unpack_frame(pack_frame(runs['addrop'].snapshot(-1, 0)))['arrays']['attention'][0, 0]
    counts = text(page, '.sv-group[open]:has(summary:has-text("Threshold")) .sv-group-counts')
    n = (a >= np.float32(.1)).sum()
    assert f'of {a.size} positions, {n} {"has" if n == 1 else "have"} a value of at least 0.1' in counts
    page.click('button:text("Reset")')
    settled(page)
    assert state(page)['threshold'] == 0

@pytest.mark.slow
def test_long_sentences_note_missing_full_maps(page):
    s = by_hand(['[CLS]'] + [f'w{i}' for i in range(148)] + ['[SEP]'])
    layer, head = telling_entry(s).values() # whose full map is sent
    other = dict(kind='head', layer=layer, head=(head + 1)%3)
    show(page, [s], panels=panels, state=dict(colour='attention', entry=other))
    assert 'thumbnail' in text(page, '.sv-sentence-main')
    assert json.loads(json.dumps(state(page)))['colour'] == 'attention' and len(chips(page)) == 150

def test_a_human_rationale_is_coloured_and_its_absence_noted(page):
    words, marked = ['[CLS]', 'a', 'lovely', 'film', '[SEP]'], np.array([False, False, True, False, False])
    show(page, [by_hand(words, rationale=marked)], panels=['sentence'], state=dict(colour='rationale'))
    backs = [back for back, _ in fills(page)]
    assert backs[2] != backs[1] == backs[3] and 'marked by the rationale' in text(page, '.sv-sentence')
    show(page, [by_hand(words)], panels=['sentence'], state=dict(colour='rationale'))
    assert 'The data contains no rationale for this sentence' in text(page, '.sv-sentence')

@pytest.mark.sample(1)
@pytest.mark.parametrize('width', [1300, 500])
def test_names_of_epochs_stay_within_their_epochs(page, runs, width):
    page.set_viewport_size(dict(width=width, height=900))
    show(page, runs['addrop'], panels=['time'])
    names = page.eval_on_selector_all('.sv-epoch-name', """els => els.map(el => [el.textContent,
        el.getBoundingClientRect().left, el.getBoundingClientRect().right])""")
    bands = page.eval_on_selector_all('.sv-band', """els => els.map(el => [el.textContent,
        el.getBoundingClientRect().left, el.getBoundingClientRect().right])""")
    assert len(names) == len(bands) >= 2
    for (name, left, right), (whole, start, end) in zip(names, bands):
        assert name in whole and (not name or start <= left and right <= end)
    if width == 1300: assert names[0][0] == 'epoch 1: plain'

@pytest.mark.slow
def test_where_there_is_one_column_the_chosen_map_follows_the_heads(page, runs):
    page.set_viewport_size(dict(width=700, height=900))
    show(page, runs['addrop'], panels=None)
    tops = [page.locator(f'.sv-{o}').bounding_box()['y'] for o in ('heads', 'map', 'sentence', 'time')]
    assert tops == sorted(tops)

def test_values_that_are_not_finite_leave_gaps_in_a_curve(page):
    load(page, 'curves.js')
    rows = [dict(kind='train', step=i, loss=None if i in (2, 3) else float(i)) for i in range(1, 6)]
    got = evaluate_json(page, """rows => { const [curve] = sv.curveSeries(rows, {x: [], y: [], probes: 0});
        return [curve.y, sv.curveReading([curve], 3), sv.thinned(curve.x, curve.y, 2).y, sv.wantsLog([curve, curve])]; }
        """, rows)
    assert got == [[1, None, None, 4, 5], 'step 3: total not finite', [1, None, None, 4, 5], False]

@pytest.mark.slow
def test_a_note_names_curves_with_gaps_and_a_loss_without_finite_values(page):
    snapshot, lost = by_hand(['[CLS]', 'a', '[SEP]']), [dict(kind='train', step=i, loss=None) for i in (1, 2)]
    score = dict(kind='eval', split='validation', step=2, accuracy=.5)
    for rows, note in ((lost, 'No recorded loss is finite'), ([*lost, score], 'No recorded loss is finite'),
                       ([*lost, dict(kind='train', step=3, loss=1.)], 'Gaps are values that are not finite')):
        mount(page, meta([[snapshot]]), [pack_frame(snapshot)], panels=['time'], rows={0: rows}, plotly=True)
        page.wait_for_function('note => document.querySelector(".sv-curves .sv-note").textContent.includes(note)',
                               arg=note)

@pytest.mark.slow
def test_a_run_that_stopped_with_an_error_says_so(page, runs):
    described = meta([runs['masked']])
    assert described['runs'][0]['stopped'] == ''
    described['runs'][0]['stopped'] = 'the task loss became nan in step 3'
    show(page, runs['masked'], **described)
    assert 'This run stopped: the task loss became nan in step 3.' in page.text_content('.sv-knows')

@pytest.mark.slow
def test_an_unknown_epoch_is_not_shown(page):
    snapshot = by_hand(['[CLS]', 'a', '[SEP]'], step=5, info=dict(method='x', method_epoch=1))
    unknown = Snapshot(**{**vars(snapshot), 'epoch': 0.})
    for one, is_shown in ((snapshot, True), (unknown, False)):
        mount(page, meta([[one]]), [pack_frame(one)], panels=['time'])
        assert [('epoch' in page.text_content(place)) for place in ('.sv-where', '.sv-time-where')] == [is_shown]*2

@pytest.mark.slow
@pytest.mark.parametrize('modality, named', [('image', 'image'), ('series', 'series'), ('text', 'sentence')])
def test_the_note_below_the_classes_names_the_kind_of_input(page, modality, named):
    load(page, 'masked.js')
    note = page.evaluate("""modality => { const values = {values: () => [.5, .5]};
        return sv.classBars({get: () => values, info: {modality}}, ['no', 'yes']).querySelector('.sv-note').textContent;
        }""", modality)
    assert note.startswith(f'Filled: {named} X; hatched: masked copy')
