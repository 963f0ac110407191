// What-if settings for AD-DROP: another discard region, another random draw.
import {colourScaleOf, percent} from '../lib/colour.js';
import {choiceOf, labelled, setText, tickBox} from '../lib/controls.js';
import {candidateCount} from '../lib/maths.js';
import {countWords} from '../lib/words.js';
import {drawCrosses, drawRegion} from './overlays.js';
import {chosenOnly, maskDiffer, maskSum, WhatIfGroup, WhatIfPair, whatIfSlider} from './whatifgroup.js';
import {methodNames, ranksOfHead, regionOf, regionWith} from '../state/derive.js';

const plainEpoch =
  'Cross-tuning uses plain fine-tuning in this epoch, so nothing is dropped. '
    + 'The time panel shades the epochs with AD-DROP.';
const noRanks =
  'The region is computed from the ranks of attention attribution, which were not recorded at this step; '
    + 'they are recorded if you train with AD-DROP or call explore().';
const halfRanks =
  ' The ranks come from attributions stored in half precision, so some ties may not have been ties in training.';
const regionNames = {
  high: 'highest attributions', low: 'lowest attributions', low_released: 'lowest (as many as in the released code)',
};
export class WhatIfRegion extends WhatIfGroup {
  constructor(ctx) {
    super(ctx, 'AD-DROP: discard region and random draw', 'ADDrop');
    this.p = whatIfSlider('p', 100, p => this.change({p}));
    this.q = whatIfSlider('q', 100, q => this.change({q}));
    this.region = choiceOf(Object.entries(regionNames), region => this.change({region}));
    this.protect = tickBox(protect => this.change({protect}));
    this.controls.append(this.p.el, this.q.el, labelled('Region', this.region),
      labelled('Protect special tokens', this.protect, 'sv-check'));
    this.maps = new WhatIfPair((i, j) => this.cellWords(i, j), ctx.announce);
    this.result.append(this.maps.el);
  }

  get recorded() {
    const {p = .3, q = .3, region = 'high', protect_special: protect = false} = this.args;
    return {p, q, region, protect};
  }

  get now() {
    const {recorded, settings} = this;
    return Object.fromEntries(Object.entries(recorded).map(([k, v]) => [k, settings[k] ?? v]));
  }

  change(changes) { this.set({...this.now, ...changes}); }

  why() {
    const {layer, head} = this.head, {frame} = this;
    if (this.whyHead()) return this.whyHead();
    if (ranksOfHead(frame, layer, head)) return '';
    if (frame.info.phase && !frame.info.phase.includes('ad_drop') && methodNames(frame).includes('ADDrop'))
      return plainEpoch;
    const layers = frame.layers('attribution_ranks');
    if (layers.length && !layers.includes(layer))
      return `Layer ${layer} has no attribution ranks; layers with ranks: ${layers.join(', ')}.`;
    return layers.length || frame.names.some(name => name.startsWith('attribution_ranks')) ? chosenOnly('ranks')
      : noRanks;
  }

  show() {
    const {frame, probe, now} = this, {layer, head} = this.head, state = this.ctx.state;
    this.was = regionOf(frame, {...state.get(), whatIf: null}, layer, head, probe.is_special);
    this.recomputed = regionWith(frame, probe.is_special, now, layer, head);
    this.keyCounts = this.allowedCounts();
    this.small = this.maps.edge(this.space) / this.recomputed.n < 3;
    for (const name of ['p', 'q']) this[name].show(now[name]);
    this.region.value = now.region;
    this.protect.checked = now.protect;
    setText(this.lesson, this.lessonWords());
    setText(this.counts, this.countWords());
    this.draw();
  }

  lessonWords() {
    const {p, q, region, protect} = this.now, n = Math.max(...this.keyCounts), many = candidateCount(n, p, region);
    const side = region === 'high' ? 'highest' : 'lowest',
      darker = this.ctx.state.theme === 'dark' ? 'lighter' : 'darker';
    const meaning = `p is the fraction of each query’s keys that may be dropped: of ${n} keys${protect
      ? ' (without special tokens)' : ''}, `
      + (many ? `the ${many === 1 ? 'one' : many} with the ${side} attribution.` : 'none.');
    const draw = many
      ? ` Each candidate is dropped with probability q (${percent(q)}), using the random numbers of this `
      + 'training step. A larger q drops the same keys and additional ones, but no query loses all its keys.' : '';
    const marks = this.small ? `Colour: candidates are ${darker}, dropped keys ${darker === 'darker' ? 'darkest'
      : 'lightest'}.`
      : `Outlines: candidates; crosses: dropped; ${darker} colours: higher attribution ranks in the row.`;
    return `${meaning}${this.tieWords()}${draw} ${marks}`;
  }

  // In the last layer, only the row that the classifier reads has non-zero attributions.
  tieWords() {
    const {n, candidates, leftOut} = this.recomputed, {p, region} = this.now, unreadRows = maskSum(leftOut);
    const out = unreadRows
      ? ` Rows on which the score does not depend are left out (${unreadRows} of ${n}).` : '';
    const sizeOf = i => maskSum(candidates.subarray(i * n, i * n + n));
    const tied = this.keyCounts.filter((count, i) => !leftOut[i] && sizeOf(i) !== candidateCount(count, p, region))
      .length;
    if (!tied) return out;
    const unread = '. The classifier does not read these rows, so all their attributions are 0';
    const change = region === 'low_released' ? 'fewer' : 'more';
    return ` In ${tied} of ${countWords(n, 'row')}, keys tie at the threshold, `
      + `so there are ${change} candidates than without ties${tied > n / 2 ? unread : ''}.${out}`;
  }

  allowedCounts() {
    const {n, allowed} = this.recomputed, {protect} = this.now,
      counts = this.probe.is_special.map(s => !(protect && s));
    return Array.from({length: n}, (_, i) => {
      let sum = 0;
      for (let j = 0; j < n; j++) if (allowed[i * n + j] && counts[j]) sum++;
      return sum;
    });
  }

  countWords() {
    const {was, recomputed, frame} = this, dropped = mask => mask ? `, ${maskSum(mask)} dropped` : '';
    const count = ({candidates, discarded}) => `${countWords(maskSum(candidates), 'candidate')}${dropped(discarded)}`;
    const differ = `${countWords(maskDiffer(recomputed.candidates, was.candidates), 'candidate')} and `
      + `${countWords(maskDiffer(recomputed.discarded, was.discarded), 'dropped position')} differ`;
    const recorded = was.candidates ? `recorded: ${count(was)}; ${differ}`
      : 'no region was recorded (not trained with AD-DROP)';
    const half = frame.info.ranks === 'stored values' ? halfRanks : '';
    const draw = recomputed.discarded ? ''
      : ' Drops cannot be recomputed: the seed, the step or the example index was not recorded.';
    return `What-if, ${this.headWords()}: ${count(recomputed)}; ${recorded}.${draw}${half}`;
  }

  // The colour scale is a square-root scale, but ranks should be evenly spaced.
  rankColours() {
    const {layer, head} = this.head, {palette, theme} = this.ctx.state, ranks = ranksOfHead(this.frame, layer, head),
      n = this.recomputed.n;
    const scale = colourScaleOf({limit: 1, palette, theme}),
      tops = Array.from({length: n}, (_, i) => Math.max(...ranks.subarray(i * n, i * n + n)));
    const place = (r, k) => Math.round(.75 * 255 * (r - 1) / Math.max(1, tops[Math.floor(k / n)] - 1));
    return Uint32Array.from(ranks, (r, k) => r ? scale.table[place(r, k)] : scale.blank);
  }

  // In long sentences, cells are too small for outlines and crosses: colours mark candidates and drops.
  markColours({candidates, discarded}) {
    const {palette, theme} = this.ctx.state, {table} = colourScaleOf({limit: 1, palette, theme});
    return Uint32Array.from({length: this.recomputed.n ** 2},
      (_, k) => discarded?.[k] ? table[255] : candidates?.[k] ? table[100] : table[0]);
  }

  draw() {
    const {theme} = this.ctx.state, {was, recomputed, small} = this, ranked = small ? null : this.rankColours();
    const marks = ({candidates, discarded}) => (context, grid) => {
      if (candidates) drawRegion(context, grid, candidates, theme);
      if (discarded) drawCrosses(context, grid, discarded, theme);
    };
    const side = (region, words) => ({
      colours: ranked ?? this.markColours(region), words, draw: small ? () => {} : marks(region),
        nothing: region.candidates ? '' : 'no region',
    });
    const sides = [side(was, `Recorded region of ${this.headWords()}.`), side(recomputed, this.countWords())];
    this.maps.draw(recomputed.n, sides, this.space, this.probe, theme);
  }

  cellWords(i, j) {
    const k = i * this.recomputed.n + j, inRegion = r => r.discarded?.[k] ? 'dropped' : 'candidate';
    const text = r => r.candidates ? r.candidates[k] ? inRegion(r) : 'kept' : 'no region';
    const ranks = ranksOfHead(this.frame, this.head.layer, this.head.head);
    return `${this.pair(i, j)}: ${ranks[k] ? `rank ${ranks[k]}` : 'no rank'}; recorded: ${text(this.was)}; `
      + `what-if: ${text(this.recomputed)}`;
  }
}
