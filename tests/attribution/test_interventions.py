"Interventions: comparison with a slow forward pass with edited attention, and invalid interventions"
import math

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

from salviz.attribution.applied_interventions import apply_intervention, masked_source
from salviz.attribution.attention import attention_attribution, each_attribution
from salviz.attribution.explanations import explain
from salviz.core.interventions import Intervention, InterventionOptions
from salviz.core.maths import discard_candidates, drop_mask, keyed_uniform
from salviz.models.attention import attention_calls, edited, is_edited, observe, query_key

layers, heads, size = 2, 4, 6

@pytest.fixture
def model():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=60, hidden_size=heads*size, num_hidden_layers=layers, num_attention_heads=heads,
                        intermediate_size=40, num_labels=3)
    model = BertForSequenceClassification(config).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2: p.normal_(0, .25)
    return model

def batch_of(*lengths):
    "Return texts of different lengths in one batch, as from a collator; their words are single tokens"
    n, rng = max(lengths), np.random.default_rng(1)
    ids, mask, words, special = (np.zeros((len(lengths), n), int) for _ in range(4))
    words[:], special[:] = -1, 1
    for b, k in enumerate(lengths):
        ids[b, :k] = [2, *rng.integers(5, 60, k - 2), 3]
        mask[b, :k], words[b, 1:k - 1], special[b, 1:k - 1] = 1, np.arange(k - 2), 0
    return dict(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask), word_ids=torch.tensor(words),
                is_special=torch.tensor(special).bool())

@torch.no_grad()
def reference(model, ids, change):
    """Return the logits and maps of one text without padding. `change.row` edits a head's weights, after the keys for
    which `change.drops(layer, head, q, k)` is true were left out"""
    e, n, maps = model.bert.embeddings, len(ids), np.zeros((layers, heads, len(ids), len(ids)))
    places = e.position_embeddings.weight[:n] + e.token_type_embeddings.weight[0]
    x = e.LayerNorm(e.word_embeddings.weight[ids] + places)
    for l, block in enumerate(model.bert.encoder.layer):
        one, context = block.attention.self, torch.zeros(n, heads*size, dtype=torch.float64)
        query, key, value = (part(x).view(n, heads, size) for part in (one.query, one.key, one.value))
        for h in range(heads):
            for q in range(n):
                kept = [k for k in range(n) if not change.drops(l, h, q, k)] or list(range(n))
                scores = {k: math.exp(float(query[q, h] @ key[k, h])/math.sqrt(size)) for k in kept}
                weights = [scores.get(k, 0)/sum(scores.values()) for k in range(n)]
                weights = change.row(l, h, q, weights, kept)
                maps[l, h, q] = weights
                if not change.is_off(l, h):
                    context[q, h*size:(h + 1)*size] = sum(w*value[k, h] for k, w in enumerate(weights))
        x = block.attention.output.LayerNorm(x + block.attention.output.dense(context))
        x = block.output.LayerNorm(x + block.output.dense(torch.nn.functional.gelu(block.intermediate.dense(x))))
    return model.classifier(torch.tanh(model.bert.pooler.dense(x[0]))), maps

class Change:
    "An intervention without region and mask, applied row by row"
    def __init__(self, one, n, dropped=None): self.one, self.n, self.dropped = one, n, dropped
    def drops(self, l, h, q, k): return k in self.one.positions or self.dropped is not None and self.dropped[l][h, q, k]
    def is_off(self, l, h): return l in self.one.layers or (l, h) in self.one.heads

    def row(self, l, h, q, weights, kept):
        if q in self.one.rows: return [0.]*self.n
        name = dict(self.one.maps).get((l, h))
        if name is None: return weights
        target = {'first': {0: 1.}, 'next': {q + 1: 1.} if q + 1 < self.n else {k: 1. for k in range(self.n)},
                  'prev': {q - 1: 1.} if q else {k: 1. for k in range(self.n)},
                  'delim': {0: .5, self.n - 1: .5}}[name]
        total = sum(v for k, v in target.items() if k in kept)
        return [target.get(k, 0)*(k in kept)/total for k in range(self.n)] if total else weights

ones = [Intervention(positions=[1, 4]), Intervention(rows=[0, 2]), Intervention(heads=[(0, 1), (1, 3)]),
        Intervention(layers=[1]), Intervention(maps={(0, 0): 'next', (0, 2): 'first', (1, 1): 'prev', (1, 0): 'delim'}),
        Intervention(positions=[0, 3], rows=[5], heads=[(1, 2)], layers=[], maps={(0, 0): 'first', (1, 1): 'next'})]

@pytest.mark.parametrize('one', ones, ids=lambda one: '+'.join(one.as_dict()))
def test_a_slow_pass_with_edited_attention_gives_the_same_logits_and_maps_with_padding(model, one):
    batch, lengths = batch_of(9, 6), (9, 6)
    score = explain(model, batch, 'gradient_norm', target=1, intervention=one).score
    for b, n in enumerate(lengths):
        logits, maps = reference(model, batch['input_ids'][b, :n], Change(one, n))
        assert torch.allclose(score[b], logits[1], atol=1e-12, rtol=0)
        applied = apply_intervention(model, {k: v[b:b + 1] for k, v in batch.items()}, one)
        with applied.on(model) as inputs, observe(model) as captured, torch.no_grad(): model(**inputs)
        got = captured.stacked()[0, ..., :n, :n].numpy()
        assert np.allclose(got, maps, atol=1e-12, rtol=0)
        assert not captured.stacked()[0, ..., :n, n:].any()

@pytest.mark.parametrize('region', ['low', 'random'])
def test_the_region_is_that_of_ad_drop_with_the_numbers_of_the_seed(model, region):
    batch = batch_of(8)
    inputs = {k: batch[k] for k in ('input_ids', 'attention_mask')}
    attribution, allowed = attention_attribution(model, inputs)
    for seed in (0, 5):
        one = Intervention(region=region, options=InterventionOptions(p=.5, q=.6, seed=seed))
        scores = {l: x[0].numpy() for l, x in attribution.items()}
        if region == 'random': scores = {l: -keyed_uniform(0, x.shape, seed, 1, l) for l, x in scores.items()}
        dropped = {l: drop_mask(discard_candidates(x, allowed[l][0].numpy(), .5, 'low'),
                                allowed[l][0].numpy(), .6, keyed_uniform(0, x.shape, seed, 0, l))
                   for l, x in scores.items()}
        logits, _ = reference(model, batch['input_ids'][0], Change(one, 8, dropped))
        assert torch.allclose(explain(model, batch, 'gradient_norm', target=2, intervention=one).score[0], logits[2],
                              atol=1e-12, rtol=0)

def test_masked_words_are_those_of_saliency_guided_training(model):
    from salviz.methods.saliency_guided import mask_words
    batch = batch_of(10)
    segments = torch.where(batch['word_ids'] < 0, -1, 0)
    for fraction in (.1, .4, 1.):
        values = torch.randn(1, 10)
        expected, _ = mask_words(batch['input_ids'], values, batch['word_ids'], segments, fraction)
        source = masked_source(values[0].numpy(), batch['word_ids'][0].tolist(), fraction)
        assert batch['input_ids'][0, source].tolist() == expected[0].tolist()
    applied = apply_intervention(model, batch, Intervention(mask_fraction=.4))
    assert (applied.inputs['input_ids'] != batch['input_ids']).sum() > 0 and not applied.edits

def test_sallms_target_replaces_the_row_that_the_classifier_reads(model):
    batch = batch_of(9)
    applied = apply_intervention(model, batch, Intervention.from_dict(dict(maps=[[1, 2, 'saliency']], top_fraction=.3)))
    with applied.on(model) as inputs, observe(model) as maps: model(**inputs)
    row = maps[1][0, 2, 0].detach()
    assert sorted(row.tolist())[-3:] == pytest.approx([1/3]*3) and row.sum() == pytest.approx(1)
    with observe(model) as plain: model(**inputs)
    assert torch.equal(maps[1][0, 2, 1:], plain[1][0, 2, 1:])

def test_integrated_gradients_and_rollout_are_computed_under_the_intervention(model):
    batch, one = batch_of(8, 5), Intervention(heads=[(0, 1)], positions=[2])
    path = explain(model, batch, 'integrated_gradients', 0, steps=30, intervention=one)
    assert path.intervention == one and path.completeness_error.max() < .05
    plain, changed = (explain(model, batch, 'rollout', intervention=i).values for i in (None, one))
    assert not changed[:, 2].any() and plain[:, 2].all()

@pytest.mark.parametrize('one', [*ones, Intervention(region='high')], ids=lambda one: '+'.join(one.as_dict()))
def test_rows_and_attributions_of_attention_are_computed_under_the_intervention(model, one):
    batch, at = batch_of(8), torch.tensor([[0, 3, -1]])
    for layers in (0, 1, -1, None):
        values = [explain(model, batch, 'attention', row=row, layers=layers, intervention=one).values
                  for row in ('pooled', 'mean')]
        applied = apply_intervention(model, batch, one)
        with applied.on(model) as inputs, observe(model) as whole, torch.no_grad(): model(**inputs)
        A = torch.stack([whole[l] for l in ((0, 1) if layers is None else [layers])]).mean((0, 2))
        for got, expected in zip(values, (A[:, 0], A.mean(1))): torch.testing.assert_close(got, expected)
    with applied.on(model) as inputs:
        for chosen in (None, [3, 1]):
            with observe(model, rows=at, heads=chosen) as rows, torch.no_grad(): model(**inputs)
            for l in (0, 1):
                of = slice(None) if chosen is None else chosen
                torch.testing.assert_close(rows.rows(l), whole[l][:, of][:, :, at[0]], rtol=0, atol=1e-12)
                seen = whole.seen(l).expand_as(whole[l])[:, of][:, :, at[0]]
                assert torch.equal(rows.seen_rows(l).expand_as(seen), seen)
    for method in ('gradient_x_attention', 'attention_gradient', 'attention_integrated_gradients', 'rollout'):
        assert torch.isfinite(explain(model, batch, method, 0, intervention=one).values).all()

@pytest.mark.parametrize('one', ones, ids=lambda one: '+'.join(one.as_dict()))
def test_attributions_of_whole_maps_and_of_single_heads_allow_the_same_keys(model, one):
    with apply_intervention(model, batch_of(8), one).on(model) as inputs:
        target = torch.tensor([1])
        maps, allowed = attention_attribution(model, inputs, target)
        def use(layer, head, x, may):
            torch.testing.assert_close(x, maps[layer][:, head], rtol=0, atol=1e-12)
            assert torch.equal(may, allowed[layer].expand_as(maps[layer])[:, head])
        each_attribution(model, inputs, target, use)
        got = query_key(model, inputs, 1, 3)
    assert torch.equal(got.allowed, allowed[1].expand_as(maps[1])[:, 3])

def test_attention_calls_are_not_available_for_edited_attention(model):
    applied = apply_intervention(model, batch_of(8), ones[0])
    with applied.on(model) as inputs:
        assert is_edited(model)
        with pytest.raises(ValueError, match='changed weights cannot be computed from queries and keys; use observe'):
            attention_calls(model, inputs, lambda *_: None)
    assert not is_edited(model)

def test_no_trace_is_left_and_observing_works_inside(model):
    batch = batch_of(6)
    inputs = {k: batch[k] for k in ('input_ids', 'attention_mask')}
    before, applied = model(**inputs).logits, apply_intervention(model, batch, Intervention(layers=[0]))
    with pytest.raises(RuntimeError, match='already being observed'), applied.on(model), observe(model):
        with observe(model): pass
    assert torch.equal(model(**inputs).logits, before)

@pytest.mark.parametrize('arguments,message', [
    (dict(heads=[(0, 9)]), 'head 9 of layer 0 does not exist; a layer has the heads 0 to 3'),
    (dict(layers=[2]), 'layer 2 does not exist; the model has the layers 0, 1'),
    (dict(layers=[0, 1]), 'all heads of all layers are crossed out'),
    (dict(heads=[(0, h) for h in range(4)], layers=[1]), 'all heads of all layers are crossed out'),
    (dict(positions=[6]), 'positions: token 6 does not exist; the text has the tokens 0 to 5'),
    (dict(positions=range(6)), 'all 6 tokens are crossed out'),
    (dict(maps={(0, 1): 'period'}), "the pattern 'period' needs the tokenizer"),
    (dict(mask_fraction=1.), 'mask_fraction must be below 1'),
    (dict(mask_fraction=.3, options=InterventionOptions(saliency='magic')), 'saliency must be one of')])
def test_an_intervention_that_does_not_fit_raises_an_error(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        explain(model, batch_of(6), 'gradient_norm', intervention=Intervention(**arguments))

def test_a_causal_model_cannot_attend_to_the_next_token():
    torch.manual_seed(0)
    gpt = GPT2ForSequenceClassification(GPT2Config(vocab_size=60, n_embd=24, n_layer=2, n_head=4, n_positions=20,
                                                   pad_token_id=0, bos_token_id=1, eos_token_id=1)).eval()
    batch = batch_of(6)
    with pytest.raises(ValueError, match="the pattern 'next' attends to later tokens"):
        explain(gpt, batch, 'gradient_norm', intervention=Intervention(maps={(0, 0): 'next'}))
    applied = apply_intervention(gpt, batch, Intervention(positions=[0], maps={(1, 0): 'first'}))
    with applied.on(gpt) as inputs, observe(gpt) as maps: gpt(**inputs)
    assert maps[0][0, :, 0, 0].tolist() == [1]*4 # its only key
    assert not maps[0][0, :, 1:, 0].any() and torch.equal(maps[1][0, 0, 0], torch.eye(6)[0])

def test_an_image_model_has_no_tokens_to_change():
    from transformers import ViTConfig, ViTForImageClassification
    vit = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1,
                                              num_attention_heads=2, intermediate_size=16))
    with pytest.raises(ValueError, match='but this model reads no text'):
        explain(vit, dict(pixel_values=torch.zeros(1, 3, 8, 8)), 'gradient_norm', intervention=Intervention(rows=[1]))

def test_only_one_stack_of_attention_is_edited(model):
    from transformers import DebertaV2Config, DebertaV2Model
    deberta = DebertaV2Model(DebertaV2Config(vocab_size=50, hidden_size=16, num_hidden_layers=1,
                                             num_attention_heads=2, intermediate_size=16))
    with pytest.raises(ValueError, match='computes attention outside transformers'), edited(deberta, {}): pass
