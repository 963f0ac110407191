"""Multi-label classification: loss and metrics against float64 loops, from lists of labels to a recorded run, and
faithfulness on the sigmoid of a class."""
import subprocess
import sys

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from torch.special import expit

from helpers import alike
from salviz.attribution.explanations import explain
from salviz.attribution.saliency import input_saliency
from salviz.core.runs import Run
from salviz.data.texts import Collator, data_classes, data_task, encode, load_text, subset
from salviz.explorer.payload import pack_frame, split_frame
from salviz.figures.kinds import figure
from salviz.metrics.scores import multi_label_metrics
from salviz.methods import (ADDrop, AttentionGuidance, Distillation, FineTuning, RationaleGuided, SaliencyGuided,
                            SaliencyGuidedVariant,
                            SalLM)
from salviz.methods.base import Progress
from salviz.methods.saliency_guided import consistency_loss_per_class
from salviz.models.corruption import small_model
from salviz.models.loading import load_model_for
from salviz.models.tasks import task_of, tasks
from salviz.analysis.faithfulness import decision_flip, faithfulness
from salviz.analysis.model_maps import _explain_texts
from salviz.studies.study import Study
from salviz.training.trainer import load_model, train
from salviz.views.base import MultiLabelSentence, view_for

names, task = ['cold', 'warm', 'long'], tasks['multi_label_classification']
quick = dict(epochs=1, batch_size=8, learning_rate=1e-3, probes=2, snapshots=2, progress=False)

@pytest.fixture
def data(tiny_data):
    "Return sentences that are cold or warm, and some of them long; a few have no label"
    feature = datasets.Sequence(datasets.ClassLabel(names=names))
    features = datasets.Features(text=datasets.Value('string'), label=feature)
    def labels(i, text, label): return [] if i % 7 == 3 else [label] + [2]*(len(text) > 40)
    def rows(part): return dict(text=part['text'], label=[labels(i, *row) for i, row in enumerate(
        zip(part['text'], part['label']))])
    return datasets.DatasetDict({k: datasets.Dataset.from_dict(rows(part), features=features)
                                 for k, part in tiny_data.items()})

@pytest.fixture
def made(tiny_tokenizer):
    "Return a function of a seed that returns a small model with weights large enough for words to matter"
    return lambda seed=0: small_model('multi_label_classification', tiny_tokenizer, layers=1, heads=4, hidden=32,
                                      labels=names, seed=seed, initializer_range=.2)

def batch_of(data, tokenizer, model, count=6):
    rows = encode(data['train'].select(range(count)), tokenizer)
    return Collator(tokenizer, labels=task.label_collator(model))(list(rows))

def by_hand(logits, label_sets):
    "Return the mean binary cross-entropy of each example, class by class"
    out = []
    for row, labels in zip(logits.tolist(), label_sets):
        p = [1/(1 + np.exp(-z)) for z in row]
        out.append(sum(-np.log(p[c] if c in labels else 1 - p[c]) for c in range(len(p)))/len(p))
    return torch.tensor(out, dtype=torch.float64)

# loss and metrics

def test_the_loss_is_the_mean_cross_entropy_of_the_classes_whatever_the_padding(data, made, tiny_tokenizer):
    model = made().double()
    batch = batch_of(data, tiny_tokenizer, model)
    with torch.no_grad(): outputs = model(batch['input_ids'], attention_mask=batch['attention_mask'])
    assert not batch['attention_mask'].all()
    assert alike(task.loss(outputs, batch), by_hand(outputs.logits, data['train']['label'][:6]))
    for i in range(6):
        real = batch['attention_mask'][i].bool()
        with torch.no_grad(): alone = model(batch['input_ids'][i:i + 1, real])
        one = dict(labels=batch['labels'][i:i + 1])
        assert alike(task.loss(alone, one), task.loss(outputs, batch)[i:i + 1], size=256)
    own = model(batch['input_ids'], attention_mask=batch['attention_mask'], labels=batch['labels'].double()).loss
    assert alike(task.loss(outputs, batch).mean(), own.detach())

def test_metrics_are_those_of_a_loop_over_examples_and_classes():
    rng = np.random.default_rng(0)
    y, p = (rng.random((40, 5)) < share for share in (.3, .4))
    y[:, 4] = p[:, 4] = False # a class that never occurs counts as 0
    tp, fp, fn = ([sum(bool(f(a[c], b[c])) for a, b in zip(y, p)) for c in range(5)]
                  for f in (lambda a, b: a and b, lambda a, b: b and not a, lambda a, b: a and not b))
    f1 = [2*t/(2*t + a + b) if t + a + b else 0. for t, a, b in zip(tp, fp, fn)]
    scores = multi_label_metrics(y.astype(float), p.astype(float))
    assert scores['micro_f1'] == pytest.approx(2*sum(tp)/(2*sum(tp) + sum(fp) + sum(fn)))
    assert scores['macro_f1'] == pytest.approx(sum(f1)/5)
    assert scores['subset_accuracy'] == sum(list(a) == list(b) for a, b in zip(y, p))/40

def test_the_score_of_labels_is_their_mean_logit_and_the_divergence_equals_a_loop():
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(4, 3, generator=g, dtype=torch.float64)*3 for _ in range(2))
    holds = torch.tensor([[1., 0., 1.], [0., 1., 0.], [0., 0., 0.], [1., 1., 1.]])
    outputs = type('Outputs', (), dict(logits=a))
    expected = [np.mean([z for z, h in zip(row, some) if h]) if any(some) else -max(row)
                for row, some in zip(a.tolist(), holds.tolist())]
    assert alike(task.score(outputs, {}, holds), torch.tensor(expected, dtype=torch.float64))
    p, q = expit(a).tolist(), expit(b).tolist()
    kl = [sum(x*np.log(x/y) + (1 - x)*np.log((1 - x)/(1 - y)) for x, y in zip(*rows))/3 for rows in zip(p, q)]
    assert alike(consistency_loss_per_class(a, b), torch.tensor(kl, dtype=torch.float64), size=512)

# data

def test_lists_of_labels_are_read_in_every_form_and_never_as_class_names():
    texts = [f'sentence {i}' for i in range(20)]
    by_name = [['joy', 'fear'], ['anger'], [], ['joy']]*5
    ids = [[2, 1], [0], [], [2]]*5
    flags = [[0, 1, 1], [1, 0, 0], [0, 0, 0], [0, 0, 1]]*5
    known = datasets.Features(text=datasets.Value('string'),
                              label=datasets.Sequence(datasets.ClassLabel(names=['anger', 'fear', 'joy'])))
    frame = pd.DataFrame(dict(text=texts, label=by_name))
    columns = pd.DataFrame(dict(text=texts, **dict(zip(('anger', 'fear', 'joy'), np.array(flags).T))))
    three = dict(labels=['anger', 'fear', 'joy'])
    sources = dict(names=(frame, {}), ids=(frame.assign(label=ids), three), flags=(frame.assign(label=flags), three),
                   floats=(frame.assign(label=[[float(x) for x in row] for row in flags]), three),
                   arrays=(frame.assign(label=[np.array(row, bool) for row in flags]), three),
                   text=(frame.assign(label=[str(row) for row in by_name]), {}),
                   columns=(columns, dict(label=['anger', 'fear', 'joy'])),
                   dataset=(datasets.Dataset.from_dict(dict(text=texts, label=ids), features=known), {}))
    for kind, (source, more) in sources.items():
        read = load_text(source, **more)
        assert (data_task(read), data_classes(read)) == ('multi_label_classification', ['anger', 'fear', 'joy']), kind
        for part in read.values():
            for text, label in zip(part['text'], part['label']):
                assert label == sorted(ids[texts.index(text)]), (kind, text)

def test_lists_of_labels_of_a_csv_file_are_read_and_splits_are_stratified_by_the_rarest(tmp_path):
    frame = pd.DataFrame(dict(text=[f's{i}' for i in range(100)], label=[['a', 'b'] if i % 10 == 0 else ['a']
                                                                       for i in range(100)]))
    frame.to_csv(tmp_path/'x.csv', index=False)
    read = load_text(str(tmp_path/'x.csv'))
    assert read['train'].features['label'].feature.names == ['a', 'b']
    assert [sum(1 in row for row in part['label']) for part in read.values()] == [8, 1, 1]
    assert sum(1 in row for row in subset(read, 40)['train']['label']) == 4

@pytest.mark.parametrize('label,said', [
    ([['a'], 'b']*10, 'the label is a single value, unlike the lists in other rows, in 10 rows of train'),
    ([[0, 1], [1, 0]]*10, 'could be class numbers or flags'),
    ([['a', None], ['b']]*10, 'a label is missing in 10 rows of train'),
    ([[.2, .8], [.5, .5]]*10, 'numbers with fractions'),
    ([['a'], ['a']]*10, 'at least two classes are needed')])
def test_ambiguous_or_invalid_lists_of_labels_are_rejected(label, said):
    with pytest.raises(ValueError, match=said): load_text(pd.DataFrame(dict(text=['some text']*20, label=label)))

def test_training_rejects_flags_instead_of_class_numbers(data, made, tiny_tokenizer, tmp_path):
    feature = datasets.Features(text=datasets.Value('string'), label=datasets.Sequence(datasets.Value('int64')))
    flags = datasets.Dataset.from_dict(dict(text=['fine film']*8, label=[[0, 1, 1]]*8), features=feature)
    with pytest.raises(ValueError, match='must be lists of distinct classes, got .0, 1, 1. in row 0 of train'):
        train(made(), tiny_tokenizer, datasets.DatasetDict(train=flags, validation=flags), run_dir=tmp_path/'run',
              **quick)
    with pytest.raises(ValueError, match="label='label' gives a list of labels; omit task"):
        load_text(pd.DataFrame(dict(text=['t']*20, label=[['a'], ['b']]*10)), task='classification')

# training

@pytest.mark.slow
def test_a_run_is_trained_scored_recorded_and_shown_without_torch(data, made, tiny_tokenizer, tmp_path):
    run = train(made(), tiny_tokenizer, data, run_dir=tmp_path/'run', **{**quick, 'epochs': 10, 'learning_rate': 1e-2},
                returns='last')
    assert run.best_metric[0] == 'micro_f1' and {'micro_f1', 'macro_f1', 'subset_accuracy', 'loss'} == {*run.measures}
    model, _ = load_model(run)
    assert task_of(model) == 'multi_label_classification' and model.config.id2label[2] == 'long'
    rows = encode(data['test'], tiny_tokenizer)
    batch = Collator(tiny_tokenizer, labels=task.label_collator(model))(list(rows))
    with torch.no_grad(): logits = model(batch['input_ids'], attention_mask=batch['attention_mask']).logits
    expected = multi_label_metrics(batch['labels'].numpy(), (logits > 0).numpy())
    assert {k: run.scores('test')[k] for k in expected} == pytest.approx(expected)
    assert run.scores('train')['micro_f1'] > .7 and run.scores('train')['loss'] < .7*run.train_rows[0]['loss']

    s, first = Run(run.path).snapshot(), data['validation']
    at = first['text'].index(s.texts[0])
    assert s.label is None and s.classes == names
    assert s.info['right_classes'] == [names[c] for c in first['label'][at]]
    p = s.arrays['probabilities']
    assert s.info['predicted_classes'] == [n for n, x in zip(names, p) if x > .5]
    looked, = _explain_texts(model, tiny_tokenizer, s.texts[0], saliency='input_x_gradient', attribution=False)
    assert np.allclose(p, looked.arrays['probabilities'], atol=1e-5) and type(view_for(looked)) is MultiLabelSentence
    code = f'''
import sys
from salviz.core.runs import Run
from salviz.figures.kinds import figure
from salviz.views.base import view_for
run = Run({str(run.path)!r})
view = view_for(run.snapshot())
print(type(view).__name__, view.classes, sorted(view.right), view.subtitle)
figure(run).savefig({str(tmp_path/'classes.pdf')!r})
assert 'torch' not in sys.modules'''
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    right = sorted(first['label'][at])
    assert done.stdout.startswith(f"MultiLabelSentence ('cold', 'warm', 'long') {right} labels: ")
    header, _ = split_frame(pack_frame(s))
    assert header['info']['words']['several'] and header['info']['right_classes'] == s.info['right_classes']

methods = dict(sallm=lambda model: SalLM(teacher=model, steps=2), guided=lambda model: SaliencyGuided(mask_fraction=.4),
               reuse=lambda model: SaliencyGuided(mask_fraction=.4, saliency='input_x_gradient',
                                                  variant=SaliencyGuidedVariant(passes='reuse')),
               ad_drop=lambda model: ADDrop(p=.4, q=.5, cross_tuning=False),
               integrated=lambda model: ADDrop(attribution='integrated_gradients', p=.4, q=.5, cross_tuning=False),
               guidance=lambda model: AttentionGuidance(head_fraction=.5, alpha=10.))

@pytest.mark.slow
@pytest.mark.parametrize('name', methods)
def test_methods_train_and_record_multi_label_models(name, data, made, tiny_tokenizer, tmp_path):
    small = datasets.DatasetDict({k: part.select(range(8)) for k, part in data.items()})
    run = train(made(), tiny_tokenizer, small, methods[name](made(1)), run_dir=tmp_path/'run', **quick)
    assert all(np.isfinite(row['loss']) for row in run.train_rows)
    s = run.snapshot()
    assert view_for(s).caption and figure(run).caption and str(s)
    if name == 'guided':
        p, q = s.arrays['probabilities'].astype(float), s.arrays['masked_probabilities'].astype(float)
        kl = np.mean(p*np.log(p/q) + (1 - p)*np.log((1 - p)/(1 - q)))
        assert view_for(s).divergence == pytest.approx(kl) and s.losses['consistency'] == pytest.approx(kl, rel=1e-3)

@pytest.mark.parametrize('method,reason', [
    (lambda model: Distillation(teacher=model), 'one distribution over all classes'),
    (lambda model: RationaleGuided(), 'the column does not name the class')])
def test_methods_without_multi_label_support_say_why(method, reason, data, made, tiny_tokenizer, tmp_path):
    with pytest.raises(ValueError, match=f'multi_label_classification.*{reason}'):
        train(made(), tiny_tokenizer, data, method(made(1)), run_dir=tmp_path/'run', **quick)
    assert not (tmp_path/'run').exists()

def test_ad_drop_explains_the_predicted_classes_and_sallm_the_gold_ones(data, made, tiny_tokenizer):
    model = made()
    batch = batch_of(data, tiny_tokenizer, model)
    with torch.no_grad(): outputs = model(batch['input_ids'], attention_mask=batch['attention_mask'])
    every = torch.arange(len(batch['input_ids']))
    asked = ADDrop(p=.4, q=.5).explained(model, batch, Progress())
    assert alike(asked(outputs, every), task.score(outputs, batch, (outputs.logits > 0).float()))
    from salviz.methods.sallm import token_saliency
    of_labels = token_saliency(model, batch, 'input_x_gradient', 'gold')
    def by_labels(outputs, rows): return task.score(outputs, batch, batch['labels'][rows])
    assert alike(of_labels, input_saliency(model, batch, 'input_x_gradient', by_labels))

# explanations and faithfulness

def test_one_class_is_explained_and_by_default_the_most_probable_one(data, made, tiny_tokenizer):
    model = made()
    batch = batch_of(data, tiny_tokenizer, model)
    with torch.no_grad(): logits = model(batch['input_ids'], attention_mask=batch['attention_mask']).logits
    def found(target): return explain(model, data['train'].select(range(6)), 'input_x_gradient', target,
                                      tokenizer=tiny_tokenizer)
    assert torch.allclose(found('predicted').score.flatten(), logits.amax(1), atol=1e-5)
    assert torch.allclose(found(1).score.flatten(), logits[:, 1], atol=1e-5)
    outputs = type('Outputs', (), dict(logits=logits))
    assert torch.allclose(found('gold').score.flatten(), task.score(outputs, batch, batch['labels']), atol=1e-5)
    log_p = input_saliency(model, batch, 'input_x_gradient', torch.ones(6, dtype=torch.int64), score='log_probability')
    own = input_saliency(model, batch, 'input_x_gradient', lambda outputs, rows: outputs.logits[:, 1].sigmoid().log())
    assert alike(log_p, own, size=1024)

def test_faithfulness_of_the_sigmoid_of_one_class_equals_a_loop(data, made, tiny_tokenizer):
    model = made().double()
    batch = batch_of(data, tiny_tokenizer, model)
    with torch.no_grad(): # so that decisions change: logits around zero, and far from it
        logits = model(batch['input_ids'], attention_mask=batch['attention_mask']).logits
        model.classifier.bias.sub_(logits.mean(0))
        model.classifier.weight.mul_(20)
        model.classifier.bias.mul_(20)
    values = [np.random.default_rng(i).random(n) for i, n in enumerate(batch['attention_mask'].sum(1).tolist())]
    shares = (.25, .5)
    for target in ('predicted', 1):
        got = faithfulness(model, batch, values, target, fractions=shares)
        flips = decision_flip(model, batch, values, target=target)
        for i, v in enumerate(values):
            ids = batch['input_ids'][i, batch['attention_mask'][i].bool()]
            units = torch.nonzero(~batch['is_special'][i, batch['attention_mask'][i].bool()])[:, 0].tolist()
            order = sorted(units, key=lambda k: -v[k])
            def p(gone):
                kept = [k for k in range(len(ids)) if k not in gone]
                with torch.no_grad(): return torch.sigmoid(model(ids[kept][None]).logits[0])
            whole = p([])
            c = int(whole.argmax()) if target == 'predicted' else target
            assert got['target'][i] == c and got['probability'][i] == pytest.approx(whole[c].item(), abs=1e-9)
            for j, share in enumerate(shares):
                top = order[:int(np.ceil(share*len(units) - 1e-9))]
                assert len(top) == got['removed'][i, j]
                without, alone = p(top)[c], p([k for k in units if k not in top])[c]
                assert got['comprehensiveness'][i, j] == pytest.approx((whole[c] - without).item(), abs=1e-9)
                assert got['sufficiency'][i, j] == pytest.approx((whole[c] - alone).item(), abs=1e-9)
                assert got['flipped'][i, j] == ((without > .5) != (whole[c] > .5))
            flipped = [k for k in range(1, len(units) + 1) if (p(order[:k])[c] > .5) != (whole[c] > .5)]
            assert flips['flipped'][i] == bool(flipped)
            assert flips['removed'][i] == (flipped[0] if flipped else len(units))
    assert flips['flipped'].any()

def test_multi_label_models_are_loaded_and_trained_in_a_study(data, tmp_path):
    small = datasets.DatasetDict({k: part.select(range(8)) for k, part in data.items()})
    model, tokenizer = load_model_for('multi_label_classification', 'minilm', labels=names)
    assert model.config.problem_type == 'multi_label_classification' and task_of(model) == 'multi_label_classification'
    table = Study(tmp_path/'study', 'minilm', small, dict(plain=FineTuning), seeds=[0], progress=False, epochs=1,
                  snapshots=0, measures=['test_micro_f1', 'test_macro_f1', 'gap']).run()
    assert 0 <= table.test_micro_f1[0] <= 1 and np.isfinite(table.gap[0])
