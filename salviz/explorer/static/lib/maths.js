// The mathematics of salviz.maps and of the methods' random draws, number for number, checked against
// tests/golden.json.
// Maps are flat, row after row; masks are 0 or 1; n is the number of keys of a row.

const counted = (counts, k, n) => !counts || Boolean(counts[counts.length === n ? k % n : k]);

export function remainingCount(n, p) { return Math.floor(n * (1 - p) + 1e-6); }

// How many of a row's n keys are candidates if no attributions tie.
export function candidateCount(n, p, region = 'high') {
  return region === 'low_released' ? remainingCount(n, 1 - p) : n - remainingCount(n, p);
}

// Tests, given the sorted row of a query, whether an attribution is in the candidate discard region.
function inRegion(sorted, count, region) {
  const n = sorted.length;
  if (region === 'high') return value => value >= sorted[n - count];
  if (region === 'low') return value => value <= sorted[count - 1];
  return value => count === n || value < sorted[count];
}

// AD-DROP's candidate discard region. Only comparisons within a row matter, so ranks work as well as attributions.
export function discardCandidates(attribution, allowed, n, p, region = 'high') {
  const out = new Uint8Array(attribution.length), row = new Float64Array(n);
  for (let start = 0; start < out.length; start += n) {
    let size = 0;
    for (let k = start; k < start + n; k++) if (counted(allowed, k, n)) row[size++] = attribution[k];
    const count = candidateCount(size, p, region);
    if (!count) continue;
    const isCandidate = inRegion(row.subarray(0, size).sort(), count, region);
    for (let k = start; k < start + n; k++) out[k] = Number(counted(allowed, k, n) && isCandidate(attribution[k]));
  }
  return out;
}

// MurmurHash3's 32-bit finaliser.
function mixed(x) {
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return x ^ (x >>> 16);
}

const goldenRatio = 0x9e3779b9;

// The random numbers of one layer: (head, query, key) → a number in [0, 1), with the same bits as
// methods.base.keyed_uniform.
export function keyedUniform(exampleId, heads, n, seed, step, layer) {
  let key = 0, lastHead = -1, lastQuery = -1, headKey = 0, queryKey = 0;
  for (const part of [seed, step, layer, exampleId]) key = mixed(((key ^ (part >>> 0)) + goldenRatio) | 0);
  return (head, query, place) => {
    if (head !== lastHead) { headKey = mixed((key + Math.imul(head + 1, goldenRatio)) | 0); lastHead = head;
      lastQuery = -1; }
    if (query !== lastQuery) { queryKey = mixed((headKey + Math.imul(query + 1, goldenRatio)) | 0); lastQuery = query; }
    return (mixed((queryKey + Math.imul(place + 1, goldenRatio)) | 0) >>> 8) * 2 ** -24;
  };
}

// Which candidates are dropped: those whose random number `uniform` (query, key) is below q. A row never loses all the
// keys that it may attend to.
export function dropMask(candidates, allowed, n, q, uniform) {
  const out = new Uint8Array(candidates.length), limit = Math.fround(q);
  for (let query = 0; query * n < out.length; query++) {
    let keepsOne = false;
    for (let key = 0; key < n; key++) {
      const k = query * n + key;
      if (!counted(allowed, k, n)) continue;
      if (candidates[k] && uniform(query, key) < limit) out[k] = 1;
      else keepsOne = true;
    }
    if (!keepsOne) out.fill(0, query * n, (query + 1) * n);
  }
  return out;
}

// Attention guidance's pattern for the `real` tokens, null if its tokens do not occur (`occurs`).
export function patternMatrix(name, real, occurs = null, boundary = 'uniform', multiple = 'uniform') {
  const n = real.length, out = new Float64Array(n * n), at = [];
  for (let i = 0; i < n; i++) if (real[i]) at.push(i);
  const places = occurs ? at.filter(i => occurs[i]) : at;
  if (!places.length) return null;
  const offset = {next: 1, prev: -1}[name];
  at.forEach((i, place) => {
    const goal = at[place + offset];
    if (name === 'first') out[i * n + at[0]] = 1;
    else if (occurs) for (const j of places) out[i * n + j] = multiple === 'uniform' ? 1 / places.length : 1;
    else if (goal !== undefined) out[i * n + goal] = 1;
    else if (boundary === 'uniform') for (const j of at) out[i * n + j] = 1 / at.length;
  });
  return out;
}

// The k largest among the included positions; ties go to the earlier position.
export function topMask(x, k, counts = null) {
  const out = new Uint8Array(x.length), places = [];
  for (let i = 0; i < x.length; i++) if (counted(counts, i, x.length)) places.push(i);
  for (const i of places.sort((a, b) => x[b] - x[a] || a - b).slice(0, Math.max(0, k))) out[i] = 1;
  return out;
}

function normalised(x) {
  const total = x.reduce((a, b) => a + b, 0);
  return total > 0 ? x.map(v => v / total) : x.fill(0);
}

// The target of SalLM's loss; all 0 if nothing is allowed, or, without binarisation, nothing is positive.
export function saliencyTarget(saliency, allowed, topFraction = .1, binarised = true) {
  const n = saliency.length, target = new Float64Array(n);
  if (binarised) {
    let size = 0;
    for (let i = 0; i < n; i++) size += Number(counted(allowed, i, n));
    target.set(topMask(saliency, Math.max(1, Math.ceil(size * topFraction - 1e-6)), allowed));
  } else for (let i = 0; i < n; i++) target[i] = counted(allowed, i, n) ? Math.max(0, saliency[i]) : 0;
  return normalised(target);
}

// Ranks from 1 among the included positions, NaN elsewhere; ties share their mean rank.
export function ranksOf(x, counts = null) {
  const out = new Float64Array(x.length).fill(NaN), places = [];
  for (let i = 0; i < x.length; i++) if (counted(counts, i, x.length)) places.push(i);
  places.sort((a, b) => x[a] - x[b]);
  for (let first = 0, last; first < places.length; first = last + 1) {
    for (last = first; last + 1 < places.length && x[places[last + 1]] === x[places[first]];) last++;
    for (let k = first; k <= last; k++) out[places[k]] = (first + last) / 2 + 1;
  }
  return out;
}

// 1 for rows with several positions that all have the same value: they have no order.
export function tiedRows(values, count) {
  return Uint8Array.from({length: values.length / count}, (_, r) => {
    const finite = Array.from(values.subarray(r * count, (r + 1) * count)).filter(Number.isFinite);
    return Number(finite.length > 1 && finite.every(v => v === finite[0]));
  });
}

// NaN where it is undefined: fewer than two positions, or one side constant.
export function spearman(a, b, counts = null) {
  const ra = ranksOf(a, counts), rb = ranksOf(b, counts);
  let size = 0, ab = 0, aa = 0, bb = 0;
  for (const r of ra) if (r === r) size++;
  for (let i = 0; i < ra.length; i++) {
    if (ra[i] !== ra[i]) continue;
    const da = ra[i] - (size + 1) / 2, db = rb[i] - (size + 1) / 2;
    ab += da * db; aa += da * da; bb += db * db;
  }
  return aa * bb > 0 ? ab / Math.sqrt(aa * bb) : NaN;
}

function rowTotal(x, start, n, counts) {
  let total = 0;
  for (let k = start; k < start + n; k++) if (counted(counts, k, n)) total += x[k];
  return total;
}

// KL(p || q) in nats of two rows, each normalised over the included positions; NaN if one of them sums to 0.
export function kl(p, q, counts = null) {
  const n = p.length, allP = rowTotal(p, 0, n, counts), allQ = rowTotal(q, 0, n, counts);
  if (!(allP > 0 && allQ > 0)) return NaN;
  let sum = 0;
  for (let i = 0; i < n; i++) if (counted(counts, i, n) && p[i])
    sum += p[i] / allP * (Math.log(p[i] / allP) - Math.log(q[i] / allQ));
  return sum;
}

// The mean over classes of KL(p || q) of Bernoulli distributions, for independent class probabilities.
export function klPerClass(p, q) {
  let sum = 0;
  for (let i = 0; i < p.length; i++) sum += kl([p[i], 1 - p[i]], [q[i], 1 - q[i]]);
  return sum / p.length;
}

// The entropy in nats of each row, normalised over its allowed keys; NaN for a row that sums to 0.
export function entropy(rows, n, allowed = null) {
  const out = new Float64Array(rows.length / n);
  for (let row = 0; row < out.length; row++) {
    const total = rowTotal(rows, row * n, n, allowed);
    if (!(total > 0)) { out[row] = NaN; continue; }
    for (let k = row * n; k < (row + 1) * n; k++) {
      const p = counted(allowed, k, n) ? rows[k] / total : 0;
      if (p > 0) out[row] -= p * Math.log(p);
    }
  }
  return out;
}

// NaN if nothing counts, or if one side is constant over more than k positions, since ties alone would decide.
export function topOverlap(a, b, k, counts = null) {
  const chosen = topMask(a, k, counts), other = topMask(b, k, counts);
  const at = [...chosen.keys()].filter(i => !counts || counts[i]);
  let of = 0, both = 0;
  for (let i = 0; i < chosen.length; i++) { of += chosen[i]; both += chosen[i] & other[i]; }
  const constant = [a, b].some(x => at.every(i => x[i] === x[at[0]]));
  return of && !(constant && at.length > of) ? both / of : NaN;
}

function multiplied(a, b, n) {
  const out = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let m = 0; m < n; m++) {
      const weight = a[i * n + m];
      if (weight) for (let j = 0; j < n; j++) out[i * n + j] += weight * b[m * n + j];
    }
  }
  return out;
}

// Attention rollout: how much of each input token reaches each row through all layers. `layers` are maps [n*n], means
// over heads, from the first layer on.
export function rollout(layers, n, residual = .5) {
  const mixedIn = layers.map(layer => {
    const map = Float64Array.from(layer, (v, k) => (1 - residual) * v + (k % (n + 1) === 0 ? residual : 0));
    for (let start = 0; start < map.length; start += n) {
      const total = rowTotal(map, start, n, null);
      for (let k = start; k < start + n; k++) map[k] = total > 0 ? map[k] / total : 0;
    }
    return map;
  });
  return mixedIn.slice(1).reduce((below, layer) => multiplied(layer, below, n), mixedIn[0]);
}

// Saliency guided training: the floor(fraction · words) words of lowest saliency; ties go to the earlier word.
export function lowestWords(saliency, isWord, fraction, ranking = 'signed') {
  const out = new Uint8Array(saliency.length), words = [];
  for (let w = 0; w < saliency.length; w++) if (counted(isWord, w, saliency.length)) words.push(w);
  const value = ranking === 'magnitude' ? Float64Array.from(saliency, Math.abs) : saliency;
  const k = Math.floor(words.length * fraction + 1e-6);
  for (const w of words.sort((a, b) => value[a] - value[b] || a - b).slice(0, k)) out[w] = 1;
  return out;
}

// The words that can be masked, in order: first token, number of pieces, block (a run of tokens without special ones),
// saliency.
function maskableWords(saliency, wordIds, segments) {
  const words = [], column = new Int32Array(wordIds.length).fill(-1);
  const segment = i => segments ? segments[i] : wordIds[i] < 0 ? -1 : 0;
  for (let i = 0, block = 0; i < wordIds.length; i++) {
    const changes = i === 0 || segment(i) !== segment(i - 1);
    if (changes) block++;
    if (wordIds[i] < 0 || segment(i) < 0) continue;
    if (changes || wordIds[i] !== wordIds[i - 1]) words.push({first: i, pieces: 0, block, saliency: 0});
    const word = words.at(-1);
    column[i] = words.length - 1;
    word.pieces++;
    word.saliency = Math.fround(word.saliency + saliency[i]);   // same rounding as torch
  }
  return {words, column};
}

// The word that replaces each masked one: the kept word before it, else as `first` says: the 'next' kept word, the word
// itself ('keep'), or -1 for the mask token ('mask').
function fillSource(words, low, first) {
  const findWord = (w, by, block) => { while (words[w]?.block === block && low[w]) w += by;
    return words[w]?.block === block ? w : -1; };
  return words.map((word, w) => {
    if (!low[w]) return -1;
    const before = findWord(w, -1, word.block);
    return before >= 0 || first !== 'next' ? before : findWord(w, 1, word.block);
  });
}

// Saliency guided training's masked copy: which tokens are replaced, and from which position the new token is taken
// (-1: the mask token).
export function maskedWords(saliency, wordIds, {fraction, ranking = 'signed', first = 'next', segments = null}) {
  const {words, column} = maskableWords(saliency, wordIds, segments);
  const low = lowestWords(words.map(w => w.saliency), null, fraction, ranking), source = fillSource(words, low, first);
  const masked = new Uint8Array(wordIds.length), filled = Int32Array.from(wordIds, (_, i) => i);
  column.forEach((w, i) => {
    if (w < 0 || !low[w] || (source[w] < 0 && first !== 'mask')) return;
    masked[i] = 1;
    const fill = words[source[w]];
    filled[i] = fill ? fill.first + (i - words[w].first) % fill.pieces : -1;
  });
  return {masked, source: filled, low, words};
}

// The fraction of attention on the positions of a pattern: the mean over the rows that it guides, without rows in which
// it is empty or covers every position.
export function patternFraction(attention, target, n) {
  let sum = 0, rows = 0;
  for (let start = 0; start < n * n; start += n) {
    let on = 0, onPattern = 0, all = 0;
    for (let k = start; k < start + n; k++) {
      all += attention[k];
      if (target[k] > 0) { on++; onPattern += attention[k]; }
    }
    if (!(on > 0 && on < n) || all === 0) continue;
    sum += onPattern / all;
    rows++;
  }
  return rows ? sum / rows : NaN;
}

// The area under the precision-recall curve of the ranking `values`, by the trapezoidal rule from precision 1; ties
// form one point. NaN if nothing is marked.
export function auprc(values, marked) {
  const order = [...values.keys()].sort((a, b) => values[b] - values[a]), all = rowTotal(marked, 0, marked.length);
  let hits = 0, area = 0, recall = 0, precision = 1;
  order.forEach((i, place) => {
    hits += marked[i];
    if (values[order[place + 1]] === values[i]) return;
    area += (hits / all - recall) * (hits / (place + 1) + precision) / 2;
    recall = hits / all;
    precision = hits / (place + 1);
  });
  return all ? area : NaN;
}

// The expected `auprc` of a random order if k of n are marked.
export function randomAuprc(n, k) {
  const rho = n > 1 ? (k - 1) / (n - 1) : 1;
  let sum = 1 - rho;
  for (let i = 1; i <= n; i++) sum += (1 + (i - 1) * rho) / i + rho;
  return sum / (2 * n);
}

// [start, end) of each run of flags.
function stretches(flags) {
  const out = [];
  flags.forEach((flag, i) => {
    if (flag && flags[i - 1]) out.at(-1)[1] = i + 1;
    else if (flag) out.push([i, i + 1]);
  });
  return out;
}

// The F1 of the chosen spans; a span matches if its intersection with a marked span is at least half of their union.
export function iouF1(chosen, marked) {
  const [a, b] = [stretches(chosen), stretches(marked)];
  const overlap = ([from, to], [start, end]) => {
    const both = Math.max(0, Math.min(to, end) - Math.max(from, start));
    return both / (to - from + end - start - both);
  };
  const hits = a.filter(one => b.some(other => overlap(one, other) >= .5)).length;
  return hits ? 2 * (hits / a.length) * (hits / b.length) / (hits / a.length + hits / b.length) : 0;
}

// How well the highest `values` agree with the `marked` ones; as many are chosen as are marked. NaN where ties decide
// and where everything or nothing is marked; `tied` counts the values that tie at the threshold.
export function pointedAt(values, marked) {
  const n = values.length, k = rowTotal(marked, 0, n), none = {f1: NaN, iou: NaN, auprc: NaN, random: NaN, tied: 0};
  const isFlat = values.every(v => v === values[0]);
  if (!k || k === n || isFlat) return {...none, n, k, isFlat, chosen: null};
  const sorted = Float64Array.from(values).sort().reverse(), border = sorted[k - 1];
  const tied = sorted[k] === border ? values.filter(v => v === border).length : 0;
  const scores = {auprc: auprc(values, marked), random: randomAuprc(n, k)};
  if (tied) return {...none, ...scores, n, k, isFlat, tied, chosen: null};
  const chosen = topMask(values, k);
  const hits = chosen.reduce((sum, c, i) => sum + c * marked[i], 0);
  return {...scores, f1: hits / k, iou: iouF1(chosen, marked), n, k, isFlat, tied, chosen};
}
