"Scores by group, contrast sets and calibration: against loops, and as metrics of runs, studies, tables and figures."
import math

import datasets
import numpy as np
import pytest
import torch

from salviz.core.maths import spearman
from salviz.core.runs import Run
from salviz.data.texts import Collator, encode, model_inputs
from salviz.figures.kinds import figure
from salviz.metrics.robustness import (calibration_error, consistency, derived_score, group_scores, is_derived,
                                       predictions_name)
from salviz.metrics.statistics import better_of, measure_of
from salviz.methods import FineTuning
from salviz.studies.study import Study
from salviz.training.trainer import load_model, train

quick = dict(epochs=1, batch_size=8, learning_rate=1e-3, snapshots=0)

def slow_error(correct, confidence, bins):
    "Compute equation 3 of Guo et al. (2017), bin by bin"
    total = 0.
    for b in range(bins):
        inside = [(float(c), float(p)) for c, p in zip(correct, confidence)
                  if b/bins < p <= (b + 1)/bins or b == 0 and p == 0]
        if inside: total += abs(sum(c - p for c, p in inside))/len(correct)
    return total

@pytest.mark.parametrize('bins', [1, 7, 15])
def test_calibration_error_equals_a_loop_over_bins(bins):
    rng = np.random.default_rng(bins)
    confidence = np.r_[rng.random(200), 0., 1., 1/7, .5]
    correct = rng.random(len(confidence)) < confidence**2
    expected = slow_error(correct, confidence, bins)
    assert calibration_error(correct, confidence, bins) == pytest.approx(expected, abs=1e-12)

def test_consistency_equals_a_loop_over_sets():
    rng = np.random.default_rng(0)
    correct, sets = rng.random(90) < .8, rng.integers(40, size=90)
    right = [all(correct[sets == s]) for s in set(sets.tolist()) if (sets == s).sum() > 1]
    assert consistency(correct, sets) == pytest.approx(sum(right)/len(right), abs=1e-12)

@pytest.fixture
def data(tiny_data):
    "Return the sentences with a genre and the number of a contrast set, and a further split without the latter"
    def marked(part):
        part = part.add_column('genre', ['films' if i % 3 else 'tweets' for i in range(len(part))])
        return part.add_column('pair', [i // 2 for i in range(len(part))])
    further = tiny_data['train'].select(range(12)).add_column('genre', ['films']*12)
    return datasets.DatasetDict({**{k: marked(part) for k, part in tiny_data.items()}, 'ood': further})

@pytest.fixture
def run(tmp_path, data, tiny_bert, tiny_tokenizer):
    return train(tiny_bert(), tiny_tokenizer, data, run_dir=tmp_path/'run', progress=False, group='genre',
                 contrast='pair', **quick)

def answers(run, part, tokenizer):
    "Return correctness and confidence of the saved model, row by row"
    model = load_model(run)[0]
    batch = Collator(tokenizer)(list(encode(part, tokenizer)))
    with torch.no_grad(): logits = model(**model_inputs(batch, model)).logits
    p = logits.double().softmax(-1)
    return (p.argmax(-1) == torch.tensor(part['label'])).numpy(), p.amax(-1).numpy()

def test_a_run_scores_groups_contrast_sets_and_calibration_of_every_held_out_split(run, data, tiny_tokenizer):
    for split in ('test', 'ood', 'validation'):
        correct, confidence = answers(run, data[split], tiny_tokenizer)
        genres = np.array(data[split]['genre'])
        by_group = {g: correct[genres == g].mean() for g in sorted(set(genres))}
        table = group_scores(run, split)
        assert dict(zip(table.group, table.accuracy)) == pytest.approx(by_group)
        assert table.examples.tolist() == [(genres == g).sum() for g in by_group]
        assert measure_of(run, f'{split}_worst_group') == pytest.approx(min(by_group.values()))
        assert measure_of(run, f'{split}_group_films') == pytest.approx(by_group['films'])
        expected = slow_error(correct, confidence, 15)
        assert measure_of(run, f'{split}_calibration_error') == pytest.approx(expected, abs=1e-6)
    pairs, (correct, _) = np.array(data['test']['pair']), answers(run, data['test'], tiny_tokenizer)
    right = [correct[pairs == p].all() for p in set(pairs.tolist())]
    assert measure_of(run, 'test_consistency') == pytest.approx(np.mean(right))
    assert math.isnan(measure_of(run, 'ood_consistency')) and math.isnan(measure_of(run, 'train_calibration_error'))
    assert run.measures == ['accuracy', 'macro_f1', 'loss']
    assert Run(run.path).state['groups']['test'] == ['films', 'tweets']

def test_studies_tables_and_figures_show_them(tmp_path, data, tiny_bert, tiny_tokenizer):
    measures = ['test_accuracy', 'ood_accuracy', 'test_worst_group', 'test_consistency', 'ood_calibration_error']
    study = Study(tmp_path/'study', lambda seed: (tiny_bert(seed), tiny_tokenizer), data, dict(plain=FineTuning),
                  seeds=[0, 1], measures=measures, progress=False, group='genre', contrast='pair', **quick)
    frame = study.run()
    assert frame[measures].notna().all(axis=None)
    assert [better_of(name) for name in measures] == ['higher']*4 + ['lower']
    assert 'test worst group ↑' in repr(study.table()) and 'ood calibration error ↓' in repr(study.table())
    for y in ('ood_accuracy', 'test_worst_group'):
        assert f'{y.replace("_", " ")} against test accuracy' in figure(frame, 'domain_shift', y=y).caption

def test_without_the_columns_nothing_is_recorded(tmp_path, tiny_data, tiny_bert, tiny_tokenizer):
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', progress=False, **quick)
    assert {*run.load_arrays('test_predictions')} == {'example_id', 'labels', 'predictions', 'confidence'}
    assert math.isnan(measure_of(run, 'test_worst_group')) and not {'group', 'contrast'} & {*run.config['settings']}
    with pytest.raises(ValueError, match="group must be a column of the data, got 'genre'; available: text, label"):
        train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'b', progress=False, group='genre', **quick)
    assert not (tmp_path/'b').exists()
    with pytest.raises(ValueError, match='unknown metric'): measure_of(run, 'gap_worst_group')

def test_a_regression_has_groups_but_no_calibration(tmp_path, tiny_data, tiny_bert, tiny_tokenizer):
    def scored(part):
        columns = {'text': part['text'], 'label': [x + i/40 for i, x in enumerate(part['label'])],
                   'genre': ['ab'[i % 2] for i in range(len(part))]}
        return datasets.Dataset.from_dict(columns)
    data = datasets.DatasetDict({k: scored(part) for k, part in tiny_data.items()})
    run = train(tiny_bert(num_labels=1), tiny_tokenizer, data, run_dir=tmp_path/'run', progress=False, group='genre',
                **quick)
    stored = run.load_arrays('test_predictions')
    groups = [stored['group'] == g for g in (0, 1)]
    expected = [spearman(stored['labels'][at], stored['predictions'][at]) for at in groups]
    assert group_scores(run).spearman.tolist() == pytest.approx(expected)
    assert math.isnan(measure_of(run, 'test_calibration_error'))

def test_names_of_splits_and_scores():
    assert predictions_name('amazon reviews/2') == 'amazon_reviews_2_predictions' and is_derived('group_a b')
    assert not is_derived('accuracy')
    with pytest.raises(ValueError, match='name must be'): derived_score(None, 'test', 'nothing')
