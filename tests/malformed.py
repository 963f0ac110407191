"Calls with a meaningless argument, and whether their errors are helpful; for tests/core/test_malformed.py"
import ast
import linecache
import signal
import tempfile
import threading
import warnings
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import torch

import invented
import salviz
from salviz.core.runs import Run

package = Path(salviz.__file__).parent
seconds = 20 # a call that takes longer counts as hanging


class Hangs(BaseException): pass


@contextmanager
def at_most(limit):
    "Raise `Hangs` if the block takes longer than `limit` seconds, in the main thread"
    def ring(*_): raise Hangs
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try: yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def wrong_values():
    "Return {name: function that creates a value which is meaningful for hardly any argument}"
    return {'None': lambda: None, 'empty text': lambda: '', 'a word': lambda: 'nonsense',
            'half of a pair': lambda: 'a\ud800', 'a long text': lambda: 'x '*50_000, 'bytes': lambda: b'x',
            '0': lambda: 0, '-1': lambda: -1, '1.5': lambda: 1.5, 'NaN': lambda: float('nan'),
            'infinity': lambda: float('inf'), '10**12': lambda: 10**12, 'True': lambda: True,
            'an empty list': lambda: [], '[None]': lambda: [None], "['a', 1]": lambda: ['a', 1],
            '[[[]]]': lambda: [[[]]], '()': lambda: (), 'an empty dict': lambda: {}, "{'a': 1}": lambda: {'a': 1},
            '{1: None}': lambda: {1: None}, 'a set': lambda: {1, 2}, 'an object': object, 'a class': lambda: dict,
            'a function': lambda: (lambda *a, **k: None), 'no path': lambda: Path('/nowhere/at/all'),
            'an empty array': lambda: np.array([]), 'an array of NaN': lambda: np.full((3, 3), np.nan),
            'a tensor': lambda: torch.ones(2), 'an empty frame': pd.DataFrame,
            'a frame': lambda: pd.DataFrame(dict(a=[1, None]))}


@lru_cache(maxsize=None)
def _raises(path):
    "Return [(first line, last line)] of all raise statements in the file at `path`"
    return [(o.lineno, o.end_lineno) for o in ast.walk(ast.parse(Path(path).read_text())) if isinstance(o, ast.Raise)
            and o.exc is not None]


def is_helpful(error) -> bool:
    "Return whether salviz itself raised `error`, with a sentence as the message"
    at = error.__traceback__
    while at.tb_next: at = at.tb_next
    path = Path(at.tb_frame.f_code.co_filename)
    ours = (package in path.parents
            and any(first <= at.tb_lineno <= last for first, last in _raises(path)))
    said = str(error.args[0]) if error.args else ''
    # the system reports the file and what is wrong with it
    if isinstance(error, OSError) and error.filename is not None: return True
    return (ours and isinstance(error, (ValueError, TypeError, KeyError, OSError, RuntimeError))
            and len(said.split()) > 3)


def place(error) -> str:
    "Return where in salviz `error` was raised"
    at, found = error.__traceback__, ''
    while at:
        path = Path(at.tb_frame.f_code.co_filename)
        if package in path.parents: found = f'{path.name}:{at.tb_lineno} {at.tb_frame.f_code.co_name}'
        at = at.tb_next
    return found


def outcome(call) -> tuple: # ('fine', 'helpful', 'unhelpful' or 'hangs', message)
    "Return the outcome of `call`"
    try:
        with warnings.catch_warnings(), at_most(seconds):
            warnings.simplefilter('ignore')
            call()
        return 'fine', ''
    except Hangs as e: return 'hangs', place(e)
    except Exception as e:
        return ('helpful' if is_helpful(e) else 'unhelpful'), f'{type(e).__name__}: {str(e)[:140]!r} at {place(e)}'


def entry_points(tiny_bert, tokenizer, data, folder):
    "Return {name: (function, {argument: valid value})} of public functions"
    made = {m: invented.run(folder/m, m) for m in ('SalLM', 'SaliencyGuided', 'ADDrop', 'AttentionGuidance',
                                                         'RationaleGuided')}
    snap = {m: r.snapshot() for m, r in made.items()}
    model = tiny_bert().eval()
    texts = pd.DataFrame(dict(text=data['train']['text'],
                              label=['bad good'.split()[i] for i in data['train']['label']]))
    tags = pd.DataFrame(dict(words=[t.split() for t in data['train']['text']],
                             tags=[['O']*(len(t.split()) - 1) + ['X'] for t in data['train']['text']]))
    pairs = pd.DataFrame(dict(text=data['train']['text'], target_text=data['test']['text'][:1]*len(data['train'])))
    questions = pd.DataFrame(dict(question=['what ?']*len(data['train']), context=data['train']['text'],
                                  answer=[[0, 3]]*len(data['train'])))
    marked = texts.assign(rationale=[[1] + [0]*(len(t.split()) - 1) for t in data['train']['text']])
    series = (np.random.default_rng(0).normal(size=(30, 6, 3)), np.arange(30) % 2)
    images = (np.random.default_rng(0).random((30, 1, 8, 8)), np.arange(30) % 2)
    batch = salviz.Collator(tokenizer)([salviz.encode(data['test'], tokenizer)[i] for i in range(2)])
    few = data['test'].select(range(4))
    rows = pd.DataFrame([dict(method=m, seed=s, accuracy=.5 + s/10, p=p) for m in 'ab' for s in range(2)
                         for p in (.1, .2)])
    shares = pd.DataFrame([dict(method=m, share=x, accuracy=1 - x, comprehensiveness=x, seed=0) for m in 'ab'
                           for x in (.1, .5)])
    heads = pd.DataFrame([dict(layer=l, head=h, entropy=.5) for l in range(2) for h in range(2)])
    notebook = dict(cells=[dict(cell_type='code', outputs=[])], metadata={}, nbformat=4, nbformat_minor=5)
    quick = dict(epochs=1, batch_size=16, snapshots=1, probes=1, progress=False, keep=1)
    fig = salviz.figure(snap['SalLM'])
    drawn = salviz.save_figure(salviz.figure(made['ADDrop'], 'attention_map'), folder/'drawn.png')
    def new(): return Path(tempfile.mkdtemp(dir=folder))/'run'
    def training(**given):
        given = {**dict(run_dir=new()), **given}
        try: return salviz.train(**{**dict(model=tiny_bert(), tokenizer=tokenizer, data=data, **quick), **given})
        finally:
            if threading.active_count() > 50: raise AssertionError('threads are left behind')
    def study(**given):
        return salviz.Study(**{**dict(folder=new(), model=lambda seed: (tiny_bert(), tokenizer), data=data,
                                      methods=dict(a=salviz.FineTuning)), **given})
    def of(f, **given): return f, given
    return dict(
        align=of(salviz.align, tokenizer=tokenizer, text='a fine film', text_pair=None, max_length=16),
        load_text=of(salviz.load_text, source=texts, text='text', text_pair=None, label='label', splits=(.8, .1, .1),
                     seed=0, labels=None, task=None),
        load_tokens=of(salviz.load_tokens, source=tags, words='words', tags='tags', splits=(.8, .1, .1), seed=0,
                       labels=None),
        load_pairs=of(salviz.load_pairs, source=pairs, text='text', target_text='target_text', splits=(.8, .1, .1),
                      seed=0),
        load_questions=of(salviz.load_questions, source=questions, question='question', context='context', answer=None,
                          splits=(.8, .1, .1), seed=0),
        load_rationales=of(salviz.load_rationales, source=marked, text='text', text_pair=None, label='label',
                           rationale='rationale', annotators='any', splits=(.8, .1, .1), seed=0, labels=None),
        load_images=of(salviz.load_images, source=images, labels=None, normalise=None, splits=(.8, .1, .1), seed=0),
        load_series=of(salviz.load_series, source=series, labels=None, normalise=None, feature_names=None,
                       splits=(.8, .1, .1), seed=0),
        subset=of(salviz.subset, data=data, train_size=8, seed=0, validation_size='full', test_size='full'),
        encode=of(salviz.encode, data=few, tokenizer=tokenizer, max_length=16, task=None, first_id=0),
        Collator=of(salviz.Collator, tokenizer=tokenizer, pad_to_multiple_of=None, decoder_start=None),
        load_classifier=of(salviz.load_classifier, name='minilm', num_labels=2, labels=None, seed=0),
        load_model_for=of(salviz.load_model_for, task='classification', name='minilm', num_labels=2, labels=None,
                          seed=0),
        small_model=of(salviz.small_model, task='classification', tokenizer=tokenizer, layers=1, heads=2, hidden=8,
                       num_labels=2, labels=None, seed=0, max_length=16),
        train_tokenizer=of(salviz.train_tokenizer, texts=data['train']['text'][:], vocab_size=60, kind='wordpiece',
                           form='encoder', lowercase=True, max_length=64),
        input_saliency=of(salviz.input_saliency, model=model, inputs=batch, method='gradient_norm', target='predicted',
                          batch_size=None, baseline=None),
        attention_attribution=of(salviz.attention_attribution, model=model, inputs=batch, target='predicted',
                                 layers=None, method='gradient', seed=None, steps=2, reading='paper', batch_size=None),
        explain=of(salviz.explain, model=model, inputs=batch, method='gradient_norm', target='predicted',
                   tokenizer=tokenizer, batch_size=4, seed=0),
        explain_data=of(salviz.explain_data, model=model, data=few, method='gradient_norm', target='predicted',
                        tokenizer=tokenizer, batch_size=4, seed=0, words=None, progress=False),
        explainers=of(salviz.explainers, model=model, inputs=batch),
        SalLM=of(salviz.SalLM, teacher=None, weight=1., top_fraction=.1, saliency='integrated_gradients', steps=2,
                 layers=(-1,), variant='paper'),
        SalLMVariant=of(salviz.SalLMVariant, loss='kl', target='gold', heads=None, rows='pooled', refresh=None,
                        binarised=True, ranking=None, per_head=False, after_dropout=False, start='pretrained'),
        SaliencyGuided=of(salviz.SaliencyGuided, mask_fraction=.3, weight=1., saliency=None, ranking='signed',
                          target='gold', fill='uniform', unit=None, variant='paper'),
        SaliencyGuidedVariant=of(salviz.SaliencyGuidedVariant, first='next', passes='eval', fill_range='feature',
                                 steps=20, score='logit'),
        ADDrop=of(salviz.ADDrop, p=.3, q=.2, layers=None, target='pseudo', attribution='gradient', variant='paper'),
        ADDropVariant=of(salviz.ADDropVariant, region='high', first_pass='train', reading='paper',
                         random_form='region'),
        RationaleGuided=of(salviz.RationaleGuided, explanation='attention', loss='kl', weight=1., layers=(-1,),
                           heads=None, target='gold', steps=3, variant='paper'),
        RationaleGuidedVariant=of(salviz.RationaleGuidedVariant, schedule='constant', normalise=None, per_head=False,
                                  rows='pooled', specials=False, ranking='signed', delta=.5, margin=1., negatives=1),
        Distillation=of(salviz.Distillation, teacher='minilm', explanation='attention', weight=1., temperature=2.,
                        alpha=0., layers=(-1,), teacher_layers=None, variant='paper'),
        DistillationVariant=of(salviz.DistillationVariant, rows='pooled', specials=False, steps=3),
        AttentionGuidance=of(salviz.AttentionGuidance, patterns=None, head_fraction=.5, alpha=None, layers=None,
                             variant='paper'),
        AttentionGuidanceVariant=of(salviz.AttentionGuidanceVariant, boundary='uniform', multiple='uniform',
                                    reduction='mean', schedule='linear', constant_steps=5),
        Run=of(Run, path=made['ADDrop'].path),
        runs_table=of(salviz.runs_table, folder=folder),
        attention_agreement=of(salviz.attention_agreement, snapshot=snap['SalLM']),
        run_agreement=of(salviz.run_agreement, run=made['SalLM'], step=-1),
        agreement_table=of(salviz.agreement_table, snapshot=snap['SalLM'], rows='auto', saliency='saliency',
                           sign='magnitude', top_fraction=.2, level='head'),
        compare_runs=of(salviz.compare_runs, run_a=made['SalLM'], run_b=made['SaliencyGuided'], step=-1, step_b=None),
        train=(training, dict(model=model, tokenizer=tokenizer, data=data, method=salviz.FineTuning(), run_dir=None,
                              **{k: v for k, v in quick.items() if k != 'progress'}, learning_rate=1e-4,
                              weight_decay=.01,
                              gradient_accumulation=1, max_length=None, early_stopping=None, seed=0, args=None)),
        load_model=of(salviz.load_model, run=made['ADDrop'], checkpoint='best'),
        Study=(study, dict(data=data, methods=dict(a=salviz.FineTuning), seeds=(0,), settings=None,
                           measures=('test_accuracy',), options=salviz.StudyOptions(), epochs=1)),
        StudyOptions=of(salviz.StudyOptions, better=None, weights='best', extend=False, processes=1),
        result_table=of(salviz.result_table,
                        frame=rows[['method', 'seed', 'accuracy']].drop_duplicates(['method', 'seed']), rows='method',
                        columns=None, measure=None, where=None, compare_to='a', test='t',
                        correction='holm', better=None, best='bold', digits=3, percent=(), titles=None, levels=None,
                        fewest=None, about=None),
        faithfulness_table=of(salviz.faithfulness_table, model=model, data=few, methods=['gradient_norm'],
                              tokenizer=tokenizer),
        head_table=of(salviz.head_table, model=model, data=few, tokenizer=tokenizer, saliency='gradient_norm',
                      target='predicted', patterns=(), layers=None, batch_size=4, progress=False),
        gradient_sizes=of(salviz.gradient_sizes, models=dict(a=model), data=few, tokenizer=tokenizer,
                          target='predicted', size='magnitude', batch_size=4, progress=False),
        plausibility_table=of(salviz.plausibility_table, methods=dict(a=[np.zeros(2)]), rationales=[np.array([1, 0])]),
        explanation_beside_rationale=of(salviz.explanation_beside_rationale, snapshot=snap['RationaleGuided'], of=None),
        attention_beside_saliency=of(salviz.attention_beside_saliency, snapshot=snap['SalLM'], layer=None),
        masked_sentence=of(salviz.masked_sentence, snapshot=snap['SaliencyGuided']),
        discard_region=of(salviz.discard_region, snapshot=snap['ADDrop'], layer=None, head=None),
        guided_heads=of(salviz.guided_heads, snapshot=snap['AttentionGuidance'], layer=None, heads=None),
        signal_view=of(salviz.signal_view, snapshot=invented.image(0)),
        saliency_distribution=of(salviz.saliency_distribution, first=invented.image(0), last=invented.image(10),
                                 near=.1, bins=11),
        token_labels=of(salviz.token_labels, snapshot=invented.tagged()),
        translation=of(salviz.translation, snapshot=invented.translated(), layer=None, head=None),
        scored_sentence=of(salviz.scored_sentence, snapshot=invented.scored(), span=None),
        pattern_shares=of(salviz.pattern_shares, snapshot=snap['AttentionGuidance'], patterns=None),
        view_for=of(salviz.view_for, snapshot=snap['ADDrop']),
        save_figure=of(salviz.save_figure, fig=fig, path=folder/'a.png', caption=True, text='paths'),
        figure=of(salviz.figure, source=made['ADDrop'], kind='attention_map', step=None, probe=None, width=6.75,
                  font_size=None, columns=None, font='sans', heading='full', titles=None, share=False, layer=0, head=0),
        curves=of(salviz.figure, source=shares, kind='accuracy_drop'),
        head_map=of(salviz.figure, source=heads, kind='head_map', value='entropy'),
        remake=of(salviz.remake, path=drawn, runs=None, to=None, force=False),
        model_card=of(salviz.model_card, source=made['ADDrop'], name=None),
        bibtex=of(salviz.bibtex, name='SalLM'),
        sentence_latex=of(salviz.sentence_latex, snapshot=snap['SalLM'], words=True, caption=None),
        coloured_sentence_latex=of(salviz.coloured_sentence_latex, labels=['a', 'b'], values=[.1, -.2], limit=None,
                                   caption=None, unit='saliency'),
        strip_views=of(salviz.strip_views, notebook=notebook),
        Explorer=of(salviz.Explorer, run=made['ADDrop'], compare=None, probes=None, steps=None, panels=None,
                    height=None),
        bertviz_view=of(salviz.bertviz_view, run_or_snapshot=made['ADDrop'], step=-1, probe=0, kind='head', layers=None,
                        heads=None, theme=None, height=None),
        attention_map=of(salviz.figure, source=snap['ADDrop'], kind='attention_map', layer=0, head=0, what='attention',
                         overlays=[]),
        triptych=of(salviz.figure, source=snap['ADDrop'], kind='triptych', layer=0, head=0),
        loss_curves=of(salviz.figure, source=made['ADDrop'], kind='loss_curves', what='loss', smooth=1),
        snapshot=of(made['ADDrop'].snapshot, step=-1, probe=0))
