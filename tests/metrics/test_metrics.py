"""Task metrics and the agreement of attention and saliency equal loops written from their definitions"""
import math

import numpy as np
import pytest

from salviz.metrics.scores import (_entities, _is_bio, attention_agreement, classification_metrics, detection_metrics,
                                   masked_metrics, regression_metrics, run_agreement, token_metrics, train_test_gap,
                                   translation_metrics)
from salviz.core.snapshots import Snapshot
from salviz.core.runs import Run
from salviz.metrics.tasks import tasks


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
    "Compute Pearson's correlation of ranks; ties share their mean rank"
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
    return Snapshot(step, 0., probe, dict(attention=attention, saliency=saliency), tokens=[f't{i}' for i in range(n)],
                    word_ids=word_ids,
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


@pytest.mark.parametrize('labels, predictions, message', [
    ([0, 1], [0], 'the same length'), (np.zeros(0, int), np.zeros(0, int), 'not be empty'),
    ([0, 1], [[.1, .9], [.2, .8]], 'predictions must be a list of classes'),
    ([0., 1.], [0, 1], 'labels must be a list of classes'), ([[0], [1]], [0, 1], 'labels must be a list of classes'),
    (['a'], ['a'], 'integers')])
def test_invalid_lists_of_classes_raise(labels, predictions, message):
    with pytest.raises(ValueError, match=message): classification_metrics(labels, predictions)


@pytest.mark.parametrize('ties', [False, True])
def test_agreement_equals_a_loop_over_ordinary_tokens(ties):
    for seed in range(20):
        for n, special, row in ((9, (0, -1), 0), (5, (0, 4), 0), (12, (0, 5, 11), 0), (8, (), 7), (7, (3,), 3)):
            s = look(n, special, row, seed, ties=ties)
            want = slow_agreement(s)
            assert attention_agreement(s) == pytest.approx(want, nan_ok=True, abs=1e-12)


def test_without_a_pooled_row_the_rows_of_ordinary_tokens_are_averaged():
    for seed in range(10):
        s = look(9, (0, 4, 8), seed=seed)
        del s.info['pooled_row']
        weights, ordinary = [], [j for j in range(9) if j not in (0, 4, 8)]
        for k in ordinary:
            weights.append(sum(float(head[q][k]) for head in s.arrays['attention'][-1] for q in ordinary))
        want = slow_spearman(weights, [abs(float(s.arrays['saliency'][k])) for k in ordinary])
        assert attention_agreement(s) == pytest.approx(want, abs=1e-12)
        s.arrays['attention'][-1][:, [0, 4, 8]] = .7 # rows of special tokens do not count
        assert attention_agreement(s) == pytest.approx(want, abs=1e-12)


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


def test_snapshot_without_required_arrays_raises():
    for name in ('attention', 'saliency'):
        s = look()
        del s.arrays[name]
        with pytest.raises(KeyError, match=f'has no {name}; record'): attention_agreement(s)
    for row in (9, -1):
        with pytest.raises(ValueError, match='pooled_row must be the index of one of the 9 tokens .0 to 8., '
                                              f'got {row}'):
            attention_agreement(look(pooled_row=row))


def test_run_agreement_is_the_mean_over_defined_probes(tmp_path):
    run = Run.create(tmp_path/'run', {})
    with pytest.raises(KeyError, match='no snapshots'): run.snapshot()
    assert math.isnan(run_agreement(run))
    looks = [look(4, probe=0, step=5), look(9, probe=1, step=5, seed=1), look(11, probe=2, step=5, seed=2),
             look(9, probe=1, step=8, seed=3)]
    for s in looks: run.save(s)
    assert run_agreement(run, 5) == pytest.approx((slow_agreement(looks[1]) + slow_agreement(looks[2]))/2)
    # the last snapshot of each probe
    assert run_agreement(run) == pytest.approx((slow_agreement(looks[3]) + slow_agreement(looks[2]))/2)
    with pytest.raises(KeyError, match='no step 6 in run; available: 5, 8'): run_agreement(run, 6)


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


def test_gap_uses_the_score_that_selects_the_checkpoint(tmp_path):
    run = Run.create(tmp_path/'run', dict(best_metric=dict(name='loss', greater_is_better=False)))
    for split, loss in (('train', 1.), ('test', 3.)):
        run.log(dict(kind='score', split=split, step=5, loss=loss, accuracy=loss/10))
    assert train_test_gap(run) == -2 and train_test_gap(run, 'accuracy') == pytest.approx(-.2)
    with pytest.raises(ValueError, match="metric must be one of 'loss', 'accuracy', got 'macro_f1'"):
        train_test_gap(run, 'macro_f1')


# Other tasks

def test_correlations_and_squared_error_equal_loops():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        a, b = rng.normal(2, 1, 11), rng.normal(size=11)
        if seed % 2: a, b = a.round(0), (a + b).round(0)
        got, n = regression_metrics(a, b), 11
        ma, mb = sum(a)/n, sum(b)/n
        below = math.sqrt(sum((x - ma)**2 for x in a)*sum((y - mb)**2 for y in b))
        assert got['pearson'] == pytest.approx(sum((x - ma)*(y - mb) for x, y in zip(a, b))/below)
        assert got['spearman'] == pytest.approx(slow_spearman(list(a), list(b)))
        assert got['mse'] == pytest.approx(sum((x - y)**2 for x, y in zip(a, b))/n)
        assert all(type(x) is float for x in got.values())


def test_constant_or_diverged_predictions_have_no_correlation():
    got = regression_metrics([1., 2., 3.], np.float32([2, 2, 2]))
    assert math.isnan(got['pearson']) and math.isnan(got['spearman']) and got['mse'] == pytest.approx(2/3)
    assert all(math.isnan(x) for x in regression_metrics([1., 2.], [np.nan, 1.]).values())
    for labels, predictions, message in (([1.], [1., 2.], 'scores of the same number'), ([], [], 'not be empty'),
                                      ([np.nan], [1.], 'labels must be finite, got nan'),
                                      ([[1.]], [[1.]], 'scores of the same number')):
        with pytest.raises(ValueError, match=message): regression_metrics(labels, predictions)


# seqeval's rules, applied manually: gold tags, predicted tags, hits, gold and predicted entities
HAND = [
    # seqeval's own example, .5
    (['O O O B-MISC I-MISC I-MISC O', 'B-PER I-PER O'], ['O O B-MISC I-MISC I-MISC I-MISC O', 'B-PER I-PER O'], 1, 2,
     2),
    (['B-PER I-PER'], ['I-PER I-PER'], 1, 1, 1),                  # an I- that continues no entity begins one
    (['B-PER B-PER'], ['B-PER I-PER'], 0, 2, 1),                  # a B- begins another entity
    (['B-PER I-PER O B-PER'], ['B-PER I-LOC O B-PER'], 1, 2, 3),  # another kind ends and begins: PER, LOC, PER
    (['B-LOC I-LOC I-LOC'], ['B-LOC I-LOC O'], 0, 1, 1),          # half a name does not count
    (['O O', 'B-LOC'], ['B-LOC O', 'B-LOC'], 1, 1, 2),            # an entity ends with its sentence
    (['O'], ['O'], 0, 0, 0)]


@pytest.mark.parametrize('gold, predicted, hits, many, found', HAND)
def test_entities_match_manual_examples(gold, predicted, hits, many, found):
    names = ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC']
    def numbered(side): return [[names.index(t) for t in sentence.split()] for sentence in side]
    labels, predictions = numbered(gold), numbered(predicted)
    want = 2*hits/(many + found) if many + found else 0.
    assert token_metrics(labels, predictions, names)['f1'] == pytest.approx(want)
    # with special tokens, padding and later tokens of words, in one array
    wide = np.full((len(gold), 15), -100)
    out = np.random.default_rng(0).integers(0, 7, wide.shape)
    for i, (y, p) in enumerate(zip(labels, predictions)): wide[i, 1:1 + 2*len(y):2], out[i, 1:1 + 2*len(y):2] = y, p
    assert token_metrics(wide, out, names) == token_metrics(labels, predictions, names)


def test_entities_equal_a_loop_over_neighbours():
    rng, names = np.random.default_rng(0), ['O', 'B-A', 'I-A', 'B-B', 'I-B']
    for _ in range(200):
        tags = [names[i] for i in rng.integers(0, 5, rng.integers(0, 9))]
        def begins(i): return tags[i] != 'O' and (tags[i][0] == 'B' or i == 0 or tags[i - 1][1:] != tags[i][1:])
        want = []
        for i in range(len(tags)):
            if not begins(i): continue
            last = i
            while last + 1 < len(tags) and tags[last + 1] == 'I' + tags[i][1:]: last += 1
            want.append((tags[i][2:], i, last))
        assert _entities(tags) == want


def test_tags_that_mark_no_entities_are_scored_as_classes():
    assert _is_bio(['O', 'B-X', 'I-X'])
    assert _is_bio(['B-X'])
    assert not _is_bio(['NOUN', 'VERB'])
    assert not _is_bio(['O'])
    assert not _is_bio(['O', 'B-X', 'S-X'])
    assert not _is_bio(None)
    rng = np.random.default_rng(1)
    y, p = rng.integers(0, 3, (4, 6)), rng.integers(0, 3, (4, 6))
    y[0, 2:] = y[3] = -100
    kept = [(a, b) for a, b in zip(y.ravel().tolist(), p.ravel().tolist()) if a != -100]
    for classes in (None, ['NOUN', 'VERB', 'ADJ']):
        got = token_metrics(y, p, classes)
        assert got['accuracy'] == pytest.approx(sum(a == b for a, b in kept)/len(kept))
        assert got['f1'] == pytest.approx(slow_macro_f1(*map(list, zip(*kept))))


def test_token_metrics_count_labelled_positions_only():
    rng = np.random.default_rng(2)
    y, p = rng.integers(0, 2, (5, 7)), rng.integers(0, 2, (5, 7))
    y[1], y[2, 3:], y[4, ::2] = -100, -100, -100
    kept = [[(a, b) for a, b in zip(*rows) if a != -100] for rows in zip(y.tolist(), p.tolist())]
    flat = [o for row in kept for o in row]
    accuracy = sum(a == b for a, b in flat)/len(flat)
    assert masked_metrics(y, p) == dict(accuracy=pytest.approx(accuracy))
    hit, wrong, missed = sum(a == b == 1 for a, b in flat), sum(a < b for a, b in flat), sum(a > b for a, b in flat)
    assert detection_metrics(y, p) == dict(accuracy=pytest.approx(accuracy),
                                           f1=pytest.approx(2*hit/(2*hit + wrong + missed)))
    whole = [all(a == b for a, b in row) for row in kept if row]
    assert translation_metrics(y, p) == dict(accuracy=pytest.approx(accuracy), exact_match=pytest.approx(sum(whole)/4))
    p[0], p[3] = y[0], y[3]
    assert translation_metrics(y, p)['exact_match'] >= .5


@pytest.mark.parametrize('task', ['token_classification', 'masked_lm', 'replaced_token_detection', 'seq2seq'])
def test_unlabelled_token_metrics_are_undefined_and_odd_shapes_raise(task):
    for labels in ([[-100, -100]], np.zeros((0, 3), int)):
        assert all(math.isnan(x) for x in tasks[task].metrics(labels, np.ones_like(labels)).values())
    for labels, predictions, message in (([[1]], [[1], [1]], 'the same length, got 1 and 2'),
                                      ([[1, 2]], [[1]], r'got shapes \[2\] and \[1\]'),
                                      ([[1, 2]], [[[.1, .9], [.5, .5]]], 'take argmax'),
                                      ([[1]], [[.5]], 'dtype float64 in example 0; take argmax')):
        with pytest.raises(ValueError, match=message): tasks[task].metrics(labels, predictions)


def test_every_task_has_a_metric_that_selects_the_checkpoint():
    sample = dict(classification=([0, 1], [0, 1]), regression=([0., 1.], [0., 1.]),
                  multi_label_classification=([[0, 1]], [[0, 1]]),
                  causal_lm=([[1, 0]], [[[1, .5], [0, .5]]]), tokens=([[1, 0]], [[1, 0]]))
    of_tokens = 'token_classification', 'masked_lm', 'replaced_token_detection', 'seq2seq', 'question_answering'
    for task, facts in tasks.items():
        kind = 'tokens' if task in of_tokens else task if task in sample else 'classification'
        got = facts.metrics(*sample[kind])
        assert got and facts.metric in {*got, 'loss'}, task
        assert facts.best == dict(name=facts.metric, greater_is_better=facts.metric != 'loss'), task
