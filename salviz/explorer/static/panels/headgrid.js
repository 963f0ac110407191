// Buttons for the heads of all layers, and tokens as buttons: pressed ones are crossed out. One button of each group is
// a Tab stop; the arrow keys move between them.
import {buttonOf, elementOf} from '../lib/controls.js';
import {chipText, quoted} from '../lib/words.js';

// Moves the focus within `buttons`, rows of buttons, from the one that has it; returns false for other keys.
function moveFocus(buttons, {key, target, ctrlKey, metaKey, altKey}) {
  const row = buttons.findIndex(all => all.includes(target)), column = buttons[row]?.indexOf(target);
  const to = {ArrowRight: [row, column + 1], ArrowLeft: [row, column - 1], ArrowDown: [row + 1, column],
    ArrowUp: [row - 1, column], Home: [row, 0], End: [row, -1]}[key];
  if (row < 0 || !to || ctrlKey || metaKey || altKey) return false;
  const next = buttons[to[0]]?.at(to[1]);
  if (!next || to[1] === -1 && key === 'ArrowLeft') return true;
  for (const button of buttons.flat()) button.tabIndex = button === next ? 0 : -1;
  next.focus();
  return true;
}

// A group of toggle buttons. `draw(rows)` takes rows of {text, title, pressed, press}, and keeps the focus in place.
export class ToggleGrid {
  constructor(className, label) {
    this.rows = [];
    this.el = elementOf('div', className);
    this.el.setAttribute('role', 'group');
    this.el.setAttribute('aria-label', label);
    this.el.addEventListener('keydown', e => {
      if (!moveFocus(this.rows, e)) return;
      e.preventDefault();
      e.stopPropagation();
    });
  }

  draw(rows, disabled) {
    const shape = JSON.stringify(rows.map(row => row.map(({text, title}) => [text, title])));
    if (shape !== this.shape) this.build(rows);
    this.shape = shape;
    rows.forEach((row, r) => row.forEach(({pressed, press}, c) => {
      const button = this.rows[r][c];
      button.setAttribute('aria-pressed', String(pressed));
      Object.assign(button, {disabled, press});
    }));
  }

  build(rows) {
    this.rows = rows.map(row => row.map(({text, title}) => {
      const button = buttonOf('', title, () => button.press());
      button.append(elementOf('bdi', '', text));
      button.tabIndex = -1;
      return button;
    }));
    if (this.rows[0]?.[0]) this.rows[0][0].tabIndex = 0;
    this.el.replaceChildren(...this.rows.map(row => elementOf('div', 'sv-toggles', ...row)));
  }
}

export function tokenToggles(labels, chosen, press, meaning) {
  return [labels.map((label, i) => ({text: chipText(label), title: `${meaning}: token ${i}, ${quoted(label)}`,
    pressed: chosen.includes(i), press: () => press(i)}))];
}

// One row per layer: the layer itself, then its heads.
export function headToggles({layers, heads}, chosen, pressLayer, pressHead) {
  const numbers = count => Array.from({length: count}, (_, i) => i);
  return numbers(layers).map(layer => [
    {text: `Layer ${layer}`, title: `cross out all heads of layer ${layer}`, pressed: chosen.layers.includes(layer),
      press: () => pressLayer(layer)},
    ...numbers(heads).map(head => ({text: String(head), title: `cross out head ${head} of layer ${layer}`,
      pressed: chosen.layers.includes(layer) || chosen.heads.some(([l, h]) => l === layer && h === head),
      press: () => pressHead(layer, head)}))]);
}
