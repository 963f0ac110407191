// What a training in the page does, step by step: a chart, sentences with their attention, a table and its notes.
import {elementOf, setText} from '../explorer/controls.js';
import {courseButton} from './parts.js';
import {teachAccuracy, teachChance, teachChart, teachOn, teachPercent} from './teachresult.js';
import {teachRight, teachTable, teachVerdict, teachWords} from './teachresult.js';

export const teachNames = {yours: 'the marks above', common: 'common words (vandal)', random: 'random words (vandal)'};
const teachShown = 3, teachMoved = .05;   // new sentences in view; a smaller change of attention counts as none

export class TeachWatch {
  // `marked` and `held`: sentences {words, spaced, label, common} with the flags `target` ('opinion' or 'salient');
  // `classes`: names of the answers.
  constructor({marked, held, classes, settings, target}) {
    Object.assign(this, {marked, held, classes, target, steps: settings.steps, runs: {}, first: 0});
    this.labels = held.map(({label}) => label);
    this.which = elementOf('select');
    this.which.addEventListener('change', () => this.show(this.which.value, this.steps));
    this.slider = Object.assign(elementOf('input'), {type: 'range', min: 0, max: this.steps, value: 0});
    this.slider.addEventListener('input', () => this.show(this.name, Number(this.slider.value)));
    this.line = elementOf('p', 'tc-now');
    this.chart = elementOf('div');
    this.sentences = elementOf('div');
    this.others = courseButton('Show other new sentences', () => {
      this.first = (this.first + teachShown) % held.length;
      this.draw();
    });
    this.fields = elementOf('div', 'tc-fields', elementOf('label', '', 'Trained with ', this.which),
      elementOf('label', 'tc-step', 'Step ', this.slider));
    this.el = elementOf('div', 'tc-watch', this.fields, this.line, this.chart, this.sentences, this.others);
    this.results = elementOf('div', 'tc-results');
    this.el.hidden = true;
  }

  // A training with the flags `marks` of the marked sentences starts.
  begin(name, marks) {
    this.runs[name] = {marks, steps: []};
    this.which.replaceChildren(...Object.keys(this.runs).map(one => new Option(teachNames[one], one)));
    this.fields.hidden = true;
  }

  add(name, answers) {
    this.runs[name].steps.push({marked: answers.slice(0, this.marked.length), held: answers.slice(this.marked.length)});
    this.show(name, this.runs[name].steps.length - 1);
  }

  finish(name) {
    this.runs[name].done = true;
    this.fields.hidden = false;
    this.drawResults();
  }

  show(name, step) {
    const last = this.runs[name].steps.length - 1;
    Object.assign(this, {name, step: Math.min(step, last)});
    this.el.hidden = false;
    [this.which.value, this.slider.value] = [name, this.step];
    this.slider.setAttribute('aria-valuetext', `step ${this.step} of ${this.steps}`);
    this.draw();
  }

  flags(kind) { return this.held.map(of => of[kind]); }

  // The words that a training is about, in new sentences.
  kind(name) { return name === 'common' ? 'common' : this.target; }

  draw() {
    const {steps} = this.runs[this.name], now = steps[this.step], count = this.held.length;
    const lines = [this.target, 'common'].map(kind => ({name: `${kind} words`, kind,
      values: steps.map(({held}) => teachOn(held, this.flags(kind))), chance: teachChance(this.flags(kind))}));
    const [target, common] = lines.map(({values}) => teachPercent(values[this.step]));
    const right = `${teachRight(now.held, this.labels)} of ${count} answers are right.`;
    setText(this.line, `Step ${this.step} of ${this.steps}. In ${count} new sentences, ${target} of the attention is `
      + `on ${this.target} words and ${common} on common words. ${right}`);
    this.chart.replaceChildren(teachChart(lines, this.steps, this.step));
    const shown = Array.from({length: Math.min(teachShown, count)}, (_, i) => (this.first + i) % count);
    const kind = this.kind(this.name), at = this.runs[this.name].marks.findIndex(Boolean);
    this.sentences.replaceChildren(elementOf('p', 'tc-legend',
      'Colours and numbers show the fraction of attention on each word. '
      + `Marked words are underlined in the training sentence, ${kind} words in the new sentences.`),
    this.sentence('A training sentence', this.marked[at], this.runs[this.name].marks[at], 'marked', at),
    ...shown.map(i => this.sentence('A new sentence', this.held[i], this.held[i][kind], 'held', i)));
  }

  sentence(title, of, flags, part, i) {
    const {steps} = this.runs[this.name], [before, now] = [steps[0], steps[this.step]].map(one => one[part][i]);
    const [was, is] = [before, now].map(one => this.classes[teachVerdict(one)]);
    const verdict = `Answer: ${was === is ? is : `${was}, now ${is}`}. Right answer: ${this.classes[of.label]}.`;
    return elementOf('div', 'tc-sentence', elementOf('p', 'tc-about', elementOf('strong', '', `${title}. `), verdict),
      teachWords('before', of, before.fractions, flags), teachWords(`step ${this.step}`, of, now.fractions, flags));
  }

  finished() { return Object.entries(this.runs).filter(([, run]) => run.done); }

  drawResults() {
    const runs = this.finished(), start = runs[0][1].steps[0], count = this.held.length;
    const on = (held, kind) => teachPercent(teachOn(held, this.flags(kind)));
    const row = (name, marked, held) => [name, marked, on(held, this.target), on(held, 'common'),
      `${teachRight(held, this.labels)}\u00a0of\u00a0${count}`];
    const rows = runs.map(([name, {steps, marks}]) => {
      const [was, is] = [steps[0], steps.at(-1)].map(({marked}) => teachPercent(teachOn(marked, marks)));
      return row(teachNames[name], `${was} before, ${is} after`, steps.at(-1).held);
    });
    const chance = ['if all words got equal attention', '–', ...[this.target, 'common'].map(kind =>
      teachPercent(teachChance(this.flags(kind)))), '–'];
    this.results.replaceChildren(
      elementOf('div', 'cr-table-area', teachTable(['trained with', 'attention on the marked words, training sentences',
        `on ${this.target} words, new sentences`, 'on common words, new sentences', 'right answers, new sentences'],
      [row('before training', '–', start.held), ...rows, chance])),
      elementOf('ul', 'tc-notes', ...runs.map(([name, run]) => elementOf('li', '',
        elementOf('strong', '', `Trained with ${teachNames[name]}. `), this.notes(name, run).join(' ')))));
  }

  // Sentences that say what the numbers show, and what may be chance.
  notes(name, {steps, marks}) {
    const [start, end] = [steps[0], steps.at(-1)], kind = this.kind(name);
    const [was, is] = [start, end].map(({held}) => teachOn(held, this.flags(kind)));
    const [old, now] = [start, end].map(({marked}) => teachOn(marked, marks));
    const change = `from ${teachPercent(was)} to ${teachPercent(is)}`, words = `${kind} words in new sentences`;
    const learned = `In the training sentences, attention on the marked words went from ${teachPercent(old)} to `
      + `${teachPercent(now)}.`;
    const moved = is - was > teachMoved ? `Attention on ${words} rose ${change}.`
      : `Attention on ${words} did not rise much (${change}).`;
    const none = 'Random marks follow no rule, so there is no rule to find in new sentences.';
    const looks = name === 'random' ? [learned, none]
      : [now - old > teachMoved ? 'The model followed the marks.' : 'The model did not follow the marks.', moved];
    return [...looks, this.accuracyNote(start.held, end.held)];
  }

  accuracyNote(first, last) {
    const {lost, won, p} = teachAccuracy(first, last, this.labels);
    if (lost + won === 0) return 'In new sentences, no answer changed from right to wrong or from wrong to right.';
    const counts = `In new sentences, ${lost} answer${lost === 1 ? '' : 's'} became wrong and ${won} became right.`;
    if (p < .05) return `${counts} Chance alone rarely leads to so uneven a result (sign test, p = ${p.toFixed(3)}).`;
    return `${counts} Chance alone often leads to such a result, so do not call the model better or worse.`;
  }
}
