// Help within the explorer: a question mark in each panel, and the list of all keyboard shortcuts.
import {claimKey} from './cells.js';
import {buttonOf, elementOf} from './controls.js';

// Keys that work wherever the focus is within the explorer.
export const commonKeys = [
  ['Tab', 'next control'], ['[ ]', 'previous or next recorded step'], ['{ }', 'previous or next sentence'],
  ['?', 'show this list'], ['Esc', 'close help, this list or the tour'],
];

// `keys`: [[keys, action]].
export function keyTable(keys) {
  const rows = keys.map(([names, does]) => {
    const term = elementOf('dt', '', ...names.split(' ').map(name => elementOf('kbd', '', name)));
    return elementOf('div', 'sv-key', term, elementOf('dd', '', does));
  });
  return elementOf('dl', 'sv-keys', ...rows);
}

// A button that shows and hides an explanation, which is inserted below it and covers nothing.
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

// The help of a panel; `help`: {says: two sentences, keys}, as exported by the panel's file.
export function panelHelp({title, help: {says, keys}}) {
  return new Unfolding('?', `help for ${title}`, elementOf('p', 'sv-explained', says.join(' ')), keyTable(keys));
}

// All keys, grouped by panel, for the panels in view; `ask` starts the tour.
export function allKeys(panels, ask) {
  const list = new Unfolding('Keys', 'keyboard shortcuts');
  const tour = buttonOf('Start tour', 'start the tour', ask);
  const close = buttonOf('Close', 'close the keyboard shortcuts', () => {
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
