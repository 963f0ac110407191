"Runs with invented evidence of every kind, made without a model, and a stand-in for Jupyter's model of a widget."
import numpy as np

from salviz.maps import dense_ranks, discard_candidates
from salviz.runs import Run, Snapshot

sentence = ['[CLS]', 'still', ',', 'this', 'is', 'unforget', '##table', '[SEP]']
methods = dict(ADDrop=dict(p=.3, q=.4, region='high', cross_tuning=True), AttentionGuidance=dict(share=.5), SaliencyGuided=dict(masked_share=.3, first='next', ranking='signed'),
               SalLM=dict(top_share=.1, binarised=True), FineTuning={})

def evidence(method, n, layers, heads, rng):
    "Arrays of a snapshot of `method`"
    out = dict(attention=rng.dirichlet(np.ones(n)*.4, (layers, heads, n)), saliency=rng.normal(size=n).astype(np.float32), probabilities=np.array([.3, .7], np.float32))
    if method == 'ADDrop':
        attribution = rng.normal(0, 1e-3, (layers, heads, n, n))
        candidates = discard_candidates(attribution, np.ones((n, n), bool), .3)
        out |= dict(attention_attribution=attribution, attribution_ranks=dense_ranks(attribution, np.ones((n, n), bool)), discard_candidates=candidates,
                    discarded=candidates & (rng.random(candidates.shape) < .4))
    if method == 'AttentionGuidance':
        target = np.tile(np.eye(n, k=1) + np.eye(n)[[0]].T*0 + (np.arange(n)[:, None] == n - 1)/n, (layers, heads, 1, 1))
        out |= dict(pattern_target=target, guided=np.arange(layers*heads).reshape(layers, heads) % 2 == 0)
    if method == 'SaliencyGuided':
        out |= dict(method_saliency=rng.normal(size=n).astype(np.float32), is_masked=np.arange(n) == 2, masked_input=np.arange(n), masked_probabilities=np.array([.4, .6], np.float32))
    if method == 'SalLM': out |= dict(method_saliency=rng.normal(size=n).astype(np.float32), saliency_target=np.full(n, 1/n, np.float32))
    return out

def snapshot(step=0, probe=0, tokens=sentence, method='FineTuning', layers=2, heads=3, seed=None):
    rng, n = np.random.default_rng([step, probe, len(tokens)] if seed is None else seed), len(tokens)
    arrays, ids = evidence(method, n, layers, heads, rng), np.arange(n) - 1
    ids[-1] = -1
    info = dict(method=method, args=methods[method], seed=0, drawn_step=step, pooled_row=0, example_id=probe, saliency_method='integrated_gradients')
    if method == 'SaliencyGuided': info['masked_tokens'] = [tokens[1] if i == 2 else t for i, t in enumerate(tokens)]
    return Snapshot(step=step, epoch=step/10, probe=probe, arrays=arrays, layers={k: list(range(layers)) for k, v in arrays.items() if v.ndim == 4 or k == 'guided'},
                    texts=[' '.join(tokens[1:-1])], tokens=tokens, labels=[t.removeprefix('##') for t in tokens], words=tokens[1:-1], word_ids=ids, label=probe % 2,
                    classes=['negative', 'positive'], losses=dict(task=.5), info=info)

def run(path, method='FineTuning', probes=(0, 1), steps=(0, 10, 20, 30), tokens=None, layers=2, heads=3, finish=True):
    "A recorded run in `path`; `tokens`: {probe: its tokens}"
    made = Run.create(path, dict(method=dict(name=method, args=methods[method]), model=dict(name='tiny', layers=layers, heads=heads), seed=0, data=dict(name='invented')))
    for step in steps:
        made.log(dict(kind='train', step=step + 1, epoch=(step + 1)/10, loss=2/(2 + step), task=1/(2 + step)))
        for p in probes: made.save(snapshot(step, p, (tokens or {}).get(p, [*sentence[:-1], *(['more'] * p), '[SEP]']), method, layers, heads))
    if steps: made.log(dict(kind='eval', step=max(steps), accuracy=.75, loss=.5))
    if finish and steps: made.finish(steps=max(steps))
    return made

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
