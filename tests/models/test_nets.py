"""models.nets: every net against slow float64 loops from its equations; causality, padding, saving, seeds, gradients,
Captum"""
import itertools
import json
import math
import random

import numpy as np
import pytest
import torch
from captum.attr import DeepLift
from datasets import ClassLabel, Dataset, DatasetDict
from torch import nn

from salviz.models.attention import _layer_count, check_observable, head_count, observe
from salviz.methods.base import FineTuning
from salviz.models.checkpoints import load_model
from salviz.models.corruption import small_model, train_tokenizer
from salviz.models.loading import undisturbed
from salviz.models.nets import (TCN, DigitCNN, InputCellLSTM, ResNet18, SeriesLSTM, SeriesTransformer,
                                SeriesTransformerConfig, TextLSTM, nets, small_net)
from salviz.data.signals import load_images, load_series, synthetic_series
from salviz.training.trainer import train

small = {'digit-cnn': dict(shape=(2, 10, 9), filters=(3, 4), hidden_size=5),
         'resnet18': dict(shape=(3, 8, 8), filters=(2, 3, 4, 5)),
         'lstm': dict(shape=(6, 4)), 'input-cell-lstm': dict(shape=(6, 4), hops=3, attention_size=5),
         'tcn': dict(shape=(12, 4), channels=(3, 3, 5)),
         'transformer': dict(shape=(6, 4), num_hidden_layers=2, num_attention_heads=2, intermediate_size=7),
         'text-lstm': dict(vocab_size=20, embedding_size=4, hidden_size=3)}

def net_of(name, num_labels=3, **settings): return small_net(name, num_labels=num_labels, **small[name] | settings)

def example(name, n=2, seed=0):
    "Return model inputs of `n` examples"
    rng = torch.Generator().manual_seed(seed)
    if name == 'text-lstm':
        return dict(input_ids=torch.randint(1, 20, (n, 7), generator=rng),
                    attention_mask=torch.ones(n, 7, dtype=torch.long))
    key = 'pixel_values' if name in ('digit-cnn', 'resnet18') else 'values'
    return {key: torch.randn(n, *small[name]['shape'], generator=rng)}

def w(net):
    "Return weights as float64 arrays by name"
    return {name: x.detach().double().numpy() for name, x in net.state_dict().items()}

def relu(x): return np.maximum(x, 0)
def sigmoid(x): return 1/(1 + np.exp(-x))
def softmax(x): return np.exp(x - max(x))/sum(np.exp(x - max(x)))

def close(net, x, expected):
    "Check that the net's logits for `x` agree with the float64 ones, in float32 and (closely) in float64"
    np.testing.assert_allclose(net(x).logits.detach().numpy(), expected, atol=2e-5)
    double = type(net)(net.config).double().eval()
    double.load_state_dict({k: v.double() if v.is_floating_point() else v for k, v in net.state_dict().items()})
    np.testing.assert_allclose(double(x.double()).logits.detach().numpy(), expected, atol=1e-10)

# images

def convolved(x, weight, bias=None, stride=1, padding=0):
    "Return the 2D convolution (correlation) of x [C, H, W], output by output"
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    k, out = weight.shape[2], np.zeros((len(weight), (x.shape[1] - weight.shape[2])//stride + 1,
                                        (x.shape[2] - weight.shape[2])//stride + 1))
    for o, i, j in itertools.product(*map(range, out.shape)):
        out[o, i, j] = (x[:, i*stride:i*stride + k,
                          j*stride:j*stride + k]*weight[o]).sum() + (0 if bias is None else bias[o])
    return out

def test_the_digit_cnn_is_two_convolutions_a_pool_and_two_linear_layers():
    net, x = net_of('digit-cnn'), example('digit-cnn')['pixel_values']
    p, expected = w(net), []
    for image in x.double().numpy():
        h = relu(convolved(image, p['features.0.weight'], p['features.0.bias']))
        h = relu(convolved(h, p['features.2.weight'], p['features.2.bias']))
        pooled = [max(h[c, i + a, j + b] for a in (0, 1) for b in (0, 1)) for c in range(4)
                  for i in range(0, h.shape[1] - 1, 2) for j in range(0, h.shape[2] - 1, 2)]
        h = relu(p['classifier.0.weight'] @ pooled + p['classifier.0.bias'])
        expected.append(p['classifier.3.weight'] @ h + p['classifier.3.bias'])
    close(net, x, expected)
    assert [m.p for m in net.modules() if isinstance(m, nn.Dropout)] == [.25, .5]

def warm_norms(net):
    "Set statistics and weights of batch norms to values other than their defaults"
    for i, m in enumerate(m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        rng = torch.Generator().manual_seed(i)
        for t, low in ((m.running_mean, -.3), (m.running_var, .5), (m.weight.data, .5), (m.bias.data, -.3)):
            t.copy_(torch.rand(t.shape, generator=rng) + low)

def test_resnet18_is_a_stem_without_pooling_and_four_stages_of_two_blocks():
    net, x = net_of('resnet18'), example('resnet18')['pixel_values']
    warm_norms(net)
    p, expected = w(net), []
    def norm(h, at):
        return np.stack([(h[c] - p[f'{at}.running_mean'][c])/math.sqrt(p[f'{at}.running_var'][c]
                                                                       + 1e-5)*p[f'{at}.weight'][c] + p[f'{at}.bias'][c]
                         for c in range(len(h))])
    for image in x.double().numpy():
        h = relu(norm(convolved(image, p['stem.0.weight'], padding=1), 'stem.1'))
        assert h.shape == (2, 8, 8)
        for block in range(8):
            at, stride = f'stages.{block}', 2 if block in (2, 4, 6) else 1
            inner = relu(norm(convolved(h, p[f'{at}.block.0.weight'], stride=stride, padding=1), f'{at}.block.1'))
            inner = norm(convolved(inner, p[f'{at}.block.3.weight'], padding=1), f'{at}.block.4')
            past = (norm(convolved(h, p[f'{at}.shortcut.0.weight'], stride=stride), f'{at}.shortcut.1')
                    if block in (2, 4, 6) else h)
            h = relu(inner + past)
        expected.append(p['classifier.2.weight'] @ h.mean((1, 2)) + p['classifier.2.bias'])
    assert h.shape == (5, 1, 1)
    close(net, x, expected)

def test_the_published_sizes():
    assert sum(p.numel() for p in small_net('digit-cnn', num_labels=10).parameters()) == 1_199_882
    assert sum(p.numel() for p in small_net('resnet18', num_labels=10).parameters()) == 11_173_962
    assert small_net('lstm').config.hidden_size == 5
    cells, tcn, encoder = small_net('input-cell-lstm').config, small_net('tcn').config, small_net('transformer').config
    assert (cells.hops, cells.attention_size, cells.hidden_size, tcn.channels,
            tcn.kernel_size) == (10, 50, 5, (5, 5, 50), 4)
    assert (encoder.num_hidden_layers, encoder.num_attention_heads) == (6, 5)
    assert all(c.dropout == .1 for c in (cells, tcn, encoder, small_net('lstm').config))

# LSTMs

def lstm(xs, p, at):
    "Return the states of an LSTM over the list of vectors `xs`, gate by gate"
    size = p[f'{at}.weight_hh_l0'].shape[1]
    h, c, states = np.zeros(size), np.zeros(size), []
    for x in xs:
        sums = p[f'{at}.weight_ih_l0'] @ x + p[f'{at}.bias_ih_l0'] + p[f'{at}.weight_hh_l0'] @ h + p[f'{at}.bias_hh_l0']
        i, f, g, o = sums[:size], sums[size:2*size], sums[2*size:3*size], sums[3*size:]
        c = sigmoid(f)*c + sigmoid(i)*np.tanh(g)
        h = sigmoid(o)*np.tanh(c)
        states.append(h)
    return states

def summaries(series, p, hops):
    "Return at every step the mean over hops of the series so far, weighted by the softmax of W2 tanh(W1 x)"
    out = []
    for t in range(len(series)):
        mixed = np.zeros(series.shape[1])
        for hop in range(hops):
            scores = np.array([p['attention.second.weight'][hop] @ np.tanh(p['attention.first.weight'] @ series[s]
                                                                           + p.get('attention.first.bias', 0))
                               for s in range(t + 1)])
            for s, a in enumerate(softmax(scores)): mixed += a*series[s]/hops
        out.append(mixed)
    return out

@pytest.mark.parametrize('cell', ['fused', 'modules'])
@pytest.mark.parametrize('name,settings',
                         [('lstm', {}), ('input-cell-lstm', {}), ('input-cell-lstm', dict(attention_bias=True))])
def test_the_lstms_equal_their_equations_step_by_step(name, settings, cell):
    net, x = net_of(name, cell=cell, **settings), example(name)['values']
    p, expected = w(net), []
    assert ('attention.first.bias' in p) == ('attention_bias' in settings) and 'attention.second.bias' not in p
    for series in x.double().numpy():
        states = lstm(series if name == 'lstm' else summaries(series, p, 3), p, 'recurrence.lstm')
        expected.append(p['classifier.weight'] @ states[-1] + p['classifier.bias'])
    close(net, x, expected)

def test_input_cell_attention_is_causal():
    net, x = small_net('input-cell-lstm', shape=(9, 4)), torch.randn(1, 9, 4, requires_grad=True)
    for t in range(9):
        slope, = torch.autograd.grad(net.attention(x)[0, t].sum(), x)
        reached = (slope[0] != 0).any(-1)
        assert reached[:t + 1].all() and not reached[t + 1:].any()
    A = net.attention.weights(x)
    assert A.shape == (1, 10, 9, 9) and torch.allclose(A.sum(-1), torch.ones(1, 10, 9)) and A.triu(1).abs().max() == 0

def test_lstms_read_series_of_any_length_and_module_cells_up_to_their_length():
    for name in ('lstm', 'input-cell-lstm'): assert net_of(name)(torch.randn(1, 11, 4)).logits.shape == (1, 3)
    short = net_of('lstm', cell='modules')
    torch.testing.assert_close(short(torch.ones(1, 3, 4)).logits, net_of('lstm')(torch.ones(1, 3, 4)).logits)
    with pytest.raises(ValueError, match="cell='modules' was built for 6 steps, got 11"): short(torch.randn(1, 11, 4))
    with pytest.raises(ValueError, match="cell must be 'fused' or 'modules'"): net_of('lstm', cell='gru')

# TCN

def causal(x, weight, bias, dilation):
    """Return y[o, t] = b[o] + sum over c and taps j of W[o, c, j] x[c, t - (K - 1 - j) dilation], zero before the
    beginning"""
    K, out = weight.shape[2], np.zeros((len(weight), x.shape[1]))
    for o, t in itertools.product(range(len(weight)), range(x.shape[1])):
        out[o, t] = bias[o]
        for j in range(K):
            s = t - (K - 1 - j)*dilation
            if s >= 0: out[o, t] += sum(weight[o, c, j]*x[c, s] for c in range(len(x)))
    return out

def test_the_tcn_is_causal_dilated_convolutions_with_residual_paths_and_a_maximum_over_time():
    net, x = net_of('tcn'), example('tcn')['values']
    p, expected = w(net), []
    for series in x.double().numpy():
        h = series.T
        for level in range(3):
            at, d = f'levels.{level}', 2**level
            inner = relu(causal(h, p[f'{at}.block.1.weight'], p[f'{at}.block.1.bias'], d))
            inner = relu(causal(inner, p[f'{at}.block.5.weight'], p[f'{at}.block.5.bias'], d))
            past = (h if f'{at}.shortcut.weight' not in p
                    else causal(h, p[f'{at}.shortcut.weight'], p[f'{at}.shortcut.bias'], 1))
            h = relu(inner + past)
        expected.append(p['classifier.weight'] @ [max(row) for row in h] + p['classifier.bias'])
    assert 'levels.1.shortcut.weight' not in p and 'levels.2.shortcut.weight' in p
    close(net, x, expected)

def test_the_tcn_depends_on_exactly_43_steps_and_no_later_ones():
    net = small_net('tcn', shape=(60, 3)).double()
    for p in net.parameters(): p.data = p.data.abs()  # positive everywhere: no ReLU hides a path
    x = torch.rand(1, 60, 3, dtype=torch.float64, requires_grad=True)
    for t in (0, 20, 50):
        slope, = torch.autograd.grad(net.levels(x.transpose(1, 2))[0, :, t].sum(), x)
        reached = (slope[0] != 0).all(-1).nonzero().flatten().tolist()
        assert reached == list(range(max(0, t - 42), t + 1)) and (slope[0] != 0).any(-1).sum() == len(reached)

# Transformer

def layer_norm(h, p, at): return (h - h.mean())/math.sqrt(h.var() + 1e-5)*p[f'{at}.weight'] + p[f'{at}.bias']

def encoded(series, p, layers, heads, causal):
    "Return the states of the encoder, position by position and head by head, and the attention maps"
    d = p['norm.weight'].shape[0]
    project = (lambda v: p['project.weight'] @ v + p['project.bias']) if 'project.weight' in p else lambda v: v
    h, maps = [], []
    for t, v in enumerate(series):
        place = [(math.sin if i % 2 == 0 else math.cos)(t/10000**((i - i % 2)/d)) for i in range(d)]
        h.append(project(v)*math.sqrt(d) + place)
    for l in range(layers):
        at, size, new = f'layers.{l}', d//heads, []
        def linear(name, v): return p[f'{at}.{name}.weight'] @ v + p[f'{at}.{name}.bias']
        normed = [layer_norm(v, p, f'{at}.norm_1') for v in h]
        q, k, u = ([linear(f'attention.{name}', v) for v in normed] for name in ('query', 'key', 'value'))
        A = np.zeros((heads, len(h), len(h)))
        for t in range(len(h)):
            mixed = np.zeros(d)
            for head in range(heads):
                part, seen = slice(head*size, (head + 1)*size), t + 1 if causal else len(h)
                A[head, t, :seen] = softmax(np.array([q[t][part] @ k[s][part]/math.sqrt(size) for s in range(seen)]))
                mixed[part] = sum(A[head, t, s]*u[s][part] for s in range(seen))
            v = h[t] + linear('attention.out', mixed)
            new.append(v + linear('feed_forward.4',
                                  relu(linear('feed_forward.1', layer_norm(v, p, f'{at}.feed_forward.0')))))
        h = new; maps.append(A)
    return [layer_norm(v, p, 'norm') for v in h], np.array(maps)

@pytest.mark.parametrize('form', ['sdpa', 'eager'])
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('heads', [2, 3])
def test_the_series_transformer_equals_its_equations_and_can_be_observed(heads, causal, form):
    net, x = net_of('transformer', num_attention_heads=heads, causal=causal), example('transformer')['values']
    net.set_attn_implementation(form)
    assert net.width == (4 if heads == 2 else 6)
    assert (net.project.weight.shape == (6, 4) if heads == 3 else isinstance(net.project, nn.Identity))
    p, expected, maps = w(net), [], []
    for series in x.double().numpy():
        states, A = encoded(series, p, 2, heads, causal)
        expected.append(p['classifier.weight'] @ [max(v[i] for v in states) for i in range(net.width)]
                        + p['classifier.bias'])
        maps.append(A)
    np.testing.assert_allclose(net(x).logits.detach().numpy(), expected, atol=2e-5)
    with observe(net) as seen: np.testing.assert_allclose(net(x).logits.detach().numpy(), expected, atol=2e-5)
    np.testing.assert_allclose(seen.stacked().detach().numpy(), maps, atol=2e-6)
    assert (seen.allowed(0)[0, 0].numpy() == (np.tri(6, dtype=bool) if causal else np.ones((6, 6), bool))).all()
    assert net.config._attn_implementation == form and (_layer_count(net), head_count(net)) == (2, heads)

def test_attention_of_the_series_transformer_can_be_dropped_scaled_and_differentiated():
    net, x = net_of('transformer'), example('transformer')['values']
    check_observable(net)
    plain = net(x).logits
    drop = torch.zeros(2, 2, 6, 6, dtype=torch.bool); drop[:, 0, :, 2] = True
    with observe(net, layers=[0, 1], drop={0: drop}) as maps:
        out = net(x).logits
        slope, = torch.autograd.grad(out[:, 1].sum(), maps[1])
    assert maps[0][:, 0, :, 2].abs().max() == 0 and (maps[0][:, 1, :, 2] > 0).all()
    assert not torch.allclose(out, plain) and slope.shape == (2, 2, 6, 6) and slope.abs().max() > 0
    with observe(net, scale={0: 1., 1: 1.}): torch.testing.assert_close(net(x).logits, plain)

def test_a_width_that_the_heads_do_not_divide_is_rejected():
    with pytest.raises(ValueError, match='hidden_size must be a multiple of num_attention_heads=2, got 5'):
        net_of('transformer', hidden_size=5)
    assert net_of('transformer', hidden_size=8).width == 8

# text

def test_the_text_lstm_reads_only_real_tokens_in_both_directions():
    net = net_of('text-lstm')
    p = w(net)
    rows = [[4, 9, 2, 7, 3], [5, 6], [8]]
    expected = []
    for row in rows:
        vectors = [p['embeddings.weight'][i] for i in row]
        ends = [lstm(vectors, p, 'forwards.lstm')[-1], lstm(vectors[::-1], p, 'backwards.lstm')[-1]]
        expected.append(p['classifier.weight'] @ np.concatenate(ends) + p['classifier.bias'])
    for n in (5, 9):  # for any number and any ids of padding tokens
        for pad in (0, 11):
            ids, mask = torch.full((3, n), pad), torch.zeros(3, n, dtype=torch.long)
            for i, row in enumerate(rows): ids[i, :len(row)] = torch.tensor(row); mask[i, :len(row)] = 1
            np.testing.assert_allclose(net(input_ids=ids, attention_mask=mask,
                                           token_type_ids=0*ids).logits.detach().numpy(), expected, atol=1e-5)
            ids, mask = ids.flip(1), mask.flip(1)  # left padding: each row is read from its other end
            flipped = [net(input_ids=torch.tensor([row[::-1]])).logits[0].detach().numpy() for row in rows]
            np.testing.assert_allclose(net(input_ids=ids, attention_mask=mask).logits.detach().numpy(), flipped,
                                       atol=1e-5)

def test_padding_gets_no_gradient_and_words_one_whose_sum_is_not_zero():
    net = net_of('text-lstm')
    ids, mask = torch.tensor([[4, 9, 2, 0, 0]]), torch.tensor([[1, 1, 1, 0, 0]])
    x = net.get_input_embeddings()(ids).detach().requires_grad_()
    out = net(inputs_embeds=x, attention_mask=mask).logits
    torch.testing.assert_close(out, net(input_ids=ids, attention_mask=mask).logits)
    slope, = torch.autograd.grad(out[0, 1], x)
    assert (slope[0, 3:] == 0).all() and (slope[0, :3].sum(-1).abs() > 1e-5).all()
    assert not any(isinstance(m, nn.LayerNorm) for m in net.modules())
    with pytest.raises(ValueError, match='input_ids or inputs_embeds; pass exactly one'):
        net(input_ids=ids, inputs_embeds=x)

def test_a_text_without_real_tokens_has_finite_logits():
    assert net_of('text-lstm')(input_ids=torch.zeros(1, 4, dtype=torch.long),
                               attention_mask=torch.zeros(1, 4)).logits.isfinite().all()

# all nets

@pytest.mark.parametrize('name', list(nets))
def test_a_net_saved_and_loaded_gives_the_same_logits(name, tmp_path):
    net = small_net(name, labels=['x', 'y', 'z'], **small[name])
    with torch.no_grad():
        for p in net.parameters(): p.add_(torch.randn_like(p)*.1)
    warm_norms(net)
    net.save_pretrained(tmp_path)
    again = type(net).from_pretrained(tmp_path)
    assert not again.training
    assert again.config.id2label == {0: 'x', 1: 'y', 2: 'z'}
    assert again.config.num_labels == 3
    assert again.state_dict().keys() == net.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), net.state_dict().values()))
    assert torch.equal(again(**example(name)).logits, net(**example(name)).logits)

def test_a_checkpoint_of_fewer_classes_gets_a_new_head_that_is_initialised(tmp_path):
    net_of('tcn').save_pretrained(tmp_path)
    grown = TCN.from_pretrained(tmp_path, num_labels=5, ignore_mismatched_sizes=True)
    assert grown.classifier.weight.shape == (5, 5) and 0 < grown.classifier.weight.abs().max() <= 1/math.sqrt(5) + 1e-6
    assert torch.equal(grown.levels[0].block[1].weight, net_of('tcn').levels[0].block[1].weight)

@pytest.mark.parametrize('name', list(nets))
def test_weights_depend_only_on_the_seed_and_do_not_use_the_global_generators(name):
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    one = net_of(name, seed=1)
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all()
    assert torch.equal(torch.get_rng_state(), states[2])
    torch.rand(7)
    two, other = net_of(name, seed=1), net_of(name, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters())) and not one.training
    assert not torch.equal(one(**example(name)).logits, other(**example(name)).logits)

@pytest.mark.parametrize('name', list(nets))
def test_labels_give_the_cross_entropy_and_the_task_is_named(name):
    net, labels = net_of(name), torch.tensor([2, 0])
    out = net(**example(name), labels=labels)
    expected = -sum(math.log(softmax(row)[y]) for row, y in zip(out.logits.detach().double().numpy(), labels))/2
    assert out.loss.item() == pytest.approx(expected, rel=1e-5) and net(**example(name)).loss is None
    task = dict(zip(nets, ['image_classification']*2 + ['series_classification']*4 + ['classification']))[name]
    assert net.salviz_task == task and net.main_input_name == next(iter(example(name)))

@pytest.mark.parametrize('name', [name for name in nets if name != 'text-lstm'])
@pytest.mark.parametrize('training', [False, True])
def test_the_gradient_of_a_logit_reaches_the_input_and_no_parameter(name, training):
    net = net_of(name).double()
    (key, x), = example(name).items()
    x = x.double().requires_grad_()
    with undisturbed(net, training=training, seed=0):
        slope, = torch.autograd.grad(net(**{key: x}).logits[:, 1].sum(), x)
        direction = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        def at(step):
            torch.manual_seed(5)
            return net(**{key: (x + step*direction).detach()}).logits[:, 1].sum().item()
        if not training:
            assert (at(1e-6) - at(-1e-6))/2e-6 == pytest.approx((slope*direction).sum().item(), rel=1e-4, abs=1e-7)
    assert slope.shape == x.shape and slope.abs().sum() > 0 and all(p.grad is None for p in net.parameters())

@pytest.mark.parametrize('name', list(nets))
def test_dropout_works_in_training_and_not_in_evaluation(name):
    net, x = net_of(name), example(name, n=8)
    assert torch.equal(net(**x).logits, net(**x).logits)
    if name == 'resnet18': assert not any(isinstance(m, nn.Dropout) for m in net.modules())
    else: assert not torch.equal(net.train()(**x).logits, net(**x).logits)

@pytest.mark.parametrize('name,shape,said', [
    ('digit-cnn', (2, 10, 8), r'DigitCNN was built for pixel_values \[batch, 2, 10, 9\], got \[1, 2, 10, 8\]'),
    ('resnet18', (1, 8, 8), 'ResNet18 was built for'),
    ('lstm', (6, 5), r'SeriesLSTM was built for values \[batch, any, 4\], got \[1, 6, 5\]'),
    ('input-cell-lstm', (6,), 'InputCellLSTM was built for'),
    ('tcn', (11, 4),
     r'TCN was built for values \[batch, 12, 4\], got \[1, 11, 4\]; build a network with shape=\(11, 4\)'),
    ('transformer', (7, 4), 'SeriesTransformer was built for')])
def test_an_input_of_another_shape_is_rejected_by_name(name, shape, said):
    with pytest.raises(ValueError, match=said): net_of(name)(torch.zeros(1, *shape))

@pytest.mark.parametrize('args,kwargs,said', [
    (['vgg'], {}, "unknown network 'vgg'; available: digit-cnn, resnet18"), ([nn.Linear], {}, 'unknown network'),
    (['tcn'], dict(layers=2), 'TCN has no setting layers; available: shape, channels'),
    (['tcn'], dict(shape=(1, 2, 3)), 'shape must have 2 entries for TCN'),
    (['lstm'], dict(num_labels=1), 'at least 2, got 1'),
    (['lstm'], dict(num_labels=3, labels=['a', 'b']), 'labels has 2 names, but num_labels is 3'),
    (['text-lstm'], dict(shape=(3, 4)), 'TextLSTM has no setting shape')])
def test_invalid_nets_are_rejected(args, kwargs, said):
    with pytest.raises(ValueError, match=said): small_net(*args, **kwargs)

def test_shape_and_classes_are_read_from_a_data_set():
    series = synthetic_series('small-middle', n_train=4, n_validation=2, n_test=2)
    for cls in (SeriesLSTM, InputCellLSTM, TCN, SeriesTransformer):
        net = small_net(cls, series)
        assert tuple(net.config.shape) == (50, 50) and net.config.id2label == {0: 'negative', 1: 'positive'}
    vowels = load_series('japanese-vowels')
    assert small_net('transformer', vowels['test']).width == 15 and small_net('tcn', vowels).config.num_labels == 9
    images = load_images((np.random.default_rng(0).random((20, 3, 8, 8)), np.arange(20) % 2))
    assert tuple(small_net('resnet18', images, filters=(2, 2, 2, 2)).config.shape) == (3, 8, 8)
    with pytest.raises(ValueError, match='DigitCNN takes pixel_values, but the data has the columns values'):
        small_net('digit-cnn', vowels)
    with pytest.raises(ValueError, match='TextLSTM takes input_ids'): small_net(TextLSTM, vowels)
    with pytest.raises(ValueError, match='needs a column "label" with the classes, but the data has the columns'):
        small_net('lstm', vowels.remove_columns('label'))

# Captum

class Logits(nn.Module):
    def __init__(self, run): super().__init__(); self.run = run
    def forward(self, x):
        out = self.run(x)
        return out if isinstance(out, torch.Tensor) else out.logits

class Levels(nn.Module):
    "The TCN with the mean over time instead of the maximum"
    def __init__(self, net): super().__init__(); self.net = net
    def forward(self, x): return self.net.classifier(self.net.levels(x.transpose(1, 2)).mean(-1))

@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', ['digit-cnn', 'resnet18', 'tcn'])
def test_deeplift_is_complete_where_every_nonlinearity_is_a_module(name):
    net, x = net_of(name).double(), next(iter(example(name).values())).double()
    warm_norms(net)
    f = Logits(Levels(net) if name == 'tcn' else net)
    lifted = DeepLift(f).attribute(x, target=2)
    torch.testing.assert_close(lifted.flatten(1).sum(1), (f(x) - f(0*x))[:, 2], rtol=1e-6, atol=1e-9)

@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name,settings,seen,unseen', [
    ('lstm', {}, dict(cell='modules'), dict(cell='fused')),
    ('input-cell-lstm', {}, dict(cell='modules'), dict(cell='fused')),
    ('transformer', dict(dropout=0.), 'eager', 'sdpa')])
def test_deeplift_uses_the_rules_of_module_cells_and_softmax(name, settings, seen, unseen):
    x = next(iter(example(name).values()))
    def lifted(form):
        net = net_of(name, **settings, **(form if isinstance(form, dict) else {}))
        if isinstance(form, str): net.set_attn_implementation(form)
        a = DeepLift(Logits(net)).attribute(x, target=1)
        return a, net(x).logits
    (a, logits), (b, same) = lifted(seen), lifted(unseen)
    torch.testing.assert_close(logits, same)
    assert a.isfinite().all() and b.isfinite().all() and not torch.allclose(a, b, atol=1e-6)

def test_every_activation_module_runs_once_in_a_pass():
    for name in ('digit-cnn', 'resnet18', 'lstm', 'input-cell-lstm', 'tcn', 'transformer'):
        net = net_of(name, **(dict(cell='modules') if 'lstm' in name else {}))
        if name == 'transformer': net.set_attn_implementation('eager')
        calls = {m: 0 for m in net.modules()
                 if isinstance(m, (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.Softmax, nn.MaxPool1d, nn.MaxPool2d))}
        for m in calls: m.register_forward_hook(lambda m, i, o: calls.__setitem__(m, calls[m] + 1))
        net(**example(name))
        assert calls and set(calls.values()) == {1}, name

# Initialisation

@pytest.mark.parametrize('name', ['lstm', 'input-cell-lstm'])
def test_a_forget_bias_is_the_sum_of_torchs_two_biases_and_changes_no_other_weight(name):
    plain, kept = w(net_of(name)), w(net_of(name, forget_bias=1.))
    size = 5
    for key in plain:
        if 'bias' in key and 'recurrence' in key:
            other = np.r_[:size, 2*size:4*size]
            np.testing.assert_array_equal(kept[key][other], plain[key][other])
        else: np.testing.assert_array_equal(kept[key], plain[key])
    both = kept['recurrence.lstm.bias_ih_l0'] + kept['recurrence.lstm.bias_hh_l0']
    assert (both[size:2*size] == 1.).all()

def test_without_a_forget_bias_the_initialisation_is_torchs():
    assert SeriesLSTM.config_class().forget_bias is None
    with_default, without = net_of('lstm', forget_bias=None), net_of('lstm')
    assert all(torch.equal(a, b) for a, b in zip(with_default.parameters(), without.parameters()))

@pytest.mark.parametrize('name', ['lstm', 'input-cell-lstm'])
def test_a_trained_forget_bias_is_saved_and_loaded(name, tmp_path):
    net = net_of(name, forget_bias=1.)
    with torch.no_grad():
        for p in net.parameters(): p.add_(.25)
    net.save_pretrained(tmp_path)
    again = type(net).from_pretrained(tmp_path)
    assert again.config.forget_bias == 1.
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters()))

def test_a_folder_without_a_forget_bias_setting_is_loaded_unchanged(tmp_path):
    net = net_of('lstm')
    net.save_pretrained(tmp_path)
    config = json.loads((tmp_path/'config.json').read_text())
    config.pop('forget_bias', None)
    (tmp_path/'config.json').write_text(json.dumps(config))
    again = SeriesLSTM.from_pretrained(tmp_path)
    assert again.config.forget_bias is None
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters()))

@pytest.mark.parametrize('wrong', ['1', True, math.inf])
def test_a_forget_bias_that_is_not_a_number_is_rejected(wrong):
    with pytest.raises(ValueError, match='forget_bias must be None'): net_of('lstm').recurrence.set_forget_bias(wrong)

def vectors_of(size, dim=4, seed=1): return np.random.default_rng(seed).normal(size=(size, dim)).astype(np.float32)

@pytest.fixture(scope='module')
def words(): return train_tokenizer(['a film about a dog', 'a bad film', 'good'], vocab_size=60)

def test_word_vectors_are_copied_row_by_row_and_nothing_else_changes(words):
    table = vectors_of(len(words))
    taught = small_net('text-lstm', tokenizer=words, embeddings=table, hidden_size=3)
    plain = small_net('text-lstm', tokenizer=words, embedding_size=4, hidden_size=3)
    for i, row in enumerate(taught.embeddings.weight.detach().numpy()):
        np.testing.assert_array_equal(row, 0 if i == words.pad_token_id else table[i])
    for (name, a), (_, b) in zip(taught.named_parameters(), plain.named_parameters()):
        assert name.startswith('embeddings') or torch.equal(a, b)
    assert taught.embeddings.weight.requires_grad and plain.config.embeddings_from is None
    assert table[words.pad_token_id].any()  # the matrix that was passed is not changed

def test_a_net_records_the_source_of_its_word_vectors(words):
    table = vectors_of(len(words))
    named = small_net('text-lstm', tokenizer=words, embeddings=table, embeddings_from='glove.6B')
    other = small_net('text-lstm', tokenizer=words, embeddings=table + 1, embeddings_from='glove.6B')
    assert named.config.embeddings_from.startswith(f'glove.6B, {len(words)} x 4, sha256 ')
    assert named.config.embeddings_from != other.config.embeddings_from

def test_invalid_word_vectors_are_rejected(words):
    model = small_model('classification', words, num_labels=2, layers=1, heads=2, hidden=8)
    other = train_tokenizer(['something else'], vocab_size=40)
    def make(**given): return small_net('text-lstm', **given)
    for given, why in [(dict(embeddings=vectors_of(9)), 'pass tokenizer='),
                       (dict(embeddings=vectors_of(9), tokenizer=words), 'a row for each token of the tokenizer, got'),
                       (dict(embeddings=vectors_of(len(words)), tokenizer=words, embedding_size=5),
                        'embedding_size is 5'),
                       (dict(embeddings=vectors_of(len(words))*np.inf, tokenizer=words), 'must be finite'),
                       (dict(embeddings=(model, words), tokenizer=other), 'a different vocabulary'),
                       (dict(embeddings=(words, model)), r'embeddings must be a matrix .* or \(model, tokenizer\)'),
                       (dict(embeddings_from='glove'), 'which is missing')]:
        with pytest.raises(ValueError, match=why): make(**given)
    assert make(embeddings=(model, words)).config.embedding_size == 8

class Interrupted(FineTuning):
    "Fine-tuning that is interrupted by Ctrl-C"
    def __init__(self): self.at = None
    def plan(self, model, batch, progress):
        if progress.step == self.at and model.training: self.at = None; raise KeyboardInterrupt
        return super().plan(model, batch, progress)

@pytest.mark.slow
def test_a_run_records_its_word_vectors_and_resumes(words, tmp_path):
    rows = dict(text=['a film', 'a bad film', 'good', 'a dog']*4, label=[0, 1, 0, 1]*4)
    data = DatasetDict({name: Dataset.from_dict(rows).cast_column('label', ClassLabel(names=['no', 'yes']))
                        for name in ('train', 'validation', 'test')})
    def begin(): return small_net('text-lstm', tokenizer=words, embeddings=vectors_of(len(words)), hidden_size=3)
    def go(folder, method, **more):
        return train(begin(), words, data, method, run_dir=tmp_path/folder, epochs=2, batch_size=8, progress=False,
                     **more)
    whole, stopping = go('whole', Interrupted()), Interrupted()
    stopping.at = 3
    with pytest.raises(KeyboardInterrupt): go('stopped', stopping)
    again = go('stopped', Interrupted(), resume=True)
    (a, _), (b, _) = load_model(whole, 'last'), load_model(again, 'last')
    assert whole.config['model']['embeddings_from'] == begin().config.embeddings_from
    assert a.config.embeddings_from == b.config.embeddings_from == begin().config.embeddings_from
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters()))
    vectors = torch.from_numpy(vectors_of(len(words)))
    assert not torch.equal(a.embeddings.weight[1:], vectors[1:])  # they were trained on
