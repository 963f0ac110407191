// Words of a text, and readable labels of its tokens, as salviz.core.text finds them. Places count characters (code
// points), as in Python.

const wordKinds = {"'": "'", '’': "'", '-': '-', '‐': '-', '‑': '-', '.': '.', ',': '.', '\u200d': 'j', '\u200b': ' ',
  '\u0e33': 'm', '\u0eb3': 'm', '\u17d2': 'k', '\u1039': 'k', '\u1a60': 'k'};
const wordUnspaced = new RegExp(`[${['Han', 'Hiragana', 'Katakana', 'Yi', 'Thai', 'Lao', 'Khmer', 'Myanmar', 'Tai_Le',
  'New_Tai_Lue', 'Tai_Tham', 'Tai_Viet', 'Ahom'].map(script => `\\p{scx=${script}}`).join('')}]`, 'u');

const wordIn = (c, from, to) => c >= from && c <= to;

// The kind of a character as one letter, against which `wordPattern` is matched.
function kindOf(c) {
  if (Object.hasOwn(wordKinds, c)) return wordKinds[c];
  if (/\p{Decimal_Number}/u.test(c)) return 'd';
  if (/[\p{L}\p{N}]/u.test(c)) return wordUnspaced.test(c) ? 'c' : 'w';
  const code = c.codePointAt(0);
  if (/\p{M}/u.test(c) || wordIn(code, 0xe0020, 0xe007f)) return 'm';
  if (/[\s\p{Cc}\p{Zs}\p{Zl}\p{Zp}]/u.test(c) && c !== '\ufeff') return ' ';
  if (/\p{Cf}/u.test(c)) return 'z';
  if (wordIn(code, 0x1f1e6, 0x1f1ff)) return 'r';
  return wordIn(code, 0x1f3fb, 0x1f3ff) ? 's' : 'o';
}

const wordUnit = '(?:d[.](?=d)|[wd](?:[zj]*[mk])*)';
const wordPattern = new RegExp(`${wordUnit}(?:(?:[zj]+|['-])?${wordUnit})*|c(?:[zj]*(?:m|kc?))*|`
  + '(?:rr|[^ zjos])(?:[zj]*[mk])*|[os](?:[zj]*[mks])*(?:j[os](?:[zj]*[mks])*)*', 'g');

// [start, end] of each word of the characters `chars`.
export function findWords(chars) {
  return [...chars.map(kindOf).join('').matchAll(wordPattern)].map(m => [m.index, m.index + m[0].length]);
}

const labelSpaces = {' ': '␣', '\n': '↵', '\r': '↵', '\t': '⇥'};

const labelSpace = c => labelSpaces[c] ?? '␣';

// White space as Python defines it, which excludes the byte order mark.
export function isBlank(text) { return /^[\s\x1c-\x1f\x85]+$/.test(text) && !text.includes('\ufeff'); }

function stripped(chars) {
  const isInk = c => !isBlank(c), end = chars.findLastIndex(isInk);
  return end < 0 ? [] : chars.slice(chars.findIndex(isInk), end + 1);
}

// A label that is never empty, without surrounding white space and control characters.
export function visible(text) {
  const inner = stripped([...text]);
  const core = inner.filter(c => !/[\p{Cc}\p{Cf}]/u.test(c) || c === '\u200c' || c === '\u200d');
  if (core.every(c => c === '\u200c' || c === '\u200d')) {
    if (isBlank(text)) return [...text].map(labelSpace).join('');
    return inner.map(c => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}`).join(' ');
  }
  const label = core.map(c => isBlank(c) && c !== ' ' ? labelSpace(c) : c).join('');
  return /^\p{M}/u.test(label) ? `◌${label}` : label;
}

// The first and the last word that each of `spans` overlaps, −1 for none.
export function touchedWords(words, spans) {
  return spans.map(([start, end]) => {
    const touched = words.flatMap(([from, to], i) => from < end && to > start ? [i] : []);
    return touched.length ? [touched[0], touched.at(-1)] : [-1, -1];
  });
}

// Words that share a token count as one: returns the merged spans and the merged word of each word.
export function mergedWords(words, touched) {
  const begins = words.map(() => true);
  for (const [first, last] of touched) for (let i = first + 1; first >= 0 && i <= last; i++) begins[i] = false;
  const spans = [], merged = words.map(([start, end], i) => {
    if (begins[i]) spans.push([start, end]);
    else spans.at(-1)[1] = Math.max(spans.at(-1)[1], end);
    return spans.length - 1;
  });
  return {spans, merged};
}
