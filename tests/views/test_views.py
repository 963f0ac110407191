"Views: their numbers equal those of the snapshot, without torch and without a plotting library"
import dataclasses

import numpy as np
import pytest

import invented
from invented import invent
from salviz.core.maths import kl, pattern_fraction
from salviz.core.snapshots import Snapshot
from salviz.core.runs import Run
from salviz.views.head_statistics import head_marks, head_statistics
from salviz.views.base import (AttentionBesideSaliency, DiscardRegion, GuidedHeads, MaskedSentence, PatternShares,
                          ScoredSentence, SignalView, TokenLabels, TranslationView, Views,
                          attention_beside_saliency, discard_region, guided_heads, masked_sentence, methods_of, outline,
                          custom_patterns, pattern_name, pattern_shares,
                          row_boxes, saliency_distribution, scored_sentence, signal_view, token_labels, translation,
                          title_of, view_for)

def spearman_by_hand(a, b):
    "Compute the rank correlation with average ranks, from its definition"
    def rank(x): return np.array([np.mean([i for i, o in enumerate(sorted(x)) if o == v]) for v in x])
    ra, rb = rank(list(a)), rank(list(b))
    return float(np.mean((ra - ra.mean())*(rb - rb.mean())) / (ra.std()*rb.std()))


def test_a_view_is_frozen_down_to_its_arrays():
    view = discard_region(invent())
    with pytest.raises(dataclasses.FrozenInstanceError): view.title = 'other'
    with pytest.raises(ValueError): view.values[0, 0] = 1


def test_a_title_names_the_step_only_of_a_model_that_was_trained():
    s = invented.snapshot(0, 1, method='FineTuning')
    assert title_of(s) == 'Fine-tuning, step 0, probe 1'
    del s.info['method']
    assert title_of(s, 'layer 2') == 'probe 1, layer 2'
    assert title_of(dataclasses.replace(s, step=4)) == 'step 4, probe 1'
    s.info['methods'] = dict(FineTuning={})
    assert title_of(s) == 'step 0, probe 1'


def test_making_a_view_leaves_the_snapshot_as_it_was():
    snap = invent(); before = {k: v.copy() for k, v in snap.arrays.items()}
    for make in (attention_beside_saliency, masked_sentence, discard_region, guided_heads): make(snap)
    assert all(np.array_equal(before[k], snap.arrays[k]) for k in before)


@pytest.mark.parametrize('n', [3, 12, 60])
def test_attention_and_saliency_are_those_of_the_pooled_row_normalised_over_ordinary_tokens(n):
    snap = invent(n); view = attention_beside_saliency(snap)
    row = np.mean([snap.arrays['attention'][-1, h, 0] for h in range(12)], axis=0)
    inside = [i for i in range(n) if not snap.is_special[i]]
    for i in range(n):
        if i in inside:
            assert view.attention[i] == pytest.approx(row[i] / sum(row[j] for j in inside))
            assert view.saliency[i] == pytest.approx(
                snap.arrays['saliency'][i] / sum(abs(snap.arrays['saliency'][j]) for j in inside))
            assert view.target[i] == pytest.approx(snap.arrays['saliency_target'][i])
        else: assert np.isnan(view.attention[i]) and np.isnan(view.saliency[i])
    if n > 3:
        assert view.agreement == pytest.approx(spearman_by_hand(row[inside], np.abs(snap.arrays['saliency'][inside])))
    assert view.special_fraction == pytest.approx(1 - sum(row[i] for i in inside))


def test_the_agreement_is_the_number_that_the_tables_print():
    from salviz.metrics.scores import attention_agreement
    snap = invent(20)
    assert attention_beside_saliency(snap).agreement == pytest.approx(attention_agreement(snap))


def test_the_last_token_of_a_decoder_can_be_the_pooled_row():
    snap = invent(9, kind='causal', pooled_row=8)
    view = attention_beside_saliency(snap, layer=2)
    ratio = view.attention[3] / view.attention[4]
    assert ratio == pytest.approx(snap.arrays['attention'][2, :, 8,
                                                           3].mean() / snap.arrays['attention'][2, :, 8, 4].mean())


def test_without_the_models_own_saliency_the_methods_is_shown_and_named():
    view = attention_beside_saliency(invent(drop=('saliency',)))
    assert 'method' in view.saliency_name and view.teacher_saliency is None


def test_saliency_of_a_word_is_the_sum_over_its_pieces():
    snap = invent(12); view = masked_sentence(snap)
    for w, word in enumerate(snap.words):
        at = view.labels.index(word)
        assert view.saliency[at] == pytest.approx(sum(snap.arrays['method_saliency'][i] for i in range(12)
                                                      if snap.word_ids[i] == w))


def test_replaced_words_show_what_stands_there_in_the_masked_copy():
    snap = invent(60); view = masked_sentence(snap)
    places, at = [], 0
    for i, w in enumerate(snap.word_ids):
        if w < 0 or i == 0 or w != snap.word_ids[i - 1]: places.append([])
        places[-1].append(i)
    assert len(places) == len(view.labels) and view.is_replaced.sum() > 5
    for u, positions in enumerate(places):
        masked = ''.join(snap.info['masked_tokens'][i].removeprefix('##') for i in positions)
        assert view.masked_labels[u].replace(' ', '') == masked
        assert bool(view.is_replaced[u]) == bool(snap.arrays['is_masked'][positions].any())
        if view.is_replaced[u]:
            source = view.sources[u]
            assert not view.is_replaced[source] and masked[:2] == view.labels[source][:2]
            assert not any(not view.is_replaced[v] for v in range(source + 1, u) if source < u)


def test_a_mask_token_has_no_source_and_is_shown_as_it_is():
    snap = invent(12); tokens = [('[MASK]' if m else t) for t, m in zip(snap.tokens, snap.arrays['is_masked'])]
    snap.info['masked_tokens'] = tokens
    view = masked_sentence(snap)
    assert set(view.sources[view.is_replaced]) == {-1}
    assert all('[MASK]' in o for o, r in zip(view.masked_labels, view.is_replaced) if r)


def test_words_of_a_pair_are_never_replaced_across_the_separator():
    tokens = ['[CLS]', 'good', '[SEP]', 'bad', 'film', '[SEP]']
    snap = invent(tokens=tokens)
    snap.arrays['is_masked'] = np.array([0, 0, 0, 1, 0, 0], dtype=bool)
    snap.info['masked_tokens'] = ['[CLS]', 'good', '[SEP]', 'good', 'film', '[SEP]']
    assert masked_sentence(snap).sources[3] == -1


@pytest.mark.parametrize('kind', ['bert', 'causal'])
def test_the_discard_map_shows_one_heads_numbers_and_nothing_that_may_not_be_attended(kind):
    snap = invent(9, kind=kind); view = discard_region(snap, layer=2, head=5)
    for q in range(9):
        for k in range(9):
            if kind == 'causal' and k > q:
                assert np.isnan(view.values[q, k]) and not view.candidates[q, k] and not view.discarded[q, k]
            else:
                assert view.values[q, k] == snap.arrays['attention_attribution'][2, 5, q, k]
                assert view.candidates[q, k] == snap.arrays['discard_candidates'][2, 5, q, k]
                assert view.discarded[q, k] == snap.arrays['discarded'][2, 5, q, k]


def test_the_default_head_has_the_largest_typical_row_and_the_caption_says_so():
    snap = invent(20); view = discard_region(snap)
    masses = {(l, h): np.median([sum(abs(snap.arrays['attention_attribution'][l, h, q, 1:-1])) for q in range(1, 19)])
              for l in range(6) for h in range(12) if snap.arrays['attention'][l, h, 1:-1, 1:-1].sum() >= 2/3*18}
    assert (view.layer, view.head) == max(masses, key=masses.get)
    assert 'largest median row sum of |attribution| between words' in view.caption
    assert 'largest median row sum' not in discard_region(snap, 1, 1).caption
    assert discard_region(snap, layer=3).layer == 3
    assert discard_region(snap, head=7).head == 7
    for word in ('AD-DROP', 'step 120', 'p = 0.3', 'q = 0.2', f'layer {view.layer}', f'head {view.head}'):
        assert word in view.title


def test_layers_are_numbered_as_in_the_model_not_as_in_the_array():
    snap = invent(9)
    for k in ('attention_attribution', 'discard_candidates', 'discarded'):
        snap.arrays[k] = snap.arrays[k][[1, 4]]; snap.layers[k] = [1, 4]
    assert np.array_equal(discard_region(snap, layer=4, head=0).values, snap.arrays['attention_attribution'][1, 0])
    with pytest.raises(ValueError, match='layer=2 .*available: 1, 4'): discard_region(snap, layer=2)
    with pytest.raises(ValueError, match='head=12 .*available: 0 to 11'): discard_region(snap, head=12)


def test_the_outline_of_a_region_walls_in_exactly_its_cells():
    region = np.random.default_rng(0).random((7, 7)) < .4
    walls = {(tuple(a), tuple(b)) for a, b in unit_pieces(outline(region))}
    inside = lambda r, c: 0 <= r < 7 and 0 <= c < 7 and bool(region[r, c])
    for r in range(-1, 8):
        for c in range(-1, 8):
            assert (((c - .5, r - .5), (c - .5, r + .5)) in walls) == (inside(r, c) != inside(r, c - 1))
            assert (((c - .5, r + .5), (c + .5, r + .5)) in walls) == (inside(r, c) != inside(r + 1, c))


def test_the_boxes_of_a_region_hold_exactly_its_cells_and_never_touch_in_a_row():
    region = np.random.default_rng(1).random((9, 9)) < .5
    held = np.zeros_like(region)
    for y, a, b in row_boxes(region):
        assert not held[y, a:b].any() and (a == 0 or not region[y, a - 1]) and (b == 9 or not region[y, b])
        held[y, a:b] = True
    assert np.array_equal(held, region)


def unit_pieces(segments):
    "Return the borders of length one in `segments`, each from its smaller end; check that none is drawn twice"
    pieces = []
    for (x0, y0), (x1, y1) in segments.tolist():
        for k in range(round(x1 - x0 + y1 - y0)):
            step = (1, 0) if y0 == y1 else (0, 1)
            a = (x0 + k*step[0], y0 + k*step[1]); pieces.append((a, (a[0] + step[0], a[1] + step[1])))
    assert len(pieces) == len(set(pieces))
    return pieces


def test_guided_heads_show_one_head_of_each_pattern_and_its_residual():
    snap = invent(12); view = guided_heads(snap)
    residual = ((snap.arrays['attention'] - snap.arrays['pattern_target'])[:, :6]**2).mean((1, 2, 3))
    closest = min(range(6), key=lambda l: residual[l])
    assert (view.layer, view.heads, view.patterns) == (closest, (0, 1, 2), ('next', 'prev', 'first'))
    assert 'smallest mean squared residual' in view.caption
    assert 'smallest' not in guided_heads(snap, layer=0).caption
    for i, h in enumerate(view.heads):
        A, P = snap.arrays['attention'][closest, h], snap.arrays['pattern_target'][closest, h]
        assert view.residuals[i] == pytest.approx(sum((A[q, k] - P[q, k])**2 for q in range(12)
                                                      for k in range(12)) / 144)
        assert np.array_equal(view.attention[i], A) and np.array_equal(view.target[i], P)
    assert guided_heads(snap, layer=3, heads=[4, 5]).patterns == ('first', 'first')
    with pytest.raises(ValueError, match=r'guided heads of layer 0 \(0, 1, 2, 3, 4, 5\), got 7'):
        guided_heads(snap, layer=0, heads=[7])


def test_patterns_are_recognised_with_either_boundary_and_after_storage_in_half_precision():
    n = 7; labels = list('abcdefg')
    for boundary in (0, 1/n):
        forward = np.eye(n, k=1); forward[-1] = boundary
        assert pattern_name(forward.astype(np.float16), labels) == 'next'
        assert pattern_name(forward[::-1, ::-1].astype(np.float16), labels) == 'prev'
    third = np.zeros((n, n)); third[:, [2, 4, 6]] = 1/3
    assert pattern_name(third.astype(np.float16), labels) == 'to c e g'


def test_every_token_of_a_map_is_labelled_once_in_order():
    snap = invent(60)
    for make in (attention_beside_saliency, discard_region, guided_heads):
        assert make(snap).labels == tuple(snap.labels)
    assert ' '.join(o for o, s in zip(masked_sentence(snap).labels, masked_sentence(snap).is_special)
                    if not s) == ' '.join(snap.words)


def test_the_picture_is_chosen_by_the_evidence():
    assert type(view_for(invent())) is DiscardRegion
    assert type(view_for(invent(drop=('discarded',)))) is GuidedHeads
    assert type(view_for(invent(drop=('discarded', 'pattern_target')))) is MaskedSentence
    assert type(view_for(invent(drop=('discarded', 'guided', 'is_masked', 'masked_input')))) is AttentionBesideSaliency
    with pytest.raises(ValueError, match='has probabilities, which no view can show'):
        view_for(Snapshot(step=0, epoch=0., probe=0, tokens=['a'], arrays=dict(probabilities=np.ones(2))))


@pytest.mark.parametrize('make, missing', [(attention_beside_saliency, 'attention'), (masked_sentence, 'is_masked'),
                                           (discard_region, 'discarded'),
                                           (guided_heads, 'pattern_target')])
def test_an_error_names_what_is_missing_and_what_there_is(make, missing):
    with pytest.raises(ValueError, match=f'{make.__name__}: .* has no {missing}; available: .*probabilities'):
        make(invent(drop=(missing,)))


def test_values_that_are_not_finite_are_left_out_and_noted():
    snap = invent(12)
    snap.arrays['saliency'][3] = np.nan
    snap.arrays['attention_attribution'][:, :, 2, 2] = np.inf; snap.arrays['method_saliency'][3] = np.nan
    view = attention_beside_saliency(snap)
    assert np.isfinite(view.agreement)
    assert np.nansum(np.abs(view.saliency)) == pytest.approx(1)
    assert '1 non-finite values of saliency' in view.notes[0]
    assert np.isfinite(discard_region(snap).limit) and 'attribution' in discard_region(snap).notes[0]
    assert np.isfinite(masked_sentence(snap).limit) and masked_sentence(snap).notes


def test_saliency_that_is_zero_everywhere_still_gives_a_picture():
    snap = invent(12); snap.arrays['saliency'][:] = 0; snap.arrays['attention_attribution'][:] = 0
    view = attention_beside_saliency(snap)
    assert np.isnan(view.agreement) and 'undefined' in view.subtitle and not np.nansum(view.saliency)
    assert discard_region(snap).limit == 1


def test_a_sentence_of_special_tokens_only_is_refused():
    tokens = ['[CLS]', '[SEP]']
    lone = Snapshot(step=0, epoch=0., probe=0, tokens=tokens, word_ids=[-1, -1], words=[],
                    info=dict(pooled_row=0, masked_tokens=tokens),
                    arrays=dict(attention=np.full((1, 1, 2, 2), .5), saliency=np.zeros(2),
                                is_masked=np.zeros(2, dtype=bool)))
    with pytest.raises(ValueError, match='special'): attention_beside_saliency(lone)
    with pytest.raises(ValueError, match='special'): masked_sentence(lone)


def test_a_snapshot_that_went_through_a_run_gives_the_same_picture(tmp_path):
    from salviz.core.runs import Run
    snap = invent(12); run = Run.create(tmp_path/'run', {}); run.save(snap)
    back = run.snapshot(120, 3)
    assert back.words == snap.words
    assert np.array_equal(discard_region(back, 1, 2).candidates, discard_region(snap, 1, 2).candidates)
    assert masked_sentence(back).masked_labels == masked_sentence(snap).masked_labels
    assert guided_heads(back).patterns == ('next', 'prev', 'first')
    assert np.nanmax(np.abs(attention_beside_saliency(back).attention
                            - attention_beside_saliency(snap).attention)) < 1e-3


# Other tasks and other kinds of input

kinds = dict(image=(invented.image, SignalView), series=(invented.series, SignalView),
             tagged=(invented.tagged, TokenLabels), masked=(invented.masked_words, TokenLabels),
             translated=(invented.translated, TranslationView))


@pytest.mark.parametrize('kind', kinds)
def test_each_kind_of_snapshot_has_its_own_picture_and_the_same_after_a_run_has_stored_it(kind, tmp_path):
    make, view_type = kinds[kind]
    snap, run = make(step=10), Run.create(tmp_path/'run', {})
    run.save(snap)
    view, back = view_for(snap), view_for(run.snapshot(10))
    assert type(view) is type(back) is view_type
    assert (view.title, view.subtitle, view.labels) == (back.title, back.subtitle, back.labels)
    for f in dataclasses.fields(view):
        a, b = getattr(view, f.name), getattr(back, f.name)
        if isinstance(a, np.ndarray):
            assert (a.shape == b.shape and not a.flags.writeable
                    and np.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True)), f.name
        else:
            assert (a == b or isinstance(a, float) and np.isclose(a, b, rtol=1e-3, equal_nan=True)
                    or isinstance(a, tuple) and np.allclose(a, b)), f.name


@pytest.mark.parametrize('channels', [1, 2, 3])
def test_an_image_and_its_masked_copy_are_shown_on_one_scale_for_all_channels(channels):
    snap = invented.image(step=10, channels=channels)
    x, masked, view = snap.arrays['input'], snap.arrays['masked_map'], signal_view(snap)
    low, high = min(x.ravel().tolist()), max(x.ravel().tolist())
    for i in range(x.shape[1]):
        for j in range(x.shape[2]):
            for shown, own in ((view.input, x), (view.masked, masked)):
                want = [(own[c, i, j] - low)/(high - low) for c in range(channels)]
                if channels == 2: want = [sum(want)/2]
                assert shown[i, j].tolist() == pytest.approx([min(1, max(0, v)) for v in want])
    beyond = sum(any(not low <= v <= high for v in masked[:, i, j]) for i in range(x.shape[1])
                 for j in range(x.shape[2]))
    assert any(o.startswith(f'{beyond} pixels of the masked copy are outside') for o in view.notes) == (beyond > 0)
    assert any('mean over 2 channels' in o for o in view.notes) == (channels == 2)
    assert np.array_equal(view.saliency, snap.arrays['saliency_map'])
    assert np.array_equal(view.is_masked, snap.arrays['is_masked_map'])
    p, q = snap.arrays['probabilities'].tolist(), snap.arrays['masked_probabilities'].tolist()
    assert view.divergence == pytest.approx(sum(a*np.log(a/b) for a, b in zip(p, q)), rel=1e-5)
    assert 'label: dog' in view.subtitle
    assert 'predicted: dog (0.70)' in view.subtitle
    assert f'{int(view.is_masked.sum())} of 120 pixels masked' in view.subtitle


def test_the_caption_says_by_what_the_masked_cells_were_ranked():
    s = invented.image()
    assert '“Saliency that ranks” explains the label (dog); the lowest values in it are masked.' in signal_view(
        s).caption
    s.info['methods']['SaliencyGuided'] |= dict(target='predicted', ranking='magnitude')
    assert 'explains the predicted class; the values closest to zero in it are masked.' in signal_view(s).caption
    s.info['methods']['SaliencyGuided'] |= dict(score='log_probability')
    assert 'explains the log-probability of the predicted class; the values' in signal_view(s).caption
    s.info['methods']['SaliencyGuided'] |= dict(target='gold')
    assert 'explains the log-probability of the label (dog); the values' in signal_view(s).caption
    s.arrays['method_saliency_map'] = s.arrays['saliency_map']
    assert 'ranks' not in signal_view(s).caption
    assert 'Masked are the values closest to zero of saliency.' in signal_view(s).caption
    s.info['methods']['SaliencyGuided'] |= dict(unit='patch') # whose pixels need not be those closest to zero
    assert 'Masked are the patches with the lowest sum of absolute values of saliency.' in signal_view(s).caption


def test_a_series_keeps_its_units_and_says_how_much_saliency_lies_where_the_information_is():
    snap = invented.series(step=10, names=list('abcdef'))
    view, s, box = signal_view(snap), snap.arrays['saliency_map'], snap.arrays['informative']
    assert np.array_equal(view.input, snap.arrays['input'])
    assert np.array_equal(view.masked, snap.arrays['masked_map'])
    assert view.feature_names == tuple('abcdef')
    inside = sum(abs(s[t, f]) for t in range(40) for f in range(6)
                 if box[t, f])/sum(abs(s[t, f]) for t in range(40) for f in range(6))
    assert view.informative_fraction == pytest.approx(inside)
    assert f'{inside:.0%} of |saliency| in the informative cells' in view.subtitle
    plain = signal_view(invented.series(step=10, box=False))
    assert np.isnan(plain.informative_fraction) and 'informative' not in plain.subtitle + plain.caption


def test_a_signal_without_a_masked_copy_probabilities_or_variation_is_shown_as_far_as_it_goes():
    bare = Snapshot(0, 0., 0, dict(input=np.full((1, 3, 3), 7.), saliency_map=np.zeros((3, 3))),
                    info=dict(modality='image'))
    view = signal_view(bare)
    assert view.masked is view.is_masked is view.method_saliency is view.probabilities is None
    assert view.limit == 1
    assert np.isnan(view.divergence)
    assert not view.input.any()
    snap = invented.image(step=10)
    snap.arrays['saliency_map'][2, 3] = np.nan
    snap.arrays['method_saliency_map'] = snap.arrays['saliency_map'].copy()
    assert '1 non-finite values of saliency' in signal_view(snap).notes[-1]
    assert np.isfinite(signal_view(snap).limit)
    assert signal_view(snap).method_saliency is None
    with pytest.raises(ValueError, match="must be 'image' or 'series', got None"):
        signal_view(Snapshot(0, 0., 0, dict(input=np.ones((3, 3)), saliency_map=np.ones((3, 3)))))
    with pytest.raises(ValueError, match='signal_view: .* has no input, saliency_map; available: attention'):
        signal_view(invented.tagged())


def test_the_distribution_counts_cells_of_samples_that_are_scaled_one_by_one():
    first, last = ([make(step, p) for p in (0, 1) for make in [invented.image]] for step in (0, 20))
    last[1].arrays['saliency_map'] *= 1000 # one sample with large gradients must not make the others look small
    view = saliency_distribution(first, last)
    for side, shares, near in zip((first, last), view.fractions, view.near_zero):
        values = [v/max(abs(w) for w in s.arrays['saliency_map'].ravel()) for s in side
                  for v in s.arrays['saliency_map'].ravel()]
        for k in range(41):
            low, high = view.edges[k], view.edges[k + 1]
            assert shares[k] == pytest.approx(sum(low <= v < high or k == 40 and v == 1 for v in values)/len(values))
        assert near == pytest.approx(sum(abs(v) <= .1 for v in values)/len(values))
    assert view.near_zero[1] > view.near_zero[0] and view.names == ('step 0', 'step 20') and '2 probes' in view.title
    with pytest.raises(ValueError, match=r'must have the same probes, got \[0\] and \[1\]'):
        saliency_distribution(first[0], last[1])


def test_the_distribution_of_a_text_leaves_out_special_tokens():
    a, b = invent(12), invent(12)
    a.arrays['saliency'] = np.r_[99., np.linspace(.05, 1, 10), 99.]
    view = saliency_distribution(a, b)
    assert view.near_zero[0] == pytest.approx(.1) and 'tokens within' in view.subtitle
    with pytest.raises(ValueError, match='has no saliency; available: attention'):
        saliency_distribution(*[Snapshot(0, 0., 0, dict(attention=np.ones((1, 1, 1, 1))), tokens=['a'])]*2)


def test_answers_are_right_or_wrong_only_where_there_is_a_label():
    view = token_labels(invented.tagged())
    assert view.gold == (None, 'B-PER', 'I-PER', None, 'O', 'O', 'B-LOC', None) and view.predicted[3] == 'O'
    assert view.is_wrong.tolist() == [False, False, True, *[False]*5]
    assert view.subtitle.startswith('4 of 5 labelled tokens right, other than O: 2 of 3')
    assert np.isnan(view.confidence[[0, 7]]).all() and np.isnan(view.saliency[[0, -1]]).all()
    snap = invented.masked_words()
    assert token_labels(snap).subtitle.startswith('1 of 2 masked tokens right   mean confidence 0.60')
    assert token_labels(invented.masked_words(task='replaced_token_detection')).subtitle.startswith(
        '4 of 6 tokens right, replaced: 0 of 1')
    del snap.info['token_labels'], snap.arrays['token_confidence'], snap.arrays['saliency']
    bare = token_labels(snap)
    assert bare.subtitle == 'no labels'
    assert not bare.is_wrong.any()
    assert bare.saliency is None
    assert np.isnan(bare.confidence).all()
    with pytest.raises(ValueError, match='token_labels: .* has no token_predictions in its info'):
        token_labels(invent())


def test_a_translation_shows_the_encoders_map_and_which_target_tokens_are_right():
    snap = invented.translated()
    A, view = snap.arrays['attention'], translation(snap)
    for q in range(5):
        for k in range(5): assert view.attention[q, k] == pytest.approx(sum(A[1, h, q, k] for h in range(3))/3)
    assert view.is_wrong.tolist() == [False, True, False, False, False]
    assert view.subtitle == '4 of 5 target tokens right under teacher forcing'
    assert np.array_equal(translation(snap, layer=0, head=2).attention, A[0, 2])
    assert 'layer 0, head 2' in translation(snap, 0, 2).caption
    snap.layers['attention'] = [3, 5]
    assert translation(snap).layer == 5 and np.array_equal(translation(snap, 3, 1).attention, A[0, 1])
    with pytest.raises(ValueError, match='layer=1 was not recorded .*available: 3, 5'): translation(snap, 1)
    for drop in ('attention', 'saliency', 'target_probability'): snap.arrays.pop(drop)
    bare = translation(snap)
    assert bare.attention is bare.saliency is bare.layer is None
    assert np.isnan(bare.probability).all()
    assert 'map' not in bare.caption
    with pytest.raises(ValueError, match='has no target_tokens, predicted_tokens in its info'): translation(invent())


@pytest.mark.parametrize('gold, said, span', [(3.8, 2.9, (0, 4)), (-1.5, 2., (-2, 2)), (None, 0., (0, 1)),
                                              (5., 5., (0, 5)), (3.6, -.0005, (0, 4)), (5., 5.01, (0, 5))])
def test_a_score_stands_on_a_scale_that_holds_both_numbers(gold, said, span):
    snap = invented.scored(label=gold, said=said)
    view = scored_sentence(snap)
    assert (view.gold, view.predicted, view.span) == (gold, pytest.approx(said), span)
    assert ('error' in view.subtitle) == (gold is not None) and scored_sentence(snap, span=(0, 5)).span == (0, 5)
    for i, word in enumerate(view.labels[1:-1]):
        assert view.saliency[i + 1] == pytest.approx(sum(snap.arrays['saliency'][p] for p in range(8)
                                                         if snap.word_ids[p] == i))


def test_shares_of_patterns_are_those_of_every_head_with_the_guided_ones_marked():
    snap = invented.both(layers=3, heads=4)
    view, A = pattern_shares(snap), snap.arrays['attention']
    assert view.patterns == ('diagonal', 'first') and view.fractions.shape == (2, 3, 4) and view.layers == (0, 1, 2)
    for l in range(3):
        for h in range(4):
            assert view.fractions[0, l, h] == pytest.approx(sum(A[l, h, q, q]/sum(A[l, h, q]) for q in range(8))/8)
            assert view.fractions[1, l, h] == pytest.approx(sum(A[l, h, q, 0]/sum(A[l, h, q]) for q in range(8))/8)
            assert view.guided[:, l, h].tolist() == [h == 0, h == 1]
    assert view.uniform.tolist() == [1/8, 1/8] and 'Fraction of each head' in view.caption
    mine = pattern_shares(snap, dict(mine=np.eye(8, k=2)))
    assert np.array_equal(mine.fractions[0], pattern_fraction(A, np.eye(8, k=2)))
    snap.arrays['pattern_target'], snap.arrays['guided'] = snap.arrays['pattern_target'][1:2], snap.arrays['guided'][
        1:2]
    snap.layers['pattern_target'] = snap.layers['guided'] = [1]
    assert pattern_shares(snap).guided.any((0, 2)).tolist() == [False, True, False]
    assert guided_heads(snap).patterns == ('diagonal', 'first')
    snap.arrays['guided'][:] = False
    with pytest.raises(ValueError, match='no head is guided .*pass patterns='): pattern_shares(snap)


def test_a_pattern_of_ones_own_goes_by_its_name_in_every_form_of_assignment():
    def named(patterns, own):
        return custom_patterns(invented_with(dict(AttentionGuidance=dict(patterns=patterns, custom=own))))
    def invented_with(methods):
        s = invented.both()
        s.info['methods'] = methods
        return s
    assert named(dict(mine=[0, 2], next=[1]), dict(mine='f')) == {(l, h): 'mine' for l in (0, 1) for h in (0, 2)}
    assert named({'0': dict(mine=[1]), '1': dict(next=[1])}, dict(mine='f')) == {(0, 1): 'mine'}
    assert named({'-1': dict(mine=[1]), '-2': dict(mine=2)}, dict(mine='f')) == {(1, 1): 'mine', (0, 2): 'mine'}
    few = invented_with(dict(AttentionGuidance=dict(patterns={'-1': dict(mine=[1])}, custom=dict(mine='f'))))
    # only one of the observed layers is guided
    few.arrays['pattern_target'], few.layers['pattern_target'] = few.arrays['pattern_target'][:1], [0]
    assert custom_patterns(few) == {(1, 1): 'mine'}
    assert named(None, None) == named(dict(next=[0]), None) == {} and custom_patterns(invent()) == {}


def test_methods_that_were_combined_have_a_picture_each():
    snap = invented.both()
    views = view_for(snap)
    assert isinstance(views, Views) and [type(o) for o in views] == [GuidedHeads, PatternShares, DiscardRegion]
    assert views.caption.startswith('(a) Attention of guided heads')
    assert '(c) Attention attribution of layer' in views.caption
    assert all(o.title.startswith('Attention guidance + AD-DROP, step 0, probe 0') for o in views)
    assert 'p = 0.3, q = 0.4' in views[2].title
    for k in ('discarded', 'discard_candidates'): del snap.arrays[k] # a plain epoch of cross-tuning
    assert [type(o) for o in view_for(snap)] == [GuidedHeads, PatternShares]
    snap.arrays['guided'][:] = False # and a sentence in which no pattern occurs
    assert type(view_for(snap)) is AttentionBesideSaliency
    assert methods_of(invent(method='SalLM')) == dict(SalLM=dict(p=.3, q=.2)) and methods_of(Snapshot(0, 0., 0)) == {}
    three = invent(method='SaliencyGuided + SalLM', methods=dict(SaliencyGuided={}, SalLM={}))
    assert [type(o) for o in view_for(three)] == [MaskedSentence, AttentionBesideSaliency]


@pytest.mark.parametrize('order', [('SaliencyGuided', 'SalLM'), ('SalLM', 'SaliencyGuided')])
def test_of_two_methods_together_each_is_shown_the_saliency_that_it_works_with(order):
    snap, worked_with = invented.clashing(order)
    inside = ~snap.is_special
    teacher = attention_beside_saliency(snap).teacher_saliency[inside]
    assert teacher == pytest.approx(worked_with['SalLM'][inside]/abs(worked_with['SalLM'][inside]).sum())
    shown, ranked = masked_sentence(snap), worked_with['SaliencyGuided']
    assert shown.saliency[~shown.is_special] == pytest.approx([sum(ranked[snap.word_ids == w])
                                                               for w in sorted(set(snap.word_ids[inside]))], rel=1e-6)
    without = Snapshot(**{**vars(snap), 'arrays': {k: v for k, v in snap.arrays.items() if k != 'saliency'}})
    assert attention_beside_saliency(without).saliency[inside] == pytest.approx(teacher)


def test_regression_shows_what_its_method_does_and_its_score_where_there_is_no_method():
    snap = invented.scored()
    assert type(view_for(snap)) is DiscardRegion
    assert 'score: 3.80' in view_for(snap).subtitle
    assert 'predicted: 2.90' in view_for(snap).subtitle
    for k in ('discarded', 'discard_candidates'): del snap.arrays[k]
    assert type(view_for(snap)) is ScoredSentence


def test_random_regions_lie_over_attention_and_say_so():
    snap = invent(9, args=dict(p=.3, q=.2, attribution='random'))
    view = discard_region(snap, layer=2, head=4)
    assert np.array_equal(view.values, snap.arrays['attention'][2, 4])
    assert view.what == 'attention'
    assert view.caption.endswith('The regions were drawn at random.')
    assert np.array_equal(view.candidates, snap.arrays['discard_candidates'][2, 4])
    assert 'median' not in discard_region(snap).caption
    assert discard_region(invent(9, args=dict(attribution='attention'))).what == 'attention'
    assert discard_region(invent(9,
                              args=dict(
        attribution='integrated_gradients'))).what == 'attention attribution (integrated gradients)'


def test_without_a_pooled_row_the_rows_of_ordinary_tokens_are_averaged_and_the_number_is_the_tables():
    from salviz.metrics.scores import attention_agreement
    snap = invented.tagged()
    view, A = attention_beside_saliency(snap), snap.arrays['attention'][-1]
    inside = range(1, 7)
    mean = [np.mean([A[h, q, k] for h in range(3) for q in inside]) for k in inside]
    assert view.attention[1:7].tolist() == pytest.approx([m/sum(mean) for m in mean])
    assert view.agreement == pytest.approx(attention_agreement(snap))
    assert view.attention_name == 'attention (mean over rows)'
    assert 'mean over their rows, since this model has no pooled row' in view.caption


def test_agreement_with_a_rationale_has_no_number_where_ties_or_an_empty_rationale_decide():
    from salviz.metrics.plausibility import auprc, hard_rationale, token_f1
    from salviz.views.base import explanation_beside_rationale
    def made(): return invented.snapshot(10, 0, method='RationaleGuided')
    s = made()
    view, kept = explanation_beside_rationale(s), ~np.asarray(s.is_special)
    x, marked = s.arrays['explanation'][kept].astype(float), s.arrays['rationale'][kept]
    assert view.auprc == auprc(x, marked) and not view.notes
    assert view.token_f1 == token_f1([hard_rationale(x, int(marked.sum()))], [marked]).f1
    assert isinstance(view_for(s), type(view)) and np.isnan(view.explanation[[0, -1]]).all()
    s.arrays['explanation'][:] = .5
    flat = explanation_beside_rationale(s)
    assert np.isnan([flat.token_f1, flat.auprc]).all() and 'highlights nothing' in flat.notes[0]
    s.arrays['explanation'][1] = .7
    tied = explanation_beside_rationale(s)
    assert np.isnan(tied.token_f1) and np.isfinite(tied.auprc) and 'tie at the threshold' in tied.notes[0]
    s.arrays['rationale'][:] = False
    assert 'marks nothing' in explanation_beside_rationale(s).notes[0]
    for of in ('saliency', 'attention'): assert np.isfinite(explanation_beside_rationale(made(), of).auprc)
    with pytest.raises(ValueError, match="of must be 'explanation', 'saliency'"):
        explanation_beside_rationale(s, 'rationale')
    del s.arrays['rationale']
    with pytest.raises(ValueError, match='rationale'): explanation_beside_rationale(s)

def test_a_head_is_dead_or_collapsed_only_if_it_is_in_every_example():
    def example(key): # all weight on one key; None: uniform
        A = np.full((1, 1, 8, 8), 1/8, np.float32) if key is None else np.zeros((1, 1, 8, 8), np.float32)
        if key is not None: A[..., key] = 1
        return Snapshot(step=0, epoch=0., probe=0, tokens=['[CLS]', *'abcdef', '[SEP]'], words=[*'abcdef'],
                        word_ids=[-1, *range(6), -1], arrays=dict(attention=A))
    for key, mark in ((0, 'dead'), (7, 'dead'), (3, 'collapsed')):
        assert head_marks([example(key), example(key)]) == mark
        assert head_marks([example(key), example(None)]) == head_marks([example(None), example(key)]) == ''


def test_the_largest_logit_is_a_maximum_over_examples_and_missing_in_runs_of_earlier_versions(tmp_path):
    run = invented.run(tmp_path/'old', steps=[0])
    with pytest.raises(ValueError, match='old has no largest_logit; earlier versions of salviz did not record'):
        head_statistics(run, 'largest_logit')
    assert run.head_frame().largest_logit.isna().all() and np.isfinite(head_statistics(run).values).all()
    later, rng = Run.create(tmp_path/'new', dict(method=dict(name='FineTuning', args={}))), np.random.default_rng(0)
    shown = [invented.snapshot(0, probe, method='FineTuning') for probe in (0, 1)]
    logits = [rng.normal(size=s.arrays['attention'].shape[:2])*9 - 9 for s in shown]
    for s, x in zip(shown, logits): later.save(dataclasses.replace(s, arrays=dict(s.arrays, largest_logit=x)))
    view = head_statistics(later, 'largest_logit')
    np.testing.assert_allclose(view.values[:, 0], np.max(logits, axis=0).ravel(), rtol=1e-3, atol=.01)
    assert view.limits[0] < 0 and 'maximum over 2 probe examples' in view.subtitle
    assert 'maximum over all queries and keys of 2 probe examples' in view.caption


@pytest.mark.parametrize('number, label, of_row', [
    ('entropy', 'entropy of attention (nats)', lambda row, query, special: -sum(p*np.log(p) for p in row if p > 0)),
    ('largest', 'largest weight of a query (mean)', lambda row, query, special: max(row)),
    ('to_first', 'attention to the first token (fraction)', lambda row, query, special: row[0]),
    ('to_special', 'attention to later special tokens (fraction)',
     lambda row, query, special: sum(p for key, p in enumerate(row) if special[key] and key)),
    ('distance', 'distance to the attended token (tokens)',
     lambda row, query, special: sum(p*abs(query - key) for key, p in enumerate(row)))])
def test_head_statistics_show_the_number_that_their_label_names(tmp_path, number, label, of_row):
    run = invented.run(tmp_path/'run', steps=[0])
    view = head_statistics(run, number)
    snapshots = [run.snapshot(0, probe) for probe in run.probes]
    def mean(s, layer, head):
        words = [i for i, special in enumerate(s.is_special) if not special]
        return np.mean([of_row(s.arrays['attention'][layer, head, i].astype(float), i, s.is_special) for i in words])
    layers, heads = snapshots[0].arrays['attention'].shape[:2]
    expected = [np.mean([mean(s, layer, head) for s in snapshots]) for layer in range(layers) for head in range(heads)]
    np.testing.assert_allclose(view.values[:, 0], expected, rtol=1e-4) # entropy divides by the sum of a row
    assert view.value_label == label
    assert view.title == f"{label.partition(' (')[0].capitalize()} of each head over training"
