// Panel 'own': a custom sentence, evaluated with a model. Shows its maps, saliency and prediction next to those of the
// sentence in view, or with and without an intervention, and the differences for the words that both contain.
import {alignWords, textPieces, withoutPiece} from '../lib/align.js';
import {colourScaleOf, scaleColour, shortNumber} from '../lib/colour.js';
import {buttonOf, choiceOf, elementOf, fillChoice, labelled, setText} from '../lib/controls.js';
import {interventionChanges} from '../lib/interventions.js';
import {chipText, countWords, directionOf, paintToken, quoted, repeatNames, scaleBar} from '../lib/words.js';
import {signWords} from '../lib/words.js';
import {entryPhrase} from '../state/derive.js';
import {Store} from '../state/store.js';
import {InterventionControls} from './interventioncontrols.js';
import {SentenceMaps} from './sentencemaps.js';
import {sentenceOutcome, signedNumber} from './sentenceoutcome.js';
import {pairOf} from './sentencepair.js';

export const lateAfter = 4000;
const customCached = 8;
const customColours = [['saliency', 'saliency'], ['attention', 'attention']];
const customNoKernel = 'This panel needs a model in a running kernel. In a notebook, use '
  + 'Explorer(run, model=(model, tokenizer)) or explore(model, tokenizer).';
const customTypedAfter = 150;   // milliseconds after the last key
export const lateWords = 'No answer yet. The kernel may be busy; if it has stopped, run the cell again.';

// The models that the kernel offers for the run in view, and why they cannot be used ('' if they can).
export function modelOffer({kernel, state}) { return kernel?.offers()[state.run] ?? null; }
export function modelNeeds(ctx) { return modelOffer(ctx)?.needs ?? customNoKernel; }

class CustomSentence {
  constructor(ctx) {
    Object.assign(this, {ctx, fields: [], queried: [], base: null, pair: null, turn: 0});
    this.el = elementOf('section', 'sv-panel sv-own');
    this.el.setAttribute('aria-label', 'Custom sentence');
    this.makeForm();
    this.makeAnswer();
    this.head = elementOf('div', 'sv-head', elementOf('h3', 'sv-title', 'Custom sentence'));
    this.controls = new InterventionControls(ctx);
    this.el.append(this.head, this.form, this.controls.el, this.status, this.answer);
  }

  makeForm() {
    this.inputs = elementOf('div', 'sv-own-inputs');
    this.submit = elementOf('button', 'sv-own-look', 'Run');
    this.submit.type = 'submit';
    this.again = buttonOf('Reset', 'reset to the current sentence', () => this.restart());
    this.choice = choiceOf([], () => this.ask());
    this.attribution = choiceOf([], () => this.ask());
    this.beside = choiceOf([], () => this.ask());
    this.choiceField = labelled('Model', this.choice);
    this.attributionField = labelled('Saliency by', this.attribution);
    this.besideField = labelled('Compare with', this.beside);
    this.words = elementOf('div', 'sv-own-words');
    this.words.setAttribute('role', 'group');
    this.words.setAttribute('aria-label',
      'words: press an arrow key to go to another word, Enter or Delete to remove it');
    this.words.addEventListener('keydown', e => this.key(e));
    const options = elementOf('div', 'sv-own-options', this.submit, this.again, this.besideField, this.choiceField,
      this.attributionField);
    this.form = elementOf('form', 'sv-own-form', this.inputs, this.words, options);
    this.form.addEventListener('submit', e => {
      e.preventDefault();
      this.ask();
    });
    this.status = elementOf('p', 'sv-note sv-own-said');
    this.status.setAttribute('role', 'status');
  }

  makeAnswer() {
    this.colour = choiceOf(customColours, () => this.show());
    this.about = elementOf('p', 'sv-note');
    this.line = elementOf('div', 'sv-line sv-own-pair');
    this.line.tabIndex = 0;   // it scrolls
    this.line.setAttribute('role', 'group');
    this.line.setAttribute('aria-label', 'words of A and B');
    this.scale = elementOf('div', 'sv-own-scales');
    this.outcome = elementOf('div', 'sv-own-outcome');
    this.maps = new SentenceMaps(this.ctx.announce);
    this.answer = elementOf('div', 'sv-own-answer', this.about, labelled('Colour by', this.colour), this.line,
      this.scale, this.outcome, this.maps.el);
    this.answer.hidden = true;
  }

  offer() { return modelOffer(this.ctx); }
  needs() { return modelNeeds(this.ctx); }
  text() { return this.fields.map(field => field.value); }

  update(changed) {
    const {store, state} = this.ctx, probe = store.probe(state.run, state.probe);
    if (changed.has('run') || changed.has('probe') || !this.base && probe) this.begin(probe);
    else if (changed.has('intervention') && (state.intervention || this.pair?.intervention)) this.ask();
    if (['intervention', 'entry'].some(key => changed.has(key))) this.fill();
    if (['run', 'meta'].some(key => changed.has(key))) this.fill();
    if (['entry', 'palette', 'theme', 'size', 'scale'].some(key => changed.has(key))) this.show();
  }

  // When another sentence comes into view, an unedited text follows it and the previous answer is removed.
  begin(probe) {
    if (this.base) this.controls.forgetTokens();
    const untouched = !this.base || JSON.stringify(this.text()) === JSON.stringify(this.base);
    const typed = this.text();
    this.base = probe ? [...probe.texts] : null;
    const same = this.fields.length === this.base?.length;
    if (!same) this.makeFields();
    if (this.base) this.fields.forEach((field, i) => { field.value = untouched || !same ? this.base[i] : typed[i]; });
    this.turn++;
    this.pair = null;
    this.rest('');
    this.fill();
    this.show();
    if (this.ctx.state.intervention) this.ask();
  }

  makeFields() {
    this.fields = (this.base ?? []).map((_, i) => {
      const field = Object.assign(document.createElement('input'), {type: 'text', autocomplete: 'off', dir: 'auto'});
      field.className = 'sv-own-field';
      field.addEventListener('input', () => {
        this.controls.forgetTokens();
        this.showWords();
        this.typed();
      });
      // In JupyterLab, Enter does not submit a form.
      field.addEventListener('keydown', e => {
        if (e.key !== 'Enter' || e.isComposing) return;
        e.preventDefault();
        e.stopPropagation();
        this.ask();
      });
      return field;
    });
    const names = this.fields.length > 1 ? ['First text', 'Second text'] : ['Sentence'];
    this.inputs.replaceChildren(...this.fields.map((field, i) => labelled(names[i], field, 'sv-field sv-own-label')));
  }

  fill() {
    const offer = this.offer(), needs = this.needs(), pairs = this.queried.map((texts, i) => [i, texts]);
    for (const part of [...this.fields, this.submit, this.again, this.beside, this.choice, this.attribution])
      part.disabled = Boolean(needs);
    const {choices = [], attributions = []} = offer ?? {}, has = value => choices.some(([v]) => String(v) === value);
    const chosen = has(this.choice.value) ? this.choice.value : String(choices.at(-1)?.[0] ?? '');
    fillChoice(this.choice, choices, chosen);
    const by = attributions.includes(this.attribution.value) ? this.attribution.value : attributions[0] ?? '';
    fillChoice(this.attribution, attributions.map(name => [name, name.replaceAll('_', ' ')]), by);
    const fits = pairs.filter(([, texts]) => texts.length === this.fields.length);
    const beside = fits.some(([i]) => String(i) === this.beside.value) ? this.beside.value : 'view';
    const others = this.otherModels(), isOther = others.some(({key}) => key === this.beside.value);
    fillChoice(this.beside, [['view', 'the current sentence'],
      ...fits.map(([i, texts]) => [i, chipText(texts.join(' / '), 40)]),
      ...others.map(({key, name}) => [key, `the same sentence, ${name}`])], isOther ? this.beside.value : beside);
    this.choiceField.hidden = !choices.length;
    this.attributionField.hidden = attributions.length < 2;
    this.besideField.hidden = !fits.length && !others.length || Boolean(this.ctx.state.intervention) && !isOther;
    this.controls.update(this.tokenLabels(), Boolean(needs));
    if (needs || this.missing) this.say(needs);
    this.missing = Boolean(needs);
    this.showWords();
  }

  // Models that can read A instead of the chosen one: other checkpoints of the run, and models of other runs.
  otherModels() {
    const {kernel, store, state} = this.ctx, offers = kernel?.offers() ?? [];
    return offers.flatMap(({needs, choices}, run) => needs ? [] : choices.map(([choice, name]) => ({run, choice,
      key: `model/${run}/${choice}`, name: store.runs.length > 1 ? `${store.run(run).name}: ${name}` : name})))
      .filter(({run, choice}) => run !== state.run || String(choice) !== this.choice.value);
  }

  // The tokens of the sentence in the field, empty if they are unknown.
  tokenLabels() {
    const {store, state} = this.ctx, recorded = store.probe(state.run, state.probe), text = JSON.stringify(this.text());
    const probes = [...(this.pair?.sides ?? []).map(({probe}) => probe), ...recorded ? [recorded] : []];
    return probes.find(probe => JSON.stringify(probe.texts) === text)?.labels ?? [];
  }

  // A model in the page answers while you type.
  typed() {
    clearTimeout(this.soon);
    if (this.ctx.kernel?.whileTyping) this.soon = setTimeout(() => this.ask(true), customTypedAfter);
  }

  say(text, failed = false) {
    setText(this.status, text || this.needs() || this.offer()?.about || '');
    this.status.classList.toggle('sv-failed', failed);
  }

  // Each word with a cross that removes it. One word is a Tab stop; the arrow keys move between words.
  showWords() {
    const open = !this.needs();
    this.pieces = this.fields.flatMap((field, i) => textPieces(field.value).map(piece => ({...piece, field: i})));
    this.words.hidden = !open || !this.pieces.length;
    this.words.dir = directionOf(this.text());
    this.words.replaceChildren(...(open ? this.pieces.map((piece, k) => this.wordNode(piece, k)) : []));
  }

  wordNode(piece, k) {
    const text = elementOf('bdi', '', chipText(piece.text)), cross = elementOf('span', 'sv-own-cross', '×');
    const button = buttonOf('', `remove ${quoted(piece.text)}`, () => this.leaveOut(k));
    cross.setAttribute('aria-hidden', 'true');
    button.className = 'sv-own-word';
    button.append(text, cross);
    button.tabIndex = k ? -1 : 0;
    return button;
  }

  key(e) {
    const buttons = [...this.words.children], k = buttons.indexOf(e.target);
    if (k < 0 || e.ctrlKey || e.metaKey || e.altKey) return;
    const right = this.words.dir === 'rtl' ? -1 : 1, to = {ArrowRight: k + right, ArrowLeft: k - right, Home: 0,
      End: buttons.length - 1}[e.key];
    if (e.key === 'Delete' || e.key === 'Backspace') this.leaveOut(k);
    else if (to !== undefined) this.focusWord(to);
    else return;
    e.preventDefault();
    e.stopPropagation();
  }

  focusWord(k) {
    const buttons = [...this.words.children], next = buttons[Math.max(0, Math.min(buttons.length - 1, k))];
    for (const button of buttons) button.tabIndex = button === next ? 0 : -1;
    (next ?? this.fields[0])?.focus();
  }

  leaveOut(k) {
    const piece = this.pieces[k], field = this.fields[piece.field];
    field.value = withoutPiece(field.value, piece);
    this.controls.forgetTokens();
    this.showWords();
    this.focusWord(k);
    this.ask();
  }

  restart() {
    this.fields.forEach((field, i) => { field.value = this.base[i]; });
    this.beside.value = 'view';
    this.turn++;
    this.pair = null;
    this.ctx.state.set({intervention: null});
    this.showWords();
    this.rest('');
    this.fill();
    this.show();
  }

  // Only the newest request counts; answers to earlier ones are ignored. Answers come in parts.
  async ask(isTyping = false) {
    clearTimeout(this.soon);
    const {state} = this.ctx, texts = this.text(), turn = ++this.turn,
      {intervention, entry: {kind, layer, head}} = state;
    if (this.needs() || !this.base) return;
    if (this.controls.isMalformed) {
      this.rest('The intervention is malformed; remove it.', true);
      return;
    }
    if (texts.some(text => !text.trim())) {
      this.rest('Type at least one word, then press Enter.', true);
      return;
    }
    const model = this.otherModels().find(({key}) => key === this.beside.value);
    const first = intervention || model ? texts : this.beside.value === 'view' ? this.base
      : this.queried[Number(this.beside.value)];
    const choice = this.offer().choices.find(([value]) => String(value) === this.choice.value)[0];
    this.wait('Computing …');
    this.late = setTimeout(() => { if (turn === this.turn) this.wait(lateWords); }, lateAfter);
    try {
      await this.ctx.kernel.ask({kind: 'own', run: state.run, texts: [first, texts], choice,
        attribution: this.attribution.value, head: kind === 'head' && layer !== null ? [layer, head] : null,
        intervention, other: model ? {run: model.run, choice: model.choice} : null},
      answer => {
        if (turn === this.turn) this.take({...answer, intervention, isOfTwo: Boolean(model)}, texts, isTyping);
      });
    } catch (error) {
      if (turn === this.turn) this.rest(`The request could not be sent (${error.message}); run the cell again.`, true);
    }
  }

  wait(text) {
    this.say(text);
    this.el.setAttribute('aria-busy', 'true');
  }

  rest(text, failed = false) {
    clearTimeout(this.late);
    this.say(text, failed);
    this.el.removeAttribute('aria-busy');
  }

  take(answer, texts, isTyping) {
    if (answer.error) {
      this.rest(answer.error, true);
      return;
    }
    if (answer.progress) {
      this.waitForSaliency(answer);
      return;
    }
    const store = new Store();
    store.load({format: 1, runs: [answer.run], shipped: ''});
    const frames = answer.frames.map(bytes => store.addFrame(bytes)),
      sides = frames.map((frame, i) => ({frame, probe: store.probe(0, i), explains: answer.explains[i]}));
    this.pair = {...answer, sides, classes: answer.run.classes};
    const isListed = this.queried.some(one => JSON.stringify(one) === JSON.stringify(texts));
    if (!isListed && !isTyping) this.queried = [...this.queried, texts].slice(-customCached);
    this.rest('');
    if (answer.more) this.waitForSaliency(answer);
    this.fill();
    this.show();
    if (!answer.more) this.ctx.announce(this.outcome.textContent);
  }

  waitForSaliency({attribution, progress}) {
    const done = progress ? ` ${Math.round(100 * progress)} %` : '';
    this.wait(`Computing saliency (${attribution.replaceAll('_', ' ')})${done} …`);
  }

  show() {
    const {pair} = this, {state} = this.ctx;
    this.answer.hidden = !pair;
    if (!pair) return;
    const shown = pairOf(pair.sides, state.entry, alignWords);
    setText(this.about, this.aboutWords(shown));
    this.showLine(shown);
    this.outcome.replaceChildren(...sentenceOutcome(pair));
    const isChanged = [pair.intervention && pair.isOfTwo, pair.intervention];
    const names = [...['A', 'B'].map((name, i) => isChanged[i] ? `${name} (intervention)` : name), 'B − A'];
    this.maps.draw({...shown, names}, state, this.el);
  }

  aboutWords({alike, note}) {
    const {of, attribution, notice = '', sides: [a, b], intervention, isOfTwo} = this.pair,
      name = attribution.replaceAll('_', ' ');
    const score = alike ? `for ${a.explains}`
      : `for ${a.explains || 'no score'} in A and ${b.explains || 'no score'} in B`;
    const saliency = a.frame.get('saliency') ? ` Saliency: ${name}, ${score}.` : '';
    const apart = alike || !saliency ? '' : ' Because these scores differ, no saliency difference is shown.';
    const changes = interventionChanges(intervention ?? {}, a.probe.labels).join('; ');
    const who = isOfTwo ? 'A and B were computed with an intervention, not with the unmodified models'
      : 'B was computed with an intervention, not with the unmodified model';
    const changed = changes ? ` ${who}: ${changes}.` : '';
    return [`A and B were computed just now by ${of}; neither was recorded.${changed}${saliency}${apart}`, note, notice]
      .filter(Boolean).join(' ');
  }

  // Three rows per column: the word of A, the word of B, and B − A where both are the same word.
  showLine(shown) {
    const saliency = this.pair.sides[0].frame.get('saliency');
    this.colour.options[0].disabled = !saliency;
    const what = saliency ? this.colour.value : 'attention', {state} = this.ctx,
      style = {palette: state.palette, theme: state.theme};
    const {first, second, difference} = shown[what], {units} = shown;
    const most = values => Math.max(0, ...values.filter(Number.isFinite).map(Math.abs));
    const ordinary = (values, side) => values.filter((_, k) => !units[side][k].special);
    const limit = most([...ordinary(first, 0), ...ordinary(second, 1)]);
    const both = shown.columns.map(column => column.same && !units[0][column.first].special),
      changes = difference.filter((_, k) => both[k]);
    const scale = colourScaleOf({limit, signed: what === 'saliency', ...style}),
      apart = colourScaleOf({limit: most(changes), signed: true, ...style});
    const columns = shown.columns.map((column, k) => customColumn([units[0][column.first], units[1][column.second]],
      [first[column.first], second[column.second]], difference[k], scale, apart));
    const names = elementOf('span', 'sv-own-column sv-own-names sv-answer-names', ...['A', 'B', 'B − A'].map(name =>
      elementOf('span', 'sv-line-name', name)));
    this.line.dir = directionOf(this.text());
    this.line.replaceChildren(names, ...columns);
    repeatNames(this.line);
    const scales = [[what === 'saliency' ? 'A and B' : 'A and B, attention', scale], ['B − A', apart]];
    const same = both.filter(Boolean).length, hasChanges = changes.some(Number.isFinite);
    this.scale.replaceChildren(...scales.slice(0, hasChanges ? 2 : 1).map(([name, one]) =>
      elementOf('div', 'sv-own-scale', elementOf('div', 'sv-scale-kind', name), scaleBar(one))),
    elementOf('p', 'sv-note', customLegend(what, shown, this.pair, state, same)));
  }
}

function customLegend(what, shown, pair, state, same) {
  const meaning = what === 'saliency' ? `Saliency: ${signWords(pair.sides[0].frame.info)}`
    : `Attention of ${shown.rowName} in ${entryPhrase(state.entry)}.`;
  const shared = same ? `B − A covers the ${countWords(same, 'word or punctuation mark',
    'words and punctuation marks')} that both sentences contain.` : 'The sentences have no words in common.';
  return `${meaning} ${shared}`;
}

function customChip(unit, value, scale) {
  if (!unit) return elementOf('span', 'sv-own-gap', '–');
  const text = elementOf('bdi', '', chipText(unit.label)),
    chip = elementOf('span', unit.special ? 'sv-chip sv-special' : 'sv-chip', text);
  text.dir = 'auto';
  paintToken(chip, Number.isFinite(value) && !unit.special ? scaleColour(scale, value) : null);
  chip.title = `${quoted(unit.label)}: ${Number.isFinite(value) ? shortNumber(value) : 'no value'}`;
  return chip;
}

function customColumn([a, b], [first, second], difference, scale, apart) {
  const differs = Number.isFinite(difference),
    change = elementOf('span', 'sv-own-change', differs ? signedNumber(difference) : '');
  paintToken(change, differs && !a.special ? scaleColour(apart, difference) : null);
  const text = differs ? `B − A ${signedNumber(difference)}` : 'different words';
  const column = elementOf('span', 'sv-own-column', customChip(a, first, scale), customChip(b, second, scale), change);
  column.title = text;
  return column;
}

export const customSentencePanel = {
  name: 'own', title: 'Custom sentence', order: 66, shows: 'text', image: 'sentence',
  help: {says: [
    'Runs the model on a sentence that you type and compares the result with that for the current sentence, '
      + 'or compares the results with and without an intervention, such as crossing out a head.',
    'A single pair of sentences does not show how the model behaves in general.'],
  keys: [['Enter', 'run the model; on a word: remove it'], ['Delete', 'remove the word'],
    ['← →', 'move between words; in an intervention: between tokens and heads']]},
  view: CustomSentence,
};
