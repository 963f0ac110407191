// Shared parts of the what-if panel: a slider, two maps side by side, a group for one method.
import {CellGrid, CellPainter, columnLabels, inksOf, labelWidth, rowLabels} from '../lib/canvas.js';
import {CellStage} from '../lib/cells.js';
import {shortNumber} from '../lib/colour.js';
import {elementOf, labelled, rangeOf, setText} from '../lib/controls.js';
import {quoted} from '../lib/words.js';
import {entryTitle, methodArgs} from '../state/derive.js';

export function whatIfSlider(label, most, onChange, say = v => v.toFixed(2)) {
  const range = rangeOf(most, v => onChange(v / most)), shown = elementOf('output', 'sv-slider-value');
  const el = labelled(label, range, 'sv-field sv-slider');
  el.append(shown);
  const show = value => {
    range.value = Math.round(value * most);
    setText(shown, say(value));
  };
  return {el, range, show};
}

const whatIfNames = {topShare: 'top fraction', binarised: 'binary target', maskedShare: 'mask fraction',
  ranking: 'rank by', protect: 'protect special tokens', boundary: 'row without a neighbour',
  multiple: 'value for several matching tokens', first: 'fallback without a preceding unmasked word'};
const whatIfValue = value => typeof value === 'number' ? shortNumber(value)
  : typeof value === 'boolean' ? (value ? 'yes' : 'no') : value;

// 'p = 0.7, q = 0.9'
export function whatIfWords(whatIf) {
  return Object.entries(whatIf ?? {}).map(([name, value]) => `${whatIfNames[name] ?? name} = ${whatIfValue(value)}`)
    .join(', ');
}

export function chosenOnly(what) {
  return `For long sentences, only chosen heads have ${what}; this head has none.`;
}

export function whyNoMap(map) { return map.values ? map.pooled > 1 ? chosenOnly('full maps') : '' : map.note; }
export function largest(values) { return values.reduce((top, v) => Math.max(top, Math.abs(v)), 0); }

function withoutEmpty(whatIf) {
  const set = Object.fromEntries(Object.entries(whatIf).filter(([, v]) => v !== undefined && v !== null && v !== ''));
  return Object.keys(set).length ? set : null;
}

export function maskSum(mask) {
  let sum = 0;
  for (const v of mask ?? []) sum += v;
  return sum;
}

export function maskDiffer(a, b) {
  let sum = 0;
  if (a && b) for (let k = 0; k < a.length; k++) sum += Number(a[k] !== b[k]);
  return sum;
}

// Two maps of the chosen head, recorded and recomputed, with a line that reads the cell under the pointer.
export class WhatIfPair {
  constructor(readCell, announce) {
    this.reading = elementOf('p', 'sv-note sv-pair-reading');
    const side = () => whatIfSide(({row, column}) => readCell(row, column), announce, this.reading);
    Object.assign(this, {painter: new CellPainter(), sides: [side(), side()]});
    this.el = elementOf('div', 'sv-pair', ...this.sides.map(s => s.el), this.reading);
    for (const {cells} of this.sides)
      cells.sharp.el.addEventListener('pointerleave', () => setText(this.reading, ''));
  }

  edge(space) { return Math.max(120, Math.min(380, Math.floor((space - 22) / 2))); }

  // sides: [{colours, draw(context, grid), words, nothing}], the recorded one first; nothing: what is missing.
  draw(n, sides, space, {labels, is_special: special}, theme) {
    const edge = this.edge(space), inks = inksOf(this.el, theme), {context} = this.sides[0].cells.sharp;
    const units = labels.map((label, i) => ({label, special: special[i]}));
    const [left, top] = [.25, .22].map(part => labelWidth(context, labels, inks.bold, edge * part) + 6);
    const side = edge - left - 1;
    sides.forEach(({colours, draw, words, nothing}, i) => {
      const {cells, title} = this.sides[i], canvas = cells.sharp;
      setText(title, ['recorded', 'what-if'][i] + (nothing ? `: ${nothing}` : ''));
      canvas.size(edge, top + side + 1);
      const axis = {count: n, from: 0, span: n}, {ratio} = canvas;
      const grid = new CellGrid({x: left, y: top, width: side, height: side, columns: axis, rows: axis, ratio});
      this.painter.paint(canvas.context, grid, colours);
      draw(canvas.context, grid);
      columnLabels(canvas.context, grid, units, {y: top - 4, space: top - 6, inks});
      rowLabels(canvas.context, grid, units, {x: left - 4, space: left - 6, inks});
      canvas.el.setAttribute('aria-label', `${words} Arrow keys move between cells.`);
      cells.show([grid], theme);
    });
  }
}

function whatIfSide(text, announce, reading) {
  const cells = new CellStage({text, announce}), title = elementOf('figcaption');
  cells.tip = reading;
  cells.sharp.el.classList.add('sv-pair-map');
  return {cells, title, el: elementOf('figure', 'sv-pair-side', title, cells.el)};
}

// The part of the panel for one method: its controls, the recomputed choice, and a one-sentence explanation.
export class WhatIfGroup {
  constructor(ctx, title, method) {
    Object.assign(this, {ctx, title, method});
    this.summary = elementOf('summary', '', title);
    this.controls = elementOf('div', 'sv-group-controls');
    this.result = elementOf('div', 'sv-group-result');
    this.counts = elementOf('p', 'sv-group-counts');
    this.lesson = elementOf('p', 'sv-note');
    this.missing = elementOf('p', 'sv-note sv-group-missing');
    this.body = elementOf('div', 'sv-group-body', this.lesson, this.controls, this.counts, this.result);
    this.el = elementOf('details', 'sv-group', this.summary, this.missing, this.body);
    this.el.addEventListener('toggle', () => {
      if (this.el.open && this.frame) this.update(this.frame, this.probe, this.space); });
  }

  set(changes) { this.ctx.state.set({whatIf: withoutEmpty({...this.ctx.state.whatIf, ...changes})}); }
  get args() { return methodArgs(this.frame, this.method); }
  get settings() { return this.ctx.state.whatIf ?? {}; }
  get head() { return this.ctx.state.entry; }

  update(frame, probe, space) {
    Object.assign(this, {frame, probe, space});
    const why = this.why();
    this.body.hidden = Boolean(why);
    this.missing.hidden = !why;
    setText(this.missing, why);
    if (!why && this.el.open) this.show();
  }

  whyHead() { return this.head.kind === 'head' ? '' : `Choose a single head (currently: ${entryTitle(this.head)}).`; }
  headWords() { return entryTitle(this.head); }
  pair(i, j) { return `query ${quoted(this.probe.labels[i])}, key ${quoted(this.probe.labels[j])}`; }
}
