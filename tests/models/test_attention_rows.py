"""Rows captured beside the fused kernel equal the rows of whole maps, with gradients, in double precision"""

import copy

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    BertConfig, BertForSequenceClassification, DebertaV2Config, DebertaV2Model, GPT2Config, GPT2Model, LlamaConfig,
    LlamaModel, T5Config, T5EncoderModel)

from salviz.methods.base import _MergedPlan, Plan
from salviz.models.attention import observe

small = dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
makers = dict(
    bert=lambda: BertForSequenceClassification(BertConfig(**small)),
    llama=lambda: LlamaModel(LlamaConfig(**small, num_key_value_heads=2)),
    gpt2=lambda: GPT2Model(GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=4, n_positions=16)),
    t5=lambda: T5EncoderModel(T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)),
    deberta=lambda: DebertaV2Model(DebertaV2Config(**small, relative_attention=True, pos_att_type=['c2p', 'p2c'])))

rounding = dict.fromkeys(makers, 1e-13) | dict(llama=1e-6) # Llama computes the softmax in float32

def net(kind):
    torch.manual_seed(0)
    return makers[kind]().double().eval()

def padded(side):
    "Return two texts of seven tokens, the second with two pads on the `side` 'left' or 'right', or no mask (None)"
    ids = torch.randint(5, 50, (2, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 7, dtype=torch.long)
    if side is None: return dict(input_ids=ids)
    mask[1, slice(0, 2) if side == 'left' else slice(5, 7)] = 0
    return dict(input_ids=ids, attention_mask=mask)

@pytest.mark.parametrize('side', [None, 'left', 'right'])
@pytest.mark.parametrize('kind', makers)
@pytest.mark.parametrize('heads', [None, (2, 0)])
def test_rows_equal_those_of_whole_maps(kind, side, heads):
    model, inputs, at = net(kind), padded(side), torch.tensor([[3, 0], [4, 2]])
    drop = torch.rand(2, 4, 7, 7, generator=torch.Generator().manual_seed(2)) < .3
    chosen = list(heads or range(4))
    for how in (dict(), dict(drop={0: drop})):
        with observe(model, rows=at, heads=heads, **how) as rows: model(**inputs)
        with observe(model, **how) as whole: model(**inputs)
        for layer in (0, 1):
            expected = torch.stack([whole[layer][b][chosen][:, at[b]] for b in (0, 1)])
            torch.testing.assert_close(rows.rows(layer), expected, rtol=0, atol=rounding[kind])
            seen = whole.seen(layer).expand(-1, 4, -1, -1)
            seen = torch.stack([seen[b][chosen][:, at[b]] for b in (0, 1)])
            assert torch.equal(rows.seen_rows(layer).expand_as(seen), seen)

@pytest.mark.parametrize('kind', makers)
def test_a_loss_on_a_row_has_the_gradient_of_a_loss_on_the_whole_map(kind):
    model, inputs, row, gradients = net(kind), padded('right'), torch.tensor([2, 4]), []
    for how in (dict(rows=row), dict()):
        model.zero_grad()
        with observe(model, **how) as maps: out = model(**inputs)[0]
        loss = sum(maps.rows(l, row).square().sum() for l in (0, 1)) + out.square().mean()
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    for ours, expected in zip(*gradients):
        torch.testing.assert_close(ours, expected, rtol=1e-9 if kind != 'llama' else 1e-5, atol=rounding[kind])

def test_only_the_requested_rows_are_computed_and_the_kernel_computes_the_output(monkeypatch):
    model, inputs, shapes, calls = net('bert'), padded(None), [], []
    softmax, fused = F.softmax, F.scaled_dot_product_attention
    monkeypatch.setattr(F, 'softmax', lambda x, *args: shapes.append(tuple(x.shape)) or softmax(x, *args))
    monkeypatch.setattr(F, 'scaled_dot_product_attention', lambda *a, **k: calls.append(1) or fused(*a, **k))
    with observe(model, [], rows={1: [0, 5]}): model(**inputs)
    assert shapes == [(2, 4, 2, 7)] and len(calls) == 2

def test_a_row_that_was_not_captured_raises_an_error_that_lists_the_rows():
    model, inputs = net('bert'), padded(None)
    with observe(model, rows=0) as maps: model(**inputs)
    with pytest.raises(KeyError, match='only the rows .*0.* of layer 1 of'): maps.rows(1, torch.tensor([0, 3]))
    with pytest.raises(KeyError, match='only some of its rows are captured'): maps[1]

def test_negative_rows_count_from_the_last_query():
    model, inputs = net('gpt2'), padded(None)
    with observe(model, rows=-1) as maps: model(**inputs)
    with observe(model) as whole: model(**inputs)
    torch.testing.assert_close(maps.rows(0)[:, :, 0], whole[0][:, :, -1], rtol=0, atol=1e-13)

def test_merged_plans_capture_the_rows_of_both_methods():
    model, inputs = net('bert'), padded('right')
    a, b = torch.tensor([[0], [0]]), torch.tensor([[2], [3]])
    plan = _MergedPlan(('A', 'B'), (Plan((0,), {0: a}), Plan((0, 1), {0: b, 1: b})))
    assert plan.observed == (0, 1)
    with observe(model, list(plan.layers), rows=plan.rows) as maps: model(**inputs)
    with observe(model) as whole: model(**inputs)
    for at in (a, b): torch.testing.assert_close(maps.rows(0, at), whole.rows(0, at), rtol=0, atol=1e-13)

def test_a_whole_map_that_another_method_needs_replaces_the_rows():
    model, inputs, at = net('bert'), padded(None), torch.tensor([[1], [2]])
    plan = _MergedPlan(('A', 'B'), (Plan((0,), {0: at}), Plan(layers=(0,))))
    assert plan.rows == {}
    with observe(model, list(plan.layers), rows=plan.rows) as maps: model(**inputs)
    assert maps.rows(0, at).shape == (2, 4, 1, 7) and maps[0].shape == (2, 4, 7, 7)

def test_rows_are_before_dropout():
    model, inputs = copy.deepcopy(net('bert')), padded(None)
    model.train()
    with observe(model, rows=0) as maps: model(**inputs)
    torch.testing.assert_close(maps.rows(0).sum(-1), torch.ones(2, 4, 1).double())
