"Explanations by name, against manual examples, float64 loops from the equations, and captum"
import ast
import copy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captum.attr import DeepLift, DeepLiftShap, Occlusion
from datasets import Array2D, ClassLabel, Dataset
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (BartConfig, BartForConditionalGeneration, BartForSequenceClassification, BertConfig,
                          BertForMaskedLM,
                          BertForSequenceClassification, BertForTokenClassification, DebertaV2Config,
                          DebertaV2ForSequenceClassification, ElectraConfig, ElectraForSequenceClassification,
                          GPT2Config, GPT2ForSequenceClassification,
                          LlamaConfig, LlamaForSequenceClassification, MarianConfig, MarianMTModel, ModernBertConfig,
                          ModernBertForSequenceClassification, RobertaConfig, RobertaForSequenceClassification,
                          T5Config, T5ForConditionalGeneration, T5ForSequenceClassification)

from helpers import same, state, word_tokenizer
import salviz
from salviz.attribution.explanations import _method_options, explain, explain_data, explainers
from salviz.attribution.occlusion import _windows
from salviz.attribution.questions import as_batch, encoded_for
from salviz.attribution.registry import registered_attributions
from salviz.attribution.saliency import completeness, completeness_error, input_saliency
from salviz.data.texts import Collator, encode, encode_texts
from salviz.models.nets import small_net

package = Path(salviz.__file__).parent
PATHS = 'integrated_gradients', 'deeplift', 'gradient_shap', 'deep_shap'
methods = list(registered_attributions())
NAMES = [m for m in methods if m != 'gradient']


class LinearText(nn.Module):
    "F_c = sum over real tokens of e_i . w_c; the embedding of the pad token is zero"
    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(pad_token_id=0, vocab_size=12)
        self.embed, self.head = nn.Embedding(12, 5, padding_idx=0).double(), nn.Linear(5, 3, bias=False).double()
    def get_input_embeddings(self): return self.embed
    def forward(self, input_ids, attention_mask):
        return SimpleNamespace(logits=self.head((self.embed(input_ids) * attention_mask[..., None]).sum(1)))


class Numbers(nn.Module):
    "Any function of images or series as a classifier with one class"
    def __init__(self, f, **parts):
        super().__init__()
        self.f, self.one, self.parts = f, nn.Parameter(torch.ones(1).double()), nn.ModuleDict(parts)
    def forward(self, values=None, pixel_values=None):
        x = values if pixel_values is None else pixel_values
        found = self.f(x, self.parts) if len(self.parts) else self.f(x)
        return SimpleNamespace(logits=found[:, None] if found.dim() == 1 else found)


def seeded(f, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return f()


def tiny(kind):
    "Return a random model in float64 whose attention is far from uniform"
    common = dict(vocab_size=60, num_labels=3, pad_token_id=0, initializer_range=.3)
    encoder = dict(common, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=20)
    sides = dict(vocab_size=60, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                 decoder_attention_heads=4, init_std=.3,
                 encoder_ffn_dim=20, decoder_ffn_dim=20, pad_token_id=0, bos_token_id=2, eos_token_id=1,
                 decoder_start_token_id=0, forced_eos_token_id=1)
    build = dict(
        bert=lambda: BertForSequenceClassification(BertConfig(**encoder)),
        roberta=lambda: RobertaForSequenceClassification(RobertaConfig(**encoder)),
        electra=lambda: ElectraForSequenceClassification(ElectraConfig(embedding_size=8, **encoder)),
        modernbert=lambda: ModernBertForSequenceClassification(
        ModernBertConfig(**encoder, classifier_pooling='cls', local_attention=4, bos_token_id=2,
                                                                                eos_token_id=1, cls_token_id=2,
                                                                                sep_token_id=1)),
        deberta=lambda: DebertaV2ForSequenceClassification(DebertaV2Config(**encoder, relative_attention=True,
                                                                           pos_att_type=['p2c', 'c2p'],
                                                                           position_biased_input=False,
                                                                           type_vocab_size=0)),
        llama=lambda: LlamaForSequenceClassification(LlamaConfig(num_key_value_heads=2, **encoder)),
        gpt2=lambda: GPT2ForSequenceClassification(GPT2Config(n_embd=16, n_layer=2, n_head=4, bos_token_id=1,
                                                              eos_token_id=2, **common)),
        marian=lambda: MarianMTModel(MarianConfig(**sides)),
        bart=lambda: BartForConditionalGeneration(BartConfig(**sides)),
        t5=lambda: T5ForConditionalGeneration(T5Config(vocab_size=60, d_model=16, d_ff=20, d_kv=4, num_layers=2,
                                                       num_heads=4, pad_token_id=0,
                                                       eos_token_id=1, decoder_start_token_id=0,
                                                       initializer_factor=3.)))
    return seeded(build[kind], 1).double().eval()


def sentences(kind, side='right'):
    "Return three sentences of 6, 3 and 4 tokens"
    ids, mask = torch.zeros(3, 6, dtype=torch.int64), torch.zeros(3, 6, dtype=torch.int64)
    for i, words in enumerate([[5, 6, 7, 8, 9, 10], [11, 12, 13], [21, 22, 23, 24]]):
        at = slice(0, len(words)) if side == 'right' else slice(6 - len(words), 6)
        ids[i, at], mask[i, at] = torch.tensor(words), 1
    more = dict(decoder_input_ids=torch.tensor([[0, 7, 8]] * 3)) if kind in ('marian', 'bart', 't5') else {}
    return dict(input_ids=ids, attention_mask=mask, **more)


def next_is_nine(outputs, rows): return outputs.logits[:, -1, 9]


def alone(batch, i):
    real = batch['attention_mask'][i].bool()
    return {k: v[i:i + 1, real] if k in ('input_ids', 'attention_mask') else v[i:i + 1] for k, v in batch.items()}


def few(name): return {k: 3 for k in _method_options(name) if k in ('steps', 'samples')}


signals = {'digit-cnn': dict(shape=(2, 8, 8), filters=(3, 4), hidden_size=6),
           'resnet18': dict(shape=(2, 8, 8), filters=(3, 4, 4, 4)),
           'lstm': dict(shape=(6, 4)), 'input-cell-lstm': dict(shape=(6, 4), hops=3, attention_size=5),
           'tcn': dict(shape=(8, 4), channels=(3, 3, 5)),
           'transformer': dict(shape=(6, 4), num_hidden_layers=2, num_attention_heads=2, intermediate_size=7)}

def signal(name, n=3):
    net = small_net(name, num_labels=3, **signals[name]).double()
    return net, {net.main_input_name: seeded(lambda: torch.randn(n, *signals[name]['shape']).double())}


# a model whose contributions are known

@pytest.mark.parametrize('method, options', [
    ('input_x_gradient', {}), ('integrated_gradients', dict(steps=2)), ('smoothgrad', dict(noise=0.)), ('deeplift', {}),
    ('deeplift', dict(rules='captum')),
    ('gradient_shap', dict(baselines=[0], samples=3)), ('deep_shap', dict(baselines=[0])), ('occlusion', {}),
    ('occlusion', dict(replacement='zeros')),
    ('occlusion', dict(replacement='removal')), ('occlusion', dict(replacement=0))])
def test_contributions_in_a_linear_model_are_exact(method, options):
    model, batch = seeded(LinearText), sentences('linear')
    batch['input_ids'] %= 12
    batch['input_ids'][batch['attention_mask'].bool() & (batch['input_ids'] == 0)] = 4
    e = explain(model, batch, method, target=torch.tensor([2, 0, 1]), **options)
    for i, c in enumerate([2, 0, 1]):
        for j in range(6):
            by_hand = 0.
            if batch['attention_mask'][i, j]:
                for d in range(5):
                    by_hand += model.embed.weight[batch['input_ids'][i, j], d].item() * model.head.weight[c, d].item()
            assert e.values[i, j].item() == pytest.approx(by_hand, abs=1e-12)
    if e.completeness_error is not None: assert e.completeness_error.max() < 1e-9
    torch.testing.assert_close(explain(model, batch, 'gradient', 1).values[0, 0], model.head.weight[1].sum().detach())


# comparison with existing implementations

@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('llama', 'left'), ('marian', 'right')])
def test_gradient_methods_equal_input_saliency(kind, side):
    model, batch = tiny(kind), sentences(kind, side)
    target = next_is_nine if kind == 'marian' else 'predicted'
    for method in ('gradient_norm', 'gradient_abs', 'input_x_gradient', 'integrated_gradients'):
        e = explain(model, batch, method, target)
        torch.testing.assert_close(e.values, input_saliency(model, batch, method, target), rtol=1e-10, atol=1e-13)
        assert (e.completeness_error is None) == (method != 'integrated_gradients')
    torch.testing.assert_close(e.completeness_error, completeness_error(model, batch, e.values, target), rtol=1e-6,
                               atol=1e-9)
    # the embedding of the pad token is zero, this one is not
    e = explain(model, batch, 'integrated_gradients', target, baseline=31)
    torch.testing.assert_close(e.values, input_saliency(model, batch, 'integrated_gradients', target, baseline=31),
                               rtol=1e-10, atol=1e-13)
    assert (explain(model, batch, 'deeplift', target, baseline=31).completeness_error < 1e-4).all()


@pytest.mark.parametrize('name', ['digit-cnn', 'tcn'])
def test_gradient_methods_equal_input_saliency_for_images_and_series(name):
    net, batch = signal(name)
    for method in ('gradient', 'input_x_gradient', 'integrated_gradients'):
        e = explain(net, batch, method)
        torch.testing.assert_close(e.values, input_saliency(net, batch, method), rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(e.completeness_error, completeness_error(net, batch, e.values), rtol=1e-6, atol=1e-9)


# methods with random numbers

def test_smoothgrad_noise_is_the_given_fraction_of_the_range():
    net, x = Numbers(lambda x: (x**2).sum((1, 2))), seeded(lambda: torch.rand(2, 60, 50).double() * 6 - 1)
    values = explain(net, dict(values=x), 'smoothgrad', 0, samples=16, noise=.1).values
    for i in range(2):                                                       # gradient at x + noise: 2x + 2 noise
        noise = (values[i] - 2 * x[i]) / 2 * 16**.5 / (.1 * (x[i].max() - x[i].min()))
        assert abs(noise.mean()) < .05 and noise.std().item() == pytest.approx(1, abs=.05)
    assert not torch.equal(values[0] - 2 * x[0], values[1] - 2 * x[1])
    squares = explain(net, dict(values=x), 'smoothgrad', 0, samples=16, noise=.1, base='input_x_gradient').values
    extra = (squares - 2 * x**2).mean((1, 2)) / (.1 * (x.amax((1, 2)) - x.amin((1, 2))))**2
    # E[2(x + e)^2] - 2x^2 = 2 var(e): the map at the noisy point
    torch.testing.assert_close(extra, torch.full((2,), 2.).double(), rtol=.25, atol=0.)


@pytest.mark.slow
def test_gradient_shap_has_the_expected_value_for_a_quadratic():
    a = torch.linspace(-1, 2, 12).double().view(3, 4)
    net, x = Numbers(lambda x: (a * x**2).sum((1, 2))), seeded(lambda: torch.randn(2, 3, 4).double())
    baselines = seeded(lambda: torch.randn(2, 3, 4).double(), 5)
    e = explain(net, dict(values=x), 'gradient_shap', 0, samples=800, baselines=baselines, batch_size=1000)
    owed = a * (x**2 - (baselines**2).mean(0))
    assert (e.values - owed).abs().max() < .5 and np.corrcoef(e.values.flatten(), owed.flatten())[0, 1] > .99
    assert (e.completeness_error < .3).all()
    # noise with the example's mean and standard deviation in each feature
    free = explain(net, dict(values=x), 'gradient_shap', 0, samples=800, batch_size=1000)
    owed = a * (x**2 - x.mean(1, keepdim=True)**2 - x.var(1, keepdim=True, correction=0))
    assert (free.values - owed).abs().max() < .8 and np.corrcoef(free.values.flatten(), owed.flatten())[0, 1] > .99


def test_random_numbers_depend_only_on_the_seed():
    model, batch = tiny('bert'), sentences('bert')
    for method in ('smoothgrad', 'gradient_shap', 'deep_shap', 'random'):
        first, again, other = (explain(model, batch, method, seed=s, **few(method)).values for s in (0, 0, 1))
        assert torch.equal(first, again) and not torch.allclose(first, other)
    assert not torch.equal(explain(model, batch, 'random').values[0, :3], explain(model, batch, 'random').values[1, :3])


# DeepLIFT

def test_deeplift_of_a_network_of_two_layers_by_the_rescale_rule():
    net = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.Tanh(),
                                       nn.Linear(3, 1))).double()
    x, b = seeded(lambda: torch.randn(2, 1, 4).double(), 3)
    found = explain(Numbers(lambda v, parts: parts['net'](v[:, 0]), net=net), dict(values=x[None]), 'deeplift', 0,
                    baseline=b).values[0, 0]
    w1, b1, w2, b2, w3 = net[0].weight, net[0].bias, net[2].weight, net[2].bias, net[4].weight
    def layers(v):
        z = [b1[i] + sum(w1[i, j] * v[j] for j in range(4)) for i in range(5)]
        y = [max(t.item(), 0.) for t in z]
        u = [b2[i] + sum(w2[i, j] * y[j] for j in range(5)) for i in range(3)]
        return z, y, u, [torch.tanh(t) for t in u]
    (z, y, u, t), (z0, y0, u0, t0) = layers(x[0]), layers(b[0])
    for j in range(4):
        m = 0.
        for k in range(3):
            for i in range(5):
                m += w3[0, k] * (t[k] - t0[k]) / (u[k] - u0[k]) * w2[k, i] * (y[i] - y0[i]) / (z[i] - z0[i]) * w1[i, j]
        assert found[j].item() == pytest.approx((m * (x[0, j] - b[0, j])).item(), rel=1e-9)


def test_products_give_shapley_values_and_maxima_go_to_the_larger_position():
    x, b = torch.tensor([[[3., 5.]]]).double(), torch.tensor([[1., 2.]]).double()
    deeplift = lambda f, x, b: explain(Numbers(f), dict(values=x), 'deeplift', 0, baseline=b).values[0, 0].tolist()
    assert deeplift(lambda v: v[:, 0, 0] * v[:, 0, 1], x, b) == [(3 - 1) * (5 + 2) / 2, (5 - 2) * (3 + 1) / 2]
    pool = lambda v: F.max_pool1d(v, 2)[:, 0, 0]
    assert deeplift(pool, x, b) == [0, 3]                                      # 5 - 2, where the input is largest
    # 1 - 4, where the baseline is
    assert deeplift(pool, torch.tensor([[[0., 1.]]]).double(), torch.tensor([[4., 2.]]).double()) == [-3, 0]
    assert deeplift(pool, torch.tensor([[[0., 1.]]]).double(),
                    torch.tensor([[4., 4.]]).double()) == pytest.approx([-1.5, -1.5])
    assert deeplift(lambda v: v[:, 0, 0] / v[:, 0, 1], x,
                    b) == pytest.approx([(3 - 1) * (1/5 + 1/2) / 2, (1/5 - 1/2) * (3 + 1) / 2])


TEXTS = 'bert', 'electra', 'deberta', 'modernbert', 'llama', 'gpt2', 'marian', 'bart', 't5'

@pytest.mark.sample(7)
@pytest.mark.parametrize('kind', [*TEXTS, *signals, 'text-lstm'])
def test_deeplift_is_complete_for_every_family(kind):
    if kind in signals: model, batch = signal(kind)
    elif kind == 'text-lstm':
        model, batch = small_net(kind, vocab_size=60, embedding_size=4, hidden_size=3).double(), sentences(kind)
    else: model, batch = tiny(kind), sentences(kind)
    target = next_is_nine if 'decoder_input_ids' in batch else 1
    for method in ('deeplift', 'deep_shap'):
        e = explain(model, batch, method, target)
        assert (e.completeness_error < 1e-4).all() and e.values.abs().amax(tuple(range(1, e.values.dim()))).min() > 0


def test_deeplift_of_a_fused_lstm_equals_that_of_modules():
    batch = signal('lstm')[1]
    fused, modules = (explain(small_net('lstm', shape=(6, 4), cell=cell).double(), batch, 'deeplift').values
                      for cell in ('fused', 'modules'))
    torch.testing.assert_close(fused, modules, rtol=1e-9, atol=1e-13)


class Logits(nn.Module):
    def __init__(self, net): super().__init__(); self.net = net
    def forward(self, x): return self.net(x).logits


@pytest.mark.filterwarnings('ignore')
def test_deeplift_and_deep_shap_equal_captum_where_captum_is_right():
    net, batch = signal('resnet18')
    x, baselines = batch['pixel_values'], seeded(lambda: torch.randn(4, 2, 8, 8).double(), 7)
    for rules in ('salviz', 'captum'):
        found = explain(net, batch, 'deeplift', 1, rules=rules).values
        torch.testing.assert_close(found, DeepLift(Logits(net)).attribute(x, target=1).mean(1).detach(), rtol=1e-7,
                                   atol=1e-12)
    shap = explain(net, batch, 'deep_shap', 1, baselines=baselines)
    torch.testing.assert_close(shap.values,
                               DeepLiftShap(Logits(net)).attribute(x, baselines, target=1).mean(1).detach(), rtol=1e-7,
                               atol=1e-12)
    pooled = nn.Sequential(nn.Conv1d(4, 3, 2), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(6, 2)).double()
    series = signal('lstm')[1]['values'].transpose(1, 2)[:, :, :5].contiguous()
    base = seeded(lambda: torch.randn(4, 5).double(), 9)
    torch.testing.assert_close(explain(Numbers(lambda v, parts: parts['net'](v), net=pooled), dict(values=series),
                                       'deeplift', 1, baseline=base).values,
                               DeepLift(pooled).attribute(series, base[None], target=1).detach(), rtol=1e-7, atol=1e-12)


def test_incomplete_results_of_captum_are_rejected_by_name():
    for name in ('tcn', 'lstm', 'transformer'):
        net, batch = signal(name)
        with pytest.raises(ValueError, match=f"Captum's contributions for {type(net).__name__} do not add up"):
            explain(net, batch, 'deeplift', 1, rules='captum')


def test_deeplift_rejects_operations_without_rules_and_incomplete_results():
    x = dict(values=torch.tensor([[[3., 5.]]]).double())
    with pytest.raises(ValueError, match='deeplift has no rule for the operation .*prod'):
        explain(Numbers(lambda v: v.cumprod(-1)[:, 0, 1]), x, 'deeplift', 0)
    unseen = Numbers(lambda v: v[:, 0, 0] + v.detach()[:, 0, 1]**2)
    with pytest.raises(ValueError, match='do not add up to the difference between the scores'):
        explain(unseen, x, 'deeplift', 0)
    gru = nn.GRU(2, 3, batch_first=True).double()
    with pytest.raises(ValueError, match='deeplift has no rule for the operation .*gru'):
        explain(Numbers(lambda v, parts: parts['gru'](v)[0][:, -1], gru=gru), x, 'deeplift', 0)


# occlusion

@pytest.mark.parametrize('replacement', ['baseline', 'zeros', 31, 'removal'])
@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('llama', 'left')])
def test_occlusion_removes_one_token_after_the_other(kind, side, replacement):
    model, batch = tiny(kind), sentences(kind, side)
    e = explain(model, batch, 'occlusion', 2, replacement=replacement, batch_size=7)
    weight = model.get_input_embeddings().weight.detach()
    for i in range(3):
        ids = alone(batch, i)['input_ids'][0]
        def logit(x): return model(inputs_embeds=x[None]).logits[0, 2].item() if kind == 'bert' else last(model, x)
        for j, at in enumerate(batch['attention_mask'][i].nonzero()[:, 0]):
            x = weight[ids].clone()
            if replacement == 'removal': x = torch.cat([x[:j], x[j + 1:]])
            else: x[j] = 0. if replacement == 'zeros' else weight[0 if replacement == 'baseline' else replacement]
            assert e.values[i, at].item() == pytest.approx(logit(weight[ids]) - logit(x),
                                                           abs=1e-3 if side == 'left' else 1e-9)
    assert (e.values[batch['attention_mask'] == 0] == 0).all() and e.completeness_error is None


def last(model, x): return model.score(model.model(inputs_embeds=x[None]).last_hidden_state[0, -1])[2].item()


@pytest.mark.parametrize('window, stride', [((3, 3), (2, 2)), ((4, 2), (3, 1)), ((1, 1), (1, 1))])
def test_occlusion_of_patches_equals_captum(window, stride):
    net, batch = signal('digit-cnn', 2)
    captum = Occlusion(Logits(net)).attribute(batch['pixel_values'], (2, *window), (2, *stride), baselines=.5, target=1)
    e = explain(net, batch, 'occlusion', 1, window=window, stride=stride, baseline=.5, batch_size=5)
    torch.testing.assert_close(e.values, captum[:, 0].detach().double(), rtol=1e-5, atol=1e-7)


# attention

def eager(model, batch):
    "Return maps with their graph, from the model's eager attention"
    model.set_attn_implementation('eager')
    out = model(**batch, output_attentions=True)
    return out.logits, out.attentions


@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('llama', 'left')])
def test_attention_methods_equal_loops_over_eager_maps(kind, side):
    model, batch = tiny(kind), sentences(kind, side)
    found = {m: explain(model, batch, m, 1, **o).values
             for m, o in dict(attention={}, rollout={}, gradient_x_attention=dict(layers=[0, 1]),
                              attention_gradient=dict(layers=0)).items()}
    chosen = explain(model, batch, 'gradient_x_attention', 1, layers=0, heads=[1, 3], positive=True).values
    mean_row = explain(model, batch, 'attention', layers=0, heads=2, row='mean').values
    for i in range(3):
        at, one = batch['attention_mask'][i].nonzero()[:, 0].tolist(), alone(batch, i)
        logits, maps = eager(model, one)
        grads, n = torch.autograd.grad(logits[:, 1].sum(), maps), len(at)
        row, roll = 0 if kind == 'bert' else n - 1, torch.eye(n).double()
        for A in maps: roll = (.5 * A[0].mean(0).detach() + .5 * torch.eye(n).double()) @ roll
        def close(found, by_hand):
            return found[i, at[j]].item() == pytest.approx(torch.as_tensor(by_hand).item(), abs=1e-5, rel=1e-3)
        for j in range(n):
            look = dict(attention=sum(maps[1][0, h, row, j] for h in range(4)) / 4, rollout=roll[row, j],
                        gradient_x_attention=sum(maps[l][0, h, q, j] * grads[l][0, h, q, j] for l in range(2)
                                                 for h in range(4) for q in range(n)) / 2,
                        attention_gradient=sum(grads[0][0, h, q, j] for h in range(4) for q in range(n)
                                               if kind == 'bert' or q >= j))
            for m, by_hand in look.items(): assert close(found[m], by_hand), m
            assert close(chosen, sum(max(0., (maps[0][0, h, q, j] * grads[0][0, h, q, j]).item()) for h in (1, 3)
                                     for q in range(n)))
            assert close(mean_row, sum(maps[0][0, 2, q, j].item() for q in range(n)) / n)
        assert all(found[m][i, j] == 0 for m in found for j in range(6) if j not in at)


def test_integrated_attention_is_complete_only_in_the_standard_reading():
    model, batch = tiny('bert'), sentences('bert')
    rough, fine = (explain(model, batch, 'attention_integrated_gradients', 1, layers=[0, 1], steps=s)
                   for s in (10, 200))
    assert (fine.completeness_error < .06).all()
    assert fine.completeness_error.mean() < rough.completeness_error.mean() / 5
    layers = torch.stack([explain(model, batch, 'attention_integrated_gradients', 1, layers=l,
                                  steps=10).completeness_error for l in (0, 1)])
    # the worst layer, so that errors cannot cancel
    torch.testing.assert_close(rough.completeness_error, layers.amax(0))
    assert rough.options['reading'] == 'standard' and (layers[0] - layers[1]).abs().min() > .01
    few = explain(model, batch, 'attention_integrated_gradients', 1, layers=[0, 1], steps=10, nodes=9)
    assert (few.values - rough.values).norm() < .02*rough.values.norm()
    assert not torch.equal(few.values, rough.values)
    assert few.options['nodes'] == 9
    paper = explain(model, batch, 'attention_integrated_gradients', 1, steps=10, reading='paper')
    assert paper.completeness_error is None and not torch.allclose(paper.values, rough.values)


def test_attention_methods_use_the_encoder_of_an_encoder_decoder():
    model, batch = tiny('marian'), sentences('marian')
    A = explain(model, batch, 'attention', next_is_nine).values
    torch.testing.assert_close(A.sum(1), torch.ones(3).double())                # the mean of rows that sum to one
    assert explain(model, batch, 'attention_gradient', next_is_nine).values[0].abs().min() > 0
    with pytest.raises(ValueError, match='is an encoder-decoder model'):
        explain(model, batch, 'attention', next_is_nine, row='pooled')


# all methods

@pytest.mark.sample(9)
@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('llama', 'left')])
@pytest.mark.parametrize('method', NAMES)
def test_neither_padding_nor_neighbours_nor_the_batch_size_change_a_result(kind, side, method):
    model, batch, options = tiny(kind), sentences(kind, side), few(method)
    before = state(model)
    whole, split = (explain(model, batch, method, 1, batch_size=n, **options) for n in (32, 2))
    close = dict(rtol=1e-9, atol=1e-12) if side == 'right' else dict(rtol=2e-3, atol=2e-5)  # rotary angles are float32
    torch.testing.assert_close(split.values, whole.values, **close)
    for i in (1, 2):
        one = explain(model, alone(batch, i), method, 1, **options)
        torch.testing.assert_close(whole.values[i, batch['attention_mask'][i].bool()], one.values[0], **close)
        torch.testing.assert_close(whole.score[i], one.score[0], **close)
    assert (whole.values[batch['attention_mask'] == 0] == 0).all() and same(before, state(model))
    assert (whole.completeness_error is not None) == (method in (*PATHS, 'attention_integrated_gradients'))


@pytest.mark.parametrize('method', NAMES)
def test_no_pass_has_more_rows_than_the_batch_size(method):
    model, rows = tiny('bert'), []
    model.bert.encoder.register_forward_hook(lambda m, args, out: rows.append(len(args[0])))
    explain(model, sentences('bert'), method, batch_size=4, **few(method))
    assert rows and max(rows) <= 4


@pytest.mark.sample(11)
@pytest.mark.parametrize('method', NAMES)
def test_each_class_has_an_axis_and_shares_the_passes_forward(method):
    model, batch, passes = tiny('bert'), sentences('bert'), []
    model.bert.encoder.register_forward_hook(lambda m, args, out: passes.append(1))
    each, shared = explain(model, batch, method, 'each', **few(method)), len(passes)
    for c in range(3):
        passes.clear()
        one = explain(model, batch, method, c, **few(method))
        torch.testing.assert_close(each.values[c], one.values, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(each.score[c], one.score)
        if one.completeness_error is not None:
            torch.testing.assert_close(each.completeness_error[c], one.completeness_error, rtol=1e-6, atol=1e-9)
    if method != 'attention_integrated_gradients': assert shared == len(passes)


@pytest.mark.sample(9)
@pytest.mark.parametrize('method', [m for m in NAMES if registered_attributions()[m].is_one_pass])
@pytest.mark.parametrize('kind', ['bert', 'llama'])
def test_one_pass_methods_get_target_and_score_from_their_pass(kind, method):
    model, batch = tiny(kind), sentences(kind)
    examples, read = len(batch['input_ids']), []
    labels = torch.arange(examples) % 3
    handle = model.register_forward_hook(lambda *a: read.append(len(a[2].logits)))
    for target in ('predicted', 'gold', 'each', 1, labels.flip(0)):
        read.clear()
        made = explain(model, dict(batch, labels=labels), method, target)
        assert sum(read) == examples, read
        with torch.no_grad(): logits = model(**batch).logits
        known = dict(predicted=logits.argmax(-1), gold=labels)
        asked = target if isinstance(target, torch.Tensor) else known.get(target, torch.full((examples,), 1))
        if isinstance(target, str) and target == 'each':
            assert made.target == 'each'
            torch.testing.assert_close(made.score, logits.T, rtol=1e-5, atol=1e-6)
            ones = [explain(model, batch, method, c).values for c in range(3)]
            torch.testing.assert_close(made.values, torch.stack(ones))
        else:
            assert torch.equal(made.target, asked)
            expected = logits.gather(1, asked[:, None])[:, 0] # Llama computes its norms in float32
            torch.testing.assert_close(made.score, expected, rtol=1e-5, atol=1e-6)
    handle.remove()


def test_gold_predicted_and_given_classes():
    model, batch = tiny('bert'), sentences('bert')
    logits, labels = model(**batch).logits.detach(), torch.tensor([2, 0, 1])
    for target, classes in (('gold', labels), (labels, labels), (2, torch.full((3,), 2)),
                            ('predicted', logits.argmax(1))):
        e = explain(model, dict(batch, labels=labels), 'input_x_gradient', target)
        assert torch.equal(e.target, classes)
        torch.testing.assert_close(e.score, logits[range(3), classes])
        torch.testing.assert_close(e.values,
                                   explain(model, batch, 'input_x_gradient',
                                           lambda o, rows: o.logits[range(len(rows)), classes[rows]],
                                           batch_size=2).values)


@pytest.mark.sample(1)
@pytest.mark.parametrize('name', ['digit-cnn', 'lstm', 'tcn', 'transformer'])
def test_signals_have_a_number_for_each_pixel_and_cell(name):
    net, batch = signal(name, 2)
    x = batch[net.main_input_name]
    for method, why in (table := explainers(net)).items():
        if why == 'available':
            e = explain(net, batch, method, 'each', **few(method))
            assert e.values.shape == (3, 2, *x.shape[-2:]) and e.values.isfinite().all(), method
            torch.testing.assert_close(e.values,
                                       explain(net, batch, method, 'each', batch_size=1, **few(method)).values,
                                       rtol=1e-9, atol=1e-12)
        else:
            assert 'attention' in method or method == 'rollout'
            with pytest.raises(ValueError, match='cannot be observed|attention'): explain(net, batch, method)
    assert (table['rollout'] == 'available') == (name == 'transformer')


def test_colours_of_a_pixel_become_one_number():
    net, x = Numbers(lambda x: (3 * x[:, 0] - 4 * x[:, 1]).sum((1, 2))), torch.ones(1, 2, 2, 2).double()
    found = {m: explain(net, dict(pixel_values=x), m, 0).values[0, 0, 0].item()
             for m in ('gradient', 'gradient_abs', 'gradient_norm', 'input_x_gradient')}
    assert found == dict(gradient=-.5, gradient_abs=3.5, gradient_norm=5., input_x_gradient=-.5)


# texts, words and data sets

SENTENCES = ['one two three four five', 'six', 'two six four']

def words_and_model():
    tokenizer = word_tokenizer(SENTENCES, longest=20)
    return tokenizer, seeded(lambda: BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), hidden_size=16,
        num_hidden_layers=1, num_labels=3,
        num_attention_heads=2, intermediate_size=20, pad_token_id=tokenizer.pad_token_id,
        initializer_range=.3))).double().eval()


def test_texts_are_returned_as_words_and_data_in_order():
    tokenizer, model = words_and_model()
    e = explain(model, SENTENCES, 'occlusion', 'each', tokenizer=tokenizer)
    assert [w.shape for w in e.words()] == [w.shape for w in e.pooled()] == [(3, 5), (3, 1), (3, 3)]
    data = encode_texts(SENTENCES, tokenizer)
    for target in ('each', 2, torch.tensor([0, 2, 1]), lambda outputs, rows: outputs.logits[:, 0] * (rows + 1)):
        whole = explain(model, SENTENCES, 'input_x_gradient', target, tokenizer=tokenizer).examples()
        for found, wanted in zip(explain_data(model, data, 'input_x_gradient', target, tokenizer=tokenizer,
                                              batch_size=2), whole, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    pairs = explain(model, [('one two', 'six'), ('two', 'three four')], 'random', tokenizer=tokenizer)
    assert [list(w.index) for w in pairs.words('max')] == [['one', 'two', 'six'], ['two', 'three', 'four']]


def test_a_text_is_treated_as_a_list_of_one_and_its_words_are_listed():
    tokenizer, model = words_and_model()
    one, listed = (explain(model, x, 'occlusion', tokenizer=tokenizer) for x in ('six two two', ['six two two']))
    assert same(one.values, listed.values) and same(one.score, listed.score) and one.score.shape == (1,)
    table, = one.words()
    assert list(table.index) == ['six', 'two', 'two'] and table.name == 'sum' and table.index.name == 'word'
    np.testing.assert_array_equal(table, one.examples()[0][1:-1]) # a token for each word, between [CLS] and [SEP]
    each, = explain(model, 'six two', 'occlusion', 'each', tokenizer=tokenizer).words('mean')
    assert list(each.columns) == ['six', 'two'] and list(each.index) == [0, 1, 2]
    split = Dataset.from_dict(dict(text=SENTENCES))
    batch = Collator(tokenizer)(list(encode_texts(SENTENCES, tokenizer)))
    for inputs, known in ((split, SENTENCES[0].split()), (batch, [*range(5)])):
        assert list(explain(model, inputs, 'random', tokenizer=tokenizer).words()[0].index) == known
    assert len(explain(model, 'six ' * 50, 'random', tokenizer=tokenizer).words()[0]) == 18 # 20 with [CLS] and [SEP]


@pytest.mark.parametrize('text', ['six <|user|> two', '這部 電影 two', 'สวัสดี six', '<|user|>電影', 'two ... six'])
def test_words_that_share_a_token_are_one_row_and_no_value_is_lost(text):
    tokenizer = word_tokenizer([*SENTENCES, '<|user|> 這部 電影 สวัสดี ...'], longest=20)
    tokenizer.add_special_tokens({'additional_special_tokens': ['<|user|>', '電影']})
    model = seeded(lambda: BertForSequenceClassification(BertConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_labels=2, num_attention_heads=2,
        intermediate_size=8, pad_token_id=tokenizer.pad_token_id, initializer_range=.5))).double().eval()
    e = explain(model, text, 'input_x_gradient', 1, tokenizer=tokenizer)
    values, = e.examples()
    for how in ('sum', 'mean', 'max', 'first'): # each of these words is one token
        table, = e.words(how)
        assert ''.join(table.index) == text.replace(' ', '') and (table != 0).all()
        np.testing.assert_array_equal(table, values[1:-1])
    assert e.words()[0].sum() == pytest.approx(values[1:-1].sum(), rel=1e-9)


def test_a_model_with_lora_is_explained_with_its_adapters():
    tokenizer, model = words_and_model()
    model = get_peft_model(model, LoraConfig(task_type='SEQ_CLS', r=2, target_modules=['query', 'value'],
                                             init_lora_weights=False)).double()
    before, ours = state(model), explain(model, SENTENCES, 'integrated_gradients', tokenizer=tokenizer)
    merged = copy.deepcopy(model).merge_and_unload()
    theirs = explain(merged, SENTENCES, 'integrated_gradients', tokenizer=tokenizer)
    torch.testing.assert_close(ours.values, theirs.values, rtol=1e-7, atol=1e-9)
    assert same(state(model), before)
    with model.disable_adapter():
        plain = explain(model, SENTENCES, 'integrated_gradients', tokenizer=tokenizer)
    assert not torch.allclose(plain.values, ours.values, rtol=1e-3)


@pytest.mark.parametrize('kind', ['gpt2', 'llama'])
def test_inputs_that_a_model_does_not_take_are_left_out(kind):
    model, batch = tiny(kind), sentences(kind)
    typed = batch | dict(token_type_ids=torch.zeros_like(batch['input_ids']))
    for method in ('integrated_gradients', 'occlusion', 'attention'):
        assert same(explain(model, typed, method, 1).values, explain(model, batch, method, 1).values)
    bert, types = tiny('bert'), torch.ones_like(batch['input_ids'])
    assert not same(explain(bert, batch | dict(token_type_ids=types), target=1).values,
                    explain(bert, batch, target=1).values) # models that use types read them


def test_a_data_set_of_series_is_explained_as_it_was_loaded():
    net, batch = signal('tcn')
    data = Dataset.from_dict(dict(values=batch['values'].float().numpy(), label=[0, 1, 2]))
    data = data.cast_column('values', Array2D((8, 4), 'float32')).cast_column('label', ClassLabel(num_classes=3))
    found = explain_data(net, data, 'smoothgrad', 'gold', batch_size=2, samples=2)
    whole = explain(net, dict(values=batch['values'].float().double(), labels=torch.arange(3)), 'smoothgrad', 'gold',
                    samples=2)
    for a, b in zip(found, whole.values, strict=True): np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def judge(kind, tokenizer):
    "Return an encoder-decoder with the head of a classifier"
    ids = dict(vocab_size=len(tokenizer), d_model=16, pad_token_id=tokenizer.pad_token_id,
               eos_token_id=tokenizer.sep_token_id, decoder_start_token_id=0, num_labels=3)
    if kind == 't5':
        return seeded(lambda: T5ForSequenceClassification(T5Config(d_ff=20, d_kv=4, num_layers=2, num_heads=4,
                                                                   **ids))).double().eval()
    return seeded(lambda: BartForSequenceClassification(BartConfig(encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, init_std=.3,
        encoder_ffn_dim=20, decoder_ffn_dim=20, bos_token_id=tokenizer.cls_token_id, max_position_embeddings=30,
        **ids))).double().eval()


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['bart', 't5'])
def test_encoder_decoder_classifiers_read_the_text_on_both_sides(kind):
    tokenizer = word_tokenizer(SENTENCES, longest=20)
    model, data = judge(kind, tokenizer), encode_texts(SENTENCES, tokenizer)
    rows = [torch.tensor([row['input_ids']]) for row in data]
    assert 'decoder_input_ids' not in as_batch(model, SENTENCES, tokenizer)
    assert {m for m, why in explainers(model).items()
            if why != 'available'} == ({'gradient'} if kind == 'bart' else set())
    for method in ('input_x_gradient', 'integrated_gradients', 'occlusion', 'gradient_x_attention',
                   'attention_integrated_gradients'):
        e = explain(model, SENTENCES, method, 1, tokenizer=tokenizer, **few(method))
        whole = explain_data(model, data, method, 1, tokenizer=tokenizer, batch_size=2, progress=False, **few(method))
        for i, ids in enumerate(rows):
            torch.testing.assert_close(e.score[i], model(input_ids=ids).logits[0, 1].detach())
            alone = explain(model, dict(input_ids=ids), method, 1, **few(method)).values[0]
            np.testing.assert_allclose(e.examples()[i], alone, rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(whole[i], alone, rtol=1e-6, atol=1e-9)
    assert (explain(model, SENTENCES, 'deeplift', 1, tokenizer=tokenizer).completeness_error < 1e-4).all()
    with pytest.raises(ValueError, match="'removal' would remove the end token"):
        explain(model, SENTENCES, 'occlusion', tokenizer=tokenizer, replacement='removal')


def test_inputs_are_interpreted_in_the_same_way_everywhere():
    tokenizer, model = words_and_model()
    def ids(inputs): return as_batch(model, inputs, tokenizer)['input_ids'].tolist()
    pair = Collator(tokenizer)(list(encode_texts(['one two'], tokenizer, ['six'])))['input_ids'].tolist()
    words = Collator(tokenizer)(list(encode_texts([['one', 'six']], tokenizer)))['input_ids'].tolist()
    assert ids([('one two', 'six')]) == pair
    assert ids([['one', 'six']]) == words == ids(['one six']) != ids([('one', 'six')])
    loaded = Dataset.from_dict(dict(text=['one two', 'two'], text_pair=['six', 'four six'],
                                    label=[2, 1])).cast_column('label', ClassLabel(num_classes=3))
    both = as_batch(model, loaded, tokenizer)
    assert both['input_ids'].tolist() == ids([('one two', 'six'),
                                              ('two', 'four six')]) == ids(encode(loaded, tokenizer))
    assert both['labels'].tolist() == [2, 1]
    data, collate, order = encoded_for(model, loaded, tokenizer)
    assert [len(data[i]['input_ids']) for i in order] == sorted(map(len, data['input_ids']), reverse=True)
    assert 'labels' in collate([data[0]])
    short = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1,
                                                     num_attention_heads=2, intermediate_size=8,
                                                     max_position_embeddings=4, pad_token_id=0)).eval()
    with pytest.warns(UserWarning, match='were truncated'):
        assert as_batch(short, SENTENCES, tokenizer)['input_ids'].shape == (3, 4)
    net, batch = signal('tcn', 1)
    assert as_batch(net, {k: v.float() for k, v in batch.items()})['values'].dtype == torch.float64


def test_a_data_set_is_explained_in_words_and_with_details():
    tokenizer, model = words_and_model()
    labels = torch.tensor([0, 2, 1])
    for target in ('each', labels):
        e = explain(model, SENTENCES, 'integrated_gradients', target, tokenizer=tokenizer)
        found = explain_data(model, SENTENCES, 'integrated_gradients', target, tokenizer=tokenizer, batch_size=2,
                             words='max', details=True, progress=False)
        for a, b in zip(found, e.words('max'), strict=True): np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.score, e.score, rtol=1e-9)
        np.testing.assert_allclose(found.completeness_error, e.completeness_error, rtol=1e-6)
        assert found.options == e.options
        assert (found.target == 'each' if target is not labels else found.target.tolist() == labels.tolist())
    plain = explain_data(model, SENTENCES, 'occlusion', tokenizer=tokenizer, details=True, progress=False)
    assert plain.completeness_error is None
    assert type(explain_data(model, SENTENCES, 'random', tokenizer=tokenizer, progress=False)) is list
    assert plain.target.tolist() == explain(model, SENTENCES, 'random', tokenizer=tokenizer).target.tolist()


def test_other_heads_are_explained_for_predictions_and_labels():
    sizes = dict(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=20,
                 pad_token_id=0, initializer_range=.3)
    batch, real = sentences('bert'), sentences('bert')['attention_mask'].bool()
    for make, count in ((BertForTokenClassification, 3), (BertForMaskedLM, 60)):
        model = seeded(lambda: make(BertConfig(num_labels=3, **sizes))).double().eval()
        logp = model(**batch).logits.log_softmax(-1).detach()
        labels = torch.where(real, (batch['input_ids'] * 7) % count, -100)
        said = explain(model, batch, 'input_x_gradient', batch_size=2)
        told = explain(model, dict(batch, labels=labels), 'input_x_gradient', 'gold')
        for i in range(3):
            at = real[i].nonzero()[:, 0].tolist()
            assert said.score[i].item() == pytest.approx(sum(logp[i, j].max().item() for j in at) / len(at), rel=1e-5)
            assert told.score[i].item() == pytest.approx(sum(logp[i, j, labels[i, j]].item() for j in at) / len(at),
                                                         rel=1e-5)
        best = model(**batch).logits.argmax(-1)
        mean = lambda outputs, rows: (outputs.logits.log_softmax(-1).gather(2, best[rows][..., None])[..., 0]
                                      * real[rows]).sum(1) / real[rows].sum(1)
        torch.testing.assert_close(said.values, explain(model, batch, 'input_x_gradient', mean).values, rtol=1e-4,
                                   atol=1e-6)
        for target in (0, 'each'):
            with pytest.raises(ValueError, match="must be 'predicted', 'gold', or a function"):
                explain(model, batch, 'gradient_norm', target)
    model = seeded(lambda: BertForSequenceClassification(BertConfig(num_labels=1, **sizes))).double().eval()
    rating, logits = torch.tensor([1.5, -2., .5]), model(**batch).logits[:, 0].detach()
    torch.testing.assert_close(explain(model, batch, 'gradient_norm').score, logits)
    told = explain(model, dict(batch, labels=rating.double()), 'gradient_norm', 'gold')
    torch.testing.assert_close(told.score, -(logits - rating)**2)
    model, batch = tiny('marian'), sentences('marian')
    batch |= dict(labels=torch.tensor([[7, 8, 9]] * 3))
    logp = model(**{k: v for k, v in batch.items() if k != 'labels'}).logits.log_softmax(-1).detach()
    for target, words in (('gold', batch['labels']), ('predicted', logp.argmax(-1))):
        torch.testing.assert_close(explain(model, batch, 'gradient_norm', target).score,
                                   logp.gather(2, words[..., None])[..., 0].mean(1), rtol=1e-5, atol=1e-6)


def test_memory_is_limited_by_default():
    model, tokens = tiny('bert'), []
    model.bert.encoder.register_forward_hook(lambda m, args, out: tokens.append(args[0].shape[:2].numel()))
    many = {k: v.repeat(90, 1) for k, v in sentences('bert').items()}
    for method in ('input_x_gradient', 'deeplift', 'occlusion'): explain(model, many, method)
    assert max(tokens) <= 1024 < many['attention_mask'].sum()
    # 590 MiB as one map per window
    assert [tuple(x.shape) for x in _windows((224, 224), (4, 4), None, 'cpu')] == [(111, 224), (111, 224)]


def test_completeness_without_a_gain_is_nan_or_infinite():
    values, gain = torch.tensor([[[1., 1.], [0., 0.], [1., 0.]]]), torch.tensor([[4., 0., 0.]])
    found = completeness(values, gain, 1)[0]
    assert found[0] == .5 and found[1].isnan() and found[2].isinf()
    # 50 % below and 20 % above
    layers = torch.stack([torch.tensor([[[1.]], [[6.]]]), torch.tensor([[[2.]], [[5.]]])])
    assert completeness(values[:, :1], layers, 1).item() == .5


def test_numpy_integers_are_accepted():
    model, batch = tiny('bert'), sentences('bert')
    one, two = (explain(model, batch, 'attention', kind(1), heads=kind(2), seed=kind(3)) for kind in (int, np.int64))
    assert torch.equal(one.values, two.values) and one.target.tolist() == two.target.tolist() == [1, 1, 1]
    assert explain(model, batch, 'deep_shap',
                   baselines=[0, 5]).options == dict(baselines=[0, 5], rules='salviz', seed=0)


# errors

@pytest.mark.parametrize('kwargs, said', [
    (dict(method='lime'), "method must be one of 'gradient'"),
    (dict(method='gradient'), 'identically zero for BertForSequenceClassification'),
    (dict(target=3), 'target must be a class of this model, from 0 to 2, got 3'),
    (dict(target='gold'), "target='gold' needs one class"),
    (dict(target=True), 'target must be'), (dict(batch_size=0), 'batch_size must be a positive integer'),
    (dict(seed=.5), 'seed must be an integer'),
    (dict(seed=-1), 'between 0 and 4,294,967,295'), (dict(batch_size=.5), 'batch_size must be a positive integer'),
    (dict(method='smoothgrad', noise=float('nan')), 'noise must be a non-negative fraction'),
    (dict(method='smoothgrad', noise=float('inf')), 'noise must be a non-negative fraction'),
    (dict(method='deep_shap', baselines=[0], samples=3), 'omit one of them'),
    (dict(method='deep_shap', baselines=[0, 60]), 'the id of a token, 0 to 59'),
    (dict(method='gradient_shap', baselines=[-1]), 'the id of a token, 0 to 59'),
    (dict(baseline=60), 'the id of a token, 0 to 59'),
    (dict(method='occlusion', replacement=60), 'replacement of occlusion must be the id of a token, 0 to 59'),
    (dict(method='smoothgrad', samples=0), 'samples must be a positive integer'),
    (dict(method='smoothgrad', base='integrated_gradients'), 'base must be one of'),
    (dict(method='smoothgrad', base='gradient'), 'identically zero'),
    (dict(method='deeplift', rules='lrp'), 'rules must be one of'),
    (dict(method='deeplift', baseline=.5), 'baseline of a text .None: the pad token. must be the id of a token'),
    (dict(method='occlusion', replacement='nothing'), 'replacement must be'),
    (dict(method='occlusion', window=3), 'window is for images and series'),
    (dict(method='attention', row='first'), "row must be 'pooled', 'mean' or None"),
    (dict(method='attention', heads=9), 'heads must be from 0 to 3'),
    (dict(method='attention', layers=5), 'has the layers 0 to 1'),
    (dict(method='attention_integrated_gradients', reading='x'), 'reading must be'),
    (dict(method='random', steps=3), 'random has no option steps')])
def test_bad_arguments_raise_errors_of_one_sentence(kwargs, said):
    with pytest.raises(ValueError, match=said): explain(tiny('bert'), sentences('bert'), **kwargs)


def test_bad_inputs_raise_errors_of_one_sentence():
    tokenizer, model = words_and_model()
    for inputs, said in ((['one', ('two', 'six')], 'a list of pairs, str'),
                         ([], 'data is empty'), ([('one', 'two', 'six')], 'got a list of tuple'),
                         (dict(test=encode_texts(SENTENCES, tokenizer)), 'one split, got a dictionary of test'),
                         (encode_texts(SENTENCES, tokenizer).select([]), 'data is empty')):
        for ask in (explain, explain_data):
            with pytest.raises(ValueError, match=said): ask(model, inputs, 'random', tokenizer=tokenizer)
    for ask in (explain, explain_data):
        with pytest.raises(ValueError, match='texts need their tokenizer'): ask(model, SENTENCES, 'random')
    with pytest.raises(ValueError, match='pass one class per example'):
        explain_data(model, encode_texts(SENTENCES, tokenizer), 'random', torch.tensor([0]), tokenizer=tokenizer)
    with pytest.raises(ValueError, match='needs at least two tokens in every text'):
        explain(model, dict(input_ids=torch.tensor([[6, 5], [7, 0]]), attention_mask=torch.tensor([[1, 1], [1, 0]])),
                'occlusion', replacement='removal')
    net, batch = signal('digit-cnn')
    with pytest.raises(ValueError, match='leaves gaps'): explain(net, batch, 'occlusion', window=2, stride=3)
    with pytest.raises(ValueError, match='replacement is for texts'):
        explain(net, batch, 'occlusion', replacement='zeros')
    with pytest.raises(ValueError, match=r'baselines must be an array \[K, 2, 8, 8\]'):
        explain(net, batch, 'deep_shap', baselines=torch.zeros(3))
    with pytest.raises(ValueError, match='words: the batch has no word_ids'):
        explain(net, batch, 'random').words()
    with pytest.raises(ValueError,
                       match="'predicted' for seq2seq needs labels.*define the score with a function"):
        explain(tiny('marian'), sentences('marian'))
    more = dict(sentences('bert'), labels=torch.tensor([0, 3, 1]))
    with pytest.raises(ValueError,
                       match='labels go up to 3, but the model only has the classes 0 to 2, so the data has more'):
        explain(tiny('bert'), more, 'random', 'gold')


@pytest.mark.slow
def test_explainers_is_correct():
    for model in (tiny('bert'), tiny('gpt2'), tiny('marian'),
                  small_net('text-lstm', vocab_size=60, embedding_size=4, hidden_size=3)):
        table = explainers(model)
        assert list(table) == methods
        refused = {m for m, why in table.items() if why != 'available'}
        assert refused == ({'gradient'} if model.config.model_type in ('bert', 'gpt2') else
                           {m for m in methods if 'attention' in m} | {'rollout'} if 'lstm' in model.config.model_type
                           else set()), table


def imports(path, seen):
    "Return all packages that a module of salviz imports, directly or through other modules of salviz"
    if path in seen or not path.exists(): return set()
    seen.add(path)
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import): found |= {a.name.partition('.')[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            name = ((node.module or '').replace('salviz.', '') if node.level or (node.module or '').startswith('salviz')
                    else None)
            if name is None: found.add(node.module.partition('.')[0])
            else:
                base = path.parents[node.level - 1] if node.level else package
                inner = base/name.replace('.', '/')
                found |= imports(inner.with_suffix('.py'),
                                 seen) | imports(inner/'__init__.py', seen) | imports(inner.parent/'__init__.py', seen)
    return found


def test_computing_modules_do_not_import_captum_or_plotting_libraries():
    seen, found = set(), set()
    for module in ('attribution/explanations', 'analysis/faithfulness', 'analysis/corpus', 'analysis/antecedents'):
        found |= imports(package/f'{module}.py', seen)
    assert 'torch' in found
    assert package/'methods'/'base.py' in seen
    assert not {'captum', 'matplotlib', 'plotly', 'ipywidgets'} & found
