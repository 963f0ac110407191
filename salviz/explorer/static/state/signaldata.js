// An image or a series of a frame, prepared for drawing: rows and columns of numbers, masked cells, informative region.
import {shownToken} from '../lib/canvas.js';
import {evidenceOf} from './derive.js';

// Transposes [T, F]: on the screen, features are rows and time runs to the right.
function turned(values, times, features) {
  const Kind = values.constructor, out = new Kind(values.length);
  for (let t = 0; t < times; t++) for (let f = 0; f < features; f++) out[f * times + t] = values[t * features + f];
  return out;
}

// {values, channels, half(k, channel)} of an array, in screen rows and columns; null where there is none.
function signalMap(tensor, modality) {
  if (!tensor) return null;
  if (modality === 'series') {
    const [times, features] = tensor.shape, codes = tensor.codes();
    const half = k => tensor.halfStep(codes[(k % times) * features + Math.floor(k / times)]);
    return {values: turned(tensor.at(), times, features), channels: null, half};
  }
  const count = tensor.shape.length === 3 ? tensor.shape[0] : 1,
    channels = Array.from({length: count}, (_, c) => tensor.at(c));
  const halfOf = (k, c) => tensor.halfStep(tensor.codes(c)[k], c);
  const half = (k, c = null) => c === null ? channels.reduce((sum, _, i) => sum + halfOf(k, i), 0) / count
    : halfOf(k, c);
  const values = count === 1 ? channels[0]
    : channels[0].map((_, k) => channels.reduce((sum, channel) => sum + channel[k], 0) / count);
  return {values, channels, half};
}

function signalMask(frame, name, modality) {
  const tensor = frame.get(name);
  if (!tensor) return null;
  return modality === 'series' ? turned(tensor.bit(), ...tensor.shape) : tensor.bit();
}

// The saliency of the prediction, and the saliency by which the method ranks cells if it differs; the latter may
// explain another class.
function signalSaliencies(frame, modality) {
  const plain = signalMap(frame.get('saliency_map'), modality);
  const method = signalMap(evidenceOf(frame, 'method_saliency_map', 'SaliencyGuided'), modality);
  if (!plain) return {saliency: method && {...method, name: 'the method’s saliency'}, ranking: null};
  const differs = method?.values.some((v, k) => Math.abs(v - plain.values[k]) > plain.half(k) + method.half(k));
  return {saliency: {...plain, name: 'saliency'}, ranking: differs ? {...method, name: 'ranking saliency'} : null};
}

function valueEnds(lists) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const v of list) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
  return low <= high ? [low, high] : [0, 1];
}

function strongestRow(values, rows, columns) {
  const sums = Array.from({length: rows},
    (_, r) => values.subarray(r * columns, (r + 1) * columns).reduce((sum, v) => sum + Math.abs(v || 0), 0));
  return sums.indexOf(Math.max(...sums));
}

const signalsOnce = new WeakMap();

// All data of a frame for the image and series panel; null without input and saliency. Cached, since frames never
// change.
export function signalOf(frame) {
  if (!signalsOnce.has(frame)) signalsOnce.set(frame, makeSignal(frame));
  return signalsOnce.get(frame);
}

function makeSignal(frame) {
  const modality = frame.info?.modality === 'series' ? 'series' : 'image', series = modality === 'series';
  const {saliency, ranking} = signalSaliencies(frame, modality);
  const [input, masked] = ['input', 'masked_map'].map(name => signalMap(frame.get(name), modality));
  const shape = ['input', 'saliency_map', 'method_saliency_map'].map(name => frame.get(name)).find(Boolean)?.shape;
  if (!shape || !(shape.at(-1) > 0 && shape.at(-2) > 0)) return null;
  const [rows, columns] = series ? [shape[1], shape[0]] : shape.slice(-2), names = frame.info.feature_names;
  const rowNames = series ? Array.from({length: rows},
    (_, f) => ({label: shownToken(names?.[f] ?? String(f)), special: false})) : null;
  const lists = [input, masked].filter(Boolean).flatMap(map => map.channels ?? [map.values]),
    [low, high] = valueEnds(lists);
  const count = input?.channels?.length ?? 0;
  const [isMasked, informative] = ['is_masked_map', 'informative'].map(name => signalMask(frame, name, modality));
  const rowEnds = row => valueEnds([input, masked].filter(Boolean)
    .map(map => map.values.subarray(row * columns, (row + 1) * columns)));
  const strongest = series ? strongestRow((saliency ?? input).values, rows, columns) : null;
  const display = {low, high, colours: count === 3, averaged: count > 1 && count !== 3, rowEnds, strongest};
  return {modality, rows, columns, rowNames, input, saliency, ranking, masked, isMasked, informative, ...display};
}

// Round time steps at least 44 pixels apart.
export function timeTicks(count, width) {
  const least = Math.max(1, 44 * count / Math.max(1, width)), unit = 10 ** Math.floor(Math.log10(least));
  const every = [1, 2, 5, 10].map(k => k * unit).find(v => v >= least);
  return Array.from({length: Math.ceil(count / every)}, (_, i) => i * every);
}
