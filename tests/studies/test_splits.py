"Every split of the data is scored: test, and further splits such as sentences from elsewhere."
import numpy as np
import pytest
import torch

from helpers import with_shifted_split
from salviz.core.runs import Run, runs_table
from salviz.data.texts import Collator, encode, fingerprint, model_inputs, subset
from salviz.metrics.methods_text import methods_text, model_card
from salviz.metrics.statistics import _runs_frame, is_measure, measure_of
from salviz.methods import FineTuning
from salviz.studies.search import Search, SearchOptions
from salviz.studies.study import Study
from salviz.training.trainer import load_model, train

quick = dict(epochs=1, batch_size=8, learning_rate=1e-3, snapshots=0)

@pytest.fixture
def data(tiny_data):
    "Return the sentences, and a fourth split with 12 of them, most with wrong labels"
    return with_shifted_split(tiny_data, correct=4)

def test_further_split_is_scored_and_shown_like_test(tmp_path, data, tiny_bert, tiny_tokenizer):
    run = train(tiny_bert(), tiny_tokenizer, data, run_dir=tmp_path/'run', progress=False, **quick)
    rows = encode(data['ood'], tiny_tokenizer)
    model, batch = load_model(run)[0], Collator(tiny_tokenizer)(list(rows))
    with torch.no_grad(): logits = model(**model_inputs(batch, model)).logits
    labels = torch.tensor(data['ood']['label'])
    expected = (logits.argmax(-1) == labels).float().mean().item()
    assert run.splits == ['train', 'validation', 'test', 'ood']
    assert run.scores('ood')['accuracy'] == measure_of(run, 'ood_accuracy') == pytest.approx(expected)
    assert run.scores('ood')['loss'] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item())
    assert run.scores('ood')['loss'] != run.scores('test')['loss'] # so the two are not confused here
    assert f'  ood       accuracy {expected:.3f}, macro-F1' in repr(run)
    table = runs_table(tmp_path)
    assert table.columns.get_loc('ood_accuracy') > table.columns.get_loc('test_macro_f1')
    assert table.ood_accuracy[0] == pytest.approx(expected)
    assert _runs_frame(dict(plain=[run]), ['ood_accuracy']).ood_accuracy[0] == pytest.approx(expected)
    assert '| accuracy | ood |' in model_card(run)
    with pytest.raises(ValueError, match="'test', 'ood', got 'odd'"): run.scores('odd')
    with pytest.raises(ValueError, match='test_SCORE, ood_SCORE and gap_SCORE'): measure_of(run, 'odd_accuracy')

def test_study_measures_further_splits_and_raises_for_missing_ones(tmp_path, data, tiny_bert,
                                                                               tiny_tokenizer):
    def made(folder, data, measures):
        return Study(folder, lambda seed: (tiny_bert(), tiny_tokenizer), data, dict(plain=FineTuning), seeds=[0],
                     measures=measures, progress=False, **quick)
    study = made(tmp_path/'study', data, ['ood_accuracy'])
    table = study.run()
    run, = (run for runs in study.runs().values() for run in runs)
    assert table.ood_accuracy[0] == run.scores('ood')['accuracy']
    assert 'accuracy on the ood split' in methods_text(study) and '12 for ood' in methods_text(study)
    for given in (data, lambda: data): # a function's splits are known once it was called
        with pytest.raises(ValueError, match="unknown measure 'odd_accuracy'.*ood_SCORE"):
            made(tmp_path/'other', given, ['odd_accuracy'])
    assert not (tmp_path/'other').exists()
    assert made(tmp_path/'third', lambda: data, ['ood_accuracy']).measures == dict(ood_accuracy='ood_accuracy')

def test_runs_recorded_without_further_splits_can_be_opened(tmp_path):
    run = Run.create(tmp_path/'old', dict(data=dict(name='x', sizes=dict(train=8, validation=4, test=4, ood=4)),
                                          best_metric=dict(name='accuracy')))
    run.log(dict(kind='score', split='test', step=1, accuracy=.5, loss=1.))
    run.finish(best_step=1)
    run = Run(run.path)
    assert np.isnan(run.scores('ood')['accuracy']) and np.isnan(measure_of(run, 'ood_accuracy'))
    assert run.scores('test')['accuracy'] == .5 and 'ood       ' not in repr(run)
    assert not [c for c in runs_table(tmp_path) if c.startswith('ood')]

def test_split_names_with_underscores_or_a_common_prefix_are_distinguished(tmp_path):
    run = Run.create(tmp_path/'run', dict(best_metric=dict(name='accuracy')))
    for split, x in dict(test=.5, test_hard=.25).items():
        run.log(dict(kind='score', split=split, step=1, accuracy=x, macro_f1=x/2))
    run.finish(best_step=1)
    names = ('test_accuracy', 'test_hard_accuracy', 'test_hard_macro_f1')
    assert [measure_of(run, name) for name in names] == [.5, .25, .125]
    assert is_measure('ood_f1', ['ood']) and not is_measure('ood_f1') and not is_measure('ood_', ['ood'])

def test_search_uses_no_held_out_split(tmp_path, data, tiny_bert, tiny_tokenizer):
    def made(folder, **more):
        return Search(folder, lambda seed: (tiny_bert(), tiny_tokenizer), data, dict(plain=FineTuning),
                      dict(learning_rate=[1e-3, 1e-2]), trials=1, progress=False, epochs=1, snapshots=0, **more)
    search = made(tmp_path/'a')
    assert list(search._data(search.cells[0])) == ['train', 'validation']
    with pytest.raises(ValueError, match='ood_accuracy uses the ood split, which a search must not use'):
        made(tmp_path/'b', options=SearchOptions(measures=['ood_accuracy']))

def test_subset_keeps_further_splits_complete(data):
    small = subset(data, 8, validation_size=4, test_size=4)
    assert [len(part) for part in small.values()] == [8, 4, 4, 12]
    assert fingerprint(small['ood']) == fingerprint(data['ood'])
