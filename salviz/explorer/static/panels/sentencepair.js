// Two sentences and their differences: values of words, the attention of a row, maps. Values are subtracted only where
// both sentences have the same word.
import {mapOf, pooledRow, saliencyOf} from '../state/derive.js';
import {quoted, wordGroups} from '../lib/words.js';
import {unitMap} from './tokenmap.js';

function pairSums(values, units) { return units.map(u => values
  ? u.tokens.reduce((sum, i) => sum + values[i], 0) : NaN); }

// The attention from the word whose row the model reads, else the mean over all rows.
function pairRow({probe, frame}, map, units) {
  if (!map.values || map.pooled > 1) return {values: units.map(() => NaN), name: ''};
  const {values, count} = unitMap(map, units), read = pooledRow(frame),
    at = units.findIndex(u => u.tokens.includes(read));
  const rows = at < 0 ? units.map((_, r) => r) : [at];
  const mean = units.map((_, k) => rows.reduce((sum, r) => sum + values[r * count + k], 0) / rows.length);
  const name = at < 0 ? 'the mean row' : `${quoted(units[at].label)} (the row that the model reads)`;
  return {values: mean, name};
}

function pairDifference(columns, first, second) {
  return columns.map(column => column.same ? second[column.second] - first[column.first] : NaN);
}

// Columns [{first, second, same}] of two sides {frame, probe, explains}; for saliency and attention, the values of A's
// and B's words and B − A.
export function pairOf(sides, entry, align) {
  const units = sides.map(({probe}) => wordGroups(probe)), labels = units.map(of => of.map(u => u.label));
  const columns = align(...labels), alike = sides[0].explains === sides[1].explains;
  const saliency = sides.map(({frame}, i) => pairSums(saliencyOf(frame)?.values, units[i]));
  const maps = sides.map(({frame}) => mapOf(frame, entry, 'attention'));
  const rows = sides.map((side, i) => pairRow(side, maps[i], units[i]));
  const attention = rows.map(row => row.values), nothing = columns.map(() => NaN);
  const part = ([first, second], same) => ({first, second,
    difference: same ? pairDifference(columns, first, second) : nothing});
  const note = maps.find(map => map.note)?.note ?? '';
  return {units, columns, alike, note, maps, sides, rowName: rows[0].name, saliency: part(saliency, alike),
    attention: part(attention, true)};
}
