// Read files from other people within limits, and remove characters that change how text is displayed; as in
// `salviz.core.untrusted` and `salviz.course.session`.
import {courseConfidences, courseStates} from './entry.js';

export const courseLargest = 1000000;   // bytes of a file, characters of a text
const courseDeepest = 20, courseMostEntries = 1000, courseMostAnswers = 2000;

const courseEscapes = /\x1b\][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]/g;
const courseBreaks = /\r\n|[\t-\r\x1c-\x1e\x85\u2028\u2029]/g;
const courseUnseen = /[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\p{Cs}]/gu;

// Return one line of text without control characters, escape sequences and direction overrides.
export function coursePrintable(text) {
  return text.replace(courseEscapes, '').replace(courseBreaks, ' ').replace(courseUnseen, '');
}

// Return the text of a file; errors do not contain its name.
export async function courseReadText(file) {
  if (file.size > courseLargest) throw new Error('is larger than 1 MB');
  let bytes;
  try { bytes = await file.arrayBuffer(); } catch { throw new Error('cannot be opened'); }   // such as a folder
  try { return new TextDecoder('utf-8', {fatal: true}).decode(bytes); } catch {
    throw new Error('is not UTF-8 encoded');
  }
}

function courseIsObject(x) { return x !== null && typeof x === 'object' && !Array.isArray(x); }

function courseNested(x) { return Object.values(x).filter(part => part !== null && typeof part === 'object'); }

// Parse JSON, or throw.
export function courseParsed(text) {
  let found;
  try { found = JSON.parse(text.replace(/^\ufeff/, '')); } catch { throw new Error('is not JSON'); }
  let level = courseNested([found]);
  for (let depth = 0; depth < courseDeepest; depth++) level = level.flatMap(courseNested);
  if (level.length) throw new Error('is nested too deeply');
  return found;
}

export function courseIsNickname(nickname) { return /^[A-Za-z0-9][A-Za-z0-9_-]{0,23}$/.test(nickname); }

function courseIsText(x) { return typeof x === 'string' && !/\p{Cs}/u.test(x); }

function courseIsPlace(x) { return Number.isInteger(x) && x >= 0 && x < 10000; }

function courseArePlaces(x) { return Array.isArray(x) && x.length <= 100 && x.every(courseIsPlace); }

function courseIsFinite(x) { return typeof x === 'number' && Math.abs(x) < 1e15; }

const courseShapes = new Map(Object.entries({words: courseArePlaces, head: courseArePlaces, order: courseArePlaces,
  choice: courseIsPlace, number: courseIsFinite, slope: courseIsFinite}));   // of answers to each kind of prediction

function courseHasShape(answer, kind) {
  if (answer === null || answer === undefined) return true;
  return courseIsObject(answer) && courseShapes.get(kind)(answer.value) && courseConfidences.includes(answer.confidence)
    && [answer.why ?? '', answer.time ?? ''].every(text => typeof text === 'string');
}

// Return whether `entry` is a valid entry of an answer file, for any question.
export function courseIsEntry(entry) {
  if (!courseIsObject(entry) || !courseIsText(entry.kind)) return false;
  if (!courseShapes.has(entry.kind)) return true;   // a record
  return courseIsText(entry.id ?? '') && courseStates.includes(entry.state)
    && [entry.first, entry.second].every(answer => courseHasShape(answer, entry.kind));
}

// Return whether this is a valid list of class answers to one question.
export function courseIsOfClass(of) {
  if (!courseIsObject(of) || !courseShapes.has(of.kind) || !courseIsText(of.id)) return false;
  const {first, second, confidence} = of;
  const areLists = [first, second, confidence].every(list => Array.isArray(list) && list.length === first.length);
  return areLists && first.length <= courseMostAnswers && [...first, ...second].every(courseShapes.get(of.kind))
    && confidence.every(x => courseConfidences.includes(x));
}

// Return the valid `entries` by name.
export function courseSound(entries, isSound) {
  const pairs = courseIsObject(entries) ? Object.entries(entries) : [];
  return Object.fromEntries(pairs.filter(([, entry]) => isSound(entry)));
}

function courseFirstAnswers(entries) {
  const answered = Object.entries(entries).filter(([, {kind, first}]) => courseShapes.has(kind) && first);
  return Object.fromEntries(answered.map(([name, {id, kind, first, second}]) => [name, {id: id ?? '', kind,
    first: [first.value], second: [(second ?? first).value], confidence: [first.confidence]}]));
}

// Return the valid entries of a file and the number of invalid ones, or throw.
function courseEntries({version, entries}, isSound) {
  if (version !== 1) throw new Error('has an unsupported version; only version 1 can be read');
  if (!courseIsObject(entries)) throw new Error('does not contain an “entries” object');
  const count = Object.keys(entries).length;
  if (count > courseMostEntries) throw new Error(`has ${count} entries; at most ${courseMostEntries} are allowed`);
  const sound = courseSound(entries, isSound);
  return {sound, damaged: count - Object.keys(sound).length};
}

// Read an answer file or a class file: {answers, damaged: number of entries left out}; throw if it is neither.
export function courseClassFile(contents) {
  const isClass = contents?.salviz === 'class-answers';
  if (!isClass && contents?.salviz !== 'answers') throw new Error('is not an answer file');
  const {sound, damaged} = courseEntries(contents, isClass ? courseIsOfClass : courseIsEntry);
  return {answers: isClass ? sound : courseFirstAnswers(sound), damaged};
}

// Read the answer file of one student: {nickname, entries, damaged: number of entries left out}; throw if it is
// invalid.
export function courseAnswersFile(contents) {
  const {sound, damaged} = courseEntries(contents, courseIsEntry);
  if (typeof contents.nickname !== 'string' || !courseIsNickname(contents.nickname))
    throw new Error('needs a nickname of 1 to 24 characters: a to z, digits, - and _');
  return {nickname: contents.nickname, entries: sound, damaged};
}
