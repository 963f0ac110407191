// Panel 'map': the map of the chosen entry with its tokens. Pointer and keys read cells and choose rows and tokens; the
// wheel zooms.
import {attentionName, targetRow, entryTitle, layersOf, mapOf} from '../state/derive.js';
import {pooledRow, ranksOfHead, saliencyOf} from '../state/derive.js';
import {attentionLimit, colourScale, colourScaleOf, cssColour, scaleColour, shortNumber} from '../lib/colour.js';
import {ordinal, valueWithStep} from '../lib/colour.js';
import {CellGrid, CellPainter, doubleStroke, inksOf, labelWidth, overlayInks, quotedToken} from '../lib/canvas.js';
import {CellStage, spokenText} from '../lib/cells.js';
import {drawOverlays, overlayChecks, overlaysOf, overlayWords, sallmRows} from './overlays.js';
import {blankBlocked, cellWords, coloursOf, drawTokenMap, leastRanked, rankWords, scaleLimit} from './tokenmap.js';
import {readingKey, readingPlace, strongestValues, shownUnits, tiedAtTop, unitMap} from './tokenmap.js';
import {whatChoice} from './heads.js';
import {buttonOf, choiceOf, elementOf, labelled, rangeOf, tallest} from '../lib/controls.js';

const mapKeys = ['run', 'probe', 'step', 'entry', 'what', 'row', 'tokens', 'overlays', 'hideSpecial', 'mergeWords',
  'top', 'threshold', 'scale', 'ownScale',
  'palette',
  'whatIf', 'theme', 'frames', 'meta', 'size'];
const stripSize = 9, tallestMap = 620, widestCell = 46, readableCell = 14, sallmStrip = 14, longestLabel = 96;
const mapHelp =
  'Use the arrow keys to move between cells, Enter to choose the row, Space to choose the key, S to read out the '
  + 'strips, plus and minus to zoom, and 0 to show the whole map.';

class MapPanel {
  constructor(ctx) {
    this.ctx = ctx;
    this.zoom = null;
    this.requested = new Set();
    this.painter = new CellPainter();
    this.cells = new CellStage({text: cell => this.cellText(cell), announce: ctx.announce,
      spoken: cell => this.spokenCell(cell), first: () => this.firstCell(),
      pointed: (x, y) => this.pointed(x, y), moved: cell => this.followCursor(cell), keys: this.keys()});
    const {el: stage, sharp, tip} = this.cells;
    Object.assign(this, {stage, sharp, tip});
    this.build();
    this.listen();
  }

  build() {
    const {state} = this.ctx;
    this.el = elementOf('section', 'sv-panel sv-map');
    this.el.setAttribute('aria-label', 'attention map');
    this.title = elementOf('h3', 'sv-title');
    this.what = whatChoice(this.ctx);
    this.zooms = elementOf('span', 'sv-zooms');
    this.zooms.append(buttonOf('−', 'zoom out', () => this.zoomBy(1.5)),
      buttonOf('+', 'zoom in', () => this.zoomBy(1 / 1.5)),
      buttonOf('All', 'show the whole map', () => this.resetZoom()));
    const head = this.head = elementOf('div', 'sv-head');
    head.append(this.title, this.what.el, this.zooms);
    this.sum = elementOf('p', 'sv-rowsum');
    this.words = elementOf('p', 'sv-note sv-words');
    this.note = elementOf('p', 'sv-note');
    this.checks = overlayChecks(this.ctx);
    this.scale = choiceOf([['map', 'maximum of this map'], ['frame', 'maximum of all heads'], ['unit', '0 to 1']],
      scale => state.set({scale}));
    this.top = rangeOf(20, top => state.set({top}));
    this.topText = elementOf('span', 'sv-value');
    this.threshold = rangeOf(100, part => state.set({threshold: (part / 100) ** 2 * this.limit}));
    this.thresholdText = elementOf('span', 'sv-value');
    const controls = elementOf('div', 'sv-controls');
    const fields = [['Keys per row', this.top, this.topText], ['Hide below', this.threshold, this.thresholdText]];
    for (const [text, range, value] of fields) {
      const field = labelled(text, range);
      field.append(value);
      controls.append(field);
    }
    controls.append(labelled('Colour scale up to', this.scale));
    this.el.append(head, this.note, this.stage, this.tip, this.sum, this.words, this.checks.el, controls);
  }

  update(changed) {
    if (!mapKeys.some(key => changed.has(key))) return;
    const {store, state} = this.ctx;
    this.frame = store.frameOf(state);
    this.probe = store.probe(state.run, state.probe);
    this.entry = state.entry;
    // The heads panel offers this choice already.
    this.what.update(this.frame);
    this.what.el.hidden = Boolean(this.el.closest('.salviz')?.querySelector('.sv-heads:not([hidden])'))
      || !this.what.both;
    this.title.textContent = entryTitle(this.entry);
    this.checks.update(this.frame);
    const why = this.load();
    this.note.textContent = why;
    this.note.hidden = !why;
    const isShown = Boolean(this.shown);
    for (const el of [this.stage, this.tip, this.sum, this.words, this.zooms]) el.hidden = !isShown;
    if (!isShown || !this.stage.clientWidth) return;
    this.say();
    this.draw();
  }

  // Prepares what is drawn; returns a sentence on what is missing.
  load() {
    const {store, state} = this.ctx, {frame, probe, entry} = this;
    this.shown = null;
    if (!probe) return 'No sentence to show.';
    if (!frame) return store.why(state.run, state.probe, store.stepOf(state))
      || 'Nothing has been recorded for this sentence yet.';
    const map = mapOf(frame, entry, state.what === 'attribution' ? 'attribution' : 'attention');
    if (!map.values) return map.note;
    this.map = map;
    this.units = shownUnits(probe, state, map);
    this.marks = map.pooled > 1 ? null : overlaysOf(frame, state, entry, probe, this.units);
    const residual = Boolean(state.overlays.residual && state.what !== 'attribution' && this.marks?.target),
      shown = unitMap(map, this.units);
    if (residual) shown.values = shown.values.map((v, k) => v - this.marks.target[k]);
    this.kind = residual ? 'residual' : map.signed ? 'attribution' : 'attention';
    shown.values = blankBlocked(shown.values, frame, entry, map, this.units);
    this.shown = shown;
    const limit = scaleLimit(frame, this.kind, shown.values, state);
    this.limit = this.kind === 'attention' ? attentionLimit(limit, probe.tokens.length) : limit;
    this.colours = colourScaleOf({limit: this.limit, signed: residual || map.signed, palette: state.palette,
      theme: state.theme});
    const last = layersOf(frame, 'attention').at(-1);
    const regularised = state.overlays.regularised && mapOf(frame, {kind: 'heads', layer: last}, 'attention');
    this.sallm = map.pooled === 1 && regularised ? sallmRows(frame, state, probe.is_special, regularised) : null;
    this.sallmLayer = last;
    this.saliency = state.overlays.saliency && map.pooled === 1 ? this.unitSaliency() : null;
    return this.missingFull(map);
  }

  unitSaliency() {
    const saliency = saliencyOf(this.frame);
    if (!saliency) return null;
    const values = this.units.map(u => u.tokens.reduce((sum, k) => sum + saliency.values[k], 0));
    const {store, state} = this.ctx, {limit: least, name: of} = store.saliencyScale(state);
    const ordinary = values.filter((v, k) => Number.isFinite(v) && !this.units[k].special).map(Math.abs);
    return {values, name: saliency.name, of,
      scale: colourScaleOf({limit: Math.max(least, ...ordinary), signed: true, theme: state.theme})};
  }

  // Long sentences are stored as thumbnails; the full map of a chosen head is requested once.
  missingFull(map) {
    if (!(map.pooled > 1)) return map.note;
    const {state} = this.ctx, {run, probe, step} = this.frame, {kind, layer, head} = this.entry;
    const size = Math.ceil(this.probe.tokens.length / map.pooled);
    const notice = `Thumbnail: each cell is the ${state.what === 'attribution' ? 'strongest value'
      : 'mean'} of ${size} × ${size} positions.`;
    if (kind !== 'head') return `${notice} Means over heads are computed from thumbnails.`;
    const key = JSON.stringify([run, probe, step, layer, head]);
    if (!this.requested.has(key)) {
      this.requested.add(key);
      this.ctx.request({kind: 'map', run, probe, step, layer, head});
    }
    return `${notice} The full map is not stored here; connect a kernel to load it.`;
  }

  say() {
    const {state} = this.ctx, {frame, entry} = this;
    this.words.textContent = [overlayWords(frame, state, entry, this.marks),
      this.sallm ? this.sallmWords() : '', this.topWords()].filter(Boolean).join(' ');
    this.words.hidden = !this.words.textContent;
    this.sum.textContent = this.sumWords();
    this.sum.hidden = !this.sum.textContent;
    this.scale.value = state.scale === 'unit' && this.kind === 'attribution' ? 'frame' : state.scale;
    this.scale.options[2].disabled = this.kind === 'attribution';
    this.top.max = Math.min(40, this.units.length);
    this.top.value = state.top;
    this.topText.textContent = state.top ? `${state.top} largest` : 'all';
    this.top.setAttribute('aria-valuetext', this.topText.textContent);
    this.threshold.value = Math.round(100 * Math.sqrt(Math.min(1, state.threshold / (this.limit || 1))));
    this.thresholdText.textContent = state.threshold ? shortNumber(state.threshold) : 'none';
    this.threshold.setAttribute('aria-valuetext', this.thresholdText.textContent);
    this.sharp.el.setAttribute('aria-label',
      `${this.kind} of ${entryTitle(entry)}, ${this.units.length} by ${this.units.length}. ${mapHelp}`);
  }

  topWords() {
    if (!this.shown) return '';
    const {state} = this.ctx, {values, count} = this.shown;
    const rows = tiedAtTop(strongestValues(values, count, state, leastRanked(this.kind)), count, state);
    if (!rows) return '';
    return `Ties: in ${rows} of ${count} rows, several keys tie at rank ${state.top}; all of them are shown.`;
  }

  sallmWords() {
    const row = quotedToken(this.probe.labels[targetRow(this.frame)]);
    const tokens = this.frame.info?.task === 'causal_lm' ? 'the ordinary tokens of the prompt' : 'ordinary tokens';
    const target = `SalLM’s target${this.sallm.recomputed ? ' (what-if settings)' : ''}`;
    return `Below the map: ${target} and the row that is trained to match it (${row} in layer ${this.sallmLayer}, `
      + `mean over heads), both normalised over ${tokens}.`;
  }

  // "Sum of attention to “film” + “great”: from “the” 0.31 ± 0.01, mean over rows 0.22 ± 0.01."
  sumWords() {
    const {tokens} = this.ctx.state,
      columns = this.units.flatMap((u, c) => u.tokens.some(k => tokens.includes(k)) ? [c] : []);
    if (!columns.length || this.kind === 'residual') return '';
    const {values, count, half} = this.shown, finite = v => Number.isFinite(v) ? v : 0;
    const row = r => columns.reduce(([v, h], c) => [v + finite(values[r * count + c]), h + finite(half(r * count + c))],
      [0, 0]);
    const rows = this.units.map((_, r) => row(r)), mean = i => rows.reduce((sum, one) => sum + one[i], 0) / rows.length,
      chosen = this.rowUnit();
    const names = columns.length > 4 ? `${columns.length} chosen keys`
      : columns.map(c => quotedToken(this.units[c].label, 16)).join(' + ');
    const from = chosen >= 0 ? `from ${quotedToken(this.units[chosen].label, 20)} ${valueWithStep(...rows[chosen])}, `
      : '';
    return `Sum of ${this.kind} to ${names}: ${from}mean over rows ${valueWithStep(mean(0), mean(1))}.`;
  }

  rowUnit() {
    const {row} = this.ctx.state, token = row ?? pooledRow(this.frame);
    return this.units.findIndex(u => u.tokens.includes(token));
  }

  chosenColumns() {
    const {tokens} = this.ctx.state;
    return new Set(this.units.flatMap((u, c) => u.tokens.some(k => tokens.includes(k)) ? [c] : []));
  }

  window() {
    const count = this.units.length;
    if (this.zoom && this.zoom.count !== count) this.zoom = null;
    return this.zoom ?? {count, row: 0, column: 0, span: count};
  }

  // Positions of all parts, in CSS pixels.
  layout(inks) {
    const avail = this.stage.clientWidth, {count, row, column, span} = this.window(), {context} = this.sharp,
      labels = this.units.map(u => u.label);
    const query = Math.max(this.sallm ? 62 : 0, labelWidth(context, labels, inks.bold, Math.min(120, avail * .2)));
    const strip = this.saliency ? stripSize + 3 : 0, left = 16 + query + 6 + strip;
    const height = Math.min(tallestMap, Math.max(tallest(this.el, tallestMap), count * readableCell));
    const side = Math.min(avail - left - 3, height, Math.max(180, count * widestCell));
    // Leave room for all labels, including those out of view, so that the map does not move while it is dragged.
    const longest = labelWidth(context, labels, inks.bold, longestLabel),
      key = longest < longestLabel && longest <= side / span - 6 ? 12 : longest;
    const y = 15 + key + 6 + strip, below = y + side + (this.sallm ? 2 * (sallmStrip + 3) + 6 : 0);
    const grid = new CellGrid({x: left, y, width: side, height: side, columns: {count, from: column, span},
      rows: {count, from: row, span},
      ratio: window.devicePixelRatio || 1});
    return {grid, space: {key, query}, edge: 4 + strip, scaleY: below + 26, height: below + 52, width: avail};
  }

  draw() {
    const {state} = this.ctx, inks = inksOf(this.el, state.theme), {sharp} = this, row = this.rowUnit();
    const place = this.place = this.layout(inks), {grid, space, edge} = place;
    sharp.size(place.width, place.height);
    sharp.el.salviz = {grid, units: this.units, scale: this.colours};
    const values = strongestValues(this.shown.values, this.shown.count, state, leastRanked(this.kind)),
      columns = this.chosenColumns();
    const rows = new Set(state.row === null ? [] : [row]);
    drawTokenMap(sharp, this.painter, grid, {colours: coloursOf(values, this.colours), units: this.units, inks, space,
      edge, rows, columns});
    if (this.saliency) this.drawSaliency(inks);
    drawOverlays(sharp.context, grid, this.marks, state.overlays, state.theme);
    if (row >= 0) this.drawChosen(inks, row, columns);
    if (this.sallm) this.drawSallm(inks);
    this.drawScales(inks);
    this.cells.show([grid], state.theme, readingKey([this.frame], this.entry, this.kind));
  }

  drawSaliency(inks) {
    const {context} = this.sharp, {grid} = this.place, {values, scale} = this.saliency, gap = 3;
    const [c0, c1] = grid.columnsInView(), [r0, r1] = grid.rowsInView(),
      clip = (a, low, high) => Math.min(high, Math.max(low, a));
    for (let c = c0; c < c1; c++) {
      const x = clip(grid.left(c), grid.x, grid.x + grid.width),
        end = clip(grid.left(c + 1), grid.x, grid.x + grid.width);
      context.fillStyle = cssColour(scaleColour(scale, values[c]));
      context.fillRect(x, grid.y - gap - stripSize, end - x, stripSize);
    }
    for (let r = r0; r < r1; r++) {
      const y = clip(grid.top(r), grid.y, grid.y + grid.height),
        end = clip(grid.top(r + 1), grid.y, grid.y + grid.height);
      context.fillStyle = cssColour(scaleColour(scale, values[r]));
      context.fillRect(grid.x - gap - stripSize, y, stripSize, end - y);
    }
    context.strokeStyle = inks.line;
    context.lineWidth = 1;
    context.strokeRect(grid.x - .5, grid.y - gap - stripSize - .5, grid.width + 1, stripSize + 1);
    context.strokeRect(grid.x - gap - stripSize - .5, grid.y - .5, stripSize + 1, grid.height + 1);
  }

  // The chosen row is framed; the chosen keys are marked above their columns.
  drawChosen(inks, row, columns) {
    const {context} = this.sharp, {grid} = this.place, {halo} = overlayInks(inks.theme), path = new Path2D();
    if (this.ctx.state.row !== null)
      path.rect(grid.x + .75, grid.top(row) + .75, grid.width - 1.5, grid.top(row + 1) - grid.top(row) - 1.5);
    for (const c of columns) path.rect(grid.left(c) + .75, grid.y + .75, grid.left(c + 1) - grid.left(c) - 1.5,
      grid.height - 1.5);
    grid.clipped(context, () => doubleStroke(context, path, {ink: inks.accent, halo}, 1.5));
  }

  drawSallm(inks) {
    const {context} = this.sharp, {grid} = this.place, {target, row} = this.sallm;
    const over = values => this.units.map(u => u.tokens.reduce((s, k) => s + values[k], 0));
    const rows = [['target', over(target)], ['attention', over(row)]],
      limit = Math.max(0, ...rows.flatMap(([, v]) => v.filter(Number.isFinite)));
    const scale = colourScaleOf({limit, palette: this.ctx.state.palette, theme: inks.theme}),
      [c0, c1] = grid.columnsInView();
    this.sallmShown = rows.map(([name, values], i) =>
      ({name, values, y: grid.y + grid.height + 8 + i * (sallmStrip + 3)}));
    for (const {name, values, y} of this.sallmShown) {
      for (let c = c0; c < c1; c++) {
        const x = Math.max(grid.x, grid.left(c)), end = Math.min(grid.x + grid.width, grid.left(c + 1));
        context.fillStyle = cssColour(scaleColour(scale, values[c]));
        context.fillRect(x, y, end - x, sallmStrip);
      }
      context.strokeStyle = inks.line;
      context.lineWidth = 1;
      context.strokeRect(grid.x - .5, y - .5, grid.width + 1, sallmStrip + 1);
      Object.assign(context, {font: inks.font, fillStyle: inks.fg, textAlign: 'right', textBaseline: 'middle'});
      context.fillText(name, grid.x - 5, y + sallmStrip / 2 + .5);
    }
  }

  drawScales(inks) {
    const {context} = this.sharp, {grid, scaleY, width} = this.place;
    const names = {attention: attentionName(this.frame), attribution: 'attention attribution',
      residual: 'attention − pattern'};
    const space = width - 32, both = Boolean(this.saliency), part = Math.min(280, both ? (space - 36) / 2 : space);
    const start = Math.min(grid.x, Math.max(16, width - (both ? 2 * part + 36 : part) - 16));
    colourScale(context, this.colours,
      {x: start, y: scaleY, width: part, title: `${names[this.kind]} (square-root scale)`, inks});
    if (!both) return;
    const {name, of, scale} = this.saliency;
    colourScale(context, scale,
      {x: start + part + 36, y: scaleY, width: part, title: `${name} (square-root scale ${of})`, inks});
  }

  cellText({row, column}) {
    const {count, values, half} = this.shown, k = row * count + column,
      [query, key] = [this.units[row], this.units[column]];
    const head = this.entry.kind === 'head' && this.kind === 'attribution' && query.tokens.length === 1
      && key.tokens.length === 1
      && this.map.pooled === 1;
    const rank = head ? rankWords(ranksOfHead(this.frame, this.entry.layer, this.entry.head), this.probe.tokens.length,
      query.tokens[0],
      key.tokens[0]) : '';
    const where = readingPlace(this.entry, this.frame.step);
    const name = this.kind === 'residual' ? `${where}, attention − pattern` : where;
    if (!Number.isFinite(values[k]))
      return `${name}, ${quotedToken(query.label)} cannot attend to ${quotedToken(key.label)}`;
    return cellWords(name, query, key, values[k], half(k), rank + this.markWords({row, column}));
  }

  markWords({row, column}) {
    const k = row * this.shown.count + column;
    return this.marks?.discarded?.[k] ? ', discarded' : this.marks?.candidates?.[k] ? ', candidate' : '';
  }

  // "layer 5, head 3, from “acting” to “fine”: attention 0.31, 2nd of 14 in its row"
  spokenCell(cell) {
    const {count, values} = this.shown, value = values[cell.row * count + cell.column];
    if (this.kind !== 'attention' || !Number.isFinite(value)) return spokenText(this.cellText(cell));
    const row = values.subarray(cell.row * count, (cell.row + 1) * count).filter(Number.isFinite);
    const above = row.filter(v => v > value).length, tied = row.filter(v => v === value).length > 1 ? 'tied ' : '';
    const [query, key] = [cell.row, cell.column].map(k => quotedToken(this.units[k].label));
    const place = `${tied}${ordinal(above + 1)} of ${row.length} in its row`, marks = this.markWords(cell);
    return `${entryTitle(this.entry)}, from ${query} to ${key}: attention ${shortNumber(value)}, ${place}${marks}`;
  }

  // The values of the strips at the key of a cell, in the words that the pointer shows.
  stripWords({column}) {
    const at = [...this.saliency ? [{kind: 'saliency', column}] : [],
      ...(this.sallm ? this.sallmShown : []).map(strip => ({kind: 'sallm', strip, column}))];
    return at.map(each => this.pointText(each)).join('; ') || 'This map has no strips.';
  }

  readStrips(cell) {
    const text = this.stripWords(cell);
    this.cells.say(text);
    this.ctx.announce(text);
  }

  // What is under the pointer: a cell, a label of either axis, or a strip.
  under(x, y) {
    const {grid, edge} = this.place, column = grid.columnAt(x), row = grid.rowAt(y);
    if (grid.inside(x, y)) return {kind: 'cell', row, column};
    if (x >= grid.x && x < grid.x + grid.width && y < grid.y)
      return {kind: this.saliency && y > grid.y - edge ? 'saliency' : 'key', column};
    if (y >= grid.y && y < grid.y + grid.height && x < grid.x && x > 14)
      return {kind: this.saliency && x > grid.x - edge ? 'saliency' : 'query',
      row};
    const strip = this.sallm && x >= grid.x && x < grid.x + grid.width
      && this.sallmShown?.find(s => y >= s.y && y < s.y + sallmStrip);
    return strip ? {kind: 'sallm', strip, column} : {kind: 'nothing'};
  }

  pointText(at) {
    const unit = this.units[at.column ?? at.row];
    if (at.kind === 'cell') return this.cellText(at);
    const value = {saliency: () => this.saliency.values[at.column ?? at.row],
      sallm: () => at.strip.values[at.column]}[at.kind]?.();
    const text = Number.isFinite(value) ? shortNumber(value) : 'no value';
    if (at.kind === 'saliency') return `${this.saliency.name} of ${quotedToken(unit.label)}: ${text}`;
    if (at.kind === 'sallm') return `SalLM, ${at.strip.name} at ${quotedToken(unit.label)}: ${text}`;
    if (at.kind === 'key') return `key ${quotedToken(unit.label, 200)}: click to choose it, Shift-click to add it`;
    if (at.kind === 'query') return `query ${quotedToken(unit.label, 200)}: click to choose the row`;
    return '';
  }

  chooseRow(row) {
    const tokens = this.units[row].tokens, same = tokens.includes(this.ctx.state.row);
    this.ctx.state.set({row: same ? null : tokens[0]});
  }

  chooseKey(column, several) {
    const {state} = this.ctx, mine = this.units[column].tokens, has = mine.every(k => state.tokens.includes(k));
    if (several) state.set({tokens: has ? state.tokens.filter(k => !mine.includes(k))
      : [...new Set([...state.tokens, ...mine])].sort((a, b) => a - b)});
    else state.set({tokens: has && state.tokens.length === mine.length ? [] : mine});
  }

  listen() {
    const {el} = this.sharp;
    el.addEventListener('pointerdown', e => this.pressed(e));
    el.addEventListener('pointerup', e => this.released(e));
    el.addEventListener('pointercancel', () => { this.drag = null; });
    el.addEventListener('dblclick', () => this.resetZoom());
    el.addEventListener('wheel', e => this.wheeled(e), {passive: false});
  }

  pointed(x, y) {
    if (this.drag) return void this.panTo(x, y);
    const at = this.under(x, y);
    this.sharp.el.style.cursor = at.kind === 'key' || at.kind === 'query' ? 'pointer' : 'default';
    return {cell: at.kind === 'cell' ? at : null, text: this.pointText(at)};
  }

  pressed(e) {
    if (!this.shown || !this.place || e.button) return;
    const [x, y] = this.sharp.at(e);
    this.sharp.el.setPointerCapture(e.pointerId);
    this.drag = {x, y, from: {...this.window()}, moved: false};
  }

  panTo(x, y) {
    const {drag} = this, {grid} = this.place;
    if (Math.hypot(x - drag.x, y - drag.y) > 4) drag.moved = true;
    if (drag.moved && this.zoom) this.setWindow({...drag.from, column: drag.from.column - (x - drag.x) / grid.pitch,
      row: drag.from.row - (y - drag.y) / grid.pitch});
  }

  released(e) {
    const {drag} = this;
    this.drag = null;
    if (!drag || drag.moved) return;
    const at = this.under(...this.sharp.at(e));
    if (at.kind === 'cell' || at.kind === 'query') this.chooseRow(at.row);
    if (at.kind === 'key') this.chooseKey(at.column, e.shiftKey || e.ctrlKey || e.metaKey);
  }

  // The wheel scrolls the page, and zooms only where the map has the focus or while pinching (Ctrl).
  wheeled(e) {
    if (!this.place || !e.ctrlKey && document.activeElement !== this.sharp.el) return;
    const [x, y] = this.sharp.at(e);
    if (e.deltaY > 0 && !this.zoom && !e.ctrlKey) return;
    e.preventDefault();
    this.zoomBy(Math.exp(Math.max(-1, Math.min(1, e.deltaY * (e.ctrlKey ? .01 : .002)))), x, y);
  }

  zoomBy(factor, x, y) {
    if (!this.place) return;
    const {grid} = this.place, from = this.window(),
      span = Math.max(Math.min(4, from.count), Math.min(from.count, from.span * factor));
    const [px, py] = [((x ?? grid.x + grid.width / 2) - grid.x) / grid.width,
      ((y ?? grid.y + grid.height / 2) - grid.y) / grid.height];
    this.setWindow({...from, span, column: from.column + px * (from.span - span),
      row: from.row + py * (from.span - span)});
  }

  setWindow({count, span, row, column}) {
    const inside = v => Math.max(0, Math.min(count - span, v));
    this.zoom = span >= count - 1e-6 ? null : {count, span, row: inside(row), column: inside(column)};
    this.redraw();
  }

  resetZoom() { this.zoom = null; this.redraw(); }
  // The zoom affects only this panel, so it is not part of the state.
  redraw() {
    this.pending ??= requestAnimationFrame(() => {
      this.pending = null;
      if (this.shown && this.stage.clientWidth) this.draw();
    });
  }

  keys() {
    const closer = () => this.zoomBy(1 / 1.5), at = act => () => this.cells.cursor && act(this.cells.cursor);
    return {'+': closer, '=': closer, '-': () => this.zoomBy(1.5), 0: () => this.resetZoom(),
      s: at(cell => this.readStrips(cell)), Enter: at(({row}) => this.chooseRow(row)),
      ' ': at(({column}) => this.chooseKey(column, true)),
      Escape: () => this.ctx.state.set({row: null, tokens: []})};
  }

  firstCell() {
    const {row, column} = this.window();
    return {row: Math.max(Math.ceil(row), this.rowUnit()), column: Math.ceil(column)};
  }

  // Keep the cell reached with the keys in view.
  followCursor(cell) {
    const {row, column, span} = this.window();
    const into = (place, from) => place < from ? place : place + 1 > from + span ? place + 1 - span : from;
    if (this.zoom) this.setWindow({...this.zoom, row: into(cell.row, row), column: into(cell.column, column)});
  }
}

export const mapPanel = {
  name: 'map', title: 'Map', order: 20, tab: true, shows: 'maps', image: 'map', page: 'beside',
  help: {says: [
    'Each cell is the attention (or its attribution) of a query (row) to a key (column), on a square-root scale.',
    'Attention rows sum to 1; a strong cell does not mean that the prediction depends on it.'],
  keys: [['← ↑ ↓ →', 'move between cells'], ['Enter', 'choose the row'], ['Space', 'add the key to the chosen keys'],
    ['s', 'read the values of the strips in this column'], ['+ −', 'zoom in or out'], ['0', 'show the whole map'],
    ['Esc', 'clear the selection']]},
  tour: 'the chosen head in full. Each row shows where one query attends; point at a cell to read its value.',
  view: MapPanel,
};
