"""The tuned protocol: a tiny replication from tuning to verdict, its thresholds and error rates, and the verdicts of
the shipped rows, recomputed here with loops over the lines of the file"""
import json
import math
import statistics
from collections import defaultdict
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from salviz.replication import classifiers, tuned, tuning
from salviz.replication.reproduce import reproduce, shipped_rows
from salviz.replication.rows import recorded_cells, row_entries
from salviz.replication.sequential import look_fractions, look_levels, simulated_verdicts
from salviz.replication.tuned import TunedEffect, TunedProtocol, tuned_effects, tuned_table, tuned_verdicts
from salviz.replication.tuning import TunedCondition, TunedStudy, frozen, tuned_studies

# A replication that takes seconds

def tiny_trials(folder, methods, seeds, settings, tuning_, trained=None, **train):
    import tiny_claims
    from salviz.studies.study import Study, StudyOptions
    data = tiny_claims.rows()
    if tuning_: del data['test']
    def score(run): return run.scores('validation')['accuracy']
    def test(run): return run.scores('test')['accuracy']
    score.version = test.version = '1'
    train.pop('warmup', None)
    return Study(folder, tiny_claims.model, data, methods, seeds, settings,
                 dict(validation_score=score) if tuning_ else dict(validation_score=score, test_score=test),
                 StudyOptions(weights='none'), progress=False, snapshots=0, probes=1, batch_size=8, **train)

@pytest.fixture
def tiny(monkeypatch):
    "Replace all studies and effects by one of sixteen sentences"
    import tiny_claims
    from salviz.methods import ADDrop, FineTuning
    rates = tuple(dict(learning_rate=r, epochs=2) for r in (1e-5, 3e-2))
    study = TunedStudy('TINY', 'sixteen sentences', tiny_trials,
                       dict(FT=TunedCondition(FineTuning, rates),
                            GA=TunedCondition(lambda p: ADDrop(p=p, q=.3), (dict(p=.3), dict(p=.5)))),
                       {}, {}, ('validation_score', 'higher'), ('test_score', 'higher', .5), 1.)
    terms = tuned._minus('TINY', 'GA', 'FT', 'test_score')
    monkeypatch.setattr(tuning, 'tuned_studies', dict(TINY=study))
    monkeypatch.setattr(tuned, 'tuned_studies', dict(TINY=study))
    monkeypatch.setattr(tuned, 'tuned_effects', dict(D2=(TunedEffect('D2', 'GA - FT', terms, .01, seeds=4),)))
    yield study
    tiny_claims.forget()

def test_everything_is_tuned_and_frozen_before_the_first_test_row_and_nothing_is_trained_twice(tiny, tmp_path):
    file = tmp_path/'rows.jsonl'
    protocol = TunedProtocol(tmp_path, file)
    assert not protocol.once()
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    kinds = [(e['kind'], e.get('condition') or e.get('method')) for e in entries if e['kind'] != 'machine']
    order = [kind for kind, _ in kinds]
    assert kinds[0][0] == 'registry' and order.count('choice') == 2
    choices = [i for i, kind in enumerate(order) if kind == 'choice']
    tests = [i for i, e in enumerate(e for e in entries if e['kind'] != 'machine')
             if e['kind'] == 'row' and e['budget'] == 'tuned']
    assert max(choices) < min(tests)
    tuning_rows = row_entries(file, 'tuning')
    assert {r['seed'] for r in tuning_rows} == {0, 1} and {r['seed'] for r in row_entries(file, 'tuned')} <= {200, 201,
                                                                                                             202, 203}
    assert all(set(r['measures']) == {'validation_score'} for r in tuning_rows) # no test score
    chosen = frozen(file)
    for condition in ('FT', 'GA'):
        mine = [r for r in tuning_rows if r['method'] == condition]
        means = {str(s): statistics.fmean(r['measures']['validation_score'] for r in mine if r['settings'] == s)
                 for s in [r['settings'] for r in mine]}
        assert means[str(chosen['TINY', condition]['settings'])] == max(means.values())
    before = file.read_text()
    assert not TunedProtocol(tmp_path/'elsewhere', file).once() and file.read_text() == before

@pytest.mark.parametrize('part', [.5, *(pytest.param(part, marks=pytest.mark.slow) for part in (0, 1))])
def test_an_interrupted_run_continues_with_the_same_choices(tiny, tmp_path, part):
    file, whole = tmp_path/'rows.jsonl', tmp_path/'whole.jsonl'
    TunedProtocol(tmp_path/'a', whole).once()
    lines = whole.read_text().splitlines(keepends=True)
    file.write_text(''.join(lines[:round(2 + part*(len(lines) - 3))]))
    TunedProtocol(tmp_path/'b', file).once()
    def numbers(path): return {(r['budget'], r['method'], str(r['settings']), r['seed']): r['measures']
                               for budget in ('tuning', 'tuned') for r in row_entries(path, budget)}
    assert numbers(file) == numbers(whole)
    def settings(path): return {key: choice['settings'] for key, choice in frozen(path).items()}
    assert settings(file) == settings(whole)

def test_invalid_budgets_of_claims_are_named(tmp_path):
    with pytest.raises(ValueError, match="not available for the budget 'tuned': G8; available: "):
        reproduce(tmp_path, ('G8',), 'tuned', progress=False)

@pytest.mark.parametrize('name', ['AD', 'AD64', 'PRIOR', 'SALLM', 'DIGITS', 'TEXT'])
def test_the_data_of_every_condition_can_be_drawn(name, tmp_path):
    "A pool may have fewer rows than a study wants; tuning draws the same rows, but no test rows"
    study, seed = tuned_studies[name], tuned.first_seed
    methods = {study.baseline: lambda seed: study.conditions[study.baseline].method()}
    for cell in study.trials(tmp_path/'test', methods, [seed], dict(study.settings), False).cells:
        tested = study.trials(tmp_path/'test', methods, [seed], dict(study.settings), False)._data(cell)
        fitted = study.trials(tmp_path/'tuning', methods, [seed], dict(study.settings), True)._data(cell)
        assert set(tested) == {'train', 'validation', 'test'} and set(fitted) == {'train', 'validation'}
        assert all(tested[k].to_dict() == fitted[k].to_dict() for k in fitted if name != 'DIGITS')

# Thresholds and error rates

@pytest.mark.parametrize('domain', ['movie', 'amazon', 'tweets'])
def test_accuracy_on_other_domains_uses_at_most_1000_rows_of_each(domain, monkeypatch):
    sizes = []

    def perfect(model, tokenizer, test, max_length):
        sizes.append(len(test))
        return np.eye(2)[test['label']], np.array(test['label'])
    monkeypatch.setattr(classifiers, '_class_probabilities', perfect)
    run = SimpleNamespace(config=dict(data=dict(name=domain)))
    scores = tuning._other_domains(run, None, None)
    others = [task for task in ('movie', 'amazon', 'tweets') if task != domain]
    assert {*scores} == {*others, 'mean', 'majority'} and scores['mean'] == 1
    assert sizes == [min(1000, len(classifiers._sentence_pools(task)['test'])) for task in others]


def test_thresholds_equal_those_from_multivariate_normal_probabilities():
    "P(no look crosses its threshold up to look k) = 1 - spent(k), with correlations sqrt(t_i/t_j)"
    def spent(t): return 2*stats.norm.sf(stats.norm.isf(.025)/math.sqrt(t))
    t, limits = np.array(look_fractions), []
    for k in range(1, 5):
        corr = np.sqrt(np.minimum.outer(t[:k], t[:k])/np.maximum.outer(t[:k], t[:k]))
        def stays(limit, k=k, corr=corr):
            ends = np.array([*limits, limit])
            if k == 1: return stats.norm.cdf(limit) - stats.norm.cdf(-limit)
            return stats.multivariate_normal(np.zeros(k), corr, allow_singular=True, seed=0, maxpts=200_000).cdf(
                ends, lower_limit=-ends)
        limits.append(optimize.brentq(lambda x: stays(x) - (1 - spent(t[k - 1])), 1.5, 5, xtol=1e-4))
    np.testing.assert_allclose(2*stats.norm.sf(limits), look_levels(), rtol=.02)

deviations = ([.03], [.02, .03, .04])

@pytest.mark.parametrize('s', deviations, ids=len)
def test_the_procedure_seldom_supports_what_is_not_there(s):
    repeats = 150
    words = simulated_verdicts(0., s, 24, .01, repeats=repeats, seed=1)
    assert words.get('supported', 0.) <= .03 + 4*math.sqrt(.03*.97/repeats)

@pytest.mark.slow
@pytest.mark.parametrize('s', deviations, ids=len)
def test_error_rates_of_the_whole_procedure(s):
    "At most .03 false 'supported' without an effect, and at most .05 'not supported' of the smallest effect"
    repeats, m = 3000, .009
    seeds = {1: 96, 3: 44}[len(s)]
    none = simulated_verdicts(0., s, seeds, m, repeats=repeats, seed=1)
    some = simulated_verdicts(m, s, seeds, m, repeats=repeats, seed=2)
    error = 3*math.sqrt(.03*.97/repeats)
    print(f'no effect: {none.round(3).to_dict()}; smallest effect: {some.round(3).to_dict()}')
    assert none.get('supported', 0.) <= .03 + error and none.get('contradicted', 0.) <= .03 + error
    assert some.get('not supported', 0.) <= .05 + error and some.get('supported', 0.) >= .75

# The shipped rows, recomputed

file = shipped_rows('tuned')
lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
tests = [e for e in lines if e['kind'] == 'row' and e['budget'] == 'tuned']
margin = .05

@cache
def shipped_verdicts(): return tuned_verdicts(file)

def value(line, name):
    x = line['measures'].get(name)
    return math.nan if x is None else float(x)

def fits(line, term): return (line['study'], line['method']) == (term.study, term.arm) and all(
    line['settings'].get(k) == x for k, x in term.where)

def task_of(line, effect, term):
    if effect.task in dict(term.where): return ''
    return str(line['settings'].get(effect.task, ''))

def constant(study, line):
    level = tuned_studies[study].learns[2]
    return value(line, level) if isinstance(level, str) else level

def not_learned(effect, rows):
    "Return the tasks in which a condition, or the teacher of one, does not beat a constant answer by .05"
    out = set()
    taught = [replace(t, arm='FT') for t in effect.terms if t.study == 'SALLM'] # the teacher of all its students
    for term in [*effect.terms, *taught]:
        metric, better, _ = tuned_studies[term.study].learns
        gains = defaultdict(list)
        for e in rows:
            if not fits(e, term): continue
            gain = value(e, metric) - constant(term.study, e)
            gains[task_of(e, effect, term)].append(gain if better == 'higher' else -gain)
        out |= {task for task, x in gains.items() if statistics.fmean(x) < margin - 1e-12}
    return out

def welch(groups, level):
    "Return the interval of the mean of group means, with one variance per group"
    mean = statistics.fmean(statistics.fmean(g) for g in groups)
    parts = [statistics.variance(g)/len(g) for g in groups]
    freedom = sum(parts)**2/sum(v**2/(len(g) - 1) for v, g in zip(parts, groups))
    half = stats.t.isf(level/2, freedom)*math.sqrt(sum(parts))/len(groups)
    return mean - half, mean + half

def spread(groups, level):
    "Return the interval of ln of the ratio of deviations (Pitman and Morgan), centred by group"
    x, y = ([p[i] - statistics.fmean(q[i] for q in g) for g in groups for p in g] for i in (0, 1))
    xx, yy, xy = (sum(a*b for a, b in zip(*both)) for both in ((x, x), (y, y), (x, y)))
    freedom = len(x) - len(groups) - 1
    middle = math.log(xx/yy)/2
    half = math.asinh(stats.t.isf(level/2, freedom)*math.sqrt(1 - xy*xy/(xx*yy))/math.sqrt(freedom))
    return middle - half, middle + half

def word_for(low, high, effect):
    m = effect.smallest
    if effect.rule == 'no harm':
        return 'supported' if low > -m else 'not supported' if high < -m else 'inconclusive'
    if low > 0: return 'supported'
    if high < 0: return 'contradicted'
    return 'not supported' if high < m else 'inconclusive'

def expected(effect):
    "Return (verdict, look) from the lines of the file"
    found = (None, 0)
    for look, fraction in enumerate(look_fractions, 1):
        seeds = range(200, 200 + math.ceil(effect.seeds*fraction))
        rows = [e for e in tests if e['seed'] in seeds]
        columns = [{(task_of(e, effect, t), e['seed']): value(e, t.measure) for e in rows if fits(e, t)}
                   for t in effect.terms]
        tasks = {at[0] for c in columns for at in c}
        if not tasks or not all((task, seed) in c for c in columns for task in tasks for seed in seeds): return found
        out = not_learned(effect, rows)
        groups = defaultdict(list)
        for at in columns[0]:
            numbers = [c[at] for c in columns]
            d = numbers if effect.rule == 'spread' else sum(t.weight*x for t, x in zip(effect.terms, numbers))
            groups[at[0]].append(d)
        counted = [g for task, g in groups.items() if task not in out]
        if sum(map(len, counted or groups.values())) < 4: found = ('no verdict', look); continue
        if not counted: found = ('not testable', look); continue
        if effect.rule != 'spread' and min(map(len, counted)) < 2: found = ('no verdict', look); continue # no variance
        level, judge = look_levels()[look - 1], spread if effect.rule == 'spread' else welch
        words = [word_for(*judge(counted, level), effect)]
        if effect.rule != 'spread' and len(counted) > 1 and stats.alexandergovern(*counted).pvalue < .01:
            words = [word_for(*welch([g], level/len(counted)), effect) if len(g) >= 4 else 'no verdict'
                     for g in counted]
        joint = words[0] if len(set(words)) == 1 else (
            'not supported' if {'not supported', 'contradicted'} & {*words} else
            'no verdict' if 'no verdict' in words else 'inconclusive')
        found = (joint, look)
        if all(w in ('supported', 'contradicted', 'not supported') for w in words): break
    return found

@pytest.mark.parametrize('effect', [e for effects in tuned_effects.values() for e in effects], ids=lambda e: e.name)
def test_the_verdict_of_the_shipped_rows_follows_from_its_lines(effect):
    found = shipped_verdicts()[effect.name]
    assert (found.word if found else None, found.look if found else 0) == expected(effect)

def test_each_shipped_test_row_used_the_frozen_choice_of_its_condition():
    seen, at = {}, {}
    for i, e in enumerate(lines):
        if e['kind'] == 'choice': seen.setdefault((e['study'], e['condition']), i)
        if e['kind'] == 'row' and e['budget'] == 'tuned': at.setdefault((e['study'], e['method']), i)
    assert all(seen[key] < i for key, i in at.items())
    for (study, condition), choice in (frozen(file) if lines else {}).items():
        tuned_on = [e for e in lines if e['kind'] == 'row' and e['budget'] == 'tuning'
                    and (e['study'], e['method']) == (study, condition)]
        assert len(tuned_on) == choice['rows'] and {e['seed'] for e in tuned_on} <= {0, 1}
    assert {e['seed'] for e in tests} <= set(range(200, 400))
