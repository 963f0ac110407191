// Panel 'signal': an image or a multivariate series with its saliency and its masked copy; one feature over time; the
// distribution of saliency.
import {colourScale, colourScaleOf, colourTable, paintScale, shortNumber, valueWithStep} from '../lib/colour.js';
import {CellGrid, CellPainter, doubleStroke, fitText, inksOf, labelWidth, overlayInks} from '../lib/canvas.js';
import {quotedToken, rowLabels, SharpCanvas} from '../lib/canvas.js';
import {CellStage, claimKey, plainKey} from '../lib/cells.js';
import {methodArgs, methodNames} from '../state/derive.js';
import {outcomeOf} from './answers.js';
import {densityBins, densityCount, densityText, drawDensity} from './density.js';
import {drawFeature} from './feature.js';
import {signalOf, timeTicks} from '../state/signaldata.js';
import {largestOf} from './tokenmap.js';
import {attributionName, chipText, quoted, signWords} from '../lib/words.js';
import {elementOf, labelled, tickBox} from '../lib/controls.js';

const signalKeys = ['run', 'probe', 'step', 'row', 'overlays', 'palette', 'theme', 'frames', 'meta', 'size'];
const signalGap = 18, signalTitle = 20, signalLegend = 50, signalTallest = 320, signalStacks = 560, signalPairs = 900,
  signalCell = 26;
const densityHeight = 150, featureHeight = 150;
const signalMarks = {informative: 'Informative region', masked: 'Masked cells'};
const maskedTint = [74, 163, 255];
const channelNames = ['red', 'green', 'blue'];

function tinted(packed) {
  const mix = (v, tint) => Math.round(.55 * v + .45 * tint), [r, g, b] = maskedTint;
  return ((255 << 24) | (mix((packed >> 16) & 255, b) << 16) | (mix((packed >> 8) & 255, g) << 8) | mix(packed & 255,
    r)) >>> 0;
}

// The outline around the cells of a mask with `rows` rows and `columns` columns.
function maskOutline(grid, mask, rows, columns) {
  const path = new Path2D(), at = (r, c) => r >= 0 && c >= 0 && r < rows && c < columns && mask[r * columns + c] > 0;
  const line = (x0, y0, x1, y1) => { path.moveTo(x0, y0); path.lineTo(x1, y1); };
  for (let r = 0; r <= rows; r++) {
    for (let c = 0; c <= columns; c++) {
      if (at(r - 1, c) !== at(r, c) && c < columns) line(grid.left(c), grid.top(r), grid.left(c + 1), grid.top(r));
      if (at(r, c - 1) !== at(r, c) && r < rows) line(grid.left(c), grid.top(r), grid.left(c), grid.top(r + 1));
    }
  }
  return path;
}

class SignalPanel {
  constructor(ctx) {
    const cells = new CellStage({text: cell => this.cellText(cell), announce: ctx.announce,
      choose: ({row}) => this.choose(row), first: () => ({row: this.feature() ?? 0, column: 0})});
    const {el: stage, sharp, tip} = cells;
    Object.assign(this, {ctx, cells, stage, sharp, tip, painter: new CellPainter()});
    this.line = new SharpCanvas('sv-canvas');
    this.density = new SharpCanvas('sv-canvas', 'application');
    this.build();
    this.listen();
  }

  build() {
    const {state} = this.ctx, stage = (...children) => {
      const el = elementOf('div', 'sv-stage');
      el.append(...children);
      return el;
    };
    this.el = elementOf('section', 'sv-panel sv-signal');
    this.title = elementOf('h3', 'sv-title');
    this.head = elementOf('div', 'sv-head', this.title);
    this.note = elementOf('p', 'sv-note');
    const box = name => tickBox(on => state.set({overlays: {...state.overlays, [name]: on}}));
    this.boxes = Object.fromEntries(Object.keys(signalMarks).map(name => [name, box(name)]));
    this.checks = elementOf('div', 'sv-checks');
    this.checks.append(...Object.entries(signalMarks).map(([name, text]) => labelled(text, this.boxes[name],
      'sv-check')));
    this.lineTitle = elementOf('h4', 'sv-subtitle');
    this.lineStage = stage(this.line.el);
    this.densityTitle = elementOf('h4', 'sv-subtitle');
    this.densityStage = stage(this.density.el);
    this.densityTip = elementOf('output', 'sv-tip');
    this.densityTip.setAttribute('aria-live', 'off');
    this.words = elementOf('p', 'sv-note sv-words');
    this.side = elementOf('div', 'sv-signal-side');
    this.outcome = elementOf('div', 'sv-signal-outcome');
    this.densityBox = elementOf('div', 'sv-signal-density');
    this.densityBox.append(this.densityTitle, this.densityStage, this.densityTip);
    this.side.append(this.densityBox, this.outcome);
    this.el.append(this.head, this.note, this.stage, this.tip, this.checks, this.lineTitle, this.lineStage, this.side,
      this.words);
  }

  update(changed) {
    if (!signalKeys.some(key => changed.has(key))) return;
    const {store, state} = this.ctx, why = this.load();
    this.note.textContent = why;
    this.note.hidden = !why;
    for (const el of [this.stage, this.tip, this.checks, this.lineTitle, this.lineStage, this.side, this.words])
      el.hidden = !this.shown;
    this.title.textContent = this.probe?.modality === 'series' ? 'Series' : 'Image';
    this.el.setAttribute('aria-label', this.title.textContent);
    if (!this.shown || !this.stage.clientWidth) return;
    this.inks = inksOf(this.el, state.theme);
    this.drawMaps();
    this.showChecks();
    this.drawLine();
    this.drawDistribution();
    this.outcome.replaceChildren(outcomeOf(this.frame, store.run(state.run)));
    this.words.textContent = this.sayWords();
  }

  load() {
    const {store, state} = this.ctx;
    this.shown = null;
    this.probe = store.probe(state.run, state.probe);
    this.frame = store.frameOf(state);
    if (!this.probe) return 'Nothing to show.';
    if (!this.frame) return store.why(state.run, state.probe, store.stepOf(state)) || 'Nothing has been recorded yet.';
    this.shown = signalOf(this.frame);
    return this.shown ? '' : `No input or saliency was recorded at step ${this.frame.step}.`;
  }

  showChecks() {
    const {overlays} = this.ctx.state, {shown} = this;
    const available = {informative: shown.informative, masked: shown.isMasked && shown.masked};
    this.boxes.masked.nextSibling.textContent = `${signalMarks.masked} (${this.roomy(this.place.grids[0])
      ? 'dots' : 'tinted blue'})`;
    for (const [name, box] of Object.entries(this.boxes)) {
      box.checked = overlays[name] ?? true;
      box.parentElement.hidden = !available[name];
    }
    this.checks.hidden = !Object.values(available).some(Boolean);
  }

  // Low pixel values are dark. For a series, large values contrast with the page background, as in the figures.
  scaleOf(kind) {
    const {theme} = this.ctx.state, {shown} = this;
    if (kind === 'saliency' || kind === 'ranking')
      return colourScaleOf({limit: largestOf(shown[kind].values), signed: true, theme});
    return {linear: true, low: shown.low, high: shown.high,
      table: colourTable('grey', shown.modality === 'series' ? theme : 'dark')};
  }

  // The class for which the method computes the saliency that it ranks by.
  rankedClass() {
    const {frame} = this, p = frame.get('probabilities')?.values(), {classes} = this.ctx.store.run(this.ctx.state.run);
    const gold = methodArgs(frame, 'SaliencyGuided').target !== 'predicted' && Number.isInteger(frame.label);
    const k = gold ? frame.label : p ? p.indexOf(Math.max(...p)) : null;
    return k === null ? null : {name: classes?.[k] ?? `class ${k}`, gold};
  }

  // The available maps, each with its colours.
  items() {
    const {shown} = this, input = this.scaleOf('input');
    const [saliency, ranking] = ['saliency', 'ranking'].map(kind => shown[kind] && this.scaleOf(kind)),
      of = shown.ranking && this.rankedClass();
    const all = [['input', shown.input, input, 'input'], ['saliency', shown.saliency, saliency, shown.saliency?.name],
      ['ranking', shown.ranking, ranking, of ? `${shown.ranking.name} (${chipText(of.name)})` : shown.ranking?.name],
      ['masked', shown.masked, input, 'masked input']];
    return all.filter(([, map]) => map).map(([kind, map, scale, title]) =>
      ({kind, map, scale, title, cells: this.coloursOf(kind, map, scale)}));
  }

  coloursOf(kind, map, scale) {
    if (!scale.linear) return paintScale(scale, map.values, new Uint32Array(map.values.length));
    const part = v => Math.max(0, Math.min(255, Math.round(255 * (v - scale.low) / (scale.high - scale.low || 1))));
    if (map.channels?.length === 3) {
      const [r, g, b] = map.channels;
      return Uint32Array.from(r, (_, k) => ((255 << 24) | (part(b[k]) << 16) | (part(g[k]) << 8) | part(r[k])) >>> 0);
    }
    return Uint32Array.from(map.values, v => Number.isFinite(v) ? scale.table[part(v)] : 0);
  }

  layout(items) {
    const {shown} = this, width = this.stage.clientWidth, pairs = items.length > 3 && width < signalPairs;
    const across = width < signalStacks ? 1 : pairs ? 2 : items.length;
    const labels = shown.rowNames?.map(row => row.label);
    const left = labels ? 26 + labelWidth(this.sharp.context, labels, this.inks.bold, Math.min(120, width * .16)) : 2;
    const space = (width - left - 2 - (across - 1) * signalGap) / across, {rows, columns} = shown,
      ratio = window.devicePixelRatio || 1;
    const image = shown.modality === 'image',
      cell = Math.min(signalCell, space / columns, image ? signalTallest / rows : Infinity);
    const mapWidth = image ? cell * columns : space,
      mapHeight = image ? cell * rows : Math.min(signalTallest, Math.max(60, rows * 18));
    const under = image ? 8 : 30, tall = signalTitle + mapHeight + under + signalLegend;
    const pitch = signalGap + (image ? Math.min(space, Math.max(mapWidth, 230)) : space);
    const grids = items.map((_, i) => new CellGrid({x: left + (i % across) * pitch,
      y: Math.floor(i / across) * tall + signalTitle, width: mapWidth, height: mapHeight,
      columns: {count: columns, from: 0, span: columns}, rows: {count: rows, from: 0, span: rows}, ratio}));
    const titles = across > 1 ? pitch - 8 : space;
    return {grids, width, height: Math.ceil(items.length / across) * tall, across, under, left, titles};
  }

  drawMaps() {
    const items = this.drawn = this.items(), place = this.place = this.layout(items), {sharp, shown, inks} = this,
      {context} = sharp;
    sharp.size(place.width, place.height);
    items.forEach((item, i) => this.drawItem(item, place.grids[i], i));
    const series = shown.modality === 'series', moves = `Arrow keys move between cells${series
      ? ', Enter chooses the feature' : ''}.`;
    const size = series ? `${shown.rows} features by ${shown.columns} time steps`
      : `${shown.rows} by ${shown.columns} pixels`;
    sharp.el.setAttribute('aria-label', `${items.map(item => item.title).join(', ')}: ${size}. ${moves}`);
    sharp.el.salviz = {grids: place.grids, kinds: items.map(item => item.kind), scales: items.map(item => item.scale)};
    context.font = inks.font;
    this.cells.show(place.grids, inks.theme);
  }

  drawItem({kind, map, title, cells, scale}, grid, i) {
    const {shown, inks, sharp, place} = this, {context} = sharp, {overlays} = this.ctx.state, {rows, columns} = shown;
    const masks = kind === 'masked' && shown.isMasked && (overlays.masked ?? true), tint = masks && !this.roomy(grid);
    this.painter.paint(context, grid,
      this.strongest(grid, tint ? cells.map((c, k) => shown.isMasked[k] ? tinted(c) : c) : cells, map));
    context.strokeStyle = inks.line;
    context.lineWidth = 1;
    context.strokeRect(grid.x - .5, grid.y - .5, grid.width + 1, grid.height + 1);
    if (shown.informative && (overlays.informative ?? true))
      this.outline(grid, maskOutline(grid, shown.informative, rows, columns), 2);
    if (masks && !tint) this.dots(grid);
    if (this.feature() !== null && shown.rowNames) this.markFeature(grid);
    Object.assign(context, {font: inks.bold, fillStyle: inks.fg, textAlign: 'left', textBaseline: 'bottom'});
    context.fillText(fitText(context, title, place.titles), grid.x, grid.y - 4);
    if (shown.rowNames) this.drawAxes(grid, i % place.across === 0);
    this.drawScale(scale, kind, grid);
  }

  // If several time steps share a pixel, the value that differs most from 0 is drawn.
  strongest(grid, cells, map) {
    const {shown} = this;
    if (shown.columns <= grid.across || shown.modality === 'image') return cells;
    const out = Uint32Array.from(cells), per = shown.columns / grid.across;
    for (let r = 0; r < shown.rows; r++) {
      for (let p = 0; p < grid.across; p++) {
        const from = r * shown.columns + Math.floor(p * per),
          to = r * shown.columns + Math.max(Math.floor(p * per) + 1, Math.floor((p + 1) * per));
        let best = from;
        for (let k = from; k < to; k++) if (Math.abs(map.values[k]) > Math.abs(map.values[best])) best = k;
        out.fill(cells[best], from, to);
      }
    }
    return out;
  }

  outline(grid, path, width) {
    grid.clipped(this.sharp.context, () => doubleStroke(this.sharp.context, path, overlayInks(this.inks.theme), width));
    }

  // A dot in each masked cell where there is room for it, otherwise a tint.
  dots(grid) {
    const {context} = this.sharp, {shown} = this, {ink, halo} = overlayInks(this.inks.theme);
    for (const [colour, size] of [[halo, 2.2], [ink, 1.2]]) {
      const path = new Path2D();
      shown.isMasked.forEach((masked, k) => {
        if (!masked) return;
        const [x, y] = grid.middle(Math.floor(k / shown.columns), k % shown.columns);
        path.moveTo(x + size, y);
        path.arc(x, y, size, 0, 2 * Math.PI);
      });
      context.fillStyle = colour;
      context.fill(path);
    }
  }

  roomy(grid) { return Math.min(grid.pitch, grid.rowPitch) >= 8; }

  markFeature(grid) {
    const row = this.feature(), {context} = this.sharp;
    context.fillStyle = this.inks.accent;
    for (const x of [grid.x - 5, grid.x + grid.width + 2])
      context.fillRect(x, grid.top(row), 3, Math.max(2, grid.top(row + 1) - grid.top(row)));
  }

  drawAxes(grid, first) {
    const {inks, shown} = this, {context} = this.sharp,
      marked = new Set(this.feature() === null ? [] : [this.feature()]);
    if (first) {
      rowLabels(context, grid, shown.rowNames, {x: grid.x - 8, space: grid.x - 26, inks, marked});
      Object.assign(context, {font: inks.small, fillStyle: inks.muted, textAlign: 'center', textBaseline: 'top'});
      context.save();
      context.translate(2, grid.y + grid.height / 2);
      context.rotate(-Math.PI / 2);
      context.fillText('feature', 0, 0);
      context.restore();
    }
    Object.assign(context, {font: inks.small, fillStyle: inks.muted, strokeStyle: inks.muted, textAlign: 'center',
      textBaseline: 'top'});
    for (const t of timeTicks(shown.columns, grid.width)) {
      const x = grid.left(t) + (grid.left(t + 1) - grid.left(t)) / 2;
      context.beginPath();
      context.moveTo(x, grid.y + grid.height + 1);
      context.lineTo(x, grid.y + grid.height + 4);
      context.stroke();
      context.fillText(t, x, grid.y + grid.height + 5);
    }
    context.fillText('time step', grid.x + grid.width / 2, grid.y + grid.height + 17);
  }

  drawScale(scale, kind, grid) {
    const {shown, inks, place} = this, {context} = this.sharp, y = grid.y + grid.height + place.under + 16;
    const width = Math.min(220, Math.max(grid.width, 150));
    const common = {x: grid.x, y, width, inks};
    if (!scale.linear) return colourScale(context, scale, {...common, title: 'saliency (square-root scale)'});
    const ticks = [[shortNumber(scale.low), 0], [shortNumber((scale.low + scale.high) / 2), .5],
      [shortNumber(scale.high), 1]];
    const title = shown.colours ? 'value per colour channel' : shown.averaged ? 'mean over channels' : 'value';
    return colourScale(context, scale, {...common, ticks, title});
  }

  // The feature whose line is drawn: the chosen one, or the one with the largest saliency.
  feature() {
    const {shown} = this, {row} = this.ctx.state;
    if (!shown?.rowNames) return null;
    return row !== null && row < shown.rows ? row : shown.strongest;
  }

  // A dashed line needs a few pixels per time step.
  copied() { return Boolean(this.shown.masked) && this.lineStage.clientWidth > 3 * this.shown.columns; }

  drawLine() {
    const row = this.feature(), {shown} = this, isShown = row !== null && Boolean(shown.input);
    this.lineTitle.hidden = this.lineStage.hidden = !isShown;
    if (!isShown) return;
    const name = shown.rowNames[row].label, copy = this.copied() ? '; dashed: the masked copy' : '';
    this.lineTitle.textContent = `Feature ${quotedToken(name)} over time, coloured by saliency${copy}`;
    this.line.size(this.lineStage.clientWidth, featureHeight);
    const scale = shown.saliency && this.scaleOf('saliency'), [low, high] = shown.rowEnds(row).map(shortNumber);
    drawFeature(this.line, shown, row, {left: this.place.left, scale, copied: this.copied(), inks: this.inks});
    this.line.el.setAttribute('aria-label', `${this.lineTitle.textContent}: from ${low} to ${high}`);
  }

  drawDistribution() {
    const {store, state} = this.ctx, {shown, frame} = this, start = store.shipped(state.run, state.probe)[0];
    const first = start === undefined || start === frame.step
      ? null : signalOf(store.frame(state.run, state.probe, start));
    const side = (signal, step) => signal?.saliency ? [{values: signal.saliency.values, name: `step ${step}`}] : [];
    const sides = [...side(first, start), ...side(shown, frame.step)];
    this.densityBox.hidden = !shown.saliency;
    if (!shown.saliency) return;
    this.bins = densityBins(sides);
    this.densityTitle.textContent = sides.length > 1
      ? `Distribution of saliency at step ${start} (first recorded) and step ${frame.step}`
      : 'Distribution of saliency at the first recorded step (later steps are compared with it)';
    this.density.size(this.densityStage.clientWidth, densityHeight);
    this.densityPlace = drawDensity(this.density, this.bins, this.inks);
    this.density.el.salviz = {bins: this.bins};
    this.density.el.setAttribute('aria-label',
      `${densityText(this.bins)} Left and right arrow keys move between bins.`);
    this.densityTip.textContent = densityText(this.bins);
  }

  sayWords() {
    const {shown, frame} = this, notes = [],
      {saliency_method: method, words, explains: explained = words?.explained} = frame.info ?? {};
    const how = method ? ` (${attributionName(method)}, for ${explained})` : '';
    if (shown.saliency) notes.push(`Saliency${how}: ${signWords(frame.info, true)}`);
    if (shown.colours)
      notes.push('Each colour channel ranges from black (lowest value) to full colour (highest value).');
    if (shown.averaged) notes.push(`The image shows the mean over ${shown.input.channels.length} channels.`);
    if (shown.isMasked) notes.push(this.sayMasked());
    if (this.place.grids[0].across < shown.columns && shown.modality === 'series')
      notes.push('Several time steps share a pixel; the value furthest from 0 is drawn.');
    if (shown.informative) notes.push('Outlined: the region that determines the class in this synthetic data set.');
    if (!frame.info?.patches) notes.push(`This ${this.probe.modality === 'series' ? 'time-series' : 'image'} network `
      + 'has no tokens or recorded attention, so the heads, map and sentence panels are hidden.');
    const about = [...frame.info?.notes ?? [], frame.info?.awaited ?? ''].filter(Boolean);
    return [...notes, ...about.map(note => note.replace(/[^.]$/, '$&.'))].join(' ');
  }

  // The masked cells are chosen by the saliency that the method ranks by, which may explain another class than the
  // predicted one.
  sayMasked() {
    const {shown, frame} = this, masked = shown.isMasked.reduce((a, b) => a + b, 0),
      counts = `${masked} of ${shown.isMasked.length} cells are masked`;
    if (!methodNames(frame).includes('SaliencyGuided')) return `${counts}.`;
    const {ranking, score, unit} = methodArgs(frame, 'SaliencyGuided'), isSized = ranking === 'magnitude';
    const low = isSized ? 'closest to zero' : 'lowest', of = this.rankedClass();
    const name = shown.ranking ? 'ranking saliency' : 'saliency';
    const patches = `in the patches with the lowest summed ${isSized ? 'absolute ' : ''}${name}`;
    const which = `${counts}: those ${unit === 'patch' ? patches : `whose ${name} is ${low}`}`;
    if (!shown.ranking) return `${which}.`;
    const scored = score === 'log_probability' ? 'the log-probability of ' : '';
    const about = of ? ` (for ${scored}${quoted(of.name)}, ${of.gold ? 'the label' : 'the predicted class'})` : '';
    return `${which}${about}.`;
  }

  // "time step 12, feature “x”: input 0.31 ± 0.01, saliency −0.02 ± 0.001, masked input 0.5 ± 0.01 (masked)"
  cellText({row, column}) {
    const {shown} = this, k = row * shown.columns + column, parts = [];
    const where = shown.rowNames ? `time step ${column}, feature ${quotedToken(shown.rowNames[row].label)}`
      : `row ${row}, column ${column}`;
    const text = map => !map.channels || map.channels.length === 1 || !shown.colours ? valueWithStep(map.values[k],
      map.half(k))
      : map.channels.map((channel, c) => `${channelNames[c]} ${valueWithStep(channel[k], map.half(k, c))}`).join(', ');
    if (shown.input) parts.push(`input ${text(shown.input)}`);
    for (const map of [shown.saliency, shown.ranking]) if (map) parts.push(`${map.name} ${text(map)}`);
    if (shown.masked) parts.push(`masked input ${text(shown.masked)}${shown.isMasked ? shown.isMasked[k] ? ' (masked)'
      : ' (not masked)' : ''}`);
    if (shown.informative?.[k]) parts.push('informative');
    return `${where}: ${parts.join('; ')}`;
  }

  choose(row) {
    const {state} = this.ctx;
    if (this.shown.rowNames) state.set({row: state.row === row ? null : row});
  }

  listen() {
    this.density.el.addEventListener('pointermove', e => {
      if (this.densityPlace) this.densityTip.textContent = densityText(this.bins, this.densityPlace,
        this.density.at(e));
    });
    this.density.el.addEventListener('pointerleave',
      () => { if (this.bins) this.densityTip.textContent = densityText(this.bins); });
    this.density.el.addEventListener('keydown', e => this.readBin(e));
  }

  readBin(e) {
    const by = plainKey(e, {ArrowLeft: -1, ArrowRight: 1});
    if (!by || !this.densityPlace) return;
    claimKey(e);
    this.bin = Math.max(0, Math.min(densityCount - 1, (this.bin ?? -1) + by));
    const {x, width} = this.densityPlace, text = densityText(this.bins, this.densityPlace,
      [x + (this.bin + .5) * width / densityCount]);
    this.densityTip.textContent = text;
    this.ctx.announce(text);
  }
}

export const signalPanel = {
  name: 'signal', title: 'Signal', order: 70, shows: 'signals', image: 'signal', page: 'below',
  help: {says: [
    'The input, its saliency and, if training masks it, the masked copy; each has its scale below.',
    'Saliency shows which inputs change the score; the informative region is outlined if it is known.'],
  keys: [['← ↑ ↓ →', 'move between cells'], ['Enter', 'choose the feature of a series'],
    ['← →', 'in the distribution: move between bins']]},
  tour: 'the input and its saliency. Point at a cell, or use the arrow keys, to read its values.',
  view: SignalPanel,
};
