// The answers of a class to a question as bars: first answers, answers after discussion, and the truth.
import {courseConfidences, courseEntryOf, courseStates} from './entry.js';
import {courseNumber, courseTruthText} from './say.js';
import {courseScore} from './score.js';

const votesMostHeads = 10, votesMostBins = 11;

// Find the answer codes in a message.
export function votesCodesIn(text) { return text.match(/SVA1\.[\w-]+\.[0-9a-f]{8}/g) ?? []; }

function votesTime({first}) { return typeof first?.time === 'string' ? first.time : ''; }

// As `session.is_anothers`: return whether two files of one nickname have different first answers to a question.
function votesAnothers(existing, mine) {
  return Object.entries(mine).some(([name, entry]) => {
    const [one, other] = [existing[name] ? votesTime(existing[name]) : '', votesTime(entry)];
    return one && other && one !== other;
  });
}

// As `session.joined_entries`: keep the more advanced of two entries to a question.
function votesJoined(existing, mine) {
  const rank = ({state}) => courseStates.includes(state) ? courseStates.indexOf(state) : courseStates.length;
  const ahead = Object.entries(mine).filter(([name, entry]) => !existing[name] || rank(entry) >= rank(existing[name]));
  return {...existing, ...Object.fromEntries(ahead)};
}

// Merge the files and codes of one student, who hands in one lesson at a time.
export function votesStudents(files) {
  const students = [];
  for (const {nickname, entries} of files) {
    const is = one => one.nickname.toLowerCase() === nickname.toLowerCase() && !votesAnothers(one.entries, entries);
    const existing = students.find(is);
    if (existing) existing.entries = votesJoined(existing.entries, entries);
    else students.push({nickname, entries: {...entries}});
  }
  return students;
}

// The answers of `students` to the question `about`; `second` repeats the first answer of those who answered once.
export function votesOf(about, students) {
  const entries = students.filter(({entries}) => Object.hasOwn(entries, about.name))
    .map(({entries}) => courseEntryOf(about, entries[about.name])).filter(({first}) => first);
  return {first: entries.map(({first}) => first.value),
    second: entries.map(({first, second}) => (second ?? first).value),
    again: entries.filter(({second}) => second).length,
    sure: courseConfidences.map(one => entries.filter(({first}) => first.confidence === one).length)};
}

// Ranges of numbers: one per possible answer if there are few, else ten.
function votesBins({low, high, step, unit}) {
  const count = Math.round((high - low) / step) + 1, isEach = count <= votesMostBins, n = isEach ? count : 10;
  const width = isEach ? step : (high - low) / n, edge = i => courseNumber(low + i * width, '', step);
  const at = x => Math.max(0, Math.min(n - 1, Math.floor((x - low) / width + (isEach ? .5 : 1e-9))));
  const name = i => isEach ? edge(i) : `${edge(i)} to ${edge(i + 1)}`;
  const texts = Array.from({length: n}, (_, i) => `${name(i)} ${unit}`.trim());
  return {texts, at};
}

// Rows for each kind of question: their texts, the rows an answer counts for, and the true rows.
function votesNumbers({options}) {
  const {texts, at} = votesBins(options), start = options.start === undefined ? -1 : at(options.start);
  return {texts, of: value => [at(value)], isTrue: ([low, high], i) => i >= at(low) && i <= at(high),
    note: i => i === start ? options.ends[0] : ''};
}

const votesKinds = {
  choice: ({options}) => ({texts: options.options, of: value => [value], isTrue: (truth, i) => i === truth}),
  words: ({options}) => ({texts: options.words, of: value => value, isTrue: (truth, i) => truth.includes(i)}),
  number: votesNumbers,
  slope: votesNumbers,
};

function votesCounted(about, answers, truth) {
  const {texts, of, isTrue, note = () => ''} = votesKinds[about.kind](about), total = Math.max(1, answers.first.length);
  const counts = ['first', 'second'].map(which => {
    const marked = answers[which].flatMap(of);
    return texts.map((_, i) => marked.filter(one => one === i).length);
  });
  return texts.map((text, i) => ({text, note: note(i), isTrue: truth !== null && isTrue(truth, i),
    bars: counts.map(count => ({fraction: count[i] / total, text: String(count[i])}))}));
}

// Chosen heads, the most frequent first, and the true one.
function votesHeads(about, {first, second}, truth) {
  const name = ([layer, head]) => `layer ${layer}, head ${head}`, total = Math.max(1, first.length);
  const counted = new Map();
  [first, second].forEach((values, which) => {
    for (const value of values) {
      const row = counted.get(name(value)) ?? [0, 0];
      row[which] += 1;
      counted.set(name(value), row);
    }
  });
  const best = truth === null ? '' : name(truth[0]);
  const sum = text => counted.get(text).reduce((a, b) => a + b, 0);
  const texts = [...counted.keys()].sort((a, b) => sum(b) - sum(a)).slice(0, votesMostHeads);
  if (best && !texts.includes(best)) texts.push(best);
  return texts.map(text => ({text, note: '', isTrue: text === best,
    bars: (counted.get(text) ?? [0, 0]).map(count => ({fraction: count / total, text: String(count)}))}));
}

// Items in the order of the question with their mean places; a longer bar is a higher place.
function votesOrder({options: {items}}, {first, second}, truth) {
  const place = (values, item) => values.reduce((sum, value) => sum + value.indexOf(item) + 1, 0) / values.length;
  const bar = (values, item) => values.length ? {fraction: (items.length - place(values, item)) / (items.length - 1),
    text: courseNumber(place(values, item), '', .1)} : {fraction: 0, text: ''};
  return items.map((text, item) => ({text, isTrue: false,
    note: truth === null ? '' : `correct position ${votesPlaces(truth, item)}`,
    bars: [first, second].map(values => bar(values, item))}));
}

// Possible places of an item, given all intervals: '1', or '2 to 3' for a tie.
function votesPlaces(truth, item) {
  const [low, high] = truth[item];
  const from = 1 + truth.filter(other => other[0] > high).length, to = truth.filter(other => other[1] >= low).length;
  return from === to ? String(from) : `${from} to ${to}`;
}

export function votesCount({length}) { return `${length} answer${length === 1 ? '' : 's'}`; }

// [{text, note, isTrue, bars: [first, second] of {fraction, text}}]
export function votesRows(about, answers, truth) {
  if (about.kind === 'head') return votesHeads(about, answers, truth);
  return (about.kind === 'order' ? votesOrder : votesCounted)(about, answers, truth);
}

function votesMean(about, values, truth) {
  const scores = values.map(value => courseScore(about, value, truth)).filter(score => score !== null);
  return scores.length ? courseNumber(scores.reduce((a, b) => a + b, 0) / scores.length) : 'none';
}

// The true answer and the mean score of the class.
export function votesTruth(about, {first, second}, truth) {
  const means = first.length ? ` Mean score: ${votesMean(about, first, truth)} at first, `
    + `${votesMean(about, second, truth)} after discussion.` : '';
  return `Correct answer: ${courseTruthText(about, truth)}.${means}`;
}
