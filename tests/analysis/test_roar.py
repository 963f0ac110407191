"Remove and retrain: replaced data against loops, and a study that is interrupted and resumed"
import math

import numpy as np
import pandas as pd
import pytest

from salviz.attribution.explanations import explain_data
from salviz.data.signals import Layout, load_images, signal_info, synthetic_series
from salviz.data.texts import subset
from salviz.methods.base import FineTuning
from salviz.models.nets import small_net
from salviz.analysis.roar import RemovedData, roar_table
from salviz.studies.study import Study

@pytest.fixture(scope='module')
def digits(): return subset(load_images('digits'), 20, validation_size=10, test_size=12)

@pytest.fixture(scope='module')
def series():
    data = synthetic_series(Layout(3, 2, 1, 0), steps=6, features=4)
    return subset(data, 16, validation_size=8, test_size=8)

def net(data, seed=0):
    images = 'pixel_values' in data['train'].column_names
    more = dict(filters=(3, 4), hidden_size=6) if images else dict(channels=(3, 4))
    return small_net('digit-cnn' if images else 'tcn', data, seed=seed, **more)

def slow(x, saliency, share, background, ranking):
    "Return `x` of one example with its top fraction replaced, one by one"
    x, s = np.array(x, np.float32), np.array(saliency, np.float64)
    if ranking == 'magnitude': s = np.abs(s)
    places = [(i, j) for i in range(s.shape[0]) for j in range(s.shape[1])]
    places.sort(key=lambda at: -s[at])  # stable: the earlier one for equal values
    background = np.broadcast_to(np.asarray(background, np.float32), x.shape)
    for i, j in places[:math.ceil(share*len(places) - 1e-9)]:
        x[..., i, j] = background[..., i, j]
    return x

@pytest.mark.sample(3)
@pytest.mark.parametrize('kind', ['digits', 'series'])
@pytest.mark.parametrize('ranking,share', [('signed', .3), ('magnitude', .5), ('signed', 0.), ('signed', 1.)])
def test_replacement_in_every_split_equals_a_loop(kind, ranking, share, request):
    data = request.getfixturevalue(kind)
    model, name = net(data), 'pixel_values' if kind == 'digits' else 'values'
    info = signal_info(data)
    black = (0 - np.asarray(info['centre'], np.float32))/np.asarray(info['scale'], np.float32)
    removed = RemovedData(model, data, dict(slope='gradient'), ranking=ranking)
    made = removed(share, 'slope')
    assert set(made) == set(data)
    for split, part in data.items():
        saliency = explain_data(model, part, 'gradient', target='predicted', progress=False)
        for i, row in enumerate(part.with_format('numpy')):
            expected = slow(row[name], saliency[i], share, black, ranking)
            np.testing.assert_array_equal(np.asarray(made[split][i][name], np.float32), expected)
        assert made[split].features == part.features and list(made[split]['label']) == list(part['label'])
        assert made[split].info.dataset_name == part.info.dataset_name

def test_the_data_are_not_changed_and_the_random_ranking_depends_on_the_seed(digits):
    model = net(digits)
    before = np.array(digits['test']['pixel_values'])
    def rows(**more): return np.array(RemovedData(model, digits, **more)(.5, 'random')['test']['pixel_values'])
    assert (rows() == rows()).all() and (rows() != rows(seed=1)).any()
    assert (np.array(digits['test']['pixel_values']) == before).all()

def test_the_background_can_be_chosen(digits):
    made = RemovedData(net(digits), digits, background=7.)(1., 'random')
    assert (np.array(made['validation']['pixel_values']) == 7).all()

def test_each_method_runs_once_per_split(digits, monkeypatch):
    asked = []
    def explain(model, data, **options):
        asked.append(options['method'])
        return [np.zeros((28, 28)) for _ in range(len(data))]
    monkeypatch.setattr('salviz.analysis.roar.explain_data', explain)
    removed = RemovedData(net(digits), digits)
    for share in (.1, .5): removed(share, 'gradient'); removed(share, 'random')
    assert sorted(asked) == ['gradient']*3 + ['random']*3

def study_of(folder, data, model):
    return Study(folder, lambda seed: net(data, seed), RemovedData(model, data), dict(FT=FineTuning), seeds=[0, 1],
                 measures=['test_accuracy'], settings=dict(saliency=['gradient', 'random'], share=[.25, .75]),
                 progress=False, epochs=1, batch_size=8, snapshots=0, learning_rate=1e-2)

@pytest.mark.slow
def test_an_interrupted_study_resumes_and_equals_an_uninterrupted_one(tmp_path, series, monkeypatch):
    model = net(series)
    whole = study_of(tmp_path/'whole', series, model).run()
    stopped, calls, finish = study_of(tmp_path/'stopped', series, model), [], Study._finish
    def stops(self, cell, again, check):
        calls.append(cell)
        if len(calls) == 4: raise KeyboardInterrupt
        return finish(self, cell, again, check)
    monkeypatch.setattr(Study, '_finish', stops)
    with pytest.raises(KeyboardInterrupt): stopped.run()
    monkeypatch.setattr(Study, '_finish', finish)
    again = study_of(tmp_path/'stopped', series, model).run()
    keys = ['saliency', 'share', 'seed', 'test_accuracy']
    pd.testing.assert_frame_equal(whole[keys], again[keys])
    assert len(whole) == 8 and whole.test_accuracy.notna().all()

def test_the_table_compares_within_fraction_and_seed():
    rows = [('FT', s, share, seed, acc) for s, share, seed, acc in
            [('gradient', .5, 0, .4), ('gradient', .5, 1, .6), ('gradient', .9, 0, .3), ('random', .5, 0, .9),
             ('random', .5, 1, .7), ('random', .9, 0, .2)]]
    table = roar_table(pd.DataFrame(rows, columns=['method', 'saliency', 'share', 'seed', 'test_accuracy']))
    assert table.saliency.tolist() == ['gradient']*2 and table.seeds.tolist() == [2, 1]
    np.testing.assert_allclose(table.difference, [((.9 - .4) + (.7 - .6))/2, -.1])
    np.testing.assert_allclose(table[['test_accuracy', 'random']], [[.5, .8], [.3, .2]])

def test_invalid_settings_are_rejected(digits, tiny_data):
    with pytest.raises(ValueError, match='DatasetDict of images or series'): RemovedData(net(digits), tiny_data)
    with pytest.raises(ValueError, match='DatasetDict of images or series'): RemovedData(net(digits), digits['test'])
    with pytest.raises(ValueError, match="ranking must be 'signed' or 'magnitude'"):
        RemovedData(net(digits), digits, ranking='size')
    removed = RemovedData(net(digits), digits)
    with pytest.raises(ValueError, match="saliency must be one of 'gradient', 'random'"): removed(.5, 'deeplift')
    with pytest.raises(ValueError, match='fraction must be between 0 and 1'): removed(1.5, 'random')
    bare = pd.DataFrame(dict(seed=[0], test_accuracy=[1.]))
    with pytest.raises(ValueError, match='missing: saliency, share'): roar_table(bare)
