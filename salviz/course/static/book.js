// Where answers are kept: in a page the browser's storage, for each page and lesson; in a notebook the widget's kernel.
import {courseEntryOf} from './entry.js';
import {courseLessonOf} from './file.js';
import {courseFits} from './score.js';
import {courseStore, courseStored} from './storage.js';
import {courseIsEntry, courseIsOfClass, courseParsed, courseSound} from './untrusted.js';

export class CourseBook {
  constructor(lesson) {
    Object.assign(this, {lesson, listeners: new Set(), abouts: new Map(), outcomes: new Map()});
    this.key = `salviz-course ${lesson} ${location.pathname}`;
    this.stored = {entries: {}, nickname: '', classmates: {}};
    this.remembers = this.read();
  }

  read() {
    try {
      const {entries, classmates, nickname} = courseParsed(courseStored(this.key) ?? '{}');
      this.stored = {entries: courseSound(entries, courseIsEntry),
        nickname: typeof nickname === 'string' ? nickname : '',
        classmates: courseSound(classmates, courseIsOfClass)};
      return true;
    } catch { return false; }
  }

  save() {
    try { courseStore(this.key, JSON.stringify(this.stored)); } catch { this.remembers = false; }
    for (const listener of [...this.listeners]) listener();
  }

  on(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  entry(name) { return this.stored.entries[name] ?? null; }

  set(name, entry) {
    this.stored.entries[name] = entry;
    this.save();
  }

  say(what) {
    Object.assign(this.stored, what);
    this.save();
  }

  // The answers of the class to this question, without values that do not fit it.
  ofClass(about) {
    const of = this.stored.classmates[about.name];
    if (of?.id !== about.id || of.kind !== about.kind) return null;
    const fits = of.first.map((value, i) => courseFits(about, value) && courseFits(about, of.second[i]));
    const lists = ['first', 'second', 'confidence'].map(list => [list, of[list].filter((_, i) => fits[i])]);
    return {...of, ...Object.fromEntries(lists)};
  }
}

let courseOnlyBook = null;

// The book of this page; its lesson is said by the body, or by the names of what it asks.
export function courseBook() {
  const names = () => [...document.querySelectorAll('.salviz-course')].map(el => el.dataset.name ?? '');
  return courseOnlyBook ??= new CourseBook(document.body.dataset.lesson ?? courseLessonOf(names()));
}

// The JSON that `packed` has made the text of a script element of.
export async function courseUnpacked(script) {
  const bytes = Uint8Array.from(atob(script.textContent), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

// What a fragment of a page knows and keeps; `script` holds what is packed in it.
export class CoursePageKeeper {
  constructor(about, book, script) {
    Object.assign(this, {kind: 'page', about, book, script});
    if (about.what === 'predict') book.abouts.set(about.name, about);
  }

  get() { return courseEntryOf(this.about, this.book.entry(this.about.name)); }
  set(entry) { this.book.set(this.about.name, entry); }
  on(listener) { return this.book.on(listener); }
  hidden() { return this.unpacked ??= this.script ? courseUnpacked(this.script) : Promise.resolve({}); }

  // {truth, classmates, error}, null until it is there.
  outcome() {
    const packed = this.book.outcomes.get(this.about.name);
    return packed ? {...packed, classmates: this.book.ofClass(this.about)} : null;
  }

  // Asks for what is true, which may be seen now.
  fetch() {
    if (this.fetching) return;
    const store = outcome => {
      this.book.outcomes.set(this.about.name, outcome);
      this.book.save();
    };
    this.fetching = this.hidden().then(({truth = null}) => store({truth, error: ''}),
      error => store({truth: null, error: `This part of the page is damaged (${error.message}).`}));
  }
}

// The same of a widget: its kernel keeps what is true until it may be seen.
export class CourseWidgetKeeper {
  constructor(about, model) { Object.assign(this, {kind: 'widget', about, model}); }

  get() { return courseEntryOf(this.about, this.model.get('answer')); }
  outcome() { return this.model.get('outcome') ?? null; }
  fetch() { return null; }

  set(entry) {
    this.model.set('answer', entry);
    this.model.save_changes();
  }

  on(listener) {
    const names = 'change:answer change:outcome change:state change:summary'.split(' ');
    for (const name of names) this.model.on(name, listener);
    return () => { for (const name of names) this.model.off(name, listener); };
  }
}
