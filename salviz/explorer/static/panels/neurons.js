// Panel 'neurons': the attention from a query to a key as products of the components of their vectors, computed by a
// model, once for each head. Query and key are chosen here.
import {colourScale, colourScaleOf, paintScale, valueWithStep} from '../lib/colour.js';
import {CellGrid, CellPainter, doubleStroke, inksOf, labelWidth, overlayInks} from '../lib/canvas.js';
import {quotedToken, rowLabels, shownToken} from '../lib/canvas.js';
import {CellStage, spokenText} from '../lib/cells.js';
import {buttonOf, choiceOf, elementOf, fillChoice, labelled, setText} from '../lib/controls.js';
import {chipText, countWords, numberWords} from '../lib/words.js';
import {decodeFrame} from '../state/codec.js';
import {entryTitle, mapOf, pooledRow} from '../state/derive.js';
import {lateAfter, lateWords, modelNeeds, modelOffer} from './customsentence.js';
import {HeadProducts} from './products.js';

const neuronsOf = ['run', 'probe', 'step', 'entry', 'row', 'tokens', 'theme', 'frames', 'meta', 'size'];
const neuronsSoon = 200, neuronsCached = 8, neuronsLeading = 5;
const neuronRows = {least: 12, most: 20, all: 560}, neuronColumns = {least: 2, most: 24}, vectorRow = 15;
const neuronsHelp = 'Arrow keys move between keys (up, down) and neurons (left, right); Enter chooses the key.';

class Neurons {
  constructor(ctx) {
    Object.assign(this, {ctx, answers: new Map(), failed: null, turn: 0, painter: new CellPainter()});
    this.cells = new CellStage({text: cell => this.cellText(cell), announce: ctx.announce,
      spoken: cell => spokenText(this.cellText(cell)), choose: ({row}) => this.chooseKey(row),
      first: () => ({row: this.key, column: 0}), pointed: (x, y) => this.pointed(x, y),
      moved: cell => this.follow(cell)});
    const {el: stage, sharp, tip} = this.cells;
    Object.assign(this, {stage, sharp, tip});
    this.build();
  }

  build() {
    this.el = elementOf('section', 'sv-panel sv-neurons');
    this.el.setAttribute('aria-label', 'Query × key');
    this.title = elementOf('h3', 'sv-title');
    this.again = buttonOf('Recompute', 'compute queries and keys again', () => this.askAgain());
    this.head = elementOf('div', 'sv-head', this.title, this.again);
    this.choice = choiceOf([], () => this.load());
    this.choiceField = labelled('Model', this.choice);
    this.queries = choiceOf([], query => this.ctx.state.set({row: Number(query)}));
    this.keys = choiceOf([], key => this.chooseKey(Number(key)));
    this.pair = elementOf('span', 'sv-neurons-pair', labelled('Query', this.queries), labelled('Key', this.keys));
    this.controls = elementOf('div', 'sv-controls', this.choiceField, this.pair);
    this.status = elementOf('p', 'sv-note');
    this.status.setAttribute('role', 'status');
    this.sum = elementOf('p', 'sv-rowsum');
    this.about = elementOf('p', 'sv-note');
    this.el.append(this.head, this.controls, this.status, this.sum, this.stage, this.tip, this.about);
  }

  update(changed) {
    if (!neuronsOf.some(key => changed.has(key))) return;
    const {store, state} = this.ctx;
    this.frame = store.frameOf(state);
    this.probe = store.probe(state.run, state.probe);
    setText(this.title, `Query × key: ${entryTitle(state.entry)}`);
    this.fill(changed.has('step') || changed.has('run'));
    this.load();
  }

  // If several models are offered, choose the checkpoint of the step in view where there is one.
  fill(fresh) {
    const {store, state} = this.ctx, {choices = []} = modelOffer(this.ctx) ?? {},
      isOffered = value => choices.some(([place]) => String(place) === String(value)), step = store.stepOf(state);
    const previous = isOffered(this.choice.value) ? this.choice.value : choices.at(-1)?.[0] ?? '';
    fillChoice(this.choice, choices, fresh && isOffered(step) ? step : previous);
    this.choiceField.hidden = choices.length < 2;
  }

  // The request to send, or a string that says why there is none.
  question() {
    const {run, entry: {kind, layer, head}} = this.ctx.state, needs = modelNeeds(this.ctx);
    if (needs) return needs;
    if (!this.probe) return 'No sentence to show.';
    if (kind !== 'head' || layer === null)
      return 'Queries and keys belong to a single head: choose one under Heads.';
    const [choice] = modelOffer(this.ctx).choices.find(([place]) => String(place) === this.choice.value);
    return {kind: 'vectors', run, texts: this.probe.texts, choice, layer, head, length: this.probe.tokens.length};
  }

  load() {
    const question = this.question(), text = JSON.stringify(question);
    if (text !== this.requested) {
      this.requested = text;
      this.turn++;
      clearTimeout(this.soon);
      this.rest(typeof question === 'string' ? question : '');
      if (typeof question !== 'string' && !this.answers.has(text)) {
        this.wait('Computing …');
        this.soon = setTimeout(() => this.ask(question), neuronsSoon);
      }
    }
    this.again.hidden = typeof question === 'string';
    this.show();
  }

  askAgain() {
    this.answers.clear();
    this.requested = '';
    this.load();
  }

  // Only the newest request counts; answers to earlier ones are ignored.
  async ask(question) {
    const turn = this.turn;
    this.late = setTimeout(() => { if (turn === this.turn) this.wait(lateWords); }, lateAfter);
    try {
      await this.ctx.kernel.ask(question, answer => { if (turn === this.turn) this.take(answer); });
    } catch (error) {
      if (turn === this.turn) this.rest(`The request could not be sent (${error.message}); run the cell again.`, true);
    }
  }

  take(answer) {
    if (answer.error) return void this.rest(answer.error, true);
    const {tokens} = this.probe;
    if (JSON.stringify(answer.tokens) !== JSON.stringify(tokens))
      return void this.rest(`${answer.of} splits this sentence into different tokens `
        + `(${chipText(answer.tokens.join(' '), 60)}), so its queries and keys do not match the `
        + 'recorded tokens.', true);
    const numbers = new HeadProducts(decodeFrame(answer.frames[0]));
    this.answers.set(this.requested, {of: answer.of, numbers, recorded: this.recorded(), compared: {}});
    if (this.answers.size > neuronsCached) this.answers.delete(this.answers.keys().next().value);
    this.rest('');
    this.show();
  }

  recorded() { return this.ctx.store.run(this.ctx.state.run).recorded.length; }

  wait(text) {
    setText(this.status, text);
    this.status.classList.remove('sv-failed');
    this.el.setAttribute('aria-busy', 'true');
  }

  rest(text, failed = false) {
    clearTimeout(this.late);
    setText(this.status, text);
    this.status.classList.toggle('sv-failed', failed);
    this.el.removeAttribute('aria-busy');
  }

  show() {
    const answer = this.answers.get(this.requested), hasAnswer = Boolean(answer);
    for (const part of [this.pair, this.sum, this.stage, this.tip, this.about]) part.hidden = !hasAnswer;
    this.status.hidden = !this.status.textContent;
    if (!hasAnswer) return;
    const {state} = this.ctx, {numbers} = answer;
    this.numbers = numbers;
    const within = (count, ...places) => places.find(at => at >= 0 && at < count && at !== null);
    this.query = within(numbers.queries, state.row, pooledRow(this.frame), 0);
    this.key = within(numbers.keys, state.tokens[0], numbers.strongest(this.query));
    const names = this.probe.labels.map((label, i) => [i, `${i} ${chipText(label, 20)}`]);
    fillChoice(this.queries, names, this.query);
    fillChoice(this.keys, names, this.key);
    const words = this.sumWords(), fresh = words !== this.sum.textContent;
    setText(this.sum, words);
    if (fresh) this.ctx.announce(spokenText(words));
    this.tellOrigin(answer);
    if (this.stage.clientWidth) this.draw();
  }

  // "query “was” × key “film”: 32 products sum to 4.31, × 0.1768 = 0.762; weight 0.12."
  sumWords() {
    const {numbers, query, key, probe} = this, names = [query, key].map(i => quotedToken(probe.labels[i], 20));
    const {neurons, sum} = numbers.leading(query, key, neuronsLeading), {size, scaling} = numbers;
    const bias = numbers.bias ? ` + bias ${numberWords(numbers.biasOf(query, key))}` : '';
    const sums = `${size} products sum to ${numberWords(numbers.sum(query, key), 4)}, `
      + `× ${numberWords(scaling, 4)}${bias} = ${numberWords(numbers.score(query, key))}`;
    const weight = numbers.mayAttend(query, key) ? `weight ${numberWords(numbers.weight(query, key))}`
      : 'this query cannot attend to this key, so its weight is 0';
    const most = !neurons.length ? ' All products are 0.' : neurons.length === size ? ''
      : ` The ${neurons.length > 1 ? `${neurons.length} largest products (neurons ${neurons.join(', ')}) sum to`
        : `largest product (neuron ${neurons[0]}) is`} ${numberWords(sum, 4)}.`;
    return `query ${names[0]} × key ${names[1]}: ${sums}; ${weight}.${most}`;
  }

  // Where the weights of the answer differ from the step in view; null if nowhere, undefined if they cannot be
  // compared.
  unlike({numbers, compared}) {
    const {entry} = this.ctx.state, {frame} = this, map = mapOf(frame, entry, 'attention');
    if (!map.values || map.pooled > 1 || map.values.length !== numbers.attention.length) return undefined;
    if (compared.frame !== frame) Object.assign(compared, {frame, worst: numbers.unlike(map)});
    return compared.worst;
  }

  // States which model computed the numbers, and whether its weights match the step in view.
  tellOrigin(answer) {
    const {of, numbers, recorded} = answer, unlike = this.unlike(answer), {probe: {labels}, frame} = this;
    const notes = [`Computed just now by ${of}; queries and keys are not recorded.`];
    if (this.choice.value === 'now' && this.recorded() > recorded)
      notes[0] = `Computed by ${of} before the latest recorded steps; press Recompute to update.`;
    if (unlike) {
      const [query, key] = [unlike.query, unlike.key].map(i => quotedToken(labels[i], 20));
      notes.push(`The weights differ from the recorded ones: ${query} → ${key} is `
        + `${numberWords(numbers.weight(unlike.query, unlike.key))} here, `
        + `but ${valueWithStep(unlike.recorded, unlike.half)} was recorded at step ${frame.step}.`);
    } else notes.push(unlike === null ? `The weights match those recorded at step ${frame.step}, up to rounding.`
      : 'The full map of this head is not stored here, so the weights cannot be compared with the recorded ones.');
    setText(this.about, notes.join(' '));
    this.about.classList.toggle('sv-neurons-other', Boolean(unlike));
  }

  // Layout: labels and numbers on the left, one column per neuron; the two vectors on top, one row per key below.
  layout(inks) {
    const {numbers: {keys, size}, probe: {labels}} = this, ratio = window.devicePixelRatio || 1;
    const avail = this.stage.clientWidth, {context} = this.sharp,
      label = Math.max(58, labelWidth(context, labels, inks.bold, Math.min(110, avail * .22)));
    const left = label + 6 + 88, pitch = Math.max(neuronRows.least, Math.min(neuronRows.most, neuronRows.all / keys)),
      across = Math.min(size * neuronColumns.most, Math.max(size * neuronColumns.least, avail - left - 3));
    const columns = {count: size, from: 0, span: size},
      grid = (y, count, height) => new CellGrid({x: left, y, width: across, height, columns,
        rows: {count, from: 0, span: count}, ratio});
    const vectors = grid(16, 2, 2 * vectorRow), products = grid(66, keys, keys * pitch);
    return {label, vectors, products, scaleY: 66 + keys * pitch + 26, width: Math.max(left + across + 3, 320),
      height: 66 + keys * pitch + 52};
  }

  draw() {
    const {theme} = this.ctx.state, inks = inksOf(this.el, theme), {numbers, query, key, sharp} = this,
      {context} = sharp;
    const place = this.place = this.layout(inks), {vectors, products} = place;
    sharp.size(place.width, place.height);
    const scale = limit => colourScaleOf({limit, signed: true, linear: true, theme});
    this.scales = {product: scale(numbers.most.product), vector: scale(numbers.most.vector)};
    this.paint(vectors, this.scales.vector, [...numbers.queryOf(query), ...numbers.keyOf(key)], inks);
    this.paint(products, this.scales.product, Array.from({length: numbers.keys}, (_, k) =>
      [...numbers.products(query, k).map(v => numbers.mayAttend(query, k) ? v : NaN)]).flat(), inks);
    this.drawWords(inks);
    const path = new Path2D(), {x, width} = products, y = products.top(key);
    path.rect(x - .5, y - .5, width + 1, products.top(key + 1) - y + 1);
    doubleStroke(context, path, {ink: inks.accent, halo: overlayInks(theme).halo}, 1.5);
    this.drawScales(inks);
    sharp.el.salviz = {grid: products, vectors, scales: this.scales, query, key, numbers};
    sharp.el.setAttribute('aria-label', `Products of query ${quotedToken(this.probe.labels[query])} with `
      + `${countWords(numbers.keys, 'key')}, ${countWords(numbers.size, 'neuron')} each. ${neuronsHelp}`);
    this.cells.show([products], theme, `${this.requested} ${query}`);
  }

  paint(grid, scale, values, inks) {
    const {context} = this.sharp;
    this.painter.paint(context, grid, paintScale(scale, values, new Uint32Array(values.length)));
    context.strokeStyle = inks.line;
    context.lineWidth = 1;
    context.strokeRect(grid.x - .5, grid.y - .5, grid.width + 1, grid.height + 1);
  }

  drawWords(inks) {
    const {numbers, query, key, probe, place: {label, vectors, products}} = this, {context} = this.sharp;
    const units = probe.labels.map((text, i) => ({label: text, special: Boolean(probe.is_special[i])}));
    rowLabels(context, products, units, {x: label, space: label, inks, marked: new Set([key])});
    const write = (text, x, y, ink = inks.fg, font = inks.font) => {
      Object.assign(context, {font, fillStyle: ink, textAlign: 'right', textBaseline: 'middle'});
      context.fillText(text, x, y);
    };
    const score = label + 48, weight = label + 90, middle = (grid, row) => grid.middle(row, 0)[1] + .5;
    write('key', label, products.y - 8, inks.muted, inks.small);
    write('score', score, products.y - 8, inks.muted, inks.small);
    write('weight', weight, products.y - 8, inks.muted, inks.small);
    for (let k = 0; k < numbers.keys; k++) {
      const may = numbers.mayAttend(query, k), y = middle(products, k), font = k === key ? inks.bold : inks.font;
      write(may ? neuronsScore(numbers.score(query, k)) : '–', score, y, inks.fg, font);
      write(may ? neuronsWeight(numbers.weight(query, k)) : '–', weight, y, inks.fg, font);
    }
    [['query', query], ['key', key]].forEach(([name, at], row) =>
      write(`${name} ${neuronsCut(shownToken(probe.labels[at]))}`, weight, middle(vectors, row)));
    this.drawNumbers(inks);
  }

  // Neuron numbers above their columns, as many as fit.
  drawNumbers(inks) {
    const {context} = this.sharp, {vectors} = this.place, {size} = this.numbers;
    const every = [1, 2, 4, 8, 16, 32, 64].find(step => step * vectors.pitch >= 24) ?? 128;
    Object.assign(context, {font: inks.small, fillStyle: inks.muted, textAlign: 'center', textBaseline: 'bottom'});
    for (let i = 0; i < size; i += every) context.fillText(String(i), vectors.middle(0, i)[0], vectors.y - 2);
    context.textAlign = 'right';
    context.fillText('neuron', vectors.x - 6, vectors.y - 2);
  }

  drawScales(inks) {
    const {scaleY: y, products, width} = this.place, {context} = this.sharp, x = Math.min(products.x, 16);
    const part = Math.min(260, (width - 2 * x - 30) / 2);
    colourScale(context, this.scales.product, {x, y, width: part, title: 'products (linear scale of this head)', inks});
    colourScale(context, this.scales.vector,
      {x: x + part + 30, y, width: part, title: 'query, key (linear scale)', inks});
  }

  // "neuron 17: query “was” 1.2 × key “film” −0.43 = −0.52; score 0.76, weight 0.12"
  cellText({row, column}) {
    const {numbers, query, probe} = this, [q, k] = [numbers.queryOf(query)[column], numbers.keyOf(row)[column]];
    const names = [query, row].map(i => quotedToken(probe.labels[i], 20));
    const pair = numbers.mayAttend(query, row) ? `score ${numberWords(numbers.score(query, row))}, `
      + `weight ${numberWords(numbers.weight(query, row))}` : 'this query cannot attend to this key';
    return `neuron ${column}: query ${names[0]} ${numberWords(q)} × key ${names[1]} ${numberWords(k)} `
      + `= ${numberWords(q * k)}; ${pair}`;
  }

  pointed(x, y) {
    const {vectors} = this.place, cell = this.cells.cellAt(x, y);
    if (cell || !vectors.inside(x, y)) return {cell, text: cell ? this.cellText(cell) : ''};
    const column = vectors.columnAt(x), isKey = vectors.rowAt(y) === 1, at = isKey ? this.key : this.query;
    const value = (isKey ? this.numbers.keyOf(at) : this.numbers.queryOf(at))[column];
    const name = `${isKey ? 'key' : 'query'} ${quotedToken(this.probe.labels[at], 20)}`;
    return {cell: null, text: `neuron ${column} of ${name}: ${numberWords(value)}`};
  }

  // Choosing the current key again changes no text, so announce it here.
  chooseKey(key) {
    const same = key === this.key;
    this.ctx.state.set({tokens: [key]});
    if (same) this.ctx.announce(spokenText(this.sum.textContent));
  }

  // Keep the row reached with the arrow keys in view.
  follow({row}) {
    const {y, height} = this.place.products.box(row, 0), {stage} = this;
    if (y < stage.scrollTop) stage.scrollTop = y;
    else if (y + height > stage.scrollTop + stage.clientHeight) stage.scrollTop = y + height - stage.clientHeight;
  }

  destroy() {
    clearTimeout(this.soon);
    clearTimeout(this.late);
    this.turn++;
  }
}

function neuronsScore(score) {
  return Math.abs(score) < 1000 ? score.toFixed(2).replace('-', '−') : numberWords(score); }
function neuronsWeight(weight) { return weight > 0 && weight < .0005 ? '<0.001' : weight.toFixed(3); }
function neuronsCut(text) { return chipText(text, 12); }

export const neuronsPanel = {
  name: 'neurons', title: 'Query × key', order: 45, tab: true, shows: 'maps', image: 'map',
  help: {says: [
    'Query-key products of one head (rows: keys, columns: neurons); orange raises the score and blue lowers it.',
    'They are computed now; the note below states whether the weights match those recorded at this step.'],
  keys: [['↑ ↓', 'move between keys'], ['← →', 'move between neurons'], ['Enter', 'choose the key']]},
  view: Neurons,
};
