"""Attention guidance: the loss against loops in float64 from the paper's equations, and everything that it refuses"""
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification
from transformers import ModernBertConfig, ModernBertForSequenceClassification

from helpers import word_tokenizer
from salviz.attention import observe
from salviz.data import Collator, encode, model_inputs
from salviz.methods.attention_guidance import AttentionGuidance, alpha_at, assign_heads, comparable_alpha, default_heads, guidance_loss
from salviz.methods.base import Progress
from salviz.runs import Run

texts = ['a film . about nothing . really', 'fun', 'dull , long and dull .', 'a b c d e f g h i j k', 'no stop here', '. . .']


tokenizer = word_tokenizer(texts, longest=32)
sizes = dict(vocab_size=len(tokenizer), num_hidden_layers=3, num_attention_heads=4, hidden_size=32, intermediate_size=40,
             max_position_embeddings=32, num_labels=3, pad_token_id=0)


def make_bert(seed=0, **kwargs):
    torch.manual_seed(seed)
    return BertForSequenceClassification(BertConfig(**{**sizes, 'initializer_range': .2, **kwargs})).eval()


def make_data(texts=texts):
    features = Features(dict(text=Value('string'), label=ClassLabel(names=['x', 'y', 'z'])))
    rows = Dataset.from_dict(dict(text=texts, label=[i % 3 for i in range(len(texts))]), features=features)
    return encode(DatasetDict(train=rows, validation=rows), tokenizer)


data = make_data()
def make_batch(rows=range(len(texts)), pad_to=None): return Collator(tokenizer, pad_to)([data['train'][i] for i in rows])
batch = make_batch()


def loss_and_maps(method, model, batch, progress=Progress()):
    plan = method.plan(model, batch, progress)
    with observe(model, layers=list(plan.layers)) as maps: outputs = model(**model_inputs(batch))
    return method.terms(dict(main=outputs), maps, plan, batch, progress)['attention_guidance'], maps, plan


def reference_pattern(name, tokens, boundary, multiple):
    "Section 3.2 of Deshpande and Narasimhan (2020) for one example; None without the token"
    n = len(tokens)
    at = [q for q in range(n) if tokens[q] in dict(delim=('[CLS]', '[SEP]'), period=('.',)).get(name, ())]
    if name in ('delim', 'period') and not at: return None
    P = np.zeros((n, n))
    for p in range(n):
        for q in range(n):
            if name == 'next': P[p, q] = 1. if q == p + 1 else 1/n if p == n - 1 and boundary == 'uniform' else 0.
            if name == 'prev': P[p, q] = 1. if q == p - 1 else 1/n if p == 0 and boundary == 'uniform' else 0.
            if name == 'first': P[p, q] = 1. if q == 0 else 0.
            if name in ('delim', 'period') and q in at: P[p, q] = 1/len(at) if multiple == 'uniform' else 1.
            if name == 'band': P[p, q] = 1/3 if abs(p - q) <= 1 else 0.
            if name == 'self': P[p, q] = 1. if p == q else 0.
    return P


def reference_loss(attentions, heads, reduction, boundary='uniform', multiple='uniform'):
    "Eq. 2 and 3, example by example and cell by cell, in float64"
    losses = []
    for b in range(len(texts)):
        tokens = tokenizer.convert_ids_to_tokens(data['train'][b]['input_ids'])
        n, total = len(tokens), 0.
        for layer, by_pattern in heads.items():
            for name, numbers in by_pattern.items():
                P = reference_pattern(name, tokens, boundary, multiple)
                if P is None: continue
                squares = [(float(attentions[layer][b, h, p, q]) - P[p, q])**2 for h in numbers for p in range(n) for q in range(n)]
                total += sum(squares) if reduction == 'sum' else sum(squares) / len(squares)
        losses.append(total)
    return losses


assignments = [
    dict(),
    dict(share=1.),
    dict(patterns={'next': [3], 'delim': [0, 2], 'period': [1]}),
    dict(patterns={0: {'period': [2]}, -1: {'first': [0, 1], 'prev': [3]}}),
    dict(patterns={'band': [0, 1], 'self': [3]}, layers=[1, 2],
         own=dict(band=torch.ones(32, 32).tril(1).triu(-1)/3, self=lambda tokens: np.eye(len(tokens))))]


@pytest.mark.parametrize('boundary, multiple', [('uniform', 'uniform'), ('zero', 'indicator')])
@pytest.mark.parametrize('reduction', ['mean', 'sum'])
@pytest.mark.parametrize('given', assignments)
def test_the_term_is_equations_2_and_3_on_the_models_own_eager_attention(given, reduction, boundary, multiple):
    model = make_bert()
    method = AttentionGuidance(alpha=1, reduction=reduction, boundary=boundary, multiple=multiple, **given)
    method.check(model, tokenizer, data, epochs=1)
    term, _, _ = loss_and_maps(method, model, batch)
    model.set_attn_implementation('eager')
    with torch.no_grad(): attentions = [a.double() for a in model(**model_inputs(batch), output_attentions=True).attentions]
    heads = assign_heads(model, method.patterns, method.share, method.layers, 'next prev first delim period band self'.split())
    expected = reference_loss(attentions, heads, reduction, boundary, multiple)
    assert term.loss.shape == (len(texts),)
    np.testing.assert_allclose(term.loss.detach().numpy(), expected, rtol=2e-5)


@pytest.mark.parametrize('reduction', ['mean', 'sum'])
def test_what_stands_at_pads_reaches_neither_loss_nor_gradient(reduction):
    g = torch.Generator().manual_seed(0)
    real = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    attention, target = torch.rand(3, 2, 5, 5, generator=g, dtype=torch.float64), torch.rand(3, 5, 5, generator=g, dtype=torch.float64)
    cells = real[:, :, None] & real[:, None, :]
    attention = attention.masked_fill(~cells[:, None], 1e6).requires_grad_()
    loss = guidance_loss(attention, target, real, reduction)
    loss.sum().backward()
    for b in range(3):
        at = [i for i in range(5) if real[b, i]]
        scale = 1. if reduction == 'sum' else 1/(2*len(at)**2)
        expected = sum((attention[b, h, p, q].item() - target[b, p, q].item())**2 for h in range(2) for p in at for q in at) * scale
        assert loss[b].item() == pytest.approx(expected, rel=1e-12)
        for h in range(2):
            for p in range(5):
                for q in range(5):
                    wanted = 2*(attention[b, h, p, q].item() - target[b, p, q].item())*scale if p in at and q in at else 0.
                    assert attention.grad[b, h, p, q].item() == pytest.approx(wanted, rel=1e-12)


def test_an_example_without_the_token_has_no_loss_for_that_pattern_and_others_do():
    model, method = make_bert(), AttentionGuidance({'period': [0]}, alpha=1)
    method.check(model, tokenizer, data, epochs=1)
    term, _, plan = loss_and_maps(method, model, batch)
    has = ['.' in t for t in texts]
    assert [x > 0 for x in term.loss.tolist()] == has
    assert plan.shown()['guided'][:, :, 0].all(1).tolist() == has


def test_a_head_that_follows_its_pattern_has_no_loss():
    P = torch.zeros(1, 4, 4)
    P[..., 0] = 1
    assert guidance_loss(P[:, None].expand(1, 3, 4, 4), P, torch.ones(1, 4).bool()).item() == 0.


def test_plan_and_loss_of_an_example_do_not_depend_on_its_batch_or_padding():
    model, method = make_bert(), AttentionGuidance({'next': [0], 'prev': [1], 'period': [2]}, alpha=1)
    method.check(model, tokenizer, data, epochs=1)
    term, _, plan = loss_and_maps(method, model, make_batch(pad_to=32))
    for b in range(len(texts)):
        alone, _, lone = loss_and_maps(method, model, make_batch([b]))
        n = len(data['train'][b]['input_ids'])
        for layer in plan.layers:
            assert torch.equal(plan.shown()['pattern_target'][layer][b, :, :n, :n], lone.shown()['pattern_target'][layer][0])
            assert plan.shown()['pattern_target'][layer][b, :, n:].sum() == plan.shown()['pattern_target'][layer][b, :, :, n:].sum() == 0
        assert torch.equal(plan.shown()['guided'][b], lone.shown()['guided'][0])
        assert term.loss[b].item() == pytest.approx(alone.loss.item(), rel=1e-5)


def test_evidence_shows_each_guided_heads_target_and_zeros_elsewhere():
    model, method = make_bert(), AttentionGuidance({0: {'next': [1]}, 2: {'period': [0, 3]}}, alpha=1)
    method.check(model, tokenizer, data, epochs=1)
    plan = method.plan(model, batch, Progress())
    assert plan.layers == (0, 2) and plan.drop == {} and plan.inputs == {}
    assert all(callable(x) for x in plan.evidence.values())
    shown = plan.shown()
    assert list(shown['pattern_target']) == [0, 2] and shown['guided'].shape == (len(texts), 2, 4) and shown['guided'].dtype == torch.bool
    for b, row in enumerate(data['train']):
        tokens = tokenizer.convert_ids_to_tokens(row['input_ids'])
        n = len(tokens)
        for i, (layer, by_head) in enumerate({0: {1: 'next'}, 2: {0: 'period', 3: 'period'}}.items()):
            for head in range(4):
                P = reference_pattern(by_head[head], tokens, 'uniform', 'uniform') if head in by_head else None
                got = shown['pattern_target'][layer][b, head].numpy()
                assert bool(shown['guided'][b, i, head]) == (P is not None)
                np.testing.assert_allclose(got[:n, :n], np.zeros((n, n)) if P is None else P, rtol=1e-6)


def test_plan_check_and_the_choice_of_alpha_leave_no_trace():
    model, method = make_bert(), AttentionGuidance()
    model.train(); model.bert.encoder.layer[1].eval()
    modes = {name: m.training for name, m in model.named_modules()}
    states = lambda: (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate())
    before = states()
    method.check(model, tokenizer, data, epochs=1)
    method.plan(model, batch, Progress()).shown()
    method.choose_alpha(model, batch)
    assert states() == before
    assert {name: m.training for name, m in model.named_modules()} == modes
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_the_gradient_goes_into_guided_heads_only():
    model, method = make_bert(num_hidden_layers=1), AttentionGuidance({'first': [2]}, alpha=1)
    term, _, _ = loss_and_maps(method, model, batch)
    term.loss.mean().backward()
    by_head = model.bert.encoder.layer[0].attention.self.query.weight.grad.view(4, 8, 32).abs().sum((1, 2))
    assert by_head[2] > 0 and by_head[[0, 1, 3]].sum() == 0


@pytest.mark.parametrize('schedule', ['linear', 'constant-then-linear'])
@pytest.mark.parametrize('total', [1, 50, 19_999, 20_000, 20_001, 100_000])
def test_the_schedule_falls_as_written(schedule, total):
    for step in sorted({0, 1, total // 2, total - 1, min(20_000, total), total}):
        if schedule == 'linear': expected = 7. * (1 - step/total)
        elif step < 20_000: expected = 7.
        else: expected = 7. * (total - step) / max(1, total - 20_000)
        assert alpha_at(Progress(step=step, total_steps=total), 7., schedule) == pytest.approx(max(0., expected), abs=1e-12)


def test_alpha_is_the_choice_with_the_ratio_of_losses_nearest_to_one():
    rng = np.random.default_rng(0)
    for task, guidance in np.exp(rng.normal(0, 3, (200, 2))):
        off = {a: max(a*guidance/task, task/(a*guidance)) for a in (1, 10, 100)}
        assert off[comparable_alpha(task, guidance)] == min(off.values())
    for bad in [(0., 1.), (1., 0.), (math.nan, 1.), (1., math.inf)]:
        with pytest.raises(ValueError, match='give alpha as a number'): comparable_alpha(*bad)


def make_trainer(tmp_path, model, first_batch):
    run = Run(tmp_path/'run') if (tmp_path/'run').exists() else Run.create(tmp_path/'run', {})
    return SimpleNamespace(model=model, run=run, first_batch=first_batch, share=lambda x: x)


def test_alpha_none_is_chosen_on_the_first_batch_and_kept_when_a_run_is_resumed(tmp_path):
    model, method = make_bert(), AttentionGuidance()
    expect = method.choose_alpha(model, batch)
    plan = method.plan(model, batch, Progress())
    with pytest.raises(ValueError, match='alpha=None is chosen by prepare'): loss_and_maps(method, model, batch)
    method.prepare(make_trainer(tmp_path, model, lambda: batch))
    term, maps, _ = loss_and_maps(method, model, batch, Progress(step=25, total_steps=100))
    assert term.weight == expect*.75
    with torch.no_grad(): task = torch.nn.functional.cross_entropy(model(**model_inputs(batch)).logits, batch['labels']).item()
    assert expect == comparable_alpha(task, method.guidance(maps, plan, batch).mean().item())
    run = Run(tmp_path/'run')
    assert run.state['alpha'] == expect
    run.set_state(alpha=42)
    again = AttentionGuidance()
    def never(): raise AssertionError('a resumed run must not choose again')
    again.prepare(make_trainer(tmp_path, model, never))
    assert loss_and_maps(again, model, batch)[0].weight == 42


def test_a_given_alpha_is_used_and_recorded(tmp_path):
    model, method = make_bert(), AttentionGuidance(alpha=3)
    method.prepare(make_trainer(tmp_path, model, None))
    assert loss_and_maps(method, model, batch)[0].weight == 3 and Run(tmp_path/'run').state['alpha'] == 3


def test_half_of_the_heads_are_guided_by_default_in_every_layer():
    assert assign_heads(make_bert()) == {layer: dict(next=[0], prev=[1]) for layer in range(3)}
    assert default_heads(12, .25) == dict(next=[0], prev=[1], first=[2])
    assert default_heads(12, 1) == dict(next=[0], prev=[1], first=list(range(2, 12)))
    assert default_heads(10, .7) == dict(next=[0], prev=[1], first=[2, 3, 4, 5, 6])


@pytest.mark.parametrize('arguments, says', [
    (dict(share=.3), 'share=0.3 of 4 heads is 1.2; it must be a whole number'),
    (dict(share=.25), 'share=0.25 of 4 heads is 1; it must be a whole number of at least 2'),
    (dict(share=0), 'share=0 of 4 heads is 0'),
    (dict(patterns={'next': [4]}), r"patterns\['next'\] has head 4; the model has heads 0 to 3"),
    (dict(patterns={'next': [-1]}), 'has head -1'),
    (dict(patterns={'next': [0], 'first': [0]}), 'has head 0, which next has already'),
    (dict(patterns={'next': [1, 1]}), 'has head 1, which next has already'),
    (dict(patterns={'diagonal': [0]}), 'is not known; available: next, prev, first, delim, period'),
    (dict(patterns={'next': []}), 'must be a list of head numbers'),
    (dict(patterns={'next': 'all'}), 'must be a list of head numbers'),
    (dict(patterns={0: {'next': [True]}}), 'must be a list of head numbers'),
    (dict(patterns={7: {'next': [0]}}), 'layers 0 to 2'),
    (dict(patterns={2: {'next': [0]}, -1: {'next': [1]}}), 'names a layer twice'),
    (dict(layers=[3]), 'layers 0 to 2'),
    (dict(patterns={'period': [0]}), 'pattern .period. looks at ., which occurs nowhere in the training data'),
    (dict(patterns={'band': [0]}, own=dict(band=torch.eye(4))), "own pattern 'band' has 4 rows, but the longest training example or probe has 13 tokens"),
    (dict(patterns={'mine': [0]}, own=dict(mine=lambda tokens: [[2.]])), r'must be a matrix of shape \[13, 13\]')])
def test_what_cannot_work_is_refused_before_training(arguments, says):
    without = make_data([t.replace('.', '') or 'a' for t in texts[:5]])
    with pytest.raises(ValueError, match=says): AttentionGuidance(**arguments).check(make_bert(), tokenizer, without, epochs=1)


@pytest.mark.parametrize('arguments, says', [
    (dict(share=1.2), 'share must be between 0 and 1'), (dict(alpha=-1), 'alpha must be None or a finite number'),
    (dict(alpha=math.nan), 'alpha must be None or a finite number'), (dict(alpha=True), 'alpha must be None'),
    (dict(boundary='wrap'), "boundary must be one of 'uniform', 'zero'"), (dict(multiple='sum'), "multiple must be one of 'uniform', 'indicator'"),
    (dict(reduction='max'), "reduction must be one of 'mean', 'sum'"), (dict(schedule='cosine'), "schedule must be one of 'linear'"),
    (dict(patterns={}), 'patterns must be'), (dict(patterns='next'), 'patterns must be'), (dict(patterns={0: []}), 'patterns must be'),
    (dict(patterns={0: {}}), 'patterns must be'),
    (dict(patterns={0: {'next': [0]}}, layers=0), 'leave out layers'),
    (dict(own=dict(next=torch.eye(3)), patterns={'next': [0]}), 'own has a pattern called'),
    (dict(own=dict(mine=torch.eye(3))), "own pattern 'mine' is given to no head"),
    (dict(own=dict(mine=torch.ones(3, 4)), patterns={'mine': [0]}), 'must be a matrix')])
def test_arguments_out_of_range_are_refused_where_the_method_is_made(arguments, says):
    with pytest.raises(ValueError, match=says): AttentionGuidance(**arguments)


def make_gpt2():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_layer=2, n_head=4, n_embd=32, n_positions=32, num_labels=3,
                        pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return GPT2ForSequenceClassification(config).eval()


@pytest.mark.parametrize('arguments, ok', [
    (dict(patterns={'next': [0]}), False), (dict(patterns={'next': [0]}, boundary='zero'), False), (dict(patterns={'prev': [0]}), False),
    (dict(patterns={'delim': [0]}), False), (dict(patterns={'period': [0]}), False), (dict(), False),
    (dict(patterns={'mine': [0]}, own=dict(mine=lambda tokens: np.ones((len(tokens), len(tokens))) / len(tokens))), False),
    (dict(patterns={'prev': [0], 'first': [1, 2]}, boundary='zero'), True), (dict(patterns={'first': [1]}), True),
    (dict(patterns={'mine': [0]}, own=dict(mine=torch.eye(32))), True)])
def test_patterns_that_a_causal_mask_forbids_are_refused_by_name(arguments, ok):
    method, model = AttentionGuidance(alpha=1, **arguments), make_gpt2()
    if ok:
        method.check(model, tokenizer, data, epochs=1)
        assert loss_and_maps(method, model, batch)[0].loss.isfinite().all()
    else:
        name = next(iter(arguments.get('patterns', dict(next=[0]))))
        with pytest.raises(ValueError, match=f"pattern '{name}' .* the attention mask of GPT2ForSequenceClassification forbids in layer 0"):
            method.check(model, tokenizer, data, epochs=1)


def test_patterns_out_of_a_sliding_windows_reach_are_refused_in_that_layer_only():
    torch.manual_seed(0)
    config = ModernBertConfig(**{k: v for k, v in sizes.items()}, local_attention=4, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2,
                              bos_token_id=1, eos_token_id=2, reference_compile=False)
    model = ModernBertForSequenceClassification(config).eval()
    AttentionGuidance({'first': [0]}, alpha=1, layers=[0, 2]).check(model, tokenizer, data, epochs=1)
    AttentionGuidance({'next': [0], 'prev': [1]}, alpha=1, boundary='zero').check(model, tokenizer, data, epochs=1)
    with pytest.raises(ValueError, match="pattern 'first' .* forbids in layer 1"):
        AttentionGuidance({'first': [0]}, alpha=1).check(model, tokenizer, data, epochs=1)


def test_the_recorded_arguments_are_plain_values():
    import json
    def verbs(tokens): return None
    method = AttentionGuidance({'verbs': [0], 'band': [1]}, own=dict(verbs=verbs, band=torch.eye(4)))
    assert json.loads(json.dumps(method.args()))['own'] == dict(verbs='verbs', band='matrix [4, 4]')
    assert AttentionGuidance().args() == dict(patterns=None, share=.5, alpha=None, layers=None, boundary='uniform', multiple='uniform',
                                              reduction='mean', schedule='linear', own=None)


def test_training_on_the_guidance_loss_moves_heads_to_their_patterns():
    model, method = make_bert(), AttentionGuidance({'next': [0], 'first': [1]}, alpha=1)
    optimiser, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(15):
        loss = loss_and_maps(method, model, batch)[0].loss.mean()
        loss.backward(); optimiser.step(); optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < .5*losses[0]
