// What-if settings for attention guidance and SalLM: another pattern, another attention target.
import {colourScaleOf, scaleColour, shortNumber} from '../lib/colour.js';
import {choiceOf, elementOf, labelled, setText, tickBox} from '../lib/controls.js';
import {kl} from '../lib/maths.js';
import {chipText, listWords, paintToken} from '../lib/words.js';
import {drawTarget, patternWords} from './overlays.js';
import {largest, WhatIfGroup, WhatIfPair, whatIfSlider, whyNoMap} from './whatifgroup.js';
import {evidenceOf, mapOf, methodNames, namedPattern, patternOf} from '../state/derive.js';
import {targetRow, mayBeMarked, ranksBySize, sallmTarget} from '../state/derive.js';
import {targetOf} from '../state/derive.js';

const patternNames = ['next', 'prev', 'first', 'delim', 'period'];

const patternLessons = {
  next: 'the token after it', prev: 'the token before it', first: 'the first token', delim: 'the special tokens',
    period: 'the full stops',
};

export class WhatIfPattern extends WhatIfGroup {
  constructor(ctx) {
    super(ctx, 'Attention guidance: pattern of the chosen head', 'AttentionGuidance');
    this.pattern = choiceOf([['', 'as recorded'], ...patternNames.map(name => [name, name])],
      pattern => this.set({pattern}));
    this.boundary = choiceOf([['uniform', '1/n everywhere (paper)'], ['zero', '0 (released code)']],
      boundary => this.set({boundary}));
    this.multiple = choiceOf([['uniform', '1/m each (paper)'], ['indicator', '1 each (released code)']],
      multiple => this.set({multiple}));
    const rules = [labelled('Row without a neighbour', this.boundary),
      labelled('Several matching tokens', this.multiple)];
    this.fields = [labelled('Pattern', this.pattern), ...rules];
    this.controls.append(...this.fields);
    this.maps = new WhatIfPair((i, j) => this.cellWords(i, j), ctx.announce);
    this.result.append(this.maps.el);
  }

  why() {
    if (this.whyHead()) return this.whyHead();
    return whyNoMap(mapOf(this.frame, this.head, 'attention'));
  }

  // The rules for boundaries and several occurrences are those of the run, unless they are changed here.
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
    const pattern = values && {values: Float32Array.from(values), n: this.attention.n, name: chosen};
    this.recomputed = chosen ? pattern : this.was;
    this.pattern.value = chosen;
    this.boundary.value = rules.boundary;
    this.multiple.value = rules.multiple;
    this.fields[1].hidden = !['next', 'prev'].includes(chosen);
    this.fields[2].hidden = !['delim', 'period'].includes(chosen);
    const choose = 'Choose a pattern to see its target for this head.';
    const asks = chosen
      ? `With the pattern “${chosen}”, every query should attend to ${patternLessons[chosen]}.` : choose;
    setText(this.lesson,
      `Guidance adds the squared residual (attention − pattern) to the loss, which pulls the head towards the dots. `
        + asks + (this.recomputed || this.was
        ? ' Colour: the residual; orange: more attention than the pattern, blue: less.' : ''));
    setText(this.counts, this.lossWords());
    this.draw();
  }

  residual(target) { return target ? this.attention.values.map((a, k) => a - target.values[k]) : null; }

  loss(target) {
    const residual = this.residual(target);
    return residual.reduce((sum, r) => sum + r * r, 0) / residual.length;
  }

  lossWords() {
    const text = target => `mean squared residual ${shortNumber(this.loss(target))}`, {was, recomputed} = this,
      where = this.headWords();
    const {layer, head} = this.head;
    const name = was && (namedPattern(this.frame, layer, head) ?? patternWords(was.values, was.n,
      this.probe.labels));
    const recorded = was ? `recorded (${name}): ${text(was)}` : 'recorded: this head is not guided';
    if (!this.settings.pattern) return `${where}, ${recorded}.`;
    return `What-if, ${where}: ${recomputed ? text(recomputed)
      : 'the sentence contains no token of this pattern, so the head would not be guided'}; ${recorded}.`;
  }

  // Colours show the residual where there is a target, else the attention.
  draw() {
    const {theme, palette} = this.ctx.state, {values} = this.attention,
      residuals = [this.was, this.recomputed].map(t => this.residual(t));
    const signed = colourScaleOf({limit: Math.max(...residuals.map(r => r ? largest(r) : 0)), signed: true, theme});
    const plain = colourScaleOf({limit: largest(values), palette, theme});
    const painted = (values, scale) => Uint32Array.from(values, v => scaleColour(scale, v));
    const sides = [this.was, this.recomputed].map((target, i) => ({
      colours: residuals[i] ? painted(residuals[i], signed) : painted(values, plain),
      draw: (context, grid) => target && drawTarget(context, grid, target.values, theme), words: this.lossWords(),
        nothing: target ? '' : 'no pattern',
    }));
    this.maps.draw(this.attention.n, sides, this.space, this.probe, theme);
  }

  cellWords(i, j) {
    const k = i * this.attention.n + j, a = this.attention.values[k];
    const of = t => t ? `target ${shortNumber(t.values[k])}, residual ${shortNumber(a - t.values[k])}` : 'no target';
    return `${this.pair(i, j)}: attention ${shortNumber(a)}; recorded: ${of(this.was)}; `
      + `what-if: ${of(this.recomputed)}`;
  }
}

export class WhatIfTarget extends WhatIfGroup {
  constructor(ctx) {
    super(ctx, 'SalLM: attention target', 'SalLM');
    this.fraction = whatIfSlider('Top fraction', 100,
      v => this.set({topShare: Math.max(.01, v), binarised: this.now.binarised}));
    this.binarised = tickBox(binarised => this.set({binarised, topShare: this.now.topShare}));
    this.controls.append(this.fraction.el, labelled('Binary target', this.binarised, 'sv-check'));
    this.line = elementOf('div', 'sv-target-line');
    this.result.append(this.line);
  }

  get now() {
    const {top_fraction: fraction = .1, binarised = true} = this.args;
    return {topShare: this.settings.topShare ?? fraction, binarised: this.settings.binarised ?? binarised};
  }

  get saliency() { return evidenceOf(this.frame, 'method_saliency', this.method) ?? this.frame.get('saliency'); }
  why() { return this.saliency ? '' : 'The target is computed from saliency, which was not recorded at this step.'; }

  show() {
    const {state} = this.ctx, {frame, probe, now} = this, special = probe.is_special;
    this.was = sallmTarget(frame, {...state.get(), whatIf: null}, special)?.values ?? null;
    this.recomputed = sallmTarget(frame, {...state.get(), whatIf: {...now}}, special).values;
    this.fraction.show(now.topShare);
    this.fraction.range.disabled = !now.binarised;
    this.binarised.checked = now.binarised;
    const highest = ranksBySize(frame) ? 'largest' : 'highest';
    const count = mayBeMarked(frame, special).filter(Boolean).length;
    const marked = Math.max(1, Math.ceil(count * now.topShare - 1e-6));
    const teacher = evidenceOf(frame, 'method_saliency', 'SalLM') && methodNames(frame).includes('SalLM')
      ? ' from the teacher' : '';
    const marks = marked === 1
      ? `Of ${count} tokens, the one with the ${highest} saliency${teacher} gets the whole target`
      : `Of ${count} tokens, the ${marked} with the ${highest} saliency${teacher} share the target equally`;
    const settings = now.binarised ? `${marks} (top fraction ${now.topShare.toFixed(2)}, rounded up)`
      : ranksBySize(frame) ? `The target is proportional to the magnitude of the saliency${teacher}`
        : `The target is proportional to the positive part of the saliency${teacher}`;
    const row = frame.get('own/asked_row') ? 'that is explained' : 'that the classifier reads';
    setText(this.lesson, `${settings}. The loss pulls the attention of the row ${row} towards this target.`);
    setText(this.counts, this.lossWords());
    this.draw();
  }

  // KL(target || attention of the target row in the last layer, mean over heads) over the tokens that may be marked.
  loss(target) {
    const layer = this.frame.layers('attention').at(-1), map = mapOf(this.frame, {kind: 'heads', layer}, 'attention');
    if (!target || !map.values || map.pooled > 1) return NaN;
    const row = targetRow(this.frame);
    if (row === null) return NaN;
    const counts = mayBeMarked(this.frame, this.probe.is_special);
    return kl(target, map.values.subarray(row * map.n, (row + 1) * map.n), counts.map(Boolean));
  }

  lossWords() {
    const names = target => listWords(this.probe.labels.filter((_, i) => target[i] > 0)) || 'nothing';
    const loss = target => Number.isFinite(this.loss(target))
      ? `, KL(target ‖ attention) ${shortNumber(this.loss(target))}` : '';
    const recorded = this.was ? `recorded: ${names(this.was)}${loss(this.was)}` : 'no target was recorded';
    return `What-if: ${names(this.recomputed)}${loss(this.recomputed)}; ${recorded}.`;
  }

  draw() {
    const {palette, theme} = this.ctx.state, ordinary = this.probe.is_special.flatMap((s, i) => s ? [] : [i]);
    const limit = Math.max(largest(this.recomputed), this.was ? largest(this.was) : 0),
      scale = colourScaleOf({limit, palette, theme});
    const rows = [['recorded', this.was], ['what-if', this.recomputed]].map(([name, target]) => {
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
