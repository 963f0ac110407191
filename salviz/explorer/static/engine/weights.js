// Reads a model that salviz.explorer.page_model wrote: a JSON header and arrays. Matrices have one byte per weight and
// one scale per row. Those of linear layers are dequantised once; embeddings stay bytes, since a sentence reads few
// rows.

const weightsMagic = 0x314d5653;              // 'SVM1' read as a little-endian number

async function weightsInflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function floatRows({codes, scale, width}) {
  const out = new Float32Array(codes.length);
  for (let row = 0, k = 0; row < scale.length; row++)
    for (let i = 0; i < width; i++, k++) out[k] = codes[k] * scale[row];
  return out;
}

// The key of a model of a page: the number of its run, and which of the run's models it is.
export function modelKey(run, choice) { return `${run}/${choice}`; }

// Completes a file that contains differences, modulo 256, from the bytes of the model `base`.
function completeFrom(base, header, payload) {
  if (header.isDifference) for (let i = 0; i < payload.length; i++) payload[i] += base.payload[i];
  header.tokenizer ??= base?.header.tokenizer;
}

// Returns {header, config, weights} as `Network` takes them, and the bytes behind the header.
export function readWeights(bytes, base = null) {
  const words = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 8 || words.getUint32(0, true) !== weightsMagic) throw new Error('the data is not a salviz model');
  const start = 8 + words.getUint32(4, true), header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));
  const {config, arrays} = header, payload = bytes.subarray(start);
  completeFrom(base, header, payload);
  const floats = (offset, size) => new Float32Array(bytes.buffer, bytes.byteOffset + start + offset, size);
  const table = name => {
    if (!arrays[name]) return null;
    const {shape: [rows, width], offset, scale} = arrays[name];
    const codes = new Int8Array(bytes.buffer, bytes.byteOffset + start + offset, rows * width);
    return {codes, scale: floats(scale, rows), width, rows};
  };
  const vector = name => arrays[name] ? floats(arrays[name].offset, arrays[name].shape[0]) : null;
  const layer = name => {
    const of = table(`${name}.weight`);
    return of && {weight: floatRows(of), bias: vector(`${name}.bias`), inputs: of.width, outputs: of.rows};
  };
  const norm = name => arrays[`${name}.weight`]
    && {weight: vector(`${name}.weight`), bias: vector(`${name}.bias`), eps: config.eps};
  const layers = Array.from({length: config.layers}, (_, i) => Object.fromEntries([
    ...['query', 'key', 'value', 'output', 'inner', 'outer'].map(part => [part, layer(`layers.${i}.${part}`)]),
    ...['norm1', 'norm2'].map(part => [part, norm(`layers.${i}.${part}`)])]));
  const weights = {word: table('word'), position: table('position'), segment: table('segment'), layers,
    embedded: norm('embedded'), projection: layer('projection'), final: norm('final'),
    head: config.head.map((name, i) => ({name, ...layer(`head.${i}`)}))};
  return {header, config, weights, payload};
}

export async function unpackWeights(packed, base) { return readWeights(await weightsInflate(packed), base); }
