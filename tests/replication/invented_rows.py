"""Invented rows, computed from the terms of the registry so that every effect gets a given verdict. Tests of reports
use them; no number in them is a result."""
import itertools

import numpy as np
import pandas as pd

from salviz.replication.registry import claims, registry_description

domains, layouts = ('movie', 'amazon', 'tweets'), tuple(f'layout {i}' for i in range(10))
settings = dict(AD=dict(task=domains), AD64=dict(task=domains), TEXT=dict(task=domains[::2]),
                SERIES=dict(net=('tcn', 'input-cell-lstm'), task=layouts),
                VANISH=dict(task=('early', 'middle', 'late')),
                GRID=dict(p=(.1, .5, .9), q=(.1, .5, .9)), MLM=dict(layers=(2, 6, 12)),
                LR=dict(learning_rate=(5e-4, 8e-3)), DOWN=dict(start=('plain', 'AG')))
seeds = dict(GRID=2, MT=2, RTD=1)
# size and noise of a difference in units of the smallest effect of interest
better = {'supported': (3, .5), 'supported, small': (.5, .1), 'not supported': (0, .3), 'contradicted': (-3, .5),
          'inconclusive': (.5, 4)}
no_harm = {'supported': (0, .2), 'not supported': (-3, .5), 'inconclusive': (-1, 2)}
outcomes = {'D1a': 'supported', 'D1b': 'supported', 'D2': 'supported', 'D3': 'inconclusive', 'D4': 'supported, small',
            'D6': 'contradicted', 'D7': 'inconclusive', 'D8': 'not supported', 'G1': 'supported', 'G2': 'supported',
            'G7b': 'not supported', 'S1 digits': 'supported', 'S5a': 'supported, small', 'L1': 'inconclusive',
            'L2': 'contradicted'}

def _noise(key, count):
    "Return numbers of mean 0 and standard deviation 1"
    x = np.random.default_rng(sum(map(ord, key))).normal(size=count)
    return (x - x.mean())/x.std(ddof=1) if count > 1 else x*0

def _carrier(effect):
    "Return the term that gets the difference: the last, which effects seldom share"
    return effect.terms[0] if effect.name == 'D7' else effect.terms[-1]

def _is_at(place, term, budget):
    return all(place.get(k) == (v.get(budget) if isinstance(v, dict) else v) for k, v in term.where)

def _carried(study, condition, place, measure, i, count, asked, budget):
    total = 0.
    for effect in (e for c in claims.values() for e in c.effects):
        term = _carrier(effect)
        if effect.rule == 'spread' or effect.combine == 'range': continue
        if (term.study, term.arm, term.measure) != (study, condition, measure) or not _is_at(place, term, budget):
            continue
        known = no_harm if effect.rule == 'no harm' else better
        size, noise = known[asked.get(effect.name, 'inconclusive')]
        z = _noise(f'{effect.name} {sorted(map(str, place.items()))}', count)[i]
        total += effect.smallest*(size + noise*z)/term.weight
    return total

def _conditions():
    "Return {study: {condition: metrics}}"
    out = {}
    for claim in claims.values():
        for effect in claim.effects:
            for t in effect.terms: out.setdefault(t.study, {}).setdefault(t.arm, {})[t.measure] = None
            for g in effect.gates:
                for condition in g.arms: out.setdefault(g.study, {}).setdefault(condition, {})[g.measure] = None
    return out

def _level(measure, study):
    if measure in ('test_accuracy', 'test_score', 'antecedent_accuracy'):
        return dict(SERIES=.95, VANISH=.95, TEXT=.55).get(study, .8)
    return 3. if 'loss' in measure or 'curve' in measure else .4

def invented_rows(
    budget='small',
    asked=None,  # {effect: verdict}; None: `outcomes`
    without=(),  # names of studies that have not run
) -> pd.DataFrame: # as `salviz.replication.rows.read_rows` returns
    "Return a row for every trial that the registry needs"
    asked, out = outcomes if asked is None else asked, []
    for study, conditions in _conditions().items():
        if study in without: continue
        names, count = settings.get(study, {}), 1 if budget == 'quick' else seeds.get(study, 6)
        trials = itertools.product(conditions.items(), itertools.product(*names.values()), range(count))
        for (condition, measures), values, i in trials:
            place = dict(zip(names, values))
            luck = .01*_noise(f'{study} {place}', 7)[i]
            known = {m: _level(m, study) + luck + _carried(study, condition, place, m, i, count, asked, budget)
                     for m in measures}
            if study == 'VANISH' and condition == 'FT' and i < 4: known['test_accuracy'] = known['test_score'] = .5
            if study == 'MLM':
                fall = [6 - 2.5*(1 - .8**k) - .3*(condition == 'AG') + luck for k in range(10)]
                known |= {f'train_curve_{k + 1}': v for k, v in enumerate(fall)} | {'unigram_entropy': 5.2}
            out.append(dict(study=study, budget=budget, method=condition, **place, seed=100 + i, **known, majority=.5,
                            seconds=30. + i, machine='aa', processor='Invented CPU', threads=1))
    frame = pd.DataFrame(out)
    machine = dict(processor='Invented CPU', threads=1, cores=2, versions=dict(torch='0.0', salviz='0.0'))
    frame.attrs = dict(machines=dict(aa=machine), registries=[registry_description(budget)])
    return frame
