// Many small maps on one canvas, painted straight from the stored codes, and the means over heads and layers.
import {cellsOfPixels} from '../lib/canvas.js';

// Draws one map into the pixels of a tile. Where cells are smaller than pixels, the largest of the cells that share a
// pixel is drawn.
export class TilePainter {
  prepare(context, side, n, visible) {
    const cells = visible.length, points = Math.min(side, cells);
    if (this.side !== side || this.points !== points) {
      this.image = context.createImageData(side, side);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.values = new Float32Array(points * points);
      this.strengths = new Uint8Array(points * points);
      this.colours = points === side ? this.pixels : new Uint32Array(points * points);
    }
    Object.assign(this, {context, side, points, n, visible: Int32Array.from(visible)});
    this.pointOf = Int32Array.from({length: cells}, (_, c) => Math.floor((c + .5) * points / cells));
    this.startOf = Int32Array.from({length: points + 1}, (_, p) => this.pointOf.findIndex(at => at >= p))
      .map(c => c < 0 ? cells : c);
    this.pixelOf = cellsOfPixels(side, 0, points, points);
  }

  // `order`: see codeStrengths.
  pickCodes(codes, order) {
    const {n, points, visible, startOf, pointOf, strengths: out} = this;
    out.fill(0);
    for (let r = 0; r < visible.length; r++) {
      const base = visible[r] * n, to = pointOf[r] * points;
      for (let x = 0, c = 0; x < points; x++) {
        let most = out[to + x];
        for (const end = startOf[x + 1]; c < end; c++) {
          // The maximum without a branch: the branch would be unpredictable, and there are millions of comparisons.
          const mine = order[codes[base + visible[c]]], above = most - mine;
          most = mine + (above & ~(above >> 31));
        }
        out[to + x] = most;
      }
    }
    return out;
  }

  pickValues(values) {
    const {n, points, visible, pointOf, values: out} = this;
    out.fill(NaN);
    for (let r = 0; r < visible.length; r++) {
      const base = visible[r] * n, to = pointOf[r] * points;
      for (let c = 0; c < visible.length; c++) {
        const v = values[base + visible[c]], point = to + pointOf[c];
        if (Math.abs(v) > Math.abs(out[point]) || out[point] !== out[point]) out[point] = v;
      }
    }
    return out;
  }

  // Spreads the colours of the sampled points over the pixels.
  put(x, y) {
    const {side, points, pixelOf, colours, pixels} = this;
    for (let row = 0, pixel = 0; row < side && points < side; row++) {
      if (row && pixelOf[row] === pixelOf[row - 1]) {
        pixels.copyWithin(pixel, pixel - side, pixel);
        pixel += side;
      } else for (let column = 0, base = pixelOf[row] * points; column < side;
      column++) pixels[pixel++] = colours[base + pixelOf[column]];
    }
    this.context.putImageData(this.image, x, y);
  }
}

// Codes in order of magnitude, and their positions in that order; 0 stands for non-finite values.
export function codeStrengths(codec) {
  const of = codec === 'cube8' ? c => (c + 1) & 255 : c => !c ? 0 : c === 128
    ? 1 : 2 * Math.abs(c - 128) + Number(c > 128);
  const strengths = Uint8Array.from({length: 256}, (_, c) => of(c)), codes = new Uint8Array(256);
  strengths.forEach((strength, code) => { codes[strength] = code; });
  return {strengths, codes};
}

// The value of each of the 256 codes of one head.
export function codeValues(tensor, i, head) {
  if (tensor.codec === 'cube8') return cubeValues;
  const range = tensor.scaleOf(i, head) / (tensor.spec.levels ?? 127) ** 2;
  return Float64Array.from({length: 256}, (_, c) => c ? (c - 128) * Math.abs(c - 128) * range : NaN);
}

const cubeValues = Float64Array.from({length: 256}, (_, c) => c > 254 ? NaN : (c / 254) ** 3);

// Means over heads, over layers and over all of them in one pass over the codes. Cached for one frame only, since they
// are large.
export class GridMeans {
  of(frame, name) {
    if (this.frame === frame && this.name === name) return this.maps;
    const tensor = frame.get(name), [layers, heads] = tensor.shape, size = tensor.mapSize;
    const blank = count => Array.from({length: count}, () => new Float64Array(size));
    const means = {heads: blank(layers), layers: blank(heads), all: new Float64Array(size)};
    for (let i = 0; i < layers; i++) {
      for (let h = 0; h < heads; h++)
        addCodes(tensor.codes(i, h), codeValues(tensor, i, h), means.heads[i], means.layers[h]);
      addWeighted(means.heads[i], means.all, heads, layers);
    }
    for (const map of means.layers) for (let k = 0; k < size; k++) map[k] /= layers;
    Object.assign(this, {frame, name, maps: means});
    return means;
  }
}

function addCodes(codes, values, a, b) {
  for (let k = 0; k < codes.length; k++) {
    const v = values[codes[k]];
    a[k] += v;
    b[k] += v;
  }
}

function addWeighted(map, all, heads, layers) {
  for (let k = 0; k < map.length; k++) {
    map[k] /= heads;
    all[k] += map[k] / layers;
  }
}
