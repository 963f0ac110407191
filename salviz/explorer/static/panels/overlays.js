// What is drawn over a map, and its description: AD-DROP's candidate discard region and discarded positions, and the
// pattern of attention guidance.
import {layersOf, lossFractions, mapOf, methodArgs, methodNames, patternFractions} from '../state/derive.js';
import {namedPattern} from '../state/derive.js';
import {targetRow, mayBeMarked, ranksOfHead, regionOf, saliencyOf, sallmTarget, targetOf} from '../state/derive.js';
import {remainingCount} from '../lib/maths.js';
import {percent, shortNumber} from '../lib/colour.js';
import {doubleStroke, overlayInks} from '../lib/canvas.js';
import {elementOf, labelled, tickBox} from '../lib/controls.js';

const overlayTitles = {
  candidates: 'Candidate region', discarded: 'Discarded positions', target: 'Pattern target',
  residual: 'Residual (attention − pattern)', saliency: 'Saliency strips', regularised: 'SalLM target and row',
};

// Masks follow the displayed labels: a word is marked if any pair of its pieces is.
function unitMask(mask, n, units) {
  const count = units.length, out = new Uint8Array(count * count);
  units.forEach((query, r) => units.forEach((key, c) => {
    out[r * count + c] = Number(query.tokens.some(q => key.tokens.some(k => mask[q * n + k])));
  }));
  return out;
}

// The marks of one head on the displayed units: {candidates, discarded, target [numbers], recomputed, counts, pattern}.
export function overlaysOf(frame, state, entry, probe, units) {
  if (!frame || entry.kind !== 'head') return null;
  const n = probe.tokens.length, count = units.length,
    region = regionOf(frame, state, entry.layer, entry.head, probe.is_special);
  const target = targetOf(frame, state, entry.layer, entry.head, probe), marks = {recomputed: region.recomputed};
  for (const name of ['candidates', 'discarded']) {
    const mask = region[name];
    marks[name] = mask?.length === n * n ? unitMask(mask, n, units) : null;
    marks[`${name}Count`] = marks[name] ? mask.reduce((a, b) => a + b, 0) : 0;
  }
  marks.allowedCount = region.allowed ? region.allowed.reduce((a, b) => a + b, 0) : n * n;
  marks.tied = tiedRegion(frame, region, entry, n);
  marks.ties = marks.tied?.rows && !region.recomputed ? unitMask(marks.tied.mask, n, units) : null;
  if (!target || target.n !== n) return marks;
  marks.pattern = target.recomputed ? target.name : namedPattern(frame, entry.layer,
    entry.head) ?? patternWords(target.values, n, probe.labels);
  marks.target = Float32Array.from({length: count * count}, (_, k) => {
    const queries = units[Math.floor(k / count)].tokens, keys = units[k % count].tokens;
    return queries.reduce((sum, q) => sum + keys.reduce((s, j) => s + target.values[q * n + j], 0), 0) / queries.length;
  });
  return marks;
}

// Rows of the region with ties at the threshold, their candidates and how many there are; null without ranks. All keys
// that tie at the threshold are candidates; in a row that the prediction does not depend on, all keys are.
export function tiedRegion(frame, region, entry, n) {
  const ranks = ranksOfHead(frame, entry.layer, entry.head), {candidates} = region;
  if (!ranks || candidates?.length !== n * n) return null;
  const mask = new Uint8Array(n * n);
  let rows = 0, cells = 0;
  for (let r = 0; r < n; r++) {
    const row = ranks.subarray(r * n, (r + 1) * n), inside = row.filter((_, c) => candidates[r * n + c]),
      allowed = row.filter(Boolean);
    const many = inside.length > 1 && inside.length === allowed.length && inside.every(rank => rank === inside[0]);
    if (!many && !hasTooMany(frame, inside.length, allowed.length)) continue;
    rows++;
    cells += inside.length;
    mask.set(candidates.subarray(r * n, (r + 1) * n), r * n);
  }
  return {rows, cells, mask, of: n};
}

function hasTooMany(frame, candidates, allowed) {
  const {p, attribution} = methodArgs(frame, 'ADDrop');
  const most = Math.max(1, allowed - remainingCount(allowed, p));
  return Number.isFinite(p) && attribution !== 'random' && candidates > most;
}

// Names a recorded pattern by its shape.
export function patternWords(values, n, labels) {
  const one = v => Math.abs(v - 1) < .01, inner = Array.from({length: n - 1}, (_, i) => i);
  if (inner.every(i => one(values[i * n + i + 1]))) return 'next';
  if (inner.every(i => one(values[(i + 1) * n + i]))) return 'prev';
  if (inner.every(i => one(values[i * n])) && one(values[(n - 1) * n])) return 'first';
  const pointed = labels.filter((_, k) => values[k] > 0),
    same = values.every((v, k) => Math.abs(v - values[k % n]) < .01);
  return same && pointed.length && pointed.length < n ? `to ${[...new Set(pointed)].join(' ')}` : 'custom pattern';
}

// Is the pattern of a head positive at every position? Then none of its attention can be off the pattern.
export function patternEverywhere(frame, layer, head) {
  const target = mapOf(frame, {kind: 'head', layer, head}, 'target');
  return Boolean(target.values) && target.pooled === 1 && target.values.every(v => v > 0);
}

// Keys that no head of the layer can attend to (causal mask or attention window); null where there are none.
const blockedOnce = new WeakMap();

export function blockedKeys(frame, layer) {
  const tensor = frame.get('attention'), i = tensor?.layers.indexOf(layer) ?? -1;
  if (i < 0) return null;
  if (!blockedOnce.has(frame)) blockedOnce.set(frame, new Map());
  const cached = blockedOnce.get(frame);
  if (cached.has(layer)) return cached.get(layer);
  const blocked = new Uint8Array(tensor.mapSize).fill(1);
  let left = blocked.length;
  for (let head = 0; head < tensor.shape[1] && left; head++) {
    const codes = tensor.codes(i, head);
    for (let k = 0; k < blocked.length; k++) {
      left -= blocked[k] & Number(codes[k] > 0);
      blocked[k] &= Number(codes[k] === 0);
    }
  }
  cached.set(layer, left ? blocked : null);
  return left ? blocked : null;
}

const haloCell = 14;

// On small cells, halos would hide the map: there the lines are thin and have one colour.
function overlayStroke(context, path, grid, theme, width) {
  const inks = overlayInks(theme);
  if (Math.min(grid.pitch, grid.rowPitch) >= haloCell) return void doubleStroke(context, path, inks, width);
  Object.assign(context, {strokeStyle: inks.ink, lineWidth: 1, lineCap: 'square'});
  return void context.stroke(path);
}

// A box around adjacent candidates in a row: regions are chosen per row, and outlines merged over several rows would be
// ambiguous. On small cells there is no space between two boxes.
export function drawRegion(context, grid, mask, theme) {
  const count = grid.columns.count, path = new Path2D(), [r0, r1] = grid.rowsInView(), [c0, c1] = grid.columnsInView();
  const inset = Math.min(grid.pitch, grid.rowPitch) >= haloCell ? 1.5 : 0;
  for (let r = r0; r < r1; r++) {
    for (let c = c0, start = -1; c <= c1; c++) {
      const inside = c < c1 && mask[r * count + c] > 0;
      if (inside && start < 0) start = c;
      if (inside || start < 0) continue;
      const [x, y] = [grid.left(start) + inset, grid.top(r) + inset];
      path.rect(x, y, grid.left(c) - inset - x, grid.top(r + 1) - inset - y);
      start = -1;
    }
  }
  grid.clipped(context, () => overlayStroke(context, path, grid, theme, 2));
}

function eachCell(grid, draw) {
  const [r0, r1] = grid.rowsInView(), [c0, c1] = grid.columnsInView();
  for (let r = r0; r < r1; r++) for (let c = c0; c < c1; c++) draw(r, c, r * grid.columns.count + c);
}

export function drawCrosses(context, grid, mask, theme) {
  const path = new Path2D(), arm = Math.max(1, Math.min(6, .27 * Math.min(grid.pitch, grid.rowPitch)));
  eachCell(grid, (r, c, k) => {
    if (!mask[k]) return;
    const [x, y] = grid.middle(r, c);
    path.moveTo(x - arm, y - arm);
    path.lineTo(x + arm, y + arm);
    path.moveTo(x - arm, y + arm);
    path.lineTo(x + arm, y - arm);
  });
  grid.clipped(context, () => overlayStroke(context, path, grid, theme, 1.5));
}

// Dots whose area shows how much of a row's attention the pattern assigns to that key.
export function drawTarget(context, grid, target, theme) {
  const {ink, halo} = overlayInks(theme), most = .24 * Math.min(grid.pitch, grid.rowPitch);
  grid.clipped(context, () => eachCell(grid, (r, c, k) => {
    if (!(target[k] > 0)) return;
    const [x, y] = grid.middle(r, c), radius = Math.max(.8, Math.min(8, most) * Math.sqrt(Math.min(1, target[k])));
    for (const [colour, size] of [[halo, radius + 1], [ink, radius]]) {
      context.fillStyle = colour;
      context.beginPath();
      context.arc(x, y, size, 0, 2 * Math.PI);
      context.fill();
    }
  }));
}

const hatchedCell = 6, hatchLines = [-.45, 0, .45];

// Tied cells are hatched one by one, where there is room for it.
export function tiesPath(grid, mask) {
  const path = new Path2D(), inside = v => Math.max(-.5, Math.min(.5, v));
  if (Math.min(grid.pitch, grid.rowPitch) < hatchedCell) return path;
  eachCell(grid, (r, c, k) => {
    if (!mask[k]) return;
    const {width, height} = grid.box(r, c), [x, y] = grid.middle(r, c);
    for (const shift of hatchLines) {
      const [from, to] = [inside(-.5 - shift), inside(.5 - shift)];
      path.moveTo(x + width * from, y + height * (from + shift));
      path.lineTo(x + width * to, y + height * (to + shift));
    }
  });
  return path;
}

function drawTies(context, grid, mask, theme) {
  grid.clipped(context, () => overlayStroke(context, tiesPath(grid, mask), grid, theme, .75));
}

export function drawOverlays(context, grid, marks, shown, theme) {
  if (!marks) return;
  if (shown.candidates && marks.ties) drawTies(context, grid, marks.ties, theme);
  if (shown.candidates && marks.candidates) drawRegion(context, grid, marks.candidates, theme);
  if (shown.target && marks.target) drawTarget(context, grid, marks.target, theme);
  if (shown.discarded && marks.discarded) drawCrosses(context, grid, marks.discarded, theme);
}

// The overlays for which the frame has data.
export function overlaysIn(frame, state) {
  if (!frame) return new Set();
  const has = name => frame.names.some(recorded => recorded.split('/')[0] === name),
    guided = has('pattern_target') || Boolean(state.whatIf?.pattern);
  const region = has('discard_candidates') || Boolean(state.whatIf && has('attribution_ranks'));
  const available = {candidates: region, discarded: has('discarded') || region && Boolean(state.whatIf), target: guided,
    residual: has('pattern_target'),
    saliency: Boolean(saliencyOf(frame)), regularised: has('saliency_target')};
  return new Set(Object.keys(overlayTitles).filter(name => available[name]));
}

// Checkboxes for the overlays of the frame.
export function overlayChecks({state}) {
  const el = elementOf('div', 'sv-checks sv-overlays'), boxes = {};
  el.setAttribute('role', 'group');
  el.setAttribute('aria-label', 'overlays on the map');
  for (const [name, title] of Object.entries(overlayTitles)) {
    boxes[name] = tickBox(on => state.set({overlays: {...state.overlays, [name]: on}}));
    boxes[name].dataset.overlay = name;
    el.append(labelled(title, boxes[name], 'sv-check'));
  }
  const update = frame => {
    const available = overlaysIn(frame, state);
    el.hidden = !available.size;
    for (const [name, box] of Object.entries(boxes)) {
      box.parentElement.hidden = !available.has(name);
      box.checked = Boolean(state.overlays[name]);
    }
  };
  return {el, update};
}

function regionWords(frame, state, marks) {
  if (!marks.candidates) return '';
  const of = marks.recomputed ? state.whatIf : methodArgs(frame, 'ADDrop');
  const args = ['p', 'q'].filter(name => Number.isFinite(of[name])).map(name => `${name} = ${shortNumber(of[name])}`);
  const ties = marks.tied?.rows && !marks.recomputed ? `, ${marks.tied.cells} of them in rows with ties` : '';
  const counts = `${marks.candidatesCount} of ${marks.allowedCount} positions are candidates (outlined${ties})`;
  const drawn = marks.discarded ? `, ${marks.discardedCount} of them discarded (crosses)` : '';
  const draw = Number.isFinite(frame.info.seed) && marks.discarded
    ? `: one random draw (seed ${frame.info.seed}, step ${frame.info.drawn_step})` : '';
  const how = marks.recomputed ? 'What-if: ' : '';
  return `${how}${counts}${drawn}${draw}${args.length ? ` (${args.join(', ')})` : ''}.${ties && tieWords(marks.tied)}`;
}

function tieWords({rows, of}) {
  const where = rows === of ? 'every row' : rows === 1 ? 'one row' : `${rows} of ${of} rows`;
  return ` Ties: in ${where}, attributions tie at the threshold; all tied positions are candidates (hatched).`;
}

function patternLossWords(frame, entry, marks) {
  if (!marks.target) return '';
  const losses = lossFractions(frame), i = losses?.layers.indexOf(entry.layer) ?? -1;
  const pattern = `Pattern: ${marks.pattern}.`;
  if (i < 0 || !losses.guided[i * losses.heads + entry.head])
    return `${pattern} This head is not guided in training.`;
  const at = i * losses.heads + entry.head, overlap = patternFractions(frame)[at];
  const everywhere = patternEverywhere(frame, entry.layer, entry.head) ? ' It covers every position.' : '';
  const follows = Number.isFinite(overlap)
    ? ` ${percent(overlap)} of the head’s attention is on the pattern’s positions.` : everywhere;
  return `${pattern}${follows} This head contributes ${percent(losses.fractions[at])} of the sentence’s pattern loss.`;
}

// One or two sentences that describe the overlays, or say why there are none.
export function overlayWords(frame, state, entry, marks) {
  if (!frame) return '';
  const methodRegion = overlaysIn(frame, state).has('candidates'), guides = overlaysIn(frame, state).has('target');
  if (!marks) return methodRegion || guides ? `Choose one head to see its ${methodRegion ? 'discard region'
    : 'pattern'}.` : '';
  const notes = [];
  if (methodRegion) notes.push(regionWords(frame, state, marks) || missingRegion(frame, entry));
  if (guides) notes.push(patternLossWords(frame, entry, marks) || 'This head is not guided.');
  if (methodNames(frame).includes('ADDrop') && !methodRegion)
    notes.push(`No discard region at this step${plainPhase(frame)}.`);
  return notes.join(' ');
}

function plainPhase({info: {phase}}) {
  return phase && !phase.includes('ad_drop') ? ': in this epoch, cross-tuning uses plain fine-tuning' : ''; }

function missingRegion(frame, entry) {
  const layers = layersOf(frame, 'discard_candidates');
  if (!layers.includes(entry.layer))
    return `Layer ${entry.layer} has no discard region; layers with one: ${layers.join(', ')}.`;
  return 'The discard region of this head is not stored here; for long sentences, only chosen heads have one.';
}

// SalLM's target and the attention row that it trains, each normalised over the tokens that may be marked.
export function sallmRows(frame, state, special, rowMap) {
  const target = sallmTarget(frame, state, special), at = targetRow(frame);
  if (!target || !rowMap?.values || rowMap.n !== special.length || at === null) return null;
  const n = rowMap.n, row = rowMap.values.slice(at * n, (at + 1) * n), counts = mayBeMarked(frame, special);
  const normal = values => {
    const total = values.reduce((sum, v, i) => sum + (counts[i] ? v : 0), 0);
    return Float32Array.from(values, (v, i) => !counts[i] ? NaN : total > 0 ? v / total : 0);
  };
  return {target: normal(target.values), row: normal(row), recomputed: target.recomputed};
}
