// Answers of a model in the page, in the form in which a kernel sends them (salviz.explorer.custom_sentences).
import {completed} from '../lib/interventions.js';
import {EngineIntervention} from './intervene.js';
import {integratedGradients, reducedTo} from './network.js';
import {softmaxRow} from './operations.js';

const answerMagic = 0x31465653, answerCached = 4;   // 'SVF1'

// One byte per probability: the code c with the nearest value (c/254)³.
const answerAbove = Float64Array.from({length: 255}, (_, c) => c === 254 ? Infinity
  : ((c / 254) ** 3 + ((c + 1) / 254) ** 3) / 2);

export function cubeCodes(maps) {
  const out = new Uint8Array(maps.reduce((sum, map) => sum + map.length, 0));
  let at = 0;
  for (const map of maps) {
    for (const x of map) {
      const code = Math.floor(Math.cbrt(Math.min(1, x)) * 254);
      out[at++] = Math.max(Number(x > 0), code + Number(x > answerAbove[code]));
    }
  }
  return out;
}

// A frame as `frame_bytes` of salviz.explorer.payload writes it; `arrays`: {name: [specification, typed array]}.
export function frameBytes(header, arrays) {
  const specs = {}, parts = [];
  let at = 0;
  for (const [name, [spec, array]] of Object.entries(arrays)) {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    specs[name] = {...spec, offset: at, bytes: bytes.length};
    parts.push([at, bytes]);
    at += Math.ceil(bytes.length / 8) * 8;
  }
  const text = new TextEncoder().encode(JSON.stringify({...header, arrays: specs})),
    start = 8 + Math.ceil(text.length / 8) * 8;
  const out = new Uint8Array(start + at), words = new DataView(out.buffer);
  words.setUint32(0, answerMagic, true);
  words.setUint32(4, start - 8, true);
  out.fill(32, 8, start);
  out.set(text, 8);
  for (const [offset, bytes] of parts) out.set(bytes, start + offset);
  return out;
}

// A text in which each token is taken from the position `source`. The label of a masked word is that of its new tokens.
function replacedTokens(read, source) {
  const from = values => Array.from(source, at => values[at]), labels = from(read.labels), words = [...read.words];
  const changed = new Set(read.wordIds.filter((word, i) => word >= 0 && source[i] !== i));
  for (const word of changed) words[word] = labels.filter((_, i) => read.wordIds[i] === word).join('');
  return {...read, tokens: from(read.tokens), ids: from(read.ids), rows: from(read.rows), labels, words};
}

export class PageAnswers {
  constructor(network, reader, header) {
    Object.assign(this, {network, reader, header, cached: new Map()});
  }

  // The forward pass of a text or a pair; the last few are cached, since one side of a comparison stays.
  pass(texts, intervention = null) {
    const key = JSON.stringify([texts, intervention]), cached = this.cached.get(key);
    const pass = cached ?? (intervention ? this.intervened(this.pass(texts), intervention) : this.run(texts));
    this.cached.delete(key);
    this.cached.set(key, pass);
    while (this.cached.size > answerCached) this.cached.delete(this.cached.keys().next().value);
    return pass;
  }

  // The tokens of a text or a pair.
  read(texts) {
    if (texts.some(text => !text.trim())) throw new Error('the text is empty; enter at least one word');
    const read = this.reader.read(texts), count = read.tokens.length, {longest} = this.header;
    if (count > longest)
      throw new Error(`the text has ${count} tokens, but the model accepts at most ${longest}; shorten the text`);
    return read;
  }

  run(texts) { return this.forward(texts, this.read(texts)); }

  // The pass of a text under an intervention, which is computed for the class that the model predicts without it.
  intervened({texts, read, words, tape, probabilities}, intervention) {
    const {network, header} = this, {region, maps, mask_fraction: masked, saliency: by} = completed(intervention),
      isRanked = masked || maps.some(([, , name]) => name === 'saliency');
    if (isRanked && (by === 'integrated_gradients' || !header.attributions[by]))
      throw new Error(`On this page, an intervention cannot use saliency by ${by}; use input_x_gradient.`);
    const gradient = region || isRanked ? network.gradient(tape, probabilities.indexOf(Math.max(...probabilities)))
      : null;
    const saliency = isRanked ? reducedTo(by, gradient, words, read.tokens.length) : null;
    const one = new EngineIntervention(intervention, network, {read, tape}, saliency), source = one.source();
    return this.forward(texts, source ? replacedTokens(read, source) : read, one.hook());
  }

  forward(texts, read, change) {
    const words = this.network.words(read.rows), {logits, maps, tape} = this.network.forward(words, read.segments,
      change);
    return {texts, read, words, maps, tape, change, saliency: new Map(),
      probabilities: softmaxRow(Float32Array.from(logits))};
  }

  probe({texts, read}, id) {
    const [first] = this.header.template.run.probes;
    return {...first, id, matches: id, texts, tokens: read.tokens, labels: read.labels, words: read.words,
      word_ids: read.wordIds, is_special: read.isSpecial, label: null, has_rationale: false};
  }

  frame(pass, id, explains, saliency, facts) {
    const {read, maps, probabilities, tape} = pass, n = read.tokens.length, {layers, heads} = this.network.config;
    const f32 = values => [{codec: 'f32', shape: [values.length]}, values];
    const attention = {codec: 'cube8', shape: [layers, heads, n, n], layers: maps.map((_, layer) => layer)};
    const arrays = {attention: [attention, cubeCodes(maps.flat())], ...saliency && {saliency: f32(saliency)},
      probabilities: f32(probabilities)};
    const info = {...this.header.template.info, example_id: id, pooled_row: tape.row, explains, ...saliency && facts};
    return frameBytes({run: 0, probe: id, step: 0, epoch: 0, label: null, losses: {}, info}, arrays);
  }

  // Saliency of a text for `target`, cached with its forward pass; null if the computation was ended.
  async saliency(pass, target, by, report) {
    const key = `${by}/${target}`, values = pass.saliency.get(key) ?? await this.computed(pass, target, by, report);
    if (values) pass.saliency.set(key, values);
    return values;
  }

  async computed({words, read, tape, change}, target, by, report) {
    const {network} = this, {segments} = read;
    if (by === 'integrated_gradients') {
      const baseline = network.words([this.reader.row(this.header.padding)]);
      return integratedGradients(network, words, segments, target, baseline, {report, change});
    }
    return reducedTo(by, network.gradient(tape, target), words, segments.length);
  }

  // Tokens that were split because the page has no embedding for them.
  notice(passes) {
    const {pieces, vocabulary} = this.header, left = [...new Set(passes.flatMap(({read}) => read.left))];
    if (!left.length) return '';
    const names = left.slice(0, 6).map(token => `‘${this.reader.textOfPiece(token).slice(0, 30)}’`),
      listed = left.length > 6 ? [...names, 'others'] : names,
      named = [listed.slice(0, -1).join(', '), listed.at(-1)].filter(Boolean).join(' and ');
    const [few, all] = [pieces.length, vocabulary].map(count => count.toLocaleString('en'));
    return `This page contains ${few} of the ${all} word pieces. `
      + `${named} ${left.length > 1 ? 'are' : 'is'} split into smaller pieces `
      + 'here, but not by the tokenizer in Python.';
  }

  content(question, passes, explains, other) {
    const {template} = this.header, {name} = template,
      of = other === this ? name : `${other.header.template.name} (A) and ${name} (B)`;
    return {of, attribution: question.attribution, explains, notice: this.notice(passes),
      run: {...template.run, probes: passes.map((pass, i) => this.probe(pass, i))}};
  }

  // Answers a question about `texts` in two parts, like a kernel: maps and probabilities, then the same with saliency
  // for the class predicted for the first text. An intervention changes the pass of the last text. If another model
  // `other` reads the first text, an intervention changes both. `say(content, frames)` sends a part; `isOld()` ends the
  // computation.
  async answer(question, say, isOld, other = this) {
    const {attribution, intervention} = question, {explains: explained, attributions} = this.header,
      last = question.texts.length - 1, models = question.texts.map((_, i) => i < last ? other : this);
    if (JSON.stringify(other.header.explains) !== JSON.stringify(explained))
      throw new Error('The two models have different classes, so their answers cannot be compared.');
    const passes = question.texts.map((texts, i) => models[i].pass(texts, i === last || other !== this ? intervention
      : null));
    const best = passes.map(({probabilities: p}) => p.indexOf(Math.max(...p)));
    const each = best.map(target => `${explained[target]} (predicted)`);
    say({...this.content(question, passes, each, other), more: true}, passes.map((pass, i) =>
      models[i].frame(pass, i, each[i])));
    const [target] = best, first = other === this ? 'for the first text' : 'by A',
      shared = passes.map(() => `${explained[target]} (predicted ${first})`);
    const steps = passes.length, values = [];
    for (const [i, pass] of passes.entries()) {
      const report = (step, count) => {
        say({progress: (i + step / count) / steps, attribution, more: true}, []);
        return new Promise(done => { setTimeout(() => done(!isOld())); });
      };
      values.push(await models[i].saliency(pass, target, attribution, report));
      if (values.at(-1) === null) return;
    }
    say({...this.content(question, passes, shared, other), more: false}, passes.map((pass, i) =>
      models[i].frame(pass, i, shared[i], values[i], attributions[attribution])));
  }

  // Queries, keys and attention of one head.
  vectors({texts, layer, head}, say) {
    const {tape, read, maps} = this.pass(texts), n = read.tokens.length, {hidden, size, scale} = this.network.sizes;
    const columns = x => Float32Array.from({length: n * size}, (_, k) =>
      x[Math.floor(k / size) * hidden + head * size + k % size]);
    const {query, key} = tape.layers[layer].vectors;
    const f32 = (values, width) => [{codec: 'f32', shape: [n, width]}, values];
    const isAllowed = k => !this.network.sizes.causal || k % n <= Math.floor(k / n), allowed = new Uint8Array(
      Math.ceil(n * n / 8));
    for (let k = 0; k < n * n; k++) if (isAllowed(k)) allowed[k >> 3] |= 128 >> (k & 7);
    const arrays = {query: f32(columns(query), size), key: f32(columns(key), size),
      attention: f32(maps[layer][head], n), allowed: [{codec: 'bits', shape: [n, n]}, allowed]};
    say({tokens: read.tokens, of: this.header.template.name, more: false},
      [frameBytes({run: 0, probe: 0, step: 0, info: {scaling: scale}}, arrays)]);
  }
}
