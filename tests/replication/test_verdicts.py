"Verdicts: each one occurs, each threshold is exact, and untestable claims give a reason."
import itertools
import math

import numpy as np
import pandas as pd
import pytest

from salviz.replication.verdicts import (GateCheck, Verdict, _rules, _word_of, _words, verdict, verdict_table,
                                         word_of_claim)
from salviz.metrics.effects import over_tasks, pitman_morgan

def of_mean(mean, s, n=6, tasks=1):
    "Return pairs with exactly this mean and standard deviation on each task"
    d = np.linspace(-1, 1, n)
    d = mean + s*d/np.std(d, ddof=1)
    return pd.DataFrame([dict(task=task, pair=i, d=x) for task in range(tasks) for i, x in enumerate(d)])

def by_rule(low, high, rule, m):
    "Return the verdict by the documented rules, one per line"
    if rule == 'no harm':
        if low > -m: return 'supported'
        if high < -m: return 'not supported'
        return 'inconclusive'
    if low > 0: return 'supported'
    if low <= 0 and high < 0: return 'contradicted'
    if low <= 0 and high < m: return 'not supported'
    return 'inconclusive'

def test_verdicts_follow_the_rules_for_all_intervals_thresholds_included():
    ends = [-.03, -.02, -.01, -1e-12, 0., 1e-12, .005, .01, .02, .03]
    for low, high in itertools.combinations_with_replacement(ends, 2):
        for rule in _rules: assert _word_of(low, high, rule, .01) == by_rule(low, high, rule, .01), (low, high, rule)
    for bad in ((math.nan, 1.), (0., math.nan), (1., 0.)):
        with pytest.raises(ValueError, match='low and high must be'): _word_of(*bad, 'better', .01)

def test_every_verdict_occurs():
    means = (.03, .01), (0., .005), (-.03, .01), (0., .1)
    cases = [verdict(of_mean(*x), smallest=.01).word for x in means]
    cases += [verdict(of_mean(.03, .01), smallest=.01, gate=False).word,
              verdict(of_mean(.03, .01, 3), smallest=.01).word]
    assert cases == list(_words)

def test_a_claim_is_no_better_than_its_weakest_effect():
    order = ['not supported', 'not testable', 'inconclusive', 'supported']
    for one, other in itertools.product(order, order):
        assert word_of_claim([one, other]) == min(one, other, key=order.index)
    assert word_of_claim(['contradicted']*2) == 'contradicted'
    assert word_of_claim(['supported', 'contradicted']) == 'not supported'

def test_a_supported_effect_is_small_if_its_interval_ends_below_the_smallest_effect_of_interest():
    small, large = (verdict(of_mean(mean, .001), smallest=.01) for mean in (.005, .03))
    assert (small.word, small.is_small, large.is_small) == ('supported', True, False)
    assert 'below the smallest effect of interest (0.01)' in small.why
    assert not verdict(of_mean(.005, .001), 'no harm', .01).is_small
    assert not verdict(of_mean(0., .005), smallest=.01).is_small

def test_the_opposite_of_a_supported_claim_is_contradicted_by_the_same_numbers():
    rng = np.random.default_rng(0)
    met = set()
    for mean, s in itertools.product((-.02, -.004, 0., .004, .02), (.002, .01, .05)):
        frame = pd.DataFrame(dict(task=list('aaabbb'), pair=range(6), d=rng.normal(mean, s, 6)))
        one, other = verdict(frame, smallest=.01), verdict(frame.assign(d=-frame.d), smallest=.01)
        assert (other.low, other.high, other.p) == pytest.approx((-one.high, -one.low, one.p))
        assert (one.word == 'supported') == (other.word == 'contradicted')
        assert (other.word == 'supported') == (one.word == 'contradicted')
        met |= {one.word, other.word}
    assert met >= {'supported', 'contradicted', 'inconclusive'}

def test_the_p_value_matches_the_verdict():
    rng = np.random.default_rng(1)
    for _ in range(60):
        frame = pd.DataFrame(dict(pair=range(7), d=rng.normal(rng.normal(scale=.02), .02, 7)))
        better, harmless = verdict(frame, smallest=.01), verdict(frame, 'no harm', .01)
        assert (better.p < .05) == (better.word in ('supported', 'contradicted'))
        assert (harmless.p < .05) == (harmless.word != 'inconclusive')
        assert harmless.p == pytest.approx(over_tasks(frame.d + .01).p)

def test_over_tasks_and_spread_are_those_of_effects():
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(dict(task=list('aaaabbbb'), pair=[*range(4)]*2, d=rng.normal(size=8)))
    found, effect = verdict(frame, smallest=1.), over_tasks(frame.d, frame.task)
    assert (found.mean, found.low, found.high) == (effect.mean, effect.low, effect.high)
    assert (found.s, found.tasks) == (effect.s, 2)
    frame = frame.assign(first=3*rng.normal(size=8) + 50*(frame.task == 'b'), second=rng.normal(size=8))
    found = verdict(frame, 'spread', math.log(1.25))
    spread = pitman_morgan(frame['first'], frame['second'], frame['task'])
    assert (found.mean, found.low, found.high, found.p) == (spread.mean, spread.low, spread.high, spread.p)
    flipped = verdict(frame.rename(columns=dict(first='second', second='first')), 'spread', math.log(1.25))
    assert flipped.mean == pytest.approx(-found.mean)
    assert (found.word == 'supported') == (flipped.word == 'contradicted')

@pytest.mark.parametrize('pairs,dropped,word', [(4, 2, 'supported'), (4, 3, 'not testable'), (8, 4, 'supported'),
    (8, 5, 'not testable'), (4, 0, 'supported'), (3, 0, 'no verdict'), (3, 1, 'no verdict'),
    (0, 0, 'no verdict'), (0, 6, 'not testable'), (2, 1, 'no verdict'), (2, 2, 'not testable')])
def test_dropped_pairs_and_few_pairs(pairs, dropped, word):
    frame = of_mean(.5, .01, max(pairs, 2))[:pairs]
    gone = [dict(task=0, pair=100 + i, d=math.nan) for i in range(dropped)]
    with_gone = pd.DataFrame([*frame.to_dict('records'), *gone], columns=['task', 'pair', 'd'])
    for found in (verdict(frame, smallest=.01, dropped=dropped), verdict(with_gone, smallest=.01)):
        assert (found.word, found.pairs, found.dropped) == (word, pairs, dropped)
        assert found.tested == (word == 'supported') and found.why

def test_gates_pass_at_their_threshold_and_all_must_pass():
    frame = of_mean(.5, .01)
    good, bad = GateCheck('accuracy', .15, .1 + .05), GateCheck('accuracy of FT', .5499, .55)
    for gate, passes in ((None, True), (True, True), (False, False), (good, True), ([], True), ([good, good], True),
                         ([good, bad], False), (bad, False), (GateCheck('accuracy', math.nan, .5), False)):
        found = verdict(frame, smallest=.01, gate=gate)
        assert found.word == ('supported' if passes else 'not testable') and not math.isnan(found.low)
    assert 'accuracy of FT is 0.5499, but must be at least 0.55' in verdict(frame, smallest=.01, gate=bad).why
    with pytest.raises(ValueError, match='gate must be'): verdict(frame, smallest=.01, gate=[.7])

def test_numbers_that_do_not_vary_have_no_verdict():
    found = verdict(pd.DataFrame(dict(pair=range(5), d=.25)), smallest=.01)
    assert (found.word, found.mean) == ('no verdict', .25) and math.isnan(found.detectable)
    assert 'do not vary' in found.why
    one_each = verdict(pd.DataFrame(dict(task=range(5), pair=0, d=range(5))), smallest=.01)
    assert one_each.word == 'no verdict' and 'too few pairs per task' in one_each.why

def test_tasks_without_pairs_are_named():
    frame = of_mean(.5, .01, 6, tasks=3)
    frame.loc[frame.task == 2, 'd'] = math.nan
    found = verdict(frame, smallest=.01)
    assert (found.word, found.tasks, found.dropped) == ('supported', 2, 6) and 'no pairs are left for 2' in found.why

def test_holm_counts_only_tested_claims():
    clear, gated = of_mean(.03, .01), of_mean(.03, .01)
    some = dict(A=verdict(clear, smallest=.01), B=verdict(gated, smallest=.01, gate=False),
                C=verdict(of_mean(0., .01), smallest=.01), D=verdict(clear[:2], smallest=.01))
    table = verdict_table(some).set_index('claim')
    assert table.p_holm['A'] == pytest.approx(2*table.p['A']) and table.p_holm['C'] == pytest.approx(1.)
    assert math.isnan(table.p_holm['B']) and math.isnan(table.p_holm['D']) and not math.isnan(table.p['B'])
    assert list(verdict_table({}).columns) == list(table.reset_index().columns)
    assert {*Verdict.__dataclass_fields__} < {*table.columns}

def test_invalid_arguments_raise_a_clear_error():
    frame = of_mean(.5, .01)
    for call, says in ((lambda: verdict(frame, 'worse', .01), "'spread', got 'worse'"),
                       (lambda: verdict(frame, smallest=0), 'above 0'),
                       (lambda: verdict(frame, 'no harm', -.01), 'the margin'),
                       (lambda: verdict(frame, smallest=.01, dropped=-1), 'dropped must be'),
                       (lambda: verdict(frame, smallest=.01, dropped=1.5), 'dropped must be'),
                       (lambda: verdict(frame.drop(columns='d'), smallest=.01), 'needs a column d'),
                       (lambda: verdict(frame, 'spread', .1), 'needs a column first'),
                       (lambda: verdict(pd.concat([frame, frame]), smallest=.01), 'duplicate rows for pair 0')):
        with pytest.raises(ValueError, match=says): call()
