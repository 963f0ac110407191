// An order of items: drag them, or move them with alt and the arrow keys.
import {elementOf} from '../explorer/controls.js';
import {courseButton, courseKeep, courseNames} from '../parts.js';
import {courseInterval, courseMeanOrder, courseNumber, courseTied, courseTrueOrder} from '../say.js';

class CourseOrderList {
  constructor({items, first, last}, {changed, tell, labelledBy}) {
    Object.assign(this, {items, changed, tell, locked: false, value: items.map((_, i) => i)});
    this.rows = items.map((text, item) => this.rowOf(text, item));
    this.list = elementOf('ol', 'cr-order');
    this.list.setAttribute('aria-labelledby', labelledBy);
    this.el = elementOf('div', 'cr-order-room', elementOf('div', 'cr-order-end', `↑ ${first}`), this.list,
      elementOf('div', 'cr-order-end', `↓ ${last}`));
    this.list.addEventListener('keydown', event => this.keyed(event));
    this.draw();
    this.rove(this.value[0], false);
  }

  rowOf(text, item) {
    const label = elementOf('span', 'cr-order-text', text), grip = elementOf('span', 'cr-grip', '⠿'),
      number = elementOf('span', 'cr-order-number'), handle = elementOf('button', 'cr-handle', grip, number, label);
    handle.type = 'button';
    label.dir = 'auto';
    grip.setAttribute('aria-hidden', 'true');
    const arrows = [['▲', -1], ['▼', 1]].map(([sign, by]) => {
      const arrow = courseButton(sign, () => this.move(item, by), 'cr-arrow');
      arrow.tabIndex = -1;
      arrow.setAttribute('aria-hidden', 'true');
      return arrow;
    });
    const el = elementOf('li', 'cr-order-item', handle, ...arrows);
    handle.addEventListener('pointerdown', event => this.drag(event, item, el, grip));
    return {el, handle, number, arrows};
  }

  set(value) {
    this.value = value ? [...value] : this.items.map((_, i) => i);
    this.draw();
  }

  lock(on) {
    this.locked = on;
    this.el.classList.toggle('cr-locked', on);
    for (const {arrows} of this.rows) for (const arrow of arrows) arrow.disabled = on;
  }

  rove(item, focus = true) {
    this.rows.forEach(({handle}, i) => { handle.tabIndex = i === item ? 0 : -1; });
    if (focus) this.rows[item].handle.focus();
  }

  focus() { this.rows.find(({handle}) => handle.tabIndex === 0).handle.focus(); }

  // Move the other items around the dragged one: a moved element loses focus and pointer.
  draw(held = null) {
    const at = this.value.indexOf(held), holds = at >= 0 ? this.rows[held].el : null;
    this.value.forEach((item, place) => {
      const {el, handle, number} = this.rows[item];
      if (el !== holds) this.list.insertBefore(el, place < at ? holds : null);
      number.textContent = String(place + 1);
      handle.setAttribute('aria-label',
        `${this.items[item]}, position ${place + 1} of ${this.items.length}; move it with Alt and the arrow keys`);
    });
  }

  place(item, to) {
    const from = this.value.indexOf(item);
    if (this.locked || to < 0 || to >= this.value.length || to === from) return false;
    this.value.splice(from, 1);
    this.value.splice(to, 0, item);
    this.draw(item);
    this.changed([...this.value]);
    return true;
  }

  move(item, by) {
    const moved = this.place(item, this.value.indexOf(item) + by);
    this.rove(item);
    const position = this.value.indexOf(item) + 1;
    if (moved) this.tell(`${this.items[item]} is now in position ${position} of ${this.items.length}.`);
  }

  keyed(event) {
    const item = this.rows.findIndex(({handle}) => handle === event.target);
    const by = {ArrowUp: -1, ArrowDown: 1}[event.key];
    if (item < 0 || event.ctrlKey || event.metaKey) return;
    const ends = {Home: this.value[0], End: this.value.at(-1)}[event.key];
    if (by && event.altKey) this.move(item, by);
    else if (by) this.rove(this.value[Math.max(0, Math.min(this.value.length - 1, this.value.indexOf(item) + by))]);
    else if (ends !== undefined && !event.altKey) this.rove(ends);
    else return;
    courseKeep(event);
  }

  // On touch screens only the grip drags; elsewhere a finger scrolls the page.
  drag(event, item, el, grip) {
    if (this.locked || event.button || event.pointerType === 'touch' && event.target !== grip) return;
    const {handle} = this.rows[item];
    handle.setPointerCapture(event.pointerId);
    el.classList.add('cr-dragged');
    const moved = ({clientY}) => {
      const others = this.value.filter(other => other !== item);
      const above = others.filter(other => {
        const box = this.rows[other].el.getBoundingClientRect();
        return clientY > (box.top + box.bottom) / 2;
      });
      this.place(item, above.length);
    };
    const from = this.value.indexOf(item);
    const ended = () => {
      handle.removeEventListener('pointermove', moved);
      el.classList.remove('cr-dragged');
      const to = this.value.indexOf(item);
      if (to !== from) this.tell(`${this.items[item]} is now in position ${to + 1} of ${this.items.length}.`);
      this.rove(item, document.activeElement === handle);
    };
    handle.addEventListener('pointermove', moved);
    handle.addEventListener('lostpointercapture', ended, {once: true});
  }
}

function courseColumn(name, cells, kind) {
  const head = elementOf('div', `cr-column-name cr-ink-${kind}`, name);
  return elementOf('div', 'cr-column', head, elementOf('ol', 'cr-column-items', ...cells));
}

function courseItem(text, note = '', tied = false) {
  const label = elementOf('span', '', text), el = elementOf('li', 'cr-column-item', label);
  label.dir = 'auto';
  if (note) el.append(elementOf('span', 'cr-count', note));
  if (tied) el.classList.add('cr-tied');
  return el;
}

// Orders side by side; tied items are joined.
function courseCompareOrder({items}, {first, second, truth, class: of}) {
  const columns = [], plain = value => value.map(item => courseItem(items[item]));
  if (first) columns.push(courseColumn(courseNames.first, plain(first), 'you'));
  if (second) columns.push(courseColumn(courseNames.second, plain(second), 'then'));
  if (of?.length) {
    const mean = courseMeanOrder(of, items.length);
    columns.push(courseColumn(courseNames.class, mean.map(({item, place}) =>
      courseItem(items[item], courseNumber(place))), 'class'));
  }
  if (truth) {
    const places = courseTrueOrder(truth), isOrder = truth.every(([low, high]) => low === high && low % 1 === 0);
    columns.push(courseColumn(courseNames.truth, places.map((item, i) => courseItem(items[item],
      isOrder ? '' : courseInterval(truth[item], {unit: '', step: .01}),
      i > 0 && courseTied(truth, places, i - 1))), 'true'));
  }
  const el = elementOf('div', 'cr-columns', ...columns);
  const anyTied = el.querySelector('.cr-tied');
  return elementOf('div', '', el,
    ...anyTied ? [elementOf('p', 'sv-note', '≈: tied with the item above, because their intervals overlap.')] : []);
}

export const courseOrder = {
  kind: 'order',
  missing: '',
  how: () => 'Drag the items, or hold Alt and press the arrow keys.',
  begin: ({items}) => items.map((_, i) => i),
  ask: (options, context) => new CourseOrderList(options, context),
  compare: courseCompareOrder,
  tellsAll: true,
};
