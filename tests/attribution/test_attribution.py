"Saliency of inputs and attribution of attention, against loops in float64 written from the equations"

from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captum.attr import LayerIntegratedGradients
from torch import nn
from transformers import (AlbertConfig, AlbertForSequenceClassification, AttentionInterface, AttentionMaskInterface,
                          AutoConfig, AutoModelForSequenceClassification,
                          BertConfig, BertForMaskedLM,
                          BertForSequenceClassification, DistilBertConfig,
                          DistilBertForSequenceClassification, ElectraConfig, ElectraForSequenceClassification,
                          GPT2Config,
                          GPT2ForSequenceClassification, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification,
                          MarianConfig, MarianMTModel,
                          ModernBertConfig, ModernBertForSequenceClassification, RobertaConfig,
                          RobertaForSequenceClassification, T5Config,
                          T5ForConditionalGeneration)
from transformers.masking_utils import sdpa_mask
from transformers.modeling_outputs import ImageClassifierOutput

from helpers import same, state
from salviz.attribution.attention import attention_attribution, attention_completeness_error, path_rule
from salviz.attribution.saliency import completeness_error, input_saliency
from salviz.models.loading import forked_random
from salviz.models.nets import DigitCNN, DigitCNNConfig, SeriesLSTM, SeriesLSTMConfig, TextLSTM, TextLSTMConfig

PAD, LENGTHS = 0, (7, 3, 5)
IN_FLOAT32 = 'gpt2', 'llama', 'modernbert', 't5' # compute a softmax, a norm or rotary angles in float32

def close(kind):
    "Return the tolerance: about ten digits for a float64 model, or those of float32 if a model rounds to float32"
    return dict(rtol=1e-3, atol=1e-5) if kind in IN_FLOAT32 else dict(rtol=1e-8, atol=1e-11)


def tiny(kind, dropout=0., **kwargs):
    "Return a random classifier in float64 whose attention is far from uniform"
    common = dict(vocab_size=60, num_labels=3, pad_token_id=PAD, initializer_range=.4, **kwargs)
    encoder = dict(common, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=32)
    dropouts = dict(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    build = dict(
        bert=lambda: BertForSequenceClassification(BertConfig(**encoder, **dropouts)),
        roberta=lambda: RobertaForSequenceClassification(RobertaConfig(**encoder)),
        electra=lambda: ElectraForSequenceClassification(ElectraConfig(embedding_size=16, **encoder)),
        albert=lambda: AlbertForSequenceClassification(AlbertConfig(embedding_size=16, **encoder)),
        modernbert=lambda: ModernBertForSequenceClassification(
        ModernBertConfig(**encoder, classifier_pooling='cls', local_attention=4)),
        distilbert=lambda: DistilBertForSequenceClassification(
        DistilBertConfig(dim=24, n_layers=2, n_heads=4, hidden_dim=32, **common)),
        llama=lambda: LlamaForSequenceClassification(LlamaConfig(num_key_value_heads=2, **encoder)),
        gpt2=lambda: GPT2ForSequenceClassification(GPT2Config(n_embd=24, n_layer=2, n_head=4, bos_token_id=1,
                                                              eos_token_id=2, **common)))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build[kind]()
    return model.double().eval()


def uneven_batch(side='right'):
    "Return three sentences of 7, 3 and 5 tokens, padded on one side"
    g = torch.Generator().manual_seed(3)
    ids, mask = torch.full((3, 7), PAD), torch.zeros(3, 7, dtype=torch.int64)
    for i, n in enumerate(LENGTHS):
        where = slice(0, n) if side == 'right' else slice(7 - n, 7)
        ids[i, where] = torch.randint(5, 60, (n,), generator=g)
        mask[i, where] = 1
    return dict(input_ids=ids, attention_mask=mask)


def sentences(batch):
    "Yield each example's number, its positions in the batch, and its ids without padding"
    for i, mask in enumerate(batch['attention_mask']):
        at = mask.nonzero().squeeze(1)
        yield i, at, batch['input_ids'][i, at]


def reference_gradient(model, x, c):
    "Return dF_c/dx of one sentence with the embeddings [n, dim], without hooks, padding or batch"
    x = x.clone().requires_grad_()
    model(inputs_embeds=x[None], attention_mask=torch.ones(1, len(x),
                                                           dtype=torch.int64)).logits[0, c].backward(inputs=[x])
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


@pytest.mark.sample(7)
@pytest.mark.parametrize('kind, side, method',
                         [(k, 'right', m) for k in ('bert', 'distilbert', 'gpt2', 'llama') for m in METHODS]
                         + [('llama', 'left', m) for m in ('gradient', *METHODS)]
                         + [(k, 'right', 'input_x_gradient') for k in ENCODERS[1:]])
def test_saliency_of_a_padded_batch_equals_the_equation_for_each_sentence(kind, side, method):
    model, batch = tiny(kind), uneven_batch(side)
    saliency = input_saliency(model, batch, method)
    for i, at, ids in sentences(batch):
        c = model(input_ids=ids[None]).logits[0].argmax().item()
        torch.testing.assert_close(saliency[i, at], reference_saliency(model, ids, method, c), **close(kind))
        assert (saliency[i, batch['attention_mask'][i] == 0] == 0).all()


@pytest.mark.parametrize('side', ['right', 'left'])
@pytest.mark.parametrize('method', METHODS)
def test_the_saliency_of_a_log_probability_is_its_gradient_for_each_sentence(method, side):
    model, batch = tiny('llama'), uneven_batch(side)
    saliency = input_saliency(model, batch, method, score='log_probability', steps=4)
    weight = model.get_input_embeddings().weight.detach()
    for i, at, ids in sentences(batch):
        c, x = model(input_ids=ids[None]).logits[0].argmax().item(), weight[ids]
        base, nodes, g = 0., [1.], 0.
        if method == 'integrated_gradients': base, nodes = weight[PAD], [(k - .5)/4 for k in range(1, 5)]
        for a in nodes:
            point = (base + a*(x - base)).clone().requires_grad_()
            z = model(inputs_embeds=point[None], attention_mask=torch.ones(1, len(ids), dtype=torch.int64)).logits[0]
            score = z[c] - sum(v.exp() for v in z).log()
            g = g + torch.autograd.grad(score, point)[0]/len(nodes)
        expected = dict(gradient_norm=g.norm(dim=-1), gradient_abs=g.abs().sum(-1)).get(method, (g*(x - base)).sum(-1))
        torch.testing.assert_close(saliency[i, at], expected, **close('llama'))
        assert not saliency[i, batch['attention_mask'][i] == 0].any()
    assert not torch.allclose(saliency, input_saliency(model, batch, method, steps=4), rtol=1e-2)


def test_a_log_probability_needs_several_classes():
    model, batch = tiny('bert'), uneven_batch()
    with pytest.raises(ValueError, match="score must be one of 'logit', 'log_probability', got 'probability'"):
        input_saliency(model, batch, 'input_x_gradient', score='probability')
    def first(outputs, rows): return outputs.logits[:, 0]
    with pytest.raises(ValueError, match="score='log_probability' needs a class as target; omit score"):
        input_saliency(model, batch, 'input_x_gradient', first, score='log_probability')
    with pytest.raises(ValueError, match="score='log_probability' needs at least two classes"):
        alone = tiny('bert')
        alone.classifier = nn.Linear(24, 1).double()
        input_saliency(alone, batch, 'input_x_gradient', score='log_probability')
    saliency = input_saliency(model, batch, steps=300, score='log_probability')
    assert completeness_error(model, batch, saliency, score='log_probability').max() < 1e-3
    assert completeness_error(model, batch, saliency).max() > 1e-2 # it is not the gain of the logit


@pytest.mark.parametrize('method', METHODS)
def test_a_given_class_is_explained_instead_of_the_predicted_one(method):
    model, batch, target = tiny('bert'), uneven_batch(), torch.tensor([2, 0, 1])
    saliency = input_saliency(model, batch, method, target=target, steps=5)
    for i, at, ids in sentences(batch):
        torch.testing.assert_close(saliency[i, at], reference_saliency(model, ids, method, target[i].item(), steps=5),
                                   rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize('kind', ['bert', 'distilbert'])
def test_integrated_gradients_equal_captum_and_are_complete(kind):
    model, batch, target = tiny(kind), uneven_batch(), torch.tensor([2, 0, 1])
    explain = LayerIntegratedGradients(lambda ids, mask: model(input_ids=ids, attention_mask=mask).logits,
                                       model.get_input_embeddings())
    captum = explain.attribute(batch['input_ids'], baselines=torch.full_like(batch['input_ids'], PAD), target=target,
                               n_steps=20,
                               additional_forward_args=(batch['attention_mask'],), method='riemann_middle')
    ours = input_saliency(model, batch, 'integrated_gradients', target)
    # captum stores its nodes in float32
    torch.testing.assert_close(ours, captum.sum(-1)*batch['attention_mask'], rtol=1e-5, atol=1e-6)
    assert completeness_error(model, batch, input_saliency(model, batch, target=target, steps=200), target).max() < .1


def test_completeness_error_falls_with_the_square_of_the_steps():
    model, batch = tiny('bert'), uneven_batch()
    error = [completeness_error(model, batch, input_saliency(model, batch, steps=m)).max().item() for m in (20, 40, 80)]
    assert error[0] < .05
    np.testing.assert_allclose([error[0]/error[1], error[1]/error[2]], 4, rtol=.2)


@pytest.mark.sample(10)
@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('batch_size', [1, 2, 7, 1000])
def test_batch_size_does_not_change_the_result(method, batch_size):
    model, batch = tiny('bert'), uneven_batch()
    whole = input_saliency(model, batch, method)
    torch.testing.assert_close(input_saliency(model, batch, method, batch_size=batch_size), whole, rtol=1e-10,
                               atol=1e-12)


def test_batch_size_limits_the_rows_of_every_forward_pass():
    model, batch, rows = tiny('bert'), uneven_batch(), []
    handle = model.register_forward_pre_hook(lambda m, args, kwargs: rows.append(len(kwargs['input_ids'])),
                                             with_kwargs=True)
    input_saliency(model, batch, batch_size=2, steps=5)
    handle.remove()
    assert max(rows) == 2


@pytest.mark.parametrize('kind', ['bert', 'distilbert', 'gpt2'])
def test_the_gradient_sum_is_rejected_where_a_layernorm_makes_it_zero(kind):
    model = tiny(kind)
    with pytest.raises(ValueError,
                       match=f"method='gradient'.*identically zero for {type(model).__name__}.*use 'input_x_gradient'"):
        input_saliency(model, uneven_batch(), 'gradient')
    with pytest.raises(ValueError, match='identically zero'): input_saliency(model.float(), uneven_batch(), 'gradient')


@pytest.mark.parametrize('kwargs, message', [
    (dict(method='lime'), "method must be one of 'gradient', .*, got 'lime'"),
    (dict(target='gold'), "target must be 'predicted' or an int64 tensor .*got 'gold'"),
    (dict(target=torch.zeros(2, dtype=torch.int64)), r'here 3\), got torch.int64 \[2\]'),
    (dict(target=torch.zeros(3)), r'got torch.float32 \[3\]'),
    (dict(steps=0), 'steps must be a positive integer, got 0'),
    (dict(batch_size=0), 'batch_size must be a positive integer, got 0')])
def test_wrong_arguments_raise_errors_of_one_sentence(kwargs, message):
    with pytest.raises(ValueError, match=message): input_saliency(tiny('bert'), uneven_batch(), **kwargs)


def test_integrated_gradients_without_a_padding_token_are_rejected():
    model = tiny('gpt2')
    model.config.pad_token_id = None
    one = {k: v[:1] for k, v in uneven_batch().items()}
    with pytest.raises(ValueError, match='GPT2ForSequenceClassification has no padding token'):
        input_saliency(model, one)


LOOKS = [lambda m, b: input_saliency(m, b), lambda m, b: attention_attribution(m, b),
         lambda m, b: attention_attribution(m, b, training=True, seed=4),
         lambda m, b: completeness_error(m, b, torch.zeros(3, 7)),
         lambda m, b: attention_attribution(m, b, method='attention', training=True, seed=4),
         lambda m, b: attention_attribution(m, b, training=True, seed=4, after_dropout=True),
         lambda m, b: attention_attribution(m, b, method='integrated_gradients', training=True, seed=4, steps=3,
                                            batch_size=4),
         lambda m, b: attention_completeness_error(m, b, {1: torch.ones(3, 4, 7, 7)})]


@pytest.mark.parametrize('look', LOOKS)
def test_attribution_has_no_side_effects(look):
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
def test_attribution_has_no_side_effects_after_an_error(look):
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
        for l, b in attention_attribution(model, batch)[0].items():
            torch.testing.assert_close(b, attention[l], rtol=1e-12, atol=1e-14)


def reference_attribution(model, ids, c=None):
    """Return dF_c/dA of one sentence, from the model's eager attention, and where it may attend: [layers][heads, n, n],
    [layers][n, n]"""
    old = model.config._attn_implementation
    model.set_attn_implementation('eager')
    outputs = model(input_ids=ids[None], output_attentions=True)
    c = outputs.logits[0].argmax().item() if c is None else c
    gradients = []
    for a in outputs.attentions: gradients.append(torch.autograd.grad(outputs.logits[0, c], a, retain_graph=True)[0][0])
    model.set_attn_implementation(old)
    return gradients, [a[0, 0].detach() > 0 for a in outputs.attentions]


@pytest.mark.parametrize('kind, side', [(k, 'right') for k in ENCODERS + DECODERS] + [('llama', 'left')])
def test_attention_attribution_of_a_padded_batch_is_the_gradient_of_each_sentence(kind, side):
    model, batch = tiny(kind), uneven_batch(side)
    if side == 'left': model.float() # a float64 Llama computes its softmax in float32: NaN in rows without keys
    attribution, allowed = attention_attribution(model, batch)
    for i, at, ids in sentences(batch):
        for l, (reference, may_attend) in enumerate(zip(*reference_attribution(model, ids))):
            expected, real = torch.zeros(4, 7, 7, dtype=reference.dtype), torch.zeros(7, 7, dtype=torch.bool)
            for q in range(len(ids)):
                for k in range(len(ids)):
                    if may_attend[q, k]: expected[:, at[q], at[k]], real[at[q], at[k]] = reference[:, q, k], True
            assert torch.equal(allowed[l][i, 0], real)
            torch.testing.assert_close(attribution[l][i], expected, **close(kind))
            assert (attribution[l][i][:, ~real] == 0).all()


def test_attention_attribution_is_signed_and_uses_the_given_class_and_layers():
    model, batch, target = tiny('bert'), uneven_batch(), torch.tensor([0, 1, 2])
    attribution, allowed = attention_attribution(model, batch, target, layers=[-1, 0])
    assert set(attribution) == set(allowed) == {0, 2}
    assert (attribution[0] < 0).any() and (attribution[0] > 0).any()
    for i, at, ids in sentences(batch):
        reference, _ = reference_attribution(model, ids, target[i].item())
        for l in attribution:
            torch.testing.assert_close(attribution[l][i][:, at][:, :, at], reference[l], rtol=1e-8, atol=1e-11)


def test_rows_that_the_head_never_reads_have_exactly_zero_attribution():
    attribution, _ = attention_attribution(tiny('bert'), uneven_batch())
    assert (attribution[2][:, :, 1:] == 0).all()
    assert (attribution[2][:, :, 0] != 0).any()
    assert (attribution[1][0] != 0).all()


def test_attribution_in_training_mode_depends_only_on_the_seed():
    model, batch = tiny('bert', dropout=.3), uneven_batch()
    look = lambda seed: attention_attribution(model, batch, training=True, seed=seed)[0][0]
    first = look(1)
    torch.rand(5)
    assert torch.equal(look(1), first) and not torch.equal(look(2), first)
    assert not torch.equal(attention_attribution(model, batch)[0][0], first)


def attention_dropout(model, rate, shape, seed):
    """Set the attention dropout of a BERT without other dropout; return the factors of A [batch, heads, n, n] in train
    mode, drawn from `seed`"""
    for block in model.bert.encoder.layer: block.attention.self.dropout.p = rate
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return [F.dropout(torch.ones(shape, dtype=torch.float64), rate) for _ in model.bert.encoder.layer]


@pytest.mark.parametrize('side', ['right', 'left'])
@pytest.mark.parametrize('method', ['gradient', 'attention'])
@pytest.mark.parametrize('after', [False, True])
def test_the_map_before_or_after_dropout_equals_a_loop_over_the_weights_of_a_bert(after, method, side):
    model, batch = tiny('bert'), uneven_batch(side)
    noise = attention_dropout(model, .3, (3, 4, 7, 7), seed=8)
    found, allowed = attention_attribution(model, batch, method=method, training=True, seed=8, after_dropout=after)
    for i, (ids, mask) in enumerate(zip(batch['input_ids'], batch['attention_mask'])):
        own, real = [x[i] for x in noise], (mask[:, None] & mask).bool()
        c = bert_by_hand(model, ids, mask, None, 1., own)[0].argmax().item()
        for l in range(3):
            logits, A = bert_by_hand(model, ids, mask, l, 1., own, after)
            b = torch.autograd.grad(logits[c], A)[0] if method == 'gradient' else A.detach()
            torch.testing.assert_close(found[l][i], torch.where(real, b, 0.), rtol=1e-8, atol=1e-11)
            assert torch.equal(allowed[l][i, 0], real) # dropped positions are still allowed
    gone = (noise[0] == 0) & allowed[0]
    assert gone.any() and (found[0][gone] == 0).all() == (after == (method == 'attention'))


@pytest.mark.parametrize('kwargs, message', [
    (dict(training=True, method='integrated_gradients'),
     "after_dropout=True has no effect with method='integrated_gradients'"),
    (dict(training=False), 'after_dropout=True has no effect in eval mode'),
    (dict(after_dropout='yes'), "after_dropout must be True or False, got 'yes'")])
def test_the_map_after_dropout_is_rejected_without_dropout(kwargs, message):
    with pytest.raises(ValueError, match=message):
        attention_attribution(tiny('bert'), uneven_batch(), **{'after_dropout': True, **kwargs})


def test_an_unknown_attribution_method_is_rejected():
    with pytest.raises(ValueError,
                       match="method must be one of 'gradient', 'integrated_gradients', 'attention', got 'rollout'"):
        attention_attribution(tiny('bert'), uneven_batch(), method='rollout')


def masked(kind):
    "Return a random language model in float64 with a mask or a causal head"
    common = dict(vocab_size=60, pad_token_id=PAD, initializer_range=.4, hidden_size=24, num_hidden_layers=2,
                  num_attention_heads=4, intermediate_size=32)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = (BertForMaskedLM(BertConfig(**common)) if kind == 'bert'
                 else LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **common)))
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
        expected = (g.norm(dim=1) if method == 'gradient_norm' else g.abs().sum(1) if method == 'gradient_abs'
                    else (g*(x - start)).sum(1))
        torch.testing.assert_close(saliency[i, where], expected, rtol=1e-8, atol=1e-11)


def test_attention_attribution_of_a_function_is_the_gradient_of_its_score():
    model, batch = masked('bert'), uneven_batch()
    attribution, allowed = attention_attribution(model, batch,
                                                 target=lambda outputs, rows: outputs.logits[:, 1, 7]
                                                 + outputs.logits[:, 2, 9])
    model.set_attn_implementation('eager')
    for i, at, ids in sentences(batch):
        outputs = model(input_ids=ids[None], output_attentions=True)
        expected = torch.autograd.grad(outputs.logits[0, 1, 7] + outputs.logits[0, 2, 9], outputs.attentions)
        for l in attribution:
            torch.testing.assert_close(attribution[l][i][:, at][:, :, at], expected[l][0], rtol=1e-8, atol=1e-11)


def test_a_given_token_is_the_baseline_of_a_model_without_a_padding_token():
    model, batch = tiny('bert'), uneven_batch()
    one = {k: v[:1] for k, v in batch.items()}
    expected = input_saliency(model, one, baseline=PAD)
    other = input_saliency(model, one, baseline=7)
    model.config.pad_token_id = None
    torch.testing.assert_close(input_saliency(model, one, baseline=PAD), expected, rtol=0, atol=0)
    assert not torch.allclose(other, expected)
    assert completeness_error(model, one, input_saliency(model, one, steps=200, baseline=7), baseline=7) < .1


@pytest.mark.parametrize('target, message', [
    ('predicted', r'has logits of shape \[\d+, 7, 60\]; pass a function of '),
    (lambda outputs, rows: outputs.logits[:, 0],
     r'target must return one score for each of \d+ rows, got shape \[\d+, 60\]'),
    (lambda outputs, rows: 1., r'target must return one score for each of \d+ rows, got float')])
@pytest.mark.parametrize('look', [input_saliency, attention_attribution])
def test_invalid_scores_raise_errors_of_one_sentence(look, target, message):
    with pytest.raises(ValueError, match=message): look(masked('bert'), uneven_batch(), target=target)


# Attention: integrated gradients and A itself

# state of the reference attention below: number of the call to scale, its factor, and then the A of that call
PATH = {}


def reference_attention(module, query, key, value, attention_mask, dropout=0., scaling=None, is_causal=None,
                        position_bias=None, **kwargs):
    """Return softmax(QK' + bias) V for one sentence without padding; in the call that PATH names, A is a leaf and is
    multiplied by a factor"""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1]**-.5 if scaling is None else scaling)
    if position_bias is not None: scores = scores + position_bias
    causal = getattr(module, 'is_causal', False) if is_causal is None else is_causal
    if attention_mask is not None: scores = scores.masked_fill(~attention_mask, -torch.inf)
    elif causal: scores = scores.masked_fill(~torch.ones(scores.shape[2:], dtype=torch.bool).tril(), -torch.inf)
    A = scores.softmax(-1)
    if PATH['call'] == PATH['layer']:
        A = PATH['A'] = A.detach().requires_grad_()
        A = PATH['factor']*A
    PATH['call'] += 1
    return (A @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register('reference', reference_attention)
AttentionMaskInterface.register('reference', sdpa_mask)


def scaled_pass(model, inputs, layer, factor):
    "Return the outputs of one sentence with the attention of `layer` times `factor`, and its unscaled A as a leaf"
    old = model.config._attn_implementation
    model.set_attn_implementation('reference')
    PATH.update(call=0, layer=layer, factor=factor)
    outputs = model(**inputs)
    model.set_attn_implementation(old)
    return outputs, PATH['A']


def reference_integrated(model, inputs, score, layer, steps=20, reading='paper'):
    "Compute eq. 3 for one sentence, node by node: [heads, query, key]"
    total = 0.
    for k in range(1, steps + 1):
        outputs, A = scaled_pass(model, inputs, layer, k/steps)
        gradient = torch.autograd.grad(score(outputs), A)[0][0] # with respect to the unscaled A
        total = total + (gradient if reading == 'paper' else gradient/(k/steps))
    return A.detach()[0]*total/steps


def bert_by_hand(model, ids, mask, layer, factor, noise=None, after=False):
    """Return the logits of one padded sentence, from the weights of a BERT alone, and A of `layer`, a leaf that is
    multiplied by `factor`.
    `noise` [layers][heads, n, n]: the factors of attention dropout; `after`: whether the leaf is A after dropout"""
    w = {k: v.detach() for k, v in model.state_dict().items()}
    eps = model.config.layer_norm_eps
    def linear(x, name): return x @ w[f'{name}.weight'].T + w[f'{name}.bias']
    def norm(x, name):
        spread = (x.var(-1, keepdim=True, unbiased=False) + eps).sqrt()
        return (x - x.mean(-1, keepdim=True))/spread*w[f'{name}.weight'] + w[f'{name}.bias']
    e = 'bert.embeddings'
    x = w[f'{e}.word_embeddings.weight'][ids] + w[f'{e}.position_embeddings.weight'][:len(ids)] + w[
        f'{e}.token_type_embeddings.weight'][0]
    x, leaf = norm(x, f'{e}.LayerNorm'), None
    for l in range(model.config.num_hidden_layers):
        b, heads = f'bert.encoder.layer.{l}', []
        q, k, v = (linear(x, f'{b}.attention.self.{name}') for name in ('query', 'key', 'value'))
        A = torch.stack([(q[:, o:o+6] @ k[:, o:o+6].T / 6**.5).masked_fill(mask == 0, -torch.inf).softmax(-1)
                         for o in range(0, 24, 6)])
        if noise is not None and after: A = A*noise[l]
        if l == layer:
            leaf = A.detach().requires_grad_()
            A = factor*leaf
        if noise is not None and not after: A = A*noise[l]
        context = torch.cat([A[h] @ v[:, 6*h:6*h+6] for h in range(4)], -1)
        x = norm(x + linear(context, f'{b}.attention.output.dense'), f'{b}.attention.output.LayerNorm')
        x = norm(x + linear(F.gelu(linear(x, f'{b}.intermediate.dense')), f'{b}.output.dense'), f'{b}.output.LayerNorm')
    return linear(linear(x[0], 'bert.pooler.dense').tanh(), 'classifier'), leaf


@pytest.mark.sample(1)
@pytest.mark.parametrize('side', ['right', 'left'])
@pytest.mark.parametrize('reading', ['paper', 'standard'])
def test_integrated_attention_equals_equation_three_node_by_node(side, reading):
    model, batch = tiny('bert'), uneven_batch(side)
    attribution, allowed = attention_attribution(model, batch, method='integrated_gradients', reading=reading, steps=6,
                                                 batch_size=7)
    for i, (ids, mask) in enumerate(zip(batch['input_ids'], batch['attention_mask'])):
        c = bert_by_hand(model, ids, mask, None, 1.)[0].argmax().item()
        real = (mask[:, None] & mask).bool()
        for l in range(3):
            expected = torch.zeros(4, 7, 7, dtype=torch.float64)
            for k in range(1, 7):
                logits, A = bert_by_hand(model, ids, mask, l, k/6)
                gradient = torch.autograd.grad(logits[c], A)[0]
                for h, q, key in np.ndindex(4, 7, 7):
                    term = gradient[h, q, key].item() if reading == 'paper' else gradient[h, q, key].item()*6/k
                    if real[q, key]: expected[h, q, key] += A[h, q, key].item()*term/6
            torch.testing.assert_close(attribution[l][i], expected, rtol=1e-7, atol=1e-10)
            assert torch.equal(allowed[l][i, 0], real)
            assert (expected != 0).any() == (l < 2 or side == 'right' or mask.all())


@pytest.mark.sample(4)
@pytest.mark.parametrize('kind', ['albert', 'distilbert', 'gpt2', 'llama'])
@pytest.mark.parametrize('reading', ['paper', 'standard'])
def test_integrated_attention_scales_one_layer_at_a_time_in_every_architecture(kind, reading):
    model, batch = tiny(kind), uneven_batch()
    attribution, allowed = attention_attribution(model, batch, method='integrated_gradients', reading=reading, steps=5)
    for i, at, ids in sentences(batch):
        inputs = dict(input_ids=ids[None])
        c = model(**inputs).logits[0].argmax().item()
        for l in attribution:
            expected = reference_integrated(model, inputs, lambda o: o.logits[0, c], l, 5, reading)
            near = dict(rtol=1e-3, atol=1e-4) if kind in IN_FLOAT32 else dict(rtol=1e-7, atol=1e-10)
            torch.testing.assert_close(attribution[l][i][:, at][:, :, at], expected, **near)
        if kind in DECODERS:
            assert torch.equal(allowed[0][i, 0][at][:, at], torch.ones(len(at), len(at), dtype=torch.bool).tril())


def test_the_class_on_the_path_is_that_of_the_unscaled_pass():
    model, batch = tiny('bert'), uneven_batch()
    there = model(**batch).logits.argmax(-1)
    at_first_node = [scaled_pass(model, dict(input_ids=ids[None]), 0, .05)[0].logits.argmax().item()
                     for _, _, ids in sentences(batch)]
    assert at_first_node != there.tolist() # the nodes predict other classes
    for l, b in attention_attribution(model, batch, method='integrated_gradients')[0].items():
        assert torch.equal(b, attention_attribution(model, batch, there, method='integrated_gradients')[0][l])


@pytest.mark.sample(1)
@pytest.mark.parametrize('side', ['right', 'left'])
@pytest.mark.parametrize('reading', ['paper', 'standard'])
@pytest.mark.parametrize('batch_size', [1, 7, None])
def test_pseudo_labels_of_each_step_are_predicted_at_that_step(side, reading, batch_size):
    model, batch = tiny('bert'), uneven_batch(side)
    how = dict(method='integrated_gradients', reading=reading, steps=6, batch_size=batch_size)
    attribution, _ = attention_attribution(model, batch, pseudo_label='each_step', **how)
    for i, (ids, mask) in enumerate(zip(batch['input_ids'], batch['attention_mask'])):
        real = (mask[:, None] & mask).bool()
        for l in range(3):
            total, labels = 0., []
            for k in range(1, 7): # all layers are computed from the weights; nothing is cached
                logits, A = bert_by_hand(model, ids, mask, l, k/6)
                labels.append(logits.argmax().item())
                gradient = torch.autograd.grad(logits[labels[-1]], A)[0]
                total = total + A.detach()*(gradient if reading == 'paper' else gradient/(k/6))/6
            torch.testing.assert_close(attribution[l][i], total.masked_fill(~real, 0.), rtol=1e-7, atol=1e-10)


def test_pseudo_labels_of_each_step_need_a_path_and_a_prediction():
    model, batch = tiny('bert'), uneven_batch()
    anew = dict(pseudo_label='each_step')
    with pytest.raises(ValueError, match="pseudo_label must be one of 'fixed', 'each_step', got 'gold'"):
        attention_attribution(model, batch, pseudo_label='gold')
    with pytest.raises(ValueError, match="to method='integrated_gradients', which has a path .* got 'gradient'"):
        attention_attribution(model, batch, **anew)
    for target in (torch.tensor([0, 1, 2]), lambda outputs, rows: outputs.logits[:, 0]):
        with pytest.raises(ValueError, match="pseudo_label='each_step' only applies to target='predicted'"):
            attention_attribution(model, batch, target, method='integrated_gradients', **anew)


@pytest.mark.slow
def test_standard_integrated_attention_of_a_layer_is_complete():
    model, batch = tiny('bert'), uneven_batch()
    errors = []
    for steps in (50, 100, 200):
        attribution, _ = attention_attribution(model, batch, method='integrated_gradients', reading='standard',
                                               steps=steps)
        errors.append(attention_completeness_error(model, batch, attribution))
        for i, _, ids in sentences(batch):
            c = model(input_ids=ids[None]).logits[0].argmax().item()
            for l, b in attribution.items():
                there, gone = (scaled_pass(model, dict(input_ids=ids[None]), l, f)[0].logits[0, c] for f in (1., 0.))
                gain = there - gone
                np.testing.assert_allclose(errors[-1][l][i].item(), abs((b[i].sum() - gain)/gain).item(), rtol=1e-5)
    for l in range(3): # right ends of the steps: half the error for twice the steps, so extrapolation removes it
        np.testing.assert_allclose(errors[1][l]/errors[2][l], 2, rtol=.1)
        assert (2*errors[2][l] - errors[1][l]).abs().max() < .01
    paper, _ = attention_attribution(model, batch, method='integrated_gradients', steps=200)
    assert attention_completeness_error(model, batch, paper)[0].max() > .1


def test_the_path_has_no_dropout_and_the_prediction_uses_training_mode():
    model, batch, target = tiny('bert', dropout=.3), uneven_batch(), torch.tensor([2, 0, 1])
    look = lambda target, **kw: attention_attribution(model, batch, target, layers=1, method='integrated_gradients',
                                                      steps=4, **kw)[0][1]
    still = look(target)
    model.train()
    assert torch.equal(look(target), still)
    assert torch.equal(look(target, training=True, seed=1), still)
    assert model.training
    # with dropout, some seed predicts other classes, so the attribution differs
    assert not all(torch.equal(look('predicted', training=True, seed=seed), look('predicted')) for seed in range(8))
    assert torch.equal(look('predicted', training=True, seed=5), look('predicted', training=True, seed=5))


@pytest.mark.sample(1)
@pytest.mark.parametrize('batch_size', [1, 2, 4, 1000])
def test_nodes_are_batched_within_limits_without_changing_the_result(batch_size):
    model, batch, rows = tiny('bert'), uneven_batch(), []
    whole = attention_attribution(model, batch, torch.tensor([0, 1, 2]), method='integrated_gradients', steps=7)[0]
    handle = model.register_forward_pre_hook(lambda m, args, kwargs: rows.append(len(kwargs['input_ids'])),
                                             with_kwargs=True)
    parts = attention_attribution(model, batch, torch.tensor([0, 1, 2]), method='integrated_gradients', steps=7,
                                  batch_size=batch_size)[0]
    handle.remove()
    assert max(rows) <= max(batch_size, 1) and sum(rows) == 3*7*3 + 3 # and one pass for the lower layers
    for l in whole: torch.testing.assert_close(parts[l], whole[l], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize('kind, side', [(k, 'right') for k in ENCODERS + DECODERS])
def test_attention_as_attribution_equals_eager_attention(kind, side):
    model, batch = tiny(kind), uneven_batch(side)
    attribution, allowed = attention_attribution(model, batch, method='attention', layers=[0, -1])
    assert not any(b.requires_grad for b in attribution.values())
    model.set_attn_implementation('eager')
    for i, at, ids in sentences(batch):
        own = model(input_ids=ids[None], output_attentions=True).attentions
        for l, b in attribution.items():
            # some compute their softmax in float32
            torch.testing.assert_close(b[i][:, at][:, :, at], own[l][0], rtol=1e-5, atol=1e-6)
            assert (b[i][:, ~allowed[l][i, 0]] == 0).all()


@pytest.mark.parametrize('kwargs, message',
                         [(dict(reading='literal'), "reading must be 'paper' or 'standard', got 'literal'"),
    (dict(nodes=21), 'nodes must be None .every step. or an integer from 1 to steps=20, got 21'),
    (dict(nodes=0), 'nodes must be a positive integer, got 0'),
    (dict(dtype=torch.float16), 'dtype must be None or torch.bfloat16, got torch.float16; float16 is not supported'),
    (dict(steps=0), 'steps must be a positive integer, got 0'), (dict(steps=2.), 'got 2.0'),
    (dict(batch_size=True), 'batch_size must be'),
    (dict(layers=3), 'has the layers 0 to 2'),
    (dict(part='cross'), 'part must be None for BertForSequenceClassification, got')])
def test_wrong_arguments_of_integrated_attention_are_rejected(kwargs, message):
    with pytest.raises(ValueError, match=message):
        attention_attribution(tiny('bert'), uneven_batch(), method='integrated_gradients', **kwargs)


# Integrated gradients of attention at fewer nodes

def discrete_gauss(m, n):
    """Return points and weights of the n-point Gauss rule of the sum over k/m, from its orthogonal polynomials in
    rational numbers"""
    xs = [Fraction(k, m) for k in range(1, m + 1)]
    at = lambda p, x: sum(c*x**i for i, c in enumerate(p))
    dot = lambda p, q: sum(at(p, x)*at(q, x) for x in xs)/m
    before, p = [], [Fraction(1)]
    for _ in range(n): # p = (x - a) p - b before
        a = dot([Fraction(0), *p], p)/dot(p, p)
        b = dot(p, p)/dot(before, before) if before else Fraction(0)
        new = [Fraction(0), *p]
        for i, c in enumerate(p): new[i] -= a*c
        for i, c in enumerate(before): new[i] -= b*c
        before, p = p, new
    points = np.sort(np.roots([float(c) for c in p[::-1]]).real)
    moments = [float(sum(x**i for x in xs)/m) for i in range(n)]
    return points, np.linalg.solve(np.vander(points, n, increasing=True).T, moments)


@pytest.mark.parametrize('m, n', [(20, 5), (20, 1), (20, 4), (7, 3), (2, 1), (50, 6)])
def test_the_rule_follows_from_the_orthogonal_polynomials_of_the_sum(m, n):
    points, weights = path_rule(m, n)
    expected = discrete_gauss(m, n)
    order = points.argsort()
    np.testing.assert_allclose(points[order], expected[0], rtol=1e-9)
    np.testing.assert_allclose(weights[order], expected[1], rtol=1e-7)
    assert (points > 0).all() and (points <= 1).all() and (weights > 0).all()
    for power in range(2*n):
        np.testing.assert_allclose((weights*points**power).sum(), np.mean([(k/m)**power for k in range(1, m + 1)]),
                                   rtol=1e-12)
    for same in (None, m):
        assert all(torch.allclose(a, b) for a, b in zip(path_rule(m, same),
                                                        (torch.arange(1, m + 1).double()/m,
                                                         torch.full((m,), 1/m).double())))


@pytest.mark.sample(3)
@pytest.mark.parametrize('side', ['right', 'left'])
@pytest.mark.parametrize('reading', ['paper', 'standard'])
def test_integrated_attention_at_gauss_nodes_equals_their_weighted_sum(side, reading):
    model, batch = tiny('bert'), uneven_batch(side)
    attribution, allowed = attention_attribution(model, batch, method='integrated_gradients', reading=reading, steps=12,
                                                 nodes=3, batch_size=7)
    for i, (ids, mask) in enumerate(zip(batch['input_ids'], batch['attention_mask'])):
        c = bert_by_hand(model, ids, mask, None, 1.)[0].argmax().item()
        real = (mask[:, None] & mask).bool()
        for l in range(3):
            expected = torch.zeros(4, 7, 7, dtype=torch.float64)
            for x, weight in zip(*discrete_gauss(12, 3)):
                logits, A = bert_by_hand(model, ids, mask, l, x)
                gradient = torch.autograd.grad(logits[c], A)[0]
                expected += weight * A.detach() * (gradient if reading == 'paper' else gradient / x)
            torch.testing.assert_close(attribution[l][i], expected.masked_fill(~real, 0.), rtol=1e-6, atol=1e-9)
            assert torch.equal(allowed[l][i, 0], real)


@pytest.mark.parametrize('kind', ['albert', 'distilbert', 'gpt2', 'modernbert'])
def test_a_layer_alone_gets_the_same_attribution_as_among_all(kind):
    model, batch = tiny(kind), uneven_batch()
    how = dict(method='integrated_gradients', steps=8, nodes=3)
    whole = attention_attribution(model, batch, **how)[0]
    for l in whole:
        torch.testing.assert_close(attention_attribution(model, batch, layers=l, **how)[0][l], whole[l], rtol=1e-9,
                                   atol=1e-12)


def test_each_node_needs_one_pass_and_lower_layers_are_computed_once():
    model, batch, ran = tiny('bert'), uneven_batch(), []
    for l, layer in enumerate(model.bert.encoder.layer):
        layer.attention.self.register_forward_hook(lambda m, args, output, l=l: ran.append((l, len(args[0]))))
    attention_attribution(model, batch, torch.tensor([0, 1, 2]), method='integrated_gradients', steps=20, nodes=5)
    assert [sum(rows for l, rows in ran if l == i) for i in range(3)] == [3*(1 + 5*(i + 1)) for i in range(3)]
    ran.clear()
    attention_attribution(model, batch, torch.tensor([0, 1, 2]), layers=0, method='integrated_gradients', steps=20,
                          nodes=5)
    assert ran == [(l, 15) for l in range(3)] # no layers are below the first


@pytest.mark.parametrize('kind', ['bert', 'llama']) # a Llama casts its attention back to bfloat16
@pytest.mark.parametrize('method', ['gradient', 'integrated_gradients', 'attention'])
def test_in_bfloat16_products_are_bfloat16_and_the_attribution_is_close(method, kind):
    model, batch, dtypes = tiny(kind).float(), uneven_batch(), []
    there = torch.tensor([0, 1, 2])
    exact = attention_attribution(model, batch, there, method=method)[0]
    dense = model.bert.encoder.layer[0].intermediate.dense if kind == 'bert' else model.model.layers[0].mlp.up_proj
    hook = dense.register_forward_hook(lambda m, args, output: dtypes.append(output.dtype))
    rough = attention_attribution(model, batch, there, method=method, dtype=torch.bfloat16)[0]
    hook.remove()
    assert set(dtypes) == {torch.bfloat16} and not torch.is_autocast_enabled('cpu')
    for l, x in exact.items():
        # the weights of this model are ten times those of a trained one: kernels with other rounding change the result
        # by a third
        assert rough[l].dtype == torch.float32 and 0 < (rough[l] - x).norm() < .5*x.norm()


def test_no_parameter_gets_a_gradient_in_an_attribution_pass():
    model, batch, seen = tiny('bert'), uneven_batch(), []
    model.bert.encoder.layer[2].register_forward_hook(
        lambda m, args, output: seen.append([p.requires_grad for p in m.parameters()]))
    for method in ('gradient', 'integrated_gradients', 'attention'):
        attention_attribution(model, batch, method=method, **(dict(steps=2) if method[0] == 'i' else {}))
    assert len(seen) > 3
    assert not any(any(x) for x in seen[-1:] + seen[:1])
    assert all(p.requires_grad for p in model.parameters())


# Encoder-decoders

def translator(kind):
    "Return a random translation model in float64"
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if kind == 't5':
            config = T5Config(vocab_size=60, d_model=24, d_kv=6, d_ff=32, num_layers=2, num_heads=4, dropout_rate=0.,
                              pad_token_id=PAD,
                              eos_token_id=1, decoder_start_token_id=PAD, initializer_factor=3.)
            return T5ForConditionalGeneration(config).double().eval()
        config = MarianConfig(vocab_size=60, d_model=24, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=16, dropout=0., pad_token_id=PAD,
            eos_token_id=1, forced_eos_token_id=1,
            decoder_start_token_id=PAD, init_std=.4, scale_embedding=True)
        return MarianMTModel(config).double().eval()


def pairs():
    "Return the uneven batch with targets of 4, 2 and 3 tokens that share tokens with their sources"
    batch = uneven_batch()
    target, mask = torch.full((3, 4), PAD), torch.zeros(3, 4, dtype=torch.int64)
    for i, n in enumerate((4, 2, 3)): target[i, 1:n], mask[i, :n] = batch['input_ids'][i, 1:n], 1
    return dict(batch, decoder_input_ids=target, decoder_attention_mask=mask)


def first_token(outputs, rows): return outputs.logits[:, 1].log_softmax(-1)[:, 9]


@pytest.mark.sample(11)
@pytest.mark.parametrize('kind', ['marian', 't5'])
@pytest.mark.parametrize('one_module', [False, True])
@pytest.mark.parametrize('method', METHODS)
def test_the_saliency_of_a_translation_is_that_of_its_source_tokens(kind, one_module, method):
    model, batch = translator(kind), pairs()
    # as after resizing: encoder and decoder use the same embedding module
    if one_module: model.set_input_embeddings(model.get_input_embeddings())
    saliency = input_saliency(model, batch, method, target=first_token, steps=4, batch_size=5)
    weight, times = model.get_input_embeddings().weight.detach(), 24**.5 if kind == 'marian' else 1.
    for i, at, ids in sentences(batch):
        x, nodes = weight[ids], [(k - .5)/4 for k in range(1, 5)] if method == 'integrated_gradients' else [1.]
        start, g = (weight[PAD] if len(nodes) > 1 else torch.zeros(24, dtype=torch.float64)), torch.zeros_like(x)
        n = batch['decoder_attention_mask'][i].sum()
        for a in nodes:
            point = (start + a*(x - start)).clone().requires_grad_()
            outputs = model(inputs_embeds=times*point[None], decoder_input_ids=batch['decoder_input_ids'][i:i+1, :n])
            outputs.logits[0, 1].log_softmax(-1)[9].backward(inputs=[point])
            g += point.grad/len(nodes)
        expected = (g.norm(dim=1) if method == 'gradient_norm' else g.abs().sum(1) if method == 'gradient_abs'
                    else (g*(x - start)).sum(1))
        torch.testing.assert_close(saliency[i, at], expected, **close(kind))
        assert (saliency[i, batch['attention_mask'][i] == 0] == 0).all()


def test_a_translation_with_integrated_gradients_is_complete():
    model, batch = translator('marian'), pairs()
    def error(steps):
        return completeness_error(model, batch, input_saliency(model, batch, target=first_token, steps=steps,
                                                               baseline=7), first_token, 7)
    coarse, fine = error(5), error(200)
    assert (fine < coarse/20).all() and fine.max() < .05


@pytest.mark.parametrize('kind', ['marian', 't5'])
def test_the_attention_of_an_encoder_is_attributed_by_all_methods(kind):
    model, batch = translator(kind), pairs()
    found = {m: attention_attribution(model, batch, first_token, method=m, steps=4)
             for m in ('gradient', 'integrated_gradients', 'attention')}
    for i, at, ids in sentences(batch):
        inputs = dict(input_ids=ids[None],
                      decoder_input_ids=batch['decoder_input_ids'][i:i+1, :batch['decoder_attention_mask'][i].sum()])
        for l in (0, 1):
            outputs, A = scaled_pass(model, inputs, l, 1.)
            expected = dict(gradient=torch.autograd.grad(outputs.logits[0, 1].log_softmax(-1)[9], A)[0][0],
                            attention=A[0].detach(),
                            integrated_gradients=reference_integrated(model, inputs,
                                                                      lambda o: o.logits[0, 1].log_softmax(-1)[9], l,
                                                                      4))
            for m, (maps, allowed) in found.items():
                assert sorted(maps) == [0, 1] and maps[l].shape == (3, 4, 7, 7)
                torch.testing.assert_close(maps[l][i][:, at][:, :, at], expected[m], **close(kind))
                assert allowed[l][i].sum() == len(ids)**2


def test_the_other_parts_of_a_translation_have_target_tokens_as_queries():
    model, batch = translator('marian'), pairs()
    cross, seen = attention_attribution(model, batch, first_token, part='cross', method='attention')
    own, causal = attention_attribution(model, batch, first_token, part='decoder')
    assert cross[0].shape == (3, 4, 4, 7) and own[0].shape == (3, 4, 4, 4)
    for i, (n, m) in enumerate(zip((4, 2, 3), LENGTHS)):
        assert torch.equal(seen[0][i, 0], (torch.arange(4) < n)[:, None] & (torch.arange(7) < m))
        assert torch.equal(causal[0][i, 0], (torch.arange(4) < n)[:, None] & torch.ones(4, 4, dtype=torch.bool).tril())
        torch.testing.assert_close(cross[0][i, :, :n].sum(-1), torch.ones(4, n, dtype=torch.float64))


# Images, series, and texts without a LayerNorm

class Colours(nn.Module):
    "A net for three channels, with a BatchNorm"
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(4*4*5, 3))
    def forward(self, pixel_values): return ImageClassifierOutput(logits=self.net(pixel_values))


def signals(kind):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        if kind == 'colours': return Colours().double().eval(), dict(pixel_values=torch.rand(3, 3, 6, 7).double())
        if kind == 'digits':
            return DigitCNN(DigitCNNConfig()).double().eval(), dict(pixel_values=torch.rand(2, 1, 28, 28).double())
        return SeriesLSTM(SeriesLSTMConfig(shape=(9, 4), hidden_size=5,
                                           num_labels=3)).double().eval(), dict(values=torch.rand(3, 9, 4).double())


@pytest.mark.sample(2)
@pytest.mark.parametrize('kind', ['colours', 'digits', 'series'])
@pytest.mark.parametrize('method', ['gradient', 'input_x_gradient', 'integrated_gradients'])
def test_the_saliency_of_pixels_and_cells_equals_the_equation_for_each_signal(kind, method):
    model, batch = signals(kind)
    (name, x), = batch.items()
    saliency = input_saliency(model, batch, method, steps=3, batch_size=2)
    for i in range(len(x)):
        c, g = model(**{name: x[i:i+1]}).logits[0].argmax(), torch.zeros_like(x[i])
        for a in (1/6, 3/6, 5/6) if method == 'integrated_gradients' else (1.,):
            point = (a*x[i]).clone().requires_grad_()
            model(**{name: point[None]}).logits[0, c].backward(inputs=[point])
            g += point.grad/(3 if method == 'integrated_gradients' else 1)
        each = g if method == 'gradient' else g*x[i]
        expected = each if kind == 'series' else sum(each[channel] for channel in range(len(each)))/len(each)
        torch.testing.assert_close(saliency[i], expected, rtol=1e-8, atol=1e-12)
    assert completeness_error(model, batch, input_saliency(model, batch, steps=200)).max() < .02


def test_attribution_of_a_signal_has_no_side_effects():
    model, batch = signals('colours')
    model.train()
    buffers = {k: v.clone() for k, v in model.state_dict().items()}
    random, modes, grads = torch.get_rng_state(), [m.training
                                                   for m in model.modules()], [p.grad for p in model.parameters()]
    input_saliency(model, batch)
    assert all(torch.equal(v, buffers[k]) for k, v in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert modes == [m.training for m in model.modules()] and grads == [p.grad for p in model.parameters()]
    assert not batch['pixel_values'].requires_grad


def test_a_function_as_target_explains_its_value_for_a_signal():
    model, batch = signals('series')
    saliency = input_saliency(model, batch, 'gradient', target=lambda o, rows: o.logits[:, 2] - o.logits[:, 0])
    x = batch['values'].clone().requires_grad_()
    logits = model(values=x).logits
    torch.testing.assert_close(saliency, torch.autograd.grad((logits[:, 2] - logits[:, 0]).sum(), x)[0])
    given = input_saliency(model, batch, 'gradient', target=torch.tensor([1, 1, 0]))
    torch.testing.assert_close(given,
                               torch.autograd.grad(sum(model(values=x).logits[i, c] for i, c in enumerate((1, 1, 0))),
                                                   x)[0])


@pytest.mark.parametrize('kwargs, message', [
    (dict(method='gradient_norm'),
     "must be one of 'gradient', 'input_x_gradient', 'integrated_gradients', "
     ".* for values such as 'captum.Lime', got 'gradient_norm'"),
    (dict(baseline=3), 'baseline is a token id, but values have no tokens'),
    (dict(target=torch.zeros(2)), r'here 3\), got torch.float32 \[2\]')])
def test_invalid_arguments_for_signals_are_rejected(kwargs, message):
    model, batch = signals('series')
    with pytest.raises(ValueError, match=message): input_saliency(model, batch, **{'method': 'gradient', **kwargs})
    with pytest.raises(ValueError, match='inputs must contain exactly one of input_ids, pixel_values, values'):
        input_saliency(model, dict(labels=torch.zeros(3)))


def test_the_gradient_sum_works_if_no_layernorm_follows_the_embeddings():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TextLSTM(TextLSTMConfig(vocab_size=60, num_labels=3, pad_token_id=PAD)).double().eval()
    batch = uneven_batch()
    saliency = input_saliency(model, batch, 'gradient')
    weight = model.get_input_embeddings().weight.detach()
    for i, at, ids in sentences(batch):
        x = weight[ids].clone().requires_grad_()
        logits = model(inputs_embeds=x[None], attention_mask=torch.ones(1, len(ids), dtype=torch.int64)).logits[0]
        logits[logits.argmax()].backward(inputs=[x])
        torch.testing.assert_close(saliency[i, at], x.grad.sum(1), rtol=1e-8, atol=1e-12)
        assert (saliency[i, batch['attention_mask'][i] == 0] == 0).all()

@pytest.mark.parametrize('kind, cancels', [('bert', False), ('gpt2', False), ('deberta-v2', True),
                                           ('modernbert', True)])
def test_embedding_times_gradient_that_cancels_gives_a_warning(kind, cancels, recwarn):
    "A model that normalises the embedding of each word alone does not depend on its length"
    sizes = dict(vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                 num_labels=3, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    own = dict(position_biased_input=False, layer_norm_eps=1e-12) if kind == 'deberta-v2' else dict(norm_eps=1e-12)
    with forked_random(0):
        model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(kind, **sizes, **own)).eval()
    ids = torch.tensor([[1, 7, 8, 9, 10, 2]])
    input_saliency(model, dict(input_ids=ids, attention_mask=torch.ones_like(ids)), method='input_x_gradient')
    said = [str(w.message) for w in recwarn if 'cancel to less than' in str(w.message)]
    assert len(said) == cancels and all(type(model).__name__ in s for s in said)
