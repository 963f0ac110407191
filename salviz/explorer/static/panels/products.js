// Queries and keys of one head, neuron by neuron: their products, the sums of these, and the resulting weights.

export class HeadProducts {
  constructor(frame) {
    const numbers = name => frame.get(name)?.values() ?? null;
    Object.assign(this, {query: numbers('query'), key: numbers('key'), bias: numbers('bias'),
      attention: numbers('attention'), allowed: numbers('allowed'), scaling: frame.info.scaling});
    [this.queries, this.size] = frame.get('query').shape;
    [this.keys] = frame.get('key').shape;
    this.most = this.largest();
  }

  // The largest magnitude of any product and of any vector component: the scales cover the whole head.
  largest() {
    const reach = values => {
      const out = new Float64Array(this.size);
      values.forEach((v, i) => { out[i % this.size] = Math.max(out[i % this.size], Math.abs(v)); });
      return out;
    };
    const [query, key] = [reach(this.query), reach(this.key)];
    return {product: Math.max(...query.map((v, i) => v * key[i])), vector: Math.max(...query, ...key)};
  }

  queryOf(query) { return this.query.subarray(query * this.size, (query + 1) * this.size); }
  keyOf(key) { return this.key.subarray(key * this.size, (key + 1) * this.size); }

  // The product of two 32-bit numbers is exact in double precision.
  products(query, key) {
    const q = this.queryOf(query), k = this.keyOf(key);
    return Float64Array.from(q, (v, i) => v * k[i]);
  }

  sum(query, key) { return this.products(query, key).reduce((a, b) => a + b, 0); }
  biasOf(query, key) { return this.bias ? this.bias[query * this.keys + key] : 0; }
  score(query, key) { return this.sum(query, key) * this.scaling + this.biasOf(query, key); }
  weight(query, key) { return this.attention[query * this.keys + key]; }
  mayAttend(query, key) { return Boolean(this.allowed[query * this.keys + key]); }

  // The key with the largest attention of a query.
  strongest(query) {
    const row = this.attention.subarray(query * this.keys, (query + 1) * this.keys);
    return Math.max(0, row.indexOf(Math.max(...row)));
  }

  // The neurons with the largest products in magnitude, and the sum of these; products of 0 are left out.
  leading(query, key, count = 5) {
    const products = this.products(query, key), neurons = [...products.keys()].filter(i => products[i] !== 0)
      .sort((a, b) => Math.abs(products[b]) - Math.abs(products[a])).slice(0, count);
    return {neurons, sum: neurons.reduce((total, i) => total + products[i], 0)};
  }

  // Where the weights differ most from a recorded map, beyond rounding: the quantisation step, and 0.5 % for models
  // that compute in half precision. Null if nowhere.
  unlike({values, halfStep}) {
    let worst = null;
    this.attention.forEach((weight, i) => {
      const apart = Math.abs(weight - values[i]), rounding = halfStep(i) + weight / 200 + 1e-6;
      if (apart > rounding && apart > (worst?.apart ?? 0))
        worst = {apart, query: Math.floor(i / this.keys), key: i % this.keys, recorded: values[i], half: halfStep(i)};
    });
    return worst;
  }
}
