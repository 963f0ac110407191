// What the reader has chosen: one plain object, changed only through `set`, told to listeners once a frame.

export const firstState = {
  run: 0, probe: 0, step: null,
  entry: {kind: 'head', layer: null, head: 0},
  what: 'attention', evidence: '', explanation: '', row: null, tokens: [], colour: 'saliency', ownScale: false,
  overlays: {candidates: true, discarded: true, target: false, residual: false, saliency: true, regularised: true},
  hideSpecial: false, mergeWords: false, top: 0, threshold: 0,
  scale: 'map', palette: 'cividis', sort: 'order', filter: 0,
  // whatIf: {p, q, region, protect, pattern, boundary, multiple, topShare, binarised, maskedShare, ranking, first,
  // threshold}
  compare: null, whatIf: null,
  playing: false, speed: 4, tab: 'map', theme: 'light',
};

// A whole view: `given`, and a fresh view for the rest. The theme is the page's, and nothing plays on its own.
export function wholeState(values) {
  const {theme, playing, ...fresh} = firstState;
  return {...fresh, ...values};
}

// Another sentence has other tokens, so a choice among tokens does not outlive it.
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
      throw new Error(`state has no ${unknown.join(', ')}; it has ${Object.keys(firstState).join(', ')}`);
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

  // Also for what is not state but changes what is seen: 'frames', 'rows', 'meta', 'size'.
  touch(...keys) {
    for (const key of keys) this.changed.add(key);
    if (this.scheduled || !this.changed.size) return;
    this.scheduled = true;
    // A hidden tab gets no animation frames; what it shows must still be right when somebody asks.
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
