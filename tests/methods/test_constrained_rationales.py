"Constrained rationale training against its equation in float64, and the multiplier of a resumed run"
import copy
import json

import pytest
import torch

from helpers import breaking_at, descended
from test_right_reasons import batches_of, with_rationales
from salviz.methods import ConstrainedRationales, RDrop
from salviz.methods.base import Progress
from salviz.training.step import step_terms
from salviz.training.trainer import train

quick = dict(epochs=2, batch_size=8, learning_rate=1e-3, progress=False, probes=2, snapshots=2)


@pytest.fixture
def data(tiny_data): return with_rationales(tiny_data)


def slow_losses(model, batch, i):
    "Return the cross-entropy of example `i`, read alone, and the distance of its attention to the rationale"
    real = batch['attention_mask'][i].bool()
    outputs = model(batch['input_ids'][i][real][None], output_attentions=True)
    logits = outputs.logits[0]
    task = logits.exp().sum().log() - logits[batch['labels'][i]]
    heads, words = outputs.attentions[-1][0], (batch['word_ids'][i][real] >= 0).nonzero()[:, 0].tolist()
    marks = [float(batch['rationale'][i][real][t]) for t in words]
    row = [sum(head[0, t] for head in heads)/len(heads) for t in words]
    if not sum(marks): return task, torch.zeros((), dtype=torch.float64)
    return task, sum((a/sum(row) - m/sum(marks)).abs() for a, m in zip(row, marks))/len(words)


def test_ten_steps_equal_a_plain_loop_of_the_equation(data, double, tiny_tokenizer):
    batches = batches_of(data, double, tiny_tokenizer, range(5), range(5, 11))
    assert all((b['attention_mask'].sum(1) < b['input_ids'].shape[1]).any() for b in batches)
    method, multipliers = ConstrainedRationales(bound=.02, rate=5.), []
    method.check(double, tiny_tokenizer, data, 1)
    fraction = sum(x is not None for x in data['train']['rationale'])/len(data['train'])
    def ours(model, batch, step):
        terms = step_terms(method, model, model, batch, Progress(step=step), 'classification')
        assert list(terms) == ['task', 'rationale_excess']
        loss = sum((term.loss*term.weight).mean() for term in terms.values())
        method.ascend(terms['rationale_excess'].loss.mean().item())
        multipliers.append(method.multiplier)
        return loss
    expected_multipliers = [1.]
    def theirs(model, batch, step):
        of_task, excess, n = 0., 0., len(batch['labels'])
        for i in range(n):
            task, distance = slow_losses(model, batch, i)
            of_task = of_task + task/n
            if batch['has_rationale'][i]: excess = excess + (distance - .02)/n/fraction
        multiplier = expected_multipliers[-1]
        expected_multipliers.append(max(0., multiplier + 5.*excess.item()))
        return of_task + multiplier*excess
    plain = copy.deepcopy(double)
    losses, weights = descended(double.train(), ours, batches)
    expected, expected_weights = descended(plain.train(), theirs, batches)
    assert (losses - expected).abs().max() < 1e-12 and (weights - expected_weights).abs().max() < 1e-12
    assert multipliers == pytest.approx(expected_multipliers[1:], abs=1e-12)
    assert len({round(x, 3) for x in multipliers}) == 10 and max(multipliers) > 1.5 # the multiplier matters


def test_multiplier_is_at_least_0_and_falls_below_the_bound():
    method = ConstrainedRationales(rate=2.)
    seen = []
    for excess in (.25, -.5, -1., .125):
        method.ascend(excess)
        seen.append(method.multiplier)
    assert seen == [1.5, .5, 0., .25]
    assert 'multiplier' not in method.args() and method.replaced(rate=3.).multiplier == 1


@pytest.mark.parametrize('build', [lambda: ConstrainedRationales(rate=20.),
                                   lambda: ConstrainedRationales('input_x_gradient', 'kl', bound=.1) + RDrop()],
                         ids=['alone', 'combined'])
def test_multiplier_survives_resume(build, data, tiny_bert, tiny_tokenizer, tmp_path):
    def model():
        torch.manual_seed(0)
        return tiny_bert(attn_implementation='eager')
    whole = model()
    run = train(whole, tiny_tokenizer, data, build(), tmp_path/'whole', **quick)
    steps = len(run.train_rows)//2 # per epoch
    multipliers = [row['rationale_excess_weight'] for row in run.train_rows]
    assert len({*multipliers}) == len(multipliers) and abs(multipliers[steps]/multipliers[0] - 1) > 1e-3
    with pytest.raises(KeyboardInterrupt):
        train(model(), tiny_tokenizer, data, breaking_at(steps + 1, build()), tmp_path/'run', **quick)
    resumed = model()
    run = train(resumed, tiny_tokenizer, data, build(), tmp_path/'run', resume=True, **quick)
    assert [row['rationale_excess_weight'] for row in run.train_rows] == multipliers
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters()))
    stored = json.loads((run.checkpoints[2*steps]/'trainer_state.json').read_text())
    assert stored['stateful_callbacks']['_DualAscent']['multiplier'] != 1


def test_a_new_run_begins_with_a_new_multiplier(data, tiny_bert, tiny_tokenizer, tmp_path):
    method = ConstrainedRationales(rate=20.)
    runs = [train(tiny_bert(attn_implementation='eager'), tiny_tokenizer, data, method, tmp_path/name,
                  **{**quick, 'epochs': 1}) for name in 'ab']
    assert len({run.train_rows[0]['rationale_excess_weight'] for run in runs}) == 1
