"Invented runs with evidence of every kind, created without a model, and a substitute for Jupyter's widget model"
import numpy as np

from salviz.core.maths import dense_ranks, discard_candidates
from salviz.core.run_files import sealed, write_whole
from salviz.core.snapshots import Snapshot
from salviz.core.runs import Run

sentence = ['[CLS]', 'still', ',', 'this', 'is', 'unforget', '##table', '[SEP]']
methods = dict(ADDrop=dict(p=.3, q=.4, region='high', cross_tuning=True), AttentionGuidance=dict(share=.5),
               SaliencyGuided=dict(mask_fraction=.3, first='next', ranking='signed'),
               SalLM=dict(top_fraction=.1, binarised=True), RationaleGuided=dict(explanation='attention', loss='kl'),
               Distillation=dict(explanation='input_x_gradient', temperature=1.),
               FineTuning={})

def evidence(method, n, layers, heads, rng):
    "Return the arrays of a snapshot of `method`"
    out = dict(attention=rng.dirichlet(np.ones(n)*.4, (layers, heads, n)),
               saliency=rng.normal(size=n).astype(np.float32), probabilities=np.array([.3, .7], np.float32))
    if method == 'ADDrop':
        attribution = rng.normal(0, 1e-3, (layers, heads, n, n))
        candidates = discard_candidates(attribution, np.ones((n, n), bool), .3)
        out |= dict(attention_attribution=attribution,
                    attribution_ranks=dense_ranks(attribution, np.ones((n, n), bool)), discard_candidates=candidates,
                    discarded=candidates & (rng.random(candidates.shape) < .4))
    if method == 'AttentionGuidance':
        target = np.tile(np.eye(n, k=1) + np.eye(n)[[0]].T*0 + (np.arange(n)[:, None] == n - 1)/n,
                         (layers, heads, 1, 1))
        out |= dict(pattern_target=target, guided=np.arange(layers*heads).reshape(layers, heads) % 2 == 0)
    if method == 'SaliencyGuided':
        out |= dict(method_saliency=rng.normal(size=n).astype(np.float32), is_masked=np.arange(n) == 2,
                    masked_input=np.arange(n), masked_probabilities=np.array([.4, .6], np.float32))
    if method == 'SalLM':
        out |= dict(method_saliency=rng.normal(size=n).astype(np.float32), saliency_target=np.full(n, 1/n, np.float32))
    if method == 'RationaleGuided':
        marked = np.arange(n) % 4 == 1
        out |= dict(explanation=rng.dirichlet(np.ones(n)).astype(np.float32), rationale=marked,
                    rationale_target=marked.astype(np.float32))
    if method == 'Distillation':
        out |= {name: rng.normal(size=n).astype(np.float32) for name in ('explanation', 'teacher_explanation')}
    return out

def snapshot(step=0, probe=0, tokens=sentence, method='FineTuning', layers=2, heads=3, seed=None):
    rng, n = np.random.default_rng([step, probe, len(tokens)] if seed is None else seed), len(tokens)
    arrays, ids = evidence(method, n, layers, heads, rng), np.arange(n) - 1
    ids[-1] = -1
    info = dict(method=method, args=methods[method], seed=0, drawn_step=step, pooled_row=0, example_id=probe,
                saliency_method='integrated_gradients')
    if method == 'SaliencyGuided': info['masked_tokens'] = [tokens[1] if i == 2 else t for i, t in enumerate(tokens)]
    return Snapshot(step=step, epoch=step/10, probe=probe, arrays=arrays,
                    layers={k: list(range(layers)) for k, v in arrays.items() if v.ndim == 4 or k == 'guided'},
                    texts=[' '.join(tokens[1:-1])], tokens=tokens, labels=[t.removeprefix('##') for t in tokens],
                    words=tokens[1:-1], word_ids=ids, label=probe % 2,
                    classes=['negative', 'positive'], losses=dict(task=.5), info=info)

def run(path, method='FineTuning', probes=(0, 1), steps=(0, 10, 20, 30), tokens=None, layers=2, heads=3, finish=True,
        seed=0):
    "Create a recorded run in `path`; `tokens`: {probe: its tokens}"
    made = Run.create(path, dict(method=dict(name=method, args=methods[method]),
                                 model=dict(name='tiny', layers=layers, heads=heads), seed=seed,
                                 data=dict(name='invented')))
    for step in steps:
        made.log(dict(kind='train', step=step + 1, epoch=(step + 1)/10, loss=2/(2 + step), task=1/(2 + step)))
        for p in probes:
            made.save(snapshot(step, p, (tokens or {}).get(p, [*sentence[:-1], *(['more'] * p), '[SEP]']), method,
                               layers, heads))
    if steps: made.log(dict(kind='eval', step=max(steps), accuracy=.75, loss=.5))
    if finish and steps: made.finish(steps=max(steps))
    return made

def reconfigured(run, **more):
    "Return `run`, opened again, with `more` in its config"
    write_whole(run.path/'config.json', sealed(run.config | more).encode())
    return Run(run.path)

# ---- recordings of other tasks and other kinds of input

def image(step=0, probe=0, height=10, width=12, channels=1, masked=True, seed=0):
    "Return a snapshot of an image: a bright block, saliency that concentrates on it over the steps, a masked copy"
    rng = np.random.default_rng([seed, step, probe])
    block = np.zeros((height, width), bool)
    block[2:6, 3 + probe:8 + probe] = True
    shown = np.random.default_rng(probe).normal(0, .1,
                                                (channels, height,
                                                 width)) + block*np.linspace(1, .4, channels)[:, None, None]
    saliency = rng.normal(0, 1, (height, width))*np.where(block, 1, 1/(1 + step/4))
    arrays = dict(input=shown, saliency_map=saliency, probabilities=np.array([.2, .7, .1], np.float32))
    if masked:
        lowest = saliency <= np.median(saliency)
        arrays |= dict(method_saliency_map=saliency*1.1, is_masked_map=lowest,
                       masked_map=np.where(lowest, rng.uniform(-.1, 1, shown.shape), shown),
                       masked_probabilities=np.array([.3, .6, .1], np.float32))
    return Snapshot(step=step, epoch=step/10, probe=probe, arrays=arrays, label=1, classes=['cat', 'dog', 'ship'],
                    losses=dict(task=.4),
                    info=dict(method='SaliencyGuided', args=dict(mask_fraction=.5),
                              methods=dict(SaliencyGuided=dict(mask_fraction=.5)), modality='image',
                              task='image_classification', seed=0, drawn_step=step, example_id=probe,
                              saliency_method='gradient'))

def series(step=0, probe=0, time=40, features=6, box=True, seed=0, names=None):
    "Return a snapshot of a multivariate series with an informative box"
    rng, where = np.random.default_rng([seed, step, probe]), np.zeros((time, features), bool)
    where[time//4:time//2, 1:max(2, features//2)] = True
    shown = np.random.default_rng(probe).normal(0, 1, (time, features)) + where
    saliency = rng.normal(0, .3, (time, features))*np.where(where, 1 + step/10, 1/(1 + step/10))
    lowest = abs(saliency) <= np.median(abs(saliency))
    arrays = dict(input=shown, saliency_map=saliency, is_masked_map=lowest,
                  masked_map=np.where(lowest, rng.uniform(shown.min(), shown.max(), shown.shape), shown),
                  probabilities=np.array([.35, .65], np.float32), masked_probabilities=np.array([.5, .5], np.float32))
    if box: arrays['informative'] = where
    return Snapshot(step=step, epoch=step/10, probe=probe, arrays=arrays, label=0, classes=['positive', 'negative'],
                    losses=dict(task=.4),
                    info=dict(method='SaliencyGuided', args={}, methods=dict(SaliencyGuided={}), modality='series',
                              task='series_classification', seed=0, drawn_step=step,
                              example_id=probe, saliency_method='gradient',
                              **({} if names is None else dict(feature_names=names))))

def _text(step, probe, tokens, task, info, arrays, **kw):
    "Return a snapshot of a text without a pooled row"
    s = snapshot(step, probe, tokens)
    keep = {k: s.arrays[k] for k in ('attention', 'saliency')}
    return Snapshot(**{**{k: getattr(s, k) for k in ('step', 'epoch', 'probe', 'texts', 'tokens', 'labels', 'words',
                                                     'word_ids', 'losses')}, 'arrays': keep | arrays, 'label': None,
                       'info': {**{k: v for k, v in s.info.items() if k != 'pooled_row'},
                                'methods': dict(FineTuning={}), 'task': task, **info}, **kw})

def tagged(step=0, probe=0, tokens=None, gold=None, said=None):
    "Return a snapshot of token classification: labels on the first token of a word"
    tokens = tokens or ['[CLS]', 'ada', 'love', '##lace', 'lives', 'in', 'london', '[SEP]']
    gold = gold or [None, 'B-PER', 'I-PER', None, 'O', 'O', 'B-LOC', None]
    said = said or [None, 'B-PER', 'O', 'O', 'O', 'O', 'B-LOC', None]
    sure = np.array([np.nan if o is None else .5 + .05*i for i, o in enumerate(said)], np.float32)
    return _text(step, probe, tokens, 'token_classification', dict(token_labels=gold, token_predictions=said),
                 dict(token_confidence=sure), classes=['O', 'B-PER', 'I-PER', 'B-LOC'])

def masked_words(step=0, probe=0, task='masked_lm'):
    "Return a snapshot of masked-LM pre-training, or of replaced-token detection"
    detect = task == 'replaced_token_detection'
    tokens = ['[CLS]', 'the', 'goat' if detect else '[MASK]', 'sat', 'on', 'the', 'mat', '[SEP]']
    gold = [None, *(['original', 'replaced', *['original']*4] if detect else [None, 'cat', None, None, None, 'mat']),
            None]
    said = [None, *(['original', 'original', 'original', 'original', 'replaced', 'original'] if detect
                    else [None, 'dog', None, None, None, 'mat']), None]
    sure = np.array([np.nan if o is None else .6 for o in said], np.float32)
    return _text(step, probe, tokens, task, dict(token_labels=gold, token_predictions=said),
                 dict(token_confidence=sure))

def translated(step=0, probe=0, target=None, said=None):
    "Return a snapshot of translation: maps of the encoder, target tokens with the teacher-forced predictions"
    target, said = target or ['das', 'ist', 'gut', '.', '</s>'], said or ['das', 'war', 'gut', '.', '</s>']
    return _text(step, probe, ['this', 'is', 'good', '.', '</s>'], 'seq2seq',
                 dict(target_tokens=target, predicted_tokens=said),
                 dict(target_probability=np.linspace(.9, .1, len(target)).astype(np.float32)))

def scored(step=0, probe=0, label=3.8, said=2.9):
    "Return a snapshot of regression"
    s = snapshot(step, probe, method='ADDrop')
    arrays = {k: v for k, v in s.arrays.items()
              if k != 'probabilities'} | dict(prediction=np.array([said + step/50], np.float32))
    return Snapshot(**{**vars(s), 'arrays': arrays, 'label': label, 'classes': [],
                       'info': {**s.info, 'task': 'regression', 'methods': dict(ADDrop=s.info['args'])}})

def both(step=0, probe=0, own='diagonal', layers=2, heads=3):
    "Return a snapshot of attention guidance with a custom pattern together with AD-DROP"
    s, n = snapshot(step, probe, method='ADDrop', layers=layers, heads=heads), len(sentence)
    target = np.zeros((layers, heads, n, n), np.float32)
    target[:, 0], target[:, 1, :, 0] = np.eye(n), 1
    guided = np.zeros((layers, heads), bool)
    guided[:, :2] = True
    methods_ = dict(AttentionGuidance=dict(patterns={own: [0], 'first': [1]}, custom={own: 'matrix'}, reduction='mean'),
                    ADDrop=methods['ADDrop'])
    arrays = s.arrays | dict(pattern_target=target, guided=guided)
    return Snapshot(**{**vars(s), 'arrays': arrays,
                       'layers': {k: list(range(layers)) for k, v in arrays.items() if v.ndim == 4 or k == 'guided'},
                       'info': {**s.info, 'method': 'AttentionGuidance + ADDrop', 'args': methods_,
                                'methods': methods_}})

def clashing(order=('SaliencyGuided', 'SalLM'), step=0, probe=0):
    """Return a snapshot of saliency guided training and SalLM together, and {method: the saliency that it uses}; the
    saliency of the first method has the plain name"""
    s, rng = snapshot(step, probe, method='SaliencyGuided'), np.random.default_rng(5)
    worked_with = {o: rng.normal(size=len(sentence)).astype(np.float32) for o in ('SaliencyGuided', 'SalLM')}
    args = {o: methods[o] for o in order}
    arrays = s.arrays | {'method_saliency': worked_with[order[0]],
                         f'method_saliency ({order[1]})': worked_with[order[1]],
                         'saliency_target': np.full(len(sentence), 1/8, np.float32)}
    return Snapshot(**{**vars(s), 'arrays': arrays,
                       'info': {**s.info, 'method': ' + '.join(order), 'args': args, 'methods': args}}), worked_with

model_js = '''class Model {
  constructor(state) { this.state = state; this.listeners = {}; this.sent = []; this.saved = 0; this.dead = false; }
  get(k) { return this.state[k]; }
  set(k, v) { this.update({[k]: v}); }
  update(changes) {
    const changed = Object.keys(changes).filter(k => this.state[k] !== changes[k]);
    Object.assign(this.state, changes);
    for (const k of changed) for (const f of [...(this.listeners[`change:${k}`] || [])]) f();
  }
  on(e, f) { (this.listeners[e] ??= []).push(f); }
  off(e, f) { this.listeners[e] = (this.listeners[e] || []).filter(g => g !== f); }
  save_changes() { if (this.dead) throw new Error('no kernel'); this.saved++; }
  send(m) { if (this.dead) throw new Error('no kernel'); this.sent.push(m); return Promise.resolve(); }
}'''

# ---- one snapshot with the evidence of all methods

phrase = 'still , this flick is un ##forget ##table and fun .'.split()
five_classes = ['very negative', 'negative', 'neutral', 'positive', 'very positive']

def sentence_of(n):
    "Return the tokens of a sentence of `n` tokens with [CLS] and [SEP]"
    return ['[CLS]', *(phrase[i % len(phrase)] for i in range(n - 2)), '[SEP]']

def invent(n=12, layers=6, heads=12, tokens=None, method='ADDrop', seed=0, kind='bert', drop=(), **info):
    "Return a plausible snapshot with the evidence of all four methods; `drop`: names of arrays to leave out"
    rng = np.random.default_rng(seed)
    tokens = list(tokens or sentence_of(n)); n = len(tokens)
    special = np.array([o in ('[CLS]', '[SEP]') for o in tokens])
    words, word_ids = [], []
    for o, s in zip(tokens, special):
        if not s and not o.startswith('##'): words.append('')
        if not s: words[-1] += o.removeprefix('##')
        word_ids.append(-1 if s else len(words) - 1)
    word_ids = np.array(word_ids)
    may = np.tril(np.ones((n, n))) if kind == 'causal' else np.ones((n, n))
    attention = rng.gamma(.4, size=(layers, heads, n, n)) * may
    attention[..., 0] += 1.5; attention[..., -1] += 1.5*may[:, -1]
    near = np.exp(-np.abs(np.subtract.outer(np.arange(n), np.arange(n)))) * may
    attention += 2*near
    P = np.zeros((heads, n, n)); i = np.arange(n)
    P[0, i[:-1], i[1:]] = 1; P[0, -1] = 1/n
    P[1, i[1:], i[:-1]] = 1; P[1, 0] = 1/n
    P[2:heads//2, :, 0] = 1
    attention[:, :heads//2] += 9*P[:heads//2]*may
    attention /= attention.sum(-1, keepdims=True)
    attribution = rng.standard_t(3, (layers, heads, n,
                                     n)) * attention * 2e-3 * np.linspace(2, .5, layers)[:, None, None, None]
    attribution[-1, :, 1:] = 0
    allowed = may.astype(bool)
    candidates = np.zeros(attribution.shape, dtype=bool)
    for q in range(n):
        m = int(allowed[q].sum()); k = int(m*.7 + 1e-6)
        candidates[:, :, q, :m] = attribution[:, :, q, :m] >= np.sort(attribution[:, :, q, :m],
                                                                      -1)[..., min(k, m - 1)][..., None]
    discarded = candidates & (rng.random(candidates.shape) < .2)
    saliency = rng.normal(0, .3, n) * ~special
    method_saliency = rng.normal(.05, .004, n) * rng.choice([-1, 1], n) * ~special * rng.random(n)
    top = np.argsort(-method_saliency + 9*special)[:max(1, int(np.ceil(.1*(~special).sum())))]
    target = np.zeros(n); target[top] = 1/len(top)
    word_saliency = np.bincount(word_ids[~special], method_saliency[~special], len(words))
    low = np.argsort(word_saliency)[:int(.4*len(words))]
    is_masked = np.isin(word_ids, low)
    masked = list(tokens)
    for w in low:
        kept = [v for v in range(len(words)) if v not in low]
        source = ([v for v in kept if v < w][-1:] + [v for v in kept if v > w][:1])[0]
        pieces = [tokens[p] for p in np.flatnonzero(word_ids == source)]
        for k, p in enumerate(np.flatnonzero(word_ids == w)): masked[p] = pieces[k % len(pieces)]
    arrays = dict(attention=attention, saliency=saliency, saliency_target=target, attention_attribution=attribution,
                  discard_candidates=candidates,
                  discarded=discarded, pattern_target=np.tile(P, (layers, 1, 1, 1)),
                  guided=np.tile(np.arange(heads) < heads//2, (layers, 1)),
                  masked_input=np.arange(n), is_masked=is_masked, method_saliency=method_saliency,
                  probabilities=np.array([.03, .07, .1, .55, .25]),
                  masked_probabilities=np.array([.05, .15, .2, .4, .2]))
    over_layers = {k: list(range(layers)) for k in arrays if arrays[k].shape[0] == layers and arrays[k].ndim > 1}
    return Snapshot(step=120, epoch=2., probe=3, arrays={k: v for k, v in arrays.items() if k not in drop},
                    texts=[' '.join(words)], tokens=tokens,
                    layers={k: v for k, v in over_layers.items() if k not in drop},
                    labels=[o.removeprefix('##') for o in tokens], words=words, word_ids=word_ids, is_special=special,
                    label=3, classes=five_classes,
                    info={**dict(method=method, args=dict(p=.3, q=.2), seed=1, drawn_step=120, pooled_row=0,
                                 masked_tokens=masked), **info})
