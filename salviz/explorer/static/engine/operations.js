// The operations of an encoder on Float32Arrays, with their derivatives. Matrices are flat, row after row: `x` [n, d]
// has n rows of d numbers, a weight matrix [outputs, inputs] has one row per output, as in torch. Sums are computed in
// double precision, and results are rounded to float32.

// y = x Wᵀ + b. Four outputs for two rows at a time, so that six loads serve eight products.
export function linear(x, n, {weight, bias, inputs, outputs}, y = new Float32Array(n * outputs)) {
  for (let o = 0; o < outputs; o += 4) {
    const a = o * inputs, b = a + inputs, c = b + inputs, d = c + inputs, rows = Math.min(4, outputs - o);
    if (rows < 4) {
      linearRows(x, n, {weight, bias, inputs, outputs}, y, o);
      break;
    }
    const [b0, b1, b2, b3] = bias ? bias.subarray(o, o + 4) : [0, 0, 0, 0];
    let t = 0;
    for (; t + 1 < n; t += 2) {
      const p = t * inputs, q = p + inputs;
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0, r0 = 0, r1 = 0, r2 = 0, r3 = 0;
      for (let i = 0; i < inputs; i++) {
        const u = x[p + i], v = x[q + i], w0 = weight[a + i], w1 = weight[b + i], w2 = weight[c + i],
          w3 = weight[d + i];
        s0 += u * w0;
        s1 += u * w1;
        s2 += u * w2;
        s3 += u * w3;
        r0 += v * w0;
        r1 += v * w1;
        r2 += v * w2;
        r3 += v * w3;
      }
      const first = t * outputs + o, second = first + outputs;
      y[first] = s0 + b0;
      y[first + 1] = s1 + b1;
      y[first + 2] = s2 + b2;
      y[first + 3] = s3 + b3;
      y[second] = r0 + b0;
      y[second + 1] = r1 + b1;
      y[second + 2] = r2 + b2;
      y[second + 3] = r3 + b3;
    }
    for (; t < n; t++) {
      const p = t * inputs, first = t * outputs + o;
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      for (let i = 0; i < inputs; i++) {
        const u = x[p + i];
        s0 += u * weight[a + i];
        s1 += u * weight[b + i];
        s2 += u * weight[c + i];
        s3 += u * weight[d + i];
      }
      y[first] = s0 + b0;
      y[first + 1] = s1 + b1;
      y[first + 2] = s2 + b2;
      y[first + 3] = s3 + b3;
    }
  }
  return y;
}

// The outputs from `start` on, one at a time.
function linearRows(x, n, {weight, bias, inputs, outputs}, y, start) {
  for (let o = start; o < outputs; o++) {
    for (let t = 0; t < n; t++) {
      let sum = bias ? bias[o] : 0;
      for (let i = 0; i < inputs; i++) sum += x[t * inputs + i] * weight[o * inputs + i];
      y[t * outputs + o] = sum;
    }
  }
}

// The gradient with respect to x: dx = dy W. Rows of zeros, such as those that the head does not read, are skipped.
export function linearBack(dy, n, {weight, inputs, outputs}) {
  const dx = new Float32Array(n * inputs), sums = new Float64Array(inputs);
  for (let t = 0; t < n; t++) {
    const row = dy.subarray(t * outputs, (t + 1) * outputs);
    if (!row.some(Boolean)) continue;
    sums.fill(0);
    let o = 0;
    for (; o + 3 < outputs; o += 4) {
      const d0 = row[o], d1 = row[o + 1], d2 = row[o + 2], d3 = row[o + 3];
      const a = o * inputs, b = a + inputs, c = b + inputs, d = c + inputs;
      for (let i = 0; i < inputs; i++)
        sums[i] += d0 * weight[a + i] + d1 * weight[b + i] + d2 * weight[c + i] + d3 * weight[d + i];
    }
    for (; o < outputs; o++) for (let i = 0; i < inputs; i++) sums[i] += row[o] * weight[o * inputs + i];
    dx.set(sums, t * inputs);
  }
  return dx;
}

// y = (x − mean)/√(variance + eps)·weight + bias in each row. `tape` stores what the gradient needs.
export function layerNorm(x, n, {weight, bias, eps}, tape = null) {
  const d = weight.length, y = new Float32Array(n * d), normal = new Float32Array(tape ? n * d : d),
    inverse = new Float64Array(n);
  for (let t = 0; t < n; t++) {
    const p = t * d, to = tape ? p : 0;
    let mean = 0, variance = 0;
    for (let i = 0; i < d; i++) mean += x[p + i];
    mean /= d;
    for (let i = 0; i < d; i++) variance += (x[p + i] - mean) ** 2;
    inverse[t] = 1 / Math.sqrt(variance / d + eps);
    for (let i = 0; i < d; i++) {
      normal[to + i] = (x[p + i] - mean) * inverse[t];
      y[p + i] = normal[to + i] * weight[i] + bias[i];
    }
  }
  if (tape) Object.assign(tape, {normal, inverse});
  return y;
}

export function layerNormBack(dy, n, {weight}, {normal, inverse}) {
  const d = weight.length, dx = new Float32Array(n * d);
  for (let t = 0; t < n; t++) {
    const p = t * d;
    let mean = 0, product = 0;
    for (let i = 0; i < d; i++) {
      const g = dy[p + i] * weight[i];
      mean += g;
      product += g * normal[p + i];
    }
    mean /= d;
    product /= d;
    for (let i = 0; i < d; i++)
      dx[p + i] = (dy[p + i] * weight[i] - mean - normal[p + i] * product) * inverse[t];
  }
  return dx;
}

// Softmax of one row in place; −∞ gives 0. A row of −∞ alone becomes a row of zeros.
export function softmaxRow(row) {
  let most = -Infinity, sum = 0;
  for (const x of row) if (x > most) most = x;
  if (most === -Infinity) return row.fill(0);
  for (let k = 0; k < row.length; k++) sum += row[k] = Math.exp(row[k] - most);
  for (let k = 0; k < row.length; k++) row[k] /= sum;
  return row;
}

// dx = p·(dp − Σ p·dp) for one row of probabilities, written into `dp`.
export function softmaxRowBack(p, dp) {
  let sum = 0;
  for (let k = 0; k < p.length; k++) sum += p[k] * dp[k];
  for (let k = 0; k < p.length; k++) dp[k] = p[k] * (dp[k] - sum);
  return dp;
}

export function added(x, y) {
  const out = new Float32Array(x.length);
  for (let k = 0; k < out.length; k++) out[k] = x[k] + y[k];
  return out;
}

const erfSteps = 128, erfEnd = 6, erfSlope = x => 2 / Math.sqrt(Math.PI) * Math.exp(-x * x);

// The error function by its series of positive terms: e^(−x²)·2/√π·Σ 2ⁿx²ⁿ⁺¹/(2n+1)!!.
function erfSeries(x) {
  let term = x, sum = x;
  for (let n = 1; term > sum * 1e-17; n++) sum += term *= 2 * x * x / (2 * n + 1);
  return erfSlope(x) * sum;
}

const erfTable = Float64Array.from({length: erfSteps * erfEnd + 2}, (_, k) => erfSeries(k / erfSteps)),
  erfSlopes = Float64Array.from({length: erfSteps * erfEnd + 2}, (_, k) => erfSlope(k / erfSteps) / erfSteps);

// The error function by cubic interpolation between tabulated values and slopes; the error is below 1e-10.
export function erf(x) {
  const at = Math.abs(x) * erfSteps, k = Math.floor(at), t = at - k;
  if (!(Math.abs(x) < erfEnd)) return Number.isNaN(x) ? NaN : Math.sign(x);
  const a = erfTable[k], b = erfTable[k + 1], change = b - a, s = erfSlopes[k], e = erfSlopes[k + 1];
  const value = a + t * (s + t * (3 * change - 2 * s - e + t * (s + e - 2 * change)));
  return x < 0 ? -value : value;
}

const normalCdf = x => (1 + erf(x * Math.SQRT1_2)) / 2,
  normalDensity = x => Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI);
const tanhScale = Math.sqrt(2 / Math.PI), tanhCubic = .044715,
  tanhPart = x => Math.tanh(tanhScale * (x + tanhCubic * x ** 3));

// Activation functions and their derivatives, by their names in the configs of transformers: gelu is x·Φ(x), and
// gelu_new its approximation by tanh.
export const activations = {
  gelu: {value: x => x * normalCdf(x), slope: x => normalCdf(x) + x * normalDensity(x)},
  gelu_new: {
    value: x => x / 2 * (1 + tanhPart(x)),
    slope: x => {
      const t = tanhPart(x);
      return (1 + t) / 2 + x / 2 * (1 - t * t) * tanhScale * (1 + 3 * tanhCubic * x * x);
    },
  },
  relu: {value: x => Math.max(0, x), slope: x => Number(x > 0)},
  tanh: {value: Math.tanh, slope: x => 1 - Math.tanh(x) ** 2},
};

export function activated(x, name) { return x.map(activations[name].value); }

export function activatedBack(dy, x, name) {
  const {slope} = activations[name], dx = new Float32Array(x.length);
  for (let k = 0; k < dx.length; k++) dx[k] = dy[k] && dy[k] * slope(x[k]);
  return dx;
}
