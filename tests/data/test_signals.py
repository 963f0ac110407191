"""data.signals: file formats, splits, statistics of the training split, and the boxes and processes of the benchmark
against slow loops"""
import gzip
import itertools
import math
import random
import struct

import numpy as np
import pandas as pd
import pytest
import torch
from PIL.Image import fromarray
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from scipy.special import gamma, kv

import salviz
from salviz.data import signals
from salviz.core.assets import asset
from salviz.data.texts import fingerprint, subset
from salviz.data.signals import (Layout, SignalCollator, _layouts, _processes, _read_idx, _read_ts, _restore,
                                 _sample_times, encode_signals, load_images, load_series, signal_info, synthetic_series,
                                 vanishing_series)

splits = ('train', 'validation', 'test')

def array(part, name='values'): return part.with_format('numpy')[:][name].astype(np.float64)

# idx files

def idx_bytes(array, kind):
    "Write an idx file number by number"
    code, letter = dict(uint8=(8, 'B'), int8=(9, 'b'), int16=(11, 'h'), int32=(12, 'i'), float32=(13, 'f'),
                        float64=(14, 'd'))[kind]
    out = bytes([0, 0, code, array.ndim])
    for n in array.shape: out += struct.pack('>I', n)
    for x in array.ravel().tolist(): out += struct.pack('>' + letter, x)
    return out

@pytest.mark.parametrize('kind', ['uint8', 'int8', 'int16', 'int32', 'float32', 'float64'])
@pytest.mark.parametrize('shape', [(7,), (2, 3), (2, 2, 3)])
def test_idx_file_of_any_type_and_rank_is_read(kind, shape, tmp_path):
    written = np.arange(math.prod(shape)).reshape(shape).astype(kind)
    (tmp_path/'plain').write_bytes(idx_bytes(written, kind))
    (tmp_path/'packed.gz').write_bytes(gzip.compress(idx_bytes(written, kind)))
    for name in ('plain', 'packed.gz'):
        got = _read_idx(tmp_path/name)
        assert got.dtype == np.dtype(kind) and got.shape == shape and (got == written).all()

@pytest.mark.parametrize('content,message', [
    (b'\x89PNG....', 'is not an idx file'), (b'', 'is not an idx file'),
    (b'\0\0\x08\x01\0\0\0\x05ab', 'but has 2 bytes'),
    (b'\0\0\x08\x03\0\0', 'declares an array')])
def test_broken_idx_file_raises(content, message, tmp_path):
    (tmp_path/'file').write_bytes(content)
    with pytest.raises(ValueError, match=message): _read_idx(tmp_path/'file')

def idx_folder(folder, rng, test=True):
    "Write a folder of idx files named as in MNIST, and return the arrays"
    made = {}
    for split, stem, n in [('train', 'train', 30), ('test', 't10k', 8)][:1 + test]:
        x, y = rng.integers(0, 256, (n, 5, 4), dtype=np.uint8), np.arange(n, dtype=np.uint8) % 10
        (folder/f'{stem}-images-idx3-ubyte.gz').write_bytes(gzip.compress(idx_bytes(x, 'uint8')))
        (folder/f'{stem}-labels-idx1-ubyte').write_bytes(idx_bytes(y, 'uint8'))
        made[split] = x, y
    return made

def test_fashion_is_read_from_its_idx_files_with_its_own_test_split(tmp_path, monkeypatch):
    made = idx_folder(tmp_path, np.random.default_rng(0))
    monkeypatch.setattr(signals, '_fashion_folder', tmp_path)
    data = load_images('fashion', splits=(.6, .2, .2))
    assert len(data['test']) == 8 and len(data['train']) + len(data['validation']) == 30
    assert data['train'].features['label'].names[:3] == ['T-shirt/top', 'trouser', 'pullover']
    assert data['train'].info.dataset_name == 'fashion'
    x, y = made['test']
    assert data['test']['label'] == y.tolist()
    np.testing.assert_allclose(array(data['test'], 'pixel_values')[:, 0], (x/255 - .2860)/.3530, atol=1e-5)

def test_missing_fashion_error_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(signals, '_fashion_folder', tmp_path/'nowhere')
    with pytest.raises(FileNotFoundError, match='dataset-fashion-mnist'): load_images('fashion')

def test_a_folder_of_idx_files_without_a_test_set_is_cut(tmp_path):
    idx_folder(tmp_path, np.random.default_rng(0), test=False)
    assert [len(part) for part in load_images(tmp_path, splits=(1/3, 1/3, 1/3)).values()] == [10, 10, 10]
    (tmp_path/'train-labels-idx1-ubyte').unlink()
    with pytest.raises(FileNotFoundError, match='has no file train-labels-idx1-ubyte'): load_images(tmp_path)

# custom images

@pytest.fixture
def pictures():
    rng = np.random.default_rng(1)
    return {split: (rng.integers(0, 256, (n, 6, 5, 3), dtype=np.uint8), np.arange(n) % 2)
            for split, n in zip(splits, (20, 6, 6))}

def test_arrays_npz_files_and_datasets_give_the_same_data(pictures, tmp_path):
    names = ['cat', 'dog']
    reference = load_images(pictures, channels_last=True, labels=names)
    np.savez(tmp_path/'pets.npz', **{f'{k}_{split}': a for split, xy in pictures.items() for k, a in zip('xy', xy)})
    features = Features(image=Image(), label=ClassLabel(names=names))
    stored = DatasetDict({split: Dataset.from_dict(dict(image=[fromarray(row) for row in x], label=y.tolist()),
                                                   features=features)
                          for split, (x, y) in pictures.items()})
    assert array(load_images(pictures, channels_last=True, normalise='none')['train'], 'pixel_values').max() == 1
    for other in (load_images(tmp_path/'pets.npz', channels_last=True, labels=names),
                  load_images(stored, channels_last=True)):
        assert fingerprint(other) == fingerprint(reference)
    first = {split: (np.moveaxis(x, -1, 1), y) for split, (x, y) in pictures.items()}
    assert fingerprint(load_images(first, labels=names)) == fingerprint(reference)

@pytest.mark.parametrize('damage', [lambda data: data[:len(data)//2], lambda data: b'no archive', lambda data: b'',
                                    lambda data: data[:200] + bytes(200) + data[400:]],
                         ids=['half', 'text', 'empty', 'zeros'])
def test_a_damaged_npz_file_is_named(pictures, tmp_path, damage):
    np.savez_compressed(tmp_path/'pets.npz', x_train=pictures['train'][0], y_train=pictures['train'][1])
    (tmp_path/'pets.npz').write_bytes(damage((tmp_path/'pets.npz').read_bytes()))
    with pytest.raises(ValueError, match='pets.npz is damaged, or is not an .npz file of numbers: '):
        load_images(tmp_path/'pets.npz', channels_last=True)

def test_an_npz_file_without_the_expected_arrays_lists_those_it_has(tmp_path):
    np.savez(tmp_path/'pets.npz', images=np.zeros((4, 2, 2)), x_test=np.zeros((4, 2, 2)))
    with pytest.raises(ValueError, match='must have arrays x_train and y_train .* got images, x_test'):
        load_images(tmp_path/'pets.npz')

def test_colour_channels_are_normalised_by_training_pixels(pictures):
    data = load_images(pictures, channels_last=True)
    x, info = pictures['train'][0]/255, signal_info(data)
    for c in range(3):
        pixels = [float(x[i, h, w, c]) for i in range(len(x)) for h in range(6) for w in range(5)]
        mean = sum(pixels)/len(pixels)
        deviation = math.sqrt(sum((p - mean)**2 for p in pixels)/len(pixels))
        assert np.squeeze(info['centre'])[c] == pytest.approx(mean, abs=1e-6)
        assert np.squeeze(info['scale'])[c] == pytest.approx(deviation, abs=1e-6)
    np.testing.assert_allclose(_restore(array(data['test'], 'pixel_values'), info),
                               np.moveaxis(pictures['test'][0]/255, -1, 1), atol=1e-6)

@pytest.mark.slow
def test_digits_use_the_published_normalisation():
    data = load_images('digits', seed=3)
    x, info = array(data['test'], 'pixel_values'), signal_info(data)
    assert info['modality'] == 'image' and info['normalise'] == 'published'
    assert x.shape == (500, 1, 28, 28)
    assert x.min() == pytest.approx(-.1307/.3081)
    assert x.max() == pytest.approx((1 - .1307)/.3081)
    raw = _restore(x, info)*255
    assert np.abs(raw - raw.round()).max() < 1e-3
    series = load_series('digits-as-series', seed=3)
    assert (array(series['test']) == x[:, 0]).all() and series['test']['label'] == data['test']['label']

@pytest.mark.parametrize('source,message', [
    ('imagenet', 'load_images: unknown data set'), (np.zeros((4, 5, 5)), 'must be a pair'),
    ((np.zeros((4, 5, 5)), [0, 1]), '4 images but 2 labels'),
    ((np.zeros((4, 5)), [0, 1, 0, 1]), 'must be an array of numbers'),
    ((np.zeros((4, 5, 5)), [0, 0, 0, 0]), 'at least two distinct'),
    ((np.full((4, 5, 5), np.nan), [0, 1, 0, 1]), 'missing .NaN. or infinite in 4 rows of train'),
    ((np.full((4, 5, 5), np.inf), [0, 1, 0, 1]), 'missing .NaN. or infinite'),
    ((np.zeros((0, 5, 5)), []), 'the train split is empty'),
    ({'train': (np.zeros((4, 5, 5)), [0, 1, 0, 1]), 'test': (np.zeros((4, 5, 6)), [0, 1, 0, 1])},
     'but those of train have'),
    ({'train': (np.zeros((4, 5, 5)), [0, 1, 0, 1]), 'test': (np.zeros((1, 5, 5)), [2])},
     'label 2 is not one of the classes'),
    ({'train': (np.zeros((4, 5, 5)), [0, 1, 0, 1]), 'extra': (np.zeros((1, 5, 5)), [1])},
     'splits must be named train, validation and test'),
    (([np.zeros((5, 5)), np.zeros((5, 6))], [0, 1]), 'have different shapes')])
def test_invalid_images_give_a_short_error(source, message):
    with pytest.raises(ValueError, match=message) as refused: load_images(source)
    assert '\n' not in str(refused.value)

@pytest.mark.parametrize('kwargs,message', [
    (dict(splits=(.9, .1)), 'three fractions'), (dict(normalise='published'), 'normalise must be'),
    (dict(labels=['a', 'a']), 'at least two distinct'),
    (dict(labels=['a']), 'at least two distinct'), (dict(splits=(.98, .01, .01)), 'too few for splits')])
def test_invalid_loader_arguments_raise(kwargs, message):
    with pytest.raises(ValueError, match=message): load_images((np.zeros((10, 5, 5)), np.arange(10) % 2), **kwargs)

def test_missing_column_raises_with_available_ones():
    data = Dataset.from_dict(dict(a=[[1., 2.]]*4, label=[0, 1, 0, 1]))
    with pytest.raises(ValueError, match="column='values': train has no such column; available: a, label"):
        load_series(data)
    assert load_series(data, column='a', splits=(.5, .25, .25))['train'].num_rows == 2

# .ts files

ts = '''# a comment: with a colon
%another
@problemName tiny
@TimeStamps false
@missing false
@univariate false
@dimensions 2
@equalLength true
@seriesLength 3
@classLabel true left right
@DATA
1,2,3:10,20,30:right

-1.5,2e-1,0:0,0,1:left
'''

def test_a_ts_file_is_read_channel_by_channel(tmp_path):
    (tmp_path/'a.ts').write_text(ts)
    values, labels, names = _read_ts(tmp_path/'a.ts')
    assert values.tolist() == [[[1, 10], [2, 20], [3, 30]], [[-1.5, 0], [.2, 0], [0, 1]]]
    assert labels == ['right', 'left'] and names == ['left', 'right']

def test_ts_files_keep_their_splits_and_class_order(tmp_path):
    for name in 'ab': (tmp_path/f'{name}.ts').write_text(ts + ts.rpartition('@DATA\n')[2]*3)
    data = load_series(dict(train=tmp_path/'a.ts', test=tmp_path/'b.ts'), splits=(.6, .2, .2), normalise='none')
    assert [len(part) for part in data.values()] == [6, 2, 8]
    assert data['train'].features['label'].names == ['left', 'right']
    assert array(data['test'])[0].tolist() == [[1, 10], [2, 20], [3, 30]] and data['test'][0]['label'] == 1
    assert load_series(tmp_path/'a.ts', splits=(.5, .25, .25))['test'].num_rows == 2

@pytest.mark.parametrize('old,new,message', [
    ('1,2,3:10', '1,2:10', 'unequal length .2 to 3 steps.'), ('1,2,3:', '1,?,3:', 'line 12 has a missing value'),
    ('1,2,3:', '1,NaN,3:', 'line 12 has a missing value'),
    ('1,2,3:', '1,x,3:', 'line 12 has a value that is not a number'), ('1,2,3:', '', 'the same number of channels'),
    ('@TimeStamps false', '@TimeStamps true', 'has time stamps'), ('true left right', 'false', 'has no classes'),
    ('@DATA', '', 'no @data line')])
def test_unsupported_ts_file_raises_with_its_name(old, new, message, tmp_path):
    path = tmp_path/'bad.ts'
    path.write_text(ts.replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as refused: _read_ts(path)
    assert str(path) in str(refused.value)

def test_missing_files_and_unknown_names_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match='does not exist'): load_series(tmp_path/'none.ts')
    with pytest.raises(ValueError,
                       match='load_series: unknown data set .*basic-motions, japanese-vowels, digits-as-series'):
        load_series('ecg')

# splits and statistics

def test_missing_splits_are_stratified_reproducible_and_disjoint():
    x, y = np.arange(200.)[:, None, None]*np.ones((1, 3, 2)), np.repeat([0, 1, 2], [120, 60, 20])
    data = load_series((x, y), normalise='none', splits=(.5, .25, .25), seed=4)
    assert [np.bincount(part['label']).tolist() for part in data.values()] == [[60, 30, 10], [30, 15, 5], [30, 15, 5]]
    seen = [row for part in data.values() for row in array(part)[:, 0, 0].tolist()]
    assert sorted(seen) == list(range(200))
    assert fingerprint(data) == fingerprint(load_series((x, y), normalise='none', splits=(.5, .25, .25), seed=4))
    assert fingerprint(data) != fingerprint(load_series((x, y), normalise='none', splits=(.5, .25, .25), seed=5))

@pytest.mark.parametrize('how', ['z-score', 'min-max'])
def test_statistics_come_from_the_training_split_only(how):
    rng = np.random.default_rng(0)
    parts = {split: (rng.normal(5, 3, (12, 4, 2)), np.arange(12) % 2) for split in splits}
    far = parts | {split: (parts[split][0]*100 + 7, parts[split][1]) for split in ('validation', 'test')}
    data, moved = load_series(parts, normalise=how), load_series(far, normalise=how)
    assert signal_info(data) == signal_info(moved) and (array(data['train']) == array(moved['train'])).all()
    x, got = parts['train'][0], array(moved['test'])
    for i, t, f in itertools.product(range(12), range(4), range(2)):
        seen = [float(x[j, s, f]) for j in range(12) for s in (range(4) if how == 'z-score' else [t])]
        mean = sum(seen)/len(seen)
        centre, scale = ((mean, math.sqrt(sum((v - mean)**2 for v in seen)/len(seen))) if how == 'z-score'
                         else (min(seen), max(seen) - min(seen)))
        assert got[i, t, f] == pytest.approx((far['test'][0][i, t, f] - centre)/scale, rel=1e-4, abs=1e-4)

def test_statistics_exclude_rows_cut_into_other_splits():
    x = np.random.default_rng(0).normal(size=(40, 3, 2))
    data = load_series((x, np.arange(40) % 2), splits=(.5, .25, .25))
    train = array(data['train']).reshape(-1, 2)
    np.testing.assert_allclose(train.mean(0), 0, atol=1e-6); np.testing.assert_allclose(train.std(0), 1, atol=1e-6)
    assert np.abs(array(data['test']).reshape(-1, 2).mean(0)).min() > 1e-3

def test_a_channel_that_never_varies_becomes_zero_and_not_nan():
    data = load_series((np.full((10, 3, 1), 4.), np.arange(10) % 2), splits=(.6, .2, .2))
    assert (array(data['train']) == 0).all()

def test_packaged_series_keep_test_split_and_channel_names():
    motions = load_series('basic-motions')
    assert [len(part) for part in motions.values()] == [36, 4, 40] and array(motions['test']).shape == (40, 100, 6)
    assert np.bincount(motions['test']['label']).tolist() == [10]*4
    assert signal_info(motions)['feature_names'] == ['acceleration x', 'acceleration y', 'acceleration z', 'rotation x',
                                                     'rotation y', 'rotation z']
    raw = _restore(array(motions['test']), signal_info(motions))
    written, *_ = _read_ts(asset('series')/'BasicMotions_TEST.ts')
    np.testing.assert_allclose(raw, written, atol=1e-4)
    assert load_series('japanese-vowels')['test'].num_rows == 370

# the benchmark: boxes

sizes = {'middle': (30, 30), 'small-middle': (14, 14), 'moving-middle': (30, 30), 'moving-small-middle': (15, 15),
         'rare-time': (6, 40),
         'moving-rare-time': (6, 40), 'rare-feature': (40, 6), 'moving-rare-feature': (40, 6),
         'positional-time': (20, 20), 'positional-feature': (20, 20)}
places = {'middle': (10, 10), 'small-middle': (18, 18), 'rare-time': (22, 5), 'rare-feature': (5, 22)}

def pair_of(layout, n=24, **kwargs):
    "Return the same random data with and without mu: values, labels and informative entries of all splits"
    few = dict(n_train=n, n_validation=4, n_test=4, normalise='none', **kwargs)
    with_mu, without = synthetic_series(layout, **few), synthetic_series(layout, mu=0., **few)
    return [(array(a) - array(b), a['label'], np.array(a['informative']))
            for a, b in zip(with_mu.values(), without.values())]

@pytest.mark.sample(6)
@pytest.mark.parametrize('layout', list(sizes))
def test_mu_is_added_only_in_the_box_of_every_layout(layout):
    starts = []
    for difference, labels, informative in pair_of(layout):
        for sample, label, inside in zip(difference, labels, informative):
            cells = {(t, f) for t in range(50) for f in range(50) if inside[t, f]}
            t0, f0 = min(t for t, _ in cells), min(f for _, f in cells)
            assert cells == {(t, f) for t in range(t0, t0 + sizes[layout][0]) for f in range(f0, f0 + sizes[layout][1])}
            sign = 1 if layout.startswith('positional') or label == 1 else -1
            for t in range(50):
                for f in range(50): assert abs(sample[t, f] - (sign if (t, f) in cells else 0)) < 1e-5
            starts.append((t0, f0, label))
    assert {label for *_, label in starts} == {0, 1}
    if layout in places: assert {s[:2] for s in starts} == {places[layout]}
    elif layout.startswith('positional'):
        fixed = 0 if layout == 'positional-time' else 1
        assert all(s[fixed] == (29, 1)[s[2]] for s in starts) and len({s[1 - fixed] for s in starts}) > 3
    else: assert len({s[0] for s in starts}) > 3 and len({s[1] for s in starts}) > 3

def test_released_code_swaps_the_axes_of_positional_layouts():
    few = dict(n_train=8, n_validation=2, n_test=2)
    data = synthetic_series('positional-time', positional='released', **few)
    inside = np.array(data['train']['informative'])
    assert inside.any(1).argmax(1).tolist() == [(29, 1)[y] for y in data['train']['label']]
    assert data['train'].features['label'].names == ['feature 29', 'feature 1']
    assert synthetic_series('positional-time', **few)['train'].features['label'].names == ['time 29', 'time 1']

@pytest.mark.parametrize('where,first', [('early', 0), ('middle', 17), ('late', 35)])
def test_vanishing_sets_differ_only_in_the_time_of_their_box(where, first):
    inside = np.array(vanishing_series(where, n_train=4, n_validation=2, n_test=2)['train']['informative'])
    assert all(inside[i, t, f] == (first <= t < first + 15 and 5 <= f < 45) for i in range(4) for t in range(50)
               for f in range(50))

def test_a_moving_box_reaches_the_last_place_and_never_leaves_the_sample():
    starts = {int(inside.any(1).argmax()) for _, _, part in pair_of(Layout(3, 3), n=200, steps=6, features=6)
              for inside in part}
    assert starts == {0, 1, 2, 3}

def test_classes_are_balanced_and_splits_independent():
    small = synthetic_series('middle', n_train=50, n_validation=10, n_test=10)
    large = synthetic_series('middle', n_train=50, n_validation=10, n_test=30)
    assert np.bincount(small['train']['label']).tolist() == [25, 25]
    assert np.bincount(large['test']['label']).tolist() == [15, 15]
    assert (array(small['train']) == array(large['train'])).all()
    assert (array(small['validation']) == array(large['validation'])).all()
    equal = [array(part) for part in synthetic_series('middle', n_train=10, n_validation=10, n_test=10,
                                                      normalise='none').values()]
    for one, other in itertools.combinations(equal, 2): assert (one != other).mean() > .99
    assert not (array(synthetic_series('middle', n_train=50, n_validation=2, n_test=2,
                                       seed=1)['train']) == array(small['train'])).all()

def test_min_max_uses_training_values_of_each_entry():
    data = synthetic_series('middle', 'ar', n_train=30, n_validation=10, n_test=10)
    raw = synthetic_series('middle', 'ar', n_train=30, n_validation=10, n_test=10, normalise='none')
    x, unscaled, got = array(raw['train']), array(raw['test']), array(data['test'])
    for t, f in itertools.product(range(0, 50, 7), range(0, 50, 7)):
        least, most = min(x[:, t, f]), max(x[:, t, f])
        for i in range(10): assert got[i, t, f] == pytest.approx((unscaled[i, t, f] - least)/(most - least), abs=1e-4)
    assert array(data['train']).min() == 0 and array(data['train']).max() == 1

@pytest.mark.parametrize('kwargs,message', [
    (dict(layout='corner'), 'layout must be one of middle'),
    (dict(process='white'), "process must be one of 'gaussian'"),
    (dict(sampling='even'), 'sampling must be'),
    (dict(positional='code'), 'positional must be'), (dict(n_test=0), 'n_test must be an integer at least 2'),
    (dict(features=30), 'along the feature axis, it covers positions 10 to 39'),
    (dict(layout='positional-feature', features=48), 'along the feature axis, it covers positions 29 to 48'),
    (dict(normalise='published'), 'normalise must be')])
def test_unknown_benchmark_raises(kwargs, message):
    with pytest.raises(ValueError, match=message):
        salviz.synthetic_series(**{'n_train': 4, 'n_validation': 2, 'n_test': 2, **kwargs})
    with pytest.raises(ValueError, match="where must be 'early', 'middle' or 'late'"): salviz.vanishing_series('soon')

# the benchmark: processes

def even(n, steps): return np.broadcast_to(np.linspace(0, 20, steps), (n, steps))

def test_irregular_times_are_a_jittered_half_of_an_even_grid():
    got = _sample_times(np.random.default_rng(3), 5, 10)
    rng = np.random.default_rng(3)
    keys, shakes = rng.random((5, 20)), rng.normal(0, 1, (5, 10))
    for i in range(5):
        kept = sorted(range(20), key=lambda j: keys[i, j])[:10]
        times = sorted(j*20/19 + shake for j, shake in zip(kept, shakes[i].tolist()))  # 20/(2 steps) = 1
        np.testing.assert_allclose(got[i], times)
    assert (_sample_times(np.random.default_rng(0), 2, 5, 'regular') == [0, 5, 10, 15, 20]).all()

def test_harmonic_and_pseudo_periodic_have_frequency_two():
    t = _sample_times(np.random.default_rng(0), 3000, 6)
    x = _processes['harmonic'](np.random.default_rng(0), t[:2], 3)
    for i, k, f in itertools.product(range(2), range(6), range(3)):
        assert x[i, k, f] == pytest.approx(math.sin(4*math.pi*t[i, k]))
    times = np.broadcast_to([.1, 1.05, 3.2], (3000, 3))
    x = _processes['pseudo-periodic'](np.random.default_rng(0), times, 4)
    # E sin(2 pi f s) = sin(4 pi s) exp(-(2 pi s .01)^2/2) for f ~ N(2, .01); E a = 1, E a^2 = 1.25
    for k, s in enumerate((.1, 1.05, 3.2)):
        assert x[:, k].mean() == pytest.approx(math.sin(4*math.pi*s)*math.exp(-(2*math.pi*s*.01)**2/2), abs=.02)
        squares = (1 - math.cos(8*math.pi*s)*math.exp(-(4*math.pi*s*.01)**2/2))/2
        assert (x[:, k]**2).mean() == pytest.approx(1.25*squares, abs=.03)
    assert abs(np.corrcoef(x[:, 1, 0], x[:, 1, 1])[0, 1]) < .06  # each channel and instant draws its own amplitude

def test_gaussian_process_has_matern_covariance():
    t = np.broadcast_to([0., .2, .9, 2.5], (2, 4))
    x = np.concatenate([_processes['gaussian-process'](np.random.default_rng(s), t, 6000) for s in range(2)], -1)
    for i, j in itertools.product(range(4), range(4)):
        d = math.sqrt(3)*abs(t[0, i] - t[0, j])  # 2^(1-nu)/Gamma(nu) (sqrt(2 nu) d)^nu K_nu(sqrt(2 nu) d) with nu = 3/2
        expected = 1. if d == 0 else 2**-.5/gamma(1.5)*d**1.5*kv(1.5, d)
        assert np.mean(x[0, i]*x[0, j]) == pytest.approx(expected, abs=.04)
    assert abs(np.mean(x[0, 0]*x[1, 0])) < .04

def test_ar_and_car_follow_their_recursions_with_normal_shocks():
    t = _sample_times(np.random.default_rng(0), 300, 30)
    x = _processes['ar'](np.random.default_rng(1), t, 4)
    shocks = [[(x[i, k, f] - .9*(x[i, k-1, f] if k else 0))/.5 for k in range(30)] for i in range(300)
              for f in range(4)]
    x = _processes['car'](np.random.default_rng(1), t, 4)
    assert (x[:, 0] == .01).all()
    others = []
    for i, f in itertools.product(range(300), range(4)):
        decays = [.9**(t[i, k] - t[i, k-1]) for k in range(1, 30)]
        others.append([(x[i, k, f] - a*x[i, k-1, f])/(.01*math.sqrt(1 - a)) for k, a in zip(range(1, 30), decays)])
    for z in (np.array(shocks), np.array(others)):
        assert abs(z.mean()) < .02 and abs(z.std() - 1) < .02 and abs((z**4).mean() - 3) < .15
        assert abs((z[:, 1:]*z[:, :-1]).mean()) < .02

def test_narma_follows_its_recursion_step_by_step():
    got = _processes['narma'](np.random.default_rng(5), even(3, 15), 2)
    u = np.random.default_rng(5).uniform(0, .5, (3, 25, 2))
    for i, f in itertools.product(range(3), range(2)):
        y, inputs = [0.]*10, u[i, :, f].tolist()
        for k in range(9, 24):  # y[k+1] from y[k], y[k-1], …, y[k-9]
            y.append(.3*y[k] + .05*y[k]*sum(y[k-j] for j in range(10)) + 1.5*inputs[k-9]*inputs[k] + .1)
        np.testing.assert_allclose(got[i, :, f], y[10:], rtol=1e-12)
    assert not np.allclose(got[0, :, 0], got[0, :, 1])

@pytest.mark.parametrize('process', list(_processes))
def test_noise_is_added_to_all_but_gaussian(process):
    few = dict(n_train=40, n_validation=2, n_test=2, steps=12, features=12, normalise='none')
    noisy, clean = (array(synthetic_series(Layout(3, 3), process, noise=noise, **few)['train']) for noise in (.3, 0.))
    if process == 'gaussian': assert (noisy == clean).all() and abs(noisy.std() - 1) < .05
    else: assert abs((noisy - clean).std() - .3) < .02 and abs((noisy - clean).mean()) < .02

def test_global_generators_are_not_used():
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    synthetic_series('moving-middle', 'narma', n_train=4, n_validation=2, n_test=2); load_series('basic-motions')
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all()
    assert torch.equal(torch.get_rng_state(), states[2])

# batches

@pytest.fixture(scope='module')
def rare(): return synthetic_series('rare-time', n_train=20, n_validation=6, n_test=6)

def test_batches_match_rows_and_numbers_are_unique(rare):
    encoded = encode_signals(rare)
    assert [list(part['example_id']) for part in encoded.values()] == [list(range(20)), list(range(20, 26)),
                                                                       list(range(26, 32))]
    batch = SignalCollator()([encoded['test'][i] for i in (3, 1)])
    assert batch['example_id'].tolist() == [29, 27]
    assert batch['labels'].tolist() == [rare['test'][3]['label'], rare['test'][1]['label']]
    for name, kind in dict(values=torch.float32, informative=torch.bool, labels=torch.int64,
                           example_id=torch.int64).items():
        assert batch[name].dtype == kind
    assert batch['values'][0].tolist() == np.float32(rare['test'][3]['values']).tolist()
    assert batch['informative'][1].tolist() == rare['test'][1]['informative']
    assert encoded['train'].features['labels'].names == ['negative', 'positive']
    assert encoded['train'].info.dataset_name == 'rare-time-gaussian'

def test_subsets_and_single_splits_keep_their_normalisation(rare):
    small = subset(rare, 6, validation_size=2)
    encoded = encode_signals(small)
    assert signal_info(encoded) == signal_info(small['test']) == signal_info(rare)
    assert encoded['test'][0]['example_id'] == 8
    assert len(encode_signals(rare['test'])) == 6
    assert fingerprint(small) == fingerprint(subset(rare, 6,
                                                    validation_size=2)) != fingerprint(
        subset(rare, 6, seed=1, validation_size=2))

def test_unlabelled_rows_are_accepted_and_foreign_data_raises(rare):
    unlabelled = encode_signals(rare['test'].remove_columns(['label', 'informative']))
    assert set(SignalCollator()([unlabelled[0]])) == {'values', 'example_id'}
    with pytest.raises(ValueError, match='no column pixel_values or values, only text'):
        encode_signals(Dataset.from_dict(dict(text=['a'])))
    with pytest.raises(ValueError, match='has no description of signals'):
        signal_info(Dataset.from_dict(dict(text=['a'])))

def test_fingerprint_of_signals_covers_every_array_and_label(rare):
    def changed(name, value):
        rows = {k: np.array(rare['test'].with_format('numpy')[:][k]) for k in rare['test'].column_names}
        rows[name].flat[-1] = value
        return DatasetDict({**rare, 'test': Dataset.from_dict(rows, rare['test'].features)})
    last = rare['test'][len(rare['test']) - 1]
    assert fingerprint(rare) == fingerprint(changed('label',
                                                    last['label'])) == fingerprint(
        synthetic_series('rare-time', n_train=20, n_validation=6, n_test=6))
    others = [changed('label', 1 - last['label']), changed('values', .123),
              changed('informative', not last['informative'][-1][-1])]
    assert len({fingerprint(rare), *map(fingerprint, others)}) == 4


@pytest.mark.parametrize('label', [None, float('nan'), pd.NA])
def test_missing_image_label_raises(label):
    x = np.random.default_rng(0).random((20, 4, 4))
    with pytest.raises(ValueError, match='the label is missing in 5 rows of train .first: row 3'):
        load_images((x, ['cat', 'dog', 'cat', label]*5))
    with pytest.raises(ValueError, match='the label is missing in 1 row of test .first: row 1'):
        load_images(dict(train=(x, ['cat', 'dog']*10), test=(x[:2], ['cat', label])))
