// The predictions for two sentences, and their difference.
import {shortNumber} from '../lib/colour.js';
import {elementOf} from '../lib/controls.js';
import {chipText, quoted} from '../lib/words.js';

export function signedNumber(x) { return `${x > 0 ? '+' : ''}${shortNumber(x)}`; }

// Compares the predictions: one row per class, with the difference of its probabilities.
export function sentenceOutcome({sides, classes}) {
  const [p, q] = sides.map(({frame}) => frame.get('probabilities')?.values() ?? frame.get('prediction')?.values());
  if (!p || !q) return [elementOf('p', 'sv-note', 'This model returns no predictions to compare.')];
  const chance = Boolean(sides[0].frame.get('probabilities')), names = chance ? classes : ['prediction'];
  const several = sides[0].frame.info?.words?.several; // multi-label: a class is predicted above 0.5
  const top = values => chance ? values.indexOf(Math.max(...values)) : -1;
  const isPredicted = (values, i) => several ? values[i] > .5 : i === top(values);
  const cell = (text, strong) => elementOf(strong ? 'strong' : 'span', '', text);
  const rows = names.map((name, i) => elementOf('tr', '', elementOf('th', '', elementOf('bdi', '', chipText(name, 24))),
    ...[p, q].map(values => elementOf('td', '', cell(values[i].toFixed(3), isPredicted(values, i)))),
    elementOf('td', '', signedNumber(q[i] - p[i]))));
  const head = elementOf('tr', '', ...[chance ? 'probability' : '', 'A', 'B', 'B − A'].map(name =>
    elementOf('th', '', name)));
  const predicted = values => classes.filter((_, i) => isPredicted(values, i)).map(name => quoted(name));
  const [a, b] = [p, q].map(values => predicted(values).join(', ')
    || (several ? 'no class' : quoted('')));
  const outcome = chance && classes.length ? `Prediction: ${a} for A, ${b} for B.` : '';
  return [elementOf('p', 'sv-outcome', outcome), elementOf('table', 'sv-own-table', elementOf('thead', '', head),
    elementOf('tbody', '', ...rows))];
}
