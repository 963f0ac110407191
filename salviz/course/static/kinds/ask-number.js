// A number: a slider and a field with the same value.
import {elementOf, svgNode} from '../explorer/controls.js';
import {courseNames} from '../parts.js';
import {courseInterval, courseNumber} from '../say.js';

// Round to the nearest allowed number.
export function courseSnap(x, {low, high, step}) {
  const steps = Math.round((x - low) / step);
  return Math.max(low, Math.min(high, Number((low + steps * step).toFixed(9))));
}

class CourseNumberField {
  constructor(options, {changed, tell, labelledBy}) {
    Object.assign(this, {options, changed, tell});
    const {low, high, step, unit} = options, limits = {min: low, max: high, step};
    this.range = Object.assign(document.createElement('input'), {type: 'range', ...limits});
    this.field = Object.assign(document.createElement('input'), {type: 'number', ...limits, inputMode: 'decimal'});
    this.range.setAttribute('aria-labelledby', labelledBy);
    this.field.setAttribute('aria-labelledby', labelledBy);
    this.range.addEventListener('input', () => this.choose(Number(this.range.value)));
    this.range.addEventListener('keydown', event => {
      if (this.value !== null || ![' ', 'Enter'].includes(event.key)) return;
      event.preventDefault();
      this.choose(Number(this.range.value));
    });
    this.range.addEventListener('pointerup', () => this.choose(Number(this.range.value)));
    this.field.addEventListener('input', () => this.typed());
    this.field.addEventListener('blur', () => this.set(this.value));
    const ends = elementOf('div', 'cr-range-ends', elementOf('span', '', courseNumber(low, unit, step)),
      elementOf('span', '', courseNumber(high, unit, step)));
    this.el = elementOf('div', 'cr-number', elementOf('div', 'cr-range', this.range, ends),
      elementOf('label', 'cr-number-field', this.field, unit));
    this.set(null);
  }

  set(value) {
    const {low, high, step, unit} = this.options;
    this.value = value;
    this.range.value = String(value ?? (low + high) / 2);
    this.field.value = value === null ? '' : String(value);
    this.range.classList.toggle('cr-unset', value === null);
    this.range.setAttribute('aria-valuetext', value === null ? 'not answered yet' : courseNumber(value, unit, step));
  }

  lock(on) { this.range.disabled = this.field.disabled = on; }

  focus() { this.range.focus(); }

  choose(x) {
    if (this.range.disabled) return;
    this.set(courseSnap(x, this.options));
    this.changed(this.value);
  }

  // Do not overwrite the field while somebody types.
  typed() {
    const {low, high, unit, step} = this.options, x = this.field.valueAsNumber;
    const fits = Number.isFinite(x) && x >= low && x <= high;
    if (!fits && this.field.value) this.tell(`Type a number from ${courseInterval([low, high], {unit, step})}.`);
    this.value = fits ? courseSnap(x, this.options) : null;
    this.range.classList.toggle('cr-unset', !fits);
    if (fits) this.range.value = String(this.value);
    this.changed(this.value);
  }
}

const courseLineWidth = 360, courseLineEdge = 14;

// Put labels of nearby marks on separate lines.
function courseLanes(marks) {
  const ends = [];
  return [...marks].sort((a, b) => a.x - b.x).map(mark => {
    const half = 3.6 * mark.text.length + 5;
    const x = Math.max(half, Math.min(courseLineWidth - half, mark.x));
    let lane = ends.findIndex(end => end < x - half);
    if (lane < 0) lane = ends.length;
    ends[lane] = x + half;
    return {...mark, at: x, lane};
  });
}

// A number line: your answers below, the class above.
function courseCompareNumber(options, {first, second, truth, class: of}) {
  const {low, high, unit, step} = options, space = courseLineWidth - 2 * courseLineEdge;
  const place = x => courseLineEdge + space * (Math.max(low, Math.min(high, x)) - low) / (high - low);
  const points = [[first, 'you', courseNames.first], [second, 'then', courseNames.second]]
    .filter(([value]) => value !== null)
    .map(([value, kind, name]) => ({x: place(value), kind, text: `${name} ${courseNumber(value, unit, step)}`}));
  if (truth) points.push({x: (place(truth[0]) + place(truth[1])) / 2, kind: 'true',
    text: `${courseNames.truth} ${courseInterval(truth, options)}`});
  const marks = courseLanes(points), lanes = Math.max(...marks.map(({lane}) => lane + 1), 1);
  const height = (of?.length ? 46 : 30) + 18 * lanes + 4, y = of?.length ? 30 : 14;
  const svg = svgNode('svg', {class: 'cr-line', viewBox: `0 0 ${courseLineWidth} ${height}`, 'aria-hidden': 'true'});
  svg.append(svgNode('line', {class: 'cr-axis', x1: place(low), x2: place(high), y1: y, y2: y}));
  for (const [i, end] of [low, high].entries()) {
    const text = svgNode('text', {class: 'cr-axis-text', x: place(end), y: y - 8,
      'text-anchor': i ? 'end' : 'start'});
    text.textContent = courseNumber(end, unit, step);
    svg.append(text);
  }
  const stacks = new Map();
  for (const value of of ?? []) {
    const bin = Math.round(place(value) / 7), level = stacks.get(bin) ?? 0;
    stacks.set(bin, level + 1);
    svg.append(svgNode('circle', {class: 'cr-class-dot', cx: bin * 7, cy: y - 4 - 5 * Math.min(level, 5), r: 2.2}));
  }
  if (truth) {
    const width = Math.max(4, place(truth[1]) - place(truth[0])), x = (place(truth[0]) + place(truth[1]) - width) / 2;
    svg.append(svgNode('rect', {class: 'cr-true-band', x, y: y - 5, width, height: 10}));
  }
  const labels = marks.map(({x, at, kind, text, lane}) => {
    const label = svgNode('text', {class: `cr-mark-text cr-ink-${kind}`, x: at, y: y + 25 + 18 * lane,
      'text-anchor': 'middle'});
    label.textContent = text;
    const crosses = marks.some(other => other.lane < lane && Math.abs(other.at - x) < 3.6 * other.text.length + 5);
    svg.append(svgNode('line', {class: `cr-mark cr-ink-${kind}`, x1: x, x2: x, y1: y - 6,
      y2: crosses ? y + 6 : y + 13 + 18 * lane}));
    return label;
  });
  svg.append(...labels);
  return svg;
}

export const courseNumberKind = {
  kind: 'number',
  missing: 'Choose a number first.',
  how: () => 'Drag the slider, type a number, or use the arrow keys.',
  ask: (options, context) => new CourseNumberField(options, context),
  compare: courseCompareNumber,
};
