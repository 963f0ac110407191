// An intervention (salviz.core.interventions, as JSON) in the engine: which tokens replace others, and what changes in
// each head. Everything that depends on a saliency or an attribution is computed from the pass without intervention,
// as in salviz.attribution.applied_interventions.
import {discardCandidates, dropMask, keyedUniform, maskedWords, patternMatrix, saliencyTarget} from '../lib/maths.js';
import {completed, modelFault} from '../lib/interventions.js';
import {patternPlaces} from '../lib/patternplaces.js';

const isAllowed = (causal, q, k) => !causal || k <= q;

// The fixed rows [n·n] of a head whose map is replaced by `pattern`, on the keys that are allowed and not blocked; NaN
// in rows without such a key.
function limitedRows(pattern, n, causal, blocked) {
  const out = new Float32Array(n * n).fill(NaN), keys = Array.from({length: n}, (_, k) => k);
  for (let q = 0; q < n; q++) {
    const seen = keys.filter(k => isAllowed(causal, q, k)), open = seen.filter(k => !blocked[q * n + k]),
      used = open.length ? open : seen, total = used.reduce((sum, k) => sum + pattern[q * n + k], 0);
    if (!total) continue;
    out.fill(0, q * n, (q + 1) * n);
    for (const k of used) out[q * n + k] = pattern[q * n + k] / total;
  }
  return out;
}

export class EngineIntervention {
  // `pass`: {read, tape} without intervention; `saliency`: values per token, for changes that need them; the tape has
  // gradients of the maps if the intervention has a region.
  constructor(intervention, {config}, {read, tape}, saliency) {
    Object.assign(this, {one: completed(intervention), config, read, tape, saliency, n: read.tokens.length});
    const fault = modelFault(this.one, config, this.n);
    if (fault) throw new Error(fault);
  }

  // The position from which each token is taken.
  source() {
    const {read, one, saliency} = this;
    if (!one.mask_fraction) return null;
    return maskedWords(saliency, read.wordIds, {fraction: one.mask_fraction}).source;
  }

  // Positions [n·n] that are dropped from a head.
  blocked(layer, head) {
    const {one, n, config, tape} = this, out = new Uint8Array(n * n);
    for (let q = 0; q < n; q++) for (const k of one.positions) out[q * n + k] = 1;
    if (!one.region) return out;
    const allowed = Uint8Array.from({length: n * n}, (_, k) => Number(isAllowed(config.causal, Math.floor(k / n),
      k % n)));
    const uniform = keyedUniform(0, config.heads, n, one.seed, 0, layer), isRandom = one.region === 'random',
      other = keyedUniform(0, config.heads, n, one.seed, 1, layer);
    const score = isRandom ? Float32Array.from(allowed, (_, k) => other(head, Math.floor(k / n), k % n))
      : tape.layers[layer].attention.dMaps[head];
    const candidates = discardCandidates(score, allowed, n, one.p, isRandom ? 'high' : one.region);
    dropMask(candidates, allowed, n, one.q, (q, k) => uniform(head, q, k)).forEach((drop, k) => { out[k] |= drop; });
    return out;
  }

  pattern(name) {
    const {read, n, config, tape, one, saliency} = this;
    if (name === 'next' && config.causal)
      throw new Error('The pattern “next” attends to later tokens, which a causal model cannot do; '
        + 'choose another pattern, such as “prev”.');
    if (name === 'saliency') {
      const rows = new Float64Array(n * n);
      rows.set(saliencyTarget(saliency, read.isSpecial.map(special => Number(!special)), one.top_fraction),
        tape.row * n);
      return rows;
    }
    const places = patternPlaces(name, {tokens: read.tokens, is_special: read.isSpecial});
    const pattern = patternMatrix(name, read.tokens.map(() => 1), places);
    if (!pattern) throw new Error(`The pattern “${name}” has no token in this text; choose another one.`);
    return pattern;
  }

  // What changes in one head: see selfattention.js.
  change(layer, head) {
    const {one, n, config} = this, blocked = this.blocked(layer, head);
    const name = one.maps.find(([l, h]) => l === layer && h === head)?.[2];
    let map = name ? limitedRows(this.pattern(name), n, config.causal, blocked) : null;
    if (one.rows.length) map ??= new Float32Array(n * n).fill(NaN);
    for (const row of one.rows) map.fill(0, row * n, (row + 1) * n);
    const off = one.layers.includes(layer) || one.heads.some(([l, h]) => l === layer && h === head);
    return {blocked: blocked.some(Boolean) ? blocked : null, map, off};
  }

  // The hook of `Network.forward`; the changes are computed once.
  hook() {
    const {layers, heads} = this.config, all = Array.from({length: layers}, (_, layer) =>
      Array.from({length: heads}, (_, head) => this.change(layer, head)));
    return (layer, head) => all[layer][head];
  }
}
