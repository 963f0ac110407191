// Token text that is safe to display, numbers as text, and the page elements shared by the text panels.
import {cssColour, scaleTicks, shortNumber} from './colour.js';
import {elementOf} from './controls.js';

// Joiners connect emoji and Indic or Arabic letters; anywhere else they would be invisible.
const joinedLetters =
  '\\p{Extended_Pictographic}\\p{Emoji_Modifier}\\uFE0F'
  + '\\p{Script=Arabic}\\p{Script=Devanagari}\\p{Script=Bengali}\\p{M}';
const joiner = `(?<=[${joinedLetters}])\\p{Join_Control}(?=[\\p{L}\\p{Extended_Pictographic}])`;
const unseen = new RegExp(`${joiner}|[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Co}\\p{Zl}\\p{Zp}\\u115F\\u1160\\u2800\\u3164\\uFFA0]`,
  'gu');
const joins = new RegExp(joiner, 'u');
const seenMarks = {'\n': '↵', '\t': '⇥', '\r': '␍'};

function unseenMark(character, at, text) {
  if (/\p{Join_Control}/u.test(character) && joins.test(text.slice(Math.max(0, at - 2), at + 3))) return character;
  const code = character.codePointAt(0);
  if (seenMarks[character]) return seenMarks[character];
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? '␡' : `‹U+${code.toString(16).toUpperCase().padStart(4, '0')}›`;
}

// Replaces zero-width, control and direction characters by marks, so that nothing is silently invisible.
export function visibleText(text) {
  if (text === '') return '∅';
  if (/^\s+$/u.test(text)) return [...text].map(c => seenMarks[c] ?? '␣').join('');
  return text.replace(unseen, unseenMark).replace(/^\p{M}/u, '◌$&');
}

// Cuts text between grapheme clusters, never within one.
export function cutText(text, most = 28) {
  if (text.length <= most) return text;
  const letters = [...new Intl.Segmenter().segment(text.slice(0, most * 8))].map(s => s.segment);
  let shortened = '';
  for (const letter of letters.slice(0, most)) {
    if (shortened.length + letter.length > most * 4) break;
    shortened += letter;
  }
  return shortened.length < text.length ? `${shortened}…` : text;
}

const wordsRtl = /^[^\p{L}]*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
export function directionOf(texts) { return wordsRtl.test(texts.join(' ').slice(0, 1000)) ? 'rtl' : 'ltr'; }

export function numberWords(x, digits = 3) {
  if (!Number.isFinite(x)) return 'undefined';
  if (x === 0) return '0';
  const size = Math.abs(x), text = size >= 1e-4 && size < 1e5 ? String(Number(x.toPrecision(digits)))
    : x.toExponential(digits - 1);
  return text.replace(/-/g, '−');
}

export function countWords(n, one, many = `${one}s`) { return `${n} ${n === 1 ? one : many}`; }

// The text of a token chip: short, without invisible characters. Only the beginning of a very long token is processed.
export function chipText(label, most = 28) {
  const shown = cutText(visibleText(label.slice(0, 400)), most);
  return label.length > 400 && !shown.endsWith('…') ? `${shown}…` : shown;
}

export function isCut(label, most = 28) { return label.length > 400 || chipText(label, most) !== visibleText(label); }
export function quoted(label, most = 28) { return `\u2068‘${chipText(label, most)}’\u2069`; }

// Quoted token texts, at most `most` of them.
export function listWords(texts, most = 6) {
  const shown = texts.slice(0, most).map(t => quoted(t)).join(' ');
  return texts.length > most ? `${shown} and ${texts.length - most} more` : shown;
}

// The words of a sentence: [{tokens, special, label, word}]; each special token is a group of its own.
export function wordGroups(probe) {
  const groups = [];
  probe.word_ids.forEach((word, i) => {
    const last = groups.at(-1);
    if (word >= 0 && last?.word === word) last.tokens.push(i);
    else groups.push({word, tokens: [i], special: word < 0, label: word >= 0 ? probe.words[word] : probe.labels[i]});
  });
  return groups;
}

function channelLight(c) {
  const x = c / 255;
  return x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
}

// The WCAG relative luminance of a packed colour.
export function luminanceOf(packed) {
  return .2126 * channelLight(packed & 255) + .7152 * channelLight((packed >> 8) & 255)
    + .0722 * channelLight((packed >> 16) & 255);
}

// Black or white, whichever has more contrast; one of them has a contrast of at least 4.5.
export function inkOn(packed) { return luminanceOf(packed) > .179 ? '#000000' : '#ffffff'; }

export function paintToken(node, packed) {
  const background = packed === null ? '' : cssColour(packed);
  if (node.dataset.fill === background) return;
  node.dataset.fill = node.style.backgroundColor = background;
  node.style.color = packed === null ? '' : inkOn(packed);
}

// Older runs name the attribution but not the meaning of its numbers.
const oldMeanings = {gradient: 'slope', gradient_norm: 'size', gradient_abs: 'size'};

// The name of an attribution for readers; names of Captum, such as captum.Lime(n_samples=20), stay as they are.
export const attributionName = method => method?.startsWith('captum.') ? method : method?.replaceAll('_', ' ');

// Explains the colours of a saliency map, by the meaning of its numbers that was recorded with it.
export function signWords(info, signal = false) {
  const {saliency_method: method, saliency_says: says = oldMeanings[method], words: {score, sign}} = info;
  const what = signal ? 'value' : 'token';
  if (says === 'size') return `the stronger the colour, the more ${score} depends on the ${what}.`;
  if (says === 'weight') return `the stronger the colour, the more attention the ${what} receives.`;
  if (says === 'chance') return 'the values are random, so the colours have no meaning.';
  if (says === 'slope' || says === 'attention_slope') {
    const raised = says === 'attention_slope' ? 'attention to a token' : signal ? 'the value' : 'the embedding';
    return `raising ${raised} raises ${score} where the colour is orange and lowers it where the colour is blue.`;
  }
  return sign;
}

// Repeats the row names, which precede the first line of `line`, before each further line.
export function repeatNames(line) {
  for (const old of line.querySelectorAll(':scope > .sv-again')) old.remove();
  const names = line.firstElementChild;
  if (!names?.matches('.sv-line-names, .sv-answer-names')) return;
  let top = names.offsetTop;
  for (const column of [...line.children].slice(1)) {
    if (column.offsetTop <= top) continue;
    const again = names.cloneNode(true);
    again.classList.add('sv-again');
    again.setAttribute('aria-hidden', 'true');
    column.before(elementOf('span', 'sv-again sv-line-break'), again);
    top = again.offsetTop;
  }
}

// A colour scale as a bar with numbers below it. `of`: what the scale covers, where that can be chosen.
export function scaleBar(scale, of = '') {
  const bar = elementOf('div', 'sv-scale-bar'), ticks = elementOf('div', 'sv-scale-ticks');
  const stops = Array.from({length: 33}, (_, i) => cssColour(scale.table[Math.round(255 * i / 32)]));
  bar.style.backgroundImage = `linear-gradient(to right, ${stops.join(', ')})`;
  for (const [value, place] of scaleTicks(scale, .16)) {
    const tick = elementOf('span', 'sv-scale-tick', shortNumber(value));
    tick.style.left = `${100 * place}%`;
    tick.dataset.end = place === 0 ? 'low' : place === 1 ? 'high' : '';
    ticks.append(tick);
  }
  const name = [scale.linear ? '' : 'square-root scale', of].filter(Boolean).join(' ');
  const kind = elementOf('div', 'sv-scale-kind', name);
  const el = elementOf('div', 'sv-scale', kind, bar, ticks);
  el.dir = 'ltr';
  return el;
}
