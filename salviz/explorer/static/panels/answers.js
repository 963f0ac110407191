// What the model answers, beside what is right: labels under tokens, target tokens of a translation, a score,
// probabilities of classes.
import {classBars} from './masked.js';
import {chipText, countWords, directionOf, numberWords, quoted, repeatNames} from '../lib/words.js';
import {elementOf, setText} from '../lib/controls.js';

// {words, gold [n], said [n], sure [n]} of a frame with an answer for each token, else null.
export function labelRows(frame) {
  const {words, token_labels: gold, token_predictions: predicted} = frame?.info ?? {};
  if (!gold && !predicted) return null;
  const blank = (gold ?? predicted).map(() => null);
  const sure = frame.get('token_confidence')?.values() ?? null;
  return {words, gold: gold ?? blank, predicted: predicted ?? blank, sure};
}

// A dot may be enough for the usual label, except where saying so is the mistake.
function answerText({dot, usual}, label, right = true) {
  return dot && label === usual && right ? '·' : chipText(label, 18);
}

function answerMark(right) { return elementOf('span', right ? 'sv-mark sv-right' : 'sv-mark sv-wrong',
  right ? '✓' : '✗'); }

// A line with what the model says: a tick or a cross where it is known what is right.
function answerFill(node, text, gold, predicted) {
  const key = JSON.stringify([text, gold, predicted]);
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  const shown = elementOf('bdi', '', text);
  shown.dir = 'auto';
  const isComparable = gold !== null && predicted !== null;
  node.classList.toggle('sv-missed', isComparable && gold !== predicted);
  node.replaceChildren(...(isComparable ? [answerMark(gold === predicted)] : []), shown);
}

// Two lines under each token. A word that is shown whole has the labels of its first piece that has any.
export class LabelLines {
  constructor() { this.clear(); }

  clear() { this.nodes = []; }

  node(tokens) {
    const gold = elementOf('span', 'sv-answer sv-gold'), predicted = elementOf('span', 'sv-answer sv-model');
    const el = elementOf('span', 'sv-answers', gold, predicted);
    el.setAttribute('aria-hidden', 'true');
    this.nodes.push({tokens, gold, predicted});
    return el;
  }

  names({words}) {
    const [gold, goldTitle, predicted, predictedTitle] = words.lines;
    const name = (text, title) => Object.assign(elementOf('span', 'sv-answer sv-line-name', text), {title});
    const lines = elementOf('span', 'sv-answers', name(gold, goldTitle), name(predicted, predictedTitle));
    return elementOf('span', 'sv-word sv-answer-names', elementOf('span', 'sv-line-name sv-answer-token', 'token'),
      lines);
  }

  at(tokens, {gold, predicted}) {
    return tokens.find(i => gold[i] !== null) ?? tokens.find(i => predicted[i] !== null) ?? tokens[0]; }

  paint(rows) {
    for (const {tokens, gold, predicted} of this.nodes) {
      const i = this.at(tokens, rows), [g, s] = [rows.gold[i] ?? null, rows.predicted[i] ?? null];
      answerFill(gold, g === null ? '' : answerText(rows.words, g), null, null);
      answerFill(predicted, s === null ? '' : answerText(rows.words, s, g === null || g === s), g, s);
      predicted.classList.toggle('sv-unasked', g === null);
    }
  }

  words(tokens, rows) {
    const i = this.at(tokens, rows),
      [gold, predicted, sure] = [rows.gold[i] ?? null, rows.predicted[i] ?? null, rows.sure?.[i]];
    if (gold === null && predicted === null) return '';
    const confidence = Number.isFinite(sure) ? ` (confidence ${sure.toFixed(2)})` : '';
    const right = gold === null || predicted === null ? '' : gold === predicted ? ', right' : ', wrong';
    const model = predicted === null ? 'no prediction' : `the model says ${quoted(predicted)}${confidence}${right}`;
    return `${gold === null ? 'no label' : `label ${quoted(gold)}`}, ${model}`;
  }
}

function answerCounts(gold, predicted) {
  const labelled = gold.flatMap((g, i) => g !== null && predicted[i] !== null && predicted[i] !== undefined ? [i] : []);
  return {right: labelled.filter(i => gold[i] === predicted[i]).length, of: labelled.length};
}

function tokenOutcome(rows) {
  const {right, of} = answerCounts(rows.gold, rows.predicted), {outcome, one} = rows.words,
    text = outcome.replace('{right}', right).replace('{of}', countWords(of, one));
  return elementOf('p', 'sv-outcome', of ? text + rareOutcome(rows) : 'No token of this sentence has a label.');
}

// Most words are no entities and most tokens are the original ones: a model that never says anything else is right
// about nearly all of them.
function rareOutcome({words: {usual: common, rare_one: name}, gold, predicted}) {
  if (!gold.includes(common)) return '';
  const {right, of} = answerCounts(gold.map(g => g === common ? null : g), predicted);
  return of ? ` Of ${countWords(of, name)} it finds ${right}.` : ` There is no ${name} among them.`;
}

// ---- translation

// The target below the source: each token with what the model would say at its place when the tokens before are right,
// and how probable it is.
export function targetLine() {
  const line = elementOf('div', 'sv-line sv-target'), title = elementOf('p', 'sv-target-title'),
    el = elementOf('div', 'sv-translation', title, line);
  line.setAttribute('role', 'list');
  line.setAttribute('aria-label', 'target tokens with the prediction and the probability of each');
  const show = frame => {
    const {target_tokens: target, predicted_tokens: predicted} = frame?.info ?? {};
    el.hidden = !target;
    if (!target) return;
    setText(title,
      'Target, and what the model says at each place when it is given the target before it (teacher forcing):');
    line.dir = directionOf(target);
    const p = frame.get('target_probability')?.values();
    line.replaceChildren(targetNames(), ...target.map((token, i) => targetNode(token, predicted?.[i] ?? null, p?.[i])));
    repeatNames(line);
  };
  return {el, show};
}

function targetNames() {
  const name = (text, title) => Object.assign(elementOf('span', 'sv-answer sv-line-name', text), {title});
  const lines = elementOf('span', 'sv-answers', name('model', 'the most probable token'),
    name('p(target)', 'probability of the target token'));
  return elementOf('span', 'sv-word sv-answer-names', elementOf('span', 'sv-line-name sv-answer-token', 'target'),
    lines);
}

function targetNode(token, predicted, p) {
  const text = elementOf('bdi', '', chipText(token)), chip = elementOf('span', 'sv-chip', text),
    model = elementOf('span', 'sv-answer sv-model');
  const bar = elementOf('span', 'sv-answer-bar'), isFinite = Number.isFinite(p);
  const number = elementOf('span', 'sv-answer sv-probability', isFinite ? p.toFixed(2) : '–', bar);
  text.dir = 'auto';
  answerFill(model, predicted === null ? '' : chipText(predicted), predicted === null ? null : token, predicted);
  bar.style.width = `${100 * Math.max(0, Math.min(1, p || 0))}%`;
  const node = elementOf('span', 'sv-word sv-labelled', chip, elementOf('span', 'sv-answers', model, number));
  const right = predicted === token ? 'right' : `the model says ${quoted(predicted ?? '')}`;
  node.setAttribute('role', 'listitem');
  const probable = isFinite ? `, probability of the target token ${numberWords(p)}` : '';
  node.title = `${quoted(token)}: ${predicted === null ? 'no prediction' : right}${probable}`;
  node.setAttribute('aria-label', node.title);
  return node;
}

function targetOutcome({target_tokens: target, predicted_tokens: predicted}, p) {
  const {right, of} = answerCounts(target, predicted ?? []), finite = p ? [...p].filter(Number.isFinite) : [];
  const sum = finite.reduce((a, b) => a + b, 0);
  const mean = finite.length
    ? ` The target tokens have a probability of ${numberWords(sum / finite.length)} on average.` : '';
  return elementOf('p', 'sv-outcome', `With the target before it the model finds ${right} of ${countWords(of,
    'target token')}.${mean}`);
}

// ---- regression

const scoreSlack = .05;

// 0 and the whole numbers around the labels, as in the figures; further only for a prediction that lies well outside of
// them, so that the line
// hardly ever changes while steps go by.
export function scoreEnds(labels, predicted) {
  const values = labels.length ? labels : [predicted], low = Math.min(0, Math.floor(Math.min(...values)));
  const high = Math.max(Math.ceil(Math.max(...values)), low + 1);
  const slack = scoreSlack * (high - low);
  return [predicted < low - slack ? Math.floor(predicted) : low,
    predicted > high + slack ? Math.ceil(predicted) : high];
}

function scoreMark(className, value, [low, high], text) {
  const mark = elementOf('span', `sv-score-mark ${className}`, elementOf('span', 'sv-score-text', text)),
    place = (value - low) / (high - low);
  mark.style.left = `${100 * Math.max(0, Math.min(1, place))}%`;
  mark.dataset.end = place < .15 ? 'low' : place > .85 ? 'high' : '';
  return mark;
}

// The predicted and the given score on one line. Its ends come from the labels of all sentences, further where the
// prediction is.
function scoreOutcome(frame, run) {
  const predicted = frame.get('prediction')?.values()[0], gold = frame.label,
    scores = (run.probes ?? []).map(p => p.label).filter(Number.isFinite);
  if (!Number.isFinite(predicted)) return elementOf('p', 'sv-note', 'No prediction was recorded at this step.');
  const labels = [...scores, ...(run.scores ?? [])]; // scores: the ends of the scale that the data are known to have
  const ends = scoreEnds([...labels, ...(Number.isFinite(gold) ? [gold] : [])], predicted),
    line = elementOf('div', 'sv-score-line');
  const outside = ends.map(v => elementOf('span', 'sv-score-end', numberWords(v)));
  if (Number.isFinite(gold)) line.append(scoreMark('sv-score-gold', gold, ends, `label ${numberWords(gold)}`));
  line.append(scoreMark('sv-score-said', predicted, ends, `predicted ${numberWords(predicted)}`));
  const side = predicted > gold ? 'above' : 'below';
  const apart = `The prediction is ${numberWords(Math.abs(predicted - gold))} ${side} the label.`;
  const away = Number.isFinite(gold) ? apart : 'There is no label.';
  const el = elementOf('div', 'sv-score', line, elementOf('div', 'sv-score-ends', ...outside),
    elementOf('p', 'sv-note', away));
  el.dir = 'ltr';
  return el;
}

// What stands beside a sentence, an image or a series: whatever kind of answer the task has.
export function outcomeOf(frame, run) {
  const rows = labelRows(frame), {words, target_tokens: target} = frame.info ?? {};
  if (rows) return tokenOutcome(rows);
  if (target) return targetOutcome(frame.info, frame.get('target_probability')?.values());
  if (words?.number || frame.get('prediction')) return scoreOutcome(frame, run);
  return classBars(frame, run.classes ?? []);
}
