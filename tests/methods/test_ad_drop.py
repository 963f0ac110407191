"AD-DROP against loops written from equations 4 to 7 of the paper"
import gc
import json
import warnings
import weakref
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import (AlbertConfig, AlbertForSequenceClassification, BertConfig, BertForMaskedLM,
                          BertForSequenceClassification,
                          BertForTokenClassification, DebertaV2Config, DebertaV2ForSequenceClassification,
                          DistilBertConfig,
                          DistilBertForSequenceClassification, MPNetConfig, MPNetForSequenceClassification, GPT2Config,
                          GPT2ForSequenceClassification, LlamaConfig, LlamaForSequenceClassification, MistralConfig,
                          MistralForSequenceClassification, ModernBertConfig, ModernBertForSequenceClassification)

from helpers import alike, all_alike, same, state
from salviz.models.attention import observe
from salviz.methods.ad_drop import (ADDrop, ADDropVariant, as_fraction, attendable, check_sight, discard_candidates,
                                    drop_mask,
                                    drop_uniform, pass_seed, prior_experiment,
                                    prior_method, random_attribution, read_queries)
from salviz.methods.base import FineTuning, Plan, Progress
from salviz.models.random import keyed_uniform
from salviz.training.step import _run_passes
from test_attribution import (attention_dropout, bert_by_hand, discrete_gauss, reference_integrated, scaled_pass,
                              translator)

LENGTHS, PAD, EVEN = (7, 3, 5), 0, Progress(step=12, epoch=2, seed=5)

DOUBLE = 'bert', 'gpt2'
ROUNDS = 'llama', 'mistral', 'modernbert', 'gpt2' # take the softmax in float32 in any precision


def close_to(kind):
    "Return tolerances for comparing two computations with `tiny(kind)`, by the dtype in which it rounds"
    return dict(rtol=1e-8, atol=1e-11) if kind in DOUBLE else dict(rtol=1e-3, atol=1e-5)


def tiny(kind, dropout=0.):
    "Return a random classifier whose attention is far from uniform: BERT and GPT-2 in float64, Llama in float32"
    common = dict(vocab_size=60, num_labels=3, pad_token_id=PAD, initializer_range=.4)
    encoder = dict(common, hidden_size=24, num_attention_heads=4, intermediate_size=32)
    small = dict(encoder, num_hidden_layers=2)
    others = dict(
        albert=lambda: AlbertForSequenceClassification(AlbertConfig(embedding_size=16,
                                                                    **dict(small, num_hidden_layers=3))),
        distilbert=lambda: DistilBertForSequenceClassification(
        DistilBertConfig(dim=24, n_layers=2, n_heads=4, hidden_dim=32, **common)),
        modernbert=lambda: ModernBertForSequenceClassification(ModernBertConfig(
            local_attention=4, classifier_pooling='cls', bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
            **dict(small, num_hidden_layers=4))),
        mistral=lambda: MistralForSequenceClassification(MistralConfig(sliding_window=3, num_key_value_heads=2,
                                                                       **small)),
        deberta=lambda: DebertaV2ForSequenceClassification(DebertaV2Config(**small)))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if kind in others: return others[kind]().eval()
        if kind == 'llama': # rotary angles and softmax are float32 in any precision
            return LlamaForSequenceClassification(LlamaConfig(num_hidden_layers=2, num_key_value_heads=2,
                                                              **encoder)).eval()
        if kind == 'gpt2':
            return GPT2ForSequenceClassification(GPT2Config(n_embd=24, n_layer=2, n_head=4, bos_token_id=1,
                                                            eos_token_id=2, embd_pdrop=dropout,
                                                            resid_pdrop=dropout, attn_pdrop=dropout,
                                                            **common)).double().eval()
        return BertForSequenceClassification(BertConfig(num_hidden_layers=3, hidden_dropout_prob=dropout,
                                                        attention_probs_dropout_prob=dropout,
                                                        **encoder)).double().eval()


def examples():
    """Return three sentences of 7, 3 and 5 tokens; the first and last token are special

    No token occurs twice: Llama's values do not depend on positions, so a repeated token would tie in theory, and the
    processor's rounding would decide which of the two comes first."""
    g = torch.Generator().manual_seed(3)
    return [dict(ids=5 + torch.randperm(55, generator=g)[:n], example_id=10 + i, label=i)
            for i, n in enumerate(LENGTHS)]


def collate(rows, side='right', length=None):
    n = length or max(len(r['ids']) for r in rows)
    batch = dict(input_ids=torch.full((len(rows), n), PAD), attention_mask=torch.zeros(len(rows), n, dtype=torch.int64),
                 is_special=torch.ones(len(rows), n, dtype=torch.bool),
                 example_id=torch.tensor([r['example_id'] for r in rows]),
                 labels=torch.tensor([r['label'] for r in rows]))
    for i, r in enumerate(rows):
        at = torch.arange(len(r['ids'])) + (n - len(r['ids']) if side == 'left' else 0)
        batch['input_ids'][i, at], batch['attention_mask'][i, at] = r['ids'], 1
        batch['is_special'][i, at[1:-1]] = False
    return batch


def own(x, batch, i):
    "Return example `i` of x [batch, heads, n, n] without padding"
    at = batch['attention_mask'][i].nonzero().squeeze(1)
    return x[i][:, at][:, :, at]


# The reference: loops over rows, exact arithmetic for the size of the region

def reference_region(row, p, region='high'):
    "Return the candidate discard region of one row of real keys after eq. 6, as indices"
    n = len(row)
    if region == 'low_released': return reference_released_low(row, p)
    k = int(n*(1 - Fraction(str(p)))) # never dropped
    if n == 0 or k == n: return set()
    ordered = sorted(row, reverse=region == 'low')
    threshold = ordered[k]
    return {j for j, b in enumerate(row) if (b >= threshold if region == 'high' else b <= threshold)}


def reference_released_low(row, p):
    "Return the low region of the released code: values strictly below the entry at index floor(pn) of the sorted row"
    entry = sorted(row)[int(len(row)*Fraction(str(p)))] if row else None
    return {j for j, b in enumerate(row) if b < entry}


def reference_drop(candidates, n, q, u):
    "Return the dropped `candidates` of one row after eq. 7; none if no key would be left"
    dropped = {j for j in candidates if u[j] < q}
    return set() if len(dropped) == n else dropped


def reference_candidates(b, allowed, p, region='high'):
    out = torch.zeros(b.shape, dtype=torch.bool)
    for index in np.ndindex(*b.shape[:-1]):
        keys = [j for j in range(b.shape[-1]) if allowed[index][j]]
        for i in reference_region([b[index][j].item() for j in keys], p, region): out[index][keys[i]] = True
    return out


def reference_plan(model, rows, p, q, progress, causal, target='pseudo', region='high', protect_special=False):
    "Compute steps 1 to 4 of AD-DROP, sentence by sentence, from the model's own eager attention"
    old = model.config._attn_implementation
    model.set_attn_implementation('eager')
    out = []
    for r in rows:
        n = len(r['ids'])
        outputs = model(input_ids=r['ids'][None], output_attentions=True)
        c = outputs.logits[0].argmax().item() if target == 'pseudo' else r['label']
        layers = []
        for l, a in enumerate(outputs.attentions):
            b = torch.autograd.grad(outputs.logits[0, c], a, retain_graph=True)[0][0]
            u = keyed_uniform(torch.tensor([r['example_id']]), (b.shape[0], n, n), progress.seed, progress.step,
                              stream=l)[0]
            region_, dropped_ = torch.zeros(b.shape, dtype=torch.bool), torch.zeros(b.shape, dtype=torch.bool)
            for h in range(b.shape[0]):
                for i in range(n):
                    seen = list(range(i + 1 if causal else n))
                    keys = [j for j in seen if not (protect_special and j in (0, n - 1))]
                    found = {keys[j] for j in reference_region([b[h, i, j].item() for j in keys], p, region)}
                    for j in found: region_[h, i, j] = True
                    for j in reference_drop(found, len(seen), q, u[h, i]): dropped_[h, i, j] = True
            layers.append((b, region_, dropped_))
        out.append(layers)
    model.set_attn_implementation(old)
    return out


@pytest.mark.sample(47)
@pytest.mark.parametrize('region', ['high', 'low', 'low_released'])
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize('p', [.1, .2, .3, .4, .5, .6, .7, .8, .9])
def test_region_follows_equation_six_with_ties_negatives_and_any_row_length(p, dtype, region):
    g = torch.Generator().manual_seed(int(p*10))
    b = torch.randint(-3, 4, (2, 3, 12, 12), generator=g).to(dtype) / 2
    allowed = torch.rand(2, 1, 12, 12, generator=g) < .7
    allowed[0, 0, 3] = False
    allowed[1, 0, :, 8:] = False
    assert torch.equal(discard_candidates(b, allowed, p, region),
                       reference_candidates(b, allowed.expand_as(b), p, region))


@pytest.mark.parametrize('p', [.1, .2, .3, .4, .5, .6, .7, .8, .9, .001, .999])
def test_region_size_without_ties_equals_exact_arithmetic(p):
    for n in range(1, 200):
        size = discard_candidates(torch.randperm(n)[None].double(), torch.ones(1, n, dtype=torch.bool), p).sum().item()
        assert size == n - int(n*(1 - Fraction(str(p))))


@pytest.mark.sample(4)
@pytest.mark.parametrize('p', [.1, .29, .3, .5, .7, .8, .9, .001, .999])
def test_released_low_region_rounds_its_size_down_and_keeps_ties(p):
    for n in range(1, 200):
        row, allowed = torch.randperm(n)[None].double(), torch.ones(1, n, dtype=torch.bool)
        size = discard_candidates(row, allowed, p, 'low_released').sum().item()
        assert size == int(n*Fraction(str(p)))
        padded = discard_candidates(torch.cat([row, row - n], 1), torch.cat([allowed, ~allowed], 1), p, 'low_released')
        assert padded.sum().item() == size and not padded[:, n:].any()
    assert not discard_candidates(torch.zeros(3, 9), torch.ones(9, dtype=torch.bool), p, 'low_released').any()


def test_unknown_region_raises():
    with pytest.raises(ValueError, match="^region must be one of 'high', 'low', 'low_released', got 'middle'$"):
        discard_candidates(torch.zeros(1, 3), torch.ones(3, dtype=torch.bool), .3, 'middle')


def test_attributions_at_forbidden_keys_have_no_effect():
    b, allowed = torch.randn(4, 9, 9).double(), torch.rand(4, 9, 9) < .6
    for junk in (1e9, -1e9, float('nan'), float('inf')):
        assert torch.equal(discard_candidates(torch.where(allowed, b, junk), allowed, .4),
                           discard_candidates(b, allowed, .4))


def test_torch_and_numpy_agree_on_the_region():
    from salviz.core import maths
    g = torch.Generator().manual_seed(0)
    for region in maths.region_names:
        for p in (.1, .3, .7):
            b, allowed = torch.randint(-4, 5, (3, 4, 10, 10),
                                       generator=g).float(), torch.rand(3, 1, 10, 10, generator=g) < .8
            ours = discard_candidates(b, allowed, p, region)
            assert (ours.numpy() == maths.discard_candidates(b.numpy(), allowed.expand_as(b).numpy(), p,
                                                             region=region)).all()


def test_only_candidates_below_q_are_dropped_and_no_row_loses_all_keys():
    g = torch.Generator().manual_seed(1)
    candidates, allowed, u = torch.rand(50, 4, 6,
                                        generator=g) < .8, torch.rand(50, 4, 6,
                                                                      generator=g) < .7, torch.rand(
        50, 4, 6, generator=g)
    allowed[0, 0] = False
    for q in (.2, .5, .99):
        dropped = drop_mask(candidates, allowed, q, u)
        for i in np.ndindex(50, 4):
            keys = {j for j in range(6) if allowed[i][j]}
            assert {j for j in range(6)
                    if dropped[i][j]} == reference_drop({j for j in keys if candidates[i][j]}, len(keys), q, u[i])


@pytest.mark.sample(7)
@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('gpt2', 'right'), ('llama', 'right'), ('llama', 'left')])
@pytest.mark.parametrize('kwargs', [dict(), dict(target='gold', p=.6, q=.7), dict(region='low', p=.5, q=.5),
                                    dict(protect_special=True, p=.5, q=.9),
                                    dict(region='low_released', p=.7, q=.5)], ids=str)
def test_plan_of_a_padded_batch_follows_the_equations_for_each_sentence(kind, side, kwargs):
    model, rows = tiny(kind), examples()
    batch, method = collate(rows, side), ADDrop.from_args(dict(cross_tuning=False, first_pass='eval', **kwargs))
    plan = method.plan(model, batch, EVEN)
    reference = reference_plan(model, rows, **{**dict(p=.3, q=.2), **kwargs}, progress=EVEN, causal=kind != 'bert')
    near = close_to(kind)
    for i, layers in enumerate(reference):
        for l, (b, region, dropped) in enumerate(layers):
            seen = torch.ones(b.shape[1:]).tril() if kind != 'bert' else torch.ones(b.shape[1:])
            torch.testing.assert_close(own(plan.shown()['attention_attribution'][l], batch, i), b*seen, **near)
            assert torch.equal(own(plan.evidence['discard_candidates'][l], batch, i), region)
            assert torch.equal(own(plan.drop[l], batch, i), dropped)
            assert plan.evidence['discarded'][l] is plan.drop[l]


@pytest.mark.sample(5)
@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('gpt2', 'right'), ('llama', 'left')])
@pytest.mark.parametrize('first_pass', ['eval', 'train'])
def test_plan_of_an_example_does_not_depend_on_batch_or_padding(kind, side, first_pass):
    model, rows = tiny(kind), examples()
    method = ADDrop(p=.5, q=.5, cross_tuning=False,
                    variant=ADDropVariant(first_pass=first_pass)) # these models have no dropout
    whole = method.plan(model, collate(rows, side), EVEN)
    for length, order in ((None, (2,)), (11, (1, 2)), (9, (2, 0, 1))):
        batch = collate([rows[i] for i in order], side, length)
        plan = method.plan(model, batch, EVEN)
        for name in ('discard_candidates', 'discarded'):
            for l, x in plan.evidence[name].items():
                for at, i in enumerate(order):
                    assert torch.equal(own(x, batch, at), own(whole.evidence[name][l], collate(rows, side), i))


@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('gpt2', 'right'), ('llama', 'left')])
def test_padding_is_never_attributed_dropped_or_shown(kind, side):
    batch = collate(examples(), side, 9)
    plan = ADDrop(p=.9, q=.9, cross_tuning=False).plan(tiny(kind), batch, EVEN)
    real = batch['attention_mask'].bool()
    pairs = real[:, None, :, None] & real[:, None, None, :]
    for name, layers in plan.shown().items():
        for x in layers.values(): assert (torch.where(pairs, 0, x) == 0).all(), name


@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('gpt2', 'right'), ('llama', 'left')])
def test_recorded_positions_are_exactly_those_that_the_main_pass_drops(kind, side):
    model, batch = tiny(kind), collate(examples(), side, 8)
    plan = ADDrop(p=.9, q=.9, cross_tuning=False).plan(model, batch, EVEN)
    with observe(model, drop=plan.drop) as maps:
        model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask'])
    real = batch['attention_mask'].bool()[:, None, :, None]
    for l in plan.drop:
        gone = (maps[l] == 0) & maps.allowed(l) & real
        assert torch.equal(gone, plan.evidence['discarded'][l]) and gone.any()
        sums = maps[l].sum(-1)[real[..., 0].expand(-1, 4, -1)]
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_rows_without_gradient_tie_completely_and_keep_a_key():
    model, batch = tiny('bert'), collate(examples())
    plan = ADDrop(p=.1, q=.99, cross_tuning=False).plan(model, batch, EVEN)
    region, dropped = own(plan.evidence['discard_candidates'][2], batch, 1), own(plan.drop[2], batch, 1)
    assert region[:, 1:].all() and not region[:, 0].all()
    assert (~dropped).any(-1).all()
    with observe(model, drop=plan.drop):
        assert model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask']).logits.isfinite().all()


def reference_read(model, r, target):
    """Return which queries of each layer the score of one sentence depends on, without gradients: {layer: {query}}

    A query is restricted to the first token in all heads; it is read if that changes the score."""
    n, read = len(r['ids']), {}
    with torch.no_grad():
        score = lambda: model(input_ids=r['ids'][None]).logits[0, target].item()
        original = score()
        for l in range(model.config.num_hidden_layers):
            read[l] = set()
            for i in range(n):
                row = torch.zeros(1, 4, n, n, dtype=torch.bool)
                row[0, :, i, 1:] = True
                with observe(model, layers=[], drop={l: row}):
                    if score() != original: read[l].add(i)
    return read


@pytest.mark.sample(2)
@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('gpt2', 'right'), ('gpt2', 'left')])
@pytest.mark.parametrize('kwargs', [dict(), dict(region='low'), dict(region='low_released', p=.6), dict(q=1., p=.6),
                                    dict(protect_special=True, p=.5, q=.9),
                                    dict(attribution='integrated_gradients', steps=3)], ids=str)
def test_left_out_rows_are_unread_and_the_others_follow_the_equations(kind, side, kwargs):
    model, rows = tiny(kind), examples()
    batch, options = collate(rows, side, 9), dict(first_pass='eval', target='gold', cross_tuning=False) | kwargs
    if 'steps' in options: del options['first_pass']
    tie, plan = (ADDrop.from_args(dict(**options, unread_rows=how)).plan(model, batch, EVEN)
                 for how in ('tie', 'left_out'))
    for name in ('attention_attribution', 'attribution_ranks'):
        assert all(torch.equal(x, plan.shown()[name][l]) for l, x in tie.shown()[name].items())
    many = 0
    for i, r in enumerate(rows):
        n, read = len(r['ids']), reference_read(model, r, r['label'])
        if kind == 'gpt2': read[0].add(0) # it attends to a single key, so its row cannot change
        assert read[max(read)] == {0 if kind == 'bert' else n - 1}
        for l, of in read.items():
            was, now = (own(x.evidence['discard_candidates'][l], batch, i) for x in (tie, plan))
            unread = torch.tensor([q not in of for q in range(n)])
            assert not now[:, unread].any() and torch.equal(now[:, ~unread], was[:, ~unread])
            dropped, gone = (own(x.drop[l], batch, i) for x in (tie, plan))
            assert not gone[:, unread].any() and torch.equal(gone[:, ~unread], dropped[:, ~unread])
            many += int(was[:, unread].sum())
    assert many > 0 or options.get('region') == 'low_released'
    logits = []
    for x in (tie, plan): # the score does not depend on the rows that differ
        with observe(model, layers=[], drop=x.drop), torch.no_grad():
            logits.append(model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask']).logits)
    torch.testing.assert_close(*logits, rtol=1e-12, atol=1e-12)


def test_zero_row_of_a_single_head_is_not_left_out():
    b, allowed = torch.randn(2, 3, 4, 4).double(), torch.ones(4, 4, dtype=torch.bool)
    b[:, 1] = 0.          # a head without any effect
    b[0, :, 2] = 0.       # an unread query
    b[1, 0, 3] = b[1, 2, 3] = 0.
    batch = dict(is_special=torch.zeros(2, 4, dtype=torch.bool))
    tie, out = (ADDrop(variant=ADDropVariant(unread_rows=how)).candidates(b, allowed, batch)
                for how in ('tie', 'left_out'))
    left = (tie & ~out).any(-1)
    assert left[0].tolist() == [[False, False, True, False]]*3 and left[1].tolist() == [[False, False, False, True]]*3
    assert tie[:, 1].all() and out[1, 1, :3].all()
    assert torch.equal(read_queries(b, allowed)[..., 0], ~left.any(1, keepdim=True))


def test_special_tokens_are_candidates_unless_protected():
    model, batch = tiny('bert'), collate(examples())
    special = batch['is_special'][:, None, None, :]
    for protect in (False, True):
        plan = ADDrop(p=.5, q=.9, cross_tuning=False,
                      variant=ADDropVariant(protect_special=protect)).plan(model, batch, EVEN)
        assert any((x & special).any() for x in plan.drop.values()) != protect
        assert any((x & special).any() for x in plan.evidence['discard_candidates'].values()) != protect


def test_only_the_chosen_layers_are_observed_and_dropped_from():
    model, batch = tiny('bert'), collate(examples())
    for layers, expected in ((0, [0]), ([-1], [2]), ([2, 0], [0, 2]), (None, [0, 1, 2])):
        plan = ADDrop(layers=layers, cross_tuning=False).plan(model, batch, EVEN)
        assert sorted(plan.drop) == expected and all(sorted(x) == expected for x in plan.shown().values())


def test_gold_target_explains_the_gold_class_and_falls_back_to_the_pseudo_label():
    model, batch = tiny('bert'), collate(examples())
    batch['labels'] = (model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask']).logits.argmax(-1)
                       + 1) % 3
    def look(target, b):
        method = ADDrop(target=target, cross_tuning=False, variant=ADDropVariant(first_pass='eval'))
        return method.plan(model, b, EVEN).evidence['attention_attribution'][0]
    unlabelled = {k: v for k, v in batch.items() if k != 'labels'}
    assert not torch.equal(look('gold', batch), look('pseudo', batch))
    assert torch.equal(look('gold', unlabelled), look('pseudo', batch))


KINDS = ('gradient', 'integrated_gradients', 'attention', 'random')


def path(attribution, steps): return dict(steps=steps) if attribution == 'integrated_gradients' else {}


@pytest.mark.parametrize('attribution, first_pass',
                         [(a, f) for a in KINDS for f in ('train', 'eval') if (a, f) != ('random', 'eval')])
def test_plan_does_not_change_model_batch_or_random_state(attribution, first_pass):
    model, batch = tiny('bert', dropout=.3), collate(examples())
    model.train()
    model.bert.encoder.layer[1].eval()
    for i, p in enumerate(model.parameters()):
        p.requires_grad_(i % 3 > 0)
        if i % 2: p.grad = torch.ones_like(p)
    before, inputs = state(model), {k: v.clone() for k, v in batch.items()}
    plan = ADDrop.from_args(dict(cross_tuning=False, first_pass=first_pass, attribution=attribution,
                                 **path(attribution, 3))).plan(model, batch, EVEN)
    assert same(before, state(model)) and all(torch.equal(v, batch[k]) for k, v in inputs.items())
    assert not any(x.requires_grad for layers in plan.shown().values() for x in layers.values())


@pytest.mark.parametrize('attribution, bad_pass',
                         [('gradient', 1), ('attention', 1), *[('integrated_gradients', n) for n in (1, 2, 5)]])
def test_failed_plan_does_not_change_the_model(attribution, bad_pass):
    model, batch, passes = tiny('bert', dropout=.3), collate(examples()), []
    model.train()
    model.bert.encoder.layer[1].eval()
    for i, p in enumerate(model.parameters()): p.requires_grad_(i % 3 > 0)
    def fail(module, args, output):
        passes.append(1)
        if len(passes) == bad_pass: raise RuntimeError('broken head')
    model.classifier.register_forward_hook(fail)
    before = state(model)
    with pytest.raises(RuntimeError, match='broken head'):
        ADDrop.from_args(dict(cross_tuning=False, attribution=attribution, **path(attribution, 30))).plan(model, batch,
                                                                                                          EVEN)
    assert same(before, state(model))


def test_dropout_of_the_first_pass_depends_on_seed_and_step_only():
    model, batch = tiny('bert', dropout=.3), collate(examples())
    def look(step, seed, first_pass='train'):
        method, progress = ADDrop(cross_tuning=False, variant=ADDropVariant(first_pass=first_pass)), Progress(
            step=step, epoch=2, seed=seed)
        return method.plan(model, batch, progress).evidence['attention_attribution'][0]
    first = look(1, 0)
    torch.manual_seed(123)
    assert torch.equal(look(1, 0), first)
    assert not torch.equal(look(2, 0), first) and not torch.equal(look(1, 1), first)
    assert torch.equal(look(1, 0, 'eval'), look(2, 9, 'eval')) and not torch.equal(look(1, 0, 'eval'), first)


def test_fraction_of_dropped_positions_is_p_times_q():
    rows = [dict(ids=torch.randint(5, 60, (20,), generator=torch.Generator().manual_seed(i)), example_id=i, label=0)
            for i in range(16)]
    plan = ADDrop(p=.5, q=.4, layers=0, cross_tuning=False).plan(tiny('bert'), collate(rows), EVEN)
    assert plan.evidence['discard_candidates'][0].double().mean().item() == .5
    assert abs(plan.drop[0].double().mean().item() - .2) < .01


def test_odd_epochs_are_plain_fine_tuning_and_even_epochs_drop():
    model, batch, method = tiny('bert'), collate(examples()), ADDrop()
    for epoch in (1, 3):
        assert method.plan(model, batch, Progress(epoch=epoch)) == Plan()
        assert method.phase(Progress(epoch=epoch)) == 'fine-tuning'
    for epoch in (2, 4):
        assert method.plan(model, batch, Progress(epoch=epoch)).drop
        assert method.phase(Progress(epoch=epoch)) == 'ad_drop'
    assert ADDrop(cross_tuning=False).plan(model, batch, Progress(epoch=1)).drop


def test_check_raises_for_too_few_epochs_unknown_layers_and_unobservable_models():
    model = tiny('bert')
    for epochs in (1, 1.5):
        with pytest.raises(ValueError, match='ADDrop: cross_tuning needs at least 2 epochs'):
            ADDrop().check(model, None, None, epochs)
    ADDrop().check(model, None, None, 2)
    ADDrop(cross_tuning=False).check(model, None, None, 1)
    with pytest.raises(ValueError, match='0 to 2'): ADDrop(layers=[0, 3]).check(model, None, None, 2)
    small = dict(vocab_size=60, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                 num_labels=3)
    other = MPNetForSequenceClassification(MPNetConfig(**small))
    with pytest.raises(ValueError, match='MPNet.* cannot be observed'): ADDrop().check(other, None, None, 2)


@pytest.mark.parametrize('kwargs, message', [
    (dict(attribution='lime'),
     "attribution must be one of 'gradient', 'integrated_gradients', 'attention', 'random', got 'lime'"),
    (dict(reading='literal'), "reading must be one of 'paper', 'standard'"),
    (dict(random_form='rows'), "random_form must be one of 'region', 'positions'"),
    (dict(attribution='integrated_gradients', nodes=21),
     'nodes must be None .every step. or an integer from 1 to steps=20, got 21'),
    (dict(attribution='integrated_gradients', nodes=True), 'nodes must be None .* got True'),
    (dict(attribution_dtype='float16'), "attribution_dtype must be one of 'float32', 'bfloat16', got 'float16'"),
    (dict(q=1.2), 'q must be'), (dict(q=0), 'q must be above 0 and at most 1'), (dict(q=True), 'q must be'),
    (dict(p=0), 'p must be between 0 and 1, both excluded'), (dict(p=1.), 'p must be'), (dict(q=-.1), 'q must be'),
    (dict(q='a'), "got 'a'"),
    (dict(target='predicted'), "target must be one of 'pseudo', 'gold', got 'predicted'"),
    (dict(region='top'), 'region must be one of'),
    (dict(first_pass=None), 'first_pass must be one of'),
    (dict(cross_tuning='yes'), 'cross_tuning must be True or False'),
    (dict(protect_special=None), 'protect_special must be True or False'),
    (dict(unread_rows='drop'), "unread_rows must be one of 'tie', 'left_out', got 'drop'")])
def test_invalid_arguments_raise(kwargs, message):
    with pytest.raises(ValueError, match='ADDrop: .*' + message): ADDrop.from_args(kwargs)


IDLE = dict(random_form=('positions', ('random',)), steps=(7, ('integrated_gradients',)),
            reading=('standard', ('integrated_gradients',)),
            target=('gold', ('gradient', 'integrated_gradients')),
            region=('low', ('gradient', 'integrated_gradients', 'attention')),
            first_pass=('eval', ('gradient', 'integrated_gradients', 'attention')),
            after_dropout=(True, ('gradient', 'attention')),
            nodes=(5, ('integrated_gradients',)), pseudo_label=('each_step', ('integrated_gradients',)),
            attribution_dtype=('bfloat16', ('gradient', 'integrated_gradients', 'attention')),
            unread_rows=('left_out', ('gradient', 'integrated_gradients')))


@pytest.mark.parametrize('attribution', KINDS)
@pytest.mark.parametrize('name', IDLE)
def test_option_without_effect_on_the_attribution_raises(name, attribution):
    value, readers = IDLE[name]
    make = lambda: ADDrop.from_args(dict(attribution=attribution, **{name: value}))
    if attribution in readers: assert getattr(make(), name) == value
    else:
        message = (f"^ADDrop: {name}={value!r} has no effect with attribution='{attribution}' .*; omit {name}, or use "
                   f"attribution='{readers[0]}'")
        with pytest.raises(ValueError, match=message) as error: make()
        assert all(repr(r) in str(error.value) for r in readers)


def test_after_dropout_raises_with_a_first_pass_in_eval_mode():
    with pytest.raises(ValueError,
                       match="ADDrop: after_dropout=True has no effect with first_pass='eval'.*or use "
                       "first_pass='train'"):
        ADDrop(variant=ADDropVariant(after_dropout=True, first_pass='eval'))
    with pytest.raises(ValueError, match="ADDrop: after_dropout must be True or False, got 'yes'"):
        ADDrop(variant=ADDropVariant(after_dropout='yes'))


def test_label_at_each_step_raises_where_the_steps_predict_no_label():
    each_step = dict(attribution='integrated_gradients', pseudo_label='each_step')
    with pytest.raises(ValueError, match="ADDrop: pseudo_label='each_step' has no effect with target='gold'"):
        ADDrop.from_args(dict(**each_step, target='gold'))
    with pytest.raises(ValueError, match="first_pass='eval' has no effect with pseudo_label='each_step', which has"):
        ADDrop.from_args(dict(**each_step, first_pass='eval'))
    with pytest.raises(ValueError, match="ADDrop: pseudo_label must be one of 'fixed', 'each_step', got 'gold'"):
        ADDrop(variant=ADDropVariant(pseudo_label='gold'))
    regression = head(BertForSequenceClassification, 1)
    with pytest.raises(ValueError, match="ADDrop: pseudo_label='each_step' does not apply to regression, whose"):
        ADDrop.from_args(each_step).check(regression, None, None, 2)
    ADDrop.from_args(each_step).check(tiny('bert'), None, None, 2)


def test_region_agrees_with_the_golden_vectors():
    cases = json.loads((Path(__file__).parents[1]/'golden.json').read_text())['discard_candidates']
    assert len(cases) > 10
    for case in cases:
        found = discard_candidates(torch.tensor(case['attribution'], dtype=torch.float64),
                                   torch.tensor(case['allowed']), case['p'], case['region'])
        assert found.tolist() == case['expected']


@pytest.mark.parametrize('steps', [0, 2.5, True])
def test_the_number_of_nodes_is_checked(steps):
    with pytest.raises(ValueError, match=f'^ADDrop: steps must be a positive integer, got {steps!r}$'):
        ADDrop(steps=steps)


# Other attributions

def check_against(plan, batch, i, l, b, seen, p, q, u, close, region='high'):
    """Check that example `i` and layer `l` of `plan` have the region and the drop that follow from the attribution `b`
    [heads, n, n] of the real tokens"""
    allowed = seen.expand_as(b)
    torch.testing.assert_close(own(plan.shown()['attention_attribution'][l], batch, i).to(b),
                               torch.where(allowed, b, 0.), **close)
    region_ = reference_candidates(b, allowed, p, region)
    assert torch.equal(own(plan.evidence['discard_candidates'][l], batch, i), region_)
    for index in np.ndindex(*b.shape[:2]):
        found = {j for j in range(b.shape[2]) if region_[index][j]}
        expected = reference_drop(found, int(allowed[index].sum()), q, u[index])
        assert {j for j in range(b.shape[2]) if own(plan.drop[l], batch, i)[index][j]} == expected


def draw(r, heads, l, progress=EVEN):
    n = len(r['ids'])
    return keyed_uniform(torch.tensor([r['example_id']]), (heads, n, n), progress.seed, progress.step, stream=l)[0]


@pytest.mark.sample(2)
@pytest.mark.parametrize('kind', ['bert', 'gpt2', 'llama'])
@pytest.mark.parametrize('kwargs', [dict(reading='paper'), dict(reading='standard', region='low'),
                                    dict(reading='paper', target='gold')], ids=str)
def test_region_of_integrated_gradients_follows_equation_three_for_each_sentence(kind, kwargs):
    model, rows = tiny(kind), examples()
    batch = collate(rows)
    plan = ADDrop.from_args(dict(p=.5, q=.5, steps=4, cross_tuning=False, first_pass='eval',
                                 attribution='integrated_gradients', **kwargs)).plan(model, batch, EVEN)
    near = dict(rtol=1e-7, atol=1e-10) if kind in DOUBLE else dict(rtol=1e-3, atol=1e-4)
    for i, r in enumerate(rows):
        inputs, n = dict(input_ids=r['ids'][None]), len(r['ids'])
        c = r['label'] if kwargs.get('target') == 'gold' else model(**inputs).logits[0].argmax().item()
        seen = torch.ones(n, n, dtype=torch.bool)
        for l in plan.drop:
            b = reference_integrated(model, inputs, lambda o: o.logits[0, c], l, 4, kwargs['reading'])
            # float32 ties are broken by rounding
            ours = own(plan.shown()['attention_attribution'][l], batch, i)
            torch.testing.assert_close(ours, b, **near)
            seen = seen if kind == 'bert' else seen.tril()
            check_against(plan, batch, i, l, ours, seen, .5, .5, draw(r, 4, l), near, kwargs.get('region', 'high'))


@pytest.mark.sample(5)
@pytest.mark.parametrize('attribution', KINDS)
@pytest.mark.parametrize('kind', ['bert', 'gpt2'])
def test_plan_without_padding_equals_the_plan_in_a_padded_batch(kind, attribution):
    model, rows = tiny(kind), [dict(ids=torch.arange(6 + i, 11 + i), example_id=i, label=i % 3) for i in range(3)]
    how = dict(p=.5, q=.5, cross_tuning=False, attribution=attribution, **path(attribution, 3),
               **(dict(first_pass='eval') if attribution != 'random' else {}))
    even, uneven = (collate(r) for r in (rows, [*rows, dict(ids=torch.arange(8, 17), example_id=9, label=0)]))
    here, there = (ADDrop.from_args(how).plan(model, b, EVEN) for b in (even, uneven))
    seen = torch.ones(5, 5, dtype=torch.bool) if kind == 'bert' else torch.ones(5, 5, dtype=torch.bool).tril()
    for i, r in enumerate(rows):
        for l in here.drop:
            b = own(here.shown()['attention_attribution'][l], even, i)
            torch.testing.assert_close(b, own(there.shown()['attention_attribution'][l], uneven, i), rtol=1e-7,
                                       atol=1e-10)
            check_against(here, even, i, l, b, seen, .5, .5, draw(r, 4, l), dict(rtol=0, atol=0))
            assert torch.equal(own(here.drop[l], even, i), own(there.drop[l], uneven, i))


@pytest.mark.parametrize('attribution', ['gradient', 'integrated_gradients', 'attention'])
def test_memory_of_the_first_pass_is_freed_before_the_second_begins(attribution):
    model, batch, seen = tiny('bert', dropout=.1), collate(examples()), []
    model.train()
    hooks = [m.register_forward_hook(
        lambda m, args, output: seen.append(weakref.ref(output[0] if isinstance(output, tuple) else output)))
             for m in [*model.bert.encoder.layer, *(o.attention.self for o in model.bert.encoder.layer)]]
    gc.disable() # references that only the garbage collector would free count as alive
    try:
        plan = ADDrop.from_args(dict(cross_tuning=False, attribution=attribution,
                                     **path(attribution, 3))).plan(model, batch, EVEN)
        assert len(seen) >= 4 and plan.drop and not any(r() is not None for r in seen)
        assert not any(x.requires_grad for x in plan.shown()['attention_attribution'].values())
    finally: gc.enable()
    for h in hooks: h.remove()


@pytest.mark.parametrize('reading', ['paper', 'standard'])
def test_nodes_give_the_weighted_sum_at_the_gauss_points_for_each_sentence(reading):
    model, rows = tiny('bert'), examples()
    batch, rule = collate(rows), discrete_gauss(9, 3)
    plan = ADDrop(p=.5, q=.5, steps=9, cross_tuning=False, attribution='integrated_gradients',
                  variant=ADDropVariant(nodes=3, reading=reading, first_pass='eval')).plan(model, batch, EVEN)
    for i, r in enumerate(rows):
        inputs, n = dict(input_ids=r['ids'][None]), len(r['ids'])
        c = model(**inputs).logits[0].argmax().item()
        for l in plan.drop:
            b = 0.
            for x, weight in zip(*rule):
                outputs, A = scaled_pass(model, inputs, l, x)
                b = b + weight*A.detach()[0]*torch.autograd.grad(outputs.logits[0, c],
                                                                 A)[0][0]/(1 if reading == 'paper' else x)
            ours = own(plan.shown()['attention_attribution'][l], batch, i)
            torch.testing.assert_close(ours, b, rtol=1e-6, atol=1e-9)
            check_against(plan, batch, i, l, ours, torch.ones(n, n, dtype=torch.bool), .5, .5, draw(r, 4, l),
                          dict(rtol=1e-6, atol=1e-9))


def test_nodes_agreement_compares_the_rule_with_the_full_sum():
    model, batch = tiny('bert'), collate(examples())
    make = lambda nodes: ADDrop(p=.5, steps=8, cross_tuning=False, attribution='integrated_gradients',
                                variant=ADDropVariant(nodes=nodes, first_pass='eval'))
    rule, whole = (make(n).plan(model, batch, EVEN).evidence for n in (2, None))
    result = make(2).nodes_agreement(model, batch, EVEN)
    off = [((rule['attention_attribution'][l] - x).norm()/x.norm()).item()
           for l, x in whole['attention_attribution'].items()]
    a, b = (np.concatenate([x.numpy().ravel() for x in o['discard_candidates'].values()]) for o in (rule, whole))
    np.testing.assert_allclose([result['relative_difference'], result['same_region']],
                               [max(off), (a & b).sum()/b.sum()])
    assert 0 < result['same_region'] < 1
    assert make(8).nodes_agreement(model, batch, EVEN) == dict(relative_difference=0., same_region=1.)


@pytest.mark.parametrize('attribution', ['gradient', 'integrated_gradients', 'attention'])
def test_only_the_first_pass_runs_in_bfloat16(attribution):
    model, batch, dtypes = tiny('bert').float(), collate(examples()), []
    hook = model.bert.encoder.layer[2].output.dense.register_forward_hook(
        lambda m, args, output: dtypes.append(output.dtype))
    method = ADDrop.from_args(dict(cross_tuning=False, first_pass='eval', attribution=attribution,
                                   attribution_dtype='bfloat16', **path(attribution, 2)))
    plan = method.plan(model, batch, EVEN)
    assert torch.bfloat16 in dtypes and (attribution == 'integrated_gradients' or set(dtypes) == {torch.bfloat16})
    dtypes.clear()
    _run_passes(model, model, batch, plan)
    hook.remove()
    assert dtypes == [torch.float32]
    assert all(x.dtype == torch.float32 for x in plan.shown()['attention_attribution'].values())


def test_pseudo_labels_of_integrated_gradients_come_from_the_first_pass():
    model, batch = tiny('bert'), collate(examples())
    inputs = {k: batch[k] for k in ('input_ids', 'attention_mask')}
    there = model(**inputs).logits.argmax(-1)
    nodes = [[scaled_pass(model, dict(input_ids=r['ids'][None]), 0, k/4)[0].logits.argmax().item() for r in examples()]
             for k in (1, 2, 3)]
    assert any(node != there.tolist() for node in nodes)
    look = lambda **kw: ADDrop.from_args(dict(attribution='integrated_gradients', steps=4, cross_tuning=False,
                                              first_pass='eval', **kw)).plan(
        model, dict(batch, labels=there), EVEN).evidence['attention_attribution']
    assert all(torch.equal(b, look(target='gold')[l]) for l, b in look().items())


def largest_logit(outputs): return outputs.logits[0].max() # logit of the class that this pass predicts


@pytest.mark.sample(1)
@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('gpt2', 'right'), ('llama', 'left'), ('albert', 'right')])
@pytest.mark.parametrize('reading', ['paper', 'standard'])
def test_label_at_each_step_is_the_prediction_of_that_step_for_each_sentence(kind, side, reading):
    model, rows = tiny(kind), examples()
    batch = collate(rows, side)
    how = dict(p=.5, q=.5, steps=4, cross_tuning=False, attribution='integrated_gradients', reading=reading)
    plan = ADDrop.from_args(dict(**how, pseudo_label='each_step')).plan(model, batch, EVEN)
    close = dict(rtol=1e-7, atol=1e-10) if kind in ('bert', 'gpt2') else dict(rtol=1e-3, atol=1e-4) # float32
    for i, r in enumerate(rows):
        inputs, n = dict(input_ids=r['ids'][None]), len(r['ids'])
        seen = torch.ones(n, n, dtype=torch.bool)
        seen = seen if kind in ('bert', 'albert') else seen.tril()
        for l in plan.drop:
            b = reference_integrated(model, inputs, largest_logit, l, 4, reading)
            ours = own(plan.shown()['attention_attribution'][l], batch, i)
            torch.testing.assert_close(ours, b, **close)
            check_against(plan, batch, i, l, ours, seen, .5, .5, draw(r, 4, l), dict(rtol=0, atol=0))


def test_label_at_each_step_changes_regions_only_where_the_label_changes():
    model, rows = tiny('bert'), examples()
    batch = collate(rows)
    how = dict(p=.5, steps=6, cross_tuning=False, attribution='integrated_gradients')
    def look(**o): return ADDrop.from_args(dict(**how, **o)).plan(model, batch, EVEN)
    fixed, each_step, moved = look(first_pass='eval'), look(pseudo_label='each_step'), []
    for i, r in enumerate(rows):
        for l in fixed.drop:
            passes = [scaled_pass(model, dict(input_ids=r['ids'][None]), l, k/6)[0] for k in range(1, 7)]
            labels = {outputs.logits.argmax().item() for outputs in passes}
            a, b = (own(o.evidence['attention_attribution'][l], batch, i) for o in (fixed, each_step))
            assert torch.equal(a, b) == (len(labels) == 1)
            moved.append(len(labels) > 1)
    assert 0 < sum(moved) < len(moved)


@pytest.mark.sample(1)
@pytest.mark.parametrize('reading', ['paper', 'standard'])
def test_each_gauss_point_has_its_own_label(reading):
    model, rows = tiny('bert'), examples()
    batch, rule = collate(rows), discrete_gauss(9, 3)
    how = dict(p=.5, steps=9, cross_tuning=False, attribution='integrated_gradients', reading=reading,
               pseudo_label='each_step')
    plan = ADDrop.from_args(dict(**how, nodes=3)).plan(model, batch, EVEN)
    for i, r in enumerate(rows):
        for l in plan.drop:
            b = 0.
            for x, weight in zip(*rule):
                outputs, A = scaled_pass(model, dict(input_ids=r['ids'][None]), l, x)
                gradient = torch.autograd.grad(largest_logit(outputs), A)[0][0]
                b = b + weight*A.detach()[0]*(gradient if reading == 'paper' else gradient/x)
            torch.testing.assert_close(own(plan.shown()['attention_attribution'][l], batch, i), b, rtol=1e-6, atol=1e-9)
    same = ADDrop.from_args(dict(**how, nodes=9)).nodes_agreement(model, batch, EVEN)
    assert same == dict(relative_difference=0., same_region=1.)


def test_nodes_agreement_uses_the_region_of_the_method():
    model, batch = tiny('bert'), collate(examples())
    how = dict(p=.5, steps=8, cross_tuning=False, first_pass='eval', attribution='integrated_gradients',
               protect_special=True)
    rule, whole = (ADDrop.from_args(dict(**how, nodes=n)).plan(model, batch, EVEN).evidence['discard_candidates']
                   for n in (2, None))
    a, b = (torch.cat([x.flatten() for x in o.values()]) for o in (rule, whole))
    result = ADDrop.from_args(dict(**how, nodes=2)).nodes_agreement(model, batch, EVEN)
    assert result['same_region'] == pytest.approx(((a & b).sum()/b.sum()).item(), rel=1e-6)


@pytest.mark.sample(4)
@pytest.mark.parametrize('kind', ['bert', 'gpt2', 'albert', 'modernbert'])
@pytest.mark.parametrize('region', ['high', 'low'])
def test_attention_as_attribution_drops_the_positions_with_most_attention(kind, region):
    model, rows = tiny(kind), examples()
    batch = collate(rows)
    plan = ADDrop(p=.4, q=.7, cross_tuning=False, attribution='attention',
                  variant=ADDropVariant(first_pass='eval', region=region)).plan(model, batch, EVEN)
    model.set_attn_implementation('eager')
    for i, r in enumerate(rows):
        for l, A in enumerate(model(input_ids=r['ids'][None], output_attentions=True).attentions):
            ours = own(plan.shown()['attention_attribution'][l], batch, i)
            torch.testing.assert_close(ours, A[0].detach(), **close_to(kind))
            check_against(plan, batch, i, l, ours, A[0, :1] > 0, .4, .7, draw(r, 4, l), dict(rtol=0, atol=0), region)
    if region == 'high': # positions outside the region have less attention than the candidates
        A, chosen = plan.shown()['attention_attribution'][0][0, 0], plan.evidence['discard_candidates'][0][0, 0]
        assert all(a[c].min() >= a[~c].max() for a, c in zip(A, chosen) if c.any() and not c.all())


@pytest.mark.sample(2)
@pytest.mark.parametrize('attribution', ['gradient', 'attention'])
@pytest.mark.parametrize('after', [False, True])
def test_region_uses_attention_before_or_after_dropout(after, attribution):
    model, rows = tiny('bert'), examples()
    batch = collate(rows)
    noise = attention_dropout(model, .3, (3, 4, 7, 7), pass_seed(EVEN.seed, EVEN.step))
    plan = ADDrop(p=.4, q=.5, cross_tuning=False, attribution=attribution,
                  variant=ADDropVariant(after_dropout=after)).plan(model, batch, EVEN)
    for i, r in enumerate(rows):
        n, own_noise = len(r['ids']), [x[i] for x in noise]
        ids, mask = batch['input_ids'][i], batch['attention_mask'][i]
        c = bert_by_hand(model, ids, mask, None, 1., own_noise)[0].argmax().item()
        for l in range(3):
            logits, A = bert_by_hand(model, ids, mask, l, 1., own_noise, after)
            b = torch.autograd.grad(logits[c], A)[0] if attribution == 'gradient' else A.detach()
            ours = own(plan.shown()['attention_attribution'][l], batch, i)
            torch.testing.assert_close(ours, b[:, :n, :n], rtol=1e-8, atol=1e-11)
            check_against(plan, batch, i, l, ours, torch.ones(n, n, dtype=torch.bool), .4, .5, draw(r, 4, l),
                          dict(rtol=0, atol=0))
    unlike = ADDrop(p=.4, q=.5, cross_tuning=False, attribution=attribution,
                    variant=ADDropVariant(after_dropout=not after)).plan(model, batch, EVEN)
    assert not torch.equal(unlike.evidence['discard_candidates'][0], plan.evidence['discard_candidates'][0])


EVERY = ('bert', 'albert', 'distilbert', 'deberta', 'modernbert', 'gpt2', 'llama', 'mistral')


@pytest.mark.parametrize('kind, side', [(k, 'right') for k in EVERY] + [('llama', 'left'), ('mistral', 'left'),
                                                                        ('bert', 'left')])
def test_attendable_predicts_the_mask_without_a_forward_pass(kind, side):
    model, batch = tiny(kind), collate(examples(), side, 9)
    check_sight(model)
    real = batch['attention_mask'].bool()
    with torch.no_grad(), observe(model) as maps:
        model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask'])
    seen = attendable(model, batch, maps.layers)
    for l in maps: assert torch.equal(seen[l], maps.allowed(l) & real[:, None, :, None])
    if kind == 'modernbert': assert not torch.equal(seen[0], seen[1]) # every third layer sees everything
    if kind == 'mistral': assert seen[0][0, 0].sum(-1).max() == 3


@pytest.mark.parametrize('kind', EVERY)
@pytest.mark.parametrize('p', [.3, .8])
def test_random_region_has_the_exact_size_in_every_row_and_needs_no_forward_pass(kind, p):
    model, rows = tiny(kind), examples() + [dict(ids=torch.arange(5, 45), example_id=77, label=0)]
    batch, passes = collate(rows), []
    with torch.no_grad(), observe(model) as maps:
        model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask'])
    seen = {l: maps.allowed(l) & batch['attention_mask'].bool()[:, None, :, None] for l in maps}
    for m in model.modules(): m.register_forward_hook(lambda *args: passes.append(1))
    plan = ADDrop(p=p, q=.5, cross_tuning=False, attribution='random').plan(model, batch, EVEN)
    assert not passes and sorted(plan.drop) == sorted(seen)
    for l, region in plan.evidence['discard_candidates'].items():
        n = seen[l].sum(-1).expand(region.shape[:3])
        expected = torch.tensor([k - int(k*(1 - Fraction(str(p)))) for k in range(41)])
        assert torch.equal(region.sum(-1), expected[n]) and not (region & ~seen[l]).any()
        assert not (plan.drop[l] & ~region).any() and ((seen[l] & ~plan.drop[l]).any(-1) | (n == 0)).all()


@pytest.mark.parametrize('form', ['region', 'positions'])
def test_random_drops_have_the_right_rate_and_depend_only_on_seed_step_and_example(form):
    rows = [dict(ids=torch.randint(5, 60, (24,), generator=torch.Generator().manual_seed(i)), example_id=i, label=0)
            for i in range(24)]
    model, method = tiny('bert'), ADDrop(p=.5, q=.4, cross_tuning=False, attribution='random',
                                         variant=ADDropVariant(random_form=form))
    plan = method.plan(model, collate(rows), EVEN)
    region, dropped = plan.evidence['discard_candidates'][0], plan.drop[0]
    assert abs(region.double().mean().item() - .5) < .01 and abs(dropped.double().mean().item() - .2) < .01
    # whether a position is dropped does not depend on why it is a candidate
    assert abs(dropped[region].double().mean().item() - .4) < .01
    sizes = region.sum(-1).double()
    if form == 'region': assert (sizes == 12).all()
    else: assert abs(sizes.var().item() - 24*.5*.5) < .8 # every position independently
    neighbours = (dropped[..., 1:] & dropped[..., :-1]).double().mean().item()
    assert abs(neighbours - (.04 if form == 'positions' else .04*(12*11/(24*23))/.25)) < .005
    few = method.plan(model, collate([rows[7], rows[2]], 'left', 31), EVEN)
    for at, i in enumerate((7, 2)):
        for l in plan.drop:
            assert torch.equal(own(few.drop[l], collate([rows[7], rows[2]], 'left', 31), at), plan.drop[l][i])
    other = [method.plan(model, collate(rows), Progress(step=s, epoch=2, seed=e)).evidence['discard_candidates'][0]
             for s, e in ((12, 6), (13, 5))]
    assert not any(torch.equal(x, region) for x in other)
    assert not torch.equal(plan.evidence['discard_candidates'][1], region)


def test_recorded_ranks_of_random_numbers_reproduce_the_region_in_training():
    rows = examples() + [dict(ids=torch.arange(5, 45), example_id=77, label=0)]
    batch = collate(rows)
    plan = ADDrop(p=.3, cross_tuning=False, attribution='random').plan(tiny('gpt2'), batch, EVEN)
    for l, ranks in plan.shown()['attribution_ranks'].items():
        seen = ranks > 0
        assert torch.equal(reference_candidates(ranks, seen, .3), plan.evidence['discard_candidates'][l])
        assert torch.equal(seen, (plan.shown()['attention_attribution'][l] > 0) | seen) and seen[0, 0].sum() == 7*8/2


def test_random_attributions_of_a_row_are_distinct_even_where_uniform_numbers_tie():
    batch = dict(input_ids=torch.ones(1, 512, dtype=torch.int64), attention_mask=torch.ones(1, 512, dtype=torch.int64),
                 example_id=torch.tensor([3]))
    draws, numbers = drop_uniform(batch, 2, seed=0, step=1,
                                  layer=-1), random_attribution(batch, 2, seed=0, step=1, layer=0)
    assert (draws.sort(-1).values.diff() == 0).any() and (numbers.sort(-1).values.diff() > 0).all()
    assert numbers.min() >= 0 and as_fraction(numbers).max() < 1 and (as_fraction(numbers) - draws).abs().max() < 2**-24
    short = random_attribution({k: v[:, :128] if v.dim() > 1 else v for k, v in batch.items()}, 2, seed=0, step=1,
                               layer=0)
    assert short.dtype == torch.int32 and torch.equal(short.argsort(-1), numbers[..., :128, :128].argsort(-1))


def test_random_attribution_never_drops_protected_special_tokens():
    batch = collate(examples())
    for form in ('region', 'positions'):
        plan = ADDrop(p=.9, q=1, cross_tuning=False, attribution='random',
                      variant=ADDropVariant(random_form=form, protect_special=True)).plan(tiny('bert'), batch, EVEN)
        assert plan.drop[0].any() and not (plan.drop[0] & batch['is_special'][:, None, None, :]).any()


def test_random_attribution_raises_for_unsupported_attention_masks():
    odd = tiny('modernbert')
    odd.config.layer_types = ['chunked_attention', *odd.config.layer_types[1:]]
    with pytest.raises(ValueError, match="attribution='random' does not support layers of type chunked_attention"):
        attendable(odd, collate(examples()), [0])
    wrong = tiny('gpt2')
    for block in wrong.transformer.h: block.attn.is_causal = False # its mask is still causal
    with pytest.raises(ValueError,
                       match="attribution='random' cannot predict the attention mask of GPT2ForSequenceClassification "
                       'without a forward pass'):
        ADDrop(attribution='random').check(wrong, None, None, 2)
    ADDrop(attribution='random').check(tiny('mistral'), None, None, 2)


def test_q_of_one_drops_the_whole_region_but_never_a_whole_row():
    plan = ADDrop(p=.4, q=1, cross_tuning=False, attribution='random').plan(tiny('gpt2'), collate(examples()), EVEN)
    for l, dropped in plan.drop.items():
        region, first = plan.evidence['discard_candidates'][l], torch.zeros(7, 1, dtype=torch.bool)
        first[0] = True # the first query of a causal model has a single key, which stays
        assert torch.equal(dropped, region & ~first) and (region & first).any()


# Other tasks

def head(cls, num_labels):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return cls(BertConfig(vocab_size=60, num_labels=num_labels, pad_token_id=PAD, initializer_range=.4,
                              hidden_size=24, num_attention_heads=4,
                              intermediate_size=32, num_hidden_layers=2, hidden_dropout_prob=0.,
                              attention_probs_dropout_prob=0.)).double().eval()


def each_gradient(model, inputs, score, layers):
    "Yield d score / dA [heads, n, n] of one sentence alone, layer by layer"
    for l in layers:
        outputs, A = scaled_pass(model, inputs, l, 1.)
        yield l, torch.autograd.grad(score(outputs), A)[0][0]


@pytest.mark.parametrize('target', ['pseudo', 'gold'])
@pytest.mark.parametrize('first_pass', ['train', 'eval'])
def test_regression_attributes_minus_the_squared_error_against_the_gold_score(target, first_pass):
    model, rows = head(BertForSequenceClassification, 1), examples()
    batch = collate(rows)
    batch['labels'] = torch.tensor([2.5, -1., .3]).double()
    plan = ADDrop(cross_tuning=False, target=target,
                  variant=ADDropVariant(first_pass=first_pass)).plan(model, batch, EVEN)
    for i, r in enumerate(rows):
        y = batch['labels'][i]
        for l, b in each_gradient(model, dict(input_ids=r['ids'][None]),
                                  lambda o: -(o.logits[0, 0] - y)*(o.logits[0, 0] - y), (0, 1)):
            torch.testing.assert_close(own(plan.shown()['attention_attribution'][l], batch, i), b, rtol=1e-8,
                                       atol=1e-10)
    # the sign: a little more attention where the attribution is highest lowers the squared error
    A, found = plan.shown()['attention_attribution'][0], []
    for i, r in enumerate(rows):
        b = own(A, batch, i)
        factor = torch.ones_like(b)
        factor.view(-1)[b.argmax()] += 1e-4
        loss = [(scaled_pass(model, dict(input_ids=r['ids'][None]), 0, f)[0].logits[0, 0] - batch['labels'][i])**2
                for f in (1., factor)]
        found.append((loss[1] < loss[0]).item())
    assert all(found)


def test_unlabelled_regression_explains_its_number_and_integrated_gradients_the_gold_score():
    model, rows = head(BertForSequenceClassification, 1), examples()
    batch = collate(rows)
    unlabelled = {k: v for k, v in batch.items() if k != 'labels'}
    plan = ADDrop(cross_tuning=False, variant=ADDropVariant(first_pass='eval')).plan(model, unlabelled, EVEN)
    path = ADDrop(cross_tuning=False, attribution='integrated_gradients',
                  steps=3).plan(model, dict(batch, labels=torch.tensor([2., -1., 0.])), EVEN)
    for i, r in enumerate(rows):
        inputs, y = dict(input_ids=r['ids'][None]), (2., -1., 0.)[i]
        for l, b in each_gradient(model, inputs, lambda o: o.logits[0, 0], (0, 1)):
            torch.testing.assert_close(own(plan.shown()['attention_attribution'][l], batch, i), b, rtol=1e-8,
                                       atol=1e-10)
            expected = reference_integrated(model, inputs, lambda o: -(o.logits[0, 0] - y)**2, l, 3)
            torch.testing.assert_close(own(path.evidence['attention_attribution'][l], batch, i), expected, rtol=1e-7,
                                       atol=1e-10)


def token_score(logits, labels):
    "Return the mean of log p over the labelled tokens, one by one"
    total, n = 0., 0
    for x, c in zip(logits, labels):
        if c != -100: total, n = total + (x[c] - x.exp().sum().log()), n + 1
    return total/n


@pytest.mark.parametrize('side', ['right', 'left'])
@pytest.mark.parametrize('target', ['pseudo', 'gold'])
def test_token_classification_attributes_minus_the_cross_entropy_over_labelled_tokens(side, target):
    model, rows = head(BertForTokenClassification, 4), examples()
    batch = collate(rows, side)
    batch['labels'] = torch.where(batch['is_special'], -100, batch['input_ids'] % 4)
    batch['labels'][0, batch['attention_mask'][0].nonzero()[2]] = -100 # the second piece of a word
    plan = ADDrop(p=.5, cross_tuning=False, target=target,
                  variant=ADDropVariant(first_pass='eval')).plan(model, batch, EVEN)
    for i, r in enumerate(rows):
        at = batch['attention_mask'][i].nonzero().squeeze(1)
        inputs = dict(input_ids=r['ids'][None], position_ids=at[None]) # BERT counts positions from the first column
        labels = batch['labels'][i, at].tolist() if target == 'gold' else model(**inputs).logits[0].argmax(-1).tolist()
        for l, b in each_gradient(model, inputs, lambda o: token_score(o.logits[0], labels), (0, 1)):
            ours = own(plan.shown()['attention_attribution'][l], batch, i)
            torch.testing.assert_close(ours, b, rtol=1e-7, atol=1e-11)
            region = reference_candidates(ours, torch.ones_like(ours, dtype=torch.bool), .5)
            assert torch.equal(own(plan.evidence['discard_candidates'][l], batch, i), region)


def test_token_classification_supports_labels_at_each_step():
    model, rows = head(BertForTokenClassification, 40), examples()
    batch = collate(rows)
    how = dict(cross_tuning=False, attribution='integrated_gradients', steps=3)
    plan = ADDrop.from_args(dict(**how, pseudo_label='each_step')).plan(model, batch, EVEN)
    once = ADDrop.from_args(dict(**how, first_pass='eval')).plan(model, batch, EVEN)
    def score(outputs): return token_score(outputs.logits[0], outputs.logits[0].argmax(-1).tolist())
    for i, r in enumerate(rows):
        for l in plan.drop:
            expected = reference_integrated(model, dict(input_ids=r['ids'][None]), score, l, 3)
            ours = own(plan.evidence['attention_attribution'][l], batch, i)
            torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-11)
    a, b = (o.evidence['attention_attribution'] for o in (plan, once))
    assert not all(torch.allclose(a[l], b[l]) for l in a)


def test_token_attribution_does_not_depend_on_padding_or_other_examples():
    model, rows = head(BertForTokenClassification, 4), examples()
    whole = ADDrop(cross_tuning=False, variant=ADDropVariant(first_pass='eval')).plan(model, collate(rows), EVEN)
    for i, r in enumerate(rows):
        alone = ADDrop(cross_tuning=False, variant=ADDropVariant(first_pass='eval')).plan(model, collate([r]), EVEN)
        for l in (0, 1):
            expected = alone.evidence['attention_attribution'][l][0]
            torch.testing.assert_close(own(whole.evidence['attention_attribution'][l], collate(rows), i), expected,
                                       rtol=1e-8, atol=1e-12)


@pytest.mark.sample(3)
@pytest.mark.parametrize('kind', ['marian', 't5'])
@pytest.mark.parametrize('kwargs', [dict(), dict(target='gold'), dict(attribution='integrated_gradients', steps=3),
                                    dict(attribution='attention'),
                                    dict(attribution='random')], ids=str)
def test_translation_drops_in_the_encoder_and_scores_the_real_target_tokens(kind, kwargs):
    model, rows = translator(kind), examples()
    batch = collate(rows)
    batch['labels'], batch['decoder_input_ids'] = torch.full((3, 4), -100), torch.full((3, 4), PAD)
    batch['decoder_attention_mask'] = torch.zeros(3, 4, dtype=torch.int64)
    for i, m in enumerate((4, 2, 3)):
        words = torch.arange(20 + i, 20 + i + m)
        batch['labels'][i, :m], batch['decoder_input_ids'][i,
                                                           1:m], batch['decoder_attention_mask'][i, :m] = words, words[
            :-1], 1
    method = ADDrop.from_args(dict(p=.5, q=.5, cross_tuning=False, **kwargs)) # these models have no dropout
    method.check(model, None, None, 2)
    plan = method.plan(model, batch, EVEN)
    assert sorted(plan.drop) == [0, 1] and plan.drop[0].shape == (3, 4, 7, 7)
    for i, r in enumerate(rows):
        m = int(batch['decoder_attention_mask'][i].sum())
        inputs = dict(input_ids=r['ids'][None], decoder_input_ids=batch['decoder_input_ids'][i:i+1, :m])
        labels = (batch['labels'][i, :m].tolist() if kwargs.get('target') == 'gold'
                  else model(**inputs).logits[0].argmax(-1).tolist())
        score = lambda o: token_score(o.logits[0], labels)
        seen = torch.ones(len(r['ids']), len(r['ids']), dtype=torch.bool)
        for l in (0, 1):
            ours = own(plan.shown()['attention_attribution'][l], batch, i)
            kind_ = kwargs.get('attribution', 'gradient')
            if kind_ == 'gradient': expected = next(b for _, b in each_gradient(model, inputs, score, (l,)))
            elif kind_ == 'integrated_gradients': expected = reference_integrated(model, inputs, score, l, 3)
            elif kind_ == 'attention': expected = scaled_pass(model, inputs, l, 1.)[1][0].detach()
            else: expected = ours
            torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-10)
            check_against(plan, batch, i, l, ours, seen, .5, .5, draw(r, 4, l), dict(rtol=0, atol=0))
    forward = {k: batch[k] for k in ('input_ids', 'attention_mask', 'decoder_input_ids', 'decoder_attention_mask')}
    with torch.no_grad(), observe(model, drop=plan.drop) as maps: model(**forward)
    real = batch['attention_mask'].bool()[:, None, :, None]
    assert all(torch.equal((maps[l] == 0) & maps.allowed(l) & real, plan.drop[l]) for l in plan.drop)
    with torch.no_grad(), observe(model, part='cross') as cross: model(**forward)
    assert all((cross[l] > 0)[cross.allowed(l).expand_as(cross[l])].all() for l in cross)


def test_each_call_of_a_shared_layer_has_its_own_drop_mask():
    model, batch = tiny('albert').double(), collate(examples())
    plan = ADDrop(p=.5, q=.5, layers=[0, 2], cross_tuning=False).plan(model, batch, EVEN)
    with torch.no_grad(), observe(model, layers=list(plan.drop), drop=plan.drop) as maps:
        model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask'])
    assert sorted(plan.drop) == list(maps) == [0, 2] and not torch.equal(plan.drop[0], plan.drop[2])
    real = batch['attention_mask'].bool()[:, None, :, None]
    for l in maps: assert torch.equal((maps[l] == 0) & maps.allowed(l) & real, plan.drop[l])


@pytest.mark.parametrize('kind', ['bert', 'gpt2', 'llama', 'albert', 'modernbert', 'distilbert', 'mistral', 'deberta'])
def test_fused_training_pass_drops_the_same_positions_as_a_pass_with_captured_maps(kind):
    model, batch = tiny(kind).double(), collate(examples())
    plan, fused = ADDrop(p=.5, q=.7, cross_tuning=False, attribution='attention',
                         variant=ADDropVariant(first_pass='eval')).plan(model, batch, EVEN), []
    forward = {k: batch[k] for k in ('input_ids', 'attention_mask')}
    def losses_of(layers):
        kernel = F.scaled_dot_product_attention
        F.scaled_dot_product_attention = lambda *args, **kwargs: fused.append(1) or kernel(*args, **kwargs)
        try:
            with observe(model, layers, drop=plan.drop) as maps: logits = model(**forward).logits
        finally: F.scaled_dot_product_attention = kernel
        return logits, torch.autograd.grad(logits.square().sum(), [p for p in model.parameters() if p.requires_grad],
                                           allow_unused=True), tuple(maps)
    (seen, there, _), few = losses_of(None), len(fused)
    unseen, here, maps = losses_of([])
    assert few == 0 and len(fused) == (0 if kind == 'deberta' else len(plan.drop)) and maps == ()
    alike(unseen, seen, size=1024, dtype=torch.float32 if kind in ROUNDS else None)
    all_alike(here, there, size=1024, dtype=torch.float32 if kind in ROUNDS else None)


def test_unsupported_task_raises():
    with pytest.raises(ValueError,
                       match='ADDrop: does not support masked_lm; supported tasks: classification, '
                       'multi_label_classification, regression, token_classification, seq2seq, causal_lm, '
                       'question_answering'):
        ADDrop().check(head(BertForMaskedLM, 2), None, None, 2)


# The experiment of section 2.2

def test_prior_experiment_has_the_four_methods_of_section_two():
    assert isinstance(prior_method('none'), FineTuning)
    for strategy in ('random', 'high', 'low'):
        method = prior_method(strategy)
        assert (method.p, method.q, method.layers, method.cross_tuning) == (.3, 1, 0, False)
        expected = ('random', 'pseudo', 'high') if strategy == 'random' else ('gradient', 'gold', strategy)
        assert (method.attribution, method.target, method.region) == expected
    sampled = prior_method('low', rate=.3, p=.6, layers=[0, 1])
    assert (sampled.p, sampled.q, sampled.layers) == (.6, .5, [0, 1])
    with pytest.raises(ValueError, match="strategy must be one of 'none', 'random', 'high', 'low', got 'middle'"):
        prior_method('middle')
    for bad in (dict(rate=.5, p=.3), dict(rate=0), dict(rate=1.)):
        with pytest.raises(ValueError, match='rate and p must satisfy 0 < rate <= p < 1'): prior_method('high', **bad)


def test_random_high_and_low_drop_the_same_number_of_positions():
    model, batch = tiny('bert'), collate(examples())
    gone = {s: prior_method(s).plan(model, batch, EVEN).drop[0].sum(-1) for s in ('random', 'high', 'low')}
    assert torch.equal(gone['random'], gone['high'])
    assert torch.equal(gone['random'], gone['low'])
    assert gone['random'].any()


def test_released_form_of_the_prior_experiment_drops_as_the_released_code_does():
    methods = {s: prior_method(s, form='released') for s in ('random', 'high', 'low')}
    assert all((m.p, m.q, m.layers, m.cross_tuning) == (.3, 1, 0, False) for m in methods.values())
    assert (methods['random'].attribution, methods['random'].random_form) == ('random', 'positions')
    assert [methods[s].region for s in ('high', 'low')] == ['high', 'low_released']
    assert methods['high'].target == methods['low'].target == 'gold'
    assert isinstance(prior_method('none', form='released'), FineTuning)
    model, row = tiny('bert'), dict(ids=torch.arange(10, 19), example_id=3, label=1)
    gone = {s: m.plan(model, collate([row]), EVEN).drop[0].sum(-1) for s, m in methods.items()}
    assert (gone['high'] == 3).all() and (gone['low'] == 2).all() # of nine keys
    assert gone['random'].min() < 3 < gone['random'].max()
    many = [dict(ids=torch.arange(10, 30), example_id=i, label=0) for i in range(20)]
    share = methods['random'].plan(model, collate(many), EVEN).drop[0].double().mean().item()
    assert abs(share - .3) < 5*(.3*.7/(20*4*20*20))**.5 # independent draws
    with pytest.raises(ValueError, match="form must be one of 'equal', 'released', got 'paper'"):
        prior_method('high', form='paper')
    with pytest.raises(ValueError, match="p=0.6 only applies to form='equal'; form='released' drops .*omit p"):
        prior_method('high', p=.6, form='released')


def test_prior_experiment_passes_its_form_to_every_method(monkeypatch):
    from salviz.training import trainer
    trained = []
    class FakeRun: train_rows, eval_rows = [dict(epoch=1., task=.5)], [dict(epoch=1., loss=.5)]
    def train(model, tokenizer, data, method, **settings):
        trained.append(method)
        return FakeRun()
    monkeypatch.setattr(trainer, 'train', train)
    for form in ('equal', 'released'): prior_experiment(None, None, None, strategies=('random', 'low'), form=form)
    assert [m.random_form for m in trained] == ['region', 'region', 'positions', 'region']
    assert [m.region for m in trained] == ['high', 'low', 'high', 'low_released']


@pytest.mark.slow
def test_prior_experiment_trains_four_times_from_the_same_weights_and_returns_the_losses(
    tiny_data, tiny_tokenizer, tiny_bert, tmp_path):
    from salviz.training.trainer import train
    model, settings = tiny_bert(), dict(epochs=2, batch_size=8, learning_rate=1e-3, seed=3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    table = prior_experiment(model, tiny_tokenizer, tiny_data, run_dir=tmp_path/'kept', **settings)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert list(table.columns) == ['strategy', 'epoch', 'split', 'loss']
    assert len(table) == 4*2*2
    assert np.isfinite(table.loss).all()
    assert {p.name for p in (tmp_path/'kept').iterdir()} == set(table.strategy) == {'none', 'random', 'high', 'low'}
    method = ADDrop(p=.3, q=1, layers=0, cross_tuning=False, target='gold', variant=ADDropVariant(region='low'))
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, method, run_dir=tmp_path/'own', probes=1, snapshots=0,
                progress=False, **settings)
    steps = [r['task'] for r in run.train_rows]
    low = table[(table.strategy == 'low')]
    np.testing.assert_allclose(low[low.split == 'train'].loss, [np.mean(steps[:5]), np.mean(steps[5:])], rtol=1e-6)
    np.testing.assert_allclose(low[low.split == 'validation'].loss, [r['loss'] for r in run.eval_rows], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('initializer_range', [.02, 1.5], ids=['calm', 'rough'])
def test_run_with_nodes_compares_them_with_all_steps_before_its_first_ad_drop_epoch(
    tiny_data, tiny_tokenizer, tiny_bert, tmp_path, initializer_range):
    from salviz.training.trainer import train
    method = ADDrop(p=.3, attribution='integrated_gradients', steps=6, variant=ADDropVariant(nodes=3))
    compared = []
    original, ADDrop.nodes_agreement = ADDrop.nodes_agreement, lambda self, model, batch, progress: compared.append(
        (progress.epoch, batch['example_id'].tolist())) or original(self, model, batch, progress)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            run = train(tiny_bert(initializer_range=initializer_range), tiny_tokenizer, tiny_data, method,
                        run_dir=tmp_path/'run', epochs=4, batch_size=8, learning_rate=1e-5,
                        probes=1, snapshots=0, progress=False)
    finally: ADDrop.nodes_agreement = original
    assert compared == [(2, list(range(8)))] # once, when the first epoch that drops begins
    found, warned = run.state['nodes_agreement'], [str(w.message) for w in caught if 'ADDrop' in str(w.message)]
    if initializer_range < 1: assert found['relative_difference'] < .01 and found['same_region'] > .99 and not warned
    else:
        assert found['relative_difference'] > .01 and len(warned) == 1
        assert f"nodes=3 differs by {found['relative_difference']:.1%} from the sum over steps=6" in warned[0]
        assert 'use more nodes, or omit nodes' in warned[0]


@pytest.mark.slow
def test_released_options_are_recorded_and_required_to_resume(tiny_data, tiny_tokenizer, tiny_bert, tmp_path):
    from salviz.training.trainer import train
    settings = dict(run_dir=tmp_path/'run', epochs=1, batch_size=8, probes=1, snapshots=2, progress=False)
    how = dict(attribution='integrated_gradients', steps=2, layers=0, cross_tuning=False)
    method = ADDrop.from_args(dict(**how, region='low_released', pseudo_label='each_step'))
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, method, **settings)
    args = run.config['method']['args']
    assert (args['region'], args['pseudo_label']) == ('low_released', 'each_step')
    shot = run.snapshot(-1, 0)
    assert (shot.info['args']['region'], shot.info['args']['pseudo_label']) == ('low_released', 'each_step')
    b, region = shot.arrays['attribution_ranks'][0], shot.arrays['discard_candidates'][0]
    ranks = torch.tensor(b.astype(int)).double()
    assert torch.equal(reference_candidates(ranks, ranks > 0, .3, 'low_released'), torch.tensor(region))
    for other in (dict(), dict(region='low_released'), dict(pseudo_label='each_step')):
        with pytest.raises(ValueError, match='cannot resume .*different values for method; pass the arguments'):
            train(tiny_bert(), tiny_tokenizer, tiny_data, ADDrop.from_args(dict(**how, **other)), resume=True,
                  **settings)
