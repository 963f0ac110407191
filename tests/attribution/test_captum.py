"Attributions of Captum by name, against Captum called directly"
import copy
import inspect
from types import SimpleNamespace

import captum.attr
import numpy as np
import pytest
import torch
from captum._utils.models.linear_model import SkLearnRidge
from torch import nn
from transformers import (BertConfig, BertForSequenceClassification, BertForTokenClassification, ViTConfig,
                          ViTForImageClassification)

from helpers import word_tokenizer
from test_explanations import alone, next_is_nine, seeded, sentences, signal, tiny
import salviz
from salviz import (CaptumAttribution, RationaleGuided, SaliencyGuided, SalLM, explain, explain_data, explain_generated,
                    explore, faithfulness_table, list_attributions)
from salviz.attribution.captum_methods import _supported, _unsupported
from salviz.attribution.registry import attribution_name, attribution_named, is_attribution, methods_by_name
from salviz.models.corruption import small_model
from salviz.models.loading import forked_random

bert = tiny('bert')
few = dict(n_steps=4, n_samples=4, nt_samples=4)


class Logit(nn.Module):
    "The logit of class 1 for the word embeddings of one text, or for an image"
    def __init__(self, model, name='inputs_embeds'):
        super().__init__()
        self.model, self.name = model, name
    def forward(self, x): return self.model(**{self.name: x}).logits[:, 1]


def options_of(name):
    chosen = CaptumAttribution(name)
    return {k: v for k, v in few.items() if k in chosen.options}


def embedded(model, batch, i):
    "Return the embeddings of the tokens of text `i`, and of equally many padding tokens"
    ids = alone(batch, i)['input_ids']
    embed = model.get_input_embeddings()
    return embed(ids).detach(), embed(torch.zeros_like(ids)).detach()


# every class of Captum

def test_every_class_of_captum_is_supported_or_rejected_with_a_reason():
    classes = {name for name, x in vars(captum.attr).items() if inspect.isclass(x)}
    assert classes == {*_supported} | {*_unsupported} and not {*_supported} & {*_unsupported}
    for name, why in _unsupported.items():
        with pytest.raises(ValueError, match=f'captum.{name} ') as e: CaptumAttribution(name)
        assert why in str(e.value)


def test_the_list_has_every_attribution_and_its_options():
    table = list_attributions()
    assert {f'captum.{name}' for name in _supported} < {*table.index} and 'integrated_gradients' in table.index
    assert (table['passes'] != '').all() and (table['tasks'] != '').all()
    assert {*list_attributions(supported=False).index} == {f'captum.{name}' for name in _unsupported}
    assert table['differentiable']['input_x_gradient'] and not table['differentiable']['captum.InputXGradient']


# equal to Captum

direct_at_the_input = dict(
    Saliency=lambda a, x, pad: a.attribute(x).sum(-1), InputXGradient=lambda a, x, pad: a.attribute(x).sum(-1),
    Deconvolution=lambda a, x, pad: a.attribute(x).sum(-1), GuidedBackprop=lambda a, x, pad: a.attribute(x).sum(-1),
    IntegratedGradients=lambda a, x, pad: a.attribute(x, pad, n_steps=4).sum(-1),
    DeepLift=lambda a, x, pad: a.attribute(x, pad).sum(-1),
    GradientShap=lambda a, x, pad: a.attribute(x, torch.cat([pad, pad * 0 + 1]), n_samples=4).sum(-1),
    DeepLiftShap=lambda a, x, pad: a.attribute(x, torch.cat([pad, pad * 0 + 1])).sum(-1))

direct_perturbations = dict(
    FeatureAblation=lambda a, x, pad, mask: a.attribute(x, pad, feature_mask=mask),
    Occlusion=lambda a, x, pad, mask: a.attribute(x, (1, x.shape[2]), (1, x.shape[2]), pad),
    ShapleyValueSampling=lambda a, x, pad, mask: a.attribute(x, pad, feature_mask=mask, n_samples=4),
    ShapleyValues=lambda a, x, pad, mask: a.attribute(x, pad, feature_mask=mask),
    Lime=lambda a, x, pad, mask: a.attribute(x, pad, feature_mask=mask, n_samples=4),
    KernelShap=lambda a, x, pad, mask: a.attribute(x, pad, feature_mask=mask, n_samples=4))


def compare(name, method, i, expected, **options):
    "Explain the whole padded batch, and compare text `i` with Captum's result for it alone"
    batch = sentences('bert')
    e = explain(bert, batch, method, 1, seed=5, **options)
    assert e.method.startswith(f'captum.{name}') and (e.values[~e.real] == 0).all()
    torch.testing.assert_close(torch.as_tensor(e.examples()[i]).double(), expected[0].detach().double(), rtol=1e-6,
                               atol=1e-6)


@pytest.mark.parametrize('name', direct_at_the_input)
def test_attributions_at_the_input_equal_captum(name, monkeypatch):
    options = options_of(name)
    if 'baselines' in CaptumAttribution(name).options:
        ones = lambda reading, baselines, backgrounds, real=None: torch.cat(
            [bert.get_input_embeddings()(torch.zeros(1, int(real.sum()), dtype=torch.int64)).detach(),
             torch.ones(1, int(real.sum()), 16).double()])
        monkeypatch.setattr('salviz.attribution.captum_methods._distribution', ones)
    for i in 0, 1:
        x, pad = embedded(bert, sentences('bert'), i)
        with forked_random(5):
            attribution = getattr(captum.attr, name)(Logit(copy.deepcopy(bert)))
            expected = direct_at_the_input[name](attribution, x.requires_grad_(), pad)
        compare(name, f'captum.{name}', i, expected, **options)


@pytest.mark.parametrize('name', direct_perturbations)
def test_perturbations_equal_captum_with_a_feature_for_each_token(name):
    i = 1
    x, pad = embedded(bert, sentences('bert'), i)
    mask = torch.arange(x.shape[1])[None, :, None]
    with forked_random(5), torch.no_grad():
        values = direct_perturbations[name](getattr(captum.attr, name)(Logit(bert)), x, pad, mask)
    if name != 'ShapleyValues': return compare(name, f'captum.{name}', i, values[..., 0], **options_of(name))
    e = explain(bert, alone(sentences('bert'), i), 'captum.ShapleyValues', 1)
    torch.testing.assert_close(e.values.double(), values[..., 0].double(), rtol=1e-6, atol=1e-6)
    assert e.completeness_error.max() < 1e-5


layer = 'bert.encoder.layer.0'
direct_layers = dict(
    LayerGradientXActivation=lambda a, x, pad: a.attribute(x),
    LayerIntegratedGradients=lambda a, x, pad: a.attribute(x, pad, n_steps=4),
    LayerConductance=lambda a, x, pad: a.attribute(x, pad, n_steps=4),
    InternalInfluence=lambda a, x, pad: a.attribute(x, pad, n_steps=4),
    LayerDeepLift=lambda a, x, pad: a.attribute(x, pad),
    LayerDeepLiftShap=lambda a, x, pad: a.attribute(x, torch.cat([pad, pad * 0 + 1])),
    LayerGradientShap=lambda a, x, pad: a.attribute(x, torch.cat([pad, pad * 0 + 1]), n_samples=4),
    LayerFeatureAblation=lambda a, x, pad: a.attribute(x, layer_mask=torch.arange(x.shape[1])[None, :, None]))


@pytest.mark.parametrize('name', direct_layers)
def test_attributions_of_a_named_layer_equal_captum(name, monkeypatch):
    ones = lambda reading, baselines, backgrounds, real=None: torch.cat(
        [bert.get_input_embeddings()(torch.zeros(1, int(real.sum()), dtype=torch.int64)).detach(),
         torch.ones(1, int(real.sum()), 16).double()])
    monkeypatch.setattr('salviz.attribution.captum_methods._distribution', ones)
    model = copy.deepcopy(bert)
    x, pad = embedded(bert, sentences('bert'), 1)
    with forked_random(5):
        attribution = getattr(captum.attr, name)(Logit(model), model.get_submodule(layer))
        values = direct_layers[name](attribution, x.requires_grad_(), pad)
    values = values[0] if isinstance(values, tuple) else values
    expected = values[..., 0] if name == 'LayerFeatureAblation' else values.sum(-1)
    compare(name, f'captum.{name}(layer={layer!r})', 1, expected, **options_of(name))


def test_integrated_gradients_of_the_embeddings_equal_captum_from_token_ids():
    one = alone(sentences('bert'), 0)
    integrated = captum.attr.LayerIntegratedGradients(lambda ids: bert(ids).logits, bert.get_input_embeddings())
    expected = integrated.attribute(one['input_ids'], torch.zeros_like(one['input_ids']), target=1, n_steps=4).sum(-1)
    compare('LayerIntegratedGradients', 'captum.LayerIntegratedGradients', 0, expected, n_steps=4)


def test_conductance_of_a_neuron_equals_captum():
    model = copy.deepcopy(bert)
    x, pad = embedded(bert, sentences('bert'), 0)
    conductance = captum.attr.NeuronConductance(Logit(model), model.get_submodule(layer))
    expected = conductance.attribute(x.requires_grad_(), (0, 3), pad, n_steps=4).sum(-1)
    compare('NeuronConductance', f'captum.NeuronConductance(layer={layer!r}, neuron_selector=(0, 3))', 0, expected,
            n_steps=4)
    with pytest.raises(ValueError, match='pass neuron_selector='):
        explain(bert, sentences('bert'), 'captum.NeuronConductance')


@pytest.mark.parametrize('inner', ['Saliency', 'InputXGradient', 'IntegratedGradients', 'DeepLift', 'FeatureAblation'])
def test_noise_tunnels_equal_captum(inner):
    x, pad = embedded(bert, sentences('bert'), 1)
    more = dict(baselines=pad) if inner in ('IntegratedGradients', 'DeepLift', 'FeatureAblation') else {}
    if inner == 'IntegratedGradients': more['n_steps'] = 4
    if inner == 'FeatureAblation': more['feature_mask'] = torch.arange(x.shape[1])[None, :, None]
    with forked_random(5):
        tunnel = captum.attr.NoiseTunnel(getattr(captum.attr, inner)(Logit(copy.deepcopy(bert))))
        values = tunnel.attribute(x.requires_grad_(), nt_samples=4, stdevs=.5, **more)
    expected = values[..., 0] if inner == 'FeatureAblation' else values.sum(-1)
    options = {k: v for k, v in more.items() if k == 'n_steps'}
    compare('NoiseTunnel', f'captum.NoiseTunnel({inner}, nt_samples=4)', 1, expected, stdevs=.5, **options)


class Plain(nn.Module):
    "A small network that LRP has rules for"
    main_input_name = 'pixel_values'
    def __init__(self):
        super().__init__()
        self.conv, self.act, self.pool, self.head = nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Linear(36, 3)
    def forward(self, pixel_values):
        return SimpleNamespace(logits=self.head(self.pool(self.act(self.conv(pixel_values))).flatten(1)))


@pytest.mark.parametrize('name', ['LRP', 'LayerLRP', 'GuidedGradCam', 'LayerGradCam', 'Saliency', 'GuidedBackprop',
                                  'Deconvolution', 'IntegratedGradients', 'LayerConductance', 'LayerDeepLift'])
def test_attributions_of_images_equal_captum(name):
    net = seeded(Plain).double().eval()
    x = seeded(lambda: torch.randn(3, 2, 8, 8).double())
    of = copy.deepcopy(net)
    kind, layers = getattr(captum.attr, name), [of.conv] if name.startswith('Layer') or name == 'GuidedGradCam' else []
    start = dict(baselines=x * 0) if 'baselines' in CaptumAttribution(name).options or name in (
        'IntegratedGradients', 'LayerConductance', 'LayerDeepLift') else {}
    steps = options_of(name)
    values = kind(Logit(of, 'pixel_values'), *layers).attribute(x.clone().requires_grad_(), **start, **steps)
    values = values[0] if isinstance(values, tuple) else values
    e = explain(net, dict(pixel_values=x), f'captum.{name}', 1, **steps)
    if name.startswith('Layer'): # pixels share the value of their cell
        values = nn.functional.interpolate(values.sum(1, keepdim=True), (8, 8)) * 36 / (8 * 8 * 2)
    else: values = values.mean(1, keepdim=True)
    torch.testing.assert_close(e.values, values[:, 0].detach(), rtol=1e-6, atol=1e-6)


def test_features_of_images_are_squares_and_those_of_series_are_cells():
    net, batch = signal('digit-cnn')
    mask = (torch.arange(8)[:, None] // 4 * 2 + torch.arange(8) // 4)[None, None]
    values = captum.attr.FeatureAblation(Logit(net, 'pixel_values')).attribute(batch['pixel_values'], 0.,
                                                                              feature_mask=mask)
    e = explain(net, batch, 'captum.FeatureAblation', 1)
    torch.testing.assert_close(e.values, values.mean(1).detach(), rtol=1e-6, atol=1e-6)
    net, batch = signal('lstm')
    values = captum.attr.FeatureAblation(Logit(net, 'values')).attribute(batch['values'])
    e = explain(net, batch, 'captum.FeatureAblation', 1)
    torch.testing.assert_close(e.values, values.detach(), rtol=1e-6, atol=1e-6)


# seeds, state, memory

@pytest.mark.parametrize('name', [n for n, facts in _supported.items() if facts.is_random])
def test_random_methods_repeat_with_their_seed_in_any_batch_and_leave_global_state_alone(name):
    method, batch = f'captum.{name}' + '(InputXGradient)' * (name == 'NoiseTunnel'), sentences('bert')
    options = {k: v for k, v in options_of(method.removeprefix('captum.')).items()}
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    a, b, c = (explain(bert, batch, method, 1, seed=seed, **options) for seed in (1, 1, 2))
    assert torch.equal(before[0], torch.get_rng_state()) and (before[1] == np.random.get_state()[1]).all()
    assert torch.equal(a.values, b.values) and not torch.equal(a.values, c.values) and a.options['seed'] == 1
    short = explain(bert, alone(batch, 1), method, 1, seed=1, **options)
    np.testing.assert_allclose(a.examples()[1], short.examples()[0], rtol=1e-6, atol=1e-6)
    label = method[:-1] + ', seed=2)' if name == 'NoiseTunnel' else f'{method}(seed=2)'
    named = explain(bert, batch, label, 1, **options)
    assert torch.equal(named.values, c.values) and named.options['seed'] == 2
    assert attribution_named(label).in_a_run()['saliency_seed'] == 2


def test_models_are_unchanged_even_if_captum_fails():
    net, batch = signal('digit-cnn')
    before = [(set(vars(m)), len(m._forward_hooks), len(m._forward_pre_hooks)) for m in net.modules()]
    for method in 'captum.LRP', 'captum.LayerLRP':
        with pytest.raises(ValueError, match=f'{method} failed for DigitCNN.*no rule'): explain(net, batch, method, 1)
    explain(net, batch, 'captum.DeepLift', 1)
    assert before == [(set(vars(m)), len(m._forward_hooks), len(m._forward_pre_hooks)) for m in net.modules()]
    assert all(p.requires_grad and p.grad is None for p in net.parameters())


@pytest.mark.parametrize('method', ['FeatureAblation', 'ShapleyValueSampling', 'Lime', 'IntegratedGradients',
                                    'GradientShap', 'NoiseTunnel(InputXGradient)', 'LayerIntegratedGradients'])
def test_no_pass_has_more_rows_than_the_batch_size(method):
    most, options = [], options_of(method)
    handle = bert.register_forward_pre_hook(lambda m, a, k: most.append(len(k['input_ids'])), with_kwargs=True)
    try: small = explain(bert, sentences('bert'), f'captum.{method}', 1, batch_size=2, **options)
    finally: handle.remove()
    assert max(most) <= 2
    whole = explain(bert, sentences('bert'), f'captum.{method}', 1, batch_size=64, **options)
    if not method.startswith('NoiseTunnel'): # whose noise is drawn for each part
        torch.testing.assert_close(small.values, whole.values, rtol=1e-5, atol=1e-6)


# models and tasks

cheap = [f'captum.{n}' for n in ('Saliency', 'GradientShap', 'FeatureAblation', 'KernelShap',
                                 'LayerIntegratedGradients', 'NoiseTunnel(InputXGradient)')]

@pytest.mark.parametrize('method', cheap)
@pytest.mark.parametrize('kind, side', [('gpt2', 'right'), ('llama', 'left'), ('t5', 'right')])
def test_causal_and_encoder_decoder_models_with_either_padding(kind, side, method):
    model, batch = tiny(kind), sentences(kind, side)
    target = next_is_nine if kind == 't5' else 1
    e = explain(model, batch, method, target, **options_of(method.removeprefix('captum.')))
    for i in range(3):
        one = explain(model, alone(batch, i), method, target, **options_of(method.removeprefix('captum.')))
        np.testing.assert_allclose(e.examples()[i], one.examples()[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('method', [*cheap, 'captum.IntegratedGradients', 'captum.ShapleyValueSampling', 'captum.Lime'])
def test_bfloat16_is_near_float32(method):
    model, options = copy.deepcopy(bert).float(), options_of(method.removeprefix('captum.'))
    full = explain(model, sentences('bert'), method, 1, **options).values
    half = explain(model.bfloat16(), sentences('bert'), method, 1, **options).values
    assert half.isfinite().all() and (half.float() - full).abs().max() < .35 * full.abs().max()


def test_three_tokens_pairs_regression_and_token_classification():
    texts = ['a good film', 'a bad film']
    tokenizer = word_tokenizer(texts, longest=16)
    config = dict(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                  intermediate_size=16, pad_token_id=0, initializer_range=.3)
    for more in dict(num_labels=2), dict(num_labels=1, problem_type='regression'):
        model = seeded(lambda: BertForSequenceClassification(BertConfig(**config, **more))).eval()
        for method in cheap:
            for data in ['good'], [('a good film', 'a bad film'), ('good', 'bad film')]:
                e = explain(model, data, method, tokenizer=tokenizer, **options_of(method.removeprefix('captum.')))
                assert e.values.isfinite().all() and len(e.words()[0]) == (1 if data == ['good'] else 6)
    model = seeded(lambda: BertForTokenClassification(BertConfig(**config, num_labels=2))).eval()
    e = explain(model, texts, 'captum.ShapleyValueSampling', tokenizer=tokenizer, n_samples=2)
    assert e.values.shape == (2, 5) and e.completeness_error.max() < 1e-4


def test_each_class_and_vision_transformers():
    e = explain(bert, sentences('bert'), 'captum.Lime', 'each', n_samples=4)
    assert e.values.shape == (3, 3, 6)
    torch.testing.assert_close(e.values[1], explain(bert, sentences('bert'), 'captum.Lime', 1, n_samples=4).values)
    config = dict(image_size=16, patch_size=8, num_channels=3, hidden_size=16, num_hidden_layers=1,
                  num_attention_heads=2, intermediate_size=16, num_labels=2)
    vit, x = seeded(lambda: ViTForImageClassification(ViTConfig(**config))).eval(), seeded(
        lambda: torch.randn(2, 3, 16, 16))
    for method in 'captum.ShapleyValues', 'captum.LayerGradCam', 'captum.LayerIntegratedGradients', \
            "captum.LayerGradientXActivation(layer='vit.embeddings')":
        e = explain(vit, dict(pixel_values=x), method, 1)
        patches = e.values.unflatten(1, (2, 8)).unflatten(3, (2, 8))
        assert (patches == patches[:, :, :1, :, :1]).all() # every pixel of a patch has the value of the patch


# names and objects

def test_names_options_and_objects_give_the_same_attribution():
    batch = sentences('bert')
    expected = explain(bert, batch, 'captum.IntegratedGradients', 1, n_steps=4, multiply_by_inputs=False).values
    ours = CaptumAttribution('IntegratedGradients', n_steps=4, multiply_by_inputs=False)
    objects = captum.attr.IntegratedGradients(bert, multiply_by_inputs=False)
    for method, options in [(ours, {}), (ours.name, {}), (objects, dict(n_steps=4)),
                            (CaptumAttribution(objects, n_steps=4), {})]:
        assert torch.equal(explain(bert, batch, method, 1, **options).values, expected)
    named = CaptumAttribution(captum.attr.LayerConductance(bert, bert.bert.encoder.layer[0]))
    assert named.name == "captum.LayerConductance(layer='bert.encoder.layer.0')"
    assert CaptumAttribution(named.name).name == named.name
    tunnel = CaptumAttribution(captum.attr.NoiseTunnel(captum.attr.Saliency(bert)), nt_samples=2)
    assert tunnel.name == 'captum.NoiseTunnel(Saliency, nt_samples=2)'


def test_objects_are_found_by_their_names_and_never_share_one():
    ridge, steep = SkLearnRidge(alpha=1.), SkLearnRidge(alpha=100.)
    a, b = (CaptumAttribution('Lime', interpretable_model=m, n_samples=8) for m in (ridge, steep))
    names = [attribution_name(x) for x in (a, b)]
    assert len({*names}) == 2 and all(attribution_named(n) is x for n, x in zip(names, (a, b)))
    assert is_attribution(names[0]) and not is_attribution('captum') and not is_attribution(3)
    values = [explain(bert, sentences('bert'), n, 1).values for n in names]
    assert not torch.equal(*values) and torch.equal(values[0], explain(bert, sentences('bert'), a, 1).values)
    assert methods_by_name([a, 'random']) == {names[0]: names[0], 'random': 'random'}
    assert methods_by_name({'lime': dict(method=b, n_samples=4)}) == {'lime': dict(method=names[1], n_samples=4)}


@pytest.mark.parametrize('method, message', [
    ('captum.Nothing', "captum has no attribution 'Nothing'; supported: "),
    ('captum.Lime(', 'must have a form such as'), ('captum.Lime(n_samples=open("x"))', 'must have a form such as'),
    ('captum.NoiseTunnel', 'takes an attribution in parentheses'),
    ('captum.Saliency(Lime)', 'takes no attribution in parentheses'),
    ('captum.NoiseTunnel(GradientShap)', 'draws random numbers itself'),
    ('captum.Lime(steps=3)', 'captum.Lime has no option steps; available: '),
    ("captum.LayerConductance(layer='nowhere')", "has no layer 'nowhere'; its layers include bert"),
    ("captum.LayerGradientXActivation(layer='bert.pooler')", 'but no axis for the 6 tokens'),
    ('captum.LayerGradCam', 'supports pixel_values only'),
    ('lime', "a Captum attribution such as 'captum.Lime'")])
def test_bad_names_are_rejected_with_the_reason(method, message):
    with pytest.raises(ValueError, match=message.replace('(', r'\(')): explain(bert, sentences('bert'), method, 1)


def test_objects_on_functions_and_on_other_models_are_rejected():
    with pytest.raises(ValueError, match='constructed with a function'):
        explain(bert, sentences('bert'), captum.attr.Saliency(lambda x: x), 1)
    with pytest.raises(ValueError, match='constructed with a different Bert'):
        explain(bert, sentences('bert'), captum.attr.Saliency(copy.deepcopy(bert)), 1)


def test_too_many_orders_and_layers_of_series_are_rejected():
    net, batch = signal('lstm')
    with pytest.raises(ValueError, match='enumerates all orders of 24 features'):
        explain(net, batch, 'captum.ShapleyValues', 1)
    with pytest.raises(ValueError, match='units of a layer do not belong to features of a series'):
        explain(net, batch, 'captum.LayerConductance', 1)


# where a saliency is named

quick = dict(probes=2, snapshots=2, epochs=1, batch_size=8, learning_rate=1e-3, seed=0, progress=False)

def test_training_records_an_attribution_of_captum_with_its_seed(tiny_data, tiny_tokenizer, tiny_bert, tmp_path):
    lime = CaptumAttribution('Lime', n_samples=6, seed=3)
    run = salviz.train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', saliency=lime, **quick)
    assert run.config['settings']['saliency'] == lime.name == 'captum.Lime(n_samples=6, seed=3)'
    last = run.snapshot(run.steps[-1], 0)
    assert last.info['saliency_method'] == lime.name and last.info['saliency_seed'] == 3
    model, tokenizer = salviz.load_model(run)
    e = explain(model, [last.texts[0]], lime, tokenizer=tokenizer)
    np.testing.assert_allclose(last.arrays['saliency'], e.examples()[0], atol=1e-6)
    with pytest.raises(ValueError, match="train: saliency='captum.LRP'.*has no rule|no rule defined"):
        salviz.train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'lrp', saliency='captum.LRP', **quick)


def test_methods_take_attributions_of_captum_as_their_saliency(tiny_data, tiny_tokenizer, tiny_bert, tmp_path):
    teacher = tiny_bert(1)
    taught = SalLM(teacher, saliency=captum.attr.Occlusion(teacher))
    assert taught.args()['saliency'] == 'captum.Occlusion'
    run = salviz.train(tiny_bert(), tiny_tokenizer, tiny_data, taught, run_dir=tmp_path/'sallm', **quick)
    found = run.load_arrays('explanations')
    assert np.isfinite(found['saliency']).all()
    guided = SaliencyGuided(saliency='captum.InputXGradient')
    salviz.train(tiny_bert(), tiny_tokenizer, tiny_data, guided, run_dir=tmp_path/'guided', **quick)
    with pytest.raises(ValueError, match="explanation='captum.InputXGradient' cannot be trained"):
        RationaleGuided('captum.InputXGradient')
    with pytest.raises(ValueError, match="a Captum attribution such as 'captum.Lime', or a function"):
        SalLM(saliency='lime')


def test_tables_and_the_explorer_take_names_and_objects(tiny_data, tiny_tokenizer, tiny_bert):
    model = tiny_bert().eval()
    shap = CaptumAttribution('ShapleyValueSampling', n_samples=2)
    table = faithfulness_table(model, tiny_data['test'].select(range(4)), [shap, 'captum.FeatureAblation'],
                               tiny_tokenizer, flips=False, progress=False)
    assert [*table.index] == [shap.name, 'captum.FeatureAblation', 'random']
    texts = list(tiny_data['test']['text'][:2])
    explorer = explore(model, tiny_tokenizer, texts, saliency=shap, attribution=False)
    explorer.settle()
    for i, values in enumerate(explain_data(model, texts, shap, tokenizer=tiny_tokenizer, progress=False)):
        snapshot = explorer.runs[0].snapshot(0, i)
        assert snapshot.info['saliency_method'] == shap.name
        np.testing.assert_allclose(snapshot.arrays['saliency'], values, atol=1e-6)
    explorer.close()
    heads = salviz.head_table(model, texts, tiny_tokenizer, saliency='captum.Saliency', progress=False)
    assert heads['agreement'].notna().any() and heads.attrs['saliency'] == 'captum.Saliency'
    flags = [np.arange(len(v)) == 0 for v in explain_data(model, texts, shap, tokenizer=tiny_tokenizer, words='sum',
                                                          progress=False)]
    measure = salviz.RationalePlausibility(shap)
    assert measure.attribution == shap.name and len(flags) == 2


def test_watching_records_an_attribution_of_captum(tiny_data, tiny_tokenizer, tiny_bert, tmp_path):
    model = tiny_bert()
    watcher = salviz.watch(model, tiny_tokenizer, ['the film and a fine story'], run_dir=tmp_path/'run', steps=1,
                           saliency=captum.attr.FeatureAblation(model))
    watcher.step(loss=1.)
    watcher.finish()
    assert watcher.run.snapshot(watcher.run.steps[-1], 0).info['saliency_method'] == 'captum.FeatureAblation'


# generated text

sentences_of = ['the film was good', 'a good film', 'the film was bad', 'a story']
speller = word_tokenizer(sentences_of, longest=24)

@pytest.mark.parametrize('inner', ['FeatureAblation', 'ShapleyValueSampling', 'Lime', 'KernelShap'])
def test_generated_text_equals_captum(inner):
    writer = small_model('causal_lm', speller, layers=1, hidden=16, max_length=24)
    options = {} if inner == 'FeatureAblation' else dict(n_samples=6)
    table = explain_generated(writer, speller, 'the film', f'captum.LLMAttribution({inner})', 'was good', seed=5,
                              **options)
    assert [*table.columns] == ['[CLS]', 'the', 'film']
    prompt = captum.attr.TextTokenInput('the film', speller, 0)
    prompt.inp_tensor = prompt.itp_tensor = prompt.inp_tensor[:, :-1]
    prompt.values, prompt.n_itp_features = prompt.values[:-1], 3
    with forked_random(5), torch.no_grad():
        llm = captum.attr.LLMAttribution(getattr(captum.attr, inner)(writer), speller)
        expected = llm.attribute(prompt, torch.tensor(speller('was good', add_special_tokens=False)['input_ids']),
                                 forward_in_tokens=False, **options)
    values = expected.seq_attr[None] if expected.token_attr is None else expected.token_attr
    np.testing.assert_allclose(table, values, atol=1e-6)


@pytest.mark.parametrize('inner', ['LayerIntegratedGradients', 'LayerGradientXActivation', 'LayerGradientShap'])
def test_gradients_of_generated_text(inner):
    writer = small_model('causal_lm', speller, kind='llama', layers=1, hidden=16, max_length=24)
    before = torch.get_rng_state()
    tables = [explain_generated(writer, speller, 'the film', f'captum.LLMGradientAttribution({inner})',
                                max_new_tokens=2, seed=1) for _ in range(2)]
    assert tables[0].shape == (2, 3) and tables[0].equals(tables[1]) and torch.equal(before, torch.get_rng_state())
    assert all(p.requires_grad for p in writer.parameters())


def test_next_tokens_have_shapley_values_and_a_gpt2_explains_its_continuation():
    writer = small_model('causal_lm', speller, layers=1, hidden=16, max_length=24)
    e = explain(writer, ['the film'], 'captum.ShapleyValueSampling', tokenizer=speller, n_samples=2)
    assert e.completeness_error.max() < 1e-3
    explorer = explore(writer, speller, 'the film', generate=2, saliency='captum.FeatureAblation', attribution=False)
    explorer.settle()
    values = explorer.runs[0].snapshot(0, 0).arrays['continuation_saliency']
    assert len(values) == 2 and np.isfinite(values).all()
    explorer.close()
    with pytest.raises(ValueError, match='explains generated text; use `explain_generated`'):
        explain(writer, ['the film'], 'captum.LLMAttribution(FeatureAblation)', tokenizer=speller)
