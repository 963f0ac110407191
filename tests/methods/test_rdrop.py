"R-Drop against its equation in float64"
import copy
import math

import pytest
import torch

from helpers import descended
from salviz.methods import RDrop
from salviz.methods.base import Progress
from salviz.methods.rdrop import symmetric_divergence
from salviz.models.corruption import small_model
from salviz.training.feed import feed_for
from salviz.training.step import step_terms
from salviz.training.trainer import train


def slow_divergence(a, b):
    "Return half the sum of both KL divergences between the softmax of two lists of logits"
    p, q = ([math.exp(x)/sum(map(math.exp, logits)) for x in logits] for logits in (a, b))
    return sum(x*math.log(x/y) + y*math.log(y/x) for x, y in zip(p, q))/2


def test_divergence_is_the_mean_of_both_directions():
    g = torch.Generator().manual_seed(0)
    a, b = 3*torch.randn(2, 7, 4, generator=g, dtype=torch.float64)
    for x, y, ours in zip(a, b, symmetric_divergence(a, b)):
        assert ours.item() == pytest.approx(slow_divergence(x.tolist(), y.tolist()), rel=1e-12)
    assert torch.equal(symmetric_divergence(a, a), torch.zeros(7, dtype=torch.float64))
    assert symmetric_divergence(a.bfloat16(), b.bfloat16()).dtype == torch.float32


@pytest.fixture
def batches(tiny_data, tiny_bert, tiny_tokenizer):
    feed = feed_for(tiny_bert(), tiny_tokenizer)
    encoded = feed.encode(tiny_data)['train']
    return [feed.collate(list(encoded.select(rows))) for rows in (range(5), range(5, 11))]


def test_ten_steps_equal_a_plain_loop_of_the_equation(batches, tiny_bert):
    "Both draw the same dropout masks, since each step starts from the same random state"
    model, method = tiny_bert(initializer_range=.2).double().train(), RDrop(alpha=3.)
    plain = copy.deepcopy(model)
    def ours(model, batch, step):
        torch.manual_seed(step)
        terms = step_terms(method, model, model, batch, Progress(step=step), 'classification')
        return sum((term.loss*term.weight).mean() for term in terms.values())
    def theirs(model, batch, step):
        torch.manual_seed(step)
        inputs = {k: batch[k] for k in ('input_ids', 'attention_mask')}
        first, second = model(**inputs).logits, model(**inputs).logits
        total = 0.
        for a, b, label in zip(first, second, batch['labels']):
            p, q = a.exp()/a.exp().sum(), b.exp()/b.exp().sum()
            total = total - p[label].log() - q[label].log()
            for k in range(len(p)): total = total + method.alpha/2*(p[k]*(p[k]/q[k]).log() + q[k]*(q[k]/p[k]).log())
        return total/len(first)
    losses, weights = descended(model, ours, batches)
    expected, expected_weights = descended(plain, theirs, batches)
    assert (losses - expected).abs().max() < 1e-12 and (weights - expected_weights).abs().max() < 1e-12


def test_padding_and_tokens_without_a_label_do_not_count(tiny_data, tiny_tokenizer):
    "Compare the passes of two models, which stand for two draws of dropout, text by text"
    sizes = dict(layers=1, heads=2, hidden=16, labels=['O', 'B-x'])
    models = [small_model('token_classification', tiny_tokenizer, seed=seed, **sizes).double().eval()
              for seed in (0, 1)]
    ids = torch.tensor([[2, 20, 21, 22, 3, 0, 0], [2, 23, 24, 25, 26, 27, 3]])
    labels = torch.tensor([[-100, 1, 0, -100, -100, -100, -100], [-100, 1, 1, 0, 0, 1, -100]])
    batch = dict(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels, example_id=torch.arange(2))
    plan = RDrop().plan(models[0], batch, Progress())
    outputs = dict(main=models[0](**plan.inputs['second']), second=models[1](**plan.inputs['second']))
    loss = RDrop().terms(outputs, None, plan, batch, Progress())['divergence'].loss
    for i in range(2):
        real = ids[i] != 0
        a, b = (m(input_ids=ids[i][real][None]).logits[0].tolist() for m in models)
        counted = [t for t, label in enumerate(labels[i][real].tolist()) if label != -100]
        expected = sum(slow_divergence(a[t], b[t]) for t in counted)/len(counted)
        assert loss[i].item() == pytest.approx(expected, rel=1e-10)


def test_run_records_both_terms(tiny_data, tiny_bert, tiny_tokenizer, tmp_path):
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, RDrop(alpha=2.), tmp_path/'run', epochs=1, batch_size=8,
                probes=2, snapshots=2, progress=False)
    row = run.train_rows[0]
    assert row['divergence'] > 0 and (row['second_task_weight'], row['divergence_weight']) == (1, 2)
    assert row['loss'] == pytest.approx(row['task'] + row['second_task'] + 2*row['divergence'], rel=1e-5)
