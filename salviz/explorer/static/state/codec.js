// Decodes frames (salviz.explorer.payload): one probe example at one step, as a JSON header and arrays with at most one
// byte per weight.
import {discardCandidates, dropMask, keyedUniform} from '../lib/maths.js';

const codecMagic = 0x31465653;                // 'SVF1' read as a little-endian number
const codecBytes = {cube8: 1, level8: 1, rank8: 1, rank16: 2, bits: 1 / 8, f32: 4, i32: 4, table8: 1};
const codecViews = {rank16: Uint16Array, f32: Float32Array, i32: Int32Array};
const codecCubes = Float32Array.from({length: 256}, (_, c) => c > 254 ? NaN : (c / 254) * (c / 254) * (c / 254));

const codecLevels = new Set(['cube8', 'level8', 'table8']);

const codecProduct = numbers => numbers.reduce((a, b) => a * b, 1);

// The value of each of the 256 codes. Products are computed in the order of salviz.maps, so the results are
// bit-identical.
function codecTable(spec, scale) {
  if (spec.codec === 'cube8') return codecCubes;
  if (spec.codec === 'table8') return Float32Array.from({length: 256}, (_, c) => spec.values[c] ?? NaN);
  return Float32Array.from({length: 256}, (_, c) => c ? (c - 128) / 127 * (Math.abs(c - 128) / 127) * scale : NaN);
}

function codecUnpackBits(bytes, start, size) {
  const out = new Uint8Array(size);
  for (let k = 0; k < size; k++) out[k] = bytes[(start + k) >> 3] >> (7 - ((start + k) & 7)) & 1;
  return out;
}

export class Tensor {
  constructor(name, spec, bytes, frame, of = null) {
    const {codec, shape, layers = null, pooled = 1} = spec;
    Object.assign(this, {name, spec, codec, shape, layers, pooled, bytes, frame, of});
    this.size = codecProduct(shape);
    // One map per head and layer, or per image channel; any other tensor is a single map.
    this.mapSize = shape.length > 2 ? shape.at(-2) * shape.at(-1) : this.size;
    const View = codecViews[codec] ?? Uint8Array;
    if (bytes && codec !== 'bits')
      this.all = new View(bytes.buffer, bytes.byteOffset, bytes.length / View.BYTES_PER_ELEMENT);
  }

  // One head of a four-dimensional tensor as a separate tensor [n, n], without copying.
  slice(i, head) {
    const spec = {...this.spec, shape: this.shape.slice(2), layers: null};
    return new Tensor(this.name, spec, null, this.frame, {tensor: this, i, head});
  }

  map(i, head) { return this.shape.length === 4 ? i * this.shape[1] + head : this.shape.length === 3 ? i : 0; }
  scaleOf(i = 0, head = 0) { return this.of ? this.of.tensor.scaleOf(this.of.i, this.of.head)
    : this.spec.scale?.flat()[this.map(i, head)] ?? 0; }

  codes(i = 0, head = 0) {
    if (this.of) return this.of.tensor.codes(this.of.i, this.of.head);
    if (this.codec === 'bits') return this.bit(i, head);
    const codes = this.all.subarray(this.map(i, head) * this.mapSize, (this.map(i, head) + 1) * this.mapSize);
    return this.spec.order ? this.ranks(codes, i, head) : codes;
  }

  // The same head is read several times in a row: by the map, the candidates and the discarded positions.
  ranks(rest, i, head) {
    const key = this.map(i, head);
    if (this.cached?.key !== key)
      this.cached = {key, ranks: codecRanks(rest, this.frame.get(this.spec.order).codes(i, head), this.shape.at(-1))};
    return this.cached.ranks;
  }

  at(i = 0, head = 0) {
    const codes = this.codes(i, head);
    if (!codecLevels.has(this.codec)) return Float32Array.from(codes);
    const table = codecTable(this.spec, this.scaleOf(i, head)), out = new Float32Array(codes.length);
    for (let k = 0; k < out.length; k++) out[k] = table[codes[k]];
    return out;
  }

  bit(i = 0, head = 0) {
    if (this.of) return this.of.tensor.bit(this.of.i, this.of.head);
    if (this.codec !== 'bits') return Uint8Array.from(this.codes(i, head), Boolean);
    if (this.spec.follows) return codecFollow(this, i, head);
    return codecUnpackBits(this.bytes, this.map(i, head) * this.mapSize, this.mapSize);
  }

  values() {
    const across = this.shape.length === 4 ? this.shape[1] : 1,
      maps = this.shape.length > 2 ? this.shape[0] * across : 1;
    const make = this.codec === 'bits' ? 'bit' : 'at';
    if (maps === 1) return this[make]();
    const out = new (make === 'bit' ? Uint8Array : Float32Array)(this.size);
    for (let m = 0; m < maps; m++) out.set(this[make](Math.floor(m / across), m % across), m * this.mapSize);
    return out;
  }

  // The largest distance between a stored value with this code and its displayed value; larger if a page kept only
  // every `coarse`-th code.
  halfStep(code, i = 0, head = 0) {
    const [zero, most] = this.codec === 'cube8' ? [0, 254] : [128, 127], c = Math.abs(code - zero);
    if (this.codec !== 'cube8' && this.codec !== 'level8') return 0;
    if (c > most) return NaN;
    const outer = Math.min(most, c + (this.spec.coarse > 1 ? this.codecReach(c, most) : 0)),
      value = this.codec === 'cube8' ? codecCube : codecLevel;
    const gap = outer < most ? value(outer + 1) - value(outer) : value(most) - value(most - 1);
    return (value(outer) - value(c) + gap / 2) * (this.codec === 'cube8' ? 1 : this.scaleOf(i, head));
  }

  // The last multiple below the end also represents the codes beyond it.
  codecReach(c, most) { return c + this.spec.coarse > most ? most - c : Math.floor(this.spec.coarse / 2); }
}

const codecCube = c => (c / 254) ** 3, codecLevel = c => (c / 127) ** 2;

// Recovers ranks from quantisation codes and the order among equal codes (`order_value` in explorer.quantisation).
function codecRanks(rest, codes, n) {
  const out = new Uint8Array(rest.length), places = [];
  for (let start = 0; start < out.length; start += n) {
    places.length = 0;
    for (let k = start; k < start + n; k++) if (rest[k]) places.push(k);
    places.sort((a, b) => codes[a] - codes[b]);
    for (let first = 0, rank = 0, last; first < places.length; first = last) {
      const levels = [];
      for (last = first; last < places.length && codes[places[last]] === codes[places[first]]; last++) {
        const code = rest[places[last]] - 1, place = levels.length - (code >> 1);
        if (code & 1) levels[place - 1].push(places[last]);
        else levels.splice(place, 0, [places[last]]);
      }
      for (const same of levels) {
        rank++;
        for (const k of same) out[k] = rank;
      }
    }
  }
  return out;
}

// Regions need no bytes where they follow from the ranks and the random draw (payload.pack_page omits them after
// checking this).
function codecFollow(tensor, i, head) {
  const {from, p, q, region, closed = [], seed, step, example} = tensor.spec.follows, n = tensor.shape.at(-1);
  const ranks = tensor.frame.get('attribution_ranks').codes(i, head), allowed = Uint8Array.from(ranks, Boolean);
  if (from === 'attribution_ranks') {
    const shut = new Set(closed);
    return discardCandidates(ranks, shut.size ? allowed.map((a, k) => a && !shut.has(k % n)) : allowed, n, p, region);
  }
  const uniform = keyedUniform(example, head + 1, n, seed, step, tensor.layers[i]);
  return dropMask(tensor.frame.get(from).bit(i, head), allowed, n, q, (query, key) => uniform(head, query, key));
}

export class Frame {
  constructor(header, payload) {
    const {run, probe, step, epoch, label, losses, info} = header;
    Object.assign(this, {run, probe, step, epoch, label, losses, info, header, tensors: new Map()});
    for (const [name, spec] of Object.entries(header.arrays)) {
      const bytes = spec.follows ? null : payload.subarray(spec.offset, spec.offset + spec.bytes);
      this.tensors.set(name, new Tensor(name, spec, bytes, this));
    }
    this.names = [...this.tensors.keys()];
  }

  get(name) { return this.tensors.get(name) ?? null; }
  layers(name) { return this.get(name)?.layers ?? []; }

  // The full map of a head, whether it is stored by itself or with all heads; null where only a thumbnail is stored.
  full(name, layer, head) {
    const whole = this.get(`${name}/${layer}.${head}`);
    if (whole) return whole;
    const all = this.get(name), i = all?.layers?.indexOf(layer) ?? -1;
    return i < 0 || all.pooled > 1 || all.shape.length !== 4 || !(head >= 0 && head < all.shape[1])
      ? null : all.slice(i, head);
  }
}

function codecRefuse(ok, reason) { if (!ok) throw new Error(`Cannot show this data: ${reason}.`); }

function codecJson(bytes, what) {
  let read = null;
  try { read = JSON.parse(new TextDecoder().decode(bytes)); } catch { /* reported below */ }
  codecRefuse(read && typeof read === 'object', `${what} cannot be read`);
  return read;
}

function codecCount(x) { return Number.isSafeInteger(x) && x >= 0; }

function codecCheckArray(name, spec, size) {
  const place = `array ${name} of the frame`;
  const isValid = spec && codecBytes[spec.codec] && Array.isArray(spec.shape) && spec.shape.every(codecCount);
  codecRefuse(isValid, `${place} has a format that this version does not support`);
  if (spec.layers) codecRefuse(Array.isArray(spec.layers) && spec.layers.length === spec.shape[0],
    `${place} does not have as many layers as it lists`);
  if (spec.follows) return;
  const needs = Math.ceil(codecProduct(spec.shape) * codecBytes[spec.codec]);
  codecRefuse(codecCount(spec.offset) && spec.offset % 8 === 0 && spec.bytes === needs && spec.offset + needs <= size,
    `${place} is incomplete`);
}

export function decodeFrame(buffer) {
  // Four-byte numbers can be read in place only at offsets that are multiples of four.
  const bytes = buffer.byteOffset % 8 ? buffer.slice() : buffer;
  const words = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  codecRefuse(bytes.length >= 8 && words.getUint32(0, true) === codecMagic, 'the data is not a salviz frame');
  const length = words.getUint32(4, true);
  codecRefuse(length <= bytes.length - 8 && length % 8 === 0, 'the header of the frame is incomplete');
  const header = codecJson(bytes.subarray(8, 8 + length), 'the header of the frame'),
    payload = bytes.subarray(8 + length);
  const isComplete = ['run', 'probe', 'step'].every(k => codecCount(header[k])) && header.arrays && header.info;
  codecRefuse(isComplete, 'the header of the frame lacks required fields');
  for (const [name, spec] of Object.entries(header.arrays)) codecCheckArray(name, spec, payload.length);
  return new Frame(header, payload);
}

const codecPageMagic = 0x31505653;            // 'SVP1'

async function codecInflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  try { return new Uint8Array(await new Response(stream).arrayBuffer()); } catch { return null; }
}

// Rebuilds a frame of a page from its header and its concatenated arrays; those named in `steps` are stored as
// differences from the next frame.
function codecRebuild({header, steps}, raw, later) {
  const arrays = Object.entries(header.arrays).filter(([, spec]) => !spec.follows);
  const text = new TextEncoder().encode(JSON.stringify(header)), start = 8 + Math.ceil(text.length / 8) * 8;
  const out = new Uint8Array(start + Math.max(0,
    ...arrays.map(([, spec]) => spec.offset + Math.ceil(spec.bytes / 8) * 8)));
  const words = new DataView(out.buffer);
  words.setUint32(0, codecMagic, true);
  words.setUint32(4, start - 8, true);
  out.fill(32, 8, start);
  out.set(text, 8);
  let place = 0;
  for (const [name, spec] of arrays) {
    const array = out.subarray(start + spec.offset, start + spec.offset + spec.bytes);
    codecRefuse(place + spec.bytes <= raw.length, 'a frame of the page is incomplete');
    array.set(raw.subarray(place, place + spec.bytes));
    const before = steps.includes(name) ? later.get(name) : null;
    if (before) for (let k = 0; k < array.length; k++) array[k] += before[k];
    later.set(name, array);
    place += spec.bytes;
  }
  return out;
}

// Returns the frames of a page in step order. The newest is unpacked first; `each(frame bytes, index)` is called for
// each frame as it becomes available.
export async function unpackPage(bytes, each = () => {}) {
  const words = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), frames = [], later = new Map();
  codecRefuse(bytes.length >= 8 && words.getUint32(0, true) === codecPageMagic, 'the data is not a salviz page');
  let at = 8 + words.getUint32(4, true);
  const text = await codecInflate(bytes.subarray(8, at)),
    directory = codecJson(text ?? new Uint8Array(), 'the directory of the page');
  for (let i = directory.length - 1; i >= 0; i--) {
    const raw = await codecInflate(bytes.subarray(at, at + directory[i].stream));
    codecRefuse(raw, `frame ${i + 1} of ${directory.length} of the page is damaged`);
    at += directory[i].stream;
    frames[i] = codecRebuild(directory[i], raw, later);
    each(frames[i], i);
  }
  return frames;
}
