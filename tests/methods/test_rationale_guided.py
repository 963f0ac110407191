"""Rationale-guided training against slow references in float64, and rejected arguments"""
import copy
import math
import warnings

import datasets
import numpy as np
import pytest
import torch

from helpers import alike, all_alike, state, same
from salviz.attribution.reading import Reading
from salviz.core.description import method_fact
from salviz.core.maths import rollout
from salviz.core.renamed import renamed_config
from salviz.data.texts import model_inputs
from salviz.methods import AttentionGuidance, RationaleGuided, RationaleGuidedVariant, rationale_guided
from salviz.methods.base import Progress
from salviz.methods.rationale_guided import (as_many_of_the_rest, retained_alone, rationale_loss, rolled_out,
                                             taught_saliency)
from salviz.models.corruption import small_model
from salviz.models.nets import small_net
from salviz.training.feed import feed_for
from salviz.training.step import _run_passes, step_terms
from salviz.training.trainer import load_model, train

quick = dict(epochs=1, batch_size=8, learning_rate=1e-3, progress=False, probes=2, snapshots=2)


def with_rationales(data, soft=False, every=3):
    "Return flags or fractions of words; every third example has none, and one has no marked word"
    def rationale(i, text):
        if every and i % every == 2: return None
        if i == 0: return [0. if soft else 0]*len(text.split())
        return [(0., 1., .5)[k % 3] if soft else int(k % 4 == 1) for k in range(len(text.split()))]
    kind = datasets.Sequence(datasets.Value('float32' if soft else 'int64'))
    return datasets.DatasetDict({name: part.add_column('rationale', [rationale(i, t) for i, t in
                                                                     enumerate(part['text'])], feature=kind)
                                 for name, part in data.items()})


@pytest.fixture
def data(tiny_data): return with_rationales(tiny_data)


def batch_of(data, tokenizer, rows):
    "Return the examples `rows` of the training set as a batch"
    model = small_model('classification', tokenizer, layers=1, heads=2, hidden=16, num_labels=2)
    feed = feed_for(model, tokenizer)
    return feed.collate(list(feed.encode(data)['train'].select(rows)))


# ---- the criteria, one token after the other ----

def slow_normalised(x, how):
    if how == 'share':
        total = sum(max(v, 0) for v in x)
        return [max(v, 0)/total if total > 0 else 0. for v in x]
    if how == 'softmax': return [math.exp(v)/sum(math.exp(u) for u in x) for v in x]
    if how == 'sigmoid': return [1/(1 + math.exp(-v)) for v in x]
    if how == 'largest':
        most = max(abs(v) for v in x)
        return [v/most if most > 0 else 0. for v in x]
    return list(x)

def log(x): return math.log(max(x, torch.finfo(torch.float64).tiny))
def bounded_log(x): return max(log(x), -100.)

def slow_loss(x, r, loss, how, delta=.5, margin=1.):
    "Return the loss of one explanation `x` and rationale `r`, which are lists of the tokens that count"
    if not x: return 0.
    e = slow_normalised(x, how)
    if how in ('share', 'softmax') and loss not in ('order', 'margin'):
        if sum(r) == 0: return 0.
        r = [v/sum(r) for v in r]
    n = len(e)
    if loss == 'mse': return sum((a - b)**2 for a, b in zip(e, r))/n
    if loss == 'l1': return sum(abs(a - b) for a, b in zip(e, r))/n
    if loss == 'huber':
        d = [abs(a - b) for a, b in zip(e, r)]
        return sum(.5*v*v if v <= delta else delta*(v - .5*delta) for v in d)/n
    if loss == 'bce': return sum(-b*bounded_log(a) - (1 - b)*bounded_log(1 - a) for a, b in zip(e, r))/n
    if loss == 'kl': return sum(b*(log(b) - log(a)) for a, b in zip(e, r) if b > 0)
    if loss == 'margin': return sum(max(0, margin - (2*b - 1)*a) for a, b in zip(e, r))/n
    others = [a for a, b in zip(e, r) if b < .5]
    most = max(others, default=0.)
    return sum(min(a/most - 1, 0)**2 for a, b in zip(e, r) if b >= .5) if most > 0 else 0.

criteria = [(loss, how) for loss in ('mse', 'l1', 'huber', 'margin') for how in
            ('share', 'softmax', 'sigmoid', 'largest', 'none')]
criteria += [(loss, how) for loss in ('bce', 'order') for how in ('share', 'softmax', 'sigmoid')]
criteria += [('kl', 'share'), ('kl', 'softmax')]

def invented(seed=0):
    "Return explanations [batch, sets, n] with padding in between, and rationales: soft ones, none or all marked"
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 2, 7, generator=g, dtype=torch.float64)
    r = torch.rand(5, 7, generator=g, dtype=torch.float64).round(decimals=1)
    r[1], r[2] = 0, 1
    counts = torch.rand(5, 2, 7, generator=g) < .7
    counts[3] = False
    counts[4, 1] = False
    return x, r, counts

@pytest.mark.parametrize('loss, how', criteria)
def test_every_criterion_equals_its_equation(loss, how):
    x, r, counts = invented()
    options = dict(huber=dict(delta=.3), margin=dict(margin=.8)).get(loss, {})
    x = torch.where(counts, x, math.nan) # values that do not count are ignored
    ours = rationale_loss(x, r, counts, loss, how, **options)
    theirs = []
    for i in range(len(x)):
        some = [slow_loss(x[i, s][counts[i, s]].tolist(), r[i][counts[i, s]].tolist(), loss, how, **options)
                for s in range(2) if counts[i, s].any()]
        theirs.append(sum(some)/len(some) if some else 0.)
    assert alike(ours, torch.tensor(theirs, dtype=torch.float64)) and ours[3] == 0
    assert (ours > 0).any()

@pytest.mark.sample(19)
@pytest.mark.parametrize('loss, how', criteria)
def test_gradient_of_every_criterion_equals_finite_differences(loss, how):
    x, r, counts = invented(1)
    x = x.requires_grad_()
    gradient, = torch.autograd.grad(rationale_loss(x, r, counts, loss, how).sum(), x)
    assert gradient.isfinite().all() and not gradient[~counts].any()
    step, slow = 1e-6, torch.zeros_like(gradient)
    for at in counts.nonzero().tolist():
        def total(by):
            moved = x.detach().clone()
            moved[tuple(at)] += by
            return rationale_loss(moved, r, counts, loss, how).sum()
        slow[tuple(at)] = (total(step) - total(-step)) / (2*step)
    torch.testing.assert_close(gradient, slow, rtol=1e-5, atol=1e-7)

@pytest.mark.parametrize('loss, how', criteria)
def test_float32_and_float64_give_the_same_loss(loss, how):
    "Compare with the tolerance of float32; 'bce' depended on the dtype if its largest value was 1"
    values, r, counts = invented()
    values = values.softmax(-1) # as attention
    single, double = (rationale_loss(values.to(dtype), r.to(dtype), counts, loss, how)
                      for dtype in (torch.float32, torch.float64))
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-6)

def test_bce_of_attention_on_one_token_is_the_same_in_every_dtype_and_finite():
    for dtype in (torch.float32, torch.float64):
        e = torch.tensor([[[1., 0., 0.]]], dtype=dtype, requires_grad=True)
        loss = rationale_loss(e, torch.tensor([[0., 1., 0.]], dtype=dtype), torch.ones(1, 1, 3).bool(), 'bce')
        loss.sum().backward()
        assert loss.item() == pytest.approx(200/3) and e.grad.isfinite().all() # logarithms of at least -100

@pytest.mark.parametrize('explanation', ['attention', 'rollout'])
def test_bce_of_attention_compares_shares_by_default_and_settings_record_it(explanation):
    method = RationaleGuided(explanation, 'bce')
    assert method.scale == method.args()['normalise'] == 'share'
    assert RationaleGuided.from_args(method.args()).args() == method.args()
    recorded = {**method.args(), 'normalise': None} # by salviz 0.1, whose default was 'largest'
    config = renamed_config(dict(method=dict(name='RationaleGuided', args=recorded)))
    assert config['method']['args']['normalise'] == 'largest' == method.completed(recorded)['normalise']
    assert 'normalise = largest' in method_fact(config).words
    kl = RationaleGuided(explanation)
    assert kl.args()['normalise'] is None and kl.completed(kl.args()) == kl.args()

def test_empty_rationale_is_a_target_except_for_shares():
    x, counts = torch.randn(1, 1, 4), torch.ones(1, 1, 4).bool()
    none = torch.zeros(1, 4)
    for loss in ('mse', 'l1', 'huber', 'bce'):
        assert rationale_loss(x, none, counts, loss, 'sigmoid') > 0
        assert rationale_loss(x, none, counts, loss, 'softmax') == 0
    assert rationale_loss(x, none, counts, 'kl', 'softmax') == 0 == rationale_loss(x, none, counts, 'order', 'sigmoid')

def test_rollout_with_a_gradient_equals_rollout():
    g = torch.Generator().manual_seed(0)
    maps = [torch.rand(3, 2, 5, 5, generator=g, dtype=torch.float64).softmax(-1) for _ in range(3)]
    for heads in (None, [1]):
        for i in range(3):
            A = np.stack([m[i].numpy() if heads is None else m[i, heads].numpy() for m in maps])
            assert alike(rolled_out(maps, heads)[i, 0], torch.from_numpy(rollout(A)))


# ---- explanations ----

saliencies = 'gradient_norm', 'gradient_abs', 'input_x_gradient', 'integrated_gradients', 'gradient_x_attention'

@pytest.mark.sample(1)
@pytest.mark.parametrize('kind', ['bert', 'gpt2', 'llama', 'deberta-v2'])
@pytest.mark.parametrize('name', saliencies)
def test_gradient_of_a_loss_on_a_saliency_equals_finite_differences(name, kind, data, tiny_tokenizer):
    "Test weights in every part of the model, word embeddings included; the saliency equals the registered one"
    from salviz.attribution.saliency import input_saliency
    tiny_tokenizer = copy.deepcopy(tiny_tokenizer)
    tiny_tokenizer.eos_token = tiny_tokenizer.sep_token
    # a DeBERTa normalises each word separately: x · gradient of a token is 0, except for the epsilon of the norm
    more = dict(layer_norm_eps=.1) if kind == 'deberta-v2' else {}
    model = small_model('classification', tiny_tokenizer, kind=kind, layers=2, heads=2, hidden=16, num_labels=2, **more)
    model = model.double().train()
    batch, before = batch_of(data, tiny_tokenizer, range(3)), None
    options = dict(steps=2) if name == 'integrated_gradients' else {}
    def loss():
        values = taught_saliency(model, batch, name, batch['labels'], **options)
        return rationale_loss(values[:, None], batch['rationale'].double(), batch['attention_mask'].bool()[:, None],
                              'mse', 'sigmoid').sum()
    if name != 'gradient_x_attention':
        seen = input_saliency(model, batch, name, batch['labels'], **options)
        assert alike(taught_saliency(model, batch, name, batch['labels'], **options).detach(), seen, size=2**12)
    before = state(model)
    total = loss()
    assert same(before, state(model)) # modes, hooks and random state do not change
    total.backward()
    named = [(k, p) for k, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0]
    checked = 0
    for k, p in named[::3]:
        at = p.grad.abs().argmax()
        # a Llama computes its norms in float32 for weights of any dtype
        step, near = (1e-3, dict(rel=1e-2, abs=3e-5)) if kind == 'llama' else (1e-5, dict(rel=1e-3, abs=1e-8))
        there = p.grad.flatten()[at].item()
        with torch.no_grad(): p.view(-1)[at] += step
        up = loss().item()
        with torch.no_grad(): p.view(-1)[at] -= 2*step
        down = loss().item()
        with torch.no_grad(): p.view(-1)[at] += step
        assert (up - down)/(2*step) == pytest.approx(there, **near), k
        checked += 1
    assert checked >= 5

def test_groups_of_nodes_give_the_same_gradient_with_few_graphs_at_a_time(
    data, tiny_tokenizer, tiny_bert, monkeypatch):
    model, batch, together = tiny_bert(hidden_dropout_prob=.2).train(), batch_of(data, tiny_tokenizer, range(4)), []
    gradients = Reading.gradients
    def counted(self, points):
        together.append(len(points))
        return gradients(self, points)
    monkeypatch.setattr(Reading, 'gradients', counted)
    def result(nodes):
        monkeypatch.setattr(rationale_guided, 'nodes_at_once', nodes)
        together.clear()
        values = taught_saliency(model, batch, 'integrated_gradients', batch['labels'], steps=12)
        before = state(model)
        grads = torch.autograd.grad(values.square().sum(), list(model.parameters()), allow_unused=True)
        assert same(state(model), before), 'going back leaves modes and random numbers alone'
        return values.detach(), grads, list(together)
    (values, grads, whole), (in_parts, of_parts, few) = result(12), result(5)
    assert whole == [12] and few == [5, 5, 2]*2
    assert alike(in_parts, values) and all_alike(of_parts, grads)

def test_cost_of_many_nodes_raises_a_warning(data, tiny_tokenizer, tiny_bert):
    encoded = feed_for(tiny_bert(), tiny_tokenizer).encode(data)
    def checked(steps):
        RationaleGuided('integrated_gradients', steps=steps).check(tiny_bert(), tiny_tokenizer, encoded, 1)
    with pytest.warns(UserWarning, match='steps=20 takes about 54 times as long as a plain step'): checked(20)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        checked(3)

def slow_attention(model, batch, method, i):
    "Return the explanations of example i as lists over its real tokens, by loops over layers, heads and rows"
    with torch.no_grad():
        out = model(**model_inputs(batch, model), output_attentions=True)
    real = batch['attention_mask'][i].bool().nonzero()[:, 0].tolist()
    sets = []
    for l in ([len(out.attentions) + l for l in method.layers]):
        A = out.attentions[l][i]
        heads = list(range(len(A))) if method.heads is None else method.heads
        maps = [A[h] for h in heads] if method.per_head else [sum(A[h] for h in heads)/len(heads)]
        for M in maps:
            if method.rows in ('pooled', 'first'): sets.append(M[real[0]])
            elif method.rows == 'mean': sets.append(sum(M[q] for q in real)/len(real))
            else: sets += [M[q] for q in real]
    return sets, real

@pytest.mark.sample(3)
@pytest.mark.parametrize('rows', ['pooled', 'first', 'mean', 'all'])
@pytest.mark.parametrize('per_head', [False, True])
@pytest.mark.parametrize('specials', [False, True])
def test_attention_is_compared_in_the_chosen_rows_and_heads(rows, per_head, specials, data, tiny_tokenizer,
                                                                  tiny_bert):
    model, batch = tiny_bert(attn_implementation='eager').double().eval(), batch_of(data, tiny_tokenizer, range(6))
    method = RationaleGuided(layers=(-2, -1), heads=[0, 3],
                             variant=RationaleGuidedVariant(per_head=per_head, rows=rows, specials=specials))
    plan = method.plan(model, batch, Progress())
    outputs, maps = _run_passes(model, model, batch, plan)
    ours = method.terms(outputs, maps, plan, batch, Progress())['rationale'].loss
    special = batch['word_ids'] < 0
    for i in range(6):
        sets, real = slow_attention(model, batch, method, i)
        counted = [t for t in real if specials or not special[i, t]]
        r = [float(batch['rationale'][i, t]) for t in counted]
        each = [slow_loss([float(s[t]) for t in counted], r, 'kl', 'share') for s in sets]
        theirs = sum(each)/len(each) if batch['has_rationale'][i] else 0.
        assert ours[i].item() == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    assert (ours > 0).any() and ours[2] == 0

def test_future_keys_of_a_decoder_do_not_count(data, tiny_tokenizer):
    tiny_tokenizer = copy.deepcopy(tiny_tokenizer)
    tiny_tokenizer.eos_token = tiny_tokenizer.sep_token
    sizes = dict(layers=2, heads=2, hidden=16, num_labels=2)
    model = small_model('classification', tiny_tokenizer, kind='gpt2', **sizes).eval()
    batch = batch_of(data, tiny_tokenizer, range(4))
    method = RationaleGuided(loss='mse', variant=RationaleGuidedVariant(rows='all'))
    plan = method.plan(model, batch, Progress())
    _, maps = _run_passes(model, model, batch, plan)
    values, counts = method.explained(maps, plan, batch)
    n = batch['input_ids'].shape[1]
    counts = counts.view(4, n, n)
    assert not counts.triu(1).any() and counts.tril().any()
    with pytest.raises(ValueError, match="RationaleGuided: rows='first': the first token of a decoder attends only"):
        RationaleGuided(variant=RationaleGuidedVariant(rows='first')).check(model, tiny_tokenizer,
                                                                            dict(train=data['train']), 1)

# ---- the contrastive criterion ----

def test_contrastive_criterion_equals_a_softmax_over_reduced_texts(data, tiny_tokenizer, tiny_bert):
    model, batch = tiny_bert().double().eval(), batch_of(data, tiny_tokenizer, range(6))
    method, now = RationaleGuided(loss='contrastive',
                                  variant=RationaleGuidedVariant(negatives=2)), Progress(seed=3, step=5)
    plan = method.plan(model, batch, now)
    with torch.no_grad():
        outputs, _ = _run_passes(model, model, batch, plan)
        ours = method.terms(outputs, None, plan, batch, now)['rationale'].loss
    special, marked = batch['word_ids'] < 0, batch['rationale']
    drawn = as_many_of_the_rest(marked, ~special, batch['example_id'], 2, 3, 5)
    for i in range(6):
        if not batch['has_rationale'][i] or not marked[i].any():
            assert ours[i] == 0
            continue
        scores = []
        for keep in (marked[i], *(d[i] for d in drawn)):
            assert keep.sum() == min(int(marked[i].sum()), int((~special[i] & ~marked[i]).sum())) or keep is marked[i]
            ids = [t for t, s, k, m in zip(batch['input_ids'][i].tolist(), special[i], keep, batch['attention_mask'][i])
                   if m and (s or k)]
            with torch.no_grad(): logits = model(input_ids=torch.tensor([ids])).logits[0]
            scores.append(math.exp(logits[batch['labels'][i]]))
        assert ours[i].item() == pytest.approx(-math.log(scores[0]/sum(scores)), rel=1e-6)
    assert not any((d & marked).any() for d in drawn) and not torch.equal(*drawn)
    again = as_many_of_the_rest(marked.flip(0), ~special.flip(0), batch['example_id'].flip(0), 2, 3, 5)
    assert torch.equal(again[0].flip(0), drawn[0]) # a draw does not depend on other examples in the batch

@pytest.mark.parametrize('dtype, expected', [(torch.float64, torch.float64), (torch.float32, torch.float32),
                                             (torch.bfloat16, torch.float32)])
def test_contrastive_criterion_keeps_the_dtype_of_the_model(dtype, expected, data, tiny_tokenizer, tiny_bert):
    model, batch = tiny_bert().to(dtype).eval(), batch_of(data, tiny_tokenizer, range(6))
    term = step_terms(RationaleGuided(loss='contrastive'), model, model, batch, Progress(), 'classification')
    assert term['rationale'].loss.dtype == expected # half precision is compared in single precision

def test_reduced_text_keeps_its_order():
    keep = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 1]]).bool()
    out = retained_alone(dict(input_ids=torch.arange(1, 9).view(2, 4), token_type_ids=torch.ones(2, 4).long()), keep, 0)
    assert out['input_ids'].tolist() == [[1, 3, 4, 0], [8, 0, 0, 0]]
    assert out['token_type_ids'].tolist() == out['attention_mask'].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


# ---- in training ----

kinds = [dict(), dict(explanation='rollout', loss='mse'), dict(explanation='input_x_gradient', loss='bce'),
                dict(explanation='integrated_gradients', loss='kl', steps=2), dict(loss='contrastive'),
                dict(explanation='gradient_x_attention', loss='margin'),
                dict(explanation='gradient_norm', loss='order', normalise='share')]

@pytest.mark.sample(2)
@pytest.mark.parametrize('soft', [False, True])
@pytest.mark.parametrize('kwargs', kinds, ids=str)
def test_batch_without_rationales_adds_exactly_zero(kwargs, soft, tiny_data, tiny_tokenizer, tiny_bert):
    data, model = with_rationales(tiny_data, soft), tiny_bert()
    some, none = (batch_of(data, tiny_tokenizer, rows) for rows in (range(8), [2, 5, 8]))
    assert some['rationale'].dtype == (torch.float32 if soft else torch.bool)
    method = RationaleGuided.from_args(kwargs)
    term = step_terms(method, model, model, none, Progress(), 'classification')['rationale']
    assert torch.equal(term.loss, torch.zeros(3))
    (term.loss.sum()*term.weight).backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    term = step_terms(method, model, model, some, Progress(), 'classification')['rationale']
    assert term.loss.isfinite().all() and (term.loss > 0).any() and not term.loss[[2, 5]].any()
    term.loss.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())

@pytest.mark.sample(1)
@pytest.mark.parametrize('kwargs', kinds, ids=str)
def test_a_few_steps_bring_explanations_closer_to_rationales(kwargs, data, tiny_tokenizer, tiny_bert):
    model = tiny_bert(hidden_dropout_prob=0., attention_probs_dropout_prob=0.)
    batch, method = batch_of(data, tiny_tokenizer, range(8)), RationaleGuided.from_args(kwargs)
    optimiser, losses = torch.optim.Adam(model.parameters(), lr=3e-3), []
    for _ in range(12):
        loss = step_terms(method, model, model, batch, Progress(), 'classification')['rationale'].loss.mean()
        loss.backward(); optimiser.step(); optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < .95*losses[0]

@pytest.mark.slow
def test_weight_compensates_for_examples_without_a_rationale(data, tiny_tokenizer, tiny_bert, tmp_path):
    method = RationaleGuided(weight=2., variant=RationaleGuidedVariant(schedule='linear'))
    run = train(tiny_bert(), tiny_tokenizer, data, method, tmp_path/'run', **quick)
    share = np.mean([r is not None for r in data['train']['rationale']])
    weights = [r['rationale_weight'] for r in run.train_rows]
    assert weights == pytest.approx([2/share*(1 - k/5) for k in range(5)])
    s = run.snapshot(0, 0)
    assert s.arrays['explanation'].shape == s.arrays['rationale_target'].shape == (len(s.tokens),)
    assert s.info['axes']['explanation'] == ['token']
    assert s.arrays['explanation'][~s.is_special].sum() == pytest.approx(
        s.arrays['attention'][-1].mean(0)[s.info['pooled_row']][~s.is_special].sum(), rel=1e-3)

def test_fractions_of_annotators_are_recorded_with_their_majority(tiny_data, tiny_tokenizer, tiny_bert,
                                                                           tmp_path):
    data = with_rationales(tiny_data, soft=True)
    run = train(tiny_bert(), tiny_tokenizer, data, RationaleGuided(), tmp_path/'run', probes='train[1:3]',
                **{k: v for k, v in quick.items() if k != 'probes'})
    s = run.snapshot(0, 0)
    assert {0., .5, 1.} == {*np.unique(s.arrays['rationale_target']).tolist()}
    assert (s.arrays['rationale'] == (s.arrays['rationale_target'] >= .5)).all() and s.arrays['rationale'].dtype == bool

@pytest.mark.sample(1)
@pytest.mark.parametrize('kwargs', kinds[:5], ids=str)
def test_resumed_run_has_the_same_result(kwargs, data, tiny_tokenizer, tiny_bert, tmp_path):
    class Breaks(RationaleGuided):
        at = None
        def plan(self, model, batch, progress):
            if progress.step == self.at and model.training: self.at = None; raise KeyboardInterrupt
            return super().plan(model, batch, progress)
    Breaks.__name__ = 'RationaleGuided'
    ends = []
    for name, at in (('whole', None), ('cut', 7)):
        method = Breaks(**kwargs)
        method.at, settings = at, {**quick, 'epochs': 2}
        model = tiny_bert()
        if at is not None:
            with pytest.raises(KeyboardInterrupt): train(model, tiny_tokenizer, data, method, tmp_path/name, **settings)
            model = tiny_bert()
        run = train(model, tiny_tokenizer, data, method, tmp_path/name, resume=at is not None, **settings)
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        ends.append(([r['loss'] for r in run.train_rows], weights))
    assert ends[0][0] == ends[1][0] and torch.equal(ends[0][1], ends[1][1])


# ---- rejected arguments ----

@pytest.mark.parametrize('kwargs, words', [
    (dict(explanation='occlusion'),
     "explanation='occlusion' cannot be trained, because it has no gradient; use one of 'attention'"),
    (dict(explanation='eyes'), 'explanation must be one of'),
    (dict(loss='hinge'), "loss must be one of 'mse'"),
    (dict(loss='kl', normalise='sigmoid'), "loss='kl' requires non-negative values"),
    (dict(explanation='input_x_gradient', loss='order', normalise='largest'),
     "set normalise to one of 'share', 'softmax', 'sigmoid'"),
    (dict(loss='bce', normalise='none'), "loss='bce' requires non-negative values"),
    (dict(loss='bce', normalise='largest'), "normalise='largest' sets the largest e to 1; set normalise to one of"),
    (dict(explanation='input_x_gradient', loss='bce', normalise='largest', ranking='magnitude'),
     "loss='bce' takes the logarithm of 1 - e, and normalise='largest' sets the largest e to 1"),
    (dict(weight=-1), 'weight must be a finite non-negative number'), (dict(heads=[]), 'heads must be None'),
    (dict(rows='last'), 'rows must be one of'), (dict(steps=0), 'steps must be a positive integer'),
    (dict(negatives=0), 'negatives must be'), (dict(delta=0), 'delta must be a finite number above 0'),
    (dict(margin=True), 'margin must be'), (dict(specials=1), 'specials must be True or False'),
    (dict(schedule='cosine'), 'schedule must be one of'), (dict(target='all'), 'target must be one of')])
def test_constructor_rejects_invalid_arguments(kwargs, words):
    with pytest.raises(ValueError, match='^RationaleGuided: ') as e: RationaleGuided.from_args(kwargs)
    assert words in str(e.value)

@pytest.mark.slow
def test_check_rejects_unsuitable_data_and_models(tiny_data, data, tiny_tokenizer,
                                                                                     tiny_bert, tmp_path):
    def rejects(words, method, data=data, model=None):
        with pytest.raises(ValueError, match=words):
            train(model or tiny_bert(), tiny_tokenizer, data, method, tmp_path/'no', **quick)
        assert not (tmp_path/'no').exists()
    rejects("requires a column 'rationale' in the training data", RationaleGuided(), tiny_data)
    none = datasets.DatasetDict({k: d.remove_columns('rationale').add_column('rationale', [None]*len(d),
        feature=d.features['rationale']) for k, d in data.items()})
    rejects('none of the 37 training examples has a rationale', RationaleGuided(), none)
    rejects('heads must be between 0 and 3', RationaleGuided(heads=[4]))
    rejects('layers', RationaleGuided(layers=[7]))
    net = small_net('text-lstm', num_labels=2, tokenizer=tiny_tokenizer)
    rejects("cannot be observed|contains no transformers model.*train a saliency", RationaleGuided(), model=net)
    taught = RationaleGuided('input_x_gradient', 'mse')
    assert train(net, tiny_tokenizer, data, taught, tmp_path/'lstm', **quick).finished
    rejects('the attention of head 0 in layer 1', RationaleGuided() + AttentionGuidance({'first': [0]}, alpha=1.))
    regression = small_model('regression', tiny_tokenizer, layers=1, heads=2, hidden=16)
    scores = datasets.DatasetDict({k: d.cast_column('label', datasets.Value('float32')) for k, d in data.items()})
    rejects("loss='contrastive' compares logits of a class", RationaleGuided(loss='contrastive'), scores, regression)
