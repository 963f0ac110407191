// Answers as a file, as a short code and of a class, as in `salviz.course.session`.
import {courseConfidences, courseNow, courseStates} from './entry.js';
import {courseClassFile, courseLargest, courseParsed, courseReadText} from './untrusted.js';

const courseTable = Uint32Array.from({length: 256}, (_, n) => {
  let c = n;
  for (let bit = 0; bit < 8; bit++) c = c & 1 ? 0xedb88320 ^ c >>> 1 : c >>> 1;
  return c >>> 0;
});

// CRC-32 of a text as eight hexadecimal digits.
export function courseChecksum(text) {
  let sum = 0xffffffff;
  for (const byte of new TextEncoder().encode(text)) sum = courseTable[(sum ^ byte) & 255] ^ sum >>> 8;
  return ((sum ^ 0xffffffff) >>> 0).toString(16).padStart(8, '0');
}

export function courseSorted(entries) {
  return Object.fromEntries(Object.entries(entries).sort(([a], [b]) => a < b ? -1 : a > b ? 1 : 0));
}

export function courseLessonOf(names) {
  return [...new Set(names.filter(name => name.includes('.')).map(name => name.split('.')[0]))].sort().join(',');
}

export function courseFile(nickname, entries) {
  const ids = Object.values(entries).map(({id}) => id).filter(Boolean).sort();
  return {salviz: 'answers', version: 1, nickname, lesson: courseLessonOf(Object.keys(entries)),
    set: courseChecksum(ids.join(',')), written: courseNow(), entries: courseSorted(entries)};
}

function courseCoded(entry) {
  if (!('state' in entry)) return [entry.kind, entry.passed ?? null];
  const answers = [entry.first, entry.second].filter(Boolean)
    .flatMap(({value, confidence}) => [value, courseConfidences.indexOf(confidence)]);
  return [entry.kind, entry.id ?? '', courseStates.indexOf(entry.state), ...answers];
}

// Escape text to ASCII, which can be pasted anywhere.
function courseAscii(text) {
  return text.replace(/[\u0080-\uffff]/g, c => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

export function courseCode({nickname, entries}) {
  const coded = Object.entries(entries).map(([name, entry]) => [name, courseCoded(entry)]);
  const text = courseAscii(JSON.stringify([nickname, Object.fromEntries(coded)]));
  const packed = btoa(text).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '');
  return `SVA1.${packed}.${courseChecksum(text)}`;
}

function courseDecoded([kind, id, state, ...rest]) {
  if (state === undefined) return {kind, passed: id};
  const answer = at => rest.length > at
    ? {value: rest[at], confidence: courseConfidences[rest[at + 1]], why: '', time: ''} : null;
  const name = courseStates[state], first = answer(0);
  return {id, kind, state: name, first, second: answer(2), revealed: null, skipped: name === 'revealed' && !first};
}

// Decode a code into an answer file without reasons and times; throw if it is invalid.
export function courseOfCode(code) {
  const [mark, packed, sum, ...more] = code.slice(0, courseLargest).replace(/\s+/g, '').split('.');
  if (mark !== 'SVA1' || !sum || more.length)
    throw new Error('An answer code starts with SVA1. and ends with its checksum.');
  let text = '';
  try { text = atob(packed.replaceAll('-', '+').replaceAll('_', '/')); } catch { /* the checksum below fails */ }
  if (courseChecksum(text) !== sum) throw new Error('This answer code is damaged; copy it again, starting from SVA1.');
  try {
    const [nickname, coded] = courseParsed(text);
    return courseFile(nickname,
      Object.fromEntries(Object.entries(coded).map(([name, one]) => [name, courseDecoded(one)])));
  } catch { throw new Error('This answer code does not contain answers.'); }
}

// Merge the answers of a class by question, without names, and list the files and entries that were left out.
export async function courseClassAnswers(files) {
  const classmates = {__proto__: null}, leftOut = [];
  for (const file of files) {
    try {
      const {answers, damaged} = courseClassFile(courseParsed(await courseReadText(file)));
      if (damaged) leftOut.push(`${file.name}: left out ${damaged} damaged entr${damaged === 1 ? 'y' : 'ies'}`);
      for (const [name, one] of Object.entries(answers)) {
        const of = classmates[name] ??= {...one, first: [], second: [], confidence: []};
        if (of.id !== one.id || of.kind !== one.kind) continue;   // an answer to another version of the question
        for (const list of ['first', 'second', 'confidence']) of[list].push(...one[list]);
      }
    } catch (error) { leftOut.push(`${file.name} ${error.message}`); }
  }
  return {classmates, leftOut};
}

// Download `text` as a file.
export function courseSave(name, text) {
  const anchor = document.createElement('a');
  anchor.href = URL.createObjectURL(new Blob([text], {type: 'application/json'}));
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 1000);
}
