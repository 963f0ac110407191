"Training: recording has no effect, a resumed run equals an uninterrupted one, and mistakes raise before training."
import copy
import json
import os
import textwrap
import time
import warnings

import datasets
import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

import forked
from salviz.metrics.agreement import run_agreement_table
from salviz.views.base import attention_beside_saliency, telling_snapshot
from salviz.views.curves import number_over_steps
from salviz.attribution.saliency import input_saliency
from salviz.data.texts import Collator, encode, encode_texts, model_inputs
from salviz.methods import ADDrop, ADDropVariant, AttentionGuidance, FineTuning, SaliencyGuided, SalLM
from salviz.methods.base import Progress, Term
from salviz.core.run_files import sealed
from salviz.core.runs import Run
from salviz.training.step import step_terms
from salviz.training.trainer import MethodTrainer, NonFiniteLoss, load_model, train

quick = dict(epochs=2, batch_size=8, learning_rate=1e-3, progress=False, probes=3)

@pytest.fixture
def teacher(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    return train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'teacher', snapshots=0, **quick)

methods = dict(plain=lambda t: FineTuning(), sallm=lambda t: SalLM(teacher=t, steps=4),
               guided=lambda t: SaliencyGuided(mask_fraction=.4),
               ad_drop=lambda t: ADDrop(p=.4, q=.5), ad_drop_always=lambda t: ADDrop(p=.4, q=.5, cross_tuning=False),
               guidance=lambda t: AttentionGuidance(head_fraction=.5, alpha=10.))

def weights(model): return torch.cat([p.detach().flatten() for p in model.parameters()])

@pytest.mark.sample(1)
@pytest.mark.parametrize('name', methods)
def test_recording_does_not_change_training(name, tmp_path, tiny_bert, tiny_tokenizer, tiny_data, teacher):
    ends = []
    for snapshots in (0, 5):
        model = tiny_bert()
        train(model, tiny_tokenizer, tiny_data, methods[name](teacher), run_dir=tmp_path/str(snapshots),
              snapshots=snapshots, **quick)
        ends.append(weights(model))
    assert torch.equal(*ends)
    a, b = (Run(tmp_path/str(o)).train_rows for o in (0, 5))
    assert [r['loss'] for r in a] == [r['loss'] for r in b]

@pytest.mark.sample(1)
@pytest.mark.parametrize('name', ['sallm', 'guided', 'ad_drop_always', 'guidance'])
def test_methods_change_training(name, tmp_path, tiny_bert, tiny_tokenizer, tiny_data, teacher):
    ends = []
    for method in (FineTuning(), methods[name](teacher)):
        model = tiny_bert()
        train(model, tiny_tokenizer, tiny_data, method, run_dir=tmp_path/method.name, snapshots=0, **quick)
        ends.append(weights(model))
    assert not torch.equal(*ends)

def test_evaluation_batches_texts_by_length_without_changing_scores(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    model, read = tiny_bert(), []
    def store_shape(model, args, kwargs):
        if not model.training: read.append(kwargs['input_ids'].shape)
    model.register_forward_pre_hook(store_shape, with_kwargs=True)
    run = train(model, tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', snapshots=0, **quick | dict(epochs=1))
    seen, size = list(read), max(rows for rows, _ in read)
    def padded(lengths):
        parts = (lengths[i:i + size] for i in range(0, len(lengths), size))
        return sum(max(part)*len(part) for part in parts)
    splits = {name: encode(part, tiny_tokenizer, 64) for name, part in tiny_data.items()}
    scored = [*splits.values(), splits['validation']] # validation after the epoch, and all splits at the end
    assert (sum(rows*tokens for rows, tokens in seen)
            == sum(padded(sorted(part['length'])) for part in scored)
            < sum(padded(list(part['length'])) for part in scored))
    test, collate = splits['test'], Collator(tiny_tokenizer)
    with torch.no_grad(): alone = torch.cat([model(**model_inputs(collate([row]), model)).logits for row in test])
    labels = torch.tensor(test['labels'])
    expected = torch.nn.functional.cross_entropy(alone, labels).item()
    assert run.scores('test')['loss'] == pytest.approx(expected, rel=1e-5)
    assert run.scores('test')['accuracy'] == pytest.approx((alone.argmax(-1) == labels).float().mean().item())
    kept = run.load_arrays('test_predictions')
    rows = kept['example_id'] - kept['example_id'].min()
    assert kept['predictions'].tolist() == alone.argmax(-1)[rows].tolist() and sorted(rows) == list(range(len(test)))

def test_plain_step_has_the_loss_and_gradient_of_the_model(tiny_bert, tiny_tokenizer, tiny_data):
    model, batch = tiny_bert().double().eval(), first_rows(tiny_data, tiny_tokenizer, 8)
    own = model(**model_inputs(batch), labels=batch['labels']).loss
    ours = step_terms(FineTuning(), model, model, batch, Progress(), 'classification')['task'].loss.mean()
    a, b = (torch.autograd.grad(o, model.parameters()) for o in (own, ours))
    assert torch.allclose(own, ours, atol=1e-12)
    assert all(torch.allclose(x, y, atol=1e-12) for x, y in zip(a, b))

def first_rows(data, tokenizer, n):
    rows = encode(data, tokenizer)['train']
    return Collator(tokenizer)([rows[i] for i in range(n)])

@pytest.mark.sample(1)
@pytest.mark.parametrize('name', methods)
def test_accumulated_micro_batches_equal_one_batch(name, tmp_path, tiny_bert, tiny_tokenizer, tiny_data, teacher):
    "With 37 examples the last micro-batches are uneven, so a mean of means would differ"
    ends = []
    for batch_size, pieces in ((12, 1), (4, 3)):
        model = tiny_bert(hidden_dropout_prob=0., attention_probs_dropout_prob=0.).double()
        settings = {**quick, 'batch_size': batch_size, 'gradient_accumulation': pieces}
        run = train(model, tiny_tokenizer, tiny_data, methods[name](teacher), run_dir=tmp_path/str(pieces), snapshots=0,
                    **settings)
        ends.append((weights(model), [r['loss'] for r in run.train_rows]))
    (a, x), (b, y) = ends
    assert len(x) == 8 and np.allclose(x, y, rtol=1e-6)
    assert torch.allclose(a, b, atol=1e-6)

class Watched(ADDrop):
    "AD-DROP that stores whether it is planning"
    planning = False
    def plan(self, model, batch, progress):
        self.planning = True
        try: return super().plan(model, batch, progress)
        finally: self.planning = False

def test_attribution_stays_in_full_precision_under_autocast(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    method, model, seen = Watched(cross_tuning=False), tiny_bert(), set()
    model.bert.encoder.layer[0].attention.self.query.register_forward_hook(
        lambda m, i, out: seen.add((method.planning, m.training, out.dtype)))
    train(model, tiny_tokenizer, tiny_data, method, run_dir=tmp_path/'run', snapshots=0,
          **{**quick, 'epochs': 1, 'args': dict(bf16=True, use_cpu=True)})
    assert {o for o in seen if o[1]} == {(True, True, torch.float32), (False, True, torch.bfloat16)}

class Breaks(FineTuning):
    "Plain fine-tuning that raises before a step, once"
    def __init__(self): self.at = None
    def plan(self, model, batch, progress):
        if progress.step == self.at and model.training: self.at = None; raise KeyboardInterrupt
        return super().plan(model, batch, progress)

@pytest.mark.sample(1)
@pytest.mark.parametrize('at', [3, 7])
def test_resumed_run_equals_an_uninterrupted_one(at, tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    whole, resumed = tiny_bert(), tiny_bert()
    train(whole, tiny_tokenizer, tiny_data, Breaks(), run_dir=tmp_path/'whole', snapshots=6, **quick)
    method = Breaks()
    method.at = at
    with pytest.raises(KeyboardInterrupt):
        train(resumed, tiny_tokenizer, tiny_data, method, run_dir=tmp_path/'run', snapshots=6, **quick)
    broken = Run(tmp_path/'run')
    assert not broken.finished and broken.state['error'].startswith('KeyboardInterrupt') and broken.steps
    # the checkpoint at step 5 has the weights; before it, training starts over from the model argument
    b = train(tiny_bert(seed=9 if at > 5 else 0), tiny_tokenizer, tiny_data, Breaks(), run_dir=tmp_path/'run',
              snapshots=6, resume=True, **quick)
    a = Run(tmp_path/'whole')
    assert [(r['step'], r['loss']) for r in a.train_rows] == [(r['step'], r['loss']) for r in b.train_rows]
    assert a.steps == b.steps and 'error' not in b.state
    for s in a.snapshots():
        for k, x in s.arrays.items(): assert np.array_equal(x, b.snapshot(s.step, s.probe).arrays[k]), (s.step, k)
    assert (tmp_path/'run'/'superseded').exists()

class Grown(Breaks):
    "A method whose second argument and corrected citation are newer than its run"
    cite = 'yang2022addrop'
    def __init__(self, p=.3, kept=True):
        super().__init__()
        self.p, self.kept = p, kept

@pytest.mark.sample(1)
@pytest.mark.parametrize('together', [False, True])
def test_run_older_than_an_argument_of_its_method_resumes_with_the_default(
    together, tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    def made(**kwargs): return ADDrop(cross_tuning=False) + Grown(**kwargs) if together else Grown(**kwargs)
    method = made()
    (method.methods[-1] if together else method).at = 3
    how = dict(run_dir=tmp_path/'run', snapshots=0, **quick)
    with pytest.raises(KeyboardInterrupt): train(tiny_bert(), tiny_tokenizer, tiny_data, method, **how)
    file = tmp_path/'run'/'config.json'
    config = json.loads(file.read_text())
    del (config['method']['args']['Grown'] if together else config['method']['args'])['kept'], config['seal']
    config['method']['cite'] = 'an old key'
    file.write_text(sealed(config))
    for other in (dict(kept=False), dict(p=.4)):
        with pytest.raises(ValueError, match='method; pass the arguments with which the run was started'):
            train(tiny_bert(), tiny_tokenizer, tiny_data, made(**other), resume=True, **how)
    assert train(tiny_bert(), tiny_tokenizer, tiny_data, made(), resume=True, **how).finished

def test_killed_training_leaves_a_valid_run_that_can_be_resumed(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    tiny_bert().save_pretrained(tmp_path/'model')
    tiny_tokenizer.save_pretrained(tmp_path/'model'); tiny_data.save_to_disk(tmp_path/'data')
    script = textwrap.dedent(f"""
        import datasets
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
        from salviz.training.trainer import train
        model = AutoModelForSequenceClassification.from_pretrained({str(tmp_path/'model')!r})
        tok = AutoTokenizer.from_pretrained({str(tmp_path/'model')!r})
        train(model, tok, datasets.load_from_disk({str(tmp_path/'data')!r}), run_dir={str(tmp_path/'run')!r},
              epochs=400, batch_size=8, probes=2, snapshots=400, progress=False)""")
    p = forked.begin(forked.code, script, ['-c'], said=tmp_path/'said')
    until = time.monotonic() + 120
    while p.exitcode is None and time.monotonic() < until:
        if (tmp_path/'run'/'config.json').exists() and len(Run(tmp_path/'run').checkpoints) > 1: break
        p.join(.1)
    assert p.exitcode is None
    p.kill(); p.join()
    run = Run(tmp_path/'run')
    assert run.damaged == [] and not run.finished
    assert len(run.snapshots()) == sum(1 for _ in (run.path/'snapshots').glob('step-*.safetensors')) > 0
    model, tokenizer = load_model(run, 'last')
    with pytest.raises(ValueError, match='settings'): # other settings would be another run
        train(model, tokenizer, tiny_data, run_dir=run.path, resume=True, **quick)

class Sick(FineTuning):
    "A method whose second term becomes NaN in one step"
    def __init__(self, step=3, value=float('nan')): self.step, self.value = step, value
    def terms(self, outputs, maps, plan, batch, progress):
        loss = outputs['main'].logits.sum(-1) * 0 + 1
        return dict(well=Term(loss), sick=Term(loss * self.value if progress.step + 1 >= self.step else loss))

@pytest.mark.sample(3)
@pytest.mark.parametrize('value', [float('nan'), float('inf')])
@pytest.mark.parametrize('flush_every', [1, 4])
def test_non_finite_loss_stops_training_and_is_named(value, flush_every, tmp_path, tiny_bert, tiny_tokenizer,
                                                     tiny_data, monkeypatch):
    init = MethodTrainer.__init__
    monkeypatch.setattr(MethodTrainer, '__init__', lambda self, *a, **k: init(self, *a, flush_every=flush_every, **k))
    model = tiny_bert()
    with pytest.raises(NonFiniteLoss, match='sick loss became (nan|inf) in step 3'):
        train(model, tiny_tokenizer, tiny_data, Sick(value=value), run_dir=tmp_path/'run', snapshots=11, **quick)
    run = Run(tmp_path/'run')
    assert [r['step'] for r in run.train_rows] == [1, 2] and run.steps[:3] == [0, 1, 2] and 'sick' in run.state['error']
    if flush_every == 1: assert weights(model).isfinite().all()

@pytest.mark.slow
def test_saliency_is_recorded_at_fewer_steps_and_views_report_it(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    def trained(name, **kw):
        return train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/name, snapshots=11, **quick, **kw)
    def with_saliency(run): return [s.step for s in run.snapshots(probe=0) if 'saliency' in s.arrays]
    few, every, chosen = trained('few'), trained('every', saliency_snapshots='all'), [0, 2, 5, 8, 10]
    assert with_saliency(few) == few.state['saliency_steps'] == chosen
    assert with_saliency(every) == every.steps == few.steps == list(range(11)) and 'saliency_steps' not in every.state
    assert [r['loss'] for r in few.train_rows] == [r['loss'] for r in every.train_rows]
    for s in few.snapshots():
        whole = every.snapshot(s.step, s.probe).arrays
        assert {*whole} - {*s.arrays} == (set() if s.step in chosen else {'saliency'})
        assert all(np.array_equal(x, whole[k]) for k, x in s.arrays.items())
    without = few.snapshot(3, 0)
    assert 'the last earlier step with saliency is 2' in without.info['awaited']
    assert 'awaited' not in few.snapshot(2, 0).info and 'saliency  only at steps' in repr(few)
    with pytest.raises(ValueError, match='Saliency was not recorded at this step'): attention_beside_saliency(without)
    assert number_over_steps(few).frame.step.tolist() == chosen and telling_snapshot(few).step == 10
    assert sorted({*run_agreement_table(few, step=None)['step']}) == chosen
    assert sorted({*run_agreement_table(few, step=None, saliency=None)['step']}) == few.steps

def test_training_that_stops_early_ends_with_saliency(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    settings = {**quick, 'epochs': 30, 'learning_rate': 1e-6}
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', snapshots=31, early_stopping=2,
                **settings)
    assert run.steps == [0, 5, 10, 15] and 15 not in run.state['saliency_steps']
    assert ['saliency' in run.snapshot(step, 0).arrays for step in run.steps] == [True, False, False, True]

def test_early_stopping_ends_with_a_snapshot(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    settings = {**quick, 'epochs': 30, 'learning_rate': 1e-6}
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', snapshots=2, early_stopping=2,
                **settings)
    assert run.finished and run.summary['steps'] == 15 and run.steps == [0, 15]

@pytest.mark.slow
def test_returns_last_scores_and_loads_the_last_weights(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    # validation labels are swapped, so that validation gets worse and the first epoch is the best one
    turned = tiny_data['validation'].map(lambda r: dict(label=1 - r['label']))
    data = datasets.DatasetDict({**tiny_data, 'validation': turned})
    ends, runs = {}, {}
    for returns in ('best', 'last'):
        model = tiny_bert()
        runs[returns] = train(model, tiny_tokenizer, data, run_dir=tmp_path/returns, snapshots=0, returns=returns,
                              **{**quick, 'epochs': 4, 'keep': 1})
        ends[returns] = weights(model)
        assert torch.equal(weights(load_model(runs[returns])[0]), ends[returns])
    assert not torch.equal(*ends.values())
    last, best = runs['last'], runs['best']
    assert last.best_step == last.last_step > best.best_step
    assert {r['step'] for r in last.metrics if r['kind'] == 'score'} == {last.last_step}
    assert list(last.checkpoints) == [last.last_step]
    assert last.config['settings']['returns'] == 'last' and 'returns' not in best.config['settings']
    assert '  last      validation' in repr(last) and '  best      validation' in repr(best)

@pytest.mark.slow
def test_early_stopping_continues_its_count_in_a_resumed_run(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    settings = {**quick, 'epochs': 30, 'learning_rate': 1e-6, 'early_stopping': 3, 'keep': 9}
    whole = train(tiny_bert(), tiny_tokenizer, tiny_data, Breaks(), run_dir=tmp_path/'whole', snapshots=2, **settings)
    method = Breaks()
    method.at = whole.summary['steps'] - 3
    with pytest.raises(KeyboardInterrupt):
        train(tiny_bert(), tiny_tokenizer, tiny_data, method, run_dir=tmp_path/'run', snapshots=2, **settings)
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, Breaks(), run_dir=tmp_path/'run', snapshots=2, resume=True,
                **settings)
    assert run.summary['steps'] == whole.summary['steps'] and run.steps == whole.steps

def test_model_has_the_weights_of_the_best_checkpoint(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    model = tiny_bert()
    run = train(model, tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', snapshots=0,
                **{**quick, 'epochs': 4, 'learning_rate': 3e-3})
    best = max(run.eval_rows, key=lambda r: r['accuracy'])
    assert run.summary['best_step'] == best['step'] and torch.equal(weights(load_model(run)[0]), weights(model))
    for step in run.checkpoints: load_model(run, step)
    kept, test, best = run.load_arrays('test_predictions'), tiny_data['test'], load_model(run)[0]
    predicted = [int(best(**tiny_tokenizer(t, return_tensors='pt')).logits.argmax()) for t in test['text']]
    order = np.argsort(kept['example_id'])
    assert kept['labels'][order].tolist() == test['label'] and kept['predictions'][order].tolist() == predicted
    assert np.mean(kept['labels'] == kept['predictions']) == run.scores('test')['accuracy']

@pytest.mark.slow
def test_custom_texts_are_probes_without_labels(tmp_path, tiny_bert, tiny_tokenizer, tiny_data, teacher):
    texts = ['the film is <img onerror=alert(1)> fine', 'a dull plot']
    for name in methods:
        run = train(tiny_bert(), tiny_tokenizer, tiny_data, methods[name](teacher), run_dir=tmp_path/name, snapshots=2,
                    **{**quick, 'probes': texts})
        for s, text in zip(run.snapshots(step=-1), texts):
            assert s.label is None and s.texts == (text,) and s.arrays['attention'].shape[-1] == len(s.tokens)

def test_pairs_train_and_are_recorded(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    pairs = datasets.DatasetDict({k: d.add_column('text_pair', d['text'][::-1]) for k, d in tiny_data.items()})
    run = train(tiny_bert(), tiny_tokenizer, pairs, run_dir=tmp_path/'run', snapshots=2, **quick)
    assert len(run.snapshot().texts) == 2 and sum(run.snapshot().is_special) == 3

def marked(**columns):
    return datasets.Dataset.from_dict(dict(text=['a funny film .', 'cold and silly music'], label=[1, 0], **columns))

@pytest.mark.sample(1)
@pytest.mark.parametrize('rationale',
                         [[[0, 1, 0, 0], [1, 0, 1, 0]], [[False, True, False, False], [True, False, True, False]],
                                       [[[2, 7]], [[0, 4], [9, 14]]], [[[2, 4]], [[1, 2], [9, 10]]]],
                         ids=['flags', 'bools', 'spans', 'parts'])
def test_human_rationales_of_probes_are_recorded_by_token(rationale, tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, SalLM(teacher=tiny_bert(), steps=2), run_dir=tmp_path/'run',
                snapshots=2,
                **{**quick, 'probes': marked(rationale=rationale)})
    for s, words in zip(run.snapshots(step=-1), (['funny'], ['cold', 'silly'])):
        x = s.arrays['rationale']
        assert x.dtype == bool and x.shape == (len(s.tokens),) and {s.words[i] for i in s.word_ids[x]} == set(words)
        if len(rationale[0]) == 4 or rationale[0][0][1] == 7: # whole words: all their pieces
            assert x.sum() == sum(s.words[i] in words for i in s.word_ids if i >= 0)

@pytest.mark.slow
def test_rationale_may_be_missing_or_empty_and_refers_to_a_text_of_a_pair(tmp_path, tiny_bert, tiny_tokenizer,
                                                                        tiny_data):
    for i, (rationale, found) in enumerate([([None, [[0, 4]]], (None, ['cold'])), ([[], [[5, 8]]], ([], ['and']))]):
        run = train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/str(i), snapshots=2,
                    **{**quick, 'epochs': 1, 'probes': marked(rationale=rationale)})
        for s, words in zip(run.snapshots(step=-1), found):
            assert ('rationale' in s.arrays) == (words is not None)
            if words is not None: assert [s.words[i] for i in dict.fromkeys(s.word_ids[s.arrays['rationale']])] == words
    pairs = datasets.DatasetDict({k: d.add_column('text_pair', d['text'][::-1]) for k, d in tiny_data.items()})
    probes = marked(text_pair=['the plot', 'the film'], rationale=[[[1, 4, 8]], [[0, 0, 4]]])
    run = train(tiny_bert(), tiny_tokenizer, pairs, run_dir=tmp_path/'pairs', snapshots=2,
                **{**quick, 'epochs': 1, 'probes': probes})
    for s, word in zip(run.snapshots(step=-1), ('plot', 'cold')):
        assert {s.words[i] for i in s.word_ids[s.arrays['rationale']]} == {word}

def test_snapshot_has_the_random_numbers_of_training(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    "The recorder calls the method's plan: the same example in another batch at the same step drops the same positions"
    method = ADDrop(p=.5, q=.5, cross_tuning=False, variant=ADDropVariant(first_pass='eval'))
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, method, run_dir=tmp_path/'run', snapshots=2,
                **{**quick, 'args': dict(save_only_model=True)})
    step, model = max(run.checkpoints), load_model(run, max(run.checkpoints))[0]
    for s in run.snapshots(step=step):
        example = dict(input_ids=tiny_tokenizer(s.texts[0])['input_ids'], attention_mask=[1]*len(s.tokens),
                       example_id=s.info['example_id'], labels=s.label,
                       word_ids=s.word_ids.tolist(), special_tokens_mask=s.is_special.astype(int).tolist())
        longer = {**example, 'example_id': 0, 'input_ids': example['input_ids'] + [5]*7,
                  'attention_mask': [1]*(len(s.tokens) + 7),
                  'word_ids': example['word_ids'] + [-1]*7,
                  'special_tokens_mask': example['special_tokens_mask'] + [0]*7}
        plan = method.plan(model, Collator(tiny_tokenizer)([longer, example]), Progress(step, 2, step, 2, seed=0))
        n = len(s.tokens)
        drop = np.stack([plan.drop[l][1, :, :n, :n].numpy() for l in s.layers['discarded']])
        assert s.arrays['discarded'].any() and (drop == s.arrays['discarded']).mean() > .999

bad = dict(
    method=(dict(method='ADDrop'), 'must be a method object'),
    epochs=(dict(epochs=0), 'epochs must be a positive integer, got 0'),
    cross_tuning=(dict(method=ADDrop(), epochs=1), 'ADDrop: .*at least'),
    layer=(dict(method=ADDrop(layers=[7], cross_tuning=False)), 'layers 0 to 1'),
    heads=(dict(method=AttentionGuidance(head_fraction=.4)), 'AttentionGuidance: '),
    period=(dict(method=AttentionGuidance(patterns={'period': [0]}), no_period=True), "pattern 'period'"),
    snapshots=(dict(snapshots=1), 'snapshots must be 0'),
    rate=(dict(learning_rate=2.), 'learning_rate must be a number above 0 and at most 1'),
    probes=(dict(probes=17), 'validation split has 16 examples'),
    split=(dict(probes='dev'), "no split 'dev'; available: train, validation, test"),
    no_probes=(dict(probes=[]), 'probes is empty'),
    mixed_probes=(dict(probes=['a', ('b', 'c')]), 'not a mixture'),
    number_probes=(dict(probes=[1, 2]), 'not a mixture'),
    probe_labels=(dict(probes=datasets.Dataset.from_dict(dict(text=['a', 'b'], label=[0, 7]))),
                  'train: probes: the label of example 1 must be a class of the model, from 0 to 1'),
    probe_columns=(dict(probes=datasets.Dataset.from_dict(dict(sentence=['a']))),
                   'no column text; available: sentence'),
    rationale=(dict(probes=marked(rationale=[[0, 1], [1, 0, 0, 0]])),
               'rationale of row 0 must be .* for each word.*4 words'),
    rationale_spans=(dict(probes=marked(rationale=[[[2, 7]], [[0, 99]]])),
                     'rationale of row 1 must be .*inside the text'),
    rationale_text=(dict(probes=marked(rationale=['it is funny', 'cold'])), 'rename the column'),
    method_name=(dict(method='sallm'), 'FineTuning.*SalLM.*ADDrop'),
    no_layers=(dict(method=ADDrop(layers=[], cross_tuning=False)), 'at least one layer'),
    no_layers_sallm=(dict(method=SalLM(layers=[])), 'at least one layer'),
    no_layers_guidance=(dict(method=AttentionGuidance(layers=[])), 'at least one layer'),
    seed=(dict(seed=-1), 'seed must be'),
    keep=(dict(keep=0), 'keep must be a positive integer'),
    stopping=(dict(early_stopping='x'), 'early_stopping must be a positive integer'),
    renamed=(dict(args=dict(num_train_epochs=1)), 'use the argument epochs of train instead'),
    unsupported=(dict(args=dict(label_smoothing_factor=.1)), 'label_smoothing_factor'),
    positions=(dict(max_length=65), 'must be None or an integer from 1 to 64'),
    empty_probe=(dict(probes=['  ']), 'empty'),
    arguments=(dict(args=dict(learning_ratio=1)), 'learning_ratio, which is not an argument of TrainingArguments'),
    classes=(dict(num_labels=3), "data has 2 classes .* head has 3"),
    resume=(dict(resume=True), 'no run in'),
    saliency=(dict(saliency='lime'),
              "train: saliency must be one of .*'gradient_norm'.* for input_ids such as 'captum.Lime', got 'lime'"),
    no_saliency=(dict(saliency='gradient'), "train: saliency='gradient': .*identically zero"),
)

@pytest.mark.sample(32)
@pytest.mark.parametrize('case', bad)
def test_invalid_arguments_raise_before_anything_is_written(case, tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    kwargs, message = bad[case]
    kwargs = dict(kwargs)
    data = (tiny_data if not kwargs.pop('no_period', False)
            else datasets.DatasetDict({k: d.map(lambda r: dict(text=r['text'].replace('.', '')))
                                       for k, d in tiny_data.items()}))
    model = tiny_bert(num_labels=kwargs.pop('num_labels', 2))
    with pytest.raises((ValueError, FileNotFoundError), match=message) as e:
        train(model, tiny_tokenizer, data, run_dir=tmp_path/'run', **{**quick, **kwargs})
    assert not (tmp_path/'run').exists() and '\n' not in str(e.value)

@pytest.mark.slow
def test_recorder_uses_the_requested_attribution(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    settings = dict(saliency='gradient_norm', snapshots=2, **quick)
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', **settings)
    plain = train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'plain', **{**settings, 'saliency': None})
    assert [r.config['settings'].get('saliency') for r in (run, plain)] == ['gradient_norm', None]
    assert [r.snapshot().info['saliency_method'] for r in (run, plain)] == ['gradient_norm', 'integrated_gradients']
    model, tokenizer = load_model(run, 'last')
    t = run.snapshot(probe=0)
    batch = Collator(tokenizer)(list(encode_texts(list(t.texts), tokenizer)))
    assert np.allclose(t.arrays['saliency'], input_saliency(model, batch, 'gradient_norm')[0], rtol=2e-3, atol=1e-6)
    with pytest.raises(ValueError, match='different values for settings'):
        train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=run.path, resume=True, **{**settings, 'saliency': None})

def test_existing_folder_raises(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    (tmp_path/'run').mkdir(); (tmp_path/'run'/'mine.txt').write_text('mine')
    with pytest.raises(FileExistsError, match='already exists'):
        train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', **quick)
    with pytest.raises(FileNotFoundError, match='config.json'):
        train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', resume=True, **quick)
    assert [p.name for p in (tmp_path/'run').iterdir()] == ['mine.txt']

def test_empty_texts_splits_and_invalid_labels_raise(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    for texts in (['fine', ' '], ['fine', None]):
        hollow = datasets.DatasetDict({**tiny_data,
                                       'validation': datasets.Dataset.from_dict(dict(text=texts, label=[0, 1]))})
        with pytest.raises(ValueError, match='1 of the texts in the validation split is empty .first: row 1'):
            train(tiny_bert(), tiny_tokenizer, hollow, run_dir=tmp_path/'run', **quick)
    for label in (None, .5, 'good'):
        odd = datasets.DatasetDict({**tiny_data,
                                    'validation': datasets.Dataset.from_dict(dict(text=['fine'], label=[label]))})
        with pytest.raises(ValueError, match='labels must be integers from 0 to 1, got'):
            train(tiny_bert(), tiny_tokenizer, odd, run_dir=tmp_path/'run', **quick)
    empty = datasets.DatasetDict({**tiny_data, 'test': tiny_data['test'].select([])})
    with pytest.raises(ValueError, match='test split is empty'):
        train(tiny_bert(), tiny_tokenizer, empty, run_dir=tmp_path/'run', **quick)
    plain = datasets.DatasetDict({k: datasets.Dataset.from_list([dict(text=r['text'], label=r['label'] + 1) for r in d])
                                  for k, d in tiny_data.items()})
    with pytest.raises(ValueError, match='labels must be integers from 0 to 1, got 2'):
        train(tiny_bert(), tiny_tokenizer, plain, run_dir=tmp_path/'run', **quick)

def test_texts_are_truncated_to_the_positions_of_the_model(
    tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    with pytest.warns(UserWarning, match='longer than 10 tokens were truncated'):
        train(tiny_bert(max_position_embeddings=10), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', snapshots=0,
              **quick)

def test_starting_over_from_other_weights_raises(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    method, model = Breaks(), tiny_bert()
    method.at = 3
    with pytest.raises(KeyboardInterrupt):
        train(model, tiny_tokenizer, tiny_data, method, run_dir=tmp_path/'run', **quick)
    with pytest.raises(ValueError, match='no longer has the weights'):
        train(model, tiny_tokenizer, tiny_data, Breaks(), run_dir=tmp_path/'run', resume=True, **quick)

def test_step_with_missing_probes_is_recorded_again(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    method = Breaks()
    method.at = 7
    with pytest.raises(KeyboardInterrupt):
        train(tiny_bert(), tiny_tokenizer, tiny_data, method, run_dir=tmp_path/'run', snapshots=3, **quick)
    (tmp_path/'run'/'snapshots'/'step-00000005.probe-002.safetensors').unlink()
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, Breaks(), run_dir=tmp_path/'run', snapshots=3, resume=True,
                **quick)
    assert run.recorded == [(s, p) for s in (0, 5, 10) for p in range(3)]
    assert run.summary['train_seconds'] == pytest.approx(sum(r['seconds'] for r in run.train_rows))
    assert len(run.train_rows) == 10

def test_best_checkpoint_is_the_best_of_the_existing_ones(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', snapshots=0,
                **{**quick, 'epochs': 3, 'keep': 9})
    for name in ('summary.json', 'metrics.jsonl'): (run.path/name).unlink()
    for step, accuracy in ((5, .8), (10, .6), (15, .9)): run.log(dict(kind='eval', step=step, accuracy=accuracy))
    (run.path/'checkpoints'/'checkpoint-15'/'trainer_state.json').write_text('{')
    # no other checkpoint replaces it
    with pytest.raises(ValueError, match='checkpoint-15/trainer_state.json has 1 bytes instead of'): load_model(run)
    (run.path/'checkpoints'/'checkpoint-15'/'manifest.json').unlink() # as in an incomplete checkpoint
    assert torch.equal(weights(load_model(run)[0]), weights(load_model(run, 5)[0]))
    assert not torch.equal(weights(load_model(run)[0]), weights(load_model(run, 'last')[0]))

two = '''
import sys, datasets, torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from salviz.methods import *
from salviz.training.trainer import train
folder, out, batch = sys.argv[1:]
methods = dict(guided=SaliencyGuided(mask_fraction=.4), ad_drop=ADDrop(p=.4, q=.5, cross_tuning=False),
               guidance=AttentionGuidance(), sallm=SalLM(steps=2))
for name, method in methods.items():
    model = AutoModelForSequenceClassification.from_pretrained(folder + '/model', torch_dtype=torch.float64)
    train(model, AutoTokenizer.from_pretrained(folder + '/model'), datasets.load_from_disk(folder + '/data'), method,
          run_dir=f'{out}/{name}', probes=2, snapshots=2, epochs=1, batch_size=int(batch),
          learning_rate=1e-3, progress=False, args=dict(use_cpu=True))
'''

@pytest.fixture(scope='module')
def one_and_two(tmp_path_factory, make_tiny_bert, tiny_tokenizer, tiny_data):
    "Return folders with a run of each method: the first by one process, the second by two that share each batch"
    folder = tmp_path_factory.mktemp('two')
    model = make_tiny_bert(hidden_dropout_prob=0., attention_probs_dropout_prob=0.).double()
    model.save_pretrained(folder/'model'); tiny_tokenizer.save_pretrained(folder/'model')
    datasets.DatasetDict({**tiny_data, 'train': tiny_data['train'].select(range(32))}).save_to_disk(folder/'data')
    group = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(29500 + os.getpid() % 2000), WORLD_SIZE='2',
                 LOCAL_WORLD_SIZE='2')
    def begin(out, batch_size, **env):
        words = ['-c', str(folder), str(folder/out), str(batch_size)]
        return forked.begin(forked.code, two, words, said=folder/f'{out}{env.get("RANK")}', env=env)
    for processes in ([begin('one', 8)], [begin('two', 4, RANK=r, LOCAL_RANK=r, **group) for r in '01']):
        for p in processes: p.join()
        assert [p.exitcode for p in processes] == [0]*len(processes), ''.join(
            p.read_text() for p in folder.glob('*.err'))[-3000:]
    return folder/'one', folder/'two'

@pytest.mark.sample(1)
@pytest.mark.parametrize('name', ['guided', 'ad_drop', 'guidance', 'sallm'])
def test_two_processes_train_like_one(name, one_and_two):
    "With gloo on the CPU, without dropout, and the same global batch: the same losses up to rounding, and one run"
    a, b = (Run(folder/name) for folder in one_and_two)
    assert b.finished and len(a.train_rows) == len(b.train_rows) == 4 and a.steps == b.steps
    assert np.allclose([r['loss'] for r in a.train_rows], [r['loss'] for r in b.train_rows], rtol=1e-6)
    assert a.state.get('alpha') == b.state.get('alpha')
    x, y = (weights(load_model(r)[0]) for r in (a, b))
    assert torch.allclose(x, y, atol=1e-6)

@pytest.mark.slow
@pytest.mark.parametrize('name', ['guided', 'ad_drop'])
def test_decoder_trains_the_same_with_and_without_token_types(name, tmp_path, tiny_tokenizer, tiny_data):
    sizes = dict(n_embd=16, n_layer=2, n_head=4, n_positions=64, pad_token_id=0, bos_token_id=2, eos_token_id=3)
    ends = []
    for names in (['input_ids', 'attention_mask'], ['input_ids', 'token_type_ids', 'attention_mask']):
        tokenizer = copy.deepcopy(tiny_tokenizer)
        tokenizer.model_input_names = names
        torch.manual_seed(0)
        model = GPT2ForSequenceClassification(GPT2Config(vocab_size=len(tokenizer), num_labels=2, **sizes))
        train(model, tokenizer, tiny_data, methods[name](None), run_dir=tmp_path/str(len(names)), snapshots=2,
              **{**quick, 'epochs': 1 if name != 'ad_drop' else 2})
        ends.append(weights(model))
    assert torch.equal(*ends)

def test_long_texts_are_truncated_with_one_warning_that_counts_them(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    with pytest.warns(UserWarning, match='longer than 8 tokens were truncated') as w:
        train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', snapshots=0, max_length=8, **quick)
    assert sum('were truncated' in str(o.message) and 'of 69' in str(o.message) for o in w) == 1

def test_every_public_name_has_a_docstring():
    import salviz
    for name in salviz.__all__: assert getattr(salviz, name).__doc__, name

@pytest.mark.parametrize('count', [40, 20]) # twenty rows may share an answer by chance
def test_a_classifier_that_gives_one_answer_after_half_of_training_is_reported(count, tmp_path, tiny_bert,
                                                                              tiny_tokenizer, tiny_data):
    rows = [*range(len(tiny_data['validation']))]*40
    data = datasets.DatasetDict(tiny_data, validation=tiny_data['validation'].select(rows[:count]))
    model, labels = tiny_bert(), data['validation']['label']
    assert .2 < np.mean(np.equal(labels, 1)) < .8
    model.classifier.bias.data[1] = 50.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        run = train(model, tiny_tokenizer, data, run_dir=tmp_path/'run', **{**quick, 'epochs': 4})
    found = [str(w.message) for w in caught if 'predicts class' in str(w.message)]
    assert len(found) == (count == 40) and ('stuck_at' in run.state) == (count == 40)
    if found:
        others = np.mean(np.not_equal(labels, 1))
        assert f'predicts class 1 for all 40 validation rows, although {others:.0%}' in found[0]
        assert run.state['stuck_at']['step'] == 2*run.train_rows[-1]['step']//4
