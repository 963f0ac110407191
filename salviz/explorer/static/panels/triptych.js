// Panel 'triptych': attention, saliency or attribution, and their signed difference for the same tokens; below, the
// chosen row of each with its tokens.
import {attentionName, entryPhrase, entryTitle, layersOf, mapOf} from '../state/derive.js';
import {pooledRow, ranksOfHead, rowOrMean, saliencyOf} from '../state/derive.js';
import {ranksOf, spearman, tiedRows} from '../lib/maths.js';
import {attentionLimit, colourScaleOf, cssColour, scaleColour, shortNumber, valueWithStep} from '../lib/colour.js';
import {CellGrid, columnLabels, inksOf, labelWidth, quotedToken, SharpCanvas} from '../lib/canvas.js';
import {blankBlocked, largestOf, readingKey, readingPlace, scaleLimit, shownUnits, unitMap} from './tokenmap.js';
import {MapRow} from './maprow.js';
import {tiesPath} from './overlays.js';
import {choiceOf, elementOf, labelled} from '../lib/controls.js';

const triptychKeys = ['run', 'probe', 'step', 'entry', 'row', 'hideSpecial', 'mergeWords', 'scale', 'palette', 'theme',
  'frames', 'meta', 'size'];
const bandHeight = 20, bandGap = 4;

// Ranks within a row from 0 (lowest) to 1 (highest); NaN for values that do not count; ties share their mean rank.
export function rowPlaces(values, count) {
  const out = new Float32Array(values.length).fill(NaN);
  for (let r = 0; r < count; r++) {
    const row = Array.from(values.subarray(r * count, (r + 1) * count)),
      counts = row.map(v => Number(Number.isFinite(v)));
    const many = counts.reduce((a, b) => a + b, 0);
    const ranks = ranksOf(row.map(v => Number.isFinite(v) ? v : 0), counts);
    for (let c = 0; c < count; c++) if (counts[c]) out[r * count + c] = many > 1 ? (ranks[c] - 1) / (many - 1) : .5;
  }
  return out;
}

// Values are stored as codes, so equal codes may have been different values; the recorded ranks of the tokens resolve
// this.
function tiedByRanks(frame, entry, units) {
  const ranks = entry.kind === 'head' ? ranksOfHead(frame, entry.layer, entry.head) : null;
  if (!ranks) return () => true;
  const n = Math.sqrt(ranks.length), constant = row => ranks.subarray(row * n, (row + 1) * n).every(rank => rank <= 1);
  return r => units[r].tokens.every(constant);
}

// Normalises each row over the included units; the others are NaN.
export function rowFractions(values, count, counts) {
  const out = new Float32Array(values.length).fill(NaN);
  for (let r = 0; r < values.length / count; r++) {
    let total = 0;
    for (let c = 0; c < count; c++) if (counts[c] && Number.isFinite(values[r * count + c]))
      total += values[r * count + c];
    for (let c = 0; c < count; c++) if (counts[c] && Number.isFinite(values[r * count + c]))
      out[r * count + c] = total > 0
      ? values[r * count + c] / total : 0;
  }
  return out;
}

class Triptych {
  constructor(ctx) {
    this.ctx = ctx;
    this.wanted = null;
    this.el = elementOf('section', 'sv-panel sv-triptych');
    this.el.setAttribute('aria-label', 'attention and an explanation');
    this.title = elementOf('h3', 'sv-title');
    this.beside = choiceOf([['attribution', 'attention attribution'], ['saliency', 'token saliency']],
      what => { this.wanted = what; this.update(new Set(['size'])); });
    const head = this.head = elementOf('div', 'sv-head');
    head.append(this.title, labelled('Compare with', this.beside));
    this.note = elementOf('p', 'sv-note');
    this.words = elementOf('p', 'sv-note sv-words');
    this.maps = new MapRow({text: (r, c) => this.cellText(r, c), chooseRow: r => this.chooseRow(r),
      announce: ctx.announce});
    this.bands = new SharpCanvas('sv-canvas');
    this.bandStage = elementOf('div', 'sv-stage');
    this.bandStage.append(this.bands.el);
    this.bandTitle = elementOf('h4', 'sv-subtitle');
    this.el.append(head, this.note, this.maps.el, this.maps.tip, this.bandTitle, this.bandStage, this.words);
    this.bands.el.addEventListener('pointermove', e => this.bandMoved(e));
  }

  update(changed) {
    if (!triptychKeys.some(key => changed.has(key))) return;
    const {store, state} = this.ctx, why = this.load();
    this.title.textContent = entryTitle(state.entry);
    this.note.textContent = why;
    this.note.hidden = !why;
    for (const el of [this.maps.el, this.maps.tip, this.bandStage, this.bandTitle, this.words]) el.hidden = !this.items;
    if (!this.items || !this.maps.el.clientWidth) return;
    const row = this.units.findIndex(u => u.tokens.includes(state.row ?? pooledRow(store.frameOf(state))));
    this.row = row < 0 && (state.row ?? pooledRow(store.frameOf(state))) !== null ? 0 : row;
    const label = `Attention, ${this.kind} and their difference for ${entryTitle(state.entry)}.`;
    const about = readingKey([this.frame], state.entry, this.kind);
    this.maps.draw({items: this.items, units: this.units, row: this.row, framed: this.row >= 0, label, about}, this.el,
      state.theme);
    this.drawBands();
    this.words.textContent = this.sayAgreement();
  }

  load() {
    const {store, state} = this.ctx, frame = store.frameOf(state), probe = store.probe(state.run, state.probe);
    Object.assign(this, {frame, items: null});
    if (!probe) return 'No sentence to show.';
    if (!frame) return store.why(state.run, state.probe, store.stepOf(state))
      || 'Nothing has been recorded for this sentence yet.';
    const attention = mapOf(frame, state.entry, 'attention'), attribution = mapOf(frame, state.entry, 'attribution'),
      saliency = saliencyOf(frame);
    const available = {attribution: Boolean(attribution.values && attribution.n === attention.n),
      saliency: Boolean(saliency)};
    if (!attention.values) return attention.note;
    this.kind = available[this.wanted] ? this.wanted : available.attribution ? 'attribution' : 'saliency';
    this.beside.value = this.kind;
    [...this.beside.options].forEach(option => { option.disabled = !available[option.value]; });
    if (!available[this.kind])
      return `No attention attribution or saliency was recorded at step ${frame.step}.`;
    this.units = shownUnits(probe, state, attention);
    this.attention = unitMap(attention, this.units);
    this.attention.values = blankBlocked(this.attention.values, frame, state.entry, attention, this.units);
    if (this.kind === 'attribution') this.besideAttribution(frame, attribution, attention);
    else this.besideSaliency(frame, saliency);
    const layers = layersOf(frame, 'attribution'),
      missing = this.wanted === 'attribution' && this.kind !== 'attribution';
    return missing ? `No attribution was recorded for ${entryPhrase(state.entry)}${layers.length
      ? `; available layers: ${layers.join(', ')}` : ''}.` : '';
  }

  scale(values, signed, limit) {
    return colourScaleOf({limit: limit ?? largestOf(values), signed, palette: this.ctx.state.palette,
    theme: this.ctx.state.theme}); }

  attentionItem(frame) {
    const limit = attentionLimit(scaleLimit(frame, 'attention', this.attention.values, this.ctx.state),
      this.units.length);
    return {title: 'attention', values: this.attention.values, scale: this.scale(null, false, limit),
      scaleTitle: attentionName(frame),
      half: this.attention.half};
  }

  besideAttribution(frame, map, attentionMap) {
    const {state} = this.ctx, attribution = unitMap(map, this.units), count = this.units.length;
    const values = blankBlocked(attribution.values, frame, state.entry, attentionMap, this.units),
      a = rowPlaces(this.attention.values, count);
    const b = rowPlaces(values, count), isTied = tiedByRanks(frame, state.entry, this.units),
      inAttention = tiedRows(this.attention.values, count);
    const inAttribution = tiedRows(values, count).map((tied, r) => Number(tied && isTied(r)));
    this.tied = inAttribution.map((tied, r) => Number(tied || inAttention[r]));
    this.unread = inAttribution.every((tied, r) => !this.tied[r] || tied && values.subarray(r * count,
      (r + 1) * count).every(v => !v));
    const difference = a.map((v, k) => this.tied[Math.floor(k / count)] ? NaN : v - b[k]);
    this.items = [this.attentionItem(frame),
      {title: 'attribution', values, scale: this.scale(null, true, scaleLimit(frame, 'attribution', values, state)),
        scaleTitle: 'attention attribution', half: attribution.half},
      {title: 'difference of ranks', values: difference, scale: this.scale(null, true, 1),
        scaleTitle: 'rank of attention − attribution',
        half: () => 0, missing: row => this.tied[row] ? 'tied' : 'no value',
          over: (context, grid) => this.markTied(context, grid)}];
  }

  markTied(context, grid) {
    const {inks} = this.maps, count = this.units.length;
    const mask = Uint8Array.from({length: count * count}, (_, k) => this.tied[Math.floor(k / count)]);
    context.strokeStyle = inks.muted;
    context.lineWidth = 1;
    context.stroke(tiesPath(grid, mask));
  }

  tieWords() {
    const rows = this.tied ? this.tied.reduce((sum, t) => sum + t, 0) : 0;
    if (!rows) return '';
    const why = this.unread ? 'attributions are 0 (the prediction does not depend on these rows)' : 'values are equal';
    return ` Ties (hatched): in ${rows} of ${this.tied.length} rows, all ${why}, so ranks cannot be compared.`;
  }

  besideSaliency(frame, saliency) {
    const count = this.units.length, counts = this.units.map(u => !u.special);
    this.tied = null;
    const over = this.units.map(u => u.tokens.reduce((sum, k) => sum + Math.abs(saliency.values[k]), 0));
    const repeated = Float32Array.from({length: count * count}, (_, k) => over[k % count]);
    const fractions = rowFractions(repeated, count, counts);
    const attention = rowFractions(this.attention.values, count, counts);
    const difference = attention.map((v, k) => v - fractions[k]);
    this.items = [this.attentionItem(frame),
      {title: '|saliency|', values: fractions, scale: this.scale(fractions, false),
        scaleTitle: 'fraction, same in all rows', half: () => NaN},
      {title: 'difference', values: difference, scale: this.scale(difference, true),
        scaleTitle: 'attention − |saliency|', half: () => NaN}];
    this.saliencyName = saliency.name;
  }

  chooseRow(row) {
    const {tokens} = this.units[row], {state} = this.ctx;
    state.set({row: tokens.includes(state.row) ? null : tokens[0]});
  }

  // The row in view of a map: the chosen row, the row that the classifier reads, or the mean over all rows.
  band({values}) { return rowOrMean(values, this.units.length, this.row < 0 ? null : this.row); }

  bandText(column) {
    const value = item => this.band(item)[column];
    const values = this.items.map(item => `${item.title} ${Number.isFinite(value(item)) ? shortNumber(value(item))
      : 'no value'}`);
    const where = readingPlace(this.ctx.state.entry, this.frame.step);
    return `${where}, mean over rows → ${quotedToken(this.units[column].label)}: ${values.join(', ')}`;
  }

  cellText(row, column) {
    const k = row * this.units.length + column, [query, key] = [row, column].map(i => quotedToken(this.units[i].label));
    const gap = missing => missing ? missing(row) : 'no value';
    const parts = this.items.map(({title, values, half, missing}) =>
      `${title} ${Number.isFinite(values[k]) ? valueWithStep(values[k], half(k)) : gap(missing)}`);
    return `${readingPlace(this.ctx.state.entry, this.frame.step)}, ${query} → ${key}: ${parts.join(', ')}`;
  }

  // Three rows of cells with the tokens above them: the chosen row of each map.
  drawBands() {
    const {state} = this.ctx, inks = inksOf(this.el, state.theme), {bands, units, items} = this,
      width = this.bandStage.clientWidth;
    const {context} = bands;
    const names = items.map(item => item.title), left = labelWidth(context, names, inks.font, 130) + 12,
      count = units.length;
    const cell = Math.min(64, (width - left - 2) / count);
    const longest = labelWidth(context, units.map(u => u.label), inks.bold, 90),
      key = longest <= cell - 6 ? 12 : longest, y = key + 6;
    bands.size(width, y + 3 * (bandHeight + bandGap) + 2);
    this.bandGrids = items.map((_, i) => new CellGrid({x: left, y: y + i * (bandHeight + bandGap), width: cell * count,
      height: bandHeight,
      ratio: bands.ratio,
      columns: {count, from: 0, span: count}, rows: {count: 1, from: 0, span: 1}}));
    columnLabels(context, this.bandGrids[0], units, {y: y - 4, space: key, inks, marked: new Set([this.row])});
    items.forEach((item, i) => this.drawBand(item, this.bandGrids[i], inks));
    const cells = band => units.slice(0, 40).map((u, c) => `${u.label.slice(0, 40)} ${shortNumber(band[c])}`)
      .join(', ');
    const values = items.map(item => `${item.title}: ${cells(this.band(item))}`);
    bands.el.setAttribute('aria-label', values.join('. '));
    bands.el.salviz = {grids: this.bandGrids, row: this.row};
    const mean = 'Mean over all rows (this task uses all of them)';
    this.bandTitle.textContent = this.row < 0 ? mean : `Row of ${quotedToken(units[this.row].label)}`;
  }

  drawBand(item, grid, inks) {
    const {context} = this.bands, count = this.units.length, band = this.band(item);
    Object.assign(context, {font: inks.font, fillStyle: inks.fg, textAlign: 'right', textBaseline: 'middle'});
    context.fillText(item.title, grid.x - 6, grid.y + grid.height / 2 + .5);
    for (let c = 0; c < count; c++) {
      context.fillStyle = cssColour(scaleColour(item.scale, band[c]));
      context.fillRect(grid.left(c), grid.y, grid.left(c + 1) - grid.left(c), grid.height);
    }
    context.strokeStyle = inks.line;
    context.lineWidth = 1;
    context.strokeRect(grid.x - .5, grid.y - .5, grid.width + 1, grid.height + 1);
  }

  bandMoved(e) {
    const [x, y] = this.bands.at(e), grid = this.bandGrids?.[0];
    if (!grid || x < grid.x || x >= grid.x + grid.width || y > this.bandGrids[2].y + bandHeight) return;
    this.maps.tip.textContent = this.row < 0 ? this.bandText(grid.columnAt(x)) : this.cellText(this.row,
      grid.columnAt(x));
  }

  sayAgreement() {
    const [a, b] = this.items.map(item => Array.from(this.band(item)));
    const counts = a.map((v, c) => Number(Number.isFinite(v) && Number.isFinite(b[c]) && !this.units[c].special));
    const r = spearman(a.map(v => v || 0), b.map(v => v || 0), counts);
    const what = this.kind === 'attribution' ? 'attribution' : `the magnitude of ${this.saliencyName}`;
    const how = this.kind === 'attribution'
      ? 'The difference compares ranks within each row (0 to 1), since attention and attribution have no common unit.'
      : 'For the difference, attention rows and |saliency| are normalised over ordinary tokens.';
    const text = Number.isFinite(r) ? r.toFixed(2).replace('-', '−') : 'undefined';
    const where = this.row < 0 ? 'of the mean row' : 'in this row';
    return `Rank correlation of attention and ${what} ${where}, over ordinary tokens: ${text}. `
      + `${how}${this.tieWords()}`;
  }
}

export const triptychPanel = {
  name: 'triptych', title: 'Triptych', order: 30, tab: true, shows: 'maps', image: 'triptych',
  help: {says: [
    'Attention, an explanation of the same tokens and their signed difference; each has its scale below.',
    'The difference compares ranks or fractions within a row; '
      + 'it does not show whether attention or the explanation is correct.'],
  keys: [['← ↑ ↓ →', 'move between cells, in all three maps'], ['Enter', 'choose the row']]},
  view: Triptych,
};
