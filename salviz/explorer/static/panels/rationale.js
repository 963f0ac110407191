// Panel 'rationale': an explanation overlaid with the human rationale, and their agreement at this step and over the
// steps.
import {entryPhrase, evidenceOf, methodArgs, methodNames, saliencyOf, unitsOf} from '../state/derive.js';
import {attentionOfRow, rowName, saliencyWords} from './sentence.js';
import {evidenceSlice} from './evidence.js';
import {colourScaleOf, percent, scaleColour, shortNumber} from '../lib/colour.js';
import {pointedAt} from '../lib/maths.js';
import {chipText, countWords, directionOf, numberWords, paintToken, quoted, scaleBar} from '../lib/words.js';
import {choiceOf, elementOf, labelled, setText, svgNode} from '../lib/controls.js';

const rationaleKeys = ['frames', 'meta', 'run', 'probe', 'step', 'entry', 'row', 'explanation', 'hideSpecial',
  'mergeWords', 'palette', 'theme', 'size'];
const explanationChoices = [['explanation', 'trained explanation'], ['saliency', 'saliency'],
  ['attention', 'attention of the chosen row'], ['rollout', 'attention rollout']];
const agreementKinds = [['auprc', 'AUPRC', 'sv-auprc'], ['f1', 'F1', 'sv-token-f1'],
  ['iou', 'span F1 (IoU ≥ 0.5)', 'sv-span-f1']];
const curveLeft = 26, curveRight = 8, curveTop = 8, curveHigh = 80;

function evidenceValues(frame, name) {
  const tensor = methodNames(frame).includes('RationaleGuided') && evidenceOf(frame, `own/${name}`, 'RationaleGuided');
  return tensor && tensor.shape.length === 1 ? evidenceSlice(tensor, [], 1).values : null;
}

// The fraction of annotators who marked each token, null without a rationale. Older runs and other methods record only
// which tokens count as marked.
function markedFractions(frame) {
  const flags = frame?.get('rationale')?.values();
  return flags ? {flags, fractions: evidenceValues(frame, 'rationale_target') ?? flags} : null;
}

// {values [n] or null, note}: the explanation `name` of a frame.
function explanationOf(frame, probe, state, name) {
  if (name === 'explanation') return {values: evidenceValues(frame, name), note: ''};
  if (name === 'saliency') return {values: saliencyOf(frame)?.values ?? null, note: ''};
  const entry = name === 'rollout' ? {kind: 'rollout', layer: null, head: 0} : state.entry;
  const {values, note} = attentionOfRow(frame, probe, {...state.get(), entry});
  return {values, note};
}

// The data of one step: values and marks of the units, and their agreement over the ordinary ones.
export function agreementAt(frame, probe, state, name) {
  const rationale = markedFractions(frame), {values, note} = explanationOf(frame, probe, state, name);
  if (!rationale || !values) return {rationale, values: null, note};
  const units = unitsOf(probe, state), lost = values.filter(v => !Number.isFinite(v)).length;
  const sums = units.map(u => u.tokens.reduce((sum, i) => sum + (Number.isFinite(values[i]) ? values[i] : 0), 0));
  const most = x => units.map(u => Math.max(...u.tokens.map(i => x[i])));
  const fractions = most(rationale.fractions), flags = most(rationale.flags);
  const ordinary = units.flatMap((u, k) => u.special ? [] : [k]);
  const agreement = pointedAt(ordinary.map(k => sums[k]), ordinary.map(k => flags[k]));
  const chosen = new Set(ordinary.filter((_, at) => agreement.chosen?.[at]));
  return {rationale, units, values: sums, fractions, flags, ordinary, agreement, chosen, lost, note};
}

// Why a number is missing, or what limits its meaning.
export function agreementNote({n, k, isFlat, tied}, unit) {
  if (!k) return 'The rationale marks nothing, so agreement is undefined.';
  if (k === n) return `The rationale marks every ${unit}, so agreement is undefined.`;
  if (isFlat) return `All ${unit}s have the same value, so the explanation highlights nothing.`;
  return tied ? `${tied} ${unit}s tie at the threshold of the ${k} highest values, so F1 is undefined.` : '';
}

function hasRationale(frame, store) {
  return Boolean(frame && store.run(frame.run)?.probes.some(probe => probe.has_rationale));
}

class Rationale {
  constructor(ctx) {
    Object.assign(this, {ctx, chips: [], cache: new Map(), cacheKey: null});
    this.choice = choiceOf(explanationChoices, explanation => ctx.state.set({explanation}));
    this.head = elementOf('div', 'sv-head', elementOf('h3', 'sv-title', 'Rationale'),
      labelled('Compare with', this.choice));
    this.line = elementOf('div', 'sv-line');
    this.line.setAttribute('role', 'list');
    this.line.setAttribute('aria-label', 'the sentence coloured by the explanation, with the human marks below');
    this.reading = elementOf('p', 'sv-reading');
    this.numbers = elementOf('ul', 'sv-agreement');
    this.note = elementOf('p', 'sv-note');
    this.curve = svgNode('svg', {class: 'sv-agreement-curve', role: 'img'});
    this.scale = elementOf('div', 'sv-sentence-scale');
    this.legend = elementOf('p', 'sv-note');
    this.parts = [this.line, this.reading, this.numbers, this.curve, this.scale, this.legend];
    this.el = elementOf('section', 'sv-panel sv-rationale', this.head, this.line, this.reading, this.numbers, this.note,
      this.curve, this.scale, this.legend);
    this.el.setAttribute('aria-label', 'Rationale');
    this.off = ctx.store.on('frames', ({run, probe, step}) => this.cache.delete(`${run}/${probe}/${step}`));
    this.listen();
  }

  destroy() { this.off(); }

  listen() {
    const of = e => this.chips.indexOf(e.target.closest?.('.sv-chip'));
    this.line.addEventListener('mouseover', e => this.read(of(e)));
    this.line.addEventListener('mouseleave', () => this.read(-1));
    this.line.addEventListener('focusin', e => this.read(of(e)));
    this.line.addEventListener('keydown', e => {
      const k = of(e), by = {ArrowRight: 1, ArrowLeft: -1}[e.key] * (this.line.dir === 'rtl' ? -1 : 1);
      const to = {Home: 0, End: this.chips.length - 1}[e.key] ?? k + by;
      if (k < 0 || !this.chips[to] || e.ctrlKey || e.metaKey || e.altKey) return;
      this.chips[k].tabIndex = -1;
      this.chips[to].tabIndex = 0;
      this.chips[to].focus();
      e.preventDefault();
      e.stopPropagation();
    });
  }

  update(changed) {
    if (!rationaleKeys.some(key => changed.has(key))) return;
    const {store, state} = this.ctx;
    this.frame = store.frameOf(state);
    this.probe = store.probe(state.run, state.probe);
    this.unit = state.mergeWords ? 'word' : 'token';
    this.fillChoice();
    const why = this.load();
    for (const part of this.parts) part.hidden = Boolean(why);
    if (why) return void this.sayNote(why);
    this.build();
    this.paint();
    this.say();
    this.drawCurve();
  }

  fillChoice() {
    const {state} = this.ctx, {frame, probe} = this;
    const isRecorded = name => Boolean(frame && probe && explanationOf(frame, probe, state, name).values);
    for (const option of this.choice.options) option.disabled = Boolean(frame) && !isRecorded(option.value);
    const names = explanationChoices.map(([name]) => name);
    this.name = names.includes(state.explanation) ? state.explanation : names.find(isRecorded) ?? names[0];
    this.choice.value = this.name;
  }

  // Prepares what is shown; returns a sentence on what is missing.
  load() {
    const {store, state} = this.ctx, {frame, probe} = this;
    if (!frame || !probe) return store.why(state.run, state.probe, store.stepOf(state))
      || 'Nothing has been recorded yet.';
    this.shown = agreementAt(frame, probe, state, this.name);
    if (!this.shown.rationale) return 'The data contains no rationale for this sentence.';
    if (this.shown.values) return '';
    const title = explanationChoices.find(([name]) => name === this.name)[1];
    const awaited = this.name === 'saliency' && frame.info?.awaited;
    return this.shown.note || awaited || `No ${title} was recorded at this step.`;
  }

  build() {
    const {run, probe, mergeWords, hideSpecial} = this.ctx.state, {units} = this.shown;
    const key = [run, probe, mergeWords, hideSpecial, units.length].join();
    if (key === this.built) return;
    this.built = key;
    this.bars = units.map(() => elementOf('span'));
    this.chips = units.map((unit, k) => {
      const text = elementOf('bdi', '', chipText(unit.label));
      text.dir = 'auto';
      const chip = elementOf('span', unit.special ? 'sv-chip sv-special' : 'sv-chip', text);
      chip.setAttribute('role', 'listitem');
      chip.tabIndex = k ? -1 : 0;
      return chip;
    });
    this.line.dir = directionOf(this.probe.texts);
    this.line.replaceChildren(...this.chips.map((chip, k) =>
      elementOf('span', 'sv-word', chip, elementOf('span', 'sv-share', this.bars[k]))));
  }

  paint() {
    const {state} = this.ctx, {values, fractions, flags, ordinary, chosen, units, agreement} = this.shown;
    const shown = ordinary.map(k => values[k]), signed = this.name === 'saliency' || shown.some(v => v < 0);
    const limit = agreement.isFlat ? 0 : Math.max(0, ...shown.map(Math.abs));
    const scale = colourScaleOf({limit, signed, palette: state.palette, theme: state.theme});
    units.forEach((unit, k) => {
      const chip = this.chips[k], bar = this.bars[k];
      paintToken(chip, unit.special || !limit ? null : scaleColour(scale, values[k]));
      chip.classList.toggle('sv-pointed', chosen.has(k));
      chip.setAttribute('aria-label', this.wordsOf(k));
      bar.style.height = unit.special || !fractions[k] ? '0' : `${Math.max(3, Math.round(9 * fractions[k]))}px`;
      bar.hidden = unit.special || !fractions[k];
      bar.classList.toggle('sv-few', !flags[k]);
    });
    this.scale.hidden = !limit;
    this.scale.replaceChildren(...(limit ? [scaleBar(scale, 'of this sentence')] : []));
  }

  isSoft() { return this.shown.fractions.some(fraction => fraction > 0 && fraction < 1); }

  wordsOf(k) {
    const {units, values, fractions, flags, chosen} = this.shown, {label, special} = units[k];
    if (special) return `${quoted(label)} (special token): cannot be marked`;
    const by = this.isSoft() ? `marked by ${percent(fractions[k])} of the annotators`
      : flags[k] ? 'marked' : 'not marked';
    return `${quoted(label)}: ${shortNumber(values[k])}${chosen.has(k) ? ', among the highest' : ''}; ${by}`;
  }

  read(k) {
    const words = this.shown?.values && this.shown.units[k] ? this.wordsOf(k) : '';
    setText(this.reading, words || 'Point at a word to see its value and its marks.');
  }

  sayNote(text) {
    setText(this.note, text);
    this.note.hidden = !text;
  }

  say() {
    const {agreement, lost} = this.shown, {unit} = this;
    this.numbers.replaceChildren(...agreementKinds.map(([kind, name, style]) => {
      const chance = {auprc: agreement.random, f1: agreement.k / agreement.n}[kind];
      const random = Number.isFinite(agreement[kind]) && chance !== undefined
        ? ` (random order: ${numberWords(chance, 2)} on average)` : '';
      const called = kind === 'f1' ? `${unit} F1` : name;
      return elementOf('li', '', elementOf('span', `sv-swatch ${style}`),
        elementOf('span', '', `${called} ${numberWords(agreement[kind], 2)}${random}`));
    }));
    const gone = lost ? `${countWords(lost, 'non-finite value counts', 'non-finite values count')} as 0.` : '';
    this.sayNote([agreementNote(agreement, unit), gone].filter(Boolean).join(' '));
    setText(this.legend, this.legendWords());
    this.read(this.chips.indexOf(document.activeElement));
  }

  what() {
    const {frame, probe, name} = this, {state} = this.ctx;
    if (name === 'saliency') return saliencyWords(frame, saliencyOf(frame));
    if (name === 'explanation') {
      const {explanation = ''} = methodArgs(frame, 'RationaleGuided');
      return `The trained explanation (${String(explanation).replaceAll('_', ' ')}), before it is normalised `
        + 'in the loss.';
    }
    const {pieces} = attentionOfRow(frame, probe, state), row = rowName(frame, probe, pieces);
    const coded = 'Weights are stored as one byte each, so close values may tie here but not in a figure.';
    return name === 'rollout' ? `Attention rollout of ${row} through all recorded layers. ${coded}`
      : `Attention of ${row} in ${entryPhrase(state.entry)}. ${coded}`;
  }

  legendWords() {
    const {agreement: {k, n, isFlat, chosen}} = this.shown, {unit} = this, notes = [this.what()];
    if (!isFlat) notes.push('The colours are scaled to this sentence at this step.');
    notes.push(this.isSoft()
      ? `Bar below a ${unit}: the fraction of annotators who marked it; ${unit}s with a filled bar `
        + `(at least one half) count as marked (${k} of ${n}).`
      : `Underlined: marked by the rationale (${k} of ${countWords(n, unit)}).`);
    if (chosen) notes.push(`Framed: the ${k === 1 ? 'highest value' : `${k} highest values`}, because `
      + `${countWords(k, `${unit} is`, `${unit}s are`)} marked.`);
    if (this.unit === 'word')
      notes.push('A word’s value is the sum over its pieces; the word is marked if any of its pieces is.');
    return notes.join(' ');
  }

  // ---- over the steps

  // {step: agreement} of the available steps; only new ones are computed.
  overSteps() {
    const {store, state} = this.ctx, {run, probe, entry, row, mergeWords} = state;
    const key = JSON.stringify([run, probe, this.name, entry, row, mergeWords]);
    if (key !== this.cacheKey) this.cache.clear();
    this.cacheKey = key;
    return store.shipped(run, probe).map(step => {
      const place = `${run}/${probe}/${step}`;
      if (!this.cache.has(place)) {
        const {agreement = null} = agreementAt(store.frame(run, probe, step), this.probe, state, this.name);
        this.cache.set(place, agreement);
      }
      return {step, agreement: this.cache.get(place)};
    });
  }

  drawCurve() {
    const rows = this.overSteps(), {store, state} = this.ctx, width = this.curve.clientWidth || 300;
    const kinds = agreementKinds.filter(([kind]) => rows.some(row => Number.isFinite(row.agreement?.[kind])));
    this.curve.toggleAttribute('hidden', rows.length < 2 || !kinds.length);
    if (this.curve.hasAttribute('hidden')) return;
    const [first, last] = [rows[0].step, rows.at(-1).step], space = width - curveLeft - curveRight;
    const x = step => curveLeft + space * (step - first) / (last - first), y = v => curveTop + curveHigh * (1 - v);
    const text = (words, at, anchor) => {
      const node = svgNode('text', {...at, 'text-anchor': anchor});
      node.textContent = words;
      return node;
    };
    const nodes = [0, .5, 1].flatMap(v => [
      svgNode('line', {x1: curveLeft, x2: width - curveRight, y1: y(v), y2: y(v), class: 'sv-agreement-axis'}),
      text(String(v), {x: curveLeft - 4, y: y(v) + 4}, 'end')]);
    nodes.push(text(`step ${first}`, {x: curveLeft, y: 107}, 'start'), text(String(last), {x: x(last), y: 107}, 'end'));
    for (const [kind, , style] of kinds) nodes.push(...this.lineOf(rows, kind, style, x, y));
    const now = x(store.stepOf(state));
    nodes.push(svgNode('line', {x1: now, x2: now, y1: curveTop, y2: curveTop + curveHigh, class: 'sv-agreement-now'}));
    this.curve.replaceChildren(...nodes);
    this.curve.setAttribute('aria-label', `agreement from step ${first} to ${last}: ${kinds.map(([kind, name]) =>
      `${name} from ${rows.map(r => r.agreement?.[kind]).filter(Number.isFinite).map(v => numberWords(v, 2))
        .filter((_, i, all) => !i || i === all.length - 1).join(' to ')}`).join(', ')}`);
  }

  // A line with gaps where there is no number; a number between two gaps is a dot.
  lineOf(rows, kind, style, x, y) {
    const value = row => row?.agreement?.[kind] ?? NaN, random = rows.find(row => row.agreement)?.agreement.random;
    let path = '', isDrawing = false;
    for (const row of rows) {
      const hasValue = Number.isFinite(value(row));
      if (hasValue) path += `${isDrawing ? 'L' : 'M'}${x(row.step)} ${y(value(row))}`;
      isDrawing = hasValue;
    }
    const alone = rows.filter((row, i) => Number.isFinite(value(row))
      && [rows[i - 1], rows[i + 1]].every(other => !Number.isFinite(value(other))));
    const dots = alone.map(row => svgNode('circle', {cx: x(row.step), cy: y(value(row)), r: 2.5,
      class: `sv-agreement-dot ${style}`}));
    const chance = kind === 'auprc' && Number.isFinite(random) ? [svgNode('line', {x1: x(rows[0].step),
      x2: x(rows.at(-1).step), y1: y(random), y2: y(random), class: `sv-agreement-random ${style}`})] : [];
    return [...chance, svgNode('path', {d: path, class: `sv-agreement-line ${style}`}), ...dots];
  }
}

export const rationalePanel = {
  name: 'rationale', title: 'Rationale', order: 64, shows: 'text', image: 'explanation_beside_rationale', page: 'below',
  help: {says: [
    'The sentence coloured by an explanation, the words that people marked, and how well the two agree at each step.',
    'Agreement shows that an explanation looks plausible, not that it is faithful to the model.'],
  keys: [['← →', 'move between words'], ['Home End', 'first or last word']]},
  fits: hasRationale, absent: 'The data of this run contains no rationales.',
  view: Rationale,
};
