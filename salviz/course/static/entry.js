// The entry of a prediction, as in `salviz.course.session`: each step returns the next entry.
import {courseFits} from './score.js';

export const courseConfidences = ['guess', 'think', 'sure'];
export const courseSureness = {guess: 'a guess', think: 'I think so', sure: 'sure'};
export const courseStates = ['open', 'committed', 'discussed', 'revealed'];
export const courseWhyLength = 500;

export function courseNow() { return new Date().toISOString().replace(/\.\d+Z$/, 'Z'); }

export function courseNewEntry({id, kind}) {
  return {id, kind, state: 'open', first: null, second: null, revealed: null, skipped: false};
}

function courseOneAnswer({value, confidence, why}) {
  return {value, confidence, why: why.slice(0, courseWhyLength), time: courseNow()};
}

// Add the first answer, or the second one after the discussion.
export function courseAnswered(entry, answer) {
  if (entry.state === 'open') return {...entry, state: 'committed', first: courseOneAnswer(answer)};
  if (entry.state === 'committed') return {...entry, state: 'discussed', second: courseOneAnswer(answer)};
  return entry;
}

// A question without an answer is now skipped.
export function courseRevealed(entry) {
  if (entry.state === 'revealed') return entry;
  return {...entry, state: 'revealed', revealed: courseNow(), skipped: entry.first === null};
}

function courseIsAnswer(about, answer) {
  return courseFits(about, answer.value) && courseConfidences.includes(answer.confidence)
    && typeof answer.why === 'string' && typeof answer.time === 'string';
}

// Return a stored entry if it belongs to this question, else null; older pages and other people may have stored others.
export function courseEntryOf(about, stored) {
  const {id, kind, state, first, second} = stored ?? {};
  const fits = id === about.id && kind === about.kind && courseStates.includes(state)
    && [first, second].every(answer => !answer || courseIsAnswer(about, answer))
    && Boolean(first) === (state === 'committed' || state === 'discussed' || state === 'revealed' && !stored.skipped);
  return fits ? stored : courseNewEntry(about);
}
