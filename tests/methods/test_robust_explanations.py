"DRE against the equation in float64, one unpadded text at a time, and its partners from other domains"
import copy

import pytest
import torch
from scipy.stats import beta, kstest

from helpers import descended, same, state
from salviz.methods import DRE
from salviz.methods.base import Progress
from salviz.methods.robust_explanations import drawn_partners, scaled_explanations
from salviz.training.feed import feed_for
from salviz.training.step import step_terms
from salviz.training.trainer import train


@pytest.fixture
def batches(tiny_data, double, tiny_tokenizer):
    feed = feed_for(double, tiny_tokenizer)
    data = tiny_data['train'].add_column('domain', ['ab'[i % 3 == 0] for i in range(len(tiny_data['train']))])
    encoded = feed.encode(type(tiny_data)({**tiny_data, 'train': data}))['train']
    return [feed.collate(list(encoded.select(rows))) for rows in (range(5), range(5, 11))]


def slow_explanation(model, x, label, is_word):
    "Return the scaled gradient x input of one text with the embeddings `x` [tokens, dim], and the logits"
    logits = model(inputs_embeds=x[None]).logits[0]
    gradient, = torch.autograd.grad(logits[label], x, create_graph=True)
    values = (gradient*x).sum(1)
    low, high = values[is_word].min(), values[is_word].max()
    return torch.stack([(v - low)/(high - low) if word else v*0 for v, word in zip(values, is_word)]), logits


def slow_loss(method, model, batch, i, place, lam):
    "Return the loss of example `i` by the equation"
    n, embed, label = int(batch['attention_mask'][i].sum()), model.get_input_embeddings(), batch['labels'][i]
    words = batch['word_ids'] >= 0
    own, other = embed(batch['input_ids'][i, :n]), embed(batch['input_ids'][place, :n])
    mixed = lam*own + (1 - lam)*other
    real = int(batch['attention_mask'][place].sum())
    of_own = slow_explanation(model, own, label, words[i, :n])[0]
    of_other = slow_explanation(model, embed(batch['input_ids'][place, :real]), label, words[place, :real])[0]
    of_mixed, logits = slow_explanation(model, mixed, label, words[i, :n])
    distance = sparsity = 0.
    for t in range(n):
        expected = lam*of_own[t] + (1 - lam)*(of_other[t] if t < real else 0.)
        if words[i, t]: distance = distance + (of_mixed[t] - expected).abs()
        sparsity = sparsity + of_own[t] + of_mixed[t]
    count = int(words[i].sum())
    mixture = logits.exp().sum().log() - logits[label]
    return method.weight*distance/count + method.sparsity*sparsity/(2*count) + method.mix*mixture


@pytest.mark.parametrize('domain', [None, 'domain'])
def test_ten_steps_equal_a_plain_loop_of_the_equation(domain, batches, double):
    assert all((b['attention_mask'].sum(1) < b['input_ids'].shape[1]).any() for b in batches)
    method = DRE(domain, weight=.7, sparsity=.3, mix=.2)
    def ours(model, batch, step):
        terms = step_terms(method, model, model, batch, Progress(step=step, seed=7), 'classification')
        return sum((term.loss*term.weight).mean() for term in terms.values())
    def theirs(model, batch, step):
        domains = batch['domain'] if domain else [0]*len(batch['labels'])
        places, lam = drawn_partners(batch['example_id'], batch['labels'], domains, seed=7, step=step)
        total = 0.
        for i, label in enumerate(batch['labels']):
            logits = model(batch['input_ids'][i][batch['attention_mask'][i].bool()][None]).logits[0]
            total = total + logits.exp().sum().log() - logits[label]
            total = total + slow_loss(method, model, batch, i, int(places[i]), lam[i].double())
        return total/len(batch['labels'])
    plain = copy.deepcopy(double)
    losses, weights = descended(double.train(), ours, batches, rate=.02)
    expected, expected_weights = descended(plain.train(), theirs, batches, rate=.02)
    assert (losses - expected).abs().max() < 1e-12 and (weights - expected_weights).abs().max() < 1e-12


def test_partners_have_the_label_and_if_possible_another_domain():
    labels, domains = torch.tensor([0, 1]*6), ['a', 'a', 'b', 'a']*3
    drawn = set()
    for step in range(200):
        places, lam = drawn_partners(torch.arange(12), labels, domains, step=step)
        for i, j in enumerate(places.tolist()):
            assert j != i and labels[i] == labels[j] and (labels[i] == 1 or domains[i] != domains[j])
            drawn.add((i, j))
    assert len(drawn) == 6*3 + 6*5 # every allowed pair occurs
    again = drawn_partners(torch.arange(12), labels, domains, step=199)
    assert torch.equal(places, again[0]) and torch.equal(lam, again[1])
    lams = torch.cat([drawn_partners(torch.arange(12), labels, domains, .2, 3, step)[1] for step in range(100)])
    assert kstest(lams.numpy(), beta(.2, .2).cdf).pvalue > .01


def test_explanations_are_scaled_over_the_tokens_that_count():
    values = torch.tensor([[2., torch.nan, -2., 0.], [1., 1., 5., 5.]])
    counts = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 0]]).bool()
    assert scaled_explanations(values, counts).tolist() == [[1, 0, 0, .5], [0, 0, 0, 0]]


def test_an_example_without_a_partner_has_no_distance_and_a_step_leaves_no_trace(batches, double):
    batch = {k: v[:1] for k, v in batches[0].items()}
    before = state(double.train())
    terms = step_terms(DRE(), double, double, batch, Progress(), 'classification')
    assert terms['consistency'].loss.abs().max() < 1e-12 and same(state(double), before)
    sum(term.loss.sum() for term in terms.values()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in double.parameters())


def test_a_run_records_the_explanations(tiny_data, tiny_bert, tiny_tokenizer, tmp_path):
    quick = dict(epochs=1, batch_size=8, learning_rate=1e-3, progress=False, probes=2, snapshots=2)
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, DRE(), tmp_path/'run', **quick)
    s = run.snapshot(-1, 0)
    assert s.arrays['explanation'].shape == (len(s.tokens),) and s.arrays['explanation'].any()
    assert {'consistency', 'sparsity', 'mixture'} <= {*run.train_rows[0]}
