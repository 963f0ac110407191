// Tokenizes texts with Hugging Face's tokenizer, aligns tokens and words, and splits word pieces whose embeddings are
// not in the page into smaller ones.
import {findWords, isBlank, mergedWords, touchedWords, visible} from './findwords.js';

// The printable character that stands for each byte in a byte-level vocabulary, as GPT-2 numbers them.
const readerBytes = (() => {
  const printable = [[33, 127], [161, 173], [174, 256]].flatMap(([from, to]) =>
    Array.from({length: to - from}, (_, i) => from + i));
  const others = Array.from({length: 256}, (_, b) => b).filter(b => !printable.includes(b));
  return new Map([...printable.map(b => [String.fromCharCode(b), b]),
    ...others.map((b, i) => [String.fromCharCode(256 + i), b])]);
})();

const readerUtf8 = new TextDecoder('utf-8', {fatal: true, ignoreBOM: true});

// The longest pieces that `has` contains and that together spell `token`; null if there are none. A piece that
// continues a word starts with `prefix`.
export function smallerPieces(token, has, prefix) {
  const first = prefix && token.startsWith(prefix) ? prefix : '', chars = [...token.slice(first.length)], out = [];
  for (let at = 0, end; at < chars.length; at = end) {
    const lead = at ? prefix : first;
    for (end = chars.length; end > at && !has(lead + chars.slice(at, end).join('')); end--);
    if (end === at) return null;
    out.push(lead + chars.slice(at, end).join(''));
  }
  return out;
}

export class TextReader {
  // `Tokenizer`: the class of @huggingface/tokenizers; `json`: the tokenizer's file; `pieces`: ids whose embeddings are
  // in the page, in the order of their rows, or null for all; `longest`: number of tokens that the model accepts.
  constructor(Tokenizer, json, {pieces = null, longest}) {
    this.tokenizer = new Tokenizer(json, {});
    this.isByteLevel = json.model.type === 'BPE';
    this.prefix = this.isByteLevel ? '' : json.model.continuing_subword_prefix ?? '';
    this.rows = pieces && new Map(pieces.map((id, row) => [id, row]));
    this.longest = longest;
  }

  id(token) {
    const {added_tokens_map: added, model} = this.tokenizer;
    return added.get(token)?.id ?? model.tokens_to_ids.get(token) ?? model.unk_token_id;
  }

  row(token) { return this.rows ? this.rows.get(this.id(token)) : this.id(token); }

  // JavaScript lowercases a sigma at the end of a word to ς, unlike the tokenizers of Python.
  plain(text) { return this.tokenizer.normalizer?.('Σ') === 'σ' ? text.replaceAll('Σ', 'σ') : text; }

  // The tokens of a text, without special ones; `left` lists those that were split into smaller pieces.
  tokensOf(text) {
    const left = [], {model, added_tokens_map: added} = this.tokenizer;
    const has = piece => (model.tokens_to_ids.has(piece) || added.has(piece)) && this.row(piece) !== undefined;
    const tokens = this.tokenizer.encode_text(this.plain(text)).flatMap(token => {
      if (this.row(token) !== undefined) return [token];
      left.push(token);
      return smallerPieces(token, has, this.prefix) ?? [{unknown: token}];
    });
    return {tokens, left};
  }

  // {tokens, ids, rows, labels, spans, segments, isSpecial, words, wordIds, left} of one text or a pair.
  read(texts) {
    const parts = texts.map(text => ({...this.tokensOf(text.toWellFormed?.() ?? text), chars: [...text]}));
    const markers = parts.map(({tokens}, s) => tokens.map((_, i) => `${s}/${i}`)), places = new Map(
      markers.flatMap((all, s) => all.map((marker, i) => [marker, [s, i]])));
    const {post_processor: process, model} = this.tokenizer;
    const {tokens: whole, token_type_ids: types} = process ? process(markers[0], markers[1] ?? null, true)
      : {tokens: markers.flat()};
    const aligned = parts.map(part => this.align(part)), offsets = [];
    const words = aligned.flatMap(({words: found}) => {
      offsets.push(offsets.length ? aligned[offsets.length - 1].words.length + offsets.at(-1) : 0);
      return found;
    });
    const out = {tokens: [], ids: [], rows: [], labels: [], segments: [], isSpecial: [], wordIds: [], words,
      left: parts.flatMap(({left}) => left)};
    whole.forEach((marker, t) => {
      const [s, i] = places.get(marker) ?? [-1, -1], piece = s < 0 ? marker : parts[s].tokens[i];
      const token = piece.unknown ? model.unk_token : piece, word = s < 0 ? -1 : aligned[s].wordIds[i];
      out.tokens.push(token);
      out.ids.push(this.id(token));
      out.rows.push(this.row(token));
      out.labels.push(s < 0 ? visible(token) : aligned[s].labels[i]);
      out.segments.push(types?.[t] ?? Math.max(0, s));
      out.isSpecial.push(s < 0);
      out.wordIds.push(word < 0 ? -1 : word + offsets[s]);
    });
    return out;
  }

  align({tokens, chars}) {
    const spans = this.isByteLevel ? this.byteSpans(tokens, chars) : this.pieceSpans(tokens, chars);
    const pieces = tokens.map(token => this.textOf(token)), unmerged = findWords(chars);
    const touched = touchedWords(unmerged, spans).map((words, i) => isBlank(pieces[i] ?? '') ? [-1, -1] : words);
    const {spans: wordSpans, merged} = mergedWords(unmerged, touched);
    return {words: wordSpans.map(([start, end]) => chars.slice(start, end).join('')),
      wordIds: touched.map(([first]) => first < 0 ? -1 : merged[first]),
      labels: this.labels(pieces, spans, chars)};
  }

  // The text of a token; null for a part of a character.
  textOf(token) {
    if (token.unknown) return this.tokenizer.model.unk_token;
    if (this.tokenizer.added_tokens_map.has(token)) return token;
    if (!this.isByteLevel) return token.startsWith(this.prefix) ? token.slice(this.prefix.length) || token : token;
    try { return readerUtf8.decode(Uint8Array.from(token, c => readerBytes.get(c))); } catch { return null; }
  }

  // The parts of a character are numbered.
  labels(pieces, spans, chars) {
    let part = 0;
    return pieces.map((piece, i) => {
      if (piece !== null) return visible(piece);
      const follows = i && pieces[i - 1] === null && spans[i][0] < spans[i - 1][1];
      part = follows ? part + 1 : 1;
      const whole = chars.slice(...spans[i]).join('');
      return (whole ? visible(whole) : '\ufffd') + String(part).replace(/\d/g, d => '₀₁₂₃₄₅₆₇₈₉'[d]);
    });
  }

  // Each token of a WordPiece model covers as many normalised characters as it spells; an unknown one covers its word.
  pieceSpans(tokens, chars) {
    const {normalizer, pre_tokenizer: split, model, added_tokens_map: added} = this.tokenizer;
    const plain = text => [...(normalizer ? normalizer(text) : text)].filter(c => !/\s/.test(c));
    const from = chars.flatMap((c, i) => plain(c).map(() => i)), ends = new Set();
    const words = split ? split(normalizer ? normalizer(chars.join('')) : chars.join('')) : [chars.join('')];
    let end = 0;
    for (const word of words) ends.add(end += [...word].length);
    let at = 0;
    return tokens.map(token => {
      const start = at, isUnknown = token === model.unk_token && !this.spells(chars, from[at], token);
      if (isUnknown) do at++; while (at < from.length && !ends.has(at));
      else if (added.has(token)) at += plain(token).length;
      else at += [...token.unknown ? this.textOfPiece(token.unknown) : this.textOf(token)].length;
      at = Math.min(at, from.length);
      return start < at ? [from[start], from[at - 1] + 1] : [0, 0];
    });
  }

  textOfPiece(token) { return token.startsWith(this.prefix) ? token.slice(this.prefix.length) : token; }

  spells(chars, at, token) { return chars.slice(at, at + token.length).join('') === token; }

  // Each token of a byte-level model covers the characters whose bytes it contains, without leading spaces.
  byteSpans(tokens, chars) {
    const encoder = new TextEncoder(), from = chars.flatMap((c, i) => [...encoder.encode(c)].map(() => i));
    let at = 0;
    return tokens.map((token, t) => {
      if (this.tokenizer.added_tokens_map.has(token)) {
        while (at < from.length && /\s/.test(chars[from[at]])) at++;
        const start = at;
        at += encoder.encode(token).length;
        return [from[start] ?? 0, (from[at - 1] ?? -1) + 1];
      }
      const bytes = [...token.unknown ?? token].map(c => readerBytes.get(c));
      const isPrefix = !t && bytes[0] === 32 && chars[0] !== ' ';
      let start = at;
      at = Math.min(from.length, at + bytes.length - Number(isPrefix));
      const end = at;
      while (start < end - 1 && /\s/.test(chars[from[start]])) start++;
      return start < end ? [from[start], from[end - 1] + 1] : [0, 0];
    });
  }
}
