"""A task of one's own is three things: a `Task`, its row in the table, its view. Then it is trained, recorded, opened,
explained and drawn like any other; and where it is not known, its run still opens and says so."""
import subprocess
import sys

import datasets
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from salviz.attribution.explanations import explain
from salviz.core.runs import Run
from salviz.data.texts import Collator, data_classes, data_task, encode
from salviz.explorer.described import meta
from salviz.explorer.payload import pack_frame, split_frame
from salviz.figures.kinds import figure
from salviz.measures.tasks import Words
from salviz.models.corruption import small_model
from salviz.models.tasks import Task, full, task_of, tasks
from salviz.probing.look import explain_texts
from salviz.training.trainer import load_model, train
from salviz.views.base import EvidenceView, answer_view, answer_views, title_of, view_for

# 1. The task: any number of classes for each text

class MultiLabel(Task):
    "Which of the classes hold for a text? One yes or no for each"
    def batch_labels(self, labels, classes):
        return torch.tensor([[float(c in some) for c in range(classes)] for some in labels])

    def loss(self, outputs, batch):
        return F.binary_cross_entropy_with_logits(full(outputs.logits), batch['labels'], reduction='none').mean(1)

    def predicted(self, outputs, batch): return (outputs.logits.detach() > 0).float()

    def score(self, outputs, batch, labels): return (outputs.logits*(2*labels - 1)).sum(1)

    def label(self, labels): return None

    def probabilities(self, outputs): return outputs.logits.detach().float().sigmoid()

    def answer(self, outputs, said, batch, j, real, names):
        arrays, info = super().answer(outputs, said, batch, j, real, names)
        if 'labels' in batch: info['right_classes'] = names(batch['labels'][j].nonzero()[:, 0].tolist())
        return arrays, info

def micro_f1(labels, predictions):
    hits = float((labels*predictions).sum())
    return dict(micro_f1=2*hits/max(1, float(labels.sum() + predictions.sum())))

def check(where, split, classes):
    bad = [x for some in split['label'] for x in some if not 0 <= x < classes]
    if bad: raise ValueError(f'train: labels must be lists of 0 to {classes - 1}, got {bad[0]} in {where}')

# 2. Its row

multi_label = MultiLabel(
    'multi_label', several=True, fits=lambda feature: hasattr(feature, 'feature'), check=check, metrics=micro_f1,
    metric='micro_f1', words=Words('the yes and no of all classes'),
    head=tasks['classification'].head._replace(
        config=dict(problem_type='multi_label_classification'),
        fits=lambda kind, config: config.problem_type == 'multi_label_classification'))

# 3. Its view

def classes_that_hold(snapshot):
    right = snapshot.info.get('right_classes', ())
    values = np.stack([[float(name in right) for name in snapshot.classes], snapshot.arrays['probabilities']])
    caption = 'The classes that hold, and their probabilities.'
    return EvidenceView(title=title_of(snapshot), subtitle='', caption=caption, labels=(), is_special=np.zeros(0, bool),
                        name='classes', form='table', values=values, kind='positive', limit=1., axes=('row', 'class'),
                        rows=('holds', 'probability'), columns=tuple(snapshot.classes))

@pytest.fixture
def known(monkeypatch):
    "Where the task is known; afterwards it is not"
    monkeypatch.setitem(tasks, 'multi_label', multi_label)
    answer_view(lambda s: s.info.get('task') == 'multi_label', 'probabilities')(classes_that_hold)
    yield
    answer_views.pop(classes_that_hold, None)

names = ['cold', 'warm', 'long']

@pytest.fixture
def data(tiny_data):
    "Sentences that are cold or warm, and some of them long"
    feature = datasets.Sequence(datasets.ClassLabel(names=names))
    features = datasets.Features(text=datasets.Value('string'), label=feature)
    def rows(part): return dict(text=part['text'], label=[[y] + [2]*(len(t) > 40)
                                                          for t, y in zip(part['text'], part['label'])])
    return datasets.DatasetDict({k: datasets.Dataset.from_dict(rows(d.select(range(n))), features=features)
                                 for (k, d), n in zip(tiny_data.items(), (24, 8, 8))})

def made(tokenizer): return small_model('multi_label', tokenizer, layers=2, heads=4, hidden=32, labels=names)

def trained(folder, tokenizer, data):
    return train(made(tokenizer), tokenizer, data, run_dir=folder, epochs=1, batch_size=8, probes=2, snapshots=2,
                 learning_rate=1e-3, progress=False)

def test_a_task_of_ones_own_is_trained_recorded_opened_explained_and_drawn(tmp_path, known, data, tiny_tokenizer):
    assert (data_task(data), data_classes(data)) == ('multi_label', names)
    run = trained(tmp_path/'run', tiny_tokenizer, data)
    assert len(run.train_rows) == 3 and all(np.isfinite(r['loss']) for r in run.train_rows)
    assert run.config['task'] == 'multi_label' and run.best_metric[0] == 'micro_f1'
    assert 0 <= run.eval_rows[-1]['micro_f1'] <= 1
    again, _ = load_model(run)
    assert task_of(again) == 'multi_label'

    s = Run(run.path).snapshot()
    texts, labels = data['validation']['text'], data['validation']['label']
    assert s.label is None and s.classes == names
    assert s.info['right_classes'] == [names[i] for i in labels[texts.index(s.texts[0])]]
    batch = Collator(tiny_tokenizer)(list(encode(data['validation'].remove_columns('label'), tiny_tokenizer)))
    at = texts.index(s.texts[0])
    with torch.no_grad():
        logits = again(batch['input_ids'], attention_mask=batch['attention_mask']).logits[at]
    assert np.allclose(s.arrays['probabilities'], logits.sigmoid(), atol=1e-5)

    found = explain(again, data['validation'].select([at]), 'input_x_gradient', tokenizer=tiny_tokenizer)
    assert torch.allclose(found.score[0], logits.abs().sum(), atol=1e-5) # its own answer, class by class
    looked, = explain_texts(again, tiny_tokenizer, s.texts[0])
    assert np.allclose(looked.arrays['probabilities'], logits.sigmoid(), atol=1e-5)

    view = view_for(s)
    assert type(view) is EvidenceView and view.columns == tuple(names) and not view.notes
    assert np.array_equal(view.values[0], [float(n in s.info['right_classes']) for n in names])
    figure(run).savefig(tmp_path/'classes.pdf')
    assert (tmp_path/'classes.pdf').read_bytes()[:4] == b'%PDF'
    assert 'The classes that hold' in figure(run).caption
    header, _ = split_frame(pack_frame(s))
    assert header['info']['words']['explained'] == 'the yes and no of all classes'
    assert header['info']['words']['several']
    assert header['info']['right_classes'] == s.info['right_classes']
    assert not meta([run])['runs'][0]['notes']

def test_labels_that_are_none_of_its_classes_are_refused_in_its_own_words(tmp_path, known, data, tiny_tokenizer):
    bad = data['train'].map(lambda row: dict(label=[0, 7]), features=datasets.Features(
        text=datasets.Value('string'), label=datasets.Sequence(datasets.Value('int64'))))
    with pytest.raises(ValueError, match='labels must be lists of 0 to 2, got 7 in train'):
        train(made(tiny_tokenizer), tiny_tokenizer, datasets.DatasetDict(data | dict(train=bad)),
              run_dir=tmp_path/'run', progress=False)
    assert not (tmp_path/'run').exists()

def test_the_run_of_a_task_that_is_not_known_opens_with_a_plain_view_that_says_so(
    tmp_path, known, data, tiny_tokenizer):
    trained(tmp_path/'run', tiny_tokenizer, data)
    code = f'''
import sys
from salviz.core.runs import Run
from salviz.explorer.described import meta
from salviz.explorer.payload import pack_frame, split_frame
from salviz.views.base import view_for
run = Run({str(tmp_path/'run')!r})
view = view_for(run.snapshot())
print(type(view).__name__, *view.notes, *meta([run])['runs'][0]['notes'], sep='\\n')
print(split_frame(pack_frame(run.snapshot()))[0]['info']['words']['explained'])
assert 'torch' not in sys.modules'''
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    plain = "The task 'multi_label' is not known here, so its answers are shown in a plain form."
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ['AttentionBesideSaliency', plain, plain, 'what the model says']

def test_what_was_added_is_gone_again():
    assert 'multi_label' not in tasks and classes_that_hold not in answer_views
