// An encoder with a classification head (BERT, RoBERTa, DistilBERT, ELECTRA), or GPT-2 with one: forward passes that
// return all attention maps, and gradients of a logit with respect to the word embeddings.
import {activated, activatedBack, added, layerNorm, layerNormBack, linear, linearBack} from './operations.js';
import {attention, attentionBack} from './selfattention.js';

// Adds row `row` of an int8 embedding table to `out`, starting at `at`.
function addRow({codes, scale, width}, row, out, at) {
  for (let i = 0; i < width; i++) out[at + i] += codes[row * width + i] * scale[row];
}

const noChange = () => null;

export class Network {
  // `weights`: embedding tables, linear layers and norms; `config`: sizes and kind of the model (salviz.explorer.
  // page_model writes both).
  constructor(config, weights) {
    Object.assign(this, {config, weights});
    this.sizes = {heads: config.heads, hidden: config.hidden, size: config.hidden / config.heads,
      scale: 1 / Math.sqrt(config.hidden / config.heads), causal: config.causal};
  }

  // Embeddings [n, width] of the rows of the word table.
  words(rows) {
    const {word} = this.weights, out = new Float32Array(rows.length * word.width);
    rows.forEach((row, t) => addRow(word, row, out, t * word.width));
    return out;
  }

  // Word embeddings with those of positions and segments, normalised.
  embedded(words, segments, tape) {
    const {config, weights} = this, n = segments.length, {width} = weights.word, sum = words.slice();
    for (let t = 0; t < n; t++) {
      addRow(weights.position, config.first + t, sum, t * width);
      if (weights.segment) addRow(weights.segment, Math.min(segments[t], config.segments - 1), sum, t * width);
    }
    if (config.before) return sum;
    tape.embedded = {};
    const normal = layerNorm(sum, n, weights.embedded, tape.embedded);
    return weights.projection ? linear(normal, n, weights.projection) : normal;
  }

  // One layer: `norm1` and `norm2` follow the residual sums, or precede the sublayers if `config.before` is set.
  layer(x, n, i, tape, change) {
    const of = this.weights.layers[i], {before} = this.config, one = {first: {}, second: {}};
    const read = before ? layerNorm(x, n, of.norm1, one.first) : x;
    one.vectors = Object.fromEntries(['query', 'key', 'value'].map(name => [name, linear(read, n, of[name])]));
    one.attention = attention(one.vectors, n, this.sizes, head => change(i, head));
    tape.layers.push(one);
    return this.afterAttention(x, one.attention.context, n, i, one);
  }

  // The part of a layer after its attention, for `n` rows of its input and of the context.
  afterAttention(x, context, n, i, one) {
    const of = this.weights.layers[i], {before, activation} = this.config;
    const sum = added(x, linear(context, n, of.output));
    const middle = before ? sum : layerNorm(sum, n, of.norm1, one.first);
    one.inner = linear(before ? layerNorm(middle, n, of.norm2, one.second) : middle, n, of.inner);
    const out = added(middle, linear(activated(one.inner, activation), n, of.outer));
    return before ? out : layerNorm(out, n, of.norm2, one.second);
  }

  // The logits that the head returns for one row.
  logits(row, tape) {
    tape.head = [];
    return this.weights.head.reduce((x, {name, ...of}) => {
      const before = linear(x, 1, of);
      tape.head.push(before);
      return name ? activated(before, name) : before;
    }, row);
  }

  // `words` [n, width] from `words()`, or points between them and a baseline; `change`: see selfattention.js. Returns
  // the logits, the maps [layer][head] of n·n weights, and the tape for `gradient`.
  forward(words, segments, change = noChange) {
    const {config, weights} = this, n = segments.length, tape = {n, layers: []};
    let x = this.embedded(words, segments, tape);
    for (let i = 0; i < config.layers; i++) x = this.layer(x, n, i, tape, change);
    if (weights.final) x = layerNorm(x, n, weights.final, tape.final = {});
    tape.row = config.row === 'last' ? n - 1 : 0;
    const row = x.slice(tape.row * config.hidden, (tape.row + 1) * config.hidden);
    return {logits: this.logits(row, tape), maps: tape.layers.map(one => one.attention.maps), tape};
  }

  // The gradient at the row that the head reads, from that of the logits.
  logitsBack(d, tape) {
    return this.weights.head.reduceRight((dy, {name, ...of}, i) =>
      linearBack(name ? activatedBack(dy, tape.head[i], name) : dy, 1, of), d);
  }

  // The gradient at all rows of the last layer's output.
  headBack(tape, target) {
    const d = new Float32Array(this.weights.head.at(-1).outputs), all = new Float32Array(tape.n * this.config.hidden);
    d[target] = 1;
    all.set(this.logitsBack(d, tape), tape.row * this.config.hidden);
    return all;
  }

  // The gradient at the sum of a layer's input and its attention's output.
  afterAttentionBack(d, n, i, one) {
    const of = this.weights.layers[i], {before, activation} = this.config;
    const dLast = before ? d : layerNormBack(d, n, of.norm2, one.second);
    const dInner = linearBack(activatedBack(linearBack(dLast, n, of.outer), one.inner, activation), n, of.inner);
    const dMiddle = added(dLast, before ? layerNormBack(dInner, n, of.norm2, one.second) : dInner);
    return before ? dMiddle : layerNormBack(dMiddle, n, of.norm1, one.first);
  }

  layerBack(d, n, i, one) {
    const of = this.weights.layers[i], {before} = this.config, dSum = this.afterAttentionBack(d, n, i, one);
    const vectors = attentionBack(linearBack(dSum, n, of.output), one.vectors, one.attention, n, this.sizes);
    const [q, k, v] = ['query', 'key', 'value'].map(name => linearBack(vectors[name], n, of[name]));
    const dRead = added(added(q, k), v);
    return added(dSum, before ? layerNormBack(dRead, n, of.norm1, one.first) : dRead);
  }

  // The gradient [n, width] of the logit `target` with respect to the word embeddings of a forward pass.
  gradient(tape, target) {
    const {weights, config} = this, {n} = tape;
    let d = this.headBack(tape, target);
    if (weights.final) d = layerNormBack(d, n, weights.final, tape.final);
    for (let i = config.layers - 1; i >= 0; i--) d = this.layerBack(d, n, i, tape.layers[i]);
    if (config.before) return d;
    if (weights.projection) d = linearBack(d, n, weights.projection);
    return layerNormBack(d, n, weights.embedded, tape.embedded);
  }
}

// One number per token from gradients [n, width]: their norm, or their product with `x`.
export function reducedTo(kind, gradient, x, n) {
  const width = gradient.length / n, out = new Float32Array(n);
  for (let t = 0; t < n; t++) {
    let sum = 0;
    for (let i = t * width; i < (t + 1) * width; i++)
      sum += kind === 'gradient_norm' ? gradient[i] * gradient[i] : gradient[i] * x[i];
    out[t] = kind === 'gradient_norm' ? Math.sqrt(sum) : sum;
  }
  return out;
}

// Integrated gradients (Sundararajan et al. 2017, equation 3): the mean gradient at the midpoints of `steps` parts of
// the path from `baseline` [width] to the words, times words − baseline. `report` is called after each step, and can
// end the computation by returning false; the result is then null.
export async function integratedGradients(network, words, segments, target, baseline, {steps = 20, report, change}) {
  const {length} = words, width = baseline.length, apart = words.map((x, k) => x - baseline[k % width]),
    sums = new Float64Array(length);
  for (let step = 0; step < steps; step++) {
    const at = (step + .5) / steps, point = apart.map((x, k) => baseline[k % width] + at * x);
    const gradient = network.gradient(network.forward(point, segments, change).tape, target);
    for (let k = 0; k < length; k++) sums[k] += gradient[k] / steps;
    if (report && await report(step + 1, steps) === false) return null;
  }
  return reducedTo('input_x_gradient', sums, apart, segments.length);
}
