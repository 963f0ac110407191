"Observed attention against the models' own eager attention and against loops written from the equations"
import copy, gc, io, math, pickle, sys, threading, weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import (AlbertConfig, AlbertForSequenceClassification, AttentionInterface, AttentionMaskInterface,
                          AutoModelForSequenceClassification, BartConfig, BartForCausalLM, BartForConditionalGeneration,
                          BartForSequenceClassification, BertConfig, BertForSequenceClassification, BertModel,
                          DebertaConfig,
                          DebertaForSequenceClassification, DebertaV2Config, DebertaV2ForSequenceClassification,
                          DistilBertConfig,
                          DistilBertForSequenceClassification, ElectraConfig, ElectraForSequenceClassification,
                          EncoderDecoderConfig,
                          EncoderDecoderModel, FNetConfig, FNetForSequenceClassification, FunnelConfig, FunnelModel,
                          Gemma2Config, Gemma2Model,
                          GPT2Config, GPT2ForSequenceClassification, GPT2Model, LEDConfig, LEDModel, LlamaConfig,
                          LlamaForSequenceClassification,
                          LongformerConfig, LongformerForSequenceClassification, MarianConfig, MarianMTModel,
                          ModernBertConfig,
                          ModernBertForSequenceClassification, MPNetConfig, MPNetForSequenceClassification, MPNetModel,
                          RobertaConfig,
                          RobertaForSequenceClassification, T5Config, T5EncoderModel, T5ForConditionalGeneration,
                          T5ForSequenceClassification,
                          T5ForTokenClassification)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask, sdpa_mask

from helpers import alike, all_alike, same, state
from salviz.models.attention import (_disentangled, _layer_count, attention_layers, attention_parts, attention_stack,
                                     cached_layers, check_layers, check_observable, eager_attention_of, head_count,
                                     observe, query_key)

PAD = 1
sizes = dict(vocab_size=40, hidden_size=16, num_hidden_layers=3, num_attention_heads=4, intermediate_size=24,
             max_position_embeddings=40,
             pad_token_id=PAD)
t5_sizes = dict(vocab_size=40, d_model=16, d_kv=4, d_ff=24, num_layers=3, num_decoder_layers=2, num_heads=4,
                dropout_rate=.2, pad_token_id=PAD,
                eos_token_id=3, decoder_start_token_id=2)
bart_sizes = dict(vocab_size=40, d_model=16, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4,
                  decoder_attention_heads=2,
                  encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=40, pad_token_id=PAD, bos_token_id=2,
                  eos_token_id=3,
                  decoder_start_token_id=2, forced_eos_token_id=None, dropout=.1, attention_dropout=.2)
deberta_sizes = dict(relative_attention=True, pos_att_type=['c2p', 'p2c'], max_relative_positions=12)
ends = dict(bos_token_id=2, eos_token_id=3)
dropouts = dict(hidden_dropout_prob=.1, attention_probs_dropout_prob=.2)
builders = dict(
    bert=lambda: BertForSequenceClassification(BertConfig(**sizes, **dropouts)),
    roberta=lambda: RobertaForSequenceClassification(RobertaConfig(**sizes, **dropouts)),
    distilbert=lambda: DistilBertForSequenceClassification(
    DistilBertConfig(vocab_size=40, dim=16, n_layers=3, n_heads=4, hidden_dim=24, dropout=.1,
                                                                            attention_dropout=.2,
                                                                            max_position_embeddings=40,
                                                                            pad_token_id=PAD)),
    electra=lambda: ElectraForSequenceClassification(ElectraConfig(**sizes, **dropouts, embedding_size=8)),
    albert=lambda: AlbertForSequenceClassification(AlbertConfig(**sizes, **dropouts, embedding_size=8,
                                                                classifier_dropout_prob=.1)),
    modernbert=lambda: ModernBertForSequenceClassification(ModernBertConfig(**sizes, attention_dropout=.2,
                                                           mlp_dropout=.1, local_attention=6,
                                                           global_attn_every_n_layers=2, cls_token_id=2, sep_token_id=3,
                                                           **ends)),
    gpt2=lambda: GPT2ForSequenceClassification(GPT2Config(vocab_size=40, n_embd=16, n_layer=3, n_head=4, n_positions=40,
                                                          attn_pdrop=.2,
                                                          resid_pdrop=.1, embd_pdrop=.1, pad_token_id=PAD, **ends)),
    llama=lambda: LlamaForSequenceClassification(LlamaConfig(**sizes, num_key_value_heads=2, attention_dropout=.2,
                                                             **ends)),
    deberta=lambda: DebertaForSequenceClassification(DebertaConfig(**sizes, **dropouts, **deberta_sizes)),
    deberta2=lambda: DebertaV2ForSequenceClassification(DebertaV2Config(**sizes, **dropouts, **deberta_sizes,
                                                                        position_buckets=6, share_att_key=True,
                                                                        conv_kernel_size=3, conv_act='gelu')),
    t5_encoder=lambda: T5ForTokenClassification(T5Config(**t5_sizes)))
decoders, own_forward = ('gpt2', 'llama'), ('deberta', 'deberta2') # the latter do not use the registry
any_side = *decoders, *own_forward, 't5_encoder'
cases = [(a, p) for a in builders for p in (('right', 'left', 'none') if a in any_side else ('right', 'none'))]


@pytest.fixture(autouse=True)
def finite_reference(monkeypatch):
    """Make eager attention finite in float64, where it is NaN for Llama and ModernBERT in rows that attend only to
    padding, because their mask becomes -inf when rounded to float32"""
    def mask(*args, **kwargs):
        x = eager_mask(*args, **kwargs)
        return None if x is None else x.clamp(min=torch.finfo(torch.float32).min) if x.dtype == torch.float64 else x
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS, 'eager', mask)


def built(arch, dtype=torch.float32, seed=0):
    "Return a random model in eval mode whose attention is far from uniform"
    torch.manual_seed(seed)
    model = builders[arch]()
    for name, x in model.named_parameters():
        if x.dim() > 1: nn.init.normal_(x, std=.4)
    return model.eval().to(dtype)


def coarsest(arch, dtype):
    "Return the dtype in which a model of `dtype` rounds: some compute the softmax, or a norm, always in float32"
    in_float32 = 'gpt2', 'llama', 'modernbert', 'deberta', 't5_encoder', 't5', 'gpt2_cross'
    return torch.float32 if dtype == torch.float64 and arch in in_float32 else dtype


def as_eager(model):
    model = copy.deepcopy(model)
    model.set_attn_implementation('eager')
    return model


def batch(padding='right', n=14, lengths=(14, 9, 3)):
    "Return three rows of uneven length, padded on one side"
    g = torch.Generator().manual_seed(1)
    ids, mask = torch.full((3, n), PAD), torch.zeros(3, n, dtype=torch.long)
    if padding == 'none': lengths = (n, n, n)
    for b, m in enumerate(lengths):
        at = slice(n - m, n) if padding == 'left' else slice(0, m)
        ids[b, at], mask[b, at] = torch.randint(4, 40, (m,), generator=g), 1
    return dict(input_ids=ids, attention_mask=mask)


def noise(x, seed):
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(x.dtype)


def loss_of(logits, maps, real):
    "Return a scalar that depends on every logit and on every real query's row of every map"
    loss = (logits * noise(logits, 7)).sum()
    for i, A in enumerate(maps): loss = loss + (A * noise(A, i) * real[:, None, :, None]).sum()
    return loss


def own_mask(arch, attention_mask, layer, b, i, j):
    "Return whether query i may attend to key j, from the definition of each architecture"
    ok = bool(attention_mask[b, j])
    if arch in decoders: ok = ok and j <= i
    if arch in own_forward: ok = ok and bool(attention_mask[b, i]) # its padding attends to nothing
    if arch == 'modernbert' and layer % 2 == 1: ok = ok and abs(i - j) <= 3 # local_attention=6: three to each side
    return ok


@pytest.mark.sample(9)
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16],
                         ids=['float64', 'float32', 'bfloat16'])
@pytest.mark.parametrize('arch,padding', cases)
def test_maps_logits_and_gradients_equal_eager_attention(arch, padding, dtype):
    coarse = coarsest(arch, dtype)
    model, inputs = built(arch, dtype), batch(padding)
    eager = as_eager(model)
    with observe(model) as maps: logits = model(**inputs).logits
    theirs = eager(**inputs, output_attentions=True)
    assert alike(logits, theirs.logits, dtype=coarse)
    assert len(maps) == len(theirs.attentions) == 3
    for l in maps: assert maps[l].shape == (3, 4, 14, 14) and alike(maps[l], theirs.attentions[l], dtype=coarse)
    gradients = torch.autograd.grad(logits[:, 1].sum(), [maps[l] for l in maps], retain_graph=True)
    expected = torch.autograd.grad(theirs.logits[:, 1].sum(), theirs.attentions, retain_graph=True)
    assert all_alike(gradients, expected, dtype=coarse)
    loss_of(logits, [maps[l] for l in maps], inputs['attention_mask']).backward()
    loss_of(theirs.logits, theirs.attentions, inputs['attention_mask']).backward()
    assert all_alike(*([p.grad for p in net.parameters()] for net in (model, eager)), dtype=coarse)


@pytest.mark.sample(7)
@pytest.mark.parametrize('arch', builders)
def test_with_dropout_and_the_same_seed_the_step_equals_eager_attention(arch):
    coarse = coarsest(arch, torch.float64)
    model, inputs = built(arch, torch.float64).train(), batch()
    eager = as_eager(model)
    for after in (False, True):
        torch.manual_seed(5)
        with observe(model, after_dropout=after) as maps: logits = model(**inputs).logits
        torch.manual_seed(5)
        theirs = eager(**inputs, output_attentions=True)
        assert alike(logits, theirs.logits, dtype=coarse)
        for l in maps:
            if after: assert alike(maps[l], theirs.attentions[l], dtype=coarse)
            else:
                alike(maps[l].sum(-1), torch.ones_like(maps[l].sum(-1)), dtype=coarse)
                dropped = theirs.attentions[l] == 0
                alike(torch.where(dropped, 0., maps[l] / .8), theirs.attentions[l], dtype=coarse)
                assert (dropped & (maps[l] > 0)).any()
        for net, out in ((model, logits), (eager, theirs.logits)):
            net.zero_grad()
            out.sum().backward()
        assert all_alike(*([p.grad for p in net.parameters()] for net in (model, eager)), dtype=coarse)


@pytest.mark.parametrize('arch', ['bert', 'gpt2', 'llama', 'deberta2', 't5_encoder'])
def test_under_bfloat16_autocast_maps_and_logits_equal_eager_attention(arch):
    model, inputs = built(arch), batch()
    with torch.autocast('cpu', torch.bfloat16):
        with observe(model) as maps: logits = model(**inputs).logits
        theirs = as_eager(model)(**inputs, output_attentions=True)
    assert alike(logits, theirs.logits)
    for l in maps: assert maps[l].dtype == theirs.attentions[l].dtype and alike(maps[l], theirs.attentions[l])


@pytest.mark.sample(10)
@pytest.mark.parametrize('arch', builders)
def test_a_model_with_eager_attention_can_be_observed_and_stays_eager(arch):
    model, inputs = as_eager(built(arch)), batch()
    theirs = model(**inputs, output_attentions=True)
    with observe(model) as maps: logits = model(**inputs).logits
    assert alike(logits, theirs.logits) and all(alike(maps[l], theirs.attentions[l]) for l in maps)
    with observe(model, 1) as maps: torch.testing.assert_close(model(**inputs).logits, theirs.logits)
    assert model.config._attn_implementation == 'eager'
    assert alike(model(**inputs, output_attentions=True).attentions[1], theirs.attentions[1])


@pytest.mark.sample(14)
@pytest.mark.parametrize('arch,padding', cases)
def test_padding_causality_and_sliding_windows_are_respected_and_reported(arch, padding):
    model, inputs = built(arch), batch(padding)
    with observe(model) as maps: model(**inputs)
    for l in maps:
        allowed = maps.allowed(l)
        assert allowed.dtype == torch.bool and allowed.shape == (3, 1, 14, 14)
        for b in range(3):
            for i in range(14):
                expected = [own_mask(arch, inputs['attention_mask'], l, b, i, j) for j in range(14)]
                assert allowed[b, 0, i].tolist() == expected, (l, b, i)
        assert (maps[l].masked_select(~allowed & allowed.any(-1, keepdim=True)) == 0).all()
    if arch == 'modernbert':
        assert not maps.allowed(1)[0, 0].all() and (maps.allowed(0)[0, 0] | (inputs['attention_mask'][0] == 0)).all()


@pytest.mark.parametrize('arch', [a for a in builders if a not in own_forward])
def test_unobserved_layers_use_the_fused_kernel(arch, monkeypatch):
    model, inputs, calls, fused = built(arch), batch(), [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, 'scaled_dot_product_attention', lambda *a, **k: calls.append(1) or fused(*a, **k))
    expected = model(**inputs).logits
    assert len(calls) == 3
    for layers, left in (([], 3), (0, 2), (-1, 2), ([0, 2], 1), (None, 0)):
        calls.clear()
        with observe(model, layers) as maps: logits = model(**inputs).logits
        assert len(calls) == left and len(maps) == 3 - left
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)


def reference_attention(module, hidden, real, drop, causal=False):
    "Compute (A, A V) by loops over the equation in float64, with the rule that no row loses all its keys"
    size, heads = module.attention_head_size, module.num_attention_heads
    Q, K, V = ((hidden @ w.weight.T + w.bias).detach().numpy() for w in (module.query, module.key, module.value))
    B, n, _ = Q.shape
    A, out = np.zeros((B, heads, n, n)), np.zeros((B, n, heads * size))
    for b in range(B):
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            for i in range(n):
                keys = [j for j in range(n) if real[b][j] and not (causal and j > i)]
                kept = [j for j in keys if not drop[b][h][i][j]] or keys
                scores = {j: sum(Q[b, i, part] * K[b, j, part]) / math.sqrt(size) for j in kept}
                top = max(scores.values())
                total = sum(math.exp(s - top) for s in scores.values())
                for j in kept:
                    A[b, h, i, j] = math.exp(scores[j] - top) / total
                    out[b, i, part] += A[b, h, i, j] * V[b, j, part]
    return torch.from_numpy(A), torch.from_numpy(out)


def test_dropping_equals_a_loop_and_protects_rows():
    model, inputs = built('bert', torch.float64), batch(n=7, lengths=(7, 4, 1))
    drop = torch.rand(3, 4, 7, 7, generator=torch.Generator().manual_seed(2)) < .6
    drop[0, 1, 2], drop[1, :, 3, :4] = True, True # rows that would lose every real key
    seen = {}
    module = model.bert.encoder.layer[1].attention.self
    module.register_forward_hook(lambda m, args, kwargs, out: seen.update(hidden=args[0] if args
                                                                          else kwargs['hidden_states'], out=out[0]),
                                 with_kwargs=True)
    with observe(model, 1, drop={1: drop}) as maps: model(**inputs)
    A, out = reference_attention(module, seen['hidden'], inputs['attention_mask'].tolist(), drop.tolist())
    torch.testing.assert_close(maps[1], A, atol=1e-14, rtol=1e-12)
    torch.testing.assert_close(seen['out'], out, atol=1e-13, rtol=1e-12)
    with observe(model, 1) as plain: model(**inputs)
    assert torch.equal(maps[1][0, 1, 2], plain[1][0, 1, 2]) and torch.equal(maps[1][1, :, 3], plain[1][1, :, 3])
    assert torch.equal(maps.allowed(1), plain.allowed(1)) # the keys that the model allows, not the dropped ones
    assert not torch.equal(maps[1], plain[1])


@pytest.mark.sample(4)
@pytest.mark.parametrize('arch,padding', [('llama', 'left'), ('gpt2', 'right'), ('modernbert', 'right'),
                                          ('deberta', 'left'), ('deberta2', 'right'),
                                          ('t5_encoder', 'left')])
def test_dropping_works_with_causality_windows_and_left_padding(arch, padding):
    model, inputs = built(arch, torch.float64), batch(padding)
    drop = torch.rand(3, 4, 14, 14, generator=torch.Generator().manual_seed(3)) < .7
    with observe(model) as plain: model(**inputs)
    with observe(model, drop={l: drop for l in range(3)}) as maps: logits = model(**inputs).logits
    assert torch.isfinite(logits).all()
    # layer 0 reads the same input in both passes: renormalise the remaining keys, row by row
    A, allowed = plain[0], plain.allowed(0)
    for b in range(3):
        for h in range(4):
            for i in range(14):
                keys = [j for j in range(14) if allowed[b, 0, i, j]]
                kept = [j for j in keys if not drop[b, h, i, j]] or keys
                if not keys: assert torch.equal(maps[0][b, h, i], A[b, h, i]); continue
                expected = torch.zeros(14, dtype=torch.float64)
                for j in kept: expected[j] = A[b, h, i, j] / sum(A[b, h, i, k] for k in kept)
                torch.testing.assert_close(maps[0][b, h, i], expected, atol=1e-6, rtol=1e-6)


def test_gradients_with_dropping_equal_those_with_minus_infinity():
    model, inputs = built('bert', torch.float64), batch(n=6, lengths=(6, 4, 2))
    drop = torch.rand(3, 4, 6, 6, generator=torch.Generator().manual_seed(4)) < .4
    drop[..., 0] = False # so that no row needs protection and -inf is safe
    module = model.bert.encoder.layer[2].attention.self
    with observe(model, 2, drop={2: drop}) as maps: logits = model(**inputs).logits
    ours = torch.autograd.grad(logits[:, 0].sum(), [module.query.weight, module.key.weight, module.value.weight])

    def literal(m, query, key, value, attention_mask, scaling=None, **kwargs):
        scores = query @ key.transpose(2, 3) * scaling
        if m is module: scores = scores.masked_fill(drop, -math.inf)
        scores = scores.masked_fill((inputs['attention_mask'] == 0)[:, None, None], -math.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    AttentionInterface.register('literal', literal)
    model.set_attn_implementation('literal')
    theirs = model(**inputs).logits
    torch.testing.assert_close(logits, theirs, atol=1e-13, rtol=1e-12)
    for a, b in zip(ours, torch.autograd.grad(theirs[:, 0].sum(),
                                              [module.query.weight, module.key.weight, module.value.weight])):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize('arch', ['deberta', 'deberta2', 't5_encoder'])
def test_dropping_equals_minus_infinity_before_the_eager_softmax(arch, monkeypatch):
    coarse = coarsest(arch, torch.float64)
    model, inputs = built(arch, torch.float64).base_model, batch(n=8, lengths=(8, 5, 2))
    drop, real = torch.rand(3, 4, 8, 8,
                            generator=torch.Generator().manual_seed(4)) < .5, inputs['attention_mask'].bool()
    drop[..., 0] = False # so that no real row needs protection and -inf is safe
    with observe(model, 1, drop={1: drop}) as maps: states = model(**inputs).last_hidden_state[real]
    ours = torch.autograd.grad(states.square().sum(), list(model.parameters()), allow_unused=True)
    calls, softmax = [], F.softmax

    def literal(scores, dim):
        calls.append(1)
        return softmax(scores.masked_fill(drop, -math.inf) if len(calls) == 2 else scores, dim)
    eager = as_eager(model)
    monkeypatch.setattr(F, 'softmax', literal)
    theirs = eager(**inputs, output_attentions=True)
    assert len(calls) == 3 and alike(states, theirs.last_hidden_state[real], dtype=coarse)
    assert alike(maps[1].transpose(1, 2)[real], theirs.attentions[1].transpose(1, 2)[real], dtype=coarse)
    expected = torch.autograd.grad(theirs.last_hidden_state[real].square().sum(), list(eager.parameters()),
                                   allow_unused=True)
    assert all_alike(ours, expected, dtype=coarse)


@pytest.mark.parametrize('arch', ['bert', 'llama', 'albert', 'deberta', 'deberta2', 't5_encoder'])
def test_gradients_of_the_unscaled_map_include_the_factor_of_scale(arch):
    model, inputs = built(arch, torch.float64), batch()
    for layer in (0, 2):
        alpha = torch.tensor([.3, .7, 1.], dtype=torch.float64)[:, None, None,
                                                                None].expand(3, 4, 14, 14).clone().requires_grad_()
        with observe(model, layer, scale={layer: alpha}) as maps: score = model(**inputs).logits[:, 0].sum()
        wrt_map, wrt_alpha = torch.autograd.grad(score, [maps[layer], alpha])
        torch.testing.assert_close(wrt_map * maps[layer], alpha * wrt_alpha) # f(aA): df/dA * A = a * df/da = a A f'
        with observe(model, layer) as plain: model(**inputs)
        assert torch.equal(maps[layer], plain[layer])

        # softmax or norms are rounded to float32, which is too coarse for differences
        if arch in ('llama', 't5_encoder', 'deberta'): continue
        def f(a):
            with torch.no_grad(), observe(model, layer, scale={layer: a}):
                return model(**inputs).logits[:, 0].sum().item()
        with observe(model, layer, scale={layer: .6}) as maps: score = model(**inputs).logits[:, 0].sum()
        along = (torch.autograd.grad(score, maps[layer])[0] * maps[layer]).sum().item() / .6
        assert along == pytest.approx((f(.6 + 1e-5) - f(.6 - 1e-5)) / 2e-5, rel=1e-5, abs=1e-7)


def test_scale_keeps_the_dtype_of_a_bfloat16_model_and_broadcasts_over_heads():
    model, inputs = built('bert', torch.bfloat16), batch()
    with observe(model, 0, scale={0: torch.ones(3, 1, 1, 1)}) as maps: logits = model(**inputs).logits
    with observe(model, 0): expected = model(**inputs).logits
    assert logits.dtype == maps[0].dtype == torch.bfloat16 and torch.equal(logits, expected)
    heads = torch.tensor([1., 0., 0., 0.])[:, None, None]
    with observe(model, 0, scale={0: heads}): assert not torch.equal(model(**inputs).logits, expected)


def run_alternately(jobs):
    "Run the functions in separate threads that wait for one another in every round, and return their results"
    results, errors, barrier = [None] * len(jobs), [], threading.Barrier(len(jobs))

    def work(i):
        try: results[i] = jobs[i](barrier)
        except Exception as e:
            errors.append(e)
            barrier.abort()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for t in threads: t.start()
    for t in threads: t.join()
    assert not errors, errors
    return results


@pytest.mark.sample(2)
@pytest.mark.parametrize('shared', [False, True], ids=['own configs', 'one config object'])
@pytest.mark.parametrize('implementation', ['sdpa', 'eager'])
def test_two_models_in_two_threads_do_not_disturb_each_other(shared, implementation):
    first = built('bert')
    first.set_attn_implementation(implementation)
    torch.manual_seed(9)
    second = BertForSequenceClassification(first.config if shared else copy.deepcopy(first.config)).eval()
    assert (second.config is first.config) == shared
    inputs = batch()
    drop = {0: torch.rand(3, 4, 14, 14, generator=torch.Generator().manual_seed(2)) < .5}

    def job(model, observed, rounds=5, **kwargs):
        def work(barrier=None):
            seen = []
            for _ in range(rounds):
                if barrier: barrier.wait()
                if observed is None:
                    seen.append((model(**inputs).logits,))
                else:
                    with observe(model, observed, **kwargs) as maps:
                        if barrier: barrier.wait()
                        logits = model(**inputs).logits
                        seen.append((logits, *(maps[l] for l in maps),
                                     *torch.autograd.grad(logits.sum(), maps[observed[0]])))
                    continue
                if barrier: barrier.wait()
            return seen
        return work
    for jobs in ([job(first, [0]), job(second, [1, 2])], [job(first, [2], drop=drop), job(second, None)]):
        alone = [run_alternately([j])[0] for j in jobs]
        for mine, together in zip(alone, run_alternately(jobs)):
            for a, b in zip(mine, together): assert len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))
    assert first.config._attn_implementation == second.config._attn_implementation == implementation


def test_a_model_that_shares_the_config_of_an_observed_one_is_not_affected():
    model = as_eager(built('bert'))
    twin, inputs = BertForSequenceClassification(model.config).eval(), batch()
    expected = twin(**inputs, output_attentions=True)
    with observe(model) as maps:
        model(**inputs)
        mine = maps[0]
        got = twin(**inputs, output_attentions=True)
        assert maps[0] is mine
    assert torch.equal(got.logits, expected.logits)
    assert all(torch.equal(a, b) for a, b in zip(got.attentions, expected.attentions))


def test_a_second_observation_of_a_model_is_rejected_in_every_form():
    model, inputs = built('bert'), batch()
    wrapper = nn.ModuleDict(dict(inner=model))
    with observe(model, 0) as maps:
        for again in (model, model.bert, wrapper):
            with pytest.raises(RuntimeError, match='already being observed'), observe(again, 1): pass

        def enter(barrier):
            with pytest.raises(RuntimeError, match='already being observed'), observe(model, 1): pass
        run_alternately([enter])
        model(**inputs)
        assert maps[0].shape == (3, 4, 14, 14)
    with observe(model, 1) as maps: model(**inputs)
    assert maps.layers == (1,)


def everything(model):
    "Return everything that may change: attributes and hooks of every module by identity, and the config"
    state = [(id(m), {k: id(v) for k, v in m.__dict__.items()},
              [list(v) for k, v in m.__dict__.items() if k.endswith('_hooks')])
             for m in model.modules()]
    return state, dict(model.config.__dict__), model.config.to_dict(), model.config._attn_implementation, [
        k for k in model.state_dict()]


@pytest.mark.parametrize('arch', builders)
def test_the_model_is_restored_exactly_also_after_exceptions(arch):
    model, inputs = built(arch), batch()
    before, expected = everything(model), model(**inputs).logits
    with observe(model, [0]): model(**inputs)
    assert everything(model) == before
    with pytest.raises(ZeroDivisionError), observe(model): 1 / 0
    assert everything(model) == before
    with pytest.raises(IndexError), observe(model): model(input_ids=torch.tensor([[999]]))
    assert everything(model) == before
    with pytest.raises(ValueError, match='drop'), observe(model, drop={1: torch.zeros(3, 4, 2, 2, dtype=torch.bool)}):
        model(**inputs)
    assert everything(model) == before
    assert torch.equal(model(**inputs).logits, expected)


def test_an_exception_in_a_pass_does_not_shift_the_layers_of_the_next():
    model, inputs = built('albert'), batch()
    with observe(model) as expected: model(**inputs)
    group, failing = model.albert.encoder.albert_layer_groups[0], []

    def fail_in_the_second_layer(module, args):
        failing.append(1)
        if len(failing) == 2: raise ArithmeticError('in the second layer')
    with observe(model) as maps:
        handle = group.register_forward_pre_hook(fail_in_the_second_layer)
        with pytest.raises(ArithmeticError): model(**inputs)
        handle.remove()
        model(**inputs)
    for l in maps: assert torch.equal(maps[l], expected[l])
    assert not torch.equal(maps[0], maps[1])


def test_albert_with_several_groups_and_inner_layers_counts_every_attention():
    torch.manual_seed(0)
    config = AlbertConfig(**{**sizes, 'num_hidden_layers': 4}, embedding_size=8, num_hidden_groups=2, inner_group_num=2)
    model = AlbertForSequenceClassification(config).eval()
    inputs, eager = batch(), as_eager(model)
    assert _layer_count(model) == 8
    with observe(model) as maps: model(**inputs)
    calls = []
    for m in eager.modules():
        if type(m).__name__ == 'AlbertAttention': m.register_forward_hook(lambda m, args, out: calls.append(out[1]))
    eager(**inputs)
    assert len(calls) == 8 and all(alike(maps[l], calls[l]) for l in range(8))


def test_the_encoder_inside_a_classifier_and_a_wrapper_around_it_can_be_observed():
    model, inputs = built('bert'), batch()

    class Wrapped(nn.Module):
        def __init__(self, encoder):
            super().__init__()
            self.encoder, self.head = encoder, nn.Linear(16, 2)

        def forward(self, **kw): return self.head(self.encoder(**kw).last_hidden_state[:, 0])
    with observe(model) as expected: model(**inputs)
    wrapped = Wrapped(model.bert)
    for observed, called in ((model, model.bert), (model.bert, model), (model.bert, model.bert), (wrapped, wrapped),
                             (model.bert, wrapped)):
        with observe(observed) as maps: called(**inputs)
        for l in range(3): assert torch.equal(maps[l], expected[l])
    assert _layer_count(wrapped) == 3 and head_count(wrapped) == 4 and attention_stack(wrapped) is model.bert
    with pytest.raises(ValueError, match='BertEncoder contains no transformers'), observe(model.bert.encoder): pass
    with pytest.raises(ValueError, match='several transformers models'), observe(nn.ModuleList([model, built('gpt2')])):
        pass


def test_after_two_passes_the_maps_are_those_of_the_last():
    model, inputs = built('bert'), batch()
    short = {k: v[:1, :5] for k, v in inputs.items()}
    with observe(model, [0, 2]) as maps:
        model(**inputs)
        first = maps[0]
        model(**short)
    with observe(model, [0, 2]) as alone: model(**short)
    assert first.shape == (3, 4, 14, 14) and torch.equal(maps[0], alone[0]) and torch.equal(maps[-1], alone[-1])
    assert maps.allowed(0).shape == (1, 1, 5, 5)
    first.sum().backward() # the caller keeps the graph of the first pass alive with its map


def test_maps_list_their_layers_and_report_missing_ones():
    model, inputs = built('bert'), batch()
    with observe(model, [2, 0]) as maps:
        with pytest.raises(RuntimeError, match='run the model inside'): maps[0]
        model(**inputs)
    assert maps.layers == (0, 2) and list(maps) == [0, 2] and len(maps) == 2 and 2 in maps and 1 not in maps
    assert torch.equal(maps.stacked(), torch.stack([maps[0], maps[2]], 1)) and maps.stacked().shape == (3, 2, 4, 14, 14)
    assert maps[-1] is maps[2] and maps[np.int64(0)] is maps[0]
    for missing in (1, -2, 7): pytest.raises(KeyError, maps.__getitem__, missing)
    with pytest.raises(KeyError, match='layer 1 of BertForSequenceClassification is not observed; observed: 0, 2'):
        maps.allowed(1)
    graph = weakref.ref(maps[0])
    maps.clear()
    gc.collect()
    assert graph() is None
    with pytest.raises(RuntimeError, match='or it was cleared'): maps[0]


def test_scaled_layers_are_observed_and_dropped_ones_only_on_request():
    model, inputs, drop = built('bert'), batch(), {-1: torch.zeros(3, 4, 14, 14, dtype=torch.bool)}
    with observe(model, 0, drop=drop, scale={np.int64(1): .5}) as maps: model(**inputs)
    assert maps.layers == (0, 1) and maps.stacked().shape[1] == 2
    for layers in (None, [0, 2]):
        with observe(model, layers, drop=drop, scale={1: .5}) as maps: model(**inputs)
        assert maps.layers == (0, 1, 2)


@pytest.mark.parametrize('arch', ['bert', 'llama', 'albert', 'deberta2', 't5_encoder'])
def test_maps_take_gradients_when_every_parameter_is_frozen(arch):
    model, inputs = built(arch, torch.float64), batch()
    with observe(model) as maps:
        expected = torch.autograd.grad(model(**inputs).logits[:, 0].sum(), [maps[l] for l in maps])
    model.requires_grad_(False)
    for after in (False, True):
        with observe(model, after_dropout=after) as maps: score = model(**inputs).logits[:, 0].sum()
        for a, b in zip(torch.autograd.grad(score, [maps[l] for l in maps]), expected): assert torch.equal(a, b)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize('arch', ['bert', 'deberta2'])
def test_without_gradients_maps_have_no_graph(arch):
    model, inputs = built(arch), batch()
    with observe(model) as expected: model(**inputs)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), observe(model) as maps: model(**inputs)
        assert all(not maps[l].requires_grad and alike(maps[l], expected[l]) for l in maps)


def test_an_attention_loss_trains_the_model_like_a_loop_with_eager_attention():
    model, inputs = built('llama', torch.float64).train(), batch('left')
    eager = as_eager(model)
    for net in (model, eager):
        opt = torch.optim.SGD(net.parameters(), lr=.1)
        for step in range(3):
            torch.manual_seed(step)
            if net is model:
                with observe(model, after_dropout=True) as maps: logits = net(**inputs).logits
                last = maps[-1]
            else:
                out = net(**inputs, output_attentions=True)
                logits, last = out.logits, out.attentions[-1]
            loss = F.cross_entropy(logits, torch.tensor([0, 1, 1])) + (last[:, :, -1] ** 2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    assert all_alike(model.parameters(), eager.parameters(), dtype=torch.float32)


def test_observed_attention_has_second_derivatives():
    model, inputs = built('bert', torch.float64), batch()
    with observe(model) as maps: score = model(**inputs).logits[:, 0].sum()
    first, = torch.autograd.grad(score, maps[0], create_graph=True)
    second, = torch.autograd.grad(first.square().sum(), model.bert.encoder.layer[2].attention.self.query.weight)
    assert torch.isfinite(second).all() and second.abs().sum() > 0


@pytest.mark.parametrize('build,name,reason', [
    (lambda: FunnelModel(FunnelConfig(vocab_size=40, d_model=16, n_head=4, d_head=4, d_inner=24, block_sizes=[1, 1])),
     'FunnelModel',
     'does not go through .*BERT, .*DeBERTa, .*T5'),
    (lambda: LongformerForSequenceClassification(LongformerConfig(**sizes, attention_window=4)), 'LongformerModel',
     'does not go through .*ModernBERT'),
    (lambda: MPNetModel(MPNetConfig(**sizes)), 'MPNetModel', 'does not go through .*RoBERTa'),
    (lambda: FNetForSequenceClassification(FNetConfig(**sizes)), 'FNetModel',
     'none of its layers is an attention layer'),
    (lambda: LEDModel(LEDConfig(vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1,
                                encoder_attention_heads=2, encoder_ffn_dim=16,
                                decoder_attention_heads=2, decoder_ffn_dim=16, attention_window=4)), 'LEDModel',
     'does not go through .*BART'),
    (lambda: Gemma2Model(Gemma2Config(**sizes, num_key_value_heads=2, head_dim=4)), 'Gemma2Model',
     'differs from a softmax of masked scores .because of softcap'),
], ids=['funnel', 'longformer', 'mpnet', 'fnet', 'led', 'gemma2'])
def test_unsupported_models_are_rejected_by_name_with_the_reason(build, name, reason):
    model = build().eval()
    before = everything(model)
    for refused in (check_observable, lambda m: observe(m).__enter__()):
        with pytest.raises(ValueError, match=f'(?s){name} cannot be observed: .*({reason})') as e: refused(model)
        assert '\n' not in str(e.value)
    assert everything(model) == before

def test_a_model_that_needs_newer_transformers_is_rejected_with_their_version(monkeypatch):
    monkeypatch.setattr('salviz.models.attention.transformers.__version__', '5.16.0')
    with pytest.raises(ValueError, match='T5.* cannot be observed: transformers 5.16.0 is too old for t5; update it to '
                                         '5.20 or later'):
        check_observable(pair('t5'))
    check_observable(built('modernbert'))


def test_nets_without_attention_are_rejected_by_name():
    for thing in (nn.LSTM(2, 2), nn.Linear(2, 2), 'minilm', None):
        with pytest.raises(ValueError, match=f'{type(thing).__name__} contains no transformers model'):
            check_observable(thing)


def test_checkpointing_and_data_parallel_replicas_are_rejected(monkeypatch):
    # as without a GPU, whether or not another test has registered the emulated one
    monkeypatch.setattr(sys.modules['torch.nn.parallel.data_parallel'], '_get_available_device_type', lambda: None)
    model = built('bert')
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError,
                       match='gradient checkpointing is on.*gradient_checkpointing_disable'), observe(model):
        pass
    model.gradient_checkpointing_disable()
    with observe(model): model(**batch())
    with pytest.raises(ValueError, match='DataParallel'), observe(nn.DataParallel(model)): pass


class Fixed(nn.Module):
    "A replacement of an attention block that does not use the registry"
    def forward(self, hidden_states, *args, **kwargs): return hidden_states, None


def test_layers_keep_their_numbers_if_another_one_has_no_attention():
    for arch, change, layers in (
            ('bert', lambda m: setattr(m.bert.encoder.layer[0].attention, 'self', Fixed()), (1, 2)),
            ('distilbert', lambda m: m.distilbert.transformer.layer.append(m.distilbert.transformer.layer[0]),
             (0, 1, 2, 3)),
            ('deberta2', lambda m: m.deberta.encoder.layer.__delitem__(1), (0, 1))):
        model, inputs = built(arch), batch()
        with observe(model): model(**inputs) # the cached trial of the unchanged model is not used
        change(model)
        with observe(model) as maps: model(**inputs)
        assert attention_layers(model) == check_layers(model) == maps.layers == layers
        assert len(maps) == _layer_count(model)
        assert check_layers(model, -1) == layers[-1:] and maps[-1] is maps[layers[-1]]
        eager = as_eager(model)(**inputs, output_attentions=True).attentions
        assert all(alike(maps[l], eager[-len(layers) + i]) for i, l in enumerate(layers))
    model = built('bert')
    model.bert.encoder.layer[1].attention.self = Fixed()
    with pytest.raises(ValueError, match=r'has attention in the layers 0, 2 \(or -2 to -1 from the end\), got 1'):
        check_layers(model, 1)


def test_calling_only_a_part_does_not_count_as_a_second_pass():
    model = built('bert')
    hidden = torch.randn(2, 5, 16)
    with observe(model) as maps:
        model.bert.encoder(hidden)
        with pytest.raises(RuntimeError, match='call the whole model'): model.bert.encoder(hidden)


def test_nothing_to_observe_leaves_any_model_untouched():
    model = MPNetForSequenceClassification(MPNetConfig(**sizes)).eval()
    for nothing in ([], (), {}, set()):
        with observe(model, nothing, drop={}, scale={}) as maps: model(**batch())
        assert maps.layers == () and len(maps) == 0
        with pytest.raises(KeyError, match='observed: none'): maps[0]


def test_wrong_arguments_raise_errors_of_one_sentence():
    model, no = built('bert'), torch.zeros(3, 4, 14, 14, dtype=torch.bool)
    wrong = [(dict(layers=3),
              r'layers: BertForSequenceClassification has the layers 0 to 2 \(or -3 to -1 from the end\), got 3'),
             (dict(layers=[0, -4]), 'got -4'),
             (dict(layers='all'), "layers must be None .all., an int or a list of ints, got 'all'"),
             (dict(layers=True), 'layers must be'), (dict(layers=[.5]), 'layers must be'),
             (dict(drop={5: no}), 'drop: .* got 5'),
             (dict(drop={0: no.float()}), r'drop\[0\] must be a bool tensor, got torch.float32'),
             (dict(drop=no), 'drop must be a dictionary'),
             (dict(drop={2: no, -1: no}), 'drop names a layer twice: 2, -1'), (dict(scale={9: 1.}), 'scale: .* got 9'),
             (dict(scale={0: 'x'}), r"scale\[0\] must be a number, a tensor or a function, got 'x'")]
    for kwargs, text in wrong:
        with pytest.raises(ValueError, match=text) as e, observe(model, **kwargs): pass
        assert '\n' not in str(e.value)
    for kwargs in (dict(drop={0: no[:2]}), dict(drop={0: no[..., :9]}), dict(scale={0: torch.ones(5, 1, 1, 1)}),
                   dict(scale={0: no[None].float()})):
        with pytest.raises(ValueError,
                           match=r'must be broadcastable to \[batch, heads, query, key\] = \[3, 4, 14, 14\], got'):
            with observe(model, **kwargs): model(**batch())
    assert check_layers(model, [np.int64(1), -1]) == (1, 2)
    assert check_layers(model, range(2)) == (0, 1)
    assert check_layers(model, -1) == (2,)


@pytest.mark.sample(2)
@pytest.mark.parametrize('arch,padding', [('bert', 'right'), ('llama', 'left'), ('deberta2', 'left')])
def test_copies_and_pickles_of_an_observed_model_are_ordinary_models(arch, padding, tmp_path):
    model, inputs = built(arch), batch(padding)
    expected, keys = model(**inputs).logits, list(model.state_dict())
    with observe(model) as maps:
        model(**inputs)
        held = maps[0]
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        copies.append(torch.load(saved, weights_only=False))
        for part, where in ((model, 'whole'), (model.base_model, 'part')):
            part.save_pretrained(tmp_path / where)
            assert 'salviz' not in (tmp_path / where / 'config.json').read_text()
        assert list(model.state_dict()) == keys
        inner = copy.copy(model.base_model.config)
        copies.append(AutoModelForSequenceClassification.from_pretrained(tmp_path / 'whole'))
        for net in copies: assert torch.equal(net.eval()(**inputs).logits, expected)
        assert maps[0] is held # none of them passed through the observation
    assert type(inner) is type(model.config) and inner is not model.config
    copies += [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for net in copies:
        assert net.config is net.base_model.config and type(net.config) is type(model.config)
        assert net.config._attn_implementation == ('eager' if arch in own_forward else 'sdpa')
        with observe(net) as again: net(**inputs)
        assert all(torch.equal(again[l], maps[l]) for l in maps)


def test_changes_of_the_config_while_observed_persist():
    model = built('bert')
    with observe(model):
        model.bert.config.note = 'kept'
        assert model.config.note == 'kept'
        assert isinstance(model.bert.config, BertConfig)
        assert model.bert.config.hidden_size == 16
        model.bert.config._attn_implementation = 'eager'
        assert model.bert.config._attn_implementation == 'salviz'
    assert model.config.note == 'kept' and model.config._attn_implementation == 'eager'


def test_an_observation_is_freed_when_its_maps_are():
    model = built('bert')
    with observe(model) as maps: logits = model(**batch()).logits
    gone = weakref.ref(maps)
    del maps, logits
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize('arch', ['bert', 'deberta2', 't5_encoder'])
def test_attentions_returned_by_the_model_equal_the_maps(arch):
    model, inputs = built(arch), batch()
    with observe(model) as maps: out = model(**inputs, output_attentions=True)
    assert len(out.attentions) == 3 and all(torch.equal(out.attentions[l], maps[l]) for l in maps)


def test_a_bool_mask_for_every_query_is_used_and_a_float_one_rejected():
    model = built('bert')
    ids, ok = batch('none')['input_ids'], torch.rand(3, 1, 14, 14, generator=torch.Generator().manual_seed(0)) < .7
    ok = ok | torch.eye(14, dtype=torch.bool)
    with observe(model) as maps: logits = model(input_ids=ids, attention_mask=ok).logits
    assert torch.equal(maps.allowed(1), ok) and (maps[1].masked_select(~ok) == 0).all()
    torch.testing.assert_close(logits, model(input_ids=ids, attention_mask=ok).logits, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match='must be bool'), observe(model):
        model(input_ids=ids, attention_mask=torch.zeros(3, 1, 14, 14))


def test_a_decoder_with_a_cache_is_observed_one_token_at_a_time():
    model, inputs = built('llama', torch.float64).model, batch('left')
    eager, mask = as_eager(model), inputs['attention_mask']
    start = {k: v[:, :10] for k, v in inputs.items()}
    with observe(model) as maps:
        cache = model(**start, use_cache=True).past_key_values
        assert maps[0].shape == (3, 4, 10, 10)
        out = model(input_ids=inputs['input_ids'][:, 10:11], attention_mask=mask[:, :11], past_key_values=cache)
    theirs = eager(**start, use_cache=True).past_key_values
    theirs = eager(input_ids=inputs['input_ids'][:, 10:11], attention_mask=mask[:, :11], past_key_values=theirs,
                   output_attentions=True)
    assert alike(out.last_hidden_state, theirs.last_hidden_state, dtype=torch.float32)
    for l in maps: assert maps[l].shape == (3, 4, 1, 11) and alike(maps[l], theirs.attentions[l], dtype=torch.float32)
    assert torch.equal(maps.allowed(0)[:, 0, 0], mask[:, :11].bool())


def test_grouped_query_heads_give_one_map_for_each_query_head():
    model = built('llama')
    assert model.config.num_key_value_heads == 2 and head_count(model) == 4
    with observe(model, 0) as maps: model(**batch())
    assert maps[0].shape[1] == 4 and not torch.equal(maps[0][:, 0], maps[0][:, 1])


def test_long_inputs_of_modernbert_attend_only_within_their_window():
    model = built('modernbert', torch.float64)
    inputs = batch(n=30, lengths=(30, 21, 12))
    with observe(model) as maps: logits = model(**inputs).logits
    theirs = as_eager(model)(**inputs, output_attentions=True)
    assert alike(logits, theirs.logits, dtype=torch.float32)
    for l in maps: assert alike(maps[l], theirs.attentions[l], dtype=torch.float32)
    far = (torch.arange(30)[:, None] - torch.arange(30)).abs() > 3
    full = maps.allowed(1)[0, 0]
    assert (maps[1][0, :, far] == 0).all()
    assert (maps[0][0, :, far] > 0).any()
    assert not full[far].any()
    assert full[~far].all()


seq2seq = dict(
    marian=lambda: MarianMTModel(MarianConfig(**bart_sizes)),
    bart=lambda: BartForConditionalGeneration(BartConfig(**bart_sizes)),
    t5=lambda: T5ForConditionalGeneration(T5Config(**t5_sizes)))
builders_of_pairs = dict(
    gpt2_cross=lambda: GPT2Model(GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=4, n_positions=40,
                                            attn_pdrop=.2, add_cross_attention=True)),
    bert_cross=lambda: BertModel(BertConfig(**{**sizes, 'num_hidden_layers': 2}, **dropouts, is_decoder=True,
                                            add_cross_attention=True)))
parts = 'encoder', 'decoder', 'cross'
kinds = dict(encoder='encoder_attentions', decoder='decoder_attentions', cross='cross_attentions')


def pair(arch, dtype=torch.float32, seed=0):
    "Return a random model with cross-attention in eval mode, whose attention is far from uniform"
    torch.manual_seed(seed)
    model = {**seq2seq, **builders_of_pairs}[arch]()
    for name, x in model.named_parameters():
        if x.dim() > 1: nn.init.normal_(x, std=.4)
    return model.eval().to(dtype)


def pair_batch(padding='right', n=9, lengths=(9, 4, 6), arch='marian', dtype=torch.float32):
    "Return three sources of up to 14 and targets of up to 9 tokens, all padded on one side"
    source, target = batch(padding), batch(padding, n, lengths)
    if arch not in builders_of_pairs:
        return dict(source, decoder_input_ids=target['input_ids'], decoder_attention_mask=target['attention_mask'])
    states = torch.randn(3, 14, 16, generator=torch.Generator().manual_seed(3)).to(dtype)
    return dict(target, encoder_hidden_states=states, encoder_attention_mask=source['attention_mask'])


def kind_of(path):
    "Return the type of attention that the module at `path` computes, from the model files"
    if any(name in path for name in ('encoder_attn', 'EncDecAttention', 'crossattention')): return 'cross'
    return 'encoder' if path.startswith(('model.encoder.', 'encoder.block')) else 'decoder'


class OnlyPartEager:
    """A copy of `model` in which `part` runs the eager attention of the model file, and everything else the fused
    kernel; `seen` collects the maps"""
    def __init__(self, model, part):
        self.model, self.part, self.seen = copy.deepcopy(model), part, []
        self.kinds = {m: kind_of(name) for name, m in self.model.named_modules()}
        AttentionInterface.register('only_part_eager', self.attend)
        AttentionMaskInterface.register('only_part_eager', sdpa_mask)
        self.model.set_attn_implementation('only_part_eager')

    def attend(self, module, query, key, value, mask, **kwargs):
        if self.kinds[module] != self.part: return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
        n, k = query.shape[2], key.shape[2]
        if mask is None and self.part == 'decoder' and n > 1:
            mask = torch.ones(n, k, dtype=torch.bool).tril()[None, None]
        dtype = next(self.model.parameters()).dtype # not the dtype of the query, which differs under autocast
        least = torch.finfo(torch.float32 if dtype == torch.float64 else dtype).min
        added = None if mask is None else torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, least)
        out, A = sys.modules[type(module).__module__].eager_attention_forward(
            module, query, key, value, added, **kwargs)
        self.seen.append(A)
        return out, A

    def __call__(self, **kwargs):
        self.seen.clear()
        return self.model(**kwargs)


def states_of(out): return out.logits if hasattr(out, 'logits') else out.last_hidden_state


@pytest.mark.sample(7)
@pytest.mark.parametrize('dtype,padding', [(torch.float64, 'right'), (torch.float64, 'left'), (torch.float64, 'none'),
                                           (torch.float32, 'right'),
                                           (torch.bfloat16, 'left')], ids=str)
@pytest.mark.parametrize('arch,part', [(a, p) for a in seq2seq for p in parts]
                         + [(a, p) for a in builders_of_pairs for p in parts[1:]])
def test_each_part_of_an_encoder_decoder_equals_eager_attention(arch, part, dtype, padding):
    coarse = coarsest(arch, dtype)
    model, inputs = pair(arch, dtype), pair_batch(padding, arch=arch, dtype=dtype)
    reference = OnlyPartEager(model, part)
    with observe(model, part=part) as maps: out = states_of(model(**inputs, use_cache=False))
    theirs = states_of(reference(**inputs, use_cache=False))
    n = 3 if part == 'encoder' else 2
    assert len(maps) == len(reference.seen) == _layer_count(model, part) == n and alike(out, theirs, dtype=coarse)
    shape = 3, head_count(model, part), *dict(encoder=(14, 14), decoder=(9, 9), cross=(9, 14))[part]
    for l in maps: assert maps[l].shape == shape and alike(maps[l], reference.seen[l], dtype=coarse)
    target = inputs['attention_mask' if arch in builders_of_pairs else 'decoder_attention_mask']
    # a row without keys passes no gradient here, but a meaningless one in eager attention
    score = lambda x: (x * noise(x, 7) * target[..., None]).sum()
    gradients = torch.autograd.grad(score(out), [maps[l] for l in maps], retain_graph=True)
    expected = torch.autograd.grad(score(theirs), reference.seen, retain_graph=True)
    assert all_alike(gradients, expected, dtype=coarse)
    queries = inputs['attention_mask'] if part == 'encoder' else target
    loss_of(out * target[..., None], [maps[l] for l in maps], queries).backward()
    loss_of(theirs * target[..., None], reference.seen, queries).backward()
    assert all_alike(*([p.grad for p in net.parameters()] for net in (model, reference.model)), dtype=coarse)


@pytest.mark.parametrize('arch', seq2seq)
def test_the_three_parts_equal_the_outputs_of_the_eager_model(arch):
    model, inputs = pair(arch), pair_batch()
    theirs = as_eager(model)(**inputs, output_attentions=True)
    for part in parts:
        with observe(model, part=part) as maps: logits = model(**inputs).logits
        torch.testing.assert_close(maps.stacked(), torch.stack(theirs[kinds[part]], 1), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(logits, theirs.logits, atol=1e-4, rtol=1e-4)
    with observe(model) as maps: model(**inputs)
    for l in range(3): assert alike(maps[l], theirs.encoder_attentions[l])


@pytest.mark.sample(5)
@pytest.mark.parametrize('part', parts)
@pytest.mark.parametrize('arch', seq2seq)
def test_dropout_in_an_encoder_decoder_equals_eager_attention(arch, part):
    model, inputs = pair(arch).train(), pair_batch()
    reference = OnlyPartEager(model, part)
    for after in (False, True):
        torch.manual_seed(5)
        with observe(model, after_dropout=after, part=part) as maps: logits = model(**inputs).logits
        torch.manual_seed(5)
        theirs = reference(**inputs).logits
        assert alike(logits, theirs)
        for l in maps:
            if after: assert alike(maps[l], reference.seen[l])
            else:
                dropped = reference.seen[l] == 0
                alike(torch.where(dropped, 0., maps[l] / .8), reference.seen[l])
                assert (dropped & (maps[l] > 0)).any()
        for net, out in ((model, logits), (reference.model, theirs)):
            net.zero_grad()
            out.sum().backward()
        assert all_alike(*([p.grad for p in net.parameters()] for net in (model, reference.model)))


@pytest.mark.sample(5)
@pytest.mark.parametrize('part', parts)
@pytest.mark.parametrize('arch', ['bart', 't5'])
def test_encoder_decoders_under_bfloat16_autocast_equal_eager_attention(arch, part):
    model, inputs = pair(arch), pair_batch()
    reference = OnlyPartEager(model, part)
    with torch.autocast('cpu', torch.bfloat16):
        with observe(model, part=part) as maps: logits = model(**inputs).logits
        assert alike(logits, reference(**inputs).logits)
    for l in maps: assert maps[l].dtype == reference.seen[l].dtype and alike(maps[l], reference.seen[l])


@pytest.mark.sample(8)
@pytest.mark.parametrize('padding', ['right', 'left', 'none'])
@pytest.mark.parametrize('arch', [*seq2seq, *builders_of_pairs])
def test_each_part_reports_its_padding_and_causality(arch, padding):
    model, inputs = pair(arch), pair_batch(padding, arch=arch)
    target, source = (inputs[k] for k in (('attention_mask', 'encoder_attention_mask') if arch in builders_of_pairs else
                                          ('decoder_attention_mask', 'attention_mask')))
    for part in parts[1:] if arch in builders_of_pairs else parts:
        with observe(model, part=part) as maps: model(**inputs)
        keys = target if part == 'decoder' else source
        for l in maps:
            allowed = maps.allowed(l)
            assert allowed.shape == (3, 1, *maps[l].shape[2:])
            for b in range(3):
                for i in range(allowed.shape[2]):
                    expected = [bool(keys[b, j]) and (part != 'decoder' or j <= i) for j in range(keys.shape[1])]
                    assert allowed[b, 0, i].tolist() == expected, (part, b, i)
            assert (maps[l].masked_select(~allowed & allowed.any(-1, keepdim=True)) == 0).all()


@pytest.mark.sample(4)
@pytest.mark.parametrize('part', parts)
@pytest.mark.parametrize('arch', ['marian', 't5'])
def test_dropping_in_a_part_renormalises_its_rows_and_protects_them(arch, part):
    model, inputs = pair(arch, torch.float64), pair_batch('left')
    with observe(model, 0, part=part) as plain: model(**inputs)
    A, allowed = plain[0], plain.allowed(0).expand_as(plain[0])
    drop = torch.rand(A.shape, generator=torch.Generator().manual_seed(3)) < .7
    drop[0, 1, 2] = True
    with observe(model, 0, drop={0: drop}, scale={-1: .5}, part=part) as maps: logits = model(**inputs).logits
    assert torch.isfinite(logits).all() and maps.layers == (0, _layer_count(model, part) - 1)
    for row in np.ndindex(*A.shape[:3]):
        keys = [j for j in range(A.shape[3]) if allowed[row][j]]
        kept = [j for j in keys if not drop[row][j]] or keys
        expected = torch.zeros(A.shape[3], dtype=torch.float64)
        for j in kept: expected[j] = A[row][j] / sum(A[row][k] for k in kept)
        torch.testing.assert_close(maps[0][row], expected if keys else A[row], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('part', parts)
def test_scaling_a_part_multiplies_between_map_and_output(part):
    model, inputs = pair('marian', torch.float64), pair_batch()

    def f(alpha):
        with observe(model, 1, scale={1: alpha}, part=part) as maps: return model(**inputs).logits[:, 3].sum(), maps[1]
    alpha = torch.tensor([.3, .7, 1.], dtype=torch.float64)[:, None, None, None].requires_grad_()
    score, A = f(alpha)
    wrt_map, wrt_alpha = torch.autograd.grad(score, [A, alpha])
    torch.testing.assert_close((wrt_map * A).sum((1, 2, 3)), (alpha * wrt_alpha).flatten())
    step = torch.zeros_like(alpha)
    step[1] = 1e-5
    with torch.no_grad(): numeric = (f(alpha + step)[0] - f(alpha - step)[0]) / 2e-5
    assert wrt_alpha[1].item() == pytest.approx(numeric.item(), rel=1e-6, abs=1e-8)
    assert torch.equal(A, f(1.)[1])


@pytest.mark.parametrize('arch', seq2seq)
def test_unobserved_layers_and_parts_use_the_fused_kernel(arch, monkeypatch):
    model, inputs, calls, fused = pair(arch), pair_batch(), [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, 'scaled_dot_product_attention', lambda *a, **k: calls.append(1) or fused(*a, **k))
    expected = model(**inputs).logits
    assert len(calls) == 3 + 2 + 2
    for part, layers, left in (('encoder', None, 4), ('encoder', 1, 6), ('decoder', None, 5), ('decoder', -1, 6),
                               ('cross', None, 5), ('cross', 0, 6),
                               ('cross', [], 7)):
        calls.clear()
        with observe(model, layers, part=part) as maps: logits = model(**inputs).logits
        assert len(calls) == left and len(maps) == 7 - left
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('arch', seq2seq)
def test_the_encoder_is_the_default_part_and_works_alone(arch):
    model, inputs = pair(arch), pair_batch()
    source = {k: inputs[k] for k in ('input_ids', 'attention_mask')}
    encoder = model.get_encoder()
    with observe(model) as expected: model(**inputs)
    assert (_layer_count(model), head_count(model), check_observable(model)) == (3, 4, encoder)
    assert check_layers(model, -1) == (2,)
    with observe(model) as maps: encoder(**source)
    assert all(alike(maps[l], expected[l]) for l in range(3))
    assert attention_parts(encoder) == {None: encoder} and (_layer_count(encoder), head_count(encoder)) == (3, 4)
    for run, kwargs in ((encoder, source), (model, inputs)):
        with observe(encoder, drop={1: torch.zeros(3, 4, 14, 14, dtype=torch.bool)}) as maps: run(**kwargs)
        assert all(alike(maps[l], expected[l]) for l in range(3))
    with pytest.raises(ValueError, match="part must be None for .*, got 'encoder'"):
        _layer_count(encoder, 'encoder')


def test_the_decoder_of_t5_alone_has_two_parts_and_defaults_to_self_attention():
    torch.manual_seed(0)
    model, inputs = BartForCausalLM(BartConfig(**bart_sizes)).eval(), batch('left')
    theirs = as_eager(model)(**inputs, output_attentions=True)
    with observe(model) as maps: logits = model(**inputs).logits
    assert _layer_count(model) == 2 and head_count(model) == 2 and alike(logits, theirs.logits)
    for l in maps: assert alike(maps[l], theirs.attentions[l])
    with observe(model) as maps: # in several passes, although the model bypasses its wrapper
        for _ in range(3): model(**inputs)
    with observe(model, part='cross') as maps:
        with pytest.raises(RuntimeError, match=r'BartForCausalLM \(cross\): 2 layers have attention, but'):
            model(**inputs)
    whole = pair('t5')
    decoder, inputs = whole.get_decoder(), pair_batch()
    with observe(whole, part='cross') as expected: whole(**inputs)
    with observe(decoder, part='cross') as maps: whole(**inputs)
    assert all(torch.equal(maps[l], expected[l]) for l in range(2)) and _layer_count(decoder) == 2


def test_a_model_of_two_joined_models_has_three_observable_parts():
    torch.manual_seed(0)
    sides = [BertConfig(**{**sizes, 'num_hidden_layers': n}, is_decoder=n == 2, add_cross_attention=n == 2)
             for n in (3, 2)]
    model = EncoderDecoderModel(EncoderDecoderConfig.from_encoder_decoder_configs(*sides)).eval()
    inputs, eager = pair_batch(), as_eager(model)
    theirs = eager(**inputs, output_attentions=True)
    for part in parts:
        with observe(model, part=part) as maps: model(**inputs)
        assert _layer_count(model, part) == len(theirs[kinds[part]]) == len(maps)
        for l in maps: torch.testing.assert_close(maps[l], theirs[kinds[part]][l], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize('build', [lambda: BartForSequenceClassification(BartConfig(**bart_sizes)),
                                   lambda: T5ForSequenceClassification(T5Config(**t5_sizes))], ids=['bart', 't5'])
def test_encoder_decoder_classifiers_have_encoder_maps_with_gradients(build):
    torch.manual_seed(0)
    model, inputs = build().eval(), batch('none')
    inputs['input_ids'][:, -1] = 3
    with observe(model) as maps: logits = model(**inputs).logits
    theirs = as_eager(model)(**inputs, output_attentions=True)
    grads = torch.autograd.grad(logits[:, 1].sum(), [maps[l] for l in maps])
    for l in maps: assert alike(maps[l], theirs.encoder_attentions[l])
    for a, b in zip(grads, torch.autograd.grad(theirs.logits[:, 1].sum(), theirs.encoder_attentions)):
        assert a.abs().sum() > 0
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-3)


@pytest.mark.sample(2)
@pytest.mark.parametrize('beams', [1, 2])
@pytest.mark.parametrize('arch', seq2seq)
def test_generate_leaves_the_maps_of_the_last_pass_of_each_part(arch, beams):
    model, source = pair(arch), batch()
    how = dict(max_new_tokens=5, min_new_tokens=5, num_beams=beams, do_sample=False)
    theirs = as_eager(model).generate(**source, **how, output_attentions=True, return_dict_in_generate=True)
    for part in parts:
        with observe(model, part=part) as maps: tokens = model.generate(**source, **how)
        assert torch.equal(tokens, theirs.sequences)
        last = theirs[kinds[part]] if part == 'encoder' else theirs[kinds[part]][-1]
        for l in maps:
            assert maps[l].shape == last[l].shape == (3 if part == 'encoder' else 3 * beams, head_count(model, part),
                                                      *last[l].shape[2:])
            torch.testing.assert_close(maps[l], last[l], atol=1e-5, rtol=1e-4)
            assert part == 'decoder' or maps.allowed(l)[0, 0, 0].tolist() == [True] * 14 # no padding in source 0
        assert not maps[0].requires_grad


def test_generate_with_dropped_positions_works_only_in_the_encoder():
    model, source = pair('marian'), batch()
    how = dict(max_new_tokens=5, min_new_tokens=5, do_sample=False)
    drop = torch.zeros(3, 4, 14, 14, dtype=torch.bool)
    drop[..., 1] = True
    with observe(model, 0, drop={0: drop}) as maps: model.generate(**source, **how)
    assert (maps[0][..., 1] == 0).all()
    for part in parts[1:]:
        with pytest.raises(ValueError,
                           match=r'drop\[0\] must be broadcastable to .* = \[3, 2, 1, \d+\], got \[3, 4, 14, 14\]'):
            with observe(model, drop={0: drop}, part=part): model.generate(**source, **how)
    # the source does not grow
    with observe(model, drop={0: drop[:, :1, :1]}, part='cross') as maps: model.generate(**source, **how)
    assert (maps[0][..., 1] == 0).all()


def test_both_sides_of_t5_may_be_observed_at_once_but_not_the_two_parts_of_its_decoder():
    model, inputs = pair('bart'), pair_batch()
    before = everything(model)
    alone = {}
    for part in parts:
        with observe(model, part=part) as alone[part]: model(**inputs)
    for inner in parts[1:]:
        with observe(model) as read, observe(model, part=inner) as written: model(**inputs)
        assert all(torch.equal(read[l], alone['encoder'][l]) for l in read)
        # after a different encoder kernel
        for l in written: torch.testing.assert_close(written[l], alone[inner][l], atol=1e-5, rtol=1e-4)
    for first, second in (('decoder', 'cross'), ('cross', 'decoder'), ('cross', 'cross')):
        with observe(model, part=first) as maps:
            refused = pytest.raises(RuntimeError,
                                    match=rf'BartForConditionalGeneration \({second}\) is already being observed')
            with refused, observe(model, part=second): pass
            model(**inputs)
        assert all(torch.equal(maps[l], alone[first][l]) for l in maps)
    alone_in_a_wrapper = T5EncoderModel(T5Config(**t5_sizes))
    for a, b in ((alone_in_a_wrapper, alone_in_a_wrapper.encoder), (alone_in_a_wrapper.encoder, alone_in_a_wrapper)):
        with observe(a):
            with pytest.raises(RuntimeError, match='already being observed'), observe(b): pass
    assert everything(model) == before


@pytest.mark.sample(5)
@pytest.mark.parametrize('part', parts)
@pytest.mark.parametrize('arch', seq2seq)
def test_an_encoder_decoder_is_restored_also_after_exceptions(arch, part):
    model, inputs = pair(arch), pair_batch()
    before, expected = everything(model), model(**inputs).logits
    with observe(model, [0], part=part): model(**inputs)
    assert everything(model) == before
    with pytest.raises(ZeroDivisionError), observe(model, part=part): 1 / 0
    bad = dict(inputs, **{'input_ids' if part == 'encoder' else 'decoder_input_ids': torch.full((3, 9), 999)})
    with pytest.raises(IndexError), observe(model, part=part): model(**bad)
    with pytest.raises(ValueError, match='drop'), observe(model, drop={1: torch.zeros(3, 4, 2, 2, dtype=torch.bool)},
                                                          part=part):
        model(**inputs)
    assert everything(model) == before and torch.equal(model(**inputs).logits, expected)


def test_copies_of_an_observed_encoder_decoder_are_ordinary_models(tmp_path):
    model, inputs = pair('bart'), pair_batch()
    expected = model(**inputs).logits
    with observe(model) as maps, observe(model, part='cross') as cross:
        model(**inputs)
        held = maps[0], cross[0]
        model.save_pretrained(tmp_path)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)),
                  BartForConditionalGeneration.from_pretrained(tmp_path)]
        for net in copies: assert torch.equal(net.eval()(**inputs).logits, expected)
        assert maps[0] is held[0] and cross[0] is held[1] and 'salviz' not in (tmp_path / 'config.json').read_text()
    with observe(model, part='cross') as alone: model(**inputs)
    for net in copies:
        with observe(net, part='cross') as again: net(**inputs)
        assert all(torch.equal(again[l], alone[l]) for l in alone)


@pytest.mark.parametrize('build', [lambda: pair('t5'), lambda: built('deberta2')], ids=['t5', 'deberta2'])
def test_models_that_share_a_config_do_not_affect_each_other(build):
    model = build()
    twin = type(model)(model.config).eval()
    inputs = pair_batch() if model.config.is_encoder_decoder else batch('left')
    expected = twin(**inputs).logits
    with observe(model) as maps:
        logits, held = model(**inputs).logits, maps[0]
        assert torch.equal(twin(**inputs).logits, expected) and maps[0] is held
        with observe(twin, 1) as others:
            twin(**inputs)
            assert torch.equal(model(**inputs).logits, logits)
    assert torch.equal(maps[0], held) and list(others) == [1] and not torch.equal(others[1], maps[1])


@pytest.mark.slow
@pytest.mark.parametrize('build,inputs', [(lambda: pair('marian'), pair_batch), (lambda: built('deberta2'), batch)],
                         ids=['marian', 'deberta2'])
def test_checkpointing_is_rejected_and_compiled_models_are_observed(build, inputs):
    model = build()
    part = 'cross' if model.config.is_encoder_decoder else None
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match='gradient checkpointing is on'), observe(model, part=part): pass
    model.gradient_checkpointing_disable()
    with observe(model, part=part) as expected: model(**inputs())
    torch._dynamo.reset()
    check_observable(model, part).compile(backend='eager')
    model(**inputs())
    with observe(model, part=part) as maps: model(**inputs())
    assert torch.equal(maps.stacked(), expected.stacked())


def test_skipped_layers_raise_an_error_instead_of_shifting_the_others():
    torch.manual_seed(0)
    model = BartForConditionalGeneration(BartConfig(**bart_sizes, encoder_layerdrop=1.))
    with observe(model): model.eval()(**pair_batch())
    with pytest.raises(RuntimeError, match='3 layers have attention, but one pass made 0.*layerdrop to 0'), \
            observe(model):
        model.train()(**pair_batch())


def test_parts_that_t5_or_bert_or_gpt2_lack_raise_an_error():
    model, plain = pair('t5'), built('bert')
    for wrong in ('self', 0, ['encoder'], True):
        for refuse in (lambda: observe(model, part=wrong).__enter__(), lambda: _layer_count(model, wrong),
                       lambda: check_layers(model, 0, part=wrong)):
            with pytest.raises(ValueError, match="part must be one of 'encoder', 'decoder', 'cross' for T5For.*, got"):
                refuse()
    for part in parts:
        with pytest.raises(ValueError,
                           match='part must be None for BertForSequenceClassification, got'), observe(plain, part=part):
            pass
    with pytest.raises(ValueError, match="part must be one of 'decoder', 'cross' for GPT2Model, got 'encoder'"):
        check_observable(pair('gpt2_cross'), 'encoder')
    with pytest.raises(ValueError,
                       match=r'layers: T5ForConditionalGeneration \(cross\) has the layers 0 to 1'), observe(
        model, 2, part='cross'):
        pass
    with observe(model, part='cross') as maps: model(**pair_batch())
    with pytest.raises(KeyError,
                       match=r'layer 2 of T5ForConditionalGeneration \(cross\) is not observed; observed: 0, 1'):
        maps[2]


# Cached layers

def twice(inputs): return {k: v.repeat(2, *[1] * (v.dim() - 1)) for k, v in inputs.items()}


def looked_at(model, inputs, layer, part=None):
    "Return states, map and gradient of a pass with `layer` scaled, which starts where the surrounding block selects"
    for p in model.parameters(): p.requires_grad_(False)
    factor = torch.linspace(.2, .9, 6)[:, None, None, None]
    with observe(model, layer, scale={layer: factor}, part=part) as maps:
        out = states_of(model(**twice(inputs), use_cache=False) if part else model(**twice(inputs)))
    return out.detach(), maps[layer].detach(), torch.autograd.grad((out * noise(out, 7)).sum(), maps[layer])[0]


def same_pass(ours, theirs):
    "Check with the tolerance for large weights: rounding errors below a layer grow tenfold or more in a gradient"
    for a, b in zip(ours, theirs, strict=True): alike(a, b, size=1024)


@pytest.mark.sample(9)
@pytest.mark.parametrize('layer', [0, 1, 2])
@pytest.mark.parametrize('arch,padding', cases)
def test_a_pass_that_starts_at_a_layer_equals_the_whole_pass(arch, padding, layer):
    model, inputs = built(arch), batch(padding)
    whole = looked_at(model, inputs, layer)
    with cached_layers(model, inputs) as start:
        for l in (2, layer): start(l) # also back to a lower one
        same_pass(looked_at(model, inputs, layer), whole)
    same_pass(looked_at(model, inputs, layer), whole)


@pytest.mark.sample(5)
@pytest.mark.parametrize('arch,part', [(a, p) for a in seq2seq for p in parts]
                         + [(a, p) for a in builders_of_pairs for p in parts[1:]])
def test_a_pass_that_starts_at_a_layer_of_an_encoder_decoder_equals_the_whole_pass(arch, part):
    model, inputs = pair(arch), pair_batch('right', arch=arch)
    for layer in range(_layer_count(model, part)):
        whole = looked_at(model, inputs, layer, part)
        with cached_layers(model, inputs, part) as start:
            start(layer)
            same_pass(looked_at(model, inputs, layer, part), whole)


@pytest.mark.parametrize('arch', builders)
def test_layers_below_do_not_run_again(arch):
    model, inputs, ran = built(arch), batch('right'), []
    parts_of_layers = {m for m in model.modules() if eager_attention_of(type(m))}
    parts_of_layers |= set(_disentangled(attention_stack(model)))
    with cached_layers(model, inputs) as start:
        hooks = [m.register_forward_pre_hook(lambda m, args: ran.append(m)) for m in parts_of_layers]
        for layer, runs in ((2, 1), (1, 2), (0, 3)):
            ran.clear(); start(layer)
            with torch.no_grad(), observe(model, layer): model(**inputs)
            assert len(ran) == runs
        for h in hooks: h.remove()


def test_the_encoder_does_not_run_again_if_its_decoder_is_observed():
    model, inputs, ran = pair('marian'), pair_batch('right'), []
    with cached_layers(model, inputs, 'cross') as start:
        for m in model.model.encoder.layers: m.self_attn.register_forward_pre_hook(lambda m, args: ran.append(m))
        start(1)
        with torch.no_grad(), observe(model, 1, part='cross'): model(**inputs)
    assert not ran


def test_cached_layers_restores_forwards_also_after_an_exception():
    model, inputs = built('bert'), batch('right')
    layer, hooks = model.bert.encoder.layer[1], len(model.bert._forward_pre_hooks)
    # like the hooks of accelerate
    own = layer.forward = (lambda forward: lambda *args, **kwargs: forward(*args, **kwargs))(layer.forward)
    with pytest.raises(ZeroDivisionError):
        with cached_layers(model, inputs) as start: 1 / 0
    with pytest.raises(IndexError):
        with cached_layers(model, dict(inputs, input_ids=inputs['input_ids'] + 99)): pass
    assert layer.__dict__['forward'] is own and len(model.bert._forward_pre_hooks) == hooks
    assert not any('forward' in m.__dict__ for m in model.modules() if m is not layer)


def test_passes_run_in_full_if_layers_cannot_be_distinguished(monkeypatch):
    model, inputs = built('bert'), batch('right')
    whole = looked_at(model, inputs, 2)
    monkeypatch.setattr('salviz.models.attention.layer_modules',
                        lambda model, part=None: list(model.bert.encoder.layer[:1]))
    with cached_layers(model, inputs) as start:
        start(2)
        same_pass(looked_at(model, inputs, 2), whole)


def test_cached_layers_needs_eval_mode_and_valid_layers():
    model, inputs = built('bert'), batch('right')
    with cached_layers(model, inputs) as start:
        start(-1)
        with pytest.raises(ValueError, match='has the layers 0 to 2'): start(3)
    with pytest.raises(ValueError, match='must be in eval mode, since dropout'):
        cached_layers(model.train(), inputs).__enter__()


# queries and keys


def softmax_by_hand(scores, allowed):
    "Return the softmax of a row in Python floats; uniform over all keys if none is allowed"
    if not any(allowed): return [1/len(scores)]*len(scores)
    top = max(s for s, ok in zip(scores, allowed) if ok)
    weights = [math.exp(s - top) if ok else 0. for s, ok in zip(scores, allowed)]
    return [w/math.fsum(weights) for w in weights]


@pytest.mark.sample(15)
@pytest.mark.parametrize('arch,padding', [(a, p) for a, p in cases if a not in own_forward])
def test_the_softmax_of_queries_times_keys_equals_the_observed_attention(arch, padding):
    model, inputs, head = built(arch, torch.float64), batch(padding), 3
    with observe(model) as maps: model(**inputs)
    for layer in maps:
        qk, mask = query_key(model, inputs, layer, head), inputs['attention_mask']
        q, k = qk.query.tolist(), qk.key.tolist()
        bias = torch.zeros_like(qk.attention) if qk.bias is None else qk.bias
        ours = torch.zeros_like(qk.attention)
        for b, i in [(b, i) for b in range(len(q)) for i in range(len(q[b]))]:
            sums = [math.fsum(x*y for x, y in zip(q[b][i], k[b][j])) for j in range(len(k[b]))]
            scores = [s*qk.scaling + bias[b, i, j].item() for j, s in enumerate(sums)]
            allowed = [own_mask(arch, mask, layer, b, i, j) for j in range(len(scores))]
            ours[b, i] = torch.tensor(softmax_by_hand(scores, allowed), dtype=torch.float64)
        real = mask.bool() # rows of padding may have no keys, and models differ in their values there
        theirs = maps[layer][:, head].to(ours.dtype)
        assert alike(ours[real], theirs[real], dtype=coarsest(arch, torch.float64))
        assert alike(qk.attention[real], theirs[real], dtype=coarsest(arch, torch.float64))
        assert alike(qk.scores.softmax(-1)[real], ours[real], dtype=coarsest(arch, torch.float64))


def test_queries_and_keys_are_the_heads_part_of_the_projections():
    model, inputs = built('bert', torch.float64), batch()
    attention, states = model.bert.encoder.layer[1].attention.self, model.bert(**inputs, output_hidden_states=True)
    x, qk = states.hidden_states[1], query_key(model, inputs, 1, 2)
    assert alike(qk.query, attention.query(x)[..., 8:12]) and alike(qk.key, attention.key(x)[..., 8:12])
    assert qk.scaling == .5


def test_grouped_query_heads_use_the_rotated_key_of_their_group():
    model, inputs = built('llama', torch.float64), batch('none')
    one, two, three = (query_key(model, inputs, 0, head) for head in (0, 1, 2))
    assert torch.equal(one.key, two.key) and not torch.equal(one.key, three.key)
    same = dict(input_ids=torch.full((1, 5), 7), attention_mask=torch.ones(1, 5, dtype=torch.long))
    keys = query_key(model, same, 0, 0).key[0]
    assert not torch.allclose(keys[0], keys[1])
    assert alike(keys[0].norm(), keys[4].norm(), dtype=torch.float32) # the cosines and sines of rotations are float32


def test_models_without_separate_queries_and_keys_are_rejected_by_name():
    with pytest.raises(ValueError, match='DebertaForSequenceClassification adds position terms'):
        query_key(built('deberta'), batch(), 0, 0)
    with pytest.raises(ValueError, match='head: BertForSequenceClassification has the heads 0 to 3 in a layer, got 4'):
        query_key(built('bert'), batch(), 0, 4)
    with pytest.raises(ValueError, match='layer: BertForSequenceClassification has the layers 0 to 2'):
        query_key(built('bert'), batch(), 3, 0)
    with pytest.raises(ValueError, match='query_key: the model must be in eval mode'):
        query_key(built('bert').train(), batch(), 0, 0)


def test_query_key_does_not_change_the_model_or_later_observations():
    model, inputs = built('bert'), batch()
    before = state(model)
    query_key(model, inputs, 0, 0)
    assert same(before, state(model))
    with observe(model) as maps: model(**inputs)
    assert maps._vectors == {}
