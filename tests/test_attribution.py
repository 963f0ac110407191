"Saliency of inputs and attribution of attention, against loops in float64 written from the equations"

import numpy as np
import pytest
import torch
from captum.attr import LayerIntegratedGradients
from transformers import (AlbertConfig, AlbertForSequenceClassification, BertConfig, BertForMaskedLM, BertForSequenceClassification, DistilBertConfig,
                          DistilBertForSequenceClassification, ElectraConfig, ElectraForSequenceClassification, GPT2Config,
                          GPT2ForSequenceClassification, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, ModernBertConfig,
                          ModernBertForSequenceClassification, RobertaConfig, RobertaForSequenceClassification)

from helpers import same, state
from salviz.attribution import attention_attribution, completeness_error, input_saliency

PAD, LENGTHS = 0, (7, 3, 5)
# A rotary model computes its angles in float32 in any precision, so a sentence that padding moves to the right is the same to seven digits only.
CLOSE = dict(right=dict(rtol=1e-8, atol=1e-11), left=dict(rtol=1e-3, atol=1e-5))


def tiny(kind, dropout=0., **kwargs):
    "A random classifier in float64 whose attention is far from uniform"
    common = dict(vocab_size=60, num_labels=3, pad_token_id=PAD, initializer_range=.4, **kwargs)
    encoder = dict(common, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=32)
    dropouts = dict(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    build = dict(
        bert=lambda: BertForSequenceClassification(BertConfig(**encoder, **dropouts)),
        roberta=lambda: RobertaForSequenceClassification(RobertaConfig(**encoder)),
        electra=lambda: ElectraForSequenceClassification(ElectraConfig(embedding_size=16, **encoder)),
        albert=lambda: AlbertForSequenceClassification(AlbertConfig(embedding_size=16, **encoder)),
        modernbert=lambda: ModernBertForSequenceClassification(ModernBertConfig(**encoder, classifier_pooling='cls', local_attention=4)),
        distilbert=lambda: DistilBertForSequenceClassification(DistilBertConfig(dim=24, n_layers=2, n_heads=4, hidden_dim=32, **common)),
        llama=lambda: LlamaForSequenceClassification(LlamaConfig(num_key_value_heads=2, **encoder)),
        gpt2=lambda: GPT2ForSequenceClassification(GPT2Config(n_embd=24, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2, **common)))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build[kind]()
    return model.double().eval()


def uneven_batch(side='right'):
    "Three sentences of 7, 3 and 5 tokens, padded on one side"
    g = torch.Generator().manual_seed(3)
    ids, mask = torch.full((3, 7), PAD), torch.zeros(3, 7, dtype=torch.int64)
    for i, n in enumerate(LENGTHS):
        where = slice(0, n) if side == 'right' else slice(7 - n, 7)
        ids[i, where] = torch.randint(5, 60, (n,), generator=g)
        mask[i, where] = 1
    return dict(input_ids=ids, attention_mask=mask)


def sentences(batch):
    "Each example's ids without padding, and where they stand in the batch"
    for i, mask in enumerate(batch['attention_mask']):
        at = mask.nonzero().squeeze(1)
        yield i, at, batch['input_ids'][i, at]


def reference_gradient(model, x, c):
    "dF_c/dx of one sentence given by its embeddings [n, dim], without hooks, padding or batch"
    x = x.clone().requires_grad_()
    model(inputs_embeds=x[None], attention_mask=torch.ones(1, len(x), dtype=torch.int64)).logits[0, c].backward(inputs=[x])
    return x.grad


def reference_saliency(model, ids, method, c, steps=20):
    weight = model.get_input_embeddings().weight.detach()
    x, base, n, dim = weight[ids], weight[PAD], len(ids), weight.shape[1]
    if method == 'integrated_gradients':
        g = torch.zeros_like(x)
        for k in range(1, steps + 1):
            g += reference_gradient(model, base + (k - .5) / steps * (x - base), c) / steps
    else: g = reference_gradient(model, x, c)
    out = torch.zeros(n, dtype=torch.float64)
    for i in range(n):
        for d in range(dim):
            if method == 'gradient': out[i] += g[i, d]
            elif method == 'gradient_norm': out[i] += g[i, d]**2
            elif method == 'gradient_abs': out[i] += abs(g[i, d])
            elif method == 'input_x_gradient': out[i] += x[i, d]*g[i, d]
            else: out[i] += (x[i, d] - base[d])*g[i, d]
    return out.sqrt() if method == 'gradient_norm' else out


METHODS = ('gradient_norm', 'gradient_abs', 'input_x_gradient', 'integrated_gradients')


ENCODERS, DECODERS = ('bert', 'roberta', 'distilbert', 'electra', 'albert', 'modernbert'), ('gpt2', 'llama')


@pytest.mark.parametrize('kind, side, method', [(k, 'right', m) for k in ('bert', 'distilbert', 'gpt2', 'llama') for m in METHODS]
                         + [('llama', 'left', m) for m in ('gradient', *METHODS)] + [(k, 'right', 'input_x_gradient') for k in ENCODERS[1:]])
def test_saliency_of_a_padded_batch_is_that_of_each_sentence_alone_by_the_equation(kind, side, method):
    model, batch, close = tiny(kind), uneven_batch(side), CLOSE[side]
    saliency = input_saliency(model, batch, method)
    for i, at, ids in sentences(batch):
        c = model(input_ids=ids[None]).logits[0].argmax().item()
        torch.testing.assert_close(saliency[i, at], reference_saliency(model, ids, method, c), **close)
        assert (saliency[i, batch['attention_mask'][i] == 0] == 0).all()


@pytest.mark.parametrize('method', METHODS)
def test_a_given_class_is_explained_instead_of_the_predicted_one(method):
    model, batch, target = tiny('bert'), uneven_batch(), torch.tensor([2, 0, 1])
    saliency = input_saliency(model, batch, method, target=target, steps=5)
    for i, at, ids in sentences(batch):
        torch.testing.assert_close(saliency[i, at], reference_saliency(model, ids, method, target[i].item(), steps=5), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize('kind', ['bert', 'distilbert'])
def test_integrated_gradients_equal_captum_and_are_complete(kind):
    model, batch, target = tiny(kind), uneven_batch(), torch.tensor([2, 0, 1])
    explain = LayerIntegratedGradients(lambda ids, mask: model(input_ids=ids, attention_mask=mask).logits, model.get_input_embeddings())
    captum = explain.attribute(batch['input_ids'], baselines=torch.full_like(batch['input_ids'], PAD), target=target, n_steps=20,
                               additional_forward_args=(batch['attention_mask'],), method='riemann_middle')
    ours = input_saliency(model, batch, 'integrated_gradients', target)
    torch.testing.assert_close(ours, captum.sum(-1)*batch['attention_mask'], rtol=1e-5, atol=1e-6) # captum keeps its nodes in float32
    assert completeness_error(model, batch, input_saliency(model, batch, target=target, steps=200), target).max() < .1


def test_completeness_error_falls_with_the_square_of_the_steps():
    model, batch = tiny('bert'), uneven_batch()
    error = [completeness_error(model, batch, input_saliency(model, batch, steps=m)).max().item() for m in (20, 40, 80)]
    assert error[0] < .05
    np.testing.assert_allclose([error[0]/error[1], error[1]/error[2]], 4, rtol=.2)


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('batch_size', [1, 2, 7, 1000])
def test_internal_batching_does_not_change_the_result(method, batch_size):
    model, batch = tiny('bert'), uneven_batch()
    whole = input_saliency(model, batch, method)
    torch.testing.assert_close(input_saliency(model, batch, method, batch_size=batch_size), whole, rtol=1e-10, atol=1e-12)


def test_batch_size_bounds_the_rows_of_every_forward_pass():
    model, batch, rows = tiny('bert'), uneven_batch(), []
    handle = model.register_forward_pre_hook(lambda m, args, kwargs: rows.append(len(kwargs['input_ids'])), with_kwargs=True)
    input_saliency(model, batch, batch_size=2, steps=5)
    handle.remove()
    assert max(rows) == 2


@pytest.mark.parametrize('kind', ['bert', 'distilbert', 'gpt2'])
def test_the_literal_sum_is_refused_by_name_where_a_layernorm_makes_it_zero(kind):
    model = tiny(kind)
    with pytest.raises(ValueError, match=f"method='gradient'.*identically zero for {type(model).__name__}.*use 'input_x_gradient'"):
        input_saliency(model, uneven_batch(), 'gradient')
    with pytest.raises(ValueError, match='identically zero'): input_saliency(model.float(), uneven_batch(), 'gradient')


@pytest.mark.parametrize('kwargs, message', [
    (dict(method='lime'), "method must be one of 'gradient', .*, got 'lime'"),
    (dict(target='gold'), "target must be 'predicted' or an int64 tensor .*got 'gold'"),
    (dict(target=torch.zeros(2, dtype=torch.int64)), r'here 3\), got torch.int64 \[2\]'),
    (dict(target=torch.zeros(3)), r'got torch.float32 \[3\]'),
    (dict(steps=0), 'steps must be a whole number of at least 1, got 0'),
    (dict(batch_size=0), 'batch_size must be a whole number of at least 1, got 0')])
def test_wrong_arguments_are_refused_in_one_sentence(kwargs, message):
    with pytest.raises(ValueError, match=message): input_saliency(tiny('bert'), uneven_batch(), **kwargs)


def test_integrated_gradients_without_a_pad_token_are_refused():
    model = tiny('gpt2')
    model.config.pad_token_id = None
    one = {k: v[:1] for k, v in uneven_batch().items()}
    with pytest.raises(ValueError, match='GPT2ForSequenceClassification has no pad token'): input_saliency(model, one)


LOOKS = [lambda m, b: input_saliency(m, b), lambda m, b: attention_attribution(m, b), lambda m, b: attention_attribution(m, b, training=True, seed=4),
         lambda m, b: completeness_error(m, b, torch.zeros(3, 7))]


@pytest.mark.parametrize('look', LOOKS)
def test_looking_leaves_no_trace(look):
    model, batch = tiny('bert', dropout=.3), uneven_batch()
    model.train()
    model.bert.encoder.layer[1].eval()
    for i, p in enumerate(model.parameters()):
        p.requires_grad_(i % 3 > 0)
        if i % 2: p.grad = torch.ones_like(p)
    before = state(model)
    look(model, batch)
    assert same(before, state(model))


@pytest.mark.parametrize('look', LOOKS)
def test_looking_leaves_no_trace_after_an_error_either(look):
    model, batch = tiny('bert', dropout=.3), uneven_batch()
    model.train()
    def fail(module, args, output): raise RuntimeError('broken head')
    model.classifier.register_forward_hook(fail)
    before = state(model)
    with pytest.raises(RuntimeError, match='broken head'): look(model, batch)
    assert same(before, state(model))


def test_frozen_parameters_and_a_surrounding_no_grad_change_nothing():
    model, batch = tiny('bert'), uneven_batch()
    saliency, attention = input_saliency(model, batch), attention_attribution(model, batch)[0]
    model.requires_grad_(False)
    with torch.no_grad():
        torch.testing.assert_close(input_saliency(model, batch), saliency, rtol=0, atol=0)
        for l, b in attention_attribution(model, batch)[0].items(): torch.testing.assert_close(b, attention[l], rtol=1e-12, atol=1e-14)


def reference_attribution(model, ids, c=None):
    "dF_c/dA of one sentence alone, from the model's own eager attention, and where that may attend: [layers][heads, n, n], [layers][n, n]"
    old = model.config._attn_implementation
    model.set_attn_implementation('eager')
    outputs = model(input_ids=ids[None], output_attentions=True)
    c = outputs.logits[0].argmax().item() if c is None else c
    gradients = []
    for a in outputs.attentions: gradients.append(torch.autograd.grad(outputs.logits[0, c], a, retain_graph=True)[0][0])
    model.set_attn_implementation(old)
    return gradients, [a[0, 0].detach() > 0 for a in outputs.attentions]


@pytest.mark.parametrize('kind, side', [(k, 'right') for k in ENCODERS + DECODERS] + [('llama', 'left')])
def test_attention_attribution_of_a_padded_batch_is_the_gradient_of_each_sentence_alone(kind, side):
    model, batch = tiny(kind), uneven_batch(side)
    if side == 'left': model.float() # a double Llama takes its softmax in float32, where a row without any key is NaN
    attribution, allowed = attention_attribution(model, batch)
    for i, at, ids in sentences(batch):
        for l, (reference, may_attend) in enumerate(zip(*reference_attribution(model, ids))):
            expected, real = torch.zeros(4, 7, 7, dtype=reference.dtype), torch.zeros(7, 7, dtype=torch.bool)
            for q in range(len(ids)):
                for k in range(len(ids)):
                    if may_attend[q, k]: expected[:, at[q], at[k]], real[at[q], at[k]] = reference[:, q, k], True
            assert torch.equal(allowed[l][i, 0], real)
            torch.testing.assert_close(attribution[l][i], expected, **CLOSE[side])
            assert (attribution[l][i][:, ~real] == 0).all()


def test_attention_attribution_is_signed_and_follows_the_given_class_and_layers():
    model, batch, target = tiny('bert'), uneven_batch(), torch.tensor([0, 1, 2])
    attribution, allowed = attention_attribution(model, batch, target, layers=[-1, 0])
    assert set(attribution) == set(allowed) == {0, 2}
    assert (attribution[0] < 0).any() and (attribution[0] > 0).any()
    for i, at, ids in sentences(batch):
        reference, _ = reference_attribution(model, ids, target[i].item())
        for l in attribution: torch.testing.assert_close(attribution[l][i][:, at][:, :, at], reference[l], rtol=1e-8, atol=1e-11)


def test_rows_that_the_head_never_reads_have_exactly_zero_attribution():
    attribution, _ = attention_attribution(tiny('bert'), uneven_batch())
    assert (attribution[2][:, :, 1:] == 0).all() and (attribution[2][:, :, 0] != 0).any() and (attribution[1][0] != 0).all()


def test_attribution_in_train_mode_is_drawn_from_its_seed_alone():
    model, batch = tiny('bert', dropout=.3), uneven_batch()
    look = lambda seed: attention_attribution(model, batch, training=True, seed=seed)[0][0]
    first = look(1)
    torch.rand(5)
    assert torch.equal(look(1), first) and not torch.equal(look(2), first)
    assert not torch.equal(attention_attribution(model, batch)[0][0], first)


def test_an_unknown_attribution_method_is_refused():
    with pytest.raises(ValueError, match="method must be 'gradient', got 'rollout'"):
        attention_attribution(tiny('bert'), uneven_batch(), method='rollout')


def masked(kind):
    "A random language model in float64 with a mask or a causal head"
    common = dict(vocab_size=60, pad_token_id=PAD, initializer_range=.4, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = BertForMaskedLM(BertConfig(**common)) if kind == 'bert' else LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **common))
    return model.double().eval()


@pytest.mark.parametrize('kind', ['bert', 'llama'])
@pytest.mark.parametrize('method', METHODS)
def test_a_function_as_target_explains_any_logit_of_any_head(kind, method):
    model, batch = masked(kind), uneven_batch()
    at, token = torch.tensor([6, 0, 3]), torch.tensor([9, 41, 17])
    seen = []
    def score(outputs, rows):
        seen.append(rows.tolist())
        return outputs.logits[torch.arange(len(rows)), at[rows], token[rows]]
    saliency = input_saliency(model, batch, method, target=score, batch_size=2, steps=4)
    assert {r for rows in seen for r in rows} == {0, 1, 2} and max(map(len, seen)) == 2
    weight = model.get_input_embeddings().weight.detach()
    for i, where, ids in sentences(batch):
        x, nodes = weight[ids], [(k - .5)/4 for k in range(1, 5)] if method == 'integrated_gradients' else [1.]
        start, g = (weight[PAD] if len(nodes) > 1 else torch.zeros(24, dtype=torch.float64)), torch.zeros_like(x)
        for a in nodes:
            point = (start + a*(x - start)).clone().requires_grad_()
            model(inputs_embeds=point[None]).logits[0, at[i], token[i]].backward(inputs=[point])
            g += point.grad/len(nodes)
        expected = g.norm(dim=1) if method == 'gradient_norm' else g.abs().sum(1) if method == 'gradient_abs' else (g*(x - start)).sum(1)
        torch.testing.assert_close(saliency[i, where], expected, rtol=1e-8, atol=1e-11)


def test_attention_attribution_of_a_function_is_the_gradient_of_its_score():
    model, batch = masked('bert'), uneven_batch()
    attribution, allowed = attention_attribution(model, batch, target=lambda outputs, rows: outputs.logits[:, 1, 7] + outputs.logits[:, 2, 9])
    model.set_attn_implementation('eager')
    for i, at, ids in sentences(batch):
        outputs = model(input_ids=ids[None], output_attentions=True)
        expected = torch.autograd.grad(outputs.logits[0, 1, 7] + outputs.logits[0, 2, 9], outputs.attentions)
        for l in attribution: torch.testing.assert_close(attribution[l][i][:, at][:, :, at], expected[l][0], rtol=1e-8, atol=1e-11)


def test_a_named_token_is_the_baseline_where_a_model_has_no_pad_token():
    model, batch = tiny('bert'), uneven_batch()
    one = {k: v[:1] for k, v in batch.items()}
    expected = input_saliency(model, one, baseline=PAD)
    other = input_saliency(model, one, baseline=7)
    model.config.pad_token_id = None
    torch.testing.assert_close(input_saliency(model, one, baseline=PAD), expected, rtol=0, atol=0)
    assert not torch.allclose(other, expected)
    assert completeness_error(model, one, input_saliency(model, one, steps=200, baseline=7), baseline=7) < .1


@pytest.mark.parametrize('target, message', [
    ('predicted', r'has logits of shape \[30?, 7, 60\] and so no class to explain; say what the score is with target='),
    (lambda outputs, rows: outputs.logits[:, 0], r'target must return one score for each of 30? rows, got \[30?, 60\]'),
    (lambda outputs, rows: 1., 'target must return one score for each of 30? rows, got float')])
@pytest.mark.parametrize('look', [input_saliency, attention_attribution])
def test_a_score_that_is_none_is_refused_in_one_sentence(look, target, message):
    with pytest.raises(ValueError, match=message): look(masked('bert'), uneven_batch(), target=target)
