// Numbers and pictures of a training in the page: fractions of attention, answers, a chart, a table, and words with
// their attention.
import {elementOf} from '../explorer/controls.js';

function teachMean(values) { return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null; }

// Mean fraction of attention on flagged words, over the sentences with flags.
export function teachOn(answers, flags) {
  return teachMean(flags.flatMap((of, i) => of?.some(Boolean)
    ? [answers[i].fractions.reduce((sum, fraction, w) => sum + (of[w] ? fraction : 0), 0)] : []));
}

// The same if all words had equal attention.
export function teachChance(flags) {
  return teachMean(flags.flatMap(of => of?.some(Boolean) ? [of.filter(Boolean).length / of.length] : []));
}

export function teachVerdict({probabilities: p}) { return p.indexOf(Math.max(...p)); }

export function teachRight(answers, labels) {
  return answers.filter((one, i) => teachVerdict(one) === labels[i]).length;
}

// Two-sided sign test of `lost` against `won` answers: the probability of so uneven a split by chance.
export function teachSignTest(lost, won) {
  const n = lost + won, least = Math.min(lost, won);
  let term = .5 ** n, sum = 0;
  for (let k = 0; k <= least; k++) {
    sum += term;
    term *= (n - k) / (k + 1);
  }
  return Math.min(1, 2 * sum);
}

// {right, before, lost, won, p} of the answers after training compared with those before.
export function teachAccuracy(first, last, labels) {
  const isRight = answers => answers.map((one, i) => teachVerdict(one) === labels[i]);
  const [old, now] = [isRight(first), isRight(last)], count = flags => flags.filter(Boolean).length;
  const lost = count(old.map((right, i) => right && !now[i])), won = count(now.map((right, i) => right && !old[i]));
  return {right: count(now), before: count(old), lost, won, p: teachSignTest(lost, won)};
}

export function teachPercent(x) { return x === null ? '–' : `${Math.round(x * 100)}%`; }

// Random marks, as many per sentence as `marks` has, on words that `marks` leaves out; `draws`: rows of random numbers.
export function teachRandom(marks, draws) {
  return marks.map((flags, i) => {
    if (!flags) return null;
    const free = flags.flatMap((flag, w) => flag ? [] : [w]), out = flags.map(() => 0);
    const count = Math.min(free.length, flags.filter(Boolean).length);
    for (let k = 0; k < count; k++) out[free.splice(draws[i][k] % free.length, 1)[0]] = 1;
    return out;
  });
}

// One row of words: the colour and the number below are the fraction of attention, marked words are underlined.
export function teachWords(name, {words, spaced}, fractions, flags) {
  const cells = words.map((word, w) => {
    const cell = elementOf('span', 'tc-word', elementOf('span', 'tc-text', word),
      elementOf('span', 'tc-fraction', fractions[w] >= .045 ? teachPercent(fractions[w]) : '\u00a0'));
    cell.style.setProperty('--tc-fraction', Math.min(1, fractions[w] / .5).toFixed(3));
    cell.classList.toggle('tc-marked', Boolean(flags?.[w]));
    cell.classList.toggle('tc-spaced', Boolean(spaced?.[w]));
    cell.dir = 'auto';
    return cell;
  });
  return elementOf('div', 'tc-row', elementOf('span', 'tc-name', name), elementOf('span', 'tc-words', ...cells));
}

const teachSvg = 'http://www.w3.org/2000/svg';

function teachDrawn(tag, values, ...children) {
  const node = document.createElementNS(teachSvg, tag);
  for (const [name, value] of Object.entries(values)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Fractions per step as lines; `lines`: [{name, kind, values, chance}]. Chance is a dashed line.
export function teachChart(lines, steps, at) {
  const [width, height, left, top, bottom] = [420, 170, 40, 8, 26], right = width - 12, low = height - bottom;
  const x = step => left + (right - left) * step / steps, y = value => low - (low - top) * value;
  const grid = [0, .5, 1].flatMap(value => [
    teachDrawn('line', {x1: left, x2: right, y1: y(value), y2: y(value), class: 'tc-grid'}),
    teachDrawn('text', {x: left - 6, y: y(value) + 4, 'text-anchor': 'end'}, teachPercent(value))]);
  const below = [0, steps].map(step => teachDrawn('text', {x: x(step), y: height - 8,
    'text-anchor': step ? 'end' : 'start'}, `step ${step}`));
  const drawn = lines.flatMap(({kind, values, chance}) => [
    teachDrawn('line', {x1: left, x2: right, y1: y(chance), y2: y(chance), class: `tc-chance tc-${kind}`}),
    teachDrawn('polyline', {class: `tc-line tc-${kind}`,
      points: values.map((v, step) => `${x(step)},${y(v)}`).join(' ')}),
    teachDrawn('circle', {cx: x(at), cy: y(values[at]), r: 4, class: `tc-dot tc-${kind}`})]);
  const message = lines.map(({name, values, chance}) => `${name}: ${teachPercent(values[0])} before, `
    + `${teachPercent(values[at])} at step ${at}, chance ${teachPercent(chance)}`);
  const svg = teachDrawn('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', class: 'tc-chart',
    'aria-label': message.join('; ')}, ...grid, ...below, ...drawn);
  const keys = lines.map(({name, kind}) =>
    elementOf('span', 'tc-key', elementOf('span', `tc-swatch tc-${kind}`), name));
  return elementOf('figure', 'tc-figure', svg, elementOf('figcaption', '', ...keys,
    elementOf('span', 'tc-key', elementOf('span', 'tc-swatch tc-dashed'), 'chance')));
}

export function teachTable(columns, rows) {
  const head = elementOf('tr', '', ...columns.map(name => {
    const cell = elementOf('th', '', name);
    cell.scope = 'col';
    return cell;
  }));
  const body = rows.map(([name, ...values]) => {
    const first = elementOf('th', '', name);
    first.scope = 'row';
    return elementOf('tr', '', first, ...values.map((value, i) => {
      const cell = elementOf('td', '', value);
      cell.dataset.name = columns[i + 1];
      return cell;
    }));
  });
  return elementOf('table', 'cr-table', elementOf('thead', '', head), elementOf('tbody', '', ...body));
}
