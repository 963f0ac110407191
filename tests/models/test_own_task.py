"""A custom task has three parts: a `Task`, its row in the table, and its view. Then it is trained, recorded, opened,
explained and drawn like any other. Where it is unknown, its run still opens, with a note."""
import subprocess
import sys

import datasets
import numpy as np
import pytest
import torch

from salviz.attribution.explanations import explain
from salviz.core.runs import Run
from salviz.data.texts import Collator, data_classes, data_task, encode
from salviz.explorer.run_metadata import meta
from salviz.explorer.payload import pack_frame, split_frame
from salviz.figures.kinds import figure
from salviz.metrics.tasks import TaskWords
from salviz.models.corruption import small_model
from salviz.models.tasks import Task, full, task_of, tasks
from salviz.training.trainer import load_model, train
from salviz.views.base import EvidenceView, _answer_views, answer_view, title_of, view_for

# 1. The task: several scores for each text

names = 'valence', 'arousal', 'dominance'

class SeveralScores(Task):
    "How pleasant, excited and dominant a text is: one number for each"
    def batch_labels(self, labels, classes): return torch.tensor(labels, dtype=torch.float32)

    def loss(self, outputs, batch): return (full(outputs.logits) - batch['labels']).square().mean(1)

    def predicted(self, outputs, batch): return outputs.logits.detach()

    def score(self, outputs, batch, labels): return -(outputs.logits - labels).square().mean(1)

    def prediction_score(self, outputs, batch, labels): return outputs.logits.abs().sum(1)

    def label(self, labels): return None

    def answer(self, outputs, said, batch, j, real, names):
        info = dict(right_scores=batch['labels'][j].tolist()) if 'labels' in batch else {}
        return dict(scores=said[j].float().numpy()), info

def closeness(labels, predictions): return dict(closeness=1/(1 + float(((labels - predictions)**2).mean())))

def check(where, split, classes):
    bad = [row for row in split['label'] if len(row) != len(names)]
    if bad: raise ValueError(f'train: labels must be lists of {len(names)} numbers, got {bad[0]} in {where}')

def test_methods_of_a_task_work_under_their_old_names_with_a_warning():
    with pytest.warns(DeprecationWarning, match='Older.own_score is now called prediction_score'):
        class Older(SeveralScores):
            def own_score(self, outputs, batch, labels): return 'as before'
    assert Older('older').prediction_score(None, None, None) == 'as before'

# 2. Its row

several_scores = SeveralScores(
    'several_scores', has_classes=False, classes=names, check=check, metrics=closeness, metric='closeness',
    fits=lambda feature: str(getattr(getattr(feature, 'feature', None), 'dtype', '')).startswith('float'),
    words=TaskWords('all scores together'),
    head=tasks['classification'].head._replace(
        config=dict(problem_type='regression', num_labels=len(names)),
        fits=lambda kind, config: config.problem_type == 'regression' and config.num_labels == len(names)))

# 3. Its view

def scores_beside_labels(snapshot):
    values = np.stack([snapshot.info['right_scores'], snapshot.arrays['scores']])
    caption = 'The scores of the text, and those of the model.'
    return EvidenceView(title=title_of(snapshot), subtitle='', caption=caption, labels=(), is_special=np.zeros(0, bool),
                        name='scores', form='table', values=values, kind='signed', limit=1., axes=('row', 'class'),
                        rows=('label', 'model'), columns=tuple(snapshot.classes))

@pytest.fixture
def known(monkeypatch):
    "Register the task, and unregister it afterwards"
    monkeypatch.setitem(tasks, 'several_scores', several_scores)
    answer_view(lambda s: s.info.get('task') == 'several_scores', 'scores')(scores_beside_labels)
    yield
    _answer_views.pop(scores_beside_labels, None)

@pytest.fixture
def data(tiny_data):
    "Return sentences that are pleasant or not, and more excited if they are longer"
    features = datasets.Features(text=datasets.Value('string'), label=datasets.Sequence(datasets.Value('float32')))
    def rows(part): return dict(text=part['text'], label=[[y, len(t)/64, .5] for t, y in zip(part['text'],
                                                                                             part['label'])])
    return datasets.DatasetDict({k: datasets.Dataset.from_dict(rows(d.select(range(n))), features=features)
                                 for (k, d), n in zip(tiny_data.items(), (24, 8, 8))})

def made(tokenizer): return small_model('several_scores', tokenizer, layers=2, heads=4, hidden=32)

def trained(folder, tokenizer, data):
    return train(made(tokenizer), tokenizer, data, run_dir=folder, epochs=1, batch_size=8, probes=2, snapshots=2,
                 learning_rate=1e-3, progress=False)

def test_a_custom_task_is_trained_recorded_opened_explained_and_drawn(tmp_path, known, data, tiny_tokenizer):
    assert (data_task(data), data_classes(data)) == ('several_scores', None)
    run = trained(tmp_path/'run', tiny_tokenizer, data)
    assert len(run.train_rows) == 3 and all(np.isfinite(r['loss']) for r in run.train_rows)
    assert run.config['task'] == 'several_scores' and run.best_metric[0] == 'closeness'
    assert 0 < run.eval_rows[-1]['closeness'] <= 1
    again, _ = load_model(run)
    assert task_of(again) == 'several_scores'

    s = Run(run.path).snapshot()
    texts, labels = data['validation']['text'], data['validation']['label']
    assert s.label is None and s.classes == [*names]
    assert np.allclose(s.info['right_scores'], labels[texts.index(s.texts[0])])
    batch = Collator(tiny_tokenizer)(list(encode(data['validation'].remove_columns('label'), tiny_tokenizer)))
    at = texts.index(s.texts[0])
    with torch.no_grad():
        logits = again(batch['input_ids'], attention_mask=batch['attention_mask']).logits[at]
    assert np.allclose(s.arrays['scores'], logits, atol=1e-3)

    found = explain(again, data['validation'].select([at]), 'input_x_gradient', tokenizer=tiny_tokenizer)
    assert torch.allclose(found.score[0], logits.abs().sum(), atol=1e-5) # its own score

    view = view_for(s)
    assert type(view) is EvidenceView and view.columns == names and not view.notes
    assert np.array_equal(view.values[0], s.info['right_scores'])
    figure(run).savefig(tmp_path/'scores.pdf')
    assert (tmp_path/'scores.pdf').read_bytes()[:4] == b'%PDF'
    assert 'The scores of the text' in figure(run).caption
    header, _ = split_frame(pack_frame(s))
    assert header['info']['words']['explained'] == 'all scores together'
    assert not header['info']['words']['several']
    assert not meta([run])['runs'][0]['notes']

def test_invalid_labels_of_a_custom_task_raise_its_own_error(tmp_path, known, data, tiny_tokenizer):
    bad = data['train'].map(lambda row: dict(label=[0., 7.]))
    with pytest.raises(ValueError, match='labels must be lists of 3 numbers, got .0.0, 7.0. in train'):
        train(made(tiny_tokenizer), tiny_tokenizer, datasets.DatasetDict(data | dict(train=bad)),
              run_dir=tmp_path/'run', progress=False)
    assert not (tmp_path/'run').exists()

@pytest.mark.slow
def test_the_run_of_an_unknown_task_opens_with_a_plain_view_and_a_note(
    tmp_path, known, data, tiny_tokenizer):
    trained(tmp_path/'run', tiny_tokenizer, data)
    code = f'''
import sys
from salviz.core.runs import Run
from salviz.explorer.run_metadata import meta
from salviz.explorer.payload import pack_frame, split_frame
from salviz.views.base import view_for
run = Run({str(tmp_path/'run')!r})
view = view_for(run.snapshot())
print(type(view).__name__, *view.notes, *meta([run])['runs'][0]['notes'], sep='\\n')
print(split_frame(pack_frame(run.snapshot()))[0]['info']['words']['explained'])
assert 'torch' not in sys.modules'''
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    plain = "The task 'several_scores' is unknown here, so its answers are shown in a generic form."
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ['AttentionBesideSaliency', plain, plain, 'the prediction']

def test_custom_registrations_are_removed_again():
    assert 'several_scores' not in tasks and scores_beside_labels not in _answer_views
