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

// One of `items` can be reached by Tab; the arrow keys move between them.
export function courseRove(items, at, focus = true) {
  items.forEach((item, i) => { item.tabIndex = i === at ? 0 : -1; });
  if (focus) items[at]?.focus();
}

export function courseTag(text, kind) { return elementOf('span', `cr-tag cr-tag-${kind}`, text); }

// Who has given what: names of marks as they stand in pictures, in lists and in tables.
export const courseNames = {first: 'you', second: 'you, after talking', class: 'class', truth: 'true'};

// What stands below the tags of a picture: the marks that are there.
export function courseMarks({first, second, truth}, is) {
  return [first !== null && is(first) ? courseTag(courseNames.first, 'you') : null,
    second !== null && is(second) ? courseTag('then', 'then') : null,
    truth !== null && is(truth) ? courseTag(courseNames.truth, 'true') : null].filter(Boolean);
}

let courseLastId = 0;

export function courseId() { return `salviz-course-${courseLastId += 1}`; }
