"""Views of snapshots: the numbers of every map, sentence and pair, and their drawings, equal those of the snapshot;
legible in print"""
import io
import re
import warnings
from itertools import product

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.text import Text
from scipy.stats import rankdata

import invented
import salviz.figures.maps
from overlap import check_legible
from PIL import Image
from salviz.figures.drawing import _drawn, bodies, drawable_view, lightness, rendered, sequential, signed, signed_scale
from salviz.explorer.static_images import Selection, picture
from salviz.core.snapshots import Snapshot
from salviz.core.runs import Run
from salviz.views.maps import (_units_of, attention_map, chosen_map, coloured_sentences, compared, evolution, head_grid,
                               masked_pairs, pattern_residual, same_scale, telling_entry, triptych)
from salviz.views.base import guided_heads, masked_sentence, scored_sentence
from invented import invent

kinds = dict(map=lambda s: attention_map(s, overlays=['candidates', 'discarded', 'saliency']),
             attribution=lambda s: attention_map(s, what='attribution'),
             several=lambda s: attention_map(s, 0, [0, 2, 3], words=True),
             rollout=lambda s: attention_map(s, head='rollout'), triptych=triptych,
             saliency=lambda s: triptych(s, beside='saliency', words=True, special=False), residual=pattern_residual,
             compared=lambda s: compared(s, s, 1, 0, names=['one', 'two']),
             steps=lambda s: evolution([s]*7), grid=head_grid,
             own_grid=lambda s: head_grid(s, 'attribution', scale='own'),
             sentences=lambda s: coloured_sentences([s, s]),
             tokens=lambda s: coloured_sentences(s, words=False), pairs=lambda s: masked_pairs([s, s]))


def draw(view, width=6.75):
    "Return the figure of `view`, as `figure` draws it"
    view = drawable_view(view)
    return _drawn(view, bodies[type(view)](view, width), width)


def by_hand(values, word_ids):
    """Return a map between words and special tokens, in loops: the sum over the attended pieces, the mean over the
    attending ones"""
    units = []
    for i, w in enumerate(word_ids):
        if w >= 0 and units and word_ids[i - 1] == w: units[-1].append(i)
        else: units.append([i])
    return np.array([[sum(values[q, k] for q, k in product(rows, columns))/len(rows) for columns in units]
                     for rows in units]), units


@pytest.mark.parametrize('what, name', [('attention', 'attention'), ('attribution', 'attention_attribution'),
                                        ('target', 'pattern_target')])
def test_a_map_of_words_sums_what_is_looked_at_and_averages_who_looks(what, name):
    snap = invent(17, layers=3, heads=5)
    view = attention_map(snap, 1, 3, what, words=True)
    expected, units = by_hand(snap.arrays[name][1, 3], snap.word_ids)
    assert np.allclose(view.values[0], expected) and len(view.labels) == len(units) and 'unforgettable' in view.labels
    assert attention_map(snap, 1, 3, what, words=True, special=False).values[0] == pytest.approx(expected[1:-1, 1:-1])
    for name, region in (('candidates', 'discard_candidates'), ('discarded', 'discarded')):
        cells = snap.arrays[region][1, 3]
        assert getattr(view, name)[0].tolist() == [[any(cells[q, k] for q, k in product(a, b)) for b in units]
                                                   for a in units]
    if what == 'attention': assert view.values[0].sum(-1) == pytest.approx(np.ones(len(units)))


@pytest.mark.parametrize('layer, head',
                         [(2, 3), (-1, 0), (1, 'mean'), ('mean', 2), ('mean', 'mean'), (None, 'rollout')])
def test_a_place_names_one_map_of_the_snapshot(layer, head):
    snap = invent(9, layers=3, heads=4)
    A, n = snap.arrays['attention'], 9
    if head == 'rollout':
        expected = np.eye(n)
        for layer_map in A: expected = (.5*sum(layer_map)/4 + .5*np.eye(n)) @ expected
    else:
        layers, heads = range(3) if layer == 'mean' else [layer], range(4) if head == 'mean' else [head]
        expected = np.mean([A[l, h] for l, h in product(layers, heads)], axis=0)
    assert np.allclose(attention_map(snap, layer, head).values[0], expected)


def test_layers_are_the_models_and_a_head_is_chosen_as_in_the_explorer():
    snap = invent(9, layers=2, heads=4)
    snap.layers = {k: [4, 5] for k in snap.layers}
    assert np.array_equal(attention_map(snap, 5, 1).values[0], snap.arrays['attention'][1, 1])
    guided, residual = snap.arrays['guided'], ((snap.arrays['attention'] - snap.arrays['pattern_target'])**2).mean(
        (-1, -2))
    closest = min((4, 5), key=lambda l: residual[l - 4][guided[l - 4]].mean())
    assert guided_heads(snap).layer == closest == 5
    opened = telling_entry(snap) # see test_opened_head.py
    assert chosen_map(snap)[2:4] == (opened['layer'], opened['head'])
    assert chosen_map(snap, 5).head == telling_entry(snap, [5])['head']
    head = f'head {opened["head"]}'
    assert pattern_residual(snap).title == attention_map(snap).title.replace(head, f'{head}, pattern next')
    assert 'layer 5, mean over heads' in attention_map(snap, None, 'mean').title   # the last one


@pytest.mark.parametrize('place', [dict(layer=1, head=0), dict(layer='mean', head='mean'), dict(head='rollout'),
                                   dict(layer=1, head='mean', words=True)])
def test_what_a_causal_model_may_not_attend_to_has_no_colour(place):
    snap = invent(8, layers=2, heads=3, kind='causal', drop=('discard_candidates', 'discarded'))
    for view in (attention_map(snap, **place), triptych(snap, **place), compared(snap, snap, **place)):
        n = len(view.labels)
        assert all(np.array_equal(np.isnan(o), np.triu(np.ones((n, n)), 1) > 0)
                   for o in view.values[:2 if view.names[1:2] != ('|saliency|',) else 1])


def test_the_triptych_compares_ranks_where_there_is_attribution_and_shares_where_there_is_saliency():
    snap = invent(10, layers=2, heads=3, kind='causal', drop=('discard_candidates', 'discarded'))
    view = triptych(snap, 0, 1)
    for q in range(10):
        a, b = (snap.arrays[k][0, 1, q, :q + 1] for k in ('attention', 'attention_attribution'))
        place = lambda x: (rankdata(x) - 1)/q if q else np.array([.5])
        assert view.values[2][q, :q + 1] == pytest.approx(place(a) - place(b))
    assert np.array_equal(view.values[1][:, 0], snap.arrays['attention_attribution'][0, 1, :, 0])
    assert view.kinds == ('share', 'signed', 'signed')
    view, s = triptych(invent(10, layers=2, heads=3), 0, 1,
                       beside='saliency'), np.abs(invent(10, layers=2, heads=3).arrays['saliency'])
    A = invent(10, layers=2, heads=3).arrays['attention'][0, 1]
    for q, k in product(range(10), range(1, 9)):
        assert view.values[2][q, k] == pytest.approx(A[q, k]/sum(A[q, 1:9]) - s[k]/sum(s[1:9]))
    assert np.isnan(view.values[2][:, [0, 9]]).all() and view.kinds == ('share', 'share', 'signed')
    assert view.agreement == pytest.approx(np.corrcoef(rankdata(A[0, 1:9]), rankdata(s[1:9]))[0, 1])


def test_without_a_pooled_row_the_triptychs_number_is_of_the_mean_over_rows():
    snap = invent(10, layers=2, heads=3)
    del snap.info['pooled_row']
    A, s = snap.arrays['attention'][0, 1].mean(0)[1:9], np.abs(snap.arrays['saliency'])[1:9]
    view = triptych(snap, 0, 1, beside='saliency')
    assert view.agreement == pytest.approx(np.corrcoef(rankdata(A), rankdata(s))[0, 1])
    assert 'of the mean row' in view.subtitle


def test_the_residual_is_attention_minus_target_on_a_symmetrical_scale():
    snap = invent(10, layers=2, heads=4)
    view, A, P = pattern_residual(snap, 1, 1), snap.arrays['attention'][1, 1], snap.arrays['pattern_target'][1, 1]
    assert np.allclose(view.values, [P, A, A - P]) and view.pattern == 'prev' and view.limits[0] == view.limits[1]
    assert view.residual == pytest.approx(np.mean([(A[q, k] - P[q, k])**2 for q, k in product(range(10), repeat=2)]))
    assert view.limits[2] == pytest.approx(np.abs(A - P).max())
    assert view.fraction == pytest.approx(np.mean([A[q, q - 1] for q in range(1, 10)]))
    assert f'{view.fraction:.0%}' in view.subtitle and f'{view.residual:.4f}' in view.subtitle


def test_the_comparison_is_b_minus_a_on_one_scale_and_says_how_much_moved():
    a, b = (invent(10, layers=2, heads=3, seed=i) for i in (0, 1))
    view, (A, B) = compared(a, b, 1, 2, names=['plain', 'guided']), [s.arrays['attention'][1, 2] for s in (a, b)]
    assert np.allclose(view.values, [A, B, B - A])
    assert view.names == ('A: plain', 'B: guided', 'B − A')
    assert view.limits[0] == view.limits[1] == max(A.max(), B.max())
    assert view.moved == pytest.approx(np.mean([sum(max(B[q, k] - A[q, k], 0) for k in range(10)) for q in range(10)]))
    assert np.isnan(compared(a, b, 1, 2, 'attribution').moved)
    assert 'compare patterns, not sizes' in compared(a, b, 1, 2, 'attribution').caption


def test_steps_share_one_scale_and_too_many_are_thinned_visibly(tmp_path):
    run = invented.run(tmp_path/'run', steps=range(0, 200, 10), layers=2, heads=3)
    view = evolution(run, probe=1, layer=1, head=2, most=5)
    assert view.steps[0] == 0
    assert view.steps[-1] == 190
    assert len(view.steps) == 5
    assert set(np.diff(view.steps)) <= {40, 50}
    assert '5 of 20 recorded steps are shown.' in view.notes
    for step, values in zip(view.steps, view.values):
        assert np.array_equal(values, run.snapshot(step, 1).arrays['attention'][1, 2].astype(float))
    assert view.limits == (max(v.max() for v in view.values),)*5
    assert evolution(run, steps=[30, 10, -1]).steps == (30, 10, 190) and not evolution(run, steps=[30, 10, -1]).notes
    for kw, said in ((dict(steps=[5]), r'no step 5 of probe 0 in run; available: 0, 10'),
                     (dict(probe=7), 'no probe 7 in run; available: 0, 1')):
        with pytest.raises(KeyError, match=said): evolution(run, **kw)
    with pytest.raises(ValueError, match='step 190, probe 0 has no attention_attribution; available: attention'):
        evolution(run, what='attribution')
    with pytest.raises(ValueError, match='most must be an integer of at least 2'): evolution(run, most=1)


def test_steps_without_the_evidence_are_passed_over_and_counted():
    snaps = [invented.snapshot(step, method='ADDrop' if step % 20 else 'FineTuning') for step in range(0, 80, 10)]
    view = evolution(snaps, layer=0, head=0, what='attribution')
    assert view.steps == (10, 30, 50, 70)
    assert '4 recorded steps have no attention attribution and are skipped.' in view.notes
    assert np.allclose(view.values, [s.arrays['attention_attribution'][0, 0] for s in snaps[1::2]])


def test_the_grid_holds_every_heads_numbers_on_one_scale_or_each_on_its_own():
    snap = invent(20, layers=6, heads=12)
    view, A = head_grid(snap, layers=[5, 0], heads=[3, 7]), snap.arrays['attention']
    assert np.array_equal(view.maps, A[[5, 0]][:, [3, 7]])
    assert view.layers == (5, 0)
    assert view.heads == (3, 7)
    assert view.limit == A[[5, 0]][:, [3, 7]].max()
    own = head_grid(snap, 'attribution', scale='own')
    for l, h in product(range(6), range(12)): assert np.abs(own.maps[l, h]).max() == pytest.approx(1)
    assert np.array_equal(view.guided, snap.arrays['guided'][[5, 0]][:, [3, 7]])
    long = head_grid(invent(80, layers=1, heads=2))
    assert long.maps.shape == (1, 2, 48, 48)
    assert '80 tokens; each cell is the mean over a block, with 48 cells per side.' in long.notes
    assert long.maps.mean() == pytest.approx(1/80, rel=.1)


def test_sentences_are_coloured_by_their_words_on_one_scale():
    snaps = [invent(n, seed=n) for n in (9, 14)]
    view = coloured_sentences(snaps)
    expected = [np.nan if not len(i) else sum(s.arrays['saliency'][k] for k in i) for s in snaps
                for i in [[], *([p for p in range(len(s.tokens)) if s.word_ids[p] == w] for w in range(len(s.words))),
                          []]]
    assert view.values == pytest.approx(expected, nan_ok=True)
    assert view.limit == pytest.approx(np.nanmax(np.abs(expected)))
    assert [int((view.sentence == k).sum()) for k in (0, 1)] == [len(s.words) + 2 for s in snaps]
    pieces = coloured_sentences(snaps[1], words=False)
    assert [l for l, c in zip(pieces.labels, pieces.continues) if c] == [o.removeprefix('##') for o in snaps[1].tokens
                                                                         if o.startswith('##')]
    assert np.array_equal(pieces.values[1:-1], snaps[1].arrays['saliency'][1:-1])
    assert np.isnan(pieces.values[[0, -1]]).all()
    method = coloured_sentences(snaps, evidence='method_saliency', limit=3, names=['a', None])
    assert method.limit == 3
    assert method.names == ('a', None)
    assert method.values[1] == pytest.approx(snaps[0].arrays['method_saliency'][1])


def test_pairs_hold_what_the_masked_sentences_hold_on_one_scale():
    snaps = [invent(n, seed=n) for n in (9, 14)]
    view, single = masked_pairs(snaps), [masked_sentence(s) for s in snaps]
    for name in ('labels', 'masked_labels', 'sources', 'is_replaced', 'saliency'):
        assert [str(x) for o in single for x in getattr(o, name)] == [str(x) for x in getattr(view, name)]
    assert view.limit == max(o.limit for o in single) and view.divergences.tolist() == [o.divergence for o in single]
    assert f'KL = {single[0].divergence:.2g}' in view.names[0] and 'f(X): positive (0.55)' in view.names[0]


def test_an_encoder_of_translations_and_two_methods_together_have_their_maps():
    snap = invented.translated()
    assert np.array_equal(attention_map(snap, 1, 2).values[0], snap.arrays['attention'][1, 2])
    assert triptych(snap).names[1].startswith('|saliency') and head_grid(snap).maps.shape == (2, 3, 5, 5)
    both = invented.both()
    assert np.array_equal(attention_map(both, 1, 2).discarded[0], both.arrays['discarded'][1, 2])
    assert pattern_residual(both).pattern == 'diagonal'
    check_legible(draw(attention_map(both, 1, 2)))


def test_several_views_can_share_their_scales():
    a, b = attention_map(invent(8), 0, 0), triptych(invent(12), 0, 5)
    limits = dict(zip(b.units, b.limits))
    first, second = same_scale([a, b])
    assert first.limits[0] == second.limits[0] == max(a.limits[0], limits['attention'])
    assert second.limits[1:] == b.limits[1:]


# --- errors

@pytest.mark.parametrize('make, said', [
    (lambda s: attention_map(s, 9, 0), 'attention_map: layer=9 was not recorded for attention; available: 0, 1'),
    (lambda s: attention_map(s, 0, 4), 'attention_map: head=4 does not exist; available: 0 to 3'),
    (lambda s: attention_map(s, 0, []), r'attention_map: head=\[\] is empty'),
    (lambda s: attention_map(s, 'last', 0), "layer must be a number, 'mean' or None, got 'last'"),
    (lambda s: attention_map(s, 0, 'rollout'), 'rollout uses all recorded layers; omit layer=0'),
    (lambda s: attention_map(s, 0, 0, 'gradient'),
     "what must be one of 'attention', 'attribution', 'target', got 'gradient'"),
    (lambda s: attention_map(s, 0, 0, overlays=['crosses']),
     "overlays must be among 'candidates', 'discarded', 'saliency', got 'crosses'"),
    (lambda s: pattern_residual(s, 0, 3), 'layer 0, head 3 is not guided; guided heads of layer 0: 0, 1'),
    (lambda s: triptych(s, beside='gradient'), "beside must be 'attribution', 'saliency' or None, got 'gradient'"),
    (lambda s: compared(s, invent(9)),
     r'compared: the tokens of step 120, probe 3 \(9 tokens\) differ from those of step 120, probe 3 \(8 tokens\)'),
    (lambda s: compared(s, s, names='ab'), 'names must contain one name for each of 2 sides, got 1'),
    (lambda s: evolution([]), 'evolution: no snapshots to show'),
    (lambda s: head_grid(s, scale='row'), "head_grid: scale must be 'shared' or 'own', got 'row'"),
    (lambda s: head_grid(s, layers=[]),
     'layers and heads must contain at least one number each; available: layers 0, 1, heads 0 to 3'),
    (lambda s: coloured_sentences([]), 'coloured_sentences: no snapshots or .labels, values. pairs to show'),
    (lambda s: coloured_sentences(s, names=['a', 'b']), 'names must contain one name for each of 1 sentences, got 2'),
    (lambda s: coloured_sentences(s, limit=0), 'limit must be a positive number'),
    (lambda s: coloured_sentences(s, evidence='probabilities'),
     'probabilities must have one number for each of 8 tokens'),
    (lambda s: masked_pairs([]), 'masked_pairs: no snapshots of saliency guided training to show')])
def test_what_cannot_be_shown_is_refused_in_a_sentence(make, said):
    with pytest.raises(ValueError, match=said): make(invent(8, layers=2, heads=4))


@pytest.mark.parametrize('make', [attention_map, triptych, head_grid, coloured_sentences, pattern_residual,
                                  masked_pairs, lambda s: compared(s, s), lambda s: evolution([s])])
def test_a_signal_and_a_snapshot_without_the_evidence_name_what_there_is(make):
    with pytest.raises(ValueError, match='has no .*available: input'): make(invented.image())
    with pytest.raises(ValueError, match='has no .*available: probabilities'):
        make(invent(8, drop=set(invent(8).arrays) - {'probabilities'}))


# --- figures

@pytest.mark.sample(1)
@pytest.mark.parametrize('width', [3.25, 6.75])
@pytest.mark.parametrize('kind', kinds)
def test_every_kind_is_legible_at_both_widths(kind, width):
    for n in ((5, 80) if kind != 'steps' else (12,)) if width < 5 else (30,):
        fig = draw(kinds[kind](invent(n, layers=2, heads=6)), width)
        check_legible(fig)
        assert fig.get_figheight() < 9.5, n


def images(fig):
    return [np.asarray(np.ma.filled(o.images[0].get_array().astype(float), np.nan)) for o in fig.axes if o.images]


@pytest.mark.sample(5)
@pytest.mark.parametrize('kind', ['map', 'attribution', 'several', 'triptych', 'residual', 'compared', 'steps'])
def test_drawn_maps_hold_the_views_numbers_in_the_scales_colours(kind):
    view = kinds[kind](invent(9, layers=2, heads=6))
    fig = draw(view)
    found = [o for o in images(fig) if o.shape == view.values[0].shape]
    assert np.array_equal(found, view.values, equal_nan=True)
    for ax, limit, k in zip([o for o in fig.axes if o.images and o.images[0].get_array().shape == view.values[0].shape],
                            view.limits, view.kinds):
        norm = ax.images[0].norm
        assert norm.vmax == limit
        assert norm.vmin == (-limit if k == 'signed' else 0)
        assert ax.images[0].cmap.name == (signed if k == 'signed' else sequential).name


def test_the_drawn_grid_holds_every_head_where_its_number_says():
    view = head_grid(invent(10, layers=3, heads=4))
    image, = [o for o in images(draw(view)) if o.size > 1000]
    for l, h in product(range(3), range(4)):
        assert np.array_equal(image[11*l:11*l + 10, 11*h:11*h + 10], view.maps[l, h])
    assert np.isnan(image[10::11]).all() and np.isnan(image[:, 10::11]).all()


def test_panels_with_one_scale_have_one_colour_bar_and_each_bar_a_unit():
    def said(view): return {re.sub(r'\s+', ' ', o.get_text()) for o in draw(view).findobj(Text)}
    assert {'attention (square-root scale)', 'attention − target'} <= said(pattern_residual(invent(9)))
    bars = [o for o in draw(evolution([invent(9)]*5)).axes if not o.images and o.get_xlabel()]
    assert [re.sub(r'\s+', ' ', o.get_xlabel()) for o in bars] == ['attention (square-root scale)']


@pytest.mark.parametrize('view', [lambda s: scored_sentence(s), lambda s: masked_pairs([s])])
def test_the_colour_bar_of_small_saliency_has_its_whole_label_on_the_page(view):
    snap = invent(method='SaliencyGuided', task='regression')
    snap.arrays['prediction'] = np.array([2.9])
    for name in ('saliency', 'method_saliency'): snap.arrays[name] = snap.arrays[name]*1e-6
    check_legible(draw(view(snap), 3.03))

def test_a_page_notes_what_is_omitted_to_save_space():
    snap = invent(80, layers=2, heads=12)
    notes = {o.get_text() for o in draw(attention_map(snap, 0, [0, 1, 2, 3, 4]), 3.25).texts}
    assert 'At this width, the cells are too small to draw the regions.' in notes
    assert any('only every 9th of the 80 tokens is labelled' in o for o in notes)
    assert any('With 12 heads, a map is' in o for o in {o.get_text() for o in draw(head_grid(snap), 3.25).texts})
    assert not any('heads, a map is' in o.get_text() for o in draw(head_grid(snap), 6.75).texts)


def test_boxes_of_a_sentence_have_the_colours_of_their_numbers_and_readable_letters():
    view = coloured_sentences([(['dark', 'light', 'none'], [1., -.1, np.nan])])
    fig = draw(view)
    ax = next(o for o in fig.axes if any(t.get_text() == 'dark' for t in o.texts))
    norm, cmap, _ = signed_scale(view.limit)
    assert [p.get_facecolor() for p in ax.patches] == [cmap(norm(v)) for v in (1., -.1)]
    colours = {t.get_text(): t.get_color() for t in ax.texts}
    assert colours['dark'] == 'white' and lightness(colours['light']) < .2 and len(ax.patches) == 2


@pytest.mark.slow
def test_hostile_tokens_are_drawn_literally_and_endless_ones_are_cut_visibly():
    tokens = ['[CLS]', '<img src=x>', '$x^2$', r'$\frac{', 'x'*10_000, 'a\nb', '[SEP]']
    snap = invent(tokens=tokens, layers=2, heads=4, masked_tokens=tokens)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for kind in ('map', 'triptych', 'grid', 'tokens', 'pairs'):
            fig = draw(kinds[kind](snap), 3.25)
            check_legible(fig)
            texts = ' '.join(o.get_text() for o in fig.findobj(Text))
            if kind != 'grid':
                assert '$x^2$' in texts
                assert 'xx…' in texts
                assert not any(o.get_parse_math() for o in fig.findobj(Text) if '$x' in o.get_text())
    assert _units_of(snap).labels[4] == 'x'*59 + '…'


@pytest.mark.slow
def test_values_that_are_not_finite_are_left_out_and_noted():
    snap = invent(9, layers=2, heads=4)
    snap.arrays['attention'] = snap.arrays['attention'].copy()
    snap.arrays['attention'][0, 0, 2, 3] = np.inf
    snap.arrays['saliency'][2] = np.nan
    for view in (attention_map(snap, 0, 0), triptych(snap, 0, 0), evolution([snap], layer=0, head=0), head_grid(snap),
                 coloured_sentences(snap)):
        assert any('1 non-finite values' in o for o in view.notes), type(view).__name__
        check_legible(draw(view))


@pytest.mark.sample(1)
@pytest.mark.parametrize('kind', ['map', 'triptych', 'grid', 'sentences', 'pairs'])
def test_the_same_view_is_the_same_bytes(kind):
    one, two = (rendered(draw(kinds[kind](invent(8, layers=2, heads=6))), 'svg') for _ in range(2))
    assert one == two and b'<svg' in one


# --- static images of the explorer are the same drawings

@pytest.mark.parametrize('panel, make',
                         [('map', lambda s, o: attention_map(s, 1, 2)), ('triptych', lambda s, o: triptych(s, 1, 2)),
                          ('compare', lambda s, o: compared(s, o, 1, 2))])
def test_stills_of_the_explorer_show_the_numbers_of_the_views(panel, make):
    snap, other = invented.snapshot(20, method='ADDrop'), invented.snapshot(0, method='ADDrop')
    fig, view = picture(Selection(snap, other=other, entry=dict(kind='head', layer=1, head=2)), panel), make(snap,
                                                                                                             other)
    assert np.array_equal([o for o in images(fig) if o.shape == (8, 8)], view.values, equal_nan=True)


def test_the_still_of_all_heads_gives_each_its_own_scale():
    snap = invented.snapshot(20, method='ADDrop')
    image = next(o for o in images(picture(Selection(snap, what='attribution'), 'heads')) if o.shape == (18, 27))
    A = snap.arrays['attention_attribution']
    for l, h in product(range(2), range(3)):
        assert image[9*l:9*l + 8, 9*h:9*h + 8] == pytest.approx(A[l, h]/np.abs(A[l, h]).max())


# --- without colours

def in_grey(view, width):
    "Return `view` in grey print, [height, width] from 0 to 255"
    return np.asarray(Image.open(io.BytesIO(rendered(draw(view, width), 'png', dpi=300))).convert('L')).astype(float)


def minuses(fig):
    "Return the positions of the minus signs in the maps of `fig`"
    return [set(map(tuple, np.round(o.get_offsets()).astype(int))) for ax in fig.axes if ax.images
            for o in ax.collections if isinstance(o, PathCollection)]


@pytest.mark.sample(1)
@pytest.mark.parametrize('n, width', [(8, 6.75), (30, 3.03)])
def test_a_map_and_its_negative_differ_in_grey_by_marks_at_every_pitch(n, width):
    snap = invent(n, layers=1, heads=2)
    A = np.random.default_rng(0).choice([-1., 1.], (1, 2, n, n))
    for sign in (1, -1):
        snap.arrays['attention_attribution'] = sign*A
        fig = draw(attention_map(snap, 0, 0, 'attribution', overlays=[]), width)
        assert minuses(fig) == [{(int(x), int(y)) for y, x in np.argwhere(sign*A[0, 0] < 0)}]
        assert 'clearly negative' in [o.get_text() for o in fig.texts]
    snap.arrays['attention_attribution'] = np.ones_like(A)
    plus = in_grey(attention_map(snap, 0, 0, 'attribution', overlays=[], limit=1), width)
    snap.arrays['attention_attribution'] = -np.ones_like(A)
    minus = in_grey(attention_map(snap, 0, 0, 'attribution', overlays=[], limit=1), width)
    rows, columns = min(len(plus), len(minus)), plus.shape[1]
    # white minus signs: a handful of dots a cell
    assert (np.abs(plus[:rows] - minus[:rows, :columns]) > 60).sum() > 4*n*n


def test_cells_too_small_for_a_minus_say_so():
    fig = draw(attention_map(invent(80, layers=1, heads=2), 0, 0, 'attribution'), 2.5)
    assert not minuses(fig)
    assert any('too small for minus signs' in o.get_text() for o in fig.texts)
    assert 'clearly negative' not in [o.get_text() for o in fig.texts]


@pytest.mark.parametrize('value', [.5, 1.])
def test_a_word_and_its_negative_differ_in_grey_by_an_underline(value):
    for labels in (['up', 'down'], ['down', 'up']):
        view = coloured_sentences([(labels, [value if o == 'up' else -value for o in labels])], limit=1)
        fig = draw(view)
        ax = next(o for o in fig.axes if any(t.get_text() == 'up' for t in o.texts))
        (line,), box = ax.lines, ax.patches[labels.index('down')]
        assert box.get_x() < line.get_xdata()[0] < line.get_xdata()[1] < box.get_x() + box.get_width()
        assert box.get_y() < line.get_ydata()[0] < box.get_y() + box.get_height()
        assert 'clearly negative' in [o.get_text() for o in fig.texts]
        assert 'underlined if clearly negative' in view.caption


# --- letters and words

@pytest.mark.sample(4)
@pytest.mark.parametrize('kind', ['several', 'triptych', 'residual', 'compared', 'steps'])
def test_panels_of_one_view_have_letters_that_its_caption_names(kind):
    view = kinds[kind](invent(9, layers=2, heads=6))
    letters = [f'({o})' for o in 'abcdefg'[:len(view.values)]]
    texts = [o.get_text() for o in draw(view, 3.25).texts]
    assert all(any(t.startswith(o) for t in texts) for o in letters) and all(o in view.caption for o in letters)


def test_three_maps_in_a_column_stand_one_below_the_other_with_whole_titles():
    fig = draw(triptych(invent(19, layers=2, heads=4)), 3.03)
    maps = [o.get_position() for o in fig.axes if o.images and o.images[0].get_array().shape == (19, 19)]
    assert len({round(o.x0, 6) for o in maps}) == 1 and len({round(o.y0, 6) for o in maps}) == 3
    assert not any('…' in o.get_text() for o in fig.texts)


def test_a_long_word_is_whole_where_a_line_has_room():
    view = coloured_sentences([(['uncharacteristically', 'so'], [1., -1.])])
    assert 'uncharacteristically' in [o.get_text() for o in draw(view, 3.03).findobj(Text)]


def test_the_caption_of_regions_holds_whether_they_are_drawn_or_not_and_rollout_says_what_it_is():
    snap = invent(80, layers=2, heads=4)
    assert ('Marked where cells are large enough: the candidate discard region (dashed outline) and '
            'discarded positions (crosses).' in attention_map(snap, 0, 0).caption)
    view = attention_map(snap, head='rollout')
    assert view.caption.startswith('Attention rollout through 2 layers.') and view.units == ('attention rollout',)
    assert compared(snap, snap, 0, 0, names=['x', 'y']).units[2] == 'attention, B − A'
