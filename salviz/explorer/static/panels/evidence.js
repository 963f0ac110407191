// Panel 'evidence': evidence recorded by a custom method, as a map, as tokens with numbers or as a table.
import {entryTitle, visibleTokens} from '../state/derive.js';
import {colourScale, colourScaleOf, scaleColour, shortNumber, valueWithStep} from '../lib/colour.js';
import {axisTitles, CellGrid, CellPainter, columnLabels, inksOf, labelWidth, quotedToken} from '../lib/canvas.js';
import {rowLabels} from '../lib/canvas.js';
import {CellStage} from '../lib/cells.js';
import {coloursOf, readingKey, shownUnits} from './tokenmap.js';
import {chipText, cutText, isCut, paintToken, scaleBar, visibleText} from '../lib/words.js';
import {choiceOf, elementOf, fillChoice, labelled, setText} from '../lib/controls.js';

const evidenceKeys = ['run', 'probe', 'step', 'entry', 'evidence', 'hideSpecial', 'scale', 'palette', 'theme', 'frames',
  'meta', 'size'];
const customPrefix = 'own/', evidenceTallest = 440, evidenceWidest = 40, evidenceCells = 480, evidenceLegend = 52;

// Snapshots store half precision: eleven significant bits per number, and nothing far below the largest.
const storedPrecision = 2 ** -11, storedLeast = 2 ** -38;

// The custom evidence of a frame: {name: tensor}.
export function customTensors(frame) {
  const names = (frame?.names ?? []).filter(name => name.startsWith(customPrefix)
    && Array.isArray(frame.get(name).spec.axes));
  return new Map(names.map(name => [name.slice(customPrefix.length), frame.get(name)]));
}

export function hasCustomEvidence(frame) {
  return Boolean(frame?.names.some(name => name.startsWith(customPrefix)) || frame?.info?.own_left?.length); }

function evidenceForm(axes) {
  if (axes.at(-1) === 'key') return {form: 'map', inside: 2};
  if (axes.at(-1) === 'token') return {form: 'tokens', inside: 1};
  return {form: 'table', inside: Math.min(2, axes.length)};
}

// Which slice of the tensor is shown: the layer and head of the entry (of a mean, its first head) where the tensor has
// them, else its last layer and first head.
function evidencePlace(tensor, outer, entry) {
  const [layer, head] = entry.heads?.[0] ?? [entry.layer, entry.head];
  return outer.map((axis, k) => {
    const count = tensor.shape[k], layers = axis === 'layer' ? tensor.layers : null;
    const wanted = layers ? layers.indexOf(layer) : axis === 'head' ? head : 0;
    return {axis, count, layers, at: wanted >= 0 && wanted < count ? wanted : layers ? count - 1 : 0};
  });
}

function placeWords(places) {
  return places.map(({axis, layers, at}) => `${axis} ${layers ? layers[at] : at}`).join(', '); }

// The axes over which the view is a mean.
function meanAxes({kind, heads = []}) {
  if (kind === 'head') return [];
  if (kind === 'heads') return ['head'];
  if (kind === 'layers') return ['layer'];
  return heads.length && heads.every(([layer]) => layer === heads[0][0]) ? ['head'] : ['layer', 'head'];
}

// The numbers of the slice, and how far each may be from the value that the method recorded.
export function evidenceSlice(tensor, places, inside) {
  const size = tensor.shape.slice(tensor.shape.length - inside).reduce((a, b) => a * b, 1),
    factor = 2 ** (tensor.spec.exponent ?? 0);
  const at = places.reduce((k, place) => k * place.count + place.at, 0);
  const [i, head] = tensor.shape.length === 4 ? [Math.floor(at / tensor.shape[1]), at % tensor.shape[1]] : [at, 0];
  const coded = tensor.codec === 'level8' || tensor.codec === 'table8', codes = coded ? tensor.codes(i, head) : null;
  const plain = tensor.codec === 'f32' || tensor.codec === 'i32';
  const all = coded ? tensor.at(i, head) : plain ? tensor.all.subarray(at * size, (at + 1) * size)
    : tensor.values().subarray(at * size, (at + 1) * size);
  const values = Float64Array.from(all, v => v * factor),
    top = Math.max(Math.abs(tensor.spec.low ?? 0), Math.abs(tensor.spec.high ?? 0));
  const rounded = tensor.codec === 'level8' || tensor.codec === 'f32';
  const stored = v => rounded ? Math.max(Math.abs(v) * storedPrecision, top * storedLeast) : 0;
  const half = k => (tensor.codec === 'level8' ? tensor.halfStep(codes[k], i, head) * factor : 0) + stored(values[k]);
  return {values, half, truth: tensor.codec === 'bits'};
}

function largestFinite(values) {
  return values.reduce((most, v) => Number.isFinite(v) && Math.abs(v) > most ? Math.abs(v) : most, 0); }

function evidenceWord(slice, k) {
  if (slice.truth) return slice.values[k] ? 'true' : 'false';
  return valueWithStep(slice.values[k], slice.half(k));
}

function axisWords(axis, count, isBlocks) {
  if (isBlocks) return `${count} blocks of ${axis === 'query' ? 'queries' : 'keys'}`;
  const several = {query: 'queries', class: 'classes'}[axis] ?? `${axis}s`;
  return `${count} ${count === 1 ? axis : several}`;
}

class EvidencePanel {
  constructor(ctx) {
    const cells = new CellStage({text: cell => this.cellText(cell), announce: ctx.announce}),
      {el: stage, sharp, tip} = cells;
    Object.assign(this, {ctx, cells, stage, sharp, tip, painter: new CellPainter()});
    this.build();
  }

  build() {
    const {state} = this.ctx;
    this.el = elementOf('section', 'sv-panel sv-evidence');
    this.el.setAttribute('aria-label', 'data recorded by a custom method');
    this.name = choiceOf([], name => state.set({evidence: name}));
    this.choices = ['layer', 'head'].map(axis => choiceOf([], at => this.choose(axis, Number(at))));
    this.fields = [labelled('of', this.name),
      ...this.choices.map((choice, k) => labelled(['Layer', 'Head'][k], choice))];
    const head = this.head = elementOf('div', 'sv-head');
    head.append(elementOf('h3', 'sv-title', 'Evidence'), ...this.fields);
    this.note = elementOf('p', 'sv-note');
    this.line = elementOf('div', 'sv-line sv-own-line');
    this.line.setAttribute('role', 'list');
    this.table = elementOf('div', 'sv-own-table');
    this.legend = elementOf('div', 'sv-own-legend');
    this.words = elementOf('p', 'sv-note');
    this.el.append(head, this.note, this.stage, this.line, this.table, this.tip, this.legend, this.words);
  }

  choose(axis, value) {
    const {state} = this.ctx, {heads, ...entry} = state.entry, one = entry.kind === 'mean' || axis === 'head';
    state.set({entry: {...entry, kind: one ? 'head' : entry.kind, [axis]: value}});
  }

  update(changed) {
    if (!evidenceKeys.some(key => changed.has(key))) return;
    const {store, state} = this.ctx;
    this.frame = store.frameOf(state);
    this.probe = store.probe(state.run, state.probe);
    this.custom = customTensors(this.frame);
    const why = this.load();
    setText(this.note, why);
    this.note.hidden = !why;
    this.fillChoices();
    const form = this.tensor ? this.form : '';
    this.stage.hidden = form !== 'map';
    this.line.hidden = form !== 'tokens';
    this.table.hidden = form !== 'table';
    this.tip.hidden = this.legend.hidden = this.words.hidden = !form;
    if (form === 'map') this.drawMap();
    if (form === 'tokens') this.drawTokens();
    if (form === 'table') this.drawTable();
    if (form) this.say();
  }

  // Prepares what is shown; returns a sentence on what is missing.
  load() {
    const {store, state} = this.ctx, {frame, probe} = this, left = frame?.info?.own_left ?? [];
    this.tensor = null;
    if (!probe) return 'Nothing to show.';
    if (!frame) return store.why(state.run, state.probe, store.stepOf(state))
      || 'Nothing has been recorded for this example yet.';
    const elsewhere = left.map(([name, what]) => `${quotedToken(name)} (${what})`).join(', ');
    const more = elsewhere ? ` Stored only in the snapshot (too large, or too many axes to draw): ${elsewhere}.`
      : '';
    const name = this.custom.has(state.evidence) ? state.evidence : this.custom.keys().next().value;
    if (name === undefined) return `No data from a custom method was recorded at step ${frame.step}.${more}`;
    const tensor = this.custom.get(name), {axes} = tensor.spec, {form, inside} = evidenceForm(axes);
    const outer = axes.slice(0, axes.length - inside),
      unknown = outer.find(axis => axis !== 'layer' && axis !== 'head');
    this.shownName = name;
    if (unknown)
      return `${quotedToken(name)} has the axes ${axes.join(', ')}, which cannot be drawn; `
        + `its values are in the snapshot.${more}`;
    Object.assign(this, {tensor, form, inside, places: evidencePlace(tensor, outer, state.entry)});
    this.slice = evidenceSlice(tensor, this.places, inside);
    const signed = tensor.spec.low < 0, whole = state.scale !== 'map' && !this.slice.truth;
    const largest = whole ? Math.max(Math.abs(tensor.spec.low), Math.abs(tensor.spec.high))
      : largestFinite(this.slice.values);
    this.whole = whole;
    this.where = [placeWords(this.places), `step ${frame.step}`].filter(Boolean).join(', ');
    this.scale = colourScaleOf({limit: this.slice.truth ? 1 : largest, signed, linear: true, palette: state.palette,
      theme: state.theme});
    return `${this.meanWords()}${more}`.trim();
  }

  // Numbers of unknown meaning, including truth values, are not averaged.
  meanWords() {
    const {entry} = this.ctx.state, {places} = this, averaged = meanAxes(entry);
    if (!places.some(({axis}) => averaged.includes(axis))) return '';
    return `Data from custom methods is not averaged: only ${placeWords(places)} is shown `
      + `(chosen: ${entryTitle(entry)}).`;
  }

  fillChoices() {
    const names = [...this.custom.keys()];
    fillChoice(this.name, names.map(name => [name, cutText(visibleText(name), 60)]), this.shownName ?? '');
    this.name.title = visibleText(this.shownName ?? '');
    this.fields[0].hidden = !names.length;
    ['layer', 'head'].forEach((axis, k) => {
      const place = this.tensor && this.places.find(p => p.axis === axis);
      this.fields[k + 1].hidden = !place;
      if (!place) return;
      const entries = Array.from({length: place.count}, (_, i) => place.layers ? place.layers[i] : i)
        .map(v => [v, String(v)]);
      fillChoice(this.choices[k], entries, entries[place.at][0]);
    });
  }

  // ---- a map

  drawMap() {
    const {state} = this.ctx, {tensor, slice} = this, n = tensor.shape.at(-1);
    if (!this.stage.clientWidth) return;
    // Custom evidence cannot be merged into words, since its meaning is unknown: it is drawn per token.
    const units = shownUnits(this.probe, {...state.get(), mergeWords: false}, {n, pooled: tensor.pooled});
    this.units = units.length ? units : shownUnits(this.probe, {...state.get(), mergeWords: false, hideSpecial: false},
      {n, pooled: tensor.pooled});
    this.at = this.units.map((u, i) => u.block ? i : u.tokens[0]);
    const count = this.units.length, values = new Float64Array(count * count);
    for (let r = 0, cell = 0; r < count; r++) for (let c = 0; c < count; c++, cell++)
      values[cell] = slice.values[this.at[r] * n + this.at[c]];
    const inks = this.inks = inksOf(this.el, state.theme), {context} = this.sharp,
      labels = this.units.map(u => u.label), width = this.stage.clientWidth;
    const query = labelWidth(context, labels, inks.bold, Math.min(96, width * .22)), left = 16 + query + 6;
    const side = Math.max(40, Math.min(width - left - 4, evidenceTallest, Math.max(90, count * evidenceWidest)));
    const longest = labelWidth(context, labels, inks.bold, 84), key = longest <= side / count - 6 ? 12 : longest;
    const axis = {count, from: 0, span: count}, ratio = window.devicePixelRatio || 1, y = 14 + key + 5;
    this.grid = new CellGrid({x: left, y, width: side, height: side, columns: axis, rows: axis, ratio});
    this.sharp.size(width, y + side + evidenceLegend);
    this.painter.paint(context, this.grid, coloursOf(values, this.scale));
    this.crossOut(context, values, count);
    columnLabels(context, this.grid, this.units, {y: y - 4, space: key, inks});
    rowLabels(context, this.grid, this.units, {x: left - 5, space: query, inks});
    axisTitles(context, this.grid, {keyY: 0, queryX: 4, inks});
    const place = {x: left, y: y + side + 24, width: Math.min(220, side), inks};
    if (slice.truth) this.drawTruth(context, place);
    else colourScale(context, this.scale, {...place, title: 'linear scale'});
    this.sharp.el.setAttribute('aria-label',
      `${visibleText(this.shownName)} ${placeWords(this.places)}. Arrow keys move between cells.`);
    this.sharp.el.salviz = {grid: this.grid, units: this.units, scale: this.scale};
    this.cells.show([this.grid], state.theme, this.about());
  }

  // Colour alone would not distinguish a non-finite number from a small one.
  crossOut(context, values, count) {
    const path = new Path2D();
    for (let k = 0; k < values.length; k++) {
      if (Number.isFinite(values[k])) continue;
      const {x, y, width, height} = this.grid.box(Math.floor(k / count), k % count);
      path.moveTo(x + 1, y + 1);
      path.lineTo(x + width - 1, y + height - 1);
      path.moveTo(x + width - 1, y + 1);
      path.lineTo(x + 1, y + height - 1);
    }
    Object.assign(context, {strokeStyle: this.inks.muted, lineWidth: 1});
    context.stroke(path);
  }

  drawTruth(context, {x, y, inks}) {
    Object.assign(context, {font: inks.small, textAlign: 'left', textBaseline: 'middle'});
    [[1, 'true'], [0, 'false']].forEach(([value, text], k) => {
      const packed = scaleColour(this.scale, value);
      context.fillStyle = `rgb(${packed & 255}, ${(packed >> 8) & 255}, ${(packed >> 16) & 255})`;
      context.fillRect(x + 70 * k, y, 12, 12);
      context.strokeStyle = inks.line;
      context.strokeRect(x + 70 * k + .5, y + .5, 12, 12);
      context.fillStyle = inks.muted;
      context.fillText(text, x + 70 * k + 17, y + 6.5);
    });
  }

  cellText({row, column}) {
    const n = this.tensor.shape.at(-1), [query, key] = [row, column].map(i => quotedToken(this.units[i].label));
    const word = evidenceWord(this.slice, this.at[row] * n + this.at[column]);
    const truth = word === 'true' ? ' (somewhere in the block)' : ' (everywhere in the block)';
    const blocks = this.slice.truth ? truth : ' (largest magnitude of the block)';
    return `${this.where}, ${query} → ${key}: ${word}${this.tensor.pooled > 1 ? blocks : ''}`;
  }

  // The key of a reading: it changes when the reading no longer applies.
  about() { return readingKey([this.frame], this.shownName, this.places.map(({at}) => at)); }

  // ---- tokens

  drawTokens() {
    const {slice, probe} = this, {state} = this.ctx, visible = visibleTokens(probe, state),
      shown = visible.length ? visible : probe.tokens.map((_, i) => i);
    this.line.replaceChildren(...shown.map(i => {
      const text = elementOf('bdi', '', chipText(probe.labels[i])), chip = elementOf('span', 'sv-chip', text);
      const number = slice.truth ? '' : Number.isFinite(slice.values[i]) ? shortNumber(slice.values[i]) : 'not finite';
      const title = `${quotedToken(probe.labels[i])}: ${evidenceWord(slice, i)}`;
      text.dir = 'auto';
      if (slice.truth) chip.classList.toggle('sv-own-holds', Boolean(slice.values[i]));
      paintToken(chip, Number.isFinite(slice.values[i]) ? scaleColour(this.scale, slice.values[i]) : null);
      const node = elementOf('span', 'sv-word sv-labelled', chip,
        ...(number ? [elementOf('span', 'sv-own-number', number)] : []));
      node.setAttribute('role', 'listitem');
      node.setAttribute('aria-label', title);
      node.title = isCut(probe.labels[i]) ? `${visibleText(probe.labels[i].slice(0, 400))}: ${evidenceWord(slice, i)}`
        : title;
      node.addEventListener('pointerenter', () => this.cells.say(`${this.where}, ${title}`));
      return node;
    }));
  }

  // ---- a table

  tableNames(axis, size) {
    const {classes = []} = this.ctx.store.run(this.ctx.state.run) ?? {};
    if (axis === 'layer') return this.tensor.layers.map(String);
    if (axis === 'token') return this.probe.labels;
    return Array.from({length: size}, (_, i) => axis === 'class' ? classes[i] ?? String(i) : String(i));
  }

  drawTable() {
    const {tensor, slice, inside} = this, axes = tensor.spec.axes.slice(tensor.spec.axes.length - inside),
      shape = tensor.shape.slice(tensor.shape.length - inside);
    const [rows, columns] = inside === 2 ? shape : [1, shape[0] ?? 1],
      names = axes.map((axis, k) => this.tableNames(axis, shape[k]));
    const most = Math.max(1, Math.floor(evidenceCells / columns)), table = document.createElement('table');
    if (columns > evidenceCells)
      return void this.table.replaceChildren(elementOf('p', 'sv-note',
        `${rows * columns} numbers are too many for a table; the snapshot contains them.`));
    if (inside) {
      const top = table.createTHead().insertRow();
      if (inside === 2) top.append(elementOf('th', '', `${axes[0]} \\ ${axes[1]}`));
      else top.append(elementOf('th', '', axes[0]));
      for (const name of names.at(-1)) top.append(elementOf('th', '', chipText(name, 16)));
    }
    const body = table.createTBody();
    for (let r = 0; r < Math.min(rows, most); r++) {
      const row = body.insertRow();
      if (inside) row.append(elementOf('th', '', inside === 2 ? chipText(names[0][r], 16) : ''));
      for (let c = 0; c < columns; c++) row.append(this.tableCell(r * columns + c, inside, [r, c], axes, names));
    }
    const cut = rows > most ? [elementOf('p', 'sv-note',
      `Only the first ${most} of ${rows} rows are shown; the snapshot contains all of them.`)] : [];
    this.table.replaceChildren(table, ...cut);
  }

  tableCell(k, inside, at, axes, names) {
    const {slice} = this, value = slice.values[k], cell = document.createElement('td');
    const where = axes.map((axis, a) => `${axis} ${visibleText(names[a][at[inside === 2 ? a : 1]])}`).join(', ');
    const text = `${where ? `${where}: ` : ''}${evidenceWord(slice, k)}`;
    cell.textContent = slice.truth ? value ? 'yes' : 'no' : Number.isFinite(value) ? shortNumber(value) : 'not finite';
    if (inside) paintToken(cell, Number.isFinite(value) ? scaleColour(this.scale, value) : null);
    cell.title = text;
    cell.addEventListener('pointerenter', () => this.cells.say(`${this.where}, ${text}`));
    return cell;
  }

  // ---- words

  scaleWords() {
    const end = this.whole ? 'largest magnitude of all layers and heads' : 'largest magnitude shown';
    return `linear scale${this.scale.signed ? ' centred at 0' : ''}, up to the ${end}`;
  }

  say() {
    const {tensor, slice, form} = this, {axes, low, high, lost} = tensor.spec, {frame} = this;
    const sizes = axes.map((axis, k) => axisWords(axis, tensor.shape[k], tensor.pooled > 1 && k >= axes.length - 2))
      .join(' × ') || 'One number';
    const range = slice.truth ? `True values: ${slice.values.reduce((a, v) => a + v, 0)} of ${slice.values.length}.`
      : `${lost ? 'All finite' : 'All'} values are between ${shortNumber(low)} and ${shortNumber(high)}.`;
    const crossed = form === 'map' ? ' (crossed out)' : '';
    const gone = lost ? ` ${lost} ${lost === 1 ? 'value is' : 'values are'} not finite${crossed}.` : '';
    const coloured = !slice.truth && slice.values.length > 1,
      colours = coloured ? `Colours: ${this.scaleWords()}. ` : '';
    setText(this.words, `${colours}${sizes}. ${range}${gone} Step ${frame.step}.`);
    const barred = form !== 'map' && coloured;
    this.legend.hidden = !barred;
    if (barred) this.legend.replaceChildren(scaleBar(this.scale));
    if (form !== 'map') this.cells.show([], this.ctx.state.theme, this.about());
    if (form === 'table' && slice.values.length === 1) this.cells.say(`${this.where}: ${evidenceWord(slice, 0)}`);
  }
}

export const evidencePanel = {
  name: 'evidence', title: 'Evidence', order: 80, shows: 'anything', image: 'evidence', page: 'below',
  help: {says: [
    'Numbers that a custom method recorded at this step, as a map, as coloured tokens or as a table.',
    'The method defines their units and signs; a strong colour means a large number, not an important one.'],
  keys: [['← ↑ ↓ →', 'in a map: move between cells']]},
  fits: hasCustomEvidence, absent: 'No data from a custom method was recorded in this run.',
  view: EvidencePanel,
};
