"""Evidence of a custom method is shown under its own name: what is sent, and what the explorer, static images and
figures show of it, for any form and name"""
import re

import numpy as np
import pytest
from matplotlib.text import Text

from browser import browser, evaluate_json, load, mount, page, settled
from salviz.figures.drawing import save_figure
from salviz.core.evidence import guessed_axes, custom_evidence
from salviz.explorer.widget import Explorer
from salviz.explorer.page import page as page_text
from salviz.figures.kinds import figure
from salviz.explorer.run_metadata import meta
from salviz.explorer.page_compression import _unpack_page, pack_page
from salviz.explorer.payload import pack_frame, unpack_frame
from salviz.core.snapshots import Snapshot, decode_snapshot, encode_snapshot
from salviz.core.runs import Run
from salviz.views.base import evidence_view

hostile = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
long_name = 'a name that goes on and on ' * 12
words = 'it is a long and winding tale of a man who goes out to look for what he has lost'.split()


def evidence(n, rng, heads=3):
    "Return evidence of every form, with difficult values"
    gaps = rng.normal(size=(n, n))
    gaps[0, 1], gaps[1, 0] = np.nan, -np.inf
    return {'pull': rng.normal(size=(2, heads, n, n)), 'focus': rng.random((2, heads, n, n))**4,
            'plain map': rng.random((n, n)), 'each layer': rng.normal(size=(2, n, n)),
            'each head': rng.random((heads, n, n)), 'gaps': gaps, 'region': rng.random((n, n)) > .6,
            'regions': rng.random((2, heads, n, n)) > .6,
            'tiny': rng.random(n)*3e-9, 'drift': rng.normal(size=n),
            'lost': np.array([np.nan, np.inf, *rng.random(n - 2)]), 'wide': rng.random((2, n)),
            'by head': rng.random((2, heads, n)),
            'picked': rng.random(n) > .5, 'gate': rng.normal(size=(2, heads)), 'total': np.array(-1.25),
            'odds': rng.random(5), 'ranks': rng.integers(0, 20, (n, n)),
            'counts': rng.integers(-5, 10**6, n), 'huge': rng.random(n)*1e60, 'features': rng.random((n, 4)),
            'zero': np.zeros((n, n)), 'everywhere nan': np.full(n, np.nan),
            '7': rng.random(n), '__proto__': rng.random(n), hostile: rng.random(n), long_name: rng.random(n),
            'odd': rng.random((2, 2, 2, 2, 2))}

layered = ('pull', 'focus', 'each layer', 'regions', 'wide', 'by head', 'gate')


def snapshot(n=7, step=10, probe=0, heads=3, seed=0, **more):
    rng = np.random.default_rng(seed + step)
    tokens = ['[CLS]', *(words*40)[:n - 2], '[SEP]']
    custom = evidence(n, rng, heads)
    arrays = dict(attention=rng.dirichlet(np.ones(n)*.3, (2, heads, n)), saliency=rng.normal(size=n),
                  probabilities=np.full(5, .2, np.float32)) | custom
    s = Snapshot(step=step, epoch=1., probe=probe, arrays=arrays,
                 layers={'attention': [0, 1], **{k: [2, 5] for k in layered}}, texts=[' '.join(tokens[1:-1])],
                 tokens=tokens,
                 words=tokens[1:-1], word_ids=[-1, *range(n - 2), -1], classes=list('abcde'), label=1,
                 info=dict(method='Mine', seed=0, pooled_row=0, axes=dict(gate=['head']), **more))
    return decode_snapshot(encode_snapshot(s)) # as in a run


def test_a_view_of_evidence_leaves_out_values_that_are_not_finite():
    view = evidence_view(snapshot(), 'gaps')
    assert np.isfinite(view.values).sum() == view.values.size - 2 and '2 non-finite' in ' '.join(view.notes)
    assert np.isnan(evidence_view(snapshot(), 'everywhere nan').values).all()


def shown(page, selector='.sv-evidence'): return page.inner_text(selector)


@pytest.mark.parametrize('n', [3, 7, 60, 150])
def test_evidence_is_sent_within_the_precision_of_its_code(n):
    s = snapshot(n)
    frame = unpack_frame(pack_frame(s))
    names = custom_evidence(s)
    assert {k for k in frame['arrays'] if k.startswith('own/')} == {f'own/{k}' for k in names if k != 'odd'}
    assert frame['info']['own_left'] == [['odd', '2 rows, 2 rows, 2 rows, 2 rows, 2 rows']]
    for name, axes in names.items():
        if name == 'odd': continue
        x, spec = s.arrays[name], frame['specs'][f'own/{name}']
        got = np.asarray(frame['arrays'][f'own/{name}'], float)
        finite = np.isfinite(x)
        assert spec['axes'] == list(axes)
        assert spec['lost'] == (~finite).sum()
        assert spec.get('layers') == s.layers.get(name)
        if finite.any():
            assert spec['low'] == pytest.approx(float(x[finite].min()))
            assert spec['high'] == pytest.approx(float(x[finite].max()))
        if spec.get('pooled'):
            assert n > 128 and axes[-1] == 'key' and got.shape[-1] <= 64
            continue
        assert (np.isfinite(got) == finite).all()
        scale = (np.abs(np.where(finite, x, 0)).max((-2, -1), keepdims=True) if x.ndim > 1 and spec['codec'] == 'level8'
                 else 0)
        x, got = np.where(finite, x, 0).astype(float), np.where(finite, got, 0)
        allowed = scale/127*1.01 if spec['codec'] == 'level8' else np.abs(x)*1e-6 if spec['codec'] == 'f32' else 0
        assert (np.abs(got - x) <= allowed + 1e-30).all(), name


def test_single_maps_of_long_texts_are_sent_on_request():
    s = snapshot(150)
    frame = unpack_frame(pack_frame(s, full=[(5, 1)]))
    np.testing.assert_allclose(frame['arrays']['own/focus/5.1'], s.arrays['focus'][1, 1], atol=.01)
    assert 'own/focus/2.1' not in frame['arrays'] and frame['specs']['own/focus/5.1']['axes'] == ['query', 'key']


def test_a_page_includes_evidence_and_numeric_names_do_not_change_its_order():
    frames = [pack_frame(snapshot(step=step)) for step in (0, 10, 20)]
    for packed, frame in zip(_unpack_page(pack_page(frames, budget=None)), frames):
        got, want = unpack_frame(packed), unpack_frame(frame)
        assert list(got['arrays']) == list(want['arrays'])
        for k in want['arrays']: np.testing.assert_array_equal(got['arrays'][k], want['arrays'][k])
    assert len(pack_page(frames)) < 2*len(b''.join(frames))


@pytest.mark.slow
@pytest.mark.parametrize('theme', ['light', 'dark'])
@pytest.mark.parametrize('n', [3, 7, 60])
def test_every_form_is_shown_with_its_numbers_and_its_scale(n, theme, page):
    s = snapshot(n)
    mount(page, meta([[s]]), [pack_frame(s)], dict(), ['evidence'], theme=theme)
    names = [name for name in custom_evidence(s) if name != 'odd']
    assert page.eval_on_selector('.sv-evidence select', 's => [...s.options].map(o => o.value)') == names
    assert '“odd” (2 rows, 2 rows' in shown(page)
    for name in names:
        page.evaluate('name => app.state.set({evidence: name})', name)
        settled(page)
        x, message = s.arrays[name], shown(page)
        lost = int((~np.isfinite(x)).sum())
        assert ('not finite' in message) == bool(lost), name
        if x.dtype != bool and x.size > 1:
            assert 'linear' in message and ('centred at 0' in message) == bool((x[np.isfinite(x)] < 0).any()), name
        if x.dtype == bool: assert 'True values' in message
        visible = page.evaluate(
            '''() => ['.sv-stage', '.sv-own-line', '.sv-own-table'].filter(o => document.querySelector('.sv-evidence '
                + o).offsetParent)''')
        axes = custom_evidence(s)[name]
        assert visible == [{'key': '.sv-stage',
                            'token': '.sv-own-line'}.get(axes[-1] if axes else '', '.sv-own-table')], name
    assert page.title() == 'salviz' and page.query_selector('.sv-evidence img, .sv-evidence script') is None


@pytest.mark.slow
def test_all_layers_and_heads_are_reached_and_follow_the_chosen_head(page):
    s = snapshot(7)
    mount(page, meta([[s]]), [pack_frame(s)], dict(evidence='by head'), ['evidence'])
    chips = lambda: page.eval_on_selector_all('.sv-own-number', 'all => all.map(o => o.textContent)')
    fields = lambda: page.eval_on_selector_all('.sv-evidence select',
                                               'all => all.map(o => o.offsetParent ? [...o.options].map(p => p.value) '
                                               ': '
                                               'null)')
    assert fields()[1:] == [['2', '5'], ['0', '1', '2']]
    for i, layer in enumerate((2, 5)):
        for head in range(3):
            page.select_option('.sv-evidence select >> nth=1', str(layer)); settled(page)
            page.select_option('.sv-evidence select >> nth=2', str(head)); settled(page)
            assert [float(o.replace('−', '-')) for o in chips()] == pytest.approx(s.arrays['by head'][i, head], rel=.06)
            assert page.evaluate('app.state.entry') == dict(kind='head', layer=layer, head=head)
    page.evaluate("app.state.set({entry: {kind: 'head', layer: 2, head: 1}})"); settled(page)
    assert [float(o.replace('−', '-')) for o in chips()] == pytest.approx(s.arrays['by head'][0, 1], rel=.06)
    page.evaluate("app.state.set({evidence: 'total'})"); settled(page)
    assert fields()[1:] == [None, None] and '−1.2500 ± 0.0007' in shown(page, '.sv-evidence .sv-tip')


@pytest.mark.sample(1)
@pytest.mark.parametrize('name', ['pull', 'focus', 'each head', 'each layer', 'plain map', 'gaps', 'ranks', 'tiny',
                                  'drift', 'lost', 'wide', 'counts', 'huge', 'gate', 'odds', 'features', 'zero'])
def test_displayed_numbers_are_within_their_step_of_the_evidence(name, page):
    stored = evidence(7, np.random.default_rng(10))[name].astype(float) # as snapshot() stores it in half precision
    s = snapshot(7)
    load(page, 'evidence.js', 'store.js')
    found = evaluate_json(page, '''async ([bytes, name]) => {
        const frame = new sv.Store().addFrame(Uint8Array.from(atob(bytes), c => c.charCodeAt(0))),
            tensor = sv.customTensors(frame).get(name), out = [];
        const inside = ['key', 'class'].includes(tensor.spec.axes.at(-1)) && tensor.spec.axes.at(-1) === 'key' ? 2 : 1;
        const outer = tensor.spec.axes.slice(0, -inside).map((axis, k) => ({axis, count: tensor.shape[k]}));
        const count = outer.reduce((n, o) => n*o.count, 1);
        for (let flat = 0; flat < count; flat++) {
            let rest = flat;
            const places = outer.map((o, k) => { const below = outer.slice(k + 1).reduce((n, p) => n*p.count, 1),
                at = Math.floor(rest/below); rest %= below; return {...o, at}; });
            const slice = sv.evidenceSlice(tensor, places, inside);
            slice.values.forEach((v, k) => out.push([v, slice.half(k)]));
        }
        return out; }''', [__import__('base64').b64encode(pack_frame(s)).decode(), name])
    values, halves = (np.array([np.nan if o[i] is None else o[i] for o in found], float) for i in (0, 1))
    finite = np.isfinite(stored.ravel())
    assert len(values) == stored.size and (np.isfinite(values) == finite).all()
    assert (np.abs(values - stored.ravel())[finite] <= halves[finite]*(1 + 1e-6) + 1e-300).all()
    top = np.abs(stored[np.isfinite(stored)]).max(initial=0.)
    assert (halves[finite] <= .02*top + 1e-300).all()


@pytest.mark.slow
def test_the_pointer_reads_cells_and_keys_move_between_them(page):
    s = snapshot(7)
    mount(page, meta([[s]]), [pack_frame(s)], dict(evidence='plain map'), ['evidence'])
    grid = page.evaluate("(() => { const c = document.querySelector('.sv-evidence canvas'), g = c.salviz.grid, b = "
                         "c.getBoundingClientRect(), m = g.middle(2, 3); return [b.x + m[0], b.y + m[1]]; })()")
    page.mouse.move(*grid); settled(page)
    message = shown(page, '.sv-evidence .sv-tip')
    value, step = map(float, re.search(r'“is” → “a”: ([\d.]+) ± ([\d.]+)', message).groups())
    assert abs(value - s.arrays['plain map'][2, 3]) <= step < .02
    page.focus('.sv-evidence canvas'); page.mouse.move(0, 0)
    for key in ('ArrowRight', 'ArrowRight', 'ArrowDown'): page.keyboard.press(key)
    assert shown(page, '.sv-evidence .sv-tip').startswith('step 10, “it” → “it”: ')

@pytest.mark.slow
def test_a_reading_names_its_layer_head_and_step_and_goes_with_them(page):
    frames = [pack_frame(snapshot(n, step, probe)) for probe, n in enumerate((7, 3)) for step in (0, 10)]
    mount(page, meta([[snapshot(n, step, probe) for probe, n in enumerate((7, 3)) for step in (0, 10)]]), frames,
          dict(step=10), ['evidence'])
    tip = lambda: page.text_content('.sv-evidence .sv-tip')
    cell = lambda: page.evaluate('''() => { const [x, y] = document.querySelector('.sv-evidence canvas').salviz.grid
        .middle(0, 1); return {x, y}; }''')
    here = dict(step=10, probe=0, entry=dict(kind='head', layer=2, head=1))
    places = (('pull', 'canvas >> nth=0', 'layer 2, head 1, step 10, “[CLS]” → “it”: '),
              ('by head', '.sv-own-line .sv-word >> nth=2', 'layer 2, head 1, step 10, “is”: '),
              ('gate', '.sv-own-table td >> nth=1', 'step 10, '))
    changes = (dict(step=0), dict(entry=dict(kind='head', layer=5, head=1)), dict(probe=1))
    for name, at, starts in places:
        for change in changes:
            page.evaluate('state => app.state.set(state)', here | dict(evidence=name)); settled(page)
            page.mouse.move(0, 0)
            page.hover(f'.sv-evidence {at}', position=cell() if name == 'pull' else None)
            assert tip().startswith(starts), (name, tip())
            page.mouse.move(0, 0) # a token that is redrawn below the pointer would be announced again
            page.evaluate('state => app.state.set(state)', change); settled(page)
            if name != 'gate' or 'entry' not in change: assert tip() == '', (name, change) # a table has all heads
    page.evaluate('state => app.state.set(state)', here | dict(evidence='pull')); settled(page)
    page.hover('.sv-evidence canvas >> nth=0', position=cell())
    page.evaluate("() => app.state.set({evidence: 'total'})"); settled(page)
    assert tip().startswith('step 10: −1.25')

@pytest.mark.sample(1)
@pytest.mark.parametrize('entry, message', [
    (dict(kind='mean', heads=[[2, 1], [5, 2]]), 'mean over layer 2 head 1; layer 5 head 2'),
    (dict(kind='heads', layer=2, head=0), 'layer 2, mean over heads'), (dict(kind='all'), 'mean over all heads')])
def test_custom_evidence_is_not_averaged_and_a_note_explains_it(page, entry, message):
    s = snapshot(7)
    mount(page, meta([[s]]), [pack_frame(s)], dict(evidence='pull', entry=entry), ['evidence'])
    note = lambda: page.locator('.sv-evidence > .sv-note').first.inner_text()
    place = dict(mean='layer 2, head 1', heads='layer 2, head 0', all='layer 5, head 0')[entry['kind']]
    assert f'Data from custom methods is not averaged: only {place} is shown (chosen: {message}).' in note()
    assert page.evaluate("() => [...document.querySelectorAll('.sv-evidence select')].slice(1).map(s => s.value)"
                         ) == re.findall(r'\d', place)
    for name, alone in (('each layer', entry['kind'] != 'heads'), ('plain map', False)):
        page.evaluate('name => app.state.set({evidence: name})', name); settled(page)
        assert ('is not averaged' in note()) == alone, name



@pytest.mark.slow
def test_a_narrow_page_is_not_wider_than_it_is(page):
    page.set_viewport_size(dict(width=360, height=800))
    s = snapshot(60)
    mount(page, meta([[s]]), [pack_frame(s)], dict(evidence='pull'))
    for name in ('pull', 'tiny', 'features', long_name, hostile):
        page.evaluate('name => app.state.set({evidence: name})', name); settled(page)
        assert page.evaluate('document.documentElement.scrollWidth') <= 360, name


@pytest.mark.slow
def test_the_panel_is_shown_for_runs_with_evidence_and_notes_steps_without(page):
    first, last = snapshot(step=0), snapshot(step=20)
    first.arrays = {k: v for k, v in first.arrays.items() if k in ('attention', 'saliency', 'probabilities')}
    frames = [pack_frame(first), pack_frame(last)]
    mount(page, meta([[first, last]]), frames)
    assert page.is_visible('.sv-evidence')
    page.evaluate('app.state.set({step: 0})'); settled(page)
    assert page.is_visible('.sv-evidence') and 'was recorded at step 0' in shown(page)
    mount(page, meta([[first]]), [pack_frame(first)])
    assert not page.is_visible('.sv-evidence')
    mount(page, meta([[first]]), [pack_frame(first)], panels=['evidence'])
    assert 'No data from a custom method was recorded in this run.' in page.inner_text('.sv-missing')


@pytest.fixture
def run(tmp_path):
    new_run = Run.create(tmp_path/'run',
                      dict(method=dict(name='Mine', args={}), model=dict(name='tiny', layers=2, heads=3), seed=0))
    for step in (0, 10):
        for probe, n in enumerate((7, 60, 3)): new_run.save(snapshot(n, step, probe))
    return new_run


@pytest.mark.slow
def test_figures_show_every_form_in_a_column_under_its_name(run, tmp_path):
    for probe in (0, 1, 2):
        s = run.snapshot(probe=probe)
        for name in custom_evidence(s) if probe == 0 else ('pull', 'tiny', 'lost', 'features', 'picked'):
            if name == 'odd':
                with pytest.raises(ValueError,
                                   match='evidence: odd has 2 rows, .* cannot be drawn'):
                    figure(run, 'evidence', name=name)
                continue
            fig = figure(run, 'evidence', probe=probe, name=name, width='acl')
            message = [o.get_text() for o in fig.findobj(Text)]
            x = s.arrays[name]
            assert re.sub(r'\s', '', name[:20]) in re.sub(r'\s', '', ''.join(message)) and name[:20] in fig.caption
            assert any(o.startswith('linear scale') for o in message) == (x.dtype != bool and x.size > 1), name
            assert any('not finite' in o for o in message) == (~np.isfinite(x)).any(), name
            assert fig.caption.startswith('Evidence “') and ('linear scale' in fig.caption) == (x.dtype != bool)
    save_figure(figure(run, 'evidence', name=hostile), tmp_path/'a.pdf', caption=True)
    assert r'\textless{}img' in (tmp_path/'a-caption.tex').read_text()


@pytest.mark.slow
def test_a_figure_shows_the_requested_layer_and_head(run):
    s = run.snapshot()
    for layer, i in ((2, 0), (5, 1), (-1, 1), (None, 1)):
        image = figure(run, 'evidence', name='pull', layer=layer, head=2).axes[0].images[0]
        np.testing.assert_allclose(np.asarray(image.get_array()), s.arrays['pull'][i, 2])
    assert image.norm.vmax == -image.norm.vmin == pytest.approx(np.abs(s.arrays['pull'][1, 2]).max())
    assert len([ax for ax in figure(run, 'evidence', name='focus', layer=[2, 5], head=[0, 1]).axes if ax.images
                and ax.images[0].get_array().shape == (7, 7)]) == 4
    for options, message in ((dict(name='pull', layer=3), 'layer=3 was not recorded for pull; available: 2, 5'),
                          (dict(name='pull', head=3), 'head=3 does not exist'),
                          (dict(name='tiny', head=0), 'omit head'),
                          (dict(name='nope'), 'has no nope; available')):
        with pytest.raises(ValueError, match=message): figure(run.snapshot(), 'evidence', **options)


@pytest.mark.slow
def test_static_images_and_exported_pages_show_evidence(run, tmp_path):
    explorer = Explorer(run, state=dict(evidence='gate'))
    texts = ' '.join(o.get_text() for o in explorer.picture().findobj(Text))
    assert 'pull, layer 5, head 0' in texts and 'Arrays of evidence that are not shown here' in texts
    assert 'gate' in ' '.join(o.get_text() for o in explorer.picture('evidence').findobj(Text))
    mean = Explorer(run, state=dict(evidence='pull', entry=dict(kind='mean', heads=[[2, 1], [5, 2]])))
    assert 'pull, layer 2, head 1' in ' '.join(o.get_text() for o in mean.picture().findobj(Text))
    assert '<script>document.title' not in page_text(run)


def test_axes_of_older_snapshots_follow_from_their_sizes():
    assert guessed_axes((3, 3), 3, heads=3) == ('query', 'key') and guessed_axes((3,), 3, heads=3) == ('token',)
    s = Snapshot(step=0, epoch=0., probe=0, tokens=list('abc'), layers=dict(gate=[0]),
                 arrays=dict(gate=np.ones((1, 4)), attention=np.ones((1, 4, 3, 3))),
                 info=dict(axes=dict(gate='nonsense')))
    assert custom_evidence(s) == dict(gate=('layer', 'head'))
    s.info['axes'] = 'nonsense'
    assert custom_evidence(s) == dict(gate=('layer', 'head'))
