"""Agreement of attention and saliency, of attributions, runs and steps, and distance to patterns equal loops, scipy and
small examples"""
import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import salviz
from salviz.metrics.agreement import (_query_rows, _top_count, agreement_table, compare_attributions, compare_methods,
                                      compare_runs, compare_snapshots, likeness, pattern_distance, pattern_table,
                                      run_agreement_table, step_drift)
from salviz.metrics.scores import attention_agreement
from salviz.core.snapshots import Snapshot
from salviz.core.runs import Run


def slow_top(x, k): return set(sorted(range(len(x)), key=lambda i: (-x[i], i))[:k])

def slow_likeness(a, b, share=.2):
    "Return the similarity metrics of two plain lists without negative numbers, all of which count"
    n = len(a)
    k = max(1, math.ceil(n*share - 1e-6))
    rho = scipy.stats.spearmanr(a, b)[0] if n >= 3 and len(set(a)) > 1 and len(set(b)) > 1 else math.nan
    p, q = [x/sum(a) if sum(a) else math.nan for x in a], [x/sum(b) if sum(b) else math.nan for x in b]
    apart = 0.
    for x, y in zip(p, q):
        if math.isnan(x) or math.isnan(y): apart = math.nan
        elif x > 0: apart += x*math.log(x/y) if y > 0 else math.inf
    overlap = (len(slow_top(a, k) & slow_top(b, k))/min(k, n) if n and (n <= k or len(set(a)) > 1 and len(set(b)) > 1)
               else math.nan)
    return rho, apart if n else math.nan, overlap

def attention_of(rng, layers, heads, n, causal=False):
    A = rng.dirichlet(np.ones(n)*.7, (layers, heads, n))
    if causal: A = np.tril(A); A /= A.sum(-1, keepdims=True)
    return A

def look(seed=0, n=9, step=0, probe=0, causal=False, pooled_row=0, text='a sentence', words=None, **arrays):
    rng = np.random.default_rng(seed)
    word_ids = np.arange(n) - 1
    word_ids[-1] = -1
    info = {} if pooled_row is None else dict(pooled_row=pooled_row)
    return Snapshot(step, 0., probe, dict(attention=attention_of(rng, 3, 4, n, causal), saliency=rng.normal(size=n),
                                          **arrays), texts=(text,),
                    tokens=words or ['[CLS]', *[f't{i}' for i in range(n - 2)], '[SEP]'], word_ids=word_ids, info=info)


@pytest.mark.parametrize('ties', [False, True])
@pytest.mark.parametrize('share', [.1, .34, 1])
def test_likeness_equals_scipy_and_loops_for_any_mask(ties, share):
    rng = np.random.default_rng(3)
    for n in (1, 2, 3, 6, 13):
        a, b, counts = rng.random((5, n)) + .01, rng.random((5, n)) + .01, rng.random((5, n)) < .7
        if ties: a, b = a.round(1) + .1, b.round(1) + .1
        got = likeness(a, b, counts, share)
        for i in range(5):
            kept = np.flatnonzero(counts[i])
            want = slow_likeness(a[i, kept].tolist(), b[i, kept].tolist(), share)
            assert [got[k][i] for k in ('spearman', 'kl', 'top_overlap')] == pytest.approx(want, nan_ok=True, abs=1e-12)
            if len(kept): assert got['kl'][i] == pytest.approx(scipy.stats.entropy(a[i, kept], b[i, kept]), abs=1e-12)


def test_sign_selects_the_compared_values():
    a, b = np.array([3., -2., .5, -.1]), np.array([1., 4., -.5, .2])
    magnitude, positive, signed = (likeness(a, b, sign=s, top_fraction=.5) for s in ('magnitude', 'positive', 'signed'))
    assert float(magnitude['spearman']) == pytest.approx(scipy.stats.spearmanr(abs(a), abs(b))[0])
    assert float(signed['spearman']) == pytest.approx(scipy.stats.spearmanr(a, b)[0])
    # infinite, because .5 is compared with 0
    assert float(positive['kl']) == pytest.approx(slow_likeness([3., 0., .5, 0.], [1., 4., 0., .2])[1])
    assert math.isnan(signed['kl']) and float(magnitude['top_overlap']) == 1 and float(signed['top_overlap']) == .5


def test_non_finite_or_empty_rows_are_nan_without_affecting_others():
    got = likeness([[1., np.nan, 3.], [np.inf, 1., 2.], [0., 0., 0.], [1., 2., 4.]], [[1., 2., 3.]]*4)
    assert np.isnan(got['spearman']).tolist() == [True, True, True, False]
    assert np.isnan(got['kl']).tolist() == [True, True, True, False]
    # among equal numbers, the position would decide
    assert np.isnan(got['top_overlap']).tolist() == [True, True, True, False]
    assert np.isnan([likeness(*pair)['top_overlap'] for pair in ((np.zeros(10), np.arange(10.)),
                                                                 (np.arange(10.), np.zeros(10)))]).all()
    outside = likeness([1., 2., 4., np.nan], [1., 2., 4., 5.], [True, True, True, False])
    assert float(outside['spearman']) == 1 and float(outside['kl']) == 0
    nothing = likeness(np.ones((2, 3)), np.ones((2, 3)), np.zeros((2, 3), bool))
    assert all(np.isnan(x).all() for x in nothing.values())


@pytest.mark.parametrize('n, share, k', [(10, .2, 2), (11, .2, 3), (5, .2, 1), (1, .01, 1), (10, 1, 10), (30, .1, 3)])
def test_top_fraction_is_rounded_up(n, share, k): assert _top_count(n, share) == k


def slow_table(s, pooled, causal):
    "Return {(layer, head): numbers} of `agreement_table`, by loops"
    A, sal, ordinary = s.arrays['attention'], s.arrays['saliency'], [i for i in range(len(s.tokens))
                                                                     if not s.is_special[i]]
    rows, out = [s.info['pooled_row']] if pooled else ordinary, {}
    for l in range(3):
        for h in range(4):
            weight = [sum(float(A[l, h, r, j]) for r in rows)/len(rows) for j in ordinary]
            wide, share = [], []
            for r in rows:
                keys = [j for j in range(len(s.tokens)) if not causal or j <= r]
                wide.append(-sum(A[l, h, r, j]*math.log(A[l, h, r, j]) for j in keys if A[l, h, r, j] > 0))
                if len(keys) > 1: share.append(wide[-1]/math.log(len(keys)))
            out[l, h] = (*slow_likeness([abs(sal[j]) for j in ordinary], weight), sum(wide)/len(wide),
                         sum(share)/len(share) if share else math.nan)
    return out

@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('pooled', [False, True])
def test_the_table_of_heads_equals_loops(pooled, causal):
    s = look(5, causal=causal, pooled_row=(8 if causal else 0) if pooled else None)
    table, want = agreement_table(s), slow_table(s, pooled, causal)
    assert list(table) == ['layer', 'head', 'spearman', 'kl', 'top_overlap', 'entropy', 'normalised_entropy']
    assert len(table) == 12
    for row in table.itertuples(): assert row[3:] == pytest.approx(want[row.layer, row.head], abs=1e-10)
    scipy_entropy = np.mean([scipy.stats.entropy(s.arrays['attention'][1, 2, r]) for r in _query_rows(s)])
    assert table.entropy[6] == pytest.approx(scipy_entropy)


def test_layer_row_uses_the_mean_map_like_the_run_metric():
    for seed in range(5):
        for row in (0, None):
            s = look(seed, pooled_row=row)
            layers, whole = agreement_table(s, level='layer'), agreement_table(s, level='all')
            assert layers.spearman.iloc[-1] == pytest.approx(attention_agreement(s), abs=1e-12)
            assert whole.level.tolist() == ['head']*12 + ['layer']*3 + ['mean']
            assert whole.layer.isna().sum() == 1
            assert whole['head'].isna().sum() == 4
            mean = agreement_table(Snapshot(0, 0., 0,
                                            dict(attention=s.arrays['attention'].mean((0, 1))[None, None],
                                                 saliency=s.arrays['saliency']), tokens=s.tokens,
                                            word_ids=s.word_ids, info=s.info))
            assert whole.iloc[-1][['spearman', 'kl',
                                   'entropy']].tolist() == pytest.approx(
                mean.iloc[0][['spearman', 'kl', 'entropy']].tolist())


def test_recorded_layers_keep_their_numbers_and_an_undefined_head_is_nan():
    s = look(1)
    s.layers['attention'] = [2, 5, 7]
    s.arrays['attention'][1, 3, 0] = np.nan
    table = agreement_table(s)
    assert table.layer.tolist() == [2]*4 + [5]*4 + [7]*4
    bad = table[table[['spearman', 'kl', 'top_overlap', 'entropy']].isna().any(axis=1)]
    assert bad[['layer', 'head']].to_numpy().tolist() == [[5, 3]] and bad.entropy.isna().all()


def test_fewer_than_three_ordinary_tokens_have_no_rank_correlation():
    s = look(0, n=2, pooled_row=None, words=['[CLS]', '[SEP]'])
    s.is_special[:] = True
    assert agreement_table(s).iloc[:, 2:].isna().all().all()
    assert agreement_table(look(0, n=4)).spearman.isna().all() and agreement_table(look(0, n=4)).kl.notna().all()


@pytest.mark.parametrize('call, error, message', [
    (lambda s: agreement_table(s, saliency='rationale'), KeyError, 'has no rationale; available: attention, saliency'),
    (lambda s: agreement_table(s, saliency='is_masked'), ValueError,
     'is_masked must contain one number for each of the 9 tokens'),
    (lambda s: agreement_table(s, level='row'), ValueError, "'head', 'layer', 'mean' or 'all'"),
    (lambda s: agreement_table(s, rows='first'), ValueError, "rows must be 'auto', 'pooled' or 'ordinary'"),
    (lambda s: agreement_table(s, sign='abs'), ValueError, 'sign must be one of'),
    (lambda s: agreement_table(s, top_fraction=0), ValueError, 'top_fraction must be above 0'),
    (lambda s: _query_rows(look(pooled_row=9)), ValueError, 'one of the 9 tokens'),
    (lambda s: compare_snapshots(s, s, 'discarded'), KeyError, 'has no discarded'),
    (lambda s: compare_snapshots(s, s, keys='words'), ValueError, "keys must be 'all' or 'ordinary'"),
    (lambda s: compare_snapshots(s, look(text='another')), ValueError,
     "the same sentence and tokens can be compared, got 'a sentence' and 'another'"),
    (lambda s: compare_snapshots(s, look(n=10)), ValueError, 'split differently into 9 and 10 tokens'),
    (lambda s: pattern_distance(np.ones(3), np.ones((3, 3))), ValueError, r'attention must be \[..., n, n\]'),
    (lambda s: compare_methods(dict(one=[[1., 2.]])), ValueError, 'at least two methods, got one'),
    (lambda s: compare_attributions([1., 2.], [1., 2.]), ValueError, 'pass a single attribution in a list'),
    (lambda s: compare_attributions([[1., 2.]], [[1., 2., 3.]]), ValueError, 'of the same shape in example 0'),
    (lambda s: compare_attributions([[1., 2.]], [[1., 2.]], [[True]*2]*2), ValueError, 'got 1, 1 and 2')])
def test_invalid_comparisons_raise(call, error, message):
    with pytest.raises(error, match=message): call(look(is_masked=np.zeros(9, bool)))

def test_old_name_of_top_fraction_causes_a_warning():
    s = look()
    for call in (agreement_table, salviz.agreement_table):
        with pytest.warns(DeprecationWarning, match='agreement_table: top_share is now called top_fraction'):
            old = call(s, top_share=.5)
        pd.testing.assert_frame_equal(old, call(s, top_fraction=.5))
    with pytest.raises(TypeError, match='top_share is the old name of top_fraction'):
        agreement_table(s, top_share=.5, top_fraction=.5)


def test_attributions_of_any_shape_are_compared_example_by_example():
    rng = np.random.default_rng(0)
    texts = [rng.normal(size=n) for n in (4, 7, 12)], [rng.normal(size=n) for n in (4, 7, 12)]
    images, series = rng.normal(size=(2, 3, 6, 5)), rng.normal(size=(2, 2, 10, 4))
    for a, b in (texts, images, series):
        table = compare_attributions(a, b, sign='signed')
        assert table.spearman.tolist() == pytest.approx([scipy.stats.spearmanr(x.ravel(), y.ravel())[0]
                                                         for x, y in zip(a, b)])
        sizes = compare_attributions(a, b)
        assert sizes.kl.tolist() == pytest.approx([scipy.stats.entropy(abs(x).ravel(), abs(y).ravel())
                                                   for x, y in zip(a, b)])
        assert table['count'].tolist() == [x.size for x in a]


def test_padding_that_does_not_count_changes_nothing():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 3, 6))
    padded = [np.pad(x, ((0, 0), (0, 4))) for x in (a, b)]
    counts = np.pad(np.ones((3, 6), bool), ((0, 0), (0, 4)))
    want = compare_attributions(a, b).to_numpy()
    assert compare_attributions(*padded, counts).to_numpy() == pytest.approx(want)
    assert compare_attributions(*padded).to_numpy() != pytest.approx(want)


def test_all_pairs_of_methods_are_compared_without_undefined_examples():
    values = dict(flat=[[1., 1., 1., 1.], [1., 2., 3., 4.]], steep=[[4., 3., 2., 1.], [1., 2., 3., 9.]])
    table = compare_methods(values).set_index(['method_a', 'method_b'])
    assert table.spearman.tolist() == [1., 1.] and table.examples.tolist() == [2, 2]
    assert table.kl['flat',
                    'steep'] == pytest.approx(np.mean([scipy.stats.entropy(x, y)
                                                       for x, y in zip(values['flat'], values['steep'])]))
    assert table.kl['flat', 'steep'] != pytest.approx(table.kl['steep', 'flat'])


@pytest.mark.parametrize('keys', ['all', 'ordinary'])
@pytest.mark.parametrize('causal', [False, True])
def test_snapshots_are_compared_row_by_row_over_existing_keys(causal, keys):
    a, b = look(1, causal=causal), look(2, causal=causal)
    table = compare_snapshots(a, b, keys=keys).set_index(['layer', 'head'])
    for l, h in ((0, 0), (2, 3), (1, 2)):
        want = []
        for r in range(1, 8):
            kept = [j for j in range(9) if (not causal or j <= r) and (keys == 'all' or 0 < j < 8)]
            want.append(slow_likeness(*[s.arrays['attention'][l, h, r, kept].tolist() for s in (a, b)]))
        assert table.loc[(l, h)].tolist() == pytest.approx(np.nanmean(want, 0).tolist())
    assert len(compare_snapshots(a, b, rows='pooled')) == 12
    assert not compare_snapshots(a, b, rows='pooled').equals(compare_snapshots(a, b))


def test_attributions_and_saliency_of_snapshots_can_be_compared():
    rng = np.random.default_rng(4)
    one, two = rng.normal(size=(2, 1, 4, 9, 9))
    a, b = look(1, attention_attribution=one), look(2, attention_attribution=two)
    for s in (a, b): s.layers['attention_attribution'] = [2]
    got = compare_snapshots(a, b, 'attention_attribution', sign='signed')
    want = np.mean([scipy.stats.spearmanr(one[0, 3, r], two[0, 3, r])[0] for r in range(1, 8)])
    assert got.layer.tolist() == [2]*4 and got.spearman[3] == pytest.approx(want) and got.kl.isna().all()
    sal = [abs(s.arrays['saliency'][1:8]).tolist() for s in (a, b)]
    assert compare_snapshots(a, b, 'saliency').iloc[0].tolist() == pytest.approx(slow_likeness(*sal))
    b.layers['attention_attribution'] = [1]
    with pytest.raises(ValueError, match=r'got shape \[1, 4, 9, 9\] \(layers \[2\]\) and '
                                          r'shape \[1, 4, 9, 9\] \(layers \[1\]\)'):
        compare_snapshots(a, b, 'attention_attribution')


@pytest.fixture
def runs(tmp_path):
    "Create two runs with the same three sentences as probes, numbered differently, and three steps"
    out = []
    for r, order in enumerate(((0, 1, 2), (2, 0, 1))):
        out.append(Run.create(tmp_path/f'run{r}', {}))
        for step in (0, 10, 30):
            for probe, text in enumerate(order):
                out[-1].save(look(100*r + 10*step + text, step=step, probe=probe, text=f'sentence {text}'))
    return out


def test_probes_of_two_runs_are_matched_by_sentence(runs):
    table = compare_runs(*runs, step=10, step_b=30)
    assert table.probe.tolist() == sum([[p]*12 for p in range(3)], [])
    assert set(table.step_a) == {10}
    assert set(table.step_b) == {30}
    # 'sentence 0' is probe 1 of the second run
    want = compare_snapshots(runs[0].snapshot(10, 0), runs[1].snapshot(30, 1))
    assert table[table.probe == 0].drop(columns=['probe', 'step_a', 'step_b']).reset_index(drop=True).equals(want)
    assert compare_runs(*runs).step_b.unique().tolist() == [30]


def test_runs_with_different_sentences_raise(runs, tmp_path):
    runs[0].save(look(0, step=30, probe=3, text='one more'))
    with pytest.raises(ValueError,
                       match="probe 3 .'one more'. has no counterpart in the other run; .*random probes depend on the "
                       "seed.*probes='test\\[:8\\]'"):
        compare_runs(*runs)
    with pytest.raises(ValueError, match="probe 3 of the other run .'one more'. has no counterpart"):
        compare_runs(*runs[::-1])
    with pytest.raises(ValueError, match='nothing has no snapshots yet'):
        compare_runs(runs[0], Run.create(tmp_path/'nothing', {}))


def test_drift_compares_with_the_previous_or_first_step(runs):
    run = runs[0]
    table, first = step_drift(run, level='mean'), step_drift(run, 'first', probe=1, level='mean')
    assert table[['probe', 'step', 'against']].to_numpy().tolist() == [[p, s, a] for p in range(3)
                                                                       for s, a in ((10, 0), (30, 10))]
    assert table.kl[3] == compare_snapshots(run.snapshot(10, 1), run.snapshot(30, 1), level='mean').kl[0]
    assert first.kl[1] == compare_snapshots(run.snapshot(0, 1), run.snapshot(30, 1), level='mean').kl[0]
    with pytest.raises(ValueError, match="against must be 'previous' or 'first'"): step_drift(run, 'last')
    with pytest.raises(KeyError, match='no probe 7'): step_drift(run, probe=7)


def test_run_table_has_the_tables_of_all_probes(runs):
    table = run_agreement_table(runs[0], step=None, level='layer')
    assert len(table) == 3*3*3 and list(table)[:3] == ['step', 'probe', 'layer']
    part = table.query('step == 10 and probe == 2').drop(columns=['step', 'probe']).reset_index(drop=True)
    assert part.equals(agreement_table(runs[0].snapshot(10, 2), level='layer'))
    assert run_agreement_table(runs[0]).step.unique().tolist() == [30]


def test_pattern_distance_equals_loops_without_padding():
    rng = np.random.default_rng(0)
    A, P, n = attention_of(rng, 2, 3, 6), np.eye(6, k=1), 6
    P[2] = 0
    got = pattern_distance(A, P)
    for l in range(2):
        for h in range(3):
            squared = sum((A[l, h, q, k] - P[q, k])**2 for q in range(n) for k in range(n))
            share = np.mean([A[l, h, q, q + 1] for q in range(n - 1) if q != 2])
            assert (got['squared'][l, h], got['mean_squared'][l, h],
                    got['share'][l, h]) == pytest.approx((squared, squared/n**2, share))
    grown, real = (np.pad(x, [(0, 0)]*(x.ndim - 2) + [(2, 1), (2, 1)], constant_values=.3)
                   for x in (A, P)), np.arange(9)
    again = pattern_distance(*grown, real=(real >= 2) & (real < 8))
    for k in got: assert again[k] == pytest.approx(got[k])
    each = pattern_distance(A, rng.dirichlet(np.ones(6), (2, 3, 6)))
    assert each['squared'].shape == (2, 3) and len(set(each['squared'].ravel())) == 6


def test_mean_squared_distance_matches_the_released_guidance_loss():
    "The mean over cells of one head and one pattern, as in torch's own mean squared error"
    import torch
    rng = np.random.default_rng(2)
    A, P = rng.dirichlet(np.ones(7), 7), rng.dirichlet(np.ones(7), 7)
    assert float(pattern_distance(A, P)['mean_squared']) == pytest.approx(
        float(torch.nn.functional.mse_loss(torch.tensor(A), torch.tensor(P))))


def test_named_and_guided_patterns_are_compared():
    s = look(3, words=['[CLS]', 'so', 'good', '.', 'a', 'b', '.', 'c', '[SEP]'])
    table = pattern_table(s).set_index(['pattern', 'layer', 'head'])
    A = s.arrays['attention'][1, 2]
    assert table.share['delim', 1, 2] == pytest.approx(A[:, [0, 8]].sum(1).mean())
    assert table.share['period', 1, 2] == pytest.approx(A[:, [3, 6]].sum(1).mean())
    assert table.share['first', 1, 2] == pytest.approx(A[:, 0].mean())
    assert table.share['prev', 1, 2] == pytest.approx(np.diag(A, -1).mean())
    target = np.zeros((9, 9)); target[:, [3, 6]] = .5
    assert table.squared['period', 1, 2] == pytest.approx(((A - target)**2).sum())
    assert pattern_table(look(3), ['period']).iloc[:, 3:].isna().all().all()
    one = pattern_table(s, ['period'], multiple='indicator')
    assert one.squared[6] == pytest.approx(((A - 2*target)**2).sum())
    guided = np.zeros((2, 4), bool); guided[0, 1] = guided[1, 3] = True
    P = np.zeros((2, 4, 9, 9)); P[0, 1], P[1, 3] = target, s.arrays['attention'][2, 3]
    own = Snapshot(0, 0., 0, dict(s.arrays, pattern_target=P, guided=guided),
                   layers=dict(pattern_target=[0, 2], guided=[0, 2]), tokens=s.tokens)
    got = pattern_table(own, None)
    assert got[['layer', 'head']].to_numpy().tolist() == [[0, 1], [2, 3]] and got.squared[1] == 0
    assert got.squared[0] == pytest.approx(((s.arrays['attention'][0, 1] - target)**2).sum())
    own.arrays['guided'][:] = False
    with pytest.raises(ValueError, match='no recorded head of this snapshot is guided'): pattern_table(own, None)

# Kendall's tau, on request

def tau_by_pairs(x, y):
    "Return tau-b from its definition: concordant minus discordant pairs, normalised"
    score, left, right = 0, 0, 0
    for i in range(len(x)):
        for j in range(i):
            p, q = np.sign(x[i] - x[j]), np.sign(y[i] - y[j])
            score, left, right = score + p*q, left + p*p, right + q*q
    return score/math.sqrt(left*right) if left*right else math.nan

def test_kendalls_tau_equals_pair_counts_and_is_optional():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, (2, 6, 7)).astype(float) # with ties
    a[4] = 2.
    counts = rng.random((6, 7)) < .8
    counts[5] = [True, True, *[False]*5]
    a[3, 0], counts[3, 0] = np.nan, True
    got = likeness(a, b, counts, kendall=True)
    assert set(got) - set(likeness(a, b, counts)) == {'kendall'}
    want = [tau_by_pairs(x[c], y[c]) for x, y, c in zip(a, b, counts)]
    want[3] = want[5] = math.nan # a row with NaN, and one with two tokens
    assert got['kendall'] == pytest.approx(want, nan_ok=True) and np.isnan(got['kendall']).tolist() == [
        False, False, False, True, True, True]
    same = compare_attributions(a[:3], a[:3], counts[:3], kendall=True)
    assert list(same)[-1] == 'kendall' and same.kendall.tolist() == pytest.approx([1, 1, 1])
    table = compare_methods(dict(A=a[:3], B=b[:3]), kendall=True)
    assert table.kendall.tolist() == pytest.approx([np.mean([tau_by_pairs(x, y) for x, y in zip(a[:3], b[:3])])]*2)
