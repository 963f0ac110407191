// Self-attention of one layer with all heads, and its derivatives. `change` is called for each head and returns null or
// an intervention: {blocked: [n·n], 1 where a query may not read a key (a row that would lose all its keys keeps
// them); map: [n·n], weights that replace the head's, NaN in rows that do not change; off: true, if the head
// contributes nothing}.
import {softmaxRow, softmaxRowBack} from './operations.js';

// Excludes the keys that are blocked for one query, whose scores are `row`.
function blockKeys(row, blocked) {
  if (!row.some((score, k) => score > -Infinity && !blocked[k])) return;
  for (let k = 0; k < row.length; k++) if (blocked[k]) row[k] = -Infinity;
}

// The weights of one head: softmax of the scaled products of queries and keys.
function headWeights({query, key}, n, {hidden, size, scale, causal}, head, blocked) {
  const map = new Float32Array(n * n), at = head * size;
  for (let q = 0; q < n; q++) {
    for (let k = 0; k < n; k++) {
      let sum = 0;
      for (let i = at; i < at + size; i++) sum += query[q * hidden + i] * key[k * hidden + i];
      map[q * n + k] = causal && k > q ? -Infinity : sum * scale;
    }
    const row = map.subarray(q * n, q * n + n);
    if (blocked) blockKeys(row, blocked.subarray(q * n, q * n + n));
    softmaxRow(row);
  }
  return map;
}

const isFixed = (change, k) => Boolean(change?.map) && !Number.isNaN(change.map[k]);

// The output of one head: the weighted mean of the values, written into its columns of `context`.
function headContext(map, value, n, {hidden, size}, head, context) {
  for (let q = 0; q < n; q++) {
    for (let i = head * size; i < (head + 1) * size; i++) {
      let sum = 0;
      for (let k = 0; k < n; k++) sum += map[q * n + k] * value[k * hidden + i];
      context[q * hidden + i] = sum;
    }
  }
}

// `vectors`: query, key and value [n, hidden]; returns the context [n, hidden] and the weights of each head [n, n].
export function attention(vectors, n, sizes, change = () => null) {
  const context = new Float32Array(n * sizes.hidden), changes = Array.from({length: sizes.heads}, (_, h) => change(h));
  const maps = changes.map((one, head) => headWeights(vectors, n, sizes, head, one?.blocked).map((weight, k) =>
    isFixed(one, k) ? one.map[k] : weight));
  maps.forEach((map, head) => {
    if (!changes[head]?.off) headContext(map, vectors.value, n, sizes, head, context);
  });
  return {context, maps, changes};
}

// Gradients of one head with respect to its weights [n, n]; that of its values is added to `out.value`.
function headBack(dContext, map, value, n, {hidden, size}, head, out) {
  const dMap = new Float32Array(n * n);
  for (let q = 0; q < n; q++) {
    for (let k = 0; k < n; k++) {
      const weight = map[q * n + k];
      let sum = 0;
      for (let i = head * size; i < (head + 1) * size; i++) {
        const d = dContext[q * hidden + i];
        sum += d * value[k * hidden + i];
        out.value[k * hidden + i] += d * weight;
      }
      dMap[q * n + k] = sum;
    }
  }
  return dMap;
}

// The gradient of the weights [n, n] of one head, passed through the softmax to its queries and keys.
function scoresBack(dMap, map, {query, key}, n, {hidden, size, scale}, head, out) {
  for (let q = 0; q < n; q++) {
    const d = softmaxRowBack(map.subarray(q * n, q * n + n), dMap.subarray(q * n, q * n + n));
    for (let k = 0; k < n; k++) {
      const s = d[k] * scale;
      for (let i = head * size; s && i < (head + 1) * size; i++) {
        out.query[q * hidden + i] += s * key[k * hidden + i];
        out.key[k * hidden + i] += s * query[q * hidden + i];
      }
    }
  }
}

// Gradients with respect to query, key and value, from that of the context. Replaced weights are constants. The
// gradients with respect to the weights [n, n] of each head are stored in `attended.dMaps`.
export function attentionBack(dContext, vectors, attended, n, sizes) {
  const {maps, changes} = attended;
  const out = Object.fromEntries(['query', 'key', 'value'].map(name => [name, new Float32Array(n * sizes.hidden)]));
  attended.dMaps = maps.map((map, head) => {
    if (changes[head]?.off) return new Float32Array(n * n);
    const dMap = headBack(dContext, map, vectors.value, n, sizes, head, out);
    scoresBack(dMap.map((d, k) => isFixed(changes[head], k) ? 0 : d), map, vectors, n, sizes, head, out);
    return dMap;
  });
  return out;
}
