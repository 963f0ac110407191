// The maps of two sentences, each on its own words, and their difference on the words that both contain.
import {attentionLimit, colourScaleOf, shortNumber, valueWithStep} from '../lib/colour.js';
import {quotedToken} from '../lib/canvas.js';
import {elementOf, setText} from '../lib/controls.js';
import {entryTitle} from '../state/derive.js';
import {blankBlocked, largestOf, readingKey, scaleLimit, shownUnits, unitMap} from './tokenmap.js';
import {MapRow} from './maprow.js';

const sentenceUnits = {hideSpecial: false, mergeWords: true};

export class SentenceMaps {
  constructor(announce) {
    this.parts = [0, 1, 2].map(i => {
      const row = new MapRow({text: (r, c) => this.cellText(i, r, c), chooseRow: () => {}, announce});
      return {row, el: elementOf('div', 'sv-own-map', row.el, row.tip)};
    });
    this.note = elementOf('p', 'sv-note');
    this.el = elementOf('div', '', elementOf('div', 'sv-own-maps', ...this.parts.map(({el}) => el)), this.note);
  }

  draw(shown, state, host) {
    const {maps, sides, names} = shown, hasMaps = maps.every(map => map.values);
    this.el.hidden = !hasMaps;
    if (!hasMaps) return;
    this.names = names;
    this.about = readingKey([], state.entry, sides.map(({probe}) => probe.labels));
    const title = entryTitle(state.entry), style = {palette: state.palette, theme: state.theme};
    this.shown = sides.map(({probe, frame}, i) => {
      const units = shownUnits(probe, sentenceUnits, maps[i]), map = unitMap(maps[i], units);
      return {...map, units, values: blankBlocked(map.values, frame, state.entry, maps[i], units)};
    });
    const limit = Math.max(...this.shown.map(({values}, i) => scaleLimit(sides[i].frame, 'attention', values, state)));
    const count = Math.max(...this.shown.map(({units}) => units.length));
    const scale = colourScaleOf({limit: attentionLimit(limit, count), ...style});
    this.shown.forEach(({values, units}, i) => this.drawPart(i, title, {values, scale, units}, host, state.theme));
    this.drawDifference(shown, title, style, host, state.theme);
  }

  drawPart(i, title, {values, scale, units}, host, theme) {
    const {row} = this.parts[i], name = this.names[i];
    row.draw({items: [{title: `${name}: ${title}`, values, scale, scaleTitle: i < 2 ? 'attention' : 'B − A'}], units,
      row: -1, framed: false, label: `${name} of ${title}.`, about: this.about}, host, theme);
  }

  // The rows and columns of B − A are the words that both sentences contain.
  drawDifference({columns, maps}, title, style, host, theme) {
    const whole = maps.every(map => map.pooled === 1), same = columns.filter(column => column.same);
    this.parts[2].el.hidden = !whole || !same.length;
    setText(this.note, whole ? 'B − A covers only the words that both sentences contain.'
      : 'One of the maps is a thumbnail, so B − A cannot be computed; '
        + 'press Run while this head is shown to get full maps.');
    if (this.parts[2].el.hidden) return;
    const [a, b] = this.shown, at = ({values, units}, r, c) => values[r * units.length + c];
    const values = Float32Array.from(same.flatMap(r => same.map(c => at(b, r.second, c.second)
      - at(a, r.first, c.first))));
    this.shown[2] = {values, units: same.map(({first}) => a.units[first]), half: () => NaN};
    const scale = colourScaleOf({limit: largestOf(values), signed: true, ...style});
    this.drawPart(2, title, {...this.shown[2], scale}, host, theme);
  }

  cellText(i, row, column) {
    const {values, units, half} = this.shown[i], k = row * units.length + column,
      [query, key] = [row, column].map(at => quotedToken(units[at].label));
    if (!Number.isFinite(values[k])) return `${query} → ${key}: no value`;
    const number = i < 2 ? valueWithStep(values[k], half(k)) : shortNumber(values[k]);
    return `${this.names[i]}: ${query} → ${key} ${number}`;
  }
}
