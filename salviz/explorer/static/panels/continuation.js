// Panel 'continuation': text that the model generated. Choose a generated token to see its saliency, its probability
// and the alternatives.
import {colourScaleOf, scaleColour, shortNumber} from '../lib/colour.js';
import {attributionName, chipText, directionOf, numberWords, paintToken, quoted} from '../lib/words.js';
import {scaleBar, visibleText} from '../lib/words.js';
import {elementOf, setText} from '../lib/controls.js';

const continuationKeys = ['frames', 'meta', 'run', 'probe', 'step', 'row', 'palette', 'theme'];

// {start, tokens, probability, others, saliency (values for each generated token, or null), n} of a frame, else null.
export function continuationOf(frame) {
  const recorded = frame?.info?.continuation;
  if (!recorded?.tokens?.length || !Number.isInteger(recorded.start)) return null;
  const tensor = frame.get('continuation_saliency'), [count, n] = tensor?.shape ?? [0, 0];
  const values = tensor && count === recorded.tokens.length ? tensor.values() : null;
  const saliency = values && recorded.tokens.map((_, g) => values.subarray(g * n, (g + 1) * n));
  return {...recorded, saliency, n};
}

function hasContinuation(frame) { return Boolean(continuationOf(frame)); }

// The index of the chosen generated token: the one predicted from the chosen row, else the first.
export function writtenAt({start, tokens}, row) {
  const g = row === null ? 0 : row - (start - 1);
  return g >= 0 && g < tokens.length ? g : 0;
}

// The largest magnitude among the tokens before generated token `g`; special tokens are left out of the scale.
function largestBefore(values, upTo, special) {
  return values.reduce((most, v, i) =>
    i < upTo && !special[i] && Number.isFinite(v) ? Math.max(most, Math.abs(v)) : most, 0);
}

class Continuation {
  constructor(ctx) {
    Object.assign(this, {ctx, chips: []});
    this.line = elementOf('div', 'sv-line');
    this.line.setAttribute('role', 'listbox');
    this.line.setAttribute('aria-orientation', 'horizontal');
    this.line.setAttribute('aria-label', 'generated tokens: choose one to see its saliency');
    this.about = elementOf('p', 'sv-reading');
    this.reading = elementOf('p', 'sv-reading');
    this.scale = elementOf('div', 'sv-sentence-scale');
    this.legend = elementOf('p', 'sv-note');
    this.el = elementOf('section', 'sv-panel sv-continuation',
      elementOf('div', 'sv-head', elementOf('h3', 'sv-title', 'Continuation')),
      this.line, this.about, this.reading, this.scale, this.legend);
    this.el.setAttribute('aria-label', 'Continuation');
    this.head = this.el.firstChild;
    this.listen();
  }

  listen() {
    const of = e => this.chips.indexOf(e.target.closest?.('.sv-chip'));
    this.line.addEventListener('click', e => this.choose(of(e) - this.written.start));
    this.line.addEventListener('mouseover', e => this.read(of(e)));
    this.line.addEventListener('mouseleave', () => this.read(-1));
    this.line.addEventListener('keydown', e => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[e.key] * (this.line.dir === 'rtl' ? -1 : 1), last = this.count() - 1;
      const to = {Home: 0, End: last}[e.key] ?? this.chosen() + step;
      if (!Number.isFinite(to) || e.ctrlKey || e.metaKey || e.altKey) return;
      this.choose(Math.max(0, Math.min(last, to)));
      this.focused = true;
      e.preventDefault();
      e.stopPropagation();
    });
  }

  count() { return this.written?.tokens.length ?? 0; }

  chosen() { return this.written ? writtenAt(this.written, this.ctx.state.row) : 0; }

  // The row from which the model predicted the token; all other panels then show this row.
  choose(g) {
    if (!this.written || g < 0 || g >= this.count()) return;
    this.ctx.state.set({row: this.written.start - 1 + g});
    this.speak = true;
  }

  update(changed) {
    if (!continuationKeys.some(key => changed.has(key))) return;
    const {store, state} = this.ctx;
    this.frame = store.frameOf(state);
    this.probe = store.probe(state.run, state.probe);
    this.written = this.probe ? continuationOf(this.frame) : null;
    for (const part of [this.line, this.about, this.reading, this.scale]) part.hidden = !this.written;
    if (!this.written) {
      setText(this.legend, 'The model generated no continuation of this text.');
      return;
    }
    this.build();
    this.paint();
    this.say();
  }

  build() {
    const {run, probe} = this.ctx.state, {labels, is_special: special, texts} = this.probe, {start} = this.written;
    const key = [run, probe, start, labels.join('\u0000')].join();
    if (key === this.built) return;
    this.built = key;
    this.chips = labels.map((label, i) => {
      const text = elementOf('bdi', '', chipText(label));
      text.dir = 'auto';
      const kinds = `${special[i] ? ' sv-special' : ''}${i < start ? '' : ' sv-written'}`;
      const chip = elementOf('span', `sv-chip${kinds}`, text);
      if (i >= start) chip.setAttribute('role', 'option');
      else chip.setAttribute('role', 'presentation');
      return chip;
    });
    this.line.dir = directionOf(texts);
    this.line.replaceChildren(...this.chips);
  }

  paint() {
    const {state} = this.ctx, {start, saliency, tokens} = this.written, g = this.chosen(), values = saliency?.[g];
    const special = this.probe.is_special, limit = values ? largestBefore(values, start + g, special) : 0;
    const scale = colourScaleOf({limit, signed: true, palette: state.palette, theme: state.theme});
    this.chips.forEach((chip, i) => {
      const counts = values && i < start + g && !special[i] && limit > 0;
      paintToken(chip, counts ? scaleColour(scale, values[i]) : null);
      chip.classList.toggle('sv-row', i === start + g);
      chip.classList.toggle('sv-later', i > start + g);
      if (i < start) return;
      chip.setAttribute('aria-selected', String(i === start + g));
      chip.tabIndex = i === start + g ? 0 : -1;
    });
    if (this.focused) this.chips[start + g]?.focus();
    this.focused = false;
    this.scale.hidden = !limit;
    this.scale.replaceChildren(...(limit ? [scaleBar(scale, 'of this token')] : []));
    this.values = values;
    this.shown = tokens[g];
  }

  say() {
    const {frame} = this, {start, probability, others, tokens} = this.written, g = this.chosen();
    const instead = (others?.[g] ?? []).map(([name, p]) => `${quoted(name)} ${numberWords(p, 2)}`).join(', ');
    const before = this.probe.labels[start + g - 1];
    setText(this.about, `${quoted(tokens[g])}, generated after ${quoted(before)}: probability `
      + `${numberWords(probability[g], 2)}${instead ? `. Alternatives: ${instead}` : ''}.`);
    const by = attributionName(frame.info?.saliency_method);
    const what = `Saliency (${by ? `${by}, ` : ''}for the logit of ${quoted(tokens[g])} after ${quoted(before)}): `
      + 'orange is evidence for the token and blue is evidence against it; the colours are scaled to this token. '
      + 'Dashed: later tokens, which cannot influence it.';
    setText(this.legend, this.values ? what : frame.info?.awaited ?? 'No saliency was recorded.');
    if (this.speak) this.ctx.announce(this.about.textContent);
    this.speak = false;
    this.read(-1);
  }

  read(i) {
    const g = this.chosen(), hasValue = this.values && i >= 0 && i < this.written.start + g;
    const label = this.probe?.labels[i];
    const words = hasValue ? `${quoted(label)}: saliency ${shortNumber(this.values[i])} for ${quoted(this.shown)}`
      : i >= 0 && label !== undefined ? visibleText(label) : 'Choose a framed token; the map and the sentence '
        + 'then show the row from which it was predicted.';
    setText(this.reading, words);
  }
}

export const continuationPanel = {
  name: 'continuation', title: 'Continuation', order: 62, shows: 'text', image: 'continuation', page: 'below',
  help: {says: [
    'The generated text, in which earlier tokens are coloured by their influence on the chosen token’s logit.',
    'The colours are scaled separately for each token, so a strong colour does not mean that the model was confident.'],
  keys: [['← →', 'previous or next generated token'], ['Home End', 'first or last generated token']]},
  fits: hasContinuation, absent: 'No continuation was generated in this run.',
  view: Continuation,
};
