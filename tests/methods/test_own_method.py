"""The method of the notebook on custom methods: entropy of attention against loops in float64, its evidence, and its
combination with other methods"""
import inspect
import math
import random

import numpy as np
import pytest
import torch
from transformers import (BertConfig, BertForSequenceClassification, BertForTokenClassification, GPT2Config,
                          GPT2ForSequenceClassification)

import salviz.methods.attention_entropy as code
from helpers import same, state
from salviz.models.attention import observe
from salviz.core.bibliography import bibtex
from salviz.data.texts import Collator, encode, model_inputs
from salviz.methods.ad_drop import ADDrop
from salviz.methods.attention_entropy import AttentionEntropy, attention_entropy
from salviz.figures.drawing import save_figure
from salviz.methods.base import FineTuning, Method, Plan, Progress, Term, plan_of, terms_of
from salviz.figures.kinds import figure
from salviz.core.runs import Run
from salviz.training.trainer import train


def reference_entropy(heads, keys, form):
    "Return the entropy of one row in float64; `heads`: [head][key] of attention, `keys`: those that count"
    a = [sum(float(h[k]) for h in heads)/len(heads) for k in keys]
    if form == 'released': a = [math.exp(x)/sum(math.exp(y) for y in a) for x in a]
    return -sum(x*math.log(x) for x in a if x > 0)


@pytest.mark.parametrize('form', ['attention', 'released'])
@pytest.mark.parametrize('causal', [False, True])
def test_the_entropy_of_every_row_is_the_definition_with_pads_on_either_side(form, causal):
    rng, n = np.random.default_rng(0), 8
    starts, ends = [0, 2, 0, 3], [8, 8, 5, 4]
    allowed = np.zeros((4, 1, n, n), bool)
    for b in range(4):
        for q in range(n):
            for k in range(starts[b], ends[b]): allowed[b, 0, q, k] = k <= q or not causal
    attention = rng.random((4, 3, n, n))**6 * allowed
    attention[0, :, 1] = allowed[0, :, 1] * (np.arange(n) == 0) # a row that attends to one key
    attention /= attention.sum(-1, keepdims=True).clip(1e-12)
    got = attention_entropy(torch.tensor(attention), torch.tensor(allowed), form)
    assert got.dtype == torch.float64
    for b in range(4):
        for q in range(starts[b], ends[b]):
            keys = [k for k in range(n) if allowed[b, 0, q, k]]
            expected = reference_entropy(attention[b, :, q], keys, form)
            assert got[b, q].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
            assert got[b, q] <= math.log(len(keys)) + 1e-9


def test_keys_without_attention_have_finite_gradients_and_half_precision_is_converted():
    attention = torch.tensor([[[[1., 0., 0.], [0., .5, .5], [1., 0., 0.]]]], requires_grad=True)
    attention_entropy(attention, torch.ones(1, 1, 3, 3, dtype=torch.bool)).sum().backward()
    assert attention.grad.isfinite().all() and attention.grad.abs().sum() > 0
    assert attention_entropy(attention.detach().bfloat16(),
                             torch.ones(1, 1, 3, 3, dtype=torch.bool)).dtype == torch.float32


def term_of(method, model, batch):
    plan = method.plan(model, batch, Progress())
    with observe(model, layers=list(plan.layers)) as maps: outputs = model(**model_inputs(batch))
    return method.terms(dict(main=outputs), maps, plan, batch, Progress())['negative_entropy'], plan


@pytest.fixture
def gpt2(tiny_tokenizer):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=len(tiny_tokenizer), n_layer=2, n_head=4, n_embd=32, n_positions=64,
                            num_labels=2, pad_token_id=0, initializer_range=.3)
        return GPT2ForSequenceClassification(config).eval()


@pytest.mark.parametrize('kind', ['bert', 'gpt2'])
@pytest.mark.parametrize('arguments', [dict(), dict(layers=[-1], alpha=2.), dict(form='released')])
def test_the_term_is_the_equation_on_the_models_own_eager_attention(kind, arguments, tiny_bert, gpt2, tiny_tokenizer,
                                                                    tiny_data):
    model = tiny_bert(initializer_range=.3).eval() if kind == 'bert' else gpt2
    rows, method = encode(tiny_data['train'].select(range(6)), tiny_tokenizer), AttentionEntropy(**arguments)
    batch = Collator(tiny_tokenizer, 32)([rows[i] for i in range(6)])
    term, plan = term_of(method, model, batch)
    lengths = [len(r['input_ids']) for r in rows]
    assert len(set(lengths)) > 3
    assert plan.layers == tuple(l % 2 for l in method.layers or range(2))
    assert term.weight == method.alpha
    model.set_attn_implementation('eager')
    for b, row in enumerate(rows):
        with torch.no_grad(): maps = model(torch.tensor([row['input_ids']]), output_attentions=True).attentions
        n, total = lengths[b], 0.
        for l in plan.layers:
            entropies = [reference_entropy(maps[l][0, :, i], range(i + 1 if kind == 'gpt2' else n), method.form)
                         for i in range(n)]
            total += sum(entropies)/n
            np.testing.assert_allclose(plan.evidence['attention_entropy'][l][b, :n], entropies, atol=2e-5)
        assert term.loss[b].item() == pytest.approx(-total, rel=1e-4)


def test_the_gradient_widens_attention_and_planning_leaves_no_trace(tiny_bert, tiny_tokenizer, tiny_data):
    model, method = tiny_bert(initializer_range=.3), AttentionEntropy(alpha=1.)
    rows = encode(tiny_data['train'].select(range(6)), tiny_tokenizer)
    batch = Collator(tiny_tokenizer)([rows[i] for i in range(6)])
    before = state(model)
    method.check(model, tiny_tokenizer, dict(train=rows), 1)
    method.plan(model, batch, Progress())
    assert same(state(model), before)
    model.eval()
    optimiser, seen = torch.optim.SGD(model.parameters(), lr=.5), []
    for _ in range(4):
        term, plan = term_of(method, model, batch)
        assert not any(x.requires_grad for x in plan.evidence['attention_entropy'].values())
        optimiser.zero_grad(); term.loss.mean().backward(); optimiser.step()
        seen.append(term.loss.mean().item())
    assert seen == sorted(seen, reverse=True) and seen[0] - seen[-1] > .01


def test_three_tasks_are_supported_and_others_raise(tiny_bert, tiny_tokenizer, tiny_data):
    rows = encode(tiny_data['train'].select(range(3)), tiny_tokenizer)
    batch, method = Collator(tiny_tokenizer)([rows[i] for i in range(3)]), AttentionEntropy()
    config = tiny_bert().config
    for model in (tiny_bert(), tiny_bert(num_labels=1), BertForTokenClassification(config)):
        method.check(model, tiny_tokenizer, dict(train=rows), 1)
        assert term_of(method, model.eval(), batch)[0].loss.shape == (3,)
    model = BertForSequenceClassification(BertConfig(**{**config.to_dict(), 'num_labels': 2}))
    for layers, says in (([2], 'layers 0 to 1'), ([], 'AttentionEntropy: layers must contain at least one')):
        with pytest.raises(ValueError, match=says):
            AttentionEntropy(layers=layers).check(model, tiny_tokenizer, dict(train=rows), 1)
    class Elsewhere(AttentionEntropy): supported_tasks = ('seq2seq',)
    with pytest.raises(ValueError, match='Elsewhere: does not support classification; supported tasks: seq2seq'):
        Elsewhere().check(model, tiny_tokenizer, dict(train=rows), 1)
    class OfOld(FineTuning): serves = ('seq2seq',)
    with pytest.warns(DeprecationWarning, match='OfOld.serves is now called supported_tasks'):
        assert OfOld().task_names() == ('seq2seq',)
    for arguments, says in ((dict(alpha=math.nan), 'alpha must be a finite non-negative number'),
                            (dict(form='norm'), "form must be one of 'attention', 'released'")):
        with pytest.raises(ValueError, match=f'AttentionEntropy: {says}'): AttentionEntropy(**arguments)


quick = dict(epochs=1, batch_size=8, learning_rate=1e-2, probes=2, snapshots=2, seed=0, progress=False)

@pytest.mark.slow
def test_a_run_records_its_evidence_and_the_method_composes(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    run = train(tiny_bert(initializer_range=.3), tiny_tokenizer, tiny_data, AttentionEntropy(alpha=1.),
                run_dir=tmp_path/'alone', **quick)
    s = run.snapshot(step=0)
    n = len(s.tokens)
    assert s.arrays['attention_entropy'].shape == (2, n) and s.layers['attention_entropy'] == [0, 1]
    for l in range(2):
        expected = [reference_entropy(s.arrays['attention'][l, :, i].astype(float), range(n), 'attention')
                    for i in range(n)]
        # both are stored in half precision
        np.testing.assert_allclose(s.arrays['attention_entropy'][l], expected, atol=5e-3)
    assert all(r['negative_entropy'] < 0 and r['negative_entropy_weight'] == 1 for r in run.train_rows)
    assert run.snapshot(step=-1).arrays['attention_entropy'].mean() > s.arrays['attention_entropy'].mean()
    both = train(tiny_bert(initializer_range=.3), tiny_tokenizer, tiny_data,
                 AttentionEntropy(alpha=1.) + ADDrop(cross_tuning=False), run_dir=tmp_path/'both', **quick)
    assert {'attention_entropy', 'discarded'} <= set(both.snapshot(step=-1).arrays)
    assert both.snapshot().arrays['discarded'].any()
    assert set(both.config['method']['args']) == {'AttentionEntropy', 'ADDrop'}


def test_method_is_short_and_uses_public_names_only():
    lines = [l for l in inspect.getsource(code).splitlines() if l.strip() and not l.startswith('#')]
    assert len(lines) < 100 and issubclass(AttentionEntropy, Method)
    written = {m for m in vars(AttentionEntropy) if not m.startswith('_')}
    assert written == {'cite', 'supported_tasks', 'check', 'plan', 'terms'}


def test_randomness_is_untouched_by_training_terms(tiny_bert, tiny_tokenizer, tiny_data):
    model, rows = tiny_bert().eval(), encode(tiny_data['train'].select(range(3)), tiny_tokenizer)
    before = (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate())
    term_of(AttentionEntropy(), model, Collator(tiny_tokenizer)([rows[i] for i in range(3)]))
    assert (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()) == before


entry = '@article{me2026wide,\n  author = {Me, A. and {Hostile \\} $x$ & Co}},\n  title = {Wide},\n  year = 2026\n}'

@pytest.mark.slow
def test_citation_of_a_custom_method_is_in_the_bib_file_of_its_figures(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    class Wide(AttentionEntropy): cite = [entry, 'sundararajan2017axiomatic']
    method = Wide() + ADDrop(cross_tuning=False)
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, method, tmp_path/'run', **quick)
    for source in (Run(run.path), run.snapshot()):
        fig = figure(source, 'attention_map')
        assert entry in fig.citations
        assert bibtex('ADDrop') in fig.citations
        assert fig.citations.count(bibtex('integrated_gradients')) == 1
    save_figure(fig, tmp_path/'a.pdf', caption=True)
    assert entry in (tmp_path/'a.bib').read_text()
    class Other(AttentionEntropy): cite = entry.replace('2026\n', '2027\n')
    other = train(tiny_bert(), tiny_tokenizer, tiny_data, Other(), tmp_path/'other', **quick)
    with pytest.warns(UserWarning, match='two different entries have the key me2026wide; only the first is cited'):
        assert sum('me2026wide' in o for o in figure([run, other], 'attention_map').citations) == 1


@pytest.mark.sample(4)
@pytest.mark.parametrize('cite', ['attanasio-2022-ear', 'Me 2026, @home', entry[:-1], entry + entry, 7,
                                  [entry, None, 'x'], b'bytes', '@comment{me2026wide, x}'])
def test_invalid_citation_raises_before_a_folder_is_created(
    cite, tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    class Wide(AttentionEntropy): pass
    Wide.cite = cite
    for method in (Wide(), ADDrop(cross_tuning=False) + Wide()):
        with pytest.raises(ValueError, match='^Wide: cite must be a BibTeX entry as text, a key of this library'):
            train(tiny_bert(), tiny_tokenizer, tiny_data, method, tmp_path/'run', **quick)
    assert not (tmp_path/'run').exists()


@pytest.mark.slow
def test_unknown_citation_keys_of_older_runs_are_left_out(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, AttentionEntropy(), tmp_path/'run', **quick)
    config = run.config
    for cite in ('attanasio-2022-ear', 7, {'a': 1}, [['x'], entry]):
        config['method']['cite'] = cite
        old = Run.create(tmp_path/f'old-{str(cite)[:3]}', config)
        old.save(run.snapshot())
        assert bibtex('integrated_gradients') in figure(old, 'attention_beside_saliency').citations


def test_plan_and_terms_are_formatted_only_for_an_error(monkeypatch):
    "Formatting a tensor waits for the device; it took two thirds of the time of a short training"
    def written(*args, **kwargs): raise AssertionError('a tensor was written out')
    monkeypatch.setattr(torch.Tensor, '__repr__', written)
    x = torch.ones(2, 3)
    class Holds(Method):
        def plan(self, model, batch, progress): return Plan(layers=(0,), evidence=dict(x={0: x}), axes=dict(x='nn'))
        def terms(self, outputs, maps, plan, batch, progress): return dict(mine=Term(x.sum(1), x.sum()))
    plan = plan_of(Holds(), None, {}, Progress())
    assert terms_of(Holds(), {}, {}, plan, {}, Progress())['mine'].loss.tolist() == [3, 3]
    with pytest.raises(AssertionError, match='a tensor was written out'): repr(plan)
