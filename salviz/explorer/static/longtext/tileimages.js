// Levels and tiles of one head as images, and the weights under a point.

const dark = [[13, 17, 28], [250, 200, 80]], light = [[255, 255, 255], [8, 48, 107]];

// A weight as a code from 0 to 254: 254 times its cube root, so that small weights are visible.
export function codeOfWeight(weight) {
  return weight > 0 ? Math.max(1, Math.round(254 * Math.cbrt(weight))) : 0;
}

export function weightOfCode(code) { return (code / 254) ** 3; }

function colourTable({isDark, contrast}) {
  const [from, to] = isDark ? dark : light;
  return Uint32Array.from({length: 256}, (_, code) => {
    const t = Math.min(1, code * contrast / 254), [r, g, b] = from.map((low, k) => Math.round(low + (to[k] - low) * t));
    return 255 << 24 | b << 16 | g << 8 | r;
  });
}

// The image of one level or tile is painted once for each look {isDark, contrast}. `weights` is a Uint8Array of codes
// or a Float32Array of weights.
export class MapImage {
  constructor(weights, columns, rows) { Object.assign(this, {weights, columns, rows}); }

  canvas(look) {
    if (this.painted && this.look.isDark === look.isDark && this.look.contrast === look.contrast) return this.painted;
    const canvas = document.createElement('canvas'), table = colourTable(look);
    [canvas.width, canvas.height] = [this.columns, this.rows];
    const context = canvas.getContext('2d'), image = context.createImageData(this.columns, this.rows);
    const pixels = new Uint32Array(image.data.buffer), exact = this.weights instanceof Float32Array;
    for (let k = 0; k < pixels.length; k++) pixels[k] = table[exact ? codeOfWeight(this.weights[k]) : this.weights[k]];
    context.putImageData(image, 0, 0);
    return Object.assign(this, {painted: canvas, look}).painted;
  }

  weightAt(row, column) {
    if (row < 0 || column < 0 || row >= this.rows || column >= this.columns) return NaN;
    const weight = this.weights[row * this.columns + column];
    return this.weights instanceof Float32Array ? weight : weightOfCode(weight);
  }
}

// The levels of a head from its packed bytes: for each level, from the finest to the coarsest, maxima and then means.
export function levelsOf(bytes, cells, size) {
  let at = 0;
  return cells.map(cell => {
    const side = Math.ceil(size / cell), image = () => new MapImage(bytes.subarray(at, at += side * side), side, side);
    return {cell, maximum: image(), mean: image()};
  });
}

// Tiles of one view, loaded on demand; the least recently used ones are dropped. A tile that is out of date is shown
// until its new version is loaded.
export class TileCache {
  constructor(load, most = 160) {
    Object.assign(this, {load, most, tiles: new Map(), pending: new Set(), outdated: new Set()});
  }

  expire(isOutdated) {
    for (const key of [...this.tiles.keys(), ...this.pending]) if (isOutdated(key)) this.outdated.add(key);
  }

  get(key, onLoad) {
    const tile = this.tiles.get(key);
    if (tile) {
      this.tiles.delete(key);
      this.tiles.set(key, tile);
    }
    if ((!tile || this.outdated.has(key)) && !this.pending.has(key)) this.request(key, onLoad);
    return tile ?? null;
  }

  request(key, onLoad) {
    this.pending.add(key);
    this.outdated.delete(key);
    this.load(key).then(loaded => {
      this.tiles.set(key, loaded);
      if (this.tiles.size > this.most) this.tiles.delete(this.tiles.keys().next().value);
      onLoad();
    }).finally(() => this.pending.delete(key));
  }
}
