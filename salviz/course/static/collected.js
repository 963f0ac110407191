// All answers: a table, a file and a code.
import {courseClassAnswers, courseCode, courseFile, courseSave} from './file.js';
import {elementOf, setText} from '../explorer/controls.js';
import {courseButton} from './parts.js';
import {courseClassText, courseNumber, courseTruthText, courseValueText} from './say.js';
import {courseScore} from './score.js';
import {courseConfidences, courseEntryOf, courseSureness} from './entry.js';
import {courseIsNickname, coursePrintable} from './untrusted.js';

function courseCell(name, text, ...more) {
  const cell = elementOf('td', '', text, ...more);
  cell.dataset.name = name;
  cell.dir = 'auto';
  return cell;
}

function courseAnswerCells(about, answer, truth) {
  if (!answer) return [''];
  const score = truth === null ? '' : courseScore(about, answer.value, truth);
  const shown = score === '' ? '' : `, score ${score === null ? 'none' : courseNumber(score)}`;
  const sure = courseSureness[answer.confidence];
  return [courseValueText(about, answer.value), elementOf('span', 'cr-score', `${sure}${shown}`)];
}

function courseRow({about, entry, outcome}) {
  const truth = entry.state === 'revealed' ? outcome?.truth ?? null : null, of = outcome?.classmates;
  const name = elementOf('th', '', about.name, elementOf('span', 'cr-asked', about.question));
  name.scope = 'row';
  const first = entry.first ? courseAnswerCells(about, entry.first, truth)
    : [entry.skipped ? 'skipped' : 'not answered'];
  return elementOf('tr', '', name, courseCell('you', ...first),
    courseCell('after discussion', ...courseAnswerCells(about, entry.second, truth)),
    courseCell('class', of && entry.state === 'revealed' ? courseClassText(about, of.first) : ''),
    courseCell('true', truth === null ? '' : courseTruthText(about, truth)));
}

// Scores by confidence, side by side; they are never summed.
function courseSureScores(rows) {
  return courseConfidences.map(confidence => {
    const isShown = ({entry, outcome}) => entry.state === 'revealed' && (outcome?.truth ?? null) !== null;
    const scores = rows.filter(row => isShown(row) && row.entry.first?.confidence === confidence)
      .map(({about, entry, outcome}) => courseScore(about, entry.first.value, outcome.truth))
      .filter(score => score !== null);
    const name = courseSureness[confidence];
    return scores.length ? `${name} (${scores.map(score => courseNumber(score)).join(', ')})` : '';
  }).filter(Boolean).join('; ');
}

export class CourseAnswers {
  // `source`: {get() → {nickname, name, note, file, code, rows}, on, page: its book, null in a notebook}
  constructor({el, source}) {
    Object.assign(this, {el, source});
    this.state = elementOf('span', 'cr-state');
    this.body = elementOf('tbody');
    const names = ['question', 'you', 'after discussion', 'class', 'true'].map(name => {
      const cell = elementOf('th', '', name);
      cell.scope = 'col';
      return cell;
    });
    this.table = elementOf('table', 'cr-table', elementOf('thead', '', elementOf('tr', '', ...names)), this.body);
    this.sure = elementOf('p', 'sv-note');
    this.note = elementOf('p', 'sv-note cr-note');
    this.note.setAttribute('role', 'status');
    this.code = Object.assign(elementOf('textarea', 'cr-code'), {readOnly: true, rows: 2, spellcheck: false});
    this.code.setAttribute('aria-label', 'code');
    this.code.addEventListener('focus', () => this.code.select());
    const save = courseButton('Download', () => this.save(), 'cr-main'), copy = courseButton('Copy code',
      () => this.copy());
    el.append(elementOf('div', 'cr-head', elementOf('span', 'cr-what', 'Your answers'), this.state),
      ...source.page ? [this.nicknameField()] : [],
      elementOf('div', 'cr-table-area', this.table), this.sure,
      elementOf('div', 'cr-buttons', save, copy, ...source.page ? this.pageButtons() : []),
      elementOf('label', 'cr-code-label', 'If you cannot hand in a file, hand in this code:', this.code), this.note);
    this.offSource = source.on(() => this.update());
    this.update();
  }

  nicknameField() {
    this.nickname = Object.assign(document.createElement('input'), {type: 'text', className: 'cr-why-field',
      maxLength: 24, autocomplete: 'off', value: this.source.get().nickname});
    this.nickname.addEventListener('input', () => {
      const typed = this.nickname.value.trim();
      const isWrong = typed && !courseIsNickname(typed);
      const allowed = 'A nickname may contain only letters a to z, digits, - and _, and must not start with - or _.';
      setText(this.note, isWrong ? allowed : '');
      if (courseIsNickname(typed)) this.source.page.say({nickname: typed});
    });
    return elementOf('label', 'cr-why cr-nickname', 'Nickname', this.nickname);
  }

  pageButtons() {
    const input = Object.assign(document.createElement('input'), {type: 'file', accept: '.json', multiple: true,
      hidden: true});
    input.addEventListener('change', () => this.readClass(input));
    const open = courseButton('Open a class file', () => input.click());
    this.forget = courseButton('Delete my answers', () => this.deleted());
    return [open, input, this.forget];
  }

  async readClass(input) {
    const {classmates, leftOut} = await courseClassAnswers(input.files), count = Object.keys(classmates).length;
    if (count) this.source.page.say({classmates});
    const questions = count === 1 ? '1 question' : `${count} questions`;
    const found = count ? `Loaded the class answers to ${questions}.` : 'No class answers found.';
    const not = leftOut.length ? ` Problems: ${coursePrintable(leftOut.join('; '))}.` : '';
    setText(this.note, found + not);
    input.value = '';
  }

  // The second press deletes.
  deleted() {
    if (!this.sureToDelete) {
      this.sureToDelete = true;
      setText(this.forget, 'Press again to delete');
      return;
    }
    this.source.page.say({entries: {}});
    location.reload();
  }

  save() {
    const {name, file, nickname} = this.source.get();
    if (this.source.page && !courseIsNickname(nickname)) {
      setText(this.note, 'Type a nickname first; it becomes part of the file name.');
      this.nickname.focus();
      return;
    }
    courseSave(name, file);
    setText(this.note, `Saved as ${name}.`);
  }

  // The clipboard may be unavailable to a page opened from disk.
  async copy() {
    this.code.focus();
    this.code.select();
    try { await navigator.clipboard.writeText(this.code.value); } catch { document.execCommand('copy'); }
    setText(this.note, 'Copied.');
  }

  update() {
    const {nickname, note, code, rows} = this.source.get();
    const drawn = JSON.stringify([nickname, note, rows]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const answered = rows.filter(({entry}) => entry.first).length;
    setText(this.state, `${answered} of ${rows.length} answered`);
    this.body.replaceChildren(...rows.map(courseRow));
    this.table.hidden = !rows.length;
    const sure = courseSureScores(rows);
    setText(this.sure, sure ? `Scores of your first answers by confidence: ${sure}.` : '');
    this.sure.hidden = !sure;
    if (this.code.value !== code) this.code.value = code;
    if (note && !this.note.textContent) setText(this.note, note);
  }

  destroy() { this.offSource(); }
}

// For a page: all answers in its book, in the order of the questions.
export function coursePageAnswers(book) {
  const get = () => {
    const {nickname, entries} = book.stored;
    const predictions = [...book.abouts.values()].filter(({what}) => what === 'predict');
    const rows = predictions.map(about => ({about, entry: courseEntryOf(about, book.entry(about.name)),
      outcome: {...book.outcomes.get(about.name), classmates: book.ofClass(about)}}));
    const scored = Object.fromEntries(Object.entries(entries).map(([name, entry]) => {
      const row = rows.find(({about}) => about.name === name), truth = row?.outcome.truth ?? null;
      if (truth === null || entry.state !== 'revealed') return [name, entry];
      const scores = [entry.first, entry.second].map(answer => answer && courseScore(row.about, answer.value, truth));
      return [name, {...entry, scores}];
    }));
    const file = courseFile(nickname || 'nobody', scored);
    const note = book.remembers ? ''
      : 'This browser does not store your answers: download them before you close this page.';
    return {nickname, name: `answers-${nickname || 'nobody'}.json`, note, rows, code: courseCode(file),
      file: JSON.stringify(file, null, 1)};
  };
  return {page: book, on: listener => book.on(listener), get};
}

export function courseWidgetAnswers(keeper) {
  const empty = {nickname: '', name: '', note: '', file: '', code: '', rows: []};
  return {page: null, on: listener => keeper.on(listener), get: () => ({...empty, ...keeper.model.get('summary')})};
}
