"""Right for the right reasons and the energy loss against their equations in float64, one unpadded text at a time"""
import copy

import datasets
import pytest
import torch

from helpers import descended, same, state
from salviz.methods import EnergyLoss, RightForRightReasons
from salviz.methods.base import Progress
from salviz.methods.right_reasons import energy_loss, rationale_sides, right_reasons_loss
from salviz.training.feed import feed_for
from salviz.training.step import step_terms
from salviz.training.trainer import train

quick = dict(epochs=1, batch_size=8, learning_rate=1e-3, progress=False, probes=2, snapshots=2)


def with_rationales(data):
    "Return flags of words: every third text has none, and the first marks no word"
    def rationale(i, text):
        if i % 3 == 2: return None
        return [int(k % 4 == 1 and i > 0) for k in range(len(text.split()))]
    kind = datasets.Sequence(datasets.Value('int64'))
    return datasets.DatasetDict({name: part.add_column('rationale', [rationale(i, t) for i, t in
                                                                     enumerate(part['text'])], feature=kind)
                                 for name, part in data.items()})


@pytest.fixture
def data(tiny_data): return with_rationales(tiny_data)


def batches_of(data, model, tokenizer, *rows):
    feed = feed_for(model, tokenizer)
    encoded = feed.encode(data)['train']
    return [feed.collate(list(encoded.select(r))) for r in rows]


def unpadded(model, batch, i):
    """Return the logits [classes], word embeddings [n, dim], rationale and flags of words of example `i`, read alone"""
    real = batch['attention_mask'][i].bool()
    x = model.get_input_embeddings()(batch['input_ids'][i][real][None])
    logits = model(inputs_embeds=x).logits[0]
    return logits, x, batch['rationale'][i][real].tolist(), (batch['word_ids'][i][real] >= 0).tolist()


def slow_right_reasons(model, batch, i, weight):
    "Return the loss of example `i`: cross-entropy and squared gradients of irrelevant features (Ross et al. 2017)"
    logits, x, marks, words = unpadded(model, batch, i)
    log_probabilities = [z - logits.exp().sum().log() for z in logits]
    loss = -log_probabilities[batch['labels'][i]]
    if not batch['has_rationale'][i]: return loss
    gradient, = torch.autograd.grad(sum(log_probabilities), x, create_graph=True)
    for t, (mark, is_word) in enumerate(zip(marks, words)):
        for d in range(x.shape[2]):
            A = 1. if is_word and not mark else 0.
            loss = loss + weight*(A*gradient[0, t, d])**2
    return loss


def slow_energy(model, batch, i, weight):
    "Return the loss of example `i`: cross-entropy and the positive attribution outside the mask (Rao et al. 2023)"
    logits, x, marks, words = unpadded(model, batch, i)
    gold = batch['labels'][i]
    loss = logits.exp().sum().log() - logits[gold]
    if not batch['has_rationale'][i]: return loss
    gradient, = torch.autograd.grad(logits[gold], x, create_graph=True)
    inside = total = torch.zeros((), dtype=torch.float64)
    for t, (mark, is_word) in enumerate(zip(marks, words)):
        value = (gradient[0, t]*x[0, t]).sum()
        if is_word and value > 0:
            total = total + value
            inside = inside + value*mark
    return loss + weight*(1 - (inside/total if total > 0 else 0.))


cases = [(RightForRightReasons(weight=.3), slow_right_reasons), (EnergyLoss(weight=.7), slow_energy)]

@pytest.mark.parametrize('method, slow', cases, ids=lambda x: getattr(x, 'name', ''))
def test_ten_steps_equal_a_plain_loop_of_the_equation(method, slow, data, double, tiny_tokenizer):
    batches = batches_of(data, double, tiny_tokenizer, range(5), range(5, 11))
    assert all((b['attention_mask'].sum(1) < b['input_ids'].shape[1]).any() for b in batches)
    def ours(model, batch, step):
        terms = step_terms(method, model, model, batch, Progress(step=step), 'classification')
        return sum((term.loss*term.weight).mean() for term in terms.values())
    def theirs(model, batch, step):
        return sum(slow(model, batch, i, method.weight) for i in range(len(batch['labels'])))/len(batch['labels'])
    plain = copy.deepcopy(double)
    losses, weights = descended(double.train(), ours, batches)
    expected, expected_weights = descended(plain.train(), theirs, batches)
    assert (losses - expected).abs().max() < 1e-12 and (weights - expected_weights).abs().max() < 1e-12
    assert losses[-2] < losses[0]
    alone = descended(copy.deepcopy(plain), lambda m, b, s: m(b['input_ids'], b['attention_mask'],
                                                              labels=b['labels']).loss, batches)[0]
    assert (losses - alone).abs().min() > 1e-3 # the term matters


def test_sides_are_words_of_examples_with_a_rationale(data, double, tiny_tokenizer):
    batch, = batches_of(data, double, tiny_tokenizer, range(6))
    inside, outside = rationale_sides(batch)
    words = batch['attention_mask'].bool() & (batch['word_ids'] >= 0)
    assert not (inside & outside).any() and not inside[0].any() and inside[1].any()
    for i in range(6): assert torch.equal((inside | outside)[i], words[i] & (i % 3 != 2))
    without = {k: v for k, v in batch.items() if k not in ('rationale', 'has_rationale')}
    assert not any(side.any() for side in rationale_sides(without))


def test_losses_ignore_values_that_do_not_count():
    values = torch.tensor([[1., 2., torch.nan], [-1., 0., 3.]], dtype=torch.float64)
    inside, outside = torch.tensor([[1, 0, 0], [0, 1, 0]]).bool(), torch.tensor([[0, 1, 0], [1, 0, 0]]).bool()
    assert right_reasons_loss(values, outside).tolist() == [4, 1]
    assert energy_loss(values, inside, outside).tolist() == [1 - 1/3, 1]


@pytest.mark.parametrize('method', [method for method, _ in cases], ids=lambda x: x.name)
def test_texts_without_a_rationale_add_nothing_and_a_step_leaves_no_trace(method, data, double, tiny_tokenizer):
    batch, = batches_of(data, double, tiny_tokenizer, [2, 5, 8])
    before = state(double.train())
    name, term = list(step_terms(method, double, double, batch, Progress(), 'classification').items())[1]
    assert name in ('right_reasons', 'energy') and torch.equal(term.loss, torch.zeros_like(term.loss))
    assert same(state(double), before)
    term.loss.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in double.parameters())


@pytest.mark.parametrize('method', [method for method, _ in cases], ids=lambda x: x.name)
def test_run_records_the_explanation_and_data_without_rationales_raise(method, data, tiny_data, tiny_bert,
                                                                       tiny_tokenizer, tmp_path):
    run = train(tiny_bert(), tiny_tokenizer, data, method, tmp_path/'run', **quick)
    s = run.snapshot(-1, 0)
    assert s.arrays['explanation'].shape == s.arrays['rationale_target'].shape == (len(s.tokens),)
    assert {'right_reasons', 'energy'} & {*run.train_rows[0]}
    with pytest.raises(ValueError, match=f"{method.name}: requires rationales in the column 'rationale'"):
        train(tiny_bert(), tiny_tokenizer, tiny_data, method, tmp_path/'no', **quick)
