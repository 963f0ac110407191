// The end of a line with a given start: drawn, or moved with the arrow keys.
import {elementOf, setText, svgNode} from '../explorer/controls.js';
import {courseSnap} from './ask-number.js';
import {courseKeep, courseNames, coursePlain} from '../parts.js';
import {courseInterval, courseNumber} from '../say.js';

const courseSlopeBox = {width: 360, height: 230, left: 70, right: 250, top: 16, bottom: 196};

function courseSlopeY({low, high}, x) {
  const {top, bottom} = courseSlopeBox;
  return bottom - (bottom - top) * (Math.max(low, Math.min(high, x)) - low) / (high - low);
}

function courseSvgText(text, attributes) {
  const node = svgNode('text', attributes);
  node.textContent = text;
  return node;
}

// Both axes, their names and the start of the line.
function courseSlopeFrame(options) {
  const {width, height, left, right, top, bottom} = courseSlopeBox, {low, high, start, step, unit, ends} = options;
  const svg = svgNode('svg', {class: 'cr-slope', viewBox: `0 0 ${width} ${height}`}), y = courseSlopeY(options, start);
  for (const x of [left, right]) svg.append(svgNode('line', {class: 'cr-axis', x1: x, x2: x, y1: top, y2: bottom}));
  ends.forEach((name, i) => svg.append(courseSvgText(name, {class: 'cr-axis-text', x: i ? right : left, y: height - 12,
    'text-anchor': 'middle'})));
  const limits = [[low, bottom], [high, top]].filter(([, at]) => Math.abs(at - y) > 14);
  for (const [limit, at] of limits) {
    svg.append(courseSvgText(courseNumber(limit, unit, step), {class: 'cr-axis-text', x: left - 8, y: at + 4,
      'text-anchor': 'end'}));
  }
  svg.append(courseSvgText(courseNumber(start, unit, step), {class: 'cr-mark-text', x: left - 8, y: y + 4,
    'text-anchor': 'end'}), svgNode('circle', {class: 'cr-start', cx: left, cy: y, r: 4}));
  return svg;
}

function courseSlopeLine(options, value, className) {
  const {left, right} = courseSlopeBox;
  return svgNode('line', {class: `cr-slope-line ${className}`, x1: left, x2: right,
    y1: courseSlopeY(options, options.start), y2: courseSlopeY(options, value)});
}

class CourseSlope {
  constructor(options, {changed, tell, labelledBy}) {
    Object.assign(this, {options, changed, tell, value: null, locked: false});
    const {right, left, top, bottom} = courseSlopeBox;
    this.svg = courseSlopeFrame(options);
    this.line = courseSlopeLine(options, options.start, 'cr-ink-you');
    this.handle = svgNode('circle', {class: 'cr-slope-handle', cx: right, r: 7});
    this.text = courseSvgText('', {class: 'cr-mark-text', x: right + 14});
    this.zone = svgNode('rect', {class: 'cr-slope-zone', x: (left + right) / 2, y: 0,
      width: courseSlopeBox.width - (left + right) / 2, height: bottom + top});
    this.svg.append(this.line, this.handle, this.text, this.zone);
    for (const [name, value] of Object.entries({role: 'slider', tabindex: 0, 'aria-orientation': 'vertical',
      'aria-valuemin': options.low, 'aria-valuemax': options.high, 'aria-labelledby': labelledBy}))
      this.svg.setAttribute(name, value);
    this.svg.addEventListener('keydown', event => this.keyed(event));
    this.zone.addEventListener('pointerdown', event => this.drag(event));
    this.stays = elementOf('button', '', 'It stays the same');
    this.stays.type = 'button';
    this.stays.addEventListener('click', () => this.choose(options.start));
    this.el = elementOf('div', 'cr-slope-room', this.svg, this.stays);
    this.set(null);
  }

  set(value) {
    const {options} = this, {start, unit, step} = options, y = courseSlopeY(options, value ?? start);
    this.value = value;
    this.line.setAttribute('y2', y);
    this.handle.setAttribute('cy', y);
    this.text.setAttribute('y', y + 4);
    this.svg.classList.toggle('cr-unset', value === null);
    setText(this.text, value === null ? 'drag it' : courseNumber(value, unit, step));
    this.svg.setAttribute('aria-valuenow', value ?? start);
    this.svg.setAttribute('aria-valuetext', value === null
      ? `starts at ${courseNumber(start, unit, step)}; the end is not drawn yet`
      : `from ${courseNumber(start, unit, step)} to ${courseNumber(value, unit, step)}`);
  }

  lock(on) {
    this.locked = this.stays.hidden = on;
    this.svg.setAttribute('aria-disabled', String(on));
    this.svg.classList.toggle('cr-locked', on);
  }

  focus() { this.svg.focus(); }

  choose(x) {
    if (this.locked) return;
    // The start can be chosen even if it is between two steps.
    const {start} = this.options, isStart = Math.abs(x - start) < this.options.step / 2;
    this.set(isStart ? start : courseSnap(x, this.options));
    this.changed(this.value);
  }

  drag(event) {
    if (this.locked || event.button) return;
    const {low, high} = this.options, {top, bottom} = courseSlopeBox;
    const moved = ({clientX, clientY}) => {
      const {y} = new DOMPoint(clientX, clientY).matrixTransform(this.svg.getScreenCTM().inverse());
      this.choose(low + (high - low) * Math.max(0, Math.min(1, (bottom - y) / (bottom - top))));
    };
    this.zone.setPointerCapture(event.pointerId);
    this.zone.addEventListener('pointermove', moved);
    this.zone.addEventListener('lostpointercapture', () => this.zone.removeEventListener('pointermove', moved),
      {once: true});
    moved(event);
    this.svg.focus({preventScroll: true});
    event.preventDefault();
  }

  keyed(event) {
    if (!coursePlain(event) || this.locked) return;
    const {low, high, step, start} = this.options, from = this.value ?? start;
    const to = {ArrowUp: from + step, ArrowRight: from + step, ArrowDown: from - step, ArrowLeft: from - step,
      PageUp: from + 10 * step, PageDown: from - 10 * step, Home: low, End: high, ' ': from, Enter: from}[event.key];
    if (to === undefined) return;
    this.choose(Math.max(low, Math.min(high, to)));
    courseKeep(event);
  }
}

// Keep the labels at the right one line apart.
function courseApart(labels) {
  const sorted = [...labels].sort((a, b) => a.y - b.y);
  sorted.forEach((label, i) => { if (i) label.y = Math.max(label.y, sorted[i - 1].y + 15); });
  const over = Math.max(0, (sorted.at(-1)?.y ?? 0) - courseSlopeBox.bottom - 6);
  for (const label of sorted) label.y -= over;
  return sorted;
}

function courseCompareSlope(options, {first, second, truth, class: of}) {
  const svg = courseSlopeFrame(options), {right} = courseSlopeBox, {unit, step} = options, labels = [];
  svg.setAttribute('aria-hidden', 'true');
  for (const value of of ?? []) svg.append(courseSlopeLine(options, value, 'cr-ink-class'));
  const add = (value, kind, text) => {
    svg.append(courseSlopeLine(options, value, `cr-ink-${kind}`));
    labels.push({y: courseSlopeY(options, value) + 4, kind, text});
  };
  if (truth) {
    add((truth[0] + truth[1]) / 2, 'true', `${courseNames.truth} ${courseInterval(truth, options)}`);
    if (truth[0] < truth[1]) {
      svg.append(svgNode('line', {class: 'cr-true-span', x1: right, x2: right, y1: courseSlopeY(options, truth[0]),
        y2: courseSlopeY(options, truth[1])}));
    }
  }
  if (first !== null) add(first, 'you', `${courseNames.first} ${courseNumber(first, unit, step)}`);
  if (second !== null) add(second, 'then', `${courseNames.second} ${courseNumber(second, unit, step)}`);
  for (const {y, kind, text} of courseApart(labels))
    svg.append(courseSvgText(text, {class: `cr-mark-text cr-ink-${kind}`, x: right + 10, y}));
  return elementOf('div', 'cr-slope-room', svg);
}

export const courseSlopeKind = {
  kind: 'slope',
  missing: 'First drag the end of the line to your answer.',
  how: () => 'Drag the end of the line, or use the arrow keys.',
  ask: (options, context) => new CourseSlope(options, context),
  compare: courseCompareSlope,
};
