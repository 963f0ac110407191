// Marks as files and codes, as in `salviz.course.marks`; one table of cases tests both.
import {courseParsed} from './untrusted.js';

export const marksVersion = 1;
const marksSigns = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';   // digits and letters, without I, L, O and U
// No two repeatable parts match the same characters, so that a search takes linear time.
const marksCodeForm = new RegExp('marks([0-9]{1,9}):([^:\\n\\r]*):[ \\t]*'
  + '((?:[0-9a-z]{1,2000}[-‐‑–—][ \\t\\r\\n]{0,80}){0,2000}[0-9a-z]{1,2000})', 'i');

// Clean a nickname for display, storage and comparison; '' if nothing is left.
export function marksNickname(name) {
  let text = '';
  for (const c of [...name].slice(0, 200).join('').normalize('NFC')) {
    if (/[\p{Z}\t\n\r\v\f:]/u.test(c)) text += ' ';
    else if (!/\p{C}/u.test(c)) text += c;
  }
  return [...text.split(' ').filter(Boolean).join(' ')].slice(0, 40).join('').trim();
}

// Fold the spellings of a nickname.
export function marksFolded(name) { return marksNickname(name).replace(/[A-Z]/g, c => c.toLowerCase()); }

export function marksFileName(nickname) {
  const plain = marksNickname(nickname).replace(/[^0-9A-Za-z_]+/g, '-').replace(/^-+|-+$/g, '');
  return `marks-${plain || 'nameless'}.json`;
}

export function marksDone(sheet) { return sheet.marks.filter(flags => flags !== null).length; }

function marksExcerpt(x) { return [...(JSON.stringify(x) ?? 'nothing')].slice(0, 60).join(''); }

function marksFlags(i, flags, words, most) {
  const where = `sentence ${i + 1}`;
  if (flags === null) return null;
  if (!Array.isArray(flags) || !flags.every(x => x === 0 || x === 1 || x === true || x === false))
    throw new Error(`${where} must be null or a list of flags, 0 or 1, got ${marksExcerpt(flags)}`);
  if (flags.length !== words) throw new Error(`${where} has ${flags.length} flags for ${words} words`);
  const marked = flags.filter(Boolean).length;
  if (marked > most) throw new Error(`${where} has ${marked} marks; at most ${most} are allowed`);
  return flags.map(Number);
}

// Return the sheet of a student, or throw; `set` is the result of `MarkSet.described`.
export function marksSheet(set, nickname, marks, source = '') {
  const name = typeof nickname === 'string' ? marksNickname(nickname) : '';
  if (!name) throw new Error(`the nickname must be a non-empty string, got ${marksExcerpt(nickname)}`);
  if (!Array.isArray(marks) || marks.length !== set.spans.length) {
    const count = Array.isArray(marks) ? `${marks.length} entries` : marksExcerpt(marks);
    throw new Error(`marks must have one entry for each of the ${set.spans.length} sentences, got ${count}`);
  }
  return {nickname: name, marks: marks.map((flags, i) => marksFlags(i, flags, set.spans[i].length, set.most)), source};
}

function marksCheckVersion(version, set, id) {
  if (version !== marksVersion)
    throw new Error(`has version ${marksExcerpt(version)} of the marks format; this version of salviz reads version `
      + marksVersion);
  if (id !== set.id)
    throw new Error(`belongs to another set of sentences (${marksExcerpt(id)} instead of ${marksExcerpt(set.id)})`);
}

export function marksFile(set, sheet) {
  const lines = sheet.marks.map(flags => flags === null ? 'null' : JSON.stringify(flags));
  const head = `"salviz": "marks", "version": ${marksVersion}, "set": "${set.id}"`;
  return `{${head}, "nickname": ${JSON.stringify(sheet.nickname)}, "marks": [\n  ${lines.join(',\n  ')}]}\n`;
}

export function marksReadFile(set, text, source = '') {
  const contents = courseParsed(text);
  if (contents === null || typeof contents !== 'object' || contents.salviz !== 'marks')
    throw new Error('is valid JSON, but not a marks file');
  marksCheckVersion(contents.version ?? null, set, contents.set ?? null);
  return marksSheet(set, contents.nickname ?? null, contents.marks ?? null, source);
}

function marksChoose(n, k) {
  if (k > n) return 0n;
  let out = 1n;
  for (let i = 0; i < k; i++) out = out * BigInt(n - i) / BigInt(i + 1);
  return out;
}

// The number of sets of k words, for k up to `most`.
function marksPlaceSizes(n, most) {
  return Array.from({length: Math.min(n, most) + 1}, (_, k) => marksChoose(n, k));
}

function marksSum(numbers) { return numbers.reduce((a, b) => a + b, 0n); }

// Encode a sentence as a number: 0 if not done, then ordered by the number of marked words, then by the words.
function marksDigit(flags, most) {
  if (flags === null) return 0n;
  const at = flags.flatMap((x, i) => x ? [i] : []);
  return 1n + marksSum(marksPlaceSizes(flags.length, most).slice(0, at.length))
    + marksSum(at.map((c, i) => marksChoose(c, i + 1)));
}

function marksFlagsOf(digit, n, most) {
  if (digit === 0n) return null;
  const flags = Array(n).fill(0);
  let rest = digit - 1n, k = 0;
  for (const size of marksPlaceSizes(n, most)) {
    if (rest < size) break;
    [rest, k] = [rest - size, k + 1];
  }
  for (let i = k; i > 0; i--) {
    let at = n - 1;
    while (marksChoose(at, i) > rest) at--;
    flags[at] = 1;
    rest -= marksChoose(at, i);
  }
  return flags;
}

function marksStates(set) { return set.spans.map(words => 1n + marksSum(marksPlaceSizes(words.length, set.most))); }

function marksPayloadLength(set) {
  const largest = marksStates(set).reduce((a, b) => a * b, 1n) - 1n;
  return Math.ceil((largest === 0n ? 0 : largest.toString(2).length) / 5);
}

function marksInSigns(number, length) {
  let text = '';
  for (let i = 0; i < length; i++, number >>= 5n) text = marksSigns[Number(number & 31n)] + text;
  return text;
}

function marksCrc(text) {
  let crc = 0xffffffff;
  for (const byte of new TextEncoder().encode(text)) {
    crc ^= byte;
    for (let i = 0; i < 8; i++) crc = crc & 1 ? crc >>> 1 ^ 0xedb88320 : crc >>> 1;
  }
  return (crc ^ 0xffffffff) >>> 0;
}

function marksCheckSigns(nickname, body) {
  return marksInSigns(BigInt(marksCrc(`${marksVersion}:${marksFolded(nickname)}:${body}`)), 7);
}

export function marksCode(set, sheet) {
  const states = marksStates(set);
  const number = sheet.marks.reduce((sum, flags, i) => sum * states[i] + marksDigit(flags, set.most), 0n);
  let body = set.id + marksInSigns(number, marksPayloadLength(set));
  body += marksCheckSigns(sheet.nickname, body);
  return `marks${marksVersion}:${sheet.nickname}:${body.match(/.{1,6}/g).join('-')}`;
}

export function marksReadCode(set, text, source = '') {
  const match = marksCodeForm.exec(text);
  if (!match) throw new Error(`is not a code; a code starts with marks${marksVersion}:`);
  if (Number(match[1]) !== marksVersion) marksCheckVersion(Number(match[1]), set, set.id);
  const typed = match[3].toUpperCase().replace(/[^0-9A-Z]/g, '').replace(/O/g, '0').replace(/[IL]/g, '1');
  const body = typed.slice(0, -7), length = 6 + marksPayloadLength(set) + 7;
  if (![...typed].every(c => marksSigns.includes(c)) || typed.slice(-7) !== marksCheckSigns(match[2], body)) {
    const cut = typed.length === length ? '' : ` (${typed.length} characters; codes of this class have ${length})`;
    throw new Error(`does not match its checksum: a character or nickname is wrong, or a part is missing${cut}`);
  }
  marksCheckVersion(marksVersion, set, body.slice(0, 6));
  if (typed.length !== length)
    throw new Error(`has ${typed.length} characters; codes of this class have ${length}`);
  let number = 0n;
  for (const c of body.slice(6)) number = number << 5n | BigInt(marksSigns.indexOf(c));
  const states = marksStates(set), marks = [];
  for (let i = states.length - 1; i >= 0; i--) {
    marks.unshift(marksFlagsOf(number % states[i], set.spans[i].length, set.most));
    number /= states[i];
  }
  if (number) throw new Error('does not match these sentences');
  return marksSheet(set, match[2], marks, source);
}

export function marksCodesIn(text) {
  return [...text.matchAll(new RegExp(marksCodeForm.source, 'gi'))].map(match => match[0]);
}
