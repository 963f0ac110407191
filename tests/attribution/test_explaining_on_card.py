"""Explanations on a GPU: every tensor is on the device of the model, and the results are those of the CPU.
The GPU is emulated (emulated_card.py), or real with SALVIZ_DEVICE=cuda."""
import copy

import numpy as np
import pytest
import torch

from emulated_card import training_on_card, transfers
from salviz.attribution.attention import _attentions, attention_attribution
from salviz.attribution.explanations import explain, explain_data
from salviz.attribution.registry import registered_attributions
from salviz.data.texts import Collator, encode
from salviz.models.attention import observe, query_key
from salviz.models.loading import weights_checksum
from salviz.analysis.corpus import gradient_sizes, head_table
from salviz.analysis.faithfulness import faithfulness_data
from salviz.model_explorer import explore

pytestmark = pytest.mark.numeric
texts = ['a fine film and the story of one actor', 'dull music .', 'the plot is silly and cold']
few = dict(steps=2, samples=2)

@pytest.fixture
def model(tiny_bert): return tiny_bert().double().eval()

@pytest.fixture
def batch(tiny_tokenizer, tiny_data):
    rows = encode(tiny_data, tiny_tokenizer)['train']
    return Collator(tiny_tokenizer)([rows[i] for i in range(4)])

def on_both(model, batch, act):
    "Return the results of `act(model, batch)` on the CPU and on a GPU, as arrays"
    here = act(model, batch)
    with training_on_card() as card:
        there = act(copy.deepcopy(model).to(card), {k: v.to(card) for k, v in batch.items()})
        return np.asarray(here.detach()), np.asarray(there.detach().cpu())

@pytest.mark.sample(3)
@pytest.mark.parametrize('name', [n for n in registered_attributions('input_ids')
                                  if n != 'gradient']) # its sum over a BERT's embedding is zero
def test_attributions_on_a_gpu_equal_those_on_the_cpu(name, model, batch):
    options = {k: v for k, v in few.items() if k in registered_attributions()[name].options}
    np.testing.assert_allclose(*on_both(model, batch, lambda m, b: explain(m, b, name, **options).values),
                               rtol=1e-8, atol=1e-10)

@pytest.mark.parametrize('name', _attentions)
def test_attention_is_attributed_on_a_gpu(name, model, batch):
    def act(m, b):
        maps, allowed = attention_attribution(m, b, method=name, **(dict(steps=3) if name.startswith('int') else {}))
        return torch.stack([torch.where(allowed[l], x, -1.) for l, x in maps.items()])
    np.testing.assert_allclose(*on_both(model, batch, act), rtol=1e-8, atol=1e-10)

def test_attention_is_observed_dropped_and_scaled_on_a_gpu(model, batch):
    def act(m, b):
        n, device = b['input_ids'].shape[1], b['input_ids'].device
        drop = {0: torch.ones(1, 1, n, n, dtype=torch.bool, device=device).triu(1)}
        with observe(m, drop=drop, scale={1: .5}) as maps:
            logits = m(input_ids=b['input_ids'], attention_mask=b['attention_mask']).logits
        assert maps.allowed(0).device == maps.seen(0).device == device
        return torch.cat([maps.stacked().flatten(), logits.flatten()])
    np.testing.assert_allclose(*on_both(model, batch, act), rtol=1e-8, atol=1e-10)
    def scores(m, b): return query_key(m, {k: b[k] for k in ('input_ids', 'attention_mask')}, 0, 1).scores
    np.testing.assert_allclose(*on_both(model, batch, scores), rtol=1e-8)

@pytest.mark.slow
def test_analyses_of_data_are_the_same_on_a_gpu(model, tiny_tokenizer):
    def measured(m):
        found = faithfulness_data(m, texts, ['input_x_gradient', 'random'], tiny_tokenizer, progress=False)
        values = [v[k] for v in found.values() for k in ('aopc_comprehensiveness', 'flip_fraction')]
        values.append(head_table(m, texts, tiny_tokenizer, patterns=['next'], progress=False).to_numpy(float).ravel())
        values.append(gradient_sizes(m, texts, tiny_tokenizer, progress=False).gradient.to_numpy())
        values += explain_data(m, texts, 'integrated_gradients', tokenizer=tiny_tokenizer, steps=2, progress=False)
        return np.concatenate(values), weights_checksum(m)
    here, same = measured(model)
    with training_on_card() as card: there, as_there = measured(copy.deepcopy(model).to(card))
    np.testing.assert_allclose(there, here, rtol=1e-6, atol=1e-8)
    assert same == as_there

def test_a_text_is_explored_on_a_gpu(model, tiny_tokenizer):
    def explored(m):
        opened = explore(m, tiny_tokenizer, texts[0], steps=2)
        opened.settle(60)
        try: return opened.runs[0].snapshot(0, 0).arrays
        finally: opened.close()
    here = explored(model)
    with training_on_card() as card: there = explored(copy.deepcopy(model).to(card))
    assert here.keys() == there.keys()
    for name, x in here.items(): np.testing.assert_allclose(there[name], x, rtol=1e-5, atol=1e-6, err_msg=name)

def test_the_emulated_gpu_rejects_what_a_gpu_rejects():
    with training_on_card() as card:
        x = torch.ones(3, device=card)
        with pytest.raises(RuntimeError, match='same device'): x + torch.ones(3)
        first = torch.tensor([0], device=card)
        with pytest.raises(RuntimeError, match='same device'): torch.ones(3).index_select(0, first)
        with pytest.raises(TypeError, match='numpy'): x.numpy()
        transfers.clear()
        assert (x + torch.tensor(2.))[torch.tensor([1])].cpu().tolist() == [3.] # as on a GPU
        if card.type == 'card':
            assert len(transfers) == 1
            assert x.sum().item() == 3 and len(transfers) == 2
