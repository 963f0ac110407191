// The data of the explorer: runs, their probe examples, and the stored frames (one example at one step).
import {decodeFrame} from './codec.js';

const cachedFrames = 64;

// Sentences are identified by their words, images and series by a checksum of their numbers.
function probeKey({texts, tokens, input}) { return JSON.stringify([texts, tokens, input]); }

export function sameProbe(a, b) { return probeKey(a) === probeKey(b); }

function frameKey(run, probe, step) { return `${run}/${probe}/${step}`; }

export class Store {
  constructor() {
    this.meta = {format: 1, runs: [], shipped: ''};
    this.bytes = new Map();
    this.decoded = new Map();
    this.shippedSteps = new Map();
    this.logged = [];
    this.listeners = {frames: new Set(), rows: new Set(), meta: new Set(), status: new Set()};
  }

  on(event, listener) {
    if (!this.listeners[event])
      throw new Error(`Store: unknown event ${event}; valid events: ${Object.keys(this.listeners).join(', ')}`);
    this.listeners[event].add(listener);
    return () => this.listeners[event].delete(listener);
  }

  tell(event, what) { for (const listener of [...this.listeners[event]]) listener(what); }

  load(meta) {
    if (meta.format !== 1) throw new Error(`this explorer supports data format 1, got ${meta.format}`);
    this.meta = meta;
    this.tell('meta');
  }

  get runs() { return this.meta.runs; }
  run(i) { return this.runs[i] ?? null; }
  probe(run, probe) { return this.run(run)?.probes.find(p => p.id === probe) ?? null; }
  rows(run) { return this.logged[run] ?? []; }

  setRows(run, rows) { this.logged[run] = rows; this.tell('rows', run); }
  addRows(run, rows) { this.setRows(run, this.rows(run).concat(rows)); }

  addFrame(bytes) {
    const frame = decodeFrame(bytes), key = frameKey(frame.run, frame.probe, frame.step),
      place = `${frame.run}/${frame.probe}`;
    this.bytes.set(key, bytes);
    this.cache(key, frame);
    if (!this.shippedSteps.has(place)) this.shippedSteps.set(place, new Set());
    this.shippedSteps.get(place).add(frame.step);
    this.tell('frames', {run: frame.run, probe: frame.probe, step: frame.step});
    return frame;
  }

  // One saliency scale for all sentences and steps of a run, known to page and widget before any frame. `limit` is 0
  // where each sentence has its own scale, by choice or because the limit was not recorded; `words` says which.
  saliencyScale({run, ownScale}) {
    const of = this.run(run), {limit = null, step = null} = of?.saliency ?? {};
    const single = {limit: 0, name: 'of this sentence'};
    if (ownScale) return {...single,
      words: 'Colours are scaled to this sentence and step, so do not compare them across sentences or steps.'};
    if (limit === null) return {...single, words: 'The largest saliency of the run was not recorded: '
      + 'colours are scaled to this sentence and step, so do not compare them across sentences or steps.'};
    const words = 'The colour scale covers all sentences and steps of the run so far, up to step ';
    return {limit, name: 'of the run', words: of.live && !of.finished ? `${words}${step}.` : ''};
  }

  dropFrame(run, probe, step) {
    const key = frameKey(run, probe, step);
    if (!this.bytes.delete(key)) return;
    this.decoded.delete(key);
    this.shippedSteps.get(`${run}/${probe}`).delete(step);
    this.tell('frames', {run, probe, step});
  }

  // Decoded frames reference the stored bytes and cache derived values; the number of decoded frames is bounded.
  cache(key, frame) {
    this.decoded.delete(key);
    this.decoded.set(key, frame);
    while (this.decoded.size > cachedFrames) this.decoded.delete(this.decoded.keys().next().value);
  }

  frame(run, probe, step) {
    const key = frameKey(run, probe, step), bytes = this.bytes.get(key);
    if (!bytes) return null;
    const frame = this.decoded.get(key) ?? decodeFrame(bytes);
    this.cache(key, frame);
    return frame;
  }

  has(run, probe, step) { return this.bytes.has(frameKey(run, probe, step)); }
  shipped(run, probe) { return [...(this.shippedSteps.get(`${run}/${probe}`) ?? [])].sort((a, b) => a - b); }

  steps(run, probe) {
    const recorded = (this.run(run)?.recorded ?? []).filter(([p]) => p === probe).map(([, step]) => step);
    return [...new Set([...recorded, ...this.shipped(run, probe)])].sort((a, b) => a - b);
  }

  why(run, probe, step) {
    if (this.has(run, probe, step)) return '';
    const of = this.run(run);
    if (!of) return `There is no run ${run}.`;
    if (!this.probe(run, probe)) return `${of.title} has no probe example ${probe} here. ${this.meta.shipped}`.trim();
    if (!this.steps(run, probe).includes(step)) return `Step ${step} was not recorded.`;
    return `Step ${step} was recorded but is not on this page. ${this.meta.shipped}`.trim();
  }

  nearest(run, probe, step) {
    const steps = this.shipped(run, probe);
    if (!steps.length) return null;
    return steps.reduce((best, s) => Math.abs(s - step) < Math.abs(best - step) ? s : best);
  }

  // The step in view: the chosen one, or the newest available.
  stepOf(state) { return state.step ?? this.shipped(state.run, state.probe).at(-1) ?? this.steps(state.run,
    state.probe).at(-1) ?? null; }
  // The run and step chosen for comparison: of two runs, the one that is not in view, unless another choice was made.
  // Choosing the run in view at its current step counts as no choice.
  comparedWith(state) {
    const {run = null, step = null} = state.compare ?? {};
    if (run !== null && (run !== state.run || step !== null)) return {run, step};
    return this.runs.length === 2 ? {run: 1 - state.run, step: null} : null;
  }

  // The other side of a comparison: the same sentence in the other run, at the chosen step or the nearest available
  // one.
  matchOf(state) {
    const chosen = this.comparedWith(state);
    if (!chosen) return null;
    const {run, step} = chosen, here = this.probe(state.run, state.probe);
    const same = p => run === state.run ? p.id === state.probe : here && sameProbe(p, here);
    const probe = this.run(run)?.probes.find(same);
    if (!probe) return {run, probe: null, step: null, frame: null};
    const at = this.nearest(run, probe.id, step ?? this.stepOf(state) ?? 0);
    return {run, probe: probe.id, step: at, frame: at === null ? null : this.frame(run, probe.id, at)};
  }

  frameOf(state) {
    const step = this.stepOf(state);
    return step === null ? null : this.frame(state.run, state.probe, step);
  }
}
