// Panel 'patches': an image with the patch grid of a vision transformer. Next to it: the attention from the chosen
// patch to each patch, and the saliency of each patch.
import {entryTitle, headCount, isGuided, layersOf, mapOf, pooledRow} from '../state/derive.js';
import {colourScale, colourScaleOf, colourTable, paintScale, shortNumber, valueWithStep} from '../lib/colour.js';
import {CellGrid, CellPainter, doubleStroke, fitText, inksOf, overlayInks} from '../lib/canvas.js';
import {CellStage} from '../lib/cells.js';
import {elementOf, fillChoice, choiceOf, labelled, tickBox} from '../lib/controls.js';
import {signalOf} from '../state/signaldata.js';
import {drawTarget} from './overlays.js';
import {largestOf} from './tokenmap.js';

const patchKeys = ['run', 'probe', 'step', 'entry', 'row', 'overlays', 'palette', 'theme', 'frames', 'meta', 'size'];
const patchGap = 24, patchTitle = 20, patchLegend = 48, patchTallest = 300, patchStacks = 460, patchThree = 760;
const patchTitleWidth = 240, imageOpacity = .4;

// [value, title] of the entries to choose from, including an entry chosen elsewhere, such as a mean over some heads.
function patchEntries(frame, chosen) {
  const layers = layersOf(frame, 'attention'), heads = Array.from({length: headCount(frame, 'attention')}, (_, h) => h);
  const entries = [{kind: 'rollout'}, {kind: 'all'}, ...layers.map(layer => ({kind: 'heads', layer})),
    ...layers.flatMap(layer => heads.map(head => ({kind: 'head', layer, head})))];
  const titles = entries.map(entryTitle), at = titles.indexOf(entryTitle(chosen));
  if (at < 0) return {entries: patchOptions([chosen, ...entries]), value: JSON.stringify(chosen)};
  return {entries: patchOptions(entries), value: JSON.stringify(entries[at])};
}

function patchOptions(entries) { return entries.map(entry => [JSON.stringify(entry), entryTitle(entry)]); }

// Mixes a colour with the grey level of the pixel below it.
function withPixel(colour, pixel) {
  const part = (v, at) => (v >> at) & 255, grey = (part(pixel, 0) + part(pixel, 8) + part(pixel, 16)) / 3;
  const mixed = at => Math.round((1 - imageOpacity) * part(colour, at) + imageOpacity * grey) << at;
  return ((255 << 24) | mixed(16) | mixed(8) | mixed(0)) >>> 0;
}

class PatchesPanel {
  constructor(ctx) {
    this.ctx = ctx;
    this.cells = new CellStage({text: cell => this.cellText(cell), announce: ctx.announce,
      choose: cell => ctx.state.set({row: this.tokenOf(cell)}), first: () => this.cellOf(this.query) ?? {row: 0,
        column: 0}});
    const {el: stage, sharp, tip} = this.cells;
    Object.assign(this, {stage, sharp, tip, painter: new CellPainter(), pixels: new CellPainter()});
    this.el = elementOf('section', 'sv-panel sv-patches');
    this.el.setAttribute('aria-label', 'Patches');
    this.head = elementOf('div', 'sv-head', elementOf('h3', 'sv-title', 'Patches'));
    this.entries = choiceOf([], entry => ctx.state.set({entry: JSON.parse(entry)}));
    this.queries = choiceOf([], row => ctx.state.set({row: Number(row)}));
    this.over = tickBox(image => ctx.state.set({overlays: {...ctx.state.overlays, image}}));
    this.head.append(labelled('Attention of', this.entries), labelled('From', this.queries),
      labelled('Overlay on the image', this.over, 'sv-check'));
    this.note = elementOf('p', 'sv-note');
    this.words = elementOf('p', 'sv-note sv-words');
    this.el.append(this.head, this.note, this.stage, this.tip, this.words);
  }

  tokenOf({row, column}) { return this.grid.first + row * this.grid.columns + column; }

  cellOf(token) {
    const k = token - this.grid.first;
    return k < 0 ? null : {row: Math.floor(k / this.grid.columns), column: k % this.grid.columns};
  }

  nameOf(token) {
    const cell = this.cellOf(token);
    if (cell) return `patch ${cell.row}, ${cell.column}`;
    return token ? `extra token ${token}` : '[CLS]';
  }

  update(changed) {
    if (!patchKeys.some(key => changed.has(key))) return;
    const {store, state} = this.ctx;
    this.frame = store.frameOf(state);
    const why = this.load();
    this.note.textContent = why;
    this.note.hidden = !why;
    for (const el of [this.stage, this.tip, this.words]) el.hidden = Boolean(why);
    if (why || !this.stage.clientWidth) return;
    this.inks = inksOf(this.el, state.theme);
    this.draw();
    this.words.textContent = this.sayWords();
  }

  // Prepares what is drawn; returns a sentence on what is missing.
  load() {
    const {store, state} = this.ctx, {frame} = this;
    if (!frame) return store.why(state.run, state.probe, store.stepOf(state)) || 'Nothing has been recorded yet.';
    this.grid = frame.info?.patches;
    this.shown = signalOf(frame);
    if (!this.grid || !this.shown?.input) return 'No image with patches was recorded at this step.';
    const count = this.grid.first + this.grid.rows * this.grid.columns;
    const {entries, value} = patchEntries(frame, state.entry);
    fillChoice(this.entries, entries, value);
    this.query = state.row !== null && state.row < count ? state.row : pooledRow(frame) ?? 0;
    fillChoice(this.queries, Array.from({length: count}, (_, k) => [String(k), this.nameOf(k)]), this.query);
    const map = mapOf(frame, state.entry, 'attention');
    if (!map.values) return map.note;
    if (map.pooled > 1) return this.missingFull();
    this.map = map;
    this.row = map.values.subarray(this.query * count, (this.query + 1) * count);
    this.target = this.targetOf(count);
    this.over.checked = state.overlays.image ?? false;
    this.saliency = this.shown.saliency && this.summed(this.shown.saliency);
    return '';
  }

  // The attention that a guided head's pattern assigns to each key of the chosen query; null where there is none.
  targetOf(count) {
    const {entry} = this.ctx.state;
    if (entry.kind !== 'head' || !isGuided(this.frame, entry.layer, entry.head)) return null;
    const target = mapOf(this.frame, entry, 'target');
    if (!target.values || target.pooled > 1) return null;
    const row = target.values.subarray(this.query * count, (this.query + 1) * count);
    return row.some(v => v > 0) ? row : null;
  }

  // Large patch grids are stored as thumbnails; the full map of a chosen head is requested.
  missingFull() {
    const {state, request} = this.ctx, {run, probe, step} = this.frame, {kind, layer, head} = state.entry;
    if (kind !== 'head') return 'The maps of this image are stored as thumbnails; choose a single head.';
    const key = JSON.stringify([run, probe, step, layer, head]);
    if (this.requested !== key) request({kind: 'map', run, probe, step, layer, head});
    this.requested = key;
    return 'The full map is not stored here; connect a kernel to load it.';
  }

  // The patch that contains pixel k of the image.
  patchOf(k) {
    const {shown: {rows, columns}, grid} = this, down = Math.floor(Math.floor(k / columns) * grid.rows / rows);
    return down * grid.columns + Math.floor((k % columns) * grid.columns / columns);
  }

  // {values, half} of each patch: sums over its pixels.
  summed(map) {
    const count = this.grid.rows * this.grid.columns, values = new Float32Array(count), half = new Float32Array(count);
    map.values.forEach((v, k) => {
      values[this.patchOf(k)] += v;
      half[this.patchOf(k)] += map.half(k);
    });
    return {values, half};
  }

  layout() {
    const {shown, grid} = this, width = this.stage.clientWidth, count = this.saliency ? 3 : 2;
    const across = width < patchStacks ? 1 : width < patchThree ? 2 : count;
    const space = (width - 4 - (across - 1) * patchGap) / across;
    const side = Math.min(space, patchTallest * shown.columns / shown.rows), high = side * shown.rows / shown.columns;
    const slot = Math.min(space, Math.max(side, patchTitleWidth)), tall = patchTitle + high + patchLegend;
    const place = (i, rows, columns) => new CellGrid({x: 2 + (i % across) * (slot + patchGap),
      y: Math.floor(i / across) * tall + patchTitle, width: side, height: high,
      columns: {count: columns, from: 0, span: columns}, rows: {count: rows, from: 0, span: rows},
      ratio: window.devicePixelRatio || 1});
    const grids = Array.from({length: count}, (_, i) => place(i, grid.rows, grid.columns));
    const images = grids.map((_, i) => place(i, shown.rows, shown.columns));
    return {images, grids, slot, width, height: Math.ceil(count / across) * tall};
  }

  draw() {
    const {state} = this.ctx, {sharp, grid, inks, row} = this, {context} = sharp, place = this.layout();
    const onGrid = row.subarray(grid.first), limit = Math.max(...Array.from(onGrid).filter(Number.isFinite), 0);
    const scale = colourScaleOf({limit, palette: state.palette, theme: state.theme}), pixels = this.imageColours();
    sharp.size(place.width, place.height);
    this.pixels.paint(context, place.images[0], pixels);
    const maps = [{values: onGrid, scale, unit: 'attention', title: `attention from ${this.nameOf(this.query)}`}];
    if (this.saliency) maps.push(this.saliencyMap());
    maps.forEach((map, i) => this.paintMap(map, place.grids[i + 1], place.images[i + 1], pixels));
    ['image and its patches', ...maps.map(map => map.title)].forEach((title, i) => {
      const one = place.grids[i];
      this.drawLines(one);
      if (i < 2) this.drawRegion(one);
      if (i < 2 && this.target) drawTarget(context, one, this.target.subarray(grid.first), inks.theme);
      Object.assign(context, {font: inks.bold, fillStyle: inks.fg, textAlign: 'left', textBaseline: 'bottom'});
      context.fillText(fitText(context, title, place.slot), one.x, one.y - 4);
    });
    this.frameQuery(place.grids);
    sharp.el.setAttribute('aria-label', `Image divided into ${grid.rows} by ${grid.columns} patches, attention from `
      + `${this.nameOf(this.query)}${this.saliency ? ', and saliency of each patch' : ''}. `
      + 'Arrow keys move between patches, Enter chooses the patch.');
    sharp.el.salviz = {grids: place.grids, values: onGrid, scale, saliency: this.saliency?.values};
    this.cells.show(place.grids, inks.theme, `${JSON.stringify(state.entry)} ${this.query} ${this.frame.step}`);
  }

  saliencyMap() {
    const {values} = this.saliency, {name} = this.shown.saliency;
    const scale = colourScaleOf({limit: largestOf(values), signed: true, theme: this.ctx.state.theme});
    return {values, scale, unit: `${name} (square-root scale)`, title: `${name}, summed over each patch`};
  }

  // Draws a map on its grid, or blended with the image, and its colour scale.
  paintMap({values, scale, unit}, grid, image, pixels) {
    const {context} = this.sharp, colours = paintScale(scale, values, new Uint32Array(values.length));
    if (this.over.checked)
      this.pixels.paint(context, image, pixels.map((pixel, k) => withPixel(colours[this.patchOf(k)], pixel)));
    else this.painter.paint(context, grid, colours);
    colourScale(context, scale, {x: grid.x, y: grid.y + grid.height + 20, width: Math.min(220, grid.width), title: unit,
      inks: this.inks});
  }

  imageColours() {
    const {input: {values, channels}, low, high} = this.shown, table = colourTable('grey', 'dark');
    const part = v => Math.max(0, Math.min(255, Math.round(255 * (v - low) / (high - low || 1))));
    if (channels?.length !== 3) return Uint32Array.from(values, v => table[part(v)]);
    const [r, g, b] = channels;
    return Uint32Array.from(r, (_, k) => ((255 << 24) | (part(b[k]) << 16) | (part(g[k]) << 8) | part(r[k])) >>> 0);
  }

  drawLines(grid) {
    const {context} = this.sharp;
    context.strokeStyle = this.inks.muted;
    context.lineWidth = .5;
    for (let r = 0; r <= grid.rows.count; r++) this.line(grid.x, grid.top(r), grid.x + grid.width, grid.top(r));
    for (let c = 0; c <= grid.columns.count; c++) this.line(grid.left(c), grid.y, grid.left(c), grid.y + grid.height);
  }

  line(x0, y0, x1, y1) {
    const {context} = this.sharp;
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
  }

  // The chosen patch is framed in all maps; a token that is not a patch has no place in them.
  frameQuery(grids) {
    const chosen = this.cellOf(this.query), path = new Path2D();
    if (!chosen) return;
    for (const grid of grids) {
      const {x, y, width, height} = grid.box(chosen.row, chosen.column);
      path.rect(x + 1, y + 1, width - 2, height - 2);
    }
    doubleStroke(this.sharp.context, path, {ink: this.inks.accent, halo: overlayInks(this.inks.theme).halo}, 2);
  }

  // {candidates, discarded} for the keys of the chosen query, where the chosen head has them.
  region() {
    const {entry} = this.ctx.state, names = {candidates: 'discard_candidates', discarded: 'discarded'};
    if (entry.kind !== 'head') return {};
    return Object.fromEntries(Object.entries(names).flatMap(([name, of]) => {
      const tensor = this.frame.get(of), i = tensor?.layers.indexOf(entry.layer) ?? -1;
      if (i < 0 || tensor.shape.at(-1) !== this.row.length) return [];
      const from = this.query * this.row.length;
      return [[name, tensor.bit(i, entry.head).subarray(from, from + this.row.length)]];
    }));
  }

  // Discarded keys are crossed out.
  drawRegion(grid) {
    const {discarded} = this.region(), path = new Path2D();
    discarded?.forEach((is, token) => {
      const cell = this.cellOf(token);
      if (!is || !cell) return;
      const {x, y, width, height} = grid.box(cell.row, cell.column), by = Math.min(width, height) / 4;
      for (const sign of [1, -1]) {
        path.moveTo(x + width / 2 - by, y + height / 2 - sign * by);
        path.lineTo(x + width / 2 + by, y + height / 2 + sign * by);
      }
    });
    doubleStroke(this.sharp.context, path, overlayInks(this.inks.theme), 1.25);
  }

  sayWords() {
    const {grid, row, map, query} = this, {candidates, discarded} = this.region(),
      total = x => x.reduce((a, b) => a + b, 0);
    const others = Array.from({length: grid.first}, (_, k) => `${this.valueOf(k)} to ${this.nameOf(k)}`);
    const notes = others.length
      ? [`Attention from ${this.nameOf(query)} to tokens that are not patches: ${others.join(', ')}.`] : [];
    if (map.note) notes.push(`Attention rollout is computed ${map.note}; its rounding error is unknown.`);
    const are = n => `${n} ${n === 1 ? 'is' : 'are'}`;
    if (candidates) notes.push(`Of the ${row.length} keys of this query, ${are(total(candidates))} in the discard `
      + `region and ${are(total(discarded ?? []))} discarded (discarded patches are crossed out).`);
    notes.push(...this.guidanceWords());
    notes.push('Colours show the square root of attention, scaled to the patch that this query attends to most.');
    if (this.over.checked) notes.push('The colours are blended with the image, so they look different from the scale.');
    return notes.join(' ');
  }

  guidanceWords() {
    const {entry} = this.ctx.state;
    if (entry.kind !== 'head' || !isGuided(this.frame, entry.layer, entry.head)) return [];
    if (!this.target) return ['This head is guided, but its pattern is empty for this query.'];
    const fraction = this.target.reduce((sum, v, token) => sum + (v > 0 ? this.row[token] : 0), 0);
    return ['This head is guided towards the dotted keys, '
      + `which receive ${shortNumber(fraction)} of this query’s attention.`];
  }

  valueOf(token) {
    return valueWithStep(this.row[token], this.map.halfStep(this.query * this.row.length + token));
  }

  cellText(cell) {
    const token = this.tokenOf(cell), {candidates, discarded} = this.region();
    const dropped = discarded?.[token] ? ' (discarded)' : candidates?.[token] ? ' (in the discard region)' : '';
    const k = token - this.grid.first, {saliency} = this;
    const salient = saliency ? `; ${this.shown.saliency.name} of this patch `
      + valueWithStep(saliency.values[k], saliency.half[k]) : '';
    return `${this.nameOf(this.query)} → ${this.nameOf(token)}: attention ${this.valueOf(token)}${dropped}${salient}`;
  }
}

export const patchesPanel = {
  name: 'patches', title: 'Patches', order: 75, shows: 'signals', image: 'patch_attention', page: 'below',
  help: {says: [
    'The image divided into patches, the attention from the chosen patch to each of them, and their saliency.',
    'Click a patch to choose it; use the lists to choose heads, means, rollout and tokens that are not patches.'],
  keys: [['← ↑ ↓ →', 'move between patches'], ['Enter', 'choose the patch']]},
  fits: frame => Boolean(frame?.info?.patches && frame.get('attention') && frame.get('input')),
  view: PatchesPanel,
};
