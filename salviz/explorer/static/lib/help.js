// What explains the explorer in place: a question mark in each panel, and the list of all keys.
import {claimKey} from './cells.js';
import {buttonOf, elementOf} from './controls.js';

// Keys that work wherever the focus is within the explorer.
export const commonKeys = [
  ['Tab', 'to the next control'], ['[ ]', 'previous, next recorded step'], ['{ }', 'previous, next sentence'],
  ['?', 'this list'], ['Esc', 'close an explanation, this list or the tour'],
];

// `keys`: [[keys, what they do]].
export function keyTable(keys) {
  const rows = keys.map(([names, does]) => {
    const term = elementOf('dt', '', ...names.split(' ').map(name => elementOf('kbd', '', name)));
    return elementOf('div', 'sv-key', term, elementOf('dd', '', does));
  });
  return elementOf('dl', 'sv-keys', ...rows);
}

// A button that shows and hides what it explains, which stands in the page below it and covers nothing.
export class Unfolding {
  constructor(text, label, ...children) {
    this.button = buttonOf(text, label, () => this.show(this.el.hidden));
    this.button.classList.add('sv-ask');
    this.el = elementOf('div', 'sv-help', ...children);
    this.el.setAttribute('role', 'region');
    this.el.setAttribute('aria-label', label);
    for (const el of [this.button, this.el]) el.addEventListener('keydown', e => this.closed(e));
    this.show(false);
  }

  show(on) {
    this.el.hidden = !on;
    this.button.setAttribute('aria-expanded', String(on));
  }

  closed(e) {
    if (e.key !== 'Escape' || this.el.hidden) return;
    claimKey(e);
    this.show(false);
    this.button.focus();
  }
}

// A panel's explanation; `help`: {says: two sentences, keys}, as its file exports it.
export function panelHelp({title, help: {says, keys}}) {
  return new Unfolding('?', `explain ${title}`, elementOf('p', 'sv-explained', says.join(' ')), keyTable(keys));
}

// All keys, panel by panel, of those that fit what is shown; `ask`: starts the tour.
export function allKeys(panels, ask) {
  const list = new Unfolding('Keys', 'all keys');
  const tour = buttonOf('Tour', 'show the tour', ask), close = buttonOf('Close', 'close the list of keys', () => {
    list.show(false);
    list.button.focus();
  });
  const part = (title, keys) => elementOf('section', '', elementOf('h4', 'sv-subtitle', title), keyTable(keys));
  const parts = panels.map(({title, help}) => part(title, help.keys));
  list.el.append(elementOf('div', 'sv-key-groups', part('Everywhere', commonKeys), ...parts),
    elementOf('p', 'sv-tour-buttons', tour, close));
  list.el.tabIndex = -1;
  list.fit = () => panels.forEach(({fitting}, i) => { parts[i].hidden = !fitting; });
  return list;
}
