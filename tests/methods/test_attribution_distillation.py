"AD-KD against its equations in float64, one unpadded text at a time"
import copy

import pytest
import torch

from helpers import descended
from salviz.methods import ADKD
from salviz.methods.attribution_distillation import class_views
from salviz.methods.base import Progress
from salviz.training.feed import feed_for
from salviz.training.step import step_terms
from salviz.training.trainer import train


@pytest.fixture
def batches(tiny_data, double, tiny_tokenizer):
    feed = feed_for(double, tiny_tokenizer)
    encoded = feed.encode(tiny_data)['train']
    return [feed.collate(list(encoded.select(rows))) for rows in (range(5), range(5, 11))]


def disturbed(model):
    "Return a copy of `model` with other weights"
    other, g = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in other.parameters(): p += .2*torch.randn(p.shape, generator=g, dtype=p.dtype)
    return other.eval()


def slow_view(model, ids, label, steps, top):
    "Return the normalised scores of one text for class `label`"
    x, total = model.get_input_embeddings()(ids), 0.
    for k in range(1, steps + 1):
        logits = model(inputs_embeds=(x*k/steps)[None]).logits[0]
        score = logits[label] - logits.exp().sum().log()
        total = total + torch.autograd.grad(score, x, create_graph=True, retain_graph=True)[0]*steps/k/steps
    scores = [(row.abs().sort(descending=True).values[:top]**2).sum().sqrt() for row in x*total]
    return torch.stack(scores)/sum(s**2 for s in scores).sqrt()


def slow_loss(student, teacher, ids, label, method):
    "Return the loss of one text, from the equations of the paper"
    s, t = student(ids[None]).logits[0], teacher(ids[None]).logits[0].detach()
    p, q = ((x/method.temperature).exp()/(x/method.temperature).exp().sum() for x in (t, s))
    total = (1 - method.alpha)*(s.exp().sum().log() - s[label])
    total = total + method.alpha*sum(a*(a/b).log() for a, b in zip(p, q))
    for c in range(len(s)):
        theirs = slow_view(teacher, ids, c, method.steps, method.top_dimensions).detach()
        ours = slow_view(student, ids, c, method.steps, None)
        total = total + method.weight*sum((a - b)**2 for a, b in zip(ours, theirs))/len(ids)
    return total


@pytest.mark.parametrize('steps, top', [(1, 5), (3, None)])
def test_ten_steps_equal_a_plain_loop_of_the_equations(steps, top, batches, double):
    assert all((b['attention_mask'].sum(1) < b['input_ids'].shape[1]).any() for b in batches)
    teacher = disturbed(double)
    method = ADKD(teacher, weight=20., alpha=.6, steps=steps, top_dimensions=top)
    def ours(model, batch, step):
        terms = step_terms(method, model, model, batch, Progress(step=step), 'classification')
        return sum((term.loss*term.weight).mean() for term in terms.values())
    def theirs(model, batch, step):
        losses = [slow_loss(model, teacher, ids[mask.bool()], label, method)
                  for ids, mask, label in zip(batch['input_ids'], batch['attention_mask'], batch['labels'])]
        return sum(losses)/len(losses)
    plain = copy.deepcopy(double)
    losses, weights = descended(double.train(), ours, batches, rate=.02)
    expected, expected_weights = descended(plain.train(), theirs, batches, rate=.02)
    assert (losses - expected).abs().max() < 1e-12 and (weights - expected_weights).abs().max() < 1e-12


def test_views_have_norm_1_and_are_0_at_padding(batches, double):
    views = class_views(double, batches[0])
    assert torch.allclose(views.norm(dim=-1), torch.ones(5, 2, dtype=torch.float64))
    assert (views.transpose(1, 2)[batches[0]['attention_mask'] == 0] == 0).all() and not views.requires_grad


def test_run_records_the_views(tiny_data, tiny_bert, tiny_tokenizer, tmp_path):
    teacher = disturbed(tiny_bert())
    with pytest.warns(UserWarning): # an untrained teacher
        run = train(tiny_bert(), tiny_tokenizer, tiny_data, ADKD(teacher, weight=5.), tmp_path/'run', epochs=2,
                    batch_size=8, probes=2, snapshots=2, progress=False)
    row, snapshot = run.train_rows[0], run.snapshot(-1, 0)
    assert row['loss'] == pytest.approx(.2*row['task'] + .8*row['distillation'] + 5*row['explanation'], rel=1e-5)
    assert snapshot.arrays['explanation'].shape == (2, len(snapshot.tokens))
