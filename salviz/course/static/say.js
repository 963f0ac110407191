// Answers, truths and scores as lines of text.
import {courseDirection, coursePairs} from './score.js';

// At least two decimals without a leading 0; more if the step of the question is finer.
export function courseNumber(x, unit = '', step = .01) {
  const digits = Math.min(6, Math.max(2, Math.ceil(-Math.log10(step) - 1e-9)));
  const text = x.toFixed(digits).replace(/\.?0+$/, '').replace(/^(-?)0\./, '$1.').replace(/^-?0?$/, '0');
  return `${text} ${unit}`.trim();
}

export function courseInterval([low, high], {unit, step}) {
  if (low === high) return courseNumber(low, unit, step);
  return `${courseNumber(low, '', step)} to ${courseNumber(high, unit, step)}`;
}

const courseValues = {
  words: (value, {words}) => value.map(i => words[i]).join(', '),
  head: ([layer, head]) => `layer ${layer}, head ${head}`,
  choice: (value, {options}) => options[value],
  order: (value, {items}) => value.map(i => items[i]).join(' > '),
  number: (value, {unit, step}) => courseNumber(value, unit, step),
  slope: (value, {start, unit, step}) =>
    `${courseNumber(start, '', step)} → ${courseNumber(value, unit, step)}`,
};

export function courseValueText({kind, options}, value) { return courseValues[kind](value, options); }

// Sort items by the middle of their intervals.
export function courseTrueOrder(truth) {
  return truth.map((_, i) => i).sort((a, b) => truth[b][0] + truth[b][1] - truth[a][0] - truth[a][1] || a - b);
}

// Return whether item `i` overlaps with the next one.
export function courseTied(truth, places, i) { return truth[places[i]][0] <= truth[places[i + 1]][1]; }

function courseOrderText(truth, {items}) {
  const places = courseTrueOrder(truth);
  return places.map((item, i) => i ? `${courseTied(truth, places, i - 1) ? '≈' : '>'} ${items[item]}` : items[item])
    .join(' ');
}

const courseTruths = {...courseValues,
  head: ([[layer, head]]) => `layer ${layer}, head ${head}`,
  order: courseOrderText,
  number: courseInterval,
  slope: (truth, options) =>
    `${courseNumber(options.start, '', options.step)} → ${courseInterval(truth, options)}`,
};

export function courseTruthText({kind, options}, truth) { return courseTruths[kind](truth, options); }

const courseDirections = {'1': 'up', '-1': 'down', '0': 'no change'};

const courseScored = {
  words: (score, value, truth) =>
    `F1 ${courseNumber(score)} (correct words: ${value.filter(w => truth.includes(w)).length} of `
      + `${value.length} chosen)`,
  head: score => {
    const bands = {1: 'the best head', .5: 'one of the best five', 0: 'not one of the best five'};
    return `${courseNumber(score)} (${bands[score]})`;
  },
  choice: score => courseNumber(score),
  order: (score, value, truth) => {
    const all = value.length * (value.length - 1) / 2, {separated} = coursePairs(value, truth);
    return score === null ? 'none: all items are tied'
      : `Kendall’s τ ${courseNumber(score)} (pairs that are not tied: ${separated} of ${all})`;
  },
  number: (score, value, truth, {near, far, unit, step}) => {
    const bands = {1: `within ${courseNumber(near, unit, step)}`, .5: `within ${courseNumber(far, unit, step)}`,
      0: `off by more than ${courseNumber(far, unit, step)}`};
    return `${courseNumber(score)} (${bands[score]})`;
  },
  slope: (score, value, truth, {start, same, near, unit, step}) => {
    const where = courseDirections[courseDirection(start, same, truth)];
    const bands = {1: `${where}, within ${courseNumber(near, unit, step)}`,
      .5: `${where}, but off by more than ${courseNumber(near, unit, step)}`,
      0: `wrong direction; correct: ${where}`};
    return `${courseNumber(score)} (${bands[score]})`;
  },
};

// Describe a score, such as 'F1 .5 (correct words: 1 of 2 chosen)'.
export function courseScoreText({kind, options}, score, value, truth) {
  return courseScored[kind](score, value, truth, options);
}

// Count `values`, the most frequent first.
export function courseCounts(values) {
  const counts = new Map();
  for (const value of values) {
    const key = JSON.stringify(value);
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return [...counts].map(([key, count]) => [JSON.parse(key), count]).sort((a, b) => b[1] - a[1]);
}

export function courseQuantile(values, fraction) {
  const sorted = [...values].sort((a, b) => a - b), at = fraction * (sorted.length - 1), below = Math.floor(at);
  return sorted[below] + (at - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
}

// Sort items by their mean place in the orders of a class.
export function courseMeanOrder(values, count) {
  const places = Array.from({length: count}, (_, item) =>
    values.reduce((sum, value) => sum + value.indexOf(item), 0) / values.length);
  return places.map((place, item) => ({item, place: place + 1})).sort((a, b) => a.place - b.place);
}

function courseOften(about, values, most) {
  const frequent = courseCounts(values).slice(0, most);
  return frequent.map(([value, count]) => `${courseValueText(about, value)}: ${count}`).join('; ');
}

function courseSpread(values, {unit, step}) {
  const [low, middle, high] = [.25, .5, .75].map(fraction => courseQuantile(values, fraction));
  return `median ${courseNumber(middle, unit, step)}, half of the answers from `
    + courseInterval([low, high], {unit, step});
}

// Summarise the answers of a class in one line.
export function courseClassText(about, values) {
  const {kind, options} = about, count = `${values.length} answer${values.length === 1 ? '' : 's'}`, of = ` (${count})`;
  if (!values.length) return 'no answers yet';
  if (kind === 'words') return courseOften(about, values.flatMap(value => value.map(word => [word])), 4) + of;
  if (kind === 'order') {
    const order = courseMeanOrder(values, options.items.length).map(({item}) => options.items[item]);
    return `${order.join(', ')} (by mean position; ${count})`;
  }
  if (kind === 'number' || kind === 'slope')
    return courseSpread(values, options) + of;
  return courseOften(about, values, 4) + of;
}
