// Boxes and outlines that are drawn on the image of an answer, and the measures of a heat map inside them.
import {percent, shortNumber} from '../lib/colour.js';
import {buttonOf, choiceOf, elementOf, labelled, setText, svgNode} from '../lib/controls.js';
import {countWords} from '../lib/words.js';

// A box is [top, left, bottom, right], an outline [y, x, y, x, ...] with at least three points; both in pixels.
const markStep = 50, markPart = 4, markMost = 200;
const markKeys = 'ArrowUp ArrowDown ArrowLeft ArrowRight Delete';
const markHelp = 'Arrow keys move it, Shift and arrow keys change its size, Delete removes it.';

function isBox(mark) { return mark.length === 4; }

// The marks of an example in the state; addresses and saved views are untrusted.
export function marksOf(state, probe) {
  const marks = state.marks?.[probe], isMark = mark => Array.isArray(mark) && mark.every(Number.isFinite)
    && (isBox(mark) ? mark[0] < mark[2] && mark[1] < mark[3] : mark.length >= 6 && mark.length % 2 === 0);
  return Array.isArray(marks) ? marks.filter(isMark).slice(0, markMost) : [];
}

function pointsOf(mark) {
  if (!isBox(mark)) return Array.from({length: mark.length / 2}, (_, i) => [mark[2 * i], mark[2 * i + 1]]);
  const [top, left, bottom, right] = mark;
  return [[top, left], [top, right], [bottom, right], [bottom, left]];
}

// [top, left, bottom, right]
function edgesOf(mark) {
  const ys = pointsOf(mark).map(([y]) => y), xs = pointsOf(mark).map(([, x]) => x);
  return [Math.min(...ys), Math.min(...xs), Math.max(...ys), Math.max(...xs)];
}

// A change from `least` to `most`; none for a mark that is beyond both.
function within(change, least, most) {
  return least > most ? 0 : Math.max(least, Math.min(most, change));
}

// The columns at which an outline crosses the centres of row y, in order; pixels between pairs of them are inside.
function crossings(points, y) {
  return points.flatMap(([y0, x0], i) => {
    const [y1, x1] = points[(i + 1) % points.length];
    return (y0 <= y) === (y1 <= y) ? [] : [x0 + (y - y0) / (y1 - y0) * (x1 - x0)];
  }).sort((a, b) => a - b);
}

// The marked pixels, as `rationale_mask` computes them: those whose centre is inside a box or an outline.
export function markedPixels(marks, height, width) {
  const mask = new Uint8Array(height * width);
  for (const mark of marks) {
    const points = pointsOf(isBox(mark) ? mark.map(Math.round) : mark);
    for (let y = 0; y < height; y++) {
      const at = crossings(points, y + .5);
      for (let i = 0; i + 1 < at.length; i += 2)
        for (let x = Math.max(0, Math.ceil(at[i] - .5)); x < Math.min(width, at[i + 1] - .5); x++)
          mask[y * width + x] = 1;
    }
  }
  return mask;
}

// The pointing game, the energy inside, the marked fraction of the image, and the total of the map. The first two are
// undefined for a map of zeros; null without a marked pixel.
export function measuresInside(values, mask) {
  let largest = 0, total = 0, inside = 0, tops = 0, hits = 0, area = 0;
  for (let i = 0; i < values.length; i++) if (values[i] > largest) largest = values[i]; // reduce is slow
  const most = largest * (1 - 1e-6);
  for (let i = 0; i < mask.length; i++) {
    total += values[i];
    inside += mask[i] * values[i];
    area += mask[i];
    if (values[i] < most) continue;
    tops += 1;
    hits += mask[i];
  }
  return area ? {pointing: hits / tops, energy: inside / total, area: area / mask.length, total} : null;
}

export function measureWords(marks, measures) {
  if (!marks.length) return 'Draw boxes or outlines to measure how much of the map is inside them.';
  if (!measures) return 'No pixel of the image is marked.';
  if (!measures.total) return 'The map is 0 everywhere in the image, so nothing can be measured.';
  return `Inside ${countWords(marks.length, 'mark')}: energy ${percent(measures.energy)}, pointing game `
    + `${shortNumber(measures.pointing)}. A uniform map scores ${percent(measures.area)} on both metrics.`;
}

// Draws marks above `canvas` and lets the user draw, move and remove them.
export class MarkEditor {
  constructor(ctx, canvas) {
    Object.assign(this, {ctx, mode: 'off', marks: []});
    this.layer = svgNode('svg', {class: 'sv-marks', preserveAspectRatio: 'none'});
    this.layer.setAttribute('role', 'group');
    this.layer.setAttribute('aria-label', 'marks on the image');
    this.el = elementOf('div', 'sv-marks-place', canvas, this.layer);
    this.modes = choiceOf([['off', 'off'], ['box', 'boxes'], ['outline', 'outlines']], mode => this.setMode(mode));
    this.words = elementOf('p', 'sv-reading');
    this.adder = buttonOf('Add box', 'add a box in the middle of the image', () => this.addBox());
    this.bar = elementOf('div', 'sv-head sv-marks-bar', labelled('Draw', this.modes),
      this.adder,
      buttonOf('Remove all', 'remove all marks', () => this.store([], 'All marks were removed.')),
      buttonOf('Save marks', 'save the marks as a JSON file', () => this.save()));
    this.listen();
  }

  listen() {
    this.layer.addEventListener('pointerdown', e => this.begin(e));
    this.layer.addEventListener('pointermove', e => this.extend(e));
    this.layer.addEventListener('pointerup', e => this.finish(e));
    this.layer.addEventListener('pointercancel', () => this.cancel());
    this.layer.addEventListener('keydown', e => this.press(e));
  }

  setMode(mode) {
    this.mode = mode;
    this.layer.classList.toggle('sv-drawing', mode !== 'off');
  }

  // Shows the marks of an image with `height` x `width` pixels.
  show(probe, height, width) {
    Object.assign(this, {probe, height, width, marks: marksOf(this.ctx.state, probe)});
    const focused = this.focused ?? [...this.layer.children].indexOf(document.activeElement);
    this.focused = null;
    this.layer.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.layer.replaceChildren(...this.marks.map((mark, i) => {
      const node = this.shape(mark, 'sv-mark');
      node.setAttribute('tabindex', '0');
      node.setAttribute('role', 'img'); // no action on Enter
      node.setAttribute('aria-keyshortcuts', markKeys);
      node.setAttribute('aria-label', `${this.nameOf(i)}. ${markHelp}`);
      return node;
    }));
    if (focused >= 0) (this.layer.children[Math.min(focused, this.marks.length - 1)] ?? this.adder).focus();
    return this;
  }

  shape(mark, name) {
    const points = pointsOf(mark).map(([y, x]) => `${x},${y}`).join(' ');
    return svgNode('polygon', {class: name, points});
  }

  nameOf(i) {
    const ys = pointsOf(this.marks[i]).map(([y]) => Math.round(y)),
      xs = pointsOf(this.marks[i]).map(([, x]) => Math.round(x));
    return `${isBox(this.marks[i]) ? 'Box' : 'Outline'} ${i + 1}: rows ${Math.min(...ys)} to ${Math.max(...ys)}, `
      + `columns ${Math.min(...xs)} to ${Math.max(...xs)}`;
  }

  // `what` is announced, followed by the measures.
  store(marks, what) {
    this.notice = what;
    this.ctx.state.set({marks: {...this.ctx.state.marks, [this.probe]: marks}});
  }

  // Shows the measures of the map, and announces them after a change.
  measure(measures) {
    setText(this.words, measureWords(this.marks, measures));
    if (this.notice) this.ctx.announce(`${this.notice} ${this.words.textContent}`);
    this.notice = '';
  }

  placeOf(e) {
    const box = this.layer.getBoundingClientRect(), limit = (x, most) => Math.max(0, Math.min(most, Math.round(x)));
    return [limit((e.clientY - box.top) / box.height * this.height, this.height),
      limit((e.clientX - box.left) / box.width * this.width, this.width)];
  }

  begin(e) {
    if (this.mode === 'off' || e.button) return;
    this.layer.setPointerCapture(e.pointerId);
    this.path = [this.placeOf(e)];
    this.target = [...this.layer.children].indexOf(e.target);
    e.preventDefault();
  }

  extend(e) {
    if (!this.path) return;
    const [y, x] = this.placeOf(e), [beforeY, beforeX] = this.path.at(-1);
    if (y === beforeY && x === beforeX) return;
    if (this.mode === 'box') this.path.length = 1;
    this.path.push([y, x]);
    const draft = this.drawn();
    this.draft?.remove();
    this.draft = draft && this.layer.appendChild(this.shape(draft, 'sv-mark sv-draft'));
  }

  // The mark of the current path, null if it encloses nothing.
  drawn() {
    const ys = this.path.map(([y]) => y), xs = this.path.map(([, x]) => x);
    const box = [Math.min(...ys), Math.min(...xs), Math.max(...ys), Math.max(...xs)];
    if (box[0] === box[2] || box[1] === box[3]) return null;
    if (this.mode === 'box') return box;
    return new Set(this.path.map(String)).size > 2 ? this.path.flat() : null;
  }

  finish() {
    if (!this.path) return;
    const mark = this.drawn(), {target} = this;
    this.cancel();
    if (mark) this.insert(mark);
    else this.layer.children[target]?.focus();
  }

  cancel() {
    this.draft?.remove();
    Object.assign(this, {path: null, draft: null});
  }

  insert(mark) {
    if (this.marks.length >= markMost) {
      this.ctx.announce(`There are ${markMost} marks already. Remove one to add another.`);
      return;
    }
    this.focused = this.marks.length;
    this.store([...this.marks, mark], 'Mark added.');
  }

  addBox() {
    const {height, width} = this, tall = Math.ceil(height / markPart), wide = Math.ceil(width / markPart);
    const top = Math.floor((height - tall) / 2), left = Math.floor((width - wide) / 2);
    this.insert([top, left, top + tall, left + wide]);
  }

  press(e) {
    const i = [...this.layer.children].indexOf(e.target), across = Math.max(1, Math.round(this.width / markStep));
    if (i < 0 || e.ctrlKey || e.metaKey || e.altKey) return;
    const down = Math.max(1, Math.round(this.height / markStep));
    const move = {ArrowUp: [-down, 0], ArrowDown: [down, 0], ArrowLeft: [0, -across], ArrowRight: [0, across]}[e.key];
    if (e.key === 'Delete' || e.key === 'Backspace') {
      this.focused = i;
      this.store(this.marks.filter((_, k) => k !== i), 'Mark removed.');
    } else if (move) this.change(i, e.shiftKey ? this.resized(this.marks[i], move) : this.moved(this.marks[i], move));
    else return;
    e.preventDefault();
    e.stopPropagation();
  }

  // Moves the mark, at most to the border of the image.
  moved(mark, [down, across]) {
    const [top, left, bottom, right] = edgesOf(mark);
    const [y, x] = [within(down, -top, this.height - bottom), within(across, -left, this.width - right)];
    return mark.map((value, k) => value + (k % 2 ? x : y));
  }

  // Scales the mark from its upper left corner, at most to the border of the image.
  resized(mark, steps) {
    const [top, left, bottom, right] = edgesOf(mark), tall = bottom - top, wide = right - left;
    const down = within(steps[0], Math.min(0, 1 - tall), this.height - bottom);
    const across = within(steps[1], Math.min(0, 1 - wide), this.width - right);
    return mark.map((value, k) => k % 2 ? left + (value - left) * (wide + across) / wide
      : top + (value - top) * (tall + down) / tall);
  }

  // Replaces mark i.
  change(i, mark) {
    this.focused = i;
    this.marks = this.marks.map((other, k) => k === i ? mark : other);
    this.store(this.marks, `${this.nameOf(i)}.`);
  }

  save() {
    const anchor = elementOf('a'), text = JSON.stringify({[this.probe]: this.marks});
    Object.assign(anchor, {href: `data:application/json,${encodeURIComponent(text)}`,
      download: `salviz-marks-${this.probe}.json`});
    anchor.click();
    this.ctx.announce(`Saved as ${anchor.download}.`);
  }
}
