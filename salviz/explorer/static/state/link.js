// A view as text: the Python line that makes it, and the fragment of a page's address that opens it.
import {firstState, wholeState} from './state.js';

// What differs from a fresh view, with the sentence, the step and the head by their numbers. The theme is the reader's.
export function changedState(store, state) {
  const {theme, playing, ...all} = state.get(), changes = {};
  for (const [key, value] of Object.entries({...all, step: store.stepOf(state)})) {
    const named = ['probe', 'step', 'entry'].includes(key);
    if (value !== null && (named || JSON.stringify(value) !== JSON.stringify(firstState[key]))) changes[key] = value;
  }
  return changes;
}

function pythonValue(value) {
  if (value === null || value === undefined) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(', ')}]`;
  if (typeof value !== 'object') return JSON.stringify(value);
  return `{${Object.entries(value).map(([key, v]) => `${JSON.stringify(key)}: ${pythonValue(v)}`).join(', ')}}`;
}

export function pythonLine(store, state) {
  const compared = store.runs.length > 1 ? ', compare=other' : '';
  return `Explorer(run${compared}, state=${pythonValue(changedState(store, state))})`;
}

const linkPrefix = '#view=';

export function linkOf(store, state) {
  return linkPrefix + encodeURIComponent(JSON.stringify(changedState(store, state)));
}

function sameShape(value, first) {
  if (first === null || value === null) return typeof value !== 'function';
  return typeof value === typeof first && Array.isArray(value) === Array.isArray(first);
}

// The state that a fragment asks for, null where it asks for none; an address may hold anything.
export function stateOfLink(fragment) {
  if (!fragment.startsWith(linkPrefix)) return null;
  const state = JSON.parse(decodeURIComponent(fragment.slice(linkPrefix.length)));
  if (!state || typeof state !== 'object') throw new Error('it holds no view');
  const names = Object.keys(wholeState({}));
  const wrong = Object.keys(state).filter(name => !names.includes(name) || !sameShape(state[name], firstState[name]));
  if (wrong.length) throw new Error(`it holds ${wrong.join(', ')}, which is no part of a view`);
  return wholeState(state);
}
