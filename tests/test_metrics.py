"""Task metrics and the agreement of attention and saliency equal loops written from their definitions"""
import math

import numpy as np
import pytest

from salviz.metrics import attention_agreement, classification_metrics, run_agreement, train_test_gap
from salviz.runs import Run, Snapshot


def slow_macro_f1(labels, predictions):
    scores = []
    for c in sorted(set(labels) | set(predictions)):
        hit = missed = wrong = 0
        for y, p in zip(labels, predictions):
            if y == c and p == c: hit += 1
            elif y == c: missed += 1
            elif p == c: wrong += 1
        scores.append(2*hit/(2*hit + missed + wrong))
    return sum(scores)/len(scores)


def slow_spearman(a, b):
    "Pearson's correlation of ranks; equal values share the mean of their places"
    def rank(x): return [sum(o < v for o in x) + (sum(o == v for o in x) + 1)/2 for v in x]
    ra, rb = rank(a), rank(b)
    ma, mb = sum(ra)/len(ra), sum(rb)/len(rb)
    top = sum((x - ma)*(y - mb) for x, y in zip(ra, rb))
    below = math.sqrt(sum((x - ma)**2 for x in ra)*sum((y - mb)**2 for y in rb))
    return top/below if below else math.nan


def slow_agreement(snapshot):
    weights, sizes = [], []
    last = snapshot.arrays['attention'][-1]
    for j in range(len(snapshot.tokens)):
        if snapshot.is_special[j]: continue
        weights.append(sum(float(last[h][snapshot.info['pooled_row']][j]) for h in range(len(last)))/len(last))
        sizes.append(abs(float(snapshot.arrays['saliency'][j])))
    return slow_spearman(weights, sizes)


def look(n=9, special=(0, -1), pooled_row=0, seed=0, step=0, probe=0, ties=False):
    rng = np.random.default_rng((seed, n))
    attention, saliency, word_ids = rng.dirichlet(np.ones(n), (3, 4, n)), rng.normal(size=n), np.arange(n)
    if ties: attention, saliency = attention.round(1), saliency.round(0)
    word_ids[list(special)] = -1
    return Snapshot(step, 0., probe, dict(attention=attention, saliency=saliency), tokens=[f't{i}' for i in range(n)], word_ids=word_ids,
                    info=dict(pooled_row=pooled_row))


@pytest.mark.parametrize('classes', [1, 2, 5])
def test_accuracy_and_macro_f1_equal_counting(classes):
    rng = np.random.default_rng(classes)
    for n in (1, 2, 7, 60):
        labels, predictions = rng.integers(0, classes, n), rng.integers(0, classes, n)
        got = classification_metrics(labels, predictions)
        assert got['accuracy'] == pytest.approx(sum(y == p for y, p in zip(labels, predictions))/n)
        assert got['macro_f1'] == pytest.approx(slow_macro_f1(labels.tolist(), predictions.tolist()))
        assert all(type(x) is float for x in got.values())


@pytest.mark.parametrize('labels, predictions, said', [
    ([0, 1], [0], 'equally many'), (np.zeros(0, int), np.zeros(0, int), 'not empty'), ([0, 1], [[.1, .9], [.2, .8]], 'predictions must be a list of classes'),
    ([0., 1.], [0, 1], 'labels must be a list of classes'), ([[0], [1]], [0, 1], 'labels must be a list of classes'), (['a'], ['a'], 'whole numbers')])
def test_what_is_no_list_of_classes_is_refused(labels, predictions, said):
    with pytest.raises(ValueError, match=said): classification_metrics(labels, predictions)


@pytest.mark.parametrize('ties', [False, True])
def test_agreement_equals_a_loop_over_ordinary_tokens(ties):
    for seed in range(20):
        for n, special, row in ((9, (0, -1), 0), (5, (0, 4), 0), (12, (0, 5, 11), 0), (8, (), 7), (7, (3,), 3)):
            s = look(n, special, row, seed, ties=ties)
            want = slow_agreement(s)
            assert attention_agreement(s) == pytest.approx(want, nan_ok=True, abs=1e-12)


def test_agreement_ignores_special_tokens_other_rows_earlier_layers_and_signs():
    s = look()
    want = attention_agreement(s)
    s.arrays['attention'][:2] = .5
    s.arrays['attention'][2, :, 1:] = .1
    s.arrays['attention'][2, :, 0, [0, -1]] = np.array([[.9], [0.]])
    s.arrays['saliency'][[0, -1]] = np.nan, 1e9
    s.arrays['saliency'][2:5] *= -1
    assert attention_agreement(s) == pytest.approx(want) and abs(want) < 1


def test_perfect_and_opposite_order_give_one_and_minus_one():
    s = look()
    s.arrays['saliency'] = s.arrays['attention'][-1].mean(0)[0]**3
    assert attention_agreement(s) == pytest.approx(1)
    s.arrays['saliency'] = -1/s.arrays['saliency']
    assert attention_agreement(s) == pytest.approx(-1)


def test_agreement_of_too_few_tokens_equal_values_or_a_diverged_model_is_nan():
    assert math.isnan(attention_agreement(look(4))) and not math.isnan(attention_agreement(look(5)))
    for name in ('attention', 'saliency'):
        for value in (np.nan, .2):
            s = look()
            s.arrays[name] = np.full_like(s.arrays[name], value)
            assert math.isnan(attention_agreement(s))


def test_a_snapshot_that_lacks_what_agreement_needs_is_refused_by_name():
    for name in ('attention', 'saliency'):
        s = look()
        del s.arrays[name]
        with pytest.raises(KeyError, match=f'needs {name}, which'): attention_agreement(s)
    s = look()
    s.info = {}
    with pytest.raises(KeyError, match='pooled_row'): attention_agreement(s)
    for row in (9, -1):
        with pytest.raises(ValueError, match=f'pooled_row must be one of the 9 tokens .0 to 8., got {row}'): attention_agreement(look(pooled_row=row))


def test_a_runs_agreement_is_the_mean_over_probes_that_have_one(tmp_path):
    run = Run.create(tmp_path/'run', {})
    with pytest.raises(KeyError, match='no snapshots'): run.snapshot()
    assert math.isnan(run_agreement(run))
    looks = [look(4, probe=0, step=5), look(9, probe=1, step=5, seed=1), look(11, probe=2, step=5, seed=2), look(9, probe=1, step=8, seed=3)]
    for s in looks: run.save(s)
    assert run_agreement(run, 5) == pytest.approx((slow_agreement(looks[1]) + slow_agreement(looks[2]))/2)
    assert run_agreement(run) == pytest.approx((slow_agreement(looks[3]) + slow_agreement(looks[2]))/2) # the last look at each probe
    with pytest.raises(KeyError, match='no step 6 in run; there are 5, 8'): run_agreement(run, 6)


def test_the_gap_is_training_minus_test_at_the_best_checkpoint(tmp_path):
    run = Run.create(tmp_path/'run', {})
    assert math.isnan(train_test_gap(run))
    run.log(dict(kind='score', split='train', step=5, accuracy=.9, macro_f1=.7))
    assert math.isnan(train_test_gap(run))
    run.log(dict(kind='score', split='test', step=5, accuracy=.6, macro_f1=.5))
    assert train_test_gap(run) == pytest.approx(.3) and train_test_gap(run, 'macro_f1') == pytest.approx(.2)
    other = Run.create(tmp_path/'other', {})
    other.finish(train_accuracy=.8, test_accuracy=.9)
    assert train_test_gap(other) == pytest.approx(-.1)
