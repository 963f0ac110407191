// Panel 'heads': all maps of a frame as a grid of layers x heads on one canvas, painted straight from the stored codes;
// choosing, sorting and filtering.
import {doubleStroke, fitText, inksOf, overlayInks, quotedToken, SharpCanvas, shownToken} from '../lib/canvas.js';
import {claimKey, plainKey} from '../lib/cells.js';
import {attentionLimit, colourScale, colourScaleOf, paintScale, percent, shortNumber} from '../lib/colour.js';
import {buttonOf, choiceOf, elementOf, labelled, tallest} from '../lib/controls.js';
import {patternEverywhere, patternWords} from './overlays.js';
import {codeStrengths, codeValues, GridMeans, TilePainter} from './tiles.js';
import {coloursOf, frameLimit, largestOf} from './tokenmap.js';
import {attentionName, entryTitle, headScores, layersOf, lossFractions, mapNames, mapOf} from '../state/derive.js';
import {namedPattern, patternFractions, pooledRow, scoreLabels, visibleTokens} from '../state/derive.js';
import {countWords} from '../lib/words.js';

const gridKeys = ['run', 'probe', 'step', 'entry', 'what', 'hideSpecial', 'scale', 'palette', 'sort', 'filter', 'theme',
  'frames', 'meta', 'size',
  'overlays'];
const gridGap = 3, smallestTile = 14, largestTile = 110, tallestGrid = 660, slowDelay = 120, quickTokens = 48;
const narrowestLegend = 150;
const sortTitles = {order: 'layer and head', agreement: 'agreement with saliency', pattern: 'pattern loss',
  entropy: 'entropy',
  change: 'change since the first step'};
const shortScores = {agreement: 'agreement', pattern: 'pattern loss', entropy: 'entropy', change: 'change'};
const filterSizes = [0, 6, 12, 24, 48];

// The choice between attention and attribution, for the panels that show maps.
export function whatChoice({state}) {
  const el = elementOf('span', 'sv-what');
  el.setAttribute('role', 'group');
  el.setAttribute('aria-label', 'kind of map');
  const buttons = ['attention', 'attribution'].map(what => buttonOf(what, `show ${what}`, () => state.set({what})));
  el.append(...buttons);
  const choice = {el, both: false};
  choice.update = frame => {
    choice.both = Boolean(frame && layersOf(frame, 'attribution').length);
    buttons.forEach(button => button.setAttribute('aria-pressed', String(state.what === button.textContent)));
    buttons[1].disabled = !choice.both && state.what !== 'attribution';
    buttons[1].title = choice.both ? 'show attribution' : 'no attention attribution was recorded at this step';
  };
  return choice;
}

// Is the head of a tile part of the mean that is shown?
function isOneOf(entry, tile) {
  return entry.kind === 'mean' && tile.kind === 'head'
    && entry.heads.some(([layer, head]) => layer === tile.layer && head === tile.head);
}

// A Shift- or Ctrl-click adds a head to the mean or removes it; a single remaining head is shown by itself.
function meanWith(entry, {layer, head}) {
  const before = entry.kind === 'mean' ? entry.heads : entry.kind === 'head' ? [[entry.layer, entry.head]] : [];
  const others = before.filter(([l, h]) => l !== layer || h !== head);
  const heads = others.length < before.length && others.length ? others : [...others, [layer, head]];
  if (heads.length === 1) return {kind: 'head', layer: heads[0][0], head: heads[0][1]};
  return {kind: 'mean', layer: heads[0][0], head: heads[0][1], heads};
}

function sameEntry(a, b) {
  if (a.kind !== b.kind) return false;
  return (a.layer === b.layer || !['head', 'heads'].includes(a.kind))
    && (a.head === b.head || !['head', 'layers'].includes(a.kind));
}

class HeadsGrid {
  constructor(ctx) {
    this.ctx = ctx;
    this.sharp = new SharpCanvas('sv-canvas', 'application');
    this.painter = new TilePainter();
    this.means = new GridMeans();
    this.names = new Map();
    this.build();
    this.listen();
  }

  build() {
    const {state} = this.ctx;
    this.el = elementOf('section', 'sv-panel sv-heads');
    this.el.setAttribute('aria-label', 'all heads');
    this.what = whatChoice(this.ctx);
    this.sort = choiceOf(Object.entries(sortTitles), sort => state.set({sort}));
    this.filter = choiceOf(filterSizes.map(k => [k, k ? `first ${k}` : 'all']), k => state.set({filter: Number(k)}));
    const head = this.head = elementOf('div', 'sv-head');
    this.title = elementOf('h3', 'sv-title', 'Heads');
    head.append(this.title, this.what.el, labelled('Sort by', this.sort), labelled('Show', this.filter));
    this.stage = elementOf('div', 'sv-stage');
    this.stage.append(this.sharp.el);
    this.tip = elementOf('output', 'sv-tip');
    this.tip.setAttribute('aria-live', 'off');
    this.note = elementOf('p', 'sv-note');
    this.patterns = elementOf('p', 'sv-note sv-patterns');
    this.el.append(head, this.note, this.stage, this.tip, this.patterns);
  }

  update(changed) {
    if (!gridKeys.some(key => changed.has(key))) return;
    const started = performance.now(), {store, state} = this.ctx, frame = store.frameOf(state);
    this.frame = frame;
    this.name = mapNames[state.what];
    if (['run', 'probe', 'step', 'what', 'sort'].some(key => changed.has(key))) this.tip.textContent = '';
    this.sort.value = state.sort;
    this.filter.value = String(state.filter);
    this.what.update(frame);
    this.title.textContent = frame?.info?.target_tokens ? 'Heads of the encoder' : 'Heads';
    const tensor = frame?.get(this.name) ?? null, why = this.missing(tensor);
    this.tensor = tensor;
    this.note.textContent = why;
    this.note.hidden = !why;
    this.stage.hidden = this.tip.hidden = !tensor;
    this.guided = tensor ? this.guidedHeads() : [];
    this.sayPatterns();
    if (!tensor || !this.stage.clientWidth) return;
    this.arrange();
    this.draw();
    this.sharp.el.salviz = {tiles: this.tiles, side: this.place.side, ratio: this.sharp.ratio,
      ms: performance.now() - started};
  }

  missing(tensor) {
    const {store, state} = this.ctx;
    if (!store.probe(state.run, state.probe)) return 'No sentence to show.';
    if (!this.frame) return store.why(state.run, state.probe, store.stepOf(state))
      || 'Nothing has been recorded for this sentence yet.';
    const name = state.what === 'attribution' ? 'attention attribution' : 'attention';
    if (!tensor) return `No ${name} was recorded at step ${this.frame.step}; choose another step or kind of map.`;
    const unscored = state.sort !== 'order' && !this.scored().scores.some(Number.isFinite);
    if (unscored) return `Cannot sort by ${shortScores[state.sort]} at this step; heads are in their original order.`;
    const tokens = store.probe(state.run, state.probe).tokens.length;
    const covered = Math.ceil(tokens / tensor.pooled);   // `pooled` is the number of cells per side
    const thumbnails = tensor.pooled > 1
      ? `Thumbnails: each cell covers ${covered} × ${covered} positions, `
        + `because the sentence has ${tokens} tokens.` : '';
    return [thumbnails, this.tieWords()].filter(Boolean).join(' ');
  }

  // The scores that several heads share.
  tiedScores() {
    const {sort} = this.ctx.state, seen = new Set(), tied = new Set();
    if (sort === 'order') return tied;
    for (const score of this.scored().scores.filter(Number.isFinite)) (seen.has(score) ? tied : seen).add(score);
    return tied;
  }

  // Heads with equal scores follow one another, which must not be read as a ranking.
  tieWords() {
    const {sort, filter} = this.ctx.state, tied = this.tiedScores();
    if (!tied.size) return '';
    const {scores, direction} = this.scored(), name = shortScores[sort],
      sorted = scores.filter(Number.isFinite).sort((a, b) => direction * (a - b));
    const many = sorted.filter(score => tied.has(score)).length;
    const who = many === sorted.length && tied.size === 1 ? `all heads have the same ${name}`
      : `${many} of ${sorted.length} heads have the same ${name} as another head (=)`;
    const cut = filter && sorted[filter - 1] === sorted[filter]
      ? ` The limit of ${filter} heads leaves out some tied heads.` : '';
    return `Ties: ${who}; tied heads are ordered by layer and head.${cut}`;
  }

  scored() { return headScores(this.ctx.store, this.ctx.state, this.ctx.state.sort); }

  scoreOf({kind, layer, head}, by = this.ctx.state.sort) {
    if (kind !== 'head' || by === 'order') return NaN;
    const {layers, heads, scores} = headScores(this.ctx.store, this.ctx.state, by), i = layers.indexOf(layer);
    return i < 0 ? NaN : scores[i * heads + head];
  }

  // The tiles, with the row and the column of each.
  arrange() {
    const {state} = this.ctx, {layers} = this.tensor, heads = this.tensor.shape[1],
      rollout = state.what === 'attention' && this.tensor.pooled === 1;
    const each = layers.flatMap((layer, row) => Array.from({length: heads},
      (_, head) => ({entry: {kind: 'head', layer, head}, row, column: head, i: row})));
    this.flows = state.sort !== 'order' || state.filter > 0;
    if (!this.flows) {
      this.columns = heads + 1;
      this.rows = layers.length + 1;
      this.tiles = [...each,
        ...layers.map((layer, row) => ({entry: {kind: 'heads', layer, head: 0}, row, column: heads, i: row})),
        ...Array.from({length: heads},
          (_, head) => ({entry: {kind: 'layers', layer: layers[0], head}, row: layers.length, column: head})),
        {entry: {kind: 'all', layer: layers[0], head: 0}, row: layers.length, column: heads}];
      if (rollout)
        this.tiles.push({entry: {kind: 'rollout', layer: layers[0], head: 0}, row: layers.length + 1, column: heads});
      return;
    }
    const {scores, direction} = this.scored(),
      place = t => scores[this.scored().layers.indexOf(t.entry.layer) * heads + t.entry.head];
    const worth = t => state.sort === 'order' ? 0 : Number.isFinite(place(t)) ? direction * place(t) : Infinity;
    const sorted = each.map(t => [worth(t), t]).sort((a, b) => a[0] === b[0] ? 0 : a[0] - b[0]).map(([, t]) => t)
      .slice(0, state.filter
      || each.length);
    this.columns = Math.min(heads + 1, Math.max(3, Math.ceil(Math.sqrt(1.7 * sorted.length))));
    this.tiles = sorted.map((t, k) => ({...t, row: Math.floor(k / this.columns), column: k % this.columns}));
    this.rows = Math.ceil(sorted.length / this.columns);
  }

  layout() {
    const avail = this.stage.clientWidth, ratio = window.devicePixelRatio || 1, left = this.flows ? 1 : 50,
      top = this.flows ? 2 : 30;
    const under = this.flows ? 25 : 0;
    const space = (avail - left - 2) / this.columns - gridGap, cells = this.visible.length;
    const most = Math.min(largestTile, Math.max(24, tallest(this.el, tallestGrid) / this.rows - gridGap));
    let side = Math.floor(Math.max(smallestTile, Math.min(most, space)) * ratio);
    // Use cells of equal size where this costs little space.
    if (side >= cells && Math.floor(side / cells) * cells >= .8 * side) side = Math.floor(side / cells) * cells;
    const pitch = Math.ceil(side + gridGap * ratio) / ratio, legend = 46,
      rollout = this.tiles.some(t => t.entry.kind === 'rollout');
    // Below few heads, there is no space for the legend to the left of the rollout tile.
    const narrow = !this.flows && (this.columns - 1) * pitch - 56 < narrowestLegend, below = rollout && narrow;
    const body = top + this.rows * (pitch + under),
      foot = below ? legend + pitch + 4 : Math.max(legend, rollout ? pitch + 4 : 0);
    const width = Math.max(avail, left + this.columns * pitch);
    return {side, css: side / ratio, pitch, left, top, under, ratio, width, narrow, foot: body, height: body + foot,
      legend: body + (below ? pitch + 4 : 0)};
  }

  place2d({row, column, entry}) {
    const {left, top, pitch, under, ratio} = this.place, snap = v => Math.round(v * ratio) / ratio;
    return [snap(left + column * pitch), snap(top + row * (pitch + under) + (entry.kind === 'rollout' ? 4 : 0))];
  }

  draw() {
    const {store, state} = this.ctx, {sharp, tensor} = this, probe = store.probe(state.run, state.probe);
    const inks = this.inks = inksOf(this.el, state.theme);
    const n = tensor.shape.at(-1);
    this.visible = tensor.pooled > 1 || probe.tokens.length !== n ? Array.from({length: n}, (_, i) => i)
      : visibleTokens(probe, state);
    if (!this.visible.length) this.visible = Array.from({length: n}, (_, i) => i);
    this.place = this.layout();
    sharp.size(this.place.width, this.place.height);
    this.painter.prepare(sharp.context, this.place.side, n, this.visible);
    this.order = codeStrengths(tensor.codec);
    this.tables = new Map();
    for (const tile of this.tiles) {
      [tile.x, tile.y] = this.place2d(tile);
      if (tile.entry.kind === 'head') this.drawTile(tile);
    }
    this.drawSlow();
    this.drawGuided(inks);
    this.drawLabels(inks);
    this.drawLegend(inks);
    this.drawChosenTile(inks);
    const {layers} = tensor;
    const size = `${countWords(layers.length, 'layer')} with ${countWords(tensor.shape[1], 'head')} each`;
    sharp.el.setAttribute('aria-label',
      `${state.what} of ${size}; chosen: ${entryTitle(state.entry)}. Arrow keys choose a head, `
      + 'Shift-click or Ctrl-click adds a head to a mean.');
  }

  drawTile(tile, values = null) {
    const {ratio} = this.place;
    if (values) this.paintValues(values);
    else this.paintCodes(tile.i, tile.entry.head);
    this.painter.put(Math.round(tile.x * ratio), Math.round(tile.y * ratio));
  }

  paintCodes(i, head) {
    const {painter, tensor} = this, picked = painter.pickCodes(tensor.codes(i, head), this.order.strengths);
    const table = this.tableFor(i, head, picked), {colours} = painter;
    for (let point = 0; point < colours.length; point++) colours[point] = table[picked[point]];
  }

  // The colours of the 256 codes. With one limit for all maps there is a single table; with a limit per map, one table
  // for each maximum.
  tableFor(i, head, picked) {
    const {state} = this.ctx, {tensor, order} = this, signed = tensor.codec === 'level8';
    let most = 0;
    if (state.scale === 'map') for (const strength of picked) if (strength > most) most = strength;
    const key = `${signed ? tensor.scaleOf(i, head) : 1} ${most}`;
    if (!this.tables.has(key)) {
      const valueOf = codeValues(tensor, i, head), values = Float64Array.from(order.codes, code => valueOf[code]);
      const limit = state.scale === 'map' ? this.visibleLimit(Math.abs(values[most])) : this.commonLimit();
      this.tables.set(key, coloursOf(values,
        colourScaleOf({limit, signed, palette: state.palette, theme: state.theme})));
    }
    return this.tables.get(key);
  }

  commonLimit() {
    const {scale, what} = this.ctx.state;
    return scale === 'unit' && what === 'attention' ? 1 : this.visibleLimit(frameLimit(this.frame, what));
  }

  visibleLimit(limit) {
    const {store, state} = this.ctx;
    return state.what === 'attention' ? attentionLimit(limit, store.probe(state.run, state.probe).tokens.length)
      : limit;
  }


  paintValues(values) {
    const {state} = this.ctx, {painter} = this, picked = painter.pickValues(values);
    let limit = state.scale === 'map' ? 0 : this.commonLimit();
    if (state.scale === 'map') limit = this.visibleLimit(largestOf(picked));
    const scale = colourScaleOf({limit, signed: state.what === 'attribution', palette: state.palette,
      theme: state.theme});
    paintScale(scale, picked, painter.colours);
  }

  // Means over heads and layers, and the product of all layers, take longer than everything else: they are drawn once
  // the reader stays at a frame.
  drawSlow() {
    const {frame, tiles} = this, {context} = this.sharp, {css} = this.place,
      slow = tiles.filter(tile => tile.entry.kind !== 'head');
    clearTimeout(this.later);
    if (this.averaged === this.slowKey() || this.tensor.shape.at(-1) <= quickTokens) return this.paintSlow(slow);
    context.strokeStyle = this.inks.line;
    for (const {x, y} of slow) context.strokeRect(x + .5, y + .5, css - 1, css - 1);
    this.later = setTimeout(() => { if (this.frame === frame && this.tiles === tiles) this.paintSlow(slow); },
      slowDelay);
    return null;
  }

  slowKey() { return [this.frame.run, this.frame.probe, this.frame.step, this.name].join(); }

  paintSlow(tiles) {
    if (!tiles.length) return;
    const {frame} = this, maps = this.means.of(frame, this.name);
    this.averaged = this.slowKey();
    for (const tile of tiles) {
      const {kind, head} = tile.entry, rolled = kind === 'rollout' ? mapOf(frame, tile.entry, 'attention').values
        : null;
      const values = kind === 'heads' ? maps.heads[tile.i] : kind === 'layers' ? maps.layers[head] : kind === 'all'
        ? maps.all : rolled;
      if (values) this.drawTile(tile, values);
    }
    if (tiles.some(tile => sameEntry(tile.entry, this.ctx.state.entry))) this.drawChosenTile(this.inks);
  }

  // [{layer, head, name, fraction (of the attention on the pattern), loss (fraction of the pattern loss)}] of the
  // guided heads. The pattern names of a sentence are cached.
  guidedHeads() {
    const {store, state} = this.ctx, loss = lossFractions(this.frame), overlaps = patternFractions(this.frame),
      target = this.frame.get('pattern_target');
    if (!loss) return [];
    const labels = store.probe(state.run, state.probe).labels, n = labels.length;
    return [...loss.guided].flatMap((flag, k) => {
      const layer = loss.layers[Math.floor(k / loss.heads)], head = k % loss.heads;
      if (!flag) return [];
      const named = () => target.pooled > 1 ? 'pattern' : patternWords(target.at(target.layers.indexOf(layer), head), n,
        labels);
      const key = [this.frame.run, this.frame.probe, layer, head].join();
      if (!this.names.has(key)) this.names.set(key, namedPattern(this.frame, layer, head) ?? named());
      const fraction = overlaps[k],
        everywhere = !Number.isFinite(fraction) && patternEverywhere(this.frame, layer, head);
      return [{layer, head, name: this.names.get(key), fraction, everywhere, loss: loss.fractions[k]}];
    });
  }

  guidedAt({kind, layer, head}) {
    return kind === 'head' ? this.guided.find(each => each.layer === layer && each.head === head) ?? null : null;
  }

  // "Guided heads (corner mark) and their attention on the pattern: “next” (2 heads), 61 % to 83 %; …"
  sayPatterns() {
    const byName = new Map();
    for (const guided of this.guided) byName.set(guided.name, [...byName.get(guided.name) ?? [], guided]);
    const notes = [...byName].map(([name, heads]) => {
      const finite = heads.map(guided => guided.fraction).filter(Number.isFinite).sort((a, b) => a - b);
      const ends = [...new Set([finite[0], finite.at(-1)].map(v => percent(v)))];
      const none = heads.every(guided => guided.everywhere) ? 'which covers every position' : 'unknown';
      return `${quotedToken(name)}${heads.length > 1 ? ` (${heads.length} heads)` : ''}, ${finite.length
        ? ends.join(' to ') : none}`;
    });
    this.patterns.hidden = !notes.length;
    const about = 'Guided heads (corner mark) and their attention on the pattern';
    this.patterns.textContent = notes.length
      ? `${about}: ${notes.join('; ')}. Bars: fractions of the pattern loss.` : '';
  }

  // The name of the pattern and the head's attention on it, where there is room for them.
  drawPatternName(tile, {name, fraction, everywhere}, inks) {
    const {context} = this.sharp, {css} = this.place, {ink, halo} = overlayInks(inks.theme),
      hasFraction = Number.isFinite(fraction);
    const lines = hasFraction ? [shownToken(name), percent(fraction)] : [shownToken(name)];
    if (css < 44 || !hasFraction && !everywhere) return;
    Object.assign(context, {font: inks.small, textAlign: 'right', textBaseline: 'bottom'});
    Object.assign(context, {lineJoin: 'round', lineWidth: 3, strokeStyle: halo, fillStyle: ink});
    lines.forEach((line, i) => {
      const text = fitText(context, line, css - 8), y = tile.y + css - 6 - 11 * (lines.length - 1 - i);
      context.strokeText(text, tile.x + css - 3, y);
      context.fillText(text, tile.x + css - 3, y);
    });
  }

  // Guided heads have a corner mark, the name of their pattern and a bar: their fraction of the pattern loss relative
  // to the largest one.
  drawGuided(inks) {
    const {context} = this.sharp, {css} = this.place, {ink, halo} = overlayInks(inks.theme),
      most = Math.max(...this.guided.map(guided => guided.loss), 1e-12);
    for (const tile of this.tiles) {
      const guided = this.guidedAt(tile.entry);
      if (!guided) continue;
      const corner = new Path2D(), size = Math.max(5, css * .2), length = (css - 2) * guided.loss / most;
      corner.moveTo(tile.x, tile.y);
      corner.lineTo(tile.x + size, tile.y);
      corner.lineTo(tile.x, tile.y + size);
      corner.closePath();
      context.fillStyle = ink;
      doubleStroke(context, corner, {ink, halo}, .5);
      context.fill(corner);
      context.fillStyle = halo;
      context.fillRect(tile.x, tile.y + css - 5, length + 2, 5);
      context.fillStyle = inks.accent;
      context.fillRect(tile.x + 1, tile.y + css - 4, length, 3);
      this.drawPatternName(tile, guided, inks);
    }
  }

  drawLabels(inks) {
    const {context} = this.sharp, {left, top, pitch, css, foot} = this.place, {state} = this.ctx;
    Object.assign(context, {font: inks.font, textBaseline: 'middle', fillStyle: inks.fg});
    if (this.flows) return this.drawScores(inks);
    const {layers} = this.tensor, heads = this.tensor.shape[1], stride = Math.ceil(17 / pitch);
    for (let h = 0; h <= heads; h++) {
      const text = h === heads ? 'mean' : String(h), end = this.sharp.width - context.measureText(text).width / 2;
      context.textAlign = 'center';
      context.fillStyle = h === heads ? inks.muted : inks.fg;
      // Beside narrow tiles, the word stands above the number of the last head.
      const y = h === heads && pitch <= 24 ? top - 23 : top - 9;
      if (h === heads || h % stride === 0) context.fillText(text, Math.min(left + h * pitch + css / 2, end), y);
    }
    context.textAlign = 'right';
    layers.forEach((layer, row) => { context.fillStyle = inks.fg;
      context.fillText(layer, left - 6, top + row * pitch + css / 2); });
    context.fillStyle = inks.muted;
    context.fillText('mean', left - 6, top + layers.length * pitch + css / 2);
    if (state.what === 'attention' && this.tensor.pooled === 1)
      context.fillText('rollout', left + heads * pitch - 6, foot + 4 + css / 2);
    context.font = inks.small;
    context.textAlign = 'center';
    context.fillText('head', left + heads * pitch / 2, top - 24);
    context.save();
    context.translate(7, top + layers.length * pitch / 2);
    context.rotate(-Math.PI / 2);
    context.fillText('layer', 0, 0);
    context.restore();
  }

  drawScores(inks) {
    const {context} = this.sharp, {css} = this.place, tied = this.tiedScores();
    context.textAlign = 'center';
    for (const tile of this.tiles) {
      const score = this.scoreOf(tile.entry), {layer, head} = tile.entry;
      context.font = inks.small;
      context.fillStyle = inks.muted;
      context.fillText(css < 34 ? `${layer}.${head}` : `L${layer} H${head}`, tile.x + css / 2, tile.y + css + 7);
      context.fillStyle = inks.fg;
      const number = Number.isFinite(score) ? `${tied.has(score) ? '=' : ''}${shortNumber(score)}` : '–',
        text = this.ctx.state.sort === 'order' ? '' : number;
      context.fillText(text, tile.x + css / 2, tile.y + css + 18);
    }
  }

  drawLegend(inks) {
    const {state} = this.ctx, {context} = this.sharp, {left, legend, pitch, width, narrow} = this.place,
      signed = state.what === 'attribution';
    const perMap = state.scale === 'map', limit = perMap ? 1 : this.commonLimit();
    const scale = colourScaleOf({limit, signed, palette: state.palette, theme: state.theme});
    const x = this.flows ? 8 : left, most = narrow ? width - left - 8 : (this.columns - 1) * pitch - 56,
      space = this.flows ? width - 16 : most;
    const ends = signed ? [['− head maximum', 0], ['0', .5], ['head maximum', 1]]
      : [['0', 0], [`head maximum, ≥ ${shortNumber(this.visibleLimit(0))}`, 1]];
    const ticks = perMap ? ends : null;
    colourScale(context, scale, {x, y: legend + 20, width: Math.min(260, Math.max(90, space)),
      title: `${signed ? 'attention attribution' : attentionName(this.frame)} (square-root scale)`, ticks, inks});
  }

  drawChosenTile(inks) {
    const {entry} = this.ctx.state, {css} = this.place, path = new Path2D(), {halo} = overlayInks(inks.theme);
    const chosen = this.tiles.filter(t => sameEntry(t.entry, entry) || isOneOf(entry, t.entry));
    if (!chosen.length) return;
    for (const {x, y} of chosen) path.rect(x - 1, y - 1, css + 2, css + 2);
    doubleStroke(this.sharp.context, path, {ink: inks.accent, halo}, 2.5);
  }

  tileAt(x, y) {
    const {css, under} = this.place;
    return this.tiles.find(t => x >= t.x - 1 && x < t.x + css + 2 && y >= t.y - 1 && y < t.y + css + 2 + under) ?? null;
  }

  tileText({entry}) {
    const by = this.ctx.state.sort === 'order' ? 'agreement' : this.ctx.state.sort, score = this.scoreOf(entry, by),
      guided = this.guidedAt(entry);
    const title = pooledRow(this.frame) === null ? scoreLabels[by][0].replace('pooled row', 'mean over ordinary rows')
      : scoreLabels[by][0];
    const parts = [entryTitle(entry)];
    if (Number.isFinite(score)) parts.push(`${title}: ${shortNumber(score)}`);
    if (guided) {
      const everywhere = guided.everywhere ? ', which covers every position' : '';
      const lies = Number.isFinite(guided.fraction) ? `, ${percent(guided.fraction)} of its attention on the pattern`
        : everywhere;
      parts.push(`guided to ${quotedToken(guided.name)}${lies}`,
        `contributes ${percent(guided.loss)} of the pattern loss`);
    }
    return parts.join('; ');
  }

  listen() {
    const {el} = this.sharp;
    el.addEventListener('pointermove', e => {
      if (!this.place || !this.tensor) return;
      const tile = this.tileAt(...this.sharp.at(e));
      el.style.cursor = tile ? 'pointer' : 'default';
      this.tip.textContent = tile ? this.tileText(tile) : '';
    });
    el.addEventListener('pointerleave', () => { this.tip.textContent = ''; });
    el.addEventListener('click', e => {
      const tile = this.place && this.tensor && this.tileAt(...this.sharp.at(e));
      if (tile) this.choose(tile, false, e.shiftKey || e.ctrlKey || e.metaKey);
    });
    el.addEventListener('keydown', e => this.keyed(e));
  }

  choose(tile, say, several = false) {
    const {state} = this.ctx, adds = several && tile.entry.kind === 'head';
    const entry = adds ? meanWith(state.entry, tile.entry) : tile.entry;
    state.set({entry});
    const text = entry.kind === 'mean' ? entryTitle(entry) : this.tileText({entry});
    if (say) this.ctx.announce(text);
    this.tip.textContent = text;
  }

  keyed(e) {
    const move = plainKey(e) ?? plainKey(e, {Enter: [0, 0], ' ': [0, 0]});
    if (!move || !this.tiles?.length || !this.tensor) return;
    claimKey(e);
    const at = this.tiles.find(t => sameEntry(t.entry, this.ctx.state.entry)) ?? this.tiles[0];
    const to = this.tiles.find(t => t.row === at.row + move[0] && t.column === at.column + move[1]);
    if (to) this.choose(to, true);
  }

  destroy() { clearTimeout(this.later); }
}

export const headsPanel = {
  name: 'heads', title: 'Heads', order: 10, shows: 'maps', image: 'heads', page: 'beside',
  help: {says: [
    'Each tile is the attention or attribution map of one head; means over heads and layers are shown along the edges.',
    'Look for shapes that persist over the steps; attention does not show what the prediction depends on.'],
  keys: [['← ↑ ↓ →', 'choose a neighbouring head']]},
  tour: 'every head of every layer at this step. Click one, or choose one with the arrow keys.',
  view: HeadsGrid,
};
