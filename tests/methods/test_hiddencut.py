"HiddenCut against its equations in float64, one unpadded text at a time"
import copy
import math

import pytest
import torch

from helpers import descended
from salviz.methods import HiddenCut
from salviz.methods.base import Progress
from salviz.methods.hiddencut import drawn_span, js_divergence
from salviz.models.hidden import cut_hidden
from salviz.models.random import keyed_uniform
from salviz.training.feed import feed_for
from salviz.training.step import step_terms
from salviz.training.trainer import train


@pytest.fixture
def batches(tiny_data, double, tiny_tokenizer):
    feed = feed_for(double, tiny_tokenizer)
    encoded = feed.encode(tiny_data)['train']
    return [feed.collate(list(encoded.select(rows))) for rows in (range(5), range(5, 11))]


def slow_span(scores, draw, fraction, top):
    "Return the positions of the span of one text"
    n = len(scores)
    highest = sorted(range(n), key=lambda i: (-scores[i], i))[:max(1, math.floor(n*top + 1e-6))]
    start = highest[int(draw*len(highest))]
    return list(range(start, min(n, start + max(1, math.floor(n*fraction + 1e-6)))))


def slow_layer(layer, h, cut):
    "Compute a layer of BERT for one text [n, size]; `cut`: function of its attention [heads, n, n] -> positions"
    one, out = layer.attention.self, layer.attention.output
    heads, size = one.num_attention_heads, one.attention_head_size
    q, k, v = (m(h).view(-1, heads, size).transpose(0, 1) for m in (one.query, one.key, one.value))
    A = (q @ k.transpose(1, 2)/size**.5).softmax(-1)
    mixed = out.LayerNorm(out.dense((A @ v).transpose(0, 1).reshape(len(h), -1)) + h)
    fed = layer.output.dense(torch.nn.functional.gelu(layer.intermediate.dense(mixed)))
    left = torch.ones(len(h), 1, dtype=h.dtype)
    left[cut(A)] = 0.
    return layer.output.LayerNorm(left*fed + mixed)


def slow_logits(model, ids, cuts):
    "Return the logits of one text [n]; `cuts`: a function for each layer, see `slow_layer`"
    h = model.bert.embeddings(ids[None])[0]
    for layer, cut in zip(model.bert.encoder.layer, cuts): h = slow_layer(layer, h, cut)
    return model.classifier(torch.tanh(model.bert.pooler.dense(h[0])))


def slow_loss(model, ids, label, draws, method):
    "Return the loss of one text, from the equations of the paper"
    logits, n = model(ids[None]).logits[0], len(ids)
    def span(scores, layer): return slow_span(scores, draws[layer], method.fraction, method.top_fraction)
    def cut(layer):
        if method.strategy == 'attention': return lambda A: span((A.sum(1).sum(0)/len(A)).tolist(), layer)
        if method.strategy == 'random': return lambda A: slow_span([0.]*n, draws[layer], method.fraction, 1.)
        return lambda A: span(norms, layer)
    if method.strategy == 'gradient':
        x = model.get_input_embeddings()(ids).detach().requires_grad_()
        loss = -model(inputs_embeds=x[None]).logits[0].log_softmax(-1)[label]
        norms = torch.autograd.grad(loss, x)[0].square().sum(1).sqrt().tolist()
    p = logits.exp()/logits.exp().sum()
    other = slow_logits(model, ids, [cut(l) for l in range(len(draws))])
    q = other.exp()/other.exp().sum()
    js = sum(a*(2*a/(a + b)).log() + b*(2*b/(a + b)).log() for a, b in zip(p, q))/2
    return -p[label].log() - method.cut_weight*q[label].log() + method.weight*js


@pytest.mark.parametrize('strategy', ['attention', 'gradient', 'random'])
def test_ten_steps_equal_a_plain_loop_of_the_equations(strategy, batches, double):
    assert all((b['attention_mask'].sum(1) < b['input_ids'].shape[1]).any() for b in batches)
    method = HiddenCut(strategy, fraction=.3, top_fraction=.5, cut_weight=.7, weight=2.)
    layers = double.config.num_hidden_layers
    def ours(model, batch, step):
        terms = step_terms(method, model, model, batch, Progress(step=step, seed=7), 'classification')
        return sum((term.loss*term.weight).mean() for term in terms.values())
    def theirs(model, batch, step):
        draws = keyed_uniform(batch['example_id'], (layers,), 7, step, 0x31000000)
        texts = [ids[mask.bool()] for ids, mask in zip(batch['input_ids'], batch['attention_mask'])]
        losses = [slow_loss(model, ids, label, draw.tolist(), method)
                  for ids, label, draw in zip(texts, batch['labels'], draws)]
        return sum(losses)/len(losses)
    plain = copy.deepcopy(double)
    losses, weights = descended(double.train(), ours, batches)
    expected, expected_weights = descended(plain.train(), theirs, batches)
    assert (losses - expected).abs().max() < 1e-12 and (weights - expected_weights).abs().max() < 1e-12


def test_spans_equal_a_loop_over_texts_also_with_padding_on_the_left():
    g = torch.Generator().manual_seed(0)
    real = torch.ones(300, 12, dtype=torch.bool)
    for i in range(300): real[i, :i % 11] = False
    real[::2] = real[::2].flip(1)
    scores, draws = torch.randn(300, 12, generator=g).round(decimals=1), torch.rand(300, generator=g)
    spans = drawn_span(scores, real, draws, .3, .4)
    for x, is_real, draw, span in zip(scores, real, draws, spans):
        begin = int(is_real.float().argmax())
        expected = [begin + i for i in slow_span(x[is_real].tolist(), draw.item(), .3, .4)]
        assert span.nonzero()[:, 0].tolist() == expected


def test_divergence_is_symmetric_and_at_most_log_2():
    a, b = 5*torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(js_divergence(a, b), js_divergence(b, a), atol=1e-14)
    assert 0 < js_divergence(a, b).min() and js_divergence(a, b).max() <= math.log(2)
    assert js_divergence(a, a).abs().max() < 1e-14
    assert js_divergence(a.bfloat16(), b.bfloat16()).dtype == torch.float32


def test_only_the_cut_pass_is_changed_and_no_hook_is_left(batches, double):
    batch, inputs = batches[0], {k: batches[0][k] for k in ('input_ids', 'attention_mask')}
    before = double(**inputs).logits
    everything = torch.ones_like(batch['input_ids'], dtype=torch.bool)
    with pytest.raises(KeyError), cut_hidden(double, {0: everything}): raise KeyError
    assert torch.equal(double(**inputs).logits, before)
    with cut_hidden(double, {0: everything}): assert not torch.equal(double(**inputs).logits, before)
    terms = step_terms(HiddenCut(), double, double, batch, Progress(), 'classification')
    loss = torch.nn.functional.cross_entropy(before, batch['labels'], reduction='none')
    assert torch.allclose(terms['task'].loss, loss, atol=1e-12)


@pytest.mark.parametrize('strategy', ['attention', 'gradient', 'random'])
def test_run_records_the_spans(strategy, tiny_data, tiny_bert, tiny_tokenizer, tmp_path):
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, HiddenCut(strategy), tmp_path/'run', epochs=1, batch_size=8,
                probes=2, snapshots=2, progress=False)
    row, snapshot = run.train_rows[0], run.snapshot(-1, 0)
    assert row['loss'] == pytest.approx(row['task'] + row['cut_task'] + row['divergence'], rel=1e-5)
    spans = snapshot.arrays['cut_spans']
    assert spans.shape == (2, len(snapshot.tokens)) and (spans.sum(1) == max(1, len(snapshot.tokens)//10)).all()
