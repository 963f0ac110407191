"The best setting of a grid is selected on validation and reported on test; ties are listed and invalid metrics raise."
import math

import numpy as np
import pandas as pd
import pytest

from salviz.core.run_files import write_object
from salviz.core.runs import Run
from salviz.metrics.study_results import StudyResults, best_settings

def grid(seed=0, seeds=(0, 1, 2), p=(.1, .3, .5), q=(1, 2)):
    draw = np.random.default_rng(seed).normal
    rows = [dict(method=m, p=x, q=y, seed=s, run=f'{m}.{x}.{y}.{s}', validation_accuracy=draw(.8, .02),
                 test_accuracy=draw(.8, .02), validation_loss=draw(.5, .1), test_loss=draw(.5, .1))
            for m in ('A', 'B') for x in p for y in q for s in seeds]
    rows += [dict(method='plain', p=None, q=None, seed=s, run=f'plain.{s}', validation_accuracy=draw(.8, .02),
                  test_accuracy=draw(.8, .02), validation_loss=draw(.5, .1), test_loss=draw(.5, .1)) for s in seeds]
    return pd.DataFrame(rows)

@pytest.mark.parametrize('measure,pick', [('accuracy', max), ('loss', min)])
@pytest.mark.parametrize('seed', range(5))
def test_best_setting_is_selected_on_validation_only(seed, measure, pick):
    frame = grid(seed)
    found = best_settings(frame, f'validation_{measure}').set_index('method')
    assert list(found.index) == ['A', 'B', 'plain'] and found.cells.tolist() == [6, 6, 1]
    for method in ('A', 'B'):
        means, reported = {}, {}
        for p in (.1, .3, .5):
            for q in (1, 2):
                cell = frame[(frame.method == method) & (frame.p == p) & (frame.q == q)]
                means[p, q] = sum(cell[f'validation_{measure}'])/3
                reported[p, q] = sum(cell[f'test_{measure}'])/3
        best = pick(means, key=means.get)
        row = found.loc[method]
        assert (row.p, row.q) == best and row.runs == 3 and row.tied == ''
        assert row[f'validation_{measure}'] == pytest.approx(means[best])
        assert row[f'test_{measure}'] == pytest.approx(reported[best])
        assert row.chosen_on_report == pytest.approx(pick(reported.values()))
        assert row.flattery == pytest.approx(abs(row.chosen_on_report - row[f'test_{measure}']))
    assert found.loc['plain', 'flattery'] == 0 and math.isnan(found.loc['plain', 'p'])

def test_selection_ignores_the_test_split():
    frame = grid()
    other = frame.assign(test_accuracy=np.random.default_rng(9).normal(size=len(frame)))
    assert best_settings(frame)[['p', 'q']].equals(best_settings(other)[['p', 'q']])

def test_settings_with_fewer_finite_runs_are_not_selected():
    frame = grid()
    first = best_settings(frame).set_index('method').loc['A']
    here = (frame.method == 'A') & (frame.p == first.p) & (frame.q == first.q)
    for less in (frame.drop(frame[here].index[0]),
                 frame.assign(validation_accuracy=frame.validation_accuracy.mask(here & (frame.seed == 1)))):
        row = best_settings(less).set_index('method').loc['A']
        assert (row.p, row.q) != (first.p, first.q) and row.runs == 3 and row.cells == 6
    none = frame.assign(validation_accuracy=frame.validation_accuracy.mask(frame.method == 'A'))
    assert best_settings(none).method.tolist() == ['B', 'plain']

def test_tied_settings_are_listed_and_the_first_is_taken():
    frame = grid()
    frame.loc[(frame.method == 'B') & (frame.p > .2), 'validation_accuracy'] = 2.
    row = best_settings(frame).set_index('method').loc['B']
    assert (row.p, row.q) == (.3, 1) and row.tied == 'p=0.3, q=2; p=0.5, q=1; p=0.5, q=2'

def test_invalid_selection_metrics_give_a_short_error(tmp_path):
    frame = grid()
    for options, says in ((dict(by='validation_f1'), "unknown metric by='validation_f1'"),
                          (dict(report='test_f1'), 'unknown metric report='),
                          (dict(by='test_accuracy'), 'metric on the validation split'),
                          (dict(by='validation_loss', report='validation_loss'), 'metric on the validation split')):
        with pytest.raises(ValueError, match=says): best_settings(frame, **options)
    named = frame.rename(columns=dict(validation_accuracy='validation_points', test_accuracy='test_points'))
    with pytest.raises(ValueError, match='whether a higher or lower validation_points is better'):
        best_settings(named, 'validation_points')
    both = dict(validation_points='higher', test_points='higher')
    assert best_settings(named, 'validation_points', better=both)[['p', 'q']].equals(best_settings(frame)[['p', 'q']])
    with pytest.raises(ValueError, match='several runs of one setting'): best_settings(pd.concat([frame, frame]))

def test_study_returns_the_best_finished_setting(monkeypatch, tmp_path):
    study = StudyResults.__new__(StudyResults)
    study.folder, study.manifest = tmp_path, dict(better={})
    monkeypatch.setattr(StudyResults, 'results', lambda self: grid())
    assert study.best().equals(best_settings(grid()))
    assert study.best(q=2).q.dropna().unique().tolist() == [2] and study.best(method='A').method.tolist() == ['A']
    with pytest.raises(ValueError, match='rate is not a setting; available: method, p, q, seed'): study.best(rate=1)
    with pytest.raises(ValueError, match='no finished run has p = 9'): study.best(p=9)
    monkeypatch.setattr(StudyResults, 'results', lambda self: grid()[:0])
    with pytest.raises(ValueError, match='no finished run yet'): study.best()

def test_study_with_default_metrics_has_a_best_setting(tmp_path):
    folder, cells = tmp_path/'study', []
    for p in (.1, .3):
        for seed in (0, 1):
            name = f'GA.p={p}.seed={seed}'
            run = Run.create(folder/'runs'/name, dict(method=dict(name='ADDrop', args=dict(p=p)), seed=seed,
                                                      best_metric=dict(name='accuracy')))
            for split, score in (('validation', p), ('test', .5 + p)):
                kind = 'eval' if split == 'validation' else 'score'
                run.log(dict(kind=kind, split=split, step=5, accuracy=score + seed/100, loss=.5, examples=9))
            run.finish(best_step=5)
            cells.append(dict(method='GA', settings=dict(p=p), seed=seed, run=f'runs/{name}'))
            known = {k: dict(value=1., version='') for k in ('test_accuracy', 'gap')}
            write_object(folder/f'cells/{name}.json', dict(measures=known))
    design = dict(methods=dict(GA=dict(name='ADDrop', args={})), seeds=[0, 1], settings=dict(p=[.1, .3]),
                  model='minilm', train={}, data=dict(name='tweets', sizes={}))
    write_object(folder/'study.json', dict(format=1, design=design, cells=cells, measures=['test_accuracy', 'gap'],
                                           better={}))
    study = StudyResults.open(folder)
    found, = study.best().to_dict('records')
    assert (found['p'], found['validation_accuracy'], found['test_accuracy']) == (.3, pytest.approx(.305), 1.)
    assert study.best('validation_loss', 'test_loss').tied.tolist() == ['p=0.3']
    with pytest.raises(ValueError, match="best: unknown metric 'validation_f1'.*accuracy, loss"):
        study.best('validation_f1')
