"Verdicts: every word is reached, each bound is exact, and what cannot be tested says so."
import itertools
import math

import numpy as np
import pandas as pd
import pytest

from salviz.replication.verdicts import (GateCheck, Verdict, _rules, _word_of, _words, verdict, verdict_table,
                                         word_of_claim)
from salviz.metrics.effects import over_tasks, pitman_morgan

def of_mean(mean, s, n=6, tasks=1):
    "Pairs whose mean and deviation are these exactly, the same on each task"
    d = np.linspace(-1, 1, n)
    d = mean + s*d/np.std(d, ddof=1)
    return pd.DataFrame([dict(task=task, pair=i, d=x) for task in range(tasks) for i, x in enumerate(d)])

def by_rule(low, high, rule, m):
    "The rules of CLAIMS, one sentence a line"
    if rule == 'no harm':
        if low > -m: return 'holds'
        if high < -m: return 'does not hold'
        return 'undecided'
    if low > 0 and high < m: return 'holds, small'
    if low > 0: return 'holds'
    if low <= 0 and high < 0: return 'reversed'
    if low <= 0 and high < m: return 'does not hold'
    return 'undecided'

def test_words_follow_the_rules_at_all_ends_bounds_included():
    ends = [-.03, -.02, -.01, -1e-12, 0., 1e-12, .005, .01, .02, .03]
    for low, high in itertools.combinations_with_replacement(ends, 2):
        for rule in _rules: assert _word_of(low, high, rule, .01) == by_rule(low, high, rule, .01), (low, high, rule)
    for bad in ((math.nan, 1.), (0., math.nan), (1., 0.)):
        with pytest.raises(ValueError, match='low must be'): _word_of(*bad, 'better', .01)

def test_every_word_is_reached():
    means = (.03, .01), (.005, .001), (0., .005), (-.03, .01), (0., .1)
    cases = [verdict(of_mean(*x), smallest=.01).word for x in means]
    cases += [verdict(of_mean(.03, .01), smallest=.01, gate=False).word,
              verdict(of_mean(.03, .01, 3), smallest=.01).word]
    assert cases == list(_words)

def test_a_claim_is_no_better_than_its_weakest_effect():
    order = ['does not hold', 'not testable at this scale', 'undecided', 'holds, small', 'holds']
    for one, other in itertools.product(order, order):
        assert word_of_claim([one, other]) == min(one, other, key=order.index)
    assert word_of_claim(['reversed']*2) == 'reversed' and word_of_claim(['holds', 'reversed']) == 'does not hold'

def test_a_flipped_claim_is_reversed_where_it_held_and_keeps_its_numbers():
    rng = np.random.default_rng(0)
    met = set()
    for mean, s in itertools.product((-.02, -.004, 0., .004, .02), (.002, .01, .05)):
        frame = pd.DataFrame(dict(task=list('aaabbb'), pair=range(6), d=rng.normal(mean, s, 6)))
        one, other = verdict(frame, smallest=.01), verdict(frame.assign(d=-frame.d), smallest=.01)
        assert (other.low, other.high, other.p) == pytest.approx((-one.high, -one.low, one.p))
        assert one.word.startswith('holds') == (other.word == 'reversed')
        assert other.word.startswith('holds') == (one.word == 'reversed')
        met |= {one.word, other.word}
    assert met >= {'holds', 'reversed', 'undecided'}

def test_the_p_value_is_that_of_the_word():
    rng = np.random.default_rng(1)
    for _ in range(60):
        frame = pd.DataFrame(dict(pair=range(7), d=rng.normal(rng.normal(scale=.02), .02, 7)))
        better, harmless = verdict(frame, smallest=.01), verdict(frame, 'no harm', .01)
        assert (better.p < .05) == (better.word in ('holds', 'holds, small', 'reversed'))
        assert (harmless.p < .05) == (harmless.word != 'undecided')
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
    assert flipped.mean == pytest.approx(-found.mean) and (found.word == 'holds') == (flipped.word == 'reversed')

@pytest.mark.parametrize('pairs,dropped,word', [(4, 2, 'holds'), (4, 3, 'not testable at this scale'), (8, 4, 'holds'),
    (8, 5, 'not testable at this scale'), (4, 0, 'holds'), (3, 0, 'no verdict'), (3, 1, 'no verdict'),
    (0, 0, 'no verdict'), (0, 6, 'not testable at this scale'), (2, 1, 'no verdict'),
    (2, 2, 'not testable at this scale')])
def test_dropped_pairs_and_few_pairs(pairs, dropped, word):
    frame = of_mean(.5, .01, max(pairs, 2))[:pairs]
    gone = [dict(task=0, pair=100 + i, d=math.nan) for i in range(dropped)]
    with_gone = pd.DataFrame([*frame.to_dict('records'), *gone], columns=['task', 'pair', 'd'])
    for found in (verdict(frame, smallest=.01, dropped=dropped), verdict(with_gone, smallest=.01)):
        assert (found.word, found.pairs, found.dropped) == (word, pairs, dropped)
        assert found.tested == (word == 'holds') and found.why

def test_gates_pass_on_their_bound_and_all_must_pass():
    frame = of_mean(.5, .01)
    good, bad = GateCheck('accuracy', .15, .1 + .05), GateCheck('accuracy of FT', .5499, .55)
    for gate, passes in ((None, True), (True, True), (False, False), (good, True), ([], True), ([good, good], True),
                         ([good, bad], False), (bad, False), (GateCheck('accuracy', math.nan, .5), False)):
        found = verdict(frame, smallest=.01, gate=gate)
        assert found.word == ('holds' if passes else 'not testable at this scale') and not math.isnan(found.low)
    assert 'accuracy of FT is 0.5499, asked for is 0.55' in verdict(frame, smallest=.01, gate=bad).why
    with pytest.raises(ValueError, match='gate must be'): verdict(frame, smallest=.01, gate=[.7])

def test_numbers_that_do_not_vary_have_no_verdict():
    found = verdict(pd.DataFrame(dict(pair=range(5), d=.25)), smallest=.01)
    assert (found.word, found.mean) == ('no verdict', .25) and math.isnan(found.detectable)
    assert 'do not vary' in found.why
    one_each = verdict(pd.DataFrame(dict(task=range(5), pair=0, d=range(5))), smallest=.01)
    assert one_each.word == 'no verdict' and 'too few pairs a task' in one_each.why

def test_a_task_of_which_nothing_is_left_is_named():
    frame = of_mean(.5, .01, 6, tasks=3)
    frame.loc[frame.task == 2, 'd'] = math.nan
    found = verdict(frame, smallest=.01)
    assert (found.word, found.tasks, found.dropped) == ('holds', 2, 6) and 'no pair is left of 2' in found.why

def test_holm_counts_what_was_tested_only():
    clear, gated = of_mean(.03, .01), of_mean(.03, .01)
    some = dict(A=verdict(clear, smallest=.01), B=verdict(gated, smallest=.01, gate=False),
                C=verdict(of_mean(0., .01), smallest=.01), D=verdict(clear[:2], smallest=.01))
    table = verdict_table(some).set_index('claim')
    assert table.p_holm['A'] == pytest.approx(2*table.p['A']) and table.p_holm['C'] == pytest.approx(1.)
    assert math.isnan(table.p_holm['B']) and math.isnan(table.p_holm['D']) and not math.isnan(table.p['B'])
    assert list(verdict_table({}).columns) == list(table.reset_index().columns)
    assert {*Verdict.__dataclass_fields__} < {*table.columns}

def test_malformed_frames_are_refused_in_a_sentence():
    frame = of_mean(.5, .01)
    for call, says in ((lambda: verdict(frame, 'worse', .01), "'spread', got 'worse'"),
                       (lambda: verdict(frame, smallest=0), 'above 0'),
                       (lambda: verdict(frame, 'no harm', -.01), 'the margin'),
                       (lambda: verdict(frame, smallest=.01, dropped=-1), 'dropped must be'),
                       (lambda: verdict(frame, smallest=.01, dropped=1.5), 'dropped must be'),
                       (lambda: verdict(frame.drop(columns='d'), smallest=.01), 'needs a column d'),
                       (lambda: verdict(frame, 'spread', .1), 'needs a column first'),
                       (lambda: verdict(pd.concat([frame, frame]), smallest=.01), 'is there twice')):
        with pytest.raises(ValueError, match=says): call()
