"Comparing methods: equal tuning, held-out rows, the budget, resuming, the gate, the table and Holm's correction."
import json
import math
import re
import shutil
import time
from concurrent.futures import BrokenExecutor, Future
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

from helpers import with_shifted_split
from salviz.cli import main
from salviz.core.runs import Run
from salviz.analysis.steering import Steering
from salviz.methods import Distillation, FineTuning
from salviz.methods.base import method_classes
from salviz.metrics.statistics import result_table
from salviz.replication import comparison
from salviz.replication.comparison import MethodComparison, compare
from salviz.replication.method_trials import PointStudy, methods_named, search_points
from salviz.studies.trials import arguments_of
from salviz.training.settings import Settings

quick = dict(epochs=2, batch_size=8, explained=0, say=lambda line: None)

@pytest.fixture
def shifted(tiny_data):
    "Return the sentences, and a fourth split with 12 of them, four with wrong labels"
    return with_shifted_split(tiny_data, correct=8)

@pytest.fixture
def compared(tmp_path, shifted, tiny_bert, tiny_tokenizer):
    def compared(methods='DropHead', seeds=2, trials=2, **more):
        return compare(lambda seed: (tiny_bert(), tiny_tokenizer), shifted, methods, seeds, trials=trials,
                       folder=tmp_path/'comparison', **{**quick, **more})
    compared.folder = tmp_path/'comparison'
    return compared

def test_a_comparison_tunes_all_methods_equally_and_scores_every_held_out_split(compared):
    result = compared()
    frame = result.rows
    assert sorted(zip(frame.method, frame.seed)) == [(m, s) for m in ('DropHead', 'FineTuning') for s in (1, 2)]
    assert {known['trials'] for known in result.tuning.values()} == {2} and result.splits == ['test', 'ood']
    tuning = json.loads((compared.folder/'tuning'/'study.json').read_text())
    assert [cell['method'] for cell in tuning['cells']] == ['FineTuning', 'DropHead']*2
    assert {cell['seed'] for cell in tuning['cells']} == {0} and set(tuning['design']['data']['sizes']) == {
        'train', 'validation'}
    rates = {m: [c['settings']['learning_rate'] for c in tuning['cells'] if c['method'] == m] for m in result.methods}
    assert rates['FineTuning'] == rates['DropHead'] == [1e-4, 5e-4]
    for row in frame.to_dict('records'):
        run = Run(compared.folder/'final'/row['run'])
        assert row['test_accuracy'] == run.scores('test')['accuracy'] and row['ood_accuracy'] == run.scores('ood')[
            'accuracy']
        assert run.config['settings']['learning_rate'] == result.tuning[row['method']]['chosen']['learning_rate']
    assert frame.cost[frame.method == 'FineTuning'].tolist() == [1., 1.]

def test_the_best_validation_score_chooses_the_point(compared):
    result = compared(seeds=1)
    for name, known in result.tuning.items():
        scores = {}
        for file in (compared.folder/'tuning'/'runs').glob(f'{name}.*'):
            run = Run(file)
            scores[run.config['settings']['learning_rate']] = run.scores('validation')['accuracy']
            assert 'test' not in run.config['data']['sizes']
            assert not [array for array in (file/'arrays').glob('*') if not array.name.startswith('validation')]
        assert len(scores) == 2 and scores[known['chosen']['learning_rate']] == max(scores.values()) == known['score']

def test_an_interrupted_comparison_resumes_trial_by_trial(compared, monkeypatch):
    train, trained = PointStudy._train, []
    def dying(self, cell, *more):
        trained.append((self.folder.name, cell.name))
        if len(trained) == 6: raise KeyboardInterrupt
        return train(self, cell, *more)
    monkeypatch.setattr(PointStudy, '_train', dying)
    with pytest.raises(KeyboardInterrupt): compared()
    assert [folder for folder, _ in trained] == ['tuning']*4 + ['final']*2
    timed = []
    monkeypatch.setattr(PointStudy, 'timed', lambda *more: timed.append(more))
    result = compared()
    assert not timed and trained[6] == trained[5] # the estimate is in the folder, and the killed trial comes first
    assert len(trained) == len({*trained}) + 1 == 9 and len(result.rows) == 4
    assert len(compared().rows) == 4 and len(trained) == 9

def test_a_comparison_stops_at_its_budget_and_says_so(compared, monkeypatch):
    lines, finish, done = [], PointStudy._finish, []
    def late(self, *more):
        finish(self, *more)
        done.append(self.folder.name)
        if done.count('final') == 1: self.ends = 0 # the deadline is over
    monkeypatch.setattr(PointStudy, '_finish', late)
    result = compared(budget='1h', say=lines.append)
    assert done == ['tuning']*4 + ['final'] and len(result.rows) == 1
    said = 'Stopped during the final runs, at the end of the budget of 60 minutes: 1 of 4 final runs is finished.'
    assert result.sentences == [said] and lines[-1] == f'compare: {said}'
    assert result.notes()['DropHead'] == 'no finished run'
    monkeypatch.undo()
    assert len(compared(budget='1h').rows) == 4

class Inline:
    "An executor with one worker, which is this process; it dies at the calls `deaths`"
    _max_workers, calls = 1, 0
    def __init__(self, deaths=()): self.deaths = deaths
    def shutdown(self): pass
    def submit(self, function, *args):
        Inline.calls += 1
        future = Future()
        if Inline.calls in self.deaths: future.set_exception(BrokenExecutor('killed'))
        else: future.set_result(function(*args))
        return future

def numbers_of(result):
    "Return the rows without times, sorted"
    return result.rows.drop(columns=['step_seconds', 'cost']).sort_values('run').reset_index(drop=True)

@pytest.mark.slow
def test_workers_train_the_same_runs_and_a_killed_one_loses_nothing(compared, monkeypatch):
    alone = compared(seeds=1)
    shutil.rmtree(compared.folder)
    monkeypatch.setattr(Inline, 'calls', 0)
    result = compared(seeds=1, run=dict(executor=lambda: Inline(deaths=(2, 5)), threads=1))
    pd.testing.assert_frame_equal(numbers_of(result), numbers_of(alone))
    assert Inline.calls == 8 and result.sentences == []

@pytest.mark.slow
def test_workers_stop_at_the_budget_and_resume(compared, monkeypatch):
    clock, finish, done = time.time, PointStudy._finish, []
    def late(self, *more):
        finish(self, *more)
        done.append(self.folder.name)
        if len(done) == 5: monkeypatch.setattr(time, 'time', lambda: clock() + 4000)
    monkeypatch.setattr(PointStudy, '_finish', late)
    monkeypatch.setattr(Inline, 'calls', 0)
    workers = dict(executor=Inline(), threads=1)
    result = compared(budget='1h', run=workers)
    assert done == ['tuning']*4 + ['final'] and len(result.rows) == 1 and Inline.calls == 5
    assert result.sentences == [
        'Stopped during the final runs, at the end of the budget of 60 minutes: 1 of 4 final runs is finished.']
    monkeypatch.undo()
    assert len(compared(budget='1h', run=workers).rows) == 4

@pytest.mark.slow
def test_processes_train_the_same_runs(compared):
    alone = compared(seeds=1, trials=1)
    shutil.rmtree(compared.folder)
    pd.testing.assert_frame_equal(numbers_of(compared(seeds=1, trials=1, processes=2)), numbers_of(alone))

def test_further_methods_are_added_to_a_comparison_and_the_others_are_not_trained_again(compared, monkeypatch):
    first, train, trained = compared(seeds=1, trials=1), PointStudy._train, []
    def noted(self, cell, *more):
        trained.append(cell.method)
        return train(self, cell, *more)
    monkeypatch.setattr(PointStudy, '_train', noted)
    timed = PointStudy.timed
    def of_new(self, method, steps):
        assert method == 'RDrop'
        return timed(self, method, steps)
    monkeypatch.setattr(PointStudy, 'timed', of_new)
    lines = []
    with monkeypatch.context() as stopping:
        stopping.setattr(comparison._Comparing, 'finish', lambda self, study: False)
        stopped = compared('DropHead, RDrop', seeds=1, say=lines.append)
    assert len(stopped.rows) == 0 and len(MethodComparison.open(compared.folder).rows) == len(first.rows) == 2
    assert 'comparison.json still contains the earlier result with 2 final runs' in lines[-1]
    with pytest.raises(ValueError, match=r"contains RDrop; to .* methods \(methods='FineTuning,DropHead,RDrop'\)"):
        compared(seeds=1)
    result = compared('DropHead, RDrop', seeds=1, trials=6) # the number of trials is that of the first call
    assert len(MethodComparison.open(compared.folder).rows) == 3
    assert trained == ['RDrop']*2 and {known['trials'] for known in result.tuning.values()} == {1}
    rows = numbers_of(result)
    pd.testing.assert_frame_equal(rows[rows.method != 'RDrop'].reset_index(drop=True), numbers_of(first))

def test_a_short_budget_reduces_the_trials_of_all_methods_equally(compared, monkeypatch):
    lines = []
    monkeypatch.setattr(PointStudy, 'timed', lambda self, method, steps: 1. + 4*steps)
    monkeypatch.setattr(comparison._Comparing, 'finish', lambda self, study: False)
    result = compared(budget=1e5, trials=5, seeds=3, say=lines.append)
    assert json.loads((compared.folder/'plan.json').read_text())['trials'] == 5
    assert result.sentences == ['0 of 6 final runs are finished.']
    plan = json.loads((compared.folder/'plan.json').read_text())
    shutil.rmtree(compared.folder)
    compared(budget=5.5*sum(plan['seconds'].values()), trials=5, seeds=3, say=lines.append)
    assert json.loads((compared.folder/'plan.json').read_text())['trials'] == 2
    assert any('each method is tuned with 2 trials instead of 5, because' in line for line in lines)
    shutil.rmtree(compared.folder)
    compared(budget=5.5*sum(plan['seconds'].values())/2, trials=5, seeds=3, say=lines.append, processes=2)
    assert json.loads((compared.folder/'plan.json').read_text())['trials'] == 2
    assert any(line.endswith('with 2 processes') for line in lines)

def test_the_budget_counts_the_time_of_workers_that_train_at_the_same_time(compared, monkeypatch):
    calls, seconds = [], pd.DataFrame(dict(seconds=[600., math.nan, 1200.]))
    def finish(self, study): calls.append((round(study.ends - time.time(), -1), self.run_options.get('threads')))
    monkeypatch.setattr(PointStudy, 'timed', lambda self, method, steps: 1. + 4*steps)
    monkeypatch.setattr(comparison._Comparing, 'finish', finish)
    monkeypatch.setattr(comparison, 'study_progress', lambda folder: SimpleNamespace(cells=seconds))
    for processes in (None, None, 2): compared(budget='1h', processes=processes, run=dict(threads=1))
    assert calls == [(3600, 1), (1800, 1), (2700, 1)] # the first call finds no trial
    with pytest.raises(ValueError, match='compare: pass either processes or an executor in run'):
        compared(processes=2, run=dict(executor=Inline()))

def test_methods_that_are_not_compared_do_not_count(compared, monkeypatch):
    def mine(): return FineTuning()
    mine.search_space = dict(learning_rate=(1e-4, 5e-4, 1e-3))
    plan = dict(trials=4, seconds=dict(FineTuning=1.), left_out=dict(mine='no', other='not asked for'), estimate=1.)
    compared.folder.mkdir()
    (compared.folder/'plan.json').write_text(json.dumps(plan))
    monkeypatch.setattr(comparison._Comparing, 'finish', lambda self, study: False)
    result = compared(dict(mine=mine), seeds=3)
    assert result.left_out == dict(mine='no') and result.sentences == ['0 of 3 final runs are finished.']
    (compared.folder/'plan.json').write_text(json.dumps(plan | dict(left_out={})))
    with pytest.raises(ValueError, match='compare: mine has 3 combinations of settings, but .* had 4 trials each'):
        compared(dict(mine=mine), seeds=3)

def test_groups_are_scored_where_they_are_known_and_the_test_split_must_have_them(compared, shifted):
    shifted = {k: part.add_column('genre', ['a']*len(part)) if k == 'test' else part for k, part in shifted.items()}
    names = comparison._final_measures(shifted, 'accuracy', ['test', 'ood'], 'genre', 'genre', 0)
    assert {name for name in names if re.search('group|consistency', name)} == {
        'test_worst_group', 'test_group_a', 'test_consistency'}
    for argument in ('group', 'contrast'):
        with pytest.raises(ValueError, match="compare: the test split has no column 'genre'; its columns are text,"):
            compared(**{argument: 'genre'})
    assert not compared.folder.exists()

def test_a_running_trial_is_interrupted_at_the_deadline_and_resumed(compared, tmp_path, shifted, tiny_bert,
                                                                    tiny_tokenizer):
    study = PointStudy(tmp_path/'study', lambda seed: (tiny_bert(), tiny_tokenizer), shifted, methods_named('plain'),
                       dict(FineTuning=[dict(learning_rate=1e-3)]), epochs=2, batch_size=8, snapshots=0, progress=False)
    class Passing:
        "A deadline that passes after three steps"
        looks = 0
        def __le__(self, now):
            self.looks += 1
            return self.looks > 5
        def __gt__(self, now): return self.looks <= 5
    study.ends = Passing()
    study.run()
    run = Run(study.folder/'runs'/study.cells[0].name)
    stopped = run.state['stopped']
    assert 0 < stopped < 10 and not run.finished and max(run.checkpoints) == stopped
    study.ends = float('inf')
    study.run()
    assert run.finished and study.run_cell(study.cells[0]) == 'finished'

def test_methods_that_do_not_fit_are_left_out_with_the_reason(compared):
    distillation = methods_named('DropHead, RightForRightReasons, Steering') | dict(Distillation=Distillation)
    result = compared(distillation, seeds=1, trials=1)
    assert {*result.left_out} == {'RightForRightReasons', 'Steering', 'Distillation'}
    assert 'rationale' in result.left_out['RightForRightReasons'] and 'teacher' in result.left_out['Distillation']
    assert 'requires rationales in every split that is scored' in result.left_out['Steering']
    assert {*result.rows.method} == {'FineTuning', 'DropHead'}
    assert 'rationale' in result.notes()['RightForRightReasons']
    assert Steering.evaluation_note not in result.methods_text() # it was not trained

def rows_of(means, seeds=6, spread=.01, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame([dict(method=m, seed=s, run=f'{m}-{s}', test_accuracy=x + spread*rng.normal(),
                               ood_accuracy=x - .1 + spread*rng.normal(), majority=.5, cost=1 + x*rng.random())
                          for m, x in means.items() for s in range(seeds)])
    return frame.assign(mean_ood_accuracy=frame.ood_accuracy)

def compared_rows(means, **more):
    return MethodComparison(rows_of(means, **more), 'accuracy', ['test', 'ood'], list(means))

def test_methods_that_did_not_learn_are_listed_last_and_without_numbers():
    result = compared_rows(dict(FineTuning=.7, A=.54, B=.9, C=.56))
    assert result.ranked() == ['B', 'FineTuning', 'C'] and list(result.table().index) == ['B', 'FineTuning', 'C', 'A']
    assert set(result.table().loc['A', :'cost']) == {''} and 'did not learn' in result.table().note['A']
    assert 'did not learn' in result.to_latex() and 'A' not in {*result.results().frame['method']}
    alone = compared_rows(dict(FineTuning=.5, A=.5))
    assert alone.ranked() == [] and len(alone.table()) == 2 and 'did not learn' in repr(alone)
    with pytest.raises(ValueError, match='no method can be ranked'): alone.results()

def test_the_methods_text_states_whether_differences_are_tested():
    for means, seeds, reason in ((dict(FineTuning=.7, A=.8), 3, '3 seeds are too few'),
                                 (dict(FineTuning=.7, A=.8), 1, '1 seed is too few'),
                                 (dict(FineTuning=.5, A=.8), 6, 'FineTuning is not ranked'),
                                 (dict(FineTuning=.7, A=.5), 6, 'no other method is ranked')):
        text = compared_rows(means, seeds=seeds).methods_text()
        assert text.endswith(f'Differences from FineTuning are not tested, because {reason}.') and 'Holm' not in text
    assert compared_rows(dict(FineTuning=.7, A=.8), seeds=4).methods_text().endswith(
        "tested by two-sided paired t-tests over seeds, with Holm's correction over all comparisons of the table.")

def test_marks_follow_holm_over_the_whole_table_without_the_cost():
    "Against a slow reference with scipy's t-test and a loop"
    result = compared_rows(dict(FineTuning=.7, A=.705, B=.73, C=.69), seeds=8, spread=.012)
    frame, pairs = result.rows, []
    for method in ('A', 'B', 'C'):
        for column in ('test_accuracy', 'ood_accuracy'):
            a, b = (frame[frame.method == m].sort_values('seed')[column].to_numpy() for m in (method, 'FineTuning'))
            pairs.append((method, column, ttest_rel(a, b).pvalue))
    ordered, largest, adjusted = sorted(pairs, key=lambda pair: pair[2]), 0., {}
    for i, (method, column, p) in enumerate(ordered):
        largest = max(largest, min(1., p*(len(pairs) - i)))
        adjusted[method, column] = largest
    found = {(r['method'], r['measure']): r for r in result.results().frame.to_dict('records')}
    marks = {key: '‡' if p < .01 else '†' if p < .05 else '' for key, p in adjusted.items()}
    assert len({*marks.values()}) > 1 # the case distinguishes
    for key, p in adjusted.items():
        assert found[key]['p_adjusted'] == pytest.approx(p, abs=1e-12) and found[key]['mark'] == marks[key]
    assert not found['B', 'cost']['mark'] and np.isnan(found['B', 'cost']['p_value'])
    table = result.results()
    assert not table.frame.best.any() and 'family: all 6 comparisons of the table' in table.caption

def test_columns_alone_are_corrected_by_default():
    frame = rows_of(dict(FineTuning=.7, A=.73, B=.71))
    table = result_table(frame, columns=['test_accuracy', 'ood_accuracy'], compare_to='FineTuning')
    assert 'family: the 2 comparisons of a column' in table.caption

def test_an_object_that_is_no_comparison_is_not_opened(tmp_path):
    for content in ('{}', '{"rows": [], "more": 1}'):
        (tmp_path/'comparison.json').write_text(content)
        with pytest.raises(ValueError, match='contains no comparison; call compare'): MethodComparison.open(tmp_path)

def test_a_comparison_is_saved_and_opened(tmp_path):
    result = compared_rows(dict(FineTuning=.7, B=.9))
    result.save(tmp_path/'comparison.json')
    for place in (tmp_path, tmp_path/'comparison.json'):
        assert MethodComparison.open(place).to_latex() == result.to_latex()

def test_the_command_line_passes_names_on_and_prints_the_table(monkeypatch, capsys, tmp_path):
    result, calls = compared_rows(dict(FineTuning=.7, B=.9)), []
    monkeypatch.setattr(comparison, 'compare', lambda *args, **more: calls.append((args, more)) or result)
    words = ('compare --data movie-polarity --model minilm --methods papers,baselines --seeds 5 '
             '--ood amazon-reviews,tweets --budget 2h').split()
    assert main([*words, '--figure', str(tmp_path/'a.svg'), '--train-size', '32']) == 0
    (model, data, methods, seeds), more = calls[0]
    assert (model, len(data['train']), methods, seeds) == ('minilm', 32, ['papers', 'baselines'], 5)
    assert more['ood'] == ['amazon-reviews', 'tweets'] and more['budget'] == '2h' and more['run']['executor'] is None
    assert more['processes'] is None
    assert capsys.readouterr().out.rstrip() == result.table().to_string().rstrip() and (tmp_path/'a.svg').exists()
    result.sentences.append('Stopped.')
    assert main([*words, '--latex', '--processes', '2']) == 1
    assert capsys.readouterr().out.startswith('\\begin{table*}') and calls[1][1]['processes'] == 2
    with pytest.raises(SystemExit): main([*words, '--processes', '2', '--dask', 'tcp://a:1'])
    assert 'not allowed with argument --processes' in capsys.readouterr().err
    assert main(['compare', '--budget', 'soon']) == 2
    assert 'budget must be a positive number of seconds' in capsys.readouterr().err
    assert len(calls) == 2

@pytest.mark.slow
def test_the_command_line_compares_packaged_data(tmp_path, capsys):
    words = ('compare --methods DropHead --seeds 1 --trials 1 --epochs 2 --train-size 16 --ood tweets --ood-rows 20 '
             '--explained 2').split()
    assert main([*words, '--out', str(tmp_path/'comparison')]) == 0
    frame = MethodComparison.open(tmp_path/'comparison').rows
    assert {'tweets_accuracy', 'tweets_calibration_error', 'test_comprehensiveness', 'cost'} <= {*frame}

def test_every_method_declares_two_or_three_settings_that_exist():
    for name, kind in method_classes().items():
        own = {*arguments_of(kind), *Settings.__dataclass_fields__}
        assert 2 <= len(kind.search_space) <= 3 and {*kind.search_space} <= own, name
        assert next(iter(kind.search_space)) == 'learning_rate'
        assert kind.method_group in ('plain', 'papers', 'baselines')
        for point in search_points(kind.search_space, 6): # valid values
            kept = {k: x for k, x in point.items() if k in arguments_of(kind)}
            if 'teacher' in arguments_of(kind): kept['teacher'] = 'minilm'
            kind.from_args(kept)
        assert len(search_points(kind.search_space, 6)) == 6, name

def test_search_points_try_the_first_setting_equally_often():
    for n in range(1, 13):
        points = search_points(dict(a=(1, 2, 3), b=(4, 5), c=(6, 7)), n)
        counts = [sum(p['a'] == x for p in points) for x in (1, 2, 3)]
        assert len(points) == n and max(counts) - min(counts) <= 1 and len({str(p) for p in points}) == n
    assert points[0] == dict(a=2, b=4, c=6)

def test_a_distillation_learns_from_the_plain_run_with_the_same_seed(compared):
    result = compared('ADKD', seeds=1, trials=1)
    run = Run(compared.folder/'final'/result.rows.run[result.rows.method == 'ADKD'].item())
    assert 'final/runs/FineTuning' in str(run.config['method']['args']['teacher'])
    assert 'teacher = the Fine-tuning run with the same seed' in result.methods_text()
    assert {*result.tuning['ADKD']['chosen']} == {'learning_rate', 'weight', 'alpha'}

def test_a_distillation_is_tuned_with_the_best_plain_run_as_its_teacher(compared, monkeypatch):
    monkeypatch.setattr(PointStudy, 'score_of', lambda self, method, point, measure: point['learning_rate'])
    compared('ADKD', seeds=1)
    tuned = [Run(file) for file in sorted((compared.folder/'tuning'/'runs').glob('ADKD.*'))]
    assert ['learning_rate=0.0005' in str(run.config['method']['args']['teacher']) for run in tuned] == [True, True]

def test_a_method_that_builds_on_the_plain_run_can_be_added_later(compared):
    compared('RDrop', seeds=1, trials=1)
    result = compared('RDrop,ADKD', seeds=1, trials=1)
    assert {'FineTuning', 'RDrop', 'ADKD'} == {*result.rows.method} and result.sentences == []

def test_a_method_may_build_on_the_chosen_run_of_another(compared):
    def taught(run_of, weight=1.): return Distillation(run_of('FineTuning'), weight=weight)
    result = compared(dict(Taught=taught), seeds=1, trials=1)
    run = Run(compared.folder/'final'/result.rows.run[result.rows.method == 'Taught'].item())
    assert 'final/runs/FineTuning' in str(run.config['method']['args']['teacher'])

def test_the_shipped_comparison_opens_and_its_table_follows_from_its_rows():
    result = MethodComparison.open()
    assert result.rows.groupby('method').seed.apply(sorted).map(tuple).unique().tolist() == [(1, 2, 3)]
    means = result.rows.groupby('method').test_accuracy.mean().sort_values(ascending=False)
    learned = means[means > result.rows.majority.mean() + .05]
    assert result.ranked() == list(learned.index) and len({known['trials'] for known in result.tuning.values()}) == 1
    cells = result.table()['test accuracy ↑']
    table = result.table().astype(str)
    assert [float(cell.split()[0]) for cell in cells[:len(learned)]] == learned.round(3).tolist()
    assert not any(re.search(r'\d', cell) for cell in cells[len(learned):].fillna('').astype(str))
    assert not table.apply(lambda column: column.str.contains('†|‡')).any(axis=None) # three seeds
    for form, settings in (('markdown', 'weight_decay = 0'), ('latex', r'weight\_decay = 0')):
        text = result.methods_text(form)
        assert settings in text and Steering.evaluation_note in text
        assert text.endswith('Differences from FineTuning are not tested, because 3 seeds are too few.')
    assert Steering.evaluation_note in result.results().caption
    assert result.table().note['Steering'] == Steering.evaluation_note and not result.table().note['RDrop']
    renamed = compared_rows(dict(FineTuning=.7, A=.8))
    renamed.tuning['A'] = dict(trials=1, chosen={}, note=Steering.evaluation_note)
    assert Steering.evaluation_note in renamed.results().caption and Steering.evaluation_note in renamed.to_latex()
    assert 'domain: mean ood accuracy against test accuracy' in result.figure().caption
