// One head of a model: a grid of layers and heads.
import {elementOf} from '../explorer/controls.js';
import {courseKeep, coursePlain, courseRove} from '../parts.js';

function courseGrid({layers, heads}, role, make) {
  const numbers = Array.from({length: heads}, (_, head) => elementOf('span', 'cr-grid-number', String(head)));
  const rows = Array.from({length: layers}, (_, layer) => {
    const row = elementOf('div', 'cr-grid-row', elementOf('span', 'cr-grid-number', String(layer)),
      ...Array.from({length: heads}, (_, head) => make(layer, head)));
    if (role) row.setAttribute('role', 'row');
    return row;
  });
  for (const el of [...numbers, ...rows.map(row => row.firstChild)]) el.setAttribute('aria-hidden', 'true');
  const top = elementOf('div', 'cr-grid-row', elementOf('span', 'cr-grid-corner', 'layer \\ head'), ...numbers);
  top.setAttribute('aria-hidden', 'true');
  const grid = elementOf('div', 'cr-grid', top, ...rows);
  grid.style.setProperty('--cr-heads', heads);
  if (role) grid.setAttribute('role', role);
  return elementOf('div', 'cr-grid-room', grid);
}

class CourseHeadGrid {
  constructor(options, {changed, tell, labelledBy}) {
    Object.assign(this, {options, changed, tell, cells: [], value: null, locked: false});
    this.el = courseGrid(options, 'grid', (layer, head) => {
      const cell = elementOf('span', 'cr-cell'), at = this.cells.length;
      cell.setAttribute('role', 'gridcell');
      cell.setAttribute('aria-label', `layer ${layer}, head ${head}`);
      cell.addEventListener('click', () => { courseRove(this.cells, at); this.choose(layer, head); });
      this.cells.push(cell);
      return cell;
    });
    this.grid = this.el.firstChild;
    this.grid.setAttribute('aria-labelledby', labelledBy);
    this.grid.addEventListener('keydown', event => this.keyed(event));
    courseRove(this.cells, 0, false);
    this.set(null);
  }

  set(value) {
    this.value = value;
    const at = value ? value[0] * this.options.heads + value[1] : -1;
    this.cells.forEach((cell, i) => {
      cell.setAttribute('aria-selected', String(i === at));
      cell.textContent = i === at ? '●' : '';
    });
    if (at >= 0) courseRove(this.cells, at, false);
  }

  lock(on) {
    this.locked = on;
    this.grid.setAttribute('aria-disabled', String(on));
    this.el.classList.toggle('cr-locked', on);
  }

  focus() { this.cells.find(cell => cell.tabIndex === 0).focus(); }

  choose(layer, head) {
    if (this.locked) return;
    this.set([layer, head]);
    this.tell(`Layer ${layer}, head ${head} chosen.`);
    this.changed(this.value);
  }

  keyed(event) {
    const at = this.cells.indexOf(event.target), {layers, heads} = this.options;
    if (at < 0 || !coursePlain(event)) return;
    const layer = Math.floor(at / heads), head = at % heads;
    const to = {ArrowRight: [layer, Math.min(head + 1, heads - 1)], ArrowLeft: [layer, Math.max(head - 1, 0)],
      ArrowDown: [Math.min(layer + 1, layers - 1), head], ArrowUp: [Math.max(layer - 1, 0), head],
      Home: [layer, 0], End: [layer, heads - 1]}[event.key];
    if (event.key === ' ' || event.key === 'Enter') this.choose(layer, head);
    else if (!to) return;
    else courseRove(this.cells, to[0] * heads + to[1]);
    courseKeep(event);
  }
}

// The best five heads are numbered; a ring marks the reader's answer.
function courseCompareHead(options, {first, second, truth}) {
  const is = (value, layer, head) => value?.[0] === layer && value[1] === head;
  const el = courseGrid(options, '', (layer, head) => {
    const rank = (truth ?? []).findIndex(best => is(best, layer, head));
    const cell = elementOf('span', 'cr-cell', rank < 0 ? '' : String(rank + 1));
    cell.classList.toggle('cr-true', rank === 0);
    cell.classList.toggle('cr-next', rank > 0);
    cell.classList.toggle('cr-you', is(first, layer, head));
    cell.classList.toggle('cr-then', is(second, layer, head));
    return cell;
  });
  el.setAttribute('aria-hidden', 'true');
  const says = [first ? 'Ring: your answer' : '', second ? 'dashed ring: your answer after the discussion' : '',
    truth?.length > 1 ? `1 to ${truth.length}: the best heads, in order` : truth ? '1: the true head' : ''];
  return elementOf('div', '', el, elementOf('p', 'sv-note', `${says.filter(Boolean).join('; ')}.`));
}

export const courseHead = {
  kind: 'head',
  missing: 'Choose a head first.',
  how: () => 'Choose one head: click it, or use the arrow keys and Space. Rows are layers, columns are heads.',
  ask: (options, context) => new CourseHeadGrid(options, context),
  compare: courseCompareHead,
};
