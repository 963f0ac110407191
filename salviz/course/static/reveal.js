// Content that waits for predictions: until they are committed it lists them and contains nothing else.
import {courseEntryOf, courseRevealed} from './entry.js';
import {elementOf, setText} from '../explorer/controls.js';
import {courseButton, courseRest} from './parts.js';

export class CourseReveal {
  constructor({el, about, gate}) {
    Object.assign(this, {el, about, gate});
    this.state = elementOf('span', 'cr-state');
    this.list = elementOf('span', 'cr-waiting');
    this.wait = elementOf('p', 'cr-wait', 'Shown after you commit ', this.list, '.');
    this.shows = courseButton('Show', () => this.open(), 'cr-main');
    this.anyway = courseButton('Show anyway', () => this.open());
    this.anyway.title = 'Questions without an answer are recorded as skipped';
    this.buttons = elementOf('div', 'cr-buttons', this.shows, this.anyway);
    this.note = elementOf('p', 'sv-note cr-note');
    this.note.setAttribute('role', 'status');
    this.content = elementOf('div', 'cr-content');
    const title = elementOf('p', 'cr-question', about.title);
    title.hidden = !about.title;
    el.append(elementOf('div', 'cr-head', elementOf('span', 'cr-what', 'Reveal'), this.state), title, this.wait,
      this.buttons, this.note, this.content);
    this.offGate = gate.on(() => this.update());
    this.update();
  }

  open() {
    const {waiting} = this.gate.get();
    this.gate.open(waiting.length > 0);
  }

  update() {
    const {waiting, open, error} = this.gate.get(), drawn = JSON.stringify([waiting, open, error]);
    if (drawn === this.drawn) return;
    const had = this.buttons.contains(document.activeElement);
    this.drawn = drawn;
    this.el.dataset.state = open ? 'revealed' : waiting.length ? 'waiting' : 'ready';
    setText(this.state, open ? 'shown' : waiting.length ? 'waiting for your prediction' : 'ready');
    this.wait.hidden = open || !waiting.length;
    this.list.replaceChildren(...waiting.flatMap((name, i) => [...i ? [', '] : [], this.jump(name)]));
    this.shows.hidden = open || waiting.length > 0;
    this.anyway.hidden = open || !waiting.length;
    this.buttons.hidden = open;
    setText(this.note, error);
    this.content.hidden = !open || this.gate.kind === 'widget';
    if (open && this.gate.fill) this.fill(had);
    else if (open && had) courseRest(this.el);
  }

  // Jump to a missing prediction, if it is in this document.
  jump(name) {
    const find = () => [...document.querySelectorAll('[data-course-name]')].find(el => el.dataset.courseName === name);
    return courseButton(name, () => {
      const el = find();
      el?.scrollIntoView({block: 'center'});
      el?.querySelector('[tabindex="0"], input, button')?.focus({preventScroll: true});
    }, 'cr-link');
  }

  async fill(had) {
    if (this.filled) return;
    this.filled = true;
    try { await this.gate.fill(this.content); } catch (error) {
      setText(this.note, `This content could not be shown (${error.message}).`);
    }
    if (had) courseRest(this.content);
  }

  destroy() { this.offGate(); }
}

// The reveal of a page: it opens if all of its predictions were revealed before.
export class CoursePageGate {
  constructor(keeper, fill) {
    Object.assign(this, {kind: 'page', keeper, fill});
    const {names} = keeper.about;
    this.isOpen = names.every(name => this.state(name) === 'revealed');
  }

  state(name) { return this.entry(name).state; }

  entry(name) {
    const {book} = this.keeper, about = book.abouts.get(name) ?? {id: '', kind: ''};
    return courseEntryOf(about, book.entry(name));
  }

  get() {
    const waiting = this.keeper.about.names.filter(name => this.state(name) === 'open');
    return {waiting: this.isOpen ? [] : waiting, open: this.isOpen, error: ''};
  }

  on(listener) { return this.keeper.on(listener); }

  open() {
    const {book, about} = this.keeper;
    this.isOpen = true;
    for (const name of about.names) book.set(name, courseRevealed(this.entry(name)));
  }
}

// The reveal of a notebook: the kernel tracks the predictions and creates the content.
export class CourseWidgetGate {
  constructor(keeper) { Object.assign(this, {kind: 'widget', keeper}); }

  get() { return {waiting: [], open: false, error: '', ...this.keeper.model.get('state')}; }
  on(listener) { return this.keeper.on(listener); }
  open(anyway) { this.keeper.model.send({wish: anyway ? 'anyway' : 'open'}); }
}
