"""Invented rows of the tuned protocol in which every effect gets a given verdict. Tests of its report use them; no
number in them is a result."""
import math

import numpy as np

from salviz.core.run_files import append_line, to_json
from salviz.replication.registry import fingerprint_of, registry_description
from salviz.replication.tuned import cells_of, first_seed, tuned_effects
from salviz.replication.tuning import tuned_studies

sizes = {'supported': 3., 'not supported': 0., 'contradicted': -3., 'inconclusive': .5} # in units of `smallest`
harm = {'supported': 0., 'not supported': -3., 'inconclusive': -1.}

def _noise(*key):
    "Return a number of mean 0 and deviation 1, the same for the same key"
    return float(np.random.default_rng(sum(map(ord, str(key)))).normal())

def _carrier(effect): return effect.terms[0] if effect.name in ('D7', 'G3', 'L2') else effect.terms[-1]

def _level(study, measure):
    metric, better, _ = tuned_studies[study].learns
    if measure == metric: return .8 if better == 'higher' else 3.
    return .4

def _offset(effect, word, cell, loud):
    if effect.rule == 'spread': return 0.
    size = (harm if effect.rule == 'no harm' else sizes)[word]
    spread = 12. if word == 'inconclusive' else .3
    return effect.smallest*(size + loud*spread*_noise(effect.name, cell))/_carrier(effect).weight

def write_invented(
    file,
    words=None,    # {effect: verdict}; other effects are supported
    effects=None,  # names of the effects with rows; None: all
    lost=(),       # (study, condition, task) that does not beat a constant answer
    opposed=(),    # names of effects with the opposite sign on the task 'movie'
):
    "Write rows with choices, machine and registry to `file`, and return it"
    registry = registry_description('tuned')
    append_line(file, to_json(dict(kind='registry', fingerprint=fingerprint_of(registry), registry=registry)))
    append_line(file, to_json(dict(kind='machine', id='a1', machine=dict(processor='Invented CPU', threads=1,
                                                                         versions=dict(torch='0.0')))))
    every = [e for group in tuned_effects.values() for e in group] # effects share runs
    chosen = [e for e in every if effects is None or e.name in effects]
    cells = {str(c): c for e in chosen for c in cells_of(e, range(first_seed, first_seed + e.seeds))}
    for study, condition in dict.fromkeys(c[:2] for c in cells.values()):
        append_line(file, to_json(dict(
            kind='choice', study=study, condition=condition, metric='validation_score',
            settings=dict(learning_rate=3e-4), score=.8, scores=[.7, .8], rows=4,
            fingerprint='0', time='2026-01-01T00:00:00+00:00', version='0')))
    for study, condition, settings, seed in cells.values():
        metric, _, constant = tuned_studies[study].learns
        terms = [(e, t) for e in every for t in e.terms if (t.study, t.arm) == (study, condition)]
        luck = .001*_noise(study, settings, seed)
        measures = {t.measure: _level(study, t.measure) + luck for _, t in terms} | dict(steps=100)
        measures.setdefault(metric, _level(study, metric))
        if isinstance(constant, str): measures[constant] = .5 if measures[metric] < 1 else 5.2
        for e, t in terms:
            here = all(settings.get(k) == v for k, v in t.where)
            if t == _carrier(e) and here:
                word = (words or {}).get(e.name, 'supported')
                sign = -1 if e.name in opposed and settings.get('task') == 'movie' else 1
                measures[t.measure] += sign*_offset(e, word, (settings, seed), 1.)
        if (study, condition, settings.get('task')) in lost: measures[metric] = .5 if measures[metric] < 1 else 5.2
        seconds = math.exp(.1*_noise(seed)) + (condition not in ('FT', 'plain'))
        row = dict(kind='row', study=study, budget='tuned', method=condition, settings=settings, seed=seed,
                   measures=measures, seconds=seconds, machine='a1')
        append_line(file, to_json(row))
    return file
