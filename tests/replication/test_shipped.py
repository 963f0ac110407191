"""The rows that ship with the package: where they come from, and that all verdicts follow from them. The verdicts are
recomputed here, with loops over the lines of the file."""
import base64
import functools
import gzip
import html
import inspect
import json
import math
import re
import statistics
from collections import defaultdict
from dataclasses import replace

import pytest
from scipy import stats

from salviz.replication.plans import plans
from salviz.replication.registry import (_conditions, claims, constants, fingerprint_of, judged, registry_description,
                                         unannounced)
from salviz.replication.report import find_all, headline, report_html
from salviz.replication.reproduce import _selected_plans, selected_claims, shipped_rows
from salviz.replication.rows import identity, read_rows
from traced import root

file = shipped_rows('small')
entries = [json.loads(line) for line in file.read_text().splitlines()]
lines = [e for e in entries if e['kind'] == 'row']
machines = {e['id']: e['machine'] for e in entries if e['kind'] == 'machine'}
effects = {e.name: e for c in claims.values() for e in c.effects}

def number(line, measure):
    "Return a metric of a line, NaN if it has none"
    x = line['measures'].get(measure)
    return math.nan if x is None else float(x)

def asked(study, condition, where):
    "Return the lines of a condition of a study, with these settings"
    where = {k: v['small'] if isinstance(v, dict) else v for k, v in where}
    return [e for e in lines if e['study'] == study and e['method'] == condition
            and all(e['settings'].get(k) == v for k, v in where.items())]

def place(line, effect, where):
    "Return (task, pair) of a line, as an effect pairs them"
    known = {**line['settings'], 'seed': line['seed']}
    task = known.get(effect.task, '') if effect.task not in dict(where) else ''
    return str(task), tuple(known[k] for k in effect.by)

def pairs_of(effect):
    "Return {(task, pair): numbers of the terms} for complete pairs"
    columns = [{place(e, effect, t.where): number(e, t.measure) for e in asked(t.study, t.arm, t.where)}
               for t in effect.terms]
    return {at: [c[at] for c in columns] for at in columns[0] if all(at in c for c in columns)}

def combined(effect, numbers):
    plus = [t.weight*x for t, x in zip(effect.terms, numbers) if t.weight > 0]
    minus = [-t.weight*x for t, x in zip(effect.terms, numbers) if t.weight < 0]
    if effect.combine == 'range': return (max(plus) - min(plus)) - (max(minus) - min(minus))
    return sum(plus) - sum(minus)

def behind_gates(effect, pairs):
    "Return the pairs that count, the number of those that do not, and whether a gate failed"
    kept, closed = dict(pairs), False
    for gate in effect.gates:
        if gate.below is not None: # the loss of the better condition, against a constant prediction
            def margin(condition, gate=gate):
                runs = asked(gate.study, condition, gate.where)
                alone = (gate.below['small'] if isinstance(gate.below, dict)
                         else statistics.fmean(number(e, gate.below) for e in runs))
                return alone - statistics.fmean(number(e, gate.measure) for e in runs)
            closed |= max(map(margin, gate.arms)) < .05 - 1e-12
            continue
        def least(e, gate=gate):
            return gate.least if gate.over_majority is None else number(e, 'majority') + gate.over_majority
        for condition in gate.arms:
            runs = asked(gate.study, condition, gate.where)
            if gate.each:
                reached = {place(e, effect, gate.where) for e in runs if number(e, gate.measure) >= least(e) - 1e-12}
                kept = {at: x for at, x in kept.items() if at in reached}
        if not gate.each:
            runs = [e for condition in gate.arms for e in asked(gate.study, condition, gate.where)]
            scores = [number(e, gate.measure) for e in runs]
            closed |= not scores or statistics.fmean(scores) < statistics.fmean(map(least, runs)) - 1e-12
    finite = {at: x for at, x in kept.items() if all(map(math.isfinite, x))}
    return finite, len(pairs) - len(finite), closed

def interval_of_means(by_task):
    "Return the mean over tasks and its interval, with the variance pooled within tasks"
    k, n = len(by_task), sum(map(len, by_task))
    mean = statistics.fmean(map(statistics.fmean, by_task))
    squares = sum((x - statistics.fmean(d))**2 for d in by_task for x in d)
    if n <= k or squares < 1e-20: return mean, None
    half = stats.t.ppf(.975, n - k)*math.sqrt(squares/(n - k)*sum(1/len(d) for d in by_task))/k
    return mean, (mean - half, mean + half)

def interval_of_spreads(by_task):
    "Return the logarithm of the ratio of two deviations, centred by task, and its interval (Pitman and Morgan)"
    def centred(side): return [p[side] - statistics.fmean(q[side] for q in d) for d in by_task for p in d]
    x, y = centred(0), centred(1)
    xx, yy, xy = (sum(a*b for a, b in zip(*both)) for both in ((x, x), (y, y), (x, y)))
    freedom, r2 = len(x) - len(by_task) - 1, xy*xy/(xx*yy)
    k = 1 + 2*(1 - r2)*stats.t.ppf(.975, freedom)**2/freedom
    ends = [xx/yy*(k - math.sqrt(k*k - 1)), xx/yy*(k + math.sqrt(k*k - 1))]
    return math.log(xx/yy)/2, tuple(math.log(e)/2 for e in ends)

def expected_verdict(effect):
    "Return (verdict, mean, interval) by the rules of the registry; the interval is None if it must not be interpreted"
    pairs = pairs_of(effect)
    kept, dropped, closed = behind_gates(effect, pairs)
    if len(pairs) < 4: return 'no verdict', None, None
    if closed or 3*dropped > len(pairs): return 'not testable', None, None
    if len(kept) < 4: return 'no verdict', None, None
    by_task = defaultdict(list)
    for (task, _), numbers in kept.items():
        by_task[task].append(numbers if effect.rule == 'spread' else combined(effect, numbers))
    interval = interval_of_spreads if effect.rule == 'spread' else interval_of_means
    mean, ends = interval(list(by_task.values()))
    if ends is None: return 'no verdict', mean, None
    (low, high), m = ends, effect.smallest
    if effect.rule == 'no harm':
        return ('supported' if low > -m else 'not supported' if high < -m else 'inconclusive'), mean, ends
    if low > 0: return 'supported', mean, ends
    if high < 0: return 'contradicted', mean, ends
    return ('not supported' if high < m else 'inconclusive'), mean, ends

verdicts = judged(read_rows(file, 'small'))

@pytest.mark.parametrize('name', effects)
def test_each_verdict_follows_from_the_rows(name):
    word, mean, ends = expected_verdict(effects[name])
    verdict = verdicts[name]
    assert verdict.word == word, verdict.why
    if ends: assert (verdict.mean, verdict.low, verdict.high) == pytest.approx((mean, *ends), rel=1e-9, abs=1e-12)

def test_everything_that_determines_verdicts_is_unchanged_since_the_first_row():
    first = next(e for e in entries if e['kind'] == 'registry')
    assert first is entries[0] and fingerprint_of(first['registry']) == first['fingerprint']
    assert unannounced(first['registry'], registry_description('small')) == []

@pytest.mark.slow
def test_later_gates_fail_only_where_no_condition_learned_and_the_original_verdict_is_printed():
    later = {name: e for name, e in effects.items() if any(g.after_run for g in e.gates)}
    assert set(later) == {'G4', 'G8'}
    first = judged(read_rows(file, 'small'), first=True)
    text = ' '.join(html.unescape(re.sub('<[^>]*>', ' ', page())).split())
    for name, e in later.items():
        assert first[name].word == expected_verdict(replace(e, gates=()))[0] == 'contradicted'
        assert verdicts[name].word == 'not testable'
        for why in {g.after_run for g in e.gates}:
            note = f'By the original rules: contradicted. The gate was added after the run because {why}.'
            assert text.count(note) == 3
    assert {n: v.word for n, v in first.items() if n not in later} == {n: v.word for n, v in verdicts.items()
                                                                       if n not in later}

class _Recorded(Exception): pass

def test_the_registry_lists_the_settings_of_all_conditions(monkeypatch, tmp_path):
    "No data is read: creating a study raises an error that contains its methods"
    import salviz.methods as methods
    from salviz.studies import study
    def stop(folder, model, data, methods, *args, **more): raise _Recorded(methods)
    monkeypatch.setattr(study, 'Study', stop)
    for name, plan in plans.items():
        if 'small' not in plan.sizes: continue
        with pytest.raises(_Recorded) as stopped: plan.study(tmp_path, 'small')
        made = stopped.value.args[0]
        assert list(made) == list(_conditions[name])
        for condition, spec in made.items():
            kind, given = _conditions[name][condition]
            if not hasattr(spec, 'args') or hasattr(spec, 'func'):
                asks = inspect.signature(spec).parameters
                known = dict(run_of=lambda condition: 'a run', start='plain', layers=6, seed=100)
                spec = spec(**{k: known[k] for k in asks if k in known})
            given = dict(given, teacher='a run') if kind == 'SalLM' else given
            expected = getattr(methods, kind).from_args(given).args()
            assert type(spec).__name__ == kind and spec.args() == expected, (name, condition)

@pytest.mark.slow
def test_the_fraction_of_replaced_tokens_matches_the_data():
    from salviz.replication.language import drawn, _packed_sentences
    from salviz.data.texts import encode
    from salviz.models.corruption import token_counts
    tokenizer, rows = _packed_sentences()
    rows = encode(drawn(lambda: rows, (6400, 500, 100))(100), tokenizer, task='masked_lm')
    train, there = (token_counts(rows[k], tokenizer).numpy().astype(float) for k in ('train', 'validation'))
    p = .15*(1 - (train/train.sum()*there/there.sum()).sum()) # redrawn by frequency, some of them unchanged
    assert constants['RTD'][1] == pytest.approx(-p*math.log(p) - (1 - p)*math.log(1 - p), abs=1e-4)

def without_digits(text):
    "Return the text without its numbers and packed rows, its numbers, and the rows"
    packed = re.search(r'base64,([^"]*)', text)[1]
    text = text.replace(packed, '')
    rows = gzip.decompress(base64.b64decode(packed))
    pattern = r'[-−]?\d+(?:\.\d+)?'
    return re.sub(pattern, '#', text), [float(x.replace('−', '-')) for x in re.findall(pattern, text)], rows

@functools.cache
def page(): return report_html(read_rows(file, 'small'), 'small')

def test_the_shipped_report_is_up_to_date():
    "Numbers may differ in their last digits between processors"
    shipped = (root/'docs'/'reproduction.html').read_text()
    assert len(shipped.encode()) < 1_000_000
    (words, numbers, rows), (now, numbers_now, rows_now) = map(without_digits, (shipped, page()))
    remedy = 'run `python docs/build.py --report`'
    assert words == now and rows == rows_now, remedy
    assert numbers == pytest.approx(numbers_now, rel=.02, abs=.02), remedy

@pytest.mark.slow
def test_rows_belong_to_trials_of_the_studies_and_name_their_machine(tmp_path):
    assert file.stat().st_size < 1_000_000
    assert len({identity(e) for e in lines}) == len(lines)
    known = {identity(dict(c.described(), budget='small', study=name)) for name in {e['study'] for e in lines}
             for c in plans[name].study(tmp_path, 'small').cells}
    assert {identity(e) for e in lines} <= known
    for line in lines:
        machine = machines[line['machine']]
        assert machine['processor'] and machine['versions']['torch'] and line['seconds'] > 0

@pytest.mark.slow
def test_all_studies_have_run(tmp_path):
    count = {name: len(plans[name].study(tmp_path, 'small').cells) for name in _selected_plans(selected_claims())}
    assert {name: sum(e['study'] == name for e in lines) for name in count} == count

def test_the_readme_quotes_the_headline_of_the_rows():
    findings, readme = find_all(read_rows(file, 'small')), (root/'README.md').read_text()
    text = ' '.join(readme.split())
    assert ' '.join(headline(findings, 'small').split()) in text
