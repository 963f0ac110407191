// Panel 'headtime': a statistic of every head over the recorded steps, one small curve for each head, layers x heads.
import {doubleStroke, inksOf, overlayInks, SharpCanvas} from '../lib/canvas.js';
import {claimKey, plainKey} from '../lib/cells.js';
import {percent, shortNumber} from '../lib/colour.js';
import {choiceOf, elementOf, fillChoice, labelled, setText, svgNode} from '../lib/controls.js';
import {countWords} from '../lib/words.js';

const headTimeKeys = ['rows', 'meta', 'run', 'step', 'probe', 'frames', 'entry', 'theme', 'size', 'headNumber',
  'headExamples'];
const headNumbers = {
  relative_entropy: {name: 'relative entropy',
    words: 'entropy of attention as a fraction of its maximum (uniform attention)'},
  entropy: {name: 'entropy', words: 'entropy of attention in nats', open: true},
  largest: {name: 'largest weight', words: 'largest weight of a query'},
  to_first: {name: 'attention to the first token', words: 'fraction of attention on the first token'},
  to_special: {name: 'attention to special tokens',
    words: 'fraction of attention on special tokens after the first token'},
  distance: {name: 'distance', words: 'mean distance to the attended token, in tokens', open: true},
  largest_logit: {name: 'largest logit', words: 'largest attention logit (score before the softmax)', open: true,
    over: 'maximum over all queries and keys'},
};
const headExampleNames = {probes: 'probe examples', batches: 'training batches'};
const headTimeGap = 3, headTimeWidest = 96, headTimeNarrowest = 20, headTimeLeft = 34, headTimeTop = 30;
const mostNamedHeads = 8;

// The rows of one kind of examples that have statistics, by step; of two rows of a step, the later one.
export function headRowsOf(rows, examples) {
  const byStep = new Map();
  for (const row of rows)
    if (row.kind === 'heads' && row.examples === examples && row.layers) byStep.set(row.step, row);
  return [...byStep.values()].sort((a, b) => a.step - b.step);
}

// The statistics that some row has; earlier versions did not record all of them.
export function headNumbersOf(rows) {
  return Object.keys(headNumbers).filter(number => rows.some(row => row[number]?.flat().some(Number.isFinite)));
}

// {steps, layers, heads, floor, limit, points(layer, head)}: the curves of all heads and the ends of their scale.
// `points` returns [{step, value, mark}].
export function headCurves(rows, number) {
  const layers = [...new Set(rows.flatMap(row => row.layers))].sort((a, b) => a - b);
  const having = rows.filter(row => row[number]);
  const heads = Math.max(0, ...having.map(row => row[number][0].length));
  const values = having.flatMap(row => row[number].flat()).filter(Number.isFinite), floor = Math.min(0, ...values);
  const limit = headNumbers[number].open ? Math.max(0, ...values) || (floor ? 0 : 1) : 1;
  const points = (layer, head) => having.flatMap(row => {
    const i = row.layers.indexOf(layer), value = i < 0 ? null : row[number][i][head];
    return Number.isFinite(value) ? [{step: row.step, value, mark: row.marks?.[i][head] ?? ''}] : [];
  });
  return {steps: rows.map(row => row.step), layers, heads, floor, limit, points};
}

// The last row at or before `step`, null if there is none.
export function headRowAt(rows, step) { return rows.filter(row => row.step <= step).at(-1) ?? null; }

// [{layer, head, mark}] of the heads that are marked in `row`.
export function markedHeads(row) {
  return (row?.marks ?? []).flatMap((of, i) => of.flatMap((mark, head) => mark ? [{layer: row.layers[i], head, mark}]
    : []));
}

// '2 heads are marked (layer.head): 0.3 (dead), 1.2 (collapsed)', with a number for many.
function markedWords(row) {
  const marked = markedHeads(row);
  if (!marked.length) return 'no head is marked';
  const named = marked.slice(0, mostNamedHeads).map(({layer, head, mark}) => `${layer}.${head} (${mark})`).join(', ');
  const more = marked.length - mostNamedHeads;
  const are = countWords(marked.length, 'head is', 'heads are');
  return `${are} marked (layer.head): ${named}${more > 0 ? ` and ${more} more` : ''}`;
}

// What the texts are, as the subject of a mean.
function textsWords({examples, texts}) {
  if (examples === 'probes') return countWords(texts, 'probe example');
  return `the first ${texts === 1 ? 'row' : `${texts} rows`} of the training batch at each step`;
}

// The sentences below the curves: how to read them, and what they do not show.
export function headTimeNotes(rows, curves, number, recorded) {
  const last = rows.at(-1), {steps, floor, limit} = curves, notes = [];
  const {words, over = 'averaged over the ordinary tokens'} = headNumbers[number];
  notes.push(`Each cell shows the ${words}, ${over} of ${textsWords(last)}. `
    + `All cells share one scale, from ${shortNumber(floor)} (bottom) to ${shortNumber(limit)} (top).`);
  if (steps.length > 1) notes.push(`Steps run from ${steps[0]} (left) to ${steps.at(-1)} (right).`);
  if (steps.length === 1) {
    const before = steps[0] === 0 ? ' These are the values before training.' : '';
    notes.push(`Only step ${steps[0]} has statistics, so no change over time can be shown.${before}`);
  } else if (recorded > steps.length && last.examples === 'probes') {
    notes.push(`${steps.length} of ${recorded} recorded steps have statistics so far.`);
  }
  if (last.examples === 'batches')
    notes.push('The batch differs from step to step, so a curve varies even if its head does not change.');
  return notes;
}

class HeadTime {
  constructor(ctx) {
    this.ctx = ctx;
    this.sharp = new SharpCanvas('sv-canvas', 'application');
    const {state} = ctx;
    this.title = elementOf('h3', 'sv-title', 'Heads over time');
    this.number = choiceOf([], headNumber => state.set({headNumber}));
    this.examples = choiceOf([], headExamples => state.set({headExamples}));
    this.head = elementOf('div', 'sv-head', this.title, labelled('Statistic', this.number),
      labelled('Texts', this.examples));
    this.stage = elementOf('div', 'sv-stage', this.sharp.el);
    this.tip = elementOf('output', 'sv-tip');
    this.tip.setAttribute('aria-live', 'off');
    this.notes = elementOf('p', 'sv-note');
    this.legend = elementOf('ul', 'sv-headtime-legend');
    this.el = elementOf('section', 'sv-panel sv-headtime', this.head, this.stage, this.tip, this.notes, this.legend);
    this.el.setAttribute('aria-label', 'heads over time');
    this.listen();
  }

  update(changed) {
    if (!headTimeKeys.some(key => changed.has(key))) return;
    const {store, state} = this.ctx, logged = store.rows(state.run);
    const available = Object.keys(headExampleNames).filter(examples => headRowsOf(logged, examples).length);
    this.shown = available.includes(state.headExamples) ? state.headExamples : available[0];
    this.rows = this.shown ? headRowsOf(logged, this.shown) : [];
    const numbers = headNumbersOf(this.rows);
    this.by = numbers.includes(state.headNumber) ? state.headNumber : 'relative_entropy';
    fillChoice(this.number, numbers.map(number => [number, headNumbers[number].name]), this.by);
    fillChoice(this.examples, available.map(examples => [examples, headExampleNames[examples]]), this.shown);
    this.examples.disabled = available.length < 2;
    this.stage.hidden = this.tip.hidden = !this.rows.length;
    if (['run', 'headNumber', 'headExamples'].some(key => changed.has(key))) this.tip.textContent = '';
    if (!this.rows.length) return this.sayNothing();
    this.curves = headCurves(this.rows, this.by);
    this.step = store.stepOf(state) ?? this.curves.steps.at(-1);
    this.row = headRowAt(this.rows, this.step);
    this.say(logged, available);
    if (this.stage.clientWidth) this.draw();
    return null;
  }

  sayNothing() {
    setText(this.notes, 'No head statistics have been computed yet.');
    this.legend.replaceChildren();
  }

  say(logged, available) {
    const {store, state} = this.ctx, reason = logged.find(row => row.kind === 'heads' && row.reason)?.reason;
    const recorded = new Set((store.run(state.run)?.recorded ?? []).map(([, step]) => step)).size;
    const notes = headTimeNotes(this.rows, this.curves, this.by, recorded);
    if (reason && !available.includes('batches')) notes.push(`Training batches have no statistics: ${reason}.`);
    setText(this.notes, notes.join(' '));
    this.legend.replaceChildren(...this.legendItems());
    const {layers, heads, steps} = this.curves, {entry} = state;
    const chosen = entry.kind === 'head' ? ` Chosen: ${this.words(entry)}.` : '';
    const size = `${countWords(layers.length, 'layer')} with ${countWords(heads, 'head')} each`;
    this.sharp.el.setAttribute('aria-label', `${headNumbers[this.by].name} of ${size}, over `
      + `${countWords(steps.length, 'step')}, on ${headExampleNames[this.shown]}; `
      + `${this.row ? `at step ${this.row.step}, ${markedWords(this.row)}`
        : `no statistics at or before step ${this.step}`}.${chosen} `
      + 'Arrow keys choose a head.');
  }

  // The rule for marks with its numbers, what is marked at this step, and the signs.
  legendItems() {
    const {row} = this, {threshold, fewest_words: fewest} = this.rows.at(-1);
    const item = (sign, text) => elementOf('li', '', this.sign(sign), elementOf('span', '', text));
    const now = row ?? this.rows[0];
    if (!now.long_texts) return [elementOf('li', '', 'No head can be marked as dead or collapsed: no text has at least '
      + `${fewest} ordinary tokens and more ordinary than special tokens.`)];
    const texts = now.long_texts === 1 ? 'the only text' : `each of the ${now.long_texts} texts`;
    const rule = `on ${texts} with at least ${fewest} ordinary tokens, `
      + `at least ${percent(threshold)} of the head’s attention goes`;
    const found = row ? `At step ${row.step}, ${markedWords(row)}.`
      : `There are no statistics at or before step ${this.step}.`;
    return [item('dead', `dead (solid frame, D): ${rule} to the first token and special tokens.`),
      item('collapsed', `collapsed (dashed frame, C): ${rule} to one word.`),
      item('square', 'squares at the bottom: the recorded steps at which the head is marked.'),
      item('step', `vertical line: the current step. ${found} On other texts, other heads may be marked.`)];
  }

  sign(name) {
    const key = svgNode('svg', {width: 18, height: 14, 'aria-hidden': 'true', class: 'sv-headtime-key'});
    const dashes = name === 'collapsed' ? {'stroke-dasharray': '3 2'} : {};
    if (name === 'dead' || name === 'collapsed')
      key.append(svgNode('rect', {x: 1, y: 1, width: 16, height: 12, ...dashes}));
    if (name === 'square')
      key.append(svgNode('rect', {x: 7, y: 9, width: 4, height: 4, class: 'sv-headtime-square'}));
    if (name === 'step') key.append(svgNode('line', {x1: 9, x2: 9, y1: 0, y2: 14, class: 'sv-headtime-step'}));
    const letter = {dead: 'D', collapsed: 'C'}[name];
    if (letter) {
      const text = svgNode('text', {x: 5.5, y: 11});
      text.textContent = letter;
      key.append(text);
    }
    return key;
  }

  // 'layer 1, head 2: relative entropy 0.53 at step 40; 0.98 at step 0, 0.41 at step 80; dead at steps 40, 80'
  words({layer, head}) {
    const points = this.curves.points(layer, head), here = points.filter(({step}) => step <= this.step).at(-1),
      at = ({step, value}) => `${shortNumber(value)} at step ${step}`, parts = [];
    if (here) parts.push(`${headNumbers[this.by].name} ${at(here)}`);
    else parts.push(`no ${headNumbers[this.by].name} at step ${this.step}`);
    if (points.length > 1) parts.push(`first ${at(points[0])}, last ${at(points.at(-1))}`);
    for (const mark of ['dead', 'collapsed']) {
      const steps = points.filter(point => point.mark === mark).map(({step}) => step);
      if (steps.length) parts.push(`${mark} at ${steps.length === 1 ? 'step' : 'steps'} ${steps.join(', ')}`);
    }
    return `layer ${layer}, head ${head}: ${parts.join('; ')}`;
  }

  draw() {
    const {state} = this.ctx, {layers, heads} = this.curves, space = this.stage.clientWidth - headTimeLeft - 2;
    const pitch = Math.max(headTimeNarrowest, Math.min(headTimeWidest, Math.floor(space / heads)));
    const width = pitch - headTimeGap, height = Math.max(16, Math.min(44, Math.round(width * .6)));
    this.place = {pitch, width, height, down: height + headTimeGap};
    this.inks = inksOf(this.el, state.theme);
    this.sharp.size(headTimeLeft + heads * pitch, headTimeTop + layers.length * this.place.down + 2);
    this.drawNames();
    layers.forEach((layer, row) => {
      for (let head = 0; head < heads; head++) this.drawCell(layer, head, ...this.corner(row, head));
    });
    this.drawChosen();
    this.sharp.el.salviz = {...this.place, left: headTimeLeft, top: headTimeTop};
  }

  corner(row, head) { return [headTimeLeft + head * this.place.pitch, headTimeTop + row * this.place.down]; }

  drawNames() {
    const {context} = this.sharp, {layers, heads} = this.curves, {pitch, width, height} = this.place, {inks} = this;
    Object.assign(context, {font: inks.font, fillStyle: inks.fg, textBaseline: 'middle', textAlign: 'center'});
    const stride = Math.ceil(17 / pitch);
    for (let head = 0; head < heads; head += stride)
      context.fillText(head, this.corner(0, head)[0] + width / 2, headTimeTop - 8);
    context.textAlign = 'right';
    layers.forEach((layer, row) => context.fillText(layer, headTimeLeft - 6, this.corner(row, 0)[1] + height / 2));
    Object.assign(context, {font: inks.small, fillStyle: inks.muted, textAlign: 'left'});
    context.fillText('head', headTimeLeft, headTimeTop - 22);
    context.save();
    context.translate(7, headTimeTop + layers.length * this.place.down / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = 'center';
    context.fillText('layer', 0, 0);
    context.restore();
  }

  // The horizontal position of `step` within a cell.
  across(step) {
    const {steps} = this.curves, {width} = this.place, range = steps.at(-1) - steps[0];
    return range ? 2 + (step - steps[0]) / range * (width - 4) : width / 2;
  }

  drawCell(layer, head, x, y) {
    const {context} = this.sharp, {inks} = this, {width, height} = this.place, {floor, limit, steps} = this.curves;
    const risen = value => Math.min(1, Math.max(0, (value - floor) / (limit - floor)));
    const points = this.curves.points(layer, head).map(point => ({...point, x: x + this.across(point.step),
      y: y + height - 2 - risen(point.value) * (height - 4)}));
    context.fillStyle = inks.bg;
    context.fillRect(x, y, width, height);
    context.strokeStyle = inks.line;
    context.lineWidth = 1;
    context.strokeRect(x + .5, y + .5, width - 1, height - 1);
    if (this.step >= steps[0] && this.step <= steps.at(-1)) {
      const at = Math.round(x + this.across(this.step)) + .5;
      context.strokeStyle = inks.muted;
      context.beginPath();
      context.moveTo(at, y + 1);
      context.lineTo(at, y + height - 1);
      context.stroke();
    }
    this.drawCurve(points, y + height - 1);
    this.drawMarks(points, x, y);
  }

  drawCurve(points, base) {
    const {context} = this.sharp, {inks} = this;
    if (!points.length) return;
    context.fillStyle = context.strokeStyle = inks.accent;
    if (points.length === 1) {
      context.beginPath();
      context.arc(points[0].x, points[0].y, 2.2, 0, 2 * Math.PI);
      context.fill();
      return;
    }
    const line = new Path2D();
    points.forEach(({x, y}, i) => i ? line.lineTo(x, y) : line.moveTo(x, y));
    const area = new Path2D(line);
    area.lineTo(points.at(-1).x, base);
    area.lineTo(points[0].x, base);
    context.globalAlpha = .16;
    context.fill(area);
    context.globalAlpha = 1;
    Object.assign(context, {lineWidth: 1.4, lineJoin: 'round'});
    context.stroke(line);
  }

  // A square at each step at which the head is marked, and a frame with a letter if it is marked at the step in view.
  drawMarks(points, x, y) {
    const {context} = this.sharp, {inks} = this, {width, height} = this.place;
    context.fillStyle = context.strokeStyle = inks.warn;
    for (const {x: at, mark} of points) if (mark) context.fillRect(at - 2, y + height - 4, 4, 4);
    const mark = points.filter(({step}) => step <= this.step).at(-1)?.mark;
    if (!mark) return;
    context.save();
    context.lineWidth = 2;
    if (mark === 'collapsed') context.setLineDash([3, 2]);
    context.strokeRect(x + 1, y + 1, width - 2, height - 2);
    context.restore();
    if (width < 24) return;
    Object.assign(context, {font: inks.bold, textAlign: 'right', textBaseline: 'top', lineWidth: 3,
      strokeStyle: inks.bg});
    context.strokeText(mark === 'dead' ? 'D' : 'C', x + width - 4, y + 4);
    context.fillText(mark === 'dead' ? 'D' : 'C', x + width - 4, y + 4);
  }

  drawChosen() {
    const {entry, theme} = this.ctx.state, {layers} = this.curves, {width, height} = this.place, path = new Path2D();
    const chosen = entry.kind === 'mean' ? entry.heads : entry.kind === 'head' ? [[entry.layer, entry.head]] : [];
    for (const [layer, head] of chosen) {
      const [x, y] = this.corner(layers.indexOf(layer), head);
      if (layers.includes(layer)) path.rect(x - 1, y - 1, width + 2, height + 2);
    }
    doubleStroke(this.sharp.context, path, {ink: this.inks.accent, halo: overlayInks(theme).halo}, 2);
  }

  cellAt(x, y) {
    const {pitch, down} = this.place, head = Math.floor((x - headTimeLeft) / pitch),
      layer = this.curves.layers[Math.floor((y - headTimeTop) / down)];
    return layer === undefined || head < 0 || head >= this.curves.heads ? null : {layer, head};
  }

  listen() {
    const {el} = this.sharp, cell = e => this.place && this.rows?.length ? this.cellAt(...this.sharp.at(e)) : null;
    el.addEventListener('pointermove', e => {
      const at = cell(e);
      el.style.cursor = at ? 'pointer' : 'default';
      setText(this.tip, at ? this.words(at) : '');
    });
    el.addEventListener('pointerleave', () => setText(this.tip, ''));
    el.addEventListener('click', e => {
      const at = cell(e);
      if (at) this.choose(at);
    });
    el.addEventListener('keydown', e => this.keyed(e));
  }

  choose({layer, head}) {
    this.ctx.state.set({entry: {kind: 'head', layer, head}});
    setText(this.tip, this.words({layer, head}));
  }

  keyed(e) {
    const move = plainKey(e) ?? plainKey(e, {Enter: [0, 0], ' ': [0, 0]});
    if (!move || !this.rows?.length) return;
    claimKey(e);
    const {layers, heads} = this.curves, {entry} = this.ctx.state;
    const within = (k, count) => Math.max(0, Math.min(count - 1, k));
    const row = Math.max(0, layers.indexOf(entry.layer)), at = entry.kind === 'head' ? entry.head : 0;
    const to = {layer: layers[within(row + move[0], layers.length)], head: within(at + move[1], heads)};
    this.choose(to);
    this.ctx.announce(this.words(to));
  }
}

export const headtimePanel = {
  name: 'headtime', title: 'Heads over time', order: 95, shows: 'maps', image: 'head_statistics',
  fits: (frame, store, state) => store.rows(state.run).some(row => row.kind === 'heads' && row.layers),
  absent: 'No head statistics were recorded in this run.',
  help: {says: [
    'Each cell is one head: a statistic of its attention over the recorded steps, on the texts that you choose.',
    'A statistic describes these texts and this run; low entropy or a mark does not show that a head is useless.'],
  keys: [['← ↑ ↓ →', 'choose a neighbouring head']]},
  view: HeadTime,
};
