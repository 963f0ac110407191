// What if: other settings of a method, recomputed here from the arrays of the frame beside what was recorded. This is
// how the methods are taught.
import {CellGrid, CellPainter, SharpCanvas} from '../lib/canvas.js';
import {colourScaleOf, percent, scaleColour, shortNumber} from '../lib/colour.js';
import {entryTitle, evidenceOf, mapOf, methodArgs, methodNames, patternGiven, patternOf} from '../state/derive.js';
import {pooledRow, ranksOfHead, regionOf, regionWith, sallmTarget, targetOf} from '../state/derive.js';
import {copyCount, copyWords, recordedCopy} from './masked.js';
import {candidateCount, kl, maskedWords} from '../lib/maths.js';
import {drawCrosses, drawRegion, drawTarget, patternWords} from './overlays.js';
import {chipText, countWords, listWords, paintToken, quoted} from '../lib/words.js';
import {buttonOf, choiceOf, elementOf, labelled, rangeOf, setText, tickBox} from '../lib/controls.js';

const whatIfKeys = ['frames', 'meta', 'run', 'probe', 'step', 'entry', 'whatIf', 'threshold', 'palette', 'theme',
  'size'];
const plainEpoch =
  'Cross-tuning spends this epoch on plain fine-tuning: nothing is dropped here. '
    + 'The shaded epochs of the time panel have regions.';
const noRanks =
  'The region follows from the ranks of attention attribution, which this step does not hold; '
    + 'AD-DROP runs and explore() record them.';
const halfRanks =
  ' The ranks were made from attributions stored in half precision: training may have told apart what is equal here.';
const regionNames = {
  high: 'highest attributions', low: 'lowest attributions', low_released: 'lowest, as the released code counts',
};
const patternNames = ['next', 'prev', 'first', 'delim', 'period'];

function whatIfSlider(label, most, onChange, say = v => v.toFixed(2)) {
  const range = rangeOf(most, v => onChange(v / most)), shown = elementOf('output', 'sv-slider-value');
  const el = labelled(label, range, 'sv-field sv-slider');
  el.append(shown);
  const show = value => {
    range.value = Math.round(value * most);
    setText(shown, say(value));
  };
  return {el, range, show};
}

function chosenOnly(what) { return `Long sentences ship the ${what} of chosen heads only; this head is not among them.`;
  }
function whyNoMap(map) { return map.values ? map.pooled > 1 ? chosenOnly('whole maps') : '' : map.note; }
function largest(values) { return values.reduce((top, v) => Math.max(top, Math.abs(v)), 0); }

function withoutEmpty(whatIf) {
  const kept = Object.fromEntries(Object.entries(whatIf).filter(([, v]) => v !== undefined && v !== null && v !== ''));
  return Object.keys(kept).length ? kept : null;
}

function maskSum(mask) {
  let sum = 0;
  for (const v of mask ?? []) sum += v;
  return sum;
}

function maskDiffer(a, b) {
  let sum = 0;
  if (a && b) for (let k = 0; k < a.length; k++) sum += Number(a[k] !== b[k]);
  return sum;
}

// Two maps of the chosen head, as recorded and as they would be, with a line that reads the cell below the pointer.
class WhatIfPair {
  constructor(readCell) {
    Object.assign(this, {readCell, painter: new CellPainter(), sides: [whatIfSide(), whatIfSide()]});
    this.reading = elementOf('p', 'sv-note sv-pair-reading');
    this.el = elementOf('div', 'sv-pair', ...this.sides.map(s => s.el), this.reading);
    for (const {canvas} of this.sides) {
      canvas.el.addEventListener('mousemove', e => this.read(canvas, e));
      canvas.el.addEventListener('mouseleave', () => setText(this.reading, ''));
    }
  }

  read(canvas, e) {
    const [x, y] = canvas.at(e);
    setText(this.reading, this.grid?.inside(x, y) ? this.readCell(this.grid.rowAt(y), this.grid.columnAt(x)) : '');
  }

  edge(room) { return Math.max(90, Math.min(300, Math.floor((room - 22) / 2))); }

  // sides: [{colours, draw(context, grid), words, nothing}], recorded first; nothing: what is not there.
  draw(n, sides, room) {
    const edge = this.edge(room);
    sides.forEach(({colours, draw, words, nothing}, i) => {
      const {canvas, title} = this.sides[i];
      setText(title, ['recorded', 'what if'][i] + (nothing ? `: ${nothing}` : ''));
      canvas.size(edge, edge);
      const axis = {count: n, from: 0, span: n};
      this.grid = new CellGrid({x: 0, y: 0, width: edge, height: edge, columns: axis, rows: axis, ratio: canvas.ratio});
      this.painter.paint(canvas.context, this.grid, colours);
      draw(canvas.context, this.grid);
      canvas.el.setAttribute('aria-label', words);
    });
  }
}

function whatIfSide() {
  const canvas = new SharpCanvas('sv-pair-map'), title = elementOf('figcaption');
  return {canvas, title, el: elementOf('figure', 'sv-pair-side', title, canvas.el)};
}

// One method's part of the panel: its controls, what they would have changed, and one sentence on what that means.
class WhatIfGroup {
  constructor(ctx, title, method) {
    Object.assign(this, {ctx, title, method});
    this.summary = elementOf('summary', '', title);
    this.controls = elementOf('div', 'sv-group-controls');
    this.result = elementOf('div', 'sv-group-result');
    this.counts = elementOf('p', 'sv-group-counts');
    this.lesson = elementOf('p', 'sv-note');
    this.missing = elementOf('p', 'sv-note sv-group-missing');
    this.body = elementOf('div', 'sv-group-body', this.lesson, this.controls, this.counts, this.result);
    this.el = elementOf('details', 'sv-group', this.summary, this.missing, this.body);
    this.el.addEventListener('toggle', () => {
      if (this.el.open && this.frame) this.update(this.frame, this.probe, this.room); });
  }

  set(changes) { this.ctx.state.set({whatIf: withoutEmpty({...this.ctx.state.whatIf, ...changes})}); }
  get args() { return methodArgs(this.frame, this.method); }
  get settings() { return this.ctx.state.whatIf ?? {}; }
  get head() { return this.ctx.state.entry; }

  update(frame, probe, room) {
    Object.assign(this, {frame, probe, room});
    const why = this.why();
    this.body.hidden = Boolean(why);
    this.missing.hidden = !why;
    setText(this.missing, why);
    if (!why && this.el.open) this.show();
  }

  whyHead() { return this.head.kind === 'head' ? '' : `This needs one head; ${entryTitle(this.head)} is chosen.`; }
  headWords() { return entryTitle(this.head); }
  pair(i, j) { return `query ${quoted(this.probe.labels[i])}, key ${quoted(this.probe.labels[j])}`; }
}

class WhatIfRegion extends WhatIfGroup {
  constructor(ctx) {
    super(ctx, 'AD-DROP: discard region and draw', 'ADDrop');
    this.p = whatIfSlider('p', 100, p => this.change({p}));
    this.q = whatIfSlider('q', 100, q => this.change({q}));
    this.region = choiceOf(Object.entries(regionNames), region => this.change({region}));
    this.protect = tickBox(protect => this.change({protect}));
    this.controls.append(this.p.el, this.q.el, labelled('region', this.region),
      labelled('protect special tokens', this.protect, 'sv-check'));
    this.maps = new WhatIfPair((i, j) => this.cellWords(i, j));
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
      return `Layer ${layer} has no attribution ranks; layers ${layers.join(', ')} have.`;
    return layers.length || frame.names.some(name => name.startsWith('attribution_ranks')) ? chosenOnly('ranks')
      : noRanks;
  }

  show() {
    const {frame, probe, now} = this, {layer, head} = this.head, state = this.ctx.state;
    this.was = regionOf(frame, {...state.get(), whatIf: null}, layer, head, probe.is_special);
    this.made = regionWith(frame, probe.is_special, now, layer, head);
    this.keyCounts = this.allowedCounts();
    this.small = this.maps.edge(this.room) / this.made.n < 3;
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
    const share = `p is the share of each query’s keys that may be dropped: of ${n} keys${protect
      ? ' (special ones not counted)' : ''}, `
      + (many ? `${many}, those with the ${side} attribution.` : 'none, so every key is kept.');
    const draw = many
      ? ` Each candidate is dropped with probability q, here ${percent(
        q)}, by the random numbers of the training step: `
      + 'a larger q only adds to what is dropped, and no query ever loses all its keys.' : '';
    const marks = this.small ? `Colour: ${darker} ones are candidates, the ${darker === 'darker' ? 'darkest'
      : 'lightest'} are dropped.`
      : `Outlined: candidates; crosses: dropped; the ${darker} the colour, `
        + 'the higher the attribution’s rank in its row.';
    return `${share}${this.tieWords()}${draw} ${marks}`;
  }

  // In the last layer only the row that the classifier reads has attributions other than 0.
  tieWords() {
    const {n, candidates} = this.made, {p, region} = this.now;
    const sizeOf = i => maskSum(candidates.subarray(i * n, i * n + n));
    const tied = this.keyCounts.filter((count, i) => sizeOf(i) !== candidateCount(count, p, region)).length;
    if (!tied) return '';
    const unread = ': the classifier does not read those rows here, so their attributions are all 0';
    const change = region === 'low_released' ? 'fewer' : 'more';
    return ` In ${countWords(tied, 'row')} of ${n} keys are equal at the threshold, `
      + `so ${change} of them are candidates${tied > n / 2 ? unread : ''}.`;
  }

  allowedCounts() {
    const {n, allowed} = this.made, {protect} = this.now, counts = this.probe.is_special.map(s => !(protect && s));
    return Array.from({length: n}, (_, i) => {
      let sum = 0;
      for (let j = 0; j < n; j++) if (allowed[i * n + j] && counts[j]) sum++;
      return sum;
    });
  }

  countWords() {
    const {was, made, frame} = this, dropped = mask => mask ? `, ${maskSum(mask)} dropped` : '';
    const count = ({candidates, discarded}) => `${countWords(maskSum(candidates), 'candidate')}${dropped(discarded)}`;
    const differ = `${maskDiffer(made.candidates, was.candidates)} candidates and ${maskDiffer(made.discarded,
      was.discarded)} drops differ`;
    const recorded = was.candidates ? `recorded: ${count(was)}; ${differ}`
      : 'this run recorded no region, it was not trained with AD-DROP';
    const half = frame.info.ranks === 'stored values' ? halfRanks : '';
    const draw = made.discarded ? '' : ' There is no draw: seed, step or example number was not recorded.';
    return `What if, ${this.headWords()}: ${count(made)}; ${recorded}.${draw}${half}`;
  }

  // The scale has places by the square root; ranks should be even steps.
  rankColours() {
    const {layer, head} = this.head, {palette, theme} = this.ctx.state, ranks = ranksOfHead(this.frame, layer, head),
      n = this.made.n;
    const scale = colourScaleOf({limit: 1, palette, theme}),
      tops = Array.from({length: n}, (_, i) => Math.max(...ranks.subarray(i * n, i * n + n)));
    const place = (r, k) => Math.round(.75 * 255 * (r - 1) / Math.max(1, tops[Math.floor(k / n)] - 1));
    return Uint32Array.from(ranks, (r, k) => r ? scale.table[place(r, k)] : scale.blank);
  }

  // Cells of a long sentence are too small for outlines and crosses: the marks are the colours.
  markColours({candidates, discarded}) {
    const {palette, theme} = this.ctx.state, {table} = colourScaleOf({limit: 1, palette, theme});
    return Uint32Array.from({length: this.made.n ** 2},
      (_, k) => discarded?.[k] ? table[255] : candidates?.[k] ? table[100] : table[0]);
  }

  draw() {
    const {theme} = this.ctx.state, {was, made, small} = this, ranked = small ? null : this.rankColours();
    const marks = ({candidates, discarded}) => (context, grid) => {
      if (candidates) drawRegion(context, grid, candidates, theme);
      if (discarded) drawCrosses(context, grid, discarded, theme);
    };
    const side = (region, words) => ({
      colours: ranked ?? this.markColours(region), words, draw: small ? () => {} : marks(region),
        nothing: region.candidates ? '' : 'no region',
    });
    this.maps.draw(made.n, [side(was, `recorded region of ${this.headWords()}`), side(made, this.countWords())],
      this.room);
  }

  cellWords(i, j) {
    const k = i * this.made.n + j, inRegion = r => r.discarded?.[k] ? 'dropped' : 'candidate';
    const said = r => r.candidates ? r.candidates[k] ? inRegion(r) : 'kept' : 'nothing recorded';
    const ranks = ranksOfHead(this.frame, this.head.layer, this.head.head);
    return `${this.pair(i, j)}: rank ${ranks[k] || 'none'}; recorded: ${said(this.was)}; what if: ${said(this.made)}`;
  }
}

const patternLessons = {
  next: 'the token after it', prev: 'the token before it', first: 'the first token', delim: 'the special tokens',
    period: 'the full stops',
};

class WhatIfPattern extends WhatIfGroup {
  constructor(ctx) {
    super(ctx, 'Attention guidance: pattern of the chosen head', 'AttentionGuidance');
    this.pattern = choiceOf([['', 'as recorded'], ...patternNames.map(name => [name, name])],
      pattern => this.set({pattern}));
    this.boundary = choiceOf([['uniform', '1/n everywhere (paper)'], ['zero', 'nothing (released code)']],
      boundary => this.set({boundary}));
    this.multiple = choiceOf([['uniform', 'share: 1/m each (paper)'], ['indicator', '1 each (released code)']],
      multiple => this.set({multiple}));
    const rules = [labelled('row without a neighbour', this.boundary), labelled('several such tokens', this.multiple)];
    this.fields = [labelled('pattern', this.pattern), ...rules];
    this.controls.append(...this.fields);
    this.maps = new WhatIfPair((i, j) => this.cellWords(i, j));
    this.result.append(this.maps.el);
  }

  why() {
    if (this.whyHead()) return this.whyHead();
    return whyNoMap(mapOf(this.frame, this.head, 'attention'));
  }

  // The rules for boundary and several occurrences are the run's, until they are chosen here.
  get rules() {
    const {boundary = this.args.boundary ?? 'uniform', multiple = this.args.multiple ?? 'uniform'} = this.settings;
    return {boundary, multiple};
  }

  show() {
    const {state} = this.ctx, {layer, head} = this.head, {frame, probe, rules} = this,
      chosen = this.settings.pattern ?? '';
    this.attention = mapOf(frame, this.head, 'attention');
    this.was = targetOf(frame, {...state.get(), whatIf: null}, layer, head, probe);
    const values = chosen ? patternOf(chosen, probe, rules.boundary, rules.multiple) : null;
    this.made = chosen ? values && {values: Float32Array.from(values), n: this.attention.n, name: chosen} : this.was;
    this.pattern.value = chosen;
    this.boundary.value = rules.boundary;
    this.multiple.value = rules.multiple;
    this.fields[1].hidden = !['next', 'prev'].includes(chosen);
    this.fields[2].hidden = !['delim', 'period'].includes(chosen);
    const choose = 'Choose a pattern to see what it would ask of this head.';
    const asks = chosen ? `Pattern “${chosen}” asks every query to look at ${patternLessons[chosen]}.` : choose;
    setText(this.lesson,
      `Guidance adds the squared residual, attention minus pattern, to the loss: `
        + `the head is pulled towards the dots. ${asks}`
      + (this.made || this.was
        ? ' Colour: the residual, orange where there is more attention than asked for, blue where there is less.'
          : ''));
    setText(this.counts, this.lossWords());
    this.draw();
  }

  residual(target) { return target ? this.attention.values.map((a, k) => a - target.values[k]) : null; }

  loss(target) {
    const residual = this.residual(target);
    return residual.reduce((sum, r) => sum + r * r, 0) / residual.length;
  }

  lossWords() {
    const said = target => `mean squared residual ${shortNumber(this.loss(target))}`, {was, made} = this,
      where = this.headWords();
    const name = was && (patternGiven(this.frame, this.head.layer, this.head.head) ?? patternWords(was.values, was.n,
      this.probe.labels));
    const recorded = was ? `recorded (${name}): ${said(was)}` : 'recorded: this head is not guided';
    if (!this.settings.pattern) return `${where}, ${recorded}.`;
    return `What if, ${where}: ${made ? said(made)
      : 'the sentence has no token of this pattern, so the head would not be guided'}; ${recorded}.`;
  }

  // Colour is the residual where there is a target, else the attention.
  draw() {
    const {theme, palette} = this.ctx.state, {values} = this.attention,
      residuals = [this.was, this.made].map(t => this.residual(t));
    const signed = colourScaleOf({limit: Math.max(...residuals.map(r => r ? largest(r) : 0)), signed: true, theme});
    const plain = colourScaleOf({limit: largest(values), palette, theme});
    const painted = (some, scale) => Uint32Array.from(some, v => scaleColour(scale, v));
    const sides = [this.was, this.made].map((target, i) => ({
      colours: residuals[i] ? painted(residuals[i], signed) : painted(values, plain),
      draw: (context, grid) => target && drawTarget(context, grid, target.values, theme), words: this.lossWords(),
        nothing: target ? '' : 'no pattern',
    }));
    this.maps.draw(this.attention.n, sides, this.room);
  }

  cellWords(i, j) {
    const k = i * this.attention.n + j, a = this.attention.values[k];
    const of = t => t ? `target ${shortNumber(t.values[k])}, residual ${shortNumber(a - t.values[k])}` : 'no target';
    return `${this.pair(i, j)}: attention ${shortNumber(a)}; recorded: ${of(this.was)}; what if: ${of(this.made)}`;
  }
}

class WhatIfTarget extends WhatIfGroup {
  constructor(ctx) {
    super(ctx, 'SalLM: target that attention should follow', 'SalLM');
    this.share = whatIfSlider('top share', 100,
      v => this.set({topShare: Math.max(.01, v), binarised: this.now.binarised}));
    this.binarised = tickBox(binarised => this.set({binarised, topShare: this.now.topShare}));
    this.controls.append(this.share.el, labelled('mark the top tokens alike', this.binarised, 'sv-check'));
    this.line = elementOf('div', 'sv-target-line');
    this.result.append(this.line);
  }

  get now() {
    const {top_share: share = .1, binarised = true} = this.args;
    return {topShare: this.settings.topShare ?? share, binarised: this.settings.binarised ?? binarised};
  }

  get saliency() { return evidenceOf(this.frame, 'method_saliency', this.method) ?? this.frame.get('saliency'); }
  why() { return this.saliency ? '' : 'The target follows from saliency, which this step does not hold.'; }

  show() {
    const {state} = this.ctx, {frame, probe, now} = this, special = probe.is_special;
    this.was = sallmTarget(frame, {...state.get(), whatIf: null}, special)?.values ?? null;
    this.made = sallmTarget(frame, {...state.get(), whatIf: {...now}}, special).values;
    this.share.show(now.topShare);
    this.share.range.disabled = !now.binarised;
    this.binarised.checked = now.binarised;
    const count = special.filter(s => !s).length, marked = Math.max(1, Math.ceil(count * now.topShare - 1e-6));
    const teacher = evidenceOf(frame, 'method_saliency', 'SalLM') && methodNames(frame).includes('SalLM')
      ? ' for the teacher' : '';
    const marks = marked === 1 ? `Of ${count} tokens the one with the highest saliency${teacher} gets the whole target`
      : `Of ${count} tokens the ${marked} with the highest saliency${teacher} get equal shares of the target`;
    const made = now.binarised ? `${marks} (top share ${now.topShare.toFixed(2)}, rounded up)`
      : `The target is the saliency${teacher}: positive values in proportion, negative ones 0`;
    setText(this.lesson, `${made}. The loss pulls the attention of the row that the classifier reads towards it.`);
    setText(this.counts, this.lossWords());
    this.draw();
  }

  // KL(target || attention of the pooled row of the last layer, mean over heads), over the ordinary tokens.
  loss(target) {
    const layer = this.frame.layers('attention').at(-1), map = mapOf(this.frame, {kind: 'heads', layer}, 'attention');
    if (!target || !map.values || map.pooled > 1) return NaN;
    const row = pooledRow(this.frame);
    if (row === null) return NaN;
    return kl(target, map.values.subarray(row * map.n, (row + 1) * map.n), this.probe.is_special.map(s => !s));
  }

  lossWords() {
    const names = target => listWords(this.probe.labels.filter((_, i) => target[i] > 0)) || 'nothing';
    const loss = target => Number.isFinite(this.loss(target))
      ? `, KL(target ‖ attention) ${shortNumber(this.loss(target))}` : '';
    const recorded = this.was ? `recorded: ${names(this.was)}${loss(this.was)}` : 'this run recorded no target';
    return `What if: ${names(this.made)}${loss(this.made)}; ${recorded}.`;
  }

  draw() {
    const {palette, theme} = this.ctx.state, ordinary = this.probe.is_special.flatMap((s, i) => s ? [] : [i]);
    const limit = Math.max(largest(this.made), this.was ? largest(this.was) : 0),
      scale = colourScaleOf({limit, palette, theme});
    const rows = [['recorded', this.was], ['what if', this.made]].map(([name, target]) => {
      const chips = ordinary.map(i => targetChip(this.probe.labels[i], target ? target[i] : NaN, scale));
      return elementOf('div', 'sv-target-row', elementOf('span', 'sv-line-name', name),
        elementOf('span', 'sv-target-words', ...chips));
    });
    this.line.replaceChildren(...rows);
  }
}

function targetChip(label, value, scale) {
  const text = elementOf('bdi', '', chipText(label, 16)),
    chip = elementOf('span', value > 0 ? 'sv-chip sv-marked' : 'sv-chip', text);
  if (Number.isFinite(value)) paintToken(chip, value > 0 ? scaleColour(scale, value) : null);
  chip.title = Number.isFinite(value) ? `target ${shortNumber(value)}` : 'no target was recorded';
  return chip;
}

class WhatIfMask extends WhatIfGroup {
  constructor(ctx) {
    super(ctx, 'Saliency guided training: which words are masked', 'SaliencyGuided');
    this.share = whatIfSlider('masked share', 100, maskedShare => this.change({maskedShare}));
    const rankings = [['signed', 'signed: most negative first'], ['magnitude', 'magnitude: closest to 0 first']];
    this.ranking = choiceOf(rankings, ranking => this.change({ranking}));
    this.first = choiceOf([['next', 'the next kept word'], ['keep', 'keep the word'], ['mask', 'the mask token']],
      first => this.change({first}));
    this.controls.append(this.share.el, labelled('lowest', this.ranking),
      labelled('without a kept word before', this.first));
    this.lines = elementOf('div', 'sv-mask-lines');
    this.result.append(this.lines);
  }

  get now() {
    const {masked_share: share = .3, ranking = 'signed', first = 'next'} = this.args, {settings} = this;
    return {maskedShare: settings.maskedShare ?? share, ranking: settings.ranking ?? ranking,
      first: settings.first ?? first};
  }

  change(changes) { this.set({...this.now, ...changes}); }
  get saliency() { return evidenceOf(this.frame, 'method_saliency', this.method) ?? this.frame.get('saliency'); }
  why() { return this.saliency ? '' : 'What is masked follows from saliency, which this step does not hold.'; }

  show() {
    const {frame, probe, now} = this;
    this.was = recordedCopy(frame, probe);
    this.made = recomputedCopy(probe, this.saliency.values(), now);
    this.share.show(now.maskedShare);
    this.ranking.value = now.ranking;
    this.first.value = now.first;
    const {of} = copyCount(this.made), k = Math.floor(of * now.maskedShare + 1e-6);
    const lowest = now.ranking === 'signed' ? 'most negative saliency' : 'saliency closest to 0';
    setText(this.lesson,
      `Of ${of} words the ${k} with the ${lowest} (masked share ${now.maskedShare.toFixed(2)}, `
        + `rounded down) give their `
      + 'place to the kept word before them. Training asks that the prediction stays the same.');
    setText(this.counts, this.sayCounts());
    this.lines.replaceChildren(maskLine('recorded', this.was, null), maskLine('what if', this.made, this.was));
  }

  sayCounts() {
    const made = copyCount(this.made), differ = this.made.filter((w, i) => copyDiffers(w, this.was?.[i])).length;
    const differs = countWords(differ, 'place differs', 'places differ');
    const recorded = this.was ? `recorded: ${copyCount(this.was).replaced}; ${differs}`
      : 'this run recorded no masked copy';
    return `What if: ${made.replaced} of ${countWords(made.of, 'word')} replaced; ${recorded}.`;
  }
}

// The masked copy that training would have made with other settings.
export function recomputedCopy(probe, saliency, {maskedShare, ranking, first}) {
  const {masked, source} = maskedWords(saliency, probe.word_ids, {share: maskedShare, ranking, first}),
    mask = 'the mask token';
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
    chip.title = word.replaced ? `in place of ${chipText(word.label)}` : 'kept';
    line.append(chip);
  });
  return row;
}

class WhatIfThreshold extends WhatIfGroup {
  constructor(ctx) {
    super(ctx, 'Threshold: how much of the map holds most of the attention', '');
    // Most weights are small: the slider is finer there.
    this.slider = whatIfSlider('threshold', 200, v => ctx.state.set({threshold: Number((v * v).toPrecision(2))}),
      v => shortNumber(v * v));
    this.controls.append(this.slider.el);
    this.maps = new WhatIfPair((i, j) => `${this.pair(i,
      j)}: attention ${shortNumber(this.map.values[i * this.map.n + j])}`);
    this.result.append(this.maps.el);
  }

  why() {
    return whyNoMap(mapOf(this.frame, this.head, 'attention'));
  }

  show() {
    const {threshold, palette, theme} = this.ctx.state, map = mapOf(this.frame, this.head, 'attention');
    this.map = map;
    this.slider.show(Math.sqrt(threshold));
    const kept = map.values.filter(v => v >= threshold), share = percent(maskSum(kept) / maskSum(map.values));
    const count = `${kept.length} of ${map.values.length} positions are at least ${shortNumber(threshold)}`;
    const words = `${map.title}: ${count}; they hold ${share} of the attention.`;
    const scale = colourScaleOf({limit: largest(map.values), palette, theme});
    setText(this.lesson,
      'Values below the threshold are blank, here and on the map: what remains is where this head looks.');
    setText(this.counts, words);
    const side = low => ({colours: Uint32Array.from(map.values, v => v >= low ? scaleColour(scale, v) : scale.blank),
      draw: () => {}, words});
    this.maps.draw(map.n, [side(-1), side(threshold)], this.room);
  }
}

class WhatIf {
  constructor(ctx) {
    this.ctx = ctx;
    this.groups = [WhatIfRegion, WhatIfPattern, WhatIfTarget, WhatIfMask, WhatIfThreshold].map(Group => new Group(ctx));
    this.back = buttonOf('Back to what was recorded', 'Back to what was recorded',
      () => ctx.state.set({whatIf: null, threshold: 0}));
    this.where = elementOf('span', 'sv-whatif-where');
    this.note = elementOf('p', 'sv-note');
    this.list = elementOf('div', 'sv-groups');
    this.el = elementOf('section', 'sv-panel sv-whatif', elementOf('div', 'sv-whatif-head', this.where, this.back),
      this.note, this.list);
    this.el.setAttribute('aria-label', 'What if');
  }

  // The run's own methods come first; the first of them is open.
  order(methods) {
    if (methods.join() === this.ordered) return;
    this.ordered = methods.join();
    const own = this.groups.filter(g => methods.includes(g.method)),
      rest = this.groups.filter(g => !methods.includes(g.method));
    this.list.replaceChildren(...[...own, ...rest].map(g => g.el));
    const first = own[0] ?? this.groups.find(g => g.frame && !g.why()) ?? rest[0];
    for (const group of this.groups) group.el.open = group === first;
  }

  update(changed) {
    if (!whatIfKeys.some(key => changed.has(key))) return;
    const {store, state} = this.ctx, frame = store.frameOf(state), probe = store.probe(state.run, state.probe),
      step = store.stepOf(state);
    this.back.disabled = !state.whatIf && !state.threshold;
    this.list.hidden = !frame || !probe;
    setText(this.note, frame ? '' : step === null ? 'Nothing was recorded yet.' : store.why(state.run, state.probe,
      step));
    setText(this.where,
      frame ? `${entryTitle(state.entry)}, step ${frame.step}. Recomputed in the browser; nothing in the run changes.`
        : '');
    if (!frame || !probe) return;
    const room = this.list.clientWidth - 24;
    for (const group of this.groups) Object.assign(group, {frame, probe});
    this.order(frame.info.method ? methodNames(frame) : store.run(state.run).method.split(' + '));
    for (const group of this.groups) group.update(frame, probe, room);
  }
}

export const whatIfPanel = {
  name: 'whatif', title: 'What if', order: 50, tab: true, shows: 'text', still: 'whatif',
  view: WhatIf,
};
