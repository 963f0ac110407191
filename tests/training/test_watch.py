"Watching changes nothing, costs little, rejects what it cannot watch, and leaves a normal run."
import contextlib
import copy
import math
import os
import random
import subprocess
import sys
import types
import warnings
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

import forked
from salviz.attribution.explanations import explain
from salviz.core.locks import RunInUse
from salviz.core.runs import Run
from salviz.explorer.widget import Explorer
from salviz.models.attention import attention_layers, observe
from salviz.models.batch_heads import batch_head_numbers, special_ids
from salviz.models.corruption import small_model
from salviz.training.trainer import train
from salviz.training.watching import Spacing, watch

probes = ['the film and a fine story', 'dull']
quick = dict(max_steps=4, per_device_train_batch_size=4, learning_rate=1e-3, use_cpu=True, report_to='none',
             disable_tqdm=True, save_strategy='no')


def no_watcher(*args, **kwargs): return None


@pytest.fixture
def watching(tmp_path, tiny_tokenizer):
    "Return a function that watches a model; every recording takes place unless `steps` says otherwise"
    begun = []
    def begin(model, run_dir='run', texts=probes, tokenizer=tiny_tokenizer, **kw):
        begun.append(watch(model, tokenizer, texts, run_dir=tmp_path/run_dir, **{'steps': 2, **kw}))
        return begun[-1]
    yield begin
    for watcher in begun: watcher.finish()


def batches(tokenizer, data, n, size=4):
    rows = data['train']
    for i in range(n):
        part = rows.select([(i*size + j) % len(rows) for j in range(size)])
        yield dict(tokenizer(list(part['text']), padding=True, return_tensors='pt'), labels=torch.tensor(part['label']))


def random_states():
    python, arrays = random.getstate(), np.random.get_state()
    return python, arrays[1].tolist(), arrays[2:], torch.get_rng_state().tolist()


def loop(model, tokenizer, data, begin, autocast=False, accumulate=1, steps=4):
    """Train with dropout; Python and numpy draw numbers too, and an embedding stays in evaluation mode with frozen
    weights. Return everything that watching could change"""
    for seed in (random.seed, np.random.seed, torch.manual_seed): seed(0)
    model.train()
    model.bert.embeddings.eval()
    for p in model.bert.embeddings.parameters(): p.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    watcher, drawn, losses = begin(model), [], []
    casting = torch.autocast('cpu', torch.bfloat16) if autocast else contextlib.nullcontext()
    with casting: # around the watcher too
        for i, batch in enumerate(batches(tokenizer, data, steps*accumulate), 1):
            loss = model(**batch).loss
            loss.backward()
            losses.append(float(loss.detach()))
            if i % accumulate: continue
            optimizer.step()
            if watcher: watcher.step(loss=loss) # gradients are still there
            drawn.append((random.random(), np.random.rand(), float(torch.rand(()))))
            grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
            optimizer.zero_grad()
    if watcher: watcher.finish()
    return dict(weights=[p.detach().clone() for p in model.state_dict().values()], grads=grads, losses=losses,
                modes=[m.training for m in model.modules()], needed=[p.requires_grad for p in model.parameters()],
                states=random_states(), drawn=drawn, moments=list(optimizer.state_dict()['state'].items()))


def assert_same(a, b):
    "Assert that two results of `loop` are equal to the bit"
    for name in ('weights', 'grads'):
        for x, y in zip(a[name], b[name], strict=True):
            assert (x is None and y is None) or torch.equal(x, y), name
    for name in ('losses', 'modes', 'needed', 'states', 'drawn'): assert a[name] == b[name], name
    for (i, x), (j, y) in zip(a['moments'], b['moments'], strict=True):
        assert i == j and all(torch.equal(x[k], y[k]) for k in x)


@pytest.mark.parametrize('how', [dict(), dict(autocast=True), dict(accumulate=2), dict(checkpointing=True)],
                         ids=['plain', 'autocast', 'accumulation', 'checkpointing'])
def test_watching_a_loop_changes_nothing(watching, tmp_path, tiny_bert, tiny_tokenizer, tiny_data, how):
    how, results = dict(how), []
    checkpointing = how.pop('checkpointing', False)
    for begin in (no_watcher, watching):
        model = tiny_bert(num_hidden_layers=2)
        if checkpointing: model.gradient_checkpointing_enable(dict(use_reentrant=False))
        results.append(loop(model, tiny_tokenizer, tiny_data, begin, **how))
        assert model.is_gradient_checkpointing == checkpointing and not model._forward_pre_hooks
    assert_same(*results)
    rows = [r for r in Run(tmp_path/'run').metrics if r['kind'] == 'heads']
    assert [(r['step'], r['texts'], np.shape(r['entropy'])) for r in rows] == [(2, 4, (2, 4)), (4, 4, (2, 4))]


@pytest.mark.slow
def test_watching_a_compiled_model_changes_nothing(watching, tiny_bert, tiny_tokenizer, tiny_data):
    results = []
    for begin in (no_watcher, watching):
        torch._dynamo.reset()
        model = tiny_bert(num_hidden_layers=1)
        model.compile(backend='eager')
        results.append(loop(model, tiny_tokenizer, tiny_data, begin, steps=2))
    assert_same(*results)
    torch._dynamo.reset()
    watcher = watching(torch.compile(tiny_bert(), backend='eager'), 'wrapped')
    assert watcher.run.snapshot().arrays['attention'].shape[:2] == (2, 4)


class Losses(TrainerCallback):
    def __init__(self): self.logs = []
    def on_log(self, args, state, control, logs=None, **kw): self.logs.append({k: logs[k] for k in logs if k == 'loss'})


def trainer_of(model, tokenizer, data, folder, callbacks, **kw):
    def encode(rows): return dict(tokenizer(rows['text']), labels=rows['label'])
    encoded = data['train'].map(encode, batched=True, remove_columns=['text', 'label'])
    args = TrainingArguments(str(folder), logging_steps=1, **quick, **kw)
    return Trainer(model, args, train_dataset=encoded, processing_class=tokenizer, callbacks=callbacks)


def test_watching_transformers_trainer_changes_nothing(watching, tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    "With dropout, gradient accumulation, bf16 autocast and gradient checkpointing"
    results = []
    for begin in (no_watcher, watching):
        model, logged = tiny_bert(), Losses()
        watcher = begin(model)
        callbacks = [logged, watcher] if watcher else [logged]
        trainer = trainer_of(model, tiny_tokenizer, tiny_data, tmp_path/'out', callbacks,
                             gradient_accumulation_steps=2, bf16=True, gradient_checkpointing=True)
        trainer.train()
        results.append((logged.logs, [x.clone() for x in model.state_dict().values()], random_states()))
    (a, weights, state), (b, watched, watched_state) = results
    assert a == b and all(map(torch.equal, weights, watched)) and state == watched_state
    run = watcher.run
    assert run.finished and run.steps == [0, 2, 4] and run.snapshot(-1).epoch > 0
    assert [r['loss'] for r in run.train_rows] == [row['loss'] for row in b if row]
    assert 'grad_norm' in next(r for r in run.metrics if r['kind'] == 'log')
    assert [(r['step'], r['texts']) for r in run.metrics if r['kind'] == 'heads'] == [(2, 4), (4, 4)]


def test_the_trainer_must_train_the_watched_model(watching, tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    watcher = watching(tiny_bert())
    trainer = trainer_of(tiny_bert(), tiny_tokenizer, tiny_data, tmp_path/'out', [watcher])
    with pytest.raises(ValueError, match='the model of the Trainer is not the watched BertForSequenceClassification'):
        trainer.train()


def test_a_watched_run_opens_in_a_fresh_process_and_in_salviz_show(watching, tmp_path, tiny_bert, tiny_tokenizer,
                                                                  tiny_data):
    loop(tiny_bert(), tiny_tokenizer, tiny_data, watching)
    program = '''
import sys
from salviz import Run, figure
from salviz.cli import main
run = Run(sys.argv[1])
assert run.finished and run.steps == [0, 2, 4] and run.probes == [0, 1] and not run.check(), run
assert [r['step'] for r in run.train_rows] == [4] and run.summary['steps'] == 4
assert figure(run, 'head_statistics').caption
assert not main(['show', sys.argv[1], '--out', sys.argv[2]])
assert 'torch' not in sys.modules
'''
    done = subprocess.run([sys.executable, '-c', program, tmp_path/'run', tmp_path/'page.html'], capture_output=True,
                          text=True, check=False)
    assert not done.returncode, done.stderr
    assert 'the film and a fine story' in (tmp_path/'page.html').read_text()


def test_the_explorer_follows_a_watched_training(watching, tiny_bert, tiny_tokenizer, tiny_data):
    watcher = watching(tiny_bert())
    explorer = Explorer(watcher)
    assert explorer.controls is None and explorer.selected().snapshot.step == 0
    watcher.step(loss=1.)
    watcher.step(loss=torch.tensor(.5))
    explorer.view.settle()
    assert [x for x in explorer._metas()[0]['recorded'] if x[1] == 2] == [[0, 2], [1, 2]]
    assert explorer.picture().axes # does not wait for the training
    watcher.finish()
    explorer._worker.flush()
    assert explorer._metas()[0]['finished'] and watcher.state == 'finished'
    explorer.close()


def test_a_folder_is_watched_once(watching, tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    watcher = watching(tiny_bert())
    with pytest.raises(FileExistsError, match='already exists, or another process .* a watched run cannot be resumed'):
        watching(tiny_bert())
    with pytest.raises(RunInUse, match='is in use by process'):
        train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', progress=False)
    watcher.finish()
    with pytest.raises(ValueError, match='cannot resume .*: .* different values for method, data, settings'):
        train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', progress=False, resume=True)
    with pytest.raises(RuntimeError, match='this watcher has finished'): watcher.step(loss=1.)
    assert watcher.finish().steps == [0]


class Clock:
    "A clock that moves only when a test advances it"
    def __init__(self): self.now = 0.
    def __call__(self): return self.now


def spaced(watching, model, run_dir, seconds, cost, steps=400, **kw):
    "Return the recorded steps and the spacing of `steps` steps of `seconds` each, with recordings of `cost` seconds"
    clock, watcher = Clock(), watching(model, run_dir, steps=None, saliency=False, **kw)
    def record(*args, **kwargs): clock.now += cost
    watcher.recorder, recorded = record, [0]
    watcher.spacing = Spacing(kw.get('budget', .02), clock=clock)
    with watcher.spacing.recorded(0): record()
    for step in range(1, steps + 1):
        clock.now += seconds
        before = watcher.spacing.count
        watcher.step()
        recorded += [step]*(watcher.spacing.count - before)
    watcher.finish()
    return recorded, watcher.spacing


def test_recordings_are_spaced_so_that_they_take_at_most_two_percent_of_the_training(watching, tiny_bert):
    model = tiny_bert()
    recorded, spacing = spaced(watching, model, 'slow', 1., 1.)
    assert recorded == [0, 151, 201, 251, 302, 363] # the last step is recorded too: 7 seconds
    assert spacing.count == 7 and spacing.spent <= .02*spacing.training_seconds
    recorded, spacing = spaced(watching, model, 'quick', 1., 1e-4) # never more often than the steps grow apart
    assert recorded[:8] == [0, 2, 3, 4, 5, 6, 8, 10] and len(recorded) < 35
    recorded, spacing = spaced(watching, model, 'costly', 1., 50.) # only the first and the last step
    assert recorded == [0] and spacing.count == 2
    recorded, spacing = spaced(watching, model, 'generous', 1., 1., budget=.1)
    assert recorded[1] == 31 and .02 < spacing.spent/spacing.training_seconds <= .1


def test_losses_of_a_loop_are_averaged_before_they_are_written(watching, tiny_bert):
    watcher = watching(tiny_bert(), steps=10**6, saliency=False, log_every=4)
    for loss in range(10): watcher.step(loss=torch.tensor(float(loss), requires_grad=True), accuracy=.5, epoch=loss/10)
    run = watcher.finish()
    assert [(r['step'], r['loss']) for r in run.train_rows] == [(4, 1.5), (8, 5.5), (10, 8.5)]
    assert run.train_rows[-1]['epoch'] == .9 and 'accuracy' not in run.train_rows[-1] # not drawn as if it were a loss
    assert [r['accuracy'] for r in run.metrics if r['kind'] == 'log'] == [.5]*3


@pytest.mark.parametrize('task, texts, arrays', [
    ('classification', ['film', 'the film . '*200], {'probabilities'}),
    ('regression', ['film', ('the film', 'a story')][:1], {'prediction'}),
    ('token_classification', ['film', 'the film . '*200], {'token_confidence'}),
    ('masked_lm', ['the', 'the film . '*200], {'token_confidence'}),
    ('causal_lm', ['the film', 'the film . '*200], {'token_confidence'})])
def test_every_task_is_watched_with_short_and_long_probes(watching, tiny_tokenizer, task, texts, arrays):
    model = small_model(task, tiny_tokenizer, layers=1, **dict(classification=dict(num_labels=2),
                        token_classification=dict(labels=['O', 'NAME'])).get(task, {}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        watcher = watching(model, texts=texts)
    cut = [w for w in caught if 'longer than 64 tokens were truncated' in str(w.message)]
    assert len(cut) == (len(texts) > 1)
    s = watcher.run.snapshot(0, 0)
    assert arrays | {'attention', 'saliency'} <= set(s.arrays) and s.info['task'] == task
    if len(texts) > 1: assert len(watcher.run.snapshot(0, 1).tokens) == 64
    watcher.step(loss=1.)
    assert watcher.finish().steps == [0, 1]


def test_layers_score_and_saliency_are_chosen(watching, tiny_bert):
    first = watching(tiny_bert(), layers=-1, score=0).run.snapshot()
    assert first.layers['attention'] == [1] and first.arrays['attention'].shape[0] == 1
    second = watching(tiny_bert(), 'other', score=1, saliency='input_x_gradient').run.snapshot()
    assert second.info['saliency_method'] == 'input_x_gradient' and 'saliency_method' in first.info
    third = watching(tiny_bert(), 'third', score=lambda outputs, rows: outputs.logits[:, 0] - outputs.logits[:, 1])
    fourth = watching(tiny_bert(), 'fourth', score=lambda outputs, rows: outputs.logits[:, 1] - outputs.logits[:, 0])
    assert np.allclose(third.run.snapshot().arrays['saliency'], -fourth.run.snapshot().arrays['saliency'], atol=1e-6)
    without = watching(tiny_bert(), 'without', saliency=False).run.snapshot()
    assert 'saliency' not in without.arrays and 'saliency_method' not in without.info and 'awaited' not in without.info


def test_a_model_without_a_padding_token_is_explained_without_a_baseline(tmp_path, tiny_bert, tiny_tokenizer):
    model = tiny_bert()
    model.config.pad_token_id = None
    with watch(model, tiny_tokenizer, probes, run_dir=tmp_path/'run') as watcher:
        assert watcher.run.snapshot().info['saliency_method'] == 'gradient_norm'
    assert watcher.run.finished
    unpadded = copy.deepcopy(tiny_tokenizer)
    unpadded.pad_token = None
    with pytest.raises(ValueError, match='watch: the tokenizer has no padding token; set one'):
        watch(tiny_bert(), unpadded, probes, run_dir=tmp_path/'unpadded')


def test_an_error_of_a_recording_ends_the_watching_but_not_the_training(watching, tiny_bert, tiny_tokenizer, tiny_data,
                                                                       monkeypatch):
    plain = loop(tiny_bert(), tiny_tokenizer, tiny_data, no_watcher)
    def full(self, snapshot): raise OSError(28, 'No space left on device')
    begun = []
    def begin(model):
        begun.append(watching(model))
        monkeypatch.setattr(Run, 'save', full)
        return begun[0]
    with pytest.warns(UserWarning, match='recording failed at step 2 .*No space left.* the training continues'):
        watched = loop(tiny_bert(), tiny_tokenizer, tiny_data, begin)
    assert_same(plain, watched)
    assert begun[0].state == 'failed' and 'No space left' in begun[0].run.state['error'] and begun[0].run.steps == [0]


def test_an_error_of_the_training_is_recorded(watching, tiny_bert):
    with pytest.raises(KeyError), watching(tiny_bert()) as watcher: raise KeyError('labels')
    assert watcher.state == 'failed' and not watcher.run.finished and 'KeyError' in watcher.run.state['error']


def test_bad_input_raises_at_the_start_and_leaves_nothing(tmp_path, tiny_bert, tiny_tokenizer):
    def fails(message, model=None, tokenizer=tiny_tokenizer, texts=probes, error=ValueError, **kw):
        with pytest.raises(error, match=message):
            watch(model or tiny_bert(), tokenizer, texts, run_dir=tmp_path/'run', **kw)
        assert not (tmp_path/'run').exists()
    for texts in ([], 'one text', [3], ['', 'a film'], None): fails('probes must be a list of texts', texts=texts)
    fails('layers: BertForSequenceClassification has the layers 0 to 1', layers=[9])
    fails("target must be 'predicted', 'gold', a class from 0 to 1", score='best')
    fails('has no num_labels|contains no transformers model|no head', model=torch.nn.Linear(2, 2))
    fails('steps must be a positive integer', steps=[-1])
    fails('saliency must be one of', saliency='guesswork')
    fails('requires its tokenizer, got None', tokenizer=None)
    with torch.device('meta'): empty = copy.deepcopy(tiny_bert()).to('meta')
    fails('has parameters on the meta device', model=empty)
    sharded = tiny_bert()
    sharded.bert.pooler.dense.weight.ds_id = 0
    fails('sharded by DeepSpeed ZeRO stage 3, so this process cannot run the model', model=sharded)
    watcher = watch(tiny_bert(), tiny_tokenizer, probes, run_dir=tmp_path/'run', saliency=False)
    with pytest.raises(ValueError, match=r'step: loss must be a single number, .* got a tensor of shape \[2\]'):
        watcher.step(loss=torch.ones(2))
    watcher.finish()


def test_only_the_first_process_records(tmp_path, monkeypatch, tiny_bert, tiny_tokenizer):
    monkeypatch.setenv('RANK', '1')
    watcher = watch(tiny_bert(), tiny_tokenizer, probes, run_dir=tmp_path/'run')
    watcher.step(loss=1.)
    assert watcher.finish() is None and not list(tmp_path.iterdir()) and 'another process' in repr(watcher)


def test_lightning_is_an_optional_import(watching, tiny_bert, monkeypatch):
    watcher = watching(tiny_bert(), saliency=False)
    for name in ('lightning', 'lightning.pytorch', 'pytorch_lightning'): monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match='the package lightning is required'): watcher.lightning()
    monkeypatch.setitem(sys.modules, 'lightning.pytorch', types.SimpleNamespace(Callback=object))
    monkeypatch.setitem(sys.modules, 'lightning', types.ModuleType('lightning'))
    callback = watcher.lightning()
    trainer = types.SimpleNamespace(global_step=0, current_epoch=1)
    callback.on_train_start(trainer, None)
    for trainer.global_step in (0, 1, 1, 2): # two batches for the first step
        callback.on_train_batch_end(trainer, None, dict(loss=torch.tensor(1.)), None, 0)
    callback.on_train_end(trainer, None)
    assert watcher.run.steps == [0, 2] and watcher.run.finished and watcher.run.snapshot(2).epoch == 1


def test_attention_recorded_by_watch_is_that_of_observe(watching, tiny_bert):
    model = tiny_bert().train()
    recorded = watching(model).run.snapshot().arrays['attention']
    assert recorded.shape[:2] == (len(attention_layers(model)), 4) and np.allclose(recorded.sum(-1), 1, atol=2e-3)
    assert model.training and Path(model.config.name_or_path or '.').exists()


def reference(A, ids, mask, special):
    "Return head statistics of texts A [layers, heads, n, n] in float64, by loops over layers, heads, texts, queries"
    layers, heads = A[0].shape[:2]
    names = 'entropy', 'relative_entropy', 'largest', 'to_first', 'to_special', 'distance'
    result = {name: np.full((layers, heads), np.nan) for name in (*names, 'sinks', 'one_word')}
    for layer in range(layers):
        for head in range(heads):
            of_texts, sinks, one_word = {name: [] for name in names}, [], []
            for a, tokens, real in zip(A, ids, mask):
                n = int(sum(real)) # padding is on the right
                words = [q for q in range(n) if tokens[q] not in special]
                of_queries, to_keys = {name: [] for name in names}, np.zeros(n)
                for q in words:
                    row = [float(x) for x in a[layer, head, q, :n]]
                    to_keys += np.array(row)/len(words)
                    h = -sum(x*np.log(x) for x in row if x > 0)
                    of_queries['entropy'].append(h)
                    if n > 1: of_queries['relative_entropy'].append(h/np.log(n))
                    of_queries['largest'].append(max(row))
                    of_queries['to_first'].append(row[0])
                    of_queries['to_special'].append(sum(row[k] for k in range(1, n) if tokens[k] in special))
                    of_queries['distance'].append(sum(row[k]*abs(q - k) for k in range(n)))
                if not words: continue
                for name in names: of_texts[name].append(np.mean(of_queries[name]))
                at_words = [k for k in words if k > 0]
                if len(words) >= 5 and n - len(at_words) < n/2:
                    sinks.append(sum(to_keys[k] for k in range(n) if k not in at_words))
                    one_word.append(max(to_keys[k] for k in at_words))
            for name in names: result[name][layer, head] = np.mean(of_texts[name])
            if sinks: result['sinks'][layer, head], result['one_word'][layer, head] = min(sinks), min(one_word)
    return result


def largest_logits(model, ids, mask, heads):
    """Return the largest score before the softmax [layers, heads] in float64, with loops, from the outputs of two kinds
    of layers"""
    seen, hooks = {}, []
    for name, m in model.named_modules():
        if name.endswith(('self.query', 'self.key')):
            hooks.append(m.register_forward_hook(lambda m, args, out, name=name: seen.__setitem__(name, out.numpy())))
    with torch.no_grad(): model(input_ids=ids, attention_mask=mask)
    for hook in hooks: hook.remove()
    queries, keys = ([x for name, x in seen.items() if name.endswith(end)] for end in ('query', 'key'))
    found = np.full((len(queries), heads), -np.inf)
    for layer, (of_queries, of_keys) in enumerate(zip(queries, keys)):
        size = of_queries.shape[-1]//heads
        for head in range(heads):
            part = slice(head*size, (head + 1)*size)
            for q, k, real in zip(of_queries[..., part], of_keys[..., part], mask.numpy().astype(bool)):
                scores = [float(a @ b)/size**.5 for a in q[real] for b in k[real]]
                found[layer, head] = max(found[layer, head], *scores)
    return found


def test_head_statistics_of_a_batch_are_those_of_a_slow_reference(watching, tiny_bert, tiny_tokenizer):
    "Padding, a text of special tokens only, and rows beyond the fourth do not count; the model is in training mode"
    model = tiny_bert(num_hidden_layers=2).double().train()
    for name, p in model.named_parameters(): # sharper than at the start of training
        if 'query' in name or 'key' in name: p.data *= 20
    texts = ['the film and a fine story of the dull film', 'dull', '', 'a film is a film of the story', 'left out']
    batch = dict(tiny_tokenizer(texts, padding=True, return_tensors='pt'))
    watcher = watching(model, saliency=False)
    model(**batch)
    watcher.step(loss=1.)
    watcher.step(loss=1.)
    row = next(r for r in watcher.run.metrics if r['kind'] == 'heads')
    with torch.no_grad(), observe(model.eval()) as maps: model(**{k: x[:4] for k, x in batch.items()})
    A = maps.stacked().double().numpy()
    assert A.dtype == np.float64
    wanted = reference(A, batch['input_ids'][:4].tolist(), batch['attention_mask'][:4].tolist(),
                       {tiny_tokenizer.cls_token_id, tiny_tokenizer.sep_token_id, tiny_tokenizer.pad_token_id})
    assert (row['step'], row['examples'], row['layers']) == (2, 'batches', [0, 1])
    assert (row['texts'], row['long_texts']) == (3, 2)
    for name, x in wanted.items(): assert np.allclose(row[name], x, rtol=1e-4, atol=1e-5), name
    assert np.std(row['relative_entropy']) > .01
    with_words = [0, 1, 3] # the third text has special tokens only
    logits = largest_logits(model, batch['input_ids'][with_words], batch['attention_mask'][with_words], 4)
    assert logits.dtype == np.float64 and np.allclose(row['largest_logit'], logits, rtol=1e-4)
    probes = watcher.run.head_frame()
    ids, first = tiny_tokenizer('the film and a fine story', return_tensors='pt'), probes[probes.step == 0]
    assert np.isfinite(probes.largest_logit).all() and first.largest_logit.max() >= largest_logits(
        model, ids['input_ids'], ids['attention_mask'], 4).max() - 1e-3


@pytest.mark.parametrize('kind', ['bert', 'llama', 't5'])
def test_the_batch_is_found_in_models_of_other_kinds(watching, tiny_tokenizer, kind):
    "Encoders, decoders with left padding, and encoder-decoders; by name or by position"
    task = dict(bert='masked_lm', llama='causal_lm', t5='seq2seq')[kind]
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.padding_side = 'left' if kind == 'llama' else 'right'
    tokenizer.eos_token = tokenizer.sep_token
    model = small_model(task, tokenizer, kind=kind).train()
    texts = [('the film', 'a film')] if kind == 't5' else ['the film and']
    watcher = watching(model, texts=texts, tokenizer=tokenizer, saliency=False, steps=1)
    batch = dict(tokenizer(['the film and a fine story', 'dull film'], padding=True, return_tensors='pt'))
    if kind == 't5': model(**batch, labels=batch['input_ids'])
    else: model(batch['input_ids'], batch['attention_mask'])
    watcher.step(loss=1.)
    row = next(r for r in watcher.run.metrics if r['kind'] == 'heads')
    alone = [batch_head_numbers(model, dict(tokenizer([text], return_tensors='pt')), special_ids(tokenizer))
             for text in ('the film and a fine story', 'dull film')]
    assert np.allclose(row['entropy'], np.mean([one['entropy'] for one in alone], axis=0), atol=1e-4)
    assert row['texts'] == 2


def test_a_batch_can_be_passed_and_is_checked(watching, tiny_bert, tiny_tokenizer):
    watcher = watching(tiny_bert().eval(), saliency=False, steps=1) # a loop whose model stays in evaluation mode
    batch = tiny_tokenizer(['the film and', 'dull'], padding=True, return_tensors='pt')
    masked = dict(batch, attention_mask=torch.ones(2, 1, 4, 4))
    for wrong in (dict(pixel_values=torch.ones(2, 3)), ['the film'], masked):
        with pytest.raises(ValueError, match='step: batch must be a dict of the tensors that the model takes; '):
            watcher.step(loss=1., batch=wrong)
    watcher.step(loss=1., batch=batch)
    assert [r['texts'] for r in watcher.run.metrics if r['kind'] == 'heads'] == [2]


def test_batches_without_statistics_have_a_reason_and_end_only_these(watching, tiny_bert, tiny_tokenizer):
    model = tiny_bert().train()
    watcher = watching(model, saliency=False, steps=1)
    for _ in range(2):
        model(inputs_embeds=torch.zeros(2, 4, model.config.hidden_size))
        watcher.step(loss=1.)
    rows = [r for r in watcher.finish().metrics if r['kind'] == 'heads']
    assert [(r['step'], r['reason']) for r in rows] == [(1, 'the batch has no input_ids [rows, tokens]')]
    assert watcher.run.steps == [0, 1, 2] and watcher.run.finished
    off = watching(tiny_bert().train(), 'off', saliency=False, batch_rows=0)
    assert not off.model._forward_pre_hooks


def same_weights(trained, steps):
    "Assert that `trained(True)`, a watcher and a model, has the weights of `trained(False)`, and recorded `steps`"
    watcher, model = trained(True)
    _, plain = trained(False)
    assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))
    assert watcher.run.finished and watcher.run.steps == steps and watcher.run.train_rows
    return watcher.run


def assert_batch_heads(run):
    "Assert that all recordings but the first contain finite statistics of the heads on the training batch"
    rows = [r for r in run.metrics if r['kind'] == 'heads']
    assert [r['step'] for r in rows] == [step for step in run.steps if step], rows
    for r in rows: assert all(np.isfinite(r[name]).all() for name in ('entropy', 'largest_logit', 'distance'))


@pytest.mark.slow
def test_watching_trl_changes_nothing(watching, tmp_path, tiny_tokenizer, tiny_data):
    import trl
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.eos_token = tokenizer.sep_token
    def trained(watched):
        model = small_model('causal_lm', tokenizer, kind='llama')
        args = trl.SFTConfig(str(tmp_path/'out'), bf16=False, logging_steps=2, **quick)
        trainer = trl.SFTTrainer(model, args, train_dataset=tiny_data['train'].select_columns('text'),
                                 processing_class=tokenizer)
        watcher = watching(trainer.model, texts=['the film and'], max_length=32) if watched else None
        if watched: trainer.add_callback(watcher)
        trainer.train()
        return watcher, model
    run = same_weights(trained, [0, 2, 4])
    assert_batch_heads(run)
    assert run.snapshot().info['token_predictions']


@pytest.mark.slow
def test_watching_dpo_of_trl_changes_nothing(watching, tmp_path, tiny_tokenizer):
    "Preferred and rejected texts share the batch, and a second model is the reference"
    import trl
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.eos_token = tokenizer.sep_token
    rows = datasets.Dataset.from_dict(dict(prompt=['the film', 'a story']*8, chosen=[' fine and funny', ' warm']*8,
                                           rejected=[' dull', ' cold and empty']*8))
    def trained(watched):
        model, reference = (small_model('causal_lm', tokenizer, kind='llama') for _ in range(2))
        args = trl.DPOConfig(str(tmp_path/'out'), bf16=False, logging_steps=2, **quick)
        trainer = trl.DPOTrainer(model, reference, args, train_dataset=rows, processing_class=tokenizer)
        watcher = watching(trainer.model, texts=['the film and'], max_length=32) if watched else None
        if watched: trainer.add_callback(watcher)
        trainer.train()
        return watcher, model
    assert_batch_heads(same_weights(trained, [0, 2, 4]))


@pytest.mark.slow
def test_watching_a_cross_encoder_changes_nothing(watching, tmp_path, make_tiny_bert, tiny_tokenizer):
    "Its score of a sentence pair is what saliency explains"
    from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
    make_tiny_bert(num_labels=1).save_pretrained(tmp_path/'model')
    tiny_tokenizer.save_pretrained(tmp_path/'model')
    pairs = datasets.Dataset.from_dict(dict(a=['the film', 'a story']*8, b=['a film', 'the music']*8, label=[1., 0.]*8))
    def trained(watched):
        model = CrossEncoder(str(tmp_path/'model'), num_labels=1, device='cpu')
        args = CrossEncoderTrainingArguments(str(tmp_path/'out'), logging_steps=2, **quick)
        inner = next(m for m in model.modules() if type(m).__name__ == 'BertForSequenceClassification')
        watcher = watching(inner, texts=[('the film', 'a film')]) if watched else None
        CrossEncoderTrainer(model, args, train_dataset=pairs, callbacks=[watcher] if watched else []).train()
        return watcher, inner
    run = same_weights(trained, [0, 2, 4])
    assert_batch_heads(run)
    s = run.snapshot()
    assert s.texts == ('the film', 'a film') and {'prediction', 'saliency'} <= set(s.arrays)


two = '''
import sys, torch
from accelerate import Accelerator
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from salviz.training.watching import watch
folder = sys.argv[1]
accelerator = Accelerator(cpu=True)
rank, tokenizer = accelerator.process_index, AutoTokenizer.from_pretrained(folder + '/model')
assert accelerator.num_processes == 2
weights = []
for watched in (False, True):
    torch.manual_seed(rank)
    model = AutoModelForSequenceClassification.from_pretrained(folder + '/model').train()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    probes = ['the film and a fine story', 'dull']
    watcher = watch(model, tokenizer, probes, run_dir=folder + '/run', steps=2) if watched else None
    for i in range(4):
        texts = ['the film', 'dull music'] if (i + rank) % 2 else ['a fine story', 'the dull film']
        loss = model(**tokenizer(texts, padding=True, return_tensors='pt'), labels=torch.tensor([0, 1])).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if watcher: watcher.step(loss=loss)
    if watcher: assert (watcher.finish() is None) == (rank > 0)
    weights.append([p.detach().clone() for p in accelerator.unwrap_model(model).parameters()])
    accelerator.wait_for_everyone()
torch.save(weights, f'{folder}/weights-{rank}.pt')
'''


@pytest.mark.slow
def test_only_the_first_of_two_accelerate_processes_records_and_the_weights_are_equal(tmp_path, make_tiny_bert,
                                                                                     tiny_tokenizer):
    "With gloo on the CPU and dropout"
    make_tiny_bert().save_pretrained(tmp_path/'model')
    tiny_tokenizer.save_pretrained(tmp_path/'model')
    group = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(29500 + os.getpid() % 2000), WORLD_SIZE='2',
                 LOCAL_WORLD_SIZE='2')
    processes = [forked.begin(forked.code, two, ['-c', str(tmp_path)], said=tmp_path/f'out-{rank}',
                              env=dict(group, RANK=rank, LOCAL_RANK=rank)) for rank in '01']
    for process in processes: process.join()
    errors = ''.join(path.read_text() for path in tmp_path.glob('*.err'))[-3000:]
    assert [process.exitcode for process in processes] == [0, 0], errors
    (plain, watched), (other_plain, other_watched) = (torch.load(tmp_path/f'weights-{rank}.pt') for rank in '01')
    for others in (watched, other_plain, other_watched): assert all(map(torch.equal, plain, others))
    run = Run(tmp_path/'run')
    assert run.finished and run.steps == [0, 2, 4] and run.probes == [0, 1] and not run.damaged
    assert_batch_heads(run)


@pytest.mark.slow
def test_watching_lightning_changes_nothing(watching, make_tiny_bert, tiny_tokenizer, tiny_data):
    import lightning
    class Module(lightning.LightningModule):
        def __init__(self, model):
            super().__init__()
            self.model = model
        def training_step(self, batch, i): return self.model(**batch).loss
        def configure_optimizers(self): return torch.optim.AdamW(self.model.parameters(), lr=1e-3)
    def trained(watched):
        torch.manual_seed(0)
        model = make_tiny_bert().train()
        watcher = watching(model) if watched else None
        trainer = lightning.Trainer(max_steps=4, accelerator='cpu', logger=False, enable_checkpointing=False,
                                    enable_progress_bar=False, accumulate_grad_batches=2,
                                    callbacks=[watcher.lightning()] if watched else [])
        loader = torch.utils.data.DataLoader(list(batches(tiny_tokenizer, tiny_data, 8)), batch_size=None)
        trainer.fit(Module(model), loader)
        return watcher, model
    assert_batch_heads(same_weights(trained, [0, 2, 4]))


def test_saliency_of_a_target_text_explains_its_tokens(watching, tiny_tokenizer):
    "A text alone is explained as in `explain`, with both names of the prediction; see the notebook"
    model = small_model('causal_lm', tiny_tokenizer, kind='llama', layers=1)
    kw = dict(saliency='input_x_gradient')
    def recorded(name, **more): return watching(model, name, **kw, **more).run.snapshot()
    explained = explain(model, probes[0], 'input_x_gradient', tokenizer=tiny_tokenizer).values[0].numpy()
    for s in (recorded('none', texts=probes[:1]), recorded('predicted', texts=probes[:1], score='predicted')):
        assert np.allclose(s.arrays['saliency'], explained, atol=1e-5)
        assert s.info['explains'] == 'the predicted next token'
    pair = recorded('pair', texts=[('the film', 'a story')])
    assert 'explains' not in pair.info and pair.arrays['saliency'][-1] == 0 # not a token after the target text


def interrupted(trainer_for, at):
    "Return a Trainer that was interrupted after a number of steps, and its watcher"
    class Interruption(TrainerCallback):
        def on_step_end(self, args, state, control, **kw):
            if state.global_step == at: raise KeyboardInterrupt
    interruption = Interruption()
    trainer, watcher = trainer_for(interruption)
    with pytest.raises(KeyboardInterrupt): trainer.train()
    trainer.remove_callback(interruption)
    return trainer, watcher


def test_a_watcher_records_one_training_of_a_trainer(watching, tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    def trainer_for(callback):
        model = tiny_bert()
        watcher = watching(model, saliency=False, steps=1)
        return trainer_of(model, tiny_tokenizer, tiny_data, tmp_path/'out', [watcher, callback]), watcher
    trainer, watcher = interrupted(trainer_for, 3)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r'up to step 3, .* begins at step 0; create a new watcher with watch'):
            trainer.train()
    run = watcher.run
    assert watcher.state == 'failed' and not run.finished and 'up to step 3' in run.state['error']
    assert run.steps == [0, 1, 2, 3] and [r['step'] for r in run.train_rows] == [1, 2]
    trainer.args.auto_find_batch_size = True # the Trainer begins again after an error of the memory
    trainer.args.max_steps = 1
    with pytest.warns(UserWarning, match='the training continues without recordings'): trainer.train()


def test_a_training_that_resumes_from_a_checkpoint_is_recorded_from_there(watching, tmp_path, tiny_bert,
                                                                          tiny_tokenizer, tiny_data):
    def trainer_for(model, callbacks, steps):
        trainer = trainer_of(model, tiny_tokenizer, tiny_data, tmp_path/'out', callbacks)
        trainer.args.save_strategy, trainer.args.save_steps, trainer.args.max_steps = 'steps', 2, steps
        return trainer
    trainer_for(first := tiny_bert(), [], 4).train()
    wanted = watching(first, 'wanted', saliency=False).run.snapshot().arrays['attention']
    torch.manual_seed(1)
    model = tiny_bert()
    watcher = watching(model, saliency=False)
    trainer = trainer_for(model, [watcher], 6)
    with pytest.warns(UserWarning, match='resumes at step 4, which is recorded now; step 0 of the run shows'):
        trainer.train(resume_from_checkpoint=True)
    assert watcher.run.steps == [0, 4, 6] and watcher.run.finished
    assert np.allclose(watcher.run.snapshot(4).arrays['attention'], wanted, atol=1e-5)
    assert not any('no training pass was seen' in row.get('reason', '') for row in watcher.run.metrics)


def test_numbers_that_a_trainer_logs_itself_are_recorded(watching, tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    model = tiny_bert()
    watcher = watching(model, saliency=False)
    trainer = trainer_of(model, tiny_tokenizer, tiny_data, tmp_path/'out', [watcher], gradient_accumulation_steps=2)
    trainer.args.logging_steps, of_loss, numbers = 2, trainer.compute_loss, iter(range(100))
    def compute_loss(*args, **kw):
        trainer.log(dict(attention_loss=float(next(numbers)), entropy=.5, tokens_per_second=9., kind=1.))
        return of_loss(*args, **kw)
    trainer.compute_loss = compute_loss
    trainer.train()
    rows = watcher.run.train_rows
    assert [(r['step'], r['attention_loss'], 'loss' in r) for r in rows] == [(2, 1.5, True), (4, 5.5, True)]
    others = [r for r in watcher.run.metrics if r['kind'] == 'log']
    assert [(r['step'], r['entropy'], r['tokens_per_second']) for r in others] == [(2, .5, 9.), (4, .5, 9.)]
    names = {name for r in watcher.run.metrics for name in r}
    assert not names & {'train_runtime', 'train_samples_per_second', 'total_flos', 'train_loss'}
    silent = watching(model, 'silent', saliency=False, log_every=2)
    state = types.SimpleNamespace(global_step=0, epoch=0.)
    for state.global_step in (1, 2):
        silent.on_log(None, state, None, logs=dict(entropy=.5))
        silent.on_step_end(types.SimpleNamespace(logging_strategy='no'), state, None)
    assert [(r['step'], r['entropy']) for r in silent.run.metrics if r['kind'] == 'log'] == [(2, .5)]


def test_losses_before_an_error_are_written(watching, tiny_bert, monkeypatch):
    with pytest.raises(KeyError), watching(tiny_bert(), saliency=False) as watcher:
        for loss in (1., 2.): watcher.step(loss=loss)
        raise KeyError('labels')
    assert [(r['step'], r['loss']) for r in watcher.run.train_rows] == [(2, 1.5)]
    def full(self, row): raise OSError(28, 'No space left on device')
    with pytest.raises(KeyError), watching(tiny_bert(), 'full', saliency=False, steps=9) as watcher:
        watcher.step(loss=1.)
        monkeypatch.setattr(Run, 'log', full)
        raise KeyError('labels')
    assert 'KeyError' in watcher.run.state['error']


def test_reserved_names_and_other_epochs_raise_immediately(watching, tiny_bert):
    watcher = watching(tiny_bert(), saliency=False)
    for kw in (dict(step=1), dict(kind=2.), dict(split=1.), dict(seal=1.), dict(epoch='a')):
        with pytest.raises(ValueError, match="step: (the name '.*' is reserved|epoch must be a single number)"):
            watcher.step(loss=1., **kw)
    watcher.step(loss=1., epoch=torch.tensor(.5), learning_rate=np.float32(.1))
    assert watcher.finish().train_rows[0]['epoch'] == .5 and watcher.step_number == 1


@pytest.mark.parametrize('wrong', [None, math.nan, 7, 'neither'], ids=str)
def test_labels_of_own_probes_are_classes_by_number_or_name(watching, tiny_bert, tmp_path, wrong):
    def own(*labels): return datasets.Dataset.from_dict(dict(text=['a film', 'dull'], label=labels))
    model = tiny_bert()
    model.config.id2label = {0: 'bad', 1: 'good'}
    named, numbered = (watching(model, name, own(*labels), saliency=False).finish()
                       for name, labels in (('named', ('bad', 'good')), ('numbered', (0, 1))))
    as_tensors = watching(model, 'tensors', own(0, 1).with_format('torch'), saliency=False).finish()
    assert named.snapshot(0, 1).losses == numbered.snapshot(0, 1).losses == as_tensors.snapshot(0, 1).losses
    first = 'good' if isinstance(wrong, str) else 1
    with pytest.raises(ValueError, match='watch: probes: the label of example 1 must be a class of the model, from 0'):
        watching(model, 'wrong', own(first, wrong))
    assert not (tmp_path/'wrong').exists()


def test_head_statistics_of_batches_exist_only_for_text(watching):
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1,
                                                num_attention_heads=2, intermediate_size=32, num_labels=2)).train()
    images = datasets.Dataset.from_dict(dict(pixel_values=torch.rand(2, 3, 8, 8).tolist(), label=[0, 1]))
    watcher = watching(model, texts=images, tokenizer=None, saliency=False, steps=1)
    reason = 'head statistics of training batches are computed only for models that read text, and this model reads'
    with pytest.raises(ValueError, match=f'step: batch has no effect: {reason} images'):
        watcher.step(loss=1., batch=dict(pixel_values=torch.zeros(1)))
    watcher.step(loss=1.)
    run = watcher.finish()
    with pytest.raises(ValueError, match=reason) as caught: run.head_frame('batches')
    assert 'batch_rows' not in str(caught.value) and not [r for r in run.metrics if r['kind'] == 'heads']


def test_own_hooks_distinguish_recordings_by_the_training_mode(watching, tiny_bert, tiny_tokenizer, tiny_data):
    model, modes = tiny_bert().train(), []
    watcher = watching(model)
    model.register_forward_pre_hook(lambda module, args: modes.append((module.training, torch.is_grad_enabled())))
    model(**next(batches(tiny_tokenizer, tiny_data, 1)))
    watcher.step()
    watcher.step()
    assert modes[0] == (True, True) and {training for training, _ in modes[1:]} == {False}
    assert {grad for _, grad in modes[1:]} == {False, True} # saliency needs gradients
