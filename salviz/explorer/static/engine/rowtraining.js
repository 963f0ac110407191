// Trains the query and key weights of the last layer on marked words. Only the row that the head reads is computed: all
// other rows, the layers below and the values of the last layer are constant, and stored once for each text. Weights
// and gradients are float64.
//
// The score of a key in a head is q·(K x + b) = (Kᵀq)·x + q·b, and the softmax does not depend on q·b. So a head needs
// one vector Kᵀq for all keys of a text, and its gradients are products of two vectors: dK = q yᵀ and dQ = (K y) xᵀ.
// Here y is the sum of all x, weighted by the gradients of their scores.
import {layerNorm, layerNormBack, linear, linearBack, softmaxRow, softmaxRowBack} from './operations.js';

function rowDot(a, at, b, from, length) {
  let sum = 0;
  for (let i = 0; i < length; i++) sum += a[at + i] * b[from + i];
  return sum;
}

// out[at…] += factor·x[from…]
function rowAdd(out, at, factor, x, from, length) {
  for (let i = 0; i < length; i++) out[at + i] += factor * x[from + i];
}

// KL divergence of the attention on counted tokens from the marks (`rationale_loss` of salviz.methods.rationale_guided
// with its defaults), and its gradient with respect to the attention.
export function rationaleLoss(attention, marks, counts) {
  const gradient = new Float64Array(attention.length);
  let loss = 0, sum = 0, total = 0;
  attention.forEach((a, k) => { if (counts[k]) [sum, total] = [sum + a, total + marks[k]]; });
  if (!total) return {loss, gradient};
  attention.forEach((a, k) => {
    const r = counts[k] ? marks[k] / total : 0;
    if (r) loss += r * Math.log(r * sum / a);
    if (counts[k]) gradient[k] = 1 / sum - r / a;
  });
  return {loss, gradient};
}

// Cross-entropy of the class `label`, and its gradient with respect to the logits.
export function taskLoss(logits, label) {
  const p = softmaxRow(Float64Array.from(logits)), loss = -Math.log(p[label]), gradient = Float32Array.from(p);
  gradient[label] -= 1;
  return {loss, gradient};
}

// AdamW as in torch, with gradients clipped to the norm `clip` and a learning rate that decreases linearly to 0.
export class RowAdamW {
  constructor(weights, {steps, learningRate, weightDecay = .01, clip = 1}) {
    const zeros = () => weights.map(({length}) => new Float64Array(length));
    Object.assign(this, {weights, steps, learningRate, weightDecay, clip, first: zeros(), second: zeros(), done: 0});
  }

  step(gradients) {
    const [b1, b2, eps] = [.9, .999, 1e-8], rate = this.learningRate * (1 - this.done / this.steps);
    const norm = Math.sqrt(gradients.reduce((sum, g) => sum + rowDot(g, 0, g, 0, g.length), 0));
    const scale = Math.min(1, this.clip / (norm + 1e-6)), t = this.done += 1;
    const [one, two] = [1 - b1 ** t, Math.sqrt(1 - b2 ** t)];
    this.weights.forEach((weight, i) => {
      const [gradient, m, v] = [gradients[i], this.first[i], this.second[i]];
      for (let k = 0; k < weight.length; k++) {
        const g = gradient[k] * scale;
        m[k] = b1 * m[k] + (1 - b1) * g;
        v[k] = b2 * v[k] + (1 - b2) * g * g;
        weight[k] -= rate * (this.weightDecay * weight[k] + m[k] / one / (Math.sqrt(v[k]) / two + eps));
      }
    });
  }
}

export class RowTraining {
  // `settings`: see RowAdamW; `weight` is that of the rationale loss.
  constructor(network, {weight = 1, ...settings}) {
    this.last = network.config.layers - 1;
    const {query, key} = network.weights.layers[this.last];
    Object.assign(this, {network, weight, query: Float64Array.from(query.weight), key: Float64Array.from(key.weight)});
    this.optimizer = new RowAdamW([this.query, this.key], settings);
  }

  // What training does not change of a text: {n, row, x: what queries and keys read [n, hidden], input: the row of the
  // layer's input, value [n, hidden]}.
  static text(network, rows, segments) {
    const {config, weights} = network, {hidden, layers, before} = config, n = rows.length, tape = {layers: []};
    let x = network.embedded(network.words(rows), segments, tape);
    for (let i = 0; i < layers - 1; i++) x = network.layer(x, n, i, tape, () => null);
    const row = config.row === 'last' ? n - 1 : 0, of = weights.layers[layers - 1];
    const input = x.slice(row * hidden, (row + 1) * hidden);
    if (before) x = layerNorm(x, n, of.norm1);
    return {n, row, x, input, value: linear(x, n, of.value)};
  }

  // {attention: mean of the heads [n], logits, tape} of a text.
  forward(text) {
    const {network, last} = this, {hidden, heads, size, scale} = network.sizes, {n, row, x, value, input} = text;
    const {bias} = network.weights.layers[last].query, q = new Float64Array(hidden), maps = [];
    const context = new Float32Array(hidden), attention = new Float64Array(n), sums = new Float64Array(hidden);
    for (let o = 0; o < hidden; o++)
      q[o] = (bias ? bias[o] : 0) + rowDot(this.query, o * hidden, x, row * hidden, hidden);
    for (let h = 0; h < heads; h++) {
      const read = new Float64Array(hidden), map = new Float64Array(n);
      for (let o = h * size; o < (h + 1) * size; o++) rowAdd(read, 0, q[o], this.key, o * hidden, hidden);
      for (let k = 0; k < n; k++) map[k] = scale * rowDot(read, 0, x, k * hidden, hidden);
      softmaxRow(map);
      for (let k = 0; k < n; k++) rowAdd(sums, h * size, map[k], value, k * hidden + h * size, size);
      map.forEach((a, k) => { attention[k] += a / heads; });
      maps.push(map);
    }
    context.set(sums);
    const tape = {q, maps, one: {first: {}, second: {}}, final: {}};
    let out = network.afterAttention(input, context, 1, last, tape.one);
    if (network.weights.final) out = layerNorm(out, 1, network.weights.final, tape.final);
    return {attention, logits: network.logits(out, tape), tape};
  }

  // Adds the gradients of a text to `gradients`: `dLogits` and `dAttention` are those of its loss.
  backward(text, tape, dLogits, dAttention, [dQuery, dKey]) {
    const {network, last, key} = this, {hidden, heads, size, scale} = network.sizes, {n, row, x, value} = text;
    let d = network.logitsBack(dLogits, tape);
    if (network.weights.final) d = layerNormBack(d, 1, network.weights.final, tape.final);
    const dSum = network.afterAttentionBack(d, 1, last, tape.one);
    const dContext = linearBack(dSum, 1, network.weights.layers[last].output);
    for (let h = 0; h < heads; h++) {
      const dMap = new Float64Array(n), y = new Float64Array(hidden);
      for (let k = 0; k < n; k++)
        dMap[k] = dAttention[k] / heads + rowDot(dContext, h * size, value, k * hidden + h * size, size);
      softmaxRowBack(tape.maps[h], dMap);
      for (let k = 0; k < n; k++) rowAdd(y, 0, scale * dMap[k], x, k * hidden, hidden);
      for (let o = h * size; o < (h + 1) * size; o++) {
        rowAdd(dKey, o * hidden, tape.q[o], y, 0, hidden);
        rowAdd(dQuery, o * hidden, rowDot(key, o * hidden, y, 0, hidden), x, row * hidden, hidden);
      }
    }
  }

  // One step on all `examples` {text, marks [n], counts [n], label}; returns the mean losses before the step.
  step(examples) {
    const gradients = [this.query, this.key].map(({length}) => new Float64Array(length)), count = examples.length;
    const losses = {rationale: 0, task: 0};
    for (const {text, marks, counts, label} of examples) {
      const {attention, logits, tape} = this.forward(text);
      const looks = rationaleLoss(attention, marks, counts), answers = taskLoss(logits, label);
      losses.rationale += looks.loss / count;
      losses.task += answers.loss / count;
      this.backward(text, tape, answers.gradient.map(g => g / count),
        looks.gradient.map(g => g * this.weight / count), gradients);
    }
    this.optimizer.step(gradients);
    return losses;
  }
}
