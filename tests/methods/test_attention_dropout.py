"Dropout of keys, attention weights and heads against loops over the rows of attention, in float64"
import copy

import pytest
import torch
from transformers.models.bert import modeling_bert

from helpers import descended
from salviz.methods import AttentionDropout, AttentionGuidance, DropHead, DropKey, RDrop
from salviz.methods.base import Plan, Progress
from salviz.models.random import keyed_uniform
from salviz.training.feed import feed_for
from salviz.training.step import step_terms
from salviz.training.trainer import train


def drop_key(weights, dropped, method):
    "Return the softmax over the remaining keys (Li et al. 2023); over all keys if none remains"
    left = [w if not d else 0.*w for w, d in zip(weights, dropped)]
    if all(dropped): return weights
    return torch.stack([w/sum(left) for w in left])

def drop_weight(weights, dropped, method):
    "Return the weights after dropout: 0, or divided by the probability of staying"
    return torch.stack([0.*w if d else w/(1 - method.p) for w, d in zip(weights, dropped)])

def draws(example_id, shape, p, step, stream):
    return keyed_uniform(example_id[None], shape, 0, step, stream)[0] < p

def slow_logits(model, batch, i, method, row, step, monkeypatch):
    "Return the logits of example `i`, read alone and without padding, with attention computed row by row"
    calls, example_id = [], batch['example_id'][i]
    def attention(module, query, key, value, attention_mask, scaling=None, dropout=0., **kwargs):
        layer, (_, heads, n, size) = len(calls), query.shape
        calls.append(layer)
        out = []
        if row is None:
            gone = draws(example_id, (heads,), method.p, step, method.stream + layer).tolist()
            if all(gone): gone = [False]*heads
        else: dropped = draws(example_id, (heads, n, n), method.p, step, method.stream + layer).tolist()
        for h in range(heads):
            rows = []
            for q in range(n):
                scores = torch.stack([(query[0, h, q]*key[0, h, k]).sum()*size**-.5 for k in range(n)])
                weights = scores.exp()/scores.exp().sum()
                if row is not None: weights = row(weights, dropped[h][q], method)
                head = sum(w*v for w, v in zip(weights, value[0, h]))
                if row is None: head = 0.*head if gone[h] else head*heads/(heads - sum(gone))
                rows.append(head)
            out.append(torch.stack(rows))
        return torch.stack(out, 1)[None], None
    with monkeypatch.context() as patch:
        patch.setattr(modeling_bert, 'eager_attention_forward', attention)
        real = batch['attention_mask'][i].bool()
        return model(input_ids=batch['input_ids'][i][real][None]).logits[0]

@pytest.fixture
def batches(tiny_data, double, tiny_tokenizer):
    feed = feed_for(double.train(), tiny_tokenizer)
    short = sorted(feed.encode(tiny_data)['train'], key=lambda row: len(row['input_ids']))[:6]
    return [feed.collate(short[::2]), feed.collate(short[1::2])]

cases = [(DropKey(p=.4), drop_key), (AttentionDropout(p=.4), drop_weight),
         (AttentionDropout(p=.4, renormalise=True), drop_key), (DropHead(p=.6), None)]

@pytest.mark.parametrize('method, row', cases, ids=lambda x: repr(x) if hasattr(x, 'name') else '')
def test_ten_steps_equal_a_plain_loop_of_the_equation(method, row, batches, double, monkeypatch):
    assert any((b['attention_mask'] == 0).any() for b in batches)
    def ours(model, batch, step):
        terms = step_terms(method, model, model, batch, Progress(step=step), 'classification')
        assert list(terms) == ['task']
        return terms['task'].loss.mean()
    def theirs(model, batch, step):
        total = 0.
        for i, label in enumerate(batch['labels']):
            logits = slow_logits(model, batch, i, method, row, step, monkeypatch)
            total = total + logits.exp().sum().log() - logits[label]
        return total/len(batch['labels'])
    plain = copy.deepcopy(double)
    losses, weights = descended(double, ours, batches)
    expected, expected_weights = descended(plain, theirs, batches)
    assert (losses - expected).abs().max() < 1e-12 and (weights - expected_weights).abs().max() < 1e-12


def test_probability_decreases_to_the_last_layer(batches, tiny_bert):
    model = tiny_bert(num_hidden_layers=3)
    drop = DropKey(p=.6, last_p=.2).plan(model, batches[0], Progress()).drop
    rates = [x.float().mean().item() for x in drop.values()]
    assert rates == pytest.approx([.6, .4, .2], abs=.08)
    assert [*DropKey(layers=[-1]).plan(model, batches[0], Progress()).drop] == [2]


def test_draws_depend_on_the_step_and_not_on_other_examples(batches, double):
    batch = batches[0]
    turned = {k: x.flip(0) for k, x in batch.items()}
    for method, _ in cases:
        def drawn(batch, step): return next(iter(method.plan(double, batch, Progress(step=step)).evidence.values()))[0]
        assert torch.equal(drawn(batch, 3), drawn(turned, 3).flip(0))
        assert not torch.equal(drawn(batch, 3), drawn(batch, 4))


def test_heads_are_rescaled_and_never_all_dropped(batches, double):
    plan = DropHead(p=.9).plan(double, batches[0], Progress())
    for scale in plan.scale.values():
        assert torch.allclose(scale.sum(1), torch.full_like(scale.sum(1), 4.))
    assert plan.scale[0].dtype == torch.float64 and plan.observed == (0, 1)


def test_factors_multiply_and_further_passes_have_them_too(batches, double):
    both = DropHead(p=.5) + AttentionDropout(p=.5)
    plan = both.plan(double, batches[0], Progress())
    parts = [method.plan(double, batches[0], Progress()).scale[1] for method in both.methods]
    assert torch.equal(plan.scale[1], parts[0]*parts[1]) and isinstance(plan, Plan)
    terms = step_terms(DropHead(p=.5) + RDrop(), double, double, batches[0], Progress(), 'classification')
    assert torch.equal(terms['divergence'].loss, torch.zeros_like(terms['divergence'].loss))


def test_run_records_what_is_dropped_and_composes(tiny_data, tiny_bert, tiny_tokenizer, tmp_path):
    method = DropHead(p=.5) + DropKey(p=.5) + AttentionGuidance({'first': [0]}, alpha=1.)
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, method, tmp_path/'run', epochs=1, batch_size=8, probes=2,
                snapshots=2, progress=False)
    s = run.snapshot(-1, 0)
    n = len(s.tokens)
    assert s.arrays['dropped_keys'].shape == (2, 4, n, n) and s.arrays['dropped_heads'].shape == (2, 4)
