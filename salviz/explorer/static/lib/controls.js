// Building blocks of panels: elements and form controls that report their value.

export function elementOf(tag, className = '', ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
  return node;
}

// A labelled control; `control` is the <input> or <select> inside.
export function labelled(text, control, className = 'sv-field') {
  const label = document.createElement('label');
  label.className = className;
  if (control.type === 'checkbox') label.append(control, text);
  else label.append(text, control);
  return label;
}

export function choiceOf(entries, onChange) {
  const select = document.createElement('select');
  select.append(...entries.map(([value, text]) => new Option(text, value)));
  select.addEventListener('change', () => onChange(select.value));
  return select;
}

// Replaces the entries only if they changed, so that an open list stays open.
export function fillChoice(select, entries, value) {
  const text = JSON.stringify(entries);
  if (select.dataset.entries !== text) {
    select.dataset.entries = text;
    select.replaceChildren(...entries.map(([v, name]) => new Option(name, v)));
  }
  select.value = String(value);
}

export function tickBox(onChange) {
  const box = document.createElement('input');
  box.type = 'checkbox';
  box.addEventListener('change', () => onChange(box.checked));
  return box;
}

export function rangeOf(most, onChange) {
  const range = document.createElement('input');
  Object.assign(range, {type: 'range', min: 0, max: most, step: 1, value: 0});
  range.addEventListener('input', () => onChange(Number(range.value)));
  return range;
}

export function buttonOf(text, title, onClick) {
  const button = document.createElement('button');
  Object.assign(button, {type: 'button', textContent: text, title});
  button.setAttribute('aria-label', title);
  button.addEventListener('click', onClick);
  return button;
}

// The height limit in pixels that a style sheet sets for a drawing in `el`; `most` if it sets none.
export function tallest(el, most) { return Number(getComputedStyle(el).getPropertyValue('--sv-tallest')) || most; }

export function svgNode(tag, attributes, title = '') {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (title) node.append(svgNode('title', {}));
  if (title) node.firstChild.textContent = title;
  return node;
}
