"""In a copy of the library, a method needs three files, a task three and a panel that queries the kernel two. Each
snippet stands for what the notebook of its file would export."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import salviz

added = {
'methods/shrinking.py': '''
from salviz.methods.base import Method, Term

class Shrinking(Method):
    "Keep logits small"
    cite = 'maker2026shrinking'
    supported_tasks = ('classification',)

    def __init__(self, weight:float=.5): self.weight = weight

    def terms(self, outputs, maps, plan, batch, progress):
        return dict(size=Term(outputs['main'].logits.square().mean(1), self.weight))
''',
'methods/__init__.py': '''
from salviz.methods.shrinking import Shrinking as Shrinking
''',
'core/bibliography.py': '''
papers['Shrinking'] = _proceedings('maker2026shrinking', 'Maker, Ada', 'Small Logits', 'A Conference', 2026,
                                   method='Logit shrinking')
''',
'metrics/tasks.py': '''
tasks['several_scores'] = Facts('several_scores', has_classes=False, classes=('valence', 'arousal'),
    check=lambda where, split, classes: None, metric='closeness', unsupported='It has several scores',
    fits=lambda feature: str(getattr(getattr(feature, 'feature', None), 'dtype', '')).startswith('float'),
    metrics=lambda labels, predictions: dict(closeness=1/(1 + float(((labels - predictions)**2).mean()))))
''',
'models/tasks.py': '''
class SeveralScores(Task):
    "Several numbers per text"
    def batch_labels(self, labels, classes): return torch.tensor(labels, dtype=torch.float32)
    def loss(self, outputs, batch): return (full(outputs.logits) - batch['labels']).square().mean(1)
    def predicted(self, outputs, batch): return outputs.logits.detach()
    def score(self, outputs, batch, labels): return -(outputs.logits - labels).square().mean(1)
    def label(self, labels): return None
    def answer(self, outputs, predicted, batch, j, real, names): return dict(scores=predicted[j].float().numpy()), {}

tasks['several_scores'] = SeveralScores(**{
    **vars(tasks['several_scores']), 'head': tasks['classification'].head._replace(
    config=dict(problem_type='regression', num_labels=2),
    fits=lambda kind, config: config.problem_type == 'regression' and config.num_labels == 2)})
''',
'views/base.py': '''
@answer_view(lambda s: s.info.get('task') == 'several_scores', 'scores')
def several_scores(snapshot):
    return EvidenceView(title=title_of(snapshot), subtitle='', caption='Two scores.', labels=(), name='scores',
                        is_special=np.zeros(0, bool), form='table', values=snapshot.arrays['scores'][None],
                        kind='signed', limit=1., axes=('row', 'class'), rows=('model',), columns=('a', 'b'))
''',
'explorer/custom_sentences.py': '''
@model_query('length', lambda query: isinstance(query.get('least'), int))
def length_replies(sources, question):
    _, tokenizer = sources[question['run']]._ready(question['choice'])
    tokens = len(tokenizer(question['texts'][0])['input_ids'])
    yield dict(kind='length', id=question['id'], more=False, tokens=tokens), []
''',
'explorer/static/panels/length.js': '''// Panel 'length': the number of tokens of a sentence, computed by the kernel.
import {elementOf} from '../lib/controls.js';

class LengthPanel {
  constructor(ctx) {
    this.ctx = ctx;
    this.el = elementOf('section', 'sv-panel sv-length');
  }

  update() {
    const {run} = this.ctx.state;
    this.ctx.kernel?.ask({kind: 'length', run, texts: ['a film'], choice: 'now', least: 1}, ({tokens}) => {
      this.el.textContent = String(tokens);
    });
  }
}

export const lengthPanel = {
  name: 'length', title: 'Length', order: 65, shows: 'text', image: 'attention_beside_saliency', page: 'below',
  view: LengthPanel,
};
'''}

used = '''
import json, sys
import datasets, numpy as np
import salviz
from salviz import cli
from salviz.core.bibliography import bibtex
from salviz.core.names import methods_words
from salviz.explorer.assets import panels
from salviz.model_explorer import explore
from salviz.explorer.run_metadata import meta
from salviz.figures.kinds import figure
from salviz.models.corruption import small_model, train_tokenizer
from salviz.models.tasks import task_of
from salviz.views.base import view_for

folder = sys.argv[1]
texts = ['a fine film', 'a dull film', 'a fine scene', 'a dull scene']*4
tokenizer = train_tokenizer(texts, 60)
small = dict(layers=1, heads=2, hidden=16)
settings = dict(epochs=1, batch_size=8, probes=2, snapshots=2, progress=False)

def splits(labels, **features):
    whole = datasets.Dataset.from_dict(dict(text=texts, label=labels), **features)
    return datasets.DatasetDict(train=whole, validation=whole.select(range(4)), test=whole.select(range(4)))

classes = datasets.Features(text=datasets.Value('string'), label=datasets.ClassLabel(names=['negative', 'positive']))
model = small_model('classification', tokenizer, num_labels=2, **small)
run = salviz.train(model, tokenizer, splits([1, 0]*8, features=classes), salviz.Shrinking(weight=.1),
                   run_dir=folder + '/method', **settings)
help_of = {p.dest: p.help for p in cli._parser()._subparsers._group_actions[0].choices['train']._actions}
status = cli.main(['train', '--method', 'Shrinking', '--set', 'weights=1'])
method = dict(title=methods_words('Shrinking'), entry=bibtex('Shrinking'), help=help_of['method'], status=status,
              terms=sorted({k for row in run.train_rows for k in row}), explorer=meta([run])['runs'][0]['title'],
              cited=[entry.split(',')[0] for entry in figure(run).citations], public='Shrinking' in salviz.__all__)

scores = datasets.Features(text=datasets.Value('string'), label=datasets.Sequence(datasets.Value('float32')))
model = small_model('several_scores', tokenizer, **small)
data = splits([[1., .5], [0., .5]]*8, features=scores)
run = salviz.train(model, tokenizer, data, run_dir=folder + '/task', **settings)
try: salviz.ADDrop().check(model, tokenizer, None, 1)
except ValueError as e: reason = str(e)
task = dict(name=task_of(model), best=run.best_metric[0], caption=view_for(run.snapshot()).caption, reason=reason)

model = small_model('classification', tokenizer, num_labels=2, **small)
view = explore(model, tokenizer, texts[:1], saliency=None, attribution=False).view
view.settle()
view._loop, sent = None, []
view.send = lambda content, buffers: sent.append(content)
query = dict(kind='length', id='a', run=0, texts=['a fine film'], choice='now', least=1)
for question in (query | dict(least='1'), query):
    view._handle_custom_msg(question, [])
    view._replier.flush()
panel = dict(listed='length' in panels(), in_program='lengthPanel' in view._esm, answers=sent,
             tokens=len(tokenizer('a fine film')['input_ids']))
print(json.dumps(dict(method=method, task=task, panel=panel)))
'''

@pytest.fixture(scope='module')
def found(tmp_path_factory):
    "Return the output of a copy of the library with an additional method, task and panel"
    folder = tmp_path_factory.mktemp('extended')
    shutil.copytree(Path(salviz.__file__).parent, folder/'salviz', ignore=shutil.ignore_patterns('__pycache__'))
    for name, text in added.items():
        with open(folder/'salviz'/name, 'a', encoding='utf-8') as file: file.write(text)
    done = subprocess.run([sys.executable, '-c', used, str(folder)], capture_output=True, text=True, cwd=folder,
                          env={**os.environ, 'PYTHONPATH': str(folder)})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr

@pytest.mark.slow
def test_a_method_of_three_files_is_public_trained_titled_and_cited(found):
    method, errors = found[0]['method'], found[1]
    assert method['public'] and method['title'] == method['explorer'] == 'Logit shrinking'
    assert {'size', 'size_weight'} <= {*method['terms']}
    assert method['entry'].startswith('@inproceedings{maker2026shrinking,')
    assert '@inproceedings{maker2026shrinking' in method['cited']
    assert 'Shrinking' in method['help'] and method['status'] == 2
    assert 'Shrinking: no argument weights; available: weight' in errors

@pytest.mark.slow
def test_a_task_of_three_files_is_trained_and_shown_and_methods_say_why_they_do_not_support_it(found):
    task = found[0]['task']
    assert (task['name'], task['best'], task['caption']) == ('several_scores', 'closeness', 'Two scores.')
    assert task['reason'].startswith('ADDrop: does not support several_scores') and 'several scores' in task['reason']

@pytest.mark.slow
def test_a_panel_of_two_files_is_shown_and_answered_by_the_kernel(found):
    panel = found[0]['panel']
    assert panel['listed'] and panel['in_program']
    assert panel['answers'] == [dict(kind='length', id='a', more=False, tokens=panel['tokens'])]
