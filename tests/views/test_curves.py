"Curves, grids, boxes and tables as numbers: every mean, band and cell against slow loops or a library"
import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.cbook import boxplot_stats

import invented
from salviz.views.curves import (_attention_entropy, _attention_to_special, _common_grid, _confidence,
                                 _gradient_histogram, _named_runs, _running_mean, accuracy_drop_curves, by_seed,
                                 gradient_boxes, head_map, loss_curves, metric_table, number_over_steps,
                                 perturbation_curves, sensitivity_grid, spread, styles_of)
from salviz.views.effects import bars, pairs
from salviz.views.settings import over_setting
from salviz.metrics.scores import attention_agreement
from salviz.core.runs import Run
from salviz.metrics.statistics import result_table

def run(path, losses, seed=0, method='FineTuning', first=1, evals=(), task='classification', **settings):
    "Create a run that logged `losses` from step `first`, and `evals` (step, row)"
    made = Run.create(path, dict(method=dict(name=method, args={}), model=dict(name='tiny'), seed=seed,
                                 data=dict(name='invented', fingerprint='f'), task=task,
                                 settings=dict(seed=seed, **settings)))
    for i, loss in enumerate(losses):
        row = loss if isinstance(loss, dict) else dict(loss=loss, task=loss)
        made.log(dict(kind='train', step=first + i, epoch=(first + i)/4, learning_rate=.1, seconds=1., **row))
    for step, row in evals: made.log(dict(kind='eval', split='validation', step=step, epoch=step/4, **row))
    return made

def mean_and_deviation(values):
    mean = sum(values)/len(values)
    return mean, math.sqrt(sum((v - mean)**2 for v in values)/(len(values) - 1))

@pytest.fixture
def seeds(tmp_path):
    "Create three runs of one length that differ in their seed, and return them with their losses"
    losses = np.random.default_rng(0).normal(1, .3, (3, 9))
    return [run(tmp_path/f'r{i}', losses[i].tolist(), i) for i in range(3)], losses

def test_a_line_is_the_mean_over_seeds_and_its_band_one_standard_deviation(seeds):
    runs, losses = seeds
    view = loss_curves(runs, smooth=1)
    assert view.names == ('Fine-tuning',) and view.subtitle == 'mean ± standard deviation over 3 seeds   not smoothed'
    for i, row in view.frame.iterrows():
        mean, deviation = mean_and_deviation([losses[s][i] for s in range(3)])
        np.testing.assert_allclose(row[['step', 'value', 'deviation', 'low', 'high', 'n']].astype(float),
                                   [i + 1, mean, deviation, mean - deviation, mean + deviation, 3], rtol=1e-12)

def test_the_other_band_goes_from_the_lowest_to_the_highest_run(seeds):
    runs, losses = seeds
    view = loss_curves(runs, smooth=1, band='range')
    np.testing.assert_allclose(view.frame[['low', 'high']], [[min(c), max(c)] for c in losses.T])
    assert 'mean, minimum to maximum over 3 seeds' in view.caption and 'seeds 0, 1, 2' in view.caption
    with pytest.raises(ValueError, match='band must be one of .deviation., .range., .interval.'):
        loss_curves(runs, band='sem')

def test_one_run_has_no_band_and_says_so(seeds):
    view = loss_curves({'alone': seeds[0][0], 'three': seeds[0]})
    alone = view.frame[view.frame.name == 'alone']
    assert alone[['low', 'high', 'deviation']].isna().all(axis=None) and set(alone.n) == {1}
    assert view.notes == ('One run, so no band: alone.',)
    assert loss_curves(seeds[0][1]).subtitle.startswith('one run, without a band')

def test_smoothing_is_the_mean_of_the_rows_around_each_one_and_is_stated(seeds):
    y = seeds[1][0]
    for window in (1, 3, 5, 99):
        slow = [np.mean([y[j] for j in range(len(y)) if abs(j - i) <= window//2]) for i in range(len(y))]
        np.testing.assert_allclose(_running_mean(y, window), slow)
    view = loss_curves(seeds[0], smooth=5)
    assert 'moving average over 5 logged rows per run' in view.subtitle and 'drawn faint' in view.caption
    np.testing.assert_allclose(view.frame.value, np.mean([_running_mean(o, 5) for o in seeds[1]], 0))
    np.testing.assert_allclose(view.raw.value, seeds[1].ravel())
    with pytest.raises(ValueError, match='smooth must be a positive odd number'): loss_curves(seeds[0], smooth=2)

def test_runs_of_different_lengths_are_averaged_as_far_as_all_of_them_go(tmp_path):
    a, b = run(tmp_path/'a', [1., 2, 3, 4, 5], 0), run(tmp_path/'b', [5., 7, 9], 1, first=2)
    view = loss_curves([a, b], smooth=1)
    assert view.frame.step.tolist() == [2, 3, 4] and view.frame.value.tolist() == [3.5, 5, 6.5]
    assert view.raw.step.max() == 5
    assert 'the line ends at step 4, where the shortest ends (the longest: 5)' in view.notes[0]

def test_other_steps_are_interpolated_linearly():
    lines = [(np.array([0., 10]), np.array([0., 1])), (np.array([0., 4, 10]), np.array([2., 2, 8]))]
    grid, values, alike = _common_grid(lines)
    assert grid.tolist() == [0, 4, 10] and not alike
    np.testing.assert_allclose(values, [[0, .4, 1], [2, 2, 8]])

def test_runs_without_common_steps_are_refused(tmp_path):
    a, b = run(tmp_path/'a', [1., 2], 0), run(tmp_path/'b', [1., 2], 1, first=7)
    with pytest.raises(ValueError, match='the runs of Fine-tuning have no step in common'): loss_curves([a, b])

def test_values_that_are_not_finite_are_left_out_and_counted(tmp_path):
    view = loss_curves(run(tmp_path/'a', [1., math.nan, 3., math.inf]), smooth=1)
    assert view.frame.step.tolist() == [1, 3] and view.notes == ('Fine-tuning: 2 non-finite values left out.',)
    with pytest.raises(ValueError, match='no run has a finite value'): loss_curves(run(tmp_path/'b', [math.nan]))

def test_a_step_that_was_logged_twice_counts_once_with_its_last_row(tmp_path):
    made = run(tmp_path/'a', [1., 2.])
    made.log(dict(kind='train', step=2, epoch=.5, loss=9., task=9.))
    assert loss_curves(made, smooth=1).frame.value.tolist() == [1, 9]

def test_a_list_is_sorted_into_lines_by_everything_but_the_seed(tmp_path):
    runs = [run(tmp_path/f'{m}{lr}{s}', [1., 2.], s, m, lr=lr) for m in ('FineTuning', 'ADDrop') for lr in (1, 2)
            for s in (0, 1)]
    named = _named_runs(runs, 'x')
    assert {k: [r.path.name for r in v] for k, v in named.items()} == {
        'Fine-tuning (FineTuning10)': ['FineTuning10', 'FineTuning11'],
        'Fine-tuning (FineTuning20)': ['FineTuning20', 'FineTuning21'],
        'AD-DROP (ADDrop10)': ['ADDrop10', 'ADDrop11'], 'AD-DROP (ADDrop20)': ['ADDrop20', 'ADDrop21']}
    assert list(_named_runs([tmp_path/'ADDrop10'], 'x')) == ['AD-DROP']

def test_a_seed_that_comes_twice_is_refused(seeds):
    with pytest.raises(ValueError, match='Fine-tuning has runs with seeds 0, 0; each seed may occur only once'):
        loss_curves([seeds[0][0], seeds[0][0]])
    with pytest.raises(ValueError, match='at least one run per name'): loss_curves([])

def test_measures_and_terms_are_found_where_they_were_logged(tmp_path):
    plain = run(tmp_path/'p', [1., 2.],
                evals=[(2, dict(eval_loss=.5, eval_accuracy=.25)), (4, dict(eval_loss=.4, eval_accuracy=.75))])
    guided = run(tmp_path/'g', [dict(loss=3., task=1., consistency=2.)]*2, evals=[(2, dict(loss=.6, accuracy=.5))])
    both = {'plain': plain, 'guided': guided}
    accuracy = loss_curves(both, 'accuracy')
    assert accuracy.frame.value.tolist() == [.25, .75, .5]
    assert accuracy.y_label == 'validation accuracy (fraction of examples)'
    assert loss_curves(both, split='validation').frame.value.tolist() == [.5, .4, .6]
    term = loss_curves(both, 'consistency')
    assert term.names == ('guided',) and term.notes == ('plain is left out, since it has no training consistency.',)
    assert loss_curves(plain, x='epoch').frame.epoch.tolist() == [.25, .5]
    for kwargs, said in ((dict(what='accuracy', split='train'),
                          "no run has 'accuracy' in its train rows; available: learning_rate, loss, task, "
                          "consistency"),
                         (dict(what='sparsity'), 'and loss, accuracy .validation.'),
                         (dict(split='test'), 'the test split is evaluated only once'),
                         (dict(x='time'), "x must be 'step' or 'epoch'")):
        with pytest.raises(ValueError, match=said): loss_curves(both, **kwargs)

def test_the_axis_has_a_unit_only_where_the_loss_has_one(tmp_path):
    plain, with_term = run(tmp_path/'p', [1., 2.]), run(tmp_path/'g', [dict(loss=3., task=1., consistency=2.)]*2,
                                                        method='SaliencyGuided')
    score = run(tmp_path/'s', [1., 2.], task='regression')
    assert [loss_curves(o, w).y_label for o, w in ((plain, 'loss'), ([plain, with_term], 'loss'),
                                                   ([plain, with_term], 'task'), (score, 'loss'))] == [
        'training loss (nats)', 'training loss (the task and all terms of the method)', 'task loss (nats)',
        'training loss']
    distilled = run(tmp_path/'d', [dict(loss=3., task=9., task_weight=0., distillation=3.)]*2, method='Distillation')
    assert loss_curves(distilled, 'loss').y_label == 'training loss (all terms of the method)'

def test_numbers_of_snapshots_are_means_over_probes_and_then_over_seeds(tmp_path):
    runs = [invented.run(tmp_path/f'r{i}', tokens={0: ['[CLS]', *'abcde'[i:], '[SEP]']}) for i in range(2)]
    for i, r in enumerate(runs): r.config['seed'] = i
    entropies = lambda s: [-sum(p*math.log(p) for p in row if p > 0) for layer in s.arrays['attention'].astype(float)
                           for head in layer for row, special in zip(head, s.is_special) if not special]
    special = lambda s: [sum(p for p, o in zip(row, s.is_special) if o) for layer in s.arrays['attention'].astype(float)
                         for head in layer for row, o2 in zip(head, s.is_special) if not o2]
    slow = dict(entropy=lambda s: np.mean(entropies(s)), to_special=lambda s: np.mean(special(s)),
                agreement=attention_agreement, confidence=lambda s: s.arrays['probabilities'].max())
    for name, fn in slow.items():
        frame = number_over_steps(runs, name).frame
        for step, value in zip(frame.step, frame.value):
            # stored in half precision
            np.testing.assert_allclose(value,
                                       np.mean([np.mean([fn(s) for s in r.snapshots(step=int(step))]) for r in runs]),
                                       rtol=1e-4)
    snap = runs[0].snapshot(10)
    np.testing.assert_allclose([_attention_entropy(snap), _attention_to_special(snap), _confidence(snap)],
                               [slow[k](snap) for k in ('entropy', 'to_special', 'confidence')], rtol=1e-4)

def test_a_number_that_is_not_to_be_had_is_refused_by_name(tmp_path):
    made = invented.run(tmp_path/'r')
    with pytest.raises(ValueError, match='number must be a function of a snapshot or one of agreement, entropy'):
        number_over_steps(made, 'kl')
    with pytest.raises(ValueError, match='cannot compute this metric for r: no array'):
        number_over_steps(made, lambda s: s.at('rationale').sum())
    half = number_over_steps(made, lambda s: math.nan if s.probe else 2.)
    assert set(half.frame.value) == {2.} and half.notes == ('Fine-tuning: 4 non-finite values left out.',)

def test_examples_are_averaged_within_a_seed_before_the_seeds_are():
    frame = pd.DataFrame([dict(method='a', share=.1, seed=0, example=i, sufficiency=v)
                          for i, v in enumerate([0., 0, 0, 4])]
                         + [dict(method='a', share=.1, seed=1, example=0, sufficiency=3.)])
    rows, _ = by_seed(frame, 'x', ['method', 'share'], 'sufficiency')
    assert rows.sufficiency.tolist() == [1, 3]
    view = perturbation_curves(frame, 'sufficiency')
    assert view.frame.value.tolist() == [2] and view.frame.deviation.item() == pytest.approx(math.sqrt(2))
    with pytest.raises(ValueError, match='several rows for method a, share 0.1, seed 0; select one setting'):
        by_seed(pd.concat([frame, frame]), 'x', ['method', 'share'], 'sufficiency')

def test_accuracy_drop_curves_have_a_line_a_method_in_the_order_of_the_frame():
    frame = pd.DataFrame([dict(method=m, share=s, seed=k, accuracy=.9 - s*i + k*.02)
                          for i, m in enumerate(['random', 'b', 'a']) for s in (.5, .1) for k in range(2)])
    before = frame.copy()
    view = accuracy_drop_curves(frame)
    pd.testing.assert_frame_equal(frame, before)
    assert view.names == ('random', 'b', 'a') and view.frame.share.tolist() == [.1, .5]*3
    np.testing.assert_allclose(view.frame.value, [.91, .91, .81, .41, .71, -.09])
    np.testing.assert_allclose(view.frame.deviation, .02/math.sqrt(2))
    assert styles_of(view.names)[0][0] == '#707070' and len(set(styles_of(view.names))) == 3
    for bad, said in ((frame.assign(share=frame.share*100), 'share must be between 0 and 1, got 50'),
                      (frame.drop(columns='share'), "no column 'share'; available: method, seed, accuracy"),
                      (frame.assign(accuracy='high'), 'must be numeric'), (frame[:0], 'has no rows'),
                      ({}, 'study or a pandas DataFrame with the columns method, share, accuracy, got dict')):
        with pytest.raises(ValueError, match=said): accuracy_drop_curves(bad)
    with pytest.raises(ValueError, match='value must be one of .comprehensiveness., .sufficiency.'):
        perturbation_curves(frame, 'accuracy')

def test_a_grid_holds_means_over_seeds_with_missing_cells_and_all_best_ones():
    cells = {(.1, .5): [.6, .8], (.3, .5): [.9, .9], (.1, .2): [.9, .9], (.3, .2): None}
    frame = pd.DataFrame([dict(p=p, q=q, seed=s, accuracy=v) for (p, q), o in cells.items() if o
                          for s, v in enumerate(o)])
    view = sensitivity_grid(frame)
    assert view.columns == ('0.1', '0.3') and view.rows == ('0.5', '0.2')
    np.testing.assert_allclose(view.values, [[.7, .9], [.9, np.nan]])
    np.testing.assert_allclose(view.deviations[0], [math.sqrt(.02), 0], atol=1e-12)
    assert view.best.tolist() == [[False, True], [True, False]] and '1 of 4 cells were not measured' in view.notes[0]
    assert not view.values.flags.writeable and 'p = 0.3, q = 0.5; p = 0.1, q = 0.2' in view.subtitle
    loss = sensitivity_grid(frame.rename(columns=dict(accuracy='loss')), value='loss')
    assert loss.best.tolist() == [[True, False], [False, False]] and loss.subtitle.startswith('lowest: 0.7')
    with pytest.raises(ValueError, match="no column 'r'; available: p, q, seed, accuracy"):
        sensitivity_grid(frame, y='r')

def test_settings_that_are_names_keep_their_order():
    frame = pd.DataFrame([dict(region=r, target=t, accuracy=.5) for r in ('high', 'low') for t in ('pseudo', 'gold')])
    view = sensitivity_grid(frame, 'region', 'target')
    assert (view.columns, view.rows) == (('high', 'low'), ('gold', 'pseudo')) and 'no deviation' in view.subtitle

def test_a_head_map_puts_layers_downwards_and_diverges_where_there_are_signs():
    frame = pd.DataFrame([dict(layer=l, head=h, agreement=(h - .5)*(l + 1)/10, entropy=l + h) for h in (2, 0, 1)
                          for l in (3, 1)])
    view = head_map(frame, 'agreement', best='lowest')
    assert (view.rows, view.columns, view.is_signed) == (('1', '3'), ('0', '1', '2'), True)
    np.testing.assert_allclose(view.values, [[-.1, .1, .3], [-.2, .2, .6]])
    np.testing.assert_allclose(view.limits, (-.6, .6))
    assert view.limits[0] == -view.limits[1] and view.best.tolist() == [[False]*3, [True, False, False]]
    assert head_map(frame, 'entropy').limits == (0, 5) and not head_map(frame, 'entropy').best.any()
    gap = head_map(frame[1:], 'entropy')
    assert np.isnan(gap.values[1, 2]) and gap.notes == ('1 of 6 heads have no value (–).',)
    with pytest.raises(ValueError, match="best must be 'highest', 'lowest' or None"):
        head_map(frame, 'entropy', best='max')
    with pytest.raises(ValueError, match='several rows for layer'): head_map(pd.concat([frame, frame]), 'entropy')

def test_boxes_are_those_of_matplotlib():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(dict(method=['a']*31 + ['b']*50, gradient=np.r_[rng.normal(size=31), rng.normal(2, 3, 50)]))
    for whiskers in ((5, 95), (0, 100), (10, 90)):
        view = gradient_boxes(frame, whiskers=whiskers)
        for name, row in view.frame.set_index('name').iterrows():
            values = frame.gradient[frame.method == name].to_numpy()
            ends = np.percentile(values, whiskers)
            expected = boxplot_stats(values, whis=whiskers)[0]
            np.testing.assert_allclose(row[['q1', 'median', 'q3', 'mean']].astype(float),
                                       [expected[k] for k in ('q1', 'med', 'q3', 'mean')])
            np.testing.assert_allclose(row[['low', 'high', 'lowest', 'highest', 'n']].astype(float),
                                       [*ends, min(values), max(values), len(values)])
    with pytest.raises(ValueError, match='whiskers must be two percentiles'): gradient_boxes(frame, whiskers=(1.5, 1.5))
    with pytest.raises(ValueError, match='log=True needs non-negative values'): gradient_boxes(frame, log=True)

def test_a_logarithmic_axis_is_taken_where_values_span_decades_and_zeros_are_counted():
    frame = pd.DataFrame(dict(layer=[0]*6, gradient=[0., 1e-4, 1e-3, .1, 1., 0.]))
    view = gradient_boxes(frame, by='layer')
    assert view.log
    assert view.names == ('0',)
    assert view.frame.n.item() == 4
    assert view.frame.zeros.item() == 2
    assert view.frame.lowest.item() == 1e-4
    assert view.notes == ('0: 2 of 6 values are zero and are left out, since a logarithmic axis cannot show them.',)
    assert not gradient_boxes(frame, by='layer', log=False).notes
    assert gradient_boxes(frame, by='layer', log=False).frame.n.item() == 6
    with pytest.raises(ValueError, match='has only zeros'):
        gradient_boxes(frame.assign(gradient=0.), by='layer', log=True)
    with pytest.raises(ValueError, match='has no finite value'):
        gradient_boxes(frame.assign(gradient=np.nan), by='layer')

def test_a_histogram_counts_every_value_once_in_common_bins():
    frame = pd.DataFrame(dict(method=['a']*4 + ['b']*2, gradient=[0., .1, .6, 1., 2., 1.9]))
    view = _gradient_histogram(frame, bins=4)
    assert view.frame.query('name == "a"').value.tolist() == [.5, .25, .25, 0]
    assert view.frame.query('name == "b"').value.tolist() == [0, 0, 0, 1]
    assert view.frame.middle.tolist()[:4] == [.25, .75, 1.25, 1.75]
    wide = _gradient_histogram(pd.DataFrame(dict(method='a', gradient=[1e-3, 1e-2, .1, 1., 10.])), bins=4)
    assert wide.log_x and wide.frame.value.tolist() == [.2, .2, .2, .4]
    np.testing.assert_allclose(wide.frame.middle, 10**np.array([-2.5, -1.5, -.5, .5]))

def test_a_table_says_what_the_study_says():
    frame = pd.DataFrame([dict(method=m, seed=s, accuracy=v, loss=1 - v) for m, o in (('a', [.5, .7]), ('b', [.8, .6]))
                          for s, v in enumerate(o)])
    view, table = metric_table(frame), result_table(frame)
    assert view.means == (('0.600', '0.400'), ('0.700', '0.300'))
    assert view.deviations == (('0.141', '0.141'),)*2
    assert view.best.tolist() == [[False, False], [True, True]]
    assert metric_table(table).means == view.means
    assert table.caption in view.caption
    assert view.heads == ('accuracy ↑', 'loss ↓')
    assert metric_table(frame, 'loss').heads == ('loss ↓',)
    gaps = metric_table(pd.DataFrame(dict(auprc=[.5, np.nan], share=[-.25, .5]), index=['a', 'b']))
    assert gaps.means == (('0.500', '−0.250'), (None, '0.500'))
    assert gaps.deviations == ((None, None),)*2
    assert 'One seed' not in gaps.caption

def test_a_band_needs_two_runs():
    assert np.isnan(spread(np.ones((1, 3)))['deviation']).all()
    assert spread(np.ones((2, 3)))['deviation'].tolist() == [0, 0, 0]


def test_runs_of_different_methods_are_compared_by_the_loss_of_the_task(tmp_path):
    plain = run(tmp_path/'p', [dict(loss=1., task=1.), dict(loss=.5, task=.5)])
    guided = run(tmp_path/'g', [dict(loss=15., task=1.2, consistency=14.), dict(loss=9., task=.8, consistency=8.)],
                 method='SaliencyGuided')
    view = loss_curves([plain, guided])
    assert sorted(view.frame.value) == [.5, .8, 1., 1.2]
    assert (view.y_label, view.title) == ('task loss (nats)', 'Task loss over steps')
    assert 'The task loss excludes' in view.caption
    assert loss_curves([plain, guided], 'loss').frame.value.max() == 15 and loss_curves(guided).frame.value.max() == 15


def test_captions_are_sentences_with_plain_names_and_what_the_frame_says_of_itself():
    frame = pd.DataFrame(dict(method=['integrated_gradients']*2 + ['random']*2, share=[.1, .5]*2,
                              comprehensiveness=[.1, .4, 0., .1], gradient=[1., 2., 3., 4.], layer=[0, 0, 1, 1],
                              head=[0, 1]*2))
    frame.attrs['about'] = 'Model: m. Data: d. Seeds: 0, 1.'
    view = perturbation_curves(frame)
    assert view.names == ('integrated gradients', 'random')
    assert view.caption.endswith('. Model: m. Data: d. Seeds: 0, 1.')
    assert 'inputs; no seeds, so no band' in view.caption
    for view in (gradient_boxes(frame), head_map(frame, 'comprehensiveness'), _gradient_histogram(frame)):
        assert view.caption.endswith('. Model: m. Data: d. Seeds: 0, 1.')
        assert '_' not in ' '.join(view.names if hasattr(view, 'names') else ())
        assert view.caption[0].isupper()
        assert '   ' not in view.caption
    assert gradient_boxes(frame.copy().assign(gradient=1.)).caption.count('Model: m.') <= 1


@pytest.mark.parametrize('first', [3, 1])
def test_bands_of_runs_with_different_steps_end_at_the_bounds_of_the_metric(tmp_path, first):
    runs = [run(tmp_path/'a', [.9, .9, .01, .9]), run(tmp_path/'b', [.9, .02], seed=1, first=first)]
    view = loss_curves(runs, smooth=1) # the runs end at the same step, or at different steps
    at = view.frame.iloc[0 if first == 3 else -1]
    first_loss, second_loss = (.01, .9) if first == 3 else (.9, .02)
    mean, deviation = mean_and_deviation([first_loss, second_loss])
    np.testing.assert_allclose(at[['value', 'low', 'high']].astype(float), [mean, 0, mean + deviation])


def test_bands_end_where_there_are_no_values_any_more(tmp_path):
    runs = [run(tmp_path/str(i), losses, seed=i) for i, losses in enumerate(([.01, .02], [.9, .8], [.05, .1]))]
    for band in ('deviation', 'interval'):
        view = loss_curves(runs, smooth=1, band=band)
        assert (view.frame.low == 0).all() and (view.frame.value - view.frame.deviation < 0).any()
        assert 'Bands are clipped at 0.' in view.notes
    scores = [run(tmp_path/f'e{i}', [.5], seed=i, evals=[(1, dict(accuracy=a))]) for i, a in enumerate((.7, 1., 1.))]
    assert loss_curves(scores, 'accuracy').frame.high.max() == 1.
    signed = [run(tmp_path/f's{i}', [dict(loss=x, term=x)], seed=i) for i, x in enumerate((-1., 1., .1))]
    assert loss_curves(signed, 'term').frame.low.min() < -.9 # a term that can be negative
    frame = pd.DataFrame([dict(method='a', share=.1, accuracy=x, seed=i) for i, x in enumerate((.01, .9, .02))])
    assert accuracy_drop_curves(frame).frame.low.min() == 0.
    table = pd.DataFrame([dict(method='a', rows=n, seed=i, validation_accuracy=x, task='t')
                          for n in (8, 16) for i, x in enumerate((.1, .99, 1.))])
    assert over_setting(table, 'rows').frame[['low', 'high']].to_numpy().tolist() == [[0., 1.]]*2
    assert bars(table[table['rows'] == 8]).frame['high'].tolist() == [1.]

def test_a_curve_without_values_takes_no_colour_of_another_training():
    rows = [dict(method=m, training=t, share=s, accuracy=np.nan if (t, m) == ('A', 'lime') else 1 - s)
            for t in 'AB' for m in ('grad', 'lime') for s in (0, .5, 1)]
    curves = accuracy_drop_curves(pd.DataFrame(rows), training='training')
    (a, *_), (b, *_), (c, *_) = curves.styles
    assert curves.names == ('A, grad', 'B, grad', 'B, lime') and a != b == c

def test_rows_of_mixed_types_keep_their_names():
    weights = pd.Series([1, .5, 'auto']*2, dtype=object)
    frame = pd.DataFrame(dict(method=['A']*3 + ['B']*3, weight=weights, seed=0,
                              validation_accuracy=[.1, .2, np.nan, .3, .4, np.nan]))
    assert pairs(frame, rows='weight').names == bars(frame, rows='weight').groups == ('1', '0.5')
    with pytest.raises(ValueError, match='sides must be two of'): pairs(frame, rows='weight', sides=['A', 'A'])

def test_rows_of_a_filtered_frame_without_names_raise():
    frame = pd.DataFrame(dict(accuracy=[.5, .6, .7], loss=[1, 2, 3]))
    for rows in (frame, frame[frame.accuracy != .6]):
        with pytest.raises(ValueError, match="the frame has no column 'method'"): metric_table(rows)
