"""Plausibility equals loops from ERASER's definitions and scikit-learn; the lexical prior equals the lexicon"""
import math

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, f1_score

from salviz.core.assets import asset
from salviz.metrics.plausibility import (Score, _aligned, _check_pairs, auprc, hard_rationale, iou_f1, lexical_prior,
                                         plausibility, prior_agreement, rationale_size, spans_of, token_f1)
from salviz.core.text import align_batch


def slow_points(values, marked):
    "Return recall and precision at every distinct value, from the highest, starting at (0, 1)"
    points = [(0., 1.)]
    for threshold in sorted(set(values), reverse=True):
        chosen = [i for i, v in enumerate(values) if v >= threshold]
        hits = sum(marked[i] for i in chosen)
        points.append((hits/sum(marked), hits/len(chosen)))
    return points


def slow_auprc(values, marked):
    area = 0.
    points = slow_points(values, marked)
    for (r0, p0), (r1, p1) in zip(points, points[1:]): area += (r1 - r0)*(p0 + p1)/2
    return area


def slow_harmonic(p, r): return 0. if p == 0 or r == 0 else 2*p*r/(p + r)


def slow_token_scores(chosen, marked):
    "Compute ERASER's instance_macro from sets of tokens, example by example"
    p, r, f = [], [], []
    for c, m in zip(chosen, marked):
        c, m = {i for i, x in enumerate(c) if x}, {i for i, x in enumerate(m) if x}
        p.append(len(c & m)/len(c) if c else 0.)
        r.append(len(c & m)/len(m) if m else 0.)
        f.append(slow_harmonic(p[-1], r[-1]))
    return sum(p)/len(p), sum(r)/len(r), sum(f)/len(f)


def slow_spans(flags):
    out, start = [], None
    for i, x in enumerate([*flags, 0]):
        if x and start is None: start = i
        if not x and start is not None:
            out.append(range(start, i))
            start = None
    return out


def slow_iou(chosen, marked, threshold, micro):
    "Compute ERASER's partial_match_score from the best overlap of each selected span"
    hits, predicted, true = [], [], []
    for c, m in zip(chosen, marked):
        c, m = slow_spans(c), slow_spans(m)
        found = 0
        for a in c:
            best = 0.
            for b in m: best = max(best, len(set(a) & set(b))/len(set(a) | set(b)))
            found += best >= threshold
        hits.append(found); predicted.append(len(c)); true.append(len(m))
    if micro: p, r = sum(hits)/sum(predicted), sum(hits)/sum(true)
    else:
        ps, rs = [h/n for h, n in zip(hits, predicted) if n], [h/n for h, n in zip(hits, true) if n]
        p, r = sum(ps)/len(ps), sum(rs)/len(rs)
    return p, r, slow_harmonic(p, r)


def drawn(seed, examples=12, ties=False):
    rng = np.random.default_rng(seed)
    values = [rng.normal(size=rng.integers(1, 15)) for _ in range(examples)]
    if ties: values = [v.round(0) for v in values]
    return values, [(rng.random(len(v)) < .4).astype(int) for v in values]


@pytest.mark.parametrize('ties', [False, True])
def test_auprc_equals_a_loop_over_thresholds_and_average_precision_equals_scikit_learn(ties):
    counted = 0
    for v, m in zip(*drawn(1, 60, ties)):
        if not m.any():
            assert math.isnan(auprc(v, m))
            continue
        counted += 1
        assert auprc(v, m) == pytest.approx(slow_auprc(v.tolist(), m.tolist()))
        assert auprc(v, m, 'average_precision') == pytest.approx(average_precision_score(m, v))
    assert counted > 40


def test_auprc_of_small_examples():
    assert auprc([4, 3, 2, 1], [0, 1, 0, 1]) == pytest.approx(.5*(0 + .5)/2 + .5*(1/3 + .5)/2)
    assert auprc([1, 1, 1, 1], [0, 1, 0, 0]) == pytest.approx((1 + .25)/2)      # a single point with all tokens
    assert auprc([1, 1, 1, 1], [0, 1, 0, 0], 'average_precision') == pytest.approx(.25)


@pytest.mark.parametrize('seed', range(4))
def test_token_f1_equals_sets_and_scikit_learn(seed):
    values, marked = drawn(seed)
    chosen = [v > .3 for v in values]
    assert token_f1(chosen, marked) == pytest.approx(slow_token_scores(chosen, marked))
    assert token_f1(chosen,
                    marked).f1 == pytest.approx(np.mean([f1_score(m, c, zero_division=0)
                                                         for m, c in zip(marked, chosen)]))
    assert token_f1(chosen, marked, 'micro').f1 == pytest.approx(f1_score(np.concatenate(marked),
                                                                          np.concatenate(chosen)))


@pytest.mark.parametrize('threshold', [.2, .5, 1.])
@pytest.mark.parametrize('average', ['macro', 'micro'])
def test_iou_f1_equals_eraser_partial_match(threshold, average):
    for seed in range(4):
        values, marked = drawn(seed, 20)
        chosen = [v > 0 for v in values]
        assert iou_f1(chosen, marked, threshold,
                      average) == pytest.approx(slow_iou(chosen, marked, threshold, average == 'micro'))


def test_an_overlap_of_exactly_the_threshold_is_a_hit_and_a_little_less_is_not():
    assert iou_f1([[1, 1, 0, 0]], [[1, 0, 0, 0]]).f1 == 1.       # 1/2
    assert iou_f1([[1, 1, 1, 0]], [[1, 0, 0, 0]]).f1 == 0.       # 1/3
    assert iou_f1([[0, 0, 0]], [[1, 0, 0]]) == Score(0., 0., 0.)  # nothing selected: no precision


def test_examples_without_selected_or_marked_spans_count_on_one_side():
    chosen, marked = [[1, 0], [0, 0], [1, 0]], [[1, 0], [1, 0], [0, 0]]
    assert iou_f1(chosen, marked) == pytest.approx((.5, .5, .5))  # precision over examples 0 and 2, recall over 0 and 1


def test_spans_are_maximal_runs():
    rng = np.random.default_rng(0)
    for _ in range(30):
        flags = rng.random(rng.integers(1, 12)) < .5
        assert spans_of(flags) == [(s.start, s.stop) for s in slow_spans(flags)]


def test_the_top_k_is_stable_rounded_up_and_at_least_one():
    assert hard_rationale([1, 2, 2, 2], 2).tolist() == [False, True, True, False]
    assert [int(hard_rationale(np.zeros(n), .1).sum()) for n in (1, 9, 10, 11, 20, 21)] == [1, 1, 1, 2, 2, 3]
    assert int(hard_rationale(np.zeros(3), 7).sum()) == 3  # more than exist
    # .3*30 is 9.000000000000002 in binary
    for kind in (float, np.float64, np.float32): assert int(hard_rationale(np.zeros(30), kind(.3)).sum()) == 9
    for k in (0, -1, 1.5, True, '3', None):
        with pytest.raises(ValueError, match='k must be a positive integer'): hard_rationale([1., 2.], k)


def test_rationale_size_in_both_readings():
    rationales = [[1, 0, 0, 0], [1, 1, 0], None, [0, 0]]
    assert rationale_size(rationales) == pytest.approx((1/4 + 2/3)/2)  # an empty rationale does not count
    assert rationale_size(rationales, 'length') == 2
    with pytest.raises(ValueError, match='no token is marked in any rationale'): rationale_size([[0, 0], None])
    with pytest.raises(ValueError, match="reading must be 'share' or 'length'"): rationale_size(rationales, 'mean')


def test_plausibility_skips_unannotated_examples_and_uses_human_k():
    values, marked = drawn(5, 30)
    some = [m if i % 3 else None for i, m in enumerate(marked)]
    got = plausibility(values, some)
    kept = [(v, m) for v, m in zip(values, some) if m is not None]
    k = np.mean([m.mean() for _, m in kept if m.any()])
    chosen = [hard_rationale(v, float(k)) for v, _ in kept]
    assert got['examples'] == 20 and got['k'] == pytest.approx(k)
    assert got['auprc_examples'] == sum(bool(m.any()) for _, m in kept) < 20  # an empty rationale has no curve
    assert got['auprc'] == pytest.approx(np.mean([slow_auprc(v.tolist(), m.tolist()) for v, m in kept if m.any()]))
    assert got['token_f1'] == pytest.approx(slow_token_scores(chosen, [m for _, m in kept])[2])
    assert got['iou_f1'] == pytest.approx(slow_iou(chosen, [m for _, m in kept], .5, False)[2])
    assert plausibility(values, some, k=2)['k'] == 2 and plausibility(values, some, k=2)['token_f1'] != got['token_f1']


def test_ranking_uses_sign_or_magnitude():
    values, marked = [[-3., 1., .5]], [[1, 0, 0]]
    assert plausibility(values, marked)['token_f1'] == 0.
    assert plausibility(values, marked, ranking='magnitude')['token_f1'] == 1.


@pytest.mark.parametrize('values,rationales,message', [
    ([[1, 2]], [], 'the same length, got 1 and 0'),
    ([[1, 2]], [[1]], 'of example 0, without special tokens and padding, got shapes [2] and [1]'),
    ([[1, 2]], [None], 'no example has a rationale'),
    ([[1, np.inf]], [[0, 1]], 'must be finite, got inf'), ([[1, 2]], [[0, .5]], 'flags, 0 or 1, got 0.5')])
def test_inconsistent_pairs_raise(values, rationales, message):
    with pytest.raises(ValueError) as e: _check_pairs(values, rationales)
    assert message in str(e.value)


def test_unknown_settings_raise():
    for call in (lambda: auprc([1], [1], 'simpson'), lambda: token_f1([[1]], [[1]], 'weighted'),
                 lambda: iou_f1([[1]], [[1]], average='weighted'),
                 lambda: iou_f1([[1]], [[1]], threshold=0), lambda: plausibility([[1.]], [[1]], ranking='abs'),
                 lambda: prior_agreement([1.], ['a'], 'mean')):
        with pytest.raises(ValueError, match='must be'): call()


def test_tokens_and_words_of_pairs_align_with_marks(tiny_tokenizer):
    first, second = 'the clumsy film', 'a fine plot of it'
    whole, cut = align_batch(tiny_tokenizer, [first], [second])[0], align_batch(tiny_tokenizer, [first], [second], 9)[0]
    spans = [[0, 4, 10], [1, 2, 6], [1, 12, 14]]
    for tt in (whole, cut):
        values = np.arange(1., len(tt) + 4)  # three padding tokens
        (v,), (m,) = _aligned([tt], [values], [spans])
        there = [w for w in range(len(tt.words)) if w in tt.word_ids]
        assert v.tolist() == [sum(values[i] for i in range(len(tt)) if tt.word_ids[i] == w) for w in there]
        assert [tt.words[w] for w, x in zip(there, m) if x] == [w for w in ('clumsy', 'fine', 'of')
                                                                if w in [tt.words[i] for i in there]]
        (v,), (m,) = _aligned([tt], [values], [spans], unit='token')
        assert v.tolist() == [values[i] for i in range(len(tt)) if not tt.is_special[i]] and len(m) == len(v)
        assert _aligned([tt], [values], [None])[1] == [None]
    assert len(cut.words) == len(whole.words) > len(there)
    assert _aligned([whole], [np.arange(len(whole))],
                   [[0, 1, 0, 0, 1, 0, 1, 0]])[1][0].tolist() == _aligned([whole], [np.arange(len(whole))],
                                                                         [spans])[1][0].tolist()
    for how, f in dict(mean=np.mean, max=np.max, first=lambda x: x[0]).items():
        assert _aligned([whole], [np.arange(len(whole))], [None],
                       how=how)[0][0][1] == f(np.flatnonzero(whole.word_ids == 1))


def test_inconsistent_texts_raise(tiny_tokenizer):
    tt = align_batch(tiny_tokenizer, ['the film'])[0]
    with pytest.raises(ValueError, match='values of example 0 must have one number for each of its 4 tokens'):
        _aligned([tt], [[1, 2]], [None])
    with pytest.raises(ValueError, match='the rationale of example 0 does not match its text: spans must lie inside'):
        _aligned([tt], [np.zeros(4)], [[[0, 99]]])
    with pytest.raises(ValueError, match="unit must be 'word' or 'token'"):
        _aligned([tt], [np.zeros(4)], [None], unit='char')
    with pytest.raises(ValueError, match='the same length, got 1, 1 and 0'): _aligned([tt], [np.zeros(4)], [])


def test_the_lexical_prior_is_the_mean_of_the_ten_ratings_in_the_packaged_file():
    lines = [line.split('\t')
             for line in (asset('movie-sentences')/'vader_sentiment_lexicon.txt').read_text(encoding='latin-1').split(
        '\n') if line]
    some = lines[200:7000:97]
    assert len(some) > 60
    last = {word: mean for word, mean, *_ in lines}
    assert lexical_prior([line[0] for line in some]).tolist() == [float(last[line[0]]) for line in some]
    for _, mean, _, ratings in some:
        assert float(mean) == pytest.approx(np.mean([int(x) for x in ratings.strip('[]').split(',')]), abs=.06)
    assert np.isnan(lexical_prior(['zebra', 'the'])).all()
    assert lexical_prior(['GREAT'])[0] == lexical_prior(['great'])[0] == 3.1


def test_prior_agreement_equals_scipy_spearman():
    words = 'a great film with a terrible and boring plot'.split()
    values = np.random.default_rng(0).normal(size=len(words))
    prior = np.abs(lexical_prior(words))
    assert prior_agreement(values, words) == pytest.approx(spearmanr(np.abs(values), np.nan_to_num(prior)).statistic)
    known = ~np.isnan(prior)
    assert known.sum() == 3
    assert prior_agreement(values, words,
                           'leave_out') == pytest.approx(spearmanr(np.abs(values[known]), prior[known]).statistic)
    assert math.isnan(prior_agreement([1., 2., 3.], ['the', 'of', 'a']))
    assert math.isnan(prior_agreement([1., 2.], ['good', 'bad']))
    with pytest.raises(ValueError, match='must be a number for each word, got shapes .1. and .9.'):
        prior_agreement([1.], words)
