"Expected gradients and their priors against the equations in float64, one unpadded text at a time"
import copy

import pytest
import torch

from helpers import descended, same, state
from salviz.methods import ExpectedGradients
from salviz.methods.base import Progress
from salviz.methods.expected_gradients import (drawn_references, expected_gradients, smoothness_prior,
                                               sparsity_prior)
from salviz.training.feed import feed_for
from salviz.training.step import step_terms
from salviz.training.trainer import train


@pytest.fixture
def batches(tiny_data, double, tiny_tokenizer):
    feed = feed_for(double, tiny_tokenizer)
    encoded = feed.encode(tiny_data)['train']
    return [feed.collate(list(encoded.select(rows))) for rows in (range(5), range(5, 11))]


def slow_attribution(model, batch, i, places, alphas):
    "Return the expected gradients of example `i` over its references, and flags of words (Erion et al. 2021)"
    n = int(batch['attention_mask'][i].sum())
    embed, total = model.get_input_embeddings(), 0.
    x = embed(batch['input_ids'][i, :n])
    for place, alpha in zip(places, alphas):
        reference = embed(batch['input_ids'][place, :n])
        point = reference + alpha*(x - reference)
        gradient, = torch.autograd.grad(model(inputs_embeds=point[None]).logits[0, batch['labels'][i]], point,
                                        create_graph=True)
        total = total + ((x - reference)*gradient).sum(1)/len(places)
    return total, (batch['word_ids'][i, :n] >= 0).tolist()


def slow_prior(name, values, is_word):
    "Return the prior of one text by its equation"
    if name == 'smoothness':
        pairs = [(a, b) for a, b, both in zip(values, values[1:], zip(is_word, is_word[1:])) if all(both)]
        return sum((b - a).abs() for a, b in pairs)
    words = [v.abs() for v, w in zip(values, is_word) if w]
    return -sum((a - b).abs() for a in words for b in words)/(len(words)*sum(words))


@pytest.mark.parametrize('prior, references', [('sparsity', 1), ('smoothness', 3)])
def test_ten_steps_equal_a_plain_loop_of_the_equation(prior, references, batches, double):
    assert all((b['attention_mask'].sum(1) < b['input_ids'].shape[1]).any() for b in batches)
    method = ExpectedGradients(prior, weight=.3, references=references)
    def ours(model, batch, step):
        terms = step_terms(method, model, model, batch, Progress(step=step, seed=7), 'classification')
        return sum((term.loss*term.weight).mean() for term in terms.values())
    def theirs(model, batch, step):
        places, alpha = drawn_references(batch['example_id'], references, 7, step)
        total = 0.
        for i, label in enumerate(batch['labels']):
            real = batch['attention_mask'][i].bool()
            logits = model(batch['input_ids'][i][real][None]).logits[0]
            values, is_word = slow_attribution(model, batch, i, places[:, i].tolist(), alpha[:, i].double())
            total = total + logits.exp().sum().log() - logits[label] + .3*slow_prior(prior, values, is_word)
        return total/len(batch['labels'])
    plain = copy.deepcopy(double)
    losses, weights = descended(double.train(), ours, batches, rate=.02)
    expected, expected_weights = descended(plain.train(), theirs, batches, rate=.02)
    assert (losses - expected).abs().max() < 1e-12 and (weights - expected_weights).abs().max() < 1e-12
    alone = descended(copy.deepcopy(plain), lambda m, b, s: m(b['input_ids'], b['attention_mask'],
                                                              labels=b['labels']).loss, batches, rate=.02)[0]
    assert (losses - alone).abs().min() > 1e-3 # the term matters


def test_references_are_other_examples_drawn_evenly_and_repeatably():
    ids = torch.tensor([3, 1, 4, 15, 9])
    places, alpha = drawn_references(ids, 4000, seed=1, step=2)
    for i in range(5):
        counts = places[:, i].bincount(minlength=5)
        assert counts[i] == 0 and all(abs(c - 1000) < 150 for k, c in enumerate(counts.tolist()) if k != i)
    assert abs(alpha.mean() - .5) < .01 and abs(alpha.var() - 1/12) < .003
    assert abs(torch.corrcoef(torch.stack([places[:, 0].float(), alpha[:, 0]]))[0, 1]) < .06
    again = drawn_references(ids, 4000, seed=1, step=2)
    assert torch.equal(places, again[0]) and torch.equal(alpha, again[1])
    for seed, step in ((1, 3), (2, 2)): assert not torch.equal(alpha, drawn_references(ids, 4000, seed, step)[1])


def test_attributions_sum_to_the_expected_change_of_the_score(batches, double):
    "Completeness, within five standard errors of 400 draws"
    batch = {k: v[:3] for k, v in batches[0].items()}
    references = drawn_references(batch['example_id'], 400)
    each = torch.stack([expected_gradients(double, batch, batch['labels'], (p[None], a[None]), False).sum(1)
                        for p, a in zip(*references)])
    embed = double.get_input_embeddings()(batch['input_ids'])
    for i, label in enumerate(batch['labels']):
        def score(j, i=i, label=label):
            mask = batch['attention_mask'][i:i+1]
            return double(inputs_embeds=embed[j:j+1], attention_mask=mask).logits[0, label].item()
        change = score(i) - sum(score(j) for j in range(3) if j != i)/2
        assert abs(each[:, i].mean() - change) < 5*each[:, i].std()/400**.5 + 1e-9


def test_priors_ignore_values_that_do_not_count():
    values = torch.tensor([[1., -3., torch.nan, 4.], [0., 0., torch.nan, torch.nan]], dtype=torch.float64)
    counts = torch.tensor([[1, 1, 0, 1], [1, 1, 0, 0]]).bool()
    assert sparsity_prior(values, counts).tolist() == pytest.approx([-2*(2 + 3 + 1)/(3*8), 0])
    assert smoothness_prior(values, counts).tolist() == [4, 0]


def test_a_single_example_adds_nothing_and_a_step_leaves_no_trace(batches, double):
    batch = {k: v[:1] for k, v in batches[0].items()}
    before = state(double.train())
    term = step_terms(ExpectedGradients(), double, double, batch, Progress(), 'classification')['attribution_prior']
    assert term.loss.tolist() == [0] and same(state(double), before)
    term.loss.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in double.parameters())


def test_run_records_the_attributions_and_repeats_itself(tiny_data, tiny_bert, tiny_tokenizer, tmp_path):
    quick = dict(epochs=1, batch_size=8, learning_rate=1e-3, progress=False, probes=2, snapshots=2)
    losses = []
    for name in ('a', 'b'):
        torch.manual_seed(0)
        run = train(tiny_bert(), tiny_tokenizer, tiny_data, ExpectedGradients('smoothness'), tmp_path/name, **quick)
        losses.append([row['attribution_prior'] for row in run.train_rows])
    s = run.snapshot(-1, 0)
    assert s.arrays['explanation'].shape == (len(s.tokens),) and s.arrays['explanation'].any()
    assert losses[0] == losses[1] and len(losses[0]) > 1
