// A map as displayed: on tokens, words or blocks of tokens, with blank cells and the limit of its scale; and its
// drawing with labels.
import {entryTitle, layersOf, mapNames, unitsOf} from '../state/derive.js';
import {ordinal, paintScale, valueWithStep} from '../lib/colour.js';
import {axisTitles, columnLabels, quotedToken, rowLabels, shownToken} from '../lib/canvas.js';
import {blockedKeys} from './overlays.js';

// The units of rows and columns: tokens, words, or in a thumbnail blocks of tokens.
export function shownUnits(probe, state, map) {
  if (!(map?.pooled > 1)) return unitsOf(probe, state);
  const size = Math.ceil(probe.tokens.length / map.pooled);
  return Array.from({length: map.n}, (_, i) => {
    const tokens = Array.from({length: size}, (_, k) => i * size + k).filter(k => k < probe.tokens.length);
    const ends = [tokens[0], tokens.at(-1)].map(k => shownToken(probe.labels[k]));
    return {word: -1, tokens, special: tokens.every(k => probe.is_special[k]),
      label: tokens.length > 1 ? ends.join(' … ') : ends[0], block: true};
  });
}

// Attention to a word is the sum over its pieces, attention from a word the mean over them. Returns {values, count,
// half(k)}.
export function unitMap(map, units) {
  const count = units.length, at = units.map((u, i) => u.block ? [i] : u.tokens),
    values = new Float32Array(count * count);
  const over = (r, c, f) => at[r].reduce((sum, q) => sum + at[c].reduce((s, k) => s + f(q * map.n + k), 0),
    0) / at[r].length;
  const single = at.every(tokens => tokens.length === 1), cell = k => [Math.floor(k / count), k % count];
  if (single && count === map.n) return {values: Float32Array.from(map.values), count, half: k => map.halfStep(k)};
  for (let r = 0, cell = 0; r < count; r++) for (let c = 0; c < count; c++, cell++) {
    values[cell] = single ? map.values[at[r][0] * map.n + at[c][0]] : over(r, c, k => map.values[k]);
  }
  return {values, count, half: k => over(...cell(k), map.halfStep)};
}

// Keys that none of the heads can attend to.
function blockedOf(frame, {kind, layer, heads}) {
  if (kind === 'rollout') return null;
  if (kind !== 'mean') return blockedKeys(frame, layer ?? layersOf(frame, 'attention')[0]);
  const each = [...new Set(heads.map(([of]) => of))].map(of => blockedKeys(frame, of));
  return each.every(Boolean) ? each[0].map((_, k) => Number(each.every(blocked => blocked[k]))) : null;
}

// Sets keys that cannot be attended to to NaN, to distinguish them from small values.
export function blankBlocked(values, frame, entry, map, units) {
  const blocked = blockedOf(frame, entry);
  if (blocked?.length !== map.n * map.n) return values;
  const plain = units.length === map.n && units.every((u, i) => u.block || u.tokens.length === 1 && u.tokens[0] === i);
  if (plain) return values.map((v, k) => blocked[k] ? NaN : v);
  const at = units.map((u, i) => u.block ? [i] : u.tokens), count = units.length;
  return values.map((v, k) => at[Math.floor(k / count)].every(q => at[k % count].every(j => blocked[q * map.n + j]))
    ? NaN : v);
}

// The first code of attention stands for all smaller weights, so it has no rank; words may sum up to three of them.
export const leastRanked = kind => kind === 'attention' ? 3.5 / 254 ** 3 : 0;

// Sets the values that the reader chose to hide to NaN; the pointer still reads the original numbers. Values up to
// `least` are never among the largest.
export function strongestValues(values, count, {top, threshold}, least = 0) {
  if (!(top > 0 && top < count) && !(threshold > 0)) return values;
  const out = values.map(v => threshold > 0 && Math.abs(v) < threshold ? NaN : v);
  for (let r = 0; top > 0 && r < count; r++) {
    const row = out.subarray(r * count, (r + 1) * count);
    const smallest = leastOfTop(row, top, least);
    for (let c = 0; c < count; c++) if (!(Math.abs(row[c]) >= smallest)) row[c] = NaN;
  }
  return out;
}

// The smallest magnitude among the `top` largest; values that tie with it are all kept.
function leastOfTop(row, top, least) {
  const sizes = Array.from(row, Math.abs).filter(size => size > least).sort((a, b) => b - a);
  return sizes[Math.min(top, sizes.length) - 1] ?? Infinity;
}

// The number of rows with more than `top` remaining keys because of ties.
export function tiedAtTop(shown, count, {top}) {
  if (!(top > 0 && top < count)) return 0;
  const left = r => shown.subarray(r * count, (r + 1) * count).filter(Number.isFinite).length;
  return Array.from({length: shown.length / count}, (_, r) => left(r)).filter(keys => keys > top).length;
}

export function largestOf(values) {
  let most = 0;
  for (const v of values) if (Math.abs(v) > most && Number.isFinite(v)) most = Math.abs(v);
  return most;
}

const frameLimits = new WeakMap();

// The largest magnitude over all heads of the frame.
export function frameLimit(frame, what) {
  const tensor = frame.get(mapNames[what] ?? what);
  if (!tensor) return 1;
  if (!frameLimits.has(tensor)) {
    let most = 0;
    for (let i = 0; i < tensor.shape[0]; i++) for (let head = 0; head < tensor.shape[1]; head++)
      most = Math.max(most, largestOf(tensor.at(i, head)));
    frameLimits.set(tensor, most);
  }
  return frameLimits.get(tensor);
}

// The limit of the scale for `state.scale`; attributions have no natural limit of 1.
export function scaleLimit(frame, what, values, {scale}) {
  if (scale === 'map') return largestOf(values);
  if (what === 'residual') return 1;
  return scale === 'unit' && what === 'attention' ? 1 : frameLimit(frame, what);
}

export function coloursOf(values, scale) { return paintScale(scale, values, new Uint32Array(values.length)); }

// Draws cells, labels on both axes and axis titles. `space`: {key, query}, the space for the labels; `edge`: the gap
// between cells and labels.
export function drawTokenMap(sharp, painter, grid,
  {colours, units, inks, space, edge = 4, rows = new Set(), columns = new Set(), titles = true,
  queries = true}) {
  const {context} = sharp;
  painter.paint(context, grid, colours);
  columnLabels(context, grid, units, {y: grid.y - edge, space: space.key, inks, marked: columns});
  if (queries) rowLabels(context, grid, units, {x: grid.x - edge - 1, space: space.query, inks, marked: rows});
  context.strokeStyle = inks.line;
  context.lineWidth = 1;
  context.strokeRect(grid.x - .5, grid.y - .5, grid.width + 1, grid.height + 1);
  if (titles) axisTitles(context, grid, {keyY: grid.y - edge - space.key - 14, queryX: grid.x - edge - space.query - 16,
    inks});
}

// "layer 3, head 7, step 20": the place of a reading.
export function readingPlace(entry, step) { return `${entryTitle(entry)}, step ${step}`; }

// A key that changes when a reading no longer applies: sentence, step and run of each frame, and `more`.
export function readingKey(frames, ...more) {
  return JSON.stringify([frames.map(({run, probe, step}) => [run, probe, step]), ...more]);
}

// "layer 3, head 7, “the” → “film”: 0.0312 ± 0.0007"
export function cellWords(title, query, key, value, half, more = '') {
  const shown = valueWithStep(value, half), averaged = query.block ? 'mean ' : '';
  return `${title}, ${quotedToken(query.label)} → ${quotedToken(key.label)}: ${averaged}${shown}${more}`;
}

// The rank of a key in its row by attribution, largest first. Ties share a rank; if all keys tie, there is none.
export function rankWords(ranks, n, query, key) {
  const row = ranks?.subarray(query * n, (query + 1) * n), mine = row?.[key];
  if (!mine) return '';
  let above = 0, same = 0, all = 0;
  for (const rank of row) { all += rank > 0; above += rank > mine; same += rank === mine; }
  if (same === all && all > 1) return ', tied with all other keys of its row';
  return `, ${same > 1 ? 'tied ' : ''}${ordinal(above + 1)} of ${all}`;
}
