// Panel 'answer': an answer about an image. Choose a generated token to see its attribution to pixels and words.
import {colourScaleOf, paintScale, percent, scaleColour, shortNumber} from '../lib/colour.js';
import {chipText, numberWords, paintToken, quoted, scaleBar} from '../lib/words.js';
import {choiceOf, elementOf, fillChoice, labelled, setText, tickBox} from '../lib/controls.js';
import {MarkEditor, markedPixels, measuresInside} from './answermarks.js';
import {writtenAt} from './continuation.js';

const answerKeys = ['frames', 'meta', 'run', 'probe', 'step', 'row', 'palette', 'theme', 'size', 'marks'];
const answerGrey = .4;
const answerMethods = {attention: 'Attention, mean over layers and heads', rollout: 'Attention rollout',
  gradient_x_attention: 'Gradient x attention'};

// Calls `visit(token, box)` for each token of a layout, with its box in pixels of an image of rows x columns.
function eachBox({height, width, crops}, rows, columns, visit) {
  const down = rows / height, across = columns / width;
  let token = 0;
  for (const [top, left, tall, wide, r, c] of crops)
    for (let i = 0; i < r * c; i++) {
      const y = Math.floor(i / c), x = i % c;
      visit(token++, {top: (top + y * tall / r) * down, bottom: (top + (y + 1) * tall / r) * down,
        left: (left + x * wide / c) * across, right: (left + (x + 1) * wide / c) * across});
    }
}

// The density of the weights at each pixel, as `pixel_map` computes it; 1: all weight, spread evenly over the image.
export function pixelDensity(layout, weights, rows, columns) {
  const out = new Float32Array(rows * columns);
  eachBox(layout, rows, columns, (token, {top, bottom, left, right}) => {
    const value = weights[token] * rows * columns / ((bottom - top) * (right - left));
    for (let y = Math.max(0, Math.floor(top)); y < Math.min(rows, bottom); y++) {
      const part = value * (Math.min(bottom, y + 1) - Math.max(top, y));
      for (let x = Math.max(0, Math.floor(left)); x < Math.min(columns, right); x++)
        out[y * columns + x] += part * (Math.min(right, x + 1) - Math.max(left, x));
    }
  });
  return out;
}

// The fraction of each token's box that is inside the image, as `inside_fractions` computes it; the rest is padding.
export function insideFractions(layout) {
  const {height, width} = layout, out = [];
  eachBox(layout, height, width, (token, {top, bottom, left, right}) => {
    const tall = Math.min(bottom, height) - Math.max(top, 0), wide = Math.min(right, width) - Math.max(left, 0);
    out.push(Math.max(0, tall) * Math.max(0, wide) / ((bottom - top) * (right - left)));
  });
  return out;
}

// The tokens whose boxes contain a point of the image; tiles and a thumbnail overlap.
export function tokensAt(layout, rows, columns, y, x) {
  const found = [];
  eachBox(layout, rows, columns, (token, {top, bottom, left, right}) => {
    if (top <= y && y < bottom && left <= x && x < right) found.push(token);
  });
  return found;
}

// What a frame contains of an answer, or null.
export function answerOf(frame) {
  const answer = frame?.info?.answer, image = frame?.get('answer_image'), weights = frame?.get('answer_weights');
  if (!answer?.methods?.length || !image || !weights) return null;
  const [rows, columns] = image.shape, [, count, n] = weights.shape;
  return {...answer, rows, columns, count, n, pixels: image.values(), weights: weights.values(),
    patchWeights: frame.get('answer_patches')?.values() ?? null};
}

class AnswerPanel {
  constructor(ctx) {
    Object.assign(this, {ctx, method: 0, tower: false, over: true, image: elementOf('canvas', 'sv-imageanswer-image'),
      map: elementOf('canvas', 'sv-imageanswer-image')});
    this.methods = choiceOf([], value => this.change({method: Number(value)}));
    this.towerBox = tickBox(tower => this.change({tower}));
    this.overBox = tickBox(over => this.change({over}));
    this.warning = elementOf('p', 'sv-note sv-imageanswer-warning');
    this.line = elementOf('div', 'sv-line');
    this.line.setAttribute('role', 'listbox');
    this.line.setAttribute('aria-orientation', 'horizontal');
    this.line.setAttribute('aria-label', 'generated tokens: choose one to see its weights');
    this.about = elementOf('p', 'sv-reading');
    this.editor = new MarkEditor(ctx, this.map);
    this.times = [0, 1].map(() => elementOf('div', 'sv-imageanswer-times'));
    this.images = elementOf('div', 'sv-imageanswer-images', elementOf('div', '', this.image, this.times[0]),
      elementOf('div', '', this.editor.el, this.times[1]));
    this.reading = elementOf('p', 'sv-reading');
    this.mapScale = elementOf('div', 'sv-sentence-scale');
    this.text = elementOf('div', 'sv-line');
    this.textScale = elementOf('div', 'sv-sentence-scale');
    this.legend = elementOf('p', 'sv-note');
    this.head = elementOf('div', 'sv-head', elementOf('h3', 'sv-title', 'Answer'), labelled('Weights', this.methods),
      labelled('Trace through the encoder', this.towerBox, 'sv-check'),
      labelled('Overlay', this.overBox, 'sv-check'));
    this.el = elementOf('section', 'sv-panel sv-imageanswer', this.head, this.warning, this.line, this.about,
      this.images, this.mapScale, this.reading, this.editor.bar, this.editor.words,
      elementOf('h4', 'sv-imageanswer-title', 'Text before the token'), this.text, this.textScale, this.legend);
    this.el.setAttribute('aria-label', 'Answer');
    this.image.setAttribute('role', 'img');
    this.map.setAttribute('role', 'img');
    this.map.tabIndex = 0;
    this.listen();
  }

  listen() {
    this.line.addEventListener('click', e => {
      const chip = e.target.closest?.('.sv-chip');
      if (!chip) return;
      this.focused = true; // the chips are replaced
      this.choose(this.chips.indexOf(chip));
    });
    this.line.addEventListener('keydown', e => {
      const to = {Home: 0, End: this.answer.count - 1}[e.key]
        ?? this.chosen() + {ArrowRight: 1, ArrowLeft: -1}[e.key];
      if (!Number.isFinite(to) || e.ctrlKey || e.metaKey || e.altKey) return;
      this.focused = true;
      this.choose(Math.max(0, Math.min(this.answer.count - 1, to)));
      e.preventDefault();
      e.stopPropagation();
    });
    this.editor.el.addEventListener('mousemove', e => this.readPoint(e));
    this.editor.el.addEventListener('mouseleave', () => this.read(null));
    this.map.addEventListener('keydown', e => {
      const across = this.layout.crops[0][5];
      const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across};
      if (!(e.key in step)) return;
      const first = this.inside.findIndex(part => part > 0), to = (this.cursor ?? NaN) + step[e.key];
      if (this.inside[to] > 0 || this.cursor === null) this.cursor = this.cursor === null ? first : to;
      this.read([this.cursor]);
      this.ctx.announce(this.reading.textContent);
      e.preventDefault();
      e.stopPropagation();
    });
  }

  change(choice) {
    Object.assign(this, choice);
    this.show();
  }

  chosen() { return writtenAt({start: this.answer.start, tokens: this.tokens}, this.ctx.state.row); }

  choose(g) {
    this.speak = true;
    this.ctx.state.set({row: this.answer.start - 1 + g});
  }

  update(changed) {
    if (!answerKeys.some(key => changed.has(key))) return;
    const {store, state} = this.ctx, frame = store.frameOf(state);
    if (frame !== this.frame) Object.assign(this, {answer: answerOf(frame), whole: null});
    this.frame = frame;
    this.probe = store.probe(state.run, state.probe);
    if (!this.answer || !this.probe) return;
    const {methods, start, image_tokens: places} = this.answer;
    this.tokens = this.probe.labels.slice(start);
    this.isSource = new Set([...places, ...Array(this.answer.special ?? 0).keys()]);
    this.method = Math.min(this.method, methods.length - 1);
    fillChoice(this.methods, methods.map((name, i) => [String(i), answerMethods[name] ?? name]), this.method);
    this.show();
  }

  // Computes what is shown for the chosen token, and draws it.
  show() {
    const {answer} = this, {count, n, rows, columns} = answer, g = this.chosen(), at = this.method * count + g;
    this.tower &&= Boolean(answer.patches);
    Object.assign(this.towerBox, {checked: this.tower, disabled: !answer.patches});
    this.overBox.checked = this.over;
    this.row = answer.weights.subarray(at * n, (at + 1) * n);
    this.layout = this.tower ? answer.patches : answer.layout;
    this.values = Float32Array.from(answer.image_tokens, i => this.row[i]);
    this.inside = insideFractions(answer.layout);
    this.onImage = this.values.reduce((sum, v, i) => sum + v * this.inside[i], 0);
    this.onPadding = this.values.reduce((sum, v) => sum + v, 0) - this.onImage;
    this.onWhole = this.row.subarray(0, answer.special ?? 0).reduce((sum, v) => sum + v, 0);
    if (this.tower) {
      const size = answer.patchWeights.length / (answer.methods.length * count);
      this.values = answer.patchWeights.subarray(at * size, (at + 1) * size);
      this.inside = insideFractions(answer.patches);
    }
    this.density = pixelDensity(this.layout, this.values, rows, columns);
    this.showAnswer(g);
    this.draw();
    this.showText(g);
    this.say(g);
    this.showMarks(`${at} ${this.tower}`);
  }

  // The measures use all pixels of the image, of which the page may store fewer; `shown` names what the map is about.
  showMarks(shown) {
    const {height, width} = this.layout, {marks} = this.editor.show(this.ctx.state.probe, height, width);
    if (shown !== this.whole?.shown) this.whole = null;
    if (marks.length) this.whole ??= {shown, map: pixelDensity(this.layout, this.values, height, width)};
    this.map.salviz.whole = this.whole?.map;
    this.editor.measure(marks.length ? measuresInside(this.whole.map, markedPixels(marks, height, width)) : null);
  }

  showAnswer(g) {
    const chips = this.tokens.map((label, i) => {
      const text = elementOf('bdi', '', chipText(label)), chip = elementOf('span', 'sv-chip sv-written', text);
      text.dir = 'auto';
      chip.setAttribute('role', 'option');
      chip.setAttribute('aria-selected', String(i === g));
      chip.tabIndex = i === g ? 0 : -1;
      chip.classList.toggle('sv-row', i === g);
      return chip;
    });
    this.chips = chips;
    this.line.replaceChildren(...chips);
    if (this.focused) chips[g]?.focus();
    this.focused = false;
  }

  draw() {
    const {palette, theme} = this.ctx.state, {rows, columns, pixels} = this.answer;
    const scale = colourScaleOf({limit: this.density.reduce((most, v) => Math.max(most, v), 0), palette, theme});
    const colours = paintScale(scale, this.density, new Uint32Array(rows * columns)), plain = new Uint32Array(colours);
    for (let k = 0; k < plain.length; k++) {
      const [r, g, b] = [pixels[3 * k], pixels[3 * k + 1], pixels[3 * k + 2]], grey = answerGrey * (r + g + b) / 3;
      plain[k] = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
      if (!this.over) continue;
      const mixed = at => Math.round((1 - answerGrey) * ((colours[k] >> at) & 255) + grey) << at;
      colours[k] = ((255 << 24) | mixed(16) | mixed(8) | mixed(0)) >>> 0;
    }
    for (const [canvas, values] of [[this.image, plain], [this.map, colours]]) {
      Object.assign(canvas, {width: columns, height: rows});
      canvas.classList.toggle('sv-imageanswer-audio', Boolean(this.answer.seconds));
      canvas.getContext('2d').putImageData(new ImageData(new Uint8ClampedArray(values.buffer), columns, rows), 0, 0);
    }
    this.map.salviz = {density: this.density};
    this.showTimes();
    this.mapScale.replaceChildren(scaleBar(scale, 'of weight density (1: even spread)'));
  }

  // The time axis of audio, below both pictures.
  showTimes() {
    const {seconds, layout} = this.answer, parts = [0, 1, 2, 3, 4];
    for (const axis of this.times) {
      axis.hidden = !seconds;
      const words = parts.map(i => `${numberWords(i / 4 * layout.width * (seconds ?? 0))}${i === 4 ? ' s' : ''}`);
      axis.replaceChildren(...words.map(word => elementOf('span', '', word)));
    }
  }

  // The text before the token; image tokens and outputs for the whole image are left out.
  showText(g) {
    const {start} = this.answer, {palette, theme} = this.ctx.state;
    const before = this.probe.labels.map((_, i) => i).slice(0, start + g).filter(i => !this.isSource.has(i));
    const scale = colourScaleOf({limit: Math.max(...before.map(i => this.row[i]), 0), palette, theme});
    this.text.replaceChildren(...before.map(i => {
      const text = elementOf('bdi', '', chipText(this.probe.labels[i]));
      text.dir = 'auto';
      const chip = elementOf('span', `sv-chip${i < start ? '' : ' sv-written'}`, text);
      chip.title = `weight ${shortNumber(this.row[i])}`;
      paintToken(chip, scaleColour(scale, this.row[i]));
      return chip;
    }));
    this.textScale.replaceChildren(scaleBar(scale, 'of token weight'));
  }

  say(g) {
    const {answer} = this, label = quoted(this.tokens[g]), notes = this.frame.info?.notes ?? [];
    const others = (answer.others[g] ?? []).map(([name, p]) => `${quoted(name)} ${numberWords(p, 2)}`).join(', ');
    const shown = this.values.map((v, i) => this.inside[i] > 0 ? v : -1), strongest = shown.indexOf(Math.max(...shown));
    this.warning.hidden = !notes.length;
    setText(this.warning, notes.join(' '));
    setText(this.about, `${label}: probability ${numberWords(answer.probability[g], 2)}`
      + `${others ? `. Alternatives: ${others}` : ''}. `
      + `${percent(this.onImage)} of this token’s weight is on the ${this.source()}${this.outside()}.`);
    this.image.setAttribute('aria-label', `the ${answer.seconds ? 'spectrogram' : 'image'}`);
    this.map.setAttribute('aria-label', `Heat map for ${label}. Strongest position: ${this.nameOf(strongest)}. `
      + `Arrow keys move between ${answer.seconds ? 'time intervals' : this.tower ? 'patches' : 'image tokens'}.`);
    const picture = answer.seconds ? 'spectrogram' : 'image';
    setText(this.legend, `Colours are scaled to this token. The weights of the ${this.source()}`
      + `${this.hasPadding() ? ', the padding' : ''}${answer.special ? ', the output for the whole image' : ''} `
      + 'and the text sum to 1. Framed words were generated.'
      + (this.over ? ` The colours are blended with the ${picture}, so they look different from the scale.` : ''));
    if (this.speak) this.ctx.announce(this.about.textContent);
    this.speak = false;
    this.cursor = null;
    this.read(null);
  }

  hasPadding() { return insideFractions(this.answer.layout).some(part => part < 1 - 1e-6); }

  // The weights that have no pixel in the picture.
  outside() {
    return (this.hasPadding() ? `, ${percent(this.onPadding)} on the padding around it` : '')
      + (this.answer.special ? `, ${percent(this.onWhole)} on the output of the encoder for the whole image` : '');
  }

  source() { return this.answer.seconds ? 'audio' : 'image'; }

  nameOf(token) {
    const weight = `weight ${shortNumber(this.values[token])}`, {seconds} = this.answer;
    if (!seconds) return `${this.tower ? 'patch' : 'image token'} ${token}, ${weight}`;
    const [, left, , wide, , c] = this.layout.crops[0], at = i => shortNumber((left + i * wide / c) * seconds);
    return `${at(token)} to ${at(token + 1)} s, ${weight}`;
  }

  readPoint(e) {
    const {rows, columns} = this.answer, box = this.map.getBoundingClientRect();
    const y = (e.clientY - box.top) / box.height * rows, x = (e.clientX - box.left) / box.width * columns;
    this.read(tokensAt(this.layout, rows, columns, y, x));
  }

  read(tokens) {
    const {seconds} = this.answer, [one, many] = this.tower ? ['patch', 'patches'] : ['image token', 'image tokens'];
    const what = tokens === null
      ? `Point at the map to read ${seconds ? 'times and weights' : `the weights of ${many}`}.`
      : tokens.map(token => this.nameOf(token)).join('; ') || `No ${one} covers this pixel.`;
    setText(this.reading, what);
  }
}

export const answerPanel = {
  name: 'answer', title: 'Answer', order: 61, shows: 'text', image: 'answer_heat_map', page: 'below',
  help: {says: [
    'An answer about an image or audio: choose a token to see its weights on the pixels or times and on the words.',
    'Weights are shown for image tokens, or traced through the image or audio encoder to patches or time intervals.'],
  keys: [['← →', 'previous or next generated token'], ['← ↑ ↓ →', 'on the map: move between image tokens'],
    ['← ↑ ↓ →', 'on a mark: move it; with Shift: change its size'], ['Delete', 'remove the mark']]},
  fits: frame => Boolean(answerOf(frame)), absent: 'This run contains no answer about an image or audio.',
  view: AnswerPanel,
};
