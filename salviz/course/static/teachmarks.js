// The marks from which a model learns in a page: the reader marks words, a class hands in its marks, or saliency marks.
import {elementOf, setText} from '../explorer/controls.js';
import {CourseWordList} from './kinds/ask-words.js';
import {classMerge, classRead} from './classmerge.js';
import {courseButton, courseId} from './parts.js';
import {courseParsed, coursePrintable, courseReadText} from './untrusted.js';
import {courseStored} from './storage.js';

// Words to mark in a few sentences. `changed(marks)`: flags of each sentence, null without a mark.
export class TeachReaderMarks {
  constructor({texts, classes, most, key}, tell, changed) {
    Object.assign(this, {texts, key, changed, marks: texts.map(() => null)});
    this.lists = texts.map((of, i) => {
      const id = courseId(), about = elementOf('p', 'tc-about', `Sentence ${i + 1} of ${texts.length}. `,
        'Right answer: ', elementOf('strong', '', classes[of.label]));
      about.id = id;
      const list = new CourseWordList({...of, most}, {labelledBy: id, tell,
        changed: value => this.set(i, value)});
      return {list, el: elementOf('div', 'tc-sentence', about, list.el)};
    });
    const fill = courseButton('Use the word list', () => this.fill(texts.map(({opinion}) => opinion)));
    const clear = courseButton('Remove all marks', () => this.fill(texts.map(() => null)));
    this.el = elementOf('div', '', ...this.lists.map(({el}) => el), elementOf('div', 'cr-buttons', fill, clear),
      elementOf('p', 'sv-note', 'The word list contains words that are clearly positive or negative on their own.'));
    this.restore();
  }

  set(i, value) {
    this.marks[i] = value ? this.texts[i].words.map((_, w) => Number(value.includes(w))) : null;
    try { sessionStorage.setItem(this.key, JSON.stringify(this.marks)); } catch { /* a reload forgets the marks */ }
    this.changed(this.marks);
  }

  fill(marks) {
    marks.forEach((flags, i) => {
      const value = flags?.some(Boolean) ? flags.flatMap((flag, w) => flag ? [w] : []) : null;
      this.lists[i].list.set(value);
      this.set(i, value);
    });
  }

  // After a reload, the marks of this tab.
  restore() {
    let stored = null;
    try { stored = JSON.parse(sessionStorage.getItem(this.key)); } catch { return; }
    const fits = (flags, i) => flags === null || Array.isArray(flags) && flags.length === this.texts[i].words.length;
    if (Array.isArray(stored) && stored.length === this.texts.length && stored.every(fits)) this.fill(stored);
  }

  lock(on) { for (const {list} of this.lists) list.lock(on); }
}

// Return [name, text] of a file; errors start with its name.
async function teachHanded(file) {
  const name = coursePrintable(file.name);
  try { return [name, await courseReadText(file)]; } catch (error) { throw new Error(`${name} ${error.message}.`); }
}

// Marks that a class hands in as files or codes, those of lesson 3 in this browser, or the word list.
export class TeachClassMarks {
  constructor({texts, set}, tell, changed) {
    Object.assign(this, {texts, markSet: set, changed});
    this.message = elementOf('p', 'sv-note');
    this.message.setAttribute('role', 'status');
    const field = elementOf('textarea', 'cr-code'), label = elementOf('label', 'cr-code-label',
      'Codes from lesson 3, one per line, or the text of a whole chat', field), choose = elementOf('input');
    Object.assign(field, {rows: 3, spellcheck: false});
    Object.assign(choose, {type: 'file', multiple: true, accept: '.json,.txt'});
    choose.addEventListener('change', () => this.files(choose.files));
    this.el = elementOf('div', '', label, elementOf('div', 'cr-buttons',
      courseButton('Use these codes', () => this.take([['', field.value]])),
      courseButton('Use my marks from lesson 3', () => this.mine()),
      courseButton('Use the word list', () => this.lexicon())),
    elementOf('label', 'cr-code-label', 'Or choose files (marks-….json)', choose), this.message);
    this.lexicon();
  }

  lexicon() { this.use(this.texts.map(({opinion}) => opinion), 'The word list is the teacher.'); }

  use(marks, message) {
    setText(this.message, message);
    this.changed(marks.map(flags => flags?.some(Boolean) ? flags : null));
  }

  async files(files) {
    try { this.take(await Promise.all([...files].map(teachHanded))); } catch (error) {
      setText(this.message, error.message);
    }
  }

  // `handed`: [file name, or '' for pasted text; text]
  take(handed) {
    const read = handed.map(([source, text]) => classRead(this.markSet, text, source));
    const sheets = read.flatMap(one => one.sheets), broken = read.flatMap(one => one.broken);
    const why = broken.length ? `${broken[0].source || 'the pasted text'}: ${broken[0].reason}` : '';
    if (!sheets.length) {
      setText(this.message, `No marks found. ${broken[0]?.source ? `${why}.` : 'Paste a code from lesson 3.'}`);
      return;
    }
    const {unique, majority} = classMerge(this.markSet, sheets);
    const count = unique.length, who = count > 1 ? `The teacher is the majority vote of ${count} people.`
      : `The marks of ${unique[0].nickname} are the teacher.`;
    const unread = broken.length ? ` Files or codes that could not be read: ${broken.length} (${why}).` : '';
    this.use(majority, who + unread);
  }

  // Lesson 3 of the same folder stores its marks in this browser.
  mine() {
    const place = location.pathname.replace(/[^/]*$/, '3_do_you_agree.html');
    try {
      const {marks} = courseParsed(courseStored(`salviz-marks ${this.markSet.id} ${place}`) ?? '{}');
      const fits = Array.isArray(marks) && marks.length === this.texts.length && marks.every((flags, i) =>
        flags === null || Array.isArray(flags) && flags.length === this.texts[i].words.length);
      if (fits && marks.some(flags => flags?.some(Boolean))) this.use(marks, 'Your marks are the teacher.');
      else setText(this.message, 'No marks from lesson 3 are stored in this browser.');
    } catch { setText(this.message, 'This browser does not store the marks from lesson 3.'); }
  }

  lock(on) { for (const part of this.el.querySelectorAll('button, textarea, input')) part.disabled = on; }
}

// Marks of the model itself: the words with the highest saliency before training.
export class TeachModelMarks {
  constructor({texts}, changed) {
    const count = texts.reduce((sum, {salient}) => sum + salient.filter(Boolean).length, 0);
    this.el = elementOf('p', '', 'The teacher is the model as it was before training. It marks the words with the '
      + `highest saliency (integrated gradients): ${count} words in ${texts.length} sentences.`);
    changed(texts.map(({salient}) => salient));
  }

  lock() {}
}
