"""The table of methods, tasks and kinds of model, row by row; and properties of every task: accumulation, processes,
precision, resuming."""
import copy
import os

import datasets
import numpy as np
import pytest
import torch

import forked
from helpers import breaking_at
from salviz.methods import (ADDrop, AttentionDropout, AttentionGuidance, AttentionGuidanceVariant,
                            ConstrainedRationales, Distillation, DRE, DropHead, DropKey, EnergyLoss,
                            ExpectedGradients, FineTuning, HiddenCut, RationaleGuided, RationaleGuidedVariant, RDrop,
                            RightForRightReasons, SaliencyGuided, SalLM, SalLMVariant)
from salviz.methods.base import method_classes
from salviz.models.tasks import tasks
from salviz.models.nets import (DigitCNN, InputCellLSTM, ResNet18, SeriesLSTM, SeriesTransformer, TCN, TextLSTM,
                                small_net)
from salviz.models.corruption import small_model
from salviz.core.runs import Run
from salviz.training.trainer import load_model, train

quick = dict(epochs=1, batch_size=8, learning_rate=1e-3, progress=False, probes=2, snapshots=2)

kinds = dict(classification=('bert', 'gpt2', 'llama', 'deberta-v2'), regression=('bert', 'gpt2', 'llama', 'deberta-v2'),
             token_classification=('bert', 'gpt2', 'deberta-v2'),
             masked_lm=('bert', 'deberta-v2'), replaced_token_detection=('electra',), seq2seq=('marian', 'bart', 't5'),
             causal_lm=('gpt2', 'llama'), question_answering=('bert', 'gpt2'),
             image_classification=('vit', 'deit', 'beit', 'dinov2', 'dinov2_with_registers', 'vit_msn', 'ijepa'))
nets = dict(classification=(TextLSTM,), image_classification=(DigitCNN, ResNet18),
            series_classification=(SeriesLSTM, InputCellLSTM, TCN, SeriesTransformer))
rows = [(task, kind) for table in (kinds, nets) for task, some in table.items() for kind in some]
named = lambda x: x if isinstance(x, str) else x.__name__
# One kind of model for each task, and each family of models once; `make slow` runs the rest of the table.
in_every_run = {(task, table[task][0]) for table in (kinds, nets) for task in table} | {
    ('classification', 'llama'), ('regression', 'gpt2'), ('token_classification', 'deberta-v2'), ('seq2seq', 't5'),
    ('image_classification', 'dinov2'), ('image_classification', ResNet18),
    ('series_classification', SeriesTransformer)}

def some_slow(rows, always):
    "Return `rows` as parameters; those that are not in `always` are marked as slow"
    return [row if row in always else pytest.param(*row, marks=pytest.mark.slow) for row in rows]

methods = dict(FineTuning=FineTuning, ADDrop=lambda: ADDrop(p=.4, q=.5, cross_tuning=False),
               SaliencyGuided=lambda: SaliencyGuided(mask_fraction=.4),
               AttentionGuidance=lambda: AttentionGuidance(patterns={'first': [0], 'prev': [1]}, alpha=3.,
                                                           variant=AttentionGuidanceVariant(boundary='zero')),
               SalLM=lambda: SalLM(steps=2),
               RationaleGuided=lambda: RationaleGuided('input_x_gradient', 'mse',
                                                       variant=RationaleGuidedVariant(ranking='magnitude')))
methods_of_images = dict(AttentionGuidance=lambda: AttentionGuidance(patterns=dict(same=[0], right=[1]), alpha=3.))
evidence = dict(ADDrop={'attention_attribution', 'discard_candidates', 'discarded'},
                AttentionGuidance={'pattern_target', 'guided'},
                SalLM={'saliency_target', 'method_saliency'}, FineTuning=set(),
                RationaleGuided={'explanation', 'rationale_target'},
                SaliencyGuided={'masked_input', 'is_masked', 'method_saliency'})
terms = dict(ADDrop=set(), FineTuning=set(), SaliencyGuided={'consistency'}, AttentionGuidance={'attention_guidance'},
             SalLM={'saliency_agreement'}, RationaleGuided={'rationale'})

def signals(shape, column, rows=24):
    "Return two classes of random signals, one of which is brighter"
    g = np.random.default_rng(0)
    def part(n):
        y = np.arange(n) % 2
        x = g.normal(size=(n, *shape)).astype(np.float32) + y.reshape(-1, *[1] * len(shape))
        features = datasets.Features({column: getattr(datasets, f'Array{len(shape)}D')(shape, 'float32'),
                                      'label': datasets.ClassLabel(names=['dark', 'bright'])})
        return datasets.Dataset.from_dict({column: list(x), 'label': y.tolist()}, features=features)
    return datasets.DatasetDict(train=part(rows), validation=part(8), test=part(8))

def examples(task, tiny_data):
    "Return small data for `task`; every third text has no rationale"
    data = raw_examples(task, tiny_data)
    if 'text' not in data['train'].column_names or task == 'seq2seq': return data
    def marked(d): # of a prompt with its answer, or a question with its context, in both
        second = next((name for name in ('target_text', 'text_pair') if name in d.column_names), None)
        texts = zip(d['text'], d[second] if second else [''] * len(d))
        return [None if i % 3 == 1 else [int(len(w) > 4) for w in f'{a} {b}'.split()] for i, (a, b) in enumerate(texts)]
    flags = datasets.Sequence(datasets.Value('int64'))
    return datasets.DatasetDict({k: d.add_column('rationale', marked(d), feature=flags)
                                 for k, d in data.items()})

def raw_examples(task, tiny_data):
    "Return the same without rationales, made of the two classes of sentences"
    small = datasets.DatasetDict({k: d.select(range(n)) for (k, d), n in zip(tiny_data.items(), (24, 8, 8))})
    if task == 'image_classification': return signals((3, 8, 8), 'pixel_values')
    if task == 'series_classification': return signals((12, 3), 'values')
    if task == 'regression':
        return datasets.DatasetDict({k: datasets.Dataset.from_dict(dict(text=d['text'],
                                                                        label=[
            x - .5 + len(t) / 90 for t, x in zip(d['text'], d['label'])])) for k, d in small.items()})
    if task in ('seq2seq', 'causal_lm'):
        return datasets.DatasetDict({k: datasets.Dataset.from_dict(dict(text=d['text'],
                                                                        target_text=[
            ' '.join(t.split()[::-1]) for t in d['text']])) for k, d in small.items()})
    if task == 'question_answering': # what is the third word from the end?
        def spans(d): return [[len(' '.join(w[:-3])) + (len(w) > 3), len(' '.join(w[:-2]))]
                              for w in (t.split() for t in d['text'])]
        return datasets.DatasetDict({k: datasets.Dataset.from_dict(dict(
            text=['what is funny ?'] * len(d), text_pair=d['text'], answer=spans(d))) for k, d in small.items()})
    if task == 'token_classification':
        features = datasets.Features(dict(words=datasets.Sequence(datasets.Value('string')),
                                          tags=datasets.Sequence(datasets.ClassLabel(names=['O', 'B-word', 'I-word']))))
        def rows(d):
            return dict(words=[t.split() for t in d['text']],
                        tags=[[(len(w) > 4) + (len(w) > 5) for w in t.split()] for t in d['text']])
        return datasets.DatasetDict({k: datasets.Dataset.from_dict(rows(d), features=features)
                                     for k, d in small.items()})
    return small

def labels_of(task, data):
    if task == 'token_classification': return dict(labels=data['train'].features['tags'].feature.names)
    return dict(num_labels=2) if tasks[task].has_classes else {}

@pytest.fixture
def tokens(tiny_tokenizer):
    "Return a separate tokenizer for each test, because models of some kinds remove its token types"
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.eos_token = tokenizer.sep_token
    return tokenizer

def tiny_bart(head, tokenizer, **config):
    from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, BartConfig
    sides = {f'{side}_{k}': v for side in ('encoder', 'decoder')
             for k, v in dict(layers=2, attention_heads=4, ffn_dim=48).items()}
    special = dict(pad_token_id=0, bos_token_id=2, eos_token_id=tokenizer.eos_token_id, decoder_start_token_id=2,
                   forced_eos_token_id=None)
    kind = dict(seq2seq=AutoModelForSeq2SeqLM, classification=AutoModelForSequenceClassification)[head]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind.from_config(BartConfig(vocab_size=len(tokenizer), d_model=32, max_position_embeddings=64, **sides,
                                           **special, **config))

def tiny_vision(kind):
    from transformers import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, AutoConfig
    config = AutoConfig.for_model(kind, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                                  intermediate_size=32, image_size=8, patch_size=4, num_channels=3, num_labels=2)
    classes = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING[type(config)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return (classes[0] if isinstance(classes, tuple) else classes)(config)

def model_for(task, kind, data, tokenizer, **kwargs):
    if task == 'image_classification' and isinstance(kind, str): return tiny_vision(kind)
    if kind == 'bart': return tiny_bart(task, tokenizer)
    if isinstance(kind, str):
        return small_model(task, tokenizer, kind=kind, layers=2, heads=4, hidden=32, **labels_of(task, data), **kwargs)
    shapes = dict(image_classification=dict(shape=(3, 8, 8)), series_classification=dict(shape=(12, 3)),
                  classification=dict(tokenizer=tokenizer))[task]
    return small_net(kind, num_labels=2, **shapes)

@pytest.mark.parametrize('kind', [kind for kind in method_classes().values() if kind is not FineTuning], ids=named)
def test_every_method_gives_a_reason_for_each_task_that_it_does_not_support(kind):
    unsupported = {*tasks} - {*kind.supported_tasks}
    assert {*kind.unsupported_tasks} <= unsupported
    assert all(kind.unsupported_tasks.get(task) or tasks[task].unsupported for task in unsupported)

@pytest.mark.sample(1)
@pytest.mark.parametrize('task, kind', some_slow(rows, in_every_run), ids=named)
def test_every_method_trains_on_supported_tasks_and_raises_for_others(task, kind, tmp_path, tiny_data, tokens):
    data = examples(task, tiny_data)
    tokenizer = tokens if tasks[task].modality == 'text' else None
    for name in methods:
        model, where = model_for(task, kind, data, tokens), tmp_path/name
        start = {k: v.clone() for k, v in model.state_dict().items()}
        attends = isinstance(kind, str)
        supported = build(name, task).task_names()
        if task not in supported or not attends and name in ('ADDrop', 'AttentionGuidance', 'SalLM'):
            message = f'{name}: does not support {task}; ' if task not in supported else 'cannot be observed'
            with pytest.raises(ValueError, match=message):
                train(model, tokenizer, data, build(name, task), run_dir=where, **quick)
            assert not where.exists()
            continue
        run = train(model, tokenizer, data, build(name, task), run_dir=where, **quick)
        assert len(run.train_rows) == 3
        assert all(np.isfinite(r['loss']) for r in run.train_rows)
        assert terms[name] <= {*run.train_rows[0]}
        assert any(not torch.equal(start[k], v) for k, v in model.state_dict().items())
        s = run.snapshot()
        expected = ({f'{o}_map' for o in ('masked', 'is_masked', 'method_saliency')}
                    if name == 'SaliencyGuided' and not tokenizer else evidence[name])
        assert expected <= {*s.arrays}
        assert ('attention' in s.arrays) == attends and s.info['task'] == task and s.info['methods'].keys() == {name}
        assert run.config['best_metric']['name'] in run.eval_rows[-1]
        again, _ = load_model(run)
        assert all(torch.equal(v, model.state_dict()[k]) for k, v in again.state_dict().items())

together = [('classification', 'bert', ('AttentionGuidance', 'ADDrop')),
            ('classification', 'bert', ('SaliencyGuided', 'SalLM')),
            ('classification', 'llama', ('SaliencyGuided', 'ADDrop', 'AttentionGuidance')),
            ('token_classification', 'bert', ('AttentionGuidance', 'ADDrop')),
            ('seq2seq', 'marian', ('ADDrop', 'AttentionGuidance')),
            ('regression', 'deberta-v2', ('ADDrop', 'AttentionGuidance')),
            ('image_classification', 'vit', ('SaliencyGuided', 'ADDrop', 'AttentionGuidance')),
            ('causal_lm', 'gpt2', ('SaliencyGuided', 'ADDrop', 'AttentionGuidance')),
            ('classification', 'bert', ('RationaleGuided', 'SaliencyGuided', 'ADDrop')),
            ('regression', 'gpt2', ('RationaleGuided', 'AttentionGuidance')),
            ('token_classification', 'bert', ('SalLM', 'ADDrop')), ('causal_lm', 'gpt2', ('SalLM', 'ADDrop')),
            ('regression', 'bert', ('SalLM', 'ADDrop'))]

@pytest.mark.sample(2)
@pytest.mark.parametrize('task, kind, names', together, ids=lambda x: '+'.join(x) if isinstance(x, tuple) else x)
def test_methods_together_give_the_evidence_and_the_terms_of_each(task, kind, names, tmp_path, tiny_data, tokens):
    data = examples(task, tiny_data)
    method = build(names[0], task)
    for name in names[1:]: method = method + build(name, task)
    tokenizer = tokens if tasks[task].modality == 'text' else None
    run = train(model_for(task, kind, data, tokens), tokenizer, data, method, run_dir=tmp_path/'run', **quick)
    s = run.snapshot()
    assert [*s.info['methods']] == [*names] and s.info['method'] == ' + '.join(names)
    in_a_map = lambda name: f'{name}_map' if name in ('is_masked', 'method_saliency') else name.replace('input', 'map')
    expected = set().union(*({x if tokenizer or n != 'SaliencyGuided' else in_a_map(x) for x in evidence[n]}
                             for n in names))
    assert expected <= {*s.arrays}
    assert all(x.dtype == np.float32 for k, x in s.arrays.items() if k.startswith('method_saliency'))
    assert set().union(*(terms[n] for n in names)) <= {*run.train_rows[0]}
    row = run.train_rows[0]
    assert row['loss'] == pytest.approx(row['task'] + sum(row[t] * row[f'{t}_weight'] for n in names for t in terms[n]),
                                        rel=1e-5)

bad_sums = [(lambda: ADDrop() + ADDrop(), 'got ADDrop more than once'),
           (lambda: FineTuning() + ADDrop(), 'every method already includes plain fine-tuning'),
           (lambda: ADDrop() + 3, 'methods can only be combined with other methods')]

@pytest.mark.parametrize('make, message', bad_sums)
def test_invalid_combinations_raise(make, message):
    with pytest.raises(ValueError, match=message): make()

def test_two_targets_for_one_head_raise(tmp_path, tiny_data, tokens):
    model = small_model('classification', tokens, layers=2, heads=4, hidden=32, num_labels=2)
    both = AttentionGuidance(patterns={'first': [0]}, alpha=1.) + SalLM(teacher=model, steps=2)
    with pytest.raises(ValueError, match='AttentionGuidance and SalLM both set a target for the attention'):
        train(model, tokens, tiny_data, both, run_dir=tmp_path/'run', **quick)
    apart = AttentionGuidance(patterns={'first': [0]}, layers=[0], alpha=1.) + SalLM(teacher=model, steps=2)
    assert train(model, tokens, tiny_data, apart, run_dir=tmp_path/'run', **quick).finished

served_rows = [('regression', 'bert', 'ADDrop'), ('token_classification', 'bert', 'ADDrop'),
               ('masked_lm', 'bert', 'AttentionGuidance'),
               ('replaced_token_detection', 'electra', 'AttentionGuidance'), ('seq2seq', 'marian', 'ADDrop'),
               ('causal_lm', 'gpt2', 'ADDrop'), ('causal_lm', 'llama', 'SaliencyGuided'),
               ('question_answering', 'bert', 'ADDrop'),
               ('series_classification', SeriesLSTM, 'SaliencyGuided'),
               ('image_classification', DigitCNN, 'SaliencyGuided'), ('image_classification', 'vit', 'ADDrop'),
               ('image_classification', 'deit', 'AttentionGuidance'),
               ('classification', TextLSTM, 'SaliencyGuided'),
               ('classification', 'bert', 'RationaleGuided'), ('regression', 'llama', 'RationaleGuided'),
               ('classification', 'gpt2', 'RationaleGuided of attention'),
               ('classification', 'bert', 'RationaleGuided of integrated gradients'),
               ('classification', 'bert', 'RationaleGuided by contrast'), ('classification', 'bert', 'Distillation'),
               ('causal_lm', 'gpt2', 'Distillation'), ('image_classification', DigitCNN, 'Distillation'),
               ('classification', 'bert', 'SalLM with texts without labels'), ('regression', 'bert', 'SalLM'),
               ('classification', 'gpt2', 'RightForRightReasons'), ('classification', 'bert', 'EnergyLoss'),
               ('classification', 'bert', 'ConstrainedRationales'),
               ('seq2seq', 'marian', 'RDrop'), ('causal_lm', 'gpt2', 'RDrop'),
               ('token_classification', 'bert', 'DropKey'), ('causal_lm', 'gpt2', 'AttentionDropout'),
               ('classification', 'deberta-v2', 'DropHead'), ('token_classification', 'bert', 'RDrop'),
               ('image_classification', DigitCNN, 'RDrop'), ('classification', 'bert', 'HiddenCut'),
               ('classification', 'bert', 'DRE'),
               ('token_classification', 'bert', 'SalLM'), ('causal_lm', 'gpt2', 'SalLM')]

class TaughtByACopy(Distillation):
    "Distillation whose teacher is a perturbed copy of the model before training"
    def check(self, model, *args):
        self.teacher = copy.deepcopy(model)
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            for p in self.teacher.parameters(): p += .1*torch.randn_like(p)
        super().check(model, *args)
TaughtByACopy.__name__ = 'Distillation'

methods_besides = {
    'SalLM with texts without labels': lambda: SalLM(steps=2, variant=SalLMVariant(unlabelled_ratio=2, unlabelled=[
        'a film . about nothing', 'fun', 'dull , long and dull . no end of it', 'one two', 'three words here'])),
    'RationaleGuided of attention': lambda: RationaleGuided(layers=None, variant=RationaleGuidedVariant(rows='mean')),
    'RationaleGuided of integrated gradients': lambda: RationaleGuided('integrated_gradients', 'bce', steps=2),
    'RationaleGuided by contrast': lambda: RationaleGuided(loss='contrastive'),
    'Distillation': lambda: TaughtByACopy('a copy', alpha=.5, temperature=2.),
    'RightForRightReasons': RightForRightReasons, 'EnergyLoss': EnergyLoss, 'RDrop': RDrop,
    'DropKey': lambda: DropKey(p=.4), 'AttentionDropout': lambda: AttentionDropout(p=.4),
    'DropHead': lambda: DropHead(p=.4), 'ExpectedGradients': ExpectedGradients,
    'ConstrainedRationales': ConstrainedRationales, 'HiddenCut': HiddenCut, 'DRE': DRE}
def build(name, task):
    of_task = methods_of_images if task == 'image_classification' else {}
    return {**methods, **methods_besides, **of_task}[name]()

def without_dropout(model):
    for m in model.modules():
        for name in ('p', 'dropout', 'attention_dropout', 'activation_dropout', 'dropout_prob', 'dropout_rate',
                     'layerdrop'):
            if isinstance(getattr(m, name, None), float): setattr(m, name, 0.)
    return model.double()

@pytest.mark.sample(1)
@pytest.mark.parametrize('task, kind, name', served_rows, ids=named)
def test_accumulated_micro_batches_are_one_batch_in_every_task(task, kind, name, tmp_path, tiny_data, tokens):
    "With 24 examples of uneven lengths and numbers of labels, a mean over tokens, or of means, would differ"
    data, ends = examples(task, tiny_data), []
    for batch_size, pieces in ((12, 1), (4, 3)):
        model = without_dropout(model_for(task, kind, data, tokens))
        if tasks[task].modality != 'text': data = data.with_format(None)
        run = train(model, tokens if tasks[task].modality == 'text' else None, data, build(name, task),
                    run_dir=tmp_path/str(pieces),
                    **{**quick, 'batch_size': batch_size, 'gradient_accumulation': pieces, 'snapshots': 0})
        ends.append((torch.cat([p.detach().flatten() for p in model.parameters()]),
                     [r['loss'] for r in run.train_rows]))
    (a, x), (b, y) = ends
    assert len(x) == 2 and np.allclose(x, y, rtol=1e-6) and torch.allclose(a, b, atol=1e-6)

first_of_task = {row[0]: row for row in reversed(served_rows)}

@pytest.mark.sample(1)
@pytest.mark.parametrize('task, kind, name', some_slow(served_rows, first_of_task.values()), ids=named)
def test_bf16_autocast_trains_every_task_near_full_precision(task, kind, name, tmp_path, tiny_data, tokens):
    data, losses = examples(task, tiny_data), []
    for precision in (dict(), dict(bf16=True)):
        model, seen = model_for(task, kind, data, tokens), set()
        linear = next(m for m in model.modules() if isinstance(m, (torch.nn.Linear, torch.nn.Conv2d)))
        linear.register_forward_hook(lambda m, i, out: seen.add(out.dtype) if m.training else None)
        run = train(model, tokens if tasks[task].modality == 'text' else None, data, build(name, task),
                    run_dir=tmp_path/str(len(losses)),
                    **{**quick, 'snapshots': 0, 'args': dict(use_cpu=True, **precision)})
        losses.append(run.train_rows[0]['loss'])
        assert torch.bfloat16 in seen if precision else seen == {torch.float32}
    assert losses[0] == pytest.approx(losses[1], rel=.05)

class Breaks(AttentionGuidance):
    "Attention guidance that raises before a step, once"
    at = None
    def plan(self, model, batch, progress):
        if progress.step == self.at and model.training: self.at = None; raise KeyboardInterrupt
        return super().plan(model, batch, progress)

@pytest.mark.slow
@pytest.mark.parametrize('task, kind', [('masked_lm', 'bert'), ('replaced_token_detection', 'electra')])
def test_a_resumed_pretraining_masks_and_replaces_what_an_uninterrupted_one_does(
    task, kind, tmp_path, tiny_data, tokens):
    data, ends = examples(task, tiny_data), []
    for out, at in (('whole', None), ('run', 4)):
        method = Breaks(patterns={'first': [0]}, alpha=3.)
        method.at, start = at, lambda: model_for(task, kind, data, tokens)
        settings = {**quick, 'epochs': 2, 'snapshots': 3}
        model = start()
        if at is not None:
            with pytest.raises(KeyboardInterrupt): train(model, tokens, data, method, run_dir=tmp_path/out, **settings)
            model = start()
        run = train(model, tokens, data, method, run_dir=tmp_path/out, resume=at is not None, **settings)
        ends.append(([r['loss'] for r in run.train_rows], [s.info['token_labels'] for s in run.snapshots()],
                     torch.cat([p.detach().flatten() for p in model.parameters()])))
    assert ends[0][:2] == ends[1][:2] and torch.equal(ends[0][2], ends[1][2])
    assert len({str(x) for x in ends[0][1]}) == 2 # two probes, each with one draw for all steps

@pytest.mark.slow
@pytest.mark.parametrize('task, kind, name', [
    row for row in served_rows if row[0] == 'question_answering' or row[1] == 'deit' or row[2].startswith('SalLM')
    or row[:2] == ('causal_lm', 'gpt2') and row[2] == 'Distillation'], ids=named)
def test_resumed_training_has_the_same_result_in_every_task(
    task, kind, name, tmp_path, tiny_data, tokens):
    data, ends = examples(task, tiny_data), []
    tokenizer, settings = tokens if tasks[task].modality == 'text' else None, {**quick, 'epochs': 2, 'snapshots': 2}
    for out in ('whole', 'run'):
        if out == 'run':
            with pytest.raises(KeyboardInterrupt):
                train(model_for(task, kind, data, tokens), tokenizer, data, breaking_at(4, build(name, task)),
                      run_dir=tmp_path/out, **settings)
        model = model_for(task, kind, data, tokens)
        run = train(model, tokenizer, data, build(name, task), run_dir=tmp_path/out, resume=out == 'run', **settings)
        ends.append(([r['loss'] for r in run.train_rows],
                     torch.cat([p.detach().flatten() for p in model.parameters()])))
    assert len(ends[0][0]) > 4 and ends[0][0] == ends[1][0] and torch.equal(ends[0][1], ends[1][1])

def train_all(folder, out, batch_size, rows):
    "Train every row of `rows`, in one process or in one of several"
    from transformers import PreTrainedTokenizerFast
    tokenizer, tiny = PreTrainedTokenizerFast.from_pretrained(f'{folder}/tokenizer'), datasets.load_from_disk(
        f'{folder}/data')
    for task, kind, name in rows:
        data = examples(task, tiny)
        train(without_dropout(model_for(task, kind, data, tokenizer)),
              tokenizer if tasks[task].modality == 'text' else None, data, build(name, task),
              run_dir=f'{out}/{task}-{named(kind)}-{name}',
              **{**quick, 'batch_size': batch_size, 'args': dict(use_cpu=True)})

# Further kinds of models for tasks, and explanations for methods, that other rows cover as well.
further = {('causal_lm', 'llama'), ('image_classification', 'vit'), ('regression', 'llama'), ('classification', 'gpt2'),
         ('classification', TextLSTM)}
apart = [row for row in served_rows if row[:2] in further or row[2].endswith(('gradients', 'contrast'))]

@pytest.mark.slow
@pytest.mark.parametrize('rows', [[row for row in served_rows if row not in apart],
                                  pytest.param(apart, marks=pytest.mark.slow)], ids=['tasks', 'kinds'])
def test_two_processes_train_every_task_like_one(rows, tmp_path, tiny_data, tokens):
    "gloo on the CPU, without dropout, the same global batch: the same losses and scores within rounding"
    tokens.save_pretrained(tmp_path/'tokenizer'); tiny_data.save_to_disk(tmp_path/'data')
    def begin(out, batch_size, **env):
        return forked.begin(train_all, tmp_path, tmp_path/out, batch_size, rows,
                            said=tmp_path/f'{out}{env.get("RANK")}', env=env)
    group = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(32500 + os.getpid() % 2000), WORLD_SIZE='2',
                 LOCAL_WORLD_SIZE='2')
    for processes in ([begin('one', 8)], [begin('two', 4, RANK=r, LOCAL_RANK=r, **group) for r in '01']):
        for p in processes: p.join()
        assert [p.exitcode for p in processes] == [0]*len(processes), ''.join(
            p.read_text() for p in tmp_path.glob('*.err'))[-3000:]
    for task, kind, name in rows:
        a, b = (Run(tmp_path/o/f'{task}-{named(kind)}-{name}') for o in ('one', 'two'))
        assert b.finished and len(a.train_rows) == len(b.train_rows) == 3 and a.recorded == b.recorded
        assert np.allclose([r['loss'] for r in a.train_rows], [r['loss'] for r in b.train_rows], rtol=1e-6), task
        for k, v in a.eval_rows[-1].items():
            assert (b.eval_rows[-1][k] == pytest.approx(v, rel=1e-5, nan_ok=True) if isinstance(v, float)
                    else True), (task, k)
        x, y = (torch.cat([p.flatten() for p in load_model(r)[0].parameters()]) for r in (a, b))
        assert torch.allclose(x, y, atol=1e-6), task


@pytest.mark.slow
def test_an_encoder_decoder_classifier_trains_on_its_encoder_and_sallm_needs_a_pooled_row(tmp_path, tiny_data, tokens):
    for name in ('FineTuning', 'ADDrop', 'SaliencyGuided', 'AttentionGuidance'):
        run = train(tiny_bart('classification', tokens, num_labels=2), tokens, tiny_data, methods[name](),
                    run_dir=tmp_path/name, **quick)
        assert run.finished
        assert 'pooled_row' not in run.snapshot().info
        assert run.snapshot().arrays['attention'].shape[:2] == (2, 4)
    with pytest.raises(ValueError, match='is an encoder-decoder model, whose head reads a row of the decoder'):
        train(tiny_bart('classification', tokens, num_labels=2), tokens, tiny_data, SalLM(steps=2),
              run_dir=tmp_path/'sallm', **quick)
    assert not (tmp_path/'sallm').exists()

@pytest.mark.sample(1)
@pytest.mark.parametrize('name, allowed', [('FineTuning', True), ('SaliencyGuided', True), ('ADDrop', False),
                                           ('AttentionGuidance', False), ('SalLM', False)])
def test_gradient_checkpointing_changes_nothing_or_raises(name, allowed, tmp_path, tiny_data, tiny_bert, tokens):
    ends = []
    for checkpointing in (False, True):
        model = tiny_bert(hidden_dropout_prob=0., attention_probs_dropout_prob=0.)
        if checkpointing: model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
        if checkpointing and not allowed:
            with pytest.raises(ValueError, match='gradient checkpointing'):
                train(model, tokens, tiny_data, methods[name](), run_dir=tmp_path/'rejected',
                      **{**quick, 'snapshots': 0})
            assert not (tmp_path/'rejected').exists()
            return
        run = train(model, tokens, tiny_data, methods[name](), run_dir=tmp_path/str(checkpointing),
                    **{**quick, 'snapshots': 0})
        ends.append(([r['loss'] for r in run.train_rows],
                     torch.cat([p.detach().flatten() for p in model.parameters()])))
    assert np.allclose(ends[0][0], ends[1][0], rtol=1e-5) and torch.allclose(ends[0][1], ends[1][1], atol=1e-5)

def test_dropped_positions_are_also_dropped_in_the_masked_copy(tiny_data, tiny_bert, tokens):
    """Where nothing is masked, the copy is the input, and the two passes of AD-DROP with saliency guided training
    must agree"""
    from salviz.data.texts import Collator, encode
    from salviz.methods.base import Progress
    from salviz.training.step import _run_passes
    model = tiny_bert(hidden_dropout_prob=0., attention_probs_dropout_prob=0.).double().train()
    batch = Collator(tokens)(list(encode(tiny_data['train'].select(range(5)), tokens)))
    method = ADDrop(p=.6, q=.9, cross_tuning=False) + SaliencyGuided(mask_fraction=.01)
    plan = method.plan(model, batch, Progress(seed=3))
    assert any(d.any() for d in plan.drop.values())
    assert torch.equal(plan.inputs['masked']['input_ids'], batch['input_ids'])
    outputs, _ = _run_passes(model, model, batch, plan)
    assert torch.equal(outputs['main'].logits, outputs['masked'].logits)
    plain, _ = _run_passes(model, model, batch, SaliencyGuided(mask_fraction=.01).plan(model, batch, Progress(seed=3)))
    assert not torch.allclose(plain['main'].logits, outputs['main'].logits)

def test_custom_optimiser_and_schedule(tmp_path, tiny_data, tiny_bert, tokens):
    from functools import partial
    def stairs(optimizer, steps): return torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=.1)
    data, model = examples('classification', tiny_data), tiny_bert()
    run = train(model, tokens, data, run_dir=tmp_path/'run', optimizer=partial(torch.optim.SGD, momentum=.9),
                scheduler=stairs, **{**quick, 'epochs': 2, 'learning_rate': 1., 'snapshots': 0})
    assert [r['learning_rate'] for r in run.train_rows] == pytest.approx([1., .1, .1, .01, .01, .01])
    assert run.config['settings']['scheduler'].endswith('stairs')
    with pytest.raises(ValueError, match='optimizer must be a function'):
        train(model, tokens, data, run_dir=tmp_path/'no', optimizer='adadelta', **quick)

def test_channels_of_a_series_keep_their_names(tmp_path):
    from salviz.data.signals import load_series
    data = load_series({k: (np.random.default_rng(0).normal(size=(8, 12, 2)).astype('float32'), ['a', 'b']*4)
                        for k in ('train', 'validation', 'test')}, feature_names=['left', 'right'])
    run = train(small_net('lstm', data), None, data, run_dir=tmp_path/'run', **quick)
    assert run.snapshot().info['feature_names'] == ['left', 'right']
