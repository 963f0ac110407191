// The user's choices: one plain object, changed only through `set`; listeners are called once per animation frame.

export const firstState = {
  run: 0, probe: 0, step: null,
  entry: {kind: 'head', layer: null, head: 0},
  what: 'attention', evidence: '', explanation: '', row: null, tokens: [], colour: 'saliency', ownScale: false,
  overlays: {candidates: true, discarded: true, target: false, residual: false, saliency: true, regularised: true},
  hideSpecial: false, mergeWords: false, top: 0, threshold: 0,
  scale: 'map', palette: 'cividis', sort: 'order', filter: 0,
  headNumber: 'relative_entropy', headExamples: 'probes',
  // whatIf: {p, q, region, protect, pattern, boundary, multiple, topShare, binarised, maskedShare, ranking, first,
  // threshold}
  // intervention: see lib/interventions.js
  // marks: {example: [mark]}, see panels/answermarks.js
  compare: null, whatIf: null, intervention: null, marks: {},
  playing: false, speed: 4, tab: 'map', theme: 'light',
};

// A complete view: `values`, with defaults for the rest. Theme and playback are not part of it.
export function wholeState(values) {
  const {theme, playing, ...fresh} = firstState;
  return {...fresh, ...values};
}

// Another sentence has other tokens, so the selection of tokens is reset.
const stateResets = {probe: ['row', 'tokens'], run: ['row', 'tokens']};

function stateEqual(a, b) { return a === b || JSON.stringify(a) === JSON.stringify(b); }

export class State {
  constructor(values = {}) {
    this.values = {...structuredClone(firstState), ...structuredClone(values)};
    this.listeners = new Set();
    this.changed = new Set();
    for (const key of Object.keys(this.values))
      Object.defineProperty(this, key, {get: () => this.values[key], enumerable: true});
  }

  get() { return this.values; }

  set(changes) {
    const unknown = Object.keys(changes).filter(key => !(key in firstState));
    if (unknown.length)
      throw new Error(`State: unknown keys ${unknown.join(', ')}; valid keys: ${Object.keys(firstState).join(', ')}`);
    const all = {...changes};
    for (const [key, resets] of Object.entries(stateResets)) {
      if (!(key in changes) || stateEqual(changes[key], this.values[key])) continue;
      for (const other of resets) if (!(other in changes)) all[other] = firstState[other];
    }
    for (const [key, value] of Object.entries(all)) {
      if (stateEqual(value, this.values[key])) continue;
      this.values[key] = structuredClone(value);
      this.touch(key);
    }
  }

  // Also for changes outside the state that affect the view: 'frames', 'rows', 'meta', 'size'.
  touch(...keys) {
    for (const key of keys) this.changed.add(key);
    if (this.scheduled || !this.changed.size) return;
    this.scheduled = true;
    // A hidden tab gets no animation frames, but must show the right contents when it becomes visible.
    if (document.hidden) setTimeout(() => this.flush(), 50);
    else requestAnimationFrame(() => this.flush());
  }

  flush() {
    this.scheduled = false;
    const changed = this.changed;
    this.changed = new Set();
    if (changed.size) for (const listener of [...this.listeners]) listener(changed);
  }

  on(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}
