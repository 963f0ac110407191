// Self-attention of one layer with all heads, and its derivatives. `change` is called for each head and returns null or
// an intervention: {blocked: [n·n], 1 where a query may not read a key; map: [n·n], weights that replace the head's;
// off: true, if the head contributes nothing}.
import {softmaxRow, softmaxRowBack} from './operations.js';

// The weights of one head: softmax of the scaled products of queries and keys.
function headWeights({query, key}, n, {hidden, size, scale, causal}, head, blocked) {
  const map = new Float32Array(n * n), at = head * size;
  for (let q = 0; q < n; q++) {
    for (let k = 0; k < n; k++) {
      let sum = 0;
      for (let i = at; i < at + size; i++) sum += query[q * hidden + i] * key[k * hidden + i];
      map[q * n + k] = causal && k > q || blocked?.[q * n + k] ? -Infinity : sum * scale;
    }
    softmaxRow(map.subarray(q * n, q * n + n));
  }
  return map;
}

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
  const maps = changes.map((one, head) => one?.map ?? headWeights(vectors, n, sizes, head, one?.blocked));
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

// Gradients with respect to query, key and value, from that of the context. A replaced map is a constant.
export function attentionBack(dContext, vectors, {maps, changes}, n, sizes) {
  const out = Object.fromEntries(['query', 'key', 'value'].map(name => [name, new Float32Array(n * sizes.hidden)]));
  maps.forEach((map, head) => {
    if (changes[head]?.off) return;
    const dMap = headBack(dContext, map, vectors.value, n, sizes, head, out);
    if (!changes[head]?.map) scoresBack(dMap, map, vectors, n, sizes, head, out);
  });
  return out;
}
