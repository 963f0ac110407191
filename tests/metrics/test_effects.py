"Effects equal float64 references from the definitions, scipy and least squares; too few pairs give NaN."
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from salviz.metrics.effects import detectable, detectable_ratio, over_tasks, pitman_morgan, tost
from salviz.metrics.statistics import paired_t

def by_hand(d, tasks, confidence=.95):
    "Compute the mean over tasks and its interval directly from the definition"
    of = {}
    for x, task in zip(d, tasks): of.setdefault(task, []).append(float(x))
    means = {task: sum(some)/len(some) for task, some in of.items()}
    squares = sum((x - means[task])**2 for task, some in of.items() for x in some)
    freedom = len(d) - len(of)
    mean, s = sum(means.values())/len(of), math.sqrt(squares/freedom)
    error = math.sqrt(sum(s*s/len(some) for some in of.values()))/len(of)
    t = stats.t.ppf((1 + confidence)/2, freedom)
    return mean, mean - t*error, mean + t*error, 2*stats.t.sf(abs(mean)/error, freedom), s

layouts = [(5, 5, 5), (2, 9, 4), (1, 3), (1, 1, 1, 2), (40, 3), (2,)]

@pytest.mark.parametrize('counts', layouts)
def test_interval_over_tasks_matches_its_definition(counts):
    rng = np.random.default_rng(sum(counts))
    tasks = [name for name, n in zip('abcd', counts) for _ in range(n)]
    d = rng.normal(.3, size=len(tasks)) + [ord(name) - 97 for name in tasks]
    order = rng.permutation(len(d))
    found = over_tasks(d[order], [tasks[i] for i in order])
    assert (found.mean, found.low, found.high, found.p, found.s) == pytest.approx(by_hand(d, tasks), rel=1e-9)
    assert (found.pairs, found.tasks, found.freedom) == (len(d), len(counts), len(d) - len(counts))

def test_interval_over_tasks_matches_least_squares_with_task_means():
    tasks = np.repeat(['x', 'y', 'z'], [3, 6, 2])
    d = np.random.default_rng(0).normal(size=11)
    columns = np.stack([tasks == name for name in 'xyz'], 1).astype(float)
    means, squares, *_ = np.linalg.lstsq(columns, d, rcond=None)
    covariance = np.linalg.inv(columns.T @ columns)*squares[0]/(11 - 3)
    weights = np.full(3, 1/3)
    found = over_tasks(d, tasks)
    assert found.mean == pytest.approx(weights @ means)
    assert found.error**2 == pytest.approx(weights @ covariance @ weights)

@pytest.mark.parametrize('confidence', [.5, .95, .99])
def test_one_task_equals_the_paired_t_test(confidence):
    d = np.random.default_rng(1).normal(size=7)
    one, t = over_tasks(d, ['only']*7, confidence), paired_t(d, np.zeros(7), confidence)
    assert (one.mean, one.low, one.high, one.p) == (t.difference, t.low, t.high, t.p)
    assert one.p_of(0) == pytest.approx(t.p, rel=1e-12)

def test_undefined_intervals_are_nan_and_means_are_kept():
    for d, tasks, mean in (([], None, math.nan), ([2.], None, 2.), ([1., 5.], 'ab', 3.), ([3., 3., 3.], None, 3.),
                           ([1., 1., 4., 4.], 'aabb', 2.5), ([.1 + .2, .3, .3], None, .3)):
        found = over_tasks(d, None if tasks is None else list(tasks))
        assert found.mean == pytest.approx(mean, nan_ok=True)
        assert all(map(math.isnan, (found.low, found.high, found.p, found.error, found.p_of(.1))))
        assert math.isnan(tost(d, .1, None if tasks is None else list(tasks)))

def test_non_finite_pairs_do_not_count():
    found = over_tasks([1., math.nan, 2., math.inf, 3., math.nan], list('aaabbc'))
    assert (found.pairs, found.tasks, found.freedom) == (3, 2, 1) and found.mean == pytest.approx((1.5 + 3)/2)

def test_effects_are_equivariant_to_sign_and_unit():
    d, tasks = np.random.default_rng(2).normal(.2, size=9), list('aaabbbbcc')
    plain, turned, scaled = over_tasks(d, tasks), over_tasks(-d, tasks), over_tasks(100*d, tasks)
    assert (turned.mean, turned.low, turned.high) == pytest.approx((-plain.mean, -plain.high, -plain.low))
    assert turned.p == pytest.approx(plain.p) == scaled.p and scaled.low == pytest.approx(100*plain.low)

def test_malformed_effects_give_a_short_error():
    for call, says in ((lambda: over_tasks([[1., 2.]]), 'd must be a list'),
                       (lambda: over_tasks([1.], confidence=95), 'between 0 and 1'),
                       (lambda: over_tasks([1., 2.], ['a', None]), '2 entries .1 of them None or NaN.'),
                       (lambda: over_tasks([1., 2.], ['a', 'b', 'c']), 'got 3 entries'),
                       (lambda: over_tasks([1., 2.]).p_of(0, 'more'), "'greater' or 'less', got 'more'"),
                       (lambda: tost([1., 2.], -1), 'above 0'), (lambda: tost([1., 2.], 1, sides=3), 'sides must be'),
                       (lambda: detectable(1., 0), 'at least 1'), (lambda: detectable(1., []), 'number of pairs'),
                       (lambda: detectable(1., 5, power=80), 'power must be'),
                       (lambda: detectable_ratio(9, 2.), 'r must be'),
                       (lambda: pitman_morgan([1.], [1., 2.]), 'must have the same length')):
        with pytest.raises(ValueError, match=says): call()

# no harm and equivalence

@pytest.mark.parametrize('shift', [-.03, 0., .01, .05])
def test_tost_equals_two_one_sided_tests_of_scipy(shift):
    d = np.random.default_rng(3).normal(shift, .02, size=8)
    above, below = (stats.ttest_1samp(d, e, alternative=way).pvalue for e, way in ((-.02, 'greater'), (.02, 'less')))
    assert tost(d, .02, sides=1) == pytest.approx(above, rel=1e-9)
    assert tost(d, .02) == pytest.approx(max(above, below), rel=1e-9)

def test_no_harm_test_over_tasks_agrees_with_the_interval():
    tasks = list('aaabbbccc')
    for seed, margin in itertools.product(range(20), (.1, .5, 1.)):
        d = np.random.default_rng(seed).normal(size=9)
        assert (tost(d, margin, tasks, sides=1) < .025) == (over_tasks(d, tasks).low > -margin)
        inside = over_tasks(d, tasks, .9)
        assert (tost(d, margin, tasks) < .05) == (-margin < inside.low and inside.high < margin)

# detectable effects

def test_detectable_effect_depends_on_pairs_and_task_balance():
    quantiles = lambda f: stats.t.ppf(.975, f) + stats.t.ppf(.8, f)
    assert detectable(.1, 6) == pytest.approx(quantiles(5)*.1/math.sqrt(6))
    assert detectable(.1, [2, 4, 6]) == pytest.approx(quantiles(9)*.1*math.sqrt(1/2 + 1/4 + 1/6)/3)
    assert detectable(.1, [2, 4, 6]) > detectable(.1, [4, 4, 4]) > detectable(.1, 12) # balance, then freedom
    assert detectable(.1, 6, power=.9) > detectable(.1, 6) and detectable(0., 6) == 0
    assert all(map(math.isnan, (detectable(1., 1), detectable(1., [1, 1]), detectable(math.nan, 9))))

@pytest.mark.parametrize('counts', [[6, 6, 6], [3, 9, 2]])
def test_detectable_effect_is_found_in_four_of_five_cases(counts):
    rng, tasks = np.random.default_rng(4), np.repeat(range(3), counts)
    effect = detectable(1., counts)
    finds = [over_tasks(rng.normal(effect, size=len(tasks)), tasks).low > 0 for _ in range(400)]
    assert .72 < np.mean(finds) < .88

# deviations

def from_definition(x, y, tasks):
    "Return the p-value of the correlation of sums and differences without the means of their tasks"
    sums, differences = (np.array([a + b for a, b in zip(x, y)]), np.array([a - b for a, b in zip(x, y)]))
    for task in set(tasks):
        at = np.array([name == task for name in tasks])
        sums[at] -= sums[at].mean()
        differences[at] -= differences[at].mean()
    r = sum(sums*differences)/math.sqrt(sum(sums**2)*sum(differences**2))
    freedom = len(x) - len(set(tasks)) - 1
    return 2*stats.t.sf(abs(r)*math.sqrt(freedom/(1 - r*r)), freedom)

@pytest.mark.parametrize('tasks', ['aaaaaaaa', 'aaaabbbb', 'abbbbbcc', 'aaa'])
def test_pitman_morgan_equals_correlation_of_sums_and_differences(tasks):
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(2, len(tasks)))
    found = pitman_morgan(x, 2*y, list(tasks))
    assert found.p == pytest.approx(from_definition(x, 2*y, tasks), rel=1e-9)
    if len(set(tasks)) == 1:
        assert found.p == pytest.approx(stats.pearsonr(x + 2*y, x - 2*y).pvalue, rel=1e-9)
        assert found.mean == pytest.approx(math.log(np.std(x, ddof=1)/np.std(2*y, ddof=1)))
    for end in (found.low, found.high): # the interval contains the values that the test does not reject
        assert from_definition(x, 2*y*math.exp(end), tasks) == pytest.approx(.05, rel=1e-6)

def test_interval_of_deviations_has_95_percent_coverage():
    rng, truth = np.random.default_rng(6), math.log(2/1.5)
    tasks, holds = np.repeat(range(3), 4), 0
    for _ in range(600):
        shared, x, y = rng.normal(size=(3, 12))
        x, y = 2*(.6*shared + .8*x), 1.5*(.6*shared + .8*y)
        found = pitman_morgan(x, y, tasks)
        holds += found.low < truth < found.high
    assert .92 < holds/600 < .98

def test_deviations_that_cannot_be_compared_are_nan():
    x = np.random.default_rng(7).normal(size=6)
    for pair in (([1., 2.], [2., 1.]), (x, [1.]*6), ([1.]*6, x), (x, 3*x), (x, 5 - x),
                 ([*x[:2], math.nan], [1., 2., 3.])):
        found = pitman_morgan(*pair)
        assert all(map(math.isnan, (found.mean, found.low, found.high, found.p)))
    found = pitman_morgan([*x, math.nan, 1.], [*x[::-1], 1., math.inf])
    assert found.pairs == 6 and found.low == pitman_morgan(x, x[::-1]).low
    assert all(map(math.isnan, (detectable_ratio(2), detectable_ratio(4, tasks=3)))) and detectable_ratio(9, 1.) == 0
