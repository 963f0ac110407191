// Panel 'whatif': other settings of a method, recomputed in the browser from the arrays of the frame and shown next to
// the recorded result. It is meant for teaching the methods.
import {colourScaleOf, percent, scaleColour, shortNumber} from '../lib/colour.js';
import {buttonOf, choiceOf, elementOf, labelled, setText} from '../lib/controls.js';
import {maskedWords} from '../lib/maths.js';
import {chipText, countWords} from '../lib/words.js';
import {copyCount, copyWords, recordedCopy} from './masked.js';
import {largest, maskSum, WhatIfGroup, WhatIfPair, whatIfSlider, whyNoMap} from './whatifgroup.js';
import {WhatIfRegion} from './whatifregion.js';
import {WhatIfPattern, WhatIfTarget} from './whatiftarget.js';
import {entryTitle, evidenceOf, mapOf, methodNames} from '../state/derive.js';

const whatIfKeys = ['frames', 'meta', 'run', 'probe', 'step', 'entry', 'whatIf', 'threshold', 'palette', 'theme',
  'size'];
class WhatIfMask extends WhatIfGroup {
  constructor(ctx) {
    super(ctx, 'Saliency guided training: masked words', 'SaliencyGuided');
    this.fraction = whatIfSlider('Mask fraction', 100, fraction => this.change({maskedShare: fraction}));
    const rankings = [['signed', 'signed value: lowest first'], ['magnitude', 'magnitude: closest to 0 first']];
    this.ranking = choiceOf(rankings, ranking => this.change({ranking}));
    const fallbacks = [['next', 'use the next unmasked word'], ['keep', 'keep the word'],
      ['mask', 'use the mask token']];
    this.first = choiceOf(fallbacks, first => this.change({first}));
    this.controls.append(this.fraction.el, labelled('Rank by', this.ranking),
      labelled('If no unmasked word precedes it', this.first));
    this.lines = elementOf('div', 'sv-mask-lines');
    this.result.append(this.lines);
  }

  get now() {
    const {mask_fraction: fraction = .3, ranking = 'signed', first = 'next'} = this.args, {settings} = this;
    return {maskedShare: settings.maskedShare ?? fraction, ranking: settings.ranking ?? ranking,
      first: settings.first ?? first};
  }

  change(changes) { this.set({...this.now, ...changes}); }
  get saliency() { return evidenceOf(this.frame, 'method_saliency', this.method) ?? this.frame.get('saliency'); }
  why() { return this.saliency ? '' : 'The mask is computed from saliency, which was not recorded at this step.'; }

  show() {
    const {frame, probe, now} = this;
    this.was = recordedCopy(frame, probe);
    this.recomputed = recomputedCopy(probe, this.saliency.values(), now);
    this.fraction.show(now.maskedShare);
    this.ranking.value = now.ranking;
    this.first.value = now.first;
    const {of} = copyCount(this.recomputed), k = Math.floor(of * now.maskedShare + 1e-6);
    const lowest = now.ranking === 'signed' ? 'lowest saliency' : 'saliency closest to 0';
    setText(this.lesson,
      `Of ${countWords(of, 'word')}, ${k ? `the ${k === 1 ? 'one' : k} with the ${lowest}` : 'none'} `
        + `(mask fraction ${now.maskedShare.toFixed(2)}, rounded down) ${k > 1 ? 'are each' : 'is'} replaced `
        + 'by the nearest preceding unmasked word. Training penalises a change in the prediction.');
    setText(this.counts, this.sayCounts());
    this.lines.replaceChildren(maskLine('recorded', this.was, null), maskLine('what-if', this.recomputed, this.was));
  }

  sayCounts() {
    const counts = copyCount(this.recomputed),
      differ = this.recomputed.filter((w, i) => copyDiffers(w, this.was?.[i])).length;
    const differs = countWords(differ, 'position differs', 'positions differ');
    const recorded = this.was ? `recorded: ${copyCount(this.was).replaced}; ${differs}`
      : 'no masked copy was recorded';
    return `What-if: ${counts.replaced} of ${countWords(counts.of, 'word')} replaced; ${recorded}.`;
  }
}

// The masked copy that training would have used with other settings.
export function recomputedCopy(probe, saliency, settings) {
  const {maskedShare: fraction, ranking, first} = settings, mask = 'the mask token';
  const {masked, source} = maskedWords(saliency, probe.word_ids, {fraction, ranking, first});
  const after = list => probe.tokens.map((_, i) => source[i] < 0 ? mask : list[source[i]]);
  return copyWords(probe, masked, probe.tokens, after(probe.tokens), after(probe.labels));
}

function copyDiffers(word, other) {
  return Boolean(other) && (other.copy !== word.copy || other.replaced !== word.replaced); }

function maskLine(name, words, other) {
  const line = elementOf('span', 'sv-target-words'),
    row = elementOf('div', 'sv-target-row', elementOf('span', 'sv-line-name', name), line);
  if (!words) line.append(elementOf('span', 'sv-note', 'nothing recorded'));
  words?.forEach((word, i) => {
    if (word.special) return;
    const text = elementOf('bdi', '', chipText(word.copy, 20)), differs = copyDiffers(word, other?.[i]);
    const chip = elementOf('span', `sv-chip${word.replaced ? ' sv-replaced' : ''}${differs ? ' sv-differs' : ''}`,
      text);
    chip.title = word.replaced ? `replaces ${chipText(word.label)}` : 'kept';
    line.append(chip);
  });
  return row;
}

class WhatIfThreshold extends WhatIfGroup {
  constructor(ctx) {
    super(ctx, 'Threshold: positions that receive most of the attention', '');
    // Most weights are small, so the slider is finer there.
    this.slider = whatIfSlider('Threshold', 200, v => ctx.state.set({threshold: Number((v * v).toPrecision(2))}),
      v => shortNumber(v * v));
    this.controls.append(this.slider.el);
    this.maps = new WhatIfPair((i, j) => `${this.pair(i,
      j)}: attention ${shortNumber(this.map.values[i * this.map.n + j])}`,
      ctx.announce);
    this.result.append(this.maps.el);
  }

  why() {
    return whyNoMap(mapOf(this.frame, this.head, 'attention'));
  }

  show() {
    const {threshold, palette, theme} = this.ctx.state, map = mapOf(this.frame, this.head, 'attention');
    this.map = map;
    this.slider.show(Math.sqrt(threshold));
    const above = map.values.filter(v => v >= threshold), percentage = percent(maskSum(above) / maskSum(map.values));
    const [have, receive] = above.length === 1 ? ['has', 'receives'] : ['have', 'receive'];
    const words = `${map.title}: of ${map.values.length} positions, ${above.length} ${have} a value of at least `
      + `${shortNumber(threshold)} and ${receive} ${percentage} of the attention.`;
    const scale = colourScaleOf({limit: largest(map.values), palette, theme});
    setText(this.lesson,
      'Values below the threshold are left blank, here and on the map.');
    setText(this.counts, words);
    const side = low => ({colours: Uint32Array.from(map.values, v => v >= low ? scaleColour(scale, v) : scale.blank),
      draw: () => {}, words});
    this.maps.draw(map.n, [side(-1), side(threshold)], this.space, this.probe, theme);
  }
}

class WhatIf {
  constructor(ctx) {
    this.ctx = ctx;
    this.groups = [WhatIfRegion, WhatIfPattern, WhatIfTarget, WhatIfMask, WhatIfThreshold].map(Group => new Group(ctx));
    this.back = buttonOf('Reset', 'return to the recorded settings',
      () => ctx.state.set({whatIf: null, threshold: 0}));
    this.where = elementOf('span', 'sv-whatif-where');
    this.note = elementOf('p', 'sv-note');
    this.list = elementOf('div', 'sv-groups');
    this.head = elementOf('div', 'sv-whatif-head', this.where, this.back);
    this.el = elementOf('section', 'sv-panel sv-whatif', this.head, this.note, this.list);
    this.el.setAttribute('aria-label', 'What-if settings');
  }

  // The methods of the run come first; the first group is open.
  order(methods) {
    if (methods.join() === this.ordered) return;
    this.ordered = methods.join();
    const ofMethods = this.groups.filter(g => methods.includes(g.method)),
      rest = this.groups.filter(g => !methods.includes(g.method));
    this.list.replaceChildren(...[...ofMethods, ...rest].map(g => g.el));
    const first = ofMethods[0] ?? this.groups.find(g => g.frame && !g.why()) ?? rest[0];
    for (const group of this.groups) group.el.open = group === first;
  }

  update(changed) {
    if (!whatIfKeys.some(key => changed.has(key))) return;
    const {store, state} = this.ctx, frame = store.frameOf(state), probe = store.probe(state.run, state.probe),
      step = store.stepOf(state);
    this.back.disabled = !state.whatIf && !state.threshold;
    this.list.hidden = !frame || !probe;
    setText(this.note, frame ? '' : step === null ? 'Nothing has been recorded yet.' : store.why(state.run, state.probe,
      step));
    setText(this.where,
      frame ? `${entryTitle(state.entry)}, step ${frame.step}. Recomputed in the browser; the run does not change.`
        : '');
    if (!frame || !probe) return;
    const space = this.list.clientWidth - 24;
    for (const group of this.groups) Object.assign(group, {frame, probe});
    this.order(frame.info.method ? methodNames(frame) : store.run(state.run).method.split(' + '));
    for (const group of this.groups) group.update(frame, probe, space);
  }
}

export const whatIfPanel = {
  name: 'whatif', title: 'What-if settings', order: 50, tab: true, shows: 'text', image: 'whatif',
  help: {says: [
    'Recomputes a method’s choice at this step with other settings and shows it next to the recorded choice.',
    'No model is retrained, so this does not show how a model trained with these settings would behave.'],
  keys: [['← →', 'move a slider'], ['Enter', 'open or close the settings of a method'],
    ['← ↑ ↓ →', 'in a map: move between cells']]},
  tour: 'other settings of the method. Move a slider to see what the method would have chosen.',
  view: WhatIf,
};
