// A view as text: the Python line that recreates it, and the address fragment that opens it.
import {firstState, wholeState} from './state.js';

// The differences from the default view, with the numbers of sentence, step and head. The theme is not included.
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

// The state encoded in a fragment, null if it encodes none; addresses are untrusted input.
export function stateOfLink(fragment) {
  if (!fragment.startsWith(linkPrefix)) return null;
  const state = JSON.parse(decodeURIComponent(fragment.slice(linkPrefix.length)));
  if (!state || typeof state !== 'object') throw new Error('it does not contain a view');
  const names = Object.keys(wholeState({}));
  const wrong = Object.keys(state).filter(name => !names.includes(name) || !sameShape(state[name], firstState[name]));
  if (wrong.length) throw new Error(`unknown or invalid view parameters: ${wrong.join(', ')}`);
  return wholeState(state);
}
