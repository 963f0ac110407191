"Statistics equal small examples, slow float64 references and scipy; tables do not overstate their evidence."
import itertools
import math
import re
import shutil
import statistics as standard
import subprocess

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from salviz.core.runs import Run
from salviz.core.words import latex_text
from salviz.metrics.statistics import (_average_loss, _runs_frame, adjust, better_of, compare_predictions,
                                       compare_run_predictions, id_columns, measure_of, over_seeds, paired_bootstrap,
                                       paired_t, result_table)

def made_run(path, seed=0, losses=(2., 1.), scores=None, best='accuracy', **rows):
    run = Run.create(path, dict(method=dict(name='FineTuning'), seed=seed,
                                best_metric=dict(name=best, greater_is_better=best not in ('loss', 'mse'))))
    for i, x in enumerate(losses, 1): run.log(dict(kind='train', step=i, epoch=i / len(losses), loss=x + 100, task=x))
    for split, values in (scores or dict(train=dict(accuracy=.9, loss=.1), test=dict(accuracy=.6, loss=.7))).items():
        run.log(dict(kind='score', split=split, step=len(losses), **values))
    run.finish(best_step=len(losses), train_seconds=3.)
    return run

# metrics of a run

def test_average_loss_is_the_mean_of_the_task_loss_over_the_steps(tmp_path):
    run = made_run(tmp_path/'a', losses=(4., 2., 1., 1.))
    assert _average_loss(run) == 2. and _average_loss(run, until=2) == 3.
    for step, x in ((2, .5), (4, .25)): run.log(dict(kind='eval', step=step, loss=x, accuracy=.5))
    assert _average_loss(run, 'validation') == .375 == measure_of(run, 'average_validation_loss')
    assert _average_loss(run, 'validation', until=2) == .5
    assert math.isnan(_average_loss(Run.create(tmp_path/'empty', {})))
    for until in (9, 0, -3, 1.5, True):
        with pytest.raises(ValueError, match='from 1 to 4'): _average_loss(run, until=until)
    with pytest.raises(ValueError, match="'train' or 'validation'"): _average_loss(run, 'test')

def test_gap_is_positive_for_better_training_scores(tmp_path):
    run = made_run(tmp_path/'a')
    assert measure_of(run, 'gap') == pytest.approx(.3) and measure_of(run, 'gap_loss') == pytest.approx(.6)
    by_loss = made_run(tmp_path/'b', best='loss')
    assert measure_of(by_loss, 'gap') == pytest.approx(.6) and measure_of(by_loss, 'gap_accuracy') == pytest.approx(.3)

def test_metrics_are_found_by_name_and_unknown_ones_raise(tmp_path):
    run = made_run(tmp_path/'a')
    assert [measure_of(run, o) for o in ('test_accuracy', 'train_loss', 'steps', 'best_step',
                                         'seconds')] == [.6, 1.5, 2, 2, 3.]
    assert math.isnan(measure_of(run, 'agreement')) and math.isnan(measure_of(run, 'validation_accuracy'))
    for wrong in ('accuracy', 'test_bleu', 'gap_bleu'):
        with pytest.raises(ValueError, match='average_loss.*accuracy'): measure_of(run, wrong)
    frame = _runs_frame(dict(FineTuning=[run]), ['test_accuracy', 'gap'])
    assert frame.to_dict('records') == [dict(method='FineTuning', seed=0, run='a', test_accuracy=.6,
                                             gap=pytest.approx(.3))]

@pytest.mark.parametrize('name,way', [('test_macro_f1', 'higher'), ('gap_accuracy', None), ('gap', None),
    ('flip_fraction', 'lower'), ('decision_flip', 'lower'), ('token_f1', 'higher'), ('iou_f1', 'higher'),
    ('auprc', 'higher'),
    ('faith_sufficiency', 'lower'), ('aup', 'higher'), ('aur', 'higher'), ('attention_kl', 'lower'),
    ('aopc_comprehensiveness', 'higher'),
    ('sufficiency_at_10', 'lower'), ('average_loss', 'lower'), ('test_mse', 'lower'), ('test_pearson', 'higher'),
    ('seconds', 'lower'), ('entropy', None), ('p', None)])
def test_metric_name_gives_the_better_direction(name, way): assert better_of(name) == way

# comparisons

@pytest.mark.parametrize('n', [2, 3, 5, 40])
def test_paired_t_equals_scipy_and_the_formula(n):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=n), rng.normal(.5, size=n)
    found, scipys = paired_t(a, b), stats.ttest_rel(a, b)
    assert found.p == pytest.approx(scipys.pvalue, rel=1e-12)
    assert (found.low, found.high) == pytest.approx(tuple(scipys.confidence_interval(.95)), rel=1e-9)
    d = [float(x) - float(y) for x, y in zip(a, b)]
    mean = sum(d) / n
    t = mean / (math.sqrt(sum((x - mean)**2 for x in d) / (n - 1)) / math.sqrt(n))
    density = lambda x: (1 + x*x/(n - 1))**(-n/2)
    grid = np.tan(np.linspace(0, math.pi/2, 200_001)[:-1]) # the tail of Student's distribution as a sum
    areas = np.diff(grid) * (density(grid[1:]) + density(grid[:-1])) / 2
    assert found.p == pytest.approx(areas[grid[:-1] >= abs(t)].sum() / areas.sum(), abs=2e-2 if n == 2 else 1e-3)
    assert found.n == n and found.difference == pytest.approx(mean)

@pytest.mark.parametrize('change,message', [(dict(confidence=95), 'confidence must be between 0 and 1'),
    (dict(confidence=0), 'confidence'), (dict(resamples=0), 'resamples must be a positive integer'),
    (dict(resamples=2.5), 'resamples')])
def test_invalid_levels_and_resamples_raise(change, message):
    a, b = [1., 2., 4.], [0., 0., 1.]
    tests = [paired_bootstrap, lambda a, b, **kw: compare_predictions([0, 1, 1], a, b, **kw),
             *([paired_t] if 'confidence' in change else [])]
    for test in tests:
        with pytest.raises(ValueError, match=message): test(a, b, **change)

def test_pairs_with_an_undefined_number_do_not_count():
    nan = math.nan
    assert paired_t([1., 2., 4., math.inf, math.inf],
                    [0., 0., 1., 5., math.inf]) == paired_t([1., 2., 4.], [0., 0., 1.])
    assert paired_t([1., 2., 4., nan], [0., 0., 1., 5.]) == paired_t([1., 2., 4.], [0., 0., 1.])
    assert paired_bootstrap([1., nan, 4.], [0., 1., 1.]).n == 2

@pytest.mark.parametrize('test', [paired_t, paired_bootstrap])
def test_one_pair_or_differences_that_do_not_vary_are_not_tested(test):
    for a, b in (([.5], [.4]), ([.1, .2, .3], [.2, .3, .4]), ([.7, .7], [.7, .7]), ([], [])):
        found = test(a, b)
        assert math.isnan(found.p) and math.isnan(found.low) and found.n == len(a)
    with pytest.raises(ValueError, match='paired lists'): test([1., 2.], [1.])

@pytest.mark.parametrize('d', [(0., 2.), (1., 2., 4.), (-1., 3., .5, .25)])
def test_bootstrap_of_few_pairs_enumerates_all_draws(d):
    mean, draws = sum(d) / len(d), [sum(o) / len(d) for o in itertools.product(d, repeat=len(d))]
    far = sum(abs(x - mean) >= abs(mean) - 1e-12 for x in draws)
    found = paired_bootstrap(d, [0.]*len(d), seed=7)
    assert found.p == (1 + far) / (1 + len(draws)) and found.difference == pytest.approx(mean)
    ordered = sorted(draws)
    assert ordered[0] <= found.low <= mean <= found.high <= ordered[-1]

def test_bootstrap_of_many_pairs_agrees_with_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.exponential(1.3, 60), rng.exponential(1., 60)
    found = paired_bootstrap(a, b, resamples=20_000)
    scipys = stats.bootstrap((a - b,), np.mean, n_resamples=20_000, method='percentile', vectorized=True)
    assert (found.low, found.high) == pytest.approx((scipys.confidence_interval.low, scipys.confidence_interval.high),
                                                    abs=.02)
    shifted = np.mean(np.abs(scipys.bootstrap_distribution - (a - b).mean()) >= abs((a - b).mean()))
    assert found.p == pytest.approx(shifted, abs=.01)
    assert paired_bootstrap(a, b, seed=1) == paired_bootstrap(a, b, seed=1) != paired_bootstrap(a, b, seed=2)

def test_bootstrap_of_very_many_pairs_draws_in_chunks():
    rng = np.random.default_rng(0)
    a, b = rng.normal(.004, 1, 300_000), np.zeros(300_000)
    found = paired_bootstrap(a, b, resamples=40)
    assert found.n == 300_000
    assert found.low < found.difference < found.high
    assert found.high - found.low == pytest.approx(4/300_000**.5, rel=.4)

def test_predictions_are_compared_example_by_example():
    labels = np.arange(200) % 2
    right, half = labels.copy(), np.where(np.arange(200) % 4 < 2, labels, 1 - labels)
    same, differ = compare_predictions(labels, right, right), compare_predictions(labels, right, half, resamples=400)
    assert same.p == 1. and same.difference == same.low == same.high == 0.
    assert differ.difference == .5 and differ.p == 1/401 and .4 < differ.low < .5 < differ.high < .6
    scipys = stats.bootstrap((labels == right, labels == half), lambda a, b, axis: a.mean(axis) - b.mean(axis),
                             paired=True, method='percentile', vectorized=True)
    assert (differ.low, differ.high) == pytest.approx((scipys.confidence_interval.low, scipys.confidence_interval.high),
                                                      abs=.02)
    counted = compare_predictions(labels, right, half, score=lambda l, p: float((l == p).sum()), resamples=50)
    assert counted.difference == 100.
    with pytest.raises(ValueError, match='200, 200 and 3'): compare_predictions(labels, right, right[:3])

def slow_holm(p):
    out, worst = {}, 0.
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        worst = max(worst, min(1., (len(p) - rank) * p[i]))
        out[i] = worst
    return [out[i] for i in range(len(p))]

def slow_bh(p):
    order, out = sorted(range(len(p)), key=lambda i: p[i]), {}
    for rank, i in enumerate(order): out[i] = min(min(1., p[order[j]] * len(p) / (j + 1)) for j in range(rank, len(p)))
    return [out[i] for i in range(len(p))]

@pytest.mark.parametrize('p', [[.01, .04, .03], [.5], [.02, .02, .02], [.9, .001, .2, .0005, .04], [1., 1.]])
def test_adjusted_p_values_match_their_definitions(p):
    assert adjust(p) == pytest.approx(slow_holm(p)) and adjust(p, 'benjamini_hochberg') == pytest.approx(slow_bh(p))
    assert adjust(p, 'benjamini_hochberg') == pytest.approx(stats.false_discovery_control(p))
    assert adjust(p, 'none').tolist() == p

def test_untested_comparisons_are_not_in_the_family():
    found = adjust([.01, math.nan, .04])
    assert found[[0, 2]].tolist() == [.02, .04] and math.isnan(found[1])
    assert np.isnan(adjust([math.nan])).all()
    with pytest.raises(ValueError, match="'holm', 'benjamini_hochberg', 'none'"): adjust([.1], 'fdr')
    for wrong in ([2., .5], [-.1]):
        with pytest.raises(ValueError, match='p-values between 0 and 1'): adjust(wrong)

def test_deviation_is_of_a_sample_and_undefined_for_one_seed():
    x = [.61, .58, .64, .6]
    assert over_seeds(x) == dict(mean=pytest.approx(standard.mean(x)), std=pytest.approx(standard.stdev(x)), n=4)
    assert math.isnan(over_seeds([.5])['std'])
    assert over_seeds([.5, math.nan, -math.inf])['n'] == 1
    assert math.isnan(over_seeds([])['mean'])

# tables

noise = [.012, -.007, .003, -.011, .006, .001, -.004, .009]

def tidy(n=5, gains=None, **extra):
    "Create runs of FineTuning and of others that differ from it by `gains`, in an order independent of the seeds"
    rows = []
    for k, (method, gain) in enumerate(dict(dict(FineTuning=0.), **(gains or dict(drop=.05, guide=.0005))).items()):
        for s in range(n):
            wobble = noise[(s*3 + k) % 8] / 4
            rows.append(dict(method=method, seed=s, run=f'{method}-{s}', test_accuracy=.6 + noise[s] + gain + wobble,
                             average_loss=1 - gain + noise[s] - wobble, **extra))
    order = np.random.default_rng(1).permutation(len(rows))
    # the table's rows stay in order of appearance
    order = sorted(order, key=lambda i: rows[i]['method'] != 'FineTuning')
    return pd.DataFrame([rows[i] for i in order])

def cell(table, method, measure='test_accuracy'):
    return next(r for r in table.frame.to_dict('records') if r['method'] == method and r[table.column] == measure)

def test_table_has_means_deviations_and_paired_tests():
    frame = tidy()
    table = result_table(frame, compare_to='FineTuning')
    by = {m: frame[frame.method == m].sort_values('seed').test_accuracy.to_numpy()
          for m in ('FineTuning', 'drop', 'guide')}
    p = [stats.ttest_rel(by[m], by['FineTuning']).pvalue for m in ('drop', 'guide')]
    for m, plain, q in zip(('drop', 'guide'), p, slow_holm(p)):
        found = cell(table, m)
        assert found['mean'] == pytest.approx(by[m].mean())
        assert found['std'] == pytest.approx(by[m].std(ddof=1))
        assert found['n'] == found['pairs'] == 5
        assert found['p_value'] == pytest.approx(plain) and found['p_adjusted'] == pytest.approx(q)
        assert found['difference'] == pytest.approx((by[m] - by['FineTuning']).mean())
    assert cell(table, 'drop')['mark'] == '‡'
    assert cell(table, 'guide')['mark'] == ''
    assert cell(table, 'FineTuning')['mark'] == ''
    assert p[0] < .01 < stats.ttest_ind(by['guide'], by['FineTuning']).pvalue

def test_best_means_are_bold_including_ties():
    table = result_table(tidy())
    assert [cell(table, m)['best'] for m in ('FineTuning', 'drop', 'guide')] == [False, True, False]
    # the lowest
    assert [cell(table, m, 'average_loss')['best'] for m in ('FineTuning', 'drop', 'guide')] == [False, True, False]
    turned = result_table(tidy(gains=dict(drop=.05, guide=.1)), better=dict(test_accuracy='lower'))
    assert [cell(turned, m)['best'] for m in ('FineTuning', 'drop', 'guide')] == [True, False, False]
    assert 'test accuracy ↓' in turned.text
    equal = result_table(tidy(gains=dict(drop=.05, again=.05)), columns=['test_accuracy'], digits=1)
    assert [cell(equal, m)['best'] for m in ('drop', 'again')] == [True, True] and not cell(equal, 'FineTuning')['best']
    alike = result_table(tidy(gains=dict(drop=0.)), columns=['test_accuracy'], digits=1)
    assert not alike.frame['best'].any() # no value is best if all are printed alike
    unknown = result_table(tidy().rename(columns=dict(test_accuracy='entropy')), columns=['entropy'])
    assert not unknown.frame['best'].any() and 'Bold' not in unknown.caption and '↑' not in unknown.text
    assert not result_table(tidy(), best=None).frame['best'].any()

@pytest.mark.parametrize('wrong', ['hgher', 'down', True, 1, ''])
def test_misspelt_direction_raises(wrong):
    with pytest.raises(ValueError, match=r"better\['test_accuracy'\] must be 'higher', 'lower' or None"):
        result_table(tidy(), better=dict(test_accuracy=wrong))

@pytest.mark.parametrize('options,message', [
    (dict(better=dict(acc='higher')),
     "better contains the unknown name 'acc'; available: test_accuracy, average_loss"),
    (dict(percent='acc'), "percent contains the unknown name 'acc'"),
    (dict(titles=dict(zzz='x')), "titles contains the unknown name 'zzz'"),
    (dict(digits=-1), 'digits must be'), (dict(digits='2'), 'digits must be'),
    (dict(levels={'*': 5}), 'levels must be'), (dict(fewest=1), 'fewest must be')])
def test_ignored_or_invalid_options_raise(options, message):
    with pytest.raises(ValueError, match=re.escape(message)): result_table(tidy(), **options)
    assert 'the drop' in result_table(tidy(), titles=dict(drop='the drop', test_accuracy='acc.', measure='what'),
                                      percent=False, better=dict(average_loss=None)).text

def test_non_finite_numbers_are_reported_as_missing():
    frame = tidy(4)
    for method, seed, x in (('drop', 1, math.inf), ('guide', 0, math.nan), ('guide', 2, math.nan)):
        frame.loc[(frame.method == method) & (frame.seed == seed), 'test_accuracy'] = x
    table = result_table(frame, columns=['test_accuracy'], compare_to='FineTuning')
    assert 'inf' not in table.text
    assert cell(table,
                'drop')['mean'] == pytest.approx(frame[(frame.method == 'drop')
                                                       & (frame.seed != 1)].test_accuracy.mean())
    assert cell(table, 'drop')['best']
    assert cell(table, 'drop')['n'] == cell(table, 'drop')['pairs'] == 3
    assert cell(table, 'guide')['undefined'] == 2
    assert ('Not counted because not finite: 2 of 4 runs of guide (test accuracy); 1 of 4 runs of drop (test '
            'accuracy).' in table.caption)
    frame.loc[frame.method == 'drop', 'test_accuracy'] = -math.inf
    gone = result_table(frame, columns=['test_accuracy'])
    assert math.isnan(cell(gone, 'drop')['mean'])
    assert '4 of 4 runs of drop' in gone.caption
    assert 'Not counted' not in result_table(tidy()).caption

def test_correction_family_does_not_depend_on_the_layout():
    rng = np.random.default_rng(1)
    rows = [dict(method='F', p=None, seed=s, run='', accuracy=.7 + .01*rng.normal()) for s in range(5)]
    rows += [dict(method='A', p=p, seed=s, run='', accuracy=.709 + .01*rng.normal()) for p in (.1, .3, .5, .7, .9)
             for s in range(5)]
    along, across = result_table(pd.DataFrame(rows), ['method', 'p'],
                                 compare_to='F'), result_table(pd.DataFrame(rows), 'method', columns='p',
                                                               measure='accuracy', compare_to='F')
    assert [t.frame['p_adjusted'].dropna().tolist()
            for t in (along, across)] == [pytest.approx(slow_holm(along.frame['p_value'].dropna().tolist()))]*2
    assert [t.frame['mark'].tolist() for t in (along, across)] == [along.frame['mark'].tolist()]*2
    assert 'family: all 5 comparisons of the table' in across.caption
    assert 'family: the 5 comparisons of a column' in along.caption
    assert 'family: the only comparison of a column' in result_table(tidy(gains=dict(drop=.05)),
                                                                     compare_to='FineTuning').caption

def test_rows_without_a_selected_setting_are_included():
    table = result_table(grid_frame(), where=dict(p=.3, lr=.1), compare_to='FineTuning')
    assert [(r['method'], r['pairs']) for r in table.frame.to_dict('records')] == [('FineTuning', 0), ('drop', 4)]
    assert 'Only runs with p = 0.3; FineTuning without p. Only runs with lr = 0.1.' in table.caption

def test_frame_attrs_have_caption_and_citations(tmp_path):
    frame = tidy()
    frame.attrs = dict(about='Model: tiny.', names=['ADDrop', 'minilm'])
    table = result_table(frame)
    assert table.caption.endswith('Model: tiny.')
    assert (table.about, table.names) == ('Model: tiny.', ('ADDrop', 'minilm'))
    assert table.frame.attrs == dict(about='Model: tiny.', names=['ADDrop', 'minilm'])
    assert result_table(frame, about='').about == '' and result_table(tidy()).names == ()
    run = Run.create(tmp_path/'r', dict(method=dict(name='ADDrop + AttentionGuidance'), data=dict(name='tweets'),
                                        model=dict(name='minilm'), seed=0))
    assert _runs_frame(dict(a=[run]), ['steps']).attrs['names'] == ['ADDrop', 'AttentionGuidance', 'tweets', 'minilm']

def predicting(path, labels, predictions):
    run = Run.create(path, {})
    run.save_arrays('test_predictions',
                    dict(example_id=np.arange(len(labels)), labels=np.array(labels), predictions=np.array(predictions)))
    return run

def test_two_runs_are_compared_on_their_test_examples(tmp_path):
    a, b = predicting(tmp_path/'a', [0, 1]*20, [0, 1]*20), predicting(tmp_path/'b', [0, 1]*20, [0, 0]*20)
    assert compare_run_predictions(a, b) == compare_predictions([0, 1]*20, [0, 1]*20, [0, 0]*20)
    with pytest.raises(ValueError, match='a and c were scored on different test examples'):
        compare_run_predictions(a, predicting(tmp_path/'c', [1, 0]*20, [0]*40))

def test_missing_seeds_are_excluded_and_counted():
    frame = tidy()
    frame = frame[~((frame.method == 'drop') & (frame.seed == 2))]
    table = result_table(frame, columns=['test_accuracy'], compare_to='FineTuning')
    assert cell(table, 'drop')['n'] == cell(table, 'drop')['pairs'] == 4 and cell(table, 'guide')['pairs'] == 5
    assert '4 to 5 of the seeds' in table.caption
    by = {m: frame[frame.method == m].set_index('seed').test_accuracy for m in ('FineTuning', 'drop')}
    seeds = [0, 1, 3, 4]
    assert cell(table, 'drop')['p_value'] == pytest.approx(stats.ttest_rel(by['drop'][seeds],
                                                                           by['FineTuning'][seeds]).pvalue)

@pytest.mark.parametrize('n,message', [(1, 'no deviation and no test'), (2, '12.7 standard errors'),
                                    (3, '4.3 standard errors')])
def test_too_few_seeds_get_no_marks_and_an_explanation(n, message):
    table = result_table(tidy(n, gains=dict(drop=.3)), compare_to='FineTuning')
    assert not table.frame['mark'].any() and message in table.caption and '†' not in table.text
    assert ('±' in table.text) == (n > 1) and table.frame['p_value'].isna().all() == (n == 1)

def test_requested_marks_of_three_seeds_have_a_caution():
    table = result_table(tidy(3, gains=dict(drop=.3)), compare_to='FineTuning', fewest=3)
    assert cell(table, 'drop')['mark'] and 'Caution: 3 differences' in table.caption

def test_bootstrap_over_seeds_requires_many():
    few = result_table(tidy(8, gains=dict(drop=.3)), compare_to='FineTuning', test='bootstrap')
    assert not few.frame['mark'].any() and 'far too often' in few.caption
    rng = np.random.default_rng(0)
    many = pd.DataFrame([dict(method=m, seed=s, accuracy=rng.normal(g, .01))
                         for m, g in dict(plain=.6, drop=.7, none=.6).items() for s in range(20)])
    table = result_table(many, compare_to='plain', test='bootstrap', correction='benjamini_hochberg')
    assert [r['mark'] for r in table.frame.to_dict('records')] == ['', '‡', '']
    assert "paired bootstrap test" in table.caption
    assert "Benjamini and Hochberg's" in table.caption

def test_caption_explains_the_table():
    message = result_table(tidy(), compare_to='FineTuning', about='Model: tiny. Data: made up.').caption
    for part in ('Mean ± standard deviation over 5 seeds (0 to 4)', '↑: higher is better; ↓: lower is better',
                 'Bold: the best mean of its column',
                 '† p < .05, ‡ p < .01: differs from FineTuning', 'two-sided paired t-test, paired by seed',
                 "Holm's correction, family: the 2 comparisons of a column",
                 'No mark does not mean that there is no difference', 'Model: tiny. Data: made up.'):
        assert part in message
    assert 'no correction)' in result_table(tidy(), compare_to='FineTuning', correction='none').caption
    assert '†' not in result_table(tidy()).caption
    assert 'One seed (3)' in result_table(tidy(), where=dict(seed=3)).caption

def grid_frame():
    rows = [dict(method='FineTuning', p=None, lr=lr, seed=s, run='', accuracy=.6 + noise[s] + lr) for lr in (.1, .2)
            for s in range(4)]
    rows += [dict(method='drop', p=p, lr=lr, seed=s, run='', accuracy=.6 + p + lr + noise[s] + noise[s+4]/4)
             for lr in (.1, .2) for p in (.3, .5) for s in range(4)]
    return pd.DataFrame(rows)

def test_rows_are_compared_with_the_matching_or_only_baseline():
    frame = grid_frame()
    table = result_table(frame, rows=['method', 'lr'], where=dict(p=[None, .3]), compare_to='FineTuning')
    assert [(r['method'], r['lr'], r['pairs'])
            for r in table.frame.to_dict('records')] == [('FineTuning', .1, 0), ('FineTuning', .2, 0), ('drop', .1, 4),
                                                         ('drop', .2, 4)]
    assert table.frame['difference'].dropna().tolist() == pytest.approx([.3 + sum(noise[4:])/16]*2)
    one = result_table(frame[frame.lr == .1], rows=['method', 'p'], compare_to='FineTuning')
    assert one.frame['difference'].dropna().tolist() == pytest.approx([.3 + sum(noise[4:])/16, .5 + sum(noise[4:])/16])
    assert one.grid()[0][0] == ['FineTuning', '–']
    within = result_table(frame[frame.method == 'drop'], rows='p', columns='lr', measure='accuracy', compare_to=.3)
    assert within.frame['difference'].dropna().tolist() == pytest.approx([.2, .2])

def test_setting_along_the_columns_shows_one_metric():
    table = result_table(grid_frame(), rows='p', columns='lr', measure='accuracy', where=dict(method='drop'),
                         percent=['accuracy'])
    assert table.heads() == (['p'], ['lr = 0.1 (%)', 'lr = 0.2 (%)'])
    assert [names for names, _ in table.grid()] == [['0.3'], ['0.5']]
    assert table.frame.columns[:3].tolist() == ['p', 'lr', 'mean']
    assert 'Shown: accuracy, higher is better.' in table.caption
    assert table.grid()[1][1][0].mean == f'{100*(.5 + .6 + .1 + sum(noise[:4])/4 + sum(noise[4:])/16):.1f}'
    assert table.grid()[1][1][0].best
    across = result_table(grid_frame(), rows='method', columns='p', measure='accuracy', where=dict(lr=.1),
                          compare_to='FineTuning')
    # the baseline has no p, so its only cell is used
    assert across.columns == [None, .3, .5] and across.frame['pairs'].tolist() == [0, 4, 4]

@pytest.mark.parametrize('options,message', [
    (dict(), 'several runs share one cell of the table: they differ in p, lr'),
    (dict(rows='size'), "rows contains the unknown name 'size'; available: method, p, lr, seed"),
    (dict(columns=['f1']), "the unknown name 'f1'; available: accuracy"),
    (dict(columns='p'), 'choose measure= from accuracy'),
    (dict(rows=['method', 'p', 'lr'], compare_to='Plain'), 'must be a row of the table: FineTuning, drop'),
    (dict(test='z'), "test must be 't' or 'bootstrap'"), (dict(correction='fdr'), "correction must be 'holm'"),
    (dict(best='red'), "best must be 'bold' or 'group' or None"),
    (dict(where=dict(size=3)), 'where contains'), (dict(where=dict(p=.9)), 'no finished runs that match'),
    (dict(rows='seed'), 'rows must be')])
def test_invalid_tables_raise(options, message):
    with pytest.raises(ValueError, match=re.escape(message)): result_table(grid_frame(), **options)

def test_runs_without_a_seed_or_duplicates_raise():
    with pytest.raises(ValueError, match='must have a column seed'):
        result_table(pd.DataFrame([dict(method='a', accuracy=1.)]))
    with pytest.raises(ValueError, match='seed 0 occurs twice'):
        result_table(pd.DataFrame([dict(method='a', seed=0, accuracy=1.)]*2))
    assert id_columns(pd.DataFrame([dict(method='a', size=3, seed=0, accuracy=1.)])) == ['method', 'seed']

# output formats

hostile = {'FineTuning': 0., r'50% & {x}_1 #2 $y$ \z ~^': .05, '<script>"λ" --q | `t`</script>': .001, 'Grüße': .002}

def test_html_escapes_names_and_captions():
    page = result_table(tidy(gains=hostile), compare_to='FineTuning', about='<i>model</i>',
                        titles=dict(test_accuracy='<u>accuracy', method='<u>'))._repr_html_()
    assert '<script>' not in page and '<u>' not in page and '&lt;script&gt;' in page and '&lt;i&gt;model' in page
    assert '<b>' in page and '<sup>‡</sup>' in page and page.count('<tr>') == 5

def test_text_has_bold_values_between_asterisks():
    lines = result_table(tidy(), compare_to='FineTuning').text.split('\n')
    assert re.search(r'drop +\*\*0\.65\d\*\* ± 0\.0\d\d‡', '\n'.join(lines))
    assert repr(result_table(tidy())) == result_table(tidy()).text

def test_latex_is_a_booktabs_table_that_compiles(tmp_path):
    table = result_table(tidy(gains=hostile), compare_to='FineTuning', about='Model: a_b & c.')
    text = table.latex(label='tab:x', standalone=True)
    lines = text.split('\n')
    body = lines[lines.index(r'\midrule') + 1:lines.index(r'\bottomrule')]
    assert len(body) == len(hostile)
    assert all(len(re.findall(r'(?<!\\)&', line)) == 2 and line.endswith(r' \\') for line in body)
    for part in (r'\toprule', r'\usepackage{booktabs}', r'\label{tab:x}', r'\textbf{0.65',
                 r'\textsuperscript{$\ddagger$}', r'50\% \& \{x\}\_1 \#2 \$y\$ \textbackslash{}z', r'Model: a\_b \& c.',
                 r'\textless{}script\textgreater{}', r'$\lambda$', r'-{}-q'): assert part in text, part
    unescaped = re.sub(r'\\[{}]', '', text)
    assert unescaped.count('{') == unescaped.count('}')
    assert '|' not in text.replace(r'\textbar', '')
    assert '\0' not in text
    assert table.latex().startswith(r'\begin{table}[t]') and r'\label' not in table.latex()
    with pytest.raises(ValueError, match='label may contain only'): table.latex(label='a}b')
    starred = result_table(tidy(), compare_to='FineTuning', levels={'<*': .05})
    assert r'\textsuperscript{\textless{}*}' in starred.latex()
    assert '<sup>&lt;*</sup>' in starred._repr_html_()
    assert '<* p < .05: differs' in starred.caption
    if shutil.which('pdflatex'):
        (tmp_path/'t.tex').write_text(text, encoding='utf-8')
        done = subprocess.run(['pdflatex', '-interaction=nonstopmode', '-halt-on-error', 't.tex'], cwd=tmp_path,
                              capture_output=True, text=True, errors='replace')
        assert done.returncode == 0 and (tmp_path/'t.pdf').read_bytes()[:4] == b'%PDF', done.stdout[-2000:]

def test_latex_fits_a_two_column_page(tmp_path):
    frame = tidy(gains=dict(drop=.05)).assign(gap=lambda f: f.average_loss - .9)
    table = result_table(frame, compare_to='FineTuning')
    wide, narrow = table.latex(wide=True), result_table(frame, columns=['test_accuracy', 'gap'],
                                                        compare_to='FineTuning').latex(small='footnotesize')
    assert wide.startswith(r'\begin{table*}[t]')
    assert wide.rstrip().endswith(r'\end{table*}')
    assert r'\footnotesize' not in wide
    assert r'\tabcolsep' in narrow
    assert all(t.index('belowcaptionskip') < t.index(r'\caption') for t in (wide, narrow))
    with pytest.raises(ValueError,
                       match="small must be 'small', 'footnotesize', 'scriptsize' or None, got 'tiny'"):
        table.latex(small='tiny')
    if shutil.which('pdflatex'):
        body = '\n'.join([r'\documentclass[10pt,twocolumn]{article}', r'\usepackage{booktabs}', r'\begin{document}',
                          wide, narrow, 'Text.', r'\end{document}'])
        (tmp_path/'t.tex').write_text(body, encoding='utf-8')
        done = subprocess.run(['pdflatex', '-interaction=nonstopmode', '-halt-on-error', 't.tex'], cwd=tmp_path,
                              capture_output=True, text=True, errors='replace')
        assert done.returncode == 0 and 'Overfull' not in done.stdout, done.stdout[-2000:]

@pytest.mark.parametrize('given,message', [('a&b', r'a\&b'), ('x_1', r'x\_1'), ('\\{', r'\textbackslash{}\{'),
                                        ('a---b', 'a-{}-{}-b'), ('α ± 1', r'$\alpha$ $\pm$ 1'),
                                        ('Σω', r'$\Sigma$$\omega$')])
def test_latex_escapes_commands(given, message): assert latex_text(given, prose=True) == message

# p-values, averages and a metric for each task

def glue(seeds=range(5), gains=dict(FineTuning=0., ADDrop=.02), seed=0):
    noise = np.random.default_rng(seed)
    return pd.DataFrame([dict(method=m, task=task, seed=s, run=f'{m}.{task}.{s}',
                              test_mcc=noise.normal(.6 + gain, .005),
                              test_spearman=noise.normal(.9 + gain, .005), test_loss=noise.normal(.3, .01))
                         for m, gain in gains.items() for task in ('CoLA', 'STS-B') for s in seeds])

def test_p_values_follow_compared_columns_on_request():
    options = dict(columns=['test_mcc', 'test_loss'], where=dict(task='CoLA'), compare_to='FineTuning')
    plain, listed = result_table(glue(), **options), result_table(glue(), p_values=True, **options)
    assert plain.heads()[1] == ['test mcc ↑', 'test loss ↓'] and ' p: ' not in plain.caption
    assert listed.heads()[1] == ['test mcc ↑', 'p', 'test loss ↓', 'p']
    assert 'p: the adjusted p-value' in listed.caption
    printed = {names[0]: [c.mean for c in cells] for names, cells in listed.grid()}
    p = listed.frame.set_index(['method', 'measure'])['p_adjusted']['ADDrop']
    assert printed['FineTuning'][1] == printed['FineTuning'][3] == ''
    assert printed['ADDrop'][3] == f'{p["test_loss"]:.3f}' and float(printed['ADDrop'][1].strip('<')) >= p['test_mcc']
    tiny = result_table(glue(range(12), dict(FineTuning=0., ADDrop=.5)), p_values=True, **options)
    assert '<0.001' in tiny.text and '&lt;0.001' in tiny._repr_html_() and '$<$0.001' in tiny.latex(max_width=9)
    assert tiny.latex(max_width=9).count('&') == 3*4 and 'begin{tabular}{lcccc}' in tiny.latex(max_width=9)
    with pytest.raises(ValueError, match='requires compare_to'):
        result_table(glue(), columns='task', measure='test_mcc', p_values=True)

def test_average_over_tasks_is_per_seed_without_missing_tasks():
    frame = glue()
    table = result_table(frame, columns='task', measure='test_mcc', average=True, compare_to='FineTuning')
    by_seed = {m: [frame[(frame.method == m) & (frame.seed == s)].test_mcc.mean() for s in range(5)]
               for m in ('FineTuning', 'ADDrop')}
    found = table.frame.set_index(['method', 'task'])
    for m, values in by_seed.items():
        assert found.loc[(m, 'average'), 'mean'] == pytest.approx(np.mean(values))
        assert found.loc[(m, 'average'), 'std'] == pytest.approx(np.std(values, ddof=1))
    assert found.loc[('ADDrop', 'average'), 'p_value'] == pytest.approx(
        stats.ttest_rel(by_seed['ADDrop'], by_seed['FineTuning']).pvalue)
    assert table.heads()[1] == ['task = CoLA', 'task = STS-B', 'average'] and 'all 3 comparisons' in table.caption
    lacks = frame[(frame.method != 'ADDrop') | (frame.task != 'STS-B')]
    grid = dict((names[0], cells) for names, cells in result_table(lacks, columns='task', measure='test_mcc',
                                                                   average=True).grid())
    assert grid['ADDrop'][2].mean == '' and grid['FineTuning'][2].mean
    frame.loc[frame.index[0], 'test_mcc'] = math.nan # without a score there is no average over the other task
    found = result_table(frame, columns='task', measure='test_mcc', average=True).frame.set_index(['method', 'task'])
    assert found.loc[('FineTuning', 'average'), ['n', 'undefined']].tolist() == [4, 1]
    with pytest.raises(ValueError, match='requires a setting'): result_table(glue(), ['method', 'task'], average=True)
    with pytest.raises(ValueError, match='adds a column named \'average\', but the table already has one'):
        result_table(glue().replace('CoLA', 'average'), columns='task', measure='test_mcc', average=True)

def test_each_task_may_have_its_own_metric():
    frame, own = glue(), {'CoLA': 'test_mcc', 'STS-B': 'test_spearman'}
    table = result_table(frame, columns='task', measure=own, percent=True)
    found = table.frame.set_index(['method', 'task'])['mean']
    for task, name in own.items():
        assert found['ADDrop', task] == pytest.approx(
            frame[(frame.method == 'ADDrop') & (frame.task == task)][name].mean())
    assert table.heads()[1] == ['task = CoLA (test mcc) (%)', 'task = STS-B (test spearman) (%)']
    assert table.frame.best.sum() == 2 and 'score' not in frame
    for wrong, says in ((dict(CoLA='test_mcc'), 'has no entry for task = STS-B'),
                        ({**own, 'CoLA': 'test_f1'}, "measure contains the unknown name 'test_f1'"),
                        ({**own, 'CoLA': 'test_loss'}, 'must have the same better direction')):
        with pytest.raises(ValueError, match=says): result_table(frame, columns='task', measure=wrong)
    with pytest.raises(ValueError, match='along the columns'): result_table(frame, measure=own)

def test_settings_whose_names_resemble_metrics_name_rows():
    def frame(setting, values, **more):
        return pd.DataFrame([dict(method='A', **{setting: value}, seed=s, **more, test_accuracy=.5 + .1*s)
                             for value in values for s in (0, 1)])
    sizes = [100, 'full']
    for more in ({}, dict(run='r')):
        assert '100' in str(result_table(frame('train_size', sizes, **more), ['method', 'train_size']))
        across = str(result_table(frame('train_size', sizes, **more), columns='train_size', measure='test_accuracy'))
        assert 'train_size = full' in across
    for values in ('12', ('1', '2', 'control')):
        shown = str(result_table(frame('group', values).drop(columns='method'), 'group'))
        assert shown.count('0.550') == len(values)
    dated = frame('test_date', [pd.Timestamp('2024-01-01')])
    assert 'date' not in str(result_table(dated))
