// Teach a model in the page: marks, a guess, training step by step, the same with a vandal's marks, and any sentence
// before and after.
import {classDrawn} from './classmerge.js';
import {elementOf, setText} from '../explorer/controls.js';
import {PageModel} from '../explorer/pagemodel.js';
import {courseButton, courseId} from './parts.js';
import {TeachClassMarks, TeachModelMarks, TeachReaderMarks} from './teachmarks.js';
import {teachRandom, teachVerdict, teachWords} from './teachresult.js';
import {teachNames, TeachWatch} from './teachwatch.js';

const teachFewest = 3;   // sentences with marks, before training starts

// Radio buttons; `get` returns the chosen text, or null.
class TeachGuess {
  constructor(question, options) {
    const name = courseId();
    this.radios = options.map(value => Object.assign(elementOf('input'), {type: 'radio', name, value}));
    this.el = elementOf('fieldset', 'cr-confidence', elementOf('legend', '', question),
      ...this.radios.map((radio, i) => elementOf('label', 'cr-sure', radio, options[i])));
    this.el.addEventListener('change', () => this.radios.forEach(radio =>
      radio.parentElement.classList.toggle('cr-chosen', radio.checked)));
  }

  get() { return this.radios.find(({checked}) => checked)?.value ?? null; }

  lock() { for (const radio of this.radios) radio.disabled = true; }
}

function teachPart(title, ...children) {
  return elementOf('section', 'tc-part', elementOf('h3', '', title), ...children);
}

export class TeachPanel {
  constructor({el, about}) {
    Object.assign(this, {el, about, marks: null, running: false});
    el.append(elementOf('div', 'cr-head', elementOf('span', 'cr-what', 'Teach'), elementOf('span', 'cr-state',
      'a model on this page')));
    if (about.missing) {
      el.append(elementOf('p', 'sv-note', about.missing));
      return;
    }
    const models = JSON.parse(this.part('salviz-models'));
    this.model = new PageModel(models, id => this.part(id));
    this.to = {run: 0, choice: models[0].choices[0][0]};
    this.message = elementOf('p', 'sv-note');
    this.message.setAttribute('role', 'status');
    this.watch = new TeachWatch(about);
    el.append(this.marking(), this.training(), this.vandal(), this.looking(),
      elementOf('p', 'sv-note tc-small', `${models[0].about} Nothing leaves this page.`));
  }

  part(id) { return document.querySelector(`script[data-part="${this.about.parts[id]}"]`)?.textContent ?? ''; }

  marking() {
    const {mode, marked: texts, classes, most, set} = this.about, changed = marks => { this.marks = marks; };
    const tell = text => setText(this.message, text);
    if (mode === 'class') {
      this.source = new TeachClassMarks({texts, set}, tell, changed);
      return teachPart('Whose marks?', this.source.el);
    }
    if (mode === 'saliency') {
      this.source = new TeachModelMarks({texts}, changed);
      return teachPart('The teacher', this.source.el);
    }
    this.source = new TeachReaderMarks({texts, classes, most, key: `salviz-teach ${location.pathname}`}, tell, changed);
    const how = `Which words show you the right answer? Click up to ${most} words in each sentence, or use the arrow `
      + 'keys and Space. Use your own judgement. Do not guess what a model would do.';
    return teachPart('1 Mark', elementOf('p', '', how), this.source.el);
  }

  training() {
    const {mode, held, settings} = this.about, isReader = mode === 'reader';
    const question = `Nobody marks the ${held.length} new sentences. After training, how many of them will the model `
      + 'get right?';
    this.guess = isReader ? new TeachGuess(question, ['fewer than before', 'as many as before',
      'more than before']) : null;
    this.button = courseButton(`Train ${settings.steps} steps`, () => this.train('yours', this.marks), 'cr-main');
    this.bar = elementOf('progress');
    this.bar.setAttribute('aria-label', 'training progress');
    this.bar.max = 1;
    this.bar.hidden = true;
    this.guessed = elementOf('p', 'tc-guessed');
    const train = [elementOf('div', 'cr-buttons', this.button, this.bar), this.message, this.watch.el, this.guessed,
      this.watch.results];
    if (!isReader) return teachPart('Train', ...train);
    return elementOf('div', '', teachPart('2 Guess', this.guess.el), teachPart('3 Train and watch', ...train));
  }

  vandal() {
    const isReader = this.about.mode === 'reader';
    this.resists = isReader ? new TeachGuess('Will the model follow a vandal too?', ['yes', 'no']) : null;
    const texts = [['common', 'Train with common words'], ['random', 'Train with random words']];
    this.buttons = texts.map(([name, text]) => courseButton(text, () => this.train(name, this.nonsense(name))));
    const why = 'Vandals mark nonsense on purpose. One vandal marks common words, such as “the” and “of”. Another '
      + 'marks words at random. The same model learns from these marks, with the same settings.';
    this.second = teachPart(isReader ? '4 Now a vandal teaches' : 'Now a vandal teaches', elementOf('p', '', why),
      ...isReader ? [this.resists.el] : [], elementOf('div', 'cr-buttons', ...this.buttons));
    this.second.hidden = true;
    return this.second;
  }

  // The marks of a vandal, in the sentences that have marks.
  nonsense(name) {
    if (name === 'common') return this.taught.map((flags, i) => flags && this.about.marked[i].common);
    return teachRandom(this.taught, classDrawn(100, this.taught.length * 4).filter((_, i) => i % 4 === 0));
  }

  looking() {
    this.field = Object.assign(elementOf('input', 'cr-why-field'), {type: 'text', maxLength: 300, spellcheck: false,
      value: 'The story is dull, but I loved every minute.'});
    const look = elementOf('button', '', 'Look');
    look.type = 'submit';
    this.looked = elementOf('div');
    const label = elementOf('label', 'tc-field', 'A sentence about a film', this.field);
    const form = elementOf('form', 'tc-look', label, look);
    form.addEventListener('submit', event => {
      event.preventDefault();
      this.look();
    });
    this.third = teachPart(this.about.mode === 'reader' ? '5 Your own sentence' : 'Your own sentence',
      elementOf('p', '', 'Where does each model look, and what does it answer?'), form, this.looked);
    this.third.hidden = true;
    return this.third;
  }

  // Why training cannot start, or ''.
  obstacle(name) {
    const count = this.marks?.filter(Boolean).length ?? 0, fewest = Math.min(teachFewest, this.about.marked.length);
    if (name === 'yours' && count < fewest)
      return `Mark words in at least ${fewest} sentences first (${count} so far).`;
    const guess = name === 'yours' ? this.guess : this.resists;
    if (guess && !guess.get()) {
      guess.radios[0].focus();
      return 'Make your guess first.';
    }
    return '';
  }

  async train(name, marks) {
    const why = this.running ? '' : this.obstacle(name);
    if (why || this.running) { if (why) this.say(why); return; }
    const {marked, held, settings} = this.about;
    if (name === 'yours') this.taught = this.marks;
    this.busy(true);
    (name === 'yours' ? this.guess : this.resists)?.lock();
    this.started = performance.now();
    this.watch.begin(name, marks);
    if (name !== 'yours') this.watch.el.scrollIntoView({block: 'start'});
    const texts = [...marked, ...held].map(({text, label}, i) => ({text, label, marks: marks[i] ?? null}));
    await this.model.ask({kind: 'train', ...this.to, name, texts, settings}, answer => this.heard(name, answer));
  }

  heard(name, {error, reading, step, of, answers}) {
    if (error) {
      this.busy(false);
      this.say(`Training stopped: ${error}.`);
      return;
    }
    if (reading !== undefined) {
      this.bar.value = reading / 2;
      setText(this.message, 'The model reads all sentences once.');
      return;
    }
    this.bar.value = .5 + step / of / 2;
    setText(this.message, `Training with ${teachNames[name]}.`);
    this.watch.add(name, answers);
    if (step === of) this.trained(name);
  }

  trained(name) {
    const seconds = Math.max(1, Math.round((performance.now() - this.started) / 1000));
    this.busy(false);
    this.watch.finish(name);
    this.say(`Trained in ${seconds} second${seconds === 1 ? '' : 's'}. Move the slider to see each step again.`);
    const guess = name === 'yours' ? this.guess : this.resists;
    if (guess && name === 'yours') setText(this.guessed, `Your guess was: ${guess.get()}. Compare it with the table.`);
    [this.second.hidden, this.third.hidden] = [false, false];
    this.look();
  }

  say(text) { setText(this.message, text); }

  busy(on) {
    this.running = on;
    this.bar.hidden = !on;
    this.source.lock(on || Boolean(this.taught && this.about.mode === 'reader'));
    for (const button of [this.button, ...this.buttons]) button.disabled = on;
    if (this.taught && this.about.mode === 'reader') this.button.disabled = true;
  }

  async look() {
    const text = this.field.value;
    await this.model.ask({kind: 'look', ...this.to, text}, ({error, words, answers, notice}) => {
      if (error) {
        this.looked.replaceChildren(elementOf('p', 'sv-note', `This sentence cannot be read: ${error}.`));
        return;
      }
      const rows = Object.entries(answers).map(([name, one]) => {
        const verdict = this.about.classes[teachVerdict(one)], sure = Math.round(100 * Math.max(...one.probabilities));
        return teachWords(`${name ? teachNames[name] : 'before'}: ${verdict}, ${sure}%`, {words}, one.fractions, null);
      });
      this.looked.replaceChildren(...rows, elementOf('p', 'sv-note', notice));
    });
  }

  destroy() { this.model?.close(); }
}
