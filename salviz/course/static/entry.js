// The entry of a prediction, as in `salviz.course.session`: each step makes the next entry of the one before.
import {courseFits} from './score.js';

export const courseConfidences = ['guess', 'think', 'sure'];
export const courseStates = ['open', 'committed', 'discussed', 'revealed'];
export const courseWhyLength = 500;

export function courseNow() { return new Date().toISOString().replace(/\.\d+Z$/, 'Z'); }

export function courseNewEntry({id, kind}) {
  return {id, kind, state: 'open', first: null, second: null, revealed: null, skipped: false};
}

function courseOneAnswer({value, confidence, why}) {
  return {value, confidence, why: why.slice(0, courseWhyLength), time: courseNow()};
}

// The first answer, and after it one that follows a talk with a neighbour.
export function courseAnswered(entry, given) {
  if (entry.state === 'open') return {...entry, state: 'committed', first: courseOneAnswer(given)};
  if (entry.state === 'committed') return {...entry, state: 'discussed', second: courseOneAnswer(given)};
  return entry;
}

// Who has not answered by now has skipped the question.
export function courseRevealed(entry) {
  if (entry.state === 'revealed') return entry;
  return {...entry, state: 'revealed', revealed: courseNow(), skipped: entry.first === null};
}

function courseIsAnswer(about, given) {
  return courseFits(about, given.value) && courseConfidences.includes(given.confidence)
    && typeof given.why === 'string' && typeof given.time === 'string';
}

// What was stored by an older page, or by somebody else, is an entry to this question, or there is none.
export function courseEntryOf(about, kept) {
  const {id, kind, state, first, second} = kept ?? {};
  const fits = id === about.id && kind === about.kind && courseStates.includes(state)
    && [first, second].every(given => !given || courseIsAnswer(about, given))
    && Boolean(first) === (state === 'committed' || state === 'discussed' || state === 'revealed' && !kept.skipped);
  return fits ? kept : courseNewEntry(about);
}
