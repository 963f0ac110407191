// Panel 'sentence': tokens coloured by saliency, by the attention of the chosen row or by their difference; choosing
// rows and tokens; class probabilities.
import {colourScaleOf, percent, scaleColour, shortNumber} from '../lib/colour.js';
import {entryPhrase, entryTitle, mapOf, pooledRow, rowOrMean, saliencyOf, unitsOf} from '../state/derive.js';
import {copyNode, copySentence, paintCopy, recordedCopy} from './masked.js';
import {LabelLines, labelRows, outcomeOf, targetLine} from './answers.js';
import {attributionName, chipText, countWords, directionOf, isCut, listWords, numberWords} from '../lib/words.js';
import {paintToken, quoted, repeatNames, scaleBar, signWords, visibleText, wordGroups} from '../lib/words.js';
import {choiceOf, elementOf, labelled, setText, tickBox} from '../lib/controls.js';

const colourChoices = [
  ['saliency', 'saliency'], ['attention', 'attention of the chosen row'], ['difference', 'attention − |saliency|'],
    ['rationale', 'rationale'],
];
const sentenceKeys = ['frames', 'meta', 'run', 'probe', 'step', 'entry', 'row', 'tokens', 'colour', 'ownScale',
  'hideSpecial', 'mergeWords', 'palette', 'theme', 'size'];
const overOrdinary = 'each normalised over ordinary tokens';

function sumOver(values, tokens) { return tokens.reduce((sum, i) => sum + values[i], 0); }

// The pieces of the query: the chosen token, or with whole words all pieces of its word; none where all rows count
// equally.
function queryPieces(probe, state, frame) {
  const row = state.row ?? pooledRow(frame);
  if (row === null) return [];
  return state.mergeWords ? wordGroups(probe).find(g => g.tokens.includes(row))?.tokens ?? [row] : [row];
}

// The attention from the chosen row to each token [n], or null and the reason. The row of a word is the mean of its
// pieces' rows; without a row, the mean over all rows is used.
export function attentionOfRow(frame, probe, state) {
  const map = mapOf(frame, state.entry, 'attention'), pieces = queryPieces(probe, state, frame);
  if (!map.values) return {values: null, note: map.note, pieces};
  if (map.pooled > 1)
    return {values: null, note: `Only a thumbnail is stored here (${map.title}); individual rows are not available.`,
      pieces};
  if (!pieces.length) return {values: [...rowOrMean(map.values, map.n, null)], note: '', pieces};
  const values = probe.tokens.map((_, key) => pieces.reduce((sum, q) => sum + map.values[q * map.n + key],
    0) / pieces.length);
  return {values, note: '', pieces};
}

// Values of units divided by the sum of their magnitudes over ordinary tokens; NaN for special tokens.
export function fractionsOf(values, units) {
  const total = values.reduce((sum, v, k) => sum + (units[k].special || !Number.isFinite(v) ? 0 : Math.abs(v)), 0);
  return values.map((v, k) => units[k].special ? NaN : total > 0 ? v / total : 0);
}

function rationaleOf(frame, probe) { return frame?.get('rationale')?.values() ?? probe.rationale ?? null; }

function unitSums(values, units) { return values && units.map(u => sumOver(values, u.tokens)); }

// All values of the units of a sentence at one step.
export function sentenceValues(frame, probe, state, units = unitsOf(probe, state)) {
  const source = saliencyOf(frame), row = frame ? attentionOfRow(frame, probe, state) : {values: null, note: '',
    pieces: []};
  const saliency = unitSums(source?.values, units), attention = unitSums(row.values, units);
  const saliencyFractions = saliency && fractionsOf(saliency, units),
    attentionFractions = attention && fractionsOf(attention, units);
  const difference = saliency && attention && attentionFractions.map((a, k) => a - Math.abs(saliencyFractions[k]));
  const rationale = unitSums(rationaleOf(frame, probe), units)?.map(f => Number(f > 0)) ?? null;
  const all = row.values && sumOver(row.values, row.values.map((_, i) => i));
  const specialFraction = row.values && sumOver(row.values, probe.is_special.flatMap((s, i) => s ? [i] : [])) / all;
  const {note, pieces} = row;
  const fractions = {saliencyFractions, attentionFractions, specialFraction};
  return {units, saliency, attention, rationale, difference, ...fractions, name: source?.name, row: row.values, note,
    pieces};
}

// The colour scale, up to the largest magnitude among ordinary tokens. For saliency, the limit is at least the limit of
// the whole run (`atLeast`), so that little saliency looks pale.
export function sentenceScale(values, state, atLeast = 0) {
  const shown = values[state.colour]?.filter((v, k) => !values.units[k].special && Number.isFinite(v)) ?? [];
  const signed = state.colour === 'saliency' || state.colour === 'difference';
  const least = state.colour === 'saliency' ? atLeast : 0;
  const limit = state.colour === 'rationale' ? 1 : Math.max(least, ...shown.map(Math.abs));
  return colourScaleOf({limit, signed, palette: state.palette, theme: state.theme});
}

export function rowName(frame, probe, pieces) {
  if (!pieces.length) return 'the mean row';
  const label = pieces.length > 1 ? probe.words[probe.word_ids[pieces[0]]] : probe.labels[pieces[0]] ?? '';
  return `${quoted(label)}${pieces.includes(pooledRow(frame)) ? ` (the row that the ${frame.info?.explains
    ? 'model' : 'classifier'} reads)` : ''}`;
}

export function saliencyWords(frame, values) {
  const {saliency_method: by, words} = frame.info ?? {}, method = attributionName(by);
  const isMethods = values.name !== 'saliency', explained = frame.info?.explains ?? words?.explained;
  const of = isMethods ? 'used by the method' : `${method ? `${method}, ` : ''}for ${explained}`;
  return `Saliency (${of}): ${signWords(isMethods ? {words} : frame.info)}`;
}

function legendWords(frame, probe, state, values, scaleWords) {
  const from = `Attention of ${rowName(frame, probe, values.pieces)} in ${entryPhrase(state.entry)}`, notes = [];
  if (state.colour === 'saliency') {
    notes.push(saliencyWords(frame, values));
    if (scaleWords) notes.push(scaleWords);
  }
  if (state.colour === 'attention') notes.push(`${from}.`);
  if (state.colour === 'difference')
    notes.push(`${from} minus |saliency|, ${overOrdinary}. Orange: more attention than saliency; blue: less.`);
  if (state.colour === 'rationale') notes.push('Coloured: tokens marked by the rationale.');
  if (state.colour !== 'saliency' && state.colour !== 'rationale' && Number.isFinite(values.specialFraction))
    notes.push(`Special tokens receive ${percent(values.specialFraction)} of the attention `
      + 'and are left out of the scale.');
  if (state.colour !== 'saliency' && state.colour !== 'rationale' && !values.pieces.length)
    notes.push('This task uses all rows: until you choose a token, attention is the mean over all rows.');
  if (state.mergeWords)
    notes.push(`A word’s value is the sum over its pieces${state.colour === 'saliency'
      ? '' : '; a word’s row is the mean over its pieces'}.`);
  return notes.join(' ');
}

const missingColour = {
  saliency: 'No saliency was recorded at this step.',
  difference: 'The difference needs both saliency and the attention of a row.',
  rationale: 'The data contains no rationale for this sentence.',
};

function unitWords(values, k, frame, probe) {
  const {saliency, attention, difference, saliencyFractions, attentionFractions, units} = values, parts = [];
  const fraction = fractions => units[k].special ? '' : ` (${percent(Math.abs(fractions[k]))})`;
  if (saliency) parts.push(`saliency ${shortNumber(saliency[k])}${fraction(saliencyFractions)}`);
  if (attention)
    parts.push(`attention from ${rowName(frame, probe,
      values.pieces)} ${shortNumber(attention[k])}${fraction(attentionFractions)}`);
  if (difference && !units[k].special)
    parts.push(`difference ${difference[k] > 0 ? '+' : ''}${shortNumber(difference[k])}`);
  return parts.join(', ');
}

function lossWords(frame, run) {
  const losses = frame?.losses ?? {}, names = Object.keys(losses).filter(name => !name.endsWith('_weight'));
  if (!names.length) return '';
  const one = name => {
    const weight = losses[`${name}_weight`];
    return `${name.replaceAll('_', ' ')} ${numberWords(losses[name])}${weight === undefined
      ? '' : ` (weight ${numberWords(weight)})`}`;
  };
  const standsIn = frame.info?.words?.no_label, isLabelled = frame.label !== null || frame.info?.token_labels;
  const guess = !isLabelled && run && standsIn ? ` The label is missing: ${standsIn}.` : '';
  return `Losses for this sentence: ${names.map(one).join(', ')}.${guess}`;
}

class Sentence {
  constructor(ctx) {
    Object.assign(this, {ctx, chips: [], hovered: null});
    const {state} = ctx;
    this.colour = choiceOf(colourChoices, value => state.set({colour: value}));
    this.clear = elementOf('button', 'sv-clear', 'Clear selection');
    this.clear.addEventListener('click', () => {
      this.focus(Math.max(0, this.chips.findIndex(chip => chip.tabIndex === 0)));   // the button disappears
      state.set({row: null, tokens: []});
    });
    this.scaleBox = tickBox(on => state.set({ownScale: on}));
    this.scaleField = labelled('Scale to this sentence', this.scaleBox, 'sv-check');
    this.head = elementOf('div', 'sv-sentence-head', labelled('Colour by', this.colour), this.scaleField,
      this.clear);
    this.line = elementOf('div', 'sv-line');
    this.line.setAttribute('role', 'listbox');
    this.line.setAttribute('aria-multiselectable', 'true');
    this.line.setAttribute('aria-orientation', 'horizontal');
    this.line.setAttribute('aria-label',
      'tokens: press Enter to choose the row, Space to add the token to the selection');
    this.scale = elementOf('div', 'sv-sentence-scale');
    this.legend = elementOf('p', 'sv-note');
    this.reading = elementOf('p', 'sv-reading');
    this.sum = elementOf('p', 'sv-sum');
    this.full = elementOf('div', 'sv-full');
    this.full.dir = 'auto';
    this.full.tabIndex = 0;
    this.full.setAttribute('aria-label', 'full text of the token');
    this.labels = new LabelLines();
    this.target = targetLine();
    this.bars = elementOf('div', 'sv-sentence-bars');
    this.losses = elementOf('p', 'sv-note');
    const left = elementOf('div', 'sv-sentence-main', this.line, this.target.el, this.reading, this.full, this.sum,
      this.scale, this.legend);
    const body = elementOf('div', 'sv-sentence-body', left,
      elementOf('div', 'sv-sentence-side', this.bars, this.losses));
    this.el = elementOf('section', 'sv-panel sv-sentence', this.head, body);
    this.el.setAttribute('aria-label', 'Sentence');
    this.listen();
  }

  listen() {
    const of = e => e.target.closest?.('.sv-chip'), index = chip => chip ? this.chips.indexOf(chip) : null;
    this.line.addEventListener('click', e => of(e) && this.choose(index(of(e)), e.shiftKey || e.ctrlKey || e.metaKey));
    this.line.addEventListener('mousedown', e => { if (e.shiftKey) e.preventDefault(); });
    this.line.addEventListener('mouseover', e => this.read(index(of(e))));
    this.line.addEventListener('mouseleave', () => this.read(null));
    this.line.addEventListener('focusin', e => {
      this.read(index(of(e)));
      of(e)?.setAttribute('aria-label', this.reading.textContent);
    });
    this.line.addEventListener('focusout', e => of(e)?.removeAttribute('aria-label'));
    this.line.addEventListener('keydown', e => this.key(e, index(of(e))));
  }

  key(e, k) {
    if (k === null || e.ctrlKey || e.metaKey || e.altKey) return;
    const right = this.line.dir === 'rtl' ? -1 : 1;
    const keys = {
      ArrowRight: () => this.focus(k + right), ArrowLeft: () => this.focus(k - right),
      Home: () => this.focus(0), End: () => this.focus(this.chips.length - 1),
      Enter: () => this.choose(k, e.shiftKey), ' ': () => this.choose(k, true),
        Escape: () => this.ctx.state.set({row: null, tokens: []}),
    };
    if (!keys[e.key]) return;
    keys[e.key]();
    e.preventDefault();
    e.stopPropagation();
  }

  focus(k) {
    const chip = this.chips[Math.max(0, Math.min(this.chips.length - 1, k))];
    for (const other of this.chips) other.tabIndex = other === chip ? 0 : -1;
    chip?.focus();
  }

  choose(k, adding) {
    const {state} = this.ctx, {tokens} = this.values.units[k];
    if (adding) {
      const rest = state.tokens.filter(i => !tokens.includes(i)), had = rest.length < state.tokens.length;
      state.set({tokens: had ? rest : [...state.tokens, ...tokens].sort((a, b) => a - b)});
    } else state.set({row: tokens.includes(state.row) ? null : tokens[0]});
    this.speak = true;
  }

  update(changed) {
    const {store, state} = this.ctx;
    if (!sentenceKeys.some(key => changed.has(key))) return;
    this.probe = store.probe(state.run, state.probe);
    this.frame = store.frameOf(state);
    if (!this.probe) return this.missing(store.why(state.run, state.probe, 0));
    this.copy = recordedCopy(this.frame, this.probe);
    this.rows = labelRows(this.frame);
    this.translated = Boolean(this.frame?.info?.target_tokens);
    this.build();
    this.values = sentenceValues(this.frame, this.probe, state, this.units);
    this.paint();
    this.say();
    return null;
  }

  missing(why) {
    this.line.replaceChildren();
    this.built = null;
    for (const part of [this.reading, this.sum, this.full, this.losses]) setText(part, '');
    this.bars.replaceChildren();
    this.target.show(null);
    this.scale.replaceChildren();
    setText(this.legend, why);
  }

  // Nodes are rebuilt only for another sentence or another segmentation of it.
  build() {
    const {state} = this.ctx, {run, probe, mergeWords, hideSpecial} = state;
    const key = [run, probe, mergeWords, hideSpecial, Boolean(this.copy), Boolean(this.rows), this.translated,
      this.probe.tokens.length].join();
    if (key === this.built) return;
    this.built = key;
    this.hovered = null;
    this.units = unitsOf(this.probe, state);
    this.chips = this.units.map(unit => sentenceChip(unit));
    this.copies = [];
    this.line.dir = directionOf(this.probe.texts);
    this.line.classList.toggle('sv-with-copy', Boolean(this.copy));
    this.labels.clear();
    this.line.replaceChildren(...this.columns());
    if (this.chips[0]) this.chips[0].tabIndex = 0;
  }

  // One column per word: its pieces on top, the word of the masked copy below.
  columns() {
    const words = this.copy ?? wordGroups(this.probe), columns = [];
    words.forEach((word, w) => {
      const chips = this.chips.filter((_, k) => word.tokens.includes(this.units[k].tokens[0]));
      if (!chips.length) return;
      const under = chip => elementOf('span', 'sv-labelled', chip,
        this.labels.node(this.units[this.chips.indexOf(chip)].tokens));
      const pieces = this.rows ? chips.map(under) : chips;
      const column = elementOf('span', 'sv-word', elementOf('span', 'sv-pieces', ...pieces));
      if (this.copy) this.copies.push([column.appendChild(copyNode()), w]);
      columns.push(column);
    });
    const name = (sign, about) => Object.assign(elementOf('span', 'sv-line-name', sign), {title: about});
    if (this.copy)
      columns.unshift(elementOf('span', 'sv-word sv-line-names', name('X', 'the sentence'),
        name('X̃', 'its masked copy')));
    if (this.rows) columns.unshift(this.labels.names(this.rows));
    if (this.translated)
      columns.unshift(elementOf('span', 'sv-word sv-answer-names',
        elementOf('span', 'sv-line-name sv-answer-token', 'source')));
    return columns;
  }

  paint() {
    const {store, state} = this.ctx, scale = sentenceScale(this.values, state, store.saliencyScale(state).limit);
    const shown = this.values[state.colour];
    const row = this.values.pieces, chosen = new Set(state.tokens);
    this.units.forEach((unit, k) => {
      const chip = this.chips[k], value = unit.special || !shown ? NaN : shown[k];
      paintToken(chip, Number.isFinite(value) ? scaleColour(scale, value) : null);
      chip.classList.toggle('sv-row', unit.tokens.some(i => row.includes(i)));
      chip.classList.toggle('sv-chosen', unit.tokens.some(i => chosen.has(i)));
      chip.setAttribute('aria-selected', String(unit.tokens.some(i => chosen.has(i))));
    });
    for (const [node, w] of this.copies) paintCopy(node, this.copy[w]);
    if (this.rows) this.labels.paint(this.rows);
    this.target.show(this.frame);
    repeatNames(this.line);
    this.paintScale(scale, Boolean(shown));
  }

  paintScale(scale, shown) {
    const {state, store} = this.ctx, of = state.colour === 'saliency' ? store.saliencyScale(state).name : '';
    const key = [scale.limit, scale.signed, state.palette, state.theme, of,
      shown && state.colour !== 'rationale'].join();
    if (key === this.scaled) return;
    this.scaled = key;
    this.scale.replaceChildren(...(shown && state.colour !== 'rationale' ? [scaleBar(scale, of)] : []));
  }

  say() {
    const {store, state} = this.ctx, {frame, probe, values} = this, run = store.run(state.run),
      step = store.stepOf(state);
    for (const option of this.colour.options) option.disabled = Boolean(frame) && !values[option.value];
    this.colour.value = state.colour;
    this.scaleBox.checked = state.ownScale;
    this.scaleField.hidden = state.colour !== 'saliency';
    this.clear.hidden = state.row === null && !state.tokens.length;
    const away = step === null ? 'Nothing has been recorded yet.' : store.why(state.run, state.probe, step);
    const here = state.colour === 'saliency' && frame?.info?.awaited;
    const why = frame ? here || (missingColour[state.colour] ?? values.note) : away;
    const copied = this.copy ? ` In the masked copy X̃, ${copySentence(this.copy, frame)}` : '';
    setText(this.legend, !frame || !values[state.colour] ? why
      : legendWords(frame, probe, state, values, store.saliencyScale(state).words) + copied);
    this.bars.replaceChildren(...(frame ? [outcomeOf(frame, run)] : []));
    setText(this.losses, [lossWords(frame, run), ...(frame?.info?.notes ?? [])].filter(Boolean)
      .map(note => note.replace(/[^.]$/, '$&.')).join(' '));
    this.saySum();
    this.read(this.hovered);
  }

  saySum() {
    const {state, announce} = this.ctx, {frame, probe, values} = this;
    const chosen = this.units.filter(u => u.tokens.some(i => state.tokens.includes(i)));
    const total = values.row && sumOver(values.row, state.tokens), names = listWords(chosen.map(u => u.label));
    const text = total === null || !chosen.length ? ''
      : `${shortNumber(total)} of the attention from ${rowName(frame, probe, values.pieces)} goes to `
        + `${countWords(chosen.length, state.mergeWords ? 'chosen word' : 'chosen token')}: ${names} `
        + `(${entryTitle(state.entry)}).`;
    setText(this.sum, text);
    if (this.speak) announce(text || `row ${rowName(frame, probe, values.pieces)}`);
    this.speak = false;
  }

  // Describes the unit under the pointer or focus, else the chosen row; shows shortened text in full.
  read(k) {
    this.hovered = k;
    if (!this.values || !this.probe) return;
    const {frame, probe, values} = this, at = k ?? -1, unit = this.units[at];
    const labelled = unit && this.rows && this.labels.words(unit.tokens, this.rows);
    const about = frame ? unit && [labelled, unitWords(values, at, frame, probe)].filter(Boolean).join('; ')
      : 'no values at this step';
    const chosen = values.pieces.length ? rowName(frame, probe, values.pieces) : 'the mean over all rows';
    const row = frame && values.row ? `Row: ${chosen}.` : '';
    setText(this.reading, unit ? `${quoted(unit.label)}${unit.special ? ' (special)' : ''}: ${about}` : row);
    const current = unit ?? this.units.find(u => u.tokens.includes(this.ctx.state.row));
    setText(this.full, current && isCut(current.label) ? visibleText(current.label) : '');
    this.full.hidden = !this.full.textContent;
  }
}

function sentenceChip(unit) {
  const text = elementOf('bdi', '', chipText(unit.label)),
    chip = elementOf('span', unit.special ? 'sv-chip sv-special' : 'sv-chip', text);
  text.dir = 'auto';
  chip.setAttribute('role', 'option');
  chip.tabIndex = -1;
  chip.dataset.token = unit.tokens[0];
  return chip;
}

export const sentencePanel = {
  name: 'sentence', title: 'Sentence', order: 60, shows: 'text', image: 'sentence', page: 'below',
  help: {says: [
    'The model’s input tokens, coloured by saliency, by the attention of the chosen row, by their difference or by the '
      + 'rationale.',
    'The note below the scale explains the colours; saliency describes the model’s prediction, not the sentence.'],
  keys: [['← →', 'move between tokens'], ['Home End', 'first or last token'], ['Enter', 'choose the row'],
    ['Space', 'add the token to the selection'], ['click', 'choose the row'],
    ['Shift-click', 'add the token to the selection'],
    ['Esc', 'clear the selection']]},
  tour: 'the input tokens and the prediction. Choose a token to see where it attends.',
  view: Sentence,
};
