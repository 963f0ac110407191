"""Maps in the browser: colours equal those of the codes, marks are exactly on their cells, numbers are within the
stated precision, and keys can replace the mouse."""
import base64
import re
from io import BytesIO

import numpy as np
import pytest
from browser import evaluate_json, load, mount, new_page, settled, spoken
from PIL import Image

from salviz.explorer.quantisation import _cube_code, _cube_value, _level_code, _level_value
from salviz.core.maths import dense_ranks, discard_candidates
from salviz.explorer.run_metadata import meta
from salviz.explorer.payload import pack_frame
from salviz.core.snapshots import Snapshot
from salviz.views.maps import triptych
from salviz.views.base import discard_region

words = ['[CLS]', 'the', 'film', 'is', 'not', 'bad', '.', '[SEP]']
hostile = ['[CLS]', '<img src=x onerror="window.hacked=1">', '<script>window.hacked=1</script>', '"\'`&amp;', 'שלום',
           'مرحبا', '👩‍👩‍👧‍👦', '\u200b\u200b', '\u202eabc', 'x'*10_000,
           '\n', '', 'e\u0301'*300, '[SEP]']

def invented(step=0, probe=0, labels=words, layers=2, heads=3, seed=0, **more):
    "Return a snapshot of `labels` with attention, attribution and its region, and saliency"
    rng, n = np.random.default_rng(seed + 100*step), len(labels)
    special = np.array([o in ('[CLS]', '[SEP]') for o in labels])
    attribution = rng.normal(size=(layers, heads, n, n)).astype(np.float32)
    ranks = dense_ranks(attribution)
    candidates = discard_candidates(attribution, np.ones((n, n), bool), .4)
    arrays = dict(attention=rng.dirichlet(np.ones(n)*.4, (layers, heads, n)).astype(np.float32),
                  attention_attribution=attribution, attribution_ranks=ranks,
                  discard_candidates=candidates, discarded=candidates & (rng.random(candidates.shape) < .4),
                  saliency=rng.normal(size=n).astype(np.float32))
    arrays.update(more.pop('arrays', {}))
    arrays = {k: v for k, v in arrays.items() if v is not None}
    return Snapshot(step=step, epoch=step/10, probe=probe, arrays=arrays, texts=[' '.join(labels)[:200]],
                    tokens=list(labels), labels=list(labels),
                    words=[o for o, s in zip(labels, special) if not s],
                    word_ids=np.where(special, -1, np.cumsum(~special) - 1), is_special=special, label=0,
                    classes=['no', 'yes'],
                    info=dict(method='ADDrop', args=dict(p=.4, q=.4, region='high', cross_tuning=False), seed=3,
                              drawn_step=step, example_id=7, pooled_row=0, **more))

def guided(step=0, **kw):
    "Return the same under attention guidance; heads 0 (next) and 1 (prev) are guided"
    snapshot = invented(step, **kw)
    n, (L, H) = len(snapshot.tokens), snapshot.arrays['attention'].shape[:2]
    target = np.zeros((L, H, n, n), np.float32)
    target[:, 0] = np.eye(n, k=1); target[:, 1] = np.eye(n, k=-1)
    target[:, 0, -1] = target[:, 1, 0] = 1/n
    flags = np.zeros((L, H), bool); flags[:, :2] = True
    keep = {k: snapshot.arrays[k] for k in ('attention', 'saliency')}
    return Snapshot(**{**vars(snapshot), 'arrays': dict(keep, pattern_target=target, guided=flags), 'layers': {},
                       'info': dict(snapshot.info, method='AttentionGuidance', args=dict(reduction='mean'))})

def show(page, *runs, state=None, **kw):
    "Mount the explorer on lists of snapshots"
    frames = [pack_frame(s, run=i) for i, snapshots in enumerate(runs) for s in snapshots]
    mount(page, meta(runs), frames, state={'entry': dict(kind='head', layer=0, head=0), **(state or {})}, **kw)

def pixel_numbers(page, selector, points):
    "Return the canvas pixels at `points` (in canvas pixels) as numbers of a colour table"
    image, (x, y) = canvas_image(page, selector), np.array(points).astype(int).T
    return [int(255 << 24 | b << 16 | g << 8 | r) for r, g, b in image[y, x]]

def table(page, name, theme='light'): return page.evaluate('([n, t]) => [...sv.colourTable(n, t)]', [name, theme])

def place_of(value, limit):
    "Return the entry in a table of 256 colours for a non-negative value"
    return np.floor(255*np.sqrt(np.minimum(1, np.asarray(value, float)/limit)) + .5).astype(int)

def limit_of(values, tokens=None):
    "Return the upper end of the colours of attention: its maximum, but at least four times uniform attention"
    return max(values.max(), min(1, 4/(tokens or len(words))))

def signed_place(value, limit):
    part = np.sqrt(np.minimum(1, np.abs(np.asarray(value, float))/limit))
    return np.floor(255*np.where(np.asarray(value) < 0, .5 - part/2, .5 + part/2) + .5).astype(int)

def grid_of(page, selector='.sv-map canvas', which='grid'):
    "Return the edges of rows and columns of a map, in canvas pixels"
    return page.eval_on_selector(
        selector,
        '''(c, which) => { const g = which === 'grid' ? c.salviz.grid : c.salviz.grids[which], n = g.columns.count,
            k = Array.from({length: n + 1}, (_, i) => i);
        return {left: k.map(i => g.left(i) * g.ratio), top: k.map(i => g.top(i) * g.ratio)}; }''', which)

def middles(g):
    at = lambda edges: [(a + b)//2 for a, b in zip(edges, edges[1:])]
    return [(x, y) for y in at(g['top']) for x in at(g['left'])]

plain = dict(candidates=False, discarded=False, target=False, residual=False, saliency=False, regularised=False)

def load_tables(page): load(page, 'colour.js', 'canvas.js')

# ---- colours

@pytest.mark.sample(1)
@pytest.mark.parametrize('theme', ['light', 'dark'])
def test_lightness_of_every_palette_goes_one_way_from_near_the_background(page, theme):
    load_tables(page)
    background = np.array([255]*3 if theme == 'light' else [0x15, 0x18, 0x1c])
    for name in ('cividis', 'viridis', 'grey'):
        rgb = np.array([[c & 255, c >> 8 & 255, c >> 16 & 255] for c in table(page, name, theme)])
        light = rgb @ [.2126, .7152, .0722]
        steps = np.diff(light[::5])  # single steps are rounded to whole colours
        assert (steps < 0).all() or (steps > 0).all()
        assert np.abs(rgb[0] - background).max() < 16
        assert np.abs(light[-1] - light[0]) > 160
        assert len(set(map(tuple, rgb))) > 200

def test_signed_colours_are_alike_for_alike_sizes(page):
    load_tables(page)
    rgb = lambda theme: np.array([[c & 255, c >> 8 & 255, c >> 16 & 255] for c in table(page, 'signed', theme)])
    for theme in ('light', 'dark'):
        light = rgb(theme) @ [.2126, .7152, .0722]
        assert np.abs(light - light[::-1]).max() < 60
        assert (rgb(theme)[:100, 2] > rgb(theme)[:100, 0]).all()
        assert (rgb(theme)[156:, 0] > rgb(theme)[156:, 2]).all()

def test_numbers_are_written_to_the_digit_that_their_step_allows(page):
    load_tables(page)
    rng = np.random.default_rng(0)
    cases = [(float(v), float(h)) for v, h in zip(rng.normal(size=300)*10.**rng.integers(-9, 2, 300),
                                                  10.**rng.uniform(-11, 0, 300))]
    for (v, h), message in zip(cases, page.evaluate('cases => cases.map(([v, h]) => sv.valueWithStep(v, h))', cases)):
        shown, step = (float(o.replace('−', '-')) for o in message.split(' ± '))
        assert step >= h*.999 and step <= 10*h and abs(shown - v) + h <= step*1.0001 + 1e-15, (v, h, message)

# ---- pixels

@pytest.fixture
def sharp(browser, request):
    "Open a page with the number of device pixels per CSS pixel that the test requests"
    p = new_page(browser, device_scale_factor=request.param)
    yield p
    errors, outside = p.errors, p.outside
    p.close()
    assert errors == [] and outside == []

def tiles_of(page): return page.eval_on_selector('.sv-heads canvas', 'c => c.salviz')

def tile_points(found, tile, n):
    x, y = (round(tile[o]*found['ratio']) for o in 'xy')
    at = [int((k + .5)*found['side']/n) for k in range(n)]
    return [(x + c, y + r) for r in at for c in at]

@pytest.mark.sample(1)
@pytest.mark.parametrize('sharp', [1, 2], indirect=True)
@pytest.mark.parametrize('theme', ['light', 'dark'])
def test_pixels_of_grid_and_map_are_the_colours_of_the_codes(sharp, theme):
    s = invented(); n = len(words)
    show(sharp, [s], state=dict(overlays=plain), panels=['heads', 'map'], theme=theme)
    load_tables(sharp)
    A, colours, found = _cube_value(_cube_code(s.arrays['attention'])).astype(float), np.array(
        table(sharp, 'cividis', theme)), tiles_of(sharp)
    assert found['ratio'] == sharp.evaluate('devicePixelRatio') and len(found['tiles']) == 2*3 + 2 + 3 + 1 + 1
    for tile in found['tiles']:
        e = tile['entry']
        values = dict(head=lambda: A[e['layer'], e['head']], heads=lambda: A[e['layer']].mean(0),
                      layers=lambda: A[:, e['head']].mean(0), all=lambda: A.mean((0, 1)),
                      rollout=lambda: (.5*A[1].mean(0) + .5*np.eye(n)) @ (.5*A[0].mean(0) + .5*np.eye(n)))[e['kind']]()
        got, want = np.array(pixel_numbers(sharp, '.sv-heads canvas',
                                           tile_points(found, tile,
                                                       n))).reshape(n, n), place_of(values, limit_of(values))
        if e['kind'] == 'head': assert (got == colours[want]).all(), e
        # sums are rounded
        else:
            assert ((got == colours[want]) | (got == colours[np.maximum(want - 1, 0)])
                    | (got == colours[np.minimum(want + 1, 255)])).all(), e
    got = np.array(pixel_numbers(sharp, '.sv-map canvas', middles(grid_of(sharp)))).reshape(n, n)
    assert (got == colours[place_of(A[0, 0], limit_of(A[0, 0]))]).all()

@pytest.mark.slow
def test_attribution_is_painted_in_signed_colours(page):
    s = invented(); n = len(words)
    show(page, [s], state=dict(overlays=plain, what='attribution'), panels=['heads', 'map'])
    load_tables(page)
    V, colours, found = _level_value(*_level_code(s.arrays['attention_attribution'])).astype(float), np.array(
        table(page, 'signed')), tiles_of(page)
    for tile in [t for t in found['tiles'] if t['entry']['kind'] == 'head']:
        values = V[tile['entry']['layer'], tile['entry']['head']]
        assert (np.array(pixel_numbers(page, '.sv-heads canvas',
                                       tile_points(found, tile, n))).reshape(n, n)
                == colours[signed_place(values, np.abs(values).max())]).all()
    got = np.array(pixel_numbers(page, '.sv-map canvas', middles(grid_of(page)))).reshape(n, n)
    assert (got == colours[signed_place(V[0, 0], np.abs(V[0, 0]).max())]).all()

@pytest.mark.slow
def test_a_common_scale_makes_heads_comparable(page):
    s = invented(); A = _cube_value(_cube_code(s.arrays['attention'])).astype(float)
    show(page, [s], state=dict(overlays=plain, scale='frame'), panels=['heads', 'map'])
    load_tables(page)
    colours, found, n = np.array(table(page, 'cividis')), tiles_of(page), len(words)
    for scale, limit in (('frame', limit_of(A)), ('unit', 1)):
        page.evaluate('scale => app.state.set({scale})', scale); settled(page)
        tile = found['tiles'][4]
        assert (np.array(pixel_numbers(page, '.sv-heads canvas',
                                       tile_points(found, tile, n))).reshape(n, n)
                == colours[place_of(A[1, 1], limit)]).all()
        assert (np.array(pixel_numbers(page, '.sv-map canvas',
                                       middles(grid_of(page)))).reshape(n,
                                                                        n) == colours[place_of(A[0, 0], limit)]).all()

@pytest.mark.slow
def test_attention_that_is_spread_evenly_stays_pale(page):
    n = len(words); A = np.full((2, 3, n, n), 1/n, np.float32)
    show(page, [invented(arrays=dict(attention=A))], state=dict(overlays=plain), panels=['heads', 'map'])
    load_tables(page)
    wanted = table(page, 'cividis')[128]   # a quarter of the limit, because entries follow the square root
    assert set(pixel_numbers(page, '.sv-map canvas',
                             middles(grid_of(page)))) == {wanted} == set(
        pixel_numbers(page, '.sv-heads canvas', tile_points(tiles_of(page), tiles_of(page)['tiles'][2], n)))

@pytest.mark.parametrize('signed', [True, False])
def test_ticks_keep_clear_of_the_numbers_at_the_ends(page, signed):
    load_tables(page)
    limits = np.geomspace(1e-4, 20, 60).tolist()
    for gap in (.12, .2):
        for found in page.evaluate('([limits, signed, gap]) => limits.map(limit => sv.scaleTicks({limit, signed}, '
                                   'gap).map(t => t[1]))', [limits, signed, gap]):
            gaps, beside_zero = np.diff(found), np.diff(np.array(found) == (.5 if signed else 0))
            assert (gaps >= np.where(beside_zero, .75, 1)*gap - 1e-9).all()
            assert gaps[-1] >= 1.6*gap - 1e-9
            assert (not signed or gaps[0] >= 1.6*gap - 1e-9)

def test_where_cells_are_smaller_than_pixels_a_tile_shows_the_strongest(page):
    n = 100; A = np.full((1, 12, n, n), .2/n, np.float32); A[:, :] += .8*np.eye(n, k=-1, dtype=np.float32)
    s = invented(labels=['[CLS]', *[f'w{i}' for i in range(n - 2)], '[SEP]'], layers=1, heads=12,
                 arrays=dict(attention=A, attention_attribution=None, attribution_ranks=None, discard_candidates=None,
                             discarded=None))
    show(page, [s], state=dict(overlays=plain), panels=['heads'])
    load_tables(page)
    page.eval_on_selector('.salviz', 'el => el.style.width = "500px"'); settled(page); settled(page)
    found, colours = tiles_of(page), table(page, 'cividis')
    side, tile = found['side'], found['tiles'][3]
    assert side < n/2
    points = [(tile['x'] + int((row - .5)*side/n), tile['y'] + int((row + .5)*side/n)) for row in range(1, n)]
    assert pixel_numbers(page, '.sv-heads canvas', points) == [colours[255]]*(n - 1)

# ---- what changes them

def test_scrubbing_and_clicking_change_the_pixels_as_they_should(page):
    steps, n = [invented(s) for s in (0, 5, 9)], len(words)
    show(page, steps, state=dict(overlays=plain), panels=['heads', 'map'])
    load_tables(page)
    colours = np.array(table(page, 'cividis'))
    def shown(): return np.array(pixel_numbers(page, '.sv-map canvas', middles(grid_of(page)))).reshape(n, n)
    def expected(s, layer, head):
        values = _cube_value(_cube_code(s.arrays['attention'][layer, head])).astype(float)
        return colours[place_of(values, limit_of(values))]
    assert (shown() == expected(steps[2], 0, 0)).all()
    for s in steps:
        page.evaluate('step => app.state.set({step})', s.step); settled(page)
        assert (shown() == expected(s, 0, 0)).all()
    found = tiles_of(page)
    for tile in found['tiles'][:6]:
        page.click('.sv-heads canvas', position=dict(x=tile['x'] + 10, y=tile['y'] + 10)); settled(page)
        e = page.evaluate('app.state.entry')
        assert (e['kind'], e['layer'], e['head']) == ('head', tile['entry']['layer'], tile['entry']['head'])
        assert (shown() == expected(steps[2], e['layer'], e['head'])).all()

@pytest.mark.slow
def test_threshold_and_top_k_blank_what_they_should(page):
    s = invented(); n = len(words); A = _cube_value(_cube_code(s.arrays['attention'][0, 0])).astype(float)
    show(page, [s], state=dict(overlays=plain), panels=['map'])
    load_tables(page)
    blank = page.evaluate('sv.blankColour("light")')
    def blanks(): return np.array(pixel_numbers(page, '.sv-map canvas', middles(grid_of(page)))).reshape(n, n) == blank
    assert not blanks().any()
    page.evaluate('app.state.set({threshold: .05})'); settled(page)
    assert (blanks() == (A < .05)).all()
    page.evaluate('app.state.set({threshold: 0, top: 2})'); settled(page)
    stored = np.zeros((n, n), bool)
    for r in range(n): stored[r, sorted(range(n), key=lambda k: (-A[r, k], k))[:2]] = True
    assert (blanks() == ~stored).all()

@pytest.mark.slow
def test_hidden_special_tokens_leave_rows_and_columns(page):
    s = invented(); A = _cube_value(_cube_code(s.arrays['attention'][0, 0])).astype(float)[1:-1, 1:-1]
    show(page, [s], state=dict(overlays=plain, hideSpecial=True), panels=['heads', 'map'])
    load_tables(page)
    colours, found, n = np.array(table(page, 'cividis')), tiles_of(page), len(words) - 2
    want = colours[place_of(A, limit_of(A))]
    assert (np.array(pixel_numbers(page, '.sv-map canvas', middles(grid_of(page)))).reshape(n, n) == want).all()
    assert (np.array(pixel_numbers(page, '.sv-heads canvas',
                                   tile_points(found, found['tiles'][0], n))).reshape(n, n) == want).all()

# ---- numbers

def hover_all(page, panel='.sv-map', which='grid'):
    "Return the text of the tip for every cell, row by row"
    return page.evaluate('''([panel, which]) => {
        const canvas = document.querySelector(`${panel} canvas`), box = canvas.getBoundingClientRect(),
            tip = document.querySelector(`${panel} .sv-tip`);
        const g = which === 'grid' ? canvas.salviz.grid : canvas.salviz.grids[which], n = g.columns.count, out = [];
        for (let r = 0; r < n; r++) for (let c = 0; c < n; c++) {
            const [x, y] = g.middle(r, c);
            canvas.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + x, clientY: box.top + y,
                bubbles: true}));
            out.push(tip.textContent);
        }
        return out; }''', [panel, which])

def number(text): return float(text.replace('−', '-'))

def test_the_value_under_the_pointer_is_the_arrays_within_the_stated_step(page):
    s = invented(); n = len(words)
    show(page, [s], panels=['map'])
    for layer, head, what in ((0, 0, 'attention'), (1, 2, 'attention'), (0, 1, 'attribution')):
        page.evaluate('([layer, head, what]) => app.state.set({entry: {kind: "head", layer, head}, what})',
                      [layer, head, what])
        settled(page)
        exact = s.arrays['attention' if what == 'attention' else 'attention_attribution'][layer, head].astype(float)
        for k, message in enumerate(hover_all(page)):
            r, c = divmod(k, n)
            m = re.fullmatch(r'layer (\d), head (\d), step 0, “(.*)” → “(.*)”: (\S+) ± (\S+?)((?:, .*)?)', message)
            assert m and (int(m[1]), int(m[2]), m[3], m[4]) == (layer, head, words[r], words[c]), message
            value, step = number(m[5]), number(m[6])
            assert abs(value - exact[r, c]) <= step*1.0001, (message, exact[r, c])
            if what == 'attribution':
                place = 1 + int((exact[r] > exact[r, c]).sum())
                assert m[7].startswith(f', {place}{ {1: "st", 2: "nd", 3: "rd"}.get(place, "th")} of {n}'), message
            marks = s.arrays['discarded'][layer, head, r, c], s.arrays['discard_candidates'][layer, head, r, c]
            assert m[7].endswith('discarded') == bool(marks[0])
            assert m[7].endswith('candidate') == bool(marks[1] and not marks[0])

@pytest.mark.slow
def test_means_show_their_values(page):
    s = invented(); n = len(words)
    show(page, [s], state=dict(entry=dict(kind='heads', layer=1, head=0)), panels=['map'])
    exact = s.arrays['attention'][1].astype(float).mean(0)
    for k, message in enumerate(hover_all(page)):
        value, step = map(number, re.search(r': (\S+) ± (\S+)', message).groups())
        assert abs(value - exact[divmod(k, n)]) <= step*1.0001

@pytest.mark.slow
def test_chosen_tokens_are_summed_for_the_row_and_on_average(page):
    s = invented(); A = s.arrays['attention'][0, 0].astype(float)
    show(page, [s], state=dict(row=2, tokens=[1, 5]), panels=['map'])
    message = page.text_content('.sv-map .sv-rowsum')
    (row, a), (mean, b) = ((number(v), number(h)) for v, h in re.findall(r'(\S+) ± ([\d.e−-]+\d)', message))
    assert abs(row - A[2, [1, 5]].sum()) <= a
    assert abs(mean - A[:, [1, 5]].sum(1).mean()) <= b
    assert '“the” + “bad”' in message
    assert 'from “film”' in message

def test_words_sum_over_key_pieces_and_average_over_query_pieces(page):
    labels = ['[CLS]', 'un', 'forget', 'table', 'film', '[SEP]']
    s = invented(labels=labels); s.word_ids = np.array([-1, 0, 0, 0, 1, -1]); s.words = ['unforgettable', 'film']
    show(page, [s], state=dict(mergeWords=True), panels=['map'])
    A, groups = s.arrays['attention'][0, 0].astype(float), [[0], [1, 2, 3], [4], [5]]
    for k, message in enumerate(hover_all(page)):
        q, c = groups[k//4], groups[k % 4]
        value, step = map(number, re.search(r': (\S+) ± ([\d.e−-]+\d)', message).groups())
        assert abs(value - A[np.ix_(q, c)].sum(1).mean()) <= step*1.0001
        assert ('“unforgettable” →' in message) == (len(q) == 3)

# ---- overlays

def canvas_image(page, selector):
    "Return the canvas as an array [rows, columns, red green blue]"
    data = page.eval_on_selector(selector, 'c => c.toDataURL()')
    return np.array(Image.open(BytesIO(base64.b64decode(data.split(',')[1]))).convert('RGB')).astype(int)

def ink_on_edges(page, n):
    """Return for every inner edge between cells whether the outline is drawn in its middle, the canvas, and the edges
    of its columns and rows"""
    g, image, dark = grid_of(page), canvas_image(page, '.sv-map canvas'), {}
    x, y = [round(o) for o in g['left']], [round(o) for o in g['top']]
    black = lambda part: bool((part.max(-1) < 60).any())
    for r in range(n):
        for c in range(n - 1):
            m = y[r] + (y[r + 1] - y[r])//4
            dark[(r, c), (r, c + 1)] = black(image[m:m + 1, x[c + 1] - 2:x[c + 1] + 2])
    for r in range(n - 1):
        for c in range(n):
            m = x[c] + (x[c + 1] - x[c])//4
            dark[(r, c), (r + 1, c)] = black(image[y[r + 1] - 2:y[r + 1] + 2, m:m + 1])
    return dark, image, x, y

def has_line(region, a, b):
    "Return whether a line separates the cells `a` and `b`: boxes are drawn per row, around each run of cells"
    return bool(region[a] | region[b] if a[1] == b[1] else region[a] != region[b])

def faint(step=0):
    "Return a snapshot with uniform attention, so that only overlays on its map are black"
    s = invented(step); n = len(s.tokens)
    s.arrays['attention'] = np.full_like(s.arrays['attention'], 1/n); s.arrays['attention'][:, :, 0, 0] = 1
    return s

def test_the_outline_surrounds_the_candidates_and_crosses_mark_the_discarded(page):
    s = faint(); n = len(words)
    show(page, [s], state=dict(entry=dict(kind='head', layer=1, head=1), overlays=dict(plain, candidates=True)),
         panels=['map'])
    region, crossed = s.arrays['discard_candidates'][1, 1], s.arrays['discarded'][1, 1]
    dark, *_ = ink_on_edges(page, n)
    for (a, b), is_dark in dark.items():
        if (0, 0) not in (a, b): assert is_dark == has_line(region, a, b), (a, b)
    page.evaluate('o => app.state.set({overlays: o})', dict(plain, discarded=True)); settled(page)
    _, image, x, y = ink_on_edges(page, n)
    for r, c in np.ndindex(n, n):
        if r or c:
            assert bool((image[y[r] + 4:y[r + 1] - 4, x[c] + 4:x[c + 1] - 4].max(-1) < 60).any()) == bool(
                crossed[r, c]), (r, c)

@pytest.mark.slow
def test_what_if_moves_the_outline(page):
    s = faint(); n = len(words)
    show(page, [s], state=dict(overlays=dict(plain, candidates=True),
                               whatIf=dict(p=.7, q=.3, region='low', protect=False)), panels=['map'])
    region = discard_candidates(s.arrays['attention_attribution'][0, 0], np.ones((n, n), bool), .7, 'low')
    dark, *_ = ink_on_edges(page, n)
    for (a, b), is_dark in dark.items():
        if (0, 0) not in (a, b): assert is_dark == has_line(region, a, b), (a, b)
    assert page.text_content('.sv-map .sv-words').startswith(
        f'What-if: {region.sum()} of {n*n} positions are candidates')

@pytest.mark.slow
def test_pattern_residual_and_fraction_of_the_loss(page):
    s = guided(); n = len(words)
    show(page, [s], state=dict(entry=dict(kind='head', layer=1, head=0), overlays=dict(plain, residual=True)),
         panels=['heads', 'map'])
    load_tables(page)
    A, P = _cube_value(_cube_code(s.arrays['attention'])).astype(float), s.arrays['pattern_target'].astype(float)
    residual = (A - P)[1, 0].astype(np.float32).astype(float)
    got = np.array(pixel_numbers(page, '.sv-map canvas', middles(grid_of(page)))).reshape(n, n)
    assert (got == np.array(table(page, 'signed'))[signed_place(residual, np.abs(residual).max())]).mean() > .96
    loss = ((A - P)**2).mean((-1, -2))[:, :2]
    share = loss[1, 0]/loss.sum()
    message = page.text_content('.sv-map .sv-words')
    assert 'Pattern: next.' in message and abs(float(re.search(r'contributes ([\d.]+) %', message)[1]) - 100*share) < .6
    page.evaluate('app.state.set({entry: {kind: "head", layer: 1, head: 2}})'); settled(page)
    assert 'not guided' in page.text_content('.sv-map .sv-words')

@pytest.mark.slow
def test_only_overlays_that_the_frame_has_are_offered(page):
    for snapshot, names in ((invented(), {'candidates', 'discarded', 'saliency'}),
                            (guided(), {'target', 'residual', 'saliency'})):
        show(page, [snapshot], panels=['map'])
        assert set(page.eval_on_selector_all('.sv-overlays label:not([hidden]) input',
                                             'boxes => boxes.map(b => b.dataset.overlay)')) == names
        box = sorted(names)[0]
        before = page.evaluate('name => app.state.overlays[name]', box)
        page.click(f'.sv-overlays input[data-overlay={box}]'); settled(page)
        assert page.evaluate('name => app.state.overlays[name]', box) is not before

# ---- keys

@pytest.mark.slow
def test_everything_can_be_done_with_keys_alone(page):
    s = guided()
    show(page, [s, guided(5)], panels=['heads', 'map'])
    def press(*keys):
        for key in keys: page.keyboard.press(key)
        settled(page)
    def tab_to(selector):
        for _ in range(60):
            page.keyboard.press('Tab')
            if page.evaluate('s => document.activeElement.matches(s)', selector): return
        raise AssertionError(f'{selector} cannot be reached with Tab')
    def state(key): return page.evaluate('key => app.state[key]', key)
    tab_to('.sv-heads canvas'); press('ArrowRight', 'ArrowDown')
    assert (state('entry')['layer'], state('entry')['head']) == (1, 1)
    spoken(page, 'layer 1, head 1'); assert 'guided' in page.text_content('.sv-said')
    press('ArrowRight', 'ArrowRight'); assert state('entry')['kind'] == 'heads'
    press('ArrowDown'); assert state('entry')['kind'] == 'all'
    press('ArrowDown'); assert state('entry')['kind'] == 'rollout'
    press('ArrowUp', 'ArrowUp', 'ArrowLeft', 'ArrowLeft')
    assert state('entry') == dict(state('entry'), kind='head', layer=1, head=1)
    tab_to('.sv-map canvas'); press('ArrowDown', 'ArrowDown', 'ArrowRight')
    message = page.text_content('.sv-map .sv-tip')
    assert '“the” → “the”' in message and page.get_attribute('.sv-map .sv-tip', 'aria-live') == 'off', message
    spoken(page, 'from “the” to “the”: attention')
    press('Enter', 'Space', 'ArrowRight', 'Space'); assert state('row') == 1 and state('tokens') == [1, 2]
    span = lambda: page.eval_on_selector('.sv-map canvas', 'c => c.salviz.grid.columns.span')
    press('+'); assert span() < 8
    press('-'); press('+', '+', '0'); assert span() == 8
    press('Escape'); assert state('row') is None and state('tokens') == []
    tab_to('.sv-overlays input[data-overlay=residual]'); press('Space'); assert state('overlays')['residual']
    tab_to('.sv-controls input'); press('ArrowRight', 'ArrowRight'); assert state('top') == 2

@pytest.mark.slow
def test_a_zoomed_map_follows_the_cursor_the_wheel_and_the_drag(page):
    show(page, [invented()], state=dict(overlays=plain), panels=['map'])
    page.focus('.sv-map canvas')
    window = lambda: page.eval_on_selector('.sv-map canvas',
                                           'c => ({...c.salviz.grid.columns, row: c.salviz.grid.rows.from})')
    for key in ('+', '+'): page.keyboard.press(key)
    settled(page)
    assert window()['span'] == 4
    for _ in range(12): page.keyboard.press('ArrowRight')
    settled(page); assert window()['from'] == 4 and '→ “[SEP]”' in page.text_content('.sv-map .sv-tip')
    box = page.query_selector('.sv-map canvas').bounding_box(); x, y = box['x'] + 250, box['y'] + 250
    page.mouse.move(x, y); page.mouse.down(); page.mouse.move(x + 60, y + 5, steps=3); page.mouse.up(); settled(page)
    assert window()['from'] < 4 and page.evaluate('app.state.row') is None
    page.mouse.wheel(0, 2000); settled(page); page.mouse.wheel(0, 2000); settled(page); assert window()['span'] == 8
    page.mouse.wheel(0, -300); settled(page); assert window()['span'] < 8
    page.mouse.dblclick(x, y); settled(page); assert window()['span'] == 8

@pytest.mark.slow
def test_clicks_on_labels_choose_rows_and_keys(page):
    show(page, [invented()], state=dict(overlays=plain), panels=['map'])
    g, box = grid_of(page), page.query_selector('.sv-map canvas').bounding_box()
    key = lambda k: (box['x'] + (g['left'][k] + g['left'][k + 1])/2, box['y'] + g['top'][0] - 10)
    page.mouse.click(*key(2))
    page.keyboard.down('Shift'); page.mouse.click(*key(5)); page.keyboard.up('Shift'); settled(page)
    assert page.evaluate('app.state.tokens') == [2, 5]
    page.mouse.click(*key(5)); settled(page); assert page.evaluate('app.state.tokens') == [5]
    page.mouse.click(box['x'] + g['left'][0] - 12, box['y'] + (g['top'][3] + g['top'][4])/2); settled(page)
    assert page.evaluate('app.state.row') == 3

# ---- sorting

@pytest.mark.slow
def test_heads_are_sorted_and_filtered_by_their_scores(page):
    s = guided(); A, P = _cube_value(_cube_code(s.arrays['attention'])).astype(float), s.arrays['pattern_target']
    show(page, [s], state=dict(sort='entropy'), panels=['heads'])
    tiles = lambda: [(t['entry']['layer'], t['entry']['head']) for t in tiles_of(page)['tiles']
                     if t['entry']['kind'] == 'head']
    R = A/A.sum(-1, keepdims=True); H = -(R*np.log(np.where(R > 0, R, 1))).sum(-1).mean(-1)
    assert tiles() == sorted(np.ndindex(2, 3), key=lambda k: H[k])
    page.select_option('.sv-heads .sv-head label:has-text("Sort by") select', 'pattern'); settled(page)
    loss = ((A - P)**2).mean((-1, -2))
    assert tiles()[:4] == sorted([(l, h) for l in range(2) for h in range(2)], key=lambda k: -loss[k])
    page.evaluate('app.state.set({filter: 6, sort: "agreement"})'); settled(page)
    assert len(tiles()) == 6
    page.evaluate('app.state.set({filter: 0, sort: "order"})'); settled(page)
    assert tiles() == list(np.ndindex(2, 3))

def test_each_tile_shows_the_score_of_its_head(page):
    s = guided()
    show(page, [s], state=dict(sort='entropy'), panels=['heads'])
    R = _cube_value(_cube_code(s.arrays['attention'])).astype(float)
    R = R/R.sum(-1, keepdims=True)
    H = -(R*np.log(np.where(R > 0, R, 1))).sum(-1).mean(-1)
    box, found = page.query_selector('.sv-heads canvas').bounding_box(), tiles_of(page)
    heads = [tile for tile in found['tiles'] if tile['entry']['kind'] == 'head']
    assert len(heads) == H.size
    for tile in heads:
        half = found['side']/found['ratio']/2
        page.mouse.move(box['x'] + tile['x'] + half, box['y'] + tile['y'] + half)
        shown = re.search(r'ntropy[^:]*: ([\d.]+)', page.inner_text('.sv-heads .sv-tip'))
        number = H[tile['entry']['layer'], tile['entry']['head']]
        assert float(shown[1]) == pytest.approx(number, abs=.05) # two digits

@pytest.mark.slow
def test_tied_heads_are_not_ranked_and_a_note_explains_it(page):
    s = invented()
    s.arrays['attention'][0] = s.arrays['attention'][0, 0] # three equal heads in one layer
    show(page, [s], state=dict(sort='entropy'), panels=['heads'])
    note = lambda: page.inner_text('.sv-heads .sv-note')
    layers = lambda: [t['entry']['layer'] for t in tiles_of(page)['tiles']]
    alike = layers().index(0)
    assert layers()[alike:alike + 3] == [0]*3
    assert note() == ('Ties: 3 of 6 heads have the same entropy as another head (=); tied heads are ordered by layer '
                      'and head.')
    page.evaluate('n => app.state.set({filter: n})', alike + 2); settled(page)
    assert note().endswith(f'The limit of {alike + 2} heads leaves out some tied heads.')
    page.evaluate('n => app.state.set({filter: n})', alike + 3); settled(page)
    assert note().endswith('by layer and head.')
    page.evaluate('app.state.set({filter: 0, sort: "change"})'); settled(page) # 0 for all heads at the first step
    assert note().startswith('Ties: all heads have the same change; ')
    page.evaluate('app.state.set({sort: "order"})'); settled(page)
    assert 'Ties' not in page.text_content('.sv-heads .sv-note')

# ---- triptych and compare

@pytest.mark.slow
def test_the_triptych_subtracts_ranks_or_fractions(page):
    s = invented()
    n = len(words)
    A, V = _cube_value(_cube_code(s.arrays['attention'][0, 0])).astype(float), _level_value(
        *_level_code(s.arrays['attention_attribution'][0, 0]))
    show(page, [s], state=dict(tab='triptych'), panels=['triptych'])
    load_tables(page)
    places = lambda x: np.array([[(np.sum(r < v) + (np.sum(r == v) - 1)/2)/(n - 1) for v in r] for r in x])
    def third():
        return np.array(pixel_numbers(page, '.sv-triptych canvas',
                                      middles(grid_of(page, '.sv-triptych canvas', 2)))).reshape(n, n)
    colours = np.array(table(page, 'signed'))
    assert (third() == colours[signed_place((places(A).astype(np.float32) - places(V).astype(np.float32)),
                                            1)]).mean() > .96
    page.select_option('.sv-triptych select', 'saliency'); settled(page)
    ordinary, size = ~s.is_special, np.abs(s.arrays['saliency'].astype(float))
    difference = A[:, ordinary]/A[:, ordinary].sum(1, keepdims=True) - size[ordinary]/size[ordinary].sum()
    assert (third()[:, ordinary] == colours[signed_place(difference, np.abs(difference).max())]).mean() > .9
    assert (third()[:, ~ordinary] == page.evaluate('sv.blankColour("light")')).all()
    message = hover_all(page, '.sv-triptych', 0)[2*n + 3]
    assert message.startswith('layer 0, head 0, step 0, “film” → “is”: attention ') and 'difference' in message

def unread():
    "Return a snapshot whose heads of layer 1 have attributions in the first row alone, as in a classifier's last layer"
    s = invented()
    n, V = len(words), s.arrays['attention_attribution']
    V[1, :, 1:] = 0
    everywhere = np.ones((n, n), bool)
    s.arrays['attribution_ranks'], s.arrays['discard_candidates'] = dense_ranks(V), discard_candidates(
        V, everywhere, .4)
    s.arrays['discarded'] = s.arrays['discard_candidates'] & (np.arange(n) == 3)
    return s

def test_ties_are_no_finding_of_the_triptych_and_carry_a_mark(page):
    s, n = unread(), len(words)
    show(page, [s], state=dict(tab='triptych', entry=dict(kind='head', layer=1, head=0)), panels=['triptych'])
    load_tables(page)
    blank = page.evaluate('sv.blankColour("light")')
    grid = grid_of(page, '.sv-triptych canvas', 2)
    wide, high = (grid[k][1] - grid[k][0] for k in ('left', 'top'))
    off = np.array(middles(grid), float) + [-.35*wide, .35*high]   # beside the mark
    third = np.array(pixel_numbers(page, '.sv-triptych canvas', off)).reshape(n, n)
    assert (third[1:] == blank).all() and (third[0] != blank).all()
    view = triptych(s, 1, 0)
    assert np.array_equal(np.isnan(view.values[2]), np.isnan(view.values[2][:, :1]) & np.ones((n, n), bool))
    assert view.tied.tolist() == [False] + [True]*(n - 1)
    load(page, 'maths.js')
    assert page.evaluate('([v, n]) => [...sv.tiedRows(Float32Array.from(v), n)]',
                         [view.values[1].ravel().tolist(), n]) == view.tied.astype(int).tolist()
    message = hover_all(page, '.sv-triptych', 2)
    assert all('difference of ranks tied' in o for o in message[n:]) and not any('tied' in o for o in message[:n])
    assert (f'Ties (hatched): in {n - 1} of {n} rows, all attributions are 0 (the prediction '
            'does not depend on these rows)' in page.text_content('.sv-triptych .sv-words'))

@pytest.mark.slow
def test_ties_in_a_region_are_counted_and_hatched(page):
    s, n = unread(), len(words)
    show(page, [s], panels=['map'], state=dict(entry=dict(kind='head', layer=1, head=0), what='attribution',
                                               overlays={**plain, 'candidates': True}))
    view = discard_region(s, 1, 0)
    many = int(s.arrays['discard_candidates'][1, 0].sum())
    assert view.subtitle.startswith(f'{many} of {n*n} positions are candidates ({n*(n - 1)} in rows with ties), ')
    message = page.text_content('.sv-map')
    assert f'{many} of {n*n} positions are candidates (outlined, {n*(n - 1)} of them in rows with ties)' in message
    assert f'{view.notes[0][:-1]} (hatched).' in message
    grid = grid_of(page)
    wide, high = (grid[k][1] - grid[k][0] for k in ('left', 'top'))
    def at_the_middle_and_beside_it(): # a line of the hatching goes through a cell's middle, from corner to corner
        middle = np.array(middles(grid), float)
        places = (middle + [-.25*wide, -.25*high], middle + [-.25*wide, .05*high])
        return [np.array(pixel_numbers(page, '.sv-map canvas', place)).reshape(n, n) for place in places]
    line, beside = at_the_middle_and_beside_it()
    assert (line[1:] != beside[1:]).all() and (line[0] == beside[0]).all(), 'rows that are tied are hatched, no others'
    cells = hover_all(page)
    assert 'tied with all other keys of its row' in cells[n + 2] and ' of 8' in cells[2] and 'tied' not in cells[2]
    page.evaluate('app.state.set({entry: {kind: "head", layer: 0, head: 0}})'); settled(page)
    assert 'Ties' not in page.text_content('.sv-map') and not discard_region(s, 0, 0).notes

def test_of_the_largest_keys_of_a_row_none_is_shown_before_its_equals(page):
    load(page, 'tokenmap.js')
    rows = [[.25, .25, .25, .25], [.5, .2, .2, .1], [.9, 0, 0, .1], [0, 0, 0, 0]]
    stored, tied = evaluate_json(page, """([rows, top]) => {
        const values = Float32Array.from(rows.flat()), kept = sv.strongestValues(values, 4, {top, threshold: 0});
        return [[...kept].map(v => Number.isFinite(v)), sv.tiedAtTop(kept, 4, {top})]; }""", [rows, 2])
    assert np.array(stored).reshape(4, 4).tolist() == [[True]*4, [True, True, True, False], [True, False, False, True],
                                                     [False]*4]
    assert tied == 2

def test_two_steps_and_two_runs_are_compared_on_the_same_sentence(page):
    a, b, other = [invented(0), invented(5)], [invented(5, seed=50)], [invented(5, labels=['[CLS]', 'else', '[SEP]'])]
    show(page, a, b, other, state=dict(overlays=plain, tab='compare'), panels=['compare'])
    load_tables(page)
    n, colours, value = len(words), np.array(table(page,
                                                   'signed')), lambda s: _cube_value(
        _cube_code(s.arrays['attention'][0, 0])).astype(float)
    assert 'Choose another run' in page.text_content('.sv-compare .sv-note')
    runs = page.query_selector('.sv-compare select')
    def shows(A, B):
        difference = value(B) - value(A)
        got = np.array(pixel_numbers(page, '.sv-compare canvas',
                                     middles(grid_of(page, '.sv-compare canvas', 2)))).reshape(n, n)
        return (got == colours[signed_place(difference, np.abs(difference).max())]).mean() > .96
    for run, step, A, B in (('0', '0', *a), ('1', '5', a[1], b[0])): # in one run, B is the later step
        runs.select_option(run); settled(page)
        page.select_option('.sv-compare label:has-text("at step") select', step); settled(page)
        assert shows(A, B)
        for k, message in enumerate(hover_all(page, '.sv-compare', 1)):
            shown, step_ = map(number, re.search(r'B − A (\S+) ± (\S+)', message).groups())
            exact = (B.arrays['attention'] - A.arrays['attention'])[0, 0][divmod(k, n)]
            assert abs(shown - exact) <= step_*1.0001
    for view, default in ((0, 5), (5, 0)): # by default the end of the run, or its beginning if the end is in view
        runs.select_option(''); page.evaluate('step => app.state.set({step})', view); settled(page)
        runs.select_option('0'); settled(page)
        assert page.evaluate('app.state.compare.step') == default and shows(*a)
    runs.select_option('2'); settled(page)
    assert 'no probe example with this sentence' in page.text_content('.sv-compare .sv-note')
    assert page.is_hidden('.sv-compare canvas')

@pytest.mark.slow
def test_a_uniform_head_is_not_a_dark_block_in_the_grid(page):
    n = len(words)
    runs = [[invented(step)] for step in (0, 5)]
    for run in runs: run[0].arrays['attention'] = np.full_like(run[0].arrays['attention'], 1/n)
    show(page, *runs, state=dict(overlays=plain, tab='compare', scale='map', compare=dict(run=1, step=5)),
         panels=['triptych', 'compare'])
    load_tables(page)
    even = table(page, 'cividis')[int(place_of(_cube_value(_cube_code(np.full(1, 1/n, np.float32)))[0], 4/n))]
    for panel in ('compare', 'triptych'):
        page.evaluate('tab => app.state.set({tab})', panel); settled(page)
        assert set(pixel_numbers(page, f'.sv-{panel} canvas',
                                 middles(grid_of(page, f'.sv-{panel} canvas', 0)))) == {even}

# ---- missing, long, hostile and dark

@pytest.mark.slow
def test_missing_evidence_is_a_sentence_and_no_error(page):
    s = invented(arrays=dict(attention_attribution=None, attribution_ranks=None, discard_candidates=None,
                             discarded=None, saliency=None))
    show(page, [s], [invented()], state=dict(entry=dict(kind='head', layer=7, head=0), what='attribution'),
         panels=['heads', 'map', 'triptych', 'compare'])
    for tab in ('map', 'triptych', 'compare'):
        page.evaluate('tab => app.state.set({tab})', tab); settled(page)
        assert len(page.text_content(f'.sv-{tab} .sv-note')) > 20
    assert 'No attention attribution was recorded' in page.text_content('.sv-heads .sv-note')
    page.evaluate('app.state.set({entry: {kind: "head", layer: 0, head: 0}, what: "attention"})')
    for tab in ('map', 'triptych', 'compare'):
        page.evaluate('tab => app.state.set({tab, probe: 9})', tab); settled(page)
    show(page, [s], panels=['heads', 'map'])
    page.evaluate('app.store.dropFrame(0, 0, 0)'); settled(page)
    assert page.text_content('.sv-map .sv-note') and page.is_hidden('.sv-map canvas')

@pytest.mark.slow
def test_long_sentences_show_thumbnails_and_ask_once_for_the_whole_map(page):
    labels = ['[CLS]', *[f'w{i}' for i in range(198)], '[SEP]']
    s = invented(labels=labels, layers=1)
    entry = dict(kind='head', layer=0, head=0)
    mount(page, meta([[s]]), [pack_frame(s, full=[(0, 1)])], state=dict(entry=entry), panels=['heads', 'map'])
    assert 'each cell covers 4 × 4 positions' in page.text_content('.sv-heads .sv-note')
    assert 'mean of 4 × 4' in page.text_content('.sv-map .sv-note')
    query = page.evaluate('asked')
    assert query == [dict(kind='map', run=0, probe=0, step=0, layer=0, head=0)]
    page.evaluate('app.state.set({palette: "grey"})'); settled(page); assert page.evaluate('asked.length') == 1
    mean = s.arrays['attention'][0, 0].astype(float).reshape(50, 4, 50, 4).mean((1, 3))
    for k in (0, 51, 1234):
        assert abs(number(re.search(r'mean (\S+) ±', hover_all(page)[k])[1]) - mean[divmod(k, 50)]) < 2e-3
    page.evaluate('bytes => app.store.addFrame(new Uint8Array(bytes))', list(pack_frame(s, full=[(0, 0)])))
    settled(page)
    assert page.is_hidden('.sv-map .sv-note')
    assert page.eval_on_selector('.sv-map canvas', 'c => c.salviz.grid.columns.count') == 200

@pytest.mark.slow
@pytest.mark.parametrize('panel', ['map', 'triptych', 'compare'])
def test_hostile_tokens_stay_text(page, panel):
    show(page, [invented(labels=hostile), invented(5, labels=hostile)],
         state=dict(tab=panel, row=1, tokens=[1, 2, 9], compare=dict(run=0, step=0)), panels=['heads', panel])
    box = page.query_selector(f'.sv-{panel} canvas').bounding_box()
    for x in range(4, int(box['width']), 25):
        for y in (8, 60, 130, 220, 300): page.mouse.move(box['x'] + x, box['y'] + min(y, box['height'] - 2))
    page.focus(f'.sv-{panel} canvas')
    for key in ['ArrowDown', 'ArrowRight']*9 + ['Enter']: page.keyboard.press(key)
    settled(page)
    assert page.evaluate('window.hacked') is None
    assert page.query_selector_all('.salviz img, .salviz script, .salviz iframe, .salviz a') == []
    assert page.evaluate('document.documentElement.scrollWidth') <= 1300

def test_labels_never_overlap_and_long_ones_are_cut(page):
    load_tables(page)
    found = page.evaluate('''labels => {
        const context = document.createElement('canvas').getContext('2d'), inks = {font: '11px sans-serif',
            bold: 'bold 11px sans-serif', small: '10px sans-serif'};
        const units = labels.map(label => ({label, special: false})), out = [];
        for (const width of [40, 120, 300, 900]) {
            const axis = {count: labels.length, from: 0, span: labels.length}, grid = new sv.CellGrid({x: 50, y: 50,
                width, height: width, columns: axis, rows: axis, ratio: 1});
            for (const draw of [sv.columnLabels, sv.rowLabels]) {
                const placed = draw(context, grid, units, {x: 50, y: 50, space: 60, inks, marked: new Set([3, 4])});
                out.push({pitch: grid.pitch, places: placed.map(p => p.at),
                    widest: Math.max(...placed.map(p => context.measureText(p.text).width))});
            }
        }
        return out; }''', hostile)
    for o in found:
        assert o['places']
        assert all(b - a >= 11 for a, b in zip(sorted(o['places']), sorted(o['places'])[1:]))
        assert o['widest'] <= max(62, o['pitch'])

def test_on_small_cells_an_outline_is_thin_and_has_no_halo(page):
    load(page, 'overlays.js', 'canvas.js')
    inked = lambda pitch: page.evaluate('''pitch => {
        const canvas = Object.assign(document.createElement('canvas'), {width: 200, height: 200}),
            context = canvas.getContext('2d'), axis = {count: 5, from: 0, span: 5};
        const grid = new sv.CellGrid({x: 20, y: 20, width: 5 * pitch, height: 5 * pitch, columns: axis, rows: axis,
            ratio: 1});
        sv.drawRegion(context, grid, Uint8Array.from({length: 25}, (_, k) => Number(k === 12)), 'light');
        return context.getImageData(0, 0, 200, 200).data.filter((v, i) => i % 4 === 3 && v > 0).length; }''', pitch)
    assert 4*12 <= inked(12) <= 2*4*12 + 8 and inked(16) > 3*4*16

@pytest.mark.slow
@pytest.mark.parametrize('theme', ['light', 'dark'])
def test_overlays_and_labels_can_be_read_in_both_themes(page, theme):
    show(page, [invented()], panels=['heads', 'map'], theme=theme)
    load_tables(page)
    def luminance(rgb):
        c = np.array(rgb)/255
        return float(np.where(c <= .04045, c/12.92, ((c + .055)/1.055)**2.4) @ [.2126, .7152, .0722])
    def contrast(a, b):
        a, b = sorted((luminance(a), luminance(b)))
        return (b + .05)/(a + .05)
    rgb = lambda text: [int(text[i:i + 2], 16) for i in (1, 3, 5)]
    inks, over = page.evaluate('t => [sv.inksOf(document.querySelector(".sv-map"), t), sv.overlayInks(t)]', theme)
    for name in ('fg', 'muted', 'accent'): assert contrast(rgb(inks[name]), rgb(inks['raised'])) >= 4.5, name
    for palette in ('cividis', 'viridis', 'grey', 'signed'):
        for c in table(page, palette, theme):
            assert max(contrast([c & 255, c >> 8 & 255, c >> 16 & 255], rgb(over[o])) for o in ('ink', 'halo')) >= 4.5

# ---- speed

@pytest.mark.slow
def test_frame_time_of_144_heads_at_128_tokens_is_printed(page):
    n = 128; labels = ['[CLS]', *[f'w{i}' for i in range(n - 2)], '[SEP]']
    rng = np.random.default_rng(0)
    def big(step):
        return invented(step, labels=labels, layers=1, heads=1,
                        arrays=dict(attention=rng.dirichlet(np.ones(n)*.1, (12, 12, n)).astype(np.float32),
                        attention_attribution=None,
                        attribution_ranks=None, discard_candidates=None, discarded=None))
    show(page, [big(s) for s in (0, 1, 2, 3)], panels=['heads', 'map'])
    times = []
    for k in range(16):
        page.evaluate('step => app.state.set({step})', k % 4); settled(page)
        times.append(page.eval_on_selector('.sv-heads canvas', 'c => c.salviz.ms'))
    print(f'\nheads grid, 12 x 12 x 128 x 128: first {times[0]:.1f} ms, then median {np.median(times[4:]):.1f}, best '
          f'{min(times):.1f} ms of main thread a frame')
    assert page.eval_on_selector('.sv-heads canvas', 'c => c.salviz.tiles.length') == 144 + 12 + 12 + 1 + 1

@pytest.mark.slow
@pytest.mark.parametrize('panel', ['heads', 'map'])
def test_a_theme_that_changes_while_there_is_no_width_is_drawn_when_there_is(page, panel):
    "As in JupyterLab: there is no width for less than one frame"
    show(page, [invented()], state=dict(overlays=plain), panels=['heads', 'map'])
    picture = f"() => document.querySelector('.sv-{panel} canvas').toDataURL()"
    light = page.evaluate(picture)
    page.evaluate("""() => new Promise(done => {
        const el = document.getElementById('el');
        el.style.display = 'none';
        app.state.set({theme: 'dark'});
        requestAnimationFrame(() => { el.style.display = ''; done(); }); })""")
    page.wait_for_function(f"light => ({picture})() !== light", arg=light, timeout=5000)
    dark = page.evaluate(picture)
    show(page, [invented()], state=dict(overlays=plain), panels=['heads', 'map'], theme='dark')
    assert page.evaluate(picture) == dark

# Record each horizontal text that a canvas draws, with its box; clearing a canvas removes its texts.
notes_texts = '''() => {
    const context = CanvasRenderingContext2D.prototype, {fillText, clearRect} = context;
    context.clearRect = function (...box) { this.canvas.texts = []; return clearRect.apply(this, box); };
    context.fillText = function (text, x, y, most = Infinity) {
        const size = this.measureText(text), width = Math.min(size.width, most), {a, b, d, e, f} = this.getTransform();
        const left = x - width * ({center: .5, right: 1}[this.textAlign] ?? 0);
        const box = [a * left + e, d * (y - size.actualBoundingBoxAscent) + f,
            a * (left + width) + e, d * (y + size.actualBoundingBoxDescent) + f];
        if (b === 0 && String(text).trim()) (this.canvas.texts ??= []).push({text: String(text), box});
        return fillText.call(this, text, x, y, ...most < Infinity ? [most] : []);
    };
}'''
overlapping = '''() => [...document.querySelectorAll('.sv-panel:not([hidden]) canvas')].flatMap(canvas => {
    const {texts = [], width} = canvas;
    const beyond = texts.filter(({box}) => box[0] < -1 || box[2] > width + 1);
    const pairs = texts.flatMap((a, i) => texts.slice(i + 1).map(b => [a, b]));
    const over = ([{box: a}, {box: b}]) => Math.min(a[2], b[2]) - Math.max(a[0], b[0]) > 1
        && Math.min(a[3], b[3]) - Math.max(a[1], b[1]) > 1;
    const overlaps = pairs.filter(over).map(pair => pair.map(({text}) => text).join(' | '));
    return [...beyond.map(({text}) => text), ...overlaps];
})'''

@pytest.mark.sample(1)
@pytest.mark.parametrize('width', [290, 360]) # in a lesson on a phone, and alone on a phone
@pytest.mark.parametrize('tab', ['map', 'triptych', 'compare'])
def test_no_text_on_a_canvas_is_cut_off_or_overlaps_another(page, tab, width):
    page.set_viewport_size(dict(width=width, height=900))
    page.evaluate(notes_texts)
    runs = [[invented(step, layers=6, heads=12)] for step in (0, 10)]
    show(page, *runs, state=dict(tab=tab, compare=dict(run=1, step=None)))
    settled(page)
    shown = page.evaluate('() => [...document.querySelectorAll("canvas")].flatMap(({texts = []}) => texts).length')
    assert shown > 10 and page.evaluate(overlapping) == []

# --- the exported image, focus and touch

def captured(page):
    "Return the texts of the exported image and the label of the canvas in it"
    load(page, 'exportview.js')
    return page.evaluate("""() => {
        const of = CanvasRenderingContext2D.prototype, {fillText, drawImage} = of, texts = [];
        let drawn = null;
        of.fillText = text => texts.push(text);
        of.drawImage = canvas => { drawn = canvas.getAttribute('aria-label'); };
        sv.viewPicture({store: window.store, state: window.app.state}, document.querySelector('.salviz'));
        Object.assign(of, {fillText, drawImage});
        return [texts.join(' '), drawn]; }""")

@pytest.mark.slow
def test_the_exported_image_is_the_what_if_map_with_its_caption(page):
    show(page, [invented()], state=dict(tab='whatif', whatIf=dict(p=.7, q=.9)))
    caption, drawn = captured(page)
    assert drawn.startswith('What-if, layer 0, head 0') and 'attention of' not in caption
    assert 'what-if map (AD-DROP: discard region and random draw) of layer 0, head 0' in caption
    assert 'Recomputed in the browser with p = 0.7, q = 0.9; not recorded.' in caption
    page.evaluate('app.state.set({tab: "compare", compare: {run: 0, step: 0}})'); settled(page)
    assert 'what-if' not in captured(page)[0]
    page.evaluate('app.state.set({tab: "map"})'); settled(page)
    assert 'Overlays drawn with what-if settings (p = 0.7, q = 0.9); not recorded.' in captured(page)[0]

@pytest.mark.slow
def test_an_image_has_no_second_line_in_its_caption(page):
    show(page, [Snapshot(**{**vars(invented()), 'texts': []})], panels=['heads', 'map'])
    assert '∅' not in captured(page)[0]

@pytest.mark.slow
def test_the_focus_stays_in_the_explorer_when_a_button_disappears(page):
    show(page, [invented()], state=dict(row=3, whatIf=dict(p=.7)))
    for button in ('.sv-clear', '.sv-banner button'):
        page.focus(button); page.keyboard.press('Enter'); settled(page)
        assert page.is_hidden(button) and page.evaluate('document.activeElement.closest(".salviz") !== null')

@pytest.mark.slow
def test_a_tap_shows_the_value_of_a_cell(browser):
    page = new_page(browser, has_touch=True)
    show(page, [invented(), invented(10)], state=dict(compare=dict(run=0, step=0)))
    for tab in ('map', 'triptych', 'compare'):
        page.evaluate('tab => app.state.set({tab})', tab); settled(page)
        page.locator(f'.sv-{tab} canvas').first.scroll_into_view_if_needed()
        box = page.locator(f'.sv-{tab} canvas').first.bounding_box()
        x, y = page.eval_on_selector(f'.sv-{tab} canvas', """c => {
            const {x, y, width, height} = (c.salviz.grid ?? c.salviz.grids[0]).box(1, 2);
            return [x + width / 2, y + height / 2]; }""")
        page.touchscreen.tap(box['x'] + x, box['y'] + y); settled(page)
        assert '→' in page.text_content(f'.sv-{tab} .sv-tip'), tab
    page.close()

@pytest.mark.slow
def test_differences_within_the_rounding_of_stored_values_are_none(page):
    a = invented()
    attention = a.arrays['attention'].astype(np.float64)
    b = invented(10, arrays=dict(attention=(attention*(1 + 2e-3)).astype(np.float32)))
    show(page, [a, b], state=dict(tab='compare', compare=dict(run=0, step=0)), panels=['compare'])
    for kind in ('head', 'rollout'):
        page.evaluate('kind => app.state.set({entry: {kind, layer: 0, head: 0}})', kind); settled(page)
        words = page.text_content('.sv-compare .sv-words')
        assert words == 'All differences are within the rounding of the stored values.', kind

@pytest.mark.slow
def test_a_run_is_compared_neither_with_itself_at_one_step_nor_without_values(page):
    a = invented()
    lost = invented(10, arrays=dict(attention=np.full_like(a.arrays['attention'], np.nan)))
    show(page, [a, lost], [invented(0, seed=50)], state=dict(tab='compare', compare=dict(run=0, step=0)),
         panels=['compare'])
    def words(part): return page.text_content(f'.sv-compare .sv-{part}')
    assert words('words') == 'A or B has no finite values here.'
    page.evaluate('app.state.set({step: 0})'); settled(page)
    assert 'Choose another step of this run' in words('note') and page.is_hidden('.sv-compare canvas')
    page.evaluate('app.state.set({compare: {run: 1, step: null}, run: 1})'); settled(page)
    assert page.input_value('.sv-compare select') == '0' # not run 1 with itself

@pytest.mark.slow
def test_weights_that_are_almost_0_are_not_among_the_largest(page):
    attention = np.zeros((2, 3, len(words), len(words)), np.float32)
    attention[..., 0], attention[..., 1:] = 1 - 1e-8, np.arange(1, len(words))*1e-9
    show(page, [invented(arrays=dict(attention=attention))], state=dict(top=2), panels=['map'])
    assert 'Ties' not in page.text_content('.sv-map')

def overlap(a, b): return min(a[2], b[2]) > max(a[0], b[0]) and min(a[3], b[3]) > max(a[1], b[1])

@pytest.mark.slow
@pytest.mark.parametrize('layers, heads, width', [(2, 2, 1280), (1, 2, 1280), (1, 1, 1280), (2, 12, 420)])
def test_labels_of_the_head_grid_do_not_overlap(browser, layers, heads, width):
    page = new_page(browser, viewport=dict(width=width, height=800))
    page.evaluate("""() => {
        const of = CanvasRenderingContext2D.prototype, {fillText} = of;
        window.texts = [];
        of.fillText = function(text, x, y, ...more) {
            const {a, b, e, f} = this.getTransform(), ratio = devicePixelRatio, size = this.measureText(text);
            if (!b) window.texts.push([this.canvas, text, e / ratio + x - size.actualBoundingBoxLeft,
                f / ratio + y - size.actualBoundingBoxAscent, e / ratio + x + size.actualBoundingBoxRight,
                f / ratio + y + size.actualBoundingBoxDescent]);
            return fillText.call(this, text, x, y, ...more); } }""")
    show(page, [invented(layers=layers, heads=heads, labels=words[:4])], state=dict(scale='map'))
    page.evaluate('() => { window.texts.length = 0; app.state.set({palette: "grey"}); }'); settled(page)
    texts = list({(str(t), *at) for t, *at in page.evaluate("""() => window.texts
        .filter(t => t[0] === document.querySelector('.sv-heads canvas')).map(t => t.slice(1))""")}) # drawn twice
    assert {'mean', 'rollout', str(heads - 1)} <= {t[0] for t in texts}
    assert [(a[0], b[0]) for i, a in enumerate(texts) for b in texts[:i] if overlap(a[1:], b[1:])] == []
    page.close()

@pytest.mark.slow
def test_tabs_wrap_in_a_narrow_explorer(browser):
    page = new_page(browser, viewport=dict(width=320, height=800))
    show(page, [invented()])
    assert page.evaluate('document.documentElement.scrollWidth <= document.documentElement.clientWidth')
    page.close()
