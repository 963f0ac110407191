// Saliency guided training: the masked copy of a sentence, word by word, and its effect on the prediction.
import {evidenceOf, methodArgs} from '../state/derive.js';
import {kl, klPerClass} from '../lib/maths.js';
import {shortNumber} from '../lib/colour.js';
import {chipText, wordGroups} from '../lib/words.js';
import {elementOf, setText} from '../lib/controls.js';

// Numbers the texts of a pair: special tokens separate the texts.
function textNumbers(groups) {
  let number = 0;
  return groups.map(group => group.special ? (number += 1, -1) : number);
}

// Which word replaces a masked one: the nearest kept word whose pieces are found in its place; -1 for none, such as the
// mask token.
function copySource(i, groups, texts, replaced, tokens, masked) {
  const unreplaced = groups.map((_, j) => j).filter(j => texts[j] === texts[i] && !replaced[j]);
  const nearest = [unreplaced.filter(j => j < i).at(-1), unreplaced.find(j => j > i)].filter(j => j !== undefined);
  const fits = j => groups[i].tokens.every((p, k) =>
    masked[p] === tokens[groups[j].tokens[k % groups[j].tokens.length]]);
  return nearest.find(fits) ?? -1;
}

// The pieces that fill a slot, with a space wherever the word starts again.
function joinPieces(pieces, length) {
  const words = [];
  for (let i = 0; i < pieces.length; i += length) words.push(pieces.slice(i, i + length).join('').trim());
  return words.join(' ');
}

// Words with their replacements: [{…group, replaced, copy}]. `tokens` and `masked` are the tokens before and after;
// `labels` are the readable ones after.
export function copyWords(probe, isMasked, tokens, masked, labels) {
  const groups = wordGroups(probe), texts = textNumbers(groups);
  const replaced = groups.map(g => !g.special && g.tokens.some(p => isMasked[p]));
  return groups.map((group, i) => {
    if (!replaced[i]) return {...group, replaced: false, copy: group.label};
    const source = copySource(i, groups, texts, replaced, tokens, masked),
      length = source < 0 ? 1 : groups[source].tokens.length;
    return {...group, replaced: true, copy: joinPieces(group.tokens.map(p => labels[p]), length)};
  });
}

// The masked copy recorded in the frame, or null.
export function recordedCopy(frame, probe) {
  const isMasked = frame?.get('is_masked')?.values(),
    {masked_tokens: masked, masked_labels: labelled} = frame?.info ?? {};
  if (!isMasked || !(masked ?? labelled)) return null;
  const readable = new Map(probe.tokens.map((t, i) => [t, probe.labels[i]]));
  const labels = labelled ?? masked.map(t => readable.get(t) ?? t);
  return copyWords(probe, isMasked, masked ? probe.tokens : probe.labels, masked ?? labelled, labels);
}

export function copyCount(words) {
  const of = words.filter(w => !w.special);
  return {replaced: of.filter(w => w.replaced).length, of: of.length};
}

function replacesClosestToZero(frame) { return methodArgs(frame, 'SaliencyGuided').ranking === 'magnitude'; }

// How many words tie at the highest saliency among the replaced ones, if kept words tie with them.
function tiedAtBorder(words, frame) {
  const saliency = (evidenceOf(frame, 'method_saliency', 'SaliencyGuided') ?? frame.get('saliency'))?.values();
  if (!saliency) return 0;
  const bySize = replacesClosestToZero(frame), sums = words.filter(w => !w.special)
    .map(({tokens, replaced}) => ({replaced, sum: tokens.reduce((sum, k) => sum + saliency[k], 0)}))
    .map(({replaced, sum}) => ({replaced, sum: bySize ? Math.abs(sum) : sum}));
  const border = Math.max(...sums.filter(w => w.replaced).map(w => w.sum)), equal = sums.filter(w => w.sum === border);
  return equal.some(w => !w.replaced) ? equal.length : 0;
}

export function copySentence(words, frame) {
  const {replaced, of} = copyCount(words), tied = tiedAtBorder(words, frame);
  const ties = tied ? ` Ties: ${tied} words tie at the threshold; which of them are replaced is arbitrary.` : '';
  const lowest = replacesClosestToZero(frame) ? 'saliency closest to zero' : 'the lowest saliency';
  if (!replaced) return `no word is replaced (0 of ${of}).`;
  return `the words with ${lowest} (${replaced} of ${of}) are replaced by unmasked neighbours.${ties}`;
}

export function divergenceOf(frame) {
  const [p, q] = ['probabilities', 'masked_probabilities'].map(name => frame?.get(name)?.values());
  if (!p || !q) return NaN;
  return frame.info?.words?.several ? klPerClass(p, q) : kl(p, q);
}

// The lower half of a sentence column: the word of the masked copy.
export function paintCopy(node, word) {
  node.classList.toggle('sv-replaced', word.replaced);
  setText(node.lastChild, word.special ? '' : chipText(word.copy));
  node.title = word.replaced ? `${chipText(word.label)} is replaced by ${chipText(word.copy)}` : '';
}

export function copyNode() {
  const text = elementOf('bdi', 'sv-copy-text');
  text.dir = 'auto';
  const node = elementOf('span', 'sv-copy', text);
  node.setAttribute('aria-hidden', 'true');
  return node;
}

function barFill(className, fraction) {
  const fill = elementOf('span', className);
  fill.style.width = `${100 * Math.max(0, Math.min(1, fraction))}%`;
  return fill;
}

function classRow(name, p, q, {gold, predicted}) {
  const label = elementOf('bdi', 'sv-class-name', chipText(name, 24)),
    track = elementOf('span', 'sv-class-track', barFill('sv-class-bar', p));
  if (q !== undefined) track.append(barFill('sv-class-bar sv-class-masked', q));
  const marks = [gold ? 'label' : '', predicted ? 'predicted' : ''].filter(Boolean);
  const number = p.toFixed(2) + (q === undefined ? '' : ` → ${q.toFixed(2)}`);
  const row = elementOf('li', predicted ? 'sv-class sv-predicted' : 'sv-class', label, track,
    elementOf('span', 'sv-class-number', number));
  row.append(elementOf('span', 'sv-class-mark', ...marks.map(m => elementOf('span', `sv-tag sv-tag-${m}`, m))));
  return row;
}

// All classes with their probabilities; with a masked copy, its probabilities below.
export function classBars(frame, classes) {
  const p = frame?.get('probabilities')?.values(), q = frame?.get('masked_probabilities')?.values();
  if (!p) return elementOf('p', 'sv-note', 'No probabilities were recorded at this step.');
  const top = p.indexOf(Math.max(...p)), {words, right_classes: right = []} = frame.info ?? {};
  const rows = Array.from(p, (x, i) => classRow(classes[i] ?? `class ${i}`, x, q?.[i],
    {gold: frame.label === i || right.includes(classes[i]), predicted: words?.several ? x > .5 : i === top}));
  // Multi-label: a line at 0.5, above which a class is predicted.
  const list = elementOf('ul', words?.several ? 'sv-classes sv-threshold' : 'sv-classes', ...rows);
  const el = elementOf('div', 'sv-class-box', list);
  list.setAttribute('aria-label', 'class probabilities');
  const input = {image: 'image', series: 'series'}[frame.info?.modality] ?? 'sentence';
  const text = `Filled: ${input} X; hatched: masked copy X̃. KL(f(X) ‖ f(X̃)) = ${shortNumber(divergenceOf(frame))}${
    words?.several ? ' (mean over classes)' : ''}`;
  if (q) el.append(elementOf('p', 'sv-note', text));
  const threshold = 'Each class has an independent probability; a class is predicted above 0.5 (the line).';
  if (words?.several) el.append(elementOf('p', 'sv-note', threshold));
  return el;
}
