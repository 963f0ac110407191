"A study that takes seconds, a claim about it, and a second study that starts from the runs of the first"
from datasets import Dataset, DatasetDict

from salviz.replication.plans import plan, plans
from salviz.replication.registry import Effect, _claim, _minus, claims
from salviz.core.runs import Run
from salviz.methods.ad_drop import ADDrop
from salviz.methods.base import FineTuning
from salviz.models.checkpoints import load_model
from salviz.models.corruption import small_model, train_tokenizer
from salviz.studies.study import Study

texts = [f'{a} {b} film' for a in ('good', 'fine', 'bad', 'poor') for b in ('old', 'new', 'long', 'short')]

def rows(): return DatasetDict({split: Dataset.from_dict(dict(text=texts, label=[0]*8 + [1]*8))
                                for split in ('train', 'validation', 'test')})

def model(seed):
    tokenizer = train_tokenizer(texts, vocab_size=60)
    return small_model('classification', tokenizer, layers=1, heads=2, hidden=8, labels=['good', 'bad'],
                       seed=seed), tokenizer

def measured(run): return 1. if run.finished else 0.
measured.version = '1'

shared = dict(data=rows(), epochs=2, batch_size=8, learning_rate=1e-2, snapshots=0, probes=1, progress=False,
              measures={'test_accuracy': 'test_accuracy', 'finished': measured})

if 'TINY' not in plans:
    @plan('TINY', 'sixteen sentences', dict(small=1), small=dict(seeds=(100, 101)))
    def tiny(folder, after, seeds):
        return Study(folder, model, methods=dict(FT=FineTuning, GA=lambda: ADDrop(p=.3, q=.3)), seeds=seeds, **shared)

    @plan('AGAIN', 'begins where TINY ends', dict(small=1), after=('TINY',), small=dict(seeds=(100, 101)),
          starts=lambda method, settings, seed: ('TINY', 'FT', {}, seed))
    def again(folder, after, seeds):
        def started(seed):
            def take(trainer):
                before = load_model(Run(after['TINY']/'runs'/f'FT.seed={seed}'))[0]
                trainer.model.load_state_dict(before.state_dict())
            method = FineTuning()
            method.prepare = take
            return method
        return Study(folder, model, methods=dict(FT=started), seeds=seeds, **shared)

    _claim('T1', 'ad_drop', 'A tiny claim', paper_says='nothing', ours='TINY',
          effects=[Effect('T1', 'GA - FT', _minus('TINY', 'GA', 'FT', 'test_accuracy'), .01)])
    _claim('T2', 'ad_drop', 'A tiny claim about what follows', paper_says='nothing', ours='AGAIN',
          effects=[Effect('T2', 'AGAIN - TINY', (*_minus('AGAIN', 'FT', 'FT', 'test_accuracy'),), .01)])

def forget():
    "Remove what this module registered"
    for name in ('TINY', 'AGAIN'): plans.pop(name, None)
    for name in ('T1', 'T2'): claims.pop(name, None)
