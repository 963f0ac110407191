"salviz.core.maths against tests/golden.json, against loops over random inputs, and in edge cases"
import json

import numpy as np
import pytest
import scipy.stats

import make_golden as slow
from salviz.core import maths

golden = json.loads(slow.PATH.read_text())


def floats(x): return np.array(x, dtype=np.float64)   # null in the file means undefined and becomes NaN


def same(got, expected): np.testing.assert_allclose(floats(got), floats(expected), rtol=1e-9, atol=1e-11)


def test_golden_file_matches_its_script(): assert slow.PATH.read_text() == slow.text()


def test_golden_file_covers_ties_undefined_values_and_absent_patterns():
    B = [r for c in golden['discard_candidates'] for r in c['attribution']]
    assert any(len(set(r)) < len(r) for r in B)
    assert any(c['expected'] is None for c in golden['spearman']) and any(c['expected'] is None for c in golden['kl'])
    assert any(c['expected'] is None for c in golden['pattern_matrix'])
    assert any(sum(c['expected']) == 0 for c in golden['saliency_target'])


@pytest.mark.parametrize('name', sorted(golden))
def test_numpy_matches_the_golden_vectors(name):
    for case in golden[name]:
        expected = case['expected']
        got = getattr(maths, name)(**{k: v for k, v in case.items() if k != 'expected'})
        if name == 'pattern_matrix' and expected is None: assert got is None
        else: same(got, expected)


def test_retained_count_is_exact_for_two_decimals_and_up_to_512_keys():
    n = np.arange(513)
    for hundredths in range(101):
        np.testing.assert_array_equal(maths.retained_count(n, hundredths/100), n*(100 - hundredths)//100)
    assert isinstance(maths.retained_count(10, .8), int)


def allowed_masks(rng, shape):
    "Return masks with padding at either end, causal, with a sliding window, with random holes, and an empty row"
    *lead, q, k = shape
    i, j = np.indices((q, k))
    holes = rng.random(shape) < .6
    holes[..., 0, :] = False
    return [np.ones((q, k), bool), j < k - rng.integers(k), j >= rng.integers(k), j <= i, abs(i - j) <= 2, holes]


@pytest.mark.sample(3)
@pytest.mark.parametrize('region', maths.region_names)
@pytest.mark.parametrize('dtype', [np.float64, np.float32, np.float16])
def test_the_region_equals_a_sort_of_each_row(region, dtype):
    rng = np.random.default_rng(0)
    for trial in range(12):
        shape = (2, 3, n := int(rng.integers(1, 14)), n)
        B = rng.standard_normal(shape) if trial % 2 else rng.integers(-2, 3, shape)/4   # every other one has ties
        B = B.astype(dtype)
        for allowed in allowed_masks(rng, shape):
            full = np.broadcast_to(allowed, shape)
            for p in (.1, .3, .5, .8, .9):
                got = maths.discard_candidates(B, allowed, p, region)
                for at in np.ndindex(shape[:-1]):
                    assert got[at].tolist() == slow.candidate_row(B[at].astype(float).tolist(), full[at].tolist(), p,
                                                                  region)


def test_forbidden_keys_never_matter():
    rng = np.random.default_rng(1)
    B, allowed = rng.standard_normal((3, 8, 8)), np.tril(np.ones((8, 8), bool))
    clean = maths.discard_candidates(B, allowed, .4)
    for junk in (np.inf, -np.inf, np.nan, 1e30):
        np.testing.assert_array_equal(maths.discard_candidates(np.where(allowed, B, junk), allowed, .4), clean)
        np.testing.assert_allclose(maths.entropy(np.where(allowed, abs(B), junk), allowed),
                                   maths.entropy(abs(B)*allowed))
        np.testing.assert_array_equal(maths.saliency_target(np.where(allowed, B, junk), allowed),
                                      maths.saliency_target(B, allowed))
        np.testing.assert_array_equal(maths.spearman(np.where(allowed, B, junk), B, allowed),
                                      maths.spearman(B, B, allowed))


def test_the_scale_of_attributions_does_not_matter():
    B, allowed = np.random.default_rng(10).standard_normal((6, 6)) + 5, np.tril(np.ones((6, 6), bool))
    for region in maths.region_names:
        expected = maths.discard_candidates(B, allowed, .5, region)
        for scale in (1e-30, 1e30):
            np.testing.assert_array_equal(maths.discard_candidates(B*scale, allowed, .5, region), expected)


def test_infinite_attributions_are_ranked_like_others():
    allowed = [1, 1, 1, 1, 0]
    assert maths.discard_candidates([np.inf, 0., -np.inf, np.inf, 9.], allowed,
                                    .5).tolist() == [True, False, False, True, False]
    assert maths.discard_candidates([np.inf, 0., -np.inf, np.inf, 9.], allowed, .5,
                                    'low').tolist() == [False, True, True, False, False]


def test_without_ties_the_region_has_exactly_n_minus_k_positions():
    rng = np.random.default_rng(2)
    B = rng.standard_normal((4, 40, 40))
    for p in (.1, .3, .8):
        for region in ('high', 'low'):
            assert (maths.discard_candidates(B, True, p, region).sum(-1) == 40 - maths.retained_count(40, p)).all()


def test_constant_rows_are_candidates_unless_everything_is_retained():
    for region in ('high', 'low'):
        assert maths.discard_candidates(np.zeros((3, 7)), True, .3, region).all()
        assert not maths.discard_candidates(np.zeros((3, 7)), True, 0., region).any()


def test_released_low_region_has_floor_pn_positions_and_excludes_ties():
    rng, allowed = np.random.default_rng(12), np.tril(np.ones((40, 40), bool))
    B = rng.standard_normal((4, 40, 40))
    for hundredths in (1, 10, 29, 30, 57, 80, 99):
        size = maths.discard_candidates(B, allowed, hundredths/100, 'low_released').sum(-1)
        assert (size == np.arange(1, 41)*hundredths//100).all()
    nine = np.arange(9.)
    found = {r: np.flatnonzero(maths.discard_candidates(nine, True, .3, r)).tolist() for r in maths.region_names}
    assert found == dict(high=[6, 7, 8], low=[0, 1, 2], low_released=[0, 1])
    assert not maths.discard_candidates(np.zeros((3, 7)), True, .9, 'low_released').any()
    ties = [0., 1., 1., 1., 2.]
    low, released = (maths.discard_candidates(ties, True, .5, r).tolist() for r in ('low', 'low_released'))
    assert low == [True, True, True, True, False] and released == [True, False, False, False, False]


def test_patterns_ignore_padding_at_any_position():
    rng = np.random.default_rng(3)
    for _ in range(60):
        n = int(rng.integers(1, 10))
        real, occurs = rng.random(n) < .7, rng.random(n) < .4
        for name in maths.pattern_names:
            for boundary in ('uniform', 'zero'):
                for multiple in ('uniform', 'indicator'):
                    where = occurs if name in ('delim', 'period') else None
                    got = maths.pattern_matrix(name, real, where, boundary, multiple)
                    expected = slow.pattern_matrix(name, real.tolist(), None if where is None else where.tolist(),
                                                   boundary, multiple)
                    if expected is None: assert got is None
                    else: same(got, expected)


def test_default_pattern_rows_are_distributions_over_real_tokens():
    real, occurs = np.array([0, 1, 1, 1, 1, 0], bool), np.array([1, 1, 0, 0, 1, 1], bool)
    for name in maths.pattern_names:
        P = maths.pattern_matrix(name, real, occurs if name in ('delim', 'period') else None)
        np.testing.assert_allclose(P.sum(1), real)
        assert not P[:, ~real].any()


def test_the_saliency_target_equals_a_loop_over_rows():
    rng = np.random.default_rng(4)
    for trial in range(30):
        shape = (3, int(rng.integers(1, 25)))
        s = rng.standard_normal(shape) if trial % 2 else rng.integers(-1, 2, shape).astype(float)
        allowed = rng.random(shape) < .7
        for share in (.05, .1, .3, 1.):
            for binarised in (True, False):
                got = maths.saliency_target(s, allowed, share, binarised)
                for row, a, g in zip(s, allowed, got):
                    same(g, slow.saliency_target(row.tolist(), a.tolist(), share, binarised))


def test_the_number_of_marked_tokens_is_exact_for_every_length():
    for n in range(1, 129):
        for hundredths in (7, 10, 14, 28, 30, 56, 68, 100):
            assert (maths.saliency_target(np.arange(n), True, hundredths/100) > 0).sum() == -(-n*hundredths//100)


def test_ranks_and_spearman_agree_with_scipy_row_by_row():
    rng = np.random.default_rng(5)
    for _ in range(20):
        shape = (2, 3, int(rng.integers(2, 20)))
        a, b, counts = rng.integers(0, 6, shape), rng.standard_normal(shape), rng.random(shape) < .8
        r, rho = maths.ranks(a, counts), maths.spearman(a, b, counts)
        for at in np.ndindex(shape[:-1]):
            kept = counts[at]
            np.testing.assert_array_equal(r[at][kept], scipy.stats.rankdata(a[at][kept]))
            assert np.isnan(r[at][~kept]).all()
            expected = slow.spearman(a[at].tolist(), b[at].tolist(), kept.tolist())
            same(rho[at], expected)
            if expected is not None: same(rho[at], scipy.stats.spearmanr(a[at][kept], b[at][kept]).statistic)


def test_spearman_is_undefined_for_constants_and_single_positions():
    for a, b, counts in (([1, 1, 1], [1, 2, 3], None), ([.1]*3, [.1]*3, None), ([1, 2], [1, 2], [1, 0]),
                         ([1, 2], [1, 2], [0, 0]), ([], [], None)):
        assert np.isnan(maths.spearman(a, b, counts))


def test_kl_and_entropy_agree_with_scipy():
    rng = np.random.default_rng(6)
    p, q = rng.dirichlet(np.ones(9), (2, 4))
    np.testing.assert_allclose(maths.kl(p, q), scipy.stats.entropy(p, q, axis=-1), rtol=1e-12)
    np.testing.assert_allclose(maths.entropy(p), scipy.stats.entropy(p, axis=-1), rtol=1e-12)


def test_kl_is_infinite_or_undefined_without_a_warning():
    with np.errstate(all='raise'):
        assert maths.kl([.5, .5, 0], [1, 0, 0]) == np.inf
        assert np.isnan(maths.kl([0, 0], [.5, .5]))
        assert np.isnan(maths.kl([.5, .5], [0, 0]))
        assert np.isnan(maths.entropy([0., 0.]))
        assert maths.kl([1, 0, 0], [.5, .5, 0]) == pytest.approx(np.log(2))


def test_single_numbers_are_python_floats():
    for x in (maths.kl([1, 2], [2, 1]), maths.spearman([1, 2], [2, 1]), maths.top_overlap([1, 2], [2, 1], 1)):
        assert type(x) is float


def test_overlap_of_constant_rows_is_undefined():
    up = np.arange(10.)
    for side in (np.zeros(10), np.full(10, 3.)):
        for a, b in ((side, up), (side, up[::-1]), (up, side), (side, side)):
            assert np.isnan(maths.top_overlap(a, b, 2))
        assert maths.top_overlap(side, up, 10) == maths.top_overlap(side, up, 12) == 1  # all: no ties
    one = np.where(up == 0, 7., 3.)
    counts = np.arange(10) > 0
    # constant over the counted positions
    assert maths.top_overlap(one, up[::-1], 2) == 1 and np.isnan(maths.top_overlap(one, up[::-1], 2, counts))
    assert np.isnan(maths.top_overlap(np.stack([up, up*0]), up, 3)).tolist() == [False, True]


def test_leading_dimensions_match_single_rows():
    rng = np.random.default_rng(7)
    a, b, counts = rng.random((2, 3, 6)), rng.random((2, 3, 6)), rng.random((2, 3, 6)) < .7
    for fn in (maths.kl, maths.spearman, lambda a, b, c: maths.top_overlap(a, b, 2, c)):
        whole = fn(a, b, counts)
        for at in np.ndindex(2, 3): same(whole[at], fn(a[at], b[at], counts[at]))


def test_rollout_rows_stay_distributions_and_heads_are_averaged():
    A = np.random.default_rng(8).dirichlet(np.ones(6), (4, 3, 6))
    R = maths.rollout(A)
    np.testing.assert_allclose(R.sum(-1), 1)
    np.testing.assert_allclose(maths.rollout(A.mean(1)), R)
    np.testing.assert_allclose(maths.rollout(A, residual=1.), np.eye(6))


def test_bits_survive_packing_in_any_shape():
    rng = np.random.default_rng(9)
    for shape in ((), (0,), (1,), (7,), (8,), (9,), (2, 3, 5, 5), (3, 0, 4)):
        x = rng.random(shape) < .5
        packed, s = maths.pack_bits(x)
        assert packed.dtype == np.uint8 and packed.size == (x.size + 7)//8 and s == shape
        got = maths.unpack_bits(packed, s)
        assert got.dtype == bool and got.shape == shape and (got == x).all()
    assert maths.pack_bits(np.array([1, 0, 0, 0, 0, 0, 0, 0, 1], bool))[0].tolist() == [128, 128]   # highest bit first


@pytest.mark.parametrize('call, words', [
    (lambda: maths.retained_count(3, -.1), 'p must be between 0 and 1'),
    (lambda: maths.retained_count(3, float('nan')), 'p must be between 0 and 1'),
    (lambda: maths.discard_candidates([1., 2.], True, .3, 'middle'),
     "region must be one of 'high', 'low', 'low_released', got 'middle'"),
    (lambda: maths.discard_candidates([1., np.nan], True, .3), 'attribution is NaN at 1 of 2 counted positions'),
    (lambda: maths.pattern_matrix('last', [1]),
     "name must be one of 'next', 'prev', 'first', 'delim', 'period', got 'last'"),
    (lambda: maths.pattern_matrix('next', [1], boundary='one'), "boundary must be one of 'uniform', 'zero', got 'one'"),
    (lambda: maths.pattern_matrix('delim', [1], [1], multiple='all'),
     "multiple must be one of 'uniform', 'indicator', got 'all'"),
    (lambda: maths.pattern_matrix('next', [1], [1]), 'occurs'),
    (lambda: maths.saliency_target([1.], [1], top_fraction=0), 'top_fraction must be above 0 and at most 1'),
    (lambda: maths.saliency_target([np.nan], [1]), 'saliency is NaN'),
    (lambda: maths.rollout(np.ones((2, 3))), 'attention must have shape'),
    (lambda: maths.rollout(np.ones((1, 2, 2)), residual=2), 'residual must be between 0 and 1'),
    (lambda: maths.entropy([-.1, 1.1]), 'attention must not be negative at counted positions, got -0.1'),
    (lambda: maths.kl([.5, .5], [-1., 2.]), 'q must not be negative'),
    (lambda: maths.top_overlap([1.], [1.], 0),
     'k, the number of largest values to compare, must be a positive integer'),
    (lambda: maths.pack_bits(np.ones(3)), 'only Boolean arrays'),
    (lambda: maths.unpack_bits(np.zeros(2, np.uint8), (3,)), 'shape (3,) needs 1 bytes, got 2'),
])
def test_invalid_input_gives_a_short_error(call, words):
    with pytest.raises(ValueError) as e: call()
    assert words in str(e.value)


def test_draws_and_drop_masks_match_training():
    import torch
    from salviz.methods import ad_drop
    from salviz.models import random as draws
    rng = np.random.default_rng(0)
    for example, seed, step, layer in [(0, 0, 0, 0), (256, 5, 14, 5), (2**40 + 7, 2**31, 10**6, 31),
                                       (12345, -3, 1, 11)]:
        drawn = maths.keyed_uniform(example, (3, 13, 13), seed, step, layer)
        expected = draws._keyed_uniform(torch.tensor([example]), (3, 13, 13), seed, step, layer)[0]
        np.testing.assert_array_equal(drawn, expected.numpy())
        for q in (.1, .3, .7, .999):
            candidates, allowed = rng.random((3, 13, 13)) < .6, np.tri(13, dtype=bool)
            np.testing.assert_array_equal(maths.drop_mask(candidates, allowed, q, drawn),
                                          ad_drop.drop_mask(torch.tensor(candidates), torch.tensor(allowed), q,
                                                            expected).numpy())


def test_pattern_fraction_equals_a_loop_over_heads_and_rows():
    rng = np.random.default_rng(3)
    for n in (2, 3, 7, 12):
        A = rng.dirichlet(np.ones(n), (2, 3, n)).astype(np.float32)
        weights = rng.normal(size=(n, n)).clip(0)*(rng.random((n, 1)) < .8)
        for P in (np.eye(n, k=1), np.tile(np.eye(n)[0], (n, 1)), weights,
                  maths.pattern_matrix('next', np.ones(n, bool)), np.zeros((n, n))):
            got = maths.pattern_fraction(A, P)
            assert got.shape == (2, 3)
            for at in np.ndindex(2, 3): same(got[at], slow.pattern_fraction(A[at].astype(float).tolist(), P.tolist()))
            same(maths.pattern_fraction(A, np.stack([P, P, P])), got.tolist())   # a separate pattern for each head


def test_pattern_fraction_ignores_scale_and_unguided_rows():
    rng = np.random.default_rng(4)
    A, P = rng.dirichlet(np.ones(6), (3, 6)), np.eye(6, k=1)
    want = maths.pattern_fraction(A, P)
    assert (want > 0).all() and (want < 1).all()
    same(maths.pattern_fraction(A*7, P*.01), want.tolist())
    other = A.copy()
    other[:, -1] = np.nan                       # the last row has no next token
    same(maths.pattern_fraction(other, P), want.tolist())
    other[1, 2, 4] = np.nan
    assert np.isnan(maths.pattern_fraction(other, P)).tolist() == [False, True, False]
    assert isinstance(maths.pattern_fraction(A[0], P), float)
    assert maths.pattern_fraction(np.eye(6, k=1), P) == 1
    assert maths.pattern_fraction(np.eye(6, k=-1), P) == 0
    for shape in ((6,), (5, 5), (6, 5)):
        with pytest.raises(ValueError, match='must have the same n, got shapes'): maths.pattern_fraction(A,
                                                                                                         np.ones(shape))
