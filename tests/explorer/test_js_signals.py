"Images, series and answers of other tasks in a real browser: drawings and texts show what was recorded, for any words."
import numpy as np
import pytest

import invented
from browser import browser, load, mount, page, settled  # noqa: F401, fixtures
from salviz.explorer.quantisation import _level_code, _level_value
from salviz.core.maths import patch_pattern, pattern_fraction, rollout, saliency_target
from salviz.explorer.run_metadata import meta
from salviz.explorer.payload import pack_frame
from salviz.core.snapshots import Snapshot
from salviz.views.base import saliency_distribution
from test_js_maps import canvas_image

hostile = '<img src=x onerror="window.hacked=1">'

def show(page, snapshots, **kw): mount(page, meta([snapshots]), [pack_frame(s) for s in snapshots], **kw)
def text(page, selector): return page.inner_text(selector)
def texts(page, selector): return page.eval_on_selector_all(selector, 'all => all.map(o => o.textContent)')
def visible(page):
    return page.eval_on_selector_all('.sv-panel',
                                     'all => all.filter(o => o.offsetParent).map(o => o.className.split(" ")[1])')

def set_state(page, **changes):
    page.evaluate('changes => app.state.set(changes)', changes)
    settled(page)

def coarse(x):
    "Return `x` [.., rows, columns] as a frame transports it"
    return _level_value(*_level_code(np.asarray(x))).astype(float)

def painted(page, i, rows, columns):
    "Return the colours in the middle of each cell of map `i` of the panel, [rows, columns, 3]"
    at = page.eval_on_selector(
        '.sv-signal canvas',
        '''(c, i) => { const g = c.salviz.grids[i], on = (f, n) => Array.from({length: n},
            (_, k) => Math.floor((f(k) + f(k + 1)) / 2 * g.ratio));
        return [on(k => g.top(k), g.rows.count), on(k => g.left(k), g.columns.count)]; }''', i)
    assert [len(o) for o in at] == [rows, columns]
    return canvas_image(page, '.sv-signal canvas')[np.ix_(*at)]

def signed_colours(page, values, limit):
    load(page, 'colour.js')
    packed = np.array(page.evaluate('([v, limit]) => { const s = sv.colourScaleOf({limit, signed: true}); return '
                                    'v.map(x => sv.scaleColour(s, x)); }', [np.ravel(values).tolist(), float(limit)]))
    return np.stack([packed & 255, packed >> 8 & 255, packed >> 16 & 255], -1).reshape(*np.shape(values), 3)

def grey_colours(page, values, low, high):
    load(page, 'colour.js')
    packed = np.array(page.evaluate('() => [...sv.colourTable("grey", "light")]'))[
        np.floor(255*(values - low)/(high - low) + .5).astype(int)]
    return np.stack([packed & 255, packed >> 8 & 255, packed >> 16 & 255], -1)

quiet = dict(overlays=dict(informative=False, masked=False))

@pytest.mark.slow
def test_a_series_is_drawn_feature_by_feature_at_every_step(page):
    steps = [invented.series(s, time=12, features=5) for s in (0, 20)]
    show(page, steps, state=quiet)
    assert visible(page) == ['sv-signal', 'sv-time'] and page.is_hidden('.sv-missing')
    for s in (steps[1], steps[0]):
        set_state(page, step=s.step)
        x, w, m = (coarse(s.arrays[k]) for k in ('input', 'saliency_map', 'masked_map'))
        ends = min(x.min(), m.min()), max(x.max(), m.max())
        for i, wanted in enumerate([grey_colours(page, x.T, *ends), signed_colours(page, w.T, abs(w).max()),
                                    grey_colours(page, m.T, *ends)]):
            assert abs(painted(page, i, 5, 12) - wanted).max() <= (0 if i == 1 else 1), (s.step, i)

@pytest.mark.slow
def test_colours_of_an_image_are_its_channels_and_one_channel_is_grey(page):
    s = invented.image(channels=3)
    show(page, [s], state=quiet)
    x, m = coarse(s.arrays['input']), coarse(s.arrays['masked_map'])
    low, high = min(x.min(), m.min()), max(x.max(), m.max())
    wanted = np.floor(255*(x - low)/(high - low) + .5).transpose(1, 2, 0)
    assert abs(painted(page, 0, 10, 12) - wanted).max() <= 1
    show(page, [invented.image()], state=quiet)
    grey = painted(page, 0, 10, 12).astype(int)
    values = coarse(invented.image().arrays['input'])[0]
    assert np.ptp(grey, axis=-1).max() <= 12 and (np.diff(grey[..., 0].ravel()[np.argsort(values.ravel())]) >= 0).all()

@pytest.mark.sample(1)
@pytest.mark.parametrize('s', [invented.series(10, time=12, features=5), invented.image(10, channels=3)],
                         ids=['series', 'image'])
def test_the_reading_under_the_pointer_states_its_precision(page, s):
    show(page, [s], panels=['signal'])
    x, masked = s.arrays['input'], s.arrays['is_masked_map']
    for row, column in ((0, 0), (3, 4), (4, 11)):
        message = page.evaluate(
            '''([r, c]) => { const k = document.querySelector('.sv-signal canvas'), g = k.salviz.grids[0],
                b = k.getBoundingClientRect(), [x, y] = g.middle(r, c);
            k.dispatchEvent(new PointerEvent('pointermove', {clientX: b.x + x, clientY: b.y + y}));
                return document.querySelector('.sv-signal .sv-tip').textContent; }''', [row, column])
        cell = (column, row) if x.ndim == 2 else (row, column)
        parts = message.split(': ', 1)[1].split('; ')[0].removeprefix('input ').split(', ')
        for part, true in zip(parts, [x[cell]] if x.ndim == 2 else x[:, row, column], strict=True):
            value, half = (float(o.replace('−', '-')) for o in part.split()[-3::2])
            assert abs(value - true) <= half < .1*abs(x).max(), message
        assert ('(masked)' in message) == bool(masked[cell])
        assert ('informative' in message) == bool('informative' in s.arrays and s.arrays['informative'][cell])

@pytest.mark.slow
def test_the_informative_box_is_outlined_and_masked_cells_are_dotted(page):
    s = invented.series(time=12, features=5)
    show(page, [s], state=quiet, panels=['signal'])
    plain, dotted = canvas_image(page, '.sv-signal canvas').astype(int), s.arrays['is_masked_map'].T
    before = painted(page, 2, 5, 12)
    set_state(page, overlays=dict(informative=False, masked=True))
    changed = (painted(page, 2, 5, 12) != before).any(-1)
    assert (changed == dotted).mean() > .97 and not changed[~dotted].any()   # a dot can have the colour of its cell
    set_state(page, overlays=dict(informative=True, masked=False))
    drawn = (canvas_image(page, '.sv-signal canvas').astype(int) != plain).any(-1)
    edges = page.eval_on_selector('.sv-signal canvas',
                                  'c => { const g = c.salviz.grids[1]; return [g.left(3), g.left(6), g.top(1), '
                                  'g.top(2)].map(v => Math.round(v * g.ratio)); }')
    left, right, top, bottom = edges   # times 3 to 5, feature 1
    assert drawn[(top + bottom)//2, left]
    assert drawn[(top + bottom)//2, right]
    assert drawn[top, (left + right)//2]
    assert drawn[bottom, (left + right)//2]
    assert not drawn[(top + bottom)//2, (left + right)//2] and not drawn[(top + bottom)//2, left - 6]

@pytest.mark.slow
def test_masked_cells_that_are_too_small_for_dots_are_tinted(page):
    s = invented.series(time=12, features=50)
    show(page, [s], state=quiet, panels=['signal'])
    before = painted(page, 2, 50, 12)
    set_state(page, overlays=dict(informative=False, masked=True))
    assert ((painted(page, 2, 50, 12) != before).any(-1) == s.arrays['is_masked_map'].T).all()
    assert 'tinted blue' in text(page, '.sv-signal .sv-checks')

@pytest.mark.slow
def test_a_saliency_that_ranks_by_another_class_has_a_separate_map(page):
    kinds = lambda: page.eval_on_selector('.sv-signal canvas', 'c => c.salviz.kinds')
    s = invented.image()
    s.arrays['probabilities'], s.classes[1] = np.array([.7, .2, .1], np.float32), hostile
    show(page, [s], panels=['signal'])
    assert kinds() == ['input', 'saliency', 'ranking', 'masked'] and page.query_selector('.salviz img') is None
    assert 'whose ranking saliency is lowest (for \u2068‘<img src=x' in text(page, '.sv-words')
    assert 'the label)' in text(page, '.sv-words')
    w = coarse(s.arrays['method_saliency_map'])
    assert (painted(page, 2, 10, 12) == signed_colours(page, w, abs(w).max())).all()
    assert 'log-probability' not in text(page, '.sv-words')
    s.info['methods']['SaliencyGuided']['score'] = 'log_probability'
    show(page, [s], panels=['signal'])
    assert 'whose ranking saliency is lowest (for the log-probability of \u2068‘<img src=x' in text(page, '.sv-words')
    same = invented.image()
    same.arrays['method_saliency_map'] = same.arrays['saliency_map']
    show(page, [same], panels=['signal'])
    assert kinds() == ['input', 'saliency', 'masked'] and 'those whose saliency is lowest' in text(page, '.sv-words')
    assert 'raising the value raises the class’s score where the colour is orange' in text(page, '.sv-words')
    same.info['methods']['SaliencyGuided'] |= dict(unit='patch', ranking='magnitude')
    show(page, [same], panels=['signal'])
    assert 'those in the patches with the lowest summed absolute saliency.' in text(page, '.sv-words')

def test_the_distribution_is_that_of_the_first_step_and_of_the_step_in_view(page):
    steps = [invented.series(s, time=30, features=5) for s in (0, 20, 40)]
    show(page, steps, panels=['signal'], state=dict(step=20))
    shares = lambda: page.eval_on_selector('.sv-signal-density canvas',
                                           'c => c.salviz.bins.sides.map(s => [s.name, s.fractions])')
    (first, a), (now, b) = shares()
    assert (first, now) == ('step 0', 'step 20') and a != b
    for s in steps[:2]: s.arrays['saliency_map'] = coarse(s.arrays['saliency_map'])
    figure = saliency_distribution(*steps[:2])
    np.testing.assert_allclose([a, b], figure.fractions, atol=2/150)   # each side scaled by its own largest value
    message = text(page, '.sv-signal-density .sv-tip')
    assert [f'{100*o:.0f} %' in message for o in figure.near_zero] == [True, True] and 'within ±0.1 of zero' in message
    set_state(page, step=0)
    assert [name for name, _ in shares()] == ['step 0'] and 'first recorded step' in text(page, '.sv-signal-density')

def test_a_feature_can_be_chosen_and_its_hostile_name_stays_text(page):
    show(page, [invented.series(time=12, features=3, names=[hostile, '‮x', 'z'])], panels=['signal'])
    page.focus('.sv-signal canvas')
    for key in ('ArrowRight', 'ArrowUp', 'ArrowUp', 'ArrowUp', 'Enter'): page.keyboard.press(key)
    settled(page)
    assert page.evaluate('() => app.state.row') == 0
    assert '“<img src' in text(page, '.sv-signal .sv-subtitle')
    assert page.query_selector('.salviz img') is None
    lines = page.eval_on_selector_all('.sv-signal canvas',
                                      'all => all.map(c => c.salviz && c.salviz.ends).filter(Boolean)')[0]
    s = invented.series(time=12, features=3)
    both = np.stack([coarse(s.arrays[k])[:, 0] for k in ('input', 'masked_map')])
    np.testing.assert_allclose(lines, [both.min(), both.max()], rtol=1e-6)

@pytest.mark.slow
def test_panels_that_cannot_show_an_image_explain_why(page):
    show(page, [invented.image(20)], panels=['map', 'time'])
    assert visible(page) == ['sv-time']
    assert 'an image, without tokens or head maps: use the ‘signal’ panel instead of ‘map’' in text(page, '.sv-missing')
    show(page, [invented.snapshot()], panels=['signal'])
    assert visible(page) == [] and 'This example is a sentence' in text(page, '.sv-missing')
    s = invented.snapshot(20)
    bare = Snapshot(**{**vars(s), 'arrays': {k: s.arrays[k] for k in ('saliency', 'probabilities')}, 'layers': {}})
    show(page, [bare])
    assert visible(page) == ['sv-whatif', 'sv-sentence', 'sv-own', 'sv-time'] # from the top, where there is one column
    assert 'This model has no attention' in text(page, '.sv-missing')

# ---- labels of tokens, translations, scores

def answers(page, kind): return texts(page, f'.sv-sentence .sv-labelled .sv-{kind}')

@pytest.mark.slow
def test_labels_are_below_their_tokens_and_wrong_ones_are_crossed(page):
    s = invented.tagged(gold=[None, hostile, 'I-PER', None, 'O', 'O', 'B-LOC', None],
                        said=[None, hostile, 'O', 'O', 'O', 'O', 'B-LOC', None])
    show(page, [s], panels=['sentence'])
    assert answers(page, 'gold')[2:] == ['I-PER', '', 'O', 'O', 'B-LOC', '']
    assert answers(page, 'gold')[1].startswith('<img src=x')
    assert answers(page, 'model')[2:] == ['✗O', 'O', '✓O', '✓O', '✓B-LOC', '']
    assert page.query_selector('.salviz img') is None
    assert 'labels 4 of 5 words correctly. The model finds 2 of 3 entity words' in text(page, '.sv-sentence-side')
    assert page.query_selector('.sv-classes') is None
    page.hover('.sv-line .sv-chip >> nth=2')
    assert 'label \u2068‘I-PER’\u2069, predicted \u2068‘O’\u2069 (confidence 0.60), wrong' in text(
        page, '.sv-reading')
    set_state(page, mergeWords=True, hideSpecial=True)
    assert answers(page, 'gold')[1:] == ['I-PER', '', 'O', 'O', 'B-LOC']

@pytest.mark.slow
def test_masked_and_replaced_tokens_show_what_was_there(page):
    show(page, [invented.masked_words()], panels=['sentence'])
    assert [o for o in zip(answers(page, 'gold'), answers(page, 'model'))
            if any(o)] == [('cat', '✗dog'), ('mat', '✓mat')]
    assert 'predicts 1 of 2 masked tokens correctly' in text(page, '.sv-outcome')
    show(page, [invented.masked_words(task='replaced_token_detection')], panels=['sentence'])
    assert answers(page, 'gold')[1:7] == ['·', 'replaced', '·', '·', '·', '·']
    assert answers(page, 'model')[2:6] == ['✗original', '✓·', '✓·', '✗replaced']
    assert 'correct for 4 of 6 tokens. The model finds 0 of 1 replaced token' in text(page, '.sv-outcome')

def test_a_translation_shows_its_target_and_the_predictions(page):
    s = invented.translated(target=['das', hostile, '</s>'], said=['das', 'x', '</s>'])
    show(page, [s, invented.translated(10)], state=dict(step=0))
    assert texts(page, '.sv-target .sv-chip')[0] == 'das'
    assert texts(page, '.sv-target .sv-model') == ['✓das', '✗x', '✓</s>']
    assert page.query_selector('.salviz img') is None
    assert texts(page, '.sv-target .sv-labelled .sv-probability') == ['0.90', '0.50', '0.10']
    assert 'predicts 2 of 3 target tokens' in text(page, '.sv-outcome') and page.is_visible('.sv-heads')
    set_state(page, step=10)
    assert texts(page, '.sv-target .sv-model')[1] == '✗war'

@pytest.mark.slow
@pytest.mark.parametrize('task', ['regression', 'question_answering'])
def test_a_loss_against_the_prediction_has_a_note(page, task):
    def of(labelled):
        if task == 'regression': return invented.scored(label=3.8 if labelled else None)
        s = invented.tagged(gold=[None, None, None, None, *['outside']*3, None])
        s.info['task'] = task
        if not labelled: del s.info['token_labels']
        return s
    for labelled in (True, False):
        s = of(labelled)
        show(page, [s], panels=['sentence'])
        message = ' '.join(texts(page, '.sv-sentence .sv-note'))
        assert 'Losses for this sentence' in message and ('The label is missing: the ' in message) != labelled

@pytest.mark.slow
def test_a_score_and_its_label_are_on_one_line(page):
    show(page, [invented.scored(0), invented.scored(50)], panels=['sentence'], state=dict(step=0))
    at = lambda: page.eval_on_selector_all('.sv-score-mark', 'all => all.map(o => parseFloat(o.style.left))')
    assert texts(page, '.sv-score-end') == ['0', '4']
    assert at() == pytest.approx([95, 72.5], abs=.01)
    assert page.query_selector('.sv-classes') is None
    set_state(page, step=50)
    assert at() == pytest.approx([95, 97.5], abs=.01)
    assert '0.1 above the label' in text(page, '.sv-score')
    assert 'orange increases the score' in text(page, '.sv-sentence')
    load(page, 'answers.js')
    for message, ends in ((-5e-4, [0, 4]), (4.1, [0, 4]), (6.2, [0, 7]), (-1.5, [-2, 4])):
        assert page.evaluate('said => sv.scoreEnds([1, 3.6], said)', message) == ends

@pytest.mark.slow
def test_every_line_of_answers_starts_with_its_name(page):
    tokens = ['[CLS]', *(f'w{i}' for i in range(40)), '[SEP]']
    show(page, [invented.tagged(tokens=tokens, gold=[None, *['O']*40, None], said=[None, *['O']*40, None])],
         panels=['sentence'])
    for width in (900, 500):
        page.eval_on_selector('.salviz', '(el, width) => { el.style.width = `${width}px`; }', width)
        settled(page); settled(page)
        lines, named = (page.eval_on_selector_all(f'.sv-line > {o}', 'all => [...new Set(all.map(o => o.offsetTop))]')
                        for o in ('.sv-word', '.sv-answer-names'))
        assert len(lines) > 1
        assert lines == named
        assert len(page.query_selector_all('.sv-line > .sv-answer-names')) == len(lines)

@pytest.mark.slow
def test_without_a_pooled_row_the_mean_over_rows_is_shown_and_named(page):
    s = invented.tagged()
    show(page, [s], state=dict(entry=dict(kind='head', layer=0, head=1), colour='attention', tab='triptych'))
    mean = s.arrays['attention'][0, 1].mean(0)
    load(page, 'sentence.js', 'derive.js')
    found = page.evaluate('() => sv.attentionOfRow(store.frameOf(app.state), store.probe(0, 0), app.state).values')
    np.testing.assert_allclose(found, mean, atol=.01)
    assert 'attention is the mean over all rows' in text(page, '.sv-sentence')
    assert page.query_selector('.sv-chip.sv-row') is None
    assert 'Mean over all rows' in text(page, '.sv-triptych')
    assert 'of the mean row' in text(page, '.sv-triptych')
    page.click('.sv-line .sv-chip >> nth=2')
    settled(page)
    found = page.evaluate('() => sv.attentionOfRow(store.frameOf(app.state), store.probe(0, 0), app.state).values')
    np.testing.assert_allclose(found, s.arrays['attention'][0, 1, 2], atol=.01)
    assert 'Row of “love”' in text(page, '.sv-triptych')

# ---- custom patterns, several methods, speed

def test_guided_heads_show_the_name_of_their_pattern_and_their_fraction(page):
    s = invented.both(own='<b>mine</b>')
    show(page, [s], panels=['heads', 'map'], state=dict(entry=dict(kind='head', layer=1, head=0)))
    share = pattern_fraction(s.arrays['attention'][1, 0], s.arrays['pattern_target'][1, 0])
    tip = page.evaluate(
        '''() => { const c = document.querySelector('.sv-heads canvas'),
            t = c.salviz.tiles.find(t => t.entry.layer === 1 && t.entry.head === 0), b = c.getBoundingClientRect();
        c.dispatchEvent(new PointerEvent('pointermove', {clientX: b.x + t.x + 9, clientY: b.y + t.y + 9}));
            return document.querySelector('.sv-heads .sv-tip').textContent; }''')
    assert f'guided to “<b>mine</b>”, {100*share:.0f} % of its attention on the pattern' in tip
    assert '“<b>mine</b>” (2 heads), ' in text(page, '.sv-patterns')
    assert '“first” (2 heads), ' in text(page, '.sv-patterns')
    assert page.query_selector('.salviz b') is None
    assert 'Pattern: <b>mine</b>.' in text(page, '.sv-words')
    assert 'candidates (outlined)' in text(page, '.sv-words')
    assert 'p = 0.3' in text(page, '.sv-words')

@pytest.mark.slow
@pytest.mark.parametrize('order', [('SaliencyGuided', 'SalLM'), ('SalLM', 'SaliencyGuided')])
def test_what_if_of_two_methods_starts_from_the_saliency_that_each_works_with(page, order):
    s, worked_with = invented.clashing(order)
    show(page, [s], panels=['whatif'],
         state=dict(whatIf=dict(topShare=.3, binarised=True, maskedShare=.5, ranking='signed', first='keep')))
    load(page, 'derive.js')
    target = page.evaluate('() => [...sv.sallmTarget(store.frameOf(app.state), app.state, store.probe(0, '
                           '0).is_special).values]')
    np.testing.assert_allclose(target, saliency_target(worked_with['SalLM'], ~s.is_special, .3, True), atol=1e-12)
    word = {w: worked_with['SaliencyGuided'][s.word_ids == w].sum() for w in range(len(s.words))}
    # open the closed groups and close the open ones
    for group in page.query_selector_all('.sv-group > summary'): group.click()
    settled(page)
    for group in page.query_selector_all('.sv-group:not([open]) > summary'): group.click()
    settled(page)
    lines = page.eval_on_selector_all('.sv-mask-lines .sv-target-row:nth-child(2) .sv-chip',
                                      'all => all.map(o => o.classList.contains("sv-replaced"))')
    lowest = sorted(word, key=word.get)[:len(word)//2]
    stored = [w for w in word if w not in lowest and w >= 0]
    # first='keep': a word without a remaining word before it is not masked
    assert lines == [w in lowest and any(k < w for k in stored) for w in word]
    marked = page.eval_on_selector_all('.sv-target-line .sv-target-row:nth-child(2) .sv-chip',
                                       'all => all.map(o => o.classList.contains("sv-marked"))')
    assert marked == (saliency_target(worked_with['SalLM'], ~s.is_special, .3, True)[~s.is_special] > 0).tolist()

@pytest.mark.slow
def test_a_pattern_that_covers_every_position_has_no_fraction(page):
    s = invented.both(own='half')
    s.arrays['pattern_target'][:, 0] = 1/len(s.tokens)
    show(page, [s], panels=['heads', 'map'], state=dict(entry=dict(kind='head', layer=0, head=0)))
    assert '“half” (2 heads), which covers every position' in text(page, '.sv-patterns')
    assert 'It covers every position.' in text(page, '.sv-words')

@pytest.mark.slow
def test_methods_together_have_all_their_panels_and_what_if_takes_each_ones_arguments(page):
    s = invented.both()
    show(page, [s], state=dict(tab='whatif', entry=dict(kind='head', layer=0, head=0)))
    groups = texts(page, '.sv-group > summary')
    assert groups[0].startswith('AD-DROP') and groups[1].startswith('Attention guidance')
    assert texts(page, '.sv-group[open] .sv-slider-value') == ['0.30', '0.40']
    assert 'Attention guidance + AD-DROP' in text(page, '.sv-where')
    page.click('.sv-group >> nth=1 >> summary')
    settled(page)
    assert 'recorded (diagonal)' in text(page, '.sv-group >> nth=1')

def test_the_phase_of_cross_tuning_is_named(page):
    run = [invented.snapshot(0, method='ADDrop')]
    run[0].info['phase'] = 'ad_drop'
    message = meta([run])
    message['runs'][0] |= dict(cross_tuning='AD-DROP', total_steps=80)
    mount(page, message, [pack_frame(s) for s in run])
    assert 'AD-DROP phase' in text(page, '.sv-where') and 'ad_drop' not in text(page, '.salviz')

def test_mean_tiles_of_a_long_sentence_wait_until_the_reader_stays(page):
    steps = [invented.snapshot(s, tokens=['[CLS]', *(f'w{i}' for i in range(60)), '[SEP]'], heads=2) for s in (0, 10)]
    show(page, steps, panels=['heads'])
    spot = '''kind => { const c = document.querySelector('.sv-heads canvas'),
        t = c.salviz.tiles.find(t => t.entry.kind === kind), r = c.salviz.ratio;
        return [...c.getContext('2d').getImageData(Math.round((t.x + 6) * r), Math.round((t.y + 6) * r), 12,
            12).data].filter((_, k) => k % 4 === 3).some(Boolean); }'''
    drawn = f"() => ['head', 'heads', 'layers', 'all', 'rollout'].every({spot})"
    page.wait_for_function(drawn)
    now = page.evaluate(
        f'''() => {{ app.state.set({{step: 0}}); app.state.flush();
            return ['head', 'heads', 'layers', 'all', 'rollout'].map({spot}); }}''')
    assert now == [True, False, False, False, False]
    page.wait_for_function(drawn)

def of_patches(step=0, probe=0, **more):
    "Return an image in 2 by 3 patches after [CLS], as a vision transformer with AD-DROP records it"
    rng = np.random.default_rng([step, probe])
    attention = rng.dirichlet(np.ones(7), (2, 2, 7))
    region = rng.uniform(size=attention.shape) < .4
    s = invented.image(step, probe, masked=False, **more)
    s.arrays |= dict(attention=attention, discard_candidates=region,
                     discarded=region & (rng.uniform(size=region.shape) < .5))
    s.layers |= {name: [0, 1] for name in ('attention', 'discard_candidates', 'discarded')}
    s.info |= dict(patches=dict(rows=2, columns=3, first=1), pooled_row=0, method='ADDrop', methods=dict(ADDrop={}))
    return s

@pytest.mark.slow
def test_a_patch_is_chosen_on_the_image_next_to_its_attention(page):
    s = of_patches()
    show(page, [s], panels=['patches'], state=dict(entry=dict(kind='head', layer=1, head=0)))
    A = s.arrays['attention']
    def drawn(): return np.array(page.eval_on_selector('.sv-patches canvas', 'c => [...c.salviz.values]'))
    assert abs(drawn() - A[1, 0, 0, 1:]).max() < .01     # [CLS], whose row the head reads
    box = page.query_selector('.sv-patches canvas').bounding_box()
    x, y = page.eval_on_selector('.sv-patches canvas', 'c => c.salviz.grids[0].middle(1, 2)')
    page.mouse.click(box['x'] + x, box['y'] + y)
    settled(page)
    assert abs(drawn() - A[1, 0, 6, 1:]).max() < .01 and page.evaluate('app.state.row') == 6
    discarded = int(s.arrays['discarded'][1, 0, 6].sum())
    message = text(page, '.sv-patches .sv-words')
    assert f'{discarded} {"is" if discarded == 1 else "are"} discarded' in message and ' to [CLS].' in message
    set_state(page, entry=dict(kind='heads', layer=0), row=1)
    assert abs(drawn() - A[0, :, 1, 1:].mean(0)).max() < .01 and 'discard' not in text(page, '.sv-patches .sv-words')
    set_state(page, entry=dict(kind='rollout'))
    assert abs(drawn() - rollout(A)[1, 1:]).max() < .01
    assert 'Attention rollout is' in text(page, '.sv-patches .sv-words')

def test_dots_on_the_grid_mark_the_pattern_of_a_guided_head(page):
    s, grid = of_patches(), dict(rows=2, columns=3, first=1)
    target = np.zeros((1, 2, 7, 7))
    target[0, 1] = patch_pattern('neighbours', **grid)
    s.arrays |= dict(pattern_target=target, guided=np.array([[False, True]]))
    s.layers |= dict(pattern_target=[1], guided=[1])
    show(page, [s], panels=['patches'], state=dict(entry=dict(kind='head', layer=1, head=1), row=1))
    def words(): return text(page, '.sv-patches .sv-words')
    inked = """cell => { const c = document.querySelector('.sv-patches canvas'), r = window.devicePixelRatio || 1,
        [x, y] = c.salviz.grids[1].middle(...cell);
        return [...c.getContext('2d').getImageData(Math.round(x*r), Math.round(y*r), 1, 1).data]; }"""
    share = s.arrays['attention'][1, 1, 1, [2, 4, 5]].sum()
    assert f'guided towards the dotted keys, which receive {share:.2f}'.rstrip('0') in words()
    middles = [page.evaluate(inked, cell) for cell in ((0, 1), (1, 0), (1, 1), (1, 2))]
    assert middles[0] == middles[1] == middles[2] != middles[3]    # ink on three, colour of attention on the other
    set_state(page, row=0)
    assert 'This head is guided, but its pattern is empty for this query' in words()
    set_state(page, entry=dict(kind='head', layer=1, head=0))
    assert 'guided' not in words()

def test_patches_are_read_with_the_keyboard(page):
    s = of_patches(channels=3)
    show(page, [s], panels=['patches'], state=dict(entry=dict(kind='head', layer=0, head=1), row=1))
    page.focus('.sv-patches canvas')
    for key, cell in (('ArrowRight', '0, 0'), ('ArrowRight', '0, 1'), ('ArrowDown', '1, 1')):
        page.keyboard.press(key)
        assert f'patch 0, 0 → patch {cell}: attention ' in text(page, '.sv-patches .sv-tip')
    page.keyboard.press('Enter')
    settled(page)
    assert page.evaluate('app.state.row') == 5 and page.input_value('.sv-patches select >> nth=1') == '5'

def test_saliency_of_a_patch_is_the_sum_over_its_pixels_and_a_mean_chosen_elsewhere_has_a_name(page):
    s = of_patches()
    show(page, [s], panels=['patches'], state=dict(row=2, entry=dict(kind='mean', heads=[[0, 0], [1, 1]])))
    drawn = np.array(page.eval_on_selector('.sv-patches canvas', 'c => [...c.salviz.saliency]'))
    wanted = coarse(s.arrays['saliency_map']).reshape(2, 5, 3, 4).sum((1, 3)).ravel()
    assert abs(drawn - wanted).max() < 1e-4
    chosen = page.eval_on_selector('.sv-patches select', 'c => c.selectedOptions[0].textContent')
    assert chosen == 'mean over layer 0 head 0; layer 1 head 1'
    plain = canvas_image(page, '.sv-patches canvas')
    page.click('.sv-patches label:has-text("Overlay on the image")')
    settled(page)
    assert 'blended with the image' in text(page, '.sv-patches .sv-words')
    assert (canvas_image(page, '.sv-patches canvas') != plain).any()

@pytest.mark.slow
def test_an_image_without_patches_has_no_panel_of_patches(page):
    show(page, [invented.image()])
    assert 'sv-patches' not in visible(page)
    show(page, [of_patches()])
    assert {'sv-signal', 'sv-patches'} <= {*visible(page)}
    assert 'no attention was recorded' not in text(page, '.sv-signal .sv-words')
