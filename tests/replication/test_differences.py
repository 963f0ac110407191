"Differences, gates and verdicts of the registry, compared with loops that follow the documented rules"
import json
import math

import numpy as np
import pandas as pd
import pytest

from salviz.replication.plans import budgets
from salviz.replication.registry import (_registry_changes, claims, differences, fingerprint_of, gated, judged,
                                         paper_titles, primary, registry_description)
from salviz.replication.reproduce import _selected_plans, plans, selected_claims

effects = {e.name: e for c in claims.values() for e in c.effects}

def settled(where): return {k: v['small'] if isinstance(v, dict) else v for k, v in where}

def rows_of(effect, seeds=range(100, 106), value=lambda *at: .5):
    "Return rows with every number that an effect and its gates need"
    out = {}
    asked = [(t.study, t.arm, t.measure, t.where) for t in effect.terms]
    asked += [(g.study, a, m, g.where) for g in effect.gates for a in g.arms for m in (g.measure, 'majority')]
    for study, arm, measure, where in asked:
        along = {}
        if effect.task not in ('seed', '') and effect.task not in dict(where): along[effect.task] = ['x', 'y']
        for key in effect.by:
            if key != 'seed': along[key] = [.1, .5, .9]
        grid = [{}]
        for name, values in along.items(): grid = [{**g, name: v} for g in grid for v in values]
        for seed in seeds:
            for settings in grid:
                settings = {**settled(where), **settings}
                at = (study, arm, json.dumps(settings, sort_keys=True), seed)
                row = out.setdefault(at, dict(study=study, budget='small', method=arm, **settings, seed=seed))
                row[measure] = .3 if measure == 'majority' else float(value(study, arm, measure, settings, seed))
    return pd.DataFrame(list(out.values()))

@pytest.mark.sample(7)
@pytest.mark.parametrize('name', effects)
def test_each_effect_is_the_weighted_sum_of_its_rows(name):
    effect, rng, known = effects[name], np.random.default_rng(1), {}
    def value(study, arm, measure, settings, seed):
        at = (study, arm, measure, json.dumps(settings, sort_keys=True), seed)
        return known.setdefault(at, .9 + .1*rng.random())
    rows = rows_of(effect, value=value)
    d = differences(effect, rows)
    assert len(d) and d.attrs['missing'] == 0
    for _, pair in d.iterrows():
        def number(t):
            some = rows[(rows.study == t.study) & (rows.method == t.arm)]
            for k, v in settled(t.where).items(): some = some[some[k] == v]
            if pair.task and effect.task in some: some = some[some[effect.task].astype(str) == pair.task]
            for key, part in zip(effect.by, pair.pair.split()): some = some[some[key].astype(str) == part]
            assert len(some) == 1
            return float(some[t.measure].iloc[0])
        plus = [t.weight*number(t) for t in effect.terms if t.weight > 0]
        minus = [-t.weight*number(t) for t in effect.terms if t.weight < 0]
        if effect.combine == 'range': expected = (max(plus) - min(plus)) - (max(minus) - min(minus))
        elif effect.rule == 'spread':
            assert pair['first'] == pytest.approx(plus[0]) and pair['second'] == pytest.approx(minus[0])
            continue
        else: expected = sum(plus) - sum(minus)
        assert pair.d == pytest.approx(expected, abs=1e-12)

def gain(baseline):
    "Return a function in which GA is better by about .01, and more so for larger seeds"
    return lambda study, arm, measure, settings, seed: baseline + (arm == 'GA')*(.01 + .0001*seed)

def test_positive_and_negative_weights_balance():
    "A constant that is added to all numbers changes no difference"
    for effect in effects.values(): assert sum(t.weight for t in effect.terms) == pytest.approx(0), effect.name

def test_missing_rows_are_missing_and_nan_is_dropped():
    effect = effects['D2']
    rows = rows_of(effect, value=gain(.8))
    here = rows[~((rows.method == 'GA') & (rows.seed == 100) & (rows.task == 'x'))].copy()
    here.loc[(here.method == 'GA') & (here.seed == 101), 'test_score'] = math.nan
    d = differences(effect, here)
    assert (len(d), d.attrs['missing'], int(d.d.isna().sum())) == (11, 1, 2)
    assert judged(here)['D2'].dropped == 2

def test_without_a_baseline_that_learned_nothing_is_testable():
    rows = rows_of(effects['D2'], value=gain(.34))
    assert judged(rows)['D2'].word == 'not testable'
    rows['test_score'] += .02
    assert judged(rows)['D2'].word == 'supported'

@pytest.mark.slow
def test_pairs_that_did_not_solve_the_task_are_dropped_in_both_conditions():
    effect = effects['S5a']
    def value(study, arm, measure, settings, seed):
        if measure != 'test_accuracy': return .1 + .05*(arm == 'SGT') + .001*seed*(arm == 'SGT')
        return .5 if (arm, seed) == ('SGT', 100) else .95
    rows = rows_of(effect, value=value)
    d, dropped, gates = gated(effect, rows)
    assert (len(d), dropped, gates) == (10, 2, []) and set(d.pair) == {str(s) for s in range(101, 106)}
    assert judged(rows)['S5a'].word == 'supported'
    def most_fail(*at): return .5 if at[2] == 'test_accuracy' and at[4] < 104 else value(*at)
    assert judged(rows_of(effect, value=most_fail))['S5a'].word == 'not testable'

def test_duplicate_rows_raise_an_error():
    rows = rows_of(effects['D2'])
    with pytest.raises(ValueError, match='duplicate rows of AD'): differences(effects['D2'], pd.concat([rows, rows]))

def test_the_fingerprint_depends_on_every_number_and_changes_are_named():
    now = registry_description()
    for change in (lambda r: r['effects']['D2'].update(smallest=.5),
                   lambda r: r['effects']['S1 text'].update(rule='better'),
                   lambda r: r['effects']['D2']['terms'][0].update(weight=2.), lambda r: r['effects'].pop('L3'),
                   lambda r: r['effects']['D2']['gates'][0].update(over_majority=.2)):
        other = json.loads(json.dumps(now))
        change(other)
        assert fingerprint_of(other) != fingerprint_of(now) and _registry_changes(now, other)
    assert _registry_changes(now, registry_description()) == []

def test_without_rows_there_are_no_verdicts():
    verdicts = judged(pd.DataFrame(columns=['study', 'budget', 'method', 'seed']))
    assert {v.word for v in verdicts.values()} == {'no verdict'} and set(verdicts) == set(effects)
    assert primary(verdicts).p_holm.isna().all()

def test_every_study_of_a_claim_is_planned_and_trained_after_the_runs_it_starts_from():
    for budget in (b for b in budgets if b != 'tuned'): # that one has separate studies
        for c in selected_claims(budget=budget):
            order = _selected_plans([c], budget)
            assert set(c.deciding) <= set(order)
            assert {s for s in c.studies if budget in plans[s].sizes} <= set(order)
            assert all(order.index(before) < order.index(name) for name in order for before in plans[name].after)
    assert len(selected_claims(budget='small')) == 26
    assert {c.name for c in selected_claims(budget='quick')} == {'D1', 'D2', 'D4', 'G1', 'G2', 'S2', 'S5', 'L3'}

def test_studies_that_are_only_shown_are_trained_as_well():
    "Every study of the small budget belongs to a claim, and studies that are only shown affect no verdict"
    assert set(_selected_plans(selected_claims())) == {name for name, p in plans.items() if 'small' in p.sizes}
    alone = {s for c in claims.values() for s in c.studies} - {s for c in claims.values() for s in c.deciding}
    assert alone == {'MLM1', 'SERIES_LSTM', 'SERIES_TRANSFORMER'}
    assert not alone & {t['study'] for e in registry_description()['effects'].values()
                        for t in [*e['terms'], *e['gates']]}

def test_every_claim_describes_the_paper_and_our_test():
    assert len(claims) == 26 and {c.paper for c in claims.values()} == set(paper_titles)
    for c in claims.values():
        assert c.paper_says and c.ours and c.title and c.effects
        printed = [*c.numbers, *(n for _, numbers in c.also for n in numbers)]
        assert all(len(n) == 5 and isinstance(n[0], str) for n in printed) and bool(c.numbers) == bool(c.unit)
        assert all(unit and numbers for unit, numbers in c.also)
