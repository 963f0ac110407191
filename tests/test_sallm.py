"""SalLM: targets, loss and explanations against loops in float64, the teacher's checks, and a run that is resumed"""
import functools
import json
import math
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

import salviz.methods.sallm as room
from helpers import word_tokenizer
from salviz.attention import observe
from salviz.data import Collator, encode, encode_texts, model_inputs
from salviz.methods.base import FineTuning, Progress
from salviz.methods.sallm import Explanations, SalLM, agreement_loss, explain, pooled_attention, saliency_target
from salviz.runs import Run
from salviz.training import train

texts = ['a film . about nothing', 'fun', 'dull , long and dull .', 'a b c d e f g h i j k l m n', 'no stop here', '. . .',
         'one two', 'three words here']


tokenizer = word_tokenizer(texts, longest=24)


def make_bert(seed=0, num_labels=3, vocab_size=len(tokenizer)):
    torch.manual_seed(seed)
    config = BertConfig(vocab_size=vocab_size, num_hidden_layers=3, num_attention_heads=4, hidden_size=32, intermediate_size=40,
                        max_position_embeddings=24, num_labels=num_labels, pad_token_id=0, initializer_range=.2)
    return BertForSequenceClassification(config).eval()


features = Features(dict(text=Value('string'), label=ClassLabel(names=['x', 'y', 'z'])))
rows = Dataset.from_dict(dict(text=texts, label=[i % 3 for i in range(len(texts))]), features=features)
raw = DatasetDict(train=rows, validation=rows.select(range(4)))
data = encode(raw, tokenizer)
probes = encode_texts(['fun and long', 'a dull film . fun .'], tokenizer, first_id=100)
collate = Collator(tokenizer)
def make_batch(at=range(len(texts)), pad_to=None): return Collator(tokenizer, pad_to)([data['train'][i] for i in at])
batch = make_batch()


def reference_target(saliency, counts, top_share, binarised):
    "One row, in float64, from the definition: the max(1, ceil(k n)) most positive tokens, or positive saliency in proportion"
    at = [i for i in range(len(saliency)) if counts[i]]
    t = [0.] * len(saliency)
    if binarised and at:
        exact = round(top_share * len(at), 9) # as one would do it by hand: .07 of 100 is 7
        for i in sorted(at, key=lambda i: (-float(saliency[i]), i))[:max(1, math.ceil(exact))]: t[i] = 1.
    if not binarised:
        for i in at: t[i] = max(0., float(saliency[i]))
    total = sum(t)
    return [x/total for x in t] if total > 0 else t


def reference_loss(attention, target, counts, loss):
    "One row, in float64"
    at = [i for i in range(len(attention)) if counts[i]]
    sum_a, sum_t = sum(float(attention[i]) for i in at), sum(float(target[i]) for i in at)
    if sum_t == 0: return 0.
    a, t = [float(attention[i])/sum_a for i in at], [float(target[i])/sum_t for i in at]
    if loss == 'released':
        a, t = ([math.exp(x)/sum(math.exp(y) for y in p) for x in p] for p in (a, t))
    if loss == 'mse': return sum((x - y)**2 for x, y in zip(a, t)) / len(at)
    return sum(y * math.log(y/x) for x, y in zip(a, t) if y > 0)


def random_rows(count=200, width=17):
    rng = np.random.default_rng(1)
    saliency = rng.normal(0, 1, (count, width)).astype(np.float32)
    saliency[::3] = saliency[::3].round() # ties
    counts = rng.random((count, width)) < rng.random((count, 1))
    counts[0], counts[1] = False, True
    saliency[2] = -abs(saliency[2])
    return torch.tensor(saliency), torch.tensor(counts), torch.tensor(rng.dirichlet(np.ones(width), count))


@pytest.mark.parametrize('binarised', [True, False])
@pytest.mark.parametrize('top_share', [.01, .1, .3, .5, 1.])
def test_the_target_is_the_definition_row_by_row(top_share, binarised):
    saliency, counts, _ = random_rows()
    got = saliency_target(saliency, counts, top_share, binarised)
    for b in range(len(saliency)):
        np.testing.assert_allclose(got[b].numpy(), reference_target(saliency[b], counts[b], top_share, binarised), rtol=1e-6)


def test_shares_that_are_whole_numbers_of_tokens_are_not_rounded_up():
    n = torch.arange(1, 201)
    counts, saliency = torch.arange(200) < n[:, None], torch.arange(200.).expand(200, -1)
    for percent in (1, 7, 10, 14, 28, 29, 30, 55, 56, 57, 58, 70, 99, 100): # products that binary fractions miss are among them
        marked = (saliency_target(saliency, counts, percent/100) > 0).sum(-1)
        assert marked.tolist() == [max(1, -(-m*percent // 100)) for m in n.tolist()]


def test_targets_agree_with_the_golden_vectors():
    cases = json.loads((Path(__file__).parent/'golden.json').read_text())['saliency_target']
    assert cases
    for case in cases:
        saliency, counts = torch.tensor(case['saliency'], dtype=torch.float64)[None], torch.tensor(case['allowed'])[None]
        got = saliency_target(saliency, counts, case['top_share'], case['binarised'])
        np.testing.assert_allclose(got[0].numpy(), case['expected'], rtol=1e-6, atol=1e-9)


def test_a_target_does_not_depend_on_padding_on_either_side():
    saliency, counts, _ = random_rows()
    for binarised in (True, False):
        alone = saliency_target(saliency, counts, .3, binarised)
        wide = saliency_target(torch.nn.functional.pad(saliency, (5, 9), value=99.), torch.nn.functional.pad(counts, (5, 9)), .3, binarised)
        np.testing.assert_allclose(wide[:, 5:-9].numpy(), alone.numpy(), rtol=1e-6)
        assert wide[:, :5].sum() == wide[:, -9:].sum() == 0


@pytest.mark.parametrize('loss', ['kl', 'mse', 'released'])
def test_the_loss_is_the_definition_row_by_row_and_ignores_what_does_not_count(loss):
    saliency, counts, attention = random_rows()
    for binarised in (True, False):
        target = saliency_target(saliency, counts, .2, binarised)
        got = agreement_loss(attention, target, counts, loss)
        expected = [reference_loss(attention[b], target[b], counts[b], loss) for b in range(len(attention))]
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-9)
        spoilt = torch.where(counts, attention, math.nan)
        assert torch.equal(agreement_loss(spoilt, target, counts, loss), got)


@pytest.mark.parametrize('loss', ['kl', 'mse', 'released'])
def test_rows_without_a_target_have_neither_loss_nor_gradient(loss):
    attention = torch.full((3, 4), .25, requires_grad=True)
    counts = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]]).bool()
    got = agreement_loss(attention, torch.tensor([[0.]*4, [0.]*4, [1., 0, 0, 0]]), counts, loss)
    got.sum().backward()
    assert got[:2].tolist() == [0., 0.] and got[2] > 0
    assert attention.grad.isfinite().all() and attention.grad[:2].abs().sum() == 0 and attention.grad[2, 2:].abs().sum() == 0


def test_attention_that_underflowed_to_zero_gives_a_finite_loss():
    attention = torch.tensor([[0., 1.], [0., 0.]], requires_grad=True)
    got = agreement_loss(attention, torch.tensor([[1., 0.], [1., 0.]]), torch.ones(2, 2).bool())
    got.sum().backward()
    assert got.isfinite().all() and got.min() > 10 and attention.grad.isfinite().all()


def test_half_precision_attention_is_compared_in_single_precision():
    got = agreement_loss(torch.tensor([[.3, .7]], dtype=torch.bfloat16), torch.tensor([[1., 0.]]), torch.ones(1, 2).bool())
    assert got.dtype == torch.float32


def prepared(method, teacher):
    method.explanations = Explanations(**explain(teacher, data['train'], collate, method.steps))
    return method


def one_step(method, model, batch):
    plan = method.plan(model, batch, Progress())
    with observe(model, layers=list(plan.layers)) as maps: outputs = model(**model_inputs(batch))
    return method.terms(dict(main=outputs), maps, plan, batch, Progress())['saliency_agreement'], plan


def reference_saliency(teacher, row, label, steps):
    "Integrated gradients of one example on the word embeddings, midpoint by midpoint, alone and without padding"
    table = teacher.get_input_embeddings().weight.detach()
    ids = torch.tensor(row['input_ids'])
    x, base = table[ids], table[teacher.config.pad_token_id].expand(len(ids), -1)
    total = torch.zeros_like(x)
    for a in [(k + .5)/steps for k in range(steps)]:
        point = (base + a*(x - base)).clone().requires_grad_()
        total += torch.autograd.grad(teacher(inputs_embeds=point[None]).logits[0, label], point)[0]
    return ((x - base) * total / steps).sum(-1)


@functools.cache
def known_saliency(seed, steps):
    teacher = make_bert(seed)
    return [reference_saliency(teacher, row, row['labels'], steps) for row in data['train']]


@pytest.mark.parametrize('arguments', [dict(), dict(top_share=.5, weight=2.), dict(binarised=False),
                                       dict(layers=(0, -1)), dict(loss='mse'), dict(loss='released')])
def test_the_term_is_the_definition_on_the_models_own_eager_attention(arguments):
    teacher, model = make_bert(1), make_bert(0)
    method = prepared(SalLM(teacher, steps=4, **arguments), teacher)
    term, plan = one_step(method, model, make_batch(pad_to=24))
    model.set_attn_implementation('eager')
    layers = sorted(l % 3 for l in method.layers)
    for b, row in enumerate(data['train']):
        saliency = known_saliency(1, 4)[b]
        n, special = len(row['input_ids']), row['special_tokens_mask']
        np.testing.assert_allclose(plan.evidence['saliency'][b, :n].numpy(), saliency.numpy(), atol=1e-5)
        counts = [not s for s in special]
        target = reference_target(saliency, counts, method.top_share, method.binarised)
        np.testing.assert_allclose(plan.evidence['saliency_target'][b, :n].numpy(), target, atol=1e-5)
        with torch.no_grad(): attentions = model(torch.tensor([row['input_ids']]), output_attentions=True).attentions
        losses = []
        for layer in layers:
            heads = [[float(attentions[layer][0, h, 0, i]) for i in range(n)] for h in range(4)]
            losses.append(reference_loss([sum(h[i] for h in heads)/4 for i in range(n)], target, counts, method.loss))
        assert term.loss[b].item() == pytest.approx(sum(losses)/len(losses), rel=1e-3, abs=1e-6)
    assert term.weight == method.weight and plan.layers == tuple(layers)


def test_plan_and_loss_of_an_example_do_not_depend_on_its_batch_or_padding():
    teacher, model = make_bert(1), make_bert(0)
    method = prepared(SalLM(teacher, steps=2), teacher)
    term, plan = one_step(method, model, make_batch(pad_to=24))
    for b, row in enumerate(data['train']):
        alone, lone = one_step(method, model, make_batch([b]))
        n = len(row['input_ids'])
        for name in ('saliency', 'saliency_target'):
            assert torch.equal(plan.evidence[name][b, :n], lone.evidence[name][0])
            assert plan.evidence[name][b, n:].abs().sum() == 0
        assert term.loss[b].item() == pytest.approx(alone.loss.item(), rel=1e-5)


def test_plan_and_explaining_leave_no_trace():
    teacher, model = make_bert(1), make_bert(0)
    for m in (teacher, model): m.train(); m.bert.encoder.layer[1].eval()
    modes = [[m.training for m in net.modules()] for net in (teacher, model)]
    states = lambda: (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate())
    before = states()
    method = prepared(SalLM(teacher, steps=2), teacher)
    method.check(model, tokenizer, data, epochs=1)
    method.plan(model, batch, Progress()).shown()
    assert states() == before
    assert [[m.training for m in net.modules()] for net in (teacher, model)] == modes
    assert all(p.grad is None and p.requires_grad for net in (teacher, model) for p in net.parameters())


def test_an_example_that_was_never_explained_shows_nan_and_has_no_loss():
    teacher, model = make_bert(1), make_bert(0)
    method = SalLM(teacher, steps=2)
    method.explanations = Explanations(**explain(teacher, data['train'].select(range(4)), collate, 2))
    term, plan = one_step(method, model, batch)
    real = batch['attention_mask'].bool()
    assert plan.evidence['saliency'][4:][real[4:]].isnan().all() and not plan.evidence['saliency'][:4].isnan().any()
    assert plan.evidence['saliency_target'][4:].sum() == 0 and term.loss[4:].tolist() == [0.]*4
    assert [x > 0 for x in term.loss[:4].tolist()] == [len(t.split()) > 1 for t in texts[:4]] # a single word has all the attention that counts


def test_explanations_are_found_by_id_in_any_order_on_either_side_of_padding():
    rng = np.random.default_rng(0)
    length = rng.integers(1, 9, 50)
    ids = rng.permutation(1000)[:50]
    values = [rng.normal(size=n).astype(np.float32) for n in length]
    found = Explanations(ids, length, np.concatenate(values))
    for side in ('left', 'right'):
        picked = rng.integers(0, 50, 20)
        mask = torch.zeros(20, 11, dtype=torch.long)
        for b, i in enumerate(picked): mask[b, slice(0, length[i]) if side == 'right' else slice(11 - length[i], 11)] = 1
        got = found.lookup(dict(example_id=torch.tensor(ids[picked]), attention_mask=mask))
        for b, i in enumerate(picked):
            assert got[b][mask[b].bool()].tolist() == values[i].tolist() and got[b][~mask[b].bool()].abs().sum() == 0


def test_the_pooled_row_of_a_decoder_is_its_last_real_token():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_layer=2, n_head=4, n_embd=32, n_positions=24, num_labels=3,
                        pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model = GPT2ForSequenceClassification(config).eval()
    method = prepared(SalLM(model, steps=2), model)
    method.check(model, tokenizer, data, epochs=1)
    term, plan = one_step(method, model, batch)
    with observe(model) as maps: model(**model_inputs(batch))
    for b, row in enumerate(data['train']):
        n, special = len(row['input_ids']), row['special_tokens_mask']
        a = maps[1][b, :, n - 1].mean(0)[:n].tolist()
        assert term.loss[b].item() == pytest.approx(reference_loss(a, plan.evidence['saliency_target'][b], [not s for s in special], 'kl'), rel=1e-4)
    assert torch.equal(pooled_attention(maps[1], plan.targets['sallm'][2])[0], maps[1][0, :, len(data['train'][0]['input_ids']) - 1].mean(0))


@pytest.mark.parametrize('arguments, says', [
    (dict(weight=-1), 'weight must be a finite number'), (dict(weight=math.inf), 'weight must be a finite number'),
    (dict(top_share=0), 'top_share must be above 0'), (dict(top_share=1.1), 'top_share must be above 0'),
    (dict(top_share=math.nan), 'top_share must be above 0'),
    (dict(steps=0), 'steps must be a whole number'), (dict(steps=2.5), 'steps must be a whole number'),
    (dict(steps=True), 'steps must be a whole number'),
    (dict(binarised=1), 'binarised must be True or False'), (dict(loss='cosine'), "loss must be one of 'kl', 'mse', 'released'")])
def test_arguments_out_of_range_are_refused_where_the_method_is_made(arguments, says):
    with pytest.raises(ValueError, match=f'SalLM: {says}'): SalLM(**arguments)


def test_teachers_that_speak_of_other_tokens_or_classes_and_missing_layers_are_refused(tmp_path):
    model = make_bert()
    with pytest.raises(ValueError, match='has 2 classes, the model 3'): SalLM(make_bert(num_labels=2)).check(model, tokenizer, data, 1)
    with pytest.raises(ValueError, match='has another vocabulary'): SalLM(make_bert(vocab_size=99)).check(model, tokenizer, data, 1)
    with pytest.raises(ValueError, match='layers 0 to 2'): SalLM(make_bert(), layers=(3,)).check(model, tokenizer, data, 1)
    with pytest.raises(FileNotFoundError): SalLM(tmp_path/'nowhere').check(model, tokenizer, data, 1)


settings = dict(probes=2, snapshots=2, epochs=1, batch_size=4, learning_rate=1e-3, seed=0, progress=False)


@pytest.fixture(scope='module')
def teacher_run(tmp_path_factory):
    return train(make_bert(), tokenizer, raw, FineTuning(), run_dir=tmp_path_factory.mktemp('runs')/'plain', **settings)


def test_a_student_of_a_run_is_trained_and_its_snapshots_show_what_it_was_asked(teacher_run, tmp_path):
    run = train(make_bert(), tokenizer, raw, SalLM(teacher_run, steps=2), run_dir=tmp_path/'student', **settings)
    assert run.state['explanation_seconds'] > 0 and run.config['method']['args']['teacher'] == str(teacher_run.path)
    assert set(run.load_arrays('explanations')['example_id']) == {*range(8), *(s.info['example_id'] for s in run.snapshots(step=0))}
    assert all(r['saliency_agreement'] > 0 and r['saliency_agreement_weight'] == 1 for r in run.train_rows)
    s = run.snapshot(step=0)
    assert s.arrays['saliency_target'].sum() == pytest.approx(1, abs=1e-3) and len(s.arrays['method_saliency']) == len(s.tokens)
    assert not (run.path/'teacher').exists()


def test_a_run_as_teacher_with_another_tokenizer_is_refused_before_the_folder_exists(teacher_run, tmp_path):
    other = word_tokenizer(texts, 'more', longest=24)
    with pytest.raises(ValueError, match='has another vocabulary'):
        train(make_bert(vocab_size=len(other)), other, raw, SalLM(teacher_run), run_dir=tmp_path/'student', **settings)
    assert not (tmp_path/'student').exists()


def test_without_a_teacher_one_is_trained_as_plain_fine_tuning_would_be(teacher_run, tmp_path):
    run = train(make_bert(), tokenizer, raw, SalLM(steps=2), run_dir=tmp_path/'student', **settings)
    teacher = Run(run.path/'teacher')
    assert teacher.finished and teacher.config['method']['name'] == 'FineTuning'
    assert [r['loss'] for r in teacher.train_rows] == [r['loss'] for r in teacher_run.train_rows]
    given = train(make_bert(), tokenizer, raw, SalLM(str(teacher_run.path), steps=2), run_dir=tmp_path/'given', **settings)
    assert [r['loss'] for r in run.train_rows] == [r['loss'] for r in given.train_rows]


def test_probes_without_labels_are_explained_for_the_class_that_the_teacher_predicts(teacher_run, tmp_path):
    own = {**settings, 'probes': ['fun and long', 'a dull film']}
    run = train(make_bert(), tokenizer, raw, SalLM(teacher_run, steps=2), run_dir=tmp_path/'student', **own)
    teacher, _ = SalLM(teacher_run)._load_teacher()
    for s in run.snapshots(step=0):
        row = encode_texts([s.texts[0]], tokenizer)[0]
        with torch.no_grad(): label = teacher(torch.tensor([row['input_ids']])).logits[0].argmax().item()
        np.testing.assert_allclose(s.arrays['method_saliency'], reference_saliency(teacher, row, label, 2).numpy(), atol=2e-3)


def make_trainer(run, **kwargs):
    return SimpleNamespace(model=make_bert(), run=run, tokenizer=tokenizer, data=raw, encoded=data, probe_set=probes, collate=collate,
                           args=SimpleNamespace(train_batch_size=4), settings={}, show_progress=False, home=run.path,
                           share=lambda x: x, is_world_process_zero=lambda: True, **kwargs)


def test_a_resumed_run_reads_its_explanations_and_asks_no_teacher(tmp_path, monkeypatch):
    run, teacher = Run.create(tmp_path/'run', {}), make_bert(1)
    first = SalLM(teacher, steps=2)
    first.prepare(make_trainer(run))
    seconds = run.state['explanation_seconds']
    def never(*args, **kwargs): raise AssertionError('explained again')
    monkeypatch.setattr(room, 'explain', never)
    again = SalLM(make_bert(5), steps=2)
    again.prepare(make_trainer(Run(run.path)))
    probe_batch = collate([probes[i] for i in range(2)])
    for some in (batch, probe_batch):
        a, b = first.explanations.lookup(some), again.explanations.lookup(some)
        assert torch.equal(a, b) and not a.isnan().any() and a.abs().sum() > 0
    assert Run(run.path).state['explanation_seconds'] == seconds


def test_explanations_that_were_cut_off_are_made_anew(tmp_path, monkeypatch):
    run, teacher, made = Run.create(tmp_path/'run', {}), make_bert(1), []
    real_explain = room.explain
    def killed(*args):
        if made: raise KeyboardInterrupt
        made.append(1); return real_explain(*args)
    monkeypatch.setattr(room, 'explain', killed)
    with pytest.raises(KeyboardInterrupt): SalLM(teacher, steps=2).prepare(make_trainer(run))
    assert 'explanation_seconds' not in Run(run.path).state
    monkeypatch.setattr(room, 'explain', real_explain)
    method = SalLM(teacher, steps=2)
    method.prepare(make_trainer(Run(run.path)))
    assert len(method.explanations) == len(texts) + 2


def test_the_student_keeps_its_weights_mode_and_random_state_while_the_teacher_works(tmp_path):
    trainer, teacher = make_trainer(Run.create(tmp_path/'run', {})), make_bert(1)
    trainer.model.train()
    weights, state = {k: v.clone() for k, v in trainer.model.state_dict().items()}, torch.get_rng_state()
    SalLM(teacher, steps=2).prepare(trainer)
    assert trainer.model.training and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, weights[k]) for k, v in trainer.model.state_dict().items())


@pytest.mark.parametrize('finished', [False, True])
def test_a_teacher_that_was_trained_partly_is_continued_and_a_finished_one_is_used(tmp_path, monkeypatch, finished):
    calls, run = [], Run.create(tmp_path/'run', {})
    teacher = Run.create(run.path/'teacher', {})
    if finished: teacher.finish()
    monkeypatch.setattr('salviz.training.train', lambda *args, **kwargs: calls.append(kwargs))
    monkeypatch.setattr('salviz.training.load_model', lambda path: (make_bert(1), tokenizer))
    SalLM(steps=2).prepare(make_trainer(run))
    assert [(c['resume'], c['run_dir'], c['method'].name) for c in calls] == ([] if finished else [(True, run.path/'teacher', 'FineTuning')])
