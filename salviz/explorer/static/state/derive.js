// Values that several panels derive from a frame: the map of an entry, head scores, regions, targets, saliency.
import {discardCandidates, dropMask, entropy, keyedUniform, patternMatrix, patternFraction} from '../lib/maths.js';
import {rollout, saliencyTarget, spearman} from '../lib/maths.js';
import {patternPlaces} from '../lib/patternplaces.js';

const derivedOnce = new WeakMap(), derivedMost = 16;

// Frames never change, so derived values are cached with them. Only the last few are kept, since a map of floats is
// four times the size of its bytes.
function derivedFor(frame, key, make) {
  if (!derivedOnce.has(frame)) derivedOnce.set(frame, new Map());
  const cache = derivedOnce.get(frame), value = cache.has(key) ? cache.get(key) : make();
  cache.delete(key);
  cache.set(key, value);
  if (cache.size > derivedMost) cache.delete(cache.keys().next().value);
  return value;
}

export const mapNames = {attention: 'attention', attribution: 'attention_attribution', rank: 'attribution_ranks',
  target: 'pattern_target'};

// The map of one head: the full map where it is stored, else its thumbnail.
function headMap(frame, name, layer, head) {
  const full = frame.full(name, layer, head);
  if (full) return {values: full.at(0, 0), tensor: full, i: 0, head: 0, n: full.shape.at(-1), pooled: 1};
  const tensor = frame.get(name), i = tensor ? tensor.layers.indexOf(layer) : -1;
  if (i < 0 || !(head < tensor.shape[1])) return null;
  return {values: tensor.at(i, head), tensor, i, head, n: tensor.shape.at(-1), pooled: tensor.pooled};
}

function meanMaps(maps) {
  const values = new Float32Array(maps[0].values.length);
  for (const map of maps) for (let k = 0; k < values.length; k++) values[k] += map.values[k] / maps.length;
  const halfStep = k => maps.reduce((sum, map) => sum + headHalfStep(map, k), 0) / maps.length;
  return {values, n: maps[0].n, pooled: maps[0].pooled, halfStep};
}

function headHalfStep(map, k) { return map.tensor.halfStep(map.tensor.codes(map.i, map.head)[k], map.i, map.head); }

export function layersOf(frame, what) { return frame.layers(mapNames[what] ?? what) ?? []; }
export function headCount(frame, what) { return frame.get(mapNames[what] ?? what)?.shape[1] ?? 0; }

// Means are computed from thumbnails where a frame has them, since every head has one.
function thumbs(frame, name, pairs) {
  const tensor = frame.get(name);
  return pairs.map(([i, head]) => ({values: tensor.at(i, head), tensor, i, head, n: tensor.shape.at(-1),
    pooled: tensor.pooled}));
}

function entryPairs(tensor, entry) {
  const layers = tensor.layers.map((_, i) => i), heads = Array.from({length: tensor.shape[1]}, (_, h) => h);
  if (entry.kind === 'heads') return heads.map(h => [tensor.layers.indexOf(entry.layer), h]);
  if (entry.kind === 'layers') return layers.map(i => [i, entry.head]);
  if (entry.kind === 'mean') return entry.heads.map(([layer, head]) => [tensor.layers.indexOf(layer), head]);
  return layers.flatMap(i => heads.map(h => [i, h]));
}

// The chosen heads, layer by layer: "layer 0 head 2; layer 3 heads 1, 4".
function headsWords(pairs) {
  const byLayer = new Map();
  const sorted = [...pairs].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  for (const [layer, head] of sorted) byLayer.set(layer, [...byLayer.get(layer) ?? [], head]);
  return [...byLayer].map(([layer, heads]) => `layer ${layer} head${heads.length > 1 ? 's' : ''} ${heads.join(', ')}`)
    .join('; ');
}

export function entryTitle(entry) {
  if (entry.kind === 'mean') return `mean over ${headsWords(entry.heads)}`;
  if (entry.kind === 'heads') return `layer ${entry.layer}, mean over heads`;
  if (entry.kind === 'layers') return `head ${entry.head}, mean over layers`;
  if (entry.kind === 'all') return 'mean over all heads';
  if (entry.kind === 'rollout') return 'attention rollout';
  return `layer ${entry.layer}, head ${entry.head}`;
}

// The title as it stands within a sentence: 'the mean over all heads'.
export function entryPhrase(entry) { return entryTitle(entry).replace(/^mean/, 'the mean'); }

function hasMean(tensor, {heads}) {
  return heads.length > 0 && heads.every(([layer, head]) => tensor.layers.includes(layer) && head < tensor.shape[1]);
}

function rolloutMap(frame) {
  const tensor = frame.get('attention');
  if (tensor.pooled > 1) return {missing: 'Rollout needs full maps, but only thumbnails of this sentence are stored.'};
  const layers = tensor.layers.map((_, i) =>
    meanMaps(thumbs(frame, 'attention', entryPairs(tensor, {kind: 'heads', layer: tensor.layers[i]}))).values);
  const n = tensor.shape.at(-1);
  const note = `through the ${layers.length} recorded layers, each averaged with a residual connection`;
  return {values: Float32Array.from(rollout(layers, n, .5)), n, pooled: 1, halfStep: () => NaN, note};
}

function residualMap(frame, layer, head) {
  const attention = headMap(frame, 'attention', layer, head), target = headMap(frame, 'pattern_target', layer, head);
  if (!attention || !target || attention.n !== target.n) return null;
  return {...attention, values: attention.values.map((a, k) => a - target.values[k]),
    halfStep: k => headHalfStep(attention, k)};
}

function entryMap(frame, entry, what) {
  const name = mapNames[what];
  if (entry.kind === 'head') {
    if (what === 'residual') return residualMap(frame, entry.layer, entry.head);
    const map = headMap(frame, name, entry.layer, entry.head);
    return map && {...map, halfStep: k => headHalfStep(map, k)};
  }
  const tensor = frame.get(name);
  if (!tensor || what === 'rank' || what === 'target') return null;
  if (entry.kind === 'rollout') return what === 'attention' ? rolloutMap(frame) : null;
  if (entry.kind === 'mean' && !hasMean(tensor, entry)) return null;
  if (entry.kind === 'heads' && !tensor.layers.includes(entry.layer)) return null;
  if (entry.kind === 'layers' && !(entry.head < tensor.shape[1])) return null;
  return meanMaps(thumbs(frame, name, entryPairs(tensor, entry)));
}

// How attention is called on scales; maps from elsewhere may have rows that do not sum to 1.
export function attentionName(frame) {
  return frame?.info?.not_normalised ? 'attention (not normalised)' : 'attention'; }

const missingWords = {
  attention: 'attention', attribution: 'attention attribution', rank: 'attribution rank', target: 'pattern target',
    residual: 'pattern target',
};

// {values [n*n], n, pooled, signed, halfStep(index), title, note}; where there is no map, values is null and note says
// why.
export function mapOf(frame, entry, what = 'attention') {
  const title = entryTitle(entry), signed = what === 'attribution' || what === 'residual';
  if (!frame) return {values: null, n: 0, pooled: 1, signed, title, halfStep: () => NaN,
    note: 'No data for this step.'};
  return derivedFor(frame, `map ${what} ${JSON.stringify(entry)}`, () => {
    const map = entryMap(frame, entry, what);
    if (map?.values) return {note: '', ...map, signed, title};
    const have = layersOf(frame, what === 'residual' ? 'target' : what);
    const where = have.length ? ` Available layers: ${have.join(', ')}.`
      : ` Recorded at this step: ${frame.names.join(', ')}.`;
    const awaited = frame.info?.awaited ?? '', later = what !== 'attention' && /attribution/i.test(awaited) && awaited;
    const note = map?.missing || later
      || `No ${missingWords[what]} was recorded for ${entryPhrase(entry)} at this step.${where}`;
    return {values: null, n: 0, pooled: 1, signed, title, halfStep: () => NaN, note};
  });
}

// The row whose state the model's head reads. Null where it reads all rows (token tasks, translation); the mean over
// rows is then used instead.
export function pooledRow(frame) { return frame?.info?.pooled_row ?? null; }

// Row `row` of a map with n columns, or the mean over its rows (those that count) if `row` is null; non-finite values
// are skipped.
export function rowOrMean(values, n, row, rows = null) {
  if (row !== null) return values.subarray(row * n, (row + 1) * n);
  const sums = new Float64Array(n), counts = new Uint32Array(n);
  for (let k = 0; k < values.length; k++) {
    if (!Number.isFinite(values[k]) || rows && !rows[Math.floor(k / n)]) continue;
    sums[k % n] += values[k];
    counts[k % n]++;
  }
  return Float32Array.from(sums, (sum, k) => sum / counts[k]);
}

// The methods that were active, one or several; older runs store only one name and its arguments.
export function methodNames(frame) { return Object.keys(frame?.info?.methods ?? {[frame?.info?.method ?? '']: 0}); }

export function methodArgs(frame, name) {
  const {methods, method, args} = frame?.info ?? {};
  return (methods ? methods[name] : (method ?? name) === name ? args : null) ?? {};
}

// An array recorded by a method. If two combined methods use the same name, the name of the later method is appended.
export function evidenceOf(frame, name, method) { return frame?.get(`${name} (${method})`) ?? frame?.get(name) ?? null;
  }

// The saliency to show: the model's own where it was recorded, else the method's.
export function saliencyOf(frame) {
  for (const [name, title] of [['saliency', 'saliency'], ['method_saliency', 'the method’s saliency']]) {
    const tensor = frame?.get(name);
    if (tensor) return {values: tensor.values(), name: title};
  }
  return null;
}

function specialOf(store, frame) { return store.probe(frame.run, frame.probe)?.is_special ?? []; }

function scoreAgreement(map, frame, special) {
  const saliency = saliencyOf(frame)?.values, n = map.n;
  if (!saliency || map.pooled > 1) return NaN;
  const counts = special.map(s => !s);
  return spearman(rowOrMean(map.values, n, pooledRow(frame), counts), saliency.map(Math.abs), counts);
}

function scoreEntropy(map) {
  const rows = [...entropy(map.values, map.n)].filter(Number.isFinite);
  return rows.length ? rows.reduce((a, b) => a + b, 0) / rows.length : NaN;
}

export function isGuided(frame, layer, head) {
  const guided = frame.get('guided'), i = guided ? guided.layers.indexOf(layer) : -1;
  return i >= 0 && Boolean(guided.values()[i * guided.shape[1] + head]);
}

function scorePattern(map, frame, layer, head) {
  if (!isGuided(frame, layer, head)) return NaN;
  const residual = residualMap(frame, layer, head)?.values;
  return residual ? residual.reduce((sum, r) => sum + r * r, 0) / residual.length : NaN;
}

function scoreChange(map, first, layer, head) {
  const before = first && headMap(first, 'attention', layer, head)?.values;
  return before?.length === map.values.length ? map.values.reduce((sum, v, k) => sum + Math.abs(v - before[k]),
    0) / map.n : NaN;
}

export const scoreLabels = {
  order: ['layer and head', 1], agreement: ['agreement with saliency (Spearman, pooled row)', -1],
  pattern: ['pattern loss (mean squared residual)', -1],
  entropy: ['entropy (nats, mean over rows)', 1],
  change: ['change since the first step (mean |difference| per row)', -1],
};

// A score for each head of the frame in view; NaN where undefined. direction 1: smallest first.
export function headScores(store, state, by) {
  const frame = store.frameOf(state), [label, direction] = scoreLabels[by];
  if (!frame?.get('attention')) return {layers: [], heads: 0, scores: new Float32Array(0), label, direction};
  const first = by === 'change' ? store.frame(frame.run, frame.probe, store.shipped(frame.run, frame.probe)[0]) : null;
  return derivedFor(frame, `scores ${by} ${first?.step}`, () => {
    const layers = layersOf(frame, 'attention'), heads = headCount(frame, 'attention'),
      special = specialOf(store, frame);
    const score = {
      order: (map, layer, head) => layers.indexOf(layer) * heads + head,
      agreement: map => scoreAgreement(map, frame, special),
      pattern: (map, layer, head) => scorePattern(map, frame, layer, head),
      entropy: map => scoreEntropy(map),
      change: (map, layer, head) => scoreChange(map, first, layer, head),
    }[by];
    const all = layers.flatMap(layer => Array.from({length: heads},
      (_, head) => score(headMap(frame, 'attention', layer, head), layer, head)));
    return {layers, heads, scores: Float32Array.from(all), label, direction};
  });
}

// Heads of a layer that follow the same pattern share its mean.
function headsAlike(target, i, h, guided, heads) {
  const mine = target.codes(i, h).join();
  return Array.from({length: heads}, (_, other) => other).filter(other => guided[i * heads + other]
    && target.codes(i, other).join() === mine).length;
}

// Each guided head's fraction of the pattern loss: a mean over the heads of each pattern, or with 'sum' a plain sum.
export function lossFractions(frame) {
  const guided = frame?.get('guided'), target = frame?.get('pattern_target');
  if (!guided || !target) return null;
  return derivedFor(frame, 'shares', () => {
    const heads = guided.shape[1], flags = guided.values(), losses = new Float32Array(flags.length);
    const sums = methodArgs(frame, 'AttentionGuidance').reduction === 'sum';
    guided.layers.forEach((layer, i) => {
      for (let h = 0; h < heads; h++) {
        if (!flags[i * heads + h]) continue;
        losses[i * heads + h] = scorePattern(null, frame, layer,
          h) / (sums ? 1 : headsAlike(target, i, h, flags, heads));
      }
    });
    const total = losses.reduce((a, b) => a + (Number.isFinite(b) ? b : 0), 0);
    return {layers: guided.layers, heads, guided: flags, losses, fractions: losses.map(l => total > 0 ? l / total : 0)};
  });
}

// The patterns of one layer: those given for it (negative numbers count from the last layer), or those for all layers.
function patternsOfLayer(frame, layer) {
  const {patterns} = methodArgs(frame, 'AttentionGuidance'), names = Object.keys(patterns ?? {}),
    layers = layersOf(frame, 'attention');
  if (!names.length || names.some(name => !/^-?\d+$/.test(name))) return patterns ?? {};
  return patterns[names.find(name => (Number(name) < 0 ? layers.at(Number(name)) : Number(name)) === layer)] ?? {};
}

// The name under which a head's pattern was given; null for the paper's default.
export function namedPattern(frame, layer, head) {
  return Object.entries(patternsOfLayer(frame, layer)).find(([, heads]) => [heads].flat().includes(head))?.[0] ?? null;
}

// The fraction of each guided head's attention on its pattern, in the order of `lossFractions`; NaN for heads that are
// not guided.
export function patternFractions(frame) {
  const guided = frame?.get('guided'), target = frame?.get('pattern_target');
  if (!guided || !target) return null;
  return derivedFor(frame, 'pattern fractions', () => {
    const heads = guided.shape[1], flags = guided.values();
    return Float32Array.from(flags, (flag, k) => {
      const layer = guided.layers[Math.floor(k / heads)];
      const [a, t] = ['attention', 'pattern_target'].map(name => headMap(frame, name, layer, k % heads));
      return flag && a && t && a.pooled * t.pooled === 1 ? patternFraction(a.values, t.values, a.n) : NaN;
    });
  });
}

function recordedRegion(frame, name, layer, head) {
  const whole = frame.full(name, layer, head);
  if (whole) return whole.bit(0, 0);
  const tensor = frame.get(name), i = tensor ? tensor.layers.indexOf(layer) : -1;
  return i < 0 || tensor.pooled > 1 ? null : tensor.bit(i, head);
}

export function ranksOfHead(frame, layer, head) {
  const whole = frame.full('attribution_ranks', layer, head);
  if (whole) return whole.codes(0, 0);
  const tensor = frame.get('attribution_ranks'), i = tensor ? tensor.layers.indexOf(layer) : -1;
  return i < 0 || tensor.pooled > 1 ? null : tensor.codes(i, head);
}

// The rows of a head that a run with unread_rows='left_out' left out: all keys tie, and none is a candidate.
function rowsLeftOut(frame, ranks, n, layer, head) {
  if (methodArgs(frame, 'ADDrop').unread_rows !== 'left_out') return new Uint8Array(n);
  const recorded = recordedRegion(frame, 'discard_candidates', layer, head);
  return Uint8Array.from({length: n}, (_, i) => {
    const [from, to] = [i * n, i * n + n];
    return Number(Math.max(...ranks.subarray(from, to)) <= 1 && !recorded?.subarray(from, to).some(Boolean));
  });
}

// AD-DROP's region and random draw with other settings; null without ranks.
export function regionWith(frame, special, {p, q, region, protect}, layer, head) {
  const ranks = ranksOfHead(frame, layer, head);
  if (!ranks) return null;
  const n = Math.sqrt(ranks.length), allowed = Uint8Array.from(ranks, r => Number(r > 0));
  const leftOut = rowsLeftOut(frame, ranks, n, layer, head);
  const may = allowed.map((a, k) => Number(a && !(protect && special[k % n]) && !leftOut[Math.floor(k / n)]));
  const candidates = discardCandidates(ranks, may, n, p, region);
  const {example_id: id, seed, drawn_step: step} = frame.info;
  const uniform = [id, seed, step].every(Number.isFinite) ? keyedUniform(id, head + 1, n, seed, step, layer) : null;
  const discarded = uniform && dropMask(candidates, allowed, n, q, (query, key) => uniform(head, query, key));
  return {candidates, discarded, allowed, leftOut, n};
}

// The region drawn on the map: recorded, or recomputed with the what-if settings.
export function regionOf(frame, state, layer, head, special = []) {
  if (state.whatIf?.p !== undefined) {
    const region = regionWith(frame, special, state.whatIf, layer, head);
    if (region) return {...region, recomputed: true};
  }
  const candidates = recordedRegion(frame, 'discard_candidates', layer, head),
    discarded = recordedRegion(frame, 'discarded', layer, head);
  const ranks = ranksOfHead(frame, layer, head);
  return {candidates, discarded, recomputed: false, allowed: ranks && Uint8Array.from(ranks, r => Number(r > 0))};
}

export function patternOf(name, probe, boundary = 'uniform', multiple = 'uniform') {
  return patternMatrix(name, probe.tokens.map(() => 1), patternPlaces(name, probe), boundary, multiple);
}

// The pattern that the head should follow: recorded, or chosen in the what-if panel.
export function targetOf(frame, state, layer, head, probe = null) {
  const n = probe?.tokens.length, chosen = state.whatIf?.pattern;
  if (chosen && probe) {
    const {boundary, multiple} = {...methodArgs(frame, 'AttentionGuidance'), ...state.whatIf};
    const values = patternOf(chosen, probe, boundary, multiple);
    return values && {values: Float32Array.from(values), n, name: chosen, recomputed: true};
  }
  const map = mapOf(frame, {kind: 'head', layer, head}, 'target');
  const guided = frame?.get('guided'), i = guided ? guided.layers.indexOf(layer) : -1;
  if (!map.values || (i >= 0 && !guided.values()[i * guided.shape[1] + head])) return null;
  return {values: map.values, n: map.n, name: namedPattern(frame, layer, head) ?? 'recorded pattern',
    recomputed: false};
}

// The row that SalLM trains: that of the explained word or answer, else the row that the model's head reads.
export function targetRow(frame) {
  const flags = frame?.get('own/asked_row');
  return flags ? flags.values().findIndex(Boolean) : pooledRow(frame);
}

// The tokens that SalLM's target may mark: ordinary ones; of a prompt with its answer, only those of the prompt.
export function mayBeMarked(frame, special) {
  const last = frame?.info?.task === 'causal_lm' ? targetRow(frame) ?? Infinity : Infinity;
  return special.map((s, i) => Number(!s && i <= last));
}

// Does the magnitude of saliency make a token salient, whatever its sign?
export function ranksBySize(frame) {
  const usual = frame?.info?.task === 'regression' ? 'magnitude' : 'signed';
  return (methodArgs(frame, 'SalLM').ranking ?? usual) === 'magnitude';
}

// SalLM's target over these tokens, recorded or with another fraction.
export function sallmTarget(frame, state, special) {
  const saliency = evidenceOf(frame, 'method_saliency', 'SalLM') ?? frame?.get('saliency');
  if (state.whatIf?.topShare && saliency) {
    const ranked = ranksBySize(frame) ? saliency.values().map(Math.abs) : saliency.values();
    return {values: saliencyTarget(ranked, mayBeMarked(frame, special), state.whatIf.topShare,
      state.whatIf.binarised ?? true), recomputed: true};
  }
  const recorded = frame?.get('saliency_target');
  return recorded ? {values: recorded.values(), recomputed: false} : null;
}

export function visibleTokens(probe, state) {
  return probe.tokens.map((_, i) => i).filter(i => !(state.hideSpecial && probe.is_special[i]));
}

// The units of the labels: tokens, or with mergeWords words with all their pieces.
export function unitsOf(probe, state) {
  const units = [];
  for (const i of visibleTokens(probe, state)) {
    const word = probe.word_ids[i], last = units.at(-1);
    if (state.mergeWords && word >= 0 && last?.word === word && last.tokens.at(-1) === i - 1) last.tokens.push(i);
    else units.push({word, tokens: [i], special: Boolean(probe.is_special[i]),
      label: state.mergeWords && word >= 0 ? probe.words[word] : probe.labels[i]});
  }
  return units;
}
