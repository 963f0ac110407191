// Panel 'compare': the same sentence and entry in two runs or at two steps, side by side, and their difference.
import {attentionName, entryTitle, mapOf, pooledRow} from '../state/derive.js';
import {attentionLimit, colourScaleOf, percent, valueWithStep} from '../lib/colour.js';
import {quotedToken} from '../lib/canvas.js';
import {blankBlocked, largestOf, readingKey, scaleLimit, shownUnits, unitMap} from './tokenmap.js';
import {drawOverlays, overlaysOf} from './overlays.js';
import {MapRow} from './maprow.js';
import {choiceOf, elementOf, fillChoice, labelled} from '../lib/controls.js';

const compareKeys = ['run', 'probe', 'step', 'entry', 'what', 'row', 'compare', 'overlays', 'hideSpecial', 'mergeWords',
  'scale', 'palette',
  'theme', 'frames', 'meta', 'size'];

// Do the attention weights of two frames differ by no more than their rounding? The rounding error of rollout is not
// known, so the weights from which it is computed are compared.
function withinRounding(a, b) {
  if (String(a.shape) !== String(b.shape)) return false;
  const [layers, heads] = a.shape, pairs = Array.from({length: layers * heads}, (_, m) => [Math.floor(m / heads),
    m % heads]);
  return pairs.every(place => {
    const [first, second] = [a, b].map(tensor => tensor.at(...place)), [of, to] = [a, b].map(t => t.codes(...place));
    const error = k => a.halfStep(of[k], ...place) + b.halfStep(to[k], ...place);
    return first.every((v, k) => Math.abs(v - second[k]) <= 1.001 * error(k));
  });
}

class Compare {
  constructor(ctx) {
    this.ctx = ctx;
    this.el = elementOf('section', 'sv-panel sv-compare');
    this.el.setAttribute('aria-label', 'compare two runs or two steps');
    this.title = elementOf('h3', 'sv-title');
    this.run = choiceOf([], v => this.chooseRun(v));
    this.step = choiceOf([], v => ctx.state.set({compare: {...ctx.store.comparedWith(ctx.state),
      step: v === '' ? null : Number(v)}}));
    this.stepField = labelled('At step', this.step);
    const head = this.head = elementOf('div', 'sv-head');
    head.append(this.title, labelled('Compare with', this.run), this.stepField);
    this.note = elementOf('p', 'sv-note');
    this.words = elementOf('p', 'sv-note sv-words');
    this.maps = new MapRow({text: (r, c) => this.cellText(r, c), chooseRow: r => this.chooseRow(r),
      announce: ctx.announce});
    this.el.append(head, this.note, this.maps.el, this.maps.tip, this.words);
  }

  chooseRun(value) {
    const {store, state} = this.ctx, run = Number(value);
    if (value === '') return state.set({compare: null});
    // Comparing a run with itself at the same step shows nothing: default to its last step, or, if that is in view, to
    // its first.
    const steps = run === state.run ? store.shipped(run, state.probe) : [], end = steps.at(-1) ?? null;
    state.set({compare: {run, step: end === store.stepOf(state) ? steps[0] : end}});
  }

  update(changed) {
    if (!compareKeys.some(key => changed.has(key))) return;
    const {store, state} = this.ctx;
    this.title.textContent = entryTitle(state.entry);
    this.match = store.matchOf(state);
    const chosen = this.chosen = store.comparedWith(state), nothing = store.runs.length === 2 ? [] : [['', 'nothing']];
    fillChoice(this.run, [...nothing,
      ...store.runs.map((run, i) => [i, i === state.run ? `${run.title} (this run)` : run.title])],
      chosen?.run ?? '');
    const steps = this.match && this.match.probe !== null ? store.shipped(this.match.run, this.match.probe) : [];
    const current = chosen?.run === state.run ? [] : [['', 'the current step']];
    fillChoice(this.step, [...current, ...steps.map(step => [step, String(step)])],
      chosen?.step ?? '');
    this.stepField.hidden = !steps.length;
    const why = this.load();
    this.note.textContent = why;
    this.note.hidden = !why;
    for (const el of [this.maps.el, this.maps.tip, this.words]) el.hidden = !this.items;
    if (!this.items || !this.maps.el.clientWidth) return;
    const row = this.units.findIndex(u => u.tokens.includes(state.row ?? pooledRow(this.frame)));
    const label = `A, B and B − A of ${entryTitle(state.entry)}.`;
    const about = readingKey(this.sides.map(({frame}) => frame), state.entry, this.what);
    this.maps.draw({items: this.items, units: this.units, row, framed: state.row !== null && row >= 0, label, about},
      this.el, state.theme);
    this.words.textContent = this.sayChange();
  }

  load() {
    const {store, state} = this.ctx, probe = store.probe(state.run, state.probe), {match} = this;
    this.items = null;
    this.frame = store.frameOf(state);
    if (!probe) return 'No sentence to show.';
    if (!match) return 'Choose another run, or another step of this run, for comparison.';
    if (!this.frame) return store.why(state.run, state.probe, store.stepOf(state))
      || 'Nothing has been recorded for this sentence yet.';
    if (match.frame === this.frame) return 'Choose another step of this run, or another run, for comparison.';
    const title = store.run(match.run)?.title ?? `run ${match.run}`;
    if (match.probe === null)
      return `${title} has no probe example with this sentence and the same tokens.`;
    if (!match.frame) return store.why(match.run, match.probe, this.chosen.step ?? store.stepOf(state))
      || `This page contains no recording of this sentence from ${title}.`;
    return this.compareMaps(probe, title);
  }

  compareMaps(probe, title) {
    const {store, state} = this.ctx, what = this.what = state.what === 'attribution' ? 'attribution' : 'attention',
      shown = [[store.run(state.run).title, this.frame], [title, this.match.frame]];
    // Within one run, B is always the later step.
    if (this.match.run === state.run && this.match.frame.step < this.frame.step) shown.reverse();
    const frames = shown.map(([, frame]) => frame);
    const maps = frames.map(frame => mapOf(frame, state.entry, what)), lacks = maps.findIndex(map => !map.values);
    const names = shown.map(([run, {step}], i) => `${'AB'[i]}: ${run}, step ${step}`);
    if (lacks >= 0) return `${names[lacks]}: ${maps[lacks].note}`;
    if (maps[0].n !== maps[1].n)
      return 'Only one of the two maps is stored in full; choose a head whose full map is stored for both A and B.';
    this.units = shownUnits(probe, state, maps[0]);
    this.sides = maps.map((map, i) => ({...unitMap(map, this.units), frame: frames[i], name: names[i]}));
    this.sides.forEach((side, i) => {
      side.values = blankBlocked(side.values, frames[i], state.entry, maps[i], this.units); });
    this.difference = this.sides[1].values.map((v, k) => v - this.sides[0].values[k]);
    this.measureRounding();
    this.makeItems(what, probe, maps[0].signed);
    const requested = this.chosen.step, {step} = this.match.frame, nearest = requested !== null && requested !== step;
    return nearest ? `Step ${requested} of ${title} is not available; step ${step}, the nearest one, is shown.` : '';
  }

  // The largest rounding error of a difference of stored values, and whether all differences are within theirs.
  measureRounding() {
    const [a, b] = this.sides, errors = this.difference.map((_, k) => a.half(k) + b.half(k));
    this.rounding = largestOf(errors.filter(Number.isFinite));
    const within = () => this.ctx.state.entry.kind === 'rollout'
      ? withinRounding(...this.sides.map(({frame}) => frame.get('attention')))
      : this.difference.every((v, k) => !(Math.abs(v) > 1.001 * errors[k]) && !Number.isNaN(errors[k]));
    this.isRounding = this.difference.some(v => v !== 0) && within();
  }

  makeItems(what, probe, signed) {
    const {state} = this.ctx,
      largest = Math.max(...this.sides.map(side => scaleLimit(side.frame, what, side.values, state)));
    const limit = what === 'attention' ? attentionLimit(largest, this.units.length) : largest;
    const style = {palette: state.palette, theme: state.theme}, scale = colourScaleOf({limit, signed, ...style});
    const asRecorded = {...state.get(), whatIf: null};
    const sides = this.sides.map(side => {
      const marks = this.units.some(u => u.block) ? null : overlaysOf(side.frame, asRecorded, state.entry, probe,
        this.units);
      const scaleTitle = what === 'attention' ? attentionName(side.frame) : what;
      return {title: side.name, values: side.values, scale, scaleTitle, over: (context, grid) => grid.pitch >= 12
        && drawOverlays(context, grid, marks, state.overlays, state.theme)};
    });
    const differenceLimit = Math.max(largestOf(this.difference), this.rounding),
      drawn = this.isRounding ? this.difference.map(() => 0) : this.difference;
    this.items = [...sides, {title: 'B − A', values: drawn,
      scale: colourScaleOf({limit: differenceLimit, signed: true, ...style}), scaleTitle: 'B − A'}];
  }

  chooseRow(row) {
    const {tokens} = this.units[row], {state} = this.ctx;
    state.set({row: tokens.includes(state.row) ? null : tokens[0]});
  }

  cellText(row, column) {
    const k = row * this.units.length + column, [query, key] = [row, column].map(i => quotedToken(this.units[i].label)),
      [a, b] = this.sides;
    const steps = `A step ${a.frame.step}, B step ${b.frame.step}`,
      where = `${entryTitle(this.ctx.state.entry)}, ${steps}, ${query} → ${key}`;
    if (!Number.isFinite(this.difference[k])) return `${where}: A or B has no value`;
    const half = a.half(k) + b.half(k);
    const text = side => valueWithStep(side.values[k], side.half(k));
    return `${where}: A ${text(a)}, B ${text(b)}, B − A ${valueWithStep(this.difference[k], half)}`;
  }

  // Half of a row's summed absolute difference is the attention that moved to other keys.
  sayChange() {
    const count = this.units.length,
      rows = this.units.map((_, r) => this.difference.subarray(r * count, (r + 1) * count));
    if (this.ctx.state.what === 'attribution')
      return 'The size of attributions depends on the model: compare patterns, not sizes.';
    const moved = rows.map(row => row.reduce((sum, v) => sum + (Number.isFinite(v) ? Math.abs(v) : 0), 0) / 2);
    const most = moved.indexOf(Math.max(...moved));
    const mean = moved.reduce((a, b) => a + b, 0) / count;
    if (!this.difference.some(Number.isFinite)) return 'A or B has no finite values here.';
    const [a, b] = this.sides.map(({values}) => values), isLost = a.some((v, k) => isFinite(v) !== isFinite(b[k]));
    if (!(moved[most] > 0)) return `A and B are identical ${isLost ? 'where both have values' : 'here'}.`;
    if (this.isRounding) return 'All differences are within the rounding of the stored values.';
    const strongest = quotedToken(this.units[most].label);
    return `On average, ${percent(mean)} of a row’s attention moves to other keys; `
      + `the row of ${strongest} changes most (${percent(moved[most])}).`;
  }
}

export const comparePanel = {
  name: 'compare', title: 'Compare', order: 40, tab: true, shows: 'maps', image: 'compare',
  help: {says: [
    'The same map in two runs or at two steps, on one scale; in B − A, orange means more in B, blue more in A.',
    'A difference in one sentence may be due to the seed; compare several sentences and seeds.'],
  keys: [['← ↑ ↓ →', 'move between cells, in all three maps'], ['Enter', 'choose the row']]},
  view: Compare,
};
