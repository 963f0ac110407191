// A prediction card: the question, the first answer, the answer after the discussion, and the true answer.
import {courseAnswered, courseConfidences, courseRevealed, courseSureness, courseWhyLength} from './entry.js';
import {elementOf, setText} from '../explorer/controls.js';
import {courseKinds} from './kinds.js';
import {courseButton, courseId, courseKeep, courseNames, coursePlain, courseRest, courseTag} from './parts.js';
import {courseClassText, courseScoreText, courseTruthText, courseValueText} from './say.js';
import {courseScore} from './score.js';

const courseStateNames = {open: 'not answered yet', committed: 'committed', discussed: 'answered twice',
  revealed: 'revealed', skipped: 'skipped'};

// Confidence: three radio buttons.
class CourseConfidence {
  constructor() {
    const name = courseId();
    this.radios = courseConfidences.map(value =>
      Object.assign(document.createElement('input'), {type: 'radio', name, value}));
    const labels = this.radios.map(radio => {
      radio.addEventListener('change', () => this.set(radio.value));
      return elementOf('label', 'cr-sure', radio, courseSureness[radio.value]);
    });
    this.el = elementOf('fieldset', 'cr-confidence', elementOf('legend', '', 'How sure are you?'), ...labels);
  }

  get() { return this.radios.find(radio => radio.checked)?.value ?? null; }

  set(value) {
    for (const radio of this.radios) {
      radio.checked = radio.value === value;
      radio.parentElement.classList.toggle('cr-chosen', radio.checked);
    }
  }
}

export class CoursePredict {
  constructor({el, about, keeper}) {
    Object.assign(this, {el, about, keeper, kind: courseKinds[about.kind], value: null, again: false});
    this.build();
    this.offKeeper = keeper.on(() => this.update());
    this.update();
  }

  build() {
    const id = courseId(), question = elementOf('p', 'cr-question', this.about.question);
    question.id = id;
    question.dir = 'auto';
    this.state = elementOf('span', 'cr-state');
    this.message = elementOf('output', 'sv-said');
    this.message.setAttribute('aria-live', 'polite');
    this.picture = elementOf('div', 'cr-shown');
    this.picture.innerHTML = this.about.picture ?? ''; // HTML that Python wrote
    this.picture.hidden = !this.about.picture;
    this.control = this.kind.ask(this.about.options, {labelledBy: id, tell: text => this.tell(text),
      changed: value => { this.value = value; this.note.textContent = ''; }});
    this.how = elementOf('p', 'sv-note cr-how', this.kind.how(this.about.options));
    this.place = elementOf('div', 'cr-place', this.control.el);
    this.confidence = new CourseConfidence();
    this.why = Object.assign(document.createElement('input'), {type: 'text', className: 'cr-why-field',
      maxLength: courseWhyLength, placeholder: 'one line (optional)'});
    this.why.addEventListener('keydown', event => this.entered(event));
    this.commit = elementOf('button', 'cr-main', 'Commit');
    this.commit.type = 'submit';
    this.keepFirst = courseButton('Keep my first answer', () => this.repeat(false));
    this.note = elementOf('p', 'sv-note cr-note');
    this.note.setAttribute('role', 'status');
    this.form = elementOf('form', 'cr-form', this.confidence.el,
      elementOf('label', 'cr-why', 'Why?', this.why), elementOf('div', 'cr-buttons', this.commit, this.keepFirst));
    this.form.noValidate = true;
    this.form.addEventListener('submit', event => { event.preventDefault(); this.committed(); });
    this.results = elementOf('dl', 'cr-results');
    this.talked = courseButton('Answer again after the discussion', () => this.repeat(true));
    this.shows = courseButton('Show the answer', () => this.keeper.set(courseRevealed(this.keeper.get())), 'cr-main');
    this.next = elementOf('div', 'cr-buttons', this.shows, this.talked);
    this.el.setAttribute('role', 'group');
    this.el.setAttribute('aria-labelledby', id);
    this.el.append(elementOf('div', 'cr-head', elementOf('span', 'cr-what', 'Predict'), this.state), question,
      this.picture, this.how, this.place, this.form, this.results, this.next, this.note, this.message);
    if (this.kind.begin) this.value = this.kind.begin(this.about.options);
  }

  tell(text) {
    setText(this.message, text);
    if (this.asking) setText(this.note, '');
  }

  // JupyterLab takes Enter from a form's fields.
  entered(event) {
    if (event.key !== 'Enter' || event.isComposing || !coursePlain(event)) return;
    courseKeep(event);
    this.committed();
  }

  // A missing part is reported instead of disabling the button.
  committed() {
    const missing = this.value === null ? this.kind.missing : this.confidence.get() === null
      ? 'First choose how sure you are.' : '';
    if (missing) {
      setText(this.note, missing);
      (this.value === null ? this.control : this.confidence.radios[0]).focus();
      return;
    }
    const answer = {value: this.value, confidence: this.confidence.get(), why: this.why.value.trim()};
    this.again = false;
    this.keeper.set(courseAnswered(this.keeper.get(), answer));
    this.tell('Committed.');
    [this.talked, this.shows].find(button => !button.hidden)?.focus(); // so that pressing Enter again reveals nothing
  }

  repeat(on) {
    this.again = on;
    this.confidence.set(null);
    this.why.value = '';
    this.update();
    if (on) this.control.focus();
    else this.talked.focus();
  }

  // Redraw only after a change, so that an answer in progress is kept.
  update() {
    const entry = this.keeper.get(), outcome = entry.state === 'revealed' ? this.keeper.outcome() : null;
    if (entry.state === 'revealed' && !outcome && (this.about.hasTruth || entry.first)) this.keeper.fetch();
    const drawn = JSON.stringify([entry, outcome, this.again]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    if (entry.state !== 'committed') this.again = false;
    this.asking = entry.state === 'open' || this.again;
    this.el.dataset.state = entry.state;
    setText(this.state, courseStateNames[entry.skipped ? 'skipped' : entry.state]);
    const first = entry.first?.value ?? null, second = entry.second?.value ?? null;
    if (entry.state !== 'open') this.value = second ?? first;
    if (entry.state !== 'open' && this.value !== null) this.control.set(this.value);
    this.control.lock(!this.asking);
    this.how.hidden = !this.asking || !this.how.textContent;
    this.form.hidden = !this.asking;
    this.keepFirst.hidden = !this.again;
    setText(this.commit, this.again ? 'Commit the second answer' : 'Commit');
    const had = this.next.contains(document.activeElement);
    this.next.hidden = this.asking || entry.state === 'revealed';
    if (had && entry.state === 'revealed') courseRest(this.el);
    this.talked.hidden = entry.state !== 'committed';
    this.shows.hidden = !this.about.hasTruth;
    if (entry.state === 'revealed') this.compare(entry, outcome);
    this.results.replaceChildren(...this.asking && !this.again ? [] : this.lines(entry, outcome));
    setText(this.note, this.asking ? '' : this.noteOf(entry, outcome));
  }

  noteOf(entry, outcome) {
    if (entry.state === 'revealed' && this.about.hasTruth && !outcome)
      return 'Waiting for the answer. If it does not appear, the kernel has stopped: run the cell again.';
    if (outcome?.error) return outcome.error;
    if (entry.skipped) return 'You revealed the answer without a prediction, so this question is recorded as skipped.';
    if (entry.state === 'committed' || entry.state === 'discussed')
      return 'Saved. You can no longer change this answer.';
    return '';
  }

  compare(entry, outcome) {
    const of = outcome?.classmates, marks = {first: entry.first?.value ?? null, second: entry.second?.value ?? null,
      truth: outcome?.truth ?? null, class: of ? of.first : null};
    this.place.replaceChildren(this.kind.compare(this.about.options, marks));
    if (entry.state === 'revealed' && outcome) this.tell('Revealed.');
  }

  line(kind, name, text, note = '', why = '') {
    const value = elementOf('span', 'cr-value', text), dd = elementOf('dd', '', value);
    value.dir = 'auto';
    value.hidden = this.kind.tellsAll === true;
    if (note) dd.append(elementOf('span', 'cr-score', note));
    if (why) {
      const reason = elementOf('span', 'cr-reason', `“${why}”`);
      reason.dir = 'auto';
      dd.append(reason);
    }
    return elementOf('div', 'cr-result', elementOf('dt', '', courseTag(name, kind)), dd);
  }

  answerLine(kind, name, answer, truth) {
    const note = [courseSureness[answer.confidence]];
    if (truth !== null) {
      const score = courseScore(this.about, answer.value, truth);
      note.push(`score ${courseScoreText(this.about, score, answer.value, truth)}`);
    }
    return this.line(kind, name, courseValueText(this.about, answer.value), note.join('; '), answer.why);
  }

  lines(entry, outcome) {
    const truth = outcome?.truth ?? null, of = outcome?.classmates, lines = [];
    if (entry.first) lines.push(this.answerLine('you', courseNames.first, entry.first, truth));
    if (entry.second) lines.push(this.answerLine('then', courseNames.second, entry.second, truth));
    if (this.kind.tellsAll) return lines;
    if (of) lines.push(this.line('class', courseNames.class, courseClassText(this.about, of.first)));
    if (of && of.second.some((value, i) => JSON.stringify(value) !== JSON.stringify(of.first[i])))
      lines.push(this.line('class', 'class, after discussion', courseClassText(this.about, of.second)));
    if (truth !== null) lines.push(this.line('true', courseNames.truth, courseTruthText(this.about, truth)));
    return lines;
  }

  destroy() { this.offKeeper(); }
}
