// The model's predictions next to the labels: labels under tokens, target tokens of a translation, a score, class
// probabilities.
import {classBars} from './masked.js';
import {chipText, countWords, directionOf, numberWords, quoted, repeatNames} from '../lib/words.js';
import {elementOf, setText} from '../lib/controls.js';

// {words, gold [n], said [n], sure [n]} for a frame with one prediction per token, else null.
export function labelRows(frame) {
  const {words, token_labels: gold, token_predictions: predicted} = frame?.info ?? {};
  if (!gold && !predicted) return null;
  const blank = (gold ?? predicted).map(() => null);
  const sure = frame.get('token_confidence')?.values() ?? null;
  return {words, gold: gold ?? blank, predicted: predicted ?? blank, sure};
}

// The most common label is drawn as a dot, unless it is the wrong prediction.
function answerText({dot, usual}, label, right = true) {
  return dot && label === usual && right ? '·' : chipText(label, 18);
}

function answerMark(right) { return elementOf('span', right ? 'sv-mark sv-right' : 'sv-mark sv-wrong',
  right ? '✓' : '✗'); }

// Fills a line with a prediction, and marks it as right or wrong where the label is known.
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

// Two lines under each token. A whole word shows the labels of its first labelled piece.
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
    const model = predicted === null ? 'no prediction' : `predicted ${quoted(predicted)}${confidence}${right}`;
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

// Most words are not entities and most tokens are original: a model that always predicts the common label is right
// about nearly all of them. This reports the rare labels separately.
function rareOutcome({words: {usual: common, rare_one: name}, gold, predicted}) {
  if (!gold.includes(common)) return '';
  const {right, of} = answerCounts(gold.map(g => g === common ? null : g), predicted);
  return of ? ` The model finds ${right} of ${countWords(of, name)}.` : ` The sentence contains no ${name}.`;
}

// ---- translation

// The target below the source: for each target token, the model's prediction given the correct preceding tokens, and
// the probability of the target token.
export function targetLine() {
  const line = elementOf('div', 'sv-line sv-target'), title = elementOf('p', 'sv-target-title'),
    el = elementOf('div', 'sv-translation', title, line);
  line.setAttribute('role', 'list');
  line.setAttribute('aria-label', 'target tokens, each with its prediction and probability');
  const show = frame => {
    const {target_tokens: target, predicted_tokens: predicted} = frame?.info ?? {};
    el.hidden = !target;
    if (!target) return;
    setText(title, 'Target tokens and the model’s predictions, given the preceding target tokens (teacher forcing):');
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
  const right = predicted === token ? 'right' : `predicted ${quoted(predicted ?? '')}`;
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
    ? ` Mean probability of the target tokens: ${numberWords(sum / finite.length)}.` : '';
  return elementOf('p', 'sv-outcome',
    `Given the preceding target tokens, the model predicts ${right} of ${countWords(of, 'target token')} `
    + `correctly.${mean}`);
}

// ---- regression

const scoreSlack = .05;

// The axis runs over 0 and the whole numbers around the labels, as in the figures. It is extended only for a prediction
// far outside this range, so that the axis rarely changes from step to step.
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

// The predicted score and the label on one line. Its ends are the lowest and highest labels of all sentences, extended
// to the prediction where necessary.
function scoreOutcome(frame, run) {
  const predicted = frame.get('prediction')?.values()[0], gold = frame.label,
    scores = (run.probes ?? []).map(p => p.label).filter(Number.isFinite);
  if (!Number.isFinite(predicted)) return elementOf('p', 'sv-note', 'No prediction was recorded at this step.');
  const labels = [...scores, ...(run.scores ?? [])]; // scores: the known ends of the label scale
  const ends = scoreEnds([...labels, ...(Number.isFinite(gold) ? [gold] : [])], predicted),
    line = elementOf('div', 'sv-score-line');
  const outside = ends.map(v => elementOf('span', 'sv-score-end', numberWords(v)));
  if (Number.isFinite(gold)) line.append(scoreMark('sv-score-gold', gold, ends, `label ${numberWords(gold)}`));
  line.append(scoreMark('sv-score-said', predicted, ends, `predicted ${numberWords(predicted)}`));
  const side = predicted > gold ? 'above' : 'below';
  const apart = `The prediction is ${numberWords(Math.abs(predicted - gold))} ${side} the label.`;
  const away = Number.isFinite(gold) ? apart : 'This sentence has no label.';
  const el = elementOf('div', 'sv-score', line, elementOf('div', 'sv-score-ends', ...outside),
    elementOf('p', 'sv-note', away));
  el.dir = 'ltr';
  return el;
}

// Returns the answer area next to a sentence, an image or a series, for every kind of task.
export function outcomeOf(frame, run) {
  const rows = labelRows(frame), {words, target_tokens: target} = frame.info ?? {};
  if (rows) return tokenOutcome(rows);
  if (target) return targetOutcome(frame.info, frame.get('target_probability')?.values());
  if (words?.number || frame.get('prediction')) return scoreOutcome(frame, run);
  return classBars(frame, run.classes ?? []);
}
