"""Attention guidance: the loss against loops in float64 from the equations of the paper, and rejected arguments"""
import json
import math
import random
import warnings
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from transformers import (AlbertConfig, AlbertForSequenceClassification, ElectraConfig, ElectraForPreTraining,
                          MarianConfig, MarianMTModel)
from transformers import (BertConfig, BertForMaskedLM, BertForQuestionAnswering, BertForSequenceClassification,
                          BertForTokenClassification)
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel
from transformers import T5Config, T5ForConditionalGeneration
from transformers import ModernBertConfig, ModernBertForSequenceClassification

from helpers import word_tokenizer
import salviz.training.trainer as training
from salviz.models.attention import observe
from salviz.data.texts import Collator, encode, model_inputs
from salviz.methods import attention_guidance
from salviz.methods.ad_drop import ADDrop
from salviz.methods.attention_guidance import (AttentionGuidance, AttentionGuidanceVariant, alpha_at, assign_heads,
                                               comparable_alpha,
                                               default_heads, guidance_loss)
from salviz.methods.base import FineTuning, Progress
from salviz.models.loading import undisturbed
from salviz.training.settings import Settings
from salviz.training.step import _run_passes
from salviz.core.runs import Run

texts = ['a film . about nothing . really', 'fun', 'dull , long and dull .', 'a b c d e f g h i j k', 'no stop here',
         '. . .']


tokenizer = word_tokenizer(texts, longest=32)
sizes = dict(vocab_size=len(tokenizer), num_hidden_layers=3, num_attention_heads=4, hidden_size=32,
             intermediate_size=40,
             max_position_embeddings=32, num_labels=3, pad_token_id=0)


def make_bert(seed=0, **kwargs):
    torch.manual_seed(seed)
    return BertForSequenceClassification(BertConfig(**{**sizes, 'initializer_range': .2, **kwargs})).eval()


def make_data(texts=texts):
    features = Features(dict(text=Value('string'), label=ClassLabel(names=['x', 'y', 'z'])))
    rows = Dataset.from_dict(dict(text=texts, label=[i % 3 for i in range(len(texts))]), features=features)
    return encode(DatasetDict(train=rows, validation=rows), tokenizer)


data = make_data()
def make_batch(rows=range(len(texts)), pad_to=None):
    return Collator(tokenizer, pad_to)([data['train'][i] for i in rows])
batch = make_batch()


def loss_and_maps(method, model, batch, progress=Progress()):
    plan = method.plan(model, batch, progress)
    with observe(model, layers=list(plan.layers)) as maps: outputs = model(**model_inputs(batch))
    return method.terms(dict(main=outputs), maps, plan, batch, progress)['attention_guidance'], maps, plan


def reference_pattern(name, tokens, boundary, multiple):
    "Compute section 3.2 of Deshpande and Narasimhan (2020) for one example; None without the token"
    n = len(tokens)
    looked_at = {'delim': ('[CLS]', '[SEP]'), 'delim:[CLS]': ('[CLS]',), 'delim:[SEP]': ('[SEP]',),
                 'period': ('.',)}.get(name)
    at = [q for q in range(n) if tokens[q] in (looked_at or ())]
    if looked_at and not at: return None
    P = np.zeros((n, n))
    for p in range(n):
        for q in range(n):
            if name == 'next': P[p, q] = 1. if q == p + 1 else 1/n if p == n - 1 and boundary == 'uniform' else 0.
            if name == 'prev': P[p, q] = 1. if q == p - 1 else 1/n if p == 0 and boundary == 'uniform' else 0.
            if name == 'first': P[p, q] = 1. if q == 0 else 0.
            if looked_at and q in at: P[p, q] = 1/len(at) if multiple == 'uniform' else 1.
            if name == 'band': P[p, q] = 1/3 if abs(p - q) <= 1 else 0.
            if name == 'self': P[p, q] = 1. if p == q else 0.
    return P


def reference_loss(attentions, heads, reduction, boundary='uniform', multiple='uniform', batch=None):
    "Compute eq. 2 and 3 example by example and entry by entry, in float64"
    ids, mask = (batch or make_batch())['input_ids'].tolist(), (batch or make_batch())['attention_mask'].tolist()
    losses = []
    for b in range(len(ids)):
        at = [i for i in range(len(ids[b])) if mask[b][i]]
        tokens = tokenizer.convert_ids_to_tokens([ids[b][i] for i in at])
        n, total = len(tokens), 0.
        for layer, by_pattern in heads.items():
            for name, numbers in by_pattern.items():
                P = reference_pattern(name, tokens, boundary, multiple)
                if P is None: continue
                squares = [(float(attentions[layer][b, h, at[p], at[q]]) - P[p, q])**2 for h in numbers
                           for p in range(n) for q in range(n)]
                total += sum(squares) if reduction == 'sum' else sum(squares) / len(squares)
        losses.append(total)
    return losses


assignments = [
    dict(),
    dict(head_fraction=1.),
    dict(patterns={'next': [3], 'delim': [0, 2], 'period': [1]}),
    # as in the released code: one pattern for each delimiter, with a separate mean
    dict(patterns={'delim:[CLS]': [0], 'delim:[SEP]': [3, 1]}),
    dict(patterns={0: {'period': [2]}, -1: {'first': [0, 1], 'prev': [3]}}),
    dict(patterns={'band': [0, 1], 'self': [3]}, layers=[1, 2],
         custom=dict(band=torch.ones(32, 32).tril(1).triu(-1)/3, self=lambda tokens: np.eye(len(tokens))))]


def around(tokens): return [[1/3 if abs(p - q) <= 1 else 0. for q in range(len(tokens))] for p in range(len(tokens))]


tables = [
    ({0: {0: 'next', 3: around}, 2: {1: around, 2: around, 3: 'period'}},
     {0: {'next': [0], 'band': [3]}, 2: {'band': [1, 2], 'period': [3]}}),
    ({(1, 2): torch.eye(32), (1, 0): 'delim', (-1, 1): torch.eye(32), (1, 3): np.eye(32)},
     {1: {'self': [2, 3], 'delim': [0]}, 2: {'self': [1]}}),
    ({(0, h): ('next', 'prev', 'first', around)[h] for h in range(4)},
     {0: {'next': [0], 'prev': [1], 'first': [2], 'band': [3]}})]


@pytest.mark.sample(11)
@pytest.mark.parametrize('boundary, multiple', [('uniform', 'uniform'), ('zero', 'indicator')])
@pytest.mark.parametrize('reduction', ['mean', 'sum'])
@pytest.mark.parametrize('table, means', tables)
def test_table_assigns_heads_and_averages_heads_of_one_pattern(
    table, means, reduction, boundary, multiple):
    model, method = make_bert(), AttentionGuidance(table, alpha=1,
                                                   variant=AttentionGuidanceVariant(reduction=reduction,
                                                                                    boundary=boundary,
                                                                                    multiple=multiple))
    method.check(model, tokenizer, data, epochs=1)
    term, maps, plan = loss_and_maps(method, model, batch)
    expected = reference_loss({l: maps[l].detach().double() for l in maps.layers}, means, reduction, boundary, multiple)
    np.testing.assert_allclose(term.loss.detach().numpy(), expected, rtol=2e-5)
    assert plan.layers == tuple(sorted(means))
    in_table = {(i, h) for i, l in enumerate(sorted(means)) for hs in means[l].values() for h in hs}
    assert {tuple(x) for x in plan.shown()['guided'][0].nonzero().tolist()} == in_table # the first text has a full stop
    assert method.prescribes(model) == {l: sorted(h for hs in means[l].values() for h in hs) for l in sorted(means)}


@pytest.mark.parametrize('reduction', ['mean', 'sum'])
@pytest.mark.parametrize('row', [0, 2, 3])
def test_loss_and_gradient_do_not_depend_on_longer_texts_in_the_batch(row, reduction):
    model, found = make_bert().double(), []
    method = AttentionGuidance({'next': [3, 0], 'delim': [2], 'first': [1]}, alpha=1,
                               variant=AttentionGuidanceVariant(reduction=reduction))
    method.check(model, tokenizer, data, epochs=1)
    alone = make_batch([row])
    assert alone['attention_mask'].all()
    for here, i in ((alone, 0), (batch, row)):
        term, maps, _ = loss_and_maps(method, model, here)
        n = int(here['attention_mask'][i].sum())
        gradients = torch.autograd.grad(term.loss[i], [maps[l] for l in maps], retain_graph=True)
        found.append((term.loss[i].item(), [g[i, :, :n, :n] for g in gradients]))
        expected = reference_loss({l: maps[l].detach() for l in maps},
                                  {l: {'next': [3, 0], 'delim': [2], 'first': [1]} for l in range(3)}, reduction,
                                  batch=here)[i]
        np.testing.assert_allclose(found[-1][0], expected, rtol=1e-10)
    for a, b in zip(found[0][1], found[1][1]): torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_table_and_assignment_by_name_are_the_same_method():
    table = AttentionGuidance({(0, 1): around, (0, 2): around, (1, 0): 'next'}, alpha=1)
    named = AttentionGuidance({0: dict(around=[1, 2]), 1: dict(next=[0])}, custom=dict(around=around), alpha=1)
    for m in (table, named): m.check(make_bert(), tokenizer, data, epochs=1)
    assert table.args() == named.args() and repr(table) == repr(named)
    assert torch.equal(*(loss_and_maps(m, make_bert(), batch)[0].loss for m in (table, named)))


def test_patterns_without_a_name_get_unique_names():
    def next(tokens): return np.eye(len(tokens))
    matrices = [torch.eye(32), torch.ones(32, 32)/32, torch.eye(32).tolist()]
    method = AttentionGuidance({0: {0: next, 1: lambda t: None, 2: lambda t: None, 3: 'next'},
                                1: dict(enumerate(matrices)), 2: dict(matrix=[0])},
                               custom=dict(matrix=torch.zeros(32, 32)))
    assert method.patterns == {0: {'own next': [0], 'function': [1], 'function 2': [2], 'next': [3]},
                               1: {'matrix 2': [0, 2], 'matrix 3': [1]}, 2: {'matrix': [0]}}
    assert list(method.custom) == ['matrix', 'own next', 'function', 'function 2', 'matrix 2', 'matrix 3']
    assert method.custom['own next'] is next


def test_another_matrix_gives_another_config():
    a, b, again = (AttentionGuidance({(0, 0): m}).args()['custom']
                   for m in (torch.eye(8), torch.eye(8).flip(0), torch.eye(8).tolist()))
    assert a != b and a == again and a['matrix'].startswith('matrix [8, 8], checksum ')


@pytest.mark.sample(15)
@pytest.mark.parametrize('boundary, multiple', [('uniform', 'uniform'), ('zero', 'indicator')])
@pytest.mark.parametrize('reduction', ['mean', 'sum'])
@pytest.mark.parametrize('arguments', assignments)
def test_term_equals_equations_2_and_3_with_eager_attention(arguments, reduction, boundary, multiple):
    model = make_bert()
    method = AttentionGuidance.from_args(dict(alpha=1, reduction=reduction, boundary=boundary, multiple=multiple,
                                              **arguments))
    method.check(model, tokenizer, data, epochs=1)
    term, _, _ = loss_and_maps(method, model, batch)
    model.set_attn_implementation('eager')
    with torch.no_grad():
        attentions = [a.double() for a in model(**model_inputs(batch), output_attentions=True).attentions]
    heads = assign_heads(model, method.patterns, method.head_fraction, method.layers,
                         'next prev first delim period band self'.split())
    expected = reference_loss(attentions, heads, reduction, boundary, multiple)
    assert term.loss.shape == (len(texts),)
    np.testing.assert_allclose(term.loss.detach().numpy(), expected, rtol=2e-5)


@pytest.mark.parametrize('reduction', ['mean', 'sum'])
def test_pads_change_neither_loss_nor_gradient(reduction):
    g = torch.Generator().manual_seed(0)
    real = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    attention, target = torch.rand(3, 2, 5, 5, generator=g,
                                   dtype=torch.float64), torch.rand(3, 5, 5, generator=g, dtype=torch.float64)
    cells = real[:, :, None] & real[:, None, :]
    attention = attention.masked_fill(~cells[:, None], 1e6).requires_grad_()
    loss = guidance_loss(attention, target, real, reduction)
    loss.sum().backward()
    for b in range(3):
        at = [i for i in range(5) if real[b, i]]
        scale = 1. if reduction == 'sum' else 1/(2*len(at)**2)
        expected = sum((attention[b, h, p, q].item() - target[b, p, q].item())**2 for h in range(2) for p in at
                       for q in at) * scale
        assert loss[b].item() == pytest.approx(expected, rel=1e-12)
        for h in range(2):
            for p in range(5):
                for q in range(5):
                    wanted = (2*(attention[b, h, p, q].item() - target[b, p, q].item())*scale if p in at and q in at
                              else 0.)
                    assert attention.grad[b, h, p, q].item() == pytest.approx(wanted, rel=1e-12)


def test_example_without_the_token_has_no_loss_for_that_pattern():
    model, method = make_bert(), AttentionGuidance({'period': [0]}, alpha=1)
    method.check(model, tokenizer, data, epochs=1)
    term, _, plan = loss_and_maps(method, model, batch)
    has = ['.' in t for t in texts]
    assert [x > 0 for x in term.loss.tolist()] == has
    assert plan.shown()['guided'][:, :, 0].all(1).tolist() == has


def test_head_that_follows_its_pattern_has_no_loss():
    P = torch.zeros(1, 4, 4)
    P[..., 0] = 1
    assert guidance_loss(P[:, None].expand(1, 3, 4, 4), P, torch.ones(1, 4).bool()).item() == 0.


def test_plan_and_loss_do_not_depend_on_batch_or_padding():
    model, method = make_bert(), AttentionGuidance({'next': [0], 'prev': [1], 'period': [2]}, alpha=1)
    method.check(model, tokenizer, data, epochs=1)
    term, _, plan = loss_and_maps(method, model, make_batch(pad_to=32))
    for b in range(len(texts)):
        alone, _, lone = loss_and_maps(method, model, make_batch([b]))
        n = len(data['train'][b]['input_ids'])
        for layer in plan.layers:
            assert torch.equal(plan.shown()['pattern_target'][layer][b, :, :n, :n],
                               lone.shown()['pattern_target'][layer][0])
            assert plan.shown()['pattern_target'][layer][b, :,
                                                         n:].sum() == plan.shown()['pattern_target'][layer][
                b, :, :, n:].sum() == 0
        assert torch.equal(plan.shown()['guided'][b], lone.shown()['guided'][0])
        assert term.loss[b].item() == pytest.approx(alone.loss.item(), rel=1e-5)


def test_evidence_contains_targets_of_guided_heads_and_zeros_elsewhere():
    model, method = make_bert(), AttentionGuidance({0: {'next': [1]}, 2: {'period': [0, 3]}}, alpha=1)
    method.check(model, tokenizer, data, epochs=1)
    plan = method.plan(model, batch, Progress())
    assert plan.layers == (0, 2) and plan.drop == {} and plan.inputs == {}
    assert all(callable(x) for x in plan.evidence.values())
    shown = plan.shown()
    assert list(shown['pattern_target']) == [0, 2]
    assert shown['guided'].shape == (len(texts), 2, 4)
    assert shown['guided'].dtype == torch.bool
    for b, row in enumerate(data['train']):
        tokens = tokenizer.convert_ids_to_tokens(row['input_ids'])
        n = len(tokens)
        for i, (layer, by_head) in enumerate({0: {1: 'next'}, 2: {0: 'period', 3: 'period'}}.items()):
            for head in range(4):
                P = reference_pattern(by_head[head], tokens, 'uniform', 'uniform') if head in by_head else None
                got = shown['pattern_target'][layer][b, head].numpy()
                assert bool(shown['guided'][b, i, head]) == (P is not None)
                np.testing.assert_allclose(got[:n, :n], np.zeros((n, n)) if P is None else P, rtol=1e-6)


def test_plan_check_and_choice_of_alpha_change_no_state():
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


def test_only_guided_heads_have_a_gradient():
    model, method = make_bert(num_hidden_layers=1), AttentionGuidance({'first': [2]}, alpha=1)
    term, _, _ = loss_and_maps(method, model, batch)
    term.loss.mean().backward()
    by_head = model.bert.encoder.layer[0].attention.self.query.weight.grad.view(4, 8, 32).abs().sum((1, 2))
    assert by_head[2] > 0 and by_head[[0, 1, 3]].sum() == 0


@pytest.mark.parametrize('schedule', ['linear', 'constant-then-linear'])
@pytest.mark.parametrize('total', [1, 50, 19_999, 20_000, 20_001, 100_000])
@pytest.mark.parametrize('constant', [0, 1, 30, 20_000])
def test_schedule_falls_as_documented(schedule, total, constant):
    for step in sorted({0, 1, total // 2, total - 1, min(constant, total), total}):
        if schedule == 'linear': expected = 7. * (1 - step/total)
        elif step < constant: expected = 7.
        else: expected = 7. * (total - step) / max(1, total - constant)
        assert alpha_at(Progress(step=step, total_steps=total), 7., schedule,
                        constant) == pytest.approx(max(0., expected), abs=1e-12)


def test_weight_follows_schedule_and_constant_steps():
    model = make_bert()
    def weights(**kwargs):
        method = AttentionGuidance.from_args(dict(patterns={'next': [0]}, alpha=8, **kwargs))
        return [loss_and_maps(method, model, batch, Progress(step=s, total_steps=40))[0].weight
                for s in (0, 10, 20, 30, 40)]
    assert weights() == [8, 6, 4, 2, 0]
    assert weights(schedule='constant-then-linear') == [8]*5 # the authors' 20,000 steps
    assert weights(schedule='constant-then-linear', constant_steps=20) == [8, 8, 8, 4, 0]


@pytest.mark.parametrize('fraction', [.1, 1.])
def test_alpha_brings_the_guidance_closest_to_a_fraction_of_the_task_loss(fraction):
    rng = np.random.default_rng(0)
    for task, guidance in np.exp(rng.normal(0, 3, (200, 2))):
        ratios = {a: a*guidance/(fraction*task) for a in (.1, 1, 10, 100)}
        off = {a: max(x, 1/x) for a, x in ratios.items()}
        assert off[comparable_alpha(task, guidance, task_fraction=fraction)] == min(off.values())
    for bad in [(0., 1.), (1., 0.), (math.nan, 1.), (1., math.inf)]:
        with pytest.raises(ValueError, match='pass alpha as a number'): comparable_alpha(*bad)


def make_trainer(tmp_path, model, first_batches, steps=(1, 1), broadcast=lambda x: x, reduce=lambda x, how: x,
                 first=True):
    run = Run(tmp_path/'run') if (tmp_path/'run').exists() else Run.create(tmp_path/'run', {})
    return SimpleNamespace(model=model, run=run, first_batches=first_batches, broadcast=broadcast,
                           accelerator=SimpleNamespace(reduce=reduce),
                           steps_per_epoch=steps[0], args=SimpleNamespace(num_train_epochs=float(steps[1])),
                           is_world_process_zero=lambda: first)


def test_alpha_is_chosen_on_the_first_step_and_stored_in_the_run(tmp_path):
    model, method = make_bert(), AttentionGuidance()
    expect = method.choose_alpha(model, batch)
    plan = method.plan(model, batch, Progress())
    with pytest.raises(ValueError, match='with alpha=None, prepare'): loss_and_maps(method, model, batch)
    method.prepare(make_trainer(tmp_path, model, lambda: [batch]))
    term, maps, _ = loss_and_maps(method, model, batch, Progress(step=25, total_steps=100))
    assert term.weight == expect*.75
    with torch.no_grad():
        task = torch.nn.functional.cross_entropy(model(**model_inputs(batch)).logits, batch['labels']).item()
    assert expect == comparable_alpha(task, method.guidance(maps, plan, batch).mean().item())
    run = Run(tmp_path/'run')
    assert run.state['alpha'] == expect
    run.set_state(alpha=42)
    again = AttentionGuidance()
    def never(): raise AssertionError('a resumed run must not choose again')
    again.prepare(make_trainer(tmp_path, model, never))
    assert loss_and_maps(again, model, batch)[0].weight == 42


def test_alpha_argument_is_used_and_recorded(tmp_path):
    model, method = make_bert(), AttentionGuidance(alpha=3)
    method.prepare(make_trainer(tmp_path, model, lambda: [batch]))
    assert loss_and_maps(method, model, batch)[0].weight == 3 and Run(tmp_path/'run').state['alpha'] == 3


def test_the_ratio_of_the_losses_is_stored_and_a_heavy_guidance_is_announced(tmp_path):
    model, method = make_bert(), AttentionGuidance(alpha=1e4)
    with pytest.warns(UserWarning, match='with alpha=10000 the guidance loss is .* times the task loss'):
        method.prepare(make_trainer(tmp_path, model, lambda: [batch]))
    with torch.no_grad():
        task = torch.nn.functional.cross_entropy(model(**model_inputs(batch)).logits, batch['labels']).item()
    term = loss_and_maps(method, model, batch)[0]
    ratio = 1e4*term.loss.mean().item()/task
    assert Run(tmp_path/'run').state['guidance_ratio'] == pytest.approx(ratio, rel=1e-4) and ratio > 10
    chosen = AttentionGuidance()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        chosen.prepare(make_trainer(tmp_path/'chosen', model, lambda: [batch]))
    assert .1/10**.5 <= Run(tmp_path/'chosen'/'run').state['guidance_ratio'] <= .1*10**.5


def test_the_weight_can_reach_zero_before_the_end():
    model = make_bert()
    method = AttentionGuidance.from_args(dict(patterns={'next': [0]}, alpha=8, until=.5))
    weights = [loss_and_maps(method, model, batch, Progress(step=s, total_steps=40))[0].weight
               for s in (0, 10, 20, 40)]
    assert weights == [8, 4, 0, 0]


def uneven(seed):
    "Return 32 texts of 8 to 28 words"
    rng, words = np.random.default_rng(seed), [w for t in texts for w in t.split()]
    rows = [' '.join(rng.choice(words, rng.integers(8, 29))) for _ in range(32)]
    features = Features(dict(text=Value('string'), label=ClassLabel(names=['x', 'y', 'z'])))
    return DatasetDict(train=Dataset.from_dict(dict(text=rows, label=rng.integers(0, 3, 32).tolist()),
                                               features=features))


def chosen(raw, folder, **settings):
    "Return the trainer of a run in `folder` after the method chose its alpha, and that alpha"
    method = AttentionGuidance()
    job = training.open_job(make_bert(), tokenizer,
                            DatasetDict(train=raw['train'], validation=raw['train'].select(range(4))), method, folder,
                            Settings(**{'epochs': 1, 'probes': 1, 'snapshots': 0, **settings}))
    trainer = training.make_trainer(job, training.Control())
    method.prepare(trainer)
    return trainer, Run(folder).state['alpha']


@pytest.mark.slow
def test_chosen_alpha_does_not_depend_on_micro_batches(tmp_path):
    apart = 0
    for seed in range(4):
        raw = uneven(seed)
        _, whole = chosen(raw, tmp_path/f'whole-{seed}', batch_size=32)
        trainer, cut = chosen(raw, tmp_path/f'cut-{seed}', batch_size=8, gradient_accumulation=4)
        sums = np.zeros(2)
        for row in encode(raw, tokenizer)['train']: # one by one
            padded = Collator(tokenizer)([row])
            with torch.no_grad(): outputs = make_bert()(**model_inputs(padded))
            heads = {layer: dict(next=[0], prev=[1]) for layer in range(3)}
            sums += reference_task_loss('classification', outputs,
                                        padded), reference_loss(eager_attentions(make_bert(), padded), heads, 'mean',
                                                               batch=padded)[0]
        assert whole == cut == comparable_alpha(*(sums/32))
        assert [len(b['input_ids']) for b in trainer.first_batches()] == [8]*4
        apart += AttentionGuidance().choose_alpha(make_bert(), trainer.first_batches()[0]) != whole
    assert apart # the first micro-batch alone would give another alpha


def test_alpha_is_chosen_from_sums_over_processes_and_broadcast_on_resume(tmp_path):
    model, parts, sent = make_bert(), [[make_batch([3, 2])], [make_batch([0]), make_batch([1, 4, 5])]], []
    whole = AttentionGuidance().choose_alpha(model, batch)
    for i, part in enumerate(parts):
        def spy(x, how): sent.append((x, how)); return x
        AttentionGuidance().prepare(make_trainer(tmp_path/str(i), model, lambda: part, reduce=spy))
    assert [how for _, how in sent] == ['sum', 'sum']
    assert [x[2].item() for x, _ in sent] == [2, 4]
    assert sent[0][0].dtype == torch.float64
    for i, part in enumerate(parts):
        method = AttentionGuidance()
        method.prepare(make_trainer(tmp_path/f'both-{i}', model, lambda: part,
                                    reduce=lambda x, how: x + sent[1 - i][0]))
        assert method._alpha == whole
    def never(*args): raise AssertionError('the first process, which knows, would not take part')
    method = AttentionGuidance()
    method.prepare(make_trainer(tmp_path/'other', model, never, broadcast=lambda x: 100, reduce=never))
    assert method._alpha == 100


def test_constant_steps_beyond_the_training_raise_one_warning(tmp_path):
    def warned(steps, first=True, **kwargs):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter('always')
            trainer = make_trainer(tmp_path, make_bert(), lambda: [batch], steps=steps, first=first)
            AttentionGuidance.from_args(dict(alpha=1, **kwargs)).prepare(trainer)
        return [str(o.message) for o in found]
    late = dict(schedule='constant-then-linear')
    assert warned((40, 3),
                **late) == ["AttentionGuidance: with schedule='constant-then-linear' the weight is constant for "
                                     "constant_steps=20000 steps, but this run has only 120, "
                                     "so the weight never falls; set constant_steps below 120, or schedule='linear'"]
    assert len(warned((10_000, 2), **late)) == len(warned((10, 2), constant_steps=20, **late)) == 1
    assert warned((40, 3), first=False, **late) == warned((10_000, 3),
                                                      **late) == warned((10, 2), constant_steps=19,
                                                                      **late) == warned((40, 3)) == []


def test_short_training_warns_at_its_start(tmp_path):
    raw = uneven(0)
    with pytest.warns(UserWarning, match='this run has only 1, so the weight never falls') as found:
        training.train(make_bert(), tokenizer,
                       DatasetDict(train=raw['train'].select(range(8)), validation=raw['train'].select(range(2))),
                       AttentionGuidance(variant=AttentionGuidanceVariant(schedule='constant-then-linear')),
                       run_dir=tmp_path/'run', batch_size=8,
                       epochs=1, snapshots=0, probes=1, progress=False)
    assert sum('never falls' in str(o.message) for o in found) == 1


def test_half_of_the_heads_are_guided_by_default_in_every_layer():
    assert assign_heads(make_bert()) == {layer: dict(next=[0], prev=[1]) for layer in range(3)}
    assert default_heads(12, .25) == dict(next=[0], prev=[1], first=[2])
    assert default_heads(12, 1) == dict(next=[0], prev=[1], first=list(range(2, 12)))
    assert default_heads(10, .7) == dict(next=[0], prev=[1], first=[2, 3, 4, 5, 6])


@pytest.mark.sample(23)
@pytest.mark.parametrize('arguments, says', [
    (dict(head_fraction=.3), 'head_fraction=0.3 of 4 heads is 1.2, but the number of guided heads must be'),
    (dict(head_fraction=.25), 'head_fraction=0.25 of 4 heads is 1, but the number of guided heads must be'),
    (dict(head_fraction=0), 'head_fraction=0 of 4 heads is 0'),
    (dict(patterns={'next': [4]}), r"patterns\['next'\] contains head 4; the model has heads 0 to 3"),
    (dict(patterns={'next': [-1]}), 'contains head -1'),
    (dict(patterns={'next': [0], 'first': [0]}), 'contains head 0, which already has the pattern next'),
    (dict(patterns={'next': [1, 1]}), 'contains head 1, which already has the pattern next'),
    (dict(patterns={'diagonal': [0]}), 'is unknown; available: next, prev, first, delim, period, delim:TOKEN'),
    (dict(patterns={'delim:fun': [0]}), "'fun' is not a delimiter of .*; available: .*'delim:\\[SEP\\]'"),
    (dict(patterns={'delim:[SEP]': [0]}, custom={'delim:[SEP]': torch.eye(32)}), 'is already the name of a pattern in'),
    (dict(patterns={'next': []}), 'must be a list of head indices'),
    (dict(patterns={'next': 'all'}), 'must be a list of head indices'),
    (dict(patterns={0: {'next': [True]}}), 'must be a list of head indices'),
    (dict(patterns={7: {'next': [0]}}), 'layers 0 to 2'),
    (dict(patterns={2: {'next': [0]}, -1: {'next': [1]}}), 'contains a layer more than once'),
    (dict(layers=[3]), 'layers 0 to 2'),
    (dict(patterns={(0, 4): 'next'}), r"patterns\['next'\] contains head 4; the model has heads 0 to 3"),
    (dict(patterns={(5, 0): 'next'}), 'layers 0 to 2'),
    (dict(patterns={0: {-1: 'next'}}), 'contains head -1'),
    (dict(patterns={(0, 0): 'diagonal'}), 'is unknown; available: next, prev'),
    (dict(patterns={(2, 0): 'next', (-1, 1): 'prev'}), 'contains a layer more than once'),
    (dict(patterns={'period': [0]}), 'pattern .period. requires the token ..., which does not occur in the training'),
    (dict(patterns={'band': [0]}, custom=dict(band=torch.eye(4))),
     "custom pattern 'band' has 4 rows, but the longest training example or probe has 13 tokens"),
    (dict(patterns={'mine': [0]}, custom=dict(mine=lambda tokens: [[2.]])), r'must be a matrix of shape \[13, 13\]')])
def test_check_rejects_unsuitable_patterns(arguments, says):
    without = make_data([t.replace('.', '') or 'a' for t in texts[:5]])
    with pytest.raises(ValueError, match=says):
        AttentionGuidance.from_args(arguments).check(make_bert(), tokenizer, without, epochs=1)


@pytest.mark.parametrize('arguments, says', [
    (dict(head_fraction=1.2), 'head_fraction must be between 0 and 1'),
    (dict(alpha=-1), 'alpha must be None or a finite non-negative number'),
    (dict(alpha=math.nan), 'alpha must be None or a finite non-negative number'),
    (dict(alpha=True), 'alpha must be None'),
    (dict(boundary='wrap'), "boundary must be one of 'uniform', 'zero'"),
    (dict(multiple='sum'), "multiple must be one of 'uniform', 'indicator'"),
    (dict(reduction='max'), "reduction must be one of 'mean', 'sum'"),
    (dict(schedule='cosine'), "schedule must be one of 'linear'"),
    (dict(patterns={}), 'patterns must be'), (dict(patterns='next'), 'patterns must be'),
    (dict(patterns={0: []}), 'patterns must be'),
    (dict(patterns={0: {}}), 'patterns must be'),
    (dict(patterns={0: {'next': [0]}}, layers=0), 'omit layers'),
    (dict(patterns={(0, 1, 2): 'next'}), 'patterns must be'),
    (dict(patterns={(0, 0): 'next', 1: {'next': [0]}}), 'patterns must be'),
    (dict(patterns={(0, 0): 'next'}, layers=0), 'omit layers'),
    (dict(patterns={0: {1: torch.ones(3, 4)}}), 'the pattern of layer 0, head 1 must be a matrix'),
    (dict(patterns={(2, 1): torch.ones(3, 3)*2}), 'the pattern of layer 2, head 1 must contain fractions of attention'),
    (dict(after_dropout=1), 'after_dropout must be True or False, got 1'),
    (dict(constant_steps=-1), 'constant_steps must be a non-negative integer'),
    (dict(constant_steps=.5), 'constant_steps must be a non-negative integer'),
    (dict(custom=dict(next=torch.eye(3)), patterns={'next': [0]}), "custom contains 'next', which is already the name"),
    (dict(custom=dict(mine=torch.eye(3))), "custom pattern 'mine' is not assigned to any head"),
    (dict(custom=dict(mine=torch.ones(3, 4)), patterns={'mine': [0]}), 'must be a matrix')])
def test_constructor_rejects_invalid_arguments(arguments, says):
    with pytest.raises(ValueError, match=says): AttentionGuidance.from_args(arguments)


def make_gpt2():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_layer=2, n_head=4, n_embd=32, n_positions=32, num_labels=3,
                        pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return GPT2ForSequenceClassification(config).eval()


@pytest.mark.parametrize('arguments, ok', [
    (dict(patterns={'next': [0]}), False), (dict(patterns={'next': [0]}, boundary='zero'), False),
    (dict(patterns={'prev': [0]}), False),
    (dict(patterns={'delim': [0]}), False), (dict(patterns={'period': [0]}), False), (dict(), False),
    (dict(patterns={'mine': [0]}, custom=dict(mine=lambda tokens: np.ones((len(tokens), len(tokens))) / len(tokens))),
     False),
    (dict(patterns={'prev': [0], 'first': [1, 2]}, boundary='zero'), True), (dict(patterns={'first': [1]}), True),
    (dict(patterns={'mine': [0]}, custom=dict(mine=torch.eye(32))), True)])
def test_patterns_that_a_causal_mask_forbids_are_rejected(arguments, ok):
    method, model = AttentionGuidance.from_args(dict(alpha=1, **arguments)), make_gpt2()
    if ok:
        method.check(model, tokenizer, data, epochs=1)
        assert loss_and_maps(method, model, batch)[0].loss.isfinite().all()
    else:
        name = next(iter(arguments.get('patterns', dict(next=[0]))))
        with pytest.raises(ValueError,
                           match=f"pattern '{name}' .* the attention mask of GPT2ForSequenceClassification excludes in "
                           "layer 0"):
            method.check(model, tokenizer, data, epochs=1)


def test_patterns_outside_a_sliding_window_are_rejected_in_that_layer_only():
    torch.manual_seed(0)
    config = ModernBertConfig(**{k: v for k, v in sizes.items()}, local_attention=4, global_attn_every_n_layers=2,
                              cls_token_id=1, sep_token_id=2,
                              bos_token_id=1, eos_token_id=2, reference_compile=False)
    model = ModernBertForSequenceClassification(config).eval()
    AttentionGuidance({'first': [0]}, alpha=1, layers=[0, 2]).check(model, tokenizer, data, epochs=1)
    AttentionGuidance({'next': [0], 'prev': [1]}, alpha=1,
                      variant=AttentionGuidanceVariant(boundary='zero')).check(model, tokenizer, data, epochs=1)
    with pytest.raises(ValueError, match="pattern 'first' .* excludes in layer 1"):
        AttentionGuidance({'first': [0]}, alpha=1).check(model, tokenizer, data, epochs=1)


def test_the_recorded_arguments_are_plain_values():
    def verbs(tokens): return None
    method = AttentionGuidance({'verbs': [0], 'band': [1]}, custom=dict(verbs=verbs, band=torch.eye(4)))
    assert json.loads(json.dumps(method.args()))['custom'] == dict(verbs='verbs',
                                                                band='matrix [4, 4], checksum '
                                                                + f'{zlib.crc32(np.eye(4).tobytes()):08x}')
    assert json.loads(json.dumps(AttentionGuidance({(1, 0): verbs, (1, 2): 'next'}).args()))['patterns'] == {
        '1': dict(verbs=[0], next=[2])}
    assert AttentionGuidance().args() == dict(patterns=None, head_fraction=.5, alpha=None, layers=None,
                                              boundary='uniform',
                                              multiple='uniform',
                                              reduction='mean', schedule='linear', constant_steps=20_000, custom=None,
                                              after_dropout=False, until=1., task_fraction=.1)


def test_training_on_the_guidance_loss_moves_heads_to_their_patterns():
    model, method = make_bert(), AttentionGuidance({'next': [0], 'first': [1]}, alpha=1)
    optimiser, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(15):
        loss = loss_and_maps(method, model, batch)[0].loss.mean()
        loss.backward(); optimiser.step(); optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < .5*losses[0]


# All tasks of the papers, with small models from scratch

small = dict(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
             intermediate_size=40, max_position_embeddings=32,
             pad_token_id=0, initializer_range=.2)
def make_marian():
    return MarianMTModel(MarianConfig(vocab_size=len(tokenizer), d_model=32, encoder_layers=2, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=2,
        encoder_ffn_dim=40, decoder_ffn_dim=40, max_position_embeddings=32, pad_token_id=0, eos_token_id=2,
        decoder_start_token_id=0, init_std=.2))
def make_t5():
    return T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=40, num_layers=2,
        num_decoder_layers=1, num_heads=4, pad_token_id=0,
        eos_token_id=2, decoder_start_token_id=0, initializer_factor=3.))
makers = dict(
    classification=lambda: BertForSequenceClassification(BertConfig(**small, num_labels=3)),
    albert=lambda: AlbertForSequenceClassification(AlbertConfig(**{**small, 'num_hidden_layers': 3}, embedding_size=16,
                                                                num_labels=3)),
    regression=lambda: BertForSequenceClassification(BertConfig(**small, num_labels=1)),
    token_classification=lambda: BertForTokenClassification(BertConfig(**small, num_labels=5)),
    masked_lm=lambda: BertForMaskedLM(BertConfig(**small)),
    question_answering=lambda: BertForQuestionAnswering(BertConfig(**small)),
    replaced_token_detection=lambda: ElectraForPreTraining(ElectraConfig(**small, embedding_size=16)),
    seq2seq=make_marian, t5=make_t5,
    causal_lm=lambda: GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4,
                                                 n_positions=32, pad_token_id=0, initializer_range=.2)))
tasks_of = dict(albert='classification', t5='seq2seq')
looking_back = {0: {'first': [1, 2]}, 1: {'prev': [0], 'first': [3]}}, 'zero'

# no labels and no segments: check(...) needs neither
bare = data.select_columns(['input_ids', 'attention_mask', 'length'])


def make_model(name):
    torch.manual_seed(0)
    return makers[name]().eval()


def task_batch(name, side='right', seed=0):
    "Return a batch for the model `name` from uneven texts, padded on `side`, with labels of its task"
    task, g = tasks_of.get(name, name), torch.Generator().manual_seed(seed)
    rows = [r['input_ids'] for r in data['train']]
    width = max(map(len, rows)) + 2
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for b, r in enumerate(rows):
        at = slice(0, len(r)) if side == 'right' else slice(width - len(r), width)
        ids[b, at], mask[b, at] = torch.tensor(r), 1
    made_up = dict(input_ids=ids, attention_mask=mask)
    if task == 'classification': return made_up | dict(labels=torch.randint(3, (len(rows),), generator=g))
    if task == 'regression': return made_up | dict(labels=5*torch.rand(len(rows), generator=g))
    if task == 'seq2seq':
        labels = torch.randint(3, len(tokenizer), (len(rows), 6), generator=g)
        for b in range(len(rows)): labels[b, 2 + b % 5:] = -100
        return made_up | dict(labels=labels,
                              decoder_input_ids=torch.cat([torch.zeros(len(rows), 1).long(),
                                                           labels[:, :-1].clamp(min=0)], 1))
    if task == 'question_answering': # the answer is the second token and the third
        at = mask.cumsum(1)*mask
        return made_up | dict(labels=((at == 2) | (at == 3)).long().masked_fill(mask == 0, -100))
    n_labels = dict(token_classification=5, masked_lm=len(tokenizer), replaced_token_detection=2,
                    causal_lm=len(tokenizer))[task]
    labels = torch.randint(n_labels, ids.shape, generator=g)
    counts = (mask.bool() if task == 'replaced_token_detection'
              else mask.bool() & (torch.rand(ids.shape, generator=g) < .5))
    if task == 'masked_lm':
        made_up['input_ids'] = ids.masked_fill(counts & (torch.rand(ids.shape, generator=g) < .5), 3)
    return made_up | dict(labels=labels.masked_fill(~counts, -100))


def eager_attentions(model, batch):
    "Return the attention (of the encoder) from the eager implementation of transformers, in float64"
    model.set_attn_implementation('eager')
    taken = {k: batch[k] for k in ('input_ids', 'attention_mask', 'decoder_input_ids') if k in batch}
    with torch.no_grad(): out = model(**taken, output_attentions=True)
    return [a.double() for a in (out.encoder_attentions if 'encoder_attentions' in out else out.attentions)]


@pytest.mark.sample(11)
@pytest.mark.parametrize('side', ['right', 'left'])
@pytest.mark.parametrize('reduction', ['mean', 'sum'])
@pytest.mark.parametrize('name', list(makers))
def test_guidance_is_the_same_equation_for_every_task_and_kind_of_model(name, reduction, side):
    model, padded = make_model(name), task_batch(name, side)
    heads = {0: {'next': [1], 'period': [0, 3]}, 1: {'prev': [0], 'delim': [2], 'first': [1, 3]}}
    boundary = 'uniform'
    if name == 'causal_lm': heads, boundary = looking_back # patterns that a causal head can follow
    method = AttentionGuidance(heads, alpha=1, variant=AttentionGuidanceVariant(reduction=reduction, boundary=boundary))
    method.check(model, tokenizer, bare, epochs=1)
    plan = method.plan(model, padded, Progress())
    with observe(model, layers=list(plan.layers)) as maps: outputs = model(**model_inputs(padded))
    term = method.terms(dict(main=outputs), maps, plan, padded, Progress())['attention_guidance']
    expected = reference_loss(eager_attentions(model, padded), heads, reduction, boundary, batch=padded)
    np.testing.assert_allclose(term.loss.detach().numpy(), expected, rtol=5e-5)


def test_all_supported_tasks_are_tested():
    of_texts = set(AttentionGuidance.supported_tasks) - {'image_classification', # test_patches
                                                 'multi_label_classification'} # test_multi_label
    assert {tasks_of.get(name, name) for name in makers} == of_texts


def reference_task_loss(name, outputs, batch):
    "Return the mean over examples of their losses, computed label by label"
    if name == 'question_answering':
        real, ends = batch['attention_mask'].bool(), ((outputs.start_logits, 1), (outputs.end_logits, 2))
        return np.mean([-float(z[b, real[b]].double().log_softmax(0)[at]) for z, at in ends for b in range(len(real))])
    logits, labels, losses = outputs.logits.detach().double(), batch['labels'].tolist(), []
    for b in range(len(logits)):
        if name == 'regression': losses.append((float(logits[b, 0]) - labels[b])**2); continue
        rows, wanted = (([logits[b]], [labels[b]]) if logits[b].dim() == 1 and name != 'replaced_token_detection'
                        else (logits[b], labels[b]))
        here = []
        for z, y in zip(rows, wanted):
            if y == -100: continue
            if name == 'replaced_token_detection':
                here.append(math.log(1 + math.exp(-float(z) if y == 1 else float(z))))
            else: here.append(math.log(sum(math.exp(float(v)) for v in z)) - float(z[y]))
        losses.append(sum(here) / len(here) if here else 0.)
    return sum(losses) / len(losses)


@pytest.mark.parametrize('name', list(makers))
def test_alpha_compares_guidance_and_task_loss_on_the_first_batch(name, tmp_path, monkeypatch):
    model, padded, seen = make_model(name), task_batch(name), []
    def spy(task_loss, guidance, **more):
        seen.append((task_loss, guidance))
        return comparable_alpha(task_loss, guidance, **more)
    monkeypatch.setattr(attention_guidance, 'comparable_alpha', spy)
    zero = AttentionGuidance(looking_back[0], variant=AttentionGuidanceVariant(boundary='zero'))
    method = zero if name == 'causal_lm' else AttentionGuidance()
    method.check(model, tokenizer, bare, epochs=1)
    method.prepare(make_trainer(tmp_path, model, lambda: [padded]))
    with torch.no_grad(): outputs = model(**model_inputs(padded))
    heads = {layer: dict(next=[0], prev=[1]) for layer in range(3 if name == 'albert' else 2)}
    boundary = 'uniform'
    if name == 'causal_lm': heads, boundary = looking_back
    guidance = reference_loss(eager_attentions(model, padded), heads, 'mean', boundary, batch=padded)
    assert seen[0][0] == pytest.approx(reference_task_loss(tasks_of.get(name, name), outputs, padded), rel=1e-4)
    assert seen[0][1] == pytest.approx(sum(guidance) / len(guidance), rel=1e-4)
    assert Run(tmp_path/'run').state['alpha'] == comparable_alpha(*seen[0]) == method._alpha


@pytest.mark.parametrize('name', ['seq2seq', 't5'])
def test_in_a_translation_model_a_next_and_a_prev_head_of_each_encoder_layer_are_guided(name):
    model, method, padded = make_model(name), AttentionGuidance(alpha=1), task_batch(name)
    assert method.heads(model) == {0: dict(next=[0], prev=[1]), 1: dict(next=[0], prev=[1])}
    method.check(model, tokenizer, bare, epochs=1)
    plan = method.plan(model, padded, Progress())
    with observe(model, layers=list(plan.layers)) as maps: model(**model_inputs(padded))
    method.guidance(maps, plan, padded).mean().backward()
    encoder = set(model.get_encoder().parameters()) # the embedding is shared
    assert all(p.grad is None or not p.grad.any() for p in model.get_decoder().parameters() if p not in encoder)
    assert any(p.grad is not None and p.grad.any() for p in model.get_encoder().parameters())
    with pytest.raises(ValueError, match='head_fraction=0.25 does not apply to an encoder-decoder'):
        AttentionGuidance(head_fraction=.25).heads(model)


def test_patterns_use_the_masked_tokens():
    model, method = make_model('masked_lm'), AttentionGuidance({'period': [0]}, alpha=1)
    method.check(model, tokenizer, bare, epochs=1)
    hidden, dot = make_batch([2]), tokenizer.convert_tokens_to_ids('.')
    at = (hidden['input_ids'][0] == dot).nonzero()[0, 0].item()
    labels = torch.full_like(hidden['input_ids'], -100); labels[0, at] = dot
    hidden = dict(input_ids=hidden['input_ids'].masked_fill(labels != -100, tokenizer.unk_token_id),
                  attention_mask=hidden['attention_mask'], labels=labels)
    hidden['input_ids'][0, 1] = dot # replaced by a full stop
    P = method.plan(model, hidden, Progress()).shown()['pattern_target'][0][0, 0]
    expected = reference_pattern('period', tokenizer.convert_ids_to_tokens(hidden['input_ids'][0].tolist()), 'uniform',
                                 'uniform')
    np.testing.assert_allclose(P.numpy(), expected, rtol=1e-6)
    assert P[0, 1] > 0 and P[0, at] == 0


@pytest.mark.parametrize('reduction', ['mean', 'sum'])
@pytest.mark.parametrize('name', ['albert', 'seq2seq', 'masked_lm'])
def test_gradient_of_attention_is_twice_the_difference_in_guided_heads(
    name, reduction):
    model, padded = make_model(name).double(), task_batch(name)
    heads = {0: {'next': [1], 'period': [0, 3]}, 1: {'prev': [2]}}
    method = AttentionGuidance(heads, alpha=1, variant=AttentionGuidanceVariant(reduction=reduction))
    method.check(model, tokenizer, bare, epochs=1)
    plan = method.plan(model, padded, Progress())
    with torch.no_grad(), observe(model, layers=[0, 1]) as observed: model(**model_inputs(padded))
    class Copied(dict): allowed, seen = observed.allowed, observed.seen
    maps = Copied({l: observed[l].clone().requires_grad_() for l in (0, 1)})
    method.guidance(maps, plan, padded).sum().backward()
    for layer, by_name in heads.items():
        expected = np.zeros(maps[layer].shape)
        for b in range(len(padded['input_ids'])):
            n = int(padded['attention_mask'][b].sum())
            for pattern, numbers in by_name.items():
                P = reference_pattern(pattern, tokenizer.convert_ids_to_tokens(padded['input_ids'][b, :n].tolist()),
                                      'uniform', 'uniform')
                if P is None: continue
                for h in numbers:
                    A = maps[layer].detach()[b, h, :n, :n].numpy()
                    expected[b, h, :n, :n] = 2*(A - P) / (1 if reduction == 'sum' else len(numbers)*n*n)
        np.testing.assert_allclose(maps[layer].grad.numpy(), expected, rtol=1e-5, atol=1e-7) # 1/n is written in float32


def test_each_use_of_alberts_shared_layer_is_guided_by_its_index():
    model = make_model('albert')
    first, last = (AttentionGuidance({l: {'next': [0]}}, alpha=1) for l in (0, 2))
    padded = task_batch('albert')
    by_layer = [loss_and_maps(m, model, padded)[0].loss
                for m in (first, last, AttentionGuidance({'next': [0]}, layers=[0, 2], alpha=1))]
    assert not torch.allclose(by_layer[0], by_layer[1]) and torch.allclose(by_layer[0] + by_layer[1], by_layer[2])


def test_causal_model_with_left_padding_equals_the_equations():
    model, method = make_gpt2(), AttentionGuidance({'prev': [0], 'first': [1, 2]}, alpha=1,
                                                   variant=AttentionGuidanceVariant(boundary='zero'))
    method.check(model, tokenizer, data, epochs=1)
    padded = task_batch('classification', 'left')
    term, _, _ = loss_and_maps(method, model, padded)
    heads = {l: {'prev': [0], 'first': [1, 2]} for l in range(2)}
    np.testing.assert_allclose(term.loss.detach().numpy(),
                               reference_loss(eager_attentions(model, padded), heads, 'mean', 'zero', batch=padded),
                               rtol=2e-5)


def test_two_methods_cannot_both_guide_one_head():
    class Mine(FineTuning):
        def prescribes(self, model): return {1: [2]}
    model = make_bert()
    (AttentionGuidance({(1, 1): 'next'}, alpha=1) + Mine()).check(model, tokenizer, data, epochs=1)
    with pytest.raises(ValueError, match='AttentionGuidance and Mine both set a target for the attention of head 2'):
        (AttentionGuidance({(1, 2): 'next'}, alpha=1) + Mine()).check(model, tokenizer, data, epochs=1)


# Positions that another method drops in the same step, and attention dropout

def reference_dropped_loss(maps, drop, padded, heads, reduction):
    """Compute eq. 2 and 3 over the real cells that `drop` leaves, with the mean over n*n cells; a row that would lose
    all its keys keeps them"""
    losses = []
    for b in range(len(padded['input_ids'])):
        n, total = int(padded['attention_mask'][b].sum()), 0.
        tokens = tokenizer.convert_ids_to_tokens(padded['input_ids'][b, :n].tolist())
        for layer, by_pattern in heads.items():
            for name, numbers in by_pattern.items():
                P = reference_pattern(name, tokens, 'uniform', 'uniform')
                if P is None: continue
                found = 0.
                for h in numbers:
                    for p in range(n):
                        gone = [layer in drop and bool(drop[layer][b, h, p, q]) for q in range(n)]
                        if all(gone): gone = [False]*n
                        found += sum((float(maps[layer][b, h, p, q]) - P[p, q])**2 for q in range(n) if not gone[q])
                total += found if reduction == 'sum' else found / (len(numbers)*n*n)
        losses.append(total)
    return losses


def step(method, model, padded, progress=Progress(seed=3)):
    "Run a step as the trainer does and return (term, maps, plan)"
    plan = method.plan(model, padded, progress)
    outputs, maps = _run_passes(model, model, padded, plan)
    return method.terms(outputs, maps, plan, padded, progress)['attention_guidance'], maps, plan


@pytest.mark.parametrize('reduction', ['mean', 'sum'])
def test_positions_dropped_by_ad_drop_are_left_out_of_the_sum(reduction):
    heads = {0: {'next': [1], 'first': [0, 3]}, 2: {'prev': [2], 'period': [0]}}
    model, padded = make_bert().train(), make_batch(pad_to=16)
    both = AttentionGuidance(heads, alpha=1,
                             variant=AttentionGuidanceVariant(reduction=reduction)) + ADDrop(p=.9, q=.8, layers=[1, 2],
                                                                           cross_tuning=False)
    both.check(model, tokenizer, data, epochs=1)
    term, maps, plan = step(both, model, padded)
    expected = reference_dropped_loss({l: maps[l].detach().double() for l in (0, 2)}, plan.drop, padded, heads,
                                      reduction)
    np.testing.assert_allclose(term.loss.detach().numpy(), expected, rtol=2e-5)
    whole = reference_dropped_loss({l: maps[l].detach().double() for l in (0, 2)}, {}, padded, heads, reduction)
    assert max(abs(a - b)/a for a, b in zip(expected, whole)) > .1
    maps[2].retain_grad()
    term.loss.sum().backward()
    dropped = maps.allowed(2) & ~maps.seen(2)
    assert dropped.any() and (maps[2].grad[dropped] == 0).all() and maps[2].grad[:, 2].any()


def test_protected_rows_are_guided_as_without_drops():
    model, padded, method = make_bert(), make_batch(), AttentionGuidance({1: {'next': [0]}}, alpha=1)
    plan = method.plan(model, padded, Progress())
    with torch.no_grad(), observe(model, layers=[1]) as maps: model(**model_inputs(padded))
    plain = method.guidance(maps, plan, padded)
    with torch.no_grad(), observe(model, layers=[1],
                                  drop={1: torch.ones(len(texts), 4, *maps[1].shape[2:], dtype=torch.bool)}) as maps:
        model(**model_inputs(padded))
    assert torch.equal(method.guidance(maps, plan, padded), plain)


@pytest.mark.parametrize('reduction', ['mean', 'sum'])
def test_without_drops_the_loss_is_bitwise_the_mean_over_all_entries(reduction):
    for model, heads in ((make_bert(), {0: {'next': [1], 'period': [0, 2]}}),
                         (make_gpt2(), {1: {'next': [0], 'first': [1, 2]}})):
        method = AttentionGuidance(heads, alpha=1, variant=AttentionGuidanceVariant(reduction=reduction))
        # which rejects next in a causal model
        if not isinstance(model, GPT2ForSequenceClassification): method.check(model, tokenizer, data, epochs=1)
        plan, total = method.plan(model, batch, Progress()), 0.
        with torch.no_grad(), observe(model, layers=list(plan.layers)) as maps: model(**model_inputs(batch))
        real, parts = batch['attention_mask'].bool(), []
        for layer, by_pattern in heads.items():
            for name, numbers in by_pattern.items():
                target, guided = plan.targets['attention_guidance'][1][name]
                cells = (real[:, :, None] & real[:, None, :])[:, None]
                x = torch.where(cells, maps[layer][:, numbers] - target[:, None], 0.).square().sum((1, 2, 3))
                parts.append(torch.where(guided, x if reduction == 'sum' else x / (len(numbers) * real.sum(1).square()),
                                         0.))
        assert torch.equal(method.guidance(maps, plan, batch), torch.stack(parts).sum(0))


@pytest.mark.parametrize('after', [False, True])
def test_after_dropout_chooses_the_maps_in_training(after):
    model = make_bert(attention_probs_dropout_prob=.3)
    method = AttentionGuidance({0: {'next': [1]}, 2: {'first': [0, 3]}}, alpha=1,
                               variant=AttentionGuidanceVariant(after_dropout=after))
    method.check(model, tokenizer, data, epochs=1)
    with undisturbed(model, training=True, seed=5): term, maps, _ = step(method, model, batch)
    other = {}
    for late in (False, True):
        with undisturbed(model, training=True, seed=5), observe(model, layers=[0, 2], after_dropout=late) as found:
            model(**model_inputs(batch))
        other[late] = {l: found[l].detach().double() for l in (0, 2)}
    for l in (0, 2):
        assert torch.equal(maps[l].double(), other[after][l]) and not torch.equal(*(other[x][l] for x in (False, True)))
    expected = reference_dropped_loss(other[after], {}, batch, {0: {'next': [1]}, 2: {'first': [0, 3]}}, 'mean')
    np.testing.assert_allclose(term.loss.detach().numpy(), expected, rtol=2e-5)
