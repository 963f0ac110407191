// The units of a map, tokens, words or sentences, and the changes of a text that grows.

const cut = (text, most = 48) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

export function sentenceEntries(sentences) {
  return [['', 'choose'], ...sentences.map((s, i) => [i, `${i + 1}: ${cut(s.text)}`])];
}

export class Units {
  // `meta.units`: the first token of each unit and the end of the text, for units that group tokens.
  constructor(meta, name) {
    Object.assign(this, {meta, name, bounds: meta.units?.[name] ?? null});
    this.size = this.bounds ? this.bounds.length - 1 : meta.size;
  }

  // A copy that does not change with `meta.units`.
  copy() { return Object.assign(new Units(this.meta, this.name), {bounds: this.bounds?.slice() ?? null}); }

  // The number of units at the beginning of the text that are the same in `other`.
  countSame(other) {
    const most = Math.min(this.size, other.size);
    if (!this.bounds || !other.bounds) return most;
    const different = this.bounds.findIndex((bound, i) => bound !== other.bounds[i]);
    return different < 0 ? most : Math.max(0, different - 1);
  }

  get noun() { return this.name.slice(0, -1); }

  start(unit) { return this.bounds ? this.bounds[unit] : unit; }
  stop(unit) { return this.bounds ? this.bounds[unit + 1] : unit + 1; }

  // The unit of a token.
  at(token) {
    if (!this.bounds) return token;
    let [low, high] = [0, this.size - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.bounds[middle] <= token) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  label(unit) {
    const tokens = this.meta.tokens.slice(this.start(unit), this.stop(unit));
    return this.name === 'sentences' ? cut(tokens.slice(0, 16).join(' ')) : tokens.join('');
  }

  labels() { return Array.from({length: this.size}, (_, unit) => this.label(unit)); }
}

// `change`: for each list, the number of unchanged entries and the entries after them. Returns false if an earlier
// change is missing.
export function applyChange(meta, {tokens, sentences, units, size, awaited, title}) {
  const lists = [[meta.tokens, tokens], [meta.sentences, sentences],
    ...Object.entries(units).map(([name, change]) => [meta.units[name] ??= [], change])];
  if (lists.some(([list, [unchanged]]) => unchanged > list.length)) return false;
  for (const [list, [unchanged, added]] of lists) list.splice(unchanged, Infinity, ...added);
  Object.assign(meta, {size, awaited, title});
  return true;
}
