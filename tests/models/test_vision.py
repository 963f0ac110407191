"Vision transformers: validation of images, the grid of patches, and attributions of pixels."
import datasets
import numpy as np
import pytest
import torch
from transformers import (MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, AutoConfig, Data2VecVisionConfig,
                          Data2VecVisionForImageClassification, ResNetConfig, ResNetForImageClassification)

from helpers import alike
from salviz.attribution.attention import attention_attribution
from salviz.attribution.explanations import explain
from salviz.core.maths import rollout
from salviz.methods import ADDrop
from salviz.models.attention import observe
from salviz.models.loading import load_model_for, pooled_rows
from salviz.models.patches import check_images, patch_grid
from salviz.models.tasks import task_of
from salviz.training.trainer import load_model, train

pytestmark = pytest.mark.numeric
quick = dict(epochs=2, batch_size=8, learning_rate=1e-3, progress=False, probes=2, snapshots=2)
kinds = dict(vit=1, deit=2, beit=1, dinov2=1, vit_msn=1, dinov2_with_registers=5, ijepa=0)

def vision(kind='vit', **more):
    "Return a tiny image classifier of two layers, whose patches are 4 by 4 pixels"
    given = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8,
                 patch_size=4, num_channels=3, num_labels=2) | more
    config = AutoConfig.for_model(kind, **given)
    classes = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING[type(config)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return (classes[0] if isinstance(classes, tuple) else classes)(config).eval()

def pictures(shape=(3, 8, 8)):
    "Return two classes of random images, one of which is brighter"
    g = np.random.default_rng(0)
    def part(n):
        y = np.arange(n) % 2
        x = g.normal(size=(n, *shape)).astype(np.float32) + y[:, None, None, None]
        features = datasets.Features(pixel_values=datasets.Array3D(shape, 'float32'),
                                     label=datasets.ClassLabel(names=['dark', 'bright']))
        return datasets.Dataset.from_dict(dict(pixel_values=list(x), label=y.tolist()), features=features)
    return datasets.DatasetDict(train=part(16), validation=part(8), test=part(8))

def batch_of(n=3, shape=(3, 8, 8)):
    return dict(pixel_values=torch.from_numpy(np.random.default_rng(1).normal(size=(n, *shape)).astype(np.float32)))

@pytest.mark.parametrize('kind, first', kinds.items())
def test_the_grid_matches_the_tokens_of_a_pass(kind, first):
    model = vision(kind, image_size=(8, 8))
    assert tuple(patch_grid(model)) == (2, 2, first) and task_of(model) == 'image_classification'
    with torch.no_grad(), observe(model) as maps: model(**batch_of())
    assert maps[0].shape[-1] == first + 4
    check_images(model, (3, 8, 8))

def test_pooled_rows_exist_for_heads_that_read_only_cls():
    for kind in ('vit', 'deit', 'vit_msn'): assert pooled_rows(vision(kind), batch_of()).tolist() == [0, 0, 0]
    for kind in ('beit', 'dinov2', 'ijepa'):
        with pytest.raises(ValueError, match='is not known to read only'):
            pooled_rows(vision(kind), batch_of())

@pytest.mark.parametrize('make, said', [
    (lambda: vision(image_size=16),
     'reads images of 3 × 16 × 16 .channels, height, width., but the data contains 3 × 8 × 8'),
    (lambda: vision(num_channels=1), 'the data contains 3 × 8 × 8; resize the images'),
    (lambda: vision(num_labels=3), "the data has 2 classes .dark, bright. but the model's head has 3"),
    (lambda: vision(num_labels=1), 'ViTForImageClassification has num_labels=1 and problem_type'),
    (lambda: ResNetForImageClassification(ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1])),
     'ResNetModel cannot be observed: none of its layers is an attention layer'),
    (lambda: Data2VecVisionForImageClassification(Data2VecVisionConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_labels=2)), 'Data2VecVisionModel cannot be observed')])
def test_mismatched_images_are_rejected_before_training(make, said, tmp_path):
    with pytest.raises(ValueError, match=said): train(make(), None, pictures(), run_dir=tmp_path/'run', **quick)
    assert not (tmp_path/'run').exists()

@pytest.mark.sample(1)
@pytest.mark.parametrize('options', [dict(attribution='random'), dict(attribution='random', random_form='positions'),
                                     dict(attribution='integrated_gradients', steps=3), dict(protect_special=True),
                                     dict(attribution='attention', region='low'), dict(target='gold')], ids=str)
def test_ad_drop_in_all_its_forms_drops_positions_between_patches(options, tmp_path):
    run = train(vision('deit'), None, pictures(), ADDrop.from_args(dict(p=.5, q=.6, cross_tuning=False, **options)),
                run_dir=tmp_path/'run', **quick)
    s = run.snapshot()
    dropped, region = s.arrays['discarded'], s.arrays['discard_candidates']
    assert dropped.shape == (2, 2, 6, 6) and dropped.any() and not (dropped & ~region).any()
    assert not dropped.all(-1).any() and s.info['patches'] == dict(rows=2, columns=2, first=2)
    assert not options.get('protect_special') or not region[..., :2].any()
    if options.get('random_form') != 'positions': # in the last layer only [CLS] is read: all other rows are tied at 0
        assert (region[0].sum(-1) == (2 if options.get('protect_special') else 3)).all()

@pytest.mark.slow
def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path):
    class Breaks(ADDrop):
        at = None
        def plan(self, model, batch, progress):
            if progress.step == self.at and model.training: self.at = None; raise KeyboardInterrupt
            return super().plan(model, batch, progress)
    ends = []
    for out, at in (('whole', None), ('run', 3)):
        method, model = Breaks(p=.5, q=.6, cross_tuning=False), vision()
        method.at = at
        if at:
            with pytest.raises(KeyboardInterrupt):
                train(model, None, pictures(), method, run_dir=tmp_path/out, **quick)
            model = vision()
        run = train(model, None, pictures(), method, run_dir=tmp_path/out, resume=bool(at), **quick)
        ends.append((model.state_dict(), [r['loss'] for r in run.train_rows]))
        again, tokenizer = load_model(run)
        assert tokenizer is None and type(again) is type(model)
    assert ends[0][1] == ends[1][1] and all(torch.equal(v, ends[1][0][k]) for k, v in ends[0][0].items())

def test_an_image_model_is_loaded_from_its_folder_without_a_tokenizer(tmp_path):
    for kind in ('vit', 'deit'):
        vision(kind).save_pretrained(tmp_path/kind)
        model, tokenizer = load_model_for('image_classification', tmp_path/kind)
        assert tokenizer is None and not model.has_new_head
        assert all(torch.equal(v, model.state_dict()[k]) for k, v in vision(kind).state_dict().items())
        new, _ = load_model_for('image_classification', tmp_path/kind, labels=['a', 'b', 'c'], seed=1,
                                ignore_mismatched_sizes=True)
        assert new.has_new_head and new.config.id2label[2] == 'c'

def on_pixels(per_token, first):
    "Spread numbers of tokens over 8 by 8 pixels, by loops"
    out = np.zeros((8, 8))
    for i in range(8):
        for j in range(8): out[i, j] = per_token[first + 2*(i // 4) + j // 4] / 16
    return out

@pytest.mark.parametrize('kind', ['vit', 'deit', 'beit', 'ijepa'])
def test_attention_and_rollout_of_an_image_are_one_number_for_each_patch(kind):
    "Compare with loops; for heads that do not read only [CLS], with the mean row"
    model, batch, first = vision(kind).double(), {k: v.double() for k, v in batch_of().items()}, kinds[kind]
    with torch.no_grad(), observe(model) as maps: model(**batch)
    A = maps.stacked().numpy()
    reads_cls = kind in ('vit', 'deit')
    B, _ = attention_attribution(model, batch)
    for i in range(3):
        row = lambda M: M[0] if reads_cls else M.mean(0)
        wanted = dict(attention=row(A[i, -1].mean(0)), rollout=row(rollout(A[i])),
                      attention_gradient=B[1][i].sum((0, 1)).numpy())
        for method, per_token in wanted.items():
            values = explain(model, batch, method).values[i]
            # some models compute the softmax in float32
            assert alike(values, torch.from_numpy(on_pixels(per_token, first)), dtype=torch.float32), method
