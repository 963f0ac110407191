// Small shared elements.
import {elementOf} from '../explorer/controls.js';

// Stop a handled key from scrolling the page or triggering a JupyterLab shortcut.
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

// Keep the focus here when the focused button disappears, so that Tab continues from here.
export function courseRest(el) {
  el.tabIndex = -1;
  el.focus({preventScroll: true});
}

// Roving tabindex: Tab reaches one of `items`, the arrow keys move between them.
export function courseRove(items, at, focus = true) {
  items.forEach((item, i) => { item.tabIndex = i === at ? 0 : -1; });
  if (focus) items[at]?.focus();
}

export function courseTag(text, kind) { return elementOf('span', `cr-tag cr-tag-${kind}`, text); }

// Labels of the answers; `second` is the answer after the discussion.
export const courseNames = {first: 'you', second: 'you, later', class: 'class', truth: 'true'};

// Tags for the marks for which `is` returns true.
export function courseMarks({first, second, truth}, is) {
  return [first !== null && is(first) ? courseTag(courseNames.first, 'you') : null,
    second !== null && is(second) ? courseTag(courseNames.second, 'then') : null,
    truth !== null && is(truth) ? courseTag(courseNames.truth, 'true') : null].filter(Boolean);
}

let courseLastId = 0;

export function courseId() { return `salviz-course-${courseLastId += 1}`; }
