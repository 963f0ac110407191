// Small pieces of page that several kinds of the course share.
import {elementOf} from '../explorer/controls.js';

// A key that is handled here is no shortcut of JupyterLab's, and scrolls nothing.
export function courseKeep(event) {
  event.preventDefault();
  event.stopPropagation();
}

export function coursePlain(event) { return !(event.altKey || event.ctrlKey || event.metaKey); }

export function courseButton(text, onClick, className = '') {
  const button = elementOf('button', className, text);
  button.type = 'button';
  button.addEventListener('click', onClick);
  return button;
}

// Where the focus stays when the button that had it goes away: Tab goes on from there.
export function courseRest(el) {
  el.tabIndex = -1;
  el.focus({preventScroll: true});
}

// One of `items` can be reached by Tab; the arrow keys move between them.
export function courseRove(items, at, focus = true) {
  items.forEach((item, i) => { item.tabIndex = i === at ? 0 : -1; });
  if (focus) items[at]?.focus();
}

export function courseTag(text, kind) { return elementOf('span', `cr-tag cr-tag-${kind}`, text); }

// Who has given what, in pictures and in lists; `second` came after talking to a neighbour.
export const courseNames = {first: 'you', second: 'you later', class: 'class', truth: 'true'};

// Tags of those of the marks that `is` says are here.
export function courseMarks({first, second, truth}, is) {
  return [first !== null && is(first) ? courseTag(courseNames.first, 'you') : null,
    second !== null && is(second) ? courseTag(courseNames.second, 'then') : null,
    truth !== null && is(truth) ? courseTag(courseNames.truth, 'true') : null].filter(Boolean);
}

let courseLastId = 0;

export function courseId() { return `salviz-course-${courseLastId += 1}`; }
