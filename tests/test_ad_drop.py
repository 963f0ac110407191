"AD-DROP against loops written from equations 4 to 7 of the paper"
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (BertConfig, BertForSequenceClassification, MPNetConfig, MPNetForSequenceClassification, GPT2Config,
                          GPT2ForSequenceClassification, LlamaConfig, LlamaForSequenceClassification)

from helpers import same, state
from salviz.attention import observe
from salviz.methods.ad_drop import ADDrop, discard_candidates, drop_mask
from salviz.methods.base import Plan, Progress, keyed_uniform

LENGTHS, PAD, EVEN = (7, 3, 5), 0, Progress(step=12, epoch=2, seed=5)


def tiny(kind, dropout=0.):
    "A random classifier whose attention is far from uniform: BERT and GPT-2 in float64, Llama in float32"
    common = dict(vocab_size=60, num_labels=3, pad_token_id=PAD, initializer_range=.4)
    encoder = dict(common, hidden_size=24, num_attention_heads=4, intermediate_size=32)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if kind == 'llama': # rotary angles and softmax are float32 in any precision
            return LlamaForSequenceClassification(LlamaConfig(num_hidden_layers=2, num_key_value_heads=2, **encoder)).eval()
        if kind == 'gpt2':
            return GPT2ForSequenceClassification(GPT2Config(n_embd=24, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2, embd_pdrop=dropout,
                                                            resid_pdrop=dropout, attn_pdrop=dropout, **common)).double().eval()
        return BertForSequenceClassification(BertConfig(num_hidden_layers=3, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
                                                        **encoder)).double().eval()


def examples():
    "Three sentences of 7, 3 and 5 tokens; first and last token are special"
    g = torch.Generator().manual_seed(3)
    return [dict(ids=torch.randint(5, 60, (n,), generator=g), example_id=10 + i, label=i) for i, n in enumerate(LENGTHS)]


def collate(rows, side='right', length=None):
    n = length or max(len(r['ids']) for r in rows)
    batch = dict(input_ids=torch.full((len(rows), n), PAD), attention_mask=torch.zeros(len(rows), n, dtype=torch.int64),
                 is_special=torch.ones(len(rows), n, dtype=torch.bool), example_id=torch.tensor([r['example_id'] for r in rows]),
                 labels=torch.tensor([r['label'] for r in rows]))
    for i, r in enumerate(rows):
        at = torch.arange(len(r['ids'])) + (n - len(r['ids']) if side == 'left' else 0)
        batch['input_ids'][i, at], batch['attention_mask'][i, at] = r['ids'], 1
        batch['is_special'][i, at[1:-1]] = False
    return batch


def own(x, batch, i):
    "Example `i` of x [batch, heads, n, n] without padding"
    at = batch['attention_mask'][i].nonzero().squeeze(1)
    return x[i][:, at][:, :, at]


# The reference: loops over rows, exact arithmetic for the size of the region

def reference_region(row, p, region='high'):
    "Eq. 6 for one row of real keys: the indices of the candidate discard region"
    n = len(row)
    k = int(n*(1 - Fraction(str(p)))) # kept for certain
    if n == 0 or k == n: return set()
    ordered = sorted(row, reverse=region == 'low')
    threshold = ordered[k]
    return {j for j, b in enumerate(row) if (b >= threshold if region == 'high' else b <= threshold)}


def reference_drop(candidates, n, q, u):
    "Eq. 7 for one row: the dropped ones among `candidates`, and none if nothing would be left"
    dropped = {j for j in candidates if u[j] < q}
    return set() if len(dropped) == n else dropped


def reference_candidates(b, allowed, p, region='high'):
    out = torch.zeros(b.shape, dtype=torch.bool)
    for index in np.ndindex(*b.shape[:-1]):
        keys = [j for j in range(b.shape[-1]) if allowed[index][j]]
        for i in reference_region([b[index][j].item() for j in keys], p, region): out[index][keys[i]] = True
    return out


def reference_plan(model, rows, p, q, progress, causal, target='pseudo', region='high', protect_special=False):
    "The whole of AD-DROP's steps 1 to 4, sentence by sentence, from the model's own eager attention"
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
            u = keyed_uniform(torch.tensor([r['example_id']]), (b.shape[0], n, n), progress.seed, progress.step, stream=l)[0]
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


@pytest.mark.parametrize('region', ['high', 'low'])
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize('p', [.1, .2, .3, .4, .5, .6, .7, .8, .9])
def test_the_region_is_that_of_equation_six_with_ties_negatives_and_rows_of_any_length(p, dtype, region):
    g = torch.Generator().manual_seed(int(p*10))
    b = torch.randint(-3, 4, (2, 3, 12, 12), generator=g).to(dtype) / 2
    allowed = torch.rand(2, 1, 12, 12, generator=g) < .7
    allowed[0, 0, 3] = False
    allowed[1, 0, :, 8:] = False
    assert torch.equal(discard_candidates(b, allowed, p, region), reference_candidates(b, allowed.expand_as(b), p, region))


@pytest.mark.parametrize('p', [.1, .2, .3, .4, .5, .6, .7, .8, .9, .001, .999])
def test_without_ties_the_region_has_exactly_the_exact_number_of_positions(p):
    for n in range(1, 200):
        size = discard_candidates(torch.randperm(n)[None].double(), torch.ones(1, n, dtype=torch.bool), p).sum().item()
        assert size == n - int(n*(1 - Fraction(str(p))))


def test_attributions_at_forbidden_keys_do_not_matter():
    b, allowed = torch.randn(4, 9, 9).double(), torch.rand(4, 9, 9) < .6
    for junk in (1e9, -1e9, float('nan'), float('inf')):
        assert torch.equal(discard_candidates(torch.where(allowed, b, junk), allowed, .4), discard_candidates(b, allowed, .4))


def test_torch_and_numpy_agree_on_the_region():
    from salviz import maps
    g = torch.Generator().manual_seed(0)
    for region in ('high', 'low'):
        for p in (.1, .3, .7):
            b, allowed = torch.randint(-4, 5, (3, 4, 10, 10), generator=g).float(), torch.rand(3, 1, 10, 10, generator=g) < .8
            ours = discard_candidates(b, allowed, p, region)
            assert (ours.numpy() == maps.discard_candidates(b.numpy(), allowed.expand_as(b).numpy(), p, region=region)).all()


def test_a_row_never_loses_all_its_keys_and_only_candidates_below_q_fall():
    g = torch.Generator().manual_seed(1)
    candidates, allowed, u = torch.rand(50, 4, 6, generator=g) < .8, torch.rand(50, 4, 6, generator=g) < .7, torch.rand(50, 4, 6, generator=g)
    allowed[0, 0] = False
    for q in (.2, .5, .99):
        dropped = drop_mask(candidates, allowed, q, u)
        for i in np.ndindex(50, 4):
            keys = {j for j in range(6) if allowed[i][j]}
            assert {j for j in range(6) if dropped[i][j]} == reference_drop({j for j in keys if candidates[i][j]}, len(keys), q, u[i])


@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('gpt2', 'right'), ('llama', 'right'), ('llama', 'left')])
@pytest.mark.parametrize('kwargs', [dict(), dict(target='gold', p=.6, q=.7), dict(region='low', p=.5, q=.5),
                                    dict(protect_special=True, p=.5, q=.9)], ids=str)
def test_the_plan_of_a_padded_batch_is_the_equations_applied_to_each_sentence_alone(kind, side, kwargs):
    model, rows = tiny(kind), examples()
    batch, method = collate(rows, side), ADDrop(cross_tuning=False, first_pass='eval', **kwargs)
    plan = method.plan(model, batch, EVEN)
    reference = reference_plan(model, rows, **{**dict(p=.3, q=.2), **kwargs}, progress=EVEN, causal=kind != 'bert')
    close = dict(rtol=1e-3, atol=1e-5) if kind == 'llama' else dict(rtol=1e-8, atol=1e-11)
    for i, layers in enumerate(reference):
        for l, (b, region, dropped) in enumerate(layers):
            seen = torch.ones(b.shape[1:]).tril() if kind != 'bert' else torch.ones(b.shape[1:])
            torch.testing.assert_close(own(plan.evidence['attention_attribution'][l], batch, i), b*seen, **close)
            assert torch.equal(own(plan.evidence['discard_candidates'][l], batch, i), region)
            assert torch.equal(own(plan.drop[l], batch, i), dropped)
            assert plan.evidence['discarded'][l] is plan.drop[l]


@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('gpt2', 'right'), ('llama', 'left')])
@pytest.mark.parametrize('first_pass', ['eval', 'train'])
def test_an_example_has_the_same_plan_in_any_batch_under_any_padding(kind, side, first_pass):
    model, rows = tiny(kind), examples()
    method = ADDrop(p=.5, q=.5, cross_tuning=False, first_pass=first_pass) # these models have no dropout
    whole = method.plan(model, collate(rows, side), EVEN)
    for length, order in ((None, (2,)), (11, (1, 2)), (9, (2, 0, 1))):
        batch = collate([rows[i] for i in order], side, length)
        plan = method.plan(model, batch, EVEN)
        for name in ('discard_candidates', 'discarded'):
            for l, x in plan.evidence[name].items():
                for at, i in enumerate(order): assert torch.equal(own(x, batch, at), own(whole.evidence[name][l], collate(rows, side), i))


@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('gpt2', 'right'), ('llama', 'left')])
def test_pads_are_never_attributed_dropped_or_shown(kind, side):
    batch = collate(examples(), side, 9)
    plan = ADDrop(p=.9, q=.9, cross_tuning=False).plan(tiny(kind), batch, EVEN)
    real = batch['attention_mask'].bool()
    pairs = real[:, None, :, None] & real[:, None, None, :]
    for name, layers in plan.shown().items():
        for x in layers.values(): assert (torch.where(pairs, 0, x) == 0).all(), name


@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('gpt2', 'right'), ('llama', 'left')])
def test_recorded_draws_are_exactly_the_positions_that_the_main_pass_drops(kind, side):
    model, batch = tiny(kind), collate(examples(), side, 8)
    plan = ADDrop(p=.9, q=.9, cross_tuning=False).plan(model, batch, EVEN)
    with observe(model, drop=plan.drop) as maps: model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask'])
    real = batch['attention_mask'].bool()[:, None, :, None]
    for l in plan.drop:
        gone = (maps[l] == 0) & maps.allowed(l) & real
        assert torch.equal(gone, plan.evidence['discarded'][l]) and gone.any()
        sums = maps[l].sum(-1)[real[..., 0].expand(-1, 4, -1)]
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_rows_without_any_gradient_are_one_big_tie_and_still_keep_a_key():
    model, batch = tiny('bert'), collate(examples())
    plan = ADDrop(p=.1, q=.99, cross_tuning=False).plan(model, batch, EVEN)
    region, dropped = own(plan.evidence['discard_candidates'][2], batch, 1), own(plan.drop[2], batch, 1)
    assert region[:, 1:].all() and not region[:, 0].all()
    assert (~dropped).any(-1).all()
    with observe(model, drop=plan.drop): assert model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask']).logits.isfinite().all()


def test_special_tokens_are_candidates_unless_they_are_protected():
    model, batch = tiny('bert'), collate(examples())
    special = batch['is_special'][:, None, None, :]
    for protect in (False, True):
        plan = ADDrop(p=.5, q=.9, cross_tuning=False, protect_special=protect).plan(model, batch, EVEN)
        assert any((x & special).any() for x in plan.drop.values()) != protect
        assert any((x & special).any() for x in plan.evidence['discard_candidates'].values()) != protect


def test_only_the_named_layers_are_observed_and_dropped_from():
    model, batch = tiny('bert'), collate(examples())
    for layers, expected in ((0, [0]), ([-1], [2]), ([2, 0], [0, 2]), (None, [0, 1, 2])):
        plan = ADDrop(layers=layers, cross_tuning=False).plan(model, batch, EVEN)
        assert sorted(plan.drop) == expected and all(sorted(x) == expected for x in plan.shown().values())


def test_gold_labels_attribute_another_class_and_an_unlabelled_example_falls_back_to_its_pseudo_label():
    model, batch = tiny('bert'), collate(examples())
    batch['labels'] = (model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask']).logits.argmax(-1) + 1) % 3
    look = lambda target, b: ADDrop(target=target, cross_tuning=False, first_pass='eval').plan(model, b, EVEN).evidence['attention_attribution'][0]
    unlabelled = {k: v for k, v in batch.items() if k != 'labels'}
    assert not torch.equal(look('gold', batch), look('pseudo', batch))
    assert torch.equal(look('gold', unlabelled), look('pseudo', batch))


@pytest.mark.parametrize('first_pass', ['train', 'eval'])
def test_a_plan_leaves_no_trace(first_pass):
    model, batch = tiny('bert', dropout=.3), collate(examples())
    model.train()
    model.bert.encoder.layer[1].eval()
    for i, p in enumerate(model.parameters()):
        p.requires_grad_(i % 3 > 0)
        if i % 2: p.grad = torch.ones_like(p)
    before, inputs = state(model), {k: v.clone() for k, v in batch.items()}
    plan = ADDrop(cross_tuning=False, first_pass=first_pass).plan(model, batch, EVEN)
    assert same(before, state(model)) and all(torch.equal(v, batch[k]) for k, v in inputs.items())
    assert not any(x.requires_grad for layers in plan.shown().values() for x in layers.values())


def test_the_first_pass_has_dropout_of_its_own_keyed_by_seed_and_step():
    model, batch = tiny('bert', dropout=.3), collate(examples())
    look = lambda step, seed, first_pass='train': ADDrop(cross_tuning=False, first_pass=first_pass).plan(model, batch, Progress(
        step=step, epoch=2, seed=seed)).evidence['attention_attribution'][0]
    first = look(1, 0)
    torch.manual_seed(123)
    assert torch.equal(look(1, 0), first)
    assert not torch.equal(look(2, 0), first) and not torch.equal(look(1, 1), first)
    assert torch.equal(look(1, 0, 'eval'), look(2, 9, 'eval')) and not torch.equal(look(1, 0, 'eval'), first)


def test_the_share_of_dropped_positions_is_p_times_q():
    rows = [dict(ids=torch.randint(5, 60, (20,), generator=torch.Generator().manual_seed(i)), example_id=i, label=0) for i in range(16)]
    plan = ADDrop(p=.5, q=.4, layers=0, cross_tuning=False).plan(tiny('bert'), collate(rows), EVEN)
    assert plan.evidence['discard_candidates'][0].double().mean().item() == .5
    assert abs(plan.drop[0].double().mean().item() - .2) < .01


def test_odd_epochs_are_plain_fine_tuning_and_even_ones_drop():
    model, batch, method = tiny('bert'), collate(examples()), ADDrop()
    for epoch in (1, 3): assert method.plan(model, batch, Progress(epoch=epoch)) == Plan() and method.phase(Progress(epoch=epoch)) == 'fine-tuning'
    for epoch in (2, 4): assert method.plan(model, batch, Progress(epoch=epoch)).drop and method.phase(Progress(epoch=epoch)) == 'ad_drop'
    assert ADDrop(cross_tuning=False).plan(model, batch, Progress(epoch=1)).drop


def test_what_cannot_work_is_refused_before_training():
    model = tiny('bert')
    for epochs in (1, 1.5):
        with pytest.raises(ValueError, match='ADDrop: cross_tuning needs at least 2 epochs'): ADDrop().check(model, None, None, epochs)
    ADDrop().check(model, None, None, 2)
    ADDrop(cross_tuning=False).check(model, None, None, 1)
    with pytest.raises(ValueError, match='0 to 2'): ADDrop(layers=[0, 3]).check(model, None, None, 2)
    small = dict(vocab_size=60, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=3)
    other = MPNetForSequenceClassification(MPNetConfig(**small))
    with pytest.raises(ValueError, match='MPNet.* cannot be observed'): ADDrop().check(other, None, None, 2)


@pytest.mark.parametrize('kwargs, message', [
    (dict(p=0), 'p must be between 0 and 1, both excluded'), (dict(p=1.), 'p must be'), (dict(q=-.1), 'q must be'), (dict(q='a'), "got 'a'"),
    (dict(target='predicted'), "target must be one of 'pseudo', 'gold', got 'predicted'"), (dict(region='top'), 'region must be one of'),
    (dict(first_pass=None), 'first_pass must be one of'), (dict(cross_tuning='yes'), 'cross_tuning must be one of'),
    (dict(protect_special=None), 'protect_special must be one of')])
def test_arguments_out_of_range_are_refused(kwargs, message):
    with pytest.raises(ValueError, match='ADDrop: .*' + message): ADDrop(**kwargs)


def test_the_region_agrees_with_the_golden_vectors():
    cases = json.loads((Path(__file__).parent/'golden.json').read_text())['discard_candidates']
    assert len(cases) > 10
    for case in cases:
        found = discard_candidates(torch.tensor(case['attribution'], dtype=torch.float64), torch.tensor(case['allowed']), case['p'], case['region'])
        assert found.tolist() == case['expected']
