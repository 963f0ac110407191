// Score answers as `salviz.course.kinds` does; one table of cases tests both.

function courseWhole(x, below) { return Number.isInteger(x) && x >= 0 && x < below; }

function courseWholes(values, below) {
  return Array.isArray(values) && values.every(v => courseWhole(v, below)) && new Set(values).size === values.length;
}

function courseWithin(x, {low, high}) { return typeof x === 'number' && x >= low && x <= high; }

const courseFitting = {
  words: (value, {words, most}) => courseWholes(value, words.length) && value.length >= 1 && value.length <= most,
  head: (value, {layers, heads}) => Array.isArray(value) && value.length === 2 && courseWhole(value[0], layers)
    && courseWhole(value[1], heads),
  choice: (value, {options}) => courseWhole(value, options.length),
  order: (value, {items}) => courseWholes(value, items.length) && value.length === items.length,
  number: courseWithin,
  slope: courseWithin,
};

// Return whether `value` is a valid answer to the question `about`.
export function courseFits({kind, options}, value) { return courseFitting[kind]?.(value, options) ?? false; }

function courseScoreWords(value, truth) {
  const both = value.filter(word => truth.includes(word)).length;
  return 2 * both / (value.length + truth.length);
}

function courseScoreHead([layer, head], truth) {
  const place = truth.slice(0, 5).findIndex(best => best[0] === layer && best[1] === head);
  return place < 0 ? 0 : place ? .5 : 1;
}

// Count pairs of items without overlap, and how many more of them are in the right than in the wrong order.
export function coursePairs(value, truth) {
  let balance = 0, separated = 0;
  value.forEach((before, i) => {
    for (const after of value.slice(i + 1)) {
      const isRight = truth[before][0] > truth[after][1], isWrong = truth[before][1] < truth[after][0];
      balance += isRight - isWrong;
      separated += isRight || isWrong ? 1 : 0;
    }
  });
  return {balance, separated};
}

function courseScoreOrder(value, truth) {
  const {balance, separated} = coursePairs(value, truth);
  return separated ? balance / separated : null;
}

export function courseDistance(value, [low, high]) { return Math.max(low - value, value - high, 0); }

function courseScoreNumber(value, truth, {low, high, near, far}) {
  const rounding = 1e-9 * (high - low), distance = courseDistance(value, truth);
  return distance <= near + rounding ? 1 : distance <= far + rounding ? .5 : 0;
}

// 1 up, -1 down, 0 neither, of a line from `start` to an interval.
export function courseDirection(start, same, [low, high]) {
  const change = (low + high) / 2 - start;
  if (Math.abs(change) <= same || low <= start && start <= high) return 0;
  return change > 0 ? 1 : -1;
}

function courseScoreSlope(value, truth, {start, low, high, near, same}) {
  const rounding = 1e-9 * (high - low), tolerance = same + rounding;
  if (courseDirection(start, tolerance, [value, value]) !== courseDirection(start, tolerance, truth)) return 0;
  return courseDistance(value, truth) <= near + rounding ? 1 : .5;
}

const courseScores = {words: courseScoreWords, head: courseScoreHead, order: courseScoreOrder,
  choice: (value, truth) => value === truth ? 1 : 0, number: courseScoreNumber, slope: courseScoreSlope};

// null if all items are tied.
export function courseScore({kind, options}, value, truth) { return courseScores[kind](value, truth, options); }
