"The recorded arrays of a run have named axes, padding and coordinates, with and without xarray."
import sys
import types

import numpy as np
import pytest

from salviz.core.runs import Run
from salviz.core.snapshots import Snapshot
from salviz.figures.trackers import _run_numbers
from salviz.views.labelled_arrays import labelled_arrays


@pytest.fixture
def ragged(tmp_path):
    "Create a run of two examples of 3 and 5 tokens, whose second step records one of two layers; one has saliency"
    run = Run.create(tmp_path/'run', dict(method=dict(name='FineTuning', args={})))
    rng = np.random.default_rng(0)
    for step, layers in ((0, [0, 3]), (10, [3])):
        for probe, n in enumerate((3, 5)):
            arrays = dict(attention=rng.random((len(layers), 2, n, n)).astype(np.float16), probabilities=np.ones(2)/2)
            if not probe: arrays |= dict(saliency=rng.random(n), custom=rng.random((7,)), prediction=np.array([.5]))
            run.save(Snapshot(step=step, epoch=step/10, probe=probe, tokens=list('abcde'[:n]), texts=('abcde'[:n],),
                              arrays=arrays, layers=dict(attention=layers), classes=['no', 'yes'],
                              losses=dict(task=.5 + probe)))
    return run


def test_every_value_is_at_its_place_and_the_rest_is_nan(ragged):
    parts = labelled_arrays(ragged)
    axes, attention = parts['data_vars']['attention']
    assert axes == ('step', 'probe', 'layer', 'head', 'query', 'key') and attention.shape == (2, 2, 2, 2, 5, 5)
    expected = np.full(attention.shape, np.nan, np.float32)
    for i, step in enumerate(ragged.steps):
        for probe in ragged.probes:
            s = ragged.snapshot(step, probe)
            for layer in s.layers['attention']:
                n = len(s.tokens)
                expected[i, probe, [0, 3].index(layer), :, :n, :n] = s.at('attention', layer)
    assert np.array_equal(attention, expected, equal_nan=True)
    assert parts['coords']['layer'] == ('layer', [0, 3]) and parts['coords']['class'] == ('class', ['no', 'yes'])
    labels = parts['coords']['token_label'][1]
    assert labels.tolist() == [['a', 'b', 'c', '', ''], ['a', 'b', 'c', 'd', 'e']]
    assert parts['data_vars']['loss_task'][1].tolist() == [[.5, 1.5]]*2
    assert parts['data_vars']['custom'][0] == ('step', 'probe', 'custom axis 0')
    axes, prediction = parts['data_vars']['prediction']
    assert axes == ('step', 'probe') and np.isnan(prediction[:, 1]).all() and (prediction[:, 0] == .5).all()


def test_saliency_of_one_example_has_the_length_of_the_longest(ragged):
    axes, saliency = labelled_arrays(ragged, arrays=['saliency', 'attention'])['data_vars']['saliency']
    assert axes == ('step', 'probe', 'token') and np.isnan(saliency[:, 1]).all()
    assert np.allclose(saliency[1, 0, :3], ragged.snapshot(10).arrays['saliency'])


def test_one_probe_example_has_no_axis_probe_and_no_padding(ragged):
    parts = labelled_arrays(ragged, probe=0, steps=[-1], layers=[3], arrays='attention')
    axes, attention = parts['data_vars']['attention']
    assert axes == ('step', 'layer', 'head', 'query', 'key') and not np.isnan(attention).any()
    assert parts['coords']['query_label'][0] == ('query',) and parts['coords']['step'] == (('step',), [10])
    assert not [name for name in parts['data_vars'] if name not in ('attention', 'loss_task')]


def test_a_wrong_selection_names_what_was_recorded(ragged):
    with pytest.raises(ValueError, match=r"has the arrays attention, probabilities, .* got arrays='maps'"):
        labelled_arrays(ragged, arrays='maps')
    with pytest.raises(ValueError, match=r'with the layers 0, 3; got arrays=None, layers=\[1\]'):
        labelled_arrays(ragged, layers=[1])
    with pytest.raises(ValueError, match='to_xarray: probe must be an integer'): ragged.to_xarray(probe='first')


def test_xarray_is_optional(ragged, monkeypatch):
    monkeypatch.setitem(sys.modules, 'xarray', None)
    with pytest.raises(ImportError, match='to_xarray needs the package xarray, .*: pip install xarray'):
        ragged.to_xarray()
    monkeypatch.setitem(sys.modules, 'xarray', types.SimpleNamespace(Dataset=lambda **parts: parts))
    assert set(ragged.to_xarray(0)) == {'data_vars', 'coords', 'attrs'}


@pytest.mark.slow
def test_xarray_reads_the_arrays(ragged):
    maps = ragged.to_xarray()
    one = maps.attention.sel(step=10, probe=1, layer=3, head=1).values
    assert np.array_equal(one, ragged.snapshot(10, 1).at('attention', 3)[1].astype(np.float32))
    assert maps.sizes['token'] == 5 and float(maps.loss_task.mean()) == 1.


def test_a_run_has_a_frame_by_step_layer_and_head(ragged):
    frame = ragged.head_frame()
    assert list(frame.columns[:3]) == ['step', 'layer', 'head'] and len(frame) == 2*2 + 2
    assert frame[frame.step == 10].layer.tolist() == [3, 3]


def test_head_statistics_of_training_batches_are_variables_of_their_steps(ragged):
    numbers = dict.fromkeys(['relative_entropy', 'largest', 'to_first', 'to_special', 'distance'], [[.5, .5]])
    ragged.log(dict(kind='heads', examples='batches', step=10, layers=[3], texts=4, long_texts=0, sinks=None,
                    one_word=None, entropy=[[.25, None]], **numbers))
    axes, entropy = labelled_arrays(ragged)['data_vars']['batch_entropy']
    assert axes == ('step', 'layer', 'head') and entropy.shape == (2, 2, 2)
    assert np.array_equal(entropy[1], [[np.nan, np.nan], [.25, np.nan]], equal_nan=True) and np.isnan(entropy[0]).all()
    assert 'batch_entropy' not in labelled_arrays(ragged, arrays=['attention'])['data_vars']
    frame = ragged.head_frame('batches')
    assert frame.entropy.tolist()[0] == .25 and list(frame.mark) == ['', ''] and set(frame.layer) == {3}
    assert [name for name in _run_numbers(ragged)[10] if name.startswith('batch_heads/entropy')] == [
        'batch_heads/entropy/3.0']
    with pytest.raises(ValueError, match='examples'): ragged.head_frame('train')
