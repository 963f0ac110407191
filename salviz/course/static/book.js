// Stores answers: a page uses the browser's storage per page and lesson, a notebook uses the kernel.
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

  // The answers of the class to this question, without invalid values.
  ofClass(about) {
    const of = this.stored.classmates[about.name];
    if (of?.id !== about.id || of.kind !== about.kind) return null;
    const fits = of.first.map((value, i) => courseFits(about, value) && courseFits(about, of.second[i]));
    const lists = ['first', 'second', 'confidence'].map(list => [list, of[list].filter((_, i) => fits[i])]);
    return {...of, ...Object.fromEntries(lists)};
  }
}

let courseOnlyBook = null;

// The book of this page; the lesson number comes from the body or from the names of the questions.
export function courseBook() {
  const names = () => [...document.querySelectorAll('.salviz-course')].map(el => el.dataset.name ?? '');
  return courseOnlyBook ??= new CourseBook(document.body.dataset.lesson ?? courseLessonOf(names()));
}

// Unpack JSON from the text of a script element; the inverse of `packed_text` in Python.
export async function courseUnpacked(script) {
  const bytes = Uint8Array.from(atob(script.textContent), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

// The data and the storage of a fragment; `script` contains its compressed part.
export class CoursePageKeeper {
  constructor(about, book, script) {
    Object.assign(this, {kind: 'page', about, book, script});
    if (about.what === 'predict') book.abouts.set(about.name, about);
  }

  get() { return courseEntryOf(this.about, this.book.entry(this.about.name)); }
  set(entry) { this.book.set(this.about.name, entry); }
  on(listener) { return this.book.on(listener); }
  hidden() { return this.unpacked ??= this.script ? courseUnpacked(this.script) : Promise.resolve({}); }

  // {truth, classmates, error}, or null before it is loaded.
  outcome() {
    const packed = this.book.outcomes.get(this.about.name);
    return packed ? {...packed, classmates: this.book.ofClass(this.about)} : null;
  }

  // Load the true answer, which may now be shown.
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

// The same for a widget: its kernel sends the true answer after the reveal.
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
