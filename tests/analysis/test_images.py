"""Vision transformers on images: displayed values equal those that each model family computes, and labels are matched
to the classes by name."""
import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset
from transformers import (BeitConfig, BeitForImageClassification, DeiTConfig, DeiTForImageClassification,
                          Dinov2Config, Dinov2Model, Dinov2WithRegistersConfig,
                          Dinov2WithRegistersForImageClassification, ViTConfig, ViTForImageClassification)

from salviz.core.snapshots import Snapshot
from salviz.explorer.payload import pack_frame, split_frame
from salviz.analysis.model_maps import _explain_images

size = dict(image_size=(12, 16), patch_size=4, num_channels=3, hidden_size=8, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=12, num_labels=3, initializer_range=.4)
families = dict(vit=(ViTForImageClassification, ViTConfig, {}, 1), deit=(DeiTForImageClassification, DeiTConfig, {}, 2),
                beit=(BeitForImageClassification, BeitConfig, {}, 1),
                registers=(Dinov2WithRegistersForImageClassification, Dinov2WithRegistersConfig,
                           dict(num_register_tokens=3, image_size=12), 4),
                bare=(Dinov2Model, Dinov2Config, dict(image_size=12), 1)) # only square images in transformers

def made(family, **more):
    kind, config, own, _ = families[family]
    torch.manual_seed(0)
    return kind(config(**size | own | more)).eval()

@pytest.fixture(scope='module')
def pixels(): return np.random.default_rng(0).normal(size=(2, 3, 12, 16)).astype(np.float32)

@pytest.mark.parametrize('family', families)
def test_attention_of_each_family_equals_transformers_and_patches_are_counted(family, pixels):
    model, square = made(family), 'image_size' in families[family][2]
    if square: pixels = np.ascontiguousarray(pixels[..., :12])
    seen = _explain_images(model, pixels, saliency=None, attribution=False)
    model.set_attn_implementation('eager')
    with torch.no_grad(): maps = model(pixel_values=torch.tensor(pixels), output_attentions=True).attentions
    for i, s in enumerate(seen):
        assert np.allclose(s.arrays['attention'], torch.stack(maps)[:, i], atol=1e-5)
        assert s.info['patches'] == dict(rows=3, columns=3 if square else 4, first=families[family][-1])
        assert (s.arrays['input'] == pixels[i]).all() and ('probabilities' in s.arrays) == (family != 'bare')
        assert bool(s.info['explains']) == (family != 'bare') and s.info.get('pooled_row') == (
            0 if family in ('vit', 'deit') else None)

def test_saliency_is_integrated_gradients_of_the_explained_class_from_zeros(pixels):
    model, wanted = made('deit').double(), np.zeros((12, 16))
    s, = _explain_images(model, pixels[:1], target=2, steps=5, attribution=False)
    x = torch.tensor(pixels[:1], dtype=torch.float64)
    for k in range(5):
        at = ((k + .5)/5*x).requires_grad_()
        model(pixel_values=at).logits[0, 2].backward()
        wanted += (at.grad*x)[0].mean(0).numpy()/5
    assert np.allclose(s.arrays['saliency_map'], wanted, atol=1e-6, rtol=1e-5)

def test_a_model_in_half_precision_is_explained_in_half_precision(pixels):
    s, = _explain_images(made('vit').bfloat16(), torch.tensor(pixels[0]).bfloat16(), steps=2)
    assert np.allclose(s.arrays['attention'].sum(-1), 1, atol=.02) and np.isfinite(s.arrays['saliency_map']).all()

@pytest.mark.parametrize('named, label, classes, left_out', [
    ({}, 1, ['cat', 'dog', 'ship'], False),
    (dict(id2label={0: 'ship', 1: 'cat', 2: 'dog'}), 2, ['ship', 'cat', 'dog'], False),
    (dict(id2label={0: 'a', 1: 'b', 2: 'c'}), None, ['a', 'b', 'c'], True)])
def test_labels_of_the_data_are_matched_by_the_models_class_names(named, label, classes, left_out, pixels):
    data = Dataset.from_dict(dict(pixel_values=pixels, label=[1, 0])).cast_column(
        'label', ClassLabel(names=['cat', 'dog', 'ship']))
    for rows in (data, data.select([0])):
        s = _explain_images(made('vit', **named), rows, saliency=None, attribution=False)[0]
        assert (s.label, s.classes) == (label, classes) and any('not shown' in n for n in s.info['notes']) == left_out

def test_a_new_head_gets_a_note(pixels):
    model = made('vit')
    model.has_new_head = True
    assert any('new and untrained' in note for note in _explain_images(model, pixels[0], steps=1)[0].info['notes'])

def test_maps_of_196_patches_are_sent_in_full_and_those_of_a_long_text_are_not():
    attention = np.full((1, 2, 197, 197), 1/197, np.float32)
    grid = dict(modality='image', patches=dict(rows=14, columns=14, first=1))
    image = Snapshot(0, 0., 0, dict(attention=attention, input=np.ones((1, 14, 14))), info=grid)
    text = Snapshot(0, 0., 0, dict(attention=attention), tokens=['a']*197)
    shapes = [split_frame(pack_frame(s))[0]['arrays']['attention']['shape'] for s in (image, text)]
    assert shapes[0][-2:] == [197, 197] and shapes[1][-1] < 128

@pytest.mark.parametrize('missing', [-1, None])
def test_an_image_without_a_label_does_not_get_the_last_class(missing, pixels):
    model, names = made('vit', id2label=dict(enumerate('abc')), label2id=dict(a=0, b=1, c=2)), ['b', 'c', 'a']
    rows = Dataset.from_dict(dict(pixel_values=list(pixels), label=[2, missing]))
    named = rows.cast_column('label', ClassLabel(names=names))
    for data, wanted in ((rows, 2), (named, 0), (rows[:], 2)):
        seen = _explain_images(model, data, saliency=None, attribution=False)
        assert [s.label for s in seen] == [wanted, None] and not seen[0].info['notes']
