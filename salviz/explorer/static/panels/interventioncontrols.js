// Controls of an intervention in panel 'own': tokens, heads and layers that are crossed out, a replaced map, AD-DROP's
// region, masked words. They change `state.intervention`; the panel then runs the model with and without it.
import {buttonOf, choiceOf, elementOf, fillChoice, labelled, setText} from '../lib/controls.js';
import {completed, interventionChanges, isIntervention, withoutDefaults} from '../lib/interventions.js';
import {headToggles, ToggleGrid, tokenToggles} from './headgrid.js';
import {whatIfSlider} from './whatifgroup.js';

const tokenModes = [['positions', 'no token attends to it'], ['rows', 'its own attention is 0']];
const mapModes = [['', 'keep its map'], ['next', 'next token'], ['prev', 'previous token'], ['first', 'first token'],
  ['delim', 'delimiters'], ['period', 'full stops'], ['saliency', 'SalLM’s target']];
const regionModes = [['', 'none'], ['high', 'highest attributions'], ['low', 'lowest attributions'],
  ['low_released', 'lowest (as many as in the released code)'], ['random', 'random positions']];

const toggled = (list, item) => {
  const text = JSON.stringify(item), rest = list.filter(one => JSON.stringify(one) !== text);
  return rest.length < list.length ? rest : [...list, item];
};

export class InterventionControls {
  constructor(ctx) {
    this.ctx = ctx;
    this.mode = choiceOf(tokenModes, () => this.show());
    this.tokens = new ToggleGrid('sv-intervene-tokens',
      'tokens to cross out: press an arrow key to go to another token, Enter to toggle it');
    this.heads = new ToggleGrid('sv-intervene-heads',
      'heads to cross out: press an arrow key to go to another head, Enter to toggle it');
    this.map = choiceOf(mapModes, name => this.replaceMap(name));
    this.mapField = labelled('', this.map);
    this.mapName = this.mapField.firstChild;
    this.region = choiceOf(regionModes, region => this.set({region: region || null}));
    this.p = whatIfSlider('p', 100, p => this.set({p}));
    this.q = whatIfSlider('q', 100, q => this.set({q}));
    this.draw = buttonOf('Draw again', 'draw again from the region, with the next seed',
      () => this.set({seed: this.value.seed + 1}));
    this.mask = whatIfSlider('Mask fraction', 100, fraction => this.set({mask_fraction: fraction}));
    this.reset = buttonOf('Remove the intervention', 'use the unmodified model',
      () => ctx.state.set({intervention: null}));
    this.statement = elementOf('p', 'sv-note sv-intervene-statement');
    this.el = elementOf('details', 'sv-group sv-intervene', elementOf('summary', '', 'Intervention'), this.body());
  }

  body() {
    const part = (title, ...children) => elementOf('fieldset', 'sv-intervene-part',
      elementOf('legend', '', title), ...children);
    this.lesson = elementOf('p', 'sv-note', 'Cross out what the model attends to: does the prediction change? '
      + 'A is the sentence without the intervention, B with it; the weights of the model do not change.');
    return elementOf('div', 'sv-group-body', this.lesson,
      part('Tokens', labelled('If a token is crossed out,', this.mode), this.tokens.el),
      part('Heads', elementOf('p', 'sv-note', 'The output of a head that is crossed out is 0.'), this.heads.el),
      part('Replaced map', this.mapField),
      part('AD-DROP’s region', labelled('Drop', this.region), this.p.el, this.q.el, this.draw),
      part('Masked words', this.mask.el, elementOf('p', 'sv-note', 'The words with the lowest saliency '
        + '(input x gradient) are each replaced by the nearest unmasked word.')),
      elementOf('div', 'sv-intervene-foot', this.reset, this.statement));
  }

  // `state.intervention` may come from a link.
  get isMalformed() { return this.ctx.state.intervention !== null && !isIntervention(this.ctx.state.intervention); }
  get value() { return completed(this.isMalformed ? {} : this.ctx.state.intervention ?? {}); }
  set(changes) { this.ctx.state.set({intervention: withoutDefaults({...this.value, ...changes})}); }

  // The positions of tokens hold only for the sentence in which they were crossed out.
  forgetTokens() { if (this.ctx.state.intervention) this.set({positions: [], rows: []}); }

  pressToken(i) { this.set({[this.mode.value]: toggled(this.value[this.mode.value], i).sort((a, b) => a - b)}); }

  pressLayer(layer) {
    const {layers, heads, maps} = this.value, isOther = ([l]) => l !== layer;
    this.set({layers: toggled(layers, layer), heads: heads.filter(isOther), maps: maps.filter(isOther)});
  }

  // In a layer that is crossed out, the button brings one head back.
  pressHead(layer, head) {
    const {layers, heads, maps} = this.value, {heads: count} = this.size;
    const isOther = ([l, h]) => l !== layer || h !== head;
    const others = layers.includes(layer) ? Array.from({length: count}, (_, h) => [layer, h]).filter(isOther) : null;
    this.set({layers: layers.filter(l => l !== layer), maps: maps.filter(isOther),
      heads: others ? [...heads, ...others] : toggled(heads, [layer, head])});
  }

  replaceMap(name) {
    const {layer, head} = this.ctx.state.entry, isOther = ([l, h]) => l !== layer || h !== head;
    const {maps, heads, layers} = this.value;
    this.set({maps: [...maps.filter(isOther), ...name ? [[layer, head, name]] : []],
      heads: heads.filter(isOther), layers: name ? layers.filter(l => l !== layer) : layers});
  }

  // `tokens`: labels of the sentence in the field, empty if they are unknown.
  update(tokens, disabled) {
    const {store, state} = this.ctx, {layers = 0, heads = 0} = store.run(state.run)?.model ?? {};
    Object.assign(this, {labels: tokens, size: {layers, heads}, disabled});
    this.show();
  }

  show() {
    const {value, disabled, labels = [], size, mode} = this, {kind, layer, head} = this.ctx.state.entry;
    if (!size) return;
    this.tokens.draw(tokenToggles(labels, value[mode.value], i => this.pressToken(i),
      mode.value === 'rows' ? 'set the attention to 0' : 'cross out'), disabled);
    this.heads.draw(headToggles(size, value, l => this.pressLayer(l), (l, h) => this.pressHead(l, h)), disabled);
    const isHead = kind === 'head' && layer !== null;
    this.mapName.data = isHead ? `Layer ${layer}, head ${head} (in view): ` : 'Choose a single head: ';
    fillChoice(this.map, mapModes, value.maps.find(([l, h]) => l === layer && h === head)?.[2] ?? '');
    this.region.value = value.region ?? '';
    for (const name of ['p', 'q']) this[name].show(value[name]);
    this.mask.show(value.mask_fraction);
    for (const part of [mode, this.region, this.mask.range]) part.disabled = disabled;
    for (const part of [this.p.range, this.q.range, this.draw]) part.disabled = disabled || !value.region;
    this.map.disabled = disabled || !isHead;
    const changes = interventionChanges(value, labels);
    this.reset.disabled = !changes.length && !this.isMalformed;
    setText(this.statement, changes.length ? `Changes: ${changes.join('; ')}.` : 'No changes.');
  }
}
