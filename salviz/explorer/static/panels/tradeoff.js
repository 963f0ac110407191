// Panel 'tradeoff': two metrics over a setting, one point per value; choosing a point opens its run.
import {claimKey, plainKey} from '../lib/cells.js';
import {elementOf, setText} from '../lib/controls.js';
import {cutText, numberWords, visibleText} from '../lib/words.js';

const tradeKeys = ['meta', 'run', 'size'], tradeMargin = {left: 58, right: 14, top: 10, bottom: 40};
const tradeLetter = 6.4, tradeLine = 13;
const tradeKinds = {'front': 'on the front',
  'not distinguished': 'dominated on average, but the difference is uncertain',
  'dominated': 'dominated'};

function tradeNode(tag, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function isNumber(x) { return Number.isFinite(x); }

// At most six round numbers from `low` to `high`.
export function roundTicks(low, high) {
  const rough = (high - low) / 5, size = 10 ** Math.floor(Math.log10(rough)),
    step = size * [1, 2, 5, 10].find(k => k * size >= .75 * rough), ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

// The lowest and highest value of points and intervals, with a margin.
function tradeRange(points, axis) {
  const all = points.flatMap(p => [p[axis], p[`${axis}_low`], p[`${axis}_high`]]).filter(isNumber);
  const low = Math.min(...all), high = Math.max(...all), margin = .08 * (high - low) || .05;
  return [low - margin, high + margin];
}

function boxesMeet(a, b) { return a.x0 < b.x1 && b.x0 < a.x1 && a.y0 < b.y1 && b.y0 < a.y1; }

// The positions of point names, null where there is no room: no name covers a point or another name.
export function namePlaces(at, names, {width, height}) {
  const taken = at.map(({x, y}) => ({x0: x - 6, x1: x + 6, y0: y - 6, y1: y + 6}));
  return at.map(({x, y}, i) => {
    const w = names[i].length * tradeLetter, boxes = [];
    for (const far of [8, 14, 20]) for (const [sx, sy] of [[1, -1], [-1, -1], [1, 1], [-1, 1], [0, -1], [0, 1]])
      boxes.push({x: x + (sx ? sx * far - (sx < 0 ? w : 0) : -w / 2), y: y + sy * far});
    const free = boxes.map(b => ({...b, x0: b.x, x1: b.x + w, y0: b.y - tradeLine / 2, y1: b.y + tradeLine / 2}))
      .find(b => b.x0 > 0 && b.x1 < width && b.y0 > 0 && b.y1 < height && !taken.some(t => boxesMeet(b, t)));
    if (free) taken.push(free);
    return free ?? null;
  });
}

// Points with equal metrics share one place with several names.
function tradeGroups(points) {
  const groups = new Map();
  for (const p of points) groups.set(`${p.x}/${p.y}`, [...(groups.get(`${p.x}/${p.y}`) ?? []), p]);
  return [...groups.values()];
}

function intervalWords(point, axis) {
  const [low, high] = [point[`${axis}_low`], point[`${axis}_high`]];
  return isNumber(low) ? ` (${numberWords(low)} to ${numberWords(high)})` : '';
}

class TradeOff {
  constructor(ctx) {
    this.ctx = ctx;
    this.title = elementOf('h3', 'sv-title', 'Trade-off');
    this.head = elementOf('div', 'sv-head', this.title);
    this.svg = tradeNode('svg', {class: 'sv-trade-plot', role: 'group'});
    this.stage = elementOf('div', 'sv-trade-stage', this.svg);
    this.tip = elementOf('output', 'sv-tip');
    this.tip.setAttribute('aria-live', 'off');
    this.legend = elementOf('p', 'sv-note sv-trade-legend');
    this.words = elementOf('p', 'sv-note sv-words');
    this.el = elementOf('section', 'sv-panel sv-tradeoff', this.head, this.stage, this.tip, this.legend, this.words);
    this.el.setAttribute('aria-label', 'trade-off between two metrics');
    this.svg.addEventListener('keydown', e => this.keyed(e));
  }

  update(changed) {
    const {front} = this.ctx.store.meta;
    if (!front || !tradeKeys.some(key => changed.has(key))) return;
    this.front = front;
    this.ordered = [...front.points].sort((a, b) => a.x - b.x || a.y - b.y);
    this.draw();
    setText(this.title, visibleText(front.title));
    setText(this.words, front.words.join(' '));
    const kinds = Object.keys(tradeKinds).filter(kind => front.points.some(p => p.standing === kind));
    const key = (mark, words) => elementOf('span', 'sv-trade-key',
      tradeNode('svg', {width: 14, height: 14, 'aria-hidden': 'true'}, mark), words);
    const numbers = kind => kind === 'front' ? ` (numbers: values of ${visibleText(front.setting)})` : '';
    this.legend.replaceChildren(...kinds.map(kind => key(this.mark(kind, 7, 7), tradeKinds[kind] + numbers(kind))));
    if (front.points.some(p => p.is_knee)) this.legend.append(key(this.kneeMark(7, 7, 5), 'knee'));
  }

  mark(kind, x, y) {
    return tradeNode('circle', {cx: x, cy: y, r: 4.5, class: `sv-trade-${kind.replaceAll(' ', '-')}`}); }

  kneeMark(x, y, r = 10) {
    return tradeNode('path', {d: `M${x - r},${y} L${x},${y - r} L${x + r},${y} L${x},${y + r} Z`,
      class: 'sv-trade-knee'});
  }

  draw() {
    const width = Math.min(680, this.stage.clientWidth),
      height = Math.max(220, Math.min(340, Math.round(width * .55)));
    if (!width) return;
    const {left, right, top, bottom} = tradeMargin,
      inside = {width: width - left - right, height: height - top - bottom};
    const [xs, ys] = ['x', 'y'].map(axis => tradeRange(this.front.points, axis));
    const place = p => ({x: left + (p.x - xs[0]) / (xs[1] - xs[0]) * inside.width,
      y: top + (ys[1] - p.y) / (ys[1] - ys[0]) * inside.height});
    const focused = this.svg.contains(document.activeElement) ? document.activeElement.dataset.value : null;
    this.svg.setAttribute('width', width);
    this.svg.setAttribute('height', height);
    this.svg.setAttribute('aria-label', `${visibleText(this.front.title)}. Arrow keys move between values, `
      + 'Enter opens the run.');
    this.svg.replaceChildren(...this.axes(xs, ys, place, {width, height}), ...this.stairs(xs, ys, place),
      ...this.ordered.flatMap(p => this.bars(p, place)), ...this.ordered.map(p => this.point(p, place)),
      ...this.names(place, inside));
    this.svg.querySelector(`[data-value="${focused}"]`)?.focus();
  }

  axes(xs, ys, place, {width, height}) {
    const {left, right, top, bottom} = tradeMargin, base = height - bottom, nodes = [];
    const text = (attributes, words) => tradeNode('text', {class: 'sv-trade-text', ...attributes}, words);
    for (const t of roundTicks(...xs)) {
      const {x} = place({x: t, y: ys[0]});
      nodes.push(tradeNode('line', {x1: x, x2: x, y1: top, y2: base, class: 'sv-trade-grid'}),
        text({x, y: base + 14, 'text-anchor': 'middle'}, numberWords(t)));
    }
    for (const t of roundTicks(...ys)) {
      const {y} = place({x: xs[0], y: t});
      nodes.push(tradeNode('line', {x1: left, x2: width - right, y1: y, y2: y, class: 'sv-trade-grid'}),
        text({x: left - 6, y: y + 4, 'text-anchor': 'end'}, numberWords(t)));
    }
    const cut = (words, width) => cutText(words, Math.floor(width / tradeLetter));
    const middle = (top + base) / 2;
    return [...nodes, text({x: (left + width - right) / 2, y: base + 32, 'text-anchor': 'middle'},
      cut(this.front.x, width - left - right)),
      text({x: 12, y: middle, 'text-anchor': 'middle', transform: `rotate(-90 12 ${middle})`},
        cut(this.front.y, base - top))];
  }

  // The staircase, with a faint fill below it.
  stairs(xs, ys, place) {
    const {stairs, worse} = this.front;
    if (!stairs.length) return [];
    const worst = [worse[0] < 0 ? xs[0] : xs[1], worse[1] < 0 ? ys[0] : ys[1]], first = stairs[0], last = stairs.at(-1);
    const ends = worse[0] < 0 ? [[worst[0], first[1]], [last[0], worst[1]]]
      : [[first[0], worst[1]], [worst[0], last[1]]];
    const path = corners => corners.map(([x, y]) => place({x, y})).map(({x, y}) => `${x},${y}`).join(' ');
    return [tradeNode('polygon', {points: path([ends[0], ...stairs, ends[1], worst]), class: 'sv-trade-area'}),
      tradeNode('polyline', {points: path(stairs), class: 'sv-trade-stairs'})];
  }

  bars(p, place) {
    const kind = p.standing.replaceAll(' ', '-');
    return ['x', 'y'].filter(axis => isNumber(p[`${axis}_low`])).map(axis => {
      const [a, b] = ['low', 'high'].map(end => place({...p, [axis]: p[`${axis}_${end}`]}));
      return tradeNode('line', {x1: a.x, y1: a.y, x2: b.x, y2: b.y, class: `sv-trade-bar sv-trade-${kind}`});
    });
  }

  point(p, place) {
    const {x, y} = place(p), here = p.run !== null && p.run === this.ctx.state.run;
    const node = tradeNode('g', {role: 'button', class: here ? 'sv-trade-point sv-trade-here' : 'sv-trade-point',
      tabindex: p === this.reached() ? 0 : -1, 'aria-label': this.say(p), 'aria-disabled': p.run === null},
    tradeNode('circle', {cx: x, cy: y, r: 12, class: 'sv-trade-reach'}), this.mark(p.standing, x, y),
    ...(p.is_knee ? [this.kneeMark(x, y)] : []));
    if (here) node.setAttribute('aria-current', 'true');
    node.dataset.value = p.name;
    node.addEventListener('click', () => this.open(p));
    node.addEventListener('focus', () => setText(this.tip, this.say(p)));
    node.addEventListener('pointerenter', () => setText(this.tip, this.say(p)));
    return node;
  }

  // The only point that Tab reaches: the one of the run in view.
  reached() { return this.ordered.find(p => p.run === this.ctx.state.run) ?? this.ordered[0]; }

  names(place, inside) {
    const groups = tradeGroups(this.ordered), {left, top} = tradeMargin,
      texts = groups.map(g => g.map(p => p.name).join(', '));
    const at = groups.map(([p]) => place(p)).map(({x, y}) => ({x: x - left, y: y - top}));
    return namePlaces(at, texts, inside).flatMap((box, i) => box ? [tradeNode('text',
      {x: box.x + left, y: box.y + top + 4, class: groups[i].some(p => p.is_knee) ? 'sv-trade-name sv-trade-bold'
        : 'sv-trade-name', 'aria-hidden': 'true'}, texts[i])] : []);
  }

  say(p) {
    const {front, ctx} = this, run = p.run === null ? null : ctx.store.run(p.run);
    const measure = axis => `${visibleText(front[axis])}: ${numberWords(p[axis])}${intervalWords(p, axis)}`;
    const parts = [`${visibleText(front.setting)} ${p.name}`, measure('x'), measure('y'), tradeKinds[p.standing],
      ...(p.is_knee ? ['knee'] : [])];
    const opens = !run ? 'no recordings' : p.run === ctx.state.run ? 'shown' : `opens ${run.title}`;
    return `${parts.join('; ')}; ${opens}`;
  }

  open(p) {
    const {state, store, announce} = this.ctx;
    if (p.run === null) return announce('This run has no recordings to open.');
    state.set({run: p.run, step: null});
    return announce(`${this.front.setting} ${p.name}: ${store.run(p.run).title}`);
  }

  keyed(e) {
    const at = this.ordered.findIndex(p => p.name === e.target.dataset?.value), end = this.ordered.length - 1;
    if (at < 0) return;
    if (plainKey(e, {Enter: true, ' ': true})) {
      this.open(this.ordered[at]);
      return void claimKey(e);
    }
    const back = at - 1, on = at + 1,
      to = plainKey(e, {ArrowLeft: back, ArrowDown: back, ArrowRight: on, ArrowUp: on, Home: 0, End: end});
    if (to === undefined) return;
    const {name} = this.ordered[Math.max(0, Math.min(end, to))],
      nodes = [...this.svg.querySelectorAll('.sv-trade-point')];
    for (const node of nodes) node.setAttribute('tabindex', node.dataset.value === name ? 0 : -1);
    nodes.find(node => node.dataset.value === name).focus();
    claimKey(e);
  }
}

export const tradeoffPanel = {
  name: 'tradeoff', title: 'Trade-off', order: 85, shows: 'anything', image: 'tradeoff',
  fits: (frame, store) => Boolean(store.meta.front),
  absent: 'This explorer has no Pareto front; use Explorer(pareto(study)).',
  help: {says: [
    'Each point is the mean over seeds for one value of the setting; bars are confidence intervals of this mean.',
    'Points below the staircase are dominated in both metrics; a hollow point may still be on the front.'],
  keys: [['← ↑ ↓ →', 'move between values'], ['Enter', 'open the run with this value']]},
  view: TradeOff,
};
